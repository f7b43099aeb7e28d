"""The disk of the durable store: one thread that carries out the orders of ``core.events`` in sequence.

    disk = Disk(directory, wake=…)      opens the store; the first answer is Opened
    disk.put([Write(…), Due(…)])        from one thread
    disk.take()                         the answers so far; ``wake`` was called, in the disk's thread

Whatever waits when a turn begins is one transaction (group commit, ``writer``). Jobs that may be long get a
slice between two transactions (``disk_jobs``), and the WAL is copied into the database while nothing waits,
or when it is large. After an error the orders stay and are tried again with the next one, and every second.
A disk that hangs is one that fails: ``watch`` reports it, and the end of the turn takes that back.
"""

import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from bstar.base.closing import Closing
from bstar.errors import ClosedError, ConfigurationError, StoreError
from bstar.settings.store import MEMORY
from bstar_broker.store.core.events import (
    DiskInput,
    DiskOutput,
    Due,
    DueFound,
    Find,
    Found,
    Import,
    Opened,
    Rebuild,
    Write,
)
from bstar_broker.store.disk_jobs import Jobs, Scrub
from bstar_broker.store.faults import is_damage
from bstar_broker.store.memory_file import MemoryFile
from bstar_broker.store.sqlite_file import StoreFile
from bstar_broker.store.writer import Figures, SyncTimes, Writer

_log = logging.getLogger("bstar.store")

# One transaction appends so much at most: the next waits for its sync.
_TURN_BYTES_MAX: Final = 8 << 20

# Records that were read for a caller wait for the loop up to so many bytes; then no more are read.
_FOUND_BYTES_MAX: Final = 8 << 20

_RETRY_S: Final = 1.0

# How often it looks for the request that has waited longest, and whether its files are still there.
_LOOK_INTERVAL_S: Final = 5.0

# The WAL is copied when it has so much: at rest, and under load, where a commit waits for that. The disk is
# at rest when nothing has come for a moment: a client that submits one request after the other leaves gaps.
_REST_S: Final = 0.2
_WAL_IDLE_BYTES: Final = 1 << 20
_WAL_BYTES_MAX: Final = 8 << 20

# A turn that takes longer counts as an error: no acknowledgement may wait for this disk for ever. Slow disks,
# and a process that gets little CPU, sync in less.
_HANGS_AFTER_S: Final = 5.0

# How long ``close`` waits for a disk that does not answer.
_CLOSE_S_MAX: Final = 10.0


class _Orders:
    """Orders on their way from the loop to the thread."""

    def __init__(self) -> None:
        self.is_closed = False
        self._is_stirred = False
        self._changed = threading.Condition()
        self._orders: deque[DiskOutput] = deque()

    def __len__(self) -> int:
        return len(self._orders)

    def put(self, orders: Sequence[DiskOutput]) -> None:
        """Add them. ClosedError after ``close``."""
        with self._changed:
            if self.is_closed:
                raise ClosedError("the store's disk is closed")
            self._orders.extend(orders)
            self._changed.notify()

    def take(self, wait_s: float) -> list[DiskOutput]:
        """Those for one turn; wait for the first one so long at most."""
        taken: list[DiskOutput] = []
        size_bytes = 0
        with self._changed:
            if not (self._orders or self.is_closed or self._is_stirred):
                self._changed.wait(wait_s)
            self._is_stirred = False
            while self._orders and size_bytes < _TURN_BYTES_MAX:
                taken.append(self._orders.popleft())
                size_bytes += _size_of(taken[-1])
        return taken

    def stir(self) -> None:
        """End the wait for an order."""
        with self._changed:
            self._is_stirred = True
            self._changed.notify()

    def close(self) -> None:
        """Take no more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify()


class _Answers:
    """Answers on their way from the thread to the loop, which ``wake`` wakes for a heap of them."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._answers: list[DiskInput] = []
        self._is_woken = False
        # Of the records that were found.
        self._size_bytes = 0

    def put(self, answer: DiskInput, *, is_awaited: bool = True) -> None:
        """Add one. One that is not awaited is taken with the next that is."""
        size_bytes = 0
        if isinstance(answer, Found | DueFound):
            size_bytes = sum([record.size_bytes for record in answer.records])
        with self._lock:
            self._size_bytes += size_bytes
            self._answers.append(answer)
            wakes = is_awaited and not self._is_woken
            self._is_woken = self._is_woken or is_awaited
        if wakes:
            self._wake()

    @property
    def is_full(self) -> bool:
        """True if nothing more is to be read for anybody."""
        return self._size_bytes >= _FOUND_BYTES_MAX

    def take(self) -> list[DiskInput]:
        """All that wait."""
        with self._lock:
            taken, self._answers = self._answers, []
            self._is_woken = False
            self._size_bytes = 0
        return taken


