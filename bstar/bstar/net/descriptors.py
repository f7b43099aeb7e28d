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
from pathlib import Path

from bstar.net.connections import ListenerFilter

_log = logging.getLogger("bstar.descriptors")

# Reserved for the state link and its observers, for HTTP, and for files; a quarter if the limit is very low.
RESERVE = 64
# Connections are let in again when this many more descriptors are free.
_MARGIN = 8
_LOOK_INTERVAL_S = 1.0
# A shortage that comes and goes is reported this often at most.
_REPORT_INTERVAL_S = 600.0


def raise_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: the usual soft limit is too low for a broker.
    Programs call it at their start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DescriptorGuard:
    """Holds off new connections to a listener while descriptors are short; ``Listener`` asks it.

    ``maximum`` is the process's limit, as of the last look: ``prlimit`` may change it. ``is_short``: it holds
    connections off now; ``shortages`` counts how often that began.
    """

    def __init__(self, listener: ListenerFilter, endpoint: str) -> None:
        self._filter = listener
        self._endpoint = endpoint
        self._read_limit()
        self.is_short = False
        self.shortages = 0
        self._reported_at = self._looked_at = float("-inf")
        self._is_reported = False

    def _read_limit(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.maximum = sys.maxsize if soft == resource.RLIM_INFINITY else soft
        self._threshold = self.maximum - min(RESERVE, self.maximum // 4)

    def accepted(self, descriptor: int, now: float) -> bool:
        """True if the connection with this descriptor is one too many."""
        if descriptor < self._threshold:
            return False
        # It waited in the kernel's queue; the listener spins while that is not empty.
        self._hold_off(now)
        return True

    def look(self, now: float) -> None:
        """Check the limit, once a second: files and other sockets also take and free descriptors."""
        if now - self._looked_at < _LOOK_INTERVAL_S:
            return
        self._looked_at = now
        self._read_limit()
        if not self.is_short:
            if _lowest_free(self.maximum) >= self._threshold:
                self._hold_off(now)
        elif _count(self.maximum) <= self._threshold - min(_MARGIN, self._threshold // 4):
            self.is_short = False
            self._filter.hold_all("descriptors", is_held=False)
            if self._is_reported:
                self._is_reported = False
                _log.info("descriptors are free again: new connections to %s are let in", self._endpoint)

    def _hold_off(self, now: float) -> None:
        if self.is_short:
            return
        self.is_short = True
        self.shortages += 1
        self._filter.hold_all("descriptors", is_held=True)
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            self._is_reported = True
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
