"""EventMQ's pub/sub device and its publisher.

    publisher  DEALER → ROUTER   [] [eMQP/1.0] [PUBLISH] [msgid] [topic] [JSON message]
    device     PUB → SUB         [topic] [message]

The device keeps nothing: a subscriber misses what comes before its subscription or beyond its queue. There is
no answer to a PUBLISH, so a publisher knows that its message left, and no more (PROTOCOLS.md 12.1, T-10).
"""

import json
import logging
import time
from collections import Counter

import zmq

from bstar.base.closing import Closing
from bstar.errors import ConfigurationError, LocalProtocolError, NoActiveNodeError, RemoteProtocolError
from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar.net.sockets import new_router, send, set_up_listener
from bstar.net.zap_socket import ZapSocket, serve
from bstar.security import Security, ServerSecurity
from bstar.wire import emq
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.emq.sockets import Dealer, checked_endpoints, checked_wire, new_id

_log = logging.getLogger("bstar.emq")

# A subscriber that reads slower than this many messages behind loses the next ones.
_QUEUE_MESSAGES = 10_000
# Subscriptions are prefixes of topics; a longer one is not ours.
_SUBSCRIPTION_BYTES_MAX = 65_536
_LINGER_MS = 500
_CONNECT_MS = 5_000


class EmqPubSub(Closing):
    """The device between ``bind_in`` (ROUTER) and ``bind_out`` (PUB). ``run`` blocks until it is stopped.

    ``security``: its key, and the keys of those who may publish and subscribe. ``wire`` is the publishers',
    ``published`` or ``specification``. ``published`` counts the messages that went out, ``drops`` by reason
    those that were none, ``refusals`` connections that may not enter. Raises ConfigurationError if an
    endpoint cannot be bound.
    """

    def __init__(
        self,
        bind_in: str,
        bind_out: str,
        *,
        security: ServerSecurity | None = None,
        wire: str = emq.Wire.PUBLISHED.value,
    ) -> None:
        self._wire = checked_wire(wire)
        self.published = 0
        self.drops: Counter[str] = Counter()
        self._is_closed = False
        self._listeners: list[Listener] = []
        self._reactor = Reactor()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._in = new_router(self._context)
        self._out: zmq.Socket[bytes] = self._context.socket(zmq.PUB)
        for socket in (self._in, self._out):
            socket.linger = _LINGER_MS
            set_up_listener(socket)
            socket.sndhwm = socket.rcvhwm = _QUEUE_MESSAGES
        self._in.maxmsgsize = MESSAGE_BYTES_MAX
        self._out.maxmsgsize = _SUBSCRIPTION_BYTES_MAX
        # A publisher that connects again with the identity it had takes its old place.
        # With keys that would let another principal take it.
        self._in.router_handover = security is None
        self._zap: ZapSocket | None = None
        if security is not None:
            self._zap = ZapSocket(self._context, self._reactor, security.principals)
        for socket, endpoint, name in ((self._in, bind_in, "--bind-in"), (self._out, bind_out, "--bind-out")):
            domain = f"bstar.pubsub{name}".encode()
            if security is not None:
                serve(socket, security.key, domain)
            try:
                listener = Listener(self._reactor, socket, endpoint, is_keyed=security is not None)
            except zmq.ZMQError as error:
                self.close()
                raise ConfigurationError(f"{name}: cannot bind {endpoint}: {error.strerror}") from error
            self._listeners.append(listener)
            if self._zap is not None:
                self._zap.guard(listener, domain)
        self._reactor.add_reader(self._in, self._on_message)

    @property
    def endpoints(self) -> tuple[str, str]:
        """Where publishers and subscribers connect."""
        found = [socket.getsockopt(zmq.LAST_ENDPOINT) for socket in (self._in, self._out)]
        publishers, subscribers = (bytes(each).rstrip(b"\0").decode() for each in found)
        return publishers, subscribers

    @property
    def refusals(self) -> Counter[str]:
        """Connections that were refused, by reason."""
        return Counter() if self._zap is None else self._zap.doorkeeper.refusals

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``."""
        self._reactor.run()

    def stop(self) -> None:
        """Ask ``run`` to end, from any thread."""
        self._reactor.stop()

    def close(self) -> None:
        """Free sockets and context. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for listener in self._listeners:
            listener.close()
        if self._zap is not None:
            self._zap.close()
        self._in.close(0)
        self._out.close(_LINGER_MS)
        self._reactor.close()
        self._context.term()

    def _on_message(self, frames: list[bytes], now: float) -> None:
        try:
            message = emq.decode(frames, 1, wire=self._wire)
        except RemoteProtocolError as error:
            self._drop(error.reason, error.text)
            return
        if not isinstance(message, emq.Publish):
            self._drop("unexpected", f"{type(message).__name__} is no PUBLISH")
            return
        # PUB drops for each slow subscriber by itself, and never blocks.
        send(self._out, emq.encode_publication(message))
        self.published += 1

    def _drop(self, reason: str, text: str) -> None:
        self.drops[reason] += 1
        if self.drops[reason] == 1:
            _log.warning("%s: %s; the next ones are only counted", reason, text)


class EmqPublisher(Closing):
    """Publishes to a device: ``EmqPublisher("tcp://127.0.0.1:47298").publish("prices.apple", 3.5)``.

    One thread at a time. NoActiveNodeError if there is no device within five seconds. ``wire`` is the
    device's, ``published`` or ``specification``.
    """

    def __init__(
        self, endpoint: str, *, security: Security | None = None, wire: str = emq.Wire.PUBLISHED.value
    ) -> None:
        self._wire = checked_wire(wire)
        (endpoint,) = checked_endpoints([endpoint], "endpoint")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = Dealer(self._context, endpoint, new_id(), security=security, linger_ms=_LINGER_MS)
        self._is_connected = False

    def publish(self, topic: str, value: object) -> None:
        """Send PUBLISH with ``value`` as JSON. TypeError or ValueError if JSON cannot hold it."""
        message = emq.Publish(new_id(), topic.encode(), json.dumps(value, allow_nan=False).encode())
        self._note_connection()
        if not self._is_connected:
            raise NoActiveNodeError("no pub/sub device could be reached in time: the message was not sent")
        if not self._dealer.send(emq.encode(message, wire=self._wire)):
            raise LocalProtocolError("the queue to the pub/sub device is full: publish slower")

    def close(self) -> None:
        """Let what was sent leave, free the socket. Idempotent."""
        self._dealer.close()
        self._context.term()

    def _note_connection(self) -> None:
        """Read what the monitor tells, and wait for a connection; it tells of failed attempts, too."""
        monitor, until = self._dealer.monitor, time.monotonic() + _CONNECT_MS / 1000
        while monitor.poll(0 if self._is_connected else max(0, round((until - time.monotonic()) * 1000))):
            self._is_connected = self._dealer.connection() is True
