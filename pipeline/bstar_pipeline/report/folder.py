"""The tables in a folder of this machine, read with DuckDB: no JVM starts for a few rows."""

from __future__ import annotations

import datetime as dt
import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from bstar.errors import PipelineError
from bstar_pipeline.commits import Folder, Snapshot, open_snapshot
from bstar_pipeline.report.asking import LIVED, lived
from bstar_pipeline.report.choice import Choice, choose
from bstar_pipeline.tables import TABLES, columns_of

# Of Spark's types those that DuckDB calls otherwise.
_TYPES = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ", "ARRAY<BIGINT>": "BIGINT[]"}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one run, of what was chosen: a ``Source``."""

    snapshot: Snapshot
    duck: duckdb.DuckDBPyConnection
    choice: Choice

    def has(self, name: str) -> bool:
        """Whether the table was ever written, be it without a row."""
        return self.snapshot.has(name)

    def ask(self, name: str, query: str) -> list[dict[str, Any]]:
        """The rows of a query about ``{table}``: the chosen pair and days, and a day around."""
        first, last = self.choice.days
        margin = dt.timedelta(days=1)
        where = f"day BETWEEN DATE '{first - margin}' AND DATE '{last + margin}'"
        if self.choice.pair is not None:
            where += f" AND pair = {_text(self.choice.pair)}"
        chosen = f"(SELECT * FROM {_table(self.snapshot, name)} WHERE {where}) AS asked"  # noqa: S608
        return _rows(self.duck, query.format(table=chosen))


@contextmanager
def open_folder(
    root: str, *, pair: str | None = None, from_us: int | None = None, until_us: int | None = None
) -> Iterator[Tables]:
    """The tables below the folder ``root``, of ``pair`` or all, in [``from_us``, ``until_us``).

    Raises ConfigurationError as ``choose`` does, and PipelineError, in the block too, if a file cannot be
    read.
    """
    try:
        snapshot = open_snapshot(Folder(Path(root)), root)
        with duckdb.connect() as duck:
            spans = lived(_rows(duck, LIVED.format(table=f"{_table(snapshot, 'silver.runs')} AS asked")))
            choice = choose(root, spans, pair=pair, from_us=from_us, until_us=until_us)
            yield Tables(snapshot, duck, choice)
    except (duckdb.Error, OSError) as error:
        raise PipelineError(f"{root}: {error}") from error


def _rows(duck: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    answer = duck.execute(query)
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _table(snapshot: Snapshot, name: str) -> str:
    """The whole table as a subquery; empty if it has no file. A column that its files lack is null."""
    columns = ", ".join(
        f"NULL::{_TYPES.get(kind, kind)} AS {column}" for column, kind in columns_of(TABLES[name])
    )
    empty = f"SELECT {columns} WHERE FALSE"
    files = ", ".join(_text(glob.escape(file)) for file in snapshot.files(name))
    if not files:
        return f"({empty})"
    rows = f"FROM read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
    return f"({empty} UNION ALL BY NAME {rows})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
