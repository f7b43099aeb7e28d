"""A worker's core in virtual time, and its broker's side of the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bstar.wire import native, native_broker
from bstar.wire.messages import NodeStatus
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Job, Mdp02Worker, NativeWorker, WorkerDialect
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Begin, WorkerOutput
from bstar_client.core.worker.session import WorkerCore
from support.client_outputs import timers
from support.work import asked

ONE = native.identity(b"c" * 16, 1)
TWO = native.identity(b"c" * 16, 2)
CODEC = native_broker.CODEC


@dataclass
class CoreBench:
    """A worker's core, the time, and everything it has put out."""

    options: WorkerLimits = field(default_factory=WorkerLimits)
    endpoints: Sequence[str] = ("tcp://broker",)
    dialect: WorkerDialect = field(default_factory=lambda: Mdp02Worker(1.0, 3.0))
    now: float = 100.0

    def __post_init__(self) -> None:
        self.core = WorkerCore(self.endpoints, b"echo", self.dialect, jitter=lambda: 0.5, limits=self.options)
        self.log: list[WorkerOutput] = []

    def take(self, outputs: list[WorkerOutput]) -> None:
        self.log += outputs

    def wait(self, seconds: float) -> None:
        """Let time pass, carrying out every timer at its moment."""
        until = self.now + seconds
        for now in timers(self.core, self.now, until, 1_000):
            self.now = now
            self.take(self.core.handle_timer(now))
        self.now = until

    def begun(self) -> list[Job]:
        """The requests that the shell was to begin."""
        return [job for output in self.log if isinstance(output, Begin) for job in output.jobs]

    def frames(self, node: int = 0) -> list[list[bytes]]:
        """What was sent to a node."""
        return [output.frames for output in self.log if isinstance(output, Send) and output.node == node]


@dataclass
class NativeBench(CoreBench):
    """Of the native dialect, with two nodes."""

    endpoints: Sequence[str] = ("tcp://primary", "tcp://backup")
    dialect: WorkerDialect = field(default_factory=NativeWorker)
    # Do handlers run at once, or wait for a thread?
    claims: bool = True

    def take(self, outputs: list[WorkerOutput]) -> None:
        super().take(outputs)
        if self.claims:
            for output in outputs:
                if isinstance(output, Begin):
                    assert all(self.core.claim(job) for job in output.jobs)

    def connect(self, *nodes: int, epoch: int = 1, expiry_ms: int = 1000) -> None:
        """Connections come up and their brokers welcome the worker."""
        for node in nodes:
            self.take(self.core.connected(node, self.now))
            self.welcome(node, epoch, expiry_ms)

    def welcome(self, node: int, epoch: int = 1, expiry_ms: int = 1000) -> None:
        told = NodeStatus(3, epoch, 0, 0, 0, 100, 300)
        self.hear(node, CODEC.welcome(b"", (), told, expiry_ms // 4, expiry_ms))

    def hear(self, node: int, frames: list[bytes]) -> None:
        self.take(self.core.receive(node, frames[1:], self.now))

    def request(
        self,
        node: int,
        identity: bytes = ONE,
        *,
        epoch: int = 1,
        ttl_ms: int = 0,
        is_redelivered: bool = False,
    ) -> None:
        frames = CODEC.request(b"", (), asked([b"body"]), identity, ttl_ms, epoch, is_redelivered)
        self.hear(node, frames)

    def finish(self, job: Job, body: bytes = b"done") -> None:
        self.take(self.core.finished(job, [body], self.now))

    def sent(self, node: int) -> list[tuple[int, bytes, int, int]]:
        """(command, identity, epoch, value) of what was sent to a node."""
        return [
            (head[2], head[4:28], int.from_bytes(head[28:36], "big"), int.from_bytes(head[36:40], "big"))
            for head, *_ in self.frames(node)
        ]

    def commands(self, node: int) -> list[int]:
        return [command for command, _, _, _ in self.sent(node)]
