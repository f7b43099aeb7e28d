"""Clients and workers of both versions of Majordomo on one socket, meeting in one service.

A 0.1 client can take one reply only: a REQ socket throws every later one away. So what a 0.2 worker sends it
in parts arrives as one reply, all body frames in their order.
"""

from __future__ import annotations

import itertools

import pytest

from support import memory_broker
from support.memory_broker import MemoryBroker
from support.rawpeers import Client01, Client02, Peers, ReqClient01, ReqClient02, Worker01, Worker02

requirement = pytest.mark.requirement
broker, mortal = memory_broker.broker, memory_broker.mortal
tight, tight_peers = memory_broker.tight, memory_broker.tight_peers

AnyClient = Client01 | Client02 | ReqClient01 | ReqClient02
AnyWorker = Worker01 | Worker02

CLIENTS = ("dealer-0.1", "req-0.1", "req-0.1-correlating", "dealer-0.2", "dealer-0.2-delimited", "req-0.2")
WORKERS = ("0.1", "0.2", "0.2-delimited")


def make_client(peers: Peers, kind: str) -> AnyClient:
    match kind:
        case "dealer-0.1":
            return peers.client01()
        case "req-0.1":
            return peers.req_client01()
        case "req-0.1-correlating":
            return peers.req_client01(correlate=True)
        case "dealer-0.2":
            return peers.client02()
        case "dealer-0.2-delimited":
            return peers.client02(delimited=True)
        case "req-0.2":
            return peers.req_client02()
    raise AssertionError(kind)


def make_worker(peers: Peers, kind: str, service: bytes | None = None) -> AnyWorker:
    if kind == "0.1":
        return peers.worker01(service)
    return peers.worker02(service, delimited=kind == "0.2-delimited")


def last_reply(kind: str, service: bytes, *body: bytes) -> list[bytes]:
    """The frames with which a request of such a client ends, as its socket hands them over."""
    prefix = {
        "dealer-0.1": [b"", b"MDPC01"],
        "req-0.1": [b"MDPC01"],
        "req-0.1-correlating": [b"MDPC01"],
        "dealer-0.2": [b"MDPC02", b"\x03"],
        "dealer-0.2-delimited": [b"", b"MDPC02", b"\x03"],
        "req-0.2": [b"MDPC02", b"\x03"],
    }[kind]
    return [*prefix, service, *body]


@pytest.mark.parametrize("client_kind", CLIENTS)
@pytest.mark.parametrize("worker_kind", WORKERS)
@requirement("MDP1-B-11")
def test_every_client_is_served_by_every_worker(
    peers: Peers, service: bytes, client_kind: str, worker_kind: str
) -> None:
    client, worker = make_client(peers, client_kind), make_worker(peers, worker_kind, service)
    for number in (b"1", b"2"):
        client.request(service, number, b"two frames")
        job = worker.take()
        assert job.body == (number, b"two frames")
        worker.finish(job, number, b"", b"three frames")
        assert client.recv() == last_reply(client_kind, service, number, b"", b"three frames")


@pytest.mark.parametrize("client_kind", ["dealer-0.1", "req-0.1", "req-0.1-correlating"])
@pytest.mark.parametrize("worker_kind", ["0.2", "0.2-delimited"])
def test_partials_for_a_0_1_client_become_one_reply(
    peers: Peers, service: bytes, client_kind: str, worker_kind: str
) -> None:
    client, worker = make_client(peers, client_kind), make_worker(peers, worker_kind, service)
    assert isinstance(worker, Worker02)
    client.request(service, b"hi")
    job = worker.take()
    worker.partial(job.client, b"1a", b"1b")
    worker.partial(job.client, b"")
    worker.partial(job.client, b"3")
    assert client.try_recv(0.1) is None
    worker.final(job.client, b"end a", b"end b")
    assert client.recv() == last_reply(client_kind, service, b"1a", b"1b", b"", b"3", b"end a", b"end b")
    # Nothing of one request is left over for the next.
    client.request(service, b"again")
    worker.finish(worker.take(), b"alone")
    assert client.recv() == last_reply(client_kind, service, b"alone")


def test_buffered_partials_are_counted_as_life(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes
) -> None:
    peers = mortal_peers
    client, worker = peers.client01(), peers.worker02(service)
    client.request(service, b"hi")
    job = worker.take()
    worker.fall_silent()
    steps = 8
    for _ in range(steps):
        worker.partial(job.client, b"p")
        peers.pass_time(mortal.timing.expiry_s * 0.4)
    worker.final(job.client, b"f")
    assert client.recv() == last_reply("dealer-0.1", service, *[b"p"] * steps, b"f")


