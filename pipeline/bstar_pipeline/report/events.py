"""What happened to a pair, for its report: requests over time, states, runs, and how good the data are.

The engine adds up; what comes to this process is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.report.content import Interval, Quality, Rate, Run, Shown
from bstar_pipeline.report.reading import Tables, filled

# ruff: noqa: S608 - all that is put into queries are constants and numbers

INTERVALS_MAX = 2_000
RUNS_MAX = 200
SAMPLES_MAX = 5
LINE_CHARS_MAX = 200


def rates(tables: Tables) -> list[Rate]:
    """Requests by step."""
    is_answered = f"outcome IN {FINISHED}"
    rows = tables.ask(
        "silver.requests",
        f"""
        SELECT {tables.step_of("ended_at_us")} AS step,
            SUM(CASE WHEN {is_answered} THEN weight ELSE 0 END) AS answered,
            SUM(CASE WHEN {is_answered} THEN 0 ELSE weight END) AS not_answered
        FROM {{table}} WHERE {tables.within("ended_at_us")} GROUP BY 1
        """,
    )
    by_step = {row["step"]: row for row in rows}
    steps = (tables.until_us - 1 - tables.origin_us) // tables.step_us + 1
    none = {"answered": 0.0, "not_answered": 0.0}
    times = ((step, tables.origin_us + step * tables.step_us) for step in range(steps))
    return [filled(Rate, by_step.get(step, none), at_us=at_us) for step, at_us in times]


def intervals(tables: Tables) -> Shown[Interval]:
    """What the nodes were, in order; of too many the longest.

    A node whose journal simply ends was alive: its next record was not due yet.
    """
    from_us, until_us = tables.from_us, tables.until_us
    lasted = f"CASE WHEN ended_by = 'end' THEN GREATEST(until_at_us, {until_us}) ELSE until_at_us END"
    found = tables.shown(
        Interval,
        "silver.states",
        f"since_at_us < {until_us} AND {lasted} >= {from_us}",
        "length_us DESC, since_at_us, node",
        INTERVALS_MAX,
        length_us=f"{lasted} - since_at_us",
        since_at_us=f"GREATEST(since_at_us, {from_us})",
        until_at_us=f"LEAST({lasted}, {until_us})",
    )
    found.sort(key=lambda each: (each.since_at_us, each.node))
    return found


def runs(tables: Tables) -> Shown[Run]:
    """The runs of processes that lived in the period, the earliest first."""
    lived = f"started_at_us < {tables.until_us} AND last_at_us >= {tables.from_us}"
    return tables.shown(Run, "silver.runs", lived, "started_at_us, node", RUNS_MAX)


def quality(tables: Tables) -> Quality:
    """What of the journals could not be read, or is not there."""
    states = tables.ask(
        "bronze.files",
        "SELECT state, COUNT(*) AS files, SUM(lines) AS lines, SUM(duplicates) AS twice FROM {table} "
        "GROUP BY state",
    )
    # A file whose name names neither pair nor day belongs to all.
    rejected = partial(tables.ask, "bronze.rejected", margin_days=None, more=["unknown"])
    reasons = rejected("SELECT reason, COUNT(*) AS n FROM {table} GROUP BY reason")
    samples = rejected(
        f"SELECT file, reason, SUBSTRING(line, 1, {LINE_CHARS_MAX}) AS line FROM {{table}} "
        f"ORDER BY file NULLS FIRST, line NULLS FIRST LIMIT {SAMPLES_MAX}"
    )
    (totals,) = tables.ask(
        "silver.runs",
        "SELECT COALESCE(SUM(missing), 0) AS missing, COALESCE(SUM(dropped), 0) AS dropped, "
        "COALESCE(MAX(is_sampled), FALSE) AS is_sampled FROM {table}",
    )
    clocks = tables.ask(
        "silver.runs",
        f"SELECT DISTINCT node, clock_off_us, clock_unsure_us FROM {{table}} "
        f"WHERE ABS(clock_off_us) > {CLOCK_ERROR_US} OR clock_unsure_us > {CLOCK_ERROR_US} "
        f"ORDER BY node, clock_off_us LIMIT {SAMPLES_MAX}",
    )
    return Quality(
        files=_most_first((row["state"], row["files"]) for row in states),
        rejected=_most_first((row["reason"], row["n"]) for row in reasons),
        samples=[(row["file"] or "", row["reason"], row["line"] or "") for row in samples],
        lines=sum(row["lines"] or 0 for row in states),
        duplicates=sum(row["twice"] or 0 for row in states),
        missing=totals["missing"],
        dropped=totals["dropped"],
        is_sampled=totals["is_sampled"],
        clocks=[(row["node"], row["clock_off_us"], row["clock_unsure_us"]) for row in clocks],
    )


def _most_first(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda each: (-each[1], each[0]))
