"""The keys of docker-compose.yml: made once, and good for what its services do. Real processes, no engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bstar.settings import load
from bstar.settings.principals import load_principals
from bstar_cli import exits
from bstar_testing import LoopbackHost, Pair
from bstar_testing.nodes import COMMAND
from bstar_testing.processes import environment

ROOT = Path(__file__).parents[1]
SERVICES: dict[str, Any] = {
    name: found
    for file in ("docker-compose.arbiter.yml", "docker-compose.yml")
    for name, found in yaml.safe_load((ROOT / file).read_text())["services"].items()
}

pytestmark = pytest.mark.loopback


def make_keys(root: Path, clone: Path = ROOT) -> None:
    """What the service "keys" of this clone runs, with its volumes under ``root``."""
    entrypoint, script = SERVICES["keys"]["entrypoint"]
    path = clone / "configs" / script.removeprefix("/etc/bstar/")
    for volume in ("keys", "worker-keys", "load-keys"):
        (root / volume).mkdir(mode=0o700, parents=True, exist_ok=True)
    variables = environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([entrypoint, str(path), str(root)], env=variables, check=True, timeout=120)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.*"))}


def variables_of(service: str, root: Path) -> dict[str, str]:
    """The keys that the service's environment names, where they are under ``root``."""
    (volume,) = (mount.partition(":")[0] for mount in SERVICES[service]["volumes"])
    return {
        name: text.replace("/keys/", f"{root / volume}/")
        for name, text in SERVICES[service]["environment"].items()
        if name != "BSTAR_ENDPOINTS"
    }


def bstar(pair: Pair, root: Path, *arguments: str) -> tuple[int, str]:
    """Run the command as the service ``load`` would."""
    variables = environment() | variables_of("load", root) | {"BSTAR_ENDPOINTS": ",".join(pair.endpoints)}
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=variables, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def keyed_pair(root: Path, settings: dict[str, object] | None = None) -> Pair:
    """A pair whose nodes have the keys under ``root`` that their configurations name."""

    def place(path: str | None) -> str:
        assert path is not None
        return f"{root}{path}"

    primary, backup = (
        {"security.key": place(found.key), "security.principals": place(found.principals), **(settings or {})}
        for found in (load(ROOT / f"configs/compose-{role}.yaml").security for role in ("primary", "backup"))
    )
    return Pair(root / "pair", primary=primary, backup=backup)


