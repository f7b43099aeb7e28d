"""What a simulated node remembers: how much of everything, and how much it may be."""

from __future__ import annotations

from bstar_broker.core import BrokerSettings
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.services import PAST_MAX
from bstar_broker.fronts.emq.front import EmqFront
from sim.node import SimNode

PEER_RUNS_MAX = 16
CREDIT_MAX = 4  # of a simulated worker


def bounds_of(node: SimNode, limits: BrokerSettings) -> list[tuple[str, int, int]]:
    """Name of a table, how many entries it has, and how many it may have."""
    broker, machine = node.node.broker, node.node.machine
    ledger = broker.ledger
    held = sum(worker.held for worker in ledger.workers.values())
    shared = sum(service.queue.length for service in ledger.services.values())
    queued = sum(service.queued for service in ledger.services.values())
    directed = [queue.length for service in ledger.services.values() for queue in service.directed.values()]
    return [
        ("services", len(ledger.services), limits.services_max),
        ("forgotten services", len(ledger.services.past), PAST_MAX),
        ("workers", len(ledger.workers), limits.workers_max),
        # What lost workers held goes back to the front of its queue, full or not.
        ("queue", shared, limits.queue_length_max + limits.workers_max * CREDIT_MAX),
        ("queue of one worker", max(directed, default=0), limits.queue_length_max + CREDIT_MAX),
        ("empty queues of one worker", directed.count(0), 0),
        ("names of workers", len(ledger.named), len(ledger.workers)),
        ("queued, as counted", abs(ledger.waiting.count - queued), 0),
        ("identities", len(ledger.by_identity) + len(broker.bundles), queued + held),
        ("requests of clients", sum(ledger.requests_of.values()), queued + held),
        (
            "requests of one client",
            max(ledger.requests_of.values(), default=0),
            limits.requests_per_client_max,
        ),
        ("earlier runs of the peer", len(machine.peer.runs.past), PEER_RUNS_MAX),
        ("strangers", len(machine.peer.strangers.reported), PEER_RUNS_MAX),
        *_slots_of(node),
    ]


def _emq_of(node: SimNode) -> EmqFront | None:
    front = node.node.fronts.all.get("emq") if isinstance(node.node, FrontedNode) else None
    return front if isinstance(front, EmqFront) else None


def _slots_of(node: SimNode) -> list[tuple[str, int, int]]:
    """A job manager has no more free slots and jobs than processes."""
    front = _emq_of(node)
    managers = [] if front is None else front.managers.by_id.values()
    return [("slots of a job manager", each.free + len(each.jobs), CREDIT_MAX) for each in managers]


def left_of(node: SimNode) -> dict[str, int]:
    """What it keeps for the sake of calls that have not ended."""
    broker = node.node.broker
    ledger = broker.ledger
    front = _emq_of(node)
    levels = {} if front is None else front.state(node.clock()).levels
    return {
        "jobs": levels.get("jobs", 0),
        "retries": levels.get("retries", 0),
        "queued": ledger.waiting.count,
        "octets": ledger.waiting.size_bytes,
        "in flight": sum(worker.held for worker in ledger.workers.values()),
        "identities": len(ledger.by_identity) + len(broker.bundles),
        "clients": len(ledger.requests_of),
    }
