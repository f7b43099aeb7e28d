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

from pyspark.sql import SparkSession

from bstar.errors import ConfigurationError
from bstar.net.stop_signals import on_stop_signals
from bstar_pipeline import job, store
from bstar_pipeline.commits import NOTHING, Part, Snapshot, current
from bstar_pipeline.job import Summary
from bstar_pipeline.partitions import queried
from bstar_pipeline.slo import Objectives
from bstar_pipeline.tables import utc

# Of one run, the lines beneath it.
_NEWS_MAX = 50

# ruff: noqa: S608 - all that is put into queries are constants
_BURNS = "burns its error budget %.1f times too fast (5 min), %.1f (1 h), %.1f (6 h)"
_INCIDENTS = "SELECT began_at_us AS at_us, kind, concat_ws('/', pair, node) AS who, cause AS text FROM rows"
_VIOLATED = """
SELECT coalesce(at_us, 0) AS at_us, 'violated ' || rule AS kind,
    concat_ws('/', pair, node, service, client, number) AS who, text
FROM rows WHERE verdict = 'violated'
"""
# An alert is news in its first minute.
_ALERTS = f"""
SELECT epoch_us(minute) AS at_us, alert || ' alert' AS kind, concat_ws('/', pair, service) AS who,
    printf('{_BURNS}', burn_5m, burn_1h, burn_6h) AS text
FROM rows QUALIFY alert IS NOT NULL
    AND alert IS DISTINCT FROM lag(alert) OVER (PARTITION BY pair, service ORDER BY minute)
"""
# Of each table: what brings its rows together, and the news in it.
_NEWS: dict[str, tuple[tuple[str, ...], str]] = {
    "gold.incidents": ((), _INCIDENTS),
    "gold.audit": ((), _VIOLATED),
    "gold.objectives": (("pair", "service"), _ALERTS),
}


def watch(
    spark: SparkSession | None,
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
    before, problem = _now(spark, root), None
    while True:
        began = time.monotonic()
        try:
            summary = job.run(spark, inputs, root, slo=slo)
            problem, after = "", _now(spark, root)
            if after.manifest.run != before.manifest.run and summary.read:
                for line in _told(spark, summary, before, after):
                    tell(line)
            before = after
        except ConfigurationError as error:
            if problem is None:
                raise
            if str(error) != problem:
                problem = str(error)
                tell(problem)
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

    with on_stop_signals(handle):
        yield is_stopping


def _now(spark: SparkSession | None, root: str) -> Snapshot:
    return Snapshot(root, current(store.open_store(spark, root), root) or NOTHING)


def _told(spark: SparkSession | None, summary: Summary, before: Snapshot, after: Snapshot) -> Iterator[str]:
    """What a watch says of a run."""
    counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(summary.incidents.items()))
    files = f"{summary.read:,} file{'' if summary.read == 1 else 's'}"
    yield (
        f"{summary.run.partition('-')[0]}: {files} read, {summary.requests:,} requests, "
        f"incidents: {counts or 'none'}, audit: {summary.verdict}"
    )
    known, found = _news(spark, before, summary.made), _news(spark, after, summary.made)
    news = sorted(found.keys() - known.keys())
    for at_us, kind, who in news[:_NEWS_MAX]:
        at = f"{utc(at_us):%Y-%m-%d %H:%M:%S.%f}"[:-3]
        yield f"  {at} {kind} {who}: {found[at_us, kind, who]}"
    if len(news) > _NEWS_MAX:
        yield f"  and {len(news) - _NEWS_MAX:,} more: bstar pipeline incidents and audit list all"


def _news(
    spark: SparkSession | None, tables: Snapshot, parts: Sequence[Part]
) -> dict[tuple[int, str, str], str]:
    """Incidents, broken promises, and minutes in which an alert began: the sentence by when, kind and who."""
    return {
        (row["at_us"], row["kind"], row["who"]): row["text"]
        for name, (keys, query) in _NEWS.items()
        for row in queried(store.stored(spark, tables, name, parts), keys, query).collected()
    }
