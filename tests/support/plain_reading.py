"""What the journals in a folder say of outages, losses, repetitions and objectives, read by plain Python.

It shares nothing with the pipeline but the format of a line, so that one can be checked by the other. All
processes of a pair are on one machine here, so their monotonic clocks are one.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTAGE_MIN_US = 100_000
_ANSWERS = ("answered", "declined", "failed")
_NOT_ANSWERED = ("timeout", "unknown", "interrupted", "no-active", "busy")


@dataclass
class Reading:
    """Of one pair. ``outages``: (began, length) in microseconds, the first by the monotonic clock."""

    outages: list[tuple[int, int]] = field(default_factory=list)
    lost: set[tuple[str, int]] = field(default_factory=set)
    executed_twice: set[tuple[str, int]] = field(default_factory=set)
    answered_twice: set[tuple[str, int]] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    not_answered: Counter[str] = field(default_factory=Counter)


def read(folder: Path) -> dict[str, Reading]:
    """Each pair's reading."""
    of_pair: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.rglob("*.ndjson*")):
        for record in _records(path):
            of_pair[record["pair"]].append(record)
    return {pair: _reading(records) for pair, records in of_pair.items()}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    yield from map(json.loads, content.splitlines())


def _reading(records: list[dict[str, Any]]) -> Reading:
    found = Reading()
    by_request: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    keepers, whole = set(), {record["boot"] for record in records if record["kind"] == "stopped"}
    for record in records:
        if record["kind"] in ("request", "call", "execution"):
            by_request[record["client"], record["number"]].append(record)
        if record["kind"] == "call":
            keepers.add((record["client"], record["boot"]))
            found.calls[record["service"]] += 1
            found.not_answered[record["service"]] += record["outcome"] in _NOT_ANSWERED
    whole_clients = {client for client, boot in keepers if boot in whole}
    waits = []
    for request, parts in by_request.items():
        kinds = Counter(part["kind"] for part in parts)
        runs = [part for part in parts if part["kind"] == "execution"]
        answers = [part for part in parts if part["kind"] == "request" and part["outcome"] in _ANSWERS]
        if request[0] in whole_clients and not kinds["call"]:
            found.lost.add(request)
        if sum(not run.get("is_repeated", False) for run in runs) > 1:
            found.executed_twice.add(request)
        if kinds["call"] > 1 or (len(answers) > 1 and not any(part.get("is_repeated") for part in parts)):
            found.answered_twice.add(request)
        waits.append(_wait(parts))
    if not any(part.get("weight", 1) > 1 for parts in by_request.values() for part in parts):
        found.outages = list(_outages(waits))
    return found


def _wait(parts: list[dict[str, Any]]) -> tuple[int, int, int, bool]:
    """Since when a request waited, when work on its answer began, its end, and whether it was answered."""
    calls = [part for part in parts if part["kind"] == "call"]
    nodes = [part for part in parts if part["kind"] == "request"]
    told = calls or nodes or parts
    ended = max(part["mono"] for part in told)
    asked = min(part["mono"] - part.get("total_us", part.get("busy_us", 0)) for part in told)
    is_answered = any(part["outcome"] in _ANSWERS for part in told)
    busy = max((part.get("busy_us", 0) for part in nodes if part["outcome"] in _ANSWERS), default=0)
    return asked, ended - busy if is_answered else ended, ended, is_answered


def _outages(waits: list[tuple[int, int, int, bool]]) -> Iterator[tuple[int, int]]:
    """Times between two answers in which two requests or more waited for long and none was at work."""
    answers = sorted(ended for _, _, ended, is_answered in waits if is_answered)
    for before, after in pairwise(answers):
        waiting = [wait for wait in waits if wait[2] > before and wait[0] < after]
        if not waiting:
            continue
        began = max(before, min(asked for asked, *_ in waiting))
        worked = min(
            after, *(work for _, work, ended, is_answered in waits if is_answered and ended > before)
        )
        long = [wait for wait in waiting if min(wait[1], after) - max(wait[0], began) >= OUTAGE_MIN_US]
        if len(long) > 1 and worked - began >= OUTAGE_MIN_US:
            yield began, after - began
