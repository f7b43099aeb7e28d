"""The pair in memory, where it differs from a real one: time, threads, and what it does for a test."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from bstar.errors import ConfigurationError
from bstar_client import (
    App,
    CallFailed,
    CallTimeoutError,
    ClosedError,
    Declined,
    HAClient,
    HandlerError,
    LocalProtocolError,
    OutcomeUnknownError,
    Progress,
    ReplyMemory,
    Request,
)
from bstar_testing import FakePair, HarnessError, Pair, fake
from bstar_testing.memory import world
from support.waiting import LIMIT_S

if TYPE_CHECKING:
    import bstar_client as unseen_client

    Unseen = bytes


def echo(request: Request) -> bytes:
    return request.body


# --- time ---------------------------------------------------------------------------------------------------


def test_time_passes_only_where_somebody_waits() -> None:
    seen: list[float | None] = []

    def slow(request: Request) -> bytes:
        seen.append(request.remaining())
        made.pass_time(20)
        seen.append(request.remaining())
        return b""

    made = fake({"slow": slow})
    with made as client:
        client.request("slow", b"", timeout=60)
    before, after = seen
    assert before is not None
    assert after is not None
    assert before - after == pytest.approx(20)


def test_the_status_of_a_durable_request_shows_how_far_an_async_handler_is() -> None:
    async def film(request: Request) -> bytes:
        for done in range(3):
            request.progress(done, 3, "scenes")
            await asyncio.sleep(60)
        return b"done"

    made = fake({"film": film})
    with made as client:
        request = client.submit("film", b"x")
        seen = []
        for _ in range(3):
            made.pass_time(59)
            seen.append(client.status_of(request).progress)
        assert seen == [Progress(done, 3, "scenes") for done in (0, 1, 2)]
        assert client.result(request).body == b"done"
        assert client.status_of(request).progress is None


def test_what_is_due_has_happened_when_that_time_has_passed() -> None:
    done: list[bytes] = []
    made = fake({"mail": lambda request: done.append(request.body)})
    with made as client:
        client.submit("mail", b"x", delay=3600)
        made.pass_time(3599.9)
        assert not done
        made.pass_time(0.1)
        assert done == [b"x"]


def test_kept_replies_expire_in_the_pairs_time() -> None:
    app, store, runs = App(["tcp://127.0.0.1:1"]), ReplyMemory(keep_s=600), list[bytes]()

    @app.service("pay", dedupe=store)
    def pay(request: Request) -> bytes:
        runs.append(request.body)
        return b"paid %d" % len(runs)

    made = fake(app)
    with made as client:
        assert client.request("pay", b"x", key="7").body == b"paid 1"
        made.pass_time(599)
        assert client.request("pay", b"x", key="7").body == b"paid 1"
        made.pass_time(2)
        assert client.request("pay", b"x", key="7").body == b"paid 2"
    assert store.clock is time.monotonic


def test_a_pair_that_works_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with fake({"echo": echo}) as client:
        assert client.result(client.submit("echo", b"x")).body == b"x"
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_call_that_waits_for_ever_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_QUIET_S_MAX", 600.0)
    with fake({}) as client, pytest.raises(HarnessError, match="waits for ever"):
        client.result(client.submit("nobody", b""))


def test_a_call_in_an_event_loop_that_waits_for_ever_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_QUIET_IN_LOOP_S_MAX", 600.0)

    async def ask() -> None:
        async with fake({}) as client:
            await client.result(await client.submit("nobody", b""))

    with pytest.raises(HarnessError, match="waits for ever"):
        asyncio.run(ask())


async def test_the_event_loop_has_its_own_time_again_after_the_block() -> None:
    loop = asyncio.get_running_loop()
    async with fake({}):
        began_at = loop.time()
        await asyncio.sleep(3_600)
        assert loop.time() - began_at == pytest.approx(3_600)
    assert abs(loop.time() - time.monotonic()) < 60


async def test_a_timeout_of_asyncio_is_one_of_the_pairs_time() -> None:
    async def slow(request: Request) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async with fake({"slow": slow, "echo": echo}) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await client.request("slow", b"")
        assert (await client.request("echo", b"x")).body == b"x"


# --- handlers -----------------------------------------------------------------------------------------------


def test_a_handler_may_call_other_services_and_its_own() -> None:
    def factorial(request: Request) -> bytes:
        number = int(request.body)
        rest = int(client.request("factorial", b"%d" % (number - 1)).body) if number > 1 else 1
        return b"%d" % (number * rest)

    with fake({"factorial": factorial}) as client:
        assert client.request("factorial", b"5").body == b"120"


def test_a_handler_may_call_other_services_from_threads() -> None:
    def all_of_them(request: Request) -> list[bytes]:
        with ThreadPoolExecutor(4) as pool:
            replies = pool.map(lambda number: client.request("echo", b"%d" % number), range(20))
            return [reply.body for reply in replies]

    with fake({"all": all_of_them, "echo": echo}) as client:
        assert client.request("all", b"").frames == tuple(b"%d" % number for number in range(20))


def test_a_call_of_a_handlers_thread_that_nobody_answers_ends_at_its_deadline() -> None:
    def ask_in_thread(request: Request) -> bytes:
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(client.request, "nobody", b"", timeout=5).exception()
        return type(error).__name__.encode()

    with fake({"ask": ask_in_thread}) as client:
        assert client.request("ask", b"").body == b"CallTimeoutError"


def test_threads_may_share_the_client() -> None:
    with fake({"echo": echo}) as client, ThreadPoolExecutor(8) as pool:
        replies = pool.map(lambda number: client.request("echo", b"%d" % number).body, range(200))
        assert list(replies) == [b"%d" % number for number in range(200)]


def quote(request: Request) -> bytes:
    return {b"apple": b"3"}[request.body]


async def quote_later(request: Request) -> bytes:
    return quote(request)


def decline(request: Request) -> bytes:
    raise Declined("no-such-fruit")


def test_the_cause_of_an_error_is_the_exception_of_the_handler() -> None:
    """The test of a service shows the line where the handler failed."""

    def check(error: BaseException, kind: type[BaseException], line: str) -> None:
        assert type(error.__cause__) is kind
        assert traceback.extract_tb(error.__cause__.__traceback__)[-1].name == line

    with fake({"price": quote, "later": quote_later, "stock": decline}) as client:
        for service in ("price", "later"):
            with pytest.raises(HandlerError) as caught:
                client.request(service, b"brick")
            check(caught.value, KeyError, "quote")
        with pytest.raises(HandlerError) as caught:
            client.request("stock", b"brick")
        check(caught.value, Declined, "decline")
        [failed] = client.map("price", [b"brick"], errors="return")
        assert isinstance(failed, CallFailed)
        check(failed.error, KeyError, "quote")
        keyed = [client.begin("price", b"brick", key="7") for _ in range(2)]
        for future in keyed:
            check(future.exception() or AssertionError(), KeyError, "quote")
        [outcome] = client.ask_all("price", b"brick").values()
        assert isinstance(outcome, CallFailed)
        check(outcome.error, KeyError, "quote")

    async def run() -> None:
        async with fake({"price": quote}) as client:
            with pytest.raises(HandlerError) as caught:
                await client.request("price", b"brick")
            check(caught.value, KeyError, "quote")

    asyncio.run(run())


def test_a_handler_runs_in_the_thread_of_the_test() -> None:
    threads: list[int] = []
    with fake({"work": lambda request: threads.append(threading.get_ident())}) as client:
        client.request("work", b"")
    assert threads == [threading.get_ident()]


def test_async_handlers_serve_a_client_for_threads() -> None:
    async def slow(request: Request) -> bytes:
        await asyncio.sleep(30 if request.body == b"too long" else 0.5)
        return b"done"

    async def in_a_thread(request: Request) -> bytes:
        return await asyncio.to_thread(request.body.upper)

    async def parts(request: Request) -> AsyncIterator[bytes]:
        for part in (b"a", b"b"):
            await asyncio.sleep(1)
            yield part

    with fake({"slow": slow, "thread": in_a_thread, "parts": parts}, timeout=5) as client:
        assert client.request("slow", b"").body == b"done"
        assert client.request("thread", b"x").body == b"X"
        assert [part.body for part in client.stream("parts", b"")] == [b"a", b"b", b""]
        with pytest.raises(CallTimeoutError):
            client.request("slow", b"too long")
        assert [reply.body for reply in client.map("slow", [b""] * 50)] == [b"done"] * 50


def test_ctrl_c_in_a_handler_ends_the_test_and_not_the_request() -> None:
    def interrupted(request: Request) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), fake({"work": interrupted}) as client:
        client.request("work", b"")


def test_a_stream_without_end_stops_when_nobody_reads_it() -> None:
    made_parts: list[int] = []

    def endless(request: Request) -> Iterator[bytes]:
        while True:
            made_parts.append(len(made_parts))
            yield b"part"

    made = fake({"parts": endless})
    with made as client:
        stream = client.stream("parts", b"")
        for _ in range(3):
            next(stream)
        stream.close()
        made.pass_time(60)
        assert len(made_parts) < 10
        with pytest.raises(CallTimeoutError):
            client.request("parts", b"", timeout=0.1)
        made.pass_time(1)
        count = len(made_parts)
        made.pass_time(60)
        assert len(made_parts) == count


# --- an App -------------------------------------------------------------------------------------------------


class Shelf:
    """What handlers take."""

    def __init__(self) -> None:
        self.log = ["open"]


class AsyncShelf(Shelf):
    """The same in the event loop."""


def shop(log: list[Shelf]) -> App:
    """A service of each kind, with a resource, and a function around it."""
    app = App(["tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002"])

    @app.resource
    def shelf() -> Iterator[Shelf]:
        log.append(Shelf())
        yield log[-1]
        log[0].log.append("closed")

    @app.resource
    async def async_shelf() -> AsyncIterator[AsyncShelf]:
        await asyncio.sleep(1)
        log.append(AsyncShelf())
        yield AsyncShelf()
        await asyncio.sleep(1)
        log[0].log.append("closed in the loop")

    @app.startup
    def start(shelf: Shelf) -> None:
        shelf.log.append("started")

    def shout(request: Request, call: Callable[[Request], bytes]) -> bytes:
        return call(request).upper()

    async def whisper(request: Request, call: Callable[[Request], Awaitable[bytes]]) -> bytes:
        return await call(request)

    app.around(shout, whisper)

    @app.service("stock")
    def stock(request: Request, shelf: Shelf) -> bytes:
        shelf.log.append("asked")
        return b"seven"

    @app.service("async stock", timeout=5)
    async def async_stock(request: Request, shelf: AsyncShelf) -> bytes:
        await asyncio.sleep(float(request.body))
        return ",".join(shelf.log).encode()

    return app


LIFE = ["open", "started", "asked", "closed in the loop", "closed"]


def test_an_app_has_its_resources_and_its_options() -> None:
    log: list[Shelf] = []
    with fake(shop(log)) as client:
        assert client.request("stock", b"").body == b"SEVEN"
        assert client.request("async stock", b"1").body == b"open"
        with pytest.raises(HandlerError, match="5"):
            client.request("async stock", b"20")
    assert log[0].log == LIFE


async def test_an_app_serves_in_an_event_loop() -> None:
    log: list[Shelf] = []

    async with fake(shop(log)) as client:
        assert (await client.request("stock", b"")).body == b"SEVEN"
        assert (await client.request("async stock", b"1")).body == b"open"
    assert log[0].log == LIFE


@pytest.mark.parametrize("is_async", [False, True])
def test_an_app_that_does_not_start_says_why_and_ends_its_resources(is_async: bool) -> None:
    log: list[Shelf] = []
    app = shop(log)

    @app.startup
    def fail() -> None:
        raise ValueError("no shelf is free")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="no shelf is free"):
            async with fake(app):
                pass
        assert abs(loop.time() - time.monotonic()) < 60

    if is_async:
        asyncio.run(run())
    else:
        with pytest.raises(ValueError, match="no shelf is free"), fake(app):
            pass
    assert log[0].log == ["open", "started", "closed in the loop", "closed"]


def test_a_resource_of_an_app_can_be_replaced() -> None:
    log: list[Shelf] = []
    mine, other = Shelf(), AsyncShelf()
    with fake(shop(log), resources={Shelf: mine, AsyncShelf: other}) as client:
        assert client.request("stock", b"").body == b"SEVEN"
        assert client.request("async stock", b"1").body == b"open"
    assert mine.log == ["open", "started", "asked"]
    assert not log, "the resources of the App were not made"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_resource_that_ends_by_itself_ends_the_block_and_leaves_nothing(is_async: bool) -> None:
    """The block's end raised before it was through: an event loop kept the time of the pair."""
    app = App(["tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002"])

    async def beat() -> None:
        await asyncio.sleep(1)
        raise OSError("the shelf is gone")

    @app.resource
    async def shelf() -> AsyncIterator[AsyncShelf]:
        async with asyncio.TaskGroup() as group:
            group.create_task(beat())
            yield AsyncShelf()

    @app.service("stock")
    async def stock(request: Request, shelf: AsyncShelf) -> bytes:
        await asyncio.sleep(100)
        return b""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        try:
            async with fake(app, timeout=200) as client:
                await client.request("stock", b"")
        finally:
            assert abs(loop.time() - time.monotonic()) < 60

    def run_in_threads() -> None:
        with fake(app, timeout=200) as client:
            client.request("stock", b"")

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(run()) if is_async else run_in_threads()
    assert isinstance(raised.value.exceptions[0], OSError)
    assert not app._over.is_set(), "its next run is not over"


