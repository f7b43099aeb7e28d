"""What ends or misleads the published brokers must not touch ours.

Every test is named after a fault that somebody saw in a published program: the C and Python Majordomo brokers
of the guide, the two lines of the majordomo library, the Binary Star samples. The stimulus is theirs, byte
by byte; the expectation is what a broker that people rely on would do. These need sockets or processes;
tests/test_conformance_mdp.py has the others.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from bstar.settings import RoleName
from bstar.wire.peer import TOPIC
from bstar_testing import wait_until
from support.brokers import Broker, broker_pair, lone_broker
from support.rawpeers import Peers, PublishedBinaryStarClient, ZmtpPeer

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement


def assert_serves(peers: Peers, name: bytes) -> None:
    """A new worker and a new client find each other."""
    worker, client = peers.worker01(name), peers.client01()
    client.request(name, b"still there?")
    worker.finish(worker.take(), b"yes")
    assert client.recv() == [b"", b"MDPC01", name, b"yes"]
    worker.disconnect()
    assert worker.mmi(b"mmi.service", name) == [b"404"]


# --- one message ends the broker ---

SINGLE_MESSAGES = [
    [b"", b"MDPC01", b"echo"],
    [b"", b"MDPC01"],
    [b"", b"MDPW01"],
    [b"", b"MDPW01", b"\x01"],
    [b""],
    [b"", b""],
    [b"MDPC01", b"echo", b"body"],
    [b"", b"MDPC01", b"", b"body"],
    [b"", b"MDPX01", b"echo", b"body"],
    [b"", b"MDPW01", b"\x2a"],
    [b"", b"MDPW01", b"\x03"],
    [b"x"],
    [b"x" * 1_000_000],
    [b"\xff" * 7] * 500,
    [b"MDPC02"],
    [b"MDPW02"],
    [b"MDPC02", b"\x01", b"echo"],
    [b"MDPW02", b"\x01"],
    # libmdp, then zproto.
    [b"", b"MDPC0X", b"echo", b"body"],
    [b"", b"MDPW0X", b"\x01", b"echo"],
    [b"\xaa\xa4\x01\x06MDPC02\x01\x04echo", b"body"],
    [b"\xaa\xa4\x04\x06MDPW02\x01\x04echo"],
    # Our own header: alone, of zeros, of ones, of another version.
    [b"\xb5\x01"],
    [b"\xb5\x01" + bytes(30), b"echo", b"body"],
    [b"\xb5\x01" + b"\xff" * 300],
    [b"\xb5\xff\x01", b"echo", b"body"],
]


@requirement("MDP1-R-01")
@requirement("MDP2-R-04")
def test_no_single_message_ends_the_broker(peers: Peers, service: bytes) -> None:
    strangers = [peers.dealer() for _ in SINGLE_MESSAGES]
    for stranger, frames in zip(strangers, SINGLE_MESSAGES, strict=True):
        stranger.send(*frames)
        assert_serves(peers, service)
    # Whatever the strangers get, if anything, it is no reply of a service and no work.
    for stranger in strangers:
        while (answer := stranger.try_recv()) is not None:
            assert b"MDPC01" not in answer[:2]
            assert b"\x02" not in answer[:3]


def test_heartbeats_of_an_idle_worker_survive_any_traffic(
    mortal: Broker, mortal_peers: Peers, service: bytes
) -> None:
    """Published brokers look at their timer only when the poll times out: traffic delays it (T-13)."""
    peers = mortal_peers
    idle, asker = peers.worker01(service), peers.client01()
    idle.await_heartbeat()
    beats, patience = 0, 60
    until = time.monotonic() + patience
    while beats < 6:
        assert time.monotonic() < until, f"{beats} heartbeats in {patience} s"
        asker.mmi(b"mmi.service", service)
        beats += idle.try_recv() is not None


# --- below the frames ---


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), id="tls"),
        pytest.param(bytes(1000), id="zeros"),
        pytest.param(b"\xff" * 1000, id="ones"),
        pytest.param(ZmtpPeer.greeting(mechanism=b"CURVE") + bytes(200), id="other-mechanism"),
        pytest.param(ZmtpPeer.greeting(mechanism=b"\xff" * 20), id="no-mechanism"),
        pytest.param(ZmtpPeer.greeting()[:20], id="half-a-greeting"),
        pytest.param(ZmtpPeer.greeting() + b"\x04\xff" + bytes(300), id="broken-ready"),
        pytest.param(
            ZmtpPeer.greeting() + ZmtpPeer.ready_command(socket_type=b"PUB"),
            id="a-socket-type-that-does-not-fit",
        ),
        pytest.param(
            ZmtpPeer.greeting() + ZmtpPeer.ready_command() + b"\x02\xff\xff\xff\xff\xff\xff\xff\xff",
            id="frame-of-2-to-the-64",
        ),
        pytest.param(
            ZmtpPeer.greeting()
            + ZmtpPeer.ready_command()
            + b"\x02\x00\x00\x01\x00\x00\x00\x00\x00"
            + bytes(999),
            id="frame-of-a-terabyte",
        ),
        pytest.param(ZmtpPeer.greeting() + ZmtpPeer.ready_command() + b"\xf8\x05hello", id="reserved-flags"),
    ],
)
@pytest.mark.parametrize("is_reset", [False, True], ids=["close", "reset"])
@requirement("MDP1-R-01")
def test_octets_that_are_no_zmtp_do_not_end_the_broker(
    broker: Broker, peers: Peers, service: bytes, octets: bytes, *, is_reset: bool
) -> None:
    before = broker.rss_bytes()
    raw = peers.zmtp(handshake=False)
    with contextlib.suppress(ConnectionError):
        raw.send_octets(octets)
        if is_reset:
            raw.reset()
    assert_serves(peers, service)
    # Nobody gets memory by announcing that much would come.
    assert broker.rss_bytes() - before < 50_000_000


@requirement("MDP1-R-01")
def test_a_connection_cut_within_a_message_leaves_nothing_behind(peers: Peers, service: bytes) -> None:
    raw = peers.zmtp()
    whole = raw.message(b"", b"MDPC01", service, b"body")
    raw.send_octets(whole[:-3])
    raw.reset()
    worker = peers.worker01(service)
    assert worker.commands() == []


def test_a_peer_of_plain_tcp_is_served(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.zmtp(identity=b"plain tcp")
    client.send(b"", b"MDPC01", service, b"x" * 1000)
    job = worker.take()
    worker.finish(job, *job.body)
    assert client.recv() == [b"", b"MDPC01", service, b"x" * 1000]


# --- time and restarts ---

# Every reading of the wall clock is hours or days from the last one.
JUMPING_CLOCK = """
import itertools, runpy, time
true_time, true_time_ns = time.time, time.time_ns
offsets = itertools.cycle((0, 7_200, -86_400, 3_600, -7_200))
time.time = lambda: true_time() + next(offsets)
time.time_ns = lambda: true_time_ns() + next(offsets) * 1_000_000_000
runpy.run_module("bstar_cli", run_name="__main__", alter_sys=True)
"""


def test_the_wall_clock_may_jump(tmp_path: Path) -> None:
    command = (sys.executable, "-c", JUMPING_CLOCK)
    with lone_broker(tmp_path, command=command) as broker, broker.peers() as peers:
        early, worker = peers.client01(), peers.worker01(b"echo")
        early.request(b"later", b"early")
        worker.await_heartbeat()
        peers.pass_time(broker.timing.expiry_s * 1.5)
        assert early.mmi(b"mmi.service", b"echo") == [b"200"]
        assert_serves(peers, b"another")
        later = peers.worker01(b"later")
        later.finish(later.take(), b"late")
        assert early.recv() == [b"", b"MDPC01", b"later", b"late"]


@requirement("MDP1-B-04")
def test_after_a_broker_restart_a_worker_is_told_to_register_again(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker, broker.peers() as peers:
        worker = peers.worker01(b"echo", identity=b"worker")
        worker.await_heartbeat()
        broker.kill()
        broker.start()
        # Its socket reconnects by itself and goes on with heartbeats, which the new process cannot place.
        while worker.recv() != worker.command(worker.DISCONNECT):
            pass
        worker.close()
        again = peers.worker01(b"echo", identity=b"worker")
        again.await_heartbeat()
        broker.activate()
        client = peers.client01()
        client.request(b"echo", b"hi")
        again.finish(again.take(), b"there")
        assert client.recv() == [b"", b"MDPC01", b"echo", b"there"]


@requirement("MDP1-B-07")
@requirement("MDP2-B-07")
def test_a_stopping_broker_finishes_the_request_at_hand(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker, broker.peers() as peers:
        worker, client = peers.worker01(b"echo"), peers.client01()
        client.request(b"echo", b"hi")
        job = worker.take()
        broker.send_signal(signal.SIGTERM)
        worker.finish(job, b"there")
        assert client.recv() == [b"", b"MDPC01", b"echo", b"there"]
        assert broker.wait_exit() == 0


# --- Binary Star ---


@contextlib.contextmanager
def scripted_peer(broker: Broker, peers: Peers) -> Iterator[zmq.Socket[bytes]]:
    """Publish where the broker's peer would; the broker has subscribed when the block begins."""
    publisher: zmq.Socket[bytes] = peers.context.socket(zmq.XPUB)
    publisher.linger = 0
    try:
        publisher.bind(broker.peer_state_endpoint)
        assert publisher.poll(10_000), broker.trouble()
        while publisher.recv() != b"\x01" + TOPIC:
            assert publisher.poll(10_000), broker.trouble()
        yield publisher
    finally:
        publisher.close()


