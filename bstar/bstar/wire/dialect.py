"""The interface of every dialect's codec at the broker: one method per message to a worker or client.

A codec is stateless. It returns lists of frames that begin with the routing id, ready for a ROUTER. A method
returns None where the dialect has no such message: plain MDP has no errors, no BUSY and no NOT_ACTIVE, so its
peers then hear nothing.
"""

import enum
from typing import Protocol

from bstar.wire.messages import NodeStatus

# A frame larger than any batch may be a read-only memoryview (``bstar.net.sockets.receive_bodies``). Codecs
# use only what bytes and views share, and pass it on.
Frames = list[bytes]
Envelope = tuple[bytes, ...]


class Dialect(enum.IntEnum):
    """How a peer speaks: on the broker's ROUTER socket, in its own process (STORE), or through a front."""

    MDP01 = 1
    MDP02 = 2
    NATIVE = 3
    FRONT = 4
    STORE = 5


class Asker(Protocol):
    """Where the answers to a request go. ``sender`` is a routing id, ``envelope`` goes back as it came."""

    sender: bytes
    envelope: Envelope
    identity: bytes


class WorkRequest(Protocol):
    """A request as a worker gets it, with its client's routing id (MDP)."""

    sender: bytes
    body: Frames
    extensions: bytes


class ClientCodec(Protocol):
    """The broker's side of one dialect, towards clients."""

    dialect: Dialect
    label: str
    # True if a client of this dialect takes PARTIALs. (A REQ client takes one reply and loses the rest.)
    is_streaming: bool
    # True if it has NOT_ACTIVE: a client learns that the node stops serving.
    gets_not_active: bool

    def partial(
        self, asker: Asker, service: bytes, epoch: int, index: int, body: Frames, header: bytes
    ) -> Frames | None:
        """Pass the ``index``-th PARTIAL on to the client; ``header`` is a native worker's own, or empty."""

    def final(
        self, asker: Asker, service: bytes, epoch: int, partials: int, body: Frames, header: bytes
    ) -> Frames | None:
        """Pass the last reply on to the client, after ``partials`` PARTIALs; ``header`` as in ``partial``."""

    def failure(self, asker: Asker, epoch: int, code: int, text: bytes) -> Frames | None:
        """Tell the client that its request ended without a reply, and why (``ErrorCode``)."""

    def declined(self, asker: Asker, service: bytes, epoch: int, text: bytes, data: bytes) -> Frames | None:
        """Tell the client that the handler declined its request; ``text`` is as ``wire.declined`` has it."""

    def busy(self, asker: Asker, epoch: int, retry_after_ms: int, text: bytes) -> Frames | None:
        """Tell the client that its request was not accepted, and when to try again."""

    def not_active(self, asker: Asker, status: NodeStatus, was_dispatched: bool) -> Frames | None:
        """Tell the client that this node does not answer for its request."""


class BrokerCodec(ClientCodec, Protocol):
    """Both sides of one dialect. ``to`` is a worker's routing id."""

    def final(
        self, asker: Asker, service: bytes, epoch: int, partials: int, body: Frames, header: bytes
    ) -> Frames:
        """Every dialect has an answer."""

    def request(
        self,
        to: bytes,
        envelope: Envelope,
        request: WorkRequest,
        identity: bytes,
        ttl_ms: int,
        epoch: int,
        is_redelivered: bool,
    ) -> Frames:
        """Dispatch the request to a worker; ``identity`` is its name in the native dialect."""

    def welcome(
        self, to: bytes, envelope: Envelope, status: NodeStatus, heartbeat_ms: int, expiry_ms: int
    ) -> Frames | None:
        """Confirm a worker's registration."""

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames:
        """Tell a worker that this node, in ``state``, is alive."""

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames:
        """Tell a worker to send nothing more on this connection, and why (``Reason``)."""
