"""However a handler ends, its request gets one answer and one log line, and its place in the worker is free.

Every case runs against both workers, with a credit of three, more often than that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from bstar.errors import LocalProtocolError
from bstar.wire import native
from bstar.wire.extensions import attempt_extension
from bstar.wire.messages import OWN_BACKOFF, Disconnect, ErrorCode, Failure, Final, Partial, Ready
from bstar.wire.native_broker import CODEC
from bstar_client import AsyncWorker, LinkSettings, ReplyMemory, Request, Retry, Worker, WorkerHooks
from support.blocking import BlockingWorker
from support.scripted import WAIT_S, ScriptedBroker
from support.work import asked

pytestmark = pytest.mark.loopback

CREDIT = 3
ROUNDS = CREDIT + 1
_LINK = LinkSettings(message_bytes_max=100_000)


class TextRaisesError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class TextExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class TextIsNoneError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307 - that is the case


class TextIsLongError(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


class NotesRaiseError(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # that is the case
        if threading.current_thread() is threading.main_thread():
            return []  # pytest asks, to report a failure
        sys.exit("no notes")


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]  # that is the case
        raise RuntimeError("no name")


class NameRaisesError(Exception, metaclass=Meta):
    pass


class AlienError(BaseException):
    pass


# What is raised, and how the text begins that the client is told.
RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exception": (lambda: ValueError("no"), "ValueError: no"),
    "text raises": (TextRaisesError, "TextRaisesError: (its text cannot be had: RuntimeError)"),
    "text exits": (TextExitsError, "TextExitsError: (its text cannot be had: SystemExit)"),
    "text is none": (TextIsNoneError, "TextIsNoneError: (its text cannot be had: TypeError)"),
    "argument raises": (lambda: ValueError(TextRaisesError()), "ValueError: (its text cannot be had"),
    "text is long": (TextIsLongError, "TextIsLongError: xxxx"),
    "text has surrogates": (lambda: ValueError("\udc80"), "ValueError: ?"),
    "notes raise": (lambda: NotesRaiseError("no"), "NotesRaiseError: no"),
    "name raises": (lambda: NameRaisesError("no"), "NameRaisesError: no"),
    "exit": (lambda: SystemExit("no more"), "SystemExit: no more"),
    "exit without text": (lambda: SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "generator exit": (GeneratorExit, "GeneratorExit"),
    "stop iteration": (StopIteration, ""),
    "cancelled": (asyncio.CancelledError, "CancelledError"),
    "another cancelled": (concurrent.futures.CancelledError, "CancelledError"),
    "alien": (lambda: AlienError("no"), "AlienError: no"),
}
# What is returned that is no reply.
WRONG: dict[str, tuple[object, str]] = {
    "int": (5, "TypeError: "),
    "text": ("text", "TypeError: "),
    "no frames": ([], "LocalProtocolError: "),
    "list of text": (["text"], "TypeError: "),
    "dict": ({b"a": b"b"}, "TypeError: "),
    "set": ({b"a"}, "TypeError: "),
    "object": (object(), "TypeError: "),
    "too long": (b"x" * 200_000, "LocalProtocolError: "),
    "too many frames": ([b""] * 100_000, "LocalProtocolError: "),
}


def handler_of(kind: type, work: Callable[[], object]) -> Callable[[Request], Any]:
    """What is good is returned as it came; for everything else it does this work."""

    def handle(request: Request) -> object:
        return request.body if request.body == b"good" else work()

    async def handle_later(request: Request) -> object:
        await asyncio.sleep(0)
        return handle(request)

    return handle if kind is Worker else handle_later


def served(
    kind: type, endpoint: str, handler: Callable[[Request], Any], **options: Any
) -> Worker | BlockingWorker:
    """The worker at work, in a thread of its own; what ends it early fails the test."""
    options |= {"credit": CREDIT, "link": _LINK}
    if kind is Worker:
        return Worker(endpoint, "price", handler, **options)
    return BlockingWorker(endpoint, "price", coroutine=handler, **options)


class Desk:
    """Gives requests one after the other, and compares what came of them."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self._numbers = itertools.count(1)
        self.identities: list[bytes] = []

    def ask(self, body: bytes, *, redelivered: bool = False, extensions: bytes = b"") -> None:
        self.give(body, redelivered=redelivered, extensions=extensions)
        self.broker.wait_for(lambda: len(self.ends()) >= len(self.identities))

    def give(
        self, body: bytes, *, redelivered: bool = False, extensions: bytes = b"", identity: bytes = b""
    ) -> None:
        self.broker.wait_for(lambda: bool(self.broker.received(Ready)))
        worker = self.broker.received(Ready)[-1].sender
        identity = identity or native.identity(b"c" * 16, next(self._numbers))
        self.identities.append(identity)
        request = asked([body], extensions=extensions)
        self.broker.send(CODEC.request(worker, (), request, identity, 0, 1, redelivered))

    def ends(self) -> list[Failure | Final]:
        return [message for message in self.broker.messages if isinstance(message, Failure | Final)]

    def texts(self) -> list[str]:
        return [end.text.decode() for end in self.ends() if isinstance(end, Failure)]

    def check(self, beginning: str) -> None:
        """More requests than there is credit for fail so, and as many are then answered."""
        for body in [b"bad"] * ROUNDS + [b"good"] * ROUNDS:
            self.ask(body)
        ends = self.ends()
        assert [end.address for end in ends] == self.identities, "each has one answer"
        assert [type(end) for end in ends] == [Failure] * ROUNDS + [Final] * ROUNDS
        for end in ends[:ROUNDS]:
            assert isinstance(end, Failure)
            assert end.code == ErrorCode.HANDLER_FAILED
            assert end.text.decode().startswith(beginning)
            assert len(end.text) < 5_000


