"""What came twice: files that are copies of others, and records that stand in two files.

A file may come twice: as a copy, or once while it was written and again sealed. Every record has a number in
its run (``boot``, ``seq``), so ``ranges`` tells from the first and the last number in each file whether files
overlap, without comparing rows. Of pairs in which some do, ``once`` leaves each record once, by its key.

A virtual machine that is restored from a snapshot goes on twice with one ``boot``: then two different records
have one number. Their monotonic times differ, so both stay.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the common name
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bstar_pipeline.journal_files import about_name
from bstar_pipeline.lines import TRUNCATED
from bstar_pipeline.pair_rows import Row, Rows, collected, frame_of

KEY = ("boot", "seq", "mono")
"""What tells records apart."""

_DAY_US = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1)
_PLACE = StructType([StructField("file", StringType()), StructField("place", LongType())])


def ranges(typed: DataFrame) -> Rows:
    """Where each file stands among its run's records: a row for each ``file`` and ``boot``; few rows.

    ``boot`` is null in the row of a file's rejected lines; ``cuts`` counts ends that are missing.
    """
    return sorted(collected(summed(typed)), key=_order)


def summed(typed: DataFrame) -> DataFrame:
    """``ranges`` as the one query that brings them."""
    is_record = F.col("rejection").isNull()
    # Grouped by all text: a maximum of text would make Spark sort all rows.
    return typed.groupBy(
        "file", *(F.when(is_record, F.col(name)).alias(name) for name in ("pair", "node", "boot"))
    ).agg(
        F.count_if(F.col("topic") != TRUNCATED).alias("lines"),
        F.count_if(F.col("topic") == TRUNCATED).alias("cuts"),
        F.min(F.when(is_record, F.col("seq"))).alias("first_seq"),
        F.max(F.when(is_record, F.col("seq"))).alias("last_seq"),
        F.min(F.when(is_record, F.col("at"))).alias("first_at_us"),
        F.max(F.when(is_record, F.col("at"))).alias("last_at_us"),
        # One file may be several that somebody put together.
        F.sum(F.when(is_record & (F.col("kind") == "closed"), F.col("lines") + 1)).alias("closed_lines"),
    )


def _order(row: Row) -> tuple[Any, ...]:
    """Of two files with the same records the first one keeps them: the longer one, then a sealed one."""
    first, last = row["first_seq"] or 0, row["last_seq"] or 0
    return row["boot"] or "", first, -last, -row["lines"], -(row["closed_lines"] or 0), row["file"]


def overlapping(found: Rows) -> set[str]:
    """The pairs in which records may have come twice."""
    of_run: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        if row["boot"] is not None:
            of_run[row["boot"]].append(row)
    pairs: set[str] = set()
    for rows in of_run.values():
        reached = 0
        for row in rows:
            is_repeating = row["lines"] > row["last_seq"] - row["first_seq"] + 1
            if is_repeating or row["first_seq"] <= reached:
                pairs.update(each["pair"] for each in rows)
            reached = max(reached, row["last_seq"])
    return pairs


def once(typed: DataFrame, found: Rows, pairs: Collection[str]) -> DataFrame:
    """The records of these pairs, each once: that of the first file in order."""
    order = dict.fromkeys(row["file"] for row in found if row["boot"] is not None)
    places = ({"file": file, "place": place} for place, file in enumerate(order))
    by_place = Window.partitionBy(*KEY).orderBy("place", "at", "kind")
    return (
        typed.where(F.col("rejection").isNull() & F.col("pair").isin(*sorted(pairs)))
        .join(F.broadcast(frame_of(typed.sparkSession, places, _PLACE)), "file")
        .withColumn("nth", F.row_number().over(by_place))
        .where("nth = 1")
        .select(*typed.columns)
    )


def kept(records: DataFrame) -> dict[tuple[str, str], int]:
    """How many records are left of each file and run."""
    counts = records.groupBy("file", "boot").agg(F.count("*").alias("kept"))
    return {(row["file"], row["boot"]): row["kept"] for row in collected(counts)}


def files(
    found: Rows, listing: Iterable[str], left: Mapping[tuple[str, str], int] | None
) -> Iterator[dict[str, Any]]:
    """Rows of the table of files: one for each of ``listing``, even if no line of it was read.

    ``left``: what ``kept`` counted, or None if all was. A packed file that is whole without a last record was
    packed by its writer's successor.
    """
    of_file: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        of_file[row["file"]].append(row)
    for file in listing:
        rows = of_file[file]
        runs = [row for row in rows if row["boot"] is not None]
        lines = sum(row["lines"] for row in rows)
        records = sum(row["lines"] for row in runs)
        stay = records if left is None else sum(left.get((file, row["boot"]), 0) for row in runs)
        closed = [row["closed_lines"] for row in runs if row["closed_lines"] is not None]
        if runs and not stay:
            state = "duplicate"
        elif closed and sum(closed) == lines:
            state = "whole"
        elif closed or any(row["cuts"] for row in rows):
            state = "truncated"
        else:
            state = "open"
        pair, day = about_name(file)
        first_at_us = min((row["first_at_us"] for row in runs), default=None)
        yield {
            "file": file,
            "state": state,
            "lines": lines,
            "rejected": lines - records,
            "duplicates": records - stay,
            "pair": max((row["pair"] for row in runs), default=pair),
            "node": max((row["node"] for row in runs), default=None),
            "boot": max((row["boot"] for row in runs), default=None),
            "first_seq": min((row["first_seq"] for row in runs), default=None),
            "last_seq": max((row["last_seq"] for row in runs), default=None),
            "first_at_us": first_at_us,
            "last_at_us": max((row["last_at_us"] for row in runs), default=None),
            "day": day if first_at_us is None else _EPOCH + dt.timedelta(days=first_at_us // _DAY_US),
        }
