"""When two nodes of a pair served at once, allowing for what their clocks may differ by.

Nodes on one machine read the same monotonic clock, so next to nothing is allowed for; on two machines it is
the clock error that the caller states, and by how much their clocks drifted apart meanwhile.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

CLOCK_ERROR_US = 10_000
"""What the wall clocks of two machines may differ by, unless told otherwise."""

SAME_CLOCK_ERROR_US = 1_000
"""On one machine: the time between a change and the moment that is recorded for it."""


def both_serving(states: DataFrame, runs: DataFrame, clock_error_us: int = CLOCK_ERROR_US) -> DataFrame:
    """One row for each overlap of two nodes' serving that is longer than the clock error.

    Columns: pair, since_at_us, until_at_us; node, boot and epoch of the one that had served before, and
    successor, successor_epoch of the one that came to it.
    """
    machines = runs.where("source = 'broker'").select("pair", "boot", "machine", "clock_unsure_us")
    by_node = Window.partitionBy("pair", "node")
    in_order = by_node.orderBy("since_at_us", "until_at_us")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    serving = (
        states.where("is_serving")
        .where(F.col("until_at_us") > F.col("since_at_us"))
        # A new epoch or an unimportant record cuts an interval in two; for serving it is one.
        .select("*", F.max("until_at_us").over(before).alias("served_until"))
        .select(
            "*",
            F.sum(F.when(F.col("since_at_us") <= F.col("served_until"), 0).otherwise(1))
            .over(in_order.rowsBetween(Window.unboundedPreceding, 0))
            .alias("turn"),
        )
        .groupBy("pair", "node", "turn")
        .agg(
            F.min_by("boot", "since_at_us").alias("boot"),
            F.max("epoch").alias("epoch"),
            F.min("since_at_us").alias("since_at_us"),
            F.max("until_at_us").alias("until_at_us"),
        )
        .drop("turn")
        .join(F.broadcast(machines), ["pair", "boot"], "left")
    )
    columns = ("node", "boot", "machine", "clock_unsure_us", "epoch", "since_at_us", "until_at_us")
    old = serving.select("pair", *(F.col(name).alias(f"old_{name}") for name in columns))
    new = serving.select("pair", *(F.col(name).alias(f"new_{name}") for name in columns))
    is_same_time = F.col("old_since_at_us") == F.col("new_since_at_us")
    came_later = (F.col("old_since_at_us") < F.col("new_since_at_us")) | (
        is_same_time & (F.col("old_node") < F.col("new_node"))
    )
    overlap = (
        old.join(new, "pair")
        .where((F.col("old_node") != F.col("new_node")) & came_later)
        .select(
            "*",
            F.col("new_since_at_us").alias("since_at_us"),
            F.least("old_until_at_us", "new_until_at_us").alias("until_at_us"),
            F.when(
                F.col("old_machine") == F.col("new_machine"), F.lit(min(SAME_CLOCK_ERROR_US, clock_error_us))
            )
            .otherwise(clock_error_us + F.greatest("old_clock_unsure_us", "new_clock_unsure_us"))
            .alias("allowed_us"),
        )
        .where(F.col("until_at_us") - F.col("since_at_us") > F.col("allowed_us"))
    )
    return overlap.select(
        "pair",
        "since_at_us",
        "until_at_us",
        F.col("old_node").alias("node"),
        F.col("old_boot").alias("boot"),
        F.col("old_epoch").alias("epoch"),
        F.col("new_node").alias("successor"),
        F.col("new_epoch").alias("successor_epoch"),
    )
