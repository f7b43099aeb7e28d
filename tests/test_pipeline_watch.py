"""The stream comes to what the batch job comes to, though it is killed, and gets files late, twice, torn.

Starting Spark and each micro-batch are what takes the time: one watch is killed, and the next one goes on,
gets new files and is ended by a signal. The other watches run in the session of all tests, and find what a
kill leaves behind.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar import records
from support import bronze_tables
from support.journals import AT_US, Run, write
from support.spark_fixtures import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A JVM takes its time on a busy machine.
PATIENCE_S = 600
# The files have 40 requests an hour.
ALERT_REQUESTS = 10
PROGRAM = f"""
import sys
from bstar_pipeline.session import open_session
from bstar_pipeline.slo import Objectives
from bstar_pipeline.watch import Watch, WatchSettings, stopped_by_signals

def tell(text):
    print(text, flush=True)

spark = open_session("watch", master="local[2]", settings={SETTINGS!r})
slo = Objectives(alert_requests={ALERT_REQUESTS})
settings = WatchSettings(sys.argv[1], sys.argv[2], slo=slo, files_max=3, partitions=1, interval_s=0)
with Watch(spark, settings, tell=tell) as watch, stopped_by_signals(watch):
    watch.run()
print("ended", flush=True)
"""
DAY_US = 86_400_000_000


class Process:
    """A watch in a process group of its own, so that its JVM dies with it."""

    def __init__(self, journals: Path, root: Path) -> None:
        self.log = root.parent / f"{root.name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(journals), str(root)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_there():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.005)  # files have no event to wait on

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)


@contextlib.contextmanager
def watch(journals: Path, root: Path) -> Iterator[Process]:
    process = Process(journals, root)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process._process.pid, signal.SIGKILL)
        process._process.wait()


def watch_what_is_there(spark: "SparkSession", journals: Path, root: Path) -> str:
    """Run a watch in this process until it has read every file. Returns what it tells."""
    from bstar_pipeline.slo import Objectives
    from bstar_pipeline.watch import Watch, WatchSettings

    told: list[str] = []
    slo = Objectives(alert_requests=ALERT_REQUESTS)
    settings = WatchSettings(str(journals), str(root), slo=slo, files_max=3, partitions=1, interval_s=0)
    with Watch(spark.newSession(), settings, available_now=True, tell=told.append) as watch:
        watch.run()
    return "\n".join(told)


def forget(root: Path, number: int, *, has_begun: bool) -> None:
    """Leave what a kill leaves before micro-batch ``number`` begins, or before it writes its first table."""
    for log in ("commits",) if has_begun else ("commits", "offsets", "sources/0"):
        for name in (f"{number}", f".{number}.crc"):
            (root / "stream" / "checkpoint" / log / name).unlink()
    for written in list(root.rglob(f"batch={number}")):
        shutil.rmtree(written)


def segments(run: Run, folder: Path, *, count: int, packed: bool) -> list[Path]:
    """A journal of ``count`` segments with 40 requests each, an hour between them, sealed in this order."""
    found = []
    number = 0
    for segment in range(1, count + 1):
        first = len(run.records)
        begun = (segment - 1) * 3_600_000_000 + 1
        if segment == 1:
            run.start()
        run.state(begun, "PRIMARY", "ACTIVE" if segment == 1 else "PASSIVE", "PEER_LOST", epoch=segment)
        for _ in range(40):
            number += 1
            outcome = "lost" if number % 8 == 0 else "answered"
            total = 1000 + 37 * number
            run.request(begun + number * 1_000_000, run.boot, number, outcome, total_us=total, weight=1 / 3)
        run.add(records.SegmentClosed, begun + 50_000_000, lines=len(run.records) - first)
        name = run.name(segment, ".ndjson.gz" if packed else ".ndjson")
        found.append(write(folder / name, run.lines()[first:]))
    return found


def put(path: Path, content: bytes, at_s: int) -> None:
    """A file that appears at once and whole, last written at ``at_s``."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.utime(part, (at_s, at_s))
    part.rename(path)


def rows_of(frame: "DataFrame") -> list[Any]:
    return sorted(frame.collect(), key=repr)


