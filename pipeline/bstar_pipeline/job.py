"""The batch job: journals in, all tables out.

Lines are parsed once, on the way into ``bronze.records``; everything after that reads the table. Each step is
written before the next reads it, so nothing is computed twice. Independent tables are written side by side,
because Spark plans a query on one core. Records belong to days and pairs, and the job replaces whole days and
pairs. The same input twice gives the same tables, and other days and pairs stay. So give it all journals of
the days that it is about, or say ``since`` which day it is about. What is older is read as far as it stands
in the same files, and not written: it tells who the processes are that go on, and the records of the last
hour before belong to requests of which others have later ones.

The driver gets to know names of files, which days and pairs there are, counts, and of each pair the events
that change something and the times without an answer: few, whatever the traffic. No request comes to it.
"""

import datetime as dt
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bstar.errors import ConfigurationError
from bstar_pipeline import bronze, clocks, copies, silver, store
from bstar_pipeline.bronze import REJECTION
from bstar_pipeline.engine import is_local, version_of
from bstar_pipeline.gold.audit import audit
from bstar_pipeline.gold.capacity import capacity
from bstar_pipeline.gold.clients import clients
from bstar_pipeline.gold.durables import durable_findings
from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.gold.incidents import incidents
from bstar_pipeline.gold.nodes import process_findings
from bstar_pipeline.gold.objectives import budgets, objectives, sketches
from bstar_pipeline.inputs import Inputs, open_inputs
from bstar_pipeline.pair_rows import Row, Rows, collected, frame_of
from bstar_pipeline.schema import REJECTED, table_schema
from bstar_pipeline.slo import Objectives
from bstar_pipeline.store import Part

Progress = Callable[[str], None]
"""Gets a line of text when a step begins."""

