"""What came twice: files that are copies of others, and records that stand in two files.

A file may come twice: as a copy, or once while it was written and again sealed. Every record has a number in
its run (``boot``, ``seq``), so ``ranges`` finds that out from the first and the last number in each file,
without comparing rows. ``once`` then leaves whole copies out by a broadcast join, and compares row by row
only runs whose files overlap in part.

A virtual machine that is restored from a snapshot goes on twice with one ``boot``: then two different records
have one number. ``without_conflicts`` looks for them where files overlap, and keeps both.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar_pipeline.journal_files import day_of_file, pair_of_file
from bstar_pipeline.schema import REJECTED, table_schema

_DAY_US = 86_400_000_000
_HALF_BITS = 26
_HALF = 1 << _HALF_BITS


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
        # One file may be several that somebody put together.
        F.sum(F.when(is_record & (F.col("kind") == "closed"), F.col("lines") + 1)).alias("closed_lines"),
    )
    seqs = F.col("high_seqs").cast("decimal(38,0)") * _HALF + F.col("low_seqs")
    in_range = F.col("last_seq") - F.col("first_seq") + 1
    middle = (F.col("first_seq") + F.col("last_seq")).cast("decimal(38,0)") * F.col("lines")
    found = found.withColumns(
        {
            # Every number of its range, once: then it holds all that another file has of that range.
            "is_dense": F.col("boot").isNotNull() & (F.col("lines") == in_range) & (seqs * 2 == middle),
            "is_repeating": F.col("boot").isNotNull() & (F.col("lines") > in_range),
        }
    )
    return _placed(found)


def _placed(found: DataFrame) -> DataFrame:
    """``ranges`` with each file's place in its run, and what came before it."""
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
    is_overlapping = F.col("boot").isNotNull() & ~F.col("is_duplicate") & F.max(is_mixed).over(of_run)
    steps = ("before", "is_dense", "is_repeating", "low_seqs", "high_seqs")
    return found.withColumn("is_overlapping", is_overlapping).drop(*steps)


def without_conflicts(typed: DataFrame, ranges: DataFrame) -> DataFrame:
    """``ranges``, where no file of a run is a copy in which two records with one number differ.

    One small action tells whether any files overlap at all; only the rows of their runs are compared.
    """
    doubtful = [row.boot for row in ranges.where("duplicates > 0").select("boot").distinct().collect()]
    if not doubtful:
        return ranges
    rows = typed.where((F.col("topic") != REJECTED) & F.col("boot").isin(doubtful))
    differing = rows.groupBy("boot", "seq").agg(F.min("mono").alias("first"), F.max("mono").alias("last"))
    twice = [row.boot for row in differing.where("first <> last").select("boot").distinct().collect()]
    if not twice:
        return ranges
    is_twice = F.coalesce(F.col("boot").isin(twice), F.lit(False))
    return ranges.withColumns(
        {
            "is_duplicate": F.col("is_duplicate") & ~is_twice,
            "is_overlapping": F.col("is_overlapping") | is_twice,
        }
    )


def counted(ranges: DataFrame, left: DataFrame) -> DataFrame:
    """``ranges``, where what is not among the records ``left`` is a duplicate."""
    kept = left.groupBy("file", "boot").agg(F.count("*").alias("kept"))
    found = ranges.join(kept, ["file", "boot"], "left").na.fill({"kept": 0})
    is_record = F.col("boot").isNotNull()
    return found.withColumns(
        {
            "duplicates": F.when(is_record, F.col("lines") - F.col("kept")).otherwise(0),
            "is_duplicate": is_record & (F.col("kept") == 0),
        }
    ).drop("kept")


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
    by_place = Window.partitionBy("boot", "seq", "mono").orderBy("place", "file", "at", "kind")
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
        *(F.max(name).alias(name) for name in ("pair", "node", "boot", "last_seq", "last_at_us")),
        *(F.sum(name).alias(name) for name in ("lines", "rejected", "duplicates", "closed_lines")),
        *(F.min(name).alias(name) for name in ("first_seq", "first_at_us")),
        F.min(_is_copied()).alias("is_copy"),
    )
    is_packed = F.col("file").endswith(".gz")
    state = (
        F.when(F.col("is_copy"), "duplicate")
        .when(F.col("closed_lines") == F.col("lines"), "whole")
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
            "pair": F.coalesce("pair", pair_of_file()),
            "day": F.coalesce(first_day, day_of_file()),
        }
    )
    return of_all.select(*table_schema("bronze.files").names)
