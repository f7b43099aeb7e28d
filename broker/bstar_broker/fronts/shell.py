"""The sockets of a node's fronts."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, cast

import zmq

from bstar.base.closing import Closing
from bstar.errors import ConfigurationError
from bstar.net.io_threads import keep_apart
from bstar.net.listener import Listener
from bstar.net.origins import DESCRIPTOR
from bstar.net.reactor import Reactor
from bstar.net.sockets import NoMemoryError, new_router, receive_bodies, send, set_up_listener
from bstar.security.zap import Rule, uses_services
from bstar.wire.refusals import MEMORY_UNREAD
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.outputs import FrontSend, Output
from bstar_broker.fronts.plan import Door, Plan

if TYPE_CHECKING:
    from bstar.net.curve import Gate

_KINDS = {"router": zmq.ROUTER, "dealer": zmq.DEALER, "pub": zmq.PUB}
_LINGER_MS = 500
# Of one connection. With keys libzmq counts the user id among them for ever: with 1, no message would come.
_UNREAD_MAX = 10_000
# A PUB reads subscriptions alone: prefixes of topics.
_SUBSCRIPTION_BYTES_MAX = 65_536


class _Peers:
    """Which connection of a ROUTER each peer has. Every message names its descriptor.

    A connection has one routing id. A descriptor belongs to another connection only after the listener's
    monitor has reported the end of the first.
    """

    def __init__(self) -> None:
        self._by_descriptor: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}

    def heard(self, routing_id: bytes, descriptor: int, listener: Listener) -> None:
        """A message of this peer came over this connection. One that has ended is not noted."""
        if self._by_descriptor.get(descriptor) == routing_id:
            return
        listener.catch_up()
        if descriptor in listener.open:
            self.ended(descriptor)
            self._by_descriptor[descriptor] = routing_id
            self._descriptors[routing_id] = descriptor

    def ended(self, descriptor: int) -> bytes | None:
        """The peer whose connection has ended; None if it never spoke or has another connection now."""
        routing_id = self._by_descriptor.pop(descriptor, None)
        if routing_id is None or self._descriptors.get(routing_id) != descriptor:
            return None
        del self._descriptors[routing_id]
        return routing_id


class FrontShell(Closing):
    """Binds the doors of the fronts, hands on what comes in, and sends what the fronts say.

    ``carry_out`` gets what follows from an input. In the reactor's thread. ConfigurationError if a door
    cannot be bound.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        node: FrontedNode,
        carry_out: Callable[[Sequence[Output]], None],
        *,
        reactor: Reactor,
        context: "zmq.Context[zmq.Socket[bytes]]",
        gate: "Gate | None",
        frame_bytes_max: int,
    ) -> None:
        self._node = node
        self._carry_out = carry_out
        self._reactor = reactor
        self._gate = gate
        self._sockets: dict[tuple[str, str], zmq.Socket[bytes]] = {}
        self._listeners: dict[tuple[str, str], Listener] = {}
        self._peers: dict[tuple[str, str], _Peers] = {}
        # Doors with a rule of their own, and the keys that may enter there.
        self._guarded: dict[tuple[str, str], tuple[Rule, frozenset[str]]] = {}
        self._descriptor = -1
        if gate is not None:
            gate.security.on_change(lambda _: self._on_principals())
        with ExitStack() as resources:
            self._resources = resources
            for plan in plans:
                for door in plan.doors:
                    self._open(context, plan.name, door, frame_bytes_max)
            self._resources = resources.pop_all()

    def _open(
        self, context: "zmq.Context[zmq.Socket[bytes]]", front: str, door: Door, frame_bytes_max: int
    ) -> None:
        place, gate = (front, door.name), self._gate
        domain = f"bstar.fronts.{front}.{door.name}".encode()
        socket = new_router(context) if door.kind == "router" else context.socket(_KINDS[door.kind])
        self._resources.callback(socket.close)
        keep_apart(socket, 0)
        set_up_listener(socket)
        socket.linger = _LINGER_MS
        socket.sndhwm = door.queue_max
        socket.rcvhwm = _UNREAD_MAX
        socket.maxmsgsize = frame_bytes_max
        if door.kind == "pub":
            socket.maxmsgsize = min(_SUBSCRIPTION_BYTES_MAX, frame_bytes_max)
            socket.set(zmq.XPUB_NODROP, 1)
        if door.kind == "router":
            socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.ROUTER_HANDOVER, self._gate is None)
        if gate is not None:
            # Loaded with a key only.
            from bstar.net.zap_socket import serve  # noqa: PLC0415

            serve(socket, gate.security.key, domain)
        try:
            listener = Listener(self._reactor, socket, door.endpoint, is_keyed=gate is not None)
        except zmq.ZMQError as error:
            raise ConfigurationError(
                f"{door.key}: cannot bind {door.endpoint}: {error.strerror}. Does another node run here, or "
                "is the address not one of this machine?"
            ) from error
        self._resources.callback(listener.close)
        if gate is not None:
            assert self._node.authority is not None
            quotas = self._node.authority.quotas
            rule = door.may_enter or uses_services
            gate.guard(listener, domain, rule, on_ended=quotas.ended, why_not=quotas.why_not)
            if door.may_enter is not None:
                self._guarded[place] = door.may_enter, gate.security.principals.keys_of(door.may_enter)
        self._sockets[place], self._listeners[place] = socket, listener
        self._peers[place] = _Peers()
        listener.add_follower(lambda event, descriptor: self._on_connection(place, descriptor))
        if door.kind != "pub":
            read = partial(self._read, partial(self._look, domain))
            self._reactor.add_reader(socket, partial(self._on_message, place), read=read)
            self._resources.callback(lambda: self._reactor.remove(socket))

    def _look(self, domain: bytes, frame: zmq.Frame) -> None:
        if self._gate is not None:
            self._gate.look(frame, domain)
        try:
            self._descriptor = int(cast("str", frame.get(DESCRIPTOR)))
        except zmq.ZMQError:
            self._descriptor = -1

    def _read(self, look: Callable[[zmq.Frame], None], socket: "zmq.Socket[bytes]") -> list[bytes]:
        if socket.type != zmq.ROUTER:
            parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            look(parts[0])
            return [part.bytes for part in parts]
        while True:
            try:
                return receive_bodies(socket, look)
            except NoMemoryError as error:
                text = f"at a front; {len(error.frames)} frames of it were read"
                self._carry_out(self._node.note(MEMORY_UNREAD.reason, f"{MEMORY_UNREAD.text}: {text}"))

    def _on_message(self, place: tuple[str, str], frames: list[bytes], now: float) -> None:
        listener = self._listeners[place]
        if self._sockets[place].type == zmq.ROUTER:
            self._peers[place].heard(frames[0], self._descriptor, listener)
        user_id = "" if self._gate is None else self._gate.user_id
        self._carry_out(self._node.receive_front(*place, frames, now, user_id))

    def _on_connection(self, place: tuple[str, str], descriptor: int) -> None:
        now = self._reactor.now()
        gone = self._peers[place].ended(descriptor)
        if gone is not None:
            self._carry_out(self._node.front_peer_gone(*place, gone, now))
        self._carry_out(self._node.front_connected(*place, len(self._listeners[place].open), now))

    def _on_principals(self) -> None:
        """Ends all connections of a door when somebody may enter no more: nothing tells which are his.

        The others connect again.
        """
        assert self._gate is not None
        for place, (may_enter, before) in self._guarded.items():
            keys = self._gate.security.principals.keys_of(may_enter)
            self._guarded[place] = may_enter, keys
            if not before <= keys:
                self._listeners[place].hang_up_all()

    def send(self, output: FrontSend, refused: set[object]) -> list[Output]:
        """Send it; what follows if that is impossible.

        ``refused``: workers that could not take a request in this turn. They get no later one of it: another
        worker has it. A PUB without room for one subscriber sends it to the others: no subscriber holds the
        rest up.
        """
        socket = self._sockets[output.front, output.door]
        worker = (output.front, output.door, output.frames[0]) if output.is_request else None
        try:
            if worker in refused:
                raise zmq.Again
            send(socket, output.frames)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            if socket.type == zmq.PUB:
                socket.set(zmq.XPUB_NODROP, 0)
                send(socket, output.frames)
                socket.set(zmq.XPUB_NODROP, 1)
            if worker is not None:
                refused.add(worker)
            is_gone = error.errno == zmq.EHOSTUNREACH
            return self._node.front_unsent(output, self._reactor.now(), is_gone=is_gone)
        return []

    def endpoint(self, front: str, door: str) -> str:
        """Where a door is bound."""
        return cast("bytes", self._sockets[front, door].last_endpoint).decode().rstrip("\0")

    def close(self) -> None:
        """Close the doors. Idempotent."""
        self._resources.close()
