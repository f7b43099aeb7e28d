"""The asyncio client over real sockets, against brokers that do as they are told."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from bstar.errors import (
    BusyError,
    ClosedError,
    ConfigurationError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    StreamInterruptedError,
)
from bstar.wire.messages import ErrorCode, Request
from bstar.wire.native_broker import CODEC
from bstar_client import Ask, AsyncHAClient, CallFailed, Event, FailedOver, HAClient
from bstar_client.core.native.session import Session
from support.scripted import PASSIVE, WAIT_S, ScriptedBroker, final, partial, status

pytestmark = pytest.mark.loopback

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, with a generous limit."""

    async def limited() -> T:
        async with asyncio.timeout(2 * WAIT_S):
            return await work

    return asyncio.run(limited(), debug=False)


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


def test_it_waits_for_the_primary_since_it_connects_and_not_since_it_was_made(broker: ScriptedBroker) -> None:
    client = client_of(broker)
    made_at = time.monotonic()

    async def connected_at() -> list[float]:
        async with client:
            assert isinstance(client._core, Session)
            return [node.created_at for node in client._core._nodes]

    assert min(run(connected_at())) > made_at


# --- request ------------------------------------------------------------------------------------------------


def test_requests_are_answered(broker: ScriptedBroker) -> None:
    async def work() -> None:
        async with client_of(broker) as client:
            reply = await client.request("echo", b"hello")
            assert (reply.body, reply.endpoint, reply.attempts) == (b"hello", broker.endpoint, 1)
            assert (await client.request("echo", [b"a", b"", b"c"])).frames == (b"a", b"", b"c")
            assert client.active == broker.endpoint

    run(work())


def test_thousands_of_tasks_get_their_own_replies(broker: ScriptedBroker) -> None:
    async def work() -> None:
        async with client_of(broker) as client:
            bodies = [b"%d" % number for number in range(3_000)]
            replies = await asyncio.gather(*(client.request("echo", body) for body in bodies))
            assert [reply.body for reply in replies] == bodies
            assert client.counters.replies == 3_000

    run(work())


def test_requests_beyond_the_bound_wait_their_turn(broker: ScriptedBroker) -> None:
    async def work() -> None:
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

    run(work())


def test_what_cannot_be_sent_is_refused_before_it_is_sent(broker: ScriptedBroker) -> None:
    async def work() -> None:
        async with client_of(broker) as client:
            for body in ([], "text", [b"a", "b"]):
                with pytest.raises((TypeError, LocalProtocolError)):
                    await client.request("echo", body)  # type: ignore[arg-type]  # that is the point
            with pytest.raises(LocalProtocolError):
                await client.request("", b"")
            assert (await client.request("echo", b"still well")).body == b"still well"

    run(work())


def test_errors_are_those_of_the_service_and_of_the_deadline(broker: ScriptedBroker) -> None:
    broker.on_request = failure

    async def work() -> None:
        async with client_of(broker) as client:
            with pytest.raises(HandlerError, match="ValueError: no"):
                await client.request("echo", b"")

    run(work())
    broker.close()

    async def nobody() -> None:
        async with client_of(broker) as client:
            with pytest.raises(NoActiveNodeError, match="refused"):
                await client.request("echo", b"", timeout=2.0)

    run(nobody())


def test_a_cancelled_task_gives_its_request_up(broker: ScriptedBroker) -> None:
    broker.on_request = silent

    async def work() -> None:
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

    run(work())


def test_a_key_makes_two_tasks_ask_one_request(broker: ScriptedBroker) -> None:
    async def work() -> None:
        async with client_of(broker) as client:
            first, second = await asyncio.gather(
                client.request("echo", b"x", key="k"), client.request("echo", b"x", key=b"k")
            )
            assert first.body == second.body == b"x"
            assert len(broker.requests()) == 1

    run(work())


# --- failover -----------------------------------------------------------------------------------------------


def test_outstanding_requests_move_to_the_node_that_takes_over() -> None:
    events: list[Event] = []

    async def work(primary: ScriptedBroker, backup: ScriptedBroker) -> None:
        async with AsyncHAClient([primary.endpoint, backup.endpoint], on_event=events.append) as client:
            asking = [asyncio.ensure_future(client.request("echo", b"%d" % n)) for n in range(20)]
            await until(primary, lambda: len(primary.requests()) == 20)
            backup.is_promoted_by_votes = True
            await asyncio.to_thread(primary.close)
            replies = await asyncio.gather(*asking)
            assert [reply.body for reply in replies] == [b"%d" % n for n in range(20)]
            assert {reply.endpoint for reply in replies} == {backup.endpoint}

    with (
        ScriptedBroker(on_request=silent) as primary,
        ScriptedBroker(status(PASSIVE, peer=3, retry_after_ms=100)) as backup,
    ):
        run(work(primary, backup))
        [failover] = [event for event in events if isinstance(event, FailedOver)]
        assert (failover.from_endpoint, failover.to_endpoint) == (primary.endpoint, backup.endpoint)


