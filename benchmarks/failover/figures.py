"""What a trial's histories come to. Pure: lines in, figures out.

**Outage** of a trial: the longest time in which this client got no reply, among the replies from the last one
before the fault to the moment when the trial counts as over (some tens of replies under the successor).
Nothing is subtracted: the ordinary distance between two replies is part of it, and the rows "no fault" show
how long that is when measured in the same way.

A call *failed* if its caller got an error, is *lost* if it never ended, and was *executed again* for every
beginning of its request in a worker beyond the first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from chaos.history import Begin, Failed, Invoke, Line, Ok


class Trial(msgspec.Struct):
    """One fault: when it was made (monotonic clock), and how long this client then went without a reply."""

    profile: str
    fault: str
    fault_at: float
    outage_s: float


class Losses(msgspec.Struct):
    """What became of the calls of some trials."""

    calls: int = 0
    failed: int = 0
    lost: int = 0
    executed_again: int = 0

    def add(self, other: Losses) -> None:
        """Count these as well."""
        self.calls += other.calls
        self.failed += other.failed
        self.lost += other.lost
        self.executed_again += other.executed_again


def longest_gap(reply_times: Sequence[float], fault_at: float, until: float) -> float:
    """The longest distance between two replies, from the last one before the fault to the last in time.

    ``reply_times`` in order, at least one of them before ``fault_at`` and one between it and ``until``.
    """
    first = bisect_right(reply_times, fault_at) - 1
    end = bisect_right(reply_times, until)
    assert first >= 0, "no reply before the fault"
    assert end - first >= 2, "no reply after the fault"
    return max(after - before for before, after in pairwise(reply_times[first:end]))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed (nearest rank): one that was seen."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def count_losses(
    trials: Sequence[Trial], client: Iterable[Line], workers: Iterable[Iterable[Line]]
) -> dict[str, Losses]:
    """By fault. A call belongs to the last trial that was under way when it ended (or, lost, began).

    ``trials`` in the order of time, all of one stand; ``client`` and ``workers`` their whole histories.
    """
    starts = [trial.fault_at for trial in trials]
    losses = {trial.fault: Losses() for trial in trials}

    def of(at: float) -> Losses | None:
        index = bisect_left(starts, at) - 1
        return None if index < 0 else losses[trials[index].fault]

    begun: dict[int, float] = {}
    for line in client:
        if isinstance(line, Invoke):
            begun[line.id] = line.at
        elif isinstance(line, Ok | Failed):
            del begun[line.id]
            found = of(line.at)
            if found is not None:
                found.calls += 1
                found.failed += isinstance(line, Failed)
    for at in begun.values():
        found = of(at)
        if found is not None:
            found.lost += 1
    executions: Counter[str] = Counter()
    for line in sorted(_begins(workers), key=lambda line: line.at):
        executions[line.body] += 1
        if executions[line.body] > 1:
            found = of(line.at)
            if found is not None:
                found.executed_again += 1
    return losses


def _begins(workers: Iterable[Iterable[Line]]) -> Iterable[Begin]:
    return (line for history in workers for line in history if isinstance(line, Begin))
