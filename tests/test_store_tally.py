"""What the store counts of itself: ends, acknowledgements with one copy, and for how long a copy lags."""

from __future__ import annotations

from msgspec.structs import replace

from bstar.wire import durable
from bstar.wire.declined import declined_text
from bstar.wire.durable import Cause
from bstar_broker.store.core.commands import Failed
from bstar_broker.store.core.durable import DurableStore
from bstar_broker.store.core.events import Applied, Change
from bstar_broker.store.core.records import Record, Totals
from bstar_broker.store.core.settings import StoreSettings
from bstar_broker.store.core.tally import Tally
from support.solo_store import SoloStore


class Told:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.fetches: list[list[bytes]] = []

    def applied(self, applied: Applied, epoch: int, now: float) -> None:
        self.entries.append(applied.number)

    def fetched(self, record: Record, epoch: int) -> None:
        self.fetches.append(record.answer)


def test_a_copy_that_keeps_up_lags_for_no_time() -> None:
    tally = Tally()
    assert tally.lag_s(10, 0, 1.0) == 0
    assert tally.lag_s(20, 0, 2.0) == 0


def test_the_lag_is_the_time_since_the_copy_was_first_seen_behind() -> None:
    tally = Tally()
    tally.lag_s(10, 0, 1.0)
    assert tally.lag_s(14, 4, 3.0) == 0
    assert tally.lag_s(90, 80, 61.0) == 58.0
    assert tally.lag_s(90, 0, 70.0) == 0


def test_a_copy_that_is_always_late_lags_by_the_time_that_it_takes() -> None:
    tally = Tally()
    for second in range(100):
        # Ten entries a second, and it has those of seven seconds ago.
        lag_s = tally.lag_s(10 * second, min(10 * second, 70), float(second))
        assert second < 20 or 6 <= lag_s <= 9


def test_an_end_counts_once_and_what_changes_nothing_does_not() -> None:
    tally = Tally()
    pending = Record(1, b"i", b"s", "", [], 0, 0, 0, 1, 0, 0, 0)
    dead = Record(1, b"i", b"s", "", [], 0, 0, 0, 1, 0, 0, 0, state=durable.State.DEAD)
    command = Failed(b"i", Cause.FAILED, "")
    changes = [Change(command, b"i", pending, dead), Change(command, b"i", dead, dead)]
    tally.applied(Applied(1, changes, Totals(dead=1)), 1, 0.0)
    assert tally.ended == {"answered": 0, "dead": 1, "cancelled": 0, "declined": 0}
    assert tally.totals.dead == 1


def test_a_declined_request_is_no_dead_letter_that_somebody_must_look_at() -> None:
    tally = Tally()
    pending = Record(1, b"i", b"s", "", [], 0, 0, 0, 1, 0, 0, 0)
    text = declined_text("no-such-sku", "we do not sell 7").decode()
    declined = replace(pending, state=durable.State.DEAD, cause=Cause.FAILED, text=text)
    expired = replace(declined, cause=Cause.EXPIRED)
    command = Failed(b"i", Cause.FAILED, text)
    changes = [Change(command, b"i", pending, new) for new in (declined, expired)]
    tally.applied(Applied(1, changes, Totals(dead=2)), 1, 0.0)
    assert tally.ended == {"answered": 0, "dead": 1, "cancelled": 0, "declined": 1}


def store_of(solo: SoloStore) -> DurableStore:
    store = solo.node.store
    assert isinstance(store, DurableStore)
    return store


def test_the_store_reports_each_entry_and_each_fetched_answer() -> None:
    solo = SoloStore()
    told = Told()
    store_of(solo).observe(told)
    request = durable.new_id(1, b"0123456789")
    solo.submit(request)
    before = list(told.entries)
    assert before
    solo.ask(durable.Service.CANCEL, request)
    assert told.entries == [*before, before[-1] + 1]
    solo.ask(durable.Service.RESULT, durable.encode(durable.Fetch(request)))
    assert told.fetches == []
    assert store_of(solo).state(solo.now).ended == {"answered": 0, "dead": 0, "cancelled": 1, "declined": 0}


def test_acknowledgements_with_one_copy_are_counted() -> None:
    solo = SoloStore(settings=StoreSettings(when_alone="accept"))
    solo.submit(durable.new_id(1, b"0123456789"))
    solo.replica.copies = 1
    solo.submit(durable.new_id(2, b"0123456789"))
    state = store_of(solo).state(solo.now)
    assert (state.acknowledged, state.acknowledged_alone) == (2, 1)
