"""What an arbiter means around the machine: giving out work, configuration, metrics, judgement, the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq

from bstar.errors import ConfigurationError
from bstar.net.reactor import Reactor
from bstar.pair.binary_star import BinaryStar
from bstar.settings import Settings, from_mapping, pair_problems, sample_settings
from bstar.star import ArbiterAnswer, PeerMessage, Role, StarMachine, StarSettings, Tick
from bstar.star.quorum import DRIFT_MAX
from bstar.wire import native
from bstar.wire.arbiter import Answer, Question
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Dispatch, Node
from bstar_broker.core.snapshot import QuorumState
from support.waiting import Socket

PLACE = "tcp://127.0.0.1:5010"
LAPSES_AT = 10.0 + 2.0 * (1 - DRIFT_MAX)


# --- giving out work ----------------------------------------------------------------------------------------


def word(seq: int, **changes: Any) -> PeerState:
    fields: dict[str, Any] = {
        "state": 2,
        "pair": "test",
        "role": "backup",
        "node": "they",
        "seq": seq,
        "epoch": 0,
        "heartbeat_ms": 1000,
        "timeout_ms": 2000,
        "arbiter": PLACE,
    }
    return PeerState(**(fields | changes))


@pytest.fixture
def node() -> Node:
    """An active node with a lease until ``LAPSES_AT``, and a worker with room for two requests."""
    settings = StarSettings(pair="test", role=Role.PRIMARY, arbiter=PLACE)
    machine = StarMachine(settings, node="we", epoch=0, now=8.0)
    made = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=8.0)
    made.step(PeerMessage(word(1)), 10.0)
    made.step(ArbiterAnswer(Answer("we", machine.publisher.seq, is_granted=True)), 10.0)
    assert made.serve_until == pytest.approx(LAPSES_AT)
    ready = native.encode_ready(b"echo", credit=2, epoch=0)
    made.receive_frames([b"worker", *ready], 10.1)
    # It has published of late, so it was not away; only nobody has confirmed it.
    machine.publisher.published_at = machine.publisher.due_at = LAPSES_AT - 0.5
    return made


def request(number: int) -> list[bytes]:
    identity = bytes(16) + number.to_bytes(8, "big")
    return [
        b"client",
        *native.encode_request(identity, b"echo", [b"x"], ttl_ms=0, epoch=0, is_repeated=False),
    ]


def dispatched(outputs: list[Any]) -> int:
    return len([output for output in outputs if isinstance(output, Dispatch)])


def test_work_is_given_out_until_the_very_end_of_the_majority_and_no_longer(node: Node) -> None:
    assert dispatched(node.receive_frames(request(1), LAPSES_AT - 0.001)) == 1
    assert dispatched(node.receive_frames(request(2), LAPSES_AT)) == 0
    assert not node.is_active


def test_a_reply_after_the_end_of_the_majority_sets_no_queued_request_free(node: Node) -> None:
    for number in (1, 2, 3):
        node.receive_frames(request(number), LAPSES_AT - 0.001)
    assert node.broker.ledger.waiting.count == 1
    final = native.encode_final(bytes(16) + (1).to_bytes(8, "big"), node.machine.epoch, 0, [b"y"])
    assert dispatched(node.receive_frames([b"worker", *final], LAPSES_AT)) == 0
    assert not node.is_active
    assert node.broker.ledger.waiting.count == 0, "it went back to its client"


def test_a_worker_that_is_gone_after_the_end_of_the_majority_sets_nothing_free(node: Node) -> None:
    [dispatch] = node.receive_frames(request(1), LAPSES_AT - 0.001)
    assert isinstance(dispatch, Dispatch)
    for number in (2, 3):
        node.receive_frames(request(number), LAPSES_AT - 0.001)
    assert dispatched(node.undelivered(dispatch, LAPSES_AT)) == 0
    assert not node.is_active


# --- for people and monitors --------------------------------------------------------------------------------


def test_the_state_tells_of_the_three_voters(node: Node) -> None:
    assert node.state(10.1).pair.quorum == QuorumState(
        arbiter=PLACE,
        has_majority=True,
        is_arbiter_heard=True,
        is_arbiter_granting=True,
        is_peer_granting=False,
    )


def test_a_node_that_nobody_confirms_is_not_ready(node: Node) -> None:
    node.step(Tick(), LAPSES_AT)
    node.machine.publisher.published_at = 20.0
    node.step(Tick(), 20.0)
    node.step(Tick(), 21.0)
    node.step(Tick(), 22.5)
    verdict = node.state(22.5).readiness
    assert not verdict.is_ready
    assert verdict.reason == "no-majority"
    assert "arbiter" in verdict.why


# --- configuration ------------------------------------------------------------------------------------------


def settings_of(role: str, arbiter: str | None, **endpoints: str) -> Settings:
    sample = msgspec.to_builtins(sample_settings("primary" if role == "primary" else "backup"))
    sample["endpoints"] |= {"arbiter": arbiter, **endpoints}
    return from_mapping(sample)


def test_two_nodes_with_the_same_arbiter_are_a_pair() -> None:
    assert pair_problems(settings_of("primary", PLACE), settings_of("backup", PLACE)) == []


@pytest.mark.parametrize("other", [None, "tcp://127.0.0.1:5011"])
def test_two_nodes_with_different_arbiters_are_not(other: str | None) -> None:
    [problem] = pair_problems(settings_of("primary", PLACE), settings_of("backup", other))
    assert problem.startswith("endpoints.arbiter")


@pytest.mark.parametrize(
    ("arbiter", "endpoints", "text"),
    [
        ("nowhere", {}, "not an endpoint"),
        ("tcp://*:5010", {}, "cannot be connected to"),
        (PLACE, {"peer_state": "tcp://10.0.0.2:5004"}, "this machine only"),
        ("tcp://127.0.0.1:5003", {}, "itself listens"),
    ],
)
def test_an_arbiter_that_cannot_be_meant_is_refused(
    arbiter: str, endpoints: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        settings_of("primary", arbiter, **endpoints)


# --- the seam -----------------------------------------------------------------------------------------------


class Obliging:
    """An arbiter of another kind: it grants whatever it is asked, in the next turn."""

    name = "obliging"

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.is_closed = False
        self._reactor: Reactor
        self._hear: Callable[[Answer], None]

    def open(self, reactor: Reactor, hear: Callable[[Answer], None]) -> None:
        self._reactor, self._hear = reactor, hear

    def ask(self, question: Question) -> None:
        self.asked.append(question)
        answer = Answer(question.node, question.number, is_granted=question.verb == "claim")
        self._reactor.call_threadsafe(lambda: self._hear(answer))

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.loopback
def test_another_kind_of_arbiter_can_be_put_in() -> None:
    now = 0.0
    arbiter = Obliging()
    context: zmq.Context[Socket] = zmq.Context()
    with context, Reactor(clock=lambda: now) as reactor:
        with BinaryStar(
            "primary",
            local="inproc://we",
            remote="inproc://they",
            arbiter=arbiter,
            expire_on_refused=False,
            reactor=reactor,
            context=context,
        ) as star:
            assert not star.may_serve(now)
            now = 1.9
            star.carry_out(star.machine.step(Tick(), now))
            now = 2.5
            assert not star.may_serve(now), "it has to ask first"
            reactor.turn()
            assert star.may_serve(now)
            now = 5.0
            assert not star.may_serve(now), "it was away"
        assert arbiter.is_closed
    assert {question.verb for question in arbiter.asked} >= {"look", "claim"}
