"""What the report and the commands ask of the tables (``report.reading``), and the report's content of it.

The engine adds up; what comes to this process is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from bstar.records.broker import FINISHED
from bstar_pipeline import sketch
from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.report import content
from bstar_pipeline.report.content import Shown
from bstar_pipeline.report.reading import MINUTE_US, Tables, filled, is_one
from bstar_pipeline.report.words import worst_outage

# ruff: noqa: S608 - all that is put into queries are constants and numbers

ASKED = ("silver.runs", "silver.requests", "gold.audit", "gold.incidents")
"""The tables that tell of the audit and of incidents."""

INCIDENTS_MAX = 200
FINDINGS_MAX = 100
HITS_MAX = 3
INTERVALS_MAX = 2_000
RUNS_MAX = 200
SAMPLES_MAX = 5
LINE_CHARS_MAX = 200
SERVICES_MAX = 30
CLIENTS_MAX = 25
PLOTTED_SERVICES_MAX = 5
HOURS_MAX = 400
_HOUR_US = 60 * MINUTE_US
# Rows of the heat map are so many buckets: about eight a decade.
_BUCKETS_A_ROW = 14
# No service has this name: an empty one is refused.
_ALL = ""
_MEAN_BURN = "SUM(burn_rate * requests) / SUM(requests)"
_IS_ANSWERED = f"outcome IN {FINISHED}"

_Service = tuple[str, str]
"""A pair and a service."""


def collect(tables: Tables, progress: Callable[[str], None] = lambda _: None) -> content.Content:
    """The report's content of ``tables`` of one pair. ``progress`` is called with a word for each part."""
    assert tables.pair is not None, "a report is about one pair"
    progress("reading processes")
    found_runs = runs(tables)
    progress("reading requests")
    found_rates = rates(tables)
    progress("reading incidents")
    found_incidents = incidents(tables)
    progress("reading objectives")
    found_objectives, p99_us = objectives(tables)
    promises = {each.service: each.promise for each in found_objectives if each.promise is not None}
    progress("reading latencies")
    edges_us, drawn = heats(tables, [each.service for each in found_objectives[:PLOTTED_SERVICES_MAX]])
    progress("reading audit, capacity and clients")
    return content.Content(
        pair=tables.pair,
        from_us=tables.from_us,
        until_us=tables.until_us,
        step_us=tables.step_us,
        requests=sum(rate.answered + rate.not_answered for rate in found_rates),
        errors=sum(rate.not_answered for rate in found_rates),
        verdicts=verdicts(tables),
        findings=findings(tables),
        intervals=intervals(tables),
        rates=found_rates,
        incidents=found_incidents,
        hits=hits(tables, worst_outage(found_incidents), promises),
        edges_us=edges_us,
        heats=drawn,
        p99_us=p99_us,
        objectives=found_objectives,
        capacity=capacity(tables),
        clients=clients(tables),
        runs=found_runs,
        quality=quality(tables),
    )


# --- requests, incidents and the audit ----------------------------------------------------------------------


def requests(tables: Tables) -> float:
    """How many requests ended in the period."""
    weight = sketch.millionths_sql("weight")
    query = f"SELECT SUM({weight}) AS parts FROM {{table}} WHERE {tables.within('ended_at_us')}"
    (row,) = tables.ask("silver.requests", query)
    return (row["parts"] or 0) / 1e6


def rates(tables: Tables) -> list[content.Rate]:
    """Requests by step."""
    query = f"""
        SELECT {tables.step_of("ended_at_us")} AS step,
            SUM(CASE WHEN {_IS_ANSWERED} THEN weight ELSE 0 END) AS answered,
            SUM(CASE WHEN {_IS_ANSWERED} THEN 0 ELSE weight END) AS not_answered
        FROM {{table}} WHERE {tables.within("ended_at_us")} GROUP BY 1"""
    by_step = {row["step"]: row for row in tables.ask("silver.requests", query)}
    none = {"answered": 0.0, "not_answered": 0.0}
    times = range(tables.origin_us, tables.until_us, tables.step_us)
    return [filled(content.Rate, by_step.get(step, none), at_us=at_us) for step, at_us in enumerate(times)]


