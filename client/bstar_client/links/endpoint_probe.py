"""Finds out what is at an endpoint to which no connection comes up, for the text of an error or a warning.

ZeroMQ reports little more than that there is no connection. So a probe connects by itself, once, and reads
what the other side says first: its greeting in ZMTP, or its answer to a line of HTTP. It sends no message of
ours, and no node counts it as a client. Nothing calls it while calls go well. Each probe has a thread of its
own, because a look-up of a name cannot be interrupted; results are kept for some seconds.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from bstar.base.printable import printable
from bstar.errors import NoActiveNodeError

# How long an error waits for its probes: what is near answers within milliseconds.
WAIT_S = 0.4
# A probe's own bound, beside the look-up of its name. A late result is there for the next error.
_PROBE_S_MAX = 2.0
# A server that speaks ZeroMQ greets at once. After this much silence the probe asks for a page.
_GREETING_S = 0.15
# Errors that come together share one probe.
_KEPT_S = 5.0
# An endpoint whose look-up hangs is not probed again before.
_HANGS_S = 60.0
# Programs have a handful of endpoints; a program that makes them up must not fill the memory.
_KEPT_MAX = 1_000

_CLIENTS_PORT = "clients and workers connect to a node's endpoints.clients"

# 37/ZMTP: a greeting is the signature, the version, the mechanism and zeros.
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_VERSION = b"\x03\x01"
_NULL_MECHANISM = b"NULL".ljust(20, b"\0") + bytes(32)
_GREETING_BYTES = 64
_READY_BYTES_MAX = 512

# How the words begin that tell of something else than a node.
_ELSEWHERE = ("speaks ", "is a state port", "is another", "name not found")

_kept: "dict[tuple[str, bool], tuple[float, Future[str]]]" = {}
_lock = threading.Lock()


def explain(error: NoActiveNodeError, *, has_keys: bool) -> None:
    """Say in the error's text what is at the endpoints without a connection. It takes ``WAIT_S`` at most."""
    _complete(error, look(error.unreached, has_keys=has_keys))


async def explain_async(error: NoActiveNodeError, *, has_keys: bool) -> None:
    """As ``explain``, in an event loop."""
    import asyncio  # noqa: PLC0415 - it is loaded here; programs with threads do without it

    if not error.unreached:
        return
    probes = {endpoint: _probe(endpoint, has_keys) for endpoint in error.unreached}
    waiters = [asyncio.wrap_future(probe) for probe in probes.values()]
    try:
        await asyncio.wait(waiters, timeout=WAIT_S)
    finally:
        for waiter in waiters:
            waiter.cancel()  # a probe that ends later must not call a loop that is closed
    _complete(error, {endpoint: _result(probe, 0.0) for endpoint, probe in probes.items()})


def look(endpoints: Iterable[str], *, has_keys: bool) -> dict[str, str]:
    """What is at each endpoint, in a few words. Empty words: nothing is known, or nothing is odd there.

    It takes ``WAIT_S`` at most.
    """
    probes = {endpoint: _probe(endpoint, has_keys) for endpoint in endpoints}
    until = time.monotonic() + WAIT_S
    return {
        endpoint: _result(probe, max(0.0, until - time.monotonic())) for endpoint, probe in probes.items()
    }


def is_elsewhere(what: str) -> bool:
    """True if these words of ``look`` say that the endpoint is not a node's for clients."""
    return what.startswith(_ELSEWHERE)


def _result(probe: "Future[str]", wait_s: float) -> str:
    try:
        return probe.result(wait_s)
    except TimeoutError:
        return ""


def _complete(error: NoActiveNodeError, found: dict[str, str]) -> None:
    text = str(error)
    for endpoint, what in found.items():
        if what:
            text = text.replace(f"{endpoint}: {error.unreached[endpoint]}", f"{endpoint}: {what}")
    error.args = (text, *error.args[1:])


def _probe(endpoint: str, has_keys: bool) -> "Future[str]":
    """A probe that runs or has just run, or a new one."""
    key, now = (endpoint, has_keys), time.monotonic()
    with _lock:
        if key in _kept:
            begun_at, probe = _kept[key]
            if now < begun_at + (_KEPT_S if probe.done() else _HANGS_S):
                return probe
        probe = Future()
        probe.set_running_or_notify_cancel()  # so that no waiting task can cancel it
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        _kept[key] = now, probe
    threading.Thread(
        target=_run, args=(probe, endpoint, has_keys), name="bstar-endpoint-probe", daemon=True
    ).start()
    return probe