class Disk(Closing):
    """The store of this ``pair`` in ``directory``, which is made if it is missing, or in ``MEMORY``.

    ConfigurationError if the directory cannot be used or is another pair's, StoreError if the store in it is
    damaged or not whole.
    """

    def __init__(self, directory: str | os.PathLike[str], *, pair: str, wake: Callable[[], object]) -> None:
        self._orders = _Orders()
        self._answers = _Answers(wake)
        # They count on through a rebuild, which makes another writer.
        self._figures = Figures()
        self.is_in_memory = directory == MEMORY
        self._file = MemoryFile() if self.is_in_memory else StoreFile(directory)
        try:
            opened = self._begin()
        except (sqlite3.Error, StoreError, OSError) as error:
            self._file.close()
            raise StoreError(self._file.explain(error)) from error
        if opened.mark is not None and opened.mark.pair != pair:
            self._file.close()
            raise ConfigurationError(
                f"store.directory: the store in {directory} is that of pair {opened.mark.pair!r}, and this "
                f"node belongs to {pair!r}: name the right directory"
            )
        totals = opened.totals
        _log.info(
            "the store %s is open: its log ends at entry %d, %d applied; %d pending, %d answered, %d dead",
            directory, opened.last.number, opened.applied,
            totals.pending, totals.answered, totals.dead,
        )  # fmt: skip
        # Since when the pending request is due that has waited longest, Unix milliseconds; 0: none is due.
        self.oldest_due_ms = 0
        self._look_at = 0.0
        # True if something was written since the disk was at rest.
        self._is_unrested = False
        self._busy_at = 0.0
        # Taken and not done.
        self._waiting: deque[DiskOutput] = deque()
        # Turns that have begun, whether one is under way, and what ``watch`` knows of it.
        self._turns = self._watched = 0
        self._is_at_work = False
        self._watched_s = 0.0
        self._hangs = ""
        self._hang_lock = threading.Lock()
        self._answers.put(opened)
        self._thread = threading.Thread(target=self._run, name="bstar-store-disk", daemon=True)
        self._thread.start()

    def _begin(self) -> Opened:
        """Read what the open file holds. If that cannot be done it is set aside."""
        try:
            self._writer = Writer(self._file, self._answers.put, self._figures)
            opened = self._writer.opened()
        except (sqlite3.Error, StoreError) as error:
            if not is_damage(error):
                raise
            self._file.set_aside(self._file.explain(error))
            self._writer = Writer(self._file, self._answers.put, self._figures)
            opened = self._writer.opened()
        self._jobs = Jobs(self._writer, self._answers.put)
        self._scrub = Scrub(self._writer)
        return opened

    # --- for the loop -------------------------------------------------------------------------------------

    def put(self, orders: Sequence[DiskOutput]) -> None:
        """Carry out these orders, after those before. ClosedError after ``close``."""
        self._orders.put(orders)

    def take(self) -> list[DiskInput]:
        """The answers since the last call, in order."""
        was_full = self._answers.is_full
        taken = self._answers.take()
        if was_full:
            self._orders.stir()
        return taken

    @property
    def has_ended(self) -> bool:
        """True if its thread has ended, for whatever reason, although it was not closed."""
        return not (self._thread.is_alive() or self._orders.is_closed)

    @property
    def orders_waiting(self) -> int:
        """How many orders wait."""
        return len(self._orders) + len(self._waiting)

    @property
    def syncs(self) -> SyncTimes:
        """How long the commits with a sync took."""
        return self._figures.syncs

    @property
    def commits(self) -> int:
        """How many transactions were carried out, each with one sync at most."""
        return self._figures.commits

    @property
    def errors(self) -> int:
        """How many transactions have failed."""
        return self._figures.errors

    @property
    def error(self) -> str:
        """Why nothing can be written now, and what to do; "" if it can."""
        return self._hangs or self._figures.error

    @property
    def damaged(self) -> int:
        """How many damaged records were met; one at least while the copy is damaged in another way."""
        return max(len(self._writer.table.damaged), int(self._file.damage != ""))

    @property
    def damage(self) -> str:
        """Why this copy is to be replaced by the peer's; "" if it is whole as far as it was read."""
        return self._file.damage

    @property
    def repairs(self) -> int:
        """How often the peer's copy took the place of a damaged one."""
        return self._file.repairs

    @property
    def repaired(self) -> str:
        """What was wrong with the copy that was replaced last."""
        return self._file.repaired

    def free_bytes(self) -> int:
        """How much room there is. OSError if the system does not tell."""
        return self._file.free_bytes()

    def file_bytes(self) -> int:
        """The bytes that it takes. OSError if the system does not tell."""
        return self._file.size_bytes()

    def watch(self, waited_s: float) -> None:
        """Report a turn that takes too long. The loop calls it every ``waited_s``: time in which the loop did
        not run does not count, because then the whole process or machine stood still.
        """
        is_same = self._is_at_work and self._turns == self._watched
        self._watched, self._watched_s = self._turns, self._watched_s + waited_s if is_same else 0.0
        if self._watched_s < _HANGS_AFTER_S or self._hangs or self.is_in_memory:
            return
        with self._hang_lock:
            if self._is_at_work and self._turns == self._watched:
                self._hangs = self._writer.hangs(_HANGS_AFTER_S)

    def close(self) -> None:
        """Carry out what waits, and end. Idempotent; ten seconds at most, if the disk hangs."""
        self._orders.close()
        self._thread.join(_CLOSE_S_MAX)
        if self._thread.is_alive():
            _log.error("the store's disk does not answer; what it has synced is safe")

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._orders.is_closed or len(self._orders):
                orders = self._orders.take(self._patience_s())
                if orders:
                    self._busy_at = time.monotonic()
                self._waiting.extend(orders)
                self._turns += 1
                self._is_at_work = True
                self._turn()
                self._end_turn()
            self._jobs.forget_copy(is_idle_only=False)
            self._file.close()
        except Exception as error:  # noqa: BLE001  # the node must hear of whatever it is: it waits
            text = f"the store's disk has ended by a fault of this program: {error!r}; restart the node"
            self._answers.put(self._writer.fault(text))
            _log.exception("the store's disk has ended by a fault of this program")
            self._file.close()

    def _end_turn(self) -> None:
        with self._hang_lock:
            self._is_at_work = False
            if self._hangs:
                self._hangs = ""
                self._writer.answers_again()

    def _patience_s(self) -> float:
        """How long to wait for the next order."""
        if self._figures.error:
            return _RETRY_S
        if self._jobs or self._writer.has_to_apply:
            return 0.0
        if self._waiting:
            # Reads that are left: for the next turn, or until the loop has taken those before them.
            return _RETRY_S if self._answers.is_full else 0.0
        is_unrested = self._writer.wal_bytes > _WAL_IDLE_BYTES or self._is_unrested
        return min(_REST_S if is_unrested else _LOOK_INTERVAL_S, self._scrub.patience_s())

    def _turn(self) -> None:
        orders, self._waiting = self._waiting, deque()
        while any(isinstance(order, Rebuild) for order in orders):
            # What was ordered before it was for the copy that is set aside.
            order = orders.popleft()
            if isinstance(order, Rebuild) and not self._rebuild(order):
                self._waiting.extend((order, *orders))
                return
        is_well = True
        for is_import, group in groupby(orders, lambda order: isinstance(order, Import)):
            if not is_well:
                self._waiting.extend(group)
            elif is_import:
                parts = list(group)
                is_well = self._writer.take_in(parts)  # type: ignore[arg-type]
                self._waiting.extend(() if is_well else parts)
            else:
                is_well = self._write(list(group))
        if not orders and (self._writer.has_to_apply or self._writer.is_behind):
            is_well = self._writer.write((), deque())
        if is_well:
            self._rest(is_idle=not orders and time.monotonic() >= self._busy_at + _REST_S)
        else:
            # It would keep the WAL from being emptied, which a failed sync needs.
            self._jobs.forget_copy(is_idle_only=False)

    def _write(self, orders: list[DiskOutput]) -> bool:
        writes = [order for order in orders if isinstance(order, Write)]
        reads = deque(order for order in orders if isinstance(order, Find | Due))
        for order in orders:
            if not isinstance(order, Write | Find | Due | Import | Rebuild):
                self._jobs.add(order)
        left: deque[Find | Due] = deque()
        if self._answers.is_full:
            left, reads = reads, left
        if not writes and not reads:
            self._waiting.extend(left)
            return True
        is_well = self._writer.write(writes, reads)
        if not is_well:
            self._waiting.extend(writes)
        self._waiting.extend(reads or left)
        return is_well

    def _rebuild(self, order: Rebuild) -> bool:
        """False if the disk fails: the next turn begins again."""
        self._jobs.forget_copy(is_idle_only=False)
        try:
            self._file.set_aside(self._file.damage, order.mark)
            self._answers.put(self._begin())
        except (sqlite3.Error, MemoryError, StoreError, OSError) as error:
            self._writer.report(self._file.explain(error))
            return False
        return True

    def _rest(self, *, is_idle: bool) -> None:
        """Do a slice of the jobs, and copy the WAL if it is time."""
        try:
            if self._jobs:
                self._jobs.turn()
            self._scrub.turn()
            self._jobs.forget_copy()
            self._look()
            self._is_unrested = not is_idle
            is_idle = is_idle and not self._orders and not self._jobs
            if is_idle:
                self._file.rest()
            if self._writer.wal_bytes > (_WAL_IDLE_BYTES if is_idle else _WAL_BYTES_MAX):
                self._checkpoint()
        except (sqlite3.Error, MemoryError, StoreError, OSError) as error:
            self._writer.fail(error)

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_INTERVAL_S
            if lost := self._file.lost():
                self._writer.damaged(lost)
            self.oldest_due_ms = self._writer.table.oldest_due_ms(time.time_ns() // 1_000_000)

    def _checkpoint(self) -> None:
        began_at = time.monotonic()
        left = self._file.checkpoint()
        self._writer.wal_bytes = 0
        _log.debug("the WAL was copied in %.3f s; %d frames are left", time.monotonic() - began_at, left)


def _size_of(order: DiskOutput) -> int:
    if isinstance(order, Write):
        return sum([len(entry.commands) for entry in order.entries])
    if isinstance(order, Import):
        return sum([record.size_bytes for record in order.records])
    return 0
