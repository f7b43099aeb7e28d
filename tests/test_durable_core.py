"""The store at one node: what clients hear, what workers get, and when. In virtual time, disk in memory."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from bstar.star import Leave
from bstar.wire import durable, native
from bstar.wire.durable import Cause, Fetch, Missed, Repeat, Schedule, Service, Standing, State, Submit
from bstar.wire.messages import OWN_BACKOFF, ErrorCode
from bstar_broker.core.admission import REQUEST_BYTES
from bstar_broker.store.core import desk, runner
from bstar_broker.store.core import durable as durable_store
from bstar_broker.store.core.desk import ENTRY_BYTES_MAX
from bstar_broker.store.core.schedules import Schedules
from bstar_broker.store.core.settings import StoreSettings
from bstar_broker.store.core.titanic import REPLY, REQUEST
from support.solo_store import DAY_MS, SoloStore

ID = durable.new_id(1, b"0123456789")
OTHER = durable.new_id(2, b"0123456789")
WORKER = b"worker"


@pytest.fixture
def solo() -> SoloStore:
    return SoloStore()


def ready(
    solo: SoloStore, service: bytes = b"work", worker: bytes = WORKER, credit: int = 1
) -> list[native.Message]:
    """A worker registers; the requests that it gets at once."""
    return jobs(solo.say(*native.encode_ready(service, credit=credit), sender=worker))


def jobs(sent: list[list[bytes]], worker: bytes = WORKER) -> list[native.Message]:
    told = [native.decode(frames[1:]) for frames in sent if frames[0] == worker]
    return [message for message in told if message.command == native.REQUEST]


def jobs_after(solo: SoloStore, seconds: float) -> list[native.Message]:
    """The requests that the worker gets while this time passes."""
    before = len(solo.sent)
    solo.wait(seconds)
    return jobs(solo.sent[before:])


def begun(solo: SoloStore, **options: Any) -> native.Message:
    """A request is submitted, and a worker registers and gets it."""
    solo.submit(ID, **options)
    [job] = ready(solo)
    return job


def answer(
    solo: SoloStore, job: native.Message, body: bytes = b"done", worker: bytes = WORKER
) -> list[list[bytes]]:
    head = native.header(native.FINAL, identity=job.identity, epoch=job.epoch)
    return solo.say(head, body, sender=worker)


def fail(
    solo: SoloStore,
    job: native.Message,
    code: ErrorCode = ErrorCode.HANDLER_FAILED,
    retry_ms: int = OWN_BACKOFF,
) -> list[list[bytes]]:
    behind = [native.pack_retry(retry_ms)] if code == ErrorCode.RETRY else []
    frames = native.encode_error(job.identity, job.epoch, code, b"no luck", *behind)
    return solo.say(*frames, sender=WORKER)


def result(solo: SoloStore, request: bytes = ID, wait_ms: int = 0) -> list[tuple[Standing, list[bytes]]]:
    answers = solo.ask(Service.RESULT, durable.encode(Fetch(request, wait_ms)))
    return [(durable.decode(each.body[0], Standing), each.body[1:]) for each in answers]


def test_a_submit_is_answered_when_it_is_on_disk_and_not_before(solo: SoloStore) -> None:
    solo.is_held = True
    assert solo.ask(Service.SUBMIT, durable.encode(Submit(ID, b"work", [b"x"]))) == []
    solo.release()
    receipt = durable.decode(solo.sent[-1][2], durable.Receipt)
    assert (receipt.id, receipt.is_new, receipt.state) == (ID, True, State.PENDING)


def test_the_same_submit_again_is_the_same_request(solo: SoloStore) -> None:
    assert solo.submit(ID).is_new
    assert not solo.submit(ID).is_new
    assert solo.table.totals.pending == 1
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(ID, b"work", [b"other"])))
    assert (refused.command, refused.value) == (native.ERROR, ErrorCode.INVALID)


def test_a_request_waits_for_a_worker_and_its_answer_for_the_client(solo: SoloStore) -> None:
    job = begun(solo, body=b"question")
    assert job.body == [b"question"]
    assert result(solo)[0][0].state == State.PENDING
    answer(solo, job, b"42")
    [(standing, frames)] = result(solo)
    assert (standing.state, frames) == (State.ANSWERED, [b"42"])
    [again] = result(solo)
    assert again[1] == [b"42"], "fetching takes nothing away"


def test_a_client_that_waits_hears_as_soon_as_there_is_an_answer(solo: SoloStore) -> None:
    job = begun(solo)
    assert result(solo, wait_ms=5_000) == []
    sent = answer(solo, job, b"42")
    [heard] = [native.decode(frames[1:]) for frames in sent if frames[0] == b"client"]
    assert heard.body[1:] == [b"42"]


def test_a_wait_ends_with_what_is_known(solo: SoloStore) -> None:
    solo.submit(ID)
    assert result(solo, wait_ms=500) == []
    solo.wait(1.0)
    assert durable.decode(solo.sent[-1][2], Standing).state == State.PENDING


def test_parts_too_large_to_be_kept_end_the_attempt_and_no_part_of_a_reply_is_an_answer() -> None:
    solo = SoloStore(partials_buffer_bytes_max=10)
    job = begun(solo, attempts_max=2, backoff_ms=1_000)
    for index in range(3):
        solo.say(*native.encode_partial(job.identity, job.epoch, index, [b"x" * 6]), sender=WORKER)
    answer(solo, job)
    standing = solo.status(ID)
    assert (standing.state, standing.attempts) == (State.PENDING, 1)
    [again] = jobs_after(solo, 1.2)
    solo.say(*native.encode_partial(again.identity, again.epoch, 0, [b"x" * 11]), sender=WORKER)
    answer(solo, again)
    standing = solo.status(ID)
    assert (standing.state, standing.cause) == (State.DEAD, Cause.FAILED)
    assert "limits.partials_buffer_bytes_max" in standing.text


@pytest.mark.parametrize("is_successor", [False, True])
def test_a_wall_clock_that_is_behind_the_log_holds_nothing_up(*, is_successor: bool) -> None:
    """It was set back, or the clock of the node that led before was ahead."""
    solo = SoloStore()
    solo.skipped_ms = 3_600_000
    if is_successor:
        solo.replica.at_ms = solo.wall_ms()
    else:
        solo.submit(OTHER, b"none")
    solo.skipped_ms = 0
    job = begun(solo, backoff_ms=1_000, expires_ms=10_000)
    assert solo.status(ID).submitted_ms >= DAY_MS + 3_600_000, "the log's time never goes back"
    fail(solo, job)
    assert jobs_after(solo, 0.9) == []
    [again] = jobs_after(solo, 0.3)
    fail(solo, again)
    solo.wait(10.0)
    assert solo.status(ID).cause == Cause.EXPIRED


def test_seconds_in_which_requests_expire_are_remembered_up_to_a_bound(
    solo: SoloStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_store, "_SECONDS_MAX", 2)
    for number in range(1, 5):
        solo.submit(durable.new_id(number, b"0123456789"), expires_ms=1_000 * number)
    solo.wait(2.5)
    assert solo.table.totals.dead == 2
    solo.wait(60.0)
    assert solo.table.totals.dead == 4, "the sweep of each minute ends the others"


def test_questions_that_wait_for_the_disk_are_bounded_and_hold_no_body(
    solo: SoloStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_WAITING_MAX", 2)
    solo.is_held = True
    ignored = bytes(1_000_000)
    held = sys.getrefcount(ignored)
    for _ in range(2):
        assert solo.ask(Service.STATUS, durable.encode(Fetch(ID)), ignored) == []
    assert sys.getrefcount(ignored) == held
    [refusal] = solo.ask(Service.STATUS, durable.encode(Fetch(ID)))
    assert refusal.command == native.BUSY
    [*_, status] = solo.say(b"MDPC02", b"\x01", REPLY, ID.hex().encode(), sender=b"plain")[-1]
    assert status == b"500"


def test_schedules_count_among_the_requests_of_the_store_and_their_bodies_stay_on_its_disk() -> None:
    solo = SoloStore(StoreSettings(requests_max=1))
    asked = Schedule(Submit(ID, b"work", [b"large"]), Repeat(every_ms=60_000))
    assert solo.ask(Service.SCHEDULE, durable.encode(asked))[0].command == native.FINAL
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(OTHER, b"work", [b"x"])))
    assert (refused.command, b"store.requests_max" in refused.body[0]) == (native.BUSY, True)
    record, schedules = solo.table.get(ID), Schedules()
    assert record is not None
    held = sys.getrefcount(record)
    schedules.note(record)
    assert sys.getrefcount(record) == held
    [(fired, size_bytes)] = schedules.due(record.due_ms, 10, 10)
    assert (fired.runs_ms, size_bytes) == ([record.due_ms], len(b"large"))


def test_schedules_that_change_for_ever_take_no_more_memory() -> None:
    """Their next times may be years away."""
    solo, schedules = SoloStore(), Schedules()
    asked = Schedule(Submit(ID, b"work", [b"x"]), Repeat(every_ms=60_000))
    solo.ask(Service.SCHEDULE, durable.encode(asked))
    record = solo.table.get(ID)
    assert record is not None
    tracemalloc.start()
    try:
        for number in range(20_000):
            schedules.note(replace(record, due_ms=record.due_ms + number))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert len(schedules.due(record.due_ms + 20_000, 10, 10)) == 1


def test_parts_that_came_while_the_node_did_not_serve_are_missed_and_the_attempt_fails() -> None:
    """The worker goes on with an attempt while its node steps down and serves again."""
    solo = SoloStore(worker_liveness=100, busy_timeout_s=100.0)
    job = begun(solo, backoff_ms=1_000)

    def partial(index: int) -> None:
        solo.say(*native.encode_partial(job.identity, job.epoch, index, [b"part"]), sender=WORKER)

    partial(0)
    solo.step_down()
    partial(1)
    solo.miss_peer()
    solo.ask(Service.STATUS, durable.encode(Fetch(ID)))  # the vote
    solo.tick(0.1)
    answer(solo, job)
    standing = solo.status(ID)
    assert (standing.state, standing.attempts) == (State.PENDING, 1)
    assert "came while it was given up" in standing.text


def test_an_error_of_a_worker_with_a_code_of_a_later_release_is_a_failed_attempt(solo: SoloStore) -> None:
    job = begun(solo)
    head = native.header(native.ERROR, identity=job.identity, epoch=job.epoch, value=99)
    solo.say(head, b"new trouble", sender=WORKER)
    standing = solo.status(ID)
    assert (standing.state, standing.attempts, standing.text) == (State.PENDING, 1, "new trouble")


def test_a_request_with_the_identity_of_a_durable_one_neither_ends_nor_delays_it_for_ever(
    solo: SoloStore,
) -> None:
    """Who knows service and key of a durable request can make its identity."""

    def steal() -> native.Message | None:
        frames = native.encode_request(runner.identity_of(ID), b"work", [b"other"])
        answers = [each for each in solo.say(*frames, sender=b"thief") if each[0] == b"thief"]
        return native.decode(answers[0][1:]) if answers else None

    job = begun(solo)
    refusal = steal()
    assert refusal is not None
    assert refusal.command == native.BUSY
    fail(solo, job, ErrorCode.RETRY, retry_ms=1_000)
    assert steal() is None, "its own request, as long as the store has none at the broker"
    [stolen] = jobs(solo.sent[-1:])
    assert jobs_after(solo, 2.0) == []
    answer(solo, stolen)
    [again] = jobs_after(solo, 1.0)
    assert (again.identity, again.body) == (job.identity, [b"x"])
    answer(solo, again, b"done")
    assert result(solo)[0][1] == [b"done"]


def test_a_failed_attempt_is_tried_again_later_and_the_worker_hears_which_it_is(solo: SoloStore) -> None:
    job = begun(solo, attempts_max=2, backoff_ms=1_000, headers=b"\x03\x00\x03\x01ab")
    assert job.extensions.startswith(b"\x41\x00\x02\x00\x01")
    fail(solo, job)
    assert solo.status(ID).attempts == 1
    assert jobs_after(solo, 0.9) == []
    [again] = jobs_after(solo, 0.3)
    assert again.identity == job.identity
    assert again.extensions.startswith(b"\x41\x00\x02\x00\x02\x03\x00\x03\x01ab")
    assert again.flags & native.FLAG_REDELIVERED
    fail(solo, again)
    standing = solo.status(ID)
    assert (standing.state, standing.cause, standing.text) == (State.DEAD, Cause.FAILED, "no luck")


def test_a_handler_chooses_the_time_of_the_next_attempt(solo: SoloStore) -> None:
    job = begun(solo, backoff_ms=1)
    fail(solo, job, ErrorCode.RETRY, retry_ms=3_000)
    assert jobs_after(solo, 2.8) == []
    assert len(jobs_after(solo, 0.4)) == 1


def test_a_handler_that_asks_for_another_attempt_has_not_failed(solo: SoloStore) -> None:
    job = begun(solo)
    fail(solo, job, ErrorCode.RETRY, retry_ms=3_000)
    assert solo.node.store is not None
    attempts = solo.node.store.state(solo.now).attempts
    assert attempts == {"answered": 0, "declined": 0, "failed": 0, "retried": 1, "returned": 0}
    [service] = [each for each in solo.node.state(solo.now).broker.services if each.service == "work"]
    assert (service.failed, service.returned) == (0, 1)


def test_the_log_tells_when_a_copy_is_lost_and_when_it_is_back(solo: SoloStore) -> None:
    solo.wait(1)
    assert solo.notices == []
    solo.replica.copies = 1
    solo.wait(1)
    [lost] = solo.notices
    assert "one copy" in lost
    assert "refused" in lost
    solo.replica.copies = 2
    solo.wait(1)
    assert solo.notices[1:] == ["the store has two copies again"]


def test_nothing_pending_has_no_age(solo: SoloStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk looks for the oldest request now and then, and it may have ended since."""
    store = solo.node.store
    assert store is not None
    monkeypatch.setattr(store, "_disk_state", lambda: SimpleNamespace(oldest_due_ms=solo.wall_ms() - 5_000))
    solo.submit(ID)
    assert store.state(solo.now).oldest_pending_s >= 5
    [job] = ready(solo)
    answer(solo, job, b"done")
    state = store.state(solo.now)
    assert (state.pending, state.oldest_pending_s) == (0, 0.0)


