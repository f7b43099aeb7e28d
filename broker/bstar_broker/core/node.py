"""One node of the pair: the Binary Star machine and the broker as a single sans-I/O machine.

The shell hands it messages from the ROUTER socket (``receive_frames``) and events of the pair and the process
(``step``), with the time. It carries out the outputs in order. The Binary Star decides whether the node may
serve a request, and such a request is a vote. The node passes the machine's decisions about the role to the
broker. So shell and simulator have no logic of their own.
"""

from collections.abc import Callable, Sequence
from functools import partial

from bstar import star
from bstar.errors import RemoteProtocolError
from bstar.security.principals import Principal
from bstar.star import (
    Activated,
    Deactivated,
    EpochHeard,
    Input,
    Leave,
    Refusal,
    Stall,
    StarMachine,
    State,
    Tick,
    Vote,
)
from bstar.wire import CODECS, decode, mmi
from bstar.wire.dialect import Dialect
from bstar.wire.messages import FromPeer, Heartbeat, Partial, Ping, Ready, Request, Requests, StaleEpoch
from bstar_broker.core.authority import Authority
from bstar_broker.core.broker import Broker
from bstar_broker.core.management import answer, broker_state
from bstar_broker.core.observer import Observer
from bstar_broker.core.outputs import HangUp, Output, Send
from bstar_broker.core.quotas import QUOTA_REASONS, Denial, Origin
from bstar_broker.core.readiness import readiness
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.snapshot import (
    JournalState,
    LoopState,
    NodeState,
    PairState,
    QuorumState,
    SecurityState,
)

# Only workers are fenced, so only their epochs matter. A client's message never raises an epoch.
_EPOCH_CARRIERS = frozenset((Heartbeat, Ready, StaleEpoch))
# After a handover a node refuses requests for this time before it ends. Clients send until they hear of it. A
# request that is unread at the end may have been executed, as far as its client knows; a refused request was
# not. The time is longer than a round trip to a client.
FAREWELL_S = 0.2

# Messages that end no request. A draining node does not look at all workers after each of these.
_NO_ENDS = frozenset((Heartbeat, Ping, Partial))


