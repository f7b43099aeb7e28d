"""The disk of the durable store: what it answers in which order, and what it does when it fails."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bstar.errors import ClosedError, ConfigurationError
from bstar.wire.durable import State
from bstar_broker.store import disk as disk_module
from bstar_broker.store import sqlite_file
from bstar_broker.store import writer as writer_module
from bstar_broker.store.core.commands import Answered, Began, Cancelled, Closed
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import (
    Applied,
    Damaged,
    DiskOutput,
    Due,
    DueFound,
    Export,
    Exported,
    Find,
    Found,
    Import,
    LogRead,
    Opened,
    ReadLog,
    Rebuild,
    Replaced,
    Search,
    Trim,
    Write,
    Written,
)
from bstar_broker.store.core.records import Record, Totals
from bstar_broker.store.disk import Disk
from bstar_broker.store.reach_file import ReachFile
from bstar_broker.store.sqlite_log import SqliteLog
from bstar_broker.store.wal_file import scan
from bstar_testing.processes import wait_until
from support.entries import apply, entry, name, submit, submitted
from support.memory_table import MemoryTable
from support.store_disk import PAIR, HangingCommits, Platter, decoded, mark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def platter(folder: Path) -> Iterator[Platter]:
    with Platter(folder) as platter:
        yield platter


def numbered(number: int, epoch: int = 1) -> Entry:
    """An entry that submits a request of its own number."""
    return entry(number, submitted(submit(number)), epoch=epoch)


def state_of(record: Record | None) -> int:
    return State.UNKNOWN if record is None else record.state


# --- what it answers ----------------------------------------------------------------------------------------


def test_a_new_store_is_empty_and_for_its_user_alone(folder: Path, platter: Platter) -> None:
    opened = platter.opened
    assert (opened.mark, opened.last, opened.first, opened.applied, opened.at_ms) == (None, START, 1, 0, 0)
    assert (opened.epochs, opened.totals, opened.due) == ([], Totals(), {})
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_entries_are_applied_before_what_comes_with_them_is_synced(platter: Platter) -> None:
    platter.append(numbered(1))
    begin = len(platter.answers)
    platter.put(Write((numbered(2), numbered(3)), apply_to=1, order=7))
    platter.wait(Written)
    applied, written = platter.answers[begin:]
    assert isinstance(applied, Applied)
    assert (applied.number, [change.id for change in applied.changes]) == (1, [name(1)])
    assert applied.totals == Totals(pending=1, size_bytes=4)
    assert written == Written(Position(1, 3), 7)


def test_an_entry_is_not_applied_before_it_is_synced(platter: Platter) -> None:
    platter.put(Write((numbered(1), numbered(2)), apply_to=2))
    platter.wait(Applied, lambda applied: applied.number == 2)
    kinds = [type(answer).__name__ for answer in platter.answers[1:]]
    assert kinds == ["Written", "Applied", "Applied"]


def test_the_totals_of_an_answer_do_not_change_later(platter: Platter) -> None:
    first = platter.carry_out(1, submitted(submit(1)))
    platter.carry_out(2, submitted(submit(2)))
    assert first.totals.pending == 1


def test_what_was_dropped_is_replaced_and_never_applied(platter: Platter) -> None:
    platter.append(numbered(1), numbered(2), numbered(3))
    platter.put(Write((entry(2, submitted(submit(20)), epoch=2),), keep_to=1, apply_to=2))
    platter.wait(Applied, lambda applied: applied.number == 2)
    assert [state_of(platter.find(name(each))) for each in (1, 2, 3, 20)] == [1, 0, 0, 1]
    platter.put(ReadLog(1, 1 << 20, token=5))
    read = platter.wait(LogRead)
    assert [each.position for each in read.entries] == [(1, 1), (2, 2)]
    assert (read.begin, read.token) == (1, 5)


def test_an_order_to_apply_ends_with_the_entries_that_it_named(platter: Platter) -> None:
    """The leader's entry takes the place of one that another leader had committed for us to apply later."""
    platter.append(numbered(1))
    platter.put(Write(apply_to=2), Write(keep_to=1), Write((numbered(2, epoch=2),)))
    platter.wait(Written, lambda written: written.last == (2, 2))
    assert platter.find(name(2)) is None
    assert state_of(platter.find(name(1))) == State.PENDING


