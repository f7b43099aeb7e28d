"""Dispatches requests: the least recently used worker with credit gets the next one.

A bundle is dealt out in slices, as equal as the credit of the workers allows.

A suspect (``endings``) goes to a worker that holds fewer requests than its crowd may have, together with the
suspects behind it as far as they fit. That worker gets nothing more until it is empty. A suspect at the head
of the queue that finds no such worker holds up what is behind it, for some seconds at most.

A worker for which something waits alone (``ServiceRecord.directed``) gets that and what waits for every
worker in turns. If a limit of the service leaves less room than its workers have, the turns are the
service's: one of a single worker, each time another one, and one of the queue that all share.
"""

from math import inf

from bstar.wire import native_broker
from bstar.wire.extensions import age_extension
from bstar_broker.core.bundles import Bundles, empty
from bstar_broker.core.endings import Endings
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.limits import NO_LIMIT, Throttle
from bstar_broker.core.outputs import Dispatch, Output
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord, WorkerRecord

# How many requests of a client's batch one turn takes while other clients wait.
_TURN_ROWS = 32


class Dispatcher:
    """Takes workers out of ``ServiceRecord.idle`` and puts them back while they have credit."""

    def __init__(self, ledger: Ledger, bundles: Bundles, endings: Endings) -> None:
        self._ledger = ledger
        self._bundles = bundles
        self._endings = endings
        self._waiting = ledger.waiting

    def dispatch(self, worker: WorkerRecord, request: Accepted, now: float) -> Dispatch:
        """Dispatch the request to this worker. The caller has removed it from the idle ones."""
        ledger = self._ledger
        deliveries = request.deliveries + 1
        request.deliveries = deliveries
        request.dispatched_at = now
        request.worker = worker.routing_id
        if worker.names_requests:
            name = identity = request.identity or ledger.identify(request)
            ttl_ms = max(1, int((request.deadline - now) * 1000)) if request.deadline else 0
        else:
            name, identity = request.sender, b""
            ttl_ms = 0
        worker.in_flight[name] = request
        if (throttle := request.service.throttle) is not None:
            throttle.spend(1, now)
            worker.service.count(worker, worker.weight(ledger.epoch))
        if not worker.beats_while_busy:
            worker.given_at = now
            worker.expires_at = now + worker.lease.busy_s
        worker.sent_at = now
        if len(worker.in_flight) + worker.bundled < worker.credit and not worker.crowd_max:
            request.service.idle[worker] = None
        frames = worker.codec.request(
            worker.routing_id,
            worker.envelope,
            request,
            identity,
            ttl_ms,
            ledger.epoch,
            deliveries > 1 or request.is_repeated,
        )
        if request.extensions and worker.codec is native_broker.CODEC:
            frames[1] += age_extension(request.extensions, int((now - request.accepted_at) * 1000))
        return Dispatch(frames, name)

    def dispatch_queued(
        self, service: ServiceRecord, now: float, outputs: list[Output], worker: WorkerRecord | None = None
    ) -> None:
        """Dispatch queued requests while this node serves and workers have credit.

        ``worker``: the only one that may have got room since the last time.
        """
        ledger = self._ledger
        if not ledger.is_serving or ledger.is_draining:
            return
        throttle, room = None, NO_LIMIT
        if service.is_gated:
            if service.pause_why:
                return
            throttle = service.throttle
            # Room at one worker may be for what waits for another one.
            worker = None
        queue, idle = service.queue, service.idle
        if service.directed and throttle is None:
            self._dispatch_directed(service, worker, now, outputs)
        while idle and (queue.length or (service.directed and throttle is not None)):
            if throttle is not None and not (room := self._share_of_all(service, throttle, now, outputs)):
                return
            turn = queue.next_turn()
            request = queue.head(turn)
            if type(request) is Bundle:
                self._deal_queued(request, room, outputs, now)
                continue
            assert type(request) is Accepted
            if request.crowd_max and now < request.apart_until:
                if not self._dispatch_apart(service, request, room, now, outputs):
                    return
            else:
                queue.pop(1, turn)
                if self._is_in_time(request, now, outputs):
                    outputs.append(self.dispatch(idle.popitem(last=False)[0], request, now))
        if service.directed and throttle is None:
            self._dispatch_directed(service, worker, now, outputs)

    def _dispatch_directed(
        self, service: ServiceRecord, of: WorkerRecord | None, now: float, outputs: list[Output]
    ) -> None:
        """Dispatch what waits for one worker alone, if that has room: for this worker, or for each one."""
        idle, shared, queues = service.idle, service.queue, service.directed
        for name in list(queues) if of is None else [of.label.encode()]:
            worker, queue = self._ledger.named.get(name), queues.get(name)
            while worker is not None and queue is not None and queue.length and worker in idle:
                if worker.owes_turn and shared.length:
                    worker.owes_turn = False
                    break
                request = queue.pop()
                assert type(request) is Accepted
                if self._is_in_time(request, now, outputs):
                    del idle[worker]
                    worker.owes_turn = True
                    outputs.append(self.dispatch(worker, request, now))
            if queue is not None and not queue.length:
                del queues[name]

    def _share_of_all(
        self, service: ServiceRecord, throttle: Throttle, now: float, outputs: list[Output]
    ) -> int:
        """How many requests of the queue that all workers share may go out now, within the service's limits.

        One that waits for one worker alone goes out before them if it has the turn.
        """
        while service.idle and (room := throttle.room(now)):
            if not service.directed:
                return room if service.queue.length else 0
            if not self._dispatch_in_turn(service, throttle, now, outputs):
                return 1 if service.queue.length else 0
        if service.idle:
            self._hold_back(service, throttle, now)
        return 0

    def _dispatch_in_turn(
        self, service: ServiceRecord, throttle: Throttle, now: float, outputs: list[Output]
    ) -> bool:
        """Dispatch one request that waits for one worker alone, within a limit of the service. False if it is
        the turn of the queue that all workers share, or no such worker has room.
        """
        idle, queues = service.idle, service.directed
        if throttle.owes_turn and service.queue.length:
            throttle.owes_turn = False
            return False
        for name, queue in queues.items():
            worker = self._ledger.named.get(name)
            if worker is None or worker not in idle:
                continue
            request = queue.pop()
            assert type(request) is Accepted
            # The other workers come first now.
            del queues[name]
            if queue.length:
                queues[name] = queue
            if self._is_in_time(request, now, outputs):
                del idle[worker]
                throttle.owes_turn = True
                outputs.append(self.dispatch(worker, request, now))
            return True
        return False

    def _hold_back(self, service: ServiceRecord, throttle: Throttle, now: float) -> None:
        opens_at = throttle.opens_at(now)
        if opens_at < inf:
            self._ledger.hold_back(service, opens_at)

    def go_on(self, now: float, outputs: list[Output]) -> None:
        """Dispatch what limits have held back until now."""
        ledger = self._ledger
        for service in [service for service, at in ledger.opens_at.items() if at <= now]:
            del ledger.opens_at[service]
            self.dispatch_queued(service, now, outputs)

    def _is_in_time(self, request: Accepted, now: float, outputs: list[Output]) -> bool:
        """A request has left its queue. False if its time is over: then it has ended."""
        request.is_queued = False
        self._waiting.leave(request.lane, 1, request.size)
        if now < request.expires_at or now < request.deadline:
            return True
        outputs += self._endings.expire(request, now)
        return False

    def _dispatch_apart(
        self, service: ServiceRecord, request: Accepted, room: int, now: float, outputs: list[Output]
    ) -> bool:
        """Dispatch up to ``room`` suspects at the head of the queue to one worker. False if none is empty
        enough.
        """
        worker = next((each for each in service.idle if each.crowd < request.crowd_max), None)
        if worker is None:
            return False
        crowd_max, is_used = request.crowd_max, False
        while room and worker.held < worker.credit and worker.crowd < crowd_max:
            service.queue.pop()
            if self._is_in_time(request, now, outputs):
                is_used = True
                room -= 1
                for fellow in worker.fellows:
                    fellow.crowd_max = crowd_max
                    fellow.service.idle.pop(fellow, None)
                outputs.append(self.dispatch(worker, request, now))
            head = service.queue.head() if service.queue.length else None
            if type(head) is not Accepted or not head.crowd_max:
                break
            request, crowd_max = head, min(crowd_max, head.crowd_max)
        assert is_used or worker in service.idle
        return True

    def _deal_queued(self, bundle: Bundle, room: int, outputs: list[Output], now: float) -> None:
        """Deal this queued bundle: it is its turn, and its service has workers with credit."""
        if now >= bundle.expires_at:
            self._bundles.unfold_queued(bundle)
            return
        queue = bundle.service.queue
        given, given_bytes, left = bundle.given, bundle.given_bytes, bundle.left
        limit = min(left, room, _TURN_ROWS) if queue.is_shared else min(left, room)
        self.deal(bundle, limit, outputs, now)
        count = bundle.given - given
        self._ledger.waiting.leave(bundle.sender, count, bundle.given_bytes - given_bytes)
        if count < left:
            bundle.left = left - count
            queue.take_part(count)
        else:
            queue.pop(count)
            bundle.is_queued = False
            if not bundle.worker:
                empty(bundle)

    def deal(self, bundle: Bundle, limit: int, outputs: list[Output], now: float) -> None:
        """Dispatch at most ``limit`` of its requests, in shares as equal as the workers' credit allows."""
        idle = bundle.service.idle
        if 1 < limit <= len(idle):
            # Each worker gets one, so slices would gain nothing.
            outputs += [
                self.dispatch(idle.popitem(last=False)[0], request, now)
                for request in self._bundles.take(bundle, limit)
            ]
            return
        while idle and limit:
            # One pass gives every worker a share. The next pass gives the rest to workers with more credit.
            share = -(-limit // len(idle))
            for _ in range(len(idle)):
                worker, _ = idle.popitem(last=False)
                count = 1
                if worker.takes_batches and (worker.takes_extended or not bundle.is_extended):
                    count = min(share, limit, worker.credit - worker.held)
                limit -= count
                if count > 1:
                    outputs.append(self._dispatch_slice(bundle, count, worker, now))
                    if worker.held < worker.credit:
                        idle[worker] = None
                else:
                    outputs.append(self.dispatch(worker, self._bundles.take(bundle, 1)[0], now))
                if not limit:
                    return

    def _dispatch_slice(self, bundle: Bundle, count: int, worker: WorkerRecord, now: float) -> Dispatch:
        part = self._bundles.slice(bundle, count)
        part.worker = worker.routing_id
        part.dispatched_at = now
        worker.bundles[part] = None
        worker.bundled += count
        worker.sent_at = now
        if (throttle := part.service.throttle) is not None:
            throttle.spend(count, now)
            worker.service.count(worker, worker.weight(self._ledger.epoch))
        return Dispatch(
            native_broker.CODEC.requests(
                worker.routing_id,
                part.client_id,
                part.table,
                part.blob,
                int((now - part.accepted_at) * 1000),
                self._ledger.epoch,
                part.is_repeated,
            ),
            part,
        )
