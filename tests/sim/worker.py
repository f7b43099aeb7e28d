"""A worker process: the production core, its shell (worker.py), and handlers that take their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Protocol

from bstar_broker.core.records import peer_label
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Begin, Close, Ended, KeepAlive, Open, WorkerOutput
from bstar_client.core.worker.session import WorkerCore
from sim.dialects import ONE_REPLY, SILENT_AT_WORK, Dialect, read_body, worker_dialect
from sim.network import Frames, LinkOwner
from sim.world import World

DRAIN_TIMEOUT_S = 2.0
HANDLER_TIMEOUT_S = 4.0
PARTS_MAX = 4
# From a handler's end until its reply is sent.
TURN_S_MAX = 0.003
_NATIVE_MAGIC = 0xB5
_EPOCH, _VALUE = slice(28, 36), slice(36, 40)
_REQUEST, _READY, _WELCOME, _HEARTBEAT, _STALE_EPOCH, _REQUESTS = 0x01, 0x09, 0x0A, 0x0B, 0x0D, 0x0E
_ACTIVE = 3
# From here on a worker follows its node, not the node its worker (BSN-W-14).
_FAR = 2**32


class WorkWatcher(Protocol):
    """Who is told what workers do."""

    def work_begun(self, worker: Any, token: str, job: Job) -> None:
        """A handler is called."""


class SimWorker(LinkOwner):
    """One worker over all its runs. ``epoch_seen`` is read from the bytes that reached it, ``pair`` is the
    name of the one that its service belongs to.
    """

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
        service: str,
        pair: str,
    ) -> None:
        super().__init__(world, name)
        self.core: WorkerCore
        self.dialect = dialect
        self.is_native = dialect == "native"
        # None if it sends heartbeats while it works.
        self._own_heartbeat = worker_dialect(dialect).heartbeat(0, 0) if dialect in SILENT_AT_WORK else None
        self.service = service
        self.pair = pair
        self.epoch_seen = 0
        self._superior_at = 0.0
        self._expiry_s = 0.0
        self.slowness = 1.0
        self.lie = 0  # what it adds to the epochs that it claims
        self.has_lied = False  # in this run
        self.has_ended = False
        # So long after it has ended because its handlers are stuck, its supervisor starts it again.
        self.restart_s: float | None = None
        self._core_class = core_class
        self._watcher = watcher
        self._credit = credit if self.is_native else 1
        self._handler_s = handler_s
        self._results: deque[tuple[Job, int]] = deque()
        # How many handlers run at once; what the core has begun beyond that waits here.
        self._threads = 0
        self._begun_by_core: deque[Job] = deque()
        self._handling: set[Job] = set()
        # Replies that leave together.
        self._finished: list[tuple[Job, list[bytes]]] = []

    def start(self) -> None:
        """A new run: a new worker object."""
        self.boot()
        self.epoch_seen = 0
        self.has_ended = self.has_lied = False
        self._results.clear()
        self._begun_by_core.clear()
        self._handling.clear()
        self._finished.clear()
        # Some work off what they have in one thread; those have no limit to a handler's time.
        is_queueing = self._credit > 1 and self.rng.random() < 0.5
        self._threads = 1 if is_queueing else self._credit
        self.core = self._core_class(
            [link.node.name for link in self.links],
            self.service.encode(),
            worker_dialect(self.dialect),
            jitter=self.rng.random,
            limits=WorkerLimits(
                credit=self._credit,
                handler_timeout_s=None if is_queueing else HANDLER_TIMEOUT_S,
                drain_timeout_s=DRAIN_TIMEOUT_S,
                running_max=self._threads,
            ),
            name=self._keepalive_name() if self.is_native else b"",
        )
        for link in self.links:
            link.open()
        self.arrange()

    @property
    def label(self) -> str:
        """Its name at every node in this run; "" if it has one at each node, of plain MDP."""
        return peer_label(self._keepalive_name()) if self.is_native else ""

    def _keepalive_name(self) -> bytes:
        return f"{self.name} {self.runs}".encode().ljust(20, b".")[:20]

    def stop(self) -> None:
        """SIGTERM: drain and leave."""
        if self.is_awake:
            self.world.note(f"{self.name} is asked to leave")
            self.is_stopping = True
            self._do(self.core.stop(self.clock()))
            self.arrange()

    # --- the loop -----------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """One turn of Worker._loop: results, messages, changes of connections, what was due before."""
        self.is_held = False
        now = self.clock()
        results, self._results = self._results, deque()
        messages, self._messages = self._messages, deque()
        changes, self._changes = self._changes, deque()
        for job, step in results:
            self._tell(job, step)
        self._send_finished(self.runs)
        due = self.core.next_deadline() if self.is_alive else None
        for node, frames in sorted(messages, key=lambda entry: entry[0]):
            if self.is_alive:
                self._receive(node, frames, now)
        for node, is_up in changes:
            if self.is_alive:
                self._change(node, is_up, now)
        if due is not None and now >= due and self.is_alive:
            self._do(self.core.handle_timer(now))

    def _receive(self, node: int, frames: Frames, now: float) -> None:
        if frames and len(frames[0]) >= _EPOCH.stop and frames[0][0] == _NATIVE_MAGIC:
            self._see(frames, now)
        self._do(self.core.receive(node, frames, now))

    def _lie_about(self, frames: Frames) -> Frames:
        """Claim a higher epoch in whatever may claim one."""
        head = frames[0]
        if not self.is_native or head[2] not in (_READY, _HEARTBEAT, _STALE_EPOCH):
            return frames
        self.has_lied = True
        epoch = min(int.from_bytes(head[_EPOCH], "big") + self.lie, 2**64 - 1)
        return [head[: _EPOCH.start] + epoch.to_bytes(8, "big") + head[_EPOCH.stop :], *frames[1:]]

    def _see(self, frames: Frames, now: float) -> None:
        """Note in which epoch the sender serves, if it does."""
        head = frames[0]
        epoch = int.from_bytes(head[_EPOCH], "big")
        is_active = head[2] in (_REQUEST, _REQUESTS)
        if head[2] == _HEARTBEAT:
            is_active = int.from_bytes(head[_VALUE], "big") == _ACTIVE
        elif head[2] == _WELCOME:
            is_active = frames[1][0] == _ACTIVE
            self._expiry_s = int.from_bytes(frames[2], "big") / 1000
        if not is_active:
            return
        is_far = self.epoch_seen - epoch > _FAR and now - self._superior_at >= self._expiry_s
        if epoch >= self.epoch_seen or is_far:
            self.epoch_seen = epoch
            self._superior_at = now

    def _do(self, outputs: Sequence[WorkerOutput]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                if not output.frames or (self.core.running and output.frames == self._own_heartbeat):
                    continue
                self.links[output.node].send(self._lie_about(output.frames) if self.lie else output.frames)
            elif isinstance(output, Begin):
                self._begun_by_core.extend(output.jobs)
                self._go_on()
            elif isinstance(output, Close):
                self.links[output.node].close()
            elif isinstance(output, KeepAlive):
                self.links[output.node].keep_alive(output)
            elif isinstance(output, Open):
                self.links[output.node].open()
            elif isinstance(output, Ended):
                self.has_ended = True
                if self.restart_s is not None and not self.is_stopping:
                    self.world.after(self.restart_s, partial(self._restart, self.runs))
                self.die()
                return

    def _restart(self, run: int) -> None:
        if run == self.runs and not self.is_dark:
            self.start()

    # --- handlers -----------------------------------------------------------------------------------------

    def running_beside(self, connections: Collection[int]) -> int:
        """How many handlers run for requests that came by other connections than these."""
        if not self.is_alive:
            return 0
        return sum(not job.is_abandoned and job.connection not in connections for job in self._handling)

    def _go_on(self) -> None:
        """Call a handler for each free thread, as long as there is something to do."""
        # A handler that was given up keeps its thread to itself, and another takes its place.
        self._handling = {job for job in self._handling if not job.is_abandoned}
        while self._begun_by_core and len(self._handling) < self._threads and self.is_alive:
            job = self._begun_by_core.popleft()
            if not self.core.claim(job):
                continue
            if job.deadline is not None and self.clock() >= job.deadline:
                self._do(self.core.expired(job, self.clock()))
                continue
            self._handling.add(job)
            self._begin(job)

    def _begin(self, job: Job) -> None:
        token = read_body(job.body[0])[0] if job.body else "?"
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
        name, kind = read_body(job.body[0])
        token = name.encode()
        has_parts = kind in ("stream", "parts") and self.dialect not in ONE_REPLY
        parts = 1 + token[-1] % PARTS_MAX if has_parts else 0
        if step < parts:
            self.told(job, [token, b"%d" % step], "partial")
            self._do(self.core.partial(job, [token, b"%d" % step], now))
            if not job.is_ended:
                self._after_a_step(job, step + 1)
            else:
                self._end(job)
        elif kind == "fail":
            self.told(job, [token], "failure")
            self._do(self.core.failed(job, [token], now))
            self._end(job)
        else:
            # A reply of one frame may travel with others, one of two may not.
            body = [token + b" %d" % parts] if job.is_batched and not parts else [token, b"%d" % parts]
            if not self._finished:
                self.world.after(self.rng.uniform(0.0, TURN_S_MAX), partial(self._send_finished, self.runs))
            self.told(job, body, "final")
            self._finished.append((job, body))
            self._end(job)

    def told(self, job: Job, body: list[bytes], kind: str) -> None:
        """A handler has a part of its answer, its answer, or has failed."""

    def _end(self, job: Job) -> None:
        self._handling.discard(job)
        self._go_on()

    def _send_finished(self, run: int) -> None:
        """One turn: what is ready goes out."""
        if run != self.runs or not self.is_awake or not self._finished:
            return
        finished, self._finished = self._finished, []
        self._do(self.core.finished_all(finished, self.clock()))
        if self.is_alive:
            self.arrange()
