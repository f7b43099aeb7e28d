"""Figures of turns, and what is made of them: medians of rounds, ratios of two sides, flat records.

Rounds take turns on a shared machine. So each round has its own ratio, and the report has the median of the
ratios. Percentiles are those of the replies of all rounds together. It opens no socket and reads no clock.
"""

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from bstar_cli.bench.histogram import PERCENTILES, Histogram
from bstar_cli.bench.plan import Case, Side, Tally


class Result(msgspec.Struct, frozen=True):
    """One turn of one side, all its clients together. ``cpu_s`` is the broker's, None if it cannot be had."""

    tallies: list[Tally]
    cpu_s: float | None

    @property
    def answered(self) -> int:
        """Replies."""
        return sum(tally.answered for tally in self.tallies)

    @property
    def seconds(self) -> float:
        """From the beginning until the last client had its last reply."""
        return max((tally.seconds for tally in self.tallies), default=0.0)

    @property
    def per_second(self) -> float:
        """Replies per second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def cpu_us(self) -> float | None:
        """CPU microseconds of the broker per reply."""
        return None if self.cpu_s is None or not self.answered else self.cpu_s * 1e6 / self.answered


class Record(msgspec.Struct, frozen=True):
    """One round of a row."""

    answered: int
    seconds: float
    per_second: float
    p50_us: int | None
    p99_us: int | None
    cpu_us: float | None


class Row(msgspec.Struct, frozen=True):
    """One side in one case, or one pair of a side that has several. ``per_second`` and ``cpu_us`` are medians
    of the rounds; ``cpu_us`` of several brokers is that of all of them for a reply of any.
    """

    side: str
    pair: str | None
    size: int
    window: int
    answered: int
    failed: dict[str, int]
    unsent: int
    per_second: float
    p50_us: int | None
    p90_us: int | None
    p99_us: int | None
    p999_us: int | None
    max_us: int | None
    cpu_us: float | None
    rounds: list[Record]
    hdr: str


class Ratio(msgspec.Struct, frozen=True):
    """The first side divided by the second, medians of the rounds; None where a figure is missing."""

    size: int
    window: int
    per_second: float | None
    p50_us: float | None
    p99_us: float | None
    cpu_us: float | None


RATIOS = ("per_second", "p50_us", "p99_us", "cpu_us")


def row_of(side: Side, case: Case, results: Sequence[Result], pair: str | None = None) -> Row:
    """What the rounds of one side, or of one of its pairs, in one case amount to; there is at least one."""
    histogram = Histogram(tally.buckets for result in results for tally in result.tallies)
    failed: Counter[str] = Counter()
    for result in results:
        for tally in result.tallies:
            failed.update(tally.failed)
    p50, p90, p99, p999 = (histogram.percentile_us(each) for each in PERCENTILES)
    rounds = [_record(result) for result in results]
    return Row(
        side.name,
        pair,
        case.size,
        case.window,
        histogram.count,
        dict(sorted(failed.items())),
        sum(tally.unsent for result in results for tally in result.tallies),
        statistics.median(each.per_second for each in rounds),
        p50,
        p90,
        p99,
        p999,
        histogram.max_us,
        _median([each.cpu_us for each in rounds]),
        rounds,
        histogram.encoded(),
    )


def ratio_of(first: Row, second: Row) -> Ratio:
    """Both rows of one case; rounds that only one of them has do not count."""
    pairs = list(zip(first.rounds, second.rounds, strict=False))

    def of(name: str) -> float | None:
        return _median([_divided(getattr(a, name), getattr(b, name)) for a, b in pairs])

    return Ratio(first.size, first.window, *(of(name) for name in RATIOS))


def _record(result: Result) -> Record:
    histogram = Histogram(tally.buckets for tally in result.tallies)
    return Record(
        result.answered,
        result.seconds,
        result.per_second,
        histogram.percentile_us(50.0),
        histogram.percentile_us(99.0),
        result.cpu_us,
    )


def _divided(figure: float | None, by: float | None) -> float | None:
    return None if figure is None or not by else figure / by


def _median(figures: Sequence[float | None]) -> float | None:
    """The median, None if a figure is missing: of some rounds only it would mislead."""
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known and len(known) == len(figures) else None