def test_a_dead_letter_runs_again_when_somebody_says_so(solo: SoloStore) -> None:
    job = begun(solo, attempts_max=1)
    fail(solo, job)
    before = len(solo.sent)
    solo.ask(Service.RETRY, ID)
    [again] = jobs(solo.sent[before:])
    answer(solo, again, b"at last")
    assert result(solo)[0][1] == [b"at last"]


def test_what_was_cancelled_does_not_begin(solo: SoloStore) -> None:
    solo.submit(ID, delay_ms=1_000)
    [said] = solo.ask(Service.CANCEL, ID)
    assert durable.decode(said.body[0], Standing).state == State.CANCELLED
    ready(solo)
    assert jobs_after(solo, 3.0) == []


def test_what_was_closed_while_it_waited_at_the_broker_does_not_begin(solo: SoloStore) -> None:
    """The broker had it already: both workers' credit is used up, and it stood in the queue."""
    job = begun(solo)
    solo.submit(OTHER)
    solo.ask(Service.CLOSE, OTHER)
    sent = answer(solo, job)
    assert jobs(sent) == []
    assert solo.status(OTHER).state == State.UNKNOWN


def test_an_answer_that_comes_after_the_close_is_nobodys(solo: SoloStore) -> None:
    job = begun(solo)
    solo.ask(Service.CLOSE, ID)
    answer(solo, job)
    assert solo.status(ID).state == State.UNKNOWN
    solo.submit(OTHER)
    assert len(jobs(solo.sent)) == 2, "its worker has credit again"


