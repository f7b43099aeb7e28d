"""The pipeline on a cluster: two executors, processes of their own that have only what was shipped."""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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
from support.spark_cluster import EXECUTORS, LIMIT_S, Cluster
from support.spark_fixtures import need_java
from test_pipeline_incidents import sorted_rows

pytestmark = [pytest.mark.spark, pytest.mark.loopback, pytest.mark.timeout(LIMIT_S + 60)]

_CALLS, _ROWS = Path(__file__).with_name("support") / "cluster_calls.py", 400
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


def write_journal(folder: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Of two pairs; how many calls each service of each pair has, by outcome."""
    calls: dict[str, dict[str, dict[str, int]]] = {}
    for seed, pair in enumerate(("north", "south")):
        scenario = Scenario(
            pair=pair,
            seed=seed,
            seconds=40.0,
            calls_per_s=20.0,
            segment_bytes=1 << 16,
            incidents=(Incident("crash", 20.0, 5.0),),
        )
        for (service, outcome), count in journals.write(scenario, folder).calls.items():
            calls.setdefault(pair, {}).setdefault(service, {})[outcome] = count
    return calls


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
        "yaml",
        "typer",
        "jinja2",
    } <= tops
    assert not tops & {"pyspark", "py4j", "pandas", "duckdb", "pytest", "mypy"}
    assert not [name for name in names if name.startswith(("/", "..")) or "__pycache__" in name]
    compile((shipped / PROGRAM).read_text(), PROGRAM, "exec")


def test_the_batch_job_on_an_object_store_and_a_lost_executor_makes_the_same_tables(
    cluster: Cluster, shipped: Path, tmp_path: Path
) -> None:
    """Two executors have what was shipped, and one of them is killed in the middle."""
    jars = ",".join(map(str, s3a_jars()))
    calls = write_journal(tmp_path)
    with object_store() as store:
        store.put(tmp_path / JOURNAL, "journal")

        def is_half_done() -> bool:
            """Requests are written, and the audit is not."""
            paths = store.paths("tables")
            assert not any("/gold/audit" in path for path in paths), "too late to lose an executor"
            return any("/silver/requests/" in path for path in paths)

        done = cluster.submit(
            "batch",
            shipped / PROGRAM,
            ["run", store.uri("journal"), "--out", store.uri("tables")],
            options=["--jars", jars, *_shipped_options(shipped)],
            settings=store.settings,
            executor_python=_BARE_PYTHON,
            lose_when=is_half_done,
        )
        assert done.status == 0, done.err
        store.get("tables", tmp_path / "stored")
    # A third took the place of the second.
    assert done.application.executors == {"0", "1", "2"}
    # The lines are parsed in Python; all else is not.
    assert done.application.python_operators == {"MapInArrow"}
    assert main(["pipeline", "run", str(tmp_path / JOURNAL), "--out", str(tmp_path / "here")]) == exits.OK
    for name in TABLES:
        # There is no durable request here, and a table without rows may have no file.
        if name != "silver.durables":
            here, stored = (sorted_rows(tmp_path / folder, name) for folder in ("here", "stored"))
            # Files have the names of where they were read.
            places = (f"file:{tmp_path / JOURNAL}", store.uri("journal"))
            assert here == [row.replace(places[1], places[0]) for row in stored], name
    requests: dict[str, dict[str, Counter[str]]] = {}
    for row in committed.rows(tmp_path / "stored", "silver.requests"):
        requests.setdefault(row.pair, {}).setdefault(row.service, Counter())[row.outcome] += 1
    assert requests == calls
    assert [
        row for row in committed.rows(tmp_path / "stored", "gold.audit") if row.verdict == "violated"
    ] == []


def test_bulk_calls_run_in_two_executors_with_what_was_shipped(
    cluster: Cluster, shipped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    with bulk_pair() as bulk:
        done = cluster.submit(
            "calls",
            _CALLS,
            [str(out), str(_ROWS), SERVICE, *bulk.endpoints],
            options=_shipped_options(shipped),
            executor_python=_BARE_PYTHON,
        )
        assert done.status == 0, done.err
        executions = bulk.executions()
    rows = json.loads(out.read_text())
    assert sorted(row[:3] for row in rows) == [
        [number, f"row {number}"[::-1], "answered"] for number in range(_ROWS)
    ]
    assert set(executions.values()) == {1}
    assert len(executions) == _ROWS
    assert len({row[3] for row in rows}) == EXECUTORS
    # Unpacked in the folder of each executor.
    assert len({row[4] for row in rows}) == EXECUTORS
    assert {Path(row[4]).name for row in rows} == {"bstar"}
    assert done.application.executors == {"0", "1"}
