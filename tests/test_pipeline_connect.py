"""The batch job under Spark Connect: nothing in it reaches for a driver in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from bstar_pipeline.synth import SynthSettings, generate
from support import connect_job
from support.spark_fixtures import need_java

LIMIT_S = 400.0


@pytest.mark.spark
@pytest.mark.loopback
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_batch_job_runs_under_spark_connect(tmp_path: Path) -> None:
    need_java()
    truth = generate(SynthSettings(days=0.01, requests=2_000, incidents=1, processes=1), tmp_path)
    root = tmp_path / "tables"
    done = subprocess.run(
        [sys.executable, connect_job.__file__, str(tmp_path / "journal"), str(root)],
        cwd=tmp_path,
        env={**os.environ, "SPARK_TESTING": "1"},  # a free port; otherwise it is always 15002
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["session"].startswith("pyspark.sql.connect.")
    counts = [count for services in truth.requests["synth"].values() for count in services.values()]
    assert told["requests"] == sum(counts) > 1_000
    found = duckdb.execute(
        f"SELECT DISTINCT service FROM read_parquet('{root}/gold/objectives/*/*/*.parquet')"
    ).fetchall()
    assert {service for (service,) in found} == set(truth.requests["synth"])
