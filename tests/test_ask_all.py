"""Requests for one worker alone, and ``ask_all``: one outcome for each registered worker."""

from __future__ import annotations

import json

import pytest

from bstar.errors import CallTimeoutError, LocalProtocolError, OutcomeUnknownError, RejectedError
from bstar.star import PeerMessage, Role, StarMachine, StarSettings, Tick
from bstar.wire import native
from bstar.wire.messages import ALL_FEATURES, READS_DIRECTED, ErrorCode, NodeStatus
from bstar_broker.core import BrokerSettings, Node, Send
from bstar_broker.core.management import Management, Pictures, broker_state
from bstar_broker.core.records import peer_label
from bstar_client import CallFailed, HAClient, Reply, Request
from bstar_client.core.calls import Call
from bstar_testing import fake
from support.client_desk import ACTIVE, PASSIVE
from support.client_desk import Desk as ClientDesk
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


def is_empty(desk: Desk) -> bool:
    """True if nothing is left of any request."""
    ledger = desk.ledger
    return (
        (ledger.by_identity, ledger.requests_of, ledger.waiting.count, ledger.waiting.size_bytes)
        == ({}, {}, 0, 0)
        and not any(service.directed or service.queued for service in ledger.services.values())
    )  # fmt: skip


# --- the broker ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-B-31")
def test_a_request_for_one_worker_goes_to_it_although_another_has_been_idle_for_longer() -> None:
    desk = Desk(b"w1", b"w2", b"w3")
    (frames,) = ask(desk, 1, name_of(desk, b"w3"))
    assert given([frames]) == [(b"w3", ident(1))]
    assert heard(frames).body == [b"clear"], "without the name"
    (frames,) = desk.final(b"w3", 1)
    assert (frames[0], heard(frames).command) == (b"c", native.FINAL)
    assert is_empty(desk)
    assert desk.ledger.services[b"echo"].tally.answered == 1


@pytest.mark.requirement("BSN-B-31")
def test_a_plain_worker_is_asked_as_well() -> None:
    desk = Desk()
    desk.ready02(b"other")
    desk.ready02(b"plain")
    (frames,) = ask(desk, 1, name_of(desk, b"plain"))
    assert (frames[0], frames[-1]) == (b"plain", b"clear")
    (frames,) = desk.final02(b"plain", b"c")
    assert (frames[0], heard(frames).identity) == (b"c", ident(1))


@pytest.mark.requirement("BSN-B-31")
@pytest.mark.parametrize("name", [b"nobody", peer_label(b"other").encode(), b"\xff\x00"])
def test_a_worker_that_is_gone_or_of_another_service_is_an_error_at_once(name: bytes) -> None:
    desk = Desk(b"w")
    desk.ready(b"other", service=b"price")
    (frames,) = ask(desk, 1, name)
    assert errors([frames]) == [(b"c", ident(1), ErrorCode.WORKER_GONE)]
    assert b"is gone" in heard(frames).body[0]
    assert desk.ledger.drops == {"worker-gone": 1}
    assert is_empty(desk)


@pytest.mark.requirement("BSN-B-31")
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_name_that_a_worker_of_another_service_takes_ends_what_waits_for_it(*, is_lost: bool) -> None:
    desk = Desk()
    desk.ready(b"w", keepalive=KEEPALIVE + b"0001")
    name = name_of(desk, b"w")
    ask(desk, 1, name)
    assert ask(desk, 2, name) == []
    taken = desk.ready(b"other", service=b"price", keepalive=KEEPALIVE + b"0002")
    assert errors(taken[:1]) == [(b"c", ident(2), ErrorCode.WORKER_GONE)]
    if is_lost:
        lost = desk.send(b"w", *native.encode_disconnect())
        assert errors(lost) == [(b"c", ident(1), ErrorCode.WORKER_LOST)]
    else:
        desk.final(b"w", 1)
    assert errors(ask(desk, 3, name)) == [(b"c", ident(3), ErrorCode.WORKER_GONE)]
    desk.send(b"other", *native.encode_disconnect())
    desk.wait(100.0)
    assert is_empty(desk)


