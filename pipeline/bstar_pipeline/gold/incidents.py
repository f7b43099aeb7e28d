"""What happened to the pair, when, who noticed, who took over, and what clients saw of it.

``gold.history`` puts each pair's events in order, ``gold.outages`` finds the times in which requests waited;
here both become rows, with the number of requests that each incident touched. Two queries bring what
requests say: the times without an answer (``seen``), and then the ``counts``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bstar.records.broker import FINISHED
from bstar_pipeline.gold import outages
from bstar_pipeline.gold.history import Incident, PairHistory
from bstar_pipeline.pair_rows import Row, Rows, by_pair, collected, frame_of, together
from bstar_pipeline.tables import utc

# Refusals are counted once in a while; the record comes at the end of the interval.
_REFUSED_LATE_US = 10_000_000
# A client's next attempt comes within this time after the other node serves.
_RETRY_US = 1_000_000
_MINUTE_US = 60_000_000
_CLIENT = 2

_OF_OUTAGE = ("outage_at_us", "outage_us", "since_us", "until_us")
_SPAN = StructType(
    [StructField(name, StringType()) for name in ("id", "pair")]
    + [StructField(name, LongType()) for name in (*_OF_OUTAGE, "outage_until_us")]
)
# These say nothing of who served and who took over.
_OF_BOTH = ("start", "both-active", "both-crash", "partition", "handover")


def seen(requests: DataFrame, histories: Mapping[str, PairHistory]) -> list[dict[str, Any]]:
    """Incidents of ``silver.histories``, and outages as requests tell them; nothing is counted yet."""
    near = (
        (pair, second)
        for pair, history in histories.items()
        for second in sorted(outages.seconds(history.incidents))
    )
    gaps = by_pair(collected(outages.gaps(requests, near)))
    return [
        each for pair, history in histories.items() for each in _outages(pair, history, gaps.get(pair, ()))
    ]


def counts(found: Iterable[Row], records: DataFrame, runs: DataFrame, requests: DataFrame) -> DataFrame:
    """What requests and nodes say of incidents that were ``seen``: a few rows for each."""
    spans = frame_of(records.sparkSession, found, _SPAN)
    return together(_counts(spans, requests), _refused(spans, records, runs))


def incidents(found: Iterable[dict[str, Any]], counted: Rows) -> list[dict[str, Any]]:
    """Rows of gold.incidents, of what was ``seen`` and its ``counts``."""
    counts: dict[str, dict[str, Any]] = {}
    for row in counted:
        known = {name: value for name, value in row.items() if value is not None}
        counts.setdefault(row["id"], {}).update(known)
    rows = [it for each in found if (it := _row(each, counts.get(each["id"], {}))) is not None]
    reported = {it["id"] for it in rows}
    return [it for it in rows if reported.isdisjoint(it.pop("pauses"))]


def _row(each: dict[str, Any], counts: Row) -> dict[str, Any] | None:
    """The row of an incident; None if only one request waited, which is no outage."""
    waiting = counts.get("waiting", 0)
    is_outage = each["kind"] == "outage"
    if (is_outage or not each["is_certain"]) and waiting <= 1:
        return None
    began_us = each["began_at_us"]

    def after_us(name: str) -> int | None:
        return None if each[name] is None else each[name] - began_us

    cause = _cause(each)
    if is_outage:
        cause = (
            f"{waiting} requests waited ({counts.get('services', '')}) and none was answered for "
            f"{each['outage_us'] / 1e6:.3f} s: no worker was at work on any."
        )
        if each["ended_at_us"] is None:
            cause += " None was answered later in these journals."
    return {
        **each,
        "retried": counts.get("retried", 0),
        "refused": counts.get("refused_calls" if counts.get("has_calls") else "refused_at_nodes", 0),
        "unknown": counts.get("unknown", 0),
        "affected": counts.get("affected", 0),
        "detection_us": after_us("detected_at_us"),
        "takeover_us": after_us("taken_over_at_us"),
        "cause": cause,
        "day": utc(began_us).date(),
    }


def _cause(each: Row) -> str:
    """The sentence of what happened, who was hit, and who took over."""
    kind, was_serving = each["kind"], each["was_serving"]
    role = took = ""
    if kind not in _OF_BOTH:
        role = " It was the active node." if was_serving else " It stood by."
    if kind not in ("start", "both-active"):
        if each["successor"] is not None:
            after_us = (each["taken_over_at_us"] or each["began_at_us"]) - each["began_at_us"]
            took = f" {each['successor']} served after {after_us / 1e6:.3f} s."
        elif kind == "partition":
            took = " The role stayed where it was."
        elif was_serving:
            took = " No node took over."
    return f"{each['text']}{role}{took}"


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
        "outage_until_us",
        F.explode(minutes).alias("minute"),
    )
    near = (
        requests.where(F.col("ended_at_us").isNotNull())
        .withColumn("minute", F.expr(f"ended_at_us DIV {_MINUTE_US}"))
        .join(F.broadcast(spans), ["pair", "minute"])
        .where(F.col("ended_at_us").between(F.col("since_us"), ended))
    )
    asked = "coalesce(asked_at_us, ended_at_us)"
    worked = f"(ended_at_us - if(outcome IN {FINISHED}, coalesce(busy_us, 0L), 0L))"
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


def _outages(pair: str, history: PairHistory, known: Rows) -> Iterator[dict[str, Any]]:
    """What ``gold.outages`` finds in the history and the gaps of a pair."""
    gaps = sorted(map(outages.gap_of, known), key=attrgetter("before_at_us"))
    states = [state for state in history.states if state.state == "ACTIVE"]
    serving = sorted((state.since_at_us, state.node, state.boot) for state in states)
    is_sampled = any((row["heaviest"] or 0) > 1 for row in known)
    for each in outages.outages(history.incidents, gaps, serving, is_sampled=is_sampled):
        incident = each.incident
        of_outage: dict[str, Any] = {name: getattr(each, name) for name in _OF_OUTAGE}
        if each.outage_at_us is not None:
            ended_us = None if each.outage_us is None else each.outage_at_us + each.outage_us
            of_outage["outage_until_us"] = each.until_us if ended_us is None else ended_us
        pauses = [_id(pair, pause) for pause in each.pauses]
        yield {"pair": pair, "id": _id(pair, incident), **asdict(incident), **of_outage, "pauses": pauses}


def _id(pair: str, incident: Incident) -> str:
    moment = f"{utc(incident.began_at_us):%Y%m%dT%H%M%S.%f}"[:-3]
    return f"{pair}.{incident.kind}.{incident.node}.{moment}"
