"""The link of two peers: publish and subscribe, so what is said while nobody is connected is lost.

It may also lose, repeat and reorder. Whoever asks for it is told when the publisher's endpoint refuses.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from bstar.net.sockets import reconnect_interval_ms
from bstar.pair.refusal import _ATTEMPTS_AT_S, PROBE_S
from bstar.settings.timing import Timing
from sim.network import Frames, Path

if TYPE_CHECKING:
    from sim.node import SimNode


class PeerLink:
    """From one node's publisher to the other's subscriber, which connects and connects again, and asks for
    refusals if ``is_probing`` (bstar.pair.peer_link, refusal). ``None`` among messages is the end of the
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
        """The subscriber asks the publisher's endpoint whether anybody listens (bstar.pair.refusal)."""
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
