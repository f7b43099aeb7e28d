"""The file of the durable store: one SQLite database in a directory that one process has.

    DIRECTORY/store.db        table, log and marks; beside it SQLite's store.db-wal and store.db-shm
    DIRECTORY/store.lock      locked (flock) while a process has the store; says whether it was closed
    DIRECTORY/store.reach     how far this copy must reach (``reach_file``)
    DIRECTORY/damaged/        a damaged database, until the peer's copy has taken its place

Durability: WAL. A transaction that appends or marks is synced (synchronous=FULL), one that only applies is
not (NORMAL): the log can redo it. Checkpoints are ours, so that none comes while an order waits, unless the
WAL is large; then it copies that much and no more.

After a crash a small file is checked whole. Of every file the disk's thread then reads each entry, record and
index, and goes on to do so slowly (``disk_jobs.Scrub``).
"""

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Final, TypeVar
from zlib import crc32

import msgspec
from msgspec.structs import replace

from bstar.base.closing import Closing
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import ConfigurationError, StoreError
from bstar.host.memory import Memory
from bstar.host.whole_file import sync_folder
from bstar_broker.store import sqlite_log, sqlite_table
from bstar_broker.store.core.entries import START, Position
from bstar_broker.store.core.events import Mark
from bstar_broker.store.faults import explain, free_bytes, is_damage
from bstar_broker.store.reach_file import Reach, ReachFile, Sequence, shortfall

T = TypeVar("T")

_log = logging.getLogger("bstar.store")

