"""The core of one worker of a plain dialect in virtual time, and its broker's side of the conversation."""

from __future__ import annotations

from dataclasses import dataclass, field

from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Job, Mdp02Worker, PlainWorker
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Begin, WorkerOutput
from bstar_client.core.worker.session import WorkerCore

ADDRESS = b"\x00\x01\x02\x03\x04"


@dataclass
class Bench:
    """Heartbeat 1 s and three of them missed; ``lead`` stands before the address of a REQUEST."""

    options: WorkerLimits = field(default_factory=WorkerLimits)
    endpoints: tuple[str, ...] = ("tcp://broker",)
    now: float = 100.0
    dialect: PlainWorker = field(default_factory=lambda: Mdp02Worker(1.0, 3.0))
    lead: tuple[bytes, ...] = (b"MDPW02", b"\x02")

    def __post_init__(self) -> None:
        self.core = WorkerCore(self.endpoints, b"echo", self.dialect, jitter=lambda: 0.5, limits=self.options)
        self.log: list[WorkerOutput] = []

    def take(self, outputs: list[WorkerOutput]) -> None:
        self.log += outputs

    def connect(self, node: int = 0) -> None:
        self.take(self.core.connected(node, self.now))

    def hear(self, *frames: bytes, node: int = 0) -> None:
        self.take(self.core.receive(node, list(frames), self.now))

    def request(self, address: bytes = ADDRESS) -> Job:
        self.hear(*self.lead, address, b"", b"body")
        return self.begun[-1]

    @property
    def begun(self) -> list[Job]:
        """The requests that the shell was to begin."""
        return [job for output in self.log if isinstance(output, Begin) for job in output.jobs]

    def finish(self, job: Job, *body: bytes) -> None:
        self.core.claim(job)
        self.take(self.core.finished(job, list(body), self.now))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.take(self.core.handle_timer(self.now))
        self.now = until

    def sent(self, node: int = 0) -> list[list[bytes]]:
        return [output.frames for output in self.log if isinstance(output, Send) and output.node == node]
