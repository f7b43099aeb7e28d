"""One run of a pair with durable stores, from its beginning to its judgement.

    with durable_stage("name", seed=1) as run:
        node = run.leader()
        run.die(node, Point.AFTER_COMMIT)
        run.lose_power(Loss.SECTORS, node)
        run.restart(node)
        run.in_sync()

Clients submit, fetch, close and cancel all the while. At the end every request that was acknowledged is
asked for, and ``durable_rules`` judges what clients and workers have noted. A run in which a rule was broken
is kept and raises RunFailedError.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bstar.settings import RoleName
from bstar_broker.core.snapshot import StoreState
from bstar_broker.store.fail_points import Point
from bstar_testing.nodes import COMMAND, Node
from bstar_testing.pairs import ROLES, Pair
from bstar_testing.processes import HarnessError, environment, wait_until
from bstar_testing.rules import Violation
from chaos.cluster import Cluster, Profile
from chaos.doom import Doom
from chaos.durable_client import check
from chaos.durable_rules import Histories, read_histories
from chaos.history import Line, Told, read
from chaos.platter import Loss
from chaos.power import Disk, need_power
from chaos.report import RunFailedError, new_folder, remove
from chaos.toxiproxy import say
from chaos.traffic import BOTH, Historian

SERVICE = "work"
# As short as the failover timeout, for more rounds in the same time.
_SETTINGS = {"store.peer_timeout_s": 0.5}
_WORKERS = 2
_CLIENTS = 2
_CHECK_S = 60.0
# On a starved machine both nodes may pause longer than their timeouts for minutes, and neither serves.
_HANG_S = 300.0
_SHOWN_MAX = 8


class DurableClient(Historian):
    """``python -m chaos.durable_client``."""

    def __init__(self, name: str, pair: Pair, *, rate: float) -> None:
        options = ("--endpoints", ",".join(pair.endpoints_of(name, BOTH)), "--rate", str(rate))
        super().__init__(name, pair, "client", ("chaos.durable_client",), options, None)

    def wait_for_stored(self, count: int) -> None:
        """Wait until so many submits more were acknowledged."""
        self.wait_for(
            f"{count} more submits", lambda line: isinstance(line, Told) and line.outcome == "stored", count
        )


class DurableStage:
    """A run while it goes on. ``chance`` is drawn from the seed."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        settings: Mapping[str, object],
        launcher: Sequence[str] | None,
        *,
        has_arbiter: bool = False,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.chance = random.Random(seed)
        self.dooms = {role: Doom(folder / f"{role}.doom") for role in ROLES}
        self.disks = {role: Disk(folder / f"{role}-store", folder / f"{role}-disk") for role in ROLES}
        self.cluster = Cluster(
            folder,
            profile=Profile(settings=settings, has_state_dir=True, has_store=True),
            commands={role: self._command(role, launcher) for role in ROLES},
            has_arbiter=has_arbiter,
        )
        self.clients: list[DurableClient] = []
        self.deaths = 0
        self.violations: list[Violation] = []

    def _command(self, role: RoleName, launcher: Sequence[str] | None) -> tuple[str, ...]:
        variables = [f"{name}={value}" for name, value in self.disks[role].variables.items()]
        modules = self.dooms[role].launcher if launcher is None else launcher
        return ("env", *variables, sys.executable, "-m", *modules)

    def begin(self, rate: float) -> None:
        """Start everything, and wait for traffic."""
        self.cluster.start()
        for _ in range(_WORKERS):
            self.cluster.add_worker()
        self.in_sync()
        for number in range(1, _CLIENTS + 1):
            client = DurableClient(f"client{number}", self.cluster, rate=rate / _CLIENTS)
            self.clients.append(client)
            self.cluster.add(client)
        self.progress()

    # --- looking ------------------------------------------------------------------------------------------

    def store(self, node: Node) -> StoreState | None:
        """What a node says of its store now; None if it does not answer."""
        state = node.look()
        return None if state is None else state.store

    def leader(self) -> Node:
        """Wait until one node leads the store; returns it."""
        found: list[Node] = []

        def look() -> bool:
            states = {node: self.store(node) for node in self.cluster.nodes}
            found[:] = [node for node, state in states.items() if state is not None and state.is_leading]
            return len(found) == 1

        self._wait(look, "exactly one node leads the store")
        return found[0]

    def follower(self) -> Node:
        """The peer of the leader."""
        return self.cluster.peer_of(self.leader())

    def in_sync(self) -> None:
        """Wait until one node leads and all is on both disks."""

        def look() -> bool:
            states = [self.store(node) for node in self.cluster.nodes]
            return any(
                state is not None and state.is_leading and state.copies == len(ROLES) for state in states
            )

        self._wait(look, "the store is on both disks")

    def alone(self) -> None:
        """Wait until a node leads without its peer's copy."""

        def look() -> bool:
            states = [self.store(node) for node in self.cluster.nodes]
            return any(state is not None and state.is_leading and state.copies == 1 for state in states)

        self._wait(look, "the leader goes on alone")

    def progress(self, count: int = 5) -> None:
        """Wait until each client has had so many submits acknowledged from now on."""
        for client in self.clients:
            client.wait_for_stored(count)

    def _wait(self, happened: Callable[[], object], what: str) -> None:
        try:
            wait_until(happened, what, limit_s=_HANG_S)
        except HarnessError as error:
            error.add_note(f"stores: {[self.store(node) for node in self.cluster.nodes]}")
            error.add_note(self.cluster.trouble())
            raise

    # --- faults -------------------------------------------------------------------------------------------

    def note(self, what: str, target: str = "", text: str = "") -> None:
        """Write down what the harness does."""
        self.cluster.journal.note(what, target, text)

    def kill(self, *nodes: Node) -> None:
        """SIGKILL all of these, at once as far as that goes."""
        running = [node for node in nodes if node.is_running]
        for node in running:
            node.send_signal(signal.SIGKILL)
        for node in running:
            node.wait_exit()
        self.deaths += len(running)

    def arm(self, node: Node, point: Point, passing: int = 1) -> None:
        """The node will die there."""
        self.note("arm", node.name, f"{point.name} {passing}")
        self.dooms[node.role].arm(point, passing)

    def died(self, node: Node, point: Point) -> None:
        """Wait until the armed node has died."""
        self._wait(lambda: not node.is_running, f"the {node.role} dies: {point.name}")
        assert not self.dooms[node.role].is_armed, f"the {node.role} ended with {node.exit_code} elsewhere"
        node.wait_exit()
        self.deaths += 1

    def die(self, node: Node, point: Point, passing: int = 1) -> None:
        """Let the node die at this point, in the traffic that there is."""
        self.arm(node, point, passing)
        self.died(node, point)

    def lose_power(self, loss: Loss, *nodes: Node) -> None:
        """Of these dead nodes' disks remains what was synced, and what ``loss`` leaves of the rest."""
        for node in nodes:
            seed = self.chance.getrandbits(32)
            self.note("power loss", node.name, f"{loss.value} {seed}")
            self.disks[node.role].lose_power(loss, seed)

    def delete_store(self, node: Node) -> None:
        """Of this dead node's store nothing remains."""
        self.note("store deleted", node.name)
        disk = self.disks[node.role]
        shutil.rmtree(disk.directory)
        disk.directory.mkdir()
        disk.begin()

    def restart(self, *nodes: Node) -> None:
        """Start these dead nodes, in this order, and wait until they answer."""
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready()

    def recover(self, *nodes: Node) -> None:
        """``restart``, and wait until the store is on both disks and clients get on."""
        self.restart(*nodes)
        self.in_sync()
        self.progress()

    def force(self, node: Node) -> None:
        """An operator lets this node serve, and the store go on from its copy."""
        other = self.cluster.peer_of(node)

        def order(verb: str, at: Node) -> bool:
            command = [*COMMAND, *verb.split(), "--config", str(at.config_path)]
            return not subprocess.run(command, env=environment(), capture_output=True, check=False).returncode

        def is_forced() -> bool:
            if order("store force --give-up-the-other", node):
                return True
            # It is refused while the other node serves.
            order("switchover", other)
            return False

        self._wait(is_forced, f"the store goes on from the copy of {node.name}")
        self.in_sync()
        self.progress()

    # --- the end ------------------------------------------------------------------------------------------

    def finish(self) -> Histories:
        """End the traffic, ask for everything, and let the rules judge."""
        for doom in self.dooms.values():
            doom.disarm()
        self.in_sync()
        self.note("traffic ends")
        for client in self.clients:
            client.terminate()
        for client in self.clients:
            client.wait_exit()
        found = self._histories([])
        bodies = [life.body for life in found.stored if life.is_open]
        path = self.folder / "check.jsonl"
        check(self.cluster.client(timeout=5.0), path, SERVICE, bodies, _CHECK_S)
        return self._histories(read(path))

    def workers(self) -> dict[str, list[Line]]:
        """What the workers have noted."""
        return {worker.name: worker.history() for worker in self.cluster.workers}

    def _histories(self, checked: list[Line]) -> Histories:
        return read_histories([*(client.history() for client in self.clients), checked], self.workers())


