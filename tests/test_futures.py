"""Calls that are begun and awaited later: concurrent.futures' words with threads, tasks with asyncio."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, as_completed, wait
from typing import Any

import msgspec
import pytest

from bstar_client import (
    AsyncHAClient,
    CallTimeoutError,
    ClosedError,
    HAClient,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    Request,
    Worker,
)
from bstar_testing import Pair
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

# The reply to "held" leaves once this is set.
RELEASED = threading.Event()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def client(pair: Pair) -> Iterator[HAClient]:
    def handle(request: Request) -> bytes:
        if request.body == b"bad":
            raise ValueError("bad")
        if request.body == b"held":
            assert RELEASED.wait(LIMIT_S)
        return request.body

    with Worker(pair.endpoints, "echo", handle, credit=100, threads=2), HAClient(pair.endpoints) as made:
        yield made


def test_many_calls_are_under_way_at_once_and_each_has_its_own_reply(client: HAClient) -> None:
    futures = [client.begin("echo", b"%d" % number) for number in range(500)]
    assert len(list(as_completed(futures, LIMIT_S))) == 500
    assert [future.result().body for future in futures] == [b"%d" % number for number in range(500)]


def test_a_failure_is_raised_by_result_and_told_by_exception(client: HAClient) -> None:
    future = client.begin("echo", b"bad")
    assert isinstance(future.exception(LIMIT_S), HandlerError)
    with pytest.raises(HandlerError, match="ValueError: bad"):
        future.result()


def test_a_future_of_a_typed_reply(client: HAClient) -> None:
    future = client.begin("echo", {"count": 7}, reply=dict[str, int])
    assert future.result(LIMIT_S) == {"count": 7}
    misfit = client.begin("echo", {"count": 7}, reply=int)
    with pytest.raises(HandlerError):
        misfit.result(LIMIT_S)


class Odd(msgspec.Struct):
    count: int

    def __post_init__(self) -> None:
        raise KeyError(self.count)


def test_what_a_type_raises_is_the_error_of_its_future_alone(client: HAClient) -> None:
    """It ended the client, and the future had no end."""
    future = client.begin("echo", {"count": 7}, reply=Odd)
    with pytest.raises(KeyError, match="7"):
        future.result(LIMIT_S)
    unknown = client.begin("echo", {"count": 7}, reply=threading.Thread)
    with pytest.raises(TypeError, match="Thread"):
        unknown.result(LIMIT_S)
    assert client.request("echo", b"x").body == b"x"


def test_a_call_has_its_own_deadline_and_result_another(client: HAClient) -> None:
    future = client.begin("nobody", b"", timeout=1.0)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    with pytest.raises(CallTimeoutError, match="no worker offers"):
        future.result(LIMIT_S)


def test_callbacks_and_other_waiters_see_the_end(client: HAClient) -> None:
    called: queue.Queue[bytes] = queue.Queue()
    future = client.begin("echo", b"x")
    future.add_done_callback(lambda done: called.put(done.result().body))
    assert wait([future], LIMIT_S, FIRST_COMPLETED).done == {future}
    assert called.get(timeout=LIMIT_S) == b"x"


def in_callback(client: HAClient, act: Callable[[], Any]) -> Any:
    """What ``act`` returns, or raises, in a callback of a future."""
    ended: Future[Any] = Future()

    def call(_: object) -> None:
        try:
            ended.set_result(act())
        except Exception as error:  # noqa: BLE001 - the test raises it
            ended.set_exception(error)

    RELEASED.clear()
    client.begin("echo", b"held").add_done_callback(call)
    RELEASED.set()  # one that has ended already would be called here, outside of a turn
    return ended.result(LIMIT_S)


def test_a_callback_may_begin_the_next_call(client: HAClient) -> None:
    """It ended the client: the callback runs in the middle of a turn, and began another one."""
    for number in range(20):
        following = in_callback(client, lambda: client.begin("echo", b"next"))
        assert following.result(LIMIT_S).body == b"next", number
    assert [each.body for each in in_callback(client, lambda: client.stream("echo", b"y"))] == [b"y"]


def test_a_callback_that_would_wait_for_itself_is_refused(client: HAClient) -> None:
    unended = client.begin("nobody", b"", timeout=None)
    for wait_here in (lambda: client.request("echo", b""), unended.result, unended.exception):
        with pytest.raises(LocalProtocolError, match="cannot wait"):
            in_callback(client, wait_here)
    assert unended.cancel()


def test_a_callback_may_close_the_client(
    pair: Pair, client: HAClient, caplog: pytest.LogCaptureFixture
) -> None:
    with HAClient(pair.endpoints) as other:
        in_callback(other, other.close)
    assert "did not end" not in caplog.text


def slow_handler() -> tuple[threading.Event, threading.Event, Callable[[Request], bytes]]:
    """A handler that works until its request is cancelled, and the events of its begin and of that."""
    begun, ended = threading.Event(), threading.Event()

    def handle(request: Request) -> bytes:
        request.on_cancel(ended.set)
        begun.set()
        ended.wait(LIMIT_S)
        return b""

    return begun, ended, handle


def test_cancel_ends_the_call_and_its_handler(pair: Pair) -> None:
    begun, ended, handle = slow_handler()
    with Worker(pair.endpoints, "slow", handle), HAClient(pair.endpoints) as client:
        future = client.begin("slow", b"")
        assert begun.wait(LIMIT_S)
        assert future.cancel()
        assert future.cancel(), "twice is once"
        assert ended.wait(LIMIT_S)
        with pytest.raises(CancelledError):
            future.result()
        assert wait([future], LIMIT_S).not_done == set()


def test_a_call_that_is_cancelled_just_before_its_client_is_closed_ends_its_handler(pair: Pair) -> None:
    begun, ended, handle = slow_handler()
    with Worker(pair.endpoints, "slow", handle):
        for _ in range(5):
            begun.clear()
            ended.clear()
            with HAClient(pair.endpoints) as client:
                future = client.begin("slow", b"")
                assert begun.wait(LIMIT_S)
                assert future.cancel()
            assert ended.wait(LIMIT_S)


def test_an_ended_call_cannot_be_cancelled(client: HAClient) -> None:
    future = client.begin("echo", b"x")
    future.result(LIMIT_S)
    assert not future.cancel()


def test_threads_that_wait_for_other_replies_do_not_starve_a_future(client: HAClient) -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            client.request("echo", b"y")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(100):
            assert client.begin("echo", b"%d" % number).result(LIMIT_S).body == b"%d" % number
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_closing_the_client_ends_its_futures(pair: Pair) -> None:
    begun, ended, handle = slow_handler()
    with Worker(pair.endpoints, "slow", handle):
        client = HAClient(pair.endpoints)
        executed = client.begin("slow", b"", timeout=None)
        assert begun.wait(LIMIT_S)
        client.close()
        assert isinstance(executed.exception(LIMIT_S), OutcomeUnknownError)
        assert ended.wait(LIMIT_S)  # its handler is cancelled
    with pytest.raises(ClosedError):
        client.begin("slow", b"")


def test_closing_the_client_ends_futures_that_no_node_has() -> None:
    client = HAClient(["tcp://127.0.0.1:1", "tcp://127.0.0.2:1"])
    future = client.begin("echo", b"", timeout=None)
    client.close()
    assert isinstance(future.exception(LIMIT_S), ClosedError)


def test_result_says_what_is_at_the_endpoints() -> None:
    with HAClient(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]) as client:
        future = client.begin("echo", b"", timeout=0.3)
        with pytest.raises(NoActiveNodeError, match="refused"):
            future.result(LIMIT_S)


async def test_a_future_is_awaited_in_an_event_loop(client: HAClient) -> None:
    assert (await asyncio.wrap_future(client.begin("echo", b"x"))).body == b"x"


async def test_with_asyncio_begin_makes_a_task(pair: Pair, client: HAClient) -> None:
    async with AsyncHAClient(pair.endpoints) as asking:
        first, second = asking.begin("echo", b"1"), asking.begin("echo", b"2")
        assert [(await each).body for each in (first, second)] == [b"1", b"2"]
