"""Carries out the outputs of a worker's core, and reports handlers' results to the core.

Threads and asyncio share it; the methods that differ are abstract.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Literal, assert_never

from bstar.errors import BstarError
from bstar.wire.extensions import NO_HEADERS, attempt_of, wants_progress
from bstar.wire.messages import ErrorCode
from bstar.wire.native import pack_retry
from bstar_client.arguments.declined import frames_of
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.outputs import (
    Abandon,
    Begin,
    Cancel,
    Close,
    Ended,
    Fenced,
    KeepAlive,
    Late,
    Lost,
    Open,
    Registered,
    Unregistered,
    WorkerOutput,
)
from bstar_client.core.worker.progress import Latest
from bstar_client.core.worker.session import WorkerCore
from bstar_client.journal import WorkJournal
from bstar_client.links.links import Links
from bstar_client.workers import forks
from bstar_client.workers.failures import (
    call_hook,
    call_on_cancel,
    leave_child,
    note,
    report,
    report_given_up,
    report_lost,
    title_of,
    warn_late,
    warn_unregistered,
)
from bstar_client.workers.handlers import Request, Retry
from bstar_client.workers.worker import WorkerSettings

_log = logging.getLogger("bstar_client")

# "replay", "refusal" and "expired" answer requests that were not executed.
Kind = Literal[
    "partial", "progress", "final", "failure", "declined", "retry", "cancelled", "replay", "refusal",
    "expired",
]  # fmt: skip
# A handler's result. Progress has no frames: the core takes what is the last by then. Those of _FAILURES have
# the frames of ERROR behind its header: a text, the data of a declined request, the milliseconds of a retry.
Result = tuple[Job, list[bytes], Kind]

_FAILURES: dict[Kind, tuple[ErrorCode, Literal["declined", "failed", "cancelled"]]] = {
    "failure": (ErrorCode.HANDLER_FAILED, "failed"),
    "refusal": (ErrorCode.HANDLER_FAILED, "failed"),
    "retry": (ErrorCode.RETRY, "failed"),
    "declined": (ErrorCode.HANDLER_FAILED, "declined"),
    "cancelled": (ErrorCode.CANCELLED, "cancelled"),
}
# A handler has run, and nothing cut it short.
_TIMED = ("failure", "declined", "retry")


class Dispatcher(ABC):
    """Base of both worker loops: connects one worker's core to sockets, handlers and hooks.

    The leader alone calls ``perform`` and ``answer``.
    """

    def __init__(self, worker: object, settings: WorkerSettings, core: WorkerCore) -> None:
        self.links: Links
        self.journal: WorkJournal | None = None
        self.handler: Callable[[Request], object] | None = None
        # The thread that calls a hook now, else 0. That hook must not wait for the worker.
        self.announcing_in = 0
        self.settings = settings
        self._forks = forks.count
        self._worker = worker
        self._core = core
        # Why the last session with each node ended, until the node registers the worker again.
        self._losses: dict[str, str] = {}

    @abstractmethod
    def _begin(self, output: Begin) -> None:
        """Let the handler run for these requests."""

    @abstractmethod
    def _abandon(self, job: Job) -> None:
        """A handler is stuck: make room for another."""

    @abstractmethod
    def _tell_progress(self, job: Job) -> None:
        """A handler has reported progress: post it. Any thread may call it."""

    @abstractmethod
    def _end(self, error: BstarError | None) -> None:
        """The worker has ended."""

    def perform(self, outputs: list[WorkerOutput]) -> None:
        """Carry the outputs out, in their order."""
        journal, hooks, service = self.journal, self.settings.hooks, self.settings.service
        for output in outputs:
            match output:
                case Send():
                    self.links[output.node].send(output.frames)
                case Begin():
                    self._begin(output)
                case Abandon(job):
                    if journal is not None:
                        journal.given_up(job)
                    report_given_up(service, job, self.settings.limits.handler_timeout_s)
                    self._abandon(job)
                    self._announce(hooks.handler_stuck, job.identity)
                case Cancel(job):
                    self._cancel(job)
                case Registered(endpoint):
                    self._losses.pop(endpoint, None)
                    if journal is not None:
                        journal.registered(endpoint)
                    self._announce(hooks.registered, endpoint)
                case Lost(endpoint, reason):
                    if self._losses.get(endpoint) != reason:
                        self._losses[endpoint] = reason
                        report_lost(endpoint, reason, service, self.settings.link.security)
                    if journal is not None:
                        journal.unregistered(endpoint, reason)
                    self._announce(hooks.lost, endpoint, reason)
                case Unregistered(endpoints):
                    self._warn_unregistered(endpoints)
                case Fenced(job, epoch_seen):
                    if journal is not None:
                        journal.fenced(job, epoch_seen)
                case KeepAlive(node, routing_id, interval_ms, ttl_ms):
                    self.links[node].keep_alive(routing_id, interval_ms, ttl_ms)
                case Late():
                    warn_late(output, service, self.handler)
                case Close(node):
                    self.links.close(node)
                case Open(node):
                    self.links.open(node)
                case Ended(error):
                    self._end(error)
                case _:
                    assert_never(output)

    def _cancel(self, job: Job) -> None:
        """Tell the handler that no client waits for its answer."""
        call_on_cancel(self.settings.service, job)

    def _warn_unregistered(self, endpoints: tuple[str, ...]) -> None:
        """Log it in a thread of its own: it looks what is at these endpoints, which takes a while."""
        lacks = {endpoint: self._losses.get(endpoint, "") for endpoint in endpoints}
        others = [each.endpoint for each in self._core.sessions if each.is_registered]
        threading.Thread(
            target=warn_unregistered,
            args=(self.settings.service, lacks, others, self.settings.link.security),
            name="bstar-worker-warning",
            daemon=True,
        ).start()

    def _announce(self, hook: Callable[..., None], *arguments: object) -> None:
        self.announcing_in = threading.get_ident()
        try:
            self.call_hook(hook, *arguments)
        finally:
            self.announcing_in = 0

    def answer_all(self, results: deque[Result], now: float) -> None:
        """Send these results and remove them; replies that are ready together travel as a batch.

        Stops when the network takes no more.
        """
        times = self._core.times
        finished: list[tuple[Job, list[bytes]]] = []
        for _ in range(len(results)):
            result = results.popleft()
            if result[2] == "final":
                if self.journal is not None:
                    self.journal.handled(*result)
                if times is not None:
                    times.add(result[0].ended_at - result[0].began_at)
                finished.append(result[:2])
                continue
            self.answer(result, now)
            if self.links.is_congested:
                break
        if len(finished) == 1:
            self.perform(self._core.finished(*finished[0], now))
        elif finished:
            self.perform(self._core.finished_all(finished, now))

    def answer(self, result: Result, now: float) -> None:
        """Send one result that is not a final reply."""
        job, body, kind = result
        if kind == "progress":
            self.perform(self._core.progress(job, now))
            return
        if self.journal is not None:
            self.journal.handled(job, body, kind)
        if self._core.times is not None and kind in _TIMED and job.began_at:
            self._core.times.add(job.ended_at - job.began_at)
        if kind == "partial":
            outputs = self._core.partial(job, body, now)
        elif kind == "replay":
            outputs = self._core.replayed(job, body, now)
        elif kind == "expired":
            outputs = self._core.expired(job, now)
        else:
            outputs = self._core.failed(job, body, now, *_FAILURES[kind])
        self.perform(outputs)

    # --- in the handlers' threads, or their tasks ---------------------------------------------------------

    def request_of(self, job: Job) -> Request:
        """The handler's view of a job."""
        if job.extensions and wants_progress(job.extensions):
            job.latest = Latest(self._tell_progress)
        return Request(
            self.settings.service,
            tuple(job.body),
            job.identity,
            job.is_redelivered,
            job.epoch,
            job.deadline,
            job.extensions,
            attempt_of(job.extensions) if job.extensions else 1,
            job.headers or NO_HEADERS,
            job.accepted_at,
            job,
        )

    def end_child(self, job: Job) -> None:
        """End this process if the handler made it by fork: its parent goes on with the request."""
        if self._forks != forks.count:
            leave_child(title_of(self.settings.service, job))

    def failed(self, job: Job, request: Request, error: BaseException) -> Result:
        """Report the handler's exception. After a cancel it is no failure of the service."""
        service, hooks, declined = self.settings.service, self.settings.hooks, frames_of(error)
        if job.cancelled_at is not None:
            frames = note(service, job, error, "ended after it was cancelled")
            self.call_hook(hooks.request_cancelled, request, error)
            return job, frames, "cancelled"
        if declined is not None:
            note(service, job, error, "was declined")
            self.call_hook(hooks.request_declined, request, error)
            return job, declined, "declined"
        if isinstance(error, Retry):
            frames = [*note(service, job, error, "asked for another attempt"), pack_retry(error.after_ms)]
            self.call_hook(hooks.request_failed, request, error)
            return job, frames, "retry"
        frames = report(service, job, error)
        self.call_hook(hooks.request_failed, request, error)
        return job, frames, "failure"

    def refused(self, job: Job, error: BaseException) -> Result:
        """Report the error of the reply store; the request was not executed."""
        return job, report(self.settings.service, job, error, "was not executed"), "refusal"

    def call_hook(self, hook: Callable[..., None], *arguments: object) -> None:
        """Call one of the hooks."""
        call_hook(hook, self._worker, *arguments)
