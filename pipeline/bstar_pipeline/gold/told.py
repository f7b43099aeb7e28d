"""Reports of brokers, clients and workers about events and lost peers, the source of incidents.

A node that fell silent is explained once: by its end, by a pause, and only if it did neither by a partition.
The frames in here are small and asked for again and again. So each is computed once and its plan is cut there
(``settled``). One plan with all of them, several times, would take longer to make than to run.
"""

import re

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.engine import settled

FOREVER = 1 << 62
"""Later than anything."""

CUT_OFF = "('disconnected', 'active-lost', 'unregistered')"
"""The kinds of record, in SQL, by which a client or worker tells that it lost a node."""

_KINDS = (
    "state", "active", "inactive", "peer-seen", "peer-lost", "stall", "stopping", "stopped", "fatal", "pulse",
    "refused", "disconnected", "active-lost", "unregistered",
)  # fmt: skip
_FIELDS = (
    "old", "new", "event", "epoch", "reason", "text", "exit_code", "peer_boot", "silent_us", "gap_us",
    "count",
)  # fmt: skip


# What a broker run told of itself: name, aggregate, column and condition. A node leaves when it was asked to
# end, or gives the role up because of it.
_FACTS = (
    ("stopped_at_us", "min", "at_us", "kind = 'stopped'"),
    ("stop_reason", "min", "reason", "kind = 'stopped'"),
    ("left_at_us", "min", "at_us", "kind = 'stopping' OR (kind = 'state' AND event = 'LEAVE')"),
    ("fatal_at_us", "min", "at_us", "kind = 'fatal'"),
    ("fatal_text", "min", "text", "kind = 'fatal'"),
    ("exit_code", "min", "exit_code", "kind = 'fatal'"),
    ("pulse_first", "min", "at_us", "kind = 'pulse'"),
    ("pulse_last", "max", "at_us", "kind = 'pulse'"),
    ("pulses", "count", "at_us", "kind = 'pulse'"),
)


