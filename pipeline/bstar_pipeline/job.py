"""The batch job: new journals in, all tables of the days that they touch out.

A run parses what the tables do not have yet: files that no earlier run read, and files that were open and
have grown or are sealed now. Their records join those that ``bronze.records`` has of their days and pairs,
and all other tables of these are made anew. Each step is written before the next reads it, so nothing is
computed twice. Independent tables are written side by side, because Spark plans a query on one core. At the
end the run is committed (``bstar_pipeline.commits``): until then a reader sees the tables as they were.

Days of a pair are made from that of an hour before the first new record to its last one, since processes and
requests go on over midnight. Of two days before that the job reads records as well: they tell who the
processes are that go on, what had happened to them, and those of the last hour belong to requests of which
others have later ones. The incidents of the day before are written again if more is known of them.

The driver gets to know names of files, which days and pairs there are, counts, and of each pair the events
that change something and the times without an answer: few, whatever the traffic. No request comes to it.
"""

import datetime as dt
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal

import duckdb
import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the common name
from pyspark.sql.types import StructType

from bstar.errors import ConfigurationError
from bstar_pipeline import bronze, clocks, commits, copies, journal_files, parquet, silver, store
from bstar_pipeline.bronze import SHAPE, TRUNCATED
from bstar_pipeline.commits import OPEN, File, Manifest, Part
from bstar_pipeline.gold import incidents
from bstar_pipeline.gold.audit import audit
from bstar_pipeline.gold.capacity import capacity
from bstar_pipeline.gold.clients import clients
from bstar_pipeline.gold.durables import durable_findings
from bstar_pipeline.gold.history import CLOCK_ERROR_US
from bstar_pipeline.gold.nodes import process_findings
from bstar_pipeline.gold.objectives import budgets, objectives, sketches
from bstar_pipeline.partitions import Made, Row, Rows, Stored, grouped, queried
from bstar_pipeline.schema import RECORDS, REJECTED, table_schema
from bstar_pipeline.slo import Objectives
from bstar_pipeline.tables import utc

Progress = Callable[[str], None]
"""Gets a line of text when a step begins."""

