"""How much each client asks, how often it retries, and whether it floods the others.

A client with a journal is counted by its own calls, which have attempts and BUSY. A client without one is
counted by the nodes' records. Then retries are the requests that it marked as repeated, and BUSY is unknown
(null). The two are never added up. An identity names a client; a restarted process has a new one.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from bstar_pipeline import sketch
from bstar_pipeline.gold.rules import DURABLE_NUMBER
from bstar_pipeline.partitions import Made, Stored, queried
from bstar_pipeline.schema import table_schema

FLOOD_SHARE = 0.5
FLOOD_FACTOR = 10.0
"""A client floods if, in its busiest minute, it sent at least ``FLOOD_SHARE`` of the pair's requests and
``FLOOD_FACTOR`` times the median client's in its own busiest minute (the lower one of two).
"""

RETRY_SHARE = 0.05
RETRIES_MIN = 10
"""A client retries if it repeated at least this share of its requests, and at least this many."""

_CARRIED = (
    "kind", "pair", "client", "number", "node", "at", "outcome", "weight", "attempts", "is_repeated", "busy",
    "bytes_in", "bytes_out", "total_us",
)  # fmt: skip


def clients(records: Stored) -> Made:
    """gold.clients of bronze records: one row for each client and day.

    Records are added up where they lie; only sums are shuffled.
    """
    sums = queried(records.take(*_CARRIED, where="topic IN ('requests', 'calls')"), (), _SUMS)
    return queried(sums, ("pair", "day"), _CLIENTS, table_schema("gold.clients"))


_IS_ANSWERED = "outcome IN ('answered', 'declined')"
# What is added up, and what a record counts there.
_COUNTS = {
    "requests": "weight",
    "answered": f"if({_IS_ANSWERED}, weight, 0)",
    "failed": "if(outcome = 'failed', weight, 0)",
    **{name: f"weight * {name}" for name in ("retries", "busy", "bytes_in", "bytes_out")},
}
_COUNTED = ", ".join(
    f"(sum({sketch.millionths_sql(weight)}) FILTER (entry.minute IS NOT NULL))::BIGINT AS {name}"
    for name, weight in _COUNTS.items()
)
_ADDED = ", ".join(f"sum({name}) AS {name}" for name in _COUNTS)
# In millionths; once for each minute (bucket is null), and once for each bucket of a client's times (minute
# is null, and only ``finished`` is counted). Attempts at durable requests have the request's id there; their
# client is the store.
_SUMS = f"""
WITH entries AS (
    SELECT pair, if(number = {DURABLE_NUMBER}, 'durable', client) AS client, kind = 'call' AS is_own,
        if(is_own, node, NULL) AS node, make_timestamp("at")::DATE AS day, outcome, weight,
        if(is_own, greatest(attempts - 1, 0), is_repeated::INT) AS retries, if(is_own, busy, NULL) AS busy,
        bytes_in, bytes_out,
        unnest([
            {{minute: "at" // 60_000_000, bucket: NULL::INT}},
            if({_IS_ANSWERED} OR outcome = 'failed',
                {{minute: NULL::BIGINT, bucket: {sketch.bucket_sql("total_us")}}}, NULL)
        ]) AS entry
    FROM rows WHERE is_own OR (kind = 'request' AND outcome NOT IN ('returned', 'late'))
)
SELECT pair, client, is_own, node, day, entry.minute AS minute, entry.bucket AS bucket,
    {_COUNTED},
    (sum({sketch.millionths_sql("weight")}) FILTER (entry.bucket IS NOT NULL))::BIGINT AS finished
FROM entries WHERE entry IS NOT NULL GROUP BY ALL
"""
# Where a client has said itself what it did, what others saw of it is left out. The median client's busiest
# minute is, of an even number, that of the lower one.
_CLIENTS = f"""
WITH sums AS (
    SELECT pair, client, is_own, node, day, minute, bucket, {_ADDED}, coalesce(sum(finished), 0) AS finished
    FROM rows GROUP BY ALL
),
own AS (
    SELECT * FROM sums QUALIFY is_own = bool_or(is_own) OVER (PARTITION BY day, pair, client)
),
ranked AS (
    SELECT *, sum(finished) OVER (of_client ORDER BY bucket) AS running,
        sum(finished) OVER of_client AS whole, sum(requests) OVER (PARTITION BY day, pair, minute) AS of_all
    FROM own WINDOW of_client AS (PARTITION BY day, pair, client)
),
found AS (
    SELECT day, pair, client, max(node) AS node, {_ADDED}, max(requests) AS peak,
        arg_max(of_all, {{requests: requests, minute: -minute}}) FILTER (minute IS NOT NULL) AS of_all,
        {sketch.percentile_sql(0.99, "bucket", "running", "whole")} AS p99
    FROM ranked GROUP BY day, pair, client
),
placed AS (
    SELECT *, row_number() OVER (of_day ORDER BY peak, client) AS place, count(*) OVER of_day AS clients,
        sum(requests) OVER of_day AS of_day
    FROM found WINDOW of_day AS (PARTITION BY day, pair)
),
beside AS (
    SELECT *, max(peak) FILTER (place * 2 <= clients + 1) OVER (PARTITION BY day, pair) AS usual FROM placed
)
SELECT client, node, requests / 1e6, answered / 1e6, failed / 1e6, (requests - answered - failed) / 1e6,
    round(retries / 1e6)::BIGINT, round(busy / 1e6)::BIGINT, round(bytes_in / 1e6)::BIGINT,
    round(bytes_out / 1e6)::BIGINT, requests / of_day, peak / 60e6, {sketch.value_sql("p99")},
    peak >= of_all * {FLOOD_SHARE}::DOUBLE AND peak >= usual * {FLOOD_FACTOR}::DOUBLE,
    retries >= {RETRIES_MIN}e6 AND retries >= requests * {RETRY_SHARE}::DOUBLE, day, pair
FROM beside
"""