def test_a_plain_client_asks_one_at_a_time_and_resends_on_a_new_socket(broker: ScriptedBroker) -> None:
    frames_seen: list[list[bytes]] = []

    def on_frames(frames: list[bytes]) -> list[list[bytes]]:
        frames_seen.append(frames)
        if len(frames_seen) == 1:
            return []  # the first attempt is lost
        sender, _header, _command, service, *body = frames
        return [[sender, b"MDPC02", b"\x03", service, *body]]

    broker.on_frames = on_frames

    async def work() -> None:
        async with client_of(broker, dialect="mdp02", attempt_timeout_s=0.2, settle_delay_s=0.1) as client:
            replies = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(5)))
            assert [reply.body for reply in replies] == [b"%d" % n for n in range(5)]
            assert replies[0].attempts == 2

    run(work())
    assert frames_seen[0][0] != frames_seen[1][0]


# --- map ----------------------------------------------------------------------------------------------------


def test_map_keeps_the_order_and_never_exceeds_its_window(broker: ScriptedBroker) -> None:
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

    async def work() -> None:
        nonlocal answered
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

    run(work())
    # One body is asked for ahead, and counts as drawn.
    assert max(in_flight) <= 16 + 1


def test_map_raises_the_first_failure_or_returns_each(broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: (
        failure(request) if request.body == [b"3"] else [final(request, *request.body)]
    )
    bodies: list[bytes | Ask] = [b"%d" % number for number in range(6)]

    async def work() -> None:
        async with client_of(broker) as client:
            with pytest.raises(HandlerError) as caught:
                async for _ in client.map("echo", bodies):
                    pass
            assert caught.value.__notes__ == ["body 3 of map()"]
            bodies[5] = Ask(b"5", key=b"")
            outcomes = [outcome async for outcome in client.map("echo", bodies, errors="return")]
            failed = [(o.index, type(o.error)) for o in outcomes if isinstance(o, CallFailed)]
            assert failed == [(3, HandlerError), (5, LocalProtocolError)]
            assert client._core.outstanding == 0
            assert client._loop is not None
            assert client._loop._slots == 100_000

    run(work())


def test_map_that_is_left_early_gives_up_what_is_in_flight(broker: ScriptedBroker) -> None:
    async def work() -> None:
        async with client_of(broker) as client:
            async with aclosing(client.map("echo", [b"x"] * 100, window=10)) as replies:
                async for _ in replies:
                    break
            assert client._core.outstanding == 0
            assert client._loop is not None
            assert client._loop._slots == 100_000

    run(work())


# --- streams ------------------------------------------------------------------------------------------------


def test_a_stream_yields_partials_and_then_the_final(broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [
        partial(request, 0, b"a"),
        partial(request, 1, b"b"),
        final(request, b"c", partials=2),
    ]

    async def work() -> None:
        async with client_of(broker) as client:
            replies = [reply async for reply in client.stream("echo", b"")]
            assert [(reply.body, reply.is_final) for reply in replies] == [
                (b"a", False),
                (b"b", False),
                (b"c", True),
            ]

    run(work())


def test_a_reader_that_is_too_slow_is_told(broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [partial(request, index, b"x") for index in range(100)]

    async def work() -> None:
        async with client_of(broker, partials_max=10) as client:
            stream = client.stream("echo", b"")
            await anext(stream)
            broker.on_request = lambda request: [final(request, b"x")]
            await client.request("echo", b"")
            with pytest.raises(StreamInterruptedError, match="too slow"):
                async for _ in stream:
                    pass

    run(work())


# --- looking, and the end -----------------------------------------------------------------------------------


def test_services_and_discover_are_asked_of_the_broker(broker: ScriptedBroker) -> None:
    answers = {b"mmi.service": [b"200"], b"mmi.services": [b"200", b'[{"service":"echo","workers":1}]']}
    broker.on_request = lambda request: [final(request, *answers[request.service])]

    async def work() -> None:
        async with client_of(broker) as client:
            assert await client.discover("echo") is True
            assert await client.services() == [{"service": "echo", "workers": 1}]

    run(work())


def test_closing_ends_outstanding_calls_and_is_idempotent(broker: ScriptedBroker) -> None:
    broker.on_request = silent

    async def work() -> None:
        client = client_of(broker)
        asking = asyncio.ensure_future(client.request("echo", b""))
        await until(broker, lambda: len(broker.requests()) == 1)
        await client.close()
        await client.close()
        with pytest.raises(OutcomeUnknownError):
            await asking
        with pytest.raises(ClosedError):
            await client.request("echo", b"")

    run(work())


def test_a_client_belongs_to_one_loop(broker: ScriptedBroker) -> None:
    client = client_of(broker)

    async def ask() -> None:
        await client.request("echo", b"")

    async def ask_and_leave_open() -> None:
        await ask()

    run(ask_and_leave_open())
    with pytest.raises(LocalProtocolError, match="another event loop"):
        run(ask())
    run(client.close())


def test_endpoints_that_cannot_be_used_are_told() -> None:
    async def work(endpoint: str) -> None:
        with pytest.raises(ConfigurationError):
            async with AsyncHAClient([endpoint]):
                pass

    for endpoint in ("nonsense", "tcp://127.0.0.1"):
        run(work(endpoint))
    with pytest.raises(ConfigurationError):
        AsyncHAClient([])
