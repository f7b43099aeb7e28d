"""A broker node as a process runs it: the pure ``Node`` on real sockets.

One reactor thread serves the ROUTER socket for clients and workers, the state link to the peer, and every
deadline. The HTTP endpoint has a thread of its own and asks this one for a snapshot. The server decides
nothing: it passes messages to the node and carries out what the node returns, in order.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import zmq

import bstar
from bstar import star
from bstar.base.closing import Closing
from bstar.base.printable import address_text
from bstar.errors import ConfigurationError, PairError
from bstar.host.memory import Memory
from bstar.net.curve import Gate, NodeSecurity
from bstar.net.io_threads import keep_apart, new_context
from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar.net.sockets import NoMemoryError, is_readable, new_router, receive_bodies, send, set_up_listener
from bstar.net.zap_socket import serve
from bstar.pair.epoch_file import EpochFile, EpochKeeper
from bstar.pair.shell import PairLinks, PairShell
from bstar.security.zap import CLIENTS
from bstar.settings import Settings
from bstar.star import Role, StarMachine, StarSettings
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_broker.bounds.connections import HAS_TCP_INFO, Connections, Senders
from bstar_broker.bounds.memory import LOOK_INTERVAL_S, MemoryWatch
from bstar_broker.bounds.unread import COUNTED_BYTES_MIN, Unread
from bstar_broker.core import (
    BrokerSettings,
    Dispatch,
    HangUp,
    Node,
    NodeState,
    Notice,
    Output,
    Send,
    StoreOutput,
)
from bstar_broker.core.findings import FINDINGS_INTERVAL_S
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.outputs import FrontSend, OrderReceived
from bstar_broker.core.settings import services_of
from bstar_broker.core.snapshot import FrontState, ShellState
from bstar_broker.fronts.plan import Plan
from bstar_broker.fronts.plans import plans_of
from bstar_broker.fronts.shell import FrontShell
from bstar_broker.journal import NodeJournal, open_journal, options_of
from bstar_broker.operate.control import ControlSocket, control_path
from bstar_broker.operate.network_orders import NetworkOrders
from bstar_broker.operate.orders import Operator
from bstar_broker.operate.role_history import RoleHistory
from bstar_broker.operate.role_hook import RoleHook
from bstar_broker.operate.shell_state import loop_state, security_state
from bstar_broker.operate.status import StatusServer
from bstar_broker.store.shell import StoreShell

_log = logging.getLogger("bstar.broker")

# A client's pipe has room for the answers to all requests that it may have here, and for this many more. What
# does not fit, PARTIALs for a client that stopped reading, is dropped and counted.
_SPARE_ANSWERS = 10_000
# Before a message of this size is handled, the node sees how much memory is left.
_LARGE_BYTES = 64 << 10
# While a burst is read, so many messages to send wait for each other, for so long. A message that finds
# libzmq's I/O thread asleep wakes it, which costs both threads more than the message does. More gain nothing.
_BURST_MESSAGES = 8
_BURST_S = 0.0005
# How often a node looks for unread replies of workers whose connections are gone.
_LOOKS_PER_HEARTBEAT = 16
# Thousands of clients may come back in the same moment. The kernel takes net.core.somaxconn if that is less.
_LISTEN_BACKLOG = 65_535
# Replies that were sent must leave the process even if it ends right afterwards.
_LINGER_MS = 500


class BrokerServer(Closing):
    """One node, from its settings. ``run`` blocks until it is stopped or the pair cannot go on.

    Raises ConfigurationError when an endpoint cannot be bound or a directory cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._resources = ExitStack()
        self._observers: list[Callable[[star.Output], None]] = []
        # The states of fronts that are processes of their own.
        self.front_processes: list[Callable[[], FrontState]] = []
        try:
            self._open()
        except BaseException:
            self._resources.close()
            raise

    def _open(self) -> None:
        settings, timing = self.settings, self.settings.timing
        self._context = new_context(3)  # I/O threads for what is bound, for the peer, for the arbiter
        self._context.setsockopt(zmq.IPV6, 1)  # of every socket made from it
        self._resources.callback(self._context.destroy, linger=_LINGER_MS)
        self.reactor = Reactor(stop_timeout_s=timing.drain_timeout_s + 2 * timing.failover_timeout_max_s)
        self._resources.callback(self.reactor.close)
        self._started_at = self.reactor.now()
        security = NodeSecurity.of(settings.security)
        if settings.insecure:
            text = "insecure: true: whoever reaches this node may send requests, work and pose as its peer"
            _log.warning(text)
        self._gate = None if security is None else Gate(self._context, self.reactor, security)
        if self._gate is not None:
            self._resources.callback(self._gate.close)
            self._gate.security.on_change(
                lambda _: self._carry_out(self.node.principals_changed(self.reactor.now()))
            )
        # The first frame of the message in hand: it tells where the message comes from. The deque's method
        # costs a third of one of ours, and each message pays for it.
        self._last_frame: deque[zmq.Frame] = deque(maxlen=1)
        self._look = self._last_frame.append if self._gate is None else self._gate.look
        self._stopped_because: str | None = "did not start"
        node_id = os.urandom(16)
        self._epochs = EpochKeeper(EpochFile(settings.state_dir)) if settings.state_dir is not None else None
        if self._epochs is not None:
            self._resources.callback(self._epochs.close)
        plans = plans_of(settings)
        machine = self._make_machine(node_id, plans)
        self._journal = self._open_journal(node_id, machine.epochs.seen)
        self._store = self._open_store()
        self.node = self._make_node(node_id, machine, plans)
        if self._journal is not None:
            if self._store is not None:
                self._store.observe(self._journal.durable)
            self._observers.append(self._journal.observe)
            self._journal.attach(self.node, self.reactor.lag.take_peak_s)
            # Before the pair's own, so that the record of a pause precedes its effects.
            self.reactor.on_stall(timing.heartbeat_interval_s / 2, self._journal.stalled)
            self.reactor.add_timer(settings.journal.interval_s, self._journal.tick)
        # What is wrong is known with its beginning, also if no one asks.
        self.reactor.add_timer(FINDINGS_INTERVAL_S, self._find)
        self._history = self._open_history(machine)
        self._open_hook(machine)
        self._pair = self._open_pair(machine.settings, security)
        self._open_control()
        self._memory = MemoryWatch(self.node.broker.ledger, Memory())
        self._resources.callback(self._memory.close)
        self._memory.begin(settings)
        self.reactor.add_timer(LOOK_INTERVAL_S, self._memory.look)
        self._router = self._open_router()
        self._fronts = self._open_fronts(plans)
        self._status: StatusServer | None = None
        if settings.http.bind is not None:
            self._status = StatusServer(settings.http, self.snapshot)
            self._resources.callback(self._status.close)

    def _open_control(self) -> None:
        pair = self._pair
        operator = Operator(
            self.node,
            self._carry_out,
            self.reactor.now,
            promote=lambda is_trial: pair.promote(is_trial=is_trial),
        )
        self._orders = NetworkOrders(operator, self.settings)
        path = control_path(self.settings)
        control = ControlSocket(self._context, self.reactor, path, operator.answer)
        self._resources.callback(control.close)

    def _open_history(self, machine: StarMachine) -> RoleHistory:
        folder = None if self.settings.state_dir is None else Path(self.settings.state_dir)
        history = RoleHistory(folder, machine, self.reactor.now)
        self._resources.callback(history.close)
        self._observers.append(history.observe)
        self.reactor.add_timer(1.0, partial(self._note_history, history))
        return history

    def _find(self, now: float) -> None:
        self.node.state(now)

    def _note_history(self, history: RoleHistory, now: float) -> None:
        history.note_switchover(self.node.parting.switchover)
        history.note_peer(now)

    def _open_hook(self, machine: StarMachine) -> None:
        if self.settings.hooks.on_role_change is not None:
            hook = RoleHook(self.settings, lambda: machine.epochs.own)
            self._resources.callback(hook.close)
            self._observers.append(hook.observe)

    def _open_pair(self, star: StarSettings, security: NodeSecurity | None) -> PairShell[Output]:
        with _explained("endpoints.state", self.settings.endpoints.state):
            pair = PairShell(
                self.node,
                star,
                PairLinks(
                    local=self.settings.endpoints.state,
                    remote=self.settings.endpoints.peer_state,
                    arbiter=self.settings.endpoints.arbiter,
                    expire_on_refused=self.settings.timing.expire_on_refused,
                    security=security,
                ),
                self._carry_out,
                epochs=self._epochs,
                reactor=self.reactor,
                context=self._context,
            )
        self._resources.callback(pair.close)
        return pair

    def _make_machine(self, node_id: bytes, plans: Sequence[Plan]) -> StarMachine:
        settings, timing = self.settings, self.settings.timing
        fronts = [plan.name for plan in plans]
        if settings.fronts.http.bind is not None:
            fronts.append("http")
        return StarMachine(
            StarSettings(
                pair=settings.pair,
                role=Role(settings.role),
                heartbeat_interval_s=timing.heartbeat_interval_s,
                failover_timeout_s=timing.failover_timeout_s,
                failover_timeout_max_s=timing.failover_timeout_max_s,
                on_dual_active=settings.on_dual_active,
                on_clients_cut_off=settings.on_clients_cut_off,
                arbiter=settings.endpoints.arbiter or "",
                fronts=tuple(fronts),
            ),
            node=node_id.hex(),
            epoch=self._epochs.open() if self._epochs is not None else 0,
            now=self._started_at,
        )

    def _make_node(self, node_id: bytes, machine: StarMachine, plans: Sequence[Plan]) -> Node:
        timing, limits = self.settings.timing, self.settings.limits
        # Their fields have the names of the keys; the core has no use for the others.
        keys = msgspec.structs.asdict(timing) | msgspec.structs.asdict(limits)
        broker_settings = msgspec.convert(keys, BrokerSettings)
        broker_settings.services = services_of(self.settings.services)
        make: Callable[..., Node] = Node
        if plans:
            make = partial(FrontedNode, make_fronts=lambda inlet: [plan.make(inlet) for plan in plans])
        return make(
            machine,
            broker_settings,
            node_id=node_id,
            drain_timeout_s=timing.drain_timeout_s,
            version=bstar.__version__,
            now=self._started_at,
            observer=self._journal,
            find_principal=None if self._gate is None else self._gate.security.find,
            origin=None if self._gate is None else self._gate.origins,
            address=self._address if self._gate is None else self._gate.origins.address,
            shell=self._shell_state,
            make_store=None if self._store is None else self._store.make,
        )

    def _shell_state(self, now: float) -> ShellState:
        return ShellState(
            epoch_error="" if self._epochs is None else self._epochs.error,
            peer_fault=self._pair.peer_fault,
            loop=loop_state(self.reactor, self._listener, now - self._started_at),
            journal=None if self._journal is None else self._journal.state(),
            security=security_state(self._gate),
            history=self._history.latest(),
            peer_history=list(self._history.peer_changes),
            fronts=[state() for state in self.front_processes],
        )

    def _open_journal(self, node_id: bytes, epoch: int) -> NodeJournal | None:
        options = options_of(self.settings)
        if options is None:
            return None
        journal = NodeJournal(
            open_journal(options, self.settings, node_id=node_id, epoch=epoch),
            node_id=node_id,
            clock=self.reactor.now,
        )
        self._resources.callback(lambda: journal.close(self._stopped_because))
        self.reactor.on_stop(journal.stopping, lambda now: True)
        return journal

    def _open_store(self) -> StoreShell | None:
        if self.settings.store.directory is None:
            return None
        with _explained("store.link", self.settings.store.link or ""):
            store = StoreShell(
                self.settings,
                lambda given, now: self._carry_out(self.node.hear_store(given, now)),
                reactor=self.reactor,
                context=self._context,
                gate=self._gate,
            )
        self._resources.callback(store.close)
        return store

    def _open_router(self) -> "zmq.Socket[bytes]":
        socket = new_router(self._context)
        keep_apart(socket, 0)
        set_up_listener(socket)
        socket.linger = _LINGER_MS
        # Without MANDATORY a message to a lost peer vanishes silently (T-07). Without HANDOVER a peer with a
        # fixed identity cannot return before its old connection is found dead (T-03).
        socket.set(zmq.ROUTER_MANDATORY, 1)
        # With CURVE that would let one principal end another's connection and get its replies.
        socket.set(zmq.ROUTER_HANDOVER, self._gate is None)
        socket.sndhwm = self.settings.limits.requests_per_client_max + _SPARE_ANSWERS
        socket.rcvhwm = self._memory.receive_queue()
        # libzmq closes the connection on a frame beyond its limit; the broker answers its own limit with an
        # error.
        frame_bytes_max = max(self.settings.limits.message_bytes_max, MESSAGE_BYTES_MAX)
        socket.maxmsgsize = self._memory.frame_bytes_max(frame_bytes_max)
        socket.backlog = _LISTEN_BACKLOG
        if self._gate is not None:
            serve(socket, self._gate.security.key, CLIENTS)
        self._connections = Connections(self.reactor) if HAS_TCP_INFO else None
        endpoint, gate, node = self.settings.endpoints.clients, self._gate, self.node
        with _explained("endpoints.clients", endpoint):
            self._listener = Listener(self.reactor, socket, endpoint, is_keyed=gate is not None)
        if self._connections is not None:
            self._listener.add_follower(self._connections.follow)
        if gate is not None:
            authority = node.authority
            assert authority is not None
            quotas = authority.quotas
            gate.guard(self._listener, CLIENTS, on_ended=quotas.ended, why_not=quotas.why_not)
        # What the messages of a burst have led to and was not sent yet, and when the first of it came.
        self._unsent: list[Send] = []
        self._unsent_since = 0.0
        self._looks_for_last_words = False
        self.reactor.add_reader(
            socket, self._on_message, keeps_to_itself=True, read=self._read, flush=self._flush
        )
        self._senders = Senders(self._listener, node.broker.ledger.waiting, node.broker.sender_gone)
        self.reactor.add_timer(LOOK_INTERVAL_S, self._senders.look)
        self._unread = Unread(socket, node.broker.ledger.waiting)
        self.reactor.add_timer(LOOK_INTERVAL_S, self._unread.look)
        return socket

    def _open_fronts(self, plans: Sequence[Plan]) -> FrontShell | None:
        if not isinstance(self.node, FrontedNode):
            return None
        fronts = FrontShell(
            plans,
            self.node,
            self._carry_out,
            reactor=self.reactor,
            context=self._context,
            gate=self._gate,
            frame_bytes_max=cast("int", self._router.maxmsgsize),
        )
        self._resources.callback(fronts.close)
        return fronts

    # --- running ------------------------------------------------------------------------------------------

    @property
    def http_url(self) -> str | None:
        """Where /metrics and the probes are served; None without an HTTP endpoint."""
        return self._status.url if self._status is not None else None

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``. Raises PairError when the pair cannot go on. Once."""
        # Stays None if anything but a stop or the pair ends it.
        self._stopped_because = None
        try:
            self._pair.run()
            if self._store is not None and self._store.failure is not None:
                raise self._store.failure
            self._stopped_because = "asked to"
        except PairError as error:
            self._stopped_because = f"this node cannot go on: exit status {error.exit_code}"
            raise
        finally:
            # This comes first, because the rest takes a while. Clients that still ask here see their
            # connection break and go to the other node.
            if self._connections is not None:
                self._connections.close()
            self._listener.close()
            self.reactor.remove(self._router)
            self._router.close()

    def stop(self) -> None:
        """Ask for an orderly stop, from any thread: drain, hand the role over, end."""
        self.reactor.stop()

    def follow(self, settings: Settings) -> None:
        """The configuration was read again, and these settings are in force. For the loop's thread only."""
        self.settings = settings
        self._carry_out(self.node.limits_changed(self.reactor.now()))

    def snapshot(self, timeout_s: float) -> NodeState:
        """The node's state, for other threads. TimeoutError if the loop does not answer in time."""
        future = self.reactor.call_threadsafe(lambda: self.node.state(self.reactor.now()))
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Free sockets, threads and the context. Idempotent, in bounded time."""
        self._resources.close()

    # --- in and out ---------------------------------------------------------------------------------------

    def _read(self, socket: "zmq.Socket[bytes]") -> list[bytes]:
        """The next message. One that does not fit into memory is refused, and the node lives."""
        while True:
            try:
                return receive_bodies(socket, self._look)
            except NoMemoryError as error:
                self._carry_out(self.node.receive_unread(error.frames))

    def _address(self) -> str:
        """Where the message in hand comes from; empty if its transport has no addresses."""
        try:
            return address_text(cast("str", self._last_frame[0].get("Peer-Address")))
        except (IndexError, zmq.ZMQError):
            return ""

    def _on_message(self, frames: list[bytes], now: float) -> bool:
        """True if it used the ROUTER only. What it sends may wait for ``_flush``."""
        if len(frames[-1]) >= _LARGE_BYTES:
            self._memory.arrived(now)
            self._senders.refresh()
        gate = self._gate
        if gate is None and self._senders.is_on:
            self._senders.note(frames[0], self._last_frame[0], now)
        try:
            user_id = "" if gate is None else gate.user_id
            outputs = self.node.receive_frames(frames, now, user_id)
        except MemoryError:
            outputs = self.node.receive_unread(frames)
        unsent = self._unsent
        if not unsent:
            self._unsent_since = now
        for output in outputs:
            if type(output) is Send or type(output) is Dispatch:
                unsent.append(output)
            else:
                self._carry_out(outputs[outputs.index(output) :])
                return False
        if len(unsent) < _BURST_MESSAGES and now < self._unsent_since + _BURST_S:
            return True
        return self._flush()

    def _flush(self) -> bool:
        """Send what waits, in order; True if that used the ROUTER only."""
        unsent = self._unsent
        if not unsent:
            return True
        self._unsent = []
        is_calm = True
        router = self._router
        refused: set[object] = set()
        for output in unsent:
            frames = output.frames
            try:
                if refused and type(output) is Dispatch and frames[0] in refused:
                    raise zmq.Again
                # As ``_send``, without the call: each message pays for it.
                if len(frames[-1]) < COUNTED_BYTES_MIN or type(output) is Dispatch:
                    send(router, frames)
                else:
                    self._unread.send(frames)
            except zmq.ZMQError as error:
                is_calm = False
                self._carry_out(self._on_unsent(output, error, refused))
        return is_calm

    def _send(self, output: Send, refused: set[object]) -> None:
        """``refused``: workers that could not take a request in this turn. They get no later one of it:
        another worker has it.
        """
        if refused and type(output) is Dispatch and output.frames[0] in refused:
            raise zmq.Again
        if len(output.frames[-1]) < COUNTED_BYTES_MIN or type(output) is Dispatch:
            send(self._router, output.frames)
        else:
            self._unread.send(output.frames)

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        """Carry the outputs out in order. What follows from a message that cannot be sent comes first."""
        if self._unsent:
            self._flush()
        pending = deque(outputs)
        refused: set[object] = set()
        while pending:
            output = pending.popleft()
            if isinstance(output, Send):
                try:
                    self._send(output, refused)
                except zmq.ZMQError as error:
                    pending.extendleft(reversed(self._on_unsent(output, error, refused)))
            elif isinstance(output, FrontSend):
                assert self._fronts is not None
                pending.extendleft(reversed(self._fronts.send(output, refused)))
            elif isinstance(output, Notice):
                _log.warning("%s", output.text)
            elif isinstance(output, OrderReceived):
                pending.extendleft(reversed(self._orders.receive(output)))
            elif isinstance(output, HangUp):
                assert self._gate is not None
                self._gate.origins.hang_up(output.connection)
            elif isinstance(output, StoreOutput):
                assert self._store is not None
                self._store.perform(output)
            else:
                for observe in self._observers:
                    observe(output)
                self._pair.perform(output)
        if self._store is not None:
            self._store.hand_over()

    def _on_unsent(self, output: Send, error: zmq.ZMQError, refused: set[object]) -> list[Output]:
        """The peer is gone (EHOSTUNREACH), or its pipe is full (EAGAIN)."""
        if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            raise error
        now = self.reactor.now()
        if type(output) is Dispatch:
            refused.add(output.frames[0])
            follows = self.node.undelivered(output, now)
        else:
            is_gone = error.errno == zmq.EHOSTUNREACH
            follows = self.node.unreachable(output.frames[0], now, is_gone=is_gone)
        if not self._looks_for_last_words:
            self._look_for_last_words(now)
        return follows

    def _look_for_last_words(self, now: float) -> None:
        """While a worker whose connection is gone has requests, look whether its last replies may be unread.

        libzmq refuses to send to it before we have read what it sent.
        """
        self._looks_for_last_words = self.node.broker.unread(now, is_any=is_readable(self._router))
        if self._looks_for_last_words:
            # Several times in the interval of a sweep, which gives its requests away.
            interval_s = self.settings.timing.worker_heartbeat_interval_s / _LOOKS_PER_HEARTBEAT
            self.reactor.call_at(now + interval_s, self._look_for_last_words)


@contextmanager
def _explained(path: str, endpoint: str) -> Iterator[None]:
    """An error that names the key of an endpoint that cannot be bound."""
    try:
        yield
    except zmq.ZMQError as error:
        raise ConfigurationError(
            f"{path}: cannot bind {endpoint}: {error.strerror}. Does another node run here, or is the "
            "address not one of this machine?"
        ) from error
