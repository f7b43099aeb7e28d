"""Admits clients' requests: each is dispatched at once, queued, or refused.

A request is a repetition if the node has its identity in flight. It is not executed again; its client gets
the reply of the first.
"""

from collections.abc import Callable, Sequence

from bstar.base.printable import printable
from bstar.wire import CODECS, mmi, native, native_broker, refusals
from bstar.wire.batches import REQUEST_ROW_BYTES, bodies_of, take_extensions
from bstar.wire.dialect import ClientCodec, Dialect
from bstar.wire.messages import Directed, ErrorCode, Request, Requests
from bstar.wire.refusals import Refusal
from bstar_broker.core.bundles import Bundles
from bstar_broker.core.dispatch import Dispatcher
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.outputs import Output, Send
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord

# A request's cost beside its body: its record and its entries in tables and a queue (700 bytes, measured),
# and those of its client if it has no other request (500 more).
REQUEST_BYTES = 1_200
# How many other clients may wait for one key: repeated or speculative tasks, a few programs that do the same.
# Each costs an address here and a copy of the reply.
ASKERS_MAX = 16


class Admission:
    """Decides about requests that this node serves or holds. It binds the tables of the ledger once.

    That saves an attribute look-up per use, 2 % of a request's time in the core.
    """

    def __init__(self, ledger: Ledger, bundles: Bundles, dispatcher: Dispatcher) -> None:
        self._ledger = ledger
        self._bundles = bundles
        self._dispatch = dispatcher.dispatch
        self._deal = dispatcher.deal
        self._dispatch_queued = dispatcher.dispatch_queued
        self._settings = ledger.settings
        self._services = ledger.services
        self._by_identity = ledger.by_identity
        self._requests_of = ledger.requests_of
        self._accounts = ledger.accounts
        self._waiting = ledger.waiting
        # Indexed by Dialect's number.
        self._codecs: tuple[ClientCodec, ...] = (*CODECS, ledger.mailbox)

    def receive(self, message: Request, now: float) -> list[Output]:
        """Handle one request of a client. It waits if this node does not serve."""
        codec = self._codecs[message.dialect]
        service = self._services.get(message.service)
        if service is None and (service := self._add_service(message.service, now)) is None:
            return self._refuse(message, codec, None, refusals.SERVICES_FULL)
        identity = message.identity
        sender = message.sender
        if identity:
            known = self._by_identity.get(identity)
            if known is None and self._bundles.unfold_identity(identity):
                known = self._by_identity[identity]
            if known is not None:
                return self._join(known, message, now)
        held = self._requests_of.get(sender, 0)
        body = message.body
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if message.extensions:
            size += len(message.extensions)
        ledger = self._ledger
        queue, idle = service.queue, service.idle
        is_queued = not (
            idle and ledger.is_serving and not (queue.length or ledger.is_draining or service.is_gated)
        )
        refusal = self._why_not_taken(message, held + 1, size + REQUEST_BYTES)
        if refusal is None and is_queued:
            refusal = self._waiting.why_not(
                sender, held + 1, queue.length + 1, size, service.limits.queue_length_max
            )
        if refusal is not None:
            return self._refuse(message, codec, service, refusal)
        latest = now + (
            self._settings.request_ttl_s
            if service.limits.expires_s is None
            else self._waits_s(service, codec)
        )
        deadline = now + message.ttl_ms / 1000 if message.ttl_ms else 0.0
        request = Accepted(
            sender, message.envelope, codec, sender, service, body, size, identity,
            message.extensions, now, min(latest, deadline) if deadline else latest, deadline,
            message.is_repeated, message.is_urgent, message.is_once, message.is_whole, is_queued,
        )  # fmt: skip
        outputs: list[Output] = []
        if is_queued:
            queue.push(sender, request, is_urgent=message.is_urgent)
            self._waiting.enter(request, sender, 1, size, now)
        else:
            outputs.append(self._dispatch(idle.popitem(last=False)[0], request, now))
        service.tally.accepted += 1
        ledger.memory_left -= size + REQUEST_BYTES
        self._requests_of[sender] = held + 1
        if self._accounts:
            ledger.charge(sender, 1)
        if identity:
            self._by_identity[identity] = request
        if is_queued and idle:
            # A suspect waits for an empty worker. This request may stand before it in the queue.
            self._dispatch_queued(service, now, outputs)
        return outputs

    def _add_service(self, name: bytes, now: float) -> ServiceRecord | None:
        """The record of a service that is not in the table; None if the table is full."""
        assert not name.startswith(mmi.PREFIX), "the node answers management requests"
        has_room = len(self._services) < self._settings.services_max
        return self._ledger.add_service(name, now) if has_room else None

    def _waits_s(self, service: ServiceRecord, codec: ClientCodec) -> float:
        """How long a request may wait. ``expires_s`` does not end requests of the store: it would only queue
        them again.
        """
        waits_s, expires_s = self._settings.request_ttl_s, service.limits.expires_s
        return waits_s if expires_s is None or codec is self._ledger.mailbox else min(waits_s, expires_s)

    def _why_not_taken(self, message: Request | Requests, held: int, size_bytes: int) -> Refusal | None:
        """Why the message is refused. Its client then holds ``held`` requests; it takes ``size_bytes``."""
        if message.is_once and message.is_repeated:
            return refusals.ONCE_REPEATED
        if held > self._settings.requests_per_client_max:
            return refusals.CLIENT_FULL
        return refusals.MEMORY_FULL if size_bytes > self._ledger.memory_left else None

    def _refuse(
        self, message: Request, codec: ClientCodec, service: ServiceRecord | None, refusal: Refusal
    ) -> list[Output]:
        """Count a refusal and tell the client."""
        outputs = self._ledger.note(refusal.reason, refusal.text)
        if refusal.is_of_service:
            assert service is not None
            service.tally.refusals[refusal.reason] += 1
        frames = refusal.frames(codec, message, self._ledger.epoch)
        return outputs if frames is None else [*outputs, Send(frames)]

    # --- for one worker alone -----------------------------------------------------------------------------

    def receive_directed(self, message: Directed, now: float) -> list[Output]:
        """Handle a request for one worker alone (BSN-B-31)."""
        ledger, sender, name, identity = self._ledger, message.sender, message.worker, message.identity
        self._bundles.unfold_identity(identity)
        known = self._by_identity.get(identity)
        if known is not None:
            return self._join(known, message, now)
        service = self._services.get(message.service)
        codec = self._codecs[message.dialect]
        if service is None or not ledger.offers(name, service):
            text = f"worker {printable(name)} of service {printable(message.service)} is gone"
            return self._refuse(message, codec, service, refusals.WORKER_GONE.saying(text))
        held = self._requests_of.get(sender, 0) + 1
        size = sum(map(len, message.body)) + len(message.extensions)
        waits = service.directed.get(name)
        refusal = self._why_not_taken(message, held, size + REQUEST_BYTES) or self._waiting.why_not(
            sender, held, 1 if waits is None else waits.length + 1, size, service.limits.queue_length_max
        )
        if refusal is not None:
            return self._refuse(message, codec, service, refusal)
        expires_at = now + self._waits_s(service, codec)
        deadline = now + message.ttl_ms / 1000 if message.ttl_ms else 0.0
        if 0.0 < deadline < expires_at:
            expires_at = deadline
        request = Accepted(
            sender, message.envelope, codec, sender, service, message.body, size, identity,
            message.extensions, now, expires_at, deadline,
            message.is_repeated, message.is_urgent, message.is_once, message.is_whole, is_queued=True,
            target=name,
        )  # fmt: skip
        service.queue_of(request).push(sender, request, is_urgent=message.is_urgent)
        self._waiting.enter(request, sender, 1, size, now)
        service.tally.accepted += 1
        ledger.memory_left -= size + REQUEST_BYTES
        self._requests_of[sender] = held
        if self._accounts:
            ledger.charge(sender, 1)
        self._by_identity[identity] = request
        outputs: list[Output] = []
        self._dispatch_queued(service, now, outputs, ledger.named[name])
        return outputs

    # --- repetitions ----------------------------------------------------------------------------------------

    def _join(self, request: Accepted, message: Request, now: float) -> list[Output]:
        """The node has a request with this identity: execute it once, answer both.

        An identity without a key belongs to one client, so that client has a new address. Many clients may
        ask with one key: all of them get the reply (BSN-B-16).
        """
        service = request.service
        sender, codec = message.sender, self._codecs[message.dialect]
        if codec is not request.codec:
            # A client uses the identity of a durable request, which it may have derived from a key.
            return self._refuse(message, codec, service, refusals.ASKERS_LATE)
        if (
            message.service != service.name
            or not is_same_body(message.body, request.body)
            or message.is_once != request.is_once
            or (message.worker if type(message) is Directed else b"") != request.target
        ):
            return self._refuse(message, codec, service, refusals.OTHER_BODY)
        if request.is_abandoned or not native.is_keyed(request.identity):
            request.sender = sender
            request.envelope = message.envelope
            request.is_abandoned = False
        else:
            askers = request.askers if request.askers is not None else []
            if sender != request.sender and sender not in askers:
                if len(askers) >= ASKERS_MAX:
                    return self._refuse(message, codec, service, refusals.ASKERS_FULL)
                if request.partials:
                    return self._refuse(message, codec, service, refusals.ASKERS_LATE)
                askers.append(sender)
                request.askers = askers
            self._extend(request, message, now)
        request.is_whole = request.is_whole and message.is_whole
        service.tally.duplicates += 1
        return []

    def _extend(self, request: Accepted, message: Request, now: float) -> None:
        """Clients with one key may have different deadlines: the latest one counts."""
        ttl_s = message.ttl_ms / 1000
        waits_s = self._waits_s(request.service, request.codec)
        request.deadline = max(request.deadline, now + ttl_s) if request.deadline and ttl_s else 0.0
        expires_at = now + (ttl_s if 0 < ttl_s < waits_s else waits_s)
        if expires_at > request.expires_at:
            request.expires_at = expires_at
            if request.is_queued:
                self._waiting.add_deadline(request)

    # --- batches --------------------------------------------------------------------------------------------

    def receive_batch(self, message: Requests, now: float) -> list[Output]:
        """Handle a batch of a client. If one of its requests needs a decision, handle each by itself."""
        service = self._services.get(message.service) or self._add_service(message.service, now)
        if service is None or self._needs_decisions(message, service):
            return self.receive_singly(message, self.receive, now)
        ledger, waits_s = self._ledger, self._waits_s(service, native_broker.CODEC)
        sender = message.sender
        count, size = len(message.numbers), len(message.blob)
        ttl_ms = min(message.ttls_ms)
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
            now + (min(ttl_ms / 1000, waits_s) if ttl_ms else waits_s),
            ttl_ms > 0,
            message.is_repeated,
            message.is_once,
            message.is_whole,
            message.is_extended,
            count,
        )
        service.tally.accepted += count
        ledger.memory_left -= size
        self._requests_of[sender] = self._requests_of.get(sender, 0) + count
        if self._accounts:
            ledger.charge(sender, count)
        outputs: list[Output] = []
        is_first = not (service.queue.length or ledger.is_draining or service.is_gated)
        if is_first and service.idle and ledger.is_serving:
            self._deal(bundle, count, outputs, now)
        rest = count - bundle.given
        if rest:
            bundle.left = rest
            bundle.is_queued = True
            self._bundles.add(bundle, bundle.numbers[bundle.given :] if bundle.given else bundle.numbers)
            service.queue.push(sender, bundle, rest)
            self._waiting.enter(bundle, sender, rest, size - bundle.given_bytes, now)
            if service.idle:
                self._dispatch_queued(service, now, outputs)
        return outputs

    def _needs_decisions(self, message: Requests, service: ServiceRecord) -> bool:
        """True if a rule may refuse one of these requests, or treat one differently from the others."""
        sender, size, ttls_ms = message.sender, len(message.blob), message.ttls_ms
        count = len(ttls_ms)
        held = self._requests_of.get(sender, 0) + count
        return (
            self._why_not_taken(message, held, size) is not None
            or self._waiting.why_not(
                sender, held, service.queue.length + count, size, service.limits.queue_length_max
            )
            is not None
            or size > self._settings.message_bytes_max
            or (0 in ttls_ms and any(ttls_ms))
            or self._is_known(message)
        )

    def knows(self, message: Request | Requests) -> bool:
        """True if the node has this request, or any of these."""
        if isinstance(message, Requests):
            return self._is_known(message)
        identity = message.identity
        bundled = self._bundles.by_number.get(identity[:16], {})
        return identity in self._by_identity or int.from_bytes(identity[16:], "big") in bundled

    def _is_known(self, message: Requests) -> bool:
        bundled = self._bundles.by_number.get(message.client_id)
        if bundled is not None and not bundled.keys().isdisjoint(message.numbers):
            return True
        singles = self._by_identity
        if not singles:
            return False
        client_id, table = message.client_id, message.table
        return any(
            client_id + table[at : at + 8] in singles for at in range(0, len(table), REQUEST_ROW_BYTES)
        )

    def receive_singly(
        self, message: Requests, receive: Callable[[Request, float], list[Output]], now: float
    ) -> list[Output]:
        """``receive`` each request of the batch as a message of its own."""
        outputs: list[Output] = []
        limit = self._settings.message_bytes_max
        bodies = bodies_of(message.blob, message.lengths)
        extensions = take_extensions(bodies, message.table, 0, is_extended=message.is_extended)
        rows = zip(message.numbers, message.ttls_ms, bodies, extensions, strict=True)
        for number, ttl_ms, body, extension in rows:
            request = Request(
                message.sender,
                Dialect.NATIVE,
                (),
                message.service,
                [body],
                native.identity(message.client_id, number),
                ttl_ms,
                message.epoch,
                extension,
                message.is_repeated,
                is_once=message.is_once,
                is_whole=message.is_whole,
            )
            if len(body) > limit:
                self._ledger.drop("invalid-size")
                text = f"the message has more than {limit} bytes".encode()
                failure = native_broker.CODEC.failure(request, self._ledger.epoch, ErrorCode.INVALID, text)
                outputs.append(Send(failure))
                continue
            outputs += receive(request, now)
        return outputs


def is_same_body(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """True if the frames are equal. It compares views as words: 64 MiB take 9 ms, and 0.13 s as bytes."""
    return len(one) == len(other) and all(map(_is_same_frame, one, other))


def _is_same_frame(one: bytes, other: bytes) -> bool:
    if type(one) is bytes and type(other) is bytes:
        return one == other
    if len(one) != len(other):
        return False
    a, b, whole = memoryview(one), memoryview(other), len(one) & ~7
    return a[:whole].cast("Q") == b[:whole].cast("Q") and a[whole:] == b[whole:]
