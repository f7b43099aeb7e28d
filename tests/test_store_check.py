"""``bstar store check``: what it says of a store that is whole, and of one that is damaged."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from bstar.errors import ConfigurationError
from bstar_broker.store.check import Report, check
from bstar_broker.store.core.commands import Answered, Cancelled
from bstar_broker.store.core.entries import Position
from bstar_broker.store.core.events import Import, Write, Written
from bstar_broker.store.core.records import Totals
from bstar_broker.store.wal_file import scan
from bstar_cli import exits
from bstar_cli.main import main
from bstar_cli.store import check_progress
from support.entries import entry, name, submit, submitted
from support.store_disk import Platter, mark

PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with 40 entries, 30 of them applied."""
    folder = tmp_path / "store"
    with Platter(folder) as platter:
        entries = [entry(number, submitted(submit(number, b"the body"))) for number in range(1, 39)]
        orders = (Answered(name(3), [b"yes"]), Cancelled(name(4)))
        platter.append(*entries, entry(39, *orders, epoch=2), entry(40, submitted(submit(40)), epoch=2))
        platter.put(Write(mark=mark()))
        platter.wait(Written)
        platter.apply(39)
    return folder


def spoil(folder: Path, statement: str) -> Report:
    """Change the database behind the store's back, and check it."""
    with closing(sqlite3.connect(folder / "store.db")) as database, database:
        database.execute(statement)
    return check(folder)


def texts(report: Report) -> list[str]:
    return [f"{finding.part}: {finding.text}" for finding in report.findings]


def test_a_whole_store_is_whole(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    report = check(folder)
    assert (report.findings, report.is_whole, report.was_closed) == ([], True, True)
    assert report.mark == mark()
    assert (report.first, report.last, report.applied) == (1, (2, 40), (2, 39))
    assert (report.epochs, report.log_entries) == ([(1, 1), (2, 39)], 40)
    assert report.totals == Totals(36, 1, 0, 1, 38 * 8 + 3)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_store_whose_process_was_killed_is_whole_and_its_wal_is_read(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Platter(folder) as platter:
        platter.append(entry(41, submitted(submit(41)), epoch=2))
        shutil.copytree(folder, copy)  # as the process would leave it
    report = check(copy)
    assert (report.findings, report.was_closed, report.last) == ([], False, (2, 41))
    with Platter(copy) as platter:
        assert platter.opened.last == (2, 41)


def test_a_part_of_a_copy_is_no_damage(folder: Path) -> None:
    with Platter(folder) as platter:
        records = platter.table()
        before = platter.opened
        platter.put(Import(True, records[:5], None))
        platter.wait(Written)
    report = check(folder)
    assert (report.findings, report.staged, report.totals.pending) == ([], 5, before.totals.pending)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "UPDATE log SET checksum = 0 WHERE number = 7",
            "log: log entry 7 is damaged: its checksum is wrong",
        ),
        ("DELETE FROM log WHERE number = 7", "log: log entry 8 follows entry 6: those between are missing"),
        (
            "DELETE FROM log WHERE number > 20",
            "log: the table is that after entry 39, and the log has 1 to 20",
        ),
        (
            "DELETE FROM epochs WHERE epoch = 2",
            "log: log entry 39 is of epoch 2, and the history of epochs says 1",
        ),
        (
            "UPDATE records SET checksum = 0 WHERE seq = 5 << 20",
            "records: record 5242880 is damaged: its checksum",
        ),
        (
            "UPDATE records SET service = x'00' WHERE seq = 5 << 20",
            "records: record 5242880 is damaged: it is not what its index",
        ),
        (
            "UPDATE records SET place = 2 WHERE seq = 5 << 20",
            "records: record 5242880 is damaged: it is not what its index says",
        ),
        ("DELETE FROM records WHERE seq = 5 << 20", "records: counted Totals(pending=35"),
        ("UPDATE meta SET checksum = 0 WHERE key = 'mark'", "marks: the store's mark is damaged"),
        ("UPDATE meta SET checksum = 0 WHERE key = 'state'", "marks: the store's state is damaged"),
    ],
)
def test_damage_is_named(folder: Path, statement: str, text: str) -> None:
    report = spoil(folder, statement)
    assert not report.is_whole
    assert any(found.startswith(text) for found in texts(report)), texts(report)


def test_damaged_records_and_entries_are_told_by_their_names(folder: Path) -> None:
    (finding,) = spoil(folder, "UPDATE records SET checksum = 0 WHERE seq = 5 << 20").findings[:1]
    assert finding.name == name(5).hex()
    found = spoil(folder, "UPDATE log SET checksum = 0 WHERE number = 7").findings
    assert "7" in [each.name for each in found]


def test_damaged_pages_are_found(folder: Path) -> None:
    with (folder / "store.db").open("r+b") as file:
        file.seek(3 * PAGE)
        file.write(b"\xff" * PAGE)
    assert "pages" in {finding.part for finding in check(folder).findings}


