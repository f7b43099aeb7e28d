"""Programs in processes of their own that are followed by the lines they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from support.waiting import LIMIT_S, Bell


class Program:
    """A Python program; what it prints is kept. ``with`` it: its process ends with the block."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self._is_over = False
        self._bell = Bell()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._bell.ringing():
                self.lines.append(line.rstrip("\n"))
        with self._bell.ringing():
            self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for(self, is_it: Callable[[str], object], *, after: int = 0) -> str:
        """The first line from number ``after`` on of which ``is_it`` is true."""

        def found() -> list[str]:
            return [line for line in self.lines[after:] if is_it(line)]

        try:
            self._bell.wait_until(lambda: found() or self._is_over)
        except AssertionError as error:
            raise AssertionError(f"{error}; it printed:\n" + "\n".join(self.lines)) from None
        if not found():
            raise AssertionError("it ended and had printed:\n" + "\n".join(self.lines))
        return found()[0]

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait(LIMIT_S)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, and the exit status it leads to."""
        self._process.terminate()
        return self._process.wait(LIMIT_S)

    def wait_for_exit(self) -> int:
        return self._process.wait(LIMIT_S)
