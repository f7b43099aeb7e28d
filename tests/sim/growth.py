"""A fleet of simulated pairs that grows by one: how its services and requests spread, and what moves.

All pairs, workers and clients are those of the other runs, in virtual time and without faults. The new pair
is added as docs/fleet.md says: workers of what moves at both pairs first, then clients, one after another;
then the old workers leave. Rule (h) holds throughout: a request reaches the pair of its service alone, is
sent once, executed once and answered. ``make sim PAIRS=100`` prints what came of it.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from bstar.fleet import Fleet
from bstar.settings.timing import timing_of
from bstar_client.core.worker.session import WorkerCore
from sim.checks import Checks
from sim.client import Load, SimClient
from sim.dialects import service_asked
from sim.faults import Mood
from sim.network import Frames, Paths
from sim.node import SimNode
from sim.pair import SimPair, small_limits
from sim.setup import FleetSetup, Setup
from sim.worker import SimWorker
from sim.world import World

# Services of a pair on average, and clients that ask for all of them.
SERVICES_PER_PAIR = 4
CLIENTS = 2
CALLS_PER_S = 2.0  # of each client, for each pair
SETTLE_S = 6.0
ASK_S = 20.0
DEADLINE_MIN_S, DEADLINE_MAX_S = 4.0, 8.0


class Spread(msgspec.Struct, frozen=True):
    """What each pair has: its services, and the requests that came to its nodes meanwhile."""

    services: dict[str, int]
    requests: dict[str, int]

    def __str__(self) -> str:
        words = [f"{len(self.services)} pairs"]
        for what, counts in (("services", self.services), ("requests", self.requests)):
            mean = sum(counts.values()) / len(counts)
            words.append(f"{what} per pair {min(counts.values())} to {max(counts.values())}, mean {mean:.1f}")
        return "; ".join(words)


class _Counting(Checks):
    """Counts the messages with requests that reach the pair."""

    heard = 0

    def node_heard(self, node: SimNode, frames: Frames) -> None:
        super().node_heard(node, frames)
        if service_asked(frames) is not None:
            self.heard += 1


class Growth:
    """``pairs`` pairs, and one more that is there but that nobody has been told of yet."""

    def __init__(self, pairs: int, *, seed: int = 1) -> None:
        self.world = World(seed)
        names = tuple(f"pair{number}" for number in range(1, pairs + 2))
        self.old = FleetSetup(names[:-1], (), (), ()).fleet
        self.new = FleetSetup(names, (), (), ()).fleet
        self.added = names[-1]
        self.services = [f"service-{number}" for number in range(pairs * SERVICES_PER_PAIR)]
        self.moved = {each for each in self.services if self.new.pair_of(each).name == self.added}
        self._setup = Setup(
            seed,
            Mood.QUIET,
            "guide",
            is_durable=True,
            is_probing=True,
            on_dual_active="yield",
            pipe_max=math.inf,
            delay_s=0.0005,
            jitter_s=0.001,
            workers=(),
            clients=(),
            calls_per_s=0.0,
            storm_s=0.0,
            faults=(),
        )
        self._timing = timing_of(self._setup.profile)
        self._paths = Paths(self.world, self._setup.delay_s, self._setup.jitter_s)
        # A pair of chance may have several times as many as the mean.
        limits = msgspec.structs.replace(small_limits(self._timing), services_max=100, workers_max=100)
        self.pairs = {
            name: SimPair(
                self.world, self._paths, self._setup, self._timing, name, checks=_Counting, limits=limits
            )
            for name in names
        }
        for pair in self.pairs.values():
            pair.checks.is_struck = False
            pair.checks.begins_until = SETTLE_S
        self._workers = [self._worker(service, self.old) for service in self.services]
        self._clients: list[SimClient] = []

    def run(self) -> tuple[Spread, Spread]:
        """Let it be asked, grow, and be asked again; how things were spread before and afterwards."""
        for pair in self.pairs.values():
            for node in pair.nodes:
                node.start()
        for worker in self._workers:
            worker.start()
        self._tell(self.old)
        self._run(SETTLE_S)
        self._clients = [self._client(number, self.old) for number in range(CLIENTS)]
        before = self._asked(self.old)

        at_both = [self._worker(service, self.new) for service in sorted(self.moved)]
        for worker in at_both:
            worker.start()
        self._tell(self.new, self.old)
        self._run(SETTLE_S)
        for number, old in enumerate(list(self._clients)):
            self._clients[number] = self._client(CLIENTS + number, self.new)
            old.load = Load(1e-9, 1.0, 1.0)  # its last calls end
            self._run(DEADLINE_MAX_S)
            old.close()
        for worker in self._workers:
            if worker.service in self.moved:
                worker.stop()
        self._tell(self.new)
        self._run(SETTLE_S)
        after = self._asked(self.new)

        for client in self._clients:
            client.load = Load(1e-9, 1.0, 1.0)
        self._run(DEADLINE_MAX_S)
        for pair in self.pairs.values():
            pair.checks.check_empty()
        return before, after

    @property
    def counts(self) -> Counter[str]:
        """What happened, at all pairs together."""
        counts: Counter[str] = Counter()
        for pair in self.pairs.values():
            counts.update(pair.checks.counts)
        return counts

    def _worker(self, service: str, fleet: Fleet) -> SimWorker:
        pair = self.pairs[_name(fleet, service)]
        worker = SimWorker(
            self.world,
            f"{service} at {pair.name}",
            pair.checks,
            core_class=WorkerCore,
            dialect="native",
            credit=4,
            handler_s=0.002,
            service=service,
            pair=pair.name,
        )
        self._paths.link(worker, pair.nodes)
        return worker

    def _client(self, number: int, fleet: Fleet) -> SimClient:
        pairs = [self.pairs[pair.name] for pair in fleet.pairs if pair.name is not None]
        client = SimClient(
            self.world,
            f"client{number}",
            Load(CALLS_PER_S * len(pairs), DEADLINE_MIN_S, DEADLINE_MAX_S),
            [pair.checks for pair in pairs],
            dialect="native",
            settle_s=self._timing.failover_timeout_s,
            places={service: fleet.place(service.encode()) for service in self.services},
        )
        self._paths.link(client, [node for pair in pairs for node in pair.nodes])
        client.start()
        return client

    def _tell(self, *fleets: Fleet) -> None:
        """Which services may be asked for where, from now on."""
        for pair in self.pairs.values():
            pair.checks.services = set()
        for fleet in fleets:
            for service in self.services:
                allowed = self.pairs[_name(fleet, service)].checks.services
                assert allowed is not None
                allowed.add(service.encode())

    def _asked(self, fleet: Fleet) -> Spread:
        """What comes to each pair while clients ask for a while."""
        heard = {name: _heard(pair) for name, pair in self.pairs.items()}
        self._run(ASK_S)
        services = Counter(_name(fleet, service) for service in self.services)
        names = [pair.name for pair in fleet.pairs if pair.name is not None]
        return Spread(
            {name: services[name] for name in names},
            {name: _heard(self.pairs[name]) - heard[name] for name in names},
        )

    def _run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)
        for pair in self.pairs.values():
            pair.checks.clients = self._clients
            pair.checks.tick()


def _name(fleet: Fleet, service: str) -> str:
    name = fleet.pair_of(service).name
    assert name is not None
    return name


def _heard(pair: SimPair) -> int:
    assert isinstance(pair.checks, _Counting)
    return pair.checks.heard
