"""What a run's histories come to: calls, executions, terms of office, faults, quiet times.

``load`` reads a run's folder (all histories, the nodes' logs, ``run.json``) and nothing else, so a run that
was kept can be judged again. No rule is here; ``chaos.validate`` has them.

A *term* is the time from one activation of a node to its end, as the node's log tells it, cut short by the
death of the process. A *round* begins when all faults of a kind are over (``calm``), goes on when exactly one
node is active and the nodes hear each other (``settled``), and lasts until the next fault.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from chaos.history import (
    KEPT_WAITING,
    Begin,
    End,
    EpochSeen,
    Failed,
    Invoke,
    Line,
    Note,
    Ok,
    Started,
    Stopped,
    read,
)


class Manifest(msgspec.Struct, frozen=True):
    """``run.json``: what cannot be read from histories. ``plan`` and ``repeat`` are for people."""

    name: str
    failover_timeout_s: float
    heartbeat_s: float
    clients: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    is_control: bool = False
    """Nothing is broken on purpose, so nothing may fail over."""
    has_arbiter: bool = False
    """There is a third voter, so at most one node serves whatever the network does."""
    has_keys: bool = False
    """Every connection uses CURVE."""
    calls_before_faults_min: int = 40
    half_open_s: float = 2.0
    """After a pair has settled: how long half-open connections may go undiscovered."""
    plan: str = ""
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client, and every end it had (one, if all is well)."""

    client: str
    id: int
    body: str
    at: float
    deadline_at: float
    is_idempotent: bool
    ends: tuple[Ok | Failed, ...] = ()
    is_orphan: bool = False
    """Its client's process was killed, so nobody waited for it any more."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"call {self.body} of {self.client}"


@dataclass(frozen=True, slots=True)
class Execution:
    """A worker began a request."""

    worker: str
    run: int
    """Which start of the worker's process it was."""
    number: int
    at: float
    epoch: int
    epoch_seen: int
    """The highest epoch that had reached this run of the worker by then."""
    endpoint: str
    body: str
    is_redelivered: bool
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """A node was active in ``epoch``; ``until`` is infinite if it still is. ``why`` it began, and ended."""

    node: str
    epoch: int
    since: float
    until: float
    why: str = ""
    end_why: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """An interval."""

    begin: float
    end: float

    def overlaps(self, begin: float, end: float) -> bool:
        """Do they have a moment in common?"""
        return self.begin <= end and begin <= self.end


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was broken on purpose from ``begin`` to ``end``."""

    kind: str
    target: str
    begin: float
    end: float
    hits_peer_link: bool


@dataclass(frozen=True, slots=True)
class Round:
    """A quiet time. ``settled_at`` None: the pair did not come to have one active node."""

    calm_at: float
    settled_at: float | None
    until: float


@dataclass(frozen=True, slots=True)
class Watch:
    """What happened to one process: when it stood still, when it was dead."""

    paused: tuple[Span, ...] = ()
    dead: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Everything about a run that rules look at."""

    manifest: Manifest
    calls: tuple[Call, ...]
    executions: tuple[Execution, ...]
    terms: tuple[Term, ...]
    faults: tuple[Fault, ...]
    rounds: tuple[Round, ...]
    processes: dict[str, Watch]
    ended_at: float
    unplanned: tuple[Span, ...] = ()
    """Times in which the machine itself kept a node waiting for long."""
    clock_steps_s: float = 0.0
    """How far the wall clock, by which logs are timed, moved against the monotonic one."""
    odd_exits: tuple[str, ...] = field(default=())
    """Processes that ended by themselves in a way nobody asked for."""
    waits: tuple[Span, ...] = ()
    """Times in which a thread of a node, the arbiter or the proxies was kept waiting for a CPU."""

    @property
    def delays(self) -> tuple[Span, ...]:
        """All that the machine itself did to the messages on which the role depends."""
        return self.unplanned + self.waits


_INACTIVE = "no longer active"
_ACTIVE = re.compile(r"active in epoch (\d+): (.*)")
_AWAY = re.compile(r"the process was away for ([0-9.]+) s")


def load(folder: Path) -> Run:
    """Read a run's folder."""
    manifest = msgspec.json.decode((folder / "run.json").read_bytes(), type=Manifest)
    notes = [line for line in read(folder / "harness.jsonl") if isinstance(line, Note)]
    ended_at = max(note.at for note in notes if note.what != KEPT_WAITING)
    clocks = [float(note.text) for note in notes if note.what == "clock"]
    watches = _watches(notes, ended_at)
    terms: list[Term] = []
    unplanned: list[Span] = []
    for node in ("primary", "backup"):
        events = _log(folder / f"{node}.log", clocks[0])
        terms += terms_of(node, events, watches.get(node, Watch()).dead)
        unplanned += _unplanned(events, watches.get(node, Watch()))
    calls: list[Call] = []
    for client in manifest.clients:
        calls += _calls(client, read(folder / f"{client}.jsonl"))
    executions: list[Execution] = []
    for worker in manifest.workers:
        executions += _executions(worker, read(folder / f"{worker}.jsonl"))
    return Run(
        manifest,
        tuple(sorted(calls, key=lambda call: call.at)),
        tuple(sorted(executions, key=lambda execution: execution.at)),
        tuple(sorted(terms, key=lambda term: term.since)),
        _faults(notes, ended_at),
        _rounds(notes, ended_at),
        watches,
        ended_at,
        tuple(unplanned),
        max(clocks) - min(clocks),
        tuple(f"{note.target} ended with {note.text}" for note in notes if note.what == "odd exit"),
        tuple(Span(note.at - float(note.text), note.at) for note in notes if note.what == KEPT_WAITING),
    )


