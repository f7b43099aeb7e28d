"""A broker that does as it is told, on a real ROUTER socket: the other side of what is under test.

It runs in a thread of its own. In the native dialect it answers PING and READY by its ``status`` and
requests by ``on_request``; plain MDP goes to ``on_frames``. Whatever arrives is kept, and ``wait_for``
waits until something did.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import zmq

from bstar.errors import RemoteProtocolError
from bstar.wire import decode
from bstar.wire.messages import ALL_FEATURES, READS_BATCHES, FromPeer, NodeStatus, Ping, Ready, Request
from bstar.wire.native_broker import CODEC

WAIT_S = 30.0
ACTIVE, PASSIVE, SILENT = 3, 4, 0

Answer = Callable[[Request], list[list[bytes]]]


def status(
    state: int = ACTIVE, *, epoch: int = 1, peer: int = SILENT, retry_after_ms: int = 0, timeout_ms: int = 400
) -> NodeStatus:
    """A node's status; ``timeout_ms`` is its pair's failover timeout. It knows no batches."""
    features = ALL_FEATURES & ~READS_BATCHES
    return NodeStatus(state, epoch, peer, 0, retry_after_ms, timeout_ms // 4, timeout_ms, features)


def final(request: Request, *body: bytes, partials: int = 0, epoch: int = 1) -> list[bytes]:
    """A FINAL for the request."""
    return CODEC.final(request, b"", epoch, partials, list(body), b"")


def partial(request: Request, index: int, *body: bytes) -> list[bytes]:
    """A PARTIAL for the request."""
    return CODEC.partial(request, b"", 1, index, list(body), b"")


def echo(request: Request) -> list[list[bytes]]:
    """Answer a request with its own body."""
    return [final(request, *request.body)]


class ScriptedBroker:
    """One imaginary node. ``with ScriptedBroker() as broker: HAClient(broker.endpoint)``."""

    def __init__(self, told: NodeStatus | None = None, *, on_request: Answer = echo) -> None:
        self.status = told or status()
        self.on_request = on_request
        self.on_frames: Callable[[list[bytes]], list[list[bytes]]] | None = None
        # A passive node becomes active when a request reaches it.
        self.is_promoted_by_votes = False
        # Heartbeat interval and expiry told to workers. It sends no heartbeats itself: a short expiry ends
        # their sessions.
        self.welcome_ms = (100, 60_000)
        self.messages: list[FromPeer] = []
        self.frames: list[list[bytes]] = []
        self.is_paused = False
        self._outbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._port = 0
        self.open()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Listen, on the same port as before."""
        ready = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(WAIT_S)

    def close(self) -> None:
        """Break every connection. Idempotent."""
        self._is_stopping = True
        if self._thread is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, frames: list[bytes]) -> None:
        """Send from the broker's thread."""
        self._outbox.put(frames)

    def received(self, kind: type[FromPeer]) -> list[FromPeer]:
        """The messages of this kind so far."""
        return [message for message in self.messages if isinstance(message, kind)]

    def requests(self) -> list[Request]:
        """The requests for services so far."""
        return [message for message in self.messages if isinstance(message, Request)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at whenever something has arrived."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), self.messages[-20:]

    def _run(self, ready: threading.Event) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.set_hwm(100_000)
        self._bind(socket)
        ready.set()
        try:
            while not self._is_stopping:
                while not self._outbox.empty():
                    socket.send_multipart(self._outbox.get())
                if socket.poll(5) and not self.is_paused:
                    self._take(socket, socket.recv_multipart())
        finally:
            socket.close(0)
            context.term()

    def _bind(self, socket: zmq.Socket[bytes]) -> None:
        until = time.monotonic() + WAIT_S
        while True:
            try:
                socket.bind(f"tcp://127.0.0.1:{self._port or '*'}")
            except zmq.ZMQError:
                assert time.monotonic() < until
                continue
            self._port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
            return

    def _take(self, socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
        answers: list[list[bytes]] = []
        try:
            message = decode(list(frames))
        except RemoteProtocolError:
            message = None
        with self._changed:
            self.frames.append(frames)
            if message is not None:
                self.messages.append(message)
            if self.on_frames is not None:
                answers = self.on_frames(frames)
            elif message is not None:
                answers = self._answer(message)
            self._changed.notify_all()
        for answer in answers:
            socket.send_multipart(answer)

    def _answer(self, message: FromPeer) -> list[list[bytes]]:
        codec = CODEC
        if isinstance(message, Ping):
            return [codec.pong(message.sender, message.identity, self.status)]
        if isinstance(message, Ready):
            return [codec.welcome(message.sender, (), self.status, *self.welcome_ms)]
        if isinstance(message, Request):
            if self.status.state != ACTIVE and self.is_promoted_by_votes:
                self.status = status(epoch=self.status.epoch + 1)
            if self.status.state != ACTIVE:
                return [codec.not_active(message, self.status, False)]
            return self.on_request(message)
        return []
