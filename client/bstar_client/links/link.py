"""A link: a DEALER for one endpoint, with a monitor that reports when its connection is up or broken.

``ZMQ_IMMEDIATE`` makes the socket refuse messages while there is no connection. Without it, messages wait for
a connection that may never come. With it, libzmq drops what the socket has not read when the connection
breaks. If the socket refuses a message although the connection is up, the message
waits in ``backlog`` until there is room. This keeps the order.

Each connection has an unguessable routing id of its own. With keys a ROUTER ignores a connection
with the routing id of one that it has not found dead, and libzmq connects again with the same one. So a link
connects again by itself after its connection has broken (docs/adr/0021-principals.md).
"""

import logging
import os
import time
from collections import deque

import zmq

from bstar.net.io_threads import keep_apart
from bstar.net.sockets import is_readable, receive, receive_event, send
from bstar.security.connector import Connector
from bstar_client.arguments.settings import LinkSettings

_log = logging.getLogger("bstar_client")

# After this many messages of a burst, ask the socket whether it has more.
_ASKS_MAX = 5

# More than a socket holds, and a bound.
_LAST_WORDS_MAX = 1_000_000

_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Link:
    """A DEALER and its monitor. Only the thread that owns it may call it.

    ``is_refused``: the last attempt to connect was refused, because no process listened. A broken connection
    or a slow handshake does not count.
    ``is_reached``: somebody accepted the connection; its handshake may be under way.
    ``is_untrusted``: the last handshake failed, as if one side does not accept the other's key.
    ``last_words``: the messages that ``changes`` found unread when the connection broke.
    """

    _is_immediate = True

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        settings: LinkSettings,
        index: int,
        notes: "Notes",
    ) -> None:
        self._context = context
        self.endpoint = endpoint
        self._settings = settings
        self._index = index
        self._notes = notes
        self.backlog: deque[list[bytes]] = deque()
        self.last_words: deque[list[bytes]] = deque()
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        self._keepalive: zmq.Socket[bytes] | None = None
        self.is_refused = False
        self.is_reached = False
        self.is_untrusted = False
        self._is_up = False
        self._connector: Connector | None = None

    def open(self) -> None:
        """Make a new socket and start connecting; ZMQError for an invalid endpoint, or if none is left."""
        assert self.socket is None, "the link is open already"
        settings = self._settings
        self.socket = socket = self._new_socket()
        try:
            socket.setsockopt(zmq.IMMEDIATE, self._is_immediate)
            socket.setsockopt(zmq.HEARTBEAT_IVL, settings.heartbeat_ms)
            socket.setsockopt(zmq.SNDHWM, settings.high_water_mark)
            socket.setsockopt(zmq.RCVHWM, settings.high_water_mark)
            socket.setsockopt(zmq.MAXMSGSIZE, settings.message_bytes_max)
            self.monitor = socket.get_monitor_socket(_EVENTS)
            self.monitor.linger = 0
            # The keys of the nodes probably stand in the order of their endpoints.
            self._connector = Connector(
                socket, self.endpoint, settings.security, self._index, on_connect=lambda: self._name(socket)
            )
            self.connect()
        except zmq.ZMQError:
            # The error may outlive this call. A socket that it holds would keep the context from ending.
            self.close()
            raise

    def connect(self) -> None:
        """Connect, or connect anew, with a new routing id. ZMQError if the endpoint is invalid."""
        if self.socket is not None and self._connector is not None:
            if not self._connector.is_connecting:
                self.changes()  # forget the last events of the ended connection
            self._connector.connect_again()

    def keep_alive(self, routing_id: bytes, interval_ms: int, ttl_ms: int) -> None:
        """Make the keepalive, a second connection that libzmq serves by itself.

        See ``worker_session.KeepAlive``.
        """
        self._end_keepalive()
        socket = self._new_socket()
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        # The broker sends probes; they are not read.
        socket.setsockopt(zmq.CONFLATE, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, interval_ms)
        socket.setsockopt(zmq.HEARTBEAT_TTL, ttl_ms)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # the node is known, and ends it by itself
        number = self._connector.number if self._connector is not None else 0
        Connector(socket, self.endpoint, self._settings.security, number).connect()
        self._keepalive = socket

    def _new_socket(self) -> "zmq.Socket[bytes]":
        return self._socket_of(zmq.DEALER)

    def _name(self, socket: "zmq.Socket[bytes]") -> None:
        """Give the next connection another routing id. Those that libzmq gives begin with a zero."""
        socket.setsockopt(zmq.ROUTING_ID, b"\x01" + os.urandom(15))

    def _socket_of(self, kind: int) -> "zmq.Socket[bytes]":
        settings = self._settings
        socket = self._context.socket(kind)
        keep_apart(socket, self._index)
        socket.linger = 0
        socket.setsockopt(zmq.HANDSHAKE_IVL, settings.handshake_ms)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, settings.connect_timeout_ms)
        socket.setsockopt(zmq.RECONNECT_IVL, settings.reconnect_min_ms)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, settings.reconnect_max_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, settings.heartbeat_timeout_ms)
        return socket

    def _end_keepalive(self) -> None:
        keepalive, self._keepalive = self._keepalive, None
        if keepalive is not None:
            keepalive.close(0)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; sent messages have ``linger_ms`` to leave the process."""
        self._end_keepalive()
        socket = self.socket
        if socket is not None:
            monitor = self.monitor
            self.socket = None
            self.monitor = None
            self._connector = None
            self._is_up = False
            self.backlog.clear()
            self.last_words.clear()
            self._notes.retries.pop(self._index, None)
            socket.disable_monitor()
            if monitor is not None:
                monitor.close(0)
            socket.close(linger_ms)

    def descriptors(self) -> list[int]:
        """The descriptors of the socket and of its monitor (ZMQ_FD). None of them if closed."""
        return [int(each.getsockopt(zmq.FD)) for each in (self.socket, self.monitor) if each is not None]

    def send(self, frames: list[bytes]) -> None:
        """Send the message, or keep it until the socket takes it. A closed link drops it."""
        socket = self.socket
        if socket is None:
            return
        self._notes.touched[self._index] = None
        if self.backlog or not self._try_send(socket, frames):
            self.backlog.append(frames)

    def flush(self) -> None:
        """Send as much of the backlog as the socket takes."""
        socket = self.socket
        if socket is None:
            return
        backlog = self.backlog
        while backlog and self._try_send(socket, backlog[0]):
            backlog.popleft()

    def _try_send(self, socket: "zmq.Socket[bytes]", frames: list[bytes]) -> bool:
        try:
            send(socket, frames)
        except zmq.Again:
            # libzmq notices a new connection when the program asks for the socket's events.
            if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
                return False
            try:
                send(socket, frames)
            except zmq.Again:
                return False
        return True

    def receive(self, limit: int, *, is_ready: bool) -> list[list[bytes]]:
        """The messages that have arrived, ``limit`` at most. ``is_ready``: there is probably one."""
        messages: list[list[bytes]] = []
        socket = self.socket
        if socket is None:
            return messages
        try:
            while len(messages) < limit:
                # To ask costs less than zmq.Again, but not if repeated.
                if (messages or not is_ready) and len(messages) < _ASKS_MAX and not is_readable(socket):
                    break
                messages.append(receive(socket))
        except zmq.Again:
            pass
        return messages

    def changes(self) -> list[bool]:
        """The changes of the connection, in order: True if it is up, False if it broke or was refused."""
        changes: list[bool] = []
        monitor = self.monitor
        if monitor is None:
            return changes
        try:
            while True:
                event = receive_event(monitor)[0]
                assert self._connector is not None
                if not self._connector.is_connecting:
                    continue  # of the ended connection
                if event == zmq.EVENT_CONNECTED:
                    self.is_reached = True
                    continue
                if event == zmq.EVENT_CLOSED:
                    # The closed connection was never up; EVENT_CONNECT_RETRIED comes next.
                    self.is_refused = True
                    continue
                if event != zmq.EVENT_CONNECT_RETRIED:
                    self.is_refused = False
                if event == zmq.EVENT_DISCONNECTED and self._is_up:
                    # To disconnect drops what is unread.
                    self.last_words.extend(self.receive(_LAST_WORDS_MAX, is_ready=True))
                    self._connector.disconnect()
                    # As libzmq does: up to twice the pause, so that clients spread.
                    self._connect_later(self._settings.reconnect_min_ms * (1 + os.urandom(1)[0] / 256))
                self._note_handshake(event)
                self._is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                changes.append(self._is_up)
                if not self._is_up:
                    self.backlog.clear()
        except zmq.Again:
            pass
        return changes

    def _note_handshake(self, event: int) -> None:
        assert self._connector is not None
        if self._connector.note(event):
            self._connect_later(self._settings.reconnect_max_ms)
        was_untrusted, self.is_untrusted = self.is_untrusted, self._connector.is_untrusted
        if self.is_untrusted and not was_untrusted and self._notes.warns:
            _log.warning("%s: %s", self.endpoint, self._connector.why_untrusted)

    def _connect_later(self, pause_ms: float) -> None:
        self._notes.retries[self._index] = time.monotonic() + pause_ms / 1000


class Notes:
    """What the links of one owner note about themselves, by their indexes. ``warns``: they log a node that
    does not accept the key.
    """

    def __init__(self, *, warns: bool = True) -> None:
        self.warns = warns
        # Links that may have a message that no descriptor shows.
        self.touched: dict[int, None] = {}
        # When to connect again those whose connections have broken, or for which libzmq has given up.
        self.retries: dict[int, float] = {}
