"""Finds out by a few plain connects, beside the loop's other work, whether the peer's endpoint refuses.

A process that dies closes its listening socket, so its kernel refuses connections; a process that is frozen,
slow or cut off refuses no connection. ``RefusalProbe.start`` connects to the endpoint, several times within
``PROBE_S``, because a dying process may let a connection in for a moment. One attempt that every address of
the endpoint refuses is the verdict, and ``on_refused`` is called. Connections that succeed, time out, are
reset or find no way say nothing.

Nothing here blocks. A thread looks a host name up while the peer lives (``prepare``), because the name may
vanish with the peer.

The state machine decides what a refused connection means. A firewall, NAT or proxy between the nodes can
refuse in the name of a live process; this module cannot tell.
"""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from errno import ECONNREFUSED, EINPROGRESS, ENOTCONN
from functools import partial
from ipaddress import IPv6Address

from bstar.base.endpoints import Endpoint
from bstar.errors import ClosedError
from bstar.net.agenda import Timer
from bstar.net.reactor import Reactor

_log = logging.getLogger("bstar.pair")

PROBE_S = 0.2
# When to connect, after the start: at once, then at growing intervals.
_ATTEMPTS_AT_S = (0.0, 0.005, 0.015, 0.035, 0.075, 0.155)
# How many addresses of one host name it asks. With more, a refused connection proves nothing.
_ADDRESSES_MAX = 8

# The arguments of socket.socket and connect: a family, and an address of that family.
_Target = tuple[int, tuple[str, int] | tuple[str, int, int, int] | str]


class RefusalProbe:
    """Probes whether a process listens at ``remote`` (``tcp`` or ``ipc``). For the reactor's thread.

    ``on_refused(now)`` is called once per ``start``, at most, and never after ``cancel``.
    """

    def __init__(self, reactor: Reactor, remote: Endpoint, on_refused: Callable[[float], None]) -> None:
        self._reactor = reactor
        self._remote = remote
        self._on_refused = on_refused
        self._targets = _numeric_targets(remote)
        self._is_named = not self._targets
        self._is_looking_up = False
        self._sockets: dict[int, socket.socket] = {}
        self._timers: list[Timer] = []
        self._refused = 0

    def prepare(self) -> None:
        """The peer is alive: look its name up. No effect on numeric addresses and paths."""
        if self._is_named and not self._is_looking_up:
            self._is_looking_up = True
            # A look-up may take longer than the end of the process may.
            threading.Thread(target=self._look_up, name="bstar-peer-name", daemon=True).start()

    def start(self, now: float) -> None:
        """Begin from the start."""
        self.cancel()
        if not self._targets:
            _log.warning("the addresses of %s are not known: its silence decides", self._remote.host)
            return
        self._timers = [self._reactor.call_at(now + after_s, self._attempt) for after_s in _ATTEMPTS_AT_S[1:]]
        self._timers.append(self._reactor.call_at(now + PROBE_S, lambda now: self.cancel()))
        self._attempt(now)

    def cancel(self) -> None:
        """Stop the probe. Idempotent."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        self._drop_sockets()

    def _attempt(self, now: float) -> None:
        self._drop_sockets()
        self._refused = 0
        for family, address in self._targets:
            try:
                connecting = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                _log.warning("the peer's endpoint could not be asked: %s", error)
                return
            connecting.setblocking(False)
            code = connecting.connect_ex(address)
            if code == EINPROGRESS:
                descriptor = connecting.fileno()
                self._sockets[descriptor] = connecting
                self._reactor.add_source(descriptor, partial(self._on_ready, connecting))
                continue
            connecting.close()
            if code == ECONNREFUSED:
                self._count_refusal(now)

    def _on_ready(self, connecting: socket.socket, now: float) -> None:
        code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            try:
                connecting.getpeername()
            except OSError as error:
                if error.errno == ENOTCONN:
                    return  # the event belongs to an earlier socket with this number
                raise
        self._drop(connecting)
        if code == ECONNREFUSED:
            self._count_refusal(now)

    def _count_refusal(self, now: float) -> None:
        self._refused += 1
        if self._refused == len(self._targets):
            self.cancel()
            self._on_refused(now)

    def _drop(self, connecting: socket.socket) -> None:
        descriptor = connecting.fileno()
        del self._sockets[descriptor]
        self._reactor.remove(descriptor)
        connecting.close()

    def _drop_sockets(self) -> None:
        for connecting in list(self._sockets.values()):
            self._drop(connecting)

    # --- names --------------------------------------------------------------------------------------------

    def _look_up(self) -> None:
        """In a thread of its own."""
        targets: tuple[_Target, ...] = ()
        trouble = ""
        try:
            found = socket.getaddrinfo(self._remote.host, self._remote.port, type=socket.SOCK_STREAM)
        except OSError as error:
            trouble = str(error)
        else:
            targets = tuple(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]
            if len(targets) > _ADDRESSES_MAX:
                trouble = f"it has {len(targets)} addresses"
        with suppress(ClosedError):  # the node has ended: no one needs the answer
            self._reactor.call_threadsafe(lambda: self._take_targets(targets, trouble))

    def _take_targets(self, targets: tuple[_Target, ...], trouble: str) -> None:
        self._is_looking_up = False
        if trouble:
            # Keep the earlier addresses: they were the peer's.
            _log.warning("the peer's name %s could not be used: %s", self._remote.host, trouble)
        else:
            self._targets = targets


def _numeric_targets(remote: Endpoint) -> tuple[_Target, ...]:
    if remote.transport == "ipc":
        return ((socket.AF_UNIX, remote.unix_path),)
    address = remote.address
    if address is None:
        return ()
    if isinstance(address, IPv6Address):
        return ((socket.AF_INET6, (str(address), remote.port, 0, 0)),)
    return ((socket.AF_INET, (str(address), remote.port)),)
