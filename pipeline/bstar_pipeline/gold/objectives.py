"""Are we within our objectives? Rates, errors, percentiles and burn rates for each service and minute.

``sketches`` reads the records once and adds them up by service, minute, outcome, measure and bucket; that is
the only step that sees requests one by one, it needs no join, and what it makes can be added to what other
runs of it made. Everything else is computed from those sums. A request counts in the minute in which it
ended, by the wall clock of the node that recorded it.

**Whose view.** Of a service whose clients keep journals, requests and errors are its calls: what clients saw.
A call that was not answered (timeout, unknown, interrupted, no-active) is an error whatever the objective
names; ``busy`` is one if the objective names a reason of refusal. ``rejected``, ``closed`` and ``abandoned``
are the caller's doing and do not count. Of other services they are the nodes' requests. ``counted`` says
which.

Requests that a node gave back ("returned", and "late" after it) did not end there: they are in the records of
the node that answered them, and left out here. Percentiles and slowness are those of requests that a worker
finished; the rest has no meaningful times, and is an error anyway.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from collections.abc import Mapping, Sequence

import pyarrow as pa
from msgspec.structs import asdict

from bstar.records.broker import FINISHED
from bstar.wire.refusals import OF_SERVICE
from bstar_pipeline import sketch
from bstar_pipeline.partitions import Made, Stored, queried
from bstar_pipeline.schema import table_schema
from bstar_pipeline.slo import Objective, Objectives

MEASURES = ("queued", "busy", "total")
SHARES = (0.5, 0.95, 0.99)
ENDED = (*FINISHED, "expired", "poison", "lost")
UNANSWERED = ("timeout", "unknown", "interrupted", "no-active")
"""Calls that ended so are errors."""

CALL_ENDED = (*FINISHED, "busy", *UNANSWERED)
CALL = "call"
"""The measure of calls: from the beginning of the call to its outcome."""

_MINUTE_US = 60_000_000
_OF_SERVICE = ("pair", "service")
_CARRIED = (
    "pair", "service", "at", "kind", "outcome", "reason", "weight", "count",
    "queued_us", "busy_us", "total_us",
)  # fmt: skip


def sketches(records: Stored) -> Made:
    """gold.sketches of bronze records. Rows are added up where they lie, only sums are shuffled."""
    rows = records.take(*_CARRIED, where="topic IN ('requests', 'calls', 'events')")
    return queried(queried(rows, (), _SUMS), _OF_SERVICE, _SKETCHES, table_schema("gold.sketches"))


def _entries(**columns: str) -> str:
    """A list of a bucket of each measure."""
    entries = (f"{{measure: '{name}', bucket: {sketch.bucket_sql(of)}}}" for name, of in columns.items())
    return f"[{', '.join(entries)}]"


_SUMS = f"""
WITH entries AS (
    SELECT pair, service, "at" // {_MINUTE_US} AS at_minute,
        if(kind = 'refused', reason, outcome) AS outcome,
        {sketch.millionths_sql("if(kind = 'refused', count, weight)")} AS weight,
        unnest(CASE kind WHEN 'request' THEN {_entries(**{name: f"{name}_us" for name in MEASURES})}
            WHEN 'call' THEN {_entries(**{CALL: "total_us"})}
            ELSE [{{measure: 'total', bucket: NULL::INT}}] END) AS entry
    FROM rows
    WHERE (kind = 'request' AND outcome IN {ENDED}) OR (kind = 'call' AND outcome IN {CALL_ENDED})
        OR (kind = 'refused' AND reason IN {OF_SERVICE} AND service <> '')
)
SELECT pair, service, at_minute, outcome, entry.measure AS measure, entry.bucket AS bucket,
    sum(weight)::BIGINT AS weight
FROM entries GROUP BY ALL
"""
_SKETCHES = f"""
SELECT service, make_timestamp(at_minute * {_MINUTE_US}) AS minute, outcome, measure, bucket,
    sum(weight) / 1e6 AS weight, minute::DATE AS day, pair
