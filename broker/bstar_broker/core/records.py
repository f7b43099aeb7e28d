"""What the broker remembers: requests it accepted, workers that registered, services that were named.

Records only; the parts of the broker act on them. A record refers to no record that refers back, except a
request to its service, whose queue holds the request while it waits.
"""

from bisect import bisect_left
from collections import OrderedDict, deque

import msgspec

from bstar.printable import printable
from bstar.wire.dialect import BrokerCodec, Dialect, Envelope
from bstar.wire.messages import Ready
from bstar_broker.core.queues import FairQueue

__all__ = [
    "LATENCY_BOUNDS_S",
    "OUTCOMES",
    "STEP_S",
    "Accepted",
    "Bundle",
    "Lease",
    "ServiceRecord",
    "WorkerRecord",
]

# How a request ends at a node; a service counts each under this name.
OUTCOMES = ("answered", "failed", "refused", "expired", "poisoned", "lost", "returned")

# A service notes these counts every STEP_S and keeps STEPS notes: the last five minutes.
STEP_S = 60.0
STEPS = 5

# Upper bounds of the latency histogram: from what a loopback answers to what a patient client waits.
LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Accepted(msgspec.Struct, gc=False, eq=False):
    """A request that the broker answers for, from its arrival to its final reply.

    ``sender``, ``envelope`` and ``codec`` say where its replies go, ``lane`` whose share of the queue it
    takes. ``expires_at`` ends its wait in the queue, ``deadline`` its client's wait (0: unknown).
    ``partials`` counts those sent on to the client, ``held`` keeps them for a client that can take one
    reply only, and ``sent_bytes`` counts their octets for an observer. ``dispatched_at`` and ``worker`` (its
    routing id) are of the last dispatch. ``is_abandoned``: this node does not answer for it, and its client
    knows, but a worker still has it.
    """

    sender: bytes
    envelope: Envelope
    codec: BrokerCodec
    lane: bytes
    service: "ServiceRecord"
    body: list[bytes]
    size: int
    identity: bytes
    extensions: bytes
    accepted_at: float
    expires_at: float
    deadline: float
    deliveries: int = 0
    partials: int = 0
    held: list[bytes] | None = None
    held_bytes: int = 0
    is_queued: bool = False
    is_abandoned: bool = False
    # Its client says that an earlier attempt may have been executed, here or at the other node.
    is_repeated: bool = False
    is_urgent: bool = False
    # As in ``Request``.
    is_once: bool = False
    is_whole: bool = False
    # Routing ids of other clients that asked for the same key and get the same answers.
    askers: list[bytes] | None = None
    dispatched_at: float = 0.0
    worker: bytes = b""
    sent_bytes: int = 0


