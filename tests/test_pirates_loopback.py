"""Pirates at the doors of a real pair."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bstar_broker.core.snapshot import FrontState, NodeState
from bstar_client import HAClient, LazyPirateClient, Worker
from bstar_client.arguments.settings import WorkerProtocol
from support.brokers import Broker, BrokerPair
from support.pirate_sockets import LazyPirate, ParanoidWorkerThread, SimpleWorkerThread
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

CLIENTS, WORKERS = "fronts.ppp.clients", "fronts.ppp.workers"
BODIES = [[b"x"], [b"one", b"", b"three"], [b""], [b"\x01"], [b"\x02"], [b"x" * 3_000_000, b"y"]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[BrokerPair]:
    with BrokerPair(tmp_path, doors=(CLIENTS, WORKERS)) as pair:
        pair.start()
        yield pair


def pirates(state: NodeState) -> FrontState:
    [front] = state.fronts
    return front


def wait_for_workers(node: Broker, **counts: int) -> None:
    """Until the node has so many ``simple`` and ``paranoid`` workers."""
    node.wait_for(
        f"{counts} Pirate workers",
        lambda state: all(pirates(state).peers[f"{kind}_workers"] == n for kind, n in counts.items()),
    )


def test_both_kinds_of_workers_serve_published_clients(pair: BrokerPair) -> None:
    primary = pair.doors(WORKERS)[0]
    for worker in (SimpleWorkerThread, ParanoidWorkerThread):
        with worker(primary), LazyPirate(pair.doors(CLIENTS), timeout_s=LIMIT_S) as client:
            for body in BODIES:
                assert client.ask(*body) == body
    with ParanoidWorkerThread(primary), LazyPirate(pair.doors(CLIENTS), timeout_s=LIMIT_S) as client:
        for body in BODIES:
            assert client.ask(*body, is_correlated=True) == body


@pytest.mark.parametrize("dialect", ["ppp", "spp"])
def test_one_pirate_worker_of_ours_serves_at_both_nodes(pair: BrokerPair, dialect: WorkerProtocol) -> None:
    with (
        Worker(pair.doors(WORKERS), "pirates", lambda request: list(request.frames), dialect=dialect),
        LazyPirateClient(pair.doors(CLIENTS), timeout=LIMIT_S / 10, attempts=10) as client,
    ):
        for body in BODIES:
            assert list(client.request(body).frames) == body
        pair.primary.kill()
        for body in BODIES:
            assert list(client.request(body).frames) == body


def test_the_end_of_a_connection_is_the_end_of_a_worker(pair: BrokerPair) -> None:
    """It is idle: no heartbeat is missed, and no request is sent."""
    primary = pair.doors(WORKERS)[0]
    with SimpleWorkerThread(primary) as simple, ParanoidWorkerThread(primary) as paranoid:
        wait_for_workers(pair.primary, simple=1, paranoid=1)
        simple.stop()
        wait_for_workers(pair.primary, simple=0, paranoid=1)
        paranoid.stop()
        wait_for_workers(pair.primary, paranoid=0)


def test_all_dialects_share_the_service(pair: BrokerPair) -> None:
    """A Pirate worker serves HAClient, and a worker of ours serves a REQ client."""
    with HAClient(pair.endpoints) as ours, LazyPirate(pair.doors(CLIENTS)) as theirs:
        with ParanoidWorkerThread(pair.doors(WORKERS)[0], lambda body: [b"pirate", *body]):
            assert ours.request("pirates", [b"a", b""], timeout=LIMIT_S).frames == (b"pirate", b"a", b"")
        wait_for_workers(pair.primary, paranoid=0)
        with Worker(pair.endpoints, "pirates", lambda request: [b"native", *request.frames]):
            assert theirs.ask(b"b") == [b"native", b"b"]


def test_after_kill_9_of_the_active_node_each_reply_is_the_right_one(pair: BrokerPair) -> None:
    """Workers at both nodes, clients that know both."""
    with ExitStack() as stack:
        for endpoint in pair.doors(WORKERS):
            for _ in range(2):
                stack.enter_context(ParanoidWorkerThread(endpoint))
        for node in pair.nodes:
            wait_for_workers(node, paranoid=2)
        clients = [stack.enter_context(LazyPirate(pair.doors(CLIENTS), timeout_s=1.0)) for _ in range(4)]
        wrong: list[object] = []
        has_warm_up, is_over = threading.Barrier(len(clients) + 1), threading.Event()

        def load(number: int, client: LazyPirate) -> None:
            for turn in range(100_000):
                body = [b"%d" % number, b"", b"%d" % turn]
                reply = client.ask(*body)
                if reply != body:
                    wrong.append((body, reply))
                if turn == 20:
                    has_warm_up.wait(LIMIT_S)
                if is_over.is_set() and turn > 20:
                    return

        threads = [threading.Thread(target=load, args=each) for each in enumerate(clients)]
        for thread in threads:
            thread.start()
        has_warm_up.wait(LIMIT_S)
        pair.primary.kill()
        pair.backup.wait_for_state("ACTIVE")
        before = pirates(pair.backup.state()).counts["replies"]
        pair.backup.wait_for("replies", lambda state: pirates(state).counts["replies"] > before + 100)
        is_over.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert wrong == []
