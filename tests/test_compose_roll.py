"""The rolling recipe against a compose that does as it is told, and what the compose test leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compose.leftovers import Network

SCRIPT = Path(__file__).parents[1] / "configs" / "compose-roll.sh"

# Stands for "docker compose": keeps the nodes in a file, writes down each "up", moves the role as nodes do.
COMPOSE = """
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
words = sys.argv[2:]
world = json.loads((folder / "world.json").read_text())
nodes = ("primary", "backup")
if words[0] == "exec":
    node = words[2]
    assert words[3:5] == ["python3", "-c"]
    compile(words[5], "look", "exec")
    if world["starting"].get(node, 0) > 0:
        world["starting"][node] -= 1
        (folder / "world.json").write_text(json.dumps(world))
        sys.exit(1)
    if node in world["broken"]:
        sys.exit(1)
    print(world["states"][node], world["workers"])
    sys.exit(0)
assert words[:2] == ["up", "--detach"], words
names = [word for word in words[2:] if not word.startswith("--")]
serving = [node for node in nodes if world["states"][node] == "ACTIVE"]
with (folder / "log").open("a") as log:
    log.write(json.dumps([*names, *(word for word in words[2:] if word.startswith("--")), serving]) + "\\n")
for name in names:
    if name in nodes:
        other = nodes[1 - nodes.index(name)]
        if world["states"][name] == "ACTIVE":
            world["states"][other] = "ACTIVE"
        world["states"][name] = "PASSIVE"
        world["starting"][name] = 2
        if name in world["breaks"]:
            world["broken"].append(name)
(folder / "world.json").write_text(json.dumps(world))
"""


def roll(
    folder: Path,
    *arguments: str,
    primary: str = "ACTIVE",
    backup: str = "PASSIVE",
    breaks: tuple[str, ...] = (),
) -> tuple[subprocess.CompletedProcess[str], list[list[object]]]:
    """Run the script; what it printed, and each "up": the services, its options, and who served before it."""
    (folder / "compose.py").write_text(COMPOSE)
    world = {
        "states": {"primary": primary, "backup": backup},
        "workers": 2,
        "starting": {},
        "breaks": breaks,
        "broken": [],
    }
    (folder / "world.json").write_text(json.dumps(world))
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    # The pauses between two looks are no part of the test.
    (bin_folder / "sleep").write_text("#!/bin/sh\n")
    (bin_folder / "sleep").chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT), *arguments],
        env={
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "COMPOSE": f"{sys.executable} {folder / 'compose.py'} {folder}",
            "ROLL_LIMIT_S": "3",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    log = folder / "log"
    return done, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.loopback
@pytest.mark.parametrize(("active", "standby"), [("primary", "backup"), ("backup", "primary")])
def test_the_node_that_stands_by_comes_first_and_one_always_serves(
    tmp_path: Path, active: str, standby: str
) -> None:
    states = {active: "ACTIVE", standby: "PASSIVE"}
    done, ups = roll(tmp_path, "--force-recreate", **states)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    options = ["--no-deps", "--force-recreate"]
    assert ups == [
        [standby, *options, [active]],
        [active, *options, [active]],
        ["worker-1", *options, [standby]],
        ["worker-2", *options, [standby]],
        [[standby]],
    ]
    assert f"{standby} serves, {active} stands by" in done.stdout


@pytest.mark.loopback
def test_a_node_that_does_not_come_back_stops_it_before_the_other_is_touched(tmp_path: Path) -> None:
    done, ups = roll(tmp_path, breaks=("backup",))
    assert done.returncode == 1
    assert "backup does not stand by" in done.stderr
    assert ups == [["backup", "--no-deps", ["primary"]]]


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("primary", "backup"), [("ACTIVE", "BACKUP"), ("PASSIVE", "PASSIVE"), ("ACTIVE", "ACTIVE")]
)
def test_a_pair_that_is_not_whole_is_left_alone(tmp_path: Path, primary: str, backup: str) -> None:
    done, ups = roll(tmp_path, primary=primary, backup=backup)
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert ups == []


SAVED = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A FORWARD -s 10.9.0.0/24 -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 10.9.0.0/24 -j MASQUERADE
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
"""


def test_what_an_engine_leaves_in_the_network_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    forwarding, links = tmp_path / "ip_forward", tmp_path / "net"
    links.mkdir()
    forwarding.write_text("0\n")
    saved, ran = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n", []

    def run(command: list[str]) -> str:
        if command != ["iptables-save"]:
            ran.append(" ".join(command))
        return saved

    network = Network(run, forwarding=forwarding, links=links)
    saved = SAVED
    forwarding.write_text("1\n")
    (links / "docker0").mkdir()
    network.restore()
    assert forwarding.read_text() == "0\n"
    assert ran == [
        "iptables -t filter -F DOCKER",
        "iptables -t filter -F DOCKER-USER",
        "iptables -t filter -D FORWARD -j DOCKER-USER",
        "iptables -t filter -D FORWARD -i docker0 -o docker0 -j ACCEPT",
        "iptables -t nat -F DOCKER",
        "iptables -t nat -D POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "iptables -t nat -D PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
        "iptables -t filter -X DOCKER",
        "iptables -t filter -X DOCKER-USER",
        "iptables -t nat -X DOCKER",
        "iptables -P FORWARD ACCEPT",
        "ip link delete docker0",
    ]


def test_a_machine_with_an_engine_of_its_own_keeps_its_network(tmp_path: Path) -> None:
    forwarding, links = tmp_path / "ip_forward", tmp_path / "net"
    (links / "docker0").mkdir(parents=True)
    forwarding.write_text("1\n")
    ran = []

    def run(command: list[str]) -> str:
        ran.append(command)
        return SAVED

    Network(run, forwarding=forwarding, links=links).restore()
    assert ran == [["iptables-save"]]
