"""Where processes run. A host has an address for its servers and wraps commands so that they run on it.

Chaos tests run on one machine, so its processes share one monotonic clock; a host is the loopback interface
or something that a test has made (a network namespace). What a host is like under faults is not its concern.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Host", "LoopbackHost"]


class Host(Protocol):
    """A place for processes."""

    @property
    def name(self) -> str:
        """A short name, for logs and folders."""

    @property
    def address(self) -> str:
        """The IP address where this host's servers listen for clients, workers and the peer."""

    @property
    def control_address(self) -> str:
        """The IP address of HTTP endpoints: ``connect`` reaches it, whatever happens to ``address``."""

    def ports(self, count: int) -> list[int]:
        """Ports that nobody else on this host is given, until ``close``."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on this host, as the same process (exec, not fork)."""

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A TCP connection made from this host itself, for the harness to use."""

    def close(self) -> None:
        """Give back what the host holds. Idempotent."""


class LoopbackHost:
    """This machine itself, on 127.0.0.1."""

    def __init__(self, name: str = "loopback") -> None:
        self.name = name
        self.address = "127.0.0.1"
        self.control_address = "127.0.0.1"
        self._holders: list[socket.socket] = []

    def ports(self, count: int) -> list[int]:
        """Ports held by sockets that are bound and never listen: whoever reuses addresses may bind them."""
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
        """A connection as any process makes it."""
        return socket.create_connection(address, timeout_s)

    def close(self) -> None:
        """Give the ports back."""
        while self._holders:
            self._holders.pop().close()
