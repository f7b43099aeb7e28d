"""The durable demo, shortened: everything is killed twice, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

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
