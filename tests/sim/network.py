"""The virtual network: paths between hosts, and the connections of clients and workers.

A connection keeps order and loses nothing: lost packets make it wait, a partition makes everything wait and
arrive at once when it heals. It ends when one end closes it, when a process dies, or when one end has
heard nothing for too long. The link of two peers is in ``peer_link``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from bstar_client.core.worker.outputs import KeepAlive
from sim.keepalive import Keepalive
from sim.world import Process, World

if TYPE_CHECKING:
    from sim.node import SimNode

Frames = list[bytes]

# What TCP waits before it sends again what was not acknowledged.
RETRANSMIT_S = 0.2
# client/bstar_client/links/link.py: LinkSettings.
CONNECT_TIMEOUT_S = 1.0
HANDSHAKE_TIMEOUT_S = 1.0
RECONNECT_MIN_S = 0.02
RECONNECT_MAX_S = 0.25
SILENCE_MIN_S = 5.0
SILENCE_MAX_S = 6.0


class Path:
    """One direction between two hosts. ``cuts`` and ``chokes`` count the faults that block it now."""

    __slots__ = (
        "chokes",
        "cuts",
        "delay_s",
        "duplicates",
        "extra_s",
        "jitter_s",
        "loss",
        "reorders",
        "rng",
        "waiting",
        "world",
    )

    def __init__(self, world: World, name: str, delay_s: float, jitter_s: float) -> None:
        self.world = world
        self.rng = world.rng(f"path {name}")
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self.extra_s = 0.0
        self.loss = 0.0
        self.duplicates = 0.0
        self.reorders = 0.0
        self.cuts = 0
        self.chokes = 0
        self.waiting: list[_Stream] = []

    @property
    def is_blocked(self) -> bool:
        """Whether nothing gets through."""
        return self.cuts > 0 or self.chokes > 0

    @property
    def travel_max_s(self) -> float:
        """How long a message is under way at most, as things are."""
        return self.delay_s + self.jitter_s + self.extra_s

    def travel_s(self) -> float:
        """How long the next message is under way."""
        return self.delay_s + self.rng.random() * (self.jitter_s + self.extra_s)

    def heal(self) -> None:
        """If nothing blocks it any more, all that waited sets out at once."""
        if not self.is_blocked:
            waiting, self.waiting = self.waiting, []
            for stream in waiting:
                stream.release()


class Paths:
    """Those between clients, workers, nodes and arbiters, by the names of both ends."""

    def __init__(self, world: World, delay_s: float, jitter_s: float) -> None:
        self._world = world
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._paths: dict[tuple[str, str], Path] = {}

    def make(self, source: str, target: str) -> Path:
        """A new one."""
        path = Path(self._world, f"{source} to {target}", self._delay_s, self._jitter_s)
        self._paths[source, target] = path
        return path

    def link(self, owner: LinkOwner, nodes: Iterable[SimNode], door: str = "") -> None:
        """Give a client or worker a link to each of the nodes, by this door of a front."""
        for index, node in enumerate(nodes):
            there, back = self.make(owner.name, node.name), self.make(node.name, owner.name)
            owner.links.append(Link(owner, index, node, there, back, door))

    def between(self, source: str, target: str) -> Path:
        """The one from here to there."""
        return self._paths[source, target]

    def of(self, name: str) -> list[Path]:
        """Those that begin or end there."""
        return [path for ends, path in self._paths.items() if name in ends]

    @property
    def all(self) -> list[Path]:
        """All of them."""
        return list(self._paths.values())


class _Stream:
    """One direction of a connection: in order, whatever happens on the way."""

    __slots__ = ("_arrives_at", "_deliver", "_owed", "_path", "_queue")

    def __init__(self, path: Path, deliver: Callable[[Frames | None], None]) -> None:
        self._path = path
        self._deliver = deliver
        self._queue: deque[Frames | None] = deque()
        self._arrives_at = 0.0
        self._owed = 0

    def send(self, item: Frames | None) -> None:
        path = self._path
        self._queue.append(item)
        if path.cuts or path.chokes:
            self._owe()
            return
        when = path.world.now + path.travel_s()
        if path.loss and path.rng.random() < path.loss:
            when += RETRANSMIT_S
        self._schedule(when)

    def _schedule(self, when: float) -> None:
        self._arrives_at = when = max(when, self._arrives_at)
        self._path.world.at(when, self._arrive)

    def _arrive(self) -> None:
        path = self._path
        if path.cuts or path.chokes:
            self._owe()
        else:
            self._deliver(self._queue.popleft())

    def _owe(self) -> None:
        if not self._owed:
            self._path.waiting.append(self)
        self._owed += 1

    @property
    def stuck(self) -> int:
        """How many wait for the path to heal."""
        return self._owed

    def release(self) -> None:
        owed, self._owed = self._owed, 0
        when = self._path.world.now + self._path.travel_s() + self._path.rng.random() * RETRANSMIT_S
        for _ in range(owed):
            self._schedule(when)


class Connection:
    """A TCP connection of one link to one run of a node. ``None`` in a stream is the end of the stream.

    ``user_id`` is that of the key that its owner has proved, "" without keys. ``is_claimed``: its owner chose
    the routing id. ``is_heard``: the node has handled a message of it.
    """

    def __init__(self, link: Link, routing_id: bytes, *, is_claimed: bool = False) -> None:
        self.link = link
        self.node = link.node
        self.routing_id = routing_id
        self.user_id = link.owner.user_id
        self.is_claimed = is_claimed
        self.is_heard = False
        self.is_open_at_link = True
        self.is_open_at_node = True
        self.to_node = _Stream(link.there, self._arrive_at_node)
        self.to_link = _Stream(link.back, self._arrive_at_link)

    @property
    def waiting_for_link(self) -> int:
        """How many messages of the node wait, because they do not get through or nobody reads them."""
        return self.to_link.stuck + self.link.owner.unread(self.link.index)

    def _arrive_at_node(self, frames: Frames | None) -> None:
        if frames is None:
            self.close_at_node(is_told=True)
        elif self.is_open_at_node:
            self.node.hear_router(self.routing_id, frames, self.user_id)
        elif not self.node.is_dark:
            self.to_link.send(None)

    def _arrive_at_link(self, frames: Frames | None) -> None:
        if frames is None:
            self.close_at_link(is_told=True)
        elif self.is_open_at_link:
            self.link.hear(frames)
        elif not self.link.owner.is_dark:
            self.to_node.send(None)

    def close_at_node(self, *, is_told: bool = False, is_silent: bool = False) -> None:
        """This end is gone; ``is_told``: by the other one, ``is_silent``: and cannot say so."""
        if self.is_open_at_node:
            self.is_open_at_node = False
            self.node.forget(self.routing_id)
            if not (is_told or is_silent):
                self.to_link.send(None)

    def close_at_link(self, *, is_told: bool = False, is_silent: bool = False) -> None:
        """The same at the other end, which then connects anew if it may."""
        if self.is_open_at_link:
            self.is_open_at_link = False
            if not (is_told or is_silent):
                self.to_node.send(None)
            self.link.broke(self)


class LinkOwner(Process):
    """A client's or worker's process, with one link to each node. What comes while it is frozen waits.

    ``core`` is the production core, of each owner's own kind.
    """

    core: Any
    user_id = ""  # of its key, in runs with keys
    is_held = False  # frozen by one of its own threads; libzmq's go on
    _death = "ends"  # in the trace

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.links: list[Link] = []
        self._messages: deque[tuple[int, Frames]] = deque()
        self._changes: deque[tuple[int, bool]] = deque()

    def boot(self) -> None:
        """A new run, to which nothing has come."""
        super().boot()
        self.is_held = False
        self._messages.clear()
        self._changes.clear()

    def die(self, *, with_host: bool = False) -> None:
        """The process is gone, and whatever waited or worked in it."""
        if self.is_alive:
            self.world.note(f"{self.name} {'is switched off' if with_host else self._death}")
            self.is_alive = self.is_frozen = self.is_stopping = False
            self.release()
            self._shut(is_silent=with_host)
        self.is_dark = with_host

    def _shut(self, *, is_silent: bool = False) -> None:
        for link in self.links:
            link.close(is_silent=is_silent)

    def hold(self) -> None:
        """A handler keeps the interpreter to itself: nothing of it goes on but libzmq's own threads."""
        if self.is_awake:
            self.freeze()
            self.is_held = True

    def deadline(self) -> float | None:
        """The core's."""
        due: float | None = self.core.next_deadline()
        return due

    def on_time(self) -> None:
        """What is due."""
        self._do(self.core.handle_timer(self.clock()))

    def unread(self, node: int) -> int:
        """How many messages of this node wait to be read."""
        return sum(index == node for index, _ in self._messages) if self.is_frozen else 0

    def hear(self, node: int, frames: Frames) -> None:
        """A message came by the link with this index."""
        if self.is_frozen:
            self._messages.append((node, frames))
        elif self.is_alive:
            self._receive(node, frames, self.clock())
            self.arrange()

    def change(self, node: int, is_up: bool) -> None:
        """Its connection is up, or is not."""
        if self.is_frozen:
            self._changes.append((node, is_up))
        elif self.is_alive:
            self._change(node, is_up, self.clock())
            self.arrange()

    def _do(self, outputs: Any) -> None:
        """Carry out what the core wants."""
        raise NotImplementedError

    def _receive(self, node: int, frames: Frames, now: float) -> None:
        self._do(self.core.receive(node, frames, now))

    def _change(self, node: int, is_up: bool, now: float) -> None:
        self._do(self.core.connected(node, now) if is_up else self.core.disconnected(node, now))


