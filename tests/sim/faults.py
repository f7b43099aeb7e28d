"""What befalls a simulated pair: a plan made from the seed beforehand, so that parts can be left out."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence

import msgspec


class Mood(enum.Enum):
    """What kind of faults a run has."""

    QUIET = "quiet"  # jitter and pauses that nobody may take for a death
    PROCESSES = "processes"  # processes die, freeze, leave; the network is sound
    LINKS = "links"  # the network fails; processes live
    STORM = "storm"  # everything


class Kind(enum.Enum):
    """One kind of fault; the value says it in words."""

    CRASH = "a node's process dies and comes back"
    FORGET = "a node's process dies, loses its state directory and comes back"
    DARK = "a node's host is switched off and comes back"
    STALL = "a node's process is frozen"
    JUMP = "a node's clock goes ahead"
    STOP = "a node is stopped in good order and comes back"
    HANDOVER = "the operator hands the role over"
    WORKER_CRASH = "a worker dies and comes back"
    WORKER_DARK = "a worker's host is switched off and comes back"
    WORKER_STALL = "a worker is frozen"
    WORKER_HOLD = "a worker's handler keeps the interpreter to itself"
    WORKER_STOP = "a worker leaves in good order and comes back"
    WORKER_SLOW = "a worker's handlers are slow"
    CLIENT_CRASH = "a client dies and comes back as another"
    CLIENT_CLOSE = "a client closes and comes back as another"
    CLIENT_STALL = "a client is frozen"
    PEER_CUT = "the peer link is cut"
    PEER_MUTE = "one node's state is not heard by the other"
    PEER_CHOKE = "one node's state arrives late, in one burst"
    PEER_LOSS = "the peer link loses messages"
    PEER_JITTER = "the peer link is slow at times"
    PEER_REPEAT = "the peer link repeats messages"
    PEER_REORDER = "the peer link reorders messages"
    PEER_RESET = "a connection of the peer link is reset"
    NET_CUT = "a client or worker is cut off from a node"
    NET_DEAF = "what a node says to a client or worker does not arrive"
    NET_MUTE = "what a client or worker says to a node does not arrive"
    NET_RESET = "a connection is reset"
    NET_LOSS = "packets between a node and the others are lost and sent again"
    CLIENTS_CUT = "a node is cut off from all clients, but not from its peer and the workers"
    SPLIT = "the network falls into two halves, one node in each"
    ARBITER_CRASH = "the arbiter dies and comes back, having forgotten everything"
    ARBITER_STALL = "the arbiter is frozen"
    ARBITER_CUT = "a node and the arbiter are cut off from each other"
    ARBITER_DEAF = "what the arbiter says to a node does not arrive"
    ARBITER_MUTE = "what a node says to the arbiter does not arrive"
    ARBITER_LOSS = "packets between a node and the arbiter are lost and sent again"
    ARBITER_SLOW = "messages between a node and the arbiter are slow, and some come out of order"
    ISOLATED = "a node is cut off from its peer and from the arbiter, but not from clients and workers"
    LIE_CLIENT = "a client claims epochs that nobody took"
    LIE_WORKER = "a worker claims epochs that nobody took"
    ATTACK = "somebody whose key is listed for another service does what it may not"
    KEY_WITHDRAWN = "the key of a client or worker leaves the list and comes back"
    LIE_PEER = "state messages are forged in a node's name and claim an epoch that it did not take"


class Fault(msgspec.Struct, frozen=True):
    """``target`` is a process; ``amount`` depends on the kind: a probability, seconds, a factor."""

    at: float
    kind: Kind
    target: str
    duration_s: float
    amount: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.at:9.3f} s  {self.kind.name:<13} {self.target:<10} for {self.duration_s:7.3f} s"
            f"  {self.amount:.3f}  ({self.kind.value})"
        )


_NODES = frozenset(
    (
        Kind.CRASH, Kind.FORGET, Kind.DARK, Kind.STALL, Kind.JUMP, Kind.STOP, Kind.HANDOVER,
        Kind.NET_LOSS, Kind.CLIENTS_CUT, Kind.SPLIT, Kind.ISOLATED,
        *(kind for kind in Kind if kind.name.startswith(("PEER", "ARBITER"))),
    )
)  # fmt: skip
_PROCESSES = {
    Kind.CRASH: 6, Kind.FORGET: 2, Kind.DARK: 3, Kind.STALL: 8, Kind.JUMP: 2, Kind.STOP: 3, Kind.HANDOVER: 3,
    Kind.WORKER_CRASH: 5, Kind.WORKER_DARK: 2, Kind.WORKER_STALL: 4, Kind.WORKER_STOP: 3,
    Kind.WORKER_HOLD: 4, Kind.WORKER_SLOW: 3, Kind.CLIENT_CRASH: 2, Kind.CLIENT_CLOSE: 2,
    Kind.CLIENT_STALL: 2, Kind.PEER_REPEAT: 1, Kind.PEER_JITTER: 2,
}  # fmt: skip
_LINKS = {
    Kind.PEER_CUT: 5, Kind.PEER_MUTE: 5, Kind.PEER_CHOKE: 5, Kind.PEER_LOSS: 5, Kind.PEER_JITTER: 4,
    Kind.PEER_REPEAT: 2, Kind.PEER_REORDER: 4, Kind.PEER_RESET: 2, Kind.NET_CUT: 5, Kind.NET_DEAF: 3,
    Kind.NET_MUTE: 3, Kind.NET_RESET: 4, Kind.NET_LOSS: 3, Kind.SPLIT: 4,
}  # fmt: skip
_QUIET = {
    Kind.STALL: 6, Kind.WORKER_STALL: 3, Kind.CLIENT_STALL: 3, Kind.PEER_JITTER: 6, Kind.PEER_REPEAT: 2,
}  # fmt: skip
_ARBITER = {
    Kind.ARBITER_CUT: 4, Kind.ARBITER_DEAF: 3, Kind.ARBITER_MUTE: 3, Kind.ARBITER_LOSS: 3,
    Kind.ARBITER_SLOW: 4, Kind.ISOLATED: 5,
}  # fmt: skip
# Faults of runs with an arbiter, beside the others of their mood.
ARBITER_KINDS: dict[Mood, dict[Kind, int]] = {
    Mood.QUIET: {Kind.ARBITER_CRASH: 2, Kind.ARBITER_STALL: 2, Kind.ARBITER_CUT: 2, Kind.ARBITER_SLOW: 2},
    Mood.PROCESSES: {Kind.ARBITER_CRASH: 5, Kind.ARBITER_STALL: 4},
    Mood.LINKS: _ARBITER,
    Mood.STORM: {Kind.ARBITER_CRASH: 5, Kind.ARBITER_STALL: 4, **_ARBITER},
}
KINDS: dict[Mood, dict[Kind, int]] = {
    Mood.QUIET: _QUIET,
    Mood.PROCESSES: _PROCESSES,
    Mood.LINKS: _LINKS,
    Mood.STORM: _PROCESSES | _LINKS,
}

# Of the runs whose network fails.
CLIENTS_CUT_SHARE = 0.4


def plan(
    rng: random.Random,
    mood: Mood,
    *,
    until: float,
    timeout_s: float,
    heartbeat_s: float,
    nodes: tuple[str, str],
    arbiter: str | None,
    workers: list[str],
    clients: list[str],
) -> list[Fault]:
    """What befalls one pair and those that use it, from the first second until ``until``: faults, most in
    bursts, with quiet between. All others are names of processes; without an arbiter it is None.
    """
    kinds = KINDS[mood] | (ARBITER_KINDS[mood] if arbiter is not None else {})
    names, weights = list(kinds), list(kinds.values())
    faults: list[Fault] = []
    at = 2.0 + rng.random()
    while at < until:
        kind = rng.choices(names, weights)[0]
        if mood is Mood.QUIET:
            # A pause, a heartbeat and the jitter together must stay below the timeout.
            duration_s = rng.uniform(0.1, 0.9) * (timeout_s - heartbeat_s) / 2
            amount = rng.random() * (timeout_s - heartbeat_s) / 4
            if kind in (Kind.PEER_JITTER, Kind.PEER_REPEAT) or kind.name.startswith("ARBITER"):
                duration_s *= 20
        else:
            duration_s = timeout_s * rng.choice(
                (
                    rng.uniform(0.1, 0.95),
                    rng.uniform(0.95, 1.5),
                    rng.uniform(1.5, 4.0),
                    rng.uniform(4.0, 20.0),
                )
            )
            amount = rng.random()
        duration_s, amount = _shape(
            rng, kind, mood, duration_s, amount, timeout_s, heartbeat_s, has_arbiter=arbiter is not None
        )
        target = _target(rng, kind, nodes, arbiter, workers, clients)
        faults.append(Fault(round(at, 6), kind, target, round(min(duration_s, until - at + 0.5), 6), amount))
        # Faults come in bursts: what a pair cannot stand is rarely a single one.
        at += rng.expovariate(1.0 / timeout_s) if rng.random() < 0.6 else rng.uniform(5, 25) * timeout_s
    if mood in (Mood.LINKS, Mood.STORM) and rng.random() < CLIENTS_CUT_SHARE:
        # Long enough that the role follows the clients. Drawn last, so that the others are as without it.
        at = round(rng.uniform(2.0, max(2.0, until - 20 * timeout_s)), 6)
        duration_s = round(min(rng.uniform(12, 60) * timeout_s, until - at + 0.5), 6)
        faults.append(Fault(at, Kind.CLIENTS_CUT, rng.choice(nodes), duration_s))
    return faults


def _shape(
    rng: random.Random,
    kind: Kind,
    mood: Mood,
    duration_s: float,
    amount: float,
    timeout_s: float,
    heartbeat_s: float,
    *,
    has_arbiter: bool,
) -> tuple[float, float]:
    """Duration and amount, as this kind takes them; ``amount`` is from 0 to 1."""
    if kind is Kind.WORKER_SLOW:
        amount = rng.choice((5.0, 30.0, 200.0))
    elif kind is Kind.PEER_JITTER and mood is not Mood.QUIET:
        amount *= timeout_s * 0.4
    elif kind is Kind.JUMP:
        # A jump that the loop cannot notice ends a ballot early, and no voter can know of it.
        amount = duration_s = max(duration_s, 2 * heartbeat_s) if has_arbiter else duration_s
    return duration_s, amount


# Of the faults of a calm run, those that another one follows at once.
_FOLLOWED_SHARE = 0.2


def calm_plan(
    rng: random.Random,
    mood: Mood,
    *,
    until: float,
    gap_s: float,
    timeout_s: float,
    heartbeat_s: float,
    nodes: tuple[str, str],
    arbiter: str | None,
    workers: list[str],
    clients: list[str],
) -> list[Fault]:
    """What befalls one pair in the field: a fault every ``gap_s`` seconds on the average, which lasts for
    moments, minutes or hours. Otherwise as ``plan``.
    """
    assert mood is not Mood.QUIET
    kinds = KINDS[mood] | (ARBITER_KINDS[mood] if arbiter is not None else {})
    if mood in (Mood.LINKS, Mood.STORM):
        kinds = kinds | {Kind.CLIENTS_CUT: 3}
    names, weights = list(kinds), list(kinds.values())
    faults: list[Fault] = []
    at = rng.expovariate(1 / gap_s)
    while at < until:
        kind = rng.choices(names, weights)[0]
        moments_s = timeout_s * rng.choice((rng.uniform(0.1, 1.5), rng.uniform(1.0, 20.0)))
        durations = (moments_s, rng.uniform(60, 1_800), rng.uniform(3_600, 14_400))
        duration_s = rng.choices(durations, (70, 25, 5))[0] if kind is not Kind.JUMP else moments_s
        duration_s, amount = _shape(
            rng, kind, mood, duration_s, rng.random(), timeout_s, heartbeat_s, has_arbiter=arbiter is not None
        )
        target = _target(rng, kind, nodes, arbiter, workers, clients)
        faults.append(Fault(round(at, 6), kind, target, round(min(duration_s, until - at + 0.5), 6), amount))
        at += rng.expovariate(1 / timeout_s if rng.random() < _FOLLOWED_SHARE else 1 / gap_s)
    return faults


# In a share of all runs somebody lies beside the other faults. What clients say must not even be noticed.
_LIE_SHARE = 0.4
_LIES = {
    Mood.QUIET: [Kind.LIE_CLIENT],
    Mood.PROCESSES: [Kind.LIE_CLIENT, Kind.LIE_WORKER],
    Mood.LINKS: [Kind.LIE_WORKER, Kind.LIE_PEER],
    Mood.STORM: [Kind.LIE_CLIENT, Kind.LIE_WORKER, Kind.LIE_PEER],
}
# What a lie adds to the truth: as little as an honest claim, the bounds of belief, and all there is.
LIES = (1, 2, 2**20, 2**32, 2**32 + 1, 2**36, 2**36 + 1, 2**61, 2**62, 2**63)


def lies(
    rng: random.Random,
    mood: Mood,
    *,
    until: float,
    timeout_s: float,
    nodes: Sequence[str],
    workers: Sequence[str],
    pace: float = 1.0,
) -> list[Fault]:
    """Who claims epochs that nobody took, and when; ``amount`` chooses one of LIES. ``pace`` multiplies the
    time between two lies.
    """
    faults: list[Fault] = []
    if rng.random() >= _LIE_SHARE:
        return faults
    at = 2.0 + rng.random()
    while at < until:
        kind = rng.choice(_LIES[mood])
        target = rng.choice(workers) if kind is Kind.LIE_WORKER else rng.choice(nodes)
        duration_s = min(timeout_s * rng.choice((0.1, 1.0, 5.0)), until - at)
        faults.append(Fault(round(at, 6), kind, target, round(duration_s, 6), rng.random()))
        at += pace * rng.uniform(2, 40) * timeout_s
    return faults


def attacks(
    rng: random.Random,
    mood: Mood,
    *,
    until: float,
    timeout_s: float,
    nodes: Sequence[str],
    owners: Sequence[str],
    pace: float = 1.0,
) -> list[Fault]:
    """What befalls a run with keys: attacks on ``nodes``, in any mood, since nothing may follow from them;
    otherwise withdrawn keys of ``owners`` as well. ``amount`` chooses the attacker. ``pace`` multiplies the
    time between two.
    """
    faults: list[Fault] = []
    at = 2.0 + rng.random()
    while at < until:
        duration_s = min(timeout_s * rng.choice((0.1, 3.0, 10.0)), until - at)
        kind, target = Kind.ATTACK, rng.choice(nodes)
        if mood is not Mood.QUIET and rng.random() < _WITHDRAWN_SHARE:
            # Long enough that both nodes may have read the list, or too short for either.
            kind, target = Kind.KEY_WITHDRAWN, rng.choice(owners)
            duration_s = min(rng.uniform(0.5, 6.0), until - at + 0.5)
        faults.append(Fault(round(at, 6), kind, target, round(duration_s, 6), rng.random()))
        at += pace * rng.uniform(1, 15) * timeout_s
    return faults


# Of what befalls a run because it has keys.
_WITHDRAWN_SHARE = 0.15


def _target(
    rng: random.Random,
    kind: Kind,
    nodes: tuple[str, str],
    arbiter: str | None,
    workers: list[str],
    clients: list[str],
) -> str:
    if kind in (Kind.ARBITER_CRASH, Kind.ARBITER_STALL):
        assert arbiter is not None, "only runs with an arbiter have such faults"
        return arbiter
    if kind in _NODES:
        return rng.choice(nodes)
    if kind.name.startswith("WORKER"):
        return rng.choice(workers)
    if kind.name.startswith("CLIENT"):
        return rng.choice(clients)
    return f"{rng.choice(workers + clients)}|{rng.choice(nodes)}"
