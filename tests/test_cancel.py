"""A caller gives up: the handler that runs for its request learns that.

The scripts of client, broker and worker have what is sent and what leaves the queue.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import CollectorRegistry

from bstar.errors import OutcomeUnknownError
from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, Request, Worker, metrics
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Begin
from bstar_testing import Pair, wait_until
from support.waiting import LIMIT_S
from support.worker_bench import ONE, NativeBench

# --- the worker ---------------------------------------------------------------------------------------------


def tell(bench: NativeBench, node: int, identity: bytes) -> None:
    bench.take(bench.core.receive(node, native.encode_cancel(identity, 1), bench.now))


@pytest.mark.requirement("BSN-W-19")
def test_the_twin_that_another_node_sent_goes_on() -> None:
    """The request was sent again to the other node, and the worker runs both."""
    bench = NativeBench(WorkerLimits(credit=2))
    bench.connect(0, 1)
    bench.request(0, ONE)
    bench.request(1, ONE, is_redelivered=True)
    tell(bench, 0, ONE)
    first, twin = bench.begun()
    assert first.cancelled_at is not None
    assert twin.cancelled_at is None


def test_a_handler_that_runs_on_shows_after_the_grace() -> None:
    bench = NativeBench(WorkerLimits(cancel_grace_s=2.0))
    bench.connect(0, expiry_ms=100_000)
    bench.request(0, ONE)
    tell(bench, 0, ONE)
    assert bench.core.overdue_cancels(bench.now + 1.9) == 0
    assert bench.core.overdue_cancels(bench.now + 2.0) == 1
    bench.take(
        bench.core.failed(
            bench.begun()[0], [b"CancelledError: "], bench.now, ErrorCode.CANCELLED, "cancelled"
        )
    )
    assert bench.core.overdue_cancels(bench.now + 9.0) == 0
    assert bench.sent(0)[-1][3] == ErrorCode.CANCELLED
    assert [type(output) for output in bench.log].count(Begin) == 1


# --- all of them --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as made:
        made.start()
        yield made


@pytest.mark.loopback
def test_a_request_that_an_operator_cancels_ends_its_handler_and_is_no_failure(pair: Pair) -> None:
    begun: queue.Queue[str] = queue.Queue()
    ended: queue.Queue[bool] = queue.Queue()

    def handle(request: Request) -> bytes:
        left = threading.Event()
        request.on_cancel(left.set)
        begun.put(request.identity.hex())
        left.wait(LIMIT_S)
        ended.put(request.is_cancelled)
        return b""

    with Worker(pair.endpoints, "ordered", handle), HAClient(pair.endpoints, timeout=2 * LIMIT_S) as client:
        call = client.begin("ordered", b"")
        request = begun.get(timeout=LIMIT_S)
        command = [sys.executable, "-m", "bstar_cli", "request", "cancel", request, "--reason", "too old"]

        def is_done() -> bool:
            """At the node that serves: a busy machine may move the role meanwhile."""
            configs = [str(node.config_path) for node in pair.nodes]
            runs = (
                subprocess.run([*command, "--config", each], timeout=2 * LIMIT_S, check=False)
                for each in configs
            )
            return any(run.returncode == 0 for run in runs)

        wait_until(is_done, "a node cancels it")
        assert ended.get(timeout=LIMIT_S)
        with pytest.raises(OutcomeUnknownError, match="an operator cancelled it"):
            call.result(LIMIT_S)
        [service] = [each for each in pair.active().state().broker.services if each.service == "ordered"]
        assert (service.cancelled, service.lost, service.failed) == (1, 0, 0)


@pytest.mark.loopback
def test_a_handler_that_goes_on_after_the_grace_is_a_metric(pair: Pair) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def handle(request: Request) -> bytes:
        begun.set()
        may_end.wait(2 * LIMIT_S)
        return b""

    registry = CollectorRegistry()

    def overdue() -> float | None:
        labels = {"worker": "w", "service": "deaf"}
        return registry.get_sample_value("bstar_worker_overdue_cancels", labels)

    with (
        Worker(pair.endpoints, "deaf", handle, cancel_grace_s=0.1) as worker,
        HAClient(pair.endpoints, timeout=2 * LIMIT_S) as client,
    ):
        metrics.register(worker, name="w", registry=registry)
        call = client.begin("deaf", b"")
        assert begun.wait(LIMIT_S)
        assert overdue() == 0
        call.cancel()
        wait_until(lambda: overdue() == 1, "the handler is overdue", limit_s=LIMIT_S)
        may_end.set()
        wait_until(lambda: overdue() == 0, "the handler has ended", limit_s=LIMIT_S)


@pytest.mark.loopback
def test_a_stream_that_is_left_ends_its_handler(pair: Pair) -> None:
    ended: queue.Queue[bool] = queue.Queue()

    def count(request: Request) -> Iterator[bytes]:
        yield b"first"
        left = threading.Event()
        request.on_cancel(left.set)
        left.wait(LIMIT_S)
        ended.put(request.is_cancelled)

    with Worker(pair.endpoints, "count", count), HAClient(pair.endpoints) as client:
        for part in client.stream("count", b""):
            assert part.body == b"first"
            break
        assert ended.get(timeout=LIMIT_S)


@pytest.mark.loopback
async def test_a_task_that_is_cancelled_cancels_the_handlers_task(pair: Pair) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(request: Request) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async with AsyncWorker(pair.endpoints, "wait", handle) as worker, AsyncHAClient(pair.endpoints) as client:
        call = asyncio.create_task(client.request("wait", b""))
        await asyncio.wait_for(begun.wait(), LIMIT_S)
        call.cancel()
        await asyncio.wait_for(ended.wait(), LIMIT_S)
    assert worker.figures().counters["cancelled"] == 1


@pytest.mark.loopback
async def test_an_async_stream_that_is_left_ends_its_handler(pair: Pair) -> None:
    ended = asyncio.Event()

    async def count(request: Request) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with AsyncWorker(pair.endpoints, "count2", count), AsyncHAClient(pair.endpoints) as client:
        parts = client.stream("count2", b"")
        assert (await anext(parts)).body == b"first"
        await parts.aclose()
        await asyncio.wait_for(ended.wait(), LIMIT_S)
