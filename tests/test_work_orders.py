"""An operator drains a worker, and shows and cancels a request."""

from __future__ import annotations

import os
import re
from typing import TypeVar
from unittest.mock import Mock

import msgspec
import pytest

import bstar
from bstar import records
from bstar.star import Role, StarMachine, StarSettings
from bstar.wire import native
from bstar.wire.dialect import Dialect
from bstar.wire.messages import ErrorCode, Process, Ready, Request
from bstar_broker.core import BrokerSettings, Node
from bstar_broker.core.management import broker_state, worker_state
from bstar_broker.core.outputs import Send
from bstar_broker.core.records import Accepted, WorkerRecord, peer_label
from bstar_broker.core.snapshot import Finding, RequestState
from bstar_broker.journal.node_journal import NodeJournal
from bstar_broker.operate.orders import Operator, Workers
from support.desk import Desk, heard, ident, sent
from support.node_states import looked, node_state, service_state
from support.pairs import standing_pair
from test_service_orders import errors
from test_switchover import run_command, word

Told = TypeVar("Told")

WHY = "mia@host: a new disk"


@pytest.fixture
def desk() -> Desk:
    """A broker with one worker of "echo" that takes two requests at once."""
    made = Desk()
    made.ready(b"worker", credit=2)
    return made


def worker_of(desk: Desk, name: bytes = b"worker") -> WorkerRecord:
    found = desk.broker.work_orders.find_worker(peer_label(name))
    assert found is not None
    return found


def drain(desk: Desk, name: bytes = b"worker") -> None:
    assert sent(desk.broker.work_orders.drain(worker_of(desk, name), WHY, desk.now)) == []


def resume(desk: Desk, name: bytes = b"worker") -> list[list[bytes]]:
    return sent(desk.broker.work_orders.resume(worker_of(desk, name), WHY, desk.now))


def find(desk: Desk, identity: bytes) -> Accepted:
    found = desk.broker.work_orders.find_request(identity)
    assert found is not None
    return found


def cancel(desk: Desk, identity: bytes) -> list[list[bytes]]:
    return sent(desk.broker.work_orders.cancel(find(desk, identity), WHY, desk.now))


def listed(desk: Desk, count: int = 20) -> list[RequestState]:
    return desk.broker.work_orders.oldest(None, count, desk.now)


# --- drain --------------------------------------------------------------------------------------------------


def test_a_drained_worker_gets_nothing_and_after_a_resume_what_waits(desk: Desk) -> None:
    drain(desk)
    assert desk.request(b"client", 1) == []
    assert desk.requests(b"other", [2, 3]) == []
    assert {frames[0] for frames in resume(desk)} == {b"worker"}
    assert worker_of(desk).held == 2


def test_it_finishes_what_it_holds_and_stays_registered(desk: Desk) -> None:
    desk.request(b"client", 1)
    drain(desk)
    desk.request(b"client", 2)
    assert [frames[0] for frames in desk.final(b"worker", 1)] == [b"client"]
    assert (worker_of(desk).held, desk.ledger.services[b"echo"].workers) == (0, 1)


def test_the_others_get_its_share(desk: Desk) -> None:
    desk.ready(b"second", credit=5)
    drain(desk)
    assert {desk.request(b"client", number)[0][0] for number in range(1, 4)} == {b"second"}


def test_a_heartbeat_gives_a_drained_worker_nothing(desk: Desk) -> None:
    drain(desk)
    desk.request(b"client", 1)
    assert desk.send(b"worker", *native.encode_heartbeat(7)) == []


def test_a_front_that_gives_its_worker_room_does_not_end_the_drain(desk: Desk) -> None:
    drain(desk)
    desk.request(b"client", 1)
    assert desk.broker.set_credit(b"worker", 9, desk.now) == []
    assert [frames[0] for frames in resume(desk)] == [b"worker"]
    assert worker_of(desk).credit == 9


