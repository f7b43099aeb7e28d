"""Percentiles from histograms whose buckets grow by a constant factor, in SQL that any engine understands.

A whole number of microseconds x > 0 belongs to bucket ceil(ln x / ln G) with G = 1.01 / 0.99, so bucket b
holds (G^(b-1), G^b]; any value in it is at most 1 % away from 2·G^b / (G + 1), which stands for all of them.
Zero is bucket -1, and a negative x has the bucket -2 - b of its absolute value, so that buckets are in the
order of their values. A percentile is the value of the first bucket at which the running sum of weights
reaches its share of the whole (nearest rank). Two histograms are merged by adding the weights of equal
buckets, in any order and at any time: all engines come to the same numbers.

Weights are counted in millionths, as whole numbers, so that sums do not depend on their order. Below 10^10
(2.8 hours) no whole number lies so close to the border of a bucket that two implementations of the logarithm
could disagree about it. Source of the idea: Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile
sketch with relative-error guarantees" (VLDB 2019), section 2.
"""

import math

ERROR = 0.01
"""A percentile is at most this share of it away from the exact one."""

GAMMA = (1 + ERROR) / (1 - ERROR)
"""The factor between the borders of two neighbouring buckets."""

_LN_GAMMA = math.log(GAMMA)
_MIDDLE = 2 / (GAMMA + 1)


def bucket_of(value: int) -> int:
    """The bucket of one value."""
    if value == 0:
        return -1
    rank = math.ceil(math.log(abs(value)) / _LN_GAMMA)
    return rank if value > 0 else -2 - rank


def value_of(bucket: int) -> float:
    """The value that stands for a bucket."""
    if bucket == -1:
        return 0.0
    if bucket >= 0:
        return math.pow(GAMMA, bucket) * _MIDDLE
    return -math.pow(GAMMA, -2 - bucket) * _MIDDLE


def bucket_sql(column: str) -> str:
    """``bucket_of`` of a column of whole numbers, in SQL of Spark and DuckDB alike; null stays null."""
    rank = f"CEIL(LN(CAST(ABS({column}) AS DOUBLE)) / CAST('{_LN_GAMMA!r}' AS DOUBLE))"
    return (
        f"CAST(CASE WHEN {column} > 0 THEN {rank} WHEN {column} = 0 THEN -1 "
        f"WHEN {column} < 0 THEN -2 - {rank} END AS INT)"
    )


def value_sql(column: str) -> str:
    """``value_of`` of a column of buckets, in SQL of Spark and DuckDB alike; null stays null."""
    gamma, middle = (f"CAST('{number!r}' AS DOUBLE)" for number in (GAMMA, _MIDDLE))
    return (
        f"CASE WHEN {column} >= 0 THEN POWER({gamma}, {column}) * {middle} "
        f"WHEN {column} = -1 THEN CAST(0 AS DOUBLE) "
        f"WHEN {column} < -1 THEN -POWER({gamma}, -2 - {column}) * {middle} END"
    )


def millionths_sql(weight: str) -> str:
    """A weight as a whole number of millionths: sums of them are the same in whatever order."""
    return f"CAST(ROUND({weight} * 1000000) AS BIGINT)"


def percentile_sql(share: float, bucket: str, running: str, whole: str) -> str:
    """An aggregate: the bucket in which the given share (0 to 1) of the weights is reached.

    ``running`` is the sum of weights up to and with this bucket, ``whole`` that of all of them. Null without
    weights.
    """
    reached = f"{running} >= {whole} * CAST('{share!r}' AS DOUBLE)"
    return f"MIN(CASE WHEN {whole} > 0 AND {reached} THEN {bucket} END)"
