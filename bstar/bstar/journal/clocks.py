"""The times of a record: from the caller's clock to the two clocks of a journal.

The hot path brings the time that it has already, on its own clock. Once per flush the writer reads all
clocks at one moment. Both of the machine's clocks are slewed alike, so the distance between wall
clock and monotonic clock changes only when somebody sets the wall clock: that is a step, and is recorded.
"""

import time
from collections.abc import Callable
from functools import partial

NsClock = Callable[[], int]

mono_ns: NsClock = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic_ns
)
"""The machine's monotonic clock, in nanoseconds; one that goes on while it sleeps, where there is one."""

wall_ns: NsClock = time.time_ns

# A smaller one is the uncertainty of reading two clocks one after the other.
STEP_US_MIN = 10_000
_READ_NS_MAX = 200_000
_READS_MAX = 5


class Anchor:
    """The clocks at the last ``update``.

    ``source`` is the clock, in seconds, of the times that ``mono_us`` is given; None means the machine's
    monotonic clock itself. ``shift_us`` added to a time of the source is the monotonic time, ``offset_us``
    added to that is the wall clock's, in microseconds.
    """

    def __init__(
        self, source: Callable[[], float] | None, *, mono: NsClock = mono_ns, wall: NsClock = wall_ns
    ) -> None:
        self._source = source
        self.mono = mono
        self._wall = wall
        self.shift_us = 0.0
        self.offset_us = 0
        self.update()

    def update(self) -> int:
        """Read the clocks. Returns by how many microseconds the wall clock was set since the last call."""
        source = self._source
        if source is not None:
            shift_us = -self._lead_us(lambda: source() * 1e6)
            # They drift apart only while the machine sleeps. A smaller difference is the time of the reads.
            if abs(shift_us - self.shift_us) > STEP_US_MIN / 10:
                self.shift_us = shift_us
        offset_us = round(self._lead_us(lambda: self._wall() / 1e3))
        step_us = offset_us - self.offset_us
        self.offset_us = offset_us
        return step_us if abs(step_us) > STEP_US_MIN else 0

    def _lead_us(self, clock_us: Callable[[], float]) -> float:
        """How far a clock is ahead of the monotonic one; read again if this thread was away in between."""
        best: tuple[int, float] | None = None
        for _ in range(_READS_MAX):
            before = self.mono()
            read_us = clock_us()
            took = self.mono() - before
            if best is None or took < best[0]:
                best = (took, read_us - (before + took / 2) / 1e3)
            if took <= _READ_NS_MAX:
                break
        assert best is not None
        return best[1]

    def now(self) -> float:
        """The time of the source, in seconds."""
        return self.mono() / 1e9 if self._source is None else self._source()

    def wall_s(self) -> float:
        """The time of day as the monotonic clock tells it since the last ``update``."""
        return (self.mono() / 1e3 + self.offset_us) / 1e6

    def mono_us(self, now: float) -> int:
        """The monotonic time of a moment on the source's clock."""
        return int(now * 1e6 + self.shift_us)
