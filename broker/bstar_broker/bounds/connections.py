"""Closes connections to dead machines that still owe an acknowledgement.

TCP notices a dead machine in two ways. Keepalive does it within half a minute, but only if nothing is
unacknowledged, and heartbeats to a dead machine are. Otherwise TCP retransmits for a quarter of an hour.
TCP_USER_TIMEOUT (ZMQ_TCP_MAXRT) would end that earlier. It would also end the connection of a live client
that sends everything before it reads the first reply, because its window is closed meanwhile. ZMTP's PING
would as well, and peers of ZMTP 3.0 do not know it.

So this module asks the kernel (TCP_INFO). It shuts a connection down that retransmits and has heard nothing
for ``LIMIT_S``; libzmq then closes it. A closed window is no reason: its peer acknowledges.

On Linux only. Elsewhere TCP itself notices such a machine when it gives up.
"""

import logging
import os
import struct
import sys
from collections.abc import Callable
from errno import EMFILE, ENFILE
from itertools import islice
from socket import IPPROTO_TCP, SHUT_RDWR, socket

import zmq

from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar_broker.core.waiting import Waiting

_log = logging.getLogger("bstar.broker")

HAS_TCP_INFO = sys.platform == "linux"
# With the interval below, and the time until something is sent to it, it stays within half a minute.
LIMIT_S = 20.0
# TCP_INFO, <linux/tcp.h>; the module socket has it on Linux only.
_TCP_INFO = 11
# A look at a connection takes some microseconds.
_INTERVAL_S = 1.0
_LOOKS_MAX = 1_000

# Messages of a connection that has ended are read for so long at most.
_UNREAD_S = 10.0

# Of struct tcp_info: tcpi_retransmits at byte 2, tcpi_unacked at 24, tcpi_last_ack_recv at 56.
_INFO = struct.Struct("=2xB21xI28xI")


class Acknowledgements:
    """The kernel's view of one connection, and since when it retransmits and hears nothing."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def is_dead(self, retransmits: int, unacked: int, heard_s: float, now: float) -> bool:
        """True if nothing was acknowledged for ``LIMIT_S``, although bytes wait for it."""
        if not (retransmits and unacked):
            self._since = None
            return False
        if self._since is None or heard_s < now - self._since:
            self._since = now
        return now - self._since >= LIMIT_S


class Connections:
    """The TCP connections that a bound socket has accepted. Its ``DescriptorGuard`` calls ``follow``."""

    def __init__(self, reactor: Reactor) -> None:
        # By descriptor; the first was checked longest ago.
        self._open: dict[int, Acknowledgements] = {}
        self.hang_ups = 0
        self._timer = reactor.add_timer(_INTERVAL_S, self._look)

    def close(self) -> None:
        """Stop. Call it before the reactor closes."""
        self._timer.cancel()

    def follow(self, event: int, descriptor: int) -> None:
        """The socket's monitor reports a new or a closed connection."""
        self._open.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            self._open[descriptor] = Acknowledgements()

    def _look(self, now: float) -> None:
        hung_up: list[str] = []
        for descriptor in list(islice(self._open, _LOOKS_MAX)):
            acknowledgements = self._open.pop(descriptor)
            try:
                # Use a duplicate: libzmq may close its descriptor at any moment, and the number may get a new
                # owner. The duplicate stays with one connection.
                with socket(fileno=os.dup(descriptor)) as connection:
                    info = connection.getsockopt(IPPROTO_TCP, _TCP_INFO, _INFO.size)
                    retransmits, unacked, heard_ms = _INFO.unpack(info)
                    if acknowledgements.is_dead(retransmits, unacked, heard_ms / 1000, now):
                        hung_up.append(str(connection.getpeername()[0]))
                        connection.shutdown(SHUT_RDWR)
                        continue
            except (OSError, struct.error) as error:
                if getattr(error, "errno", 0) not in (EMFILE, ENFILE):
                    continue  # it is closed, or not TCP
            self._open[descriptor] = acknowledgements
        if hung_up:
            self.hang_ups += len(hung_up)
            text = "closed %d connection(s) that acknowledged nothing for %g s, the first from %s"
            _log.warning(text, len(hung_up), LIMIT_S, hung_up[0])


class Senders:
    """Takes what waits of a client out of the queues once its connection has ended.

    A native client is asked whether it is there (``core.waiting``); a plain one cannot be asked. So while the
    queues hold a tenth of what they may, the connections of those that send are noted. A client that chose
    its routing id may come back with it, so its requests stay.
    """

    def __init__(self, listener: Listener, waiting: Waiting, on_gone: Callable[[bytes, float], None]) -> None:
        self._listener = listener
        self._waiting = waiting
        self._on_gone = on_gone
        self.is_on = False
        # By descriptor, and by routing id.
        self._names: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}
        # Clients whose connections have ended, and until when messages of theirs may still be read.
        self._gone: dict[bytes, float] = {}
        listener.add_follower(self._follow)

    def refresh(self) -> None:
        """Note senders from now on, or no more."""
        self.is_on = self._waiting.is_crowded

    def note(self, name: bytes, frame: zmq.Frame, now: float) -> None:
        """A message from this routing id; ``frame`` is one of its frames."""
        if name in self._descriptors or name in self._gone or name[:1] != b"\0":
            return
        # What has happened to the descriptor before this connection got it is known after that.
        self._listener.catch_up()
        try:
            descriptor = int(frame.get("__fd"))
        except (zmq.ZMQError, ValueError):
            return
        if descriptor in self._listener.open:
            self._names[descriptor] = name
            self._descriptors[name] = descriptor
        else:
            self._gone[name] = now + _UNREAD_S

    def _follow(self, event: int, descriptor: int) -> None:
        name = self._names.pop(descriptor, None)
        if name is not None:
            self._descriptors.pop(name, None)
            self._gone[name] = float("inf")

    def look(self, now: float) -> None:
        """Release what waits of those that are gone, and of the messages that were read since."""
        self.refresh()
        for name, until in list(self._gone.items()):
            if self._waiting.holds(name):
                self._on_gone(name, now)
            if until == float("inf"):
                self._gone[name] = now + _UNREAD_S
            elif now >= until:
                del self._gone[name]
