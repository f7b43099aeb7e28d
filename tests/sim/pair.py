"""A pair: its two nodes, the link between them, their arbiter if they have one, and what must hold of it."""

from __future__ import annotations

from bstar.pair.shell import LAST_WORD_S
from bstar.settings.timing import Timing
from bstar.star import Role
from bstar.wire.description import ServiceLimits
from bstar_broker.core import BrokerSettings
from sim.arbiter import ArbiterLink, SimArbiter
from sim.checks import Checks
from sim.emq import RECOVERY_S as EMQ_RECOVERY_S
from sim.keys import KeyList
from sim.network import Path, Paths
from sim.node import RESTART_MAX_S, SimNode
from sim.peer_link import PeerLink
from sim.setup import Setup, names_of
from sim.store import GroupLoad, Log, SimDisk
from sim.world import World


class SimPair:
    """One pair of a run. ``name`` is empty where it is the only one."""

    def __init__(
        self,
        world: World,
        paths: Paths,
        setup: Setup,
        timing: Timing,
        name: str,
        *,
        checks: type[Checks] = Checks,
        node_class: type[SimNode] = SimNode,
        limits: BrokerSettings | None = None,
        keys: KeyList | None = None,
    ) -> None:
        self.name = name
        limits = limits or small_limits(timing, setup.running_max)
        self.checks = checks(world, setup.mood, limits)
        primary, backup, arbiter = names_of(name)
        self.primary, self.backup = self.nodes = tuple(
            node_class(
                world,
                role,
                timing,
                limits,
                self.checks,
                name=own,
                is_durable=setup.is_durable,
                on_dual_active=setup.on_dual_active,
                pipe_max=setup.pipe_max,
                keys=keys,
                fronts=setup.fronts,
            )
            for role, own in ((Role.PRIMARY, primary), (Role.BACKUP, backup))
        )
        if setup.has_store:
            log = Log(self.checks.add_store())
            for node in self.nodes:
                node.store_disk = SimDisk(world, node, log)
            GroupLoad(world, [node.store_disk for node in self.nodes if node.store_disk], setup.storm_s)
        self.peer_links: dict[str, PeerLink] = {}
        for publisher, subscriber in (self.nodes, self.nodes[::-1]):
            path = Path(world, f"peer {publisher.name}", setup.delay_s, setup.jitter_s)
            link = PeerLink(publisher, subscriber, path, timing, is_probing=setup.is_probing)
            publisher.publisher = subscriber.subscriber = link
            self.peer_links[publisher.name] = link
        self.arbiter = SimArbiter(world, arbiter) if setup.has_arbiter else None
        self.arbiter_links: dict[str, ArbiterLink] = {}
        if self.arbiter is not None:
            for node in self.nodes:
                there, back = paths.make(node.name, arbiter), paths.make(arbiter, node.name)
                node.arbiter_link = self.arbiter_links[node.name] = ArbiterLink(
                    node, self.arbiter, there, back
                )
        timeout_s, timeout_max_s = timing.failover_timeout_s, timing.failover_timeout_max_s
        # Until a subscriber is connected again after a fault of the link, and one more expiry.
        self.settle_s = 3 * timeout_max_s + 2 * max(0.2, timeout_s) + timing.heartbeat_interval_s
        worker_expiry_s = timing.worker_heartbeat_interval_s * timing.worker_liveness
        plain_expiry_s = timing.mdp_heartbeat_interval_s * timing.mdp_liveness
        # Half-open connections are found by heartbeats, then workers come back after a pause.
        self.recovery_s = 10 * timeout_max_s + 3 * worker_expiry_s + 8.0
        if setup.running_max is not None:
            self.recovery_s += worker_expiry_s  # a node that has just started waits for its workers
        if setup.is_plain:
            self.recovery_s += 3 * plain_expiry_s + 10.0
        if "emq" in setup.fronts:
            self.recovery_s += EMQ_RECOVERY_S
        self.settle_bound_s = 10 * timeout_max_s + 3.0
        if setup.on_dual_active == "exit":
            # The link heals, both find the other active, say a last word and are started again.
            self.settle_bound_s += LAST_WORD_S + RESTART_MAX_S
        self.checks.nodes = self.nodes
        self.checks.has_arbiter = setup.has_arbiter
        self.checks.running_max = setup.running_max
        self.checks.settle_s = self.settle_s
        self.checks.recovery_s = self.checks.begins_until = self.recovery_s
        self.checks.travel_s_max = self.travel_s_max

    @property
    def travel_s_max(self) -> float:
        """How long a word of one node to the other is under way at most, as things are."""
        return max(link.path.travel_max_s for link in self.peer_links.values()) + 0.002

    @property
    def processes(self) -> list[SimNode | SimArbiter]:
        """All of it."""
        return [*self.nodes, *([] if self.arbiter is None else [self.arbiter])]


def small_limits(timing: Timing, running_max: int | None = None) -> BrokerSettings:
    """Small tables, so that they get full; ``running_max``: that of the service work, if it has one."""
    return BrokerSettings(
        worker_heartbeat_interval_s=timing.worker_heartbeat_interval_s,
        worker_liveness=timing.worker_liveness,
        mdp_heartbeat_interval_s=timing.mdp_heartbeat_interval_s,
        mdp_liveness=timing.mdp_liveness,
        busy_timeout_s=timing.mdp_heartbeat_interval_s * timing.mdp_liveness,
        request_ttl_s=timing.request_ttl_s,
        client_check_interval_s=2 * timing.failover_timeout_s,
        service_ttl_s=timing.service_ttl_s,
        services_max=4,
        workers_max=12,
        queue_length_max=30,
        requests_per_client_max=25,
        services={} if running_max is None else {"work": ServiceLimits(running_max=running_max)},
    )