def verdicts(tables: Tables) -> list[content.Verdicts] | None:
    """The audit's findings, counted by rule; None if nothing was audited: that is not the same as none."""
    if not tables.snapshot.has("gold.audit"):
        return None
    counts = ", ".join(
        f"SUM(CASE WHEN verdict = '{verdict}' THEN COALESCE(count, 1) ELSE 0 END) AS {verdict}"
        for verdict in ("violated", "excused", "unproven")
    )
    query = f"SELECT rule, {counts} FROM {{table}} WHERE {_audited(tables)} GROUP BY rule ORDER BY rule"
    return [filled(content.Verdicts, row) for row in tables.ask("gold.audit", query)]


def findings(tables: Tables, most: int = FINDINGS_MAX) -> Shown[content.Finding]:
    """The audit's findings that are not excused, violations first."""
    order = "verdict DESC, " + ", ".join(
        f"{column} NULLS FIRST" for column in ("at_us", "rule", "client", "number", "text")
    )
    # What is counted has a row for each minute; here it is one finding.
    apart = "CASE WHEN verdict = 'violated' OR service IS NULL OR node IS NOT NULL THEN at_us END"
    groups = f"pair, rule, verdict, client, number, service, node, text, {apart}"
    where = f"verdict <> 'excused' AND {_audited(tables)} GROUP BY {groups}"
    span = "MAX(at_us + COALESCE(duration_us, 0)) - MIN(at_us)"
    columns = {
        "at_us": "MIN(at_us)",
        "duration_us": f"COALESCE(NULLIF({span}, 0), MAX(duration_us))",
        "count": "CAST(SUM(COALESCE(count, 1)) AS BIGINT)",
    }
    return tables.shown(content.Finding, "gold.audit", where, order, most, **columns)


def _audited(tables: Tables) -> str:
    # A finding without a time is about its whole day; what is counted is of a time.
    first, last = tables.days
    is_of_day = f"at_us IS NULL AND day BETWEEN DATE '{first}' AND DATE '{last}'"
    ended_us = "at_us + CASE WHEN verdict = 'violated' THEN 0 ELSE COALESCE(duration_us, 0) END"
    return f"({is_of_day} OR (at_us < {tables.until_us} AND {ended_us} >= {tables.from_us}))"


def incidents(tables: Tables, most: int = INCIDENTS_MAX) -> Shown[content.Incident]:
    """What moved the role or ended a node, in order; of too many those with the longest outages."""
    order = "outage_us DESC NULLS LAST, began_at_us, pair, node, kind"
    found = tables.shown(content.Incident, "gold.incidents", tables.within("began_at_us"), order, most)
    found.sort(key=lambda each: each.began_at_us)
    return found


def hits(
    tables: Tables, incident: content.Incident | None, promises: Mapping[str, content.Promise]
) -> list[content.Hit]:
    """Which requests waited in the outage of an incident, by service, the most first."""
    if incident is None or not incident.outage_us:
        return []
    since_us, until_us = incident.outage_began_us, incident.outage_began_us + incident.outage_us
    asked = "COALESCE(asked_at_us, ended_at_us)"
    limits = sorted({promise.latency_us for promise in promises.values()})
    is_slow = f"{_IS_ANSWERED} AND ended_at_us - {asked}"
    slow = "".join(
        f", SUM(CASE WHEN {is_slow} > {limit} THEN 1 ELSE 0 END) AS over_{limit}" for limit in limits
    )
    query = f"""SELECT service, COUNT(*) AS waited, COUNT(DISTINCT client) AS clients,
        SUM(CASE WHEN {_IS_ANSWERED} THEN 0 ELSE 1 END) AS not_answered{slow} FROM {{table}}
        WHERE ended_at_us > {since_us} AND {asked} < {until_us}
        GROUP BY service ORDER BY waited DESC, service LIMIT {HITS_MAX}"""
    found = []
    for row in tables.ask("silver.requests", query):
        promise = promises.get(row["service"])
        found.append(filled(content.Hit, row, slow=row[f"over_{promise.latency_us}"] if promise else 0))
    return found


# --- processes ----------------------------------------------------------------------------------------------


def intervals(tables: Tables) -> Shown[content.Interval]:
    """What the nodes were, in order; of too many the longest.

    A node whose journal simply ends was alive: its next record was not due yet.
    """
    from_us, until_us = tables.from_us, tables.until_us
    lasted = f"CASE WHEN ended_by = 'end' THEN GREATEST(until_at_us, {until_us}) ELSE until_at_us END"
    where = f"since_at_us < {until_us} AND {lasted} >= {from_us}"
    columns = {
        "length_us": f"{lasted} - since_at_us",
        "since_at_us": f"GREATEST(since_at_us, {from_us})",
        "until_at_us": f"LEAST({lasted}, {until_us})",
    }
    order = "length_us DESC, since_at_us, node"
    found = tables.shown(content.Interval, "silver.states", where, order, INTERVALS_MAX, **columns)
    found.sort(key=lambda each: (each.since_at_us, each.node))
    return found