class Node:
    """A broker that serves while, and only while, its Binary Star machine is active.

    ``node_id`` (16 octets) names this run; ``drain_timeout_s`` bounds how long a stopping node waits for the
    workers that still hold its requests. ``loop`` and ``journal`` tell about the event loop and the journal,
    for ``state``; ``observer`` learns what becomes of requests and workers. With ``find_principal`` each
    message needs the ``user_id`` of its connection, and its principal must be allowed to send it. ``origin``
    tells more of that connection.
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
        loop: Callable[[float], LoopState] | None = None,
        observer: Observer | None = None,
        journal: Callable[[], JournalState] | None = None,
        epoch_error: Callable[[], str] = str,
        find_principal: Callable[[str], Principal | None] | None = None,
        origin: Origin | None = None,
        security: Callable[[], SecurityState] | None = None,
    ) -> None:
        self.machine = machine
        self._cut_off = machine.cut_off
        self.broker = Broker(settings, node_id=node_id, describe=machine.status, now=now, observer=observer)
        ledger = self.broker.ledger
        self.authority = None if find_principal is None else Authority(find_principal, ledger, origin)
        self._message_bytes_max = settings.message_bytes_max
        self._message_frames_max = settings.message_frames_max
        self._drain_timeout_s = drain_timeout_s
        self._drain_until: float | None = None
        self._farewell_until: float | None = None
        self._version = version
        self._loop = loop
        self._journal = journal
        self._security = security
        self._epoch_error = epoch_error

    # --- the ROUTER socket ----------------------------------------------------------------------------------

    def receive_frames(self, frames: list[bytes], now: float, user_id: str = "") -> list[Output]:
        """Handle one message of a client or worker, the routing id first. Bad ones are counted."""
        if now >= self.machine.serve_until and self.machine.is_active:
            # The majority has run out, but any message may cause a dispatch.
            outputs = self._expand(self.machine.step(Tick(), now), now)
            return outputs + self.receive_frames(frames, now, user_id)
        try:
            message = decode(frames, self._message_bytes_max, self._message_frames_max)
        except RemoteProtocolError as error:
            return self._receive_unread(frames, error, user_id, now)
        if self.authority is not None:
            refused = self._vet(message, frames, user_id, now)
            if refused is not None:
                return refused
        kind = type(message)
        if kind is Request:
            return self._receive_request(message, now)  # type: ignore[arg-type]
        if kind is Requests:
            return self._receive_requests(message, now)  # type: ignore[arg-type]
        if (
            kind in _EPOCH_CARRIERS
            and message.epoch > self.machine.epochs.seen  # type: ignore[union-attr]
            and (kind is Ready or message.sender in self.broker.ledger.workers)
        ):
            outputs = self._expand(self.machine.step(EpochHeard(message.epoch), now), now)  # type: ignore[union-attr]
            outputs += self.broker.receive(message, now)
        else:
            if kind is Ping and message.sender in self.broker.ledger.requests_of:
                self._cut_off.served_at = now
            outputs = self.broker.receive(message, now)
        if self._drain_until is not None and kind not in _NO_ENDS:
            outputs += self._leave_when_drained(now)
        return outputs

    def principals_changed(self, now: float) -> list[Output]:
        """The list has changed: send the workers away that may not offer their service now."""
        outputs: list[Output] = []
        if self.authority is None:
            return outputs
        ledger, may_offer = self.broker.ledger, self.authority.may_offer
        gone = [worker for worker in ledger.workers.values() if not may_offer(worker)]
        for worker in gone:
            # What the first one held must not go to the next one.
            worker.service.idle.pop(worker, None)
        for worker in gone:
            outputs += ledger.note("offer-not-allowed", "a worker may not offer its service")
            outputs += self.broker.send_away(worker, now)
        return outputs

    def _vet(self, message: FromPeer, frames: list[bytes], user_id: str, now: float) -> list[Output] | None:
        """What follows if the sender may not send this message; None if it may."""
        assert self.authority is not None
        if self.authority.is_new_owner(frames[0], user_id):
            # libzmq gave the routing id to this connection: nothing can reach the former owner any more.
            text = f"a routing id of another principal now belongs to {user_id.partition(' ')[0]}"
            outputs = self.broker.ledger.note("routing-id-taken", text)
            outputs += self.broker.take_over(frames[0], now)
            self.authority.quotas.leave(frames[0])
            return outputs + self.receive_frames(frames, now, user_id)
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
            return self._receive_request(request, now)
        return self.broker.deny(request, denial, now)

    def _is_repeated(self, message: Request | Requests, denial: Denial) -> bool:
        """True if a quota denies what was counted before: the caller is to join the request under way."""
        return denial.reason in QUOTA_REASONS and self.broker.knows(message)

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

    def _receive_request(self, message: Request, now: float) -> list[Output]:
        outputs: list[Output] = []
        if message.service.startswith(mmi.PREFIX):
            outputs += self._manage(message, now)
            return outputs
        if now >= self.machine.serve_until:
            outputs += self._expand(self.machine.step(Vote(), now), now)
            if now >= self.machine.serve_until:
                self._note_refused(message, now)
                outputs += self.broker.refuse(message, now)
                return outputs
        self._cut_off.served_at = now
        if outputs:
            outputs += self.broker.receive(message, now)
            return outputs
        return self.broker.receive(message, now)

    def _receive_requests(self, message: Requests, now: float) -> list[Output]:
        """A batch is one vote. Otherwise it is handled like single requests."""
        outputs: list[Output] = []
        if message.service.startswith(mmi.PREFIX):
            return outputs + self.broker.receive_singly(message, self._manage, now)
        if now >= self.machine.serve_until:
            outputs += self._expand(self.machine.step(Vote(), now), now)
            if now >= self.machine.serve_until:
                self._note_refused(message, now)
                return outputs + self.broker.receive_singly(message, self.broker.refuse, now)
        self._cut_off.served_at = now
        outputs += self.broker.receive(message, now)
        return outputs

    def _note_refused(self, message: Request | Requests, now: float) -> None:
        """Note that a native client asked: it asks a passive node only while it finds no other."""
        if isinstance(message, Requests) or message.dialect == Dialect.NATIVE:
            service = self.broker.ledger.services.get(message.service)
            has_worker = service is not None and service.workers > 0
            self.machine.step(Refusal(message.sender, has_worker), now)

    def _manage(self, message: Request, now: float) -> list[Output]:
        """Answer a management request. Native clients ask the active node, except for a node's own state."""
        if (
            message.dialect == Dialect.NATIVE
            and not self.machine.is_active
            and message.service != mmi.Service.STATE.value
        ):
            return self.broker.refuse(message, now)
        body = answer(self.broker.ledger, message.service, message.body, lambda: self.state(now), now)
        codec = CODECS[message.dialect]
        return [Send(codec.final(message, message.service, self.machine.epoch, 0, body, b""))]

    def unreachable(self, routing_id: bytes, now: float, *, is_gone: bool = True) -> list[Output]:
        """The shell could not carry out a Send to this peer: it has no connection, or a full one."""
        return self.broker.unreachable(routing_id, now, is_gone=is_gone)

    def undelivered(self, routing_id: bytes, now: float) -> list[Output]:
        """The shell could not carry out a Dispatch to this worker."""
        outputs: list[Output] = []
        if now >= self.machine.serve_until and self.machine.is_active:
            outputs = self._expand(self.machine.step(Tick(), now), now)
        return outputs + self.broker.undelivered(routing_id, now)

    # --- the Binary Star ------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """True if this node serves."""
        return self.machine.is_active

    @property
    def serve_until(self) -> float:
        """This node may serve before that time."""
        return self.machine.serve_until

    def step(self, given: Input, now: float) -> list[Output]:
        """Handle an event of the pair or of this process."""
        kind = type(given)
        if kind is Leave:
            return self._leave(now)
        if kind is Stall:
            self.broker.stalled(given.gap_s)  # type: ignore[union-attr]
        outputs = self._expand(self.machine.step(given, now), now)
        if kind is Tick:
            if self._farewell_until is not None and now >= self._farewell_until:
                self._farewell_until = None
            outputs += self.broker.handle_timer(now)
            outputs += self._leave_when_drained(now)
        return outputs

    def _leave(self, now: float) -> list[Output]:
        """Drain: let workers finish their requests, then give the role up. Idempotent."""
        if self._drain_until is not None:
            return []
        self._drain_until = now + self._drain_timeout_s
        self._cut_off.is_suspended = True
        if self.machine.is_active:
            self.broker.drain()
        return self._leave_when_drained(now)

    def _leave_when_drained(self, now: float) -> list[Output]:
        if self._drain_until is None or self.machine.is_leaving:
            return []
        if now < self._drain_until and self.broker.is_awaited:
            return []
        if self.machine.is_active:
            self._farewell_until = now + FAREWELL_S
        return self._expand(self.machine.step(Leave(), now), now)

    def has_left(self, now: float) -> bool:
        """After ``Leave``: True if the process may end."""
        return self.machine.has_left(now) and self._farewell_until is None

    def trouble(self, now: float) -> str:
        """Why this node cannot play its part; empty if it can."""
        return self.machine.trouble(now)

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due."""
        deadline = self.broker.next_deadline()
        pairs = self.machine.next_deadline()
        if pairs is not None and pairs < deadline:
            deadline = pairs
        if self._farewell_until is not None and self._farewell_until < deadline:
            return self._farewell_until
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
            elif type(output) is Deactivated:
                expanded += self.broker.deactivate(now)
        if self.broker.ledger.is_suspended and (
            self.machine.peer.state is State.ACTIVE or self.machine.is_leaving
        ):
            expanded += self.broker.release(now)
        return expanded

    # --- for people and monitors ----------------------------------------------------------------------------

    def state(self, now: float) -> NodeState:
        """A snapshot of the node."""
        pair, broker = self._pair_state(now), broker_state(self.broker.ledger, now)
        return NodeState(
            version=self._version,
            pair=pair,
            broker=broker,
            readiness=readiness(pair, is_draining=broker.is_draining),
            loop=self._loop(now) if self._loop is not None else None,
            journal=self._journal() if self._journal is not None else None,
            security=self._security() if self._security is not None else None,
        )

    def _pair_state(self, now: float) -> PairState:
        machine = self.machine
        evidence = machine.evidence(now)
        return PairState(
            pair=machine.settings.pair,
            role=machine.settings.role.value,
            node=machine.node,
            state=machine.state.name,
            is_active=machine.is_active,
            epoch=machine.epoch,
            epoch_seen=machine.epochs.seen,
            peer_state=None if machine.peer.state is None else machine.peer.state.name,
            peer_age_s=None if machine.peer.heard_at is None else round(now - machine.peer.heard_at, 3),
            votes=machine.counters.votes,
            transitions={
                f"{old.name}->{new.name}": count for (old, new), count in machine.counters.transitions.items()
            },
            is_peer_fresh=machine.peer.is_heard(now),
            is_peer_gone=machine.peer.is_gone,
            quorum=self._quorum_state(now),
            peers_gone=machine.counters.peers_gone,
            retry_after_s=machine.retry_after_s(now),
            failover_timeout_s=machine.settings.failover_timeout_s,
            stalls=machine.counters.stalls,
            requests_refused=machine.counters.requests_refused,
            peer_messages=machine.counters.peer_messages,
            peer_ignored={reason.value: count for reason, count in machine.counters.peer_ignored.items()},
            epochs_ignored=machine.epochs.ignored,
            epoch_error=self._epoch_error(),
            is_leaving=machine.is_leaving,
            clients_cut_off=evidence.clients,
            clients_cut_off_unserved=evidence.unserved,
            clients_cut_off_s=round(evidence.for_s, 3),
            cut_off_handovers=machine.cut_off.handovers,
        )

    def _quorum_state(self, now: float) -> QuorumState | None:
        machine, quorum = self.machine, self.machine.quorum
        if quorum is None:
            return None
        return QuorumState(
            arbiter=machine.settings.arbiter,
            has_majority=now < quorum.until,
            is_arbiter_heard=quorum.is_arbiter_there is True,
            is_arbiter_granting=now < quorum.arbiter.until,
            is_peer_granting=now < quorum.peer.until,
            majorities_lost=machine.counters.majorities_lost,
        )
