"""The table on its way to the peer: several parts at once, within bounds, and none is taken for stored."""

from __future__ import annotations

import msgspec
import pytest

from bstar_broker.core.outputs import Output
from bstar_broker.store.core import feeder as feeders
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import Export, Exported, LogRead, Opened, ReadLog, ToPeer
from bstar_broker.store.core.feeder import BATCH_BYTES, WINDOW_BYTES, Feeder
from bstar_broker.store.core.log import Log
from bstar_broker.store.core.records import Totals

BASE = Position(1, 50)
PARTS = WINDOW_BYTES // BATCH_BYTES


class Stage:
    """A feeder that sends the table of entry 50; ``sent`` has the indices of its parts."""

    def __init__(self) -> None:
        log = Log(Opened(None, BASE, 51, 50, 0, [Position(1, 1)], Totals(), {}))
        self.sent: list[int] = []
        self.feeder = Feeder(log, 50e6, _send_nothing, self._send_part)
        assert self.feeder.begin(0, 0, needs_table=True) == [Export(0, BATCH_BYTES)]

    def _send_part(self, given: Exported, index: int) -> ToPeer:
        self.sent.append(index)
        return ToPeer([b"%d" % index])

    def read(self, now: float = 0.0, *, is_last: bool = False) -> None:
        """The disk answers the last Export."""
        records = [msgspec.Raw(bytes(BATCH_BYTES))]
        self.feeder.exported(Exported(len(self.sent) + 1, records, is_last, BASE, 0), now)

    def pump(self, now: float = 0.0) -> list[Export]:
        outputs = self.feeder.pump(now, is_paced=True)
        return [output for output in outputs if isinstance(output, Export)]

    def fill(self) -> None:
        """Send parts until the window is full."""
        self.read()
        while self.pump():
            self.read()


def _send_nothing(prev: Position, entries: list[Entry]) -> ToPeer:
    raise AssertionError("the table comes first")


def test_parts_are_read_while_the_peer_stores_others() -> None:
    stage = Stage()
    stage.fill()
    assert stage.sent == list(range(PARTS))
    stage.feeder.stored(1, 0, 0.0)
    assert stage.pump() == [Export(PARTS, BATCH_BYTES)]


def test_one_part_is_read_at_a_time() -> None:
    stage = Stage()
    stage.read()
    assert stage.pump() == [Export(1, BATCH_BYTES)]
    assert stage.pump() == []


def test_a_full_window_sets_no_deadline() -> None:
    stage = Stage()
    stage.fill()
    assert stage.feeder.deadline() is None


def test_the_table_is_there_when_the_peers_log_says_so() -> None:
    """A count of parts may be that of an export before."""
    stage = Stage()
    stage.read(is_last=True)
    stage.feeder.stored(1, 0, 0.0)
    assert stage.feeder.acked == 0
    stage.feeder.stored(1, BASE.number, 0.0)
    assert stage.feeder.acked == BASE.number


def test_a_part_that_is_lost_begins_the_table_again() -> None:
    stage = Stage()
    stage.fill()
    stage.feeder.stored(2, 0, 1.0)
    assert stage.pump(1.0) == [Export(PARTS, BATCH_BYTES)]
    stage.read(1.0)
    assert stage.pump(1.0) == [Export(PARTS + 1, BATCH_BYTES)]
    stage.read(1.0)
    assert stage.pump(1.0 + feeders.PART_S_MAX) == []
    assert stage.pump(1.1 + feeders.PART_S_MAX) == [Export(0, BATCH_BYTES)]
    assert stage.feeder.base == START.number


# --- entries that are not in memory -------------------------------------------------------------------------


