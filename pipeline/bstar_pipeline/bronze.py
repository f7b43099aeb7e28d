"""Bronze: the lines of journals as typed records, with what could not be read beside them; none is dropped.

``read`` makes rows of one file, on every engine: the local engine calls it in this process, Spark in Python
on its executors, which get the files packed as they are. ``write`` puts the rows where the tables are, if
that is a folder; they do not come through an engine then. ``copies`` leaves out what came twice.
"""

import secrets
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the common name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, StringType, StructField, StructType

from bstar_pipeline.commits import OPEN, File, journal_of
from bstar_pipeline.lines import ROWS, batches, cut
from bstar_pipeline.schema import DISTINCT, REJECTED

WRITTEN = StructType(
    [StructField(name, DateType() if name == "day" else StringType()) for name in File._fields]
)
"""``File`` as a row."""

_PIECE_BYTES = 1 << 20
# What zlib calls a gzip file.
_GZIP = 31
# So many rows wait in memory; those of one file of a table are a row group then.
_WAITING_MAX = 200_000
_OPEN_MAX = 64
_INDEXED = [name for name in ROWS.names if name not in DISTINCT]


def read(file: str, take: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of the file of this name (``lines.batches``); ``take`` gives its next bytes.

    A packed file without its end has one row more, of topic "truncated".
    """
    rest = b""
    for piece in _unpacked(take) if file.endswith(".gz") else iter(partial(take, _PIECE_BYTES), b""):
        if piece is None:
            yield cut(file)
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from batches(lines, file)
    if rest:
        yield from batches([rest], file)


def write(found: Iterable[tuple[str, Iterable[pa.RecordBatch]]], folder: Path, below: str) -> list[File]:
    """Write the rows of files, by name, to Parquet files ``below`` the folder of all tables."""
    waiting: defaultdict[File, list[pa.RecordBatch]] = defaultdict(list)
    out: dict[File, pq.ParquetWriter] = {}
    files: list[File] = []
    count = 0
    (folder / below).mkdir(parents=True, exist_ok=True)

    def flush() -> None:
        for key, parts in waiting.items():
            if key not in out:
                files.append(key._replace(path=f"{below}/{key.topic}-{secrets.token_hex(8)}.parquet"))
                out[key] = pq.ParquetWriter(folder / files[-1].path, ROWS, use_dictionary=_INDEXED)
            out[key].write_table(pa.Table.from_batches(parts))
        waiting.clear()

    def close() -> None:
        for writer in out.values():
            writer.close()
        out.clear()

    try:
        for name, rows in found:
            for batch in rows:
                for key, part in _parted(batch):
                    waiting[key._replace(journal=journal_of(name))].append(part)
                count += batch.num_rows
                if count >= _WAITING_MAX:
                    flush()
                    count = 0
                if len(out) > _OPEN_MAX:
                    close()
        flush()
    finally:
        close()
    return files


def on_executor(
    names: Mapping[str, str], target: tuple[Path, str] | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """``read`` for ``mapInArrow``: of rows of a path and its content; or what ``write`` wrote.

    ``names``: of what is a copy of another file, that one's.
    """
    contents = ((path.as_py(), content) for batch in batches for path, content in zip(*batch, strict=True))
    found = (
        (name, read(name, pa.BufferReader(content.as_buffer()).read))
        for name, content in ((names.get(path, path), content) for path, content in contents)
    )
    if target is None:
        yield from (batch for _, rows in found for batch in rows)
        return
    files = [file._asdict() for file in write(found, *target)]
    yield from pa.Table.from_pylist(files, to_arrow_schema(WRITTEN)).to_batches()


def rejected(lines: DataFrame) -> DataFrame:
    """The invalid lines, with the columns of the table of rejected lines."""
    of_others = lines.where(F.col("topic") == REJECTED)
    version = F.col("v").try_cast("int").alias("version")
    return of_others.select("file", F.col("rejection").alias("reason"), version, "line", "day", "pair")


def journal() -> Column:
    """``commits.journal_of`` of column ``file``."""
    return F.when(F.col("file").endswith(OPEN), F.md5("file")).otherwise(F.lit("sealed"))


def _parted(batch: pa.RecordBatch) -> Iterator[tuple[File, pa.RecordBatch]]:
    """The rows of a batch by the file of a table that they go to."""
    keys = batch.select(["day", "pair", "topic"])
    # Of nearly all batches all rows go to one.
    is_one = all(len(column.unique()) == 1 for column in keys.columns)
    found = (
        keys.slice(0, 1)
        if is_one
        else pa.Table.from_batches([keys]).group_by(keys.schema.names).aggregate([])
    )
    for row in found.to_pylist():
        of_key = [pc.equal(batch.column(name), value) for name, value in row.items()]
        part = batch if is_one else batch.filter(pc.and_(pc.and_(of_key[0], of_key[1]), of_key[2]))
        yield File(row["day"], row["pair"], "", row["topic"]), part


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