def test_a_request_whose_partials_nobody_has_seen_is_run_again_from_the_start(
    peers: Peers, service: bytes
) -> None:
    client, worker = peers.req_client01(), peers.worker02(service)
    client.request(service, b"hi")
    worker.partial(worker.take().client, b"from the first worker")
    worker.disconnect()
    other = peers.worker02(service)
    job = other.take()
    assert job.body == (b"hi",)
    other.partial(job.client, b"from the second worker")
    other.final(job.client, b"end")
    assert client.recv() == last_reply("req-0.1", service, b"from the second worker", b"end")


def test_the_buffer_for_partials_is_bounded(tight: MemoryBroker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    client, worker = peers.client01(), peers.worker02(service)
    client.request(service, b"too much")
    job = worker.take()
    for _ in range(10):
        worker.partial(job.client, bytes(tight.profile.limits["partials_buffer_bytes_max"] // 4))
    worker.final(job.client, b"end")
    # The request is given up, the client is served on, and no half of a reply ever arrives.
    client.request(service, b"again")
    frames = worker.next_command()
    if frames == worker.command(worker.DISCONNECT):
        worker = peers.worker02(service)
        frames = worker.next_command()
    job = worker.as_job(frames)
    assert job.body == (b"again",)
    worker.final(job.client, b"small")
    assert client.recv() == last_reply("dealer-0.1", service, b"small")


@pytest.mark.parametrize(("first", "second"), [("0.2", "0.1"), ("0.1", "0.2-delimited")])
def test_a_worker_of_another_version_takes_over(
    peers: Peers, service: bytes, first: str, second: str
) -> None:
    client = peers.client02()
    client.request(service, b"hi")
    leaving = make_worker(peers, first, service)
    leaving.take()
    leaving.disconnect()
    staying = make_worker(peers, second, service)
    staying.finish(staying.take(), b"there")
    assert client.recv() == last_reply("dealer-0.2", service, b"there")


def test_workers_of_both_versions_take_turns_in_one_service(peers: Peers, service: bytes) -> None:
    workers = []
    for kind in WORKERS:
        worker = make_worker(peers, kind, service)
        worker.await_heartbeat()
        workers.append(worker)
    client = peers.client01()
    for number, worker in enumerate(itertools.islice(itertools.cycle(workers), 6)):
        client.request(service, b"%d" % number)
        job = worker.take()
        worker.finish(job, b"done %d" % number)
        assert client.recv() == last_reply("dealer-0.1", service, b"done %d" % number)


def test_one_queue_holds_requests_of_both_versions(peers: Peers, service: bytes) -> None:
    clients = {kind: make_client(peers, kind) for kind in CLIENTS}
    for kind, client in clients.items():
        client.request(service, kind.encode())
    worker = peers.worker02(service)
    for _ in clients:
        job = worker.take()
        worker.finish(job, job.body[0])
    for kind, client in clients.items():
        assert client.recv() == last_reply(kind, service, kind.encode())


@requirement("MDP1-B-04")
@requirement("MDP2-B-04")
def test_a_stranger_is_disconnected_in_its_own_version(peers: Peers) -> None:
    old, new = peers.dealer(), peers.dealer()
    old.send(b"", b"MDPW01", b"\x04")
    new.send(b"MDPW02", b"\x05")
    assert old.recv() == [b"", b"MDPW01", b"\x05"]
    assert new.recv() == [b"MDPW02", b"\x06"]


@pytest.mark.parametrize(
    ("registered", "then"),
    [("0.1", [b"MDPW02", b"\x05"]), ("0.2", [b"", b"MDPW01", b"\x04"])],
    ids=["0.1-then-0.2", "0.2-then-0.1"],
)
def test_a_worker_that_changes_its_version_halfway_does_not_disturb(
    peers: Peers, service: bytes, registered: str, then: list[bytes]
) -> None:
    """Header upgraded, codes left behind, or the other way round: seen in the field."""
    worker, client = make_worker(peers, registered, service), peers.client01()
    worker.await_heartbeat()
    worker.send(*then)
    worker.disconnect()
    assert worker.mmi(b"mmi.service", service) in ([b"404"], [b"200"])
    other = peers.worker01(service)
    client.request(service, b"hi")
    other.finish(other.take(), b"there")
    assert client.recv() == last_reply("dealer-0.1", service, b"there")
