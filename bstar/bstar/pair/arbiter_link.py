"""A node's connection to its arbiter, and the protocol for an arbiter of another kind.

``Arbiter`` is all that ``BinaryStar`` needs. ``ArbiterLink`` asks the process that ``bstar arbiter`` runs. An
arbiter of another kind, such as a lock on storage that both nodes share, must keep these promises:

- A granted claim belongs to its node for the whole ``ttl_ms``, counted from a moment after the question.
  Within that time no other node's claim for this pair is granted.
- The answer carries the number of the question that it answers. It may come late, out of order or never.
- ``ask`` does not block, because the node's loop calls it. Slow work belongs in a thread; its answer comes
  back through ``reactor.call_threadsafe``.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import zmq

from bstar.errors import RemoteProtocolError
from bstar.net.connections import close_watched
from bstar.net.curve import LinkConnector
from bstar.net.io_threads import keep_apart
from bstar.net.reactor import Reactor
from bstar.net.sockets import receive, receive_event, send, set_up_link
from bstar.security import Security
from bstar.security.connector import FAILURES
from bstar.wire.arbiter import MESSAGE_BYTES_MAX, Answer, Question, decode_answer, encode_question

_log = logging.getLogger("bstar.pair")

# How many questions may wait for a slow network. A question older than a few heartbeats is useless.
_QUESTIONS_MAX = 8
_ANSWERS_MAX = 1_000


class Arbiter(Protocol):
    """The third voter, as one node sees it. The nodes compare ``name``: both must have the same arbiter."""

    name: str

    def open(self, reactor: Reactor, hear: Callable[[Answer], None]) -> None:
        """Begin; call ``hear(answer)`` in the reactor's thread for every answer."""

    def ask(self, question: Question) -> None:
        """Ask now or never: a question is not repeated and does not wait for a connection."""

    def close(self) -> None:
        """Free everything. Idempotent."""


class ArbiterLink:
    """The DEALER to ``bstar arbiter`` at ``endpoint``. It connects, and connects again, by itself.

    ``heartbeat_ms`` and ``timeout_ms`` are the pair's; they say how fast the connection must be found broken.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        *,
        heartbeat_ms: int,
        timeout_ms: int,
        security: Security | None = None,
    ) -> None:
        self._context = context
        self.name = endpoint
        self._endpoint = endpoint
        self._heartbeat_ms = heartbeat_ms
        self._timeout_ms = timeout_ms
        self._security = security
        self._reactor: Reactor | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._is_garbage_reported = False

    def open(self, reactor: Reactor, hear: Callable[[Answer], None]) -> None:
        """Connect. Raises zmq.ZMQError if the endpoint cannot be read."""
        socket = self._context.socket(zmq.DEALER)
        self._socket = socket
        keep_apart(socket, 2)  # the arbiter must answer while the dead peer's name is looked up
        set_up_link(socket, self._heartbeat_ms, self._timeout_ms)
        # A question must not wait for a connection: its answer would come after its claim.
        socket.immediate = True
        socket.sndhwm = _QUESTIONS_MAX
        socket.maxmsgsize = MESSAGE_BYTES_MAX
        self._monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | FAILURES)
        self._monitor.linger = 0
        self._connector = LinkConnector(socket, self._endpoint, self._security, reactor)
        self._connector.connect()

        def on_readable(now: float) -> None:
            for _ in range(_ANSWERS_MAX):
                try:
                    frames = receive(socket)
                except zmq.Again:
                    return
                try:
                    answer = decode_answer(frames)
                except RemoteProtocolError as error:
                    self._tell_of_garbage(error)
                    continue
                hear(answer)

        reactor.add_source(self._monitor, self._on_handshake)
        reactor.add_source(socket, on_readable)
        self._reactor = reactor

    def _on_handshake(self, now: float) -> None:
        assert self._monitor is not None
        while self._monitor.poll(0):
            self._connector.follow(receive_event(self._monitor)[0], now)

    def follow_trust(self) -> None:
        """The list of principals has changed: leave an arbiter that is not in it."""
        if self._socket is not None:
            self._connector.follow_trust()

    def _tell_of_garbage(self, error: RemoteProtocolError) -> None:
        if not self._is_garbage_reported:
            self._is_garbage_reported = True
            _log.error("what answers at %s is no arbiter: %s", self._endpoint, error.text)

    def ask(self, question: Question) -> None:
        """Send it if there is a connection with room, else drop it: the next heartbeat asks again."""
        assert self._socket is not None, "open first"
        with suppress(zmq.Again):
            send(self._socket, encode_question(question))

    def close(self) -> None:
        """Close the socket. Idempotent; before the reactor is closed."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        if self._reactor is not None and self._monitor is not None:
            self._reactor.remove(socket)
            self._reactor.remove(self._monitor)
            self._connector.close()
        close_watched(socket, self._monitor)