def test_the_keys_are_made_once_and_each_client_has_its_own_alone(tmp_path: Path) -> None:
    make_keys(tmp_path)
    made = files(tmp_path)
    make_keys(tmp_path)
    assert files(tmp_path) == made
    for client in ("worker", "load"):
        owned = {path.name for path in (tmp_path / f"{client}-keys").iterdir()}
        assert owned == {"own.key", "primary.pub", "backup.pub"}
        assert made[f"{client}-keys/own.key"] == made[f"keys/{client}.key"]
    secrets = list(tmp_path.rglob("*.key"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_a_key_that_is_changed_reaches_its_owner(tmp_path: Path) -> None:
    make_keys(tmp_path)
    old = (tmp_path / "worker-keys" / "own.key").read_bytes()
    subprocess.run(
        [*COMMAND, "keys", "rotate", "worker", "--out", str(tmp_path / "keys")], check=True, timeout=120
    )
    make_keys(tmp_path)
    new = (tmp_path / "worker-keys" / "own.key").read_bytes()
    assert old != new == (tmp_path / "keys" / "worker.next.key").read_bytes()
    assert len(load_principals(tmp_path / "keys" / "principals.yaml").all) == 5


def test_the_services_of_the_compose_files_work_with_these_keys(tmp_path: Path) -> None:
    make_keys(tmp_path)
    with LoopbackHost() as host:
        arbiter = f"tcp://127.0.0.1:{host.ports(1)[0]}"
        with keyed_pair(tmp_path, {"endpoints.arbiter": arbiter}) as pair:
            asked = [word.replace("/keys/", f"{tmp_path}/keys/") for word in SERVICES["arbiter"]["command"]]
            asked[asked.index("--bind") + 1] = arbiter
            pair.start_process("arbiter", [*COMMAND, *asked])
            pair.start()
            for node in pair.nodes:
                node.wait_for(
                    "hears the arbiter",
                    lambda state: state.pair.quorum and state.pair.quorum.is_arbiter_heard,
                )
            _, _, service, handler = SERVICES["worker-1"]["command"]
            pair.start_workers(1, handler, service=service, environment=variables_of("worker-1", tmp_path))
            assert bstar(pair, tmp_path, "status")[0] == 0
            asked_for = SERVICES["load"]["command"][1]
            assert bstar(pair, tmp_path, "call", asked_for, "hello") == (0, "hello")
            status, text = bstar(pair, tmp_path, "call", "payroll", "hello")
            assert (status, "load may not call" in text) == (1, True), text
            assert not pair.odd_ends


def services_of(page: str) -> dict[str, dict[str, Any]]:
    """Those of the compose file on a page of docs/."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    return found["services"]


def run_sed(page: str, clone: Path) -> None:
    """The tutorial's line, which lets the worker offer the shop's services and the client call them."""
    [sed] = re.findall(r"^    (sed .*)$", page, re.MULTILINE)
    subprocess.run(["sh", "-c", sed], cwd=clone, check=True, timeout=120)


def test_roles_that_change_once_the_keys_are_there_are_changed_in_the_list(tmp_path: Path) -> None:
    """docs/deployment.md, "Who may do what": the script alone is refused, its line of sed mends the list."""
    make_keys(tmp_path)
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "configs", clone / "configs")
    run_sed((ROOT / "docs" / "tutorial.md").read_text(), clone)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        make_keys(tmp_path, clone)
    assert caught.value.returncode == exits.USAGE
    page = (ROOT / "docs" / "deployment.md").read_text().replace(" \\\n", "")
    [arguments] = re.findall(r"^    docker compose run --rm --entrypoint sed keys (.*)$", page, re.MULTILINE)
    sed = f"sed {arguments.replace('/keys/', f'{tmp_path}/keys/')}"
    subprocess.run(["sh", "-c", sed], check=True, timeout=120)
    make_keys(tmp_path, clone)
    entries = {each.name: each for each in load_principals(tmp_path / "keys" / "principals.yaml").all}
    assert set(entries["worker"].offers.texts) == {"echo", "price", "order"}
    assert set(entries["load"].calls.texts) == {"echo", "price", "order"}


def test_an_app_of_ones_own_has_what_a_worker_of_the_compose_file_has() -> None:
    """docs/deployment.md, "Your app in containers"."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    worker = SERVICES["worker-1"]
    [shop] = services_of(page).values()
    url = shop["environment"].pop("HEALTH_URL")
    assert f"http://{shop['command'][-1]}/healthz" == url
    own = {"image", "build", "command", "stop_grace_period"}
    assert {key: shop[key] for key in shop.keys() - own} == {key: worker[key] for key in shop.keys() - own}
    assert worker.keys() - shop.keys() == {"init", "healthcheck"}
    image = page.partition("```dockerfile\n")[2].partition("```")[0]
    base = (ROOT / "Dockerfile").read_text()
    assert image.endswith("USER 10001:10001\n")
    assert "\nUSER 10001:10001\n" in base
    assert image.count("pip --python /opt/bstar/bin/python ") == 2
    assert "COPY --from=build /opt/bstar /opt/bstar\n" in base


def test_the_shop_of_the_tutorial_serves_with_the_keys_of_a_worker(tmp_path: Path) -> None:
    """docs/tutorial.md, step 8, where there is no engine: its line of sed, its service, its call."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    [(name, shop)] = services_of(page).items()
    assert shop.keys() - SERVICES[name].keys() == {"working_dir"}, "the rest is in place of the worker's"
    assert shop["volumes"] == [f"./shop.py:{shop['working_dir']}/shop.py:ro"]
    shutil.copytree(ROOT / "configs", tmp_path / "clone" / "configs")
    run_sed(page, tmp_path / "clone")
    make_keys(tmp_path, tmp_path / "clone")
    (tmp_path / "clone" / "shop.py").write_text(
        page.partition("```python\n# shop.py\n")[2].partition("```")[0]
    )
    with keyed_pair(tmp_path) as pair:
        pair.start()
        argv = ["env", "-C", str(tmp_path / "clone"), *COMMAND, *shop["command"]]
        pair.start_process("shop", argv, variables_of(name, tmp_path))
        [call] = re.findall(r"exec load bstar (call .*)$", page, re.MULTILINE)
        asked = bstar(pair, tmp_path, *shlex.split(call), "--timeout", "60")
        assert (asked[0], json.loads(asked[1])) == (0, {"cents": 1_250})
        assert not pair.odd_ends