_log = logging.getLogger(__name__)
# Requests take less, and clocks are less apart.
_MARGIN = dt.timedelta(hours=1)
# What is read of the days before.
_CONTEXT = dt.timedelta(days=2)
_DAY = dt.timedelta(days=1)
# The topics of records that are of single requests.
_OF_REQUESTS = ("requests", "calls", "executions")
_BRONZE = ("bronze.records", "bronze.rejected", "bronze.files")
# Between a listing and the opening files go every few minutes at most.
_LISTINGS_MAX = 3


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run read, and what is in the tables now (with ``since``, of that day and later ones).

    ``run`` is its name; of a run that found nothing new, that of the run before. ``read``: how many files it
    read. ``made``: the days and pairs that it made anew. ``engine`` is "local" or "spark", ``version`` what
    it calls itself. ``steps``: what was done, and the seconds until the next step began. ``files`` by state,
    ``rejected`` by reason, ``incidents`` by kind, ``findings`` of the audit by verdict. ``duplicates`` are
    records that were left out because they came in another file, too.
    """

    root: str
    run: str
    read: int
    made: tuple[Part, ...]
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

    spark: SparkSession | None
    writer: store.Writer
    progress: Progress | None
    began: float = field(default_factory=time.monotonic)
    journals: dict[str, int] = field(default_factory=dict)
    """The length of each that there is."""
    new: Sequence[str] = ()
    """Those that no run has read as they are."""
    scope: frozenset[Part] = frozenset()
    """The days and pairs that are made."""
    past: frozenset[Part] = frozenset()
    """All earlier ones of the same pairs."""
    seen: frozenset[Part] = frozenset()
    """Those of which there are new files, lines or incidents, and the scope."""
    unmade: frozenset[Part] = frozenset()
    """Those that have new records and are of before the day that the run is about."""
    topics: frozenset[str] = frozenset()
    """Of the records of the scope."""
    near: frozenset[Part] = frozenset()
    """Of these the ones of which records are read."""
    older: Stored | None = None
    """Their records."""
    margin: Stored | None = None
    """Records of single requests, of the last hour before the scope."""
    first_us: dict[str, int] = field(default_factory=dict)
    """When the first new record of each pair was written."""
    until_us: dict[str, int] = field(default_factory=dict)
    """When the last record of each pair was written that is in the tables."""
    steps: list[tuple[str, float]] = field(default_factory=list)
    """What began, and when."""

    def tell(self, text: str) -> None:
        _log.info("%s", text)
        self.steps.append((text, time.monotonic()))
        if self.progress is not None:
            self.progress(text)

    def took(self) -> tuple[tuple[str, float], ...]:
        """The steps and their seconds; of two that went on side by side, each until the next one began."""
        ends = [*(began for _, began in self.steps[1:]), time.monotonic()]
        return tuple((text, ended - began) for (text, began), ended in zip(self.steps, ends, strict=True))

    def make(self, name: str, *mades: Made, rows: Iterable[Row] = (), reaches_back: bool = False) -> Stored:
        """Write a table for the job's days and pairs, and give back what is there then.

        What the timeline puts before or after the days of the input is put into the first or the last of
        them: a row of another day would replace what another job wrote for it. ``reaches_back``: rows of days
        before come along, and are left out.
        """
        self.tell(f"writing {name}")
        days_of = _days_of(self.scope)
        day = store.of_pairs(
            {
                pair: f"greatest(least(day, DATE '{last}'), DATE '{first}')"
                for pair, (first, last) in days_of.items()
            }
        )
        clamped = [made.changed(f"day = {day}" if reaches_back else "true", day=day) for made in mades]
        more = []
        for row in rows:
            first, last = days_of[row["pair"]]
            more.append({**row, "day": max(min(row["day"], last), first)})
        self.writer.make(name, self.scope, *clamped, more=more)
        return self.read(name)

    def read(self, name: str, parts: frozenset[Part] | None = None) -> Stored:
        """What a table has of the scope, or of other days and pairs."""
        chosen = self.scope if parts is None else parts
        return store.stored(self.spark, self.writer.tables, name, chosen)

    def before(self, name: str, parts: frozenset[Part] | None = None) -> Stored:
        """What a table has of the days before the scope, or of some of these."""
        return store.stored(self.spark, self.writer.past, name, self.past if parts is None else parts)

    def stored(self, files: Iterable[File], shape: StructType = RECORDS) -> Stored:
        """These files of this run or an earlier one."""
        paths = map(self.writer.tables.path, files)
        return store.stored_files(self.spark, self.writer.tables, paths, shape)


def run(
    spark: SparkSession | None,
    inputs: Sequence[str],
    root: str,
    *,
    slo: Objectives | None = None,
    clock_error_us: int = CLOCK_ERROR_US,
    since: dt.date | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Read what is new in the journals at ``inputs`` (any paths of Spark) into the tables below ``root``.
    Without a session the local engine does it, of folders of this machine.

    ``since``: make no tables of days before this one, and open no file that was closed before it.

    Raises ConfigurationError if there is nothing to read, no record in what there is and no table yet, or
    another run at work below ``root``.
    """
    with store.writing(spark, root) as writer:
        job = _Job(spark, writer, progress)
        job.tell(f"reading journals at {', '.join(inputs)}")
        lines = _lines_of_new(job, inputs, since)
        if job.new or any(since is None or day >= since for day, _ in writer.before.unmade):
            records = _bronze(job, inputs, lines, since)
            if job.scope:
                _tables(job, records, slo, clock_error_us)
            made = _made(job)
            job.tell("committing")
            done = writer.commit(
                made=sorted(made, key=lambda one: one.part),
                read=writer.before.read | job.journals,
                unmade=sorted(job.unmade),
                until_us=writer.before.until_us | job.until_us,
            )
        else:
            done = writer.before
    return _summary(job, done, since, len(job.new))


