"""What a synthetic journal is to look like: size, traffic, incidents and planted violations.

Everything is plain data, so that a test can write down the one incident it is about, and a benchmark can ask
for fifty million requests. Incidents and violations may be given one by one or as a number to be drawn by
the seed.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from bstar.errors import ConfigurationError

IncidentKind = Literal["crash", "stop", "pause", "handover", "partition", "both-active"]
INCIDENT_KINDS: tuple[IncidentKind, ...] = get_args(IncidentKind)

ViolationKind = Literal[
    "lost-reply",
    "lost-work",
    "lost-call",
    "executed-though-refused",
    "executed-twice",
    "executed-twice-plain",
    "executed-twice-unseen",
    "answered-twice",
    "crossed",
]
"""What can be planted, and the audit's rule that it breaks.

``lost-reply`` (rule lost): a node answered, nothing failed, and the client waited in vain until its deadline.
``lost-work`` (lost): a worker executed it, and no node that lived on ever recorded its end. ``lost-call``
(lost): a node answered and the client never had an outcome. ``executed-though-refused`` (lost):
the client was told that it was certainly not executed, and a worker had executed it. ``executed-twice``: a
second execution that was not marked as a repetition; ``…-plain``: marked, but the call was not idempotent;
``…-unseen``: the same after its first worker was killed, which recorded nothing of it.
``answered-twice``: two nodes answered, and nobody said that it was a repetition. ``crossed``: the client got
another reply than any worker gave to it.
"""
VIOLATION_KINDS: tuple[ViolationKind, ...] = get_args(ViolationKind)

# The shortest time between the end of an incident and the next one: the pair must be whole again.
CALM_S = 5.0
# Before the first and after the last incident.
EDGE_S = 10.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault. ``at_s`` after the journal's start; ``pair`` counts from 0.

    ``target``: which node is hit (crash, stop, pause). ``duration_s``: how long a pause, a partition or the
    time of two actives lasts; of a crash or stop, after how long the node is started again, None: never.
    ``is_refused``: the survivor learns of a crash by a refused connection, at once, and not by silence.
    """

    kind: IncidentKind
    at_s: float
    pair: int = 0
    target: Literal["active", "passive"] = "active"
    duration_s: float | None = 10.0
    is_refused: bool = False

    @property
    def length_s(self) -> float:
        """How long the pair is not whole because of it."""
        return self.duration_s or 0.0


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, planted at ``at_s`` after the journal's start."""

    kind: ViolationKind
    at_s: float
    pair: int = 0


@dataclass(frozen=True, slots=True)
class SynthSettings:
    """``generate`` makes the same files from the same settings.

    ``requests`` node records of requests in all, whatever ``requests_per_s`` (of each pair, on the average of
    a day) says; 0: as many as the rate gives. The rate swings by ``daily_swing`` (0 to 1) around its mean,
    lowest at 03:00 UTC, and grows by ``growth_per_day`` (0.01: one per cent). ``busy_us`` is what the first
    service's handlers take in the mean; the second takes twice that, and so on.

    ``has_client_journals`` and ``has_worker_journals`` add those; ``client_processes`` share the clients.
    ``incidents`` and ``violations``: a list, or how many to draw for each pair. ``caught``: how many requests
    each incident interrupts. ``sample``: the share of requests that journals record. ``clock_skew_us``: the
    wall clock of the backup's machine against the primary's. ``clock_step_us``: by how much the primary's
    wall clock is set in the middle of the journal (0: it is not), and back at three quarters.

    ``segment_lines`` and ``segment_s`` rotate files. ``finish``: what becomes of the last segment of a
    process that lives on: "sealed" as by a rotation, or left "open". ``processes`` of this machine work at
    it; 0: one for each core.
    """

    seed: int = 1
    pairs: int = 1
    pair_name: str = "synth"
    start: str = "2026-01-05T00:00:00Z"
    days: float = 1.0
    requests: int = 0
    requests_per_s: float = 10.0
    daily_swing: float = 0.5
    growth_per_day: float = 0.0
    services: int = 3
    clients: int = 20
    workers: int = 6
    credit: int = 4
    busy_us: int = 4_000
    failed_share: float = 0.001
    expired_share: float = 0.0001
    has_client_journals: bool = False
    has_worker_journals: bool = False
    client_processes: int = 2
    incidents: tuple[Incident, ...] | int = ()
    violations: tuple[Violation, ...] | int = ()
    caught: int = 8
    sample: float = 1.0
    heartbeat_us: int = 100_000
    failover_timeout_us: int = 300_000
    pulse_s: int = 10
    load_s: int = 10
    clock_skew_us: int = 0
    clock_step_us: int = 0
    segment_lines: int = 250_000
    segment_s: int = 86_400
    is_packed: bool = True
    finish: Literal["sealed", "open"] = "sealed"
    processes: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what cannot be made."""
        if self.pairs < 1 or self.services < 1 or self.clients < 1 or self.client_processes < 1:
            raise ConfigurationError("pairs, services, clients and client_processes must be at least 1")
        if self.workers < self.services:
            raise ConfigurationError(f"{self.workers} workers cannot serve {self.services} services")
        if self.clients < self.client_processes:
            raise ConfigurationError(
                f"{self.clients} clients cannot be spread over {self.client_processes} processes"
            )
        if not 0 <= self.daily_swing <= 1 or not 0 < self.sample <= 1:
            raise ConfigurationError("daily_swing lies between 0 and 1, sample above 0 and at most at 1")
        if self.days * 86_400 < 2 * EDGE_S:
            raise ConfigurationError(f"a journal lasts at least {2 * EDGE_S:.0f} s")
        if self.requests < 0 or (not self.requests and self.requests_per_s <= 0):
            raise ConfigurationError("requests_per_s must be above 0, or requests must be given")
        if self.segment_s % self.load_s or self.segment_lines < 1:
            raise ConfigurationError("segment_s must be a multiple of load_s, segment_lines above 0")

    @property
    def span_s(self) -> float:
        """From the first record to the last."""
        return self.days * 86_400
