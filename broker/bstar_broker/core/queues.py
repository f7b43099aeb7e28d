"""A queue that is fair between those who fill it.

Each client has a lane of its own; the lanes take turns, so one client's thousand requests delay another
client's single one by one request, not by a thousand. Within a lane the order is that of arrival. An item may
stand for several requests that came together; ``length`` counts requests.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """First in, first out within a lane; round robin between lanes. All but ``clear`` is O(1)."""

    __slots__ = ("_lanes", "_turns", "length")

    def __init__(self) -> None:
        # The lanes in the order of their turns, each an ordered set of its items.
        self._lanes: OrderedDict[bytes, OrderedDict[T, None]] = OrderedDict()
        self.length = 0

    def push(self, lane: bytes, item: T, count: int = 1) -> None:
        """Add at the end of the lane; ``count`` is how many the item stands for."""
        queue = self._lanes.get(lane)
        if queue is None:
            queue = self._lanes[lane] = OrderedDict()
        queue[item] = None
        self.length += count

    def push_front(self, lane: bytes, item: T) -> None:
        """Add where the next ``pop`` takes from: for an item that already had its turn."""
        self.push(lane, item)
        self._lanes[lane].move_to_end(item, last=False)
        self._lanes.move_to_end(lane, last=False)

    def pop(self) -> T:
        """Take the next lane's first item; IndexError if all are empty."""
        if not self._lanes:
            raise IndexError("the queue is empty")
        lane, queue = next(iter(self._lanes.items()))
        item, _ = queue.popitem(last=False)
        if queue:
            self._lanes.move_to_end(lane)
        else:
            del self._lanes[lane]
        self.length -= 1
        return item

    def head(self) -> T:
        """What ``pop`` would take; IndexError if all are empty."""
        if not self._lanes:
            raise IndexError("the queue is empty")
        return next(iter(next(iter(self._lanes.values()))))

    @property
    def is_shared(self) -> bool:
        """Are there several lanes?"""
        return len(self._lanes) > 1

    def take_part(self, lane: bytes, count: int) -> None:
        """``count`` of what the lane's first item stands for are gone, which was the lane's turn."""
        self._lanes.move_to_end(lane)
        self.length -= count

    def replace(self, lane: bytes, item: T, items: Sequence[T]) -> None:
        """Put those that the item stands for in its place, one by one."""
        queue = self._lanes[lane]
        before: list[T] = []
        after: list[T] = []
        behind = False
        for each in queue:
            if each is item:
                behind = True
            else:
                (after if behind else before).append(each)
        queue.clear()
        queue.update(dict.fromkeys((*before, *items, *after)))

    def remove(self, lane: bytes, item: T, count: int = 1) -> None:
        """Take one item out, wherever it stands in its lane."""
        queue = self._lanes[lane]
        del queue[item]
        if not queue:
            del self._lanes[lane]
        self.length -= count

    def clear(self) -> list[T]:
        """Take everything out, in no particular order between lanes."""
        items = [item for queue in self._lanes.values() for item in queue]
        self._lanes.clear()
        self.length = 0
        return items

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for queue in self._lanes.values():
            yield from queue
