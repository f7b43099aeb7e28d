"""The journals of real processes: what a failover leaves in them, and what SIGKILL does."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from bstar import records
from bstar.journal import SegmentName
from bstar.records import Record, Request
from bstar_cli.main import main
from bstar_client import HAClient
from bstar_testing import wait_until
from bstar_testing.processes import LIMIT_S as STOP_S
from support.pairs import SERVICE, Pair, standing_pair

pytestmark = pytest.mark.loopback


def lines_of(path: Path) -> list[bytes]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.splitlines(keepends=True)


def read(folder: Path, *, node: str | None = None) -> list[Record]:
    """Every whole line of every segment, in the order of the processes' own numbers."""
    found = []
    for path in folder.iterdir():
        name = SegmentName.parse(path.name)
        assert name is not None, path.name
        if node in (None, name.node):
            found += [records.decode(line) for line in lines_of(path) if line.endswith(b"\n")]
    return sorted(found, key=lambda record: (record.boot, record.seq))


def kinds(found: list[Record]) -> Counter[str]:
    return Counter(type(record).__struct_config__.tag for record in found)  # type: ignore[misc]


def of(found: list[Record], kind: type[Any]) -> list[Any]:
    return [record for record in found if type(record) is kind]


def journal_of(folder: Path, **keys: Any) -> dict[str, Any]:
    given = {"directory": str(folder), "interval_s": 0.2, **keys}
    return {f"journal.{key}": value for key, value in given.items()}


def journalled_pair(folder: Path) -> AbstractContextManager[Pair]:
    return standing_pair(settings=journal_of(folder))


def wait_for(folder: Path, node: str, what: str, happened: Callable[[list[Record]], bool]) -> None:
    wait_until(lambda: happened(read(folder, node=node)), f"the {node}'s journal says: {what}")


def test_a_failover_is_in_both_journals_with_every_request(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with journalled_pair(folder) as pair:
        with HAClient(pair.endpoints, timeout=30) as client:
            answered = [client.request(SERVICE, b"%d" % number) for number in range(50)]
            pair.primary.kill()
            answered += [client.request(SERVICE, b"%d" % number) for number in range(50, 100)]
        pair.primary.start()
        pair.primary.wait_for_state("PASSIVE")
        pair.wait_for_workers()
        wait_for(folder, "backup", "the peer is back", lambda found: len(of(found, records.PeerSeen)) > 1)
        pair.workers[-1].stop()
        wait_for(folder, "backup", "a worker left", lambda found: bool(of(found, records.WorkerLost)))
        for node in (pair.backup, pair.primary):
            node.stop()

    assert len(answered) == 100
    found = read(folder)
    backup = read(folder, node="backup")
    requests = of(found, Request)
    # The primary was killed within a flush interval of its last reply: up to that many may be missing.
    assert len({(request.client, request.number) for request in of(backup, Request)}) == 50
    assert {request.outcome for request in requests} == {"answered"}
    assert all(request.total_us == request.queued_us + request.busy_us for request in requests)
    [active] = of(backup, records.Activated)
    [lost] = of(backup, records.PeerLost)
    assert lost.reason in ("gone", "silent")
    assert lost.mono <= active.mono <= min(request.mono for request in of(backup, Request))
    change = next(each for each in of(backup, records.StateChanged) if each.new == "ACTIVE")
    assert (change.old, change.event, change.epoch) == ("PASSIVE", "CLIENT_REQUEST", active.epoch)
    assert change.text
    assert set(kinds(backup)) == {
        "started", "pulse", "state", "active", "inactive", "peer-seen", "peer-lost", "worker-registered",
        "worker-lost", "request", "load", "stopping", "stopped", "closed",
    } | (set(kinds(backup)) & {"stall", "refused", "peer-asked", "clock"})  # fmt: skip
    # Two runs of the primary: one was killed, one ended in good order.
    boots = Counter(each.boot for each in of(read(folder, node="primary"), records.Started))
    stopped = [each.boot for each in of(read(folder, node="primary"), records.Stopped)]
    assert len(boots) == 2
    assert len(stopped) == 1
    for boot in {record.boot for record in found}:
        seqs = [record.seq for record in found if record.boot == boot]
        assert seqs == list(range(1, len(seqs) + 1))
    # Its successor closed what the killed run had left open.
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".ndjson.gz")] == []
    assert of(backup, records.WorkerLost)[0].reason == "drained"
    loads = of(backup, records.Load)
    assert sum(load.answered for load in loads) == 50
    assert sum(load.busy_us for load in loads) == pytest.approx(
        sum(request.busy_us for request in of(backup, Request)), abs=100 + len(loads)
    )


def test_what_a_killed_node_had_told_the_operating_system_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with journalled_pair(folder) as pair:
        with HAClient(pair.endpoints, timeout=30) as client:
            client.request(SERVICE, b"one")
        # Changes of state do not wait for the flush interval, but for the thread's next turn.
        wait_for(folder, "primary", "active", lambda found: bool(of(found, records.Activated)))
        wait_for(folder, "primary", "the request", lambda found: len(of(found, Request)) == 1)
        pair.primary.kill()
        found = read(folder, node="primary")

    assert not of(found, records.Stopped)
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert type(found[0]) is records.Started
    [left] = [path for path in folder.iterdir() if path.name.endswith(".open") and ".primary." in path.name]
    assert lines_of(left)