def pair_state(broker: Broker) -> str:
    return broker.state().pair.state


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_garbage_on_the_state_link_neither_ends_nor_moves_a_node(tmp_path: Path, role: RoleName) -> None:
    """A peer that says 5 ends the published servers in three of their four states."""
    with (
        lone_broker(tmp_path, role=role, activate=False) as broker,
        broker.peers() as peers,
        scripted_peer(broker, peers) as publisher,
    ):
        single = [b"5", b"0", b"abc", b"", b"31", b"\x03", b"-1", b"3\x00", b"6", b"\xff" * 99]
        several = [
            [b"3", b"3"],
            [b"3", b"BSTP01"],
            [b"3", b"BSTP01", b"{"],
            [b"3", b"BSTP01", b"[]"],
            [b"BSTP01"],
            [b"BSTP01", b"5", b"{}"],
            [b"BSTP01", b"3", b"{"],
            [b"BSTP01", b"3", b"[]"],
        ]
        garbage = [*([text] for text in single), *several]
        for _ in range(3):
            for frames in garbage:
                publisher.send_multipart(frames)
            peers.pass_time(0.05)
        assert pair_state(broker) == role.upper()
        # A valid message behind the garbage is read: the published form has one frame with one digit.
        publisher.send(b"3")
        wait_until(lambda: pair_state(broker) == "PASSIVE", "the node follows its peer")
        for frames in garbage:
            publisher.send_multipart(frames)
        peers.pass_time(0.05)
        assert pair_state(broker) == "PASSIVE"


