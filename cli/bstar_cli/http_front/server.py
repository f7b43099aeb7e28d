"""Serves the HTTP front with uvicorn, within bounds: connections, heads, bodies, slow readers.

The server is a process of its own, so a slow HTTP client costs the node's loop nothing. uvicorn bounds a
message's head and a WebSocket's messages; the front bounds bodies. What is added here: how many connections
there are, how long a head may take, and how long a response may wait for its reader.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final
from weakref import WeakSet

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from bstar.errors import BstarError
from bstar.fleet import Fleet
from bstar.net.descriptors import raise_limit
from bstar.security import Security
from bstar.security.files import LOOK_INTERVAL_S, WatchedFiles
from bstar.security.principals import Principal, Principals
from bstar.settings.principals import watch_principals
from bstar_broker.core.snapshot import FrontState
from bstar_cli.http_front.plan import HttpPlan
from bstar_client import AsyncHAClient
from bstar_client.asgi import HttpFront

# The line and the headers of a request.
HEAD_BYTES_MAX: Final = 16 << 10
# Of what a reader has not taken, so much has to go each ``slow_s``.
_PROGRESS_BYTES: Final = 64 << 10
_KEEP_ALIVE_S: Final = 15.0
# Requests under way when the process is asked to stop.
_STOP_S: Final = 10.0
# How often a front that refuses asks whether its peer still serves: the client then notices its silence.
_WATCH_S: Final = 1.0
_WATCH_TIMEOUT_S: Final = 5.0
NAME: Final = "http"
# Why the server itself ends a connection.
_ENDS: Final = ("connection-refused", "malformed", "slow-head", "slow-reader")
_REPORT_S: Final = 1.0
# On, and no time to linger.
_RESET: Final = struct.pack("ii", 1, 0)
# JSON writes a byte as six characters at most.
_JSON_FACTOR: Final = 6
# Every read of every connection goes there, and is handed on before the next one. By itself asyncio allocates
# 256 KiB for each read, which glibc may map and unmap each time: 20 of 25 µs for a small request.
_READ_BUFFER: Final = memoryview(bytearray(64 << 10))


class Stopper:
    """Ends a server from elsewhere: by SIGTERM or Ctrl-C, or by ``stop``."""

    def __init__(self) -> None:
        self._server: uvicorn.Server | None = None
        self._is_stopped = False

    def watch(self, server: uvicorn.Server) -> None:
        """Stop this server when it is time."""
        self._server = server
        server.should_exit = self._is_stopped

    def stop(self) -> None:
        """Let it finish its requests, within bounds, and end."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The handler of a signal; uvicorn raises again what it took itself."""
        self.stop()


