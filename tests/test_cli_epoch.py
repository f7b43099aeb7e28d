"""``bstar epoch``: what a node's file says, and when it may be set to 0."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bstar.pair.epoch_file import EpochFile
from bstar_cli import exits
from bstar_cli.main import main


@pytest.fixture
def file(tmp_path: Path) -> EpochFile:
    (tmp_path / "state").mkdir()
    return EpochFile(tmp_path / "state")


def configuration(file: EpochFile, peer: str) -> str:
    """A primary's, whose peer publishes there."""
    path = file.path.parents[1] / "primary.yaml"
    path.write_text(
        f"role: primary\npair: test\nprofile: lan\nstate_dir: {file.path.parent}\nendpoints:\n"
        f"  clients: tcp://127.0.0.1:5001\n  state: tcp://127.0.0.1:5003\n  peer_state: {peer}\n"
    )
    return str(path)


@contextmanager
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> str:
    with listener() as endpoint:
        return endpoint


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (None, ["never active", "the primary 1, the backup 2"]),
        (17, ["the primary took it", "the primary 19, the backup 18"]),
        (18, ["the backup took it", "the primary 19, the backup 20"]),
        (2**40, ["too high: no pair gets above 4294967296 by itself"]),
    ],
)
def test_show_says_what_the_epoch_means(
    file: EpochFile, capsys: pytest.CaptureFixture[str], stored: int | None, said: list[str]
) -> None:
    if stored is not None:
        file.save(stored)
    assert main(["epoch", "show", str(file.path.parent)]) == exits.OK
    text = capsys.readouterr().out
    assert f"{file.path}: {stored or 0}\n" in text
    assert all(words in text for words in said)
    assert ("by itself" in text) == (stored == 2**40)


def test_show_changes_nothing_and_is_there_for_scripts(
    file: EpochFile, capsys: pytest.CaptureFixture[str]
) -> None:
    file.save(18)
    assert main(["epoch", "show", "--config", configuration(file, "tcp://127.0.0.1:1"), "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {
        "path": str(file.path),
        "epoch": 18,
        "taken_by": "backup",
        "next": {"primary": 19, "backup": 20},
        "is_plausible": True,
    }
    assert [path.name for path in file.path.parent.iterdir()] == ["epoch"]


def test_show_refuses_a_file_that_holds_no_epoch(file: EpochFile, capsys: pytest.CaptureFixture[str]) -> None:
    file.path.write_text("seven")
    assert main(["epoch", "show", str(file.path.parent)]) == exits.USAGE
    assert "holds 'seven', not an epoch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no node: name its configuration"),
        (["/nowhere/at/all"], "/nowhere/at/all is no directory"),
        (["/tmp", "--config", "primary.yaml"], "give one of them"),
        (["--config", "alone.yaml"], "state_dir is null"),
    ],
)
def test_wrong_usage_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("clients", "state", "peer_state")
    places = ", ".join(f"{name}: tcp://127.0.0.1:{port}" for port, name in enumerate(names, 1))
    Path("alone.yaml").write_text(f"role: primary\nendpoints: {{{places}}}\n")
    for verb in ("show", "reset"):
        assert main(["epoch", verb, *arguments]) == exits.USAGE
        assert text in capsys.readouterr().err


@pytest.mark.loopback
def test_reset_begins_again_at_0_and_says_what_to_do_next(
    file: EpochFile, capsys: pytest.CaptureFixture[str]
) -> None:
    file.path.write_text("4\x1b[1m")
    assert main(["epoch", "reset", "--config", configuration(file, closed_port())]) == exits.OK
    text = capsys.readouterr().out
    assert f"{file.path}: 0; before it was: 4\\x1b[1m\n" in text
    assert "stop all native workers" in text
    assert file.read() == 0
    assert file.lock(), "it left the folder to the node"
    file.unlock()


@pytest.mark.loopback
def test_reset_refuses_while_the_peer_may_run(file: EpochFile, capsys: pytest.CaptureFixture[str]) -> None:
    file.save(99)
    with listener() as peer:
        assert main(["epoch", "reset", "--config", configuration(file, peer)]) == exits.FAILED
    assert "a process listens at" in capsys.readouterr().err
    unknown = "tcp://no-such-host.invalid:5003"
    assert main(["epoch", "reset", "--config", configuration(file, unknown)]) == exits.FAILED
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["epoch", "reset", str(file.path.parent)]) == exits.FAILED
    assert "does not tell where the peer is" in capsys.readouterr().err
    assert file.read() == 99
    assert main(["epoch", "reset", str(file.path.parent), "--force"]) == exits.OK
    assert file.read() == 0


@pytest.mark.loopback
def test_reset_refuses_while_the_peer_runs_at_an_abstract_name(file: EpochFile) -> None:
    name = f"@bstar-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name[1:])
        server.listen()
        config = configuration(file, f"ipc://{name}")
        assert main(["epoch", "reset", "--config", config]) == exits.FAILED


def test_reset_refuses_while_the_node_runs_even_by_force(
    file: EpochFile, capsys: pytest.CaptureFixture[str]
) -> None:
    file.save(99)
    node = EpochFile(file.path.parent)
    assert node.lock()
    try:
        assert main(["epoch", "reset", str(file.path.parent), "--force"]) == exits.FAILED
        assert "stop the node" in capsys.readouterr().err
        assert main(["epoch", "reset", str(file.path.parent)]) == exits.FAILED
        assert "--force" not in capsys.readouterr().err, "that would not help"
        assert file.read() == 99
    finally:
        node.unlock()


def test_reset_says_why_it_could_not_write(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EpochFile, "save", fails)
    assert main(["epoch", "reset", str(file.path.parent), "--force"]) == exits.FAILED
    assert "not reset: " in (text := capsys.readouterr().err)
    assert "No space left on device" in text
