"""Times in which several requests waited, nobody was at work on any, and none was answered.

Requests are counted by second first, so of any number of them little is left to put in order. One that waits
alone is no outage: it may be of a service without workers, or its caller's patience ended.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.told import FOREVER

OUTAGE_MIN_US = 1_000_000
"""Shorter waits are the business of the objectives."""

# What was caught by an incident may be answered that much after the other node serves.
_SETTLE_US = 2_000_000
_SECOND_US = 1_000_000


def outages(requests: DataFrame) -> DataFrame:
    """One row for each, of ``silver.requests``: pair, began_at_us, ended_at_us, waiting (requests), services.

    Not of pairs whose requests are a sample: those that are not here may have been answered meanwhile.
    """
    gaps = _gaps(requests)
    waited = _waits().alias("waited_us")
    slow = requests.select("pair", "service", "accepted_at_us", waited).where(
        F.col("waited_us") >= OUTAGE_MIN_US
    )
    in_gap = F.least(F.col("accepted_at_us") + F.col("waited_us"), "ended_at_us") - F.greatest(
        "accepted_at_us", "began_at_us"
    )
    return (
        gaps.join(slow, "pair")
        .where(in_gap >= OUTAGE_MIN_US)
        .groupBy("pair", "began_at_us", "ended_at_us")
        .agg(
            F.count("*").alias("waiting"),
            F.array_join(F.array_sort(F.collect_set("service")), ", ").alias("services"),
        )
        .where("waiting > 1")
    )


def _waits() -> Column:
    """How long a request waited for a worker to begin."""
    worked_us = F.when(_is_answer(), F.coalesce("busy_us", F.lit(0))).otherwise(0)
    return F.col("ended_at_us") - F.col("accepted_at_us") - worked_us


def _is_answer() -> Column:
    return F.col("outcome").isin("answered", "failed")


def _gaps(requests: DataFrame) -> DataFrame:
    """Times between two answers in a row in which a request waited: pair, began_at_us, ended_at_us."""
    is_answer = _is_answer()
    ended_us = F.col("ended_at_us")
    by_second = (
        requests.where(ended_us.isNotNull())
        .groupBy("pair", F.expr(f"ended_at_us DIV {_SECOND_US}").alias("second"))
        .agg(
            F.min(F.coalesce("accepted_at_us", ended_us)).alias("accepted_us"),
            F.min(F.when(is_answer, ended_us)).alias("first_us"),
            F.max(F.when(is_answer, ended_us)).alias("last_us"),
            F.min(F.when(is_answer, ended_us - F.coalesce("busy_us", F.lit(0)))).alias("work_us"),
            F.max(ended_us).alias("ended_us"),
            F.max("weight").alias("weight"),
        )
    )
    of_pair = Window.partitionBy("pair")
    in_order = of_pair.orderBy("second")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    # Backwards, because Spark begins anew at every row for a frame that ends with the last one.
    later = of_pair.orderBy(F.desc("second")).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # A gap is what ended after one answer, up to the next second with an answer.
    gaps = by_second.select(
        "*",
        F.max("weight").over(of_pair).alias("heaviest"),
        F.count("last_us").over(before).alias("gap"),
        F.max("last_us").over(before).alias("before_us"),
        F.min("accepted_us").over(later).alias("waits_us"),
        F.min("work_us").over(later).alias("works_us"),
    ).where("heaviest <= 1 AND before_us IS NOT NULL")
    found = gaps.groupBy("pair", "gap").agg(
        F.greatest(F.max("before_us"), F.min("waits_us")).alias("began_at_us"),
        F.coalesce(F.least(F.min("first_us"), F.min("works_us")), F.max("ended_us")).alias("ended_at_us"),
    )
    return found.where(F.col("ended_at_us") - F.col("began_at_us") >= OUTAGE_MIN_US).drop("gap")


def unexplained(found: DataFrame, incidents: DataFrame) -> DataFrame:
    """Those of ``found`` that are not part of an incident (pair, began_at_us, began_error_us, ended_at_us,
    was_serving, detected_at_us, taken_over_at_us).
    """
    over = f"if(was_serving, coalesce(taken_over_at_us, ended_at_us, {FOREVER}), began_at_us)"
    spans = incidents.selectExpr(
        "pair AS its_pair",
        f"began_at_us - began_error_us - {_SETTLE_US} AS since_us",
        f"greatest(began_at_us, detected_at_us, {over}) + {_SETTLE_US} AS until_us",
    )
    is_part = F.expr("pair = its_pair AND began_at_us <= until_us AND ended_at_us >= since_us")
    return found.join(spans, is_part, "left_anti")
