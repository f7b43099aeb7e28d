"""What a service manager hears from a process it started: systemd's notification protocol (sd_notify(3)).

The manager names a datagram socket in NOTIFY_SOCKET. A message is lines ``NAME=VALUE``: READY=1, STATUS=text,
RELOADING=1, STOPPING=1, and WATCHDOG=1 at least every WATCHDOG_USEC microseconds.
"""

import logging
import socket
import time
from collections.abc import Mapping
from typing import Self

from bstar.base.closing import Closing
from bstar.errors import ConfigurationError

_log = logging.getLogger("bstar.service_manager")


class ServiceManager(Closing):
    """The manager that listens at ``address``: a path, or ``@NAME`` for Linux's abstract names.

    ``watchdog_s``: it ends the process after that many seconds without ``alive``; None if it does not.
    """

    def __init__(self, address: str, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._has_failed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A manager that does not read must not stop the loop.
        self._socket.setblocking(False)

    @classmethod
    def of(cls, environ: Mapping[str, str], pid: int) -> Self | None:
        """The manager that the environment of process ``pid`` names; None without one.

        Raises ConfigurationError if a variable is wrong.
        """
        address = environ.get("NOTIFY_SOCKET")
        if not address:
            return None
        if address[0] not in "/@":
            raise ConfigurationError(f"NOTIFY_SOCKET={address}: must be a path that begins with / or @")
        watchdog = environ.get("WATCHDOG_USEC")
        # A child inherits the variables of its parent, but the watchdog is for one process.
        if watchdog is None or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
            return cls(address)
        if not watchdog.isdecimal() or int(watchdog) == 0:
            raise ConfigurationError(f"WATCHDOG_USEC={watchdog}: must be a number of microseconds above 0")
        return cls(address, int(watchdog) / 1e6)

    def ready(self, status: str) -> None:
        """The process serves, or has read its configuration again."""
        self._tell("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """One line for people: what the process does now."""
        self._tell(f"STATUS={text}")

    def alive(self) -> None:
        """The loop turns."""
        self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        """The process reads its configuration again; ``ready`` follows."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The process ends in an orderly way."""
        self._tell("STOPPING=1", "STATUS=stopping")

    def _tell(self, *lines: str) -> None:
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                reason = error.strerror or error
                _log.warning("the service manager at NOTIFY_SOCKET cannot be reached: %s", reason)
            self._has_failed = True
        else:
            self._has_failed = False

    def close(self) -> None:
        """Free the socket. Idempotent."""
        self._socket.close()
