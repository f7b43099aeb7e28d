"""The broker's core behind sockets of memory, in virtual time: what the peers of ``rawpeers`` speak to.

A module that imports these fixtures judges the production ``Node`` in its own process, message by message.
A message is handled as soon as it is sent, and time passes only while a peer waits. What only libzmq decides
(handover of routing ids, sizes, lost connections) needs a broker of ``broker_fixtures``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import pytest
import zmq

from bstar.star import Role, StarMachine, StarSettings, Tick, Vote
from bstar_broker.core import BrokerSettings, Dispatch, Node, Output, Send
from support.brokers import FORGETFUL, MORTAL, STEADY, TIGHT, Profile, Timing
from support.rawpeers import EMPTY, Peers


class MemorySocket:
    """The face of a DEALER or REQ socket, as far as ``rawpeers`` uses it."""

    linger = sndtimeo = reconnect_ivl = req_correlate = 0
    routing_id = b""

    def __init__(self, broker: MemoryBroker, socket_type: int) -> None:
        self._broker = broker
        self._is_req = socket_type == zmq.REQ
        self._asked = 0
        self.inbox: deque[list[bytes]] = deque()

    def connect(self, endpoint: str) -> None:
        self.routing_id = self._broker.accept(self)

    def close(self, linger: int = 0) -> None:
        self._broker.sockets.pop(self.routing_id, None)

    @property
    def _envelope(self) -> list[bytes]:
        number = [self._asked.to_bytes(4, "big")] if self.req_correlate else []
        return [*number, EMPTY] if self._is_req else []

    def send_multipart(self, frames: Sequence[bytes]) -> None:
        self._asked += 1
        self._broker.receive([self.routing_id, *self._envelope, *frames])

    def arrive(self, frames: list[bytes]) -> None:
        envelope = self._envelope
        if frames[: len(envelope)] == envelope:
            self.inbox.append(frames[len(envelope) :])

    def poll(self, timeout_ms: int) -> bool:
        # Even a look takes time, or a wait for less than a millisecond would never end.
        self._broker.pass_time(max(timeout_ms, 0.1) / 1000, until=self.inbox)
        return bool(self.inbox)

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        return self.inbox.popleft()


class MemoryBroker:
    """A node without a peer; also the context of its sockets and the clock of their peers."""

    def __init__(self, profile: Profile, role: Role = Role.PRIMARY, *, activate: bool = True) -> None:
        self.profile = profile
        self.sockets: dict[bytes, MemorySocket] = {}
        self._now = 0.0
        self._count = 0
        pair = StarSettings(
            pair="tests",
            role=role,
            heartbeat_interval_s=self.timing.heartbeat_interval_s,
            failover_timeout_s=self.timing.failover_timeout_s,
        )
        keys = asdict(self.timing) | dict(profile.limits)
        self.node = Node(
            StarMachine(pair, node="memory", epoch=0, now=0.0),
            msgspec.convert(keys, BrokerSettings),
            node_id=bytes(16),
            drain_timeout_s=self.timing.drain_timeout_s,
            version="memory",
            now=0.0,
        )
        if activate:
            self.pass_time(self.timing.failover_timeout_s)
            self._do(self.node.step(Vote(), self._now))
            assert self.node.is_active

    @property
    def timing(self) -> Timing:
        return self.profile.timing

    def peers(self) -> Peers:
        """The peers of one test."""
        return Peers(
            "memory", heartbeat_interval_s=self.timing.mdp_heartbeat_interval_s, context=self, clock=self
        )

    # --- the context ----------------------------------------------------------------------------------------

    def socket(self, socket_type: int) -> Any:
        return MemorySocket(self, socket_type)

    def term(self) -> None:
        assert not self.sockets

    def accept(self, socket: MemorySocket) -> bytes:
        self._count += 1
        routing_id = socket.routing_id or b"\0" + self._count.to_bytes(4, "big")
        self.sockets[routing_id] = socket
        return routing_id

    # --- the clock ------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float, *, until: Sequence[object] = ()) -> None:
        """Let the node do what is due; ends early when something is in ``until``."""
        end = self._now + seconds
        while not until:
            due = self.node.next_deadline()
            if due is None or due > end:
                self._now = end
                return
            self._now = max(self._now, due)
            self._do(self.node.step(Tick(), self._now))

    # --- the node -------------------------------------------------------------------------------------------

    def receive(self, frames: list[bytes]) -> None:
        self._do(self.node.receive_frames(frames, self._now))

    def _do(self, outputs: Sequence[Output]) -> None:
        pending = deque(outputs)
        while pending:
            output = pending.popleft()
            if isinstance(output, Send):
                routing_id, *frames = output.frames
                socket = self.sockets.get(routing_id)
                if socket is not None:
                    socket.arrive(frames)
                elif isinstance(output, Dispatch):
                    pending.extend(self.node.undelivered(output, self._now))
                else:
                    pending.extend(self.node.unreachable(routing_id, self._now, is_gone=True))


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker whose workers live long."""
    return MemoryBroker(STEADY)


@pytest.fixture
def mortal() -> MemoryBroker:
    """A broker that soon gives a silent worker up."""
    return MemoryBroker(MORTAL)


@pytest.fixture
def forgetful() -> MemoryBroker:
    """A broker that soon forgets requests and services."""
    return MemoryBroker(FORGETFUL)


@pytest.fixture
def tight() -> MemoryBroker:
    """A broker with small limits."""
    return MemoryBroker(TIGHT)


@pytest.fixture
def tight_peers(tight: MemoryBroker) -> Iterator[Peers]:
    """Peers of the broker with small limits."""
    with tight.peers() as peers:
        yield peers