def _lines_of_new(job: _Job, inputs: Sequence[str], since: dt.date | None) -> Sequence[File]:
    """Find the journals, and write what is new in them. They are listed anew if a file goes meanwhile.

    Writers seal open files and remove old ones.
    """
    before, attempt = job.writer.before.read, 1
    while True:
        try:
            job.journals = journal_files.find_files(job.spark, inputs, since)
            job.new = [path for path, length in job.journals.items() if before.get(path) != length]
            return _lines(job, job.new) if job.new else ()
        except (AnalysisException, FileNotFoundError) as error:
            if attempt == _LISTINGS_MAX or not journal_files.is_gone(error):
                raise
        attempt += 1
        job.tell("listing the journals anew: a file was sealed or removed meanwhile")


def _lines(job: _Job, files: Sequence[str]) -> list[File]:
    """Write a row for each line of journals, as ``bronze.read`` says, to files of the writer's run.

    Raises an error of which ``journal_files.is_gone`` says so if a file is gone since it was listed.
    """
    folder, run = commits.folder_named(job.writer.root), commits.folder_of(job.writer.run)
    copied: dict[str, str] = {}
    # Otherwise this process does not see the files that Spark listed.
    if job.spark is None or hasattr(job.spark, "_jvm"):
        copies_at = None if folder is None else folder / run / "open" / secrets.token_hex(8)
        copied = journal_files.copied(files, copies_at)
    opened = [copied.get(file, file) for file in files]
    target = None if folder is None else (folder.resolve(), f"{run}/lines")
    read = partial(bronze.on_executor, {copy: file for file, copy in copied.items()}, target)
    if job.spark is None:
        batches = read([journal_files.unopened(opened)])
        return [File(**row) for batch in batches for row in batch.to_pylist()]
    contents = journal_files.contents(job.spark, opened)
    if folder is None:
        rows = contents.mapInArrow(read, SHAPE).withColumn("journal", F.expr(bronze.JOURNAL))
        return job.writer.write_frame(rows, f"{run}/lines", ("topic", "journal"))
    return [File(**row) for row in contents.mapInArrow(read, parquet.WRITTEN).toArrow().to_pylist()]


def _tables(job: _Job, records: Stored, slo: Objectives | None, clock_error_us: int) -> None:
    """Write silver and gold of the scope."""
    with ThreadPoolExecutor(1, "services") as other:
        pending = other.submit(_services, job, records, slo)
        job.tell("looking for processes and what happened to them")
        facts, earlier = silver.facts(records, job.older)
        of_runs, off = _with_right_clocks(job, records, facts, earlier, clock_error_us)
        both = {what: [*earlier.get(what, ()), *facts.get(what, ())] for what in {*earlier, *facts}}
        of_both = silver.corrected(silver.runs(both), off)
        histories = silver.histories(both, of_both, clock_error_us)
        here = silver.histories_of(histories, of_runs)
        job.make("silver.runs", rows=of_runs)
        states = list(silver.states(here))
        job.make("silver.states", rows=states)
        found = silver.requests(records.joined(job.margin), of_runs, clock_error_us)
        requests = job.make("silver.requests", found, reaches_back=job.margin is not None)
        all_requests, all_records = requests, records
        if job.older is not None:
            all_requests = requests.joined(job.before("silver.requests", job.near))
            all_records = records.joined(job.older)
        seen = incidents.seen(all_requests, histories)
        further = _durables(job, records, of_runs, states, clock_error_us)
        of_processes = process_findings(facts, of_runs, here, clock_error_us)
        job.make("gold.audit", audit(requests, of_runs), *further, rows=of_processes)
        job.tell("counting what incidents touched")
        _incidents(job, seen, incidents.counts(seen, all_records, of_both, all_requests))
        pending.result()


