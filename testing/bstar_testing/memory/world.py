"""What happens in a pair in memory, one thing after the other, and when its time moves.

Each message is an *event*; events happen in the order in which they came. *Timers* are the deadlines of the
cores. A *job* is a handler: it runs between two events, in the thread that waits for a reply. Time jumps to
the next deadline when there is neither event nor job. A handler that waits for a reply itself goes on with
the events meanwhile.
"""

import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from bstar.errors import ConfigurationError
from bstar_testing.memory.clock import PrivateLoop, VirtualClock
from bstar_testing.processes import HarnessError

# A test that waits while no handler runs for so long waits for ever. In an event loop a call that waits looks
# like a test that sleeps.
_QUIET_S_MAX = 21_600.0
_QUIET_IN_LOOP_S_MAX = 100_000.0
# A handler in another thread has so long to do something, in steps, before time jumps.
_PATIENCE_S = 0.05
_LOOK_S = 0.001

Job = Callable[[], object]


class Timed(Protocol):
    """A core with a deadline."""

    def next_deadline(self) -> float | None:
        """When ``on_time`` is due."""

    def on_time(self) -> None:
        """The deadline has come."""


class World:
    """One pair's. Any thread may call ``drive``; what happens holds the lock, jobs do not.

    ``on_work`` is called when there is something to do: with an event loop, which then calls ``turn``.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.timed: list[Timed] = []
        # Where async handlers run if the client is one for threads.
        self.private_loop: PrivateLoop | None = None
        self.on_work: Callable[[], object] | None = None
        # The event loop whose time is the pair's, for the length of its block.
        self.event_loop: AbstractEventLoop | None = None
        self.has_begun = False
        # What the last handler of a request raised, by the request's identity.
        self.raised: dict[bytes, BaseException] = {}
        self._events: deque[Callable[[], object]] = deque()
        self._jobs: deque[Job] = deque()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self.lock = threading.RLock()
        self._is_over = False
        self._here = threading.local()
        # Handlers that run, and do not wait for what happens here.
        self._busy = 0
        self._active_at = self.clock.now()

    @property
    def now(self) -> float:
        """The time."""
        return self.clock.now()

    def post(self, event: Callable[[], object]) -> None:
        """Let this happen after what was posted before."""
        self._events.append(event)
        self._tell()

    def offer(self, job: Job) -> None:
        """Let this job run when its turn comes."""
        self._jobs.append(job)
        self._tell()

    def at(self, when: float, event: Callable[[], object]) -> None:
        """Let this happen at a time."""
        heappush(self._later, (when, next(self._numbers), event))
        self._tell()

    def _tell(self) -> None:
        if self.on_work is not None:
            self.on_work()

    # --- what happens ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When something is due next."""
        times = [due for each in self.timed if (due := each.next_deadline()) is not None]
        if self._later:
            times.append(self._later[0][0])
        return min(times, default=None)

    def turn(self) -> bool:
        """Let everything happen that is due, and run one job; False if there was nothing."""
        with self.lock:
            if self._is_over:
                return False
            happened = self._happen()
            if not self._jobs:
                return happened
            job = self._jobs.popleft()
            # Counted before another thread may look whether time may jump.
            self._count(1)
        self._run(job)
        return True

    def _turn_private_loop(self) -> object:
        loop = self.private_loop
        if loop is None:
            return False
        self._count(1)
        return self._run(loop.turn)

    def _happen(self) -> bool:
        happened = False
        events, now = self._events, self.now
        while events:
            events.popleft()()
            happened = True
        while self._later and self._later[0][0] <= now:
            heappop(self._later)[2]()
            happened = True
        for each in list(self.timed):
            due = each.next_deadline()
            if due is not None and due <= now:
                each.on_time()
                happened = True
        return happened

    def _run(self, job: Job) -> object:
        """The caller has counted it."""
        depth = getattr(self._here, "depth", 0)
        self._here.depth = depth + 1
        try:
            return job()
        finally:
            self._count(-1)
            self._here.depth = depth

    @contextmanager
    def as_job(self) -> Iterator[None]:
        """What the calling thread does belongs to a job, which another thread runs."""
        self._here.depth = 1
        try:
            yield
        finally:
            self._here.depth = 0

    def note_handler(self) -> None:
        """A handler is called."""
        self._active_at = self.now

    def _count(self, busy: int) -> None:
        with self.lock:
            self._busy += busy

    # --- time -----------------------------------------------------------------------------------------------

    def drive(self, is_over: Callable[[], object], until: float | None = None) -> bool:
        """Go on until the condition holds; False if it does not hold at the time ``until``.

        HarnessError if nothing would ever change that.
        """
        # A handler that waits is not busy.
        own = int(getattr(self._here, "depth", 0) > 0)
        self._count(-own)
        try:
            while not is_over():
                if self._is_over:
                    return False
                if self.turn():
                    continue
                if self._turn_private_loop():
                    continue
                if self._others_go_on():
                    continue
                with self.lock:
                    # Another thread may have gone on, and to the end.
                    if not is_over() and not self._has_work() and not self._jump(until):
                        return False
        finally:
            self._count(own)
        return True

    def end(self, ends: Iterable[Callable[[], object]]) -> None:
        """End all that lives in it. A thread that still lets it go on finds nothing to do."""
        with self.lock:
            self._is_over = True
            for each in ends:
                each()

    def check_open(self) -> None:
        """ConfigurationError before its block and after it."""
        if not self.has_begun:
            raise ConfigurationError("the pair has not begun: enter it first, with fake(…) as client")
        if self._is_over:
            raise ConfigurationError("the block of this pair has ended: make a new pair")

    def pass_time(self, seconds: float) -> None:
        """Go on for so long."""
        self.drive(lambda: False, self.now + seconds)
        self._active_at = self.now

    def _others_go_on(self) -> bool:
        """True if a handler in another thread has made something happen."""
        waited_s = 0.0
        while self._busy > 0 and waited_s < _PATIENCE_S:
            time.sleep(_LOOK_S)
            waited_s += _LOOK_S
            if self._has_work():
                return True
        return False

    def _has_work(self) -> bool:
        loop = self.private_loop
        return bool(self._events or self._jobs or (loop is not None and loop.is_ready))

    def _jump(self, until: float | None) -> bool:
        if self._is_over or (until is not None and self.now >= until):
            return False
        times = [self.next_deadline(), until]
        if self.private_loop is not None:
            times.append(self.private_loop.due)
        due = min(each for each in times if each is not None)
        if until is None:
            self._check_quiet(due, _QUIET_S_MAX)
        self.clock.jump(due)
        return True

    def jump_in_loop(self, delay_s: float) -> None:
        """The event loop has nothing to do for so long. HarnessError if that happens for too long."""
        to = self.now + delay_s
        self._check_quiet(to, _QUIET_IN_LOOP_S_MAX)
        self.clock.jump(to)

    def _check_quiet(self, to: float, quiet_s_max: float) -> None:
        if to > self._active_at + quiet_s_max:
            raise HarnessError(
                f"this waits for ever: no handler has run for {quiet_s_max / 3600:.0f} hours of the pair's "
                "time. Give the call a timeout, or let the time pass that a durable request needs (pass_time)"
            )
