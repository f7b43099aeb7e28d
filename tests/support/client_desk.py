"""A client's session with hands: submit calls, let nodes speak, move its clock, see what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bstar.wire import decode, native, native_broker
from bstar.wire.batches import bodies_of, take_extensions
from bstar.wire.messages import NEVER_MS, Directed, NodeStatus, Requests
from bstar.wire.native_broker import NativeAsker
from bstar_client.core.calls import Call
from bstar_client.core.native.session import Session
from bstar_client.core.outputs import Output, Send
from bstar_client.core.session_settings import SessionSettings
from support.client_outputs import ClientOutputs, Clock

PRIMARY, BACKUP, ACTIVE, PASSIVE, SILENT = 1, 2, 3, 4, 0
ENDPOINTS = ("tcp://primary", "tcp://backup")
CLIENT_ID = bytes(range(16))
CODEC = native_broker.CODEC


def status(
    state: int, *, epoch: int = 1, peer: int = SILENT, retry_after_ms: int = NEVER_MS, timeout_ms: int = 1000
) -> NodeStatus:
    return NodeStatus(state, epoch, peer, 0, retry_after_ms, timeout_ms // 4, timeout_ms)


@dataclass
class Desk(Clock):
    """A session, the time, and everything it has put out, sorted."""

    endpoints: Sequence[str] = ENDPOINTS
    options: SessionSettings = field(default_factory=SessionSettings)
    now: float = 100.0

    def __post_init__(self) -> None:
        self.session: Session = Session(
            self.endpoints, client_id=CLIENT_ID, now=self.now, settings=self.options
        )
        # The requests of a batch one by one, and how many batches there were.
        self.sent: list[tuple[int, native.Message]] = []
        self.batches = 0
        self._outputs = ClientOutputs()
        self.replies, self.errors = self._outputs.replies, self._outputs.errors
        self.events = self._outputs.events

    def take(self, outputs: list[Output]) -> None:
        self._outputs.take(outputs)
        for output in outputs:
            if isinstance(output, Send):
                self.sent += [(output.node, message) for message in read_all(output.frames)]
                self.batches += output.frames[0][2] == native.REQUESTS

    def call(
        self,
        body: bytes = b"x",
        *,
        timeout: float | None = 30.0,
        idempotent: bool = True,
        stream: bool = False,
        service: bytes = b"echo",
        key: bytes | None = None,
        extensions: bytes = b"",
    ) -> Call:
        deadline = None if timeout is None else self.now + timeout
        call = Call(service, [body], deadline, idempotent, stream, key=key, begun_at=self.now)
        call.extensions = extensions
        self.take(self.session.submit(call, self.now))
        return call

    def connect(self, node: int, state: NodeStatus | None = None) -> None:
        self.take(self.session.connected(node, self.now))
        if state is not None:
            self.pong(node, state)

    def disconnect(self, node: int) -> None:
        self.take(self.session.disconnected(node, self.now))

    def fail_over(self) -> None:
        """The primary is lost, and the backup serves in epoch 2."""
        self.disconnect(0)
        self.pong(1, status(ACTIVE, epoch=2))

    def hear(self, node: int, frames: list[bytes]) -> None:
        self.take(self.session.receive(node, frames[1:], self.now))

    def pong(self, node: int, state: NodeStatus) -> None:
        self.hear(node, CODEC.pong(b"", native.NO_IDENTITY, state))

    def refuse(self, node: int, call: Call, state: NodeStatus, *, was_dispatched: bool = False) -> None:
        self.hear(node, CODEC.not_active(NativeAsker(b"", call.identity), state, was_dispatched))

    def final(self, node: int, call: Call, body: bytes = b"done", partials: int = 0) -> None:
        self.hear(node, CODEC.final(NativeAsker(b"", call.identity), b"", 1, partials, [body], b""))

    def partial(self, node: int, call: Call, index: int, body: bytes = b"part") -> None:
        self.hear(node, CODEC.partial(NativeAsker(b"", call.identity), b"", 1, index, [body], b""))

    def error(self, node: int, call: Call, code: int, text: bytes = b"") -> None:
        self.hear(node, CODEC.failure(NativeAsker(b"", call.identity), 1, code, text))

    def busy(self, node: int, call: Call, retry_after_ms: int = 20) -> None:
        self.hear(node, CODEC.busy(NativeAsker(b"", call.identity), 1, retry_after_ms, b"full"))

    def requests(self, node: int | None = None) -> list[tuple[int, bytes]]:
        """(node, identity) of every REQUEST sent so far."""
        return [
            (to, message.identity)
            for to, message in self.sent
            if message.command == native.REQUEST and node in (None, to)
        ]

    def pings(self, node: int) -> int:
        return sum(1 for to, message in self.sent if to == node and message.command == native.PING)


@pytest.fixture
def served() -> Desk:
    """The primary is active, the backup passive, both connected."""
    desk = Desk()
    desk.connect(0, status(ACTIVE, peer=PASSIVE))
    desk.connect(1, status(PASSIVE, peer=ACTIVE, retry_after_ms=1000))
    return desk


def read_all(frames: list[bytes]) -> list[native.Message]:
    """A client's message, of a batch what each of its requests would be alone."""
    if frames[0][2] == native.DIRECTED:
        asked = decode([b"", *frames])
        assert isinstance(asked, Directed)
        body, flags = [asked.worker, *asked.body], frames[0][3]
        return [
            native.Message(
                native.DIRECTED, flags, asked.identity, asked.epoch, asked.ttl_ms, asked.service, b"", body
            )
        ]
    if frames[0][2] != native.REQUESTS:
        return [read(frames)]
    batch = decode([b"", *frames])
    assert isinstance(batch, Requests)
    bodies = bodies_of(batch.blob, batch.lengths)
    extensions = take_extensions(bodies, batch.table, 0, is_extended=batch.is_extended)
    rows = zip(batch.numbers, batch.ttls_ms, bodies, extensions, strict=True)
    return [
        native.Message(
            native.REQUEST,
            frames[0][3],
            native.identity(batch.client_id, number),
            batch.epoch,
            ttl_ms,
            batch.service,
            octets,
            [body],
        )
        for number, ttl_ms, body, octets in rows
    ]


def read(frames: list[bytes]) -> native.Message:
    """What a broker reads in a client's frames; PING has no place in the codec's table for clients."""
    if frames[0][2] == native.PING:
        return native.Message(native.PING, 0, frames[0][4:28], 0, 0, b"", b"", [])
    return native.decode(frames)
