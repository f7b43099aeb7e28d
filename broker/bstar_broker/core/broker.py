"""The Majordomo broker, sans-I/O. ``Broker`` routes each input to the part that handles it.

    admission   takes requests on, or refuses them (``refusals``)
    dispatch    gives them to the least recently used worker with credit
    replies     passes the answers on to the clients
    registry    knows the workers: leases, heartbeats, losses
    endings     ends requests that get no reply, or redelivers them
    service_orders  pauses, resumes and purges a service for an operator
    work_orders     drains a worker, finds and cancels a request for an operator

All parts share the ``Ledger``. Each accepted request ends once, with a final reply or with an error that is
counted. A native client gets the error. Plain MDP has no errors, so its clients rely on timeouts.

The broker does not decide whether this node may serve: ``Node`` asks the Binary Star and calls ``activate``
and ``deactivate``.

Sources: 7/MDP, 18/MDP, 8/MMI, the native dialect's specification in docs/protocol/native.md.
"""

from collections.abc import Callable

from bstar.errors import RemoteProtocolError
from bstar.wire import CODECS, messages, native, native_broker, refusals
from bstar.wire.refusals import Refusal
from bstar_broker.core.admission import Admission
from bstar_broker.core.bundles import Bundles
from bstar_broker.core.dispatch import Dispatcher
from bstar_broker.core.endings import Endings
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.observer import Observer
from bstar_broker.core.outputs import HangUp, Output, Send
from bstar_broker.core.quotas import Denial
from bstar_broker.core.records import WorkerRecord
from bstar_broker.core.registry import WorkerRegistry
from bstar_broker.core.replies import Replies
from bstar_broker.core.service_orders import ServiceOrders
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.work_orders import WorkOrders

# How often the broker looks for unused services.
_TIDY_INTERVAL_S = 1.0
# RemoteProtocolError's reasons for readable messages that break a bound.
_BROKEN_BOUNDS = frozenset(("size", "frames"))


