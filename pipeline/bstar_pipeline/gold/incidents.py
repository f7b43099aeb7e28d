"""What happened to the pair, when, who noticed, who took over, and what clients saw of it.

Everything but the counts comes from records of events, which are few. When an incident began:

* stop, handover: the node's own record of it (``stopping``, LEAVE, HANDOVER): exact.
* pause: the node's ``stall`` record less its gap. The loop looks at the clock at least every half heartbeat
  interval, so the pause began at most that much later.
* crash: between the last sign of life and the first of death. Of life: the run's last record, and when the
  peer last heard it (``peer-lost`` less ``silent_us``). Of death: the ``peer-lost`` itself; where that is
  silence and no refused connection, one heartbeat interval after the last message, because a node that lives
  speaks once in it; the first broken connection that a client or worker recorded in between. A refused and a
  broken connection come at once, so the first of them counts; else the middle. ``began_error_us`` is half of
  the distance. Without a peer that listened: the next start of the node, or one and a half intervals of the
  node's own pulses after its last record.
* partition: likewise, between the later one of the last messages that the nodes heard of each other and a
  heartbeat interval after the earlier one.
* both-active: when the second node began to serve.

A node that fell silent is explained once: by its end, by a pause, and only if it did neither by a partition.
A node without any journal explains nothing: its peer's records alone are no incident.

* outage: requests waited for a second and more, nobody was at work on one, none was answered, and nothing of
  the above explains it: the workers were away.

The outage of an incident is read off the requests that ended around it (``WINDOW_US`` before and after): the
longest time in which one waited and none was answered, by what clients recorded if the pair's clients keep
journals, else by what nodes recorded. Where nobody asks is no outage.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.engine import settled
from bstar_pipeline.gold import faults
from bstar_pipeline.gold.aftermath import detections, recoveries, refusals, takeovers
from bstar_pipeline.gold.impact import impact
from bstar_pipeline.gold.outages import outages, unexplained
from bstar_pipeline.gold.serving import CLOCK_ERROR_US
from bstar_pipeline.gold.told import Told, text
from bstar_pipeline.schema import shaped

_BASE = ("pair", "kind", "node", "boot", "began_at_us", "began_error_us", "ended_at_us", "lost_at_us", "text")

_CAUSE = (
    "{text}"
    "{CASE WHEN kind IN ('start', 'both-active', 'partition', 'handover', 'outage') THEN '' "
    "WHEN was_serving THEN ' It was the active node.' ELSE ' It stood by.' END}"
    "{CASE WHEN kind IN ('start', 'both-active', 'outage') THEN '' "
    "WHEN taken_over_at_us IS NOT NULL THEN served "
    "WHEN kind = 'partition' THEN ' The role stayed where it was.' "
    "WHEN was_serving THEN ' Nobody took over.' ELSE '' END}"
)


def incidents(
    records: DataFrame,
    runs: DataFrame,
    states: DataFrame,
    requests: DataFrame,
    clock_error_us: int = CLOCK_ERROR_US,
) -> DataFrame:
    """gold.incidents of bronze records and the silver tables."""
    told = Told(records, runs, clock_error_us)
    found = [
        faults.ends(told),
        faults.pauses(told),
        faults.partitions(told),
        faults.handovers(told),
        faults.both_active(states, runs, clock_error_us),
        faults.starts(told),
    ]
    base = reduce(DataFrame.unionByName, [part.select(*_BASE) for part in found])
    base = settled(base.withColumn("id", _key()))
    followed = settled(recoveries(told, detections(told, takeovers(told, base))))
    followed = followed.unionByName(_outages(told, followed, requests), allowMissingColumns=True)
    served = text(" {successor} served after {taken_over_at_us - began_at_us:s}.")
    counted = impact(followed, requests, refusals(told)).withColumn("served", served)
    columns = {
        "detection_us": F.col("detected_at_us") - F.col("began_at_us"),
        "takeover_us": F.col("taken_over_at_us") - F.col("began_at_us"),
        "cause": text(_CAUSE),
        "day": F.to_date(F.timestamp_micros("began_at_us")),
    }
    return shaped(counted.withColumns(columns), "gold.incidents")


def _key() -> Column:
    at = F.date_format(F.timestamp_micros("began_at_us"), "yyyyMMdd'T'HHmmss.SSS")
    return F.concat_ws(".", "pair", "kind", "node", at)


def _outages(told: Told, incidents: DataFrame, requests: DataFrame) -> DataFrame:
    """Times without an answer that no incident explains; ``node`` is the active one."""
    why = text(
        "{waiting} requests waited ({services}), and for {ended_at_us - began_at_us:s} no worker was at work "
        "on any, and none was answered."
    )
    alone = settled(unexplained(outages(requests), incidents)).withColumn("text", why)
    exact = {
        "kind": F.lit("outage"),
        "began_error_us": F.lit(0).cast("bigint"),
        "recovered_at_us": F.col("ended_at_us"),
        "was_serving": F.lit(True),
    }
    found = faults.at_the_active(told, alone).withColumns(exact)
    return found.withColumn("id", _key())