@contextmanager
def durable_stage(  # noqa: PLR0913  # each is one thing that a test may want otherwise
    name: str,
    *,
    seed: int = 0,
    repeat: str = "",
    rate: float = 80.0,
    settings: Mapping[str, object] | None = None,
    launcher: Sequence[str] | None = None,
    is_judged: bool = True,
    has_arbiter: bool = False,
) -> Iterator[DurableStage]:
    """One run. ``settings`` differ from the profile on both nodes. ``launcher``: the modules that run
    ``bstar`` on a node, without fail points. ``is_judged`` False: violations are left in ``violations``.
    """
    need_power()
    folder = new_folder(name)
    began_at = time.monotonic()
    run = DurableStage(folder, seed, {**_SETTINGS, **(settings or {})}, launcher, has_arbiter=has_arbiter)
    with run.cluster:
        try:
            run.begin(rate)
            yield run
            histories = run.finish()
        except BaseException as error:
            error.add_note(f"{name}, seed {seed}: everything is kept in {folder}")
            raise
    run.violations = violations = histories.violations(run.workers())
    counts = {"nodes killed": run.deaths, **histories.counts()}
    took_s = time.monotonic() - began_at
    say(f"{name}: {', '.join(f'{count} {what}' for what, count in counts.items())}; {took_s:.0f} s")
    if violations and is_judged:
        shown = [f"  {violation}" for violation in violations[:_SHOWN_MAX]]
        lines = [f"{name}, seed {seed}: {len(violations)} violations in {counts}", *shown]
        raise RunFailedError("\n".join([*lines, f"everything is kept in {folder}", repeat]), violations)
    remove(folder)
