"""Requests for one worker alone, and ``ask_all``: one outcome for each registered worker.

The scripts of client and broker have what becomes of each request.
"""

from __future__ import annotations

import json

import pytest

from bstar.errors import CallTimeoutError, LocalProtocolError
from bstar.star import PeerMessage, Role, StarMachine, StarSettings, Tick
from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar_broker.core import BrokerSettings, Node, Send
from bstar_broker.core.management import Management, Pictures
from bstar_broker.core.records import peer_label
from bstar_client import CallFailed, HAClient, Reply, Request
from bstar_testing import fake
from support.desk import Desk, heard, ident, sent
from support.house import House, command
from test_broker_core import no_state
from test_node import word

KEEPALIVE = b"\x01" + bytes(range(19))


def name_of(desk: Desk, worker: bytes) -> bytes:
    return desk.ledger.workers[worker].label.encode()


def ask(
    desk: Desk,
    number: int,
    worker: bytes,
    *,
    ttl_ms: int = 0,
    is_once: bool = False,
    is_repeated: bool = False,
    client: bytes = b"c",
) -> list[list[bytes]]:
    frames = native.encode_request(
        ident(number), b"echo", [worker, b"clear"], ttl_ms=ttl_ms, is_once=is_once, is_repeated=is_repeated,
        is_directed=True,
    )  # fmt: skip
    return desk.send(client, *frames)


def given(frames: list[list[bytes]]) -> list[tuple[bytes, bytes]]:
    """The requests in these messages: to whom, and which."""
    return [(each[0], heard(each).identity) for each in frames if heard(each).command == native.REQUEST]


def errors(frames: list[list[bytes]]) -> list[tuple[bytes, bytes, int]]:
    """The errors in these messages: to whom, of which request, and the code."""
    return [
        (each[0], heard(each).identity, heard(each).value)
        for each in frames
        if heard(each).command == native.ERROR
    ]


# --- the broker ---------------------------------------------------------------------------------------------


def test_a_paused_service_holds_them_back_and_a_purge_ends_them() -> None:
    desk = Desk(b"w")
    service = desk.ledger.services[b"echo"]
    desk.broker.orders.pause(service, 0.0, "a test", desk.now)
    assert ask(desk, 1, name_of(desk, b"w")) == []
    assert given(sent(desk.broker.orders.resume(service, "it is over", desk.now))) == [(b"w", ident(1))]
    ask(desk, 2, name_of(desk, b"w"))
    count, outputs = desk.broker.orders.purge(service, "a test", desk.now)
    assert (count, errors(sent(outputs))) == (1, [(b"c", ident(2), ErrorCode.NOT_ALLOWED)])


def test_an_operator_sees_and_cancels_one_that_waits() -> None:
    desk = Desk(b"w")
    desk.request(b"d", 1)
    ask(desk, 2, name_of(desk, b"w"))
    listed = desk.broker.work_orders.oldest(None, 9, desk.now)
    assert [each.request for each in listed] == [ident(1).hex(), ident(2).hex()]
    assert [each.worker for each in listed] == [name_of(desk, b"w").decode(), ""]
    request = desk.broker.work_orders.find_request(ident(2))
    assert request is not None
    told = sent(desk.broker.work_orders.cancel(request, "a test", desk.now))
    assert errors(told) == [(b"c", ident(2), ErrorCode.NOT_ALLOWED)]


@pytest.mark.requirement("BSN-B-01")
def test_one_that_cannot_be_read_is_answered_like_any_request() -> None:
    desk = Desk()
    frames = native.encode_request(ident(1), b"echo", [b"w" * 65, b"x"], is_directed=True)
    for broken in (frames, frames[:2], [frames[0], b"", b"x"]):
        assert errors(desk.send(b"c", *broken)) == [(b"c", ident(1), ErrorCode.INVALID)]


# --- names, rights and votes --------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-W-23")
def test_names_are_listed_whole_and_each_once_and_are_the_same_at_both_nodes() -> None:
    desk, peer = Desk(), Desk()
    desk.ready(b"w1", keepalive=KEEPALIVE + bytes(4))
    peer.ready(b"w9", keepalive=KEEPALIVE + b"more")
    assert name_of(desk, b"w1") == name_of(peer, b"w9") == peer_label(KEEPALIVE).encode()
    desk.ready(b"new", keepalive=KEEPALIVE + bytes([0, 0, 0, 2]))  # w1 again
    for number in range(2_000):
        desk.ready(b"plain %d" % number)
    desk.ready(b"other", service=b"price")
    management = Management(desk.ledger, no_state)
    code, listed = management.answer(b"mmi.names", [b"echo"], Pictures(), desk.now)
    names = json.loads(listed)
    assert (code, names[:2]) == (b"200", [peer_label(KEEPALIVE), peer_label(b"plain 0")])
    assert len(names) == 2_001
    for unknown in (b"nobody", b""):
        assert management.answer(b"mmi.names", [unknown], Pictures(), desk.now) == [b"404"]


