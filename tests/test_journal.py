"""The journal's writer, turn by turn: its thread is not started, its clocks and its disk are the test's."""

import errno
import fcntl
import gzip
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar import records
from bstar.base.sampling import EVERYTHING, is_sampled, limit_of
from bstar.errors import ConfigurationError
from bstar.journal import Journal, JournalOptions, SegmentName
from bstar.journal.clocks import Anchor
from bstar.journal.segments import Disk, Segment
from bstar.records import (
    Claimed,
    ClockStepped,
    Dropped,
    PeerLost,
    Record,
    Request,
    SegmentClosed,
    Started,
    Stopped,
)

BOOT = "0123456789abcdef" * 2
CLIENT = "c1" * 16


class Clocks:
    """The machine's: 1000 s since it was started, which was on a day in 2026."""

    def __init__(self) -> None:
        self.mono_s = 1_000.0
        self.wall_s = 1_780_000_000.0

    def mono(self) -> int:
        return round(self.mono_s * 1e9)

    def wall(self) -> int:
        return round(self.wall_s * 1e9)

    def pass_(self, seconds: float) -> None:
        self.mono_s += seconds
        self.wall_s += seconds


class BadDisk(Disk):
    """Takes ``room`` bytes, then fails as it is told to."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error = errno.ENOSPC
        self.opens: int | None = None
        self.renames: int | None = None
        self.theirs: Path | None = None

    def open(self, path: Path, flags: int) -> int:
        if path == self.theirs:
            raise PermissionError(errno.EACCES, "Permission denied")
        if self.opens is not None and flags & os.O_CREAT:
            raise OSError(self.opens, os.strerror(self.opens))
        return super().open(path, flags)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if self.room is None:
            return super().write(descriptor, data)
        if not self.room:
            raise OSError(self.error, os.strerror(self.error))
        count = super().write(descriptor, data[: self.room])
        self.room -= count
        return count

    def rename(self, old: Path, new: Path) -> None:
        if self.renames is not None and new.suffix == ".gz":
            raise OSError(self.renames, os.strerror(self.renames))
        super().rename(old, new)


class Stand:
    """A journal without a thread in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clocks = Clocks()
        self.disk = BadDisk()
        self.opened: list[Journal] = []

    def journal(self, boot: str = BOOT, node: str = "primary", **options: Any) -> Journal:
        options = {"gzip": False, "buffer_records": 64} | options
        journal = Journal(
            JournalOptions(str(self.folder), **options),
            pair="shop.eu",
            node=node,
            source="broker",
            boot=boot,
            disk=self.disk,
            mono=self.clocks.mono,
            wall=self.clocks.wall,
            has_thread=False,
        )
        self.opened.append(journal)
        return journal

    def kill(self, journal: Journal, torn: bytes = b"") -> Segment:
        """Leave it as SIGKILL would: what it wrote last is torn, its file is open and no longer locked."""
        segment = journal._writer.segment
        assert segment is not None
        os.write(segment.descriptor, torn)
        segment.close()
        self.opened.remove(journal)
        return segment

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def lines(self, *suffixes: str) -> list[bytes]:
        found = []
        for name in self.files():
            path = self.folder / name
            if not suffixes or name.endswith(suffixes):
                found += (
                    gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
                ).splitlines(keepends=True)
        return found

    def records(self, *suffixes: str) -> list[Record]:
        return [records.decode(line) for line in self.lines(*suffixes)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records() if type(record) is kind]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path / "journal")
    yield stand
    for journal in stand.opened:
        journal.close()


def request(stamp: dict[str, Any], number: int) -> Request:
    return Request(
        **stamp,
        client=CLIENT,
        number=number,
        service="echo",
        sender="00aa",
        outcome="answered",
        epoch=1,
        total_us=10,
    )


def claim(journal: Journal, stand: Stand, text: str = "why") -> None:
    journal.write(Claimed, stand.clocks.mono_s, text=text)


def drain(journal: Journal) -> None:
    """Turn until nothing is left to pack."""
    journal.turn()
    while journal._writer.upkeep.jobs:
        journal._writer.upkeep.step()


