"""Requests with a story: those that an incident caught, and those that break a promise on purpose.

Each is written down record by record, in the journals of the node, the client and the worker, and tallied
for the truth. Ordinary requests are made by the million elsewhere (``bulk``).
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bstar import records
from bstar.errors import ConfigurationError
from bstar_pipeline.synth.process import Process, Serving, Stretch
from bstar_pipeline.synth.settings import SynthSettings, Violation
from bstar_pipeline.synth.timeline import Interruption, Timeline
from bstar_pipeline.synth.traffic import Ints, Traffic
from bstar_pipeline.synth.truth import TruthViolation

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
"""The audit's rule for each kind of planted violation."""

# What silver.requests says of a request of which only nodes tell, best first.
_BEST = ("answered", "failed", "expired", "poison", "lost", "late", "returned")
_DEADLINE_US = 5_000_000
# A promise is broken while nothing else happens, and not where a journal that goes on may still lack a call.
_CALM_US = 5_000_000
_TAIL_US = 90_000_000


def needs_of(kind: str) -> tuple[bool, bool]:
    """Does the audit need journals of clients, of workers, to prove this kind?"""
    return (
        kind not in ("executed-twice", "answered-twice"),
        kind in ("lost-work", "executed-twice", "executed-twice-plain", "crossed"),
    )


@dataclass(slots=True)
class _Seen:
    """What journals say about one request."""

    service: str
    nodes: list[str] = field(default_factory=list)
    call: str | None = None
    executions: int = 0

    @property
    def outcome(self) -> str | None:
        if self.call is not None:
            return self.call
        told = next((outcome for outcome in _BEST if outcome in self.nodes), None)
        return told or ("answered" if self.executions else None)


