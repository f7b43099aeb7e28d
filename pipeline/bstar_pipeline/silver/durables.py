"""Durable requests, each submission once, of the steps that both nodes recorded of it.

Both nodes tell each step, so one journal has it when the other one lost its last moments. A step is known by
its log entry, and counted once. When a request was last given to a worker comes from the nodes' records of
its attempts, which have its id as their ``client``.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the common name

from bstar_pipeline.gold.rules import DURABLE_NUMBER
from bstar_pipeline.schema import table_schema

_FOREVER = 1 << 62
# What a step makes of a request, and the order of steps that one entry did.
_STATES = {
    "submitted": "pending",
    "retried": "pending",
    "attempt": "pending",
    "answered": "answered",
    "dead": "dead",
    "cancelled": "cancelled",
    "closed": "closed",
    "forgotten": "forgotten",
}
_ENDS = "step IN ('answered', 'dead', 'cancelled')"
_KEY = ("pair", "client", "submission")
_STOPS = "step IN ('cancelled', 'closed')"
# What was cancelled may be retried.
_STOPPED = "array_min(transform(filter(stops, stop -> stop.entry > retried), stop -> stop.at_us))"


def durables(records: DataFrame, runs: DataFrame) -> DataFrame:
    """``silver.durables`` of bronze records and ``silver.runs``, of the day of its last step."""
    offsets = F.broadcast(runs.select("boot", "offset_us"))
    at_us = F.col("mono") + F.col("offset_us")
    steps = (
        records.where("topic = 'durables'")
        .join(offsets, "boot")
        .select(
            *_KEY, "service", "step", "entry", "node", "cause", "attempts", "reply_crc", "weight", "day",
            at_us.alias("at_us"),
        )
    )  # fmt: skip
    found = steps.groupBy(*_KEY).agg(
        F.max("day").alias("day"),
        F.max("service").alias("service"),
        F.max(F.when(F.col("step") != "fetched", _last())).alias("last"),
        F.expr("min(if(step = 'submitted', at_us, NULL))").alias("submitted_at_us"),
        F.expr(f"min(if({_ENDS}, at_us, NULL))").alias("ended_at_us"),
        F.expr(f"collect_list(if({_STOPS}, struct(entry, at_us), NULL))").alias("stops"),
        F.expr("coalesce(max(if(step = 'retried', entry, NULL)), 0)").alias("retried"),
        F.max("at_us").alias("last_at_us"),
        F.max("attempts").alias("attempts"),
        F.expr("size(collect_set(if(step = 'retried', entry, NULL)))").alias("retries"),
        F.expr(f"size(collect_set(if({_ENDS}, entry, NULL)))").alias("ends"),
        F.expr("count_if(step = 'fetched')").alias("fetches"),
        F.array_sort(F.collect_set("reply_crc")).alias("answers"),
        F.max("weight").alias("weight"),
    )
    given = (
        records.where(f"topic = 'requests' AND number = {DURABLE_NUMBER} AND deliveries > 0")
        .join(offsets, "boot")
        .groupBy("pair", "client")
        .agg(F.collect_list(at_us - F.coalesce("busy_us", F.lit(0))).alias("given"))
    )
    # An id that was closed may be submitted again.
    in_order = Window.partitionBy("pair", "client").orderBy("submission")
    next_at_us = F.coalesce(F.lead("submitted_at_us").over(in_order), F.lit(_FOREVER))
    its_own = "filter(given, at -> at < next_at_us AND at >= coalesce(submitted_at_us, 0))"
    described = (
        found.withColumn("next_at_us", next_at_us)
        .join(given, ["pair", "client"], "left")
        .withColumns(
            {
                "given_at_us": F.expr(f"array_max({its_own})"),
                "stopped_at_us": F.expr(_STOPPED),
                "state": F.col("last.state"),
                "last_entry": F.col("last.entry"),
                "cause": F.col("last.cause"),
                "node": F.col("last.node"),
            }
        )
    )
    fields = table_schema("silver.durables").fields
    return described.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in fields))


def _last() -> Column:
    """What the last step of a request makes of it; the greatest is the last."""
    step = F.col("step")
    rank = F.array_position(F.array(*map(F.lit, _STATES)), step)
    states = F.create_map(*(F.lit(word) for pair in _STATES.items() for word in pair))
    return F.struct(
        F.col("entry"), rank.alias("rank"), states[step].alias("state"), F.col("cause"), F.col("node")
    )
