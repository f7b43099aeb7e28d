"""What a seed stands for: everything about a run that is decided before it begins."""

from __future__ import annotations

import math
import random
from collections import Counter

import msgspec

from bstar.fleet import Fleet, Pair
from bstar.settings.timing import ProfileName, Timing, timing_of
from bstar.star.settings import OnDualActive
from sim.dialects import Dialect
from sim.faults import Fault, Mood, attacks, calm_plan, lies, plan

STORM_TIMEOUTS = 220
# Of all runs, those in which pairs have an arbiter, those of the profile auto, those with several pairs, and
# those with keys. Of the others with one pair, those with Pirates; of the rest, those with peers of EventMQ.
ARBITER_SHARE = 1 / 3
ADAPTIVE_SHARE = 1 / 2
FLEET_SHARE = 1 / 8
# Of all runs, those whose native clients also ask each worker of a service, and how often they do.
ASK_ALL_SHARE = 1 / 2
ASK_ALL = 0.08
KEYS_SHARE = 1 / 2
# Of all dense runs with one pair, those whose service has a limit on what workers have at once.
LIMIT_SHARE = 1 / 4
PIRATES_SHARE = 1 / 3
EMQ_SHARE = 1 / 3
# Of the runs with peers of EventMQ.
STORE_SHARE = 1 / 2
FRONTS: dict[str, str] = {"ppp": "Pirates", "emq": "peers of EventMQ"}
PAIRS_MAX = 4
SERVICES_OF_A_PAIR_MAX = 2


class FleetSetup(msgspec.Struct, frozen=True):
    """Several pairs. Faults befall the nodes and workers of those that are ``struck``, and clients."""

    pairs: tuple[str, ...]
    pins: tuple[tuple[str, str], ...]
    services: tuple[str, ...]  # of each worker
    struck: tuple[str, ...]

    @property
    def fleet(self) -> Fleet:
        """As clients and workers know it; the names of nodes stand for their endpoints."""
        pairs = [Pair((names_of(name)[0], names_of(name)[1]), name) for name in self.pairs]
        return Fleet(pairs, pins=dict(self.pins))


class Setup(msgspec.Struct, frozen=True):
    """Everything about a run that is decided before it begins. ``fleet`` None: one pair."""

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
    fleet: FleetSetup | None = None
    has_keys: bool = False
    has_store: bool = False
    # How often a native client also asks each worker of a service.
    ask_all: float = 0.0
    # So many requests may be with workers at once; None: any number.
    running_max: int | None = None
    # A calm run: all times between processes are so many times those of the profile. 0: a dense run.
    slowness: float = 0.0

    @property
    def is_calm(self) -> bool:
        """Whether it is hours of a pair's life, with a fault now and then."""
        return self.slowness > 0.0

    @property
    def timing(self) -> Timing:
        """The profile's, or slower: messages between nodes, and between nodes and workers. Published workers
        are what they are.
        """
        timing = timing_of(self.profile)
        names = [
            "heartbeat_interval_s", "failover_timeout_s", "failover_timeout_max_s",
            "worker_heartbeat_interval_s",
        ]  # fmt: skip
        if all(dialect == "native" for _, dialect, *_ in self.workers):
            names.append("mdp_heartbeat_interval_s")
        times = self.slowness or 1.0
        return msgspec.structs.replace(timing, **{name: times * getattr(timing, name) for name in names})

    @property
    def is_plain(self) -> bool:
        """Does anybody speak a protocol that knows neither epochs nor errors?"""
        return any(peer[1] != "native" for peer in (*self.workers, *self.clients))

    @property
    def fronts(self) -> tuple[str, ...]:
        """The fronts through which anybody comes."""
        spoken = {peer[1] for peer in (*self.workers, *self.clients)}
        return tuple(front for front in FRONTS if front in spoken)

    def __str__(self) -> str:
        words = [
            self.mood.value,
            f"profile {self.profile}",
            f"{'with' if self.is_durable else 'without'} state directories",
            f"refused connections prove {'death' if self.is_probing else 'nothing'}",
            f"both active: {self.on_dual_active}",
            f"{'an' if self.has_arbiter else 'no'} arbiter",
            f"{'keys' if self.has_keys else 'no keys'}",
            f"pipes of {self.pipe_max:g}",
            f"{len(self.workers)} workers",
            f"{len(self.clients)} clients{', some speak plain MDP' if self.is_plain else ''}",
            *(f"{FRONTS[front]} among them" for front in self.fronts),
            *(["a durable store"] if self.has_store else []),
            *(["clients ask all workers"] if self.ask_all else []),
            *([f"at most {self.running_max} requests with workers"] if self.running_max else []),
        ]
        if self.is_calm:
            words.append(f"{self.slowness:g} times slower, {self.storm_s / 3600:g} hours")
        if self.fleet is not None:
            services = len(set(self.fleet.services))
            words.append(f"{len(self.fleet.pairs)} pairs with {services} services")
            words.append(f"faults strike {' and '.join(self.fleet.struck)}")
        return f"seed {self.seed}: {', '.join(words)}"


