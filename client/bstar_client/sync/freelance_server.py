"""A server without a broker for Lazy Pirate clients and for all three models of Freelance.

One thread owns the socket: it reads requests, answers PINGs and sends replies. Handlers run in threads of
their own, so a slow one keeps no PING waiting (FLP-S-02). The frames are in ``bstar.wire.brokerless``.
"""

import logging
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Self

import msgspec
import zmq

from bstar.errors import ClosedError, ConfigurationError, ForkedError, RemoteProtocolError
from bstar.net.io_threads import new_context
from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar.net.sockets import send
from bstar.net.zap_socket import ZapSocket, serve
from bstar.security import ServerSecurity
from bstar.security.zap import CLIENTS
from bstar.wire.brokerless import read_request
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.arguments.bodies import to_reply
from bstar_client.arguments.checks import (
    check_async_handler,
    check_handler,
    check_instance,
    to_count,
    to_seconds,
)
from bstar_client.core.calls import Result
from bstar_client.links.unclosed import guard
from bstar_client.workers import typed
from bstar_client.workers.failures import leave_child, report_plain
from bstar_client.workers.handlers import Request

PlainHandler = Callable[..., Result | None]

_log = logging.getLogger("bstar_client")

_MODELS = frozenset((1, 2, 3))
# A routing id has so many bytes at most (37/ZMTP).
_IDENTITY_BYTES_MAX = 255
# An address or a port that no client can connect to.
_WILDCARD = re.compile(r"tcp://(\*|0\.0\.0\.0|\[::\]):.*|tcp://.*:(0|\*)")
# How long the last replies may take to leave the process; with no linger they vanish (T-09). A busy machine
# may keep libzmq's thread waiting for a second.
_LINGER_MS = 3_000
# Requests that wait for a handler. A client that is answered later than this has asked again.
_WAITING_MAX = 10_000
# How long the process's exit waits for a server that was not closed.
_EXIT_S = 1.0
# How long close() waits beyond the drain timeout.
_GRACE_S = 5.0


class _Job(msgspec.Struct, frozen=True, gc=False):
    """A request with a handler: who gets the reply, and what stands before it."""

    sender: bytes
    lead: list[bytes]
    body: list[bytes]


