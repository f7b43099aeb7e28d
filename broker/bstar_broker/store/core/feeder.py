"""Sends the log to the peer, from the last common entry on; if the log begins later, the table first.

There is a bound on what is under way unacknowledged, of the log and of the table. While the peer's copy does
not count (``is_paced``), the rate of the log is bounded as well, so that the requests of others keep disk and
link. The peer's disk bounds that of the table.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from bstar_broker.core.outputs import Output
from bstar_broker.store.core.entries import START, Entry, Position
from bstar_broker.store.core.events import Export, Exported, LogRead, ReadLog, ToPeer
from bstar_broker.store.core.log import Log

# Bytes of one message, and of one question to the disk: a few milliseconds of either.
BATCH_BYTES: Final = 1 << 20
# A part that is not stored after this time was lost: the table is sent from its beginning.
PART_S_MAX: Final = 30.0
# Unacknowledged bytes: what a fast link and two syncs of a slow disk keep under way.
WINDOW_BYTES: Final = 8 << 20


class _Table:
    """An export under way: the next part's ``index``, the last seq of those sent, the entry of its state.

    The disk reads the next part while the peer stores those before it.
    """

    def __init__(self) -> None:
        self.index = 0
        self.after = 0
        self.base = START
        self.is_reading = True
        self.has_last = False
        # The sizes of the parts that the peer has not stored, and when one was sent or stored last.
        self.sent: deque[int] = deque()
        self.moved_at = 0.0

    @property
    def is_stored(self) -> bool:
        """True if the peer has each part that was sent."""
        return not self.sent

    @property
    def may_read(self) -> bool:
        """True if there is another part, and room for it on the way."""
        return not (self.is_reading or self.has_last) and sum(self.sent) < WINDOW_BYTES

    def is_stuck(self, now: float) -> bool:
        """True if a part was lost."""
        return not (self.is_reading or self.is_stored) and now > self.moved_at + PART_S_MAX


class Feeder:
    """``next``: the number of the entry to send next. ``acked``: the peer's disk has the log up to there.

    ``send_entries(prev, entries)`` and ``send_part(...)`` make the messages.
    """

    def __init__(
        self,
        log: Log,
        bytes_s: float,
        send_entries: Callable[[Position, list[Entry]], ToPeer],
        send_part: Callable[[Exported, int], ToPeer],
    ) -> None:
        self._log = log
        self._bytes_s = bytes_s
        self._send_entries = send_entries
        self._send_part = send_part
        self.is_on = False
        self.next = 1
        self.acked = 0
        self.table: _Table | None = None
        # (number, bytes) of what is under way, and its sum.
        self._sent: deque[tuple[int, int]] = deque()
        self._size_bytes = 0
        self._token = 0
        self._is_reading = False
        # Answers of the disk to exports that were given up.
        self._stale_exports = 0
        self._pace_at = 0.0

    @property
    def base(self) -> int | None:
        """The number from which an export needs the log; None without one."""
        return None if self.table is None else self.table.base.number

    def begin(self, common: int, synced: int, *, needs_table: bool) -> list[Export]:
        """The logs are the same up to ``common``, and the peer's is ``synced`` up to there or less far."""
        self.stop()
        self.is_on = True
        self.next = common + 1
        self.acked = min(common, synced)
        return self._export() if needs_table or self.next < self._log.first else []

    def stop(self) -> None:
        """Send nothing any more."""
        self.is_on = self._is_reading = False
        self.acked = 0
        self._token += 1
        self._sent.clear()
        self._size_bytes = 0
        if self.table is not None and self.table.is_reading:
            self._stale_exports += 1
        self.table = None

    def _export(self) -> list[Export]:
        self._sent.clear()
        self._size_bytes = 0
        self.acked = 0
        self.table = _Table()
        return [Export(0, BATCH_BYTES)]

    # --- the log --------------------------------------------------------------------------------------------

    def pump(self, now: float, *, is_paced: bool) -> list[Output]:
        """Send what may be sent now."""
        table = self.table
        if table is not None and table.is_stuck(now):
            return list(self._export())
        if table is not None and table.may_read:
            table.is_reading = True
            return [Export(table.after, BATCH_BYTES)]
        outputs: list[Output] = []
        while self._may_send(now, is_paced=is_paced):
            if self.next < self._log.first:
                outputs += self._export()
                break
            entries = self._log.read(self.next, BATCH_BYTES)
            if not entries:
                self._is_reading = True
                outputs.append(ReadLog(self.next, BATCH_BYTES, self._token))
                break
            outputs.append(self._send(entries, now))
        return outputs

    def _may_send(self, now: float, *, is_paced: bool) -> bool:
        return self._has_room and not (is_paced and now < self._pace_at)

    @property
    def _has_room(self) -> bool:
        """True if there is an entry to send, and room for it on the way."""
        is_free = self.is_on and self.table is None and not self._is_reading
        return is_free and self.next <= self._log.last.number and self._size_bytes < WINDOW_BYTES

    def _send(self, entries: list[Entry], now: float) -> ToPeer:
        message = self._send_entries(self.prev, entries)
        size = sum(len(entry.commands) for entry in entries)
        self.next = entries[-1].number + 1
        self._sent.append((self.next - 1, size))
        self._size_bytes += size
        self._note_pace(size, now)
        return message

    def _note_pace(self, size_bytes: int, now: float) -> None:
        self._pace_at = max(self._pace_at, now) + size_bytes / self._bytes_s

    @property
    def prev(self) -> Position:
        """The entry before the next one."""
        number = self.next - 1
        return Position(self._log.history.epoch_at(number), number) if number else START

    def log_read(self, given: LogRead, now: float) -> list[Output]:
        """Entries that are not in memory. Not there any more, or damaged: the table has what they did."""
        if given.token != self._token or not self._is_reading:
            return []
        self._is_reading = False
        entries = given.entries
        if not entries or entries[0].number != self.next or not self._log.history.has(entries[-1].position):
            return list(self._export())
        return [self._send(entries, now)]

    def acknowledge(self, number: int) -> None:
        """The peer's disk has the log up to here."""
        self.acked = max(self.acked, min(number, self.next - 1))
        while self._sent and self._sent[0][0] <= number:
            self._size_bytes -= self._sent.popleft()[1]

    def deadline(self) -> float | None:
        """When the pace lets it go on."""
        return self._pace_at if self._has_room else None

    # --- the table ------------------------------------------------------------------------------------------

    def exported(self, given: Exported, now: float) -> list[Output]:
        """A part of the table: on to the peer."""
        if self._stale_exports:
            self._stale_exports -= 1
            return []
        table = self.table
        if table is None or not table.is_reading:
            return []
        if table.index and given.applied != table.base:
            # The disk had to begin a new export.
            return list(self._export())
        size_bytes = sum(map(len, given.records))
        table.is_reading = False
        table.moved_at = now
        table.sent.append(size_bytes)
        table.base = given.applied
        table.after = given.after
        table.has_last = given.is_last
        message = self._send_part(given, table.index)
        table.index += 1
        return [message]

    def stored(self, parts: int, number: int, now: float) -> None:
        """The peer has so many parts on its disk, and the log up to ``number``.

        The count may be that of an export before, so the number alone says that the whole table is there.
        """
        table = self.table
        if table is None:
            return
        while len(table.sent) > max(0, table.index - parts):
            table.sent.popleft()
            table.moved_at = now
        if table.has_last and table.is_stored and number >= table.base.number:
            self.next = table.base.number + 1
            self.acked = table.base.number
            self.table = None
