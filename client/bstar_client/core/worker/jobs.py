"""The unanswered requests of a worker: those that wait, and those that its shell has.

The shell claims a request when it calls its handler (``claim``). Until then the core may take the request
back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from bstar.wire.messages import ErrorCode
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.lanes import Lanes
from bstar_client.core.worker.outputs import Begin


class WorkerLimits(msgspec.Struct, frozen=True):
    """Bounds and timing of a worker.

    ``credit``: how many requests each node may send it at once. ``running_max``: how many handlers the shell
    runs at once, None for one per credit; other requests wait in the worker. ``handler_timeout_s``: None for
    no limit. ``cancel_grace_s``: how long a handler may run after its request was cancelled, before the
    figures show it. ``stuck_handlers_max``: this many stuck handlers end the worker. ``drain_timeout_s``: how
    long ``stop`` waits for running handlers. ``backoff_min_s``/``backoff_max_s``: the pause before a new
    socket, doubled with each failure in a row.
    """

    credit: int = 1
    handler_timeout_s: float | None = None
    stuck_handlers_max: int = 3
    drain_timeout_s: float = 10.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0
    running_max: int | None = None
    cancel_grace_s: float = 1.0


class Jobs:
    """``running``: the requests at the shell, in order, without those of stuck handlers."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.running: dict[Job, None] = {}
        # Those of them whose handler was not called yet.
        self._unclaimed: dict[Job, bool] = {}
        self._waiting = Lanes()
        self._timeout_s = limits.handler_timeout_s
        # A handler's time counts from Begin, so with a handler timeout no request waits in the shell.
        self._begin_max = limits.credit
        if self._timeout_s is not None and limits.running_max is not None:
            self._begin_max = limits.running_max

    def claim(self, job: Job) -> bool:
        """The shell is about to call the handler for this request. False: the core has taken it back.

        The only method that may be called from any thread.
        """
        return self._unclaimed.pop(job, False)

    def take_back(self, of: Callable[[Job], bool]) -> list[Job]:
        """Take back the requests whose handler was not called yet; it will not be."""
        waiting = list(self._waiting)
        self._waiting.clear()
        taken = []
        for job in waiting:
            if of(job):
                taken.append(job)
            else:
                self._waiting.push((job,))
        for job in [job for job in list(self._unclaimed) if of(job)]:
            if self.claim(job):
                del self.running[job]
                taken.append(job)
        return taken

    def find(self, identity: bytes, connection: int) -> Job | None:
        """The request that came by this connection, running or waiting."""
        for jobs in (self.running, self._waiting):
            for job in jobs:
                if job.identity == identity and job.connection == connection:
                    return job
        return None

    def begin(self, arrived: Sequence[Job], now: float) -> tuple[Begin | None, list[Job]]:
        """Begin as many requests as the shell takes, from those that wait and those that have arrived.

        Returns also the requests that must not begin (``why_unbegun``). One client sent all of ``arrived``.
        """
        begun: list[Job] = []
        unbegun: list[Job] = []
        running, timeout_s = self.running, self._timeout_s
        jobs: Iterable[Job] = arrived
        if self._waiting or len(running) + len(arrived) > self._begin_max:
            if arrived:
                self._waiting.push(arrived, are_one_clients=True)
            jobs = self._next()
        for job in jobs:
            if (job.deadline is not None and now >= job.deadline) or job.headers is None:
                unbegun.append(job)
                continue
            if timeout_s is not None:
                job.handler_ends_at = now + timeout_s
            running[job] = None
            begun.append(job)
        if not begun:
            return None, unbegun
        self._unclaimed.update(dict.fromkeys(begun, True))
        return Begin(begun, are_one_clients=jobs is arrived), unbegun

    def _next(self) -> Iterator[Job]:
        waiting, running = self._waiting, self.running
        while waiting and len(running) < self._begin_max:
            yield waiting.pop()

    def is_any_of(self, connection: int) -> bool:
        """True if the shell has a request that came by this connection."""
        return any(job.connection == connection for job in self.running)

    def elsewhere(self, connection: int) -> int:
        """How many requests the shell has that came by other connections than this one."""
        return sum(job.connection != connection for job in self.running)

    def next_deadline(self) -> float | None:
        """When a handler's time ends. All have the same limit, so the first that began is due first."""
        first = next(iter(self.running), None)
        return None if first is None else first.handler_ends_at

    def overdue(self, now: float) -> Job | None:
        """A request whose handler has exceeded its time."""
        ends_at = self.next_deadline()
        return next(iter(self.running)) if ends_at is not None and now >= ends_at else None

    def give_up(self, job: Job) -> None:
        """The handler exceeded its time, or was never called."""
        self._unclaimed.pop(job, False)
        job.is_abandoned = True


def why_unbegun(job: Job) -> tuple[ErrorCode, bytes]:
    """Code and text of a request that must not begin: its headers are malformed, or it has expired."""
    if job.headers is None:
        return ErrorCode.INVALID, b"its headers are malformed: the worker did not begin it"
    # Another worker may have begun a redelivered request (BSN-W-09).
    code = ErrorCode.WORKER_LOST if job.is_redelivered else ErrorCode.EXPIRED
    return code, b"it expired before this worker began it"


class ReplyBatch:
    """Replies to one client that go out in one message."""

    __slots__ = ("bodies", "jobs", "size_bytes")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bodies: list[bytes] = []
        self.size_bytes = 0

    def add(self, job: Job, body: bytes) -> bool:
        """Add a reply; False if the batch has no room for it."""
        size_bytes = self.size_bytes + len(body)
        if size_bytes > BATCH_BYTES_MAX or len(self.jobs) >= BATCH_ROWS_MAX:
            return False
        self.size_bytes = size_bytes
        self.jobs.append(job)
        self.bodies.append(body)
        return True
