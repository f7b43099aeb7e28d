"""The journals of a run in which it is known what was broken, and what the pipeline makes of them.

One run is played: the active node is killed, frozen, stopped, the passive one killed, and the link between
them cut while an arbiter watches. Then copies of its journals are given planted violations, each copy as a
pair of its own, and one job of the pipeline reads them all. Of the truth it has to find the incidents that
the fault injector wrote down, no others, and nothing to object to; of each lie that lie, and nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from bstar_pipeline.commits import Folder, open_snapshot
from bstar_testing.pairs import STATE_LINKS
from chaos import journals
from chaos.cluster import Profile
from chaos.faults import Kind, Step, apply
from chaos.history import PAIR
from chaos.injected import Injected, boottime_ahead_us, injected
from chaos.journals import PLANTS, Finding
from chaos.needs import until_valid
from chaos.stage import Cast, Stage, stage
from chaos.toxiproxy import say
from chaos.validate import InvalidRunError
from support.spark_fixtures import COMPILED, need_java

# The run, repeated if it shows nothing, and the job, repeated if Java ends.
pytestmark = [pytest.mark.timeout(2_400), pytest.mark.spark]

# A busy machine must not look like a dead peer.
_PATIENT = Profile(settings={"timing.failover_timeout_s": 1.0, "timing.worker_heartbeat_interval_s": 0.3})
# What an operator is promised of an incident's time.
_TIME_ERROR_US = 100_000

_JOB_S_MAX = 900
# What the command's help says of exit codes.
_SPARK_FAILED = 5


class Looked(msgspec.Struct):
    """What was done, what was planted, and the rows that the pipeline made of it, by pair."""

    injected: list[Injected]
    planted: dict[str, Finding]
    runs: list[dict[str, Any]]
    incidents: list[dict[str, Any]]
    audit: list[dict[str, Any]]
    rejected: int


@until_valid
def play(folder: Path) -> None:
    """Break a pair in five ways and stop it in the end; journals and the harness's notes go to ``folder``."""

    def keep(run: Stage) -> None:
        # Everybody is stopped in good order: no journal's end is missing but of those that were killed.
        cluster = run.cluster
        for process in (*cluster.workers, cluster.passive(), cluster.active()):
            process.stop()
        assert run.run is not None
        longest_s = max((span.end - span.begin for span in run.run.unplanned), default=0.0)
        if longest_s > run.manifest.failover_timeout_s / 2:
            raise InvalidRunError(f"the machine itself kept a node waiting for {longest_s:.3f} s")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        assert cluster.journals is not None
        cluster.journals.rename(folder / "journals")
        shutil.copy(run.folder / "harness.jsonl", folder)

    with stage("journal", cast=Cast(profile=_PATIENT, has_arbiter=True), at_end=keep) as run:
        with apply(run, Step(Kind.KILL, "active")):
            run.wait_for_answers(10)
        run.calm()
        with apply(run, Step(Kind.STOP, "active")):
            # Answered by its peer: it stood still for longer than the failover timeout.
            run.wait_for_answers(10)
        run.calm()
        with apply(run, Step(Kind.TERM, "active")):
            run.wait_for_answers(10)
        run.calm()
        with apply(run, Step(Kind.KILL, "passive")):
            run.wait_for_answers(10)
        run.calm()
        with run.fault("cut", ",".join(STATE_LINKS), hits_peer_link=True), ExitStack() as cuts:
            run.note("cut")
            for link in STATE_LINKS:
                cuts.enter_context(run.links[link].timeout())
            run.note("cut made")
            for node in run.cluster.nodes:
                node.wait_for("without its peer", lambda state: not state.pair.is_peer_fresh)
        run.calm()


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Looked:
    """The run, its copies with something false in them, and the tables of one job over all of them."""
    need_java()
    folder = tmp_path_factory.mktemp("journal")
    ahead_us = boottime_ahead_us()
    play(folder / "run")
    assert abs(boottime_ahead_us() - ahead_us) < 1_000, "the machine slept during the run"
    truth = folder / "run" / "journals"
    planted = {}
    for pair, plant in PLANTS.items():
        copy = journals.read(truth)
        planted[pair] = plant(copy)
        journals.write(copy, folder / "lies", pair)

    tables = folder / "tables"
    make_tables([truth, folder / "lies"], tables)
    return Looked(
        injected(folder / "run", ahead_us),
        planted,
        rows(tables, "silver.runs"),
        rows(tables, "gold.incidents"),
        rows(tables, "gold.audit"),
        len(rows(tables, "bronze.rejected")),
    )


