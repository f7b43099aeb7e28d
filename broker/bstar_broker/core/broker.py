"""The Majordomo broker, sans-I/O: services, their queues, their workers, and the way of each request.

A request is accepted into its service's queue, given to the worker that has been idle longest, and ends with
one final reply. It ends otherwise only in ways that are counted: its time in the queue ran out, every worker
it was given to was lost (``deliveries_max``), its worker was lost and it must not be executed twice or its
PARTIALs had gone out, or this node gave up its role. A client of the native dialect is told each time; plain
MDP has no words for it, so its clients hear nothing and their timeout applies.

Whether this node may serve is not decided here: ``Node`` asks the Binary Star and calls ``activate`` and
``deactivate``. Workers may register at any time, so that a passive node knows them when it takes over.

Sources: 7/MDP, 18/MDP, 8/MMI, the native dialect's specification in docs/protocol/native.md.
"""

from collections.abc import Callable, Sequence

from bstar.errors import RemoteProtocolError
from bstar.wire import CODECS, mmi, native
from bstar.wire.dialect import BrokerCodec, Dialect, Envelope
from bstar.wire.messages import (
    Disconnect,
    ErrorCode,
    Failure,
    Final,
    Finals,
    FromPeer,
    Heartbeat,
    NodeStatus,
    Partial,
    Ping,
    Ready,
    Reason,
    Request,
    Requests,
    StaleEpoch,
)
from bstar_broker.core import words
from bstar_broker.core.bundles import Bundles
from bstar_broker.core.keepalives import Keepalives
from bstar_broker.core.observer import LostBecause, Observer, Outcome
from bstar_broker.core.outcasts import Outcasts
from bstar_broker.core.outputs import Dispatch, Notice, Output, Send
from bstar_broker.core.records import ASKERS_MAX, Accepted, Bundle, ServiceRecord, WorkerRecord, is_same_body
from bstar_broker.core.services import ServiceTable
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.waiting import Waiting

__all__ = ["REQUEST_BYTES", "Broker"]

# Services that nobody uses any more are looked for this often.
_TIDY_INTERVAL_S = 1.0
# Heartbeats are looked after in steps of a fraction of the shortest interval, so that thousands of workers
# with different deadlines cost one pass per step and not one each.
_SWEEPS_PER_HEARTBEAT = 4
# RemoteProtocolError's reasons for messages that are readable but larger than allowed.
_BROKEN_BOUNDS = frozenset(("size", "frames"))
# Frames of PARTIALs held for one reply: each costs an object, even one without an octet.
_HELD_FRAMES_MAX = 100_000
# What a request costs beside its body: its record, its places in tables and in a queue (700 octets measured),
# and its client's if it is the only one (500 more).
REQUEST_BYTES = 1_200
# A full queue needs about this long to have room again; the hint of BUSY.
_BUSY_RETRY_MS = 50
# Memory takes longer to become free.
_MEMORY_RETRY_MS = 1_000

# How a worker was lost, in the texts that clients get.
_HOW: dict[LostBecause, str] = {
    "drained": "left",
    "left": "left",
    "expired": "fell silent",
    "stuck": "did not answer in time",
    "unreachable": "lost its connection",
    "invalid": "broke the protocol",
    "unexpected": "broke the protocol",
}


