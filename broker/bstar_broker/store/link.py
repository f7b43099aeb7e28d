"""The connection between the stores of a pair: the primary binds a ROUTER, the backup connects a DEALER.

The link carries frames and says when the connection broke; what the frames mean is the replica's business. It
waits for nothing. A message without a connection, or for a full pipe, is dropped and counted: the replica
finds out and sends again. Messages of one connection stay in order, and those of an earlier connection are
not handed on after the first of a later one.

With keys only a principal with the role peer may speak: ZAP refuses others when they connect, and each
message is checked once more, because a key may be taken from the list while its connection is open.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

import zmq

from bstar.errors import ConfigurationError
from bstar.net.connections import close_watched, hang_up, place_of, watch
from bstar.net.curve import LinkConnector, NodeSecurity
from bstar.net.io_threads import keep_apart
from bstar.net.reactor import DRAIN_MAX, DRAIN_S_MAX, Reactor
from bstar.net.sockets import new_router, receive, receive_bodies, receive_event, send, set_up_link
from bstar.net.zap_socket import serve
from bstar.security.connector import FAILURES
from bstar.security.zap import PEERS
from bstar_broker.store.core.peer import FRAME_BYTES_MAX, HEADER

_log = logging.getLogger("bstar.store")

# Messages that wait for a slow link. The replica bounds their bytes (feeder.WINDOW_BYTES).
_QUEUE_MESSAGES: Final = 10_000
# One peer, and those that come back before its old connection has ended. A newcomer replaces the oldest that
# is not the peer's.
_CONNECTIONS_MAX: Final = 8
# Connections that spoke and were followed by another: none of them becomes the peer's again.
_FORMER_MAX: Final = 100

MessageHandler = Callable[[list[bytes], float], object]
TimeHandler = Callable[[float], object]


class StoreLink(Protocol):
    """One side of the link. Everything from the reactor's thread. ``dropped`` counts what was not sent, and
    what was not read, by reason.
    """

    dropped: Counter[str]

    def send(self, frames: list[bytes]) -> None:
        """Send to the peer, if there is a connection with room."""

    def follow_trust(self, is_any_gone: bool) -> None:
        """The list of principals has changed: leave those who are not in it."""

    def close(self) -> None:
        """Stop. Once, before the reactor closes."""


def open_link(
    context: "zmq.Context[zmq.Socket[bytes]]",
    reactor: Reactor,
    endpoint: str,
    *,
    is_bound: bool,
    timing: tuple[int, int],
    security: NodeSecurity | None,
    handlers: tuple[MessageHandler, TimeHandler],
) -> StoreLink:
    """The link at ``endpoint``, bound by the primary. ``timing``: heartbeat and failover timeout of the pair
    in milliseconds. ``handlers``: ``on_message(frames, now)`` for each message, and ``on_lost(now)`` when the
    connection broke after a message had come by it. Raises ConfigurationError if the endpoint cannot be used.
    """
    make = _BoundLink if is_bound else _ConnectedLink
    try:
        link = make(context, reactor, endpoint, timing, security, handlers)
    except zmq.ZMQError as error:
        verb = "bound" if is_bound else "connected to"
        raise ConfigurationError(
            f"store.link: {endpoint} cannot be {verb}: {error.strerror}. Does another process use it, or is "
            "the address not one of this machine?"
        ) from error
    if security is not None:
        security.on_change(link.follow_trust)
    return link


class _Link:
    """What both sides share: a watched socket that reads bursts."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        reactor: Reactor,
        timing: tuple[int, int],
        handlers: tuple[MessageHandler, TimeHandler],
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._socket = socket
        self._reactor = reactor
        self._on_message, self._on_lost = handlers
        self._monitor: zmq.Socket[bytes] | None = None
        # True if a message came by the connection that is up.
        self._is_heard = False
        set_up_link(socket, *timing)
        socket.sndhwm = socket.rcvhwm = _QUEUE_MESSAGES
        socket.maxmsgsize = FRAME_BYTES_MAX

    def _serve(self) -> None:
        assert self._monitor is not None
        self._reactor.add_source(self._monitor, self._on_readable)
        self._reactor.add_source(self._socket, self._on_readable)

    def _on_readable(self, now: float) -> None:
        self._follow_connections(now)
        self._read(now)

    def _read(self, now: float) -> None:
        """Read what has come, for a bounded time; the reactor comes back for the rest."""
        until = now + DRAIN_S_MAX
        for _ in range(DRAIN_MAX):
            try:
                frames = self._receive(now)
            except zmq.Again:
                return
            if frames:
                self._is_heard = True
                now = self._reactor.now()
                self._on_message(frames, now)
            if now > until:
                return

    def _lose(self, now: float) -> None:
        if self._is_heard:
            self._is_heard = False
            self._on_lost(now)

    def _receive(self, now: float) -> list[bytes]:
        """The frames of the next message, none if it is not to be read; ``zmq.Again`` if no message waits."""
        raise NotImplementedError

    def _follow_connections(self, now: float) -> None:
        """Read the monitor."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop. Once, before the reactor closes."""
        self._reactor.remove(self._socket)
        if self._monitor is not None:
            self._reactor.remove(self._monitor)
        close_watched(self._socket, self._monitor)


