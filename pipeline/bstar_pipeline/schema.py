"""What Spark has to know of a journal's line, made from ``bstar.records``: no second place says it.

A line is one JSON object of one of many kinds. Spark gets one flat schema for all of them: the union of their
fields, which works because a name means the same, and has the same type, in every kind (checked when this
module is imported). What the flat schema cannot say - which fields a kind must have, and which value a field
has that was left out - stands in ``REQUIRED`` and ``DEFAULTS``.
"""

import types
import typing
from typing import Literal, Union

import msgspec
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

_TYPES: dict[object, DataType] = {
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    str: StringType(),
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


def _spark_type(python_type: object) -> DataType:
    """Of a field's annotation: int, float, bool, str, a Literal of strings, or one of these or None."""
    origin = typing.get_origin(python_type)
    if origin is Literal:
        kinds = {type(value) for value in typing.get_args(python_type)}
        assert kinds == {str}, f"a Literal of a record is of strings: {python_type}"
        return StringType()
    if origin in (Union, types.UnionType):
        members = [member for member in typing.get_args(python_type) if member is not types.NoneType]
        assert len(members) == 1, f"a field of a record has one type: {python_type}"
        return _spark_type(members[0])
    return _TYPES[python_type]


def _columns() -> dict[str, DataType]:
    """Every field of every kind, in the order in which the kinds bring them up."""
    columns: dict[str, DataType] = {"kind": StringType()}
    for kind, struct in KINDS.items():
        for field in msgspec.structs.fields(struct):
            found = _spark_type(field.type)
            known = columns.setdefault(field.encode_name, found)
            assert known == found, f"{field.encode_name} of {kind} is {found}, elsewhere {known}"
    return columns


def kinds_of(*modules: types.ModuleType) -> tuple[str, ...]:
    """The kinds of record that these modules of ``bstar.records`` define."""
    names = {module.__name__ for module in modules}
    return tuple(kind for kind, struct in KINDS.items() if struct.__module__ in names)


def _required() -> dict[str, tuple[str, ...]]:
    return {
        kind: tuple(field.encode_name for field in msgspec.structs.fields(struct) if field.required)
        for kind, struct in KINDS.items()
    }


def _defaults() -> dict[str, dict[str, int | float | bool | str]]:
    defaults: dict[str, dict[str, int | float | bool | str]] = {}
    for kind, struct in KINDS.items():
        for field in msgspec.structs.fields(struct):
            if not field.required and field.default is not None:
                assert isinstance(field.default, int | float | bool | str), f"{kind}.{field.encode_name}"
                defaults.setdefault(field.encode_name, {})[kind] = field.default
    return defaults


LINE = StructType([StructField(name, spark_type) for name, spark_type in _columns().items()])
"""Of one line: ``kind`` and the fields of all kinds, every one nullable."""

REQUIRED = _required()
"""By kind: the fields without which a line is no record."""

BASE = tuple(name for name in REQUIRED["started"] if all(name in fields for fields in REQUIRED.values()))
"""The fields that every record needs, of known kinds and others."""

DEFAULTS = _defaults()
"""By field, then by kind: the value of a field that is not in the line (other than null)."""


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
