"""What happened to the pair, when, who noticed, who took over, and what clients saw of it.

``gold.history`` puts each pair's events in order, ``gold.outages`` finds the times in which requests waited;
here both become rows, with the number of requests that each incident touched.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold import outages
from bstar_pipeline.gold.history import Incident, State
from bstar_pipeline.pair_rows import Rows, columns, per_pair, rows_of, together
from bstar_pipeline.schema import shaped

# Refusals are counted once in a while; the record comes at the end of the interval.
_REFUSED_LATE_US = 10_000_000
# A client's next attempt comes within this time after the other node serves.
_RETRY_US = 1_000_000
_MINUTE_US = 60_000_000
_CLIENT = 2

_OF_OUTAGE = ("outage_at_us", "outage_us", "since_us", "until_us")
_OUTAGES = columns(Incident, id="STRING", **dict.fromkeys(_OF_OUTAGE, "BIGINT"))


def incidents(records: DataFrame, runs: DataFrame, requests: DataFrame, histories: DataFrame) -> DataFrame:
    """gold.incidents of bronze records, the silver tables and ``histories``."""
    near = histories.where("what = 'second'").select("pair", "second")
    gaps = outages.gaps(requests, near).withColumn("what", F.lit("gap"))
    told = together(histories.where("what IN ('state', 'incident')"), gaps)
    found = per_pair(told, _outages, _OUTAGES)
    counted = found.join(_counts(found, requests), "id", "left").join(
        _refused(found, records, runs), "id", "left"
    )
    is_alone = "kind = 'outage' OR NOT is_certain"
    waiting = F.format_string(
        "%d requests waited (%s), and for %.3f s no worker was at work on any, and none was answered.",
        F.coalesce("waiting", F.lit(0)),
        F.coalesce("services", F.lit("")),
        (F.col("ended_at_us") - F.col("began_at_us")) / 1e6,
    )
    columns = {
        "retried": F.expr("coalesce(retried, 0L)"),
        "refused": F.expr("if(coalesce(has_calls, false), refused_calls, coalesce(refused_at_nodes, 0L))"),
        "unknown": F.expr("coalesce(unknown, 0L)"),
        "affected": F.expr("coalesce(affected, 0L)"),
        "detection_us": F.col("detected_at_us") - F.col("began_at_us"),
        "takeover_us": F.col("taken_over_at_us") - F.col("began_at_us"),
        "cause": F.when(F.col("kind") == "outage", waiting).otherwise(_cause()),
        "day": F.to_date(F.timestamp_micros("began_at_us")),
    }
    # A request that waits alone is no outage.
    known = counted.where(f"NOT ({is_alone}) OR waiting > 1")
    return shaped(known.withColumns(columns), "gold.incidents")


def _cause() -> Column:
    """The sentence of what happened, who was hit, and who took over."""
    said = F.col("text")
    role = F.expr(
        "CASE WHEN kind IN ('start', 'both-active', 'both-crash', 'partition', 'handover') THEN '' "
        "WHEN was_serving THEN ' It was the active node.' ELSE ' It stood by.' END"
    )
    served = F.format_string(
        " %s served after %.3f s.", "successor", (F.col("taken_over_at_us") - F.col("began_at_us")) / 1e6
    )
    after = F.expr(
        "CASE WHEN kind = 'partition' THEN ' The role stayed where it was.' "
        "WHEN was_serving THEN ' No node took over.' ELSE '' END"
    )
    is_silent = F.col("kind").isin("start", "both-active")
    took = F.when(is_silent, "").when(F.col("successor").isNotNull(), served).otherwise(after)
    return F.concat(said, role, took)


# --- requests -----------------------------------------------------------------------------------------------


def _counts(found: DataFrame, requests: DataFrame) -> DataFrame:
    """How many requests each incident touched: id, waiting, services, retried, refused_calls, unknown,
    affected and has_calls.
    """
    ended = F.col("until_us") + _RETRY_US
    minutes = F.sequence(F.expr(f"since_us DIV {_MINUTE_US}"), F.floor(ended / _MINUTE_US))
    spans = found.select(
        "id",
        "pair",
        "since_us",
        "until_us",
        "outage_at_us",
        F.expr("outage_at_us + coalesce(outage_us, until_us - outage_at_us)").alias("outage_until_us"),
        F.explode(minutes).alias("minute"),
    )
    near = (
        requests.where(F.col("ended_at_us").isNotNull())
        .withColumn("minute", F.expr(f"ended_at_us DIV {_MINUTE_US}"))
        .join(F.broadcast(spans), ["pair", "minute"])
        .where(F.col("ended_at_us").between(F.col("since_us"), ended))
    )
    asked = "coalesce(asked_at_us, ended_at_us)"
    worked = "(ended_at_us - if(outcome IN ('answered', 'failed'), coalesce(busy_us, 0L), 0L))"
    waits = f"(ended_at_us > outage_at_us AND {asked} < outage_until_us)"
    long = f"(least({worked}, outage_until_us) - greatest({asked}, outage_at_us) >= {outages.OUTAGE_MIN_US})"
    during = f"({asked} <= until_us)"
    retried = f"({during} AND (coalesce(attempts, 1) > 1 OR coalesce(is_repeated, false)))"
    refused = f"({during} AND coalesce(call_outcome IN ('busy', 'rejected', 'no-active'), false))"
    lost = "('timeout', 'unknown', 'interrupted', 'closed', 'returned', 'late', 'lost')"
    unknown = f"({during} AND coalesce(outcome IN {lost}, false))"
    waited = f"coalesce({waits}, false)"
    return near.groupBy("id").agg(
        F.expr(f"count_if(coalesce({waits} AND {long}, false)) AS waiting"),
        F.array_join(
            F.array_sort(F.collect_set(F.expr(f"if({waited} AND {long}, service, NULL)"))), ", "
        ).alias("services"),
        F.expr(f"count_if({retried}) AS retried"),
        F.expr(f"count_if({refused}) AS refused_calls"),
        F.expr(f"count_if({unknown}) AS unknown"),
        F.expr(f"count_if({waited} OR {retried} OR {refused} OR {unknown}) AS affected"),
        F.max(F.col("evidence").bitwiseAND(_CLIENT) != 0).alias("has_calls"),
    )


def _refused(found: DataFrame, records: DataFrame, runs: DataFrame) -> DataFrame:
    """What nodes refused meanwhile: id, refused_at_nodes."""
    refusals = (
        records.where("topic = 'events' AND kind = 'refused'")
        .join(F.broadcast(runs.select("boot", "offset_us")), "boot")
        .select("pair", (F.col("mono") + F.col("offset_us")).alias("at_us"), "count")
    )
    spans = found.select("id", "pair", "since_us", "until_us")
    return (
        refusals.join(F.broadcast(spans), "pair")
        .where(F.col("at_us").between(F.col("since_us"), F.col("until_us") + _REFUSED_LATE_US))
        .groupBy("id")
        .agg(F.sum("count").alias("refused_at_nodes"))
    )


def _outages(pair: str, rows: Rows) -> Iterator[dict[str, Any]]:
    """What ``gold.outages`` finds in the states, incidents and gaps of a pair."""
    gaps = sorted(rows_of(rows, "gap", outages.Gap), key=attrgetter("before_at_us"))
    states = [state for state in rows_of(rows, "state", State) if state.state == "ACTIVE"]
    serving = sorted((state.since_at_us, state.node, state.boot) for state in states)
    is_sampled = any((row["heaviest"] or 0) > 1 for row in rows)
    incidents = rows_of(rows, "incident", Incident)
    for each in outages.outages(incidents, gaps, serving, is_sampled=is_sampled):
        incident = each.incident
        at = dt.datetime.fromtimestamp(incident.began_at_us // 1_000_000, dt.UTC)
        moment = f"{at:%Y%m%dT%H%M%S}.{incident.began_at_us // 1_000 % 1_000:03d}"
        key = f"{pair}.{incident.kind}.{incident.node}.{moment}"
        of_outage = {name: getattr(each, name) for name in _OF_OUTAGE}
        yield {"what": "outage", "pair": pair, "id": key, **asdict(incident), **of_outage}