def test_delayed_requests_begin_at_their_time_and_the_urgent_first(solo: SoloStore) -> None:
    solo.submit(ID, delay_ms=2_000, body=b"late")
    solo.submit(OTHER, delay_ms=2_000, body=b"late but urgent", priority=9)
    ready(solo, credit=1)
    assert jobs_after(solo, 1.5) == []
    [job] = jobs_after(solo, 1.0)
    assert job.body == [b"late but urgent"]


def test_requests_expire(solo: SoloStore) -> None:
    solo.submit(ID, expires_ms=1_000)
    solo.wait(2.0)
    standing = solo.status(ID)
    assert (standing.state, standing.cause) == (State.DEAD, Cause.EXPIRED)


def test_answers_are_kept_for_their_time() -> None:
    solo = SoloStore(StoreSettings(keep_answers_s=10.0))
    job = begun(solo)
    answer(solo, job)
    solo.wait(5.0)
    assert solo.status(ID).state == State.ANSWERED
    solo.wait(70.0)
    assert solo.status(ID).state == State.UNKNOWN


def test_the_role_moves_when_the_answers_are_on_the_disks() -> None:
    """Otherwise the peer has the request executed again."""
    solo = SoloStore()
    job = begun(solo)
    solo.carry_out(solo.node.switch_over(solo.now))
    solo.is_held = True
    answer(solo, job)
    assert solo.node.is_active
    solo.release()
    assert solo.table.totals.answered == 1
    assert not solo.node.is_active


