"""The rules of durable requests: what each command does to a request in each state."""

from typing import Any

import msgspec
import pytest

from bstar.errors import RemoteProtocolError
from bstar.wire import durable
from bstar.wire.durable import Cause, Repeat, Schedule, State, Submit
from bstar_broker.store.core import rules
from bstar_broker.store.core.commands import (
    Answered,
    Began,
    Cancelled,
    Closed,
    Command,
    Defaults,
    Failed,
    Fired,
    Retried,
    Scheduled,
    Submitted,
    Swept,
)
from bstar_broker.store.core.entries import Entry
from bstar_broker.store.core.records import Record
from support.entries import carry_out, name, submit, submitted
from support.memory_table import MemoryTable

ONE = name(1)

# What brings request 1 from PENDING into each state.
WAYS: dict[State, list[Command]] = {
    State.PENDING: [],
    State.ANSWERED: [Answered(ONE, [b"the answer"])],
    State.DEAD: [Failed(ONE, Cause.REJECTED, "no", is_final=True)],
    State.CANCELLED: [Cancelled(ONE)],
}


def table_with(state: State, **options: Any) -> MemoryTable:
    table = MemoryTable()
    carry_out(table, 1, submitted(submit(1, b"body", b"price", **options), owner="ann"), *WAYS[state])
    assert table.records[ONE].state == state
    return table


def record_of(table: MemoryTable) -> Record:
    return table.records[ONE]


def test_a_submit_becomes_a_pending_record_with_the_defaults_of_its_entry() -> None:
    table = MemoryTable()
    defaults = Defaults(attempts_max=7, backoff_ms=20, backoff_max_ms=500, expires_ms=9_000)
    (change,) = carry_out(table, 3, submitted(submit(1), owner="ann", defaults=defaults), at_ms=10_000)
    seq = 3 * rules.ROWS_MAX
    expected = Record(seq, ONE, b"price", "ann", [b"body"], 10_000, 10_000, 19_000, 7, 20, 500, 0)
    assert (change.old, change.new, record_of(table)) == (None, expected, expected)


def test_a_submit_keeps_what_it_asks_for() -> None:
    table = MemoryTable()
    row = submit(
        1, delay_ms=50, expires_ms=70, attempts_max=2, backoff_ms=90_000, backoff_max_ms=80_000, priority=9
    )
    carry_out(table, 1, submitted(row), at_ms=1_000)
    record = record_of(table)
    assert (record.due_ms, record.expires_ms, record.attempts_max, record.priority) == (1_050, 1_070, 2, 9)
    assert (record.backoff_ms, record.backoff_max_ms) == (90_000, 80_000)


def test_headers_stay_with_a_request_through_failures_and_a_retry() -> None:
    table = table_with(State.DEAD, headers=b"\x03\x00\x03\x01ab")
    carry_out(table, 2, Retried(ONE))
    carry_out(table, 3, Failed(ONE, Cause.FAILED, "no"))
    assert (record_of(table).state, record_of(table).headers) == (State.PENDING, b"\x03\x00\x03\x01ab")
    assert record_of(table).size_bytes == 4 + 6


def test_other_headers_under_a_known_id_are_the_same_request() -> None:
    table = table_with(State.PENDING, headers=b"first")
    (change,) = carry_out(table, 2, submitted(submit(1, headers=b"second"), owner="ann"))
    assert (change.is_other, record_of(table).headers) == (False, b"first")


def test_each_request_of_a_schedule_has_its_headers() -> None:
    table = MemoryTable()
    schedule = Schedule(submit(1, headers=b"first"), Repeat(every_ms=1_000))
    row = msgspec.Raw(durable.encode(schedule))
    carry_out(table, 1, Scheduled("", row, 1_000), Fired(ONE, 1_000, [1_000], 2_000), at_ms=1_000)
    assert table.records[durable.run_id(ONE, 1_000)].headers == b"first"


def test_what_a_release_without_headers_wrote_is_read() -> None:
    old = msgspec.msgpack.encode(msgspec.msgpack.decode(durable.encode(submit(1)))[:-1])
    assert durable.decode(old, Submit) == submit(1)
    table = table_with(State.PENDING)
    old = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(record_of(table)))[:-1])
    assert msgspec.msgpack.decode(old, type=Record) == record_of(table)


def test_a_backoff_longer_than_the_bound_of_the_defaults_is_not_cut() -> None:
    table = MemoryTable()
    carry_out(table, 1, submitted(submit(1, backoff_ms=90_000)))
    assert record_of(table).backoff_max_ms == 90_000