def runs(tables: Tables) -> Shown[content.Run]:
    """The runs of processes that lived in the period, the earliest first."""
    lived = f"started_at_us < {tables.until_us} AND last_at_us >= {tables.from_us}"
    return tables.shown(content.Run, "silver.runs", lived, "started_at_us, node", RUNS_MAX)


def quality(tables: Tables) -> content.Quality:
    """What of the journals could not be read, or is not there."""
    of_state = "state, COUNT(*) AS files, SUM(lines) AS lines, SUM(duplicates) AS twice"
    states = tables.ask("bronze.files", f"SELECT {of_state} FROM {{table}} GROUP BY state")
    # A file whose name names neither pair nor day belongs to all.
    rejected = partial(tables.ask, "bronze.rejected", margin_days=None, more=["unknown"])
    reasons = rejected("SELECT reason, COUNT(*) AS n FROM {table} GROUP BY reason")
    samples = rejected(
        f"SELECT file, reason, SUBSTRING(line, 1, {LINE_CHARS_MAX}) AS line FROM {{table}} "
        f"ORDER BY file NULLS FIRST, line NULLS FIRST LIMIT {SAMPLES_MAX}"
    )
    sums = "SUM(missing) AS missing, SUM(dropped) AS dropped, MAX(is_sampled) AS is_sampled"
    (totals,) = tables.ask("silver.runs", f"SELECT {sums} FROM {{table}}")
    is_off = f"ABS(clock_off_us) > {CLOCK_ERROR_US} OR clock_unsure_us > {CLOCK_ERROR_US}"
    clocks = tables.ask(
        "silver.runs",
        f"SELECT DISTINCT node, clock_off_us, clock_unsure_us FROM {{table}} WHERE {is_off} "
        f"ORDER BY node, clock_off_us LIMIT {SAMPLES_MAX}",
    )
    return filled(
        content.Quality,
        totals,
        files=_most_first((row["state"], row["files"]) for row in states),
        rejected=_most_first((row["reason"], row["n"]) for row in reasons),
        samples=[(row["file"] or "", row["reason"], row["line"] or "") for row in samples],
        lines=sum(row["lines"] or 0 for row in states),
        duplicates=sum(row["twice"] or 0 for row in states),
        clocks=[(row["node"], row["clock_off_us"], row["clock_unsure_us"]) for row in clocks],
    )


def _most_first(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda each: (-each[1], each[0]))


# --- services and clients -----------------------------------------------------------------------------------


def objectives(tables: Tables) -> tuple[Shown[content.Objective], float | None]:
    """Each service of the whole period, the busiest first, and the 99th percentile of all requests."""
    minutes = f"""
        SELECT * FROM (SELECT *, UNIX_MICROS(minute) AS at_us FROM {{table}}) AS timed
        WHERE {tables.within("at_us", length_us=MINUTE_US)}"""
    # Of a minute that the period has in part the rate is not that of a minute.
    from_us, until_us = tables.from_us, tables.until_us
    is_whole = f"at_us >= {from_us} AND at_us + {MINUTE_US} <= {until_us}"
    services = f"""
        SELECT pair, service, MIN(counted) AS least, MAX(counted) AS most, SUM(requests) AS requests,
            SUM(errors) AS errors,
            COALESCE(MAX(CASE WHEN {is_whole} THEN rate END), SUM(requests) / {(until_us - from_us) / 1e6!r})
                AS peak_per_s,
            {_MEAN_BURN} AS burn_rate, MAX(burn_rate) AS worst_burn_rate,
            MIN(CASE WHEN burn_rate = worst THEN at_us END) AS worst_at_us,
            SUM(CASE WHEN alert = 'fast' THEN 1 ELSE 0 END) AS fast_alerts,
            SUM(CASE WHEN alert = 'slow' THEN 1 ELSE 0 END) AS slow_alerts
        FROM (SELECT *, MAX(burn_rate) OVER (PARTITION BY pair, service) AS worst FROM ({minutes}) AS inside)
            AS ranked
        GROUP BY pair, service"""
    rows = tables.first("gold.objectives", services, "requests DESC, pair, service", SERVICES_MAX)
    percentiles = _percentiles(tables)
    promises = _promises(tables)
    burn = _burn(tables, minutes, [row["service"] for row in rows[:PLOTTED_SERVICES_MAX]])
    found = []
    for row in rows:
        key = (row["pair"], row["service"])
        given = dict(zip(("p50_us", "p95_us", "p99_us"), percentiles.get(key, (None,) * 3), strict=True))
        counted = ", ".join(sorted({row["least"], row["most"]} - {None}))
        about = {"promise": promises.get(key), "counted": counted, "burn": burn.get(key, [])}
        found.append(filled(content.Objective, row, **given, **about))
    overall = [times[-1] for (_, service), times in percentiles.items() if service == _ALL]
    return Shown(found, rows.total), overall[0] if len(overall) == 1 else None


