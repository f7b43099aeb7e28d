"""The DEALER sockets of EventMQ's clients and job managers, with a monitor of their connection."""

import uuid
from collections.abc import Sequence
from typing import Final

import zmq

from bstar.base.closing import Closing
from bstar.base.endpoints import parse_endpoint
from bstar.errors import ConfigurationError
from bstar.net.sockets import receive, receive_event, send
from bstar.security import Security
from bstar.wire.emq import Wire

# libzmq asks a silent connection for a sign of life, and ends it without one. The published router answers,
# because its libzmq does.
_PROBE_MS = 1_000
_PROBE_TIMEOUT_MS = 5_000
# CURVE needs more than one turn; a busy router needs time.
_HANDSHAKE_MS = 5_000
_QUEUE_MESSAGES = 100_000

CONNECTED: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED
_ENDS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def new_id() -> bytes:
    """A uuid as text: for msgids and identities, which must be ASCII (EMQ-R-01)."""
    return str(uuid.uuid4()).encode("ascii")


def checked_endpoints(endpoints: Sequence[str], name: str = "routers") -> tuple[str, ...]:
    """The endpoints to connect to, one at least. Raises ConfigurationError, which calls them ``name``."""
    if isinstance(endpoints, str) or not endpoints or not all(isinstance(each, str) for each in endpoints):
        raise ConfigurationError(f"{name} is a list of endpoints, one at least")
    for endpoint in endpoints:
        try:
            parse_endpoint(endpoint, bind=False)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from error
    return tuple(endpoints)


def checked_wire(wire: str) -> Wire:
    """``published`` or ``specification``. Raises ConfigurationError."""
    try:
        return Wire(wire)
    except ValueError:
        names = " or ".join(each.value for each in Wire)
        raise ConfigurationError(f"wire is {wire!r}: choose {names}") from None


class Dealer(Closing):
    """One DEALER socket, connected to ``endpoint`` with an explicit ``identity``.

    ``attempt`` chooses among the keys that the router may have. ZMQError without a free descriptor.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        identity: bytes,
        *,
        security: Security | None = None,
        attempt: int = 0,
        linger_ms: int = 0,
        message_bytes_max: int = -1,
    ) -> None:
        self.socket = socket = context.socket(zmq.DEALER)
        self._linger_ms = linger_ms
        socket.identity = identity
        socket.linger = 0
        socket.ipv6 = True
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.heartbeat_ivl = _PROBE_MS
        socket.heartbeat_timeout = _PROBE_TIMEOUT_MS
        socket.sndhwm = socket.rcvhwm = _QUEUE_MESSAGES
        socket.maxmsgsize = message_bytes_max
        if security is not None:
            socket.curve_publickey = security.key.public
            socket.curve_secretkey = security.key.secret
            socket.curve_serverkey = security.servers[attempt % len(security.servers)]
        self._is_closed = False
        try:
            self.monitor = socket.get_monitor_socket(CONNECTED | _ENDS)
            socket.connect(endpoint)
        except zmq.ZMQError:
            socket.close(0)
            raise

    def send(self, frames: list[bytes]) -> bool:
        """False if the queue to the router is full."""
        try:
            send(self.socket, frames)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """The next message, or None."""
        try:
            return receive(self.socket)
        except zmq.Again:
            return None

    def connection(self) -> bool | None:
        """What the monitor tells next: True if it is connected, False if it is not; None if it is silent."""
        try:
            event, _ = receive_event(self.monitor)
        except zmq.Again:
            return None
        return event == CONNECTED

    def close(self) -> None:
        """Close it, after ``linger_ms`` for what is still to be sent at most. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(self._linger_ms)
