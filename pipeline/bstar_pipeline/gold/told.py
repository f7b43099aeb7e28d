"""What brokers, clients and workers told of events, and who missed whom: what incidents are read from.

A node that fell silent is explained once: by its end, by a pause, and only if it did neither by a partition.
The frames in here are small and asked for again and again. So each is computed once and its origin forgotten
(``settled``): a plan that had all of them in it, over and over, would take longer to make than to carry out.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

FOREVER = 1 << 62
"""Later than anything."""

_KINDS = (
    "state",
    "active",
    "inactive",
    "peer-seen",
    "peer-lost",
    "stall",
    "stopping",
    "stopped",
    "fatal",
    "pulse",
    "refused",
    "disconnected",
    "active-lost",
    "unregistered",
)
_FIELDS = (
    "old",
    "new",
    "event",
    "epoch",
    "reason",
    "text",
    "exit_code",
    "peer_boot",
    "silent_us",
    "gap_us",
    "count",
)


def settled(frame: DataFrame) -> DataFrame:
    """The same rows without their history; for what is small. Gone when nobody refers to it any more."""
    return frame.localCheckpoint(eager=False)


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
            F.min(F.when(F.col("kind") == "stopped", F.col("at_us"))).alias("stopped_at_us"),
            F.min(F.when(F.col("kind") == "stopped", F.col("reason"))).alias("stop_reason"),
            F.min(F.when(_is_leaving(), F.col("at_us"))).alias("left_at_us"),
            F.min(F.when(F.col("kind") == "fatal", F.col("at_us"))).alias("fatal_at_us"),
            F.min(F.when(F.col("kind") == "fatal", F.col("text"))).alias("fatal_text"),
            F.min(F.when(F.col("kind") == "fatal", F.col("exit_code"))).alias("exit_code"),
            *(
                function(F.when(F.col("kind") == "pulse", F.col("at_us"))).alias(name)
                for name, function in (("pulse_first", F.min), ("pulse_last", F.max), ("pulses", F.count))
            ),
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
            .orderBy("at_us", "seq")
            .rowsBetween(1, Window.unboundedFollowing)
        )
        seen = F.when(F.col("kind") == "peer-seen", F.struct("at_us", "peer_boot"))
        return (
            self.brokers.where(F.col("kind").isin("peer-lost", "peer-seen"))
            .select("*", F.min(seen).over(later).alias("seen"))
            .where("kind = 'peer-lost'")
            .select(
                "pair",
                F.col("node").alias("witness"),
                F.col("boot").alias("witness_boot"),
                F.col("at_us").alias("lost_at_us"),
                (F.col("at_us") - F.col("silent_us")).alias("heard_at_us"),
                F.col("reason").alias("how"),
                F.col("seen.at_us").alias("seen_at_us"),
                F.col("seen.peer_boot").alias("seen_boot"),
            )
        )

    def _read_deaths(self) -> DataFrame:
        """Broker runs, with the ``loss`` that tells of their end, and whether they ended (``is_over``)."""
        run, loss = self.runs.alias("run"), self.losses.alias("loss")
        # A partition ends no records: the node goes on writing after its peer stopped hearing it.
        silent_since = F.when(F.col("how") == "gone", F.col("lost_at_us")).otherwise(
            F.floor((F.col("heard_at_us") + F.col("lost_at_us")) / 2)
        )
        ending = F.when(
            (F.col("witness") != F.col("node"))
            & (F.col("lost_at_us") >= F.col("started_at_us"))
            & (F.col("lost_at_us") >= F.col("last_at_us") - self.clock_error_us)
            & (F.col("lost_at_us") <= F.coalesce("next_started_us", F.lit(FOREVER)) + self.clock_error_us)
            & (F.col("is_clean") | (F.col("last_at_us") <= silent_since + self.clock_error_us)),
            F.struct(
                "lost_at_us", "heard_at_us", "how", "seen_at_us", "seen_boot", "witness", "witness_boot"
            ),
        )
        first = run.join(loss, "pair", "left").groupBy("pair", "boot").agg(F.min(ending).alias("loss"))
        is_seen_again = F.col("loss.seen_at_us").isNotNull() & (F.col("loss.seen_boot") == F.col("boot"))
        is_over = (
            F.col("is_clean")
            | F.col("fatal_at_us").isNotNull()
            | F.col("next_started_us").isNotNull()
            | (F.col("loss").isNotNull() & ~F.coalesce(is_seen_again, F.lit(False)))
        )
        return self.runs.join(first, ["pair", "boot"]).withColumn("is_over", is_over)

    def _read_stalls(self) -> DataFrame:
        """Every stall that the peer noticed, or that was as long as the failover timeout."""
        stalls = (
            self.brokers.where("kind = 'stall'")
            .select(
                "pair",
                "node",
                "boot",
                "seq",
                (F.col("at_us") - F.col("gap_us")).alias("began_at_us"),
                F.col("at_us").alias("ended_at_us"),
                "gap_us",
            )
            .join(self.runs.select("pair", "boot", "heartbeat_us", "failover_timeout_us"), ["pair", "boot"])
        )
        heartbeat = F.coalesce("heartbeat_us", F.lit(0))
        noticed = F.when(
            (F.col("witness") != F.col("node"))
            & (F.col("how") != "left")
            & (F.col("heard_at_us") <= F.col("ended_at_us"))
            & (F.col("lost_at_us") >= F.col("began_at_us"))
            & (F.col("lost_at_us") <= F.col("ended_at_us") + heartbeat + self.clock_error_us)
            & (F.col("heard_at_us") >= F.col("began_at_us") - heartbeat - self.clock_error_us),
            F.col("lost_at_us"),
        )
        return (
            stalls.join(self.losses, "pair", "left")
            .groupBy(
                "pair",
                "node",
                "boot",
                "seq",
                "began_at_us",
                "ended_at_us",
                "gap_us",
                "heartbeat_us",
                "failover_timeout_us",
            )
            .agg(F.min(noticed).alias("lost_at_us"))
            .where(
                F.col("lost_at_us").isNotNull()
                | ((F.col("failover_timeout_us") > 0) & (F.col("gap_us") >= F.col("failover_timeout_us")))
            )
        )


def _is_leaving() -> Column:
    """The node was asked to end, or gives the role up because of it."""
    return (F.col("kind") == "stopping") | ((F.col("kind") == "state") & (F.col("event") == "LEAVE"))


def seconds(us: Column) -> Column:
    """Microseconds as people read them."""
    return F.format_string("%.3f s", us / 1e6)


def middle(low: Column, high: Column) -> Column:
    """Between two moments."""
    return F.floor((low + high) / 2)


def half(low: Column, high: Column) -> Column:
    """How far from the middle it may have been."""
    return F.ceil((high - low) / 2)
