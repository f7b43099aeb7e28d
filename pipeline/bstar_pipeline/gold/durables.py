"""What the journals prove about durable requests. One row for each finding, as in ``gold.audit``.

*begun-after-end*: a node gave a request to a worker after its cancel or close could have been acknowledged.
*answer-changed*: clients got, or the nodes stored, different answers, or it ended twice without a retry.
*durable-lost*: after some log entry, more requests are in a state by the journals than the store itself
counts then. So some that were acknowledged are not there. Which ones is unknown. If the numbers fit, the
requests that are pending when the journals end are excused, because the store has them.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from collections import defaultdict

import pyarrow as pa

from bstar_pipeline.gold.audit import FOREVER, UNWRITTEN_US
from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.partitions import Made, Rows, Stored, offsets, queried
from bstar_pipeline.schema import table_schema

_COUNTED = ("pending", "answered", "dead", "cancelled")
_NUMBERS = ("at_us", "entry", *_COUNTED, "doubt_us")
_STATED = pa.schema(dict.fromkeys(("pair", "node"), pa.string()) | dict.fromkeys(_NUMBERS, pa.int64()))


def durable_findings(
    durables: Stored, records: Stored, runs: Rows, states: Rows, clock_error_us: int = CLOCK_ERROR_US
) -> Made:
    """Rows of gold.audit, of ``silver.durables``, bronze records, ``silver.runs`` and ``silver.states``."""
    tables = {"counts": pa.Table.from_pylist(_stated(records, runs, states), _STATED)}
    values = {"clock_us": clock_error_us}
    return queried(durables, ("pair",), _SQL, table_schema("gold.audit"), tables=tables, values=values)


def _stated(records: Stored, runs: Rows, states: Rows) -> Rows:
    """Of each pair what a store that led has counted last, and until when an end may be in no record."""
    is_told = "kind = 'store' AND is_leading"
    told = records.take("pair", "boot", "mono", "entry", "node", *_COUNTED, where=is_told)
    last = queried(told, (), _LAST, tables={"runs": offsets(runs)}).summed(_LAST_OF_ALL)
    doubts: defaultdict[str, int] = defaultdict(int)
    for run in runs:
        if run["source"] == "broker" and (run["missing"] or run["dropped"]):
            doubts[run["pair"]] = FOREVER
    for state in states:
        if state["ended_by"] == "kill":
            pair = state["pair"]
            doubts[pair] = max(doubts[pair], state["until_at_us"] + UNWRITTEN_US)
    counts = {row["pair"]: row["last"] for row in last}
    return [
        {**counts.get(pair, {}), "pair": pair, "doubt_us": doubts.get(pair, 0)}
        for pair in sorted({*counts, *doubts})
    ]


_COUNT = ", ".join(f"{name}: {name}" for name in ("at_us", "entry", "node", *_COUNTED))
_LAST = f"""
WITH told AS (SELECT rows.*, mono + offset_us AS at_us FROM rows JOIN runs USING (boot))
SELECT pair, max({{{_COUNT}}}) AS last FROM told GROUP BY pair
"""
_LAST_OF_ALL = "SELECT pair, max(last) AS last FROM rows GROUP BY pair"
_IS_DIFFERENT = "len(answers) > 1"
_CRCS = "array_to_string(list_transform(answers, lambda crc: hex(crc)), ', ')"
_STATED_OF = f"CASE state {' '.join(f'WHEN {name!r} THEN {name}' for name in _COUNTED)} END"
# ``known`` are what the journals have up to the entry of the store's count, of these ``sure``, ``stated`` by
# the store; ``later`` are those of entries after that.
_SQL = f"""
WITH told AS MATERIALIZED (FROM rows),
held AS (
    SELECT told.day, told.pair, state, counts.at_us, counts.entry, counts.node, {_STATED_OF} AS stated,
        coalesce(last_entry <= counts.entry, false) AS is_counted,
        last_at_us > coalesce(doubt_us, 0) AS is_sure
    FROM told LEFT JOIN counts USING (pair) WHERE state IN {_COUNTED}
),
sums AS (
    SELECT pair, state, max(day) AS day, max(at_us) AS at_us, max(entry) AS entry, max(node) AS node,
        max(stated) AS stated, count(*) FILTER (is_counted) AS known,
        count(*) FILTER (is_counted AND is_sure) AS sure, count(*) FILTER (NOT is_counted) AS later
    FROM held GROUP BY pair, state
),
judged AS (
    SELECT day, pair, node, at_us, unnest([
        {{
            verdict: CASE WHEN sure > stated THEN 'violated' WHEN known > stated THEN 'unproven'
                WHEN state = 'pending' THEN 'excused' END,
            count: if(known > stated, known - stated, known),
            text: CASE WHEN known > stated THEN printf(
                    '%d are %s by the journals after entry %d, and the store of the %s has %d%s',
                    if(sure > stated, sure, known), state, entry, node, stated,
                    if(sure > stated, '', ', but a journal lacks something'))
                ELSE 'pending when the journals end: the store has them' END
        }},
        {{
            verdict: if(state = 'pending', 'unproven', NULL),
            count: later,
            text: 'pending when the journals end, after the last count of a store that led'
        }}
    ]) AS found
    FROM sums
)
SELECT 'begun-after-end' AS rule, 'violated' AS verdict, client, NULL::BIGINT AS number, service, node,
    given_at_us AS at_us, given_at_us - stopped_at_us AS duration_us, 1 AS count,
    printf('given to a worker %.1f ms after its cancel or close was stored (submission %d)',
        (given_at_us - stopped_at_us) / 1000, submission) AS text, day, pair
FROM told WHERE given_at_us - stopped_at_us > $clock_us
UNION ALL
SELECT 'answer-changed', 'violated', client, NULL, service, node, last_at_us, NULL, 1,
    if({_IS_DIFFERENT}, printf('nodes stored or gave answers with the CRC-32 %s', {_CRCS}),
        printf('it ended %d times, and was retried %d times', ends, retries)), day, pair
FROM told WHERE {_IS_DIFFERENT} OR ends > retries + 1
UNION ALL
SELECT 'durable-lost', found.verdict, NULL, NULL, NULL, node, at_us, NULL, found.count, found.text, day, pair
FROM judged WHERE found.verdict IS NOT NULL AND found.count > 0
"""
