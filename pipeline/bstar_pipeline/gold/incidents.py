"""What happened to the pair, when, who noticed, who took over, and what clients saw of it.

``gold.history`` puts each pair's events in order, ``gold.outages`` finds the times in which requests waited;
here both become rows, with the number of requests that each incident touched. Two queries bring what
requests say: the times without an answer (``seen``), and then the ``counts``.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.gold import outages
from bstar_pipeline.gold.history import PairHistory
from bstar_pipeline.partitions import Row, Rows, Stored, grouped, offsets, queried
from bstar_pipeline.tables import utc

# Refusals are counted once in a while; the record comes at the end of the interval.
_REFUSED_LATE_US = 10_000_000
# A client's next attempt comes within this time after the other node serves.
_RETRY_US = 1_000_000
_MINUTE_US = 60_000_000
_CLIENT = 2

_TIMES = ("since_us", "until_us", "outage_at_us", "outage_until_us")
_SPAN = pa.schema(dict.fromkeys(("id", "pair"), pa.string()) | dict.fromkeys(_TIMES, pa.int64()))
# These say nothing of who served and who took over.
_OF_BOTH = ("start", "both-active", "both-crash", "partition", "handover")


def seen(requests: Stored, histories: Mapping[str, PairHistory]) -> list[dict[str, Any]]:
    """Incidents of ``silver.histories``, and outages as requests tell them; nothing is counted yet."""
    gaps = grouped(outages.gaps(requests, histories).collected(), "pair")
    found = (outages.outages(pair, history, gaps.get(pair, ())) for pair, history in histories.items())
    return list(chain.from_iterable(found))


def counts(found: Rows, records: Stored, runs: Rows, requests: Stored) -> Rows:
    """What requests and nodes say of incidents that were ``seen``: a row or two for each."""
    if not found:
        return ()
    spans = pa.Table.from_pylist([{name: row[name] for name in _SPAN.names} for row in found], _SPAN)
    tables = {"spans": spans, "runs": offsets(runs)}
    refusals = records.take(*_REFUSAL, where="kind = 'refused'").here
    touched = queried(requests.take(*_REQUEST), (), _TOUCHED, tables={"spans": spans})
    refused = queried(refusals, (), _REFUSED, tables=tables)
    return [*touched.summed(_TOUCHED_IN_ALL), *refused.summed(_REFUSED_IN_ALL)]


def incidents(found: Iterable[dict[str, Any]], counted: Rows) -> list[dict[str, Any]]:
    """Rows of gold.incidents, of what was ``seen`` and its ``counts``."""
    counts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for row in counted:
        counts[row["id"]] |= {name: value for name, value in row.items() if value is not None}
    rows = [it for each in found if (it := _row(each, counts[each["id"]])) is not None]
    reported = {it["id"] for it in rows}
    return [it for it in rows if reported.isdisjoint(it.pop("pauses"))]


def _row(each: dict[str, Any], counts: Row) -> dict[str, Any] | None:
    """The row of an incident; None if only one request waited, which is no outage."""
    waiting = counts.get("waiting", 0)
    is_outage = each["kind"] == "outage"
    if (is_outage or not each["is_certain"]) and waiting <= 1:
        return None
    cause = _cause(each)
    if is_outage:
        lasted = f"none was answered for {each['outage_us'] / 1e6:.3f} s: no worker was at work on any."
        later = " None was answered later in these journals." if each["ended_at_us"] is None else ""
        cause = f"{waiting} requests waited ({counts.get('services', '')}) and {lasted}{later}"
    began_us = each["began_at_us"]
    times = {"detection_us": each["detected_at_us"], "takeover_us": each["taken_over_at_us"]}
    return {
        **each,
        **{name: counts.get(name, 0) for name in ("retried", "unknown", "affected")},
        "refused": counts.get("refused_calls" if counts.get("has_calls") else "refused_at_nodes", 0),
        **{name: None if at_us is None else at_us - began_us for name, at_us in times.items()},
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
    "waiting": "waited AND coalesce(least(worked_us, outage_until_us) - greatest(asked_us, outage_at_us) "
    f">= {outages.OUTAGE_MIN_US}, false)",
    "began": "asked_us <= until_us",
    "retried": "began AND (coalesce(attempts, 1) > 1 OR coalesce(is_repeated, false))",
    "refused_calls": "began AND coalesce(call_outcome IN ('busy', 'rejected', 'no-active'), false)",
    "unknown": f"began AND coalesce(outcome IN {_LOST}, false)",
    "affected": "waited OR retried OR refused_calls OR unknown",
}
_COUNTED = ("waiting", "retried", "refused_calls", "unknown", "affected")
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
SELECT id, {", ".join(f"count(*) FILTER ({name}) AS {name}" for name in _COUNTED)},
    list(DISTINCT service) FILTER (waiting AND service IS NOT NULL) AS served,
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
