"""What happened to a pair, for its report: requests over time, states, runs, and how good the data are.

Spark adds up; what comes to the driver is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.report.content import Interval, Quality, Rate, Run, Shown
from bstar_pipeline.report.reading import Tables, is_within, rows_of, shown, step_of

INTERVALS_MAX = 2_000
RUNS_MAX = 200
SAMPLES_MAX = 5
LINE_CHARS_MAX = 200


def rates(tables: Tables) -> tuple[list[Rate], int]:
    """Requests by step, and how many of all were sent or given out more than once."""
    again = (F.coalesce("attempts", F.lit(1)) > 1) | F.col("is_repeated") | (F.col("deliveries") > 1)
    answered = F.col("outcome").isin(*FINISHED)
    rows = rows_of(
        tables.of_pair("silver.requests")
        .where(is_within("ended_at_us", tables))
        .groupBy(step_of(F.col("ended_at_us"), tables).alias("step"))
        .agg(
            F.sum(F.when(answered, F.col("weight")).otherwise(0.0)).alias("answered"),
            F.sum(F.when(answered, 0.0).otherwise(F.col("weight"))).alias("not_answered"),
            F.sum(F.when(again, 1).otherwise(0)).alias("again"),
        )
    )
    by_step = {row.step: row for row in rows}
    steps = (tables.choice.until_us - 1 - tables.origin_us) // tables.step_us + 1
    found = []
    for step in range(steps):
        row = by_step.get(step)
        at_us = tables.origin_us + step * tables.step_us
        found.append(Rate(at_us, row.answered if row else 0.0, row.not_answered if row else 0.0))
    return found, sum(row.again for row in rows)


def intervals(tables: Tables) -> Shown[Interval]:
    """What the nodes were, in order; of too many the longest.

    A node whose journal simply ends was alive: its next record was not due yet.
    """
    since, until = F.col("since_at_us"), F.col("until_at_us")
    lasted = F.when(F.col("ended_by") == "end", F.greatest(until, F.lit(tables.choice.until_us))).otherwise(
        until
    )
    frame = (
        tables.of_pair("silver.states")
        .withColumn("until_at_us", lasted)
        .where((since < tables.choice.until_us) & (until >= tables.choice.from_us))
        .withColumn("length_us", until - since)
        .withColumns(
            {
                "since_at_us": F.greatest(since, F.lit(tables.choice.from_us)),
                "until_at_us": F.least(until, F.lit(tables.choice.until_us)),
            }
        )
    )
    found = shown(Interval, frame, INTERVALS_MAX, F.col("length_us").desc(), "since_at_us", "node")
    found.sort(key=lambda each: (each.since_at_us, each.node))
    return found


def runs(tables: Tables) -> Shown[Run]:
    """The runs of processes that lived in the period, the earliest first."""
    frame = tables.of_pair("silver.runs").where(
        (F.col("started_at_us") < tables.choice.until_us) & (F.col("last_at_us") >= tables.choice.from_us)
    )
    return shown(Run, frame, RUNS_MAX, "started_at_us", "node")


def quality(tables: Tables) -> Quality:
    """What of the journals could not be read, or is not there."""
    files = tables.of_pair("bronze.files")
    states = rows_of(
        files.groupBy("state").agg(
            F.count("*").alias("files"), F.sum("lines").alias("lines"), F.sum("duplicates").alias("twice")
        )
    )
    # A file whose name names neither pair nor day belongs to all.
    rejected = tables.table("bronze.rejected")
    if tables.choice.pair is not None:
        rejected = rejected.where(F.col("pair").isin(tables.choice.pair, "unknown"))
    reasons = rows_of(rejected.groupBy("reason").agg(F.count("*").alias("n")))
    samples = rows_of(
        rejected.select("file", "reason", F.substring("line", 1, LINE_CHARS_MAX).alias("line"))
        .orderBy("file", "line")
        .limit(SAMPLES_MAX)
    )
    totals = rows_of(
        tables.of_pair("silver.runs").agg(
            F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"),
            F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
            F.coalesce(F.max("is_sampled"), F.lit(False)).alias("is_sampled"),
        )
    )[0]
    is_off = (F.abs("clock_off_us") > CLOCK_ERROR_US) | (F.col("clock_unsure_us") > CLOCK_ERROR_US)
    clocks = rows_of(
        tables.of_pair("silver.runs")
        .where(is_off)
        .select("node", "clock_off_us", "clock_unsure_us")
        .distinct()
        .orderBy("node", "clock_off_us")
        .limit(SAMPLES_MAX)
    )
    return Quality(
        files=_most_first((row.state, row.files) for row in states),
        rejected=_most_first((row.reason, row.n) for row in reasons),
        samples=[(row.file or "", row.reason, row.line or "") for row in samples],
        lines=sum(row.lines or 0 for row in states),
        duplicates=sum(row.twice or 0 for row in states),
        missing=totals.missing,
        dropped=totals.dropped,
        is_sampled=totals.is_sampled,
        clocks=[(row.node, row.clock_off_us, row.clock_unsure_us) for row in clocks],
    )


def _most_first(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda each: (-each[1], each[0]))
