"""Several services in one program: resources, startup and shutdown, what goes around handlers, the end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path

import pytest
import zmq

import bstar_client.app
from bstar.errors import ClosedError, ConfigurationError, WorkerError
from bstar.fleet import Endpoints
from bstar.net import io_threads
from bstar.security import Security
from bstar_client import HAClient, HandlerError, Request
from bstar_client.app import App
from bstar_client.arguments.environment import Given, or_environment
from bstar_testing import Pair, fake, wait_until
from support.waiting import LIMIT_S

# Nobody listens there.
PORTS = {"east": 1, "west": 3}


class Database:
    """What handlers share."""

    def __init__(self) -> None:
        self.count = 0


class Pool:
    """What lives in the event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as made:
        made.start()
        yield made


@contextmanager
def running(app: App) -> Iterator[None]:
    """It serves in a thread; what ended it is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        app.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.loopback
def test_services_of_both_kinds_share_resources_and_their_life_has_an_order(pair: Pair) -> None:
    app, seen = App(pair.endpoints), list[str]()

    @app.resource
    def database() -> Iterator[Database]:
        seen.append("database opens")
        yield Database()
        seen.append("database closes")

    @app.resource
    async def pool(database: Database) -> AsyncIterator[Pool]:
        seen.append("pool opens")
        yield Pool(database)
        seen.append("pool closes")

    @app.startup
    def begin(database: Database) -> None:
        database.count = 10
        seen.append("startup")

    @app.shutdown
    async def end(pool: Pool) -> None:
        seen.append(f"shutdown at {pool.database.count}")

    @app.service("count", threads=2)
    def count(request: Request, database: Database) -> bytes:
        database.count += 1
        return b"%d" % database.count

    @app.service("read")
    async def read(request: Request, pool: Pool) -> bytes:
        await asyncio.sleep(0)
        return b"%d" % pool.database.count

    with running(app), HAClient(pair.endpoints) as client:
        assert client.request("count", b"").body == b"11"
        assert client.request("read", b"").body == b"11"
        assert [each.service for each in app.figures()] == ["count", "read"]
    assert seen == [
        "database opens",
        "pool opens",
        "startup",
        "shutdown at 11",
        "pool closes",
        "database closes",
    ]


@pytest.mark.loopback
def test_what_goes_around_a_handler_may_replace_its_reply_or_its_error(pair: Pair) -> None:
    app = App(pair.endpoints)

    def outer(request: Request, call: Callable[[Request], bytes]) -> bytes:
        return b"<" + call(request) + b">"

    async def outer_async(request: Request, call: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.body == b"denied":
            raise PermissionError("no")
        return await call(request)

    async def inner_async(request: Request, call: Callable[[Request], Awaitable[bytes]]) -> bytes:
        return await call(request)

    def inner(request: Request, call: Callable[[Request], bytes]) -> bytes:
        try:
            return call(request)
        except KeyError:
            return b"unknown"

    # Either form may be the first one.
    app.around(outer, outer_async)
    app.around(inner_async, inner)

    @app.service("name")
    def name(request: Request) -> bytes:
        return {b"1": b"one"}[request.body]

    @app.service("later")
    async def later(request: Request) -> bytes:
        return request.body

    @app.service("parts")
    async def parts(request: Request) -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    with running(app), HAClient(pair.endpoints) as client:
        assert client.request("name", b"1").body == b"<one>"
        assert client.request("name", b"2").body == b"<unknown>"
        assert client.request("later", b"x").body == b"x"
        with pytest.raises(HandlerError, match="PermissionError: no"):
            client.request("later", b"denied")
        assert [reply.body for reply in client.stream("parts", b"")] == [b"a", b"b", b""]


def test_an_app_does_not_start_while_a_service_lacks_what_is_around_the_others() -> None:
    """A check of rights with def let every request of an async service pass."""
    app, opened = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]), list[str]()

    @app.resource
    def database() -> Iterator[Database]:
        opened.append("database")
        yield Database()

    def admit(request: Request, call: Callable[[Request], bytes]) -> bytes:
        raise PermissionError

    async def admit_async(request: Request, call: Callable[[Request], Awaitable[bytes]]) -> bytes:
        raise PermissionError

    @app.service("stock")
    def stock(request: Request) -> bytes:
        return b""

    @app.service("later")
    async def later(request: Request) -> bytes:
        return b""

    @app.service("parts")
    async def parts(request: Request) -> AsyncIterator[bytes]:
        yield b""

    app.around(admit, admit_async)
    app.around(admit)
    text = r"admit \(def\) does not go around services with async def: 'later', 'parts'; .* app.around\("
    with pytest.raises(ConfigurationError, match=text), fake(app):
        pass
    with pytest.raises(ConfigurationError, match=text):
        app.run()
    assert opened == []

    app = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])
    app.service("stock")(stock)
    app.around(admit_async)
    text = r"admit_async \(async def\) does not go around services with def: 'stock'; "
    with pytest.raises(ConfigurationError, match=text):
        app.run()


@pytest.mark.loopback
def test_the_services_of_a_pair_share_one_context_which_ends_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each service had its own, with three threads."""
    made: list[zmq.Context[zmq.Socket[bytes]]] = []

    def new_context(places: int, *, owners: int) -> zmq.Context[zmq.Socket[bytes]]:
        made.append(io_threads.new_context(places, owners=owners))
        return made[-1]

    monkeypatch.setattr(bstar_client.app, "new_context", new_context)
    nodes = {name: [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"] for name, port in PORTS.items()}
    app = App(nodes, pins={"a": "east", "b": "east", "c": "west"})

    async def later(request: Request) -> bytes:
        return b""

    app.service("a")(lambda request: b"")
    app.service("b")(later)
    app.service("c")(lambda request: b"")
    with running(app):
        wait_until(lambda: len(app.figures()) == 3, "the services begin", limit_s=LIMIT_S)
        assert [context.get(zmq.IO_THREADS) for context in made] == [2, 2]
    assert [context.closed for context in made] == [True, True]


@pytest.mark.loopback
def test_a_stop_lets_what_runs_finish(pair: Pair) -> None:
    app, begun = App(pair.endpoints), threading.Event()

    @app.service("slow")
    def slow(request: Request) -> bytes:
        begun.set()
        app.stop()
        time.sleep(0.3)  # the work
        return b"done"

    with HAClient(pair.endpoints) as client, running(app):
        assert client.request("slow", b"").body == b"done"
        assert begun.is_set()


@pytest.mark.loopback
def test_the_error_of_one_service_ends_all_and_the_resources(pair: Pair) -> None:
    app, seen, release = App(pair.endpoints), list[str](), threading.Event()

    @app.resource
    def database() -> Iterator[Database]:
        yield Database()
        seen.append("closed")

    @app.service("stuck", timeout=0.2)
    def stuck(request: Request) -> bytes:
        release.wait(LIMIT_S)
        return b""

    @app.service("fine")
    async def fine(request: Request) -> bytes:
        return b""

    def exhaust() -> None:
        with running(app), HAClient(pair.endpoints) as client:
            # Nobody waits for the replies: one that a failover loses makes the handler stick twice, and the
            # App has ended before the last of them.
            for _ in range(3):
                client.begin("stuck", b"")
            assert app._over.wait(LIMIT_S)
            release.set()

    with pytest.raises(WorkerError, match="stuck"):
        exhaust()
    assert seen == ["closed"]


def test_one_task_opens_holds_and_closes_an_async_resource() -> None:
    """Two tasks did: the token of a ContextVar and an asyncio.timeout were refused at the end."""
    app = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])
    who, tasks = ContextVar("who", default="nobody"), list[object]()

    @app.resource
    async def database() -> AsyncIterator[Database]:
        token = who.set("database")
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            beat = group.create_task(asyncio.sleep(LIMIT_S))
            yield Database()
            beat.cancel()
        assert who.get() == "database"
        who.reset(token)
        tasks.append(asyncio.current_task())

    @app.service("a")
    async def a(request: Request, database: Database) -> bytes:
        return b""

    with running(app):
        wait_until(lambda: bool(tasks), "the resource is open")
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("is_silent", [False, True], ids=["with an error", "silently"])
def test_an_async_resource_that_ends_by_itself_ends_the_app(is_silent: bool) -> None:
    app, seen = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]), list[str]()

    async def beat() -> None:
        raise OSError("the database is gone")

    @app.resource
    async def database() -> AsyncIterator[Database]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(beat())
                yield Database()
        except* OSError:
            seen.append("gone")
            if not is_silent:
                raise

    app.service("a")(lambda request: request.body)

    with pytest.raises(WorkerError if is_silent else ExceptionGroup) as raised, running(app):
        assert app._over.wait(LIMIT_S)
    assert is_silent == ("resource" in str(raised.value))
    assert seen == ["gone"]


