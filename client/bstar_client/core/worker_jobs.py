"""The requests that a worker has and has not answered: those that wait, and those that its shell has.

The shell begins a request by ``claim`` at the moment when its handler is called. Until then the core may
take the request back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from bstar_client.core.lanes import Lanes
from bstar_client.core.worker_dialects import Job
from bstar_client.core.worker_outputs import Begin


class WorkerLimits(msgspec.Struct, frozen=True):
    """Bounds and timing of a worker.

    ``credit``: requests that each node may give it at once. ``running_max``: how many handlers the shell runs
    at once, None for as many; what is more waits there for its turn.
    ``handler_timeout_s``: None for no limit. ``stuck_handlers_max``: that many handlers past their time
    and still running end the worker. ``drain_timeout_s``: how long ``stop`` waits for what runs.
    ``backoff_min_s``/``backoff_max_s``: the pause before a new socket, doubled with each failure in a
    row.
    """

    credit: int = 1
    handler_timeout_s: float | None = None
    stuck_handlers_max: int = 3
    drain_timeout_s: float = 10.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0
    running_max: int | None = None


class Jobs:
    """``running`` has what the shell has, in order, without handlers that are stuck."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.running: dict[Job, None] = {}
        # Of those the ones that no handler has been called for.
        self._unclaimed: dict[Job, bool] = {}
        self._waiting = Lanes()
        self._timeout_s = limits.handler_timeout_s
        # A handler's time is counted from Begin: with a limit to it nothing waits in the shell.
        self._begin_max = limits.credit
        if self._timeout_s is not None and limits.running_max is not None:
            self._begin_max = limits.running_max

    def claim(self, job: Job) -> bool:
        """The handler is about to be called for this request. False: not any more, it was taken back.

        The only method that may be called from any thread.
        """
        return self._unclaimed.pop(job, False)

    def take_back(self, of: Callable[[Job], bool]) -> list[Job]:
        """Take back those that no handler has been called for; now none will be."""
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

    def begin(self, arrived: Sequence[Job], now: float) -> tuple[Begin | None, list[Job]]:
        """Begin as many as the shell takes: of what waits, and of what has arrived from one client.

        The second part of what is returned are requests whose clients wait no more.
        """
        begun: list[Job] = []
        expired: list[Job] = []
        running, timeout_s = self.running, self._timeout_s
        jobs: Iterable[Job] = arrived
        if self._waiting or len(running) + len(arrived) > self._begin_max:
            if arrived:
                self._waiting.push(arrived, are_one_clients=True)
            jobs = self._next()
        for job in jobs:
            if job.deadline is not None and now >= job.deadline:
                expired.append(job)
                continue
            if timeout_s is not None:
                job.handler_ends_at = now + timeout_s
            running[job] = None
            begun.append(job)
        if not begun:
            return None, expired
        self._unclaimed.update(dict.fromkeys(begun, True))
        return Begin(begun, are_one_clients=jobs is arrived), expired

    def _next(self) -> Iterator[Job]:
        waiting, running = self._waiting, self.running
        while waiting and len(running) < self._begin_max:
            yield waiting.pop()

    def is_any_of(self, connection: int) -> bool:
        """True if the shell has a request that came by this connection."""
        return any(job.connection == connection for job in self.running)

    def next_deadline(self) -> float | None:
        """When a handler's time ends. All have the same, so the first that began ends first."""
        first = next(iter(self.running), None)
        return None if first is None else first.handler_ends_at

    def overdue(self, now: float) -> Job | None:
        """A request whose handler's time is over."""
        ends_at = self.next_deadline()
        return next(iter(self.running)) if ends_at is not None and now >= ends_at else None

    def give_up(self, job: Job) -> None:
        """The handler's time is over, or nobody has called it."""
        self._unclaimed.pop(job, False)
        job.is_abandoned = True


class ReplyBatch:
    """Replies to one client that go out in one message."""

    __slots__ = ("bodies", "jobs", "octets")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bodies: list[bytes] = []
        self.octets = 0

    def add(self, job: Job, body: bytes) -> bool:
        """Add a reply; False if the batch would not stay within its bounds."""
        octets = self.octets + len(body)
        if octets > BATCH_BYTES_MAX or len(self.jobs) >= BATCH_ROWS_MAX:
            return False
        self.octets = octets
        self.jobs.append(job)
        self.bodies.append(body)
        return True
