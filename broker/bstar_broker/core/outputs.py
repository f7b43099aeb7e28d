"""The outputs of the broker core: orders to its shell, in sequence.

Outputs of the Binary Star machine travel in the same lists (see ``node``); the shell hands those to the pair.
"""

import msgspec

from bstar import star
from bstar.wire.messages import Request
from bstar_broker.core.records import Bundle


class Send(msgspec.Struct, gc=False):
    """Send these frames through the ROUTER; the first is the routing id.

    If the peer cannot be reached the shell tells the core (``Node.unreachable``).
    """

    frames: list[bytes]


class Dispatch(Send, gc=False):
    """A Send of a request to a worker. If it fails, nothing was delivered (``Node.undelivered``).

    ``item`` is the bundle, or the request by its name in ``WorkerRecord.in_flight``.
    """

    item: bytes | Bundle


class FrontSend(msgspec.Struct, gc=False):
    """Send these frames through a socket of a front. A ROUTER's begin with the peer's routing id there.

    If they cannot be sent the shell tells the core (``Node.front_unsent``). ``is_request``: for a worker.
    """

    front: str
    door: str
    frames: list[bytes]
    is_request: bool = False


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A line for the operator's log."""

    text: str


class OrderReceived(msgspec.Struct, frozen=True, gc=False):
    """Carry out this order, which came with ``user_id``, if its owner may give it (``NetworkOrders``)."""

    request: Request
    user_id: str


class HangUp(msgspec.Struct, frozen=True, gc=False):
    """End the connection with this number (``Origin``): its principal is beyond a bound."""

    connection: int


class StoreOutput(msgspec.Struct, frozen=True, gc=False):
    """Base of what the durable store asks of its shell (``bstar_broker.store.core.events``)."""


class StoreInput(msgspec.Struct, frozen=True, gc=False):
    """Base of what the durable store hears from its shell."""


Output = Send | Dispatch | FrontSend | Notice | OrderReceived | HangUp | StoreOutput | star.Output
