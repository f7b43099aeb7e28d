"""A real pair with its workers and clients: ``bstar serve`` twice, on given hosts, over links that can be
led through proxies.

    with Cluster(folder) as cluster:
        cluster.start()
        worker, client = cluster.add_worker(), cluster.add_client()
        client.wait_for_answers(50)
        cluster.active().kill()
        client.wait_for_answers(50)

Every link has a name, who connects first: ``client1-primary``, ``worker1-backup``; ``primary-backup`` is the
primary's SUB connected to the backup's state PUB, so it carries what the backup says. A ``route`` maps (name
of the link, ``address:port`` of the server) to what the process is told to connect to.

Nothing is awaited by sleeping: a node is awaited by its line "ready" and by what its HTTP endpoint says. All
that was started is ended at the end, also after a failure.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from bstar.settings import ProfileName
from bstar.settings.schema import FIELDS
from bstar_broker.core.snapshot import NodeState
from chaos.history import PAIR, Writer
from chaos.hosts import Host, LoopbackHost
from chaos.processes import HarnessError, Process, wait_until
from chaos.traffic import BOTH, ClientLoad, ClientProcess, WorkerLoad, WorkerProcess

__all__ = [
    "ARBITER_LINK",
    "ROLES",
    "STATE_LINKS",
    "Cluster",
    "Node",
    "Profile",
    "Role",
    "Route",
    "direct",
]

Role = Literal["primary", "backup"]
Route = Callable[[str, str], str]

ARBITER_LINK = "nodes-arbiter"
STATE_LINKS = ("primary-backup", "backup-primary")
ROLES: tuple[Role, Role] = ("primary", "backup")
_HTTP_S_MAX = 2.0
_decode_state = msgspec.json.Decoder(NodeState).decode


def direct(link: str, address: str) -> str:
    """Connect to the server itself."""
    return address


@dataclass(frozen=True, slots=True)
class Profile:
    """How both nodes are configured: the profile's name, and what differs from it.

    ``settings`` replace keys of the configuration by their dotted paths, ``{"timing.drain_timeout_s": 1}``.
    """

    name: ProfileName = "lan"
    settings: Mapping[str, object] = field(default_factory=dict)
    has_state_dir: bool = False


class Node(Process):
    """One ``bstar serve``. ``launcher`` is what runs the command line: modules and arguments for Python."""

    def __init__(
        self,
        role: Role,
        host: Host,
        config: Mapping[str, Any],
        *,
        address: str,
        http_address: str,
        folder: Path,
        journal: Writer,
        launcher: Sequence[str] = ("bstar_cli",),
    ) -> None:
        self.role: Role = role
        self.address = address
        self.http_address = http_address
        self.config = config
        self.config_path = folder / f"{role}.yaml"
        # JSON is YAML, so the file needs no writer of its own.
        self.config_path.write_text(json.dumps(config, indent=2))
        argv = (sys.executable, "-m", *launcher, "serve", "--config", str(self.config_path))
        super().__init__(role, host, argv, folder=folder, journal=journal)

    def look(self) -> NodeState | None:
        """The node's state as it tells it now; None if it does not answer."""
        if not self.is_running or self.is_paused:
            return None
        host, port = self.http_address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=_HTTP_S_MAX)
        try:
            connection.sock = self.host.connect((host, int(port)), _HTTP_S_MAX)
            connection.request("GET", "/status")
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                return None
            return _decode_state(response.read())
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Wait for the line "ready" of the present run."""

        def is_ready() -> bool:
            if not self.is_running:
                raise HarnessError(f"the {self.role} ended while it started\n{self.trouble()}")
            return '"event": "ready"' in self.log_since_start()

        self.wait_until(is_ready, "ready")

    def wait_for(self, what: str, happened: Callable[[NodeState], bool]) -> NodeState:
        """Wait until the node's state fulfils a condition; that state."""
        last: NodeState | None = None

        def look() -> bool:
            nonlocal last
            if not self.is_running:
                raise HarnessError(f"the {self.role} ended; expected: {what}\n{self.trouble()}")
            state = self.look()
            last = state or last
            return state is not None and happened(state)

        try:
            self.wait_until(look, what)
        except HarnessError as error:
            error.add_note(f"it last said: {last and last.pair}")
            raise
        assert last is not None
        return last

    def wait_for_state(self, *names: str) -> NodeState:
        """Wait until the node is in one of these states."""
        return self.wait_for(" or ".join(names), lambda state: state.pair.state in names)

    def restart(self) -> None:
        """Start it again after its end, and wait until it is ready."""
        self.start()
        self.wait_ready()


