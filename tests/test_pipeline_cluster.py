"""The pipeline on a cluster: two executors, processes of their own that have only what was shipped."""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bstar_cli import exits
from bstar_cli.main import main
from bstar_pipeline.ship import ARCHIVE, PROGRAM, ship
from bstar_pipeline.tables import TABLES
from sim import journals
from sim.journals import JOURNAL, Incident, Scenario
from support import committed
from support.bulk_pair import SERVICE, bulk_pair
from support.object_store import object_store, s3a_jars
from support.spark_cluster import EXECUTORS, LIMIT_S, Cluster, Done
from support.spark_fixtures import need_java
from test_pipeline_incidents import sorted_rows

pytestmark = [pytest.mark.spark, pytest.mark.loopback, pytest.mark.timeout(LIMIT_S + 60)]

_PROGRAM, _ROWS = Path(__file__).with_name("support") / "cluster_calls.py", 400
# The interpreter that the venv was made from: it has nothing installed that the project needs.
_BARE_PYTHON = str(getattr(sys, "_base_executable", sys.executable))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_java()
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    assert cluster.processes() == []


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ship")
    ship(folder)
    return folder


def _shipped_options(shipped: Path) -> list[str]:
    archive = ("--archives", f"{shipped / ARCHIVE}#bstar")
    return [*archive, "--conf", "spark.executorEnv.PYTHONPATH=bstar"]


def write_journal(folder: Path) -> dict[str, Counter[str]]:
    """Of one pair, in a few files of each node; how many calls each service has, by outcome."""
    calls: dict[str, Counter[str]] = {}
    crash = Incident("crash", 7.0, 3.0)
    scenario = Scenario(
        pair="north", seconds=16.0, calls_per_s=10.0, segment_bytes=1 << 14, incidents=(crash,)
    )
    for (service, outcome), count in journals.write(scenario, folder).calls.items():
        calls.setdefault(service, Counter())[outcome] = count
    return calls


@dataclass(frozen=True)
class Ran:
    """What was submitted: bulk calls, and after them the batch job, which loses an executor.

    ``called``: the rows that were told of the calls; ``executions``: how often workers executed each.
    ``calls``: of the journals, by service and outcome. ``stored``: the tables, fetched from the store.
    """

    done: Done
    called: list[list[Any]]
    executions: Counter[bytes]
    calls: dict[str, Counter[str]]
    journal: Path
    stored: Path
    uri: str


@pytest.fixture(scope="module")
def ran(cluster: Cluster, shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two executors have what was shipped, and one of them is killed in the middle of the job."""
    jars = ",".join(map(str, s3a_jars()))
    folder = tmp_path_factory.mktemp("ran")
    calls, out = write_journal(folder), folder / "out.json"
    with object_store() as store, bulk_pair() as bulk:
        store.put(folder / JOURNAL, "journal")

        def is_half_done() -> bool:
            """Requests are written, and the audit is not."""
            paths = store.paths("tables")
            assert not any("/gold/audit" in path for path in paths), "too late to lose an executor"
            return any("/silver/requests/" in path for path in paths)

        job = [str(shipped / PROGRAM), "run", store.uri("journal"), "--out", store.uri("tables")]
        done = cluster.submit(
            "both",
            _PROGRAM,
            [str(out), str(_ROWS), SERVICE, *bulk.endpoints, "--", *job],
            options=["--jars", jars, *_shipped_options(shipped)],
            settings=store.settings,
            executor_python=_BARE_PYTHON,
            lose_when=is_half_done,
        )
        assert done.status == 0, done.err
        store.get("tables", folder / "stored")
        return Ran(
            done,
            json.loads(out.read_text()),
            bulk.executions(),
            calls,
            folder / JOURNAL,
            folder / "stored",
            store.uri("journal"),
        )


def test_the_archive_holds_what_runs_on_an_executor_and_no_spark(shipped: Path) -> None:
    with tarfile.open(shipped / ARCHIVE) as tar:
        names = tar.getnames()
    tops = {name.partition("/")[0] for name in names}
    assert {
        "bstar",
        "bstar_client",
        "bstar_pipeline",
        "bstar_cli",
        "msgspec",
        "zmq",
        "pyarrow",
        "duckdb",
        "yaml",
        "typer",
        "jinja2",
    } <= tops
    assert not tops & {"pyspark", "py4j", "pandas", "pytest", "mypy"}
    assert not [name for name in names if name.startswith(("/", "..")) or "__pycache__" in name]
    compile((shipped / PROGRAM).read_text(), PROGRAM, "exec")


def test_the_batch_job_on_an_object_store_and_a_lost_executor_makes_the_same_tables(
    ran: Ran, tmp_path: Path
) -> None:
    # A third took the place of the second.
    assert ran.done.application.executors == {"0", "1", "2"}
    # The lines are parsed in Python; all else is not.
    assert ran.done.application.python_operators == {"MapInArrow"}
    assert main(["pipeline", "run", str(ran.journal), "--out", str(tmp_path)]) == exits.OK
    for name in TABLES:
        # There is no durable request here, and a table without rows may have no file.
        if name != "silver.durables":
            here, stored = (sorted_rows(folder, name) for folder in (tmp_path, ran.stored))
            # Files have the names of where they were read.
            assert here == [row.replace(ran.uri, f"file:{ran.journal}") for row in stored], name
    requests: dict[str, Counter[str]] = {}
    for row in committed.rows(ran.stored, "silver.requests"):
        requests.setdefault(row.service, Counter())[row.outcome] += 1
    assert requests == ran.calls
    assert [row for row in committed.rows(ran.stored, "gold.audit") if row.verdict == "violated"] == []


def test_bulk_calls_run_in_two_executors_with_what_was_shipped(ran: Ran) -> None:
    assert sorted(row[:3] for row in ran.called) == [
        [number, f"row {number}"[::-1], "answered"] for number in range(_ROWS)
    ]
    assert set(ran.executions.values()) == {1}
    assert len(ran.executions) == _ROWS
    assert len({row[3] for row in ran.called}) == EXECUTORS
    # Unpacked in the folder of each executor.
    assert len({row[4] for row in ran.called}) == EXECUTORS
    assert {Path(row[4]).name for row in ran.called} == {"bstar"}
