"""What happened to a pair: requests over time, states, incidents, the audit, and how good the data are.

Spark adds up; what comes to the driver is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses

from bstar_pipeline.gold.objectives import FINISHED
from bstar_pipeline.report.content import Cut, Finding, Incident, Interval, Quality, Rate, Run, Verdicts
from bstar_pipeline.report.reading import Tables, cut_of, is_within, rows_of, step_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INTERVALS_MAX = 2_000
INCIDENTS_MAX = 200
FINDINGS_MAX = 100
RUNS_MAX = 200
SAMPLES_MAX = 5
LINE_CHARS_MAX = 200


def requests(tables: Tables) -> float:
    """How many requests ended in the period."""
    (row,) = rows_of(
        tables.of_pair("silver.requests")
        .where(is_within("ended_at_us", tables))
        .agg(F.sum("weight").alias("all"))
    )
    return float(row["all"] or 0.0)


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
    steps = (tables.until_us - 1 - tables.origin_us) // tables.step_us + 1
    found = []
    for step in range(steps):
        row = by_step.get(step)
        at_us = tables.origin_us + step * tables.step_us
        found.append(Rate(at_us, row.answered if row else 0.0, row.not_answered if row else 0.0))
    return found, sum(row.again for row in rows)


def intervals(tables: Tables) -> tuple[list[Interval], Cut]:
    """What the nodes were, in order; of too many the longest."""
    frame = tables.of_pair("silver.states").where(
        (F.col("since_at_us") < tables.until_us) & (F.col("until_at_us") >= tables.from_us)
    )
    length = F.col("until_at_us") - F.col("since_at_us")
    rows = rows_of(frame.orderBy(length.desc(), "since_at_us", "node").limit(INTERVALS_MAX + 1))
    found = [
        Interval(
            node=row.node,
            state=row.state,
            is_serving=bool(row.is_serving),
            epoch=row.epoch or 0,
            since_at_us=max(row.since_at_us, tables.from_us),
            until_at_us=min(row.until_at_us, tables.until_us),
            event=row.event or "",
            text=row.text or "",
            ended_by=row.ended_by or "",
        )
        for row in rows[:INTERVALS_MAX]
    ]
    found.sort(key=lambda each: (each.since_at_us, each.node))
    return found, cut_of(rows, INTERVALS_MAX, frame)


def incidents(tables: Tables, most: int = INCIDENTS_MAX) -> tuple[list[Incident], Cut]:
    """What moved the role or ended a node, in order; of too many those with the longest outages."""
    frame = tables.of_pair("gold.incidents").where(is_within("began_at_us", tables))
    rows = rows_of(frame.orderBy(F.col("outage_us").desc_nulls_last(), F.col("began_at_us")).limit(most + 1))
    found = [
        Incident(
            pair=row.pair,
            kind=row.kind,
            node=row.node or "",
            successor=row.successor or "",
            epoch=row.epoch or 0,
            began_at_us=row.began_at_us,
            began_error_us=row.began_error_us,
            detected_at_us=row.detected_at_us,
            taken_over_at_us=row.taken_over_at_us,
            recovered_at_us=row.recovered_at_us,
            detection_us=row.detection_us,
            takeover_us=row.takeover_us,
            outage_us=row.outage_us,
            retried=row.retried or 0,
            refused=row.refused or 0,
            unknown=row.unknown or 0,
            affected=row.affected or 0,
            cause=row.cause or "",
        )
        for row in rows[:most]
    ]
    found.sort(key=lambda each: each.began_at_us)
    return found, cut_of(rows, most, frame)


def _audit(tables: Tables) -> DataFrame:
    # A finding without a time is about its whole day.
    is_of_day = F.col("at_us").isNull() & F.col("day").between(*tables.days)
    return tables.of_pair("gold.audit").where(is_of_day | is_within("at_us", tables))


def verdicts(tables: Tables) -> list[Verdicts] | None:
    """The audit's findings, counted by rule; None if nothing was audited: that is not the same as none."""
    if not tables.has("gold.audit"):
        return None
    count = F.coalesce(F.col("count"), F.lit(1))
    rows = rows_of(
        _audit(tables)
        .groupBy("rule")
        .agg(
            *(
                F.sum(F.when(F.col("verdict") == verdict, count).otherwise(0)).alias(verdict)
                for verdict in ("violated", "excused", "unproven")
            )
        )
    )
    return [Verdicts(row.rule, row.violated, row.excused, row.unproven) for row in sorted(rows)]


def findings(tables: Tables, most: int = FINDINGS_MAX) -> tuple[list[Finding], Cut]:
    """The audit's findings that are not excused, violations first."""
    frame = _audit(tables).where(F.col("verdict") != "excused")
    rows = rows_of(
        frame.orderBy(F.col("verdict").desc(), "at_us", "rule", "client", "number").limit(most + 1)
    )
    found = [
        Finding(
            pair=row.pair,
            rule=row.rule,
            verdict=row.verdict,
            client=row.client or "",
            number=row.number,
            service=row.service or "",
            node=row.node or "",
            at_us=row.at_us,
            duration_us=row.duration_us,
            # Row is a tuple: its attribute count is a method.
            count=1 if row["count"] is None else row["count"],
            text=row.text or "",
        )
        for row in rows[:most]
    ]
    return found, cut_of(rows, most, frame)


def runs(tables: Tables) -> tuple[list[Run], Cut]:
    """The runs of processes that lived in the period, the earliest first."""
    frame = tables.of_pair("silver.runs").where(
        (F.col("started_at_us") < tables.until_us) & (F.col("last_at_us") >= tables.from_us)
    )
    rows = rows_of(frame.orderBy("started_at_us", "node").limit(RUNS_MAX + 1))
    return [_run(row) for row in rows[:RUNS_MAX]], cut_of(rows, RUNS_MAX, frame)


def _run(row: Any) -> Run:
    return Run(
        node=row.node,
        source=row.source or "",
        host=row.host or "",
        version=row.version or "",
        config=row.config or "",
        service=row.service or "",
        started_at_us=row.started_at_us,
        last_at_us=row.last_at_us,
        is_clean=bool(row.is_clean),
        records=row.records or 0,
        missing=row.missing or 0,
        dropped=row.dropped or 0,
        is_sampled=bool(row.is_sampled),
    )


def quality(tables: Tables) -> Quality:
    """What of the journals could not be read, or is not there."""
    files = tables.of_pair("bronze.files")
    states = rows_of(
        files.groupBy("state").agg(
            F.count("*").alias("files"), F.sum("lines").alias("lines"), F.sum("duplicates").alias("twice")
        )
    )
    # A file whose name tells neither pair nor day is everybody's.
    rejected = tables.table("bronze.rejected")
    if tables.pair is not None:
        rejected = rejected.where(F.col("pair").isin(tables.pair, "unknown"))
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
    return Quality(
        files=_most_first((row.state, row.files) for row in states),
        rejected=_most_first((row.reason, row.n) for row in reasons),
        samples=[(row.file or "", row.reason, row.line or "") for row in samples],
        lines=sum(row.lines or 0 for row in states),
        duplicates=sum(row.twice or 0 for row in states),
        missing=totals.missing,
        dropped=totals.dropped,
        is_sampled=totals.is_sampled,
    )


def _most_first(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda each: (-each[1], each[0]))
