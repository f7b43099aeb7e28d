"""One run from its beginning to its judgement.

    with stage("name", repeat="make chaos …") as run:
        with run.fault("kill", "primary"): …
        run.calm()

It starts a Toxiproxy server, a pair of which every link leads through it, workers and clients, and waits for
enough traffic to show something. In the block faults are made. At the end it waits until the pair has
recovered and calls are answered again, ends the traffic in good order, and lets ``chaos.validate`` judge the
histories. A run in which a rule was broken raises RunFailedError with a report; one that shows nothing,
InvalidRunError.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from bstar.settings import RoleName
from bstar.settings.timing import PROFILES
from bstar_testing.hosts import Host
from bstar_testing.pairs import ROLES, Route, direct
from bstar_testing.processes import HarnessError, Process
from bstar_testing.rules import Violation
from chaos.cluster import Cluster, Profile
from chaos.history import Writer
from chaos.model import Manifest, Run, load
from chaos.needs import need_toxiproxy
from chaos.report import RunFailedError, describe, new_folder, remove
from chaos.toxics import Links
from chaos.toxiproxy import Server
from chaos.traffic import BOTH, ClientLoad, ClientProcess, WorkerLoad, WorkerProcess
from chaos.validate import InvalidRunError, check, is_machine_noise
from chaos.waits import WaitWatch

_WARM_UP_ANSWERS = 50
_FINAL_ANSWERS = 15
_KEYS = ("on", "off", "some")


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part. Each entry of ``workers`` and ``clients`` names the nodes that one of them knows.

    ``hosts`` says by name (``primary``, ``worker1``, …) what runs elsewhere than on this machine's loopback
    interface; then the links are the network's, and ``is_proxied`` must be False. ``half_open_s``: how long
    connections may be dead without anybody noticing, after the faults are over. ``carriers``: names and
    process ids of others than the cast and its proxies that carry messages on which the role depends.
    ``has_keys``: every connection uses CURVE; None: as ``is_with_keys`` says of the run's name.
    """

    profile: Profile = field(default_factory=Profile)
    workers: tuple[Sequence[str], ...] = (BOTH, BOTH)
    clients: tuple[Sequence[str], ...] = (BOTH, BOTH)
    worker_load: WorkerLoad = field(default_factory=WorkerLoad)
    client_load: ClientLoad = field(default_factory=ClientLoad)
    launchers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    worker_module: Sequence[str] = ("chaos.worker",)
    client_module: Sequence[str] = ("chaos.client",)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    is_proxied: bool = True
    half_open_s: float = 1.5
    has_arbiter: bool = False
    carriers: tuple[tuple[str, int], ...] = ()
    has_keys: bool | None = None


def is_with_keys(by_chance: bool) -> bool:
    """What CHAOS_KEYS says: ``on``, ``off``, or ``some``, which leaves it to chance."""
    asked = os.environ.get("CHAOS_KEYS") or "some"
    if asked not in _KEYS:
        raise ValueError(f"CHAOS_KEYS is {' or '.join(_KEYS)}, not {asked!r}")
    return by_chance if asked == "some" else asked == "on"


def _has_keys(name: str, cast: Cast) -> bool:
    """About every second run by its name, so that the same name is always the same run."""
    return is_with_keys(zlib.crc32(name.encode()) % 2 == 1) if cast.has_keys is None else cast.has_keys


