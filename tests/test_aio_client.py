"""The asyncio client over real sockets, against brokers that do as they are told."""

from __future__ import annotations

import asyncio
import errno
import inspect
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import zmq

from bstar.errors import BusyError, ClosedError, LocalProtocolError
from bstar.wire.messages import ErrorCode, Request
from bstar.wire.native_broker import CODEC
from bstar_client import AsyncHAClient, AsyncWorker, HAClient
from bstar_client.core.native.session import Session
from bstar_client.journal import WorkJournal
from bstar_client.links.links import Links
from support.scripted import WAIT_S, ScriptedBroker, final

pytestmark = pytest.mark.loopback


async def until(broker: ScriptedBroker, happened: Callable[[], bool]) -> None:
    """Let the loop go on until it is so."""
    await asyncio.to_thread(broker.wait_for, happened)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


def client_of(broker: ScriptedBroker, **settings: Any) -> AsyncHAClient:  # Any: the client checks them
    return AsyncHAClient(broker.endpoint, **{"timeout": WAIT_S, **settings})


def silent(request: Request) -> list[list[bytes]]:
    return []


def failure(request: Request) -> list[list[bytes]]:
    text = b"ValueError: no"
    return [CODEC.failure(request, 1, ErrorCode.HANDLER_FAILED, text)]


def test_it_has_the_words_of_the_client_with_a_thread() -> None:
    def words(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if callable(member) and (not name.startswith("_") or name == "__init__")
        }

    assert words(AsyncHAClient) == words(HAClient)


async def test_it_waits_for_the_primary_since_it_connects_and_not_since_it_was_made(
    broker: ScriptedBroker,
) -> None:
    client = client_of(broker)
    made_at = time.monotonic()
    async with client:
        assert isinstance(client._core, Session)
        assert min(node.created_at for node in client._core._nodes) > made_at


# --- request ------------------------------------------------------------------------------------------------


async def test_thousands_of_tasks_get_their_own_replies(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        bodies = [b"%d" % number for number in range(3_000)]
        replies = await asyncio.gather(*(client.request("echo", body) for body in bodies))
        assert [reply.body for reply in replies] == bodies
        assert client.counters.replies == 3_000


async def test_requests_beyond_the_bound_wait_their_turn(broker: ScriptedBroker) -> None:
    async with client_of(broker, outstanding_max=5) as client:
        replies = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(50)))
        assert [reply.body for reply in replies] == [b"%d" % n for n in range(50)]
        broker.on_request = silent
        held = [asyncio.ensure_future(client.request("echo", b"")) for _ in range(5)]
        await until(broker, lambda: len(broker.requests()) == 55)
        with pytest.raises(BusyError, match="outstanding_max"):
            await client.request("echo", b"", timeout=0.05)
        for task in held:
            task.cancel()
        await asyncio.wait(held)
        broker.on_request = lambda request: [final(request, b"room again")]
        assert (await client.request("echo", b"")).body == b"room again"


