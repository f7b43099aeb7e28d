"""What a loop has to do at a time: single and repeating calls, and the deadlines of sans-I/O machines."""

import heapq
from collections.abc import Callable

from bstar.lag import Lag

TimeHandler = Callable[[float], None]


class Timer:
    """A repeating or single call; ``cancel`` it when it is no longer wanted."""

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
    """Timers in the order of their times, and machines that are asked for their next deadline. ``lag`` learns
    how late each of them was served.
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
        """When there is something to do; ``latest`` if that is later."""
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

    def fire_due(self, now: float) -> None:
        """Serve everything whose time has come."""
        while self._timers and self._timers[0][0] <= now:
            when, _, timer = heapq.heappop(self._timers)
            if timer.is_cancelled:
                continue
            self._lag.observe(now - when)
            timer.fire(now)
            if timer.interval_s is not None and not timer.is_cancelled:
                # From the time it was due, so that it does not drift; but no bursts to make up for a stall.
                timer.when = when + timer.interval_s
                if timer.when <= now:
                    timer.when = now + timer.interval_s
                self.add(timer)
        for next_deadline, fire in self._machines:
            deadline = next_deadline()
            if deadline is not None and deadline <= now:
                self._lag.observe(now - deadline)
                fire(now)
