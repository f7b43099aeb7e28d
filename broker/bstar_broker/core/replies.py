"""Passes replies of workers to clients, each in the client's dialect."""

from collections import Counter

from bstar.wire import native, native_broker
from bstar.wire.batches import bodies_of
from bstar.wire.dialect import Dialect
from bstar.wire.messages import ErrorCode, Failure, Final, Finals, Partial, ProgressMade
from bstar_broker.core.bundles import Bundles, empty
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.outputs import Output, Send
from bstar_broker.core.records import Accepted
from bstar_broker.core.registry import WorkerRegistry

# Frames of PARTIALs held for one reply. Each costs an object, even one without a byte.
_HELD_FRAMES_MAX = 100_000
_INCOMPLETE = (
    b"parts of its reply were dropped: they came while it was given up, or are larger than "
    b"limits.partials_buffer_bytes_max"
)


class Replies:
    """Matches each reply to the request that its worker holds."""

    def __init__(self, ledger: Ledger, bundles: Bundles, registry: WorkerRegistry) -> None:
        self._ledger = ledger
        self._workers = ledger.workers
        self._bundles = bundles
        self._registry = registry
        self._has_room = registry.has_room

    def receive_final(self, message: Final | Failure, now: float) -> list[Output]:
        """Handle the last reply to a request, or the error of its handler."""
        ledger = self._ledger
        worker = self._workers.get(message.sender)
        if worker is None:
            return self._registry.reject_unknown(message, now)
        request = worker.in_flight.pop(message.address, None)
        if request is None:
            if self._bundles.unfold_held(worker, message.address):
                return self.receive_final(message, now)
            return self._registry.expel(worker, "unexpected-reply", now)
        worker.expires_at = now + worker.lease.expiry_s
        tally = request.service.tally
        tally.busy_s += now - request.dispatched_at
        outputs: list[Output] = []
        if request.is_abandoned:
            ledger.drop("late-reply")
            ledger.report(request, "late", (), now)
        else:
            tally.observe_latency(now - request.accepted_at)
            if type(message) is Final and request.held is None and request.held_bytes:
                self._lose(request, now, outputs)
            elif type(message) is Final:
                tally.answered += 1
                body = message.body
                if request.held is not None:
                    body = [*request.held, *body]
                if ledger.observer is not None:
                    ledger.report(request, "answered", body, now)
                frames = request.codec.final(
                    request, request.service.name, ledger.epoch, request.partials, body, message.header
                )
                ledger.answer(request, frames, outputs)
            else:
                assert type(message) is Failure
                ledger.answer(request, self._fail(request, message, now), outputs)
        ledger.forget(request)
        self._has_room(worker, now, outputs)
        return outputs

    def _fail(self, request: Accepted, failure: Failure, now: float) -> list[bytes] | None:
        """Count the request; the message that tells its client."""
        ledger, codec, service = self._ledger, request.codec, request.service
        if failure.is_declined:
            service.tally.declined += 1
            ledger.report(request, "declined", (failure.text,), now)
            return codec.declined(request, service.name, ledger.epoch, failure.text, failure.data)
        if codec is ledger.mailbox and failure.code == ErrorCode.RETRY:
            # Its handler gives it back to the store until later.
            service.tally.returned += 1
        else:
            service.tally.failed += 1
        ledger.report(request, "failed", (failure.text,), now)
        frames = codec.failure(request, ledger.epoch, failure.code, failure.text)
        if codec is ledger.mailbox:
            ledger.mailbox.retry_after(failure.retry_ms)
        return frames

    def _lose(self, request: Accepted, now: float, outputs: list[Output]) -> None:
        """The parts of its reply are not all here."""
        ledger = self._ledger
        request.service.tally.lost += 1
        ledger.report(request, "lost", (), now)
        frames = request.codec.failure(request, ledger.epoch, ErrorCode.HANDLER_FAILED, _INCOMPLETE)
        ledger.answer(request, frames, outputs)

    def receive_partial(self, message: Partial | ProgressMade, now: float) -> list[Output]:
        """Handle a PARTIAL or the progress of a request: its reply will follow."""
        ledger = self._ledger
        worker = self._workers.get(message.sender)
        if worker is None:
            return self._registry.reject_unknown(message, now)
        request = worker.in_flight.get(message.address)
        if request is None:
            if self._bundles.unfold_held(worker, message.address):
                return self.receive_partial(message, now)
            return self._registry.expel(worker, "unexpected-reply", now)
        lease = worker.lease
        worker.expires_at = now + (lease.expiry_s if worker.beats_while_busy else lease.busy_s)
        outputs: list[Output] = []
        if worker.silent_since is not None:
            self._has_room(worker, now, outputs)
        if type(message) is ProgressMade:
            self._tell_progress(request, message, outputs)
            return outputs
        assert type(message) is Partial
        if request.is_abandoned:
            ledger.drop("late-reply")
            # It counts anyway: a client that returns for the rest sees the gap (BSN-B-15). One that takes
            # one reply only gets none (``_hold``).
            if request.codec.is_streaming:
                request.partials += 1
            else:
                request.held, request.held_bytes = None, request.held_bytes or 1
            return outputs
        if not request.codec.is_streaming:
            self._hold(request, message.body, now, outputs)
            return outputs
        index = request.partials
        request.partials = index + 1
        if ledger.observer is not None:
            request.sent_bytes += sum(map(len, message.body))
        frames = request.codec.partial(
            request, request.service.name, ledger.epoch, index, message.body, message.header
        )
        ledger.answer(request, frames, outputs)
        return outputs

    def _tell_progress(self, request: Accepted, message: ProgressMade, outputs: list[Output]) -> None:
        """A client learns it if its dialect can say it; of a durable request the last one is kept."""
        if request.is_abandoned:
            self._ledger.drop("late-progress")
        elif request.codec is self._ledger.mailbox:
            request.progress = message.progress
        elif request.codec is native_broker.CODEC:
            self._ledger.answer(request, [request.sender, message.header, *message.body], outputs)

    def _hold(self, request: Accepted, body: list[bytes], now: float, outputs: list[Output]) -> None:
        """Keep a PARTIAL for a client that takes one reply only; all of them leave as one (6.7-3).

        ``held`` is None and ``held_bytes`` not 0 once there were too many, or some were dropped while it was
        abandoned: the reply is not whole, also for who asks again meanwhile.
        """
        if request.held is None and request.held_bytes:
            return
        ledger = self._ledger
        held = request.held if request.held is not None else []
        held += body
        request.held = held
        request.held_bytes += sum(map(len, body)) or 1
        if request.held_bytes > ledger.settings.partials_buffer_bytes_max or len(held) > _HELD_FRAMES_MAX:
            # The worker may finish; its reply is late then. A plain client gets nothing, the store and fronts
            # an end, or they would wait for ever.
            ledger.drop("partials-overflow")
            self._lose(request, now, outputs)
            request.held = None
            request.is_abandoned = True

    # --- batches --------------------------------------------------------------------------------------------

    def receive_finals(self, message: Finals, now: float) -> list[Output]:
        """A batch of replies of a worker."""
        ledger = self._ledger
        worker = self._workers.get(message.sender)
        if worker is None:
            return self._registry.reject_unknown(message, now)
        numbers = message.numbers
        count = len(numbers)
        bundled = self._bundles.by_number.get(message.client_id)
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
            del self._bundles.by_number[message.client_id]
        tally = worker.service.tally
        worker.expires_at = now + worker.lease.expiry_s
        worker.bundled -= count
        tally.answered += count
        for part, answered in counts.items():
            part.left -= answered
            if not part.left:
                del worker.bundles[part]
                empty(part)
            tally.busy_s += answered * (now - part.dispatched_at)
            tally.observe_latency(now - part.accepted_at, answered)
        if ledger.observer is not None:
            ledger.observer.answered(parts, message, ledger.epoch, now)
        ledger.count_ended(first.sender, count)
        outputs: list[Output] = [Send([first.sender, message.header, message.table, message.blob])]
        self._has_room(worker, now, outputs)
        return outputs

    def _receive_finals_singly(self, message: Finals, now: float) -> list[Output]:
        """Handle replies to unfolded requests, or to unknown ones."""
        outputs: list[Output] = []
        epoch = int.from_bytes(message.header[28:36], "big")
        for number, body in zip(message.numbers, bodies_of(message.blob, message.lengths), strict=True):
            identity = native.identity(message.client_id, number)
            head = native.header(native.FINAL, identity=identity, epoch=epoch)
            final = Final(message.sender, Dialect.NATIVE, (), identity, [body], head)
            outputs += self.receive_final(final, now)
        return outputs
