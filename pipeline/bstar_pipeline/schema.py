"""What Spark has to know of a journal's line, made from ``bstar.records``: no second place says it.

A line is one JSON object of one of many kinds. Spark gets one flat schema for all of them: the union of their
fields, which works because a name means the same, and has the same type, in every kind (checked when this
module is imported). What the flat schema cannot say - which fields a kind must have, and which value a field
has that was left out - stands in ``REQUIRED`` and ``DEFAULTS``.
"""

from collections import defaultdict
from typing import Any

import msgspec
from msgspec import inspect, structs
from pyspark.sql import types

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

_TYPES: dict[type[inspect.Type], types.DataType] = {
    inspect.IntType: types.LongType(),
    inspect.FloatType: types.DoubleType(),
    inspect.BoolType: types.BooleanType(),
    inspect.StrType: types.StringType(),
    inspect.LiteralType: types.StringType(),
}
_DDL: dict[str, types.DataType] = {
    "STRING": types.StringType(),
    "BIGINT": types.LongType(),
    "INT": types.IntegerType(),
    "DOUBLE": types.DoubleType(),
    "BOOLEAN": types.BooleanType(),
    "DATE": types.DateType(),
    "TIMESTAMP": types.TimestampType(),
    "ARRAY<BIGINT>": types.ArrayType(types.LongType()),
}


REQUIRED: dict[str, tuple[str, ...]] = dict.fromkeys(KINDS, ())
"""By kind: the fields without which a line is no record."""

DEFAULTS: defaultdict[str, dict[str, Any]] = defaultdict(dict)
"""By kind, then by field: the value of a field that is not in the line (other than null)."""

_columns: dict[str, types.DataType] = {"kind": types.StringType()}
for _kind, _struct in KINDS.items():
    for _field in structs.fields(_struct):
        _name, _type = _field.encode_name, inspect.type_info(_field.type)
        if isinstance(_type, inspect.UnionType):
            (_type,) = (each for each in _type.types if not isinstance(each, inspect.NoneType))
        _found = _TYPES[type(_type)]
        _known = _columns.setdefault(_name, _found)
        assert _known == _found, f"{_name} of {_kind} is {_found}, elsewhere {_known}"
        if _field.required:
            REQUIRED[_kind] += (_name,)
        elif _field.default not in (None, msgspec.NODEFAULT):
            DEFAULTS[_kind][_name] = _field.default

LINE = types.StructType([types.StructField(name, spark_type) for name, spark_type in _columns.items()])
"""Of one line: ``kind`` and the fields of all kinds, every one nullable."""

BASE = tuple(name for name in REQUIRED["started"] if all(name in fields for fields in REQUIRED.values()))
"""The fields that every record needs, of known kinds and others."""


def table_schema(name: str) -> types.StructType:
    """The columns of a table of ``bstar_pipeline.tables`` ("gold.audit"), ``day`` and ``pair`` last."""
    fields: list[types.StructField] = []
    columns = columns_of(TABLES[name])
    known = {column for column, _ in columns}
    for column, kind in columns:
        several = [field for field in LINE.fields if field.name not in known]
        fields += [types.StructField(column, _DDL[kind])] if kind else several
    return types.StructType(fields)


RECORDS = table_schema("bronze.records")
"""Of ``bronze.records``."""
