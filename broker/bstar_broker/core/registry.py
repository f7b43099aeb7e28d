"""The workers of a broker: how each registers, shows that it lives, gets more work, and is lost.

Workers may register at any time, so a passive node knows them when it takes over.
"""

from bstar.wire import CODECS, native_broker
from bstar.wire.dialect import BrokerCodec, Dialect, Envelope
from bstar.wire.messages import (
    NEVER_MS,
    Disconnect,
    Final,
    FromWorker,
    Heartbeat,
    NodeStatus,
    Partial,
    Ready,
    Reason,
    StaleEpoch,
)
from bstar.wire.refusals import SERVICES_FULL
from bstar_broker.core.bundles import Bundles
from bstar_broker.core.descriptions import Descriptions
from bstar_broker.core.dispatch import Dispatcher
from bstar_broker.core.endings import Endings
from bstar_broker.core.keepalives import Keepalives
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.observer import LostBecause
from bstar_broker.core.outputs import Output, Send
from bstar_broker.core.records import Bundle, Group, Lease, ServiceRecord, WorkerRecord

# The registry checks all workers at steps of a fraction of the shortest interval. So thousands of deadlines
# cost one pass per step, not one pass each.
_SWEEPS_PER_HEARTBEAT = 4

# How a worker was lost, in the errors that clients get.
_HOW: dict[LostBecause, str] = {
    "drained": "left",
    "left": "left",
    "expired": "fell silent",
    "stuck": "did not answer in time",
    "unreachable": "lost its connection",
    "invalid": "broke the protocol",
    "unexpected": "broke the protocol",
}


class Outcasts:
    """Peers that got DISCONNECT. They get nothing more until they register again (MDP1-B-04, MDP2-B-04).

    A worker may miss the DISCONNECT because its connection breaks at that moment. It goes on as if it were
    registered, so it gets another one after ``quiet_s``. The table holds at most ``count_max`` peers: a new
    one replaces the oldest.
    """

    def __init__(self, *, quiet_s: float, count_max: int) -> None:
        self._quiet_s = quiet_s
        self._count_max = count_max
        self._until: dict[bytes, float] = {}

    def __contains__(self, routing_id: bytes) -> bool:
        return routing_id in self._until

    def add(self, routing_id: bytes, now: float) -> None:
        """The peer gets DISCONNECT."""
        self._until.pop(routing_id, None)
        if len(self._until) >= self._count_max:
            del self._until[next(iter(self._until))]
        self._until[routing_id] = now + self._quiet_s

    def remove(self, routing_id: bytes) -> None:
        """The peer registers."""
        self._until.pop(routing_id, None)

    def tidy(self, now: float) -> None:
        """Forget peers whose time has passed."""
        while self._until:
            routing_id, until = next(iter(self._until.items()))
            if now < until:
                break
            del self._until[routing_id]


