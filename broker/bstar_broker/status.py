"""Health, status and metrics of a node over HTTP, for probes, load balancers, people and Prometheus.

    /healthz   200 while the node's event loop answers in time; the peer has no part in it
    /readyz    200 while the node can play its part in the pair: it serves, or would take over
    /active    200 on the node that serves and 503 on the other one, for load balancers
    /status    the whole state as JSON
    /metrics   for Prometheus

A server in a thread of its own asks for the node's state by a callable. So a hanging loop shows as 503, not
as silence. Requests are bounded in size, number and time, and there is no access log. When all connections
are taken, the oldest one without a whole request makes room: a peer that sends its request at once is always
answered. There is no authentication, so it listens on a loopback address by default.
"""

import contextlib
import html
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from typing import cast

import msgspec
from prometheus_client.exposition import choose_encoder

from bstar.closing import Closing
from bstar.endpoints import parse_http_bind
from bstar.errors import BstarError, ConfigurationError
from bstar_broker.core.snapshot import NodeState
from bstar_broker.metrics import make_registry

_log = logging.getLogger("bstar_broker.status")

# Two Prometheus servers, two load balancers and a person, several times over.
CONNECTIONS_MAX = 32
# A connection carries one request; a probe needs less time.
CONNECTION_S_MAX = 10.0
# A peer that takes longer than this does not read its answer.
_ANSWER_S_MAX = 2.0
# Request line and headers together.
REQUEST_BYTES_MAX = 16 * 1024
# Probes in quick succession share a snapshot, so they cannot keep the event loop busy.
SNAPSHOT_REUSED_S = 0.05

_CLOSE_S_MAX = 2.0
_JSON = "application/json; charset=utf-8"
_PATHS = ("/healthz", "/readyz", "/active", "/status", "/metrics")