@pytest.mark.parametrize(("at_ms", "due_ms"), [(0, 1_000), (999, 1_000), (5_000, 5_000)])
def test_a_time_in_the_past_is_now(at_ms: int, due_ms: int) -> None:
    table = MemoryTable()
    carry_out(table, 1, submitted(submit(1, at_ms=at_ms)), at_ms=1_000)
    assert record_of(table).due_ms == due_ms


def test_the_order_of_submission_is_the_order_of_seq() -> None:
    table = MemoryTable()
    carry_out(table, 1, submitted(submit(9), submit(4)), submitted(submit(7)))
    carry_out(table, 2, submitted(submit(2)))
    assert sorted(table.records, key=lambda each: table.records[each].seq) == [
        name(9), name(4), name(7), name(2),
    ]  # fmt: skip


@pytest.mark.parametrize("state", WAYS)
def test_a_submit_that_is_known_changes_nothing_whatever_its_state(state: State) -> None:
    table = table_with(state)
    before = record_of(table)
    (change,) = carry_out(table, 2, submitted(submit(1, priority=3), owner="ann"))
    assert change.old is change.new is before
    assert not change.is_other
    assert record_of(table) == before


@pytest.mark.parametrize("row", [submit(1, b"other body"), submit(1, service=b"other")])
def test_other_content_under_a_known_id_is_told(row: Submit) -> None:
    table = table_with(State.PENDING)
    before = record_of(table)
    (change,) = carry_out(table, 2, submitted(row))
    assert change.is_other
    assert record_of(table) == before


def test_an_id_twice_in_one_entry_is_one_request() -> None:
    table = MemoryTable()
    first, again, other = carry_out(table, 1, submitted(submit(1), submit(1)), submitted(submit(1, b"other")))
    assert first.old is None
    assert again.old == again.new == other.new == first.new
    assert (again.is_other, other.is_other) == (False, True)
    assert table.totals.pending == 1


def test_an_answer_ends_a_pending_request() -> None:
    table = table_with(State.PENDING)
    carry_out(table, 2, Failed(ONE, Cause.FAILED, "once"), Answered(ONE, [b"a", b"b"]))
    record = record_of(table)
    assert (record.state, record.answer, record.ended_ms) == (State.ANSWERED, [b"a", b"b"], 2_000)
    assert (record.attempts, record.cause, record.text) == (1, Cause.NONE, "")


ENDS = [state for state in WAYS if state != State.PENDING]


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize(
    "command", [Answered(ONE, [b"late"]), Failed(ONE, Cause.POISON, "late", is_final=True), Cancelled(ONE)]
)
def test_an_end_is_final(state: State, command: Command) -> None:
    table = table_with(state)
    before = record_of(table)
    (change,) = carry_out(table, 2, command)
    assert change.old is change.new is before
    assert record_of(table) is before


def test_the_backoff_doubles_up_to_its_bound() -> None:
    table = table_with(State.PENDING, attempts_max=100, backoff_ms=100, backoff_max_ms=500)
    waits = []
    for number in range(2, 72):
        carry_out(table, number, Failed(ONE, Cause.FAILED, "again"), at_ms=10)
        waits.append(record_of(table).due_ms - 10)
    assert waits == [100, 200, 400] + [500] * 67
    assert (record_of(table).attempts, record_of(table).text) == (70, "again")
    assert (record_of(table).state, record_of(table).cause) == (State.PENDING, Cause.NONE)


def test_a_handler_may_say_when_to_try_again() -> None:
    table = table_with(State.PENDING)
    carry_out(table, 2, Failed(ONE, Cause.FAILED, "", retry_ms=0), at_ms=50)
    assert record_of(table).due_ms == 50
    carry_out(table, 3, Failed(ONE, Cause.FAILED, "", retry_ms=1 << 60), at_ms=60)
    assert record_of(table).due_ms == 60 + rules.SPAN_MS_MAX


def test_a_request_is_dead_after_its_last_attempt() -> None:
    table = table_with(State.PENDING, attempts_max=2)
    carry_out(table, 2, Failed(ONE, Cause.FAILED, "first"))
    assert record_of(table).state == State.PENDING
    carry_out(table, 3, Failed(ONE, Cause.POISON, "second", retry_ms=5))
    record = record_of(table)
    assert (record.state, record.attempts, record.cause) == (State.DEAD, 2, Cause.POISON)
    assert (record.text, record.ended_ms) == ("second", 3_000)


