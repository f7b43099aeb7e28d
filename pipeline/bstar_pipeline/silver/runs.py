"""The runs of processes: who they were, how their clock goes, how much of their journal is here.

Every record has two times. The wall clock may be set while a process runs; the monotonic clock may not, but
it says nothing by itself. A run's ``offset_us`` turns the second into the first. It is the median of at -
mono over all its records. So records with a wrong wall clock do not matter while they are fewer than half.
Processes of one machine share a monotonic clock and so an offset: between them, times are exact. Between
machines they are as exact as the machines' clocks are set, unless requests tell more (``corrected``).

``facts`` is the one query: sums of records, and the events of which each pair has few. The driver makes the
table of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the common name

from bstar.records import broker, client, pair, store, worker
from bstar_pipeline.clocks import Off
from bstar_pipeline.gold.history import FIELDS, KINDS
from bstar_pipeline.pair_rows import Row, Rows, collected, together
from bstar_pipeline.schema import kinds_of

_ABOUT = ("source", "machine", "host", "version", "config", "service", "heartbeat_us", "failover_timeout_us")
# The facts of an execution, their order among those of a run.
_LAST = ("boot", "epoch", "day", "client", "number", "service", "mono")
# What one kind of process alone records.
_KINDS = {
    "client": kinds_of(client),
    "worker": kinds_of(worker),
    "broker": (*kinds_of(broker, pair, store), "pulse"),
}

Facts = Mapping[str, Rows]
"""What ``facts`` found."""


def facts(records: DataFrame, older: DataFrame | None = None) -> tuple[Facts, Facts]:
    """What the driver has to know of bronze records, and of ``older`` ones, by ``what``: one query.

    "sum": all records by day, run, at - mono, topic, the service of requests and the epoch of executions.
    "event": those of ``gold.history``. "pulses": what those of a run tell in all. "loads": of a run and
    service. "stale": what ``_stale`` finds, by one query more if there is any.
    """
    facts = fact_rows(records).withColumn("is_older", F.lit(False))
    if older is not None:
        facts = facts.unionByName(fact_rows(older).withColumn("is_older", F.lit(True)))
    found: tuple[defaultdict[str, list[Row]], ...] = (defaultdict(list), defaultdict(list))
    for row in collected(facts):
        found[row["is_older"]][row["what"]].append(row)
    return {**found[0], "stale": _stale(records, found[0]["sum"])}, found[1]


def _stale(records: DataFrame, sums: Rows) -> Rows:
    """Executions that began in an epoch when the worker had ended one of a ``higher`` epoch: of each run and
    epoch the last.

    Both are of one run, so its monotonic clock compares them.
    """
    of_runs: defaultdict[str, list[Row]] = defaultdict(list)
    for row in sums:
        if row["epoch"]:
            of_runs[row["boot"]].append(row)
    higher: dict[tuple[str, int, int], int] = {}
    for boot, rows in of_runs.items():
        for epoch in {row["epoch"] for row in rows}:
            began = max(row["last_began"] for row in rows if row["epoch"] == epoch)
            ended = [row["epoch"] for row in rows if row["epoch"] > epoch and row["first_mono"] < began]
            if ended:
                higher[boot, epoch, began] = max(ended)
    if not higher:
        return ()
    boots, _, begins = map(sorted, map(set, zip(*higher, strict=True)))
    executions = records.where((F.col("topic") == "executions") & F.col("boot").isin(boots))
    last: dict[tuple[str, int, int], Row] = {}
    for row in collected(executions.where(_began().isin(begins)).select(*_LAST, _began().alias("began"))):
        key = row["boot"], row["epoch"], row["began"]
        last[key] = max(row, last.get(key, row), key=lambda each: [each[name] for name in _LAST])
    return [{**row, "higher": higher[key]} for key, row in sorted(last.items()) if key in higher]


def _began() -> Column:
    """When an execution began, by its run's monotonic clock."""
    return F.col("mono") - F.col("busy_us")


def fact_rows(records: DataFrame) -> DataFrame:
    """The query of ``facts``."""
    of_events = records.where(F.col("topic") == "events")
    return together(_sums(records), _events(of_events), _pulses(of_events), _loads(of_events))


