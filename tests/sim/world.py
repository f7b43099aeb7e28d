"""Virtual time: one heap of events in a total order, and processes with clocks of their own.

True time is known to the simulator only. A process sees its own clock, which began anywhere, runs a little
fast or slow and may jump; its deadlines are on that clock.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

Action = Callable[[], None]

# Monotonic clocks are slewed by up to 500 parts in a million.
CLOCK_DRIFT_MAX = 5e-4
# Loops that sleep until a deadline wake a moment late: polls are rounded up.
WAKE_LATE_S = 0.0005


class World:
    """The time, the events to come, and a record of those that were."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.trace: list[str] | None = [] if keep_trace else None
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def rng(self, name: str) -> random.Random:
        """A source of randomness of its own, so that what one part draws changes nothing for the others."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, when: float, action: Action) -> None:
        """Do this then; what is due at the same moment is done in the order of asking."""
        self._count += 1
        heappush(self._heap, (when, self._count, action))

    @property
    def waiting(self) -> int:
        """How many events are to come."""
        return len(self._heap)

    def after(self, delay_s: float, action: Action) -> None:
        """Do this later."""
        self.at(self.now + delay_s, action)

    def run_until(self, end: float) -> None:
        """Let happen what is due."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action = heappop(heap)
            self.events += 1
            action()
        self.now = end

    def note(self, text: str) -> None:
        """Remember what happened; it is part of the digest."""
        line = f"{self.now:.6f} {text}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    def digest(self) -> str:
        """The same for two runs that went the same way."""
        return f"{self._digest.hexdigest()}-{self.events}"


class Process:
    """One process on a host of its own. It can die, be switched off with its host, and be frozen."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.rng(name)
        self.is_alive = False
        self.is_frozen = False
        # The whole host is off: nobody answers for the process, not even with a refusal.
        self.is_dark = False
        # Asked to end in good order, and not done yet.
        self.is_stopping = False
        self.runs = 0
        self.frozen_at = 0.0
        self._waiting: list[Action] = []
        self._rate = 1.0
        self._offset = 0.0
        self._wake_at = math.inf
        # The deadline when it was arranged for last. Whatever may move it arranges anew.
        self._due: float | None = None

    @property
    def is_awake(self) -> bool:
        """Whether it runs at this moment."""
        return self.is_alive and not self.is_frozen

    def clock(self) -> float:
        """What its own monotonic clock says."""
        return self._offset + self.world.now * self._rate

    def true_time(self, when: float) -> float:
        """When its clock will say ``when``, as things are."""
        return (when - self._offset) / self._rate

    def boot(self) -> None:
        """A new run of the process, perhaps after a boot of its host."""
        assert not self.is_alive
        self.is_alive = True
        self.is_frozen = self.is_dark = self.is_stopping = False
        self.runs += 1
        self._rate = 1.0 + self.rng.uniform(-CLOCK_DRIFT_MAX, CLOCK_DRIFT_MAX)
        self._offset = self.rng.uniform(0.0, 1e6)
        self._wake_at = math.inf
        self.world.note(f"{self.name} starts")

    def jump(self, seconds: float) -> None:
        """Its clock goes ahead."""
        self._offset += seconds

    def stop_clock(self, seconds: float) -> None:
        """Its clock did not see this time pass."""
        self._offset -= seconds * self._rate

    def deadline(self) -> float | None:
        """When ``on_time`` is due, on its own clock."""
        raise NotImplementedError

    def on_time(self) -> None:
        """A deadline has come."""
        raise NotImplementedError

    def arrange(self) -> None:
        """Make sure to be woken at the next deadline. Waking early does no harm."""
        if not self.is_alive or self.is_frozen:
            return
        due = self._due = self.deadline()
        if due is None:
            return
        when = max((due - self._offset) / self._rate, self.world.now) + WAKE_LATE_S
        if when < self._wake_at:
            self._wake_at = when
            self.world.at(when, partial(self._wake, self.runs, when))

    def _wake(self, run: int, when: float) -> None:
        if run != self.runs or when != self._wake_at or not self.is_alive or self.is_frozen:
            return
        self._wake_at = math.inf
        due = self._due
        if due is not None and self.clock() >= due:
            self.on_time()
        self.arrange()

    def freeze(self) -> None:
        """Stop it where it is; what arrives waits."""
        if self.is_alive and not self.is_frozen:
            self.is_frozen = True
            self.frozen_at = self.world.now
            self.world.note(f"{self.name} freezes")

    def thaw(self) -> None:
        """Let it go on, and find all that has waited."""
        if self.is_alive and self.is_frozen:
            self.is_frozen = False
            self._wake_at = math.inf
            self.world.note(f"{self.name} goes on after {self.world.now - self.frozen_at:.3f} s")
            self.release()
            self.catch_up()
            self.arrange()

    def when_it_goes_on(self, action: Action) -> None:
        """Do this as soon as the process is not frozen any more, dead or alive; at once if it is not now."""
        if self.is_frozen:
            self._waiting.append(action)
        else:
            action()

    def release(self) -> None:
        """What its frozen threads kept waiting goes on."""
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            # It may be frozen again by then.
            self.world.after(0.0, partial(self.when_it_goes_on, action))

    def catch_up(self) -> None:
        """Serve what has waited."""
        raise NotImplementedError
