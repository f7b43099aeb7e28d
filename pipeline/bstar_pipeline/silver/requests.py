"""Requests, each once, of what nodes, clients and workers recorded of them.

The three kinds of record carry the request's identity, by which they are shuffled (``partitions``).

A request of a plain Majordomo client has no identity that others know; its record stands for itself.
"""

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.history import CLOCK_ERROR_US, SAME_CLOCK_ERROR_US
from bstar_pipeline.partitions import Made, Rows, Stored, queried
from bstar_pipeline.schema import table_schema

# What a node says of a request's end, the best last.
_OUTCOMES = (
    "returned", "cancelled", "lost", "poison", "expired", "late", "failed", "declined", "answered",
)  # fmt: skip
_TOPICS = ("requests", "calls", "executions")
_CARRIED = (
    "topic", "pair", "client", "number", "boot", "node", "at", "mono", "service", "sender", "worker",
    "outcome", "epoch", "total_us", "queued_us", "busy_us", "deliveries", "is_repeated", "bytes_in",
    "bytes_out", "weight", "attempts", "busy", "is_idempotent", "reply_crc",
)  # fmt: skip
_RUN = ("pair", "boot", "node", "offset_us", "clock_off_us")
# The record of each kind that tells most: the one with the greatest struct.
_NODE = (
    "service", "sender", "node", "worker", "outcome", "epoch", "total_us", "queued_us", "busy_us", "bytes_in",
    "bytes_out", "end_us",
)  # fmt: skip
_CALL = (
    "end_us", "service", "outcome", "epoch", "total_us", "attempts", "busy", "is_idempotent", "bytes_in",
    "bytes_out", "reply_crc",
)  # fmt: skip
_EXECUTION = ("service", "epoch", "bytes_in", "bytes_out", "end_us")


def requests(records: Stored, runs: Rows, clock_error_us: int = CLOCK_ERROR_US) -> Made:
    """``silver.requests`` of bronze records and rows of ``silver.runs``.

    A request is of the day on which its last record was written; what a clock was ahead is taken off.
    """
    of_run = pa.schema([(name, pa.int64() if name.endswith("_us") else pa.string()) for name in _RUN])
    return queried(
        records.take(*_CARRIED, where=f"topic IN {_TOPICS}"),
        ("number", "client", "pair"),
        _SQL,
        table_schema("silver.requests"),
        tables={"runs": pa.Table.from_pylist(list(runs), of_run)},
        values={"same_us": SAME_CLOCK_ERROR_US, "clock_us": clock_error_us},
    )


def _packed(*names: str, **first: str) -> str:
    """A struct of these columns, after expressions by name."""
    parts = {**first, **{name: name for name in names}}
    return f"struct_pack({', '.join(f'{name} := {value}' for name, value in parts.items())})"


# An outcome that is not known yet comes first.
_RANK = f"coalesce(list_position({list(_OUTCOMES)}, outcome), 0)"
# A worker may refuse what it cannot read: its node has "failed" for that, and the client "rejected".
# A late reply is of a delivery that another record has counted. The first run needs no mark, and a run after
# the end of a marked one is not the first; runs with one offset are of one machine.
_SQL = f"""
WITH timed AS (
    SELECT rows.*, offset_us, mono + offset_us AS end_us,
        mono + offset_us - if(topic = 'executions', busy_us, total_us) AS began_us,
        make_timestamp("at" - clock_off_us)::DATE AS day,
        topic = 'requests' AS is_node, topic = 'calls' AS is_call, topic = 'executions' AS is_run,
        if(starts_with(client, 'mdp-'), boot, NULL) AS apart
    FROM rows JOIN runs USING (pair, boot, node)
),
grouped AS (
    SELECT pair, client, number, apart, max(day) AS day,
        max({_packed(*_NODE, rank=_RANK, before_us="-end_us")})
            FILTER (is_node) AS n,
        max({_packed(*_CALL)}) FILTER (is_call) AS c,
        max({_packed(*_EXECUTION, before_us="-end_us")}) FILTER (is_run) AS x,
        min(began_us) FILTER (is_node) AS node_began_us,
        min(began_us) FILTER (is_run) AS run_began_us,
        count(*) FILTER (is_node) AS node_records,
        count(*) FILTER (is_node AND outcome IN {FINISHED}) AS answers,
        count(*) FILTER (is_node AND outcome = 'failed') AS failures,
        count(*) FILTER (is_node AND outcome = 'returned') AS returned,
        sum(deliveries) FILTER (is_node AND outcome <> 'late') AS deliveries,
        count(*) FILTER (is_run) AS executions,
        count(*) FILTER (is_run AND NOT is_repeated) AS unmarked,
        max({_packed("began_us", "offset_us")})
            FILTER (is_run AND NOT is_repeated) AS last_unmarked,
        min({_packed("end_us", "offset_us")}) FILTER (is_run AND is_repeated) AS first_marked,
        count(*) FILTER (is_call) AS calls,
        coalesce(bool_or(is_repeated), false) AS is_repeated,
        max(weight) AS weight,
        list(reply_crc) FILTER (is_run AND reply_crc IS NOT NULL) AS crcs
    FROM timed GROUP BY pair, client, number, apart
)
SELECT client, number,
    coalesce(n.service, c.service, x.service) AS service, n.sender, n.node, n.worker,
    coalesce(c.outcome, n.outcome) AS outcome,
    if(node_records > 0, 1, 0) + if(calls > 0, 2, 0) + if(executions > 0, 4, 0) AS evidence,
    coalesce(node_began_us, c.end_us - c.total_us, run_began_us) AS accepted_at_us,
    coalesce(c.end_us - c.total_us, node_began_us, run_began_us) AS asked_at_us,
    CASE WHEN calls > 0 THEN 'call' WHEN node_records > 0 THEN 'node' ELSE 'run' END AS asked_by,
    coalesce(c.end_us, n.end_us, x.end_us) AS ended_at_us,
    coalesce(n.epoch, c.epoch, x.epoch) AS epoch, n.total_us, n.queued_us, n.busy_us,
    deliveries, is_repeated, node_records,
    answers - if(c.outcome IS NOT DISTINCT FROM 'rejected', failures, 0) AS answers, returned, executions,
    greatest(unmarked - 1, if(last_unmarked.began_us - first_marked.end_us
        > if(last_unmarked.offset_us = first_marked.offset_us, $same_us, $clock_us), 1, 0)) AS unmarked,
    calls, c.outcome AS call_outcome, c.total_us AS call_total_us, c.attempts, c.busy, c.is_idempotent,
    coalesce(n.bytes_in, c.bytes_in, x.bytes_in) AS bytes_in,
    coalesce(n.bytes_out, c.bytes_out, x.bytes_out) AS bytes_out,
    c.reply_crc, if(len(crcs) > 1, list_sort(list_distinct(crcs)), coalesce(crcs, [])) AS execution_crcs,
    weight, day, pair
FROM grouped
"""  # noqa: S608 - all that is put in are names of columns, and outcomes