class Cluster:
    """A pair, its workers and its clients, in a folder of their own. Nothing runs before ``start``.

    ``has_journals``: all of them keep the product's journals, in ``journals``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        profile: Profile | None = None,
        hosts: Mapping[Role, Host] | None = None,
        route: Route = direct,
        launchers: Mapping[Role, Sequence[str]] | None = None,
        has_arbiter: bool = False,
        has_journals: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.profile = profile or Profile()
        self._own_host = LoopbackHost()
        self.hosts: dict[Role, Host] = {role: (hosts or {}).get(role) or self._own_host for role in ROLES}
        self._route = route
        self.journal = Writer(folder / "harness.jsonl")
        self.journals = folder / "journals" if has_journals else None
        self.workers: list[WorkerProcess] = []
        self.clients: list[ClientProcess] = []
        self._worker_numbers, self._client_numbers = itertools.count(1), itertools.count(1)
        self._is_closed = False

        ports = {role: self.hosts[role].ports(3) for role in self.hosts}
        at = {role: self.hosts[role].address for role in self.hosts}
        self._client_addresses = {role: f"{at[role]}:{ports[role][0]}" for role in self.hosts}
        self._state_addresses = {role: f"{at[role]}:{ports[role][1]}" for role in self.hosts}
        self.arbiter: Process | None = self._make_arbiter() if has_arbiter else None
        self._nodes: dict[Role, Node] = {}
        for role in self.hosts:
            http_address = f"{self.hosts[role].control_address}:{ports[role][2]}"
            self._nodes[role] = Node(
                role,
                self.hosts[role],
                self._config(role, http_address),
                address=self._client_addresses[role],
                http_address=http_address,
                folder=folder,
                journal=self.journal,
                launcher=(launchers or {}).get(role, ("bstar_cli",)),
            )

    def _make_arbiter(self) -> Process:
        """The third voter, on this machine. Both nodes reach it over one link: they must name it alike."""
        self._arbiter_address = f"{self._own_host.address}:{self._own_host.ports(1)[0]}"
        bind = ("--bind", f"tcp://{self._arbiter_address}", "--log-format", "json")
        argv = (sys.executable, "-m", "bstar_cli", "arbiter", *bind)
        return Process("arbiter", self._own_host, argv, folder=self.folder, journal=self.journal)

    def _config(self, role: Role, http_address: str) -> dict[str, Any]:
        peer: Role = "backup" if role == "primary" else "primary"
        is_local = self.hosts[role].address.startswith("127.")
        config: dict[str, Any] = {
            "pair": PAIR,
            "role": role,
            "profile": self.profile.name,
            "insecure": not is_local,
            "state_dir": str(self.folder / f"{role}-state") if self.profile.has_state_dir else None,
            "endpoints": {
                "clients": f"tcp://{self._client_addresses[role]}",
                "state": f"tcp://{self._state_addresses[role]}",
                "peer_state": f"tcp://{self._route(f'{role}-{peer}', self._state_addresses[peer])}",
            },
            "http": {"bind": http_address, "allow_remote": not http_address.startswith("127.")},
            # At debug a node tells each time it was kept from running; nothing else is said at that level.
            "log": {"level": "debug", "format": "json"},
            "journal": {"directory": None if self.journals is None else str(self.journals)},
        }
        if self.arbiter is not None:
            config["endpoints"]["arbiter"] = f"tcp://{self._route(ARBITER_LINK, self._arbiter_address)}"
        for path, value in self.profile.settings.items():
            assert path in FIELDS, f"no such key: {path}"
            section, _, name = path.rpartition(".")
            (config.setdefault(section, {}) if section else config)[name] = value
        return config

    # --- the pair -----------------------------------------------------------------------------------------

    @property
    def primary(self) -> Node:
        """The node that is configured as primary."""
        return self._nodes["primary"]

    @property
    def backup(self) -> Node:
        """The node that is configured as backup."""
        return self._nodes["backup"]

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both, the primary first."""
        return self.primary, self.backup

    def peer_of(self, node: Node) -> Node:
        """The other one."""
        return self.backup if node is self.primary else self.primary

    def start(self) -> None:
        """Start both nodes and wait until the primary is active and the backup passive."""
        if self.arbiter is not None:
            self.arbiter.start()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()
        self.primary.wait_for_state("ACTIVE")
        self.backup.wait_for_state("PASSIVE")

    def active(self) -> Node:
        """Wait until exactly one node is active; that node."""
        found: list[Node] = []

        def look() -> bool:
            states = {node: node.look() for node in self.nodes}
            found[:] = [node for node, state in states.items() if state and state.pair.is_active]
            return len(found) == 1

        wait_until(look, "exactly one node is active")
        return found[0]

    def settled(self) -> None:
        """Wait until exactly one node is active and nodes that run have just heard each other.

        Without the second, a segment that was lost on the link and waits to be sent again could move the
        role after the fault is over: it is the fault's doing.
        """

        def look() -> bool:
            seen = [state.pair for state in (node.look() for node in self.nodes) if state]
            is_linked = len(seen) < 2 or all(pair.is_peer_fresh for pair in seen)
            return is_linked and [pair.is_active for pair in seen].count(True) == 1

        wait_until(look, "exactly one node is active and the nodes hear each other")

    def passive(self) -> Node:
        """The peer of the active node, alive or not."""
        return self.peer_of(self.active())

    # --- traffic ------------------------------------------------------------------------------------------

    def endpoints(self, name: str, nodes: Sequence[str] = BOTH) -> list[str]:
        """Where a client or worker of this name connects."""
        return [
            f"tcp://{self._route(f'{name}-{role}', self._client_addresses[role])}"
            for role in self._nodes
            if role in nodes
        ]

    def add_worker(
        self,
        *,
        host: Host | None = None,
        nodes: Sequence[str] = BOTH,
        load: WorkerLoad | None = None,
        module: Sequence[str] = ("chaos.worker",),
        is_awaited: bool = True,
    ) -> WorkerProcess:
        """Start a worker for these nodes, and wait until they have it on their lists."""
        name = f"worker{next(self._worker_numbers)}"
        worker = WorkerProcess(
            name,
            host or self._own_host,
            self.endpoints(name, nodes),
            folder=self.folder,
            journal=self.journal,
            journals=self.journals,
            load=load,
            module=module,
        )
        self.workers.append(worker)
        worker.start()
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
        name = f"client{next(self._client_numbers)}"
        client = ClientProcess(
            name,
            host or self._own_host,
            self.endpoints(name, nodes),
            folder=self.folder,
            journal=self.journal,
            journals=self.journals,
            load=load,
            module=module,
        )
        self.clients.append(client)
        client.start()
        return client

    def process(self, name: str) -> Process:
        """The node, worker or client of this name."""
        return next(each for each in self.processes if each.name == name)

    @property
    def processes(self) -> list[Process]:
        """Everything that was ever started here."""
        arbiter = [self.arbiter] if self.arbiter is not None else []
        return [*self.clients, *self.workers, *self.nodes, *arbiter]

    # --- the end ------------------------------------------------------------------------------------------

    def finish_traffic(self) -> None:
        """Let the clients that run begin no more calls and wait for their ends."""
        running = [client for client in self.clients if client.is_running]
        for client in running:
            client.terminate()
        for client in running:
            client.wait_exit()

    def close(self) -> None:
        """Kill what still runs. That processes end when they are asked to is for scenarios to show."""
        if self._is_closed:
            return
        self._is_closed = True
        for process in self.processes:
            process.close()
        self.journal.close()
        self._own_host.close()

    def trouble(self) -> str:
        """What there is to say when something goes wrong."""
        return "\n".join([f"everything is in {self.folder}", *(node.trouble() for node in self.nodes)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.trouble())
        self.close()
