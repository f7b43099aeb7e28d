"""Batches on their way through the broker, as units and not request by request.

A batch of requests stays together while nothing happens to one of them alone: it is queued as one item,
given to workers in slices of its table and blob, and its replies go back as they came, counted by number. All
that a broker knows of a request is known of these as well, but kept for many at a time: who sent them, until
when they may wait, which worker has them, how many a client has here, how much the queue holds.

As soon as one of them is different (its worker is gone or sends it back, it fails, it has PARTIALs, its time
comes, it is asked for again, this node gives up its role) the bundle is *unfolded*: each of its requests that
has not ended becomes an ``Accepted`` of its own, in its place, and what happens then is decided where it
always is, in ``broker``. So there is one set of rules, and nothing here repeats any of it.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from bstar.wire import native
from bstar.wire.batches import REQUEST_ROW_BYTES, bodies_of
from bstar.wire.dialect import Dialect
from bstar.wire.messages import ErrorCode, Final, Finals, Request, Requests
from bstar_broker.core.outputs import Dispatch, Output, Send
from bstar_broker.core.records import Accepted, Bundle, WorkerRecord

if TYPE_CHECKING:
    from bstar_broker.core.broker import Broker

__all__ = ["Bundles"]

# Of a client's batch, while other clients wait as well: what it gets in one turn.
_TURN_ROWS = 32


class Bundles:
    """The bundles of one broker, whose tables it keeps up to date."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        # Per client id, its requests that are in bundles now, by number.
        self._open: dict[bytes, dict[int, Bundle]] = {}

    def __len__(self) -> int:
        """How many requests are in bundles."""
        return sum(map(len, self._open.values()))

    # --- requests -------------------------------------------------------------------------------------------

    def receive(self, message: Requests, now: float) -> list[Output]:
        """A batch of a client that this node may serve."""
        broker = self._broker
        settings = broker.settings
        service = broker.services.get(message.service)
        if service is None and len(broker.services) < settings.services_max:
            service = broker.table.add(message.service, now)
        sender = message.sender
        count, size = len(message.numbers), len(message.blob)
        held = broker.requests_of.get(sender, 0)
        ttl_ms = min(message.ttls_ms)
        if (
            service is None
            or held + count > settings.requests_per_client_max
            or broker.waiting.is_long(service.queue.length + count, held + count)
            or broker.waiting.is_heavy(sender, size)
            or size > settings.message_bytes_max
            or size > broker.memory_left
            or (not ttl_ms and any(message.ttls_ms))
            or (message.is_once and message.is_repeated)
            or self._is_known(message)
        ):
            return self.receive_singly(message, broker.receive, now)
        bundle = Bundle(
            sender,
            message.client_id,
            service,
            message.numbers,
            message.ttls_ms,
            message.lengths,
            message.table,
            message.blob,
            now,
            now + min(ttl_ms / 1000 if ttl_ms else settings.request_ttl_s, settings.request_ttl_s),
            ttl_ms > 0,
            message.is_repeated,
            message.is_once,
            message.is_whole,
            count,
        )
        service.accepted += count
        broker.memory_left -= size
        broker.requests_of[sender] = held + count
        outputs: list[Output] = []
        if service.idle and not service.queue.length and not broker.is_draining:
            self._deal(bundle, count, outputs, now)
        rest = count - bundle.given
        if rest:
            bundle.left = rest
            bundle.is_queued = True
            numbers = bundle.numbers[bundle.given :] if bundle.given else bundle.numbers
            self._open.setdefault(bundle.client_id, {}).update(dict.fromkeys(numbers, bundle))
            service.queue.push(sender, bundle, rest)
            broker.waiting.enter(bundle, rest, size - bundle.given_bytes, now)
        return outputs

    def _is_known(self, message: Requests) -> bool:
        """Is any of these requests here already?"""
        bundled = self._open.get(message.client_id)
        if bundled is not None and not bundled.keys().isdisjoint(message.numbers):
            return True
        singles = self._broker.by_identity
        if not singles:
            return False
        client_id, table = message.client_id, message.table
        return any(
            client_id + table[at : at + 8] in singles for at in range(0, len(table), REQUEST_ROW_BYTES)
        )

    def receive_singly(
        self, message: Requests, receive: Callable[[Request, float], list[Output]], now: float
    ) -> list[Output]:
        """The same as so many messages of one request each."""
        outputs: list[Output] = []
        limit = self._broker.settings.message_bytes_max
        rows = zip(message.numbers, message.ttls_ms, bodies_of(message.blob, message.lengths), strict=True)
        for number, ttl_ms, body in rows:
            identity = native.identity(message.client_id, number)
            if len(body) > limit:
                self._broker.drop("invalid-size")
                text = f"the message has more than {limit} octets".encode()
                failure = native.CODEC.failure(
                    message.sender, (), identity, self._broker.epoch, ErrorCode.INVALID, text
                )
                outputs.append(Send(failure))
                continue
            request = Request(
                message.sender,
                Dialect.NATIVE,
                (),
                message.service,
                [body],
                identity,
                ttl_ms,
                message.epoch,
                b"",
                message.is_repeated,
                is_once=message.is_once,
                is_whole=message.is_whole,
            )
            outputs += receive(request, now)
        return outputs

    # --- to workers -----------------------------------------------------------------------------------------

    def give_next(self, bundle: Bundle, outputs: list[Output], now: float) -> None:
        """It is this queued bundle's turn, and its service has workers with credit left."""
        if now >= bundle.expires_at:
            self.unfold_queued(bundle)
            return
        broker, queue = self._broker, bundle.service.queue
        given, given_bytes, left = bundle.given, bundle.given_bytes, bundle.left
        self._deal(bundle, min(left, _TURN_ROWS) if queue.is_shared else left, outputs, now)
        count = bundle.given - given
        broker.waiting.leave(bundle.sender, count, bundle.given_bytes - given_bytes)
        if count < left:
            bundle.left = left - count
            queue.take_part(count)
        else:
            queue.pop(count)
            bundle.is_queued = False
            if not bundle.worker:
                _empty(bundle)

    def _deal(self, bundle: Bundle, limit: int, outputs: list[Output], now: float) -> None:
        """Give at most ``limit`` of its requests to workers, in shares as equal as their credit allows."""
        broker = self._broker
        idle = bundle.service.idle
        if 1 < limit <= len(idle):
            # Each gets one, so there is nothing to be gained by keeping any of them together.
            outputs += [
                broker.dispatch(idle.popitem(last=False)[0], request, now)
                for request in self._take(bundle, limit)
            ]
            return
        while idle and limit:
            share = -(-limit // len(idle))
            for _ in range(len(idle)):
                worker, _ = idle.popitem(last=False)
                count = 1
                if worker.takes_batches:
                    count = min(share, limit, worker.credit - worker.held)
                limit -= count
                if count > 1:
                    outputs.append(self._give(bundle, count, worker, now))
                    if worker.held < worker.credit:
                        idle[worker] = None
                else:
                    outputs.append(broker.dispatch(worker, self._take(bundle, 1)[0], now))
                if not limit:
                    return
            # One pass gives everybody a share; the next one gives what is left to those with more credit.

    def _give(self, bundle: Bundle, count: int, worker: WorkerRecord, now: float) -> Dispatch:
        """A slice of so many requests, and the bundle that it is from now on."""
        part = bundle
        if count < len(bundle.numbers):
            part = self._slice(bundle, count)
        bundle.given += count
        bundle.given_bytes += len(part.blob)
        if part is bundle:
            part.is_queued = False
        part.left = count
        part.worker = worker.routing_id
        part.dispatched_at = now
        self._open.setdefault(part.client_id, {}).update(dict.fromkeys(part.numbers, part))
        worker.bundles[part] = None
        worker.bundled += count
        worker.last_bundle = part
        worker.sent_at = now
        return Dispatch(
            native.CODEC.requests(
                worker.routing_id,
                part.client_id,
                part.table,
                part.blob,
                int((now - part.accepted_at) * 1000),
                self._broker.epoch,
                part.is_repeated,
            )
        )

    @staticmethod
    def _slice(bundle: Bundle, count: int) -> Bundle:
        """The next requests as a bundle of their own, which differs from this one in its rows alone."""
        first, last, begin = bundle.given, bundle.given + count, bundle.given_bytes
        lengths = bundle.lengths[first:last]
        return msgspec.structs.replace(
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

    def _take(self, bundle: Bundle, count: int) -> list[Accepted]:
        """The next requests that have not been given to a worker, as single ones, out of the bundle."""
        first, begin = bundle.given, bundle.given_bytes
        bundle.given = first + count
        bundle.given_bytes = begin + sum(bundle.lengths[first : first + count])
        bundled = self._open.get(bundle.client_id)
        if bundled is not None:
            for number in bundle.numbers[first : first + count]:
                bundled.pop(number, None)
            if not bundled:
                del self._open[bundle.client_id]
        requests = self._singles(bundle, range(first, first + count), begin)
        self._broker.by_identity.update(
            zip([request.identity for request in requests], requests, strict=True)
        )
        return requests

    # --- replies --------------------------------------------------------------------------------------------

    def receive_finals(self, message: Finals, now: float) -> list[Output]:
        """A batch of replies of a worker."""
        broker = self._broker
        worker = broker.workers.get(message.sender)
        if worker is None:
            return broker.unknown_worker(message.sender, Dialect.NATIVE, (), now)
        numbers = message.numbers
        count = len(numbers)
        bundled = self._open.get(message.client_id)
        parts = [] if bundled is None else list(filter(None, map(bundled.get, numbers)))
        if bundled is None or len(parts) < count or parts[0].worker != worker.routing_id:
            return self._receive_finals_singly(message, now)
        first = parts[0]
        counts = {first: count}
        if parts.count(first) < count:
            counts = Counter(parts)
            if any(part.worker != first.worker or part.sender != first.sender for part in counts):
                return self._receive_finals_singly(message, now)
        for number in numbers:
            del bundled[number]
        if not bundled:
            del self._open[message.client_id]
        service = worker.service
        worker.expires_at = now + worker.expiry_s
        worker.bundled -= count
        service.answered += count
        for part, answered in counts.items():
            part.left -= answered
            if not part.left:
                del worker.bundles[part]
                _empty(part)
            service.busy_s += answered * (now - part.dispatched_at)
            service.observe_latencies(now - part.accepted_at, answered)
        if broker.observer is not None:
            broker.observer.answered(parts, message, broker.epoch, now)
        broker.note_ended(first.sender, count)
        outputs: list[Output] = [Send([first.sender, message.header, message.table, message.blob])]
        broker.has_room(worker, now, outputs)
        return outputs

    def _receive_finals_singly(self, message: Finals, now: float) -> list[Output]:
        """Replies to requests that have become single ones, or to none at all."""
        outputs: list[Output] = []
        epoch = int.from_bytes(message.header[28:36], "big")
        for number, body in zip(message.numbers, bodies_of(message.blob, message.lengths), strict=True):
            identity = native.identity(message.client_id, number)
            head = native.header(native.FINAL, identity=identity, epoch=epoch)
            final = Final(message.sender, Dialect.NATIVE, (), identity, [body], head)
            outputs += self._broker.receive(final, now)
        return outputs

    # --- unfolding ------------------------------------------------------------------------------------------

    def unfold_identity(self, identity: bytes) -> bool:
        """Make single requests of the bundle that this one is in. False if it is in none."""
        bundled = self._open.get(identity[:16])
        if bundled is None:
            return False
        bundle = bundled.get(int.from_bytes(identity[16:], "big"))
        if bundle is None:
            return False
        if bundle.is_queued:
            self.unfold_queued(bundle)
        else:
            self.unfold_given(self._broker.workers[bundle.worker], bundle)
        return True

    def unfold_queued(self, bundle: Bundle) -> None:
        """Its requests wait in its place, each until its own time."""
        self._replace(bundle, self.unfold_waiting(bundle))

    def expire_queued(self, bundle: Bundle, now: float) -> list[Accepted]:
        """The same, but for those whose time is over, which are returned and do not wait any more."""
        requests = self.unfold_waiting(bundle)
        expired = [request for request in requests if request.expires_at <= now]
        if len(expired) == len(requests):
            bundle.service.queue.remove(bundle.sender, bundle, len(expired))
        else:
            waiting = [request for request in requests if request.expires_at > now]
            self._replace(bundle, waiting, gone=len(expired))
        return expired

    def _replace(self, bundle: Bundle, requests: list[Accepted], gone: int = 0) -> None:
        broker = self._broker
        bundle.service.queue.replace(bundle.sender, bundle, requests, gone)
        for request in requests:
            request.is_queued = True
            broker.waiting.add_deadline(request)

    def unfold_waiting(self, bundle: Bundle) -> list[Accepted]:
        """Its requests that no worker was given, as single ones, to be put where they belong."""
        bundle.is_queued = False
        requests = self._take(bundle, len(bundle.numbers) - bundle.given)
        _empty(bundle)
        return requests

    def unfold_workers(self) -> None:
        """Make single requests of all that workers hold."""
        for worker in self._broker.workers.values():
            if worker.bundles:
                self.unfold_worker(worker)

    def unfold_worker(self, worker: WorkerRecord) -> None:
        """The same for all that this worker holds."""
        for bundle in list(worker.bundles):
            self.unfold_given(worker, bundle)

    def unfold_given(self, worker: WorkerRecord, bundle: Bundle) -> None:
        """Its worker holds its requests without a reply as single ones."""
        bundled = self._open[bundle.client_id]
        by_identity = self._broker.by_identity
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
            del self._open[bundle.client_id]
        del worker.bundles[bundle]
        _empty(bundle)

    def _singles(self, bundle: Bundle, rows: range, begin: int) -> list[Accepted]:
        """These rows as single requests; the body of the first of them begins at octet ``begin`` of the blob.

        The only place that takes a bundle apart: a row's number, time to live and body go together here.
        """
        sender, client_id, service, table = bundle.sender, bundle.client_id, bundle.service, bundle.table
        accepted_at, expires_at, deadline = bundle.accepted_at, bundle.expires_at, 0.0
        waits_until = accepted_at + self._broker.settings.request_ttl_s
        has_deadline = bundle.has_deadline
        lengths = bundle.lengths[rows.start : rows.stop]
        ttls_ms = bundle.ttls_ms[rows.start : rows.stop]
        bodies = bodies_of(bundle.blob, lengths, begin)
        requests = []
        for row, ttl_ms, body in zip(rows, ttls_ms, bodies, strict=True):
            at = row * REQUEST_ROW_BYTES
            if has_deadline:
                deadline = accepted_at + ttl_ms / 1000
                expires_at = min(deadline, waits_until)
            requests.append(
                Accepted(
                    sender,
                    (),
                    native.CODEC,
                    sender,
                    service,
                    [body],
                    len(body),
                    client_id + table[at : at + 8],
                    b"",
                    accepted_at,
                    expires_at,
                    deadline,
                    is_repeated=bundle.is_repeated,
                    is_once=bundle.is_once,
                    is_whole=bundle.is_whole,
                )
            )
        return requests


def _empty(bundle: Bundle) -> None:
    """Its entry among the deadlines may outlive it by the whole time to live."""
    bundle.table = bundle.blob = b""
