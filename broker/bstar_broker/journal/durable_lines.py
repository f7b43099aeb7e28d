"""The journal's records of durable requests, made as lines of JSON at once.

An entry of the store's log is one call for all its changes; the journal's thread makes the lines.
"""

from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import msgspec

from bstar.journal import Journal
from bstar.wire.durable import Cause, State
from bstar_broker.store.core.commands import Swept
from bstar_broker.store.core.events import Applied, Change
from bstar_broker.store.core.records import Record
from bstar_broker.store.core.runner import identity_of

_STEPS = {State.ANSWERED: "answered", State.DEAD: "dead", State.CANCELLED: "cancelled"}
_ENDS = frozenset(_STEPS.values())
_CAUSES = {int(cause): cause.name.lower().encode() for cause in Cause}
# A step, the request that it is about, and the bytes of an answer with their checksum, if it is about one.
_Step = tuple[str, Record, int, int | None]


# Names of services that are kept as JSON.
_NAMES_MAX = 10_000


class DurableLines:
    """A ``StoreObserver``. Offers a line for each step of each request that the sample has.

    ``clock`` is the reactor's.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._clock = clock
        self._is_everything = journal.options.sample == 1
        self._who = msgspec.json.encode(journal.who)[1:-1]
        self._weight = b"" if journal.weight == 1 else b',"weight":%r' % journal.weight
        self._quoted: dict[bytes, bytes] = {}

    def applied(self, applied: Applied, epoch: int, now: float) -> None:
        """Record what an entry did."""
        steps: list[_Step] = []
        for change in applied.changes:
            step = _step_of(change)
            if step is None or not self._is_kept(change.id):
                continue
            about = change.new or change.old
            assert about is not None
            steps.append(_with_answer(step, about) if step == "answered" else (step, about, 0, None))
        if steps:
            self._journal.offer_all(len(steps), now, self._lines, steps, applied.number, epoch)

    def fetched(self, record: Record, epoch: int) -> None:
        """Record that a client gets an answer."""
        if self._is_kept(record.id):
            steps = [_with_answer("fetched", record)]
            self._journal.offer_all(1, self._clock(), self._lines, steps, 0, epoch)

    def _is_kept(self, request: bytes) -> bool:
        return self._is_everything or self._journal.is_sampled(identity_of(request))

    def _lines(
        self, stamp: dict[str, Any], steps: Sequence[_Step], entry: int, epoch: int
    ) -> tuple[bytes, int]:
        """The lines of the steps of one entry, joined; the first half of each is the same."""
        begin = b'{"kind":"durable",%b,"at":%d,"mono":%d,"entry":%d,"epoch":%d' % (
            self._who, stamp["at"], stamp["mono"], entry, epoch,
        )  # fmt: skip
        seq = stamp["seq"]
        lines = [begin + self._rest(seq + place, step) for place, step in enumerate(steps)]
        return b"\n".join(lines), len(lines)

    def _rest(self, seq: int, noted: _Step) -> bytes:
        """What follows in the line of a step; fields with their defaults are left out."""
        step, record, bytes_out, crc = noted
        more = self._weight
        if record.attempts:
            more += b',"attempts":%d' % record.attempts
        if step == "submitted":
            more += b',"bytes_in":%d' % sum(map(len, record.body))
        elif step in _ENDS:
            more += b',"total_us":%d' % ((record.ended_ms - record.submitted_ms) * 1000)
            if step == "dead":
                more += b',"cause":"%b"' % _cause_of(record)
        if crc is not None:
            more += b',"bytes_out":%d,"reply_crc":%d' % (bytes_out, crc)
        service = self._quoted.get(record.service) or self._quote(record.service)
        return b',"seq":%d,"client":"%b","submission":%d,"service":%b,"step":"%b"%b}' % (
            seq, hexlify(record.id), record.seq, service, step.encode(), more,
        )  # fmt: skip

    def _quote(self, service: bytes) -> bytes:
        if len(self._quoted) >= _NAMES_MAX:
            self._quoted.clear()
        quoted = msgspec.json.encode(service.decode("utf-8", "backslashreplace"))
        self._quoted[service] = quoted
        return quoted


def _cause_of(record: Record) -> bytes:
    return b"declined" if record.is_declined else _CAUSES[record.cause]


def _step_of(change: Change) -> str | None:
    """The step that a change is; None if nothing has changed, or of a schedule, which is no request."""
    old, new = change.old, change.new
    about = new or old
    if new is old or about is None or about.repeat is not None:
        return None
    if old is None:
        return "submitted"
    if new is None:
        return "forgotten" if isinstance(change.command, Swept) else "closed"
    if new.state == State.PENDING:
        return "attempt" if old.state == State.PENDING else "retried"
    return _STEPS[State(new.state)]


def _with_answer(step: str, record: Record) -> _Step:
    size_bytes, crc = 0, 0
    for frame in record.answer:
        size_bytes += len(frame)
        crc = crc32(frame, crc)
    return step, record, size_bytes, crc
