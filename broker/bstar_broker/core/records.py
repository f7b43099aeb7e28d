"""The broker's records: accepted requests, registered workers, known services.

Records only; the parts of the broker act on them. A record that each request makes is a ``msgspec.Struct``,
which is made faster. A record that each request writes to is a dataclass with slots, which is written to
faster. A record refers to no record that refers back, except a request to its service, whose queue holds the
request while it waits.
"""

import math
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from bstar.base.printable import printable
from bstar.wire import front, native
from bstar.wire.description import ServiceLimits
from bstar.wire.dialect import BrokerCodec, ClientCodec, Envelope
from bstar.wire.messages import NO_PROCESS, Process
from bstar.wire.progress import Progress
from bstar_broker.core.limits import Throttle
from bstar_broker.core.queues import FairQueue
from bstar_broker.core.settings import NO_LIMITS

# How a request ends at a node. A service counts each outcome under this name.
OUTCOMES = (
    "answered", "declined", "failed", "refused", "expired", "poisoned", "lost", "cancelled", "returned",
)  # fmt: skip
# All counts of a service, except its latencies.
COUNTERS = (*OUTCOMES, "accepted", "redelivered", "duplicates", "workers_lost", "stalls")

# A service notes these counts every STEP_S and keeps STEPS notes: the last five minutes.
STEP_S = 60.0
STEPS = 5

# Upper bounds of the latency histogram: from what a loopback answers to what a patient client waits.
LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


def peer_label(routing_id: bytes) -> str:
    """A peer in a listing. Whoever knows a routing id can claim it when its connection ends."""
    return blake2b(routing_id, digest_size=8).hexdigest()


def dialect_of(codec: BrokerCodec | ClientCodec, routing_id: bytes) -> str:
    """How a peer speaks: a dialect, or the name of the front that it is behind."""
    return front.split_peer_id(routing_id)[0] if codec is front.CODEC else codec.label


class Accepted(msgspec.Struct, gc=False, eq=False):
    """A request that the broker answers for, from its arrival to its final reply.

    ``sender``, ``envelope`` and ``codec`` say where its replies go, ``lane`` whose share of the queue it
    takes. ``expires_at`` ends its wait in the queue, ``deadline`` its client's wait (0: unknown).
    ``partials`` counts those sent to the client; ``sent_bytes`` counts their bytes for an observer. ``held``
    keeps them for a client that takes one reply only. ``dispatched_at`` and ``worker`` (its routing id) are
    of the last dispatch. ``is_abandoned``: a worker still has the request, but this node will not answer it,
    and its client knows.

    ``progress`` is the last that its handler reported, if it is the store's request. ``target``: the name of
    the one worker that may have it; empty if any worker of the service may.

    ``losses`` counts what is charged to it, ``crowd`` is how many requests its last lost worker held, and
    ``crowd_max`` how many may be at a worker with it (0: any number), until ``apart_until`` (``endings``).
    """

    sender: bytes
    envelope: Envelope
    codec: ClientCodec
    lane: bytes
    service: "ServiceRecord"
    body: list[bytes]
    size: int
    identity: bytes
    extensions: bytes
    accepted_at: float
    expires_at: float
    deadline: float
    # Its client says that an earlier attempt may have been executed, at any node.
    is_repeated: bool = False
    is_urgent: bool = False
    # As in ``Request``.
    is_once: bool = False
    is_whole: bool = False
    is_queued: bool = False
    deliveries: int = 0
    losses: int = 0
    crowd: int = 0
    crowd_max: int = 0
    apart_until: float = 0.0
    partials: int = 0
    held: list[bytes] | None = None
    held_bytes: int = 0
    is_abandoned: bool = False
    # Routing ids of other clients with the same key. They get the same replies.
    askers: list[bytes] | None = None
    dispatched_at: float = 0.0
    worker: bytes = b""
    sent_bytes: int = 0
    progress: Progress | None = None
    target: bytes = b""


class Bundle(msgspec.Struct, eq=False):
    """Requests of one batch, none of which has differed so far (``bundles``).

    The columns and the rest are those of ``Requests`` and ``Accepted``; ``expires_at`` is when the first of
    them expires. In a queued bundle, the rows before ``given`` and the first ``given_bytes`` bytes of the
    blob are at workers. These are bundles of their own, each with its ``worker``. ``left`` counts the
    requests that wait or have no reply.
    """

    sender: bytes
    client_id: bytes
    service: "ServiceRecord"
    numbers: tuple[int, ...]
    ttls_ms: tuple[int, ...]
    lengths: tuple[int, ...]
    table: bytes
    blob: bytes
    accepted_at: float
    expires_at: float
    has_deadline: bool
    is_repeated: bool
    is_once: bool
    is_whole: bool
    is_extended: bool
    left: int
    given: int = 0
    given_bytes: int = 0
    is_queued: bool = False
    worker: bytes = b""
    dispatched_at: float = 0.0

    @property
    def identities(self) -> list[bytes]:
        """Those of its requests, in order, answered ones included."""
        return [native.identity(self.client_id, number) for number in self.numbers]