def _promises(tables: Tables) -> dict[_Service, content.Promise]:
    """What of their budgets the services have used by the end of the last day of the period."""
    names = ", ".join(content.Promise.__struct_fields__)
    query = f"""
        SELECT pair, service, {names} FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY pair, service ORDER BY day DESC) AS nth FROM {{table}}
        ) AS ranked WHERE nth = 1"""
    rows = tables.ask("gold.budgets", query, margin_days=0)
    return {(row["pair"], row["service"]): filled(content.Promise, row) for row in rows}


def _burn(tables: Tables, minutes: str, services: list[str]) -> Mapping[_Service, list[tuple[int, float]]]:
    step = max(tables.step_us, MINUTE_US)
    query = f"""
        SELECT pair, service, CAST(FLOOR(at_us / {step}) AS BIGINT) AS step, {_MEAN_BURN} AS burn
        FROM ({minutes}) AS inside WHERE {is_one("service", services)} GROUP BY 1, 2, 3"""
    burn: defaultdict[_Service, list[tuple[int, float]]] = defaultdict(list)
    for row in sorted(tables.ask("gold.objectives", query), key=lambda row: row["step"]):
        if row["burn"] is not None:
            burn[row["pair"], row["service"]].append((row["step"] * step, row["burn"]))
    return burn


def _sketches(tables: Tables) -> str:
    """pair, service, at_us, bucket, weight of the total times."""
    return f"""
        SELECT pair, service, at_us, bucket, weight
        FROM (SELECT *, UNIX_MICROS(minute) AS at_us FROM {{table}}) AS timed
        WHERE measure = 'total' AND {_IS_ANSWERED} AND {tables.within("at_us", length_us=MINUTE_US)}"""


def _ranked(found: str, keys: str, is_asked: str) -> str:
    """By these keys, of each service for which the condition holds and of all together: the weight of each
    bucket in millionths, up to it, and of all. Each row of what was ``found`` stands for both.
    """
    by_key = f"PARTITION BY service, {keys}"
    return f"""
        SELECT *, SUM(parts) OVER ({by_key} ORDER BY bucket ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
            AS upto, SUM(parts) OVER ({by_key}) AS whole
        FROM (
            SELECT {keys}, CASE WHEN is_all = 1 THEN '{_ALL}' ELSE service END AS service, bucket,
                SUM({sketch.millionths_sql("weight")}) AS parts
            FROM ({found}) AS found CROSS JOIN (VALUES (0), (1)) AS twice(is_all)
            WHERE is_all = 1 OR {is_asked}
            GROUP BY 1, 2, 3
        ) AS merged"""


def _reached(share: float) -> str:
    return sketch.percentile_sql(share, "bucket", "upto", "whole")


def _percentiles(tables: Tables) -> dict[_Service, list[float]]:
    """The median, the 95th and the 99th percentile in microseconds."""
    ranked = _ranked(_sketches(tables), "pair", "TRUE")
    query = f"""
        SELECT pair, service, {_reached(0.5)} AS p50, {_reached(0.95)} AS p95, {_reached(0.99)} AS p99
        FROM ({ranked}) AS ranked GROUP BY pair, service"""
    rows = tables.ask("gold.sketches", query)
    names = ("p50", "p95", "p99")
    return {(row["pair"], row["service"]): [sketch.value_of(row[name]) for name in names] for row in rows}