@pytest.fixture
def desk() -> Iterator[Desk]:
    with ScriptedBroker() as broker:
        yield Desk(broker)


class WorkerLog(logging.Filter):
    """What workers log from WARNING on: ``lines`` without and ``text`` with tracebacks, and no exception.

    Nobody else gets the records but ``handlers``: a report of pytest's that holds one of these exceptions, or
    its text, ends pytest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.text = ""
        self.handlers: list[logging.Handler] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())
            self.text += logging.Formatter().format(record)
        for handler in self.handlers:
            handler.handle(record)
        return False


@pytest.fixture(autouse=True)
def worker_log() -> Iterator[WorkerLog]:
    log, kept = logging.getLogger("bstar_client"), WorkerLog()
    log.addFilter(kept)
    yield kept
    log.removeFilter(kept)


def check_log(worker_log: WorkerLog, identities: list[bytes]) -> None:
    """One line for each, of one line, with its identity and its service."""
    lines = worker_log.lines
    assert len(lines) == len(identities), lines
    for line, identity in zip(lines, identities, strict=True):
        assert identity.hex() in line
        assert '"price"' in line
        assert line.isprintable()
        assert len(line) < 1_000
    assert len(worker_log.text) < 100_000


def raising(make: Callable[[], BaseException]) -> Callable[[], object]:
    def work() -> object:
        raise make()

    return work


FAILS = raising(lambda: ValueError("no"))


@pytest.mark.parametrize("name", [*RAISED, *WRONG])
def test_whatever_a_handler_raises_or_returns_there_is_one_answer_one_line_and_its_place_is_free(
    worker_log: WorkerLog, name: str
) -> None:
    """And both workers say the same, word for word."""
    if name in RAISED:
        make, beginning = RAISED[name]
        work = raising(make)
    else:
        answer, beginning = WRONG[name]
        work = lambda: answer  # noqa: E731
    said: list[list[str]] = []
    identities: list[bytes] = []
    for kind in (Worker, AsyncWorker):
        with ScriptedBroker() as broker:
            desk = Desk(broker)
            with served(kind, broker.endpoint, handler_of(kind, work)):
                desk.check(beginning)
            said.append(desk.texts())
            identities += desk.identities[:ROUNDS]
    check_log(worker_log, identities)
    # In a coroutine Python itself makes a RuntimeError of a StopIteration.
    assert said[0] == said[1] or name == "stop iteration"


# --- generators ---------------------------------------------------------------------------------------------


def half_way(make: Callable[[], BaseException]) -> tuple[Callable[[Request], Any], Callable[[Request], Any]]:
    def pour(request: Request) -> Any:
        if request.body == b"good":
            return request.body

        def parts() -> Iterator[bytes]:
            yield b"part"
            raise make()

        return parts()

    async def async_pour(request: Request) -> AsyncIterator[bytes]:
        if request.body == b"good":
            return
        yield b"part"
        raise make()

    return pour, async_pour


def in_close() -> tuple[Callable[[Request], Any], Callable[[Request], Any]]:
    """A part that is none ends it, and then it raises where it is closed."""

    def pour(request: Request) -> Any:
        if request.body == b"good":
            return request.body

        def parts() -> Iterator[Any]:
            try:
                yield "text"
            finally:
                raise AlienError("in close")

        return parts()

    async def async_pour(request: Request) -> AsyncIterator[Any]:
        if request.body == b"good":
            return
        try:
            yield "text"
        finally:
            raise AlienError("in close")

    return pour, async_pour


def clinging() -> tuple[Callable[[Request], Any], Callable[[Request], Any]]:
    """One that goes on, for a while, when it is closed."""

    def pour(request: Request) -> Any:
        if request.body == b"good":
            return request.body

        def parts() -> Iterator[Any]:
            with suppress(GeneratorExit):
                yield "text"
            yield b"more"

        return parts()

    async def async_pour(request: Request) -> AsyncIterator[Any]:
        if request.body == b"good":
            return
        with suppress(GeneratorExit):
            yield "text"
        yield b"more"

    return pour, async_pour


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize(
    ("handlers", "beginning", "partials"),
    [
        (half_way(lambda: ValueError("half-way")), "ValueError: half-way", 1),
        (half_way(TextRaisesError), "TextRaisesError: (its text", 1),
        (half_way(lambda: SystemExit("half-way")), "SystemExit: half-way", 1),
        (half_way(asyncio.CancelledError), "CancelledError", 1),
        (half_way(StopIteration), "RuntimeError: ", 1),
        (in_close(), "AlienError: in close", 0),
        (clinging(), "RuntimeError: ", 0),
    ],
    ids=["exception", "text", "exit", "cancelled", "stop", "in close", "clinging"],
)
def test_a_generator_that_ends_badly_has_one_answer_too(
    desk: Desk,
    worker_log: WorkerLog,
    kind: type,
    handlers: tuple[Callable[[Request], Any], Callable[[Request], Any]],
    beginning: str,
    partials: int,
) -> None:
    with served(kind, desk.broker.endpoint, handlers[kind is AsyncWorker]):
        desk.check(beginning)
    check_log(worker_log, desk.identities[:ROUNDS])
    assert len(desk.broker.received(Partial)) == ROUNDS * partials


# --- asyncio's own ------------------------------------------------------------------------------------------


async def await_cancelled() -> None:
    other = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def cancel_itself_twice() -> None:
    """The second one comes while the first is taken in."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await cancel_itself()
    finally:
        task.cancel()


