"""A caller gives up: its request leaves the queue, and the handler that runs for it learns that."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import CollectorRegistry

from bstar.errors import CallTimeoutError, OutcomeUnknownError
from bstar.wire import native
from bstar.wire.messages import ALL_FEATURES, READS_CANCELS, ErrorCode, NodeStatus
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, Request, Worker, metrics
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Begin, Cancel
from bstar_testing import Pair, wait_until
from support.client_desk import ACTIVE, PASSIVE
from support.client_desk import Desk as ClientDesk
from support.desk import Desk, heard, ident
from support.waiting import LIMIT_S
from support.worker_bench import ONE, TWO, NativeBench

# --- the client ---------------------------------------------------------------------------------------------


def cancels(desk: ClientDesk) -> list[tuple[int, bytes]]:
    return [(node, message.identity) for node, message in desk.sent if message.command == native.CANCEL]


@pytest.mark.requirement("BSN-C-15")
def test_a_call_whose_deadline_passes_is_cancelled_at_the_node_that_has_it(served: ClientDesk) -> None:
    call = served.call(timeout=1.0)
    served.wait(1.1)
    assert cancels(served) == [(0, call.identity)]
    assert isinstance(served.error_of(call), CallTimeoutError)


@pytest.mark.requirement("BSN-C-15")
def test_a_call_that_its_caller_leaves_is_cancelled_and_one_with_a_key_is_not(served: ClientDesk) -> None:
    left, keyed = served.call(), served.call(key=b"order 7")
    for call in (left, keyed):
        served.take(served.session.abandon(call, served.now))
    assert cancels(served) == [(0, left.identity)]
    assert served.session.outstanding == 0


@pytest.mark.requirement("BSN-C-15")
def test_a_client_that_ends_cancels_what_it_has_no_answer_to(served: ClientDesk) -> None:
    left, answered, _keyed = served.call(), served.call(), served.call(key=b"order 7")
    served.final(0, answered)
    served.take(served.session.close(served.now))
    assert cancels(served) == [(0, left.identity)]


@pytest.mark.requirement("BSN-C-15")
def test_nothing_is_cancelled_at_a_node_that_was_lost_with_the_request(served: ClientDesk) -> None:
    call = served.call()
    served.disconnect(0)
    served.take(served.session.abandon(call, served.now))
    assert cancels(served) == []


@pytest.mark.requirement("BSN-C-15")
def test_a_node_of_an_earlier_release_gets_no_cancel() -> None:
    desk = ClientDesk()
    desk.connect(0, NodeStatus(ACTIVE, 1, PASSIVE, 0, 0, 100, 300, ALL_FEATURES & ~READS_CANCELS))
    desk.take(desk.session.abandon(desk.call(), desk.now))
    assert cancels(desk) == []


# --- the broker ---------------------------------------------------------------------------------------------


def cancel(desk: Desk, client: bytes, number: int) -> list[list[bytes]]:
    return desk.send(client, *native.encode_cancel(ident(number), 7))


def lives_on(desk: Desk, seconds: float) -> list[list[bytes]]:
    """Its worker sends heartbeats for so long; what the broker sends meanwhile."""
    sent: list[list[bytes]] = []
    for _ in range(round(seconds / 0.1)):
        sent += desk.send(b"w", *native.encode_heartbeat(7)) + desk.wait(0.1)
    return sent


def commands(sent: list[list[bytes]]) -> list[int]:
    return [heard(frames).command for frames in sent]


def cancelled(desk: Desk) -> int:
    return desk.ledger.services[b"echo"].tally.cancelled


@pytest.mark.requirement("BSN-B-28")
def test_a_cancelled_request_leaves_the_queue() -> None:
    desk = Desk()
    desk.request(b"c", 1)
    assert cancel(desk, b"c", 1) == []
    assert (cancelled(desk), desk.ledger.waiting.count, desk.ledger.requests_of) == (1, 0, {})
    assert commands(desk.ready(b"w")) == [native.WELCOME], "nothing is left to be done"


@pytest.mark.requirement("BSN-B-28")
def test_one_request_of_a_batch_can_be_cancelled() -> None:
    desk = Desk()
    desk.requests(b"c", [1, 2, 3])
    cancel(desk, b"c", 2)
    _, *given = desk.ready(b"w", credit=3)
    assert [heard(frames).identity for frames in given] == [ident(1), ident(3)]


@pytest.mark.requirement("BSN-B-28")
def test_a_worker_that_holds_it_learns_it_and_its_answer_is_dropped() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    [told] = cancel(desk, b"c", 1)
    assert (told[0], heard(told).command, heard(told).identity) == (b"w", native.CANCEL, ident(1))
    assert cancel(desk, b"c", 1) == [], "once is enough"
    assert desk.final(b"w", 1) == []
    assert (cancelled(desk), desk.ledger.drops["late-reply"], desk.ledger.by_identity) == (1, 1, {})
    [given] = desk.request(b"c", 2)
    assert given[0] == b"w", "it has room again"


@pytest.mark.requirement("BSN-B-34")
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_worker_learns_that_the_client_of_a_request_has_ended_without_a_word(is_batch: bool) -> None:
    desk = Desk()
    desk.ready(b"w", credit=2, takes_batches=True)
    if is_batch:
        desk.requests(b"c", [1, 2], ttls_ms=[1_000, 2_000])
    else:
        desk.request(b"c", 1, ttl_ms=1_000)
        desk.request(b"c", 2, ttl_ms=2_000)
    told = [heard(frames) for frames in lives_on(desk, 8.0)]
    assert [each.identity for each in told if each.command == native.CANCEL] == [ident(1), ident(2)]
    assert (cancelled(desk), desk.final(b"w", 1)) == (2, [])


@pytest.mark.requirement("BSN-B-34")
def test_a_request_outlives_its_deadline_if_it_has_a_key_or_a_plain_worker() -> None:
    desk = Desk()
    desk.ready(b"w", credit=2)
    desk.ready02(b"plain", b"other")
    desk.request(b"c", 2)  # it has no deadline
    desk.request(b"c", 1, service=b"other", ttl_ms=1_000)
    keyed = native.keyed_identity(b"echo", b"order 7")
    desk.send(b"c", *native.encode_request(keyed, b"echo", [b"hi"], ttl_ms=1_000))
    lives_on(desk, 8.0)
    assert desk.ledger.services[b"other"].tally.cancelled == cancelled(desk) == 0
    assert len(desk.final02(b"plain", b"c")) == 1


@pytest.mark.requirement("BSN-B-28")
def test_a_request_that_a_plain_worker_holds_is_not_answered() -> None:
    desk = Desk()
    desk.ready02(b"w")
    desk.request(b"c", 1)
    assert cancel(desk, b"c", 1) == []
    assert desk.final02(b"w", b"c") == []


@pytest.mark.requirement("BSN-B-28")
def test_a_cancelled_request_is_not_redelivered_when_its_worker_is_lost() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    cancel(desk, b"c", 1)
    desk.ready(b"other")
    assert desk.send(b"w", *native.encode_disconnect()) == []
    assert desk.ledger.by_identity == {}


@pytest.mark.requirement("BSN-B-28")
def test_nobody_cancels_what_another_asked_for() -> None:
    desk = Desk(b"w")
    desk.request(b"c", 1)
    assert cancel(desk, b"stranger", 1) == []
    assert len(desk.final(b"w", 1)) == 1


@pytest.mark.requirement("BSN-B-28")
def test_a_request_with_a_key_stays_because_others_may_want_it() -> None:
    desk = Desk(b"w")
    keyed = native.keyed_identity(b"echo", b"order 7")
    desk.send(b"c", *native.encode_request(keyed, b"echo", [b"hi"]))
    assert desk.send(b"c", *native.encode_cancel(keyed, 7)) == []
    assert cancelled(desk) == 0


# --- the worker ---------------------------------------------------------------------------------------------


def tell(bench: NativeBench, node: int, identity: bytes) -> None:
    bench.take(bench.core.receive(node, native.encode_cancel(identity, 1), bench.now))


@pytest.mark.requirement("BSN-W-19")
def test_a_request_that_waits_in_the_worker_does_not_begin() -> None:
    bench = NativeBench(WorkerLimits(credit=2, running_max=1, handler_timeout_s=60.0))
    bench.connect(0)
    bench.request(0, ONE)
    bench.request(0, TWO)
    tell(bench, 0, TWO)
    assert bench.sent(0)[-1][:2] == (native.ERROR, TWO)
    assert bench.sent(0)[-1][3] == ErrorCode.CANCELLED
    [first] = bench.begun()
    bench.finish(first)
    assert bench.begun() == [first]
    assert bench.core.counters.cancelled == 1


@pytest.mark.requirement("BSN-W-19")
def test_a_request_that_its_shell_has_not_begun_is_taken_back() -> None:
    bench = NativeBench(claims=False)
    bench.connect(0)
    bench.request(0, ONE)
    tell(bench, 0, ONE)
    [job] = bench.begun()
    assert not bench.core.claim(job)
    assert bench.sent(0)[-1][3] == ErrorCode.CANCELLED


@pytest.mark.requirement("BSN-W-19")
def test_a_handler_that_runs_is_told_once_and_may_finish() -> None:
    bench = NativeBench()
    bench.connect(0)
    bench.request(0, ONE)
    tell(bench, 0, ONE)
    tell(bench, 0, ONE)
    [job] = bench.begun()
    assert [output for output in bench.log if isinstance(output, Cancel)] == [Cancel(job)]
    bench.finish(job)
    assert bench.sent(0)[-1][:2] == (native.FINAL, ONE)


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
