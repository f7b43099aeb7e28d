"""The check of a store that no process uses: everything is read, nothing is written.

It reads each page, each entry of the log and each record, compares checksums, counts and positions, and names
what is damaged. ``bstar store check`` prints what it finds.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from bstar.base.printable import printable
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import BstarError, ConfigurationError, StoreError
from bstar_broker.store.core import commands
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import Mark
from bstar_broker.store.core.records import Totals
from bstar_broker.store.core.rules import ROWS_MAX
from bstar_broker.store.faults import explain
from bstar_broker.store.reach_file import Sequence, read, shortfall
from bstar_broker.store.sqlite_file import FORMATS, IN_USE, UNSURE, value_of
from bstar_broker.store.sqlite_log import SqliteLog
from bstar_broker.store.sqlite_table import VERIFIED_COLUMNS, fault_of, record_of
from bstar_broker.store.wal_file import scan
from bstar_broker.store.writer import TableState

# More findings than this say nothing more; they are counted.
FINDINGS_MAX: Final = 1_000

# Between two calls of a watcher: rows read, and steps of SQLite's machine; some milliseconds each.
_WATCHED_ROWS: Final = 500
_WATCHED_STEPS: Final = 100_000


class Finding(msgspec.Struct, frozen=True):
    """Something is wrong. ``part`` is files, pages, marks, log or records; ``name`` an entry's number or a
    request's id, "" if it is neither.
    """

    part: str
    text: str
    name: str = ""


class Report(msgspec.Struct):
    """What a check found. ``findings`` are the first FINDINGS_MAX of ``findings_count``: none, it is whole.

    ``was_closed``: the process that had it closed it; otherwise the next one that opens it reads the WAL, and
    that is no damage. ``log_entries`` and ``totals`` are counted. ``staged``: records of the peer's table
    that came before a copy was interrupted; the node drops them when it starts.
    """

    directory: str
    was_closed: bool = False
    findings: list[Finding] = []
    findings_count: int = 0
    mark: Mark | None = None
    first: int = 0
    last: Position = START
    applied: Position = START
    epochs: list[Position] = []
    log_entries: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    size_bytes: int = 0
    staged: int = 0

    @property
    def is_whole(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings_count


# The part that is read, how many entries or records of it were, and how many it has; 0 and 0: not known.
Watcher = Callable[[str, int, int], object]


def check(directory: Path, watch: Watcher = lambda part, done, count: None) -> Report:
    """Check the store in this directory. ConfigurationError if it is missing or a process uses it.

    ``watch`` is called many times a second.
    """
    path = directory / "store.db"
    try:
        lock = os.open(directory / "store.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if path.exists():
            # Only its name was lost: no process can have begun without it.
            return _check(path, b"", watch)
        raise ConfigurationError(
            f"{directory} holds no store: store.lock: {error.strerror or error}; name a store.directory"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"a process uses {directory}: stop the node, or ask it with bstar status"
            ) from error
        return _check(path, os.pread(lock, len(IN_USE), 0), watch)
    finally:
        os.close(lock)


def _check(path: Path, state: bytes, watch: Watcher) -> Report:
    report = Report(str(path.parent), was_closed=state not in (IN_USE, UNSURE), findings=[], epochs=[])
    wal = path.with_name("store.db-wal")
    if not path.exists():
        _find(report, "files", f"{path} is missing")
        return report
    database = None
    try:
        report.size_bytes = sum(file.stat().st_size for file in (path, wal) if file.exists())
        frames, lost = scan(wal)
        # Without a WAL nothing has to be recovered: no file is made or locked.
        mode = "mode=ro" if wal.exists() else "mode=ro&immutable=1"
        database = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
        sequence = value_of(database, "sequence", Sequence)
        if sequence is None and state == IN_USE and not wal.exists():
            _find(report, "files", f"{wal} is missing, although the store was in use: what it held is lost")
        for text in _reach(path.parent, sequence, lost, frames):
            _find(report, "files", text)
        _read(database, report, watch)
    except StoreError as error:
        _find(report, "marks", str(error))
    except (sqlite3.Error, OSError) as error:
        _find(report, "pages", explain(error, path.parent))
    finally:
        if database is not None:
            database.close()
    return report


def _read(database: sqlite3.Connection, report: Report, watch: Watcher) -> None:
    """Read all of it in one transaction."""
    database.execute("BEGIN")

    def tell() -> None:
        watch("pages", 0, 0)

    database.set_progress_handler(tell, _WATCHED_STEPS)
    for (text,) in database.execute(f"PRAGMA integrity_check({FINDINGS_MAX})"):
        if text != "ok":
            _find(report, "pages", " ".join(text.split()))
    database.set_progress_handler(None, 0)
    kept = _marks(database, report)
    _log(database, report, kept, watch)
    _records(database, report, kept, watch)
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'staged'").fetchone():
        (report.staged,) = database.execute("SELECT count(*) FROM staged").fetchone()
    if report.totals != kept.totals:
        _find(report, "records", f"counted {report.totals}, but the store says {kept.totals}")


def _marks(database: sqlite3.Connection, report: Report) -> TableState:
    kept = TableState()
    try:
        found = value_of(database, "format", int)
        if found not in FORMATS:
            _find(report, "marks", f"its format is {found}, and this program reads {FORMATS}")
        report.mark = value_of(database, "mark", Mark)
        kept = value_of(database, "state", TableState) or kept
    except BstarError as error:
        _find(report, "marks", str(error))
    report.applied = kept.applied
    return kept


def _log(database: sqlite3.Connection, report: Report, kept: TableState, watch: Watcher) -> None:
    log = SqliteLog(database)
    log.load(kept.applied, kept.at_ms)
    report.first, report.last, report.epochs = log.first, log.last, log.epochs()
    before: Entry | None = None
    for entry in log.entries(log.first, log.last.number):
        report.log_entries += 1
        if report.log_entries % _WATCHED_ROWS == 0:
            watch("log", report.log_entries, log.last.number - log.first + 1)
        for text in _wrongs(entry, before, report.epochs):
            _find(report, "log", f"log entry {entry.number} {text}", str(entry.number))
        before = entry
    if not log.first - 1 <= kept.applied.number <= log.last.number:
        _find(
            report,
            "log",
            f"the table is that after entry {kept.applied.number}, and the log has {log.first} to "
            f"{log.last.number}",
        )


def _wrongs(entry: Entry, before: Entry | None, epochs: list[Position]) -> Iterator[str]:
    if not entry.is_whole:
        yield "is damaged: its checksum is wrong"
        return
    try:
        commands.decode(entry.commands)
    except UNDECODABLE as error:
        yield f"cannot be read: {error}"
    if before is not None:
        if entry.number != before.number + 1:
            yield f"follows entry {before.number}: those between are missing"
        elif entry.epoch < before.epoch or entry.at_ms < before.at_ms:
            yield f"(epoch {entry.epoch}) is older than the one before it (epoch {before.epoch})"
    held = max((each for each in epochs if each.number <= entry.number), default=START)
    if held.epoch != entry.epoch:
        yield f"is of epoch {entry.epoch}, and the history of epochs says {held.epoch}"


def _records(database: sqlite3.Connection, report: Report, kept: TableState, watch: Watcher) -> None:
    rows = database.execute(f"SELECT {VERIFIED_COLUMNS} FROM records ORDER BY seq")  # noqa: S608
    totals = kept.totals
    count = totals.pending + totals.answered + totals.dead + totals.cancelled + totals.scheduled
    for number, row in enumerate(rows, 1):
        if number % _WATCHED_ROWS == 0:
            watch("records", number, count)
        seq, request = row[0], row[3]
        name = request.hex() if isinstance(request, bytes) else printable(str(request).encode(), 40)
        if text := fault_of(row):
            _find(report, "records", f"record {seq} is damaged: {text}", name)
        with suppress(BstarError):
            report.totals.count(record_of(row[:3]), 1)
        if seq // ROWS_MAX > kept.applied.number:
            _find(report, "records", f"record {seq} is of an entry that was not applied", name)


def _reach(directory: Path, sequence: Sequence | None, lost: int, frames: int) -> Iterator[str]:
    """What this copy lacks of what was synced."""
    path = directory / "store.reach"
    reach = read(path.read_bytes()) if path.exists() else None
    if reach is None:
        if sequence is not None:
            what = "damaged" if path.exists() else "missing"
            yield f"{path} is {what}: nothing proves that the rest is whole"
        return
    if reach.damage:
        yield f"the store was found damaged, and takes the peer's copy when it runs: {reach.damage}"
    text = shortfall(reach, sequence or Sequence(b"", 0), str(directory / "store.db"))
    if text and lost:
        yield f"frame {frames + 1} of store.db-wal is damaged, and {lost} frames behind it cannot be read"
    if text:
        yield text


def _find(report: Report, part: str, text: str, name: str = "") -> None:
    report.findings_count += 1
    if len(report.findings) < FINDINGS_MAX:
        report.findings.append(Finding(part, text, name))
