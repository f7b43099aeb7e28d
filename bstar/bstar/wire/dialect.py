"""What every dialect's codec offers a broker: one way to say each thing to a worker or to a client.

A codec is stateless. Messages come out as lists of frames that begin with the routing id, ready for a ROUTER.
A method that returns None says that the dialect has no word for it: plain MDP knows no errors, no BUSY and
no NOT_ACTIVE, and its peers then hear nothing.
"""

import enum
from typing import Protocol

from bstar.wire.messages import NodeStatus

__all__ = ["BrokerCodec", "Dialect", "Envelope", "Frames"]

Frames = list[bytes]
Envelope = tuple[bytes, ...]


class Dialect(enum.IntEnum):
    """The protocols that share the broker's ROUTER socket."""

    MDP01 = 1
    MDP02 = 2
    NATIVE = 3


class BrokerCodec(Protocol):
    """The broker's side of one dialect. ``to`` is a routing id, ``envelope`` goes back as it came."""

    dialect: Dialect
    label: str
    # May a client of this dialect be sent PARTIALs? (A REQ client takes one reply and loses the rest.)
    is_streaming: bool

    def request(
        self,
        to: bytes,
        envelope: Envelope,
        address: bytes,
        identity: bytes,
        body: Frames,
        ttl_ms: int,
        epoch: int,
        is_redelivered: bool,
        extensions: bytes,
    ) -> Frames: ...

    def welcome(
        self, to: bytes, envelope: Envelope, status: NodeStatus, heartbeat_ms: int, expiry_ms: int
    ) -> Frames | None: ...

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames: ...

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames: ...

    def partial(
        self,
        to: bytes,
        envelope: Envelope,
        service: bytes,
        identity: bytes,
        epoch: int,
        index: int,
        body: Frames,
        header: bytes,
    ) -> Frames: ...

    def final(
        self,
        to: bytes,
        envelope: Envelope,
        service: bytes,
        identity: bytes,
        epoch: int,
        partials: int,
        body: Frames,
        header: bytes,
    ) -> Frames: ...

    def failure(
        self, to: bytes, envelope: Envelope, identity: bytes, epoch: int, code: int, text: bytes
    ) -> Frames | None: ...

    def busy(
        self, to: bytes, envelope: Envelope, identity: bytes, epoch: int, retry_after_ms: int, text: bytes
    ) -> Frames | None: ...

    def not_active(
        self, to: bytes, envelope: Envelope, identity: bytes, status: NodeStatus, was_dispatched: bool
    ) -> Frames | None: ...
