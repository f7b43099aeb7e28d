"""Which queued request's time ends next.

Only requests that have to wait come here, so the way of a request that finds an idle worker is not
touched. A request that leaves its queue in another way leaves its entry behind; entries of such requests
are skipped when their time comes, and thrown out together when they are the majority.
"""

from heapq import heapify, heappop, heappush

from bstar_broker.core.records import Accepted, Bundle

__all__ = ["Expiries"]

# Below this many entries it is not worth counting how many are stale.
_SLACK = 1_024


class Expiries:
    """A heap of queued requests by the end of their time."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Accepted | Bundle]] = []
        self._count = 0

    def push(self, request: Accepted | Bundle, queued: int) -> None:
        """The request, or the first of several, begins to wait; ``queued`` is how many do, with it."""
        self._count += 1
        heappush(self._heap, (request.expires_at, self._count, request))
        if len(self._heap) > _SLACK and len(self._heap) > 2 * queued:
            self._heap = [
                entry for entry in self._heap if entry[2].is_queued and entry[0] == entry[2].expires_at
            ]
            heapify(self._heap)

    def next(self) -> float | None:
        """When the next request's time may end."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[Accepted | Bundle]:
        """The requests that still wait and whose time has ended."""
        due: list[Accepted | Bundle] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            expires_at, _, request = heappop(heap)
            # A request that was queued anew, with more time, has an entry of its own for that.
            if request.is_queued and request.expires_at == expires_at:
                request.is_queued = False
                due.append(request)
        return due
