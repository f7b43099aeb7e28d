"""A store whose process is killed at any moment has everything that it said it had, and nothing half."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bstar_broker.store.check import check
from bstar_broker.store.fail_points import Point
from support.import_child import END
from support.store_child import entry_of, table_after
from support.store_disk import Platter

pytestmark = pytest.mark.loopback

ROUNDS = 12


# The points that the disk passes while it is written to.
POINTS = (
    Point.BEFORE_APPEND,
    Point.AFTER_APPEND,
    Point.MARK,
    Point.BEFORE_COMMIT,
    Point.AFTER_COMMIT,
    Point.BEFORE_APPLY,
    Point.AFTER_APPLY,
    Point.TRIM,
)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_a_named_step_loses_nothing_that_was_synced(
    tmp_path: Path, point: Point
) -> None:
    folder = tmp_path / "store"
    synced = 0
    for passing in (1, 3, 7):
        synced = _is_whole(folder, synced, _said(folder, os.devnull, point.name, str(passing)))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_loses_nothing_that_was_synced(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "store"
    synced = 0
    for _ in range(ROUNDS):
        synced = _is_whole(folder, synced, _said(folder, kill_after=chance.randrange(1, 60)))
    assert synced > ROUNDS, "too little was written for this to show anything"


# The steps of an import: four parts, one transaction each, after the one that drops what an earlier one left.
_IMPORT = [
    (Point.IMPORT, 1), (Point.IMPORT, 2), (Point.IMPORT, 4), (Point.BEFORE_COMMIT, 1),
    (Point.AFTER_COMMIT, 1), (Point.AFTER_COMMIT, 3), (Point.SWAP, 1), (Point.BEFORE_COMMIT, 4),
    (Point.AFTER_COMMIT, 4),
]  # fmt: skip


def test_a_process_that_dies_while_it_takes_the_peers_table_has_the_old_copy_or_the_new(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    with Platter(folder) as platter:
        for number in range(1, 4):
            platter.append(entry_of(number))
        platter.apply(3)
    for point, passing in _IMPORT:
        assert _import(folder, point, passing) == (-9, "")
        is_new = (point, passing) == (Point.AFTER_COMMIT, 4)
        end = END if is_new else 3
        with Platter(folder) as platter:
            assert platter.opened.last == ((9, END) if is_new else (1, 3)), f"{point.name} {passing}"
            assert platter.opened.applied == end
            assert platter.table() == table_after(end)
    assert _import(folder, Point.TRIM, 1) == (0, "whole")
    assert check(folder).findings == []


def _import(folder: Path, point: Point, passing: int) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    argv = [sys.executable, "-m", "support.import_child", str(folder), point.name, str(passing)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, env=environment, text=True, check=False)
    return done.returncode, done.stdout.strip()


def _is_whole(folder: Path, synced: int, said: list[tuple[str, int]]) -> int:
    """The store has what was synced before and what the process said; the number of its last entry."""
    synced = max([synced, *(number for what, number in said if what == "synced")])
    with Platter(folder) as platter:
        opened = platter.opened
        assert opened.last.number >= synced
        assert opened.damage == ""
        # What was handed out may be redone, and is never ahead of the log.
        assert opened.applied <= opened.last.number
        assert opened.first <= opened.applied + 1
        assert platter.table() == table_after(opened.applied)
        if opened.last.number > opened.applied:
            platter.apply(opened.last.number)
        assert platter.table() == table_after(opened.last.number)
        return opened.last.number


def _said(folder: Path, *arguments: str, kill_after: int | None = None) -> list[tuple[str, int]]:
    """What a process says that writes until it is killed: after so many lines, or by itself."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        [sys.executable, "-m", "support.store_child", str(folder), *arguments],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as child:
        assert child.stdout is not None
        said: list[tuple[str, int]] = []
        for line in child.stdout:
            if kill_after is not None and len(said) >= kill_after:
                child.kill()
            if line.endswith("\n") and line.strip():
                what, number = line.split()
                said.append((what, int(number)))
    assert child.returncode == -9, "the child has ended by itself"
    return said
