"""A node of a pair in memory: the production ``Node`` with its durable store, and what its shell does."""

import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Literal

from bstar.errors import RemoteProtocolError
from bstar.star import (
    Input,
    LinkLost,
    PeerMessage,
    PeerRefused,
    PersistEpoch,
    Publish,
    Report,
    Role,
    StarMachine,
    StarSettings,
    Subscription,
    Tick,
)
from bstar.wire import native
from bstar_broker.core import BrokerSettings, Dispatch, Node, Notice, Output, Send, StoreOutput
from bstar_broker.core.broker import Broker
from bstar_broker.core.outputs import StoreInput
from bstar_broker.store.core.durable import DurableStore
from bstar_broker.store.core.events import PeerLost, PeerSaid, ToPeer
from bstar_broker.store.core.leader import NEW_STORE
from bstar_broker.store.core.replica import Replica, ReplicaSettings
from bstar_broker.store.core.settings import StoreSettings
from bstar_testing.memory.clock import VirtualClock
from bstar_testing.memory.disk import MemoryDisk
from bstar_testing.memory.links import Connection, MemoryLink
from bstar_testing.memory.world import World

_log = logging.getLogger("bstar_testing")

# A connection in memory tells at once when its other end is gone, so that heartbeats find out nothing. They
# are as seldom as they may be: each takes real time when a test lets much of its own time pass.
_HEARTBEAT_S = 30.0
_LIVENESS = 4
_DRAIN_TIMEOUT_S = 10.0
_REPLIES = (native.FINAL, native.FINALS)


class MemoryStore(DurableStore):
    """The durable store. It looks at its table when something is due, and not ten times a second."""

    def __init__(self, broker: Broker, replica: Replica, clock: VirtualClock) -> None:
        now, wall_ms = clock.now(), clock.wall_ms
        super().__init__(broker, StoreSettings(), replica, wall_ms=wall_ms, random=os.urandom, now=now)
        self._clock = clock

    def next_deadline(self) -> float | None:
        """When something is due."""
        due, ticks_at = self.replica.next_deadline(), super().next_deadline()
        if ticks_at is None or ticks_at == due:
            return due
        return min(due or inf, max(ticks_at, self._next_due()))

    def _next_due(self) -> float:
        """When a request begins or expires, a schedule fires, or somebody has waited long enough."""
        if self._runner.next_deadline() < inf:
            return -inf
        times_ms = [
            self._runner.next_due_ms() or inf,
            *(1000 * second for second in self._sweeps._seconds[:1]),  # noqa: SLF001
            self._schedules.next_due_ms(),
        ]
        ahead_s = (min(times_ms) - self._clock.wall_ms()) / 1000
        return min(self._clock.now() + ahead_s, self._desk._deadlines.next_deadline())  # noqa: SLF001


class Faults:
    """What goes wrong at both nodes: how many replies are lost, and whether new requests find no room."""

    def __init__(self) -> None:
        self.replies = 0
        self.is_busy = False