class Lease(msgspec.Struct, frozen=True):
    """How long a worker may be silent.

    A worker counts as gone after ``expiry_s`` without a message, and after ``busy_s`` if it may be silent
    while it works.
    """

    heartbeat_s: float
    expiry_s: float
    busy_s: float

    @classmethod
    def of(cls, heartbeat_s: float, liveness: int, busy_timeout_s: float) -> "Lease":
        """The lease of one dialect: ``liveness`` heartbeats may be missed."""
        expiry_s = heartbeat_s * liveness
        return cls(heartbeat_s, expiry_s, max(expiry_s, busy_timeout_s))


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A registered worker: one routing id, one service, up to ``credit`` requests at once.

    Published MDP workers are silent while they work. Until one has shown that it is not
    (``beats_while_busy``) it has ``Lease.busy_s`` for each request. A worker with a keepalive that is silent
    past its expiry while it works is stuck (``keepalives``), for ``busy_s`` at most.
    """

    routing_id: bytes
    codec: BrokerCodec
    envelope: Envelope
    service: "ServiceRecord"
    lease: Lease
    # It returns the identity of a request. Others return the client's address.
    names_requests: bool
    credit: int
    takes_batches: bool
    takes_extended: bool
    beats_while_busy: bool
    # When it last got a request, when it last got any message, and until when it may be silent.
    given_at: float
    sent_at: float
    expires_at: float
    # When its connection was found gone. Its earlier messages may be unread.
    gone_at: float | None = None
    # The routing id of its keepalive, empty without one; since when it is silent, while it is stuck.
    keepalive: bytes = b""
    silent_since: float | None = None
    # It refuses this node's epoch and the node cannot believe the higher one. It gets no work meanwhile.
    is_ahead: bool = False
    # Who drains it and why, or "". Its credit is 0 meanwhile, and this one afterwards
    # (``work_orders``).
    drain_why: str = ""
    credit_afterwards: int = 0
    # By the name that the worker returns: the client address (MDP) or the request's identity (native).
    in_flight: dict[bytes, Accepted] = field(default_factory=dict)
    # The bundles that it holds, in order, and how many requests of them are unanswered.
    bundles: dict[Bundle, None] = field(default_factory=dict)
    bundled: int = 0
    # For listings: what it tells of its process, where it connects from, and since when it is registered.
    process: Process = NO_PROCESS
    address: str = ""
    registered_at: float = 0.0
    description: "ServiceDescription | None" = None
    # Above 0 while it holds a suspect: it gets nothing more until it is empty (``dispatch``).
    crowd_max: int = 0
    # The workers that are lost with it (``Ready.group``).
    group: "Group | None" = None
    # Its last request was one for it alone, so the next one is of its service's queue.
    owes_turn: bool = False
    # What it told last of the requests that it executes for other connections, and in which epoch; None: it
    # does not tell. How many requests count for it (``limits``).
    elsewhere: int | None = None
    told_epoch: int = 0
    counted: int = 0

    @property
    def dialect(self) -> str:
        """How it speaks: a dialect, or the name of the front that it is behind."""
        return dialect_of(self.codec, self.routing_id)

    @property
    def label(self) -> str:
        """Its name in listings, and in requests for it alone. A native worker with keepalives has the same
        one at both nodes and in each of its connections.
        """
        return peer_label(self.keepalive[: native.NAME_BYTES] or self.routing_id)

    @property
    def held(self) -> int:
        """How many requests it has."""
        return len(self.in_flight) + self.bundled

    def weight(self, epoch: int) -> int:
        """How many requests count for it against ``running_max``, at a node that serves in ``epoch``."""
        if self.elsewhere is None:
            return self.held
        credit = max(self.credit, self.credit_afterwards)  # it executes no more at once
        return self.held + (min(self.elsewhere, credit) if self.told_epoch >= epoch else credit)

    @property
    def crowd(self) -> int:
        """How many requests it has, its group included."""
        return self.held if self.group is None else sum(each.held for each in self.group.workers)

    @property
    def fellows(self) -> "list[WorkerRecord]":
        """The workers of its group, itself included."""
        return [self] if self.group is None else self.group.workers


class Group(msgspec.Struct, eq=False):
    """Workers that are lost together, which is at one moment. One of them may be lost alone.

    ``lost``: how many requests they had when the first one was lost at ``lost_at``.
    """

    key: bytes
    workers: list[WorkerRecord] = []
    lost: int = 0
    lost_at: float = -1.0


class ServiceDescription(msgspec.Struct, eq=False):
    """What ``workers`` of any service say in the same ``frame``. ``schemas`` are JSON, by what each is of."""

    frame: bytes
    version: str
    text: str
    schemas: dict[str, msgspec.Raw]
    workers: int = 0


class Held(msgspec.Struct):
    """The requests that the workers of one service hold at one moment.

    ``since`` is when the oldest request was given to its worker. ``sum_s`` is how long they have held their
    requests, summed.
    """

    credit: int = 0
    count: int = 0
    since: float = math.inf
    sum_s: float = 0.0

    def add(self, dispatched_at: float, count: int, now: float) -> None:
        """``count`` requests were given to a worker at this moment."""
        self.since = min(self.since, dispatched_at)
        self.sum_s += count * (now - dispatched_at)


@dataclass(slots=True, eq=False)
class Tally:
    """A service's counters. ``refusals`` counts refused requests, by reason.

    ``busy_s`` is how long workers held the requests that have ended or left them, summed over workers.
    """

    accepted: int = 0
    answered: int = 0
    declined: int = 0
    failed: int = 0
    expired: int = 0
    poisoned: int = 0
    lost: int = 0
    cancelled: int = 0
    returned: int = 0
    redelivered: int = 0
    duplicates: int = 0
    # Workers that were lost with requests, and how often a worker became stuck (``keepalives``).
    workers_lost: int = 0
    stalls: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    busy_s: float = 0.0
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    latency_sum_s: float = 0.0

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return self.refusals.total()

    def outcomes(self) -> tuple[int, ...]:
        """The counts of ``OUTCOMES``."""
        return tuple(getattr(self, name) for name in OUTCOMES)

    def observe_latency(self, latency_s: float, count: int = 1) -> None:
        """Count the time from acceptance to final reply, of ``count`` requests that took the same time."""
        self.latency_counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += count
        self.latency_sum_s += latency_s * count


@dataclass(slots=True, eq=False)
class ServiceRecord:
    """A service by name: its queues, its workers and its counters.

    What is for one worker alone waits in ``directed``, by the worker's name; an empty queue has no entry.
    """

    name: bytes
    used_at: float
    tally: Tally = field(default_factory=Tally)
    queue: FairQueue[Accepted | Bundle] = field(default_factory=FairQueue)
    directed: dict[bytes, FairQueue[Accepted | Bundle]] = field(default_factory=dict)
    # Workers with credit left, the least recently used first. Leaving is O(1) from anywhere.
    idle: OrderedDict[WorkerRecord, None] = field(default_factory=OrderedDict)
    workers: int = 0
    # How many of them describe it so.
    descriptions: dict[ServiceDescription, int] = field(default_factory=dict)
    # Workers that are stuck now.
    stuck: int = 0
    # Workers that an operator drains.
    drained: int = 0
    # Who holds its requests back and why, or "", and until when (``service_orders``).
    pause_why: str = ""
    paused_until: float = math.inf
    # Those of the configuration, and what holds requests back because of them (``limits``).
    limits: ServiceLimits = NO_LIMITS
    throttle: Throttle | None = None
    # True if each request must pass the queue: the service is paused, or has a throttle.
    is_gated: bool = False
    # The counts of ``OUTCOMES`` every STEP_S, the earliest first.
    steps: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=STEPS))

    def set_gate(self) -> None:
        """``pause_why`` or ``throttle`` has changed."""
        self.is_gated = self.pause_why != "" or self.throttle is not None

    def count(self, worker: WorkerRecord, weight: int) -> None:
        """So many requests of this worker count against ``running_max`` now."""
        if self.throttle is not None:
            self.throttle.running += weight - worker.counted
            worker.counted = weight

    def bound(self, held_back: str) -> str:
        """What of its limits bounds the service now, for people; "" if nothing does. ``held_back``: what its
        throttle says.
        """
        length_max = self.limits.queue_length_max
        is_full = length_max is not None and self.queue.length >= length_max
        full = f"queue_length_max {length_max}: the queue is full" if is_full else ""
        return "; ".join(filter(None, (held_back, full)))

    @property
    def queues(self) -> list[FairQueue[Accepted | Bundle]]:
        """The queue that all workers share, and those of single workers."""
        return [self.queue, *self.directed.values()]

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return sum(queue.length for queue in self.queues)

    def queue_of(self, request: Accepted) -> FairQueue[Accepted | Bundle]:
        """Where this request waits, or is to wait."""
        return self.directed.setdefault(request.target, FairQueue()) if request.target else self.queue

    def unqueue(self, request: Accepted) -> None:
        """Remove a request that waits."""
        queue = self.queue_of(request)
        queue.remove(request.lane, request, is_urgent=request.is_urgent)
        if request.target and not queue.length:
            del self.directed[request.target]

    @property
    def title(self) -> str:
        """The service in a sentence."""
        return f'service "{printable(self.name)}"'

    @property
    def label(self) -> str:
        """The service in a listing or a metric. Bytes that are no text are written as escapes."""
        return self.name.decode("utf-8", "backslashreplace")
