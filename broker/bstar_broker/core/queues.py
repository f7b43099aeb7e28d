"""A queue that is fair between clients, with lanes for urgent requests.

Each client has a lane, and the lanes take turns. So one client's thousand requests delay another client's
single request by one request only. Within a lane the order is that of arrival.

A client that asks now and then does not wait for a whole round. A lane that was empty for a whole round is
*fresh*: its first turn comes before the round goes on. A lane that is filled again sooner waits for its turn,
so no client gains more than its share. (Flow queueing does the same with packets: RFC 8290, 4.2.) Urgent
items have lanes of their own, which come first. After ``URGENT_IN_A_ROW_MAX`` or ``FRESH_IN_A_ROW_MAX`` such
turns in a row another lane is next, so no lane starves.

An item may stand for several requests that came together; ``length`` counts requests.

A worker's queue (``bstar_client.core.worker.lanes``) has the same rule and no part of this one. It needs no
urgent lanes and removes nothing from the middle, so a plain deque is enough: 0.14 µs a request, against
2.1 µs here.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from bstar.wire.limits import FRESH_IN_A_ROW_MAX

T = TypeVar("T", bound=Hashable)

URGENT_IN_A_ROW_MAX = 15

_Lanes = OrderedDict[bytes, OrderedDict[T, None]]
# Lanes of which the first is next, and its items.
_Turn = tuple[_Lanes[T], OrderedDict[T, None]]


class FairQueue(Generic[T]):
    """First in, first out within a lane; round robin between lanes. All but ``clear`` and ``replace`` is
    O(1), amortised.
    """

    __slots__ = ("_fresh", "_fresh_in_a_row", "_round", "_urgent", "_urgent_in_a_row", "length")

    def __init__(self) -> None:
        # Lanes in the order of their turns, each an ordered set of items. A lane that becomes empty stays
        # until its next turn.
        self._round: OrderedDict[bytes, OrderedDict[T, None]] = OrderedDict()
        self._fresh: OrderedDict[bytes, OrderedDict[T, None]] = OrderedDict()
        self._urgent: OrderedDict[bytes, OrderedDict[T, None]] = OrderedDict()
        self._fresh_in_a_row = 0
        self._urgent_in_a_row = 0
        self.length = 0

    def push(self, lane: bytes, item: T, count: int = 1, *, is_urgent: bool = False) -> None:
        """Add at the end of the lane; ``count`` is how many the item stands for."""
        queue = self._urgent.get(lane) if is_urgent else self._round.get(lane)
        if queue is None:
            lanes = self._urgent if is_urgent else self._fresh
            queue = lanes.get(lane)
            if queue is None:
                queue = lanes[lane] = OrderedDict()
        queue[item] = None
        self.length += count

    def push_front(self, lane: bytes, item: T, *, is_urgent: bool = False) -> None:
        """Add before all items of its kind, for an item that already had its turn."""
        lanes = self._urgent if is_urgent else self._fresh
        if not is_urgent and lane in self._round:
            lanes[lane] = self._round.pop(lane)
        self.push(lane, item, is_urgent=is_urgent)
        lanes[lane].move_to_end(item, last=False)
        lanes.move_to_end(lane, last=False)

    def pop(self, count: int = 1, turn: _Turn[T] | None = None) -> T:
        """Remove and return the next lane's first item with all its requests; IndexError if all lanes are
        empty. ``turn``, if it is known: ``next_turn``.
        """
        lanes, items = turn or self.next_turn()
        item, _ = items.popitem(last=False)
        self._end_turn(lanes, count)
        return item

    def take_part(self, count: int) -> None:
        """The next lane's first item has lost ``count`` of its requests; that was the lane's turn."""
        self._end_turn(self.next_turn()[0], count)

    def _end_turn(self, lanes: _Lanes[T], count: int) -> None:
        """``count`` requests have left the first of these lanes."""
        self.length -= count
        if lanes is self._urgent:
            self._urgent_in_a_row += 1
            lane, items = lanes.popitem(last=False)
            if items:
                lanes[lane] = items
            return
        self._urgent_in_a_row = 0
        if not self.length:
            # No other lane waits, so the turn does not move.
            self._round.clear()
            self._fresh.clear()
        elif lanes is self._fresh:
            self._fresh_in_a_row += 1
            lane, items = lanes.popitem(last=False)
            self._round[lane] = items
        else:
            self._fresh_in_a_row = 0
            if len(lanes) > 1:
                lanes.move_to_end(next(iter(lanes)))

    def head(self, turn: _Turn[T] | None = None) -> T:
        """The item that ``pop`` would return; IndexError if all lanes are empty."""
        return next(iter((turn or self.next_turn())[1]))

    def next_turn(self) -> _Turn[T]:
        """The lanes of which the first is next, and its items; IndexError if all lanes are empty."""
        lanes = self._round
        while lanes and not (items := next(iter(lanes.values()))):
            lanes.popitem(last=False)
        if self._fresh and not (lanes and self._fresh_in_a_row >= FRESH_IN_A_ROW_MAX):
            lanes = self._fresh
            items = next(iter(lanes.values()))
        if self._urgent and not (lanes and self._urgent_in_a_row >= URGENT_IN_A_ROW_MAX):
            lanes = self._urgent
            items = next(iter(lanes.values()))
        if not lanes:
            raise IndexError("the queue is empty")
        return lanes, items

    @property
    def is_shared(self) -> bool:
        """True if several lanes have items, or had a moment ago."""
        return len(self._round) + len(self._fresh) + len(self._urgent) > 1

    def replace(self, lane: bytes, item: T, items: Sequence[T], gone: int = 0) -> None:
        """Replace the item by its single requests, without the ``gone`` ones that left.

        Urgent items stand for one request each, so the lane is not an urgent one. O(1) for each item if it is
        the first of its lane; otherwise the whole lane is made again.
        """
        self.length -= gone
        queue = self._fresh[lane] if lane in self._fresh else self._round[lane]
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
        """Remove one item from any position of its lane. No turn passes."""
        lanes = self._urgent if is_urgent else self._fresh if lane in self._fresh else self._round
        queue = lanes[lane]
        del queue[item]
        if not queue:
            del lanes[lane]
        self.length -= count

    def of(self, lane: bytes) -> list[T]:
        """The items of this lane, urgent ones first."""
        lanes = (self._urgent, self._fresh, self._round)
        return [item for found in lanes if lane in found for item in found[lane]]

    def clear(self) -> list[T]:
        """Remove and return all items, in no order between lanes."""
        items = list(self)
        self._urgent.clear()
        self._fresh.clear()
        self._round.clear()
        self._fresh_in_a_row = self._urgent_in_a_row = 0
        self.length = 0
        return items

    def heads(self) -> Iterator[T]:
        """The first item of each lane, which is the oldest in it."""
        for lanes in (self._urgent, self._fresh, self._round):
            for queue in lanes.values():
                if queue:
                    yield next(iter(queue))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for lanes in (self._urgent, self._fresh, self._round):
            for queue in lanes.values():
                yield from queue
