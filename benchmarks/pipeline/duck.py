"""The same gold tables by DuckDB, in SQL of its own, from the same files.

It reads what the tables need of each line, straight from the journals, into a table of its own, and computes
each gold table from that. It does less than the batch job: it keeps no bronze and no silver, sets nothing
aside, knows of no file that comes twice, of no clock that is set and of no journal but the nodes'.

    python -m pipeline.duck JOURNAL OUT --memory 4GB --threads 2
"""

# ruff: noqa: E501 - SQL

import argparse
import json
import time
from pathlib import Path

import duckdb

from bstar.wire.refusals import OF_SERVICE
from bstar_pipeline.gold import clients
from bstar_pipeline.gold.objectives import ENDED, FINISHED, MEASURES, SHARES
from bstar_pipeline.sketch import bucket_of, bucket_sql, value_sql
from bstar_pipeline.slo import ERRORS, Objectives

SLO = Objectives()

# Every field that one of the tables below needs.
_COLUMNS = {
    "kind": "VARCHAR",
    "pair": "VARCHAR",
    "boot": "VARCHAR",
    "seq": "BIGINT",
    "at": "BIGINT",
    "client": "VARCHAR",
    "number": "BIGINT",
    "service": "VARCHAR",
    "outcome": "VARCHAR",
    "reason": "VARCHAR",
    "state": "VARCHAR",
    "new": "VARCHAR",
    "count": "BIGINT",
    "is_repeated": "BOOLEAN",
    "bytes_in": "BIGINT",
    "bytes_out": "BIGINT",
    "total_us": "BIGINT",
    "queued_us": "BIGINT",
    "busy_us": "BIGINT",
    "weight": "DOUBLE",
    "interval_us": "BIGINT",
    "workers": "BIGINT",
    "credit": "BIGINT",
    "queued": "BIGINT",
    "accepted": "BIGINT",
}
_KINDS = ("request", "refused", "load", "pulse", "state", "active", "inactive")
# What a line leaves out because it is the default.
_DEFAULTS = {"queued_us": "0", "busy_us": "0", "bytes_in": "0", "bytes_out": "0", "weight": "1.0"}
_DEFAULTS |= {"is_repeated": "false", "accepted": "0", "service": "''"}
# Words of its grammar.
_RENAMED = {"at": "at_us", "count": "times", "new": "new_state"}


def _words(values: tuple[str, ...]) -> str:
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


def _minute(column: str) -> str:
    return f"make_timestamp({column} * 60000000)"


def _column(name: str) -> str:
    value = f'"{name}"'
    if name in _DEFAULTS:
        value = f"coalesce({value}, {_DEFAULTS[name]})"
    return f"{value} AS {_RENAMED.get(name, name)}"


RECORDS = f"""
    CREATE TABLE records AS
    SELECT {", ".join(map(_column, _COLUMNS))}
    FROM read_json($files, format = 'newline_delimited', columns = {_COLUMNS!r},
                   ignore_errors = true)
    WHERE kind IN {_words(_KINDS)}
"""

_SKETCHES = f"""
    WITH counted AS (
        SELECT pair, service, at_us // 60000000 AS minute, outcome, weight, queued_us, busy_us, total_us
        FROM records WHERE kind = 'request' AND outcome IN {_words(ENDED)}
    ), entries AS (
        {
    " UNION ALL ".join(
        f"SELECT pair, service, minute, outcome, '{name}' AS measure, {bucket_sql(f'{name}_us')} AS bucket,"
        f" weight FROM counted"
        for name in MEASURES
    )
}
        UNION ALL
        SELECT pair, service, at_us // 60000000, reason, 'total', NULL, times::DOUBLE
        FROM records WHERE kind = 'refused' AND reason IN {_words(OF_SERVICE)} AND service != ''
    )
    SELECT service, {_minute("minute")} AS minute, outcome, measure, bucket,
           sum(round(weight * 1e6)::BIGINT) / 1e6 AS weight, {_minute("minute")}::DATE AS day, pair
    FROM entries GROUP BY pair, service, entries.minute, outcome, measure, bucket
"""


