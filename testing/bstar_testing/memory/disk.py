"""The disk of a node in memory: the production table on SQLite's ``:memory:``, and a list for the log."""

import sqlite3
from collections.abc import Sequence
from typing import Generic, TypeVar

from bstar_broker.core.outputs import StoreInput, StoreOutput
from bstar_broker.store import sqlite_table
from bstar_broker.store.core import commands
from bstar_broker.store.core.entries import Entry, History
from bstar_broker.store.core.events import (
    Applied,
    Due,
    DueFound,
    Find,
    Found,
    LogRead,
    Mark,
    Opened,
    ReadLog,
    Search,
    Trim,
    Write,
    Written,
)
from bstar_broker.store.core.records import Table, Totals, Wanted
from bstar_broker.store.core.rules import apply
from bstar_broker.store.sqlite_table import SqliteTable

TableT = TypeVar("TableT", bound=Table)


class LogAndTable(Generic[TableT]):
    """A log in memory and the table that its entries make, of which ``applied`` are in it."""

    def __init__(self, log: list[Entry], table: TableT) -> None:
        self.log = log
        self.table = table
        self.applied = 0

    def apply_to(self, number: int) -> list[StoreInput]:
        """Apply the entries of the log up to this one."""
        answers: list[StoreInput] = []
        while self.applied < min(number, len(self.log)):
            entry = self.log[self.applied]
            self.applied += 1
            changes = apply(entry, commands.decode(entry.commands), self.table)
            answers.append(Applied(self.applied, changes, self.table.totals))
        return answers

    def look_up(self, order: StoreOutput) -> Found | DueFound:
        """What the table answers."""
        table = self.table
        match order:
            case Find():
                record = table.get(order.id)
                return Found(order.token, [] if record is None else [record])
            case Due():
                found = table.due(order.service, order.now_ms, order.limit, order.size_bytes, order.skip)
                return DueFound(order.service, *found)
            case Search():
                wanted = Wanted(order.service, order.state, order.submitted_before_ms, order.owner)
                records, has_more = table.page(order.after, wanted, order.limit, order.size_bytes)
                return Found(order.token, records, has_more)
        raise AssertionError(f"no order of a disk in memory: {order}")


class MemoryDisk(LogAndTable[SqliteTable]):
    """What one node stores over its runs. What it is ordered is done, and synced, at once."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in sqlite_table.SCHEMA:
            self._database.execute(statement)
        super().__init__([], SqliteTable(self._database, Totals()))
        self._history = History()
        self._mark: Mark | None = None
        self._apply_to = 0

    def opened(self) -> Opened:
        """What the node finds at its start."""
        at_ms = self.log[-1].at_ms if self.log else 0
        return Opened(
            self._mark, self._history.last, 1, self.applied, at_ms, list(self._history.epochs),
            self.table.totals, self.table.next_due(),
        )  # fmt: skip

    def perform(self, order: StoreOutput) -> Sequence[StoreInput]:
        """Carry the order out; its answers."""
        match order:
            case Write():
                return self._write(order)
            case ReadLog():
                return [LogRead(order.begin, self.log[order.begin - 1 :], order.token)]
            case Trim():
                return []  # the whole log stays, so no copy of the table is ever asked for
        return [self.look_up(order)]

    def _write(self, order: Write) -> list[StoreInput]:
        if order.keep_to is not None:
            del self.log[order.keep_to :]
            self._history.keep_to(order.keep_to)
        for entry in order.entries:
            self.log.append(entry)
            self._history.append(entry.position)
        self._apply_to = max(self._apply_to, order.apply_to)
        self._mark = order.mark or self._mark
        return [*self.apply_to(self._apply_to), Written(self._history.last, order.order)]

    def close(self) -> None:
        """Forget all of it."""
        self._database.close()