class Bundle(msgspec.Struct, eq=False):
    """Requests that came in one batch and have shared their fate so far (``bundles``).

    The columns and the rest are those of ``Requests`` and ``Accepted``; ``expires_at`` is when the first of
    them expires. Of one that is queued, the rows before ``given`` have gone to workers, and so many octets of
    the blob (``given_bytes``) with them; those became bundles of their own, with their ``worker``. ``left``
    counts the requests that are still here: waiting, or without a reply.
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
    left: int
    given: int = 0
    given_bytes: int = 0
    is_queued: bool = False
    worker: bytes = b""
    dispatched_at: float = 0.0


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


class WorkerRecord:
    """A registered worker: one routing id, one service, up to ``credit`` requests at once.

    Published MDP workers are silent while they work. Until one has shown that it is not
    (``beats_while_busy``) it has ``Lease.busy_s`` for each request. A worker with a keepalive that is silent
    past its expiry while it works is stuck (``keepalives``), for ``busy_s`` at most.
    """

    __slots__ = (
        "beats_while_busy",
        "bundled",
        "bundles",
        "codec",
        "credit",
        "envelope",
        "expires_at",
        "given_at",
        "gone_at",
        "in_flight",
        "is_ahead",
        "is_native",
        "keepalive",
        "last_bundle",
        "lease",
        "routing_id",
        "sent_at",
        "service",
        "silent_since",
        "takes_batches",
    )

    def __init__(
        self, ready: Ready, codec: BrokerCodec, service: "ServiceRecord", lease: Lease, now: float
    ) -> None:
        self.routing_id = ready.sender
        self.codec = codec
        self.envelope = ready.envelope
        self.service = service
        self.is_native = ready.dialect == Dialect.NATIVE
        self.credit = ready.credit
        self.lease = lease
        self.beats_while_busy = self.is_native
        self.given_at = now
        # When its connection was found to be gone. What it had sent before may still be unread.
        self.gone_at: float | None = None
        self.expires_at = now + lease.expiry_s
        # The routing id of its keepalive, empty without one; since when it is silent, while it is stuck.
        self.keepalive = b""
        self.silent_since: float | None = None
        self.sent_at = now
        # It refuses this node's epoch and the node cannot believe the higher one. It gets no work meanwhile.
        self.is_ahead = False
        # By what the worker will send back: the client address (MDP) or the request's identity (native).
        self.in_flight: dict[bytes, Accepted] = {}
        self.takes_batches = ready.takes_batches
        # The bundles that it holds, in order, and how many requests of them are unanswered.
        self.bundles: dict[Bundle, None] = {}
        self.bundled = 0
        # Set while the last that it was given was a batch.
        self.last_bundle: Bundle | None = None

    @property
    def held(self) -> int:
        """How many requests it has."""
        return len(self.in_flight) + self.bundled


class ServiceRecord:
    """A service by name: who waits, who works, and what has become of its requests."""

    __slots__ = (
        "accepted",
        "answered",
        "busy_s",
        "duplicates",
        "expired",
        "failed",
        "idle",
        "latency_counts",
        "latency_sum_s",
        "lost",
        "name",
        "poisoned",
        "queue",
        "redelivered",
        "refusals",
        "returned",
        "stalls",
        "steps",
        "stuck",
        "used_at",
        "workers",
        "workers_lost",
    )

    def __init__(self, name: bytes, now: float) -> None:
        self.name = name
        self.queue: FairQueue[Accepted | Bundle] = FairQueue()
        # Workers with credit left, the least recently used first. Leaving is O(1) from anywhere.
        self.idle: OrderedDict[WorkerRecord, None] = OrderedDict()
        self.workers = 0
        # Workers that are stuck now, and how often one was (``keepalives``).
        self.stuck = 0
        self.stalls = 0
        self.used_at = now
        self.accepted = 0
        self.answered = 0
        self.failed = 0
        # Requests that were refused, by reason (``refusals``).
        self.refusals: dict[str, int] = {}
        self.expired = 0
        self.poisoned = 0
        self.lost = 0
        self.returned = 0
        self.redelivered = 0
        self.duplicates = 0
        # Workers that went away and held requests.
        self.workers_lost = 0
        # The counts of ``OUTCOMES`` every STEP_S, the earliest first.
        self.steps: deque[tuple[int, ...]] = deque(maxlen=STEPS)
        # How long workers held the requests that have ended or left them, summed over workers.
        self.busy_s = 0.0
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = 0.0

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return sum(self.refusals.values())

    @property
    def title(self) -> str:
        """The service in a sentence."""
        return f'service "{printable(self.name)}"'

    @property
    def label(self) -> str:
        """The service in a listing or a metric. Octets that are no text are written as escapes."""
        return self.name.decode("utf-8", "backslashreplace")

    def outcomes(self) -> tuple[int, ...]:
        """The counts of ``OUTCOMES``."""
        return tuple(getattr(self, name) for name in OUTCOMES)

    def observe_latency(self, latency_s: float) -> None:
        """Count one request's time from acceptance to final reply."""
        self.latency_counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        self.latency_sum_s += latency_s

    def observe_latencies(self, latency_s: float, count: int) -> None:
        """Count ``count`` requests that took the same time."""
        self.latency_counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += count
        self.latency_sum_s += latency_s * count
