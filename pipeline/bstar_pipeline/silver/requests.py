"""Requests, each once, of what nodes, clients and workers recorded of them.

The three kinds of record carry the request's identity. Nearly every request has one record of a node, and at
most one of its client and one of a worker: those are joined, which takes a third of the time of a grouping.
``odd`` finds the few others by grouping digests of identities; only those are grouped. Two identities of one
digest are no harm: they are grouped, each by itself.

A request of a plain Majordomo client has no identity that others know; its record stands for itself.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the common name

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.history import CLOCK_ERROR_US, SAME_CLOCK_ERROR_US
from bstar_pipeline.schema import table_schema

# What a node says of a request's end, the best last.
_OUTCOMES = (
    "returned", "cancelled", "lost", "poison", "expired", "late", "failed", "declined", "answered",
)  # fmt: skip
# The digest first: rows are sorted by whole numbers, and looked at further only where those are equal.
_KEY = ("digest", "number", "client", "pair", "apart")
_PLAIN = "mdp-"
# One number for outcome, time and node, the greatest is the best: 4 bits, 52 and 7.
_NAME = 1 << 7
_END = (1 << 52) - 1
_RANK = 1 << 59
_TOPICS = ("requests", "calls", "executions")


def requests(
    records: DataFrame, runs: DataFrame, few: DataFrame | None = None, clock_error_us: int = CLOCK_ERROR_US
) -> DataFrame:
    """``silver.requests`` of bronze records and ``silver.runs``.

    A request is of the day on which its last record was written; what a clock was ahead is taken off.
    ``few``: what ``odd`` found of the same records, if that are few.
    """
    columns, fields = _columns(clock_error_us), table_schema("silver.requests").fields
    shape = [columns[field.name].cast(field.dataType).alias(field.name) for field in fields]
    rows = _rows(records, runs)
    if few is None:
        return _grouped(rows.repartition(*_KEY)).select(*shape)
    few = F.broadcast(few)
    alone = _joined(rows.join(few, "digest", "left_anti"))
    return alone.select(*shape).unionByName(_grouped(rows.join(few, "digest", "left_semi")).select(*shape))


def odd(records: DataFrame) -> DataFrame:
    """The requests that cannot be ``_joined``: ``digest``; others, too, once in a very long while.

    Two small numbers for each record are sent to where they are counted.
    """
    check = F.xxhash64("pair", "client", "number", _apart())
    digests = records.where(F.col("topic").isin(*_TOPICS)).select(
        _digest().alias("digest"), check.alias("check"), "topic"
    )
    counts = (F.count_if(F.col("topic") == topic).alias(topic) for topic in _TOPICS)
    of_one = digests.repartition("digest").groupBy("digest")
    found = of_one.agg(*counts, F.min("check").alias("low"), F.max("check").alias("high"))
    return found.where("requests <> 1 OR calls > 1 OR executions > 1 OR low <> high").select("digest")


def _digest() -> Column:
    """Of a request's identity."""
    return F.xxhash64("number", "client", "pair", _apart())


def _apart() -> Column:
    """What tells requests of plain clients apart: the process that recorded it."""
    return F.when(F.col("client").startswith(_PLAIN), F.col("boot"))


def _rows(records: DataFrame, runs: DataFrame) -> DataFrame:
    joined = records.where(F.col("topic").isin(*_TOPICS)).join(
        F.broadcast(runs.select("boot", "offset_us", "clock_off_us")), "boot"
    )
    right_day = F.to_date(F.timestamp_micros(F.col("at") - F.col("clock_off_us")))
    return joined.select(
        _digest().alias("digest"),
        "pair",
        "client",
        "number",
        _apart().alias("apart"),
        F.when(F.col("clock_off_us") == 0, F.col("day")).otherwise(right_day).alias("day"),
        "topic",
        "offset_us",
        (F.col("mono") + F.col("offset_us")).alias("end_us"),
        "node",
        *_CARRIED,
    )


