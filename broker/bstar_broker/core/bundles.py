"""Batches in the broker: one record for many requests.

A batch of requests stays one *bundle* until one of them differs. The queue holds it as one item. Workers get
slices of its table and blob. Its replies go back as they came, counted by number.

The broker *unfolds* a bundle as soon as one request differs. Its worker is lost or returns it, it fails,
streams, expires or is sent again, or this node gives up its role. Each open request then becomes an
``Accepted`` at the same position. So single requests and batches have one set of rules.
"""

import msgspec

from bstar.wire import native_broker
from bstar.wire.batches import REQUEST_ROW_BYTES, bodies_of, take_extensions
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.records import Accepted, Bundle, WorkerRecord


class Bundles:
    """The bundles of one broker. ``by_number``: per client id, its requests in bundles by their number."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.by_number: dict[bytes, dict[int, Bundle]] = {}

    def __len__(self) -> int:
        """How many requests are in bundles."""
        return sum(map(len, self.by_number.values()))

    def add(self, bundle: Bundle, numbers: tuple[int, ...]) -> None:
        """Enter the requests of this bundle."""
        self.by_number.setdefault(bundle.client_id, {}).update(dict.fromkeys(numbers, bundle))

    # --- parts of a bundle ----------------------------------------------------------------------------------

    def slice(self, bundle: Bundle, count: int) -> Bundle:
        """The next ``count`` requests as a bundle for one worker; only its rows differ."""
        part = bundle
        if count < len(bundle.numbers):
            first, last, begin = bundle.given, bundle.given + count, bundle.given_bytes
            lengths = bundle.lengths[first:last]
            part = msgspec.structs.replace(
                bundle,
                numbers=bundle.numbers[first:last],
                ttls_ms=bundle.ttls_ms[first:last],
                lengths=lengths,
                table=bundle.table[first * REQUEST_ROW_BYTES : last * REQUEST_ROW_BYTES],
                blob=bundle.blob[begin : begin + sum(lengths)],
                given=0,
                given_bytes=0,
                is_queued=False,
            )
        bundle.given += count
        bundle.given_bytes += len(part.blob)
        if part is bundle:
            part.is_queued = False
        part.left = count
        self.add(part, part.numbers)
        return part

    def take(self, bundle: Bundle, count: int) -> list[Accepted]:
        """Remove the next ``count`` undispatched requests and return them as single ones."""
        first, begin = bundle.given, bundle.given_bytes
        bundle.given = first + count
        bundle.given_bytes = begin + sum(bundle.lengths[first : first + count])
        bundled = self.by_number.get(bundle.client_id)
        if bundled is not None:
            for number in bundle.numbers[first : first + count]:
                bundled.pop(number, None)
            if not bundled:
                del self.by_number[bundle.client_id]
        requests = self._singles(bundle, range(first, first + count), begin)
        self._ledger.by_identity.update(
            zip([request.identity for request in requests], requests, strict=True)
        )
        return requests

    def _singles(self, bundle: Bundle, rows: range, begin: int) -> list[Accepted]:
        """These rows as single requests. The body of the first begins at byte ``begin`` of the blob.

        A row's number, time to live and body are joined here only.
        """
        sender, client_id, service, table = bundle.sender, bundle.client_id, bundle.service, bundle.table
        accepted_at, expires_at, deadline = bundle.accepted_at, bundle.expires_at, 0.0
        waits_s, expires_s = self._ledger.settings.request_ttl_s, service.limits.expires_s
        waits_until = accepted_at + (waits_s if expires_s is None else min(waits_s, expires_s))
        has_deadline = bundle.has_deadline
        lengths = bundle.lengths[rows.start : rows.stop]
        ttls_ms = bundle.ttls_ms[rows.start : rows.stop]
        bodies = bodies_of(bundle.blob, lengths, begin)
        extensions = take_extensions(bodies, table, rows.start, is_extended=bundle.is_extended)
        requests = []
        for row, ttl_ms, size, body, extension in zip(
            rows, ttls_ms, lengths, bodies, extensions, strict=True
        ):
            at = row * REQUEST_ROW_BYTES
            if has_deadline:
                deadline = accepted_at + ttl_ms / 1000
                expires_at = min(deadline, waits_until)
            requests.append(
                Accepted(
                    sender,
                    (),
                    native_broker.CODEC,
                    sender,
                    service,
                    [body],
                    size,
                    client_id + table[at : at + 8],
                    extension,
                    accepted_at,
                    expires_at,
                    deadline,
                    is_repeated=bundle.is_repeated,
                    is_once=bundle.is_once,
                    is_whole=bundle.is_whole,
                )
            )
        return requests

    # --- unfolding ------------------------------------------------------------------------------------------

    def unfold_identity(self, identity: bytes) -> bool:
        """Unfold the bundle that this request is in. False if it is in none."""
        bundled = self.by_number.get(identity[:16])
        if bundled is None:
            return False
        bundle = bundled.get(int.from_bytes(identity[16:], "big"))
        if bundle is None:
            return False
        if bundle.is_queued:
            self.unfold_queued(bundle)
        else:
            self.unfold_given(self._ledger.workers[bundle.worker], bundle)
        return True

    def unfold_held(self, worker: WorkerRecord, identity: bytes) -> bool:
        """Unfold the bundle of this request if this worker holds it. False if it does not."""
        return bool(worker.bundled) and self.unfold_identity(identity) and identity in worker.in_flight

    def unfold_queued(self, bundle: Bundle) -> None:
        """Queue its requests at its position, each with its own deadline."""
        self._replace(bundle, self.unfold_waiting(bundle))

    def expire_queued(self, bundle: Bundle, now: float) -> list[Accepted]:
        """As ``unfold_queued``, but remove expired requests from the queue and return them."""
        requests = self.unfold_waiting(bundle)
        expired = [request for request in requests if request.expires_at <= now]
        if len(expired) == len(requests):
            bundle.service.queue.remove(bundle.sender, bundle, len(expired))
        else:
            waiting = [request for request in requests if request.expires_at > now]
            self._replace(bundle, waiting, gone=len(expired))
        return expired

    def _replace(self, bundle: Bundle, requests: list[Accepted], gone: int = 0) -> None:
        waiting = self._ledger.waiting
        bundle.service.queue.replace(bundle.sender, bundle, requests, gone)
        for request in requests:
            request.is_queued = True
            waiting.add_deadline(request)

    def unfold_waiting(self, bundle: Bundle) -> list[Accepted]:
        """Its undispatched requests as single ones. The caller queues them."""
        bundle.is_queued = False
        requests = self.take(bundle, len(bundle.numbers) - bundle.given)
        empty(bundle)
        return requests

    def unfold_worker(self, worker: WorkerRecord) -> None:
        """Unfold all bundles of this worker."""
        for bundle in list(worker.bundles):
            self.unfold_given(worker, bundle)

    def unfold_given(self, worker: WorkerRecord, bundle: Bundle) -> None:
        """Its worker holds its open requests as single ones."""
        bundled = self.by_number[bundle.client_id]
        by_identity = self._ledger.by_identity
        numbers = bundle.numbers
        for number, request in zip(numbers, self._singles(bundle, range(len(numbers)), 0), strict=True):
            if bundled.get(number) is not bundle:
                continue  # it has been answered
            del bundled[number]
            request.deliveries = 1
            request.dispatched_at = bundle.dispatched_at
            request.worker = bundle.worker
            by_identity[request.identity] = worker.in_flight[request.identity] = request
            worker.bundled -= 1
        if not bundled:
            del self.by_number[bundle.client_id]
        del worker.bundles[bundle]
        empty(bundle)


def empty(bundle: Bundle) -> None:
    """Free the bodies: the line of deadlines may keep the record until it expires."""
    bundle.table = bundle.blob = b""
