"""A Binary Star server of the published kind, in a thread: the guide's table, one frame, once a second.

It reads a state message frame by frame. Where a second frame follows it ends, as published servers in C++,
Java and Python do: they read it as a state of its own, or leave it unread before the next message.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import zmq

from bstar.star import Role
from support.star_nodes import Places
from support.waiting import Bell, Socket

PRIMARY, BACKUP, ACTIVE, PASSIVE = b"1", b"2", b"3", b"4"
HEARTBEAT_S = 1.0
EXPIRY_S = 2 * HEARTBEAT_S

# What the peer says, in each state: the next state, or why the server ends.
_TABLE: dict[tuple[bytes, bytes], bytes | str] = {
    (PRIMARY, BACKUP): ACTIVE,
    (PRIMARY, ACTIVE): PASSIVE,
    (BACKUP, ACTIVE): PASSIVE,
    (ACTIVE, ACTIVE): "both are active",
    (PASSIVE, PRIMARY): ACTIVE,
    (PASSIVE, BACKUP): ACTIVE,
    (PASSIVE, PASSIVE): "both are passive",
}


class PublishedServer:
    """It echoes what clients ask while it is active. ``ended_by`` says why it ended by itself."""

    def __init__(self, context: zmq.Context[Socket], places: Places, role: Role) -> None:
        self.bell = Bell()
        self.state = PRIMARY if role is Role.PRIMARY else BACKUP
        self.heard: list[bytes] = []
        self.ended_by: str | None = None
        self._stop = threading.Event()
        self._expires_at = time.monotonic() + EXPIRY_S
        self._publisher, self._subscriber, self._clients = sockets = (
            context.socket(zmq.PUB),
            context.socket(zmq.SUB),
            context.socket(zmq.ROUTER),
        )
        for socket in sockets:
            socket.linger = 0
        self._publisher.bind(places.state[role])
        self._subscriber.subscribe(b"")
        self._subscriber.connect(places.state[role.peer])
        self._clients.bind(places.clients[role])
        self._thread = threading.Thread(target=self._run, name=f"published-{role.value}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End without a word. Idempotent."""
        self._stop.set()
        self._thread.join()

    def wait_for(self, state: bytes) -> None:
        self.bell.wait_until(lambda: self.state == state or self.ended_by)
        assert self.ended_by is None

    def wait_for_words(self, count: int) -> None:
        """Until it has read this many more messages of its peer."""
        before = len(self.heard)
        self.bell.wait_until(lambda: len(self.heard) >= before + count or self.ended_by)
        assert self.ended_by is None

    def _run(self) -> None:
        says_at = time.monotonic()
        with self._publisher, self._subscriber, self._clients:
            while not (self._stop.is_set() or self.ended_by):
                if time.monotonic() >= says_at:
                    says_at += HEARTBEAT_S
                    self._publisher.send(self.state)
                if self._subscriber.poll(10):
                    with self.bell.ringing():
                        self._hear(self._subscriber.recv())
                if self._clients.poll(0):
                    self._serve(self._clients.recv_multipart())

    def _hear(self, word: bytes) -> None:
        self.heard.append(word)
        if self._subscriber.rcvmore:
            self.ended_by = "a second frame"
            return
        outcome = _TABLE.get((self.state, word), self.state)
        if isinstance(outcome, str):
            self.ended_by = outcome
        else:
            self.state = outcome
        self._expires_at = time.monotonic() + EXPIRY_S

    def _serve(self, frames: list[bytes]) -> None:
        if self.state in (PRIMARY, PASSIVE) and time.monotonic() >= self._expires_at:
            with self.bell.ringing():
                self.state = ACTIVE
        if self.state == ACTIVE:
            self._clients.send_multipart(frames)
