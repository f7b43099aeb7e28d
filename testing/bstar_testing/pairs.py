"""A pair with its workers: two ``bstar serve`` that know each other, and ``bstar worker`` as often as asked.

Every link has a name, the side that connects first: ``worker1-backup``; ``primary-backup`` carries what the
backup says of its state. A ``route`` maps (link, ``address:port`` of the server) to the address to connect
to, so a proxy may stand in between.

The harness awaits events, never times: a node reports its state over HTTP. At the end it kills every process
that it started, also after a failure, and the reaper does so if the harness itself is killed.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from bstar.settings import ProfileName, RoleName
from bstar.settings.fields import FIELDS, nested
from bstar_client import HAClient
from bstar_testing.hosts import Host, LoopbackHost
from bstar_testing.keys import Keys
from bstar_testing.nodes import COMMAND, Node
from bstar_testing.processes import LIMIT_S, HarnessError, NoteTaker, Process, ignore_note, wait_until

Route = Callable[[str, str], str]
ARBITER_LINK = "nodes-arbiter"
HTTP = "fronts.http.bind"
STATE_LINKS = ("primary-backup", "backup-primary")
ROLES: tuple[RoleName, RoleName] = ("primary", "backup")


def direct(link: str, address: str) -> str:
    """The route without a proxy."""
    return address


class Pair:
    """Two nodes, an arbiter if wanted, and workers. Nothing runs before ``start``.

    ``settings`` differ from the profile on both nodes, ``primary`` and ``backup`` on one; their keys are
    dotted paths of the configuration, ``{"timing.drain_timeout_s": 1}``. ``commands`` run ``bstar`` in
    another way, for ``primary``, ``backup`` or ``arbiter``. ``journals`` is the folder where all processes
    keep the product's journals. ``is_secure``: every connection uses CURVE, with the keys of ``Pair.keys``.
    ``has_store``: both nodes have a durable store, in ``folder``. ``doors`` are the keys of fronts' endpoints
    that both nodes listen at; with ``"fronts.http.bind"`` both serve HTTP, at ``http_urls``.
    """

    primary: Node
    backup: Node
    workers: tuple[Process, ...]
    node_type: type[Node] = Node

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "test",
        profile: ProfileName = "lan",
        settings: Mapping[str, object] | None = None,
        primary: Mapping[str, object] | None = None,
        backup: Mapping[str, object] | None = None,
        has_arbiter: bool = False,
        has_store: bool = False,
        doors: Sequence[str] = (),
        is_secure: bool = False,
        journals: Path | None = None,
        hosts: Mapping[RoleName, Host] | None = None,
        route: Route = direct,
        commands: Mapping[str, Sequence[str]] | None = None,
        note: NoteTaker = ignore_note,
    ) -> None:
        for path in {**(settings or {}), **(primary or {}), **(backup or {})}:
            if path not in FIELDS:
                raise ValueError(f"{path} is no key of a node's configuration (docs/configuration.md)")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.name = name
        # A process may run in another folder than this one.
        self.journals = None if journals is None else journals.absolute()
        self.host = LoopbackHost()
        self.workers = ()
        self._others: list[Process] = []
        self._clients: list[HAClient] = []
        self._route = route
        self.note = note
        self._hosts: dict[RoleName, Host] = {role: (hosts or {}).get(role, self.host) for role in ROLES}
        self._addresses: dict[str, str] = {}
        """Where servers listen: ``primary`` (clients), ``primary-state``, ``primary-http``, ``arbiter`` …"""
        for role, host in self._hosts.items():
            clients, state, status = host.ports(3)
            self._addresses |= {
                role: f"{host.address}:{clients}",
                f"{role}-state": f"{host.address}:{state}",
                f"{role}-http": f"{host.control_address}:{status}",
            }
        self._doors = tuple(doors)
        for role, host in self._hosts.items():
            ports = host.ports(len(self._doors))
            for door, port in zip(self._doors, ports, strict=True):
                self._addresses[f"{role} {door}"] = f"{host.address}:{port}"
        if has_store:
            # The primary listens; the backup connects.
            host = self._hosts["primary"]
            self._addresses["store"] = f"{host.address}:{host.ports(1)[0]}"
        self.keys = Keys(folder / "keys", ROLES) if is_secure else None
        commands = commands or {}
        self.arbiter = self._make_arbiter(commands.get("arbiter", COMMAND)) if has_arbiter else None
        for role, own in zip(ROLES, (primary, backup), strict=True):
            config = self._config(role, {**(settings or {}), **(own or {})}, profile)
            command = commands.get(role, COMMAND)
            options: dict[str, Any] = {"folder": folder, "host": self._hosts[role], "note": note}
            setattr(self, role, self.node_type(role, config, command=command, **options))

    def _make_arbiter(self, command: Sequence[str]) -> Process:
        """The third voter, on this machine. Both nodes use one link: they must name it alike."""
        self._addresses["arbiter"] = f"{self.host.address}:{self.host.ports(1)[0]}"
        argv = [*command, "arbiter", "--bind", f"tcp://{self._addresses['arbiter']}", "--log-format", "json"]
        if self.keys is not None:
            argv += ["--key-file", str(self.keys.path("arbiter")), "--principals", str(self.keys.principals)]
        argv += ["--state-dir", str(self.folder / "arbiter-state")]
        return Process("arbiter", argv, folder=self.folder, note=self.note)

    def _config(self, role: RoleName, settings: Mapping[str, object], profile: ProfileName) -> dict[str, Any]:
        peer = ROLES[1 - ROLES.index(role)]
        status = self._addresses[f"{role}-http"]
        peer_state = self._route(f"{role}-{peer}", self._addresses[f"{peer}-state"])
        config: dict[str, object] = {
            "pair": self.name,
            "role": role,
            "profile": profile,
            "insecure": self.keys is None and not self._addresses[role].startswith("127."),
            "state_dir": str(self.folder / f"{role}-state"),
            "endpoints.clients": f"tcp://{self._addresses[role]}",
            "endpoints.state": f"tcp://{self._addresses[f'{role}-state']}",
            "endpoints.peer_state": f"tcp://{peer_state}",
            "http.bind": status,
            "http.allow_remote": not status.startswith("127."),
            "log.level": "info",
            "log.format": "json",
            "journal.directory": None if self.journals is None else str(self.journals),
        }
        if self.keys is not None:
            config["security.key"] = str(self.keys.path(role))
            config["security.principals"] = str(self.keys.principals)
        if self.arbiter is not None:
            config["endpoints.arbiter"] = f"tcp://{self._route(ARBITER_LINK, self._addresses['arbiter'])}"
        if "store" in self._addresses:
            config["store.directory"] = str(self.folder / f"{role}-store")
            config["store.link"] = f"tcp://{self._addresses['store']}"
        config |= settings
        for door in self._doors:
            config[door] = f"tcp://{self._addresses[f'{role} {door}']}"
        return nested(config | (self._http_front(role, peer) if HTTP in self._doors else {}))

    def _http_front(self, role: RoleName, peer: RoleName) -> dict[str, str]:
        peer_clients = self._route(f"{role}-http-{peer}", self._addresses[peer])
        front = {
            HTTP: self._addresses[f"{role} {HTTP}"],
            "fronts.http.peer_clients": f"tcp://{peer_clients}",
            "fronts.http.peer": f"http://{self._addresses[f'{peer} {HTTP}']}",
        }
        return front | ({} if self.keys is None else {"fronts.http.key": str(self.keys.path("client"))})

    @property
    def http_urls(self) -> list[str]:
        """Where the HTTP fronts of both nodes are, the primary's first."""
        return [f"http://{self._addresses[f'{role} {HTTP}']}" for role in ROLES]

    def doors(self, key: str) -> list[str]:
        """The endpoints of a front's door, ``"fronts.ppp.clients"``, at both nodes, the primary's first."""
        return [f"tcp://{self._addresses[f'{role} {key}']}" for role in ROLES]

    # --- the nodes ----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both, the primary first."""
        return self.primary, self.backup

    def peer_of(self, node: Node) -> Node:
        """The other one."""
        return self.backup if node is self.primary else self.primary

    def launch(self) -> None:
        """Start the arbiter and both nodes; returns at once."""
        for process in (self.arbiter, *self.nodes):
            if process is not None:
                process.launch()

    def start(self) -> None:
        """Start both nodes and wait until the primary is active and the backup passive."""
        self.launch()
        self.primary.wait_for_state("ACTIVE")
        self.backup.wait_for_state("PASSIVE")

    def active(self) -> Node:
        """Wait until exactly one node is active; returns it.

        After a node died, a request of a client turns its peer active. Without any request nothing does.
        """
        found: list[Node] = []

        def look() -> bool:
            states = {node: node.look() for node in self.nodes}
            found[:] = [node for node, state in states.items() if state and state.pair.is_active]
            return len(found) == 1

        self._wait_until(look, "exactly one node is active")
        return found[0]

    def passive(self) -> Node:
        """The peer of the active node, alive or not."""
        return self.peer_of(self.active())

    def kill_active(self) -> Node:
        """SIGKILL the active node; returns it. ``start`` it again, and it is passive."""
        node = self.active()
        node.kill()
        return node

    def settled(self) -> None:
        """Wait until exactly one node is active and the nodes that run have just heard each other.

        Without the second, a segment that was lost on the link and waits for its retransmission could move
        the role after a fault is over.
        """

        def look() -> bool:
            seen = [state.pair for state in (node.look() for node in self.nodes) if state]
            is_linked = len(seen) < len(self.nodes) or all(pair.is_peer_fresh for pair in seen)
            return is_linked and [pair.is_active for pair in seen].count(True) == 1

        self._wait_until(look, "exactly one node is active and the nodes hear each other")

    def _wait_until(self, happened: Callable[[], object], what: str) -> None:
        try:
            wait_until(happened, what)
        except HarnessError as error:
            error.add_note(self.trouble())
            raise

    # --- workers, clients and others ----------------------------------------------------------------------

    @property
    def endpoints(self) -> list[str]:
        """Where clients and workers connect, the primary first."""
        return [node.endpoint for node in self.nodes]

    def endpoints_of(self, name: str, nodes: Sequence[str] = ROLES) -> list[str]:
        """Where the client or worker of this name connects, by its links to these nodes."""
        return [
            f"tcp://{self._route(f'{name}-{role}', self._addresses[role])}" for role in ROLES if role in nodes
        ]

    def client(self, **options: Any) -> HAClient:
        """A client of the pair. The options are those of ``HAClient``; the pair closes it at the end."""
        if self.keys is not None:
            options.setdefault("security", self.keys.security("client"))
        client = HAClient(self.endpoints, **options)
        self._clients.append(client)
        return client

    def start_workers(self, count: int = 1, handler: str = "echo", **options: Any) -> tuple[Process, ...]:
        """``launch_workers``, and wait until every node that runs lists them."""
        service = options.setdefault("service", "echo")
        before = {node: _workers_of(node, service) for node in self.nodes if node.is_running}
        workers = self.launch_workers(count, handler, **options)
        for worker in workers:
            worker.wait_until(
                lambda: all(_workers_of(node, service) >= had + count for node, had in before.items()),
                "listed by every node that runs",
            )
        return workers

    def launch_workers(
        self,
        count: int,
        handler: str,
        *,
        service: str,
        credit: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Process, ...]:
        """Start ``count`` processes of ``bstar worker``; returns at once.

        ``handler`` is a built-in of the command (echo, sleep, fail) or MODULE:FUNCTION, which the test
        itself must be able to import.
        """
        workers = []
        for number in range(len(self.workers) + 1, len(self.workers) + 1 + count):
            name = f"worker{number}"
            argv = [*COMMAND, "worker", "--service", service, "--credit", str(credit)]
            argv += ["--endpoints", ",".join(self.endpoints_of(name))]
            if self.journals is not None:
                argv += ["--journal", str(self.journals), "--journal-pair", self.name, "--journal-name", name]
            variables = {**(environment or {}), **(self.keys.variables("worker") if self.keys else {})}
            options: dict[str, Any] = {"folder": self.folder, "note": self.note, "environment": variables}
            worker = Process(name, [*argv, handler], **options)
            workers.append(worker)
            self.workers += (worker,)
            worker.launch()
        return tuple(workers)

    def start_process(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start any other process; its log is in the pair's folder, and the pair ends it.

        BSTAR_ENDPOINTS leads it to this pair; it inherits no other BSTAR_… variable. ``environment`` is its
        own and wins over what it inherits.
        """
        variables = {"BSTAR_ENDPOINTS": ",".join(self.endpoints), **(environment or {})}
        process = Process(name, argv, folder=self.folder, note=self.note, environment=variables)
        self._others.append(process)
        process.launch()
        return process

    # --- the end ------------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        """Every process of the pair, in the order in which they end."""
        arbiter = [] if self.arbiter is None else [self.arbiter]
        return [*self._others, *self.workers, *self.nodes, *arbiter]

    @property
    def odd_ends(self) -> list[Process]:
        """The processes that ended by themselves."""
        return [each for each in self.processes if each.is_noted_running and not each.is_running]

    def stop(self, limit_s: float = LIMIT_S) -> None:
        """SIGTERM every process that runs, and wait for the ends."""
        running = [process for process in self.processes if process.is_running]
        for process in running:
            process.terminate()
        for process in running:
            process.wait_exit(limit_s)

    def close(self) -> None:
        """Close the clients and kill every process, also if one of them does not end. Idempotent."""
        with ExitStack() as ends:
            ends.callback(self.host.close)
            for process in reversed(self.processes):
                ends.callback(process.close)
            for client in self._clients:
                ends.callback(client.close)

    def trouble(self) -> str:
        """How every process is, and the end of its log: for the text of a failure."""
        return "\n".join([f"all logs are in {self.folder}", *(each.trouble() for each in self.processes)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.trouble())
        self.close()


def _workers_of(node: Node, service: str) -> int:
    state = node.look()
    listed = [] if state is None else state.broker.services
    return sum(each.workers for each in listed if each.service == service)


@contextmanager
def pair(*, workers: int = 1, handler: str = "echo", service: str = "echo", **options: Any) -> Iterator[Pair]:
    """Run a pair whose primary is active and whose backup is passive, with workers.

    ``handler`` and ``service`` are those of ``Pair.start_workers``, the other options those of ``Pair``. If
    the block fails, the folder with configurations and logs stays and the error names it. A process that
    ended by itself fails the block, too.
    """
    known = ["workers", "handler", "service", *inspect.signature(Pair).parameters]
    known.remove("folder")  # it makes its own
    for name in options:
        if name not in known:
            raise TypeError(f"pair() has no option {name!r}; its options: {', '.join(known)}")
    folder = Path(tempfile.mkdtemp(prefix="bstar-pair-"))
    with Pair(folder, **options) as made:
        made.start()
        made.start_workers(workers, handler, service=service)
        yield made
        if made.odd_ends:
            raise HarnessError(f"ended by themselves: {', '.join(each.name for each in made.odd_ends)}")
    shutil.rmtree(folder)