def test_a_resource_that_an_app_does_not_have_is_not_replaced() -> None:
    with pytest.raises(ConfigurationError, match="no resource of type int; it has: Shelf, AsyncShelf"):
        fake(shop([]), resources={int: 7})
    with pytest.raises(ConfigurationError, match="give fake"):
        fake({"echo": echo}, resources={int: 7})


@pytest.mark.parametrize("kind", [None, bytes], ids=["replies", "values"])
@pytest.mark.parametrize("leave", ["close", "__del__"], ids=["closed", "forgotten"])
def test_a_stream_that_is_left_before_its_first_reply_is_given_up(kind: Any, leave: str) -> None:
    """Its generator had not begun, so that its end did nothing: the worker went on."""

    def numbers(request: Request) -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(10_000))

    with fake({"numbers": numbers, "echo": echo}) as client:
        replies = client.stream("numbers", b"", reply=kind, timeout=None)
        if leave == "close":
            replies.close()
        del replies
        assert client.request("echo", b"").body == b""
        assert client.counters.abandoned == 1


# --- futures ------------------------------------------------------------------------------------------------


def test_a_future_has_its_reply_when_somebody_asks() -> None:
    with fake({"echo": echo}) as client:
        calls = [client.begin("echo", b"%d" % number) for number in range(3)]
        assert [call.result().body for call in calls] == [b"0", b"1", b"2"]
        unknown = client.begin("nobody", b"", timeout=5)
        with pytest.raises(TimeoutError):
            unknown.result(timeout=1)
        assert isinstance(unknown.exception(), CallTimeoutError)


