"""A queue that is fair between those who fill it.

Each client has a lane of its own; the lanes take turns, so one client's thousand requests delay another
client's single one by one request, not by a thousand. Within a lane the order is that of arrival.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within a lane; round robin between lanes. ``push`` and ``pop`` are O(1)."""

    __slots__ = ("_lanes", "_turns", "length")

    def __init__(self) -> None:
        self._lanes: dict[bytes, deque[T]] = {}
        self._turns: deque[bytes] = deque()
        self.length = 0

    def push(self, lane: bytes, item: T) -> None:
        """Add at the end of the lane."""
        queue = self._lanes.get(lane)
        if queue is None:
            self._lanes[lane] = deque((item,))
            self._turns.append(lane)
        else:
            queue.append(item)
        self.length += 1

    def push_front(self, lane: bytes, item: T) -> None:
        """Add where the next ``pop`` takes from: for an item that already had its turn."""
        queue = self._lanes.get(lane)
        if queue is None:
            self._lanes[lane] = deque((item,))
        else:
            queue.appendleft(item)
            self._turns.remove(lane)
        self._turns.appendleft(lane)
        self.length += 1

    def pop(self) -> T:
        """Take the next lane's first item; IndexError if all are empty."""
        lane = self._turns.popleft()
        queue = self._lanes[lane]
        item = queue.popleft()
        if queue:
            self._turns.append(lane)
        else:
            del self._lanes[lane]
        self.length -= 1
        return item

    def remove(self, lane: bytes, item: T) -> None:
        """Take one item out, wherever it stands in its lane; quick near the front."""
        queue = self._lanes[lane]
        queue.remove(item)
        if not queue:
            del self._lanes[lane]
            self._turns.remove(lane)
        self.length -= 1

    def clear(self) -> list[T]:
        """Take everything out, in no particular order between lanes."""
        items = [item for queue in self._lanes.values() for item in queue]
        self._lanes.clear()
        self._turns.clear()
        self.length = 0
        return items

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for queue in self._lanes.values():
            yield from queue
