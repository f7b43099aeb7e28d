"""The batch job, from journals to all tables: right numbers whatever is wrong with the input, the same twice.

Two runs over one folder of journals (a run is what takes the time), looked at with DuckDB. The first is about
two days of one pair and one of another, with all that can be wrong with files. The second is about the last
day alone: of the first pair the files that were open are sealed now, of the other one nothing is new. A third
one reads in another place at once what those two read.
"""

from __future__ import annotations

import datetime as dt
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from bstar import records
from bstar.errors import ConfigurationError
from bstar_pipeline.commits import Folder, Part, open_snapshot
from bstar_pipeline.tables import TABLES
from support import committed
from support.journals import AT_US, Run, write

if TYPE_CHECKING:
    from bstar_pipeline.job import Summary

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

S = 1_000_000
HOUR_US = 3_600 * S
DAYS = (dt.date(2026, 11, 2), dt.date(2026, 11, 3))
WRITTEN = list(TABLES)
# Of each day: how many requests there are, how many of them in the first file of each process, and how many
# are on disk while the second is still written.
REQUESTS, IN_FIRST, SO_FAR = 30, 20, 25
# Records of a backup, of which a file that is cut off lacks a part.
MISSED = 600

Rows = list[tuple[Any, ...]]
OPENED, STOCK, NIGHT = (DAYS[1], "orders"), (DAYS[1], "stock"), (DAYS[1], "night")
PARTS = ((DAYS[0], "orders"), OPENED, STOCK)


def _noon(day: int) -> int:
    """After the beginning of the tests' time."""
    return day * 24 * HOUR_US + 12 * HOUR_US


def _boot(letter: str, day: int, pair: str) -> str:
    return f"{letter}{day}{pair[0].encode().hex()}".ljust(32, "0")


def _served(day: int, pair: str) -> list[tuple[Run, int]]:
    """A primary that serves, its client and worker; each with how many of its records its first file has."""
    noon = _noon(day)
    primary, client, worker = (
        Run(node, boot=_boot(letter, day, pair), pair=pair)
        for letter, node in (("a", "primary"), ("c", "client"), ("d", "worker"))
    )
    primary.start(noon)
    client.start(noon, source="client")
    worker.start(noon, source="worker", service="echo")
    primary.state(noon + S, "PRIMARY", "ACTIVE", "PEER_BACKUP")
    primary.add(records.Activated, noon + S, epoch=1, text="The backup waits.")
    ends = []
    for number in range(REQUESTS):
        if number == IN_FIRST:
            for run in (primary, client, worker):
                run.add(records.SegmentClosed, noon + 30 * S, lines=len(run.records))
                ends.append((run, len(run.records)))
        at = noon + (2 + number) * S
        # For a while the wall clock of their machine is three hours slow.
        step_us = -3 * HOUR_US if 10 <= number < 15 else 0
        primary.request(at, f"c{day}", number, step_us=step_us)
        client.call(at + 100, f"c{day}", number, reply_crc=number, step_us=step_us)
        worker.execution(at - 100, f"c{day}", number, reply_crc=number, step_us=step_us)
    for run, end in ends:
        run.add(records.Stopped, noon + 60 * S, reason="SIGTERM")
        run.add(records.SegmentClosed, noon + 60 * S, lines=len(run.records) - end)
    return ends


def _backup(day: int, pair: str) -> tuple[Run, int]:
    """It waits, and writes much before its second file begins."""
    noon = _noon(day)
    backup = Run("backup", boot=_boot("b", day, pair), pair=pair)
    backup.start(noon)
    backup.state(noon + S, "BACKUP", "PASSIVE", "PEER_ACTIVE", epoch=1)
    for number in range(MISSED):
        backup.add(records.PeerRejected, noon + 2 * S + number, reason="pair", text=f"{number * 7919:x}")
    end = len(backup.records)
    backup.add(records.Pulse, noon + 40 * S, state="PASSIVE", epoch=1, workers=0, queued=0, in_flight=0)
    backup.add(records.Stopped, noon + 60 * S, reason="SIGTERM")
    backup.add(records.SegmentClosed, noon + 60 * S, lines=2)
    return backup, end


