"""Tables that are defined once, in DuckDB's SQL, and made partition by partition.

``Stored`` are rows that lie in files of tables; ``queried`` is what a query makes of them. Rows of equal keys
come to one partition, and DuckDB makes the table's rows of it: on Spark in Python on its executors. Without a
session of Spark the local engine does it, one partition after the other, in this process. A plan of Spark is
a list of files, a shuffle and a step or two of Python, whatever the query.

Spark shuffles shares of rows, each a batch of Arrow as Python made it, and never takes one apart.

Where tables are in a folder, DuckDB reads their files, and Python writes those of new ones: rows come through
Spark only where it shuffles them. From other storage Spark reads, and there it writes. DuckDB spills to disk
what does not fit in its memory.
"""

from __future__ import annotations

import glob
import secrets
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from bstar_pipeline import parquet
from bstar_pipeline.commits import File

# ruff: noqa: S608 - all that is put into queries are constants, and names of files

Row = Mapping[str, Any]
"""A row, by column."""

Rows = Sequence[Row]

# Of each task.
_MEMORY_MAX = "1GB"
_PARTITION_ROWS = 400_000
# Of each a file is open.
_PARTITIONS_MAX = 256
# What DuckDB gives at once.
_BATCH_ROWS = 1 << 16
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")
_PLACE = types.StructType().add("choice", "integer").add("path", "string")
_SHARES = types.StructType().add("share", "integer").add("rows", "binary")


def text(value: str) -> str:
    """A text in SQL."""
    return "'" + value.replace("'", "''") + "'"


class _Choice(NamedTuple):
    """Files of a table with these columns; the columns or expressions, and the rows, that are taken of them.

    In SQL that DuckDB and Spark understand alike, but for the marks around names.
    """

    files: tuple[str, ...]
    shape: types.StructType
    columns: tuple[str, ...]
    condition: str = "true"

    def sql(self, files: Iterable[str]) -> str:
        """What is taken of these of its files, for DuckDB. A column that a file lacks is null."""
        columns = ", ".join(f'NULL::{_sql_type(each.dataType)} AS "{each.name}"' for each in self.shape)
        rows = f"SELECT {columns} WHERE false"
        names = ", ".join(text(glob.escape(file)) for file in files)
        if names:
            rows += f" UNION ALL BY NAME FROM read_parquet([{names}], union_by_name = true, "
            rows += "hive_partitioning = false)"
        return f"SELECT {', '.join(map(_quoted, self.columns))} FROM ({rows}) WHERE {self.condition}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """The same as Spark reads it."""
        names = (_quoted(column).replace('"', "`") for column in self.columns)
        rows = read_files(spark, self.files, self.shape).where(self.condition.replace('"', "`"))
        return rows.selectExpr(*names)


def _quoted(column: str) -> str:
    return f'"{column}"' if column.isidentifier() else column


def _sql_type(of: types.DataType) -> str:
    if isinstance(of, types.ArrayType):
        return f"{_sql_type(of.elementType)}[]"
    return "TIMESTAMPTZ" if isinstance(of, types.TimestampType) else of.simpleString()


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows in files of tables. ``is_here``: executors reach them by their paths."""

    spark: SparkSession | None
    choices: tuple[_Choice, ...]
    is_here: bool

    def take(self, *columns: str, where: str = "true") -> Stored:
        """These columns, or expressions with names, of the rows for which a condition holds."""
        chosen = (
            each._replace(columns=columns, condition=f"{each.condition} AND ({where})")
            for each in self.choices
        )
        return replace(self, choices=tuple(chosen))

    def joined(self, more: Stored | None) -> Stored:
        """All rows of both; a column that one lacks is null there."""
        return self if more is None else replace(self, choices=(*self.choices, *more.choices))

    @property
    def here(self) -> Stored:
        """The same for this process, if it reaches the files: for rows that are few, or take no work."""
        return replace(self, spark=None) if self.is_here else self

    @property
    def frame(self) -> DataFrame:
        """The rows as Spark reads them."""
        assert self.spark is not None, "the local engine has no frames"
        spark = self.spark
        frames = (each.frame(spark) for each in self.choices)
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)

    @property
    def files(self) -> list[dict[str, Any]]:
        """A row for each file. Those of one topic are not side by side: each partition has some of all."""
        found = [
            {"choice": number, "path": path}
            for number, choice in enumerate(self.choices)
            for path in choice.files
        ]
        return sorted(found, key=lambda row: str(row["path"])[::-1])


