"""The utilisation of workers, and when they will be too few.

A node's load records have, for an interval, how long workers held requests (busy) and how many they take at
once (credit). busy / (credit × interval) is the utilisation. Only the node that serves counts. Workers
register at both nodes, and are idle at the passive one. A node's last record of its state before the load
record says which one it was.

The forecast is a straight line through the utilisation of all hours of the input, by least squares. It knows
nothing of weekdays and holidays: give it whole weeks. Fewer than two days give none, because then the rhythm
of a day looks like a trend.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.schema import table_schema

HOURS_MIN = 48
"""With fewer hours there is no forecast."""

# Beyond a year a straight line says nothing.
_AHEAD_MAX_S = 365 * 86_400
_HOUR_US = 3_600_000_000
_KEY = ("day", "pair", "service", "hour")


def capacity(records: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """gold.capacity of bronze records: one row for each service and hour in which a node served it.

    The line goes through the hours of ``before``, too: the table of earlier days.
    """
    loads = _loads_of_serving_nodes(records)
    room_us = F.col("credit") * F.col("interval_us")
    since_hour_s = (F.col("at") - F.unix_micros("hour")) / 1e6
    hours = loads.groupBy(*_KEY).agg(
        _mean("workers").alias("workers"),
        _mean("credit").alias("credit"),
        (F.sum("busy_us") / F.nullif(F.sum(room_us), F.lit(0))).alias("utilisation"),
        F.max(F.col("busy_us") / F.nullif(room_us, F.lit(0))).alias("peak_utilisation"),
        (F.sum("accepted") / F.sum("interval_us") * 1e6).alias("arrivals_per_s"),
        _mean("queued").alias("queued_mean"),
        F.max("queued").alias("queued_max"),
        F.regr_slope("queued", since_hour_s).alias("queue_growth_per_s"),
    )
    if before is not None:
        hours = hours.unionByName(before.select(*hours.columns))
    service = Window.partitionBy("pair", "service")
    at_s = F.unix_timestamp("hour").cast("double")
    known = F.count("utilisation").over(service) >= HOURS_MIN
    # Hours are counted from the last one: with seconds since 1970 the intercept would be far away.
    line = hours.select("*", F.max(F.unix_timestamp("hour")).over(service).alias("last_s"))
    after_s = at_s - F.col("last_s")
    line = line.select(
        "*",
        F.when(known, F.regr_slope("utilisation", after_s).over(service)).alias("slope"),
        F.when(known, F.regr_intercept("utilisation", after_s).over(service)).alias("intercept"),
    )
    until_s = (1 - F.col("intercept")) / F.nullif("slope", F.lit(0.0))
    saturates = (F.col("slope") > 0) & (until_s <= _AHEAD_MAX_S)
    # Rounded to the minute: more would be pretence.
    full_at = F.timestamp_seconds(F.round((F.col("last_s") + until_s) / 60) * 60)
    columns = {"trend_per_day": F.col("slope") * 86_400, "saturates_at": F.when(saturates, full_at)}
    return line.withColumns(columns).select(*table_schema("gold.capacity").names)


def _loads_of_serving_nodes(records: DataFrame) -> DataFrame:
    """Load records of nodes that were active then; of unknown state only those that had work."""
    serving = F.expr(
        "CASE kind WHEN 'active' THEN true WHEN 'inactive' THEN false "
        "WHEN 'pulse' THEN lower(state) = 'active' WHEN 'state' THEN lower(new) = 'active' END"
    )
    so_far = Window.partitionBy("pair", "boot").orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
    hour = F.timestamp_micros(F.expr(f"at DIV {_HOUR_US} * {_HOUR_US}L"))
    return (
        records.where("topic = 'events' AND kind IN ('load', 'pulse', 'state', 'active', 'inactive')")
        .select("*", F.last(serving, ignorenulls=True).over(so_far).alias("is_serving"))
        .where("kind = 'load' AND interval_us > 0")
        .where("coalesce(is_serving, busy_us > 0 OR accepted > 0 OR queued > 0)")
        .withColumns({"hour": hour, "day": F.to_date(hour)})
    )


def _mean(column: str) -> Column:
    """Over time: each record weighs as much as its interval is long."""
    return F.sum(F.col(column) * F.col("interval_us")) / F.sum("interval_us")
