"""How far the wall clocks of machines are apart, by the requests that both ends recorded; see ``clocks``."""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar_pipeline.clocks import Link, Off, Word, of_peers
from bstar_pipeline.pair_rows import Rows, columns, per_pair

# So many requests of a client in a row, and then none until as many as the second number were sent: few to
# bring together, and enough.
_RUN, _EVERY = 16, 1_024
_REQUEST = ("pair", "client", "number")
_TOPICS = ("requests", "calls", "executions")
_SHARE = 0.99


def links(records: DataFrame, runs: DataFrame) -> DataFrame:
    """Bounds for each two machines that requests connect: node, other, low_us, high_us (``clocks.Link``)."""
    clocks = F.broadcast(runs.select("boot", F.coalesce("machine", "boot").alias("clock"), "offset_us"))
    end_us = F.col("mono") + F.col("offset_us")
    is_run = F.col("topic") == "executions"
    took_us = F.when(is_run, F.col("busy_us")).otherwise(F.col("total_us"))
    ended = (
        records.where(F.col("topic").isin(*_TOPICS) & (F.col("number") % _EVERY < _RUN))
        .join(clocks, "boot")
        .withColumns({"end_us": end_us, "begin_us": end_us - took_us})
    )
    is_plain = (
        (is_run | F.col("outcome").isin("answered", "failed"))
        & took_us.isNotNull()
        # Of what was sent again, the ends may be of different attempts.
        & (F.coalesce("attempts", F.lit(1)) == 1)
        & (F.coalesce("deliveries", F.lit(1)) == 1)
    )
    times = F.struct("clock", "begin_us", "end_us")
    of_topic = {topic: F.when(F.col("topic") == topic, times) for topic in _TOPICS}
    requests = (
        ended.groupBy(*_REQUEST)
        .agg(
            *(F.min(told).alias(topic) for topic, told in of_topic.items()),
            *(F.count(told).alias(f"{topic}_count") for topic, told in of_topic.items()),
            F.min(is_plain).alias("is_plain"),
        )
        .where("is_plain AND requests_count = 1 AND calls_count <= 1 AND executions_count <= 1")
    )
    node = F.col("requests")

    def bounds(topic: str, low: Column, high: Column) -> DataFrame:
        of_both = requests.where(F.col(f"{topic}.clock") != node.clock)
        return of_both.select(
            node.clock.alias("node"),
            F.col(f"{topic}.clock").alias("other"),
            low.alias("low_us"),
            high.alias("high_us"),
        )

    call, run = F.col("calls"), F.col("executions")
    by_call = bounds("calls", node.end_us - call.end_us, node.begin_us - call.begin_us)
    by_run = bounds("executions", node.begin_us - run.begin_us, node.end_us - run.end_us)
    return (
        by_call.unionByName(by_run)
        .groupBy("node", "other")
        # Not the last: of very many requests, one may have a story that its records do not tell.
        .agg(
            F.expr(f"percentile_disc({_SHARE}) WITHIN GROUP (ORDER BY low_us) AS low_us"),
            F.expr(f"percentile_disc({_SHARE}) WITHIN GROUP (ORDER BY high_us DESC) AS high_us"),
        )
    )


def peer_links(records: DataFrame, runs: DataFrame) -> DataFrame:
    """Bounds for each two machines of a pair's nodes, by what the nodes recorded of each other."""
    clocks = F.broadcast(
        runs.where("source = 'broker'").select(
            "boot", F.coalesce("machine", "boot").alias("clock"), "offset_us"
        )
    )
    words = (
        records.where(
            (F.col("topic") == "events") & F.col("kind").isin("started", "peer-seen", "active", "state")
        )
        .join(clocks, "boot")
        .select(
            F.lit("word").alias("what"),
            *("pair", "seq", "clock", "boot", "kind", "event", "peer_boot"),
            (F.col("mono") + F.col("offset_us")).alias("at_us"),
        )
    )
    found = per_pair(
        words, _peer_links, columns(node="STRING", other="STRING", low_us="BIGINT", high_us="BIGINT")
    )
    return found.select(*Link._fields)


def _peer_links(pair: str, rows: Rows) -> Iterator[dict[str, Any]]:
    in_order = sorted(rows, key=lambda row: (row["boot"], row["seq"]))
    words = (Word(**{name: row[name] for name in Word._fields}) for row in in_order)
    for link in of_peers(words):
        yield {"what": "link", "pair": pair, **link._asdict()}


def corrected(runs: DataFrame, off: Mapping[str, Off]) -> DataFrame:
    """``silver.runs`` with the clocks of these machines put right."""
    clock = F.coalesce("machine", "boot")
    ahead_us = unsure_us = F.when(F.lit(False), F.lit(0))
    for name, known in off.items():
        ahead_us = ahead_us.when(clock == name, known.ahead_us)
        unsure_us = unsure_us.when(clock == name, known.unsure_us)
    told = {"clock_off_us": ahead_us, "clock_unsure_us": unsure_us}
    moved = runs.withColumns({name: column.otherwise(0).cast("bigint") for name, column in told.items()})
    return moved.withColumns(
        {name: F.col(name) - F.col("clock_off_us") for name in ("offset_us", "started_at_us", "last_at_us")}
    )
