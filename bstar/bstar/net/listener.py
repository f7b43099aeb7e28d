"""A bound socket: who connects to it, and who is held off.

A socket has one monitor. The listener reads it, remembers the open connections, and tells its followers:
``DescriptorGuard`` keeps descriptors free, ``HandshakeBudget`` bounds what strangers cost.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import zmq

from bstar.net.connections import ListenerFilter, Peer, hang_up, network_of, peer_of, place_of, watch
from bstar.net.descriptors import DescriptorGuard
from bstar.net.handshakes import HandshakeBudget
from bstar.net.reactor import Reactor
from bstar.net.sockets import receive_event

_log = logging.getLogger("bstar.listener")

_EVENTS_MAX = 1_000
_LISTENING_MS = 1_000
_LOOK_INTERVAL_S = 0.25
# Each network that is held off is named this often at most, and this many of them.
_REPORT_INTERVAL_S = 60.0
_REPORTED_MAX = 20


class Opened(NamedTuple):
    """An open connection. ``peer`` is None if it ended before its address could be asked."""

    peer: Peer | None
    network: bytes | None
    at: float


Follower = Callable[[int, int], object]
"""Gets each EVENT_ACCEPTED and EVENT_DISCONNECTED with the connection's descriptor."""


class Listener:
    """Binds a socket. In the reactor's thread.

    ``is_keyed``: the socket takes CURVE connections only, and its owner calls ``authenticated`` for each.
    ``open`` are the connections by descriptor. Raises zmq.ZMQError if the socket cannot be bound to
    ``endpoint``.
    """

    def __init__(
        self, reactor: Reactor, socket: "zmq.Socket[bytes]", endpoint: str, *, is_keyed: bool = False
    ) -> None:
        self._reactor = reactor
        self._socket = socket
        self._is_keyed = is_keyed
        self.open: dict[int, Opened] = {}
        self.accepted = 0
        self.hang_ups = 0
        self._followers: list[Follower] = []
        self._report = _Report(endpoint)
        self._monitor: zmq.Socket[bytes] | None = watch(
            socket,
            zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
            | (0 if is_keyed else zmq.EVENT_HANDSHAKE_SUCCEEDED),
        )  # fmt: skip
        listening = None
        try:
            socket.bind(endpoint)
            self._place = place_of(socket)
            if self._monitor.poll(0 if self._place is None else _LISTENING_MS):
                listening = receive_event(self._monitor)[1]
        except BaseException:
            self._close_monitor()
            raise
        self.filter = ListenerFilter(listening)
        self.budget = HandshakeBudget(reactor.now())
        self.descriptors = DescriptorGuard(self.filter, endpoint)
        reactor.add_source(self._monitor, self._on_events)
        self._timer = reactor.add_timer(_LOOK_INTERVAL_S, self._look)

    def close(self) -> None:
        """Stop. Call it before the socket and the reactor close. Idempotent."""
        if self._monitor is None:
            return
        self._timer.cancel()
        self._reactor.remove(self._monitor)
        self._close_monitor()

    def _close_monitor(self) -> None:
        assert self._monitor is not None
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._monitor = None

    def add_follower(self, follower: Follower) -> None:
        """Tell it of connections from now on."""
        self._followers.append(follower)

    def authenticated(self, address: str) -> None:
        """A connection from this address proved a key that may connect."""
        self.budget.authenticated(network_of(address))

    def hang_up(self, descriptor: int) -> None:
        """End an open connection."""
        opened = self.open.get(descriptor)
        if hang_up(descriptor, self._place, None if opened is None else opened.peer):
            self.hang_ups += 1

    def hang_up_all(self) -> None:
        """End all open connections."""
        self.catch_up()
        for descriptor in list(self.open):
            self.hang_up(descriptor)

    def catch_up(self) -> None:
        """Take note of all that has happened to connections until now."""
        while self._monitor is not None and self._monitor.poll(0):
            self._on_events(self._reactor.now())

    # --- events ---------------------------------------------------------------------------------------------

    def _on_events(self, now: float) -> None:
        assert self._monitor is not None
        for _ in range(_EVENTS_MAX):
            if not self._monitor.poll(0):
                break
            event, value = receive_event(self._monitor)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.budget.authenticated(None)
                continue
            if event == zmq.EVENT_ACCEPTED:
                self._on_accepted(value, now)
            else:
                self._on_ended(value, now)
            for follow in self._followers:
                follow(event, value)
        self._apply(now)

    def _on_accepted(self, descriptor: int, now: float) -> None:
        self.accepted += 1
        self._on_ended(descriptor, now)
        peer = peer_of(descriptor)
        network = None if peer is None or not self._is_keyed else network_of(peer[0])
        self.open[descriptor] = Opened(peer, network, now)
        self.budget.accepted(network, now)
        # It waited in the kernel's queue when the others were held off.
        is_held = self.budget.is_all_held or network in self.budget.held
        if self.descriptors.accepted(descriptor, now) or is_held:
            self.hang_up(descriptor)

    def _on_ended(self, descriptor: int, now: float) -> None:
        opened = self.open.pop(descriptor, None)
        if opened is not None:
            self.budget.ended(opened.network, opened.at, now)

    def _look(self, now: float) -> None:
        self.descriptors.look(now)
        self.budget.look(now)
        self._apply(now)

    def _apply(self, now: float) -> None:
        """Let the kernel do what the budget says."""
        budget = self.budget
        self.filter.hold(budget.held)
        self.filter.hold_all("handshakes", is_held=budget.is_all_held)
        self._report.of(budget.held | ({b""} if budget.is_all_held else frozenset()), now)


class _Report:
    """Names in the log who is held off, each once in a while, and only so many."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._began_at = float("-inf")
        self._named: set[bytes] = set()

    def of(self, held: frozenset[bytes], now: float) -> None:
        """These are held off now; b"" stands for all."""
        if now - self._began_at >= _REPORT_INTERVAL_S:
            self._began_at = now
            self._named.clear()
        new = sorted(held - self._named)[: _REPORTED_MAX - len(self._named)]
        if new:
            self._named.update(new)
            _log.warning(
                "too many connections to %s without a handshake: new ones from %s are held off a while. "
                "Find out who connects there: a program without a key of the list, a scanner, an attack",
                self._endpoint,
                ", ".join(map(_shown, new)),
            )


def _shown(network: bytes) -> str:
    """As the log has it."""
    if not network:
        return "everywhere"
    if len(network) == 4:
        return ".".join(map(str, network))
    return ":".join(network[at : at + 2].hex() for at in range(0, 8, 2)) + "::/64"