_log = logging.getLogger(__name__)
_OUTSIDE = "outside"
# Requests take less, and clocks are less apart.
_MARGIN_US = 3_600_000_000
_MARGIN = "margin-"
# The topics of records that are of single requests.
_OF_REQUESTS = ("requests", "calls", "executions")
# Every executor gets this many digests of requests.
_REPEATED_MAX = 500_000
# Of two machines each whose clocks are compared.
_LINKS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job read and found.

    ``engine`` is "local" or "spark", ``version`` what it calls itself. ``steps``: what was done, and the
    seconds until the next step began. ``files`` by state, ``rejected`` by reason, ``incidents`` by kind,
    ``findings`` of the audit by verdict. ``duplicates`` are records that were left out because they came in
    another file, too.
    """

    root: str
    parts: tuple[Part, ...]
    records: int
    requests: int
    duplicates: int
    files: dict[str, int]
    rejected: dict[str, int]
    incidents: dict[str, int]
    findings: dict[str, int]
    engine: str
    version: str
    steps: tuple[tuple[str, float], ...]
    took_s: float

    @property
    def verdict(self) -> Literal["passed", "violated", "unproven", "empty"]:
        """Whether the pair's promises held, were broken, or the journals cannot tell (of the audit).

        "empty": there was no request, so nothing was tried.
        """
        if self.findings.get("violated"):
            return "violated"
        if not self.requests:
            return "empty"
        return "unproven" if self.findings.get("unproven") else "passed"


@dataclass(slots=True)
class _Job:
    """What all steps need."""

    spark: SparkSession
    root: str
    progress: Progress | None
    began: float = field(default_factory=time.monotonic)
    scope: frozenset[Part] = frozenset()
    """What records there are belong to these."""
    seen: frozenset[Part] = frozenset()
    """And the files and lines that are none, to these as well."""
    topics: frozenset[str] = frozenset()
    """Of the records."""
    earlier: Rows = ()
    """What records of before the first day say of runs, see ``silver.earlier``."""
    margin: DataFrame | None = None
    """Records of single requests, of the last hour before the first day."""
    steps: list[tuple[str, float]] = field(default_factory=list)
    """What began, and when."""
    aside: dict[str, Part] = field(default_factory=dict)
    """Folders of the table of records that are taken out again at the end."""

    def tell(self, text: str) -> None:
        _log.info("%s", text)
        self.steps.append((text, time.monotonic()))
        if self.progress is not None:
            self.progress(text)

    def took(self) -> tuple[tuple[str, float], ...]:
        """The steps and their seconds; of two that went on side by side, each until the next one began."""
        ends = [*(began for _, began in self.steps[1:]), time.monotonic()]
        return tuple((text, ended - began) for (text, began), ended in zip(self.steps, ends, strict=True))

    def write(self, name: str, frame: DataFrame) -> DataFrame:
        """Write a table for the job's days and pairs, and give back what is there then."""
        self.tell(f"writing {name}")
        store.replace(_clamped(frame, self.scope), self.root, name, self.scope)
        return self.read(name)

    def write_rows(self, name: str, rows: Iterable[Row]) -> DataFrame:
        """The same of a table that is small."""
        return self.write(name, frame_of(self.spark, rows, table_schema(name)))

    def read(self, name: str) -> DataFrame:
        return store.read(self.spark, self.root, name, self.scope)


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    root: str,
    *,
    slo: Objectives | None = None,
    clock_error_us: int = CLOCK_ERROR_US,
    since: dt.date | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Read the journals at ``inputs`` (any path that Spark reads) and write every table below ``root``.

    Raises ConfigurationError if there is nothing to read, or no record in what there is.
    """
    job = _Job(spark, root, progress)
    records = _bronze(job, inputs, since)
    with ThreadPoolExecutor(1, "services") as other:
        told = other.submit(_services, job, records, slo)
        job.tell("looking for processes and what happened to them")
        facts = silver.facts(records)
        of_runs = _with_right_clocks(job, records, facts, clock_error_us)
        histories = silver.histories(facts, of_runs, clock_error_us)
        runs = job.write_rows("silver.runs", of_runs)
        states = job.write_rows("silver.states", silver.states(histories))
        requests = _requests(job, records, runs, clock_error_us, since)
        found = job.write_rows("gold.incidents", incidents(records, runs, requests, histories))
        of_processes = process_findings(facts, of_runs, histories, clock_error_us)
        further = [
            frame_of(spark, of_processes, table_schema("gold.audit")),
            *_durables(job, records, runs, states, clock_error_us),
        ]
        findings = job.write("gold.audit", audit(requests, runs, further))
        told.result()
    store.clear(spark, root, "bronze.records", job.aside)
    job.tell("counting")
    files = (
        store.read(spark, root, "bronze.files", job.seen)
        .groupBy("state")
        .agg(F.count("*").alias("files"), F.sum("duplicates").alias("duplicates"))
    )
    by_state = files.collect()
    return Summary(
        root=root,
        parts=tuple(sorted(job.scope)),
        records=records.count(),
        requests=requests.count(),
        duplicates=sum(row.duplicates for row in by_state),
        files={row.state: row.files for row in by_state},
        rejected=_counts(store.read(spark, root, "bronze.rejected", job.seen), "reason"),
        incidents=_counts(found, "kind"),
        findings=_counts(findings, "verdict"),
        engine="local" if is_local(spark) else "spark",
        version=version_of(spark),
        steps=job.took(),
        took_s=time.monotonic() - job.began,
    )


def _bronze(job: _Job, inputs: Sequence[str], since: dt.date | None) -> DataFrame:
    """Write the first layer; returns the records. Sets the job's days and pairs."""
    spark, root = job.spark, job.root
    job.tell(f"reading journals at {', '.join(inputs)}")
    journals = open_inputs(spark, inputs, since)
    typed = journals.typed()
    if since is not None:
        typed = _with_older_aside(typed, since)
    # Lines that are no records go the same way, as a topic of their own, and are taken out again below.
    written = store.write(typed, root, "bronze.records", more=REJECTION)
    aside = {leaf: part for leaf, part in written.new.items() if _is_aside(_topic_of(leaf))}
    scope = frozenset(part for leaf, part in written.new.items() if leaf not in aside)
    if not scope:
        raise ConfigurationError(f"no record in the journals at {', '.join(inputs)}: {_why(job, aside)}")
    store.clear(spark, root, "bronze.records", [leaf for leaf, part in written.old.items() if part in scope])
    job.scope, job.seen = scope, scope | frozenset(aside.values())
    job.topics = frozenset(map(_topic_of, written.new))
    parsed = store.read(spark, root, "bronze.records", job.seen, more=REJECTION)
    is_older = (F.col("topic") == _OUTSIDE) | F.col("topic").startswith(_MARGIN)
    parsed = parsed.where((F.col("topic") == REJECTED) | is_older | store.within(scope))
    if since is not None:
        job.earlier = silver.earlier(parsed.where(is_older), parsed.where(~is_older))
    job.tell("looking for files that came twice or lost their end")
    found = copies.ranges(parsed).persist()
    try:
        ranges = copies.without_conflicts(parsed, found)
        _files(job, journals, ranges, since)
        job.tell("writing bronze.rejected")
        if any(leaf.endswith(REJECTED) for leaf in aside):
            rejected = bronze.rejected(copies.rejected_once(parsed, ranges))
        else:
            rejected = store.nothing(spark, table_schema("bronze.rejected"))
        store.replace(rejected, root, "bronze.rejected", job.seen)
        mixed = ranges.where("is_duplicate OR is_overlapping").select("pair").distinct().collect()
        if mixed:
            pairs = sorted({row.pair for row in mixed})
            job.tell(f"leaving out what came twice of {', '.join(pairs)}")
            of_pairs = bronze.records(copies.records_once(parsed, ranges)).where(F.col("pair").isin(*pairs))
            store.write(of_pairs, root, "bronze.records")
    finally:
        found.unpersist()
    job.aside = {leaf: part for leaf, part in aside.items() if _topic_of(leaf).startswith(_MARGIN)}
    store.clear(spark, root, "bronze.records", aside.keys() - job.aside.keys())
    kept = job.read("bronze.records")
    is_margin = F.col("topic").startswith(_MARGIN)
    if since is not None and job.aside:
        job.margin = kept.where(is_margin).withColumns(
            {"topic": F.substring("topic", len(_MARGIN) + 1, 100), "day": F.date_sub("day", 1)}
        )
    return kept.where(~is_margin)


