"""A million rows through the pair from Spark, with SIGKILL of the active node half-way, beside HAClient.map.

    python benchmarks/calls.py                      1,000,000 rows, window 256, local[2]
    python benchmarks/calls.py --rows 100000 --master 'local[1]' --window 64

Machines are shared and noisy, so the figure is a share: rows per second of the whole job, the failover
included, over those that `HAClient.map` reaches from one process with the same window against the same pair,
measured right before and right after it. Every row has a key; the worker process keeps its replies
(ReplyMemory) and writes down what it executes. Exit code 1 if a row was not answered, was answered wrongly,
or a key was executed more than once.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from pyspark.sql import functions as F  # noqa: N812

from bstar.wire import native
from bstar_client import Ask, HAClient, Reply
from bstar_pipeline import call
from bstar_pipeline.session import open_session
from support.bulk_pair import SERVICE, BulkPair, bulk_pair

TIMEOUT_S = 60.0


def main() -> int:
    """Run both, compare, check; 0 if every row was answered once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--map-rows", type=int, default=200_000, help="rows of each run of HAClient.map")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = open_session(
            "bstar calls",
            master=asked.master,
            settings={
                "spark.ui.enabled": "false",
                "spark.log.level": "ERROR",
                "spark.sql.warehouse.dir": folder,
                "spark.sql.shuffle.partitions": "4",
            },
        )
        spark.range(1000).mapInArrow(lambda batches: batches, "id long").count()  # Python is up
        with bulk_pair(workers=1, store="memory") as bulk:
            before = map_rows(bulk, asked.map_rows, asked.window, "before")
            wrong, took_s = spark_rows(spark, bulk, asked)
            after = map_rows(bulk, asked.map_rows, asked.window, "after")
        spark.stop()
    rate, base = asked.rows / took_s, (before + after) / 2
    print(f"HAClient.map, one process, window {asked.window}: {before:,.0f} and {after:,.0f} rows/s")
    print(
        f"call, {asked.master}, window {asked.window} a task: {rate:,.0f} rows/s with the failover in it "
        f"= {rate / base:.2f} of map"
    )
    for text in wrong:
        print(f"WRONG: {text}")
    print("every row answered once per key" if not wrong else "not every row was answered once")
    return 1 if wrong else 0


def map_rows(bulk: BulkPair, rows: int, window: int, name: str) -> float:
    """Rows per second of ``HAClient.map``."""
    asks = (Ask(b"body %d" % number, b"%s %d" % (name.encode(), number)) for number in range(rows))
    with HAClient(bulk.endpoints, timeout=TIMEOUT_S) as client:
        client.request(SERVICE, b"warm")
        began_at = time.monotonic()
        outcomes = client.map(SERVICE, asks, window=window, ordered=False, errors="return")
        answered = sum(isinstance(outcome, Reply) for outcome in outcomes)
        took_s = time.monotonic() - began_at
    assert answered == rows, f"{rows - answered} rows of map were not answered"
    return rows / took_s


def spark_rows(spark, bulk: BulkPair, asked: argparse.Namespace) -> tuple[list[str], float]:
    """What is wrong with the job's rows, and how long it took in seconds."""
    rows = asked.rows
    executed_before = bulk.executions()
    frame = spark.range(rows, numPartitions=asked.partitions).withColumn(
        "body", F.concat(F.lit("body "), F.col("id"))
    )
    called = call(
        frame,
        service=SERVICE,
        endpoints=bulk.endpoints,
        body="body",
        key="id",
        window=asked.window,
        timeout=TIMEOUT_S,
    )

    def kill_half_way() -> None:
        # A little later than half, so that it is in the middle of a partition also when one runs at a time.
        half = rows // 2 + rows // (4 * asked.partitions)
        bulk.wait_for_executions(executed_before.total() + half, timeout_s=3_600.0)
        bulk.pair.primary.kill()

    killer = threading.Thread(target=kill_half_way)
    killer.start()
    began_at = time.monotonic()
    told = (
        called.groupBy("status")
        .agg(
            F.count("*").alias("rows"),
            F.countDistinct("id").alias("ids"),
            F.sum(F.when(F.col("reply") == F.reverse("body").cast("binary"), 1).otherwise(0)).alias("right"),
            F.sum(F.when(F.col("attempts") > 1, 1).otherwise(0)).alias("repeated"),
            F.max("latency_us").alias("latency_us"),
            F.countDistinct("endpoint").alias("endpoints"),
        )
        .collect()
    )
    took_s = time.monotonic() - began_at
    killer.join()
    for row in told:
        print(
            f"{row.rows:,} rows {row.status}, {row.right:,} with the right reply, {row.repeated:,} sent more "
            f"than once, by {row.endpoints} nodes; the longest took {row.latency_us / 1000:,.0f} ms"
        )
    executed = bulk.executions()
    executed.subtract(executed_before)
    keys = {native.keyed_identity(SERVICE.encode(), b"%d" % number) for number in range(rows)}
    times = Counter(executed[key] for key in keys)
    print(
        "executions of a key:",
        ", ".join(f"{count} x: {number:,} keys" for count, number in sorted(times.items())),
    )
    wrong = []
    if [(row.status, row.rows, row.ids, row.right) for row in told] != [("answered", rows, rows, rows)]:
        wrong.append("a row was not answered, or not with its own reply")
    if times != {1: rows}:
        wrong.append("a key was not executed once")
    return wrong, took_s


if __name__ == "__main__":
    sys.exit(main())
