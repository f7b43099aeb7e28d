"""The runs of processes: who they were, how their clock goes, how much of their journal is here.

Every record has two times. The wall clock may be set while a process runs; the monotonic clock may not, but
it says nothing by itself. A run's ``offset_us`` turns the second into the first. It is the median of at -
mono over all its records. So records with a wrong wall clock do not matter while they are fewer than half.
Processes of one machine share a monotonic clock and so an offset: between them, times are exact. Between
machines they are as exact as the machines' clocks are set, unless requests that both ends recorded tell more:
``links`` and ``peer_links`` bound how far clocks are apart (``bstar_pipeline.clocks``), ``corrected`` puts
them right.

``facts`` is the one query: sums of records, and the events of which each pair has few. The driver makes the
table of them.
"""

# ruff: noqa: S608 - all that is put into queries are constants, and names of runs

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from bstar.records import KINDS as STRUCTS
from bstar.records import broker, client, pair, store, worker
from bstar.records.broker import FINISHED
from bstar_pipeline.clocks import Link, Off, Word, of_peers
from bstar_pipeline.gold.history import FIELDS, KINDS
from bstar_pipeline.partitions import Made, Row, Rows, Stored, grouped, queried, text

_ABOUT = ("source", "machine", "host", "version", "config", "service", "heartbeat_us", "failover_timeout_us")
# The facts of an execution, their order among those of a run.
_LAST = ("boot", "epoch", "day", "client", "number", "service", "mono")


def _kinds_of(*modules: ModuleType) -> tuple[str, ...]:
    names = {module.__name__ for module in modules}
    return tuple(kind for kind, struct in STRUCTS.items() if struct.__module__ in names)


# What one kind of process alone records.
_KINDS = {
    "client": _kinds_of(client),
    "worker": _kinds_of(worker),
    "broker": (*_kinds_of(broker, pair, store), "pulse"),
}

# Of events those that each pair has few of, and the others that facts are made of.
_EVENTS = (*KINDS, "pulse", "load")
_NAMES = dict.fromkeys(("pair", "node", "boot", "day", "seq", "kind", "mono", "sample", *FIELDS, *_ABOUT))
_EVENT = dict.fromkeys((*_NAMES, "state", "accepted", "interval_us", "queued", "in_flight"))
_CARRIED = dict.fromkeys((*_EVENT, "topic", "at", "outcome", "weight", "count", "busy_us"))
_KEYS = "is_older, day, pair, boot, node, topic, offset_us, service_of, epoch_of"
_LEAST = ("first_seq", "first_mono")
_MOST = ("last_seq", "last_mono", "last_began")
_ADDED = ("records", "ends", "late", "weighted", "dropped", *(f"of_{source}" for source in _KINDS))

Facts = Mapping[str, Rows]
"""What ``facts`` found."""


def facts(records: Stored, older: Stored | None = None) -> tuple[Facts, Facts]:
    """What the driver has to know of bronze records, and of ``older`` ones, by ``what``: one query.

    "sum": all records by day, run, at - mono, topic, the service of requests and the epoch of executions.
    "event": those of ``gold.history``. "pulses": what those of a run tell in all. "loads": of a run and
    service. "stale": what ``_stale`` finds, by one query more if there is any.
    """
    found = grouped(fact_rows(records, older).collected(), "is_older")
    now, before = grouped(found[False], "what"), grouped(found[True], "what")
    return {**now, "stale": _stale(records, now["sum"])}, before


def fact_rows(records: Stored, older: Stored | None = None) -> Made:
    """The query of ``facts``: records are added up where they lie, then those of a run are together."""
    now = records.take(*_CARRIED, "false AS is_older")
    before = None if older is None else older.take(*_CARRIED, "true AS is_older")
    return queried(queried(now.joined(before), (), _PARTS), ("boot",), _FACTS)


def _stale(records: Stored, sums: Rows) -> Rows:
    """Executions that began in an epoch when the worker had ended one of a ``higher`` epoch: of each run and
    epoch the last.

    Both are of one run, so its monotonic clock compares them.
    """
    higher: dict[tuple[str, int, int], int] = {}
    for boot, rows in grouped((row for row in sums if row["epoch"]), "boot").items():
        for epoch in {row["epoch"] for row in rows}:
            began = max(row["last_began"] for row in rows if row["epoch"] == epoch)
            ended = [row["epoch"] for row in rows if row["epoch"] > epoch and row["first_mono"] < began]
            if ended:
                higher[boot, epoch, began] = max(ended)
    if not higher:
        return ()
    boots, _, begins = map(sorted, map(set, zip(*higher, strict=True)))
    is_one = f"topic = 'executions' AND boot IN ({', '.join(map(text, boots))})"
    is_one += f" AND {_BEGAN} IN ({', '.join(map(str, begins))})"
    executions = records.take(*_LAST, f"{_BEGAN} AS began", where=is_one)
    last: dict[tuple[str, int, int], Row] = {}
    for row in queried(executions, (), "FROM rows").collected():
        key = row["boot"], row["epoch"], row["began"]
        last[key] = max(row, last.get(key, row), key=lambda each: [each[name] for name in _LAST])
    return [{**row, "higher": higher[key]} for key, row in sorted(last.items()) if key in higher]


