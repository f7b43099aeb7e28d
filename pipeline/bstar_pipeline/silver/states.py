"""Intervals of each node's state: what the timeline of an incident is read from.

A node's journal says when its state changed. Between two changes, from the start of its run to its last sign
of life, the state is the one it recorded last. A run that begins before the input does is what its first
record about a state says that it was. A node that was away (stopped by SIGSTOP, a sleeping machine, a blocked
loop) served nobody meanwhile: it says so when it is back, and that time is cut out of the interval in which
it lies. When a run without a last word ends is known to a heartbeat or so only, namely by its last record.

Whether such a run was killed or only its journal ends: it was killed if the node began another run, if its
peer lost it afterwards and never saw it again, or if the pair's other journals go on for longer than this
one ever was silent.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar_pipeline.schema import table_schema

# No chance: nodes write a record every few seconds.
_SILENT_MIN_US = 15_000_000
_AWAY = "STALL"
_RUN = ("pair", "node", "boot")


def states(records: DataFrame, runs: DataFrame) -> DataFrame:
    """``silver.states`` of bronze records and ``silver.runs``.

    An interval is of the day of the record that begins it. Only records of topic "events" are read.
    """
    brokers = runs.where(F.col("source") == "broker").select(
        *_RUN, "offset_us", "started_at_us", "last_at_us", "is_clean", F.col("day").alias("run_day")
    )
    told = (
        records.where((F.col("topic") == "events") & F.col("kind").isin(*_KINDS))
        .join(F.broadcast(brokers), list(_RUN))
        .withColumn("at_us", F.col("mono") + F.col("offset_us"))
    )
    points = _beginnings(told, brokers).unionByName(_changes(told)).unionByName(_absences(told))
    in_time = Window.partitionBy(*_RUN).orderBy("at_us", "rank", "seq")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    held = points.withColumns(
        {
            name: F.last(name, ignorenulls=True).over(so_far)
            for name in ("state", "epoch", "event", "text", "votes", "is_away")
        }
    ).withColumn("next_at_us", F.lead("at_us").over(in_time))
    # What took no time was only a step to what followed at once.
    lasting = held.where(F.col("next_at_us").isNull() | (F.col("next_at_us") > F.col("at_us")))
    lasting = lasting.withColumn("ended_by", F.lead("mark").over(in_time)).join(
        F.broadcast(_endings(told, runs, brokers)), list(_RUN)
    )
    until = F.coalesce(F.col("next_at_us"), F.greatest("at_us", "last_at_us"))
    columns = {
        "is_serving": (F.col("state") == "ACTIVE") & ~F.col("is_away"),
        "since_at_us": F.col("at_us"),
        "until_at_us": until,
        "ended_by": F.coalesce("ended_by", "run_ended_by"),
        "event": F.when(F.col("is_away"), _AWAY).otherwise(F.col("event")),
        "text": F.when(F.col("is_away"), "The process was away.").otherwise(F.col("text")),
    }
    return lasting.withColumns(columns).select(*table_schema("silver.states").names)


_KINDS = ("started", "state", "active", "stall", "pulse", "peer-seen", "peer-lost")


def _point(mark: str, rank: int, **given: Column) -> list[Column]:
    """The columns of a moment at which something about a node changes; null: as it was.

    ``rank`` orders what comes at the same moment.
    """
    columns = {
        "at_us": F.col("at_us"),
        "rank": F.lit(rank),
        "seq": F.col("seq"),
        "day": F.col("day"),
        "mark": F.lit(mark),
        "state": F.lit(None).cast("string"),
        "epoch": F.lit(None).cast("bigint"),
        "event": F.lit(None).cast("string"),
        "text": F.lit(None).cast("string"),
        "votes": F.lit(None).cast("bigint"),
        "is_away": F.lit(None).cast("boolean"),
        **given,
    }
    return [*(F.col(key) for key in _RUN), *(column.alias(name) for name, column in columns.items())]


def _beginnings(told: DataFrame, brokers: DataFrame) -> DataFrame:
    """The first moment of each run, and the state that it was in then."""
    first = told.groupBy(*_RUN).agg(
        F.min_by("old", F.when(F.col("kind") == "state", F.col("seq"))).alias("before_change"),
        F.min_by("state", F.when(F.col("kind") == "pulse", F.col("seq"))).alias("of_pulse"),
        F.min_by("epoch", F.when(F.col("kind").isin("started", "pulse"), F.col("seq"))).alias("first_epoch"),
    )
    named = brokers.join(first, list(_RUN), "left").withColumns(
        {"at_us": F.col("started_at_us"), "seq": F.lit(0).cast("bigint"), "day": F.col("run_day")}
    )
    state = F.coalesce("before_change", "of_pulse", F.upper("node"))
    return named.select(
        *_point(
            "start",
            0,
            state=state,
            epoch=F.coalesce("first_epoch", F.lit(0)),
            event=F.lit("START"),
            text=F.lit("The process began."),
            votes=F.lit(0).cast("bigint"),
            is_away=F.lit(False),
        )
    )


def _changes(told: DataFrame) -> DataFrame:
    """Changes of state, and of the epoch of a node that serves already.

    A node that becomes active says so twice: what it is now, and right after it in which epoch it serves.
    """
    in_order = Window.partitionBy(*_RUN).orderBy("seq")
    is_state, is_active = F.col("kind") == "state", F.col("kind") == "active"
    seen = told.where(is_state | is_active).withColumns(
        {
            "next_kind": F.lead("kind").over(in_order),
            "next_epoch": F.lead("epoch").over(in_order),
            "was_new": F.lag("new").over(in_order),
        }
    )
    serves = (F.col("new") == "ACTIVE") & (F.col("next_kind") == "active")
    is_echo = is_active & F.coalesce(F.col("was_new") == "ACTIVE", F.lit(False))
    return seen.where(~is_echo).select(
        *_point(
            "state",
            2,
            state=F.when(is_active, "ACTIVE").otherwise(F.col("new")),
            epoch=F.when(is_state & serves, F.col("next_epoch")).otherwise(F.col("epoch")),
            event=F.when(is_active, "EPOCH").otherwise(F.col("event")),
            text=F.col("text"),
            votes=F.col("votes"),
        )
    )


def _absences(told: DataFrame) -> DataFrame:
    """Both ends of each time that the process was away.

    A node that steps down because of it does so before it serves anybody: the moment between its two records,
    however long it was kept waiting in it, is part of its absence.
    """
    in_order = Window.partitionBy(*_RUN).orderBy("seq")
    stalls = (
        told.where(F.col("kind").isin("stall", "state", "active"))
        .withColumns(
            {"next_event": F.lead("event").over(in_order), "next_us": F.lead("at_us").over(in_order)}
        )
        .where(F.col("kind") == "stall")
    )
    ended_us = F.when(F.col("next_event") == _AWAY, F.col("next_us")).otherwise(F.col("at_us"))
    return stalls.select(
        *_point("stall", 3, at_us=F.col("at_us") - F.col("gap_us"), is_away=F.lit(True))
    ).unionByName(stalls.select(*_point("stall", 1, at_us=ended_us, is_away=F.lit(False))))


def _endings(told: DataFrame, runs: DataFrame, brokers: DataFrame) -> DataFrame:
    """How each run ended: ``run_ended_by`` stop, kill or end."""
    of_node = Window.partitionBy("pair", "node").orderBy("started_at_us", "boot")
    pair_ends = runs.groupBy("pair").agg(F.max("last_at_us").alias("pair_last_at_us"))
    in_run = Window.partitionBy(*_RUN).orderBy("seq")
    silences = (
        told.withColumn("silent_us", F.col("at_us") - F.lag("at_us").over(in_run))
        .groupBy(*_RUN)
        .agg(F.max("silent_us").alias("longest_us"))
    )
    # The last that each node said of its peer.
    of_peer = (
        told.where(F.col("kind").isin("peer-seen", "peer-lost"))
        .groupBy("pair", F.col("node").alias("observer"))
        .agg(F.max_by("kind", "at_us").alias("last_word"), F.max("at_us").alias("told_at_us"))
    )
    lost = (
        brokers.select(*_RUN, "last_at_us")
        .join(F.broadcast(of_peer), "pair")
        .where("observer <> node AND last_word = 'peer-lost' AND told_at_us > last_at_us")
        .select(*_RUN, F.lit(True).alias("is_lost"))
        .distinct()
    )
    is_killed = (
        "next_boot IS NOT NULL OR coalesce(is_lost, false) "
        f"OR pair_last_at_us - last_at_us > greatest({_SILENT_MIN_US}, 2 * coalesce(longest_us, 0))"
    )
    return (
        brokers.withColumn("next_boot", F.lead("boot").over(of_node))
        .join(F.broadcast(pair_ends), "pair")
        .join(silences, list(_RUN), "left")
        .join(lost, list(_RUN), "left")
        .select(
            *_RUN,
            "last_at_us",
            F.expr(
                f"CASE WHEN is_clean THEN 'stop' WHEN {is_killed} THEN 'kill' ELSE 'end' END AS run_ended_by"
            ),
        )
    )