def _run(probe: "Future[str]", endpoint: str, has_keys: bool) -> None:
    try:
        probe.set_result(_what_is_at(endpoint, has_keys))
    except Exception as error:  # noqa: BLE001 - a probe must not hide the error that it explains
        probe.set_result(f"cannot be probed: {type(error).__name__}: {error}")


# --- one endpoint -------------------------------------------------------------------------------------------


def _what_is_at(endpoint: str, has_keys: bool) -> str:
    """In a few words, without the endpoint's name."""
    transport, _, rest = endpoint.partition("://")
    try:
        if transport == "ipc":
            connection = _connect(socket.AF_UNIX, rest)
        elif transport == "tcp":
            # As libzmq does: the part before a semicolon is the address to connect from.
            host, _, port = rest.rpartition(";")[2].rpartition(":")
            try:
                found = socket.getaddrinfo(host.strip("[]"), int(port), socket.AF_INET, socket.SOCK_STREAM)
            except (socket.gaierror, UnicodeError) as error:
                reason = error.strerror if isinstance(error, socket.gaierror) else "not a name"
                return f'name not found: "{printable(host)}" ({reason})'
            connection = _connect(socket.AF_INET, found[0][4])
        else:
            return ""
    except ConnectionRefusedError:
        return "connection refused: no process listens there"
    except FileNotFoundError:
        return "no such socket: no process listens there"
    except TimeoutError:
        return "no answer to the attempt to connect: a wrong address, a machine that is down, or a firewall"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    with contextlib.closing(connection):
        try:
            return _what_speaks(connection, has_keys)
        except OSError as error:
            return f"broke the connection: {error.strerror or error}"


def _connect(family: int, address: Any) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PROBE_S_MAX)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _what_speaks(connection: socket.socket, has_keys: bool) -> str:
    until = time.monotonic() + _PROBE_S_MAX
    first = _read(connection, len(_SIGNATURE), time.monotonic() + _GREETING_S)
    if first is None:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        first = _read(connection, len(_SIGNATURE), until)
    if first is None:
        return "accepts connections and says nothing: a process that is stopped or busy, or another protocol"
    if first[:1] == b"\xff" and first[9:10] == b"\x7f":
        return _what_greets(connection, first, until, has_keys)
    if first.startswith(b"HTTP/"):
        return f"speaks HTTP: {_CLIENTS_PORT}, not to http.bind"
    if first.startswith(b"\x15\x03"):
        return f"speaks TLS: {_CLIENTS_PORT}"
    if not first:
        return "accepts a connection and closes it: a proxy whose target is away?"
    return f'speaks another protocol (it begins with "{printable(first)}")'


def _what_greets(connection: socket.socket, first: bytes, until: float, has_keys: bool) -> str:
    # libzmq says its mechanism when it knows the version. After one that it does not take it says nothing.
    connection.sendall(_SIGNATURE + _VERSION)
    greeting = first + (_read(connection, _GREETING_BYTES - len(first), until) or b"")
    mechanism = greeting[12:32].rstrip(b"\0")
    if mechanism == b"CURVE":
        if has_keys:
            return ""
        return "handshake failed: it wants keys (CURVE), and this side has none: pass security= or --key-file"
    if mechanism != b"NULL":
        return f"speaks ZeroMQ with the mechanism {printable(mechanism)}" if mechanism else ""
    if has_keys:
        return "handshake failed: it takes no keys, and this side has one: a node without security.key?"
    connection.sendall(_NULL_MECHANISM)
    kind = _socket_type(_read(connection, _READY_BYTES_MAX, until, least=1) or b"")
    if kind in ("PUB", "XPUB"):
        return f"is a state port ({kind}): {_CLIENTS_PORT}, not to endpoints.state"
    return f"is another ZeroMQ socket ({kind}), which is no broker" if kind and kind != "ROUTER" else ""


def _socket_type(ready: bytes) -> str:
    """The property Socket-Type of a READY command of ZMTP; empty if it is not in these bytes."""
    _, found, rest = ready.partition(b"\x0bSocket-Type")
    length = int.from_bytes(rest[:4], "big")
    return printable(rest[4 : 4 + min(length, 20)]) if found else ""


def _read(connection: socket.socket, count: int, until: float, *, least: int = 0) -> bytes | None:
    """As many bytes; fewer if the other side closes, or if it sends no more and there are ``least``.

    None: nothing came in time.
    """
    read = b""
    with contextlib.suppress(TimeoutError):
        while len(read) < count and not (least and len(read) >= least):
            connection.settimeout(max(0.001, until - time.monotonic()))
            part = connection.recv(count - len(read))
            if not part:
                return read
            read += part
    return read or None
