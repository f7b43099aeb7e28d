"""A node that looks busy: each snapshot is a second of work further, for tests and pictures of its page."""

from __future__ import annotations

from typing import Any

import msgspec

from bstar.records.role import RoleChange
from bstar_broker.core.findings import Findings
from bstar_broker.core.records import LATENCY_BOUNDS_S
from bstar_broker.core.snapshot import FrontState, NodeState, PeerChange, QuorumState, SecurityState
from support.node_states import node_state, service_state, store_state
from support.status_site import FakeNode

# Where the counts of one second lie: around the fifth and around the tenth bound.
_QUICK, _SLOW = 5, 10


# What workers say of two of its services.
SAID: dict[str, dict[str, Any]] = {
    "price": {"versions": {"1.4": 4, "1.5": 2}, "description": "Price of an item, in cents."},
    "mail": {"versions": {"2026.11": 4}, "description": "Sends a mail once its order is paid."},
}


class BusyNode(FakeNode):
    """Serves as the primary of the pair ``orders``, but for ``changes`` of its pair."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes: dict[str, Any] = changes
        self.names = ["price", "invoice", "mail", "search"]
        self.history: list[RoleChange] = []
        self.peer_history: list[PeerChange] = []
        self.findings = Findings()

    def snapshot(self, timeout_s: float) -> NodeState:
        if isinstance(self.state, Exception):
            raise self.state
        self.asked += 1
        state = busy_state(self.asked, self.names, **self.changes)
        found = self.findings.look(state, float(self.asked))
        return msgspec.structs.replace(
            state, history=self.history, peer_history=self.peer_history, findings=found
        )


def busy_state(seconds: int, names: list[str], **changes: Any) -> NodeState:
    """The node after that many seconds of work."""
    services = []
    for number, name in enumerate(names):
        rate = 400 // (number + 1)
        counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        counts[_QUICK] = rate * 9 // 10 * seconds
        counts[_SLOW] = rate // 10 * seconds
        done = sum(counts)
        services.append(
            service_state(
                name,
                workers=6 - number % 6,
                idle=2,
                in_flight=4 - number % 4,
                queued=(3 * number) % 7,
                accepted=done + 5,
                answered=done,
                failed=number,
                latency_counts=counts,
                latency_sum_s=done * 0.004,
                **SAID.get(name, {}),
                oldest_waiting_s=0.012 * number,
            )
        )
    values: dict[str, Any] = {
        "pair": "orders",
        "role": "primary",
        "node": "9f3a51c0",
        "state": "ACTIVE",
        "is_active": True,
        "epoch": 7,
        "epoch_seen": 7,
        "peer_state": "PASSIVE",
        "retry_after_s": 0.0,
        "peer_messages": 40 * seconds,
        "transitions": {"PASSIVE->ACTIVE": 2, "ACTIVE->PASSIVE": 1},
        "quorum": QuorumState("tcp://10.0.0.3:5010", True, True, True, True),
    }
    state = node_state(
        *services,
        store=store_state(octets=3_400_000, pending=12),
        security=SecurityState(is_on=True, principals=14, admitted=212),
        drops={"unknown-command": 3},
        **(values | changes),
    )
    fronts = [FrontState("ppp", {"workers": 3}, {"requests": 40 * seconds})]
    return msgspec.structs.replace(state, fronts=fronts)
