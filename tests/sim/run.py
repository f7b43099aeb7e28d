"""One run from one seed: pairs, their clients and workers, a storm of faults, and the calm after it."""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from bstar.settings.timing import Timing
from bstar_client.core.worker.session import WorkerCore
from sim.attacker import Attacker
from sim.checks import Checks, Violation
from sim.client import Load, SimClient
from sim.emq import END_S, SimEmqClient, SimManager
from sim.faults import Fault
from sim.guard import Guard
from sim.injection import Injection, Startable
from sim.key_faults import KeyFaults
from sim.keys import KeyList, user_of
from sim.life import LOOK_S, Life
from sim.network import Paths
from sim.node import SimNode
from sim.pair import SimPair
from sim.setup import Setup, attackers_of
from sim.worker import SimWorker
from sim.world import World

TICK_S = 0.5
CALM_TICK_S = 10.0
# What workers offer and clients ask for where there is one pair.
SERVICE = "work"


class Outcome(msgspec.Struct):
    """What a run came to."""

    setup: Setup
    violation: str | None
    rule: str
    digest: str
    simulated_s: float
    real_s: float
    events: int
    counts: dict[str, int]
    dual_s_max: float
    trace: list[str]


class Simulation:
    """The pairs of a setup, ready to run; scenarios use it step by step.

    ``checks``, ``primary``, ``backup``, ``nodes``, ``arbiter`` are those of the only pair, or of the first.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        keep_trace: bool = False,
        checks: type[Checks] = Checks,
        node_class: type[SimNode] = SimNode,
        worker_class: type[SimWorker] = SimWorker,
        client_class: type[SimClient] = SimClient,
        worker_core: type[WorkerCore] = WorkerCore,
    ) -> None:
        self.setup = setup
        self.timing: Timing = setup.timing
        self.world = World(setup.seed, keep_trace=keep_trace)
        self.paths = Paths(self.world, setup.delay_s, setup.jitter_s)
        fleet = None if setup.fleet is None else setup.fleet.fleet
        names = ("",) if setup.fleet is None else setup.fleet.pairs
        services = (SERVICE,) * len(setup.workers) if setup.fleet is None else setup.fleet.services
        keys = KeyList.of(setup, set(services), services) if setup.has_keys else None
        self.pairs = {
            name: SimPair(
                self.world,
                self.paths,
                setup,
                self.timing,
                name,
                checks=checks,
                node_class=node_class,
                keys=keys,
            )
            for name in names
        }
        listed = list(self.pairs.values())
        first = listed[0]
        self.checks, self.arbiter, self.nodes = first.checks, first.arbiter, first.nodes
        self.primary, self.backup = first.primary, first.backup
        self.settle_s = first.settle_s
        places = {
            service: 0 if fleet is None else fleet.place(service.encode())
            for service in sorted(set(services))
        }
        self.workers: dict[str, SimWorker | SimManager] = {}
        for (name, dialect, credit, handler_s), service in zip(setup.workers, services, strict=True):
            pair = listed[places[service]]
            if dialect == "emq":
                self.workers[name] = SimManager(
                    self.world,
                    name,
                    pair.checks,
                    credit=credit,
                    handler_s=handler_s,
                    service=service,
                    pair=pair.name,
                )
                self.paths.link(self.workers[name], pair.nodes, "emq.workers")
                continue
            self.workers[name] = worker_class(
                self.world,
                name,
                pair.checks,
                core_class=worker_core,
                dialect=dialect,
                credit=credit,
                handler_s=handler_s,
                service=service,
                pair=pair.name,
            )
            self.paths.link(self.workers[name], pair.nodes, "ppp.workers" if dialect == "ppp" else "")
        timeout_s = self.timing.failover_timeout_max_s
        # A call must be able to outlast a failover, and the time in which a dead worker is found.
        # With a limit handlers are slow and calls wait for their turn: a short deadline would leave what has
        # begun unknown although nothing has failed (d).
        is_slow = setup.running_max is not None
        deadline_min_s, self._last_deadline_s = (10.0, 10.0) if is_slow else (4 * timeout_s, 1.0)
        self.load = Load(setup.calls_per_s, deadline_min_s, 20 * timeout_s + 15.0, setup.ask_all)
        self.clients: dict[str, SimClient | SimEmqClient] = {}
        for name, dialect in setup.clients:
            nodes = [node for pair in listed for node in pair.nodes]
            if dialect == "emq":
                self.clients[name] = SimEmqClient(
                    self.world,
                    name,
                    self.load,
                    first.checks,
                    service=services[0],
                    publications=first.checks.publications,
                    stored=first.checks.stored,
                )
                self.paths.link(self.clients[name], nodes, "emq.clients")
                continue
            self.clients[name] = client_class(
                self.world,
                name,
                self.load,
                [pair.checks for pair in listed],
                dialect=dialect,
                settle_s=1.2 * timeout_s,
                places=places,
            )
            self.paths.link(self.clients[name], nodes, "ppp.clients" if dialect == "ppp" else "")
        for pair in listed:
            pair.checks.clients = list(self.clients.values())
            of_pair = [worker for worker in self.workers.values() if worker.pair == pair.name]
            pair.checks.workers = [worker for worker in of_pair if isinstance(worker, SimWorker)]
            pair.checks.is_fenced = all(worker.is_native for worker in of_pair)
            if setup.fleet is not None:
                pair.checks.services = {worker.service.encode() for worker in of_pair}
                pair.checks.is_struck = pair.name in setup.fleet.struck
            pair.checks.is_calm = setup.is_calm
            for worker in of_pair:
                if setup.is_calm and isinstance(worker, SimWorker):
                    worker.restart_s = self.timing.heartbeat_interval_s
        self.attackers = self._begin_keys(setup)
        self.life = Life(self.world, self._processes, first.checks.fail) if setup.is_calm else None
        self._injection = Injection(
            self.world, setup.mood, self.timing, self.paths, self.pairs, self.workers, self.clients
        )
        if keys is not None:
            self._injection.key_faults = KeyFaults(
                self.world, keys, self.pairs, self.attackers, self.timing.heartbeat_interval_s
            )

    def _begin_keys(self, setup: Setup) -> dict[str, list[Attacker]]:
        """Give everybody a key, if there are keys; the outsiders of each pair."""
        if not setup.has_keys:
            return {}
        for owner in (*self.workers.values(), *self.clients.values()):
            owner.user_id = user_of(owner.name)
        attackers: dict[str, list[Attacker]] = {name: [] for name in self.pairs}
        for name in attackers_of(setup):
            pair = self.pairs[name.rpartition(".")[0]]
            service = min(pair.checks.services or {SERVICE.encode()})
            attackers[pair.name].append(Attacker(self.world, name, service))
            self.paths.link(attackers[pair.name][-1], pair.nodes)
        for pair in self.pairs.values():
            pair.checks.guard = Guard()
        return attackers

    @property
    def _processes(self) -> list[Startable]:
        nodes = [node for pair in self.pairs.values() for node in pair.nodes]
        arbiters = [pair.arbiter for pair in self.pairs.values() if pair.arbiter is not None]
        attackers = [attacker for each in self.attackers.values() for attacker in each]
        return [*nodes, *self.workers.values(), *self.clients.values(), *arbiters, *attackers]

    # --- the course of a run ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, in an order of chance."""
        rng = self.world.rng("start")
        processes = self._processes
        rng.shuffle(processes)
        for process in processes:
            # A fault may have come first and have started it again.
            self.world.at(
                rng.random() * self.timing.failover_timeout_s, partial(self._injection.revive, process)
            )
        self._tick()

    def _tick(self) -> None:
        for pair in self.pairs.values():
            pair.checks.tick()
            for node in pair.nodes:
                node.look()
        if not self._injection.is_over:
            self.world.after(CALM_TICK_S if self.setup.is_calm else TICK_S, self._tick)

    def _look(self) -> None:
        assert self.life is not None
        self.life.look()
        if not self._injection.is_over:
            self.world.after(LOOK_S, self._look)

    def run(self) -> None:
        """The storm, then the calm."""
        self.start()
        for fault in self.setup.faults:
            self.inject(fault)
        if self.life is not None:
            self.world.after(LOOK_S, self._look)
        self.run_for(self.setup.storm_s)
        self.calm_down()
        if self.setup.is_calm:
            self.call_as_in_storms()
        self.finish()

    def call_as_in_storms(self) -> None:
        """From now on as much as in a dense run: without requests no passive node takes over."""
        load = msgspec.structs.replace(self.load, calls_per_s=0.6 / self.timing.failover_timeout_s)
        for client in self.clients.values():
            assert isinstance(client, SimClient)
            client.ask_for(load)

    def inject(self, fault: Fault) -> None:
        """Let it happen in its time."""
        self._injection.plan(fault)

    def cut(self, ends: set[tuple[str, str]]) -> Callable[[], None]:
        """Let nothing through between these; call what comes back to heal."""
        return self._injection.cut(ends)

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now + seconds)

    def finish(self) -> None:
        """The faults are over: everything must converge, every call be answered, every table be empty."""
        began = self.world.now
        pairs = list(self.pairs.values())
        settle_bound_s, recovery_s = pairs[0].settle_bound_s, pairs[0].recovery_s
        for pair in pairs:
            pair.checks.answers_due_from = began + max(settle_bound_s, recovery_s)
        self.run_for(settle_bound_s)
        for pair in pairs:
            pair.checks.check_settled()
        self.run_for(recovery_s + 10 * self.timing.failover_timeout_max_s)
        for client in self.clients.values():
            client.load = Load(1e-9, self._last_deadline_s, self._last_deadline_s)
            if isinstance(client, SimEmqClient):
                client.end_schedule()
        # What was asked for last has until its deadline, and what its broker holds no longer.
        ends_at = self.world.now + self.load.deadline_max_s + recovery_s + 2.0
        if self.setup.has_store:
            # A schedule that has not ended would run meanwhile.
            self.run_for(2 * END_S)
        while self.world.now < ends_at and not all(pair.checks.is_empty for pair in pairs):
            self.run_for(TICK_S)
        self._injection.is_over = True
        for pair in pairs:
            pair.checks.check_empty()
        if self.life is not None:
            self.life.look()

    def calm_down(self) -> None:
        """End every fault, start what is dead."""
        self.world.note("the faults are over")
        pairs = self.pairs.values()
        links = [link for pair in pairs for link in pair.peer_links.values()]
        for path in [*self.paths.all, *(link.path for link in links)]:
            path.cuts = path.chokes = 0
            path.extra_s = path.loss = path.duplicates = path.reorders = 0.0
            path.heal()
        for link in links:
            link.heal()
        for asking in [asking for pair in pairs for asking in pair.arbiter_links.values()]:
            asking.heal()
        for process in self._processes:
            process.thaw()
            if process.is_stopping:
                assert not isinstance(process, Attacker)
                process.die()  # its time to stop in good order is over
            self._injection.revive(process)
        for worker in self.workers.values():
            worker.slowness = 1.0
            worker.lie = 0
        if self._injection.key_faults is not None:
            self._injection.key_faults.end()


