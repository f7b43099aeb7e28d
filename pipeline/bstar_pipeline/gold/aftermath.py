"""What came of an incident: who took over, who noticed it first, and when both nodes were there again.

Each function adds columns to rows of incidents.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.told import Told

# An incident's first sign elsewhere comes within this time, or it is another incident's.
_SIGN_MAX_US = 60_000_000


def takeovers(told: Told, base: DataFrame) -> DataFrame:
    """Add was_serving, taken_over_at_us, successor and epoch."""
    roles = told.roles.select(
        "pair",
        *(
            F.col(name).alias(f"role_{name}")
            for name in ("node", "boot", "at_us", "seq", "epoch", "is_active")
        ),
    )
    at, began = F.col("role_at_us"), F.col("began_at_us")
    is_own = F.col("role_boot") == F.col("boot")
    is_active, is_later = F.col("role_is_active"), at >= began - told.clock_error_us
    latest = F.struct("role_at_us", "role_seq")
    is_start = F.col("kind") == "start"
    joined = (
        base.join(roles, "pair", "left")
        .groupBy(*base.columns)
        .agg(
            F.max_by("role_is_active", F.when(is_own & (at < began), latest)).alias("was_serving"),
            F.max_by("role_epoch", F.when((at < began) & is_active, latest)).alias("epoch_before"),
            F.min(
                F.when(
                    is_active & is_later & (F.col("role_node") != F.col("node")),
                    F.struct("role_at_us", "role_node", "role_epoch"),
                )
            ).alias("other"),
            F.min(
                F.when(
                    is_active & (at > began) & (F.col("role_node") == F.col("node")),
                    F.struct("role_at_us", "role_node", "role_epoch"),
                )
            ).alias("own"),
        )
    )
    is_in_time = (
        F.col("other").isNotNull()
        & (F.col("own").isNull() | (F.col("other.role_at_us") < F.col("own.role_at_us")))
        & (
            ~F.col("kind").isin("partition", "both-active", "pause")
            | F.col("ended_at_us").isNull()
            | (F.col("other.role_at_us") <= F.col("ended_at_us") + told.clock_error_us)
        )
    )
    was_serving = F.coalesce("was_serving", F.lit(False))
    taken = F.when(is_start, F.least("own", "other")).when(was_serving & is_in_time, F.col("other"))
    return joined.select(
        *base.columns,
        was_serving.alias("was_serving"),
        F.when(taken.isNotNull(), F.greatest(taken["role_at_us"], began)).alias("taken_over_at_us"),
        F.when(is_start, F.lit(None)).otherwise(taken["role_node"]).alias("successor"),
        F.coalesce(taken["role_epoch"], F.col("epoch_before"), F.lit(0)).alias("epoch"),
    )


def detections(told: Told, base: DataFrame) -> DataFrame:
    """Add detected_at_us: the first sign at another process."""
    signs = told.brokers.where("kind = 'peer-lost' OR (kind = 'state' AND new = 'ACTIVE')").unionByName(
        told.others.where(F.col("kind").isin("disconnected", "active-lost", "unregistered"))
    )
    signs = signs.select("pair", F.col("node").alias("sign_node"), F.col("at_us").alias("sign_at_us"))
    sign = F.when(
        (F.col("sign_node") != F.col("node"))
        & F.col("sign_at_us").between(
            F.col("began_at_us") - F.col("began_error_us"), F.col("began_at_us") + _SIGN_MAX_US
        ),
        F.col("sign_at_us"),
    )
    found = base.join(signs, "pair", "left").groupBy(*base.columns).agg(F.min(sign).alias("sign"))
    detected = (
        F.when(F.col("kind") == "start", F.col("taken_over_at_us"))
        .when(F.col("kind") == "both-active", F.col("ended_at_us"))
        .otherwise(F.greatest("began_at_us", F.least("sign", "lost_at_us", "taken_over_at_us")))
    )
    # greatest() ignores nulls: nobody noticed is null, not the beginning.
    is_noticed = F.coalesce("sign", "lost_at_us", "taken_over_at_us", "ended_at_us").isNotNull()
    return found.select(*base.columns, F.when(is_noticed, detected).alias("detected_at_us"))


def recoveries(told: Told, base: DataFrame) -> DataFrame:
    """Add recovered_at_us: both nodes are there again and know it."""
    seen = told.brokers.where("kind = 'peer-seen'").select(
        "pair", F.col("node").alias("seen_by"), F.col("at_us").alias("seen_at_us")
    )
    since = (
        F.when(F.col("kind") == "pause", F.col("ended_at_us") - told.clock_error_us)
        .when(F.col("kind").isin("crash", "stop"), F.coalesce("lost_at_us", "ended_at_us", "began_at_us"))
        .otherwise(F.col("began_at_us"))
    )
    is_after = (F.col("seen_at_us") > since) & (
        (F.col("kind") == "start") | (F.col("seen_by") != F.col("node"))
    )
    found = (
        base.join(seen, "pair", "left")
        .groupBy(*base.columns)
        .agg(F.min(F.when(is_after, F.col("seen_at_us"))).alias("seen"))
    )
    recovered = (
        F.when(F.col("kind") == "handover", F.col("taken_over_at_us"))
        .when(F.col("kind").isin("partition", "both-active"), F.col("ended_at_us"))
        .when((F.col("kind") == "pause") & F.col("lost_at_us").isNull(), F.col("ended_at_us"))
        .otherwise(F.col("seen"))
    )
    return found.select(*base.columns, recovered.alias("recovered_at_us"))


def refusals(told: Told) -> DataFrame:
    """What nodes refused: pair, at_us, count."""
    return told.brokers.where("kind = 'refused'").select("pair", "at_us", "count")
