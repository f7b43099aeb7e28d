"""The pure node, broker and Binary Star together: what neither of them does alone. In virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bstar.star import (
    ArbiterAnswer,
    Leave,
    PauseTakeovers,
    PeerMessage,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    Tick,
)
from bstar.wire import native
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Dispatch, Node, Output, Send
from bstar_broker.core.parting import FAREWELL_S
from support.desk import Desk

CLIENT = b"client"
ARBITER = "tcp://127.0.0.1:5010"
REQUEST = native.encode_request(bytes(range(24)), b"echo", [b"x"], ttl_ms=0, epoch=0, is_repeated=False)


def word(seq: int, state: int, **changes: Any) -> PeerState:
    fields: dict[str, Any] = {
        "state": state,
        "pair": "test",
        "role": "backup",
        "node": "they",
        "seq": seq,
        "epoch": 0,
        "heartbeat_ms": 1000,
        "timeout_ms": 2000,
    }
    return PeerState(**(fields | changes))


@pytest.fixture
def node() -> Node:
    """An active node whose passive peer was heard a moment ago."""
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    made = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    made.step(PeerMessage(word(1, 2)), 0.0)
    made.step(PeerMessage(word(2, 4)), 0.0)
    assert made.is_active
    return made


def answers(node: Node, now: float) -> list[int]:
    """The commands with which it answers a request."""
    outputs = node.receive_frames([CLIENT, *REQUEST], now)
    return [native.decode(output.frames[1:]).command for output in outputs if isinstance(output, Send)]


def test_a_node_that_has_handed_over_refuses_for_a_while_before_it_ends(node: Node) -> None:
    """What is unread when it ends may have been executed, for all that its sender knows."""
    node.step(Leave(), 1.0)
    node.step(PeerMessage(word(3, 3, epoch=2)), 1.0)
    assert not node.has_left(1.0), "the peer serves, but clients do not know yet"
    assert answers(node, 1.1) == [native.NOT_ACTIVE]
    node.step(Tick(), 1.1)  # its heartbeat
    assert node.next_deadline() == 1.0 + FAREWELL_S
    node.step(Tick(), 1.0 + FAREWELL_S)
    assert node.has_left(1.0 + FAREWELL_S)


def test_a_node_whose_peer_is_slow_to_take_over_waits_for_it_and_not_in_a_spin(node: Node) -> None:
    node.step(Leave(), 1.0)
    node.step(Tick(), 1.0 + FAREWELL_S)
    assert not node.has_left(1.0 + FAREWELL_S)
    due = node.next_deadline()
    assert due is not None
    assert due > 1.0 + FAREWELL_S
    node.step(PeerMessage(word(3, 3, epoch=2)), 1.5)
    assert node.has_left(1.5)


def test_a_passive_node_ends_at_once(node: Node) -> None:
    node.step(PeerMessage(word(3, 3, epoch=2)), 0.5)
    assert not node.is_active
    outputs = node.step(Leave(), 1.0)
    assert not [output for output in outputs if isinstance(output, Publish)]
    assert node.has_left(1.0)


def test_a_node_that_was_away_says_that_it_asks_and_does_not_hear(node: Node) -> None:
    before = node.state(1.0).pair
    node.step(Stall(5.0), 6.0)
    asking = node.state(6.0).pair
    node.step(PeerMessage(word(3, 4)), 6.1)
    heard = node.state(6.1).pair
    assert [before.is_peer_fresh, asking.is_peer_fresh, heard.is_peer_fresh] == [True, False, True]
    assert asking.retry_after_s == 2.0


WORKER = [b"worker", b"MDPW02"]


def ask(node: Node, client: bytes, now: float) -> list[list[bytes]]:
    """A plain client asks for "echo"."""
    return frames_of(node.receive_frames([client, b"MDPC02", b"\x01", b"echo", b"x"], now))


def reply_to(node: Node, client: bytes, now: float) -> list[list[bytes]]:
    """The plain worker answers this client."""
    return frames_of(node.receive_frames([*WORKER, b"\x04", client, b"", b"y"], now))


def frames_of(outputs: list[Output]) -> list[list[bytes]]:
    return [output.frames for output in outputs if isinstance(output, Send)]


def answer_to(client: bytes) -> list[bytes]:
    return [client, b"MDPC02", b"\x03", b"echo", b"y"]


def given_to_worker(client: bytes) -> list[bytes]:
    return [*WORKER, b"\x02", client, b"", b"x"]


def away(node: Node) -> int:
    """One plain client's request is with the only worker, another's waits; then the process is away.

    Returns the question that the node asks its peer.
    """
    node.receive_frames([*WORKER, b"\x01", b"echo"], 1.0)
    assert ask(node, b"first", 1.0) == [given_to_worker(b"first")]
    assert ask(node, b"second", 1.0) == []
    outputs = node.step(Stall(3.0), 4.0)
    assert frames_of(outputs) == []
    assert not node.is_active
    return next(output.message.asks for output in outputs if isinstance(output, Publish))


def test_a_node_that_was_away_keeps_what_plain_clients_asked_until_it_serves_again(node: Node) -> None:
    """They cannot be told, and nobody has taken over."""
    question = away(node)
    assert reply_to(node, b"first", 4.0) == [answer_to(b"first")], "whoever serves, this is the answer"
    outputs = node.step(PeerMessage(word(3, 4, answers=question)), 4.1)
    assert node.is_active
    assert given_to_worker(b"second") in frames_of(outputs)
    assert reply_to(node, b"second", 4.2) == [answer_to(b"second")]
    assert node.state(4.2).broker.services[0].returned == 0


def given(outputs: list[Output]) -> list[bytes]:
    """The clients whose requests go to the plain worker, in order."""
    return [frames[3] for frames in frames_of(outputs) if frames[:3] == [*WORKER, b"\x02"]]


def test_what_plain_clients_ask_a_node_that_was_away_waits_until_the_peer_has_answered(node: Node) -> None:
    """In order, behind what waited before; nothing is dispatched meanwhile, although a worker is idle."""
    question = away(node)
    reply_to(node, b"first", 4.0)
    assert ask(node, b"third", 4.05) == []
    assert given(node.receive_frames([b"fourth", b"", b"MDPC01", b"echo", b"x"], 4.06)) == []
    assert not node.is_active
    assert given(node.step(PeerMessage(word(3, 4, answers=question)), 4.1)) == [b"second"]
    answered = [b"second", b"third", b"fourth"]
    for client, following in zip(answered, [*answered[1:], b""], strict=True):
        frames = node.receive_frames([*WORKER, b"\x04", client, b"", b"y"], 4.2)
        assert given(frames) == [following] * (following != b"")
    state = node.state(4.2).broker
    assert (state.services[0].answered, state.services[0].returned, state.drops) == (4, 0, {})


def test_an_idle_worker_gets_nothing_while_its_node_asks_the_peer(node: Node) -> None:
    node.receive_frames([*WORKER, b"\x01", b"echo"], 1.0)
    outputs = node.step(Stall(3.0), 4.0)
    question = next(output.message.asks for output in outputs if isinstance(output, Publish))
    assert ask(node, b"first", 4.0) == []
    assert given(node.step(PeerMessage(word(3, 4, answers=question)), 4.1)) == [b"first"]


def test_native_clients_learn_at_once_that_a_node_that_was_away_does_not_serve(node: Node) -> None:
    away(node)
    assert answers(node, 4.05) == [native.NOT_ACTIVE]
    assert node.state(4.05).broker.queued == 1


def test_what_waited_while_the_peer_took_over_is_dropped_and_counted(node: Node) -> None:
    away(node)
    ask(node, b"third", 4.05)
    assert node.state(4.05).broker.queued == 2
    node.step(PeerMessage(word(3, 3, epoch=2)), 4.1)
    assert node.state(4.1).broker.queued == 0
    assert node.state(4.1).broker.services[0].returned == 2
    assert ask(node, b"fourth", 4.2) == []
    assert node.state(4.2).broker.queued == 0, "the peer serves: nothing waits here"
    assert node.state(4.2).broker.drops["not-active"] == 1


def tick_until(node: Node, since: float, until: float) -> list[Output]:
    outputs: list[Output] = []
    now = since
    while (due := node.next_deadline()) is not None and due <= until:
        now = max(now, due)
        outputs += node.step(Tick(), now)
    return outputs


def test_a_plain_request_that_waits_is_a_vote_when_the_peer_does_not_answer(node: Node) -> None:
    away(node)
    reply_to(node, b"first", 4.0)
    ask(node, b"third", 4.05)
    assert given(tick_until(node, 4.05, 5.9)) == [], "the peer has a whole timeout to answer"
    assert given(tick_until(node, 5.9, 7.1)) == [b"second"]
    assert node.is_active


def test_the_last_word_of_a_dead_peer_releases_nothing(node: Node) -> None:
    """It served until it died, and this node took over."""
    node.step(PeerMessage(word(3, 3, epoch=2)), 0.5)
    tick_until(node, 0.5, 3.0)
    ask(node, b"first", 3.0)
    assert node.is_active
    node.step(Stall(3.0), 6.0)
    ask(node, b"second", 6.1)
    assert node.state(6.1).broker.queued == 2
    tick_until(node, 6.1, 8.5)
    assert node.is_active
    assert node.state(8.5).broker.queued == 2


def test_what_waited_before_a_node_was_away_is_no_vote(node: Node) -> None:
    """Its client may have gone to the other node by now."""
    away(node)
    tick_until(node, 4.0, 30.0)
    assert not node.is_active


def test_plain_requests_wait_for_three_failover_timeouts_while_nobody_serves(node: Node) -> None:
    away(node)
    node.step(PauseTakeovers(60.0, "a test"), 4.0)
    node.machine.epochs.hear_peer(2, 4.0)  # another node has served, so the pause holds
    ask(node, b"third", 4.05)
    tick_until(node, 4.05, 9.9)
    assert node.state(9.9).broker.queued == 2
    tick_until(node, 9.9, 11.1)
    assert not node.is_active
    assert node.state(11.1).broker.queued == 1, "what was there before keeps its own time"
    ask(node, b"fourth", 11.2)
    assert node.state(11.2).broker.drops["not-active"] == 1


@pytest.fixture
def standby() -> Node:
    """A passive node with an arbiter and a plain worker; its peer has been silent for a failover timeout."""
    settings = StarSettings(pair="test", role=Role.PRIMARY, arbiter=ARBITER)
    machine = StarMachine(settings, node="we", epoch=0, now=0.0)
    made = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    made.step(PeerMessage(word(1, 3, epoch=1, arbiter=ARBITER)), 3.0)
    made.receive_frames([*WORKER, b"\x01", b"echo"], 3.0)
    tick_until(made, 3.0, 5.2)
    return made


def grant(node: Node, outputs: list[Output], now: float) -> list[bytes]:
    """The arbiter grants the claim that was said last; the clients whose requests go to the worker."""
    claim = [output.message.seq for output in outputs if isinstance(output, Publish)][-1]
    assert claim is not None
    return given(node.step(ArbiterAnswer(Answer("we", claim, is_granted=True)), now))


def test_the_vote_of_a_plain_client_waits_until_the_majority_is_won(standby: Node) -> None:
    """Its client knows one node after the other: dropped, a failover would cost it two timeouts."""
    outputs = standby.receive_frames([b"first", b"MDPC02", b"\x01", b"echo", b"x"], 5.2)
    assert frames_of(outputs) == []
    ask(standby, b"second", 5.25)
    assert grant(standby, outputs, 5.3) == [b"first"]
    assert standby.state(5.3).broker.queued == 1
    assert standby.state(5.3).broker.drops == {}


def test_a_vote_that_no_majority_follows_waits_for_three_failover_timeouts(standby: Node) -> None:
    ask(standby, b"first", 5.2)
    tick_until(standby, 5.2, 11.1)
    assert standby.state(11.1).broker.queued == 1
    tick_until(standby, 11.1, 11.3)
    assert standby.state(11.3).broker.queued == 0
    ask(standby, b"second", 11.4)
    standby.receive_frames([*WORKER, b"\x01", b"echo"], 11.4)
    assert grant(standby, tick_until(standby, 11.4, 12.6), 12.6) == [b"second"]


def test_a_vote_is_dropped_when_the_silent_peer_serves_after_all(standby: Node) -> None:
    ask(standby, b"first", 5.2)
    standby.step(PeerMessage(word(2, 3, epoch=1, arbiter=ARBITER, claims=True)), 5.3)
    assert standby.state(5.3).broker.queued == 0
    assert ask(standby, b"second", 5.4) == []
    assert standby.state(5.4).broker.queued == 0
    # Another outage is another wait.
    tick_until(standby, 5.4, 8.0)
    ask(standby, b"third", 8.0)
    assert standby.state(8.0).broker.queued == 1


def test_what_waits_at_a_node_that_was_away_keeps_the_bounds_of_a_queue() -> None:
    machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
    settings = BrokerSettings(queue_length_max=10)
    node = Node(machine, settings, node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    node.step(PeerMessage(word(1, 2)), 0.0)
    node.step(Stall(3.0), 4.0)
    for number in range(20):
        ask(node, b"client %d" % number, 4.0)
    assert node.state(4.0).broker.queued == 10
    assert node.state(4.0).broker.drops == {"queue-full": 10}


def test_a_node_whose_peer_took_over_lets_go_of_what_waited(node: Node) -> None:
    away(node)
    node.step(PeerMessage(word(3, 3, epoch=2)), 4.1)
    assert node.state(4.1).broker.queued == 0
    assert node.state(4.1).broker.services[0].returned == 1
    # What the worker was given before is answered; when that worker is lost, nobody else gets it here.
    node.receive_frames([*WORKER, b"\x06"], 4.2)
    state = node.state(4.2)
    assert (state.broker.queued, state.broker.in_flight, state.broker.clients) == (0, 0, 0)
    assert state.broker.services[0].returned == 2


def test_what_waits_at_a_suspended_node_expires_as_anywhere() -> None:
    desk = Desk(request_ttl_s=5)
    desk.request02(b"c")
    desk.broker.deactivate(desk.now)
    desk.wait(6)
    assert desk.ledger.services[b"echo"].tally.expired == 1
    assert desk.ledger.waiting.count == 0


def test_a_node_that_leaves_keeps_nothing(node: Node) -> None:
    ask(node, b"first", 1.0)
    node.step(Leave(), 1.0)
    node.step(PeerMessage(word(3, 3, epoch=2)), 1.0)
    assert node.state(1.1).broker.queued == 0


STATE_REQUEST = native.encode_request(bytes(range(24)), b"mmi.state", [b""])
STATE_BATCH = native.encode_requests(bytes(range(16)), b"mmi.state", [1, 2], [0, 0], [b"", b""])


@pytest.mark.parametrize("request_", [STATE_REQUEST, STATE_BATCH], ids=["single", "batch"])
def test_a_management_request_is_no_vote(node: Node, request_: list[bytes]) -> None:
    node.step(PeerMessage(word(3, 3, epoch=2)), 1.0)
    silent_at = 1.0 + 2.0
    for tick in range(1, 5):
        node.step(Tick(), 1.0 + tick / 2)

    node.receive_frames([CLIENT, *request_], silent_at)
    assert not node.is_active, "looking changes nothing"
    answers(node, silent_at)
    assert node.is_active, "the same moment is good for a vote"


def busy(node: Node, now: float) -> None:
    """Let a worker hold a request."""
    node.receive_frames([b"worker", *native.encode_ready(b"echo", credit=1)], now)
    assert any(isinstance(output, Dispatch) for output in node.receive_frames([CLIENT, *REQUEST], now))


def test_a_stopping_node_serves_until_its_workers_have_answered(node: Node) -> None:
    busy(node, 0.5)
    node.step(Leave(), 1.0)
    assert node.is_active
    final = native.encode_final(bytes(range(24)), node.machine.epoch, 0, [b"done"])
    node.receive_frames([b"worker", *final], 1.5)
    node.step(Tick(), 1.5)
    assert not node.is_active


def test_a_stopping_node_waits_for_its_workers_no_longer_than_it_may(node: Node) -> None:
    busy(node, 0.5)
    node.step(Leave(), 1.0)
    for tick in range(1, 50):
        now = 1.0 + tick / 10
        node.receive_frames([b"worker", *native.encode_heartbeat(node.machine.epoch)], now)
        node.step(Tick(), now)
        assert node.is_active
    node.step(Tick(), 1.0 + 5.0)
    assert not node.is_active


# --- management requests ------------------------------------------------------------------------------------


def with_services(node: Node, count: int) -> None:
    for number in range(count):
        node.receive_frames([b"worker %d" % number, b"MDPW02", b"\x01", b"service-%d" % number], 1.0)


def batch_of(service: bytes, bodies: list[bytes]) -> list[bytes]:
    numbers = range(1, len(bodies) + 1)
    return native.encode_requests(bytes(range(16)), service, numbers, [0] * len(bodies), bodies)


@pytest.mark.parametrize("service", [b"mmi.state", b"mmi.services", b"mmi.workers", b"mmi.descriptions"])
def test_a_batch_of_management_requests_costs_one_picture(node: Node, service: bytes) -> None:
    """300 snapshots of 1,000 services took seconds, and the peer took the role over."""
    with_services(node, 1_000)
    outputs = node.receive_frames([CLIENT, *batch_of(service, [b""] * 300)], 1.1)
    assert node.management.made == 1
    said = [native.decode(frames[1:]).command for frames in frames_of(outputs)]
    assert set(said) <= {native.FINAL, native.BUSY}
    answered = [frames for frames in frames_of(outputs) if frames[-1].startswith((b"[", b"{"))]
    assert len(answered) == said.count(native.FINAL) > 30
    assert len({frames[-1] for frames in answered}) == 1


def test_a_batch_is_answered_until_its_answers_are_too_large_and_the_rest_may_come_again(node: Node) -> None:
    with_services(node, 1_000)
    frames = frames_of(node.receive_frames([CLIENT, *batch_of(b"mmi.state", [b""] * 1_000)], 1.1))
    said = [native.decode(each[1:]).command for each in frames]
    answered = said.count(native.FINAL)
    assert said == [native.FINAL] * answered + [native.BUSY] * (1_000 - answered)
    octets = sum(len(frame) for each in frames[:answered] for frame in each)
    assert 16 << 20 <= octets < 17 << 20
    assert node.state(1.1).broker.drops == {"client-full": 1_000 - answered}


def test_a_batch_that_asks_for_many_services_looks_at_the_workers_once(node: Node) -> None:
    with_services(node, 1_000)
    for number in range(1_000):  # all of them are busy
        client = b"client %d" % number
        node.receive_frames([client, b"MDPC02", b"\x01", b"service-%d" % number, b"x"], 1.0)
    names = [b"service-%d" % number for number in range(1_000)]
    frames = frames_of(node.receive_frames([CLIENT, *batch_of(b"mmi.service", names)], 1.1))
    assert [each[-1] for each in frames] == [b"200"] * 1_000
    assert node.management.made == 1


def state_of(node: Node, now: float) -> Any:
    (frames,) = frames_of(node.receive_frames([b"operator", b"MDPC02", b"\x01", b"mmi.state", b""], now))
    return json.loads(frames[-1])


def test_a_snapshot_of_many_services_takes_a_tenth_of_the_time(node: Node) -> None:
    with_services(node, 1_000)
    for number in range(100):
        state_of(node, 1.0 + number / 100)
    assert node.management.made == 15, "of 6.6 ms each"
    node.receive_frames([b"late", b"MDPW02", b"\x01", b"service-0"], 2.0)
    assert state_of(node, 2.2)["broker"]["workers"] == 1_001


def test_a_snapshot_of_few_services_is_always_of_now(node: Node) -> None:
    with_services(node, 5)
    assert state_of(node, 1.0)["broker"]["workers"] == 5
    node.receive_frames([b"late", b"MDPW02", b"\x01", b"service-0"], 1.0)
    assert state_of(node, 1.0)["broker"]["workers"] == 6
