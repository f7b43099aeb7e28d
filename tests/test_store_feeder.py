"""The table on its way to the peer: several parts at once, within bounds, and none is taken for stored."""

from __future__ import annotations

import msgspec

from bstar_broker.store.core import feeder as feeders
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import Export, Exported, Opened, ToPeer
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