def names_of(pair: str) -> tuple[str, str, str]:
    """The names of a pair's primary, backup and arbiter; those of a pair without a name have no beginning."""
    begin = f"{pair}." if pair else ""
    return f"{begin}primary", f"{begin}backup", f"{begin}arbiter"


def setup_of(
    seed: int,
    *,
    mood: Mood | None = None,
    profile: ProfileName | None = None,
    arbiter: bool | None = None,
    fleet: bool | None = None,
    keys: bool | None = None,
    pirates: bool | None = None,
    emq: bool | None = None,
    store: bool | None = None,
    limit: bool | None = None,
) -> Setup:
    """What this seed stands for."""
    rng = random.Random(f"{seed}/setup")
    drawn_mood = rng.choices(list(Mood), (2, 4, 3, 4))[0]
    drawn_profile: ProfileName = rng.choices(("lan", "guide", "wan"), (6, 1, 1))[0]
    # A draw of its own, so that a seed stands for what it stood for otherwise.
    if random.Random(f"{seed}/adaptive").random() < ADAPTIVE_SHARE:
        drawn_profile = "auto"
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
        nodes=names_of("")[:2],
        arbiter=names_of("")[2] if has_arbiter else None,
        workers=[worker[0] for worker in workers],
        clients=[client[0] for client in clients],
    )
    faults += lies(
        random.Random(f"{seed}/lies"),
        mood,
        until=storm_s,
        timeout_s=timing.failover_timeout_s,
        nodes=names_of("")[:2],
        workers=[name for name, dialect, *_ in workers if dialect == "native"] or [workers[0][0]],
    )
    faults.sort(key=lambda fault: fault.at)
    setup = Setup(
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
        ask_all=ASK_ALL if random.Random(f"{seed}/ask all").random() < ASK_ALL_SHARE else 0.0,
    )
    rng = random.Random(f"{seed}/fleet")
    is_fleet = rng.random() < FLEET_SHARE
    if is_fleet if fleet is None else fleet:
        setup = _with_pairs(setup, rng)
    elif random.Random(f"{seed}/running max").random() < LIMIT_SHARE if limit is None else limit:
        setup = _with_limit(setup)
    rng = random.Random(f"{seed}/keys")
    has_keys = rng.random() < KEYS_SHARE
    if has_keys if keys is None else keys:
        return _with_keys(setup, rng)
    rng = random.Random(f"{seed}/pirates")
    has_pirates = rng.random() < PIRATES_SHARE
    if setup.fleet is not None:
        return setup
    if has_pirates and not emq if pirates is None else pirates:
        return _with_front("ppp", setup, rng)
    rng = random.Random(f"{seed}/emq")
    has_emq = rng.random() < EMQ_SHARE
    if not (has_emq if emq is None else emq):
        return setup
    has_store = random.Random(f"{seed}/store").random() < STORE_SHARE
    setup = _with_front("emq", setup, rng)
    return msgspec.structs.replace(setup, has_store=has_store if store is None else store)


