"""The broker's own services (8/MMI): answered at once in every state of the node, never queued, never a vote.

Nothing here changes a queue or a worker's deadline.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from bstar.wire import mmi
from bstar.wire.description import LimitsInUse
from bstar_broker.core import descriptions
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.records import COUNTERS, Held, ServiceRecord, WorkerRecord
from bstar_broker.core.services import recent
from bstar_broker.core.settings import NO_LIMITS
from bstar_broker.core.snapshot import BrokerState, ListedWorker, NodeState, ServiceState, WorkerState

# A listing longer than this is cut; the counters in mmi.state are whole.
_LISTED_MAX = 1_000

# A snapshot is kept for ten times as long as it takes: 6 µs for a service, as much for some ten workers.
_KEPT_S_OF_ROW = 60e-6
_WORKERS_OF_ROW = 10
# A smaller one takes less than a millisecond, and is made anew for every message.
_ROWS_KEPT_MIN = 100

# Those whose body is the name of a service.
_OF_ONE = (mmi.Service.WORKERS, mmi.Service.DESCRIPTIONS, mmi.Service.NAMES)

T = TypeVar("T")

_encode = msgspec.json.encode


class Pictures:
    """What the management requests of one message share (``is_shared``: there are several): encoded listings,
    and the workers by service.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.listings: dict[bytes, bytes] = {}
        self.workers: defaultdict[bytes, list[WorkerRecord]] = defaultdict(list)


class Management:
    """Answers the requests for names that begin with ``mmi.``. ``state`` makes the node's snapshot.

    A batch may hold a thousand of them, and one snapshot of 1,000 services takes 6 ms. So the requests of one
    message share their pictures. A snapshot of many services is kept for a while, so that it takes a tenth of
    the loop's time at most.
    """

    def __init__(self, ledger: Ledger, state: Callable[[float], NodeState]) -> None:
        self._ledger = ledger
        self._state = state
        # How many listings and snapshots were made.
        self.made = 0
        self._kept = b""
        self._kept_until = -math.inf

    def answer(self, service: bytes, body: list[bytes], pictures: Pictures, now: float) -> list[bytes]:
        """The body of the reply. Of several body frames the last counts. ``pictures``: those of the requests
        that came in the same message.
        """
        try:
            asked = mmi.Service(service)
        except ValueError:
            return [mmi.NOT_IMPLEMENTED]
        ledger, argument = self._ledger, body[-1]
        if asked is mmi.Service.SERVICE:
            is_offered = argument in ledger.own_services or self._is_offered(argument, pictures, now)
            return [mmi.OK if is_offered else mmi.NOT_FOUND]
        if asked not in _OF_ONE:
            argument = b""
        elif argument not in ledger.services and (argument or asked is mmi.Service.NAMES):
            return [mmi.NOT_FOUND]
        if asked is mmi.Service.NAMES:
            workers = self._workers_of(bytes(argument), pictures)
            return [mmi.OK, _encode(list(dict.fromkeys(worker.label for worker in workers)))]
        # A frame of a large message is a view, which has no hash.
        key = bytes(argument)
        if (picture := pictures.listings.get(key)) is None:
            picture = pictures.listings[key] = self._picture(asked, argument, pictures, now)
        return [mmi.OK, picture]

    def _picture(self, asked: mmi.Service, argument: bytes, pictures: Pictures, now: float) -> bytes:
        ledger = self._ledger
        if asked is mmi.Service.STATE and now < self._kept_until:
            return self._kept
        self.made += 1
        if asked is mmi.Service.SERVICES:
            return _encode(
                [
                    {"service": record.label, "workers": record.workers, "queued": record.queued}
                    for record in _first(ledger.services.values())
                ]
            )
        if asked is mmi.Service.DESCRIPTIONS:
            if argument:
                return _encode(descriptions.listed(ledger.services[bytes(argument)]))
            return _encode(
                [
                    descriptions.summary(record, _limits_in_use(record, now) if ledger.is_serving else None)
                    for record in _first(ledger.services.values())
                ]
            )
        if asked is mmi.Service.WORKERS:
            listed = self._workers_of(bytes(argument), pictures) if argument else ledger.workers.values()
            return _encode([worker_state(worker, now) for worker in _first(listed)])
        rows = len(ledger.services) + len(ledger.services.past) + len(ledger.workers) // _WORKERS_OF_ROW
        picture = _encode(self._state(now))
        if rows >= _ROWS_KEPT_MIN:
            self._kept, self._kept_until = picture, now + rows * _KEPT_S_OF_ROW
        return picture

    def _is_offered(self, name: bytes, pictures: Pictures, now: float) -> bool:
        """True if a worker, idle or busy, has a deadline that has not passed (MMI-B-05)."""
        record = self._ledger.services.get(name)
        if record is None or not record.workers:
            return False
        if any(now < worker.expires_at for worker in record.idle):
            return True
        return any(now < worker.expires_at for worker in self._workers_of(record.name, pictures))

    def _workers_of(self, service: bytes, pictures: Pictures) -> Iterable[WorkerRecord]:
        workers = self._ledger.workers.values()
        if not pictures.is_shared:
            return (worker for worker in workers if worker.service.name == service)
        if not pictures.workers:
            self.made += 1
            for worker in workers:
                pictures.workers[worker.service.name].append(worker)
        return pictures.workers[service]


