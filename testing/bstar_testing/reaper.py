"""Ends what a harness leaves behind when the harness itself is killed.

A small process knows the process groups that the harness has started and not yet seen end. When the harness's
end of the pipe closes, it kills the groups that are left, and ends.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path


class Reaper:
    """The harness's side. The process starts with the first group."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def began(self, group: int) -> None:
        """A process group was started."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """The harness waited for its leader, so another process may get the number from now on."""
        self._tell(f"-{group}\n")

    def _tell(self, text: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(  # noqa: S603 - this file
                    # Isolated and without site: it starts in half the time and loads nothing of the test.
                    (sys.executable, "-I", "-S", str(Path(__file__))),
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
                atexit.register(self._close)
            assert self._process.stdin is not None
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def _close(self) -> None:
        """The harness ends. Python would warn of a process that still runs."""
        if self._process is not None:
            self._process.communicate()


REAPER = Reaper()


def main() -> None:
    """Read until the end, then kill what is left."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
