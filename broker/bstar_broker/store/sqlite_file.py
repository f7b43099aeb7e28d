"""The file of the durable store: one SQLite database in a directory that one process has.

    DIRECTORY/store.db        table, log and marks; beside it SQLite's store.db-wal and store.db-shm
    DIRECTORY/store.lock      locked (flock) while a process has the store; says whether it was closed

Durability: WAL. A transaction that appends or marks is synced (synchronous=FULL), one that only applies is
not (NORMAL): the log can redo it. Checkpoints are ours, so that none comes while an order waits, unless the
WAL is large; then it copies that much and no more.

After a crash the WAL belongs to the store: without it the store does not open. A small file is then checked
whole; of a large one, and always, the checksums of entries and records tell damage when they are read.
"""

import fcntl
import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from bstar.closing import Closing
from bstar.errors import ConfigurationError, StoreError
from bstar.memory import Memory
from bstar_broker.store import sqlite_log, sqlite_table
from bstar_broker.store.faults import FROM_PEER, explain

T = TypeVar("T")

_log = logging.getLogger("bstar.store")

FORMAT: Final = 1

# What the lock file says, each of one length. IN_USE: the WAL belongs to the store. CLOSED: everything is in
# the database. UNSURE: it is, and something in it is wrong.
IN_USE: Final = b"in use\n"
CLOSED: Final = b"closed\n"
UNSURE: Final = b"unsure\n"

_MAGIC: Final = b"SQLite format 3\0"
_META = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, checksum INTEGER NOT NULL, value BLOB NOT NULL) WITHOUT ROWID"
)

# After a crash a file up to this size is checked whole: about a second.
_CHECKED_BYTES_MAX: Final = 64 << 20

_WAL_BYTES_MAX: Final = 64 << 20
# SQLite's cache of pages, and the part of the memory that is left at the start that it may have.
_CACHE_BYTES_MAX: Final = 64 << 20
_CACHE_BYTES_MIN: Final = 2 << 20
_CACHE_PART: Final = 16