def _minutes(has_percentiles: bool) -> str:
    quantiles = "".join(
        f""",
        min(bucket) FILTER (measure = '{name}' AND whole > 0 AND running >= whole * {share})
            AS {name}_p{share * 100:.0f}"""
        for name in MEASURES
        for share in SHARES
    )
    key = "day, pair, service, minute"
    return f"""
    sums AS (
        SELECT {key}, measure, bucket, sum(round(weight * 1e6)::BIGINT) AS weight,
            sum(CASE WHEN outcome IN {_words(ERRORS)} THEN round(weight * 1e6)::BIGINT ELSE 0 END) AS errors,
            sum(CASE WHEN outcome IN {_words(FINISHED)} THEN round(weight * 1e6)::BIGINT ELSE 0 END) AS finished
        FROM sketches WHERE outcome IN {_words((*ENDED, *ERRORS))}
        GROUP BY {key}, measure, bucket
    ), ranked AS (
        SELECT *, sum(finished) OVER (PARTITION BY {key}, measure ORDER BY bucket NULLS FIRST
                                      ROWS UNBOUNDED PRECEDING) AS running,
            sum(finished) OVER (PARTITION BY {key}, measure) AS whole
        FROM sums
    ), minutes AS (
        SELECT {key},
            coalesce(sum(weight) FILTER (measure = 'total'), 0) / 1e6 AS requests,
            coalesce(sum(errors) FILTER (measure = 'total'), 0) / 1e6 AS errors,
            coalesce(sum(finished) FILTER (measure = 'total'), 0) / 1e6 AS finished,
            coalesce(sum(finished) FILTER (
                measure = 'total' AND bucket > {bucket_of(SLO.default.latency_us)}), 0) / 1e6 AS slow
            {quantiles if has_percentiles else ""}
        FROM {"ranked" if has_percentiles else "sums"} GROUP BY {key}
    )"""


def _burn(back_s: int) -> str:
    window = (
        "(PARTITION BY pair, service ORDER BY epoch(minute)::BIGINT "
        f"RANGE BETWEEN {back_s - 60} PRECEDING AND CURRENT ROW)"
    )
    return f"sum(errors) OVER {window} / sum(requests) OVER {window} / (1 - {SLO.default.availability})"


_QUANTILES = ", ".join(
    f"{value_sql(f'{name}_p{share * 100:.0f}')} AS {name}_p{share * 100:.0f}_us"
    for name in MEASURES
    for share in SHARES
)
_OBJECTIVES = f"""
    WITH {_minutes(True)}, burning AS (
        SELECT service, minute, requests, requests / 60 AS rate, errors, errors / requests AS error_share,
            slow / nullif(finished, 0) AS slow_share, {_QUANTILES},
            errors / requests / (1 - {SLO.default.availability}) AS burn_rate,
            slow / nullif(finished, 0) / (1 - {SLO.default.latency_share}) AS slow_burn_rate,
            {_burn(300)} AS burn_5m, {_burn(3600)} AS burn_1h, {_burn(21600)} AS burn_6h, day, pair
        FROM minutes
    )
    SELECT *, CASE WHEN burn_1h >= {SLO.fast_burn} AND burn_5m >= {SLO.fast_burn} THEN 'fast'
                   WHEN burn_6h >= {SLO.slow_burn} AND burn_1h >= {SLO.slow_burn} THEN 'slow' END AS alert
    FROM burning
"""

