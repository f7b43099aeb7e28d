"""Items in the order of their deadlines, at a cost that does not grow with their number.

Most items have the same time to live, so most arrive in the order of their deadlines. These form a line, the
others a heap. Most items end early. An ended item leaves the line when it is the first and another one
arrives or is due, or when most items have ended. To find each one at once would cost more.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

# Below this number of items, a sweep costs more time than the ended items cost memory.
_SLACK = 1_024
# A look at the first item costs 0.08 µs, so one in eight items that arrive takes it.
_LOOK_EVERY = 8


class Deadlines(Generic[T]):
    """The deadlines of items.

    ``is_due(item, deadline)`` is false once the item has ended or has another deadline.
    """

    __slots__ = ("_heap", "_is_due", "_line", "_look_at", "_number")

    def __init__(self, is_due: Callable[[T, float], bool]) -> None:
        self._is_due = is_due
        self._line: deque[tuple[float, T]] = deque()
        self._heap: list[tuple[float, int, T]] = []
        # As long as the line is when the next item looks for ended ones.
        self._look_at = _LOOK_EVERY
        self._number = 0  # makes entries of the heap comparable

    def __len__(self) -> int:
        """How many items it holds, ended ones included."""
        return len(self._line) + len(self._heap)

    def __iter__(self) -> Iterator[T]:
        for entry in (*self._line, *self._heap):
            yield entry[-1]  # type: ignore[misc]

    def add(self, item: T, deadline: float) -> None:
        """The item is due at ``deadline``, unless it ends before."""
        line = self._line
        if len(line) >= self._look_at:
            self._drop_ended()
        if not line or line[-1][0] <= deadline:
            line.append((deadline, item))
        else:
            self._number += 1
            heappush(self._heap, (deadline, self._number, item))

    def _drop_ended(self) -> None:
        """Forget the first items of the line that have ended."""
        line, is_due = self._line, self._is_due
        while line:
            deadline, item = line[0]
            if is_due(item, deadline):
                break
            line.popleft()
        self._look_at = len(line) + _LOOK_EVERY

    def next_deadline(self) -> float:
        """The first deadline, perhaps of an item that has ended; inf without items.

        A check would cost each turn of a loop 0.2 µs and seldom save a turn.
        """
        line, heap = self._line, self._heap
        first = line[0][0] if line else math.inf
        return heap[0][0] if heap and heap[0][0] < first else first

    def pop_due(self, now: float) -> Iterator[T]:
        """Remove and yield the items whose deadline has passed, the earliest first.

        Each is checked at its turn, so the caller may end others or add new ones meanwhile.
        """
        while (deadline := self.next_deadline()) <= now:
            if self._line and self._line[0][0] == deadline:
                item = self._line.popleft()[1]
            else:
                item = heappop(self._heap)[2]
            if self._is_due(item, deadline):
                yield item
        self._drop_ended()

    def tidy(self, pending: int) -> None:
        """Forget the ended items if they are the majority; ``pending`` items have not ended."""
        count = len(self._line) + len(self._heap)
        if count > _SLACK and count > 2 * pending:
            is_due = self._is_due
            self._line = deque(entry for entry in self._line if is_due(entry[1], entry[0]))
            self._heap = [entry for entry in self._heap if is_due(entry[2], entry[0])]
            heapify(self._heap)