def test_a_final_failure_ends_it_at_once() -> None:
    table = table_with(State.PENDING, attempts_max=9)
    carry_out(table, 2, Failed(ONE, Cause.REJECTED, "never", is_final=True))
    assert (record_of(table).state, record_of(table).attempts) == (State.DEAD, 1)


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "x" + "é" * 5000, "\udc80" * 5000])
def test_the_text_of_a_failure_is_bounded(text: str) -> None:
    table = table_with(State.PENDING)
    rules.apply(_at(2), [Failed(ONE, Cause.FAILED, text)], table)
    octets = record_of(table).text.encode()
    assert rules.TEXT_BYTES_MAX - 1 <= len(octets) <= rules.TEXT_BYTES_MAX


def _at(number: int) -> Entry:
    return Entry(1, number, number * 1000, b"", 0)


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
def test_a_dead_or_cancelled_request_can_be_retried_as_new(state: State) -> None:
    table = table_with(state, expires_ms=5, priority=3)
    before = record_of(table)
    carry_out(table, 2, Retried(ONE))
    new = msgspec.structs.replace(before, state=State.PENDING, due_ms=2_000, expires_ms=0)
    new = msgspec.structs.replace(new, attempts=0, ended_ms=0, cause=Cause.NONE, text="")
    assert record_of(table) == new


@pytest.mark.parametrize("state", [State.PENDING, State.ANSWERED])
def test_what_waits_or_was_answered_is_not_retried(state: State) -> None:
    table = table_with(state)
    before = record_of(table)
    (change,) = carry_out(table, 2, Retried(ONE))
    assert change.old is change.new is record_of(table) is before


@pytest.mark.parametrize("state", WAYS)
def test_a_closed_request_is_gone(state: State) -> None:
    table = table_with(state)
    before = record_of(table)
    gone, unknown = carry_out(table, 2, Closed([ONE, name(2)]))
    assert (gone.id, gone.old, gone.new) == (ONE, before, None)
    assert (unknown.id, unknown.old, unknown.new) == (name(2), None, None)
    assert not table.records
    assert table.totals == MemoryTable().totals


@pytest.mark.parametrize("state", WAYS)
@pytest.mark.parametrize("kind", [Closed, Cancelled, Retried])
def test_a_command_for_one_owner_leaves_the_requests_of_others(state: State, kind: type[Command]) -> None:
    table = table_with(state)
    before = record_of(table)
    command = Closed([ONE], "bob") if kind is Closed else kind(ONE, "bob")  # type: ignore[arg-type, call-arg]
    (change,) = carry_out(table, 2, command)
    assert (change.old, change.new) == (None, None)
    assert record_of(table) is before


def test_the_owner_may_close() -> None:
    table = table_with(State.PENDING)
    carry_out(table, 2, Closed([ONE], "ann"))
    assert not table.records


@pytest.mark.parametrize(
    "command", [Answered(ONE, [b"x"]), Failed(ONE, Cause.FAILED, "x"), Cancelled(ONE), Retried(ONE)]
)
def test_a_command_for_an_unknown_request_does_nothing(command: Command) -> None:
    table = MemoryTable()
    (change,) = carry_out(table, 1, command)
    assert (change.command, change.id, change.old, change.new) == (command, ONE, None, None)
    assert not table.records


def test_a_pending_request_expires_at_its_time_and_not_before() -> None:
    table = table_with(State.PENDING, expires_ms=500)
    assert carry_out(table, 2, Swept(0, 0, 10), at_ms=1_499) == []
    (change,) = carry_out(table, 3, Swept(0, 0, 10), at_ms=1_500)
    record = record_of(table)
    assert change.new is record
    assert (record.state, record.cause, record.ended_ms) == (State.DEAD, Cause.EXPIRED, 1_500)
    assert record.text == "no attempt succeeded within 500 ms"


def test_an_expired_request_tells_its_last_failure() -> None:
    table = table_with(State.PENDING, expires_ms=500)
    carry_out(table, 2, Failed(ONE, Cause.FAILED, "disk on fire"), Swept(0, 0, 10))
    assert record_of(table).text == "no attempt succeeded within 500 ms; the last failure: disk on fire"


@pytest.mark.parametrize("state", ENDS)
def test_only_what_waits_expires(state: State) -> None:
    table = table_with(state, expires_ms=5)
    assert carry_out(table, 9, Swept(0, 0, 10)) == []


