"""The runs of processes: who they were, how their clock goes, how much of their journal is here.

Every record has two times. The wall clock may be set while a process runs; the monotonic clock may not, but
it says nothing by itself. A run's ``offset_us`` turns the second into the first. It is the median of at -
mono over all its records. So records with a wrong wall clock do not matter while they are fewer than half.
Processes of one machine share a monotonic clock and so an offset: between them, times are exact. Between
machines they are as exact as the machines' clocks are set.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar_pipeline.schema import table_schema

_ABOUT = ("source", "machine", "host", "version", "config", "service", "heartbeat_us", "failover_timeout_us")

_TOPICS = ("requests", "calls", "executions")


def runs(records: DataFrame) -> DataFrame:
    """``silver.runs`` of bronze records. A run over midnight is of the day of its first record.

    One aggregation over all records by run and by at - mono, of which there are few; the rest is small.
    """
    offset_us = F.col("at") - F.col("mono")
    of_offset = records.groupBy("pair", "boot", "node", offset_us.alias("offset_us")).agg(
        F.count("*").alias("records"),
        F.min("day").alias("day"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("mono").alias("first_mono"),
        F.max("mono").alias("last_mono"),
        F.count_if(F.col("kind").isin("stopped", "fatal")).alias("ends"),
        *(F.count_if(F.col("topic") == topic).alias(topic) for topic in _TOPICS),
        F.count_if(F.coalesce(F.col("weight"), F.lit(1.0)) != 1).alias("weighted"),
        F.sum(F.when(F.col("kind") == "dropped", F.col("count"))).alias("dropped"),
    )
    starts = records.where(F.col("kind") == "started").groupBy("boot").agg(_start().alias("start"))
    told = of_offset.join(starts, "boot", "left").withColumn(
        "clock", F.coalesce(F.col("start.machine"), F.col("boot"))
    )
    clocks = told.groupBy("clock").agg(
        F.floor(F.percentile("offset_us", F.lit(0.5), F.col("records"))).alias("offset_us")
    )
    of_run = told.groupBy("pair", "boot", "node", "clock").agg(
        F.max("start").alias("start"),
        *(F.min(name).alias(name) for name in ("day", "first_seq", "first_mono")),
        *(F.max(name).alias(name) for name in ("last_seq", "last_mono")),
        *(F.sum(name).alias(name) for name in ("records", "ends", "weighted", "dropped", *_TOPICS)),
    )
    # Without its first record (of another day, or lost) a run is what it did.
    guess = (
        F.when(F.col("calls") > 0, "client")
        .when(F.col("executions") > 0, "worker")
        .otherwise(F.lit("broker"))
    )
    columns: dict[str, Column] = {name: F.col(f"start.{name}") for name in _ABOUT}
    columns |= {
        "source": F.coalesce(F.col("start.source"), guess),
        "started_at_us": F.col("first_mono") + F.col("offset_us"),
        "last_at_us": F.col("last_mono") + F.col("offset_us"),
        "is_clean": F.col("ends") > 0,
        "before": F.col("first_seq") - 1,
        "missing": F.greatest(F.col("last_seq") - F.col("before") - F.col("records"), F.lit(0)),
        # Each number comes once, unless the same process went on twice, as a restored snapshot does.
        "conflicts": F.greatest(F.col("records") - F.col("last_seq") + F.col("before"), F.lit(0)),
        "dropped": F.coalesce(F.col("dropped"), F.lit(0)),
        "is_sampled": (F.col("weighted") > 0) | (F.coalesce(F.col("start.sample"), F.lit(1.0)) < 1),
    }
    return of_run.join(clocks, "clock").withColumns(columns).select(*table_schema("silver.runs").names)


def _start() -> Column:
    """All of the record with which a run begins."""
    return F.max(F.struct("seq", "sample", *_ABOUT))
