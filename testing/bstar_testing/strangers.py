"""Strangers that connect to a node's port: many, fast, from an address of their own, and never as clients."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket as tcp
import time

# A greeting of ZMTP 3.1 with the mechanism CURVE, as a client (23/ZMTP).
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
# A HELLO of CURVE for another key than the node's (26/CURVEZMQ).
_HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + os.urandom(32 + 8 + 80)

KINDS = {
    "silent": b"",
    "half a handshake": _GREETING,
    "another server's key": _GREETING + _HELLO,
    "garbage": b"GET / HTTP/1.0\r\n\r\n",
}
"""What a stranger says once it is connected. Then it waits until the node ends the connection."""


class Flood:
    """Connections to ``port`` of 127.0.0.1 from ``source``, each of which says ``said``.

    One thread calls ``open`` and ``turn``; ``attempts`` counts what was opened.
    """

    def __init__(self, port: int, said: bytes, *, source: str) -> None:
        self._port = port
        self._said = said
        self._source = source
        # When each was opened; the oldest first.
        self._open: dict[tcp.socket, float] = {}
        self._selector = selectors.DefaultSelector()
        self.attempts = 0

    def __len__(self) -> int:
        """How many are open, or wait to be."""
        return len(self._open)

    def open(self, count: int) -> None:
        """Open so many more."""
        for _ in range(count):
            stranger = tcp.socket()
            stranger.setblocking(False)
            stranger.bind((self._source, 0))
            stranger.connect_ex(("127.0.0.1", self._port))
            self.attempts += 1
            self._open[stranger] = time.monotonic()
            self._selector.register(stranger, selectors.EVENT_WRITE, stranger)

    def turn(self, stay_s: float, wait_s: float = 0.01) -> None:
        """Speak to who answers, and end what the node has ended, or what has been open for ``stay_s``."""
        for key, events in self._selector.select(wait_s):
            stranger = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    stranger.send(self._said)
                    self._selector.modify(stranger, selectors.EVENT_READ, stranger)
                elif stranger.recv(4_096) == b"":
                    self._end(stranger)
            except OSError:
                self._end(stranger)
        until = time.monotonic() - stay_s
        while self._open and next(iter(self._open.values())) < until:
            self._end(next(iter(self._open)))

    def _end(self, stranger: tcp.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(stranger)
        del self._open[stranger]
        stranger.close()

    def close(self) -> None:
        """End all."""
        while self._open:
            self._end(next(iter(self._open)))
        self._selector.close()
