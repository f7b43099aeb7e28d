"""The journals of a run: read back, copied, and copied with something false in them.

The nodes, clients and workers of a run write journals (``bstar.journal``) into one folder. ``read`` returns
them by process, ``write`` lays them down again as another pair's, so that one job of the pipeline can look at
the truth and at every lie side by side. A *plant* changes a copy so that it tells of one broken guarantee and
of nothing else, and says what an audit has to find.

A plant changes what was written, not how well it was kept: records are numbered anew after it, so nothing
seems to be missing, and times stay in order.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from bstar import records
from bstar.records import Call, Execution, Record, Request, SegmentClosed, Started, StateChanged, Stopped

R = TypeVar("R", bound=Record)

Journals = dict[str, list[Record]]
"""The records of each process, by its boot, in the order of their numbers."""

_TWO_ACTIVES_US = 40_000
_ACTIVE = "ACTIVE"
_DEADLINE_US = 1_000_000
_CALM_US = 3_000_000
# Plants are made where nothing was broken yet, and where the caller's process lives on for long enough.
_SKIPPED = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """What an audit has to say of a plant, and nothing beside it.

    A request that a node accepted and never ended also shows in that node's own counts: ``miscounted``.
    """

    rule: str
    client: str = ""
    number: int = 0
    duration_us: int = 0
    miscounted: str = ""


Plant = Callable[[Journals], Finding]


# --- files --------------------------------------------------------------------------------------------------


def read(folder: Path) -> Journals:
    """Every journal in a folder. A last line without an end is dropped; other bad lines are an error."""
    journals: Journals = {}
    for path in sorted(folder.iterdir()):
        for record in _records(path):
            journals.setdefault(record.boot, []).append(record)
    for boot, kept in journals.items():
        kept.sort(key=lambda record: record.seq)
        what = f"{kept[0].node} {boot}"
        assert [record.seq for record in kept] == list(range(1, len(kept) + 1)), (
            f"{what}: records are missing"
        )
        assert isinstance(kept[0], Started), f"{what} does not begin with its start"
    return journals


def _records(path: Path) -> Iterator[Record]:
    octets = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    whole, _, _ = octets.rpartition(b"\n")
    for line in whole.splitlines():
        yield records.decode(line)


def write(journals: Journals, folder: Path, pair: str) -> None:
    """One file for each process, as records of ``pair``, whose processes are others (a boot is unique)."""
    folder.mkdir(parents=True, exist_ok=True)
    for boot, kept in journals.items():
        own_boot = hashlib.md5(f"{pair} {boot}".encode(), usedforsecurity=False).hexdigest()
        lines: list[Record] = [record for record in kept if not isinstance(record, SegmentClosed)]
        if isinstance(kept[-1], SegmentClosed):
            lines.append(msgspec.structs.replace(kept[-1], lines=len(lines)))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(kept[0].at / 1e6))
        path = folder / f"{pair}.{kept[0].node}.{stamp}.{own_boot[:8]}.0001.ndjson"
        path.write_bytes(
            b"".join(
                records.encode(msgspec.structs.replace(record, pair=pair, boot=own_boot, seq=seq)) + b"\n"
                for seq, record in enumerate(lines, start=1)
            )
        )


# --- what is in them ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Story:
    """One request as everybody recorded it, if all went well: accepted, executed and answered once."""

    call: Call
    request: Request
    execution: Execution


def _each(journals: Journals, kind: type[R]) -> list[R]:
    return [record for kept in journals.values() for record in kept if isinstance(record, kind)]


def _plain_stories(journals: Journals) -> list[_Story]:
    """Requests that nothing happened to, in the order of their ends."""
    requests: dict[tuple[str, int], list[Request]] = defaultdict(list)
    executions: dict[tuple[str, int], list[Execution]] = defaultdict(list)
    for request in _each(journals, Request):
        requests[request.client, request.number].append(request)
    for execution in _each(journals, Execution):
        executions[execution.client, execution.number].append(execution)
    stories = []
    for call in sorted(_each(journals, Call), key=lambda call: call.mono):
        identity = call.client, call.number
        is_plain = len(requests[identity]) == len(executions[identity]) == call.attempts == 1
        if call.outcome == "answered" and is_plain:
            stories.append(_Story(call, requests[identity][0], executions[identity][0]))
    assert len(stories) > 4 * _SKIPPED, f"only {len(stories)} requests were plain"
    return stories


def _killed_at(journals: Journals) -> int:
    """When the last process that did not end in good order wrote its last record; 0 if all did."""
    return max((kept[-1].mono for kept in journals.values() if not _is_ended(kept)), default=0)


def _is_ended(kept: list[Record]) -> bool:
    return any(isinstance(record, Stopped) for record in kept)


def _change(journals: Journals, old: Record, new: Record | None) -> None:
    """Put ``new``, which may be of another time, in the place of ``old``; None removes it."""
    kept = journals[old.boot]
    kept.remove(old)
    if new is not None:
        _add(journals, new)


def _add(journals: Journals, record: Record) -> None:
    """Add a record of a process at its time."""
    kept = journals[record.boot]
    kept.append(record)
    kept.sort(key=lambda each: each.mono)


def _later(record: R, by_us: int) -> R:
    moved: R = msgspec.structs.replace(record, at=record.at + by_us, mono=record.mono + by_us)
    return moved


# --- plants -------------------------------------------------------------------------------------------------


def lost(journals: Journals) -> Finding:
    """A worker executed a request, no node answered it, and the client waited until its deadline."""
    # Long after the last node was killed: what a killed node had not written yet proves nothing.
    calm = _killed_at(journals) + _CALM_US
    call, story = next((each.call, each) for each in _plain_stories(journals) if each.call.mono > calm)
    unanswered = msgspec.structs.replace(
        _later(call, _DEADLINE_US - call.total_us),
        outcome="timeout",
        total_us=_DEADLINE_US,
        reply_crc=None,
        bytes_out=0,
    )
    _change(journals, call, unanswered)
    _change(journals, story.request, None)
    return Finding("lost", call.client, call.number, miscounted=story.request.node)


def executed_twice(journals: Journals) -> Finding:
    """A worker executed a request again and had not been told that it was a repetition."""
    story = next(each for each in _plain_stories(journals)[_SKIPPED:] if each.call.is_idempotent)
    _add(journals, _later(story.execution, 1_000))
    return Finding("executed-twice", story.call.client, story.call.number)


def executed_twice_although_bound(journals: Journals) -> Finding:
    """A worker executed a request again, marked as repeated, that was not to be executed twice."""
    story = next(each for each in _plain_stories(journals)[_SKIPPED:] if not each.call.is_idempotent)
    _add(journals, msgspec.structs.replace(_later(story.execution, 1_000), is_repeated=True))
    return Finding("executed-twice", story.call.client, story.call.number)


def crossed(journals: Journals) -> Finding:
    """A client got the reply to another request of its own."""
    stories = _plain_stories(journals)[_SKIPPED:]
    call = stories[0].call
    other = next(
        each.call
        for each in stories
        if each.call.client == call.client and each.call.reply_crc != call.reply_crc
    )
    _change(journals, call, msgspec.structs.replace(call, reply_crc=other.reply_crc))
    return Finding("crossed", call.client, call.number)


def two_actives(journals: Journals) -> Finding:
    """A node that was stopped in good order served for 40 ms beside its successor."""
    changes = _each(journals, StateChanged)
    handovers = [
        (taken.mono - left.mono, left)
        for left in changes
        if left.old == _ACTIVE and _is_ended(journals[left.boot])
        for taken in changes
        if taken.new == _ACTIVE and taken.node != left.node and taken.mono > left.mono
    ]
    gap_us, left = min(handovers, key=lambda handover: handover[0])
    # What the node did from then on, it did later.
    kept = journals[left.boot]
    at = kept.index(left)
    kept[at:] = [_later(record, gap_us + _TWO_ACTIVES_US) for record in kept[at:]]
    return Finding("both-active", duration_us=_TWO_ACTIVES_US)


PLANTS: dict[str, Plant] = {
    "lost": lost,
    "twice": executed_twice,
    "twice-bound": executed_twice_although_bound,
    "crossed": crossed,
    "two-actives": two_actives,
}
"""By the name of the pair that a copy becomes."""
