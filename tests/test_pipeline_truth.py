"""What the pipeline says of outages, broken promises and objectives, beside an independent reading.

``support.plain_reading`` reads the same journals by a hundred lines of plain Python. Each scene of
``support.scenes`` is a pair of its own, once with its clients' journals and once without.
test_pipeline_incidents.py has both engines make the same tables of some.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar_cli import exits
from bstar_cli.main import main
from support import plain_reading, scenes
from support.journals import AT_US, write

if TYPE_CHECKING:
    from support.planted_root import PlantedRoot

pytestmark = [pytest.mark.spark, pytest.mark.loopback]

every_pair = pytest.mark.parametrize("pair", scenes.PAIRS)
# By how much a time may differ: a share of it, or a time.
_SHARE, _ERROR_US = 0.05, 2_000
_MONO_US = AT_US - 5_000_000


def plant(folder: Path) -> Path:
    """The journals of all scenes."""
    for scene, _ in scenes.all_scenes().values():
        for run in scene.runs:
            write(folder / run.name(), run.lines())
    return folder


Told = tuple["PlantedRoot", dict[str, plain_reading.Reading]]


@pytest.fixture(scope="module")
def told(planted_root: PlantedRoot) -> Told:
    return planted_root, plain_reading.read(planted_root.scenes)


def incidents(told: Told, pair: str) -> list[Any]:
    """Those beside the pair's start and the end of all in good order."""
    found = sorted(told[0].rows("gold.incidents", pair), key=lambda each: each.began_at_us)
    last_us = AT_US + scenes.END - scenes.S
    return [each for each in found if each.kind != "start" and each.began_at_us < last_us]


@every_pair
def test_what_happened_is_found_and_nothing_else(told: Told, pair: str) -> None:
    scene, plot = scenes.all_scenes()[pair]
    kinds = plot.kinds if scene.has_calls or plot.without is None else plot.without
    assert tuple(each.kind for each in incidents(told, pair)) == kinds


@every_pair
def test_outages_are_those_of_an_independent_reading(told: Told, pair: str) -> None:
    truth = [(began + _MONO_US, lasted) for began, lasted in told[1][pair].outages]
    found = [
        (each.outage_at_us, each.outage_us)
        for each in incidents(told, pair)
        if each.outage_us is not None and each.outage_us >= plain_reading.OUTAGE_MIN_US
    ]
    assert len(found) == len(truth), (found, truth)
    for (began, lasted), (true_began, true_lasted) in zip(found, truth, strict=True):
        assert abs(lasted - true_lasted) <= max(_SHARE * true_lasted, _ERROR_US)
        assert abs(began - true_began) <= max(_SHARE * true_lasted, _ERROR_US)


@every_pair
def test_broken_promises_are_those_of_an_independent_reading(told: Told, pair: str) -> None:
    reading = told[1][pair]
    named = {
        rule: {
            (each.client, each.number)
            for each in told[0].rows("gold.audit", pair)
            if each.rule == rule and each.verdict == "violated" and each.client
        }
        for rule in ("lost", "executed-twice", "answered-twice")
    }
    assert named == {
        "lost": reading.lost,
        "executed-twice": reading.executed_twice,
        "answered-twice": reading.answered_twice,
    }


@every_pair
def test_objectives_count_what_clients_saw_where_they_keep_journals(told: Told, pair: str) -> None:
    scene, _ = scenes.all_scenes()[pair]
    reading, rows = told[1][pair], told[0].rows("gold.objectives", pair)
    assert {row.counted for row in rows} == {"calls" if scene.has_calls else "requests"}
    if scene.has_calls:
        assert sum(row.requests for row in rows) == reading.calls["echo"]
        assert sum(row.errors for row in rows) == reading.not_answered["echo"]
    (budget,) = told[0].rows("gold.budgets", pair)
    is_missed = reading.not_answered["echo"] > reading.calls["echo"] * (1 - budget.availability)
    assert not is_missed or not budget.is_kept


def test_what_is_not_proven_is_of_its_own_time(told: Told) -> None:
    def code(since: int, until: int) -> int:
        period = [str(dt.datetime.fromtimestamp((AT_US + at) / 1e6, dt.UTC)) for at in (since, until)]
        command = ["pipeline", "audit", str(told[0].root), "--pair", "unseen-calls", "--strict"]
        period = [at.replace(" ", "T") for at in period]
        return main([*command, "--from", period[0], "--to", period[1]])

    (found,) = (each for each in told[0].rows("gold.audit", "unseen-calls") if each.verdict == "unproven")
    assert (found.at_us, found.count, found.duration_us) == (AT_US + 20 * scenes.S, 1, None)
    assert code(2 * scenes.S, 15 * scenes.S) == exits.OK
    assert code(15 * scenes.S, 25 * scenes.S) == exits.NOT_PROVEN
    # Without any client's journal they are counted from the first to the last.
    counted = [
        each
        for each in told[0].rows("gold.audit", "whole-nodes")
        if each.text.startswith("not in a client's journal")
    ]
    ends = [each.at_us + (each.duration_us or 0) - AT_US for each in counted]
    assert min(each.at_us for each in counted) - AT_US == 2 * scenes.S + 2 * scenes.MS
    assert max(ends) == 30 * scenes.S - 48 * scenes.MS
    assert sum(each.count for each in counted) == 28 * 20


def test_the_only_file_may_be_torn(tmp_path: Path) -> None:
    from bstar_pipeline import job

    scene, _ = scenes.all_scenes()["whole-calls"]
    path = write(tmp_path / scene.client.name(suffix=".ndjson.gz"), scene.client.lines())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert job.run(None, [str(path)], str(tmp_path / "tables")).files == {"truncated": 1}
