"""Ends requests that get no reply from a worker, or redelivers them.

A request expires in the queue, its worker is lost for the last time, its client is gone, or this node gives
up its role. Each way is counted and reported to the observer. A native client gets an error. A client of
plain MDP gets nothing, so its timeout applies.

A request that kills workers (poison) must end, and what shares its workers must not end with it. So a loss is
*charged* to a request that was alone at its worker; ``deliveries_max`` charges are poison. A loss with others
is charged to none of them. A request that is lost a second time is a *suspect*: from then on it shares a
worker with an eighth of the requests that shared its last one (group testing), and is alone after some more
losses. ``dispatch`` keeps suspects apart.
"""

from collections.abc import Callable, Iterator

from bstar.wire import native, native_broker
from bstar.wire.front import is_behind_front
from bstar.wire.messages import ErrorCode, NodeStatus
from bstar.wire.refusals import QUEUE_RETRY_MS
from bstar_broker.core.bundles import Bundles
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.observer import Outcome
from bstar_broker.core.outputs import Notice, Output, Send
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord, WorkerRecord

# Log lines for each service and kind: a lost worker may have held tens of thousands of requests.
_NOTICES_MAX = 10


# A suspect's next crowd is its last one divided by this. With 8 a request among 1,000 is alone after four
# losses, and 15 others wait for a turn of their own; with 2 it would cost ten workers.
_CROWD_DIVISOR = 8
# How long a suspect waits for a worker that is empty enough. Handlers that take longer must not hold up a
# service.
_APART_S = 10.0

# A client cancels at its deadline at the latest. So long after it, the client has ended.
_OUTLIVED_S = 5.0

# The routing id of no connection: what is sent there is dropped and counted. It has frames like any other: a
# plain worker ignores a request whose client address is empty, and would hold it for ever.
NO_CLIENT = b"\x00nobody"


