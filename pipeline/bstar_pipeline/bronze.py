"""Bronze: the lines of journals as typed records, with what could not be read beside them; none is dropped.

``read`` makes rows of one file, on every engine: the local engine calls it in this process, Spark in Python
on its executors. They open files, or get them from other storage, packed as they are. ``write`` puts the rows
where the tables are, if that is a folder; they do not come through an engine then. ``copies`` leaves out what
came twice.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from bstar_pipeline import parquet
from bstar_pipeline.commits import OPEN, File, journal_of
from bstar_pipeline.journal_files import place_of
from bstar_pipeline.lines import ROWS, batches, cut
from bstar_pipeline.partitions import Made, Stored, queried
from bstar_pipeline.schema import REJECTED, table_schema

# Unpacked they are 15 times as long, and parsed together.
_PIECE_BYTES = 1 << 19
# What zlib calls a gzip file.
_GZIP = 31


def read(file: str, take: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of the file of this name (``lines.batches``); ``take`` gives its next bytes.

    A packed file without its end has one row more, of topic "truncated".
    """
    rest = b""
    for piece in _unpacked(take) if file.endswith(".gz") else iter(partial(take, _PIECE_BYTES), b""):
        if piece is None:
            yield cut(file)
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


def with_journal(shape: StructType) -> StructType:
    """These columns, and "journal", which is ``JOURNAL``."""
    return StructType([*shape.fields, StructField("journal", StringType())])


def rejected(lines: Stored, but_of: Sequence[str]) -> Made:
    """The table of rejected lines, with their journal, without those of some files."""
    rows = lines.take("file", "rejection", "v", "line", "day", "pair", where=f"topic = '{REJECTED}'")
    query = (
        f"SELECT file, rejection, try_cast(v AS INTEGER), line, day, pair, {JOURNAL} AS journal FROM rows "  # noqa: S608
        "WHERE file NOT IN (SELECT file FROM left_out)"
    )
    left_out = {"left_out": pa.table({"file": pa.array(but_of, pa.string())})}
    return queried(rows, (), query, with_journal(table_schema("bronze.rejected")), tables=left_out)


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
