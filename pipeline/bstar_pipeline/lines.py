"""Lines of journals as columns of Arrow, by the parser of the records themselves, on every engine.

Nearly all lines are simply records of today: many are parsed together. Of lines of which one is not, each is
looked at by itself, and if need be field by field.
"""

import datetime as dt
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Union

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from bstar.base.undecodable import UNDECODABLE
from bstar.records import KINDS, VERSION
from bstar.records.base import Base
from bstar_pipeline.journal_files import about_name
from bstar_pipeline.schema import (
    BASE,
    DEFAULTS,
    LINE,
    RECORDS,
    REJECTED,
    REJECTION,
    REQUIRED,
    TIME_US_MAX,
    TOPICS,
)

LINE_LENGTH_MAX = 10_000
"""What is kept of a line that cannot be read, in letters; the file has all of it."""

TRUNCATED = "truncated"
"""The topic of a row that stands for the missing end of a packed file."""

SHAPE = types.StructType([*RECORDS.fields, *REJECTION.fields])
"""One row a line: ``bronze.records``, and what is known of a line that is no record."""

ROWS = to_arrow_schema(SHAPE, timezone="UTC")
"""``SHAPE`` for Arrow."""

_DAY_US = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1).toordinal()
_INT64 = 1 << 63
_RANGES = {
    "v": (VERSION, VERSION),
    "seq": (1, 1 << 53),
    **dict.fromkeys(("at", "mono", "total_us", "busy_us"), (0, TIME_US_MAX)),
}
# Fewer lines, or records of a kind, are rows by themselves.
_FEW = 16
_BEGIN = b'{"kind":"'
_SHAPES = {
    kind: pa.struct([ROWS.field(name) for name in struct.__struct_fields__]) for kind, struct in KINDS.items()
}
_known = msgspec.json.Decoder(Union[tuple(KINDS.values())])  # noqa: UP007
_parse_known: Callable[[bytes], Base] = _known.decode
_parse_all: Callable[[bytes], list[Base]] = _known.decode_lines
_parse_any = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
_FIELDS = {field.name: field.dataType for field in LINE.fields}
_KIND_OF: dict[type, str] = {struct: kind for kind, struct in KINDS.items()}

Row = dict[str, Any]


def batches(text: bytes, file: str) -> Iterator[pa.RecordBatch]:
    """Lines of one file, without the last one's end, as rows (``ROWS``).

    A record has the fields of ``bstar.records`` (those of its kind with their defaults, the others null),
    ``time`` (of ``at``), ``topic`` and ``day`` (of ``at``, UTC). A line that is no record has the topic
    "rejected", a ``rejection`` that says why, its text, and pair and day of the file's name.
    """
    together = _together(text, file)
    if together is not None:
        yield from together
        return
    lines = text.split(b"\n")
    if len(lines) <= _FEW:
        about = about_name(file)
        yield _of_rows([_row(line, about) for line in lines], file)
        return
    half = len(lines) // 2
    for some in (lines[:half], lines[half:]):
        yield from batches(b"\n".join(some), file)


def cut(file: str) -> pa.RecordBatch:
    """The row that stands for the missing end of a packed file."""
    return _of_rows([_set_aside(about_name(file), TRUNCATED, TRUNCATED, "", None)], file)


def _together(text: bytes, file: str) -> list[pa.RecordBatch] | None:
    """These lines, if each is a record of today.

    A line that ends with an object, before one that begins with another, is no part of either; so there are
    as many records as lines only if each has one.
    """
    ends = text.count(b"\n")
    if not text.startswith(_BEGIN) or text.count(b"}\n" + _BEGIN) != ends:
        return None
    of_kind: defaultdict[type[Base], list[Base]] = defaultdict(list)
    # Thousands of tuples live for a moment, and none is part of a circle.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        records = _parse_all(text)
        if len(records) != ends + 1 or not _is_text(text):
            return None
        for record in records:
            of_kind[type(record)].append(record)
        many = [each for each in of_kind.values() if len(each) >= _FEW]
        found = [_of_kind(_KIND_OF[type(each[0])], each, file) for each in many]
        rows = [_of_record(record) for each in of_kind.values() if len(each) < _FEW for record in each]
    except (*UNDECODABLE, OverflowError, _OutOfRange):
        return None
    finally:
        if is_collecting:
            gc.enable()
    return [*found, _of_rows(rows, file)] if rows else found


