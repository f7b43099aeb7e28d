"""What a loop has to do at a time: single and repeating calls, the deadlines of sans-I/O machines, and
how late it is with them.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable

TimeHandler = Callable[[float], None]

# Upper bounds of the lag histogram.
LAG_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Lag:
    """How late deadlines were served, in seconds: time in which the loop had something to do."""

    __slots__ = ("_peak_s", "counts", "last_s", "max_s", "sum_s")

    def __init__(self) -> None:
        self.last_s = 0.0
        self.max_s = 0.0
        self.sum_s = 0.0
        self._peak_s = 0.0
        # One bucket per bound of LAG_BOUNDS_S and one for what lies above.
        self.counts = [0] * (len(LAG_BOUNDS_S) + 1)

    def observe(self, lag_s: float) -> None:
        """A deadline was served ``lag_s`` late."""
        self.last_s = lag_s
        self.max_s = max(self.max_s, lag_s)
        self._peak_s = max(self._peak_s, lag_s)
        self.sum_s += lag_s
        self.counts[bisect_left(LAG_BOUNDS_S, lag_s)] += 1

    def take_peak_s(self) -> float:
        """The highest value since the last call."""
        peak_s, self._peak_s = self._peak_s, 0.0
        return peak_s


class Timer:
    """A repeating or single call; ``cancel`` ends it."""

    __slots__ = ("_handler", "interval_s", "is_cancelled", "when")

    def __init__(self, when: float, interval_s: float | None, handler: TimeHandler) -> None:
        self.when = when
        self.interval_s = interval_s
        self.is_cancelled = False
        self._handler = handler

    def cancel(self) -> None:
        """Never call again. Idempotent."""
        self.is_cancelled = True

    def fire(self, now: float) -> None:
        """Call the handler."""
        self._handler(now)


class Agenda:
    """Timers in the order of their times, and machines with their next deadlines. ``lag`` records how late
    each was served.
    """

    def __init__(self, lag: Lag) -> None:
        self._lag = lag
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_made = 0
        self._machines: list[tuple[Callable[[], float | None], TimeHandler]] = []

    def add(self, timer: Timer) -> Timer:
        """Fire ``timer`` when its time has come."""
        self._timers_made += 1
        heapq.heappush(self._timers, (timer.when, self._timers_made, timer))
        return timer

    def add_machine(self, next_deadline: Callable[[], float | None], fire: TimeHandler) -> None:
        """Call ``fire(now)`` when ``next_deadline()`` has come."""
        self._machines.append((next_deadline, fire))

    def due_at(self, latest: float) -> float:
        """When the next timer is due, ``latest`` at the latest."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if timers and timers[0][0] < latest:
            latest = timers[0][0]
        for next_deadline, _ in self._machines:
            deadline = next_deadline()
            if deadline is not None and deadline < latest:
                latest = deadline
        return latest

    def fire_due(self, now: float, idle_until: float) -> None:
        """Serve everything whose time has come. The loop had nothing to do until ``idle_until``.

        A deadline that was set into the past since then is as late as the loop.
        """
        while self._timers and self._timers[0][0] <= now:
            when, _, timer = heapq.heappop(self._timers)
            if timer.is_cancelled:
                continue
            self._lag.observe(now - max(when, idle_until))
            timer.fire(now)
            if timer.interval_s is not None and not timer.is_cancelled:
                # Counted from its due time, so that it does not drift. After a stall there is no burst.
                timer.when = when + timer.interval_s
                if timer.when <= now:
                    timer.when = now + timer.interval_s
                self.add(timer)
        for next_deadline, fire in self._machines:
            deadline = next_deadline()
            if deadline is not None and deadline <= now:
                self._lag.observe(now - max(deadline, idle_until))
                fire(now)