class Told:
    """Records of events on the common timeline (``brokers`` and ``others``), broker runs with what they said
    of themselves (``runs``), and what was made of that: ``losses``, ``deaths``, ``stalls``, ``roles``.
    """

    def __init__(self, records: DataFrame, runs: DataFrame, clock_error_us: int) -> None:
        self.clock_error_us = clock_error_us
        offsets = runs.select("pair", "boot", "source", "offset_us")
        events = (
            records.where(F.col("topic") == "events")
            .where(F.col("kind").isin(*_KINDS))
            .select("pair", "node", "boot", "seq", "mono", "kind", *_FIELDS)
            .join(F.broadcast(offsets), ["pair", "boot"])
            .withColumn("at_us", F.col("mono") + F.col("offset_us"))
        )
        events = settled(events)
        self.brokers = events.where("source = 'broker'")
        self.others = events.where("source <> 'broker'")
        facts = self.brokers.groupBy("pair", "boot").agg(
            *(
                F.expr(f"{function}(if({condition}, {column}, NULL)) AS {name}")
                for name, function, column, condition in _FACTS
            )
        )
        in_order = Window.partitionBy("pair", "node").orderBy("started_at_us", "boot")
        self.runs = (
            runs.where("source = 'broker'")
            .select(
                "pair",
                "node",
                "boot",
                "started_at_us",
                "last_at_us",
                "is_clean",
                "began_before",
                "heartbeat_us",
                "failover_timeout_us",
                F.lead("started_at_us").over(in_order).alias("next_started_us"),
            )
            .join(facts, ["pair", "boot"], "left")
        )
        self.runs = settled(self.runs)
        self.losses = settled(self._read_losses())
        self.deaths = settled(self._read_deaths())
        self.stalls = settled(self._read_stalls())
        self.roles = self.brokers.where(F.col("kind").isin("active", "inactive")).select(
            "pair", "node", "boot", "at_us", "seq", "epoch", (F.col("kind") == "active").alias("is_active")
        )

    def _read_losses(self) -> DataFrame:
        """One row for each time that a node missed its peer, and when it heard it again."""
        later = (
            Window.partitionBy("pair", "node")
            .orderBy(F.desc("at_us"), F.desc("seq"))
            .rowsBetween(Window.unboundedPreceding, -1)
        )
        seen = F.when(F.col("kind") == "peer-seen", F.struct("at_us", "peer_boot"))
        return (
            self.brokers.where(F.col("kind").isin("peer-lost", "peer-seen"))
            .select("*", F.min(seen).over(later).alias("seen"))
            .where("kind = 'peer-lost'")
            .selectExpr(
                "pair",
                "node AS witness",
                "boot AS witness_boot",
                "at_us AS lost_at_us",
                "at_us - silent_us AS heard_at_us",
                "reason AS how",
                "seen.at_us AS seen_at_us",
                "seen.peer_boot AS seen_boot",
            )
        )

    def _read_deaths(self) -> DataFrame:
        """Broker runs, with the ``loss`` that tells of their end, and whether they ended (``is_over``)."""
        run, loss = self.runs.alias("run"), self.losses.alias("loss")
        error = self.clock_error_us
        # A partition ends no records: the node goes on writing after its peer stopped hearing it.
        silent_since = "if(how = 'gone', lost_at_us, floor((heard_at_us + lost_at_us) / 2))"
        is_ending = (
            "witness <> node AND lost_at_us >= started_at_us "
            f"AND lost_at_us >= last_at_us - {error} "
            f"AND lost_at_us <= coalesce(next_started_us, {FOREVER}) + {error} "
            f"AND (is_clean OR last_at_us <= {silent_since} + {error})"
        )
        ending = F.when(
            F.expr(is_ending),
            F.struct(
                "lost_at_us", "heard_at_us", "how", "seen_at_us", "seen_boot", "witness", "witness_boot"
            ),
        )
        first = run.join(loss, "pair", "left").groupBy("pair", "boot").agg(F.min(ending).alias("loss"))
        is_over = (
            "is_clean OR fatal_at_us IS NOT NULL OR next_started_us IS NOT NULL OR (loss IS NOT NULL "
            "AND NOT coalesce(loss.seen_at_us IS NOT NULL AND loss.seen_boot = boot, false))"
        )
        return self.runs.join(first, ["pair", "boot"]).withColumn("is_over", F.expr(is_over))

    def _read_stalls(self) -> DataFrame:
        """Every stall that the peer noticed, or that was as long as the failover timeout."""
        stalls = (
            self.brokers.where("kind = 'stall'")
            .selectExpr(
                "pair",
                "node",
                "boot",
                "seq",
                "at_us - gap_us AS began_at_us",
                "at_us AS ended_at_us",
                "gap_us",
            )
            .join(self.runs.select("pair", "boot", "heartbeat_us", "failover_timeout_us"), ["pair", "boot"])
        )
        margin = f"coalesce(heartbeat_us, 0) + {self.clock_error_us}"
        is_noticed = (
            "witness <> node AND how <> 'left' "
            f"AND lost_at_us BETWEEN began_at_us AND ended_at_us + {margin} "
            f"AND heard_at_us BETWEEN began_at_us - ({margin}) AND ended_at_us"
        )
        return (
            stalls.join(self.losses, "pair", "left")
            .groupBy(*stalls.columns)
            .agg(F.min(F.when(F.expr(is_noticed), F.col("lost_at_us"))).alias("lost_at_us"))
            .where("lost_at_us IS NOT NULL OR (failover_timeout_us > 0 AND gap_us >= failover_timeout_us)")
        )


def text(template: str) -> Column:
    """The template with the values of the SQL expressions in its braces; null if one of them is null.

    ``{expression:s}`` shows microseconds as seconds.
    """
    pieces = []
    for number, piece in enumerate(re.split(r"\{(.+?)\}", template)):
        if number % 2 == 0:
            pieces.append(F.lit(piece))
        elif piece.endswith(":s"):
            us = F.expr(piece[:-2])
            pieces.append(F.when(us.isNotNull(), F.format_string("%.3f s", us / 1e6)))
        else:
            pieces.append(F.expr(piece))
    return F.concat(*pieces)