def _with_older_aside(typed: DataFrame, since: dt.date) -> DataFrame:
    """Give what is older than ``since`` a topic of its own, and that day, so that it replaces no other."""
    is_older = F.col("day") < F.lit(since)
    begin_us = int(dt.datetime.combine(since, dt.time(), dt.UTC).timestamp()) * 1_000_000
    is_margin = is_older & F.col("topic").isin(*_OF_REQUESTS) & (F.col("at") >= begin_us - _MARGIN_US)
    topic = F.when(is_margin, F.concat(F.lit(_MARGIN), "topic")).when(is_older, _OUTSIDE)
    return typed.withColumns(
        {"topic": topic.otherwise(F.col("topic")), "day": F.greatest("day", F.lit(since))}
    )


def _topic_of(leaf: str) -> str:
    return leaf.rpartition("=")[2]


def _is_aside(topic: str) -> bool:
    """Whether a folder of this topic holds what the table of records does not keep."""
    return topic in (REJECTED, _OUTSIDE) or topic.startswith(_MARGIN)


def _why(job: _Job, aside: Mapping[str, Part]) -> str:
    """Why there is no record in what was read; what was written of it, ``aside``, is taken out again."""
    if not aside:
        return "the files are empty"
    parts = frozenset(aside.values())
    written = store.read(job.spark, job.root, "bronze.records", parts, more=REJECTION)
    rejected = _counts(written.where(F.col("topic") == REJECTED), "rejection")
    store.clear(job.spark, job.root, "bronze.records", aside)
    if not rejected:
        return "all are older than the day that the job is about"
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(rejected.items()))
    return f'none of their lines is one: {counts}. See docs/pipeline.md, "How lines are read"'


def _files(job: _Job, journals: Inputs, ranges: DataFrame, since: dt.date | None) -> None:
    """Write the table of files, after a second look at packed ones without a last record."""
    listing = journals.listing()
    found = copies.files(ranges, listing)
    doubtful = found.where((F.col("state") == "truncated") & (F.col("lines") > 0)).select("file").collect()
    packed = [row.file for row in doubtful if row.file.endswith(".gz")]
    if packed:
        found = copies.files(ranges, listing, journals.unpacked(packed))
    if since is not None:
        of_last = F.expr("date_from_unix_date(CAST(last_at_us DIV 86400000000 AS INT))")
        last_day = F.coalesce(of_last, F.col("day"))
        found = found.where(last_day >= F.lit(since)).withColumn("day", F.greatest("day", F.lit(since)))
    job.tell("writing bronze.files")
    store.replace(found, job.root, "bronze.files", job.seen)
    named = found.select("day", "pair").distinct().collect()
    job.seen |= frozenset((row.day, row.pair) for row in named)


