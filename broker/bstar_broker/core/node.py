"""One node of the pair: the Binary Star machine and the broker as a single sans-I/O machine.

The shell hands it messages from the ROUTER socket (``receive_frames``) and events of the pair and the process
(``step``), with the time. It carries out the outputs in order. The Binary Star decides whether the node may
serve a request, and such a request is a vote. The node passes the machine's decisions about the role to the
broker. So shell and simulator have no logic of their own.
"""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from bstar import star
from bstar.base.printable import printable
from bstar.errors import RemoteProtocolError
from bstar.security.principals import Principal
from bstar.star import (
    Activated,
    Deactivated,
    EpochHeard,
    Handover,
    HandoverRefused,
    Input,
    Leave,
    PeerMessage,
    Refusal,
    Rejoin,
    Stall,
    StarMachine,
    State,
    Tick,
    Vote,
)
from bstar.wire import CODECS, decode, mmi, refusals
from bstar.wire.dialect import Dialect
from bstar.wire.messages import (
    Directed,
    Final,
    FromPeer,
    Heartbeat,
    Partial,
    Ping,
    ProgressMade,
    Ready,
    Request,
    Requests,
    StaleEpoch,
)
from bstar_broker.core.authority import Authority
from bstar_broker.core.broker import Broker
from bstar_broker.core.findings import Findings
from bstar_broker.core.management import Management, Pictures, broker_state
from bstar_broker.core.observer import Observer
from bstar_broker.core.outputs import Dispatch, HangUp, Notice, OrderReceived, Output, Send, StoreInput
from bstar_broker.core.pair_state import pair_state
from bstar_broker.core.parting import Parting
from bstar_broker.core.quotas import Denial, Origin
from bstar_broker.core.readiness import readiness, why_role_stays
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.snapshot import FrontState, NodeState, ShellState
from bstar_broker.core.store import Store

# Only workers are fenced, so only their epochs matter. A client's message never raises an epoch.
_EPOCH_CARRIERS = frozenset((Heartbeat, Ready, StaleEpoch))
# Messages that end no request. A draining node does not look at all workers after each of these.
_NO_ENDS = frozenset((Heartbeat, Ping, Partial, ProgressMade))
# No outage has as many activations: a worker that is so far ahead lies, or has believed a lie.
_EPOCH_FAR_MIN = 1_000
_EPOCH_REPORT_S = 60.0
# Workers that one line of the log names, of those that a new list of principals sends away.
_REPORTED_MAX = 5
# A batch of management requests is answered up to here, some 40 snapshots of 1,000 services: a few
# milliseconds for the copies. Its client sends the others again.
_ANSWERS_BYTES_MAX = 16 << 20
# What plain clients ask a node that may serve soon waits for so many failover timeouts: one until the peer
# has answered or is silent, one until a claimed majority is free, one to spare. Their clients send it again
# (published ones after 2.5 s), so a request that waits for longer would be executed twice.
_WAIT_TIMEOUTS = 3
# Durable operations that wait so, and the bytes of their bodies. A failover has one of each client.
_EARLY_MAX = 1_000
_EARLY_BYTES_MAX = 4 << 20


