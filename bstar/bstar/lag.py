"""How late a loop serves its deadlines: a histogram, and the latest value, and the highest."""

from bisect import bisect_left

# Upper bounds of the lag histogram.
LAG_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Lag:
    """How late deadlines were served, in seconds."""

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
        """The latest since this was last asked."""
        peak_s, self._peak_s = self._peak_s, 0.0
        return peak_s