async def test_a_cancelled_task_gives_its_request_up(broker: ScriptedBroker) -> None:
    broker.on_request = silent

    async with client_of(broker) as client:
        task = asyncio.ensure_future(client.request("echo", b"1"))
        await until(broker, lambda: len(broker.requests()) == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await task
        task = asyncio.ensure_future(client.request("echo", b"2"))
        await until(broker, lambda: len(broker.requests()) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client._core.outstanding == 0


async def test_a_key_makes_two_tasks_ask_one_request(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        first, second = await asyncio.gather(
            client.request("echo", b"x", key="k"), client.request("echo", b"x", key=b"k")
        )
        assert first.body == second.body == b"x"
        assert len(broker.requests()) == 1


# --- failover -----------------------------------------------------------------------------------------------


async def test_a_plain_client_asks_one_at_a_time_and_resends_on_a_new_socket(broker: ScriptedBroker) -> None:
    frames_seen: list[list[bytes]] = []

    def on_frames(frames: list[bytes]) -> list[list[bytes]]:
        frames_seen.append(frames)
        if len(frames_seen) == 1:
            return []  # the first attempt is lost
        sender, _header, _command, service, *body = frames
        return [[sender, b"MDPC02", b"\x03", service, *body]]

    broker.on_frames = on_frames

    async with client_of(broker, dialect="mdp02", attempt_timeout_s=0.2, settle_delay_s=0.1) as client:
        replies = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(5)))
        assert [reply.body for reply in replies] == [b"%d" % n for n in range(5)]
        assert replies[0].attempts == 2
    assert frames_seen[0][0] != frames_seen[1][0]


# --- map ----------------------------------------------------------------------------------------------------


async def test_map_keeps_the_order_and_never_exceeds_its_window(broker: ScriptedBroker) -> None:
    in_flight: list[int] = []
    drawn = answered = 0

    async def bodies(count: int) -> AsyncIterator[bytes]:
        nonlocal drawn
        for number in range(count):
            drawn += 1
            in_flight.append(drawn - answered)
            yield b"%d" % number
            if number % 7 == 0:
                await asyncio.sleep(0)

    async with client_of(broker) as client:
        async for reply in client.map("echo", bodies(300), window=16):
            assert reply.body == b"%d" % answered
            assert reply.index == answered
            answered += 1
        assert answered == 300
        assert [reply async for reply in client.map("echo", [])] == []
        plain = [b"%d" % number for number in range(1_000)]
        unordered = [r.body async for r in client.map("echo", plain, window=100, ordered=False)]
        assert Counter(unordered) == Counter(plain)
    # One body is asked for ahead, and counts as drawn.
    assert max(in_flight) <= 16 + 1


async def test_map_that_is_left_early_gives_up_what_is_in_flight(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        async with aclosing(client.map("echo", [b"x"] * 100, window=10)) as replies:
            async for _ in replies:
                break
        assert client._core.outstanding == 0
        assert client._loop is not None
        assert client._loop._slots == 100_000


# --- looking, and the end -----------------------------------------------------------------------------------


def test_a_client_belongs_to_one_loop(broker: ScriptedBroker) -> None:
    client = client_of(broker)

    async def ask() -> None:
        await client.request("echo", b"")

    async def ask_and_leave_open() -> None:
        await ask()

    asyncio.run(ask_and_leave_open())
    with pytest.raises(LocalProtocolError, match="another event loop"):
        asyncio.run(ask())
    asyncio.run(client.close())


async def test_a_map_that_is_cancelled_twice_gives_all_of_its_calls_up(broker: ScriptedBroker) -> None:
    """The second time it waited for its source, and its calls kept their slots for ever."""
    broker.on_request = silent
    closing = asyncio.Event()

    async def bodies() -> AsyncIterator[bytes]:
        try:
            yield b"1"
            yield b"2"
            await asyncio.Event().wait()
        finally:
            closing.set()
            await asyncio.Event().wait()

    async with client_of(broker, outstanding_max=3) as client:

        async def ask() -> None:
            async for _ in client.map("held", bodies()):
                pass

        asking = asyncio.create_task(ask())
        await until(broker, lambda: len(broker.requests()) == 2)
        asking.cancel()
        await closing.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert client.counters.abandoned == 2


NOWHERE = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]


def fail_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(Links, "step", step)


async def test_a_client_whose_turn_fails_ends_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket could be opened: it took no further turn, and its calls waited beyond their deadlines."""

    async with AsyncHAClient(NOWHERE, timeout=None) as client:
        fail_turns(monkeypatch)
        with pytest.raises(ClosedError):
            await client.request("echo", b"")
        with pytest.raises(ClosedError):
            await client.request("echo", b"")


async def test_a_worker_whose_turn_fails_ends_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def echo(request: bytes) -> bytes:
        return request

    fail_turns(monkeypatch)
    with pytest.raises(zmq.ZMQError):
        await AsyncWorker(NOWHERE, "echo", echo).run()


async def test_a_worker_that_is_stopped_before_it_has_begun_closes_its_pages() -> None:
    async def echo(request: bytes) -> bytes:
        return request

    async with AsyncWorker(NOWHERE, "echo", echo, http="127.0.0.1:0") as worker:
        url = worker.http_url
    assert url is not None
    with pytest.raises(URLError, match="refused"):
        await asyncio.to_thread(urlopen, f"{url}/healthz", timeout=WAIT_S)


async def test_a_worker_that_is_cancelled_at_its_end_closes_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second signal: the last records were lost."""
    ending, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    end, close = Links.end, WorkJournal.close

    def end_slowly(links: Links, *arguments: Any) -> None:
        ending.set()
        assert go_on.wait(WAIT_S)
        end(links, *arguments)

    def note_close(journal: WorkJournal, *arguments: Any) -> None:
        close(journal, *arguments)
        closed.set()

    monkeypatch.setattr(Links, "end", end_slowly)
    monkeypatch.setattr(WorkJournal, "close", note_close)

    async def echo(request: bytes) -> bytes:
        return request

    running = asyncio.create_task(AsyncWorker(NOWHERE, "echo", echo, journal=tmp_path).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.to_thread(ending.wait, WAIT_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    assert await asyncio.to_thread(closed.wait, WAIT_S)
