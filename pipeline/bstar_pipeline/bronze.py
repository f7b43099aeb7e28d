"""Bronze: the lines of journals as typed records, with what could not be read beside them; none is dropped.

``read`` makes rows of one file, on every engine: the local engine calls it in this process, Spark in Python
on its executors. They open files, or get them from other storage, packed as they are. ``write`` puts the rows
where the tables are, if that is a folder; they do not come through an engine then.

The parser of the records themselves parses lines. Nearly all are simply records of today: many are parsed
together. Of lines of which one is not, each is looked at by itself, and if need be field by field.
"""

import datetime as dt
import gc
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Union

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict, astuple
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from bstar.base.undecodable import UNDECODABLE
from bstar.records import KINDS, VERSION
from bstar.records.base import Base
from bstar_pipeline import parquet, schema
from bstar_pipeline.commits import OPEN, File, journal_of
from bstar_pipeline.journal_files import about_name, place_of
from bstar_pipeline.partitions import Made, Stored, queried

TRUNCATED = "truncated"
"""The topic of a row that stands for the missing end of a packed file."""

SHAPE = types.StructType([*schema.RECORDS.fields]).add("rejection", "string").add("line", "string")
"""One row a line: ``bronze.records``, and of a line that is no record why that is, and its text."""

ROWS = to_arrow_schema(SHAPE, timezone="UTC")
"""``SHAPE`` for Arrow."""