Make = Callable[..., Simulation]


def play(setup: Setup, *, keep_trace: bool = False, make: Make = Simulation) -> Outcome:
    """Run it to its end or to the first violation."""
    began = time.perf_counter()
    # What a run makes lives as long as the run: looking for garbage meanwhile costs an eighth of the time.
    gc.disable()
    simulation = make(setup, keep_trace=keep_trace)
    violation, rule = None, ""
    try:
        simulation.run()
    except Violation as error:
        violation, rule = str(error), error.rule
    except Exception as error:  # noqa: BLE001 - nothing that a remote party does may make the product raise
        violation, rule = traceback.format_exc(limit=-6), type(error).__name__
    finally:
        gc.enable()
    counts: Counter[str] = Counter()
    for pair in simulation.pairs.values():
        counts.update(pair.checks.counts)
        counts.update(pair.checks.publications.counts)
        if pair.checks.stored is not None:
            counts.update(pair.checks.stored.counts)
        if pair.checks.guard is not None:
            counts["sent to silent successors"] += pair.checks.guard.silent_successors
    return Outcome(
        setup,
        violation,
        rule,
        simulation.world.digest(),
        simulation.world.now,
        time.perf_counter() - began,
        simulation.world.events,
        dict(sorted(counts.items())),
        max(pair.checks.dual_s_max for pair in simulation.pairs.values()),
        simulation.world.trace or [],
    )


def shrink(
    setup: Setup, *, make: Make = Simulation, say: Callable[[str], object] = lambda text: None
) -> tuple[Setup, Outcome]:
    """Leave out faults as long as the same invariant breaks: halves first, then single ones."""
    outcome = play(setup, make=make)
    assert outcome.violation is not None, "there is nothing to shrink: this run has no violation"
    rule = outcome.rule

    def attempt(faults: Sequence[Fault]) -> Outcome | None:
        candidate = msgspec.structs.replace(setup, faults=tuple(faults))
        result = play(candidate, make=make)
        return result if result.violation is not None and result.rule == rule else None

    faults = list(setup.faults)
    size = max(1, len(faults) // 2)
    while True:
        index, has_shrunk = 0, False
        while index < len(faults):
            smaller = attempt(faults[:index] + faults[index + size :])
            if smaller is None:
                index += size
            else:
                faults = list(smaller.setup.faults)
                outcome, has_shrunk = smaller, True
                say(f"{len(faults)} faults are enough")
        if size == 1 and not has_shrunk:
            return outcome.setup, outcome
        size = max(1, size // 2)
