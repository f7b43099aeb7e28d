"""The processes of one synthetic pair, and the machines that they run on."""

import random
from typing import Any, Literal

from bstar import records
from bstar_pipeline.synth.process import Machine, Phase, Process
from bstar_pipeline.synth.settings import SynthSettings

ROLES = ("primary", "backup")
_PORT = 5555


class Cast:
    """All processes of ``pair`` so far, each with its first record. ``chance`` makes their identities."""

    def __init__(self, settings: SynthSettings, pair: str, start_us: int, chance: random.Random) -> None:
        self.processes: list[Process] = []
        self._settings = settings
        self._pair = pair
        self._chance = chance
        self.machines = {
            role: Machine(
                self._hex(16),
                f"{self._pair}-{role}",
                start_us - self._chance.randrange(10**9, 10**13),
                settings.clock_skew_us if role == "backup" else 0,
            )
            for role in ROLES
        }
        self._others = Machine(self._hex(16), f"{self._pair}-apps", start_us - self._chance.randrange(10**13))

    def node(self, role: str, at: int, epoch: int) -> Process:
        """Start a node."""
        process = Process(self._pair, role, self._hex(16), "broker", self.machines[role], at)
        settings = self._settings
        self._begin(
            process,
            endpoints=f"tcp://*:{_PORT}",
            epoch=epoch,
            heartbeat_us=settings.heartbeat_us,
            failover_timeout_us=settings.failover_timeout_us,
        )
        process.phases.append(Phase(at, role.upper(), epoch))
        return process

    def app(
        self, name: str, source: Literal["client", "worker"], at: int, rank: int, service: str = ""
    ) -> Process:
        """Start a client or a worker, the one of number ``rank``."""
        process = Process(self._pair, name, self._hex(16), source, self._others, at, service, rank)
        endpoints = ",".join(self.endpoint(role) for role in ROLES)
        self._begin(process, service=service, endpoints=endpoints)
        return process

    def endpoint(self, role: str) -> str:
        """Where clients and workers reach a node."""
        return f"tcp://{self._pair}-{role}:{_PORT}"

    def _begin(self, process: Process, **fields: Any) -> None:
        """Note the process and its first record."""
        self.processes.append(process)
        machine = process.machine
        process.note(
            process.started_us,
            records.Started,
            source=process.source,
            version="synthetic",
            machine=machine.id,
            host=machine.host,
            pid=self._chance.randrange(2, 2**15),
            config=self._hex(8),
            sample=self._settings.sample,
            **fields,
        )

    def _hex(self, count: int) -> str:
        return self._chance.randbytes(count).hex()
