"""Our client and workers in the published protocols, at queues and a broker of the guide's kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from bstar_client import HAClient, Handler, LazyPirateClient, Request, Worker
from bstar_client.arguments.settings import WorkerProtocol
from support.published_queues import (
    INTERVAL_S,
    LIVENESS,
    PublishedBroker,
    PublishedQueue,
    PublishedSimpleQueue,
)
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement

BODIES = [[b"x"], [b"one", b"", b"three"], [b""], [b"\x01"], [b"\x02"], [b"x" * 300_000, b"y"]]


def echo(request: Request) -> list[bytes]:
    return list(request.frames)


@contextmanager
def worker_at(endpoint: str, dialect: WorkerProtocol, handler: Handler = echo) -> Iterator[Worker]:
    with Worker(
        [endpoint], "echo", handler, dialect=dialect, heartbeat_s=INTERVAL_S, liveness=LIVENESS
    ) as worker:
        yield worker


@requirement("PPP-W-01")
@requirement("SPP-W-01")
@pytest.mark.parametrize(("dialect", "kind"), [("ppp", PublishedQueue), ("spp", PublishedSimpleQueue)])
def test_a_pirate_worker_serves_at_the_guides_queue(
    dialect: WorkerProtocol, kind: type[PublishedQueue]
) -> None:
    with (
        kind() as queue,
        worker_at(queue.workers, dialect),
        worker_at(queue.workers, dialect),
        LazyPirateClient([queue.clients], timeout=LIMIT_S) as client,
    ):
        for body in BODIES * 5:
            assert list(client.request(body).frames) == body


@requirement("PPP-W-06")
def test_a_paranoid_worker_at_the_guides_queue_is_given_one_request_at_a_time() -> None:
    """A heartbeat while it works would list it: the other client's request would wait behind this one."""
    go_on, is_begun = threading.Event(), threading.Event()

    def wait(request: Request) -> bytes:
        if request.body == b"slow":
            is_begun.set()
            assert go_on.wait(LIMIT_S)
        return request.body

    with (
        PublishedQueue() as queue,
        worker_at(queue.workers, "ppp", wait),
        ThreadPoolExecutor(1) as pool,
        LazyPirateClient([queue.clients], timeout=LIMIT_S) as slow,
    ):
        queue.wait_for([b"\x02"])
        reply = pool.submit(slow.request, b"slow")
        assert is_begun.wait(LIMIT_S)
        with worker_at(queue.workers, "ppp"), LazyPirateClient([queue.clients], timeout=LIMIT_S) as quick:
            queue.wait_for([b"\x01"], 2)
            # Long enough for heartbeats of a worker that works.
            queue.wait_for([b"\x02"], 10)
            for number in range(20):
                assert quick.request(b"%d" % number).body == b"%d" % number
        go_on.set()
        assert reply.result().body == b"slow"


@requirement("PPP-W-02")
def test_a_paranoid_worker_is_ready_again_at_a_queue_that_was_restarted() -> None:
    with PublishedQueue() as first, worker_at(first.workers, "ppp") as worker:
        first.wait_for([b"\x01"])
        first.__exit__(None, None, None)
        with PublishedQueue(first.clients, first.workers) as second:
            second.wait_for([b"\x01"])
            with LazyPirateClient([second.clients], timeout=LIMIT_S) as client:
                assert client.request(b"x").body == b"x"
        worker.stop()


@requirement("MDP1-C-01")
@requirement("MDP1-W-02")
@requirement("MDP1-W-07")
def test_our_client_and_worker_meet_at_the_guides_broker() -> None:
    with PublishedBroker() as broker:
        with HAClient([broker.clients], dialect="mdp01", timeout=LIMIT_S) as client:
            for _ in range(2):
                with worker_at(broker.workers, "mdp01"):
                    for body in BODIES:
                        assert list(client.request("echo", body).frames) == body
        assert not broker.is_ended
