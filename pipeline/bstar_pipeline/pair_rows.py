"""Plain Python over the few rows that tell of processes and pairs, here in the driver.

They are few whatever the traffic: events that change something, runs of processes, times without an answer.
Rows of several kinds travel as one frame with a column ``what``, so one query brings them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

Row = Mapping[str, Any]
"""A row, by column."""

Rows = Sequence[Row]

_OFFSET = pa.schema({"boot": pa.string(), "offset_us": pa.int64()})


def literal(path: str) -> str:
    """A path that names this file alone for Spark, also if a pattern would have the same letters."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def read_files(spark: SparkSession, files: Iterable[str], shape: StructType) -> DataFrame:
    """Files of a table as one frame."""
    found = [literal(file) for file in files]
    # Without a file it is made without Python on the executors.
    empty = (F.lit(None).cast(field.dataType).alias(field.name) for field in shape)
    return spark.read.schema(shape).parquet(*found) if found else spark.range(0).select(*empty)


def offsets(runs: Rows) -> pa.Table:
    """What the clock of each run lacks, for queries: boot, offset_us."""
    return pa.Table.from_pylist([{name: run[name] for name in _OFFSET.names} for run in runs], _OFFSET)


def by_pair(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each pair."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["pair"]].append(row)
    return found


def frame_of(spark: SparkSession, rows: Iterable[Row], shape: StructType) -> DataFrame:
    """Rows as a frame; a column that one lacks is null.

    By Arrow: of a list of Python's, Spark makes rows in Python processes on the executors.
    """
    schema = to_arrow_schema(shape, timezone="UTC")
    table = pa.Table.from_pylist([{name: row.get(name) for name in shape.names} for row in rows], schema)
    return spark.createDataFrame(table, shape)