class Stage:
    """A run while it goes on."""

    def __init__(
        self, folder: Path, cast: Cast, cluster: Cluster, links: Links | None, manifest: Manifest
    ) -> None:
        self.folder = folder
        self.cast = cast
        self.cluster = cluster
        self._links = links
        self.manifest = manifest
        self.violations: list[Violation] = []
        self.run: Run | None = None
        """What the histories came to, once they have been judged."""
        self._spans = itertools.count(1)
        self._is_calm = True

    @property
    def links(self) -> Links:
        """The proxied links."""
        assert self._links is not None, "this run's links lead through no proxies"
        return self._links

    def note(self, what: str, target: str = "", text: str = "", span: int = 0) -> float:
        """Write down what the harness does."""
        return self.cluster.journal.note(what, target, text, span)

    @contextmanager
    def fault(self, kind: str, target: str, *, hits_peer_link: bool = False) -> Iterator[None]:
        """The time from before something is broken until it is whole again."""
        self._is_calm = False
        span = next(self._spans)
        self.note("fault begins", target, f"{kind} peer-link" if hits_peer_link else kind, span)
        try:
            yield
        finally:
            self.note("fault ends", target, kind, span)

    def last(self, seconds: float) -> None:
        """Let a fault last. Its length is what it is about; nothing is awaited by it."""
        time.sleep(seconds)

    def add_client(self, *, nodes: Sequence[str] = BOTH) -> ClientProcess:
        """One client more, with the load of the others."""
        host = self.cast.hosts.get(f"client{len(self.cluster.clients) + 1}")
        return self.cluster.add_client(
            host=host, nodes=nodes, load=self.cast.client_load, module=self.cast.client_module
        )

    def add_worker(self, *, nodes: Sequence[str] = BOTH) -> WorkerProcess:
        """One worker more, like the others."""
        host = self.cast.hosts.get(f"worker{len(self.cluster.workers) + 1}")
        return self.cluster.add_worker(
            host=host, nodes=nodes, load=self.cast.worker_load, module=self.cast.worker_module
        )

    def wait_for_answers(self, count: int) -> None:
        """Wait until each client that runs has had so many calls answered that it begins from now on."""
        for client in self.cluster.clients:
            if client.is_running and not client.is_paused:
                client.wait_for_answers(count)

    def calm(self) -> None:
        """The faults are over: wait until one node is active and hears its peer, and calls are answered."""
        self.note("calm")
        self.cluster.settled()
        self.note("settled")
        self._is_calm = True
        self.wait_for_answers(5)

    def finish(self) -> None:
        """Wait for recovery and end the traffic."""
        if not self._is_calm or not self.manifest.is_control:
            self.calm()
            self.last(self.manifest.half_open_s)
        self.wait_for_answers(_FINAL_ANSWERS)
        self.note("traffic ends")
        self.cluster.finish_traffic()

    def note_odd_exits(self) -> None:
        """Write down which processes have ended by themselves."""
        for process in self.cluster.odd_ends:
            process.note("odd exit", f"{process.exit_code} by itself")

    def _write_manifest(self) -> None:
        manifest = msgspec.structs.replace(
            self.manifest,
            clients=tuple(client.name for client in self.cluster.clients),
            workers=tuple(worker.name for worker in self.cluster.workers),
        )
        (self.folder / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))

    def judge(self) -> Run:
        """Let the rules judge what has been written so far."""
        self._write_manifest()
        run = load(self.folder)
        self.violations = check(run)
        self.run = run
        return run


