"""A node's metrics for Prometheus, made from one ``NodeState`` when it is scraped.

The core counts in plain integers and knows nothing of Prometheus; nothing is counted here. A scrape makes one
snapshot, so all its figures belong to the same moment. If the snapshot does not come in time the scrape fails
and ``up`` is 0, because half a page of metrics looks like health.

Labels are bounded. ``from``, ``to``, ``outcome``, ``reason``, ``voter``, ``about``, ``front``, ``kind``,
``event`` and ``level`` come from closed sets of ours; no text of a message becomes one. Workers choose the
names of services, so at most ``services_max`` services get series of their own. A service keeps its series;
one that the broker has forgotten gives them up to one that needs them. All others are summed as
``service="other"``, and so is a service of that very name. No counter goes down: ``other`` grows by what its
services count while they are part of it.

Nothing that is unknown is invented: ``bstar_peer_age_seconds`` is absent until the peer was heard once, and
``bstar_peer_state`` is then UNKNOWN. ``bstar_peer_fresh`` is always there, for alerts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily as Counter
from prometheus_client.metrics_core import GaugeMetricFamily as Gauge
from prometheus_client.metrics_core import (
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

from bstar_broker.core.records import COUNTERS, LATENCY_BOUNDS_S, OUTCOMES
from bstar_broker.core.snapshot import (
    BrokerState,
    DiskState,
    FrontState,
    JournalState,
    LoopState,
    NodeState,
    PairState,
    QuorumState,
    ServiceState,
    StoreState,
)

# A service has some thirty series, so this is a page that a Prometheus server takes without a thought.
SERVICES_MAX = 200

OTHER = "other"

STORE_STATES = ("pending", "answered", "dead", "cancelled")
"""Where a durable request in the store is."""
STORE_ENDS = ("answered", "dead", "declined", "cancelled")
"""How a durable request ends. Among those in the store, declined ones are dead."""

_STATES = ("PRIMARY", "BACKUP", "ACTIVE", "PASSIVE", "ERROR")
_PEER_STATES = ("PRIMARY", "BACKUP", "ACTIVE", "PASSIVE", "UNKNOWN")
# What it has at the moment, in sum.
_GAUGES = ("workers", "stuck", "in_flight", "queued", "held_back", "paused")

Row = tuple[type[Gauge | Counter], str, str, str]
"""Kind, name, field of the state that the table is about, text. A field that is None has no metric."""

# fmt: off
_OF_PAIR: tuple[Row, ...] = (
    (Gauge, "bstar_active", "is_active",
     "1 if this node serves. The sum over a pair must be 1; more than 1, if it lasts, is an alarm."),
    (Gauge, "bstar_epoch", "epoch", "The epoch of this node's last activation, 0 if it never was active."),
    (Gauge, "bstar_epoch_seen", "epoch_seen", "The highest epoch this node has heard of."),
    (Counter, "bstar_votes", "votes", "Requests that counted as a vote for this node."),
    (Counter, "bstar_stalls", "stalls", "Pauses of this process that cost it the active role."),
    (Counter, "bstar_requests_not_admitted", "requests_refused",
     "Requests that came while this node was not active and did not make it so."),
    (Counter, "bstar_cut_off_handovers", "cut_off_handovers",
     "Times that this node gave the role up because clients reached its peer only."),
    (Gauge, "bstar_drained", "is_drained", "1 while an operator keeps this node out of the pair."),
    (Gauge, "bstar_takeovers_paused", "is_paused", "1 while an operator's pause holds takeovers back."),
    (Counter, "bstar_epochs_ignored", "epochs_ignored",
     "Epochs in messages of workers or in state messages that are too far above to be believed."),
    (Gauge, "bstar_peer_fresh", "is_peer_fresh",
     "1 if the peer was heard within the failover timeout and is not known to have gone since."),
    (Gauge, "bstar_failover_timeout_seconds", "failover_timeout_s",
     "The silence after which this node counts its peer as dead, as it is now."),
    (Gauge, "bstar_peer_age_seconds", "peer_age_s",
     "Time since the peer's last message; absent before the first."),
    (Counter, "bstar_peers_gone", "peers_gone",
     "Times that the peer's process was found gone: its connection broke and its endpoint refused."),
    (Counter, "bstar_peer_messages", "peer_messages", "State messages of the peer."),
)
_OF_QUORUM: tuple[Row, ...] = (
    (Gauge, "bstar_majority", "has_majority",
     "1 if this node holds the majority of the two nodes and the arbiter. Absent without an arbiter."),
    (Gauge, "bstar_arbiter_fresh", "is_arbiter_heard",
     "1 if the arbiter answered this node within the failover timeout."),
    (Counter, "bstar_majorities_lost", "majorities_lost",
     "Times that this node stopped serving because neither its peer nor the arbiter confirmed it."),
)
_OF_BROKER: tuple[Row, ...] = (
    (Gauge, "bstar_draining", "is_draining", "1 if this node finishes its work and gives out none."),
    (Gauge, "bstar_queue_bytes", "queued_bytes", "Bytes of the bodies waiting in all queues."),
    (Gauge, "bstar_clients", "clients", "Clients that have a request here."),
)
_OF_LOOP: tuple[Row, ...] = (
    (Gauge, "bstar_uptime_seconds", "uptime_s", "Time since the event loop started."),
    (Counter, "bstar_loop_turns", "turns", "Turns of the event loop."),
    (Gauge, "bstar_loop_lag_max_seconds", "lag_max_s",
     "The latest that a deadline was served since the start."),
    (Gauge, "bstar_descriptors_max", "descriptors_max", "Descriptors that the process may have."),
    (Gauge, "bstar_descriptors_short", "is_short_of_descriptors",
     "1 while new connections wait for a descriptor, else 0."),
    (Counter, "bstar_descriptor_shortages", "descriptor_shortages",
     "Times that new connections had to wait for a descriptor."),
)
_OF_CONNECTIONS: tuple[Row, ...] = (
    (Gauge, "bstar_connections", "count", "Open connections of clients and workers."),
    (Counter, "bstar_connections_accepted", "accepted",
     "Connections accepted from clients, workers and strangers."),
    (Counter, "bstar_connections_hung_up", "hung_up",
     "Connections that the node ended: beyond a bound, or from where new ones are held off."),
    (Counter, "bstar_connection_attempts_dropped", "attempts_dropped",
     "Requests for a connection that the kernel dropped, because they are held off or its queue is full."),
    (Gauge, "bstar_networks_held_off", "networks_held_off",
     "Addresses (IPv6: /64) from which new connections are held off, for failed handshakes."),
    (Gauge, "bstar_all_held_off", "are_all_held_off",
     "1 while new connections from everywhere are held off, for failed handshakes."),
)
_OF_JOURNAL: tuple[Row, ...] = (
    (Counter, "bstar_journal_records", "records", "Records written. Absent where no journal is kept."),
    (Counter, "bstar_journal_bytes", "octets", "Bytes written, before they are packed."),
    (Counter, "bstar_journal_files", "segments", "Files begun."),
    (Counter, "bstar_journal_errors", "errors",
     "Times that the journal could not be written or looked after."),
)
_OF_SECURITY: tuple[Row, ...] = (
    (Gauge, "bstar_security_on", "is_on",
     "1 if every connection is encrypted and authenticated; 0: whoever reaches the node may do everything."),
    (Gauge, "bstar_principals", "principals", "Entries in the list of those who may connect."),
    (Gauge, "bstar_principals_broken", "is_list_broken",
     "1 if the list of principals changed and a node could not start with it."),
    (Counter, "bstar_connections_admitted", "admitted", "Connections that proved a key of the list."),
)
_OF_STORE: tuple[Row, ...] = (
    (Gauge, "bstar_store_leading", "is_leading",
     "1 if this node takes durable requests. Absent without a durable store, like all of bstar_store_."),
    (Gauge, "bstar_store_trouble", "is_in_trouble",
     "1 if this node should lead the store and does not; its status says why."),
    (Gauge, "bstar_store_copies", "copies",
     "On how many nodes a durable request is when it is acknowledged now."),
    (Gauge, "bstar_store_peer_heard", "is_peer_heard", "1 if the peer's store answers."),
    (Gauge, "bstar_store_last_entry", "last", "The number of the last entry of this node's log."),
    (Gauge, "bstar_store_applied_entry", "applied", "The number of the last entry that the table has."),
    (Gauge, "bstar_store_lag_entries", "lag_entries", "Entries that the follower's copy is behind."),
    (Gauge, "bstar_store_lag_seconds", "lag_s", "For how long the follower's copy has been behind."),
    (Gauge, "bstar_store_catch_up_ratio", "catch_up",
     "The part of its way that a lagging copy has made, from 0 to 1; 1 if none lags."),
    (Gauge, "bstar_store_requests_max", "requests_max", "Durable requests that the store may hold."),
    (Gauge, "bstar_store_bytes", "octets", "Bytes of the bodies and answers in the store."),
    (Gauge, "bstar_store_bytes_max", "octets_max", "Bytes of them that the store may hold."),
    (Gauge, "bstar_store_oldest_pending_seconds", "oldest_pending_s",
     "For how long the oldest durable request that is due has waited; 0 if none is."),
    (Gauge, "bstar_store_running", "running",
     "Durable requests at the broker: at a worker, or waiting for one."),
    (Gauge, "bstar_store_waiting_fetches", "waiting_fetches", "Clients that wait for an answer."),
    (Counter, "bstar_store_acknowledged", "acknowledged", "Durable requests acknowledged by this node."),
    (Counter, "bstar_store_acknowledged_alone", "acknowledged_alone",
     "Durable requests acknowledged while they were on one node only."),
)
_OF_DISK: tuple[Row, ...] = (
    (Gauge, "bstar_store_disk_free_bytes", "disk_free_bytes", "Free bytes where the store is."),
    (Gauge, "bstar_store_file_bytes", "file_bytes", "Bytes that the store's files take."),
    (Gauge, "bstar_store_orders_waiting", "waiting", "Orders that wait for the disk's thread."),
    (Counter, "bstar_store_commits", "commits", "Transactions, each with one sync at most."),
    (Gauge, "bstar_store_damaged", "damaged",
     "Damaged records of the store; 1 at least while its copy is damaged or replaced by the peer's."),
    (Counter, "bstar_store_repairs", "repairs", "Damaged copies that the peer's copy has replaced."),
    (Gauge, "bstar_store_disk_failing", "is_failing",
     "1 if the store did not carry out the last order, or its disk hangs."),
)
_OF_SERVICES: tuple[Row, ...] = (
    (Counter, "bstar_requests_accepted", "accepted", "Requests accepted."),
    (Counter, "bstar_redeliveries", "redelivered",
     "Requests dispatched to another worker because the first was lost."),
    (Counter, "bstar_duplicates", "duplicates", "Repetitions of a request that the node has."),
    (Counter, "bstar_workers_lost", "workers_lost", "Workers that were lost while they held requests."),
    (Gauge, "bstar_queue_length", "queued", "Requests waiting for a worker."),
    (Gauge, "bstar_workers", "workers", "Registered workers."),
    (Gauge, "bstar_workers_stuck", "stuck",
     "Live workers without heartbeats: a handler holds the GIL or blocks the loop."),
    (Counter, "bstar_worker_stalls", "stalls",
     "Times that a live worker became stuck; see bstar_workers_stuck."),
    (Gauge, "bstar_service_paused", "paused", "1 while an operator's pause holds its requests back."),
    (Gauge, "bstar_requests_held_back", "held_back",
     "Waiting requests that running_max or requests_per_s of their service holds back."),
    (Gauge, "bstar_requests_in_flight", "in_flight", "Requests that workers hold."),
    (Gauge, "bstar_oldest_waiting_seconds", "oldest_waiting_s",
     "Age of the oldest waiting request, 0 if none waits."),
    (Gauge, "bstar_oldest_running_seconds", "oldest_running_s",
     "How long a worker has held the oldest request in flight, 0 without one."),
)
# fmt: on


def make_registry(snapshot: Callable[[], NodeState]) -> CollectorRegistry:
    """A registry of its own with the node's metrics and those of this process.

    ``snapshot`` may raise TimeoutError when the node does not answer; collecting raises it then.
    """
    registry = CollectorRegistry()
    registry.register(NodeCollector(snapshot))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    """Turns a snapshot into metric families, again at each scrape."""

    def __init__(self, snapshot: Callable[[], NodeState], *, services_max: int = SERVICES_MAX) -> None:
        self._snapshot = snapshot
        self._services_max = services_max
        # Services with series of their own; a name that came first is not pushed out by a later one.
        self._named: frozenset[str] = frozenset()
        # What ``other`` has counted, and every service as the last scrape saw it.
        self._other: ServiceState | None = None
        self._before: dict[str, ServiceState] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing: a snapshot must not be needed for registering."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One snapshot as metric families."""
        state = self._snapshot()
        pair = state.pair
        info = {"version": state.version, "pair": pair.pair, "role": pair.role, "node": pair.node}
        yield InfoMetricFamily("bstar", "What this node is; node names this run of the process.", info)
        yield from _pair(pair)
        if pair.quorum is not None:
            yield from _quorum(pair.quorum)
        yield from _broker(state.broker)
        yield from _services(self._grouped(state.broker))
        if state.loop is not None:
            yield from _loop(state.loop)
        if state.journal is not None:
            yield from _journal(state.journal)
        if state.store is not None:
            yield from _store(state.store)
        if state.fronts:
            yield from _fronts(state.fronts)
        if state.security is not None:
            yield from _plain(_OF_SECURITY, state.security)
            text = "Connections refused: key not in the list, role that does not fit, entry beyond a bound."
            yield _labelled(Counter, "bstar_connections_refused", text, "reason", state.security.refusals)

    def _grouped(self, broker: BrokerState) -> list[ServiceState]:
        """One state for each label value."""
        past = {state.service for state in broker.past}
        states = {
            state.service: state for state in (*broker.services, *broker.past) if state.service != OTHER
        }
        # Those of the moment come first, and of these the ones that have series already.
        wanted = sorted(states, key=lambda name: (name in past, name not in self._named))
        self._named = frozenset(wanted[: self._services_max])
        groups = [states[name] for name in states if name in self._named]
        rest = [state for state in (*broker.services, *broker.past) if state.service not in self._named]
        for state in rest:
            before = self._before.get(state.service)
            grown = state if before is None else _moved(before, state)
            self._other = grown if self._other is None else _plus(self._other, grown)
        self._before = {state.service: state for state in (*broker.services, *broker.past)}
        if self._other is not None:
            groups.append(_now(self._other, rest))
        return groups


