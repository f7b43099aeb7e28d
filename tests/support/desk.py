"""A broker core with hands: feed it frames, see the frames it would send, move its clock."""

from collections.abc import Sequence

from bstar.errors import RemoteProtocolError
from bstar.wire import decode, native
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar.wire.messages import NodeStatus
from bstar_broker.core.broker import Broker
from bstar_broker.core.observer import Observer
from bstar_broker.core.outputs import Dispatch, Notice, Output, Send
from bstar_broker.core.settings import BrokerSettings

CLIENT_ID = bytes(range(16))


class Desk:
    """An active broker at time 0 with these native workers; ``settings`` are BrokerSettings' fields."""

    def __init__(
        self, *workers: bytes, is_serving: bool = True, observer: Observer | None = None, **settings: float
    ) -> None:
        self.now = 0.0
        # What the node's log would say, and what workers got.
        self.notices: list[str] = []
        self.dispatches: list[Dispatch] = []
        self.message_bytes_max = int(settings.get("message_bytes_max", MESSAGE_BYTES_MAX))
        self.broker = Broker(
            BrokerSettings(**settings),  # type: ignore[arg-type]  # bounds are ints, times floats
            node_id=b"N" * 16,
            describe=self._describe,
            now=0.0,
            observer=observer,
        )
        self.ledger = self.broker.ledger
        if is_serving:
            self.broker.activate(7)
        for worker in workers:
            self.ready(worker)

    def _describe(self, now: float) -> NodeStatus:
        state = 3 if self.ledger.is_serving else 4
        return NodeStatus(state, self.ledger.epoch, 0, 0, 0, 100, 300)

    def _sent(self, outputs: list[Output]) -> list[list[bytes]]:
        self.notices += [output.text for output in outputs if isinstance(output, Notice)]
        self.dispatches += [output for output in outputs if isinstance(output, Dispatch)]
        return sent(outputs)

    def send(self, *frames: bytes) -> list[list[bytes]]:
        """One message as the ROUTER receives it, routing id first; what the broker sends because of it."""
        received = list(frames)
        try:
            message = decode(received, self.message_bytes_max)
        except RemoteProtocolError as error:
            return self._sent(self.broker.receive_invalid(received, error, self.now))
        return self._sent(self.broker.receive(message, self.now))

    def wait(self, seconds: float) -> list[list[bytes]]:
        """Let time pass, firing every deadline on the way."""
        end = self.now + seconds
        frames: list[list[bytes]] = []
        while (deadline := self.broker.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            frames += self._sent(self.broker.handle_timer(self.now))
        self.now = end
        return frames

    def undelivered(self, number: int = -1) -> list[list[bytes]]:
        """The one of ``dispatches`` with this number could not be sent."""
        output = self.dispatches[number]
        return self._sent(self.broker.undelivered(output.frames[0], output.item, self.now))

    def away(self, seconds: float) -> list[list[bytes]]:
        """The process stands still for so long; what it sends before it reads anything."""
        self.now += seconds
        self.broker.stalled(seconds)
        return self._sent(self.broker.handle_timer(self.now))

    # Short forms of what peers say. Workers and clients are named by their routing ids.

    def ready02(self, worker: bytes, service: bytes = b"echo") -> list[list[bytes]]:
        return self.send(worker, b"MDPW02", b"\x01", service)

    def request02(self, client: bytes, body: bytes = b"hi", service: bytes = b"echo") -> list[list[bytes]]:
        return self.send(client, b"MDPC02", b"\x01", service, body)

    def partial02(self, worker: bytes, client: bytes, body: bytes = b"part") -> list[list[bytes]]:
        return self.send(worker, b"MDPW02", b"\x03", client, b"", body)

    def final02(self, worker: bytes, client: bytes, body: bytes = b"done") -> list[list[bytes]]:
        return self.send(worker, b"MDPW02", b"\x04", client, b"", body)

    def request01(self, client: bytes, body: bytes = b"hi", service: bytes = b"echo") -> list[list[bytes]]:
        return self.send(client, b"", b"MDPC01", service, body)

    def ready(
        self,
        worker: bytes,
        service: bytes = b"echo",
        credit: int = 1,
        takes_batches: bool = False,
        keepalive: bytes = native.NO_IDENTITY,
    ) -> list[list[bytes]]:
        ready = native.encode_ready(service, credit=credit, takes_batches=takes_batches, keepalive=keepalive)
        return self.send(worker, *ready)

    def request(
        self,
        client: bytes,
        number: int,
        body: bytes = b"hi",
        service: bytes = b"echo",
        ttl_ms: int = 0,
        is_urgent: bool = False,
        is_once: bool = False,
        is_whole: bool = False,
    ) -> list[list[bytes]]:
        frames = native.encode_request(
            ident(number),
            service,
            [body],
            ttl_ms=ttl_ms,
            is_urgent=is_urgent,
            is_once=is_once,
            is_whole=is_whole,
        )
        return self.send(client, *frames)

    def requests(
        self,
        client: bytes,
        numbers: Sequence[int],
        bodies: Sequence[bytes] | None = None,
        service: bytes = b"echo",
        ttls_ms: Sequence[int] | None = None,
        is_repeated: bool = False,
        is_once: bool = False,
        is_whole: bool = False,
    ) -> list[list[bytes]]:
        """A batch; without ``bodies`` each is the number in decimal."""
        bodies = [b"%d" % number for number in numbers] if bodies is None else bodies
        ttls_ms = [0] * len(numbers) if ttls_ms is None else ttls_ms
        batch = native.encode_requests(
            CLIENT_ID,
            service,
            numbers,
            ttls_ms,
            bodies,
            is_repeated=is_repeated,
            is_once=is_once,
            is_whole=is_whole,
        )
        return self.send(client, *batch)

    def finals(
        self, worker: bytes, numbers: Sequence[int], bodies: Sequence[bytes] | None = None
    ) -> list[list[bytes]]:
        bodies = [b"done"] * len(numbers) if bodies is None else bodies
        return self.send(worker, *native.encode_finals(CLIENT_ID, 7, numbers, bodies))

    def final(self, worker: bytes, number: int, body: bytes = b"done") -> list[list[bytes]]:
        return self.send(worker, *native.encode_final(ident(number), 7, 0, [body]))


def ident(number: int) -> bytes:
    """The identity of the test client's request of that number."""
    return native.identity(CLIENT_ID, number)


def sent(outputs: list[Output]) -> list[list[bytes]]:
    """The frames of the Sends among the outputs."""
    return [output.frames for output in outputs if isinstance(output, Send)]


def heard(frames: list[bytes]) -> native.Message:
    """A native message to a client or worker, read without its routing id."""
    return native.decode(frames[1:])
