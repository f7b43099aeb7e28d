"""What happened to the pair, when, who noticed, who took over, and what clients saw of it.

``gold.history`` puts each pair's events in order, ``gold.outages`` finds the times in which requests waited;
here both become rows, with the number of requests that each incident touched. Two queries bring what
requests say: the times without an answer (``seen``), and then the ``counts``.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.gold import outages
from bstar_pipeline.gold.history import Incident, PairHistory
from bstar_pipeline.pair_rows import Row, Rows, by_pair, offsets
from bstar_pipeline.partitions import Stored, queried
from bstar_pipeline.tables import utc

# Refusals are counted once in a while; the record comes at the end of the interval.
_REFUSED_LATE_US = 10_000_000
# A client's next attempt comes within this time after the other node serves.
_RETRY_US = 1_000_000
_MINUTE_US = 60_000_000
_CLIENT = 2

_OF_OUTAGE = ("outage_at_us", "outage_us", "since_us", "until_us")
_SPAN = pa.schema(
    {
        **dict.fromkeys(("id", "pair"), pa.string()),
        **dict.fromkeys((*_OF_OUTAGE, "outage_until_us"), pa.int64()),
    }
)
# These say nothing of who served and who took over.
_OF_BOTH = ("start", "both-active", "both-crash", "partition", "handover")


def seen(requests: Stored, histories: Mapping[str, PairHistory]) -> list[dict[str, Any]]:
    """Incidents of ``silver.histories``, and outages as requests tell them; nothing is counted yet."""
    near = (
        (pair, second)
        for pair, history in histories.items()
        for second in sorted(outages.seconds(history.incidents))
    )
    gaps = by_pair(outages.gaps(requests, near).collected())
    return [
        each for pair, history in histories.items() for each in _outages(pair, history, gaps.get(pair, ()))
    ]


def counts(found: Rows, records: Stored, runs: Rows, requests: Stored) -> Rows:
    """What requests and nodes say of incidents that were ``seen``: a row or two for each."""
    if not found:
        return ()
    spans = pa.Table.from_pylist([{name: row.get(name) for name in _SPAN.names} for row in found], _SPAN)
    tables = {"spans": spans, "runs": offsets(runs)}
    refusals = records.take(*_REFUSAL, where="kind = 'refused'").here
    touched = queried(requests.take(*_REQUEST), (), _TOUCHED, tables={"spans": spans})
    refused = queried(refusals, (), _REFUSED, tables=tables)
    return [*touched.summed(_TOUCHED_IN_ALL), *refused.summed(_REFUSED_IN_ALL)]


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


_REQUEST = (
    "pair", "ended_at_us", "asked_at_us", "busy_us", "outcome", "attempts", "is_repeated", "call_outcome",
    "service", "evidence",
)  # fmt: skip
_REFUSAL = ("boot", "mono", "pair", "count")
_LOST = ("timeout", "unknown", "interrupted", "closed", "returned", "late", "lost")
# Each may use those before it.
_TOUCHES = {
    "asked_us": "coalesce(asked_at_us, ended_at_us)",
    "worked_us": f"ended_at_us - if(outcome IN {FINISHED}, coalesce(busy_us, 0), 0)",
    "waited": "coalesce(ended_at_us > outage_at_us AND asked_us < outage_until_us, false)",
    "waited_long": "waited AND coalesce(least(worked_us, outage_until_us) - greatest(asked_us, outage_at_us) "
    f">= {outages.OUTAGE_MIN_US}, false)",
    "began": "asked_us <= until_us",
    "retried": "began AND (coalesce(attempts, 1) > 1 OR coalesce(is_repeated, false))",
    "refused_calls": "began AND coalesce(call_outcome IN ('busy', 'rejected', 'no-active'), false)",
    "unknown": f"began AND coalesce(outcome IN {_LOST}, false)",
    "affected": "waited OR retried OR refused_calls OR unknown",
}
_COUNTED = {"waiting": "waited_long"} | {
    name: name for name in ("retried", "refused_calls", "unknown", "affected")
}
_TOUCHED = f"""
WITH minutes AS (
    SELECT *, unnest(range(since_us // {_MINUTE_US}, (until_us + {_RETRY_US}) // {_MINUTE_US} + 1)) AS minute
    FROM spans
),
near AS (
    SELECT rows.*, minutes.* EXCLUDE (pair, minute) FROM rows JOIN minutes
        ON minutes.pair = rows.pair AND minute = ended_at_us // {_MINUTE_US}
    WHERE ended_at_us BETWEEN since_us AND until_us + {_RETRY_US}
),
facts AS (SELECT *, {", ".join(f"{each} AS {name}" for name, each in _TOUCHES.items())} FROM near)
SELECT id, {", ".join(f"count(*) FILTER ({each}) AS {name}" for name, each in _COUNTED.items())},
    list(DISTINCT service) FILTER (waited_long AND service IS NOT NULL) AS served,
    bool_or(evidence & {_CLIENT} <> 0) AS has_calls
FROM facts GROUP BY id
"""
_TOUCHED_IN_ALL = f"""
SELECT id, {", ".join(f"sum({name})::BIGINT AS {name}" for name in _COUNTED)},
    array_to_string(list_sort(list_distinct(flatten(list(served) FILTER (served IS NOT NULL)))), ', ')
        AS services,
    bool_or(has_calls) AS has_calls
FROM rows GROUP BY id
"""
# What nodes refused meanwhile.
_REFUSED = f"""
WITH refusals AS (SELECT rows.pair, mono + offset_us AS at_us, "count" FROM rows JOIN runs USING (boot))
SELECT id, sum("count")::BIGINT AS refused_at_nodes
FROM refusals JOIN spans ON spans.pair = refusals.pair
    AND at_us BETWEEN since_us AND until_us + {_REFUSED_LATE_US}
GROUP BY id
"""
_REFUSED_IN_ALL = "SELECT id, sum(refused_at_nodes)::BIGINT AS refused_at_nodes FROM rows GROUP BY id"


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
