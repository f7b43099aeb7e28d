"""A broker process: the production ``Node``, and what its shell does (server.py, pair/, net/reactor.py)."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol

import msgspec

from bstar.errors import PairError, RemoteProtocolError
from bstar.pair.shell import LAST_WORD_S
from bstar.security import Principal
from bstar.settings.timing import Timing
from bstar.star import (
    Activated,
    ArbiterAnswer,
    AskArbiter,
    Deactivated,
    Fatal,
    Handover,
    Leave,
    LinkLost,
    PeerGarbage,
    PeerMessage,
    PeerRefused,
    PersistEpoch,
    Promotion,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    StateChanged,
    Subscription,
    Tick,
    Vote,
)
from bstar.star.settings import OnDualActive
from bstar.wire import arbiter, peer
from bstar.wire.limits import FRAMES_MAX, MESSAGE_BYTES_MAX
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Dispatch, Node, Output, Send, StoreOutput
from bstar_broker.core.front import Front, Inlet
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.outputs import FrontSend, StoreInput
from bstar_broker.fronts.emq.desk import SUBSCRIBERS, Desk, EmqSettings
from bstar_broker.fronts.emq.front import EmqFront
from bstar_broker.fronts.ppp.machine import PirateFront, PirateSettings
from bstar_broker.journal import NodeJournal
from sim.arbiter import ArbiterLink
from sim.emq import EXPIRY_S, HEARTBEAT_S
from sim.keys import KeyList, View, read_after_s
from sim.network import Connection, Frames, Link
from sim.peer_link import PeerLink
from sim.recorder import Recorder
from sim.store import SimDisk
from sim.world import Process, World

# What a supervisor waits before it starts a process again that ended with an error.
RESTART_MIN_S = 0.1
RESTART_MAX_S = 1.0
_VACANT_MAX = 8


class NodeWatcher(Protocol):
    """Who is told what nodes do."""

    def node_heard(self, node: SimNode, frames: Frames) -> None:
        """A message of a client or worker has reached it."""

    def node_handles(self, node: SimNode, message: Frames, user_id: str) -> None:
        """It is about to handle that message, in a run with keys; the routing id comes first."""

    def node_handled(self, node: SimNode, user_id: str) -> None:
        """It has handled that message, in a run with keys."""

    def node_sent(self, node: SimNode, connection: Connection, message: Send) -> None:
        """It sends a message by this connection, in a run with keys."""

    def node_activated(self, node: SimNode, epoch: int) -> None:
        """It serves."""

    def node_changed(self, node: SimNode) -> None:
        """Whether it serves may have changed."""

    def node_dispatched(self, node: SimNode, worker: bytes) -> None:
        """It gives a request to the worker with this routing id."""

    def node_published(self, node: SimNode, token: bytes) -> None:
        """It hands a publication to its subscribers."""

    def node_leased(self, node: SimNode) -> None:
        """It may serve for longer than before."""

    def node_refused_by_pipe(self, peer: str) -> None:
        """A message did not fit into the pipe of a connection to this client or worker."""

    def node_failed(self, node: SimNode, error: PairError) -> None:
        """It ended with an error."""


class SimNode(Process):
    """One node of the pair over all its runs. ``disk`` is what its state directory keeps, None without."""

    def __init__(
        self,
        world: World,
        role: Role,
        timing: Timing,
        limits: BrokerSettings,
        watcher: NodeWatcher,
        *,
        name: str,
        is_durable: bool,
        on_dual_active: OnDualActive = "yield",
        pipe_max: float = math.inf,
        keys: KeyList | None = None,
        fronts: Sequence[str] = (),
    ) -> None:
        super().__init__(world, name)
        self.role = role
        # The list of principals as it was read last; None without keys.
        self.view: View | None = None
        self._keys = keys
        self._fronts = fronts
        # Routing ids of connections that have just ended.
        self.vacant: deque[bytes] = deque(maxlen=_VACANT_MAX)
        self.on_dual_active = on_dual_active
        self.disk: int | None = 0 if is_durable else None
        self.router: dict[bytes, Connection] = {}
        # Fronts and doors, by the routing ids of those who came through them.
        self._doors: dict[bytes, str] = {}
        # Until when the keepalives of workers stand, by their routing ids.
        self.keepalives: dict[bytes, float] = {}
        self.publisher: PeerLink
        self.subscriber: PeerLink
        self.node: Node
        self.journal: NodeJournal
        self.recorder: Recorder
        # Half of the runs record a sample of their requests.
        self._sample = 0.5 if world.seed % 2 else 1.0
        # None without a durable store.
        self.store_disk: SimDisk | None = None
        # None without an arbiter.
        self.arbiter_link: ArbiterLink | None = None
        self._pipe_max = pipe_max  # messages that fit into one connection's pipe
        self._timing = timing
        self._limits = limits
        self._watcher = watcher
        self._stall_limit_s = timing.heartbeat_interval_s / 2
        self._routing_ids = 0
        self._peer_waits: list[Frames | None] = []
        self._arbiter_waits: list[Frames] = []
        self._leased_until = -inf
        self._router_waits: list[tuple[bytes, Frames, str]] = []
        self._subscriptions = 0
        self._turned_at = 0.0
        self._seen_at: float | None = None  # set while the loop may be away
        self._stop_by: float | None = None
        self._pause_in_burst_s = 0.0
        # It cannot go on, and stays until then to be heard.
        self._ends_at: float | None = None
        self._last_word: Frames = []
        # After a switched-off host comes back, its kernel resets what the others believe to have with it.
        self._orphans: list[Connection] = []

    @property
    def is_serving(self) -> bool:
        """Whether requests that arrive now are served."""
        return self.is_awake and self.has_role

    @property
    def has_role(self) -> bool:
        """Whether it would serve if it were asked, awake or not."""
        return self.is_alive and self.node.is_active and self.clock() < self.node.machine.serve_until

    @property
    def _fronted(self) -> FrontedNode:
        assert isinstance(self.node, FrontedNode)
        return self.node

    def _make_fronts(self, inlet: Inlet) -> list[Front]:
        """Those of the run, with the settings that their peers here expect."""
        fronts: list[Front] = []
        if "ppp" in self._fronts:
            pirates = PirateSettings(b"work", 1_000, 3, MESSAGE_BYTES_MAX, FRAMES_MAX)
            fronts.append(PirateFront(inlet, pirates))
        if "emq" in self._fronts:
            has_store = self.store_disk is not None
            settings = EmqSettings(
                heartbeat_s=HEARTBEAT_S, expires_s=EXPIRY_S, has_store=has_store, has_subscribers=True
            )
            desk = Desk(inlet, settings, lambda: self.rng.randbytes(8).hex().encode(), lambda: self.world.now)
            fronts.append(EmqFront(desk, self.rng.randbytes(16)))
        return fronts

    def open_journal(self, node_id: bytes) -> NodeJournal:
        """The journal of this run, which observes it."""
        self.recorder = Recorder(self.role.name.lower(), node_id, self.clock, sample=self._sample)
        return self.recorder.journal

    def look(self) -> None:
        """Somebody asks it for its status and its metrics, and reads its journal."""
        if self.is_awake:
            self.recorder.look(self.node)

    # --- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new run."""
        self.boot()
        now = self.clock()
        node_id = self.rng.randbytes(16)
        timing = self._timing
        machine = StarMachine(
            StarSettings(
                pair="simulated",
                role=self.role,
                heartbeat_interval_s=timing.heartbeat_interval_s,
                failover_timeout_s=timing.failover_timeout_s,
                failover_timeout_max_s=timing.failover_timeout_max_s,
                on_dual_active=self.on_dual_active,
                arbiter="simulated" if self.arbiter_link is not None else "",
            ),
            node=node_id.hex(),
            epoch=self.disk or 0,
            now=now,
        )
        make: Callable[..., Node] = Node
        if self._fronts:
            make = partial(FrontedNode, make_fronts=self._make_fronts)
        if self.store_disk is not None:
            make = partial(make, make_store=self.store_disk.make_store)
        journal = self.journal = self.open_journal(node_id)
        self.node = make(
            machine,
            self._limits,
            node_id=node_id,
            drain_timeout_s=timing.drain_timeout_s,
            version="simulated",
            now=now,
            observer=journal,
            find_principal=None if self._keys is None else self._find_principal,
        )
        journal.attach(self.node, lambda: 0.0)
        if self.store_disk is not None:
            self.store_disk.store.observe(journal.durable)
        self.view = None if self._keys is None else self._keys.view()
        self.vacant.clear()
        self.keepalives.clear()
        self._peer_waits.clear()
        self._arbiter_waits.clear()
        self._leased_until = -inf
        self._router_waits.clear()
        self._subscriptions = 0
        self._seen_at = self._stop_by = self._ends_at = None
        self._last_word = []
        self._turned_at = now
        for connection in self._orphans:
            if connection.is_open_at_link:
                self.world.after(self.rng.random(), lambda c=connection: c.to_link.send(None))  # type: ignore[misc]
        self._orphans.clear()
        self.publisher.renew()
        self.subscriber.open()
        if self.store_disk is not None:
            self.store_disk.open()
        self._do(self.node.step(Tick(), now))
        self.arrange()

    def die(self, *, with_host: bool = False) -> None:
        """The process is gone; its kernel closes its connections, unless the host is gone as well."""
        if not self.is_alive:
            self.is_dark = self.is_dark or with_host
            return
        self.world.note(f"{self.name} {'is switched off' if with_host else 'dies'}")
        self.is_alive = self.is_frozen = self.is_stopping = False
        self.release()
        self.is_dark = with_host
        for connection in list(self.router.values()):
            connection.close_at_node(is_silent=with_host)
            if with_host:
                self._orphans.append(connection)
                connection.link.expect_silence()
        if with_host:
            self.publisher.expect_silence()
        else:
            self.publisher.lose_publisher()
        self._watcher.node_changed(self)

    def stop(self) -> None:
        """SIGTERM."""
        if self.is_awake and self._stop_by is None:
            self.world.note(f"{self.name} is asked to stop")
            self.is_stopping = True
            now = self.clock()
            self.journal.stopping(now)
            self._stop_by = now + self._timing.drain_timeout_s + 2 * self._timing.failover_timeout_max_s
            self._turn(lambda: self.node.step(Leave(), now))

    def handover(self) -> None:
        """The operator asks it to give the role away."""
        if self.is_awake:
            self.world.note(f"{self.name} is asked to hand over")
            now = self.clock()
            self._turn(lambda: self.node.step(Handover(), now))

    def promote(self) -> None:
        """The operator vouches that its primary does not run."""
        if self.is_awake:
            self.world.note(f"{self.name} is promoted")
            self._turn(lambda: self.node.step(Promotion(), self.clock()))

    def vote(self) -> None:
        """A client that came from nowhere asks to be served."""
        if self.is_awake:
            self._turn(lambda: self.node.step(Vote(), self.clock()))

    # --- time ---------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """The reactor's: of the machine, of a stop under way, or of an end after an error."""
        due = self.node.next_deadline()
        if self._stop_by is None and self._ends_at is None:
            return due
        return min(at for at in (due, self._stop_by, self._ends_at) if at is not None)

    def on_time(self) -> None:
        """Agenda.fire_due."""
        self._look()
        self._do(self.node.step(Tick(), self.clock()))
        self._end_turn()

    def lose_time(self) -> None:
        """The loop is about to be away: remember until when it meant to sleep (Reactor.turn)."""
        now = self.clock()
        turns = int((now - self._turned_at) / self._stall_limit_s) + 1
        alarm_at = self._turned_at + turns * self._stall_limit_s
        due = self.deadline()
        self._seen_at = alarm_at if due is None else min(alarm_at, max(due, now))

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.is_awake:
            self.lose_time()
            super().freeze()
            for connection in self.router.values():
                connection.link.expect_silence()
            self.publisher.expect_silence()
            self._watcher.node_changed(self)

    def jump(self, seconds: float) -> None:
        """The clock goes ahead while the loop sleeps."""
        if self.is_awake:
            self.lose_time()
            super().jump(seconds)
            self._turn(lambda: ())
            self.arrange()

    def thaw_for_a_moment(self, pause_s: float) -> None:
        """Let it go on, and freeze it again for so long when it has read half of what waits."""
        self._pause_in_burst_s = pause_s
        self.thaw()
        self._pause_in_burst_s = 0.0

    def _pause_in_burst(self, rest: list[tuple[bytes, Frames, str]]) -> None:
        self.freeze()
        self._router_waits = rest
        self.world.after(self._pause_in_burst_s, partial(self._thaw_if, self.runs))

    def _thaw_if(self, run: int) -> None:
        if run == self.runs:
            self.thaw()

    def catch_up(self) -> None:
        """The first turn after a freeze: the stall, what is due, the peer, the clients.

        Whether the peer's words have come in from the kernel before the clients' is up to the scheduler.
        """
        router, self._router_waits = self._router_waits, []
        peers, self._peer_waits = self._peer_waits, []
        answers, self._arbiter_waits = self._arbiter_waits, []
        split = self.rng.randrange(len(router) + 1) if router and self.rng.random() < 0.3 else 0
        self._look()
        for message in router[:split]:
            self._receive(*message)
        self._read_peer(peers)
        for frames in answers:
            self._do(self.node.step(ArbiterAnswer(arbiter.decode_answer(frames)), self.clock()))
        for _ in range(self._subscriptions):
            self._do(self.node.step(Subscription(), self.clock()))
        self._subscriptions = 0
        half = (split + len(router)) // 2 if self._pause_in_burst_s else len(router)
        for message in router[split:half]:
            self._receive(*message)
        self._end_turn()
        self._watcher.node_changed(self)
        if half < len(router) and self.is_alive:
            self._pause_in_burst(router[half:])

    def _look(self) -> None:
        """Reactor._look: tell of a stall before anything else, then serve what is due."""
        now = self.clock()
        if self._seen_at is not None:
            gap_s = now - self._seen_at
            self._seen_at = None
            if gap_s > self._stall_limit_s:
                self.journal.stalled(gap_s, now)
                self._do(self.node.step(Stall(gap_s), now))
            due = self.deadline()
            if due is not None and now >= due:
                self._do(self.node.step(Tick(), now))

    def _turn(self, action: Callable[[], Sequence[Output]]) -> None:
        self._look()
        self._do(action())
        self._end_turn()
        self.arrange()

    def _end_turn(self) -> None:
        self._turned_at = self.clock()
        if self._ends_at is not None and self._turned_at >= self._ends_at and self.is_alive:
            self.die()
            pause_s = self.rng.uniform(RESTART_MIN_S, RESTART_MAX_S)
            self.world.after(pause_s, partial(self._start_again, self.runs))
        elif self._stop_by is not None and self.is_alive:
            now = self._turned_at
            if now >= self._stop_by or self.node.has_left(now):
                self.die()

    def _start_again(self, run: int) -> None:
        """The supervisor's part, unless somebody else has started it or its host is off."""
        if run == self.runs and not self.is_alive and not self.is_dark:
            self.start()

    # --- what arrives -------------------------------------------------------------------------------------

    def accept(self, link: Link) -> Connection | None:
        """Let a client or worker in; None if its key is not listed or another has the routing id it claims.

        The ROUTER of a node with keys does not hand routing ids over.
        """
        is_listed = self.view is None or self.view.is_listed(link.owner.user_id)
        if not is_listed or link.claims in self.router:
            return None
        self._routing_ids += 1
        routing_id = link.claims or b"\0" + self._routing_ids.to_bytes(4, "big")
        if link.door:
            self._doors[routing_id] = link.door
        connection = self.router[routing_id] = Connection(link, routing_id, is_claimed=bool(link.claims))
        return connection

    def forget(self, routing_id: bytes) -> None:
        """The connection with this routing id has ended."""
        if self.router.pop(routing_id, None) is not None:
            self.vacant.append(routing_id)
            if self.is_alive and routing_id in self._doors:
                self.when_it_goes_on(partial(self._lose_front_peer, self.runs, routing_id))

    def _lose_front_peer(self, run: int, routing_id: bytes) -> None:
        """FrontShell._on_connection."""
        if run == self.runs and self.is_awake:
            front, door = self._doors[routing_id].split(".")
            self._turn(lambda: self._fronted.front_peer_gone(front, door, routing_id, self.clock()))

    def hear_router(self, routing_id: bytes, frames: Frames, user_id: str = "") -> None:
        """A message of a client or worker."""
        if self.is_frozen:
            self._router_waits.append((routing_id, frames, user_id))
            return
        if self._seen_at is not None:
            self._look()
        self._receive(routing_id, frames, user_id)
        self._end_turn()
        self.arrange()

    def _receive(self, routing_id: bytes, frames: Frames, user_id: str) -> None:
        self._watcher.node_heard(self, frames)
        if (place := self._doors.get(routing_id)) is not None:
            front, door = place.split(".")
            self._do(self._fronted.receive_front(front, door, [routing_id, *frames], self.clock(), user_id))
            return
        if self.view is None:
            self._do(self.node.receive_frames([routing_id, *frames], self.clock()))
            return
        connection = self.router.get(routing_id)
        if connection is not None and connection.user_id == user_id:
            connection.is_heard = True
        self._watcher.node_handles(self, [routing_id, *frames], user_id)
        self._do(self.node.receive_frames([routing_id, *frames], self.clock(), user_id))
        self._watcher.node_handled(self, user_id)

    def _find_principal(self, user_id: str) -> Principal | None:
        assert self.view is not None
        return self.view.principals.of_user(user_id)

    def list_changed(self) -> None:
        """The list of principals is another one; it is read a little later."""
        if self.is_alive:
            self.world.after(read_after_s(self.rng), partial(self._read_list, self.runs))

    def _read_list(self, run: int) -> None:
        if self.is_frozen:
            self.when_it_goes_on(partial(self._read_list, run))
        elif run == self.runs and self.is_alive:
            assert self._keys is not None
            self.view = self._keys.view()
            self._turn(lambda: self.node.principals_changed(self.clock()))

    def hear_peer(self, frames: Frames | None) -> None:
        """A message of the peer; None if the connection that brought such messages broke."""
        if self.is_frozen:
            self._peer_waits.append(frames)
        elif self.is_alive:
            self._look()
            self._read_peer([frames])
            self._end_turn()
            self.arrange()

    def _read_peer(self, burst: list[Frames | None]) -> None:
        """PairShell._on_peer: of a burst only the newest valid message counts."""
        newest: PeerState | None = None
        for frames in burst:
            if frames is None:
                self._receive_peer(newest)
                newest = None
                self._do(self.node.step(LinkLost(), self.clock()))
                self.subscriber.probe()
                continue
            try:
                newest = peer.decode(frames)
            except RemoteProtocolError as error:
                self._do(self.node.step(PeerGarbage(error), self.clock()))
        self._receive_peer(newest)

    def _receive_peer(self, newest: PeerState | None) -> None:
        if newest is not None:
            self._do(self.node.step(PeerMessage(newest), self.clock()))

    def hear_refusal(self) -> None:
        """The peer's endpoint refused, after the connection to it broke."""
        if self.is_frozen:
            self.when_it_goes_on(self.hear_refusal)
        elif self.is_alive:
            self._turn(lambda: self.node.step(PeerRefused(), self.clock()))

    def hear_arbiter(self, frames: Frames) -> None:
        """An answer of the arbiter."""
        if self.is_frozen:
            self._arbiter_waits.append(frames)
        elif self.is_alive:
            self._turn(lambda: self.node.step(ArbiterAnswer(arbiter.decode_answer(frames)), self.clock()))

    def forge_word(self, lie: int, rng: random.Random) -> None:
        """Somebody tells the peer in this node's name that it serves, or stands by, far above its epoch, and
        sometimes with a number that this node never reaches.

        Of a pair with an arbiter only in the name of another run: whoever can number the claims of a run can
        make the peer grant its ballot for a claim to come, and no rule about epochs helps against that.
        """
        word = peer.decode(self._last_word)
        assert word.epoch is not None
        assert word.seq is not None
        is_new_run = self.arbiter_link is not None or rng.random() < 0.5
        forged = msgspec.structs.replace(
            word,
            epoch=min(word.epoch + lie, 2**63 - 1),
            state=rng.choice((int(State.ACTIVE), int(State.PASSIVE), word.state)),
            node=rng.randbytes(16).hex() if is_new_run else word.node,
            seq=word.seq + rng.choice((1, 2**20, 2**62)),
            claims=False,
        )
        self.publisher.subscriber.hear_peer(peer.encode(forged))

    def hear_store(self, run: int, given: StoreInput) -> None:
        """The disk of the store says this."""
        if run == self.runs and self.is_alive:
            self._turn(lambda: self.node.hear_store(given, self.clock()))

    def hear_subscription(self, run: int) -> None:
        """The peer has connected to our publisher."""
        if run != self.runs or not self.is_alive:
            return
        if self.is_frozen:
            self._subscriptions += 1
        elif self._ends_at is not None:
            self.publisher.publish(self._last_word)
        else:
            self._turn(lambda: self.node.step(Subscription(), self.clock()))

    # --- what goes out ------------------------------------------------------------------------------------

    def _do(self, outputs: Sequence[Output]) -> None:
        if outputs:
            self._carry_out(outputs)
        if self.node.machine.serve_until != self._leased_until:
            self._leased_until = self.node.machine.serve_until
            self._watcher.node_leased(self)

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        """BrokerServer._carry_out: what follows from a message that cannot be sent comes first."""
        pending = deque(outputs)
        while pending:
            output = pending.popleft()
            if isinstance(output, Send):
                if type(output) is Dispatch:
                    self._watcher.node_dispatched(self, output.frames[0])
                pending.extendleft(reversed(self._send(output)))
            elif isinstance(output, FrontSend):
                pending.extendleft(reversed(self._send_through_front(output)))
            elif isinstance(output, StoreOutput):
                assert self.store_disk is not None
                self.store_disk.give(output)
            elif type(output) is Publish:
                self._last_word = peer.encode(output.message)
                self.publisher.publish(self._last_word)
            elif type(output) is AskArbiter:
                assert self.arbiter_link is not None
                self.arbiter_link.ask(output.question)
            else:
                self._note(output)

    def _send(self, message: Send) -> list[Output]:
        """Put it into the pipe of its connection; what the node says if there is none, or no room."""
        routing_id = message.frames[0]
        connection = self.router.get(routing_id)
        is_gone = connection is None
        if connection is not None and connection.waiting_for_link >= self._pipe_max:
            self._watcher.node_refused_by_pipe(connection.link.owner.name)
            connection = None  # which is the same to it
        if connection is not None:
            if self.view is not None:
                self._watcher.node_sent(self, connection, message)
            connection.to_link.send(message.frames[1:])
            return []
        if self.world.now < self.keepalives.get(routing_id, -inf):
            return []  # nobody reads it
        if type(message) is Dispatch:
            return self.node.undelivered(message, self.clock())
        return self.node.unreachable(routing_id, self.clock(), is_gone=is_gone)

    def _send_through_front(self, output: FrontSend) -> list[Output]:
        """As ``_send``, for a front."""
        if output.door == SUBSCRIBERS:
            self._watcher.node_published(self, output.frames[-1])
            return []
        connection = self.router.get(output.frames[0])
        is_gone = connection is None
        if connection is not None and connection.waiting_for_link < self._pipe_max:
            connection.to_link.send(output.frames[1:])
            return []
        if connection is not None:
            self._watcher.node_refused_by_pipe(connection.link.owner.name)
        return self._fronted.front_unsent(output, self.clock(), is_gone=is_gone)

    def _note(self, output: object) -> None:
        self.journal.observe(output)
        match output:
            case PersistEpoch():
                if self.disk is not None:
                    self.disk = output.epoch
            case StateChanged():
                self.world.note(f"{self.name} {output.old.name} -> {output.new.name}: {output.reason}")
            case Activated():
                self.world.note(f"{self.name} active in epoch {output.epoch}")
                self._watcher.node_activated(self, output.epoch)
                self._watcher.node_changed(self)
            case Deactivated():
                self._watcher.node_changed(self)
            case Fatal():
                self.world.note(f"{self.name} fails: {output.error}")
                self._watcher.node_changed(self)
                self._watcher.node_failed(self, output.error)
                self.publisher.publish(self._last_word)
                self._ends_at = self.clock() + LAST_WORD_S
            case _:
                self.world.note(f"{self.name} {type(output).__name__}")
