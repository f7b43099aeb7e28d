"""The files that users copy agree with each other and with the program; whether they work, compose tells."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bstar.settings import Settings, load
from bstar.settings.relations import pair_problems
from bstar_broker.bounds.memory import bytes_needed
from bstar_cli import exits
from bstar_cli.main import main

ROOT = Path(__file__).parents[1]
FILES = ("docker-compose.yml", "docker-compose.chaos.yml", "docker-compose.arbiter.yml")
NODES = ("primary", "backup")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def compose(name: str = FILES[0]) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return document


def settings(role: str, environ: dict[str, str] | None = None) -> Settings:
    return load(ROOT / "configs" / f"compose-{role}.yaml", environ=environ or {})


def test_the_two_configurations_are_a_pair() -> None:
    primary, backup = (settings(role) for role in NODES)
    assert (primary.role, backup.role) == NODES
    assert pair_problems(primary, backup) == []


def test_they_can_be_checked_without_docker_and_without_the_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/deployment.md has the line."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8").replace(" \\\n", "")
    [line] = re.findall(r"^    (.*) bstar (check-config .*)$", page, re.MULTILINE)
    variables, command = map(shlex.split, line)
    for variable in variables:
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    assert main(command) == exits.OK
    assert capsys.readouterr().out.endswith("the two are a pair\n")


@pytest.mark.parametrize("node", NODES)
def test_a_node_hears_its_peer_in_the_peers_network_only(node: str) -> None:
    peer = NODES[1 - NODES.index(node)]
    host = settings(node).endpoints.peer_state.removeprefix("tcp://").partition(":")[0]
    assert compose()["services"][peer]["networks"]["peers"]["aliases"] == [host]
    assert host not in compose()["services"]


@pytest.mark.parametrize("node", NODES)
def test_a_node_has_the_time_to_hand_over_before_it_is_killed(node: str) -> None:
    timing = settings(node).timing
    grace_s = float(compose()["services"][node]["stop_grace_period"].removesuffix("s"))
    assert grace_s > timing.drain_timeout_s + 2 * timing.failover_timeout_s


@pytest.mark.parametrize("node", NODES)
def test_a_node_has_no_rights_and_writes_to_its_volume_only(node: str) -> None:
    service = compose()["services"][node]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["init"] is True
    state, journal = settings(node).state_dir, settings(node).journal.directory
    store = settings(node).store.directory
    assert [mount for mount in service["volumes"] if not mount.endswith(":ro")] == [
        f"{node}-state:{state}",
        f"{node}-journal:{journal}",
        f"{node}-store:{store}",
    ]
    assert f" {state} {journal} {store} " in DOCKERFILE, (
        "a new volume takes over the owner of the image's folder"
    )
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.MULTILINE)


def test_each_volume_is_declared() -> None:
    declared: set[str] = set()
    for name in FILES:
        declared |= compose(name).get("volumes", {}).keys()
    mounts = [
        mount.partition(":")[0]
        for name in FILES
        for found in compose(name)["services"].values()
        for mount in found.get("volumes", ())
    ]
    assert {mount for mount in mounts if not mount.startswith(".")} == declared


def test_the_store_s_link_is_in_the_peers_network() -> None:
    primary, backup = (settings(role).store.link or "" for role in NODES)
    assert primary.removeprefix("tcp://").partition(":")[0] == "*"
    host, _, port = backup.removeprefix("tcp://").partition(":")
    assert port == primary.rpartition(":")[2]
    assert compose()["services"]["primary"]["networks"]["peers"]["aliases"] == [host]


def test_whoever_needs_a_key_waits_until_it_is_made() -> None:
    services = {**compose()["services"], **_alone(compose(FILES[2])["services"])}
    made = services.pop("keys")
    places = dict(mount.rsplit(":", 1) for mount in made["volumes"] if not mount.endswith(":ro"))
    assert all(f"{place} " in DOCKERFILE.replace("\n", " ") for place in places.values()), "of its user"
    assert made["restart"] == "no"
    assert made["network_mode"] == "none"
    users = {name: found for name, found in services.items() if "bstar" in found["image"]}
    assert users.keys() == {"primary", "backup", "worker-1", "worker-2", "load", "arbiter"}
    for name, found in users.items():
        assert found["depends_on"]["keys"] == {"condition": "service_completed_successfully"}, name
        (volume,) = (mount for mount in found["volumes"] if mount.endswith(":/keys:ro"))
        assert volume.partition(":")[0] in places
        is_client = "BSTAR_KEY" in found.get("environment", {})
        assert is_client == (volume != "keys:/keys:ro"), "who is no node has the volume of its own key"


def _alone(services: dict[str, Any]) -> dict[str, Any]:
    """Those that the file adds."""
    return {name: found for name, found in services.items() if "image" in found}


@pytest.mark.parametrize("name", FILES)
def test_no_service_goes_without_keys(name: str) -> None:
    assert "insecure" not in (ROOT / name).read_text(encoding="utf-8")
    assert not any(settings(node).insecure for node in NODES)


@pytest.mark.parametrize("name", FILES)
def test_every_container_has_bounds_of_memory_and_cpu(name: str) -> None:
    services = compose(name)["services"]
    for service, found in services.items():
        if "image" in found:
            assert {"mem_limit", "cpus"} <= found.keys(), service


@pytest.mark.parametrize("node", NODES)
def test_a_node_s_limits_fit_into_its_container(node: str) -> None:
    text = compose()["services"][node]["mem_limit"]
    default = re.fullmatch(r"\$\{NODE_MEMORY:-(\d+)g\}", text)
    assert default is not None
    assert bytes_needed(settings(node)) < int(default[1]) * (1 << 30)


@pytest.mark.parametrize("name", FILES[:2])
def test_ports_are_published_on_loopback_only(name: str) -> None:
    published = [port for each in compose(name)["services"].values() for port in each.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", FILES)
def test_images_have_short_names(name: str) -> None:
    for service in compose(name)["services"].values():
        image = re.sub(r"\$\{\w+:-(.*)\}", r"\1", service.get("image", "bstar"))
        assert "." not in image.partition("/")[0].partition(":")[0], image


@pytest.mark.parametrize("node", NODES)
def test_a_proxied_link_proves_nothing_by_refusing(node: str) -> None:
    environment = compose(FILES[1])["services"][node]["environment"]
    assert settings(node, environment).timing.expire_on_refused is False
    assert settings(node).timing.expire_on_refused is True
    proxies = {each["listen"].rpartition(":")[2]: each for each in yaml.safe_load(_toxiproxy())}
    proxy = proxies[settings(node, environment).endpoints.peer_state.rpartition(":")[2]]
    assert f"tcp://{proxy['upstream']}" == settings(node).endpoints.peer_state
    assert proxy["name"].startswith(f"{node}_hears_")


@pytest.mark.parametrize("node", NODES)
def test_both_nodes_ask_the_same_arbiter_where_it_listens(node: str) -> None:
    services = compose(FILES[2])["services"]
    asked = settings(node, services[node]["environment"]).endpoints.arbiter
    assert asked == "tcp://arbiter:5010"
    assert services["arbiter"]["command"][2].rpartition(":")[2] == asked.rpartition(":")[2]
    assert services["arbiter"]["networks"] == ["clients"]


def _toxiproxy() -> str:
    return (ROOT / "configs" / "toxiproxy.json").read_text(encoding="utf-8")


def test_the_image_is_built_from_all_that_the_package_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    let_in = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.partition("/")[0] for package in packages} <= let_in
    assert {"pyproject.toml", "constraints.txt", "README.md", *project["project"]["license-files"]} <= let_in
    # The layer of the dependencies, which is kept while only the program changes.
    table = project["project"]
    extras = table["optional-dependencies"]
    installed = re.search(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert installed is not None
    assert installed[1] == "http,schema", "a node's HTTP front and the check of `bstar call`; each has server"
    listed = [*table["dependencies"], *extras["server"], *extras["http"], *extras["schema"]]
    names = {re.split(r"[<>=~! ]", each)[0] for each in listed if not each.startswith("bstar[")}
    layer = re.search(r"constraints\.txt \\\n +([\w -]+)\n", DOCKERFILE)
    assert layer is not None
    assert set(layer[1].split()) == names


def test_the_health_check_asks_where_the_node_listens() -> None:
    for node in NODES:
        bind = settings(node).http.bind
        assert bind is not None
        assert f"ENV HEALTH_URL=http://127.0.0.1:{bind.rpartition(':')[2]}/healthz\n" in DOCKERFILE
