"""Snapshots of nodes, made to measure."""

from __future__ import annotations

from typing import Any

import msgspec

from bstar_broker.core.findings import Findings
from bstar_broker.core.readiness import readiness
from bstar_broker.core.records import LATENCY_BOUNDS_S
from bstar_broker.core.snapshot import (
    BrokerState,
    ConnectionsState,
    DiskState,
    LoopState,
    NodeState,
    PairState,
    SecurityState,
    ServiceState,
    StoreState,
)


def service_state(name: str, **changes: Any) -> ServiceState:
    """A service that nothing has happened to, but for the changes."""
    values: dict[str, Any] = dict.fromkeys(
        (field.name for field in msgspec.structs.fields(ServiceState) if field.type is int), 0
    )
    values |= {"service": name, "latency_counts": [0] * (len(LATENCY_BOUNDS_S) + 1), "latency_sum_s": 0.0}
    return ServiceState(**(values | changes))


def disk_state(**changes: Any) -> DiskState:
    """A disk in order, but for the changes."""
    values: dict[str, Any] = {
        "free_bytes": 1 << 36,
        "file_bytes": 1 << 20,
        "waiting": 2,
        "commits": 7,
        "sync_bounds_s": [0.001, 0.01, 0.1],
        "sync_counts": [4, 2, 0, 1],
        "sync_sum_s": 0.5,
    }
    return DiskState(**(values | changes))


def store_state(*, disk: DiskState | None = None, **changes: Any) -> StoreState:
    """A store that leads with two copies and holds ten requests, but for the changes."""
    values: dict[str, Any] = {
        "is_leading": True,
        "trouble": "",
        "copies": 2,
        "epoch": 1,
        "last": 40,
        "committed": 39,
        "applied": 38,
        "lag_entries": 0,
        "is_peer_heard": True,
        "catch_up": 1.0,
        "pending": 4,
        "answered": 3,
        "dead": 2,
        "cancelled": 1,
        "octets": 1_000,
        "requests_max": 10_000_000,
        "octets_max": 1 << 36,
        "running": 2,
        "waiting_fetches": 1,
        "acknowledged": 12,
        "attempts": {"answered": 3, "failed": 5, "returned": 1},
        "disk": disk_state() if disk is None else disk,
        "ended": {"answered": 6, "dead": 2},
    }
    return StoreState(**(values | changes))


def node_state(
    *services: ServiceState,
    loop: bool = True,
    is_short_of_descriptors: bool = False,
    drops: dict[str, int] | None = None,
    is_draining: bool = False,
    past: tuple[ServiceState, ...] = (),
    store: StoreState | None = None,
    security: SecurityState | None = None,
    **pair: Any,
) -> NodeState:
    """A passive backup beside a living primary, but for the changes."""
    pair_values: dict[str, Any] = {
        "pair": "bstar",
        "role": "backup",
        "node": "00ff",
        "state": "PASSIVE",
        "is_active": False,
        "epoch": 0,
        "epoch_seen": 1,
        "peer_state": "ACTIVE",
        "peer_age_s": 0.05,
        "votes": 0,
        "transitions": {"BACKUP->PASSIVE": 1},
        "is_peer_fresh": True,
        "retry_after_s": 0.25,
        "failover_timeout_s": 0.3,
    }
    pair_state = PairState(**(pair_values | pair))
    return NodeState(
        version="1.2.3",
        pair=pair_state,
        readiness=readiness(pair_state, is_draining=is_draining),
        security=security,
        broker=BrokerState(
            is_serving=pair_state.is_active,
            is_draining=is_draining,
            workers=sum(service.workers for service in services),
            queued=sum(service.queued for service in services),
            queued_bytes=123,
            in_flight=sum(service.in_flight for service in services),
            clients=2,
            services=list(services),
            drops=drops or {},
            past=list(past),
        ),
        loop=LoopState(
            uptime_s=12.5,
            turns=99,
            lag_last_s=0.001,
            lag_max_s=0.25,
            lag_sum_s=0.5,
            lag_bounds_s=[0.001, 0.01, 0.1],
            lag_counts=[5, 3, 1, 1],
            descriptors_max=1024,
            is_short_of_descriptors=is_short_of_descriptors,
            descriptor_shortages=3,
            connections=ConnectionsState(8, 50, 2, 7, networks_held_off=1, are_all_held_off=False),
        )
        if loop
        else None,
        store=store,
    )


def looked(state: NodeState) -> NodeState:
    """The state with what its node finds wrong; its loop and its connections are in order."""
    loop = state.loop
    if loop is not None and loop.connections is not None:
        calm = msgspec.structs.replace(loop.connections, networks_held_off=0)
        loop = msgspec.structs.replace(loop, descriptor_shortages=0, connections=calm)
    state = msgspec.structs.replace(state, loop=loop)
    return msgspec.structs.replace(state, findings=Findings().look(state, 0.0))