def _with_right_clocks(
    job: _Job, records: DataFrame, facts: Mapping[str, Rows], clock_error_us: int
) -> list[dict[str, Any]]:
    """Rows of ``silver.runs``, where the times of machines whose clocks are wrong are put right."""
    runs = silver.runs(facts, job.earlier)
    links = silver.peer_links(facts, runs)
    sources: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        sources[silver.clock_of(run)][run["source"]] += 1
    of_several = "requests" in job.topics and job.topics & {"calls", "executions"}
    if of_several and len(sources) > 1:
        frame = frame_of(job.spark, runs, table_schema("silver.runs"))
        found = collected(silver.links(records, frame).limit(_LINKS_MAX))
        links += [clocks.Link(**row) for row in found]
    nodes = [clock for clock, counts in sources.items() if counts["broker"]]
    others = {clock: counts["client"] + counts["worker"] for clock, counts in sources.items()}
    off = clocks.wrong(sorted(links), nodes, others)
    for machine, (ahead_us, unsure_us) in off.items():
        if abs(ahead_us) > clock_error_us:
            job.tell(f"putting right the clock of machine {machine}, which is off by {ahead_us / 1e6:+.3f} s")
        if unsure_us > clock_error_us:
            job.tell(f"the clock of machine {machine} is unsure by {unsure_us / 1e6:.3f} s")
    return silver.corrected(runs, off)


def _services(job: _Job, records: DataFrame, slo: Objectives | None) -> None:
    """Write the tables that need nothing but records."""
    job.write("gold.clients", clients(records))
    sums = job.write("gold.sketches", sketches(records))
    job.write("gold.objectives", objectives(sums, slo))
    job.write("gold.budgets", budgets(sums, slo))
    job.write("gold.capacity", capacity(records))


def _requests(
    job: _Job, records: DataFrame, runs: DataFrame, clock_error_us: int, since: dt.date | None
) -> DataFrame:
    """Write the table of requests, by the way that suits what there are records of."""
    is_wanted = F.lit(True) if since is None else F.col("day") >= F.lit(since)
    if job.margin is not None:
        records = records.unionByName(job.margin.dropDuplicates(["boot", "seq", "mono"]))
    if {topic.removeprefix(_MARGIN) for topic in job.topics} & {"calls", "executions"}:
        found = silver.requests(records, runs, clock_error_us=clock_error_us)
        return job.write("silver.requests", found.where(is_wanted))
    job.tell("looking for requests with several records")
    again = silver.repeated(records).persist()
    try:
        are_few = again.count() <= _REPEATED_MAX
        found = silver.requests(records, runs, again if are_few else None)
        return job.write("silver.requests", found.where(is_wanted))
    finally:
        again.unpersist()


def _durables(
    job: _Job, records: DataFrame, runs: DataFrame, states: DataFrame, clock_error_us: int
) -> list[DataFrame]:
    """Write the table of durable requests; what the audit has to say of them, if there are any."""
    if "durables" not in job.topics:
        job.write("silver.durables", store.nothing(job.spark, table_schema("silver.durables")))
        return []
    durables = job.write("silver.durables", silver.durables(records, runs))
    return [durable_findings(durables, records, runs, states, clock_error_us)]


def _clamped(frame: DataFrame, scope: frozenset[Part]) -> DataFrame:
    """What the timeline puts before or after the days of the input is put into the first or the last of them.

    A row of another day would replace all that another job wrote for that day.
    """
    days_of: dict[str, list[dt.date]] = {}
    for day, pair in scope:
        days_of.setdefault(pair, []).append(day)
    # One CASE with a branch for each pair: one in the other, a hundred are too deep for a plan.
    clamped = F.when(F.lit(False), F.col("day"))
    for pair, days in days_of.items():
        in_range = F.greatest(F.least(F.col("day"), F.lit(max(days))), F.lit(min(days)))
        clamped = clamped.when(F.col("pair") == pair, in_range)
    return frame.withColumn("day", clamped.otherwise(F.col("day")))


def _counts(frame: DataFrame, column: str) -> dict[str, int]:
    return {row[0]: row[1] for row in frame.groupBy(column).count().collect()}
