"""What clients saw of an incident: the outage, and how many requests it touched.

Only requests that ended around an incident are looked at: incidents are few, each is told to every minute of
its surroundings, and requests meet them by pair and minute.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

WINDOW_US = 30_000_000
"""How far before and after an incident an answer is looked for."""

# What was caught by an incident is asked again within this time after the other node serves.
_SETTLE_US = 1_000_000
# Refusals are counted once in a while; the record comes at the end of the interval.
_REFUSED_LATE_US = 10_000_000
_MINUTE_US = 60_000_000
_CLIENT = 2


def impact(incidents: DataFrame, requests: DataFrame, refusals: DataFrame) -> DataFrame:
    """Add outage_us, outage_at_us, retried, refused, unknown and affected to ``incidents`` (id, pair,
    began_at_us, began_error_us, detected_at_us, taken_over_at_us). ``refusals`` (pair, at_us, count) are
    those of nodes.
    """
    since = F.col("began_at_us") - F.col("began_error_us")
    served = F.greatest(
        "began_at_us", "taken_over_at_us", F.least("detected_at_us", F.col("began_at_us") + WINDOW_US)
    )
    spans = incidents.select("id", "pair", since.alias("since_us"), served.alias("served_us"))
    counts = _counts(_around(spans, requests))
    refused = (
        spans.join(refusals, "pair")
        .where(F.col("at_us").between(F.col("since_us"), F.col("served_us") + _REFUSED_LATE_US))
        .groupBy("id")
        .agg(F.sum("count").alias("refused_at_nodes"))
    )
    return (
        incidents.join(counts, "id", "left")
        .join(refused, "id", "left")
        .selectExpr(
            *incidents.columns,
            "outage_us",
            "outage_at_us",
            "coalesce(retried, 0L) AS retried",
            "if(coalesce(has_calls, false), refused_calls, coalesce(refused_at_nodes, 0L)) AS refused",
            "coalesce(unknown, 0L) AS unknown",
            "coalesce(affected, 0L) AS affected",
        )
    )


def _around(spans: DataFrame, requests: DataFrame) -> DataFrame:
    """The requests that ended near an incident: those of clients if a client recorded any, else of nodes."""
    minutes = F.sequence(
        F.expr(f"(since_us - {WINDOW_US}) DIV {_MINUTE_US}"),
        F.expr(f"(served_us + {WINDOW_US}) DIV {_MINUTE_US}"),
    )
    around = spans.select("*", F.explode(minutes).alias("minute"))
    near = (
        requests.where(F.col("ended_at_us").isNotNull())
        .select(
            "pair",
            F.expr(f"ended_at_us DIV {_MINUTE_US}").alias("minute"),
            "accepted_at_us",
            "ended_at_us",
            "outcome",
            "call_outcome",
            "attempts",
            "is_repeated",
            (F.col("evidence").bitwiseAND(_CLIENT) != 0).alias("is_call"),
        )
        .join(F.broadcast(around), ["pair", "minute"])
        .where(F.col("ended_at_us").between(F.col("since_us") - WINDOW_US, F.col("served_us") + WINDOW_US))
    )
    of_incident = Window.partitionBy("id")
    told = near.select("*", F.max("is_call").over(of_incident).alias("has_calls"))
    return told.where(~F.col("has_calls") | F.col("is_call"))


def _counts(told: DataFrame) -> DataFrame:
    """The outage and the counts of each incident, of the requests near it."""
    in_order = Window.partitionBy("id").orderBy("ended_at_us")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    # Backwards, because Spark begins anew at every row for a frame that ends with the last one.
    after = (
        Window.partitionBy("id")
        .orderBy(F.desc("ended_at_us"))
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    is_answer = F.col("outcome").isin("answered", "failed")
    answer_us = F.when(is_answer, F.col("ended_at_us"))
    accepted_us = F.coalesce("accepted_at_us", "ended_at_us")
    gaps = told.select(
        "*",
        F.max(answer_us).over(before).alias("before_us"),
        # The first of those that had not ended yet.
        F.min(accepted_us).over(after).alias("waits_since_us"),
        F.count(answer_us).over(before).alias("gap"),
    )
    of_gap = Window.partitionBy("id", "gap")
    waited = F.greatest("before_us", F.min("waits_since_us").over(of_gap)).alias("waited_from_us")
    # Gaps that have anything to do with it: they end after it began, and begin before service was back.
    is_around = is_answer & F.expr("ended_at_us > since_us AND before_us <= served_us")
    waited_us = F.when(is_around, F.col("ended_at_us") - F.col("waited_from_us"))
    gaps = gaps.select("*", waited).withColumn("waited_us", waited_us)
    gaps = gaps.withColumn("longest_us", F.max("waited_us").over(Window.partitionBy("id")))
    is_within = (
        f"ended_at_us >= since_us AND coalesce(accepted_at_us, ended_at_us) <= served_us + {_SETTLE_US}"
    )
    is_retried = "(coalesce(attempts, 1) > 1 OR coalesce(is_repeated, false))"
    is_refused = "call_outcome IN ('busy', 'rejected', 'no-active')"
    is_unknown = "outcome IN ('timeout', 'unknown', 'interrupted', 'closed', 'returned', 'late', 'lost')"
    is_delayed = "(accepted_at_us <= since_us AND ended_at_us >= served_us)"
    is_affected = f"({is_retried} OR {is_refused} OR {is_unknown} OR {is_delayed})"
    return gaps.groupBy("id").agg(
        F.max("waited_us").alias("outage_us"),
        F.expr("min(if(waited_us = longest_us, waited_from_us, NULL)) AS outage_at_us"),
        F.expr(f"count_if({is_within} AND {is_retried}) AS retried"),
        F.expr(f"count_if({is_within} AND {is_refused}) AS refused_calls"),
        F.expr(f"count_if({is_within} AND {is_unknown}) AS unknown"),
        F.expr(f"count_if({is_within} AND {is_affected}) AS affected"),
        F.max("has_calls").alias("has_calls"),
    )