@pytest.mark.requirement("BSN-B-31")
def test_a_busy_worker_is_given_its_own_and_the_services_requests_in_turns() -> None:
    desk = Desk(b"w")
    desk.request(b"d", 1)
    for number in (2, 3, 4):
        assert ask(desk, number, name_of(desk, b"w")) == []
    for number in (5, 6):
        assert desk.request(b"d", number) == []
    order = []
    number = 1
    while now := given(desk.final(b"w", number)):
        [(_, identity)] = now
        number = int.from_bytes(identity[16:])
        order.append(number)
    assert order == [2, 5, 3, 6, 4]
    assert is_empty(desk)


@pytest.mark.requirement("BSN-B-31")
@pytest.mark.requirement("BSN-B-13")
def test_one_of_its_own_waits_for_credit_and_no_idle_worker_gets_it() -> None:
    desk = Desk()
    desk.ready(b"w", credit=2)
    for number in (1, 2):
        ask(desk, number, name_of(desk, b"w"))
    assert ask(desk, 3, name_of(desk, b"w")) == []
    assert given(desk.ready(b"idle", credit=9)) == []
    assert broker_state(desk.ledger, desk.now).services[0].queued == 1
    assert given(desk.final(b"w", 2)) == [(b"w", ident(3))]


@pytest.mark.requirement("BSN-B-31")
@pytest.mark.parametrize("is_once", [False, True])
def test_when_its_worker_is_lost_what_it_had_is_unknown_and_what_waited_was_not_executed(
    is_once: bool,
) -> None:
    desk = Desk(b"w", b"other")
    for number in (1, 2, 3):
        ask(desk, number, name_of(desk, b"w"), is_once=is_once)
    told = desk.send(b"w", *native.encode_disconnect())
    assert errors(told) == [
        (b"c", ident(1), ErrorCode.WORKER_LOST),
        (b"c", ident(2), ErrorCode.WORKER_GONE),
        (b"c", ident(3), ErrorCode.WORKER_GONE),
    ]
    assert given(told) == []
    assert is_empty(desk)
    tally = desk.ledger.services[b"echo"].tally
    assert (tally.accepted, tally.lost, tally.returned, tally.redelivered) == (3, 1, 2, 0)


@pytest.mark.requirement("BSN-B-31")
def test_a_worker_that_leaves_and_has_begun_nothing_has_executed_nothing() -> None:
    desk = Desk(b"w")
    ask(desk, 1, name_of(desk, b"w"))
    told = desk.send(b"w", *native.encode_disconnect(is_unbegun=True))
    assert errors(told) == [(b"c", ident(1), ErrorCode.WORKER_GONE)]


@pytest.mark.requirement("BSN-B-31")
def test_a_worker_whose_connection_is_found_gone_has_executed_nothing() -> None:
    desk = Desk(b"w")
    ask(desk, 1, name_of(desk, b"w"))
    assert errors(desk.undelivered()) == [(b"c", ident(1), ErrorCode.WORKER_GONE)]
    assert is_empty(desk)


def back(desk: Desk) -> list[list[bytes]]:
    """The worker "old" connects again, as "new", before the node notices that its connection was lost."""
    return desk.ready(b"new", keepalive=KEEPALIVE + bytes([0, 0, 0, 2]))


@pytest.mark.requirement("BSN-B-31")
@pytest.mark.requirement("BSN-W-23")
def test_a_worker_that_connects_again_is_given_what_it_had_and_what_waits_for_it() -> None:
    desk = Desk()
    desk.ready(b"old", keepalive=KEEPALIVE + bytes([0, 0, 0, 1]))
    name = name_of(desk, b"old")
    ask(desk, 1, name)
    ask(desk, 2, name)
    assert given(back(desk)) == [(b"new", ident(2))], "no other worker has its name"
    desk.broker.unreachable(b"old", desk.now)
    told = desk.wait(0.6)
    assert errors(told) == []
    (frames,) = [each for each in desk.final(b"new", 2) if each[0] == b"new"]
    assert (heard(frames).identity, heard(frames).flags) == (ident(1), native.FLAG_REDELIVERED)