# When an execution began, by its run's monotonic clock.
_BEGAN = "(mono - busy_us)"
_OF_KINDS = "".join(f", count(*) FILTER (kind IN {kinds}) AS of_{source}" for source, kinds in _KINDS.items())
# All is one aggregation, so rows are read once: an event is apart from all others, and its sums are its own.
# Records of one number are those of a boot id that ran twice.
_PARTS = f"""
WITH told AS (
    SELECT *, if(kind IN {_EVENTS}, {{seq: seq, mono: mono}}, NULL) AS apart, "at" - mono AS offset_us,
        if(topic = 'requests', service, NULL) AS service_of, if(topic = 'executions', epoch, NULL) AS epoch_of
    FROM rows
)
SELECT {_KEYS}, count(*) AS records, min(seq) AS first_seq, max(seq) AS last_seq, min(mono) AS first_mono,
    max(mono) AS last_mono, count(*) FILTER (kind IN ('stopped', 'fatal')) AS ends,
    count(*) FILTER (outcome = 'late') AS late, count(*) FILTER (coalesce(weight, 1) <> 1) AS weighted,
    sum("count") FILTER (kind = 'dropped')::BIGINT AS dropped,
    max({_BEGAN}) FILTER (topic = 'executions') AS last_began{_OF_KINDS},
    any_value(if(apart IS NULL, NULL, {{{", ".join(f"{name}: {name}" for name in _EVENT)}}})) AS event
FROM told GROUP BY {_KEYS}, apart
"""
# What a node accepted in its first interval may be of before its journal here.
_FACTS = f"""
WITH parts AS MATERIALIZED (FROM rows),
events AS MATERIALIZED (SELECT is_older, unnest(event) FROM parts WHERE event IS NOT NULL),
told AS (
    SELECT *, mono - lag(mono) OVER (PARTITION BY is_older, boot ORDER BY seq) AS after_us
    FROM events WHERE kind <> 'load'
)
SELECT 'sum' AS what, is_older, day, pair, boot, node, topic, offset_us, service_of AS service,
    epoch_of AS epoch, {", ".join(f"min({name}) AS {name}" for name in _LEAST)},
    {", ".join(f"max({name}) AS {name}" for name in _MOST)},
    {", ".join(f"sum({name})::BIGINT AS {name}" for name in _ADDED)}
FROM parts GROUP BY ALL
UNION ALL BY NAME
SELECT 'event' AS what, is_older, {", ".join(_NAMES)} FROM events WHERE kind IN {KINDS}
UNION ALL BY NAME
SELECT 'pulses' AS what, is_older, pair, boot,
    arg_min_null(state, seq) FILTER (kind = 'pulse') AS first_state,
    arg_min_null(epoch, seq) FILTER (kind = 'pulse') AS first_epoch,
    (max(mono) FILTER (kind = 'pulse') - min(mono) FILTER (kind = 'pulse'))
        / nullif(count(*) FILTER (kind = 'pulse') - 1, 0) AS pulse_us,
    max(after_us) AS longest_us
FROM told GROUP BY ALL
UNION ALL BY NAME
SELECT 'loads' AS what, is_older, pair, boot, service, sum(accepted)::BIGINT AS accepted,
    min({{seq: seq, accepted: accepted, began: mono - interval_us}}) AS first_load,
    max({{seq: seq, held: queued + in_flight}}) AS last_load, max(mono) AS mono, max(day) AS day
FROM events WHERE kind = 'load' GROUP BY ALL
"""


