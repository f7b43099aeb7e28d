"""Reads from the tables what a report shows, and no more: Spark adds up, the page gets bounded lists.

Every query is on the columns and partitions that it needs; what comes to the driver is limited here
(``…_MAX``), whatever the size of the tables. It uses the DataFrame API only, so it runs under Spark Connect.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses
from pyspark.sql.window import Window

from bstar.errors import ConfigurationError
from bstar_pipeline import sketch, store
from bstar_pipeline.gold.objectives import FINISHED
from bstar_pipeline.report.content import (
    Capacity,
    Client,
    Content,
    Cut,
    Finding,
    Heat,
    Incident,
    Interval,
    Objective,
    Promise,
    Quality,
    Rate,
    Run,
    Verdicts,
)
from bstar_pipeline.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["collect"]

STEPS_MAX = 240
"""Columns of the plots over time: more than a phone can show."""
INTERVALS_MAX = 2_000
INCIDENTS_MAX = 200
FINDINGS_MAX = 100
SERVICES_MAX = 30
CLIENTS_MAX = 25
RUNS_MAX = 200
SAMPLES_MAX = 5
PLOTTED_SERVICES_MAX = 5
HOURS_MAX = 400
LINE_CHARS_MAX = 200

MINUTE_US = 60_000_000
_DAY_US = 24 * 60 * MINUTE_US
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
# Rows of the heat map are so many buckets: about eight a decade.
_BUCKETS_A_ROW = 14
# No service has this name: an empty one is refused.
_ALL = ""


@dataclass(frozen=True, slots=True)
class _Span:
    """The pair and the period of a report; ``origin_us`` is ``from_us`` rounded down to a step."""

    pair: str
    from_us: int
    until_us: int
    step_us: int

    @property
    def origin_us(self) -> int:
        return self.from_us // self.step_us * self.step_us


def collect(
    spark: SparkSession,
    root: str,
    *,
    pair: str | None = None,
    from_us: int | None = None,
    until_us: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Content:
    """The report's content of the tables below ``root``: one pair, the period from the first to the last sign
    of its processes, or the part of it in [``from_us``, ``until_us``).

    ``progress`` is called with a word for each part. Raises ConfigurationError if there are no tables, no
    such pair, several pairs and none chosen, or nothing in that period.
    """
    read = _Reader(spark, root)
    progress("processes")
    span = _span(read, root, pair, from_us, until_us)
    runs = _rows(
        read.pair("silver.runs", span)
        .where((F.col("started_at_us") < span.until_us) & (F.col("last_at_us") >= span.from_us))
        .orderBy("started_at_us", "node")
        .limit(RUNS_MAX + 1)
    )
    progress("requests")
    rates, retried = _rates(read, span)
    progress("states and incidents")
    intervals, intervals_cut = _intervals(read, span)
    incidents, incidents_cut = _incidents(read, span)
    progress("audit")
    verdicts = _verdicts(read, span)
    findings, findings_cut = _findings(read, span)
    progress("objectives")
    objectives, objectives_cut, p99_us = _objectives(read, span)
    progress("latencies")
    edges_us, heats = _heats(read, span, [each.service for each in objectives[:PLOTTED_SERVICES_MAX]])
    progress("capacity and clients")
    capacity, capacity_cut = _capacity(read, span)
    clients, clients_cut = _clients(read, span)
    progress("quality of the data")
    quality = _quality(read, span)
    return Content(
        pair=span.pair,
        from_us=span.from_us,
        until_us=span.until_us,
        step_us=span.step_us,
        requests=sum(rate.answered + rate.not_answered for rate in rates),
        errors=sum(rate.not_answered for rate in rates),
        retried=retried,
        verdicts=verdicts,
        findings=findings,
        findings_cut=findings_cut,
        intervals=intervals,
        intervals_cut=intervals_cut,
        rates=rates,
        incidents=incidents,
        incidents_cut=incidents_cut,
        edges_us=edges_us,
        heats=heats,
        p99_us=p99_us,
        objectives=objectives,
        objectives_cut=objectives_cut,
        capacity=capacity,
        capacity_cut=capacity_cut,
        clients=clients,
        clients_cut=clients_cut,
        runs=[_run(row) for row in runs[:RUNS_MAX]],
        runs_cut=Cut(min(len(runs), RUNS_MAX), len(runs)),
        quality=quality,
    )


# --- reading ------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root

    def table(self, name: str) -> DataFrame:
        """The table; empty if nothing was ever written to it."""
        try:
            return store.read(self._spark, self._root, name)
        except ConfigurationError:
            empty: DataFrame = self._spark.createDataFrame([], table_schema(name))
            return empty

    def pair(self, name: str, span: _Span, *, margin_days: int = 1) -> DataFrame:
        """The table's rows of the pair. Partitions are chosen generously: an interval or a request may
        belong to the day before the one that it ends in.
        """
        first, last = (
            dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC).date() + dt.timedelta(days=days)
            for at_us, days in ((span.from_us, -margin_days), (span.until_us - 1, margin_days))
        )
        return self.table(name).where((F.col("pair") == span.pair) & F.col("day").between(first, last))


def _rows(frame: DataFrame) -> list[Any]:
    # Rows have one attribute a column; nothing tells a type checker which.
    rows: list[Any] = frame.collect()
    return rows


def _span(read: _Reader, root: str, pair: str | None, from_us: int | None, until_us: int | None) -> _Span:
    found = {
        row.pair: (row.first, row.last)
        for row in _rows(
            read.table("silver.runs")
            .groupBy("pair")
            .agg(F.min("started_at_us").alias("first"), F.max("last_at_us").alias("last"))
        )
    }
    if not found:
        raise ConfigurationError(
            f"{root} holds no tables of a pair: write them first with bstar pipeline run JOURNAL --out {root}"
        )
    names = ", ".join(sorted(found))
    if pair is None:
        if len(found) > 1:
            raise ConfigurationError(f"{root} is about several pairs: choose one of {names} with --pair")
        pair = next(iter(found))
    elif pair not in found:
        raise ConfigurationError(f"{root} knows no pair {pair}: it has {names}")
    first, last = found[pair]
    first = first if from_us is None else max(first, from_us)
    # The last sign of life belongs to the period.
    last = last + 1 if until_us is None else min(last + 1, until_us)
    if first >= last:
        raise ConfigurationError(
            f"nothing of pair {pair} in that period: its journals are from {_iso(found[pair][0])} "
            f"to {_iso(found[pair][1])}"
        )
    return _Span(pair, first, last, step_us(last - first))


def step_us(period_us: int) -> int:
    """The step of plots over time: a round one, so that there are at most STEPS_MAX."""
    for step_s in _STEPS_S:
        if period_us <= step_s * 1e6 * STEPS_MAX:
            return int(step_s * 1e6)
    days = -(-period_us // (_DAY_US * STEPS_MAX))
    return days * _DAY_US


def _iso(at_us: int) -> str:
    return dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC).isoformat(timespec="seconds")


def _step_of(at_us: Column, span: _Span) -> Column:
    return F.floor((at_us - F.lit(span.origin_us)) / F.lit(span.step_us)).cast("int")


def _is_within(column: str | Column, span: _Span) -> Column:
    at_us = F.col(column) if isinstance(column, str) else column
    return (at_us >= span.from_us) & (at_us < span.until_us)


def _cut(rows: list[Any], shown_max: int, frame: DataFrame) -> Cut:
    """How much of ``frame`` the first ``shown_max`` rows are; ``rows`` were limited to one more."""
    if len(rows) <= shown_max:
        return Cut(len(rows), len(rows))
    return Cut(shown_max, frame.count())


# --- the parts ----------------------------------------------------------------------------------------------


def _rates(read: _Reader, span: _Span) -> tuple[list[Rate], int]:
    """Requests by step, and how many of all were sent or given out more than once."""
    again = (F.coalesce("attempts", F.lit(1)) > 1) | F.col("is_repeated") | (F.col("deliveries") > 1)
    answered = F.col("outcome").isin(*FINISHED)
    rows = _rows(
        read.pair("silver.requests", span)
        .where(_is_within("ended_at_us", span))
        .groupBy(_step_of(F.col("ended_at_us"), span).alias("step"))
        .agg(
            F.sum(F.when(answered, F.col("weight")).otherwise(0.0)).alias("answered"),
            F.sum(F.when(answered, 0.0).otherwise(F.col("weight"))).alias("not_answered"),
            F.sum(F.when(again, 1).otherwise(0)).alias("again"),
        )
        .orderBy("step")
    )
    by_step = {row.step: row for row in rows}
    steps = (span.until_us - 1 - span.origin_us) // span.step_us + 1
    rates = []
    for step in range(steps):
        row = by_step.get(step)
        at_us = span.origin_us + step * span.step_us
        rates.append(Rate(at_us, row.answered if row else 0.0, row.not_answered if row else 0.0))
    return rates, sum(row.again for row in rows)


def _intervals(read: _Reader, span: _Span) -> tuple[list[Interval], Cut]:
    frame = read.pair("silver.states", span).where(
        (F.col("since_at_us") < span.until_us) & (F.col("until_at_us") >= span.from_us)
    )
    length = F.col("until_at_us") - F.col("since_at_us")
    rows = _rows(frame.orderBy(length.desc(), "since_at_us", "node").limit(INTERVALS_MAX + 1))
    intervals = [
        Interval(
            node=row.node,
            state=row.state,
            is_serving=bool(row.is_serving),
            epoch=row.epoch or 0,
            since_at_us=max(row.since_at_us, span.from_us),
            until_at_us=min(row.until_at_us, span.until_us),
            event=row.event or "",
            text=row.text or "",
            ended_by=row.ended_by or "",
        )
        for row in rows[:INTERVALS_MAX]
    ]
    intervals.sort(key=lambda each: (each.since_at_us, each.node))
    return intervals, _cut(rows, INTERVALS_MAX, frame)


def _incidents(read: _Reader, span: _Span) -> tuple[list[Incident], Cut]:
    frame = read.pair("gold.incidents", span).where(_is_within("began_at_us", span))
    rows = _rows(
        frame.orderBy(F.col("outage_us").desc_nulls_last(), F.col("began_at_us")).limit(INCIDENTS_MAX + 1)
    )
    incidents = [
        Incident(
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
        for row in rows[:INCIDENTS_MAX]
    ]
    incidents.sort(key=lambda each: each.began_at_us)
    return incidents, _cut(rows, INCIDENTS_MAX, frame)


def _audit(read: _Reader, span: _Span) -> DataFrame:
    # A finding without a time is about the whole of the journals.
    frame: DataFrame = read.pair("gold.audit", span).where(
        F.col("at_us").isNull() | _is_within("at_us", span)
    )
    return frame


def _verdicts(read: _Reader, span: _Span) -> list[Verdicts]:
    count = F.coalesce(F.col("count"), F.lit(1))
    rows = _rows(
        _audit(read, span)
        .groupBy("rule")
        .agg(
            *(
                F.sum(F.when(F.col("verdict") == verdict, count).otherwise(0)).alias(verdict)
                for verdict in ("violated", "excused", "unproven")
            )
        )
        .orderBy("rule")
    )
    return [Verdicts(row.rule, row.violated, row.excused, row.unproven) for row in rows]


def _findings(read: _Reader, span: _Span) -> tuple[list[Finding], Cut]:
    frame = _audit(read, span).where(F.col("verdict") != "excused")
    rows = _rows(
        frame.orderBy(F.col("verdict").desc(), "at_us", "rule", "client", "number").limit(FINDINGS_MAX + 1)
    )
    findings = [
        Finding(
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
        for row in rows[:FINDINGS_MAX]
    ]
    return findings, _cut(rows, FINDINGS_MAX, frame)


def _objectives(read: _Reader, span: _Span) -> tuple[list[Objective], Cut, float | None]:
    at_us = F.unix_micros("minute")
    inside = (at_us > span.from_us - MINUTE_US) & (at_us < span.until_us)
    minutes = read.pair("gold.objectives", span).where(inside).withColumn("at_us", at_us)
    services = minutes.groupBy("service").agg(
        F.sum("requests").alias("requests"),
        F.sum("errors").alias("errors"),
        F.max("rate").alias("peak"),
        (F.sum(F.col("burn_rate") * F.col("requests")) / F.sum("requests")).alias("burn"),
        F.max(F.struct("burn_rate", (-F.col("at_us")).alias("minus_at_us"))).alias("worst"),
        F.sum(F.when(F.col("alert") == "fast", 1).otherwise(0)).alias("fast"),
        F.sum(F.when(F.col("alert") == "slow", 1).otherwise(0)).alias("slow"),
    )
    rows = _rows(services.orderBy(F.col("requests").desc(), "service").limit(SERVICES_MAX + 1))
    shown = rows[:SERVICES_MAX]
    names = [row.service for row in shown]
    percentiles = _percentiles(read, span, names)
    promises = _promises(read, span, names)
    burn = _burn(minutes, span, names[:PLOTTED_SERVICES_MAX])
    objectives = []
    for row in shown:
        found = percentiles.get(row.service, _Percentiles(None, None, None))
        has_worst = row.worst is not None and row.worst.burn_rate is not None
        objectives.append(
            Objective(
                service=row.service,
                requests=row.requests or 0.0,
                errors=row.errors or 0.0,
                peak_per_s=row.peak or 0.0,
                p50_us=found.p50_us,
                p95_us=found.p95_us,
                p99_us=found.p99_us,
                burn_rate=row.burn,
                worst_burn_rate=row.worst.burn_rate if has_worst else None,
                worst_at_us=-row.worst.minus_at_us if has_worst else None,
                fast_alerts=row.fast,
                slow_alerts=row.slow,
                promise=promises.get(row.service),
                burn=burn.get(row.service, []),
            )
        )
    overall = percentiles[_ALL].p99_us if _ALL in percentiles else None
    return objectives, _cut(rows, SERVICES_MAX, services), overall


def _promises(read: _Reader, span: _Span, services: list[str]) -> dict[str, Promise]:
    """What of their budgets the services have used by the end of the last day of the period."""
    names = [field.name for field in fields(Promise)]
    rows = _rows(
        read.pair("gold.budgets", span, margin_days=0)
        .where(F.col("service").isin(services))
        .groupBy("service")
        .agg(F.max_by(F.struct(*names), "day").alias("last"))
    )
    return {row.service: Promise(**row.last.asDict()) for row in rows}


def _burn(minutes: DataFrame, span: _Span, services: list[str]) -> dict[str, list[tuple[int, float]]]:
    step = max(span.step_us, MINUTE_US)
    rows = _rows(
        minutes.where(F.col("service").isin(services))
        .groupBy("service", F.floor(F.col("at_us") / step).alias("step"))
        .agg((F.sum(F.col("burn_rate") * F.col("requests")) / F.sum("requests")).alias("burn"))
        .orderBy("step")
    )
    burn: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.burn is not None:
            burn.setdefault(row.service, []).append((row.step * step, row.burn))
    return burn


def _sketches(read: _Reader, span: _Span) -> DataFrame:
    """service, at_us, bucket, weight of the total times."""
    at_us = F.unix_micros("minute")
    return (
        read.pair("gold.sketches", span)
        .where(
            (F.col("measure") == "total")
            & F.col("outcome").isin(*FINISHED)
            & (at_us > span.from_us - MINUTE_US)
            & (at_us < span.until_us)
        )
        .select("service", at_us.alias("at_us"), "bucket", "weight")
    )


class _Percentiles(NamedTuple):
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None


def _percentiles(read: _Reader, span: _Span, services: list[str]) -> dict[str, _Percentiles]:
    merged = (
        _sketches(read, span)
        .select(F.explode(F.array(F.lit(_ALL), "service")).alias("service"), "bucket", "weight")
        .where(F.col("service").isin(_ALL, *services))
        .groupBy("service", "bucket")
        .agg(sketch.millionths("weight").alias("parts"))
    )
    ranked = _ranked(merged, "service")
    rows = _rows(ranked.groupBy("service").agg(*(_reached(share) for share in (0.5, 0.95, 0.99))))
    return {service: _Percentiles(*map(sketch.value_of, buckets)) for service, *buckets in rows}


def _ranked(frame: DataFrame, *keys: str) -> DataFrame:
    """With the weight up to each bucket, and the whole weight, of those with the same keys."""
    whole = Window.partitionBy(*keys)
    upto = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return frame.select(
        "*", F.sum("parts").over(upto).alias("upto"), F.sum("parts").over(whole).alias("whole")
    )


def _reached(share: float) -> Column:
    return sketch.percentile(share, "bucket", "upto", "whole")


def _heats(read: _Reader, span: _Span, services: list[str]) -> tuple[list[float], list[Heat]]:
    if span.step_us >= MINUTE_US:
        found = _sketches(read, span)
    else:
        # Sketches are of minutes; a shorter step needs the requests themselves, of a few hours at most.
        found = (
            read.pair("silver.requests", span)
            .where(_is_within("ended_at_us", span) & F.col("outcome").isin(*FINISHED))
            .where(F.col("total_us").isNotNull())
            .select(
                "service",
                F.col("ended_at_us").alias("at_us"),
                sketch.bucket("total_us").alias("bucket"),
                "weight",
            )
        )
    merged = (
        found.groupBy("service", _step_of(F.col("at_us"), span).alias("step"), "bucket")
        .agg(sketch.millionths("weight").alias("parts"))
        .select(F.explode(F.array(F.lit(_ALL), "service")).alias("service"), "step", "bucket", "parts")
        .where(F.col("service").isin(_ALL, *services))
        .groupBy("service", "step", "bucket")
        .agg(F.sum("parts").alias("parts"))
    )
    rows = _rows(
        _ranked(merged, "service", "step")
        .groupBy("service", "step", F.floor(F.col("bucket") / _BUCKETS_A_ROW).cast("int").alias("row"))
        .agg((F.sum("parts") / 1e6).alias("weight"), _reached(0.5).alias("p50"), _reached(0.99).alias("p99"))
        .orderBy("service", "step", "row")
    )
    if not rows:
        return [], []
    lowest, highest = min(row.row for row in rows), max(row.row for row in rows)
    edges_us = [sketch.GAMMA ** (row * _BUCKETS_A_ROW - 1) for row in range(lowest, highest + 2)]
    heats = []
    for service in [_ALL, *services]:
        cells = [(row.step, row.row - lowest, row.weight) for row in rows if row.service == service]
        if not cells:
            continue
        p50: dict[int, int] = {}
        p99: dict[int, int] = {}
        # Ascending rows: the first one in which a share is reached has its bucket.
        for row in rows:
            if row.service == service:
                if row.p50 is not None:
                    p50.setdefault(row.step, row.p50)
                if row.p99 is not None:
                    p99.setdefault(row.step, row.p99)
        lines = [(step, sketch.value_of(p50[step]), sketch.value_of(p99[step])) for step in sorted(p50)]
        heats.append(Heat(service, cells, lines))
    return edges_us, heats


def _capacity(read: _Reader, span: _Span) -> tuple[list[Capacity], Cut]:
    at_us = F.unix_micros("hour")
    inside = (at_us > span.from_us - 60 * MINUTE_US) & (at_us < span.until_us)
    hours = read.pair("gold.capacity", span).where(inside).withColumn("at_us", at_us)
    columns = [name for name in hours.columns if name not in ("service", "at_us", "hour", "day", "pair")]
    latest = (
        hours.groupBy("service")
        .agg(F.max(F.struct("at_us", F.struct(*columns).alias("is"))).alias("last"))
        .select("service", "last.is.*")
        .withColumn("saturates_at_us", F.unix_micros("saturates_at"))
    )
    rows = _rows(latest.orderBy(F.col("utilisation").desc_nulls_last(), "service").limit(SERVICES_MAX + 1))
    shown = rows[:SERVICES_MAX]
    plotted = [row.service for row in shown[:PLOTTED_SERVICES_MAX]]
    step = -(-(span.until_us - span.from_us) // (60 * MINUTE_US * HOURS_MAX)) * 60 * MINUTE_US
    points: dict[str, list[tuple[int, float, float]]] = {}
    for row in _rows(
        hours.where(F.col("service").isin(plotted) & F.col("utilisation").isNotNull())
        .groupBy("service", F.floor(F.col("at_us") / step).alias("step"))
        .agg(F.avg("utilisation").alias("mean"), F.max("peak_utilisation").alias("peak"))
        .orderBy("step")
    ):
        points.setdefault(row.service, []).append((row.step * step, row.mean, row.peak or row.mean))
    capacity = [
        Capacity(
            service=row.service,
            workers=row.workers or 0.0,
            credit=row.credit or 0.0,
            utilisation=row.utilisation,
            peak_utilisation=row.peak_utilisation,
            arrivals_per_s=row.arrivals_per_s or 0.0,
            queued_max=row.queued_max or 0,
            queue_growth_per_s=row.queue_growth_per_s or 0.0,
            trend_per_day=row.trend_per_day,
            saturates_at_us=row.saturates_at_us,
            hours=points.get(row.service, []),
        )
        for row in shown
    ]
    return capacity, _cut(rows, SERVICES_MAX, latest)


def _clients(read: _Reader, span: _Span) -> tuple[list[Client], Cut]:
    frame = (
        read.pair("gold.clients", span, margin_days=0)
        .groupBy("client")
        .agg(
            F.max("node").alias("node"),
            F.sum("requests").alias("requests"),
            F.sum("not_answered").alias("not_answered"),
            F.sum("retries").alias("retries"),
            F.sum("busy").alias("busy"),
            F.max("share").alias("share"),
            F.max("peak_per_s").alias("peak_per_s"),
            F.max("total_p99_us").alias("p99_us"),
            F.max("is_flooding").alias("is_flooding"),
            F.max("is_retrying").alias("is_retrying"),
        )
    )
    flagged = F.coalesce("is_flooding", F.lit(False)) | F.coalesce("is_retrying", F.lit(False))
    rows = _rows(frame.orderBy(flagged.desc(), F.col("requests").desc(), "client").limit(CLIENTS_MAX + 1))
    clients = [
        Client(
            client=row.client,
            node=row.node or "",
            requests=row.requests or 0.0,
            not_answered=row.not_answered or 0.0,
            retries=row.retries or 0,
            busy=row.busy or 0,
            share=row.share or 0.0,
            peak_per_s=row.peak_per_s or 0.0,
            p99_us=row.p99_us,
            is_flooding=bool(row.is_flooding),
            is_retrying=bool(row.is_retrying),
        )
        for row in rows[:CLIENTS_MAX]
    ]
    return clients, _cut(rows, CLIENTS_MAX, frame)


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


def _quality(read: _Reader, span: _Span) -> Quality:
    files = read.pair("bronze.files", span)
    states = _rows(
        files.groupBy("state")
        .agg(F.count("*").alias("files"), F.sum("lines").alias("lines"), F.sum("duplicates").alias("twice"))
        .orderBy(F.col("files").desc(), "state")
    )
    # A file whose name tells neither pair nor day is everybody's.
    rejected = read.table("bronze.rejected").where(F.col("pair").isin(span.pair, "unknown"))
    reasons = _rows(
        rejected.groupBy("reason").agg(F.count("*").alias("n")).orderBy(F.col("n").desc(), "reason")
    )
    samples = _rows(
        rejected.select("file", "reason", F.substring("line", 1, LINE_CHARS_MAX).alias("line"))
        .orderBy("file", "line")
        .limit(SAMPLES_MAX)
    )
    totals = _rows(
        read.pair("silver.runs", span).agg(
            F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"),
            F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
            F.coalesce(F.max("is_sampled"), F.lit(False)).alias("is_sampled"),
        )
    )[0]
    return Quality(
        files=[(row.state, row.files) for row in states],
        rejected=[(row.reason, row.n) for row in reasons],
        samples=[(row.file or "", row.reason, row.line or "") for row in samples],
        lines=sum(row.lines or 0 for row in states),
        duplicates=sum(row.twice or 0 for row in states),
        missing=totals.missing,
        dropped=totals.dropped,
        is_sampled=totals.is_sampled,
    )