class FreelanceServer:
    """Serves requests without a broker (zguide chapter 4, Lazy Pirate and Freelance; 10/FLP).

        FreelanceServer(lambda request: request.body.upper(), "tcp://10.0.0.1:5555").run()

    ``handler(request)`` gets a ``Request``, as that of a ``Worker`` does, and returns the reply: bytes, a
    sequence of bytes for several frames, or None for one empty frame. An exception becomes a reply of two
    frames, ``500`` and its text. ``request.identity`` names the client's connection and its number. Clients
    repeat requests, so the handler must be idempotent (LPP-S-01, FLP-R-02).

    ``bind``: the endpoint to bind. ``public``: the endpoint that clients of model 3 connect to, byte for
    byte; it is the server's identity (FLP-S-01). It is ``bind``, unless that has a wildcard.

    ``models``: which models of Freelance it serves. With all three a request of model 1 has one frame, and a
    control frame of model 3 is not empty before a body of several frames. Say ``models=(1,)`` or
    ``models=(3,)`` to serve every body. A Lazy Pirate client is one of model 1.

    ``threads``: handlers that run at once. Beyond 10,000 requests that wait, more are dropped and counted.
    ``run()`` serves until SIGTERM, SIGINT or ``stop()``, finishes what it has taken (``drain_timeout_s``) and
    returns. ``start()`` and ``with`` do the same in a thread.

    ``security``: its key, and the keys of those who may connect. ``context``: a ZeroMQ context to share; with
    ``security`` it must have no ZAP handler.

    ConfigurationError for settings that cannot work, or an endpoint that cannot be bound.
    """

    def __init__(
        self,
        handler: PlainHandler,
        bind: str,
        *,
        public: str | None = None,
        models: Collection[int] = (1, 2, 3),
        threads: int = 1,
        drain_timeout_s: float = 10.0,
        security: ServerSecurity | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        check_handler(handler)
        check_async_handler(handler)  # nor a generator: these protocols have no PARTIALs
        check_instance(context, zmq.Context, "context")
        check_instance(security, ServerSecurity, "security")
        self._models = frozenset(models)
        if not self._models or not self._models <= _MODELS:
            raise ConfigurationError(f"models are some of 1, 2 and 3, not {models!r}")
        identity = _identity(bind, public) if 3 in self._models else None
        self._handler = typed.bind(handler)
        self._threads = to_count(threads, "threads", 1, 1_000)
        self._drain_s = to_seconds(drain_timeout_s, "drain_timeout_s", may_be_zero=True)
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        # Requests without a reply; only the socket's thread changes it.
        self._pending = 0
        self._has_begun = False
        self._opened = _Opened(bind, identity, self._drain_s, security, context)
        self.counters = ServerCounters(self._opened.refusals)
        # A started server refers to itself through its reactor, so only the process's exit ends it.
        self._guard = guard(
            self, f"FreelanceServer({bind})", "use it in 'with', or call close()", self._opened.end
        )

    @property
    def endpoint(self) -> str:
        """Where clients connect: ``public``, or the bound endpoint with the port that the system chose."""
        return self._opened.endpoint

    # --- life ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it; a second signal stops it at
        once. ClosedError if it has run before.
        """
        self._begin()
        self._serve()

    def start(self) -> Self:
        """Serve in a thread of its own, until ``stop`` or ``close``."""
        self._begin()
        self._opened.thread = threading.Thread(target=self._serve, name="bstar-freelance", daemon=True)
        self._opened.thread.start()
        return self

    def stop(self) -> None:
        """Ask the server to drain and end; returns at once. Any thread and any signal handler may call it."""
        self._opened.reactor.stop()

    def close(self) -> None:
        """Stop, and wait for the end within the drain timeout. Idempotent."""
        if self._pid != os.getpid():
            return
        self._has_begun = True
        self.stop()
        thread = self._opened.thread
        if thread is None:
            self._release()
        elif thread is not threading.current_thread():
            thread.join(self._drain_s + _GRACE_S)
            if thread.is_alive():
                _log.warning("the server at %s did not end in time", self.endpoint)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this server was made before fork(): make a new one in the child process")
        if self._has_begun:
            raise ClosedError("a server runs once: make a new one")
        self._has_begun = True
        reactor, socket = self._opened.reactor, self._opened.socket
        reactor.add_reader(socket, self._on_message)
        # It reads no more then. Clients see a broken connection at the end, and ask another server.
        reactor.on_stop(lambda now: reactor.remove(socket), lambda now: not self._pending)

    def _serve(self) -> None:
        for number in range(self._threads):
            name = f"bstar-handler-{number}"
            threading.Thread(target=self._handle, name=name, daemon=True).start()
        try:
            self._opened.reactor.run()
        finally:
            for _ in range(self._threads):
                self._inbox.put(None)
            self._release()

    def _release(self) -> None:
        self._guard.detach()
        self._opened.close()

    # --- in the socket's thread ---------------------------------------------------------------------------

    def _on_message(self, frames: list[bytes], now: float) -> None:
        counters = self.counters
        try:
            lead, body = read_request(frames[1:], self._models)
        except RemoteProtocolError as error:
            counters.invalid[error.reason] += 1
            return
        if not body:
            counters.pings += 1
            self._send([frames[0], *lead])
        elif self._pending >= _WAITING_MAX:
            counters.dropped += 1
        else:
            counters.requests += 1
            self._pending += 1
            self._inbox.put(_Job(frames[0], lead, body))

    def _answer(self, job: _Job, body: list[bytes]) -> None:
        self._pending -= 1
        self.counters.replies += 1
        self._send([job.sender, *job.lead, *body])

    def _send(self, frames: list[bytes]) -> None:
        # A ROUTER drops what is for a client that has gone, or that does not read.
        send(self._opened.socket, frames)

    # --- in the handlers' threads -------------------------------------------------------------------------

    def _handle(self) -> None:
        while (job := self._inbox.get()) is not None:
            identity = job.sender + job.lead[-1]
            try:
                body = self._call(Request(b"", tuple(job.body), identity, False, 0, None, b""))
            except BaseException as error:  # noqa: BLE001 - whatever the handler raises, SystemExit too, is its answer
                self.counters.failures += 1
                body = report_plain(identity, error)
            with suppress(ClosedError):  # the server ended meanwhile
                self._opened.reactor.call_threadsafe(partial(self._answer, job, body))

    def _call(self, request: Request) -> list[bytes]:
        try:
            return to_reply(self._handler(request), MESSAGE_BYTES_MAX)
        finally:
            if self._pid != os.getpid():
                leave_child(f"request {request.identity.hex()}")


class ServerCounters:
    """What happened in a server. ``invalid`` counts messages by the reason why they are no requests,
    ``refusals`` connections by the reason why they may not enter.
    """

    def __init__(self, refusals: Counter[str]) -> None:
        self.refusals = refusals
        self.requests = 0
        self.replies = 0
        self.failures = 0
        self.pings = 0
        self.dropped = 0
        self.invalid: Counter[str] = Counter()


class _Opened:
    """The socket of a server, and what it needs. ``guard`` may close it without the server."""

    def __init__(
        self,
        bind: str,
        identity: bytes | None,
        drain_s: float,
        security: ServerSecurity | None,
        shared: "zmq.Context[zmq.Socket[bytes]] | None",
    ) -> None:
        self._is_shared = shared is not None
        self._context = shared or new_context(1)
        self._lock = threading.Lock()
        self._is_closed = False
        self.thread: threading.Thread | None = None
        self.reactor = Reactor(stop_timeout_s=drain_s)
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = _LINGER_MS
        # All that may wait for handlers may be answered at once.
        self.socket.sndhwm = self.socket.rcvhwm = _WAITING_MAX
        # With it, libzmq spells an IPv4 address in a way that no client does.
        self.socket.ipv6 = "[" in bind or "//*" in bind
        self.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        if identity is not None:
            self.socket.routing_id = identity
        self._listener: Listener | None = None
        self._zap: ZapSocket | None = None
        try:
            if security is not None:
                serve(self.socket, security.key, CLIENTS)
                self._zap = ZapSocket(self._context, self.reactor, security.principals)
            self._listener = Listener(self.reactor, self.socket, bind, is_keyed=security is not None)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(f"cannot bind {bind!r}: {error}") from error
        if self._zap is not None:
            self._zap.guard(self._listener, CLIENTS)
        endpoint = self.socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.endpoint = (identity or endpoint.rstrip(b"\0")).decode()

    @property
    def refusals(self) -> Counter[str]:
        """Connections that were refused, by reason."""
        return Counter() if self._zap is None else self._zap.doorkeeper.refusals

    def end(self, is_exit: bool) -> None:
        """The server was not closed: close all of it, or let its thread do it."""
        if self.thread is None:
            self.close()
        else:
            self.reactor.stop()
            self.thread.join(_EXIT_S)

    def close(self) -> None:
        """Close all of it. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        if self._zap is not None:
            self._zap.close()
        self.reactor.close()
        self.socket.close()
        if not self._is_shared:
            self._context.term()


def _identity(bind: str, public: str | None) -> bytes:
    """The identity of a server of model 3."""
    if public is None:
        if _WILDCARD.fullmatch(bind):
            raise ConfigurationError(
                f"{bind!r} is no endpoint that a client connects to: name that one with public=…, "
                "or serve models=(1, 2) only"
            )
        public = bind
    identity = public.encode()
    if not 0 < len(identity) <= _IDENTITY_BYTES_MAX:
        raise ConfigurationError(f"public has 1 to {_IDENTITY_BYTES_MAX} bytes, not {len(identity)}")
    return identity
