"""Synthetic journals: every line is a record, files are as real ones, and the truth is what is in them."""

import gzip
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from bstar import records
from bstar.errors import ConfigurationError
from bstar_pipeline.synth import (
    INCIDENT_KINDS,
    VIOLATION_KINDS,
    Incident,
    SynthSettings,
    Truth,
    generate,
    read_truth,
)
from bstar_pipeline.synth.__main__ import main

EVERYTHING = SynthSettings(
    seed=7,
    days=0.02,
    requests_per_s=5,
    incidents=len(INCIDENT_KINDS) * 2,
    violations=len(VIOLATION_KINDS),
    has_client_journals=True,
    has_worker_journals=True,
    expired_share=0.003,
    segment_lines=300,
)


class Journal:
    """All files of a journal, decoded."""

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: _read(path) for path in sorted((folder / "journal").iterdir())}
        self.lines: dict[str, list[bytes]] = {}
        self.torn: dict[str, bytes] = {}
        for name, data in self.files.items():
            *whole, rest = data.split(b"\n")
            self.lines[name] = whole
            if rest:
                self.torn[name] = rest
        self.records = [records.decode(line) for lines in self.lines.values() for line in lines]

    def of(self, *kinds: type[records.Base]) -> list[records.Base]:
        return [one for one in self.records if isinstance(one, kinds)]


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Truth, Journal, Path]:
    folder = tmp_path_factory.mktemp("synth")
    return generate(EVERYTHING, folder), Journal(folder), folder


def test_every_line_is_what_the_writers_encoder_makes_of_it(made: tuple[Truth, Journal, Path]) -> None:
    truth, journal, _ = made
    for lines in journal.lines.values():
        assert all(records.encode(records.decode(line)) == line for line in lines)
    assert len(journal.records) == truth.records
    assert len(journal.torn) == truth.torn > 0
    assert len(journal.files) == truth.files


def test_records_of_a_run_are_numbered_without_a_gap_and_in_the_order_of_time(
    made: tuple[Truth, Journal, Path],
) -> None:
    _, journal, _ = made
    runs: dict[str, list[records.Base]] = defaultdict(list)
    for record in journal.records:
        runs[record.boot].append(record)
    for run in runs.values():
        run.sort(key=lambda record: record.seq)
        assert [record.seq for record in run] == list(range(1, len(run) + 1))
        assert all(before.mono <= after.mono for before, after in pairwise(run))
        assert isinstance(run[0], records.Started)


def test_files_are_named_and_closed_like_those_of_a_real_writer(made: tuple[Truth, Journal, Path]) -> None:
    _, journal, _ = made
    of_run: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, lines in journal.lines.items():
        pair, node, stamp, boot, segment, *suffix = name.split(".")
        decoded = [records.decode(line) for line in lines]
        assert all((one.pair, one.node, one.boot[:8]) == (pair, node, boot) for one in decoded)
        assert len(stamp) == len("20260105T000000Z")
        assert suffix in (["ndjson", "gz"], ["ndjson", "open"])
        of_run[node, boot].append(segment)
        closed = [one for one in decoded if isinstance(one, records.SegmentClosed)]
        if closed:
            assert decoded[-1] is closed[0]
            assert closed[0].lines == len(decoded) - 1
    for segments in of_run.values():
        assert sorted(segments) == [f"{n:04d}" for n in range(1, len(segments) + 1)]
    assert any(len(segments) > 1 for segments in of_run.values())


def test_the_truth_counts_what_is_in_the_journal(made: tuple[Truth, Journal, Path]) -> None:
    truth, journal, folder = made
    assert read_truth(folder / "truth.json") == truth
    nodes = [one for one in journal.records if isinstance(one, records.Request)]
    calls = [one for one in journal.records if isinstance(one, records.Call)]
    assert Counter(one.outcome for one in nodes) == truth.node_records
    assert Counter(one.outcome for one in calls) == truth.calls
    executions = [one for one in journal.records if isinstance(one, records.Execution)]
    assert len(executions) == truth.executions
    outcomes: Counter[tuple[str, str]] = Counter((one.service, one.outcome) for one in calls)
    called = {(one.client, one.number) for one in calls}
    assert len(called) == len(calls)
    only_nodes = {(one.client, one.number): one for one in nodes if (one.client, one.number) not in called}
    outcomes += Counter((one.service, one.outcome) for one in only_nodes.values())
    told = truth.requests["synth"]
    assert outcomes == {(s, outcome): n for s, counts in told.items() for outcome, n in counts.items()}