class MemoryNode:
    """One node over all its runs. ``links`` are those that lead here, open or not."""

    peer: "MemoryNode"

    def __init__(self, world: World, role: Literal["primary", "backup"], faults: Faults) -> None:
        self.role = role
        self.endpoint = f"inproc://{role}"
        self.links: dict[MemoryLink, None] = {}
        self.keepalives: set[bytes] = set()
        self.is_alive = False
        self.node: Node
        self._world = world
        self._disk: MemoryDisk
        self._epoch = 0
        self._connections: dict[bytes, Connection] = {}
        self._count = 0
        self._faults = faults

    @property
    def is_active(self) -> bool:
        """True if it serves."""
        return self.is_alive and self.node.is_active

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new run. The first one finds an empty disk."""
        if not hasattr(self, "_disk"):
            self._disk = MemoryDisk()
        now, world = self._world.now, self._world
        machine = StarMachine(
            StarSettings(
                pair="memory",
                role=Role(self.role),
                heartbeat_interval_s=_HEARTBEAT_S,
                failover_timeout_s=2 * _HEARTBEAT_S,
            ),
            node=os.urandom(16).hex(),
            epoch=self._epoch,
            now=now,
        )
        self.node = Node(
            machine,
            BrokerSettings(
                worker_heartbeat_interval_s=_HEARTBEAT_S,
                worker_liveness=_LIVENESS,
                mdp_heartbeat_interval_s=_HEARTBEAT_S,
            ),
            node_id=os.urandom(16),
            drain_timeout_s=_DRAIN_TIMEOUT_S,
            version="memory",
            now=now,
            make_store=self._make_store,
        )
        # What it forgets every second, of clients and services that are gone, is little.
        self.node.broker._tidy_at = inf  # noqa: SLF001
        self.is_alive = True
        self.fit_memory()
        world.timed.append(self)
        self._hear(self._disk.opened())
        self.step(Tick())
        if self.peer.is_alive:
            for each in (self, self.peer):
                world.post(partial(each.step, Subscription()))
        for link in self.links:
            world.post(link.connect)

    def _make_store(self, broker: Broker) -> DurableStore:
        replica = Replica(
            pair="memory",
            role=self.role,
            settings=ReplicaSettings(heartbeat_s=_HEARTBEAT_S, peer_timeout_s=_LIVENESS * _HEARTBEAT_S),
            new_store=os.urandom(16),
            now=self._world.now,
        )
        return MemoryStore(broker, replica, self._world.clock)

    def kill(self) -> None:
        """SIGKILL: the connections break, and the peer's link finds no node."""
        self.is_alive = False
        self._world.timed.remove(self)
        self.keepalives.clear()
        for connection in list(self._connections.values()):
            connection.link.lose()
        self._connections.clear()
        for given in (LinkLost(), PeerRefused()):
            self._world.post(partial(self.peer.step, given))
        self._world.post(partial(self.peer.hear, PeerLost()))

    def fit_memory(self) -> None:
        """Let it have room for requests, or none (``Faults.is_busy``)."""
        self.node.broker.ledger.memory_left = 0 if self._faults.is_busy else sys.maxsize

    def close(self) -> None:
        """Forget its disk."""
        self._disk.close()

    # --- inputs ---------------------------------------------------------------------------------------------

    def step(self, given: Input) -> None:
        """An event of the pair."""
        if self.is_alive:
            self._do(self.node.step(given, self._world.now))

    def hear(self, given: StoreInput) -> None:
        """The store's disk or its peer say something."""
        if self.is_alive:
            self._hear(given)

    def _hear(self, given: StoreInput) -> None:
        self._do(self.node.hear_store(given, self._world.now))

    def next_deadline(self) -> float | None:
        """When the node is due."""
        return self.node.next_deadline()

    def on_time(self) -> None:
        """It is due."""
        self.step(Tick())

    # --- connections ----------------------------------------------------------------------------------------

    def accept(self, link: MemoryLink) -> Connection | None:
        """A new connection; None while no process listens."""
        if not self.is_alive:
            return None
        self._count += 1
        connection = Connection(link, b"\0" + self._count.to_bytes(4, "big"))
        self._connections[connection.routing_id] = connection
        return connection

    def drop(self, connection: Connection) -> None:
        """A client or a worker has closed it."""
        self._connections.pop(connection.routing_id, None)

    def receive(self, connection: Connection, frames: list[bytes]) -> None:
        """A message has arrived, if its connection stands still."""
        if connection.routing_id in self._connections:
            self._do(self.node.receive_frames([connection.routing_id, *frames], self._world.now))

    # --- outputs --------------------------------------------------------------------------------------------

    def _do(self, outputs: Sequence[Output]) -> None:
        pending = deque(outputs)
        while pending:
            output = pending.popleft()
            if isinstance(output, Send):
                pending.extendleft(reversed(self._send(output)))
            elif isinstance(output, ToPeer):
                self._world.post(partial(self.peer.hear, PeerSaid(output.frames)))
            elif isinstance(output, StoreOutput):
                self._world.post(partial(self._order, output))
            elif isinstance(output, Publish):
                self._world.post(partial(self.peer.step, PeerMessage(output.message)))
            elif isinstance(output, PersistEpoch):
                self._epoch = output.epoch
            elif isinstance(output, Notice):
                if output is NEW_STORE:
                    continue  # each pair begins with one
                _log.warning("%s", output.text)
            else:
                assert isinstance(output, Report), f"the {self.role} cannot go on: {output}"
                _log.log(output.level, "the %s: %s", self.role, output.text)

    def _order(self, order: StoreOutput) -> None:
        for answer in self._disk.perform(order):
            self.hear(answer)

    def _send(self, output: Send) -> list[Output]:
        routing_id, *frames = output.frames
        connection = self._connections.get(routing_id)
        if connection is None:
            if routing_id in self.keepalives:
                return []  # it is not read
            if type(output) is Dispatch:
                return self.node.undelivered(output, self._world.now)
            return self.node.unreachable(routing_id, self._world.now, is_gone=True)
        link = connection.link
        if self._faults.replies and link.owner.is_client and _is_reply(frames):
            self._faults.replies -= 1
            self.drop(connection)
            link.lose()
        else:
            link.arrive(connection, frames)
        return []


def _is_reply(frames: list[bytes]) -> bool:
    try:
        return native.decode(frames).command in _REPLIES
    except RemoteProtocolError:
        return False
