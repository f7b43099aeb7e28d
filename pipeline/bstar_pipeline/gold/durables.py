"""What the journals prove about durable requests. One row for each finding, as in ``gold.audit``.

*begun-after-end*: a node gave a request to a worker after its cancel or close could have been acknowledged.
*answer-changed*: clients got, or the nodes stored, different answers, or it ended twice without a retry.
*durable-lost*: after some log entry, more requests are in a state by the journals than the store itself
counts then. So some that were acknowledged are not there. Which ones is unknown. If the numbers fit, the
requests that are pending when the journals end are excused, because the store has them.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.schema import shaped

# What a node that was killed may not have written.
_UNWRITTEN_US = 2_000_000
_FOREVER = 1 << 62
_COUNTED = ("pending", "answered", "dead", "cancelled")


def durable_findings(
    durables: DataFrame,
    records: DataFrame,
    runs: DataFrame,
    states: DataFrame,
    clock_error_us: int = CLOCK_ERROR_US,
) -> DataFrame:
    """Rows of gold.audit, of ``silver.durables``, bronze records, ``silver.runs`` and ``silver.states``."""
    parts = [_begun(durables, clock_error_us), _changed(durables), _lost(durables, records, runs, states)]
    return reduce(DataFrame.unionByName, [shaped(part, "gold.audit") for part in parts])


def _begun(durables: DataFrame, clock_error_us: int) -> DataFrame:
    late_us = F.col("given_at_us") - F.col("stopped_at_us")
    text = F.format_string(
        "given to a worker %.1f ms after its cancel or close was stored (submission %d)",
        late_us / 1000,
        "submission",
    )
    return durables.where(late_us > clock_error_us).select(
        "*",
        F.lit("begun-after-end").alias("rule"),
        F.lit("violated").alias("verdict"),
        F.col("given_at_us").alias("at_us"),
        late_us.alias("duration_us"),
        F.lit(1).alias("count"),
        text.alias("text"),
    )


def _changed(durables: DataFrame) -> DataFrame:
    crcs = F.expr("array_join(transform(answers, crc -> hex(crc)), ', ')")
    different = F.format_string("nodes stored or gave answers with the CRC-32 %s", crcs)
    twice = F.format_string("it ended %d times, and was retried %d times", "ends", "retries")
    is_different = F.size("answers") > 1
    return durables.where(is_different | (F.col("ends") > F.col("retries") + 1)).select(
        "*",
        F.lit("answer-changed").alias("rule"),
        F.lit("violated").alias("verdict"),
        F.col("last_at_us").alias("at_us"),
        F.lit(1).alias("count"),
        F.when(is_different, different).otherwise(twice).alias("text"),
    )


def _lost(durables: DataFrame, records: DataFrame, runs: DataFrame, states: DataFrame) -> DataFrame:
    """Compares, for each pair and state, with the last count of a store that led."""
    held = (
        durables.where(F.col("state").isin(*_COUNTED))
        .join(_counts(records, runs), "pair", "left")
        .join(_doubts(runs, states), "pair", "left")
        .withColumns(
            {
                "is_counted": F.coalesce(F.col("last_entry") <= F.col("stated_entry"), F.lit(False)),
                "is_sure": F.col("last_at_us") > F.coalesce("doubt_us", F.lit(0)),
            }
        )
    )
    number = F.expr(f"CASE state {' '.join(f'WHEN {name!r} THEN {name}' for name in _COUNTED)} END")
    sums = held.groupBy("pair", "state").agg(
        F.max("day").alias("day"),
        F.max("stated_at_us").alias("at_us"),
        F.max("stated_entry").alias("entry"),
        F.max("teller").alias("node"),
        F.max(number).alias("stated"),
        F.count_if("is_counted").alias("known"),
        F.expr("count_if(is_counted AND is_sure)").alias("sure"),
        F.expr("count_if(NOT is_counted)").alias("later"),
    )
    judged = sums.select("*", F.inline(F.expr(_JUDGEMENT)))
    return judged.where("verdict IS NOT NULL AND count > 0").withColumn("rule", F.lit("durable-lost"))


# One type for both: the second text cannot be null.
_KIND = "STRUCT<verdict: STRING, count: BIGINT, text: STRING>"
# ``known`` by the journals, of these ``sure``, ``stated`` by the store; ``later`` than the store stated.
_JUDGEMENT = f"""array(
    CAST(struct(
        CASE WHEN sure > stated THEN 'violated' WHEN known > stated THEN 'unproven'
            WHEN state = 'pending' THEN 'excused' END AS verdict,
        if(known > stated, known - stated, known) AS count,
        CASE
            WHEN sure > stated THEN format_string(
                '%d are %s by the journals after entry %d, and the store of the %s has %d',
                sure, state, entry, node, stated)
            WHEN known > stated THEN format_string(
                '%d are %s by the journals after entry %d, and the store of the %s has %d, '
                || 'but a journal lacks something', known, state, entry, node, stated)
            ELSE 'pending when the journals end: the store has them' END AS text) AS {_KIND}),
    CAST(struct(
        if(state = 'pending', 'unproven', NULL) AS verdict,
        later AS count,
        'pending when the journals end, after the last count of a store that led' AS text) AS {_KIND})
)"""


def _counts(records: DataFrame, runs: DataFrame) -> DataFrame:
    """For each pair what a store that led has counted last."""
    entry, teller = F.col("entry").alias("stated_entry"), F.col("node").alias("teller")
    return (
        records.where("kind = 'store' AND is_leading")
        .join(F.broadcast(runs.select("boot", "offset_us")), "boot")
        .withColumn("stated_at_us", F.col("mono") + F.col("offset_us"))
        .groupBy("pair")
        .agg(F.max(F.struct("stated_at_us", entry, teller, *_COUNTED)).alias("stated"))
        .select("pair", "stated.*")
    )


def _doubts(runs: DataFrame, states: DataFrame) -> DataFrame:
    """For each pair the time until which an end may be in no record."""
    holes = runs.where("source = 'broker' AND (missing > 0 OR dropped > 0)").select(
        "pair", F.lit(_FOREVER).alias("until_us")
    )
    kills = states.where("ended_by = 'kill'").select(
        "pair", (F.col("until_at_us") + _UNWRITTEN_US).alias("until_us")
    )
    return holes.unionByName(kills).groupBy("pair").agg(F.max("until_us").alias("doubt_us"))