class WorkerRegistry:
    """Keeps ``Ledger.workers``. ``sweep_at`` is when ``sweep`` has something to do."""

    def __init__(
        self, ledger: Ledger, bundles: Bundles, endings: Endings, dispatcher: Dispatcher, now: float
    ) -> None:
        settings = ledger.settings
        self._ledger = ledger
        self._workers = ledger.workers
        self._bundles = bundles
        self._endings = endings
        self._dispatch_queued = dispatcher.dispatch_queued
        self._keepalives = Keepalives(ledger)
        self._descriptions = Descriptions()
        # Those that workers name, by their keys.
        self._groups: dict[bytes, Group] = {}
        self._outcasts = Outcasts(
            quiet_s=settings.mdp_heartbeat_interval_s * settings.mdp_liveness, count_max=settings.workers_max
        )
        native_s, mdp_s = settings.worker_heartbeat_interval_s, settings.mdp_heartbeat_interval_s
        self._native_lease = Lease.of(native_s, settings.worker_liveness, settings.busy_timeout_s)
        self._mdp_lease = Lease.of(mdp_s, settings.mdp_liveness, settings.busy_timeout_s)
        self._sweep_interval_s = min(native_s, mdp_s) / _SWEEPS_PER_HEARTBEAT
        self.sweep_at = now + self._sweep_interval_s

    # --- registration ---------------------------------------------------------------------------------------

    def register(self, message: Ready, now: float) -> list[Output]:
        """READY."""
        ledger = self._ledger
        sender = message.sender
        codec = CODECS[message.dialect]
        worker = self._workers.get(sender)
        if worker is not None:
            return self.expel(worker, "second-ready", now)
        if message.service.startswith(ledger.reserved):
            return self._turn_away(sender, codec, message.envelope, Reason.RESERVED, "reserved-service", now)
        self._outcasts.remove(sender)
        if len(self._workers) >= ledger.settings.workers_max:
            return self._turn_away(sender, codec, message.envelope, Reason.FULL, "workers-full", now)
        service = ledger.services.get(message.service)
        if service is None:
            if not ledger.services.has_room_to_offer(ledger.settings.services_max):
                return self._turn_away(
                    sender, codec, message.envelope, Reason.FULL, SERVICES_FULL.reason, now
                )
            service = ledger.add_service(message.service, now)
        worker = self._record(message, codec, service, now)
        self._workers[sender] = worker
        if message.group:
            worker.group = self._groups.setdefault(message.group, Group(message.group))
            worker.group.workers.append(worker)
            worker.crowd_max = worker.group.workers[0].crowd_max
        if message.keepalive:
            self._keepalives.add(worker, message.keepalive)
        outputs: list[Output] = []
        self._name(worker, now, outputs)
        service.workers += 1
        service.count(worker, worker.weight(ledger.epoch))
        if worker.credit and not worker.crowd_max:
            service.idle[worker] = None
        if ledger.observer is not None:
            ledger.observer.registered(worker, now)
        if message.description:
            outputs += self._describe(worker, message.description)
        lease = worker.lease
        heartbeat_ms, expiry_ms = round(lease.heartbeat_s * 1000), round(lease.expiry_s * 1000)
        welcome = codec.welcome(sender, message.envelope, ledger.status(now), heartbeat_ms, expiry_ms)
        if welcome is not None:
            outputs.append(Send(welcome))
        self._dispatch_queued(service, now, outputs)
        return outputs

    def _record(self, message: Ready, codec: BrokerCodec, service: ServiceRecord, now: float) -> WorkerRecord:
        is_native = message.dialect == Dialect.NATIVE
        is_front = message.dialect == Dialect.FRONT
        lease = self._native_lease if is_native else self._mdp_lease
        if is_front:
            lease = self._front_lease(message, now)
        # Workers that come at the same moment, as all do after a failover, get their heartbeats in different
        # sweeps.
        number, self._ledger.registrations = self._ledger.registrations, self._ledger.registrations + 1
        slots = max(1, int(lease.heartbeat_s / self._sweep_interval_s))
        return WorkerRecord(
            message.sender,
            codec,
            message.envelope,
            service,
            lease,
            names_requests=is_native or is_front,
            credit=message.credit,
            takes_batches=message.takes_batches,
            takes_extended=message.takes_extended,
            beats_while_busy=is_native or message.beats_while_busy,
            given_at=now,
            sent_at=now - number % slots * self._sweep_interval_s,
            expires_at=now + lease.expiry_s,
            process=message.process,
            # Some workers behind a front come without a message of theirs.
            address="" if is_front else self._ledger.address(),
            registered_at=now,
            elsewhere=message.elsewhere,
            told_epoch=message.epoch,
        )

    def _name(self, worker: WorkerRecord, now: float, outputs: list[Output]) -> None:
        """From now on this worker has its name. What waits for the one before it waits for this one, but not
        at another service.
        """
        name, named = worker.label.encode(), self._ledger.named
        before = named.get(name)
        named[name] = worker
        if before is not None and before.service is not worker.service:
            how = "lost its name to a worker of another service"
            self._endings.end_directed(before.service, name, how, now, outputs)

    def _describe(self, worker: WorkerRecord, frame: bytes) -> list[Output]:
        """Keep what it says of its service."""
        description, of_service = self._descriptions.add(frame), worker.service.descriptions
        if description is None:
            return self._ledger.note(
                "descriptions-full",
                f"there is no room for what a worker of {worker.service.title} says of it: workers describe "
                "their services in too many ways",
            )
        worker.description = description
        of_service[description] = of_service.get(description, 0) + 1
        return []

    def _forget_description(self, worker: WorkerRecord) -> None:
        description, of_service = worker.description, worker.service.descriptions
        if description is not None:
            self._descriptions.remove(description)
            of_service[description] -= 1
            if not of_service[description]:
                del of_service[description]

    def _front_lease(self, message: Ready, now: float) -> Lease:
        busy_s, expiry_s = self._ledger.settings.busy_timeout_s, message.expiry_ms / 1000
        lease = Lease(
            message.heartbeat_ms / 1000,
            expiry_s,
            busy_s if message.expiry_ms == NEVER_MS else max(expiry_s, busy_s),
        )
        # The front's protocol may have shorter intervals than the node's own dialects.
        step_s = lease.heartbeat_s / _SWEEPS_PER_HEARTBEAT
        if step_s < self._sweep_interval_s:
            self._sweep_interval_s = step_s
            self.sweep_at = min(self.sweep_at, now + step_s)
        return lease

    def reject_unknown(self, message: FromWorker, now: float) -> list[Output]:
        """A worker's command from an unregistered peer: ask it once to register (MDP1-B-04)."""
        sender = message.sender
        if sender in self._outcasts:
            self._ledger.drop("unknown-worker")
            return []
        codec: BrokerCodec = native_broker.CODEC
        envelope: Envelope = ()
        if isinstance(message, Final | Heartbeat | Partial):
            codec, envelope = CODECS[message.dialect], message.envelope
        return self._turn_away(sender, codec, envelope, Reason.UNKNOWN, "unknown-worker", now)

    def take_over(self, routing_id: bytes, now: float) -> list[Output]:
        """The routing id belongs to another connection now. What the former owner held goes to others."""
        self._endings.orphan(routing_id)
        worker = self._workers.get(routing_id)
        return [] if worker is None else self._lose(worker, "unreachable", now)

    def turn_away(self, message: Ready | Heartbeat, now: float) -> list[Output]:
        """Its principal may not offer the service, or may not any more."""
        worker = self._workers.get(message.sender)
        if worker is not None:
            return self.send_away(worker, now)
        if message.sender in self._outcasts:
            return []
        self._outcasts.add(message.sender, now)
        codec = CODECS[message.dialect]
        frames = codec.disconnect(message.sender, message.envelope, Reason.NOT_ALLOWED, self._ledger.epoch)
        return [Send(frames)]

    def send_away(self, worker: WorkerRecord, now: float) -> list[Output]:
        """A worker that may not offer its service any more."""
        return self._expel(worker, Reason.NOT_ALLOWED, "unexpected", now)

    def _turn_away(
        self, sender: bytes, codec: BrokerCodec, envelope: Envelope, reason: Reason, slug: str, now: float
    ) -> list[Output]:
        self._ledger.drop(slug)
        self._outcasts.add(sender, now)
        return [Send(codec.disconnect(sender, envelope, reason, self._ledger.epoch))]

    # --- signs of life --------------------------------------------------------------------------------------

    def heartbeat(self, message: Heartbeat, now: float) -> list[Output]:
        """HEARTBEAT."""
        worker = self._workers.get(message.sender)
        if worker is None:
            return self.reject_unknown(message, now)
        lease = worker.lease
        if not worker.beats_while_busy and worker.in_flight:
            if now - worker.given_at < lease.heartbeat_s:
                return []  # sent before it had the request
            worker.beats_while_busy = True
        worker.expires_at = now + lease.expiry_s
        outputs: list[Output] = []
        is_following = worker.is_ahead and message.epoch <= self._ledger.epoch
        if is_following:
            worker.is_ahead = False
        if worker.elsewhere is not None:
            worker.elsewhere, worker.told_epoch = message.elsewhere, message.epoch
        if is_following or worker.silent_since is not None:
            self.has_room(worker, now, outputs)
        elif (service := worker.service).throttle is not None:
            service.count(worker, worker.weight(self._ledger.epoch))
            self._dispatch_queued(service, now, outputs)
        return outputs

    def ask_workers(self, now: float) -> list[Output]:
        """This node serves in a new epoch: ask what the workers of limited services execute (BSN-W-24)."""
        ledger = self._ledger
        outputs: list[Output] = []
        status = ledger.status(now)
        for worker in self._workers.values():
            if worker.service.throttle is None:
                continue
            worker.service.count(worker, worker.weight(ledger.epoch))
            if worker.elsewhere is not None and worker.told_epoch < ledger.epoch:
                worker.sent_at = now
                beat = worker.codec.heartbeat(worker.routing_id, worker.envelope, status.state, status.epoch)
                outputs.append(Send(beat))
        return outputs

    def set_credit(self, routing_id: bytes, credit: int, now: float) -> list[Output]:
        """This worker takes so many requests at once from now on; with 0 it gets none."""
        outputs: list[Output] = []
        worker = self._workers.get(routing_id)
        if worker is None:
            return outputs
        if worker.drain_why:
            worker.credit_afterwards = credit
            return outputs
        worker.credit = credit
        if worker.held < credit:
            self.has_room(worker, now, outputs)
        else:
            worker.service.idle.pop(worker, None)
        return outputs

    def has_room(self, worker: WorkerRecord, now: float, outputs: list[Output]) -> None:
        """A worker ended a request or answers again: dispatch the next one to it, or mark it idle."""
        service = worker.service
        if worker.silent_since is not None:
            self._keepalives.heard(worker, now, outputs)
        if worker.crowd_max and not worker.crowd:
            self._release(worker, now, outputs)
        if worker.gone_at is not None and not worker.held:
            outputs += self._lose(worker, "unreachable", now)
            return
        if (
            len(worker.in_flight) + worker.bundled < worker.credit
            and worker.gone_at is None
            and not worker.is_ahead
            and not worker.crowd_max
        ):
            service.idle[worker] = None
        if service.throttle is not None:
            service.count(worker, worker.weight(self._ledger.epoch))
        if service.queue.length or service.directed:
            self._dispatch_queued(service, now, outputs, worker)

    def _release(self, worker: WorkerRecord, now: float, outputs: list[Output]) -> None:
        """The suspects of its group have ended: it gets requests as before."""
        fellows = list(worker.fellows)
        for fellow in fellows:
            fellow.crowd_max = 0
        for fellow in fellows:
            if fellow is not worker and fellow.silent_since is None:
                self.has_room(fellow, now, outputs)

    def refuse_epoch(self, message: StaleEpoch, now: float) -> list[Output]:
        """STALE_EPOCH: the worker knows of a later activation and refuses a request.

        The node has handled the epoch before this; here the request counts. If the node cannot believe the
        epoch, the worker stays registered: it follows the node soon, and its heartbeat says so (BSN-W-14).
        """
        ledger = self._ledger
        worker = self._workers.get(message.sender)
        if worker is None:
            return self.reject_unknown(message, now)
        ledger.drop("stale-epoch")
        outputs: list[Output] = []
        if ledger.is_serving and message.epoch > ledger.epoch:
            # If the node had believed this epoch, its own would be higher now.
            worker.is_ahead = True
            worker.service.idle.pop(worker, None)
            outputs += ledger.note(
                "epoch-ahead",
                f"a worker of {worker.service.title} remembers epoch {message.epoch}, too far above "
                f"this node's {ledger.epoch}: it gets no requests until it follows this node",
            )
        worker.expires_at = now + worker.lease.expiry_s
        self._bundles.unfold_held(worker, message.address)
        request = worker.in_flight.pop(message.address, None)
        if request is not None:
            request.deliveries -= 1
            request.service.tally.busy_s += now - request.dispatched_at
            self._endings.redeliver(request, "knows a later activation", now, outputs)
            self.has_room(worker, now, outputs)
        return outputs

    # --- ends -----------------------------------------------------------------------------------------------

    def disconnect(self, message: Disconnect, now: float) -> list[Output]:
        """DISCONNECT: the worker leaves."""
        worker = self._workers.get(message.sender)
        if worker is None:
            return []
        reason: LostBecause = "left" if worker.held else "drained"
        return self._lose(worker, reason, now, is_unbegun=message.is_unbegun)

    def expel(self, worker: WorkerRecord, slug: str, now: float) -> list[Output]:
        """A valid command at a moment that does not allow it ends the registration (MDP1-B-04, MDP2-B-04)."""
        self._ledger.drop(slug)
        return self._expel(worker, Reason.UNEXPECTED, "unexpected", now)

    def expel_invalid(self, worker: WorkerRecord, now: float) -> list[Output]:
        """A command that cannot be read ends the registration (MDP1-B-05)."""
        return self._expel(worker, Reason.INVALID, "invalid", now)

    def _expel(self, worker: WorkerRecord, reason: Reason, because: LostBecause, now: float) -> list[Output]:
        self._outcasts.add(worker.routing_id, now)
        frames = worker.codec.disconnect(worker.routing_id, worker.envelope, reason, self._ledger.epoch)
        return [Send(frames), *self._lose(worker, because, now)]

    def unreachable(self, routing_id: bytes, is_gone: bool, now: float) -> list[Output]:
        """A Send found no connection (``is_gone``) or a full one.

        A worker is lost by that. A client did not wait for its reply.
        """
        ledger = self._ledger
        worker = self._workers.get(routing_id)
        if worker is None:
            silent = self._keepalives.unreachable(routing_id)
            if silent is not None:
                ledger.drop("worker-expired")
                return self._lose(silent, "expired", now)
            ledger.drop("undeliverable")
            if is_gone:
                self._endings.release_client(routing_id, now)
            return []
        ledger.drop("worker-unreachable")
        if not worker.held:
            return self._lose(worker, "unreachable", now)
        # A leaving worker sends its last reply and closes. The reply may be unread here. So the worker keeps
        # its requests for a sweep's interval, and for longer while messages are unread (``unread``). It gets
        # no more.
        worker.service.idle.pop(worker, None)
        if worker.gone_at is None:
            worker.gone_at = now
        return []

    def unread(self, is_any: bool, now: float) -> bool:
        """``is_any``: the socket has messages that nobody has read. True if some may be of a worker whose
        connection is gone: it keeps its requests for another while.
        """
        gone = [worker for worker in self._workers.values() if worker.gone_at is not None]
        if is_any:
            for worker in gone:
                worker.gone_at = now
        return bool(gone)

    def undelivered(self, routing_id: bytes, item: bytes | Bundle, now: float) -> list[Output]:
        """A Dispatch of ``item`` found no connection, or a full one: it never reached its worker, which is
        gone. What else the worker holds may have reached it.
        """
        worker = self._workers.get(routing_id)
        if worker is None:
            return []
        outputs: list[Output] = []
        names = [item] if isinstance(item, bytes) else item.identities
        if isinstance(item, Bundle) and item in worker.bundles:
            self._bundles.unfold_given(worker, item)
        for name in reversed(names):
            outputs += self.take_back(worker, name, now)
        outputs += self.unreachable(routing_id, True, now)
        service = worker.service
        if routing_id in self._workers:
            service.count(worker, worker.weight(self._ledger.epoch))
        self._dispatch_queued(service, now, outputs)
        return outputs

    def take_back(self, worker: WorkerRecord, name: bytes, now: float) -> list[Output]:
        """A lost worker never got this request of ``in_flight``: it waits for another one."""
        outputs: list[Output] = []
        request = worker.in_flight.pop(name, None)
        if request is not None:
            request.deliveries -= 1
            self._endings.redeliver(request, _HOW["unreachable"], now, outputs)
        return outputs

    def _lose(
        self, worker: WorkerRecord, reason: LostBecause, now: float, *, is_unbegun: bool = False
    ) -> list[Output]:
        """Forget a worker and give its requests to others. ``is_unbegun``: it has begun none of them."""
        ledger = self._ledger
        self._bundles.unfold_worker(worker)
        if (group := worker.group) is None:
            crowd = worker.held
        else:
            if now != group.lost_at:
                group.lost_at, group.lost = now, worker.crowd
            crowd = group.lost
            group.workers.remove(worker)
            if not group.workers:
                del self._groups[group.key]
        if ledger.observer is not None:
            ledger.observer.lost(worker, reason, now)
        del self._workers[worker.routing_id]
        name = worker.label.encode()
        if ledger.named.get(name) is worker:
            del ledger.named[name]
        self._keepalives.remove(worker)
        self._forget_description(worker)
        service = worker.service
        service.workers -= 1
        service.tally.workers_lost += worker.held > 0
        service.stuck -= worker.silent_since is not None
        service.drained -= worker.drain_why != ""
        service.used_at = now
        service.idle.pop(worker, None)
        outputs: list[Output] = []
        for request in reversed(worker.in_flight.values()):
            service.tally.busy_s += now - request.dispatched_at
            request.deliveries -= is_unbegun
            self._endings.redeliver(request, _HOW[reason], now, outputs, 0 if is_unbegun else crowd)
        worker.in_flight.clear()
        if worker.crowd_max and group is not None and group.workers and not group.workers[0].crowd:
            # The suspects of its group were with it alone.
            self.has_room(group.workers[0], now, outputs)
        service.count(worker, 0)
        if name not in ledger.named:
            self._endings.end_directed(service, name, _HOW[reason], now, outputs)
        self._dispatch_queued(service, now, outputs)
        return outputs

    # --- time -----------------------------------------------------------------------------------------------

    def stalled(self, gap_s: float) -> None:
        """The process was away. Messages of workers are unread, so the workers were not silent."""
        for worker in self._workers.values():
            worker.expires_at += gap_s
            if worker.gone_at is not None:
                worker.gone_at += gap_s
        self._keepalives.stalled(gap_s)

    def sweep(self, now: float, outputs: list[Output]) -> None:
        """Check every worker: a live one must not hide a silent one (MDP1-R-04)."""
        ledger = self._ledger
        self.sweep_at = now + self._sweep_interval_s
        horizon = now + self._sweep_interval_s / 2
        expired: list[WorkerRecord] = []
        status: NodeStatus | None = None  # most sweeps send nothing
        for worker in self._workers.values():
            is_silent = now >= worker.expires_at
            if worker.gone_at is not None and now >= worker.gone_at + self._sweep_interval_s:
                is_lost = True
            elif is_silent and worker.keepalive and worker.held:
                is_lost = not self._keepalives.probe(worker, now, outputs)
            else:
                is_lost = is_silent
            if is_lost:
                expired.append(worker)
                continue
            if worker.held and worker.codec is native_broker.CODEC:
                outputs += self._endings.outlive(worker, now)
            if not is_silent and horizon >= worker.sent_at + worker.lease.heartbeat_s:
                worker.sent_at = now
                status = status or ledger.status(now)
                outputs.append(
                    Send(
                        worker.codec.heartbeat(worker.routing_id, worker.envelope, status.state, status.epoch)
                    )
                )
        for worker in expired:
            # None of them gets what another one had.
            worker.service.idle.pop(worker, None)
        if ledger.is_serving:
            # A suspect has waited long enough for a worker of its own.
            for service in ledger.services.values():
                if service.idle and service.queued:
                    self._dispatch_queued(service, now, outputs)
        for worker in expired:
            ledger.drop("worker-expired")
            reason: LostBecause = "unreachable" if worker.gone_at is not None else "expired"
            outputs += self._lose(worker, "stuck" if worker.silent_since is not None else reason, now)

    def tidy(self, now: float) -> None:
        """Forget outcasts whose time has passed."""
        self._outcasts.tidy(now)
