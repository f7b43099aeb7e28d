"""What a program hands in is looked at: a wrong type is a TypeError, in every method, of workers as well."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import zmq
import zmq.asyncio

from bstar.errors import CallTimeoutError, ConfigurationError, LocalProtocolError
from bstar.fleet import Fleet
from bstar_cli.main import main
from bstar_cli.worker import find_handler
from bstar_client import (
    Ask,
    AsyncFreelance,
    AsyncHAClient,
    AsyncLazyPirateClient,
    AsyncStarClient,
    AsyncWorker,
    CallFailed,
    Freelance,
    HAClient,
    LazyPirateClient,
    LinkSettings,
    ReplyMemory,
    Request,
    StarClient,
    Worker,
    WorkerHooks,
    node_states,
)
from bstar_client.arguments.bodies import to_name
from bstar_client.arguments.checks import check_async_handler, check_handler, to_count, to_seconds, to_timeout
from bstar_client.calls.requests import to_key
from support.scripted import ScriptedBroker

NODE = "tcp://127.0.0.1:5001"
NUMBERS: list[Any] = ["5", b"5", True, None, [5], 5j]
TEXTS: list[Any] = [5, 400_000_000, True, None, 1.5, ["x"], object()]


# --- single values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x", b"x", bytearray(b"x"), memoryview(b"x")])
def test_a_name_and_a_key_are_text_or_octets(value: Any) -> None:
    assert to_name(value) == to_key(value) == b"x"


@pytest.mark.parametrize("value", TEXTS)
def test_a_number_does_not_become_so_many_octets_of_zero(value: Any) -> None:
    with pytest.raises(TypeError, match="a service's name is text or bytes, not "):
        to_name(value)
    if value is not None:
        with pytest.raises(TypeError, match="a key is text or bytes, not "):
            to_key(value)


def test_text_that_has_no_octets_is_refused_as_what_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError, match="UTF-8"):
        to_name("\udc80")


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert to_timeout(Fraction(1, 2)) == 0.5
    assert to_timeout(3) == 3
    with pytest.raises(TypeError):
        to_count(5.0, "credit", 1)


@pytest.mark.parametrize("value", [math.inf, 1e300, 10**300, None])
def test_endless_is_no_limit(value: Any) -> None:
    assert to_timeout(value) is None


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, -math.inf])
def test_a_timeout_of_which_nothing_is_left_ends_at_once(value: Any) -> None:
    with pytest.raises(CallTimeoutError, match=r"timed out at once.*the request was not sent") as caught:
        to_timeout(value)
    assert not caught.value.may_have_executed


def test_a_timeout_that_is_no_number_is_a_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="not nan"):
        to_timeout(math.nan)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400, 3)], ids=["high", "low", "ratio"])
def test_seconds_beyond_every_float_are_a_mistake_that_names_the_argument(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match=r"^timeout is .* a float can hold, or None$"):
        to_timeout(value)
    with pytest.raises(ConfigurationError, match=r"^heartbeat_s is .* a float can hold$"):
        to_seconds(value, "heartbeat_s")


# --- calls --------------------------------------------------------------------------------------------------

# The argument, a value of a wrong type, and what is raised.
CALLS: list[tuple[str, dict[str, Any], type[BaseException]]] = [
    *(("request", {"service": value}, TypeError) for value in TEXTS),
    *(("request", {"key": value}, TypeError) for value in TEXTS if value is not None),
    *(("request", {"body": value}, TypeError) for value in (5, None, "text", {b"a"}, [5], ["x"])),
    *(("request", {"timeout": value}, TypeError) for value in NUMBERS if value is not None),
    *(
        ("request", {name: value}, TypeError)
        for name in ("idempotent", "urgent")
        for value in (1, "no", None)
    ),
    ("request", {"timeout": math.nan}, LocalProtocolError),
    ("request", {"timeout": 0}, CallTimeoutError),
    ("request", {"timeout": -1.5}, CallTimeoutError),
    ("stream", {"service": 5}, TypeError),
    ("stream", {"body": 5}, TypeError),
    ("stream", {"timeout": "5"}, TypeError),
    ("stream", {"timeout": math.nan}, LocalProtocolError),
    ("stream", {"timeout": 0}, CallTimeoutError),
    ("stream", {"idempotent": 1}, TypeError),
    ("stream", {"urgent": 1}, TypeError),
    ("map", {"service": 5}, TypeError),
    *(("map", {"bodies": value}, TypeError) for value in (5, None, b"octets", "text", [5], ["x"], Ask(b""))),
    ("map", {"bodies": [Ask(b"", key=5)]}, TypeError),  # type: ignore[arg-type]
    ("map", {"bodies": [Ask(b"", key=True)]}, TypeError),  # type: ignore[arg-type]
    ("map", {"bodies": [Ask(b"", urgent=1)]}, TypeError),  # type: ignore[arg-type]
    ("map", {"bodies": [Ask(b"", service=5)]}, TypeError),  # type: ignore[arg-type]
    ("map", {"bodies": [Ask(b"", timeout="5")]}, TypeError),  # type: ignore[arg-type]
    ("map", {"bodies": [Ask(b"", timeout=math.nan)]}, LocalProtocolError),
    ("map", {"bodies": [Ask(b"", timeout=0)]}, CallTimeoutError),
    *(("map", {"window": value}, TypeError) for value in ("5", 5.0, True, None)),
    ("map", {"window": 0}, LocalProtocolError),
    ("map", {"ordered": 1}, TypeError),
    ("map", {"idempotent": 1}, TypeError),
    ("map", {"errors": "no"}, LocalProtocolError),
    ("map", {"timeout": True}, TypeError),
    ("map", {"timeout": math.nan}, LocalProtocolError),
    ("map", {"timeout": 0}, CallTimeoutError),
    ("discover", {"service": 5}, TypeError),
    ("discover", {"timeout": True}, TypeError),
    ("discover", {"timeout": 0}, CallTimeoutError),
    ("services", {"timeout": True}, TypeError),
    ("services", {"timeout": 0}, CallTimeoutError),
    ("observe", {"observer": 5}, TypeError),
]
GOOD: dict[str, dict[str, Any]] = {
    "request": {"service": "echo", "body": b"x"},
    "stream": {"service": "echo", "body": b"x"},
    "map": {"service": "echo", "bodies": [b"x"]},
    "discover": {"service": "echo"},
    "services": {},
    "observe": {},
}


def do(client: HAClient, name: str, arguments: dict[str, Any]) -> None:
    result = getattr(client, name)(**arguments)
    if name in ("stream", "map"):
        list(result)


async def async_do(client: AsyncHAClient, name: str, arguments: dict[str, Any]) -> None:
    result = getattr(client, name)(**arguments)
    if name in ("stream", "map"):
        async for _ in result:
            pass
    elif isinstance(result, Awaitable):
        await result


@pytest.mark.loopback
def test_wrong_arguments_of_calls_are_told_and_send_nothing_in_both_clients() -> None:
    with ScriptedBroker() as broker:
        with HAClient(broker.endpoint) as client:
            for name, wrong, error in CALLS:
                with pytest.raises(error):
                    do(client, name, GOOD[name] | wrong)

        async def work() -> None:
            async with AsyncHAClient(broker.endpoint) as client:
                for name, wrong, error in CALLS:
                    with pytest.raises(error):
                        await async_do(client, name, GOOD[name] | wrong)
                assert client._core.outstanding == 0
                assert client._loop is not None
                assert client._loop._slots == 100_000

        asyncio.run(work())
        assert broker.requests() == []


@pytest.mark.loopback
def test_a_timeout_that_is_over_fails_its_own_body_of_a_map() -> None:
    asks: list[bytes | Ask] = [b"a", Ask(b"b", timeout=0), Ask(b"c", timeout=5)]
    with ScriptedBroker() as broker, HAClient(broker.endpoint) as client:
        outcomes = list(client.map("echo", asks, errors="return"))
        assert [type(outcome).__name__ for outcome in outcomes] == ["Reply", "CallFailed", "Reply"]
        failed = outcomes[1]
        assert isinstance(failed, CallFailed)
        assert isinstance(failed.error, CallTimeoutError)

        async def work() -> None:
            async with AsyncHAClient(broker.endpoint) as client:
                told = [outcome async for outcome in client.map("echo", asks, errors="return")]
                assert [type(outcome).__name__ for outcome in told] == ["Reply", "CallFailed", "Reply"]

        asyncio.run(work())


# --- what is constructed ------------------------------------------------------------------------------------

SHARED: list[tuple[dict[str, Any], type[BaseException]]] = [
    *(({"endpoints": value}, TypeError) for value in (5, None, b"tcp://x:1", [5], [[5]], {"a": 5}, [None])),
    ({"endpoints": {5: [NODE]}}, TypeError),
    ({"endpoints": ""}, ConfigurationError),
    ({"endpoints": " , "}, ConfigurationError),
    *(({"endpoints": f"tcp://127.0.0.1:{port}"}, ConfigurationError) for port in (0, 65_536, 99_999, "x")),
    ({"endpoints": [NODE, "here"]}, ConfigurationError),
    ({"pins": 5}, TypeError),
    ({"pins": {"a": 5}}, TypeError),
    ({"pins": {5: "a"}}, TypeError),
    ({"dialect": "mdp03"}, ConfigurationError),
    ({"dialect": 5}, ConfigurationError),
    ({"link": 5}, TypeError),
    ({"link": LinkSettings}, TypeError),
    ({"context": 5}, TypeError),
    ({"context": zmq.asyncio.Context}, TypeError),
    ({"journal": 5}, TypeError),
]
CLIENTS: list[tuple[dict[str, Any], type[BaseException]]] = [
    *(({"timeout": value}, TypeError) for value in NUMBERS if value is not None),
    *(({"timeout": value}, ConfigurationError) for value in (0, -1, math.nan, -math.inf)),
    ({"on_event": 5}, TypeError),
    *(
        ({name: value}, TypeError)
        for name in ("outstanding_max", "partials_max")
        for value in (True, "5", 1.0)
    ),
    *(({name: 0}, ConfigurationError) for name in ("outstanding_max", "partials_max")),
    *(
        ({name: value}, error)
        for name in ("ping_interval_s", "silence_limit_s", "attempt_timeout_s", "settle_delay_s")
        for value, error in (
            (True, TypeError),
            ("5", TypeError),
            (-1, ConfigurationError),
            (math.nan, ConfigurationError),
        )
    ),
]
WORKERS: list[tuple[dict[str, Any], type[BaseException]]] = [
    *(({"service": value}, TypeError) for value in TEXTS),
    ({"service": ""}, LocalProtocolError),
    *(({"credit": value}, TypeError) for value in (True, "5", 5.0)),
    *(({"credit": value}, ConfigurationError) for value in (0, -1, 10**9)),
    *(
        ({name: value}, error)
        for name in ("handler_timeout_s", "drain_timeout_s", "backoff_min_s", "backoff_max_s", "heartbeat_s")
        for value, error in (
            (True, TypeError),
            ("5", TypeError),
            (-1, ConfigurationError),
            (math.nan, ConfigurationError),
        )
    ),
    ({"backoff_min_s": 2, "backoff_max_s": 1}, ConfigurationError),
    ({"stuck_handlers_max": True}, TypeError),
    ({"stuck_handlers_max": 0}, ConfigurationError),
    ({"liveness": 1.5}, TypeError),
    ({"hooks": 5}, TypeError),
    ({"hooks": WorkerHooks}, TypeError),
    ({"dedupe": 5}, TypeError),
    ({"dedupe": ReplyMemory}, TypeError),
    ({"handler": 5}, TypeError),
    ({"handler": b"x"}, TypeError),
]


@pytest.mark.parametrize("kind", [HAClient, AsyncHAClient])
@pytest.mark.parametrize(("wrong", "error"), SHARED + CLIENTS)
def test_wrong_settings_of_a_client_are_told(
    kind: Callable[..., object], wrong: dict[str, Any], error: type[BaseException]
) -> None:
    with pytest.raises(error):
        kind(**{"endpoints": NODE} | wrong)


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize(("wrong", "error"), SHARED + WORKERS)
def test_wrong_settings_of_a_worker_are_told(
    kind: Callable[..., object], wrong: dict[str, Any], error: type[BaseException]
) -> None:
    with pytest.raises(error):
        kind(**{"endpoints": NODE, "service": "echo"} | wrong)


@pytest.mark.parametrize(
    ("threads", "error"),
    [(True, TypeError), ("5", TypeError), (0, ConfigurationError), (1_001, ConfigurationError)],
)
def test_a_wrong_number_of_threads_is_told(threads: Any, error: type[BaseException]) -> None:
    with pytest.raises(error, match="threads"):
        Worker(NODE, "echo", threads=threads)


@pytest.mark.parametrize("kind", [HAClient, AsyncHAClient, Worker])
def test_an_unknown_option_is_refused_by_the_name_of_the_class(kind: Callable[..., Any]) -> None:
    """It named the method of a base class, which the program has never seen."""
    options = {"endpoints": NODE} | ({"service": "echo"} if kind is Worker else {})
    with pytest.raises(
        TypeError, match=rf"^{kind.__name__} has no option 'retries'; its options: .*pins, dialect"
    ):
        kind(**options, retries=3)


@pytest.mark.parametrize(
    "kind", [LazyPirateClient, AsyncLazyPirateClient, StarClient, AsyncStarClient, Freelance, AsyncFreelance]
)
def test_a_client_without_a_broker_ignores_no_option(kind: Callable[..., Any]) -> None:
    """A misspelt one was dropped."""
    with pytest.raises(TypeError, match=rf"^{kind.__name__} has no option 'retries'"):
        kind([NODE], retries=3)


def test_a_subclass_with_options_of_its_own_is_made() -> None:
    class Shop(HAClient):
        def __init__(self, **options: Any) -> None:
            self.name = options.pop("name")
            super().__init__(NODE, **options)

    with Shop(name="x", timeout=5) as shop:
        assert shop.name == "x"


def test_credit_beyond_the_threads_says_what_to_write() -> None:
    """It said "credit is 1 to 1000", and credit goes to 65,535."""
    with pytest.raises(ConfigurationError, match=r"for credit 2000 say .* threads=16"):
        Worker(NODE, "echo", credit=2000)
    with pytest.raises(ConfigurationError, match="credit is 1 to 65535, not 65536"):
        Worker(NODE, "echo", credit=65_536)
    Worker(NODE, "echo", credit=2000, threads=16)


def test_threads_that_could_never_work_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"credit=1 never has more .* 4 threads cannot all work"):
        Worker(NODE, "echo", credit=1, threads=4)
    with pytest.raises(ConfigurationError, match="one request at a time: credit and threads must be 1"):
        Worker(NODE, "echo", threads=4, dialect="mdp02")
    Worker(NODE, "echo", credit=4, threads=4)
    Worker(NODE, "echo", threads=1, dialect="mdp02")


@pytest.mark.parametrize("kind", [HAClient, AsyncHAClient, Worker, AsyncWorker])
def test_a_context_of_asyncios_sockets_is_refused(kind: Callable[..., object]) -> None:
    with zmq.asyncio.Context() as context:
        arguments = {"service": "echo"} if kind in (Worker, AsyncWorker) else {}
        with pytest.raises(TypeError, match=r"not a zmq\.asyncio\.Context"):
            kind(NODE, context=context, **arguments)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"high_water_mark": True}, TypeError),
        ({"handshake_ms": 1.5}, TypeError),
        ({"reconnect_min_ms": -1}, ConfigurationError),
        ({"message_bytes_max": 10}, ConfigurationError),
    ],
)
def test_wrong_socket_options_are_told(wrong: dict[str, Any], error: type[BaseException]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        LinkSettings(**wrong)


@pytest.mark.parametrize("timeout", ["5", True, 0, math.nan])
def test_a_wrong_timeout_of_a_look_at_the_nodes_is_told(timeout: Any) -> None:
    with pytest.raises((TypeError, ConfigurationError), match="timeout"):
        node_states(NODE, timeout)


@pytest.mark.parametrize("told", ["nan", "0", "-1"])
def test_the_command_refuses_such_a_timeout_as_wrong_usage(
    told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", "echo", "x", "-e", NODE, "--timeout", told]) == 2
    assert "timeout" in capsys.readouterr().err


# --- endpoints ----------------------------------------------------------------------------------------------


def test_a_text_names_nodes_with_commas_and_pairs_with_semicolons() -> None:
    assert Fleet.of("tcp://a:1, tcp://b:1").endpoints == ("tcp://a:1", "tcp://b:1")
    assert [pair.endpoints for pair in Fleet.of("tcp://a:1,tcp://b:1;tcp://c:1").pairs] == [
        ("tcp://a:1", "tcp://b:1"),
        ("tcp://c:1",),
    ]
    [east, west] = Fleet.of({"east": "tcp://a:1,tcp://b:1", "west": "tcp://c:1"}).pairs
    assert (east.endpoints, west.endpoints) == (("tcp://a:1", "tcp://b:1"), ("tcp://c:1",))


# --- handlers -----------------------------------------------------------------------------------------------


async def coroutine(request: Request) -> bytes:
    return request.body


async def async_generator(request: Request) -> AsyncIterator[bytes]:
    yield request.body


def plain(request: Request) -> bytes:
    return request.body


def generator(request: Request) -> Iterator[bytes]:
    yield request.body


class AsyncCalled:
    async def __call__(self, request: Request) -> bytes:
        return request.body

    async def method(self, request: Request) -> bytes:
        return request.body


class Called:
    def __call__(self, request: Request) -> bytes:
        return request.body

    def parts(self, request: Request) -> Iterator[bytes]:
        yield request.body


def nothing() -> bytes:
    return b""


def two(request: Request, other: object) -> bytes:
    return b""


def two_or_one(request: Request, other: object = None) -> bytes:
    return b""


ASYNC = [
    coroutine,
    async_generator,
    AsyncCalled(),
    AsyncCalled().method,
    functools.partial(coroutine),
    functools.partial(functools.partial(async_generator)),
    functools.partial(AsyncCalled()),
]
PLAIN = [
    plain,
    generator,
    Called(),
    Called().parts,
    functools.partial(plain),
    two_or_one,
    lambda request: b"",
]


@pytest.mark.parametrize("handler", ASYNC)
def test_a_worker_with_threads_refuses_what_is_async_and_names_the_other(handler: Any) -> None:
    for register in (lambda: Worker(NODE, "echo", handler), lambda: Worker(NODE, "echo").handler(handler)):
        with pytest.raises(TypeError, match="AsyncWorker takes it"):
            register()
    check_async_handler(handler)


@pytest.mark.parametrize("handler", [generator, Called().parts, functools.partial(generator)])
def test_an_asyncio_worker_refuses_a_plain_generator_and_names_the_other(handler: Any) -> None:
    worker = AsyncWorker(NODE, "echo")
    for register in (lambda: AsyncWorker(NODE, "echo", handler), lambda: worker.handler(handler)):
        with pytest.raises(TypeError, match="Worker takes it"):
            register()
    check_handler(handler)


@pytest.mark.parametrize("handler", PLAIN)
def test_what_is_plain_is_a_handler(handler: Any) -> None:
    assert Worker(NODE, "echo").handler(handler) is handler


def test_a_plain_function_that_returns_an_awaitable_is_a_handler_for_asyncio() -> None:
    def returns_one(request: Request) -> Awaitable[bytes]:
        return coroutine(request)

    check_async_handler(returns_one)


@pytest.mark.parametrize("handler", [nothing, two, lambda: b""])
def test_a_handler_that_does_not_take_one_argument_is_refused(handler: Any) -> None:
    for kind in (Worker, AsyncWorker):
        with pytest.raises(TypeError, match="gets one argument, the request"):
            kind(NODE, "echo", handler)


def test_a_handler_that_does_not_tell_what_it_takes_is_one() -> None:
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(min)
    check_handler(min)


@pytest.mark.parametrize("name", ["coroutine", "NUMBER", "nothing"])
def test_the_command_refuses_what_is_no_handler_for_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"handler_samples:{name}' cannot be used"):
        find_handler(f"support.handler_samples:{name}")
    assert find_handler("support.handler_samples:plain") is not None
