"""What a node writes into its journal: the same outputs and moments that metrics and logs are made of.

The core tells what became of requests and workers (``Observer``), the pair its outputs, the reactor its
stalls; each becomes a record of ``bstar.records``. Once per ``interval_s`` the counters are read, and what
they moved by since the last time is recorded per service. Nothing here decides anything or waits for
anything; a journal that cannot be written does not concern the broker.
"""

import copy
import hashlib
import struct
from binascii import hexlify
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, get_args

import msgspec

from bstar import records, star
from bstar.journal import Journal, JournalOptions
from bstar.records import Load, Pulse, Refused, Stalled, Stopping, WorkerLost, WorkerRegistered
from bstar.settings import Settings, flatten
from bstar.wire import native
from bstar.wire.messages import Finals
from bstar_broker.core import Node
from bstar_broker.core.observer import LostBecause, Outcome
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord, WorkerRecord
from bstar_broker.core.snapshot import JournalState

__all__ = ["NodeJournal", "config_digest", "open_journal", "options_of"]

# The counters of a service that a record of its load has, under the same names.
_COUNTERS = (
    "accepted", "answered", "failed", "refused", "expired", "poisoned", "lost", "returned", "redelivered",
    "duplicates",
)  # fmt: skip
# Whoever reads a number has a signed one of 64 bits; an identity's second part could be larger.
_NUMBER_MAX = (1 << 63) - 1
_identity = struct.Struct(">16sQ").unpack
# Names of services that are kept as JSON.
_NAMES_MAX = 10_000
_US = 1e6


def config_digest(settings: Settings) -> str:
    """16 hex digits that differ when any key does."""
    return hashlib.sha256(msgspec.json.encode(flatten(settings), order="sorted")).hexdigest()[:16]


def options_of(settings: Settings) -> JournalOptions | None:
    """The section ``journal`` as the writer takes it; None if there is to be no journal."""
    section = settings.journal
    if section.directory is None:
        return None
    return JournalOptions(
        section.directory,
        sample=section.sample,
        rotate_bytes=section.rotate_bytes,
        rotate_s=section.rotate_s,
        gzip=section.gzip,
        flush_interval_s=section.flush_interval_s,
        buffer_records=section.buffer_records,
        keep_bytes=section.keep_bytes,
        keep_days=section.keep_days,
    )


class _Held:
    """What the workers of one service hold at a moment."""

    __slots__ = ("credit", "held_s", "in_flight")

    def __init__(self) -> None:
        self.credit = 0
        self.in_flight = 0
        self.held_s = 0.0


class _Told:
    """What was last recorded of a service."""

    __slots__ = ("busy_s", "counters", "gauges", "refusals")

    def __init__(self) -> None:
        self.counters = (0,) * len(_COUNTERS)
        self.gauges = (0, 0, 0, 0)
        self.busy_s = 0.0
        self.refusals: dict[str, int] = {}


def open_journal(
    options: JournalOptions, settings: Settings, *, node_id: bytes, epoch: int, **seams: Any
) -> Journal:
    """Begin the journal of this run of a node; ConfigurationError if its directory cannot be used.

    ``epoch`` is the highest that it knows. ``seams`` are the writer's, for tests.
    """
    return Journal(
        options,
        pair=settings.pair,
        node=settings.role,
        source="broker",
        boot=node_id.hex(),
        started={
            "config": config_digest(settings),
            "endpoints": settings.endpoints.clients,
            "epoch": epoch,
            "heartbeat_us": round(settings.timing.heartbeat_interval_s * _US),
            "failover_timeout_us": round(settings.timing.failover_timeout_s * _US),
        },
        **seams,
    )


