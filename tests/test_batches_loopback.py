"""Batches between real processes and threads: clients, a broker process, workers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from bstar_client import AsyncHAClient, AsyncWorker, HAClient, Request, Worker
from bstar_testing import wait_until
from support.brokers import Broker, lone_broker

pytestmark = pytest.mark.loopback

WAIT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with lone_broker(tmp_path_factory.mktemp("batches")) as broker:
        yield broker


def double(request: Request) -> bytes:
    return request.body * 2


def test_every_body_of_a_map_gets_its_own_reply_whatever_travels_together(broker: Broker) -> None:
    endpoint = broker.endpoint
    bodies = [b"%d " % number * (number % 50) for number in range(5_000)]
    bodies[1_000] = bytes(100_000)
    with (
        Worker(endpoint, "double", double, credit=300, threads=1) as one,
        Worker(endpoint, "double", double, credit=8),
        Worker(endpoint, "double", double) as three,
        HAClient(endpoint, timeout=WAIT_S) as client,
    ):
        replies = list(client.map("double", bodies, window=1_000))
        assert [reply.body for reply in replies] == [body * 2 for body in bodies]
        assert {reply.attempts for reply in replies} == {1}
        assert one.counters.finished
        assert three.counters.finished


def test_replies_of_a_map_arrive_while_a_later_request_is_still_worked_on(broker: Broker) -> None:
    may_end = threading.Event()

    def work(request: Request) -> bytes:
        if request.body == b"slow":
            assert may_end.wait(WAIT_S)
        return request.body

    with (
        Worker(broker.endpoint, "slow", work, credit=20, threads=1),
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
    ):
        replies = client.map("slow", [*[b"quick"] * 9, b"slow", b"last"], window=20)
        assert [next(replies).body for _ in range(9)] == [b"quick"] * 9
        may_end.set()
        assert [reply.body for reply in replies] == [b"slow", b"last"]


def test_what_waits_in_a_worker_that_stops_is_done_by_another_and_once(broker: Broker) -> None:
    executed: Counter[bytes] = Counter()
    has_begun, may_end = threading.Event(), threading.Event()

    def first(request: Request) -> bytes:
        executed[request.body] += 1
        has_begun.set()
        assert may_end.wait(WAIT_S)
        return b"first"

    def second(request: Request) -> bytes:
        executed[request.body] += 1
        return b"second"

    bodies = [b"%d" % number for number in range(40)]
    leaving = Worker(broker.endpoint, "leave", first, credit=50, threads=1).start()
    with HAClient(broker.endpoint, timeout=WAIT_S) as client:
        client.discover("leave")
        replies = client.map("leave", bodies, window=40)
        told: list[bytes] = []
        reader = threading.Thread(target=lambda: told.extend(reply.body for reply in replies))
        reader.start()
        assert has_begun.wait(WAIT_S)
        leaving.stop()
        wait_until(lambda: leaving.counters.requests_dropped > 0, "the worker gives up what waits")
        with Worker(broker.endpoint, "leave", second):
            may_end.set()
            leaving.close()
            reader.join(WAIT_S)
    assert told == [b"first"] + [b"second"] * 39
    assert executed == Counter(bodies)


def test_a_worker_without_batches_serves_a_client_with_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an earlier release does."""
    from bstar.wire import native
    from bstar_client.core.worker.dialects import Heard, Hearing, NativeWorker

    def ready(
        self: NativeWorker, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int
    ) -> list[bytes]:
        return native.encode_ready(service, credit=credit, epoch=epoch)

    kinds: Counter[Hearing] = Counter()
    read = NativeWorker.read

    def counting(self: NativeWorker, frames: list[bytes]) -> Heard:
        heard = read(self, frames)
        kinds[heard.kind] += 1
        return heard

    monkeypatch.setattr(NativeWorker, "ready", ready)
    monkeypatch.setattr(NativeWorker, "read", counting)
    with (
        Worker(broker.endpoint, "earlier", double, credit=10),
        HAClient(broker.endpoint, timeout=WAIT_S) as client,
    ):
        assert [reply.body for reply in client.map("earlier", [b"x"] * 100, window=50)] == [b"xx"] * 100
    assert kinds[Hearing.REQUEST] == 100
    assert kinds[Hearing.REQUESTS] == 0


async def test_tasks_and_their_cancellation_with_batches(broker: Broker) -> None:
    may_end = asyncio.Event()

    async def work(request: Request) -> bytes:
        if request.body == b"slow":
            await may_end.wait()
        return request.body

    async with (
        AsyncWorker(broker.endpoint, "tasks", work, credit=500),
        AsyncHAClient(broker.endpoint, timeout=WAIT_S) as client,
    ):
        bodies = [b"%d" % number for number in range(2_000)]
        replies = [reply.body async for reply in client.map("tasks", bodies, window=700)]
        assert replies == bodies
        slow = asyncio.create_task(client.request("tasks", b"slow"))
        quick = [asyncio.create_task(client.request("tasks", b"%d" % number)) for number in range(200)]
        assert [(await task).body for task in quick] == bodies[:200]
        slow.cancel()
        await asyncio.wait([slow])
        assert slow.cancelled()
        assert (await client.request("tasks", b"after")).body == b"after"
        may_end.set()