def _joined(rows: DataFrame) -> DataFrame:
    """Requests of one record of a node each, and at most one of a client and of a worker."""
    fields_of = (("pair", "client", "number", *_NODE, "deliveries"), _CALL, (*_RUN, "busy_us", "reply_crc"))
    node, call, run = (
        rows.where(F.col("topic") == topic).select(
            "digest", *(F.col(name).alias(f"{prefix}_{name}") for name in (*fields, *_SHARED))
        )
        for topic, prefix, fields in zip(_TOPICS, "ncx", fields_of, strict=True)
    )

    def of(prefix: str, fields: Sequence[str]) -> Column:
        return F.struct(*(F.col(f"{prefix}_{name}").alias(name) for name in fields))

    outcome, nothing = F.col("n_outcome"), F.lit(None).cast("bigint")
    has_call, has_run = (F.col(f"{prefix}_end_us").isNotNull() for prefix in "cx")
    is_late = outcome == "late"
    columns = {
        **{name: F.col(f"n_{name}") for name in ("pair", "client", "number")},
        "n": of("n", _NODE),
        "c": of("c", _CALL),
        "x": of("x", _RUN),
        "day": F.greatest("n_day", "c_day", "x_day"),
        "node_began_us": F.col("n_end_us") - F.col("n_total_us"),
        "run_began_us": F.col("x_end_us") - F.col("x_busy_us"),
        "node_records": F.lit(1),
        "answers": outcome.isin(*FINISHED).cast("int"),
        "returned": (outcome == "returned").cast("int"),
        "deliveries": F.when(~is_late, F.col("n_deliveries")).cast("int"),
        "executions": has_run.cast("int"),
        "unmarked": has_run.cast("int"),
        **dict.fromkeys(_MARKS, nothing),
        "calls": has_call.cast("int"),
        "is_repeated": F.greatest(*(F.coalesce(f"{prefix}_is_repeated", F.lit(False)) for prefix in "ncx")),
        "weight": F.greatest("n_weight", "c_weight", "x_weight"),
        "execution_crcs": F.filter(F.array("x_reply_crc"), lambda crc: crc.isNotNull()),
    }
    joined = node.join(call, "digest", "left").join(run, "digest", "left")
    return joined.select(*(column.alias(name) for name, column in columns.items()))


def _grouped(rows: DataFrame) -> DataFrame:
    """Requests of any number of records each."""
    is_node, is_call, is_run = (F.col("topic") == topic for topic in _TOPICS)
    took_us = F.when(is_run, F.col("busy_us")).otherwise(F.col("total_us"))
    began_us = F.col("end_us") - took_us
    is_answer = is_node & F.col("outcome").isin(*FINISHED)
    # The record that tells most: the better outcome, then the earlier. One greatest struct for each kind of
    # record: a row is looked at once, and not once for each column.
    rank = _rank() * _RANK + (_END - F.col("end_us")) * _NAME + _name()
    node = F.when(is_node, F.struct(rank.alias("rank"), *_NODE))
    call = F.when(is_call, F.struct(*_CALL))
    run = F.when(is_run, F.struct((-F.col("end_us")).alias("rank"), *_RUN))
    unmarked = F.when(is_run & ~F.col("is_repeated"), began_us)
    marked = F.when(is_run & F.col("is_repeated"), F.col("end_us"))
    return rows.groupBy(*_KEY).agg(
        F.max("day").alias("day"),
        F.max(node).alias("n"),
        F.max(call).alias("c"),
        F.max(run).alias("x"),
        F.min(F.when(is_node, began_us)).alias("node_began_us"),
        F.min(F.when(is_run, began_us)).alias("run_began_us"),
        _count(is_node).alias("node_records"),
        _count(is_answer).alias("answers"),
        _count(is_node & (F.col("outcome") == "returned")).alias("returned"),
        # A late reply is of a delivery that another record has counted.
        F.sum(F.when(is_node & (F.col("outcome") != "late"), F.col("deliveries")))
        .cast("int")
        .alias("deliveries"),
        _count(is_run).alias("executions"),
        _count(is_run & ~F.col("is_repeated")).alias("unmarked"),
        F.max(unmarked).alias("last_unmarked_us"),
        F.max_by("offset_us", unmarked).alias("unmarked_offset_us"),
        F.min(marked).alias("first_marked_us"),
        F.min_by("offset_us", marked).alias("marked_offset_us"),
        _count(is_call).alias("calls"),
        F.max("is_repeated").alias("is_repeated"),
        F.max("weight").alias("weight"),
        F.array_sort(F.collect_set(F.when(is_run, F.col("reply_crc")))).alias("execution_crcs"),
    )


