"""The SUB socket on which this node hears its peer, and the watch over its connection.

The link hands state messages on as they come, and says why handshakes fail. With ``expire_on_refused`` it
also watches for the end of a connection on which the peer was heard. It then calls ``on_lost`` and probes the
peer's endpoint (``bstar.pair.refusal``). It calls ``on_refused`` if the endpoint refuses before a new
connection is up. The state machine decides what follows.

The monitor of a ZeroMQ socket lags: it reports what the I/O thread did a moment ago. So the link reads the
monitor before messages, messages before it reports the loss of their connection, and the monitor once more
before a verdict.
"""

import logging
from collections.abc import Callable, Iterator

import zmq

from bstar.base.endpoints import parse_endpoint
from bstar.net.connections import close_watched
from bstar.net.curve import LinkConnector
from bstar.net.io_threads import keep_apart
from bstar.net.reactor import Reactor
from bstar.net.sockets import receive, receive_event, set_up_link
from bstar.pair.refusal import RefusalProbe
from bstar.security import Security
from bstar.security.connector import FAILURES
from bstar.wire.peer import TOPICS_HEARD

_log = logging.getLogger("bstar.pair")

# How many state messages a turn reads: more than a healed link's burst has.
_PEER_MESSAGES_MAX = 1_000
# A state message has about 4 KB at most. A longer one is read and reported up to this size.
_STATE_BYTES_MAX = 1_048_576

TimeHandler = Callable[[float], None]


class PeerLink:
    """The connection to ``remote``, where the peer publishes. Everything from the reactor's thread.

    ``on_messages(messages, now)`` gets an iterator over the frames of each message and must read it to its
    end. zmq.ZMQError if ``remote`` is not an endpoint.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        reactor: Reactor,
        remote: str,
        *,
        heartbeat_ms: int,
        timeout_ms: int,
        security: Security | None = None,
        expire_on_refused: bool,
        on_messages: Callable[[Iterator[list[bytes]], float], None],
        on_lost: TimeHandler,
        on_refused: TimeHandler,
    ) -> None:
        self._reactor = reactor
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._on_refused = on_refused
        # True if the peer was heard on the connection that is up.
        self._is_heard = False
        self._monitor: zmq.Socket[bytes] | None = None
        self._probe = self._make_probe(remote) if expire_on_refused else None
        self._socket = socket = context.socket(zmq.SUB)
        try:
            keep_apart(socket, 1)  # another I/O thread serves clients while the peer's name is looked up
            set_up_link(socket, heartbeat_ms, timeout_ms)
            socket.maxmsgsize = _STATE_BYTES_MAX
            for topic in TOPICS_HEARD:
                socket.subscribe(topic)
            self._monitor = socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | FAILURES
            )
            self._monitor.linger = 0
            self._connector = LinkConnector(socket, remote, security, reactor)
            self._connector.connect()
        except BaseException:
            close_watched(self._socket, self._monitor)
            raise
        reactor.add_source(self._monitor, self._on_readable)
        reactor.add_source(socket, self._on_readable)

    @property
    def fault(self) -> str:
        """Why handshakes with the peer fail; "" if none has failed lately."""
        return self._connector.fault

    def _make_probe(self, remote: str) -> RefusalProbe | None:
        try:
            endpoint = parse_endpoint(remote, bind=False)
        except ValueError as error:
            _log.warning("expire_on_refused has no effect: %s", error)
            return None
        return RefusalProbe(self._reactor, endpoint, self._on_verdict)

    def close(self) -> None:
        """Stop. Call it once, before the reactor closes."""
        self._connector.close()
        if self._probe is not None:
            self._probe.cancel()
        self._reactor.remove(self._socket)
        assert self._monitor is not None
        self._reactor.remove(self._monitor)
        close_watched(self._socket, self._monitor)

    def _on_readable(self, now: float) -> None:
        self._follow_connection(now)
        self._on_messages(self._burst(), now)

    def _burst(self) -> Iterator[list[bytes]]:
        for _ in range(_PEER_MESSAGES_MAX):
            try:
                frames = receive(self._socket)
            except zmq.Again:
                return
            self._is_heard = True
            yield frames

    def _follow_connection(self, now: float) -> bool:
        """Read the monitor. True if a probe under way began before what it reports."""
        is_news = False
        assert self._monitor is not None
        while self._monitor.poll(0):
            event = receive_event(self._monitor)[0]
            self._connector.follow(event, now)
            if self._probe is None or event & FAILURES:
                continue
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                is_news = True
                self._is_heard = False
                self._probe.cancel()
                self._probe.prepare()
                continue
            self._on_messages(self._burst(), now)
            if self._is_heard:
                is_news = True
                self._is_heard = False
                self._on_lost(now)
                self._probe.start(now)
        return is_news

    def follow_trust(self) -> None:
        """The list of principals has changed: leave a peer that is not in it."""
        self._connector.follow_trust()

    def _on_verdict(self, now: float) -> None:
        # A quickly restarted peer may be connected again; the refused connect was to its predecessor.
        if not self._follow_connection(now):
            self._on_refused(now)
