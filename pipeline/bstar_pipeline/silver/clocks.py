"""How far the wall clocks of machines are apart, by the requests that both ends recorded; see ``clocks``."""

# ruff: noqa: S608 - all that is put into queries are constants

from collections.abc import Mapping

import pyarrow as pa

from bstar.records.broker import FINISHED
from bstar_pipeline.clocks import Link, Word, of_peers
from bstar_pipeline.pair_rows import Row, Rows, by_pair
from bstar_pipeline.partitions import Made, Stored, queried

# So many requests of a client in a row, and then none until as many as the second number were sent: few to
# bring together, and enough.
_RUN, _EVERY = 16, 1_024
_REQUEST = ("pair", "client", "number")
_CARRIED = (
    *_REQUEST, "topic", "boot", "mono", "busy_us", "total_us", "outcome", "attempts", "deliveries",
)  # fmt: skip
_SHARE = 0.99
# Of two machines each, of a partition.
_LINKS_MAX = 10_000


def links(records: Stored, runs: Rows) -> Made:
    """Bounds for each two machines that requests connect: node, other, low_us, high_us (``clocks.Link``)."""
    clocks = [{"boot": run["boot"], "clock": clock_of(run), "offset_us": run["offset_us"]} for run in runs]
    shape = pa.schema({"boot": pa.string(), "clock": pa.string(), "offset_us": pa.int64()})
    is_chosen = f"topic IN ('requests', 'calls', 'executions') AND number % {_EVERY} < {_RUN}"
    bounds = queried(
        records.take(*_CARRIED, where=is_chosen),
        _REQUEST,
        _BOUNDS,
        tables={"clocks": pa.Table.from_pylist(clocks, shape)},
    )
    return queried(bounds, ("node", "other"), _LINKS)


_OF_TOPIC = ", ".join(
    f"min({{clock: clock, begin_us: end_us - took_us, end_us: end_us}}) "
    f"FILTER (topic = '{topic}s') AS {topic}, count(*) FILTER (topic = '{topic}s') AS {topic}_count"
    for topic in ("request", "call", "execution")
)
# Of what was sent again, the ends may be of different attempts.
_BOUNDS = f"""
WITH ended AS (
    SELECT rows.*, clock, mono + offset_us AS end_us, if(topic = 'executions', busy_us, total_us) AS took_us
    FROM rows JOIN clocks USING (boot)
),
requests AS (
    SELECT {_OF_TOPIC},
        bool_and((topic = 'executions' OR outcome IN {FINISHED}) AND took_us IS NOT NULL
            AND coalesce(attempts, 1) = 1 AND coalesce(deliveries, 1) = 1) AS is_plain
    FROM ended GROUP BY {", ".join(_REQUEST)}
    HAVING is_plain AND request_count = 1 AND call_count <= 1 AND execution_count <= 1
)
SELECT request.clock AS node, call.clock AS other, request.end_us - call.end_us AS low_us,
    request.begin_us - call.begin_us AS high_us
FROM requests WHERE call.clock <> request.clock
UNION ALL
SELECT request.clock, execution.clock, request.begin_us - execution.begin_us,
    request.end_us - execution.end_us
FROM requests WHERE execution.clock <> request.clock
"""
# Not the last: of very many requests, one may have a story that its records do not tell.
_LINKS = f"""
SELECT node, other, quantile_disc(low_us, {_SHARE}) AS low_us,
    quantile_disc(high_us, {_SHARE} ORDER BY high_us DESC) AS high_us
FROM rows GROUP BY node, other LIMIT {_LINKS_MAX}
"""


def peer_links(facts: Mapping[str, Rows], runs: Rows) -> list[Link]:
    """Bounds for each two machines of a pair's nodes, by what the nodes recorded of each other."""
    nodes = {run["boot"]: run for run in runs if run["source"] == "broker"}
    found = []
    for _, events in sorted(by_pair(facts.get("event", ())).items()):
        in_order = sorted(events, key=lambda event: (event["boot"], event["seq"]))
        found += of_peers(
            Word(
                clock_of(nodes[event["boot"]]),
                event["boot"],
                event["mono"] + nodes[event["boot"]]["offset_us"],
                event["kind"],
                event["event"],
                event["peer_boot"],
            )
            for event in in_order
            if event["boot"] in nodes
        )
    return found


def clock_of(run: Row) -> str:
    """The clock that a run goes by."""
    return str(run["machine"] or run["boot"])