class Link:
    """One DEALER of a client or worker: it connects, and connects again, as ``bstar_client.links`` does."""

    def __init__(
        self, owner: LinkOwner, index: int, node: SimNode, there: Path, back: Path, door: str = ""
    ) -> None:
        self.owner = owner
        self.index = index
        self.node = node
        self.there = there
        self.back = back
        self.connection: Connection | None = None
        self.claims = b""  # the routing id that it asks for, if it asks for one
        self.door = door  # front and door, "ppp.workers"; the broker's own socket without
        self._keepalive: Keepalive | None = None
        self._attempt = 0  # attempts of an earlier socket are void
        self._pause_s = RECONNECT_MIN_S

    @property
    def world(self) -> World:
        """Where it is."""
        return self.owner.world

    def open(self) -> None:
        """Make a socket and begin to connect."""
        self.close()
        self._pause_s = RECONNECT_MIN_S
        self._connect(self._attempt)

    def close(self, *, is_silent: bool = False) -> None:
        """Close the socket; nothing more is heard of it."""
        self._attempt += 1
        self._end_keepalive(is_silent=is_silent)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close_at_link(is_silent=is_silent)

    def keep_alive(self, told: KeepAlive) -> None:
        """Make the second connection, in the place of an earlier one."""
        self._end_keepalive()
        self._keepalive = Keepalive(self, told)

    def _end_keepalive(self, *, is_silent: bool = False) -> None:
        if self._keepalive is not None:
            self._keepalive.end(is_silent=is_silent)
            self._keepalive = None

    def send(self, frames: Frames) -> None:
        """Send by the connection that there is; without one the message is dropped."""
        connection = self.connection
        if connection is not None:
            connection.to_node.send(frames)

    def hear(self, frames: Frames) -> None:
        """A message arrived."""
        self.owner.hear(self.index, frames)

    def broke(self, connection: Connection) -> None:
        """The connection is no more."""
        if connection is self.connection:
            self.connection = None
            attempt = self._attempt
            self.owner.change(self.index, False)
            self._again(attempt)

    def reset(self) -> None:
        """Something on the way resets the connection at both ends."""
        connection = self.connection
        if connection is not None:
            connection.close_at_node(is_silent=True)
            connection.close_at_link(is_silent=True)

    def expect_silence(self) -> None:
        """The node may not answer from now on. The heartbeats of the connection find out."""
        connection = self.connection
        if connection is not None:
            delay_s = self.owner.rng.uniform(SILENCE_MIN_S, SILENCE_MAX_S)
            self.world.after(delay_s, partial(self._give_up, connection, self.world.now))

    def _give_up(self, connection: Connection, since: float) -> None:
        node = self.node
        is_mute = self.there.is_blocked or self.back.is_blocked or not node.is_alive
        if node.is_frozen and node.frozen_at <= since:
            is_mute = True
        if is_mute and self.owner.is_awake:
            connection.close_at_link()

    def _again(self, attempt: int) -> None:
        # Whoever was told may have opened a new socket meanwhile.
        if attempt == self._attempt and self.owner.is_alive:
            pause_s = self._pause_s * (1.0 + self.owner.rng.random())
            self._pause_s = min(self._pause_s * 2.0, RECONNECT_MAX_S)
            self.world.after(pause_s, partial(self._connect, attempt))

    def _connect(self, attempt: int) -> None:
        if attempt != self._attempt or self.connection is not None or not self.owner.is_alive:
            return
        node = self.node
        if self.there.is_blocked or self.back.is_blocked or node.is_dark:
            self.world.after(CONNECT_TIMEOUT_S, partial(self._fail, attempt))
            return
        travel_s = self.there.travel_s() + self.back.travel_s()
        run = node.runs if node.is_alive else -1
        self.world.after(travel_s, partial(self._finish, attempt, run))

    def _fail(self, attempt: int) -> None:
        if attempt == self._attempt and self.owner.is_alive:
            self.owner.change(self.index, False)
            self._again(attempt)

    def _tell_of_no_handshake(self, attempt: int) -> None:
        # The socket tries again once a second, so one attempt is always waiting.
        if attempt == self._attempt and self.owner.is_alive and self.connection is None:
            if self.node.is_frozen:
                self.world.after(HANDSHAKE_TIMEOUT_S, partial(self._tell_of_no_handshake, attempt))
            self.owner.change(self.index, False)

    def _finish(self, attempt: int, run: int) -> None:
        if attempt != self._attempt or not self.owner.is_alive or self.connection is not None:
            return
        node = self.node
        for process in (node, self.owner):
            # The kernels have connected; the handshake is the processes' own.
            if process.is_frozen:
                process.when_it_goes_on(partial(self._finish, attempt, run))
                self.world.after(HANDSHAKE_TIMEOUT_S, partial(self._tell_of_no_handshake, attempt))
                return
        if run != node.runs or not node.is_alive or self.there.is_blocked:
            self._fail(attempt)
            return
        connection = node.accept(self)
        if connection is None:
            self._fail(attempt)
            return
        self._pause_s = RECONNECT_MIN_S
        self.connection = connection
        self.owner.change(self.index, True)
