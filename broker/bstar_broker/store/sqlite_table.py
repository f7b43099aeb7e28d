"""The table of durable requests in SQLite.

A record is one row: its bytes (``content``) with their CRC-32, and beside them only what an index needs.
``place`` says which index has the row: of those that are due (READY), of those that wait for their time
(WAITING), or of those that ended (their state). ``due`` moves a row from the second to the first when its
time has come, so it reads those that are due in their order, however many others wait. ``place`` is of this
disk alone: two equal tables may differ in it.

A pending record of a group has a row in ``serial`` as well; the least seq is the first of the group. The
others are HELD, which means in no index of ``due``, until their turn comes.

A record whose checksum is wrong is never served: ``get`` raises, the others leave it out; ``damaged`` names
it. Totals are kept beside; whoever owns the transaction stores them with it.
"""

import logging
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import StoreError
from bstar.wire.durable import State
from bstar_broker.store.core.records import Record, Totals, Wanted

_log = logging.getLogger("bstar.store")

HELD: Final = -1
READY: Final = 0
WAITING: Final = 1


def _schema(table: str, suffix: str) -> tuple[str, ...]:
    return (
        f"""CREATE TABLE {table} (
        seq INTEGER PRIMARY KEY, id BLOB NOT NULL, service BLOB NOT NULL, owner TEXT NOT NULL,
        priority INTEGER NOT NULL, place INTEGER NOT NULL, time_ms INTEGER NOT NULL, expires_ms INTEGER,
        checksum INTEGER NOT NULL, content BLOB NOT NULL)""",
        # Ids made later are greater, so both trees grow at their end.
        f"CREATE UNIQUE INDEX by_id{suffix} ON {table} (id)",
        f"CREATE INDEX ready{suffix} ON {table} (service, priority DESC) WHERE place = 0",
        f"CREATE INDEX waiting{suffix} ON {table} (service, time_ms) WHERE place = 1",
        f"CREATE INDEX ended{suffix} ON {table} (place, time_ms) WHERE place > 1",
        f"CREATE INDEX expiring{suffix} ON {table} (expires_ms) WHERE expires_ms IS NOT NULL",
    )


def _serial(table: str) -> str:
    return f"""CREATE TABLE IF NOT EXISTS {table} (
        name BLOB NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (name, seq)) WITHOUT ROWID"""


# A store that a release without groups made lacks it.
SERIAL: Final = _serial("serial")
SCHEMA: Final = (*_schema("records", ""), SERIAL)
# Another node's table while it comes. A table keeps the names of its indices when it takes another's place.
_SUFFIXES: Final = ("", "_2")

# So many rows become READY in one call at most: 50 ms. The earliest go first.
_PROMOTED_MAX: Final = 10_000

# Of ``wire.durable.Submit``.
_PRIORITY_MAX: Final = 9

# Damage is listed up to here; beyond, the disk is lost anyway.
_DAMAGED_MAX: Final = 1_000

_INSERT = "INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE = "UPDATE records SET place = ?, time_ms = ?, expires_ms = ?, checksum = ?, content = ? WHERE seq = ?"
_NEXT = "SELECT min(time_ms) FROM records WHERE place = 1 AND service = ? AND time_ms > ?"
_SERVICES = "SELECT min(service) FROM records WHERE place = {:d} AND service > ?"
_PROMOTE = """UPDATE records SET place = 0 WHERE seq IN (
    SELECT seq FROM records WHERE place = 1 AND service = ? AND time_ms <= ? ORDER BY time_ms, seq LIMIT ?)"""

_BY_ID = "SELECT seq, checksum, content FROM records WHERE id = ?"
_BY_SEQ = "SELECT seq, checksum, content FROM records WHERE seq = ?"
_EXPIRED = """SELECT seq, checksum, content FROM records
    WHERE expires_ms <= ? ORDER BY expires_ms, seq LIMIT ?"""
_ENDED = """SELECT seq, checksum, content FROM records
    WHERE place = ? AND place > 1 AND time_ms < ? ORDER BY time_ms, seq LIMIT ?"""
_FIRST = """SELECT time_ms, priority FROM records
    WHERE place = 0 AND service = ? AND priority < ? ORDER BY priority DESC, seq LIMIT 1"""
