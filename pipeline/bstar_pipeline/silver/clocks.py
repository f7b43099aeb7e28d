"""How far the wall clocks of machines are apart, by the requests that both ends recorded; see ``clocks``."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the common name

from bstar.records.broker import FINISHED
from bstar_pipeline.clocks import Link, Word, of_peers
from bstar_pipeline.pair_rows import Row, Rows, by_pair

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
        (is_run | F.col("outcome").isin(*FINISHED))
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
            *(F.min(column).alias(topic) for topic, column in of_topic.items()),
            *(F.count(column).alias(f"{topic}_count") for topic, column in of_topic.items()),
            F.min(is_plain).alias("is_plain"),
        )
        .where("is_plain AND requests_count = 1 AND calls_count <= 1 AND executions_count <= 1")
    )
    node = F.col("requests")

    def bounds(topic: str, low: Column, high: Column) -> Column:
        other = F.col(f"{topic}.clock")
        found = F.struct(
            node.clock.alias("node"), other.alias("other"), low.alias("low_us"), high.alias("high_us")
        )
        return F.when(other != node.clock, found)

    call, run = F.col("calls"), F.col("executions")
    by_call = bounds("calls", node.end_us - call.end_us, node.begin_us - call.begin_us)
    by_run = bounds("executions", node.begin_us - run.begin_us, node.end_us - run.end_us)
    # Not a union of both, which would read the records twice.
    both = F.filter(F.array(by_call, by_run), lambda one: one.isNotNull())
    return (
        requests.select(F.explode(both).alias("bounds"))
        .select("bounds.*")
        .groupBy("node", "other")
        # Not the last: of very many requests, one may have a story that its records do not tell.
        .agg(
            F.expr(f"CAST(percentile_disc({_SHARE}) WITHIN GROUP (ORDER BY low_us) AS BIGINT) AS low_us"),
            F.expr(
                f"CAST(percentile_disc({_SHARE}) WITHIN GROUP (ORDER BY high_us DESC) AS BIGINT) AS high_us"
            ),
        )
    )


def peer_links(facts: Mapping[str, Rows], runs: Rows) -> list[Link]:
    """Bounds for each two machines of a pair's nodes, by what the nodes recorded of each other."""
    nodes = {run["boot"]: run for run in runs if run["source"] == "broker"}
    found = []
    for _, events in sorted(by_pair(facts.get("event", ())).items()):
        in_order = sorted(events, key=lambda event: (event["boot"], event["seq"]))
        found += of_peers(
            Word(
                clock_of(nodes[event["boot"]]),
                event["boot"],
                event["mono"] + nodes[event["boot"]]["offset_us"],
                event["kind"],
                event["event"],
                event["peer_boot"],
            )
            for event in in_order
            if event["boot"] in nodes
        )
    return found


def clock_of(run: Row) -> str:
    """The clock that a run goes by."""
    return str(run["machine"] or run["boot"])
