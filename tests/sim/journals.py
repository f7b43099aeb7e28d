"""Journals of simulated pairs: the production machines, their production journals, and the truth beside them.

``write(Scenario(...), folder)`` runs a pair and writes ``folder/journal``. What comes back is what the
simulator itself saw: which faults befell which run of which node, and when (on the primary's wall clock), who
took over, how long two nodes served, how calls ended. The same scenario gives the same bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import msgspec

from bstar.fleet import Fleet, Pair
from bstar.journal import Journal, JournalOptions
from bstar.star import Activated
from bstar.wire.mmi import PREFIX
from bstar_broker.journal import NodeJournal
from bstar_client.core.calls import Call, Reply
from bstar_client.core.outputs import Announce, Deliver, DeliverAll, Fail, Output
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.outputs import Abandon, Fenced, Lost, Registered, WorkerOutput
from bstar_client.journal import CallJournal, JournalPlace, JournalSettings, WorkJournal, outcome_of
from sim.checks import Checks
from sim.client import Issued, Load, SimClient
from sim.faults import Fault, Kind, Mood
from sim.node import SimNode
from sim.run import Simulation
from sim.setup import FleetSetup, Setup, names_of
from sim.worker import SimWorker
from sim.world import Process

JOURNAL = "journal"
START_US = 1_767_571_200_000_000
"""2026-01-05T00:00:00Z: the simulator's time 0 on a wall clock that is right."""
# Time in which everybody finds each other, and the calm that each incident needs.
BEGIN_S, CALM_S = 5.0, 5.0
_FLUSH_S = 0.1
_PULSE_S = 10.0
_TORN = b'{"kind":"pulse","state":"ACTIVE","epo'

IncidentKind = Literal["crash", "stop", "pause", "handover", "partition", "both-active"]
INCIDENT_KINDS: tuple[IncidentKind, ...] = get_args(IncidentKind)
_KINDS = {
    "crash": Kind.CRASH, "stop": Kind.STOP, "pause": Kind.STALL, "handover": Kind.HANDOVER,
    "partition": Kind.PEER_CUT, "both-active": Kind.PEER_CUT,
}  # fmt: skip