def test_a_segment_has_its_name_only_once_it_is_locked(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[list[Path]] = []
    flock = fcntl.flock

    def look(descriptor: int, operation: int) -> None:
        named.append(list(stand.folder.glob("*.open")))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", look)
    stand.journal()

    assert named == [[]], "another journal would take it for an orphan"


def test_the_first_record_says_who_writes(stand: Stand) -> None:
    stand.journal(sample=0.25).turn()

    [started] = stand.records()

    assert isinstance(started, Started)
    assert (started.pair, started.node, started.boot, started.seq, started.v) == (
        "shop.eu",
        "primary",
        BOOT,
        1,
        1,
    )
    assert (started.source, started.sample, started.pid) == ("broker", 0.25, os.getpid())
    assert started.machine != started.boot
    assert (started.at, started.mono) == (1_780_000_000_000_000, 1_000_000_000)


def test_records_have_the_times_at_which_they_happened_not_those_of_the_flush(stand: Stand) -> None:
    journal = stand.journal()
    stand.clocks.pass_(1.0)
    claim(journal, stand)
    stand.clocks.pass_(0.5)
    journal.turn()

    [claimed] = stand.of(Claimed)

    assert claimed.mono == 1_001_000_000
    assert claimed.at == 1_780_000_001_000_000


def test_a_source_with_another_clock_is_translated(stand: Stand) -> None:
    now = 5.0
    journal = Journal(
        JournalOptions(str(stand.folder), gzip=False),
        pair="shop",
        node="client-1",
        source="client",
        clock=lambda: now,
        mono=stand.clocks.mono,
        wall=stand.clocks.wall,
        has_thread=False,
    )
    journal.write(Claimed, 4.5, text="before the machine slept")
    journal.turn()
    # While it sleeps the source's clock stands still.
    stand.clocks.pass_(60)
    journal.turn()
    journal.write(Claimed, 5.0, text="after")
    journal.turn()
    journal.close()

    assert [claimed.mono for claimed in stand.of(Claimed)] == [999_500_000, 1_060_000_000]
    assert stand.of(ClockStepped) == []


def test_a_process_that_is_stopped_between_two_clocks_reads_them_again(stand: Stand) -> None:
    """SIGSTOP may come anywhere; here it comes each time that the source's clock is read first."""
    reads = 0

    def source() -> float:
        nonlocal reads
        reads += 1
        if reads % 2:
            stand.clocks.pass_(3)
        return stand.clocks.mono_s - 500

    anchor = Anchor(source, mono=stand.clocks.mono, wall=stand.clocks.wall)
    for _ in range(3):
        assert anchor.update() == 0
        assert anchor.mono_us(7) == 507_000_000
    assert reads == 8


def test_a_step_of_the_wall_clock_is_recorded_and_monotonic_time_is_not_moved(stand: Stand) -> None:
    journal = stand.journal()
    journal.turn()
    stand.clocks.pass_(1)
    stand.clocks.wall_s -= 3600
    claim(journal, stand)
    journal.turn()

    [step] = stand.of(ClockStepped)
    [claimed] = stand.of(Claimed)

    assert step.step_us == -3_600_000_000
    assert claimed.at == 1_780_000_001_000_000 - 3_600_000_000
    assert claimed.mono == 1_001_000_000


def test_a_clock_that_is_only_slewed_is_no_step(stand: Stand) -> None:
    journal = stand.journal()
    for _ in range(20):
        stand.clocks.pass_(0.1)
        stand.clocks.wall_s += 0.009
        journal.turn()

    assert stand.of(ClockStepped) == []


def test_records_of_requests_are_dropped_before_any_other(stand: Stand) -> None:
    journal = stand.journal(buffer_records=16)  # one is taken by "started"
    for number in range(20):
        journal.offer(stand.clocks.mono_s, request, number)
    for _ in range(4):
        claim(journal, stand)
    journal.turn()

    assert [record.number for record in stand.of(Request)] == list(range(11))
    assert len(stand.of(Claimed)) == 4
    [dropped] = stand.of(Dropped)
    assert (dropped.count, dropped.requests, dropped.since_us) == (9, 9, 1_000_000_000)
    assert (journal.counters.dropped, journal.counters.dropped_requests) == (9, 9)


def test_even_what_is_always_kept_is_counted_when_there_is_no_room_at_all(stand: Stand) -> None:
    journal = stand.journal(buffer_records=16)
    for _ in range(20):
        claim(journal, stand)
    journal.turn()

    [dropped] = stand.of(Dropped)

    assert len(stand.of(Claimed)) == 15
    assert (dropped.count, dropped.requests) == (5, 0)


def test_records_that_come_together_are_counted_one_by_one(stand: Stand) -> None:
    journal = stand.journal(buffer_records=16)
    for _ in range(20):
        journal.offer_all(100, stand.clocks.mono_s, lambda stamp: None)
    journal.turn()

    [dropped] = stand.of(Dropped)
    assert (dropped.count, dropped.requests) == (900, 900)
    assert (journal.counters.dropped, journal.counters.dropped_requests) == (900, 900)


def test_drops_are_told_once(stand: Stand) -> None:
    journal = stand.journal(buffer_records=16)
    for number in range(20):
        journal.offer(stand.clocks.mono_s, request, number)
    journal.turn()
    journal.turn()

    assert len(stand.of(Dropped)) == 1


def test_every_record_is_numbered_without_gaps_over_all_files(stand: Stand) -> None:
    journal = stand.journal(rotate_bytes=2_000)
    for number in range(50):
        journal.offer(stand.clocks.mono_s, request, number)
        journal.turn()
    journal.close("asked")

    found = stand.records()

    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert journal.counters.records == len(found)
    assert journal.counters.size_bytes == sum(map(len, stand.lines()))


def test_a_file_that_is_large_enough_is_closed_and_says_how_long_it_is(stand: Stand) -> None:
    journal = stand.journal(rotate_bytes=1_024)
    for number in range(4):
        journal.offer(stand.clocks.mono_s, request, number)
    drain(journal)

    sealed, begun = stand.files()
    lines = (stand.folder / sealed).read_bytes().splitlines()
    closed = records.decode(lines[-1])

    assert (sealed, begun) == (
        "shop.eu.primary.20260528T202640Z.01234567.0001.ndjson",
        "shop.eu.primary.20260528T202640Z.01234567.0002.ndjson.open",
    )
    assert isinstance(closed, SegmentClosed)
    assert closed.lines == len(lines) - 1


def test_a_file_that_is_old_enough_is_closed(stand: Stand) -> None:
    journal = stand.journal(rotate_s=300)
    stand.clocks.pass_(299)
    drain(journal)
    assert len(stand.files()) == 1
    stand.clocks.pass_(2)
    drain(journal)

    assert [SegmentName.parse(name).suffix for name in stand.files()] == ["", ".open"]  # type: ignore[union-attr]


def test_a_closed_file_is_packed_and_appears_whole(stand: Stand) -> None:
    journal = stand.journal(gzip=True)
    drain(journal)
    for number in range(2_000):
        journal.offer(stand.clocks.mono_s, request, number)
        if number % 40 == 0:
            journal.turn()
    journal.turn()
    plain = stand.lines()
    stand.clocks.pass_(400)
    journal.turn()
    assert journal._writer.upkeep.jobs
    seen = []
    while journal._writer.upkeep.jobs:
        journal._writer.upkeep.step()
        seen.append([name.rpartition(".ndjson")[2] for name in stand.files()])

    assert seen[0] == [".gz.part", ".open", ".open"]
    assert seen[-1] == [".gz", ".open"]
    assert not any(".gz" in names and ".gz.part" in names for names in seen)
    assert stand.lines(".gz")[:-1] == plain


def test_closing_ends_the_journal_with_why_and_how_much(stand: Stand) -> None:
    journal = stand.journal(gzip=True)
    claim(journal, stand)
    journal.close("asked")
    journal.close("again")

    [name] = stand.files()
    assert name.endswith(".ndjson.gz")
    started, claimed, stopped, closed = stand.records()
    assert isinstance(started, Started)
    assert isinstance(claimed, Claimed)
    assert isinstance(stopped, Stopped)
    assert stopped.reason == "asked"
    assert isinstance(closed, SegmentClosed)
    assert closed.lines == 3


def test_what_comes_after_closing_is_counted(stand: Stand) -> None:
    journal = stand.journal()
    journal.close()
    claim(journal, stand)
    journal.offer(stand.clocks.mono_s, request, 1)

    assert (journal.counters.dropped, journal.counters.dropped_requests) == (2, 1)


def test_a_full_disk_loses_nothing_that_fits_into_the_buffer(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    journal = stand.journal()
    journal.turn()
    stand.disk.room = 100  # the next line is torn
    claim(journal, stand, "one")
    for _ in range(3):
        journal.turn()
        stand.clocks.pass_(1.5)
    claim(journal, stand, "two")
    journal.turn()
    assert [line[-1:] for line in stand.lines()] == [b"\n", stand.lines()[-1][-1:]]

    stand.disk.room = None
    stand.clocks.pass_(1.5)
    journal.turn()

    assert [claimed.text for claimed in stand.of(Claimed)] == ["one", "two"]
    assert [record.seq for record in stand.records()] == [1, 2, 3]
    assert journal.counters.errors == 4
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    assert "No space left on device; tries again" in told[0]
    assert "is written again" in told[1]


def test_a_file_that_can_no_longer_be_written_is_left_for_another(stand: Stand) -> None:
    journal = stand.journal()
    journal.turn()
    stand.disk.room, stand.disk.error = 500, errno.EIO
    for number in range(3):
        journal.offer(stand.clocks.mono_s, request, number)
    journal.turn()
    stand.disk.room = None
    stand.clocks.pass_(1.5)
    drain(journal)

    first, second = stand.files()
    torn = (stand.folder / first).read_bytes().splitlines(keepends=True)
    rest = (stand.folder / second).read_bytes().splitlines(keepends=True)
    assert not torn[-1].endswith(b"\n")
    assert [records.decode(line).seq for line in (*torn[:-1], *rest)] == [1, 2, 3, 4]


def test_a_directory_that_vanishes_is_made_again(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    journal = stand.journal()
    journal.turn()
    for path in stand.folder.iterdir():
        path.unlink()
    stand.folder.rmdir()
    stand.clocks.pass_(2)
    claim(journal, stand)
    journal.turn()
    stand.clocks.pass_(2)
    journal.turn()

    assert [type(record) for record in stand.records()] == [Claimed]
    assert journal.counters.errors == 1
    assert "its file was removed" in caplog.text or "No such file" in caplog.text


def test_a_disk_that_is_full_at_the_start_is_waited_for(stand: Stand) -> None:
    stand.disk.opens = errno.ENOSPC
    journal = stand.journal()
    journal.turn()
    stand.disk.opens = None
    stand.clocks.pass_(2)
    journal.turn()

    assert [type(record) for record in stand.records()] == [Started]


def test_a_directory_that_cannot_be_written_to_is_a_mistake_of_the_configuration(stand: Stand) -> None:
    stand.disk.opens = errno.EACCES
    with pytest.raises(
        ConfigurationError, match=r"journal\.directory: cannot write to .*Permission denied; name a"
    ):
        stand.journal()
    stand.folder.rmdir()
    stand.folder.write_text("a file")
    stand.disk.opens = None
    with pytest.raises(ConfigurationError, match=r"journal\.directory"):
        stand.journal()
    stand.folder.unlink()
    stand.folder.mkdir()


@pytest.mark.parametrize("node", ["", "a.b", "../x", "a/b", "ü", "x" * 65])
def test_a_node_s_name_is_part_of_a_file_s(stand: Stand, node: str) -> None:
    with pytest.raises(ConfigurationError, match="a node's name"):
        stand.journal(node=node)


def test_a_file_that_cannot_be_packed_is_closed_as_it_is(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    journal = stand.journal(gzip=True)
    stand.disk.renames = errno.ENOSPC
    journal.close()

    [name] = stand.files()
    assert name.endswith(".ndjson")
    assert "cannot pack" in caplog.text
    assert journal.counters.errors == 1


def test_a_file_that_gets_no_name_is_removed(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(old: Path, new: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        journal = stand.journal()
        for _ in range(3):
            stand.clocks.pass_(1.5)
            journal.turn()
        assert stand.files() == []
    stand.clocks.pass_(1.5)
    journal.turn()
    assert [record.seq for record in stand.records()] == [1]


@pytest.mark.parametrize("place", ["write", "pack"])
def test_a_journal_without_memory_counts_what_it_lost_and_goes_on(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    journal = stand.journal(gzip=True, rotate_bytes=2_000)
    journal.turn()
    with monkeypatch.context() as patched:
        if place == "write":
            patched.setattr("bstar.journal.writer.memoryview", exhausted, raising=False)
        else:
            patched.setattr("bstar.journal.segments.zlib.compressobj", exhausted)
        for number in range(10):
            journal.offer(stand.clocks.mono_s, request, number)
        drain(journal)
    assert "no memory" in caplog.text
    stand.clocks.pass_(1.5)
    journal.offer(stand.clocks.mono_s, request, 10)
    drain(journal)

    lost = 10 if place == "write" else 0
    assert [record.number for record in stand.of(Request)] == list(range(lost, 11))
    assert [record.count for record in stand.of(Dropped)] == [lost][: lost > 0]
    assert journal.counters.dropped == lost
    assert sorted(record.seq for record in stand.records()) == list(range(1, len(stand.records()) + 1))


def test_what_a_killed_run_left_open_is_closed_by_the_next(stand: Stand) -> None:
    killed = stand.journal(boot="aa" * 16)
    claim(killed, stand)
    killed.turn()
    segment = stand.kill(killed, torn=b'{"kind":"claimed","v":1,"pa')
    before = segment.path.read_bytes()

    drain(stand.journal(gzip=True))

    begun, packed = stand.files()
    assert packed == segment.path.name.removesuffix(".open") + ".gz"
    assert begun.endswith(".open")
    assert gzip.decompress((stand.folder / packed).read_bytes()) == before


def test_what_another_user_left_open_keeps_nothing_else_open(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    for boot in ("aa", "bb"):
        killed = stand.journal(boot=boot * 16)
        killed.turn()
        stand.kill(killed)
    first, second = sorted(stand.folder.iterdir())
    stand.disk.theirs = first

    drain(stand.journal())

    assert first.exists()
    assert second.with_suffix("").exists()
    assert f"leaves {first} open" in caplog.text


def test_what_a_living_process_writes_is_left_alone(stand: Stand) -> None:
    first = stand.journal(boot="aa" * 16)
    first.turn()
    before = stand.files()
    drain(stand.journal(boot="bb" * 16))

    assert set(before) < set(stand.files())
    assert all(name.endswith(".open") for name in stand.files())


def test_other_nodes_and_other_files_are_left_alone(stand: Stand) -> None:
    stand.folder.mkdir()
    others = [
        "shop.eu.backup.20260101T000000Z.aaaaaaaa.0001.ndjson.open",
        "shop.primary.20260101T000000Z.aaaaaaaa.0001.ndjson.open",
        "x.shop.eu.primary.20260101T000000Z.aaaaaaaa.0001.ndjson.open",
        "notes.ndjson",
        "shop.eu.primary.ndjson.open",
    ]
    for name in others:
        (stand.folder / name).write_text("theirs")
    drain(stand.journal(keep_bytes=1, keep_days=0.001))

    assert set(others) < set(stand.files())


def test_a_run_killed_between_packing_and_removing_leaves_no_double(stand: Stand) -> None:
    killed = stand.journal(boot="aa" * 16)
    claim(killed, stand)
    killed.turn()
    segment = stand.kill(killed)
    content = segment.path.read_bytes()
    segment.path.with_name(segment.path.name.removesuffix(".open") + ".gz").write_bytes(
        gzip.compress(content)
    )

    drain(stand.journal())

    assert sorted(name.rpartition(".ndjson")[2] for name in stand.files()) == [".gz", ".open"]


def test_the_oldest_files_go_when_there_are_too_many_octets(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    journal = stand.journal(rotate_bytes=1_024, keep_bytes=5_000)
    for number in range(100):
        journal.offer(stand.clocks.mono_s, request, number)
        drain(journal)
    journal.close()

    sizes = [(stand.folder / name).stat().st_size for name in stand.files()]
    assert 3_000 < sum(sizes) <= 5_000
    assert stand.of(Stopped)
    assert not stand.of(Started)
    assert "removed 1 closed files" in caplog.text


def test_files_of_other_processes_of_the_same_name_count_as_well(stand: Stand) -> None:
    one = stand.journal(boot="aa" * 16, rotate_bytes=1_024, keep_bytes=20_000)
    other = stand.journal(boot="bb" * 16, rotate_bytes=1_024, keep_bytes=20_000)
    for number in range(1_000):
        for journal in (one, other):
            journal.offer(stand.clocks.mono_s, request, number)
            drain(journal)
    one.close()
    other.close()

    total = sum((stand.folder / name).stat().st_size for name in stand.files())
    # Each looks every now and then; between two looks the other may have closed some.
    assert total <= 20_000 + 16 * 2_048


DAY_S = 86_400


def closed(stand: Stand, *days_ago: float) -> list[str]:
    """The names of closed files, written so long ago by the file system's clock."""
    names = list[str]()
    stand.clocks.wall_s = time.time()
    for number, days in enumerate(days_ago):
        journal = stand.journal(boot=f"{number:08}" * 4, keep_days=0)
        journal.close()
        [name] = set(stand.files()) - set(names)
        at_s = stand.clocks.wall_s - days * DAY_S
        os.utime(stand.folder / name, (at_s, at_s))
        names.append(name)
    return names


def test_files_go_when_they_are_too_old(stand: Stand) -> None:
    names = closed(stand, *range(40, 0, -1))
    drain(stand.journal(keep_days=30))

    # One of the gaps of a day is not counted.
    assert set(names[9:]) < set(stand.files())
    assert not set(names[:8]) & set(stand.files())


def test_a_clock_that_jumps_ahead_removes_no_file(stand: Stand) -> None:
    """One moment in a wrong year removed all of them."""
    names = closed(stand, *range(29, 0, -1))
    stand.clocks.wall_s += 3_650 * DAY_S
    for number in range(3):
        last = stand.journal(boot=f"ff{number:06}" * 4, rotate_s=300)
        drain(last)
        last.close()
        [name] = set(stand.files()) - set(names)
        os.utime(stand.folder / name, (stand.clocks.wall_s, stand.clocks.wall_s))
        names.append(name)
        stand.clocks.wall_s += 300

    stand.clocks.wall_s -= 3_650 * DAY_S
    drain(stand.journal())
    assert set(names) < set(stand.files())


def test_files_of_a_wrong_clock_go_when_it_has_gone_on_for_their_days(stand: Stand) -> None:
    names = closed(stand, *range(3_700, 3_690, -1), *range(35, 0, -1))
    drain(stand.journal())
    assert not set(names[:10]) & set(stand.files())


def test_a_record_that_cannot_be_made_costs_only_itself(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    journal = stand.journal()

    def wrong(stamp: dict[str, Any]) -> Claimed:
        raise KeyError("ours")

    journal.offer(stand.clocks.mono_s, wrong)
    journal.offer(stand.clocks.mono_s, wrong)
    journal.write(Claimed, stand.clocks.mono_s, nonsense=1)
    journal.write(Claimed, stand.clocks.mono_s, text=object())
    claim(journal, stand)
    journal.turn()

    assert [claimed.text for claimed in stand.of(Claimed)] == ["why"]
    assert journal.counters.errors == 4
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2


def test_what_many_threads_offer_is_written_or_counted(tmp_path: Path) -> None:
    """With the journal's own thread, and a buffer that is too small for them."""
    journal = Journal(
        JournalOptions(str(tmp_path), buffer_records=200, flush_interval_s=0.001, rotate_bytes=50_000),
        pair="shop",
        node="primary",
        source="broker",
        clock=time.monotonic,
    )

    def offer_many(client: int) -> None:
        for number in range(5_000):
            journal.offer(time.monotonic(), request, client * 5_000 + number)

    threads = [threading.Thread(target=offer_many, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()

    found: list[Record] = []
    for path in tmp_path.iterdir():
        found += map(records.decode, gzip.decompress(path.read_bytes()).splitlines())
    numbers = [record.number for record in found if isinstance(record, Request)]
    told = sum(record.count for record in found if isinstance(record, Dropped))
    assert len(numbers) == len(set(numbers))
    assert len(numbers) + told == 20_000
    assert told == journal.counters.dropped
    assert sorted(record.seq for record in found) == list(range(1, len(found) + 1))


def test_a_maker_may_find_that_there_is_nothing_to_tell(stand: Stand) -> None:
    journal = stand.journal()
    journal.offer(stand.clocks.mono_s, lambda stamp: None)
    claim(journal, stand)
    journal.turn()

    assert [record.seq for record in stand.records()] == [1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [("sample", 1.1), ("sample", -0.1), ("rotate_s", 0), ("buffer_records", 0), ("keep_bytes", -1)],
)
def test_options_out_of_bounds_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"journal.{name}"):
        JournalOptions("x", **{name: value})  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.binary(min_size=24, max_size=24), st.floats(0, 1), st.floats(0, 1))
def test_a_smaller_share_chooses_among_what_a_larger_one_does(
    identity: bytes, one: float, other: float
) -> None:
    small, large = sorted((limit_of(one), limit_of(other)))

    assert is_sampled(identity, large) or not is_sampled(identity, small)
    assert is_sampled(identity, EVERYTHING)
    assert not is_sampled(identity, 0)
    assert is_sampled(identity, small) == (zlib.crc32(identity) < small)


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=16), st.integers(0, 1 << 40))
def test_of_a_client_s_numbers_in_a_row_the_right_share_is_chosen(client: bytes, first: int) -> None:
    limit = limit_of(1 / 8)
    first &= ~0xFF
    chosen = sum(
        is_sampled(client + number.to_bytes(8, "big"), limit) for number in range(first, first + 256)
    )

    assert chosen == 32


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
_NUMBERS = st.integers(0, (1 << 63) - 1)


def _records() -> st.SearchStrategy[Record]:
    def of(kind: type[Any]) -> st.SearchStrategy[Any]:
        fields: dict[str, st.SearchStrategy[Any]] = {}
        for field in msgspec.structs.fields(kind):
            if field.type is int:
                fields[field.name] = _NUMBERS
            elif field.type is str:
                fields[field.name] = _TEXTS
            elif field.type is float:
                fields[field.name] = st.floats(0, 1e9)
            else:
                fields[field.name] = st.from_type(field.type)
        fields["v"] = st.just(records.VERSION)
        return st.builds(kind, **fields)

    return st.one_of(*(of(kind) for kind in records.KINDS.values()))


@settings(deadline=None)
@given(_records())
def test_a_line_says_exactly_what_the_record_did(record: Record) -> None:
    line = records.encode(record)

    assert b"\n" not in line
    assert records.decode(line) == record


@settings(deadline=None)
@given(st.lists(st.sampled_from(["write", "offer", "turn", "fail", "heal", "pass", "step"]), max_size=60))
def test_whatever_happens_a_number_is_written_or_counted_as_dropped(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(Path(folder) / "journal")
        journal = stand.journal(buffer_records=16, rotate_bytes=1_500, gzip=True)
        given_ = 1
        for step in steps:
            if step == "write":
                claim(journal, stand)
                given_ += 1
            elif step == "offer":
                journal.offer(stand.clocks.mono_s, request, given_)
                given_ += 1
            elif step == "turn":
                journal.turn()
            elif step == "fail":
                stand.disk.room = 150
            elif step == "heal":
                stand.disk.room = None
            elif step == "pass":
                stand.clocks.pass_(2)
            elif journal._writer.upkeep.jobs:
                journal._writer.upkeep.step()
        stand.disk.room = None
        stand.clocks.pass_(2)
        journal.turn()
        journal.close()
        found = sorted(stand.records(), key=lambda record: record.seq)

        assert [record.seq for record in found] == list(range(1, len(found) + 1))
        told = sum(isinstance(record, (Claimed, Request, Started, PeerLost)) for record in found)
        assert told + sum(record.count for record in found if isinstance(record, Dropped)) == given_
        assert all(name.endswith((".ndjson", ".ndjson.gz")) for name in stand.files())
