"""The asyncio worker over real sockets, against brokers that do as they are told, and as a real process."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from bstar.errors import ClosedError, ConfigurationError, LocalProtocolError, WorkerError
from bstar.wire import native
from bstar.wire.messages import Disconnect, ErrorCode, Failure, Final, Heartbeat, Partial, Ready
from bstar.wire.native_broker import CODEC
from bstar_client import AsyncWorker, ReplyMemory, Request, Worker
from support.scripted import WAIT_S, ScriptedBroker
from support.work import asked

pytestmark = pytest.mark.loopback

T = TypeVar("T")


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, with a generous limit."""

    async def limited() -> T:
        async with asyncio.timeout(2 * WAIT_S):
            return await work

    return asyncio.run(limited())


async def until(broker: ScriptedBroker, happened: Callable[[], bool]) -> None:
    """Let the loop go on until it is so."""
    await asyncio.to_thread(broker.wait_for, happened)


async def dispatch(
    broker: ScriptedBroker, *bodies: bytes, first: int = 1, epoch: int = 1, redelivered: bool = False
) -> None:
    await until(broker, lambda: bool(broker.received(Ready)))
    worker = broker.received(Ready)[-1].sender
    for number, body in enumerate(bodies, first):
        identity = native.identity(b"c" * 16, number)
        broker.send(CODEC.request(worker, (), asked([body]), identity, 0, epoch, redelivered))


def finals(broker: ScriptedBroker) -> list[list[bytes]]:
    return [message.body for message in broker.messages if isinstance(message, Final)]


def failures(broker: ScriptedBroker) -> list[tuple[int, bytes]]:
    return [(message.code, message.text) for message in broker.messages if isinstance(message, Failure)]


async def echo(request: Request) -> bytes:
    return request.body


