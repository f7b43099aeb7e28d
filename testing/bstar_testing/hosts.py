"""Where processes run: a host has an address for its servers, ports, and a way to run commands on it.

Here the only host is the loopback interface. Chaos tests add network namespaces.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

from bstar.base.closing import Closing


class Host(Protocol):
    """A place for processes."""

    @property
    def name(self) -> str:
        """A short name, for logs and folders."""

    @property
    def address(self) -> str:
        """The IP address where servers of this host listen for clients, workers and the peer."""

    @property
    def control_address(self) -> str:
        """The IP address of HTTP endpoints. ``connect`` reaches it even if ``address`` fails."""

    def ports(self, count: int) -> list[int]:
        """Ports that no other process on this host gets until ``close``."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on this host, as the same process (exec, not fork)."""

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A TCP connection that starts on this host, for the harness to use."""

    def close(self) -> None:
        """Give back what the host holds. Idempotent."""


class LoopbackHost(Closing):
    """This machine on 127.0.0.1. A context manager that gives its ports back."""

    name = "loopback"
    address = "127.0.0.1"
    control_address = "127.0.0.1"

    def __init__(self) -> None:
        self._holders: list[socket.socket] = []

    def ports(self, count: int) -> list[int]:
        """Ports without a race: a bound socket that never listens holds each of them.

        A server that sets SO_REUSEADDR (as ZeroMQ does) may bind such a port. No other process gets it, not
        even while the server is down between a kill and a restart.
        """
        holders = [self._hold() for _ in range(count)]
        self._holders += holders
        return [int(holder.getsockname()[1]) for holder in holders]

    def _hold(self) -> socket.socket:
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((self.address, 0))
        return holder

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command itself."""
        return list(argv)

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A plain TCP connection."""
        return socket.create_connection(address, timeout_s)

    def close(self) -> None:
        """Give the ports back."""
        while self._holders:
            self._holders.pop().close()
