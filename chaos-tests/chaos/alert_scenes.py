"""What makes each alert of configs/alerts.yml fire: a cause at a real pair, and its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bstar_client import BstarError, HAClient, Request, RetryPolicy, Worker
from bstar_testing import LoopbackHost, Pair
from bstar_testing.nodes import COMMAND, Node
from bstar_testing.processes import stopped, wait_until
from bstar_testing.strangers import KINDS, Flood
from chaos.power import Disk
from chaos.prometheus import Prometheus


@contextmanager
def repeated(do: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do it in a thread again and again, with this pause before each time."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(pause_s):
            do()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Scene:
    """A pair whose alerts are watched."""

    def __init__(self, pair: Pair, watch: Prometheus) -> None:
        self.pair = pair
        self.resources = ExitStack()
        self._watch = watch

    def wait_seen(self, query: str) -> None:
        """Wait until Prometheus has a sample of this pair's active node for the query."""
        instance = f'{{instance="{self.pair.active().http_address}"}}'
        both = f"({query}) and on (pair, instance) bstar_active{instance} == 1"
        wait_until(lambda: self._watch.ask(both), f"Prometheus has {query}")

    def client(self, *nodes: Node, timeout: float = 5.0) -> HAClient:
        """A client of these nodes, otherwise of both."""
        endpoints = [node.endpoint for node in nodes] or self.pair.endpoints
        security = None if self.pair.keys is None else self.pair.keys.security("client")
        return self.resources.enter_context(HAClient(endpoints, timeout=timeout, security=security))

    def worker(self, service: str, handler: Callable[[Request], bytes], **options: Any) -> Worker:
        """A worker in this process."""
        return self.resources.enter_context(Worker(self.pair.endpoints, service, handler, **options))

    def keep(self, do: Callable[[], object], pause_s: float) -> None:
        """Do it until the scene is over; failures are what the scene is about."""

        def tried() -> None:
            with suppress(BstarError):
                do()

        self.resources.enter_context(repeated(tried, pause_s))

    def keep_asking(self, client: HAClient, service: str, pause_s: float = 0.2) -> None:
        """Ask until the scene is over."""
        self.keep(lambda: client.request(service, b"x", timeout=1.0), pause_s)

    def keep_submitting(self) -> None:
        """Submit durable requests until the scene is over."""
        client = self.client(timeout=60.0)
        self.keep(lambda: client.close_result(client.submit("later", b"x")), 0.05)

    def run(self, verb: str, node: Node, *options: str) -> None:
        """``bstar VERB`` with the configuration of this node."""
        command = [*COMMAND, *verb.split(), "--config", str(node.config_path), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def disk(self, node: Node) -> Disk:
        """A disk of the node's own below its store; the node must not run."""
        disk = Disk(Path(node.config["store"]["directory"]), self.pair.folder / f"{node.name}-disk")
        variables = [f"{name}={value}" for name, value in disk.variables.items()]
        node.argv = ("env", *variables, *node.argv)
        return disk

    def start(self) -> None:
        """Start the pair, the primary active."""
        self.pair.start()

    def take_over(self) -> None:
        """Kill the primary and let the backup serve."""
        self.pair.primary.kill()
        self.keep_asking(self.client(timeout=60.0), "anything")
        self.pair.backup.wait_for_state("ACTIVE")


def echo(request: Request) -> bytes:
    """A handler without fault."""
    return bytes(request.body)


def die(request: Request) -> bytes:
    """A handler that ends its process."""
    os._exit(1)


# --- the scenarios: the cause, a yield while it lasts, its end ----------------------------------------------


def one_node_is_killed(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    scene.pair.backup.kill()
    yield
    scene.pair.backup.start()


def both_nodes_are_killed(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    for node in scene.pair.nodes:
        node.kill()
    yield
    scene.pair.start()


def the_nodes_do_not_hear_each_other(scene: Scene) -> Iterator[None]:
    scene.pair.launch()
    scene.keep_asking(scene.client(scene.pair.primary), "anything")
    scene.pair.primary.wait_for_state("ACTIVE")
    yield
    scene.run("promote", scene.pair.backup)
    yield
    scene.pair.backup.kill()


def clients_reach_the_passive_node_only(scene: Scene) -> Iterator[None]:
    scene.start()
    scene.worker("echo", echo)
    yield
    with ExitStack() as clients:
        scene.resources, whole = clients, scene.resources
        for _ in range(2):
            scene.keep_asking(scene.client(scene.pair.backup), "echo")
        scene.resources = whole
        yield


def the_role_moves_often(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    for number in range(6):
        here, there = scene.pair.nodes if number % 2 == 0 else scene.pair.nodes[::-1]
        there.wait_for("stands by", lambda state: state.readiness.is_ready)
        scene.run("switchover", here)
    yield


def the_loop_is_late(scene: Scene) -> Iterator[None]:
    scene.start()
    yield

    def stall() -> None:
        with scene.pair.primary.frozen():
            time.sleep(0.3)  # how long the fault lasts

    with repeated(stall, 0.3):
        yield


def descriptors_run_out(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    host, _, port = scene.pair.primary.endpoint.removeprefix("tcp://").rpartition(":")
    strangers = []
    for _ in range(200):
        with suppress(OSError):
            strangers.append(socket.create_connection((host, int(port)), timeout=1.0))
    yield
    for stranger in strangers:
        stranger.close()


def nobody_works(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    client = scene.client()
    threads = [threading.Thread(target=_ask_in_vain, args=(client, "nobody", 60.0)) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    scene.worker("nobody", echo)
    for thread in threads:
        thread.join()


def _ask_in_vain(client: HAClient, service: str, timeout: float) -> None:
    with suppress(BstarError):
        client.request(service, b"x", timeout=timeout)


def handlers_fail(scene: Scene) -> Iterator[None]:
    scene.start()
    is_ill = threading.Event()

    def handle(request: Request) -> bytes:
        if is_ill.is_set():
            raise ValueError("ill")
        return b""

    scene.worker("ill", handle)
    scene.keep_asking(scene.client(), "ill", pause_s=0.05)
    yield
    is_ill.set()
    yield
    is_ill.clear()


def a_handler_hangs(scene: Scene) -> Iterator[None]:
    scene.start()
    over = threading.Event()
    scene.resources.callback(over.set)

    def handle(request: Request) -> bytes:
        over.wait()
        return b""

    scene.worker("slow", handle)
    yield
    client = scene.client()
    threads = [threading.Thread(target=_ask_in_vain, args=(client, "slow", 300.0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def requests_kill_their_workers(scene: Scene) -> Iterator[None]:
    scene.start()
    scene.pair.start_workers(8, "chaos.alert_scenes:die", service="deadly")
    scene.wait_seen('bstar_workers_lost_total{service="deadly"} == 0')
    scene.wait_seen('bstar_requests_total{service="deadly",outcome="poisoned"} == 0')
    yield
    client = scene.client()
    for _ in range(2):
        _ask_in_vain(client, "deadly", 30.0)
    yield


def the_journal_cannot_be_written(scene: Scene) -> Iterator[None]:
    scene.start()
    scene.worker("echo", echo)
    yield
    # The limit of its files is reached by itself.
    scene.keep_asking(scene.client(), "echo", pause_s=0.01)
    yield
    node = scene.pair.primary
    node.stop()
    node.argv = (*COMMAND, "serve", "--config", str(node.config_path))
    node.start()


def the_epoch_cannot_be_saved(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    folder = Path(scene.pair.backup.config["state_dir"])
    folder.rename(folder.with_suffix(".away"))
    folder.write_text("no folder")
    scene.take_over()
    yield
    folder.unlink()
    folder.with_suffix(".away").rename(folder)


def operators_pause(scene: Scene) -> Iterator[None]:
    scene.start()
    scene.worker("echo", echo)
    scene.client().request("echo", b"x")
    yield
    scene.run("pause", scene.pair.primary, "--for", "2h", "--reason", "alerts")
    scene.run("service pause echo", scene.pair.primary, "--reason", "alerts")
    yield
    scene.run("resume", scene.pair.primary)
    scene.run("service resume echo", scene.pair.primary)


def only_one_node_has_a_front(scene: Scene) -> Iterator[None]:
    yield
    scene.start()
    yield
    node = scene.pair.backup
    config = json.loads(node.config_path.read_text())
    del config["fronts"]
    node.stop()
    node.config_path.write_text(json.dumps(config))
    node.start()


def the_http_front_hangs(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    [front] = scene.pair.primary.children
    with stopped(front):
        yield


def the_list_of_principals_is_broken(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    assert scene.pair.keys is not None
    path = scene.pair.keys.principals
    text = path.read_text()
    path.write_text("principals: [")
    yield
    path.write_text(text)


def strangers_shake_hands(scene: Scene) -> Iterator[None]:
    scene.start()
    yield
    port = int(scene.pair.primary.endpoint.rpartition(":")[2])
    # A connection that ends at once may be gone before the node reads its address, and counts among all.
    flood = Flood(port, KINDS["half a handshake"], source="127.0.1.1")
    scene.resources.callback(flood.close)

    def knock() -> None:
        # Those that the kernel drops stay in its queue until their time is over.
        if len(flood) < 200:
            flood.open(1)
        flood.turn(0.2, 0.0)

    with repeated(knock, 0.002):
        yield


def the_arbiter_is_killed_and_the_peer_cut_off(scene: Scene) -> Iterator[None]:
    scene.start()
    assert scene.pair.arbiter is not None
    yield
    scene.pair.arbiter.kill()
    scene.pair.primary.wait_for("no arbiter", lambda state: not state.pair.quorum.is_arbiter_heard)  # type: ignore[union-attr]
    scene.pair.backup.pause()
    yield
    scene.pair.backup.resume()
    scene.pair.arbiter.launch()


def a_disk_is_away(scene: Scene) -> Iterator[None]:
    scene.start()
    scene.client().submit("later", b"x")
    yield
    scene.pair.backup.kill()
    yield
    scene.pair.backup.start()


def the_store_waits_for_its_peer(scene: Scene) -> Iterator[None]:
    yield
    scene.pair.launch()
    scene.pair.backup.pause()
    scene.keep_asking(scene.client(timeout=60.0), "anything")
    yield
    scene.pair.backup.resume()


def the_peers_disk_hangs(scene: Scene) -> Iterator[None]:
    scene.start()
    client = scene.client(timeout=120.0)
    client.submit("later", b"x")
    yield
    scene.pair.backup.pause()
    thread = threading.Thread(target=lambda: _submit_in_vain(client))
    thread.start()
    yield
    scene.pair.backup.resume()
    thread.join()


def _submit_in_vain(client: HAClient) -> None:
    with suppress(BstarError):
        client.submit("later", b"x")


def durable_requests_wait_and_die(scene: Scene) -> Iterator[None]:
    scene.start()
    client = scene.client()

    def handle(request: Request) -> bytes:
        raise ValueError("never")

    scene.worker("dead", handle)
    scene.wait_seen('bstar_store_ended_total{state="dead"} == 0')
    yield
    waiting = [client.submit("nobody", b"x") for _ in range(10)]
    client.submit("dead", b"x", retries=RetryPolicy(max=1))
    yield
    for request in waiting:
        client.cancel(request)
        client.close_result(request)


def a_disk_is_slow(scene: Scene) -> Iterator[None]:
    disk = scene.disk(scene.pair.backup)
    scene.start()
    scene.keep_submitting()
    yield
    with disk.slow(0.5):
        yield


def a_disk_fails(scene: Scene) -> Iterator[None]:
    disk = scene.disk(scene.pair.backup)
    scene.start()
    scene.keep_submitting()
    yield
    disk.fail_syncs(1_000_000)
    yield
    disk.fail_syncs(0)


@dataclass(frozen=True)
class Scenario:
    """``alerts`` fire because of ``play``; ``options`` are those of the pair."""

    play: Callable[[Scene], Iterator[None]]
    alerts: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.play.__name__


STAY = {"on_clients_cut_off": "stay"}
PATIENT = {"timing.failover_timeout_s": 2.0, "timing.worker_heartbeat_interval_s": 1.0}
PPP = {"fronts.ppp.clients": "tcp://127.0.0.1:*", "fronts.ppp.workers": "tcp://127.0.0.1:*"}


def limited(option: str) -> dict[str, Sequence[str]]:
    """The primary with a limit of its shell."""
    return {"primary": ("bash", "-c", f'ulimit {option} && exec "$@"', "bash", *COMMAND)}


SCENARIOS = (
    Scenario(one_node_is_killed, ("BstarTargetDown", "BstarPeerLinkDown")),
    Scenario(both_nodes_are_killed, ("BstarNoneActive",)),
    Scenario(
        the_nodes_do_not_hear_each_other,
        ("BstarBothActive",),
        {"settings": {"endpoints.peer_state": "tcp://127.0.0.1:9"}},
    ),
    Scenario(clients_reach_the_passive_node_only, ("BstarClientsCutOff",), {"settings": STAY}),
    Scenario(the_role_moves_often, ("BstarFlapping",)),
    Scenario(the_loop_is_late, ("BstarLoopLag",), {"settings": PATIENT}),
    Scenario(descriptors_run_out, ("BstarDescriptorsShort",), {"commands": limited("-n 100")}),
    Scenario(nobody_works, ("BstarNoWorkers",)),
    Scenario(handlers_fail, ("BstarServiceFails", "BstarServiceFailsSlowly")),
    Scenario(a_handler_hangs, ("BstarRequestStuck", "BstarRequestsWait")),
    Scenario(
        requests_kill_their_workers,
        ("BstarWorkersLost", "BstarPoisonRequests"),
        {"settings": {"limits.deliveries_max": 3}},
    ),
    Scenario(
        the_journal_cannot_be_written,
        ("BstarJournalTrouble",),
        {"commands": limited("-f 200"), "has_journals": True},
    ),
    Scenario(the_epoch_cannot_be_saved, ("BstarEpochUnsaved",)),
    Scenario(operators_pause, ("BstarTakeoversPaused", "BstarServicePaused")),
    Scenario(only_one_node_has_a_front, ("BstarFrontsApart",), {"backup": PPP}),
    Scenario(the_http_front_hangs, ("BstarFrontDown",), {"doors": ["fronts.http.bind"]}),
    Scenario(the_list_of_principals_is_broken, ("BstarSecurityFilesBroken",), {"is_secure": True}),
    Scenario(strangers_shake_hands, ("BstarHeldOff",), {"is_secure": True}),
    Scenario(
        the_arbiter_is_killed_and_the_peer_cut_off,
        ("BstarArbiterSilent", "BstarMajorityLost"),
        {"has_arbiter": True},
    ),
    Scenario(a_disk_is_away, ("BstarStoreOneCopy",), {"has_store": True}),
    Scenario(a_disk_is_slow, ("BstarStoreSyncSlow",), {"has_store": True}),
    Scenario(a_disk_fails, ("BstarStoreDamaged",), {"has_store": True}),
    Scenario(
        the_store_waits_for_its_peer,
        ("BstarStoreNotLeading",),
        {"has_store": True, "settings": {"store.peer_timeout_s": 600.0}},
    ),
    Scenario(
        the_peers_disk_hangs,
        ("BstarStoreLags",),
        {"has_store": True, "settings": {"store.peer_timeout_s": 600.0}},
    ),
    Scenario(
        durable_requests_wait_and_die,
        ("BstarDurableRequestsWait", "BstarDeadLetters", "BstarStoreNearlyFull"),
        {"has_store": True, "settings": {"store.requests_max": 11}},
    ),
)


def make_pair(folder: Path, scenario: Scenario) -> Pair:
    """The pair of a scenario; nothing runs yet."""
    options = dict(scenario.options)
    place = folder / scenario.name
    if options.pop("has_journals", False):
        options["journals"] = place / "journals"
    if "backup" in options:
        with LoopbackHost() as host:
            ports = iter(host.ports(len(options["backup"])))
            options["backup"] = {
                key: value.replace("*", str(next(ports))) for key, value in options["backup"].items()
            }
    return Pair(place, name=scenario.name.replace("_", "-"), **options)
