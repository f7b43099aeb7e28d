"""A small HTTP server for a process's pages that no peer can slow down or fill up.

It has a thread for itself and one for each connection. A connection carries one request. Requests are bounded
in size, number and time; there is no access log. When all connections are taken, the oldest one without a
whole request makes room: a peer that sends its request at once is always answered.

A page may be a stream of events without an end. Streams are few, each lives for a bounded time, and one whose
reader does not keep up is cut. TLS and credentials are a proxy's (docs/security.md).
"""

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from typing import cast

import msgspec

from bstar.net.connections import network_of

_log = logging.getLogger("bstar.http")

# Two Prometheus servers, two load balancers and a person, several times over.
CONNECTIONS_MAX = 32
# A connection carries one request; a probe needs less time.
CONNECTION_S_MAX = 10.0
# A peer that takes longer than this does not read its answer.
_ANSWER_S_MAX = 2.0
# Between two pieces of a request.
PIECE_S_MAX = 5.0
# Request line and headers together.
REQUEST_BYTES_MAX = 16 * 1024
# Tabs that somebody watches. A stream takes one of the connections, and most of them stay for probes.
# Addresses (IPv6: /64) share them, so that one reader cannot hold all.
STREAMS_MAX = 8
# Then its reader connects again.
STREAM_S_MAX = 600.0
# What a reader may be behind: bytes in the kernel, and the time for which they are not taken.
_STREAM_BUFFER_BYTES = 64 * 1024
STREAM_BEHIND_S_MAX = 5.0
# After a connection that could not be accepted: it stays in the kernel's queue, so the listener stays ready.
_ACCEPT_PAUSE_S = 0.2
# How long the server lets its threads end.
CLOSE_S_MAX = 2.0

JSON = "application/json; charset=utf-8"


