"""Plain Python over the few rows that tell of a pair, here in the driver.

Rows of several kinds travel as one frame with a column ``what``. They are few whatever the pair's traffic:
events that change something, runs of processes, times without an answer. So they come to the driver, and the
executors of a cluster need no Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DDL = {"str": "STRING", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "dt.date": "DATE"}
_ARROW = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
}

_Row = TypeVar("_Row", bound="DataclassInstance")
Rows = Sequence[Mapping[str, Any]]
"""A pair's rows, by column."""

Function = Callable[[str, Rows], Iterable[Mapping[str, Any]]]
"""Gets a pair's name and rows, and gives rows: each a value for some of the columns."""


def columns(*kinds: type[DataclassInstance], **more: str) -> str:
    """``what``, ``pair`` and the fields of these kinds of row together, as Spark's DDL."""
    found = {"what": "STRING", "pair": "STRING"}
    for kind in kinds:
        found |= {each.name: _DDL[str(each.type).removesuffix(" | None")] for each in fields(kind)}
    return ", ".join(f"{name} {of_type}" for name, of_type in (found | more).items())


def together(*frames: DataFrame) -> DataFrame:
    """The rows of all frames; a column that one lacks is null there, and has its type."""
    types = {field.name: field.dataType for frame in frames for field in frame.schema.fields}
    whole = (
        frame.select(
            *(
                F.col(name) if name in frame.columns else F.lit(None).cast(of_type).alias(name)
                for name, of_type in types.items()
            )
        )
        for frame in frames
    )
    return reduce(DataFrame.unionByName, whole)


def per_pair(frame: DataFrame, function: Function, schema: str) -> DataFrame:
    """What ``function`` makes of the rows of each pair: rows of ``schema``, of ``columns``."""
    of_pair: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in frame.toArrow().to_pylist():
        of_pair[row["pair"]].append(row)
    rows = [dict(row) for pair, told in sorted(of_pair.items()) for row in function(pair, told)]
    types = (column.split() for column in schema.split(", "))
    # By Arrow: of a list of Python's, Spark makes rows in Python processes on the executors.
    table = pa.Table.from_pylist(rows, pa.schema([(name, _ARROW[of_type]) for name, of_type in types]))
    return frame.sparkSession.createDataFrame(table, schema)


def rows_of(rows: Rows, what: str, kind: type[_Row]) -> list[_Row]:
    """The rows of one kind."""
    names = [field.name for field in fields(kind)]
    return [kind(**{name: row[name] for name in names}) for row in rows if row["what"] == what]
