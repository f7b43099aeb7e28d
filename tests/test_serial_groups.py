"""Serial groups at one node: one of a group at a time, in the order of submission. In virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar.errors import RemoteProtocolError
from bstar.wire import durable, native
from bstar.wire.durable import Cause, Missed, Repeat, Schedule, Serial, Service, State, Submit
from bstar.wire.messages import ErrorCode
from bstar_broker.store import sqlite_file
from bstar_broker.store.core.durable import DurableStore
from bstar_broker.store.core.peer import NO_GROUPS
from support.entries import entry, name, submit, submitted
from support.solo_store import SoloStore
from support.store_disk import Platter

WORKER = b"worker"
ORDERS = Serial(0, "customer 7")


@pytest.fixture
def solo() -> SoloStore:
    return SoloStore()


class Jobs:
    """What workers get of a SoloStore, in order, by the bodies."""

    def __init__(self, solo: SoloStore) -> None:
        self._solo = solo
        self._read = 0
        self._held: dict[bytes, tuple[bytes, native.Message]] = {}

    def begin(self, credit: int = 10, worker: bytes = WORKER) -> None:
        self._solo.say(*native.encode_ready(b"work", credit=credit), sender=worker)

    def new(self) -> list[bytes]:
        """The bodies of those that came since."""
        sent, self._read = self._solo.sent[self._read :], len(self._solo.sent)
        bodies = []
        for worker, *frames in sent:
            if worker != b"client" and (job := native.decode(frames)).command == native.REQUEST:
                self._held[job.body[0]] = (worker, job)
                bodies.append(job.body[0])
        return bodies

    def answer(self, body: bytes) -> None:
        worker, job = self._held.pop(body)
        head = native.header(native.FINAL, identity=job.identity, epoch=job.epoch)
        self._solo.say(head, b"done", sender=worker)

    def fail(self, body: bytes) -> None:
        worker, job = self._held.pop(body)
        frames = native.encode_error(job.identity, job.epoch, ErrorCode.HANDLER_FAILED, b"no luck")
        self._solo.say(*frames, sender=worker)


@pytest.fixture
def jobs(solo: SoloStore) -> Jobs:
    return Jobs(solo)


def store(solo: SoloStore, number: int, group: Serial | int = ORDERS, **options: Any) -> None:
    solo.submit(name(number), body=b"%d" % number, priority=group, **options)


def test_one_at_a_time_of_each_group_and_groups_beside_each_other(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    groups: list[Serial | int] = [ORDERS, ORDERS, Serial(0, "customer 8"), ORDERS, 0, 0]
    for number, group in enumerate(groups, 1):
        store(solo, number, group)
    assert sorted(jobs.new()) == [b"1", b"3", b"5", b"6"]
    jobs.answer(b"3")
    jobs.answer(b"5")
    assert jobs.new() == []
    jobs.answer(b"1")
    assert jobs.new() == [b"2"]
    jobs.answer(b"2")
    assert jobs.new() == [b"4"]


def test_the_group_of_another_service_is_another_group(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    solo.say(*native.encode_ready(b"stock", credit=1), sender=b"other")
    store(solo, 1)
    solo.submit(name(2), service=b"stock", body=b"2", priority=ORDERS)
    assert sorted(jobs.new()) == [b"1", b"2"]


def test_the_order_is_that_of_submission_whatever_the_priority(solo: SoloStore, jobs: Jobs) -> None:
    store(solo, 1)
    store(solo, 2, Serial(9, ORDERS.group))
    jobs.begin()
    assert jobs.new() == [b"1"]


def test_a_request_that_is_retried_later_keeps_its_place(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    store(solo, 1, backoff_ms=1_000)
    store(solo, 2)
    assert jobs.new() == [b"1"]
    jobs.fail(b"1")
    solo.wait(0.9)
    assert jobs.new() == []
    solo.wait(0.3)
    assert jobs.new() == [b"1"]
    jobs.answer(b"1")
    assert jobs.new() == [b"2"]


def test_a_delayed_request_keeps_its_place(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    store(solo, 1, delay_ms=1_000)
    store(solo, 2)
    solo.wait(0.9)
    assert jobs.new() == []
    solo.wait(0.3)
    assert jobs.new() == [b"1"]


def test_what_a_lost_worker_had_comes_first(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    store(solo, 1)
    store(solo, 2)
    assert jobs.new() == [b"1"]
    solo.say(*native.encode_disconnect(), sender=WORKER)
    jobs.begin(worker=b"second")
    assert jobs.new() == [b"1"]
    jobs.answer(b"1")
    assert jobs.new() == [b"2"]


@pytest.mark.parametrize("end", ["dead", "cancelled", "closed", "expired"])
def test_the_end_of_one_that_waits_for_its_retry_lets_the_next_go(
    solo: SoloStore, jobs: Jobs, end: str
) -> None:
    jobs.begin()
    store(solo, 1, backoff_ms=60_000, attempts_max=1 if end == "dead" else 5, expires_ms=3_000)
    store(solo, 2)
    assert jobs.new() == [b"1"]
    jobs.fail(b"1")
    if end == "cancelled":
        solo.ask(Service.CANCEL, name(1))
    elif end == "closed":
        solo.ask(Service.CLOSE, name(1))
    elif end == "expired":
        assert jobs.new() == []
        solo.wait(4.5)
        assert solo.status(name(1)).cause == Cause.EXPIRED
    assert jobs.new() == [b"2"]


def test_one_that_ends_in_the_queue_of_its_group_leaves_it(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    for number in (1, 2, 3):
        store(solo, number)
    solo.ask(Service.CANCEL, name(2))
    jobs.new()
    jobs.answer(b"1")
    assert jobs.new() == [b"3"]


def test_after_a_cancel_the_next_one_waits_for_the_handler_that_goes_on(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    store(solo, 1)
    store(solo, 2)
    assert jobs.new() == [b"1"]
    solo.ask(Service.CANCEL, name(1))
    solo.wait(1.0)
    assert jobs.new() == []
    jobs.answer(b"1")
    solo.wait(0.3)
    assert jobs.new() == [b"2"]
    assert solo.status(name(1)).state == State.CANCELLED


def test_after_a_cancel_the_loss_of_the_worker_lets_the_next_go(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin(credit=1)
    jobs.begin(worker=b"second")
    store(solo, 1)
    store(solo, 2)
    assert jobs.new() == [b"1"]
    solo.ask(Service.CANCEL, name(1))
    solo.say(*native.encode_disconnect(), sender=WORKER)
    solo.wait(0.3)
    assert jobs.new() == [b"2"]


def test_a_dead_letter_that_is_retried_goes_before_the_later_ones(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    store(solo, 1, attempts_max=1)
    for number in (2, 3):
        store(solo, number)
    jobs.new()
    jobs.fail(b"1")
    assert jobs.new() == [b"2"]
    solo.ask(Service.RETRY, name(1))
    solo.wait(0.5)
    assert jobs.new() == [], "one at a time"
    jobs.answer(b"2")
    assert jobs.new() == [b"1"]
    jobs.answer(b"1")
    assert jobs.new() == [b"3"]


def test_retried_requests_whose_groups_are_busy_hold_nothing_else_up(solo: SoloStore, jobs: Jobs) -> None:
    """They are as many as one look at the disk brings."""
    jobs.begin(credit=1_000)
    groups = [Serial(0, f"group {number}") for number in range(256)]
    for number, group in enumerate(groups):
        store(solo, number, group, attempts_max=1)
    for body in jobs.new():
        jobs.fail(body)
    for number, group in enumerate(groups):
        store(solo, 1_000 + number, group)
    assert len(jobs.new()) == 256
    for number in range(256):
        solo.ask(Service.RETRY, name(number))
    store(solo, 5_000, 0, delay_ms=100)
    solo.wait(0.3)
    assert jobs.new() == [b"5000"]
    jobs.answer(b"1007")
    assert jobs.new() == [b"7"]


def test_a_group_takes_memory_for_one_request_however_many_wait(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    for number in range(2_000):
        store(solo, number)
    durable_store = solo.node.store
    assert isinstance(durable_store, DurableStore)
    assert durable_store.state(solo.now).running == 1
    assert jobs.new() == [b"0"]


def test_the_runs_of_a_schedule_with_a_group_never_overlap(solo: SoloStore, jobs: Jobs) -> None:
    jobs.begin()
    repeat = Repeat(every_ms=1_000, missed=Missed.EACH)
    asked = Schedule(Submit(name(1), b"work", [b"run"], priority=ORDERS), repeat)
    solo.ask(Service.SCHEDULE, durable.encode(asked))
    solo.wait(3.5)
    assert jobs.new() == [b"run"]
    jobs.answer(b"run")
    assert jobs.new() == [b"run"]


def test_the_group_is_shown(solo: SoloStore) -> None:
    store(solo, 1)
    assert (solo.status(name(1)).group, solo.status(name(1)).priority) == ("customer 7", 0)
    store(solo, 2, 3)
    assert (solo.status(name(2)).group, solo.status(name(2)).priority) == ("", 3)


# --- a release without groups -------------------------------------------------------------------------------


class OldSubmit(msgspec.Struct, array_like=True):
    """What the release before reads."""

    id: bytes
    service: bytes
    body: list[bytes]
    at_ms: int = 0
    delay_ms: int = 0
    expires_ms: int = 0
    attempts_max: int = 0
    backoff_ms: int = 0
    backoff_max_ms: int = 0
    priority: int = 0
    headers: bytes = b""


def test_a_release_without_groups_refuses_them_and_takes_all_else() -> None:
    frame = durable.encode(Submit(name(1), b"work", [b"x"], priority=3))
    assert msgspec.msgpack.decode(frame, type=OldSubmit).priority == 3
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(
            durable.encode(Submit(name(1), b"work", [b"x"], priority=ORDERS)), type=OldSubmit
        )


@pytest.mark.parametrize("group", ["", "x" * 129])
def test_a_node_refuses_a_name_that_is_out_of_bounds(group: str) -> None:
    with pytest.raises(RemoteProtocolError):
        durable.decode(durable.encode(Submit(name(1), b"work", [b"x"], priority=Serial(0, group))), Submit)


def test_beside_a_peer_without_groups_a_node_refuses_them(solo: SoloStore) -> None:
    solo.replica.why_no_groups = NO_GROUPS
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(name(1), b"work", [b"x"], priority=ORDERS)))
    assert refused.command == native.BUSY
    assert b"install this node's release there" in refused.body[0]
    store(solo, 2, 0)


def test_a_disk_with_groups_is_refused_by_a_release_without_them(tmp_path: Path) -> None:
    """Its format says so; of a store that had none it does not, and the way back is open."""
    with Platter(tmp_path) as platter:
        platter.append(entry(1, submitted(submit(1))))
        platter.apply(1)
    assert _format(tmp_path) == sqlite_file.FORMAT
    with Platter(tmp_path) as platter:
        platter.append(entry(2, submitted(submit(2, priority=ORDERS))))
        platter.apply(2)
    assert _format(tmp_path) == sqlite_file.GROUPED
    with Platter(tmp_path) as platter:
        assert platter.opened.totals.grouped == 1


def test_a_disk_of_a_release_without_groups_takes_them(tmp_path: Path) -> None:
    with Platter(tmp_path) as platter:
        platter.append(entry(1, submitted(submit(1))))
    with sqlite_file.StoreFile(tmp_path) as file:
        file.database.execute("DROP TABLE serial")
    with Platter(tmp_path) as platter:
        platter.append(entry(2, submitted(submit(2, priority=ORDERS))))
        platter.apply(2)
        assert not platter.opened.damage


def _format(folder: Path) -> int | None:
    with sqlite_file.StoreFile(folder) as file:
        return file.get("format", int)