def _incidents(job: _Job, seen: Sequence[dict[str, Any]], counts: Rows) -> None:
    """Write the incidents of the scope, and those of the day before it if more is known of them now."""
    name = "gold.incidents"
    known = grouped(queried(job.before(name, job.near).here, (), "FROM rows").collected(), "day", "pair")
    firsts = {pair: first for pair, (first, _) in _days_of(job.scope).items()}
    have_past = {pair for _, pair in job.past}
    here: list[Row] = []
    earlier: defaultdict[Part, list[Row]] = defaultdict(list)
    for row in incidents.incidents(seen, counts):
        if row["day"] >= firsts[row["pair"]] or row["pair"] not in have_past:
            here.append(row)
        # Whether a pair began then, days before that would tell.
        elif row["kind"] != "start":
            earlier[row["day"], row["pair"]].append(row)
    job.make(name, rows=here)
    columns = table_schema(name).names
    made = {one.part for one in job.writer.before.made}
    for part in {(first - _DAY, pair) for pair, first in firsts.items()} & job.near & made:
        rows = [*earlier[part], *(row for row in known[part] if row["kind"] == "start")]
        texts = [sorted(str([row[each] for each in columns]) for row in of) for of in (rows, known[part])]
        if texts[0] != texts[1]:
            job.tell(f"writing {name} of {part[0]} {part[1]}")
            job.writer.make(name, {part}, more=rows)
            job.seen |= {part}


_COUNTED = (
    ("records", "bronze.records", "''", "1"),
    ("requests", "silver.requests", "''", "1"),
    ("duplicates", "bronze.files", "''", "duplicates"),
    ("files", "bronze.files", "state", "1"),
    ("rejected", "bronze.rejected", "reason", "1"),
    ("incidents", "gold.incidents", "kind", "1"),
    ("findings", "gold.audit", "verdict", "1"),
)
"""Fields of ``commits.Made``: the table that is counted, by what, and for how many a row counts."""

_COUNTS = 'SELECT what, day, pair, key, sum("count")::BIGINT AS "count" FROM rows GROUP BY ALL'


def _made(job: _Job) -> list[commits.Made]:
    """What is in the tables now, by day and pair."""
    job.tell("counting")
    # Records that no table is made of yet do not count.
    rows = [
        job.read(table, job.scope if what == "records" else job.seen).take(
            f"'{what}' AS what", "day", "pair", f"{key} AS key", f"CAST({count} AS BIGINT) AS count"
        )
        for what, table, key, count in _COUNTED
    ]
    counts: defaultdict[tuple[Part, str], dict[str, int]] = defaultdict(dict)
    for row in queried(reduce(Stored.joined, rows).here, (), _COUNTS).summed(_COUNTS):
        counts[(row["day"], row["pair"]), row["what"]][row["key"]] = row["count"]
    made = {one.part: one for one in job.writer.before.made}
    for part in job.seen:
        new = {
            what: counts[part, what].get("", 0) if key == "''" else counts[part, what]
            for what, _, key, _ in _COUNTED
            if what != "records" or part in job.scope
        }
        made[part] = msgspec.structs.replace(made.get(part) or commits.Made(*part), **new)
    return list(made.values())


def _summary(job: _Job, manifest: Manifest, since: dt.date | None, read: int) -> Summary:
    made = [one for one in manifest.made if since is None or one.day >= since]
    counts: dict[str, Any] = {}
    for what, _, key, _ in _COUNTED:
        every = [getattr(one, what) for one in made]
        counts[what] = sum(every) if key == "''" else dict(sum(map(Counter, every), Counter()))
    return Summary(
        root=job.writer.root,
        run=manifest.run,
        read=read,
        made=tuple(sorted(job.scope)),
        parts=tuple(one.part for one in made if one.records),
        engine="local" if job.spark is None else "spark",
        version=f"DuckDB {duckdb.__version__}" if job.spark is None else f"Spark {job.spark.version}",
        steps=job.took(),
        took_s=time.monotonic() - job.began,
        **counts,
    )


