"""What services and clients did in a period: objectives, latencies, capacity, clients.

Spark adds up; what comes to the driver is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses
from pyspark.sql.window import Window

from bstar_pipeline import sketch
from bstar_pipeline.gold.objectives import FINISHED
from bstar_pipeline.report.content import Capacity, Client, Cut, Heat, Objective, Promise
from bstar_pipeline.report.reading import MINUTE_US, Tables, cut_of, is_within, rows_of, step_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SERVICES_MAX = 30
CLIENTS_MAX = 25
PLOTTED_SERVICES_MAX = 5
HOURS_MAX = 400
# Rows of the heat map are so many buckets: about eight a decade.
_BUCKETS_A_ROW = 14
# No service has this name: an empty one is refused.
_ALL = ""


def objectives(tables: Tables) -> tuple[list[Objective], Cut, float | None]:
    """Each service of the whole period, the busiest first, and the 99th percentile of all requests."""
    at_us = F.unix_micros("minute")
    inside = (at_us > tables.from_us - MINUTE_US) & (at_us < tables.until_us)
    minutes = tables.of_pair("gold.objectives").where(inside).withColumn("at_us", at_us)
    services = minutes.groupBy("pair", "service").agg(
        F.sum("requests").alias("requests"),
        F.sum("errors").alias("errors"),
        F.max("rate").alias("peak"),
        (F.sum(F.col("burn_rate") * F.col("requests")) / F.sum("requests")).alias("burn"),
        F.max(F.struct("burn_rate", (-F.col("at_us")).alias("minus_at_us"))).alias("worst"),
        F.sum(F.when(F.col("alert") == "fast", 1).otherwise(0)).alias("fast"),
        F.sum(F.when(F.col("alert") == "slow", 1).otherwise(0)).alias("slow"),
    )
    rows = rows_of(services.orderBy(F.col("requests").desc(), "pair", "service").limit(SERVICES_MAX + 1))
    shown = rows[:SERVICES_MAX]
    names = [row.service for row in shown]
    percentiles = _percentiles(tables, names)
    promises = _promises(tables, names)
    burn = _burn(minutes, tables, names[:PLOTTED_SERVICES_MAX])
    found = []
    for row in shown:
        times = percentiles.get((row.pair, row.service), _Percentiles(None, None, None))
        has_worst = row.worst is not None and row.worst.burn_rate is not None
        found.append(
            Objective(
                pair=row.pair,
                service=row.service,
                requests=row.requests or 0.0,
                errors=row.errors or 0.0,
                peak_per_s=row.peak or 0.0,
                p50_us=times.p50_us,
                p95_us=times.p95_us,
                p99_us=times.p99_us,
                burn_rate=row.burn,
                worst_burn_rate=row.worst.burn_rate if has_worst else None,
                worst_at_us=-row.worst.minus_at_us if has_worst else None,
                fast_alerts=row.fast,
                slow_alerts=row.slow,
                promise=promises.get((row.pair, row.service)),
                burn=burn.get((row.pair, row.service), []),
            )
        )
    overall = [times.p99_us for (_, service), times in percentiles.items() if service == _ALL]
    return found, cut_of(rows, SERVICES_MAX, services), overall[0] if len(overall) == 1 else None


def _promises(tables: Tables, services: list[str]) -> dict[tuple[str, str], Promise]:
    """What of their budgets the services have used by the end of the last day of the period."""
    names = [field.name for field in fields(Promise)]
    rows = rows_of(
        tables.of_pair("gold.budgets", margin_days=0)
        .where(F.col("service").isin(services))
        .groupBy("pair", "service")
        .agg(F.max_by(F.struct(*names), "day").alias("last"))
    )
    return {(row.pair, row.service): Promise(**row.last.asDict()) for row in rows}


def _burn(
    minutes: DataFrame, tables: Tables, services: list[str]
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    step = max(tables.step_us, MINUTE_US)
    rows = rows_of(
        minutes.where(F.col("service").isin(services))
        .groupBy("pair", "service", F.floor(F.col("at_us") / step).alias("step"))
        .agg((F.sum(F.col("burn_rate") * F.col("requests")) / F.sum("requests")).alias("burn"))
    )
    burn: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row.step):
        if row.burn is not None:
            burn.setdefault((row.pair, row.service), []).append((row.step * step, row.burn))
    return burn


def _sketches(tables: Tables) -> DataFrame:
    """service, at_us, bucket, weight of the total times."""
    at_us = F.unix_micros("minute")
    return (
        tables.of_pair("gold.sketches")
        .where(
            (F.col("measure") == "total")
            & F.col("outcome").isin(*FINISHED)
            & (at_us > tables.from_us - MINUTE_US)
            & (at_us < tables.until_us)
        )
        .select("pair", "service", at_us.alias("at_us"), "bucket", "weight")
    )


class _Percentiles(NamedTuple):
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None


def _percentiles(tables: Tables, services: list[str]) -> dict[tuple[str, str], _Percentiles]:
    merged = (
        _sketches(tables)
        .select("pair", F.explode(F.array(F.lit(_ALL), "service")).alias("service"), "bucket", "weight")
        .where(F.col("service").isin(_ALL, *services))
        .groupBy("pair", "service", "bucket")
        .agg(sketch.millionths("weight").alias("parts"))
    )
    ranked = _ranked(merged, "pair", "service")
    rows = rows_of(ranked.groupBy("pair", "service").agg(*(_reached(share) for share in (0.5, 0.95, 0.99))))
    return {(pair, service): _Percentiles(*map(sketch.value_of, buckets)) for pair, service, *buckets in rows}


def _ranked(frame: DataFrame, *keys: str) -> DataFrame:
    """With the weight up to each bucket, and the whole weight, of those with the same keys."""
    whole = Window.partitionBy(*keys)
    upto = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return frame.select(
        "*", F.sum("parts").over(upto).alias("upto"), F.sum("parts").over(whole).alias("whole")
    )


def _reached(share: float) -> Column:
    return sketch.percentile(share, "bucket", "upto", "whole")


def heats(tables: Tables, services: list[str]) -> tuple[list[float], list[Heat]]:
    """Latencies by time and duration: the edges of the rows; a heat for all, and one for each service."""
    if tables.step_us >= MINUTE_US:
        found = _sketches(tables)
    else:
        # Sketches are of minutes; a shorter step needs the requests themselves, of a few hours at most.
        found = (
            tables.of_pair("silver.requests")
            .where(is_within("ended_at_us", tables) & F.col("outcome").isin(*FINISHED))
            .where(F.col("total_us").isNotNull())
            .select(
                "service",
                F.col("ended_at_us").alias("at_us"),
                sketch.bucket("total_us").alias("bucket"),
                "weight",
            )
        )
    merged = (
        found.groupBy("service", step_of(F.col("at_us"), tables).alias("step"), "bucket")
        .agg(sketch.millionths("weight").alias("parts"))
        .select(F.explode(F.array(F.lit(_ALL), "service")).alias("service"), "step", "bucket", "parts")
        .where(F.col("service").isin(_ALL, *services))
        .groupBy("service", "step", "bucket")
        .agg(F.sum("parts").alias("parts"))
    )
    rows = rows_of(
        _ranked(merged, "service", "step")
        .groupBy("service", "step", F.floor(F.col("bucket") / _BUCKETS_A_ROW).cast("int").alias("row"))
        .agg((F.sum("parts") / 1e6).alias("weight"), _reached(0.5).alias("p50"), _reached(0.99).alias("p99"))
    )
    rows.sort(key=lambda row: (row.service, row.step, row.row))
    if not rows:
        return [], []
    lowest, highest = min(row.row for row in rows), max(row.row for row in rows)
    edges_us = [sketch.GAMMA ** (row * _BUCKETS_A_ROW - 1) for row in range(lowest, highest + 2)]
    drawn = []
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
        drawn.append(Heat(service, cells, lines))
    return edges_us, drawn


def capacity(tables: Tables) -> tuple[list[Capacity], Cut]:
    """The workers of each service, the most utilised first."""
    at_us = F.unix_micros("hour")
    inside = (at_us > tables.from_us - 60 * MINUTE_US) & (at_us < tables.until_us)
    hours = tables.of_pair("gold.capacity").where(inside).withColumn("at_us", at_us)
    columns = [name for name in hours.columns if name not in ("service", "at_us", "hour", "day", "pair")]
    latest = (
        hours.groupBy("service")
        .agg(F.max(F.struct("at_us", F.struct(*columns).alias("is"))).alias("last"))
        .select("service", "last.is.*")
        .withColumn("saturates_at_us", F.unix_micros("saturates_at"))
    )
    rows = rows_of(latest.orderBy(F.col("utilisation").desc_nulls_last(), "service").limit(SERVICES_MAX + 1))
    shown = rows[:SERVICES_MAX]
    plotted = [row.service for row in shown[:PLOTTED_SERVICES_MAX]]
    step = -(-(tables.until_us - tables.from_us) // (60 * MINUTE_US * HOURS_MAX)) * 60 * MINUTE_US
    points: dict[str, list[tuple[int, float, float]]] = {}
    means = rows_of(
        hours.where(F.col("service").isin(plotted) & F.col("utilisation").isNotNull())
        .groupBy("service", F.floor(F.col("at_us") / step).alias("step"))
        .agg(F.avg("utilisation").alias("mean"), F.max("peak_utilisation").alias("peak"))
    )
    for row in sorted(means, key=lambda row: row.step):
        points.setdefault(row.service, []).append((row.step * step, row.mean, row.peak or row.mean))
    found = [
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
    return found, cut_of(rows, SERVICES_MAX, latest)


def clients(tables: Tables) -> tuple[list[Client], Cut]:
    """Each client over the days of the period, the conspicuous and the busiest first."""
    frame = (
        tables.of_pair("gold.clients", margin_days=0)
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
    rows = rows_of(frame.orderBy(flagged.desc(), F.col("requests").desc(), "client").limit(CLIENTS_MAX + 1))
    found = [
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
    return found, cut_of(rows, CLIENTS_MAX, frame)
