"""A relay of TCP connections that changes one byte of each that carries enough: somebody on the way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class Changer:
    """Relays connections to an address and changes a byte of what long messages carry there."""

    _AFTER_BYTES = 3_000

    def __init__(self, address: tuple[str, int]) -> None:
        self._to = address
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.changed = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for each in self._open:
            with contextlib.suppress(OSError):  # the other side has gone
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._server, *self._open):
            each.close()

    def _start(self, call: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=call, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end: shut down
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                self._start(self._relay, near, far, True)
                self._start(self._relay, far, near, False)

    def _relay(self, source: socket.socket, sink: socket.socket, is_changed: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):  # either side has gone
            while octets := bytearray(source.recv(65_536)):
                if is_changed and passed <= self._AFTER_BYTES < passed + len(octets):
                    octets[self._AFTER_BYTES - passed] ^= 1
                    self.changed += 1
                passed += len(octets)
                sink.sendall(octets)
            sink.shutdown(socket.SHUT_WR)