def make_tables(inputs: list[Path], tables: Path) -> None:
    """Run the command as an operator would, with plans as of large data, which ``make test`` does not have.

    Java that ends by itself says nothing: then once more.
    """
    argv = [sys.executable, "-m", "bstar_cli", "pipeline", "run", *map(str, inputs), "--out", str(tables)]
    for key, value in COMPILED.items():
        argv += ["--conf", f"{key}={value}"]
    for is_last in (False, True):
        done = subprocess.run(
            [*argv, "--master", "local[2]"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_JOB_S_MAX,
            check=False,
        )
        if done.returncode == 0:
            return
        say(f"the pipeline ended with {done.returncode}:\n{done.stdout}")
        if is_last or done.returncode != _SPARK_FAILED:
            pytest.fail(f"the pipeline ended with {done.returncode}:\n{done.stdout[-4_000:]}")


def rows(tables: Path, name: str) -> list[dict[str, Any]]:
    """A table's rows, read without Spark."""
    files = open_snapshot(Folder(tables), str(tables)).files(name)
    if not files:
        return []
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?, hive_partitioning = false)", [files])
        columns = [column[0] for column in found.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]


def of(pair: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["pair"] == pair]


def test_nothing_of_the_journals_is_missing(looked: Looked) -> None:
    runs = of(PAIR, looked.runs)
    assert sorted(run["node"] for run in runs) == sorted(
        ["backup", "client1", "client2", "primary", "primary", "primary", "primary", "worker1", "worker2"]
    )
    assert {(run["missing"], run["dropped"]) for run in runs} == {(0, 0)}
    assert [run["node"] for run in runs if not run["is_clean"]] == ["primary", "primary"]
    assert looked.rejected == 0


def test_the_incidents_found_are_exactly_those_injected(looked: Looked) -> None:
    found = sorted(of(PAIR, looked.incidents), key=lambda row: int(row["began_at_us"]))
    wanted = [(each.kind, each.node) for each in looked.injected]
    # Which node was up first in the beginning is chance; a partition is of both.
    told = [(row["kind"], row["node"] if row["kind"] not in ("start", "partition") else "") for row in found]
    assert told == [("start", ""), *wanted], "\n".join(row["cause"] for row in found)

    [offset_us] = {run["offset_us"] for run in of(PAIR, looked.runs)}
    for each, row in zip(looked.injected, found[1:], strict=True):
        began_us = row["began_at_us"] - offset_us
        assert each.after_us - _TIME_ERROR_US <= began_us <= each.before_us + _TIME_ERROR_US, row


def test_the_audit_of_the_run_has_no_objection(looked: Looked) -> None:
    assert [row for row in of(PAIR, looked.audit) if row["verdict"] == "violated"] == []


@pytest.mark.parametrize("pair", PLANTS)
def test_the_audit_names_what_was_planted_and_nothing_else(pair: str, looked: Looked) -> None:
    finding = looked.planted[pair]
    violated = [row for row in of(pair, looked.audit) if row["verdict"] == "violated"]
    told = sorted((row["rule"], row["client"] or "", row["number"] or 0) for row in violated)
    wanted = [(finding.rule, finding.client, finding.number)]
    if finding.miscounted:
        wanted.insert(0, (finding.rule, "", 0))
    assert told == wanted, "\n".join(row["text"] for row in violated)
    if finding.miscounted:
        assert finding.miscounted in {row["node"] for row in violated}
    if finding.duration_us:
        assert [row["duration_us"] for row in violated] == [finding.duration_us]
