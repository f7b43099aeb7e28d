"""Orders about services, workers and requests, where scripts do not show them (test_orders.py)."""

from __future__ import annotations

import os
import re
from unittest.mock import Mock

import msgspec
import pytest

import bstar
from bstar import records
from bstar.star import Role, StarMachine, StarSettings
from bstar.wire import native
from bstar.wire.dialect import Dialect
from bstar.wire.messages import Process, Ready, Request
from bstar_broker.core import BrokerSettings, Node
from bstar_broker.core.management import broker_state
from bstar_broker.core.outputs import Send
from bstar_broker.core.records import Accepted, ServiceRecord, WorkerRecord, peer_label
from bstar_broker.core.snapshot import Finding, RequestState
from bstar_broker.journal.node_journal import NodeJournal
from bstar_broker.operate.orders import Operator, Workers
from support.desk import Desk, heard, ident, sent
from support.node_states import looked, node_state, service_state
from support.pairs import standing_pair
from test_switchover import run_command, word

WHY = "mia@host: its database is ill"


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


# --- services -----------------------------------------------------------------------------------------------


def echo(desk: Desk) -> ServiceRecord:
    return desk.ledger.services[b"echo"]


def pause(desk: Desk, for_s: float = 0.0) -> None:
    desk.broker.orders.pause(echo(desk), for_s, WHY, desk.now)


def resume_service(desk: Desk) -> list[list[bytes]]:
    return sent(desk.broker.orders.resume(echo(desk), WHY, desk.now))


def test_a_pause_holds_through_changes_of_the_role(desk: Desk) -> None:
    pause(desk)
    desk.broker.deactivate(desk.now)
    desk.broker.activate(8)
    desk.broker.resume(desk.now)
    assert desk.request(b"client", 1) == []


def test_the_state_tells_who_paused_and_for_how_long(desk: Desk) -> None:
    pause(desk, 60.0)
    desk.now = 20.0
    (state,) = broker_state(desk.ledger, desk.now).services
    assert (state.paused, state.pause_why, state.paused_for_s) == (1, WHY, 40.0)
    resume_service(desk)
    (state,) = broker_state(desk.ledger, desk.now).services
    assert (state.paused, state.pause_why, state.paused_for_s) == (0, "", 0.0)


def test_a_paused_service_is_in_trouble_and_its_wait_is_no_second_sign() -> None:
    waits = {"workers": 1, "idle": 1, "queued": 3, "oldest_waiting_s": 99.0}
    echo = service_state("echo", pause_why=WHY, paused_for_s=90.0, **waits)
    [found] = looked(node_state(echo, state="ACTIVE", is_active=True)).findings or []
    assert found.name == "paused"
    assert found.why == f"paused at the backup for 90 s more by {WHY}; 3 requests waiting"
    assert found.do == "bstar service resume ends that"


def test_the_journal_has_each_order_about_a_service(desk: Desk) -> None:
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


# --- workers and requests -----------------------------------------------------------------------------------


def test_a_service_whose_workers_are_all_drained_is_in_trouble() -> None:
    def found(**changes: int) -> list[Finding]:
        echo = service_state("echo", workers=2, **changes)
        return looked(node_state(echo, state="ACTIVE", is_active=True)).findings or []

    assert found(idle=1, drained=1) == []
    [each] = found(queued=3, drained=2)
    assert each.name == "paused"
    assert str(each) == "all 2 workers are drained; 3 requests waiting: bstar workers resume ends that"


def test_a_request_without_a_number_is_found_by_the_name_of_the_listing(desk: Desk) -> None:
    for _ in range(3):
        desk.request02(b"client")
    for state in listed(desk):
        found = find(desk, bytes.fromhex(state.request))
        assert desk.broker.work_orders.describe(found, desk.now) == state
        assert state.dialect == "mdp02"


def test_a_caller_of_plain_majordomo_hears_nothing(desk: Desk) -> None:
    desk.request02(b"client")
    [state] = listed(desk)
    [told] = cancel(desk, bytes.fromhex(state.request))
    assert told[0] == b"worker"


def test_a_request_that_is_cancelled_at_its_worker_is_no_failure_of_the_service(desk: Desk) -> None:
    desk.request(b"client", 1)
    answer, told = cancel(desk, ident(1))
    assert (answer[0], heard(answer).command) == (b"client", native.ERROR)
    assert (told[0], heard(told).command) == (b"worker", native.CANCEL)
    assert desk.final(b"worker", 1) == []
    tally = echo(desk).tally
    assert (tally.cancelled, tally.lost, tally.failed, tally.answered) == (1, 0, 0, 0)


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
