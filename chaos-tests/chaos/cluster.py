"""A pair whose workers and clients write histories, over links that proxies may break.

    with Cluster(folder) as cluster:
        cluster.start()
        worker, client = cluster.add_worker(), cluster.add_client()
        client.wait_for_answers(50)
        cluster.kill_active()
        client.wait_for_answers(50)

Every link has a name, the side that connects first: ``client1-primary``, ``worker1-backup``;
``primary-backup`` is the primary's SUB connected to the backup's state PUB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bstar.settings import ProfileName, RoleName
from bstar_testing.hosts import Host
from bstar_testing.pairs import Pair, Route, direct
from bstar_testing.processes import Process
from chaos.history import PAIR, Writer
from chaos.traffic import BOTH, ClientLoad, ClientProcess, WorkerLoad, WorkerProcess


@dataclass(frozen=True, slots=True)
class Profile:
    """The configuration of both nodes: the profile's name, and what differs from it.

    ``settings`` replace keys of the configuration by their dotted paths, ``{"timing.drain_timeout_s": 1}``.
    ``has_keys``: every connection uses CURVE. ``has_store``: both nodes have a durable store.
    """

    name: ProfileName = "lan"
    settings: Mapping[str, object] = field(default_factory=dict)
    has_state_dir: bool = False
    has_keys: bool = False
    has_store: bool = False


class Cluster(Pair):
    """A pair, its workers and its clients. ``commands`` run ``bstar`` in another way on a node."""

    workers: tuple[WorkerProcess, ...]

    def __init__(
        self,
        folder: Path,
        *,
        profile: Profile | None = None,
        hosts: Mapping[RoleName, Host] | None = None,
        route: Route = direct,
        commands: Mapping[str, Sequence[str]] | None = None,
        has_arbiter: bool = False,
        has_journals: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        profile = profile or Profile()
        self.journal = Writer(folder / "harness.jsonl")
        self.clients: list[ClientProcess] = []
        # At debug a node logs each time that the machine kept it from running, and nothing else.
        settings: dict[str, object] = {"log.level": "debug", **profile.settings}
        if not profile.has_state_dir:
            settings["state_dir"] = None
        super().__init__(
            folder,
            name=PAIR,
            profile=profile.name,
            settings=settings,
            has_arbiter=has_arbiter,
            is_secure=profile.has_keys,
            journals=folder / "journals" if has_journals else None,
            hosts=hosts,
            route=route,
            commands=commands,
            has_store=profile.has_store,
            note=self.journal.note,
        )

    def add_worker(
        self,
        *,
        host: Host | None = None,
        nodes: Sequence[str] = BOTH,
        load: WorkerLoad | None = None,
        module: Sequence[str] = ("chaos.worker",),
        is_awaited: bool = True,
    ) -> WorkerProcess:
        """Start a worker of these nodes, and wait until they list it."""
        worker = WorkerProcess(
            f"worker{len(self.workers) + 1}", self, host=host, nodes=nodes, load=load, module=module
        )
        self.workers += (worker,)
        worker.launch()
        if is_awaited:
            worker.wait_registered(len(nodes))
        return worker

    def add_client(
        self,
        *,
        host: Host | None = None,
        nodes: Sequence[str] = BOTH,
        load: ClientLoad | None = None,
        module: Sequence[str] = ("chaos.client",),
    ) -> ClientProcess:
        """Start a client of these nodes."""
        client = ClientProcess(
            f"client{len(self.clients) + 1}", self, host=host, nodes=nodes, load=load, module=module
        )
        self.clients.append(client)
        client.launch()
        return client

    def add(self, process: Process) -> None:
        """Start any other process; the cluster ends it."""
        self._others.append(process)
        process.launch()

    def process(self, name: str) -> Process:
        """The process of this name."""
        return next(each for each in self.processes if each.name == name)

    @property
    def processes(self) -> list[Process]:
        """Every process of the cluster; clients end first."""
        return [*self.clients, *super().processes]

    def finish_traffic(self) -> None:
        """Let the clients begin no more calls, and wait until they end."""
        running = [client for client in self.clients if client.is_running]
        for client in running:
            client.terminate()
        for client in running:
            client.wait_exit()

    def close(self) -> None:
        """Kill every process. Idempotent."""
        super().close()
        self.journal.close()
