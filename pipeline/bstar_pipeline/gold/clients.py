"""How much each client asks, how often it retries, and whether it floods the others.

A client with a journal is counted by its own calls, which have attempts and BUSY. A client without one is
counted by the nodes' records. Then retries are the requests that it marked as repeated, and BUSY is unknown
(null). The two are never added up. An identity names a client; a restarted process has a new one.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline import sketch
from bstar_pipeline.gold.rules import DURABLE_NUMBER

FLOOD_SHARE = 0.5
FLOOD_FACTOR = 10.0
"""A client floods if, in its busiest minute, it sent at least ``FLOOD_SHARE`` of the pair's requests and
``FLOOD_FACTOR`` times the median client's in its own busiest minute (the lower one of two).
"""

RETRY_SHARE = 0.05
RETRIES_MIN = 10
"""A client retries if it repeated at least this share of its requests, and at least this many."""

_MINUTE_US = 60_000_000
_DAY_US = 86_400_000_000
_SUMS = ("requests", "answered", "failed", "retries", "busy", "bytes_in", "bytes_out")
_WHOLE = ("retries", "busy", "bytes_in", "bytes_out")


def clients(records: DataFrame) -> DataFrame:
    """gold.clients of bronze records: one row for each client and day."""
    client = ("day", "pair", "client")
    by_client = Window.partitionBy(*client)
    # Where a client has said itself what it did, what others saw of it is left out.
    sums = (
        _sums(records)
        .select("*", F.max("is_own").over(by_client).alias("has_own"))
        .where(F.col("is_own") == F.col("has_own"))
    )
    so_far = by_client.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = sums.select(
        "*",
        F.sum("finished").over(so_far).alias("running"),
        F.sum("finished").over(by_client).alias("whole"),
        F.sum("requests").over(Window.partitionBy("day", "pair", "minute")).alias("of_all"),
    )
    found = ranked.groupBy(*client).agg(
        F.max("node").alias("node"),
        *(F.sum(name).alias(name) for name in _SUMS),
        F.max("requests").alias("peak"),
        F.max_by("of_all", F.struct("requests", -F.col("minute"))).alias("of_all"),
        sketch.percentile(0.99, "bucket", "running", "whole").alias("p99"),
    )
    requests, retries, peak = F.col("requests"), F.col("retries"), F.col("peak")
    day = Window.partitionBy("day", "pair")
    # The median, of an even number the lower one.
    is_lower = F.col("place") * 2 <= F.count("*").over(day) + 1
    usual = F.max(F.when(is_lower, peak)).over(day)
    is_flooding = (peak >= F.col("of_all") * FLOOD_SHARE) & (peak >= usual * FLOOD_FACTOR)
    is_retrying = (retries >= RETRIES_MIN * 1e6) & (retries >= requests * RETRY_SHARE)
    placed = found.withColumn("place", F.row_number().over(day.orderBy("peak", "client")))
    return placed.select(
        "client",
        "node",
        *((F.col(name) / 1e6).alias(name) for name in ("requests", "answered", "failed")),
        ((requests - F.col("answered") - F.col("failed")) / 1e6).alias("not_answered"),
        *(F.round(F.col(name) / 1e6).cast("bigint").alias(name) for name in _WHOLE),
        (requests / F.sum("requests").over(day)).alias("share"),
        (peak / 60e6).alias("peak_per_s"),
        sketch.value("p99").alias("total_p99_us"),
        is_flooding.alias("is_flooding"),
        is_retrying.alias("is_retrying"),
        "day",
        "pair",
    )


def _sums(records: DataFrame) -> DataFrame:
    """Weights in millionths by client, once for each minute (bucket is null) and once for each bucket of its
    times (minute is null, and only ``finished`` is counted). One pass; only sums are shuffled.
    """
    is_own = F.col("kind") == "call"
    is_recorded = (F.col("kind") == "request") & ~F.col("outcome").isin("returned", "late")
    answered, failed = F.col("outcome").isin("answered", "declined"), F.col("outcome") == "failed"
    retries = F.when(is_own, F.greatest(F.col("attempts") - 1, F.lit(0))).otherwise(
        F.col("is_repeated").cast("int")
    )
    rows = records.where(F.col("topic").isin("requests", "calls")).where(is_own | is_recorded)
    minute = F.expr(f"at DIV {_MINUTE_US}")
    by_minute = F.struct(minute.alias("minute"), F.lit(None).cast("int").alias("bucket"))
    by_time = F.struct(F.lit(None).cast("bigint").alias("minute"), sketch.bucket("total_us").alias("bucket"))
    # Attempts at durable requests have the request's id there; their client is the store.
    is_durable = F.col("number") == DURABLE_NUMBER
    entries = rows.select(
        "pair",
        F.when(is_durable, "durable").otherwise(F.col("client")).alias("client"),
        is_own.alias("is_own"),
        F.when(is_own, F.col("node")).alias("node"),
        F.expr(f"at DIV {_DAY_US}").cast("int").alias("unix_day"),
        "outcome",
        "weight",
        retries.alias("retries"),
        F.when(is_own, F.col("busy")).alias("busy"),
        "bytes_in",
        "bytes_out",
        F.explode(F.when(answered | failed, F.array(by_minute, by_time)).otherwise(F.array(by_minute))).alias(
            "entry"
        ),
    )

    def summed(times: Column | None, name: str, counts: str) -> Column:
        weight = F.col("weight") if times is None else F.col("weight") * times
        return sketch.millionths(F.when(F.col(f"entry.{counts}").isNotNull(), weight)).alias(name)

    # The node, of which there is one, is grouped by: a maximum of text would make Spark sort all rows.
    return entries.groupBy(
        "pair",
        "client",
        "is_own",
        "node",
        "unix_day",
        F.col("entry.minute").alias("minute"),
        F.col("entry.bucket").alias("bucket"),
    ).agg(
        F.date_from_unix_date("unix_day").alias("day"),
        summed(None, "requests", "minute"),
        summed(answered.cast("int"), "answered", "minute"),
        summed(failed.cast("int"), "failed", "minute"),
        *(summed(F.col(name), name, "minute") for name in _WHOLE),
        F.coalesce(summed(None, "finished", "bucket"), F.lit(0)).alias("finished"),
    )