_CLIENTS = f"""
    WITH asked AS (
        SELECT at_us // 86400000000 AS day, pair, client, at_us // 60000000 AS minute, outcome, weight, is_repeated,
            bytes_in, bytes_out, total_us
        FROM records WHERE kind = 'request' AND outcome NOT IN ('returned', 'late')
    ), by_minute AS (
        SELECT day, pair, client, minute, sum(round(weight * 1e6)::BIGINT) AS requests,
            coalesce(sum(round(weight * 1e6)::BIGINT) FILTER (outcome = 'answered'), 0) AS answered,
            coalesce(sum(round(weight * 1e6)::BIGINT) FILTER (outcome = 'failed'), 0) AS failed,
            sum(round(weight * is_repeated::INT * 1e6)::BIGINT) AS retries,
            sum(round(weight * bytes_in * 1e6)::BIGINT) AS bytes_in,
            sum(round(weight * bytes_out * 1e6)::BIGINT) AS bytes_out
        FROM asked GROUP BY ALL
    ), minutes AS (
        SELECT *, sum(requests) OVER (PARTITION BY day, pair, minute) AS of_all FROM by_minute
    ), by_bucket AS (
        SELECT day, pair, client, {bucket_sql("total_us")} AS bucket, sum(round(weight * 1e6)::BIGINT) AS finished
        FROM asked WHERE outcome IN {_words(FINISHED)} GROUP BY ALL
    ), ranked AS (
        SELECT *, sum(finished) OVER (PARTITION BY day, pair, client ORDER BY bucket
                                      ROWS UNBOUNDED PRECEDING) AS running,
            sum(finished) OVER (PARTITION BY day, pair, client) AS whole
        FROM by_bucket
    ), slowest AS (
        SELECT day, pair, client, min(bucket) FILTER (running >= whole * 0.99) AS p99 FROM ranked GROUP BY ALL
    ), found AS (
        SELECT day, pair, client, sum(requests) AS requests, sum(answered) AS answered, sum(failed) AS failed,
            sum(retries) AS retries, sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out,
            max(requests) AS peak, arg_max(of_all, (requests, -minute)) AS of_all
        FROM minutes GROUP BY ALL
    )
    SELECT client, requests / 1e6 AS requests, answered / 1e6 AS answered, failed / 1e6 AS failed,
        (requests - answered - failed) / 1e6 AS not_answered, round(retries / 1e6)::BIGINT AS retries,
        round(bytes_in / 1e6)::BIGINT AS bytes_in, round(bytes_out / 1e6)::BIGINT AS bytes_out,
        requests / sum(requests) OVER of_day AS share, peak / 60e6 AS peak_per_s,
        {value_sql("p99")} AS total_p99_us,
        peak >= of_all * {clients.FLOOD_SHARE}
            AND peak >= quantile_disc(peak, 0.5) OVER of_day * {clients.FLOOD_FACTOR} AS is_flooding,
        retries >= {clients.RETRIES_MIN} * 1e6 AND retries >= requests * {clients.RETRY_SHARE} AS is_retrying,
        '1970-01-01'::DATE + day::INT AS day, pair
    FROM found LEFT JOIN slowest USING (day, pair, client)
    WINDOW of_day AS (PARTITION BY day, pair)
"""

_CAPACITY = """
    WITH told AS (
        SELECT *, last_value(CASE
                WHEN kind = 'active' THEN true
                WHEN kind = 'inactive' THEN false
                WHEN kind = 'pulse' THEN lower(state) = 'active'
                WHEN kind = 'state' THEN lower(new_state) = 'active' END IGNORE NULLS)
            OVER (PARTITION BY pair, boot ORDER BY seq ROWS UNBOUNDED PRECEDING) AS is_serving
        FROM records WHERE kind IN ('load', 'pulse', 'state', 'active', 'inactive')
    ), loads AS (
        SELECT pair, service, make_timestamp(at_us // 3600000000 * 3600000000) AS hour, at_us, interval_us, workers,
            credit, queued, busy_us, accepted
        FROM told
        WHERE kind = 'load' AND interval_us > 0
            AND coalesce(is_serving, busy_us > 0 OR accepted > 0 OR queued > 0)
    ), hours AS (
        SELECT hour::DATE AS day, pair, service, hour,
            sum(workers * interval_us) / sum(interval_us) AS workers,
            sum(credit * interval_us) / sum(interval_us) AS credit,
            sum(busy_us) / nullif(sum(credit * interval_us), 0) AS utilisation,
            max(busy_us / nullif(credit * interval_us, 0)) AS peak_utilisation,
            sum(accepted) / sum(interval_us) * 1e6 AS arrivals_per_s,
            sum(queued * interval_us) / sum(interval_us) AS queued_mean,
            max(queued) AS queued_max,
            regr_slope(queued, (at_us - epoch_us(hour)) / 1e6) AS queue_growth_per_s
        FROM loads GROUP BY ALL
    ), line AS (
        SELECT *, max(epoch(hour)) OVER service AS last_s, count(utilisation) OVER service >= 48 AS is_known
        FROM hours WINDOW service AS (PARTITION BY pair, service)
    ), fitted AS (
        SELECT *, CASE WHEN is_known THEN regr_slope(utilisation, epoch(hour) - last_s) OVER service END AS slope,
            CASE WHEN is_known THEN regr_intercept(utilisation, epoch(hour) - last_s) OVER service END AS intercept
        FROM line WINDOW service AS (PARTITION BY pair, service)
    )
    SELECT service, hour, workers, credit, utilisation, peak_utilisation, arrivals_per_s, queued_mean,
        queued_max, queue_growth_per_s, slope * 86400 AS trend_per_day,
        CASE WHEN slope > 0 AND (1 - intercept) / nullif(slope, 0) <= 365 * 86400
             THEN make_timestamp((round((last_s + (1 - intercept) / nullif(slope, 0)) / 60) * 60000000)::BIGINT)
             END AS saturates_at,
        day, pair
    FROM fitted
"""