# What is kept of a line that cannot be read, in letters; the file has all of it.
_LINE_LENGTH_MAX = 10_000
_DAY_US = 86_400_000_000
_INT64 = 1 << 63
_RANGES = {
    "v": (VERSION, VERSION),
    "seq": (1, 1 << 53),
    **dict.fromkeys(("at", "mono", "total_us", "busy_us"), (0, schema.TIME_US_MAX)),
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
_FIELDS = {field.name: field.dataType for field in schema.LINE.fields}
_KIND_OF: dict[type, str] = {struct: kind for kind, struct in KINDS.items()}

# Unpacked they are 15 times as long, and parsed together.
_PIECE_BYTES = 1 << 19
# What zlib calls a gzip file.
_GZIP = 31

Row = dict[str, Any]


def read(file: str, take: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of the file of this name (``batches``); ``take`` gives its next bytes.

    A packed file without its end has one row more, of topic "truncated".
    """
    rest = b""
    for piece in _unpacked(take) if file.endswith(".gz") else iter(partial(take, _PIECE_BYTES), b""):
        if piece is None:
            yield _of_rows([_set_aside(about_name(file), TRUNCATED, TRUNCATED, "", None)], file)
            return
        begun = rest + piece
        end = begun.rfind(b"\n") + 1
        if end:
            yield from batches(begun[: end - 1], file)
        rest = begun[end:]
    if rest:
        yield from batches(rest, file)


def write(found: Iterable[tuple[str, Iterable[pa.RecordBatch]]], folder: Path, below: str) -> list[File]:
    """Write the rows of files, by name, to Parquet files ``below`` the folder of all tables."""
    rows = (
        batch.append_column("journal", pa.repeat(journal_of(name), batch.num_rows))
        for name, of_file in found
        for batch in of_file
    )
    return parquet.write(rows, ROWS, folder, below, by=("topic", "journal"))


def on_executor(
    names: Mapping[str, str], target: tuple[Path, str] | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """``read`` for ``mapInArrow``: of ``journal_files.contents``; or what ``write`` wrote.

    ``names``: of what is a copy of another file, that one's.
    """
    contents = ((path.as_py(), content) for batch in batches for path, content in zip(*batch, strict=True))
    found = ((name := names.get(path, path), _read(name, path, content)) for path, content in contents)
    if target is None:
        yield from (batch for _, rows in found for batch in rows)
        return
    yield from parquet.rows_of(write(found, *target))


def _read(name: str, path: str, content: pa.BinaryScalar) -> Iterator[pa.RecordBatch]:
    if content.is_valid:
        yield from read(name, pa.BufferReader(content.as_buffer()).read)
        return
    # One that is gone since it was listed counts as one without lines.
    with suppress(FileNotFoundError), place_of(path).open("rb", buffering=0) as source:
        yield from read(name, source.read)


JOURNAL = f"CASE WHEN file LIKE '%{OPEN}' THEN md5(file) ELSE 'sealed' END"
"""``commits.journal_of`` of column ``file``, in SQL of Spark and DuckDB alike."""


def with_journal(shape: types.StructType) -> types.StructType:
    """These columns, and "journal", which is ``JOURNAL``."""
    return types.StructType([*shape.fields]).add("journal", "string")


def rejected(lines: Stored, but_of: Sequence[str]) -> Made:
    """The table of rejected lines, with their journal, without those of some files."""
    rows = lines.take("file", "rejection", "v", "line", "day", "pair", where=f"topic = '{schema.REJECTED}'")
    query = (
        f"SELECT file, rejection, try_cast(v AS INTEGER), line, day, pair, {JOURNAL} AS journal FROM rows "  # noqa: S608
        "WHERE file NOT IN (SELECT file FROM left_out)"
    )
    left_out = {"left_out": pa.table({"file": pa.array(but_of, pa.string())})}
    return queried(rows, (), query, with_journal(schema.table_schema("bronze.rejected")), tables=left_out)


def _unpacked(take: Callable[[int], bytes]) -> Iterator[bytes | None]:
    """What can be unpacked, and None at the end if that is not the end of what was packed."""
    unpacker = zlib.decompressobj(_GZIP)
    is_begun = True  # a file of nothing is no packed file
    while piece := take(_PIECE_BYTES):
        while piece:
            try:
                yield unpacker.decompress(piece)
            except zlib.error:
                yield None
                return
            piece = unpacker.unused_data
            if unpacker.eof:
                unpacker = zlib.decompressobj(_GZIP)
                is_begun = bool(piece)
            else:
                is_begun = True
    if is_begun:
        yield None


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
    except (*UNDECODABLE, OverflowError):
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
                raise OverflowError(name)
    columns |= {
        "kind": pa.repeat(kind, len(records)),
        "topic": pa.repeat(schema.TOPICS.get(kind, "events"), len(records)),
        "time": columns["at"].cast(ROWS.field("time").type),
        "day": pc.divide(columns["at"], _DAY_US).cast(pa.int32()).cast(pa.date32()),
    }
    return _batch(len(records), columns, file)


def _is_text(line: bytes) -> bool:
    try:
        return line.isascii() or line.decode() is not None
    except UnicodeDecodeError:
        return False


def _row(line: bytes, about: tuple[str, dt.date]) -> Row:
    """One line."""
    with suppress(*UNDECODABLE, OverflowError):
        record = _parse_known(line)
        if _is_text(line):
            return _of_record(record)
    reason, version, fields = _judged(line)
    if reason is None:
        return _recorded(fields)
    kept = line.decode("utf-8", "replace")[:_LINE_LENGTH_MAX]
    return _set_aside(about, schema.REJECTED, reason, kept, version)


def _of_record(record: Base) -> Row:
    fields = {"kind": _KIND_OF[type(record)], **asdict(record)}
    if not _is_in_range(fields):
        raise OverflowError(fields)
    return _recorded(fields)


def _recorded(fields: Row) -> Row:
    at_us, topic = fields["at"], schema.TOPICS.get(fields["kind"], "events")
    return {**fields, "time": at_us, "day": at_us // _DAY_US, "topic": topic}


def _set_aside(about: tuple[str, dt.date], topic: str, reason: str, line: str, version: int | None) -> Row:
    pair, day = about
    return {"pair": pair, "day": day, "topic": topic, "v": version, "rejection": reason, "line": line}


def _judged(line: bytes) -> tuple[str | None, int | None, Row]:
    """Why the line is no record, or None; its version; its fields."""
    parsed = None
    with suppress(*UNDECODABLE):
        parsed = msgspec.json.decode(line)
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
    needs = ("kind", *schema.BASE, *schema.REQUIRED.get(kind, ()))
    if not is_sound or any(fields.get(name) is None for name in needs):
        return "incomplete", version, fields
    if not _is_in_range(fields):
        return "unreadable", version, fields
    return None, version, schema.DEFAULTS.get(kind, {}) | fields


def _is_in_range(fields: Row) -> bool:
    values = ((fields.get(name), limits) for name, limits in _RANGES.items())
    return all(value is None or least <= value <= most for value, (least, most) in values)


def _as(column: types.DataType, value: Any) -> Any:
    """The value as a column of this type takes it, or None."""
    if isinstance(column, types.StringType):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(column, types.BooleanType):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(column, types.LongType):
        return value if isinstance(value, int) and -_INT64 <= value < _INT64 else None
    return float(value)


def _of_rows(rows: Sequence[Row], file: str) -> pa.RecordBatch:
    names = {name for row in rows for name in row}
    columns = {name: pa.array([row.get(name) for row in rows], ROWS.field(name).type) for name in names}
    return _batch(len(rows), columns, file)


def _batch(count: int, columns: Mapping[str, pa.Array], file: str) -> pa.RecordBatch:
    columns = {**columns, "file": pa.repeat(file, count)}
    arrays = [columns[field.name] if field.name in columns else _nulls(count, field.type) for field in ROWS]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Most columns are null in most rows, and share one array."""
    return _many_nulls(1 << count.bit_length(), kind).slice(0, count)


@lru_cache(maxsize=64)
def _many_nulls(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)
