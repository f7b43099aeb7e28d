"""What commands ask of the tables, in SQL that Spark and DuckDB understand alike: one text for both.

This module imports neither. ``report.reading`` has the tables on Spark, ``report.folder`` those of a folder
of this machine on DuckDB; each is a ``Source``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bstar.records.broker import FINISHED
from bstar_pipeline.report.choice import Choice, filled
from bstar_pipeline.report.content import Finding, Hit, Incident, Promise, Shown, Verdicts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ASKED = ("silver.runs", "silver.requests", "gold.audit", "gold.incidents")
"""The tables that are asked here."""

INCIDENTS_MAX = 200
FINDINGS_MAX = 100
HITS_MAX = 3

LIVED = "SELECT pair, MIN(started_at_us) AS began_us, MAX(last_at_us) AS ended_us FROM {table} GROUP BY pair"
"""Of silver.runs: the first and the last sign of each pair."""

_Value = TypeVar("_Value", bound="DataclassInstance")


class Source(Protocol):
    """Tables, and what was chosen of them."""

    @property
    def choice(self) -> Choice:
        """The pair and the period."""

    def has(self, name: str) -> bool:
        """Whether the table was ever written, be it without a row."""

    def ask(self, name: str, query: str) -> list[Any]:
        """The rows of a query about ``{table}``: the rows of the chosen pair and days of the table ``name``.

        Each row gives its columns by name.
        """


def lived(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The answer to LIVED, by pair."""
    return {row["pair"]: (row["began_us"], row["ended_us"]) for row in rows}


def requests(source: Source) -> float:
    """How many requests ended in the period."""
    # In millionths: the same sum in whatever order an engine adds.
    weight = "SUM(CAST(ROUND(weight * 1000000) AS BIGINT))"
    query = f"SELECT {weight} AS parts FROM {{table}} WHERE {_within(source, 'ended_at_us')}"  # noqa: S608
    (row,) = source.ask("silver.requests", query)
    return (row["parts"] or 0) / 1e6


def verdicts(source: Source) -> list[Verdicts] | None:
    """The audit's findings, counted by rule; None if nothing was audited: that is not the same as none."""
    if not source.has("gold.audit"):
        return None
    counts = ", ".join(
        f"SUM(CASE WHEN verdict = '{verdict}' THEN COALESCE(count, 1) ELSE 0 END) AS {verdict}"
        for verdict in ("violated", "excused", "unproven")
    )
    query = f"SELECT rule, {counts} FROM {{table}} WHERE {_audited(source)} GROUP BY rule ORDER BY rule"  # noqa: S608
    return [filled(Verdicts, row) for row in source.ask("gold.audit", query)]


def findings(source: Source, most: int = FINDINGS_MAX) -> Shown[Finding]:
    """The audit's findings that are not excused, violations first."""
    order = "verdict DESC, " + ", ".join(
        f"{column} NULLS FIRST" for column in ("at_us", "rule", "client", "number", "text")
    )
    where = f"verdict <> 'excused' AND {_audited(source)}"
    # What is counted has a row for each minute; here it is one finding.
    apart = "CASE WHEN verdict = 'violated' OR service IS NULL OR node IS NOT NULL THEN at_us END"
    where += f" GROUP BY pair, rule, verdict, client, number, service, node, text, {apart}"
    span = "MAX(at_us + COALESCE(duration_us, 0)) - MIN(at_us)"
    columns = {
        "at_us": "MIN(at_us)",
        "duration_us": f"COALESCE(NULLIF({span}, 0), MAX(duration_us))",
        "count": "CAST(SUM(COALESCE(count, 1)) AS BIGINT)",
    }
    return _shown(source, "gold.audit", Finding, where, order, most, **columns)


def incidents(source: Source, most: int = INCIDENTS_MAX) -> Shown[Incident]:
    """What moved the role or ended a node, in order; of too many those with the longest outages."""
    order = "outage_us DESC NULLS LAST, began_at_us, pair, node, kind"
    found = _shown(source, "gold.incidents", Incident, _within(source, "began_at_us"), order, most)
    found.sort(key=lambda each: each.began_at_us)
    return found


def hits(source: Source, incident: Incident | None, promises: Mapping[str, Promise]) -> list[Hit]:
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
    for row in source.ask("silver.requests", query):
        promise = promises.get(row["service"])
        found.append(filled(Hit, row, slow=row[f"over_{promise.latency_us}"] if promise else 0))
    return found


def _shown(
    source: Source, name: str, kind: type[_Value], where: str, order: str, most: int, **columns: str
) -> Shown[_Value]:
    """The first ``most`` rows in this order, each as a ``kind``; ``columns``: what stands for a column."""
    names = ", ".join(
        f"{columns[field.name]} AS {field.name}" if field.name in columns else field.name
        for field in fields(kind)
    )
    # The rows are chosen before they are sorted, because a column and its alias may share a name.
    chosen = f"SELECT {names} FROM {{table}} WHERE {where}"  # noqa: S608
    rows = source.ask(name, f"SELECT * FROM ({chosen}) AS chosen ORDER BY {order} LIMIT {most + 1}")  # noqa: S608
    total = len(rows)
    if total > most:
        (row,) = source.ask(name, f"SELECT COUNT(*) AS total FROM ({chosen}) AS chosen")  # noqa: S608
        total = row["total"]
    return Shown((filled(kind, row) for row in rows[:most]), total)


def _within(source: Source, column: str) -> str:
    return f"{column} >= {source.choice.from_us} AND {column} < {source.choice.until_us}"


def _audited(source: Source) -> str:
    # A finding without a time is about its whole day; what is counted is of a time.
    first, last = source.choice.days
    is_of_day = f"at_us IS NULL AND day BETWEEN DATE '{first}' AND DATE '{last}'"
    ended_us = "at_us + CASE WHEN verdict = 'violated' THEN 0 ELSE COALESCE(duration_us, 0) END"
    return f"({is_of_day} OR (at_us < {source.choice.until_us} AND {ended_us} >= {source.choice.from_us}))"
