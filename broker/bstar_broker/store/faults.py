"""What is wrong with a store's disk, and what to do about it: texts for people."""

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bstar.errors import StoreError

_log = logging.getLogger("bstar.store")

# A nearly full disk takes small transactions between those that it refuses. It is well after so long.
_WELL_S = 60.0
_NO_DIGITS = str.maketrans("", "", "0123456789")


class FaultLog:
    """Logs that a store cannot be written once, and that it is written again when that has lasted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The last fault that was logged, without its numbers: how much is free changes each time.
        self._logged = ""
        self._failed_at = 0.0

    def failed(self, text: str) -> None:
        """A transaction has failed."""
        kind = text.translate(_NO_DIGITS)
        if kind != self._logged:
            _log.error("the store cannot be written: %s", text)
        self._logged, self._failed_at = kind, self._clock()

    def wrote(self, path: object) -> None:
        """A transaction has succeeded."""
        if self._logged and self._clock() >= self._failed_at + _WELL_S:
            self._logged = ""
            _log.warning("the store is written again, for %.0f s without a fault: %s", _WELL_S, path)


def explain(error: Exception, directory: Path | None) -> str:
    """What this error of SQLite or of the system means for the store in ``directory``; None: in memory."""
    if isinstance(error, StoreError):
        return str(error)
    if isinstance(error, MemoryError):
        return (
            "the process has no memory for a transaction; the store tries again every second. Raise the "
            "process's limit, or lower limits.queue_bytes_max and limits.message_bytes_max"
        )
    # Any: only errors of SQLite have it.
    name: Any = getattr(error, "sqlite_errorname", None) or ""
    text = f"{error} ({name})" if name else str(error)
    if directory is None:
        return f"the store in memory has failed: {text}; if that goes on, restart this node"
    if name == "SQLITE_FULL" or getattr(error, "errno", 0) == errno.ENOSPC:
        return (
            f"the disk of {directory} is full ({free_bytes(directory)} bytes are free): make room; nothing "
            "that was acknowledged is lost, and the store goes on by itself"
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")) or not os.access(
        directory, os.W_OK
    ):
        return (
            f"{directory} cannot be written: {text}; let this user write there, and see whether the system "
            "has made the file system read-only after an error of the disk"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"the store in {directory} is damaged: {text}; bstar store check says where"
    return f"the disk of {directory} has failed: {text}; see the system's log"


def is_damage(error: Exception) -> bool:
    """True if the content of the store's files is wrong, and not the disk or the program."""
    name: Any = getattr(error, "sqlite_errorname", None) or ""
    # SQLITE_ERROR: a table or column of the store is missing, or a text is invalid.
    is_of_sqlite = isinstance(error, sqlite3.DatabaseError) and (
        not name or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_TOOBIG", "SQLITE_ERROR"))
    )
    return isinstance(error, StoreError) or is_of_sqlite


def free_bytes(directory: Path) -> int:
    """How much room the file system has for this user. OSError if it does not tell."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