def _plus(one: ServiceState, more: ServiceState) -> ServiceState:
    """The counters of both together."""
    return msgspec.structs.replace(
        one,
        **{name: getattr(one, name) + getattr(more, name) for name in COUNTERS},
        latency_counts=[a + b for a, b in zip(one.latency_counts, more.latency_counts, strict=True)],
        latency_sum_s=one.latency_sum_s + more.latency_sum_s,
    )


def _moved(before: ServiceState, now: ServiceState) -> ServiceState:
    """What the counters grew by. If one is lower, the service began again, and all of ``now`` counts."""
    if any(getattr(now, name) < getattr(before, name) for name in COUNTERS):
        return now
    return msgspec.structs.replace(
        now,
        **{name: getattr(now, name) - getattr(before, name) for name in COUNTERS},
        latency_counts=[a - b for a, b in zip(now.latency_counts, before.latency_counts, strict=True)],
        latency_sum_s=now.latency_sum_s - before.latency_sum_s,
    )


def _now(counted: ServiceState, states: Sequence[ServiceState]) -> ServiceState:
    """These counters, beside what those services have at the moment."""
    return msgspec.structs.replace(
        counted,
        service=OTHER,
        **{name: sum(getattr(each, name) for each in states) for name in _GAUGES},
        oldest_waiting_s=max((each.oldest_waiting_s for each in states), default=0.0),
        oldest_running_s=max((each.oldest_running_s for each in states), default=0.0),
    )


