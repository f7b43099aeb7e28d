"""The transactions of the store's disk: what one turn appends, applies, marks and imports.

A turn is one transaction for all the orders that wait. It applies first and hands out the results at once:
those entries are synced on this disk since an earlier turn. Then it reads what was asked, then it appends and
marks, then it commits, and then all of it is ``Written``.

After an error nothing of the transaction has happened. The results of an entry that were handed out are never
handed out twice: the entry is applied again without them, and whatever reads the table waits for that.
"""

import copy
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import BstarError, StoreError
from bstar.net.agenda import Lag
from bstar_broker.store.core import commands, rules
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import (
    Applied,
    Damaged,
    DiskInput,
    Due,
    DueFound,
    Find,
    Found,
    Import,
    Mark,
    Opened,
    Replaced,
    Write,
    Written,
)
from bstar_broker.store.core.records import Totals
from bstar_broker.store.fail_points import Point, reach
from bstar_broker.store.faults import FaultLog, is_damage
from bstar_broker.store.sqlite_file import GROUPED, StoreFile
from bstar_broker.store.sqlite_log import SqliteLog
from bstar_broker.store.sqlite_table import SqliteTable

# One transaction applies so many bytes of commands at most, about 50 ms, so that none waits long for it.
_APPLIED_BYTES_MAX: Final = 4 << 20

# Appended entries that are kept to be applied without reading them back.
_CACHE_BYTES_MAX: Final = 32 << 20

# A turn reads so many bytes of records for those who ask at most; the rest come in the next turns.
_FOUND_BYTES_MAX: Final = 4 << 20

# Questions for requests that are not found, which wait until all of the copy was read.
_MISSES_MAX: Final = 10_000
_UNREAD: Final = "the store was just opened and is being checked: ask again"

# What a transaction writes to the WAL beside its commands: index pages, the marks.
_WAL_BYTES_MIN: Final = 16 << 10


class Answer(Protocol):
    """Hands an answer to the loop. One that is not ``is_awaited`` may wait for the next one that is."""

    def __call__(self, answer: DiskInput, *, is_awaited: bool = True) -> None:
        """Hand it over."""


class SyncTimes(Lag):
    """How long commits with a sync took, in seconds: the buckets are those of a reactor's lag."""


class Figures:
    """What the disk has done: ``commits``, transactions that failed (``errors``), how long syncs took.

    ``error`` says why the last transaction failed and what to do, "" if it did not.
    """

    def __init__(self) -> None:
        self.syncs = SyncTimes()
        self.commits = self.errors = 0
        self.error = ""
        self.faults = FaultLog()


class TableState(msgspec.Struct):
    """What the table is: after which entry, and what it holds."""

    applied: Position = START
    at_ms: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)


class _Appended:
    """Entries that were appended and will be applied soon: so many that they need not be read back."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._size_bytes = 0

    def put(self, entry: Entry) -> None:
        """Keep it, if there is room."""
        self.take(entry.number)
        if self._size_bytes + len(entry.commands) <= _CACHE_BYTES_MAX:
            self._entries[entry.number] = entry
            self._size_bytes += len(entry.commands)

    def take(self, number: int) -> Entry | None:
        """The entry with this number, which is not kept any longer; None if it is not here."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            self._size_bytes -= len(entry.commands)
        return entry

    def keep_to(self, number: int) -> None:
        """Forget those above this number."""
        for above in [each for each in self._entries if each > number]:
            self.take(above)