def test_a_worker_of_plain_majordomo_is_drained_as_well() -> None:
    desk = Desk()
    desk.ready02(b"plain")
    desk.request02(b"client")
    drain(desk, b"plain")
    desk.request02(b"client")
    assert [frames[0] for frames in desk.final02(b"plain", b"client")] == [b"client"]
    assert [frames[0] for frames in resume(desk, b"plain")] == [b"plain"]


def test_the_next_process_of_the_worker_gets_requests(desk: Desk) -> None:
    drain(desk)
    desk.send(b"worker", *native.encode_disconnect())
    desk.ready(b"worker")
    assert [frames[0] for frames in desk.request(b"client", 1)] == [b"worker"]
    assert desk.ledger.services[b"echo"].drained == 0


def test_a_second_drain_keeps_the_credit_of_the_first(desk: Desk) -> None:
    drain(desk)
    drain(desk)
    resume(desk)
    assert (worker_of(desk).credit, desk.ledger.services[b"echo"].drained) == (2, 0)


def test_who_waited_too_long_hears_of_the_drain(desk: Desk) -> None:
    drain(desk)
    desk.request(b"client", 1, ttl_ms=500)
    told = [each for each in desk.wait(1.0) if each[0] == b"client"]
    assert errors(told) == [(b"client", ErrorCode.EXPIRED)]
    assert heard(told[0]).body == [b'an operator drains each worker of service "echo"']


def test_listings_tell_who_drains_it(desk: Desk) -> None:
    drain(desk)
    state = worker_state(worker_of(desk), desk.now)
    assert (state.credit, state.drain_why) == (0, WHY)
    assert broker_state(desk.ledger, desk.now).services[0].drained == 1


def test_a_service_whose_workers_are_all_drained_is_in_trouble() -> None:
    def found(**changes: int) -> list[Finding]:
        echo = service_state("echo", workers=2, **changes)
        return looked(node_state(echo, state="ACTIVE", is_active=True)).findings or []

    assert found(idle=1, drained=1) == []
    [each] = found(queued=3, drained=2)
    assert each.name == "paused"
    assert str(each) == "all 2 workers are drained; 3 requests waiting: bstar workers resume ends that"


# --- find ---------------------------------------------------------------------------------------------------


def test_listings_show_what_runs_and_what_waits_of_each_client(desk: Desk) -> None:
    desk.request(b"client", 1)
    desk.now = 2.0
    desk.request(b"client", 2)
    desk.request(b"client", 3, ttl_ms=4_000)
    desk.request(b"client", 4)
    desk.requests(b"other", [5, 6])
    desk.now = 3.0
    found = {state.request: state for state in listed(desk)}
    assert list(found) == [ident(number).hex() for number in (1, 2, 3, 5)]
    first, third = found[ident(1).hex()], found[ident(3).hex()]
    label = peer_label(b"worker")
    assert (first.worker, first.age_s, first.held_s, first.deliveries) == (label, 3.0, 3.0, 1)
    assert (third.worker, third.client, third.expires_in_s) == ("", peer_label(b"client"), 3.0)
    batch = found[ident(5).hex()]
    assert (batch.requests, batch.dialect, batch.deliveries) == (2, "native", 0)
    assert len(listed(desk, count=1)) == 2


def test_a_batch_at_a_worker_is_listed_by_its_first_request_without_a_reply() -> None:
    desk = Desk()
    desk.ready(b"worker", credit=9, takes_batches=True)
    desk.requests(b"client", [1, 2, 3])
    [state] = listed(desk)
    assert (state.request, state.requests, state.worker) == (ident(1).hex(), 3, peer_label(b"worker"))
    desk.finals(b"worker", [1])
    [state] = listed(desk)
    assert (state.request, state.requests) == (ident(2).hex(), 2)