def runs(found: Facts, before: Facts | None = None) -> list[dict[str, Any]]:
    """Rows of ``silver.runs``. A run over midnight is of the day of its first record.

    ``before``: the ``facts`` of earlier days. They tell who the processes were that go on, and what of their
    records is not missing.
    """
    before = before or {}
    events = sorted((*before.get("event", ()), *found.get("event", ())), key=lambda event: event["seq"])
    starts = {event["boot"]: event for event in events if event["kind"] == "started"}
    of_run = grouped(found.get("sum", ()), "pair", "boot", "node")
    earlier = grouped(before.get("sum", ()), "boot")
    of_clock: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found.get("sum", ()):
        of_clock[_clock(starts, row["boot"])].append(row)
    offsets = {clock: _median(rows) for clock, rows in of_clock.items()}
    facts = []
    for (of_pair, boot, node), rows in sorted(of_run.items()):
        row = _run(rows, starts.get(boot), earlier[boot], offsets[_clock(starts, boot)])
        facts.append({**row, "pair": of_pair, "boot": boot, "node": node})
    return facts


def _clock(starts: Mapping[str, Row], boot: str) -> str:
    return (starts.get(boot) or {}).get("machine") or boot


def _median(rows: Sequence[Row]) -> int:
    """The offset up to which half of the records are."""
    whole, upto = sum(row["records"] for row in rows), 0
    for row in sorted(rows, key=lambda row: row["offset_us"]):
        upto += row["records"]
        if upto * 2 >= whole:
            return int(row["offset_us"])
    raise AssertionError("a clock without a record")


def _run(rows: Sequence[Row], start: Row | None, earlier: Sequence[Row], offset_us: int) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(row[name] or 0 for row in rows)

    first, last = min(row["first_seq"] for row in rows), max(row["last_seq"] for row in rows)
    count, start = total("records"), start or {}
    before_seq = min((row["first_seq"] for row in earlier), default=first)
    read_to = max((row["last_seq"] for row in earlier), default=0) if before_seq < first else 0
    # A wall clock that was set, or is behind, puts later records into earlier days.
    astray = max(sum(row["records"] for row in earlier) - max(first - before_seq, 0), 0)
    # Without its first record (of another day, or lost) a run is what it did.
    did = next((source for source in _KINDS if total(f"of_{source}")), "unknown")
    return {
        **{name: start.get(name) for name in _ABOUT},
        "source": start.get("source") or did,
        "day": min(row["day"] for row in rows),
        "offset_us": offset_us,
        "clock_off_us": 0,
        "clock_unsure_us": 0,
        "started_at_us": min(row["first_mono"] for row in rows) + offset_us,
        "last_at_us": max(row["last_mono"] for row in rows) + offset_us,
        "is_clean": total("ends") > 0,
        "began_before": first > 1,
        "records": count,
        # What was read, and is of days before, is not missing.
        "before": 0 if read_to >= first - 1 else first - 1,
        "missing": max(last - first + 1 - count - astray, 0),
        # Each number comes once, unless the same process went on twice, as a restored snapshot does.
        "conflicts": max(count - last + first - 1, 0),
        "dropped": total("dropped"),
        "is_sampled": total("weighted") > 0 or (1.0 if start.get("sample") is None else start["sample"]) < 1,
    }


def clock_of(run: Row) -> str:
    """The clock that a run goes by."""
    return str(run["machine"] or run["boot"])


# So many requests of a client in a row, and then none until as many as the second number were sent: few to
# bring together, and enough.
_IN_A_ROW, _EVERY = 16, 1_024
_REQUEST = ("pair", "client", "number")
_OF_LINK = (
    *_REQUEST, "topic", "boot", "mono", "busy_us", "total_us", "outcome", "attempts", "deliveries",
)  # fmt: skip
_SHARE = 0.99
# Of two machines each, of a partition.
_LINKS_MAX = 10_000


def links(records: Stored, runs: Rows) -> Made:
    """Bounds for each two machines that requests connect: node, other, low_us, high_us (``clocks.Link``)."""
    clocks = [{"boot": run["boot"], "clock": clock_of(run), "offset_us": run["offset_us"]} for run in runs]
    shape = pa.schema({"boot": pa.string(), "clock": pa.string(), "offset_us": pa.int64()})
    is_chosen = f"topic IN ('requests', 'calls', 'executions') AND number % {_EVERY} < {_IN_A_ROW}"
    bounds = queried(
        records.take(*_OF_LINK, where=is_chosen),
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
    for _, events in sorted(grouped(facts.get("event", ()), "pair").items()):
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


def corrected(facts: Iterable[Row], off: Mapping[str, Off]) -> list[dict[str, Any]]:
    """``silver.runs`` with the clocks of these machines put right."""
    found = []
    for run in facts:
        ahead_us, unsure_us = off.get(clock_of(run), (0, 0))
        times = ("offset_us", "started_at_us", "last_at_us")
        moved = {name: run[name] - ahead_us for name in times}
        found.append({**run, **moved, "clock_off_us": ahead_us, "clock_unsure_us": unsure_us})
    return found
