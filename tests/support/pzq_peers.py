"""Producers, consumers and monitors of PZQ as published ones behave: plain ZeroMQ sockets, no acknowledgement
but the protocol's own.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import zmq

from bstar.security import Security
from bstar.wire import pzq


class _Peer:
    def __init__(
        self, context: zmq.Context[Any], kind: int, endpoints: Sequence[str], security: Security | None = None
    ) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = 0
        if security is not None:
            self.socket.curve_publickey = security.key.public
            self.socket.curve_secretkey = security.key.secret
        for number, endpoint in enumerate(endpoints):
            if security is not None:
                self.socket.curve_serverkey = security.servers[number]
            self.socket.connect(endpoint)

    def receive(self, timeout_s: float) -> list[bytes] | None:
        """The next message, None if none comes in time."""
        if not self.socket.poll(round(timeout_s * 1000)):
            return None
        frames: list[bytes] = self.socket.recv_multipart()
        return frames

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Peer):
    """A DEALER at all nodes, with a list of what nobody has acknowledged (PZQ-P-01).

    Whatever is not ``1``, and ``patience_s`` of silence, is a failure: it sends the message again. ``stored``
    are the bodies that were acknowledged.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoints: Sequence[str],
        patience_s: float = 1.0,
        security: Security | None = None,
    ) -> None:
        super().__init__(context, zmq.DEALER, endpoints, security)
        self.patience_s = patience_s
        self.stored: list[bytes] = []
        self.failures = 0
        self.texts: set[bytes] = set()
        self._numbers = itertools.count(1)
        # By id: the body, and when to send it again; the earliest first.
        self._open: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def send(self, body: bytes) -> None:
        """Send a message for the first time."""
        self._send(b"%d" % next(self._numbers), body)

    def _send(self, message_id: bytes, body: bytes) -> None:
        self._open[message_id] = body, time.monotonic() + self.patience_s
        self._open.move_to_end(message_id)
        self.socket.send_multipart([message_id, b"", body])

    def turn(self, timeout_s: float = 0.05) -> None:
        """Read the answers that are there, and send again what failed."""
        frames = self.receive(timeout_s)
        while frames is not None:
            message_id, status = frames[:2]
            known = self._open.get(message_id)
            if known is not None and status == pzq.STORED:
                self.stored.append(self._open.pop(message_id)[0])
            elif known is not None:
                self.failures += 1
                self.texts.add(frames[-1])
                # At once would be a storm while no node serves.
                self._open[message_id] = known[0], time.monotonic() + 0.02
                self._open.move_to_end(message_id, last=False)
            frames = self.receive(0.0)
        now = time.monotonic()
        for message_id, (body, due) in list(self._open.items()):
            if now >= due:
                self._send(message_id, body)

    def produce(self, bodies: Sequence[bytes], limit_s: float = 60.0) -> None:
        """Send these and wait until all are stored."""
        until = time.monotonic() + limit_s
        for body in bodies:
            self.send(body)
        while self._open:
            assert time.monotonic() < until, (
                f"{len(self._open)} of {len(bodies)} are not stored: {self.texts}"
            )
            self.turn()


class Consumer(_Peer):
    """A ROUTER at all nodes (PZQ-C-01)."""

    def __init__(
        self, context: zmq.Context[Any], endpoints: Sequence[str], security: Security | None = None
    ) -> None:
        super().__init__(context, zmq.ROUTER, endpoints, security)

    def ack(self, message: Sequence[bytes], status: bytes = pzq.DONE) -> None:
        """Return peer id and key unchanged."""
        self.socket.send_multipart([message[0], message[1], status])

    def messages(self, limit_s: float = 30.0) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Messages and their bodies, as long as they come within the limit; frames before "" are skipped."""
        while (frames := self.receive(limit_s)) is not None:
            yield frames, frames[frames.index(b"", 4) + 1 :]

    def consume(self, count: int, limit_s: float = 30.0) -> list[bytes]:
        """Acknowledge messages until ``count`` different ones have come; their first body frames, in order.

        It tells repetitions by their keys (PZQ-C-03).
        """
        found: dict[bytes, bytes] = {}
        for frames, body in self.messages(limit_s):
            found.setdefault(frames[1], body[0])
            self.ack(frames)
            if len(found) == count:
                break
        return list(found.values())


class Monitor(_Peer):
    """A REQ at one node."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, security: Security | None = None) -> None:
        super().__init__(context, zmq.REQ, [endpoint], security)

    def ask(self, command: bytes = pzq.MONITOR) -> bytes:
        """The answer to a command."""
        self.socket.send(command)
        answer = self.receive(30.0)
        assert answer is not None, f"no answer to {command!r}"
        [text] = answer
        return text


@contextmanager
def context() -> Iterator[zmq.Context[Any]]:
    """A context whose sockets do not outlive it."""
    made: zmq.Context[Any] = zmq.Context()
    try:
        yield made
    finally:
        made.destroy(linger=0)
