"""The durable store as the node sees it (``bstar_broker.store.core.durable``)."""

from typing import Protocol

from bstar.security.principals import Principal
from bstar.wire.messages import Request, Requests
from bstar_broker.core.outputs import Output, StoreInput
from bstar_broker.core.snapshot import StoreState


class Store(Protocol):
    """Requests that survive this process. It is the broker's client: it gives it work like any other."""

    # Its services, and how the names begin that belong to it.
    services: tuple[bytes, ...]
    prefixes: tuple[bytes, ...]

    @property
    def trouble(self) -> str:
        """Why it does not lead although the node serves; "" otherwise."""

    @property
    def is_storing(self) -> bool:
        """True while the ends of attempts are on their way to the disks."""

    def receive(self, message: Request | Requests, principal: Principal | None, now: float) -> list[Output]:
        """Handle a durable operation of a client, which this node may serve. No principal: no keys."""

    def forget(self, request: bytes) -> bool:
        """Forget this request, whatever its state and owner; False if the store cannot do so now."""

    def hear(self, given: StoreInput, now: float) -> list[Output]:
        """Handle an answer of the disk or a message of the peer."""

    def settle(self, now: float) -> list[Output]:
        """Handle what has become of its requests at the broker, and what follows from all inputs so far."""

    def lead(self, epoch: int, now: float) -> list[Output]:
        """The node serves from now on."""

    def follow(self, now: float) -> list[Output]:
        """The node serves no more."""

    def peer_serves(self, now: float) -> list[Output]:
        """The peer says that it serves."""

    def force(self, now: float) -> list[Output]:
        """An operator says that the store goes on from this node's copy, whatever the other one has."""

    def handle_timer(self, now: float) -> list[Output]:
        """A deadline may have passed."""

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""

    def state(self, now: float) -> StoreState:
        """A snapshot."""