@pytest.mark.parametrize("state", ENDS)
def test_what_ended_is_forgotten_after_its_time(state: State) -> None:
    table = table_with(state)
    before = record_of(table)
    spares, takes = Swept(1_001, 1_000, 10), Swept(1_000, 1_001, 10)
    if state != State.DEAD:
        spares, takes = takes, spares
    assert carry_out(table, 9, spares) == []
    (change,) = carry_out(table, 9, takes)
    assert (change.old, change.new) == (before, None)
    assert not table.records


def test_a_sweep_takes_the_earliest_and_no_more_of_each_kind_than_its_limit() -> None:
    table = MemoryTable()
    rows = [submit(number, expires_ms=100 - number) for number in range(1, 6)]
    carry_out(table, 1, submitted(*rows))
    changes = carry_out(table, 2, Swept(0, 0, 3))
    assert [change.id for change in changes] == [name(5), name(4), name(3)]
    changes = carry_out(table, 3, Swept(0, 9_000, 2))
    assert [change.id for change in changes] == [name(2), name(1), name(3), name(4)]
    assert [change.new is None for change in changes] == [False, False, True, True]


def test_a_time_of_a_schedule_that_has_come_does_not_come_again() -> None:
    """Its request may have been answered and closed meanwhile, and must not begin anew."""
    table = MemoryTable()
    row = msgspec.Raw(durable.encode(Schedule(submit(1), Repeat(every_ms=1_000))))
    carry_out(table, 1, Scheduled("ann", row, 1_000, Defaults()))
    fired = Fired(ONE, 1_000, [1_000], 2_000)
    _, run = carry_out(table, 2, fired, at_ms=1_000)
    carry_out(table, 3, Answered(run.id, [b"x"]), Closed([run.id], None), at_ms=1_100)
    carry_out(table, 4, fired, at_ms=1_200)
    assert list(table.records) == [ONE]
    assert record_of(table).due_ms == 2_000


def test_the_beginning_of_an_epoch_changes_nothing() -> None:
    table = table_with(State.PENDING)
    assert carry_out(table, 2, Began("primary")) == []


def test_the_changes_stand_in_the_order_of_the_commands() -> None:
    table = MemoryTable()
    changes = carry_out(
        table, 1, submitted(submit(1), submit(2)), Began("primary"), Closed([ONE]), submitted(submit(1))
    )
    assert [(change.id, change.new is None) for change in changes] == [
        (name(1), False), (name(2), False), (name(1), True), (name(1), False),
    ]  # fmt: skip
    assert record_of(table).seq == rules.ROWS_MAX + 2


def test_totals_count_every_state_and_the_octets_of_bodies_and_answers() -> None:
    table = MemoryTable()
    rows = [submit(number, b"12345") for number in range(1, 5)]
    carry_out(table, 1, submitted(*rows), Answered(name(1), [b"123", b"4"]), Cancelled(name(2)))
    carry_out(table, 2, Failed(name(3), Cause.FAILED, "no", is_final=True))
    totals = table.totals
    assert (totals.pending, totals.answered, totals.dead, totals.cancelled) == (1, 1, 1, 1)
    assert totals.size_bytes == 24


def test_more_rows_than_an_entry_has_are_an_error_of_the_node_that_leads() -> None:
    rows = [msgspec.Raw(b"")] * (rules.ROWS_MAX + 1)
    with pytest.raises(AssertionError, match="entry 2 has too many rows"):
        rules.apply(_at(2), [Submitted("", rows)], MemoryTable())


def test_a_row_that_is_no_submit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no Submit"):
        rules.apply(_at(2), [Submitted("", [msgspec.Raw(b"\x90")])], MemoryTable())


def test_a_request_without_bounds_dies_neither_of_age_nor_of_failures() -> None:
    table = MemoryTable()
    defaults = Defaults(attempts_max=1, expires_ms=1_000)
    row = submit(1, attempts_max=durable.ENDLESS, expires_ms=durable.FOREVER_MS)
    carry_out(table, 1, submitted(row, defaults=defaults))
    record = msgspec.structs.replace(record_of(table), attempts=2 * durable.ENDLESS)
    table.change(record_of(table), record)
    carry_out(table, 2, Failed(ONE, Cause.FAILED, "again", retry_ms=0), at_ms=2**43)
    carry_out(table, 3, Swept(0, 0, 100), at_ms=2**44)
    assert record_of(table).state == State.PENDING
    assert record_of(table).attempts == 2 * durable.ENDLESS + 1
