"""Pirate workers, a Majordomo's and a Lazy Pirate on real sockets, each as the published ones are built."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import zmq

from bstar.security import Security
from bstar.wire.pirate import READY
from support.pirates import ParanoidWorker
from support.waiting import LIMIT_S, Socket

Work = Callable[[list[bytes]], list[bytes]]
_POLL_MS = 20


def echo(body: list[bytes]) -> list[bytes]:
    return body


def secure(socket: Socket, security: Security | None, number: int = 0) -> None:
    """Give it the key, and the server's key with this number, before it connects."""
    if security is not None:
        socket.curve_publickey, socket.curve_secretkey = security.key.public, security.key.secret
        socket.curve_serverkey = security.servers[number % len(security.servers)]


class _Threaded:
    """Runs until the block ends. Each has a context of its own, so nothing outlives it.

    With ``security`` it connects to the node that has the first of the servers' keys.
    """

    def __init__(self, endpoint: str, work: Work = echo, security: Security | None = None) -> None:
        self._endpoint = endpoint
        self._security = security
        self._work = work
        self._stop = threading.Event()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.linger = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close its sockets. Idempotent."""
        self._stop.set()
        self._thread.join()
        self._context.term()

    def _run(self) -> None:
        raise NotImplementedError


class SimpleWorkerThread(_Threaded):
    """Simple Pirate: a REQ socket that says READY once."""

    def _run(self) -> None:
        socket = self._context.socket(zmq.REQ)
        secure(socket, self._security)
        with socket:
            socket.connect(self._endpoint)
            socket.send(READY)
            while not self._stop.is_set():
                if socket.poll(_POLL_MS):
                    address, empty, *body = socket.recv_multipart()
                    socket.send_multipart([address, empty, *self._work(body)])


class ParanoidWorkerThread(_Threaded):
    """Paranoid Pirate: a DEALER socket for each conversation."""

    def _run(self) -> None:
        worker = ParanoidWorker(time.monotonic(), self._work)
        socket, number = self._connect(), 1
        while not self._stop.is_set():
            if worker.sockets > number:
                socket.close(0)
                socket, number = self._connect(), worker.sockets
            for frames in worker.out:
                socket.send_multipart(frames)
            worker.out.clear()
            if socket.poll(_POLL_MS):
                worker.hear(socket.recv_multipart(), time.monotonic())
            worker.tick(time.monotonic())
        socket.close(0)

    def _connect(self) -> Socket:
        socket = self._context.socket(zmq.DEALER)
        secure(socket, self._security)
        socket.connect(self._endpoint)
        return socket


class MajordomoWorkerThread(_Threaded):
    """Plain MDP/0.1: a DEALER socket, a heartbeat each half second, READY again after a DISCONNECT."""

    def __init__(self, endpoint: str, work: Work, service: bytes) -> None:
        super().__init__(endpoint, work)
        self._service = service

    def _run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        with socket:
            socket.connect(self._endpoint)
            ready = [b"", b"MDPW01", b"\x01", self._service]
            socket.send_multipart(ready)
            beat_at = time.monotonic()
            while not self._stop.is_set():
                if socket.poll(_POLL_MS):
                    _, _, command, *rest = socket.recv_multipart()
                    if command == b"\x02":
                        client, empty, *body = rest
                        reply = [b"", b"MDPW01", b"\x03", client, empty, *self._work(body)]
                        socket.send_multipart(reply)
                    elif command == b"\x05":
                        socket.send_multipart(ready)
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + 0.5
                    socket.send_multipart([b"", b"MDPW01", b"\x04"])


class LazyPirate:
    """A REQ client that asks the endpoints in turn, on a new socket after each timeout.

    ``security`` has the servers' keys in the order of the endpoints.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 2.5,
        limit_s: float = LIMIT_S,
        security: Security | None = None,
    ) -> None:
        self._security = security
        self._limit_s = limit_s
        self._context: zmq.Context[Socket] = zmq.Context()
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._at = 0
        self._socket: Socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close(0)
        self._context.term()

    def ask(self, *body: bytes, is_correlated: bool = False) -> list[bytes]:
        """Ask until there is a reply; AssertionError after a limit that only a hang reaches."""
        until = time.monotonic() + self._limit_s
        while time.monotonic() < until:
            if self._socket is None:
                self._socket = self._context.socket(zmq.REQ)
                self._socket.set(zmq.REQ_CORRELATE, is_correlated)
                at = self._at % len(self._endpoints)
                secure(self._socket, self._security, at)
                self._socket.connect(self._endpoints[at])
            self._socket.send_multipart(body)
            if self._socket.poll(int(self._timeout_s * 1_000)):
                return self._socket.recv_multipart()
            self._socket.close(0)
            self._socket = None
            self._at += 1
        raise AssertionError(f"no reply to {body!r} within {self._limit_s:g} s")
