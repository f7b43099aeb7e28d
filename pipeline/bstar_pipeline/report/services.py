"""What services and clients did in a period: objectives, latencies, capacity, clients.

The engine adds up; what comes to this process is limited here (``…_MAX``), whatever the size of the tables.
"""

from __future__ import annotations

from dataclasses import fields

from bstar.records.broker import FINISHED
from bstar_pipeline import sketch
from bstar_pipeline.report.content import Capacity, Client, Heat, Objective, Promise, Shown
from bstar_pipeline.report.reading import MINUTE_US, Tables, filled, is_one

# ruff: noqa: S608 - all that is put into queries are constants and numbers

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


def objectives(tables: Tables) -> tuple[Shown[Objective], float | None]:
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
        p50_us, p95_us, p99_us = percentiles.get(key, (None, None, None))
        given = {"p50_us": p50_us, "p95_us": p95_us, "p99_us": p99_us, "promise": promises.get(key)}
        counted = ", ".join(sorted({row["least"], row["most"]} - {None}))
        found.append(filled(Objective, row, **given, counted=counted, burn=burn.get(key, [])))
    overall = [times[-1] for (_, service), times in percentiles.items() if service == _ALL]
    return Shown(found, rows.total), overall[0] if len(overall) == 1 else None


def _promises(tables: Tables) -> dict[tuple[str, str], Promise]:
    """What of their budgets the services have used by the end of the last day of the period."""
    names = ", ".join(field.name for field in fields(Promise))
    query = f"""
        SELECT pair, service, {names} FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY pair, service ORDER BY day DESC) AS nth FROM {{table}}
        ) AS ranked WHERE nth = 1"""
    rows = tables.ask("gold.budgets", query, margin_days=0)
    return {(row["pair"], row["service"]): filled(Promise, row) for row in rows}


def _burn(
    tables: Tables, minutes: str, services: list[str]
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    step = max(tables.step_us, MINUTE_US)
    query = f"""
        SELECT pair, service, CAST(FLOOR(at_us / {step}) AS BIGINT) AS step, {_MEAN_BURN} AS burn
        FROM ({minutes}) AS inside WHERE {is_one("service", services)} GROUP BY 1, 2, 3"""
    burn: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in sorted(tables.ask("gold.objectives", query), key=lambda row: row["step"]):
        if row["burn"] is not None:
            burn.setdefault((row["pair"], row["service"]), []).append((row["step"] * step, row["burn"]))
    return burn


def _sketches(tables: Tables) -> str:
    """pair, service, at_us, bucket, weight of the total times."""
    return f"""
        SELECT pair, service, at_us, bucket, weight
        FROM (SELECT *, UNIX_MICROS(minute) AS at_us FROM {{table}}) AS timed
        WHERE measure = 'total' AND outcome IN {FINISHED} AND {tables.within("at_us", length_us=MINUTE_US)}"""


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


def _percentiles(tables: Tables) -> dict[tuple[str, str], list[float]]:
    """By pair and service: the median, the 95th and the 99th percentile in microseconds."""
    ranked = _ranked(_sketches(tables), "pair", "TRUE")
    query = f"""
        SELECT pair, service, {_reached(0.5)} AS p50, {_reached(0.95)} AS p95, {_reached(0.99)} AS p99
        FROM ({ranked}) AS ranked GROUP BY pair, service"""
    rows = tables.ask("gold.sketches", query)
    names = ("p50", "p95", "p99")
    return {(row["pair"], row["service"]): [sketch.value_of(row[name]) for name in names] for row in rows}


def heats(tables: Tables, services: list[str]) -> tuple[list[float], list[Heat]]:
    """Latencies by time and duration: the edges of the rows; a heat for all, and one for each service."""
    if tables.step_us >= MINUTE_US:
        name, found = "gold.sketches", _sketches(tables)
    else:
        # Sketches are of minutes; a shorter step needs the requests themselves, of a few hours at most.
        name = "silver.requests"
        found = f"""
            SELECT service, ended_at_us AS at_us, {sketch.bucket_sql("total_us")} AS bucket, weight
            FROM {{table}} WHERE {tables.within("ended_at_us")} AND outcome IN {FINISHED}
                AND total_us IS NOT NULL"""
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
    drawn = []
    for service in [_ALL, *services]:
        of_one = [row for row in rows if row["service"] == service]
        if not of_one:
            continue
        cells = [(row["step"], row["cell"] - lowest, row["weight"]) for row in of_one]
        p50: dict[int, int] = {}
        p99: dict[int, int] = {}
        # Ascending rows: the first one in which a share is reached has its bucket.
        for row in of_one:
            if row["p50"] is not None:
                p50.setdefault(row["step"], row["p50"])
            if row["p99"] is not None:
                p99.setdefault(row["step"], row["p99"])
        lines = [(step, sketch.value_of(p50[step]), sketch.value_of(p99[step])) for step in sorted(p50)]
        drawn.append(Heat(service, cells, lines))
    return edges_us, drawn


def capacity(tables: Tables) -> Shown[Capacity]:
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
    points: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(tables.ask("gold.capacity", means), key=lambda row: row["step"]):
        points.setdefault(row["service"], []).append((row["step"] * step, row["mean"]))
    found = (filled(Capacity, row, hours=points.get(row["service"], [])) for row in rows)
    return Shown(found, rows.total)


def clients(tables: Tables) -> Shown[Client]:
    """Each client over the days of the period, the conspicuous and the busiest first."""
    columns = {name: f"SUM({name})" for name in ("requests", "not_answered", "retries", "busy")}
    columns |= {
        name: f"MAX({name})" for name in ("node", "share", "peak_per_s", "is_flooding", "is_retrying")
    }
    columns["p99_us"] = "MAX(total_p99_us)"
    found = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    query = f"SELECT client, {found} FROM {{table}} GROUP BY client"
    order = "(COALESCE(is_flooding, FALSE) OR COALESCE(is_retrying, FALSE)) DESC, requests DESC, client"
    rows = tables.first("gold.clients", query, order, CLIENTS_MAX, margin_days=0)
    return Shown((filled(Client, row) for row in rows), rows.total)
