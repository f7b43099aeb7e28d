"""Which calls are overdue, in a time that does not grow with their number.

Callers mostly wait equally long, so most calls come in the order of their deadlines: those stand in a line,
the others in a heap. Calls that have ended leave when they come to the front, or when they are the majority.
"""

import math
from collections import deque
from heapq import heapify, heappop, heappush

from bstar_client.core.calls import Call

__all__ = ["Deadlines"]

# Fewer than so many are left where they are.
_SLACK = 1_024


class Deadlines:
    """Deadlines of calls that have one, on the clock of the core."""

    def __init__(self) -> None:
        self._line: deque[tuple[float, Call]] = deque()
        self._heap: list[tuple[float, int, Call]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._line) + len(self._heap)

    def __contains__(self, call: Call) -> bool:
        return any(entry[-1] is call for entry in (*self._line, *self._heap))

    def add(self, call: Call, deadline: float) -> None:
        """This call ends then at the latest."""
        line = self._line
        if not line or line[-1][0] <= deadline:
            line.append((deadline, call))
        else:
            self._number += 1
            heappush(self._heap, (deadline, self._number, call))

    def due(self) -> float:
        """The first deadline of a call that has not ended, or an earlier moment; inf if there is none."""
        line, heap = self._line, self._heap
        while line and line[0][1].is_done:
            line.popleft()
        due = line[0][0] if line else math.inf
        return heap[0][0] if heap and heap[0][0] < due else due

    def take(self, now: float) -> list[Call]:
        """Those that have not ended and whose deadline has passed. They are not told of again."""
        overdue = []
        line, heap = self._line, self._heap
        while line and (line[0][0] <= now or line[0][1].is_done):
            overdue.append(line.popleft()[1])
        while heap and heap[0][0] <= now:
            overdue.append(heappop(heap)[2])
        return [call for call in overdue if not call.is_done]

    def tidy(self, outstanding: int) -> None:
        """Forget those that have ended, if most have. ``outstanding``: how many have not."""
        if len(self) > _SLACK and len(self) > 2 * outstanding:
            self._line = deque(entry for entry in self._line if not entry[1].is_done)
            self._heap = [entry for entry in self._heap if not entry[2].is_done]
            heapify(self._heap)
