"""Lines of journals as records, by the parser of the records themselves, and as columns of Arrow.

``read_line`` comes to what ``bronze.typed`` comes to on Spark: a line is a record, or is set aside with the
same reason. Nearly all lines are of a kind and a form that this program knows, and are parsed at once. What
is left over is looked at field by field.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Union

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from bstar.base.undecodable import UNDECODABLE
from bstar.records import KINDS, VERSION
from bstar.records.base import Base
from bstar_pipeline.schema import BASE, DEFAULTS, LINE, REJECTED, REQUIRED, TIME_US_MAX, TOPICS

LINE_LENGTH_MAX = 10_000
"""What is kept of a line that cannot be read, in letters; the file has all of it."""

_DAY_US = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1).toordinal()
_INT64 = 1 << 63
_SEQ_MAX = 1 << 53
_TIMES = ("at", "mono", "total_us", "busy_us")
_parse_known: Callable[[bytes], Base] = msgspec.json.Decoder(Union[tuple(KINDS.values())]).decode  # noqa: UP007
_parse_any = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
_FIELDS = {field.name: field.dataType for field in LINE.fields}
_KIND_OF: dict[type, str] = {struct: kind for kind, struct in KINDS.items()}


class Rejected(NamedTuple):
    """A line that is no record: why, the beginning of its text, and its version if it tells one."""

    reason: str
    line: str
    version: int | None


class Odd(NamedTuple):
    """A record of a kind, or with a word, that this program does not know: its fields by name."""

    fields: dict[str, Any]


Record = Base | Odd


def read_line(line: bytes) -> Record | Rejected:
    """One line, without its end."""
    try:
        record = _parse_known(line)
    except UNDECODABLE:
        return _looked_at(line)
    if record.v == VERSION and _is_in_range(record) and (line.isascii() or _is_text(line)):
        return record
    return _looked_at(line)


def _is_in_range(record: Base) -> bool:
    return (
        0 <= record.at <= TIME_US_MAX
        and 0 <= record.mono <= TIME_US_MAX
        and 1 <= record.seq <= _SEQ_MAX
        and 0 <= (getattr(record, "total_us", 0) or 0) <= TIME_US_MAX
        and 0 <= (getattr(record, "busy_us", 0) or 0) <= TIME_US_MAX
    )


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _looked_at(line: bytes) -> Odd | Rejected:
    """A line that is not simply a record of today."""
    reason, version, fields = _judged(line)
    if reason is not None:
        return Rejected(reason, line.decode("utf-8", "replace")[:LINE_LENGTH_MAX], version)
    return Odd(fields)


def _judged(line: bytes) -> tuple[str | None, int | None, dict[str, Any]]:
    """Why the line is no record, or None; its version; its fields."""
    try:
        parsed = _parse_any(line)
    except UNDECODABLE:
        return "unreadable", None, {}
    if not isinstance(parsed, dict):
        return "unreadable", None, {}
    fields: dict[str, Any] = {}
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
    times = (fields.get(name) or 0 for name in _TIMES)
    if version != VERSION or any(not 0 <= time <= TIME_US_MAX for time in times):
        return "unreadable", version, fields
    if not 1 <= fields["seq"] <= _SEQ_MAX:
        return "unreadable", version, fields
    for name, of_kind in DEFAULTS.items():
        if fields.get(name) is None and kind in of_kind:
            fields[name] = of_kind[kind]
    return None, version, fields


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


def field_of(record: Record, name: str) -> Any:
    """A field, ``kind`` and ``topic`` among them; None if the record has none of this name."""
    if name == "topic":
        return TOPICS.get(field_of(record, "kind"), "events")
    if isinstance(record, Odd):
        return record.fields.get(name)
    return _KIND_OF[type(record)] if name == "kind" else getattr(record, name, None)


class Rows:
    """Lines of one file as rows of ``bronze.typed``, those of one kind together, until they are ``taken``."""

    def __init__(self, schema: pa.Schema, file: str) -> None:
        self._schema, self._file = schema, file
        self._known: defaultdict[type[Base], list[Base]] = defaultdict(list)
        self._others: list[dict[str, Any]] = []
        self.count = 0

    def add(self, record: Record) -> None:
        """A record."""
        self.count += 1
        if isinstance(record, Odd):
            at_us = record.fields["at"]
            time = {"time": at_us, "day": at_us // _DAY_US, "topic": field_of(record, "topic")}
            self._others.append({**record.fields, **time})
        else:
            self._known[type(record)].append(record)

    def reject(self, parsed: Rejected, pair: str, day: dt.date) -> None:
        """An invalid line, of the file's ``pair`` and ``day``."""
        self.count += 1
        row = {"pair": pair, "day": day.toordinal() - _EPOCH, "topic": REJECTED, "v": parsed.version}
        self._others.append({**row, "rejection": parsed.reason, "line": parsed.line})

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The rows so far; they are forgotten."""
        for struct, records in self._known.items():
            yield self._batch(len(records), self._columns(struct, records))
        if self._others:
            names = {name for row in self._others for name in row}
            columns = {name: [row.get(name) for row in self._others] for name in names}
            yield self._batch(len(self._others), columns)
        self._known.clear()
        self._others, self.count = [], 0

    def _columns(self, struct: type[Base], records: Sequence[Base]) -> dict[str, Any]:
        columns: dict[str, Any] = {
            name: list(map(attrgetter(name), records))
            for name in struct.__struct_fields__
            if name in self._schema.names
        }
        kind = _KIND_OF[struct]
        at_us = pa.array(map(attrgetter("at"), records), pa.int64())
        said = {"kind": kind, "topic": TOPICS.get(kind, "events")}
        columns |= {name: pa.repeat(pa.scalar(word), len(records)) for name, word in said.items()}
        return {**columns, "time": at_us, "day": pc.divide(at_us, _DAY_US)}

    def _batch(self, count: int, columns: dict[str, Any]) -> pa.RecordBatch:
        columns["file"] = pa.repeat(pa.scalar(self._file), count)
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(count, field.type)
                if field.name not in columns
                else _array(columns[field.name], field.type)
                for field in self._schema
            ],
            schema=self._schema,
        )


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date(kind):
        return pa.array(values, pa.int64()).cast(pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