@pytest.mark.parametrize(
    ("is_connected", "error"), [(False, ClosedError), (True, OutcomeUnknownError)], ids=["not sent", "sent"]
)
def test_a_future_that_is_left_behind_ends_with_its_client(
    is_connected: bool, error: type[BaseException]
) -> None:
    """It never ended: what had begun was dropped with the pair."""
    with fake({"echo": echo}) as client:
        if is_connected:
            client.request("echo", b"")
        call = client.begin("echo", b"")
    assert call.done()
    assert isinstance(call.exception(timeout=0.5), error)


def test_futures_may_be_waited_for() -> None:
    with fake({"echo": echo}) as client:
        calls = [client.begin("echo", b"x"), client.begin("nobody", b"", timeout=5)]
        done, pending = futures.wait(calls)
        assert (done, pending) == (set(calls), set())


def test_who_would_wait_for_itself_is_refused_as_on_sockets() -> None:
    """In an observer it stopped the pair, and in a callback it worked here alone."""
    pair, said = fake({"echo": echo}), futures.Future[object]()
    with pair as client:

        def ask(_: object) -> None:
            try:
                client.request("echo", b"")
            except LocalProtocolError as error:
                said.set_result(error)

        client.request("echo", b"x")
        client.begin("echo", b"x").add_done_callback(ask)
        assert "cannot wait" in str(said.result(LIMIT_S))
        said = futures.Future[object]()
        following = futures.Future[Any]()
        client.begin("echo", b"x").add_done_callback(
            lambda _: following.set_result(client.begin("echo", b"y"))
        )
        assert following.result(LIMIT_S).result().body == b"y"
        client.observe(lambda event: None if said.done() else ask(event))
        pair.fail_over()
        assert client.request("echo", b"z").body == b"z"
        assert "cannot wait" in str(said.result(LIMIT_S))


