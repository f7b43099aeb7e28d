"""Durable requests, each submission once, of the steps that both nodes recorded of it.

Both nodes tell each step, so one journal has it when the other one lost its last moments. A step is known by
its log entry, and counted once. When a request was last given to a worker comes from the nodes' records of
its attempts, which have its id as their ``client``.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from bstar_pipeline.gold.rules import DURABLE_NUMBER
from bstar_pipeline.partitions import Made, Rows, Stored, offsets, queried
from bstar_pipeline.schema import table_schema

_FOREVER = 1 << 62
_CARRIED = (
    "topic", "pair", "client", "submission", "boot", "mono", "day", "node", "service", "step", "entry",
    "cause", "attempts", "reply_crc", "weight", "busy_us",
)  # fmt: skip


def durables(records: Stored, runs: Rows) -> Made:
    """``silver.durables`` of bronze records and rows of ``silver.runs``, of the day of its last step."""
    is_given = f"topic = 'requests' AND number = {DURABLE_NUMBER} AND deliveries > 0"
    return queried(
        records.take(*_CARRIED, where=f"topic = 'durables' OR ({is_given})"),
        ("pair", "client"),
        _SQL,
        table_schema("silver.durables"),
        tables={"runs": offsets(runs)},
    )


# The order of steps that one entry did, and what makes a request pending.
_STEPS = ["submitted", "retried", "attempt", "answered", "dead", "cancelled", "closed", "forgotten"]
_PENDS = "step IN ('submitted', 'retried', 'attempt')"
_ENDS = "step IN ('answered', 'dead', 'cancelled')"
_STOPS = "step IN ('cancelled', 'closed')"
# The greatest struct is of the last step. An id that was closed may be submitted again, and what was
# cancelled may be retried.
_SQL = f"""
WITH timed AS MATERIALIZED (
    SELECT rows.*, mono + offset_us AS at_us FROM rows JOIN runs USING (boot)
),
given AS (
    SELECT pair, client, list(at_us - coalesce(busy_us, 0)) AS given
    FROM timed WHERE topic = 'requests' GROUP BY pair, client
),
found AS (
    SELECT pair, client, submission, max(day) AS day, max(service) AS service,
        max({{entry: entry, rank: coalesce(list_position({_STEPS}, step), 0),
            state: if({_PENDS}, 'pending', step), cause: cause, node: node}})
            FILTER (step <> 'fetched') AS last,
        min(at_us) FILTER (step = 'submitted') AS submitted_at_us,
        min(at_us) FILTER ({_ENDS}) AS ended_at_us,
        list({{entry: entry, at_us: at_us}}) FILTER ({_STOPS}) AS stops,
        coalesce(max(entry) FILTER (step = 'retried'), 0) AS retried,
        max(at_us) AS last_at_us, max(attempts) AS attempts,
        count(DISTINCT entry) FILTER (step = 'retried') AS retries,
        count(DISTINCT entry) FILTER ({_ENDS}) AS ends,
        count(*) FILTER (step = 'fetched') AS fetches,
        coalesce(list_sort(list(DISTINCT reply_crc) FILTER (reply_crc IS NOT NULL)), []) AS answers,
        max(weight) AS weight
    FROM timed WHERE topic = 'durables' GROUP BY pair, client, submission
),
placed AS (
    SELECT found.*, given, coalesce(
        lead(submitted_at_us) OVER (PARTITION BY pair, client ORDER BY submission), {_FOREVER}
    ) AS next_at_us
    FROM found LEFT JOIN given USING (pair, client)
)
SELECT client, submission, service, last.state, last.cause, submitted_at_us,
    list_max(list_filter(given, lambda one: one < next_at_us AND one >= coalesce(submitted_at_us, 0))),
    ended_at_us,
    list_min(list_transform(list_filter(stops, lambda stop: stop.entry > retried), lambda stop: stop.at_us)),
    last_at_us, last.entry, last.node, attempts, retries, ends, fetches, answers, weight, day, pair
FROM placed
"""
