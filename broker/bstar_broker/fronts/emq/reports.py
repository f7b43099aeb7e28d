"""What the admin's commands get: STATUS, ROUTER_SHOW_WORKERS, ROUTER_SHOW_SCHEDULERS, as JSON.

Each command asks the node for ``mmi.state``, which is for operators alone where keys are used. The figures
by queue are those of the broker's services, so they count workers of every dialect.
"""

import msgspec

from bstar_broker.core.snapshot import NodeState
from bstar_broker.fronts.emq.desk import label
from bstar_broker.fronts.emq.managers import Managers

_read_state = msgspec.json.Decoder(NodeState).decode
_encode = msgspec.json.Encoder().encode


def status(state: bytes, managers: Managers) -> bytes:
    """STATUS; ``state`` is the answer to ``mmi.state``. Latencies are those at job managers, milliseconds."""
    services = _read_state(state).broker.services
    latency = {queue: tally.last_s * 1000 for queue, tally in managers.tallies.items()}
    longest = {queue: tally.longest_s * 1000 for queue, tally in managers.tallies.items()}
    return _encode(
        {
            "inflight_messages_by_queue": {each.service: each.in_flight for each in services},
            "latency_messages_by_queue": latency,
            "max_latency_messages_by_queue": longest,
            "waiting_messages_by_queue": {each.service: each.queued for each in services},
            "processed_messages_by_queue": {each.service: each.answered + each.failed for each in services},
            "processed_messages_by_worker": {
                label(each.routing_id): each.processed for each in managers.by_id.values()
            },
        }
    )


def to_json(report: dict[str, object]) -> bytes:
    """The JSON of a report."""
    return _encode(report)
