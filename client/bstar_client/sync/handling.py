"""One request and its handler: what the handler is given, how it is called, and what becomes of its answer.

Any of a worker's handlers' threads calls ``handle``; what comes of it goes to the outbox. Nothing here knows
sockets, nor which thread is the one that sends.
"""

import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from bstar_client.bodies import REPLY_HEAD_BYTES, Body, to_reply
from bstar_client.core.worker_dialects import Job
from bstar_client.failures import call_hook, drop, report
from bstar_client.handlers import Handler, Request, WorkerHooks
from bstar_client.replies import ReplyStore
from bstar_client.sync.outbox import Outbox

if TYPE_CHECKING:
    from bstar_client.sync.worker import Worker

__all__ = ["SHORT_MIN", "Handling"]

_clock = time.monotonic

# Of a handler's time in the mean of the last ones: so little that 20 are remembered, and that one which lasts
# is forgotten after as many.
_WEIGHT = 1 / 16
_LASTING_S = 0.01
_SHORT_S = 0.001
# So many in a row, and one may expect another.
SHORT_MIN = 400

_SMALL_BYTES = 16_384


class Handling:
    """How the requests of one worker are handled.

    ``mean_s``: what handlers took, on the average of the last ones. ``is_quick``: is that less than
    ``quick_s``, and do they yield nothing? ``short_in_a_row``: how many took less than a millisecond, since
    one that did not. ``on_generator`` is called when a handler begins to yield.
    """

    def __init__(
        self,
        worker: "Worker",
        *,
        hooks: WorkerHooks,
        dedupe: ReplyStore | None,
        reply_bytes_max: int,
        outbox: Outbox,
        quick_s: float,
        on_generator: Callable[[], None],
    ) -> None:
        self.handler: Handler | None = None
        self.is_quick = quick_s > 0
        self._worker = worker
        self._service = worker.service
        self._hooks = hooks
        self._is_observed = type(hooks) is not WorkerHooks
        self._dedupe = dedupe
        self._reply_bytes_max = reply_bytes_max
        # What is no larger needs no further look.
        self._small_max = min(reply_bytes_max - REPLY_HEAD_BYTES, _SMALL_BYTES)
        self._outbox = outbox
        self._quick_s = quick_s
        self.mean_s = 0.0
        self.short_in_a_row = SHORT_MIN
        self._on_generator = on_generator

    def handle(self, job: Job) -> float:
        """Handle a claimed request; returns the time when that was done."""
        began_at = _clock()
        post = self._outbox.post
        if job.deadline is not None and began_at >= job.deadline:
            post(job, [], "expired")
            return began_at
        request = Request(
            self._service,
            tuple(job.body),
            job.identity,
            job.is_redelivered,
            job.epoch,
            job.deadline,
            job.extensions,
        )
        if self._dedupe is not None and self._is_replayed(self._dedupe, job, request):
            return _clock()
        if self._is_observed:
            self.call_hook(self._hooks.request_started, request)
            began_at = _clock()
        job.began_at = began_at
        try:
            body = self._execute(job, request)
        except BaseException as error:  # noqa: BLE001 - whatever the handler raises, SystemExit too, is its answer
            job.ended_at = ended_at = _clock()
            self._count(ended_at - began_at)
            told = report(self._service, job, error)
            self.call_hook(self._hooks.request_failed, request, error)
            post(job, told, "failure")
        else:
            job.ended_at = ended_at = _clock()
            self._count(ended_at - began_at)
            if self._is_observed:
                self.call_hook(self._hooks.request_finished, request)
            post(job, body, "final")
        return ended_at

    def lasts(self) -> None:
        """A handler that has not returned lasts: it counts as one that took long."""
        self._count(_LASTING_S)
        self.is_quick = False

    def call_hook(self, hook: Callable[..., None], *arguments: object) -> None:
        """Call one of the observer's methods."""
        call_hook(hook, self._worker, *arguments)

    def _count(self, busy_s: float) -> None:
        mean_s = self.mean_s
        self.mean_s = mean_s = mean_s + (min(_LASTING_S, busy_s) - mean_s) * _WEIGHT
        self.is_quick = mean_s < self._quick_s
        self.short_in_a_row = self.short_in_a_row + 1 if busy_s < _SHORT_S else 0

    def _execute(self, job: Job, request: Request) -> list[bytes]:
        """Run the handler; keep its reply before anybody gets it."""
        assert self.handler is not None, "checked before the start"
        store = self._dedupe
        try:
            answer = self.handler(request)
            if type(answer) is bytes and store is None and len(answer) <= self._small_max:
                return [answer]
            if is_stream := isinstance(answer, Iterator):
                answer = self._drive(job, answer)
            body = to_reply(answer, self._reply_bytes_max)
        except BaseException:
            if store is not None:
                drop(store, self._service, job)
            raise
        if store is not None:
            if is_stream:
                drop(store, self._service, job)
            else:
                store.keep(job.identity, body)
        return body

    def _is_replayed(self, store: ReplyStore, job: Job, request: Request) -> bool:
        """Answer the request without executing it, if it was executed before."""
        try:
            kept = store.begin(job.identity, request.frames, job.deadline)
        except BaseException as error:  # noqa: BLE001 - whatever the store raises is the answer
            self._outbox.post(job, report(self._service, job, error, "was not executed"), "refusal")
            return True
        if kept is None:
            return False
        self.call_hook(self._hooks.request_replayed, request)
        self._outbox.post(job, kept, "replay")
        return True

    def _drive(self, job: Job, parts: Iterator[Body]) -> Body | None:
        # Its parts are to be sent as they come, by another thread.
        self.mean_s = _LASTING_S
        self._on_generator()
        try:
            while True:
                try:
                    part = next(parts)
                except StopIteration as end:
                    result: Body | None = end.value
                    return result
                body = to_reply(part, self._reply_bytes_max)
                if not self._outbox.wait_for_room(job):
                    return None  # nobody waits for the rest
                self._outbox.post(job, body, "partial")
        finally:
            if isinstance(parts, Generator):
                parts.close()
