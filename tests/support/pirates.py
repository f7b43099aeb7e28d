"""Pirate peers as the published ones behave, and a node with a Pirate front in virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from bstar.wire.pirate import HEARTBEAT, HEARTBEAT_WORD, READY, READY_WORD
from bstar_broker.core.outputs import FrontSend
from bstar_broker.fronts.ppp.machine import CLIENTS, WORKERS, PirateFront, PirateSettings
from support.solo_store import SoloStore

INTERVAL_S = 1.0
LIVENESS = 3
BACKOFF_S, BACKOFF_MAX_S = 1.0, 32.0
SERVICE = b"pirates"
SETTINGS = PirateSettings(SERVICE, 1_000, LIVENESS, message_bytes_max=10_000, message_frames_max=100)


class ParanoidWorker:
    """A worker of 6/PPP: sans-I/O. ``out`` is what it sends over its present socket.

    It has the published timers: a heartbeat each second, liveness 3, a back-off that doubles from 1 s to
    32 s, and a new socket for each conversation. ``work`` gets the body's frames. With None as their result
    it is busy until ``finish``. ``is_threaded``: it sends heartbeats while it works, which the published one
    does not. ``is_worded``: it sends and reads words, as the guide's PHP program does.
    """

    def __init__(
        self,
        now: float,
        work: Callable[[list[bytes]], list[bytes] | None] = lambda body: body,
        *,
        is_threaded: bool = False,
        is_worded: bool = False,
    ) -> None:
        self._work = work
        self._ready, self._heartbeat = (READY_WORD, HEARTBEAT_WORD) if is_worded else (READY, HEARTBEAT)
        self._is_threaded = is_threaded
        self.sockets = 0
        self.pauses: list[float] = []
        self.jobs: list[list[bytes]] = []
        self._waiting: list[list[bytes]] = []
        self._backoff_s = BACKOFF_S
        self._asleep_until: float | None = None
        self._connect(now)

    def _connect(self, now: float) -> None:
        self.sockets += 1
        self._asleep_until = None
        self._liveness = LIVENESS
        self._silent_at = self._beat_at = now + INTERVAL_S
        self._waiting.clear()
        self.out: list[list[bytes]] = [[self._ready]]

    def hear(self, frames: list[bytes], now: float) -> None:
        """A message has come; a busy worker reads it later."""
        if self.jobs:
            self._waiting.append(frames)
            return
        self._backoff_s = BACKOFF_S
        self._silent_at = now + INTERVAL_S
        if frames == [self._heartbeat]:
            self._liveness = LIVENESS
        elif len(frames) >= 3:
            self._liveness = LIVENESS
            done = self._work(frames[2:])
            if done is None:
                self.jobs.append(frames)
            else:
                self.out.append([*frames[:2], *done])

    def finish(self, now: float) -> None:
        """Reply to the request that it holds, then read what has come meanwhile."""
        self.out.append(self.jobs.pop())
        self._silent_at = now + INTERVAL_S
        waiting, self._waiting = self._waiting, []
        for frames in waiting:
            self.hear(frames, now)

    def tick(self, now: float) -> None:
        """Its timers."""
        if self._asleep_until is not None:
            if now >= self._asleep_until:
                self._connect(now)
            return
        if not self.jobs and now >= self._silent_at:
            self._silent_at = now + INTERVAL_S
            self._liveness -= 1
            if not self._liveness:
                self.pauses.append(self._backoff_s)
                self._asleep_until = now + self._backoff_s
                self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
                return
        if now >= self._beat_at and (self._is_threaded or not self.jobs):
            self._beat_at = now + INTERVAL_S
            self.out.append([self._heartbeat])


class Harbour:
    """A node that serves, with the front, its Paranoid workers by name, and what everybody else heard.

    ``is_cut``: nothing passes between the node and the workers, whose connections stay.
    """

    def __init__(self, **limits: Any) -> None:
        self.solo = SoloStore(make_fronts=lambda inlet: [PirateFront(inlet, SETTINGS)], **limits)
        self.workers: dict[bytes, ParanoidWorker] = {}
        self.heard: defaultdict[bytes, list[list[bytes]]] = defaultdict(list)
        self.sent_by: defaultdict[bytes, list[list[bytes]]] = defaultdict(list)
        self.is_cut = False
        self._read = 0

    @property
    def now(self) -> float:
        return self.solo.now

    @property
    def registered(self) -> int:
        """Pirate workers at the broker."""
        return len(self.solo.node.broker.ledger.workers)

    @property
    def drops(self) -> dict[str, int]:
        return dict(self.solo.node.broker.ledger.drops)

    def add(self, name: bytes, **options: Any) -> ParanoidWorker:
        """A Paranoid worker that works by itself."""
        worker = self.workers[name] = ParanoidWorker(self.now, **options)
        self.settle()
        return worker

    def ask(self, client: bytes, *frames: bytes) -> None:
        """A client's message."""
        self.solo.front_hears("ppp", CLIENTS, client, *frames)
        self.settle()

    def say(self, worker: bytes, *frames: bytes) -> None:
        """A message of a worker that the test plays itself."""
        self.solo.front_hears("ppp", WORKERS, worker, *frames)
        self.settle()

    def taken(self, peer: bytes) -> list[list[bytes]]:
        """What this peer has heard since, heartbeats aside."""
        taken = [frames for frames in self.heard[peer] if frames != [HEARTBEAT]]
        self.heard[peer].clear()
        return taken

    def beats(self, peer: bytes) -> int:
        """How many heartbeats it has heard since."""
        return self.heard[peer].count([HEARTBEAT])

    def hang_up(self, door: str, peer: bytes) -> None:
        """A connection ends."""
        self.solo.carry_out(self.solo.node.front_peer_gone("ppp", door, peer, self.now))
        self.settle()

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.solo.wait(min(0.05, until - self.now))
            for name, worker in self.workers.items():
                before = worker.sockets
                worker.tick(self.now)
                if worker.sockets > before:
                    self.hang_up(WORKERS, b"%b-%d" % (name, before))
            self.settle()

    def settle(self) -> None:
        """Carry messages until there are none."""
        is_moving = True
        while is_moving:
            is_moving = self._to_peers() or self._from_workers()

    def _to_peers(self) -> bool:
        new = self.solo.left[self._read :]
        self._read += len(new)
        names = {b"%b-%d" % (name, worker.sockets): worker for name, worker in self.workers.items()}
        for output in new:
            assert isinstance(output, FrontSend)
            to, frames = output.frames[0], output.frames[1:]
            self.heard[to].append(frames)
            if to in names and not self.is_cut:
                names[to].hear(frames, self.now)
        return bool(new)

    def _from_workers(self) -> bool:
        has_sent = False
        for name, worker in self.workers.items():
            out, worker.out = worker.out, []
            for frames in out:
                routing_id = b"%b-%d" % (name, worker.sockets)
                self.sent_by[routing_id].append(frames)
                has_sent = True
                if not self.is_cut:
                    self.solo.front_hears("ppp", WORKERS, routing_id, *frames)
        return has_sent