@pytest.mark.parametrize("is_stop", [False, True])
def test_the_role_waits_for_a_disk_that_hangs_until_the_drain_is_over(is_stop: bool) -> None:
    solo = SoloStore()
    job = begun(solo)
    solo.carry_out(solo.node.step(Leave(), solo.now) if is_stop else solo.node.switch_over(solo.now))
    solo.is_held = True
    answer(solo, job)
    solo.wait(4.0)
    assert solo.node.is_active
    solo.wait(2.0)
    assert not solo.node.is_active


def test_a_clock_that_is_set_ahead_and_back_makes_no_answer_old() -> None:
    solo = SoloStore(StoreSettings(keep_answers_s=100.0))
    answer(solo, begun(solo))
    solo.skipped_ms = 1_000_000
    solo.wait(70.0)
    solo.skipped_ms = 0
    solo.wait(20.0)
    assert solo.status(ID).state == State.ANSWERED
    solo.wait(80.0)
    assert solo.status(ID).state == State.UNKNOWN


def test_a_clock_that_stays_ahead_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_store, "_LEAP_S", 100.0)
    solo = SoloStore(StoreSettings(keep_answers_s=500.0))
    answer(solo, begun(solo))
    solo.skipped_ms = 1_000_000
    solo.wait(100.0)
    assert solo.status(ID).state == State.ANSWERED
    solo.wait(130.0)
    assert solo.status(ID).state == State.UNKNOWN


