"""The runs of processes: who they were, how their clock goes, how much of their journal is here.

Every record has two times. The wall clock may be set while a process runs; the monotonic clock may not, but
it says nothing by itself. A run's ``offset_us`` turns the second into the first. It is the median of at -
mono over all its records. So records with a wrong wall clock do not matter while they are fewer than half.
Processes of one machine share a monotonic clock and so an offset: between them, times are exact. Between
machines they are as exact as the machines' clocks are set, unless requests tell more (``corrected``).
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar.records import broker, client, pair, store, worker
from bstar_pipeline.schema import kinds_of, shaped

_ABOUT = ("source", "machine", "host", "version", "config", "service", "heartbeat_us", "failover_timeout_us")

_TOPICS = ("requests", "calls", "executions")
# What one kind of process alone records.
_KINDS = {
    "client": kinds_of(client),
    "worker": kinds_of(worker),
    "broker": (*kinds_of(broker, pair, store), "pulse"),
}


def earlier(older: DataFrame, records: DataFrame) -> DataFrame:
    """What records of before the job's days say of the runs that have later ones, too.

    ``boot``; ``start``, the record with which the run began, if it is there; ``read_to``, the last number
    before the later ones; ``astray``, how many came after the first of those: a wall clock was set, or is
    behind.
    """
    begun = F.broadcast(records.groupBy("boot").agg(F.min("seq").alias("first_seq")))
    is_before = F.col("seq") < F.col("first_seq")
    return (
        older.join(begun, "boot")
        .groupBy("boot")
        .agg(
            F.max(F.when(F.col("kind") == "started", _first())).alias("start"),
            F.max(F.when(is_before, F.col("seq"))).alias("read_to"),
            F.count_distinct(F.when(~is_before, F.col("seq"))).alias("astray"),
        )
    )


def runs(records: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """``silver.runs`` of bronze records. A run over midnight is of the day of its first record.

    ``before`` is what ``earlier`` found. One aggregation goes over all records by run and by at - mono, of
    which there are few; the rest is small.
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
        *(F.max(F.col("kind").isin(*kinds)).alias(f"is_{source}") for source, kinds in _KINDS.items()),
        F.count_if(F.coalesce(F.col("weight"), F.lit(1.0)) != 1).alias("weighted"),
        F.sum(F.when(F.col("kind") == "dropped", F.col("count"))).alias("dropped"),
    )
    starts = records.where(F.col("kind") == "started").groupBy("boot").agg(F.max(_first()).alias("start"))
    told = of_offset.join(starts, "boot", "left")
    if before is None:
        told = told.withColumns({"read_to": F.lit(0), "astray": F.lit(0)})
    else:
        known = F.broadcast(before.withColumnRenamed("start", "known"))
        told = told.join(known, "boot", "left").withColumn("start", F.coalesce("start", "known"))
    told = told.withColumn("clock", F.coalesce(F.col("start.machine"), F.col("boot")))
    clocks = _medians(told)
    of_run = told.groupBy("pair", "boot", "node", "clock").agg(
        F.max("start").alias("start"),
        *(F.min(name).alias(name) for name in ("day", "first_seq", "first_mono")),
        *(F.max(name).alias(name) for name in ("last_seq", "last_mono", "read_to", "astray")),
        *(F.max(f"is_{source}").alias(f"is_{source}") for source in _KINDS),
        *(F.sum(name).alias(name) for name in ("records", "ends", "weighted", "dropped", *_TOPICS)),
    )
    # Without its first record (of another day, or lost) a run is what it did; one that did nothing that only
    # one kind of process does is nobody's.
    did = F.coalesce(*(F.when(F.col(f"is_{source}"), source) for source in _KINDS), F.lit("unknown"))
    columns: dict[str, Column] = {name: F.col(f"start.{name}") for name in _ABOUT}
    columns |= {
        "source": F.coalesce(F.col("start.source"), did),
        "started_at_us": F.col("first_mono") + F.col("offset_us"),
        "last_at_us": F.col("last_mono") + F.col("offset_us"),
        "is_clean": F.col("ends") > 0,
        "began_before": F.col("first_seq") > 1,
        # What was read, and is of days before, is not missing.
        "before": F.when(F.col("read_to") >= F.col("first_seq") - 1, 0).otherwise(F.col("first_seq") - 1),
        "missing": F.greatest(
            F.col("last_seq") - F.col("first_seq") + 1 - F.col("records") - F.coalesce("astray", F.lit(0)),
            F.lit(0),
        ),
        # Each number comes once, unless the same process went on twice, as a restored snapshot does.
        "conflicts": F.greatest(F.col("records") - F.col("last_seq") + F.col("first_seq") - 1, F.lit(0)),
        "dropped": F.coalesce(F.col("dropped"), F.lit(0)),
        "clock_off_us": F.lit(0),
        "clock_unsure_us": F.lit(0),
        "is_sampled": (F.col("weighted") > 0) | (F.coalesce(F.col("start.sample"), F.lit(1.0)) < 1),
    }
    return shaped(of_run.join(clocks, "clock").withColumns(columns), "silver.runs")


def _medians(told: DataFrame) -> DataFrame:
    """Of each ``clock`` the offset up to which half of its records are."""
    of_clock = Window.partitionBy("clock")
    upto = of_clock.orderBy("offset_us").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = told.select(
        "clock",
        "offset_us",
        F.sum("records").over(upto).alias("upto"),
        F.sum("records").over(of_clock).alias("whole"),
    )
    return ranked.where("upto * 2 >= whole").groupBy("clock").agg(F.min("offset_us").alias("offset_us"))


def _first() -> Column:
    """All of the record with which a run begins."""
    return F.struct("seq", "sample", *_ABOUT)
