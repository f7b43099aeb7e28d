"""How a node's shell stands, for ``Node.state``: its keys, its connections, its loop."""

import time

from bstar.net.agenda import LAG_BOUNDS_S
from bstar.net.curve import Gate
from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar_broker.core.snapshot import ConnectionsState, LoopState, SecurityState


def security_state(gate: Gate | None) -> SecurityState:
    """Who may connect, and who was refused."""
    if gate is None:
        return SecurityState(is_on=False)
    return SecurityState(
        is_on=True,
        principals=len(gate.security.principals.all),
        admitted=gate.doorkeeper.admitted.total(),
        refusals=dict(gate.doorkeeper.refusals),
        error=gate.security.error,
    )


def loop_state(reactor: Reactor, listener: Listener, uptime_s: float) -> LoopState:
    """How late the loop is, and what it holds open."""
    lag = reactor.lag
    return LoopState(
        uptime_s=uptime_s,
        turns=reactor.turns,
        lag_last_s=lag.last_s,
        lag_max_s=lag.max_s,
        lag_sum_s=lag.sum_s,
        lag_bounds_s=list(LAG_BOUNDS_S),
        lag_counts=list(lag.counts),
        cpu_s=time.process_time(),
        descriptors_max=listener.descriptors.maximum,
        is_short_of_descriptors=listener.descriptors.is_short,
        descriptor_shortages=listener.descriptors.shortages,
        connections=ConnectionsState(
            count=len(listener.open),
            accepted=listener.accepted,
            hung_up=listener.hang_ups,
            attempts_dropped=listener.filter.dropped(),
            networks_held_off=len(listener.budget.held),
            are_all_held_off=listener.budget.is_all_held,
        ),
    )
