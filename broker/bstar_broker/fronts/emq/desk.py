"""What the parts of the EventMQ front share: its settings, and how a message leaves it."""

from collections.abc import Callable

import msgspec

from bstar.wire import emq
from bstar.wire.emq_jobs import encode_result
from bstar.wire.front import Order, peer_id, split_peer_id
from bstar_broker.core.front import Inlet
from bstar_broker.core.outputs import FrontSend, Output

NAME = "emq"
CLIENTS = "clients"
WORKERS = "workers"
ADMIN = "admin"
SUBSCRIBERS = "subscribers"


class EmqSettings(msgspec.Struct, frozen=True, kw_only=True):
    """See ``bstar.settings.fronts.EmqOptions``. ``expires_s``: so long a peer may be silent."""

    default_queue: str = "default"
    keeps_unknown_queues: bool = False
    heartbeat_s: float = 3.0
    expires_s: float = 9.0
    job_timeout_s: float = 300.0
    has_external_scheduler: bool = False
    has_store: bool = False
    may_disconnect: bool = False
    has_subscribers: bool = False
    wire: emq.Wire = emq.Wire.PUBLISHED


class Asker(msgspec.Struct, frozen=True):
    """Who sent a message at the clients' door: its routing id, the message's msgid, and the principal."""

    routing_id: bytes
    msgid: bytes
    user_id: str

    @property
    def peer(self) -> bytes:
        """The broker's name of the client."""
        return peer_id(NAME, CLIENTS, self.routing_id)

    @classmethod
    def of(cls, order: Order, user_id: bytes) -> "Asker":
        """The client of an order whose envelope has the msgid in its second frame."""
        return cls(split_peer_id(order.peer)[2], order.envelope[1], user_id.decode())


class Desk:
    """``new_id`` makes msgids: ASCII, no two alike. ``unix_time_s`` is the wall clock."""

    def __init__(
        self,
        inlet: Inlet,
        settings: EmqSettings,
        new_id: Callable[[], bytes],
        unix_time_s: Callable[[], float],
    ) -> None:
        self.inlet = inlet
        self.settings = settings
        self.new_id = new_id
        self.unix_time_s = unix_time_s

    def send(self, door: str, routing_id: bytes, message: emq.Message) -> FrontSend:
        """This message, for this peer."""
        frames = [routing_id, *emq.encode(message, wire=self.settings.wire)]
        return FrontSend(NAME, door, frames, isinstance(message, emq.Request))

    def heartbeat(self, door: str, routing_id: bytes) -> FrontSend:
        """HEARTBEAT."""
        return self.send(door, routing_id, emq.Heartbeat(self.new_id(), self.unix_time_s()))

    def goodbye(self, door: str, routing_id: bytes, refused: bytes = b"") -> FrontSend:
        """KBYE: this node does nothing for the peer, the other one does.

        Its msgid is ``refused``, that of a message which this node certainly gives to no manager.
        """
        return self.send(door, routing_id, emq.Goodbye(refused or self.new_id()))

    def not_active(self, order: Order) -> FrontSend:
        """KBYE to the client of an order whose envelope has the msgid in its second frame."""
        refused = b"" if order.was_dispatched else order.envelope[1]
        return self.goodbye(CLIENTS, split_peer_id(order.peer)[2], refused)

    def reply(self, door: str, routing_id: bytes, about: bytes, value: bytes | None = None) -> FrontSend:
        """REPLY: without ``value`` the request ``about`` is at a worker or stored, with it has ended."""
        return self.send(door, routing_id, emq.Reply(self.new_id(), about, value))

    def refuse(self, asker: Asker, reason: str, text: str) -> list[Output]:
        """Count a refusal and tell the client: a result ``refused: …``."""
        result = encode_result(f"refused: {text}")
        return [*self.note(reason, text), self.reply(CLIENTS, asker.routing_id, asker.msgid, result)]

    def note(self, reason: str, text: str) -> list[Output]:
        """Count bad input of an EventMQ peer."""
        return self.inlet.note(f"emq-{reason}", text)


def label(routing_id: bytes) -> str:
    """A routing id as text: as it is if it is printable ASCII, else in hexadecimal digits."""
    text = routing_id.decode("latin-1")
    return text if text.isascii() and text.isprintable() else routing_id.hex()
