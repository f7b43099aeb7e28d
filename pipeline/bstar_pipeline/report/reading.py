"""What the report and the commands read from: the tables below a root, of one pair or all, in one period.

``open_tables`` finds out from the runs of processes which pairs there are and when they lived. Everything
else is asked of ``Tables``, in SQL that Spark and DuckDB understand alike: one text for both. They have the
tables of the run that was current then, without other pairs and days. Names from the wire are compared as
hexadecimal digits (``is_one``): the engines read texts differently.

This module imports neither engine: each is needed where it is chosen.
"""

from __future__ import annotations

import datetime as dt
import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from bstar.errors import ConfigurationError, PipelineError
from bstar_pipeline.commits import Folder, Snapshot, folder_named, open_snapshot
from bstar_pipeline.report.content import Shown, round_step_us
from bstar_pipeline.tables import TABLES, columns_of, utc

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

# ruff: noqa: S608 - all that is put into queries are constants, and names of files

_Value = TypeVar("_Value", bound=Struct)
_Engine = Callable[[str, list[str], str], list[Any]]
"""Runs a query about ``{table}``: of a table of this name these files. A row gives its columns by name."""

STEPS_MAX = 240
"""Columns of the plots over time: more than a phone can show."""
MINUTE_US = 60_000_000
_STEP_MIN_US = 100_000
_LIVED = "SELECT pair, MIN(started_at_us) AS began_us, MAX(last_at_us) AS ended_us FROM {table} GROUP BY pair"
# Of Spark's types those that DuckDB calls otherwise.
_TYPES = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ", "ARRAY<BIGINT>": "BIGINT[]"}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one run: of one pair (None: all pairs), in [``from_us``, ``until_us``).

    Plots over time have steps of ``step_us``; the first one begins at ``origin_us``.
    """

    snapshot: Snapshot
    engine: _Engine
    pair: str | None
    from_us: int
    until_us: int

    @property
    def days(self) -> tuple[dt.date, dt.date]:
        """The first and the last day (UTC)."""
        return utc(self.from_us).date(), utc(self.until_us - 1).date()

    @property
    def step_us(self) -> int:
        """A round time, so that there are at most STEPS_MAX."""
        return step_us(self.until_us - self.from_us)

    @property
    def origin_us(self) -> int:
        """``from_us`` rounded down to a step."""
        return self.from_us // self.step_us * self.step_us

    def step_of(self, at_us: str) -> str:
        """The number of the step that a time is in, in SQL."""
        return f"CAST(FLOOR(({at_us} - {self.origin_us}) / {self.step_us}) AS INT)"

    def within(self, at_us: str, *, length_us: int = 1) -> str:
        """Whether the period has something of what is at a time, and so long, in SQL."""
        return f"({at_us} > {self.from_us - length_us} AND {at_us} < {self.until_us})"

    def ask(
        self, name: str, query: str, *, margin_days: int | None = 1, more: Sequence[str] = ()
    ) -> list[Any]:
        """The rows of a query about ``{table}``: of the chosen pair and ``more``, and of the days and so many
        around, or of all. An interval or a request may belong to the day before the one that it ends in.
        """
        margin = dt.timedelta(days=margin_days or 0)
        first, last = self.days
        pairs = {self.pair, *more}
        parts = {
            file.part
            for file in self.snapshot.manifest.tables.get(name, [])
            if (self.pair is None or file.pair in pairs)
            and (margin_days is None or first - margin <= file.day <= last + margin)
        }
        return self.engine(name, self.snapshot.files(name, parts), query)

    def first(self, name: str, query: str, order: str, most: int, *, margin_days: int = 1) -> Shown[Any]:
        """The first ``most`` rows of a query in this order."""
        # The rows are chosen before they are sorted, because a column and its alias may share a name.
        sorted_ = f"SELECT * FROM ({query}) AS chosen ORDER BY {order} LIMIT {most + 1}"
        rows = self.ask(name, sorted_, margin_days=margin_days)
        total = len(rows)
        if total > most:
            count = f"SELECT COUNT(*) AS total FROM ({query}) AS chosen"
            total = self.ask(name, count, margin_days=margin_days)[0]["total"]
        return Shown(rows[:most], total)

    def shown(
        self, kind: type[_Value], name: str, where: str, order: str, most: int, **columns: str
    ) -> Shown[_Value]:
        """The first ``most`` rows of a table in this order, each as a ``kind``.

        ``columns``: what stands for a column, or is sorted by.
        """
        chosen = {field.name: field.name for field in fields(kind)} | columns
        names = ", ".join(f"{sql} AS {column}" for column, sql in chosen.items())
        rows = self.first(name, f"SELECT {names} FROM {{table}} WHERE {where}", order, most)
        return Shown((filled(kind, row) for row in rows), rows.total)


@contextmanager
def open_tables(
    spark: SparkSession | None,
    root: str,
    *,
    pair: str | None = None,
    from_us: int | None = None,
    until_us: int | None = None,
    is_of_one_pair: bool = False,
) -> Iterator[Tables]:
    """The tables below ``root``: of ``pair``, or of all; in the time in which its processes lived, or in what
    of that is in [``from_us``, ``until_us``). Without a session DuckDB reads a folder of this machine.

    Raises ConfigurationError if there are no tables, no such pair, several pairs where there must be one
    (``is_of_one_pair``), or nothing in that period; PipelineError, in the block too, if DuckDB cannot read a
    file.
    """
    with _opened(spark, root) as (engine, snapshot):
        rows = engine("silver.runs", snapshot.files("silver.runs"), _LIVED)
        # The last sign of life belongs to the period.
        lived = {row["pair"]: (row["began_us"], row["ended_us"] + 1) for row in rows}
        names = ", ".join(sorted(lived))
        if not lived:
            how = f"write them first with bstar pipeline run JOURNAL --out {root}"
            raise ConfigurationError(f"{root} holds no tables of a pair: {how}")
        if pair is None and is_of_one_pair:
            if len(lived) > 1:
                raise ConfigurationError(f"{root} is about several pairs: choose one of {names} with --pair")
            pair = names
        if pair is not None and pair not in lived:
            raise ConfigurationError(f"{root} knows no pair {pair}: it has {names}")
        periods = [period for name, period in lived.items() if pair in (None, name)]
        began_us, ended_us = min(began for began, _ in periods), max(ended for _, ended in periods)
        first = max(began_us, from_us or 0)
        last = ended_us if until_us is None else min(ended_us, until_us)
        if first >= last:
            there = f"its journals are from {utc(began_us):%FT%TZ} to {utc(ended_us - 1):%FT%TZ}"
            raise ConfigurationError(f"nothing of pair {pair or names} in that period: {there}")
        yield Tables(snapshot, engine, pair, first, last)


@contextmanager
def _opened(spark: SparkSession | None, root: str) -> Iterator[tuple[_Engine, Snapshot]]:
    if spark is not None:
        from bstar_pipeline import store

        yield partial(_on_spark, spark), store.snapshot(spark, root)
        return
    import duckdb

    folder = folder_named(root)
    if folder is None:
        raise ConfigurationError(f"the local engine reads folders of this machine, not {root}")
    try:
        snapshot = open_snapshot(Folder(folder), root)
        with duckdb.connect() as duck:
            duck.execute("CREATE MACRO unix_micros(moment) AS epoch_us(moment)")
            yield partial(_on_duckdb, duck), Snapshot(str(folder), snapshot.manifest)
    except (duckdb.Error, OSError) as error:
        raise PipelineError(f"{root}: {error}") from error


def _on_spark(spark: SparkSession, name: str, files: list[str], query: str) -> list[Any]:
    from bstar_pipeline.partitions import read_files
    from bstar_pipeline.schema import table_schema

    found: list[Any] = spark.sql(query, table=read_files(spark, files, table_schema(name))).collect()
    return found


def _on_duckdb(duck: duckdb.DuckDBPyConnection, name: str, files: list[str], query: str) -> list[Any]:
    answer = duck.execute(query.format(table=f"{_rows_of(name, files)} AS asked"))
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _rows_of(name: str, files: list[str]) -> str:
    """Files of a table as a subquery. A column that they lack is null."""
    columns = ", ".join(
        f"NULL::{_TYPES.get(kind, kind)} AS {column}" for column, kind in columns_of(TABLES[name])
    )
    names = ", ".join("'" + glob.escape(file).replace("'", "''") + "'" for file in files)
    read = f"FROM read_parquet([{names}], union_by_name = true, hive_partitioning = false)"
    return f"(SELECT {columns} WHERE FALSE{f' UNION ALL BY NAME {read}' if files else ''})"


def filled(kind: type[_Value], row: Any, **given: Any) -> _Value:
    """``kind`` with the columns of ``row`` as its fields, apart from those ``given``.

    A null becomes "", zero or False unless the field may be None.
    """
    for field in fields(kind):
        if field.name not in given:
            value = row[field.name]
            given[field.name] = field.type() if value is None and isinstance(field.type, type) else value
    return kind(**given)


def is_one(column: str, words: Iterable[str]) -> str:
    """Whether a text is one of these, in SQL."""
    digits = ", ".join(f"'{word.encode().hex().upper()}'" for word in words)
    return f"HEX({column}) IN ({digits})" if digits else "FALSE"


def step_us(period_us: int) -> int:
    """The step of plots over time."""
    return max(_STEP_MIN_US, round_step_us(period_us, STEPS_MAX))
