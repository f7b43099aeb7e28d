"""Finds incidents in the reports, by kind: ends, pauses, partitions, handovers, starts.

Each function makes rows of pair, kind, node, boot, began_at_us, began_error_us, ended_at_us (the node is
there again, or the link), lost_at_us (the peer missed the node) and text. ``incidents`` explains how times
are found.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.serving import both_serving
from bstar_pipeline.gold.told import CUT_OFF, FOREVER, Told, text

# Two nodes that crash within this time went down together.
_BOTH_US = 10_000_000
_MIDDLE = "floor(({0} + {1}) / 2)"
_HALF = "ceil(({1} - {0}) / 2)"

# How a node ended, who missed it, and when it came back.
_TEXT_OF_END = (
    "{node}"
    "{CASE WHEN is_fatal THEN concat(' gave up with exit status ', exit_code, ': ', fatal_text, '.') "
    "WHEN is_clean THEN concat(' was stopped in good order', "
    "if(stop_reason <> '', concat(' (', stop_reason, ')'), ''), '.') "
    "ELSE ' ended without a word: killed, crashed, or its machine went down.' END}"
    "{CASE WHEN loss IS NULL OR loss.how = 'left' THEN '' "
    "WHEN loss.how = 'gone' THEN concat(' ', loss.witness, ' was refused a connection to it at once.') "
    "ELSE concat(' ', loss.witness, ' missed it after ', silence, ' of silence.') END}"
    "{CASE WHEN next_started_us IS NULL THEN ' It was not started again in these journals.' "
    # Of a death without a word, the last sign of life is what is certain.
    "ELSE concat(' It was started again after ', absence, "
    "if(exact_us IS NULL, ', counted from its last sign of life.', '.')) END}"
)


def ends(told: Told) -> DataFrame:
    """Crashes and stops."""
    # A machine refuses connections to a process from the moment that it is dead. A message that did not come
    # in time says less: on a busy machine it may be late.
    bounded = (
        told.deaths.where("is_over")
        .selectExpr(
            "*",
            "greatest(last_at_us, loss.heard_at_us) AS alive_us",
            "coalesce(loss.how = 'gone', false) AS is_refused",
            "fatal_at_us IS NOT NULL AS is_fatal",
            "(pulse_last - pulse_first) / nullif(pulses - 1, 0) AS pulse_us",
        )
        .selectExpr(
            "*",
            "greatest(alive_us, coalesce(least(loss.lost_at_us, next_started_us, "
            "if(is_refused, NULL, loss.heard_at_us + heartbeat_us), "
            "if(loss IS NULL, last_at_us + floor(pulse_us * 1.5), NULL)), alive_us)) AS dead_us",
        )
    )
    # The first connection that broke in between is the nearest sign of death.
    broken = told.others.where(f"kind IN {CUT_OFF}").selectExpr("pair", "at_us AS broken_at_us")
    near = (
        bounded.select("pair", "boot", "alive_us", "dead_us")
        .join(broken, "pair")
        .where("broken_at_us BETWEEN alive_us AND dead_us")
        .groupBy("pair", "boot")
        .agg(F.min("broken_at_us").alias("broken_at_us"))
    )
    dated = (
        bounded.join(near, ["pair", "boot"], "left")
        .selectExpr(
            "*",
            "least(dead_us, broken_at_us) AS until_us",
            "CASE WHEN is_fatal THEN fatal_at_us "
            "WHEN is_clean THEN least(left_at_us, coalesce(stopped_at_us, last_at_us)) END AS exact_us",
        )
        .withColumns(
            {
                "silence": text("{loss.lost_at_us - loss.heard_at_us:s}"),
                "absence": text("{next_started_us - coalesce(exact_us, alive_us):s}"),
            }
        )
    )
    began = "coalesce(exact_us, if(is_refused, until_us, NULL), broken_at_us, {})"
    found = dated.select(
        "pair",
        F.expr("if(is_clean AND NOT is_fatal, 'stop', 'crash') AS kind"),
        "node",
        "boot",
        F.expr(began.format(_MIDDLE.format("alive_us", "until_us"))).alias("began_at_us"),
        F.expr(f"if(exact_us IS NULL, {_HALF.format('alive_us', 'until_us')}, 0) AS began_error_us"),
        F.col("next_started_us").alias("ended_at_us"),
        F.col("loss.lost_at_us").alias("lost_at_us"),
        text(_TEXT_OF_END).alias("text"),
    )
    return _of_both(found)


def _of_both(found: DataFrame) -> DataFrame:
    """Ends, where the crash of the second node while the first was gone is part of the first one's."""
    in_order = Window.partitionBy("pair").orderBy("began_at_us", "node")
    peer = ("kind", "node", "began_at_us", "began_error_us", "ended_at_us", "text")
    placed = found.select(
        "*",
        *(F.lag(name).over(in_order).alias(f"before_{name}") for name in peer),
        *(F.lead(name).over(in_order).alias(f"after_{name}") for name in peer),
    )
    is_second = _is_second("before_", "")
    is_first = _is_second("", "after_")
    of_both = "concat(text, ' ', after_text, ' So no node was there.')"
    return placed.where(f"NOT coalesce({is_second}, false)").selectExpr(
        *(name for name in found.columns if name != "text"), f"if({is_first}, {of_both}, text) AS text"
    )


