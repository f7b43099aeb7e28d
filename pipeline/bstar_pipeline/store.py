"""The tables on disk, as both engines read and write them: Parquet files that a run's manifest names.

``day`` and ``pair`` are columns of the files, so a list of files is all that a reader needs. What
``bstar_pipeline.commits`` says about runs and the pointer holds for every storage; the small files go through
a ``Folder`` of this machine, or what the driver's Hadoop connectors know (s3a, hdfs, …).
"""

import datetime as dt
import re
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the common name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bstar.errors import ConfigurationError
from bstar_pipeline import commits, parquet, partitions
from bstar_pipeline.commits import File, Folder, Manifest, Part, Snapshot
from bstar_pipeline.partitions import Made, Row, Stored, queried, text
from bstar_pipeline.schema import DISTINCT, table_schema

# Each open file buffers one.
_ROW_GROUP_BYTES = 32 * 1024 * 1024
# The folders of a table's files are named after copies of its partition columns: those stay in the files.
_OF_FOLDER = "of_"


def open_store(spark: SparkSession | None, root: str) -> Folder:
    """The storage of a root. Raises ConfigurationError if this session cannot reach it."""
    folder = commits.folder_named(root)
    if folder is not None:
        return Folder(folder)
    if spark is None:
        raise ConfigurationError(f"the local engine reads and writes folders of this machine, not {root}")
    if not hasattr(spark, "_jvm"):
        raise ConfigurationError(
            f"{root}: over Spark Connect tables are in a folder that the server and this machine share. Give "
            "one, or use --master"
        )
    return _Hadoop(spark, root)


def snapshot(spark: SparkSession | None, root: str) -> Snapshot:
    """The tables of the current run. Raises ConfigurationError if there are no tables."""
    return commits.open_snapshot(open_store(spark, root), root)


def stored(
    spark: SparkSession | None, tables: Snapshot, name: str, parts: Collection[Part] | None = None
) -> Stored:
    """A table of a run, or its rows of ``parts``; no row if it was never written."""
    return stored_files(spark, tables, tables.files(name, parts), table_schema(name))


def stored_files(
    spark: SparkSession | None, tables: Snapshot, files: Iterable[str], shape: StructType
) -> Stored:
    """These files of tables."""
    is_here = commits.folder_named(tables.root) is not None
    if is_here:
        # Executors may work in another directory.
        files = [str(path.absolute()) for path in map(commits.folder_named, files) if path is not None]
    return partitions.stored(spark, files, shape, is_here=is_here)


def of_pairs(values: Mapping[str, str]) -> str:
    """What of these expressions is of a row's pair, in SQL."""
    cases = (f"WHEN {text(pair)} THEN {value}" for pair, value in sorted(values.items()))
    return f"CASE pair {' '.join(cases)} END"


class Writer:
    """A run that writes. ``before`` are the tables that are there; ``commit`` replaces them."""

    def __init__(self, store: Folder, root: str) -> None:
        self.root = root.rstrip("/")
        self.before = commits.current(store, root) or commits.NOTHING
        self.past = Snapshot(self.root, self.before)
        self.run = commits.new_run(dt.datetime.now(dt.UTC))
        self._store = store
        self._tables: dict[str, list[File]] = {}
        self.is_committing = False

    def write(self, made: Made, name: str, *, by: Sequence[str] = ()) -> list[File]:
        """Write rows to files of this run, which no table has yet; executors do if they reach the folder.

        ``by``: "topic" or "journal", columns that part files further.
        """
        root = commits.folder_named(self.root)
        if root is None:
            return self.write_frame(made.frame, self._below(name), by)
        return made.write(root.resolve(), self._below(name), by)

    def _below(self, name: str) -> str:
        """A new folder for files of a table."""
        return f"{commits.folder_of(self.run)}/{name.replace('.', '/')}/{secrets.token_hex(4)}"

    def write_frame(self, frame: DataFrame, below: str, by: Sequence[str]) -> list[File]:
        """The same by Spark, to a folder below the root."""
        keys = ("day", "pair", *by)
        copies = (F.col(key).alias(_OF_FOLDER + key) for key in keys)
        rows = frame.select("*", *copies).write.partitionBy(*(_OF_FOLDER + key for key in keys))
        rows.option("parquet.block.size", _ROW_GROUP_BYTES).options(
            **{f"parquet.enable.dictionary#{column}": "false" for column in DISTINCT}
        ).parquet(f"{self.root}/{below}")
        files = []
        for path in self._store.files(below):
            # Spark spells what a file system might not take as %XX.
            found = {
                key: unquote(value) for key, value in re.findall(rf"/{_OF_FOLDER}([a-z]+)=([^/]*)", path)
            }
            if path.endswith(".parquet") and len(found) == len(keys):
                day = dt.date.fromisoformat(found.pop("day"))
                files.append(File(day, found.pop("pair"), path, **found))
        return files

    def write_rows(self, rows: Iterable[Row], name: str, *, by: Sequence[str] = ()) -> list[File]:
        """The same of a table that is small: the driver writes its files, without a query."""
        below = self._below(name)
        schema = to_arrow_schema(table_schema(name), timezone="UTC")
        columns = pa.schema([*schema, *(pa.field(key, pa.string()) for key in by)])
        batches = pa.Table.from_pylist(list(rows), columns).to_batches()
        root = commits.folder_named(self.root)
        if root is not None:
            return parquet.write(batches, schema, root, below, by=by)
        with TemporaryDirectory() as folder:
            files = parquet.write(batches, schema, Path(folder), below, by=by)
            for file in files:
                self._store.put(file.path, Path(folder, file.path).read_bytes())
        return files

    def keep(self, name: str, files: Iterable[File]) -> None:
        """Make these the files of a table."""
        self._tables[name] = sorted(files)

    def make(self, name: str, parts: Collection[Part], *mades: Made, more: Iterable[Row] = ()) -> None:
        """Write a table anew for ``parts``, and ``more`` rows; other days and pairs stay as they are."""
        files = self.carried(name, parts)
        for made in mades:
            assert made.shape == table_schema(name), f"not the columns of {name}: {made.shape}"
            files += self.write(made, name)
        self.keep(name, [*files, *self.write_rows(more, name)])

    def carried(self, name: str, parts: Collection[Part]) -> list[File]:
        """The files of a table, as they will be, of days and pairs outside ``parts``."""
        files = self._tables.get(name, self.before.tables.get(name, []))
        return [file for file in files if file.part not in parts]

    @property
    def tables(self) -> Snapshot:
        """The tables as they will be: those that this run wrote, and the others as they are."""
        return Snapshot(self.root, self._manifest())

    def commit(self, **changes: Any) -> Manifest:
        """Make this run the current one, with these fields of its manifest; remove what no reader needs."""
        self.is_committing = True
        manifest = msgspec.structs.replace(self._manifest(), **changes)
        commits.commit(self._store, self.root, manifest)
        commits.sweep(self._store, self.root, dt.datetime.now(dt.UTC))
        return manifest

    def _manifest(self) -> Manifest:
        return msgspec.structs.replace(
            self.before,
            run=self.run,
            before=self.before.run,
            at=dt.datetime.now(dt.UTC),
            tables={**self.before.tables, **self._tables},
        )