def test_who_waits_for_a_future_that_never_ends_is_told_so() -> None:
    with fake({}) as client:
        call = client.begin("nobody", b"", timeout=1_000_000)
        assert futures.wait([call], timeout=60).done
        with pytest.raises(HarnessError, match="waits for ever"):
            call.result()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_async_handlers_serve_several_threads() -> None:
    async def work(request: Request) -> bytes:
        await asyncio.sleep(0.1)
        return request.body

    for _ in range(50):
        with fake({"work": work}) as client:
            calls = [client.begin("work", b"x", timeout=10) for _ in range(3)]
            futures.wait(calls)
            assert [call.result().body for call in calls] == [b"x"] * 3


def test_no_time_passes_while_several_threads_let_calls_go_on() -> None:
    """A thread took a job, and before it was counted as busy another let the time jump to the deadline."""
    app = App(["tcp://127.0.0.1:1"])

    @app.service("echo", threads=1, credit=1)
    def work(request: Request) -> bytes:
        return request.body

    for _ in range(50):
        with fake(app) as client:
            calls = [client.begin("echo", b"x", timeout=10) for _ in range(3)]
            futures.wait(calls)
            assert [call.result().body for call in calls] == [b"x"] * 3


@pytest.mark.parametrize("dialect", ["native", "mdp02"])
def test_a_call_that_was_given_up_is_not_in_flight(dialect: str) -> None:
    """It was for ever: its end was not counted."""
    made = fake({"echo": echo})
    with made, made.client(dialect=dialect) as client:
        client.request("echo", b"")
        given_up = client.begin("nobody", b"", timeout=60)
        made.pass_time(1)
        assert client.figures().in_flight == 1
        given_up.cancel()
        client.request("echo", b"")
        assert client.figures().in_flight == 0