def test_a_missing_file_is_found(folder: Path) -> None:
    (folder / "store.lock").write_bytes(b"in use\n")  # another program has copied the WAL
    assert check(folder).findings == []
    (folder / "store.lock").unlink()
    assert check(folder).findings == []
    with closing(sqlite3.connect(folder / "store.db")) as database, database:
        database.execute("DELETE FROM meta WHERE key = 'sequence'")  # of an earlier release
    (folder / "store.lock").write_bytes(b"in use\n")
    assert any("store.db-wal is missing" in text for text in texts(check(folder)))
    (folder / "store.db").unlink()
    assert any("store.db is missing" in text for text in texts(check(folder)))


def test_a_hole_in_the_wal_is_found_and_a_torn_end_is_none(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Platter(folder) as platter:
        for number in range(41, 60):
            platter.append(entry(number, submitted(submit(number)), epoch=2))
        reach = (folder / "store.reach").read_bytes()
        platter.append(entry(60, submitted(submit(60)), epoch=2))
        shutil.copytree(folder, copy)
        # As if the process had died before its last commit was synced.
        (copy / "store.reach").write_bytes(reach)
    wal = copy / "store.db-wal"
    whole, frame = wal.read_bytes(), 24 + PAGE
    frames = scan(wal).frames
    assert frames > 19
    wal.write_bytes(whole[: 32 + frames * frame - 100])
    assert scan(wal) == (frames - 1, 0)
    assert check(copy).findings == []
    spoiled = bytearray(whole)
    spoiled[32 + 5 * frame + 24 + 50] ^= 1
    wal.write_bytes(spoiled)
    assert scan(wal) == (5, frames - 6)
    found = texts(check(copy))
    assert any(
        f"frame 6 of store.db-wal is damaged, and {frames - 6} frames behind it" in text for text in found
    )
    assert any("synced transactions are missing: the log had entry 59" in text for text in found)


def test_a_missing_or_damaged_claim_is_found(folder: Path) -> None:
    claim = folder / "store.reach"
    claim.write_bytes(b"\0" + claim.read_bytes()[1:])
    assert any("store.reach is damaged" in text for text in texts(check(folder)))
    claim.unlink()
    assert any("store.reach is missing" in text for text in texts(check(folder)))


def test_a_store_in_use_is_not_checked(folder: Path) -> None:
    with Platter(folder), pytest.raises(ConfigurationError, match="a process uses"):
        check(folder)


# --- the command --------------------------------------------------------------------------------------------


def test_a_check_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar on a terminal, and lines elsewhere."""
    heard: list[tuple[str, int, int]] = []
    large = tmp_path / "large"
    with Platter(large) as platter:
        for number in range(1, 4):
            platter.append(
                entry(number, submitted(*[submit(1_000 * number + place) for place in range(600)]))
            )
        platter.apply(3)
    assert check(large, lambda *news: heard.append(news)).findings == []
    assert [news for news in heard if news[0] == "records"] == [
        ("records", done, 1_800) for done in (500, 1_000, 1_500)
    ]
    with check_progress(Console(stderr=True, force_terminal=False), line_interval_s=0.0) as watch:
        watch("pages", 0, 0)
        watch("records", 500, 1_800)
    assert capsys.readouterr().err == "pages: under way\nrecords: 500 of 1800\n"
    shown = io.StringIO()
    with check_progress(Console(file=shown, force_terminal=True, width=100)) as watch:
        watch("pages", 0, 0)
        watch("records", 500, 1_800)
    assert "500/1800" in shown.getvalue()


def test_the_command_says_that_a_store_is_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", str(folder)]) == exits.OK
    said = capsys.readouterr().out
    for expected in (
        "of pair orders, primary: in sync",
        "log: 40 entries, 1 to 40 (epoch 2), 39 applied",
        "records: 36 pending, 1 answered, 0 dead, 1 cancelled",
        "whole\n",
    ):
        assert expected in said


def test_the_command_says_what_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(folder, "UPDATE records SET checksum = 0 WHERE seq = 5 << 20")
    assert main(["store", "check", str(folder)]) == exits.FAILED
    said = capsys.readouterr().out
    assert f"records {name(5).hex()}: record 5242880 is damaged: its checksum is wrong" in said
    assert "damaged: 2 findings" in said
    assert main(["store", "check", str(folder), "--json"]) == exits.FAILED
    found = json.loads(capsys.readouterr().out)
    assert (found["is_whole"], found["findings_count"]) == (False, 2)
    assert found["findings"][0]["name"] == name(5).hex()
    assert (found["last"], found["mark"]["store"]) == (list(Position(2, 40)), (b"s" * 16).hex())


def test_the_command_refuses_what_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", str(tmp_path)]) == exits.USAGE
    assert "holds no store" in capsys.readouterr().err
    assert main(["store", "check", str(tmp_path / "none")]) == exits.USAGE
