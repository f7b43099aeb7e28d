"""Bronze: the lines of journals as typed records, each once, with what could not be read beside them.

``lines`` reads files as text and knows of each line which file it is of. ``typed`` parses lines, and is the
same for a batch and for a stream: a line that is no record keeps its text and gets a ``rejection``; none is
dropped. A file may come twice: as a copy, or once while it was written and again sealed. Every record has a
number in its run (``boot``, ``seq``), so ``ranges`` finds that out from the first and the last number in each
file, without comparing rows; ``once`` then leaves whole copies out by a broadcast join, and only runs whose
files overlap in part are compared row by row.

A packed file without its end makes Spark stop reading that file (``ignoreCorruptFiles``) and go on with the
next; that its last record, which says how many lines there are, is missing is how ``files`` knows.

Nothing here starts a Spark job, except what a path's listing takes.
"""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from bstar.errors import ConfigurationError
from bstar.records import VERSION
from bstar_pipeline.schema import BASE, COMMON, DEFAULTS, LINE, REQUIRED, TOPICS, table_schema

__all__ = [
    "REJECTED",
    "REJECTION",
    "Bronze",
    "files",
    "find_files",
    "lines",
    "once",
    "ranges",
    "read",
    "records",
    "records_once",
    "rejected",
    "rejected_once",
    "typed",
    "unpacked",
]

REJECTED = "rejected"
"""The topic of lines that are no records."""

_SEALED = "*.{ndjson,ndjson.gz}"
_ALL = "*.{ndjson,ndjson.gz,ndjson.open}"
_OPTIONS = {
    # The journals of several machines may lie in folders below the one that is named.
    "recursiveFileLookup": "true",
    # A packed file without its end is read as far as it goes.
    "ignoreCorruptFiles": "true",
    # A file that is sealed while the job runs is gone under its old name: it counts as one without lines.
    "ignoreMissingFiles": "true",
}
# <pair>.<node>.<opened>.<boot>.<segment>.ndjson…: what the name of a file says about the lines in it.
_FILE_NAME = r"([^/]+?)\.[^/.]+\.(\d{8})T\d{6}Z\.[0-9a-f]{8}\.\d+\.ndjson[^/]*$"
# No writer keeps a file open for longer than a day; another one for clocks that are set wrong.
_OPEN_DAYS_MAX = 2
# Times beyond the year 2100 are no times: adding to them would overflow and stop the whole job for one line.
_TIME_US_MAX = 4_102_444_800_000_000
_DAY_US = 86_400_000_000
_HALF_BITS = 26
_HALF = 1 << _HALF_BITS
# What is kept of a line that cannot be read; the file has all of it.
_LINE_LENGTH_MAX = 10_000
_CORRUPT = "corrupt"

REJECTION = StructType([StructField("rejection", StringType()), StructField("line", StringType())])
"""What ``typed`` has beyond the table of records."""


@dataclass(frozen=True, slots=True)
class Bronze:
    """The three tables of this layer, as ``bstar_pipeline.tables`` says. Nothing is computed yet."""

    records: DataFrame
    rejected: DataFrame
    files: DataFrame


def find_files(spark: SparkSession, paths: Sequence[str], since: dt.date | None = None) -> list[str]:
    """The journal files at ``paths``, as Spark spells them. Raises ConfigurationError if a path has none.

    With ``since``, those are left out that were opened so long before that day that nothing of it is in them.
    """
    if not paths:
        raise ConfigurationError("no journals to read: name at least one directory, file or pattern")
    found: dict[str, None] = {}
    for path in paths:
        try:
            here = _reader(spark, _ALL).text(path).inputFiles()
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise ConfigurationError(
                f"no journals to read: {path} does not exist. Brokers write journals if journal.directory is "
                "set in their configuration"
            ) from error
        if not here:
            raise ConfigurationError(
                f"no journals to read: {path} holds no file named *.ndjson, *.ndjson.gz or *.ndjson.open. "
                "Name the directory that journal.directory names in the brokers' configuration"
            )
        # Spark spells local files in two ways; this is how rows of them have it.
        found.update((re.sub("^file:/+", "file:/", file), None) for file in here)
    wanted = [file for file in found if since is None or not _is_before(file, since)]
    if not wanted:
        raise ConfigurationError(
            f"no journals to read: all files at {', '.join(paths)} are older than {since}"
        )
    return wanted