def test_a_node_that_takes_over_with_its_clock_ahead_makes_no_answer_old() -> None:
    solo = SoloStore(StoreSettings(keep_answers_s=100.0))
    answer(solo, begun(solo))
    solo.step_down()
    solo.skipped_ms = 1_000_000
    solo.miss_peer()
    solo.ask(Service.STATUS, durable.encode(Fetch(ID)))
    for _ in range(700):
        solo.tick(0.1)
    assert solo.status(ID).state == State.ANSWERED


def test_more_requests_than_the_broker_takes_at_once_all_run(solo: SoloStore) -> None:
    ids = [durable.new_id(place, b"0123456789") for place in range(1_500)]
    for request in ids:
        solo.submit(request)
    given = ready(solo, credit=100)
    done = 0
    while given:
        job = given.pop(0)
        done += 1
        given += jobs(answer(solo, job))
        if not given:
            given += jobs_after(solo, 0.2)
    assert done == len(ids)
    assert solo.table.totals.answered == len(ids)


def test_without_a_second_copy_new_requests_are_refused_for_now(solo: SoloStore) -> None:
    solo.submit(ID)
    solo.replica.copies = 1
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(OTHER, b"work", [b"x"])))
    assert refused.command == native.BUSY
    [job] = ready(solo)
    answer(solo, job, b"goes on")
    assert result(solo)[0][1] == [b"goes on"]


def test_a_request_that_lost_its_second_copy_on_the_way_is_not_acknowledged(solo: SoloStore) -> None:
    solo.is_held = True
    solo.ask(Service.SUBMIT, durable.encode(Submit(ID, b"work", [b"x"])))
    solo.replica.copies = 1
    solo.release()
    assert native.decode(solo.sent[-1][1:]).command == native.BUSY


def test_with_accept_one_copy_is_enough() -> None:
    solo = SoloStore(StoreSettings(when_alone="accept"))
    solo.replica.copies = 1
    assert solo.submit(ID).is_new


def test_a_full_store_refuses_for_now() -> None:
    solo = SoloStore(StoreSettings(requests_max=1))
    solo.submit(ID)
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(OTHER, b"work", [b"x"])))
    assert refused.command == native.BUSY
    assert refused.body[0].startswith(b"the store holds 1 request (store.requests_max), 1 of them pending: ")


def test_a_node_without_memory_refuses_for_now_however_it_is_asked(solo: SoloStore) -> None:
    """While the disk stalls, what was submitted waits in memory."""
    solo.node.broker.ledger.memory_left = 1_000
    row = durable.encode(Submit(ID, b"work", [b"x"]))
    [refused] = solo.ask(Service.SUBMIT, row)
    assert refused.command == native.BUSY
    frames = native.encode_requests(b"c" * 16, b"store.submit", [1], [0], [row], epoch=0, is_repeated=False)
    assert [native.decode(each[1:]).command for each in solo.say(*frames)] == [native.BUSY]
    request = native.encode_request(
        native.identity(b"c" * 16, 9_999), REQUEST, [b"work", b"x"], ttl_ms=0, epoch=0, is_repeated=False
    )
    assert [native.decode(each[1:]).body for each in solo.say(*request)] == [[b"500"]]
    assert solo.table.records == {}


def test_each_submit_takes_its_part_of_the_memory_that_is_left(solo: SoloStore) -> None:
    """Between two looks at the process's size a burst cannot take more than there was."""
    solo.is_held = True
    ledger = solo.node.broker.ledger
    ledger.memory_left = 3 * (REQUEST_BYTES + 1_000)
    for place in range(4):
        request = durable.new_id(place, b"0123456789")
        answers = solo.ask(Service.SUBMIT, durable.encode(Submit(request, b"work", [bytes(1_000)])))
        assert [answer.command for answer in answers] == ([] if place < 3 else [native.BUSY])
    assert ledger.memory_left == 0


def test_the_headers_of_a_submit_take_memory_too(solo: SoloStore) -> None:
    solo.node.broker.ledger.memory_left = REQUEST_BYTES + 1_000
    row = durable.encode(Submit(ID, b"work", [b"x"], headers=bytes(1_000)))
    [refused] = solo.ask(Service.SUBMIT, row)
    assert refused.command == native.BUSY


def test_a_request_that_its_predecessor_may_have_begun_is_marked_for_its_worker() -> None:
    """It may have run there: a worker that is not idempotent must know."""
    before = SoloStore()
    before.submit(ID)
    solo = successor(before)
    [job] = ready(solo, credit=2)
    assert job.flags & native.FLAG_REDELIVERED
    before_submit = len(solo.sent)
    solo.submit(OTHER)
    [fresh] = jobs(solo.sent[before_submit:])
    assert not fresh.flags & native.FLAG_REDELIVERED, "nobody else has had it"


