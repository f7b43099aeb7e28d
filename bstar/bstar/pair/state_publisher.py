"""Publishes a node's state to its peer: the XPUB socket, its subscribers and their bounds.

A published Binary Star server subscribes to everything, and some of them end on a second frame. So a
subscriber's topic decides what it gets (``bstar.wire.peer``). The socket is in manual mode: this class reads
each subscription and decides. Any other topic gets nothing.

libzmq keeps some forty bytes for each byte of a subscription, in any mode, until the connection ends. It
keeps them before it shows them. So a connection that subscribes to more than a peer can need is closed. Each
message carries the descriptor of its connection, and the monitor lists the descriptors of this socket. ZMTP
before 3.0 has no such property: connections without a name share a bound.

libzmq has one defect that matters here. After a message that is not a subscription, libzmq assigns the next
ones to wrong connections, until all have been read. No subscriber of any dialect sends such a message. A
connection that sends one is closed, and so are those that are read after it; honest ones connect again.
"""

import logging
from collections.abc import Callable

import zmq

from bstar.net.connections import close_watched, hang_up, place_of, watch
from bstar.net.io_threads import keep_apart
from bstar.net.reactor import DRAIN_MAX, Reactor
from bstar.net.sockets import receive_event
from bstar.net.zap_socket import serve
from bstar.security import KeyPair
from bstar.security.zap import PEERS
from bstar.wire.peer import CODES, TOPIC, TOPICS_HEARD, PeerState, encode

_log = logging.getLogger("bstar.pair")

# A handshake of some dozens of bytes is the longest message of a peer, and its topics have at most five.
_MESSAGE_BYTES_MAX = 256
# CURVE shakes hands with longer ones (26/CURVEZMQ, INITIATE), before a subscription can come.
_CURVE_BYTES_MAX = 1_024
# With CURVE and room for one message libzmq never hands over a subscription.
_CURVE_QUEUE_MESSAGES = 2
# A peer subscribes to five topics, with ten bytes in all.
_CONNECTION_BYTES_MAX = 512
# One peer and its observers. A newcomer replaces the oldest one that has subscribed to nothing, if there is
# one; with keys those are strangers.
_CONNECTIONS_MAX = 32
# libzmq reads subscriptions in a loop of its own, as long as there are any. With room for one at a time, and
# little room in the kernel, it comes back to us before it has read many: 20 MB of topics then take 2 MB and
# 50 ms of a turn at most. With room for eight it was 80 MB and 290 ms.
_QUEUE_MESSAGES = 1
_KERNEL_BYTES = 4_096
# A peer's next topic arrives about 50 µs after the last one was read; a busy turn takes milliseconds.
_NEXT_TOPIC_MS = 1


