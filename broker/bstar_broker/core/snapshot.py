"""A node at one moment, for people and monitors: the answer of mmi.state, and the source of the metrics.

The broker's own thread makes it on request, so no table changes while it is read. Everything is a plain
number or a text that was checked; ids are hexadecimal.
"""

import enum

import msgspec

from bstar.records.role import RoleChange
from bstar.wire.progress import Progress


class ServiceState(msgspec.Struct, frozen=True):
    """One service. Counters count requests since the node started; ``workers_lost`` counts workers that were
    lost while they held requests.

    ``oldest_waiting_s`` is how long ago the oldest request in the queue was accepted. ``oldest_running_s`` is
    how long a worker has held the oldest request that workers hold. Each is 0 without one. ``recent``
    counts outcomes of the last four to five minutes; one that did not occur is missing.

    ``stuck`` workers hold requests and do not answer although their processes live; ``stalls`` counts how
    often a worker became stuck. ``paused``: 1 while an operator holds its requests back, because of
    ``pause_why``, for ``paused_for_s`` more (0: until it is resumed). An operator drains
    ``drained`` of the workers. ``bound`` says what of the service's limits bounds it now, and ``held_back``
    requests wait because of ``running_max`` or ``requests_per_s``.

    ``versions`` counts the workers of each version, those without one under ""; empty if none has one.
    ``description``: how most workers describe it, "" if none does.
    """

    service: str
    workers: int
    idle: int
    in_flight: int
    queued: int
    accepted: int
    answered: int
    failed: int
    refused: int
    expired: int
    poisoned: int
    lost: int
    returned: int
    redelivered: int
    duplicates: int
    latency_counts: list[int]
    latency_sum_s: float
    cancelled: int = 0
    workers_lost: int = 0
    oldest_waiting_s: float = 0.0
    oldest_running_s: float = 0.0
    recent: dict[str, int] = {}
    stuck: int = 0
    stalls: int = 0
    paused: int = 0
    pause_why: str = ""
    paused_for_s: float = 0.0
    drained: int = 0
    declined: int = 0
    versions: dict[str, int] = {}
    description: str = ""
    bound: str = ""
    held_back: int = 0


class WorkerState(msgspec.Struct, frozen=True):
    """One registered worker. ``silent_s``: how long it has been stuck, 0 if it is not. ``drain_why``: who
    drains it and why; its ``credit`` is 0 then.
    """

    worker: str
    service: str
    dialect: str
    credit: int
    in_flight: int
    expires_in_s: float
    silent_s: float = 0.0
    drain_why: str = ""


class ListedWorker(WorkerState, frozen=True):
    """One worker for operators. ``host``, ``pid``, ``version`` (of the library) and ``service_version`` are
    what it reported, empty and 0 without a report. ``address`` is where it connects from. It has been
    registered for ``registered_s``. An empty ``address`` and None are those of a node that tells nothing of
    them.
    """

    host: str = ""
    pid: int = 0
    address: str = ""
    version: str = ""
    registered_s: float | None = None
    service_version: str = ""


class RequestState(msgspec.Struct, frozen=True):
    """A request that waits or that a worker holds, or ``requests`` of one batch, the first of them named.

    ``worker`` is empty while it waits. ``deliveries`` counts the workers that have got it. It leaves the
    queue in ``expires_in_s``. Its worker has held it for ``held_s``. ``is_given_up``: it was cancelled,
    or its client left; a worker that has it runs on, and the answer is dropped.
    """

    request: str
    service: str
    dialect: str
    client: str
    age_s: float
    body_bytes: int
    deliveries: int
    requests: int = 1
    worker: str = ""
    held_s: float = 0.0
    expires_in_s: float = 0.0
    is_given_up: bool = False


class BrokerState(msgspec.Struct, frozen=True):
    """The broker's tables. ``drops`` counts dropped messages, by reason.

    ``past`` are services that were forgotten, because no peer offered or asked for them for a while; they
    keep their counters.
    """

    is_serving: bool
    is_draining: bool
    workers: int
    queued: int
    queued_bytes: int
    in_flight: int
    clients: int
    services: list[ServiceState]
    drops: dict[str, int]
    past: list[ServiceState] = []