class StatusServer(Closing):
    """Serves from the moment it is made until ``close``.

    ``bind`` is ``ADDRESS:PORT``; port 0 takes any free one, ``url`` tells which. ``snapshot(timeout_s)``
    returns the node's state or raises TimeoutError. Raises ConfigurationError if the address cannot be
    listened on.
    """

    def __init__(
        self, bind: str, snapshot: Callable[[float], NodeState], *, answer_timeout_s: float = 1.0
    ) -> None:
        try:
            endpoint = parse_http_bind(bind)
            self._server = _Server(endpoint.host, endpoint.port, _Pages(snapshot, answer_timeout_s))
        except ValueError as error:
            raise ConfigurationError(f"http.bind: {error}") from error
        except OSError as error:
            raise ConfigurationError(
                f"http.bind: cannot listen on {bind}: {error.strerror or error}; choose another address, "
                "port 0 for any free one, or null for none"
            ) from error
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="bstar-status", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Where the server is, without a path."""
        host = self._server.server_name
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stop listening and end open requests, in bounded time. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.shutdown()
        self._thread.join(_CLOSE_S_MAX)
        self._server.server_close()


class _Page(msgspec.Struct, frozen=True):
    status: HTTPStatus
    content_type: str
    body: bytes


class _Pages:
    """What each path answers."""

    def __init__(self, snapshot: Callable[[float], NodeState], timeout_s: float) -> None:
        self._ask = snapshot
        self._timeout_s = timeout_s
        self._last: tuple[float, NodeState] | None = None
        self._registry = make_registry(self._state)
        # The collector remembers which services have series of their own.
        self._collecting = threading.Lock()

    def page(self, path: str, accept: str) -> _Page:
        """The answer to GET; an unknown path is 404."""
        if path == "/":
            return self._index()
        if path not in _PATHS:
            return _probe(HTTPStatus.NOT_FOUND, "unknown path", paths=_PATHS)
        try:
            if path == "/metrics":
                return self._metrics(accept)
            state = self._state()
        except (TimeoutError, BstarError) as error:
            text = f"the event loop did not answer within {self._timeout_s:g} s"
            return _probe(HTTPStatus.SERVICE_UNAVAILABLE, str(error) or text)
        if path == "/status":
            return _Page(HTTPStatus.OK, _JSON, msgspec.json.encode(state))
        pair = state.pair
        who: dict[str, object] = {"role": pair.role, "state": pair.state, "epoch": pair.epoch}
        if path == "/healthz":
            return _probe(HTTPStatus.OK, "the event loop answers", **who)
        if path == "/active":
            is_active = pair.is_active and state.broker.is_serving
            status = HTTPStatus.OK if is_active else HTTPStatus.SERVICE_UNAVAILABLE
            return _probe(status, "serves" if is_active else "does not serve", **who)
        ready = state.readiness
        status = HTTPStatus.OK if ready.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        peer = {"peer_state": pair.peer_state, "peer_age_s": pair.peer_age_s}
        return _probe(status, ready.why, reason=ready.reason, **who, **peer)

    def _state(self) -> NodeState:
        last = self._last
        if last is not None and time.monotonic() - last[0] < SNAPSHOT_REUSED_S:
            return last[1]
        state = self._ask(self._timeout_s)
        self._last = (time.monotonic(), state)
        return state

    def _metrics(self, accept: str) -> _Page:
        encode, content_type = choose_encoder(accept)
        with self._collecting:
            return _Page(HTTPStatus.OK, content_type, encode(self._registry))

    @staticmethod
    def _index() -> _Page:
        links = "".join(f'<li><a href="{path}">{html.escape(path)}</a></li>' for path in _PATHS)
        text = f"<!doctype html><title>bstar</title><h1>bstar</h1><ul>{links}</ul>\n"
        return _Page(HTTPStatus.OK, "text/html; charset=utf-8", text.encode())


def _probe(status: HTTPStatus, why: str, **details: object) -> _Page:
    body = msgspec.json.encode({"ok": status == HTTPStatus.OK, "why": why, **details})
    return _Page(status, _JSON, body + b"\n")


class _BoundedReader:
    """Lines of a request, until they have too many octets; the parser then answers 431."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = REQUEST_BYTES_MAX

    def readline(self, limit: int = -1) -> bytes:
        if self._left <= 0:
            raise HTTPException(f"a request has at most {REQUEST_BYTES_MAX} octets")
        line = self._file.readline(min(limit if limit >= 0 else self._left, self._left))
        self._left -= len(line)
        return line

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    server_version = "bstar"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 5.0  # between two pieces of a request

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("BufferedIOBase", _BoundedReader(self.rfile))

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.has_asked(self.connection)
        try:
            page = self.server.pages.page(path, self.headers.get("Accept", ""))
        except Exception:  # noqa: BLE001 - our bug; the peer hears of it at once
            _log.exception("%s failed; this is a defect of bstar", path)
            page = _probe(HTTPStatus.INTERNAL_SERVER_ERROR, "see the node's log")
        self._send(page, with_body=with_body)

    def _refuse(self) -> None:
        # Read the rest of the request, or the connection's reset could overtake our answer.
        length = self.headers.get("Content-Length", "0")
        if length.isdecimal():
            # The first nine digits show that a length is too large.
            self.rfile.read(min(int(length[:9]), REQUEST_BYTES_MAX))
        page = _probe(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not possible here; GET and HEAD are")
        self._send(page, with_body=True, allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 - http.server's names

    def _send(self, page: _Page, *, with_body: bool, allow: str | None = None) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        if allow is not None:
            self.send_header("Allow", allow)
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """No access log."""


class _Connection(msgspec.Struct, eq=False):
    socket: socket.socket
    thread: threading.Thread
    began_at: float
    has_asked: bool = False

    def is_slow(self, now: float) -> bool:
        """True if it has not sent its whole request, or does not read its answer."""
        return not self.has_asked or now - self.began_at >= _ANSWER_S_MAX


class _Server(HTTPServer):
    request_queue_size = 64

    def __init__(self, host: str, port: int, pages: _Pages) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections: dict[socket.socket, _Connection] = {}
        self._lock = threading.Lock()
        super().__init__(("" if host == "*" else host, port), _Handler)

    def server_bind(self) -> None:
        """As the base class does, but without a query to a name server."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name = str(host)
        self.server_port = int(port)

    def process_request(self, request: object, client_address: object) -> None:
        """Answer in a thread of its own; if there are too many, the oldest slow one makes room."""
        assert isinstance(request, socket.socket)
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="bstar-status-request", daemon=True
        )
        now = time.monotonic()
        with self._lock:
            has_room = len(self._connections) < CONNECTIONS_MAX or self._make_room(now)
            if has_room:
                self._connections[request] = _Connection(request, thread, now)
                thread.start()
        if not has_room:
            self.shutdown_request(request)

    def _make_room(self, now: float) -> bool:
        oldest = next((each for each in self._connections.values() if each.is_slow(now)), None)
        if oldest is None:
            return False
        # Its thread ends by itself as soon as it reads or writes.
        del self._connections[oldest.socket]
        _cut(oldest.socket)
        return True

    def has_asked(self, request: socket.socket) -> None:
        """This connection's request has been read."""
        with self._lock:
            connection = self._connections.get(request)
            if connection is not None:
                connection.has_asked = True

    def _serve(self, request: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the peer went away, or took too long and was cut off
        finally:
            with self._lock:
                self._connections.pop(request, None)
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Called every turn of ``serve_forever``: cut connections that take too long."""
        now = time.monotonic()
        with self._lock:
            late = [each for each in self._connections.values() if now >= each.began_at + CONNECTION_S_MAX]
            for connection in late:
                _cut(connection.socket)

    def server_close(self) -> None:
        """Stop listening, and wait a bounded time for the threads after their connections are cut."""
        super().server_close()
        with self._lock:
            open_now = list(self._connections.values())
            for connection in open_now:
                _cut(connection.socket)
        until = time.monotonic() + _CLOSE_S_MAX
        for connection in open_now:
            connection.thread.join(max(0.0, until - time.monotonic()))


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be gone already
        connection.shutdown(socket.SHUT_RDWR)