# --- wrong use ----------------------------------------------------------------------------------------------


def test_a_pair_in_memory_serves_one_block() -> None:
    made = fake({"echo": echo})
    with made:
        pass
    with pytest.raises(ConfigurationError, match="one block"), made:
        pass


def test_in_an_event_loop_time_passes_with_asyncio_sleep() -> None:
    async def run() -> None:
        made = fake({})
        async with made:
            made.pass_time(1)

    with pytest.raises(ConfigurationError, match=r"await asyncio\.sleep"):
        asyncio.run(run())


@pytest.mark.parametrize("wait_s", [-1, math.inf, math.nan, "x", None, True])
def test_only_a_number_of_seconds_can_pass(wait_s: Any) -> None:
    made = fake({})
    with (
        made,
        pytest.raises((ConfigurationError, TypeError), match="time that passes is a number of seconds"),
    ):
        made.pass_time(wait_s)


@pytest.mark.parametrize("use", ["request", "begin", "pass_time"])
def test_a_pair_in_memory_is_used_in_its_block(use: str) -> None:
    """Before it, a call ended after 30 s of virtual time without an active node."""
    made = fake({"echo": echo})
    client = made.client()
    acts: dict[str, Callable[[], object]] = {
        "request": lambda: client.request("echo", b""),
        "begin": lambda: client.begin("echo", b""),
        "pass_time": lambda: made.pass_time(1),
    }
    with pytest.raises(ConfigurationError, match=r"with fake\("):
        acts[use]()
    with made:
        acts[use]()
    client = made.client()
    with pytest.raises(ConfigurationError, match="has ended"):
        acts[use]()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["with", "no block", "another loop", "after it"])
def test_an_async_client_is_refused_where_its_pair_lives_in_no_event_loop(place: str) -> None:
    """Its first call waited for ever."""
    made = fake({"echo": echo})

    async def ask() -> None:
        await made.async_client().request("echo", b"")

    async def enter() -> None:
        async with made:
            if place == "another loop":
                await asyncio.to_thread(asyncio.run, ask())

    def use() -> None:
        if place == "with":
            with made:
                asyncio.run(ask())
        if place in ("another loop", "after it"):
            asyncio.run(enter())
        asyncio.run(ask())

    with pytest.raises(ConfigurationError, match=r"async with fake\("):
        use()


