"""Fronts of a pair with keys, on real sockets: who gets something, who gets nothing, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from bstar.errors import NoActiveNodeError, RefusedError
from bstar.security import Security, new_key
from bstar.wire import pirate
from bstar.wire.emq_jobs import Job
from bstar_client.core.emq.manager import ManagerSettings
from bstar_client.emq import EmqClient, EmqJobManager
from bstar_testing import Pair
from support.pirate_sockets import LazyPirate, ParanoidWorkerThread, secure
from support.waiting import LIMIT_S, Socket

pytestmark = pytest.mark.loopback

PIRATES = ("fronts.ppp.clients", "fronts.ppp.workers")
JOBS = ("fronts.emq.clients", "fronts.emq.workers")
CALLS = "support.emq_calls"
TIMING = ManagerSettings((), heartbeat_s=0.2, silence_s=LIMIT_S, answer_s=LIMIT_S, pause_s=0.05)
# Long enough that a reply that should not come would have come; nothing is measured.
NOTHING_MS = 1_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("keys"), is_secure=True, doors=(*PIRATES, *JOBS)) as made:
        assert made.keys is not None
        made.keys.add("other-client", "calls:price")
        made.keys.add("other-worker", "offers:price")
        made.keys.add("narrow", "calls:*", bounds="connections: 1")
        made.keys.add("loud", "calls:*", bounds="messages_per_s: 5")
        made.start()
        yield made


def security(pair: Pair, name: str) -> Security:
    assert pair.keys is not None
    return pair.keys.security(name)


def stranger(pair: Pair) -> Security:
    """A good key that no list has."""
    return Security(new_key("stranger"), servers=security(pair, "client").servers)


def count(pair: Pair, reason: str) -> int:
    """How often the primary refused a connection or dropped a message for this reason."""
    state = pair.primary.state()
    assert state.security is not None
    return state.broker.drops.get(reason, 0) + state.security.refusals.get(reason, 0)


@contextmanager
def counted(pair: Pair, reason: str) -> Iterator[Callable[[], None]]:
    """Something inside is refused for this reason; who calls what this gives waits for it."""
    before = count(pair, reason)

    def refused() -> None:
        pair.primary.wait_for(f"a refusal {reason}", lambda _: count(pair, reason) > before)

    yield refused
    refused()


@contextmanager
def peer(kind: int, endpoint: str, key: Security | None) -> Iterator[Socket]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        secure(socket, key)
        socket.connect(endpoint)
        yield socket


def test_pirates_with_keys_work_at_both_nodes_before_and_after_a_kill(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(tmp_path, is_secure=True, doors=PIRATES))
        pair.start()
        clients, workers = map(pair.doors, PIRATES)
        servers = security(pair, "worker").servers
        for endpoint, server in zip(workers, servers, strict=True):
            own = Security(security(pair, "worker").key, servers=[server])
            stack.enter_context(ParanoidWorkerThread(endpoint, security=own))
        for node in pair.nodes:
            node.wait_for_workers(1)
        client = stack.enter_context(LazyPirate(clients, security=security(pair, "client")))
        assert client.ask(b"one", b"", b"three") == [b"one", b"", b"three"]
        pair.kill_active()
        assert client.ask(b"again") == [b"again"]


def test_who_has_no_listed_key_gets_nothing_from_pirates(pair: Pair) -> None:
    clients, workers = (pair.doors(door)[0] for door in PIRATES)
    with ParanoidWorkerThread(workers, security=security(pair, "worker")):
        pair.primary.wait_for_workers(1)
        with peer(zmq.REQ, clients, None) as client:
            client.send(b"x")
            assert not client.poll(NOTHING_MS)
        with counted(pair, "unknown-key") as refused, peer(zmq.REQ, clients, stranger(pair)) as client:
            client.send(b"x")
            refused()
            assert not client.poll(NOTHING_MS)
        with (
            counted(pair, "wrong-role") as refused,
            peer(zmq.REQ, clients, security(pair, "arbiter")) as client,
        ):
            client.send(b"x")
            refused()
            assert not client.poll(NOTHING_MS)
        with LazyPirate([clients], security=security(pair, "client")) as client:
            assert client.ask(b"x") == [b"x"]
    pair.primary.wait_for_workers(0)
    with counted(pair, "unknown-key") as refused, peer(zmq.DEALER, workers, stranger(pair)) as worker:
        worker.send(pirate.READY)
        refused()
        assert not worker.poll(NOTHING_MS)
    assert pair.primary.state().broker.workers == 0


@pytest.mark.parametrize("name", ["client", "other-worker"])
def test_a_pirate_worker_without_a_matching_offer_gets_no_request(pair: Pair, name: str) -> None:
    clients, workers = (pair.doors(door)[0] for door in PIRATES)
    with (
        peer(zmq.DEALER, workers, security(pair, name)) as worker,
        peer(zmq.REQ, clients, security(pair, "client")) as client,
    ):
        with counted(pair, "offer-not-allowed"):
            worker.send(pirate.READY)
        client.send(b"x")
        assert not worker.poll(NOTHING_MS)
        assert pair.primary.state().broker.workers == 0
        # The request that waits is for those who may.
        with ParanoidWorkerThread(workers, security=security(pair, "worker")):
            assert client.poll(int(LIMIT_S * 1_000))
            assert client.recv_multipart() == [b"x"]
    pair.primary.wait_for_workers(0)


@pytest.mark.parametrize("name", ["worker", "other-client"])
def test_a_pirate_client_without_a_matching_call_gets_no_reply(pair: Pair, name: str) -> None:
    clients, workers = (pair.doors(door)[0] for door in PIRATES)
    heard: list[list[bytes]] = []

    def work(body: list[bytes]) -> list[bytes]:
        heard.append(body)
        return body

    with ParanoidWorkerThread(workers, work, security=security(pair, "worker")):
        pair.primary.wait_for_workers(1)
        with (
            counted(pair, "call-not-allowed") as refused,
            peer(zmq.REQ, clients, security(pair, name)) as client,
        ):
            client.send(b"x")
            refused()
            assert not client.poll(NOTHING_MS)
    assert heard == []
    pair.primary.wait_for_workers(0)


@contextmanager
def manager(pair: Pair, key: Security | None) -> Iterator[EmqJobManager]:
    """A job manager at the primary, in a thread."""
    [router, _] = pair.doors("fronts.emq.workers")
    with EmqJobManager([router], security=key, timing=TIMING, allow=[CALLS], processes=1) as made:
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join(LIMIT_S)


def emq_client(pair: Pair, key: Security | None) -> EmqClient:
    [router, _] = pair.doors("fronts.emq.clients")
    return EmqClient([router], security=key)


def test_an_eventmq_client_and_a_job_manager_with_keys_work(pair: Pair) -> None:
    job = Job(CALLS, "add", [1, 2])
    with manager(pair, security(pair, "worker")), emq_client(pair, security(pair, "client")) as client:
        pair.primary.wait_for_workers(1)
        assert client.call("default", job, timeout_s=LIMIT_S) == 3
        with counted(pair, "call-not-allowed"), emq_client(pair, security(pair, "other-client")) as other:
            assert "may not" in other.call("default", job, timeout_s=LIMIT_S)
        with counted(pair, "unknown-key") as refused, emq_client(pair, stranger(pair)) as other:
            with pytest.raises(NoActiveNodeError):
                other.send("default", job, timeout_s=2.0)
            refused()
        with emq_client(pair, None) as other, pytest.raises(NoActiveNodeError):
            other.send("default", job, timeout_s=1.0)
    pair.primary.wait_for_workers(0)


def test_a_job_manager_without_a_matching_offer_gets_no_job(pair: Pair) -> None:
    with manager(pair, security(pair, "other-worker")) as made, counted(pair, "offer-not-allowed"):
        pass
    assert made.jobs == 0
    with manager(pair, stranger(pair)), counted(pair, "unknown-key"):
        pass
    assert pair.primary.state().broker.workers == 0


def test_a_front_holds_an_entry_to_its_connections(pair: Pair) -> None:
    clients, workers = (pair.doors(door)[0] for door in PIRATES)
    with ParanoidWorkerThread(workers, security=security(pair, "worker")):
        with LazyPirate([clients], security=security(pair, "narrow")) as client:
            assert client.ask(b"first") == [b"first"]
            with (
                counted(pair, "too-many-connections") as refused,
                peer(zmq.REQ, clients, security(pair, "narrow")) as second,
            ):
                second.send(b"second")
                refused()
                assert not second.poll(0)
        # Its first connection has ended: there is room again.
        with LazyPirate([clients], security=security(pair, "narrow")) as client:
            assert client.ask(b"third") == [b"third"]
    pair.primary.wait_for_workers(0)


def test_a_front_ends_a_connection_that_sends_too_many_messages(pair: Pair) -> None:
    [clients, _] = pair.doors(PIRATES[0])
    with counted(pair, "too-many-messages"), peer(zmq.DEALER, clients, security(pair, "loud")) as client:
        monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for number in range(100):
            client.send_multipart([b"", b"%d" % number])
        assert monitor.poll(int(LIMIT_S * 1_000)), "the node did not hang up"
        client.disable_monitor()
        monitor.close(0)


def test_to_publish_and_to_subscribe_are_different_rights(tmp_path: Path) -> None:
    """Who may publish does not read; who may read publishes nothing; a stranger does neither."""
    doors = (*JOBS, "fronts.emq.subscribers")
    with Pair(tmp_path, is_secure=True, doors=doors) as pair:
        assert pair.keys is not None
        pair.keys.add("reader", "calls:emq.subscribe")
        pair.keys.add("writer", "calls:emq.publish")
        pair.start()
        [door, _] = pair.doors("fronts.emq.subscribers")
        writer = security(pair, "writer")
        with (
            peer(zmq.SUB, door, security(pair, "reader")) as reader,
            counted(pair, "wrong-role"),
            peer(zmq.SUB, door, writer) as listener,
            counted(pair, "unknown-key"),
            peer(zmq.SUB, door, stranger(pair)) as unknown,
            emq_client(pair, writer) as client,
        ):
            for socket in (reader, listener, unknown):
                socket.subscribe(b"")
            # A subscription takes a moment; until it is there, publications are lost.
            while not reader.poll(20):
                client.publish("news", "true", confirm=True)
            assert reader.recv_multipart() == [b"news", b'"true"']
            with emq_client(pair, security(pair, "reader")) as other, pytest.raises(RefusedError):
                other.publish("news", "forged", confirm=True)
            assert not listener.poll(0)
            assert not unknown.poll(0)
