"""Connects a socket to one endpoint, in plain or with CURVE, and tries the keys that its server may have."""

from collections.abc import Callable
from typing import Final

import zmq

from bstar.security.trust import Security

FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Events of the socket's monitor that its owner passes to ``note``, with EVENT_HANDSHAKE_SUCCEEDED."""

GIVEN_UP_PAUSE_S: Final = 1.0
"""How long an owner waits after ``note`` returned True."""

# With keys a handshake gets so many times the limit of a plain one, more after a round of keys has failed:
# a busy node or client needs it, and to give up early and begin again would make both busier.
_PATIENCE: Final = (2, 4)
# libzmq does not try again by itself after these.
_GIVEN_UP: Final = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH)


class Connector:
    """``failures`` counts the handshakes that failed since the last one that succeeded. ``is_connecting``:
    the socket is connected or tries to be.

    A handshake fails if the server has another key than the one tried, if it refuses ours, or if one side
    wants CURVE and the other does not, or if it takes longer than the limit (``_PATIENCE``). ``number``
    says which of the servers' keys is tried. ``on_connect`` sets what each attempt has of its own.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        endpoint: str,
        security: Security | None,
        number: int = 0,
        on_connect: Callable[[], object] = lambda: None,
    ) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._security = security
        self.number = number
        self._on_connect = on_connect
        self.failures = 0
        self._limit_ms = int(socket.getsockopt(zmq.HANDSHAKE_IVL))
        self._is_given_up = False
        self._server = b""
        self.is_connecting = False

    @property
    def is_untrusted(self) -> bool:
        """True if handshakes failed with every key that the server may have.

        Without ``security``: if the server wants CURVE. Any other handshake may fail because a node ends.
        """
        if self._security is None:
            return self._is_given_up
        return self.failures >= len(self._security.servers)

    @property
    def why_untrusted(self) -> str:
        """What the failed handshakes may mean, for a log."""
        if self._security is None:
            return "the handshake fails: the node wants a key (security=, --key-file)"
        key, count = self._security.key, len(self._security.servers)
        return (
            f"the handshake fails with each of {count} server key(s): the node does not list key {key.name} "
            f"({key.public.decode()}) or holds it to a bound, has another key than these or none, or is busy"
        )

    def connect(self) -> None:
        """Connect, unless no server is trusted. ZMQError if the endpoint is invalid."""
        security = self._security
        if security is not None:
            if not security.servers:
                return
            self._server = security.servers[self.number % len(security.servers)]
            has_failed = self.failures >= len(security.servers)
            self._socket.handshake_ivl = self._limit_ms * _PATIENCE[has_failed]
            self._socket.curve_publickey = security.key.public
            self._socket.curve_secretkey = security.key.secret
            self._socket.curve_serverkey = self._server
        self._on_connect()
        self._socket.connect(self._endpoint)
        self.is_connecting = True

    def disconnect(self) -> None:
        """End the connection and all attempts."""
        if self.is_connecting:
            self.is_connecting = False
            self._socket.disconnect(self._endpoint)

    def connect_again(self) -> None:
        """Connect anew; after a failed handshake, with the next key."""
        if self.failures:
            self.number += 1
        self.disconnect()
        self.connect()

    def follow_trust(self) -> None:
        """The trusted servers have changed: end a connection to one that is not among them now, or connect
        to one of them if there was none.
        """
        if self._security is None:
            return
        if not self.is_connecting or self._server not in self._security.servers:
            self.connect_again()

    def note(self, event: int) -> bool:
        """Take note of an event. True if no attempt goes on: call ``connect_again`` after a pause."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.failures = 0
            self._is_given_up = False
        elif event & FAILURES and self.is_connecting:
            self.failures += 1
            if event in _GIVEN_UP:
                self._is_given_up = True
                return True
            if self._security is not None:
                if not self.failures % max(1, len(self._security.servers)):
                    # libzmq tries a key again until its owner, who may be late, has read that it failed. That
                    # attempt's failure counts for the next key and ends its handshake. Only the first key of
                    # a round has no other before it: it is each key in turn.
                    self.number -= 1
                    self.disconnect()
                    return True
                self.connect_again()
        return False
