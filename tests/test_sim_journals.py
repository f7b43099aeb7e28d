"""Journals of simulated pairs: lines are records, files are as real ones, the truth is what is in them."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from bstar import records
from bstar.journal import SegmentName
from pipeline.journals import make_once
from sim import journals
from sim.journals import INCIDENT_KINDS, JOURNAL, START_US, Incident, Scenario, Truth
from support.plants import RULES, break_promises

pytestmark = pytest.mark.storm

_CALM_S = 10.0 + 10 * len(INCIDENT_KINDS)
EVERYTHING = Scenario(
    pair="whole",
    seconds=_CALM_S + 20.0,
    segment_bytes=1 << 15,
    incidents=tuple(
        Incident(kind, 10.0 + 10 * turn, 0.1 if kind == "both-active" else 3.0)
        for turn, kind in enumerate(INCIDENT_KINDS)
    ),
)
Files = dict[str, bytes]


def files_of(folder: Path) -> Files:
    """Their contents, unpacked."""
    return {
        path.name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in sorted((folder / JOURNAL).iterdir())
    }


def records_of(files: Files) -> list[records.Record]:
    """All whole lines of all files."""
    return [records.decode(line) for data in files.values() for line in data.split(b"\n")[:-1]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Truth, Files, Path]:
    folder = tmp_path_factory.mktemp("journals")
    return journals.write(EVERYTHING, folder), files_of(folder), folder


def check_runs(files: Files) -> None:
    """Records of a run are numbered without a gap, in the order of time; its first one says who it is."""
    runs: dict[str, list[records.Record]] = defaultdict(list)
    for name, data in files.items():
        segment = SegmentName.parse(name)
        assert segment is not None
        kept = [records.decode(line) for line in data.split(b"\n")[:-1]]
        assert {(one.pair, one.node, one.boot[:8]) for one in kept} == {
            (segment.pair, segment.node, segment.boot)
        }
        assert [one.lines for one in kept if isinstance(one, records.SegmentClosed)] in ([], [len(kept) - 1])
        runs[kept[0].boot] += kept
    for run in runs.values():
        assert [record.seq for record in run] == list(range(1, len(run) + 1))
        assert all(before.mono <= after.mono for before, after in pairwise(run))
        assert isinstance(run[0], records.Started)


def test_files_are_those_of_the_production_writer(made: tuple[Truth, Files, Path]) -> None:
    _, files, _ = made
    check_runs(files)
    assert any(name.endswith(".0002.ndjson.gz") for name in files)
    assert any(not data.endswith(b"\n") for data in files.values()), "nothing that a kill left of a line"


def test_the_truth_is_what_the_records_say(made: tuple[Truth, Files, Path]) -> None:
    truth, files, _ = made
    kept = records_of(files)
    calls = Counter((one.service, one.outcome) for one in kept if isinstance(one, records.Call))
    assert calls == truth.calls
    assert {one.kind for one in truth.incidents} == {*INCIDENT_KINDS, "start"} - {"both-active"}
    assert len(truth.overlaps) == 1
    stopped = {one.boot for one in kept if isinstance(one, records.Stopped)}
    assert stopped == {one.boot for one in truth.incidents if one.kind == "stop"}
    (crash,) = [one for one in truth.incidents if one.kind == "crash"]
    assert max(one.at for one in kept if one.boot == crash.boot) < crash.began_at_us


def test_the_same_scenario_gives_the_same_bytes(made: tuple[Truth, Files, Path], tmp_path: Path) -> None:
    truth, files, _ = made
    assert journals.write(EVERYTHING, tmp_path) == truth
    assert files_of(tmp_path) == files


def test_each_promise_is_broken_once_and_the_files_stay_whole(tmp_path: Path) -> None:
    scenario = Scenario(pair="broken", seconds=20.0)
    journals.write(scenario, tmp_path)
    before = records_of(files_of(tmp_path))
    planted = break_promises(tmp_path / JOURNAL, [range(START_US, START_US + 15_000_000)])
    assert [one.kind for one in planted] == list(RULES)
    after = files_of(tmp_path)
    check_runs(after)

    def of(kept: list[records.Record], kind: type[records.Record]) -> int:
        return sum(isinstance(one, kind) for one in kept)

    broken = records_of(after)
    assert of(broken, records.Request) == of(before, records.Request)  # one more, one less
    assert of(broken, records.Call) == of(before, records.Call) - 1
    assert of(broken, records.Execution) == of(before, records.Execution) + 2


def test_bulk_journals_repeat_calm_seconds_with_new_numbers(tmp_path: Path) -> None:
    journal, count = make_once(tmp_path, 3_000, pairs=1, rate=20.0)
    files = files_of(tmp_path)
    check_runs(files)
    kept = records_of(files)
    assert journal == tmp_path / JOURNAL
    assert len(kept) == count == make_once(tmp_path, 3_000, pairs=1, rate=20.0)[1]
    asked = [(one.client, one.number) for one in kept if isinstance(one, records.Request)]
    assert 3_000 <= len(set(asked)) <= 4_000
    assert len(asked) - len(set(asked)) < 20  # what an incident returned to its client