# A calm run: how long it is, how far apart its faults are, and how often its clients ask.
CALM_HOURS = (6.0, 12.0, 24.0, 48.0)
CALM_GAPS_S = (600.0, 1_800.0, 7_200.0)
CALM_CALLS_PER_S = (1 / 300, 1 / 100, 1 / 30)
# The slower, the fewer messages an hour has. A worker's expiry must stay below ``request_ttl_s``.
CALM_SLOWNESS = (3.0, 5.0, 7.0)
# Lies and attacks are so many times farther apart.
CALM_PACE = 100.0


def calm_setup_of(
    seed: int, *, mood: Mood | None = None, arbiter: bool | None = None, keys: bool | None = None
) -> Setup:
    """Hours of one pair's life: one or two workers and clients, and a fault now and then."""
    rng = random.Random(f"{seed}/calm")
    drawn_mood = rng.choice((Mood.PROCESSES, Mood.LINKS, Mood.STORM))
    mood = drawn_mood if mood in (None, Mood.QUIET) else mood
    profile: ProfileName = rng.choice(("guide", "wan"))
    setup = setup_of(
        seed, mood=mood, profile=profile, arbiter=arbiter, fleet=False, keys=False, pirates=False, emq=False,
        limit=False,
    )  # fmt: skip
    setup = msgspec.structs.replace(
        setup,
        slowness=rng.choice(CALM_SLOWNESS),
        storm_s=3600 * rng.choice(CALM_HOURS),
        workers=setup.workers[: rng.randint(1, 2)],
        clients=setup.clients[: rng.randint(1, 2)],
    )
    timing, until = setup.timing, setup.storm_s
    workers = [worker[0] for worker in setup.workers]
    faults = calm_plan(
        rng,
        mood,
        until=until,
        gap_s=rng.choice(CALM_GAPS_S),
        timeout_s=timing.failover_timeout_s,
        heartbeat_s=timing.heartbeat_interval_s,
        nodes=names_of("")[:2],
        arbiter=names_of("")[2] if setup.has_arbiter else None,
        workers=workers,
        clients=[client[0] for client in setup.clients],
    )
    faults += lies(
        rng,
        mood,
        until=until,
        timeout_s=timing.failover_timeout_s,
        nodes=names_of("")[:2],
        workers=workers,
        pace=CALM_PACE,
    )
    setup = msgspec.structs.replace(
        setup,
        calls_per_s=rng.choice(CALM_CALLS_PER_S),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )
    has_keys = rng.random() < KEYS_SHARE
    return _with_keys(setup, rng) if (has_keys if keys is None else keys) else setup