def heats(tables: Tables, services: list[str]) -> tuple[list[float], list[content.Heat]]:
    """Latencies by time and duration: the edges of the rows; a heat for all, and one for each service."""
    if tables.step_us >= MINUTE_US:
        name, found = "gold.sketches", _sketches(tables)
    else:
        # Sketches are of minutes; a shorter step needs the requests themselves, of a few hours at most.
        name = "silver.requests"
        found = f"""
            SELECT service, ended_at_us AS at_us, {sketch.bucket_sql("total_us")} AS bucket, weight
            FROM {{table}} WHERE {tables.within("ended_at_us")} AND {_IS_ANSWERED} AND total_us IS NOT NULL"""
    steps = f"SELECT *, {tables.step_of('at_us')} AS step FROM ({found}) AS timed"
    query = f"""
        SELECT service, step, CAST(FLOOR(bucket / {_BUCKETS_A_ROW}) AS INT) AS cell,
            SUM(parts) / 1e6 AS weight, {_reached(0.5)} AS p50, {_reached(0.99)} AS p99
        FROM ({_ranked(steps, "step", is_one("service", services))}) AS ranked GROUP BY 1, 2, 3"""
    rows = sorted(tables.ask(name, query), key=lambda row: (row["service"], row["step"], row["cell"]))
    if not rows:
        return [], []
    lowest, highest = min(row["cell"] for row in rows), max(row["cell"] for row in rows)
    edges_us = [sketch.GAMMA ** (row * _BUCKETS_A_ROW - 1) for row in range(lowest, highest + 2)]
    drawn = {service: content.Heat(service, [], []) for service in (_ALL, *services)}
    # Ascending cells: the first one in which a share is reached has its bucket.
    reached: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for row in rows:
        drawn[row["service"]].cells.append((row["step"], row["cell"] - lowest, row["weight"]))
        for share in ("p50", "p99"):
            if row[share] is not None:
                reached[row["service"], row["step"]].setdefault(share, sketch.value_of(row[share]))
    for (service, step), shares in reached.items():
        drawn[service].lines.append((step, shares["p50"], shares["p99"]))
    return edges_us, [each for each in drawn.values() if each.cells]


def capacity(tables: Tables) -> Shown[content.Capacity]:
    """The workers of each service, the most utilised first."""
    hours = f"""
        SELECT * FROM (
            SELECT *, UNIX_MICROS(hour) AS at_us, UNIX_MICROS(saturates_at) AS saturates_at_us FROM {{table}}
        ) AS timed WHERE {tables.within("at_us", length_us=_HOUR_US)}"""
    latest = f"""
        SELECT * FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY service ORDER BY at_us DESC) AS nth
            FROM ({hours}) AS inside
        ) AS ranked WHERE nth = 1"""
    rows = tables.first("gold.capacity", latest, "utilisation DESC NULLS LAST, service", SERVICES_MAX)
    plotted = [row["service"] for row in rows[:PLOTTED_SERVICES_MAX]]
    step = -(-(tables.until_us - tables.from_us) // (_HOUR_US * HOURS_MAX)) * _HOUR_US
    means = f"""
        SELECT service, CAST(FLOOR(at_us / {step}) AS BIGINT) AS step, AVG(utilisation) AS mean
        FROM ({hours}) AS inside WHERE {is_one("service", plotted)} AND utilisation IS NOT NULL
        GROUP BY 1, 2"""
    points: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in sorted(tables.ask("gold.capacity", means), key=lambda row: row["step"]):
        points[row["service"]].append((row["step"] * step, row["mean"]))
    return Shown((filled(content.Capacity, row, hours=points[row["service"]]) for row in rows), rows.total)


def clients(tables: Tables) -> Shown[content.Client]:
    """Each client over the days of the period, the conspicuous and the busiest first."""
    sums = {name: f"SUM({name})" for name in ("requests", "not_answered", "retries", "busy")}
    most = {name: f"MAX({name})" for name in ("node", "share", "peak_per_s", "is_flooding", "is_retrying")}
    columns = {**sums, **most, "p99_us": "MAX(total_p99_us)"}
    found = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    query = f"SELECT client, {found} FROM {{table}} GROUP BY client"
    order = "(COALESCE(is_flooding, FALSE) OR COALESCE(is_retrying, FALSE)) DESC, requests DESC, client"
    rows = tables.first("gold.clients", query, order, CLIENTS_MAX, margin_days=0)
    return Shown((filled(content.Client, row) for row in rows), rows.total)
