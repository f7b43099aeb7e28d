"""What a node writes into its journal about durable requests: each step of each, as the store applied it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar import records
from bstar.journal import Journal, JournalOptions
from bstar.wire import durable
from bstar.wire.durable import Cause, Repeat, Schedule, Submit
from bstar_broker.journal.durable_lines import DurableLines
from bstar_broker.store.core.commands import (
    Answered,
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
    encode,
)
from bstar_broker.store.core.entries import Entry, Position
from bstar_broker.store.core.events import Applied
from bstar_broker.store.core.records import Record
from bstar_broker.store.core.rules import apply
from bstar_broker.store.core.tally import StoreObserver
from support.memory_table import MemoryTable

DEFAULTS = Defaults(attempts_max=2, backoff_ms=10, backoff_max_ms=100, expires_ms=0)
KEEP_MS = 1_000


def request_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Stand:
    """A table, and a journal that observes what happens to it. Time is in milliseconds."""

    def __init__(self, folder: Path, sample: float = 1.0) -> None:
        self.folder = folder
        self.journal = Journal(
            JournalOptions(str(folder), sample=sample),
            pair="p",
            node="primary",
            source="broker",
            has_thread=False,
        )
        self.lines = DurableLines(self.journal, lambda: 7.0)
        self.observer: StoreObserver = self.lines
        self.table = MemoryTable()
        self.number = 0

    def do(self, *commands: Command, at_ms: int = 1_000) -> None:
        """One entry."""
        self.number += 1
        entry = Entry.of(Position(3, self.number), at_ms, encode(commands))
        changes = apply(entry, commands, self.table)
        self.observer.applied(Applied(self.number, changes, self.table.totals), 3, 7.0)

    def submit(self, *numbers: int, at_ms: int = 1_000, **fields: Any) -> None:
        submits = (Submit(request_id(each), b"price", [b"ab", b"c"], **fields) for each in numbers)
        rows = [msgspec.Raw(durable.encode(each)) for each in submits]
        self.do(Submitted("", rows, DEFAULTS), at_ms=at_ms)

    def steps(self) -> list[records.Durable]:
        self.journal.turn()
        lines = [line for path in self.folder.iterdir() for line in path.read_bytes().splitlines()]
        return [each for each in map(records.decode, lines) if isinstance(each, records.Durable)]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_a_request_s_way_from_its_submission_to_its_close(stand: Stand) -> None:
    stand.submit(1)
    stand.do(Failed(request_id(1), Cause.FAILED, "no"), at_ms=1_200)
    stand.do(Answered(request_id(1), [b"4", b"2"]), at_ms=1_500)
    answered = stand.table.get(request_id(1))
    assert answered is not None
    stand.observer.fetched(answered, 3)
    stand.do(Closed([request_id(1)]))

    steps = stand.steps()
    assert [(each.step, each.entry) for each in steps] == [
        ("submitted", 1), ("attempt", 2), ("answered", 3), ("fetched", 0), ("closed", 4),
    ]  # fmt: skip
    assert {(each.client, each.submission, each.service, each.epoch) for each in steps} == {
        (request_id(1).hex(), answered.seq, "price", 3)
    }
    assert [each.bytes_in for each in steps] == [3, 0, 0, 0, 0]
    assert [each.attempts for each in steps] == [0, 1, 1, 1, 1]
    assert [each.reply_crc for each in steps] == [None, None, crc32(b"42"), crc32(b"42"), None]
    assert [each.total_us for each in steps] == [0, 0, 500_000, 0, 0]
    assert [each.seq for each in steps] == list(range(steps[0].seq, steps[0].seq + 5))


def test_dead_letters_have_a_cause_and_may_be_retried(stand: Stand) -> None:
    stand.submit(1, expires_ms=50)
    stand.do(Swept(0, 0, 10), at_ms=1_100)
    stand.do(Retried(request_id(1)), at_ms=1_200)
    stand.do(Failed(request_id(1), Cause.POISON, "gone", is_final=True), at_ms=1_300)

    assert [(each.step, each.cause) for each in stand.steps()] == [
        ("submitted", ""), ("dead", "expired"), ("retried", ""), ("dead", "poison"),
    ]  # fmt: skip


def test_what_is_cancelled_and_what_is_forgotten_after_its_time(stand: Stand) -> None:
    stand.submit(1)
    stand.do(Cancelled(request_id(1)), at_ms=1_010)
    stand.do(Swept(1_000 + KEEP_MS, 0, 10), at_ms=1_011 + KEEP_MS)

    assert [each.step for each in stand.steps()] == ["submitted", "cancelled", "forgotten"]


def test_what_changes_nothing_is_no_step(stand: Stand) -> None:
    stand.submit(1)
    stand.submit(1)
    stand.do(Cancelled(request_id(2)), Closed([request_id(3)]), Retried(request_id(1)))

    assert [each.step for each in stand.steps()] == ["submitted"]


def test_a_schedule_has_no_steps_and_each_of_its_requests_has(stand: Stand) -> None:
    once = Schedule(Submit(request_id(1), b"price", [b"ab"]), Repeat(every_ms=1_000, runs=2))
    stand.do(Scheduled("", msgspec.Raw(durable.encode(once)), 1_000, DEFAULTS))
    stand.do(Fired(request_id(1), 1_000, [1_000], 2_000))
    stand.do(Fired(request_id(1), 2_000, [2_000], 0), at_ms=2_000)
    stand.do(Closed([request_id(1)]))

    assert [(each.step, each.client, each.entry) for each in stand.steps()] == [
        ("submitted", durable.run_id(request_id(1), run_ms).hex(), entry)
        for run_ms, entry in ((1_000, 2), (2_000, 3))
    ]


def test_a_sample_has_all_steps_of_a_request_or_none(tmp_path: Path) -> None:
    stand = Stand(tmp_path, sample=0.5)
    stand.submit(*range(1, 101))
    stand.do(Closed([request_id(number) for number in range(1, 101)]))

    steps = stand.steps()
    of_submits = {each.client for each in steps if each.step == "submitted"}
    assert 20 < len(of_submits) < 80
    assert of_submits == {each.client for each in steps if each.step == "closed"}
    assert {each.weight for each in steps} == {2.0}
    # The same that the records of its attempts are chosen by.
    identity = bytes.fromhex(steps[0].client) + (1 << 62).to_bytes(8, "big")
    assert stand.journal.is_sampled(identity)


@settings(deadline=None)
@given(
    request=st.builds(
        Record,
        seq=st.integers(0, 1 << 62),
        id=st.binary(min_size=16, max_size=16),
        service=st.binary(min_size=1, max_size=20),
        owner=st.just(""),
        body=st.lists(st.binary(max_size=5), min_size=1, max_size=3),
        submitted_ms=st.integers(0, 1 << 40),
        due_ms=st.just(0),
        expires_ms=st.just(0),
        attempts_max=st.just(0),
        backoff_ms=st.just(0),
        backoff_max_ms=st.just(0),
        priority=st.just(0),
        attempts=st.integers(0, 1 << 20),
        ended_ms=st.integers(1 << 40, 1 << 41),
        cause=st.sampled_from(Cause),
        answer=st.lists(st.binary(max_size=5), max_size=3),
    ),
    step=st.sampled_from(["submitted", "attempt", "answered", "dead", "fetched", "closed"]),
    answer=st.tuples(st.integers(0, 1 << 40), st.none() | st.integers(0, (1 << 32) - 1)),
)
def test_the_line_that_is_written_in_haste_is_the_record_s(
    tmp_path_factory: pytest.TempPathFactory, request: Record, step: Any, answer: tuple[int, int | None]
) -> None:
    stand = Stand(tmp_path_factory.mktemp("journal"))
    stamp = {**stand.journal.who, "seq": 7, "at": 1 << 50, "mono": 1 << 40}
    octets, crc = answer
    text, count = stand.lines._lines(stamp, [(step, request, octets, crc)] * 2, 9, 3)
    line = text.split(b"\n")[1]
    assert count == 2
    stand.journal.close(None)

    is_end = step in ("answered", "dead")
    assert records.decode(line) == records.Durable(
        **{**stamp, "seq": 8},
        client=request.id.hex(),
        submission=request.seq,
        service=request.service.decode("utf-8", "backslashreplace"),
        step=step,
        entry=9,
        epoch=3,
        attempts=request.attempts,
        cause=Cause(request.cause).name.lower() if step == "dead" else "",
        total_us=(request.ended_ms - request.submitted_ms) * 1000 if is_end else 0,
        bytes_in=sum(map(len, request.body)) if step == "submitted" else 0,
        bytes_out=0 if crc is None else octets,
        reply_crc=crc,
    )