def _with_limit(setup: Setup) -> Setup:
    """The same; half of what its workers take may be with them at once."""
    # Handlers must often outlive a node, and calls must not wait for nothing but their turn.
    return msgspec.structs.replace(
        setup,
        workers=tuple((*worker[:3], 0.3) for worker in setup.workers),
        calls_per_s=setup.calls_per_s / 8,
        running_max=max(2, sum(credit for _, _, credit, _ in setup.workers) // 2),
    )


def _with_front(dialect: Dialect, setup: Setup, rng: random.Random) -> Setup:
    """The same; one worker or more and one client or more come through this front."""
    # Workers with credit 1 and slow handlers would let calls wait for nothing but their turn.
    workers = [(*worker[:3], min(worker[3], 0.01)) for worker in setup.workers]
    clients = list(setup.clients)
    for at in rng.sample(range(len(workers)), rng.randint(1, len(workers))):
        name, _, credit, handler_s = workers[at]
        workers[at] = (name, dialect, 1 if dialect == "ppp" else credit, handler_s)
    for at in rng.sample(range(len(clients)), rng.randint(1, len(clients))):
        clients[at] = (clients[at][0], dialect)
    return msgspec.structs.replace(setup, workers=tuple(workers), clients=tuple(clients))


def attackers_of(setup: Setup) -> list[str]:
    """The outsiders of a run with keys, by name: for each pair a client and a worker of another service."""
    pairs = ("",) if setup.fleet is None else setup.fleet.pairs
    begins = [f"{pair}." if pair else "" for pair in pairs]
    return [f"{begin}outsider-{kind}" for begin in begins for kind in ("client", "worker")]


def _with_keys(setup: Setup, rng: random.Random) -> Setup:
    """The same with keys, and with what befalls a run that has them."""
    fleet = setup.fleet
    pairs = ("",) if fleet is None else fleet.pairs
    owners = [name for name, *_ in setup.clients]
    for number, (name, *_) in enumerate(setup.workers):
        if fleet is None or fleet.fleet.pair_of(fleet.services[number]).name in fleet.struck:
            owners.append(name)
    faults = attacks(
        rng,
        setup.mood,
        until=setup.storm_s,
        timeout_s=setup.timing.failover_timeout_s,
        pace=CALM_PACE if setup.is_calm else 1.0,
        nodes=[node for pair in pairs for node in names_of(pair)[:2]],
        owners=owners,
    )
    ordered = tuple(sorted([*setup.faults, *faults], key=lambda fault: fault.at))
    return msgspec.structs.replace(setup, faults=ordered, has_keys=True)


def _dialects(rng: random.Random, is_plain: bool) -> list[Dialect]:
    """Of four peers; one or two of them speak plain MDP, if any do."""
    plain: list[Dialect] = ["mdp01", "mdp02"]
    rng.shuffle(plain)
    del plain[rng.randint(1, 2) if is_plain else 0 :]
    return [*plain, *(["native"] * (4 - len(plain)))]  # type: ignore[list-item]


def _with_pairs(setup: Setup, rng: random.Random) -> Setup:
    """The same with several pairs, in about the same time: the storm is the shorter the more they are."""
    pairs = tuple("abcd"[: rng.randint(2, PAIRS_MAX)])
    pins = (("p.*", rng.choice(pairs)),) if rng.random() < 0.5 else ()
    # At least one pair is spared: that is the point.
    struck = tuple(sorted(rng.sample(pairs, min(len(pairs) - 1, rng.choice((1, 1, 1, 2))))))
    fleet = FleetSetup(pairs, pins, (), struck)
    services = _services(fleet.fleet, rng)
    workers: list[tuple[str, Dialect, int, float]] = []
    offered: list[str] = []
    for service in services:
        for _ in range(rng.randint(1, 2)):
            _, dialect, credit, handler_s = rng.choice(setup.workers)
            workers.append((f"worker{len(workers) + 1}", dialect, credit, handler_s))
            offered.append(service)
    fleet = msgspec.structs.replace(fleet, services=tuple(offered))
    clients = setup.clients[: rng.randint(1, 2)]
    timing = timing_of(setup.profile)
    storm_s = setup.storm_s / len(pairs)
    faults: list[Fault] = []
    for pair in struck:
        primary, backup, arbiter = names_of(pair)
        faults += plan(
            random.Random(f"{setup.seed}/faults/{pair}"),
            setup.mood,
            until=storm_s,
            timeout_s=timing.failover_timeout_s,
            heartbeat_s=timing.heartbeat_interval_s,
            nodes=(primary, backup),
            arbiter=arbiter if setup.has_arbiter else None,
            workers=[
                worker[0]
                for worker, service in zip(workers, offered, strict=True)
                if fleet.fleet.pair_of(service).name == pair
            ],
            clients=[client[0] for client in clients],
        )
    return msgspec.structs.replace(
        setup,
        workers=tuple(workers),
        clients=clients,
        # Each client asks each pair for as much as if it were the only one.
        calls_per_s=setup.calls_per_s * len(pairs),
        storm_s=storm_s,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        fleet=fleet,
    )


def _services(fleet: Fleet, rng: random.Random) -> list[str]:
    """One or two for each pair, as the hash spreads them, and one that is pinned, if there is a pin."""
    wanted = Counter({pair.name: rng.randint(1, SERVICES_OF_A_PAIR_MAX) for pair in fleet.pairs})
    services = ["p.1"] if fleet.pins else []
    number = 0
    while wanted.total():
        number += 1
        service = f"s{number}"
        pair = fleet.pair_of(service).name
        if wanted[pair]:
            wanted[pair] -= 1
            services.append(service)
    return services