_READY = "SELECT seq, id FROM records WHERE place = 0 AND service = ? ORDER BY priority DESC, seq"

_FIRST_OF_GROUP = "SELECT min(seq) FROM serial WHERE name = ?"
_RELEASE = f"UPDATE records SET place = 1 WHERE seq = ({_FIRST_OF_GROUP}) AND place = -1"  # noqa: S608

_INDICES = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'records'"
VERIFIED_COLUMNS: Final = "seq, checksum, content, id, service, owner, priority, place, time_ms, expires_ms"
_VERIFIED = f"SELECT {VERIFIED_COLUMNS} FROM records WHERE seq > ? ORDER BY seq"  # noqa: S608
# What one slice of a check reads at most: some milliseconds.
_VERIFIED_ROWS: Final = 200
_VERIFIED_BYTES: Final = 2 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode

_WRONG_SUM: Final = "its checksum is wrong"

# Seq, checksum, content.
_Row = tuple[int, int, bytes]


class SqliteTable:
    """A ``records.Table`` in this database, whose owner begins and ends the transactions."""

    def __init__(
        self,
        database: sqlite3.Connection,
        totals: Totals,
        on_damage: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.totals = totals
        self._on_damage = on_damage
        # Those of the staged table.
        self.staged = Totals()
        # By seq: what is wrong.
        self.damaged: dict[int, str] = {}
        self._run = database.execute
        self._run_many = database.executemany

    # --- what the rules use -------------------------------------------------------------------------------

    def add(self, records: Sequence[Record]) -> list[Record | None]:
        """Add pending records. For each: None if it was added, or the one that has its id."""
        rows = [_row_of(record) for record in records]
        if self._run_many(_INSERT, rows).rowcount == len(rows):
            for record in records:
                self.totals.count(record, 1)
                if record.group:
                    self._enter(record)
            return [None] * len(rows)
        found: list[Record | None] = []
        for record in records:
            known = self.get(record.id)
            if known is not None and known.seq == record.seq:
                self.totals.count(record, 1)
                if record.group:
                    self._enter(record)
                known = None
            found.append(known)
        return found

    def get(self, request: bytes) -> Record | None:
        """The record of the request with this id. Raises StoreError if it is damaged."""
        row = self._run(_BY_ID, (request,)).fetchone()
        if row is None:
            return None
        record = self._read(row)
        if record is None or record.id != request:
            raise StoreError(self.damaged.get(row[0]) or self._note(row[0], f"it is not {request.hex()}"))
        return record

    def change(self, old: Record, new: Record) -> None:
        """Replace a record by one of the same id and seq."""
        seq, _, _, _, _, place, time_ms, expires_ms, checksum, content = _row_of(new)
        self._run(_UPDATE, (place, time_ms, expires_ms, checksum, content, seq))
        if new.group:
            self._leave(old)
            self._enter(new)
        self.totals.count(old, -1)
        self.totals.count(new, 1)

    def drop(self, record: Record) -> None:
        """Remove a record."""
        self._run("DELETE FROM records WHERE seq = ?", (record.seq,))
        if record.group:
            self._leave(record)
        self.totals.count(record, -1)

    def expired(self, now_ms: int, limit: int) -> list[Record]:
        """Pending records whose ``expires_ms`` has come, the earliest first, then by seq."""
        return self._all(_EXPIRED, (now_ms, limit))

    def ended(self, states: Sequence[int], before_ms: int, limit: int) -> list[Record]:
        """Records of these states that ended before this time, the earliest first, then by seq."""
        found = [record for state in states for record in self._all(_ENDED, (int(state), before_ms, limit))]
        return sorted(found, key=lambda record: (record.ended_ms, record.seq))[:limit]

    def _enter(self, record: Record, table: str = "records", serial: str = "serial") -> None:
        """A record of a group may be pending now: of two, the later one is HELD."""
        if record.state != State.PENDING:
            return
        name = _group_name(record)
        (first,) = self._run(f"SELECT min(seq) FROM {serial} WHERE name = ?", (name,)).fetchone()  # noqa: S608
        self._run(f"INSERT INTO {serial} VALUES (?, ?)", (name, record.seq))  # noqa: S608
        if first is not None:
            held = max(first, record.seq)
            self._run(f"UPDATE {table} SET place = -1 WHERE seq = ?", (held,))  # noqa: S608

    def _leave(self, record: Record) -> None:
        """A record of a group was pending: the next one is the first."""
        if record.state == State.PENDING:
            name = _group_name(record)
            self._run("DELETE FROM serial WHERE name = ? AND seq = ?", (name, record.seq))
            self._run(_RELEASE, (name,))

    # --- what the disk asks for ---------------------------------------------------------------------------

    def due(
        self, service: bytes, now_ms: int, limit: int, size_bytes: int, skip: Container[bytes]
    ) -> tuple[list[Record], bool, int]:
        """The records, ``has_more`` and ``next_ms`` of a ``DueFound``. It may write: see ``place``."""
        next_ms = self._next_ms(service, -1)
        has_more = False
        if 0 < next_ms <= now_ms:
            has_more = self._run(_PROMOTE, (service, now_ms, _PROMOTED_MAX)).rowcount == _PROMOTED_MAX
            next_ms = self._next_ms(service, now_ms)
        found: list[Record] = []
        for seq, request in self._run(_READY, (service,)):
            if request in skip:
                continue
            if len(found) == limit:
                return found, True, next_ms
            record = self._at(seq)
            if record is None:
                continue
            size_bytes -= record.size_bytes
            if found and size_bytes < 0:
                return found, True, next_ms
            found.append(record)
        return found, has_more, next_ms

    def page(self, after: int, wanted: Wanted, limit: int, size_bytes: int) -> tuple[list[Record], bool]:
        """Records with a seq above ``after`` in its order, and True if there are more."""
        found: list[Record] = []
        for record in self.those(after, None, wanted):
            size_bytes -= record.size_bytes
            if len(found) == limit or (found and size_bytes < 0):
                return found, True
            found.append(record)
        return found, False

    def export(self, after: int, size_bytes: int) -> tuple[list[msgspec.Raw], int, bool]:
        """Records with a seq above ``after`` in its order, encoded as they are; the seq of the last; and True
        if there are more.
        """
        found: list[msgspec.Raw] = []
        query = "SELECT seq, checksum, content FROM records WHERE seq > ? ORDER BY seq"
        for seq, checksum, content in self._run(query, (after,)):
            size_bytes -= len(content) if isinstance(content, bytes) else 0
            if found and size_bytes < 0:
                return found, after, True
            after = seq
            if isinstance(content, bytes) and crc32(content) == checksum:
                found.append(msgspec.Raw(content))
            else:
                self._note(seq, _WRONG_SUM)
        return found, after, False

    def those(self, after: int, end: int | None, wanted: Wanted) -> Iterator[Record]:
        """The records with a seq above ``after`` and not above ``end``, in its order."""
        where, values = ["seq > ?"], [after]
        given: tuple[tuple[str, object], ...] = (
            ("seq <= ?", end),
            ("service = ?", wanted.service or None),
            ("owner = ?", wanted.owner),
            # In reach of the rows' own columns: no record is decoded that is not wanted.
            ("place = ?" if wanted.state != State.PENDING else "place < ?", _place_bound(wanted.state)),
        )
        for condition, value in given:
            if value is not None:
                where.append(condition)
                values.append(value)  # type: ignore[arg-type]
        query = f"SELECT seq, checksum, content FROM records WHERE {' AND '.join(where)} ORDER BY seq"  # noqa: S608
        for row in self._run(query, values):
            record = self._read(row)
            if record is None:
                continue
            if wanted.submitted_before_ms and record.submitted_ms >= wanted.submitted_before_ms:
                return
            yield record

    def end_of(self, after: int, rows: int) -> int | None:
        """The seq of the last of the ``rows`` rows after seq ``after``, or None."""
        query = "SELECT max(seq) FROM (SELECT seq FROM records WHERE seq > ? ORDER BY seq LIMIT ?)"
        end: int | None = self._run(query, (after, rows)).fetchone()[0]
        return end

    def next_due(self) -> dict[bytes, int]:
        """The services with pending requests, and when the first of each is due; 0: one was due at once."""
        due = {service: self._next_ms(service, -1) for service in self._services(WAITING)}
        due.update(dict.fromkeys(self._services(READY), 0))
        return due

    def oldest_due_ms(self, now_ms: int) -> int:
        """Since when the request that has waited longest is due; 0 if none is.

        Of one service and priority the first in the order counts, so it is a few looks at indices, however
        many wait. A request that became due later than others behind it may hide one of those.
        """
        found = [self._next_ms(service, -1) for service in self._services(WAITING)]
        for service in self._services(READY):
            priority = _PRIORITY_MAX + 1
            while (row := self._run(_FIRST, (service, priority)).fetchone()) is not None:
                time_ms, priority = row
                found.append(time_ms)
        return min((time_ms for time_ms in found if 0 < time_ms <= now_ms), default=0)

    # --- looking for damage -------------------------------------------------------------------------------

    def count_fault(self) -> str:
        """What is wrong with the number of records; "" if nothing is."""
        totals = self.totals
        known = totals.pending + totals.answered + totals.dead + totals.cancelled + totals.scheduled
        (count,) = self._run("SELECT count(*) FROM records").fetchone()
        return f"the table has {count} records, and must have {known}" if count != known else ""

    def verify(self, after: int) -> int | None:
        """Read some rows above seq ``after``, and look each of them up by its indices. What is damaged is in
        ``damaged``. The seq of the last; None if there are no more.
        """
        names = {name.removesuffix("_2"): name for (name,) in self._run(_INDICES)}
        size_bytes = 0
        for rows, row in enumerate(self._run(_VERIFIED, (after,))):
            if rows == _VERIFIED_ROWS or size_bytes > _VERIFIED_BYTES:
                return after
            after = row[0]
            size_bytes += len(row[2]) if isinstance(row[2], bytes) else 0
            if why := fault_of(row) or self._unindexed(row, names):
                self._note(after, why)
        return None

    def verify_index(self, after: bytes) -> bytes | None:
        """See that some entries of the index of ids above ``after`` have their rows. The id of the last; None
        if there are no more.
        """
        found = self._run("SELECT id, seq FROM records WHERE id > ? ORDER BY id", (after,))
        for rows, (request, seq) in enumerate(found):
            if rows == _VERIFIED_ROWS or not isinstance(request, bytes):
                return after if isinstance(request, bytes) else None
            after = request
            if self._run("SELECT 1 FROM records WHERE seq = ?", (seq,)).fetchone() is None:
                self._note(seq, f"the index of ids has {request.hex()}, and there is no such record")
        return None

    def _unindexed(self, row: tuple[object, ...], names: dict[str, str]) -> str:
        """Which index lacks this row, which is whole; "" if none does."""
        seq, _, _, request, service, _, priority, place, time_ms, expires_ms = row
        looks: list[tuple[str, str, tuple[object, ...]]] = [("by_id", "id = ?", (request,))]
        if place == READY:
            looks.append(("ready", "place = 0 AND service = ? AND priority = ?", (service, priority)))
        elif place == WAITING:
            looks.append(("waiting", "place = 1 AND service = ? AND time_ms = ?", (service, time_ms)))
        elif place != HELD:
            looks.append(("ended", "place > 1 AND place = ? AND time_ms = ?", (place, time_ms)))
        if expires_ms is not None:
            looks.append(("expiring", "expires_ms IS NOT NULL AND expires_ms = ?", (expires_ms,)))
        for index, where, values in looks:
            query = f"SELECT seq FROM records INDEXED BY {names.get(index, index)} WHERE {where} AND seq = ?"  # noqa: S608
            if self._run(query, (*values, seq)).fetchone() is None:
                return f"the index {index} lacks it"
        if self.totals.grouped and place in (HELD, READY, WAITING):
            record = record_of((seq, row[1], row[2]))  # type: ignore[arg-type]  # it is whole
            values = (_group_name(record), seq)
            if record.group and not self._run(f"{_FIRST_OF_GROUP} AND seq = ?", values).fetchone()[0]:
                return "its group lacks it"
        return ""

    # --- for copies of a table ----------------------------------------------------------------------------

    def stage(self) -> None:
        """Begin another table beside this one, empty."""
        self.unstage()
        used = {name for (name,) in self._run("SELECT name FROM sqlite_master WHERE type = 'index'")}
        suffix = next(each for each in _SUFFIXES if f"by_id{each}" not in used)
        for statement in (*_schema("staged", suffix), _serial("staged_serial")):
            self._run(statement)

    def put(self, records: Iterable[Record]) -> None:
        """Add records of any state to the staged table."""
        rows, grouped = [], []
        for record in records:
            rows.append(_row_of(record))
            self.staged.count(record, 1)
            if record.group:
                grouped.append(record)
        self._run_many("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        for record in grouped:
            self._enter(record, "staged", "staged_serial")

    def swap(self) -> None:
        """The staged table takes this one's place."""
        for table, staged in (("records", "staged"), ("serial", "staged_serial")):
            self._run(f"DROP TABLE {table}")
            self._run(f"ALTER TABLE {staged} RENAME TO {table}")
        self.totals, self.staged = self.staged, Totals()
        self.damaged.clear()

    def unstage(self) -> None:
        """Drop the staged table, if there is one."""
        self._run("DROP TABLE IF EXISTS staged")
        self._run("DROP TABLE IF EXISTS staged_serial")
        self.staged = Totals()

    # --- rows ---------------------------------------------------------------------------------------------

    def _next_ms(self, service: bytes, after_ms: int) -> int:
        return self._run(_NEXT, (service, after_ms)).fetchone()[0] or 0

    def _services(self, place: int) -> Iterator[bytes]:
        """The services with rows in this place, from one to the next by the index."""
        query = _SERVICES.format(place)
        service = b""
        while (service := self._run(query, (service,)).fetchone()[0]) is not None:
            yield service

    def _at(self, seq: int) -> Record | None:
        return self._read(self._run(_BY_SEQ, (seq,)).fetchone())

    def _all(self, query: str, values: tuple[int, ...]) -> list[Record]:
        return [record for row in self._run(query, values) if (record := self._read(row)) is not None]

    def _read(self, row: _Row) -> Record | None:
        """The record of this row; None if it is damaged."""
        try:
            return record_of(row)
        except StoreError as error:
            self._note(row[0], str(error))
        return None

    def _note(self, seq: int, why: str) -> str:
        if seq not in self.damaged and len(self.damaged) < _DAMAGED_MAX:
            self.damaged[seq] = f"record {seq} is damaged: {why}"
            _log.error("%s", self.damaged[seq])
            self._on_damage(self.damaged[seq])
        return self.damaged.get(seq, why)


def fault_of(row: tuple[int, int, bytes, object, object, object, object, object, object, object]) -> str:
    """What is wrong with a row of seq, checksum, content, id, service, owner, priority, place, time_ms and
    expires_ms; "" if nothing is.
    """
    seq, checksum, content, *columns = row
    try:
        record = record_of((seq, checksum, content))
    except StoreError as error:
        return str(error)
    place = columns.pop(4)
    is_placed = place == record.state
    if record.state == State.PENDING:
        is_placed = place in (READY, WAITING) or (place == HELD and record.group != "")
    made = _row_of(record)
    if tuple(columns) != (*made[1:5], *made[6:8]) or not is_placed:
        return "it is not what its index says"
    return ""


def record_of(row: _Row) -> Record:
    """The record of a row of seq, checksum and content. StoreError if it is damaged."""
    seq, checksum, content = row
    # Any: a damaged row may hold a value of any type.
    data: Any = content
    if not isinstance(data, bytes) or crc32(content) != checksum:
        raise StoreError(_WRONG_SUM)
    try:
        record = _decode(content)
    except UNDECODABLE as error:
        raise StoreError(f"it cannot be read: {error}") from error
    if record.seq != seq:
        raise StoreError(f"its bytes are those of record {record.seq}")
    return record


def _row_of(record: Record) -> tuple[int, bytes, bytes, str, int, int, int, int | None, int, bytes]:
    content = _encode(record)
    if record.state == State.PENDING:
        place = READY if record.due_ms == record.submitted_ms else WAITING
        time_ms, expires_ms = record.due_ms, record.expires_ms or None
    else:
        place, time_ms, expires_ms = int(record.state), record.ended_ms, None
    return (
        record.seq, record.id, record.service, record.owner, record.priority, place, time_ms, expires_ms,
        crc32(content), content,
    )  # fmt: skip


def _group_name(record: Record) -> bytes:
    """The name of its group: groups are those of a service."""
    return len(record.service).to_bytes(1, "big") + record.service + record.group.encode()


def _place_bound(state: int) -> int | None:
    if not state:
        return None
    return WAITING + 1 if state == State.PENDING else int(state)