def test_garbage_on_the_state_link_is_no_sign_of_life(tmp_path: Path) -> None:
    with (
        lone_broker(tmp_path, role="backup", activate=False) as broker,
        broker.peers() as peers,
        scripted_peer(broker, peers) as publisher,
    ):
        publisher.send(b"3")
        wait_until(lambda: pair_state(broker) == "PASSIVE", "the node follows its peer")
        worker, client = peers.worker01(b"echo"), peers.client01()
        until = time.monotonic() + 60
        # Only garbage from now on, faster than any heartbeat, and a client that insists.
        while (frames := worker.try_recv(0.02)) is None or frames == worker.command(worker.HEARTBEAT):
            assert time.monotonic() < until, broker.trouble()
            publisher.send(b"5")
            publisher.send(b"abc")
            client.request(b"echo", b"hi")
        assert worker.as_job(frames).body == (b"hi",)


def test_a_primary_that_was_stopped_does_not_come_back_as_a_second_master(tmp_path: Path) -> None:
    """SIGSTOP, vote, SIGCONT: both published servers print `dual masters`, and both go on serving."""
    with broker_pair(tmp_path) as (primary, backup), primary.peers() as peers:
        for node in (primary, backup):
            worker = peers.worker01(b"echo", endpoint=node.endpoint)
            worker.answer = node.role.encode()

        def published_client() -> PublishedBinaryStarClient:
            """Build the sample's client; its delays shrink with our failover timeout."""
            return PublishedBinaryStarClient(
                peers,
                [primary.endpoint, backup.endpoint],
                timeout_s=0.3,
                settle_s=primary.timing.failover_timeout_s,
            )

        client = published_client()
        assert client.request(b"MDPC01", b"echo", b"1") == [b"MDPC01", b"echo", b"primary", b"1"]
        stale_client = peers.client01(endpoint=primary.endpoint)
        stale_client.mmi(b"mmi.service", b"echo")
        with primary.frozen():
            assert client.request(b"MDPC01", b"echo", b"2") == [b"MDPC01", b"echo", b"backup", b"2"]
            # These wait in the buffers of the stopped process; it must not serve them when it wakes up.
            for _ in range(10):
                stale_client.request(b"echo", b"stale")
            peers.pass_time(0.1)
        wait_until(lambda: pair_state(primary) == "PASSIVE", "the primary stands by")
        assert pair_state(backup) == "ACTIVE"
        assert stale_client.collect(primary.timing.failover_timeout_s) == []
        # Whoever comes now, to whichever node, is served by the one that is active.
        assert client.request(b"MDPC01", b"echo", b"3") == [b"MDPC01", b"echo", b"backup", b"3"]
        newcomer = published_client()
        assert newcomer.request(b"MDPC01", b"echo", b"4") == [b"MDPC01", b"echo", b"backup", b"4"]
        assert newcomer.failovers == 1
        assert primary.is_running
        assert backup.is_running