class Endings:
    """Removes requests from queues and tables, and answers their clients."""

    def __init__(self, ledger: Ledger, bundles: Bundles) -> None:
        self._ledger = ledger
        self._bundles = bundles

    # --- one request ----------------------------------------------------------------------------------------

    def give_back(
        self, request: Accepted, status: NodeStatus, was_dispatched: bool, outputs: list[Output], now: float
    ) -> None:
        """Return the request to its client, which goes to the node that serves."""
        request.service.tally.returned += 1
        self._ledger.report(request, "returned", (), now)
        frames = request.codec.not_active(request, status, was_dispatched)
        self._ledger.answer(request, frames, outputs)
        request.askers = None

    def fail(
        self, request: Accepted, outcome: Outcome, code: ErrorCode, text: str, now: float
    ) -> list[Output]:
        """End the request with an error."""
        frames = request.codec.failure(request, self._ledger.epoch, code, text.encode())
        return self._end(request, outcome, frames, now)

    def _end(
        self, request: Accepted, outcome: Outcome, frames: list[bytes] | None, now: float
    ) -> list[Output]:
        outputs: list[Output] = []
        self._ledger.report(request, outcome, (), now)
        self._ledger.forget(request)
        self._ledger.answer(request, frames, outputs)
        return outputs

    def expire(self, request: Accepted, now: float) -> list[Output]:
        """It expired in the queue: its own time to live, or the limit for every request (BSN-B-20)."""
        service = request.service
        expires_s = service.limits.expires_s
        is_limited = expires_s is not None and now >= request.accepted_at + expires_s
        if now < request.deadline and not request.deliveries and not is_limited:
            return self._send_back(request, "waited-out", now)
        service.tally.expired += 1
        why = self._why_it_waited(request, now)
        if request.deliveries:
            text = f"expired in the queue after its worker was lost: {why}"
            return self.fail(request, "expired", ErrorCode.WORKER_LOST, text, now)
        if is_limited:
            why = f"waited for {expires_s:g} s in the queue (expires_s of {service.title}): {why}"
        return self.fail(request, "expired", ErrorCode.EXPIRED, why, now)

    def _send_back(self, request: Accepted, reason: str, now: float) -> list[Output]:
        """A request that no worker had leaves the queue. Its client may send it again."""
        ledger = self._ledger
        ledger.drop(reason)
        request.service.tally.returned += 1
        waited_s = ledger.settings.request_ttl_s
        text = f"waited for {waited_s:g} s in the queue (timing.request_ttl_s); it was not executed"
        frames = request.codec.busy(request, ledger.epoch, QUEUE_RETRY_MS, text.encode())
        return self._end(request, "returned", frames, now)

    # --- a lost worker --------------------------------------------------------------------------------------

    def redeliver(
        self, request: Accepted, how: str, now: float, outputs: list[Output], crowd: int = 0
    ) -> None:
        """Its worker was lost: queue the request for another worker, or end it if it must not run again.

        ``how``: how the worker was lost, for the client's error. ``crowd``: how many requests it held, 0 if
        it cannot have begun this one.
        """
        ledger, service = self._ledger, request.service
        if crowd:
            self._charge(request, crowd)
        if request.is_abandoned:
            ledger.forget(request)
        elif not (ledger.is_serving or ledger.is_suspended):
            # A plain MDP client asks the node that serves.
            self.give_back(request, ledger.status(now), True, outputs, now)
            ledger.forget(request)
        elif request.target and not ledger.offers(request.target, service):
            self._lose_target(request, how, now, outputs)
        elif request.is_once and request.deliveries:
            self._lose(request, "its worker was lost, and it must not be executed twice", now, outputs)
        elif request.partials and not request.is_whole:
            # PARTIALs cannot be recalled, so a second run would be mixed with the first (MDP2-R-02).
            self._lose(request, f"the worker {how} after sending PARTIALs", now, outputs)
        elif request.losses >= ledger.settings.deliveries_max:
            service.tally.poisoned += 1
            ledger.drop("poison")
            text = f"all of them were lost, the last one {how} (poison)"
            outputs += _given_up(request, service.tally.poisoned, text)
            text = f"{request.deliveries} workers were lost with this request; the last one {how}"
            outputs += self.fail(request, "poison", ErrorCode.POISON, text, now)
        elif request.deadline and now >= request.deadline and request.deliveries:
            self._lose(request, f"the worker {how} and the request has expired", now, outputs)
        else:
            request.partials = 0
            request.held = None
            request.held_bytes = 0
            request.progress = None
            # A dispatched request is not returned as unexecuted before its own deadline.
            may_wait_until = now + ledger.settings.request_ttl_s
            if request.deadline and (request.deliveries or request.deadline < may_wait_until):
                may_wait_until = request.deadline
            expires_s = service.limits.expires_s
            if expires_s is not None and request.codec is not ledger.mailbox:
                may_wait_until = min(may_wait_until, now + expires_s)
            request.expires_at = may_wait_until
            request.apart_until = now + _APART_S
            service.tally.redelivered += 1
            service.queue_of(request).push_front(request.lane, request, is_urgent=request.is_urgent)
            request.is_queued = True
            ledger.waiting.enter(request, request.lane, 1, request.size, now)

    def _charge(self, request: Accepted, crowd: int) -> None:
        """Its worker was lost with ``crowd`` requests."""
        crowd_max = request.crowd_max
        is_alone = crowd == 1 or crowd_max == 1  # or no worker was empty in time
        # With 1 no request ever gets a second worker.
        if is_alone or self._ledger.settings.deliveries_max == 1:
            request.losses += 1
        if request.crowd:
            request.crowd_max = max(1, min(crowd, crowd_max or crowd) // _CROWD_DIVISOR)
        request.crowd = crowd

    def _lose(self, request: Accepted, text: str, now: float, outputs: list[Output]) -> None:
        tally = request.service.tally
        tally.lost += 1
        outputs += _given_up(request, tally.lost, text)
        outputs += self.fail(request, "lost", ErrorCode.WORKER_LOST, text, now)

    def _lose_target(self, request: Accepted, how: str, now: float, outputs: list[Output]) -> None:
        """The one worker that may have this request is gone."""
        if request.deliveries:
            self._lose(request, f"its worker {how}, and no other worker may have it", now, outputs)
            return
        request.service.tally.returned += 1
        text = f"the worker {how} before it began the request, and no other worker may have it"
        outputs += self.fail(request, "returned", ErrorCode.WORKER_GONE, text, now)

    # --- what waits -----------------------------------------------------------------------------------------

    def expire_due(self, now: float) -> list[Output]:
        """End the queued requests that have expired."""
        outputs: list[Output] = []
        waiting = self._ledger.waiting
        for item in waiting.deadlines.pop_due(now):
            if type(item) is Bundle:
                expired = self._bundles.expire_queued(item, now)
            else:
                assert type(item) is Accepted
                item.is_queued = False
                item.service.unqueue(item)
                expired = [item]
            for request in expired:
                waiting.leave(request.lane, 1, request.size)
                outputs += self.expire(request, now)
        return outputs

    def end_directed(
        self, service: ServiceRecord, name: bytes, how: str, now: float, outputs: list[Output]
    ) -> None:
        """The worker with this name is gone: end what waits for it alone."""
        if (queue := service.directed.pop(name, None)) is not None:
            for request in queue.clear():
                assert type(request) is Accepted
                request.is_queued = False
                self._ledger.waiting.leave(request.lane, 1, request.size)
                self._lose_target(request, how, now, outputs)

    def return_queued(
        self, is_returned: Callable[[Accepted], bool], now: float, outputs: list[Output]
    ) -> None:
        """Return queued requests to their clients if ``is_returned`` allows it."""
        ledger = self._ledger
        status = ledger.status(now)
        for service in ledger.services.values():
            for request in self._take_queued(service, is_returned):
                self.give_back(request, status, request.deliveries > 0, outputs, now)
                ledger.forget(request)

    def purge(self, service: ServiceRecord, why: str, now: float, outputs: list[Output]) -> int:
        """An operator ends what waits for the service; how many requests. Those of the store stay."""
        mailbox, count = self._ledger.mailbox, 0
        for request in self._take_queued(service, lambda request: request.codec is not mailbox):
            count += 1
            outputs += self._call_off(request, "purged the queue", why, now)
        return count

    def cancel(self, request: Accepted, why: str, now: float) -> list[Output]:
        """An operator ends one request. The answer of a worker that holds it is dropped when it comes, and
        the worker learns that no client waits for it.
        """
        if request.is_queued:
            self._unqueue(request)
            return self._call_off(request, "cancelled it", why, now)
        text = f"an operator cancelled it while a worker had it: {why}"
        request.service.tally.cancelled += 1
        self._ledger.report(request, "cancelled", (), now)
        outputs: list[Output] = []
        frames = request.codec.failure(request, self._ledger.epoch, ErrorCode.WORKER_LOST, text.encode())
        self._ledger.answer(request, frames, outputs)
        request.askers = request.held = None
        request.is_abandoned = True
        return outputs + self._tell_worker(request)

    def _tell_worker(self, request: Accepted) -> list[Output]:
        """CANCEL to the worker that holds the request, if its dialect has it."""
        worker = self._ledger.workers.get(request.worker)
        if worker is None or worker.codec is not native_broker.CODEC:
            return []
        return [Send(native_broker.CODEC.cancel(request.worker, request.identity, self._ledger.epoch))]

    def _call_off(self, request: Accepted, did: str, why: str, now: float) -> list[Output]:
        """An operator ``did`` that to a request that waited and has left its queue."""
        tally = request.service.tally
        if request.deliveries:
            tally.lost += 1
            text = f"an operator {did} after its worker was lost: {why}"
            return self.fail(request, "lost", ErrorCode.WORKER_LOST, text, now)
        tally.returned += 1
        return self.fail(request, "returned", ErrorCode.NOT_ALLOWED, f"an operator {did}: {why}", now)

    def _take_queued(
        self, service: ServiceRecord, is_taken: Callable[[Accepted], bool]
    ) -> Iterator[Accepted]:
        """Remove the queued requests that ``is_taken`` chooses."""
        items = [item for queue in service.queues for item in queue.clear()]
        service.directed.clear()
        for item in items:
            requests = self._bundles.unfold_waiting(item) if type(item) is Bundle else [item]
            for request in requests:
                assert type(request) is Accepted
                if not is_taken(request):
                    service.queue_of(request).push(request.lane, request, is_urgent=request.is_urgent)
                    continue
                request.is_queued = False
                self._ledger.waiting.leave(request.lane, 1, request.size)
                yield request

    def give_up(self, identity: bytes, client: bytes, now: float) -> list[Output]:
        """A native client has given up its request (BSN-B-28). One with a key stays: others may want it."""
        if native.is_keyed(identity):
            return []
        request = self._ledger.by_identity.get(identity)
        if request is None and self._bundles.unfold_identity(identity):
            request = self._ledger.by_identity[identity]
        if request is None or request.sender != client:
            return []
        return self.withdraw(identity, now)

    def withdraw(self, identity: bytes, now: float) -> list[Output]:
        """The client gives the request up: it begins at no worker from now on, and is not answered. A
        worker that holds it learns that.
        """
        request = self._ledger.by_identity.get(identity)
        if request is None or request.is_abandoned:
            return []
        request.service.tally.cancelled += 1
        self._ledger.report(request, "cancelled", (), now)
        return [] if self._abandon(request) else self._tell_worker(request)

    def outlive(self, worker: WorkerRecord, now: float) -> list[Output]:
        """Withdraw what the worker still has though its deadline is long over: its client was killed, say."""
        due = now - _OUTLIVED_S
        for bundle in [*worker.bundles]:
            if bundle.has_deadline and bundle.accepted_at + max(bundle.ttls_ms) / 1000 <= due:
                self._bundles.unfold_given(worker, bundle)
        outputs: list[Output] = []
        for request in worker.in_flight.values():
            is_over = 0.0 < request.deadline <= due and request.codec is native_broker.CODEC
            if is_over and not native.is_keyed(request.identity):
                outputs += self.withdraw(request.identity, now)
        return outputs

    def leave(self, identity: bytes, now: float) -> None:
        """This node does not answer the request any more, and the other node has it executed."""
        request = self._ledger.by_identity.get(identity)
        if request is None:
            return
        if request.is_queued:
            request.service.tally.returned += 1
            self._ledger.report(request, "returned", (), now)
        self._abandon(request)

    def _abandon(self, request: Accepted) -> bool:
        """No client waits for the request here. True if it was queued and is forgotten."""
        request.is_abandoned = True
        if not request.is_queued:
            return False
        self._unqueue(request)
        self._ledger.forget(request)
        return True

    def orphan(self, client: bytes) -> None:
        """Another owns this routing id now: nothing that was asked from it may be answered there."""
        ledger = self._ledger
        for worker in ledger.workers.values():
            # A bundle has one field for the address and for the client that it counts for.
            for bundle in [bundle for bundle in worker.bundles if bundle.sender == client]:
                self._bundles.unfold_given(worker, bundle)
            for request in worker.in_flight.values():
                _orphan(request, client)
        # A request that was sent again from there waits in the lane of its first address.
        for request in ledger.by_identity.values():
            _orphan(request, client)
        for request in self._queued_of(client):
            _orphan(request, client)

    def release_client(self, client: bytes, now: float, *, is_new_each_time: bool = False) -> None:
        """The connection of a client, native or behind a front, is gone: its requests leave the queue
        (BSN-B-21). Those of a plain one as well if its routing id ``is_new_each_time``: no reply reaches it.

        A request stays if the client sent it again from another address, if others wait for it, or if a
        worker had it.
        """
        ledger = self._ledger
        is_native = ledger.settings.client_check_interval_s and ledger.waiting.is_native(client)
        if not (is_new_each_time or is_native or is_behind_front(client)):
            return
        for request in self._queued_of(client):
            if request.sender != client or request.askers or request.deliveries:
                continue
            self._unqueue(request)
            self._send_back(request, "client-gone", now)

    def _unqueue(self, request: Accepted) -> None:
        request.service.unqueue(request)
        request.is_queued = False
        self._ledger.waiting.leave(request.lane, 1, request.size)

    def _queued_of(self, client: bytes) -> Iterator[Accepted]:
        """The requests of a client that wait, its batches unfolded."""
        for service in self._ledger.services.values():
            for item in service.queue.of(client):
                if type(item) is Bundle:
                    self._bundles.unfold_queued(item)
            for request in [item for queue in service.queues for item in queue.of(client)]:
                assert type(request) is Accepted
                yield request

    def _why_it_waited(self, request: Accepted, now: float) -> str:
        service = request.service
        if service.pause_why:
            return f"{service.title} is paused by {service.pause_why}"
        throttle = service.throttle
        limit = "" if throttle is None else throttle.why(service.queued + 1, now)
        if request.target:
            worker = self._ledger.named[request.target]
            if limit and worker in service.idle:
                return limit
            why = "is drained by an operator" if worker.drain_why else "was busy"
            return f"worker {worker.label} of {service.title} {why}"
        if not service.workers:
            return f"no worker offers {service.title}"
        if limit:
            return limit
        if service.drained == service.workers:
            return f"an operator drains each worker of {service.title}"
        if service.workers == 1:
            return f"the only worker of {service.title} was busy"
        return f"all {service.workers} workers of {service.title} were busy"


def _orphan(request: Accepted, client: bytes) -> None:
    if request.sender == client:
        request.sender = NO_CLIENT
    if request.askers is not None and client in request.askers:
        request.askers.remove(client)


def _given_up(request: Accepted, count: int, why: str) -> list[Output]:
    """Log that the broker gives a request up. ``count``: how often that happened to the service."""
    if count > _NOTICES_MAX:
        return []
    times = "once" if request.deliveries == 1 else f"{request.deliveries} times"
    title = f"request {request.identity.hex()} of {request.service.title}"
    text = f"{title}, given to workers {times}, is given up: {why}"
    if count == _NOTICES_MAX:
        text += "; the next ones of this service are only counted"
    return [Notice(text)]