def _is_second(first: str, second: str) -> str:
    """Whether the end with the prefix ``second`` is of the peer of the one that crashed just before.

    The later start of the first would have told its death, so what nobody told was while nobody was there.
    """
    at_first = f"({second}began_at_us - {second}began_error_us)"
    return (
        f"({first}kind = 'crash' AND {second}kind = 'crash' AND {first}node <> {second}node "
        f"AND {at_first} <= {first}began_at_us + {first}began_error_us + {_BOTH_US} "
        f"AND {at_first} <= coalesce({first}ended_at_us, {FOREVER}))"
    )


def pauses(told: Told) -> DataFrame:
    """A node that was away."""
    why = "{node} stood still for {gap_us:s}: stopped, starved of CPU, or its machine was suspended."
    return told.stalls.select(
        "pair",
        F.lit("pause").alias("kind"),
        "node",
        "boot",
        "began_at_us",
        F.expr("floor(coalesce(heartbeat_us, 0) / 2) AS began_error_us"),
        "ended_at_us",
        "lost_at_us",
        text(why).alias("text"),
    )


def partitions(told: Told) -> DataFrame:
    """Losses that neither an end nor a pause of the peer explains."""
    in_order = Window.partitionBy("pair").orderBy("heard_at_us", "witness")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, -1)
    until = F.coalesce("seen_at_us", F.lit(FOREVER))
    is_new = F.col("heard_at_us") > F.coalesce(F.max(until).over(so_far), F.lit(-1))
    groups = (
        _unexplained(told)
        .select("*", is_new.cast("int").alias("is_new"))
        .select("*", F.sum("is_new").over(in_order.rowsBetween(Window.unboundedPreceding, 0)).alias("turn"))
    )
    # The first loss of each node; later ones of a link that comes and goes are part of it.
    first = (
        groups.groupBy("pair", "turn", "witness")
        .agg(
            F.min(F.struct("heard_at_us", "lost_at_us", "heartbeat_us")).alias("first"),
            F.max(until).alias("until_us"),
        )
        .groupBy("pair", "turn")
        .agg(
            F.max("first.heard_at_us").alias("alive_us"),
            F.expr("min(first.heard_at_us + first.heartbeat_us) AS cut_us"),
            F.min("first.lost_at_us").alias("lost_at_us"),
            F.max("until_us").alias("until_us"),
            F.count(F.lit(1)).alias("sides"),
            F.min("witness").alias("witness"),
        )
        .selectExpr(
            "*",
            f"if(until_us < {FOREVER}, until_us, NULL) AS ended_at_us",
            f"{_MIDDLE.format('alive_us', 'greatest(alive_us, cut_us)')} AS began_at_us",
            f"{_HALF.format('alive_us', 'greatest(alive_us, cut_us)')} AS began_error_us",
        )
        .withColumn("lasted", text(" for {ended_at_us - began_at_us:s}"))
    )
    why = text(
        "{if(sides > 1, 'The nodes did not hear each other', concat(witness, ' did not hear its peer'))}"
        "{coalesce(lasted, ' to the end of these journals')}"
        ", and both lived: the link between them was cut or lost messages."
    )
    dated = first.select(
        "pair", "began_at_us", "began_error_us", "ended_at_us", "lost_at_us", why.alias("text")
    )
    return at_the_active(told, dated).withColumn("kind", F.lit("partition"))