class Incident(msgspec.Struct, frozen=True):
    """A fault ``at_s`` after the beginning. ``duration_s`` of a crash or stop: after how long the node is
    started again (inf: never); of a both-active: how long both serve. ``Truth`` does not have a pause that is
    shorter than the failover timeout: the peer does not notice it.
    """

    kind: IncidentKind
    at_s: float
    duration_s: float = 10.0
    target: Literal["active", "passive"] = "active"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A pair and what befalls it. ``workers`` and ``clients`` are numbers; workers take turns at services.

    ``faults`` befall it beside the incidents. A call has up to ``deadline_s``. ``ask_all``: how often a
    client also asks each worker of a service.

    ``keepers``: whose journals there are beside the nodes'. ``is_probing``: a refused connection proves a
    death at once. ``skew_us``: the backup's wall clock against the primary's; ``step_us``: by how much the
    primary's is set at half of the time, and back at three quarters. ``is_sealed``: the last files are whole;
    otherwise their writers live on. ``segment_bytes``: when a file is closed and the next one begun.
    """

    pair: str
    seed: int = 1
    seconds: float = 60.0
    services: int = 2
    workers: int = 4
    clients: int = 4
    calls_per_s: float = 10.0
    incidents: tuple[Incident, ...] = ()
    faults: tuple[Fault, ...] = ()
    deadline_s: float = 10.0
    keepers: frozenset[str] = frozenset(("client", "worker"))
    is_probing: bool = True
    skew_us: int = 0
    step_us: int = 0
    is_sealed: bool = True
    segment_bytes: int = 1 << 20
    sample: float = 1.0
    ask_all: float = 0.0

    def setup(self) -> Setup:
        """For the simulator: a fleet of one pair, because its services have names."""
        offered = [f"service-{number % self.services}" for number in range(self.workers)]
        return Setup(
            seed=self.seed,
            mood=Mood.STORM if self.incidents or self.faults else Mood.QUIET,
            profile="lan",
            is_durable=True,
            is_probing=self.is_probing,
            on_dual_active="yield",
            pipe_max=math.inf,
            delay_s=0.0002,
            jitter_s=0.0002,
            workers=tuple((f"worker-{number}", "native", 4, 0.004) for number in range(self.workers)),
            clients=tuple((f"client-{number}", "native") for number in range(self.clients)),
            calls_per_s=self.calls_per_s / self.clients,
            storm_s=self.seconds,
            faults=self.faults,
            fleet=FleetSetup((self.pair,), (), tuple(offered), (self.pair,)),
        )


class Seen(msgspec.Struct):
    """An incident as it was: ``boot`` is the run that was hit, the times are microseconds since 1970 on the
    primary's clock; None: not in this journal.
    """

    kind: str
    node: str
    boot: str
    began_at_us: int
    ended_at_us: int | None = None
    taken_over_at_us: int | None = None
    successor: str = ""
    epoch: int = 0


class Truth(msgspec.Struct, frozen=True):
    """``overlaps``: the times of two active nodes, since when and for how long. ``calls`` counts all calls by
    service and outcome.
    """

    incidents: list[Seen]
    overlaps: list[tuple[int, int]]
    calls: Counter[tuple[str, str]]


class Host:
    """A machine: all its processes read one monotonic clock, and one wall clock that may be wrong or set."""

    def __init__(self, name: str, booted_s: float, skew_us: int = 0) -> None:
        self.name = name
        self.booted_s = booted_s
        self.skew_us = skew_us

    def seams(self, process: Process) -> dict[str, Any]:
        """What makes a process's journal read this machine's clocks."""
        return {
            "clock": process.clock,
            "mono": lambda: round(process.clock() * 1e9),
            "wall": lambda: (START_US + self.skew_us) * 1000 + round(process.world.now * 1e9),
            "has_thread": False,
        }

    @property
    def started(self) -> dict[str, Any]:
        """Fields of a first record."""
        return {"machine": self.name, "host": self.name, "pid": 1, "version": "simulated"}


class Keeper(Process):
    """What a simulated process with a journal adds: the machine that it runs on, and its journal."""

    host: Host
    scenario: Scenario
    folder: Path
    book: Journal | None = None  # of this run
    _kills = 0

    def boot(self) -> None:
        """The clock is the machine's: it goes on from run to run, and at the speed of all others."""
        super().boot()
        self._rate, self._offset = 1.0, self.host.booted_s

    def keep(self, journal: Journal) -> Journal:
        """Write this journal as its thread would."""
        self.book = journal
        self._flush(self.runs)
        return journal

    def _flush(self, run: int) -> None:
        if run != self.runs or self.book is None or not self.is_alive:
            return
        if not self.is_frozen:
            self.book.turn()
            upkeep = self.book._writer.upkeep
            while upkeep.jobs:
                upkeep.step()
        self.world.after(_FLUSH_S, partial(self._flush, run))

    def flush_events(self) -> None:
        """Write at once if there is more than records of requests: these wake the journal's thread."""
        if self.book is not None and self.book._buffer.is_woken:
            self.book.turn()
            self.book._buffer.is_woken = False

    def lose_journal(self) -> None:
        """SIGKILL: what is in the buffer is lost. Every second time a line is left half written."""
        book, self.book = self.book, None
        if book is None or book._is_closing:
            return
        segment = book._writer.segment
        assert segment is not None
        self._kills += 1
        if self._kills % 2:
            segment.write(_TORN)
        segment.close()

    def end_journal(self) -> None:
        """The journals are read now; the process lives on."""
        book, self.book = self.book, None
        if book is None:
            return
        book.turn()
        if self.scenario.is_sealed:
            book.close(None)
        else:
            assert book._writer.segment is not None
            book._writer.segment.close()

    def options(self) -> JournalOptions:
        """Of its journal."""
        scenario = self.scenario
        return JournalOptions(
            str(self.folder), rotate_bytes=scenario.segment_bytes, rotate_s=86_400.0, sample=scenario.sample
        )

    def open_book(
        self, place: JournalPlace, source: Literal["client", "worker"], endpoints: Sequence[str], service: str
    ) -> Journal:
        """As ``bstar_client.journal`` opens one."""
        assert isinstance(place, JournalSettings)
        started = {**self.host.started, "service": service, "endpoints": ",".join(endpoints)}
        seams = self.host.seams(self)
        boot = self.rng.randbytes(16).hex()
        return self.keep(
            Journal(
                place, pair=place.pair, node=self.name, source=source, boot=boot, started=started, **seams
            )
        )

    @property
    def place(self) -> JournalSettings:
        """What a program would pass as ``journal=``."""
        return JournalSettings(
            **msgspec.structs.asdict(self.options()) | {"close_timeout_s": 1e2},
            pair=self.scenario.pair,
            name=self.name,
        )