def test_a_node_that_stood_still_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with journalled_pair(folder) as pair:
        with HAClient(pair.endpoints, timeout=30) as client:
            client.request(SERVICE, b"one")
            with pair.primary.frozen():
                client.request(SERVICE, b"two")
        wait_for(folder, "primary", "it was away", lambda found: bool(of(found, records.Stalled)))
        pair.primary.wait_for_state("PASSIVE")
        wait_for(folder, "primary", "it serves no more", lambda found: bool(of(found, records.Deactivated)))
        found = read(folder, node="primary")

    # A busy machine makes the node stand still as well, for less.
    stalled = max(of(found, records.Stalled), key=lambda stall: stall.gap_us)
    [inactive] = of(found, records.Deactivated)
    assert stalled.gap_us > 100_000
    assert stalled.seq < inactive.seq, "the pause comes before what it led to"


def test_metrics_and_status_tell_how_the_journal_does(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with journalled_pair(folder) as pair:
        state = pair.primary.wait_for(
            "with a journal", lambda state: state.journal is not None and state.journal.records > 3
        )
        with urllib.request.urlopen(f"{pair.primary.http_url}/metrics", timeout=10) as answer:
            page = answer.read().decode()

    assert state.journal is not None
    assert state.journal.directory == str(folder)
    for name in ("records", "bytes", "files", "errors"):
        assert f"\nbstar_journal_{name}_total " in page
    assert '\nbstar_journal_dropped_total{about="events"} 0.0' in page


def test_status_says_that_a_journal_has_no_place_while_the_pair_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "journal"
    with journalled_pair(folder) as pair:
        asked = ["status", "--endpoints", ",".join(pair.endpoints), "--timeout", "30", "--json"]
        folder.rename(tmp_path / "away")
        folder.write_text("")
        for node in pair.nodes:
            node.wait_for("with errors", lambda state: state.journal is not None and state.journal.errors > 1)
        code = main(asked)
        with HAClient(pair.endpoints, timeout=30) as client:
            client.request(SERVICE, b"one")
        folder.unlink()
        (tmp_path / "away").rename(folder)

    document = json.loads(capsys.readouterr().out)
    found = [each for each in document["findings"] if each["name"] == "journal-trouble"]
    assert (code, document["reason"]) == (1, "node-trouble")
    assert [each["endpoint"] for each in found] == pair.endpoints
    assert {each["alert"] for each in found} == {"BstarJournalTrouble"}


def test_a_file_that_may_not_grow_stops_neither_the_broker_nor_the_journal(tmp_path: Path) -> None:
    """The operating system refuses to let a file grow beyond a limit: each goes on in the next one."""
    folder = tmp_path / "journal"
    folder.mkdir()
    program = """
import resource, sys, time
from bstar.journal import Journal, JournalOptions
from bstar.records import Claimed
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
journal = Journal(
    JournalOptions(sys.argv[1], gzip=False, flush_interval_s=0.01),
    pair="shop", node="primary", source="broker", clock=time.monotonic,
)
for _ in range(30):
    journal.write(Claimed, time.monotonic(), text="x" * 200)
while journal.counters.records < 31 or journal.counters.size_bytes < 31 * 300:
    time.sleep(0.01)
journal.close()
print(journal.counters.errors > 0, journal.counters.dropped)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60, check=True
    )

    found = read(folder)
    assert done.stdout.split() == ["True", "0"]
    assert len(of(found, records.Claimed)) == 30
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert max(path.stat().st_size for path in folder.iterdir()) <= 4096


def test_a_node_whose_journal_has_no_place_says_what_to_do(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    done = subprocess.run(
        [
            sys.executable, "-m", "bstar_cli", "serve", "--config", "configs/primary.yaml",
            "--set", f"journal.directory={blocker}/journal",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip

    assert done.returncode == 2
    assert "journal.directory" in done.stderr


def test_two_runs_that_overlap_leave_each_other_s_files_alone(tmp_path: Path) -> None:
    """A second process of the same name, a mistake, must not pack what the first one writes."""
    folder = tmp_path / "journal"
    program = """
import sys, time
from bstar.journal import Journal, JournalOptions
journal = Journal(JournalOptions(sys.argv[1]), pair="shop", node="worker-1", source="worker")
print("ready", flush=True)
sys.stdin.read()
journal.close()
"""
    command = [sys.executable, "-c", program, str(folder)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"ready\n"
        with subprocess.Popen(command, **pipes) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == b"ready\n"
            second.communicate(timeout=STOP_S)
        assert sorted(path.suffix for path in folder.iterdir()) == [".gz", ".open"]
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=STOP_S)
    with subprocess.Popen(command, **pipes) as third:
        third.communicate(timeout=STOP_S)

    assert [path.suffix for path in folder.iterdir()] == [".gz"] * 3
