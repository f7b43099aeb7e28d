"""A worker process: the production core, its shell (worker.py), and handlers that take their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from bstar.wire import mdp01
from bstar_client.core.outputs import Send
from bstar_client.core.worker_dialects import Job
from bstar_client.core.worker_session import (
    Begin,
    Close,
    Ended,
    Open,
    WorkerCore,
    WorkerOutput,
    WorkerSettings,
)
from sim.dialects import Dialect, worker_dialect
from sim.network import Frames, LinkOwner
from sim.world import World

__all__ = ["SimWorker", "WorkWatcher"]

DRAIN_TIMEOUT_S = 2.0
HANDLER_TIMEOUT_S = 4.0
PARTS_MAX = 4
_NATIVE_MAGIC = 0xB5
_EPOCH = slice(28, 36)
_MDP01_HEARTBEAT = mdp01.encode_heartbeat()


class WorkWatcher(Protocol):
    """Who is told what workers do."""

    def work_begun(self, worker: SimWorker, token: str, job: Job) -> None:
        """A handler is called."""


class SimWorker(LinkOwner):
    """One worker over all its runs. ``epoch_seen`` is read from the octets that reached it."""

    def __init__(
        self,
        world: World,
        name: str,
        watcher: WorkWatcher,
        *,
        core_class: type[WorkerCore],
        dialect: Dialect,
        credit: int,
        handler_s: float,
    ) -> None:
        super().__init__(world, name)
        self.links = []
        self.core: WorkerCore
        self.dialect = dialect
        self.is_native = dialect == "native"
        self.epoch_seen = 0
        self.slowness = 1.0
        self.has_ended = False
        self._core_class = core_class
        self._watcher = watcher
        self._credit = credit if self.is_native else 1
        self._handler_s = handler_s
        self._messages: deque[tuple[int, Frames]] = deque()
        self._changes: deque[tuple[int, bool]] = deque()
        self._results: deque[tuple[Job, int]] = deque()

    def start(self) -> None:
        """A new run: a new worker object."""
        self.boot()
        self.epoch_seen = 0
        self.has_ended = False
        for queue in (self._messages, self._changes, self._results):
            queue.clear()
        self.core = self._core_class(
            [link.node.name for link in self.links],
            b"work",
            worker_dialect(self.dialect),
            jitter=self.rng.random,
            settings=WorkerSettings(
                credit=self._credit, handler_timeout_s=HANDLER_TIMEOUT_S, drain_timeout_s=DRAIN_TIMEOUT_S
            ),
        )
        for link in self.links:
            link.open()
        self.arrange()

    def die(self, *, with_host: bool = False) -> None:
        """The process is gone, and what its handlers were doing."""
        if self.is_alive:
            self.world.note(f"{self.name} {'is switched off' if with_host else 'ends'}")
            self.is_alive = self.is_frozen = self.is_stopping = False
            self.release()
            for link in self.links:
                link.close(is_silent=with_host)
        self.is_dark = with_host

    def stop(self) -> None:
        """SIGTERM: drain and leave."""
        if self.is_awake:
            self.world.note(f"{self.name} is asked to leave")
            self.is_stopping = True
            self._do(self.core.stop(self.clock()))
            self.arrange()

    # --- the loop -----------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """The core's."""
        return self.core.next_deadline()

    def on_time(self) -> None:
        """What is due."""
        self._do(self.core.handle_timer(self.clock()))

    def catch_up(self) -> None:
        """One turn of Worker._loop: results, messages, changes of connections, what was due before."""
        now = self.clock()
        results, self._results = self._results, deque()
        messages, self._messages = self._messages, deque()
        changes, self._changes = self._changes, deque()
        for job, step in results:
            self._tell(job, step)
        due = self.core.next_deadline() if self.is_alive else None
        for node, frames in sorted(messages, key=lambda entry: entry[0]):
            if self.is_alive:
                self._receive(node, frames, now)
        for node, is_up in changes:
            if self.is_alive:
                self._do(self.core.connected(node, now) if is_up else self.core.disconnected(node, now))
        if due is not None and now >= due and self.is_alive:
            self._do(self.core.handle_timer(now))

    def hear(self, node: int, frames: Frames) -> None:
        """A message came."""
        if self.is_frozen:
            self._messages.append((node, frames))
        elif self.is_alive:
            self._receive(node, frames, self.clock())
            self.arrange()

    def _receive(self, node: int, frames: Frames, now: float) -> None:
        if frames and len(frames[0]) >= _EPOCH.stop and frames[0][0] == _NATIVE_MAGIC:
            self.epoch_seen = max(self.epoch_seen, int.from_bytes(frames[0][_EPOCH], "big"))
        self._do(self.core.receive(node, frames, now))

    def change(self, node: int, is_up: bool) -> None:
        """A connection is up, or is not."""
        if self.is_frozen:
            self._changes.append((node, is_up))
        elif self.is_alive:
            now = self.clock()
            self._do(self.core.connected(node, now) if is_up else self.core.disconnected(node, now))
            self.arrange()

    def _do(self, outputs: Sequence[WorkerOutput]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                if self.dialect == "mdp01" and self.core.running and output.frames == _MDP01_HEARTBEAT:
                    continue  # published workers are silent while their handler runs
                self.links[output.node].send(output.frames)
            elif isinstance(output, Begin):
                self._begin(output.job)
            elif isinstance(output, Close):
                self.links[output.node].close()
            elif isinstance(output, Open):
                self.links[output.node].open()
            elif isinstance(output, Ended):
                self.has_ended = True
                self.die()
                return

    # --- handlers -----------------------------------------------------------------------------------------

    def _begin(self, job: Job) -> None:
        token = job.body[0].split()[0].decode() if job.body else "?"
        self._watcher.work_begun(self, token, job)
        self._after_a_step(job, 0)

    def _after_a_step(self, job: Job, step: int) -> None:
        duration_s = self.rng.expovariate(1.0 / (self._handler_s * self.slowness))
        self.world.after(duration_s, partial(self._step, self.runs, job, step))

    def _step(self, run: int, job: Job, step: int) -> None:
        if run != self.runs or not self.is_alive:
            return
        if self.is_frozen:
            self._results.append((job, step))
        else:
            self._tell(job, step)
            self.arrange()

    def _tell(self, job: Job, step: int) -> None:
        if not self.is_alive:
            return
        now = self.clock()
        token, _, kind = job.body[0].partition(b" ")
        parts = 1 + token[-1] % PARTS_MAX if kind in (b"stream", b"parts") and self.dialect != "mdp01" else 0
        if step < parts:
            self._do(self.core.partial(job, [token, b"%d" % step], now))
            if not job.is_ended:
                self._after_a_step(job, step + 1)
        elif kind == b"fail":
            self._do(self.core.failed(job, token.decode(), now))
        else:
            self._do(self.core.finished(job, [token, b"%d" % parts], now))