_NODE = (
    "service", "sender", "node", "worker", "outcome", "epoch", "total_us", "queued_us", "busy_us", "bytes_in",
    "bytes_out", "end_us",
)  # fmt: skip
_CALL = (
    "end_us", "service", "outcome", "epoch", "total_us", "attempts", "busy", "is_idempotent", "bytes_in",
    "bytes_out", "reply_crc",
)  # fmt: skip
_RUN = ("service", "epoch", "bytes_in", "bytes_out", "end_us")
# What the row of a request needs of a record of any kind, and what tells marked runs from others.
_SHARED = ("day", "is_repeated", "weight")
_MARKS = ("last_unmarked_us", "unmarked_offset_us", "first_marked_us", "marked_offset_us")
_CARRIED = (
    "service", "sender", "worker", "outcome", "epoch", "total_us", "queued_us", "busy_us", "deliveries",
    "is_repeated", "bytes_in", "bytes_out", "weight", "attempts", "busy", "is_idempotent", "reply_crc",
)  # fmt: skip


def _rank() -> Column:
    """Where the outcome stands among those of nodes; one that is not known yet comes first."""
    known = F.array(*(F.lit(outcome) for outcome in _OUTCOMES))
    return F.coalesce(F.array_position(known, F.col("outcome")), F.lit(0))


def _name() -> Column:
    """A small number of the node: of two records of one moment the same is chosen for each column."""
    return F.pmod(F.xxhash64("node"), F.lit(_NAME))


def _count(condition: Column) -> Column:
    return F.count_if(condition).cast("int")


def _columns(clock_error_us: int) -> dict[str, Column]:
    """The columns of the table; the best source comes first."""
    evidence = F.lit(0)
    for bit, count in ((1, "node_records"), (2, "calls"), (4, "executions")):
        evidence = evidence + F.when(F.col(count) > 0, bit).otherwise(0)

    # Runs with one offset are of one machine.
    is_one = F.col("unmarked_offset_us") == F.col("marked_offset_us")
    allowed_us = F.when(is_one, SAME_CLOCK_ERROR_US).otherwise(clock_error_us)
    is_after = F.col("last_unmarked_us") - F.col("first_marked_us") > allowed_us

    def best(field: str, *of: str) -> Column:
        return F.coalesce(*(F.col(f"{record}.{field}") for record in of))

    return {
        "client": F.col("client"),
        "number": F.col("number"),
        "service": best("service", "n", "c", "x"),
        "sender": F.col("n.sender"),
        "node": F.col("n.node"),
        "worker": F.col("n.worker"),
        "outcome": best("outcome", "c", "n"),
        "evidence": evidence,
        "accepted_at_us": F.coalesce(
            "node_began_us", F.col("c.end_us") - F.col("c.total_us"), "run_began_us"
        ),
        "asked_at_us": F.coalesce(F.col("c.end_us") - F.col("c.total_us"), "node_began_us", "run_began_us"),
        "asked_by": F.when(F.col("calls") > 0, "call")
        .when(F.col("node_records") > 0, "node")
        .otherwise("run"),
        "ended_at_us": best("end_us", "c", "n", "x"),
        "epoch": best("epoch", "n", "c", "x"),
        "total_us": F.col("n.total_us"),
        "queued_us": F.col("n.queued_us"),
        "busy_us": F.col("n.busy_us"),
        "deliveries": F.col("deliveries"),
        "is_repeated": F.coalesce("is_repeated", F.lit(False)),
        "node_records": F.col("node_records"),
        "answers": F.col("answers"),
        "returned": F.col("returned"),
        "executions": F.col("executions"),
        # The first run needs no mark. A run after the end of a marked one is not the first.
        "unmarked": F.greatest(F.col("unmarked") - 1, F.when(is_after, 1).otherwise(0)).cast("int"),
        "calls": F.col("calls"),
        "call_outcome": F.col("c.outcome"),
        "call_total_us": F.col("c.total_us"),
        "attempts": F.col("c.attempts").cast("int"),
        "busy": F.col("c.busy").cast("int"),
        "is_idempotent": F.col("c.is_idempotent"),
        "bytes_in": best("bytes_in", "n", "c", "x"),
        "bytes_out": best("bytes_out", "n", "c", "x"),
        "reply_crc": F.col("c.reply_crc"),
        "execution_crcs": F.col("execution_crcs"),
        "weight": F.col("weight"),
        "day": F.col("day"),
        "pair": F.col("pair"),
    }