# With GROUPED a release that knows no serial groups refuses the store: it would execute them in any order.
FORMAT: Final = 1
GROUPED: Final = 2
FORMATS: Final = (FORMAT, GROUPED)

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
        self.shm = self.path / "store.db-shm"
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

    def forget(self) -> None:
        """Say that no store was made here. OSError if that cannot be stored."""
        os.ftruncate(self._lock, 0)
        os.fsync(self._lock)
        sync_folder(self.path)

    def note(self, state: bytes) -> None:
        """Say it in the lock file. OSError if that cannot be stored."""
        self.sync_names()
        os.pwrite(self._lock, state, 0)
        os.fsync(self._lock)

    def sync_names(self) -> None:
        """Bring the names of the files to the disk. OSError if that fails."""
        sync_folder(self.path)
        if self._is_new:
            # A crash must not take the directory itself away.
            sync_folder(self.path.parent)

    def file_bytes(self) -> int:
        """The bytes of database and WAL. OSError if the system does not tell."""
        return sum(file.stat().st_size for file in (self.database, self.wal) if file.exists())

    @property
    def is_open(self) -> bool:
        """True until ``close``."""
        return self._lock >= 0

    @property
    def is_there(self) -> bool:
        """True if the lock is still that of the directory with this name."""
        return _is_same(self.path / "store.lock", os.fstat(self._lock))

    def close(self) -> None:
        """Leave it to others. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class StoreFile(Closing):
    """The database, open for writing, and what is known of damage to it (``reach``).

    A database that cannot be opened is set aside. An empty one takes its place, which vouches for nothing.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raises ConfigurationError if the directory cannot be used, StoreError if the disk fails."""
        self.folder = StoreFolder(directory)
        self.path = self.folder.path
        self._is_ours = self._had_wal = False
        self._aside = self.path / "damaged"
        try:
            self._reach = ReachFile(self.path / "store.reach")
        except OSError as error:
            self.folder.close()
            raise StoreError(self.explain(error)) from error
        # How often the peer's copy took the place of a damaged one, and what was wrong with the last.
        self.repairs = 0
        self.repaired = ""
        try:
            self._open_or_set_aside()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StoreError(self.explain(error)) from error
        except BaseException:
            self.close()
            raise

    def _open_or_set_aside(self) -> None:
        try:
            self._open()
        except (sqlite3.Error, StoreError) as error:
            if not is_damage(error) and not self._is_unreadable(error):
                raise
            self.set_aside(self.explain(error))

    def _is_unreadable(self, error: Exception) -> bool:
        """True if SQLite cannot use the files although the disk works: their headers are damaged."""
        name = getattr(error, "sqlite_errorname", None) or ""
        files = (self.folder.database, self.folder.wal)
        if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            return False
        if not all(os.access(file, os.R_OK | os.W_OK) for file in files if file.exists()):
            return False
        self._reach.note(is_synced=True)
        return True

    def _open(self) -> None:
        self._is_full = True
        self._origin, self._sequence = os.urandom(8), 0
        self._had_wal = self.folder.wal.exists()
        base = _number_in(self.folder.database)
        is_new = self._prepare()
        self.database = self.connect()
        self._make() if is_new else self._check(base)
        # The WAL exists from here on.
        self.begin(is_synced=True)
        self.database.execute(sqlite_table.SERIAL)
        self.put("format", self.get("format", int))
        self.commit()
        self.reached()
        self.checkpoint()
        self._reach.sync()
        self._is_ours = self._had_wal = True
        self._files = [(file, file.stat()) for file in (self.folder.database, self.folder.wal)]
        self.folder.note(IN_USE)

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

    def snapshot(self) -> sqlite3.Connection:
        """A connection that reads the database as it is at its first question."""
        database = self.connect()
        try:
            database.execute("PRAGMA cache_size = -2048")
            database.execute("BEGIN")
        except BaseException:
            database.close()
            raise
        return database

    def free_bytes(self) -> int:
        """How much room the file system has. OSError if it does not tell."""
        return free_bytes(self.path)

    def explain(self, error: Exception) -> str:
        """What this error of SQLite or of the system means for the store, and what to do."""
        return explain(error, self.path)

    def size_bytes(self) -> int:
        """The bytes of its files. OSError if the system does not tell."""
        return self.folder.file_bytes()

    # --- transactions -------------------------------------------------------------------------------------

    def begin(self, *, is_synced: bool) -> None:
        """Begin a transaction, which ``commit`` will sync or not."""
        if is_synced is not self._is_full:
            self.database.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            self._is_full = is_synced
        self.database.execute("BEGIN")
        if is_synced:
            self.put("sequence", Sequence(self._origin, self._sequence + 1))

    def commit(self) -> float:
        """End it; how long that took, in seconds. After one that was synced call ``reached``."""
        began_at = time.monotonic()
        self.database.execute("COMMIT")
        took_s = time.monotonic() - began_at
        self._sequence += self._is_full
        return took_s

    def reached(self, last: Position | None = None, mark: Mark | None = None) -> None:
        """What was committed is synced. The log ends at ``last`` and ``mark`` is stored, None: as before.
        OSError if that cannot be noted.
        """
        reach = self._reach.reach
        reach.origin, reach.sequence = self._origin, self._sequence
        reach.last, reach.mark = last or reach.last, mark or reach.mark
        self._reach.note()

    def rollback(self) -> None:
        """Take it back, if there is one."""
        if self.database.in_transaction:
            self.database.execute("ROLLBACK")

    def checkpoint(self) -> int:
        """Copy the WAL into the database; the frames of the WAL that remain, because a copy is being read."""
        sequence = self._sequence
        _, frames, copied = self.database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if frames == copied:
            self._reach.reach.base = sequence
            self._reach.note()
        return int(frames - copied)

    def lost(self) -> str:
        """Which file was removed or replaced, "" if none was: what is written to it ends with the process."""
        lost = [file for file, status in self._files if not _is_same(file, status)]
        return f"{lost[0]} was removed or replaced while the store was in use" if lost else ""

    def rest(self) -> None:
        """Nothing waits: bring to the disk how far this copy reaches. OSError if that fails."""
        self._reach.sync()

    def sync_all(self) -> None:
        """After a failed sync it is unknown what the kernel has kept: write everything into the database and
        empty the WAL. sqlite3.Error if that fails, too.
        """
        busy, _, _ = self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("the WAL could not be emptied")

    # --- marks --------------------------------------------------------------------------------------------

    def put(self, key: str, value: object) -> None:
        """Store a value under a name."""
        data = msgspec.msgpack.encode(value)
        self.database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, crc32(data), data))

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of this name, or None. StoreError if it is damaged."""
        return value_of(self.database, key, kind)

    # --- damage -------------------------------------------------------------------------------------------

    @property
    def damage(self) -> str:
        """Why this copy must be replaced by the peer's; "" if it need not."""
        return self._reach.reach.damage

    @property
    def must(self) -> Position:
        """The last entry that this copy had before it was damaged."""
        return self._reach.reach.must

    @property
    def is_rebuilt(self) -> bool:
        """True if this copy began empty in the place of a damaged one, and was not in sync since."""
        return self._reach.reach.is_rebuilt

    def known_mark(self, mark: Mark | None) -> Mark | None:
        """The mark that counts; ``mark`` is the database's. That of a damaged one may be an older one."""
        if not self.damage:
            return mark
        known = self._reach.reach.mark or mark
        return None if known is None else replace(known, is_in_sync=False, is_doubtful=False)

    def note_damage(self, text: str, must: Position) -> bool:
        """This copy is damaged, which remains known after a restart. False if it was known before."""
        if self.damage and not self.is_rebuilt:
            return False
        _log.error("%s is damaged: %s; it is replaced by the peer's copy when that is whole", self.path, text)
        self._reach.reach.is_rebuilt = False
        try:
            self._reach.note_damage(text, must)
        except OSError as error:
            # The next synced transaction notes it.
            _log.error("%s", self.explain(error))
        return True

    def set_aside(self, text: str, mark: Mark | None = None) -> None:
        """Move the damaged files to ``damaged/`` and open an empty database with this mark, which the peer's
        copy will fill; without one with the last that is known, if the files cannot be opened. If files lie
        there from before, they are kept.

        Raises sqlite3.Error and OSError.
        """
        reach = self._reach.reach
        text = reach.damage or text
        is_rebuilt, must = mark is not None, max(reach.must, reach.last)
        if mark is None and reach.mark is not None:
            mark = replace(reach.mark, is_in_sync=False, is_doubtful=False)
        if hasattr(self, "database"):
            self.database.close()
        self._take_folder()
        self._reach.reach = Reach(mark=mark, is_rebuilt=is_rebuilt)
        self._reach.note_damage(text, must)
        self._move_aside(text)
        self._open()
        if mark is not None:
            self.begin(is_synced=True)
            self.put("mark", mark)
            self.commit()
            self.reached(START, mark)

    def _take_folder(self) -> None:
        """If the directory was removed or replaced, lock the one that has its name, made if it is missing."""
        if self.folder.is_there:
            return
        try:
            folder = StoreFolder(self.path)
        except ConfigurationError as error:
            raise StoreError(str(error)) from error
        self.folder.close()
        self._reach.close()
        self.folder, self._reach = folder, ReachFile(self.path / "store.reach")

    def _move_aside(self, text: str) -> None:
        is_kept = not (self._aside / self.folder.database.name).exists()
        self._aside.mkdir(mode=0o700, exist_ok=True)
        for file in (self.folder.wal, self.folder.shm, self.folder.database):
            if file.exists() and is_kept:
                file.rename(self._aside / file.name)
            else:
                file.unlink(missing_ok=True)
        if self.folder.state:
            # Otherwise an attempt to open an empty copy has failed, and this is the next one.
            _log.error(
                "%s is damaged: %s; its files are in %s, and the store begins with an empty copy, which "
                "takes the peer's", self.path, text, self._aside,
            )  # fmt: skip
        self.folder.forget()

    def mend(self, *, is_forced: bool) -> None:
        """The peer's copy has taken this one's place, or an operator goes on from this one (``is_forced``).
        OSError if that cannot be stored.
        """
        if not self.damage:
            return
        how = "an operator goes on from it" if is_forced else "the peer's copy has taken its place"
        _log.warning("%s was damaged, and %s: %s", self.path, how, self.damage)
        self.repairs += not is_forced
        self.repaired = self.damage
        reach = self._reach.reach
        reach.damage, reach.must, reach.is_rebuilt = "", START, False
        self._reach.note(is_synced=True)
        if not is_forced:
            self._drop_aside()

    def _drop_aside(self) -> None:
        try:
            if self._aside.exists():
                shutil.rmtree(self._aside)
        except OSError as error:
            _log.warning("%s is needed no more, and cannot be removed: %s", self._aside, error)

    def close(self) -> None:
        """Copy the WAL into the database, and leave it to others. Idempotent."""
        # The last connection copies and removes the WAL, if the disk lets it.
        if hasattr(self, "database"):
            self.database.close()
        if self.folder.is_open and self._had_wal and not self.folder.wal.exists():
            try:
                self._reach.sync()
                self.folder.note(CLOSED if self._is_ours else UNSURE)
            except OSError as error:
                _log.error("%s", self.explain(error))
        self._reach.close()
        self.folder.close()

    # --- opening ------------------------------------------------------------------------------------------

    def _prepare(self) -> bool:
        """See that the right files are there; True if there is no store yet and one may be made."""
        path = self.folder.database
        if not self.folder.state and not self._reach.reach.sequence:
            # Nothing, or a beginning that a crash has interrupted.
            if path.exists() and _is_whole(path):
                return False
            for leftover in (path, self.folder.wal, self.folder.shm):
                leftover.unlink(missing_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._reach.note(is_synced=True)
            self._reach.fault = ""
            # The names are there before anything is claimed of them.
            self.folder.sync_names()
            return True
        if not path.exists():
            raise StoreError(f"{path} is missing")
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise StoreError(f"{path} is no SQLite database")
        return False

    def _make(self) -> None:
        self.database.execute("BEGIN")
        for statement in (_META, *sqlite_log.SCHEMA, *sqlite_table.SCHEMA):
            self.database.execute(statement)
        self.put("sequence", Sequence(self._origin, self._sequence + 1))
        self.put("format", FORMAT)
        self.commit()
        self.sync_all()
        self.reached()
        _log.info("a store was made: %s", self.path)

    def _check(self, base: Sequence | None) -> None:
        """See whether this copy has all that was synced, and note what is wrong."""
        path = self.folder.database
        found = self.get("format", int)
        if found not in FORMATS:
            raise ConfigurationError(
                f"store.directory: {path} has the format {found}, and this program reads {FORMAT} and "
                f"{GROUPED}: use the program that wrote it"
            )
        sequence = self.get("sequence", Sequence)
        if sequence is not None:
            self._origin, self._sequence = sequence
        fault = self._shortfall(sequence, base) or self._problems()
        if fault:
            self._sequence = max(self._sequence, self._reach.reach.sequence)
            self.note_damage(fault, self._reach.reach.last)

    def _shortfall(self, sequence: Sequence | None, base: Sequence | None) -> str:
        """What is missing here that was synced; "" if nothing is."""
        reach, path = self._reach.reach, self.folder.database
        if self._reach.fault:
            return self._reach.fault
        if sequence is None:
            # Of a release that kept no number: only a WAL that is missing shows.
            is_gone = self.folder.state == IN_USE and not self._had_wal
            return f"{self.folder.wal} is missing, although the store was in use" if is_gone else ""
        if self._reach.is_new:
            return f"{self._reach.path} is missing: nothing proves that this copy has all that was synced"
        if base is not None and (base.origin != reach.origin or base.number < reach.base):
            return (
                f"{path} is an older file, or another's: it has transaction {base.number}, not {reach.base}"
            )
        return shortfall(reach, sequence, str(path))

    def _problems(self) -> str:
        """What a check of the whole file finds, if it was not closed and is small."""
        path = self.folder.database
        if self.folder.state in (CLOSED, b""):
            return ""
        size = path.stat().st_size
        if size > _CHECKED_BYTES_MAX:
            _log.warning("%s was not closed; %d MB are checked as the store runs", path, size // 1_000_000)
            return ""
        _log.warning("%s was not closed: checking %d MB", path, size // 1_000_000)
        problems = [" ".join(row[0].split()) for row in self.database.execute("PRAGMA integrity_check(3)")]
        return "" if problems == ["ok"] else f"{path}: {'; '.join(problems)}"


def _cache_bytes() -> int:
    with Memory() as memory:
        left = memory.left()
    fits = _CACHE_BYTES_MAX if left is None else left // _CACHE_PART
    return min(max(fits, _CACHE_BYTES_MIN), _CACHE_BYTES_MAX)


def _number_in(path: Path) -> Sequence | None:
    """The number of the last transaction in the database file itself, without its WAL; None if it is
    unknown: a crash may have torn the page while the WAL was copied.
    """
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            return value_of(database, "sequence", Sequence)
        finally:
            database.close()
    except (sqlite3.Error, StoreError):
        return None


def value_of(database: sqlite3.Connection, key: str, kind: type[T]) -> T | None:
    """The value that this database has under a name, or None. StoreError if it is damaged."""
    row = database.execute("SELECT checksum, value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    if not isinstance(row[1], bytes) or crc32(row[1]) != row[0]:
        raise StoreError(f"the store's {key} is damaged: its checksum is wrong")
    try:
        return msgspec.msgpack.decode(row[1], type=kind)
    except UNDECODABLE as error:
        raise StoreError(f"the store's {key} is damaged: {error}") from error


def _is_same(path: Path, status: os.stat_result) -> bool:
    """True if the file with this name is the one that has this status."""
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


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
