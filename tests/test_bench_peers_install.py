"""What ``make bench-peers`` does about servers that are missing; its apt-get is one of these tests' own."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from peers import install
from peers.contestants import all_of
from peers.install import Peers, find_or_install

APT_GET = """#!/bin/sh
echo "$*" >> {folder}/asked
test -e {policy} && {policy} nats-server start; echo "start: $?" >> {folder}/asked
case "$*" in
  *install*{fails}*) echo "W: a warning" >&2; echo "E: Unable to locate package {fails}" >&2; exit 100;;
  *install*nats-server*) cd {folder}
    printf '#!/bin/sh\\necho nats-server: v0\\n' > nats-server; chmod +x nats-server;;
esac
"""


class Machine:
    """A machine without the servers. Its apt-get installs a nats-server that does nothing."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.policy = folder / "policy-rc.d"
        self._monkeypatch = monkeypatch
        (folder / "venv/bin").mkdir(parents=True)
        self.program("venv/bin/python", "#!/bin/sh\nexit 1\n")
        monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
        monkeypatch.setattr(install, "POLICY", self.policy)
        monkeypatch.setattr(install, "RABBITMQ", folder / "rabbitmq-server")
        monkeypatch.setattr(install, "_nats_server", self.nats_server)
        self.is_root(True)

    def nats_server(self) -> str | None:
        path = self.folder / "nats-server"
        return str(path) if path.exists() else None

    def is_root(self, is_root: bool) -> None:
        self._monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)

    def program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def apt_get(self, fails: str) -> None:
        self.program("apt-get", APT_GET.format(folder=self.folder, policy=self.policy, fails=fails))

    def find(self) -> Peers:
        return find_or_install(self.folder / "venv")

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.loopback
def test_a_missing_server_is_installed_and_one_that_cannot_be_is_told(machine: Machine) -> None:
    machine.apt_get(fails="rabbitmq-server")

    peers = machine.find()

    assert peers.nats_server == str(machine.folder / "nats-server")
    assert peers.rabbitmq_server is None
    assert peers.lacks[0] == (
        "rabbitmq-server (apt-get install rabbitmq-server: Unable to locate package rabbitmq-server)"
    )
    assert "nats-server: v0" in peers.told
    asked = [line for line in machine.asked if not line.startswith("start")]
    assert [line.split()[-1] for line in asked] == ["update", "nats-server", "rabbitmq-server"]


@pytest.mark.loopback
def test_packages_may_not_start_their_servers_while_they_are_installed(machine: Machine) -> None:
    machine.apt_get(fails="rabbitmq-server")
    machine.find()
    started = [line for line in machine.asked if line.startswith("start")]
    assert started == ["start: 1", "start: 101", "start: 101"]
    assert not machine.policy.exists(), "it was there for the installation only"


@pytest.mark.loopback
def test_a_policy_that_the_machine_has_stays(machine: Machine) -> None:
    machine.apt_get(fails="rabbitmq-server")
    machine.program("policy-rc.d", "#!/bin/sh\nexit 0\n")
    machine.find()
    assert machine.policy.read_text() == "#!/bin/sh\nexit 0\n"


@pytest.mark.loopback
def test_who_is_not_root_is_told_what_to_type(machine: Machine) -> None:
    machine.apt_get(fails="rabbitmq-server")
    machine.is_root(False)
    assert machine.find().lacks[0] == (
        "nats-server rabbitmq-server (sudo apt-get install nats-server rabbitmq-server)"
    )
    assert not (machine.folder / "asked").exists()


@pytest.mark.loopback
def test_without_apt_that_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.folder))
    assert "has no apt" in machine.find().lacks[0]


@pytest.mark.loopback
def test_without_a_venv_the_clients_are_left_out(machine: Machine) -> None:
    machine.apt_get(fails="rabbitmq-server")
    (machine.folder / "file").write_text("")
    peers = find_or_install(machine.folder / "file/venv")
    assert (peers.nats_python, peers.pika_python, peers.has_uvloop) == (None, None, False)
    assert any("no venv" in lack for lack in peers.lacks)


@pytest.mark.loopback
def test_a_server_that_does_not_come_up_is_left_out(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.program("nats-server", "#!/bin/sh\necho no room; exit 1\n")
    program = str(machine.folder / "nats-server")
    peers = Peers(program, None, None, sys.executable, None, has_uvloop=False, lacks=[], told="")
    with ExitStack() as stack:
        assert all_of(stack, machine.folder, peers, ["nats"], 1) == []
    printed = capsys.readouterr().out
    assert "left out: NATS (nats-server does not come up: no room)\n" in printed
    assert "left out: NATS with TLS (" in printed
