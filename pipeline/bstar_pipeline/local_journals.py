"""Journals read without Spark, for the local engine: every line becomes a row, by the parser of the records.

One that is no record has the topic "rejected" and says why, as in ``bronze.typed``. A segment that is there
twice is read twice; ``copies`` knows better.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs
from pyspark.sql import types

from bstar.errors import ConfigurationError
from bstar_pipeline.journal_files import EMPTY, NOWHERE
from bstar_pipeline.lines import Rejected, Rows, read_line
from bstar_pipeline.places import Place, matching
from bstar_pipeline.schema import RECORDS

SHAPE = types.StructType(
    [
        *RECORDS.fields,
        types.StructField("rejection", types.StringType()),
        types.StructField("line", types.StringType()),
    ]
)
"""One row a line: ``bronze.records``, and what is known of a line that is no record."""

_ARROW: dict[type[types.DataType], pa.DataType] = {
    types.StringType: pa.string(),
    types.LongType: pa.int64(),
    types.DoubleType: pa.float64(),
    types.BooleanType: pa.bool_(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", tz="UTC"),
}

ROWS = pa.schema([pa.field(field.name, _ARROW[type(field.dataType)]) for field in SHAPE])
"""``SHAPE`` for Arrow."""

TRUNCATED = "truncated"
"""The rejection of a row that stands for the missing end of a packed file."""

_JOURNAL = re.compile(r".*\.ndjson(\.gz|\.open)?")
_NAME = re.compile(r"(.+)\.[^.]+\.(\d{8})T\d{6}Z\.[0-9a-f]{8}\.\d{4,}\.ndjson(\.gz|\.open)?$")
_ROWS_MAX = 4_096
_PIECE_BYTES = 1 << 20
# What zlib calls a gzip file.
_GZIP = 31
_EPOCH_DAY = date(1970, 1, 1)


class File(NamedTuple):
    """A journal, and what its name says about lines that are no records."""

    place: Place
    pair: str
    day: date
    length: int = 0


def files_at(paths: Sequence[str]) -> list[File]:
    """The journals at these paths (directories, files, patterns) and below, each once.

    Raises ConfigurationError if a path has none.
    """
    lengths = {place: length for path in paths for place, length in _files_at(path)}
    return [_file(place, length) for place, length in lengths.items()]


def _file(place: Place, length: int) -> File:
    match = _NAME.match(place.path.rpartition("/")[2])
    if match is None:
        return File(place, "unknown", _EPOCH_DAY, length)
    return File(place, match[1], datetime.strptime(match[2], "%Y%m%d").replace(tzinfo=UTC).date(), length)


def read(file: File) -> Iterator[pa.RecordBatch]:
    """The rows of one file (ROWS); those of one kind stand together."""
    rows = Rows(ROWS, str(file.place))
    for line in _lines(file.place):
        told = Rejected(TRUNCATED, "", None) if line is None else read_line(line)
        if isinstance(told, Rejected):
            rows.reject(told, file.pair, file.day)
        else:
            rows.add(told)
        if rows.count >= _ROWS_MAX:
            yield from rows.taken()
    yield from rows.taken()


def _files_at(path: str) -> list[tuple[Place, int]]:
    """The journal files that one path leads to, and their lengths.

    Raises ConfigurationError if there is none.
    """
    places = list(matching(path))
    is_pattern = places != [Place.of(path)]
    found: list[tuple[Place, int]] = []
    for place in places:
        system, inner = place.opened()
        told = system.get_file_info(inner)
        if told.type == pyarrow.fs.FileType.NotFound:
            raise ConfigurationError(NOWHERE.format(path))
        if told.is_file:
            # A pattern may take other files in; whoever names one wants it read.
            infos = [told] if not is_pattern or _JOURNAL.fullmatch(told.base_name) else []
        else:
            infos = system.get_file_info(pyarrow.fs.FileSelector(inner, recursive=True))
            infos = [info for info in infos if info.is_file and _JOURNAL.fullmatch(info.base_name)]
        found += [(place.at(info.path), info.size or 0) for info in infos]
    if not places:
        raise ConfigurationError(NOWHERE.format(path))
    if not found:
        raise ConfigurationError(EMPTY.format(path))
    return found


def _lines(place: Place) -> Iterator[bytes | None]:
    """The whole lines of a file; None for what a packed file lacks: the rest of a line, and the end."""
    system, inner = place.opened()
    try:
        source = system.open_input_stream(inner, compression=None)
    except FileNotFoundError:
        if not inner.endswith(".open"):
            raise
        # It has been sealed since it was found.
        sealed = inner.removesuffix(".open")
        for inner in (f"{sealed}.gz", sealed):
            if system.get_file_info(inner).is_file:
                source = system.open_input_stream(inner, compression=None)
                break
        else:
            raise
    rest = b""
    with source:
        for piece in _unpacked(source.read) if inner.endswith(".gz") else _pieces(source.read):
            if piece is None:
                yield None
                return
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    if rest:
        yield rest


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes | None]:
    while piece := read(_PIECE_BYTES):
        yield piece


def _unpacked(read: Callable[[int], bytes]) -> Iterator[bytes | None]:
    """What can be unpacked, and None at the end if that is not the end of what was packed."""
    unpacker = zlib.decompressobj(_GZIP)
    is_begun = True  # a file of nothing is no packed file
    while piece := read(_PIECE_BYTES):
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
