"""Journals read without Spark, for the local engine: every line becomes a row, by the parser of the records.

One that is no record has the topic "rejected" and says why, as in ``bronze.typed``. A segment that is there
twice is read twice; ``copies`` knows better.
"""

import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bstar.errors import ConfigurationError
from bstar_pipeline.journal_files import EMPTY, NOWHERE, OPEN, about_name, length_of
from bstar_pipeline.lines import Rejected, Rows, read_line
from bstar_pipeline.places import is_pattern, matching
from bstar_pipeline.schema import RECORDS, REJECTION

SHAPE = StructType([*RECORDS.fields, *REJECTION.fields])
"""One row a line: ``bronze.records``, and what is known of a line that is no record."""

ROWS = to_arrow_schema(SHAPE, timezone="UTC")
"""``SHAPE`` for Arrow."""

TRUNCATED = "truncated"
"""The rejection of a row that stands for the missing end of a packed file."""

_JOURNAL = re.compile(r".*\.ndjson(\.gz|\.open)?")
_ROWS_MAX = 4_096
_PIECE_BYTES = 1 << 20
# What zlib calls a gzip file.
_GZIP = 31


class File(NamedTuple):
    """A journal."""

    path: str
    length: int = 0


def files_at(paths: Sequence[str]) -> list[File]:
    """The journals at these paths (directories, files, patterns) and below, each once.

    Raises ConfigurationError if a path has none.
    """
    return list(dict.fromkeys(file for path in paths for file in _files_at(path)))


def read(file: File) -> Iterator[pa.RecordBatch]:
    """The rows of one file (ROWS); those of one kind stand together."""
    pair, day = about_name(file.path)
    rows = Rows(ROWS, file.path)
    for line in _lines(Path(file.path)):
        line_read = Rejected(TRUNCATED, "", None) if line is None else read_line(line)
        if isinstance(line_read, Rejected):
            rows.reject(line_read, pair, day)
        else:
            rows.add(line_read)
        if rows.count >= _ROWS_MAX:
            yield from rows.taken()
    yield from rows.taken()


def is_whole(path: Path) -> bool:
    """Whether a packed file can be unpacked to its end; not one that was taken away meanwhile."""
    try:
        source = path.open("rb", buffering=0)
    except FileNotFoundError:
        return False
    with source:
        return all(piece is not None for piece in _unpacked(source.read))


def _files_at(line_read: str) -> Iterator[File]:
    """The journal files that one path leads to. Raises ConfigurationError without any."""
    places = [Path(place).resolve() for place in matching(line_read)]
    if not any(place.exists() for place in places):
        raise ConfigurationError(NOWHERE.format(line_read))
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            for where, _, names in os.walk(place, followlinks=True):
                found += [Path(where, name) for name in sorted(names) if _JOURNAL.fullmatch(name)]
        # A pattern may take other files in; whoever names one wants it read.
        elif not is_pattern(line_read) or _JOURNAL.fullmatch(place.name):
            found.append(place)
    if not found:
        raise ConfigurationError(EMPTY.format(line_read))
    return (File(str(file), length_of(file)) for file in found)


def _lines(path: Path) -> Iterator[bytes | None]:
    """The whole lines of a file; None for what a packed file lacks: the rest of a line, and the end."""
    if path.suffix == OPEN and not path.exists():
        # It has been sealed since it was found.
        sealed = path.with_suffix(".gz")
        path = sealed if sealed.exists() else path.with_suffix("")
    rest = b""
    with path.open("rb", buffering=0) as source:
        for piece in _unpacked(source.read) if path.suffix == ".gz" else _pieces(source.read):
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