def _plain(rows: Sequence[Row], state: object) -> Iterator[Metric]:
    for kind, name, field, text in rows:
        value = getattr(state, field)
        if value is not None:
            yield kind(name, text, value=float(value))


def _pair(pair: PairState) -> Iterator[Metric]:
    text = (
        "The state of this node: ACTIVE serves, PASSIVE stands by, PRIMARY and BACKUP have not met their "
        "peer, ERROR cannot go on."
    )
    yield _enum("bstar_state", text, _STATES, pair.state)
    yield from _plain(_OF_PAIR, pair)
    text = "1 while the last epoch could not be stored in state_dir."
    yield Gauge("bstar_epoch_unsaved", text, value=float(bool(pair.epoch_error)))
    text = "1 if only one node of the pair has some of the fronts that the two have."
    yield Gauge("bstar_fronts_apart", text, value=float(bool(pair.fronts_apart)))
    transitions = Counter("bstar_transitions", "Changes of this node's state.", labels=("from", "to"))
    for transition, count in sorted(pair.transitions.items()):
        old, _, new = transition.partition("->")
        transitions.add_metric((old, new), count)
    yield transitions
    # The first scrape has it, unlike a transition: Prometheus sees no increase in a series that begins.
    count = sum(count for transition, count in pair.transitions.items() if transition.endswith("->ACTIVE"))
    yield Counter("bstar_activations", "Times this node became active.", value=count)
    text = "Clients that ask this passive node because they do not reach the active one."
    yield Gauge("bstar_clients_cut_off", text, value=pair.clients_cut_off + pair.clients_cut_off_unserved)
    text = "The state in the peer's last message, UNKNOWN if there was none."
    yield _enum("bstar_peer_state", text, _PEER_STATES, pair.peer_state or "UNKNOWN")
    text = "State messages that this node did not believe, by reason."
    yield _labelled(Counter, "bstar_peer_messages_ignored", text, "reason", pair.peer_ignored)