async def serve_http(
    plan: HttpPlan,
    fleet: Fleet,
    security: Security | None,
    listener: socket.socket,
    stopper: Stopper,
    report: Callable[[FrontState], None],
) -> None:
    """Serve until the stopper ends it. ``report`` gets the state each second."""
    raise_limit()
    # A line for each malformed request would be a stranger's to fill the log with.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    # So would be one for each WebSocket that is refused with a status, which uvicorn takes for a defect.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "completing handshake" not in str(record.msg))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopper.on_signal)
    listed = None if plan.principals is None else watch_principals(plan.principals)
    async with AsyncHAClient(fleet, security=security) as client:
        front = HttpFront(client, plan.front, find_principal=None if listed is None else _finder(listed))
        server = uvicorn.Server(config_of(front, plan, front.counts))
        stopper.watch(server)
        bounded = _Listener(listener, plan.connections_max, front.counts)
        tasks = [
            asyncio.create_task(_watch_peer(client, plan.front.local)),
            asyncio.create_task(_report(front, bounded, report)),
        ]
        if listed is not None:
            tasks.append(asyncio.create_task(_look(listed)))
        try:
            await server.serve(sockets=[bounded])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def config_of(app: ASGIApp, plan: HttpPlan, counts: Counter[str]) -> uvicorn.Config:
    """How uvicorn serves an application, within bounds; ``counts`` counts what it ends."""
    counts.update(dict.fromkeys(_ENDS, 0))
    bounds = {"slow_s": plan.front.slow_s, "counts": counts}
    certificate, key = plan.tls or (None, None)
    return uvicorn.Config(
        app,
        http=type("BoundedHttp", (_BoundedHttp,), bounds),
        ws=type("BoundedSocket", (_BoundedSocket,), bounds),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_keep_alive=_KEEP_ALIVE_S,  # type: ignore[arg-type]  # seconds; a float will do
        timeout_graceful_shutdown=_STOP_S,  # type: ignore[arg-type]
        ws_max_size=_JSON_FACTOR * plan.front.body_bytes_max + HEAD_BYTES_MAX,
        ws_per_message_deflate=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


async def _watch_peer(client: AsyncHAClient, local: str | None) -> None:
    """While calls are refused there is nothing that would show the silence of the peer."""
    while local is not None:
        if client.active not in (None, local):
            with contextlib.suppress(BstarError):
                await client.discover("bstar", timeout=_WATCH_TIMEOUT_S)
        await asyncio.sleep(_WATCH_S)


async def _report(front: HttpFront, listener: "_Listener", report: Callable[[FrontState], None]) -> None:
    while True:
        connections = {"connections": len(listener.connections)}
        report(FrontState(NAME, connections, dict(front.counts), levels=front.levels()))
        await asyncio.sleep(_REPORT_S)


def _finder(listed: WatchedFiles[Principals]) -> Callable[[str], Principal | None]:
    def find(token: str) -> Principal | None:
        return listed.value.of_token(token)

    return find


async def _look(listed: WatchedFiles[Principals]) -> None:
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        listed.refresh()


# --- bounds of connections ----------------------------------------------------------------------------------


class _Listener(socket.socket):
    """Takes over a listening socket, and closes a connection that it accepts beyond the bound.

    Here counts what uvicorn does not see: a connection amid its TLS handshake.
    """

    def __init__(self, listening: socket.socket, connections_max: int, counts: Counter[str]) -> None:
        super().__init__(fileno=listening.detach())
        self.connections: WeakSet[socket.socket] = WeakSet()
        self._connections_max = connections_max
        self._counts = counts

    def accept(self) -> tuple[socket.socket, Any]:  # Any: an address has the type of its family
        accepted, address = super().accept()
        if len(self.connections) >= self._connections_max:
            self._counts["connection-refused"] += 1
            accepted.close()
            raise ConnectionAbortedError
        connection = _Connection(self.family, self.type, self.proto, accepted.detach())
        connection.others = self.connections
        self.connections.add(connection)
        return connection, address


class _Connection(socket.socket):
    """Counts until it is closed."""

    others: WeakSet[socket.socket]

    def close(self) -> None:
        self.others.discard(self)
        super().close()


class _Bounded(asyncio.Protocol):
    """A connection. It ends if its reader does not take what is written to it.

    A subclass is also a BufferedProtocol, named last: the server's own ``eof_received`` counts.
    """

    slow_s: float
    counts: Counter[str]
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _write_timer: asyncio.TimerHandle | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(_READ_BUFFER[:nbytes].tobytes())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_watch()
        super().connection_lost(exc)

    def _watch_writes(self) -> None:
        """Something waits for the reader."""
        if self._write_timer is None:
            left = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(self.slow_s, self._check_writes, left)

    def _check_writes(self, before: int) -> None:
        self._write_timer = None
        left = self.transport.get_write_buffer_size()
        if left and left > before - _PROGRESS_BYTES:
            self.counts["slow-reader"] += 1
            # With a reset the kernel, too, forgets what waits.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        elif left:
            self._watch_writes()

    def _end_watch(self) -> None:
        """Everything was taken, or the connection has ended."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _BoundedHttp(_Bounded, H11Protocol, asyncio.BufferedProtocol):
    """A connection that may be slow with the head of a request."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # Any: uvicorn narrows it
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.slow_s, self._end, "slow-head")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_reads()

    def _watch_reads(self) -> None:
        """A head has to come in time, and so has the rest of a body that the response did not wait for."""
        their_state = self.conn.their_state
        is_due = their_state is h11.IDLE or (their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE)
        if is_due and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.slow_s, self._end, "slow-head")
        elif not is_due and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        self.counts["malformed"] += 1
        super().send_400_response(msg)

    def _end(self, why: str) -> None:
        self.counts[why] += 1
        self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._watch_reads()
        if self.transport.get_write_buffer_size():
            self._watch_writes()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)


class _BoundedSocket(_Bounded, WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """A WebSocket whose reader may be slow. The server's pings end one that does not answer."""