def test_it_has_the_words_of_the_worker_with_threads() -> None:
    def words(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    threaded = words(Worker)
    threaded["join"].remove("timeout")  # asyncio.timeout says it
    threaded["__init__"].remove("threads")  # each request has a task of its own
    assert words(AsyncWorker) == threaded


def test_as_many_handlers_run_at_once_as_there_is_credit(broker: ScriptedBroker) -> None:
    async def work() -> None:
        all_run = asyncio.Barrier(5)

        async def wait(request: Request) -> list[bytes]:
            await all_run.wait()
            return [request.body, b"done"]

        async with AsyncWorker(broker.endpoint, "echo", wait, credit=5):
            await dispatch(broker, *(b"%d" % number for number in range(5)))
            await until(broker, lambda: len(finals(broker)) == 5)
            await dispatch(broker, *(b"%d" % number for number in range(5, 10)), first=6)
            await until(broker, lambda: len(finals(broker)) == 10)

    run(work())
    assert sorted(finals(broker)) == [[b"%d" % number, b"done"] for number in range(10)]
    [ready] = [message for message in broker.messages if isinstance(message, Ready)]
    assert ready.credit == 5
    broker.wait_for(lambda: bool(broker.received(Disconnect)))


def test_an_async_generators_yields_are_partials(broker: ScriptedBroker) -> None:
    async def count(request: Request) -> AsyncIterator[bytes]:
        for number in range(1_000):
            yield b"%d" % number

    async def work() -> None:
        worker = AsyncWorker(broker.endpoint, "echo")
        worker.handler(count)
        async with worker:
            await dispatch(broker, b"")
            await until(broker, lambda: finals(broker) == [[b""]])

    run(work())
    partials = [message.body for message in broker.messages if isinstance(message, Partial)]
    assert partials == [[b"%d" % number] for number in range(1_000)]


def test_a_handler_that_raises_is_answered_and_one_that_is_stuck_is_cancelled(broker: ScriptedBroker) -> None:
    cancelled: list[bytes] = []

    async def handle(request: Request) -> bytes:
        if request.body == b"raise":
            raise ValueError("no")
        if request.body == b"hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(request.body)
                raise
        return b"fine"

    async def work() -> None:
        worker = AsyncWorker(broker.endpoint, "echo", handle, handler_timeout_s=0.1, stuck_handlers_max=2)
        async with worker:
            await dispatch(broker, b"raise", b"hang")
            await until(broker, lambda: len(failures(broker)) == 2)
            # Those that end when they are cancelled are not stuck, however many they are.
            await dispatch(broker, b"hang", b"ok", first=3)
            await until(broker, lambda: len(failures(broker)) == 3 and finals(broker) == [[b"fine"]])
            assert worker.counters.timed_out == 2

    run(work())
    assert failures(broker)[0] == (ErrorCode.HANDLER_FAILED, b"ValueError: no")
    assert [code for code, _ in failures(broker)[1:]] == [ErrorCode.HANDLER_TIMEOUT] * 2
    assert cancelled == [b"hang"] * 2


def test_handlers_that_do_not_end_when_cancelled_end_the_worker(broker: ScriptedBroker) -> None:
    async def work() -> None:
        never = asyncio.Event()

        async def cling(request: Request) -> bytes:
            while not never.is_set():
                try:
                    await never.wait()
                except asyncio.CancelledError:
                    continue
            return b""

        worker = AsyncWorker(broker.endpoint, "echo", cling, handler_timeout_s=0.05, stuck_handlers_max=2)
        worker.start()
        await dispatch(broker, b"1", b"2")
        with pytest.raises(WorkerError, match="2 handlers"):
            await worker.join()
        never.set()

    run(work())


def test_heartbeats_go_on_while_handlers_wait(broker: ScriptedBroker) -> None:
    async def work() -> None:
        gate = asyncio.Event()

        async def wait(request: Request) -> None:
            await gate.wait()

        async with AsyncWorker(broker.endpoint, "echo", wait):
            await dispatch(broker, b"")
            before = len(broker.received(Heartbeat))
            await until(broker, lambda: len(broker.received(Heartbeat)) >= before + 3)
            gate.set()
            await until(broker, lambda: finals(broker) == [[b""]])

    run(work())


def test_stopping_finishes_what_runs(broker: ScriptedBroker) -> None:
    async def work() -> None:
        gate, begun = asyncio.Event(), asyncio.Event()

        async def wait(request: Request) -> bytes:
            begun.set()
            await gate.wait()
            return b"finished"

        worker = AsyncWorker(broker.endpoint, "echo", wait, drain_timeout_s=WAIT_S)
        serving = asyncio.ensure_future(worker.run())
        await dispatch(broker, b"")
        await begun.wait()
        worker.stop()
        gate.set()
        await serving
        await until(broker, lambda: finals(broker) == [[b"finished"]])
        with pytest.raises(ClosedError):
            await worker.run()

    run(work())


def test_a_repetition_is_answered_without_executing_it(broker: ScriptedBroker) -> None:
    executed: list[bytes] = []

    async def note(request: Request) -> bytes:
        executed.append(request.body)
        return b"reply"

    async def work() -> None:
        async with AsyncWorker(broker.endpoint, "echo", note, dedupe=ReplyMemory()) as worker:
            await dispatch(broker, b"x")
            await until(broker, lambda: len(finals(broker)) == 1)
            await dispatch(broker, b"x", redelivered=True)
            await until(broker, lambda: len(finals(broker)) == 2)
            assert worker.counters.replayed == 1

    run(work())
    assert (executed, finals(broker)) == ([b"x"], [[b"reply"], [b"reply"]])


def test_what_cannot_work_is_told_at_once(broker: ScriptedBroker) -> None:
    with pytest.raises(LocalProtocolError):
        AsyncWorker(broker.endpoint, "mmi.echo", echo)
    with pytest.raises(ConfigurationError, match="one request at a time"):
        AsyncWorker(broker.endpoint, "echo", echo, dialect="mdp02", credit=2)

    async def work() -> None:
        with pytest.raises(ConfigurationError, match="no handler"):
            await AsyncWorker(broker.endpoint, "echo").run()
        with pytest.raises(ConfigurationError, match="cannot connect"):
            await AsyncWorker("nonsense", "echo", echo).run()

    run(work())


_PROGRAM = """
import asyncio, sys
from bstar_client import AsyncWorker

async def handle(request):
    await asyncio.sleep(0)
    return request.body

asyncio.run(AsyncWorker(sys.argv[1], "echo", handle).run())
print("left in good order")
"""


def test_sigterm_ends_a_process_in_good_order(broker: ScriptedBroker) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, broker.endpoint], stdout=subprocess.PIPE, text=True
    )
    # Ends a hang of the test only.
    watchdog = threading.Timer(2 * WAIT_S, process.kill)
    watchdog.start()
    try:
        run(dispatch(broker, b"hello"))
        broker.wait_for(lambda: finals(broker) == [[b"hello"]])
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate()
        assert (process.returncode, told) == (0, "left in good order\n")
        broker.wait_for(lambda: bool(broker.received(Disconnect)))
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
