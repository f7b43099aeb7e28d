"""Strangers that connect to a node's port: many, fast, from addresses of their own, and never as clients."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket as tcp
import time

import zmq

# A greeting of ZMTP 3.1 with the mechanism CURVE, as a client (23/ZMTP).
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)


def hello(octets: bytes = b"") -> bytes:
    """A HELLO of CURVE with these octets as its box, or random ones (26/CURVEZMQ)."""
    body = b"\x05HELLO\x01\x00" + bytes(72) + (octets or os.urandom(32 + 8 + 80))
    return b"\x04" + bytes([len(body)]) + body


KINDS = {"silent": b"", "half": GREETING, "hello": GREETING + hello(), "garbage": b"GET / HTTP/1.0\r\n\r\n"}
"""What a stranger says once it is connected; it then waits until the node ends the connection."""


class Flood:
    """Opens connections from ``source``, at most ``open_max`` at once, and counts ``attempts``."""

    def __init__(self, port: int, said: bytes, *, source: str, open_max: int = 200) -> None:
        self._port = port
        self._said = said
        self._source = source
        self._open_max = open_max
        self._open: dict[tcp.socket, bool] = {}
        self._selector = selectors.DefaultSelector()
        self.attempts = 0
        self.let_in = 0

    def turn(self) -> None:
        """Open what may be opened, and end what has been ended."""
        while len(self._open) < self._open_max:
            stranger = tcp.socket()
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.bind((self._source, 0))
            stranger.connect_ex(("127.0.0.1", self._port))
            self.attempts += 1
            self._open[stranger] = False
            self._selector.register(stranger, selectors.EVENT_WRITE, stranger)
        for key, events in self._selector.select(0.05):
            stranger = key.data
            try:
                if events & selectors.EVENT_WRITE and not self._open[stranger]:
                    stranger.send(self._said)
                    self._open[stranger] = True
                    self.let_in += 1
                    self._selector.modify(stranger, selectors.EVENT_READ, stranger)
                elif stranger.recv(4_096) == b"":
                    self._end(stranger)
            except OSError:
                self._end(stranger)

    def _end(self, stranger: tcp.socket) -> None:
        self._selector.unregister(stranger)
        del self._open[stranger]
        stranger.close()

    def close(self) -> None:
        """End all."""
        for stranger in list(self._open):
            self._end(stranger)
        self._selector.close()


def flood_with_keys(port: int, server_key: bytes, seconds: float, *, source: str, count: int = 100) -> None:
    """Connect with a key that nobody listed, so many at once, and again as soon as the node refuses."""
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, count + 16)
        sockets = []
        for _ in range(count):
            stranger = context.socket(zmq.DEALER)
            stranger.linger, stranger.reconnect_ivl, stranger.reconnect_ivl_max = 0, 1, 0
            stranger.curve_publickey, stranger.curve_secretkey = public, secret
            stranger.curve_serverkey = server_key
            stranger.connect(f"tcp://{source}:0;127.0.0.1:{port}")
            sockets.append(stranger)
        time.sleep(seconds)
        for stranger in sockets:
            stranger.close()