class _ConnectedLink(_Link):
    """The backup's side."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        reactor: Reactor,
        endpoint: str,
        timing: tuple[int, int],
        security: NodeSecurity | None,
        handlers: tuple[MessageHandler, TimeHandler],
    ) -> None:
        self._monitor = None
        socket = context.socket(zmq.DEALER)
        try:
            super().__init__(socket, reactor, timing, handlers)
            keep_apart(socket, 2)
            # What waits for a connection would come after its Hello.
            socket.immediate = True
            self._monitor = watch(socket, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | FAILURES)
            trust = None if security is None else security.to_peer()
            self._connector = LinkConnector(socket, endpoint, trust, reactor)
            self._connector.connect()
        except BaseException:
            close_watched(socket, self._monitor)
            raise
        self._serve()

    def send(self, frames: list[bytes]) -> None:
        """Send to the peer, if there is a connection with room."""
        try:
            send(self._socket, frames)
        except zmq.Again:
            self.dropped["not-sent"] += 1

    def _receive(self, now: float) -> list[bytes]:
        return receive(self._socket)

    def _follow_connections(self, now: float) -> None:
        assert self._monitor is not None
        while self._monitor.poll(0):
            event = receive_event(self._monitor)[0]
            self._connector.follow(event, now)
            if event == zmq.EVENT_DISCONNECTED:
                self._read(now)
                self._lose(now)

    def follow_trust(self, is_any_gone: bool) -> None:
        """The list of principals has changed: leave a peer that is not in it."""
        self._connector.follow_trust()

    def close(self) -> None:
        """Stop. Once, before the reactor closes."""
        self._connector.close()
        super().close()


class _BoundLink(_Link):
    """The primary's side. The peer is the connection that spoke last and had not spoken before."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        reactor: Reactor,
        endpoint: str,
        timing: tuple[int, int],
        security: NodeSecurity | None,
        handlers: tuple[MessageHandler, TimeHandler],
    ) -> None:
        self._security = security
        # The routing id and the descriptor of the peer's connection.
        self._peer = b""
        self._descriptor = -1
        self._former: deque[bytes] = deque(maxlen=_FORMER_MAX)
        self._open: dict[int, None] = {}
        self._frame: zmq.Frame | None = None
        socket = new_router(context)
        self._monitor = None
        try:
            super().__init__(socket, reactor, timing, handlers)
            keep_apart(socket, 2)
            socket.router_mandatory = True
            if security is not None:
                serve(socket, security.key, PEERS)
            self._monitor = watch(socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            socket.bind(endpoint)
            self._place = place_of(socket)
        except BaseException:
            close_watched(socket, self._monitor)
            raise
        self._serve()

    @property
    def place(self) -> int | str | None:
        """Where it is bound: the port, or the path."""
        return self._place

    def send(self, frames: list[bytes]) -> None:
        """Send to the peer, if there is a connection with room."""
        if not self._peer:
            self.dropped["not-sent"] += 1
            return
        try:
            send(self._socket, [self._peer, *frames])
        except zmq.ZMQError as error:
            if error.errno not in {zmq.EAGAIN, zmq.EHOSTUNREACH}:
                raise
            self.dropped["not-sent"] += 1

    def _look(self, frame: zmq.Frame) -> None:
        self._frame = frame

    def _receive(self, now: float) -> list[bytes]:
        routing_id, *frames = receive_bodies(self._socket, self._look)
        if not self._may_speak():
            self.dropped["no-peer"] += 1
            return []
        if routing_id != self._peer and not self._begin(routing_id, frames, now):
            return []
        return frames

    def _may_speak(self) -> bool:
        """True if the connection's key is that of a peer now."""
        if self._security is None:
            return True
        principal = self._security.find(str(self._property("User-Id") or ""))
        return principal is not None and principal.is_peer

    def _property(self, name: str) -> str | None:
        try:
            return None if self._frame is None else str(self._frame.get(name))
        except zmq.ZMQError:
            return None

    def _begin(self, routing_id: bytes, frames: list[bytes], now: float) -> bool:
        """A connection speaks for the first time: it is the peer's from now on."""
        if routing_id in self._former or not frames or frames[0] != HEADER:
            self.dropped["no-store"] += 1
            return False
        descriptor = int(self._property("__fd") or -1)
        self._end(now)
        # What happened to the descriptor before this connection got it is known after that.
        self._follow_connections(now)
        self._peer, self._descriptor = routing_id, descriptor
        return True

    def _end(self, now: float) -> None:
        if self._peer:
            self._former.append(self._peer)
            self._peer, self._descriptor = b"", -1
            self._lose(now)

    def _follow_connections(self, now: float) -> None:
        assert self._monitor is not None
        while self._monitor.poll(0):
            event, descriptor = receive_event(self._monitor)
            if event == zmq.EVENT_DISCONNECTED:
                self._open.pop(descriptor, None)
                if descriptor == self._descriptor:
                    peer = self._peer
                    self._read(now)
                    # The next connection may have the descriptor, and may have spoken.
                    if peer == self._peer:
                        self._end(now)
                continue
            self._open[descriptor] = None
            if len(self._open) > _CONNECTIONS_MAX:
                oldest = next(each for each in self._open if each != self._descriptor)
                self._open.pop(oldest)
                hang_up(oldest, self._place)

    def follow_trust(self, is_any_gone: bool) -> None:
        """The list of principals has changed: whose key is gone must neither be heard nor hear."""
        if is_any_gone:
            self._follow_connections(self._reactor.now())
            for descriptor in list(self._open):
                hang_up(descriptor, self._place)
