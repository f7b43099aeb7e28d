"""What Spark has to know of a journal's line, made from ``bstar.records``: no second place says it.

A line is one JSON object of one of many kinds. Spark gets one flat schema for all of them: the union of their
fields, which works because a name means the same, and has the same type, in every kind (checked when this
module is imported). What the flat schema cannot say - which fields a kind must have, and which value a field
has that was left out - stands in ``REQUIRED`` and ``DEFAULTS``.
"""

import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bstar.records import KINDS
from bstar_pipeline.tables import TABLES, columns_of

TOPICS = {"request": "requests", "call": "calls", "execution": "executions", "durable": "durables"}
"""The kinds that come by the million, each with a topic of its own; all others are of topic "events"."""

TIME_US_MAX = 4_102_444_800_000_000
"""Times beyond the year 2100 are no times: adding to them would overflow, and one line stop a whole job."""

REJECTED = "rejected"
"""The topic of lines that are no records."""

DISTINCT = (
    "seq", "at", "mono", "time", "number", "accepted_at_us", "ended_at_us", "total_us", "queued_us",
    "busy_us", "call_total_us",
)  # fmt: skip
"""Columns in which hardly a value comes twice. Parquet would look each of them up in a dictionary until it is
too large, and then write them as they are.
"""

_TYPES: dict[type[inspect.Type], DataType] = {
    inspect.IntType: LongType(),
    inspect.FloatType: DoubleType(),
    inspect.BoolType: BooleanType(),
    inspect.StrType: StringType(),
    inspect.LiteralType: StringType(),
}
_DDL: dict[str, DataType] = {
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampType(),
    "ARRAY<BIGINT>": ArrayType(LongType()),
}


def _fields() -> Iterator[tuple[str, inspect.Field]]:
    """Every field of every kind, with the kind."""
    for kind, struct in KINDS.items():
        about = inspect.type_info(struct)
        assert isinstance(about, inspect.StructType)
        yield from ((kind, field) for field in about.fields)


def _columns() -> dict[str, DataType]:
    """Every field, in the order in which the kinds bring them up."""
    columns: dict[str, DataType] = {"kind": StringType()}
    for kind, field in _fields():
        of = field.type
        if isinstance(of, inspect.UnionType):
            (of,) = (each for each in of.types if not isinstance(each, inspect.NoneType))
        found = _TYPES[type(of)]
        known = columns.setdefault(field.encode_name, found)
        assert known == found, f"{field.encode_name} of {kind} is {found}, elsewhere {known}"
    return columns


def kinds_of(*modules: types.ModuleType) -> tuple[str, ...]:
    """The kinds of record that these modules of ``bstar.records`` define."""
    names = {module.__name__ for module in modules}
    return tuple(kind for kind, struct in KINDS.items() if struct.__module__ in names)


LINE = StructType([StructField(name, spark_type) for name, spark_type in _columns().items()])
"""Of one line: ``kind`` and the fields of all kinds, every one nullable."""

REQUIRED: dict[str, tuple[str, ...]] = dict.fromkeys(KINDS, ())
"""By kind: the fields without which a line is no record."""

DEFAULTS: defaultdict[str, dict[str, Any]] = defaultdict(dict)
"""By field, then by kind: the value of a field that is not in the line (other than null)."""

for _kind, _field in _fields():
    if _field.required:
        REQUIRED[_kind] += (_field.encode_name,)
    elif _field.default not in (None, msgspec.NODEFAULT):
        DEFAULTS[_field.encode_name][_kind] = _field.default

BASE = tuple(name for name in REQUIRED["started"] if all(name in fields for fields in REQUIRED.values()))
"""The fields that every record needs, of known kinds and others."""


def table_schema(name: str) -> StructType:
    """The columns of a table of ``bstar_pipeline.tables`` ("gold.audit"), ``day`` and ``pair`` last."""
    fields: list[StructField] = []
    columns = columns_of(TABLES[name])
    known = {column for column, _ in columns}
    for column, kind in columns:
        several = [field for field in LINE.fields if field.name not in known]
        fields += [StructField(column, _DDL[kind])] if kind else several
    return StructType(fields)


RECORDS = table_schema("bronze.records")
"""Of ``bronze.records``."""

REJECTION = StructType([StructField("rejection", StringType()), StructField("line", StringType())])
"""What a line has beyond that: why it is no record, and its text; both null for a record."""
