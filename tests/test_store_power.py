"""The durable store on a disk that loses power, fills up and fails: what was told as synced is there, and the
store opens by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bstar_broker.store.check import check
from bstar_testing.processes import Process
from chaos.platter import Loss, records_of
from chaos.platter import Platter as PowerLog
from chaos.power import Disk, need_power, write
from support.store_child import table_after
from support.store_disk import Platter

pytestmark = pytest.mark.loopback

ENTRIES = 200
# The power fails at this many moments, evenly over all that the process did.
MOMENTS = 30


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    need_power()
    return Disk(tmp_path / "disk", tmp_path / "control")


@contextmanager
def writing(disk: Disk, *notes: Path) -> Iterator[Process]:
    """A process that writes to a store, and to the notes if they are given; in the block it has written some
    entries. Only the store can bear a disk that fails: then there are no notes.
    """
    argv = (sys.executable, "-m", "support.store_child", str(disk.directory / "store"), *map(str, notes))
    with Process("store", argv, folder=disk.directory.parent, environment=disk.variables) as process:
        process.wait_until(lambda: last_synced(process) >= ENTRIES, f"{ENTRIES} entries")
        yield process


def last_synced(process: Process) -> int:
    numbers = [int(line.split()[1]) for line in process.log().splitlines() if line.startswith("synced")]
    return numbers[-1] if numbers else 0


def errors(process: Process) -> list[str]:
    return [line for line in process.log().splitlines() if line.startswith("error")]


def goes_on(process: Process) -> None:
    """Wait until it has written more entries."""
    before = last_synced(process)
    process.wait_until(lambda: last_synced(process) > before + 50, "more entries")


def is_whole(folder: Path, synced: int) -> None:
    """The store in this folder opens, and has these entries and what the rules make of them."""
    with Platter(folder) as platter:
        opened = platter.opened
        assert opened.last.number >= synced
        assert opened.damage == ""
        assert platter.table() == table_after(opened.applied)
        if opened.last.number > opened.applied:
            platter.apply(opened.last.number)
    assert check(folder).findings == []


@pytest.mark.parametrize("loss", list(Loss))
def test_whenever_the_power_fails_what_was_synced_is_there(disk: Disk, tmp_path: Path, loss: Loss) -> None:
    with writing(disk, disk.directory / "notes") as process:
        process.kill()
    records = list(records_of(disk.log()))
    platter, notes, synced = PowerLog({}), -1, 0
    moments = set(range(0, len(records), max(1, len(records) // MOMENTS)))
    for number, record in enumerate(records):
        platter.play(record)
        if record.octets == b"notes":
            notes = record.file
        if record.kind == "W" and record.file == notes:
            synced += len(record.octets)
        if number in moments:
            write(tmp_path / "after", platter.after_power_loss(loss, seed=number))
            is_whole(tmp_path / "after" / "store", synced)
    assert synced >= ENTRIES


def test_a_sync_that_fails_loses_nothing_that_is_told_later(disk: Disk) -> None:
    with writing(disk) as process:
        disk.fail_syncs(1)
        process.wait_until(lambda: bool(errors(process)), "an error")
        goes_on(process)
        process.kill()
    synced = last_synced(process)
    disk.lose_power(Loss.EVERYTHING)
    is_whole(disk.directory / "store", synced)


def test_a_write_that_fails_is_made_again(disk: Disk) -> None:
    with writing(disk) as process:
        disk.fail_writes(1)
        process.wait_until(lambda: not disk.failing, "a failed write")
        goes_on(process)
        process.kill()
    synced = last_synced(process)
    disk.lose_power(Loss.SECTORS, seed=3)
    is_whole(disk.directory / "store", synced)


def test_a_full_disk_loses_nothing(disk: Disk) -> None:
    with writing(disk) as process:
        with disk.full():
            process.wait_until(lambda: bool(errors(process)), "an error")
        assert "is full" in errors(process)[0]
        goes_on(process)
        with disk.full(100_000):
            count = len(errors(process))
            process.wait_until(lambda: len(errors(process)) > count, "another error")
            process.kill()
    synced = last_synced(process)
    disk.lose_power(Loss.EVERYTHING)
    is_whole(disk.directory / "store", synced)


def test_a_disk_that_became_read_only_is_told_and_loses_nothing(disk: Disk) -> None:
    with writing(disk) as process:
        with disk.read_only():
            process.wait_until(lambda: bool(errors(process)), "an error")
        goes_on(process)
        process.kill()
    synced = last_synced(process)
    disk.lose_power(Loss.TAIL, seed=5)
    is_whole(disk.directory / "store", synced)
