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
from dataclasses import asdict
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.history import CLOCK_ERROR_US, Incident, PairHistory
from bstar_pipeline.partitions import Made, Rows, Stored, queried
from bstar_pipeline.tables import utc

OUTAGE_MIN_US = 100_000
"""Shorter waits are the business of the objectives."""

# By how much a time without an answer may reach beyond its incident.
_SETTLE_US = 2_000_000
_FINE_US, _COARSE_US, _SECOND_US = 1_000, 100_000, 1_000_000
# What an incident held up is answered in the seconds around it; what took longer is found anywhere.
_BEFORE_S, _AFTER_S = 1, 4
_NEVER = 1 << 62


class Gap(NamedTuple):
    """A time between two answers in a row in which a request waited: since ``began_at_us``, until the next
    answer (none came if ``is_open``), and until a worker was at work on one again. ``before_at_us`` is the
    answer before it.
    """

    before_at_us: int
    began_at_us: int
    answered_at_us: int
    worked_at_us: int
    is_open: bool

    @property
    def length_us(self) -> int:
        """How long no request was answered."""
        return self.answered_at_us - self.began_at_us


def around(incident: Incident) -> tuple[int, int]:
    """From when to when an incident may have kept requests waiting."""
    served_us = incident.taken_over_at_us
    if incident.kind == "both-crash" or (incident.kind == "pause" and served_us is None):
        served_us = incident.ended_at_us
    until_us = max(incident.began_at_us, served_us or 0, incident.detected_at_us or 0)
    return incident.began_at_us - incident.began_error_us, until_us


def _seconds(incidents: Iterable[Incident]) -> set[int]:
    """The seconds around the beginning of each incident, and around the end of what it may have held up."""
    found: set[int] = set()
    for incident in incidents:
        for at_us in around(incident):
            second = at_us // _SECOND_US
            found.update(range(second - _BEFORE_S, second + _AFTER_S + 1))
    return found


def gaps(requests: Stored, histories: Mapping[str, PairHistory]) -> Made:
    """Times without an answer in which a request of ``silver.requests`` waited: pair, the fields of Gap, and
    the greatest weight of the pair's requests. Far from incidents only those as long as an outage are given.
    """
    seconds = {pair: sorted(_seconds(history.incidents)) for pair, history in histories.items()}
    near = [{"pair": pair, "second": second} for pair, found in seconds.items() for second in found]
    tables = {"near": pa.Table.from_pylist(near, _SECOND)}
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


def outages(pair: str, history: PairHistory, known: Rows) -> list[dict[str, Any]]:
    """The incidents of a pair with what clients saw of them, and the outages that no certain one explains.

    ``known``: its rows of ``gaps``. Pauses that neither a peer nor a request noticed are left out. What
    requests of ``since_us`` to ``until_us`` tell is to be counted, and whether several waited. If one of
    ``pauses`` is an incident, it explains an outage.
    """
    gaps = sorted(Gap(*itemgetter(*Gap._fields)(row)) for row in known)
    is_sampled = any((row["heaviest"] or 0) > 1 for row in known)
    found = []
    owners: dict[Gap, list[Incident]] = defaultdict(list)
    for incident in history.incidents:
        own = _own(incident, gaps)
        seen = [gap for gap in own if not gap.is_open]
        if not incident.is_certain and (is_sampled or not _has_waits(incident, seen)):
            continue
        for gap in own:
            owners[gap].append(incident)
        worst = max(seen, key=lambda gap: (gap.length_us, -gap.began_at_us), default=None)
        since_us, until_us = around(incident)
        until_us = until_us if worst is None else max(until_us, worst.answered_at_us)
        found.append(_row(pair, incident, worst, since_us, until_us))
    if not is_sampled:
        active = (state for state in history.states if state.state == "ACTIVE")
        serving = sorted((state.since_at_us, state.node, state.boot) for state in active)
        for gap in gaps:
            pauses, is_long = owners[gap], gap.worked_at_us - gap.began_at_us >= OUTAGE_MIN_US
            if is_long and not any(each.is_certain for each in pauses):
                outage = _outage(gap, serving)
                found.append(_row(pair, outage, gap, gap.began_at_us, gap.answered_at_us, pauses))
    return sorted(found, key=itemgetter("began_at_us", "node", "kind"))


def _row(
    pair: str, of: Incident, gap: Gap | None, since_us: int, until_us: int, pauses: Iterable[Incident] = ()
) -> dict[str, Any]:
    names = ("outage_at_us", "outage_until_us", "outage_us")
    times = (None,) * 3 if gap is None else (gap.began_at_us, gap.answered_at_us, gap.length_us)
    outage = dict(zip(names, times, strict=True))
    ids = {"pair": pair, "id": _id(pair, of), "pauses": [_id(pair, pause) for pause in pauses]}
    return {**asdict(of), **ids, **outage, "since_us": since_us, "until_us": until_us}


def _id(pair: str, incident: Incident) -> str:
    moment = f"{utc(incident.began_at_us):%Y%m%dT%H%M%S.%f}"[:-3]
    return f"{pair}.{incident.kind}.{incident.node}.{moment}"


def _has_waits(pause: Incident, seen: Iterable[Gap]) -> bool:
    """Whether requests waited for a pause, for as long as an outage lasts."""
    since_us, until_us = pause.began_at_us, pause.ended_at_us or 0
    waits = (min(gap.worked_at_us, until_us) - max(gap.began_at_us, since_us) for gap in seen)
    return pause.was_serving and max(waits, default=0) >= OUTAGE_MIN_US


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


def _outage(gap: Gap, serving: Sequence[tuple[int, str, str]]) -> Incident:
    """Of requests that were not answered any more it lasts to the last of them. ``serving``: when each node
    began to serve, with its name and boot, in order.
    """
    active = bisect_right(serving, gap.began_at_us, key=itemgetter(0))
    _, node, boot = serving[active - 1] if active else (0, "", "")
    ended_us = None if gap.is_open else gap.answered_at_us
    return Incident(
        "outage", node, boot, gap.began_at_us, "", 0, ended_us, was_serving=True, recovered_at_us=ended_us
    )
