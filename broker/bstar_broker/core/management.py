"""The broker's own services (8/MMI): answered at once in every state of the node, never queued, never a vote.

Nothing here changes a queue or a worker's deadline.
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from bstar.wire import mmi
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.records import COUNTERS, Held, ServiceRecord, WorkerRecord, peer_label
from bstar_broker.core.services import recent
from bstar_broker.core.snapshot import BrokerState, ListedWorker, NodeState, ServiceState, WorkerState

# A listing longer than this is cut; the counters in mmi.state are whole.
_LISTED_MAX = 1_000

T = TypeVar("T")

_encode = msgspec.json.encode


def answer(
    ledger: Ledger, service: bytes, body: list[bytes], state: Callable[[], NodeState], now: float
) -> list[bytes]:
    """The body of the reply to a request for ``service``, a name that begins with ``mmi.``.

    Of several body frames the last counts. ``state`` makes the node's snapshot, for ``mmi.state``.
    """
    try:
        asked = mmi.Service(service)
    except ValueError:
        return [mmi.NOT_IMPLEMENTED]
    argument = body[-1]
    if asked is mmi.Service.SERVICE:
        record = ledger.services.get(argument)
        is_offered = record is not None and _has_live_worker(ledger, record, now)
        return [mmi.OK if is_offered or argument in ledger.own_services else mmi.NOT_FOUND]
    if asked is mmi.Service.SERVICES:
        listed = [
            {"service": record.label, "workers": record.workers, "queued": record.queue.length}
            for record in _first(ledger.services.values())
        ]
        return [mmi.OK, _encode(listed)]
    if asked is mmi.Service.WORKERS:
        if argument and argument not in ledger.services:
            return [mmi.NOT_FOUND]
        asked_for = (
            worker for worker in ledger.workers.values() if not argument or worker.service.name == argument
        )
        return [mmi.OK, _encode([worker_state(worker, now) for worker in _first(asked_for)])]
    return [mmi.OK, _encode(state())]


def _has_live_worker(ledger: Ledger, record: ServiceRecord, now: float) -> bool:
    """True if a worker, idle or busy, has a deadline that has not passed (MMI-B-05)."""
    if not record.workers:
        return False
    return any(worker.service is record and now < worker.expires_at for worker in ledger.workers.values())


def listed_worker(worker: WorkerRecord, now: float) -> ListedWorker:
    """One worker for an operator."""
    return ListedWorker(
        **msgspec.structs.asdict(worker_state(worker, now)),
        host=worker.process.host,
        pid=worker.process.pid,
        address=worker.address,
        version=worker.process.version,
        registered_s=round(now - worker.registered_at, 3),
    )


def worker_state(worker: WorkerRecord, now: float) -> WorkerState:
    """One worker as every client may see it, without its machine and process."""
    return WorkerState(
        worker=peer_label(worker.routing_id),
        service=worker.service.label,
        dialect=worker.dialect,
        credit=worker.credit,
        in_flight=worker.held,
        expires_in_s=round(worker.expires_at - now, 3),
        silent_s=0.0 if worker.silent_since is None else round(now - worker.silent_since, 3),
        drain_why=worker.drain_why,
    )


def broker_state(ledger: Ledger, now: float) -> BrokerState:
    """The broker's part of a node's snapshot."""
    held = ledger.held(now)
    return BrokerState(
        is_serving=ledger.is_serving,
        is_draining=ledger.is_draining,
        workers=len(ledger.workers),
        queued=ledger.waiting.count,
        queued_bytes=ledger.waiting.octets,
        in_flight=sum(each.count for each in held.values()),
        clients=len(ledger.requests_of),
        services=[_service_state(record, held[record], now) for record in ledger.services.values()],
        drops=dict(ledger.drops),
        past=[_service_state(record, Held(), now) for record in ledger.services.past.values()],
    )


def _age_s(since: float, now: float) -> float:
    """The time since then; 0 if it never happened."""
    return 0.0 if since == math.inf else round(max(0.0, now - since), 3)


def _service_state(record: ServiceRecord, held: Held, now: float) -> ServiceState:
    waiting_since = min((item.accepted_at for item in record.queue.heads()), default=math.inf)
    tally = record.tally
    return ServiceState(
        service=record.label,
        workers=record.workers,
        idle=len(record.idle),
        in_flight=held.count,
        queued=record.queue.length,
        latency_counts=list(tally.latency_counts),
        latency_sum_s=tally.latency_sum_s,
        oldest_waiting_s=_age_s(waiting_since, now),
        oldest_running_s=_age_s(held.since, now),
        recent=recent(record),
        stuck=record.stuck,
        paused=int(record.pause_why != ""),
        pause_why=record.pause_why,
        drained=record.drained,
        paused_for_s=0.0 if record.paused_until == math.inf else round(record.paused_until - now, 3),
        **{name: getattr(tally, name) for name in COUNTERS},
    )


def _first(items: Iterable[T]) -> Iterable[T]:
    for index, item in enumerate(items):
        if index == _LISTED_MAX:
            return
        yield item
