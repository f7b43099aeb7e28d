"""Rows of tables as Parquet files, which Python writes itself: they do not come through an engine then."""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, StringType, StructField, StructType

from bstar_pipeline.commits import File
from bstar_pipeline.schema import DISTINCT

WRITTEN = StructType(
    [StructField(name, DateType() if name == "day" else StringType()) for name in File._fields]
)
"""``File`` as a row."""

# So many rows wait in memory; those of one file of a table are a row group then.
_WAITING_MAX = 200_000
_OPEN_MAX = 64


def write(
    found: Iterable[pa.RecordBatch], shape: pa.Schema, folder: Path, below: str, *, by: Sequence[str] = ()
) -> list[File]:
    """Write rows in these columns to files ``below`` the folder of all tables, one or more for each day and
    pair. ``by``: "topic" or "journal", columns that part files further; no file has the second.
    """
    waiting: defaultdict[File, list[pa.RecordBatch]] = defaultdict(list)
    out: dict[File, pq.ParquetWriter] = {}
    files: list[File] = []
    count = 0
    shape = pa.schema([field for field in shape if field.name != "journal"])
    indexed = [name for name in shape.names if name not in DISTINCT]
    (folder / below).mkdir(parents=True, exist_ok=True)

    def flush() -> None:
        for key, parts in waiting.items():
            if key not in out:
                name = f"{key.topic or 'rows'}-{secrets.token_hex(8)}.parquet"
                files.append(key._replace(path=f"{below}/{name}"))
                out[key] = pq.ParquetWriter(folder / files[-1].path, shape, use_dictionary=indexed)
            out[key].write_table(pa.Table.from_batches(parts).select(shape.names))
        waiting.clear()

    def close() -> None:
        for writer in out.values():
            writer.close()
        out.clear()

    try:
        for batch in found:
            for key, part in _parted(batch, ("day", "pair", *by)):
                waiting[key].append(part)
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


def rows_of(files: Iterable[File]) -> Iterator[pa.RecordBatch]:
    """``WRITTEN`` of files."""
    rows = [file._asdict() for file in files]
    yield from pa.Table.from_pylist(rows, to_arrow_schema(WRITTEN)).to_batches()


def _parted(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[File, pa.RecordBatch]]:
    """The rows of a batch by the file of a table that they go to."""
    keys = batch.select(list(by))
    # Of nearly all batches all rows go to one.
    if all(len(column.unique()) == 1 for column in keys.columns):
        yield File(path="", **keys.slice(0, 1).to_pylist()[0]), batch
        return
    for row in pa.Table.from_batches([keys]).group_by(keys.schema.names).aggregate([]).to_pylist():
        chosen = reduce(pc.and_, (pc.equal(batch.column(name), value) for name, value in row.items()))
        yield File(path="", **row), batch.filter(chosen)