class StoreFolder(Closing):
    """The directory, locked for this process. ConfigurationError if it cannot be had."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)
        self.database = self.path / "store.db"
        self.wal = self.path / "store.db-wal"
        try:
            self._is_new = not self.path.exists()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"store.directory: cannot write to {self.path}: {error.strerror or error}; name a directory "
                "that this user may write to and that has room"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise ConfigurationError(
                    f"store.directory: another process uses {self.path}: each node needs a directory of "
                    "its own; stop the process that has this one, or name another one"
                ) from error
            raise ConfigurationError(
                f"store.directory: {self.path} cannot be locked: {error.strerror or error}; name a directory "
                "of a file system with locks"
            ) from error

    @property
    def state(self) -> bytes:
        """What the lock file says; empty if no store was made here."""
        return os.pread(self._lock, len(IN_USE), 0)

    def note(self, state: bytes) -> None:
        """Say it in the lock file. OSError if that cannot be stored."""
        _sync_folder(self.path)
        if self._is_new:
            # A crash must not take the directory itself away.
            _sync_folder(self.path.parent)
        os.pwrite(self._lock, state, 0)
        os.fsync(self._lock)

    def file_bytes(self) -> int:
        """The octets of database and WAL. OSError if the system does not tell."""
        return sum(file.stat().st_size for file in (self.database, self.wal) if file.exists())

    @property
    def is_open(self) -> bool:
        """True until ``close``."""
        return self._lock >= 0

    def close(self) -> None:
        """Leave it to others. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class StoreFile(Closing):
    """The database, open for writing."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raises ConfigurationError if the directory cannot be used, StoreError if the store in it is damaged
        or not whole.
        """
        self.folder = StoreFolder(directory)
        self._is_full = True
        self._is_ours = False
        try:
            self._had_wal = self.folder.wal.exists()
            is_new = self._prepare()
            self.database = self.connect()
            try:
                self._make() if is_new else self._check()
                # The WAL exists from here on.
                self.put("format", FORMAT)
                self.checkpoint()
                self._is_ours = self._had_wal = True
                self.folder.note(IN_USE)
            except BaseException:
                self.close()
                raise
        except sqlite3.Error as error:
            self.folder.close()
            raise StoreError(explain(error, self.folder.path)) from error
        except BaseException:
            self.folder.close()
            raise

    def connect(self) -> sqlite3.Connection:
        """A connection to the database."""
        database = sqlite3.connect(self.folder.database, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        # It grows beyond while a copy of the table is read, and gives the room back afterwards.
        database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
        database.execute(f"PRAGMA cache_size = -{_cache_bytes() >> 10}")
        database.execute("PRAGMA synchronous = FULL")
        return database

    # --- transactions -------------------------------------------------------------------------------------

    def begin(self, *, is_synced: bool) -> None:
        """Begin a transaction, which ``commit`` will sync or not."""
        if is_synced is not self._is_full:
            self.database.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            self._is_full = is_synced
        self.database.execute("BEGIN")

    def commit(self) -> float:
        """End it; how long that took, in seconds."""
        began_at = time.monotonic()
        self.database.execute("COMMIT")
        return time.monotonic() - began_at

    def rollback(self) -> None:
        """Take it back, if there is one."""
        if self.database.in_transaction:
            self.database.execute("ROLLBACK")

    def checkpoint(self) -> int:
        """Copy the WAL into the database; the frames of the WAL that remain, because a copy is being read."""
        _, frames, copied = self.database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return int(frames - copied)

    def sync_all(self) -> None:
        """After a failed sync nobody knows what the kernel has kept: write everything into the database and
        empty the WAL. sqlite3.Error if that fails, too.
        """
        busy, _, _ = self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("the WAL could not be emptied")

    # --- marks --------------------------------------------------------------------------------------------

    def put(self, key: str, value: object) -> None:
        """Store a value under a name."""
        octets = msgspec.msgpack.encode(value)
        self.database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, crc32(octets), octets))

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of this name, None if there is none. StoreError if it is damaged."""
        return value_of(self.database, key, kind)

    def close(self) -> None:
        """Copy the WAL into the database, and leave it to others. Idempotent."""
        # The last connection copies and removes the WAL, if the disk lets it.
        self.database.close()
        if self.folder.is_open and self._had_wal and not self.folder.wal.exists():
            try:
                self.folder.note(CLOSED if self._is_ours else UNSURE)
            except OSError as error:
                _log.error("%s", explain(error, self.folder.path))
        self.folder.close()

    # --- opening ------------------------------------------------------------------------------------------

    def _prepare(self) -> bool:
        """See that the right files are there; True if there is no store yet and one may be made."""
        path = self.folder.database
        if not self.folder.state:
            # Nothing, or a beginning that a crash has interrupted.
            if path.exists() and _is_whole(path):
                return False
            for leftover in (path, self.folder.wal, path.with_name("store.db-shm")):
                leftover.unlink(missing_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            return True
        if not path.exists():
            raise StoreError(f"{path} is missing: put it back with its store.db-wal; or, {FROM_PEER}")
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise StoreError(f"{path} is damaged: it is no SQLite database; {FROM_PEER}")
        return False

    def _make(self) -> None:
        self.begin(is_synced=True)
        for statement in (_META, *sqlite_log.SCHEMA, *sqlite_table.SCHEMA):
            self.database.execute(statement)
        self.put("format", FORMAT)
        self.commit()
        self.sync_all()
        _log.info("a store was made: %s", self.folder.database)

    def _check(self) -> None:
        path = self.folder.database
        found = self.get("format", int)
        if found != FORMAT:
            raise ConfigurationError(
                f"store.directory: {path} has the format {found}, and this program reads {FORMAT}: use the "
                "program that wrote it"
            )
        if self.folder.state in (CLOSED, b""):
            return
        if self.folder.state == IN_USE and not self._had_wal:
            raise StoreError(
                f"{self.folder.wal} is missing, although the store was in use: what it held is lost here. "
                f"Put it back; if another program has opened the database since, which copies it, delete "
                f"{self.folder.path / 'store.lock'}; or, {FROM_PEER}"
            )
        size = path.stat().st_size
        if size > _CHECKED_BYTES_MAX:
            _log.warning("%s was not closed; %d MB are checked as they are read", path, size // 1_000_000)
            return
        _log.warning("%s was not closed: checking %d MB", path, size // 1_000_000)
        problems = [" ".join(row[0].split()) for row in self.database.execute("PRAGMA quick_check(3)")]
        if problems != ["ok"]:
            raise StoreError(f"{path} is damaged: {'; '.join(problems)}; {FROM_PEER}")


def _cache_bytes() -> int:
    with Memory() as memory:
        left = memory.left()
    fits = _CACHE_BYTES_MAX if left is None else left // _CACHE_PART
    return min(max(fits, _CACHE_BYTES_MIN), _CACHE_BYTES_MAX)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def value_of(database: sqlite3.Connection, key: str, kind: type[T]) -> T | None:
    """The value that this database has under a name, None if there is none. StoreError if it is damaged."""
    row = database.execute("SELECT checksum, value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    if crc32(row[1]) != row[0]:
        raise StoreError(f"the store's {key} is damaged: its checksum is wrong")
    try:
        return msgspec.msgpack.decode(row[1], type=kind)
    except msgspec.DecodeError as error:
        raise StoreError(f"the store's {key} is damaged: {error}") from error


def _is_whole(path: Path) -> bool:
    """True if a store was made in this file to the end."""
    if path.stat().st_size == 0:
        return False
    try:
        database = sqlite3.connect(path)
        try:
            return value_of(database, "format", int) is not None
        finally:
            database.close()
    except (sqlite3.Error, StoreError):
        return False
