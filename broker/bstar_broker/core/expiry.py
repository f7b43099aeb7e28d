"""Which queued request's time ends next.

Only requests that have to wait come here, so the way of a request that finds an idle worker is not
touched. Most come in the order in which their times end, because most have the same time: they stand in a
line, and those at its beginning that have left their queue are thrown out whenever another one comes. The
others are in a heap. Entries of requests that have left their queue in another way than by the end of their
time are skipped when that comes, and thrown out together when they are the majority.
"""

from collections import deque
from heapq import heapify, heappop, heappush

from bstar_broker.core.records import Accepted, Bundle

__all__ = ["Expiries"]

# Below this many entries it is not worth counting how many are stale.
_SLACK = 1_024

_Entry = tuple[float, int, Accepted | Bundle]


class Expiries:
    """Queued requests by the end of their time."""

    __slots__ = ("_count", "_heap", "_line")

    def __init__(self) -> None:
        self._line: deque[_Entry] = deque()
        self._heap: list[_Entry] = []
        self._count = 0

    def __len__(self) -> int:
        """How many entries there are, of requests that wait and of others."""
        return len(self._line) + len(self._heap)

    def push(self, request: Accepted | Bundle, queued: int) -> None:
        """The request, or the first of several, begins to wait; ``queued`` is how many do, with it."""
        self._count += 1
        expires_at = request.expires_at
        entry = (expires_at, self._count, request)
        line = self._line
        while line and not _waits(line[0]):
            line.popleft()
        if not line or expires_at >= line[-1][0]:
            line.append(entry)
        else:
            heappush(self._heap, entry)
        if len(line) + len(self._heap) > _SLACK and len(self) > 2 * queued:
            self._line = deque(filter(_waits, line))
            self._heap = list(filter(_waits, self._heap))
            heapify(self._heap)

    def next(self) -> float | None:
        """When the next request's time may end."""
        line, heap = self._line, self._heap
        if heap and (not line or heap[0][0] < line[0][0]):
            return heap[0][0]
        return line[0][0] if line else None

    def pop_due(self, now: float) -> list[Accepted | Bundle]:
        """The requests that still wait and whose time has ended."""
        line, heap = self._line, self._heap
        entries = []
        while line and line[0][0] <= now:
            entries.append(line.popleft())
        while heap and heap[0][0] <= now:
            entries.append(heappop(heap))
        due: list[Accepted | Bundle] = []
        for entry in sorted(entries, key=lambda entry: entry[:2]):
            if _waits(entry):
                entry[2].is_queued = False
                due.append(entry[2])
        return due

    def requests(self) -> list[Accepted | Bundle]:
        """Those of all entries."""
        return [request for _, _, request in (*self._line, *self._heap)]


def _waits(entry: _Entry) -> bool:
    """A request that was queued anew, with more time, has an entry of its own for that."""
    expires_at, _, request = entry
    return request.is_queued and request.expires_at == expires_at