@pytest.mark.requirement("BSN-B-31")
def test_what_must_not_run_twice_is_not_given_to_the_same_worker_again() -> None:
    desk = Desk()
    desk.ready(b"old", keepalive=KEEPALIVE + bytes([0, 0, 0, 1]))
    ask(desk, 1, name_of(desk, b"old"), is_once=True)
    back(desk)
    desk.broker.unreachable(b"old", desk.now)
    assert errors(desk.wait(0.6)) == [(b"c", ident(1), ErrorCode.WORKER_LOST)]


@pytest.mark.requirement("BSN-B-31")
def test_a_worker_that_knows_a_later_epoch_gets_its_own_request_again() -> None:
    desk = Desk(b"w", b"other")
    ask(desk, 1, name_of(desk, b"w"))
    desk.broker.activate(11)
    told = desk.send(b"w", *native.encode_stale_epoch(ident(1), 9))
    assert given(told) == [(b"w", ident(1))]


def test_its_time_ends_in_the_queue_of_its_worker_and_the_text_names_that() -> None:
    desk = Desk(b"w", b"other")
    desk.request(b"c", 1)
    ask(desk, 2, name_of(desk, b"w"), ttl_ms=1000)
    (frames,) = [each for each in desk.wait(1.1) if each[0] == b"c"]
    assert errors([frames]) == [(b"c", ident(2), ErrorCode.EXPIRED)]
    assert heard(frames).body == [b'worker %s of service "echo" was busy' % name_of(desk, b"w")]
    assert desk.ledger.services[b"echo"].directed == {}


@pytest.mark.requirement("BSN-B-28")
def test_a_cancelled_one_leaves_the_queue_of_its_worker() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    ask(desk, 2, name_of(desk, b"w"))
    desk.send(b"c", *native.encode_cancel(ident(2), 7))
    assert given(desk.final(b"w", 1)) == []
    assert is_empty(desk)


@pytest.mark.requirement("BSN-B-11")
def test_the_queue_of_one_worker_is_bounded_like_that_of_a_service() -> None:
    desk = Desk(b"w", b"other", queue_length_max=2)
    for number in range(1, 4):
        ask(desk, number, name_of(desk, b"w"), client=b"c%d" % number)
    (frames,) = ask(desk, 4, name_of(desk, b"w"), client=b"c4")
    assert heard(frames).command == native.BUSY
    assert given(ask(desk, 5, name_of(desk, b"other"))) == [(b"other", ident(5))]
    assert desk.ledger.services[b"echo"].tally.refusals == {"queue-full": 1}


@pytest.mark.requirement("BSN-B-10")
@pytest.mark.requirement("BSN-B-31")
def test_the_same_one_again_is_executed_once_and_for_another_worker_it_is_an_error() -> None:
    desk = Desk(b"w1", b"w2")
    ask(desk, 1, name_of(desk, b"w1"))
    assert ask(desk, 1, name_of(desk, b"w1"), client=b"c again") == []
    frames = ask(desk, 1, name_of(desk, b"w2")) + desk.request(b"c", 1, body=b"clear")
    assert errors(frames) == [(b"c", ident(1), ErrorCode.INVALID)] * 2
    (final,) = desk.final(b"w1", 1)
    assert final[0] == b"c again"


def test_one_that_came_in_a_batch_is_known_as_well() -> None:
    desk = Desk()
    desk.requests(b"c", [1, 2])
    desk.ready(b"w", takes_batches=True)
    desk.ready(b"other")
    assert errors(ask(desk, 2, name_of(desk, b"w"))) == [(b"c", ident(2), ErrorCode.INVALID)]