@pytest.mark.parametrize("cancels", [await_cancelled, cancel_itself, cancel_itself_twice])
def test_a_cancellation_that_is_not_the_workers_own_is_a_failure_of_the_request(
    desk: Desk, worker_log: WorkerLog, cancels: Callable[[], Awaitable[None]]
) -> None:
    async def handle(request: Request) -> bytes:
        if request.body == b"bad":
            await cancels()
        return request.body

    with served(AsyncWorker, desk.broker.endpoint, handle):
        desk.check("CancelledError")
    check_log(worker_log, desk.identities[:ROUNDS])


async def test_what_runs_when_an_asyncio_worker_is_cancelled_is_not_answered_but_given_back(
    desk: Desk, worker_log: WorkerLog
) -> None:
    has_begun = asyncio.Event()

    async def wait(request: Request) -> bytes:
        has_begun.set()
        await asyncio.Event().wait()
        return b""

    worker = AsyncWorker(desk.broker.endpoint, "price", wait, credit=CREDIT)
    serving = asyncio.ensure_future(worker.run())
    await asyncio.to_thread(desk.give, b"x")
    await has_begun.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    desk.broker.wait_for(lambda: bool(desk.broker.received(Disconnect)))
    assert desk.ends() == []
    assert worker_log.lines == []


# --- hooks and kept replies ---------------------------------------------------------------------------------


class BadHooks(WorkerHooks):
    """Every method raises what no program expects."""

    def registered(self, worker: Worker, endpoint: str) -> None:
        raise SystemExit("registered")

    def request_started(self, worker: Worker, request: Request) -> None:
        raise AlienError("started")

    def request_finished(self, worker: Worker, request: Request) -> None:
        raise asyncio.CancelledError

    def request_failed(self, worker: Worker, request: Request, error: BaseException) -> None:
        raise TextRaisesError


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_what_a_hook_raises_goes_no_further(desk: Desk, kind: type) -> None:
    with served(kind, desk.broker.endpoint, handler_of(kind, FAILS), hooks=BadHooks()):
        desk.check("ValueError: no")


class BadLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AlienError("the log")


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_log_that_raises_costs_no_answer(desk: Desk, worker_log: WorkerLog, kind: type) -> None:
    worker_log.handlers.append(BadLog(logging.WARNING))
    with served(kind, desk.broker.endpoint, handler_of(kind, FAILS)):
        desk.check("ValueError: no")


