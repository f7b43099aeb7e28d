"""Plain Python over the rows of one pair at a time; the engine calls it where the rows are.

Rows of several kinds travel as one frame with a column ``what``, because an engine hands a function two
frames at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DDL = {"str": "STRING", "int": "BIGINT", "bool": "BOOLEAN", "dt.date": "DATE"}
_ARROW = {"STRING": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_(), "DATE": pa.date32()}

_Row = TypeVar("_Row", bound="DataclassInstance")
Function = Callable[[str, pa.Table], Iterable[Mapping[str, Any]]]
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

    def applied(table: pa.Table) -> pa.Table:
        told = (column.split() for column in schema.split(", "))
        rows = list(function(table["pair"][0].as_py(), table))
        return pa.Table.from_pylist(rows, pa.schema([(name, _ARROW[of_type]) for name, of_type in told]))

    return frame.groupBy("pair").applyInArrow(applied, schema)


def rows_of(table: pa.Table, what: str, kind: type[_Row]) -> list[_Row]:
    """The rows of one kind."""
    names = [field.name for field in fields(kind)]
    return [kind(**row) for row in of_kind(table, what).select(names).to_pylist()]


def of_kind(table: pa.Table, what: str) -> pa.Table:
    """The rows of one kind, with all columns."""
    return table.filter(pc.equal(table["what"], what))
