"""A queue that is fair between those who fill it, with a lane for what is urgent.

Each client has a lane of its own; the lanes take turns, so one client's thousand requests delay another
client's single one by one request, not by a thousand. Within a lane the order is that of arrival. What is
urgent has lanes of its own, which take turns before the others; but however much of it there is, after
``URGENT_IN_A_ROW_MAX`` of them one of the others is next, so nobody starves.

An item may stand for several requests that came together; ``length`` counts requests.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["URGENT_IN_A_ROW_MAX", "FairQueue"]

T = TypeVar("T", bound=Hashable)

URGENT_IN_A_ROW_MAX = 15


class FairQueue(Generic[T]):
    """First in, first out within a lane; round robin between lanes. All but ``clear`` and ``replace`` is
    O(1).
    """

    __slots__ = ("_lanes", "_urgent", "_urgent_in_a_row", "length")

    def __init__(self) -> None:
        # The lanes in the order of their turns, each an ordered set of its items.
        self._lanes: OrderedDict[bytes, OrderedDict[T, None]] = OrderedDict()
        self._urgent: OrderedDict[bytes, OrderedDict[T, None]] = OrderedDict()
        self._urgent_in_a_row = 0
        self.length = 0

    def push(self, lane: bytes, item: T, count: int = 1, *, is_urgent: bool = False) -> None:
        """Add at the end of the lane; ``count`` is how many the item stands for."""
        lanes = self._urgent if is_urgent else self._lanes
        queue = lanes.get(lane)
        if queue is None:
            queue = lanes[lane] = OrderedDict()
        queue[item] = None
        self.length += count

    def push_front(self, lane: bytes, item: T, *, is_urgent: bool = False) -> None:
        """Add before all of its kind: for an item that already had its turn."""
        self.push(lane, item, is_urgent=is_urgent)
        lanes = self._urgent if is_urgent else self._lanes
        lanes[lane].move_to_end(item, last=False)
        lanes.move_to_end(lane, last=False)

    def pop(self) -> T:
        """Take the next lane's first item; IndexError if all are empty."""
        lanes = self._next_lanes()
        lane, queue = next(iter(lanes.items()))
        item, _ = queue.popitem(last=False)
        if queue:
            lanes.move_to_end(lane)
        else:
            del lanes[lane]
        self._urgent_in_a_row = self._urgent_in_a_row + 1 if lanes is self._urgent else 0
        self.length -= 1
        return item

    def head(self) -> T:
        """What ``pop`` would take; IndexError if all are empty."""
        return next(iter(next(iter(self._next_lanes().values()))))

    def _next_lanes(self) -> OrderedDict[bytes, OrderedDict[T, None]]:
        if self._urgent and not (self._lanes and self._urgent_in_a_row >= URGENT_IN_A_ROW_MAX):
            return self._urgent
        if not self._lanes:
            raise IndexError("the queue is empty")
        return self._lanes

    @property
    def is_shared(self) -> bool:
        """Are there several lanes?"""
        return len(self._lanes) + len(self._urgent) > 1

    def take_part(self, lane: bytes, count: int) -> None:
        """``count`` of what the lane's first item stands for are gone, which was the lane's turn.

        Of a lane without urgent items, as in ``replace``: those stand for one request each.
        """
        self._lanes.move_to_end(lane)
        self._urgent_in_a_row = 0
        self.length -= count

    def replace(self, lane: bytes, item: T, items: Sequence[T], gone: int = 0) -> None:
        """Put those that the item stands for in its place, one by one, but for ``gone`` that do not wait.

        O(1) for each of them if it is the first of its lane; otherwise the whole lane is made anew.
        """
        self.length -= gone
        queue = self._lanes[lane]
        if next(iter(queue)) is item:
            del queue[item]
            for each in reversed(items):
                queue[each] = None
                queue.move_to_end(each, last=False)
            return
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

    def remove(self, lane: bytes, item: T, count: int = 1, *, is_urgent: bool = False) -> None:
        """Take one item out, wherever it stands in its lane."""
        lanes = self._urgent if is_urgent else self._lanes
        queue = lanes[lane]
        del queue[item]
        if not queue:
            del lanes[lane]
        if not is_urgent:
            self._urgent_in_a_row = 0
        self.length -= count

    def clear(self) -> list[T]:
        """Take everything out, in no particular order between lanes."""
        items = list(self)
        self._urgent.clear()
        self._lanes.clear()
        self._urgent_in_a_row = 0
        self.length = 0
        return items

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for lanes in (self._urgent, self._lanes):
            for queue in lanes.values():
                yield from queue
