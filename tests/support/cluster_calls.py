"""Submitted by test_pipeline_cluster: bulk calls and where they ran, then the job by the same executors.

cluster_calls.py OUT ROWS SERVICE ENDPOINT… -- PROGRAM ARGUMENT…
"""

import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline import call, console

PARTS = 4


def whereabouts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch, with the process that has it and the file that bstar comes from there."""
    import bstar_client

    for batch in batches:
        size = batch.num_rows
        yield pa.RecordBatch.from_pydict(
            {
                "id": batch.column("id"),
                "reply": batch.column("reply"),
                "status": batch.column("status"),
                "pid": pa.array([os.getpid()] * size, pa.int64()),
                "home": pa.array([str(Path(str(bstar_client.__file__)).parents[1])] * size),
            }
        )


def make_calls(spark: SparkSession, out: Path, count: int, service: str, endpoints: list[str]) -> None:
    """Call, and write one JSON array of rows."""
    rows = spark.range(0, count, 1, PARTS).withColumn("body", F.concat(F.lit("row "), "id"))
    answered = call(
        rows, service=service, endpoints=endpoints, body="body", key="id", window=8, timeout=120.0
    )
    seen = answered.mapInArrow(whereabouts, "id long, reply binary, status string, pid long, home string")
    told = [
        [row["id"], bytes(row["reply"] or b"").decode(), row["status"], row["pid"], row["home"]]
        for row in seen.collect()
    ]
    out.write_text(json.dumps(told))


if __name__ == "__main__":
    border = sys.argv.index("--")
    (out, count, service, *endpoints), program = sys.argv[1:border], sys.argv[border + 1 :]
    # A command uses the session that there is: one start of the executors is for both.
    with console.session("bstar") as session:
        make_calls(session, Path(out), int(count), service, endpoints)
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
