"""A watch is runs in a loop: its tables are those of one run, and each thing that is new is told once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from bstar import records
from bstar.errors import ConfigurationError
from bstar_pipeline.slo import Objectives
from bstar_pipeline.tables import TABLES
from support import committed
from support.journals import Run, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.loopback, pytest.mark.timeout(900)]

S = 1_000_000
SLO = Objectives(alert_requests=10)


class Steps(threading.Event):
    """What happens between the looks of a watch; it ends after the last step."""

    def __init__(self, steps: Iterable[Callable[[], object]]) -> None:
        super().__init__()
        self._steps = iter(steps)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        for step in self._steps:
            step()
            return False
        return True


def nodes() -> tuple[Run, Run]:
    """Every eighth request of the primary is lost, and later both nodes serve for a while."""
    primary, backup = Run("primary", boot="a" * 32), Run("backup", boot="b" * 32)
    for run in (primary, backup):
        run.start()
    primary.state(S, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
    primary.add(records.Activated, S, epoch=1, text="The backup waits.")
    backup.state(S, "BACKUP", "PASSIVE", "PEER_ACTIVE")
    for number in range(40):
        primary.request((2 + number) * S, "c1", number, "answered" if number % 8 else "lost")
    backup.state(50 * S, "PASSIVE", "ACTIVE", "PEER_LOST", epoch=2)
    backup.add(records.Activated, 50 * S, epoch=2, text="The primary is silent.")
    backup.add(records.Pulse, 55 * S, state="ACTIVE", epoch=2, workers=0, queued=0, in_flight=0)
    primary.add(records.Stopped, 60 * S, reason="SIGTERM")
    return primary, backup


def watched(
    spark: SparkSession | None, journals: Path, root: Path, steps: Iterable[Callable[[], object]]
) -> list[str]:
    """What a watch tells."""
    from bstar_pipeline.watch import watch

    told: list[str] = []
    watch(spark, [str(journals)], str(root), slo=SLO, is_stopping=Steps(steps), tell=told.append)
    return told


def rows(root: Path, name: str) -> list[Any]:
    files = committed.files(root, name)
    return [] if files.endswith("([])") else duckdb.execute(f"FROM {files} ORDER BY ALL").fetchall()


def test_a_watch_comes_to_the_tables_of_one_run_and_tells_each_thing_once(tmp_path: Path) -> None:
    from bstar_pipeline import job

    journals, root, aside = tmp_path / "journals", tmp_path / "tables", tmp_path / "aside"
    primary, backup = nodes()
    opened = journals / primary.name(suffix=".ndjson.open")

    def grow(count: int) -> None:
        write(opened, primary.lines()[:count])

    def seal() -> None:
        opened.unlink()
        write(journals / primary.name(suffix=".ndjson.gz"), primary.lines())
        write(journals / backup.name(), backup.lines())

    grow(10)
    steps = [
        lambda: grow(30),
        lambda: None,
        seal,
        lambda: journals.rename(aside),
        lambda: None,
        lambda: aside.rename(journals),
    ]
    told = watched(None, journals, root, steps)
    looks = [line for line in told if " read, " in line]
    assert [line.partition(": ")[2].partition(" requests")[0] for line in looks] == [
        "1 file read, 7",
        "1 file read, 27",
        "2 files read, 40",
    ]
    assert looks[-1].endswith("incidents: 1 both-active, 1 start, 1 stop, audit: violated")
    # The journals are gone for two looks.
    assert sum("no journals to read" in line for line in told) == 1
    news = [" ".join(line.split()[2:5]) for line in told if line.startswith("  ")]
    assert sorted(news) == [
        "both-active orders/primary: Both",
        "fast alert orders/echo:",
        "start orders/primary: The",
        "stop orders/primary: primary",
        "violated both-active orders/primary:",
    ]
    at_once = tmp_path / "at once"
    job.run(None, [str(journals)], str(at_once), slo=SLO)
    for name in TABLES:
        assert rows(root, name) == rows(at_once, name), name
    # A watch that is started again has nothing to tell.
    assert watched(None, journals, root, []) == []


def test_a_watch_of_nothing_is_an_error_as_a_run_of_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        watched(None, tmp_path / "nowhere", tmp_path / "tables", [])


def test_a_signal_ends_the_watch_after_its_look(tmp_path: Path) -> None:
    primary, backup = nodes()
    for run in (primary, backup):
        write(tmp_path / "journals" / run.name(), run.lines())
    command = ["pipeline", "watch", str(tmp_path / "journals"), "--out", str(tmp_path / "tables")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bstar_cli", *command, "--engine", "local"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "2 files read, 40 requests" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err


def test_the_second_signal_is_not_caught() -> None:
    from bstar_pipeline.watch import stopped_by_signals

    with stopped_by_signals() as is_stopping:
        assert not is_stopping.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert is_stopping.is_set()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