class PairState(msgspec.Struct, frozen=True):
    """The Binary Star: this node and what it knows of its peer. ``peer_age_s`` is None if it was never heard.

    ``is_peer_fresh``: it was heard within the failover timeout and is not known to have gone since. A peer
    that was asked whether it serves is given time for its answer, but only the answer makes it fresh.
    ``retry_after_s`` tells how long until a request could turn this node active: 0 at once, None not by a
    request. ``is_peer_gone``: the peer is silent because its process has ended. Counters count since the node
    started; ``peer_ignored`` counts state messages that were not believed, by reason.

    ``epoch_error`` says why the epoch could not be stored in ``state_dir`` yet; "" if it is.
    ``peer_fault`` says why the last handshake with the peer failed; "" if it did not.
    ``fronts_apart`` says which fronts only one of the nodes serves; "" if both serve the same.

    ``clients_cut_off`` clients have asked this passive node for ``clients_cut_off_s``, because they do not
    reach the active one; ``clients_cut_off_unserved`` others ask for services without a worker here.
    ``cut_off_handovers`` counts how often this node gave the role up for that.

    Takeovers are paused for ``paused_for_s`` more, because of ``pause_why``; 0 if they are not. ``is_held``:
    the pause keeps this node from serving. ``is_pause_shared``: the peer knows the last order as well.
    ``drained_why``: an operator has taken the node out of the pair; "" otherwise.

    ``ordered_moves`` counts how often this node gave the role up, or got it, because of an order: a
    switchover, a drain or a stop.
    """

    pair: str
    role: str
    node: str
    state: str
    is_active: bool
    epoch: int
    epoch_seen: int
    peer_state: str | None
    peer_age_s: float | None
    votes: int
    transitions: dict[str, int]
    is_peer_fresh: bool = False
    retry_after_s: float | None = None
    failover_timeout_s: float = 0.0
    stalls: int = 0
    requests_refused: int = 0
    peer_messages: int = 0
    peer_ignored: dict[str, int] = {}
    epochs_ignored: int = 0
    epoch_error: str = ""
    peer_fault: str = ""
    fronts_apart: str = ""
    is_leaving: bool = False
    is_peer_gone: bool = False
    quorum: "QuorumState | None" = None
    peers_gone: int = 0
    clients_cut_off: int = 0
    clients_cut_off_unserved: int = 0
    clients_cut_off_s: float = 0.0
    cut_off_handovers: int = 0
    paused_for_s: float = 0.0
    pause_why: str = ""
    is_pause_shared: bool = True
    is_held: bool = False
    drained_why: str = ""
    ordered_moves: int = 0

    @property
    def is_drained(self) -> bool:
        """True while an operator keeps the node out of the pair."""
        return self.drained_why != ""

    @property
    def is_paused(self) -> bool:
        """True while takeovers are paused."""
        return self.paused_for_s > 0


class QuorumState(msgspec.Struct, frozen=True):
    """The three voters, where there is an arbiter. ``is_arbiter_heard``: it answered within the failover
    timeout. A grant is fresh while this node may rely on it. ``majorities_lost`` counts how often this node
    had to stop serving because neither confirmed it.
    """

    arbiter: str
    has_majority: bool
    is_arbiter_heard: bool
    is_arbiter_granting: bool
    is_peer_granting: bool
    majorities_lost: int = 0


class LoopState(msgspec.Struct, frozen=True):
    """The event loop that carries the node. Lag is how late a deadline was served, in seconds.

    ``lag_counts`` are per bucket of ``lag_bounds_s``, with one more for what lies above. ``cpu_s`` is the CPU
    time of the whole process since it began.

    ``is_short_of_descriptors``: new connections wait, because the process uses nearly all of the
    ``descriptors_max`` that it may have; ``descriptor_shortages`` counts how often that began.
    """

    uptime_s: float
    turns: int
    lag_last_s: float
    lag_max_s: float
    lag_sum_s: float
    lag_bounds_s: list[float]
    lag_counts: list[int]
    cpu_s: float = 0.0
    descriptors_max: int = 0
    is_short_of_descriptors: bool = False
    descriptor_shortages: int = 0
    connections: "ConnectionsState | None" = None