def successor(leader: SoloStore) -> SoloStore:
    """The peer, which has copied all entries of this node and serves now."""
    node = SoloStore()
    node.step_down()
    for entry in leader.log[len(node.log) :]:
        node.carry_out(node.replica.propose(entry.commands, entry.at_ms, node.now))
    node.miss_peer()
    node.ask(Service.STATUS, durable.encode(Fetch(ID)))
    assert node.node.is_active
    return node


def test_requests_that_the_broker_returns_take_no_room_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is full for long: each refusal gives back what the request took of the bound in octets."""
    monkeypatch.setattr(runner, "_BYTES_MAX", 5_000)
    solo = SoloStore(queue_length_max=1)
    [plain] = [native.encode_request(native.identity(b"p" * 16, 1), b"work", [b"fills the queue"], ttl_ms=0)]
    assert ready(solo) == []
    [busy] = jobs(solo.say(*plain, sender=b"plain"))
    solo.say(*native.encode_request(native.identity(b"p" * 16, 2), b"work", [b"waits"]), sender=b"plain")
    solo.submit(ID)
    solo.wait(3.0)
    store = solo.node.store
    assert store is not None
    assert store.state(solo.now).attempts["returned"] > 5
    [waits] = jobs(answer(solo, busy))
    answer(solo, waits)
    assert [job.identity[:16] for job in jobs_after(solo, 0.2)] == [ID]


def test_all_that_expires_at_once_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry ends so many at most; the next one does not wait for the next minute."""
    monkeypatch.setattr(durable_store, "_SWEEP_LIMIT", 10)
    solo = SoloStore()
    for place in range(35):
        solo.submit(durable.new_id(place, b"0123456789"), expires_ms=1_000)
    solo.wait(2.0)
    assert solo.table.totals.pending == 0
    assert solo.table.totals.dead == 35


def submits(solo: SoloStore, count: int, octets: int) -> list[native.Message]:
    """The answers to so many submits, each of a body with so many octets."""
    ids = (durable.new_id(number, b"%10d" % octets) for number in range(count))
    rows = (Submit(each, b"work", [bytes(octets)]) for each in ids)
    return [told for row in rows for told in solo.ask(Service.SUBMIT, durable.encode(row))]


def test_large_submits_leave_in_entries_of_bounded_octets(solo: SoloStore) -> None:
    """However many wait: both nodes copy an entry and compute its checksum within one turn."""
    solo.is_held = True
    before = len(solo.log)
    assert submits(solo, 30, 1_000_000) == []
    solo.release()
    sizes = [len(entry.commands) for entry in solo.log[before:]]
    assert sum(sizes) > 30_000_000
    assert max(sizes) <= ENTRY_BYTES_MAX
    assert solo.table.totals.pending == 30


def test_an_entry_has_one_order_however_large(solo: SoloStore) -> None:
    assert submits(solo, 2, ENTRY_BYTES_MAX + 1)[1].command == native.FINAL


def test_what_waits_for_the_disks_is_bounded_in_octets_and_taken_again_when_they_have_it(
    solo: SoloStore,
) -> None:
    solo.is_held = True
    refused = submits(solo, 20, 4 << 20)
    assert [told.command for told in refused] == [native.BUSY] * 5, "64 MiB are taken"
    assert b"wait for the disks" in refused[0].body[0]
    solo.release()
    assert solo.table.totals.pending == 15
    assert [told.command for told in submits(solo, 20, 4 << 20)] == [native.FINAL] * 20
    # A new leader does not count what the former one had.
    solo.is_held = True
    submits(solo, 40, 4 << 20)
    solo.step_down()
    assert solo.node.store is not None
    assert solo.node.store._desk.waiting_bytes == 0  # type: ignore[attr-defined]


def test_a_submit_is_refused_while_what_it_becomes_on_its_way_does_not_fit(solo: SoloStore) -> None:
    """A small one needs little: a node of little memory takes it."""
    ledger = solo.node.broker.ledger
    ledger.memory_left = 20 << 20
    [large] = submits(solo, 1, 1 << 20)
    assert (large.command, large.body) == (native.BUSY, [b"the node's memory is used up"])
    assert [told.command for told in submits(solo, 5, 1_000)] == [native.FINAL] * 5
    ledger.memory_left = 40 << 20
    [large] = submits(solo, 1, 1 << 20)
    assert large.command == native.FINAL
    assert ledger.memory_left < 39 << 20