def test_who_may_not_call_the_service_may_not_ask_its_workers() -> None:
    house = House()
    house.offer("worker")
    (name,) = house.node.broker.ledger.named
    frames = native.encode_request(bytes(range(24)), b"price", [name, b"x"], is_directed=True)
    (answer,) = house.hear("worker", b"client", frames)
    assert command(answer) == (b"client", native.ERROR, ErrorCode.NOT_ALLOWED)
    (dispatched,) = house.hear("shop", b"client", frames)
    assert command(dispatched)[:2] == (b"worker", native.REQUEST)


def commands_of(node: Node, frames: list[bytes], now: float) -> list[int]:
    outputs = node.receive_frames([b"client", *frames], now)
    return [native.decode(each.frames[1:]).command for each in outputs if isinstance(each, Send)]


NAMES = native.encode_request(ident(1), b"mmi.names", [b"echo"])
DIRECTED = native.encode_request(ident(2), b"echo", [b"worker", b"x"], is_directed=True)


@pytest.mark.requirement("BSN-B-32")
@pytest.mark.requirement("BSN-B-04")
@pytest.mark.parametrize(("frames", "answer"), [(NAMES, native.FINAL), (DIRECTED, native.ERROR)])
def test_the_question_for_names_and_a_request_for_one_worker_are_votes(
    frames: list[bytes], answer: int
) -> None:
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    node = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    node.step(PeerMessage(word(1, 3, epoch=2)), 0.0)
    assert commands_of(node, frames, 0.1) == [native.NOT_ACTIVE]
    for second in range(1, 11):
        node.step(Tick(), float(second))
    services = native.encode_request(ident(3), b"mmi.services", [b""])
    assert commands_of(node, services, 10.0) == [native.NOT_ACTIVE]
    assert not node.is_active
    assert commands_of(node, frames, 10.0) == [answer]
    assert node.is_active


@pytest.mark.parametrize("service", [b"mmi.state", b"store.status"])
def test_the_brokers_own_services_have_no_worker(service: bytes) -> None:
    house = House()
    frames = native.encode_request(bytes(range(24)), service, [b"worker", b"x"], is_directed=True)
    (answer,) = house.hear("ops", b"client", frames)
    assert command(answer) == (b"client", native.ERROR, ErrorCode.WORKER_GONE)


# --- ask_all ------------------------------------------------------------------------------------------------


def test_the_workers_asked_are_those_that_are_registered() -> None:
    with fake({"echo": [lambda request: request.body] * 40, "price": lambda request: b"3"}) as client:
        outcomes = client.ask_all("echo", b"x")
        assert [outcome.body for outcome in outcomes.values() if isinstance(outcome, Reply)] == [b"x"] * 40
        assert list(client.ask_all("echo", b"y")) == list(outcomes), "names and their order stay"
        assert client.ask_all("nobody", b"x") == {}


def test_bodies_and_replies_are_typed_and_headers_travel() -> None:
    def handler(number: int):  # type: ignore[no-untyped-def]
        def answer(body: dict[str, int], request: Request) -> list[int | str]:
            return [number, body["n"], request.headers["tenant"]]

        return answer

    with fake({"echo": [handler(number) for number in range(3)]}) as client:
        outcomes = client.ask_all(
            "echo", {"n": 7}, reply=list[int | str], codec="msgpack", headers={"tenant": "blue"}
        )
        assert list(outcomes.values()) == [[number, 7, "blue"] for number in range(3)]
        misfits = client.ask_all("echo", {"n": 7}, reply=int, headers={"tenant": "blue"})
        assert [type(each) for each in misfits.values()] == [CallFailed] * 3


@pytest.mark.parametrize(
    ("service", "options", "kind"),
    [
        ("echo", {"headers": {"a b": "x"}}, LocalProtocolError),
        ("echo", {"codec": "xml"}, LocalProtocolError),
        ("echo", {"timeout": "soon"}, TypeError),
        ("echo", {"timeout": 0}, CallTimeoutError),
        ("mmi.state", {}, LocalProtocolError),
    ],
)
def test_what_is_wrong_with_the_arguments_is_raised(
    service: str, options: dict[str, object], kind: type[Exception]
) -> None:
    with fake({"echo": lambda request: request.body}) as client, pytest.raises(kind):
        client.ask_all(service, b"x", **options)  # type: ignore[call-overload]


def test_plain_mdp_has_no_requests_for_one_worker() -> None:
    client = HAClient("tcp://127.0.0.1:1", dialect="mdp02")
    with client, pytest.raises(LocalProtocolError, match="native dialect"):
        client.ask_all("echo", b"x")