def _write_night(folder: Path) -> None:
    """Processes that began the day before, and requests around midnight, whose client is 50 ms behind."""
    noon, midnight = _noon(0), 24 * HOUR_US
    primary, worker, idle = (
        Run(node, boot=_boot(letter, 0, "night"), pair="night")
        for letter, node in (("a", "primary"), ("d", "worker"), ("b", "idle"))
    )
    client = Run("client", boot=_boot("c", 0, "night"), pair="night", machine="behind", at_us=AT_US - 50_000)
    primary.start(noon)
    client.start(noon, source="client")
    worker.start(noon, source="worker", service="echo")
    idle.start(noon, source="worker", service="rare")
    primary.state(noon + S, "PRIMARY", "ACTIVE", "PEER_BACKUP")
    primary.add(records.Activated, noon + S, epoch=1, text="The backup waits.")
    # Long before; the node before and the client after midnight; the other way round; and long after.
    for number, (at, told_at) in enumerate(
        (
            (-HOUR_US // 2, -HOUR_US // 2 + 5_000),
            (-10_000, 60_000),
            (20_000, 25_000),
            (HOUR_US, HOUR_US + 5_000),
        )
    ):
        worker.execution(midnight + at - 100, "n", number, reply_crc=number)
        primary.request(midnight + at, "n", number)
        client.call(midnight + told_at, "n", number, reply_crc=number, total_us=told_at - at + 1_500)
    for run in (primary, client, worker, idle):
        run.add(records.Stopped, midnight + 2 * HOUR_US, reason="SIGTERM")
        first = 1 if run is idle else 0
        run.add(records.SegmentClosed, midnight + 2 * HOUR_US, lines=len(run.records) - first)
        # The first file of the one that had nothing to do is gone.
        write(folder / run.name(1 + first, ".ndjson", f"{DAYS[0]:%Y%m%d}T120000Z"), run.lines()[first:])


def _write(folder: Path, day: int, pair: str = "orders", *, is_sealed: bool = True) -> int:
    """The files of a day; of a packed one half is gone. Returns how many lines can still be read of that."""
    stamp = f"{DAYS[day]:%Y%m%d}T120000Z"
    for run, end in _served(day, pair):
        first, second = run.lines()[:end], run.lines()[end:]
        write(folder / run.name(1, ".ndjson.gz", stamp), first)
        is_open = folder / run.name(2, ".ndjson.open", stamp)
        if is_sealed:
            is_open.unlink(missing_ok=True)
            write(folder / run.name(2, ".ndjson.gz", stamp), second)
        else:
            there = SO_FAR - IN_FIRST
            write(is_open, second[:there], torn=second[there][:30])
        if run.node == "primary":
            # The same again under another name, and as it was once while it was written.
            write(folder / "copies" / f"copy.{run.name(1, '.ndjson', stamp)}", first)
            write(folder / "copies" / run.name(1, ".ndjson.open", stamp), first[:9], torn=first[9][:30])
    backup, end = _backup(day, pair)
    packed = gzip.compress(b"".join(line + b"\n" for line in backup.lines()[:end]), mtime=0)
    (folder / backup.name(1, ".ndjson.gz", stamp)).write_bytes(packed[: len(packed) // 2])
    # A field and a kind that this program does not know, of its own version.
    novel = [line.replace(b'"kind":"pulse"', b'"kind":"novel","hue":1') for line in backup.lines()[end:]]
    write(folder / backup.name(2, ".ndjson.gz", stamp), novel)
    # An earlier run of the primary that was killed: its successor packed what it had left, torn as it was.
    killed = Run("primary", boot=_boot("e", day, pair), pair=pair)
    killed.start(_noon(day) - 60 * S)
    killed.add(records.Pulse, _noon(day) - 50 * S, state="PRIMARY", epoch=0, workers=0, queued=0, in_flight=0)
    write(folder / killed.name(1, ".ndjson.gz", stamp), killed.lines(), torn=b'{"kind":"pu')
    # What a newer program wrote, and a line that nothing wrote.
    newer = Run("worker-2", boot=_boot("f", day, pair), pair=pair)
    newer.start(_noon(day), source="worker")
    newer.execution(_noon(day) + S, "c", 1)
    lines = [line.replace(b'"v":1', b'"v":2') for line in newer.lines()]
    write(folder / newer.name(1, ".ndjson", stamp), [*lines, b"garbage"])
    (folder / newer.name(2, ".ndjson", stamp)).write_bytes(b"")
    (folder / "nothing here").mkdir(exist_ok=True)
    return _lines_before_the_cut(packed)


def _lines_before_the_cut(packed: bytes) -> int:
    return zlib.decompressobj(wbits=31).decompress(packed[: len(packed) // 2]).count(b"\n")


def rows(root: Path, name: str, sql: str = "SELECT * FROM it", where: str = "pair <> 'night'") -> Rows:
    """What ``sql`` finds in a table, as ``it``; every column counts for the order."""
    it = f"WITH it AS (FROM {committed.files(root, name)} WHERE {where}) "
    return duckdb.execute(f"{it} SELECT * FROM ({sql}) ORDER BY ALL").fetchall()


def all_rows(root: Path) -> dict[str, Rows]:
    """Of each table; those without a row have no file."""
    tables = open_snapshot(Folder(root), str(root))
    return {name: rows(root, name) if tables.files(name) else [] for name in WRITTEN}


def files_of(root: Path, part: Part) -> dict[str, int]:
    """When each file of a day and pair was written."""
    tables = open_snapshot(Folder(root), str(root))
    return {path: Path(path).stat().st_mtime_ns for name in WRITTEN for path in tables.files(name, [part])}


@dataclass(frozen=True)
class Done:
    """Both jobs. ``tables``: each table after the first and after the second; ``untouched``: files of two
    days and pairs after each. ``third``: the second again. ``fresh``: each table of a job that reads at once
    what those two read. ``readable``: lines left of each cut file.
    """

    root: Path
    first: Summary
    second: Summary
    third: Summary
    fresh: dict[str, Rows]
    tables: tuple[dict[str, Rows], dict[str, Rows]]
    untouched: tuple[dict[str, int], dict[str, int]]
    told: list[str]
    readable: list[int]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    from bstar_pipeline import job

    journals, root = tmp_path_factory.mktemp("journals"), tmp_path_factory.mktemp("tables")
    readable = [_write(journals, 0), _write(journals, 1, is_sealed=False), _write(journals, 1, "stock")]
    told: list[str] = []
    first = job.run(None, [str(journals)], str(root), progress=told.append)
    tables, files = all_rows(root), files_of(root, PARTS[0]) | files_of(root, STOCK)
    _write(journals, 1)
    # Some of the files are named twice.
    night = tmp_path_factory.mktemp("night")
    _write_night(night)
    again = [str(journals / "copies"), f"{journals}/*.gz", str(journals), str(night)]
    second = job.run(None, again, str(root), since=DAYS[1])
    after = files_of(root, PARTS[0]) | files_of(root, STOCK)
    third = job.run(None, again, str(root), since=DAYS[1])
    at_once = tmp_path_factory.mktemp("at once")
    job.run(None, again, str(at_once))
    return Done(
        root,
        first,
        second,
        third,
        all_rows(at_once),
        (tables, all_rows(root)),
        (files, after),
        told,
        readable,
    )


def test_whatever_is_wrong_with_the_input_is_counted(done: Done) -> None:
    first = done.first
    assert first.parts == PARTS
    # Of each day: the first files of three processes and the backup's second; a killed run's and two of the
    # newer program; and the second files of three, which one day has open.
    assert first.files == {"whole": 3 * 4 + 2 * 3, "open": 3 * 3 + 3, "duplicate": 3 * 2, "truncated": 3}
    # Garbage, and what a kill tore; the last line of an open file. What copies have is in the original, too.
    assert first.rejected == {"unreadable": 3 * 2 + 3, "newer-version": 3 * 2}
    of_first_file = 1 + 2 + IN_FIRST + 1
    assert first.duplicates == 3 * (of_first_file + 9)
    cut = rows(done.root, "bronze.files", "SELECT node, lines, last_seq FROM it WHERE state = 'truncated'")
    assert cut == [("backup", count, count) for count in sorted(done.readable)]
    assert 100 < cut[0][1] <= cut[-1][1] < MISSED


def test_the_rest_is_right(done: Done) -> None:
    assert done.first.requests == 2 * REQUESTS + SO_FAR
    assert done.first.records == len(done.tables[0]["bronze.records"])
    sql = "SELECT DISTINCT outcome, evidence, answers, executions, unmarked FROM it"
    assert rows(done.root, "silver.requests", sql) == [("answered", 7, 1, 1, 0)]
    twice = "SELECT boot, seq FROM it GROUP BY ALL HAVING count(*) > 1"
    assert rows(done.root, "bronze.records", twice) == []
    counted = "SELECT day, pair, sum(requests) FROM it GROUP BY ALL"
    for name in ("gold.objectives", "gold.clients", "gold.budgets"):
        assert rows(done.root, name, counted) == [(*part, REQUESTS) for part in PARTS]
    novel = "SELECT topic, count(*) FROM it WHERE kind = 'novel' GROUP BY topic"
    assert rows(done.root, "bronze.records", novel) == [("events", 3)]


def test_a_step_of_the_clock_moves_nothing_on_the_timeline(done: Done) -> None:
    sql = "SELECT day, pair, min(accepted_at_us), max(ended_at_us) FROM it GROUP BY ALL"
    noons = [AT_US + _noon(DAYS.index(day)) for day, _ in PARTS]
    assert rows(done.root, "silver.requests", sql) == [
        (*part, noon + 2 * S - 1_000, noon + (1 + REQUESTS) * S + 100)
        for part, noon in zip(PARTS, noons, strict=True)
    ]


def test_a_killed_node_is_a_crash_and_a_file_that_was_cut_is_none(done: Done) -> None:
    sql = "SELECT kind, node, count(*) FROM it GROUP BY ALL"
    assert rows(done.root, "gold.incidents", sql) == [
        ("crash", "primary", 3),
        ("start", "primary", 3),
        ("stop", "backup", 3),
        ("stop", "primary", 3),
    ]
    # What the cut took is missing, and nothing else.
    missing = "SELECT node, missing FROM it WHERE missing > 0"
    end = _backup(0, "orders")[1]
    assert rows(done.root, "silver.runs", missing) == [
        ("backup", end - count) for count in sorted(done.readable, reverse=True)
    ]


def test_the_audit_finds_no_violation_and_says_what_it_cannot_prove(done: Done) -> None:
    assert done.second.verdict == "unproven"
    assert rows(done.root, "gold.audit", "SELECT verdict, text, count(*) FROM it GROUP BY ALL") == [
        ("unproven", "broker backup: records that it wrote are not here", 3),
        ("unproven", "broker primary ended without a word: its last records may be missing", 3),
    ]


def test_a_run_reads_what_is_new_and_makes_the_days_that_it_touches(done: Done) -> None:
    second = done.second
    assert second.made == (NIGHT, OPENED)
    # Of each process of a pair the file that was open and is sealed, and the files of the night.
    assert second.read == 3 + 4
    assert second.parts == (NIGHT, OPENED, STOCK)
    assert second.requests == 2 * REQUESTS + 3
    # All but one of the night begin on the day before.
    assert second.files == {"whole": 2 * 7 + 1, "open": 2 * 3, "duplicate": 2 * 2, "truncated": 2}
    assert second.rejected == {"unreadable": 2 * 2, "newer-version": 2 * 2}


def test_the_files_of_other_days_are_the_very_same(done: Done) -> None:
    before, after = done.untouched
    assert before == after
    assert len(before) >= 2 * (len(WRITTEN) - 2)  # no load, no durable request


def test_what_is_read_in_two_runs_gives_the_tables_of_one(done: Done) -> None:
    for name in WRITTEN:
        told, fresh = ({repr(row) for row in tables[name]} for tables in (done.tables[1], done.fresh))
        assert told ^ fresh == set(), name


def test_a_run_without_anything_new_leaves_the_tables_as_they_are(done: Done) -> None:
    third = done.third
    assert (third.run, third.read, third.made) == (done.second.run, 0, ())
    assert (third.parts, third.requests, third.verdict) == (
        done.second.parts,
        done.second.requests,
        done.second.verdict,
    )


def test_since_a_day_a_request_over_midnight_is_whole_and_who_began_before_is_known(done: Done) -> None:
    def night(name: str, columns: str) -> Rows:
        return rows(done.root, name, f"SELECT DISTINCT {columns} FROM it", "pair = 'night'")

    assert night("silver.requests", "day, number, outcome, evidence") == [
        (DAYS[1], number, "answered", 7) for number in (1, 2, 3)
    ]
    assert night("silver.runs", 'node, source, "before", missing') == [
        ("client", "client", 0, 0),
        ("idle", "unknown", 1, 0),
        ("primary", "broker", 0, 0),
        ("worker", "worker", 0, 0),
    ]
    lacking = "unknown idle: records that it wrote before its first one here are not here"
    assert night("gold.audit", "verdict, text") == [
        ("unproven", "the journal of the peer of primary is not here"),
        ("unproven", lacking),
    ]
    assert night("gold.incidents", "kind, node") == [("stop", "primary")]
    assert night("bronze.records", "topic") == [("calls",), ("events",), ("executions",), ("requests",)]


def test_the_job_tells_what_it_does(done: Done) -> None:
    assert done.told[0].startswith("reading journals at")
    assert {name for name in WRITTEN if f"writing {name}" in done.told} == {*WRITTEN} - {"bronze.records"}


@pytest.mark.parametrize(
    ("requests", "findings", "verdict"),
    [
        (0, {}, "empty"),
        (0, {"unproven": 1}, "empty"),
        (0, {"violated": 1}, "violated"),
        (1, {}, "passed"),
        (1, {"excused": 1}, "passed"),
        (1, {"excused": 1, "unproven": 1}, "unproven"),
        (1, {"unproven": 1, "violated": 1}, "violated"),
    ],
)
def test_a_job_without_a_request_has_passed_nothing(
    requests: int, findings: dict[str, int], verdict: str
) -> None:
    from bstar_pipeline.job import Summary

    summary = Summary("", "", 0, (), (), 1, requests, 0, {}, {}, {}, findings, "local", "DuckDB", (), 0.0)
    assert summary.verdict == verdict


def test_input_without_a_record_is_an_error_that_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    from bstar_pipeline import job

    root = tmp_path / "tables"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "blank" / "x.ndjson", [])
    write(tmp_path / "garbage" / "x.ndjson", [b"garbage", b'{"v":2,"kind":"request"}', b"1"])
    for given, why in (
        (["empty"], "empty holds no file named"),
        (["nowhere"], "nowhere does not exist"),
        (["garbage", "nowhere"], "nowhere does not exist"),
        (["blank"], "blank: the files are empty"),
        (["garbage"], "garbage: none of their lines is one: 1 newer-version, 2 unreadable. See docs"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            job.run(None, [str(tmp_path / name) for name in given], str(root))
    assert [path for path in root.rglob("*") if path.is_file()] == [root / "writing.lock"]


def test_days_that_were_taken_out_do_not_come_back_with_files_that_are_sealed_later(tmp_path: Path) -> None:
    from bstar_pipeline import job, store

    journals, root = tmp_path / "journals", tmp_path / "tables"
    _write(journals, 0, is_sealed=False)
    _write(journals, 1, is_sealed=False)
    assert job.run(None, [str(journals)], str(root)).parts == (PARTS[0], OPENED)
    assert store.retain(None, str(root), DAYS[1]) == 1
    _write(journals, 0)
    _write(journals, 1)
    _write(journals, 0, "stock")
    sealed = job.run(None, [str(journals)], str(root))
    assert (sealed.made, sealed.parts) == ((OPENED,), (OPENED,))
    assert sealed.requests == REQUESTS
    days = {
        file.day
        for files in open_snapshot(Folder(root), str(root)).manifest.tables.values()
        for file in files
    }
    assert days == {DAYS[1]}
    # An earlier date brings nothing back.
    assert store.retain(None, str(root), DAYS[0]) == 0
    write(journals / "late.ndjson", _backup(0, "stock")[0].lines())
    assert job.run(None, [str(journals)], str(root)).made == ()


def test_the_local_engine_does_not_note_in_which_line_of_python_an_operation_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark would look for IPython at each of them, in vain: a third of the time of a small run."""
    from pyspark.errors import utils

    monkeypatch.setattr(utils, "_enable_debugging_cache", None)
    assert not utils.is_debugging_enabled()