# Each request once, of what nodes recorded of it; the best outcome counts, as in silver.requests.
_REQUESTS = """
    SELECT pair, client, number, CASE WHEN client LIKE 'mdp-%' THEN boot END AS apart,
        max(at_us) // 86400000000 AS day,
        arg_max(service, list_position(['returned', 'lost', 'poison', 'expired', 'late', 'failed', 'answered'], outcome))
            AS service,
        arg_max(outcome, list_position(['returned', 'lost', 'poison', 'expired', 'late', 'failed', 'answered'], outcome))
            AS outcome,
        count(*) AS node_records,
        count(*) FILTER (outcome IN ('answered', 'failed')) AS answers,
        bool_or(is_repeated) AS is_repeated
    FROM records WHERE kind = 'request' GROUP BY ALL
"""
_OUTCOMES = """
    SELECT '1970-01-01'::DATE + day::INT AS day, pair, service, outcome, count(*) AS requests,
        sum(node_records)::BIGINT AS node_records, sum(answers)::BIGINT AS answers
    FROM requests GROUP BY ALL
"""
# The rules about requests that nodes alone can judge.
_AUDIT = """
    WITH judged AS (
        SELECT '1970-01-01'::DATE + day::INT AS day, pair, service, 'answered-twice' AS rule,
            CASE WHEN number >= 4611686018427387904 OR is_repeated THEN 'excused' ELSE 'violated' END AS verdict, client, number
        FROM requests WHERE answers > 1 AND client NOT LIKE 'mdp-%'
        UNION ALL
        SELECT '1970-01-01'::DATE + day::INT, pair, service, 'lost', 'unproven', client, number
        FROM requests WHERE client NOT LIKE 'mdp-%'
        UNION ALL
        SELECT '1970-01-01'::DATE + day::INT, pair, service, 'lost', 'unproven', client, number
        FROM requests WHERE client NOT LIKE 'mdp-%' AND outcome IN ('returned', 'late')
    )
    SELECT day, pair, service, rule, verdict, CASE WHEN verdict = 'violated' THEN client END AS client,
        CASE WHEN verdict = 'violated' THEN number END AS number, count(*) AS times
    FROM judged GROUP BY ALL
"""

TABLES = {"sketches": _SKETCHES, "objectives": _OBJECTIVES, "capacity": _CAPACITY, "clients": _CLIENTS}
TABLES |= {"requests": _REQUESTS, "outcomes": _OUTCOMES, "audit": _AUDIT}
"""By name, in order: a later one may read an earlier one."""

COMPARED = tuple(name for name in TABLES if name != "requests")
"""Those that are written for ``pipeline.compare``; requests, fifty million rows, are looked at summed up."""


def main() -> None:
    """Read, compute, write; print the seconds of each step as one JSON object."""
    parser = argparse.ArgumentParser(prog="pipeline.duck", description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True)
    database = duckdb.connect(str(asked.out / "duck.db"))
    for name, value in {
        "memory_limit": asked.memory,
        "threads": asked.threads,
        "temp_directory": str(asked.out / "spilled"),
        "preserve_insertion_order": False,
        "TimeZone": "UTC",
    }.items():
        database.execute(f"SET {name} = '{value}'")
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    files = sorted(str(file) for file in asked.journal.rglob("*.ndjson*"))
    database.execute(RECORDS, {"files": files})
    seconds["records"] = time.perf_counter() - begun
    for name, query in TABLES.items():
        begun = time.perf_counter()
        database.execute(f"CREATE TABLE {name} AS {query}")
        if name in COMPARED:
            database.execute(f"COPY {name} TO '{asked.out / name}.parquet' (COMPRESSION zstd)")
        seconds[name] = time.perf_counter() - begun
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
