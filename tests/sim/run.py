"""One run from one seed: a pair, its clients and workers, a storm of faults, and the calm after it."""

from __future__ import annotations

import gc
import math
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from bstar.pair import _LAST_WORD_S
from bstar.settings.schema import ProfileName, Timing, timing_of
from bstar.star import Role
from bstar.star.settings import OnDualActive
from bstar_broker.core import BrokerSettings
from bstar_client.core.worker_session import WorkerCore
from sim.arbiter import NAME as ARBITER
from sim.arbiter import ArbiterLink, SimArbiter
from sim.checks import Checks, Violation
from sim.client import Load, SimClient
from sim.dialects import Dialect
from sim.faults import Fault, Kind, Mood, plan
from sim.network import Link, LinkOwner, Path, PeerLink
from sim.node import RESTART_MAX_S, SimNode
from sim.worker import SimWorker
from sim.world import World

Startable = SimNode | SimWorker | SimClient | SimArbiter

__all__ = ["Outcome", "Setup", "Simulation", "play", "setup_of", "shrink"]

STORM_TIMEOUTS = 220
TICK_S = 0.5
# Of all runs, those in which the pair has an arbiter.
ARBITER_SHARE = 1 / 3


class Setup(msgspec.Struct, frozen=True):
    """Everything about a run that is decided before it begins."""

    seed: int
    mood: Mood
    profile: ProfileName
    is_durable: bool
    is_probing: bool  # expire_on_refused
    on_dual_active: OnDualActive
    pipe_max: float  # messages that wait in a connection before its node cannot send
    delay_s: float
    jitter_s: float
    workers: tuple[tuple[str, Dialect, int, float], ...]  # name, dialect, credit, seconds per step
    clients: tuple[tuple[str, Dialect], ...]  # name, dialect
    calls_per_s: float
    storm_s: float
    faults: tuple[Fault, ...]
    has_arbiter: bool = False

    @property
    def is_plain(self) -> bool:
        """Do any peers speak plain MDP, which knows neither epochs nor errors?"""
        return any(peer[1] != "native" for peer in (*self.workers, *self.clients))

    def __str__(self) -> str:
        words = [
            self.mood.value,
            f"profile {self.profile}",
            f"{'with' if self.is_durable else 'without'} state directories",
            f"refused connections prove {'death' if self.is_probing else 'nothing'}",
            f"both active: {self.on_dual_active}",
            f"{'an' if self.has_arbiter else 'no'} arbiter",
            f"pipes of {self.pipe_max:g}",
            f"{len(self.workers)} workers",
            f"{len(self.clients)} clients{', some speak plain MDP' if self.is_plain else ''}",
        ]
        return f"seed {self.seed}: {', '.join(words)}"


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


def setup_of(
    seed: int, *, mood: Mood | None = None, profile: ProfileName | None = None, arbiter: bool | None = None
) -> Setup:
    """What this seed stands for."""
    rng = random.Random(f"{seed}/setup")
    drawn_mood = rng.choices(list(Mood), (2, 4, 3, 4))[0]
    drawn_profile: ProfileName = rng.choices(("lan", "guide", "wan"), (6, 1, 1))[0]
    mood, profile = mood or drawn_mood, profile or drawn_profile
    timing = timing_of(profile)
    is_plain = rng.random() < 0.25
    worker_dialects, client_dialects = _dialects(rng, is_plain), _dialects(rng, is_plain)
    workers = tuple(
        (
            f"worker{number}",
            worker_dialects[number - 1],
            rng.choice((1, 1, 2, 4)),
            rng.choice((0.002, 0.01, 0.05)),
        )
        for number in range(1, rng.randint(2, 4) + 1)
    )
    clients = tuple(
        (f"client{number}", client_dialects[number - 1]) for number in range(1, rng.randint(2, 4) + 1)
    )
    has_arbiter = random.Random(f"{seed}/arbiter").random() < ARBITER_SHARE if arbiter is None else arbiter
    storm_s = STORM_TIMEOUTS * timing.failover_timeout_s
    faults = plan(
        random.Random(f"{seed}/faults"),
        mood,
        until=storm_s,
        timeout_s=timing.failover_timeout_s,
        heartbeat_s=timing.heartbeat_interval_s,
        workers=[worker[0] for worker in workers],
        clients=[client[0] for client in clients],
        has_arbiter=has_arbiter,
    )
    return Setup(
        seed,
        mood,
        profile,
        rng.random() < 0.5,
        rng.random() < 0.8,
        rng.choices(("yield", "exit"), (4, 1))[0],
        rng.choice((4.0, 35.0, math.inf)) if mood is not Mood.QUIET else math.inf,
        rng.choice((0.0001, 0.0005, 0.002)),
        rng.choice((0.0002, 0.002, 0.01)),
        workers,
        clients,
        rng.choice((1.0, 2.0, 4.0)) * 0.3 / timing.failover_timeout_s,
        storm_s,
        tuple(faults),
        has_arbiter,
    )