def test_epochs_are_remembered_beyond_the_log(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.append(numbered(1), numbered(2), numbered(3, epoch=4), numbered(4, epoch=7))
        platter.apply(4)
        platter.put(Trim(4), Write(mark=mark()))
        platter.wait(Written)
    with Platter(folder) as platter:
        assert platter.opened.epochs == [(1, 1), (4, 3), (7, 4)]
        assert (platter.opened.last, platter.opened.applied) == ((7, 4), 4)
        platter.append(numbered(5, epoch=9))
        platter.put(Write(keep_to=4))
        platter.wait(Written)
    with Platter(folder) as platter:
        assert platter.opened.epochs == [(1, 1), (4, 3), (7, 4)]


def test_a_store_is_found_as_it_was_left(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.carry_out(
            1, submitted(submit(1), submit(2, delay_ms=500), submit(3, service=b"stock", delay_ms=9))
        )
        platter.append(numbered(2))
        platter.put(Write(mark=mark(is_in_sync=False)))
        platter.wait(Written)
    with Platter(folder) as platter:
        opened = platter.opened
        assert opened.mark == mark(is_in_sync=False)
        assert (opened.last, opened.first, opened.applied, opened.at_ms) == ((1, 2), 1, 1, 2_000)
        assert opened.totals == Totals(pending=3, size_bytes=12)
        assert opened.due == {b"price": 0, b"stock": 1_009}
        assert state_of(platter.find(name(2))) == State.PENDING


def test_due_requests_come_by_priority_and_age_without_those_in_work(platter: Platter) -> None:
    rows = [submit(1), submit(2, priority=5), submit(3), submit(4, delay_ms=100), submit(5, service=b"stock")]
    platter.carry_out(1, submitted(*rows))
    platter.put(Due(b"price", 1_000, 10, 1 << 20))
    found = platter.wait(DueFound)
    assert ([each.id for each in found.records], found.has_more) == ([name(2), name(1), name(3)], False)
    assert (found.service, found.next_ms) == (b"price", 1_100)
    platter.put(Due(b"price", 1_100, 1, 1 << 20, skip=frozenset([name(2), name(1)])))
    found = platter.wait(DueFound)
    assert ([each.id for each in found.records], found.has_more, found.next_ms) == ([name(3)], True, 0)


def test_a_search_gets_its_records_in_order_a_page_at_a_time(
    platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bstar_broker.store.disk_jobs._ROWS_MAX", 3)  # several slices
    platter.carry_out(1, submitted(*[submit(number) for number in range(1, 21)]))
    platter.carry_out(2, *[Cancelled(name(number)) for number in range(2, 21, 2)])

    def search(after: int, limit: int, octets: int = 1 << 20) -> Found:
        platter.put(Search(b"price", State.CANCELLED, 0, after, limit, None, 9, octets))
        return platter.wait(Found)

    page = search(0, 4)
    assert ([each.id for each in page.records], page.has_more) == ([name(n) for n in (2, 4, 6, 8)], True)
    page = search(page.records[-1].seq, 6)
    assert ([each.id for each in page.records], page.has_more) == ([name(n) for n in range(10, 21, 2)], False)
    assert len(search(0, 10, octets=11).records) == 2
    assert len(search(0, 10, octets=1).records) == 1
    platter.put(Search(b"", 0, 1_000, 0, 10, None, 9))
    assert platter.wait(Found).records == []


def test_the_log_is_read_in_parts_and_not_where_it_was_trimmed(platter: Platter) -> None:
    platter.append(*[numbered(number) for number in range(1, 7)])
    platter.apply(5)
    platter.put(ReadLog(2, 2 * len(numbered(2).commands)), Trim(4), ReadLog(9, 100))
    assert [each.number for each in platter.wait(LogRead).entries] == [2, 3]
    assert platter.wait(LogRead).entries == []
    platter.put(Write(mark=mark()))
    platter.wait(Written)
    platter.put(ReadLog(3, 100))
    assert platter.wait(LogRead).entries == []
    platter.put(ReadLog(4, 1 << 20))
    assert [each.number for each in platter.wait(LogRead).entries] == [4, 5, 6]


def test_entries_that_are_not_applied_are_never_trimmed(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.append(*[numbered(number) for number in range(1, 5)])
        platter.apply(2)
        platter.put(Trim(4), Write(mark=mark()))
        platter.wait(Written)
    with Platter(folder) as platter:
        assert platter.opened.first == 3


def test_an_export_is_of_one_table_whatever_is_applied_meanwhile(platter: Platter) -> None:
    platter.carry_out(1, submitted(*[submit(number) for number in range(1, 6)]))
    platter.put(Export(0, 150))
    part = platter.wait(Exported)
    assert (len(part.records), part.is_last, part.applied, part.at_ms) == (2, False, (1, 1), 1_000)
    platter.carry_out(2, Closed([name(3)]), Cancelled(name(4)), submitted(submit(9)))
    platter.put(Export(part.after, 1 << 20))
    rest = platter.wait(Exported)
    assert [(each.id, each.state) for each in decoded(rest)] == [(name(n), State.PENDING) for n in (3, 4, 5)]
    assert (rest.is_last, rest.applied) == (True, (1, 1))
    assert [each.id for each in platter.table()] == [name(n) for n in (1, 2, 4, 5, 9)]


def test_a_table_is_imported_in_parts_with_its_history(folder: Path, tmp_path: Path) -> None:
    with Platter(tmp_path / "peer") as peer:
        peer.carry_out(1, submitted(*[submit(number) for number in range(1, 6)]), Answered(name(2), [b"yes"]))
        peer.carry_out(2, Began("backup"))
        records = peer.table()
    with Platter(folder) as platter:
        platter.append(numbered(1, epoch=8), numbered(2, epoch=8))
        platter.put(Import(True, records[:2], None))
        assert platter.wait(Written).last == (8, 2)
        platter.put(Import(False, records[2:], Position(5, 40), 9_000, (Position(1, 1), Position(5, 30)), 6))
        assert platter.wait(Replaced) == Replaced(Totals(pending=4, answered=1, size_bytes=23), {b"price": 0})
        assert platter.wait(Written) == Written(Position(5, 40), 6)
        assert platter.table() == records
        platter.append(numbered(41, epoch=5))
        platter.apply(41)
    with Platter(folder) as platter:
        opened = platter.opened
        assert (opened.last, opened.first, opened.applied) == ((5, 41), 41, 41)
        assert opened.epochs == [(1, 1), (5, 30)]
        assert opened.totals == Totals(pending=5, answered=1, size_bytes=4 * 6 + 3)


def test_the_old_copy_stays_until_the_new_one_is_whole(folder: Path) -> None:
    """The process ends in between: the parts are dropped, and a later copy takes the place."""
    with Platter(folder) as platter:
        platter.carry_out(1, submitted(*[submit(number) for number in range(1, 6)]))
        records = platter.table()
        platter.put(Import(True, records[:2], None))
        platter.put(Import(False, records[2:3], None))
        platter.wait(Written)
        assert platter.table() == records
    for _ in range(3):  # names of indices are used again
        with Platter(folder) as platter:
            assert platter.opened.last.number == platter.opened.applied == 1
            assert platter.opened.totals.pending == len(records)
            assert platter.table() == records
            platter.put(Import(True, records, Position(1, 1), 1_000, (Position(1, 1),)))
            platter.wait(Written)
            assert platter.table() == records


def test_a_copy_that_begins_again_drops_its_first_parts(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.carry_out(1, submitted(*[submit(number) for number in range(1, 6)]))
        records = platter.table()
        platter.put(Import(True, records[:4], None))
        platter.put(Import(True, records[:1], Position(3, 9), 1_000, (Position(3, 1),)))
        platter.wait(Written, lambda written: written.last == (3, 9))
        assert platter.table() == records[:1]
    with Platter(folder) as platter:
        assert platter.opened.totals.pending == 1


def test_an_entry_that_is_there_already_is_not_appended_twice(platter: Platter) -> None:
    platter.append(numbered(1), numbered(2))
    platter.put(Write((numbered(1), numbered(2), numbered(3)), apply_to=3))
    platter.wait(Applied, lambda applied: applied.number == 3)
    assert len(platter.table()) == 3


def test_orders_that_wait_together_share_a_sync(platter: Platter, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    commit = sqlite_file.StoreFile.commit

    def slow(file: sqlite_file.StoreFile) -> float:
        entered.set()
        assert go_on.wait(60)
        return commit(file)

    monkeypatch.setattr(sqlite_file.StoreFile, "commit", slow)
    platter.put(Write((numbered(1),)))
    assert entered.wait(60)
    for number in range(2, 50):
        platter.put(Write((numbered(number),)))
    go_on.set()
    platter.wait(Written, lambda written: written.last == (1, 49))
    assert sum(platter.disk.syncs.counts) == 2


def test_the_wal_is_emptied_so_the_file_has_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_WAL_BYTES_MAX", 1)
    monkeypatch.setattr(disk_module, "_WAL_IDLE_BYTES", 1)
    with Platter(folder) as platter:
        for number in range(1, 101):
            platter.carry_out(number, submitted(submit(number, b"x" * 10_000)))
        # It begins anew after each copy: it never holds all of them.
        assert (folder / "store.db-wal").stat().st_size < 500_000
    assert not (folder / "store.db-wal").exists()


def test_closing_carries_out_what_waits_and_is_idempotent(folder: Path) -> None:
    platter = Platter(folder)
    platter.put(*[Write((numbered(number),), order=number) for number in range(1, 100)])
    platter.close()
    platter.close()
    assert platter.answers[-1] == Written(Position(1, 99), 99)
    with pytest.raises(ClosedError):
        platter.put(Find(name(1), 1))


# --- what it does when the disk fails -----------------------------------------------------------------------


def test_a_full_disk_loses_nothing_and_goes_on_when_it_has_room(platter: Platter) -> None:
    platter.carry_out(1, submitted(submit(1)))
    database = platter.disk._file.database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    platter.put(Write((entry(2, submitted(submit(2, b"x" * 1_000_000))),), order=8))
    written = platter.wait(Written)
    assert (written.last, written.order) == ((1, 1), 0)
    assert "is full" in written.error
    assert "make room" in written.error
    assert platter.disk.error == written.error
    # Another order fails with it, and what is there is still read.
    platter.put(Write((numbered(3),), order=9), Find(name(1), 4))
    assert platter.wait(Found, lambda found: found.token == 4).records[0].id == name(1)
    assert platter.wait(Written).error
    database.execute("PRAGMA max_page_count = 1073741823")
    assert platter.wait(Written, lambda written: not written.error) == Written(Position(1, 3), 9)
    platter.apply(3)
    assert len(platter.table()) == 3
    assert (platter.disk.error, platter.disk.errors > 1) == ("", True)


def test_a_nearly_full_disk_is_logged_once(platter: Platter, caplog: pytest.LogCaptureFixture) -> None:
    """It takes small transactions and refuses large ones: two lines a second said so in turn."""
    caplog.set_level("WARNING", "bstar.store")
    platter.carry_out(1, submitted(submit(1)))
    database = platter.disk._file.database
    for number in (2, 3, 4):
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        platter.put(Write((entry(number, submitted(submit(number, b"x" * 1_000_000))),), order=number))
        assert platter.wait(Written).error
        database.execute("PRAGMA max_page_count = 1073741823")
        platter.wait(Written, lambda written: not written.error)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    platter.disk._figures.faults._clock = lambda: time.monotonic() + 60
    platter.put(Write((numbered(5),), order=5))
    platter.wait(Written)
    platter.put(Write((numbered(6),), order=6))
    platter.wait(Written)
    assert ["written again" in record.message for record in caplog.records] == [False, True]


def test_the_end_of_an_error_is_told_though_no_order_waits(
    platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the WAL is copied, between two orders."""
    sound = sqlite_file.StoreFile.checkpoint

    def fail_once(file: sqlite_file.StoreFile) -> int:
        monkeypatch.setattr(sqlite_file.StoreFile, "checkpoint", sound)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    monkeypatch.setattr(sqlite_file.StoreFile, "checkpoint", fail_once)
    monkeypatch.setattr(disk_module, "_WAL_IDLE_BYTES", 1)
    platter.put(Write((numbered(1),), order=1))
    assert "is full" in platter.wait(Written, lambda written: bool(written.error)).error
    assert platter.wait(Written, lambda written: not written.error) == Written(Position(1, 1), 1)


def test_a_disk_that_hangs_fails_until_it_answers(platter: Platter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower's disk hung, and the leader's acknowledgements waited for it for ever."""
    commits = HangingCommits(monkeypatch)
    platter.put(Write((numbered(1),), order=1))
    wait_until(lambda: platter.disk._is_at_work, "a turn begins")
    try:
        for _ in range(10):
            assert platter.disk.error == ""
            platter.disk.watch(0.5)
        platter.disk.watch(0.5)
        written = platter.wait(Written)
        assert (written.last, written.order) == (START, 0)
        assert "has not answered for 5 s" in written.error
        assert platter.disk.error == written.error
    finally:
        commits.answer()
    wait_until(lambda: not platter.disk.error, "it answers")
    platter.append(numbered(2))
    assert not any(answer.error for answer in platter.answers[-2:] if isinstance(answer, Written))


def test_a_disk_that_answers_or_rests_does_not_hang(platter: Platter) -> None:
    for number in range(1, 30):
        platter.append(numbered(number))
        platter.disk.watch(0.5)
    wait_until(lambda: not platter.disk._is_at_work, "the turn ends")
    for _ in range(30):
        platter.disk.watch(0.5)
    assert platter.disk.error == ""


class FailingCommits:
    """Every commit fails while ``error`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = ""
        commit = sqlite_file.StoreFile.commit

        def perhaps(file: sqlite_file.StoreFile) -> float:
            if self.error:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = self.error
                raise error
            return commit(file)

        monkeypatch.setattr(sqlite_file.StoreFile, "commit", perhaps)


@pytest.mark.parametrize("error", ["SQLITE_FULL", "SQLITE_IOERR_FSYNC", "SQLITE_READONLY"])
def test_results_are_handed_out_once_though_their_commit_fails(
    platter: Platter, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    platter.append(numbered(1), numbered(2))
    commits = FailingCommits(monkeypatch)
    commits.error = error
    platter.put(Write((numbered(3),), apply_to=2))
    assert platter.wait(Written).last == (1, 2)
    # Whatever is read meanwhile knows what was handed out.
    platter.put(Find(name(2), 5))
    commits.error = ""
    platter.wait(Written, lambda written: not written.error)
    assert state_of(platter.find(name(2))) == State.PENDING
    platter.apply(3)
    applied = [answer.number for answer in platter.answers if isinstance(answer, Applied)]
    assert applied == [1, 2, 3]
    found = [answer for answer in platter.answers if isinstance(answer, Found) and answer.token == 5]
    assert [state_of(each.records[0]) for each in found] == [State.PENDING]
    assert platter.disk.errors >= 1


def test_a_transaction_without_memory_is_tried_again(
    platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, failures = SqliteLog.append, [MemoryError(), MemoryError()]

    def perhaps(log: SqliteLog, entries: Sequence[Entry]) -> None:
        if failures:
            raise failures.pop()
        append(log, entries)

    monkeypatch.setattr(SqliteLog, "append", perhaps)
    platter.put(Write((numbered(1),)))
    assert "no memory" in platter.wait(Written, lambda written: bool(written.error)).error
    assert platter.wait(Written, lambda written: not written.error).last == (1, 1)
    assert platter.disk.errors == 2
    assert not platter.disk.has_ended


def test_after_a_failed_sync_everything_is_written_again(
    platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped what it could not write, and say nothing of it at the next sync."""
    commits = FailingCommits(monkeypatch)
    calls: list[str] = []
    sync_all = sqlite_file.StoreFile.sync_all

    def noted(file: sqlite_file.StoreFile) -> None:
        calls.append("all")
        sync_all(file)

    monkeypatch.setattr(sqlite_file.StoreFile, "sync_all", noted)
    commits.error = "SQLITE_IOERR_FSYNC"
    platter.put(Write((numbered(1),)))
    assert "has failed" in platter.wait(Written).error
    assert calls == []
    commits.error = ""
    platter.wait(Written, lambda written: not written.error)
    assert calls == ["all"]
    monkeypatch.undo()


def test_a_damaged_entry_stops_the_store_before_it(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.append(*[numbered(number) for number in range(1, 5)])
    with closing(sqlite3.connect(folder / "store.db")) as database, database:
        database.execute("UPDATE log SET commands = x'90' WHERE number = 3")
    with Platter(folder) as platter:
        platter.put(ReadLog(1, 1 << 20))
        assert [each.number for each in platter.wait(LogRead).entries] == [1, 2]
        platter.put(Write(apply_to=4))
        written = platter.wait(Written)
        assert "log entry 3 is damaged" in written.error
        assert "log entry 3 is damaged" in platter.disk.damage
        applied = [answer.number for answer in platter.answers if isinstance(answer, Applied)]
        assert applied == [1, 2]


def test_a_damaged_record_is_told_and_others_are_served(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.carry_out(1, submitted(submit(1), submit(2)))
    with closing(sqlite3.connect(folder / "store.db")) as database, database:
        database.execute("UPDATE records SET checksum = checksum + 1 WHERE id = ?", (name(1),))
    with Platter(folder) as platter:
        platter.put(Find(name(1), 1))
        found = platter.wait(Found)
        assert (found.records, "its checksum is wrong" in found.error) == ([], True)
        platter.put(Due(b"price", 9_000, 10, 1 << 20))
        assert [each.id for each in platter.wait(DueFound).records] == [name(2)]
        assert platter.disk.damaged == 1


def test_a_fault_of_the_program_is_told(platter: Platter) -> None:
    platter.append(numbered(1))
    platter.put(Write((numbered(3),)))
    written = platter.wait(Written)
    assert "a fault of this program" in written.error
    assert "restart" in platter.disk.error
    assert platter.disk.file_bytes() > 0
    wait_until(lambda: platter.disk.has_ended, "the thread has ended")


def test_a_closed_disk_has_not_ended_by_itself(platter: Platter) -> None:
    assert not platter.disk.has_ended
    platter.close()
    assert not platter.disk.has_ended


def test_records_that_wait_for_the_loop_are_bounded_in_octets(
    platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for them at once. The disk does not rest while it may read more."""
    take, rests = disk_module._Orders.take, list[float]()

    def noted(orders: disk_module._Orders, wait_s: float) -> list[DiskOutput]:
        if platter.disk._waiting:
            rests.append(wait_s)
        return take(orders, wait_s)

    monkeypatch.setattr(disk_module._Orders, "take", noted)
    body = bytes(1 << 20)
    for number in range(1, 4):
        platter.carry_out(number, submitted(submit(number, body=body)))
    platter.disk.take()
    platter.put(*(Find(name(1 + token % 3), token) for token in range(60)))
    tokens: list[int] = []
    most = 0
    # A loop that is late: the disk has done what it may before anything is taken.
    answers, all_bytes = platter.disk._answers, 60 << 20
    wait_until(lambda: disk_module._RETRY_S in rests or answers._size_bytes >= all_bytes, "the disk rests")

    def has_all() -> bool:
        wait_until(lambda: answers._size_bytes or len(tokens) == 60, "some are read")
        found = [answer for answer in platter.disk.take() if isinstance(answer, Found)]
        nonlocal most
        most = max(most, sum(record.size_bytes for answer in found for record in answer.records))
        tokens.extend(answer.token for answer in found)
        return len(tokens) == 60

    wait_until(has_all, "all are answered")
    assert tokens == list(range(60)), "in order, each once"
    assert set(rests) <= {0.0, disk_module._RETRY_S}
    assert most <= disk_module._FOUND_BYTES_MAX + writer_module._FOUND_BYTES_MAX + (1 << 21)


# --- opening ------------------------------------------------------------------------------------------------


def opening(folder: Path) -> Disk:
    return Disk(folder, pair=PAIR, wake=lambda: None)


def test_two_processes_never_share_a_store(folder: Path, platter: Platter) -> None:
    with pytest.raises(ConfigurationError, match="another process uses"):
        opening(folder)


def test_a_store_of_another_pair_is_refused(folder: Path) -> None:
    with Platter(folder) as platter:
        platter.put(Write(mark=mark()))
        platter.wait(Written)
    with pytest.raises(ConfigurationError, match=r"that of pair 'orders', and this node belongs to 'stock'"):
        Disk(folder, pair="stock", wake=lambda: None)
    opening(folder).close()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"store\.directory: cannot write to"):
        opening(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o500)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        opening(folder)


def written_store(folder: Path) -> None:
    """A store with 400 requests and a mark in sync, as a killed process leaves it: beside ``folder``, in
    ``folder``-killed, with what it had synced.
    """
    with Platter(folder) as platter:
        platter.put(Write(mark=mark()))
        for number in range(1, 5):
            platter.carry_out(number, submitted(*[submit(100 * number + place) for place in range(100)]))
        platter.append(numbered(5))
        shutil.copytree(folder, killed(folder))


def killed(folder: Path) -> Path:
    return folder.with_name("store-killed")


def test_a_killed_process_leaves_a_whole_copy(folder: Path) -> None:
    written_store(folder)
    with Platter(killed(folder)) as platter:
        assert (platter.opened.damage, platter.opened.last) == ("", (1, 5))


def test_a_torn_end_of_the_wal_that_nobody_acknowledged_is_no_damage(folder: Path) -> None:
    written_store(folder)
    with Platter(killed(folder)):
        claim = (killed(folder) / "store.reach").read_bytes()
    shutil.rmtree(killed(folder))
    with Platter(folder) as platter:
        claim = (folder / "store.reach").read_bytes()
        platter.append(numbered(6))
        shutil.copytree(folder, killed(folder))
    (killed(folder) / "store.reach").write_bytes(claim)
    wal = killed(folder) / "store.db-wal"
    end = 32 + scan(wal).frames * (24 + 4096)
    with wal.open("r+b") as file:
        file.seek(end - 100)
        file.write(bytes(100))
    with Platter(killed(folder)) as platter:
        assert (platter.opened.damage, platter.opened.last) == ("", (1, 5))


@pytest.mark.parametrize("number", [0.3, 0.9])
def test_a_bit_of_the_wal_that_was_synced_is_missed(folder: Path, number: float) -> None:
    written_store(folder)
    wal = killed(folder) / "store.db-wal"
    content = bytearray(wal.read_bytes())
    content[32 + int(scan(wal).frames * number) * (24 + 4096) + 700] ^= 1
    wal.write_bytes(content)
    for _ in range(2):  # a restart knows it, too
        with Platter(killed(folder)) as platter:
            opened = platter.opened
            assert "synced transactions are missing: the log had entry 5" in opened.damage
            assert opened.last.number < 5
            assert opened.must == (1, 5)
            assert opened.mark == mark(is_in_sync=False)
            assert platter.disk.damaged == 1


def older(folder: Path, name: str) -> None:
    """An older file takes the place of one."""
    kept = folder.with_name("older") / name
    shutil.copy(kept, folder / name)


@pytest.mark.parametrize("what", ["store.db", "store.db-wal", "store.reach"])
def test_an_older_file_is_missed_unless_it_only_claims_less(folder: Path, what: str) -> None:
    written_store(folder)
    shutil.move(killed(folder), folder.with_name("older"))
    with Platter(folder) as platter:
        for number in range(6, 60):
            platter.append(numbered(number))
        platter.apply(20)
        platter.put(Write(apply_to=59))
        platter.wait(Applied, lambda applied: applied.number == 59)
        shutil.copytree(folder, killed(folder))
    older(killed(folder), what)
    with Platter(killed(folder)) as platter:
        assert (platter.opened.damage == "") is (what == "store.reach")


def test_an_older_database_under_a_newer_wal_is_missed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL has the number of the last transaction and no page of the log. So what is there fits together,
    and 54 entries are missing. The file counts as too large for a check of the whole.
    """
    monkeypatch.setattr(sqlite_file, "_CHECKED_BYTES_MAX", 0)
    written_store(folder)
    old = (folder / "store.db").read_bytes()
    with Platter(folder) as platter:
        platter.append(*(numbered(number) for number in range(6, 60)))
    shutil.rmtree(killed(folder))
    with Platter(folder) as platter:
        platter.put(Write(mark=mark()))
        platter.wait(Written)
        shutil.copytree(folder, killed(folder))
    (killed(folder) / "store.db").write_bytes(old)
    with Platter(killed(folder)) as platter:
        assert "is an older file, or another's" in platter.opened.damage
        assert (platter.opened.last, platter.opened.must) == ((1, 5), (1, 59))


def test_a_wal_of_a_store_that_was_here_before_is_missed(folder: Path) -> None:
    """A rebuilt copy counts its transactions from 1: the WAL of before has greater numbers."""
    written_store(folder)
    spoil_index(folder)
    with Platter(folder) as platter:
        platter.wait(Damaged)
        platter.put(Rebuild(mark(is_in_sync=False)))
        platter.wait(Opened)
        platter.put(Write((numbered(1),), mark=mark()))
        platter.wait(Written, lambda written: written.last == (1, 1))
    shutil.copy(killed(folder) / "store.db-wal", folder / "store.db-wal")
    with Platter(folder) as platter:
        assert "is of another store, or of one that was here before" in platter.opened.damage


def test_a_missing_claim_is_damage_and_that_of_an_earlier_release_is_not(folder: Path) -> None:
    written_store(folder)
    (folder / "store.reach").unlink()
    with Platter(folder) as platter:
        assert "store.reach is missing" in platter.opened.damage
    with closing(sqlite3.connect(killed(folder) / "store.db")) as database, database:
        database.execute("DELETE FROM meta WHERE key = 'sequence'")
    (killed(folder) / "store.reach").unlink()
    (killed(folder) / "store.lock").write_bytes(b"closed\n")
    with Platter(killed(folder)) as platter:
        assert platter.opened.damage == ""


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda path: path.unlink(), "store.db is missing"),
        (lambda path: path.write_bytes(b"x" * 8192), "is no SQLite database"),
        (lambda path: path.write_bytes(path.read_bytes()[:4096]), "is damaged"),
    ],
)
def test_files_that_cannot_be_opened_are_set_aside_and_the_empty_copy_is_no_new_store(
    folder: Path, what: Callable[[Path], object], text: str
) -> None:
    written_store(folder)
    what(folder / "store.db")
    for _ in range(2):
        with Platter(folder) as platter:
            opened = platter.opened
            assert text in opened.damage
            assert (opened.mark, opened.last, opened.must) == (mark(is_in_sync=False), START, (1, 5))
            assert text in platter.disk.damage
    assert (folder / "damaged").is_dir()


def test_a_missing_wal_is_told_after_a_crash(folder: Path) -> None:
    written_store(folder)
    (killed(folder) / "store.db-wal").unlink()
    with Platter(killed(folder)) as platter:
        assert platter.opened.damage
    # Another program has copied it into the database: nothing is missing.
    (folder / "store.lock").write_bytes(b"in use\n")
    with Platter(folder) as platter:
        assert platter.opened.damage == ""


def test_a_damaged_mark_is_that_of_before(folder: Path) -> None:
    written_store(folder)
    with closing(sqlite3.connect(folder / "store.db")) as database, database:
        database.execute("UPDATE meta SET checksum = 7 WHERE key = 'mark'")
    with Platter(folder) as platter:
        assert "the store's mark is damaged" in platter.opened.damage
        assert platter.opened.mark == mark(is_in_sync=False)


def spoil_index(folder: Path) -> None:
    """Change one id in the index of ids, and nothing else."""
    path = folder / "store.db"
    content = bytearray(path.read_bytes())
    for begin in range(4096, len(content), 4096):
        at = content[begin : begin + 4096].find(name(250)) if content[begin] == 10 else -1
        if at >= 0:
            content[begin + at + 15] ^= 0x40
    path.write_bytes(content)


def test_damage_in_an_index_is_found_before_unknown_is_said(folder: Path) -> None:
    """The store was closed well, so no check at opening looks for it."""
    written_store(folder)
    spoil_index(folder)
    with Platter(folder) as platter:
        platter.put(Find(name(250), 5))
        found = platter.wait(Found)
        assert (found.records, "this copy is damaged" in found.error) == ([], True)
        assert (
            "the index by_id lacks it"
            in next(each for each in platter.answers if isinstance(each, Damaged)).text
        )
        assert platter.find(name(249)) is not None
    with Platter(folder) as platter:
        assert "the index by_id lacks it" in platter.opened.damage


def test_the_check_goes_on_while_the_store_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bstar_broker.store.disk_jobs.SCRUB_INTERVAL_S", 0.01)
    written_store(folder)
    with Platter(folder) as platter:
        assert platter.find(name(999)) is None  # the first pass is over
        with closing(sqlite3.connect(folder / "store.db")) as database, database:
            database.execute("UPDATE records SET owner = 'somebody' WHERE id = ?", (name(250),))
        assert "it is not what its index says" in platter.wait(Damaged).text


def test_a_rebuilt_copy_is_empty_until_it_is_in_sync(folder: Path) -> None:
    written_store(folder)
    spoil_index(folder)
    with Platter(folder) as platter:
        platter.wait(Damaged)
        platter.put(Write((numbered(6),)), Rebuild(mark(is_in_sync=False)))
        opened = platter.wait(Opened)
        assert (opened.last, opened.damage, opened.mark) == (START, "", mark(is_in_sync=False))
        assert "lacks it" in platter.disk.damage
        assert (folder / "damaged" / "store.db").exists()
        platter.append(numbered(1))
        platter.put(Write(mark=mark()))
        platter.wait(Written)
        assert (platter.disk.damage, platter.disk.repairs) == ("", 1)
        assert "lacks it" in platter.disk.repaired
        assert not (folder / "damaged").exists()


def test_a_rebuilt_copy_counts_its_transactions_on(folder: Path) -> None:
    written_store(folder)
    spoil_index(folder)
    with Platter(folder) as platter:
        platter.wait(Damaged)
        platter.put(Write((numbered(6),)))
        platter.wait(Written)
        assert (before := platter.disk.commits) > 0
        platter.put(Rebuild(mark(is_in_sync=False)))
        platter.wait(Opened)
        assert platter.disk.commits >= before


class NoRoom:
    """This step of the file finds the disk full until ``end``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, step: str) -> None:
        self._is_full = True
        sound = getattr(kind, step)

        def perhaps(*args: object, **options: object) -> object:
            if self._is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return sound(*args, **options)

        monkeypatch.setattr(kind, step, perhaps)

    def end(self) -> None:
        self._is_full = False


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (ReachFile, "note"),
        (Path, "rename"),
        (sqlite_file.StoreFolder, "forget"),
        (sqlite_file.StoreFile, "_make"),
        (sqlite_file.StoreFile, "checkpoint"),
        (sqlite_file.StoreFile, "reached"),
    ],
)
def test_a_full_disk_puts_off_the_empty_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type, step: str, restarts: bool
) -> None:
    written_store(folder)
    spoil_index(folder)
    with Platter(folder) as platter:
        platter.wait(Damaged)
        full = NoRoom(monkeypatch, kind, step)
        platter.put(Rebuild(mark(is_in_sync=False)))
        written = platter.wait(Written, lambda written: bool(written.error))
        assert written.error.startswith(f"the disk of {folder} is full")
        assert platter.disk.error == written.error
        assert "lacks it" in platter.disk.damage
        if not restarts:
            full.end()
            opened = platter.wait(Opened)
            assert (opened.last, opened.damage, platter.disk.error) == (START, "", "")
            platter.append(numbered(1))
    full.end()
    with Platter(folder) as platter:
        assert platter.disk.damage
        assert platter.opened.mark == mark(is_in_sync=False)


@pytest.mark.parametrize(("kind", "step"), [(ReachFile, "sync"), (shutil, "rmtree")])
def test_a_full_disk_does_not_end_the_store_that_is_in_sync_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type, step: str
) -> None:
    written_store(folder)
    spoil_index(folder)
    with Platter(folder) as platter:
        platter.wait(Damaged)
        platter.put(Rebuild(mark(is_in_sync=False)))
        platter.wait(Opened)
        full = NoRoom(monkeypatch, kind, step)
        platter.put(Write(mark=mark(), order=1))
        written = platter.wait(Written)
        assert written.error.startswith(f"the disk of {folder} is full" if step == "sync" else "")
        full.end()
        platter.put(Write((numbered(1),), order=2))
        assert platter.wait(Written, lambda written: not written.error).last == (1, 1)
        assert (platter.disk.damage, platter.disk.repairs) == ("", 1)
    with Platter(folder) as platter:
        assert platter.opened.damage == ""


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder: Path) -> None:
    moved(folder)
    shutil.copytree(folder.with_name("elsewhere"), folder)


def database_removed(folder: Path) -> None:
    (folder / "store.db").unlink()


def wal_removed(folder: Path) -> None:
    (folder / "store.db-wal").unlink()


@pytest.mark.parametrize("lose", [removed, moved, replaced, database_removed, wal_removed])
def test_files_that_are_removed_while_they_are_written_are_damage_and_the_copy_begins_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None]
) -> None:
    """What is written to such files ends with the process."""
    monkeypatch.setattr(disk_module, "_LOOK_INTERVAL_S", 0.01)
    with Platter(folder) as platter:
        platter.put(Write((numbered(1), numbered(2)), mark=mark()))
        platter.wait(Written)
        lose(folder)
        assert "was removed or replaced while the store was in use" in platter.wait(Damaged).text
        assert platter.disk.damage
        platter.put(Rebuild(mark(is_in_sync=False)))
        opened = platter.wait(Opened)
        assert (opened.last, opened.must, opened.damage) == (START, (1, 2), "")
        platter.put(Write((numbered(1), numbered(2), numbered(3)), mark=mark(), apply_to=3))
        platter.wait(Applied, lambda applied: applied.number == 3)
        assert (platter.disk.damage, platter.disk.repairs) == ("", 1)
        with pytest.raises(ConfigurationError, match="another process uses"):
            sqlite_file.StoreFolder(folder)
    with Platter(folder) as platter:
        assert (platter.opened.damage, platter.opened.last) == ("", (1, 3))
        assert platter.find(name(3)) is not None


def test_damage_is_reported_though_it_cannot_be_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_store(folder)
    with Platter(folder) as platter:
        with closing(sqlite3.connect(folder / "store.db")) as database, database:
            database.execute("UPDATE records SET checksum = 7 WHERE id = ?", (name(250),))
        full = NoRoom(monkeypatch, ReachFile, "note")
        platter.put(Find(name(250), 1))
        assert "its checksum is wrong" in platter.wait(Damaged).text
        full.end()
        platter.append(numbered(6))
    with Platter(folder) as platter:
        assert "its checksum is wrong" in platter.opened.damage


def test_an_operator_goes_on_from_a_damaged_copy(folder: Path) -> None:
    written_store(folder)
    (folder / "store.reach").unlink()
    with Platter(folder) as platter:
        platter.put(Write(mark=mark(), is_mended=True))
        platter.wait(Written)
        assert platter.disk.damage == ""
    with Platter(folder) as platter:
        assert (platter.opened.damage, platter.opened.mark) == ("", mark())


def test_damage_is_found_after_a_crash_each_time(folder: Path) -> None:
    written_store(folder)
    path = folder / "store.db"
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'by_id'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 64)
    (folder / "store.lock").write_bytes(b"unsure\n")
    for _ in range(2):
        with Platter(folder) as platter:
            assert platter.opened.damage


def test_a_store_of_another_format_is_refused(folder: Path) -> None:
    Platter(folder).close()
    with closing(sqlite_file.StoreFile(folder)) as file:
        file.put("format", 3)
    with pytest.raises(ConfigurationError, match="has the format 3, and this program reads 1 and 2"):
        opening(folder)


def test_a_beginning_that_was_interrupted_begins_again(folder: Path) -> None:
    folder.mkdir()
    (folder / "store.lock").write_bytes(b"")
    with closing(sqlite3.connect(folder / "store.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE half (a)")
    with Platter(folder) as platter:
        platter.carry_out(1, submitted(submit(1)))


def test_the_table_after_a_restart_is_that_of_the_rules(folder: Path) -> None:
    memory = MemoryTable()
    entries = [numbered(number) for number in range(1, 30)]
    entries.append(entry(30, Closed([name(4)]), Answered(name(5), [b"yes"]), Cancelled(name(6))))
    for each in entries:
        apply(memory, each)
    with Platter(folder) as platter:
        platter.append(*entries)
        platter.apply(17)
    with Platter(folder) as platter:
        assert platter.opened.applied == 17
        platter.apply(30)
        assert platter.table() == sorted(memory.records.values(), key=lambda record: record.seq)


def test_it_looks_for_the_oldest_pending_request_while_nobody_asks_for_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "_LOOK_INTERVAL_S", 0.01)
    with Platter(folder) as platter:
        platter.append(entry(1, submitted(submit(1))))
        platter.apply(1)
        wait_until(lambda: platter.disk.oldest_due_ms == 1_000, "the disk has looked")


def test_a_store_is_in_use_only_when_a_crash_cannot_take_its_files_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of database and WAL, and of a new directory, are synced before the lock file says so."""
    synced: list[Path] = []
    sync, write = os.fsync, os.pwrite

    def note_sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    def note_write(descriptor: int, text: bytes, offset: int) -> int:
        if text == sqlite_file.IN_USE:
            assert folder in synced
            assert folder.parent in synced
            synced.clear()
        return write(descriptor, text, offset)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "pwrite", note_write)
    with closing(sqlite_file.StoreFolder(folder)) as made:
        made.note(sqlite_file.IN_USE)
        assert synced == [folder / "store.lock"]
