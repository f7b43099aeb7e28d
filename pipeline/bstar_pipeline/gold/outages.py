"""Outages as clients saw them: times in which requests waited and none was answered.

A request waits from the moment when its client began the call, if its client keeps a journal, otherwise
from its first acceptance (``silver.requests.asked_at_us``). Requests are counted by slots of time, so of any
number of them little is left to put in order: of a thousandth of a second around an incident, of a tenth
elsewhere. Each slot keeps its first and last answer to the microsecond, so a time without an answer that is
longer than a slot is exact.

* The outage of an incident is the longest such time that is its own: their times overlap, give or take the
  clocks' error, and it began at most two seconds before the incident. If the incident took no node away that
  served, it also ended at most two seconds after it.
* A pause that neither the peer nor the failover timeout noticed is an incident if requests waited for it.
* ``outage``: several requests waited, no worker was at work on one, none was answered, and it is no reported
  incident's own.

A request that waits alone is no outage: its service may have no workers, or its caller's patience ended. Of a
pair whose requests are a sample nothing is said: those that are not here may have been answered meanwhile.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.history import CLOCK_ERROR_US, Incident
from bstar_pipeline.partitions import Made, Stored, queried

OUTAGE_MIN_US = 100_000
"""Shorter waits are the business of the objectives."""

# By how much a time without an answer may reach beyond its incident.
_SETTLE_US = 2_000_000
_FINE_US, _COARSE_US, _SECOND_US = 1_000, 100_000, 1_000_000
# What an incident held up is answered in the seconds around it; what took longer is found anywhere.
_BEFORE_S, _AFTER_S = 1, 4
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Gap:
    """A time between two answers in a row in which a request waited: since ``began_at_us``, until the next
    answer (none came if ``is_open``), and until a worker was at work on one again. ``before_at_us`` is the
    answer before it.
    """

    before_at_us: int
    began_at_us: int
    answered_at_us: int
    worked_at_us: int
    is_open: bool


def gap_of(row: Mapping[str, Any]) -> Gap:
    """A row of ``gaps``."""
    return Gap(**{field.name: row[field.name] for field in fields(Gap)})


@dataclass(frozen=True, slots=True)
class Outage:
    """An incident as clients saw it. What requests of ``since_us`` to ``until_us`` tell is counted for it.

    ``pauses``: if one of these is an incident, it explains this outage.
    """

    incident: Incident
    outage_at_us: int | None
    outage_us: int | None
    since_us: int
    until_us: int
    pauses: tuple[Incident, ...] = ()


def around(incident: Incident) -> tuple[int, int]:
    """From when to when an incident may have kept requests waiting."""
    since_us = incident.began_at_us - incident.began_error_us
    served_us = incident.taken_over_at_us
    if incident.kind == "both-crash" or (incident.kind == "pause" and served_us is None):
        served_us = incident.ended_at_us
    if incident.detected_at_us is not None:
        served_us = max(served_us or 0, incident.detected_at_us)
    return since_us, max(incident.began_at_us, served_us or 0)


def seconds(incidents: Iterable[Incident]) -> set[int]:
    """The seconds around the beginning of each incident, and around the end of what it may have held up."""
    found: set[int] = set()
    for incident in incidents:
        for at_us in around(incident):
            second = at_us // _SECOND_US
            found.update(range(second - _BEFORE_S, second + _AFTER_S + 1))
    return found


def gaps(requests: Stored, near: Iterable[tuple[str, int]]) -> Made:
    """Times without an answer in which a request of ``silver.requests`` waited: pair, the fields of Gap, and
    the greatest weight of the pair's requests.

    ``near``: the seconds around incidents, by pair. Elsewhere only gaps as long as an outage are given.
    """
    seconds = [{"pair": pair, "second": second} for pair, second in near]
    tables = {"near": pa.Table.from_pylist(seconds, _SECOND)}
    slots = queried(requests.take(*_CARRIED), (), _SLOTS, tables=tables)
    return queried(slots, ("pair",), _GAPS)


_SECOND = pa.schema({"pair": pa.string(), "second": pa.int64()})
_CARRIED = ("pair", "ended_at_us", "asked_at_us", "busy_us", "outcome", "weight")
_SLOTS = f"""
WITH ended AS (
    SELECT rows.*, second IS NOT NULL AS is_near, outcome IN {FINISHED} AS is_answer
    FROM rows LEFT JOIN near ON near.pair = rows.pair AND second = ended_at_us // {_SECOND_US}
    WHERE ended_at_us IS NOT NULL
)
SELECT pair,
    if(is_near, ended_at_us // {_FINE_US}, ended_at_us // {_COARSE_US} * {_COARSE_US // _FINE_US}) AS slot,
    min(coalesce(asked_at_us, ended_at_us)) AS asked_us,
    min(ended_at_us) FILTER (is_answer) AS first_us,
    max(ended_at_us) FILTER (is_answer) AS last_us,
    min(ended_at_us - coalesce(busy_us, 0)) FILTER (is_answer) AS work_us,
    max(ended_at_us) AS ended_us, max(weight) AS weight, bool_or(is_near) AS is_near
FROM ended GROUP BY pair, slot
"""
# A gap is what ended after one answer, up to the next slot with an answer.
_GAPS = f"""
WITH slots AS (
    SELECT pair, slot, min(asked_us) AS asked_us, min(first_us) AS first_us, max(last_us) AS last_us,
        min(work_us) AS work_us, max(ended_us) AS ended_us, max(weight) AS weight, bool_or(is_near) AS is_near
    FROM rows GROUP BY pair, slot
),
placed AS (
    SELECT *, count(last_us) OVER earlier AS gap, max(last_us) OVER earlier AS before_us,
        min(asked_us) OVER later AS waits_us, min(work_us) OVER later AS works_us,
        max(weight) OVER (PARTITION BY pair) AS heaviest
    FROM slots WINDOW
        earlier AS (PARTITION BY pair ORDER BY slot ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
        later AS (PARTITION BY pair ORDER BY slot ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
)
SELECT pair, heaviest, max(before_us) AS before_at_us,
    greatest(max(before_us), min(waits_us)) AS began_at_us,
    coalesce(min(first_us), max(ended_us)) AS answered_at_us,
    least(answered_at_us, min(works_us)) AS worked_at_us, min(first_us) IS NULL AS is_open
FROM placed WHERE before_us IS NOT NULL
GROUP BY pair, gap, heaviest
HAVING answered_at_us > began_at_us
    AND (bool_or(is_near) OR (heaviest <= 1 AND worked_at_us - began_at_us >= {OUTAGE_MIN_US}))
"""


def outages(
    incidents: Sequence[Incident],
    gaps: Sequence[Gap],
    serving: Sequence[tuple[int, str, str]],
    *,
    is_sampled: bool = False,
) -> list[Outage]:
    """The incidents with what clients saw of them, and the outages that no certain one explains, in order.

    ``serving``: when each node began to serve, with its name and boot, in order. Pauses that neither a peer
    nor a request noticed are left out. Whether several requests waited is for the caller to count.
    """
    found = []
    owners: dict[Gap, list[Incident]] = defaultdict(list)
    for incident in incidents:
        since_us, until_us = around(incident)
        own = _own(incident, gaps)
        seen = [gap for gap in own if not gap.is_open]
        if not incident.is_certain and (is_sampled or not _has_waits(incident, seen)):
            continue
        for gap in own:
            owners[gap].append(incident)
        worst = max(
            seen, key=lambda gap: (gap.answered_at_us - gap.began_at_us, -gap.began_at_us), default=None
        )
        outage_us = None if worst is None else worst.answered_at_us - worst.began_at_us
        ended_us = until_us if worst is None else max(until_us, worst.answered_at_us)
        outage_at_us = None if worst is None else worst.began_at_us
        found.append(Outage(incident, outage_at_us, outage_us, since_us, ended_us))
    if not is_sampled:
        alone = [gap for gap in gaps if gap.worked_at_us - gap.began_at_us >= OUTAGE_MIN_US]
        found += [_outage(gap, owners[gap], serving) for gap in alone if not _is_explained(owners[gap])]
    return sorted(found, key=lambda each: (each.incident.began_at_us, each.incident.node, each.incident.kind))


def _has_waits(pause: Incident, seen: Iterable[Gap]) -> bool:
    """Whether requests waited for a pause, for as long as an outage lasts."""
    return pause.was_serving and any(
        min(gap.worked_at_us, pause.ended_at_us or 0) - max(gap.began_at_us, pause.began_at_us)
        >= OUTAGE_MIN_US
        for gap in seen
    )


def _own(incident: Incident, gaps: Sequence[Gap]) -> list[Gap]:
    """The times without an answer that are an incident's own."""
    since_us, until_us = around(incident)
    is_gone = incident.was_serving and incident.kind in ("crash", "both-crash", "stop", "pause")
    if is_gone and (incident.kind == "both-crash" or incident.taken_over_at_us is None):
        until_us = _NEVER if incident.ended_at_us is None else max(until_us, incident.ended_at_us)
    # Workers and clients move to another node in their own time; a node that stayed has all of them.
    has_moved = incident.taken_over_at_us is not None or (is_gone and incident.kind != "pause")
    low = bisect_right(gaps, since_us - CLOCK_ERROR_US, key=attrgetter("answered_at_us"))
    high = bisect_right(gaps, until_us + CLOCK_ERROR_US, key=attrgetter("before_at_us"))
    return [
        gap
        for gap in gaps[low:high]
        if since_us - gap.began_at_us <= _SETTLE_US
        and (gap.began_at_us if has_moved else gap.worked_at_us) - until_us <= _SETTLE_US
    ]


def _is_explained(owners: Iterable[Incident]) -> bool:
    return any(each.is_certain for each in owners)


def _outage(gap: Gap, pauses: Iterable[Incident], serving: Sequence[tuple[int, str, str]]) -> Outage:
    """Of requests that were not answered any more it lasts to the last of them."""
    active = bisect_right(serving, gap.began_at_us, key=lambda each: each[0])
    _, node, boot = serving[active - 1] if active else (0, "", "")
    answered_us = None if gap.is_open else gap.answered_at_us
    incident = Incident(
        "outage",
        node,
        boot,
        gap.began_at_us,
        "",
        ended_at_us=answered_us,
        recovered_at_us=answered_us,
        was_serving=True,
    )
    outage_us = gap.answered_at_us - gap.began_at_us
    return Outage(incident, gap.began_at_us, outage_us, gap.began_at_us, gap.answered_at_us, tuple(pauses))