def _sums(records: DataFrame) -> DataFrame:
    """All that is aggregated is a number: a struct or a text would make Spark sort all rows."""
    is_run = F.col("topic") == "executions"
    return records.groupBy(
        F.lit("sum").alias("what"),
        *("day", "pair", "boot", "node", "topic"),
        (F.col("at") - F.col("mono")).alias("offset_us"),
        F.when(F.col("topic") == "requests", F.col("service")).alias("service"),
        F.when(is_run, F.col("epoch")).alias("epoch"),
    ).agg(
        F.count("*").alias("records"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("mono").alias("first_mono"),
        F.max("mono").alias("last_mono"),
        F.count_if(F.col("kind").isin("stopped", "fatal")).alias("ends"),
        F.count_if(F.col("outcome") == "late").alias("late"),
        *(F.count_if(F.col("kind").isin(*kinds)).alias(f"of_{source}") for source, kinds in _KINDS.items()),
        F.count_if(F.coalesce(F.col("weight"), F.lit(1.0)) != 1).alias("weighted"),
        F.sum(F.when(F.col("kind") == "dropped", F.col("count"))).alias("dropped"),
        F.max(F.when(is_run, _began())).alias("last_began"),
    )


def _events(events: DataFrame) -> DataFrame:
    names = dict.fromkeys(("pair", "node", "boot", "day", "seq", "kind", "mono", "sample", *FIELDS, *_ABOUT))
    return events.where(F.col("kind").isin(*KINDS)).select(F.lit("event").alias("what"), *names)


def _pulses(events: DataFrame) -> DataFrame:
    is_pulse = F.col("kind") == "pulse"
    in_run = Window.partitionBy("boot").orderBy("seq")
    first = F.when(is_pulse, F.col("seq"))
    return (
        events.where(is_pulse | F.col("kind").isin(*KINDS))
        .withColumn("silent_us", F.col("mono") - F.lag("mono").over(in_run))
        .groupBy(F.lit("pulses").alias("what"), "pair", "boot")
        .agg(
            F.min_by("state", first).alias("first_state"),
            F.min_by("epoch", first).alias("first_epoch"),
            F.expr(
                "(max(if(kind = 'pulse', mono, NULL)) - min(if(kind = 'pulse', mono, NULL))) "
                "/ nullif(count_if(kind = 'pulse') - 1, 0) AS pulse_us"
            ),
            F.max("silent_us").alias("longest_us"),
        )
    )


def _loads(events: DataFrame) -> DataFrame:
    """What a node counted; what it accepted in its first interval may be of before its journal here."""
    return (
        events.where(F.col("kind") == "load")
        .groupBy(F.lit("loads").alias("what"), "pair", "boot", "service")
        .agg(
            F.sum("accepted").alias("accepted"),
            F.min(F.struct("seq", "accepted", (F.col("mono") - F.col("interval_us")).alias("began"))).alias(
                "first_load"
            ),
            F.max(F.struct("seq", (F.col("queued") + F.col("in_flight")).alias("held"))).alias("last_load"),
            F.max("mono").alias("mono"),
            F.max("day").alias("day"),
        )
    )


def runs(found: Facts, before: Facts | None = None) -> list[dict[str, Any]]:
    """Rows of ``silver.runs``. A run over midnight is of the day of its first record.

    ``before``: the ``facts`` of earlier days. They tell who the processes were that go on, and what of their
    records is not missing.
    """
    before = before or {}
    events = sorted((*before.get("event", ()), *found.get("event", ())), key=lambda event: event["seq"])
    starts = {event["boot"]: event for event in events if event["kind"] == "started"}
    of_run: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
    of_clock: defaultdict[str, list[Row]] = defaultdict(list)
    earlier: defaultdict[str, list[Row]] = defaultdict(list)
    for row in before.get("sum", ()):
        earlier[row["boot"]].append(row)
    for row in found.get("sum", ()):
        of_run[row["pair"], row["boot"], row["node"]].append(row)
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


def corrected(facts: Iterable[Row], off: Mapping[str, Off]) -> list[dict[str, Any]]:
    """``silver.runs`` with the clocks of these machines put right."""
    found = []
    for run in facts:
        ahead_us, unsure_us = off.get(run["machine"] or run["boot"], (0, 0))
        times = ("offset_us", "started_at_us", "last_at_us")
        moved = {name: run[name] - ahead_us for name in times}
        found.append({**run, **moved, "clock_off_us": ahead_us, "clock_unsure_us": unsure_us})
    return found
