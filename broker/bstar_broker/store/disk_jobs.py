"""What the store's disk does between transactions, a slice of it at a time: reading the log, lists of
records, copies of the table for the peer, and trimming the log.
"""

import sqlite3
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from bstar_broker.store.core.entries import Position
from bstar_broker.store.core.events import DiskInput, Export, Exported, Found, LogRead, ReadLog, Search, Trim
from bstar_broker.store.core.records import Record, Totals, Wanted
from bstar_broker.store.faults import is_damage
from bstar_broker.store.sqlite_file import StoreFile, value_of
from bstar_broker.store.sqlite_table import SqliteTable
from bstar_broker.store.writer import TableState, Writer

# Between two passes of the check that goes on, and how long it rests for each second that it reads.
SCRUB_INTERVAL_S: Final = 3_600.0
_SCRUB_REST: Final = 50

# A slice of a search reads so many rows at most: 10 ms.
_ROWS_MAX: Final = 20_000

# A copy without a reader keeps the WAL from being emptied, so it ends after this time.
EXPORT_S_MAX: Final = 60.0


class _Scan(msgspec.Struct):
    """A search on its way: what it found, and the seq up to which it looked."""

    order: Search
    wanted: Wanted
    found: list[Record]
    after: int
    size_bytes: int


class _Copy:
    """The table as it was when this was made, read through a connection of its own."""

    def __init__(self, file: StoreFile, on_damage: Callable[[str], object]) -> None:
        self.database = file.snapshot()
        try:
            state = value_of(self.database, "state", TableState) or TableState()
        except BaseException:
            self.database.close()
            raise
        self.applied: Position = state.applied
        self.at_ms = state.at_ms
        self.table = SqliteTable(self.database, Totals(), on_damage)
        self.asked_at = time.monotonic()


class Scrub:
    """Reads all of the copy bit by bit: records, their indices, the log. The first pass after opening takes
    up to a half of the thread's time, later ones a fiftieth.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._part = 0
        self._after: int = 0
        self._after_id = b""
        self._at = 0.0

    def patience_s(self) -> float:
        """How long until the next slice is due."""
        return max(0.0, self._at - time.monotonic())

    def turn(self) -> None:
        """Read a slice if it is time. Raises sqlite3.Error if the disk fails."""
        writer, began_at = self._writer, time.monotonic()
        if began_at < self._at or writer.is_behind:
            return
        try:
            is_over = self._read()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            writer.damaged(writer.file.explain(error))
            is_over = True
        now = time.monotonic()
        self._at = now + (now - began_at) * (_SCRUB_REST if writer.is_verified else 1)
        if is_over:
            self._part = (self._part + 1) % 3
            if not self._part:
                self._at = now + SCRUB_INTERVAL_S
                writer.verified()

    def _read(self) -> bool:
        """Read a slice; True if a part is over."""
        writer = self._writer
        if self._part == 0:
            seq = writer.table.verify(self._after)
            self._after = seq or 0
            return seq is None
        if self._part == 1:
            request = writer.table.verify_index(self._after_id)
            self._after_id = request or b""
            return request is None
        self._after, text = writer.log.verify(self._after)
        if text:
            writer.damaged(text)
        return not self._after


class Jobs:
    """Jobs, in the order in which they came; ``turn`` does one slice."""

    def __init__(self, writer: Writer, answer: Callable[[DiskInput], None]) -> None:
        self._writer = writer
        self._answer = answer
        self._jobs: deque[ReadLog | Export | Trim | _Scan] = deque()
        self._copy: _Copy | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def has_copy(self) -> bool:
        """True while a copy of the table is read: the WAL cannot be emptied."""
        return self._copy is not None

    def add(self, order: ReadLog | Search | Export | Trim) -> None:
        """Take an order."""
        if isinstance(order, Search):
            wanted = Wanted(order.service, order.state, order.submitted_before_ms, order.owner)
            self._jobs.append(_Scan(order, wanted, [], order.after, order.size_bytes))
        else:
            self._jobs.append(order)

    def turn(self) -> None:
        """Do one slice. Raises sqlite3.Error and StoreError; the job is then tried again."""
        job = self._jobs[0]
        if isinstance(job, ReadLog):
            self._answer(LogRead(job.begin, self._writer.log.read(job.begin, job.size_bytes), job.token))
        elif isinstance(job, Export):
            self._export(job)
        elif self._writer.trim(job.number) if isinstance(job, Trim) else not self._scan(job):
            # There is more of it, after the others.
            self._jobs.rotate(-1)
            return
        self._jobs.popleft()

    def forget_copy(self, *, is_idle_only: bool = True) -> None:
        """Give up the copy of the table if it was not read for a while, or at once."""
        copy = self._copy
        if copy is not None and (not is_idle_only or time.monotonic() > copy.asked_at + EXPORT_S_MAX):
            self._copy = None
            copy.database.close()

    def _scan(self, scan: _Scan) -> bool:
        """True if the search has ended."""
        if self._writer.is_behind:
            return False
        order, table = scan.order, self._writer.table
        end = table.end_of(scan.after, _ROWS_MAX)
        has_more = False
        for record in table.those(scan.after, end, scan.wanted):
            scan.size_bytes -= record.size_bytes
            has_more = len(scan.found) == order.limit or (bool(scan.found) and scan.size_bytes < 0)
            if has_more:
                break
            scan.found.append(record)
        if has_more or end is None:
            self._answer(Found(order.token, scan.found, has_more))
            return True
        scan.after = end
        return False

    def _export(self, order: Export) -> None:
        if order.after == 0:
            self.forget_copy(is_idle_only=False)
        if self._copy is None:
            self._copy = _Copy(self._writer.file, self._writer.damaged)
        copy = self._copy
        copy.asked_at = time.monotonic()
        records, after, has_more = copy.table.export(order.after, order.size_bytes)
        self._answer(Exported(after, records, not has_more, copy.applied, copy.at_ms))
        if not has_more:
            self.forget_copy(is_idle_only=False)