def stored(
    spark: SparkSession | None, files: Iterable[str], shape: types.StructType, *, is_here: bool
) -> Stored:
    """All rows of these files."""
    return Stored(spark, (_Choice(tuple(files), shape, tuple(shape.names)),), is_here)


@dataclass(frozen=True, slots=True)
class _Query:
    """``given``: the columns of the rows that it is about; or ``choices``: files that it reads itself."""

    text: str
    given: pa.Schema | None
    choices: tuple[_Choice, ...] = ()
    tables: Mapping[str, pa.Table] | None = None
    values: Mapping[str, Any] | None = None
    keys: Sequence[str] = ()
    """Of files: those rows that have equal keys are needed together, and others are not."""
    is_shared: bool = False
    """The rows come as shares."""

    def shape(self) -> pa.Schema:
        """The columns of what it finds."""
        with self._found(()) as found:
            return found.schema

    def rows(self, made: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What it finds in the batches of a partition, in these columns."""
        if self.keys:
            batches = list(batches)
            count = self._partitions(batches)
            if count > 1:
                yield from self._one_by_one(made, batches, count)
                return
        with self._found(batches) as found:
            yield from _as(made, found)

    def shared(
        self, made: pa.Schema, keys: Sequence[str], count: int, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The same in so many shares of rows of equal keys (``_SHARES``)."""
        for number, rows in self._parted(made, keys, count, batches):
            packed = pa.BufferOutputStream()
            with pa.ipc.new_stream(packed, made, options=_PACKED) as stream:
                stream.write_batch(rows)
            share = {"share": [number], "rows": [packed.getvalue().to_pybytes()]}
            yield pa.RecordBatch.from_pydict(share, schema=_arrow(_SHARES))

    def _parted(
        self, made: pa.Schema, keys: Sequence[str], count: int, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows, and which of so many shares they are of."""
        query = f"SELECT *, (hash({', '.join(keys)}) % {count})::INTEGER AS share FROM ({self.text})"
        of_all = replace(self, text=query)
        with _Query._found(of_all, batches) as found:
            for batch in found:
                ordered = batch.sort_by("share")
                (rows,) = _as(made, [pa.RecordBatch.from_arrays(ordered.columns[:-1], made.names)])
                begin = 0
                for share in ordered.column("share").value_counts().to_pylist():
                    yield share["values"], rows.slice(begin, share["counts"])
                    begin += share["counts"]

    def _one_by_one(
        self, made: pa.Schema, places: Sequence[pa.RecordBatch], count: int
    ) -> Iterator[pa.RecordBatch]:
        """What it finds in each of so many partitions of files, of which a temporary folder has the rows."""
        whole = _Query("FROM rows", None, self.choices)
        shape = whole.shape()
        with TemporaryDirectory(prefix="bstar-shares-") as folder:
            paths = [f"{folder}/{number}" for number in range(count)]
            with ExitStack() as opened:
                files = [
                    opened.enter_context(pa.ipc.new_stream(path, shape, options=_PACKED)) for path in paths
                ]
                for number, rows in whole._parted(shape, self.keys, count, places):
                    files[number].write_batch(rows)
            asked = replace(self, given=shape, choices=(), keys=())
            for path in paths:
                with pa.ipc.open_stream(path) as rows:
                    yield from asked.rows(made, rows)

    def written(
        self, made: pa.Schema, folder: Path, below: str, by: Sequence[str], batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The files to which that was written."""
        yield from parquet.rows_of(parquet.write(self.rows(made, batches), made, folder, below, by=by))

    def _partitions(self, places: Iterable[pa.RecordBatch]) -> int:
        """How many partitions the rows of files need to fit in memory: what is spilled takes longer."""
        paths = (path for batch in places for path in batch.column("path").to_pylist())
        if sum(pq.read_metadata(path).num_rows for path in paths) <= _PARTITION_ROWS:
            return 1
        keys = f"approx_count_distinct(hash({', '.join(self.keys)}))"
        counts = replace(self, text=f"SELECT count(*) AS rows, {keys} AS keys FROM rows", values=None)
        with _Query._found(counts, places) as found:
            (counted,) = found.read_all().to_pylist()
        needed = min(-(-int(counted["rows"]) // _PARTITION_ROWS), int(counted["keys"]), _PARTITIONS_MAX)
        return max(1, needed)

    @contextmanager
    def _found(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatchReader]:
        with _database() as duck:
            for name, table in (self.tables or {}).items():
                duck.register(name, table)
            if self.given is None:
                duck.execute(f"CREATE TEMP VIEW rows AS {_of_files(self.choices, batches)}")
            else:
                if self.is_shared:
                    packed = (each.as_buffer() for batch in batches for each in batch.column("rows"))
                    batches = chain.from_iterable(map(pa.ipc.open_stream, packed))
                reader = pa.RecordBatchReader.from_batches(self.given, _as(self.given, batches))
                duck.register("rows", reader)
            yield duck.sql(self.text, params=self.values or {}).to_arrow_reader(_BATCH_ROWS)


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, without a table. Opening one takes 40 CPU ms, so the next query gets it."""
    try:
        whole, spill = _idle.pop()
    except IndexError:
        spill = Path(gettempdir(), f"bstar-spill-{secrets.token_hex(8)}")
        config: dict[str, Any] = {"threads": 1, "memory_limit": _MEMORY_MAX}
        config |= {"enable_external_file_cache": False, "temp_directory": str(spill)}
        whole = duckdb.connect(config=config)
        whole.execute("SET GLOBAL TimeZone = 'UTC'")
    is_kept = False
    try:
        with whole.cursor() as duck:
            yield duck
        # Processes of Spark are killed at their end: one that has spilled would leave its folder.
        is_kept = not spill.exists()
    finally:
        if is_kept:
            _idle.append((whole, spill))
        else:
            whole.close()
            shutil.rmtree(spill, ignore_errors=True)


_idle: list[tuple[duckdb.DuckDBPyConnection, Path]] = []


def _of_files(choices: Sequence[_Choice], batches: Iterable[pa.RecordBatch]) -> str:
    """The rows of files (``Stored.files``)."""
    files: defaultdict[int, list[str]] = defaultdict(list)
    for batch in batches:
        for row in batch.to_pylist():
            files[row["choice"]].append(row["path"])
    return " UNION ALL BY NAME ".join(each.sql(files[number]) for number, each in enumerate(choices))


_Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Made:
    """What a query finds in each partition of ``rows``, in the columns of ``shape``.

    The local engine has one partition, whose batches ``rows`` gives.
    """

    rows: DataFrame | Callable[[], Iterable[pa.RecordBatch]]
    query: _Query
    shape: types.StructType

    @property
    def frame(self) -> DataFrame:
        """It as a frame of Spark."""
        assert isinstance(self.rows, DataFrame), "the local engine has no frames"
        return self.rows.mapInArrow(partial(self.query.rows, _arrow(self.shape)), self.shape)

    def shares(self, keys: Sequence[str]) -> DataFrame:
        """It as a frame of shares, as many as there are partitions."""
        assert isinstance(self.rows, DataFrame), "the local engine has no shares"
        count = int(self.rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        return self.rows.mapInArrow(partial(self.query.shared, _arrow(self.shape), keys, count), _SHARES)

    def batches(self) -> Iterable[pa.RecordBatch]:
        """It in this process."""
        return self._asked(partial(self.query.rows, _arrow(self.shape)), self.shape)

    def collected(self) -> Rows:
        """Its rows, if they are few."""
        return _listed(self.batches())

    def changed(self, condition: str, **columns: str) -> Made:
        """The rows for which the condition holds, with other expressions for columns."""
        names = ", ".join(f'"{name}"' for name in self.shape.names)
        others = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
        query = f"SELECT * REPLACE ({others}) FROM ({self.query.text}) AS made({names}) WHERE {condition}"
        return replace(self, query=replace(self.query, text=query))

    def write(self, folder: Path, below: str, by: Sequence[str] = ()) -> list[File]:
        """Write it to files ``below`` the folder of all tables, as ``parquet.write`` says."""
        write = partial(self.query.written, _arrow(self.shape), folder, below, by)
        return [File(**row) for row in _listed(self._asked(write, parquet.WRITTEN))]

    def _asked(self, step: _Step, shape: types.StructType) -> Iterable[pa.RecordBatch]:
        """What a step makes of each partition, in this process."""
        if isinstance(self.rows, DataFrame):
            batches: list[pa.RecordBatch] = self.rows.mapInArrow(step, shape).toArrow().to_batches()
            return batches
        return step(self.rows())

    def summed(self, query: str) -> Rows:
        """What a query makes, here, of all its rows; those are few."""
        whole = _Query(query, _arrow(self.shape))
        return _listed(whole.rows(whole.shape(), self.batches()))


def queried(
    rows: Stored | Made | Sequence[Made],
    keys: Sequence[str],
    query: str,
    shape: types.StructType | None = None,
    *,
    tables: Mapping[str, pa.Table] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Made:
    """What the query finds in ``rows``: those that have equal ``keys``, and others. Without ``keys`` no row
    is moved, and those of a partition are together.

    ``tables``: small ones that the query joins, by name. ``values``: its parameters. Its columns are in the
    order of ``shape``; without one they are as the query has them. It may name ``rows`` once.
    """
    parts = [_whole(rows)] if isinstance(rows, Stored) else [rows] if isinstance(rows, Made) else rows
    first = parts[0]
    is_local = not isinstance(first.rows, DataFrame)
    source = first.rows
    if isinstance(rows, Stored) and (is_local or not keys):
        asked = replace(first.query, text=query, tables=tables, values=values, keys=keys)
    else:
        asked = _Query(query, _arrow(first.shape), (), tables, values, is_shared=bool(keys) and not is_local)
        if is_local:
            source = lambda: chain.from_iterable(part.batches() for part in parts)  # noqa: E731
        elif keys:
            source = reduce(DataFrame.union, (part.shares(keys) for part in parts)).repartition("share")
        else:
            source = reduce(DataFrame.union, (part.frame for part in parts))
    return Made(source, asked, shape or from_arrow_schema(asked.shape()))


def _whole(rows: Stored) -> Made:
    """All that is stored."""
    if rows.spark is not None and not rows.is_here:
        frame = rows.frame
        return Made(frame, _Query("FROM rows", _arrow(frame.schema)), frame.schema)
    query = _Query("FROM rows", None, rows.choices)
    places = pa.Table.from_pylist(rows.files, _arrow(_PLACE))
    source = places.to_batches if rows.spark is None else rows.spark.createDataFrame(places, _PLACE)
    return Made(source, query, from_arrow_schema(query.shape()))


def _listed(batches: Iterable[pa.RecordBatch]) -> Rows:
    return [row for batch in batches for row in batch.to_pylist()]


def _arrow(shape: types.StructType) -> pa.Schema:
    return to_arrow_schema(shape, timezone="UTC")


def _as(shape: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Engines spell the types of one column differently: texts, and whether there may be nulls."""
    for batch in batches:
        columns = (column.cast(field.type) for column, field in zip(batch.columns, shape, strict=True))
        yield pa.RecordBatch.from_arrays(list(columns), schema=shape)


def literal(path: str) -> str:
    """A path that names this file alone for Spark, also if a pattern would have the same letters."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def read_files(spark: SparkSession, files: Iterable[str], shape: types.StructType) -> DataFrame:
    """Files of a table as one frame."""
    found = [literal(file) for file in files]
    # Without a file it is made without Python on the executors.
    empty = (F.lit(None).cast(field.dataType).alias(field.name) for field in shape)
    return spark.read.schema(shape).parquet(*found) if found else spark.range(0).select(*empty)


def offsets(runs: Rows) -> pa.Table:
    """What the clock of each run lacks, for queries: boot, offset_us."""
    return pa.Table.from_pylist(list(runs), pa.schema({"boot": pa.string(), "offset_us": pa.int64()}))


def grouped(rows: Iterable[Row], *columns: str) -> defaultdict[Any, list[Row]]:
    """Rows by the value of a column, or by those of several."""
    found: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[itemgetter(*columns)(row)].append(row)
    return found
