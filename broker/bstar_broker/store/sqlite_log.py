"""The log of the durable store in SQLite: its entries, and the history of epochs beyond those trimmed."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from bstar.errors import StoreError
from bstar_broker.store.core.entries import START, Entry, Position

SCHEMA: Final = (
    """CREATE TABLE log (
        number INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, at_ms INTEGER NOT NULL, checksum INTEGER NOT NULL,
        commands BLOB NOT NULL)""",
    "CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, number INTEGER NOT NULL)",
)

_COLUMNS = "epoch, number, at_ms, commands, checksum"

# Dropping an entry reads its pages, so a turn drops so much at most: 10 ms.
_TRIM_ROWS_MAX: Final = 500
_TRIM_BYTES_MAX: Final = 4 << 20


class SqliteLog:
    """The log in this database, whose owner begins and ends the transactions, and calls ``load`` after one
    that failed.

    ``last`` is the position of the last entry and ``at_ms`` its time; of an empty log those of the entry
    before it, with which a table came from the peer or up to which the log was trimmed. ``first`` is the
    number of the first entry that is still there, or will be.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self.last = START
        self.at_ms = 0
        self.first = 1
        self._run = database.execute
        self._run_many = database.executemany

    def load(self, applied: Position, at_ms: int) -> None:
        """Read where the log begins and ends. ``applied`` is the entry before an empty one."""
        self.last, self.at_ms = applied, at_ms
        row = self._run("SELECT epoch, number, at_ms FROM log ORDER BY number DESC LIMIT 1").fetchone()
        if row is not None:
            self.last, self.at_ms = Position(row[0], row[1]), row[2]
        self.first = self._run("SELECT min(number) FROM log").fetchone()[0] or self.last.number + 1

    def append(self, entries: Sequence[Entry]) -> None:
        """Append these entries, which follow the last one. An entry that is there already is left alone."""
        if entries and entries[0].number <= self.last.number:
            entries = self._without_known(entries)
        rows = []
        for entry in entries:
            if entry.number != self.last.number + 1 or entry.epoch < self.last.epoch:
                raise AssertionError(f"entry {entry.position} does not follow {self.last}")
            if entry.epoch > self.last.epoch:
                self._run("INSERT INTO epochs VALUES (?, ?)", (entry.epoch, entry.number))
            rows.append((entry.number, entry.epoch, entry.at_ms, entry.checksum, entry.commands))
            self.last, self.at_ms = entry.position, entry.at_ms
        self._run_many("INSERT INTO log VALUES (?, ?, ?, ?, ?)", rows)

    def keep_to(self, number: int, applied: Position, at_ms: int) -> None:
        """Drop the entries above this number, which were not applied."""
        assert number >= applied.number, f"entry {applied.number} is applied and cannot be dropped"
        if number < self.last.number:
            self._run("DELETE FROM log WHERE number > ?", (number,))
            self._run("DELETE FROM epochs WHERE number > ?", (number,))
            self.load(applied, at_ms)

    def read(self, begin: int, size_bytes: int) -> list[Entry]:
        """Whole entries from number ``begin``, about ``size_bytes`` of them and at least one; those before
        the first that is damaged. Empty if ``begin`` is not there.
        """
        found: list[Entry] = []
        for entry in self.entries(begin, self.last.number):
            if entry.number != begin + len(found) or not entry.is_whole:
                break
            found.append(entry)
            size_bytes -= len(entry.commands)
            if size_bytes <= 0:
                break
        return found

    def entries(self, begin: int, end: int) -> Iterator[Entry]:
        """The entries from ``begin`` to ``end`` as they are, whole or not."""
        query = f"SELECT {_COLUMNS} FROM log WHERE number BETWEEN ? AND ? ORDER BY number"  # noqa: S608
        for epoch, number, at_ms, content, checksum in self._run(query, (begin, end)):
            is_sound = isinstance(content, bytes) and all(
                type(each) is int for each in (epoch, at_ms, checksum)
            )
            yield Entry(epoch, number, at_ms, content, checksum) if is_sound else Entry(0, number, 0, b"", -1)

    def verify(self, begin: int) -> tuple[int, str]:
        """Read some entries from this number on. The number to go on with, 0 at the end; what is wrong."""
        number, size_bytes = max(begin, self.first), 0
        for entry in self.entries(number, min(self.last.number, number + _TRIM_ROWS_MAX)):
            if entry.number != number or not entry.is_whole:
                break
            number += 1
            size_bytes += len(entry.commands)
            if size_bytes > _TRIM_BYTES_MAX:
                return number, ""
        else:
            return (number if number <= self.last.number else 0), ""
        return 0, f"log entry {number} is damaged or missing"

    def whole(self, number: int) -> Entry:
        """This entry. StoreError if it is missing or damaged."""
        for entry in self.entries(number, number):
            if entry.is_whole:
                return entry
        raise StoreError(f"log entry {number} is damaged or missing, so nothing after it is applied")

    def trim(self, below: int) -> bool:
        """Drop some entries below this number, the earliest first; True if there are more."""
        size_bytes, end = 0, 0
        rows = self._run(
            "SELECT number, length(commands) FROM log WHERE number < ? ORDER BY number LIMIT ?",
            (below, _TRIM_ROWS_MAX),
        )
        for number, size in rows.fetchall():
            if size_bytes > _TRIM_BYTES_MAX:
                break
            size_bytes += size
            end = number
        if not end:
            return False
        self._run("DELETE FROM log WHERE number <= ?", (end,))
        self.first = end + 1
        return end < min(below - 1, self.last.number)

    def history_fault(self) -> str:
        """What is wrong with the history of epochs, as far as the log shows it; "" if nothing is."""
        epochs = self.epochs()
        is_ordered = all(one.number < next_one.number for one, next_one in pairwise(epochs))
        held = epochs[-1] if epochs else START
        if not is_ordered or held.epoch != self.last.epoch or held.number > self.last.number:
            return f"the history of epochs is damaged: it ends with {held}, and the log with {self.last}"
        for epoch, number in epochs:
            row = self._run("SELECT epoch FROM log WHERE number = ?", (number,)).fetchone()
            if row is not None and row[0] != epoch:
                return f"the history of epochs is damaged: entry {number} is of epoch {row[0]}, not {epoch}"
        return ""

    def epochs(self) -> list[Position]:
        """The first number of each epoch, ascending."""
        rows = self._run("SELECT epoch, number FROM epochs ORDER BY epoch")
        return [Position(epoch, number) for epoch, number in rows]

    def begin_after(self, applied: Position, at_ms: int, epochs: Iterable[Position]) -> None:
        """Begin a new log after this entry, with this history."""
        self.clear()
        self._run_many("INSERT INTO epochs VALUES (?, ?)", epochs)
        self.load(applied, at_ms)

    def clear(self) -> None:
        """Drop all entries and the history."""
        self._run("DELETE FROM log")
        self._run("DELETE FROM epochs")
        self.load(START, 0)

    def _without_known(self, entries: Sequence[Entry]) -> list[Entry]:
        new = [entry for entry in entries if entry.number > self.last.number]
        for entry in entries[: len(entries) - len(new)]:
            row = self._run("SELECT epoch FROM log WHERE number = ?", (entry.number,)).fetchone()
            assert row is None or row[0] == entry.epoch, f"another entry has the number {entry.number}"
        return new