class ConnectionsState(msgspec.Struct, frozen=True):
    """Who connects to the endpoint of clients and workers. ``count`` connections are open.

    ``accepted`` counts them, and ``hung_up`` those that the node ended. ``attempts_dropped`` counts requests
    for a connection that the kernel dropped. ``networks_held_off`` and ``are_all_held_off``: who may open
    none now.
    """

    count: int
    accepted: int
    hung_up: int
    attempts_dropped: int
    networks_held_off: int
    are_all_held_off: bool


class JournalState(msgspec.Struct, frozen=True):
    """The node's journal. Counters count since the node started: records and bytes written, records that did
    not fit into the buffer (``dropped_requests`` of them about single requests), errors of the disk.
    """

    directory: str
    records: int
    octets: int
    segments: int
    dropped: int
    dropped_requests: int
    errors: int


class SecurityState(msgspec.Struct, frozen=True):
    """Who may connect. ``is_on`` is False without a key: then every peer that reaches the node may do all.

    ``admitted`` counts connections, ``refusals`` those that the ZAP handler refused, by reason. ``error``
    tells why the node could not start with the list of principals as it is now; "" if it could.
    """

    is_on: bool
    principals: int = 0
    admitted: int = 0
    refusals: dict[str, int] = {}
    error: str = ""

    @property
    def is_list_broken(self) -> bool:
        """True if the list changed and a node could not start with it."""
        return self.error != ""


class Standing(enum.StrEnum):
    """Where a node stands. Scripts read the values, so they never change."""

    SERVES = "serves"
    STANDS_BY = "stands-by"
    PEER_SILENT = "peer-silent"  # the next request makes the node active
    STARTING = "starting"
    NEVER_MET_PRIMARY = "never-met-primary"
    NO_MAJORITY = "no-majority"
    HELD = "held"  # the peer is silent, and an operator has paused takeovers
    DRAINING = "draining"
    DRAINED = "drained"  # an operator has taken the node out of the pair
    ERROR = "error"


class Readiness(msgspec.Struct, frozen=True):
    """True if a node can play its part in the pair; the reason as a word (a ``Standing``, or one of a newer
    node) and as a sentence.
    """

    is_ready: bool
    reason: str
    why: str


class DiskState(msgspec.Struct, frozen=True):
    """The disk of the durable store. ``sync_counts`` counts syncs by their seconds (``sync_bounds_s``, and
    one bucket above); ``error`` says why the last order failed, or that the disk hangs, "" otherwise.
    ``damaged`` counts records and entries whose checksums were wrong. ``oldest_due_ms``: since when the
    request has been due that has waited longest (Unix milliseconds, 0: none is due); it may be some seconds
    old. ``damage``: why this copy is to be replaced by the peer's, "" if it is whole; ``repairs``: how often
    that was done since the start, and ``repaired`` what was wrong then. ``is_in_memory``: there is no disk,
    and ``free_bytes`` is the memory that is left (0: unknown).
    """

    free_bytes: int
    file_bytes: int
    waiting: int
    commits: int
    sync_bounds_s: list[float]
    sync_counts: list[int]
    sync_sum_s: float
    damaged: int = 0
    error: str = ""
    oldest_due_ms: int = 0
    damage: str = ""
    repairs: int = 0
    repaired: str = ""
    is_in_memory: bool = False

    @property
    def disk_free_bytes(self) -> int | None:
        """``free_bytes``; None without a disk."""
        return None if self.is_in_memory else self.free_bytes

    @property
    def is_failing(self) -> bool:
        """True if the last order failed, or the disk hangs."""
        return self.error != ""


