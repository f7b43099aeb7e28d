"""What is kept of a run, and what is said of one that went wrong.

A run has a folder under ``.cache/chaos/runs`` with everything: configurations, logs, histories, ``run.json``.
It is removed when all rules held; otherwise it stays, and the failure names it, the violations, the plan, and
the commands that repeat the run and that judge the same histories again.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from pathlib import Path

from bstar_testing.rules import Violation
from chaos.history import Note, read
from chaos.model import Run

RUNS = Path(__file__).resolve().parent.parent.parent / ".cache" / "chaos" / "runs"
_SHOWN_MAX = 8
_numbers = itertools.count(1)


class RunFailedError(AssertionError):
    """Rules were broken. The text is the report."""

    def __init__(self, text: str, violations: list[Violation]) -> None:
        super().__init__(text)
        self.violations = violations


def new_folder(name: str) -> Path:
    """A folder for one run."""
    stamp = time.strftime("%H%M%S", time.gmtime())
    folder = RUNS / f"{name}-{stamp}-{os.getpid()}-{next(_numbers)}"
    folder.mkdir(parents=True)
    return folder


def remove(folder: Path) -> None:
    """Everything held: nothing to keep, unless CHAOS_KEEP is set."""
    if not os.environ.get("CHAOS_KEEP"):
        shutil.rmtree(folder)


def summary(run: Run) -> str:
    """One line about what happened."""
    outcomes = Counter(type(call.ends[0]).__name__ if call.ends else "open" for call in run.calls)
    return (
        f"{len(run.calls)} calls ({outcomes['Ok']} answered, {outcomes['Failed']} failed), "
        f"{len(run.executions)} executions, {len(run.faults)} faults, {len(run.terms)} activations"
    )


def describe(folder: Path, run: Run, violations: list[Violation]) -> str:
    """The report of a run in which rules were broken."""
    manifest = run.manifest
    title = f"{manifest.name} with keys" if manifest.has_keys else manifest.name
    shown = [f"  {violation}" for violation in violations[:_SHOWN_MAX]]
    if len(violations) > _SHOWN_MAX:
        shown.append(f"  … and {len(violations) - _SHOWN_MAX} more")
    faults = [
        f"  {each.begin - run.ended_at:+8.3f} to {each.end - run.ended_at:+8.3f}  {each.kind} {each.target}"
        for each in run.faults
    ]
    return "\n".join(
        [
            f"{title}: {len(violations)} violations; {summary(run)}",
            *shown,
            "faults, in seconds before the end of the run:",
            *faults,
            *([f"plan: {manifest.plan}"] if manifest.plan else []),
            f"everything is kept in {folder}",
            f"repeat the run:    {manifest.repeat}",
            f"judge it again:    PYTHONPATH=chaos-tests .venv/bin/python -m chaos.validate {folder}",
        ]
    )


def timeline(folder: Path) -> list[str]:
    """What the harness did, line by line, for people."""
    notes = [line for line in read(folder / "harness.jsonl") if isinstance(line, Note)]
    start = notes[0].at
    return [f"{note.at - start:9.3f} {note.what} {note.target} {note.text}".rstrip() for note in notes]