def _quorum(quorum: QuorumState) -> Iterator[Metric]:
    yield from _plain(_OF_QUORUM, quorum)
    grants = {"arbiter": quorum.is_arbiter_granting, "peer": quorum.is_peer_granting}
    text = "1 while this node may rely on that voter's ballot."
    yield _labelled(Gauge, "bstar_grant_fresh", text, "voter", grants)


def _broker(broker: BrokerState) -> Iterator[Metric]:
    yield from _plain(_OF_BROKER, broker)
    text = "Workers that can take a request now, of all services."
    yield Gauge("bstar_workers_idle", text, value=sum(service.idle for service in broker.services))
    text = "Dropped messages, by reason (docs/operations.md, Refusals)."
    yield _labelled(Counter, "bstar_drops", text, "reason", broker.drops)


def _services(groups: Sequence[ServiceState]) -> Iterator[Metric]:
    requests = Counter(
        "bstar_requests", "Requests that ended or were refused, by outcome.", labels=("service", "outcome")
    )
    latency = HistogramMetricFamily(
        "bstar_request_latency_seconds",
        "From a request's acceptance to its final reply.",
        labels=("service",),
    )
    for state in groups:
        for outcome in OUTCOMES:
            requests.add_metric((state.service, outcome), getattr(state, outcome))
        buckets = _buckets(LATENCY_BOUNDS_S, state.latency_counts)
        latency.add_metric((state.service,), buckets, sum_value=state.latency_sum_s)
    yield requests
    yield latency
    for kind, name, field, text in _OF_SERVICES:
        family = kind(name, text, labels=("service",))
        for state in groups:
            family.add_metric((state.service,), getattr(state, field))
        yield family


