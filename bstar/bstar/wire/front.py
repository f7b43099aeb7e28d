"""What the broker says to a peer behind a front, before the front puts it into that peer's own frames.

A front speaks a protocol on sockets of its own. To the broker its peers are clients and workers of the
dialect FRONT, whose codec this is. The frames are no wire format: they never leave the process.

    [peer] [order as MessagePack] [envelope…] [body…]
"""

import enum
from typing import Any

import msgspec

from bstar.wire.dialect import Asker, Dialect, Envelope, Frames, WorkRequest
from bstar.wire.messages import ErrorCode, NodeStatus


class Verb(enum.Enum):
    """To workers: REQUEST, WELCOME, HEARTBEAT, DISCONNECT. To clients: the others."""

    REQUEST = 1
    WELCOME = 2
    HEARTBEAT = 3
    DISCONNECT = 4
    PARTIAL = 5
    FINAL = 6
    FAILURE = 7
    BUSY = 8
    NOT_ACTIVE = 9


class Order(msgspec.Struct, omit_defaults=True):
    """One message of the broker to ``peer``.

    ``envelope`` is what the peer's Request or Ready had. ``identity`` names the request, in REQUEST and in
    answers. ``code``: of FAILURE an ErrorCode, of DISCONNECT a Reason. ``text``: of FAILURE and BUSY.
    ``retry_after_ms``: of BUSY. ``ttl_ms``: how long the client of a REQUEST still waits, 0 if unknown.
    """

    verb: Verb
    identity: bytes = b""
    epoch: int = 0
    ttl_ms: int = 0
    is_redelivered: bool = False
    code: int = 0
    text: str = ""
    retry_after_ms: int = 0
    was_dispatched: bool = False
    envelope_frames: int = 0
    peer: bytes = b""
    envelope: Envelope = ()
    body: list[bytes] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Order).decode


def decode(frames: Frames) -> Order:
    """Read an order of the broker."""
    order = _decode(frames[1])
    at = 2 + order.envelope_frames
    order.peer, order.envelope, order.body = frames[0], tuple(frames[2:at]), frames[at:]
    return order


def _frames(to: bytes, envelope: Envelope, body: Frames, verb: Verb, **fields: Any) -> Frames:
    order = Order(verb, envelope_frames=len(envelope), **fields)
    return [to, _encode(order), *envelope, *body]


# libzmq lets no peer choose a routing id that begins with a zero, and the ids it makes have 5 bytes. So no
# peer of the broker's own socket can have such a name.
_PREFIX = b"\0front "


def peer_id(front: str, door: str, routing_id: bytes) -> bytes:
    """The broker's name for the peer with this routing id at a front's door."""
    return b"%b%b %b %b" % (_PREFIX, front.encode(), door.encode(), routing_id)


def split_peer_id(peer: bytes) -> tuple[str, str, bytes]:
    """Front, door and routing id of a peer."""
    _, front, door, routing_id = peer.split(b" ", 3)
    return front.decode(), door.decode(), routing_id


def is_behind_front(routing_id: bytes) -> bool:
    """True if this is a ``peer_id``."""
    return routing_id.startswith(_PREFIX)


class FrontCodec:
    """A ``BrokerCodec`` for peers behind fronts."""

    dialect = Dialect.FRONT
    label = "front"
    is_streaming = False
    # A request at a worker is answered when the worker answers, as with plain MDP.
    gets_not_active = False

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
        """REQUEST: its final reply names ``identity``."""
        fields = {"identity": identity, "ttl_ms": ttl_ms, "epoch": epoch, "is_redelivered": is_redelivered}
        return _frames(to, envelope, request.body, Verb.REQUEST, **fields)

    def welcome(
        self, to: bytes, envelope: Envelope, status: NodeStatus, heartbeat_ms: int, expiry_ms: int
    ) -> Frames:
        """WELCOME: the worker is registered."""
        return _frames(to, envelope, [], Verb.WELCOME, epoch=status.epoch)

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames:
        """HEARTBEAT, in the interval that the worker's ``Ready`` names."""
        return _frames(to, envelope, [], Verb.HEARTBEAT, epoch=epoch)

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames:
        """DISCONNECT: the worker is not registered any more."""
        return _frames(to, envelope, [], Verb.DISCONNECT, code=reason, epoch=epoch)

    def partial(
        self, asker: Asker, service: bytes, epoch: int, index: int, body: Frames, header: bytes
    ) -> Frames:
        """PARTIAL: the broker holds these back, because no front's client takes them."""
        return _frames(asker.sender, asker.envelope, body, Verb.PARTIAL, identity=asker.identity, epoch=epoch)

    def final(
        self, asker: Asker, service: bytes, epoch: int, partials: int, body: Frames, header: bytes
    ) -> Frames:
        """FINAL: the answer."""
        return _frames(asker.sender, asker.envelope, body, Verb.FINAL, identity=asker.identity, epoch=epoch)

    def failure(self, asker: Asker, epoch: int, code: int, text: bytes) -> Frames:
        """FAILURE: there will be no answer."""
        fields = {"identity": asker.identity, "code": code, "text": bytes(text).decode("utf-8", "replace")}
        return _frames(asker.sender, asker.envelope, [], Verb.FAILURE, epoch=epoch, **fields)

    def declined(self, asker: Asker, service: bytes, epoch: int, text: bytes, data: bytes) -> Frames:
        """FAILURE: no front's dialect knows more."""
        return self.failure(asker, epoch, ErrorCode.HANDLER_FAILED, text)

    def busy(self, asker: Asker, epoch: int, retry_after_ms: int, text: bytes) -> Frames:
        """BUSY: the broker did not take the request."""
        fields = {"identity": asker.identity, "text": bytes(text).decode("utf-8", "replace")}
        return _frames(
            asker.sender, asker.envelope, [], Verb.BUSY, epoch=epoch, retry_after_ms=retry_after_ms, **fields
        )

    def not_active(self, asker: Asker, status: NodeStatus, was_dispatched: bool) -> Frames:
        """NOT_ACTIVE: this node does not answer for the request."""
        fields = {"identity": asker.identity, "was_dispatched": was_dispatched}
        return _frames(asker.sender, asker.envelope, [], Verb.NOT_ACTIVE, epoch=status.epoch, **fields)


CODEC = FrontCodec()