def _dialects(rng: random.Random, is_plain: bool) -> list[Dialect]:
    """Of four peers; one or two of them speak plain MDP, if any do."""
    plain: list[Dialect] = ["mdp01", "mdp02"]
    rng.shuffle(plain)
    del plain[rng.randint(1, 2) if is_plain else 0 :]
    return [*plain, *(["native"] * (4 - len(plain)))]  # type: ignore[list-item]


class Simulation:
    """The pair of a setup, ready to run; scenarios use it step by step."""

    def __init__(
        self,
        setup: Setup,
        *,
        keep_trace: bool = False,
        checks: type[Checks] = Checks,
        node_class: type[SimNode] = SimNode,
        worker_core: type[WorkerCore] = WorkerCore,
    ) -> None:
        self.setup = setup
        self.timing: Timing = timing_of(setup.profile)
        self.world = World(setup.seed, keep_trace=keep_trace)
        limits = _limits(self.timing)
        self.checks = checks(self.world, setup.mood, limits)
        timeout_s = self.timing.failover_timeout_s
        self.primary, self.backup = (
            node_class(
                self.world,
                role,
                self.timing,
                limits,
                self.checks,
                is_durable=setup.is_durable,
                on_dual_active=setup.on_dual_active,
                pipe_max=setup.pipe_max,
            )
            for role in (Role.PRIMARY, Role.BACKUP)
        )
        self.nodes = (self.primary, self.backup)
        self.paths: dict[tuple[str, str], Path] = {}
        self.peer_links: dict[str, PeerLink] = {}
        for publisher, subscriber in (self.nodes, self.nodes[::-1]):
            path = Path(self.world, f"peer {publisher.name}", setup.delay_s, setup.jitter_s)
            link = PeerLink(publisher, subscriber, path, self.timing, is_probing=setup.is_probing)
            publisher.publisher = subscriber.subscriber = link
            self.peer_links[publisher.name] = link
        self.arbiter = SimArbiter(self.world) if setup.has_arbiter else None
        self.arbiter_links: dict[str, ArbiterLink] = {}
        if self.arbiter is not None:
            for node in self.nodes:
                node.arbiter_link = self.arbiter_links[node.name] = ArbiterLink(
                    node, self.arbiter, self._path(node.name, ARBITER), self._path(ARBITER, node.name)
                )
        self.checks.has_arbiter = setup.has_arbiter
        # Until a subscriber is connected again after a fault of the link, and one more expiry.
        self.settle_s = 3 * timeout_s + 2 * max(0.2, timeout_s) + self.timing.heartbeat_interval_s
        self.checks.travel_s_max = self._travel_s_max()
        self.workers = {
            name: SimWorker(
                self.world,
                name,
                self.checks,
                core_class=worker_core,
                dialect=dialect,
                credit=credit,
                handler_s=handler_s,
            )
            for name, dialect, credit, handler_s in setup.workers
        }
        # A call must be able to outlast a failover, and the time in which a dead worker is found.
        load = Load(setup.calls_per_s, 4 * timeout_s, 20 * timeout_s + 15.0)
        self.clients = {
            name: SimClient(self.world, name, load, self.checks, dialect=dialect, settle_s=1.2 * timeout_s)
            for name, dialect in setup.clients
        }
        self.load = load
        self.owners: dict[str, LinkOwner] = {**self.workers, **self.clients}
        for owner in self.owners.values():
            for index, node in enumerate(self.nodes):
                there, back = self._path(owner.name, node.name), self._path(node.name, owner.name)
                owner.links.append(Link(owner, index, node, there, back))
        self.checks.nodes = self.nodes
        self.checks.settle_s = self.settle_s
        self.checks.clients = list(self.clients.values())
        self.checks.is_fenced = all(worker.is_native for worker in self.workers.values())
        worker_expiry_s = self.timing.worker_heartbeat_interval_s * self.timing.worker_liveness
        plain_expiry_s = self.timing.mdp_heartbeat_interval_s * self.timing.mdp_liveness
        # Half-open connections are found by heartbeats, then workers come back after a pause.
        self.recovery_s = 10 * timeout_s + 3 * worker_expiry_s + 8.0
        if setup.is_plain:
            self.recovery_s += 3 * plain_expiry_s + 10.0
        self.checks.recovery_s = self.recovery_s
        self.settle_bound_s = 10 * timeout_s + 3.0
        if setup.on_dual_active == "exit":
            # The link heals, both find the other active, say a last word and are started again.
            self.settle_bound_s += _LAST_WORD_S + RESTART_MAX_S
        self._is_over = False

    def _path(self, source: str, target: str) -> Path:
        path = Path(self.world, f"{source} to {target}", self.setup.delay_s, self.setup.jitter_s)
        self.paths[source, target] = path
        return path

    def _travel_s_max(self) -> float:
        paths = [link.path for link in self.peer_links.values()]
        return max(path.travel_max_s for path in paths) + 0.002

    # --- the course of a run ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, in an order of chance."""
        rng = self.world.rng("start")
        processes: list[Startable] = [*self.nodes, *self.workers.values(), *self.clients.values()]
        if self.arbiter is not None:
            processes.append(self.arbiter)
        rng.shuffle(processes)
        for process in processes:
            # A fault may have come first and have started it again.
            self.world.at(rng.random() * self.timing.failover_timeout_s, partial(self._revive, process))
        self._tick()

    def _tick(self) -> None:
        self.checks.tick()
        if not self._is_over:
            self.world.after(TICK_S, self._tick)

    def run(self) -> None:
        """The storm, then the calm."""
        self.start()
        for fault in self.setup.faults:
            self.inject(fault)
        self.run_for(self.setup.storm_s)
        self.calm_down()
        self.finish()

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now + seconds)

    def finish(self) -> None:
        """The faults are over: everything must converge, every call be answered, every table be empty."""
        began = self.world.now
        self.checks.answers_due_from = began + max(self.settle_bound_s, self.recovery_s)
        self.run_for(self.settle_bound_s)
        self.checks.check_settled()
        self.run_for(self.recovery_s + 10 * self.timing.failover_timeout_s)
        for client in self.clients.values():
            client.load = Load(1e-9, 1.0, 1.0)
        # What was asked for last has until its deadline, and what its broker holds no longer.
        ends_at = self.world.now + self.load.deadline_max_s + self.recovery_s + 2.0
        while self.world.now < ends_at and not self.checks.is_empty:
            self.run_for(TICK_S)
        self._is_over = True
        self.checks.check_empty()

    def calm_down(self) -> None:
        """End every fault, start what is dead."""
        self.world.note("the faults are over")
        for path in [*self.paths.values(), *(link.path for link in self.peer_links.values())]:
            path.cuts = path.chokes = 0
            path.extra_s = path.loss = path.duplicates = path.reorders = 0.0
            path.heal()
        for link in self.peer_links.values():
            link.heal()
        for asking in self.arbiter_links.values():
            asking.heal()
        processes: list[Startable] = [*self.nodes, *self.workers.values(), *self.clients.values()]
        if self.arbiter is not None:
            processes.append(self.arbiter)
        for process in processes:
            process.thaw()
            if process.is_stopping:
                process.die()  # its time to stop in good order is over
            self._revive(process)
        for worker in self.workers.values():
            worker.slowness = 1.0

    # --- faults -------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Let it happen in its time."""
        self.world.at(fault.at, partial(self._begin, fault))

    def _begin(self, fault: Fault) -> None:
        if self._is_over:
            return
        self.world.note(f"fault {fault.kind.name} {fault.target} {fault.duration_s:.3f} s {fault.amount:.3f}")
        self.checks.counts["faults"] += 1
        self.checks.counts[f"fault {fault.kind.name}"] += 1
        until = self.world.now + fault.duration_s
        if self.setup.mood is not Mood.QUIET:
            self.checks.troubles.append((self.world.now, until))
        end = self._start_fault(fault)
        if end is not None:
            self.world.at(until, end)

    def _start_fault(self, fault: Fault) -> Callable[[], None] | None:
        name = fault.kind.name
        if name.startswith("PEER"):
            return self._start_peer_fault(fault)
        if name.startswith("ARBITER") or fault.kind is Kind.ISOLATED:
            return self._start_arbiter_fault(fault)
        if name.startswith("NET") or fault.kind is Kind.SPLIT:
            return self._start_net_fault(fault)
        if name.startswith("WORKER"):
            return self._start_worker_fault(fault, self.workers[fault.target])
        if name.startswith("CLIENT"):
            return self._start_client_fault(fault, self.clients[fault.target])
        return self._start_node_fault(fault, self.primary if fault.target == "primary" else self.backup)

    def _start_node_fault(self, fault: Fault, node: SimNode) -> Callable[[], None] | None:
        match fault.kind:
            case Kind.STALL:
                node.freeze()
                # In every fourth case it is frozen again in the middle of what waited.
                again_s = max(0.0, fault.amount - 0.75) * 20 * self.timing.failover_timeout_s
                if again_s and self.setup.mood is not Mood.QUIET:
                    return partial(node.thaw_for_a_moment, again_s)
                return node.thaw
            case Kind.JUMP:
                node.jump(fault.amount)
                return None
            case Kind.HANDOVER:
                node.handover()
                return None
            case Kind.STOP:
                node.stop()
            case _:
                node.die(with_host=fault.kind is Kind.DARK)
        if fault.kind is Kind.FORGET and node.disk is not None:
            node.disk = 0
        return partial(self._revive, node)

    def _start_worker_fault(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        match fault.kind:
            case Kind.WORKER_STALL:
                worker.freeze()
                return worker.thaw
            case Kind.WORKER_SLOW:
                worker.slowness = fault.amount
                return lambda: setattr(worker, "slowness", 1.0)
            case Kind.WORKER_STOP:
                worker.stop()
            case _:
                worker.die(with_host=fault.kind is Kind.WORKER_DARK)
        return partial(self._revive, worker)

    def _start_client_fault(self, fault: Fault, client: SimClient) -> Callable[[], None]:
        if fault.kind is Kind.CLIENT_STALL:
            client.freeze()
            return client.thaw
        if fault.kind is Kind.CLIENT_CLOSE:
            client.close()
        else:
            client.die()
        if not client.is_alive:
            self.checks.client_gone(client)
        return partial(self._revive, client)

    def _revive(self, process: Startable) -> None:
        if process.is_stopping:
            self.world.after(self.timing.heartbeat_interval_s, partial(self._revive, process))
        elif not process.is_alive:
            process.start()

    def _start_peer_fault(self, fault: Fault) -> Callable[[], None]:
        links = [self.peer_links[fault.target]]
        if fault.kind in (Kind.PEER_CUT, Kind.PEER_JITTER, Kind.PEER_LOSS):
            links = list(self.peer_links.values())
        paths = [link.path for link in links]
        if fault.kind not in (Kind.PEER_JITTER, Kind.PEER_REPEAT):
            self.checks.peer_unsound(self.world.now + fault.duration_s + self.settle_s)
        for link in links:
            path = link.path
            match fault.kind:
                case Kind.PEER_CUT | Kind.PEER_MUTE:
                    path.cuts += 1
                    link.expect_silence()
                case Kind.PEER_CHOKE:
                    path.chokes += 1
                case Kind.PEER_LOSS:
                    path.loss = fault.amount
                case Kind.PEER_JITTER:
                    path.extra_s = fault.amount
                    link.slow_down()
                case Kind.PEER_REPEAT:
                    path.duplicates = fault.amount
                case Kind.PEER_RESET:
                    link.drop()
                case _:
                    path.reorders = fault.amount
        self.checks.travel_s_max = max(self.checks.travel_s_max, self._travel_s_max())

        def end() -> None:
            for path in paths:
                match fault.kind:
                    case Kind.PEER_CUT | Kind.PEER_MUTE:
                        path.cuts = max(0, path.cuts - 1)
                    case Kind.PEER_CHOKE:
                        path.chokes = max(0, path.chokes - 1)
                    case Kind.PEER_LOSS:
                        path.loss = 0.0
                    case Kind.PEER_JITTER:
                        path.extra_s = 0.0
                    case Kind.PEER_REPEAT:
                        path.duplicates = 0.0
                    case Kind.PEER_REORDER:
                        path.reorders = 0.0
                    case _:
                        pass
            for link in links:
                link.heal()

        return end

    def _start_arbiter_fault(self, fault: Fault) -> Callable[[], None]:
        arbiter = self.arbiter
        assert arbiter is not None
        if fault.kind is Kind.ARBITER_CRASH:
            arbiter.die()
            return partial(self._revive, arbiter)
        if fault.kind is Kind.ARBITER_STALL:
            arbiter.freeze()
            return arbiter.thaw
        link = self.arbiter_links[fault.target]
        paths = [link.there, link.back]
        if fault.kind is Kind.ARBITER_LOSS:
            for path in paths:
                path.loss = fault.amount / 2
        elif fault.kind is Kind.ARBITER_SLOW:
            for path in paths:
                path.extra_s = fault.amount * self.timing.failover_timeout_s / 2
                path.reorders = fault.amount / 2
        else:
            paths = {Kind.ARBITER_DEAF: [link.back], Kind.ARBITER_MUTE: [link.there]}.get(fault.kind, paths)
            for path in paths:
                path.cuts += 1
        end_peer = (
            self._start_peer_fault(msgspec.structs.replace(fault, kind=Kind.PEER_CUT))
            if fault.kind is Kind.ISOLATED
            else None
        )

        def end() -> None:
            for path in paths:
                if fault.kind is Kind.ARBITER_LOSS:
                    path.loss = 0.0
                elif fault.kind is Kind.ARBITER_SLOW:
                    path.extra_s = path.reorders = 0.0
                else:
                    path.cuts = max(0, path.cuts - 1)
            link.heal()
            if end_peer is not None:
                end_peer()

        return end

    def _start_net_fault(self, fault: Fault) -> Callable[[], None] | None:
        if fault.kind is Kind.SPLIT:
            return self._split(fault)
        if fault.kind is Kind.NET_LOSS:
            paths = [path for ends, path in self.paths.items() if fault.target in ends]
            for path in paths:
                path.loss = fault.amount / 2

            def end() -> None:
                for path in paths:
                    path.loss = 0.0

            return end
        owner, node = fault.target.split("|")
        if fault.kind is Kind.NET_RESET:
            self._link(owner, node).reset()
            return None
        ends = {(owner, node), (node, owner)}
        if fault.kind is Kind.NET_DEAF:
            ends = {(node, owner)}
        elif fault.kind is Kind.NET_MUTE:
            ends = {(owner, node)}
        return self.cut(ends)

    def _split(self, fault: Fault) -> Callable[[], None]:
        """Half of the others see one node only, half the other, and the nodes do not see each other."""
        rng = self.world.rng(f"split {fault.at}")
        ends: set[tuple[str, str]] = set()
        for owner in self.owners:
            node = rng.choice(self.nodes).name
            ends |= {(owner, node), (node, owner)}
        end = self.cut(ends)
        end_arbiter = None
        if self.arbiter is not None:
            # It is in one of the halves.
            cut_off = rng.choice(("primary", "backup"))
            end_arbiter = self._start_arbiter_fault(
                msgspec.structs.replace(fault, kind=Kind.ARBITER_CUT, target=cut_off)
            )
        end_peer = self._start_peer_fault(
            msgspec.structs.replace(fault, kind=Kind.PEER_CUT, target="primary")
        )

        def heal() -> None:
            end()
            end_peer()
            if end_arbiter is not None:
                end_arbiter()

        return heal

    def _link(self, owner: str, node: str) -> Link:
        return next(link for link in self.owners[owner].links if link.node.name == node)

    def cut(self, ends: set[tuple[str, str]]) -> Callable[[], None]:
        """Let nothing through between these; call what comes back to heal."""
        paths = [self.paths[pair] for pair in sorted(ends)]
        for path in paths:
            path.cuts += 1
        for pair in sorted(ends):
            owner, node = pair if pair[0] in self.owners else pair[::-1]
            self._link(owner, node).expect_silence()

        def heal() -> None:
            for path in paths:
                path.cuts = max(0, path.cuts - 1)
                path.heal()

        return heal


def _limits(timing: Timing) -> BrokerSettings:
    """Small tables, so that they get full."""
    return BrokerSettings(
        worker_heartbeat_interval_s=timing.worker_heartbeat_interval_s,
        worker_liveness=timing.worker_liveness,
        mdp_heartbeat_interval_s=timing.mdp_heartbeat_interval_s,
        mdp_liveness=timing.mdp_liveness,
        mdp_busy_timeout_s=timing.mdp_heartbeat_interval_s * timing.mdp_liveness,
        request_ttl_s=timing.request_ttl_s,
        service_ttl_s=timing.service_ttl_s,
        services_max=4,
        workers_max=12,
        queue_length_max=30,
        requests_per_client_max=25,
    )


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
    counts: Counter[str] = simulation.checks.counts
    return Outcome(
        setup,
        violation,
        rule,
        simulation.world.digest(),
        simulation.world.now,
        time.perf_counter() - began,
        simulation.world.events,
        dict(sorted(counts.items())),
        simulation.checks.dual_s_max,
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
