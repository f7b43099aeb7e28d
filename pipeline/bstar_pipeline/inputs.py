"""The journals that a job reads, by the engine that reads them: their lines as typed rows, and their files.

On Spark its own reader and parser do it, wherever the files are (``bronze``, ``journal_files``). For the
local engine they are parsed here, by the parser of the records themselves.
"""

import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bstar.errors import ConfigurationError
from bstar_pipeline import bronze, engine, journal_files
from bstar_pipeline.local_journals import ROWS, SHAPE, TRUNCATED, files_at, is_whole, read
from bstar_pipeline.pair_rows import collected

# Rows of one row group.
_ROWS_MAX = 100_000
# What a URI takes as it is; Spark leaves letters of other alphabets as they are, too.
_PLAIN = "/:@&=+$,;!'()*~-_."


class Inputs(Protocol):
    """Journals, found once."""

    @property
    def files(self) -> Mapping[str, int]:
        """The length of each by its path, as Spark spells it."""

    def typed(self, files: Sequence[str]) -> DataFrame:
        """A row for each line of some of them, as ``bronze.typed`` says, or as ``bronze.common``.

        Raises an error of which ``journal_files.is_gone`` says so if a file is gone since it was listed.
        """

    def unpacked(self, packed: Sequence[str]) -> set[str]:
        """Those of some packed files (few) that can be unpacked to their end."""


def open_inputs(
    spark: SparkSession, paths: Sequence[str], since: dt.date | None = None, folder: Path | None = None
) -> Inputs:
    """The journals at ``paths``; with ``since`` without files that were closed before that day.

    Spark opens a file more than once, so it reads copies of open files, below ``folder``; without ``folder``
    the files themselves. Raises ConfigurationError if a path has none.
    """
    return _Local(spark, paths, since) if engine.is_local(spark) else _OnSpark(spark, paths, since, folder)


class _OnSpark:
    def __init__(
        self, spark: SparkSession, paths: Sequence[str], since: dt.date | None, folder: Path | None
    ) -> None:
        self._spark, self._folder = spark, folder
        self.files = journal_files.lengths(spark, journal_files.find_files(spark, paths, since))

    def typed(self, files: Sequence[str]) -> DataFrame:
        copies = {}
        # Where the driver runs here, this process sees the files that it listed.
        if self._folder is not None and hasattr(self._spark, "_jvm"):
            copies = journal_files.copied(files, self._folder / secrets.token_hex(8))
        lines = bronze.common(journal_files.lines_of(self._spark, files, copies))
        # Over Spark Connect only a question about the plan finds out that a file is gone.
        _ = lines.columns
        return lines

    def unpacked(self, packed: Sequence[str]) -> set[str]:
        if journal_files.are_here(self._spark, packed):
            return {file for file in packed if is_whole(journal_files.place_of(file))}
        return {row["file"] for row in collected(journal_files.unpacked(self._spark, packed))}


class _Local:
    def __init__(self, spark: SparkSession, paths: Sequence[str], since: dt.date | None) -> None:
        if not paths:
            raise ConfigurationError("no journals to read: name at least one directory, file or pattern")
        self._spark = spark
        self._journals = {
            _uri(file.path): file
            for file in files_at(paths)
            if since is None or not journal_files.is_before(file.path, since)
        }
        if not self._journals:
            raise ConfigurationError(
                f"no journals to read: all files at {', '.join(paths)} are older than {since}"
            )
        self.files = {uri: file.length for uri, file in self._journals.items()}
        self._torn: set[str] = set()

    def typed(self, files: Sequence[str]) -> DataFrame:
        """Of a file beside the tables, so that no size of journals is too much for memory."""
        lines = engine.scratch(self._spark) / "lines.parquet"
        with pq.ParquetWriter(lines, ROWS, compression="lz4") as out:
            waiting, count = [], 0
            for uri in files:
                for batch in read(self._journals[uri]):
                    waiting.append(self._whole(batch, uri))
                    count += batch.num_rows
                    if count >= _ROWS_MAX:
                        out.write_table(pa.Table.from_batches(waiting, ROWS))
                        waiting, count = [], 0
            out.write_table(pa.Table.from_batches(waiting, ROWS))
        return self._spark.read.schema(SHAPE).parquet(str(lines))

    def _whole(self, batch: pa.RecordBatch, uri: str) -> pa.RecordBatch:
        """Without the row that stands for a missing end, and the file as Spark spells it."""
        reasons = batch.column("rejection")
        if len(reasons) and reasons[-1].as_py() == TRUNCATED:
            self._torn.add(uri)
            batch = batch.slice(0, len(reasons) - 1)
        place = batch.schema.get_field_index("file")
        files = pa.repeat(pa.scalar(uri, pa.string()), batch.num_rows)
        return batch.set_column(place, "file", files)

    def unpacked(self, packed: Sequence[str]) -> set[str]:
        return {*packed} - self._torn


def _uri(path: str) -> str:
    return "file:" + "".join(letter if ord(letter) > 127 else quote(letter, safe=_PLAIN) for letter in path)
