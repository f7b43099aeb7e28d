"""The chaos tests' disks, under SQLite in real processes: a commit survives a power loss if it was synced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bstar_testing.processes import Process
from chaos.platter import Loss, Platter, records_of
from chaos.power import Disk, need_power, read, write
from support import rows

pytestmark = pytest.mark.loopback
COMMITS = 60


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    need_power()
    return Disk(tmp_path / "disk", tmp_path / "control")


@contextmanager
def committing(disk: Disk, synchronous: str, commits: int = COMMITS) -> Iterator[Process]:
    """A process that commits rows; in the block it has committed some."""
    argv = (sys.executable, "-m", "support.rows", str(disk.directory), synchronous)
    with Process("rows", argv, folder=disk.directory.parent, environment=disk.variables) as process:
        process.wait_until(lambda: len(process.log()) >= commits, f"{commits} commits")
        yield process


@pytest.mark.parametrize(("synchronous", "is_kept"), [("FULL", True), ("OFF", False)])
def test_a_commit_survives_the_loss_of_power_if_it_was_synced(
    disk: Disk, synchronous: str, is_kept: bool
) -> None:
    with committing(disk, synchronous) as process:
        process.kill()
    committed = len(process.log())
    disk.lose_power(Loss.EVERYTHING)
    left = rows.count(disk.directory) if (disk.directory / "rows.db").exists() else 0
    assert (left >= committed) == is_kept


def test_whenever_the_power_fails_all_commits_that_returned_are_there(disk: Disk, tmp_path: Path) -> None:
    """At each record of the log, with each way to lose things; torn writes included."""
    with committing(disk, "FULL", commits=12) as process:
        process.kill()
    platter, committed, notes, looked = Platter({}), 0, -1, 0
    place = tmp_path / "after"
    for number, record in enumerate(records_of(disk.log())):
        platter.play(record)
        if record.octets == rows.COMMITS.encode():
            notes = record.file
        committed += record.kind == "W" and record.file == notes
        for loss in (Loss.EVERYTHING, Loss.TAIL, Loss.SECTORS):
            write(place, platter.after_power_loss(loss, seed=number))
            assert rows.count(place) >= committed, f"record {number}, {loss}"
            looked += 1
    assert committed >= 12
    assert looked > 100


def test_a_process_that_was_killed_loses_nothing_while_the_power_stays(disk: Disk) -> None:
    with committing(disk, "OFF") as process:
        process.kill()
    assert rows.count(disk.directory) >= len(process.log())


def run(disk: Disk, code: str) -> str:
    """What a program prints; D is the directory."""
    head = f"import os, sys, mmap, time, errno; D = {str(disk.directory)!r}\n"
    argv = (sys.executable, "-c", head + code)
    made = subprocess.run(
        argv, env=os.environ | disk.variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return made.stdout.strip()


TRY = """
def attempt(what, *arguments):
    try:
        print(what(*arguments), end=" ")
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
"""


def test_a_full_disk_refuses_growth_and_nothing_else(disk: Disk) -> None:
    (disk.directory / "a").write_bytes(bytes(10))
    with disk.full(5):
        said = run(disk, TRY + """
f = os.open(D + "/a", os.O_RDWR)
attempt(os.pwrite, f, b"0123456789", 0)     # no growth
attempt(os.pwrite, f, b"012345", 10)        # 6
attempt(os.pwrite, f, b"01234", 10)         # 5: the rest of the room
attempt(os.pwrite, f, b"0", 15)
attempt(os.ftruncate, f, 14)                # gives one back
attempt(os.pwrite, f, b"0", 14)
attempt(os.fsync, f)
""")  # fmt: skip
    assert said == "10 ENOSPC 5 ENOSPC None 1 None"
    assert run(disk, TRY + 'attempt(os.pwrite, os.open(D + "/a", os.O_RDWR), bytes(99), 0)') == "99"


def test_a_read_only_disk_can_be_read(disk: Disk) -> None:
    (disk.directory / "a").write_bytes(b"content")
    with disk.read_only():
        said = run(disk, TRY + """
attempt(os.open, D + "/a", os.O_RDWR)
attempt(os.open, D + "/b", os.O_WRONLY | os.O_CREAT)
attempt(os.unlink, D + "/a")
attempt(os.rename, D + "/a", D + "/b")
attempt(os.read, os.open(D + "/a", os.O_RDONLY), 9)
""")  # fmt: skip
    assert said == "EROFS EROFS EROFS EROFS b'content'"


def test_syncs_and_writes_fail_as_often_as_wanted_and_a_sync_is_as_slow(disk: Disk) -> None:
    disk.fail_syncs(1)
    disk.fail_writes(1)
    with disk.slow(0.05):
        said = run(disk, TRY + """
f = os.open(D + "/a", os.O_RDWR | os.O_CREAT)
attempt(os.write, f, b"x")
attempt(os.write, f, b"x")
began = time.monotonic()
attempt(os.fsync, f)
attempt(os.fdatasync, f)
print(time.monotonic() - began >= 0.1)
""")  # fmt: skip
    assert said == "EIO 1 EIO None True"
    assert (disk.failing, disk.syncs, disk.octets) == (0, 2, 1)


def test_what_python_does_to_files_is_in_the_log(disk: Disk) -> None:
    """Copies, names relative to a directory, appending, copies of descriptors: nothing passes unseen."""
    (disk.directory / "old").write_bytes(b"old")
    disk.begin()
    run(disk, """
import shutil
from pathlib import Path
shutil.copyfile(D + "/old", D + "/copy")
os.chdir(D)
Path("text").write_text("one")
with open("text", "a") as file: file.write(" two")
folder = os.open(".", os.O_RDONLY)
f = os.open("made", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
g = os.dup(f)
os.close(f)
os.writev(g, [b"a", b"b"])
os.pwritev(g, [b"c"], 4)
os.truncate("old", 1)
os.replace("text", "moved")
os.mkdir("d")
with open("d/low", "wb") as file: file.write(b"low")
os.remove("copy")
for refused, to in ((os.link, "link"), (os.symlink, "link"), (os.rename, "../moved")):
    try: refused("moved", to)
    except OSError: pass
    else: sys.exit("done")
h = os.open("made", os.O_RDWR)
try: mmap.mmap(h, 4, flags=mmap.MAP_SHARED)
except OSError: pass
else: sys.exit("mapped")
r, w = os.pipe(); os.write(w, b"no file of the disk")
""")  # fmt: skip
    expected = {"old": b"o", "moved": b"one two", "made": b"ab\0\0c", "d/low": b"low"}
    disk.lose_power(Loss.NOTHING)
    assert read(disk.directory) == expected
