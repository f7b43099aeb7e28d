"""SIGTERM and SIGINT as requests to a loop: the first asks it to drain, the second ends it."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """A context for the main thread: SIGTERM and SIGINT call ``stop``, the second one ``end`` first. On exit
    it restores the handlers. ``waker_fd`` gets an octet for each signal.
    """

    def __init__(self, stop: Callable[[], None], end: Callable[[], None], waker_fd: int) -> None:
        self._stop = stop
        self._end = end
        self._waker_fd = waker_fd
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}  # Any: what signal.signal returns
        self._wakeup_before = -1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            self._end()
        self._stop()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # The wake-up descriptor ends a poll that began just after the signal.
            self._wakeup_before = signal.set_wakeup_fd(self._waker_fd, warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup_before)