class Reader:
    """A feeder of a log of 50 entries that are on the disk alone; ``sent`` has the numbers of those sent."""

    def __init__(self) -> None:
        log = Log(Opened(None, BASE, 1, 50, 0, [Position(1, 1)], Totals(), {}))
        self.sent: list[int] = []
        self.feeder = Feeder(log, 50e6, self._send_entries, _send_no_part)
        assert self.feeder.begin(10, 10, needs_table=False) == []
        [self.asked] = self.feeder.pump(0.0, is_paced=False)
        assert isinstance(self.asked, ReadLog)

    def _send_entries(self, prev: Position, entries: list[Entry]) -> ToPeer:
        self.sent += [entry.number for entry in entries]
        return ToPeer([b"entries"])

    def read(self, *places: Position, now: float = 0.0, octets: int = 1) -> list[Output]:
        """The disk answers with these entries."""
        assert isinstance(self.asked, ReadLog)
        entries = [Entry.of(place, 0, bytes(octets)) for place in places]
        return self.feeder.log_read(LogRead(self.asked.begin, entries, self.asked.token), now)


def _send_no_part(given: Exported, index: int) -> ToPeer:
    raise AssertionError("no table is needed")


def test_entries_of_the_disk_go_to_the_peer_in_their_order() -> None:
    reader = Reader()
    reader.read(Position(1, 11), Position(1, 12))
    assert reader.sent == [11, 12]
    assert reader.feeder.acked == 10


@pytest.mark.parametrize(
    "places",
    [(), (Position(1, 12),), (Position(1, 11), Position(2, 12))],
    ids=["none", "a hole", "of a history that was dropped"],
)
def test_what_the_disk_has_not_as_the_log_does_goes_as_a_table(places: tuple[Position, ...]) -> None:
    reader = Reader()
    assert reader.read(*places) == [Export(0, BATCH_BYTES)]
    assert reader.sent == []


def test_the_answer_to_a_question_before_the_last_meeting_is_nothing() -> None:
    reader = Reader()
    reader.feeder.begin(20, 20, needs_table=False)
    reader.feeder.pump(0.0, is_paced=False)
    assert reader.read(Position(1, 11)) == []
    assert reader.sent == []


def test_an_export_that_the_disk_begins_again_is_sent_from_its_beginning() -> None:
    """Parts of two tables would make one that never was."""
    stage = Stage()
    stage.read()
    stage.pump()
    later = Position(1, 51)
    records = [msgspec.Raw(bytes(BATCH_BYTES))]
    assert stage.feeder.exported(Exported(2, records, True, later, 0), 0.0) == [Export(0, BATCH_BYTES)]
    assert stage.sent == [0]
    stage.feeder.exported(Exported(1, records, True, later, 0), 0.0)
    assert stage.sent == [0, 0]
    stage.feeder.stored(1, later.number, 0.0)
    assert stage.feeder.acked == later.number


def test_a_table_that_begins_later_than_the_log_is_no_other_one() -> None:
    stage = Stage()
    stage.read()
    assert stage.sent == [0], "its first part says which entry it is of"


def test_a_peer_has_no_more_than_it_was_sent_and_loses_nothing_that_it_had() -> None:
    reader = Reader()
    reader.read(Position(1, 11), Position(1, 12))
    reader.feeder.acknowledge(99)
    assert reader.feeder.acked == 12
    reader.feeder.acknowledge(11)
    assert reader.feeder.acked == 12


def test_an_idle_time_gives_the_pace_no_credit() -> None:
    """Else a burst of hours would take disk and link from the requests of others."""
    reader = Reader()
    assert reader.read(Position(1, 11), now=3_600.0, octets=BATCH_BYTES) != []
    assert reader.feeder.pump(3_600.0, is_paced=True) == []
    later = 3_600.0 + BATCH_BYTES / 50e6
    assert reader.feeder.deadline() == pytest.approx(later)
    [asked] = reader.feeder.pump(later + 0.001, is_paced=True)
    assert isinstance(asked, ReadLog)


def test_an_answer_to_an_export_that_was_given_up_is_no_part_of_the_next() -> None:
    stage = Stage()
    assert stage.feeder.begin(0, 0, needs_table=True) == [Export(0, BATCH_BYTES)]
    stage.read()
    assert stage.sent == [], "it is of the one before"
    stage.read()
    assert stage.sent == [0]
    stage.read()
    assert stage.sent == [0], "nothing was asked"
