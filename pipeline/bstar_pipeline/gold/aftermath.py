"""What came of an incident: who took over, who noticed it first, and when both nodes were there again.

Each function adds columns to rows of incidents.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.told import CUT_OFF, Told

# An incident's first sign elsewhere comes within this time, or it is another incident's.
_SIGN_MAX_US = 60_000_000


def takeovers(told: Told, base: DataFrame) -> DataFrame:
    """Add was_serving, taken_over_at_us, successor and epoch."""
    names = ("node", "boot", "at_us", "seq", "epoch", "is_active")
    roles = told.roles.selectExpr("pair", *(f"{name} AS role_{name}" for name in names))
    latest, taking = "struct(role_at_us, role_seq)", "struct(role_at_us, role_node, role_epoch)"
    is_before = "role_at_us < began_at_us"
    is_other = f"role_node <> node AND role_at_us >= began_at_us - {told.clock_error_us}"
    is_own = "role_node = node AND role_at_us > began_at_us"
    joined = (
        base.join(roles, "pair", "left")
        .groupBy(*base.columns)
        .agg(
            F.expr(
                f"max_by(role_is_active, if({is_before} AND role_boot = boot, {latest}, NULL)) AS was_serving"
            ),
            F.expr(f"max_by(role_epoch, if({is_before} AND role_is_active, {latest}, NULL)) AS epoch_before"),
            F.expr(f"min(if(role_is_active AND {is_other}, {taking}, NULL)) AS other"),
            F.expr(f"min(if(role_is_active AND {is_own}, {taking}, NULL)) AS own"),
        )
        .withColumn("was_serving", F.coalesce("was_serving", F.lit(False)))
    )
    is_in_time = (
        "other IS NOT NULL AND (own IS NULL OR other.role_at_us < own.role_at_us) "
        "AND (kind NOT IN ('partition', 'both-active', 'pause') OR ended_at_us IS NULL "
        f"OR other.role_at_us <= ended_at_us + {told.clock_error_us})"
    )
    taken = (
        f"CASE WHEN kind = 'start' THEN least(own, other) WHEN was_serving AND {is_in_time} THEN other END"
    )
    return joined.withColumn("taken", F.expr(taken)).selectExpr(
        *base.columns,
        "was_serving",
        "if(taken IS NOT NULL, greatest(taken.role_at_us, began_at_us), NULL) AS taken_over_at_us",
        "if(kind = 'start', NULL, taken.role_node) AS successor",
        "coalesce(taken.role_epoch, epoch_before, 0) AS epoch",
    )


def detections(told: Told, base: DataFrame) -> DataFrame:
    """Add detected_at_us: the first sign at another process."""
    signs = (
        told.brokers.where("kind = 'peer-lost' OR (kind = 'state' AND new = 'ACTIVE')")
        .unionByName(told.others.where(f"kind IN {CUT_OFF}"))
        .selectExpr("pair", "node AS sign_node", "at_us AS sign_at_us")
    )
    is_sign = (
        "sign_node <> node "
        f"AND sign_at_us BETWEEN began_at_us - began_error_us AND began_at_us + {_SIGN_MAX_US}"
    )
    sign = F.expr(f"min(if({is_sign}, sign_at_us, NULL)) AS sign")
    found = base.join(signs, "pair", "left").groupBy(*base.columns).agg(sign)
    # greatest() ignores nulls: nobody noticed is null, not the beginning.
    detected = (
        "CASE WHEN coalesce(sign, lost_at_us, taken_over_at_us, ended_at_us) IS NULL THEN NULL "
        "WHEN kind = 'start' THEN taken_over_at_us WHEN kind = 'both-active' THEN ended_at_us "
        "ELSE greatest(began_at_us, least(sign, lost_at_us, taken_over_at_us)) END AS detected_at_us"
    )
    return found.selectExpr(*base.columns, detected)


def recoveries(told: Told, base: DataFrame) -> DataFrame:
    """Add recovered_at_us: both nodes are there again and know it."""
    seen = told.brokers.where("kind = 'peer-seen'").selectExpr(
        "pair", "node AS seen_by", "at_us AS seen_at_us"
    )
    since = (
        f"CASE WHEN kind = 'pause' THEN ended_at_us - {told.clock_error_us} "
        "WHEN kind IN ('crash', 'stop') THEN coalesce(lost_at_us, ended_at_us, began_at_us) "
        "ELSE began_at_us END"
    )
    is_after = f"seen_at_us > {since} AND (kind = 'start' OR seen_by <> node)"
    found = (
        base.join(seen, "pair", "left")
        .groupBy(*base.columns)
        .agg(F.expr(f"min(if({is_after}, seen_at_us, NULL)) AS seen"))
    )
    recovered = (
        "CASE WHEN kind = 'handover' THEN taken_over_at_us "
        "WHEN kind IN ('partition', 'both-active') THEN ended_at_us "
        "WHEN kind = 'pause' AND lost_at_us IS NULL THEN ended_at_us ELSE seen END AS recovered_at_us"
    )
    return found.selectExpr(*base.columns, recovered)


def refusals(told: Told) -> DataFrame:
    """What nodes refused: pair, at_us, count."""
    return told.brokers.where("kind = 'refused'").select("pair", "at_us", "count")
