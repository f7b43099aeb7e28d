"""What the report and the commands read from: the tables below a root, of one pair or all, in one period.

``open_tables`` finds out from the runs of processes which pairs there are and when they lived; everything
else is read through ``Tables``: the tables of the run that was current then, without other pairs and days.
It uses the DataFrame API only, so it runs under Spark Connect.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses

from bstar_pipeline import store
from bstar_pipeline.pair_rows import read_files
from bstar_pipeline.report.asking import LIVED, lived
from bstar_pipeline.report.choice import Choice, choose, filled
from bstar_pipeline.report.content import Shown
from bstar_pipeline.schema import table_schema

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import Column, DataFrame, SparkSession

    from bstar_pipeline.commits import Snapshot

_Value = TypeVar("_Value", bound="DataclassInstance")

STEPS_MAX = 240
"""Columns of the plots over time: more than a phone can show."""
MINUTE_US = 60_000_000
_DAY_US = 24 * 60 * MINUTE_US
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one run, of what was chosen.

    Plots over time have steps of ``step_us``; the first one begins at ``origin_us``.
    """

    spark: SparkSession
    snapshot: Snapshot
    choice: Choice

    @property
    def step_us(self) -> int:
        """A round time, so that there are at most STEPS_MAX."""
        return step_us(self.choice.until_us - self.choice.from_us)

    @property
    def origin_us(self) -> int:
        """``from_us`` rounded down to a step."""
        return self.choice.from_us // self.step_us * self.step_us

    def has(self, name: str) -> bool:
        """Whether the table was ever written, be it without a row."""
        return self.snapshot.has(name)

    def table(self, name: str) -> DataFrame:
        """The whole table; empty if nothing was ever written to it."""
        return read_files(self.spark, self.snapshot.files(name), table_schema(name))

    def ask(self, name: str, query: str) -> list[Any]:
        """The rows of a query about ``{table}``: the chosen pair and days, and a day around."""
        return rows_of(self.spark.sql(query, table=self.of_pair(name)))

    def of_pair(self, name: str, *, margin_days: int = 1) -> DataFrame:
        """The table's rows of the pair and the days, and of so many days around: an interval or a request
        may belong to the day before the one that it ends in.
        """
        margin = dt.timedelta(days=margin_days)
        frame = self.table(name).where(
            F.col("day").between(self.choice.days[0] - margin, self.choice.days[1] + margin)
        )
        return frame if self.choice.pair is None else frame.where(F.col("pair") == self.choice.pair)


def open_tables(
    spark: SparkSession,
    root: str,
    *,
    pair: str | None = None,
    from_us: int | None = None,
    until_us: int | None = None,
    is_of_one_pair: bool = False,
) -> Tables:
    """The tables below ``root``: of ``pair``, or of all; in the time in which its processes lived, or in what
    of that is in [``from_us``, ``until_us``).

    Raises ConfigurationError if there are no tables, no such pair, several pairs where there must be one
    (``is_of_one_pair``), or nothing in that period.
    """
    snapshot = store.snapshot(spark, root)
    runs = read_files(spark, snapshot.files("silver.runs"), table_schema("silver.runs"))
    found = lived(rows_of(spark.sql(LIVED, table=runs)))
    choice = choose(root, found, pair=pair, from_us=from_us, until_us=until_us, is_of_one_pair=is_of_one_pair)
    return Tables(spark, snapshot, choice)


def rows_of(frame: DataFrame) -> list[Any]:
    """Run it; its rows have one attribute a column, and nothing tells a type checker which."""
    rows: list[Any] = frame.collect()
    return rows


def step_us(period_us: int) -> int:
    """The step of plots over time: a round one, so that there are at most STEPS_MAX."""
    for step_s in _STEPS_S:
        if period_us <= step_s * 1e6 * STEPS_MAX:
            return int(step_s * 1e6)
    days = -(-period_us // (_DAY_US * STEPS_MAX))
    return days * _DAY_US


def step_of(at_us: Column, tables: Tables) -> Column:
    """The number of the step that a time is in."""
    return F.floor((at_us - F.lit(tables.origin_us)) / F.lit(tables.step_us)).cast("int")


def is_within(column: str, tables: Tables) -> Column:
    """Whether a time is in the period."""
    return (F.col(column) >= tables.choice.from_us) & (F.col(column) < tables.choice.until_us)


def first_rows(frame: DataFrame, most: int, *order: Column | str) -> Shown[Any]:
    """The first ``most`` rows of ``frame`` in this order."""
    rows = rows_of(frame.orderBy(*order).limit(most + 1))
    return Shown(rows[:most], len(rows) if len(rows) <= most else frame.count())


def shown(kind: type[_Value], frame: DataFrame, most: int, *order: Column | str) -> Shown[_Value]:
    """The first ``most`` rows of ``frame`` in this order, each as a ``kind``."""
    rows = first_rows(frame, most, *order)
    return Shown((filled(kind, row) for row in rows), rows.total)