def test_a_client_that_does_not_read_gets_no_more_answers_and_others_do(solo: SoloStore) -> None:
    """It hears BUSY, which is small, and asks again. Without memory nobody gets an answer."""
    job = begun(solo)
    answer(solo, job, bytes(1 << 20))
    fetch = durable.encode(Fetch(ID))
    ledger = solo.node.broker.ledger
    before = ledger.memory_left
    [whole] = solo.ask(Service.RESULT, fetch)
    assert whole.body[1] == bytes(1 << 20)
    assert ledger.memory_left == before - (1 << 20)
    ledger.waiting.unread[b"client"] = 32 << 20
    [refused] = solo.ask(Service.RESULT, fetch)
    assert (refused.command, refused.body[0][:8]) == (native.BUSY, b"33554432")
    assert ledger.drops["unread-replies"] == 1
    request = native.encode_request(native.identity(b"c" * 16, 9_999), b"titanic.reply", [ID.hex().encode()])
    [asked_again] = solo.say(*request)
    assert native.decode(asked_again[1:]).body == [b"500"]
    assert solo.status(ID).state == State.ANSWERED, "what is small is answered"
    [other] = solo.ask(Service.RESULT, fetch, sender=b"other")
    assert other.command == native.FINAL
    ledger.memory_left = 1_000
    [refused] = solo.ask(Service.RESULT, fetch, sender=b"other")
    assert (refused.command, refused.body) == (native.BUSY, [b"the node's memory is used up"])


def test_whoever_waits_for_an_answer_and_does_not_read_asks_again(solo: SoloStore) -> None:
    solo.submit(ID)
    assert solo.ask(Service.RESULT, durable.encode(Fetch(ID, 60_000))) == []
    solo.node.broker.ledger.waiting.unread[b"client"] = 32 << 20
    [job] = ready(solo)
    told = [
        native.decode(frames[1:]) for frames in answer(solo, job, bytes(1 << 20)) if frames[0] == b"client"
    ]
    assert [message.command for message in told] == [native.BUSY]


def test_a_node_that_steps_down_sends_those_who_wait_to_the_other(solo: SoloStore) -> None:
    solo.submit(ID)
    assert result(solo, wait_ms=60_000) == []
    solo.is_held = True
    solo.ask(Service.SUBMIT, durable.encode(Submit(OTHER, b"work", [b"x"])))
    before = len(solo.sent)
    solo.step_down()
    told = [native.decode(frames[1:]).command for frames in solo.sent[before:] if frames[0] == b"client"]
    assert told.count(native.NOT_ACTIVE) == 2


def test_a_store_whose_disk_works_again_goes_on_in_its_epoch(solo: SoloStore) -> None:
    """No entry comes that could tell it to begin."""
    solo.submit(ID)
    solo.replica.is_leading, solo.replica.trouble = False, "the disk fails"
    solo.wait(0.1)
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(OTHER, b"work", [b"x"])))
    assert refused.command == native.BUSY
    solo.replica.is_leading, solo.replica.trouble = True, ""
    solo.wait(0.1)
    assert solo.submit(OTHER).is_new
    assert len(ready(solo, credit=2)) == 2


def test_a_batch_is_one_entry_and_one_answer(solo: SoloStore) -> None:
    rows = [
        durable.encode(Submit(durable.new_id(place, b"0123456789"), b"work", [b"x"])) for place in range(50)
    ]
    rows[7] = b"garbage"
    frames = native.encode_requests(
        b"c" * 16, b"store.submit", range(1, 51), [0] * 50, rows, epoch=0, is_repeated=False
    )
    entries = len(solo.log)
    told = [native.decode(each[1:]) for each in solo.say(*frames)]
    assert sorted(message.command for message in told) == [native.ERROR, native.FINALS]
    assert len(solo.log) == entries + 1
    assert solo.table.totals.pending == 49


@pytest.mark.parametrize("service", [each for each in Service if each is not Service.SUBMIT])
@pytest.mark.parametrize("body", [b"", b"\xff" * 40, b"\x91\xc0"], ids=["empty", "octets", "types"])
def test_garbage_is_refused_by_name(solo: SoloStore, service: Service, body: bytes) -> None:
    [refused] = solo.ask(service, body)
    assert (refused.command, refused.value) == (native.ERROR, ErrorCode.INVALID)
    assert refused.body[0]


# --- schedules ----------------------------------------------------------------------------------------------


def schedule(solo: SoloStore, repeat: Repeat, **options: Any) -> durable.Receipt:
    frame = durable.encode(Schedule(Submit(ID, b"work", [b"tick"], **options), repeat))
    [answer] = solo.ask(Service.SCHEDULE, frame)
    assert answer.command == native.FINAL, answer.body
    return durable.decode(answer.body[0], durable.Receipt)


def pending(solo: SoloStore) -> list[int]:
    return sorted(
        record.submitted_ms - DAY_MS
        for record in solo.table.records.values()
        if record.state == State.PENDING and record.id != ID
    )


