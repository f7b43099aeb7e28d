"""Majordomo on real sockets: what libzmq and the broker's process add to tests/test_conformance_mdp.py."""

from __future__ import annotations

import pytest

from support.brokers import Broker
from support.rawpeers import Peers

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement


def reply(service: bytes, *body: bytes) -> list[bytes]:
    return [b"", b"MDPC01", service, *body]


@requirement("MDP1-G-01")
def test_a_req_client_sees_its_reply_without_the_empty_frame(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.req_client01()
    client.send(b"MDPC01", service, b"hi")
    job = worker.take()
    worker.reply(job.client, b"there")
    assert client.recv() == [b"MDPC01", service, b"there"]


@requirement("MDP1-B-08")
def test_a_correlating_req_gets_its_request_id_back_and_the_worker_sees_one_address(
    peers: Peers, service: bytes
) -> None:
    worker, client = peers.worker01(service), peers.req_client01(correlate=True)
    for body in (b"first", b"second"):
        # The REQ socket itself throws away a reply that does not carry its request id.
        client.request(service, body)
        job = worker.take()
        assert job.body == (body,)
        worker.reply(job.client, body)
        assert client.recv() == [b"MDPC01", service, body]


@pytest.mark.parametrize("correlate", [False, True], ids=["plain", "correlating"])
def test_a_req_client_of_0_2_works_for_a_service_without_partials(
    peers: Peers, service: bytes, *, correlate: bool
) -> None:
    worker, client = peers.worker02(service), peers.req_client02(correlate=correlate)
    for number in (b"1", b"2"):
        client.request(service, number)
        worker.finish(worker.take(), number)
        assert client.recv() == [b"MDPC02", b"\x03", service, number]


@requirement("MDP1-B-08")
@requirement("MDP2-R-05")
def test_a_body_of_3_mb_travels_unchanged_both_ways(peers: Peers, service: bytes) -> None:
    body = bytes(range(250)) * 12_000
    for worker, client, name in (
        (peers.worker01(service + b"1"), peers.client01(), service + b"1"),
        (peers.worker02(service + b"2"), peers.client02(), service + b"2"),
    ):
        client.request(name, body)
        job = worker.take()
        assert job.body == (body,)
        worker.finish(job, body)
        assert client.recv()[-1] == body


@requirement("MDP1-R-05")
def test_a_message_too_large_is_dropped(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    worker, client = tight_peers.worker01(service), tight_peers.client01()
    client.request(service, bytes(tight.profile.limits["message_bytes_max"] + 1))
    worker.answer = b"seen"
    # Whether the message is dropped or its connection ends is the broker's choice; the client can go on.
    while (frames := client.try_recv(0.1)) is None:
        client.request(service, b"small")
    assert frames == reply(service, b"seen", b"small")


@requirement("MDP1-R-06")
def test_a_worker_with_a_fixed_identity_may_return_before_its_old_connection_is_known_to_be_gone(
    peers: Peers, service: bytes
) -> None:
    identity = b"fixed " + service
    old = peers.worker01(service, identity=identity)
    old.await_heartbeat()
    old.fall_silent()
    # To the broker this is a second READY of the same worker; it then has to come once more, as after any
    # DISCONNECT.
    new = peers.worker01(service, identity=identity)
    new.await_disconnect()
    new.ready(service)
    client = peers.client01()
    client.request(service, b"hi")
    new.finish(new.take(), b"there")
    assert client.recv() == reply(service, b"there")


@requirement("MDP1-B-09")
@requirement("MDP2-B-09")
def test_a_silent_worker_is_given_up(mortal_peers: Peers, service: bytes) -> None:
    peers = mortal_peers
    for worker, name in ((peers.worker01(service + b"1"), b"1"), (peers.worker02(service + b"2"), b"2")):
        worker.await_heartbeat()
        worker.fall_silent()
        client = peers.client01()
        peers.wait_until(lambda: client.mmi(b"mmi.service", service + name) == [b"404"], "it is given up")  # noqa: B023


@requirement("MDP1-R-03")
@requirement("MDP2-B-09")
def test_the_request_of_a_worker_that_vanished_goes_to_another(mortal_peers: Peers, service: bytes) -> None:
    peers = mortal_peers
    for make in (peers.worker01, peers.worker02):
        worker, client = make(service), peers.client01()
        client.request(service, b"hi")
        worker.take()
        worker.vanish()
        other = make(service)
        other.finish(other.take(), b"there")
        assert client.recv() == reply(service, b"there")
        other.disconnect()


def test_a_burst_of_old_heartbeats_behind_ready_is_taken(peers: Peers, service: bytes) -> None:
    """A DEALER that connects before its broker is there delivers everything at once (T-06)."""
    worker = peers.worker01(service)
    for _ in range(200):
        worker.heartbeat()
    client = peers.client01()
    client.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == reply(service, b"there")


def test_a_second_live_connection_with_the_same_identity_takes_over(peers: Peers, service: bytes) -> None:
    """A default ROUTER would ignore the newcomer for as long as the old connection looks alive (T-03)."""
    worker = peers.worker01(service)
    old = peers.client01(identity=b"one and only " + service)
    old.mmi(b"mmi.service", service)
    new = peers.client01(identity=b"one and only " + service)
    new.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert new.recv() == reply(service, b"there")
    assert old.collect() == []
