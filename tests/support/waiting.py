"""Waiting for what is expected, with a limit that only a hang reaches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from bstar_testing import Pair, wait_until

# It ends a hang with an assertion; nothing is measured by it.
LIMIT_S = 30.0

Socket = zmq.Socket[bytes]


class Bell:
    """Rung whenever something may have changed; others wait until their question is answered with yes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    @contextmanager
    def ringing(self) -> Iterator[None]:
        """Change something inside; it is rung at the end."""
        with self._condition:
            yield
            self._condition.notify_all()

    def wait_until(self, question: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        with self._condition:
            if not self._condition.wait_for(lambda: bool(question()), limit_s):
                raise AssertionError(f"not within {limit_s:g} s")


def receive(socket: Socket, limit_s: float = LIMIT_S) -> list[bytes]:
    """The next message."""
    if not socket.poll(int(limit_s * 1000)):
        raise AssertionError(f"nothing arrived within {limit_s:g} s")
    return socket.recv_multipart()


def receive_until(
    socket: Socket, is_it: Callable[[list[bytes]], bool], limit_s: float = LIMIT_S
) -> list[bytes]:
    """The first message of which ``is_it`` is true; those before it are dropped."""
    until = time.monotonic() + limit_s
    while True:
        frames = receive(socket, max(0.0, until - time.monotonic()))
        if is_it(frames):
            return frames


def wait_for_store(pair: Pair) -> None:
    """Until one node leads the store."""

    def look() -> bool:
        states = [node.look() for node in pair.nodes]
        return any(state and state.store and state.store.is_leading for state in states)

    wait_until(look, "a node leads the store")