def test_a_request_is_found_in_a_batch_that_waits_and_in_one_at_a_worker() -> None:
    desk = Desk()
    desk.requests(b"client", [1, 2])
    assert find(desk, ident(2)).is_queued
    desk.ready(b"worker", credit=9, takes_batches=True)
    desk.requests(b"client", [3, 4])
    assert find(desk, ident(4)).worker == b"worker"


def test_a_request_without_a_number_is_found_by_the_name_of_the_listing(desk: Desk) -> None:
    for _ in range(3):
        desk.request02(b"client")
    for state in listed(desk):
        found = find(desk, bytes.fromhex(state.request))
        assert desk.broker.work_orders.describe(found, desk.now) == state
        assert state.dialect == "mdp02"


def test_a_request_that_ended_is_not_found(desk: Desk) -> None:
    desk.request(b"client", 1)
    desk.final(b"worker", 1)
    assert desk.broker.work_orders.find_request(ident(1)) is None


# --- cancel -------------------------------------------------------------------------------------------------


def test_a_request_that_waits_ends_unexecuted_and_leaves_no_trace() -> None:
    desk = Desk()
    desk.request(b"client", 1)
    desk.requests(b"other", [2, 3])
    told = cancel(desk, ident(1)) + cancel(desk, ident(3))
    assert errors(told) == [(b"client", ErrorCode.NOT_ALLOWED), (b"other", ErrorCode.NOT_ALLOWED)]
    assert heard(told[0]).body == [f"an operator cancelled it: {WHY}".encode()]
    assert (desk.ledger.waiting.count, list(desk.ledger.requests_of)) == (1, [b"other"])
    desk.ready(b"worker", credit=3)
    assert desk.ledger.workers[b"worker"].held == 1


def test_a_request_at_a_worker_ends_with_doubt_and_its_answer_is_dropped(desk: Desk) -> None:
    desk.request(b"client", 1)
    told, to_worker = cancel(desk, ident(1))
    assert errors([told]) == [(b"client", ErrorCode.WORKER_LOST)]
    assert heard(told).body == [f"an operator cancelled it while a worker had it: {WHY}".encode()]
    assert (to_worker[0], heard(to_worker).command) == (b"worker", native.CANCEL)
    assert worker_of(desk).held == 1
    [listed] = desk.broker.work_orders.oldest(None, 10, desk.now)
    assert listed.is_given_up
    assert desk.final(b"worker", 1) == []
    assert (worker_of(desk).held, desk.ledger.drops["late-reply"], desk.ledger.by_identity) == (0, 1, {})


def test_a_cancelled_request_is_not_given_to_another_worker(desk: Desk) -> None:
    desk.request(b"client", 1)
    cancel(desk, ident(1))
    desk.ready(b"second")
    desk.send(b"worker", *native.encode_disconnect())
    assert (desk.ledger.workers[b"second"].held, desk.ledger.waiting.count) == (0, 0)


def test_a_request_whose_worker_was_lost_may_have_been_executed(desk: Desk) -> None:
    desk.request(b"client", 1)
    desk.send(b"worker", *native.encode_disconnect())
    assert errors(cancel(desk, ident(1))) == [(b"client", ErrorCode.WORKER_LOST)]


def test_a_caller_of_plain_majordomo_hears_nothing(desk: Desk) -> None:
    desk.request02(b"client")
    [state] = listed(desk)
    [told] = cancel(desk, bytes.fromhex(state.request))
    assert told[0] == b"worker"


def test_the_journal_has_each_order(desk: Desk) -> None:
    journal = Mock(who={})
    desk.ledger.observer = NodeJournal(journal, node_id=bytes(16), clock=lambda: 0.0)
    desk.request(b"client", 1)
    drain(desk)
    resume(desk)
    cancel(desk, ident(1))
    kept = [fields for (kind, _), fields in journal.write.call_args_list if kind is records.ServiceOrdered]
    assert [(each["order"], each["about"], each["requests"], each["text"]) for each in kept] == [
        ("drain-worker", b"worker".hex(), 1, WHY),
        ("resume-worker", b"worker".hex(), 1, WHY),
        ("cancel-request", ident(1).hex(), 1, WHY),
    ]


