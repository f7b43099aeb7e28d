"""A client of several pairs in virtual time: each session sees its own nodes and calls and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from bstar.errors import ConfigurationError, LocalProtocolError, NoActiveNodeError
from bstar.fleet import Endpoints, Fleet
from bstar.wire import native, native_broker
from bstar.wire.messages import NEVER_MS, NodeStatus
from bstar.wire.native_broker import NativeAsker
from bstar_client.calls.client import Client
from bstar_client.calls.requests import DEFAULT
from bstar_client.core.calls import Ask, Call
from bstar_client.core.events import FailedOver
from bstar_client.core.fleet_session import FleetSession
from bstar_client.sync.worker import Worker
from support.client_outputs import ClientOutputs

ENDPOINTS = {
    "east": ["tcp://e0:1", "tcp://e1:1"],
    "west": ["tcp://w0:1", "tcp://w1:1"],
    "north": ["tcp://n0:1"],
}
# The nodes of each pair among all five.
EAST, WEST, NORTH = (0, 1), (2, 3), (4,)
PINS = {"e.*": "east", "w.*": "west", "n.*": "north"}
ACTIVE, PASSIVE = 3, 4
CODEC = native_broker.CODEC


def fleet(endpoints: Endpoints = ENDPOINTS, pins: dict[str, str] | None = None, **options: Any) -> Client:
    return Client(endpoints, pins=pins, outstanding_max=1_000, partials_max=10, **options)


def call(client: Client, service: str, body: bytes = b"x") -> Call:
    return client._requests.call(Ask(body, timeout=None, service=service), None, idempotent=True)


class Desk(ClientOutputs):
    """The session of a fleet, the time, and all that it has put out, sorted."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.client = fleet(pins=PINS, **options)
        assert isinstance(self.client._core, FleetSession)
        self.session = self.client._core

    def call(self, service: str, *, timeout: float | None = 30.0) -> Call:
        begun = call(self.client, service)
        begun.deadline = None if timeout is None else self.now + timeout
        self.take(self.session.submit(begun, self.now))
        return begun

    def pong(self, node: int, state: int = ACTIVE, epoch: int = 1) -> None:
        told = NodeStatus(state, epoch, 0, 0, NEVER_MS, 250, 1_000)
        self.take(self.session.receive(node, CODEC.pong(b"", native.NO_IDENTITY, told)[1:], self.now))

    def open(self, *pairs: int) -> None:
        for pair in pairs or range(3):
            self.take(self.session.open(pair, self.now))

    def serve(self, *nodes: int) -> None:
        for node in nodes:
            self.take(self.session.connected(node, self.now))
            self.pong(node)

    def requests(self) -> list[tuple[int, bytes]]:
        """Node and service of each message with requests that was sent since the last time."""
        sent, self.sent = self.sent, []
        kinds = (native.REQUEST, native.REQUESTS)
        return [(node, frames[0][native.HEADER_BYTES :]) for node, frames in sent if frames[0][2] in kinds]

    def answer(self, node: int, call: Call) -> None:
        frames = CODEC.final(NativeAsker(b"", call.identity), b"", 1, 0, [b"y"], b"")[1:]
        self.take(self.session.receive(node, frames, self.now))


def test_a_call_goes_to_its_pair_and_its_reply_comes_back() -> None:
    desk = Desk()
    desk.open()
    desk.serve(EAST[0], WEST[1], NORTH[0])
    calls = {node: desk.call(service) for node, service in ((0, "e.1"), (3, "w.1"), (4, "n.1"))}
    assert desk.requests() == [(0, b"e.1"), (3, b"w.1"), (4, b"n.1")]
    for node, call in calls.items():
        desk.answer(node, call)
    assert [reply.endpoint for _, reply in desk.replies] == ["tcp://e0:1", "tcp://w1:1", "tcp://n0:1"]
    assert [call for call, _ in desk.replies] == list(calls.values())
    assert desk.session.outstanding == 0
    assert desk.session.counters.requests == desk.session.counters.replies == 3


def test_the_identities_of_two_pairs_never_meet() -> None:
    desk = Desk()
    desk.open()
    desk.serve(EAST[0], WEST[0])
    one, other = desk.call("e.1"), desk.call("w.1")
    assert one.identity[:16] != other.identity[:16]


