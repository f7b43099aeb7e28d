"""The journals that a job reads, by the engine that reads them: which files there are, and their rows.

Both parse by ``bronze.read``: Spark on its executors, wherever the files are, the local engine here.
"""

import datetime as dt
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the common name

from bstar.errors import ConfigurationError
from bstar_pipeline import bronze, journal_files, parquet, store
from bstar_pipeline.commits import OPEN, File, folder_named, folder_of
from bstar_pipeline.journal_files import Journal
from bstar_pipeline.lines import SHAPE

# What a URI takes as it is; Spark leaves letters of other alphabets as they are, too.
_PLAIN = "/:@&=+$,;!'()*~-_."


class Inputs(Protocol):
    """Journals, found once."""

    @property
    def files(self) -> Mapping[str, int]:
        """The length of each by its path, as Spark spells it."""

    def write(self, files: Sequence[str], writer: store.Writer) -> list[File]:
        """Write a row for each line of some of them, as ``bronze.read`` says, to files of the writer's run.

        Raises an error of which ``journal_files.is_gone`` says so if a file is gone since it was listed.
        """


def open_inputs(spark: SparkSession | None, paths: Sequence[str], since: dt.date | None = None) -> Inputs:
    """The journals at ``paths``; with ``since`` without files that were closed before that day.

    Raises ConfigurationError if a path has none.
    """
    return _Local(paths, since) if spark is None else _OnSpark(spark, paths, since)


class _OnSpark:
    def __init__(self, spark: SparkSession, paths: Sequence[str], since: dt.date | None) -> None:
        self._spark = spark
        self.files = journal_files.lengths(spark, journal_files.find_files(spark, paths, since))

    def write(self, files: Sequence[str], writer: store.Writer) -> list[File]:
        folder, run = folder_named(writer.root), folder_of(writer.run)
        copies: dict[str, str] = {}
        # Where the driver runs here, this process sees the files that it listed. Spark opens them later.
        if folder is not None and hasattr(self._spark, "_jvm"):
            copies = journal_files.copied(files, folder / run / "open" / secrets.token_hex(8))
        contents = journal_files.contents(self._spark, [copies.get(file, file) for file in files])
        names = {copy: file for file, copy in copies.items()}
        if folder is None:
            rows = contents.mapInArrow(partial(bronze.on_executor, names, None), SHAPE)
            rows = rows.withColumn("journal", F.expr(bronze.JOURNAL))
            return writer.write_frame(rows, f"{run}/lines", ("topic", "journal"))
        target = folder.resolve(), f"{run}/lines"
        written = contents.mapInArrow(partial(bronze.on_executor, names, target), parquet.WRITTEN)
        return [File(**row) for row in written.toArrow().to_pylist()]


class _Local:
    def __init__(self, paths: Sequence[str], since: dt.date | None) -> None:
        if not paths:
            raise ConfigurationError("no journals to read: name at least one directory, file or pattern")
        self._journals = {
            _uri(file.path): file
            for file in journal_files.files_at(paths)
            if since is None or not journal_files.is_before(file.path, since)
        }
        if not self._journals:
            raise ConfigurationError(
                f"no journals to read: all files at {', '.join(paths)} are older than {since}"
            )
        self.files = {uri: file.length for uri, file in self._journals.items()}

    def write(self, files: Sequence[str], writer: store.Writer) -> list[File]:
        folder = folder_named(writer.root)
        assert folder is not None, "the local engine writes to a folder"
        rows = ((uri, _rows(uri, self._journals[uri])) for uri in files)
        return bronze.write(rows, folder, f"{folder_of(writer.run)}/lines")


def _rows(uri: str, journal: Journal) -> Iterator[pa.RecordBatch]:
    path = Path(journal.path)
    if path.suffix == OPEN and not path.exists():
        # It has been sealed since it was found.
        sealed = path.with_suffix(".gz")
        path = sealed if sealed.exists() else path.with_suffix("")
    with path.open("rb", buffering=0) as source:
        yield from bronze.read(uri, source.read)


def _uri(path: str) -> str:
    return "file:" + "".join(letter if ord(letter) > 127 else quote(letter, safe=_PLAIN) for letter in path)
