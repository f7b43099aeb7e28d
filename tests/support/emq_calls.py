"""What job managers under test run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from os import system  # noqa: F401 - not this module's own, so no job may call it
from pathlib import Path


def add(one: int, other: int = 0) -> int:
    return one + other


def pid() -> int:
    return os.getpid()


def fail(text: str) -> None:
    raise ValueError(text)


def fail_oddly() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise OddError


def leave() -> None:
    sys.exit(3)


def die() -> None:
    os._exit(3)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    threading.Event().wait()


def hang_with_a_child(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    Path(path).write_text(str(child.pid))
    threading.Event().wait()


def wait_for(path: str) -> str:
    """Until there is a FIFO's other end, and what it says."""
    return Path(path).read_text()


def not_json() -> set[int]:
    return {1}


def echo(value: object) -> object:
    return value


def _private() -> None:
    pass


class Counter:
    def __init__(self, start: int, step: int = 1) -> None:
        self._next = start + step

    def next(self) -> int:
        return self._next
