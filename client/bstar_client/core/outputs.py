"""What a client's core asks its shell to do: small, frozen and ordered."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from bstar.errors import BstarError
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import Event


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send ``frames`` to the node with this index."""

    node: int
    frames: list[bytes]


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Deliver a reply to its caller. A final one ends the call."""

    call: Call
    reply: Reply


class DeliverAll(msgspec.Struct, frozen=True, gc=False):
    """Deliver the final replies of many calls."""

    outcomes: list[tuple[Call, Reply]]


class Fail(msgspec.Struct, frozen=True, gc=False):
    """End the call with an error."""

    call: Call
    error: BstarError


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Close the node's socket, with all that is in it, and open a new one."""

    node: int


class Announce(msgspec.Struct, frozen=True, gc=False):
    """Call the observers."""

    event: Event


Output = Send | Deliver | DeliverAll | Fail | Reset | Announce


class ClientCore(Protocol):
    """What every dialect's session offers its shell. ``node`` is an index into the list of endpoints."""

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call."""
        ...

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls; what goes to the same node may travel together."""
        ...

    def abandon(self, call: Call, now: float) -> list[Output]:
        """Nobody waits for this call any more. ``submit`` ignores it, should it come later."""
        ...

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        ...

    def disconnected(self, node: int, now: float) -> list[Output]:
        """The connection to a node broke, or an attempt to connect failed."""
        ...

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node."""
        ...

    def handle_timer(self, now: float) -> list[Output]:
        """A deadline passed."""
        ...

    def next_deadline(self) -> float | None:
        """When to call ``handle_timer``."""
        ...

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Start over with these calls, which were begun and have no outcome yet.

        An interrupted shell calls this: one of these methods, or the execution of its outputs, stopped half
        way, so nothing else that the core knows is trusted. The shell has new sockets. A call that may have
        been executed and must not be sent again fails; the others are sent again.
        """
        ...

    def close(self, now: float) -> list[Output]:
        """End every outstanding call."""
        ...
