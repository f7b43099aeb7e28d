"""Was every accepted request answered once, and did one node serve at a time? One row for each finding.

``gold.rules`` judges single requests. A violated rule names its request; excused and unproven requests are
counted, in one row for each pair, minute, service and reason: the first of them ended at ``at_us``, the last
``duration_us`` later. ``gold.nodes`` has what is found about processes.

Requests are never shuffled: they are filtered, counted, and joined with the clients that keep a journal.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.rules import DURABLE_NUMBER, FINDINGS, judged, unproven
from bstar_pipeline.partitions import Made, Row, Rows, Stored, queried
from bstar_pipeline.schema import table_schema

# Bits of silver.requests.evidence.
_NODE, _CLIENT, _WORKER = 1, 2, 4
FOREVER = 1 << 62
# What the end of a journal may lack: records that waited to be written ...
UNWRITTEN_US = 2_000_000
# ... and calls that had not ended yet.
_CALL_MAX_US = 60_000_000
_MINUTE_US = 60_000_000

_HAS_IDENTITY = "client NOT LIKE 'mdp-%'"
_IS_ENDED = f"{_HAS_IDENTITY} AND outcome IN {FINISHED}"
_IS_UNSEEN = f"{_IS_ENDED} AND evidence & {_WORKER} = 0"
# What no rule of a name can be proven for. The client of a durable request's attempts is the store.
_UNCOVERED = {
    "lost": (
        unproven(
            "client LIKE 'mdp-%'",
            "of plain Majordomo clients, whose requests have no identity: nothing is checked",
        ),
        unproven(
            f"{_HAS_IDENTITY} AND number <> {DURABLE_NUMBER} AND evidence & {_CLIENT} = 0",
            "not in a client's journal: whether the client got an answer is not known",
        ),
    ),
    "executed-twice": (
        unproven(_IS_UNSEEN, "not in a worker's journal: how often they were executed is not known"),
    ),
    "answered-twice": (
        unproven(
            f"{_IS_ENDED} AND number < {DURABLE_NUMBER} AND evidence & {_NODE} = 0",
            "not in a node's journal: how often they were answered is not known",
        ),
    ),
    "crossed": (unproven(_IS_UNSEEN, "not in a worker's journal: what was answered to them is not known"),),
}
_CARRIED = (
    "day", "pair", "client", "number", "service", "node", "evidence", "outcome", "ended_at_us",
    "accepted_at_us", "executions", "answers", "deliveries", "calls", "unmarked", "returned", "call_outcome",
    "total_us", "call_total_us", "attempts", "is_repeated", "is_idempotent", "reply_crc", "execution_crcs",
)  # fmt: skip


def audit(requests: Stored, runs: Rows) -> Made:
    """gold.audit of ``silver.requests`` and rows of ``silver.runs``."""
    keepers = queried(requests.take("pair", "client", "evidence").here, (), _KEEPERS).summed(_DISTINCT)
    tables = {
        "lacks": pa.Table.from_pylist(list(_lacks(runs)), _LACKS),
        "keepers": pa.Table.from_pylist(list(keepers), _KEEPER),
    }
    found = queried(requests.take(*_CARRIED), (), _FOUND, tables=tables)
    # Of most requests nothing is lacking.
    some = " OR ".join(f"({rule.when})" for rules in _UNCOVERED.values() for rule in rules)
    coverage = queried(requests.take(*_CARRIED, where=some), (), _COVERAGE)
    return queried([found, coverage], ("pair", "rule"), _AUDIT, table_schema("gold.audit"))


# --- single requests ----------------------------------------------------------------------------------------

_DISTINCT = "SELECT DISTINCT pair, client, keeps FROM rows"
_KEEPERS = f"SELECT DISTINCT pair, client, true AS keeps FROM rows WHERE evidence & {_CLIENT} <> 0"
_KEEPER = pa.schema({"pair": pa.string(), "client": pa.string(), "keeps": pa.bool_()})
_GAPS = pa.list_(pa.struct({"since": pa.int64(), "until": pa.int64()}))
_LACKS = pa.schema(
    {"pair": pa.string(), **dict.fromkeys(("client_gaps", "worker_gaps", "node_ends", "node_gaps"), _GAPS)}
)


def _lacks(runs: Rows) -> Iterator[Row]:
    """By pair the times in which journals lack something."""
    found: defaultdict[str, defaultdict[str, list[dict[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        is_lacking = any(run[name] for name in ("missing", "dropped", "conflicts"))
        is_cut, is_partial = not run["is_clean"], is_lacking or run["is_sampled"]
        first_us, last_us = run["started_at_us"], run["last_at_us"]
        unwritten_us, ended_us = last_us - UNWRITTEN_US, last_us + UNWRITTEN_US
        called_us = first_us if is_partial else last_us - _CALL_MAX_US
        worked_us = first_us if is_lacking else unwritten_us
        for source, name, is_gap, since_us, until_us in (
            ("client", "client_gaps", is_partial or is_cut, called_us, FOREVER),
            ("worker", "worker_gaps", is_lacking or is_cut, worked_us, last_us + _CALL_MAX_US),
            ("broker", "node_ends", is_cut, unwritten_us, ended_us),
            ("broker", "node_gaps", is_partial, first_us, ended_us),
        ):
            if run["source"] in (source, "unknown"):
                gaps = found[run["pair"]][name]
                if is_gap:
                    gaps.append({"since": since_us, "until": until_us})
                # What it wrote before its first record here was of an earlier time.
                if run["before"] > 0:
                    gaps.append({"since": 0, "until": first_us})
    return ({"pair": pair, **gaps} for pair, gaps in found.items())


def _counted(findings: str) -> str:
    """How many there are of each minute and text, since when and until when. Violations are named."""
    named = ", ".join(
        f"if(found.verdict = 'violated', {name}, NULL) AS {name}" for name in ("client", "number", "node")
    )
    return f"""
WITH findings AS ({findings})
SELECT found.rule AS rule, found.verdict AS verdict, {named}, service, found.text AS text, day, pair,
    at_us // {_MINUTE_US} AS minute, count(*) AS count, min(at_us) AS first_us, max(at_us) AS last_us
FROM findings GROUP BY ALL
"""


_FOUND, _COVERAGE = _counted(FINDINGS), _counted(judged(_UNCOVERED, "rows"))
_AUDIT = """
SELECT rule, verdict, client, number, service, node, min(first_us) AS at_us,
    nullif(max(last_us) - min(first_us), 0) AS duration_us, sum(count)::BIGINT AS count, text, day, pair
FROM rows GROUP BY rule, verdict, client, number, service, node, minute, text, day, pair
"""