@pytest.mark.requirement("BSN-B-07")
def test_giving_up_the_role_gives_them_back_with_what_is_known_of_each() -> None:
    desk = Desk(b"w")
    ask(desk, 1, name_of(desk, b"w"))
    ask(desk, 2, name_of(desk, b"w"))
    told = [heard(frames) for frames in sent(desk.broker.deactivate(desk.now))]
    assert {(each.command, each.identity, each.flags) for each in told} == {
        (native.NOT_ACTIVE, ident(1), native.FLAG_DISPATCHED),
        (native.NOT_ACTIVE, ident(2), 0),
    }
    assert desk.ledger.services[b"echo"].directed == {}


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


@pytest.mark.requirement("BSN-B-21")
def test_those_of_a_client_that_is_gone_leave_the_queue() -> None:
    desk = Desk(b"w", client_check_interval_s=5.0)
    desk.request(b"d", 1)
    ask(desk, 2, name_of(desk, b"w"))
    desk.broker.unreachable(b"c", desk.now)
    assert given(desk.final(b"w", 1)) == []
    assert is_empty(desk)


@pytest.mark.requirement("BSN-B-22")
def test_one_that_must_not_run_twice_and_may_have_run_elsewhere_is_not_begun() -> None:
    desk = Desk(b"w")
    frames = ask(desk, 1, name_of(desk, b"w"), is_once=True, is_repeated=True)
    assert errors(frames) == [(b"c", ident(1), ErrorCode.WORKER_LOST)]


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
    back(desk)
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


# --- the client's core --------------------------------------------------------------------------------------


def directed(desk: ClientDesk, *, idempotent: bool = True) -> Call:
    call = Call(b"echo", [b"name", b"x"], desk.now + 30.0, idempotent, is_directed=True, begun_at=desk.now)
    desk.take(desk.session.submit(call, desk.now))
    return call


def asked(desk: ClientDesk, node: int) -> list[native.Message]:
    return [each for to, each in desk.sent if to == node and each.command == native.DIRECTED]


@pytest.mark.requirement("BSN-C-18")
def test_a_repetition_at_the_other_node_names_the_same_worker(served: ClientDesk) -> None:
    call = directed(served)
    served.fail_over()
    (first,), (second,) = asked(served, 0), asked(served, 1)
    assert first.body == second.body == [b"name", b"x"]
    assert (first.flags & native.FLAG_REDELIVERED, second.flags & native.FLAG_REDELIVERED) == (0, 1)
    served.error(1, call, ErrorCode.WORKER_GONE, b"worker name is gone")
    assert isinstance(served.error_of(call), OutcomeUnknownError), "the lost node may have had it executed"


@pytest.mark.requirement("BSN-C-09")
def test_a_worker_that_is_gone_has_executed_nothing(served: ClientDesk) -> None:
    call = directed(served)
    served.error(0, call, ErrorCode.WORKER_GONE, b"worker name is gone")
    error = served.error_of(call)
    assert isinstance(error, RejectedError)
    assert (error.code, error.may_have_executed) == (ErrorCode.WORKER_GONE, False)


@pytest.mark.requirement("BSN-C-18")
def test_a_node_of_an_earlier_release_gets_no_such_request() -> None:
    earlier = NodeStatus(ACTIVE, 1, PASSIVE, 0, 0, 100, 300, ALL_FEATURES & ~READS_DIRECTED)
    desk = ClientDesk()
    waiting = directed(desk)
    desk.connect(0, earlier)
    late = directed(desk)
    for call in (waiting, late):
        error = desk.error_of(call)
        assert isinstance(error, RejectedError)
        assert "upgrade the node" in str(error)
    assert asked(desk, 0) == []


@pytest.mark.requirement("BSN-C-18")
def test_a_node_of_an_earlier_release_is_not_asked_for_a_vote_with_it() -> None:
    desk = ClientDesk()
    desk.disconnect(1)
    desk.connect(0, NodeStatus(PASSIVE, 1, 0, 0, 0, 100, 300, ALL_FEATURES & ~READS_DIRECTED))
    call = directed(desk)
    assert isinstance(desk.error_of(call), RejectedError)
    other = desk.call()
    assert desk.requests(0) == [(0, other.identity)]


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
