"""Ends what a harness leaves behind when it is killed itself.

A small process that knows which process groups the harness has started and not yet seen end. When the
harness's end of the pipe closes, for whatever reason, it kills those that are left, and ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["REAPER", "Reaper"]


class Reaper:
    """The harness's side: tell it what begins and what has ended. Started with the first process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def began(self, group: int) -> None:
        """A process group was started."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """Its leader was waited for, so the number may belong to somebody else from now on."""
        self._tell(f"-{group}\n")

    def _tell(self, text: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                (sys.executable, str(Path(__file__))), stdin=subprocess.PIPE, start_new_session=True
            )
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()


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
