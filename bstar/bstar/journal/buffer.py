"""The bounded buffer of a journal: any thread appends to it, and the journal's thread empties it.

Records are of two classes. Records of single requests (``offer``) may be many. They may fill three quarters
of the buffer; others are dropped and counted. All other records (``write``) have the last quarter and wake
the thread. It gives them to the operating system at once, so they survive the process.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from bstar.records import Base

Make = Callable[..., Base | bytes | tuple[bytes, int] | None]
"""Makes a record of what ``Journal.offer`` was given: ``make(stamp, *args)`` returns
``Kind(**stamp, field=…)``, or None for nothing. It runs in the journal's thread. Where each microsecond
counts it may return the record's line instead, without the newline; a test compares the two."""

# Any: fields of all kinds of records.
_Entry = tuple[float, Callable[..., Any], Mapping[str, Any] | tuple[Any, ...]]


class JournalCounters(msgspec.Struct):
    """Since the journal was opened. ``dropped`` includes ``dropped_requests``."""

    records: int = 0
    size_bytes: int = 0
    segments: int = 0
    dropped: int = 0
    dropped_requests: int = 0
    errors: int = 0


class Buffer:
    """Entries for ``records_max`` records. What does not fit is counted until ``take_drops``."""

    def __init__(self, records_max: int, counters: JournalCounters) -> None:
        self.entries: deque[_Entry] = deque()
        self.counters = counters
        self.is_woken = False
        self._room = records_max * 3 // 4
        self._room_kept = records_max
        self._drop_lock = threading.Lock()
        self._dropped = [0, 0]
        self._dropped_since = 0.0
        self._wake: SimpleQueue[None] = SimpleQueue()

    def write(self, kind: type[Base], now: float, /, **fields: Any) -> None:  # Any: see Base
        """Keep an important record, such as a change of state. ``fields`` are those of ``kind`` itself."""
        if len(self.entries) < self._room_kept:
            self.entries.append((now, kind, fields))
            if not self.is_woken:
                self.is_woken = True
                self._wake.put(None)
        else:
            self.drop(now, 1, 0)

    def offer(self, now: float, make: Make, /, *args: Any) -> None:  # Any: whatever make wants
        """Keep a record about a request, an execution or a call, if there is room.

        Another thread calls ``make`` later, so ``args`` must not change.
        """
        if len(self.entries) < self._room:
            self.entries.append((now, make, args))
        else:
            self.drop(now, 1, 1)

    def offer_all(self, count: int, now: float, make: Make, /, *args: Any) -> None:  # Any: as in offer
        """As ``offer``, for ``count`` records of one moment. ``make`` returns their joined lines and their
        number; their sequence numbers go up from that of the stamp.
        """
        if len(self.entries) < self._room:
            self.entries.append((now, make, args))
        else:
            self.drop(now, count, count)

    def close(self) -> None:
        """Take no more records; later ones are only counted. Wakes the thread."""
        self._room = self._room_kept = 0
        self._wake.put(None)

    def wait(self, timeout_s: float) -> None:
        """Return when a record wakes the thread, or after ``timeout_s``."""
        with suppress(Empty):
            self._wake.get(timeout=timeout_s)
        self.is_woken = False

    def take_drops(self) -> tuple[int, int, float]:
        """How many records were dropped since the last call, how many about requests, and since when."""
        with self._drop_lock:
            (count, requests), self._dropped = self._dropped, [0, 0]
            return count, requests, self._dropped_since

    def drop(self, now: float, count: int, requests: int) -> None:
        """Count records that are lost, ``requests`` of them about requests."""
        with self._drop_lock:
            if not self._dropped[0]:
                self._dropped_since = now
            self._dropped[0] += count
            self._dropped[1] += requests
            self.counters.dropped += count
            self.counters.dropped_requests += requests
