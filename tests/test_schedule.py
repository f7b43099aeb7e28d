"""A run over several processes ends, and tells each outcome, even if one of them dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIES = """
import os
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(COUNT))
def test_it(number: int) -> None:
    died = Path(__file__).with_suffix(".died")
    if number == 0 and not died.exists():
        died.touch()
        os._exit(1)
"""


@pytest.mark.loopback
@pytest.mark.parametrize("count", [1, 4])
def test_a_run_ends_although_a_process_dies_in_its_last_file(tmp_path: Path, count: int) -> None:
    for number in range(3):
        (tmp_path / f"test_fine_{number}.py").write_text("def test_it() -> None: pass")
    (tmp_path / "test_last.py").write_text(DIES.replace("COUNT", str(count)))
    options = ("-c", os.devnull, "--rootdir", str(tmp_path), "-p", "support.schedule", "-p", "no:randomly")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", "2", "--dist", "loadfile", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        timeout=120,
        check=False,
    )
    assert "crashed while running 'test_last.py::test_it[0]'" in run.stdout
    # It is run once more, and passes.
    assert f"1 failed, {3 + count} passed" in run.stdout
