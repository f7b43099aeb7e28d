"""The kinds of incident, each read from what was told: ends, pauses, partitions, handovers, starts.

Each function makes rows of pair, kind, node, boot, began_at_us, began_error_us, ended_at_us (the node is
there again, or the link), lost_at_us (the peer missed the node) and text. How times are found is told in
``incidents``.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.serving import both_serving
from bstar_pipeline.gold.told import FOREVER, Told, half, middle, seconds


def ends(told: Told) -> DataFrame:
    """Crashes and stops."""
    pulse_us = (F.col("pulse_last") - F.col("pulse_first")) / F.nullif(F.col("pulses") - 1, F.lit(0))
    over = told.deaths.where("is_over")
    alive = F.greatest("last_at_us", F.col("loss.heard_at_us"))
    # A machine refuses connections to a process from the moment that it is dead. A message that did not come
    # in time says less: on a busy machine it may be late.
    is_refused = F.coalesce(F.col("loss.how") == "gone", F.lit(False))
    dead = F.least(
        F.col("loss.lost_at_us"),
        F.when(~is_refused, F.col("loss.heard_at_us") + F.col("heartbeat_us")),
        F.col("next_started_us"),
        F.when(F.col("loss").isNull(), F.col("last_at_us") + F.floor(pulse_us * 1.5)),
    )
    bounded = over.select(
        "*", alive.alias("alive_us"), F.greatest(alive, F.coalesce(dead, alive)).alias("dead_us")
    )
    # The first connection that broke in between is the nearest sign of death.
    broken = told.others.where(F.col("kind").isin("disconnected", "active-lost", "unregistered")).select(
        "pair", F.col("at_us").alias("broken_at_us")
    )
    near = (
        bounded.select("pair", "boot", "alive_us", "dead_us")
        .join(broken, "pair")
        .where(F.col("broken_at_us").between(F.col("alive_us"), F.col("dead_us")))
        .groupBy("pair", "boot")
        .agg(F.min("broken_at_us").alias("broken_at_us"))
    )
    is_fatal, is_stop = F.col("fatal_at_us").isNotNull(), F.col("is_clean")
    until = F.least("dead_us", "broken_at_us")
    exact = F.when(is_fatal, F.col("fatal_at_us")).when(
        is_stop, F.least("left_at_us", F.coalesce("stopped_at_us", "last_at_us"))
    )
    return bounded.join(near, ["pair", "boot"], "left").select(
        "pair",
        F.when(is_stop & ~is_fatal, F.lit("stop")).otherwise(F.lit("crash")).alias("kind"),
        "node",
        "boot",
        F.coalesce(exact, F.when(is_refused, until), "broken_at_us", middle(F.col("alive_us"), until)).alias(
            "began_at_us"
        ),
        F.when(exact.isNotNull(), F.lit(0)).otherwise(half(F.col("alive_us"), until)).alias("began_error_us"),
        F.col("next_started_us").alias("ended_at_us"),
        F.col("loss.lost_at_us").alias("lost_at_us"),
        _text_of_end(exact).alias("text"),
    )


def _text_of_end(exact: Column) -> Column:
    """How a node ended, who missed it, and when it came back; ``exact`` is null if nobody knows when."""
    is_fatal, is_stop = F.col("fatal_at_us").isNotNull(), F.col("is_clean")
    learned = (
        F.when(F.col("loss").isNull(), F.lit(""))
        .when(
            F.col("loss.how") == "gone",
            F.concat(F.lit(" "), F.col("loss.witness"), F.lit(" was refused a connection to it at once.")),
        )
        .when(F.col("loss.how") == "left", F.lit(""))
        .otherwise(
            F.concat(
                F.lit(" "),
                F.col("loss.witness"),
                F.lit(" missed it after "),
                seconds(F.col("loss.lost_at_us") - F.col("loss.heard_at_us")),
                F.lit(" of silence."),
            )
        )
    )
    back = F.when(
        F.col("next_started_us").isNull(), F.lit(" It was not started again in these journals.")
    ).otherwise(
        F.concat(
            F.lit(" It was started again after "),
            # Of a death without a word, the last sign of life is what is certain.
            seconds(F.col("next_started_us") - F.coalesce(exact, "alive_us")),
            F.when(exact.isNotNull(), F.lit(".")).otherwise(F.lit(", counted from its last sign of life.")),
        )
    )
    head = (
        F.when(
            is_fatal,
            F.concat(
                F.lit(" gave up with exit status "), F.col("exit_code"), F.lit(": "), "fatal_text", F.lit(".")
            ),
        )
        .when(
            is_stop,
            F.concat(
                F.lit(" was stopped in good order"),
                F.when(
                    F.col("stop_reason") != "", F.concat(F.lit(" ("), "stop_reason", F.lit(")"))
                ).otherwise(F.lit("")),
                F.lit("."),
            ),
        )
        .otherwise(F.lit(" ended without a word: killed, crashed, or its machine went down."))
    )
    return F.concat("node", head, learned, back)


def pauses(told: Told) -> DataFrame:
    """A node that was away."""
    text = F.concat(
        "node",
        F.lit(" stood still for "),
        seconds(F.col("gap_us")),
        F.lit(": stopped, starved of CPU, or its machine was suspended."),
    )
    return told.stalls.select(
        "pair",
        F.lit("pause").alias("kind"),
        "node",
        "boot",
        "began_at_us",
        F.floor(F.coalesce("heartbeat_us", F.lit(0)) / 2).alias("began_error_us"),
        "ended_at_us",
        "lost_at_us",
        text.alias("text"),
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
            F.min(F.col("first.heard_at_us") + F.col("first.heartbeat_us")).alias("cut_us"),
            F.min("first.lost_at_us").alias("lost_at_us"),
            F.max("until_us").alias("until_us"),
            F.count(F.lit(1)).alias("sides"),
            F.min("witness").alias("witness"),
        )
    )
    ended = F.when(F.col("until_us") < FOREVER, F.col("until_us"))
    cut = F.greatest("alive_us", "cut_us")
    began = middle(F.col("alive_us"), cut)
    side = F.when(F.col("sides") > 1, F.lit("The nodes did not hear each other")).otherwise(
        F.concat("witness", F.lit(" did not hear its peer"))
    )
    lasted = F.when(ended.isNull(), F.lit(" to the end of these journals")).otherwise(
        F.concat(F.lit(" for "), seconds(ended - began))
    )
    text = F.concat(side, lasted, F.lit(", and both lived: the link between them was cut or lost messages."))
    dated = first.select(
        "pair",
        began.alias("began_at_us"),
        half(F.col("alive_us"), cut).alias("began_error_us"),
        ended.alias("ended_at_us"),
        "lost_at_us",
        text.alias("text"),
    )
    return _at_the_active(told, dated).withColumn("kind", F.lit("partition"))


def _unexplained(told: Told) -> DataFrame:
    """Losses of a peer that lived and was awake."""
    deaths = told.deaths.where("is_over").select(
        "pair",
        "node",
        F.col("last_at_us"),
        F.coalesce("next_started_us", F.lit(FOREVER)).alias("back_us"),
        "started_at_us",
    )
    stalls = told.stalls.select("pair", "node", "began_at_us", "ended_at_us", "heartbeat_us")
    error = told.clock_error_us
    loss = told.losses.where("how <> 'left'").alias("loss")
    is_death = (
        (F.col("loss.pair") == F.col("death.pair"))
        & (F.col("loss.witness") != F.col("death.node"))
        & (F.col("loss.lost_at_us") >= F.col("death.last_at_us") - error)
        & (F.col("loss.lost_at_us") <= F.col("death.back_us") + error)
    )
    heartbeat = F.coalesce(F.col("stall.heartbeat_us"), F.lit(0))
    is_pause = (
        (F.col("loss.pair") == F.col("stall.pair"))
        & (F.col("loss.witness") != F.col("stall.node"))
        & (F.col("loss.lost_at_us") >= F.col("stall.began_at_us"))
        & (F.col("loss.lost_at_us") <= F.col("stall.ended_at_us") + heartbeat + error)
    )
    both_there = (
        (F.col("loss.pair") == F.col("run.pair"))
        & (F.col("loss.witness") != F.col("run.node"))
        & (F.col("run.started_at_us") <= F.col("loss.heard_at_us") + error)
        & (F.col("run.last_at_us") >= F.col("loss.heard_at_us") - error)
    )
    return (
        loss.join(deaths.alias("death"), is_death, "left_anti")
        .join(stalls.alias("stall"), is_pause, "left_anti")
        .join(told.runs.alias("run"), both_there, "left_semi")
        .join(
            told.runs.select("pair", F.col("boot").alias("witness_boot"), "heartbeat_us"),
            ["pair", "witness_boot"],
        )
    )


def _at_the_active(told: Told, dated: DataFrame) -> DataFrame:
    """Add the node (and boot) that was active last before each incident's beginning."""
    roles = told.roles.where("is_active").select("pair", "node", "boot", F.col("at_us").alias("role_at_us"))
    columns = dated.columns
    return (
        dated.join(roles, "pair", "left")
        .groupBy(*columns)
        .agg(
            F.max_by(
                F.struct("node", "boot"),
                F.when(F.col("role_at_us") <= F.col("began_at_us"), F.col("role_at_us")),
            ).alias("was")
        )
        .select(
            *columns,
            F.coalesce("was.node", F.lit("")).alias("node"),
            F.coalesce("was.boot", F.lit("")).alias("boot"),
        )
    )


