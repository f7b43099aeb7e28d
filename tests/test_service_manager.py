"""systemd hears of a node: ready, role, alive, reloading, stopping; and its unit files are what it takes."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from bstar.errors import ConfigurationError
from bstar.host.service_manager import ServiceManager
from bstar.net.reactor import Reactor
from bstar.settings import sample_settings
from bstar.star import State
from bstar_broker.supervision import Supervision
from bstar_cli.systemd import Kind, unit
from bstar_testing import Pair
from bstar_testing.nodes import COMMAND
from support.waiting import LIMIT_S

PID = 7
KINDS: tuple[Kind, ...] = ("node", "arbiter", "worker", "app")


class Manager:
    """The end of systemd: what processes told it."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(LIMIT_S)

    def next(self) -> dict[str, str]:
        """The next message."""
        lines = self._socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def wait_for(self, name: str, value: str | None = None) -> dict[str, str]:
        """The next message that says this; those before it are dropped."""
        while True:
            message = self.next()
            if name in message and value in (None, message[name]):
                return message

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def test_without_a_manager_nobody_is_told() -> None:
    assert ServiceManager.of({}, PID) is None


@pytest.mark.loopback
def test_the_watchdog_is_for_the_process_that_it_names(manager: Manager) -> None:
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(PID)}
    for pid, watchdog_s in ((PID, 30.0), (PID + 1, None)):
        made = ServiceManager.of(variables, pid)
        assert made is not None
        with made:
            assert made.watchdog_s == watchdog_s


@pytest.mark.loopback
@pytest.mark.parametrize(
    "wrong", [{"NOTIFY_SOCKET": "tcp:1"}, {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"}]
)
def test_a_wrong_variable_is_named(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=list(wrong)[-1]):
        ServiceManager.of(wrong, PID)


@pytest.mark.loopback
def test_a_manager_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ServiceManager(str(tmp_path / "nobody")) as gone:
        gone.alive()
        gone.alive()
    with ServiceManager("/" + "x" * 200) as impossible:
        impossible.alive()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "too long" in caplog.text


@pytest.mark.loopback
@pytest.mark.parametrize("error", [ConfigurationError("no YAML"), MemoryError("no memory")])
def test_a_reload_that_fails_is_logged_and_ends_for_the_manager(
    manager: Manager, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    machine = SimpleNamespace(state=State.ACTIVE, epochs=SimpleNamespace(own=3))
    with Reactor() as reactor, ServiceManager(manager.address) as told:
        server: Any = SimpleNamespace(
            reactor=reactor, settings=sample_settings("primary"), node=Mock(machine=machine)
        )
        supervision = Supervision(server, told, Mock(side_effect=error), Mock())
        manager.wait_for("READY")
        supervision.reload_soon()
        reactor.turn()
    manager.wait_for("RELOADING")
    assert manager.next()["READY"] == "1"
    assert str(error) in caplog.text


@pytest.fixture
def hook(tmp_path: Path) -> tuple[Path, Path]:
    """A program that writes its arguments down, and where."""
    program, told = tmp_path / "hook", tmp_path / "told"
    program.write_text(f'#!/bin/sh\necho "$BSTAR_PAIR $BSTAR_ROLE $1 $2 $3" >> {told}\n')
    program.chmod(0o755)
    told.touch()
    return program, told


@pytest.mark.loopback
def test_the_manager_and_the_hook_follow_a_node_from_its_start_to_its_end(
    manager: Manager, hook: tuple[Path, Path], tmp_path: Path
) -> None:
    program, told = hook
    variables = (f"NOTIFY_SOCKET={manager.address}", "WATCHDOG_USEC=2000000")
    settings = {"hooks.on_role_change": str(program)}
    commands = {"primary": ("env", *variables, *COMMAND)}
    with Pair(tmp_path / "pair", primary=settings, commands=commands) as pair:
        node = pair.primary
        pair.launch()
        assert manager.next() == {"READY": "1", "STATUS": "primary, epoch 0"}
        manager.wait_for("STATUS", "active, epoch 1")
        manager.wait_for("WATCHDOG", "1")
        node.wait_until(lambda: told.read_text() == "test primary primary active 1\n", "the hook has run")

        config = dict(node.config) | {"limits": {"services_max": 7}, "pair": "other"}
        node.config_path.write_text(json.dumps(config))
        node.send_signal(signal.SIGHUP)
        manager.wait_for("RELOADING")
        manager.wait_for("READY")
        node.wait_for_log("configuration read again")
        said = [line for line in node.log().splitlines() if "read again" in line]
        assert json.loads(said[0])["in_force"] == ["limits.services_max"]
        assert json.loads(said[0])["need_a_restart"] == ["pair"]

        node.config_path.write_text("{}")
        node.send_signal(signal.SIGHUP)
        node.wait_for_log("goes on as before")

        node.terminate()
        manager.wait_for("STOPPING", "1")
        assert node.wait_exit() == 0
        assert told.read_text().splitlines()[1:] == ["test primary active passive 1"]


@pytest.mark.loopback
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("kind", KINDS)
def test_systemd_takes_the_unit(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / f"bstar-{kind}.service"
    path.write_text(unit(kind, "serve --set pair=50%", user=None, program=Path("/bin/true")))
    done = subprocess.run(("systemd-analyze", "verify", path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_a_node_tells_systemd_that_it_is_ready() -> None:
    notifying = [
        kind for kind in KINDS if "Type=notify" in unit(kind, "x", user="u", program=Path("/bin/true"))
    ]
    assert notifying == ["node"]
