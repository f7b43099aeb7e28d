"""An active node with a list of principals, without a socket."""

from __future__ import annotations

from bstar.security import Principal
from bstar.security.principals import Patterns
from bstar.star import PeerMessage, Role, StarMachine, StarSettings
from bstar.wire import native
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Dispatch, HangUp, Node, Notice, Send
from bstar_broker.core.quotas import Quotas

ID = bytes(range(24))
PRINCIPALS = {
    "shop": Principal("shop", (), calls=Patterns(["price", "eu.*"])),
    "bank": Principal("bank", (), calls=Patterns(["price"])),
    "worker": Principal("worker", (), offers=Patterns(["price"])),
    "second": Principal("second", (), offers=Patterns(["price"])),
    "both": Principal("both", (), offers=Patterns(["price"]), calls=Patterns(["price"])),
    "ops": Principal("ops", (), is_operator=True),
}


class Origin:
    """Says which connection brings the next message."""

    def __init__(self) -> None:
        self.number = 0

    def connection(self) -> int:
        return self.number

    def address(self) -> str:
        return "10.0.0.9"


class House:
    """An active node with a list of principals."""

    def __init__(self) -> None:
        self.principals = dict(PRINCIPALS)
        self.now = 0.0
        self.notices: list[str] = []
        self.hang_ups: list[int] = []
        self.origin = Origin()
        machine = StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0)
        self.node = Node(
            machine,
            BrokerSettings(),
            node_id=bytes(16),
            drain_timeout_s=5.0,
            version="test",
            now=0.0,
            find_principal=self.principals.get,
            origin=self.origin,
        )
        for number, state in enumerate((2, 4)):
            said = PeerState(
                state=state, pair="test", role="backup", node="they", seq=number, epoch=0, heartbeat_ms=1000,
                timeout_ms=2000,
            )  # fmt: skip
            self.node.step(PeerMessage(said), 0.0)
        assert self.node.is_active

    @property
    def drops(self) -> dict[str, int]:
        return dict(self.node.broker.ledger.drops)

    @property
    def quotas(self) -> Quotas:
        assert self.node.authority is not None
        return self.node.authority.quotas

    def why_not(self, user: str) -> str:
        """Why one more connection of this user is refused."""
        return self.quotas.why_not(self.principals[user], self.now)

    def tick(self, passed_s: float) -> None:
        """Let time pass."""
        self.now += passed_s
        self.node.broker.handle_timer(self.now)

    def hear(self, user: str, routing_id: bytes, frames: list[bytes]) -> list[list[bytes]]:
        """What the node sends because of this message."""
        outputs = self.node.receive_frames([routing_id, *frames], self.now, user)
        self.notices += [output.text for output in outputs if isinstance(output, Notice)]
        self.hang_ups += [output.connection for output in outputs if isinstance(output, HangUp)]
        return [output.frames for output in outputs if isinstance(output, Send | Dispatch)]

    def call(
        self, user: str, service: bytes = b"price", client: bytes = b"client", id_: bytes = ID
    ) -> list[list[bytes]]:
        request = native.encode_request(id_, service, [b"x"], ttl_ms=0, epoch=0, is_repeated=False)
        return self.hear(user, client, request)

    def offer(
        self, user: str, service: bytes = b"price", worker: bytes = b"worker", epoch: int = 0
    ) -> list[list[bytes]]:
        return self.hear(user, worker, native.encode_ready(service, credit=1, epoch=epoch))


def command(frames: list[bytes]) -> tuple[bytes, int, int]:
    message = native.decode(frames[1:])
    return frames[0], message.command, message.value
