"""The virtual network: paths between hosts, connections of clients and workers, the link of the peers.

A connection keeps order and loses nothing: lost packets make it wait, a partition makes everything wait and
arrive at once when it heals. It ends when one end closes it, when a process dies, or when one end has
heard nothing for too long. The link of the peers is publish and subscribe: what is said while nobody is
connected is lost, and it may also lose, repeat and reorder.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bstar.peer_link import reconnect_interval_ms
from bstar.refusal import _ATTEMPTS_AT_S, PROBE_S
from bstar.settings.schema import Timing
from sim.world import Process, World

if TYPE_CHECKING:
    from sim.node import SimNode

__all__ = ["Connection", "Link", "LinkOwner", "Path", "PeerLink"]

Frames = list[bytes]

# What TCP waits before it sends again what was not acknowledged.
RETRANSMIT_S = 0.2
# client/bstar_client/link.py: LinkSettings.
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
    """A TCP connection of one link to one run of a node. ``None`` in a stream is the end of the stream."""

    def __init__(self, link: Link, routing_id: bytes) -> None:
        self.link = link
        self.node = link.node
        self.routing_id = routing_id
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
            self.node.hear_router(self.routing_id, frames)
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
            self.node.router.pop(self.routing_id, None)
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
    """A client's or worker's process, with one link to each node."""

    links: list[Link]
    _messages: deque[tuple[int, Frames]]  # what has come while it was frozen

    def unread(self, node: int) -> int:
        """How many messages of this node wait to be read."""
        return sum(index == node for index, _ in self._messages) if self.is_frozen else 0

    def hear(self, node: int, frames: Frames) -> None:
        """A message came by the link with this index."""
        raise NotImplementedError

    def change(self, node: int, is_up: bool) -> None:
        """Its connection is up, or is not."""
        raise NotImplementedError


class Link:
    """One DEALER of a client or worker: it connects, and connects again, as ``bstar_client.link`` does."""

    def __init__(self, owner: LinkOwner, index: int, node: SimNode, there: Path, back: Path) -> None:
        self.owner = owner
        self.index = index
        self.node = node
        self.there = there
        self.back = back
        self.connection: Connection | None = None
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
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close_at_link(is_silent=is_silent)

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
        self._pause_s = RECONNECT_MIN_S
        self.connection = node.accept(self)
        self.owner.change(self.index, True)


class PeerLink:
    """From one node's publisher to the other's subscriber, which connects and connects again, and asks for
    refusals if ``is_probing`` (bstar.peer_link, bstar.refusal). ``None`` among messages is the end of the
    connection that brought them.
    """

    def __init__(
        self, publisher: SimNode, subscriber: SimNode, path: Path, timing: Timing, *, is_probing: bool
    ) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.path = path
        self._world = publisher.world
        self._rng = self._world.rng(f"subscription of {subscriber.name}")
        self._connection = 0
        self._connections = 0
        self._run = 0  # the publisher's, that the connection leads to
        self._attempt = 0
        self._arrives_at = 0.0
        self._held: list[tuple[int, int, Frames | None]] = []
        self._is_probing = is_probing
        self._probes = 0  # the number of the probe under way, or of the last one
        self._is_heard = False  # was anything heard on this connection?
        self._reconnect_s = reconnect_interval_ms(round(timing.heartbeat_interval_s * 1000)) / 1000
        self._heartbeat_s = max(0.1, timing.failover_timeout_s)
        self._connect_timeout_s = max(0.2, timing.failover_timeout_s)
        self._silence_s = self._heartbeat_s + max(1.0, 3 * timing.failover_timeout_s)
        self._failover_timeout_s = timing.failover_timeout_s
        self._opened_at = 0.0
        self._heard_at = math.inf  # for the first time in this run of the subscriber
        self._began_slow = False

    @property
    def is_up(self) -> bool:
        """Whether the subscriber hears what is published."""
        return self._connection != 0

    @property
    def late_until(self) -> float:
        """When a subscriber that began while the link was slow heard its first word, if that came later than
        the failover timeout; else 0.
        """
        is_late = self._heard_at - self._opened_at > self._failover_timeout_s
        return self._heard_at if is_late and self._began_slow else 0.0

    @property
    def _is_blocked(self) -> bool:
        # Whoever connects needs both directions. The other one is that of the other link.
        return self.path.is_blocked or self.publisher.subscriber.path.is_blocked

    @property
    def _is_slow(self) -> bool:
        # Connecting takes two messages, the subscription one, the first word another.
        return 4 * self.path.travel_max_s > self._failover_timeout_s

    def slow_down(self) -> None:
        """The path has become slower."""
        if math.isinf(self._heard_at):
            self._began_slow |= self._is_slow

    def open(self) -> None:
        """The subscriber's process has begun."""
        self._connection = 0
        self._opened_at = self._world.now
        self._heard_at = math.inf
        self._began_slow = self._is_slow
        self._attempt += 1
        self._held.clear()
        self._connect(self._attempt)

    def renew(self) -> None:
        """The publisher's host is back; its kernel resets a connection that it knows nothing of."""
        if self._connection:
            delay_s = self._rng.random() * self._heartbeat_s
            self._world.after(delay_s, partial(self._drop_if, self._connection))

    def _drop_if(self, connection: int) -> None:
        if connection == self._connection:
            self.drop()

    def lose_publisher(self) -> None:
        """The publisher's process is gone; whether that is heard depends on the path."""
        if self._connection:
            self.expect_silence()
            self._send(None)

    def drop(self) -> None:
        """The connection broke; what was on its way is lost."""
        if self._connection:
            self._connection = 0
            self._held.clear()
            self._again(self._attempt)
            if self._is_heard and self._is_probing:
                self.subscriber.hear_peer(None)
            self._is_heard = False

    def expect_silence(self) -> None:
        """The publisher may not be heard from now on. The heartbeats of the connection find out."""
        if self._connection:
            self._world.after(self._silence_s, partial(self._give_up, self._connection, self._world.now))

    def _give_up(self, connection: int, since: float) -> None:
        publisher = self.publisher
        is_mute = self.path.cuts or not publisher.is_alive
        if publisher.is_frozen and publisher.frozen_at <= since:
            is_mute = True
        if is_mute and connection == self._connection:
            self.drop()

    def _again(self, attempt: int) -> None:
        pause_s = self._reconnect_s * (1.0 + self._rng.random())
        self._world.after(pause_s, partial(self._connect, attempt))

    def _connect(self, attempt: int) -> None:
        if attempt != self._attempt or self._connection or not self.subscriber.is_alive:
            return
        publisher, path = self.publisher, self.path
        if self._is_blocked or publisher.is_dark:
            self._world.after(self._connect_timeout_s, partial(self._again, attempt))
            return
        run = publisher.runs if publisher.is_alive else -1
        self._world.after(2 * path.travel_s(), partial(self._finish, attempt, run))

    def _finish(self, attempt: int, run: int) -> None:
        if attempt != self._attempt or not self.subscriber.is_alive or self._connection:
            return
        publisher = self.publisher
        for process in (publisher, self.subscriber):
            # The kernels have connected; the handshake is the processes' own.
            if process.is_frozen:
                process.when_it_goes_on(partial(self._finish, attempt, run))
                return
        if run != publisher.runs or not publisher.is_alive or self._is_blocked:
            self._again(attempt)
            return
        self._probes += 1  # what is under way is too old from now on
        self._connections += 1
        self._connection = self._connections
        self._run = run
        self._world.after(self.path.travel_s(), partial(publisher.hear_subscription, run))

    def publish(self, frames: Frames) -> None:
        """Say it to whoever is connected."""
        path, connection = self.path, self._connection
        if not connection or self._run != self.publisher.runs:
            return
        if path.loss and path.rng.random() < path.loss:
            return
        self._send(frames)

    def _send(self, frames: Frames | None) -> None:
        path, connection = self.path, self._connection
        if path.is_blocked:
            self._held.append((connection, self.subscriber.runs, frames))
            return
        when = self._world.now + path.travel_s()
        if frames is not None and path.reorders and path.rng.random() < path.reorders:
            when += path.rng.random() * path.rng.choice((0.05, 0.5, 3.0))
        else:
            self._arrives_at = when = max(when, self._arrives_at)
        arrive = partial(self._arrive, connection, self.subscriber.runs, frames)
        self._world.at(when, arrive)
        if frames is not None and path.duplicates and path.rng.random() < path.duplicates:
            self._world.at(when + path.rng.random() * 0.5, arrive)

    def _arrive(self, connection: int, run: int, frames: Frames | None) -> None:
        if self.path.is_blocked:
            self._held.append((connection, run, frames))
        elif frames is None:
            self._drop_if(connection)
        elif run == self.subscriber.runs and (connection == self._connection or self.path.reorders):
            self._heard_at = min(self._heard_at, self._world.now)
            self._is_heard |= connection == self._connection
            self.subscriber.hear_peer(frames)

    def heal(self) -> None:
        """All that was said meanwhile arrives at once, unless the connection was given up."""
        if self.path.is_blocked:
            return
        held, self._held = self._held, []
        self._arrives_at = when = self._world.now + self.path.travel_s()
        for connection, run, frames in held:
            self._world.at(when, partial(self._arrive, connection, run, frames))

    # --- refusals -----------------------------------------------------------------------------------------

    def probe(self) -> None:
        """The subscriber asks the publisher's endpoint whether anybody listens (bstar.refusal)."""
        self._probes += 1
        ends = (*_ATTEMPTS_AT_S[1:], PROBE_S)
        for begins_s, ends_s in zip(_ATTEMPTS_AT_S, ends, strict=True):
            ask = partial(self._ask, self._probes, self._world.now + ends_s)
            self._world.after(begins_s, partial(self.subscriber.when_it_goes_on, ask))

    def _ask(self, probe: int, until: float) -> None:
        publisher = self.publisher
        if probe != self._probes or self._is_blocked or publisher.is_alive or publisher.is_dark:
            return  # a partition and a dark host say nothing; a process that lives is connected to
        when = self._world.now + 2 * self.path.travel_s()
        if when < until:
            refuse = partial(self._refuse, probe, self.subscriber.runs)
            self._world.at(when, partial(self.subscriber.when_it_goes_on, refuse))

    def _refuse(self, probe: int, run: int) -> None:
        if probe == self._probes and run == self.subscriber.runs and not self._is_blocked:
            self._probes += 1
            self.subscriber.hear_refusal()
