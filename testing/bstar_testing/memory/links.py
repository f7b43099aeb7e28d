"""The links of a client or a worker in memory: the face of ``bstar_client.links``, without sockets.

A message is an event of the ``World``; it arrives unless its connection has ended. A link without a
connection connects as soon as its node runs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from bstar.errors import HandlerError
from bstar_client.core.outputs import Fail
from bstar_client.links.links import Core
from bstar_testing.memory.world import World

Frames = list[bytes]


class Listener(Protocol):
    """The node at the other end. ``links`` are those that lead there, open or not."""

    links: "dict[MemoryLink, None]"
    keepalives: set[bytes]

    def accept(self, link: "MemoryLink") -> "Connection | None":
        """A new connection; None while no process listens."""

    def drop(self, connection: "Connection") -> None:
        """The link has closed it."""

    def receive(self, connection: "Connection", frames: Frames) -> None:
        """A message has arrived."""


class Connection:
    """One connection of a link to one run of its node."""

    __slots__ = ("is_open", "link", "routing_id")

    def __init__(self, link: "MemoryLink", routing_id: bytes) -> None:
        self.link = link
        self.routing_id = routing_id
        self.is_open = True


class MemoryLink:
    """A link to one node."""

    is_untrusted = False

    def __init__(self, owner: "MemoryLinks", index: int, node: Listener) -> None:
        self.owner = owner
        self.node = node
        self.connection: Connection | None = None
        self._index = index
        self._is_open = False

    def open(self) -> None:
        """Connect, and connect again when the connection breaks."""
        self._is_open = True
        self.node.links[self] = None
        self.owner.world.post(self.connect)

    def connect(self) -> None:
        """Connect if the node runs; otherwise the connection is refused."""
        if self._is_open and self.connection is None:
            self.connection = self.node.accept(self)
            self.owner.arrive(self._index, self.connection, self.connection is not None)

    def close(self, linger_ms: int = 0) -> None:
        """End the connection; what was sent arrives."""
        self._is_open = False
        self.node.links.pop(self, None)
        connection, self.connection = self.connection, None
        if connection is not None:
            self.owner.world.post(lambda: self.node.drop(connection))

    def lose(self) -> None:
        """The connection is broken."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.is_open = False
            self.owner.arrive(self._index, None, False)
            self.owner.world.post(self.connect)

    def arrive(self, connection: Connection, frames: Frames) -> None:
        """The node has sent a message."""
        self.owner.arrive(self._index, connection, frames)

    def send(self, frames: Frames) -> None:
        """Send a message; without a connection it is lost."""
        connection = self.connection
        if connection is not None:
            self.owner.world.post(lambda: self.node.receive(connection, frames))

    def keep_alive(self, routing_id: bytes, interval_ms: int, ttl_ms: int) -> None:
        """In memory no process is ever silent while it lives: the node only learns the name."""
        self.node.keepalives.add(routing_id)


class MemoryLinks:
    """The links of one owner, in the order of its endpoints. ``wake`` is called when something has arrived.

    ``is_client``: replies may be lost on their way here (``MemoryNode.lose_reply``).
    """

    is_congested = False
    is_quiet = True

    def __init__(
        self, world: World, nodes: Sequence[Listener], wake: Callable[[], object], *, is_client: bool
    ) -> None:
        self.world = world
        self.is_client = is_client
        self._links = [MemoryLink(self, index, node) for index, node in enumerate(nodes)]
        self._arrived: deque[tuple[int, Connection | None, Frames | bool]] = deque()
        self._wake = wake
        self._is_woken = False

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, index: int) -> MemoryLink:
        return self._links[index]

    def __iter__(self) -> Iterator[MemoryLink]:
        return iter(self._links)

    def arrive(self, index: int, connection: Connection | None, what: Frames | bool) -> None:
        """A message came by this connection, or the link is up, or it is down."""
        self._arrived.append((index, connection, what))
        if not self._is_woken:
            self._is_woken = True
            self.world.post(self._wake)

    # --- as of Links ----------------------------------------------------------------------------------------

    def open(self, index: int) -> None:
        """Connect a link."""
        self._links[index].open()

    def open_all(self) -> None:
        """Connect every link."""
        for link in self._links:
            link.open()

    def reset(self, index: int) -> None:
        """Close a link and open it again."""
        self.close(index)
        self.open(index)

    def close(self, index: int, linger_ms: int = 0) -> None:
        """Close a link."""
        self._links[index].close()

    def close_all(self, linger_ms: int = 0) -> None:
        """Close every link."""
        for link in self._links:
            link.close()

    def end(self, linger_ms: int = 0) -> None:
        """Close every link."""
        self.close_all()

    def suspect(self) -> None:
        """There is nothing that is not known at once."""

    def prepare(self) -> None:
        """There is nothing that is not known at once."""

    def wait(self, timeout_ms: int) -> None:
        """Time passes in the ``World`` alone."""

    def next_deadline(self, core: Core) -> float | None:
        """When the core is due."""
        return core.next_deadline()

    def step(
        self,
        core: Core,
        perform: Callable[[list[Any]], None],  # Any: the core's own outputs
        due: float | None = None,
        asked_at: float = 0.0,
    ) -> None:
        """Hand the core what has arrived, and the time if its deadline ``due`` had passed at ``asked_at``."""
        self._is_woken = False
        arrived, self._arrived = self._arrived, deque()
        now = self.world.now
        for index, connection, what in arrived:
            if what is False:
                perform(core.disconnected(index, now))
            elif connection is not self._links[index].connection:
                pass  # of a connection that has ended
            elif what is True:
                perform(core.connected(index, now))
            else:
                outputs = core.receive(index, what, now)
                for output in outputs:
                    if isinstance(output, Fail) and isinstance(output.error, HandlerError):
                        # In one process its caller can see where the handler failed.
                        output.error.__cause__ = self.world.raised.get(output.call.identity)
                perform(outputs)
        if due is not None and asked_at >= due:
            perform(core.handle_timer(asked_at))