class BadStore:
    """Keeps nothing; each of its methods fails in its turn."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.is_bad = True

    def begin(self, identity: bytes, body: Any, deadline: float | None) -> list[bytes] | None:
        self._do("begin", list(body))
        return None

    def keep(self, identity: bytes, reply: Any) -> None:
        self._do("keep", list(reply))

    def drop(self, identity: bytes) -> None:
        self._do("drop", [b"bad"])

    def _do(self, name: str, body: list[bytes]) -> None:
        if name == self.fails and body == [b"bad"]:
            raise AlienError(name)


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize(
    ("fails", "beginning"), [("begin", "AlienError: begin"), ("keep", ""), ("drop", "ValueError: no")]
)
def test_what_a_store_of_replies_raises_hides_no_answer(
    desk: Desk, worker_log: WorkerLog, kind: type, fails: str, beginning: str
) -> None:
    work: Callable[[], object] = FAILS if fails == "drop" else lambda: b"bad"
    with served(kind, desk.broker.endpoint, handler_of(kind, work), dedupe=BadStore(fails)):
        if beginning:
            desk.check(beginning)
        else:
            for _ in range(ROUNDS):
                desk.ask(b"bad")
            assert [type(end) for end in desk.ends()] == [Final] * ROUNDS
    for identity in desk.identities[:ROUNDS]:
        assert identity.hex() in worker_log.text


def test_a_request_given_up_while_its_store_was_asked_does_not_run_for_ever(desk: Desk) -> None:
    may_answer, dropped = threading.Event(), threading.Event()

    class SlowStore(ReplyMemory):
        def begin(self, *arguments: Any) -> list[bytes] | None:
            assert may_answer.wait(WAIT_S)
            return super().begin(*arguments)

        def drop(self, identity: bytes) -> None:
            super().drop(identity)
            dropped.set()

    handler = handler_of(AsyncWorker, lambda: b"")
    with served(AsyncWorker, desk.broker.endpoint, handler, dedupe=SlowStore(), handler_timeout_s=0.05):
        desk.ask(b"good")
        [end] = desk.ends()
        assert isinstance(end, Failure)
        assert end.code == ErrorCode.HANDLER_TIMEOUT
        may_answer.set()
        assert dropped.wait(WAIT_S)


def test_repetitions_that_wait_do_not_take_the_threads_that_their_execution_needs(desk: Desk) -> None:
    """They took all threads of the event loop. So no handler could use one, and no reply could be kept."""
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    class Store(ReplyMemory):
        def begin(self, *arguments: Any) -> list[bytes] | None:
            for loop, is_repeated in loops:
                loop.call_soon_threadsafe(is_repeated.set)
            return super().begin(*arguments)

    async def handle(request: Request) -> bytes:
        is_repeated = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loops.append((loop, is_repeated))
        desk.give(b"good", identity=desk.identities[0])
        await is_repeated.wait()
        return await asyncio.to_thread(bytes, request.body)

    with served(AsyncWorker, desk.broker.endpoint, handle, dedupe=Store()):
        desk.ask(b"good")
        desk.broker.wait_for(lambda: len(desk.ends()) == 2)


def test_a_redelivered_request_that_fails_is_logged_as_one(desk: Desk, worker_log: WorkerLog) -> None:
    with served(Worker, desk.broker.endpoint, handler_of(Worker, FAILS)):
        desk.ask(b"bad", redelivered=True)
    [line] = worker_log.lines
    assert "redelivered" in line


# --- another attempt ----------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-W-15")
@pytest.mark.parametrize(
    ("retry", "text", "retry_ms"),
    [
        (lambda: Retry(), "Retry", OWN_BACKOFF),  # noqa: PLW0108 - a class is not to be called by pytest
        (lambda: Retry("no ticket yet", after=2.0), "Retry: no ticket yet", 2_000),
        (lambda: Retry(after=0), "Retry", 0),
        (lambda: Retry(after=0.0001), "Retry", 1),
        (lambda: Retry(TextRaisesError()), "Retry: (its text cannot be had: RuntimeError)", OWN_BACKOFF),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_handler_may_ask_for_another_attempt(
    desk: Desk, worker_log: WorkerLog, kind: type, retry: Callable[[], Retry], text: str, retry_ms: int
) -> None:
    with served(kind, desk.broker.endpoint, handler_of(kind, raising(retry))):
        for _ in range(ROUNDS):
            desk.ask(b"again")
        desk.ask(b"good")
    *retries, last = desk.ends()
    assert isinstance(last, Final)
    assert {(end.code, end.text.decode(), end.retry_ms) for end in retries if isinstance(end, Failure)} == {
        (ErrorCode.RETRY, text, retry_ms)
    }
    assert worker_log.lines == [], "it is no trouble"


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_the_log_of_a_retry_promises_no_other_attempt(
    desk: Desk, worker_log: WorkerLog, caplog: pytest.LogCaptureFixture, kind: type
) -> None:
    """It said "is to be tried again" of the last one, too: a worker does not know which one is the last."""
    caplog.set_level(logging.INFO, "bstar_client")
    worker_log.handlers.append(caplog.handler)
    work = raising(lambda: Retry("no ticket yet"))
    with served(kind, desk.broker.endpoint, handler_of(kind, work)):
        desk.ask(b"again")
    assert " asked for another attempt: Retry: no ticket yet" in caplog.text
    assert "tried again" not in caplog.text


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_an_attempt_that_is_to_be_repeated_leaves_no_kept_reply(desk: Desk, kind: type) -> None:
    attempts = itertools.count(1)

    def work() -> object:
        if next(attempts) == 1:
            raise Retry
        return b"done"

    with served(kind, desk.broker.endpoint, handler_of(kind, work), dedupe=ReplyMemory()):
        desk.ask(b"again")
        desk._numbers = itertools.count(1)
        desk.ask(b"again")
    assert [type(end) for end in desk.ends()] == [Failure, Final]


@pytest.mark.requirement("BSN-W-16")
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_handler_hears_which_attempt_it_is(desk: Desk, kind: type) -> None:
    def tell(request: Request) -> bytes:
        return b"%d" % request.attempt

    async def tell_async(request: Request) -> bytes:
        return tell(request)

    with served(kind, desk.broker.endpoint, tell if kind is Worker else tell_async):
        desk.ask(b"plain")
        desk.ask(b"third", extensions=attempt_extension(3))
    assert [end.body for end in desk.ends() if isinstance(end, Final)] == [[b"1"], [b"3"]]


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 10**400, 50 * 86_400])
def test_a_time_that_does_not_fit_is_refused(after: float) -> None:
    with pytest.raises(LocalProtocolError, match="after is 0 to 4294967 seconds"):
        Retry(after=after)


@pytest.mark.parametrize("after", [True, "2", b"2"])
def test_a_time_that_is_none_is_a_type_error(after: Any) -> None:
    with pytest.raises(TypeError, match="after is a number of seconds"):
        Retry(after=after)


def test_nobody_makes_a_retry_of_another_kind() -> None:
    with pytest.raises(TypeError, match="put the reason into its text"):
        type("Later", (Retry,), {})


# --- the main thread ----------------------------------------------------------------------------------------

BESIDE = """
import asyncio, sys
from bstar_client import AsyncWorker