class Broker:
    """``receive`` messages, carry out what comes back, call ``handle_timer`` at ``next_deadline``.

    ``node_id`` (16 octets) names this run of the node; it identifies requests of clients that have no request
    numbers. ``describe(now)`` tells the node's status, which the native dialect passes on. ``observer`` is
    told what becomes of requests and workers.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        node_id: bytes,
        describe: Callable[[float], NodeStatus],
        now: float,
        observer: Observer | None = None,
    ) -> None:
        assert len(node_id) == 16
        self.settings = settings
        self._node_id = node_id
        self.status = describe
        self.observer = observer
        self._identities = 0
        self._registrations = -1
        self.is_serving = False
        self.is_draining = False
        # It has stopped serving, and nobody is known to serve in its place.
        self.is_suspended = False
        self.epoch = 0
        self.table = ServiceTable(settings.service_ttl_s, now)
        self.services = self.table.known
        self.workers: dict[bytes, WorkerRecord] = {}
        self.keepalives = Keepalives(self)
        self._outcasts = Outcasts(
            quiet_s=settings.mdp_heartbeat_interval_s * settings.mdp_liveness, count_max=settings.workers_max
        )
        # Requests with an identity of their own, to recognise a repetition.
        self.by_identity: dict[bytes, Accepted] = {}
        # Those that came in batches and are still together; the tables of single ones do not have them.
        self.bundles = Bundles(self)
        # How many requests each client has here; a client without any has no entry.
        self.requests_of: dict[bytes, int] = {}
        self.waiting = Waiting(settings)
        # Octets that requests may still take, told by the shell now and then; accepted ones are subtracted.
        self.memory_left = 1 << 62
        self.drops: dict[str, int] = {}
        shortest_s = min(settings.worker_heartbeat_interval_s, settings.mdp_heartbeat_interval_s)
        self._sweep_interval_s = shortest_s / _SWEEPS_PER_HEARTBEAT
        self._sweep_at = now + self._sweep_interval_s
        self._tidy_at = now + _TIDY_INTERVAL_S
        self._handlers: dict[type, Callable[..., list[Output]]] = {
            Request: self._on_request,
            Requests: self.bundles.receive,
            Final: self._on_final,
            Finals: self.bundles.receive_finals,
            Partial: self._on_partial,
            Failure: self._on_failure,
            Ready: self._on_ready,
            Heartbeat: self._on_heartbeat,
            Disconnect: self._on_disconnect,
            StaleEpoch: self._on_stale_epoch,
            Ping: self._on_ping,
        }

    # --- the face towards the shell -------------------------------------------------------------------------

    def receive(self, message: FromPeer, now: float) -> list[Output]:
        """A message of a client (admitted by the Binary Star) or a worker."""
        return self._handlers[type(message)](message, now)

    def receive_invalid(self, frames: list[bytes], error: RemoteProtocolError, now: float) -> list[Output]:
        """A message that no codec could read: drop it, and tell its sender as far as that is possible.

        A registered worker whose command could not be read is invalid (MDP1-B-05); so is one whose message
        breaks a bound, because the request it answers would wait for ever.
        """
        outputs = self._note(f"invalid-{error.reason}", error.text)
        worker = self.workers.get(frames[0])
        if worker is not None and (error.from_worker or error.reason in _BROKEN_BOUNDS):
            outputs.append(self._disconnect(worker, Reason.INVALID, now))
            outputs += self._lose(worker, "invalid", now)
        elif (identity := native.request_identity(frames)) is not None:
            text = error.text.encode()
            failure = native.CODEC.failure(frames[0], (), identity, self.epoch, ErrorCode.INVALID, text)
            outputs.append(Send(failure))
        return outputs

    def refuse_unread(self, frames: list[bytes]) -> list[Output]:
        """A message for which there was no memory; ``frames`` are those that could be read."""
        outputs = self._note("memory-full", "there was no memory to read or to handle a message")
        identity = native.request_identity(frames)
        if identity is not None:
            text = b"the node has no memory for this request"
            busy = native.CODEC.busy(frames[0], (), identity, self.epoch, _MEMORY_RETRY_MS, text)
            outputs.append(Send(busy))
        return outputs

    def refuse(self, request: Request, now: float) -> list[Output]:
        """A request that this node may not serve: say so if the client's dialect can."""
        self.drop("not-active")
        frames = CODECS[request.dialect].not_active(
            request.sender, request.envelope, request.identity, self.status(now), False
        )
        return [Send(frames)] if frames is not None else []

    def activate(self, epoch: int) -> None:
        """This node serves from now on, under ``epoch``; again, if it served under a lower one."""
        self.epoch = epoch
        self.is_serving = True

    def deactivate(self, now: float) -> list[Output]:
        """This node no longer serves: a native client is told so of every request that is here.

        A plain client cannot be told. What a worker has of it is answered when the worker does; what waits
        waits on, until this node serves again (``resume``) or the other one does (``release``).
        """
        if not self.is_serving:
            return []
        self.is_serving = False
        self.is_suspended = True
        outputs: list[Output] = []
        self.bundles.unfold_workers()
        self._return_queued(lambda request: request.codec is native.CODEC, outputs, now)
        status = self.status(now)
        for worker in self.workers.values():
            for request in worker.in_flight.values():
                if not request.is_abandoned and request.codec is native.CODEC:
                    self._give_back(request, status, True, outputs, now)
                    request.is_abandoned = True
        return outputs

    def resume(self, now: float) -> list[Output]:
        """This node serves again, and nobody has meanwhile: give out what plain clients still wait for."""
        self.is_suspended = False
        outputs: list[Output] = []
        for service in self.services.values():
            if service.queue.length:
                self._dispatch_queued(service, now, outputs)
        return outputs

    def release(self, now: float) -> list[Output]:
        """The other node serves: plain clients find it by their timeout, and nothing of them waits here."""
        self.is_suspended = False
        outputs: list[Output] = []
        self._return_queued(lambda request: True, outputs, now)
        return outputs

    def _return_queued(
        self, is_returned: Callable[[Accepted], bool], outputs: list[Output], now: float
    ) -> None:
        status = self.status(now)
        for service in self.services.values():
            for item in service.queue.clear():
                requests = self.bundles.unfold_waiting(item) if type(item) is Bundle else [item]
                for request in requests:
                    assert type(request) is Accepted
                    if not is_returned(request):
                        service.queue.push(request.lane, request, is_urgent=request.is_urgent)
                        continue
                    request.is_queued = False
                    self.waiting.leave(request.lane, 1, request.size)
                    self._give_back(request, status, request.deliveries > 0, outputs, now)
                    self._forget(request)

    def drain(self) -> None:
        """Give no more requests to workers, for good; what comes waits for ``deactivate`` to return it."""
        self.is_draining = True

    @property
    def is_awaited(self) -> bool:
        """Does any worker hold a request for which this node answers?"""
        return any(worker.bundled for worker in self.workers.values()) or any(
            not request.is_abandoned
            for worker in self.workers.values()
            if worker.in_flight
            for request in worker.in_flight.values()
        )

    def unreachable(self, routing_id: bytes, now: float, *, is_gone: bool = True) -> list[Output]:
        """A Send found no connection: a worker is gone, or a client did not wait for its reply.

        Or, not ``is_gone``, there is no room for more in the connection, which for a worker is the same.
        """
        worker = self.workers.get(routing_id)
        if worker is None:
            silent = self.keepalives.unreachable(routing_id)
            if silent is not None:
                self.drop("worker-expired")
                return self._lose(silent, "expired", now)
            self.drop("undeliverable")
            if is_gone:
                self._release(routing_id, now)
            return []
        self.drop("worker-unreachable")
        if not worker.held:
            return self._lose(worker, "unreachable", now)
        # A worker that leaves sends its last reply and closes; the reply may still wait to be read here. So
        # what it holds is given to others a sweep later, and until then it gets nothing more.
        worker.service.idle.pop(worker, None)
        if worker.gone_at is None:
            worker.gone_at = now
        return []

    def undelivered(self, routing_id: bytes, now: float) -> list[Output]:
        """A Dispatch found no connection: its worker is gone, and the request never reached it."""
        worker = self.workers.get(routing_id)
        if worker is None:
            return []
        outputs: list[Output] = []
        count = 1
        if worker.last_bundle in worker.bundles:
            assert worker.last_bundle is not None
            count = worker.last_bundle.left
            self.bundles.unfold_given(worker, worker.last_bundle)
            worker.last_bundle = None
        for _ in range(min(count, len(worker.in_flight))):
            _, request = worker.in_flight.popitem()
            request.deliveries -= 1
            self._redeliver(request, _HOW["unreachable"], now, outputs)
        outputs += self.unreachable(routing_id, now)
        if self.is_serving:
            self._dispatch_queued(worker.service, now, outputs)
        return outputs

    def stalled(self, gap_s: float) -> None:
        """The process was away for so long: what workers said meanwhile is still to be read, so that time is
        no silence of theirs.
        """
        for worker in self.workers.values():
            worker.expires_at += gap_s
            if worker.gone_at is not None:
                worker.gone_at += gap_s
        self.keepalives.stalled(gap_s)

    def next_deadline(self) -> float:
        """When ``handle_timer`` has something to do."""
        deadline = self._tidy_at
        if self.workers and self._sweep_at < deadline:
            deadline = self._sweep_at
        return min(deadline, self.waiting.deadlines.next_deadline())

    def handle_timer(self, now: float) -> list[Output]:
        """Heartbeats, expired workers, expired requests, forgotten services."""
        outputs: list[Output] = []
        for item in self.waiting.deadlines.pop_due(now):
            if type(item) is Bundle:
                expired = self.bundles.expire_queued(item, now)
            else:
                assert type(item) is Accepted
                item.is_queued = False
                item.service.queue.remove(item.lane, item, is_urgent=item.is_urgent)
                expired = [item]
            for request in expired:
                self.waiting.leave(request.lane, 1, request.size)
                outputs += self._expire(request, now)
        if now >= self._sweep_at:
            self._sweep_at = now + self._sweep_interval_s
            self._sweep(now, outputs)
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_INTERVAL_S
            self._tidy(now)
            status = self.status(now)
            outputs += [
                Send(native.CODEC.pong(client, native.NO_IDENTITY, status))
                for client in self.waiting.clients_to_ask(now)
            ]
        return outputs

    def drop(self, reason: str) -> None:
        """Count a message that leads to nothing. Reasons are slugs of our own, never taken from the wire."""
        self.drops[reason] = self.drops.get(reason, 0) + 1

    def _note(self, reason: str, text: str) -> list[Output]:
        """Count a drop, and say so the first time: a peer that hears nothing has no other sign of it."""
        self.drop(reason)
        if self.drops[reason] > 1:
            return []
        return [Notice(f"dropped, {reason}: {text}; the next ones of this kind are only counted")]

    # --- clients --------------------------------------------------------------------------------------------

    def _on_request(self, message: Request, now: float) -> list[Output]:
        name = message.service
        codec = CODECS[message.dialect]
        if name.startswith(mmi.PREFIX):
            raise AssertionError("management requests are answered by the node")
        service = self.services.get(name)
        if service is None:
            if len(self.services) >= self.settings.services_max:
                return self._refuse_busy(message, codec, None, "services-full", "too many services")
            service = self.table.add(name, now)
        identity = message.identity
        sender = message.sender
        if identity:
            known = self.by_identity.get(identity)
            if known is None and self.bundles.unfold_identity(identity):
                known = self.by_identity[identity]
            if known is not None:
                return self._take_again(known, message, now)
        if message.is_once and message.is_repeated:
            return self._refuse_second(message, codec)
        settings = self.settings
        held = self.requests_of.get(sender, 0)
        if held >= settings.requests_per_client_max:
            return self._refuse_busy(
                message, codec, service, "client-full", "too many requests of this client"
            )
        queue = service.queue
        size = sum(map(len, message.body))
        if size + REQUEST_BYTES > self.memory_left:
            return self._refuse_busy(message, codec, service, "memory-full", "the node's memory is used up")
        ttl_s = message.ttl_ms / 1000
        waits_s = settings.request_ttl_s
        request = Accepted(
            sender,
            message.envelope,
            codec,
            sender,
            service,
            message.body,
            size,
            identity,
            message.extensions,
            now,
            now + (ttl_s if 0 < ttl_s < waits_s else waits_s),
            now + ttl_s if ttl_s else 0.0,
            is_repeated=message.is_repeated,
            is_urgent=message.is_urgent,
            is_once=message.is_once,
            is_whole=message.is_whole,
        )
        if service.idle and not queue.length and not self.is_draining:
            outputs: list[Output] = [self.dispatch(service.idle.popitem(last=False)[0], request, now)]
        elif self.waiting.is_long(queue.length + 1, held + 1):
            return self._refuse_busy(message, codec, service, "queue-full", "the service's queue is full")
        elif self.waiting.is_heavy(sender, size):
            return self._refuse_busy(message, codec, service, "bytes-full", "the queues hold too many octets")
        else:
            queue.push(sender, request, is_urgent=message.is_urgent)
            request.is_queued = True
            self.waiting.enter(request, 1, size, now)
            outputs = []
        service.accepted += 1
        self.memory_left -= size + REQUEST_BYTES
        self.requests_of[sender] = held + 1
        if identity:
            self.by_identity[identity] = request
        return outputs

    def _take_again(self, request: Accepted, message: Request, now: float) -> list[Output]:
        """The same identity as one that is queued or being worked on: answer it, do not execute it again.

        Only one client has an identity of its own, so it asks from a new address. One that was derived from a
        key may be asked for by others: all of them get the answer (BSN-B-16).
        """
        service = request.service
        sender = message.sender
        if (
            message.service != service.name
            or not is_same_body(message.body, request.body)
            or message.is_once != request.is_once
        ):
            text = "its identity belongs to a request with another body, or another rule about repetition"
            frames = request.codec.failure(
                sender, message.envelope, message.identity, self.epoch, ErrorCode.INVALID, text.encode()
            )
            return [*self._note("other-body", text), *([Send(frames)] if frames is not None else [])]
        if request.is_abandoned or not native.is_keyed(request.identity):
            request.sender = sender
            request.envelope = message.envelope
            request.is_abandoned = False
        else:
            askers = request.askers if request.askers is not None else []
            if sender != request.sender and sender not in askers:
                if len(askers) >= ASKERS_MAX:
                    return self._refuse_busy(
                        message, request.codec, service, "askers-full", "too many wait for this key"
                    )
                if request.partials:
                    return self._refuse_busy(
                        message, request.codec, service, "askers-late", "the answer to this key has begun"
                    )
                askers.append(sender)
                request.askers = askers
            self._extend(request, message, now)
        request.is_whole = request.is_whole and message.is_whole
        service.duplicates += 1
        return []

    def _refuse_second(self, message: Request, codec: BrokerCodec) -> list[Output]:
        """It may have been executed, must not be again, and is not here: nobody knows (BSN-B-22)."""
        text = "an earlier attempt may have been executed, and it must not be executed twice"
        frames = codec.failure(
            message.sender,
            message.envelope,
            message.identity,
            self.epoch,
            ErrorCode.WORKER_LOST,
            text.encode(),
        )
        return [*self._note("once-repeated", text), *([Send(frames)] if frames is not None else [])]

    def _extend(self, request: Accepted, message: Request, now: float) -> None:
        """Whoever asks with a key may wait for longer than those before: it lives as long as the last."""
        ttl_s = message.ttl_ms / 1000
        waits_s = self.settings.request_ttl_s
        request.deadline = max(request.deadline, now + ttl_s) if request.deadline and ttl_s else 0.0
        expires_at = now + (ttl_s if 0 < ttl_s < waits_s else waits_s)
        if expires_at > request.expires_at:
            request.expires_at = expires_at
            if request.is_queued:
                self.waiting.add_deadline(request)

    def _refuse_busy(
        self, message: Request, codec: BrokerCodec, service: ServiceRecord | None, reason: str, text: str
    ) -> list[Output]:
        outputs = self._note(reason, text)
        if service is not None:
            service.refused += 1
            service.refusals[reason] = service.refusals.get(reason, 0) + 1
        frames = codec.busy(
            message.sender, message.envelope, message.identity, self.epoch, _BUSY_RETRY_MS, text.encode()
        )
        if frames is not None:
            outputs.append(Send(frames))
        return outputs

    def _on_ping(self, message: Ping, now: float) -> list[Output]:
        return [Send(native.CODEC.pong(message.sender, message.identity, self.status(now)))]

    def _give_back(
        self, request: Accepted, status: NodeStatus, was_dispatched: bool, outputs: list[Output], now: float
    ) -> None:
        request.service.returned += 1
        if self.observer is not None:
            self._report(request, "returned", (), now)
        frames = request.codec.not_active(
            request.sender, request.envelope, request.identity, status, was_dispatched
        )
        if frames is not None:
            self._tell(request, frames, outputs)
        request.askers = None

    def _fail(
        self, request: Accepted, outcome: Outcome, code: ErrorCode, text: str, now: float
    ) -> list[Output]:
        """End a request without a reply of a worker; the client is told if its dialect can say it."""
        if self.observer is not None:
            self._report(request, outcome, (), now)
        self._forget(request)
        frames = request.codec.failure(
            request.sender, request.envelope, request.identity, self.epoch, code, text.encode()
        )
        outputs: list[Output] = []
        if frames is not None:
            self._tell(request, frames, outputs)
        return outputs

    @staticmethod
    def _tell(request: Accepted, frames: list[bytes], outputs: list[Output]) -> None:
        """Send to everybody who waits for this request."""
        outputs.append(Send(frames))
        if request.askers is not None:
            outputs += [Send([asker, *frames[1:]]) for asker in request.askers]

    def _report(self, request: Accepted, outcome: Outcome, reply: Sequence[bytes], now: float) -> None:
        """Let the observer know how a request ended."""
        assert self.observer is not None
        if not request.identity:
            self._identify(request)
        self.observer.ended(request, outcome, self.epoch, reply, now)

    def _forget(self, request: Accepted) -> None:
        """A request has ended: remove every trace but the counters."""
        lane = request.lane
        held = self.requests_of.get(lane, 0)
        if held > 1:
            self.requests_of[lane] = held - 1
        else:
            self.requests_of.pop(lane, None)
        if request.identity:
            self.by_identity.pop(request.identity, None)
        # Its entry among the deadlines may outlive it by the whole time to live.
        request.body = []
        request.held = None

    # --- giving work to workers -----------------------------------------------------------------------------

    def dispatch(self, worker: WorkerRecord, request: Accepted, now: float) -> Dispatch:
        """Hand the request over; the caller has taken the worker out of the idle list."""
        deliveries = request.deliveries + 1
        request.deliveries = deliveries
        request.dispatched_at = now
        request.worker = worker.routing_id
        if worker.is_native:
            identity = request.identity or self._identify(request)
            worker.in_flight[identity] = request
            ttl_ms = max(1, int((request.deadline - now) * 1000)) if request.deadline else 0
        else:
            identity = b""
            worker.in_flight[request.sender] = request
            ttl_ms = 0
            if not worker.beats_while_busy:
                worker.given_at = now
                worker.expires_at = now + worker.busy_s
        worker.sent_at = now
        worker.last_bundle = None
        if len(worker.in_flight) + worker.bundled < worker.credit:
            request.service.idle[worker] = None
        return Dispatch(
            worker.codec.request(
                worker.routing_id,
                worker.envelope,
                request.sender,
                identity,
                request.body,
                ttl_ms,
                self.epoch,
                deliveries > 1 or request.is_repeated,
                request.extensions,
            )
        )

    def _identify(self, request: Accepted) -> bytes:
        """Name a request whose client has no numbers; its codec ignores the name."""
        self._identities += 1
        request.identity = native.identity(self._node_id, self._identities)
        return request.identity

    def note_ended(self, client: bytes, count: int) -> None:
        """So many requests of this client have ended."""
        held = self.requests_of.get(client, 0)
        if held > count:
            self.requests_of[client] = held - count
        else:
            self.requests_of.pop(client, None)

    def _dispatch_queued(self, service: ServiceRecord, now: float, outputs: list[Output]) -> None:
        if self.is_draining:
            return
        queue, idle = service.queue, service.idle
        while idle and queue.length:
            request = queue.head()
            if type(request) is Bundle:
                self.bundles.give_next(request, outputs, now)
                continue
            assert type(request) is Accepted
            queue.pop()
            request.is_queued = False
            self.waiting.leave(request.lane, 1, request.size)
            if now < request.expires_at or now < request.deadline:
                outputs.append(self.dispatch(idle.popitem(last=False)[0], request, now))
            else:
                outputs += self._expire(request, now)

    def _expire(self, request: Accepted, now: float) -> list[Output]:
        """Its time in the queue is over: its own, or else what any request may wait (BSN-B-20)."""
        if now < request.deadline and not request.deliveries:
            return self._send_back(request, "waited-out", now)
        request.service.expired += 1
        if request.deliveries:
            why = words.still_waits(request.service)
            text = f"its time ended in the queue after its worker was lost: {why}"
            return self._fail(request, "expired", ErrorCode.WORKER_LOST, text, now)
        text = words.still_waits(request.service)
        return self._fail(request, "expired", ErrorCode.EXPIRED, text, now)

    def _send_back(self, request: Accepted, reason: str, now: float) -> list[Output]:
        """A request that no worker had leaves the queue; its client, if it is there, may send it again."""
        self.drop(reason)
        request.service.returned += 1
        if self.observer is not None:
            self._report(request, "returned", (), now)
        self._forget(request)
        text = f"waited for {self.settings.request_ttl_s:g} s, as long as a request may; it was not executed"
        frames = request.codec.busy(
            request.sender, request.envelope, request.identity, self.epoch, _BUSY_RETRY_MS, text.encode()
        )
        outputs: list[Output] = []
        if frames is not None:
            self._tell(request, frames, outputs)
        return outputs

    def _release(self, client: bytes, now: float) -> None:
        """A native client's connection is gone: what waits of it gives up its place (BSN-B-21).

        What it sent again from another address, what others wait for, and what a worker had stays.
        """
        if not self.settings.client_check_interval_s or not self.waiting.is_native(client):
            return
        for service in self.services.values():
            for item in service.queue.of(client):
                if type(item) is Bundle:
                    self.bundles.unfold_queued(item)
            for request in service.queue.of(client):
                assert type(request) is Accepted
                if request.sender != client or request.askers or request.deliveries:
                    continue
                service.queue.remove(client, request, is_urgent=request.is_urgent)
                request.is_queued = False
                self.waiting.leave(client, 1, request.size)
                self._send_back(request, "client-gone", now)

    def _redeliver(self, request: Accepted, how: str, now: float, outputs: list[Output]) -> None:
        """Its worker was lost: give the request to another, if that is right. ``how`` it was lost goes into
        the text for its client.
        """
        service = request.service
        if request.is_abandoned:
            self._forget(request)
        elif not (self.is_serving or self.is_suspended):
            # Of a plain client, which asks the node that serves.
            self._give_back(request, self.status(now), True, outputs, now)
            self._forget(request)
        elif request.is_once and request.deliveries:
            service.lost += 1
            text = "its worker was lost, and it must not be executed twice"
            outputs += words.given_up(request, service.lost, text)
            outputs += self._fail(request, "lost", ErrorCode.WORKER_LOST, text, now)
        elif request.partials and not request.is_whole:
            # PARTIALs cannot be recalled, so a second run would be mixed with the first (MDP2-R-02).
            service.lost += 1
            text = f"the worker {how} after sending PARTIALs"
            outputs += words.given_up(request, service.lost, text)
            outputs += self._fail(request, "lost", ErrorCode.WORKER_LOST, text, now)
        elif request.deliveries >= self.settings.deliveries_max:
            service.poisoned += 1
            self.drop("poison")
            text = f"all of them were lost, the last one {how} (poison)"
            outputs += words.given_up(request, service.poisoned, text)
            text = f"{request.deliveries} workers were lost with this request; the last one {how}"
            outputs += self._fail(request, "poison", ErrorCode.POISON, text, now)
        elif request.deadline and now >= request.deadline and request.deliveries:
            service.lost += 1
            text = f"the worker {how} and the request's time is over"
            outputs += words.given_up(request, service.lost, text)
            outputs += self._fail(request, "lost", ErrorCode.WORKER_LOST, text, now)
        else:
            request.partials = 0
            request.held = None
            request.held_bytes = 0
            # What was given to a worker is not sent back to its client as new before its own time is over.
            may_wait_until = now + self.settings.request_ttl_s
            if request.deadline and (request.deliveries or request.deadline < may_wait_until):
                may_wait_until = request.deadline
            request.expires_at = may_wait_until
            service.redelivered += 1
            service.queue.push_front(request.lane, request, is_urgent=request.is_urgent)
            request.is_queued = True
            self.waiting.enter(request, 1, request.size, now)

    # --- workers --------------------------------------------------------------------------------------------

    def _on_ready(self, message: Ready, now: float) -> list[Output]:
        sender = message.sender
        codec = CODECS[message.dialect]
        worker = self.workers.get(sender)
        if worker is not None:
            return self._unexpected(worker, "second-ready", now)
        if message.service.startswith(mmi.PREFIX):
            return self._turn_away(sender, codec, message.envelope, Reason.RESERVED, "reserved-service", now)
        self._outcasts.remove(sender)
        if len(self.workers) >= self.settings.workers_max:
            return self._turn_away(sender, codec, message.envelope, Reason.FULL, "workers-full", now)
        service = self.services.get(message.service)
        if service is None:
            if not self._has_room_to_offer():
                return self._turn_away(sender, codec, message.envelope, Reason.FULL, "services-full", now)
            service = self.table.add(message.service, now)
        settings = self.settings
        is_native = message.dialect == Dialect.NATIVE
        heartbeat_s = settings.worker_heartbeat_interval_s if is_native else settings.mdp_heartbeat_interval_s
        expiry_s = heartbeat_s * (settings.worker_liveness if is_native else settings.mdp_liveness)
        worker = WorkerRecord(
            sender,
            codec,
            message.envelope,
            service,
            is_native=is_native,
            credit=message.credit,
            heartbeat_s=heartbeat_s,
            expiry_s=expiry_s,
            busy_s=max(expiry_s, settings.busy_timeout_s),
            now=now,
            takes_batches=message.takes_batches,
        )
        # Workers that come at the same moment, as all do after a failover, are not to be due at the same one
        # for ever: each has its first heartbeat in another sweep.
        self._registrations += 1
        slots = max(1, int(heartbeat_s / self._sweep_interval_s))
        worker.sent_at = now - self._registrations % slots * self._sweep_interval_s
        self.workers[sender] = worker
        if message.keepalive:
            self.keepalives.add(worker, message.keepalive)
        service.workers += 1
        service.idle[worker] = None
        if self.observer is not None:
            self.observer.registered(worker, now)
        outputs: list[Output] = []
        welcome = codec.welcome(
            sender, message.envelope, self.status(now), round(heartbeat_s * 1000), round(expiry_s * 1000)
        )
        if welcome is not None:
            outputs.append(Send(welcome))
        if self.is_serving:
            self._dispatch_queued(service, now, outputs)
        return outputs

    def _on_final(self, message: Final, now: float) -> list[Output]:
        worker = self.workers.get(message.sender)
        if worker is None:
            return self.unknown_worker(message.sender, message.dialect, message.envelope, now)
        request = worker.in_flight.pop(message.address, None)
        if request is None:
            if self._unfold_for(worker, message.address):
                return self._on_final(message, now)
            return self._unexpected(worker, "unexpected-reply", now)
        worker.expires_at = now + worker.expiry_s
        service = request.service
        service.busy_s += now - request.dispatched_at
        outputs: list[Output] = []
        if request.is_abandoned:
            self.drop("late-reply")
            if self.observer is not None:
                self._report(request, "late", (), now)
        else:
            service.answered += 1
            service.observe_latency(now - request.accepted_at)
            body = message.body
            if request.held is not None:
                body = [*request.held, *body]
            if self.observer is not None:
                self._report(request, "answered", body, now)
            frames = request.codec.final(
                request.sender,
                request.envelope,
                service.name,
                request.identity,
                self.epoch,
                request.partials,
                body,
                message.header,
            )
            self._tell(request, frames, outputs)
        self._forget(request)
        self.has_room(worker, now, outputs)
        return outputs

    def _on_failure(self, message: Failure, now: float) -> list[Output]:
        worker = self.workers.get(message.sender)
        if worker is None:
            return self.unknown_worker(message.sender, Dialect.NATIVE, (), now)
        request = worker.in_flight.pop(message.address, None)
        if request is None:
            if self._unfold_for(worker, message.address):
                return self._on_failure(message, now)
            return self._unexpected(worker, "unexpected-reply", now)
        worker.expires_at = now + worker.expiry_s
        service = request.service
        service.busy_s += now - request.dispatched_at
        outputs: list[Output] = []
        if request.is_abandoned:
            self.drop("late-reply")
            if self.observer is not None:
                self._report(request, "late", (), now)
        else:
            service.failed += 1
            service.observe_latency(now - request.accepted_at)
            if self.observer is not None:
                self._report(request, "failed", (message.text,), now)
            frames = request.codec.failure(
                request.sender, request.envelope, request.identity, self.epoch, message.code, message.text
            )
            if frames is not None:
                self._tell(request, frames, outputs)
        self._forget(request)
        self.has_room(worker, now, outputs)
        return outputs

    def _unfold_for(self, worker: WorkerRecord, identity: bytes) -> bool:
        """Does this worker hold the request in a bundle? Then it is a single one from now on."""
        return (
            bool(worker.bundled) and self.bundles.unfold_identity(identity) and identity in worker.in_flight
        )

    def has_room(self, worker: WorkerRecord, now: float, outputs: list[Output]) -> None:
        """A worker ended a request: give it the next, or let it wait its turn."""
        service = worker.service
        if worker.silent_since is not None:
            self.keepalives.heard(worker, now, outputs)
        if worker.gone_at is not None:
            if not worker.held:
                outputs += self._lose(worker, "unreachable", now)
        elif len(worker.in_flight) + worker.bundled < worker.credit and not worker.is_ahead:
            service.idle[worker] = None
        if service.queue.length and self.is_serving:
            self._dispatch_queued(service, now, outputs)

    def _on_partial(self, message: Partial, now: float) -> list[Output]:
        worker = self.workers.get(message.sender)
        if worker is None:
            return self.unknown_worker(message.sender, message.dialect, message.envelope, now)
        request = worker.in_flight.get(message.address)
        if request is None:
            if self._unfold_for(worker, message.address):
                return self._on_partial(message, now)
            return self._unexpected(worker, "unexpected-reply", now)
        worker.expires_at = now + (worker.expiry_s if worker.beats_while_busy else worker.busy_s)
        outputs: list[Output] = []
        if worker.silent_since is not None:
            self.has_room(worker, now, outputs)
        if request.is_abandoned:
            self.drop("late-reply")
            # Counted all the same, so that a client who comes back for the rest sees the gap (BSN-B-15).
            request.partials += request.codec.is_streaming
            return outputs
        if not request.codec.is_streaming:
            return outputs + self._hold_partial(request, message.body, now)
        index = request.partials
        request.partials = index + 1
        if self.observer is not None:
            request.sent_bytes += sum(map(len, message.body))
        frames = request.codec.partial(
            request.sender,
            request.envelope,
            request.service.name,
            request.identity,
            self.epoch,
            index,
            message.body,
            message.header,
        )
        self._tell(request, frames, outputs)
        return outputs

    def _hold_partial(self, request: Accepted, body: list[bytes], now: float) -> list[Output]:
        """Keep a PARTIAL for a client that can take one reply only; all go out as one (6.7-3)."""
        held = request.held if request.held is not None else []
        held += body
        request.held = held
        request.held_bytes += sum(map(len, body))
        if request.held_bytes > self.settings.partials_buffer_bytes_max or len(held) > _HELD_FRAMES_MAX:
            # The client hears nothing and the worker may finish; its reply is then late.
            self.drop("partials-overflow")
            request.service.lost += 1
            if self.observer is not None:
                self._report(request, "lost", (), now)
            request.held = None
            request.is_abandoned = True
        return []

    def _on_heartbeat(self, message: Heartbeat, now: float) -> list[Output]:
        worker = self.workers.get(message.sender)
        if worker is None:
            return self.unknown_worker(message.sender, message.dialect, message.envelope, now)
        if not worker.beats_while_busy and worker.in_flight:
            if now - worker.given_at < worker.heartbeat_s:
                return []  # sent before it had the request
            worker.beats_while_busy = True
        worker.expires_at = now + worker.expiry_s
        outputs: list[Output] = []
        is_following = worker.is_ahead and message.epoch <= self.epoch
        if is_following:
            worker.is_ahead = False
        if is_following or worker.silent_since is not None:
            self.has_room(worker, now, outputs)
        return outputs

    def _on_disconnect(self, message: Disconnect, now: float) -> list[Output]:
        worker = self.workers.get(message.sender)
        if worker is None:
            return []
        reason: LostBecause = "left" if worker.held else "drained"
        return self._lose(worker, reason, now, is_unbegun=message.is_unbegun)

    def _on_stale_epoch(self, message: StaleEpoch, now: float) -> list[Output]:
        """The worker knows of a later activation. The node has heard of that first; here only its request
        counts. A worker whose word the node cannot believe keeps its registration: it follows the node soon,
        and its heartbeat says so (BSN-W-14).
        """
        worker = self.workers.get(message.sender)
        if worker is None:
            return self.unknown_worker(message.sender, Dialect.NATIVE, (), now)
        self.drop("stale-epoch")
        outputs: list[Output] = []
        if self.is_serving and message.epoch > self.epoch:
            # A believable one would have been exceeded by now.
            worker.is_ahead = True
            worker.service.idle.pop(worker, None)
            outputs += self._note(
                "epoch-ahead",
                f"a worker of {words.name(worker.service)} remembers epoch {message.epoch}, too far above "
                f"this node's {self.epoch}: it gets no requests until it follows this node",
            )
        worker.expires_at = now + worker.expiry_s
        self._unfold_for(worker, message.address)
        request = worker.in_flight.pop(message.address, None)
        if request is not None:
            request.deliveries -= 1
            request.service.busy_s += now - request.dispatched_at
            self._redeliver(request, "knows a later activation", now, outputs)
            self.has_room(worker, now, outputs)
        return outputs

    def unknown_worker(self, sender: bytes, dialect: int, envelope: Envelope, now: float) -> list[Output]:
        """A worker's command from somebody who did not register here: ask it to, once (MDP1-B-04)."""
        if sender in self._outcasts:
            self.drop("unknown-worker")
            return []
        return self._turn_away(sender, CODECS[dialect], envelope, Reason.UNKNOWN, "unknown-worker", now)

    def _turn_away(
        self, sender: bytes, codec: BrokerCodec, envelope: Envelope, reason: Reason, slug: str, now: float
    ) -> list[Output]:
        self.drop(slug)
        self._outcasts.add(sender, now)
        return [Send(codec.disconnect(sender, envelope, reason, self.epoch))]

    def _disconnect(self, worker: WorkerRecord, reason: Reason, now: float) -> Send:
        self._outcasts.add(worker.routing_id, now)
        return Send(worker.codec.disconnect(worker.routing_id, worker.envelope, reason, self.epoch))

    def _unexpected(self, worker: WorkerRecord, slug: str, now: float) -> list[Output]:
        """A valid command at a moment that does not allow it ends the registration (MDP1-B-04, MDP2-B-04)."""
        self.drop(slug)
        return [self._disconnect(worker, Reason.UNEXPECTED, now), *self._lose(worker, "unexpected", now)]

    def _lose(
        self, worker: WorkerRecord, reason: LostBecause, now: float, *, is_unbegun: bool = False
    ) -> list[Output]:
        """Forget a worker, in whatever way it went, and give its requests to others. ``is_unbegun``: it said
        that it has begun none of them.
        """
        self.bundles.unfold_worker(worker)
        if self.observer is not None:
            self.observer.lost(worker, reason, now)
        del self.workers[worker.routing_id]
        self.keepalives.remove(worker)
        service = worker.service
        service.workers -= 1
        service.workers_lost += worker.held > 0
        service.stuck -= worker.silent_since is not None
        service.used_at = now
        service.idle.pop(worker, None)
        outputs: list[Output] = []
        for request in reversed(worker.in_flight.values()):
            service.busy_s += now - request.dispatched_at
            request.deliveries -= is_unbegun
            self._redeliver(request, _HOW[reason], now, outputs)
        worker.in_flight.clear()
        if self.is_serving:
            self._dispatch_queued(service, now, outputs)
        return outputs

    # --- time -----------------------------------------------------------------------------------------------

    def _sweep(self, now: float, outputs: list[Output]) -> None:
        """Look at every worker: in any other order a live one could hide a silent one (MDP1-R-04)."""
        horizon = now + self._sweep_interval_s / 2
        expired: list[WorkerRecord] = []
        status = self.status(now)
        for worker in self.workers.values():
            if worker.gone_at is not None and now >= worker.gone_at + self._sweep_interval_s:
                expired.append(worker)
            elif now >= worker.expires_at:
                if not (worker.keepalive and worker.held and self.keepalives.probe(worker, now, outputs)):
                    expired.append(worker)
            elif horizon >= worker.sent_at + worker.heartbeat_s:
                worker.sent_at = now
                outputs.append(
                    Send(
                        worker.codec.heartbeat(worker.routing_id, worker.envelope, status.state, status.epoch)
                    )
                )
        for worker in expired:
            self.drop("worker-expired")
            reason: LostBecause = "unreachable" if worker.gone_at is not None else "expired"
            outputs += self._lose(worker, "stuck" if worker.silent_since is not None else reason, now)

    def _tidy(self, now: float) -> None:
        self._outcasts.tidy(now)
        for service in self.table.tidy(now):
            if self.observer is not None:
                self.observer.forgotten(service, now)

    def _has_room_to_offer(self) -> bool:
        """May a worker bring a new service? Names that only clients have mentioned do not count here."""
        services = self.services.values()
        limit = self.settings.services_max
        return len(services) < limit or sum(service.workers > 0 for service in services) < limit
