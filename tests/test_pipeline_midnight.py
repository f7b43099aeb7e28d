"""Journals that are read in two runs, cut anywhere around midnight, give the tables of one run.

Three scenes, whose processes go on over midnight: a kill at midnight, workers that are away at midnight, and
both nodes gone for hours. Each is there once for each cut, as a pair of its own. Two tables have more rows
after two runs: of a process that goes on, ``silver.runs`` has one for each run of the pipeline, and its state
in ``silver.states`` is cut there.
"""

from __future__ import annotations

from itertools import product
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


def _killed(scene: Scene) -> None:
    """The primary is killed 50 ms before midnight, and calls wait for 400 ms; it is back 20 minutes later."""
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


def _away(scene: Scene) -> None:
    """Three calls wait for a worker from 3 s before midnight to 4 s after it."""
    scene.serve(scene.primary, MIDNIGHT - 10 * S, MIDNIGHT - 3 * S, every=200 * MS)
    for turn in range(3):
        asked = MIDNIGHT - 3 * S + turn * MS
        scene.request(scene.primary, asked, asked + 7 * S, total=7 * S)
    scene.serve(scene.primary, MIDNIGHT + 5 * S, END - MINUTE, every=10 * MINUTE)


def _long(scene: Scene) -> None:
    """Both nodes are gone from 10 minutes before midnight to 3 hours after it."""
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


def _plant(folder: Path, *, is_sealed: bool) -> None:
    """All of it, sealed; or what is there at the cut of each pair: open files."""
    for cut, play in product(CUTS, (_killed, _away, _long)):
        scene = _scene(f"{play.__name__[1:]}-{CUTS.index(cut)}")
        play(scene)
        until = None if is_sealed else MIDNIGHT + cut
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
    "silver.runs": "pair, node, boot, min(started_at_us), max(last_at_us), sum(records), bool_or(is_clean)",
    "silver.states": "pair, node, boot, state, epoch, min(since_at_us), max(until_at_us)",
}


def _rows(root: Path, name: str, cut: int) -> list[Any]:
    """What a table has of the pairs with that cut."""
    pairs = f"(FROM {committed.files(root, name)} WHERE pair LIKE '%-{CUTS.index(cut)}')"
    sql = f"SELECT {_IN_ALL[name]} FROM {pairs} GROUP BY ALL" if name in _IN_ALL else f"FROM {pairs}"
    return sorted(map(str, duckdb.execute(sql).fetchall()))


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tables of two runs, of which the first sees what is there at the cuts, and those of one."""
    from bstar_pipeline import job

    folder, twice, once = (tmp_path_factory.mktemp(name) for name in ("journals", "twice", "once"))
    _plant(folder, is_sealed=False)
    job.run(None, [str(folder)], str(twice))
    _plant(folder, is_sealed=True)
    for root in (twice, once):
        job.run(None, [str(folder)], str(root))
    return twice, once


def test_the_outages_around_midnight_are_whole(roots: tuple[Path, Path]) -> None:
    incidents = committed.files(roots[1], "gold.incidents")
    sql = f"SELECT kind, pair, outage_us, affected FROM {incidents} WHERE outage_us > 100000 ORDER BY pair"
    assert duckdb.execute(sql).fetchall() == [
        (kind, f"{scene}-{turn}", outage_us, affected)
        for kind, scene, outage_us, affected in (
            ("outage", "away", 7 * S, 3),
            ("crash", "killed", 399 * MS, 3),
            ("both-crash", "long", 3 * HOUR + 10 * MINUTE + 10 * MS, 16),
        )
        for turn in range(len(CUTS))
    ]


@pytest.mark.parametrize("cut", CUTS)
def test_two_runs_give_the_tables_of_one(roots: tuple[Path, Path], cut: int) -> None:
    for name in TABLES:
        of_two, of_one = (_rows(root, name, cut) for root in roots)
        assert of_two == of_one, name
    assert _rows(roots[0], "silver.requests", cut)