class Writer:
    """Carries out orders in transactions. ``figures`` may go on with what earlier writers have done.

    ``wal_bytes`` is about what the WAL holds that is not in the database.
    """

    def __init__(self, file: StoreFile, answer: Answer, figures: Figures) -> None:
        self.file = file
        self.figures = figures
        figures.error = ""
        self.wal_bytes = 0
        self.log = SqliteLog(file.database)
        self.table = SqliteTable(file.database, Totals(), self.damaged)
        self._answer = answer
        # Every record, entry and index was read since the store was opened. Until then nothing is "unknown".
        self.is_verified = False
        self._misses: deque[Find] = deque()
        self._state = TableState()
        self._synced = START
        # The last order that was carried out.
        self._order = 0
        self._apply_to = self._handed_out = 0
        self._appended = _Appended()
        # A transaction has failed: memory and disk may differ; and a sync: so may kernel and disk.
        self._is_unsure = self._is_sync_unsure = False
        self._load()
        self._drop_staged()
        self._apply_to = self._handed_out = self._state.applied.number
        self._synced = self.log.last
        if text := self.log.history_fault() or self.table.count_fault():
            self.file.note_damage(text, self.log.last)

    def _drop_staged(self) -> None:
        """A process that ended has left part of the peer's table: the peer sends it from its start again."""
        self.file.begin(is_synced=False)
        self.table.unstage()
        self.file.put("staged", Totals())
        self.file.commit()

    def fault(self, text: str) -> Written:
        """The program is at fault, and nothing more is written: what to tell."""
        self.figures.error = text
        return Written(self._synced, self._order, text)

    def opened(self) -> Opened:
        """What was found. Raises StoreError if its mark is damaged."""
        state = self._state
        mark = self.file.known_mark(self.file.get("mark", Mark))
        damage = "" if self.file.is_rebuilt else self.file.damage
        return Opened(
            mark, self.log.last, self.log.first, state.applied.number, self.log.at_ms, self.log.epochs(),
            copy.copy(state.totals), self.table.next_due(), damage, max(self.file.must, self.log.last),
        )  # fmt: skip

    def damaged(self, text: str) -> None:
        """Something that was stored here is damaged: keep that in mind and tell the replica, once."""
        if self.file.note_damage(text, self.log.last):
            self._answer(Damaged(text))

    @property
    def has_to_apply(self) -> bool:
        """True if there are entries to apply."""
        return self._state.applied.number < min(self._apply_to, self._synced.number)

    @property
    def is_behind(self) -> bool:
        """True if the table lacks what was handed out: it must not be read."""
        return self._is_unsure or self._state.applied.number < self._handed_out

    def write(self, writes: Sequence[Write], reads: "deque[Find | Due]") -> bool:
        """One transaction for these orders; False if it failed. Takes off ``reads`` what it has answered."""
        end = self._synced.number
        for order in writes:
            if order.keep_to is not None:
                end = min(end, order.keep_to)
                self._apply_to = min(self._apply_to, max(order.keep_to, self._state.applied.number))
            self._apply_to = max(self._apply_to, order.apply_to)
        is_synced = any(order.entries or order.mark or order.keep_to is not None for order in writes)

        def work() -> None:
            self._apply(min(self._apply_to, end))
            self._read(reads)
            for order in writes:
                self._append(order)

        had_failed = self.figures.error != ""
        mark = next((order.mark for order in reversed(writes) if order.mark is not None), None)
        is_forced = any(order.is_mended for order in writes)
        if not self._transact(work, is_synced=is_synced, mark=mark, is_forced=is_forced):
            return False
        if writes:
            self._order = writes[-1].order
        # The end of an error is reported even if no order waits: the next order may come much later.
        if writes or had_failed:
            # Who waits for entries to be applied gets ``Applied``.
            self._answer(Written(self._synced, self._order), is_awaited=is_synced or had_failed)
        return True

    def take_in(self, parts: Sequence[Import]) -> bool:
        """One transaction for these parts of the peer's table; False if it failed."""
        replaced: Replaced | None = None

        def work() -> None:
            nonlocal replaced
            for part in parts:
                if part.is_first:
                    self.table.stage()
                self.table.put(part.records)
                self.file.put("staged", self.table.staged)
                reach(Point.IMPORT)
                self.wal_bytes += sum(record.size_bytes for record in part.records)
                if part.applied is not None:
                    self._swap(part, part.applied)
                    replaced = Replaced(copy.copy(self.table.totals), self.table.next_due())

        # Until the table is whole it takes the place of nothing: a crash drops what there is of it.
        is_whole = any(part.applied is not None for part in parts)
        if not self._transact(work, is_synced=is_whole):
            return False
        if replaced is not None:
            self._apply_to = self._handed_out = self._state.applied.number
            self._answer(replaced, is_awaited=False)
        self._order = parts[-1].order
        self._answer(Written(self._synced, self._order))
        return True

    def _swap(self, part: Import, applied: Position) -> None:
        """The peer's table is whole: table and log of before go, in the same transaction."""
        self.table.swap()
        self._state = TableState(applied, part.at_ms)
        self._put_state()
        self.log.begin_after(applied, part.at_ms, part.epochs)
        self._appended.keep_to(0)
        reach(Point.SWAP)

    def trim(self, below: int) -> bool:
        """Drop some entries below this number; True if there are more."""
        has_more = False

        def work() -> None:
            nonlocal has_more
            reach(Point.TRIM)
            has_more = self.log.trim(min(below, self._state.applied.number + 1))

        return self._transact(work, is_synced=False) and has_more

    # --- the parts of a transaction -----------------------------------------------------------------------

    def _apply(self, end: int) -> None:
        size_bytes, state = 0, self._state
        while state.applied.number < end and size_bytes < _APPLIED_BYTES_MAX:
            number = state.applied.number + 1
            entry = self._appended.take(number) or self.log.whole(number)
            try:
                orders = commands.decode(entry.commands)
            except UNDECODABLE as error:
                raise StoreError(f"log entry {number} holds no commands of this program: {error}") from error
            reach(Point.BEFORE_APPLY)
            changes = rules.apply(entry, orders, self.table)
            reach(Point.AFTER_APPLY)
            state.applied, state.at_ms = entry.position, entry.at_ms
            size_bytes += len(entry.commands)
            if number > self._handed_out:
                self._handed_out = number
                self._answer(Applied(number, changes, copy.copy(self.table.totals)))
        if size_bytes:
            self.wal_bytes += 2 * size_bytes
            self._put_state()

    def _put_state(self) -> None:
        self._state.totals = self.table.totals
        self.file.put("state", self._state)
        if self.table.totals.grouped:
            self.file.put("format", GROUPED)

    def _read(self, reads: "deque[Find | Due]") -> None:
        if self._state.applied.number < self._handed_out:
            return
        size_bytes = 0
        while reads and size_bytes < _FOUND_BYTES_MAX:
            order = reads[0]
            answer: DueFound | Found
            if isinstance(order, Due):
                found = self.table.due(order.service, order.now_ms, order.limit, order.size_bytes, order.skip)
                answer = DueFound(order.service, *found)
            else:
                answer = self._find(order)
            size_bytes += sum([record.size_bytes for record in answer.records])
            is_miss = isinstance(answer, Found) and not (answer.records or answer.error)
            if not is_miss or self.is_verified:
                self._answer(answer)
            elif len(self._misses) < _MISSES_MAX:
                self._misses.append(order)  # type: ignore[arg-type]
            else:
                self._answer(Found(answer.token, [], error=_UNREAD))  # type: ignore[union-attr]
            reads.popleft()

    def _find(self, order: Find) -> Found:
        try:
            record = self.table.get(order.id)
        except StoreError as error:
            return Found(order.token, [], error=str(error))
        if record is None and self.file.damage and not self.file.is_rebuilt:
            text = f"it is not known whether the request is stored: this copy is damaged ({self.file.damage})"
            return Found(order.token, [], error=text)
        return Found(order.token, [] if record is None else [record])

    def verified(self) -> None:
        """All of this copy was read since it was opened: answer what waited for that."""
        self.is_verified = True
        while self._misses:
            self._answer(self._find(self._misses.popleft()))

    def _append(self, order: Write) -> None:
        log, applied = self.log, self._state.applied
        if order.keep_to is not None:
            log.keep_to(order.keep_to, applied, self._state.at_ms)
            self._appended.keep_to(order.keep_to)
        if order.entries:
            reach(Point.BEFORE_APPEND)
            log.append(order.entries)
            reach(Point.AFTER_APPEND)
        for entry in order.entries:
            self.wal_bytes += len(entry.commands)
            if entry.number > applied.number:
                self._appended.put(entry)
        if order.mark is not None:
            reach(Point.MARK)
            self.file.put("mark", order.mark)

    # --- transactions -------------------------------------------------------------------------------------

    def _transact(
        self, work: Callable[[], None], *, is_synced: bool, mark: Mark | None = None, is_forced: bool = False
    ) -> bool:
        try:
            if self._is_sync_unsure:
                self.file.sync_all()
                self._is_sync_unsure = False
            if self._is_unsure:
                self._load()
                self._is_unsure = False
            self.file.begin(is_synced=is_synced)
            work()
            reach(Point.BEFORE_COMMIT)
            took_s = self.file.commit()
            if is_synced:
                self.file.reached(self.log.last, mark)
            if is_forced or (mark is not None and mark.is_in_sync and self.file.is_rebuilt):
                self.file.mend(is_forced=is_forced)
            reach(Point.AFTER_COMMIT)
        except (sqlite3.Error, OSError, MemoryError, BstarError) as error:
            self.fail(error)
            return False
        self.figures.commits += 1
        self.wal_bytes += _WAL_BYTES_MIN
        self._synced = self.log.last
        if is_synced:
            self.figures.syncs.observe(took_s)
        self.figures.error = ""
        self.figures.faults.wrote(self.file.path)
        return True

    def fail(self, error: Exception) -> None:
        """A transaction or a job has failed: tell, and take it back."""
        if is_damage(error):
            self.damaged(self.file.explain(error))
        self._is_unsure = True
        name: str = getattr(error, "sqlite_errorname", None) or ""
        self._is_sync_unsure = self._is_sync_unsure or name.startswith("SQLITE_IOERR")
        self._appended.keep_to(0)
        text = self.file.explain(error)
        try:
            self.file.rollback()
        except sqlite3.Error as second:
            text = f"{text}; and it could not be taken back: {second}"
        self.report(text)

    def hangs(self, for_s: float) -> str:
        """The disk does not answer: report it as an error, and return the text. In the loop's thread."""
        text = (
            f"the disk of {self.file.path} has not answered for {for_s:g} s: see the system's log, and what "
            "else uses that disk; the store goes on by itself when it answers"
        )
        self.figures.faults.failed(text)
        self._answer(Written(self._synced, self._order, text))
        return text

    def answers_again(self) -> None:
        """The disk has answered after all: report what holds now."""
        self._answer(Written(self._synced, self._order, self.figures.error))

    def report(self, text: str) -> None:
        """Tell that nothing can be written now, and why."""
        self.figures.errors += 1
        self.figures.faults.failed(text)
        self.figures.error = text
        self._answer(Written(self._synced, self._order, text))

    def _load(self) -> None:
        """Take from the disk what memory holds of it."""
        self._state = self.file.get("state", TableState) or TableState()
        self.table.totals = self._state.totals
        self.table.staged = self.file.get("staged", Totals) or Totals()
        self.log.load(self._state.applied, self._state.at_ms)