def _of_kind(kind: str, records: Sequence[Base], file: str) -> pa.RecordBatch:
    """Records of one kind."""
    shape = _SHAPES[kind]
    values = pa.array(map(astuple, records), shape, size=len(records)).flatten()
    columns = dict(zip((field.name for field in shape), values, strict=True))
    for name, (least, most) in _RANGES.items():
        if name in columns:
            found = pc.min_max(columns[name]).as_py()
            if found["min"] is not None and (found["min"] < least or found["max"] > most):
                raise _OutOfRange
    columns |= {
        "kind": pa.repeat(pa.scalar(kind), len(records)),
        "topic": pa.repeat(pa.scalar(TOPICS.get(kind, "events")), len(records)),
        "time": columns["at"],
        "day": pc.divide(columns["at"], _DAY_US),
    }
    return _batch(len(records), columns, file)


class _OutOfRange(Exception):  # noqa: N818 - it is what happened
    """A field has a value that it cannot have."""


def _is_text(line: bytes) -> bool:
    try:
        return line.isascii() or line.decode() is not None
    except UnicodeDecodeError:
        return False


def _row(line: bytes, about: tuple[str, dt.date]) -> Row:
    """One line."""
    try:
        record = _parse_known(line)
    except UNDECODABLE:
        return _looked_at(line, about)
    if _is_text(line):
        with suppress(_OutOfRange):
            return _of_record(record)
    return _looked_at(line, about)


def _of_record(record: Base) -> Row:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    if not _is_in_range(fields):
        raise _OutOfRange
    return _recorded({"kind": _KIND_OF[type(record)], **fields})


def _looked_at(line: bytes, about: tuple[str, dt.date]) -> Row:
    """A line that is not simply a record of today."""
    reason, version, fields = _judged(line)
    if reason is None:
        return _recorded(fields)
    return _set_aside(about, REJECTED, reason, line.decode("utf-8", "replace")[:LINE_LENGTH_MAX], version)


def _recorded(fields: Row) -> Row:
    at_us, topic = fields["at"], TOPICS.get(fields["kind"], "events")
    return {**fields, "time": at_us, "day": at_us // _DAY_US, "topic": topic}


def _set_aside(about: tuple[str, dt.date], topic: str, reason: str, line: str, version: int | None) -> Row:
    pair, day = about
    row = {"pair": pair, "day": day.toordinal() - _EPOCH, "topic": topic, "v": version}
    return {**row, "rejection": reason, "line": line}


def _judged(line: bytes) -> tuple[str | None, int | None, Row]:
    """Why the line is no record, or None; its version; its fields."""
    try:
        parsed = _parse_any(line)
    except UNDECODABLE:
        return "unreadable", None, {}
    if not isinstance(parsed, dict):
        return "unreadable", None, {}
    fields: Row = {}
    is_sound = True
    for name, column in _FIELDS.items():
        value = parsed.get(name)
        if value is not None:
            fields[name] = _as(column, value)
            is_sound = is_sound and fields[name] is not None
    version = fields.get("v")
    if version is not None and version > VERSION:
        return "newer-version", version, fields
    if (not is_sound and version is None) or not _is_text(line):
        return "unreadable", version, fields
    kind = fields.get("kind", "")
    needs = ("kind", *BASE, *REQUIRED.get(kind, ()))
    if not is_sound or any(fields.get(name) is None for name in needs):
        return "incomplete", version, fields
    if not _is_in_range(fields):
        return "unreadable", version, fields
    for name, of_kind in DEFAULTS.items():
        if fields.get(name) is None and kind in of_kind:
            fields[name] = of_kind[kind]
    return None, version, fields


def _is_in_range(fields: Row) -> bool:
    values = ((fields.get(name), limits) for name, limits in _RANGES.items())
    return all(value is None or least <= value <= most for value, (least, most) in values)


def _as(column: types.DataType, value: Any) -> Any:
    """The value as a column of this type takes it, or None."""
    if isinstance(column, types.StringType):
        return value if isinstance(value, str) else _encode(value).decode()
    if isinstance(column, types.BooleanType):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(column, types.LongType):
        return value if isinstance(value, int) and -_INT64 <= value < _INT64 else None
    return float(value)


def _of_rows(rows: Sequence[Row], file: str) -> pa.RecordBatch:
    names = {name for row in rows for name in row}
    return _batch(len(rows), {name: [row.get(name) for row in rows] for name in names}, file)


def _batch(count: int, columns: Mapping[str, Any], file: str) -> pa.RecordBatch:
    columns = {**columns, "file": pa.repeat(pa.scalar(file), count)}
    arrays = [
        _array(columns[field.name], field.type) if field.name in columns else _nulls(count, field.type)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date(kind):
        return pa.array(values, pa.int64()).cast(pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Most columns are null in most rows, and share one array."""
    return _many_nulls(1 << count.bit_length(), kind).slice(0, count)


@lru_cache(maxsize=64)
def _many_nulls(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)