def test_a_schedule_makes_a_request_at_each_of_its_times(solo: SoloStore) -> None:
    assert schedule(solo, Repeat(every_ms=10_000)).is_new
    assert not schedule(solo, Repeat(every_ms=10_000)).is_new
    solo.wait(35.0)
    assert len(pending(solo)) == 3
    [job] = ready(solo)
    assert job.body == [b"tick"]
    status = solo.status(ID)
    assert status.state == State.SCHEDULED
    assert status.due_ms - status.last_ms == 10_000
    assert not any(record.last_ms for record in solo.table.records.values() if record.id != ID)


def test_a_schedule_with_a_number_of_runs_ends_after_them(solo: SoloStore) -> None:
    schedule(solo, Repeat(every_ms=10_000, runs=2))
    solo.wait(55.0)
    assert len(pending(solo)) == 2
    assert solo.status(ID).state == State.CANCELLED


def test_a_cancelled_schedule_makes_no_more_requests(solo: SoloStore) -> None:
    schedule(solo, Repeat(every_ms=10_000))
    solo.wait(15.0)
    solo.ask(Service.CANCEL, ID)
    solo.wait(60.0)
    assert len(pending(solo)) == 1
    assert solo.status(ID).state == State.CANCELLED
    solo.ask(Service.RETRY, ID)
    assert solo.status(ID).state == State.CANCELLED, "a schedule is no request that could run again"


def test_a_submit_with_the_key_of_a_schedule_is_refused(solo: SoloStore) -> None:
    schedule(solo, Repeat(every_ms=10_000))
    [refused] = solo.ask(Service.SUBMIT, durable.encode(Submit(ID, b"work", [b"tick"])))
    assert (refused.command, refused.value) == (native.ERROR, ErrorCode.INVALID)
    assert solo.status(ID).state == State.SCHEDULED


def test_a_closed_schedule_is_forgotten(solo: SoloStore) -> None:
    schedule(solo, Repeat(every_ms=10_000))
    solo.ask(Service.CLOSE, ID)
    solo.wait(60.0)
    assert solo.table.records == {}


def test_the_first_time_can_be_chosen(solo: SoloStore) -> None:
    schedule(solo, Repeat(every_ms=60_000), delay_ms=5_000)
    solo.wait(6.0)
    assert len(pending(solo)) == 1


@pytest.mark.parametrize(("missed", "runs"), [(Missed.SKIP, 1), (Missed.ONCE, 1), (Missed.EACH, 60)], ids=str)
def test_times_that_pass_while_nobody_serves(solo: SoloStore, missed: Missed, runs: int) -> None:
    schedule(solo, Repeat(every_ms=60_000, missed=missed))
    solo.skipped_ms = 3_601_000  # nobody looked for an hour
    solo.wait(0.2)
    assert len(pending(solo)) == runs


@pytest.mark.parametrize("bounds", [StoreSettings(requests_max=3), StoreSettings(bytes_max=12)], ids=str)
def test_a_full_store_gets_nothing_from_schedules(bounds: StoreSettings) -> None:
    solo = SoloStore(bounds)
    schedule(solo, Repeat(every_ms=10_000))
    solo.wait(300.0)
    assert len(pending(solo)) == 2
    for record in list(solo.table.records.values()):
        if record.id != ID:
            solo.ask(Service.CLOSE, record.id)
    solo.wait(0.2)
    assert len(pending(solo)) == 6, "the times of the last minute; those before it were missed"


def test_large_requests_for_missed_times_are_made_one_after_another(solo: SoloStore) -> None:
    body = [bytes(1 << 20)]
    repeat = Repeat(every_ms=60_000, missed=Missed.EACH, runs=50)
    solo.ask(Service.SCHEDULE, durable.encode(Schedule(Submit(ID, b"work", body), repeat)))
    solo.skipped_ms = 3_601_000
    counts = [0]
    while solo.status(ID).state == State.SCHEDULED:
        solo.wait(0.1)
        counts.append(len(pending(solo)))
    assert counts[-1] == 50
    assert max(after - before for before, after in pairwise(counts)) <= 4


@pytest.mark.parametrize(
    "repeat",
    [
        Repeat(),
        Repeat(every_ms=10_000, cron="* * * * *"),
        Repeat(every_ms=1),
        Repeat(cron="every day"),
        Repeat(cron="61 * * * *"),
        Repeat(cron="* * * * *", zone="Europe/Nowhere"),
        Repeat(cron="* * * * *", zone="../../etc/passwd"),
        Repeat(cron="0 0 30 2 *"),
    ],
    ids=str,
)
def test_what_are_no_times_is_refused(solo: SoloStore, repeat: Repeat) -> None:
    [refused] = solo.ask(Service.SCHEDULE, durable.encode(Schedule(Submit(ID, b"work", [b"tick"]), repeat)))
    assert (refused.command, refused.value) == (native.ERROR, ErrorCode.INVALID)
    assert solo.table.records == {}
