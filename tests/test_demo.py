"""The demo, shortened: real processes, a kill under load, and nothing lost."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bstar import records
from bstar_cli.demo import outage
from bstar_testing.nodes import COMMAND

LIMIT_S = 110.0


def demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "BSTAR_ROLE": "nonsense"},
    )


def read_journals(folder: Path) -> list[records.Record]:
    return [
        records.decode(line)
        for path in folder.iterdir()
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


def processes_of(folder: Path) -> int:
    """How many processes have this folder as their temporary one: the demo and all that it started."""
    wanted = f"TMPDIR={folder}".encode()
    count = 0
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += wanted in file.read_bytes().split(b"\0")
        except OSError:
            continue
    return count


@pytest.mark.loopback
def test_nothing_is_lost_when_the_active_node_is_killed_under_load(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    journals = tmp_path_factory.mktemp("journals")
    process = demo(tmp_path, "--seconds", "4", "--rate", "100", "--json", "--journal", str(journals))
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["ok"] is True
    assert report["lost"] == 0
    assert report["crossed"] == 0
    assert report["answered"] == report["sent"] >= 300
    assert report["executions"] - report["duplicated_executions"] == report["sent"]
    names = [event["event"].split()[0].rstrip(":") for event in report["events"]]
    assert names == ["kill", "restart", "handover", "restart"]
    assert processes_of(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    kept = read_journals(journals)
    assert {record.node for record in kept} == {"primary", "backup", "worker1", "worker2", "client"}
    kinds = Counter(type(record) for record in kept)
    assert (kinds[records.Call], kinds[records.Execution]) == (report["answered"], report["executions"])
    assert kinds[records.Started] - kinds[records.Stopped] == 1  # one was killed


@pytest.mark.loopback
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    process = demo(tmp_path, "--seconds", "600")
    assert process.stderr is not None
    for line in process.stderr:
        if "the client sends" in line:
            break
    assert processes_of(tmp_path) >= 5  # itself, two brokers, two workers
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert processes_of(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_outage_is_the_longest_gap_between_answers_that_reaches_into_the_time() -> None:
    calls = [(0.0, 1.0), (1.0, 1.1), (1.2, 3.0), (3.0, 3.1), (4.0, 9.0)]
    assert [round(seconds, 3) for seconds in outage(calls, 1.5, 3.5)] == [5.9, 1.8]
    assert [round(seconds, 3) for seconds in outage(calls, 1.5, 2.0)] == [1.9, 1.8]


def test_no_answers_are_no_outage() -> None:
    assert outage([], 0.0, 1.0) == (0.0, 0.0)