def test_a_pair_in_an_event_loop_may_have_many_async_clients() -> None:
    made = fake({"echo": echo})
    early = made.async_client()

    async def run() -> list[bytes]:
        async with made, made.async_client() as client:
            return [(await each.request("echo", b"x")).body for each in (early, client)]

    assert asyncio.run(run()) == [b"x", b"x"]


# --- a handler alone ----------------------------------------------------------------------------------------


def test_a_request_can_be_made_for_a_handler_alone() -> None:
    request = Request.of(b"apple", headers={"tenant": "7"}, timeout=5, attempt=2)
    assert (request.body, dict(request.headers), request.attempt) == (b"apple", {"tenant": "7"}, 2)
    remaining_s = request.remaining()
    assert remaining_s is not None
    assert 0 <= remaining_s <= 5
    assert len(request.identity) == 24
    assert Request.of(identity=b"order 4711").identity == b"order 4711"
    assert Request.of([b"a", b"b"]).frames == (b"a", b"b")
    assert Request.of().remaining() is None


def test_a_request_for_a_handler_alone_is_one_that_a_client_could_send() -> None:
    with pytest.raises(TypeError):
        Request.of("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an identity is bytes, not str"):
        Request.of(identity="order 4711")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        Request.of(b"", headers={"a name with spaces": "x"})


# --- fixtures -----------------------------------------------------------------------------------------------


@pytest.fixture
def fake_services() -> Mapping[str, Callable[..., Any]]:
    return {"echo": echo}


def test_the_fixture_serves_the_services_of_the_module(fake_pair: FakePair) -> None:
    client = fake_pair.client(timeout=1)
    fake_pair.fail_over()
    assert client.request("echo", b"x").body == b"x"
    with pytest.raises(CallTimeoutError):
        client.request("nobody", b"")


@pytest.mark.loopback
def test_the_fixtures_of_a_real_pair_share_it(pair: Pair, pair_client: HAClient) -> None:
    assert pair_client.request("echo", b"x").body == b"x"
    assert pair_client.active == pair.active().endpoint


def test_a_thread_that_waits_for_a_future_ends_with_the_pair() -> None:
    """It let the pair go on while the stores of its nodes were closed, which ended the process."""
    for _ in range(30):
        with fake({}) as client:
            for _ in range(3):
                client.begin("nobody", b"", timeout=3600).add_done_callback(lambda _: None)
            client.submit("nobody", b"")


def test_an_app_need_not_import_what_only_its_type_checker_reads() -> None:
    app = App(["tcp://127.0.0.1:1"])

    @app.resource
    def shelf() -> Iterator[Shelf]:
        yield Shelf()

    @app.service("stock")
    def stock(request: unseen_client.Request, shelf: Shelf) -> Unseen:
        return ",".join(shelf.log).encode()

    with fake(app) as client:
        assert client.request("stock", b"").body == b"open"


def test_an_async_function_of_an_app_may_be_typed() -> None:
    app = App(["tcp://127.0.0.1:1"])

    @app.service("double")
    async def double(ask: dict[str, int]) -> int:
        await asyncio.sleep(1)
        return 2 * ask["number"]

    with fake(app) as client:
        assert client.request("double", {"number": 21}, reply=int) == 42


def test_resources_in_an_event_loop_wait_in_the_time_of_the_pair() -> None:
    """A startup that waited for an hour took an hour."""
    app = App()

    @app.resource
    async def number() -> AsyncIterator[int]:
        await asyncio.sleep(1_800)
        yield 7
        await asyncio.sleep(1_800)

    @app.startup
    async def wait(number: int) -> None:
        await asyncio.sleep(1_800)

    @app.service("one")
    async def one(request: Request, number: int) -> bytes:
        return b"%d" % number

    async def run() -> None:
        began = asyncio.get_running_loop().time()
        async with fake(app) as client:
            assert asyncio.get_running_loop().time() - began >= 3_600
            assert (await client.request("one", b"")).body == b"7"

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began < LIMIT_S