def _unexplained(told: Told) -> DataFrame:
    """Losses of a peer that lived and was awake."""
    error = told.clock_error_us
    loss = told.losses.where("how <> 'left'").alias("loss")
    of_peer = "loss.pair = {0}.pair AND loss.witness <> {0}.node AND "
    is_death = F.expr(
        of_peer.format("death") + f"loss.lost_at_us BETWEEN death.last_at_us - {error} AND "
        f"coalesce(death.next_started_us, {FOREVER}) + {error}"
    )
    is_pause = F.expr(
        of_peer.format("stall") + "loss.lost_at_us BETWEEN stall.began_at_us AND "
        f"stall.ended_at_us + coalesce(stall.heartbeat_us, 0) + {error}"
    )
    both_there = F.expr(
        of_peer.format("run") + f"run.started_at_us <= loss.heard_at_us + {error} AND "
        f"run.last_at_us >= loss.heard_at_us - {error}"
    )
    witnesses = told.runs.selectExpr("pair", "boot AS witness_boot", "heartbeat_us")
    return (
        loss.join(told.deaths.where("is_over").drop("loss").alias("death"), is_death, "left_anti")
        .join(told.stalls.alias("stall"), is_pause, "left_anti")
        .join(told.runs.alias("run"), both_there, "left_semi")
        .join(witnesses, ["pair", "witness_boot"])
    )


def at_the_active(told: Told, dated: DataFrame) -> DataFrame:
    """Add the node (and boot) that was active last before each incident's beginning."""
    roles = told.roles.where("is_active").selectExpr("pair", "node", "boot", "at_us AS role_at_us")
    columns = dated.columns
    last = "max_by(struct(node, boot), if(role_at_us <= began_at_us, role_at_us, NULL)) AS was"
    return (
        dated.join(roles, "pair", "left")
        .groupBy(*columns)
        .agg(F.expr(last))
        .selectExpr(*columns, "coalesce(was.node, '') AS node", "coalesce(was.boot, '') AS boot")
    )


def handovers(told: Told) -> DataFrame:
    """The operator moved the role, or it followed the clients."""
    moved = told.brokers.where(
        "kind = 'state' AND event IN ('HANDOVER', 'CLIENTS_CUT_OFF') AND old = 'ACTIVE'"
    )
    why = text(
        "{if(event = 'HANDOVER', concat('An operator had ', node, ' hand the role over.'), "
        "concat(node, ' handed the role over: clients reached its peer only.'))}"
    )
    return _exact(moved.withColumn("text", why), "handover", "at_us")


def starts(told: Told) -> DataFrame:
    """The first node of a pair of which none was there. After a crash it is the end of that incident."""
    before = (
        Window.partitionBy("pair").orderBy("started_at_us", "boot").rowsBetween(Window.unboundedPreceding, -1)
    )
    last = F.max(F.struct("last_at_us", "is_clean")).over(before)
    alone = told.runs.select("*", last.alias("last")).where(
        "NOT began_before AND (last IS NULL OR (last.last_at_us < started_at_us AND last.is_clean))"
    )
    why = text("The pair began: {node} was started, and no node was there.")
    return _exact(alone.withColumn("text", why), "start", "started_at_us")


def both_active(states: DataFrame, runs: DataFrame, clock_error_us: int) -> DataFrame:
    """Both nodes served at once."""
    why = text(
        "Both nodes served for {until_at_us - since_at_us:s}: "
        "{successor} was made active while {node} served."
    )
    both = both_serving(states, runs, clock_error_us).withColumn("text", why)
    return _exact(both, "both-active", "since_at_us", "until_at_us")


def _exact(rows: DataFrame, kind: str, began: str, ended: str = "CAST(NULL AS BIGINT)") -> DataFrame:
    """Incidents whose beginning is known to the microsecond, and that no peer missed."""
    return rows.selectExpr(
        "pair",
        f"'{kind}' AS kind",
        "node",
        "boot",
        f"{began} AS began_at_us",
        "0L AS began_error_us",
        f"{ended} AS ended_at_us",
        "CAST(NULL AS BIGINT) AS lost_at_us",
        "text",
    )
