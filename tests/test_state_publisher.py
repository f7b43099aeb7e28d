"""What a node sends to whom on its state endpoint, and what those who connect there may cost it."""

from __future__ import annotations

import os
import socket as tcp
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import zmq

from bstar import Reactor, Role, State
from bstar.pair.state_publisher import StatePublisher
from bstar.wire.peer import HEADER, TOPIC, TOPICS_HEARD, PeerState
from support.brokers import Profile, broker_pair
from support.pairs import PATIENT
from support.published_server import ACTIVE, PASSIVE, PublishedServer
from support.rawpeers import Zmtp
from support.star_nodes import Places, RunningNode
from support.waiting import LIMIT_S, Socket, receive

pytestmark = pytest.mark.loopback

Context = zmq.Context[Socket]
NATIVE = PeerState(3, "p", "primary", "a1", 1, 1, 1000, 2000)


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


def asks(context: Context, endpoint: str, question: bytes) -> None:
    """A client that asks again and again until it is answered, as published clients do."""
    with context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(endpoint)
        for _ in range(int(LIMIT_S / 0.1)):
            client.send(question)
            if client.poll(100):
                assert client.recv() == question
                return
    raise AssertionError(f"no answer within {LIMIT_S:g} s")


# --- servers of the published kind ------------------------------------------------------------------------

GUIDE: dict[str, Any] = {"heartbeat_interval_s": 1.0, "failover_timeout_s": 2.0}
LAN: dict[str, Any] = {"heartbeat_interval_s": 0.1, "failover_timeout_s": 0.3}


def test_a_published_primary_that_dies_is_replaced_by_our_backup(context: Context, places: Places) -> None:
    with RunningNode(places, Role.BACKUP, **LAN) as backup:
        with PublishedServer(context, places, Role.PRIMARY) as primary:
            primary.wait_for(ACTIVE)
            backup.wait_for(State.PASSIVE)
            asks(context, places.clients[Role.PRIMARY], b"before")
            with context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.connect(places.clients[Role.BACKUP])
                # The passive node is asked all the while, and each request is a vote.
                before = len(primary.heard)
                while len(primary.heard) < before + 30:
                    client.send(b"too early")
                    assert not client.poll(10)
                    assert primary.ended_by is None
        asks(context, places.clients[Role.BACKUP], b"after")
        assert backup.machine.state is State.ACTIVE


def test_our_primary_that_dies_is_replaced_by_a_published_backup(context: Context, places: Places) -> None:
    with PublishedServer(context, places, Role.BACKUP) as backup:
        with RunningNode(places, Role.PRIMARY, **GUIDE) as primary:
            primary.wait_for(State.ACTIVE)
            backup.wait_for(PASSIVE)
            asks(context, places.clients[Role.PRIMARY], b"before")
            backup.wait_for_words(2)
        asks(context, places.clients[Role.BACKUP], b"after")
        # The primary comes back and stands by: failback is not automatic.
        with RunningNode(places, Role.PRIMARY, **GUIDE) as primary:
            primary.wait_for(State.PASSIVE)
            backup.wait_for_words(2)
            assert backup.state == ACTIVE


# --- subscribers that are no peer -------------------------------------------------------------------------


