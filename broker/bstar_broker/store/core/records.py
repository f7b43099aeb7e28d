"""The record of a durable request, and the table that holds them on disk."""

from collections.abc import Container, Sequence
from typing import Protocol

import msgspec

from bstar.wire.declined import read_declined
from bstar.wire.durable import Cause, Repeat, Standing, State


class Record(msgspec.Struct, array_like=True, gc=False):
    """One durable request. Times are Unix milliseconds, or 0.

    ``seq`` is its place in the order of submission. ``attempts`` counts those that failed. ``cause`` and
    ``text`` say why it is dead; while it is pending, ``text`` is that of its last failure. A schedule has its
    times in ``repeat``; ``due_ms`` is the next of them, ``last_ms`` the last that made a request.
    ``headers`` are extensions of each REQUEST (BSN-G-19). Of one service and ``group`` one is executed at a
    time, in the order of ``seq``; "" is no group.

    It stands on disks and on the link as an array, so the order of the fields never changes: new ones come
    last and have a default.
    """

    seq: int
    id: bytes
    service: bytes
    owner: str
    body: list[bytes]
    submitted_ms: int
    due_ms: int
    expires_ms: int
    attempts_max: int
    backoff_ms: int
    backoff_max_ms: int
    priority: int
    state: int = State.PENDING
    attempts: int = 0
    ended_ms: int = 0
    cause: int = Cause.NONE
    text: str = ""
    answer: list[bytes] = []
    repeat: Repeat | None = None
    last_ms: int = 0
    headers: bytes = b""
    group: str = ""

    @property
    def size_bytes(self) -> int:
        """The bytes of body, headers and answer."""
        return sum(map(len, self.body)) + len(self.headers) + sum(map(len, self.answer))

    @property
    def is_declined(self) -> bool:
        """True if it is dead because its handler declined it."""
        return self.cause == Cause.FAILED and read_declined(self.text.encode()) is not None

    def standing(self) -> Standing:
        """What a client may know of it."""
        return Standing(
            self.id, self.state, self.service, self.attempts, self.submitted_ms, self.due_ms, self.ended_ms,
            self.expires_ms, self.priority, self.cause, self.text, sum(map(len, self.body)),
            sum(map(len, self.answer)), self.last_ms, None, self.group,
        )  # fmt: skip


class Totals(msgspec.Struct):
    """What the table holds. ``size_bytes`` are those of bodies, headers and answers. ``grouped`` counts the
    records of groups.
    """

    pending: int = 0
    answered: int = 0
    dead: int = 0
    cancelled: int = 0
    size_bytes: int = msgspec.field(default=0, name="octets")  # the name in the store's file
    scheduled: int = 0
    grouped: int = 0

    @property
    def count_all(self) -> int:
        """How many records there are, schedules included."""
        return self.pending + self.answered + self.dead + self.cancelled + self.scheduled

    def count(self, record: Record, times: int) -> None:
        """Add a record (``times`` 1) or take it off (-1)."""
        name = _COUNTS[record.state]
        setattr(self, name, getattr(self, name) + times)
        self.size_bytes += record.size_bytes * times
        if record.group:
            self.grouped += times


_COUNTS: dict[int, str] = {
    State.PENDING: "pending", State.ANSWERED: "answered", State.DEAD: "dead", State.CANCELLED: "cancelled",
    State.SCHEDULED: "scheduled",
}  # fmt: skip


class Wanted(msgspec.Struct, frozen=True):
    """Which records to list: b"" is each service, 0 each state and no bound of time, None each owner."""

    service: bytes = b""
    state: int = 0
    submitted_before_ms: int = 0
    owner: str | None = None

    def has(self, record: Record) -> bool:
        """True if it is one of these."""
        return (
            (not self.service or record.service == self.service)
            and (not self.state or record.state == self.state)
            and (not self.submitted_before_ms or record.submitted_ms < self.submitted_before_ms)
            and (self.owner is None or record.owner == self.owner)
        )


class Table(Protocol):
    """The records, each with an id and a seq of its own. Records are values: no code changes one in place.

    The first part is what the rules use. A change is one transaction with the log entry that causes it.
    """

    totals: Totals

    def add(self, records: Sequence[Record]) -> list[Record | None]:
        """Add pending records. For each: None if it was added, or the one that has its id, which may be one
        of the same call.
        """

    def get(self, request: bytes) -> Record | None:
        """The record of the request with this id. Raises StoreError if it is damaged."""

    def change(self, old: Record, new: Record) -> None:
        """Replace a record by one of the same id and seq."""

    def drop(self, record: Record) -> None:
        """Remove a record."""

    def expired(self, now_ms: int, limit: int) -> list[Record]:
        """Pending records whose ``expires_ms`` has come, the earliest first, then by seq."""

    def ended(self, states: Sequence[int], before_ms: int, limit: int) -> list[Record]:
        """Records of these states that ended before this time, the earliest first, then by seq."""

    # What the disk asks it for (see ``events``: Due and Search).

    def due(
        self, service: bytes, now_ms: int, limit: int, size_bytes: int, skip: Container[bytes]
    ) -> tuple[list[Record], bool, int]:
        """The records, ``has_more`` and ``next_ms`` of a ``DueFound``. Of each group only the first pending
        one counts, due or not.
        """

    def page(self, after: int, wanted: "Wanted", limit: int, size_bytes: int) -> tuple[list[Record], bool]:
        """Records with a seq above ``after`` in its order, ``limit`` of them and ``size_bytes`` in all, at
        least one; and True if there are more.
        """

    def next_due(self) -> dict[bytes, int]:
        """The services with pending requests, and when the first of each is due."""
