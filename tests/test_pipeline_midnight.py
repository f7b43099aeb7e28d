"""Journals that are read in two runs, cut anywhere around midnight, give the tables of one run.

Three pairs, whose processes go on over midnight: a kill at midnight, workers that are away at midnight, and
both nodes gone for hours. Two tables have more rows after two runs: of a process that goes on,
``silver.runs`` has one for each run of the pipeline, and its state in ``silver.states`` is cut there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from bstar import records
from bstar_pipeline.tables import TABLES
from support import committed
from support.journals import AT_US, closed, write
from support.scenes import MS, S, Scene

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

HOUR = 3_600 * S
MINUTE = 60 * S
# After the beginning of the journals.
MIDNIGHT = 6 * HOUR
END = MIDNIGHT + 5 * HOUR
DAY_US = 24 * HOUR
# Before and after midnight.
CUTS = (-S, 100 * MS, 30 * S, 90 * MINUTE)


def _scene(pair: str) -> Scene:
    scene = Scene(pair, at_us=AT_US + DAY_US - MIDNIGHT)
    scene.serve(scene.primary, 2 * S, MIDNIGHT - 20 * MINUTE, every=5 * MINUTE)
    return scene


def _killed() -> Scene:
    """The primary is killed 50 ms before midnight, and calls wait for 400 ms; it is back 20 minutes later."""
    scene = _scene("killed")
    at = MIDNIGHT - 50 * MS
    scene.serve(scene.primary, at - 10 * S, at, every=200 * MS)
    scene.dead.append(scene.primary)
    scene.lose(scene.backup, at + 395 * MS, "silent", 400 * MS)
    scene.activate(scene.backup, at + 396 * MS, "PASSIVE", "CLIENT_REQUEST", 2)
    scene.wait(scene.backup, at + MS, at + 400 * MS, epoch=2)
    scene.serve(scene.backup, at + 410 * MS, at + 20 * S, every=200 * MS, epoch=2)
    again = scene.begin("primary", MIDNIGHT + 20 * MINUTE)
    again.add(records.PeerSeen, MIDNIGHT + 20 * MINUTE + 10 * MS, peer="ACTIVE", peer_boot=scene.backup.boot)
    scene.backup.add(records.PeerSeen, MIDNIGHT + 20 * MINUTE + 10 * MS, peer="PRIMARY", peer_boot=again.boot)
    scene.serve(scene.backup, MIDNIGHT + 30 * MINUTE, END - MINUTE, every=10 * MINUTE, epoch=2)
    return scene


def _away() -> Scene:
    """Three calls wait for a worker from 3 s before midnight to 4 s after it."""
    scene = _scene("away")
    scene.serve(scene.primary, MIDNIGHT - 10 * S, MIDNIGHT - 3 * S, every=200 * MS)
    for turn in range(3):
        asked = MIDNIGHT - 3 * S + turn * MS
        scene.request(scene.primary, asked, asked + 7 * S, total=7 * S)
    scene.serve(scene.primary, MIDNIGHT + 5 * S, END - MINUTE, every=10 * MINUTE)
    return scene


def _long() -> Scene:
    """Both nodes are gone from 10 minutes before midnight to 3 hours after it."""
    scene = _scene("long")
    gone, back = MIDNIGHT - 10 * MINUTE, MIDNIGHT + 3 * HOUR
    scene.serve(scene.primary, gone - 10 * S, gone, every=200 * MS)
    scene.dead += [scene.primary, scene.backup]
    for asked in range(gone + S, back, 15 * MINUTE):
        scene.expire(asked, asked + 30 * S)
    again = scene.begin("primary", back)
    scene.activate(again, back + S, "PRIMARY", "CLIENT_REQUEST", 3)
    scene.wait(again, back - S, back + 1_010 * MS, epoch=3)
    scene.serve(again, back + 2 * S, END - MINUTE, every=10 * MINUTE, epoch=3)
    other = scene.begin("backup", back + MINUTE)
    again.add(records.PeerSeen, back + MINUTE + MS, peer="BACKUP", peer_boot=other.boot)
    return scene


def _plant(folder: Path, until: int | None = None) -> None:
    """What is there at a moment: open files; without one all of it, sealed."""
    for scene in (_killed(), _away(), _long()):
        scene.end(END)
        for run in scene.runs:
            if run not in scene.dead:
                closed(run, END)
            name = run.name(stamp="20261102T180000Z")
            lines = [
                line
                for line, record in zip(run.lines(), run.records, strict=True)
                if until is None or record.mono - run.mono_us < until
            ]
            if until is None:
                (folder / f"{name}.open").unlink(missing_ok=True)
                write(folder / f"{name}.gz", lines)
            elif lines:
                write(folder / f"{name}.open", lines)


# Of tables that are cut where the runs of the pipeline are: what they say of a process in all.
_IN_ALL = {
    "silver.runs": "pair, node, boot, min(started_at_us), max(last_at_us), sum(records), bool_or(is_clean) "
    "GROUP BY ALL",
    "silver.states": "pair, node, boot, state, epoch, min(since_at_us), max(until_at_us) GROUP BY ALL",
}


def _tables(root: Path) -> dict[str, list[Any]]:
    found = {}
    for name in TABLES:
        what, _, group = _IN_ALL.get(name, "*").partition(" GROUP ")
        sql = f"SELECT {what} FROM {committed.files(root, name)}" + (f" GROUP {group}" if group else "")
        found[name] = sorted(map(str, duckdb.execute(sql).fetchall()))
    return found


@pytest.fixture(scope="module")
def at_once(local: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The journals, whole, and the tables of one run."""
    from bstar_pipeline import job

    folder, root = tmp_path_factory.mktemp("journals"), tmp_path_factory.mktemp("tables")
    _plant(folder)
    job.run(local, [str(folder)], str(root))
    return folder, root


def test_the_outages_around_midnight_are_whole(at_once: tuple[Path, Path]) -> None:
    incidents = committed.files(at_once[1], "gold.incidents")
    sql = f"SELECT kind, pair, outage_us, affected FROM {incidents} WHERE outage_us > 100000 ORDER BY pair"
    assert duckdb.execute(sql).fetchall() == [
        ("outage", "away", 7 * S, 3),
        ("crash", "killed", 399 * MS, 3),
        ("both-crash", "long", 3 * HOUR + 10 * MINUTE + 10 * MS, 16),
    ]


@pytest.mark.parametrize("cut", CUTS)
def test_two_runs_give_the_tables_of_one(
    local: SparkSession, tmp_path: Path, at_once: tuple[Path, Path], cut: int
) -> None:
    from bstar_pipeline import job

    folder, root = tmp_path / "journals", tmp_path / "tables"
    folder.mkdir()
    _plant(folder, MIDNIGHT + cut)
    job.run(local, [str(folder)], str(root))
    _plant(folder)
    job.run(local, [str(folder)], str(root))
    expected = _tables(at_once[1])
    for name, rows in _tables(root).items():
        assert [row.replace(str(folder), str(at_once[0])) for row in rows] == expected[name], name