class KeepingNode(Keeper, SimNode):
    """A node with a journal, as ``bstar_broker.server`` keeps one."""

    record: Record

    @property
    def role_name(self) -> str:
        """Its name in journals."""
        return self.role.name.lower()

    def open_journal(self, node_id: bytes) -> NodeJournal:
        """Open it, as ``bstar_broker.journal.open_journal``."""
        timing = self._timing
        journal = self.keep(
            Journal(
                self.options(),
                pair=self.scenario.pair,
                node=self.role_name,
                source="broker",
                boot=node_id.hex(),
                started={
                    **self.host.started,
                    "endpoints": self.name,
                    "epoch": self.disk or 0,
                    "heartbeat_us": round(timing.heartbeat_interval_s * 1e6),
                    "failover_timeout_us": round(timing.failover_timeout_max_s * 1e6),
                },
                **self.host.seams(self),
            )
        )
        return NodeJournal(journal, node_id=node_id, clock=self.clock)

    def look(self) -> None:
        """Its journal is on a disk."""

    def start(self) -> None:
        """A new run; its journal sees the node before anything happens to it."""
        super().start()
        self.world.after(_PULSE_S, partial(self._pulse, self.runs))
        self.record.started(self)
        self.flush_events()

    def _pulse(self, run: int) -> None:
        if run == self.runs and self.is_alive:
            if not self.is_frozen:
                self.journal.tick(self.clock())
            self.world.after(_PULSE_S, partial(self._pulse, run))

    def _note(self, output: object) -> None:
        super()._note(output)
        if isinstance(output, Activated):
            self.record.activated(self, output.epoch)

    def _end_turn(self) -> None:
        self.flush_events()
        super()._end_turn()

    def die(self, *, with_host: bool = False) -> None:
        if self.is_alive:
            if self.is_stopping:
                self.journal.close("SIGTERM")
            self.lose_journal()
        super().die(with_host=with_host)


class KeepingClient(Keeper, SimClient):
    """A client with a journal, as ``bstar_client.calls.delivery`` keeps one."""

    kinds: ClassVar = {"echo": 80, "stream": 6, "parts": 6, "fail": 1}
    record: Record
    calls: CallJournal | None = None

    def start(self) -> None:
        """A new run."""
        super().start()
        if "client" in self.scenario.keepers:
            fleet = Fleet([Pair(tuple(link.node.name for link in self.links), self.scenario.pair)])
            self.calls = CallJournal(self.place, fleet, is_plain=False, open_journal=self.open_book)

    def die(self, *, with_host: bool = False) -> None:
        self.lose_journal()
        self.calls = None
        super().die(with_host=with_host)

    def _begin_call(self, issued: Issued, service: bytes, body: list[bytes], deadline: float) -> Call:
        call = super()._begin_call(issued, service, body, deadline)
        # The name of a worker is no part of what that worker is asked.
        call.bytes_in = sum(map(len, call.body[call.is_directed :]))
        return call

    def _abandon(self, call: Call) -> None:
        self._count(call, "abandoned")
        if self.calls is not None:
            self.calls.abandoned(call)
        super()._abandon(call)

    def _do(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Deliver):
                self._replied(output.call, output.reply)
            elif isinstance(output, DeliverAll):
                for call, reply in output.outcomes:
                    self._replied(call, reply)
            elif isinstance(output, Fail):
                self._count(output.call, outcome_of(output.error))
                if self.calls is not None:
                    self.calls.failed(output.call, output.error)
            elif isinstance(output, Announce) and self.calls is not None:
                self.calls.announced(output.event)
        self.flush_events()
        super()._do(outputs)

    def _count(self, call: Call, outcome: str) -> None:
        """A question to the broker itself is in no journal."""
        if not call.service.startswith(PREFIX):
            self.record.calls[call.service.decode(), outcome] += 1

    def _replied(self, call: Call, reply: Reply) -> None:
        if reply.is_final:
            self._count(call, "answered")
        if self.calls is not None:
            self.calls.replied(call, reply)