def _loop(loop: LoopState) -> Iterator[Metric]:
    yield from _plain(_OF_LOOP, loop)
    if loop.connections is not None:
        yield from _plain(_OF_CONNECTIONS, loop.connections)
    lag = HistogramMetricFamily("bstar_loop_lag_seconds", "How late the event loop served its deadlines.")
    lag.add_metric((), _buckets(loop.lag_bounds_s, loop.lag_counts), sum_value=loop.lag_sum_s)
    yield lag


def _journal(journal: JournalState) -> Iterator[Metric]:
    yield from _plain(_OF_JOURNAL, journal)
    text = "Records that did not fit into the journal's buffer."
    dropped = {"requests": journal.dropped_requests, "events": journal.dropped - journal.dropped_requests}
    yield _labelled(Counter, "bstar_journal_dropped", text, "about", dropped)


def _store(store: StoreState) -> Iterator[Metric]:
    yield from _plain(_OF_STORE, store)
    states = {name: getattr(store, name) for name in STORE_STATES}
    text = "Durable requests in the store, by state."
    yield _labelled(Gauge, "bstar_store_requests", text, "state", states)
    # The first scrape has them all: Prometheus sees no increase in a series that begins.
    ended = {name: store.ended.get(name, 0) for name in STORE_ENDS}
    yield _labelled(Counter, "bstar_store_ended", "Durable requests that ended, by state.", "state", ended)
    text = "Attempts at durable requests that ended at the broker."
    yield _labelled(Counter, "bstar_store_attempts", text, "end", store.attempts)
    if store.disk is not None:
        yield from _disk(store.disk)