class Broker:
    """``receive`` messages, carry out what comes back, call ``handle_timer`` at ``next_deadline``.

    ``node_id`` (16 bytes) names this run of the node; it identifies requests of clients that have no request
    numbers. ``describe(now)`` returns the node's status for the native dialect. ``observer`` gets the
    outcomes of requests and the changes of workers.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        node_id: bytes,
        describe: Callable[[float], messages.NodeStatus],
        now: float,
        observer: Observer | None = None,
    ) -> None:
        ledger = Ledger(settings, node_id=node_id, status=describe, observer=observer, now=now)
        self.ledger = ledger
        self.bundles = bundles = Bundles(ledger)
        self._endings = endings = Endings(ledger, bundles)
        self._dispatcher = dispatcher = Dispatcher(ledger, bundles, endings)
        self.orders = ServiceOrders(ledger, endings, dispatcher)
        self._admission = admission = Admission(ledger, bundles, dispatcher)
        self._registry = registry = WorkerRegistry(ledger, bundles, endings, dispatcher, now)
        self.work_orders = WorkOrders(ledger, bundles, endings, registry)
        replies = Replies(ledger, bundles, registry)
        self.receive_singly = admission.receive_singly
        self.undelivered = registry.undelivered
        self.take_back = registry.take_back
        self.stalled = registry.stalled
        self.withdraw = endings.withdraw
        self.leave = endings.leave
        self.take_over = registry.take_over
        # Bound once, because the loop asks for the deadline after each message.
        self._workers = ledger.workers
        self._next_expiry = ledger.waiting.deadlines.next_deadline
        self._tidy_at = ledger.wake_at = now + _TIDY_INTERVAL_S
        # By the type of a message. The node calls them without ``receive``, which costs 1 % of a request.
        self.handlers: dict[type, Callable[..., list[Output]]] = {
            messages.Request: admission.receive,
            messages.Directed: admission.receive_directed,
            messages.Requests: admission.receive_batch,
            messages.Final: replies.receive_final,
            messages.Finals: replies.receive_finals,
            messages.Partial: replies.receive_partial,
            messages.ProgressMade: replies.receive_partial,
            messages.Failure: replies.receive_final,
            messages.Ready: registry.register,
            messages.Heartbeat: registry.heartbeat,
            messages.Disconnect: registry.disconnect,
            messages.StaleEpoch: registry.refuse_epoch,
            messages.Cancel: self._cancel,
            messages.Ping: self._answer_ping,
        }

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, message: messages.FromPeer, now: float) -> list[Output]:
        """Handle a message of a client (admitted by the Binary Star) or of a worker."""
        return self.handlers[type(message)](message, now)

    def receive_invalid(self, frames: list[bytes], error: RemoteProtocolError, now: float) -> list[Output]:
        """Drop a message that no codec could read, and tell its sender if that is possible.

        A registered worker whose command could not be read is invalid (MDP1-B-05). A worker whose message
        breaks a bound is invalid, too: its request would wait for ever.
        """
        outputs = self.ledger.note(f"invalid-{error.reason}", error.text)
        worker = self.ledger.workers.get(frames[0])
        if worker is not None and (error.from_worker or error.reason in _BROKEN_BOUNDS):
            outputs += self._registry.expel_invalid(worker, now)
        elif (asker := native_broker.asker_of(frames)) is not None:
            code, text = messages.ErrorCode.INVALID, error.text.encode()
            outputs.append(Send(native_broker.CODEC.failure(asker, self.ledger.epoch, code, text)))
        return outputs

    def knows(self, message: messages.Request | messages.Requests) -> bool:
        """True if this request, or one of these, came before and has no reply."""
        return self._admission.knows(message)

    def deny(self, message: messages.FromPeer, denial: Denial, now: float) -> list[Output]:
        """A message that its sender may not send: tell the sender if its dialect can, and count it."""
        outputs = self.ledger.note_denied(denial.reason, denial.text, denial.who)
        if isinstance(message, messages.Requests):
            outputs += self.receive_singly(message, lambda request, now: self._deny(request, denial), now)
        elif isinstance(message, messages.Request):
            outputs += self._deny(message, denial)
        else:
            outputs += self.ledger.note(denial.reason, denial.text)
            if isinstance(message, messages.Ready | messages.Heartbeat) and not denial.retry_after_ms:
                outputs += self._registry.turn_away(message, now)
        if denial.ends:
            outputs.append(HangUp(denial.ends))
        return outputs

    def _deny(self, request: messages.Request, denial: Denial) -> list[Output]:
        code = None if denial.retry_after_ms else messages.ErrorCode.NOT_ALLOWED
        return self.refuse_for(request, Refusal(denial.reason, denial.text, "", code, denial.retry_after_ms))

    def refuse_unread(self, frames: list[bytes]) -> list[Output]:
        """Refuse a message for which there was no memory; ``frames`` were read."""
        refusal = refusals.MEMORY_UNREAD
        outputs = self.ledger.note(refusal.reason, refusal.text)
        asker = native_broker.asker_of(frames)
        if asker is not None:
            busy = refusal.frames(native_broker.CODEC, asker, self.ledger.epoch)
            assert busy is not None
            outputs.append(Send(busy))
        return outputs

    def refuse(self, request: messages.Request, now: float) -> list[Output]:
        """Refuse a request that this node may not serve; tell its client if the dialect can."""
        self.ledger.drop("not-active")
        frames = CODECS[request.dialect].not_active(request, self.ledger.status(now), False)
        return [Send(frames)] if frames is not None else []

    def refuse_durable(self, message: messages.Request) -> list[Output]:
        """Refuse a durable operation: this node has no store."""
        return self.refuse_for(message, refusals.NO_STORE)

    def refuse_for(self, message: messages.Request, refusal: Refusal) -> list[Output]:
        """Refuse a request and tell its client why, if the dialect can."""
        outputs = self.ledger.note(refusal.reason, refusal.text)
        frames = refusal.frames(CODECS[message.dialect], message, self.ledger.epoch)
        return outputs if frames is None else [*outputs, Send(frames)]

    def _answer_ping(self, message: messages.Ping, now: float) -> list[Output]:
        return [Send(native_broker.CODEC.pong(message.sender, message.identity, self.ledger.status(now)))]

    def _cancel(self, message: messages.Cancel, now: float) -> list[Output]:
        return self._endings.give_up(message.identity, message.sender, now)

    def release_client(self, client: bytes, now: float) -> None:
        """This client is gone: what it asked and no worker has leaves the queue."""
        self._endings.release_client(client, now)

    def set_credit(self, routing_id: bytes, credit: int, now: float) -> list[Output]:
        """This worker takes so many requests at once from now on; with 0 it gets none."""
        return self._registry.set_credit(routing_id, credit, now)

    def send_away(self, worker: WorkerRecord, now: float) -> list[Output]:
        """This worker may not offer its service any more."""
        return self._registry.send_away(worker, now)

    def unreachable(self, routing_id: bytes, now: float, *, is_gone: bool = True) -> list[Output]:
        """A Send found no connection to this peer (``is_gone``) or no room in it."""
        return self._registry.unreachable(routing_id, is_gone, now)

    def unread(self, now: float, *, is_any: bool) -> bool:
        """See ``Registry.unread``."""
        return self._registry.unread(is_any, now)

    def sender_gone(self, client: bytes, now: float) -> None:
        """A client's connection is over, and libzmq made its routing id: what waits of it leaves."""
        self._endings.release_client(client, now, is_new_each_time=True)

    # --- the role of this node ------------------------------------------------------------------------------

    def activate(self, epoch: int) -> None:
        """This node serves from now on, in ``epoch``."""
        self.ledger.epoch = epoch
        self.ledger.is_serving = True

    def deactivate(self, now: float) -> list[Output]:
        """This node stops serving: each native client and the store get NOT_ACTIVE for each request.

        A plain client gets nothing. A request at a worker is answered when the worker answers. A queued
        request waits until this node serves again (``resume``) or the other node does (``release``). So do
        plain requests that ``receive`` gets meanwhile (``may_wait``).
        """
        ledger = self.ledger
        if not ledger.is_serving:
            return []
        ledger.is_serving = False
        self.suspend(now)
        outputs: list[Output] = []
        self._endings.return_queued(lambda request: request.codec.gets_not_active, now, outputs)
        status = ledger.status(now)
        for worker in ledger.workers.values():
            self.bundles.unfold_worker(worker)
            for request in worker.in_flight.values():
                if not request.is_abandoned and request.codec.gets_not_active:
                    self._endings.give_back(request, status, True, outputs, now)
                    request.is_abandoned = True
        return outputs

    def suspend(self, now: float) -> None:
        """No node is known to serve, and this one may soon: from now on plain requests may wait here."""
        self.ledger.is_suspended = True
        self.ledger.suspended_at = now

    def may_wait(self, request: messages.Request) -> bool:
        """True if this request may wait at a node that is suspended: its dialect has no NOT_ACTIVE."""
        return not CODECS[request.dialect].gets_not_active

    def resume(self, now: float) -> list[Output]:
        """This node serves again and no other node has meanwhile: dispatch plain clients' requests."""
        self.ledger.is_suspended = False
        outputs = self._registry.ask_workers(now) if self.ledger.settings.services else []
        return outputs + self.orders.dispatch_all(now)

    def release(self, now: float) -> list[Output]:
        """The other node serves: drop plain clients' requests. Their timeout leads them to that node."""
        self.ledger.is_suspended = False
        outputs: list[Output] = []
        self._endings.return_queued(lambda request: True, now, outputs)
        return outputs

    def release_late(self, now: float) -> list[Output]:
        """No node has served for too long: drop what came since this one stopped. Its clients ask again."""
        since = self.ledger.suspended_at
        outputs: list[Output] = []
        self._endings.return_queued(lambda request: request.accepted_at >= since, now, outputs)
        return outputs

    def drain(self) -> None:
        """Dispatch no more requests. New ones wait until ``deactivate`` returns them, or ``end_drain``."""
        self.ledger.is_draining = True

    def end_drain(self) -> None:
        """Dispatch again what comes from now on; ``resume`` dispatches what waits."""
        self.ledger.is_draining = False

    @property
    def is_awaited(self) -> bool:
        """True if a worker holds a request that this node must answer."""
        workers = self.ledger.workers
        return any(worker.bundled for worker in workers.values()) or any(
            not request.is_abandoned
            for worker in workers.values()
            if worker.in_flight
            for request in worker.in_flight.values()
        )

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When ``handle_timer`` has something to do."""
        deadline, sweep_at = self.ledger.wake_at, self._registry.sweep_at
        if sweep_at < deadline and self._workers:
            deadline = sweep_at
        expires_at = self._next_expiry()
        return expires_at if expires_at < deadline else deadline  # noqa: FURB136 - min() costs 1 % of a request

    def handle_timer(self, now: float) -> list[Output]:
        """Handle heartbeats, expired workers, expired requests and unused services."""
        ledger = self.ledger
        outputs = self._endings.expire_due(now)
        if now >= self._registry.sweep_at:
            self._registry.sweep(now, outputs)
        if now >= ledger.wake_at:
            self._dispatcher.go_on(now, outputs)
            if now >= self._tidy_at:
                self._tidy(now, outputs)
            ledger.wake_at = min((self._tidy_at, *ledger.opens_at.values()))
        return outputs

    def _tidy(self, now: float, outputs: list[Output]) -> None:
        ledger = self.ledger
        self._tidy_at = now + _TIDY_INTERVAL_S
        self._registry.tidy(now)
        ledger.tidy_accounts()
        outputs += self.orders.end_due(now)
        for service in ledger.services.tidy(now):
            if ledger.observer is not None:
                ledger.observer.forgotten(service, now)
        status = ledger.status(now)
        outputs += [
            Send(native_broker.CODEC.pong(client, native.NO_IDENTITY, status))
            for client in ledger.waiting.clients_to_ask(now)
        ]
