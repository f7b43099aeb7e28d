"""Another version of bstar on one end of every link, and this one on the other.

``CHAOS_OTHER`` names a commit or a tag; without it the last release is taken, and before the first release
there is nothing to mix with.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bstar_client import HAClient
from bstar_testing import Pair
from bstar_testing.nodes import COMMAND, Node
from chaos.another import another_tree, another_version
from chaos.cluster import Profile
from chaos.history import Failed
from chaos.needs import CHAOS, until_valid
from chaos.stage import Cast, Stage, stage
from chaos.traffic import ClientLoad

pytestmark = CHAOS

# A role may only move where a test moves it, however busy the machine is.
PATIENT: Mapping[str, object] = {
    "timing.failover_timeout_s": 2.0,
    "timing.worker_heartbeat_interval_s": 1.0,
    "timing.drain_timeout_s": 30.0,
}
CAST = Cast(Profile(settings=PATIENT, has_state_dir=True, has_store=True), has_arbiter=True, is_proxied=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    version = another_version()
    if not version:
        pytest.skip("nothing is released yet: name a commit, CHAOS_OTHER=… (docs/upgrade.md)")
    return another_tree(version, tmp_path_factory.mktemp("another"))


def of(tree: Path, module: str) -> tuple[str, str, str]:
    """What ``python -m`` runs for a module of the other version."""
    return "chaos.another", str(tree), module


def expect_no_failure(run: Stage) -> None:
    assert run.run is not None
    failed = [call for call in run.run.calls if any(isinstance(end, Failed) for end in call.ends)]
    assert failed == []


@until_valid
@pytest.mark.parametrize("role", ["primary", "backup"])
def test_a_node_of_each_version_serves_workers_and_clients_of_both(tree: Path, role: str) -> None:
    """Also after the active node was killed, and after it came back."""
    launchers = {role: of(tree, "bstar_cli"), "arbiter": of(tree, "bstar_cli")}
    with stage(f"versions-{role}", cast=replace(CAST, launchers=launchers)) as run:
        run.cluster.add_worker(module=of(tree, "chaos.worker"))
        run.cluster.add_client(load=ClientLoad(), module=of(tree, "chaos.client"))
        run.wait_for_answers(30)
        for _ in range(2):
            node = run.cluster.active()
            with run.fault("kill", node.role):
                node.kill()
                run.wait_for_answers(30)
                node.launch()
                node.wait_for_state("PASSIVE")
            run.calm()


@until_valid
def test_an_upgrade_by_the_book_loses_no_call(tree: Path) -> None:
    """The steps of docs/upgrade.md, from the other version to this one."""
    launchers = dict.fromkeys(("primary", "backup", "arbiter"), of(tree, "bstar_cli"))
    cast = replace(
        CAST,
        launchers=launchers,
        worker_module=of(tree, "chaos.worker"),
        client_module=of(tree, "chaos.client"),
    )
    with stage("versions-upgrade", cast=cast) as run:
        pair = run.cluster
        run.wait_for_answers(30)
        with run.fault("upgrade", "backup"):
            renew(pair.backup)
            run.wait_for_answers(30)
            switch_over(pair.primary, to="backup")
            run.wait_for_answers(30)
        with run.fault("upgrade", "primary"):
            renew(pair.primary)
            pair.add_worker()
            pair.add_client()
            run.wait_for_answers(30)
            switch_over(pair.backup, to="primary")
            run.wait_for_answers(30)
    expect_no_failure(run)


def renew(node: Node) -> None:
    """Stop this version's forerunner; start this version; wait until it stands by."""
    node.terminate()
    node.wait_exit()
    node.argv = (*COMMAND, "serve", "--config", str(node.config_path))
    node.launch()
    node.wait_for("stands by", lambda state: state.readiness.is_ready and not state.pair.is_active)


def switch_over(node: Node, *, to: str) -> None:
    """This version's command asks a node of either version."""
    command = [*COMMAND, "switchover", "--config", str(node.config_path), "--to", to]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_durable_requests_are_on_the_disks_of_both_versions(tree: Path, tmp_path: Path, role: str) -> None:
    """Accepted by one, they are run and answered by the other; each reads the other's log."""
    commands = {role: (COMMAND[0], "-m", *of(tree, "bstar_cli"))}
    with Pair(tmp_path, settings=PATIENT, has_store=True, commands=commands) as pair:
        pair.start()
        with pair.client(timeout=60.0) as client:
            first = submit(client, 0)
            node = pair.kill_active()
            pair.start_workers(1, "echo", service="later")
            expect_answers(client, first)
            node.launch()
            # A submit waits until the store has two copies again.
            second = submit(client, 100)
            pair.kill_active()
            expect_answers(client, first + second)


def submit(client: HAClient, start: int) -> list[str]:
    """A hundred durable requests with their numbers as bodies; their ids."""
    return [client.submit("later", b"%d" % number) for number in range(start, start + 100)]


def expect_answers(client: HAClient, requests: list[str]) -> None:
    for number, request in enumerate(requests):
        result = client.result(request, wait=60.0)
        assert result is not None
        assert result.body == b"%d" % number
