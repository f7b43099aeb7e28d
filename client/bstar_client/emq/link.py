"""The connection of an EventMQ client or job manager to its router, in a reactor."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import zmq

from bstar.base.closing import Closing
from bstar.net.reactor import Reactor
from bstar.security import Security
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.core.emq.manager import Close, Open, Send
from bstar_client.emq.sockets import Dealer

OutputT = TypeVar("OutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)

# Messages that are read before anything else has its turn.
_BURST_MAX = 200


class Machine(Protocol[OutputT_co]):
    """A conversation with routers: ``EmqCalls`` or ``ManagerSession``."""

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` is due."""

    def handle_timer(self, now: float) -> Sequence[OutputT_co]:
        """It is due."""

    def connected(self, now: float) -> Sequence[OutputT_co]:
        """The connection is there."""

    def lost(self, reason: str, now: float) -> Sequence[OutputT_co]:
        """The connection is of no use any more."""

    def receive(self, frames: Sequence[bytes], now: float) -> Sequence[OutputT_co]:
        """A message has come."""


class RouterLink(Closing, Generic[OutputT]):
    """Opens, reads and closes the one connection that the machine wants, in the reactor's thread.

    ``perform`` gets the machine's outputs, except Open and Send; Close when the socket is closed. ``full``
    counts messages that found no room in the socket, ``opened`` connections.
    """

    def __init__(
        self,
        reactor: Reactor,
        machine: Machine[OutputT],
        perform: Callable[[OutputT, float], None],
        *,
        security: Security | None,
        linger_ms: int,
    ) -> None:
        self.full = 0
        self.opened = 0
        self._reactor = reactor
        self._machine = machine
        self._perform = perform
        self._security = security
        self._linger_ms = linger_ms
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer: Dealer | None = None
        reactor.add_machine(machine.next_deadline, lambda now: self.carry_out(machine.handle_timer(now), now))

    def carry_out(self, outputs: Sequence[OutputT], now: float) -> None:
        """Do what the machine wants, in this order."""
        for output in outputs:
            match output:
                case Send(frames):
                    if self._dealer is not None and not self._dealer.send(frames):
                        # A full queue is a dead connection, and libzmq's probe tells so.
                        self.full += 1
                case Open(router, identity):
                    try:
                        self._open(router, identity)
                    except zmq.ZMQError as error:
                        self.carry_out(self._machine.lost(f"no socket: {error.strerror}", now), now)
                case Close():
                    self._shut()
                    self._perform(output, now)
                case _:
                    self._perform(output, now)

    def close(self) -> None:
        """Free socket and context. Idempotent."""
        self._shut()
        self._context.term()

    def _open(self, router: str, identity: bytes) -> None:
        self._dealer = dealer = Dealer(
            self._context,
            router,
            identity,
            security=self._security,
            attempt=self.opened,
            linger_ms=self._linger_ms,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
        self.opened += 1
        self._reactor.add_source(dealer.monitor, lambda now: self._on_monitor(dealer, now))
        self._reactor.add_source(dealer.socket, lambda now: self._on_readable(dealer, now))

    def _shut(self) -> None:
        if self._dealer is not None:
            self._reactor.remove(self._dealer.monitor)
            self._reactor.remove(self._dealer.socket)
            self._dealer.close()
            self._dealer = None

    def _on_readable(self, dealer: Dealer, now: float) -> None:
        for _ in range(_BURST_MAX):
            frames = dealer.receive() if dealer is self._dealer else None
            if frames is None:
                return
            self.carry_out(self._machine.receive(frames, now), now)

    def _on_monitor(self, dealer: Dealer, now: float) -> None:
        while dealer is self._dealer and (is_connected := dealer.connection()) is not None:
            if is_connected:
                self.carry_out(self._machine.connected(now), now)
            else:
                self.carry_out(self._machine.lost("the connection broke or was refused", now), now)
