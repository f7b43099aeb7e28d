"""Hangs up on machines that are gone, while something that was sent to them is unacknowledged.

TCP notices a dead machine in two ways. Keepalive does it within half a minute, but only while everything that
was sent is acknowledged, and heartbeats to a dead machine are not. Otherwise TCP sends again for a quarter of
an hour. TCP_USER_TIMEOUT (ZMQ_TCP_MAXRT) would end that earlier. It would also end the connection of a live
client that sends everything before it reads the first reply, because its window is closed meanwhile. ZMTP's
PING would as well, and peers of ZMTP 3.0 do not know it.

So the kernel is asked (TCP_INFO): a connection that sends something again, and has heard nothing at all for
``LIMIT_S``, is shut down; libzmq closes it then. A closed window is no reason: its peer acknowledges.

On Linux only. Elsewhere such a machine is noticed when the system's own TCP gives up.
"""

import logging
import os
import struct
import sys
from itertools import islice
from socket import IPPROTO_TCP, SHUT_RDWR, socket

import zmq

from bstar.reactor import Reactor

_log = logging.getLogger("bstar.broker")

HAS_TCP_INFO = sys.platform == "linux"
# With the interval below, and the time until something is sent to it, it stays within half a minute.
LIMIT_S = 20.0
# TCP_INFO, <linux/tcp.h>; the module socket has it on Linux only.
_TCP_INFO = 11
# A look at a connection takes some microseconds.
_INTERVAL_S = 1.0
_LOOKS_MAX = 1_000

# Of struct tcp_info: tcpi_retransmits at octet 2, tcpi_unacked at 24, tcpi_last_ack_recv at 56.
_INFO = struct.Struct("=2xB21xI28xI")


class Acknowledgements:
    """What the kernel tells of one connection, and since when it hears nothing although it sends again."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def is_dead(self, retransmits: int, unacked: int, heard_s: float, now: float) -> bool:
        """Nothing has been acknowledged for ``LIMIT_S``, while something that was sent waited for that."""
        if not (retransmits and unacked):
            self._since = None
            return False
        if self._since is None or heard_s < now - self._since:
            self._since = now
        return now - self._since >= LIMIT_S


class Connections:
    """The TCP connections that a bound socket has accepted. Its ``DescriptorGuard`` calls ``follow``."""

    def __init__(self, reactor: Reactor) -> None:
        # By descriptor, those that were looked at longest ago first.
        self._open: dict[int, Acknowledgements] = {}
        self.hang_ups = 0
        self._timer = reactor.add_timer(_INTERVAL_S, self._look)

    def close(self) -> None:
        """Look no more. Before the reactor is closed."""
        self._timer.cancel()

    def follow(self, event: int, descriptor: int) -> None:
        """A connection has come or gone, as the monitor of the socket tells."""
        self._open.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            self._open[descriptor] = Acknowledgements()

    def _look(self, now: float) -> None:
        hung_up: list[str] = []
        for descriptor in list(islice(self._open, _LOOKS_MAX)):
            acknowledgements = self._open.pop(descriptor)
            try:
                # A descriptor of our own: libzmq's may be closed at any moment, and then be another's.
                # Whichever connection this is, it is asked and shut down itself.
                with socket(fileno=os.dup(descriptor)) as connection:
                    info = connection.getsockopt(IPPROTO_TCP, _TCP_INFO, _INFO.size)
                    retransmits, unacked, heard_ms = _INFO.unpack(info)
                    if acknowledgements.is_dead(retransmits, unacked, heard_ms / 1000, now):
                        hung_up.append(str(connection.getpeername()[0]))
                        connection.shutdown(SHUT_RDWR)
                        continue
            except (OSError, struct.error):
                continue  # it is closed, or no TCP
            self._open[descriptor] = acknowledgements
        if hung_up:
            self.hang_ups += len(hung_up)
            text = "%d connection(s) acknowledged nothing for %g s, the first from %s: hung up"
            _log.warning(text, len(hung_up), LIMIT_S, hung_up[0])
