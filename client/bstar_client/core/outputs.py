"""The outputs of a client's core: small frozen orders to its shell, in sequence."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from bstar.errors import BstarError
from bstar.wire.progress import Progress
from bstar_client.core.calls import Call, Reply
from bstar_client.core.counters import Counters
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


class Report(msgspec.Struct, frozen=True, gc=False):
    """Tell the caller how far its request is. It ends nothing."""

    call: Call
    progress: Progress


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Close the node's socket, with all that is in it, and open a new one."""

    node: int


class Announce(msgspec.Struct, frozen=True, gc=False):
    """Call the observers."""

    event: Event


Output = Send | Deliver | DeliverAll | Fail | Report | Reset | Announce


class ClientCore(Protocol):
    """The interface of every dialect's session. ``node`` is an index into the list of endpoints."""

    @property
    def counters(self) -> Counters:
        """Counts of what happened so far."""
        ...

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call, unless the core has it already."""
        ...

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls; requests for one node may travel as a batch."""
        ...

    def abandon(self, call: Call, now: float) -> list[Output]:
        """No caller waits for this call any more. ``submit`` ignores it, should it come later."""
        ...

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        ...

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[Output]:
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
        """Start over with these calls, which began and have no outcome, on new sockets.

        A shell calls this if it opens its sockets later than it made the core, and after an interrupt stopped
        one of these methods, or its outputs, half way. The rest of the core's state is not trusted. A call
        fails if it may have been executed and must not be sent again. The others are sent again.
        """
        ...

    def close(self, now: float) -> list[Output]:
        """End every outstanding call."""
        ...