class NodeJournal:
    """What one node writes into its journal; an ``Observer`` of its broker.

    ``node_id`` names this run of the node, ``clock`` is the reactor's. ``attach`` it to the node before
    anything runs.
    """

    def __init__(self, journal: Journal, *, node_id: bytes, clock: Callable[[], float]) -> None:
        self.journal = journal
        self._node_id = node_id
        self._clock = clock
        self._offer = self.journal.offer
        self._is_sampled = self.journal.is_sampled
        self._is_everything = journal.options.sample == 1
        self._lines = {outcome: self._template(outcome) for outcome in get_args(Outcome)}
        self._quoted: dict[bytes, bytes] = {}
        self._node: Node | None = None
        self._told: dict[ServiceRecord, _Told] = {}
        self._told_drops: dict[str, int] = {}
        # Refusals of services that were forgotten for good since the last time.
        self._told_early: dict[str, int] = {}
        self._told_at = clock()
        self._take_lag_s: Callable[[], float] = float
        self._kinds: dict[type, Callable[[Any, float], None]] = {
            star.StateChanged: self._on_state,
            star.Activated: self._on_active,
            star.Deactivated: self._on_inactive,
            star.PeerSeen: self._on_peer_seen,
            star.PeerLost: self._on_peer_lost,
            star.PeerAsked: self._on_text(records.PeerAsked, "reason"),
            star.PeerRejected: self._on_peer_rejected,
            star.HandoverRefused: self._on_text(records.HandoverRefused, "text"),
            star.Claimed: self._on_text(records.Claimed, "reason"),
            star.ClientsCutOff: self._on_clients_cut_off,
            star.ArbiterSeen: lambda output, now: self.journal.write(records.ArbiterSeen, now),
            star.ArbiterLost: self._on_arbiter_lost,
            star.Fatal: self._on_fatal,
        }

    def attach(self, node: Node, take_lag_s: Callable[[], float]) -> None:
        """Record this node from now on. ``take_lag_s`` tells the loop's worst lag since it was last asked."""
        self._node = node
        self._take_lag_s = take_lag_s
        self._pulse(self._clock())

    # --- an observer of the broker ------------------------------------------------------------------------

    def ended(
        self, request: Accepted, outcome: Outcome, epoch: int, reply: Sequence[bytes], now: float
    ) -> None:
        """An accepted request has ended at this node."""
        if self._is_everything or self._is_sampled(request.identity):
            if outcome == "returned":
                # A worker may still have it, and it changes then.
                request = copy.copy(request)
            size = len(reply[0]) if len(reply) == 1 else sum(map(len, reply))
            self._offer(now, self._line, request, outcome, epoch, size, now)

    def answered(self, bundles: Sequence[Bundle], replies: Finals, epoch: int, now: float) -> None:
        """Requests that came and were answered in batches."""
        numbers, sizes = replies.numbers, replies.lengths
        if not self._is_everything:
            sampled = [
                row
                for row in zip(bundles, numbers, sizes, strict=True)
                if self._is_sampled(native.identity(replies.client_id, row[1]))
            ]
            if not sampled:
                return
            bundles, numbers, sizes = zip(*sampled, strict=True)
        self.journal.offer_all(len(numbers), now, self._answered_lines, bundles, numbers, sizes, epoch, now)

    def _answered_lines(
        self,
        stamp: dict[str, Any],
        bundles: Sequence[Bundle],
        numbers: Sequence[int],
        sizes: Sequence[int],
        epoch: int,
        now: float,
    ) -> tuple[bytes, int]:
        """Their lines, joined; most of each is the same for all that came and went together."""
        texts: list[bytes] = []
        seq, count = stamp["seq"], len(numbers)
        begin = 0
        while begin < count:
            bundle = bundles[begin]
            end = begin + 1
            if bundles.count(bundle) == count:
                end = count
            while end < count and bundles[end] is bundle:
                end += 1
            of_run = numbers[begin:end]
            lengths = bundle.lengths
            if of_run != bundle.numbers:
                lengths = tuple(map(dict(zip(bundle.numbers, lengths, strict=True)).__getitem__, of_run))
            row = self._row(stamp, bundle, epoch, now)
            fields = zip(range(seq + begin, seq + end), of_run, lengths, sizes[begin:end], strict=True)
            texts.append(b"\n".join([row] * (end - begin)) % tuple(chain.from_iterable(fields)))
            begin = end
        return b"\n".join(texts), count

    def _row(self, stamp: dict[str, Any], bundle: Bundle, epoch: int, now: float) -> bytes:
        """The line of a request of this bundle: sequence number, number and sizes are still to come."""
        total_us = int((now - bundle.accepted_at) * _US)
        queued_us = int((bundle.dispatched_at - bundle.accepted_at) * _US)
        service = bundle.service
        quoted = (self._quoted.get(service.name) or self._quote(service)).replace(b"%", b"%%")
        # What stays a % until the end is doubled, an escaped one is so already.
        line = self._lines["answered"].replace(b"%%", b"%%%%")
        for field in (b'"seq":', b'"number":', b'"bytes_in":', b'"bytes_out":'):
            line = line.replace(field + b"%d", field + b"%%d", 1)
        if bundle.is_repeated:
            line = line[:-1] + b',"is_repeated":true}'
        return line % (
            stamp["at"],
            stamp["mono"],
            hexlify(bundle.client_id),
            quoted,
            hexlify(bundle.sender),
            epoch,
            total_us,
            queued_us,
            total_us - queued_us,
            hexlify(bundle.worker),
        )

    def _line(
        self,
        stamp: dict[str, Any],
        request: Accepted,
        outcome: Outcome,
        epoch: int,
        bytes_out: int,
        now: float,
    ) -> bytes | records.Request:
        """The record of a request; of an ordinary one its line, which takes a third of the time."""
        if request.deliveries != 1 or request.is_repeated or request.partials:
            return self._request(stamp, request, outcome, epoch, bytes_out, now)
        client, number = _identity(request.identity)
        if client == self._node_id:
            return self._request(stamp, request, outcome, epoch, bytes_out, now)
        accepted_at = request.accepted_at
        total_us = int((now - accepted_at) * _US)
        queued_us = int((request.dispatched_at - accepted_at) * _US)
        service = request.service
        return self._lines[outcome] % (
            stamp["seq"],
            stamp["at"],
            stamp["mono"],
            hexlify(client),
            number & _NUMBER_MAX,
            self._quoted.get(service.name) or self._quote(service),
            hexlify(request.sender),
            epoch,
            total_us,
            queued_us,
            total_us - queued_us,
            hexlify(request.worker),
            request.size,
            bytes_out,
        )

    def _request(
        self,
        stamp: dict[str, Any],
        request: Accepted,
        outcome: Outcome,
        epoch: int,
        bytes_out: int,
        now: float,
    ) -> records.Request:
        client, number = _identity(request.identity)
        deliveries = request.deliveries
        total_us = int((now - request.accepted_at) * _US)
        queued_us = int((request.dispatched_at - request.accepted_at) * _US) if deliveries else total_us
        return records.Request(
            **stamp,
            client=client.hex() if client != self._node_id else f"mdp-{request.sender.hex()}",
            number=number & _NUMBER_MAX,
            service=request.service.label,
            sender=request.sender.hex(),
            outcome=outcome,
            epoch=epoch,
            total_us=total_us,
            queued_us=queued_us,
            busy_us=total_us - queued_us,
            worker=request.worker.hex() if deliveries else "",
            deliveries=deliveries,
            is_repeated=request.is_repeated,
            partials=request.partials,
            bytes_in=request.size,
            bytes_out=bytes_out + request.sent_bytes,
            weight=self.journal.weight,
        )

    def _template(self, outcome: Outcome) -> bytes:
        """The line of a request that ended so, for the ``%`` operator."""
        who = msgspec.json.encode(self.journal.who)[1:-1].replace(b"%", b"%%")
        weight = b"" if self.journal.weight == 1 else b',"weight":%r' % self.journal.weight
        return (
            b'{"kind":"request",%b,"seq":%%d,"at":%%d,"mono":%%d,"client":"%%b","number":%%d,"service":%%b,'
            b'"sender":"%%b","outcome":"%b","epoch":%%d,"total_us":%%d,"queued_us":%%d,"busy_us":%%d,'
            b'"worker":"%%b","bytes_in":%%d,"bytes_out":%%d%b}' % (who, outcome.encode(), weight)
        )

    def _quote(self, service: ServiceRecord) -> bytes:
        """A service's name as JSON, kept because few names make many records."""
        if len(self._quoted) >= _NAMES_MAX:
            self._quoted.clear()
        quoted = self._quoted[service.name] = msgspec.json.encode(service.label)
        return quoted

    def registered(self, worker: WorkerRecord, now: float) -> None:
        """A worker is on the list."""
        self.journal.write(
            WorkerRegistered,
            now,
            worker=worker.routing_id.hex(),
            service=worker.service.label,
            dialect=worker.codec.label,
            credit=worker.credit,
        )

    def lost(self, worker: WorkerRecord, reason: LostBecause, now: float) -> None:
        """It is off the list."""
        self.journal.write(
            WorkerLost,
            now,
            worker=worker.routing_id.hex(),
            service=worker.service.label,
            reason=reason,
            held=worker.held,
        )

    def forgotten(self, service: ServiceRecord, now: float) -> None:
        """Its last counts must not be lost with it."""
        self._load(service, _Held(), now)
        for reason, count in self._refusals(service, now).items():
            self._told_early[reason] = self._told_early.get(reason, 0) + count
        self._told.pop(service, None)

    # --- an observer of the pair ----------------------------------------------------------------------------

    def observe(self, output: object) -> None:
        """An output of the Binary Star; others are none of a journal's business."""
        record = self._kinds.get(type(output))
        if record is not None:
            record(output, self._clock())

    def stalled(self, gap_s: float, now: float) -> None:
        """The process was away."""
        self.journal.write(Stalled, now, gap_us=round(gap_s * _US))

    def _on_state(self, output: star.StateChanged, now: float) -> None:
        assert self._node is not None
        machine = self._node.machine
        self.journal.write(
            records.StateChanged,
            now,
            old=output.old.name,
            new=output.new.name,
            event=output.event.name,
            text=output.reason,
            epoch=machine.epoch,
            votes=machine.votes,
            peer="" if machine.peer_state is None else machine.peer_state.name,
        )

    def _on_active(self, output: star.Activated, now: float) -> None:
        self.journal.write(records.Activated, now, epoch=output.epoch, text=output.reason)

    def _on_inactive(self, output: star.Deactivated, now: float) -> None:
        assert self._node is not None
        self.journal.write(records.Deactivated, now, epoch=self._node.machine.epoch, text=output.reason)

    def _on_peer_seen(self, output: star.PeerSeen, now: float) -> None:
        self.journal.write(records.PeerSeen, now, peer=output.state.name, peer_boot=output.node or "")

    def _on_peer_lost(self, output: star.PeerLost, now: float) -> None:
        reason = "left" if output.has_left else "gone" if output.is_gone else "silent"
        self.journal.write(records.PeerLost, now, reason=reason, silent_us=round(output.silent_s * _US))

    def _on_peer_rejected(self, output: star.PeerRejected, now: float) -> None:
        self.journal.write(records.PeerRejected, now, reason=output.reason, text=output.text)

    def _on_arbiter_lost(self, output: star.ArbiterLost, now: float) -> None:
        self.journal.write(records.ArbiterLost, now, silent_us=round(output.silent_s * _US))

    def _on_clients_cut_off(self, output: star.ClientsCutOff, now: float) -> None:
        self.journal.write(
            records.ClientsCutOff,
            now,
            clients=output.clients,
            unserved=output.unserved,
            for_us=round(output.for_s * _US),
            text=output.verdict,
        )

    def _on_fatal(self, output: star.Fatal, now: float) -> None:
        self.journal.write(records.Fatal, now, exit_code=output.error.exit_code, text=str(output.error))

    def _on_text(self, kind: type[records.Base], field: str) -> Callable[[Any, float], None]:
        return lambda output, now: self.journal.write(kind, now, text=getattr(output, field))

    # --- once per interval ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Record what the counters moved by since the last time."""
        assert self._node is not None
        ledger = self._node.broker.ledger
        held: dict[ServiceRecord, _Held] = {}
        for worker in ledger.workers.values():
            of_service = held.get(worker.service)
            if of_service is None:
                of_service = held[worker.service] = _Held()
            of_service.credit += worker.credit
            of_service.in_flight += worker.held
            for bundle in worker.bundles:
                of_service.held_s += bundle.left * (now - bundle.dispatched_at)
            for request in worker.in_flight.values():
                of_service.held_s += now - request.dispatched_at
        attributed, self._told_early = self._told_early, {}
        for service in (*ledger.services.values(), *ledger.services.past.values()):
            self._load(service, held.get(service) or _Held(), now)
            for reason, count in self._refusals(service, now).items():
                attributed[reason] = attributed.get(reason, 0) + count
        for reason, count in ledger.drops.items():
            unattributed = count - self._told_drops.get(reason, 0) - attributed.get(reason, 0)
            if unattributed > 0:
                self.journal.write(Refused, now, reason=reason, count=unattributed)
            self._told_drops[reason] = count
        self._told_at = now
        self._pulse(now)

    def _load(self, service: ServiceRecord, held: _Held, now: float) -> None:
        told = self._told.get(service)
        if told is None:
            told = self._told[service] = _Told()
        counters = tuple(getattr(service, name) for name in _COUNTERS)
        gauges = (service.workers, held.credit, service.queue.length, held.in_flight)
        busy_s = service.busy_s + held.held_s
        # A service at rest needs no record, but one that says that it came to rest.
        if counters == told.counters and gauges == told.gauges and not gauges[2] and not gauges[3]:
            told.busy_s = busy_s
            return
        moved = {
            name: count - before
            for name, count, before in zip(_COUNTERS, counters, told.counters, strict=True)
            if count != before
        }
        self.journal.write(
            Load,
            now,
            service=service.label,
            interval_us=round((now - self._told_at) * _US),
            workers=gauges[0],
            credit=gauges[1],
            queued=gauges[2],
            in_flight=gauges[3],
            busy_us=max(0, round((busy_s - told.busy_s) * _US)),
            **moved,
        )
        told.counters, told.gauges, told.busy_s = counters, gauges, busy_s

    def _refusals(self, service: ServiceRecord, now: float) -> dict[str, int]:
        """Record the refusals of this service since the last time; by reason, how many."""
        if not service.refusals:
            return {}
        told = self._told[service].refusals
        moved = {reason: count - told.get(reason, 0) for reason, count in service.refusals.items()}
        for reason, count in moved.items():
            if count:
                self.journal.write(Refused, now, reason=reason, count=count, service=service.label)
        told.update(service.refusals)
        return moved

    def _pulse(self, now: float) -> None:
        assert self._node is not None
        machine, ledger = self._node.machine, self._node.broker.ledger
        self.journal.write(
            Pulse,
            now,
            state=machine.state.name,
            epoch=machine.epoch,
            workers=len(ledger.workers),
            queued=ledger.waiting.count,
            in_flight=sum(worker.held for worker in ledger.workers.values()),
            lag_us=round(self._take_lag_s() * _US),
        )

    # --- its end --------------------------------------------------------------------------------------------

    def stopping(self, now: float) -> None:
        """Somebody asks the node to end."""
        self.journal.write(Stopping, now)

    def close(self, reason: str | None) -> None:
        """Record the last interval, and end. None: not in good order. Idempotent, in bounded time."""
        if self._node is not None and reason is not None:
            self.tick(self._clock())
            self._node = None
        self.journal.close(reason)

    def state(self) -> JournalState:
        """For status and metrics."""
        counters = self.journal.counters
        return JournalState(
            directory=self.journal.options.directory,
            records=counters.records,
            octets=counters.octets,
            segments=counters.segments,
            dropped=counters.dropped,
            dropped_requests=counters.dropped_requests,
            errors=counters.errors,
        )
