"""A front that speaks nobody's protocol, for tests of the seam between a node and its fronts."""

from bstar.wire.dialect import Dialect
from bstar.wire.front import Order, Verb, peer_id, split_peer_id
from bstar.wire.messages import Disconnect, Final, FromPeer, Ready, Request
from bstar_broker.core.front import Inlet
from bstar_broker.core.outputs import FrontSend, Output
from bstar_broker.core.snapshot import FrontState

HOUR_MS = 3_600_000


class PlainFront:
    """Its peers send one word and a body: ``work``, ``done`` and ``leave`` of workers, ``ask`` of clients."""

    name = "plain"

    def __init__(self, inlet: Inlet, service: bytes = b"sum") -> None:
        self.service = service
        self.inlet = inlet
        self.heard: list[str] = []
        self.heartbeat_ms = self.expiry_ms = HOUR_MS

    def receive(self, door: str, frames: list[bytes], user_id: str, now: float) -> list[Output]:
        peer, word, body = peer_id(self.name, door, frames[0]), frames[1], frames[2:]
        message: FromPeer
        match word:
            case b"work":
                message = Ready(
                    peer,
                    Dialect.FRONT,
                    (),
                    self.service,
                    credit=int(body[0]),
                    heartbeat_ms=self.heartbeat_ms,
                    expiry_ms=self.expiry_ms,
                )
            case b"done":
                message = Final(peer, Dialect.FRONT, (), body[0], body[1:])
            case b"leave":
                message = Disconnect(peer, Dialect.FRONT)
            case b"credit":
                return self.inlet.set_credit(peer, int(body[0]), now)
            case b"ask":
                message = Request(peer, Dialect.FRONT, (b"my", b"envelope"), self.service, body)
            case _:
                return self.inlet.note("plain-word", f"no word: {word!r}")
        return self.inlet.receive_message(message, now, user_id)

    def deliver(self, order: Order, now: float) -> list[Output]:
        _, door, routing_id = split_peer_id(order.peer)
        head = [routing_id, order.verb.name.encode(), order.identity]
        return [FrontSend(self.name, door, [*head, *order.envelope, *order.body])]

    def unsent(self, output: FrontSend, is_gone: bool, now: float) -> list[Output]:
        peer = peer_id(self.name, output.door, output.frames[0])
        if output.frames[1] == Verb.REQUEST.name.encode():
            return self.inlet.worker_unreached(peer, output.frames[2], now)
        return self.inlet.peer_unreached(peer, now, is_gone=is_gone)

    def connected(self, door: str, count: int, now: float) -> list[Output]:
        return []

    def peer_gone(self, door: str, routing_id: bytes, now: float) -> list[Output]:
        return self.inlet.peer_unreached(peer_id(self.name, door, routing_id), now, is_gone=True)

    def activate(self, epoch: int, now: float) -> list[Output]:
        self.heard.append(f"active in {epoch}")
        return []

    def deactivate(self, now: float) -> list[Output]:
        self.heard.append("passive")
        return []

    def handle_timer(self, now: float) -> list[Output]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def state(self, now: float) -> FrontState:
        return FrontState(self.name, {"all": 0})


def sent(outputs: list[Output]) -> list[list[bytes]]:
    return [output.frames for output in outputs if isinstance(output, FrontSend)]
