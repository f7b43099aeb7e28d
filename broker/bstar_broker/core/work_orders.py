"""Orders of an operator about one worker or one request: drain and resume, find and cancel.

A drained worker stays registered, finishes what it holds and gets no other request, in any dialect and behind
any front. So its process can be stopped without a redelivery. The drain belongs to this node and to this
registration: the worker's next process gets requests again.
"""

import heapq
from collections.abc import Iterator

from bstar.wire import native, native_broker
from bstar_broker.core.bundles import Bundles
from bstar_broker.core.endings import Endings
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.observer import Order
from bstar_broker.core.outputs import Notice, Output
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord, WorkerRecord, dialect_of, peer_label
from bstar_broker.core.registry import WorkerRegistry
from bstar_broker.core.snapshot import RequestState


class WorkOrders:
    """Carries the orders out, and finds whom they are about."""

    def __init__(self, ledger: Ledger, bundles: Bundles, endings: Endings, registry: WorkerRegistry) -> None:
        self._ledger = ledger
        self._bundles = bundles
        self._endings = endings
        self._registry = registry

    # --- workers --------------------------------------------------------------------------------------------

    def find_worker(self, label: str) -> WorkerRecord | None:
        """The worker that listings call so."""
        workers = self._ledger.workers.values()
        return next((worker for worker in workers if worker.label == label), None)

    def drain(self, worker: WorkerRecord, why: str, now: float) -> list[Output]:
        """Give it no more requests. A second drain replaces the reason of the first."""
        assert why
        if not worker.drain_why:
            worker.credit_afterwards, worker.credit = worker.credit, 0
            worker.service.drained += 1
        worker.drain_why = why
        worker.service.idle.pop(worker, None)
        title = f"worker {worker.label} of {worker.service.title}"
        self._observe(worker.service, "drain-worker", why, now, worker.held, worker.routing_id)
        return [Notice(f"{title} is drained, it holds {worker.held} requests: {why}")]

    def resume(self, worker: WorkerRecord, why: str, now: float) -> list[Output]:
        """It gets requests again."""
        worker.drain_why = ""
        worker.service.drained -= 1
        title = f"worker {worker.label} of {worker.service.title}"
        self._observe(worker.service, "resume-worker", why, now, worker.held, worker.routing_id)
        outputs = self._registry.set_credit(worker.routing_id, worker.credit_afterwards, now)
        return [Notice(f"{title} gets requests again: {why}"), *outputs]

    # --- requests -------------------------------------------------------------------------------------------

    def find_request(self, identity: bytes) -> Accepted | None:
        """The request with this identity, taken out of its batch; None if it has ended or never came.

        Requests of clients without numbers have the identities that this node gave them in a listing.
        """
        by_identity = self._ledger.by_identity
        if identity not in by_identity:
            self._bundles.unfold_identity(identity)
        known = by_identity.get(identity)
        if known is not None or not self._ledger.has_named(identity):
            return known
        return next((request for request in self._singles() if request.identity == identity), None)

    def oldest(self, service: ServiceRecord | None, count: int, now: float) -> list[RequestState]:
        """The oldest requests at workers, then the oldest that waits of each client; ``count`` of both."""
        workers = [each for each in self._ledger.workers.values() if service in (None, each.service)]
        services = [each for each in self._ledger.services.values() if service in (None, each)]
        running: list[Iterator[Accepted | Bundle]] = [
            source for worker in workers for source in (iter(worker.in_flight.values()), iter(worker.bundles))
        ]
        waiting = [queue.heads() for each in services for queue in each.queues]
        return [
            self.describe(item, now)
            for items in (running, waiting)
            for item in heapq.nsmallest(
                count, (item for source in items for item in source), key=lambda item: item.accepted_at
            )
        ]

    def describe(self, item: Accepted | Bundle, now: float) -> RequestState:
        """A request, or the part of a batch that waits or that one worker holds, for a listing."""
        if type(item) is Bundle:
            first = item.given if item.is_queued else 0
            identity, count = self._first_open(item, first), item.left
            codec, size, deliveries = native_broker.CODEC.label, sum(item.lengths[first:]), 0
            is_given_up = False
        else:
            assert type(item) is Accepted
            identity, count = item.identity or self._ledger.identify(item), 1
            codec, size, deliveries = dialect_of(item.codec, item.sender), item.size, item.deliveries
            is_given_up = item.is_abandoned
        is_waiting = item.is_queued
        return RequestState(
            request=identity.hex(),
            service=item.service.label,
            dialect=codec,
            client=peer_label(item.sender),
            age_s=round(now - item.accepted_at, 3),
            body_bytes=size,
            deliveries=deliveries or int(not is_waiting),
            requests=count,
            worker="" if is_waiting else self._ledger.workers[item.worker].label,
            held_s=0.0 if is_waiting else round(now - item.dispatched_at, 3),
            expires_in_s=round(max(0.0, item.expires_at - now), 3) if is_waiting else 0.0,
            is_given_up=is_given_up,
        )

    def _first_open(self, bundle: Bundle, first: int) -> bytes:
        """The identity of the first request in these rows that has no reply."""
        bundled = self._bundles.by_number[bundle.client_id]
        number = next(number for number in bundle.numbers[first:] if bundled.get(number) is bundle)
        return native.identity(bundle.client_id, number)

    def _singles(self) -> list[Accepted]:
        """Each request that is in no batch."""
        ledger = self._ledger
        running = [each for worker in ledger.workers.values() for each in worker.in_flight.values()]
        waiting = [item for service in ledger.services.values() for item in service.queue]
        return running + [item for item in waiting if type(item) is Accepted]

    def cancel(self, request: Accepted, why: str, now: float) -> list[Output]:
        """End it with an error for each caller, who does not send it again.

        The caller has checked that the request is not the store's, and that it is not given up.
        """
        service, identity = request.service, request.identity
        outputs = self._endings.cancel(request, why, now)
        self._observe(service, "cancel-request", why, now, 1, identity)
        return [*outputs, Notice(f"request {identity.hex()} of {service.title} is cancelled: {why}")]

    def _observe(
        self, service: ServiceRecord, order: Order, why: str, now: float, requests: int, about: bytes
    ) -> None:
        if self._ledger.observer is not None:
            self._ledger.observer.ordered(service, order, why, now, requests=requests, about=about)