def test_a_pair_that_fails_over_takes_its_own_calls_along_and_no_others() -> None:
    desk = Desk()
    desk.open()
    desk.serve(EAST[0], WEST[0])
    desk.take(desk.session.connected(EAST[1], desk.now))
    desk.pong(EAST[1], PASSIVE)
    desk.call("e.1")
    desk.call("w.1")
    desk.requests()
    desk.take(desk.session.disconnected(EAST[0], desk.now))
    desk.pong(EAST[1], ACTIVE, epoch=2)
    assert desk.requests() == [(EAST[1], b"e.1")]
    failovers = [event for event in desk.events if isinstance(event, FailedOver)]
    assert [(event.from_endpoint, event.to_endpoint) for event in failovers] == [("tcp://e0:1", "tcp://e1:1")]
    assert desk.client.actives == {"east": "tcp://e1:1", "west": "tcp://w0:1", "north": None}


def test_a_pair_that_is_down_fails_its_own_calls_at_their_deadline_and_no_others() -> None:
    desk = Desk()
    desk.open()
    desk.serve(WEST[0])
    dead = desk.call("e.1", timeout=1.0)
    for _ in range(20):
        desk.answer(WEST[0], desk.call("w.1"))
        desk.now += 0.1
        desk.pong(WEST[0])
        desk.take(desk.session.handle_timer(desk.now))
    assert [call for call, _ in desk.errors] == [dead]
    assert isinstance(desk.errors[0][1], NoActiveNodeError)
    assert len(desk.replies) == 20


def test_it_wakes_up_when_the_first_of_its_sessions_wants_to_and_wakes_no_other() -> None:
    desk = Desk()
    desk.open()
    desk.serve(EAST[0], WEST[0], NORTH[0])
    sessions = desk.session._sessions
    dues = [session.next_deadline() for session in sessions if session is not None]
    assert desk.session.next_deadline() == min(due for due in dues if due is not None)
    desk.call("n.1", timeout=0.01)
    due = desk.session.next_deadline()
    assert due == desk.now + 0.01
    desk.sent.clear()
    desk.take(desk.session.handle_timer(due))
    assert len(desk.errors) == 1
    assert [node for node, _ in desk.sent] == [NORTH[0]], "its CANCEL"


def test_a_call_that_is_given_up_is_forgotten_by_its_pair() -> None:
    desk = Desk()
    call = desk.call("w.1")
    desk.take(desk.session.abandon(call, desk.now))
    desk.serve(WEST[0])
    assert desk.requests() == []
    assert desk.session.outstanding == 0


def test_a_call_that_is_given_up_before_its_turn_opens_nothing() -> None:
    desk = Desk()
    given_up = call(desk.client, "w.1")
    desk.take(desk.session.abandon(given_up, desk.now))
    desk.take(desk.session.submit(given_up, desk.now))
    assert desk.resets == []


def test_a_pair_is_connected_to_with_its_first_call_and_never_again() -> None:
    desk = Desk()
    assert desk.session.next_deadline() is None
    desk.call("w.1")
    assert desk.resets == list(WEST)
    desk.call("n.1")
    desk.call("w.1")
    assert desk.resets == [*WEST, *NORTH]


def test_calls_of_several_pairs_that_begin_together_go_to_their_pairs() -> None:
    desk = Desk()
    calls = [call(desk.client, service) for service in ("e.1", "w.1", "e.1", "n.1")]
    calls[3].is_done = True  # given up before its turn
    desk.take(desk.session.submit_all(calls, desk.now))
    assert desk.resets == [*EAST, *WEST]
    desk.serve(WEST[0], EAST[0])
    assert desk.requests() == [(WEST[0], b"w.1"), (EAST[0], b"e.1")]  # the two of east in one message
    desk.take(desk.session.close(desk.now))
    late = [call(desk.client, service) for service in ("e.1", "n.1")]
    desk.take(desk.session.submit_all(late, desk.now))
    assert [call for call, _ in desk.errors] == [*calls[:3:2], calls[1], *late]


def test_a_session_that_begins_late_gives_the_primary_its_time() -> None:
    """A backup whose connection is up first is not asked before the primary has had its chance."""
    desk = Desk()
    desk.now += 1_000.0
    desk.call("w.1")
    desk.take(desk.session.connected(WEST[1], desk.now))
    desk.pong(WEST[1], PASSIVE)
    assert desk.requests() == []


