"""The files that security rests on: small, private where they hold a secret, read again when they change."""

import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from bstar.errors import ConfigurationError

_log = logging.getLogger("bstar.security")

T = TypeVar("T")

LOOK_INTERVAL_S = 2.0
"""How often a process looks whether its files have changed."""


@contextmanager
def explained(setting: str) -> Iterator[None]:
    """Put the name of the setting before the text of a ConfigurationError."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from error


def read_small(path: str | os.PathLike[str], bytes_max: int) -> tuple[bytes, bool]:
    """A file's bytes, one more than ``bytes_max`` at most, and whether others than its owner may use it.

    Raises ConfigurationError if it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            is_open = bool(stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077)
            return file.read(bytes_max + 1), is_open
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error


class WatchedFiles(Generic[T]):
    """``value`` is what ``read()`` made of some files when it read them last.

    ``read`` raises ConfigurationError if they cannot be used, and so does the constructor. ``name`` is what
    the log calls them. ``error`` tells why they could not be read again; "" if nothing is wrong with them.
    """

    def __init__(self, name: str, paths: Iterable[str | os.PathLike[str]], read: Callable[[], T]) -> None:
        self.error = ""
        self.name = name
        self._paths = [Path(path) for path in paths]
        self._read = read
        self._stamps = self._look()
        self.value = read()

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_stamp(path) for path in self._paths]

    def refresh(self) -> bool:
        """Read them again if one has changed; True if there is a new value.

        If they cannot be used, the value from before holds, and the log says so once for each change. They
        are tried again: what was wrong may have been the system, without a free descriptor.
        """
        # They are looked at before they are read: what changes meanwhile is found the next time.
        stamps = self._look()
        is_changed = stamps != self._stamps
        if not is_changed and not self.error:
            return False
        self._stamps = stamps
        try:
            self.value = self._read()
        except ConfigurationError as error:
            if is_changed or str(error) != self.error:
                _log.error("%s cannot be used, what it said before holds: %s", self.name, error)
            self.error = str(error)
            return False
        self.error = ""
        return True


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of the last change of content, owner or mode: a mode that is mended counts, too.
    return found.st_ctime_ns, found.st_ino, found.st_size
