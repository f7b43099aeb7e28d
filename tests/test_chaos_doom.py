"""Fail points: a process ends itself at a named point if a test wants it, and never otherwise."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bstar_broker.store import fail_points
from bstar_broker.store.fail_points import Point, reach
from chaos.doom import Doom

ROOT = Path(__file__).parent.parent
PACKAGES = ("bstar", "broker", "client", "pipeline", "testing", "cli")
PASSER = """
import sys
from pathlib import Path
from bstar_broker.store import fail_points
from chaos.doom import Doom
fail_points.watcher = Doom(Path(sys.argv[1])).reach
for number in range(5):
    print(number, flush=True)
    fail_points.reach(fail_points.Point.MARK)
    fail_points.reach(fail_points.Point.BEFORE_COMMIT)
"""


def test_a_point_does_nothing() -> None:
    assert fail_points.watcher is None
    for point in Point:
        reach(point)


def test_nothing_in_the_program_sets_the_watcher() -> None:
    """It is named nowhere but in its own module, which sets it to None and calls it."""
    named = {
        line.strip()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name == "fail_points.py" or "fail_points" in path.read_text()
        for line in path.read_text().splitlines()
        if re.search(r"\bwatcher\b(?!``)", line)
    }
    assert named == {
        "watcher: Callable[[Point], object] | None = None", "if watcher is not None:", "watcher(point)"
    }  # fmt: skip


def test_every_point_stands_somewhere_in_the_shell_and_none_in_the_pure_core() -> None:
    store = ROOT / "broker" / "bstar_broker"
    text = {path: path.read_text() for path in store.rglob("*.py") if path.name != "fail_points.py"}
    assert not [path for path, code in text.items() if path.parent.name == "core" and "fail_points" in code]
    reached = [name for code in text.values() for name in re.findall(r"reach\(Point\.([A-Z_]+)\)", code)]
    assert sorted(reached) == sorted(point.name for point in Point)


@pytest.mark.loopback
@pytest.mark.parametrize(("point", "passing", "lines"), [(Point.MARK, 1, 1), (Point.BEFORE_COMMIT, 3, 3)])
def test_a_process_dies_at_the_wanted_passing_of_the_wanted_point(
    tmp_path: Path, point: Point, passing: int, lines: int
) -> None:
    doom = Doom(tmp_path / "doom")
    doom.arm(point, passing)
    argv = (sys.executable, "-c", PASSER, str(doom.path))
    made = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT / "chaos-tests")
    assert made.returncode == -signal.SIGKILL
    assert len(made.stdout.split()) == lines
    assert doom.passed(point) == passing
    assert not doom.is_armed
    assert (
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, cwd=ROOT / "chaos-tests").returncode == 0
    )
    assert doom.passed(point) == passing + 5