@contextmanager
def writing(spark: SparkSession | None, root: str) -> Iterator[Writer]:
    """A run that may write below ``root``. Raises ConfigurationError if another one does."""
    store = open_store(spark, root)
    with store.locked():
        writer = Writer(store, root)
        try:
            yield writer
        except BaseException:
            # Whether a commit that failed has replaced the pointer, nothing may tell.
            if not writer.is_committing:
                store.remove(store.files(commits.folder_of(writer.run)))
            raise


def compact(spark: SparkSession | None, root: str) -> int:
    """Put the files of a table that are of one day and pair together. Returns how many files those were."""
    with writing(spark, root) as writer:
        merged = 0
        for name, files in writer.before.tables.items():
            together: defaultdict[File, list[File]] = defaultdict(list)
            for file in files:
                together[file._replace(path="")].append(file)
            kept = []
            for group, of_group in together.items():
                if len(of_group) == 1:
                    kept += of_group
                    continue
                shape = table_schema(name)
                rows = stored_files(spark, writer.past, map(writer.past.path, of_group), shape)
                # All have these keys, so one partition has them.
                whole = queried(rows, ("day", "pair"), "FROM rows", shape)
                kept += [group._replace(path=file.path) for file in writer.write(whole, name)]
                merged += len(of_group)
            writer.keep(name, kept)
        if merged:
            writer.commit()
    return merged


def retain(spark: SparkSession | None, root: str, since: dt.date) -> int:
    """Take the days before ``since`` out of all tables. Returns how many days and pairs those were.

    The manifest keeps ``since``, so no later run brings them back.
    """
    with writing(spark, root) as writer:
        old = {file.part for files in writer.before.tables.values() for file in files if file.day < since}
        horizon = max(since, writer.before.horizon)
        if old or horizon > writer.before.horizon:
            for name in writer.before.tables:
                writer.keep(name, writer.carried(name, old))
            made = [one for one in writer.before.made if one.part not in old]
            writer.commit(made=made, unmade=sorted({*writer.before.unmade} - old), horizon=horizon)
    return len(old)


class _Hadoop(Folder):
    """The same by the driver's own connectors: they have the addresses and keys that its tables need."""

    # A store of objects shows an object when it is whole. These write in place, and rename in one act.
    _FILE_SYSTEMS = ("hdfs", "viewfs", "webhdfs", "file")

    def __init__(self, spark: SparkSession, root: str) -> None:
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no other way to files
        self._gateway = gateway
        self._hadoop: Any = gateway.jvm.org.apache.hadoop.fs
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._fs: Any = self._hadoop.Path(root).getFileSystem(self._conf)
        self._below: str = self._fs.makeQualified(self._hadoop.Path(root)).toString().rstrip("/")

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(f"{self._below}/{path}")

    def get(self, path: str) -> bytes | None:
        try:
            source = self._fs.open(self._path(path))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise
        try:
            return bytes(source.readAllBytes())
        finally:
            source.close()

    def put(self, path: str, content: bytes) -> None:
        is_renamed = self._fs.getScheme() in self._FILE_SYSTEMS
        target = self._path(path)
        written = self._path(f"{path}.{secrets.token_hex(4)}") if is_renamed else target
        out = self._fs.create(written, True)
        try:
            out.write(bytearray(content))
        finally:
            out.close()
        if is_renamed:
            rename = self._hadoop.Options.Rename
            options = self._gateway.new_array(rename, 1)
            options[0] = rename.OVERWRITE
            self._hadoop.FileContext.getFileContext(self._fs.getUri(), self._conf).rename(
                written, target, options
            )

    def files(self, folder: str) -> list[str]:
        if not self._fs.exists(self._path(folder)):
            return []
        found, listing = [], self._fs.listFiles(self._path(folder), True)
        while listing.hasNext():
            found.append(listing.next().getPath().toString().removeprefix(f"{self._below}/"))
        return sorted(found)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._fs.delete(self._path(path), False)

    def settle(self, paths: Iterable[str]) -> None:
        """What these stores have taken, they have on disk."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """There are no locks, so ``commits.commit`` refuses the later of two runs."""
        yield