def listed_worker(worker: WorkerRecord, now: float) -> ListedWorker:
    """One worker for an operator."""
    return ListedWorker(
        **msgspec.structs.asdict(worker_state(worker, now)),
        host=worker.process.host,
        pid=worker.process.pid,
        address=worker.address,
        version=worker.process.version,
        registered_s=round(now - worker.registered_at, 3),
        service_version="" if worker.description is None else worker.description.version,
    )


def worker_state(worker: WorkerRecord, now: float) -> WorkerState:
    """One worker as every client may see it, without its machine and process."""
    return WorkerState(
        worker=worker.label,
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
        queued_bytes=ledger.waiting.size_bytes,
        in_flight=sum(each.count for each in held.values()),
        clients=len(ledger.requests_of),
        services=[_service_state(record, held[record], now) for record in ledger.services.values()],
        drops=dict(ledger.drops),
        past=[_service_state(record, Held(), now) for record in ledger.services.past.values()],
    )


def _held_back(record: ServiceRecord, now: float) -> str:
    """What holds its requests back because of its limits; "" if nothing does."""
    return "" if record.throttle is None else record.throttle.why(record.queued, now)


def _limits_in_use(record: ServiceRecord, now: float) -> LimitsInUse | None:
    if record.limits == NO_LIMITS:
        return None
    return LimitsInUse(
        **msgspec.structs.asdict(record.limits),
        running=0 if record.throttle is None else record.throttle.running,
        queued=record.queue.length,
        bound=record.bound(_held_back(record, now)),
    )


def _age_s(since: float, now: float) -> float:
    """The time since then; 0 if it never happened."""
    return 0.0 if since == math.inf else round(max(0.0, now - since), 3)


def _service_state(record: ServiceRecord, held: Held, now: float) -> ServiceState:
    waiting_since = min(
        (item.accepted_at for queue in record.queues for item in queue.heads()), default=math.inf
    )
    tally, queued, held_back = record.tally, record.queued, _held_back(record, now)
    return ServiceState(
        service=record.label,
        workers=record.workers,
        idle=len(record.idle),
        in_flight=held.count,
        queued=queued,
        bound=record.bound(held_back),
        held_back=queued if held_back else 0,
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
        versions=descriptions.versions(record),
        description=descriptions.text(record),
        **{name: getattr(tally, name) for name in COUNTERS},
    )


def _first(items: Iterable[T]) -> Iterable[T]:
    for index, item in enumerate(items):
        if index == _LISTED_MAX:
            return
        yield item
