"""The store's table in memory: a dictionary, sorted when somebody asks.

It does what the table on the disk does, record for record; tests compare the two.
"""

from collections.abc import Callable, Container, Iterable, Sequence

from bstar.wire.durable import State
from bstar_broker.store.core.records import Record, Totals, Wanted


class MemoryTable:
    """A ``records.Table``. ``records`` is by id."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.totals = Totals()
        self.records: dict[bytes, Record] = {}
        for record in records:
            self._put(record)

    def add(self, records: Sequence[Record]) -> list[Record | None]:
        """Add pending records. For each: None if it was added, or the one that has its id."""
        found: list[Record | None] = []
        for record in records:
            known = self.records.get(record.id)
            if known is None:
                self._put(record)
            found.append(known)
        return found

    def get(self, request: bytes) -> Record | None:
        """The record of the request with this id."""
        return self.records.get(request)

    def change(self, old: Record, new: Record) -> None:
        """Replace a record by one of the same id and seq."""
        assert (old.id, old.seq) == (new.id, new.seq)
        self.drop(old)
        self._put(new)

    def drop(self, record: Record) -> None:
        """Remove a record."""
        self.totals.count(self.records.pop(record.id), -1)

    def expired(self, now_ms: int, limit: int) -> list[Record]:
        """Pending records whose ``expires_ms`` has come, the earliest first, then by seq."""
        found = self._those(lambda record: record.state == State.PENDING and 0 < record.expires_ms <= now_ms)
        return sorted(found, key=lambda record: (record.expires_ms, record.seq))[:limit]

    def ended(self, states: Sequence[int], before_ms: int, limit: int) -> list[Record]:
        """Records of these states that ended before this time, the earliest first, then by seq."""
        found = self._those(lambda record: record.state in states and record.ended_ms < before_ms)
        return sorted(found, key=lambda record: (record.ended_ms, record.seq))[:limit]

    def due(
        self, service: bytes, now_ms: int, limit: int, octets: int, skip: Container[bytes]
    ) -> tuple[list[Record], bool, int]:
        """The records, ``has_more`` and ``next_ms`` of a ``DueFound``."""
        pending = [record for record in self._firsts() if record.service == service]
        due = [record for record in pending if record.due_ms <= now_ms and record.id not in skip]
        due.sort(key=lambda record: (-record.priority, record.seq))
        next_ms = min((record.due_ms for record in pending if record.due_ms > now_ms), default=0)
        return *_first(due, limit, octets), next_ms

    def page(self, after: int, wanted: Wanted, limit: int, octets: int) -> tuple[list[Record], bool]:
        """Records with a seq above ``after`` in its order, and True if there are more."""
        found = self._those(lambda record: record.seq > after and wanted.has(record))
        return _first(sorted(found, key=lambda record: record.seq), limit, octets)

    def next_due(self) -> dict[bytes, int]:
        """The services with pending requests, and when the first of each is due."""
        due: dict[bytes, int] = {}
        for record in self._firsts():
            due[record.service] = min(record.due_ms, due.get(record.service, record.due_ms))
        return due

    def _firsts(self) -> list[Record]:
        """The pending records; of each group the first."""
        pending = self._those(lambda record: record.state == State.PENDING)
        firsts: dict[tuple[bytes, str], int] = {}
        for record in sorted(pending, key=lambda record: record.seq):
            firsts.setdefault((record.service, record.group), record.seq)
        return [each for each in pending if not each.group or firsts[each.service, each.group] == each.seq]

    def _put(self, record: Record) -> None:
        self.records[record.id] = record
        self.totals.count(record, 1)

    def _those(self, is_wanted: Callable[[Record], bool]) -> list[Record]:
        return [record for record in self.records.values() if is_wanted(record)]


def _first(records: list[Record], limit: int, octets: int) -> tuple[list[Record], bool]:
    """The first of them within both bounds, one at least; True if there are more."""
    taken: list[Record] = []
    for record in records:
        octets -= record.size_bytes
        if len(taken) == limit or (taken and octets < 0):
            return taken, True
        taken.append(record)
    return taken, False
