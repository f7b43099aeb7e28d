"""The pipeline as a stream: journals are read as their files are sealed, and what is new is told as it comes.

A file of a journal appears at once and whole, so the stream reads each once; the checkpoint knows which.
A micro-batch is written by ``bstar_pipeline.micro_batch`` and is the same when it is repeated: a watch may be
killed at any moment, and the next one goes on from the checkpoint without losing or doubling anything.

Time for the watermark is when a line came to be read, not when it was written: nothing is too late, however
old, and a clock that is ahead cannot make the others' lines late. What the watermark limits is how long
copies are remembered: a record that comes a second time (by ``boot`` and ``seq``) within ``copies_within`` is
left out. The batch job finds copies however late they come.

Not computed here: capacity, clients, audit and incidents. They are questions about days and weeks, and the
batch job answers them from the same journals.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.query import StreamingQuery

from bstar_pipeline import bronze, journal_files
from bstar_pipeline.micro_batch import MicroBatch, read
from bstar_pipeline.schema import REJECTED
from bstar_pipeline.slo import Objectives

_SETTINGS = {
    # One entry for each record that is remembered: too many for the memory of the JVM.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Time goes on with what comes; an empty micro-batch would only move it.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # With a column for each field of each kind, deducing what filters imply takes the optimizer minutes.
    "spark.sql.constraintPropagation.enabled": "false",
}
# Files older than this, seen from the newest, are taken for known ones. Spark's week would lose late files.
_FILE_AGE_MAX = "90d"
_POLL_S = 1
_NEWS_MAX = 50
_TOPICS = ("requests", "calls", "executions", "durables", "events")


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """``journals``: a directory or a pattern; ``root``: where the tables are.

    ``interval_s``: seconds between micro-batches; 0: as fast as they go. ``files_max``: files in one
    micro-batch. ``copies_within``: for how long a copy of a record is known as one. ``partitions``: parts of
    the state, fixed when the checkpoint is made. ``checkpoint``: "" is below the root.
    """

    journals: str
    root: str
    checkpoint: str = ""
    slo: Objectives = field(default_factory=Objectives)
    interval_s: float = 10.0
    files_max: int = 64
    copies_within: str = "6 hours"
    partitions: int = 8
    clock_error_us: int = 10_000


class Watch:
    """A running stream, and a context manager that stops it. ``tell`` gets each line for people."""

    def __init__(
        self,
        spark: SparkSession,
        settings: WatchSettings,
        *,
        available_now: bool = False,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._tell = tell
        self._told = -1
        self._is_stopping = threading.Event()
        for key, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(settings.partitions)}.items():
            spark.conf.set(key, value)
        sink = MicroBatch(settings.root, settings.slo, settings.clock_error_us)
        writer = (
            once(_lines(spark, settings), settings.copies_within)
            .writeStream.queryName("bstar watch")
            .option("checkpointLocation", settings.checkpoint or f"{settings.root}/stream/checkpoint")
            .foreachBatch(sink)
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{settings.interval_s} seconds")
        self._query: StreamingQuery = writer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Ask ``run`` to end after the micro-batch that is under way. May be called from a signal handler."""
        self._is_stopping.set()

    def run(self) -> None:
        """Tell what comes, until the stream ends: by ``stop``, or with ``available_now`` after what is there.

        Raises pyspark's StreamingQueryException if the stream failed.
        """
        told_before = None
        while not self._query.awaitTermination(_POLL_S):
            self._tell_new()
            if self._is_stopping.is_set():
                told_before = self._told if told_before is None else told_before
                status = self._query.status
                is_busy = status["isTriggerActive"] and status["isDataAvailable"]
                if not is_busy or self._told != told_before:
                    self._query.stop()
                    break
        self._tell_new()

    def close(self) -> None:
        """Stop the stream now. What it was writing is written again by the next one."""
        self._query.stop()

    def _tell_new(self) -> None:
        for progress in self._query.recentProgress:
            # An idle trigger reports the number of the micro-batch that will come next.
            if progress["batchId"] > self._told and progress["numInputRows"] > 0:
                self._told = progress["batchId"]
                self._tell_batch(progress)

    def _tell_batch(self, progress: Any) -> None:
        number: int = progress["batchId"]
        operators = progress["stateOperators"]
        late = sum(operator["numRowsDroppedByWatermark"] for operator in operators)
        copies = sum(operator["customMetrics"].get("numDroppedDuplicateRows", 0) for operator in operators)
        mine = F.col("batch") == number
        for row in read(self._spark, self._settings.root, "stream.arrivals").where(mine).collect():
            parts = [
                f"batch {number}: {_count(row['files'], 'file')}",
                *(f"{row[name]:,} {name}" for name in _TOPICS if row[name]),
            ]
            if row["first_at_us"] is not None:
                parts.append(f"{_clock(row['first_at_us'])} to {_clock(row['last_at_us'])}")
            for count, what in (
                (row["rejected"], "that cannot be read"),
                (copies, "that had come before"),
                (late, "that came too late"),
            ):
                if count:
                    parts.append(f"{_count(count, 'line')} {what}")
            self._tell(", ".join(parts))
        news = read(self._spark, self._settings.root, "stream.news").where(mine).orderBy("at_us", "key")
        rows = news.limit(_NEWS_MAX + 1).collect()
        for row in rows[:_NEWS_MAX]:
            who = "/".join(filter(None, (row["pair"], row["node"], row["service"])))
            self._tell(f"  {_clock(row['at_us'])} {row['kind']} {who}: {row['text']}")
        if len(rows) > _NEWS_MAX:
            self._tell(f"  and more: batch {number} of {self._settings.root}/stream/news")


def once(lines: DataFrame, within: str) -> DataFrame:
    """``bronze.typed`` of a stream of lines, without records that came before."""
    rows = bronze.typed(lines).withColumn("arrived", F.current_timestamp())
    # Lines that are no records have no number, and are all different.
    is_record = F.col("topic") != REJECTED
    writer = F.when(is_record, F.col("boot")).otherwise(F.expr("uuid()"))
    rows = rows.withColumns({"writer": writer, "place": F.col("seq")})
    return rows.withWatermark("arrived", within).dropDuplicatesWithinWatermark(["writer", "place"])


@contextlib.contextmanager
def stopped_by_signals(watch: Watch) -> Iterator[None]:
    """SIGTERM and SIGINT end the watch after its micro-batch, a second one at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        watch.stop()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lines(spark: SparkSession, settings: WatchSettings) -> DataFrame:
    options = {"maxFilesPerTrigger": str(settings.files_max), "maxFileAge": _FILE_AGE_MAX}
    return journal_files.lines(spark, [settings.journals], is_stream=True, options=options)


def _clock(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
