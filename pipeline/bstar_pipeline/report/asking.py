"""What the report and commands ask of the tables about incidents and the audit (``report.reading``)."""

from __future__ import annotations

from collections.abc import Mapping

from bstar.records.broker import FINISHED
from bstar_pipeline.report.content import Finding, Hit, Incident, Promise, Shown, Verdicts
from bstar_pipeline.report.reading import Tables, filled

ASKED = ("silver.runs", "silver.requests", "gold.audit", "gold.incidents")
"""The tables that are asked here."""

INCIDENTS_MAX = 200
FINDINGS_MAX = 100
HITS_MAX = 3


def requests(tables: Tables) -> float:
    """How many requests ended in the period."""
    # In millionths: the same sum in whatever order an engine adds.
    weight = "SUM(CAST(ROUND(weight * 1000000) AS BIGINT))"
    query = f"SELECT {weight} AS parts FROM {{table}} WHERE {tables.within('ended_at_us')}"  # noqa: S608
    (row,) = tables.ask("silver.requests", query)
    return (row["parts"] or 0) / 1e6


def verdicts(tables: Tables) -> list[Verdicts] | None:
    """The audit's findings, counted by rule; None if nothing was audited: that is not the same as none."""
    if not tables.snapshot.has("gold.audit"):
        return None
    counts = ", ".join(
        f"SUM(CASE WHEN verdict = '{verdict}' THEN COALESCE(count, 1) ELSE 0 END) AS {verdict}"
        for verdict in ("violated", "excused", "unproven")
    )
    query = f"SELECT rule, {counts} FROM {{table}} WHERE {_audited(tables)} GROUP BY rule ORDER BY rule"  # noqa: S608
    return [filled(Verdicts, row) for row in tables.ask("gold.audit", query)]


def findings(tables: Tables, most: int = FINDINGS_MAX) -> Shown[Finding]:
    """The audit's findings that are not excused, violations first."""
    order = "verdict DESC, " + ", ".join(
        f"{column} NULLS FIRST" for column in ("at_us", "rule", "client", "number", "text")
    )
    where = f"verdict <> 'excused' AND {_audited(tables)}"
    # What is counted has a row for each minute; here it is one finding.
    apart = "CASE WHEN verdict = 'violated' OR service IS NULL OR node IS NOT NULL THEN at_us END"
    where += f" GROUP BY pair, rule, verdict, client, number, service, node, text, {apart}"
    span = "MAX(at_us + COALESCE(duration_us, 0)) - MIN(at_us)"
    columns = {
        "at_us": "MIN(at_us)",
        "duration_us": f"COALESCE(NULLIF({span}, 0), MAX(duration_us))",
        "count": "CAST(SUM(COALESCE(count, 1)) AS BIGINT)",
    }
    return tables.shown(Finding, "gold.audit", where, order, most, **columns)


def incidents(tables: Tables, most: int = INCIDENTS_MAX) -> Shown[Incident]:
    """What moved the role or ended a node, in order; of too many those with the longest outages."""
    order = "outage_us DESC NULLS LAST, began_at_us, pair, node, kind"
    found = tables.shown(Incident, "gold.incidents", tables.within("began_at_us"), order, most)
    found.sort(key=lambda each: each.began_at_us)
    return found


def hits(tables: Tables, incident: Incident | None, promises: Mapping[str, Promise]) -> list[Hit]:
    """Which requests waited in the outage of an incident, by service, the most first."""
    if incident is None or not incident.outage_us:
        return []
    since_us, until_us = incident.outage_began_us, incident.outage_began_us + incident.outage_us
    asked = "COALESCE(asked_at_us, ended_at_us)"
    answered = f"outcome IN {FINISHED}"
    limits = sorted({promise.latency_us for promise in promises.values()})
    slow = "".join(
        f", SUM(CASE WHEN {answered} AND ended_at_us - {asked} > {limit} THEN 1 ELSE 0 END) AS over_{limit}"
        for limit in limits
    )
    query = f"""SELECT service, COUNT(*) AS waited, COUNT(DISTINCT client) AS clients,
        SUM(CASE WHEN {answered} THEN 0 ELSE 1 END) AS not_answered{slow} FROM {{table}}
        WHERE ended_at_us > {since_us} AND {asked} < {until_us}
        GROUP BY service ORDER BY waited DESC, service LIMIT {HITS_MAX}"""  # noqa: S608
    found = []
    for row in tables.ask("silver.requests", query):
        promise = promises.get(row["service"])
        found.append(filled(Hit, row, slow=row[f"over_{promise.latency_us}"] if promise else 0))
    return found


def _audited(tables: Tables) -> str:
    # A finding without a time is about its whole day; what is counted is of a time.
    first, last = tables.days
    is_of_day = f"at_us IS NULL AND day BETWEEN DATE '{first}' AND DATE '{last}'"
    ended_us = "at_us + CASE WHEN verdict = 'violated' THEN 0 ELSE COALESCE(duration_us, 0) END"
    return f"({is_of_day} OR (at_us < {tables.until_us} AND {ended_us} >= {tables.from_us}))"
