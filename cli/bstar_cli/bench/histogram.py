"""Latencies as a High Dynamic Range histogram; the one place that knows the library ``hdrhistogram``.

The library is an extra, ``bstar[bench]``: only this command needs it. To record one value costs ten
microseconds in Python. So clients count latencies in buckets (``plan.bucket_of``), and the histogram is made
of them after the turn. Values are microseconds, from 1 to an hour, with three digits.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bstar.errors import ConfigurationError

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_MAX_US = 3_600_000_000
_DIGITS = 3


def require() -> None:
    """Raise ConfigurationError if the library is not there."""
    _library()


def _library() -> Any:  # it has no types
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        text = "bstar bench needs hdrhistogram, which is missing: pip install '.[bench]' in a clone of bstar"
        raise ConfigurationError(text) from error
    return HdrHistogram


class Histogram:
    """Made of buckets, microseconds to counts; several are added up."""

    def __init__(self, several: Iterable[Mapping[int, int]]) -> None:
        self._histogram = _library()(1, _MAX_US, _DIGITS)
        for buckets in several:
            for latency_us, count in buckets.items():
                self._histogram.record_value(min(latency_us, _MAX_US), count)

    @property
    def count(self) -> int:
        """How many values there are."""
        return int(self._histogram.get_total_count())

    def percentile_us(self, percentile: float) -> int | None:
        """The value that ``percentile`` percent do not exceed; None of none."""
        return int(self._histogram.get_value_at_percentile(percentile)) if self.count else None

    @property
    def max_us(self) -> int | None:
        """The greatest value; None of none."""
        return int(self._histogram.get_max_value()) if self.count else None

    def encoded(self) -> str:
        """The histogram in the format that all HDR libraries read (V2, compressed, base64)."""
        return bytes(self._histogram.encode()).decode("ascii")