class RequestProgress(msgspec.Struct, frozen=True):
    """How far the handler of a durable request is, as it has reported last (``wire.progress``)."""

    id: str
    service: str
    progress: Progress


class StoreState(msgspec.Struct, frozen=True):
    """The durable store. Counts of requests are those of its table, ``acknowledged`` and the other totals
    since the node began to serve or started.

    ``is_leading``: it takes durable requests; ``trouble`` says why it does not although the node serves.
    ``copies``: on how many disks an acknowledged request is now. ``lag_entries``: how far the follower's disk
    is behind the leader's. ``catch_up`` is the part of a lagging copy's way that is done, 1.0 if it lags not.
    ``running``: requests at the broker, waiting for a worker or at one. ``oldest_pending_s``: since when the
    oldest request that is due waits. ``lag_s``: for how long the follower's disk has been behind. ``ended``
    counts the ends that this node applied: states, and "declined", which is not among the "dead" there.
    ``acknowledged_alone``: those acknowledged with one copy.
    ``progress``: of requests whose handlers report it, a bounded number.
    """

    is_leading: bool
    trouble: str
    copies: int
    epoch: int
    last: int
    committed: int
    applied: int
    lag_entries: int
    is_peer_heard: bool
    catch_up: float
    pending: int
    answered: int
    dead: int
    cancelled: int
    octets: int
    requests_max: int
    octets_max: int
    running: int
    waiting_fetches: int
    acknowledged: int
    attempts: dict[str, int]
    oldest_pending_s: float = 0.0
    disk: DiskState | None = None
    lag_s: float = 0.0
    ended: dict[str, int] = {}
    acknowledged_alone: int = 0
    scheduled: int = 0
    progress: list[RequestProgress] = []

    @property
    def is_in_trouble(self) -> bool:
        """True if the node should lead the store and does not, or cannot go on alone."""
        return self.trouble != ""


class FrontState(msgspec.Struct, frozen=True):
    """One front. ``peers`` counts the peers of each kind; ``counts`` are its own counters, by name, and
    ``levels`` what it has now. ``error``: why it does not serve, or "".
    """

    name: str
    peers: dict[str, int]
    counts: dict[str, int] = {}
    error: str = ""
    levels: dict[str, int] = {}


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with the node, or with ``service``, and what to do about it (``findings``).

    ``severity`` is critical or warning. ``alert`` is the rule in configs/alerts.yml and the heading of the
    runbook, or "". The finding has held for ``for_s``.
    """

    name: str
    severity: str
    alert: str
    why: str
    do: str
    service: str = ""
    for_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.why}: {self.do}" if self.do else self.why


class PeerChange(msgspec.Struct, frozen=True):
    """The peer as this node hears it: its state, or SILENT. ``at``: Unix microseconds."""

    at: int
    state: str


class ShellState(msgspec.Struct, frozen=True):
    """What only the shell of a node knows: ``epoch_error`` and ``peer_fault`` of ``PairState``, and fields of
    ``NodeState``.
    """

    epoch_error: str = ""
    peer_fault: str = ""
    loop: LoopState | None = None
    journal: JournalState | None = None
    security: SecurityState | None = None
    history: list[RoleChange] = []
    peer_history: list[PeerChange] = []
    fronts: list[FrontState] = []


class NodeState(msgspec.Struct, frozen=True):
    """A whole node. ``loop`` is None where no event loop carries it (a simulator, a test),
    ``journal`` where none is kept, ``security`` where no sockets are, ``store`` without a durable store.
    ``history`` has the last changes of its role, the latest one last; ``peer_history`` those of the peer
    since this node started. ``findings`` are what is wrong, the worst first; None where nothing looks.
    """

    version: str
    pair: PairState
    broker: BrokerState
    readiness: Readiness
    loop: LoopState | None = None
    journal: JournalState | None = None
    security: SecurityState | None = None
    store: StoreState | None = None
    fronts: list[FrontState] = []
    history: list[RoleChange] = []
    peer_history: list[PeerChange] = []
    findings: list[Finding] | None = None
