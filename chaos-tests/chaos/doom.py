"""A node that ends itself with SIGKILL at a named point (``bstar_broker.store.fail_points``).

``python -m chaos.doom FILE COMMAND ARGUMENT…`` runs the bstar command. The file has numbers that the harness
and the node share: which point is armed, after how many passings, and how often each point was passed. So a
test arms a running node, and sees that a point was really reached.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
from pathlib import Path

from bstar_broker.store import fail_points
from bstar_broker.store.fail_points import Point
from bstar_cli.main import main as bstar

_NUMBER = struct.Struct("<q")
_POINTS = tuple(Point)
_ARMED, _LEFT, _PASSED = 0, 1, 2


class Doom:
    """The numbers in the file, which is made if it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = (_PASSED + len(_POINTS)) * _NUMBER.size
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), size)

    @property
    def launcher(self) -> tuple[str, ...]:
        """The module that runs ``bstar`` with these points, and its argument."""
        return ("chaos.doom", str(self.path))

    def arm(self, point: Point, passing: int = 1) -> None:
        """The node dies at this passing of the point, counted from now on."""
        assert passing > 0
        self.disarm()
        self._set(_LEFT, passing)
        self._set(_ARMED, 1 + _POINTS.index(point))

    def disarm(self) -> None:
        """The node does not die."""
        self._set(_ARMED, 0)

    @property
    def is_armed(self) -> bool:
        """True until the node has died."""
        return self._get(_ARMED) != 0

    def passed(self, point: Point) -> int:
        """How often the node, in all its lives, came to this point."""
        return self._get(_PASSED + _POINTS.index(point))

    def reach(self, point: Point) -> None:
        """In the node: count, and die if it is time."""
        number = _POINTS.index(point)
        self._set(_PASSED + number, self._get(_PASSED + number) + 1)
        if self._get(_ARMED) == 1 + number:
            left = self._get(_LEFT) - 1
            self._set(_LEFT, left)
            if left == 0:
                self.disarm()
                os.kill(os.getpid(), signal.SIGKILL)

    def _get(self, place: int) -> int:
        number: int = _NUMBER.unpack_from(self._numbers, place * _NUMBER.size)[0]
        return number

    def _set(self, place: int, value: int) -> None:
        _NUMBER.pack_into(self._numbers, place * _NUMBER.size, value)


def main(arguments: list[str]) -> int:
    """Watch the points, then run the command."""
    path, *command = arguments
    fail_points.watcher = Doom(Path(path)).reach
    return bstar(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
