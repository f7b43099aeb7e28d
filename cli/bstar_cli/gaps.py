"""How long nothing was answered, as the caller saw it: the longest time, and the time of each failover.

A client knows for how long it had no active node, but a node that falls silent is the active one until that
is noticed. So a failover's gap is the time from the last reply before it to the first reply of the node that
took over. The event and that reply come from different threads, in either order.
"""

from bstar_client import FailedOver

# A failover, and its gap in seconds; None if the node that took over never answered.
Settled = tuple[FailedOver, float | None]


class Gaps:
    """Is told of answers and failovers; each call returns the failovers whose gaps are known with it."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._answered_at: float | None = None
        self._endpoint: str | None = None
        # The gap before the first of the latest node's answers.
        self._before_s: float | None = None
        self._open: list[FailedOver] = []

    def answer(self, endpoint: str, answered_at: float) -> list[Settled]:
        """A reply of this node."""
        gap_s = None if self._answered_at is None else max(0.0, answered_at - self._answered_at)
        if gap_s is not None:
            self.longest_s = max(self.longest_s, gap_s)
        if self._answered_at is None or answered_at > self._answered_at:
            self._answered_at = answered_at
        if endpoint != self._endpoint:
            self._endpoint, self._before_s = endpoint, gap_s
        awaited = [number for number, event in enumerate(self._open, 1) if event.to_endpoint == endpoint]
        if not awaited:
            return []
        # The nodes between answered nothing, so all of it was one gap.
        *passed, last = self._open[: awaited[-1]]
        del self._open[: awaited[-1]]
        return [*((event, None) for event in passed), (last, gap_s)]

    def failover(self, event: FailedOver) -> list[Settled]:
        """Another node took over."""
        if not self._open and event.to_endpoint == self._endpoint:
            return [(event, self._before_s)]
        self._open.append(event)
        return []

    def close(self) -> list[Settled]:
        """Nothing more comes: the failovers that nobody answered after."""
        left: list[Settled] = [(event, None) for event in self._open]
        self._open.clear()
        return left
