"""The tables on disk: Parquet below one root, as ``bstar_pipeline.tables`` lays them out.

A write replaces the partitions that its rows belong to and leaves the others alone. A partition that a job
has nothing more for (a topic that vanished, a day without incidents now) would keep what an earlier run left
there; ``replace`` empties what belongs to the days and pairs that the job is about, so the same input twice
gives the same tables. Everything goes through DataFrames, so any file system and Spark Connect will do; what
is there is known from listings, and no data comes to the driver. Two jobs must not write to the same days and
pairs of one root at once.
"""

import datetime as dt
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from bstar.errors import ConfigurationError
from bstar_pipeline import engine, folders
from bstar_pipeline.places import Place
from bstar_pipeline.schema import table_schema
from bstar_pipeline.tables import TABLES

Part = tuple[dt.date, str]
"""A day and a pair: what a job replaces."""

# Each open file buffers one.
_ROW_GROUP_BYTES = 32 * 1024 * 1024
# Columns in which hardly a value comes twice. Parquet would look each of them up in a dictionary until it is
# too large, and then write them as they are.
_DISTINCT = (
    "seq", "at", "mono", "time", "number", "accepted_at_us", "ended_at_us", "total_us", "queued_us",
    "busy_us", "call_total_us",
)  # fmt: skip


def location(root: str, name: str) -> str:
    """Where the table ``name`` ("silver.requests") is."""
    return f"{root.rstrip('/')}/{TABLES[name].path}"


def read(
    spark: SparkSession,
    root: str,
    name: str,
    scope: Collection[Part] | None = None,
    *,
    more: StructType | None = None,
) -> DataFrame:
    """A table, or of it what belongs to ``scope``. Raises ConfigurationError if it was never written.

    ``more``: further columns that its files may have.
    """
    path = location(root, name)
    if engine.is_local(spark):
        path = str(_folder(path))
        if not Path(path).is_dir():
            raise _missing(name, path)
    try:
        frame = spark.read.schema(_columns(name, more)).parquet(path)
        # Over Spark Connect nobody looks before somebody asks.
        assert frame.schema.names
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise _missing(name, path) from error
    return frame if scope is None else frame.where(within(scope))


def _missing(name: str, path: str) -> ConfigurationError:
    return ConfigurationError(f"no table {name}: {path} does not exist. Run `bstar pipeline run` first")


def _folder(path: str) -> Path:
    """The folder of this machine that ``path`` names; the local engine knows no other."""
    place = Place.of(path)
    if place.base:
        raise ConfigurationError(f"the local engine reads and writes folders of this machine, not {path}")
    return Path(place.path)


