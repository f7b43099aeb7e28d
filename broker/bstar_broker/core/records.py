"""What the broker remembers: requests it accepted, workers that registered, services that were named.

Plain records without behaviour that reaches beyond themselves. None of them refers to a record that refers
back, except a request to its service, whose queue holds it only while it waits.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from bstar.wire.dialect import BrokerCodec, Envelope
from bstar_broker.core.queues import FairQueue

__all__ = [
    "ASKERS_MAX",
    "LATENCY_BOUNDS_S",
    "OUTCOMES",
    "STEP_S",
    "Accepted",
    "Bundle",
    "ServiceRecord",
    "WorkerRecord",
    "is_same_body",
]

# In what a request ends at a node; a service counts each under this name.
OUTCOMES = ("answered", "failed", "refused", "expired", "poisoned", "lost", "returned")

# A service notes these counts every STEP_S and keeps STEPS notes: the last five minutes.
STEP_S = 60.0
STEPS = 5

# Others who wait for the same key: a repeated task, a speculative one, a few programs that do the same. Each
# costs an address here and a copy of the reply on its way out.
ASKERS_MAX = 16

# Upper bounds of the latency histogram: from what a loopback answers to what a patient client waits.
LATENCY_BOUNDS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Accepted(msgspec.Struct, gc=False, eq=False):
    """A request that the broker answers for, from its arrival to its final reply.

    ``sender``, ``envelope`` and ``codec`` say where its replies go, ``lane`` whose share of the queue it
    takes. ``expires_at`` ends its wait in the queue, ``deadline`` its client's patience (0: unknown).
    ``partials`` counts those sent on to the client, ``held`` keeps them for a client who can take one
    reply only, and ``sent_bytes`` counts their octets for an observer. ``dispatched_at`` and ``worker`` (its
    routing id) are of the last dispatch. ``is_abandoned``: its client was told that this node no longer
    answers for it, but a worker still has it.
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
    # Routing ids of further clients that asked for the same key and get the same answers (``ASKERS_MAX``).
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


class WorkerRecord:
    """A registered worker: one routing id, one service, up to ``credit`` requests at once.

    ``expiry_s`` is the silence after which it counts as gone. Published MDP workers are silent while they
    work, so until one has shown that it is not (``beats_while_busy``) it has ``busy_s`` for each request. One
    with a keepalive that is silent for longer while it works is stuck (``keepalives``), for ``busy_s`` at
    most.
    """

    __slots__ = (
        "beats_while_busy",
        "bundled",
        "bundles",
        "busy_s",
        "codec",
        "credit",
        "envelope",
        "expires_at",
        "expiry_s",
        "given_at",
        "gone_at",
        "heartbeat_s",
        "in_flight",
        "is_ahead",
        "is_native",
        "keepalive",
        "last_bundle",
        "routing_id",
        "sent_at",
        "service",
        "silent_since",
        "takes_batches",
    )

    def __init__(
        self,
        routing_id: bytes,
        codec: BrokerCodec,
        envelope: Envelope,
        service: "ServiceRecord",
        *,
        is_native: bool,
        credit: int,
        heartbeat_s: float,
        expiry_s: float,
        busy_s: float,
        now: float,
        takes_batches: bool = False,
    ) -> None:
        self.routing_id = routing_id
        self.codec = codec
        self.envelope = envelope
        self.service = service
        self.is_native = is_native
        self.credit = credit
        self.heartbeat_s = heartbeat_s
        self.expiry_s = expiry_s
        self.busy_s = busy_s
        self.beats_while_busy = is_native
        self.given_at = now
        # When its connection was found to be gone; what it had sent before that may still be read.
        self.gone_at: float | None = None
        self.expires_at = now + expiry_s
        # The routing id of its keepalive, empty without one; since when it is silent, while it is stuck.
        self.keepalive = b""
        self.silent_since: float | None = None
        self.sent_at = now
        # It refuses this node's epoch and the node cannot believe the higher one. It gets no work meanwhile.
        self.is_ahead = False
        # By what the worker will send back: the client address (MDP) or the request's identity (native).
        self.in_flight: dict[bytes, Accepted] = {}
        self.takes_batches = takes_batches
        # What it was given in batches, in order, and how many requests of them are unanswered.
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
        "refused",
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
        # Workers with credit left, the least recently used first; ordered, and O(1) to leave from anywhere.
        self.idle: OrderedDict[WorkerRecord, None] = OrderedDict()
        self.workers = 0
        # Workers that are stuck now, and how often one was (``keepalives``).
        self.stuck = 0
        self.stalls = 0
        self.used_at = now
        self.accepted = 0
        self.answered = 0
        self.failed = 0
        self.refused = 0
        # The same by reason.
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
        # How long workers have held requests that they hold no more, summed over workers.
        self.busy_s = 0.0
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = 0.0

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


def is_same_body(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """Are these the same frames? Views are compared as words: 64 MiB in 9 ms, and in 0.13 s as octets."""
    return len(one) == len(other) and all(map(_is_same_frame, one, other))


def _is_same_frame(one: bytes, other: bytes) -> bool:
    if type(one) is bytes and type(other) is bytes:
        return one == other
    if len(one) != len(other):
        return False
    a, b, whole = memoryview(one), memoryview(other), len(one) & ~7
    return a[:whole].cast("Q") == b[:whole].cast("Q") and a[whole:] == b[whole:]