def _is_before(file: str, since: dt.date) -> bool:
    """Was the file's last record written before that day? By its name; a file of another name never was."""
    opened = re.search(_FILE_NAME, file)
    return opened is not None and opened[2] < f"{since - dt.timedelta(days=_OPEN_DAYS_MAX):%Y%m%d}"


def _reader(spark: SparkSession, names: str) -> DataFrameReader:
    return spark.read.options(**_OPTIONS).option("pathGlobFilter", names).option("lineSep", "\n")


def lines(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    is_stream: bool = False,
    since: dt.date | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Every line of the journals at ``paths``: ``value`` (its text), ``file``.

    A path is whatever Spark reads: a directory, a file, a pattern, ``s3a://bucket/…``. ``is_stream``: new
    files as they come, and only sealed ones, which have all their lines; one path, a directory or a pattern.
    ``since`` as for ``find_files``; ``options`` are more of Spark's for a stream of files.
    """
    if is_stream:
        (path,) = paths
        stream = (
            spark.readStream.options(**_OPTIONS).option("pathGlobFilter", _SEALED).option("lineSep", "\n")
        )
        text = stream.options(**(options or {})).text(path)
    else:
        # By file: a file that two of the paths lead to is read once.
        text = _reader(spark, _ALL).text([_literal(file) for file in find_files(spark, paths, since)])
    return text.select("value", F.col("_metadata.file_path").alias("file"))


def _literal(file: str) -> str:
    """A path that names this file, as ``inputFiles`` gives it (percent-encoded), and no pattern."""
    path = unquote(file) if urlsplit(file).scheme else file
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def typed(lines: DataFrame) -> DataFrame:
    """Parse ``lines`` (``value``, ``file``), of a batch or a stream.

    A row for each: the fields of ``bstar.records`` (those of its kind with their defaults, the others null),
    ``time`` (of ``at``), ``file``, ``topic``, ``day`` (of ``at``, UTC), ``rejection`` and ``line``. For a
    record the last two are null. Else ``topic`` is "rejected", ``rejection`` says why, ``line`` is the text,
    and ``day`` and ``pair`` are those of the file's name.
    """
    is_common = reduce(Column.__or__, (F.col("value").startswith(f'{{"kind":"{kind}"') for kind in TOPICS))
    # Not deterministic, as Spark sees it: so it parses a line once, and not once more for each filter above.
    is_here = F.spark_partition_id() >= 0
    parsed = lines.select(
        _parsed(F.when(is_here & is_common, F.col("value")), COMMON).alias("common"),
        _parsed(F.when(is_here & ~is_common, F.col("value")), LINE).alias("rare"),
        "value",
        "file",
    )
    judged = parsed.select("common", "rare", "value", "file", _rejection().alias("rejection"))
    is_record = F.col("rejection").isNull()
    columns = {field.name: _filled(field.name) for field in LINE.fields}
    columns["pair"] = F.when(is_record, _told("pair")).otherwise(_pair_of_file())
    at_us = _told("at")
    columns |= {
        "time": F.when(is_record, F.timestamp_micros(at_us)),
        "file": F.col("file"),
        "topic": F.when(is_record, _topic()).otherwise(F.lit(REJECTED)),
        "day": F.when(is_record, _day_of(at_us)).otherwise(_day_of_file()),
        "rejection": F.col("rejection"),
        "line": F.when(~is_record, F.substring("value", 1, _LINE_LENGTH_MAX)),
    }
    return judged.select(*(column.alias(name) for name, column in columns.items()))


def _parsed(value: Column, shape: StructType) -> Column:
    """A line as a struct of this shape; null for null. What is wrong with it stands in ``_CORRUPT``."""
    whole = StructType([*shape.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(value, whole, {"columnNameOfCorruptRecord": _CORRUPT})


def _told(name: str) -> Column:
    """A field as the line tells it.

    Nearly all lines are of few kinds, and what parsing costs depends on how many fields are looked for, so
    there are two structs; one of them is null.
    """
    rare = F.col(f"rare.{name}")
    return F.coalesce(F.col(f"common.{name}"), rare) if name in _COMMON_NAMES else rare


_COMMON_NAMES = frozenset([*COMMON.names, _CORRUPT])


def _rejection() -> Column:
    """Why the line in ``value``, parsed as ``common`` or ``rare``, is no record; null if it is one."""
    is_whole = reduce(Column.__and__, (_told(name).isNotNull() for name in ("kind", *BASE)))
    has_all = {
        kind: reduce(Column.__and__, (_told(name).isNotNull() for name in needs)) for kind, needs in _needs()
    }
    kind_has = _by_kind(has_all, F.lit(True))
    is_in_range = (
        _told("at").between(0, _TIME_US_MAX)
        & _told("mono").between(0, _TIME_US_MAX)
        & _told("seq").between(1, 2**53)
        & F.coalesce(_told("total_us").between(0, _TIME_US_MAX), F.lit(True))
        & F.coalesce(_told("busy_us").between(0, _TIME_US_MAX), F.lit(True))
    )
    is_nothing = F.col("common").isNull() & F.col("rare").isNull()
    is_corrupt = _told(_CORRUPT).isNotNull()
    return (
        F.when(_told("v") > VERSION, "newer-version")
        .when(
            is_nothing | (is_corrupt & _told("v").isNull()) | ~F.is_valid_utf8("value"),
            "unreadable",
        )
        .when(is_corrupt | ~is_whole | ~kind_has, "incomplete")
        .when((_told("v") < VERSION) | ~is_in_range, "unreadable")
    )


def _needs() -> list[tuple[str, list[str]]]:
    """By kind, those that come by the million first: what its line must have beyond what every line must."""
    kinds = [*TOPICS, *(kind for kind in REQUIRED if kind not in TOPICS)]
    needs = ((kind, [name for name in REQUIRED[kind] if name not in BASE]) for kind in kinds)
    return [(kind, names) for kind, names in needs if names]


def _filled(name: str) -> Column:
    """A field, or the default that its kind has for it."""
    column = _told(name)
    of_kind = DEFAULTS.get(name, {})
    kinds_of: dict[int | float | bool | str, list[str]] = {}
    for kind, value in of_kind.items():
        kinds_of.setdefault(value, []).append(kind)
    for value, kinds in kinds_of.items():
        column = F.coalesce(column, F.when(_told("kind").isin(kinds), F.lit(value)))
    return column


def _topic() -> Column:
    return _by_kind({kind: F.lit(topic) for kind, topic in TOPICS.items()}, F.lit("events"))


def _by_kind(values: Mapping[str, Column], otherwise: Column) -> Column:
    kind = _told("kind")
    (first, value), *others = values.items()
    chosen = F.when(kind == first, value)
    for name, value in others:
        chosen = chosen.when(kind == name, value)
    return chosen.otherwise(otherwise)


def _day_of(at_us: Column) -> Column:
    """In UTC; ``DIV`` is written in SQL, and the functions have no other name for it."""
    return F.date_from_unix_date(F.call_function("div", at_us, F.lit(_DAY_US)).cast("int"))


def _pair_of_file() -> Column:
    found = F.regexp_extract("file", _FILE_NAME, 1)
    return F.when(found == "", "unknown").otherwise(found)


def _day_of_file() -> Column:
    day = F.try_to_date(F.regexp_extract("file", _FILE_NAME, 2), "yyyyMMdd")
    return F.coalesce(day, F.lit("1970-01-01").cast("date"))


def ranges(typed: DataFrame) -> DataFrame:
    """Where each file stands among its run's records: one row for each ``file`` and ``boot``; few rows.

    ``is_duplicate``: another file has all its records. ``is_overlapping``: some of its run's records are in
    two files, so that they have to be looked at one by one. ``place`` puts the files of a run in order.
    ``boot`` is null in the row of a file's rejected lines.
    """
    is_record = F.col("rejection").isNull()
    # Grouped by all text: a maximum of text would make Spark sort all rows.
    found = typed.groupBy(
        "file", *(F.when(is_record, F.col(name)).alias(name) for name in ("pair", "node", "boot"))
    ).agg(
        F.count("*").alias("lines"),
        F.count_if(~is_record).alias("rejected"),
        F.min(F.when(is_record, F.col("seq"))).alias("first_seq"),
        F.max(F.when(is_record, F.col("seq"))).alias("last_seq"),
        # In two halves: their sum may be too large for a whole number, and decimals are slow.
        F.sum(F.when(is_record, F.col("seq").bitwiseAND(_HALF - 1))).alias("low_seqs"),
        F.sum(F.when(is_record, F.shiftright("seq", _HALF_BITS))).alias("high_seqs"),
        F.min(F.when(is_record, F.col("at"))).alias("first_at_us"),
        F.max(F.when(is_record, F.col("at"))).alias("last_at_us"),
        F.max(F.when(is_record & (F.col("kind") == "closed"), F.col("lines"))).alias("closed_lines"),
    )
    seqs = F.col("high_seqs").cast("decimal(38,0)") * _HALF + F.col("low_seqs")
    in_range = F.col("last_seq") - F.col("first_seq") + 1
    middle = (F.col("first_seq") + F.col("last_seq")).cast("decimal(38,0)") * F.col("lines")
    found = found.withColumns(
        {
            # Every number of its range, once: then it holds whatever another file has of that range.
            "is_dense": F.col("boot").isNotNull() & (F.col("lines") == in_range) & (seqs * 2 == middle),
            "is_repeating": F.col("boot").isNotNull() & (F.col("lines") > in_range),
        }
    )
    order = (
        F.col("first_seq"),
        F.col("last_seq").desc(),
        F.col("is_dense").desc(),
        F.col("lines").desc(),
        F.col("closed_lines").desc_nulls_last(),
        F.col("file"),
    )
    in_run = Window.partitionBy("boot").orderBy(*order)
    before = F.max(F.struct("last_seq", "is_dense")).over(in_run.rowsBetween(Window.unboundedPreceding, -1))
    found = found.withColumns({"place": F.row_number().over(in_run), "before": before})
    is_known = F.col("boot").isNotNull() & F.col("before").isNotNull()
    covered = F.coalesce(F.col("before.last_seq") - F.col("first_seq") + 1, F.lit(0))
    found = found.withColumns(
        {
            "is_duplicate": is_known
            & (F.col("before.last_seq") >= F.col("last_seq"))
            & F.col("before.is_dense"),
            "duplicates": F.when(F.col("boot").isNull(), 0).otherwise(
                F.greatest(F.lit(0), F.least("lines", covered))
            ),
        }
    )
    is_mixed = F.col("is_repeating") | ((F.col("duplicates") > 0) & ~F.col("is_duplicate"))
    of_run = Window.partitionBy("boot")
    return found.withColumn(
        "is_overlapping", F.col("boot").isNotNull() & ~F.col("is_duplicate") & F.max(is_mixed).over(of_run)
    ).select(
        "file",
        "pair",
        "node",
        "boot",
        "lines",
        "rejected",
        "first_seq",
        "last_seq",
        "first_at_us",
        "last_at_us",
        "closed_lines",
        "place",
        "duplicates",
        "is_duplicate",
        "is_overlapping",
    )


def once(typed: DataFrame, ranges: DataFrame) -> DataFrame:
    """Leave out of ``typed`` what came in another file, too; rejected lines only with their whole file."""
    return records_once(typed, ranges).unionByName(rejected_once(typed, ranges))


def records_once(typed: DataFrame, ranges: DataFrame) -> DataFrame:
    """The part of ``once`` that are records."""
    key = ["file", "boot"]
    copies = F.broadcast(ranges.where("is_duplicate").select(*key))
    overlapping = F.broadcast(ranges.where("is_overlapping").select(*key, "place"))
    first = typed.where(F.col("topic") != REJECTED).join(copies, key, "left_anti")
    alone = first.join(overlapping, key, "left_anti")
    columns = typed.columns
    by_place = Window.partitionBy("boot", "seq").orderBy("place", "file", "at", "mono", "kind")
    mixed = first.join(overlapping, key).withColumn("nth", F.row_number().over(by_place)).where("nth = 1")
    return alone.select(*columns).unionByName(mixed.select(*columns))


def rejected_once(typed: DataFrame, ranges: DataFrame) -> DataFrame:
    """The part of ``once`` that are not."""
    lines = typed.where(F.col("topic") == REJECTED)
    return lines.join(F.broadcast(_whole_copies(ranges)), "file", "left_anti").select(*typed.columns)


def _whole_copies(ranges: DataFrame) -> DataFrame:
    """The files all of whose records came in others, too: ``file``."""
    of_file = ranges.groupBy("file").agg(F.min(_is_copied()).alias("is_copy"))
    return of_file.where("is_copy").select("file")


def _is_copied() -> Column:
    """Of a row of ``ranges``; null for the row of rejected lines, which have no number."""
    return F.when(F.col("boot").isNotNull(), F.col("is_duplicate"))


def files(ranges: DataFrame, listing: DataFrame, unpacked: DataFrame | None = None) -> DataFrame:
    """The table of files: a row for each of ``listing`` (``file``), even if no line of it was read.

    A packed file without a last record has lost its end, unless it is one of ``unpacked`` (``file``).
    """
    of_file = ranges.groupBy("file").agg(
        F.max("pair").alias("pair"),
        F.max("node").alias("node"),
        F.max("boot").alias("boot"),
        F.sum("lines").alias("lines"),
        F.sum("rejected").alias("rejected"),
        F.sum("duplicates").alias("duplicates"),
        F.min("first_seq").alias("first_seq"),
        F.max("last_seq").alias("last_seq"),
        F.min("first_at_us").alias("first_at_us"),
        F.max("last_at_us").alias("last_at_us"),
        F.max("closed_lines").alias("closed_lines"),
        F.min(_is_copied()).alias("is_copy"),
    )
    is_packed = F.col("file").endswith(".gz")
    state = (
        F.when(F.col("is_copy"), "duplicate")
        .when(F.col("closed_lines") + 1 == F.col("lines"), "whole")
        .when(F.col("closed_lines").isNotNull() | (is_packed & ~F.col("is_unpacked")), "truncated")
        .otherwise("open")
    )
    counts = {name: F.coalesce(name, F.lit(0)) for name in ("lines", "rejected", "duplicates")}
    of_all = listing.select("file").join(of_file, "file", "left")
    if unpacked is None:
        of_all = of_all.withColumn("is_unpacked", F.lit(False))
    else:
        told = unpacked.withColumn("is_unpacked", F.lit(True))
        of_all = of_all.join(told, "file", "left").na.fill({"is_unpacked": False})
    first_day = F.expr(f"date_from_unix_date(CAST(first_at_us DIV {_DAY_US} AS INT))")
    of_all = of_all.withColumns(
        {
            **counts,
            "state": state,
            "pair": F.coalesce("pair", _pair_of_file()),
            "day": F.coalesce(first_day, _day_of_file()),
        }
    )
    return of_all.select(*table_schema("bronze.files").names)


def unpacked(spark: SparkSession, packed: Sequence[str]) -> DataFrame:
    """Those of some packed files (few) that can be unpacked to their end: ``file``.

    Their writer was killed, and its successor packed what it had left. The last four octets of a packed file
    are its length unpacked (RFC 1952, 2.3.1); a file that was cut has anything there.
    """
    paths = [_literal(file) for file in packed]
    text = _reader(spark, _ALL).text(paths).select("value", F.col("_metadata.file_path").alias("file"))
    lengths = text.groupBy("file").agg(F.sum(F.octet_length("value") + 1).alias("length"))
    tail = F.hex(F.expr("substring(content, -4, 4)"))
    octets = [F.substring(tail, 7 - 2 * place, 2) for place in range(4)]
    told = F.conv(F.concat(*octets), 16, 10).cast("bigint")
    raw = spark.read.format("binaryFile").options(**_OPTIONS).load(paths)
    tails = raw.select(F.col("_metadata.file_path").alias("file"), told.alias("told"))
    length = F.col("length") % 2**32
    # The last line may be torn, and then has no end.
    is_whole = (F.col("told") == length) | (F.col("told") == length - 1)
    return tails.join(lengths, "file").where(is_whole).select("file")


def listing(spark: SparkSession, paths: Sequence[str], since: dt.date | None = None) -> DataFrame:
    """The files at ``paths``: ``file``; those without a byte, which Spark does not open, among them."""
    # By Arrow: of a list of Python's, Spark makes rows in Python processes on the executors.
    return spark.createDataFrame(pa.table({"file": pa.array(find_files(spark, paths, since), pa.string())}))


def records(typed: DataFrame) -> DataFrame:
    """The lines that are records, with the columns of the table of records."""
    is_record = F.col("topic").isin(*TOPICS.values(), "events")
    return typed.where(is_record).select(*table_schema("bronze.records").names)


def rejected(typed: DataFrame) -> DataFrame:
    """The lines that are none, with the columns of the table of rejected lines."""
    of_others = typed.where(F.col("topic") == REJECTED)
    version = F.col("v").try_cast("int").alias("version")
    return of_others.select("file", F.col("rejection").alias("reason"), version, "line", "day", "pair")


def read(spark: SparkSession, paths: Sequence[str]) -> Bronze:
    """The journals at ``paths``. Raises ConfigurationError if a path has none.

    Each of the three parses the lines anew when it is computed; ``bstar_pipeline.job`` parses them once and
    goes on with what it wrote.
    """
    parsed = typed(lines(spark, paths))
    found = ranges(parsed)
    unique = once(parsed, found)
    return Bronze(records(unique), rejected(unique), files(found, listing(spark, paths)))
