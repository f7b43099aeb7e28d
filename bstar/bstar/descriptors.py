"""Keeps accepted connections from using up a process's descriptors.

Without a free descriptor libzmq's listener spins: its thread takes a whole core and logs nothing. The link to
the peer, health probes and files get no descriptor either. So the kernel holds new connections off a little
earlier, until others have ended (``connections``). A client of two nodes finds the other one meanwhile.

The kernel gives the lowest free number. So the number of a new descriptor shows how many there are at least;
no count is needed.
"""

import logging
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import zmq

from bstar.connections import hang_up, hold_off, place_of, watch
from bstar.reactor import Reactor
from bstar.sockets import receive_event

_log = logging.getLogger("bstar.descriptors")

# Reserved for the state link and its observers, for HTTP, and for files; a quarter if the limit is very low.
RESERVE = 64
# Connections are let in again when this many more descriptors are free.
_MARGIN = 8
_LOOK_INTERVAL_S = 1.0
# A shortage that comes and goes is reported this often at most.
_REPORT_INTERVAL_S = 600.0
_EVENTS_MAX = 1_000
_LISTENING_MS = 1_000


def raise_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: the usual soft limit is too low for a broker.
    Programs call it at their start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DescriptorGuard:
    """Binds a socket and holds off its new connections while descriptors are short. In the reactor's thread.

    ``maximum`` is the process's limit. ``is_short``: it holds connections off now; ``shortages`` counts how
    often that began.

    A socket has one monitor, and the guard uses it: ``follow`` gets each EVENT_ACCEPTED and
    EVENT_DISCONNECTED with the connection's descriptor.
    """

    def __init__(
        self,
        reactor: Reactor,
        socket: "zmq.Socket[bytes]",
        endpoint: str,
        follow: Callable[[int, int], object] | None = None,
    ) -> None:
        """Raises zmq.ZMQError if the socket cannot be bound to ``endpoint``."""
        self._reactor = reactor
        self._socket = socket
        self._endpoint = endpoint
        self.maximum, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self.maximum == resource.RLIM_INFINITY:
            self.maximum = sys.maxsize
        self.is_short = False
        self.shortages = 0
        self._reported_at = float("-inf")
        self._is_told = False
        self._threshold = self.maximum - min(RESERVE, self.maximum // 4)
        self._listener: int | None = None
        self._is_closed = False
        self._follow = follow
        self._monitor = watch(socket, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        try:
            socket.bind(endpoint)
            self._place = place_of(socket)
            if self._monitor.poll(0 if self._place is None else _LISTENING_MS):
                self._listener = receive_event(self._monitor)[1]
        except BaseException:
            self._close_monitor()
            raise
        reactor.add_source(self._monitor, self._on_events)
        self._timer = reactor.add_timer(_LOOK_INTERVAL_S, self._look)

    def close(self) -> None:
        """Stop. Call it before the socket and the reactor close. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._timer.cancel()
        self._reactor.remove(self._monitor)
        self._close_monitor()

    def _close_monitor(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)

    def _on_events(self, now: float) -> None:
        for _ in range(_EVENTS_MAX):
            if not self._monitor.poll(0):
                return
            event, descriptor = receive_event(self._monitor)
            if self._follow is not None:
                self._follow(event, descriptor)
            if event == zmq.EVENT_ACCEPTED and descriptor >= self._threshold:
                self._hold_off(now)
                # It waited in the kernel's queue; the listener spins while that is not empty.
                hang_up(descriptor, self._place)

    def _look(self, now: float) -> None:
        """Check the limit: files and other sockets also take and free descriptors."""
        if not self.is_short:
            if _lowest_free(self.maximum) >= self._threshold:
                self._hold_off(now)
        elif _count(self.maximum) <= self._threshold - min(_MARGIN, self._threshold // 4):
            self.is_short = False
            if self._listener is not None:
                hold_off(self._listener, is_held=False)
            if self._is_told:
                self._is_told = False
                _log.info("descriptors are free again: new connections to %s are let in", self._endpoint)

    def _hold_off(self, now: float) -> None:
        if self.is_short:
            return
        self.is_short = True
        self.shortages += 1
        if self._listener is not None:
            hold_off(self._listener, is_held=True)
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            self._is_told = True
            _log.warning(
                "descriptors are short: %d of the %d that this process may have are in use. The rest is for "
                "the peer, probes and files. New connections to %s wait until others end. Raise the limit "
                "(ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of docker), or find out who connects "
                "so often",
                self._threshold,
                self.maximum,
                self._endpoint,
            )


def _lowest_free(maximum: int) -> int:
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # there is none, of this process or of the whole system
        return maximum
    os.close(descriptor)
    return descriptor


def _count(maximum: int) -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except FileNotFoundError:
        return _lowest_free(maximum)
    except OSError:
        return maximum
