"""An operator pauses, resumes and purges one service."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from bstar import records
from bstar.wire import native
from bstar.wire.dialect import Dialect
from bstar.wire.messages import ErrorCode, Request
from bstar_broker.core.mailbox import STORE
from bstar_broker.core.management import broker_state
from bstar_broker.core.records import ServiceRecord
from bstar_broker.journal.node_journal import NodeJournal
from support.desk import Desk, heard, ident, sent
from support.node_states import looked, node_state, service_state
from support.pairs import standing_pair
from test_switchover import run_command

WHY = "mia@host: its database is ill"


@pytest.fixture
def desk() -> Desk:
    """A broker with one worker of "echo" that takes two requests at once."""
    made = Desk()
    made.ready(b"worker", credit=2)
    return made


def echo(desk: Desk) -> ServiceRecord:
    return desk.ledger.services[b"echo"]


def pause(desk: Desk, for_s: float = 0.0) -> None:
    desk.broker.orders.pause(echo(desk), for_s, WHY, desk.now)


def resume(desk: Desk) -> list[list[bytes]]:
    return sent(desk.broker.orders.resume(echo(desk), WHY, desk.now))


def purge(desk: Desk) -> tuple[int, list[list[bytes]]]:
    count, outputs = desk.broker.orders.purge(echo(desk), WHY, desk.now)
    return count, sent(outputs)


def errors(frames: list[list[bytes]]) -> list[tuple[bytes, int]]:
    """Who got an ERROR, and its code."""
    told = [(each[0], heard(each)) for each in frames]
    assert all(message.command == native.ERROR for _, message in told)
    return [(receiver, message.value) for receiver, message in told]


# --- pause --------------------------------------------------------------------------------------------------


def test_a_paused_service_dispatches_nothing_and_after_a_resume_what_waits(desk: Desk) -> None:
    pause(desk)
    assert desk.request(b"client", 1) == []
    assert desk.requests(b"other", [2, 3]) == []
    assert echo(desk).queue.length == 3
    assert {frames[0] for frames in resume(desk)} == {b"worker"}
    assert echo(desk).queue.length == 1


def test_a_request_at_a_worker_is_answered_and_the_worker_gets_no_other(desk: Desk) -> None:
    desk.request(b"client", 1)
    pause(desk)
    desk.request(b"client", 2)
    assert [frames[0] for frames in desk.final(b"worker", 1)] == [b"client"]


def test_a_new_worker_of_a_paused_service_waits_as_well(desk: Desk) -> None:
    pause(desk)
    desk.request(b"client", 1)
    assert all(
        frames[0] != b"new" or heard(frames).command != native.REQUEST for frames in desk.ready(b"new")
    )
    assert echo(desk).queue.length == 1


def test_another_service_goes_on(desk: Desk) -> None:
    desk.ready(b"second", b"price")
    pause(desk)
    assert [frames[0] for frames in desk.request(b"client", 1, service=b"price")] == [b"second"]


def test_a_pause_with_a_time_ends_by_itself(desk: Desk) -> None:
    pause(desk, 2.0)
    desk.request(b"client", 1)
    desk.wait(1.5)
    assert echo(desk).queue.length == 1
    desk.wait(1.5)
    assert echo(desk).queue.length == 0
    assert desk.notices[-1] == 'service "echo" is resumed: its time is over'


def test_a_second_pause_replaces_the_time_of_the_first(desk: Desk) -> None:
    pause(desk, 1.0)
    pause(desk)
    desk.wait(3.0)
    assert echo(desk).pause_why == WHY


def test_a_pause_keeps_the_bound_of_the_queue() -> None:
    desk = Desk(queue_length_max=2)
    desk.ready(b"worker")
    pause(desk)
    for number in (1, 2):
        assert desk.request(b"client", number) == []
    assert heard(desk.request(b"client", 3)[0]).command == native.BUSY


def test_who_waited_too_long_hears_of_the_pause(desk: Desk) -> None:
    pause(desk)
    desk.request(b"client", 1, ttl_ms=500)
    told = [each for each in desk.wait(1.0) if each[0] == b"client"]
    assert errors(told) == [(b"client", ErrorCode.EXPIRED)]
    assert heard(told[0]).body == [f'service "echo" is paused by {WHY}'.encode()]


def test_a_pause_holds_through_changes_of_the_role(desk: Desk) -> None:
    pause(desk)
    desk.broker.deactivate(desk.now)
    desk.broker.activate(8)
    desk.broker.resume(desk.now)
    assert desk.request(b"client", 1) == []


def test_a_paused_service_without_workers_is_not_forgotten() -> None:
    desk = Desk(service_ttl_s=2)
    desk.request(b"client", 1, ttl_ms=100)
    pause(desk)
    desk.wait(10)
    assert echo(desk).pause_why == WHY


def test_the_state_tells_who_paused_and_for_how_long(desk: Desk) -> None:
    pause(desk, 60.0)
    desk.now = 20.0
    (state,) = broker_state(desk.ledger, desk.now).services
    assert (state.paused, state.pause_why, state.paused_for_s) == (1, WHY, 40.0)
    resume(desk)
    (state,) = broker_state(desk.ledger, desk.now).services
    assert (state.paused, state.pause_why, state.paused_for_s) == (0, "", 0.0)


def test_a_paused_service_is_in_trouble_and_its_wait_is_no_second_sign() -> None:
    waits = {"workers": 1, "idle": 1, "queued": 3, "oldest_waiting_s": 99.0}
    echo = service_state("echo", pause_why=WHY, paused_for_s=90.0, **waits)
    [found] = looked(node_state(echo, state="ACTIVE", is_active=True)).findings or []
    assert found.name == "paused"
    assert found.why == f"paused at the backup for 90 s more by {WHY}; 3 requests waiting"
    assert found.do == "bstar service resume ends that"


# --- purge --------------------------------------------------------------------------------------------------


def test_a_purge_tells_each_caller_that_nothing_was_executed(desk: Desk) -> None:
    pause(desk)
    desk.request(b"client", 1)
    desk.requests(b"other", [2, 3])
    count, frames = purge(desk)
    assert count == 3
    not_allowed = ErrorCode.NOT_ALLOWED
    assert sorted(errors(frames)) == [
        (b"client", not_allowed),
        (b"other", not_allowed),
        (b"other", not_allowed),
    ]
    assert heard(frames[0]).body == [f"an operator purged the queue: {WHY}".encode()]
    assert (desk.ledger.waiting.count, desk.ledger.requests_of, desk.ledger.by_identity) == (0, {}, {})


def test_a_purged_request_whose_worker_was_lost_may_have_been_executed(desk: Desk) -> None:
    desk.request(b"client", 1)
    pause(desk)
    desk.send(b"worker", *native.encode_disconnect())
    count, frames = purge(desk)
    assert (count, errors(frames)) == (1, [(b"client", ErrorCode.WORKER_LOST)])


def test_a_purge_leaves_what_workers_hold(desk: Desk) -> None:
    desk.request(b"client", 1)
    assert purge(desk) == (0, [])
    assert [frames[0] for frames in desk.final(b"worker", 1)] == [b"client"]


def test_a_purge_leaves_durable_requests(desk: Desk) -> None:
    pause(desk)
    desk.broker.receive(Request(STORE, Dialect.STORE, (), b"echo", [b"x"], ident(1)), desk.now)
    desk.request(b"client", 2)
    assert purge(desk)[0] == 1
    assert (echo(desk).queue.length, desk.ledger.mailbox.take()) == (1, [])
    assert [frames[0] for frames in resume(desk)] == [b"worker"]


def test_a_caller_of_plain_majordomo_hears_nothing_of_a_purge(desk: Desk) -> None:
    pause(desk)
    desk.request02(b"client")
    assert purge(desk) == (1, [])


# --- the operator's way -------------------------------------------------------------------------------------


def test_the_journal_has_each_order(desk: Desk) -> None:
    journal = Mock(who={})
    desk.ledger.observer = NodeJournal(journal, node_id=bytes(16), clock=lambda: 0.0)
    pause(desk, 2.0)
    desk.wait(4.0)
    assert [
        fields for (kind, _), fields in journal.write.call_args_list if kind is records.ServiceOrdered
    ] == [
        {"service": "echo", "order": "pause", "requests": 0, "for_us": 2_000_000, "about": "", "text": WHY},
        {
            "service": "echo",
            "order": "resume",
            "requests": 0,
            "for_us": 0,
            "about": "",
            "text": "its time is over",
        },
    ]


@pytest.mark.loopback
def test_an_operator_pauses_purges_and_resumes_a_service_of_a_running_pair() -> None:
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        service = pair.primary.state().broker.services[0].service
        assert run_command("service pause", pair, "primary", "eco", "--reason", "x")[0] == 1
        status, text = run_command("service resume", pair, "primary", service)
        assert (status, "is not paused on this node" in text) == (1, True), text
        status, text = run_command("service pause", pair, "primary", service, "--reason", "its disk")
        assert (status, "is paused on the primary until bstar service resume" in text) == (0, True), text
        pair.primary.wait_for("a queue", lambda state: state.broker.queued > 0)
        assert "its disk" in pair.primary.state().broker.services[0].pause_why
        status, text = run_command("service purge", pair, "primary", service, "--reason", "its disk")
        assert (status, "requests purged" in text) == (0, True), text
        status, text = run_command("service resume", pair, "primary", service)
        assert (status, f"{service} is resumed on the primary" in text) == (0, True), text
        load.wait_for_replies()
        assert any("an operator purged the queue" in str(failed) for failed in load.failed)
