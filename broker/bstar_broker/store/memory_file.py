"""The store's database in memory (``store.directory: memory``): what it holds ends with its process.

Everything above it is as with a disk. A process begins with an empty copy that vouches for nothing, as a node
with a new disk does: it does not lead before it has taken the peer's copy, and two of them begin a new store.

SQLite gives a database in memory no second view. A copy for the peer is a second database: it takes as much
memory again until the peer has it, and commits wait while it is made (0.4 s for 250 MB on two busy cores).
"""

import os
import sqlite3
from pathlib import Path

from bstar.host.memory import Memory
from bstar.settings.store import MEMORY
from bstar_broker.store.faults import explain
from bstar_broker.store.reach_file import Reach, ReachFile
from bstar_broker.store.sqlite_file import StoreFile


class _NoFile(ReachFile):
    """What is known of damage, for as long as the process lives."""

    def __init__(self) -> None:
        self.reach = Reach()
        self.fault = ""

    def note(self, *, is_synced: bool = False) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryFile(StoreFile):
    """A ``StoreFile`` without files. ``path`` is for texts."""

    def __init__(self) -> None:
        self.path = Path(MEMORY)
        self._reach = _NoFile()
        self.repairs = 0
        self.repaired = ""
        self._size_bytes = 0
        self._open()

    def _open(self) -> None:
        self._is_full = True
        self._origin, self._sequence = os.urandom(8), 0
        self.database = self.connect()
        self._make()

    def connect(self) -> sqlite3.Connection:
        """A new database, empty."""
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    def snapshot(self) -> sqlite3.Connection:
        """A copy of the database as it is now."""
        copy = self.connect()
        try:
            self.database.backup(copy)
        except BaseException:
            copy.close()
            raise
        return copy

    def checkpoint(self) -> int:
        """Nothing has to be copied. The database's thread sees how large it is."""
        (pages,), (page_bytes,) = (
            self.database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
        self._size_bytes = pages * page_bytes
        return 0

    def rest(self) -> None:
        """As ``checkpoint``."""
        self.checkpoint()

    def lost(self) -> str:
        """There is no file."""
        return ""

    def sync_all(self) -> None:
        """There is nothing that a kernel could lose."""

    def free_bytes(self) -> int:
        """How much memory is left for this process, 0 if that is unknown."""
        with Memory() as memory:
            return memory.left() or 0

    def explain(self, error: Exception) -> str:
        """What this error of SQLite means for the store, and what to do."""
        return explain(error, None)

    def size_bytes(self) -> int:
        """The memory that the database takes, as it last was at rest."""
        return self._size_bytes

    def _take_folder(self) -> None:
        pass

    def _move_aside(self, text: str) -> None:
        pass

    def _drop_aside(self) -> None:
        pass

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self.database.close()
