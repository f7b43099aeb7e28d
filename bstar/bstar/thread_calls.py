"""Calls into a loop from other threads and from signal handlers, and the descriptor that wakes it."""

import socket as stdlib_socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from bstar.errors import ClosedError

T = TypeVar("T")


class ThreadCalls:
    """Calls that wait for the loop. ``descriptor`` is readable when ``run`` has something to do."""

    def __init__(self) -> None:
        # Any: each call has its own type.
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_closed = False
        # Reentrant: a signal may arrive while this thread holds it, and its handler wakes the loop, too.
        self.lock = threading.RLock()
        self._woken, self._waker = stdlib_socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    @property
    def descriptor(self) -> int:
        """The descriptor that the loop polls."""
        return self._woken.fileno()

    @property
    def waker(self) -> int:
        """The descriptor that signals write to."""
        return self._waker.fileno()

    def add(self, function: Callable[[], T]) -> "Future[T]":
        """Let the loop run ``function``; ClosedError after ``close``."""
        future: Future[T] = Future()
        with self.lock:
            if self._is_closed:
                raise ClosedError("the reactor is closed")
            self._calls.append((future, function))
            self.wake()
        return future

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self.lock:
            if not self._is_closed:
                # A full pipe wakes the loop, too.
                with suppress(BlockingIOError):
                    self._waker.send(b"\0")

    def run(self, now: float) -> None:
        """Run the waiting calls, in the loop's thread."""
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        for _ in range(len(self._calls)):
            future, function = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  # it belongs to the caller, who gets it from the future
                future.set_exception(error)

    def begin_to_close(self) -> bool:
        """Take no more calls. False if it is closed already."""
        with self.lock:
            was_open = not self._is_closed
            self._is_closed = True
        return was_open

    def close(self) -> None:
        """End the calls that wait with ClosedError, and free the descriptors. Once."""
        self._woken.close()
        self._waker.close()
        while self._calls:
            future, _ = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClosedError("the reactor was closed before it came to this call"))
