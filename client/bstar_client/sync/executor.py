"""Calls the handler for one request, in any thread, and posts its results to the outbox."""

from collections.abc import Callable, Generator, Iterator

from bstar_client.arguments.bodies import REPLY_HEAD_BYTES, to_reply
from bstar_client.core.calls import Body
from bstar_client.core.worker.dialects import Job
from bstar_client.sync.mailboxes import Outbox
from bstar_client.sync.policy import Policy
from bstar_client.workers.dispatch import Dispatcher
from bstar_client.workers.failures import settle
from bstar_client.workers.handlers import Request, WorkerHooks
from bstar_client.workers.replies import ReplyStore

# A single frame of at most this size needs no further check.
_SMALL_BYTES = 16_384


class Executor:
    """Executes the requests of one worker. It calls ``urge`` when a handler begins to yield."""

    def __init__(
        self, dispatcher: Dispatcher, outbox: Outbox, policy: Policy, urge: Callable[[], None]
    ) -> None:
        self._dispatcher = dispatcher
        settings = dispatcher.settings
        self._clock = settings.net.clock
        self._hooks = settings.hooks
        # A worker without hooks calls none: this saves two calls per request.
        self._is_observed = type(settings.hooks) is not WorkerHooks
        self._outbox = outbox
        self._policy = policy
        self._dedupe = settings.dedupe
        self._reply_bytes_max = settings.link.message_bytes_max
        self._small_max = min(self._reply_bytes_max - REPLY_HEAD_BYTES, _SMALL_BYTES)
        self._urge = urge

    def execute(self, job: Job) -> float:
        """Execute a claimed request. Returns the time at its end."""
        clock = self._clock
        began_at = clock()
        dispatcher, post = self._dispatcher, self._outbox.post
        if job.deadline is not None and began_at >= job.deadline:
            post((job, [], "expired"))
            return began_at
        request = dispatcher.request_of(job)
        if self._dedupe is not None and self._is_replayed(self._dedupe, job, request):
            return clock()
        if self._is_observed:
            dispatcher.call_hook(self._hooks.request_started, request)
            began_at = clock()
        job.began_at = began_at
        try:
            body = self._call(job, request)
        except BaseException as error:  # noqa: BLE001 - whatever the handler raises, SystemExit too, is its answer
            job.ended_at = ended_at = clock()
            job.on_cancel = None
            self._policy.note(ended_at - began_at)
            post(dispatcher.failed(job, request, error))
        else:
            job.ended_at = ended_at = clock()
            job.on_cancel = None
            self._policy.note(ended_at - began_at)
            if self._is_observed:
                dispatcher.call_hook(self._hooks.request_finished, request)
            post((job, body, "final"))
        return ended_at

    def _is_replayed(self, store: ReplyStore, job: Job, request: Request) -> bool:
        """Answer from the store, if the request was executed before."""
        dispatcher = self._dispatcher
        try:
            kept = store.begin(job.identity, request.frames, job.deadline)
        except BaseException as error:  # noqa: BLE001 - whatever the store raises is the answer
            self._outbox.post(dispatcher.refused(job, error))
            return True
        if kept is None:
            return False
        dispatcher.call_hook(self._hooks.request_replayed, request)
        self._outbox.post((job, kept, "replay"))
        return True

    def _call(self, job: Job, request: Request) -> list[bytes]:
        """Call the handler, and keep its reply before it is sent."""
        handler, store = self._dispatcher.handler, self._dedupe
        assert handler is not None, "checked before the start"
        kept: list[bytes] | None = None
        try:
            answer = handler(request)
            if type(answer) is bytes and store is None and len(answer) <= self._small_max:
                return [answer]
            if isinstance(answer, Iterator):
                return to_reply(self._stream(job, answer), self._reply_bytes_max)
            kept = to_reply(answer, self._reply_bytes_max)
            return kept
        finally:
            self._dispatcher.end_child(job)
            if store is not None:
                settle(store, self._dispatcher.settings.service, job, kept)

    def _stream(self, job: Job, parts: Iterator[Body]) -> Body | None:
        """Post each part that the handler yields; what it returns ends the reply."""
        self._policy.note_stream()
        self._urge()
        try:
            while True:
                try:
                    part = next(parts)
                except StopIteration as end:
                    result: Body | None = end.value
                    return result
                self._dispatcher.end_child(job)
                body = to_reply(part, self._reply_bytes_max)
                if job.cancelled_at is not None or not self._outbox.wait_for_room(job):
                    return None  # no caller waits for the rest
                self._outbox.post((job, body, "partial"))
        finally:
            if isinstance(parts, Generator):
                parts.close()
