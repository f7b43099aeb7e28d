"""What services and clients did in a period: objectives, latencies, capacity, clients.

Spark adds up; what comes to the driver is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's documentation uses
from pyspark.sql.window import Window

from bstar.records.broker import FINISHED
from bstar_pipeline import sketch
from bstar_pipeline.report.choice import filled
from bstar_pipeline.report.content import Capacity, Client, Heat, Objective, Promise, Shown
from bstar_pipeline.report.reading import MINUTE_US, Tables, first_rows, is_within, rows_of, shown, step_of

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


def objectives(tables: Tables) -> tuple[Shown[Objective], float | None]:
    """Each service of the whole period, the busiest first, and the 99th percentile of all requests."""
    at_us = F.unix_micros("minute")
    inside = (at_us > tables.choice.from_us - MINUTE_US) & (at_us < tables.choice.until_us)
    minutes = tables.of_pair("gold.objectives").where(inside).withColumn("at_us", at_us)
    # Of a minute that the period has in part the rate is not that of a minute.
    is_whole = (at_us >= tables.choice.from_us) & (at_us + MINUTE_US <= tables.choice.until_us)
    period_s = (tables.choice.until_us - tables.choice.from_us) / 1e6
    is_burning = F.col("burn_rate").isNotNull()
    worst = F.when(is_burning, F.struct("burn_rate", -F.col("at_us")))
    services = minutes.groupBy("pair", "service").agg(
        F.array_join(F.array_sort(F.collect_set("counted")), ", ").alias("counted"),
        F.sum("requests").alias("requests"),
        F.sum("errors").alias("errors"),
        F.coalesce(F.max(F.when(is_whole, F.col("rate"))), F.sum("requests") / period_s).alias("peak_per_s"),
        _mean_burn().alias("burn_rate"),
        F.max("burn_rate").alias("worst_burn_rate"),
        F.max_by("at_us", worst).alias("worst_at_us"),
        F.count_if(F.col("alert") == "fast").alias("fast_alerts"),
        F.count_if(F.col("alert") == "slow").alias("slow_alerts"),
    )
    rows = first_rows(services, SERVICES_MAX, F.col("requests").desc(), "pair", "service")
    names = [row.service for row in rows]
    percentiles = _percentiles(tables, names)
    promises = _promises(tables, names)
    burn = _burn(minutes, tables, names[:PLOTTED_SERVICES_MAX])
    found = []
    for row in rows:
        key = (row.pair, row.service)
        p50_us, p95_us, p99_us = percentiles.get(key, (None, None, None))
        given = {"p50_us": p50_us, "p95_us": p95_us, "p99_us": p99_us, "promise": promises.get(key)}
        found.append(filled(Objective, row, **given, burn=burn.get(key, [])))
    overall = [times[-1] for (_, service), times in percentiles.items() if service == _ALL]
    return Shown(found, rows.total), overall[0] if len(overall) == 1 else None


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


def _mean_burn() -> Column:
    return F.sum(F.col("burn_rate") * F.col("requests")) / F.sum("requests")


def _burn(
    minutes: DataFrame, tables: Tables, services: list[str]
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    step = max(tables.step_us, MINUTE_US)
    rows = rows_of(
        minutes.where(F.col("service").isin(services))
        .groupBy("pair", "service", F.floor(F.col("at_us") / step).alias("step"))
        .agg(_mean_burn().alias("burn"))
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
            & (at_us > tables.choice.from_us - MINUTE_US)
            & (at_us < tables.choice.until_us)
        )
        .select("pair", "service", at_us.alias("at_us"), "bucket", "weight")
    )


def _percentiles(tables: Tables, services: list[str]) -> dict[tuple[str, str], list[float]]:
    """By pair and service: the median, the 95th and the 99th percentile in microseconds."""
    merged = (
        _sketches(tables)
        .select("pair", F.explode(F.array(F.lit(_ALL), "service")).alias("service"), "bucket", "weight")
        .where(F.col("service").isin(_ALL, *services))
        .groupBy("pair", "service", "bucket")
        .agg(F.sum(F.expr(sketch.millionths_sql("weight"))).alias("parts"))
    )
    ranked = _ranked(merged, "pair", "service")
    rows = rows_of(ranked.groupBy("pair", "service").agg(*(_reached(share) for share in (0.5, 0.95, 0.99))))
    return {(pair, service): [*map(sketch.value_of, buckets)] for pair, service, *buckets in rows}


def _ranked(frame: DataFrame, *keys: str) -> DataFrame:
    """With the weight up to each bucket, and the whole weight, of those with the same keys."""
    whole = Window.partitionBy(*keys)
    upto = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return frame.select(
        "*", F.sum("parts").over(upto).alias("upto"), F.sum("parts").over(whole).alias("whole")
    )


def _reached(share: float) -> Column:
    return F.expr(sketch.percentile_sql(share, "bucket", "upto", "whole"))


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
                F.expr(sketch.bucket_sql("total_us")).alias("bucket"),
                "weight",
            )
        )
    merged = (
        found.groupBy("service", step_of(F.col("at_us"), tables).alias("step"), "bucket")
        .agg(F.sum(F.expr(sketch.millionths_sql("weight"))).alias("parts"))
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


def capacity(tables: Tables) -> Shown[Capacity]:
    """The workers of each service, the most utilised first."""
    at_us = F.unix_micros("hour")
    inside = (at_us > tables.choice.from_us - 60 * MINUTE_US) & (at_us < tables.choice.until_us)
    hours = tables.of_pair("gold.capacity").where(inside).withColumn("at_us", at_us)
    columns = [name for name in hours.columns if name not in ("service", "at_us", "hour", "day", "pair")]
    latest = (
        hours.groupBy("service")
        .agg(F.max(F.struct("at_us", F.struct(*columns).alias("is"))).alias("last"))
        .select("service", "last.is.*")
        .withColumn("saturates_at_us", F.unix_micros("saturates_at"))
    )
    rows = first_rows(latest, SERVICES_MAX, F.col("utilisation").desc_nulls_last(), "service")
    plotted = [row.service for row in rows[:PLOTTED_SERVICES_MAX]]
    step = (
        -(-(tables.choice.until_us - tables.choice.from_us) // (60 * MINUTE_US * HOURS_MAX)) * 60 * MINUTE_US
    )
    points: dict[str, list[tuple[int, float, float]]] = {}
    means = rows_of(
        hours.where(F.col("service").isin(plotted) & F.col("utilisation").isNotNull())
        .groupBy("service", F.floor(F.col("at_us") / step).alias("step"))
        .agg(F.avg("utilisation").alias("mean"), F.max("peak_utilisation").alias("peak"))
    )
    for row in sorted(means, key=lambda row: row.step):
        points.setdefault(row.service, []).append((row.step * step, row.mean, row.peak or row.mean))
    return Shown((filled(Capacity, row, hours=points.get(row.service, [])) for row in rows), rows.total)


def clients(tables: Tables) -> Shown[Client]:
    """Each client over the days of the period, the conspicuous and the busiest first."""
    summed = ("requests", "not_answered", "retries", "busy")
    greatest = ("node", "share", "peak_per_s", "is_flooding", "is_retrying")
    frame = (
        tables.of_pair("gold.clients", margin_days=0)
        .groupBy("client")
        .agg(
            *(F.sum(name).alias(name) for name in summed),
            *(F.max(name).alias(name) for name in greatest),
            F.max("total_p99_us").alias("p99_us"),
        )
    )
    flagged = F.expr("coalesce(is_flooding, false) OR coalesce(is_retrying, false)")
    return shown(Client, frame, CLIENTS_MAX, flagged.desc(), F.col("requests").desc(), "client")