def _disk(disk: DiskState) -> Iterator[Metric]:
    yield from _plain(_OF_DISK, disk)
    sync = HistogramMetricFamily("bstar_store_sync_seconds", "How long a sync of the store takes.")
    sync.add_metric((), _buckets(disk.sync_bounds_s, disk.sync_counts), sum_value=disk.sync_sum_s)
    yield sync


def _fronts(fronts: Sequence[FrontState]) -> Iterator[Metric]:
    peers = Gauge("bstar_front_peers", "Peers of a front, by kind.", labels=("front", "kind"))
    events = Counter("bstar_front_events", "What a front counts, by event.", labels=("front", "event"))
    levels = Gauge("bstar_front_level", "What a front has now, by name.", labels=("front", "level"))
    down = Gauge("bstar_front_down", "1 if a front does not serve; the status says why.", labels=("front",))
    for front in fronts:
        down.add_metric((front.name,), float(front.error != ""))
        for family, counts in ((peers, front.peers), (events, front.counts), (levels, front.levels)):
            for word, count in counts.items():
                family.add_metric((front.name, word), count)
    yield from (down, peers, events, levels)


class FrontCollector(Collector):
    """The metrics of a front that is a program of its own; ``states`` has its latest state."""

    def __init__(self, states: Sequence[FrontState]) -> None:
        self._states = states

    def describe(self) -> Iterable[Metric]:
        """Nothing: a state must not be needed for registering."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The state as metric families."""
        yield from _fronts(self._states)


def _labelled(
    kind: type[Gauge | Counter], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = kind(name, text, labels=(label,))
    for word, value in sorted(values.items()):
        family.add_metric((word,), float(value))
    return family


def _enum(name: str, text: str, states: Iterable[str], now: str) -> StateSetMetricFamily:
    return StateSetMetricFamily(name, text, value={state: state == now for state in states})


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Counts per bucket as Prometheus wants them: cumulated, each with its upper bound."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*(repr(float(bound)) for bound in bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
