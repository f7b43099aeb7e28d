"""The durable demo, shortened: everything is killed twice, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from bstar_cli.durable_demo import _Stage
from bstar_cli.main import main
from bstar_testing.nodes import COMMAND

LIMIT_S = 170.0


@pytest.mark.loopback
def test_all_answers_are_there_after_everything_was_killed(tmp_path: Path) -> None:
    process = subprocess.run(
        [*COMMAND, "durable-demo", "--count", "1000", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "BSTAR_ROLE": "nonsense"},
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["ok"] is True
    assert (report["lost"], report["changed"]) == (0, 0)
    assert report["submitted"] == report["acknowledged"] == report["executed"] == report["answered"] == 1000
    assert 500 <= report["acknowledged_before_the_kill"] <= 1000
    assert report["kills"] >= 8  # a client may have ended before its kill
    assert list(tmp_path.iterdir()) == []


@pytest.mark.loopback
def test_a_client_that_is_done_before_its_kill_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kill_all = _Stage._kill_all

    def wait_and_kill(stage: _Stage) -> None:
        client = stage._running
        assert client is not None
        stage.wait("the client is done", lambda: not client.is_running, ending=client)
        kill_all(stage)

    monkeypatch.setattr(_Stage, "_kill_all", wait_and_kill)
    assert main(["durable-demo", "--count", "100", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["acknowledged_before_the_kill"], report["answered"]) == (100, 100)
