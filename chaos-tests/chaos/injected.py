"""What the fault injector did to the nodes of a run, on the timeline of the run's journals.

The harness notes when it is about to break something and when it has broken it, on CLOCK_MONOTONIC; what was
broken began in between. Journals are measured on CLOCK_BOOTTIME, which is ahead by the time that the machine
slept, and laid on the wall clock by an offset that the pipeline finds (silver.runs.offset_us).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bstar_testing.pairs import ROLES
from chaos.history import Note, read

# By what the harness did: what an operator would call it, and the note that says that it has been done.
_KINDS = {
    "kill": ("crash", "kill sent"),
    "pause": ("pause", "paused"),
    "terminate": ("stop", "terminate sent"),
    "cut": ("partition", "cut made"),
}


@dataclass(frozen=True, slots=True)
class Injected:
    """Something that was done to a node, or to the link between both (``node`` is empty then).

    It began not before ``after_us`` and not after ``before_us``, in microseconds of CLOCK_BOOTTIME.
    """

    kind: str
    node: str
    after_us: int
    before_us: int


def injected(folder: Path, ahead_us: int) -> list[Injected]:
    """What a run's harness wrote down, in order. ``ahead_us``: see ``boottime_ahead_us``."""
    notes = [line for line in read(folder / "harness.jsonl") if isinstance(line, Note)]
    found = []
    for index, note in enumerate(notes):
        if note.what not in _KINDS or note.target not in (*ROLES, ""):
            continue
        kind, done = _KINDS[note.what]
        end = next(each for each in notes[index:] if each.what == done and each.target == note.target)
        after_us, before_us = (round(each.at * 1e6) + ahead_us for each in (note, end))
        found.append(Injected(kind, note.target, after_us, before_us))
    return found


def boottime_ahead_us() -> int:
    """How far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC now: constant while the machine does not sleep."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()) // 1_000