def put_what_comes_first(journals: Path, made: Path) -> bytes:
    """Six files; returns what a later one holds: a copy of the first, and records of two days before."""
    one = segments(Run("primary"), made, count=3, packed=True)
    other = segments(Run("backup", boot="b" * 32, at_us=AT_US + 1800_000_000), made, count=2, packed=False)
    old = segments(Run("primary", boot="0" * 32, at_us=AT_US - 2 * DAY_US), made, count=2, packed=True)
    contents = {path: path.read_bytes() for path in (one[0], other[0], one[1], one[2], other[1], old[0])}
    # In the middle a packed file without its end, and one with lines that are none; three in a micro-batch.
    contents[one[1]] = contents[one[1]][: len(contents[one[1]]) // 2]
    contents[other[1]] += 2 * b'{"v":99,"kind":"request"}\nnonsense\n'
    now = int(time.time()) - 1000
    for number, (path, content) in enumerate(contents.items()):
        put(journals / path.name, content, now + number)
    return one[0].read_bytes() + old[1].read_bytes()


@pytest.mark.spark
@pytest.mark.loopback
@pytest.mark.timeout(3000)
def test_a_watch_killed_three_times_and_ended_by_sigterm_comes_to_what_the_batch_job_comes_to(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from bstar_pipeline import micro_batch, sketch
    from bstar_pipeline.gold.objectives import objectives, sketches
    from bstar_pipeline.slo import Objectives

    journals, root = tmp_path / "journals", tmp_path / "tables"
    journals.mkdir()
    late = put_what_comes_first(journals, tmp_path / "made")
    with watch(journals, root) as process:
        # Between the first table of a micro-batch and its end.
        process.wait_for(lambda: any((root / "stream" / "sketches").rglob("batch=0/*.parquet")))
        process.kill()
    with watch(journals, root) as process:
        process.wait_for(lambda: "batch 1:" in process.log.read_text())
        put(journals / "copy.ndjson.gz", late, int(time.time()))
        process.wait_for(lambda: "batch 2:" in process.log.read_text())
        assert process.stop() == 0, process.log.read_text()
    told = process.log.read_text()
    assert told.endswith("ended\n")
    assert "Traceback" not in told
    assert [f"batch {number}:" in told for number in range(4)] == [True, True, True, False]
    forget(root, 2, has_begun=False)
    told += watch_what_is_there(spark, journals, root)
    forget(root, 2, has_begun=True)
    told += watch_what_is_there(spark, journals, root)

    batch = bronze_tables.read(spark, [str(journals)])
    records = batch.records.persist()
    by_batch = sketches(records).persist()
    by_stream = micro_batch.read(spark, str(root), "stream.sketches")
    added = by_stream.groupBy(*(name for name in by_batch.columns if name != "weight")).agg(
        sketch.total("weight").alias("weight")
    )
    assert rows_of(added.select(*by_batch.columns)) == rows_of(by_batch)
    written_objectives = micro_batch.read(spark, str(root), "stream.objectives")
    told_by_batch = objectives(by_batch, Objectives(alert_requests=ALERT_REQUESTS))
    assert rows_of(written_objectives) == rows_of(told_by_batch.select(*written_objectives.columns))

    arrivals = micro_batch.read(spark, str(root), "stream.arrivals").agg(
        *(F.sum(name).alias(name) for name in ("files", "requests", "events", "rejected"))
    )
    (came,) = arrivals.collect()
    counts = {row["topic"]: row["count"] for row in records.groupBy("topic").count().collect()}
    assert (came["requests"], came["events"]) == (counts["requests"], counts["events"])
    assert 240 < came["requests"] < 280  # all but what the torn file lacks
    assert came["rejected"] == 4
    key = ["boot", "seq", "kind", "at"]
    kept = micro_batch.read(spark, str(root), "stream.records").select(*key)
    assert rows_of(kept) == rows_of(records.where("topic = 'events'").select(*key))
    assert micro_batch.read(spark, str(root), "stream.rejected").count() == 4

    news = micro_batch.read(spark, str(root), "stream.news").collect()
    assert {row["kind"] for row in news} == {"state", "alert", "both-active"}
    assert len({(row["kind"], row["key"]) for row in news}) == len(news)
    # By a process that was awake when the file came, and after either kill.
    assert told.count("batch 2: 1 file, 40 requests, 2 events") == 3
    assert told.count("43 lines that had come before") == 3
    assert "state orders/primary: PRIMARY -> ACTIVE on PEER_LOST" in told
    assert "too late" not in told