# --- clients and workers ------------------------------------------------------------------------------------


def _calls(client: str, lines: list[Line]) -> list[Call]:
    calls: dict[tuple[int, int], Call] = {}
    run = 0
    finished: set[int] = set()
    for line in lines:
        if isinstance(line, Started):
            run += 1
        elif isinstance(line, Stopped):
            finished.add(run)
        elif isinstance(line, Invoke):
            calls[run, line.id] = Call(
                client, line.id, line.body, line.at, line.at + line.deadline_s, line.is_idempotent
            )
        elif isinstance(line, Ok | Failed):
            call = calls[run, line.id]
            calls[run, line.id] = replace(call, ends=(*call.ends, line))
    return [replace(call, is_orphan=key[0] not in finished) for key, call in calls.items()]


def _executions(worker: str, lines: list[Line]) -> list[Execution]:
    executions: dict[tuple[int, int], Execution] = {}
    run = epoch_seen = 0
    for line in lines:
        if isinstance(line, Started):
            run += 1
            epoch_seen = 0
        elif isinstance(line, EpochSeen):
            epoch_seen = max(epoch_seen, line.epoch)
        elif isinstance(line, Begin):
            executions[run, line.number] = Execution(
                worker,
                run,
                line.number,
                line.at,
                line.epoch,
                epoch_seen,
                line.endpoint,
                line.body,
                line.is_redelivered,
            )
            epoch_seen = max(epoch_seen, line.epoch)
        elif isinstance(line, End):
            executions[run, line.number] = replace(executions[run, line.number], ended_at=line.at)
    return list(executions.values())


# --- nodes --------------------------------------------------------------------------------------------------


def _log(path: Path, clock_s: float) -> list[tuple[float, str]]:
    """A node's log: (when on the monotonic clock, event). Lines that are no JSON are others' words."""
    events: list[tuple[float, str]] = []
    for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else []:
        if not line.startswith("{"):
            continue
        record: dict[str, Any] = json.loads(line)
        at = datetime.fromisoformat(record["timestamp"]).timestamp() - clock_s
        events.append((at, str(record["event"])))
    return events


def terms_of(node: str, events: list[tuple[float, str]], dead: tuple[Span, ...]) -> list[Term]:
    """The terms of one node from its log."""
    terms: list[Term] = []
    for at, event in events:
        found = _ACTIVE.fullmatch(event)
        if found is not None or event.startswith(_INACTIVE):
            terms = _end(terms, at, event.removeprefix(_INACTIVE).lstrip(": "))
        if found is not None:
            died_at = min((span.begin for span in dead if span.begin >= at), default=float("inf"))
            terms.append(Term(node, int(found[1]), at, died_at, found[2]))
    return terms


def _end(terms: list[Term], at: float, why: str) -> list[Term]:
    if terms and terms[-1].until > at:
        terms[-1] = replace(terms[-1], until=at, end_why=why)
    return terms


def _unplanned(events: list[tuple[float, str]], watch: Watch) -> list[Span]:
    """The times in which a node was away although nobody had stopped it."""
    spans: list[Span] = []
    for at, event in events:
        found = _AWAY.match(event)
        if found is None:
            continue
        span = Span(at - float(found[1]), at)
        if not any(paused.overlaps(span.begin, span.end) for paused in watch.paused):
            spans.append(span)
    return spans


# --- the harness --------------------------------------------------------------------------------------------


def _watches(notes: list[Note], ended_at: float) -> dict[str, Watch]:
    paused: dict[str, list[Span]] = {}
    dead: dict[str, list[Span]] = {}
    open_pauses: dict[str, float] = {}
    open_deaths: dict[str, float] = {}
    for note in notes:
        name, at = note.target, note.at
        if note.what == "pause":
            open_pauses[name] = at
        elif note.what in ("resume", "kill", "exit", "start") and name in open_pauses:
            paused.setdefault(name, []).append(Span(open_pauses.pop(name), at))
        if note.what in ("kill", "exit"):
            # From the signal on: whatever it did after that was done before it died.
            open_deaths.setdefault(name, at)
        elif note.what == "start" and name in open_deaths:
            dead.setdefault(name, []).append(Span(open_deaths.pop(name), at))
    for name, at in open_pauses.items():
        paused.setdefault(name, []).append(Span(at, ended_at))
    for name, at in open_deaths.items():
        dead.setdefault(name, []).append(Span(at, float("inf")))
    names = paused.keys() | dead.keys()
    return {name: Watch(tuple(paused.get(name, ())), tuple(dead.get(name, ()))) for name in names}


def _faults(notes: list[Note], ended_at: float) -> tuple[Fault, ...]:
    ends = {note.span: note.at for note in notes if note.what == "fault ends"}
    return tuple(
        Fault(
            note.text.split()[0],
            note.target,
            note.at,
            ends.get(note.span, ended_at),
            "peer-link" in note.text.split(),
        )
        for note in notes
        if note.what == "fault begins"
    )


def _rounds(notes: list[Note], ended_at: float) -> tuple[Round, ...]:
    rounds: list[Round] = []
    for index, note in enumerate(notes):
        if note.what != "calm":
            continue
        rest = notes[index + 1 :]
        until = next((each.at for each in rest if each.what in ("fault begins", "traffic ends")), ended_at)
        settled = next((each.at for each in rest if each.what == "settled" and each.at <= until), None)
        rounds.append(Round(note.at, settled, until))
    return tuple(rounds)
