"""How many requests of a ``map`` are under way at once, so that a busy broker is not run against."""

from bstar_client.core.session import Counters

__all__ = ["Pace"]

# What a window shrinks by when the broker says BUSY.
_BUSY_SHRINK = 0.75


class Pace:
    """How many requests of a ``map`` are under way: its window, and fewer while a broker says BUSY.

    Less by a quarter at a BUSY, once in as many replies as are under way; one more in as many replies without
    it. So a queue that is shorter than the window is kept full and not run against again and again.
    """

    def __init__(self, window: int, counters: Counters) -> None:
        self._window = float(window)
        self._counters = counters
        self._busy = counters.busy
        self._settling = 0.0
        self.limit = self._window

    def take(self, replies: int) -> None:
        """So many calls have ended."""
        busy = self._counters.busy
        if busy == self._busy:
            self.limit = min(self._window, self.limit + replies / self.limit)
        elif self._settling <= 0:
            self.limit = max(1.0, self.limit * _BUSY_SHRINK)
            self._settling = self.limit
        self._busy = busy
        self._settling -= replies
