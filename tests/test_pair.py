"""The Binary Star on real sockets: two nodes, and nodes against scripted peers of the published kind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import zmq

from bstar import BinaryStar, Reactor, Role, State
from bstar.errors import ConfigurationError, DualActiveError, DualPassiveError, LocalProtocolError
from bstar.star import StarMachine, StarSettings
from bstar.wire.peer import HEADER, TOPICS_HEARD
from support.star_nodes import Places, RunningNode, ScriptedPeer
from support.waiting import LIMIT_S, Socket, receive

pytestmark = pytest.mark.loopback

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
Context = zmq.Context[Socket]


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


class Client:
    """A DEALER that asks one node."""

    def __init__(self, context: Context, places: Places, role: Role) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(places.clients[role])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def asks(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def is_answered(self, *frames: bytes) -> bool:
        return receive(self.socket) == list(frames)


# --- two nodes --------------------------------------------------------------------------------------------


def test_a_node_that_dies_is_replaced_with_the_next_request(context: Context, places: Places) -> None:
    """BST-S-05: failover is automatic, recovery manual."""
    with RunningNode(places, Role.BACKUP) as backup, Client(context, places, Role.BACKUP) as client:
        with RunningNode(places, Role.PRIMARY) as primary:
            primary.wait_for(ACTIVE)
            backup.wait_for(PASSIVE)
            client.asks(b"too early")
            backup.wait_until(lambda machine: machine.counters.requests_refused == 1)
        backup.wait_until(lambda machine: machine.retry_after_s(backup.reactor.now()) == 0.0)
        client.asks(b"hello")
        assert client.is_answered(b"hello")
        with RunningNode(places, Role.PRIMARY) as primary:
            primary.wait_for(PASSIVE)
            client.asks(b"still you")
            assert client.is_answered(b"still you")


def test_a_node_that_is_stopped_hands_over_before_it_ends(places: Places) -> None:
    with RunningNode(places, Role.BACKUP) as backup:
        with RunningNode(places, Role.PRIMARY) as primary:
            primary.wait_for(ACTIVE)
            backup.wait_for(PASSIVE)
            primary.stop()
            assert primary.events == ["active", "passive"]
            # It ended because it had read that the other serves; no client was needed.
            assert backup.machine.state is ACTIVE
        assert backup.machine.counters.votes == 0


def test_a_lone_active_node_can_be_stopped(context: Context, places: Places) -> None:
    with RunningNode(places, Role.PRIMARY) as primary, Client(context, places, Role.PRIMARY) as client:
        primary.wait_until(lambda machine: machine.retry_after_s(primary.reactor.now()) == 0.0)
        client.asks(b"hello")
        assert client.is_answered(b"hello")
        primary.stop()


def test_an_operator_moves_the_role_and_moves_it_back(places: Places) -> None:
    with RunningNode(places, Role.PRIMARY) as primary, RunningNode(places, Role.BACKUP) as backup:
        primary.wait_until(lambda machine: machine.is_active and machine.peer.state is PASSIVE)
        primary.reactor.call_threadsafe(primary.star.handover).result(LIMIT_S)
        backup.wait_until(lambda machine: machine.is_active and machine.peer.state is PASSIVE)
        backup.reactor.call_threadsafe(backup.star.handover).result(LIMIT_S)
        primary.wait_for_events("active", "passive", "active")
        assert primary.machine.epoch == 3


# --- a published peer -------------------------------------------------------------------------------------

# How a scripted peer brings a node there.
WAYS = {
    (Role.PRIMARY, PRIMARY): [b"4"],
    (Role.PRIMARY, ACTIVE): [b"2"],
    (Role.PRIMARY, PASSIVE): [b"3"],
    (Role.BACKUP, BACKUP): [b"4"],
    (Role.BACKUP, PASSIVE): [b"3"],
}
# A word of the published peer, or a request while it is fresh or silent, and what becomes of the node; the
# whole table is that of test_star_machine.py.
CASES = [
    (Role.PRIMARY, PRIMARY, b"fresh", PRIMARY),
    (Role.PRIMARY, PRIMARY, b"4", PRIMARY),
    (Role.PRIMARY, ACTIVE, b"3", ERROR),
    (Role.PRIMARY, PASSIVE, b"2", ACTIVE),
    (Role.BACKUP, BACKUP, b"3", PASSIVE),
    (Role.BACKUP, PASSIVE, b"4", ERROR),
    (Role.BACKUP, PASSIVE, b"silent", ACTIVE),
]


def bring_to(node: RunningNode, peer: ScriptedPeer, role: Role, state: State) -> None:
    peer.wait_for_subscriber()
    for count, word in enumerate(WAYS[role, state], 1):
        peer.says(word)
        node.wait_for_words(count)
    assert node.machine.state is state
    peer.hears(b"%d" % state)


@pytest.mark.parametrize(
    ("role", "state", "event", "next_state"),
    CASES,
    ids=lambda case: getattr(case, "name", None) or case.decode(),
)
def test_rows_of_the_published_table(
    context: Context, places: Places, role: Role, state: State, event: bytes, next_state: State
) -> None:
    """BST-S-03, BST-R-01, BST-R-05: the codes a published peer hears, and whether a client is served."""
    with (
        ScriptedPeer.at(context, places, role.peer) as peer,
        RunningNode(places, role, on_dual_active="exit") as node,
        Client(context, places, role) as client,
    ):
        bring_to(node, peer, role, state)
        if event in (b"fresh", b"silent"):
            if event == b"silent":
                node.wait_until(lambda machine: node.reactor.now() >= machine.peer.expires_at)
            client.asks(event)
            if next_state is ACTIVE:
                assert client.is_answered(event)
            else:
                node.wait_until(lambda machine: machine.counters.requests_refused == 1)
        else:
            heard = node.machine.counters.peer_messages
            peer.says(event)
            node.wait_for_words(heard + 1)
        assert node.machine.state is next_state
        if next_state is ERROR:
            node.wait_for_end()
            assert type(node.error) is (DualActiveError if state is ACTIVE else DualPassiveError)
        elif next_state is state:
            # Nothing new is said: the rest of this period's message and the next one are of the same state.
            assert set(peer.next_codes(2)) == {b"%d" % state}
        else:
            peer.hears(b"%d" % next_state)


def test_garbage_from_the_peer_neither_moves_nor_ends_a_node(context: Context, places: Places) -> None:
    """BST-R-02."""
    # What begins with no code and no header of a node does not arrive: nobody subscribes to it.
    unheard = [b"5", b"0", b"abc", b"", b"\xff" * 100_000]
    garbage = [
        [b"31"],
        [b"1" * 100_000],
        [b"3", b"BSTP01"],
        [b"BSTP01"],
        [b"BSTP01", b"5"],
        [b"BSTP01", b"3", b"{"],
    ]
    with (
        ScriptedPeer.at(context, places, Role.BACKUP) as peer,
        RunningNode(places, Role.PRIMARY) as node,
        Client(context, places, Role.PRIMARY) as client,
    ):
        bring_to(node, peer, Role.PRIMARY, PASSIVE)
        heard = node.machine.counters.peer_messages
        for word in unheard:
            peer.says(word)
        for frames in garbage:
            peer.says(*frames)
        node.wait_for_words(heard + len(garbage))
        assert node.machine.state is PASSIVE
        # Nor was it a sign of life: the peer counts as silent one timeout after its last good word.
        node.wait_until(lambda machine: node.reactor.now() >= machine.peer.expires_at)
        client.asks(b"vote")
        assert client.is_answered(b"vote")


def test_a_published_peer_hears_the_code_alone(context: Context, places: Places) -> None:
    """BST-S-01: published servers in C++, Java and Python end on a second frame."""
    with ScriptedPeer.at(context, places, Role.BACKUP) as peer, RunningNode(places, Role.PRIMARY):
        # It fails on whatever else it hears.
        assert list(peer.next_codes(4)) == [b"1"] * 4


def test_a_native_peer_never_hears_the_code_alone(context: Context, places: Places) -> None:
    with (
        RunningNode(places, Role.PRIMARY),
        context.socket(zmq.SUB) as native,
        context.socket(zmq.SUB) as other,
    ):
        native.linger = 0
        for topic in TOPICS_HEARD:
            native.subscribe(topic)
        native.connect(places.state[Role.PRIMARY])
        other.subscribe(b"")
        other.connect(places.state[Role.PRIMARY])
        for _ in range(4):
            assert receive(other) == [b"1"]
            header, code, _ = receive(native)
            assert (header, code) == (HEADER, b"1")


def subscriber_of(context: Context, places: Places, *topics: bytes) -> Socket:
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    for topic in topics:
        socket.subscribe(topic)
    socket.connect(places.state[Role.PRIMARY])
    return socket


@pytest.mark.parametrize("topics", [(b"",), TOPICS_HEARD])
def test_whoever_connects_is_told_at_once(
    context: Context, places: Places, topics: tuple[bytes, ...]
) -> None:
    """With this heartbeat nothing would be heard within the limit of this test."""
    slow: dict[str, Any] = {"heartbeat_interval_s": LIMIT_S, "failover_timeout_s": 3 * LIMIT_S}
    with RunningNode(places, Role.PRIMARY, **slow):
        for _ in range(2):
            with subscriber_of(context, places, *topics) as subscriber:
                assert b"1" in receive(subscriber)


def test_whoever_subscribes_again_is_told_again(context: Context, places: Places) -> None:
    slow: dict[str, Any] = {"heartbeat_interval_s": LIMIT_S, "failover_timeout_s": 3 * LIMIT_S}
    with RunningNode(places, Role.PRIMARY, **slow), subscriber_of(context, places) as subscriber:
        for _ in range(3):
            subscriber.subscribe(b"")
            assert receive(subscriber) == [b"1"]
            subscriber.unsubscribe(b"")


def test_of_a_burst_only_the_newest_word_counts(context: Context) -> None:
    """A link that was blocked delivers an hour at once; the first words of it are not how things are."""
    # Within a process a message has arrived as soon as it is sent, so the burst is whole when the node looks.
    with ScriptedPeer(context, binds="inproc://they", connects="inproc://we") as peer, Reactor() as reactor:
        machine = StarMachine(StarSettings(pair="p", role=Role.PRIMARY), node="n", epoch=0, now=reactor.now())
        with BinaryStar(
            "primary",
            local="inproc://we",
            remote="inproc://they",
            reactor=reactor,
            context=context,
            machine=machine,
        ):
            peer.wait_for_subscriber()
            for word in (b"2", b"2", b"4", b"x", b"3"):
                peer.says(word)
            reactor.turn()
            assert machine.state is PASSIVE
            assert machine.counters.transitions == {(PRIMARY, PASSIVE): 1}


# --- what a node keeps ------------------------------------------------------------------------------------


def test_the_epoch_survives_a_restart(context: Context, places: Places, tmp_path: Path) -> None:
    for epoch in (1, 3):
        with (
            RunningNode(places, Role.PRIMARY, state_dir=tmp_path / "new" / "state") as node,
            Client(context, places, Role.PRIMARY) as client,
        ):
            node.wait_until(lambda machine: node.reactor.now() >= machine.peer.expires_at)
            client.asks(b"vote")
            assert client.is_answered(b"vote")
            assert node.machine.epoch == epoch
        assert (tmp_path / "new" / "state" / "epoch").read_text() == f"{epoch}\n"


@pytest.mark.parametrize("text", ["seven\n", f"{2**62 + 1}\n", "7" * 5_000])
def test_a_broken_epoch_file_is_explained(places: Places, tmp_path: Path, text: str) -> None:
    (tmp_path / "epoch").write_text(text)
    with pytest.raises(ConfigurationError, match=rf"holds '{text[:5]}.*bstar epoch reset stores 0 there"):
        BinaryStar(
            "primary", local=places.state[Role.PRIMARY], remote=places.state[Role.BACKUP], state_dir=tmp_path
        )


def test_a_node_that_cannot_store_its_epoch_serves_and_says_so(
    context: Context, places: Places, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        RunningNode(places, Role.PRIMARY, state_dir=tmp_path) as node,
        Client(context, places, Role.PRIMARY) as client,
        caplog.at_level(logging.ERROR, "bstar.pair"),
    ):
        # A directory in the way of the file that is written first.
        (tmp_path / "epoch.new").mkdir()
        node.wait_until(lambda machine: node.reactor.now() >= machine.peer.expires_at)
        client.asks(b"vote")
        assert client.is_answered(b"vote")
        assert node.star.epoch_error == "Is a directory"
        (tmp_path / "epoch.new").rmdir()
        node.wait_until(lambda machine: not node.star.epoch_error)
        assert (tmp_path / "epoch").read_text() == "1\n"
    assert "could not be stored" in caplog.text


# --- opening and closing ----------------------------------------------------------------------------------


def star_at(places: Places, **changes: object) -> BinaryStar:
    fields: dict[str, object] = {"local": places.state[Role.PRIMARY], "remote": places.state[Role.BACKUP]}
    return BinaryStar("primary", **(fields | changes))  # type: ignore[arg-type]


def test_closing_twice_is_closing_once(places: Places) -> None:
    star = star_at(places)
    star.close()
    star.close()
    with star_at(places):
        pass


def test_a_node_that_cannot_open_leaves_nothing_behind(places: Places) -> None:
    with star_at(places):
        with pytest.raises(zmq.ZMQError):
            star_at(places)
        with pytest.raises(zmq.ZMQError):
            star_at(places, local=places.state[Role.BACKUP], remote="nonsense")
    with star_at(places, local=places.state[Role.BACKUP], remote=places.state[Role.PRIMARY]):
        pass


def test_there_is_one_voter(places: Places) -> None:
    with star_at(places) as star:
        star.voter(places.clients[Role.PRIMARY], zmq.ROUTER, lambda socket, frames: None)
        with pytest.raises(LocalProtocolError, match="one voter"):
            star.voter(places.clients[Role.BACKUP], zmq.ROUTER, lambda socket, frames: None)


def test_what_cannot_be_a_role_is_explained(places: Places) -> None:
    with pytest.raises(ConfigurationError, match="'primary' or 'backup'"):
        BinaryStar("leader", local=places.state[Role.PRIMARY], remote=places.state[Role.BACKUP])
