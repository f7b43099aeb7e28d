"""Plants broken promises in journals: each is an edit of the records of one request, answered in calm."""

from __future__ import annotations

import gzip
import random
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bstar import records

RULES = {
    "lost-reply": "lost",
    "lost-work": "lost",
    "lost-call": "lost",
    "executed-though-refused": "lost",
    "executed-twice": "executed-twice",
    "executed-twice-plain": "executed-twice",
    "executed-twice-unseen": "executed-twice",
    "answered-twice": "answered-twice",
    "crossed": "crossed",
}
"""What can be planted, and the audit's rule that it breaks.

``lost-reply``: a node answered, and the client waited in vain until its deadline. ``lost-work``: a worker
executed it, and no node recorded its end. ``lost-call``: a node answered, and the client recorded no outcome.
``executed-though-refused``: a refusal told the client that it was certainly not executed.
``executed-twice``: a second execution that was not marked as a repetition; ``…-plain``: marked, but the call
was not idempotent; ``…-unseen``: the same, and the first worker recorded nothing. ``answered-twice``: two
nodes answered, and neither recorded a repetition. ``crossed``: the client got a reply that no worker gave.
"""

_TIMEOUT_US = 5_000_000
Request = tuple[str, int]


class Planted(NamedTuple):
    """``kind`` and ``rule`` as above."""

    kind: str
    rule: str
    client: str
    number: int


class _Run(NamedTuple):
    """All that one run of a process wrote: its files, the records of each, and what a kill left of a line."""

    files: list[Path]
    kept: list[list[records.Record]]
    torn: list[bytes]


def break_promises(folder: Path, calm: Collection[range], *, seed: int = 1) -> list[Planted]:
    """Break each promise once, in journals of nodes, clients and workers. ``seed`` chooses the requests among
    those whose calls ended (``at``) in one of the times ``calm``.
    """
    runs = _read(folder)
    of_request: dict[Request, list[records.Record]] = defaultdict(list)
    for run in runs.values():
        for kept in run.kept:
            for record in kept:
                if isinstance(record, records.Request | records.Call | records.Execution):
                    of_request[record.client, record.number].append(record)
    ordinary = sorted(request for request, found in of_request.items() if _is_ordinary(found, calm))
    chosen = random.Random(seed).sample(ordinary, len(RULES))
    planted = []
    for (kind, rule), request in zip(RULES.items(), chosen, strict=True):
        found = {type(record): record for record in of_request[request]}
        _break(kind, runs, found[records.Request], found[records.Call], found[records.Execution])
        planted.append(Planted(kind, rule, *request))
    for run in runs.values():
        _write(run)
    return planted


def _is_ordinary(found: list[records.Record], calm: Collection[range]) -> bool:
    """One call that may be repeated, one execution, one answer, and each was the first."""
    kinds = {type(record): record for record in found}
    call, request = kinds.get(records.Call), kinds.get(records.Request)
    if len(found) != 3 or len(kinds) != 3 or not isinstance(call, records.Call):
        return False
    assert isinstance(request, records.Request)
    is_first = call.attempts == 1 and request.deliveries == 1
    is_answered = call.outcome == request.outcome == "answered"
    return is_first and is_answered and call.is_idempotent and any(call.at in time for time in calm)


def _break(kind: str, runs: dict[str, _Run], request: Any, call: Any, execution: Any) -> None:
    if kind in ("lost-reply", "lost-work"):
        _replace(
            runs, call, _TIMEOUT_US, outcome="timeout", total_us=_TIMEOUT_US, bytes_out=0, reply_crc=None
        )
    if kind in ("lost-work", "lost-call"):
        _remove(runs, request if kind == "lost-work" else call)
    if kind == "executed-though-refused":
        _replace(runs, call, outcome="rejected", bytes_out=0, reply_crc=None)
    if kind in ("executed-twice", "executed-twice-unseen"):
        _replace(runs, request, deliveries=2)
    if kind in ("executed-twice", "executed-twice-plain"):
        _insert(runs, execution, 1_500, is_repeated=kind == "executed-twice-plain")
    if kind in ("executed-twice-plain", "executed-twice-unseen"):
        _replace(runs, call, is_idempotent=False)
    if kind == "answered-twice":
        (other,) = [
            run.kept[0][0]
            for run in runs.values()
            if (first := run.kept[0][0]).node != request.node
            and isinstance(first, records.Started)
            and first.source == "broker"
            and first.at < request.at < run.kept[-1][-1].at
        ]
        ahead = (other.at - other.mono) - (request.at - request.mono)
        _insert(runs, request, 50_000, node=other.node, boot=other.boot, mono=request.mono + 50_000 - ahead)
    if kind == "crossed":
        _replace(runs, call, reply_crc=call.reply_crc ^ 1)


def _replace(runs: dict[str, _Run], record: Any, later_us: int = 0, **changes: Any) -> None:
    _remove(runs, record)
    _insert(runs, record, later_us, **changes)


def _remove(runs: dict[str, _Run], record: records.Record) -> None:
    for kept in runs[record.boot].kept:
        kept[:] = [each for each in kept if each is not record]


def _insert(runs: dict[str, _Run], record: Any, later_us: int, **changes: Any) -> None:
    times = {"at": record.at + later_us, "mono": record.mono + later_us}
    added = msgspec.structs.replace(record, **{**times, **changes})
    kept = next(kept for kept in runs[added.boot].kept if kept[-1].mono >= added.mono)
    place = next(place for place, each in enumerate(kept) if each.mono > added.mono)
    kept.insert(place, added)


def _read(folder: Path) -> dict[str, _Run]:
    runs: dict[str, _Run] = {}
    for path in sorted(folder.iterdir()):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        *lines, torn = content.split(b"\n")
        kept = [records.decode(line) for line in lines]
        run = runs.setdefault(kept[0].boot, _Run([], [], []))
        run.files.append(path)
        run.kept.append(kept)
        run.torn.append(torn)
    return runs


def _write(run: _Run) -> None:
    """Number the records anew. A file's last record counts those before it."""
    seq = 0
    for path, kept, torn in zip(run.files, run.kept, run.torn, strict=True):
        lines = []
        for place, record in enumerate(kept):
            seq += 1
            changes: dict[str, Any] = {"seq": seq}
            if isinstance(record, records.SegmentClosed):
                changes["lines"] = place
            lines.append(records.encode(msgspec.structs.replace(record, **changes)))
        content = b"\n".join([*lines, torn])
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