@pytest.mark.loopback
def test_a_startup_that_fails_ends_it_before_any_service(pair: Pair) -> None:
    app, seen = App(pair.endpoints), list[str]()

    @app.resource
    def database() -> Iterator[Database]:
        yield Database()
        seen.append("closed")

    @app.startup
    async def fail() -> None:
        raise OSError("no disk")

    @app.service("a")
    def a(request: Request) -> bytes:
        return b""

    with pytest.raises(OSError, match="no disk"):
        app.run()
    assert seen == ["closed"]
    with pytest.raises(ClosedError, match="runs once"):
        app.run()


def test_what_follows_the_yield_of_a_resource_runs_although_a_shutdown_fails() -> None:
    app, seen = App(), list[str]()

    @app.resource
    def database() -> Iterator[Database]:
        yield Database()
        seen.append("closed")

    @app.shutdown
    def fail() -> None:
        raise RuntimeError("no shutdown")

    @app.service("one")
    def one(request: Request) -> bytes:
        return b""

    with pytest.raises(RuntimeError, match="no shutdown"), fake(app):
        pass
    assert seen == ["closed"]


@pytest.mark.parametrize(("count", "text"), [(0, "none"), (2, "several")])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_resource_that_does_not_yield_once_is_named(is_async: bool, count: int, text: str) -> None:
    app = App()

    def database() -> Iterator[Database]:
        for _ in range(count):
            yield Database()

    async def later() -> AsyncIterator[Database]:
        for _ in range(count):
            yield Database()

    app.resource(later if is_async else database)
    app.service("one")(lambda request: request.body)

    with pytest.raises(ConfigurationError, match=rf"resource \S+ yields {text}: yield one value"), fake(app):
        pass