async def handle(request):
    print("begun", flush=True)
    while True:  # Python raises Ctrl-C right here, in the first case
        if sys.argv[2] == "waits":
            await asyncio.sleep(1)

async def main():
    async with AsyncWorker(sys.argv[1], "price", handle, drain_timeout_s=0.5):
        await asyncio.Event().wait()

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main()) if sys.argv[2] == "computes" else asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("how", ["computes", "waits"])
def test_ctrl_c_in_the_main_thread_ends_a_process_whose_handler_runs(desk: Desk, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BESIDE, desk.broker.endpoint, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        watchdog = threading.Timer(2 * WAIT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            desk.give(b"x")
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "interrupted\n"
            assert process.wait() == 0
        finally:
            watchdog.cancel()
            process.kill()


# --- fork ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "status"),
    [
        (lambda: b"reply", 1),
        (FAILS, 1),
        (raising(lambda: SystemExit(3)), 3),
        (raising(SystemExit), 0),
        (raising(lambda: SystemExit("no")), 1),
        (lambda: iter([b"part"]), 1),
    ],
)
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_forked_child_that_comes_back_out_of_its_handler_ends(
    worker_log: WorkerLog, kind: type, then: Callable[[], object], status: int
) -> None:
    children: list[int] = []

    def fork() -> object:
        if child := os.fork():
            children.append(child)
            return b"parent"
        return then()

    with ScriptedBroker() as broker:
        desk = Desk(broker)
        with served(kind, broker.endpoint, handler_of(kind, fork)):
            for _ in range(ROUNDS):
                desk.ask(b"bad")
            assert [end.body for end in desk.ends() if isinstance(end, Final)] == [[b"parent"]] * ROUNDS
    assert not worker_log.lines, "the parent's"
    for child in children:
        assert status_of(child) == status


def status_of(child: int) -> int | None:
    """How it has ended; None if it has not."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