class Page(msgspec.Struct, frozen=True):
    """An answer; ``headers`` beside those of every answer."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(msgspec.Struct, frozen=True):
    """An answer that goes on until the server or the peer ends it, a piece at a time."""

    content_type: str
    pieces: Iterator[bytes]


def said(status: HTTPStatus, why: str, **details: object) -> Page:
    """A page for a program and a person: ``ok``, ``why`` and details, as JSON."""
    body = msgspec.json.encode({"ok": status == HTTPStatus.OK, "why": why, **details})
    return Page(status, JSON, body + b"\n")


class _BoundedReader:
    """Lines of a request, until they have too many bytes; the parser then answers 431."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = REQUEST_BYTES_MAX

    def readline(self, limit: int = -1) -> bytes:
        if self._left <= 0:
            raise HTTPException(f"a request has at most {REQUEST_BYTES_MAX} bytes")
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
    server: "BoundedServer"
    server_version = "bstar"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    # A request line without a version, or one that is too long for it, is answered like any other.
    default_request_version = "HTTP/1.1"
    timeout = PIECE_S_MAX

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("BufferedIOBase", _BoundedReader(self.rfile))

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        self.server.has_asked()
        page = self._page(self.path.partition("?")[0])
        if isinstance(page, Stream) and with_body and not self.server.may_stream():
            page = said(HTTPStatus.SERVICE_UNAVAILABLE, f"{STREAMS_MAX} streams are open already")
        if isinstance(page, Stream):
            self._send_stream(page, with_body=with_body)
        else:
            self._send(page, with_body=with_body)

    def _page(self, path: str) -> Page | Stream:
        try:
            return self.server.answer(path, self.headers.get("Accept", ""))
        except Exception:  # noqa: BLE001 - our bug; the peer hears of it at once
            _log.exception("%s failed; this is a defect of bstar", path)
            return said(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log")

    def _send_stream(self, stream: Stream, *, with_body: bool) -> None:
        self._send_head(HTTPStatus.OK, stream.content_type)
        self.end_headers()
        if not with_body:
            return
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _STREAM_BUFFER_BYTES)
        self.connection.settimeout(STREAM_BEHIND_S_MAX)
        for piece in stream.pieces:
            self.wfile.write(piece)

    def _refuse_method(self) -> None:
        # Read the rest of the request, or the connection's reset could overtake our answer.
        length = self.headers.get("Content-Length", "0")
        if length.isdecimal():
            # The first nine digits show that a length is too large.
            self.rfile.read(min(int(length[:9]), REQUEST_BYTES_MAX))
        page = said(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not possible here; GET and HEAD are")
        self._send(msgspec.structs.replace(page, headers=(("Allow", "GET, HEAD"),)), with_body=True)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method  # noqa: N815 - http.server's names

    def _send(self, page: Page, *, with_body: bool) -> None:
        self._send_head(page.status, page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        for name, value in page.headers:
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def _send_head(self, status: HTTPStatus, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        # A text of the wire in JSON is never taken for a page.
        self.send_header("X-Content-Type-Options", "nosniff")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """No access log."""


class _Connection(msgspec.Struct, eq=False):
    socket: socket.socket
    began_at: float
    network: bytes | None = None
    has_asked: bool = False
    is_stream: bool = False

    @property
    def ends_at(self) -> float:
        """When it is cut at the latest."""
        return self.began_at + (STREAM_S_MAX if self.is_stream else CONNECTION_S_MAX)

    def is_slow(self, now: float) -> bool:
        """True if it has not sent its whole request, or does not read its answer."""
        return not self.is_stream and (not self.has_asked or now - self.began_at >= _ANSWER_S_MAX)


class BoundedServer(HTTPServer):
    """Listens from the moment it is made. ``answer(path, accept)`` makes the page or the stream of a GET.

    Raises OSError if the address cannot be listened on.
    """

    request_queue_size = 64

    def __init__(self, host: str, port: int, answer: Callable[[str, str], Page | Stream]) -> None:
        self.answer = answer
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Each by its thread, the oldest first.
        self._connections: dict[threading.Thread, _Connection] = {}
        self._lock = threading.Lock()
        self._accepts = True
        super().__init__(("" if host == "*" else host, port), _Handler)

    def server_bind(self) -> None:
        """As the base class does, but without a query to a name server."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name = str(host)
        self.server_port = int(port)

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection. OSError after a pause if that fails, usually for want of descriptors."""
        try:
            accepted = super().get_request()
        except OSError as error:
            if self._accepts:
                _log.warning("no HTTP connection can be accepted: %s", error.strerror or error)
            self._accepts = False
            time.sleep(_ACCEPT_PAUSE_S)
            raise
        self._accepts = True
        return accepted

    def process_request(self, request: object, client_address: object) -> None:
        """Answer in a thread of its own; if there are too many, the oldest slow one makes room."""
        assert isinstance(request, socket.socket)
        now = time.monotonic()
        connection = _Connection(request, now, network_of(cast("tuple[str, int]", client_address)[0]))
        thread = threading.Thread(
            target=self._serve, args=(connection, client_address), name="bstar-status-request", daemon=True
        )
        with self._lock:
            has_room = len(self._connections) < CONNECTIONS_MAX or self._make_room(now)
            if has_room:
                try:
                    thread.start()
                except RuntimeError as error:  # the process may have no more threads
                    _log.warning("an HTTP request got no answer: %s", error)
                    has_room = False
                else:
                    self._connections[thread] = connection
        if not has_room:
            self.shutdown_request(request)

    def _make_room(self, now: float) -> bool:
        connections = self._connections.items()
        oldest = next((thread for thread, each in connections if each.is_slow(now)), None)
        if oldest is None:
            return False
        # Its thread ends by itself as soon as it reads or writes.
        _cut(self._connections.pop(oldest).socket)
        return True

    def has_asked(self) -> None:
        """The request of this thread's connection has been read."""
        with self._lock:
            connection = self._connections.get(threading.current_thread())
            if connection is not None:
                connection.has_asked = True

    def may_stream(self) -> bool:
        """True if this thread's connection is a stream from now on; False if there are too many.

        If there are, the network with the most of them gives up its oldest one, unless the new one would
        only take its place.
        """
        with self._lock:
            connection = self._connections.get(threading.current_thread())
            if connection is None:
                return False
            streams = [(thread, each) for thread, each in self._connections.items() if each.is_stream]
            if len(streams) >= STREAMS_MAX:
                count_of = Counter(each.network for _, each in streams)
                most, count = count_of.most_common(1)[0]
                if count < count_of[connection.network] + 2:
                    return False
                thread, oldest = next((thread, each) for thread, each in streams if each.network == most)
                # Its thread ends when it writes the next event.
                del self._connections[thread]
                _cut(oldest.socket)
            connection.is_stream = True
            return True

    def _serve(self, connection: _Connection, client_address: tuple[str, int]) -> None:
        try:
            self.finish_request(connection.socket, client_address)
        except OSError:
            pass  # the peer went away, or took too long and was cut off
        finally:
            with self._lock:
                self._connections.pop(threading.current_thread(), None)
            self.shutdown_request(connection.socket)

    def service_actions(self) -> None:
        """Called every turn of ``serve_forever``: cut connections that take too long."""
        now = time.monotonic()
        with self._lock:
            for each in self._connections.values():
                if now >= each.ends_at:
                    _cut(each.socket)

    def server_close(self) -> None:
        """Stop listening, and wait a bounded time for the threads after their connections are cut."""
        super().server_close()
        with self._lock:
            threads = list(self._connections)
            for each in self._connections.values():
                _cut(each.socket)
        until = time.monotonic() + CLOSE_S_MAX
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be gone already
        connection.shutdown(socket.SHUT_RDWR)