class Specials:
    """Adds its records to the processes of ``timeline``; indices from 0 up to ``used`` are taken then."""

    def __init__(self, settings: SynthSettings, number: int, traffic: Traffic, timeline: Timeline) -> None:
        self.used = 0
        self.violations: list[TruthViolation] = []
        self.node_records: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.executions = 0
        self._settings = settings
        self._traffic = traffic
        self._timeline = timeline
        self._chance = random.Random(f"{settings.seed}/{number}/specials")  # noqa: S311 - data for tests
        self._seen: dict[int, _Seen] = {}
        for interruption in timeline.interruptions:
            for turn in range(settings.caught):
                self._interrupt(interruption, turn)

    def outcomes(self) -> Counter[tuple[str, str]]:
        """How many requests of each service have which outcome."""
        told: Counter[tuple[str, str]] = Counter()
        for seen in self._seen.values():
            if seen.outcome is not None:
                told[seen.service, seen.outcome] += 1
        return told

    # --- requests that an incident caught -------------------------------------------------------------------

    def _interrupt(self, gap: Interruption, turn: int) -> None:
        index = self._take()
        came = gap.at_us - self._chance.randrange(1_000, 20_000)
        done = gap.resumed_us + 2_000 + 500 * turn + self._chance.randrange(400)
        busy = self._chance.randrange(500, 2_000)
        total = done - gap.resumed_us
        if gap.is_orderly:
            # It waited without a worker, was given back, and went to the other node.
            self._node(gap.old, gap.at_us, index, "returned", gap.at_us - came, 0, is_dispatched=False)
            self._answer(gap.new, done, index, came, total, busy, attempts=2)
            return
        story = turn % 5
        woke = gap.woke_us
        if story == 4:
            # It came while nobody served.
            came = gap.at_us + self._chance.randrange(max(1, gap.resumed_us - gap.at_us))
            self._answer(gap.new, done, index, came, total, busy)
            return
        if story == 2 and woke is None:
            # Answered by the node that was killed, whose record was still in the buffer.
            ended = gap.at_us - 300
            self._execute(ended - 100, index, gap.old, 200)
            self._call(ended + 100, index, "answered", ended + 100 - came, gap.old)
            return
        is_dispatched = story in (1, 3)
        if is_dispatched:
            self._execute(gap.at_us + 3_000, index, gap.old, 2_000)
        if woke is not None:
            # A stalled node gives back what it holds when it wakes up.
            self._node(gap.old, woke, index, "returned", woke - came, 0, is_dispatched=is_dispatched)
            if is_dispatched:
                self._node(gap.old, woke + 500, index, "late", woke + 500 - came, 0)
        if story == 3:
            # Its caller had forbidden to repeat it.
            waited = gap.resumed_us - came
            self._call(gap.resumed_us, index, "unknown", waited, gap.old, is_idempotent=False)
            return
        self._answer(gap.new, done, index, came, total, busy, attempts=2, is_repeated=True)

    def _answer(
        self,
        by: Serving,
        done: int,
        index: int,
        came: int,
        total: int,
        busy: int,
        *,
        attempts: int = 1,
        is_repeated: bool = False,
    ) -> None:
        """Node, worker and client tell of an answer."""
        self._node(by, done, index, "answered", total, busy, is_repeated=is_repeated)
        self._execute(done - 100, index, by, busy - 200, is_repeated=is_repeated)
        self._call(done + 100, index, "answered", done + 100 - came, by, attempts=attempts)

    # --- broken promises ------------------------------------------------------------------------------------

    def plant(self, violation: Violation) -> None:
        """Break one promise at that time. Raises ConfigurationError if nobody served just then."""
        at = self._timeline.start_us + round(violation.at_s * 1e6)
        stretch = self._stretch_at(at)
        if stretch is None:
            raise ConfigurationError(
                f"a violation at {violation.at_s} s: no node serves long enough around it"
            )
        node = self._timeline.processes[stretch.process]
        by = Serving(node, stretch.epoch)
        index = self._take()
        kind = violation.kind
        busy, total = 1_500, 2_000
        if kind != "lost-work":
            deliveries = 2 if kind in ("executed-twice", "executed-twice-unseen") else 1
            self._node(by, at, index, "answered", total, busy, deliveries=deliveries)
        self._execute(at - 100, index, by, busy - 200)
        if kind in ("lost-reply", "lost-work"):
            self._call(at - total + _DEADLINE_US, index, "timeout", _DEADLINE_US, by)
        elif kind == "executed-though-refused":
            self._call(at - total + 500, index, "rejected", 500, by)
        elif kind != "lost-call":
            if kind in ("executed-twice", "executed-twice-plain"):
                self._execute(at + 1_500, index, by, busy, is_repeated=kind == "executed-twice-plain")
            elif kind == "answered-twice":
                other = Serving(self._other_node(node, at), stretch.epoch)
                self._node(other, at + 50_000, index, "answered", total, busy)
            is_idempotent = kind not in ("executed-twice-plain", "executed-twice-unseen")
            reply_of = index + 1 if kind == "crossed" else index
            self._call(
                at + 100, index, "answered", total + 100, by, is_idempotent=is_idempotent, reply_of=reply_of
            )
        client, number = self._identity(index)
        self.violations.append(
            TruthViolation(
                pair=node.pair,
                rule=RULES[kind],
                kind=kind,
                client=self._traffic.clients[client],
                number=number,
                at_us=at,
            )
        )

    def may_plant_at(self, at_us: int) -> bool:
        """Does a node serve well before and after it?"""
        return self._stretch_at(at_us) is not None

    def _stretch_at(self, at: int) -> Stretch | None:
        for stretch in self._timeline.stretches:
            last = min(stretch.until_us - _DEADLINE_US - _CALM_US, self._timeline.end_us - _TAIL_US)
            if stretch.since_us + _CALM_US <= at <= last:
                return stretch
        return None

    def _other_node(self, node: Process, at: int) -> Process:
        for process in self._timeline.processes:
            is_there = process.started_us + 1_000_000 < at < process.ended_us - 1_000_000
            if process.source == "broker" and process.node != node.node and is_there:
                return process
        raise ConfigurationError("answered-twice needs both nodes, and one is down at that time")

    # --- records --------------------------------------------------------------------------------------------

    def _take(self) -> int:
        self.used += 1
        index = self.used - 1
        service = int(self._traffic.service_of(_one(index))[0])
        self._seen[index] = _Seen(self._traffic.services[service])
        return index

    def _identity(self, index: int) -> tuple[int, int]:
        one = _one(index)
        return int(self._traffic.client_of(one)[0]), int(self._traffic.number_of(one)[0])

    def _is_kept(self, process: Process, at: int, index: int) -> bool:
        is_lost = process.lost_from_us is not None and at >= process.lost_from_us
        return not is_lost and bool(self._traffic.is_sampled(_one(index))[0])

    def _common(self, index: int) -> dict[str, Any]:
        client, number = self._identity(index)
        return {
            "client": self._traffic.clients[client],
            "number": number,
            "service": self._seen[index].service,
            "bytes_in": 200,
            "weight": 1 / self._settings.sample,
        }

    def _node(
        self,
        by: Serving,
        at: int,
        index: int,
        outcome: str,
        total: int,
        busy: int,
        *,
        is_dispatched: bool = True,
        deliveries: int = 1,
        is_repeated: bool = False,
    ) -> None:
        if not self._is_kept(by.node, at, index):
            return
        traffic = self._traffic
        worker = traffic.workers[int(traffic.worker_of(_one(index))[0])]
        client, _ = self._identity(index)
        by.node.note(
            at,
            records.Request,
            **self._common(index),
            sender=traffic.senders[client],
            outcome=outcome,
            epoch=by.epoch,
            total_us=total,
            queued_us=max(0, total - busy),
            busy_us=busy,
            worker=worker.routing_id if is_dispatched else "",
            deliveries=deliveries if is_dispatched else 0,
            is_repeated=is_repeated,
            bytes_out=100 if outcome == "answered" else 0,
        )
        self._seen[index].nodes.append(outcome)
        self.node_records[outcome] += 1

    def _call(
        self,
        at: int,
        index: int,
        outcome: str,
        total: int,
        by: Serving,
        *,
        attempts: int = 1,
        is_idempotent: bool = True,
        reply_of: int | None = None,
    ) -> None:
        clients = self._timeline.clients
        if not clients:
            return
        client, _ = self._identity(index)
        process = clients[client % self._settings.client_processes]
        if not self._is_kept(process, at, index):
            return
        crc = int(self._traffic.crc_of(_one(index if reply_of is None else reply_of))[0])
        process.note(
            at,
            records.Call,
            **self._common(index),
            outcome=outcome,
            total_us=total,
            attempts=attempts,
            endpoint=f"tcp://{by.node.machine.host}:5555",
            epoch=by.epoch,
            is_idempotent=is_idempotent,
            bytes_out=100 if outcome == "answered" else 0,
            reply_crc=crc if outcome == "answered" else None,
        )
        self._seen[index].call = outcome
        self.calls[outcome] += 1

    def _execute(self, at: int, index: int, by: Serving, busy: int, *, is_repeated: bool = False) -> None:
        workers = self._timeline.workers
        if not workers:
            return
        process = workers[int(self._traffic.worker_of(_one(index))[0])]
        if not self._is_kept(process, at, index):
            return
        process.note(
            at,
            records.Execution,
            **self._common(index),
            outcome="answered",
            epoch=by.epoch,
            busy_us=busy,
            endpoint=f"tcp://{by.node.machine.host}:5555",
            is_repeated=is_repeated,
            bytes_out=100,
            reply_crc=int(self._traffic.crc_of(_one(index))[0]),
        )
        self._seen[index].executions += 1
        self.executions += 1


def _one(index: int) -> Ints:
    return np.array([index], dtype=np.int64)
