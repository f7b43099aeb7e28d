"""The rules of durable requests: what each command does to the table.

``apply`` carries out the commands of one entry. All it depends on stands in the entry and in the table, so
the same entries make the same table on both nodes: times are the entry's, defaults the command's, and it
knows no clock, no settings and no randomness.

    command     PENDING             ANSWERED, DEAD, CANCELLED      not there
    Submitted   unchanged           unchanged                      PENDING
    Answered    ANSWERED            unchanged                      nothing
    Failed      PENDING or DEAD     unchanged                      nothing
    Cancelled   CANCELLED           unchanged                      nothing
    Retried     unchanged           PENDING (ANSWERED: unchanged)  nothing
    Closed      dropped             dropped                        nothing
    Scheduled   unchanged           unchanged                      SCHEDULED
    Swept       DEAD if expired     dropped if old enough          nothing

A schedule (SCHEDULED) is cancelled and closed like a pending request. Fired makes a pending request of it
for each of its times that have come, and sets its next time; after the last one it is CANCELLED.

An end is final for everything but Retried and Closed: an answer that comes after a cancel, or after the
expiry, changes nothing, so what a client read about the end stays true.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from bstar.wire.durable import ENDLESS, FOREVER_MS, Cause, Schedule, Serial, State, Submit, decode, run_id
from bstar_broker.store.core.commands import (
    Answered,
    Began,
    Cancelled,
    Closed,
    Command,
    Defaults,
    Failed,
    Fired,
    Retried,
    Scheduled,
    Submitted,
    Swept,
)
from bstar_broker.store.core.entries import Entry
from bstar_broker.store.core.events import Change
from bstar_broker.store.core.records import Record, Table

# An entry has fewer rows, so number and row of the entry make a seq: 2^43 entries fit in SQLite's 63 bits.
ROWS_MAX: Final = 1 << 20

# Text of a failure, UTF-8. A handler's traceback must not fill the table.
TEXT_BYTES_MAX: Final = 4096

# A hundred years: no time of a record is later than this after its entry.
SPAN_MS_MAX: Final = 1 << 42


def apply(entry: Entry, commands: Sequence[Command], table: Table) -> list[Change]:
    """Carry out the ``commands`` of ``entry``; what each has done, in their order.

    A Submitted has a change for each row, a Closed for each id, a Fired one for the schedule and one for each
    time, a Swept those that it did, Began none, any other command one. Raises StoreError if a record is
    damaged, and RemoteProtocolError if a row is no Submit or Schedule: the node that leads lets neither such
    a row nor more than ROWS_MAX of them into an entry.
    """
    row = 0
    changes: list[Change] = []
    for command in commands:
        if isinstance(command, Submitted):
            changes += _submit(entry, row, command, table)
            row += len(command.rows)
        elif isinstance(command, Swept):
            changes += _sweep(entry.at_ms, command, table)
        elif isinstance(command, Scheduled):
            changes.append(_schedule(entry, row, command, table))
            row += 1
        elif isinstance(command, Fired):
            changes += _fire(entry, row, command, table)
            row += len(command.runs_ms)
        elif isinstance(command, Closed):
            changes += [_close(command, request, table) for request in command.ids]
        elif not isinstance(command, Began):
            changes.append(_change(entry.at_ms, command, table))
    return changes


def _submit(entry: Entry, row: int, command: Submitted, table: Table) -> Iterator[Change]:
    assert row + len(command.rows) <= ROWS_MAX, f"entry {entry.number} has too many rows"
    defaults, owner, at_ms = command.defaults, command.owner, entry.at_ms
    first = entry.number * ROWS_MAX + row
    records = [
        _new(first + place, decode(frame, Submit), owner, at_ms, defaults)
        for place, frame in enumerate(command.rows)
    ]
    for record, known in zip(records, table.add(records), strict=True):
        if known is None:
            yield Change(command, record.id, None, record)
        else:
            is_other = (known.owner, known.service, known.body) != (owner, record.service, record.body)
            # A schedule is no request, so it must not stand for one with its key.
            yield Change(command, record.id, known, known, is_other or known.repeat is not None)


def _schedule(entry: Entry, row: int, command: Scheduled, table: Table) -> Change:
    asked = decode(command.row, Schedule)
    seq = entry.number * ROWS_MAX + row
    record = _new(seq, asked.submit, command.owner, entry.at_ms, command.defaults)
    record = replace(record, state=State.SCHEDULED, due_ms=command.next_ms, expires_ms=0, repeat=asked.repeat)
    [known] = table.add([record])
    if known is None:
        return Change(command, record.id, None, record)
    is_other = (known.owner, known.service, known.body, known.repeat) != (
        record.owner,
        record.service,
        record.body,
        record.repeat,
    )
    return Change(command, record.id, known, known, is_other)


def _fire(entry: Entry, row: int, command: Fired, table: Table) -> Iterator[Change]:
    old = table.get(command.id)
    if old is None or old.repeat is None or old.state != State.SCHEDULED or old.due_ms != command.due_ms:
        yield Change(command, command.id, old, old)
        for run_ms in command.runs_ms:
            yield Change(command, run_id(command.id, run_ms), None, None)
        return
    new = replace(old, last_ms=command.runs_ms[-1] if command.runs_ms else old.last_ms)
    if command.next_ms:
        left = old.repeat.runs and old.repeat.runs - len(command.runs_ms)
        new = replace(new, due_ms=command.next_ms, repeat=replace(old.repeat, runs=left))
    else:
        new = replace(new, state=State.CANCELLED, ended_ms=entry.at_ms, text="its times are over")
    table.change(old, new)
    yield Change(command, command.id, old, new)
    expires_ms, first = old.repeat.expires_ms, entry.number * ROWS_MAX + row
    runs = [
        replace(
            old,
            seq=first + place,
            id=run_id(old.id, run_ms),
            submitted_ms=entry.at_ms,
            due_ms=entry.at_ms,
            expires_ms=run_ms + expires_ms if expires_ms else 0,
            state=State.PENDING,
            repeat=None,
            last_ms=0,
        )
        for place, run_ms in enumerate(command.runs_ms)
    ]
    for record, known in zip(runs, table.add(runs), strict=True):
        yield Change(command, record.id, known, record if known is None else known)


def _new(seq: int, row: Submit, owner: str, at_ms: int, defaults: Defaults) -> Record:
    expires_ms = row.expires_ms or defaults.expires_ms
    expires_ms = 0 if expires_ms == FOREVER_MS else expires_ms
    backoff_ms = row.backoff_ms or defaults.backoff_ms
    return Record(
        seq,
        row.id,
        row.service,
        owner,
        row.body,
        at_ms,
        # A time in the past is now.
        max(row.at_ms, at_ms + row.delay_ms),
        at_ms + expires_ms if expires_ms else 0,
        row.attempts_max or defaults.attempts_max,
        backoff_ms,
        # Who asks for a long backoff only does not want the default's shorter bound.
        row.backoff_max_ms or max(defaults.backoff_max_ms, backoff_ms),
        row.priority.priority if isinstance(row.priority, Serial) else row.priority,
        headers=row.headers,
        group=row.group,
    )


def _change(at_ms: int, command: Answered | Failed | Cancelled | Retried, table: Table) -> Change:
    old = _find(command, command.id, table)
    if old is None:
        return Change(command, command.id, None, None)
    new = _RULES[type(command)](at_ms, command, old)
    if new is not old:
        table.change(old, new)
    return Change(command, command.id, old, new)


def _answer(at_ms: int, command: Answered, old: Record) -> Record:
    if old.state != State.PENDING:
        return old
    return replace(
        old, state=State.ANSWERED, answer=command.frames, ended_ms=at_ms, cause=Cause.NONE, text=""
    )


def _fail(at_ms: int, command: Failed, old: Record) -> Record:
    if old.state != State.PENDING:
        return old
    attempts, text = old.attempts + 1, _cut(command.text)
    if command.is_final or attempts >= old.attempts_max != ENDLESS:
        return replace(
            old, state=State.DEAD, attempts=attempts, ended_ms=at_ms, cause=command.cause, text=text
        )
    wait_ms = _backoff_ms(old, attempts) if command.retry_ms < 0 else min(command.retry_ms, SPAN_MS_MAX)
    return replace(old, attempts=attempts, due_ms=at_ms + wait_ms, text=text)


def _backoff_ms(record: Record, attempts: int) -> int:
    """How long the next attempt waits after this number of failed ones: it doubles up to its bound."""
    # More doublings than this are beyond every bound, and a number of a million bits is no number to make.
    doublings = min(attempts - 1, SPAN_MS_MAX.bit_length())
    return min(record.backoff_ms << doublings, record.backoff_max_ms)


def _cancel(at_ms: int, command: Cancelled, old: Record) -> Record:
    if old.state not in (State.PENDING, State.SCHEDULED):
        return old
    return replace(old, state=State.CANCELLED, ended_ms=at_ms)


def _retry(at_ms: int, command: Retried, old: Record) -> Record:
    if old.state not in (State.DEAD, State.CANCELLED) or old.repeat is not None:
        return old
    return replace(
        old,
        state=State.PENDING,
        due_ms=at_ms,
        expires_ms=0,
        attempts=0,
        ended_ms=0,
        cause=Cause.NONE,
        text="",
    )


# Any: each rule has the type of its command.
_RULES: dict[type, Callable[[int, Any, Record], Record]] = {
    Answered: _answer,
    Failed: _fail,
    Cancelled: _cancel,
    Retried: _retry,
}


def _close(command: Closed, request: bytes, table: Table) -> Change:
    old = _find(command, request, table)
    if old is not None:
        table.drop(old)
    return Change(command, request, old, None)


def _sweep(at_ms: int, command: Swept, table: Table) -> Iterator[Change]:
    for old in table.expired(at_ms, command.limit):
        text = f"no attempt succeeded within {old.expires_ms - old.submitted_ms} ms"
        if old.text:
            text = _cut(f"{text}; the last failure: {old.text}")
        new = replace(old, state=State.DEAD, ended_ms=at_ms, cause=Cause.EXPIRED, text=text)
        table.change(old, new)
        yield Change(command, old.id, old, new)
    ended = (
        ((State.ANSWERED, State.CANCELLED), command.ended_before_ms),
        ((State.DEAD,), command.died_before_ms),
    )
    for states, before_ms in ended:
        for old in table.ended(states, before_ms, command.limit):
            table.drop(old)
            yield Change(command, old.id, old, None)


def _find(command: Command, request: bytes, table: Table) -> Record | None:
    """The record, None if it is not there or another owner's."""
    record = table.get(request)
    owner = getattr(command, "owner", None)
    return record if record is None or owner is None or record.owner == owner else None


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")