@contextmanager
def stage(
    name: str,
    *,
    cast: Cast | None = None,
    repeat: str = "",
    plan: str = "",
    is_control: bool = False,
    is_judged: bool = True,
    at_end: Callable[[Stage], None] | None = None,
) -> Iterator[Stage]:
    """One run. ``is_judged`` False: violations are left in ``violations`` and raise nothing.

    ``at_end`` is called when the run has been judged, while the nodes still run and the folder is there.
    """
    cast = cast or Cast()
    has_keys = _has_keys(name, cast)
    folder = new_folder(name)
    timing = PROFILES[cast.profile.name] | {
        key.removeprefix("timing."): value
        for key, value in cast.profile.settings.items()
        if key.startswith("timing.")
    }
    manifest = Manifest(
        name,
        failover_timeout_s=float(timing["failover_timeout_s"]),  # type: ignore[arg-type]  # it is a number
        heartbeat_s=float(timing["heartbeat_interval_s"]),  # type: ignore[arg-type]
        is_control=is_control,
        half_open_s=cast.half_open_s,
        has_arbiter=cast.has_arbiter,
        has_keys=has_keys,
        plan=plan,
        repeat=repeat or _command(has_keys),
    )
    with ExitStack() as resources:
        links: Links | None = None
        proxies: list[Process] = []
        route: Route = direct
        profile = replace(cast.profile, has_keys=has_keys)
        if cast.is_proxied:
            need_toxiproxy()
            journal = resources.enter_context(Writer(folder / "toxiproxy.jsonl"))
            server = resources.enter_context(Server(folder, journal))
            proxies.append(server.process)
            links = Links(server, journal)
            resources.callback(links.close)
            route, profile = links.route, _proxied(profile)
        hosts: dict[RoleName, Host] = {role: cast.hosts[role] for role in ROLES if role in cast.hosts}
        cluster = resources.enter_context(
            Cluster(
                folder,
                profile=profile,
                hosts=hosts,
                route=route,
                commands={role: (sys.executable, "-m", *launch) for role, launch in cast.launchers.items()},
                has_arbiter=cast.has_arbiter,
                has_journals=True,
            )
        )
        run = Stage(folder, cast, cluster, links, manifest)
        _note_clock(run)
        own = [*cluster.nodes, *([cluster.arbiter] if cluster.arbiter is not None else []), *proxies]

        def carriers() -> list[tuple[str, int]]:
            """Whoever carries the messages on which the role depends, as far as it runs."""
            return [*cast.carriers, *((each.name, each.pid) for each in own if each.is_running)]

        resources.enter_context(WaitWatch(carriers, cluster.journal))
        trouble: HarnessError | None = None
        try:
            cluster.start()
            for nodes in cast.workers:
                run.add_worker(nodes=nodes)
            for nodes in cast.clients:
                run.add_client(nodes=nodes)
            run.wait_for_answers(-(-_WARM_UP_ANSWERS // len(cast.clients)))
            yield run
            run.finish()
        except HarnessError as error:
            trouble = error
        run.note_odd_exits()
        _note_clock(run)
        _judge(run, trouble, is_judged=is_judged)
        if at_end is not None:
            at_end(run)
    remove(folder)


def _command(has_keys: bool) -> str:
    """What runs the present test again."""
    keys = "on" if has_keys else "off"
    test = os.environ.get("PYTEST_CURRENT_TEST", "chaos-tests").rpartition(" (")[0] or "chaos-tests"
    return f"CHAOS_KEYS={keys} .venv/bin/python -m pytest '{test}'"


def _proxied(profile: Profile) -> Profile:
    """Behind a proxy a refusal does not prove a death: a link that is down refuses for a living node."""
    return replace(profile, settings={"timing.expire_on_refused": False, **profile.settings})


def _note_clock(run: Stage) -> None:
    run.note("clock", text=repr(time.time() - time.monotonic()))


def _judge(stage: Stage, trouble: HarnessError | None, *, is_judged: bool) -> None:
    try:
        run = stage.judge()
    except InvalidRunError:
        if trouble is not None:
            raise trouble from None  # it explains why there is nothing to judge
        raise
    if not is_judged:
        if trouble is not None and not stage.violations:
            raise trouble
        return
    if trouble is not None and not stage.violations and any(is_machine_noise(run, t) for t in run.terms[1:]):
        text = "the machine itself moved the role, and what the scenario waited for did not come"
        raise InvalidRunError(f"{text}: {trouble}") from trouble
    if trouble is not None:
        violation = Violation("f", f"what should have come after the faults did not come: {trouble}")
        report = describe(stage.folder, run, [*stage.violations, violation])
        raise RunFailedError(report, [*stage.violations, violation]) from trouble
    if stage.violations:
        raise RunFailedError(describe(stage.folder, run, stage.violations), stage.violations)