def within(scope: Collection[Part]) -> Column:
    """Whether a row belongs to ``scope``: of partition columns alone, so no file of another is opened."""
    days_of: dict[str, list[dt.date]] = {}
    for day, pair in sorted(scope):
        days_of.setdefault(pair, []).append(day)
    # Pairs of the same days together: a hundred conditions, one in the other, are too deep for a plan.
    pairs_of: dict[tuple[dt.date, ...], list[str]] = {}
    for pair, days in days_of.items():
        pairs_of.setdefault(tuple(days), []).append(pair)
    return reduce(
        Column.__or__,
        (F.col("pair").isin(pairs) & F.col("day").isin(list(days)) for days, pairs in pairs_of.items()),
        F.lit(False),
    )


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did to a table's folders ("day=…/pair=…"), each with its day and pair.

    ``new`` have the rows now; ``old`` hold what an earlier write left there.
    """

    new: dict[str, Part]
    old: dict[str, Part]


def write(frame: DataFrame, root: str, name: str, *, more: StructType | None = None) -> Written:
    """Replace the partitions that the rows of ``frame`` belong to."""
    spark = frame.sparkSession
    shape = _columns(name, more)
    _check(frame, shape, name)
    path = location(root, name)
    before = _leaves(spark, path)
    rows = frame.select(*shape.names).write.mode("overwrite").partitionBy(*TABLES[name].partitions)
    if engine.is_local(spark):
        with folders.staged(_folder(path)) as staging:
            rows.parquet(str(staging))
    else:
        (
            rows.option("partitionOverwriteMode", "dynamic")
            .option("parquet.block.size", _ROW_GROUP_BYTES)
            .options(**{f"parquet.enable.dictionary#{column}": "false" for column in _DISTINCT})
            .parquet(path)
        )
    after = _leaves(spark, path)
    new = {leaf: _part(leaf) for leaf, files in after.items() if files - before.get(leaf, set())}
    return Written(new, {leaf: _part(leaf) for leaf in after if leaf not in new})


def clear(spark: SparkSession, root: str, name: str, leaves: Iterable[str]) -> None:
    """Leave a file without rows in each of these folders of a table, instead of what is there."""
    keys = TABLES[name].partitions
    shape = StructType([field for field in table_schema(name).fields if field.name not in keys])
    if engine.is_local(spark):
        for leaf in leaves:
            folders.clear(_folder(location(root, name)) / leaf, to_arrow_schema(shape, timezone="UTC"))
        return
    for leaf in leaves:
        nothing(spark, shape).coalesce(1).write.mode("overwrite").parquet(f"{location(root, name)}/{leaf}")


def nothing(spark: SparkSession, shape: StructType) -> DataFrame:
    """No row, with these columns; made without Python on the executors."""
    return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in shape))


def replace(frame: DataFrame, root: str, name: str, scope: Collection[Part]) -> None:
    """Write a table for ``scope``: what it has no rows for is empty afterwards, all else is as it was.

    A table that would be without any file gets one without rows, so that everybody can read it.
    """
    written = write(frame, root, name)
    clear(frame.sparkSession, root, name, [leaf for leaf, part in written.old.items() if part in scope])
    if not written.new and not written.old and scope:
        day, pair = min(scope)
        clear(frame.sparkSession, root, name, [f"day={day}/pair={pair}"])


def _columns(name: str, more: StructType | None) -> StructType:
    fields = table_schema(name).fields
    keys = len(TABLES[name].partitions)
    return StructType([*fields[:-keys], *(more.fields if more else []), *fields[-keys:]])


def _check(frame: DataFrame, shape: StructType, name: str) -> None:
    """Whoever made the frame kept to the table's columns; whether they may be null is nobody's business."""
    wanted = {field.name: field.dataType for field in shape.fields}
    found = {field.name: _nullable(field).dataType for field in frame.schema.fields}
    wrong = [
        f"{column}: {found.get(column, 'missing')}, the table has {wanted.get(column, 'no such column')}"
        for column in {**wanted, **found}
        if found.get(column) != wanted.get(column)
    ]
    assert not wrong, f"not the columns of {name}: " + "; ".join(wrong)


def _nullable(field: StructField) -> StructField:
    text = field.jsonValue()
    if isinstance(text["type"], dict) and "containsNull" in text["type"]:
        text["type"] = {**text["type"], "containsNull": True}
    return StructField.fromJson({**text, "nullable": True})


def _leaves(spark: SparkSession, path: str) -> dict[str, set[str]]:
    """The files of a table by their folder below it ("day=…/pair=…"), from a listing."""
    if engine.is_local(spark):
        return folders.leaves(_folder(path))
    try:
        files = (
            spark.read.schema("nothing INT").option("recursiveFileLookup", "true").parquet(path).inputFiles()
        )
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
    leaves: dict[str, set[str]] = {}
    for file in files:
        folder, _, leaf_file = unquote(file).rpartition("/")
        found = re.search(r"/(day=[^/]+/pair=[^/]+(/.+)?)$", folder)
        assert found, f"a file of a table lies outside its partitions: {file}"
        leaves.setdefault(found[1], set()).add(leaf_file)
    return leaves


def _part(leaf: str) -> Part:
    day, pair = (piece.partition("=")[2] for piece in leaf.split("/")[:2])
    # Spark writes what a file system might not take as %XX.
    return dt.date.fromisoformat(day), unquote(pair)