def _bronze(job: _Job, inputs: Sequence[str], lines: Sequence[File], since: dt.date | None) -> Stored:
    """Write the first layer; returns the records of the scope, which it sets."""
    before, writer = job.writer.before, job.writer
    # What a file that was open had goes, if that file has grown, or is sealed and so another one by its name.
    sealed = {path.removesuffix(".gz") for path in job.journals if not path.endswith(OPEN)}
    again = {
        commits.journal_of(path)
        for path in before.read
        if path.endswith(OPEN) and (path in job.new or path.removesuffix(OPEN) in sealed)
    }
    kept = {
        name: [file for file in before.tables.get(name, []) if file.journal not in again] for name in _BRONZE
    }
    came = _sorted_out(job, lines, kept["bronze.records"]) if job.new else {}
    changed = {}
    for name in _BRONZE:
        files = [*kept[name], *came.get(name, [])]
        writer.keep(name, files)
        changed[name] = {file.part for file in {*before.tables.get(name, [])} ^ {*files}}
    records = writer.tables.manifest.tables["bronze.records"]
    if not records:
        raise ConfigurationError(f"no record in the journals at {', '.join(inputs)}: {_why(job)}")
    touched = changed["bronze.records"] | {*before.unmade}
    parts = {file.part for file in records}
    # A request of the last hour of a day may end on the next one.
    margin_us = _MARGIN // dt.timedelta(microseconds=1)
    begins = {(utc(first_us - margin_us).date(), pair) for pair, first_us in job.first_us.items()}
    before_midnight = {(day, pair) for day, pair in begins & parts if (day + _DAY, pair) in touched}
    firsts: dict[str, dt.date] = {}
    for day, pair in touched | before_midnight:
        if since is None or day >= since:
            firsts[pair] = min(day, firsts.get(pair, day))
    # A day that has no record any more is made empty.
    every = touched | parts
    job.scope = frozenset(part for part in every if firsts.get(part[1], dt.date.max) <= part[0])
    job.unmade = frozenset(touched - job.scope)
    job.seen = job.scope.union(*changed.values())
    of_scope = [file for file in records if file.part in job.scope]
    job.topics = frozenset(file.topic for file in of_scope)
    _context(job, records, firsts)
    return job.stored(of_scope)


def _context(job: _Job, records: Sequence[File], firsts: Mapping[str, dt.date]) -> None:
    """What the days before the scope say of its processes and requests."""
    job.past = frozenset(file.part for file in records if file.day < firsts.get(file.pair, dt.date.min))
    job.near = frozenset(part for part in job.past if firsts[part[1]] - part[0] <= _CONTEXT)
    older = [file for file in records if file.part in job.near]
    if not older:
        return
    job.older = job.stored(older)
    begins = {
        pair: str(int((dt.datetime.combine(day, dt.time(), dt.UTC) - _MARGIN).timestamp()) * 1_000_000)
        for pair, day in firsts.items()
    }
    is_near = f""""at" >= {store.of_pairs(begins)} AND topic IN {_OF_REQUESTS}"""
    job.margin = job.older.take(*RECORDS.names, where=is_near)
    job.topics |= {file.topic for file in older}


def _sorted_out(job: _Job, lines: Sequence[File], known: Sequence[File]) -> dict[str, list[File]]:
    """The files of the first layer with what new ``lines`` have, and no file that is ``known``.

    What is of days before the horizon is left out.
    """
    writer = job.writer
    read = job.stored(lines, SHAPE)
    job.tell("looking for files that came twice or lost their end")
    ranges = copies.ranges(read)
    _note_times(job, ranges)
    came = [file for file in lines if file.topic not in (REJECTED, TRUNCATED)]
    # A record that comes again is of the same day.
    parts, left = {file.part for file in came}, ranges
    old = job.stored((file for file in known if file.part in parts), SHAPE)
    pairs = copies.overlapping([*ranges, *(copies.ranges(old) if old.files else ())])
    if pairs:
        job.tell(f"leaving out what came twice of {', '.join(sorted(pairs))}")
        once = copies.once(read, ranges, pairs, old)
        again = writer.write(once, "bronze.records", by=("topic", "journal"))
        came = [*(file for file in came if file.pair not in pairs), *again]
        left = copies.ranges(job.stored(came, SHAPE))
    rows = list(copies.files(ranges, job.new, left))
    job.tell("writing bronze.files")
    named = ({**row, "journal": commits.journal_of(row["file"])} for row in rows)
    tables = {
        "bronze.records": came,
        "bronze.files": writer.write_rows(named, "bronze.files", by=("journal",)),
    }
    if any(file.topic == REJECTED for file in lines):
        job.tell("writing bronze.rejected")
        wholly = [row["file"] for row in rows if row["state"] == "duplicate"]
        rejected = bronze.rejected(read, wholly)
        tables["bronze.rejected"] = writer.write(rejected, "bronze.rejected", by=("journal",))
    horizon = writer.before.horizon
    return {name: [file for file in files if file.day >= horizon] for name, files in tables.items()}