def test_closing_ends_the_calls_of_all_pairs() -> None:
    desk = Desk()
    calls = [desk.call(service) for service in ("e.1", "w.1", "n.1")]
    desk.take(desk.session.close(desk.now))
    assert [call for call, _ in desk.errors] == calls
    assert desk.session.next_deadline() is None


def test_a_closed_client_opens_nothing_more() -> None:
    desk = Desk()
    desk.take(desk.session.close(desk.now))
    call = desk.call("e.1")
    assert [failed for failed, _ in desk.errors] == [call]
    assert desk.resets == []


def test_what_is_no_endpoint_is_told_before_anybody_connects() -> None:
    for wrong in ("east1:5001", "tcp://east1", "udp://east1:5001", "ipc://"):
        with pytest.raises(ConfigurationError, match=wrong):
            fleet([["tcp://east0:5001"], [wrong]])


def test_plain_mdp_resets_the_socket_of_its_own_node() -> None:
    desk = Desk(dialect="mdp02")
    desk.open(1)
    desk.resets.clear()
    desk.take(desk.session.connected(WEST[0], desk.now))
    call = desk.call("w.1")
    assert [node for node, _ in desk.sent] == [WEST[0]]
    desk.take(desk.session.abandon(call, desk.now))
    assert desk.resets == [WEST[0]]


# --- where a call belongs -----------------------------------------------------------------------------------


def test_a_question_about_a_service_goes_to_the_services_pair() -> None:
    client = fleet(pins=PINS)
    for mmi in ("mmi.service", "mmi.workers", "mmi.descriptions"):
        assert [call(client, mmi, name).pair for name in (b"e.1", b"n.1")] == [0, 2]


@pytest.mark.parametrize("service", ["mmi.services", "mmi.state", "mmi.workers", "mmi.service", "mmi.else"])
def test_a_question_to_a_broker_about_itself_is_refused(service: str) -> None:
    with pytest.raises(LocalProtocolError, match="3 pairs"):
        call(fleet(), service, b"")
    assert call(fleet(["tcp://a:1", "tcp://b:1"]), service, b"").pair == 0


def test_an_ask_with_a_service_of_its_own_goes_to_that_services_pair() -> None:
    client = fleet(pins=PINS)
    asks: list[bytes | Ask] = [b"x", Ask(b"x"), Ask(b"x", service="e.1"), Ask(b"x", service=b"n.1")]
    make_call = client._requests.call_maker("w.1", DEFAULT, True, None)
    calls = [make_call(ask, index) for index, ask in enumerate(asks)]
    assert [(call.service, call.pair) for call in calls] == [(b"w.1", 1)] * 2 + [(b"e.1", 0), (b"n.1", 2)]


def offer(endpoints: Endpoints, service: str, pins: dict[str, str] | None = None) -> Worker:
    return Worker(endpoints, service, pins=pins)


@pytest.mark.parametrize("pins", [None, {"s1*": "north"}])
def test_a_worker_registers_where_a_client_asks(pins: dict[str, str] | None) -> None:
    client = fleet(pins=pins)
    for number in range(50):
        place = call(client, f"s{number}").pair
        assert offer(ENDPOINTS, f"s{number}", pins).endpoints == client.fleet.pairs[place].endpoints


@pytest.mark.parametrize("make", [fleet, lambda listed, pins=None: offer(listed, "s", pins)])
def test_clients_and_workers_refuse_what_is_no_fleet(make: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match="stands twice"):
        make([["tcp://a:1", "tcp://b:1"], ["tcp://b:1"]])
    with pytest.raises(ConfigurationError, match="'north'"):
        make([["tcp://a:1"], ["tcp://b:1"]], {"s": "north"})


def test_a_fleet_of_one_is_a_pair() -> None:
    lone = fleet({"east": ["tcp://e0:1", "tcp://e1:1"]})
    assert not isinstance(lone._core, FleetSession)
    assert lone.actives == {"east": None}
    assert fleet(Fleet.of(ENDPOINTS)).endpoints == tuple(chain.from_iterable(ENDPOINTS.values()))


def test_a_client_id_is_of_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same id at two pairs would give two requests one identity, in journals and in stores of replies."""
    ids = iter([bytes([number]) * 16 for number in range(3)])
    monkeypatch.setattr(os, "urandom", lambda count: next(ids))
    desk = Desk()
    assert len({desk.call(service).identity for service in ("e.1", "w.1", "n.1")}) == 3