class KeepingWorker(Keeper, SimWorker):
    """A worker with a journal, as ``bstar_client.workers.dispatch`` keeps one."""

    work: WorkJournal | None = None

    def start(self) -> None:
        """A new run."""
        super().start()
        if "worker" in self.scenario.keepers:
            self.work = WorkJournal(
                self.place,
                [link.node.name for link in self.links],
                self.service.encode(),
                is_plain=False,
                open_journal=self.open_book,
            )

    def die(self, *, with_host: bool = False) -> None:
        if self.work is not None and self.has_ended:
            self.work.close(self.core.unfinished, "SIGTERM")
        self.lose_journal()
        self.work = None
        super().die(with_host=with_host)

    def _begin(self, job: Job) -> None:
        job.began_at = self.clock()
        super()._begin(job)

    def told(self, job: Job, body: list[bytes], kind: str) -> None:
        job.ended_at = self.clock()
        if self.work is not None:
            self.work.handled(job, body, kind)

    def _do(self, outputs: Sequence[WorkerOutput]) -> None:
        if self.work is not None:
            for output in outputs:
                match output:
                    case Abandon(job):
                        self.work.given_up(job)
                    case Registered(endpoint):
                        self.work.registered(endpoint)
                    case Lost(endpoint, reason):
                        self.work.unregistered(endpoint, reason)
                    case Fenced(job, epoch_seen):
                        self.work.fenced(job, epoch_seen)
                    case _:
                        pass
            self.flush_events()
        super()._do(outputs)


class Record(Checks):
    """What must hold of the pair, and what really happened to it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.incidents: list[Seen] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self._turns: list[tuple[float, str, bool]] = []

    @property
    def now_us(self) -> int:
        """On the primary's wall clock, if it is right."""
        return START_US + round(self.world.now * 1e6)

    def began(self, kind: str, node: KeepingNode) -> Seen:
        """A fault befalls this run."""
        seen = Seen(kind, node.role_name, node.journal.journal.boot, self.now_us)
        self.incidents.append(seen)
        return seen

    def started(self, node: KeepingNode) -> None:
        """A run begins: the pair's first, or one after its death."""
        if not self.incidents:
            self.began("start", node)
        for seen in self.incidents:
            if seen.node == node.role_name and seen.kind in ("crash", "stop") and seen.ended_at_us is None:
                seen.ended_at_us = self.now_us

    def activated(self, node: KeepingNode, epoch: int) -> None:
        """It takes over from the one that was hit last, or it is the pair's first."""
        last = self.incidents[-1]
        if last.kind != "start":
            if last.node == node.role_name:
                return
            last.successor = node.role_name
        last.taken_over_at_us, last.epoch = self.now_us, epoch
        if last.kind in ("start", "handover"):
            last.ended_at_us = self.now_us

    def node_changed(self, node: SimNode) -> None:
        super().node_changed(node)
        self._turns.append((self.world.now, node.name, node.is_serving))

    def overlaps(self) -> Iterator[tuple[int, int]]:
        """The times of two active nodes."""
        serving: set[str] = set()
        for (at, name, does), (until, *_) in pairwise([*self._turns, (self.world.now, "", False)]):
            (serving.add if does else serving.discard)(name)
            if len(serving) > 1 and until > at:
                yield START_US + round(at * 1e6), round((until - at) * 1e6)