class StatePublisher:
    """Publishes at ``local``. Everything from the reactor's thread.

    It calls ``on_subscribed(is_published, now)`` for each subscriber, published or native, so that the
    subscriber does not wait for a heartbeat. With ``key`` peers alone may
    subscribe. Raises zmq.ZMQError if ``local`` cannot be bound.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        reactor: Reactor,
        local: str,
        *,
        key: KeyPair | None = None,
        on_subscribed: Callable[[bool, float], None],
    ) -> None:
        self._reactor = reactor
        self._on_subscribed = on_subscribed
        # The bytes that each open connection has subscribed to, the oldest connection first.
        self._connections: dict[int, int] = {}
        self._nameless_bytes = 0
        # True if libzmq may take a subscription for another connection's.
        self._is_shifted = False
        self.hang_ups = 0
        self._is_reported = False
        self._socket = socket = context.socket(zmq.XPUB)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            keep_apart(socket, 0)
            socket.linger = 0
            socket.ipv6 = True
            socket.set(zmq.XPUB_MANUAL, 1)
            socket.set(zmq.XPUB_VERBOSE, 1)
            socket.maxmsgsize = _MESSAGE_BYTES_MAX if key is None else _CURVE_BYTES_MAX
            socket.rcvhwm = _QUEUE_MESSAGES if key is None else _CURVE_QUEUE_MESSAGES
            socket.rcvbuf = _KERNEL_BYTES
            if key is not None:
                serve(socket, key, PEERS)
            self._monitor = watch(socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            socket.bind(local)
            self._place = place_of(socket)
        except BaseException:
            close_watched(self._socket, self._monitor)
            raise
        reactor.add_source(self._monitor, self._on_readable)
        reactor.add_source(socket, self._on_readable)

    def say(self, message: PeerState) -> None:
        """Send the state to every subscriber in its dialect. It never blocks."""
        self._socket.send(CODES[message.state], zmq.NOBLOCK)
        self._socket.send_multipart(encode(message), zmq.NOBLOCK)

    def hang_up_all(self) -> None:
        """End every connection; a subscriber that may connect is back at once."""
        self._follow_connections()
        for descriptor in list(self._connections):
            hang_up(descriptor, self._place)

    def close(self) -> None:
        """Stop. Call it once, before the reactor closes."""
        for source in (self._socket, self._monitor):
            assert source is not None
            self._reactor.remove(source)
        close_watched(self._socket, self._monitor)

    # --- subscribers ----------------------------------------------------------------------------------------

    def _on_readable(self, now: float) -> None:
        self._follow_connections()
        topics: set[bytes] = set()
        waits_left = len(TOPICS_HEARD)
        is_idle = True
        for _ in range(DRAIN_MAX):
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._is_shifted = False
                if is_idle or not waits_left or not self._socket.poll(_NEXT_TOPIC_MS):
                    break
                waits_left -= 1
                continue
            is_idle = False
            topic = self._read(frame)
            if topic is not None:
                topics.add(topic)
        for topic in topics:
            self._on_subscribed(topic == b"", now)

    def _follow_connections(self) -> None:
        assert self._monitor is not None
        while self._monitor.poll(0):
            event, descriptor = receive_event(self._monitor)
            self._connections.pop(descriptor, None)
            if event == zmq.EVENT_ACCEPTED:
                self._connections[descriptor] = 0
                if len(self._connections) > _CONNECTIONS_MAX:
                    self._hang_up(self._superfluous(), f"more than {_CONNECTIONS_MAX} subscribe")

    def _superfluous(self) -> int:
        """The oldest connection without a subscription, else the oldest: strangers go before peers."""
        idle = (descriptor for descriptor, size_bytes in self._connections.items() if not size_bytes)
        return next(idle, next(iter(self._connections)))

    def _read(self, frame: zmq.Frame) -> bytes | None:
        """The topic of a new subscriber, if it gets the state."""
        data = frame.bytes
        descriptor = _descriptor(frame)
        kind, topic = data[:1], data[1:]
        if kind == b"\x00":  # of the peer, or of libzmq for a connection that ended
            if not self._is_shifted:
                self._apply(zmq.UNSUBSCRIBE, topic)
        elif kind != b"\x01":
            self._is_shifted = True
            self._refuse(descriptor, "a subscriber sent a message that is no subscription")
        elif self._is_shifted:
            self._refuse(descriptor, "")
        elif self._count(descriptor, len(data)) > _CONNECTION_BYTES_MAX:
            self._refuse(
                descriptor, f"a subscriber asked for topics of more than {_CONNECTION_BYTES_MAX} bytes"
            )
        elif self._apply(zmq.SUBSCRIBE, topic):
            return topic
        return None

    def _count(self, descriptor: int | None, size_bytes: int) -> int:
        if descriptor is None:
            self._nameless_bytes += size_bytes
            return self._nameless_bytes
        self._connections[descriptor] = total = self._connections.get(descriptor, 0) + size_bytes
        return total

    def _apply(self, option: zmq.SocketOption, topic: bytes) -> bool:
        """Subscribe the connection that was read last to what this topic gets, or unsubscribe it."""
        if topic == TOPIC:
            self._socket.set(option, TOPIC)
        elif topic == b"":
            for code in CODES.values():
                self._socket.set(option, code)
        else:
            return False
        return True

    # --- those who ask too much -----------------------------------------------------------------------------

    def _refuse(self, descriptor: int | None, why: str) -> None:
        if descriptor is not None:
            self._hang_up(descriptor, why)
            return
        # It is one of those without a known descriptor; nothing tells which.
        self._nameless_bytes = 0
        for other, size_bytes in list(self._connections.items()):
            if not size_bytes:
                self._hang_up(other, why)

    def _hang_up(self, descriptor: int, why: str) -> None:
        # Until the monitor reports its end, it has no room left and does not count as the oldest.
        self._connections.pop(descriptor, None)
        if not hang_up(descriptor, self._place):
            return
        self._connections[descriptor] = _CONNECTION_BYTES_MAX
        self.hang_ups += 1
        if why and not self._is_reported:
            self._is_reported = True
            _log.warning(
                "cut off a connection to the state endpoint: %s. Only the other node needs that endpoint: "
                "keep all other hosts away from it. Further ones are counted, not reported",
                why,
            )


def _descriptor(frame: zmq.Frame) -> int | None:
    """The descriptor of the connection that brought it; None within a process and before ZMTP 3.0."""
    try:
        descriptor = frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return None
    assert isinstance(descriptor, int)
    return descriptor