class Node:
    """A broker that serves while, and only while, its Binary Star machine is active.

    ``node_id`` (16 bytes) names this run; ``drain_timeout_s`` bounds how long a stopping node waits for the
    workers that still hold its requests. ``shell`` tells what only the shell knows, for ``state``;
    ``observer`` learns what becomes of requests and workers. With ``find_principal`` each
    message needs the ``user_id`` of its connection, and its principal must be allowed to send it. ``origin``
    tells more of that connection. ``address`` tells where the message in hand comes from, for listings.
    ``make_store`` makes the durable store of this node's broker.
    """

    def __init__(
        self,
        machine: StarMachine,
        settings: BrokerSettings,
        *,
        node_id: bytes,
        drain_timeout_s: float,
        version: str,
        now: float,
        observer: Observer | None = None,
        find_principal: Callable[[str], Principal | None] | None = None,
        origin: Origin | None = None,
        address: Callable[[], str] | None = None,
        shell: Callable[[float], ShellState] | None = None,
        make_store: Callable[[Broker], Store] | None = None,
    ) -> None:
        self.machine = machine
        self._cut_off = machine.cut_off
        self.broker = Broker(settings, node_id=node_id, describe=machine.status, now=now, observer=observer)
        self._handlers = self.broker.handlers
        self._receivers: dict[type, Callable[..., list[Output]]] = {
            **dict.fromkeys(self._handlers, self._receive_other),
            Request: self._receive_request,
            Directed: self._receive_directed,
            Requests: self._receive_requests,
            Final: self._receive_final,
        }
        ledger = self.broker.ledger
        self.authority = None if find_principal is None else Authority(find_principal, ledger, origin)
        if address is not None:
            ledger.address = address
        self._message_bytes_max = settings.message_bytes_max
        self._message_frames_max = settings.message_frames_max
        self.parting = Parting(machine, self.broker, drain_timeout_s, self._is_storing)
        self._far_epoch_reported_at = -_EPOCH_REPORT_S
        # Until when plain requests may wait here while no node serves, and whether one does.
        self._waits_until = now
        self._has_votes = False
        # Durable operations of plain clients that wait so, with the user ids of their connections.
        self._early: list[tuple[Request, str]] = []
        self.management = Management(ledger, self.state)
        self._findings = Findings()
        self._version = version
        self._shell = shell
        self.store: Store | None = None
        if make_store is not None:
            self.store = make_store(self.broker)
            ledger.reserved = (mmi.PREFIX, *self.store.prefixes)
            ledger.own_services = frozenset(self.store.services)
        self._reserved = ledger.reserved

    # --- the ROUTER socket ----------------------------------------------------------------------------------

    def receive_frames(self, frames: list[bytes], now: float, user_id: str = "") -> list[Output]:
        """Handle one message of a client or worker, the routing id first. Bad ones are counted."""
        before = self._check_lease(now) if now >= self.machine.serve_until else None
        try:
            message = decode(frames, self._message_bytes_max, self._message_frames_max)
        except RemoteProtocolError as error:
            outputs = self._receive_unread(frames, error, user_id, now)
        else:
            if self.authority is None:
                outputs = self._receivers[type(message)](message, now, user_id)
            else:
                outputs = self.receive_message(message, now, user_id)
        if before:
            outputs = before + outputs
        return self._settled(outputs, now)

    def receive_message(self, message: FromPeer, now: float, user_id: str) -> list[Output]:
        """Handle a message of a client or worker, of any dialect, within another input."""
        if self.authority is not None:
            refused = self._vet(message, user_id, now)
            if refused is not None:
                return refused
        return self._receivers[type(message)](message, now, user_id)

    def _receive_other(self, message: FromPeer, now: float, user_id: str) -> list[Output]:
        kind = type(message)
        outputs: list[Output] = []
        if (
            kind in _EPOCH_CARRIERS
            and message.epoch > self.machine.epochs.seen  # type: ignore[union-attr]
            and (kind is Ready or message.sender in self.broker.ledger.workers)
        ):
            outputs = self._hear_epoch(message, user_id, now)  # type: ignore[arg-type]
        elif kind is Ping and message.sender in self.broker.ledger.requests_of:
            self._cut_off.served_at = now
        outputs += self._handlers[kind](message, now)
        if self.parting.is_draining and kind not in _NO_ENDS:
            outputs += self._part(now)
        return outputs

    def _receive_final(self, message: Final, now: float, user_id: str) -> list[Output]:
        outputs = self._handlers[Final](message, now)
        return outputs + self._part(now) if self.parting.is_draining else outputs

    def _hear_epoch(self, message: Ready | Heartbeat | StaleEpoch, user_id: str, now: float) -> list[Output]:
        """A worker remembers an epoch above all that this node knows. A far one goes to the log."""
        before = self.machine.epochs.seen
        outputs = self._expand(self.machine.step(EpochHeard(message.epoch), now), now)
        if message.epoch - before < _EPOCH_FAR_MIN or now < self._far_epoch_reported_at + _EPOCH_REPORT_S:
            return outputs
        self._far_epoch_reported_at = now
        if isinstance(message, Ready):
            service = message.service
        else:
            service = self.broker.ledger.workers[message.sender].service.name
        who = "a worker" if self.authority is None else self.authority.describe(user_id)
        did = "ignored it" if self.machine.epochs.seen == before else "believed it"
        text = (
            f'{who} of service "{printable(service)}" names epoch {message.epoch}; the highest known here was'
        )
        outputs.append(Notice(f"{text} {before}, and this node {did} (docs/operations.md)"))
        return outputs

    def principals_changed(self, now: float) -> list[Output]:
        """The list has changed: send the workers away that may not offer their service now."""
        return self.act(self._check_workers, now)

    def limits_changed(self, now: float) -> list[Output]:
        """The configuration has other limits for services."""
        return self.act(self.broker.orders.follow_limits, now)

    def _check_workers(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        if self.authority is None:
            return outputs
        ledger, judge = self.broker.ledger, self.authority.judge_worker
        gone = [(worker, why) for worker in ledger.workers.values() if (why := judge(worker)) is not None]
        for worker, _ in gone:
            # What the first one held must not go to the next one.
            worker.service.idle.pop(worker, None)
        for worker, why in gone:
            ledger.drop(why.reason)
            outputs += self.broker.send_away(worker, now)
        if gone:
            reported = "; ".join(
                f'the worker of service "{printable(worker.service.name)}": {why.text}'
                for worker, why in gone[:_REPORTED_MAX]
            )
            more = "" if len(gone) <= _REPORTED_MAX else f"; {len(gone) - _REPORTED_MAX} more"
            outputs.append(Notice(f"the list of principals has changed; sent away: {reported}{more}"))
        return outputs

    def _vet(self, message: FromPeer, user_id: str, now: float) -> list[Output] | None:
        """What follows if the sender may not send this message; None if it may."""
        assert self.authority is not None
        if self.authority.is_new_owner(message.sender, user_id, now):
            # libzmq gave the routing id to this connection: nothing can reach the former owner any more.
            text = f"a routing id of another principal now belongs to {user_id.partition(' ')[0]}"
            outputs = self.broker.ledger.note("routing-id-taken", text)
            outputs += self.broker.take_over(message.sender, now)
            self.authority.quotas.leave(message.sender)
            return outputs + self.receive_message(message, now, user_id)
        denial = self.authority.judge(message, user_id, now)
        if denial is None or (isinstance(message, Request) and self._is_repeated(message, denial)):
            return None
        if isinstance(message, Requests) and (denial.splits or self._is_repeated(message, denial)):
            return self.broker.receive_singly(message, partial(self._receive_split, user_id), now)
        return self.broker.deny(message, denial, now)

    def _receive_split(self, user_id: str, request: Request, now: float) -> list[Output]:
        assert self.authority is not None
        denial = self.authority.judge_split(request, user_id, now)
        if denial is None or self._is_repeated(request, denial):
            return self._receive_request(request, now, user_id)
        return self.broker.deny(request, denial, now)

    def _is_repeated(self, message: Request | Requests, denial: Denial) -> bool:
        """True if a quota denies what was counted before: the caller is to join the request under way."""
        return denial.reason in refusals.QUOTAS and self.broker.knows(message)

    def _receive_unread(
        self, frames: list[bytes], error: RemoteProtocolError, user_id: str, now: float
    ) -> list[Output]:
        denial = None if self.authority is None else self.authority.judge_unread(user_id, now)
        if denial is None:
            return self.broker.receive_invalid(frames, error, now)
        outputs = self.broker.ledger.note(denial.reason, denial.text)
        return [*outputs, HangUp(denial.ends)] if denial.ends else outputs

    def receive_unread(self, frames: list[bytes]) -> list[Output]:
        """Handle a message for which there was no memory: ``frames`` were read."""
        return self.broker.refuse_unread(frames)

    def _receive_request(self, message: Request, now: float, user_id: str) -> list[Output]:
        is_own = message.service.startswith(self._reserved)
        if not is_own and now < self.machine.serve_until:
            self._cut_off.served_at = now
            return self._handlers[Request](message, now)
        outputs: list[Output] = []
        is_managed = is_own and message.service.startswith(mmi.PREFIX)
        # Requests for these workers follow, so the question for their names is a vote, too.
        is_vote = message.service == mmi.Service.NAMES.value and message.dialect == Dialect.NATIVE
        if is_managed and not is_vote:
            return outputs + self._manage(message, Pictures(), now, user_id)
        if now >= self.machine.serve_until:
            outputs += self._expand(self.machine.step(Vote(), now), now)
            if now >= self.machine.serve_until:
                if self._lets_wait(message, now):
                    if not is_own:
                        return outputs + self.broker.receive(message, now)
                    self._early.append((message, user_id))
                    return outputs
                self._note_refused(message, now)
                outputs += self.broker.refuse(message, now)
                return outputs
        self._cut_off.served_at = now
        if is_managed:
            return outputs + self._manage(message, Pictures(), now)
        if is_own:
            return outputs + self._keep(message, now, user_id)
        return outputs + self.broker.receive(message, now)

    def _lets_wait(self, message: Request, now: float) -> bool:
        """True if a plain client's vote waits here: this node has stepped down, or claims the majority."""
        is_over = now >= self._waits_until or not self.broker.ledger.is_suspended
        if is_over and not self._has_votes and self.machine.is_claiming(now):
            self.broker.suspend(now)
            self._waits_until = now + _WAIT_TIMEOUTS * self.machine.peer.pace.silence_s
            is_over = False
        if is_over or not self.broker.may_wait(message):
            return False
        if message.service.startswith(self._reserved):
            early_bytes = sum(len(frame) for each, _ in [*self._early, (message, "")] for frame in each.body)
            if self.store is None or len(self._early) >= _EARLY_MAX or early_bytes > _EARLY_BYTES_MAX:
                return False
        self._has_votes = True
        return True

    def _receive_directed(self, message: Directed, now: float, user_id: str) -> list[Output]:
        if message.service.startswith(self._reserved):
            return self.broker.refuse_for(message, refusals.WORKER_GONE)
        if now < self.machine.serve_until:
            self._cut_off.served_at = now
            return self._handlers[Directed](message, now)
        return self._receive_request(message, now, user_id)

    def _keep(self, message: Request | Requests, now: float, user_id: str) -> list[Output]:
        """Hand a durable operation to the store."""
        if self.store is not None:
            principal = None if self.authority is None else self.authority.principal(user_id)
            return self.store.receive(message, principal, now)
        if isinstance(message, Requests):
            return self.broker.receive_singly(message, lambda each, now: self._keep(each, now, user_id), now)
        return self.broker.refuse_durable(message)

    def _receive_requests(self, message: Requests, now: float, user_id: str) -> list[Output]:
        """A batch is one vote. Otherwise it is handled like single requests."""
        outputs: list[Output] = []
        if message.service.startswith(mmi.PREFIX):
            return outputs + self._manage_batch(message, now)
        if now >= self.machine.serve_until:
            outputs += self._expand(self.machine.step(Vote(), now), now)
            if now >= self.machine.serve_until:
                self._note_refused(message, now)
                return outputs + self.broker.receive_singly(message, self.broker.refuse, now)
        self._cut_off.served_at = now
        if message.service.startswith(self._reserved):
            return outputs + self._keep(message, now, user_id)
        outputs += self.broker.receive(message, now)
        return outputs

    def _note_refused(self, message: Request | Requests, now: float) -> None:
        """Note that a native client asked: it asks a passive node only while it finds no other."""
        if isinstance(message, Requests) or message.dialect == Dialect.NATIVE:
            service = self.broker.ledger.services.get(message.service)
            has_worker = service is not None and service.workers > 0
            self.machine.step(Refusal(message.sender, has_worker), now)

    def _manage_batch(self, message: Requests, now: float) -> list[Output]:
        """Answer the requests of a batch until the answers are too large for one turn; refuse the others."""
        pictures, size_bytes = Pictures(is_shared=True), 0

        def manage(request: Request, now: float) -> list[Output]:
            nonlocal size_bytes
            if size_bytes >= _ANSWERS_BYTES_MAX:
                return self.broker.refuse_for(request, refusals.CLIENT_FULL)
            outputs = self._manage(request, pictures, now)
            size_bytes += sum(
                len(frame) for output in outputs if type(output) is Send for frame in output.frames
            )
            return outputs

        return self.broker.receive_singly(message, manage, now)

    def _manage(
        self, message: Request, pictures: Pictures, now: float, user_id: str | None = None
    ) -> list[Output]:
        """Answer a management request. Native clients ask the active node, except for what any node knows.

        Without a ``user_id`` it came in a batch, which may hold no order.
        """
        if message.service == mmi.ORDER and message.dialect == Dialect.NATIVE and user_id is not None:
            if self.authority is None:
                text = "this node has no keys, and takes orders on its own machine only"
                return self.broker.refuse_for(message, refusals.ORDER_NOT_ALLOWED.saying(text))
            return [OrderReceived(message, user_id)]
        if (
            message.dialect == Dialect.NATIVE
            and not self.machine.is_active
            and message.service not in mmi.OF_ANY_NODE
        ):
            return self.broker.refuse(message, now)
        body = self.management.answer(message.service, message.body, pictures, now)
        codec = CODECS[message.dialect]
        return [Send(codec.final(message, message.service, self.machine.epoch, 0, body, b""))]

    def unreachable(self, routing_id: bytes, now: float, *, is_gone: bool = True) -> list[Output]:
        """The shell could not carry out a Send to this peer: it has no connection, or a full one."""
        return self.act(lambda now: self.broker.unreachable(routing_id, now, is_gone=is_gone), now)

    def undelivered(self, output: Dispatch, now: float) -> list[Output]:
        """The shell could not carry out this Dispatch."""
        routing_id, item = output.frames[0], output.item
        return self.act(
            lambda now: self._check_lease(now) + self.broker.undelivered(routing_id, item, now), now
        )

    def hear_store(self, given: StoreInput, now: float) -> list[Output]:
        """The store's disk or its peer has something to say."""
        assert self.store is not None
        return self.act(partial(self.store.hear, given), now)

    def force_store(self, now: float) -> list[Output]:
        """An operator says that the store goes on from this node's copy."""
        assert self.store is not None
        return self.act(self.store.force, now)

    # --- what follows from an input -------------------------------------------------------------------------

    def act(self, change: Callable[[float], list[Output]], now: float) -> list[Output]:
        """Change this node, and do all that follows. ``change`` gets ``now``.

        Every input comes through here, but for messages, so none of them can forget a part of it.
        """
        outputs = change(now)
        return self._settled(outputs + self._part(now), now)

    def _settled(self, outputs: list[Output], now: float) -> list[Output]:
        """The outputs, and what the store makes of what has become of its requests meanwhile."""
        if self.store is not None:
            outputs += self.store.settle(now)
        return outputs

    def _check_lease(self, now: float) -> list[Output]:
        """Step down if the majority has run out: what comes next may cause a dispatch."""
        if now >= self.machine.serve_until and self.machine.is_active:
            return self._expand(self.machine.step(Tick(), now), now)
        return []

    # --- the Binary Star ------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """True if this node serves."""
        return self.machine.is_active

    @property
    def serve_until(self) -> float:
        """This node may serve before that time."""
        return self.machine.serve_until

    @property
    def published_at(self) -> float:
        """When this node last sent its peer its state."""
        return self.machine.published_at

    @property
    def absence_s(self) -> float:
        """How old this node's last state message may be before its peer may take over."""
        return self.machine.absence_s

    def step(self, given: Input, now: float) -> list[Output]:
        """Handle an event of the pair or of this process."""
        return self.act(partial(self._step, given), now)

    def _step(self, given: Input, now: float) -> list[Output]:
        kind = type(given)
        if kind is Leave:
            self.parting.leave(now)
            return []
        if kind is Handover:
            return self._switch_over(now)
        if kind is Stall:
            self.broker.stalled(given.gap_s)  # type: ignore[union-attr]
        outputs = self._expand(self.machine.step(given, now), now)
        if kind is Tick:
            outputs += self._tend_waiting(now)
            self.parting.end_farewell(now)
            outputs += self.broker.handle_timer(now)
            if self.store is not None:
                outputs += self.store.handle_timer(now)
        elif kind is PeerMessage and self.store is not None and self.machine.peer.state is State.ACTIVE:
            outputs += self.store.peer_serves(now)
        return outputs

    def _tend_waiting(self, now: float) -> list[Output]:
        """Plain requests that wait while no node serves are votes once the peer is silent. At the end of
        their time they are dropped.
        """
        ledger, outputs = self.broker.ledger, list[Output]()
        if self._has_votes and ledger.is_suspended and self.machine.peer.is_silent(now):
            outputs += self._expand(self.machine.step(Vote(), now), now)
        if self._has_votes and ledger.is_suspended and now >= self._waits_until:
            self._has_votes = False
            outputs += self._refuse_early(now) + self.broker.release_late(now)
        return outputs

    def switch_over(self, now: float, *, is_if_healthy: bool = False) -> list[Output]:
        """Move the role to the peer: drain, then hand over. ``parting.switchover`` tells how it ends.

        ``is_if_healthy``: refuse unless the pair is as it should be.
        """
        return self.act(partial(self._switch_over, is_if_healthy=is_if_healthy), now)

    def _switch_over(self, now: float, *, is_if_healthy: bool = False) -> list[Output]:
        why_not = why_role_stays(self.state(now), is_if_healthy=is_if_healthy)
        return self.parting.switch_over(now, why_not)

    def drain(self, why: str, now: float) -> list[Output]:
        """Take this node out of the pair, because of ``why``. Refused if ``parting.drain_why`` is empty."""
        why_not = why_role_stays(self.state(now), is_if_healthy=False)
        return self.act(lambda now: self.parting.drain_node(why, now, why_not), now)

    def rejoin(self, why: str, now: float) -> list[Output]:
        """End ``drain``."""
        self.parting.drain_why = ""
        return self.step(Rejoin(why), now)

    def _part(self, now: float) -> list[Output]:
        """Go on with a stop or a switchover, if one is under way."""
        parting = self.parting
        outputs = parting.follow(now)
        given = parting.next_input(now) if parting.is_under_way else None
        if given is None:
            return outputs
        given_up = self.machine.step(given, now)
        outputs += self._expand(given_up, now)
        refusals = [output.why for output in given_up if type(output) is HandoverRefused]
        return outputs + (parting.call_off(refusals[0], now) if refusals else parting.follow(now))

    def _is_storing(self) -> bool:
        return self.store is not None and self.store.is_storing

    def has_left(self, now: float) -> bool:
        """After ``Leave``: True if the process may end."""
        return self.machine.has_left(now) and self.parting.farewell_until is None

    def trouble(self, now: float) -> str:
        """Why this node cannot play its part; empty if it can."""
        return self.machine.trouble(now)

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due."""
        deadline = self.broker.next_deadline()
        pairs = self.machine.next_deadline()
        if pairs is not None and pairs < deadline:
            deadline = pairs
        farewell_until = self.parting.farewell_until
        if farewell_until is not None and farewell_until < deadline:
            deadline = farewell_until
        if self.store is not None and (due := self.store.next_deadline()) is not None and due < deadline:
            return due
        return deadline

    def _expand(self, outputs: Sequence[star.Output], now: float) -> list[Output]:
        """Let the broker follow the machine. The broker's outputs come right after the output that caused
        them.
        """
        expanded: list[Output] = []
        for output in outputs:
            expanded.append(output)
            if type(output) is Activated:
                self.broker.activate(output.epoch)
                expanded += self.broker.resume(now)
                if self.store is not None:
                    expanded += self.store.lead(output.epoch, now)
                    for message, user_id in self._early:
                        expanded += self._keep(message, now, user_id)
                    self._early.clear()
            elif type(output) is Deactivated:
                self._waits_until = now + _WAIT_TIMEOUTS * self.machine.peer.pace.silence_s
                self._has_votes = False
                if self.store is not None:
                    expanded += self.store.follow(now)
                expanded += self.broker.deactivate(now)
        if self.broker.ledger.is_suspended and (
            self.machine.hears_active_peer(now) or self.machine.is_leaving
        ):
            self._has_votes = False
            expanded += self._refuse_early(now) + self.broker.release(now)
        return expanded

    def _refuse_early(self, now: float) -> list[Output]:
        """No node has served in time, or the other one does: a front hears so, a plain client cannot."""
        early, self._early = self._early, []
        return [output for message, _ in early for output in self.broker.refuse(message, now)]

    # --- for people and monitors ----------------------------------------------------------------------------

    def state(self, now: float) -> NodeState:
        """A snapshot of the node."""
        shell = ShellState() if self._shell is None else self._shell(now)
        pair, broker = pair_state(self.machine, shell, now), broker_state(self.broker.ledger, now)
        state = NodeState(
            version=self._version,
            pair=pair,
            broker=broker,
            readiness=readiness(pair, is_draining=broker.is_draining),
            loop=shell.loop,
            journal=shell.journal,
            security=shell.security,
            store=self.store.state(now) if self.store is not None else None,
            fronts=shell.fronts + self._front_states(now),
            history=shell.history,
            peer_history=shell.peer_history,
        )
        return replace(state, findings=self._findings.look(state, now))

    def _front_states(self, now: float) -> list[FrontState]:
        """Those of fronts in this process."""
        return []
