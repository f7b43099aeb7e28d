"""Runs in a loop: each look at the journals is a run (``job.run``), and its new rows are printed.

A watch has no tables, state or checkpoint of its own. What it shows is the difference between the tables of
a run and those of the run before it, so a watch that was killed goes on by being started again.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar.errors import ConfigurationError
from bstar_pipeline import job, store
from bstar_pipeline.commits import NOTHING, Part, Snapshot, current
from bstar_pipeline.job import Summary
from bstar_pipeline.pair_rows import collected, read_files, together
from bstar_pipeline.schema import table_schema
from bstar_pipeline.slo import Objectives
from bstar_pipeline.tables import utc

NEWS_MAX = 50
"""Of one run, the lines beneath it."""

_BURNS = "burns its error budget %.1f times too fast (5 min), %.1f (1 h), %.1f (6 h)"


def watch(
    spark: SparkSession,
    inputs: Sequence[str],
    root: str,
    *,
    slo: Objectives | None = None,
    interval_s: float = 10.0,
    is_stopping: threading.Event,
    tell: Callable[[str], None] = print,
) -> None:
    """Run again and again, ``interval_s`` from begin to begin, until ``is_stopping`` is set.

    Raises as ``job.run`` does in the first run. What a later one raises for want of journals, or because
    another process writes the tables, is reported, and the next one tries again.
    """
    before, problem = _now(spark, root), ""
    is_first = True
    while True:
        began = time.monotonic()
        try:
            summary = job.run(spark, inputs, root, slo=slo)
            problem = ""
        except ConfigurationError as error:
            if is_first:
                raise
            if str(error) != problem:
                problem = str(error)
                tell(problem)
        else:
            after = _now(spark, root)
            if after.manifest.run != before.manifest.run and summary.read:
                _tell(spark, summary, before, after, tell)
            before = after
        is_first = False
        if is_stopping.wait(max(0.0, began + interval_s - time.monotonic())):
            return


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second one ends the process at once."""
    is_stopping = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        is_stopping.set()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield is_stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _now(spark: SparkSession, root: str) -> Snapshot:
    return Snapshot(root, current(store.open_store(spark, root), root) or NOTHING)


def _tell(
    spark: SparkSession, summary: Summary, before: Snapshot, after: Snapshot, tell: Callable[[str], None]
) -> None:
    counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(summary.incidents.items()))
    files = f"{summary.read:,} file{'' if summary.read == 1 else 's'}"
    tell(
        f"{summary.run.partition('-')[0]}: {files} read, {summary.requests:,} requests, "
        f"incidents: {counts or 'none'}, audit: {summary.verdict}"
    )
    known, found = _news(spark, before, summary.made), _news(spark, after, summary.made)
    news = sorted(found.keys() - known.keys())
    for at_us, kind, who in news[:NEWS_MAX]:
        at = f"{utc(at_us):%Y-%m-%d %H:%M:%S.%f}"[:-3]
        tell(f"  {at} {kind} {who}: {found[at_us, kind, who]}")
    if len(news) > NEWS_MAX:
        tell(f"  and {len(news) - NEWS_MAX:,} more: bstar pipeline incidents and audit list all")


def _news(spark: SparkSession, tables: Snapshot, parts: Sequence[Part]) -> dict[tuple[int, str, str], str]:
    """Incidents, broken promises, and minutes in which an alert began: the sentence by when, kind and who."""

    def table(name: str) -> DataFrame:
        return read_files(spark, tables.files(name, parts), table_schema(name))

    def said(frame: DataFrame, at_us: str, kind: str, who: Sequence[str], text: str) -> DataFrame:
        columns = {"at_us": at_us, "kind": kind, "who": f"concat_ws('/', {', '.join(who)})", "text": text}
        return frame.select(*(F.expr(sql).alias(name) for name, sql in columns.items()))

    # An alert is news in its first minute.
    in_order = Window.partitionBy("pair", "service").orderBy("minute")
    alerts = table("gold.objectives").withColumn("earlier", F.lag("alert").over(in_order))
    burns = f"format_string('{_BURNS}', burn_5m, burn_1h, burn_6h)"
    rows = together(
        said(table("gold.incidents"), "began_at_us", "kind", ("pair", "node"), "cause"),
        said(
            table("gold.audit").where("verdict = 'violated'"),
            "coalesce(at_us, 0L)",
            "concat('violated ', rule)",
            ("pair", "node", "service", "client", "number"),
            "text",
        ),
        said(
            alerts.where("alert IS NOT NULL AND NOT alert <=> earlier"),
            "unix_micros(minute)",
            "concat(alert, ' alert')",
            ("pair", "service"),
            burns,
        ),
    )
    return {(row["at_us"], row["kind"], row["who"]): row["text"] for row in collected(rows)}