def test_every_kind_of_incident_and_violation_is_in_the_truth(made: tuple[Truth, Journal, Path]) -> None:
    truth, journal, _ = made
    assert {one.kind for one in truth.incidents} == {*INCIDENT_KINDS, "start"}
    assert {one.kind for one in truth.violations} == {*VIOLATION_KINDS, "both-active"}
    killed = {one.boot for one in truth.incidents if one.kind == "crash"}
    stopped = {one.boot for one in truth.incidents if one.kind == "stop"}
    assert {one.boot for one in journal.of(records.Stopped)} == stopped
    last = {record.boot: record.at for record in sorted(journal.records, key=lambda one: one.seq)}
    for one in truth.incidents:
        if one.boot in killed and one.kind == "crash":
            assert last[one.boot] < one.began_at_us


def test_the_same_seed_gives_the_same_bytes(made: tuple[Truth, Journal, Path], tmp_path: Path) -> None:
    _, journal, _ = made
    generate(EVERYTHING, tmp_path)
    assert Journal(tmp_path).files == journal.files


def test_a_number_of_requests_is_kept_exactly_and_spread_over_pairs(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    settings = SynthSettings(pairs=3, requests=5_000, incidents=4, days=0.05, segment_lines=700)
    truth = generate(settings, tmp_path, lambda done, total: told.append((done, total)))
    assert sum(truth.node_records.values()) == 5_000
    assert truth.pairs == ["synth-0", "synth-1", "synth-2"]
    assert told[-1][0] == truth.records
    assert len(Journal(tmp_path).of(records.Request)) == 5_000


def test_loads_count_every_request_even_if_a_sample_is_recorded(tmp_path: Path) -> None:
    whole = generate(SynthSettings(requests=20_000, days=0.02), tmp_path / "whole")
    truth = generate(SynthSettings(requests=20_000, days=0.02, sample=0.25), tmp_path / "sampled")
    journal = Journal(tmp_path / "sampled")
    requests = [one for one in journal.records if isinstance(one, records.Request)]
    assert 4_000 < len(requests) == sum(truth.node_records.values()) < 6_000
    assert {one.weight for one in requests} == {4.0}
    loads = [one for one in journal.records if isinstance(one, records.Load)]
    assert sum(one.answered for one in loads) == whole.node_records["answered"] > 19_000


def test_clocks_may_differ_and_step_without_a_trace_in_monotonic_time(tmp_path: Path) -> None:
    settings = SynthSettings(
        days=0.002,
        requests_per_s=5,
        clock_skew_us=3_000,
        clock_step_us=-5_000_000,
        finish="open",
        is_packed=False,
    )
    generate(settings, tmp_path)
    journal = Journal(tmp_path)
    assert all(name.endswith(".ndjson.open") for name in journal.files)
    steps = [one for one in journal.records if isinstance(one, records.ClockStepped)]
    assert [one.step_us for one in steps] == [-5_000_000, 5_000_000]
    offsets: dict[str, set[int]] = defaultdict(set)
    for record in journal.records:
        offsets[record.node].add(record.at - record.mono)
    assert len(offsets["primary"]) == 2
    assert len(offsets["backup"]) == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (lambda: SynthSettings(workers=1, services=2), "cannot serve"),
        (lambda: SynthSettings(days=0.002, incidents=50), "incidents need"),
        (lambda: SynthSettings(incidents=(Incident("crash", 1.0),)), "does not fit"),
        (lambda: SynthSettings(requests=1, incidents=(Incident("handover", 60.0),)), "ask for more"),
    ],
)
def test_what_cannot_be_made_is_refused(settings: object, problem: str, tmp_path: Path) -> None:
    assert callable(settings)
    with pytest.raises(ConfigurationError, match=problem):
        generate(settings(), tmp_path)


def test_a_folder_with_a_journal_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--days", "0.001", "--requests", "100"]
    assert main([str(tmp_path), *few]) == 0
    assert "100" not in capsys.readouterr().out
    assert main([str(tmp_path), *few]) == 2
    assert "is not empty" in capsys.readouterr().err