def test_what_a_failed_startup_causes_later_does_not_hide_it() -> None:
    """The shutdown function found nothing to close, and its error was all that could be seen."""
    app = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])
    app.service("echo")(lambda request: request.body)

    @app.startup
    def open_it() -> None:
        raise ConnectionError("no database")

    @app.shutdown
    def close_it() -> None:
        raise AttributeError("nothing was opened")

    with pytest.raises(ConnectionError, match="no database") as raised:
        app.run()
    assert raised.value.__notes__ == ["then: AttributeError: nothing was opened"]


def test_a_task_that_the_program_leaves_behind_is_cancelled_at_the_end() -> None:
    """Python said that it was destroyed, and its last lines never ran."""
    app = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])
    app.service("echo")(lambda request: request.body)
    ended = threading.Event()
    tasks = []

    @app.startup
    async def begin() -> None:
        async def poll() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        tasks.append(asyncio.create_task(poll()))
        app.stop()

    app.run()
    assert ended.is_set()


@pytest.mark.loopback
def test_the_environment_is_read_once_for_all_services(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[object]()

    def read(endpoints: Given, security: Security | None) -> tuple[Endpoints, Security | None]:
        reads.append(endpoints)
        return or_environment(endpoints, security)

    monkeypatch.setattr("bstar_client.app.or_environment", read)
    for text, error in (("tcp://127.0.0.1:1,tcp://127.0.0.1:2", None), ("nowhere", "BSTAR_ENDPOINTS")):
        monkeypatch.setenv("BSTAR_ENDPOINTS", text)
        app = App()
        for name in ("a", "b"):
            app.service(name)(lambda request: b"")
        app.stop()
        with nullcontext() if error is None else pytest.raises(ConfigurationError, match=error):
            app.run()
        assert len(reads) == 1
        reads.clear()


def test_mistakes_are_named_where_they_are_made() -> None:
    app = App(["tcp://127.0.0.1:1"])
    with pytest.raises(ConfigurationError, match="no services"):
        app.run()

    @app.service("a")
    def handle(request: Request) -> bytes:
        return b""

    with pytest.raises(ConfigurationError, match="declared twice"):
        app.service("a")(handle)

    async def late(request: Request) -> bytes:
        return b""

    with pytest.raises(ConfigurationError, match="is async: it has no threads"):
        app.service("b", threads=2)(late)
    with pytest.raises(ConfigurationError, match="yields one value"):
        app.resource(handle)

    def untyped():  # type: ignore[no-untyped-def]  # the mistake
        yield 1

    with pytest.raises(ConfigurationError, match="annotate what it yields"):
        app.resource(untyped)

    def one() -> Iterator[Database]:
        yield Database()

    app.resource(one)
    with pytest.raises(ConfigurationError, match="two resources are of type Database"):
        app.resource(one)

    def log(request: Request, call: Callable[[Request], bytes]) -> bytes:
        return call(request)

    with pytest.raises(ConfigurationError, match=r"log and .*log are both not async"):
        app.around(log, log)


@pytest.mark.loopback
def test_a_function_in_a_thread_cannot_take_an_async_resource(pair: Pair) -> None:
    app = App(pair.endpoints)

    @app.resource
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @app.service("a")
    def handle(request: Request, database: Database) -> bytes:
        return b""

    with pytest.raises(ConfigurationError, match="takes the async resource Database: make it async"):
        app.run()


@pytest.mark.loopback
def test_a_stop_before_the_services_have_begun_ends_it(pair: Pair) -> None:
    """The stop came between the start of a worker's thread and its beginning, and the app served on."""
    for _ in range(20):
        app = App(pair.endpoints)

        @app.service("now")
        def now(request: Request) -> bytes:
            return b""

        @app.service("later")
        async def later(request: Request) -> bytes:
            return b""

        app.stop()
        thread = threading.Thread(target=app.run, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


BLOCKED = """
import threading
import time
from collections.abc import AsyncIterator

from bstar_client import App

app = App(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])


@app.resource
async def number() -> AsyncIterator[int]:
    yield 1


@app.startup
async def block(number: int) -> None:
    print("blocks", flush=True)
    time.sleep(1_000)


@app.service("one")
async def one(request):
    return b""


def show_the_stop() -> None:
    app._over.wait()
    print("stops", flush=True)


threading.Thread(target=show_the_stop, daemon=True).start()
app.run()
"""


@pytest.mark.loopback
def test_a_second_signal_ends_it_also_while_its_event_loop_is_blocked() -> None:
    """It ended by SIGKILL alone."""
    command = [sys.executable, "-c", BLOCKED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"blocks\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == b"stops\n"
            # A thread that does not sleep yet might leave the signal to another one.
            status = Path(f"/proc/{process.pid}/stat")
            wait_until(lambda: ") S " in status.read_text(), "its main thread waits", limit_s=LIMIT_S)
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)
        finally:
            process.kill()
