"""Peers that got DISCONNECT. They get nothing more until they register again (MDP1-B-04, MDP2-B-04).

A worker may miss the DISCONNECT because its connection breaks at that moment. It goes on as if it were
registered, so it gets another one after ``quiet_s``.
"""


class Outcasts:
    """Routing ids, at most ``count_max``: a new one replaces the oldest."""

    def __init__(self, *, quiet_s: float, count_max: int) -> None:
        self._quiet_s = quiet_s
        self._count_max = count_max
        self._until: dict[bytes, float] = {}

    def __contains__(self, routing_id: bytes) -> bool:
        return routing_id in self._until

    def add(self, routing_id: bytes, now: float) -> None:
        """The peer gets DISCONNECT."""
        self._until.pop(routing_id, None)
        if len(self._until) >= self._count_max:
            del self._until[next(iter(self._until))]
        self._until[routing_id] = now + self._quiet_s

    def remove(self, routing_id: bytes) -> None:
        """The peer registers."""
        self._until.pop(routing_id, None)

    def tidy(self, now: float) -> None:
        """Forget peers whose time has passed."""
        while self._until:
            routing_id, until = next(iter(self._until.items()))
            if now < until:
                break
            del self._until[routing_id]