FROM rows GROUP BY ALL
"""


def objectives(sketches: Stored | Sequence[Made], slo: Objectives | None = None) -> Made:
    """gold.objectives of sketches, of one run or of many together."""
    slo = slo or Objectives()
    burns = {"fast_burn": slo.fast_burn, "slow_burn": slo.slow_burn, "alert_requests": slo.alert_requests}
    return _judged(sketches, slo, _OBJECTIVES, "gold.objectives", burns)


def budgets(sketches: Stored | Sequence[Made], slo: Objectives | None = None) -> Made:
    """gold.budgets of sketches: what each day brought, and what its period has used up."""
    slo = slo or Objectives()
    return _judged(sketches, slo, _BUDGETS, "gold.budgets", {"days_before": slo.period_days - 1})


def _judged(
    sketches: Stored | Sequence[Made], slo: Objectives, query: str, name: str, values: Mapping[str, float]
) -> Made:
    promises = [_promise(None, slo.default), *(_promise(*each) for each in slo.services.items())]
    tables = {"promises": pa.Table.from_pylist(promises, _PROMISES)}
    return queried(sketches, _OF_SERVICE, query, table_schema(name), tables=tables, values=values)


# Of each service that is named, and of all others: ``promised`` is null.
_PROMISES = pa.schema(
    {"promised": pa.string(), "latency_us": pa.int64(), "border": pa.int32()}
    | dict.fromkeys(("availability", "latency_share"), pa.float64())
    | dict.fromkeys(("failures", "failed_calls"), pa.list_(pa.string()))
)


def _promise(service: str | None, objective: Objective) -> dict[str, object]:
    """``failures``: outcomes of requests, and reasons of refusals, that are errors."""
    failed = [error for error in objective.errors if error == "failed"]
    busy = [] if {*OF_SERVICE}.isdisjoint(objective.errors) else ["busy"]
    border, calls = sketch.bucket_of(objective.latency_us), [*UNANSWERED, *failed, *busy]
    more = {"promised": service, "border": border, "failures": objective.errors, "failed_calls": calls}
    return asdict(objective) | more


# Weights are whole millionths until they are shown. Refusals that the objective does not count as errors are
# no requests either: they came again. ``is_total``: what requests and errors are counted by.
_BUCKETS = f"""
WITH judged AS (
    SELECT rows.*, promises.*, measure = '{CALL}' AS is_call,
        list_contains(if(measure = '{CALL}', failed_calls, failures), outcome) AS is_error,
        {sketch.millionths_sql("weight")} AS parts
    FROM rows JOIN promises
        ON promised IS NOT DISTINCT FROM if(service IN (SELECT promised FROM promises), service, NULL)
),
viewed AS (
    SELECT *, bool_or(is_call) OVER (PARTITION BY day, pair, service) AS has_calls FROM judged
    WHERE if(is_call, outcome IN {CALL_ENDED}, outcome IN {ENDED} OR is_error)
),
buckets AS (
    SELECT day, pair, service, minute, measure, bucket, has_calls, availability, latency_us, latency_share,
        border, measure = if(has_calls, '{CALL}', 'total') AS is_total,
        sum(parts) AS requests, coalesce(sum(parts) FILTER (is_error), 0) AS errors,
        coalesce(sum(parts) FILTER (outcome IN {FINISHED}), 0) AS finished
    FROM viewed GROUP BY ALL
)"""
_COUNTS = """if(has_calls, 'calls', 'requests') AS counted, availability, latency_us, latency_share,
        coalesce(sum(requests) FILTER (is_total), 0) AS requests,
        coalesce(sum(errors) FILTER (is_total), 0) AS errors,
        coalesce(sum(finished) FILTER (is_total), 0) AS finished,
        coalesce(sum(finished) FILTER (is_total AND bucket > border), 0) AS slow"""
_WINDOWS_S = {"5m": 300, "1h": 3600, "6h": 21_600}
_BURNS = ", ".join(
    f"sum(errors) OVER _{name} / sum(requests) OVER _{name} / (1 - availability) AS burn_{name}, "
    f"sum(requests) OVER _{name} / 1e6 >= $alert_requests AS has_{name}"
    for name in _WINDOWS_S
)
_WINDOWS = ", ".join(
    f"_{name} AS (PARTITION BY pair, service ORDER BY epoch(minute)::BIGINT "
    f"RANGE BETWEEN {back_s - 60} PRECEDING AND CURRENT ROW)"
    for name, back_s in _WINDOWS_S.items()
)


_REACHED = {share: sketch.percentile_sql(share, "bucket", "running", "whole") for share in SHARES}
_IS_OF = {"queued": "measure = 'queued'", "busy": "measure = 'busy'", "total": "is_total"}
_PERCENTILES = {
    f"{name}_p{share * 100:.0f}": f"{reached} FILTER ({is_of})"
    for name, is_of in _IS_OF.items()
    for share, reached in _REACHED.items()
}
_FOUND = ", ".join(f"{found} AS {name}" for name, found in _PERCENTILES.items())
_SHOWN = ", ".join(f"{sketch.value_sql(name)} AS {name}_us" for name in _PERCENTILES)
_OBJECTIVES = f"""{_BUCKETS},
ranked AS (
    SELECT *, sum(finished) OVER (of_measure ORDER BY bucket) AS running,
        sum(finished) OVER of_measure AS whole
    FROM buckets WINDOW of_measure AS (PARTITION BY day, pair, service, minute, measure)
),
minutes AS (
    SELECT day, pair, service, minute, {_COUNTS}, {_FOUND}
    FROM ranked GROUP BY day, pair, service, minute, has_calls, availability, latency_us, latency_share
),
burning AS (
    SELECT *, errors / requests AS error_share, slow / nullif(finished, 0) AS slow_share,
        {_BURNS}
    FROM minutes WHERE requests > 0 WINDOW {_WINDOWS}
)
SELECT service, minute, counted, requests / 1e6 AS requests, requests / 60e6 AS rate, errors / 1e6 AS errors,
    error_share, slow_share, {_SHOWN},
    error_share / (1 - availability) AS burn_rate, slow_share / (1 - latency_share) AS slow_burn_rate,
    burn_5m, burn_1h, burn_6h,
    CASE WHEN has_1h AND burn_1h >= $fast_burn AND burn_5m >= $fast_burn THEN 'fast'
        WHEN has_6h AND burn_6h >= $slow_burn AND burn_1h >= $slow_burn THEN 'slow' END AS alert,
    day, pair
FROM burning
"""
_BUDGETS = f"""{_BUCKETS},
days AS (
    SELECT day, pair, service, {_COUNTS} FROM buckets
    GROUP BY day, pair, service, has_calls, availability, latency_us, latency_share HAVING requests > 0
),
periods AS (
    SELECT *, sum(requests) OVER period AS period_requests, sum(errors) OVER period AS period_errors,
        sum(slow) OVER period AS period_slow,
        period_errors / period_requests / (1 - availability) AS used,
        coalesce(period_slow / nullif(sum(finished) OVER period, 0) / (1 - latency_share), 0) AS slow_used
    FROM days WINDOW period AS (
        PARTITION BY pair, service ORDER BY day - DATE '1970-01-01'
        RANGE BETWEEN $days_before PRECEDING AND CURRENT ROW
    )
)
SELECT service, counted, availability, latency_us, latency_share,
    requests / 1e6, errors / 1e6, slow / 1e6, period_requests / 1e6, period_errors / 1e6, period_slow / 1e6,
    used, slow_used, used <= 1 AND slow_used <= 1, day, pair
FROM periods
"""