def handovers(told: Told) -> DataFrame:
    """The operator moved the role, or it followed the clients."""
    return told.brokers.where(
        "kind = 'state' AND event IN ('HANDOVER', 'CLIENTS_CUT_OFF') AND old = 'ACTIVE'"
    ).select(
        "pair",
        F.lit("handover").alias("kind"),
        "node",
        "boot",
        F.col("at_us").alias("began_at_us"),
        F.lit(0).cast("bigint").alias("began_error_us"),
        F.lit(None).cast("bigint").alias("ended_at_us"),
        F.lit(None).cast("bigint").alias("lost_at_us"),
        F.when(
            F.col("event") == "HANDOVER",
            F.concat(F.lit("An operator had "), "node", F.lit(" hand the role over.")),
        )
        .otherwise(F.concat("node", F.lit(" handed the role over: clients reached its peer only.")))
        .alias("text"),
    )


def starts(told: Told) -> DataFrame:
    """The first node of a pair of which none was there."""
    before = (
        Window.partitionBy("pair").orderBy("started_at_us", "boot").rowsBetween(Window.unboundedPreceding, -1)
    )
    alone = told.runs.select("*", F.max("last_at_us").over(before).alias("others_until_us"))
    return alone.where("others_until_us IS NULL OR others_until_us < started_at_us").select(
        "pair",
        F.lit("start").alias("kind"),
        "node",
        "boot",
        F.col("started_at_us").alias("began_at_us"),
        F.lit(0).cast("bigint").alias("began_error_us"),
        F.lit(None).cast("bigint").alias("ended_at_us"),
        F.lit(None).cast("bigint").alias("lost_at_us"),
        F.concat(F.lit("The pair began: "), "node", F.lit(" was started, and no node was there.")).alias(
            "text"
        ),
    )


def both_active(states: DataFrame, runs: DataFrame, clock_error_us: int) -> DataFrame:
    """Both nodes served at once."""
    text = F.format_string(
        "Both nodes served for %.3f s: %s was made active while %s served.",
        (F.col("until_at_us") - F.col("since_at_us")) / 1e6,
        F.col("successor"),
        F.col("node"),
    )
    return both_serving(states, runs, clock_error_us).select(
        "pair",
        F.lit("both-active").alias("kind"),
        "node",
        "boot",
        F.col("since_at_us").alias("began_at_us"),
        F.lit(0).cast("bigint").alias("began_error_us"),
        F.col("until_at_us").alias("ended_at_us"),
        F.lit(None).cast("bigint").alias("lost_at_us"),
        text.alias("text"),
    )
