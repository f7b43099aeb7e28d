"""The clients without a broker against scripted servers: they are late, answer twice, die and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self

import pytest
import zmq

from bstar.errors import (
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    LocalProtocolError,
    NoActiveNodeError,
)
from bstar_client import (
    Ask,
    AsyncFreelance,
    AsyncLazyPirateClient,
    AsyncStarClient,
    CallFailed,
    Connected,
    Event,
    Freelance,
    LazyPirateClient,
    StarClient,
)
from bstar_testing import LoopbackHost
from support.rawpeers import ZmtpListener
from support.waiting import LIMIT_S, receive

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement

Frames = list[bytes]
# What a server sends for a message: (routing id, frames) of each.
Answers = Callable[[bytes, Frames], list[tuple[bytes, Frames]]]


class Server:
    """A ROUTER in a thread that answers as it is told. It remembers what it was sent, PINGs aside."""

    def __init__(self, endpoint: str, answers: Answers, *, identity: str | None = None) -> None:
        self.endpoint = endpoint
        self.seen: list[Frames] = []
        self._answers = answers
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        if identity is not None:
            self._socket.routing_id = identity.encode()
        self._socket.bind(endpoint)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(20):
                sender, *frames = self._socket.recv_multipart()
                if frames != [b"PING"]:
                    self.seen.append(frames)
                for to, answer in self._answers(sender, frames):
                    self._socket.send_multipart([to, *answer])
        self._socket.close()
        self._context.term()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def echo(sender: bytes, frames: Frames) -> list[tuple[bytes, Frames]]:
    """Answer with the same frames, and PING with PONG."""
    return [(sender, [b"PONG"] if frames == [b"PING"] else frames)]


def mute(sender: bytes, frames: Frames) -> list[tuple[bytes, Frames]]:
    """Answer PINGs only."""
    return echo(sender, frames) if frames == [b"PING"] else []


@pytest.fixture
def places() -> Iterator[list[str]]:
    """Free endpoints, held for the test."""
    with LoopbackHost() as host:
        yield [f"tcp://127.0.0.1:{port}" for port in host.ports(3)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


# --- Lazy Pirate and model 1 --------------------------------------------------------------------------------


@requirement("FL1-C-01")
def test_a_plain_rep_is_asked_and_frames_stay_apart(places: list[str], pool: ThreadPoolExecutor) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = context.socket(zmq.REP)
    server.bind(places[0])
    try:
        for client in (
            LazyPirateClient([places[0]], timeout=LIMIT_S),
            Freelance(places, model=1, timeout=LIMIT_S),
        ):
            with client:
                waiting = pool.submit(client.request, [b"a", b"", b"b"])
                assert receive(server) == [b"a", b"", b"b"]
                server.send_multipart([b"c", b""])
                assert waiting.result(LIMIT_S).frames == (b"c", b"")
                assert waiting.result().endpoint == places[0]
    finally:
        server.close(0)
        context.term()


@requirement("LPP-C-01")
@requirement("LPP-C-05")
def test_without_a_server_the_call_returns_and_nothing_is_delivered_later(places: list[str]) -> None:
    """LPP-C-01, LPP-C-05."""
    with LazyPirateClient(places[0], timeout=0.1) as client:
        with pytest.raises(NoActiveNodeError) as caught:
            client.request(b"never")
        assert not caught.value.may_have_executed
        with Server(places[0], echo) as server:
            assert client.request(b"now", timeout=LIMIT_S).body == b"now"
            assert server.seen == [[b"", b"now"]]


def test_a_server_that_is_restarted_is_found_again(places: list[str]) -> None:
    with LazyPirateClient(places[0], timeout=LIMIT_S) as client:
        for number in range(3):
            with Server(places[0], echo):
                assert client.request(b"%d" % number).body == b"%d" % number


# --- model 3 ------------------------------------------------------------------------------------------------


@requirement("FLP-G-01")
@requirement("FLP-C-01")
def test_a_client_of_model_3_is_a_router_without_an_identity() -> None:
    """FLP-G-01, FLP-C-01: the server writes every byte itself."""
    with ZmtpListener() as listener, Freelance([listener.endpoint], timeout=0.1) as client:
        server = listener.accept()
        assert server.properties[b"Socket-Type"] == b"ROUTER"
        assert server.properties.get(b"Identity", b"") == b""
        with pytest.raises(NoActiveNodeError):
            client.request(b"x")


def test_a_server_with_another_identity_cannot_be_asked_and_the_error_says_so(
    places: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    is_connected = threading.Event()

    def note(event: Event) -> None:
        if isinstance(event, Connected):
            is_connected.set()

    with (
        Server(places[0], echo, identity="tcp://localhost:1") as server,
        Freelance([places[0]], timeout=2.0, on_event=note) as client,
    ):
        assert is_connected.wait(LIMIT_S)
        with pytest.raises(NoActiveNodeError, match="does not answer PING"):
            client.request(b"x")
        assert server.seen == []
    assert "the server there has another identity" in caplog.text


def test_a_request_moves_on_when_its_server_dies_and_the_next_one_serves(
    places: list[str], pool: ThreadPoolExecutor
) -> None:
    got = threading.Event()

    def take(sender: bytes, frames: Frames) -> list[tuple[bytes, Frames]]:
        if frames != [b"PING"]:
            got.set()
        return mute(sender, frames)

    with Server(places[0], take, identity=places[0]) as first, Freelance(places, timeout=LIMIT_S) as client:
        waiting = pool.submit(client.request, b"x")
        assert got.wait(LIMIT_S)
        with Server(places[1], echo, identity=places[1]):
            first.close()
            reply = waiting.result(LIMIT_S)
            assert (reply.endpoint, reply.attempts) == (places[1], 2)
        with Server(places[1], echo, identity=places[1]):  # it comes back on the same endpoint
            assert client.request(b"y").endpoint == places[1]


# --- all of them --------------------------------------------------------------------------------------------


@contextmanager
def servers(places: list[str]) -> Iterator[None]:
    with Server(places[0], echo, identity=places[0]), Server(places[1], echo, identity=places[1]):
        yield


def test_the_twins_for_asyncio_say_the_same(places: list[str]) -> None:
    async def ask() -> None:
        clients = [
            AsyncLazyPirateClient(places[:2], timeout=LIMIT_S),
            AsyncStarClient(places[:2], timeout=LIMIT_S),
            *(AsyncFreelance(places[:2], model=model, timeout=LIMIT_S) for model in (1, 2, 3)),
        ]
        for client in clients:
            async with client:
                assert (await client.request(b"one")).body == b"one"
                replies = [reply.body async for reply in client.map([b"a", b"b"])]
                assert replies == [b"a", b"b"]
                both = await asyncio.gather(client.request(b"c"), client.request(b"d"))
                assert [reply.body for reply in both] == [b"c", b"d"]
            with pytest.raises(ClosedError):
                await client.request(b"x")

    with servers(places):
        asyncio.run(ask())


def test_threads_share_a_client(places: list[str], pool: ThreadPoolExecutor) -> None:
    bodies = [b"%d" % number for number in range(200)]
    with servers(places):
        for client in (
            LazyPirateClient(places, timeout=LIMIT_S),
            *(Freelance(places, model=model, timeout=LIMIT_S) for model in (2, 3)),
        ):
            with client:
                assert [reply.body for reply in pool.map(client.request, bodies)] == bodies


def test_a_failure_in_a_map_is_returned_with_its_place(places: list[str]) -> None:
    def pick(sender: bytes, frames: Frames) -> list[tuple[bytes, Frames]]:
        return [] if frames[-1] == b"1" else [(sender, frames)]

    asks: list[bytes | Ask] = [b"0", Ask(b"1", timeout=2.0), b"2"]
    with Server(places[0], pick), LazyPirateClient(places[0], timeout=LIMIT_S) as client:
        # Now there is a connection.
        client.request(b"0")
        outcomes = list(client.map(asks, errors="return"))
    assert [type(outcome).__name__ for outcome in outcomes] == ["Reply", "CallFailed", "Reply"]
    failed = outcomes[1]
    assert isinstance(failed, CallFailed)
    assert isinstance(failed.error, CallTimeoutError)


def test_what_cannot_work_is_refused_at_once(places: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="model is 1, 2 or 3"):
        Freelance(places, model=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no server would live"):
        Freelance(places, ping_interval_s=3.0, server_expiry_s=2.0)
    with pytest.raises(ConfigurationError, match="bounds each attempt"):
        Freelance(places, model=1, timeout=None)
    with pytest.raises(ConfigurationError, match="attempts is 1 or more"):
        LazyPirateClient(places, attempts=0)
    with pytest.raises(ConfigurationError, match="cannot connect to"):
        StarClient(["http://here"])
    with LazyPirateClient(places) as client, pytest.raises(LocalProtocolError, match="knows no keys"):
        list(client.map([Ask(b"x", key="k")]))
    client.close()
    with pytest.raises(ClosedError):
        client.request(b"x")
