"""The socket of a context's ZAP handler, and the options of a socket that listens with CURVE.

libzmq asks it about each connection before the first message passes (27/ZAP). It answers in the reactor's
thread, one answer for each request, and waits for nothing. A handshake without an answer ends after the
socket's ``handshake_ivl``.
"""

import logging
from collections.abc import Callable

import zmq
from zmq.utils import z85

from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar.security import KeyPair, Principals
from bstar.security.zap import Doorkeeper, Rule, uses_services

_log = logging.getLogger("bstar.security")

_ENDPOINT = "inproc://zeromq.zap.01"
# Handshakes that wait for an answer: more than a storm of clients brings in one turn of the loop.
_QUEUE_MESSAGES = 10_000
# A turn answers so many, then messages and timers have theirs. An answer takes some 5 µs.
_BURST_MAX = 200
# A refusal is logged once in ten minutes for each reason and each key or principal, for this many; the others
# are counted.
_LOGGED_MAX = 1_000
_LOGGED_S = 600.0


class ZapSocket:
    """The ZAP handler of a context. One for each context; everything from the reactor's thread.

    ``metadata(domain)``: of a connection that enters there (27/ZAP, 23/ZMTP). zmq.ZMQError if the context has
    a handler already.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", reactor: Reactor, principals: Principals
    ) -> None:
        self._reactor = reactor
        self._listeners: dict[bytes, Listener] = {}
        self.metadata: Callable[[bytes], bytes] = lambda domain: b""
        self.doorkeeper = Doorkeeper(principals, lambda key: z85.encode(key).decode(), self._report)
        self.doorkeeper.on_admitted = self._on_admitted
        self._logged: set[tuple[str, str]] = set()
        self._logged_since = reactor.now()
        self._socket = socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = _QUEUE_MESSAGES
        try:
            socket.bind(_ENDPOINT)
        except zmq.ZMQError:
            socket.close(0)
            raise
        reactor.add_source(socket, self._on_readable)

    def guard(self, listener: Listener, domain: bytes, may_enter: Rule = uses_services) -> None:
        """The connections of this listener are of ``domain``, which has this rule.

        Strangers have a budget of handshakes there; those who prove a key that may enter pay nothing.
        """
        self._listeners[domain] = listener
        self.doorkeeper.rules[domain] = may_enter

    def close(self) -> None:
        """Answer no more; new connections fail. Before the reactor is closed."""
        self._reactor.remove(self._socket)
        self._socket.close(0)

    def forget_reports(self) -> None:
        """Log each refusal again, once."""
        self._logged.clear()

    def _on_readable(self, now: float) -> None:
        for _ in range(_BURST_MAX):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # libzmq puts an empty frame between its address and the request, as REQ does.
            at = frames.index(b"") + 1 if b"" in frames else 1
            # What happened to connections before they asked counts first.
            for listener in self._listeners.values():
                listener.catch_up()
            reply = self.doorkeeper.answer(frames[at:])
            if reply is not None:
                self._socket.send_multipart([*frames[:at], *reply], zmq.NOBLOCK)

    def _on_admitted(self, domain: bytes, address: str) -> bytes:
        if domain in self._listeners:
            self._listeners[domain].authenticated(address)
        return self.metadata(domain)

    def _report(self, reason: str, who: str, address: str) -> None:
        now = self._reactor.now()
        if now - self._logged_since >= _LOGGED_S:
            self._logged_since = now
            self._logged.clear()
        if (reason, who) in self._logged or len(self._logged) >= _LOGGED_MAX:
            return
        self._logged.add((reason, who))
        text = "refused a connection from %s: %s%s; the next ones are only counted"
        _log.warning(text, address or "an unknown address", reason, f" ({who})" if who else "")


def serve(socket: "zmq.Socket[bytes]", key: KeyPair, domain: bytes) -> None:
    """Take CURVE connections only, of principals that may enter ``domain``. Before it is bound."""
    socket.curve_server = True
    socket.curve_secretkey = key.secret
    socket.zap_domain = domain