def _note_times(job: _Job, ranges: Rows) -> None:
    """Set when the new records were written. What grew was read up to the last record known of its pair."""
    before = job.writer.before
    for row in (row for row in ranges if row["boot"] is not None):
        pair, file = row["pair"], row["file"]
        known_us = before.until_us.get(pair, 0)
        has_grown = file in before.read or file.removesuffix(".gz") + OPEN in before.read
        first_us = max(row["first_at_us"], known_us) if has_grown else row["first_at_us"]
        job.first_us[pair] = min(first_us, job.first_us.get(pair, first_us))
        job.until_us[pair] = max(row["last_at_us"], job.until_us.get(pair, known_us))


def _why(job: _Job) -> str:
    """Why there is no record in what was read."""
    rows = store.stored(job.spark, job.writer.tables, "bronze.rejected").take("reason", "1 AS count")
    query = 'SELECT reason, sum("count")::BIGINT AS "count" FROM rows GROUP BY reason ORDER BY reason'
    rejected = queried(rows, (), query).summed(query)
    if rejected:
        counts = ", ".join(f"{row['count']:,} {row['reason']}" for row in rejected)
        return f'none of their lines is one: {counts}. See docs/pipeline.md, "How lines are read"'
    horizon = job.writer.before.horizon
    if horizon > dt.date.min:
        return f"no record is of {horizon} or later, and earlier days were taken out"
    return "the files are empty"


def _with_right_clocks(
    job: _Job, records: Stored, facts: Mapping[str, Rows], earlier: Mapping[str, Rows], clock_error_us: int
) -> tuple[list[dict[str, Any]], Mapping[str, clocks.Off]]:
    """Rows of ``silver.runs``, where the times of machines whose clocks are wrong are put right; those."""
    runs = silver.runs(facts, earlier)
    links = silver.peer_links(facts, runs)
    sources: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        sources[silver.clock_of(run)][run["source"]] += 1
    of_several = "requests" in job.topics and job.topics & {"calls", "executions"}
    if of_several and len(sources) > 1:
        links += [clocks.Link(**row) for row in silver.links(records, runs).collected()]
    nodes = [clock for clock, counts in sources.items() if counts["broker"]]
    others = {clock: counts["client"] + counts["worker"] for clock, counts in sources.items()}
    off = clocks.wrong(sorted(links), nodes, others)
    for machine, (ahead_us, unsure_us) in off.items():
        if abs(ahead_us) > clock_error_us:
            job.tell(f"putting right the clock of machine {machine}, which is off by {ahead_us / 1e6:+.3f} s")
        if unsure_us > clock_error_us:
            job.tell(f"the clock of machine {machine} is unsure by {unsure_us / 1e6:.3f} s")
    return silver.corrected(runs, off), off


def _services(job: _Job, records: Stored, slo: Objectives | None) -> None:
    """Write the tables that need nothing but records, and of days before what those came to."""
    job.make("gold.clients", clients(records))
    sums = job.make("gold.sketches", sketches(records)).joined(job.before("gold.sketches"))
    job.make("gold.objectives", objectives(sums, slo), reaches_back=True)
    job.make("gold.budgets", budgets(sums, slo), reaches_back=True)
    job.make("gold.capacity", capacity(records, job.before("gold.capacity")), reaches_back=True)


def _durables(job: _Job, records: Stored, runs: Rows, states: Rows, clock_error_us: int) -> list[Made]:
    """Write the table of durable requests; what the audit has to say of them, if there are any."""
    if "durables" not in job.topics:
        job.make("silver.durables")
        return []
    durables = job.make("silver.durables", silver.durables(records, runs))
    return [durable_findings(durables, records, runs, states, clock_error_us)]


def _days_of(scope: frozenset[Part]) -> dict[str, tuple[dt.date, dt.date]]:
    """The first and the last day of each pair."""
    days_of: defaultdict[str, list[dt.date]] = defaultdict(list)
    for day, pair in scope:
        days_of[pair].append(day)
    return {pair: (min(days), max(days)) for pair, days in days_of.items()}
