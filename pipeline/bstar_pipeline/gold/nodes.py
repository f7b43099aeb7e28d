"""What the journals prove about nodes and workers as such, not about single requests. Rows of ``gold.audit``.

*epoch-reused*: both nodes took one epoch. *stale-epoch*: a worker began a request of an epoch after it had
ended one of a higher epoch (guarantee 5 in docs/guarantees.md). *lost*: by its own counts a node accepted
more requests than its journal, which is whole, has ends of. *both-active* is unproven if the journal of a
node or of its peer is not here.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.schema import shaped


def node_findings(records: DataFrame, runs: DataFrame) -> DataFrame:
    """Rows of gold.audit, of bronze records and ``silver.runs``."""
    offsets = runs.select("boot", "offset_us", "before", "started_at_us")
    timed = records.join(F.broadcast(offsets), "boot").withColumn("at_us", F.col("mono") + F.col("offset_us"))
    parts = [_reused(timed), _stale(timed), _uncounted(timed, runs), _without_journal(runs)]
    return reduce(DataFrame.unionByName, [shaped(part, "gold.audit") for part in parts])


def _reused(timed: DataFrame) -> DataFrame:
    """Epochs that more than one node took."""
    taken = (
        timed.where("kind = 'active' AND epoch > 0")
        .groupBy("pair", "epoch")
        .agg(
            F.array_sort(F.collect_set("node")).alias("nodes"),
            F.max(F.struct("at_us", "node", "day")).alias("last"),
        )
    )
    names = "array_join(nodes, ' and ')"
    return taken.where("size(nodes) > 1").selectExpr(
        "last.day AS day",
        "pair",
        "'epoch-reused' AS rule",
        "'violated' AS verdict",
        "last.node AS node",
        "last.at_us AS at_us",
        "1L AS count",
        f"concat({names}, ' both took epoch ', epoch) AS text",
    )


def _stale(timed: DataFrame) -> DataFrame:
    """Workers that began a request of an epoch when one of a higher epoch had ended: the last such request.

    Both are of one run, so its monotonic clock compares them.
    """
    of_epoch = (
        timed.where("topic = 'executions' AND epoch > 0")
        .groupBy("pair", "boot", "node", "epoch")
        .agg(
            F.min("mono").alias("first_end"),
            F.expr("max(struct(mono - busy_us AS began, day, client, number, service, at_us)) AS last"),
        )
    )
    higher = of_epoch.selectExpr("boot", "epoch AS higher", "first_end AS higher_end")
    stale = (
        of_epoch.join(higher, "boot")
        .where("higher > epoch AND last.began > higher_end")
        .groupBy("pair", "boot", "node", "epoch")
        .agg(F.max("last").alias("last"), F.max("higher").alias("higher"))
    )
    return stale.selectExpr(
        "last.day AS day",
        "pair",
        "'stale-epoch' AS rule",
        "'violated' AS verdict",
        "node",
        "last.client AS client",
        "last.number AS number",
        "last.service AS service",
        "last.at_us AS at_us",
        "1L AS count",
        "format_string('worker %s began it in epoch %d, after it had executed in epoch %d', node, epoch, "
        "higher) AS text",
    )


def _uncounted(timed: DataFrame, runs: DataFrame) -> DataFrame:
    """Nodes that stopped in good order and accepted more requests than they recorded the ends of.

    What a node still held at its last count may have ended later: it is left out.
    """
    counted = (
        # Without its beginning the journal may lack what an interval counts.
        timed.where("kind = 'load' AND (before = 0 OR at_us - interval_us >= started_at_us)")
        .groupBy("boot", "service")
        .agg(
            F.sum("accepted").alias("accepted"),
            F.max_by(F.col("queued") + F.col("in_flight"), "seq").alias("held"),
            F.max("at_us").alias("at_us"),
            F.max("day").alias("day"),
        )
    )
    recorded = (
        timed.where("topic = 'requests' AND outcome <> 'late'")
        .groupBy("boot", "service")
        .agg(F.count("*").alias("ends"))
    )
    whole = runs.where(
        "source = 'broker' AND is_clean AND NOT is_sampled AND missing = 0 AND dropped = 0 AND conflicts = 0"
    ).select("pair", "boot", "node")
    return (
        counted.join(whole, "boot")
        .join(recorded, ["boot", "service"], "left")
        .withColumn("count", F.expr("accepted - held - coalesce(ends, 0)"))
        .where("count > 0")
        .selectExpr(
            "day",
            "pair",
            "'lost' AS rule",
            "'violated' AS verdict",
            "service",
            "node",
            "at_us",
            "count",
            "format_string('%s accepted %d requests, held %d of them at its last count, and recorded the end "
            "of %d', node, accepted, held, coalesce(ends, 0L)) AS text",
        )
    )


def _without_journal(runs: DataFrame) -> DataFrame:
    """Pairs of which fewer than two nodes have a journal here."""
    of_pair = runs.groupBy("pair").agg(
        F.min("day").alias("day"),
        F.min("started_at_us").alias("at_us"),
        F.expr("collect_set(if(source = 'broker', node, NULL)) AS nodes"),
    )
    return of_pair.where("size(nodes) < 2").selectExpr(
        "day",
        "pair",
        "'both-active' AS rule",
        "'unproven' AS verdict",
        "at_us",
        "1L AS count",
        "if(size(nodes) = 0, 'no journal of a node is here', concat('the journal of the peer of ', nodes[0], "
        "' is not here')) AS text",
    )