# --- the operator's way -------------------------------------------------------------------------------------


@pytest.fixture
def node() -> Node:
    """An active node with one worker that takes one request at once."""
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    made = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    made.step(word(1, 2), 0.0)
    made.step(word(2, 4), 0.0)
    assert made.is_active
    made.receive_frames([b"worker", *native.encode_ready(b"echo", credit=1, epoch=0)], 0.0)
    return made


def test_a_listing_says_where_each_worker_runs_and_mmi_does_not(node: Node) -> None:
    node.broker.ledger.address = lambda: "10.0.0.7"
    process = Process("shop-3", 4711, "0.1.0")
    node.broker.receive(Ready(b"ours", Dialect.NATIVE, (), b"price", process=process), 2.0)
    node.broker.receive(Ready(b"foreign", Dialect.MDP02, (), b"price"), 2.5)
    operator = Operator(node, lambda outputs: None, lambda: 0.0, lambda is_trial: None)
    answer = operator.answer(b"workers-ls", b'{"service": "price"}')
    ours, foreign = msgspec.json.decode(answer, type=Workers).rows
    assert (ours.host, ours.pid, ours.address, ours.version) == ("shop-3", 4711, "10.0.0.7", "0.1.0")
    assert (foreign.host, foreign.pid, foreign.address, foreign.version) == ("", 0, "10.0.0.7", "")
    assert (ours.registered_s, foreign.registered_s) == (-2.0, -2.5), "the operator's clock stands at 0"
    asked = Request(b"client", Dialect.NATIVE, (), b"mmi.workers", [b"price"], ident(9))
    [answer] = [
        output.frames[-1] for output in node.receive_message(asked, 3.0, "") if isinstance(output, Send)
    ]
    assert len(msgspec.json.decode(answer)) == 2
    assert not {b"shop-3", b"4711", b"10.0.0.7"} & set(re.findall(rb"[\w.-]+", answer))


@pytest.mark.loopback
def test_an_operator_drains_the_workers_and_cancels_what_waits_for_them() -> None:
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        status, text = run_command("workers ls", pair, "primary", "--json")
        workers = [msgspec.json.decode(line) for line in text.splitlines()]
        assert (status, len(workers)) == (0, len(pair.workers))
        assert {each["pid"] for each in workers} == {each.pid for each in pair.workers}
        assert {each["address"] for each in workers} == {"127.0.0.1"}
        here = os.uname().nodename
        assert {(each["host"], each["version"]) for each in workers} == {(here, bstar.__version__)}
        for each in workers:
            drained = run_command("workers drain", pair, "primary", each["worker"], "--reason", "its disk")
            assert drained[0] == 0, drained
        pair.primary.wait_for("a queue", lambda state: state.broker.queued > 0)
        status, text = run_command("workers ls", pair, "primary")
        assert (status, text.count("its disk")) == (0, len(workers)), text
        pair.primary.wait_for("nothing at workers", lambda state: state.broker.in_flight == 0)
        status, text = run_command("request ls", pair, "primary", "--json", "--limit", "1")
        request = msgspec.json.decode(text.splitlines()[0])["request"]
        status, text = run_command("request show", pair, "primary", request)
        assert (status, request in text.replace("\n", "")) == (0, True), text
        status, text = run_command("request cancel", pair, "primary", request, "--reason", "too old")
        assert (status, f"request {request} of" in text) == (0, True), text
        status, text = run_command("request show", pair, "primary", request)
        assert (status, "it has ended, or never came here" in text) == (1, True), text
        status, text = run_command("workers resume", pair, "primary", workers[0]["worker"])
        assert (status, "gets requests again" in text) == (0, True), text
        load.wait_for_replies()
        assert any("an operator cancelled it" in str(failed) for failed in load.failed)