class Publishing:
    """A StatePublisher in a loop of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.reactor = Reactor()
        self.subscribed = 0
        self._places = Places()
        self.endpoint = self._places.state[Role.PRIMARY]
        self.publisher = StatePublisher(
            context, self.reactor, self.endpoint, on_subscribed=self._on_subscribed
        )
        # Sockets of libzmq connect anew in their own threads, and nothing of that wakes the loop.
        self.reactor.add_timer(0.01, lambda now: None)

    def _on_subscribed(self, is_published: bool, now: float) -> None:
        self.subscribed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.close()
        self.reactor.close()
        self._places.close()

    def turn_until(self, question: Callable[[], object]) -> None:
        until = self.reactor.now() + LIMIT_S
        while not question():
            assert self.reactor.now() < until, f"not within {LIMIT_S:g} s"
            self.reactor.turn()

    def stranger(self) -> Zmtp:
        """Somebody who has connected, without libzmq."""
        host, _, port = self.endpoint.removeprefix("tcp://").partition(":")
        stranger = Zmtp(tcp.create_connection((host, int(port))), socket_type=b"SUB")
        stranger.handshake()
        return stranger

    def subscriber(self, *topics: bytes) -> Socket:
        socket = self._context.socket(zmq.SUB)
        socket.linger = 0
        for topic in topics:
            socket.subscribe(topic)
        with socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
            socket.connect(self.endpoint)
            assert monitor.poll(int(LIMIT_S * 1000))
            socket.disable_monitor()
        return socket

    def tells(self, subscriber: Socket) -> bool:
        """Say something; has it reached the subscriber?"""
        self.publisher.say(NATIVE)
        return bool(subscriber.poll(1))


def is_cut_off(stranger: Zmtp) -> bool:
    try:
        stranger.recv(0.001)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    raise AssertionError("it was told something")


@pytest.fixture
def node(context: Context) -> Iterator[Publishing]:
    with Publishing(context) as node:
        yield node


def test_topics_of_nobody_are_not_sent(node: Publishing) -> None:
    with node.subscriber(b"3", b"B", b"BSTP01", b"x") as curious, node.subscriber(b"") as published:
        node.turn_until(lambda: node.tells(published))
        assert receive(published) == [b"3"]
        assert not curious.poll(0)


def test_who_subscribes_to_more_than_a_peer_needs_is_cut_off(node: Publishing) -> None:
    with node.subscriber(*TOPICS_HEARD) as native:
        node.turn_until(lambda: node.tells(native))
        stranger = node.stranger()
        stranger.send_octets(b"".join(Zmtp.message(b"\x01" + os.urandom(60)) for _ in range(8)))
        node.turn_until(lambda: sum(node.publisher._connections.values()) >= 8 * 61)
        assert not is_cut_off(stranger)
        stranger.send(b"\x01" + os.urandom(60))
        node.turn_until(lambda: is_cut_off(stranger))
        assert node.publisher.hang_ups == 1
        assert node.tells(native)
        stranger.close()


def test_one_long_topic_ends_its_connection(node: Publishing) -> None:
    stranger = node.stranger()
    with suppress(ConnectionError):  # it may be cut off before all is sent
        stranger.send(b"\x01" + bytes(100_000))
    node.turn_until(lambda: is_cut_off(stranger))
    stranger.close()


def test_a_connection_before_zmtp_3_is_cut_off_as_well(node: Publishing) -> None:
    """libzmq does not tell which one it is, so all of them go that have not named themselves."""
    host, _, port = node.endpoint.removeprefix("tcp://").partition(":")
    with node.subscriber(*TOPICS_HEARD) as native, tcp.create_connection((host, int(port))) as old:
        node.turn_until(lambda: node.tells(native))
        # Signature, revision 1, SUB, and an empty identity.
        old.sendall(b"\xff" + bytes(8) + b"\x7f\x01\x02" + Zmtp.frame(b""))
        old.sendall(b"".join(Zmtp.frame(b"\x01" + os.urandom(60)) for _ in range(9)))
        stranger = Zmtp(old, socket_type=b"SUB")
        stranger._read(14)
        node.turn_until(lambda: is_cut_off(stranger))
        assert node.tells(native)


def test_a_connection_before_zmtp_3_is_a_published_peer_like_others(node: Publishing) -> None:
    host, _, port = node.endpoint.removeprefix("tcp://").partition(":")
    with tcp.create_connection((host, int(port))) as old:
        old.sendall(b"\xff" + bytes(8) + b"\x7f\x01\x02" + Zmtp.frame(b"") + Zmtp.frame(b"\x01"))
        node.turn_until(lambda: node.subscribed)
        node.publisher.say(NATIVE)
        peer = Zmtp(old, socket_type=b"SUB")
        peer._read(14)
        assert peer.recv() == [b"3"]


def test_a_message_that_is_no_subscription_makes_nobody_deaf(node: Publishing) -> None:
    """It makes libzmq take the next subscriptions for those of other connections."""
    stranger = node.stranger()
    stranger.send(b"hello")
    with ExitStack() as stack:
        # They have all come before the node looks.
        natives = [stack.enter_context(node.subscriber(TOPIC)) for _ in range(3)]
        published = [stack.enter_context(node.subscriber(b"")) for _ in range(3)]
        node.turn_until(lambda: is_cut_off(stranger))
        for socket in natives + published:
            node.turn_until(partial(node.tells, socket))
        for socket in natives:
            assert receive(socket)[0] == HEADER
        for socket in published:
            assert receive(socket) == [b"3"]
    stranger.close()


def test_of_many_connections_the_oldest_goes(node: Publishing) -> None:
    strangers = [node.stranger() for _ in range(32)]
    with node.subscriber(*TOPICS_HEARD) as native:
        node.turn_until(lambda: node.tells(native))
        node.turn_until(lambda: is_cut_off(strangers[0]))
        assert not any(is_cut_off(stranger) for stranger in strangers[1:])
    for stranger in strangers:
        stranger.close()


def test_strangers_do_not_push_a_subscriber_out(node: Publishing) -> None:
    peer = node.stranger()
    peer.send(b"\x01" + TOPIC)
    node.turn_until(lambda: node.subscribed)
    strangers = [node.stranger() for _ in range(40)]
    node.turn_until(lambda: all(is_cut_off(stranger) for stranger in strangers[:8]))
    assert not is_cut_off(peer)
    for each in (peer, *strangers):
        each.close()


# With a timeout that no pause of a busy machine reaches; the attack used to stop the loop for minutes.
CALM = Profile(PATIENT)
ATTACK_BYTES = 20_000_000
# Without bounds on topics a node takes 960 MB for them. With bounds it holds what came before it looked.
GROWTH_BYTES_MAX = 200_000_000


@pytest.mark.parametrize("topic_bytes", [60, 250])
def test_subscriptions_neither_fill_the_memory_nor_move_the_role(tmp_path: Path, topic_bytes: int) -> None:
    with broker_pair(tmp_path, CALM) as (primary, backup):
        backup.wait_for_state("PASSIVE")
        before, pair_before = primary.rss_bytes(), primary.state().pair
        host, _, port = primary.state_endpoint.removeprefix("tcp://").partition(":")
        sent = connections = 0
        while sent < ATTACK_BYTES:
            connections += 1
            with suppress(OSError), tcp.create_connection((host, int(port))) as connection:
                stranger = Zmtp(connection, socket_type=b"SUB")
                stranger.handshake()
                while sent < ATTACK_BYTES:
                    burst = b"".join(
                        Zmtp.message(b"\x01" + os.urandom(topic_bytes)) for _ in range(65_536 // topic_bytes)
                    )
                    stranger.send_octets(burst)
                    sent += len(burst)
        assert connections > 1, "nobody was cut off"
        pair = primary.state().pair
        assert (pair.state, pair.epoch) == ("ACTIVE", pair_before.epoch)
        assert primary.rss_bytes() - before < GROWTH_BYTES_MAX
        # The two still hear each other.
        backup.kill()
        backup.start()
        backup.wait_for_state("PASSIVE")