class _Simulation(Simulation):
    """A simulated pair that keeps journals in ``folder``."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        super().__init__(
            scenario.setup(),
            checks=Record,
            node_class=KeepingNode,
            worker_class=KeepingWorker,
            client_class=KeepingClient,
        )
        self.scenario = scenario
        assert isinstance(self.checks, Record)
        self.record = self.checks
        rng = self.world.rng("hosts")
        names = (*names_of(scenario.pair)[:2], f"{scenario.pair}.others")
        self._hosts = {name: Host(name.replace(".", "-"), rng.uniform(1e3, 1e6)) for name in names}
        self._hosts[names[1]].skew_us = scenario.skew_us
        for process in self.keepers:
            process.scenario, process.folder = scenario, folder
            process.host = self._hosts.get(process.name, self._hosts[names[2]])
            if isinstance(process, KeepingNode | KeepingClient):
                process.record = self.record

    @property
    def keepers(self) -> list[KeepingNode | KeepingClient | KeepingWorker]:
        """All processes with a journal."""
        keeping = KeepingNode | KeepingClient | KeepingWorker
        return [process for process in self._processes if isinstance(process, keeping)]

    def write(self) -> Truth:
        """Run it, and end all journals at once."""
        scenario = self.scenario
        self.start()
        for client in self.clients.values():
            client.load = Load(
                client.load.calls_per_s, scenario.deadline_s / 2, scenario.deadline_s, scenario.ask_all
            )
        for fault in scenario.faults:
            self.inject(fault)
        for incident in scenario.incidents:
            self.world.at(incident.at_s, partial(self._strike, incident))
        primary = self._hosts[names_of(scenario.pair)[0]]
        for share, step_us in ((1 / 2, scenario.step_us), (3 / 4, -scenario.step_us)):
            self.world.at(share * scenario.seconds, partial(self._set_clock, primary, step_us))
        self.run_for(scenario.seconds)
        # A call that has not ended is in nobody's count.
        for client in self.clients.values():
            client.load = Load(1e-9, 1.0, 1.0)
        while any(client.outstanding for client in self.clients.values()):
            self.run_for(_FLUSH_S)
        for process in self.keepers:
            process.end_journal()
        return Truth(self.record.incidents, list(self.record.overlaps()), self.record.calls)

    def _set_clock(self, host: Host, step_us: int) -> None:
        host.skew_us += step_us

    def _strike(self, incident: Incident) -> None:
        nodes: Mapping[bool, SimNode] = {node.has_role: node for node in self.nodes if node.is_alive}
        node = nodes[incident.target == "active"]
        assert isinstance(node, KeepingNode)
        if incident.kind == "pause" and incident.duration_s < self.timing.failover_timeout_s:
            self.inject(Fault(self.world.now, Kind.STALL, node.name, incident.duration_s))
            return
        seen = self.record.began(incident.kind, node)
        kind, lasts_s = _KINDS[incident.kind], incident.duration_s
        if incident.kind == "both-active":
            # Nobody is heard any more; as soon as the failover timeout is over, a client votes.
            seen.kind = "partition"
            vote_s = self.timing.failover_timeout_max_s + self.timing.heartbeat_interval_s
            self.world.after(vote_s, nodes[False].vote)
            lasts_s += vote_s
            # Until then no worker carries the new epoch to the old node.
            others = [*self.workers, *self.clients]
            ends = [(name, nodes[False].name) for name in others]
            self.world.after(lasts_s, self.cut({*ends, *((node, name) for name, node in ends)}))
        if lasts_s < math.inf:
            if incident.kind not in ("crash", "stop", "handover"):
                seen.ended_at_us = self.record.now_us + round(lasts_s * 1e6)
        else:
            lasts_s = 10 * self.scenario.seconds
        self.inject(Fault(self.world.now, kind, node.name, lasts_s))


def write(scenario: Scenario, folder: Path) -> Truth:
    """Run it and write ``folder/journal``."""
    for one, other in pairwise([*scenario.incidents, Incident("crash", scenario.seconds)]):
        lasts_s = one.duration_s if one.duration_s < math.inf else 0.0
        assert one.at_s >= BEGIN_S, f"{one} comes before the pair has begun"
        assert one.at_s + lasts_s + CALM_S <= other.at_s, f"{one} leaves no calm before {other.at_s} s"
    return _Simulation(scenario, folder / JOURNAL).write()
