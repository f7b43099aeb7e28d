"""Both workers over real sockets, against brokers that do as they are told, and as real processes.

What a handler may do to them is in test_handler_ends.py.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from bstar.errors import ClosedError, ConfigurationError, LocalProtocolError, WorkerError
from bstar.wire import native, native_broker
from bstar.wire.messages import Disconnect, ErrorCode, Failure, Final, Heartbeat, Partial, Ready
from bstar_client import AsyncWorker, ReplyMemory, Request, Worker, WorkerHooks
from support.blocking import BlockingWorker
from support.scripted import WAIT_S, ScriptedBroker
from support.work import asked

pytestmark = pytest.mark.loopback

ONE = native.identity(b"c" * 16, 1)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=[Worker, BlockingWorker], ids=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> type[Worker]:
    """Each kind of worker; both have the same words."""
    return request.param  # type: ignore[no-any-return]


def echo(request: Request) -> bytes:
    return request.body


def worker_of(broker: ScriptedBroker) -> bytes:
    """The routing id of the worker that registered last."""
    broker.wait_for(lambda: bool(broker.received(Ready)))
    return broker.received(Ready)[-1].sender


def dispatch(
    broker: ScriptedBroker, body: bytes = b"x", number: int = 1, *, epoch: int = 1, ttl_ms: int = 0
) -> None:
    identity = native.identity(b"c" * 16, number)
    codec = native_broker.CODEC
    broker.send(codec.request(worker_of(broker), (), asked([body]), identity, ttl_ms, epoch, True))


def finals(broker: ScriptedBroker) -> list[list[bytes]]:
    return [message.body for message in broker.messages if isinstance(message, Final)]


def failures(broker: ScriptedBroker) -> list[tuple[int, bytes]]:
    return [(message.code, message.text) for message in broker.messages if isinstance(message, Failure)]


def test_both_have_the_same_words() -> None:
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


def test_a_request_reaches_the_handler_with_everything_that_is_known_of_it(
    broker: ScriptedBroker, kind: type[Worker]
) -> None:
    seen: list[Request] = []

    def look(request: Request) -> list[bytes]:
        seen.append(request)
        return [b"a", request.body]

    with kind(broker.endpoint, "echo", look):
        dispatch(broker, b"body", ttl_ms=60_000)
        broker.wait_for(lambda: finals(broker) == [[b"a", b"body"]])
    [request] = seen
    assert (request.service, request.frames, request.identity) == (b"echo", (b"body",), ONE)
    assert request.is_redelivered
    assert request.epoch == 1
    remaining = request.remaining()
    assert remaining is not None
    assert 0 < remaining <= 60


@pytest.mark.parametrize(
    ("options", "credit"),
    [({}, 1), ({"threads": 3}, 3), ({"threads": 2, "credit": 5}, 5), ({"credit": 4}, 4)],
)
def test_a_worker_asks_for_as_many_requests_as_it_has_threads(
    broker: ScriptedBroker, options: dict[str, int], credit: int
) -> None:
    with Worker(broker.endpoint, "echo", lambda request: request.body, **options):  # type: ignore[arg-type]
        broker.wait_for(lambda: bool(broker.received(Ready)))
    assert [message.credit for message in broker.messages if isinstance(message, Ready)] == [credit]


def test_as_many_handlers_run_at_once_as_there_is_credit(broker: ScriptedBroker, kind: type[Worker]) -> None:
    all_run = threading.Barrier(3)

    def wait(request: Request) -> list[bytes]:
        all_run.wait(WAIT_S)
        return [request.body, b"done"]

    with kind(broker.endpoint, "echo", wait, credit=3):
        for count in (3, 6):
            for number in range(count - 3, count):
                dispatch(broker, b"%d" % number, number)
            broker.wait_for(lambda count=count: len(finals(broker)) == count)  # type: ignore[misc]
    assert sorted(finals(broker)) == [[b"%d" % number, b"done"] for number in range(6)]
    assert [message.credit for message in broker.messages if isinstance(message, Ready)] == [3]


def test_the_decorator_makes_the_handler(broker: ScriptedBroker, kind: type[Worker]) -> None:
    worker = kind(broker.endpoint, "echo")

    @worker.handler
    def nothing(request: Request) -> None:
        return None

    with worker:
        dispatch(broker)
        broker.wait_for(lambda: finals(broker) == [[b""]])


def test_a_generators_yields_are_partials_and_its_return_is_the_final(broker: ScriptedBroker) -> None:
    def count(request: Request) -> Generator[bytes, None, bytes]:
        for number in range(3):
            yield b"%d" % number
        return b"end"

    with Worker(broker.endpoint, "echo", count):
        dispatch(broker)
        broker.wait_for(lambda: finals(broker) == [[b"end"]])
    assert [m.body for m in broker.messages if isinstance(m, Partial)] == [[b"0"], [b"1"], [b"2"]]


def test_a_generator_faster_than_the_network_loses_nothing(
    broker: ScriptedBroker, kind: type[Worker]
) -> None:
    def pour(request: Request) -> Generator[bytes, None, None]:
        for number in range(5_000):
            yield b"%d" % number

    with kind(broker.endpoint, "echo", pour):
        dispatch(broker)
        broker.wait_for(lambda: finals(broker) == [[b""]])
    parts = [m.body[0] for m in broker.messages if isinstance(m, Partial)]
    assert parts == [b"%d" % number for number in range(5_000)]


def test_a_worker_that_keeps_its_replies_executes_a_repetition_once(
    broker: ScriptedBroker, kind: type[Worker]
) -> None:
    """The same request twice at once, and again later; another one; one that fails; one with partials."""
    executed: list[bytes] = []
    replayed: list[bytes] = []

    class Hooks(WorkerHooks):
        def request_replayed(self, worker: Worker, request: Request) -> None:
            replayed.append(request.body)

    def handle(request: Request) -> object:
        executed.append(request.body)
        if request.body == b"fail":
            raise ValueError("no")
        if request.body == b"parts":
            return (part for part in (b"a", b"b"))
        return b"reply to " + request.body

    worker = kind(broker.endpoint, "echo", handle, credit=2, dedupe=ReplyMemory(), hooks=Hooks())  # type: ignore[arg-type]
    with worker:
        for count in range(1, 4):
            dispatch(broker, b"one", 1)
            if count != 1:
                broker.wait_for(lambda count=count: len(finals(broker)) == count)  # type: ignore[misc]
        dispatch(broker, b"two", 2)
        broker.wait_for(lambda: len(finals(broker)) == 4)
        assert finals(broker) == [[b"reply to one"]] * 3 + [[b"reply to two"]]
        dispatch(broker, b"other", 1)
        broker.wait_for(lambda: len(failures(broker)) == 1)
        assert b"another body" in failures(broker)[0][1]
        for count in (2, 3):
            dispatch(broker, b"fail", 3)
            broker.wait_for(lambda count=count: len(failures(broker)) == count)  # type: ignore[misc]
        executions = [b"one", b"two", b"fail", b"fail"]
        if kind is Worker:  # a coroutine returns no parts
            for count in (5, 6):
                dispatch(broker, b"parts", 4)
                broker.wait_for(lambda count=count: len(finals(broker)) == count)  # type: ignore[misc]
            executions += [b"parts"] * 2
    assert executed == executions
    assert replayed == [b"one", b"one"]
    assert (worker.counters.replayed, worker.counters.finished) == (2, len(finals(broker)))


def test_heartbeats_go_on_while_a_handler_runs(broker: ScriptedBroker, kind: type[Worker]) -> None:
    go_on = threading.Event()

    def block(request: Request) -> bytes:
        assert go_on.wait(WAIT_S)
        return b"done"

    with kind(broker.endpoint, "echo", block):
        dispatch(broker)
        broker.welcome_ms = (100, 60_000)
        for _ in range(3):
            before = len(broker.received(Heartbeat))
            broker.send(native_broker.CODEC.heartbeat(worker_of(broker), (), 3, 1))
            broker.wait_for(lambda before=before: len(broker.received(Heartbeat)) > before)  # type: ignore[misc]
        go_on.set()
        broker.wait_for(lambda: finals(broker) == [[b"done"]])


def test_it_registers_with_both_nodes_and_again_with_one_that_restarts(
    broker: ScriptedBroker, kind: type[Worker]
) -> None:
    with ScriptedBroker() as other, kind([broker.endpoint, other.endpoint], "echo", echo):
        worker_of(other)
        dispatch(broker, b"one")
        broker.wait_for(lambda: finals(broker) == [[b"one"]])
        broker.close()
        known = len(broker.received(Ready))
        broker.open()
        broker.wait_for(lambda: len(broker.received(Ready)) > known)
        dispatch(broker, b"two", 2)
        broker.wait_for(lambda: finals(broker) == [[b"one"], [b"two"]])


def test_a_coroutine_past_its_time_is_cancelled_and_is_not_stuck_if_it_ends_then(
    broker: ScriptedBroker,
) -> None:
    cancelled: list[bytes] = []

    async def hang(request: Request) -> bytes:
        try:
            if request.body != b"ok":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.body)
            raise
        return b"fine"

    options = {"coroutine": hang, "handler_timeout_s": 0.1, "stuck_handlers_max": 2}
    with BlockingWorker(broker.endpoint, "echo", **options) as worker:
        for number in (1, 2, 3):
            dispatch(broker, b"%d" % number, number)
            broker.wait_for(lambda number=number: len(failures(broker)) == number)  # type: ignore[misc]
        dispatch(broker, b"ok", 4)
        broker.wait_for(lambda: finals(broker) == [[b"fine"]])
        assert worker.counters.timed_out == 3
    assert {code for code, _ in failures(broker)} == {ErrorCode.HANDLER_TIMEOUT}
    assert cancelled == [b"1", b"2", b"3"]


async def test_coroutines_that_do_not_end_when_cancelled_end_the_worker(broker: ScriptedBroker) -> None:
    never = asyncio.Event()

    async def cling(request: Request) -> None:
        while not never.is_set():
            with suppress(asyncio.CancelledError):
                await never.wait()

    worker = AsyncWorker(broker.endpoint, "echo", cling, handler_timeout_s=0.05, stuck_handlers_max=2)
    worker.start()
    for number in (1, 2):
        await asyncio.to_thread(dispatch, broker, number=number)
    with pytest.raises(WorkerError, match="2 handlers"):
        await worker.join()
    never.set()


async def test_a_coroutine_sees_no_context_variable_of_another_request(broker: ScriptedBroker) -> None:
    """One that was dispatched while a reply was sent had the variables of the handler that gave it."""
    turns = 20
    tenant = ContextVar("tenant", default=b"of the program")
    tenant.set(b"of the worker")

    async def swap(request: Request) -> bytes:
        before = tenant.get()
        tenant.set(request.body)
        if (number := int(request.body)) < turns:
            dispatch(broker, b"%d" % (number + 1), number=number + 1)
        return before

    async with AsyncWorker(broker.endpoint, "echo", swap):
        await asyncio.to_thread(dispatch, broker, b"1")
        await asyncio.to_thread(broker.wait_for, lambda: len(finals(broker)) == turns)
    assert finals(broker) == [[b"of the worker"]] * turns


def test_handlers_that_never_come_back_end_the_worker(broker: ScriptedBroker) -> None:
    go_on = threading.Event()
    stuck: list[bytes] = []

    class Hooks(WorkerHooks):
        def handler_stuck(self, worker: Worker, identity: bytes) -> None:
            stuck.append(identity)

    def block(request: Request) -> bytes:
        go_on.wait(WAIT_S)
        return b""

    worker = Worker(
        broker.endpoint, "echo", block, handler_timeout_s=0.05, stuck_handlers_max=2, hooks=Hooks()
    ).start()
    for number in (1, 2):
        dispatch(broker, number=number)
        broker.wait_for(lambda number=number: len(failures(broker)) == number)  # type: ignore[misc]
    with pytest.raises(WorkerError, match="stuck"):
        worker.join(WAIT_S)
    go_on.set()
    assert {code for code, _ in failures(broker)} == {ErrorCode.HANDLER_TIMEOUT}
    assert len(stuck) == 2


def test_hooks_see_the_life_of_a_worker_and_may_fail(
    broker: ScriptedBroker, kind: type[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    class Hooks(WorkerHooks):
        def registered(self, worker: Worker, endpoint: str) -> None:
            seen.append("registered")
            raise RuntimeError("hook")

        def request_started(self, worker: Worker, request: Request) -> None:
            seen.append("started")

        def request_finished(self, worker: Worker, request: Request) -> None:
            seen.append("finished")

        def request_failed(self, worker: Worker, request: Request, error: BaseException) -> None:
            seen.append("failed")

    def pick(request: Request) -> bytes:
        if request.body == b"bad":
            raise ValueError
        return b""

    with kind(broker.endpoint, "echo", pick, hooks=Hooks()):
        dispatch(broker, b"good")
        broker.wait_for(lambda: len(finals(broker)) == 1)
        dispatch(broker, b"bad", 2)
        broker.wait_for(lambda: len(failures(broker)) == 1)
    assert seen == ["registered", "started", "finished", "started", "failed"]
    assert "a hook failed" in caplog.text


# --- leaving ------------------------------------------------------------------------------------------------


def test_closing_finishes_what_runs(broker: ScriptedBroker, kind: type[Worker]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def block(request: Request) -> bytes:
        begun.set()
        assert go_on.wait(WAIT_S)
        return b"done"

    worker = kind(broker.endpoint, "echo", block).start()
    dispatch(broker)
    assert begun.wait(WAIT_S)
    worker.stop()
    go_on.set()
    assert worker.join(WAIT_S)
    broker.wait_for(lambda: len(broker.received(Disconnect)) == 1)
    kinds = [type(m) for m in broker.messages if isinstance(m, Final | Disconnect)]
    assert kinds == [Final, Disconnect]
    with pytest.raises(ClosedError):
        worker.run()


def test_a_worker_that_was_closed_does_not_run(broker: ScriptedBroker) -> None:
    worker = Worker(broker.endpoint, "echo", echo)
    worker.close()
    worker.close()
    with pytest.raises(ClosedError):
        worker.run()


def test_what_cannot_work_is_an_error_at_once(broker: ScriptedBroker, kind: type[Worker]) -> None:
    with pytest.raises(ConfigurationError, match="no handler"):
        kind(broker.endpoint, "echo").run()
    with pytest.raises(ConfigurationError, match="cannot connect"):
        kind("nonsense", "echo", echo).run()
    with pytest.raises(LocalProtocolError):
        kind(broker.endpoint, "mmi.echo", echo)
    for options in ({"credit": 2}, {"dedupe": ReplyMemory()}):
        with pytest.raises(ConfigurationError, match=r"one request at a time|dedupe"):
            kind(broker.endpoint, "echo", echo, dialect="mdp02", **options)


@contextmanager
def stopped_at_ready(broker: ScriptedBroker) -> Iterator[Worker]:
    """A worker whose run ends once it has registered."""
    worker = Worker(broker.endpoint, "echo", echo)

    def stop() -> None:
        worker_of(broker)
        worker.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        yield worker
    finally:
        stopper.join(WAIT_S)


def test_run_restores_the_signal_handlers(broker: ScriptedBroker) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stopped_at_ready(broker) as worker:
        worker.run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_run_ends_where_a_program_has_set_its_signal_handlers_in_c(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_handler, numbers = signal.signal, (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def hide_previous(number: int, handler: Any) -> None:
        """Python knows no handler that was set in C: ``signal.signal`` returns None."""
        set_handler(number, handler)

    try:
        with stopped_at_ready(broker) as worker, monkeypatch.context() as patched:
            patched.setattr(signal, "signal", hide_previous)
            worker.run()
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


THREADS = """
import sys, time
from bstar_client import Worker
def slow(request):
    print("begun", flush=True)
    time.sleep(0.3)
    return b"done"
Worker(sys.argv[1], "echo", slow).run()
print("ended", flush=True)
"""
ASYNCIO = """
import asyncio, sys
from bstar_client import AsyncWorker
async def slow(request):
    print("begun", flush=True)
    await asyncio.sleep(0.3)
    return b"done"
asyncio.run(AsyncWorker(sys.argv[1], "echo", slow).run())
print("ended", flush=True)
"""


@pytest.mark.requirement("MDP1-W-05")
@pytest.mark.requirement("MDP2-W-05")
@pytest.mark.parametrize(
    ("program", "number"), [(THREADS, signal.SIGTERM), (THREADS, signal.SIGINT), (ASYNCIO, signal.SIGTERM)]
)
def test_a_process_told_to_end_answers_what_runs_and_its_goodbye_leaves_the_process(
    broker: ScriptedBroker, program: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program, broker.endpoint], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        dispatch(broker)
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert process.stdout.read() == b"ended\n"
    broker.wait_for(lambda: len(broker.received(Disconnect)) == 1)
    kinds = [type(m) for m in broker.messages if isinstance(m, Final | Disconnect)]
    assert kinds == [Final, Disconnect]
