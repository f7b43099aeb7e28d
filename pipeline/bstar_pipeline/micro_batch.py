"""What a watch does with one micro-batch: write its sums beside those of the others, then say what is new.

A micro-batch writes only its own partitions (``batch=…``), so its repetition after a crash replaces them.
Totals are sums over all of them, and a late event adds to an old minute. From those sums the objectives of
the days that it touched are computed anew, by the functions of the batch job.

Under Spark Connect this runs on the server: ``MicroBatch`` holds plain values only, and tells nothing itself;
it writes what is to be told (``stream.arrivals``, ``stream.news``), and the watch reads that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline import bronze
from bstar_pipeline.gold.objectives import objectives, sketches
from bstar_pipeline.pair_rows import frame_of
from bstar_pipeline.schema import REJECTED, table_schema
from bstar_pipeline.silver import facts, histories, runs
from bstar_pipeline.slo import Objectives
from bstar_pipeline.store import nothing
from bstar_pipeline.tables import TABLES

# Nothing else makes a node serve, or shows that it did not.
_CHANGES = ("started", "state", "active", "inactive", "stall")
_TOPICS = ("requests", "calls", "executions", "durables", "events", REJECTED)


def location(root: str, name: str) -> str:
    """Where a table of the stream is: beside the runs of the batch job."""
    return f"{root.rstrip('/')}/{TABLES[name].path}"


def read(spark: SparkSession, root: str, name: str, days: Sequence[date] = ()) -> DataFrame:
    """A table of a root, empty if nothing was written; if there are ``days``, no others are even listed."""
    path = location(root, name)
    schema = table_schema(name)
    chosen = f"{path}/day={{{','.join(map(str, days))}}}" if days else path
    try:
        frame = spark.read.schema(schema).option("basePath", path).parquet(chosen)
        return frame.select(*schema.names)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return nothing(spark, schema)


def _write(frame: DataFrame, root: str, name: str) -> None:
    """Replace those partitions of a table that ``frame`` has rows of, by one file each."""
    chosen = frame.select(*table_schema(name).names).coalesce(1)
    writer = chosen.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*TABLES[name].partitions).parquet(location(root, name))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Called with each micro-batch (rows of ``bronze.typed``, each once) and its number.

    ``clock_error_us``: how long two nodes may seem to serve at once before it is news.
    """

    root: str
    slo: Objectives = field(default_factory=Objectives)
    clock_error_us: int = 10_000

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write the micro-batch. The same rows and number again leave the same tables."""
        rows.persist()
        try:
            self._write(rows, number)
        finally:
            rows.unpersist()

    def _write(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        batch = F.lit(number).cast("bigint").alias("batch")
        came, days = _arrivals(rows)
        if came[REJECTED]:
            _write(bronze.rejected(rows).select("*", batch), self.root, "stream.rejected")
        records = bronze.records(rows)
        if came["events"]:
            events = records.where(F.col("topic") == "events")
            _write(events.select("*", batch), self.root, "stream.records")
        if days:
            _write(sketches(records).select("*", batch), self.root, "stream.sketches")
            news = [self._objectives(spark, days)]
            if came["events"]:
                written = read(spark, self.root, "stream.records", days).where(F.col("batch") == number)
                news.append(_changes(written))
            if came["changes"]:
                news.append(self._both_active(spark, days))
            told = read(spark, self.root, "stream.news").where(F.col("batch") < number).select("kind", "key")
            new = reduce(DataFrame.unionByName, news).dropDuplicates(["kind", "key"])
            _write(new.join(told, ["kind", "key"], "left_anti").select("*", batch), self.root, "stream.news")
        # The last, so that it says that the rest is there.
        row = {**came, "batch": number}
        arrivals = spark.range(1).select(
            *(F.lit(row[of.name]).cast(of.dataType).alias(of.name) for of in table_schema("stream.arrivals"))
        )
        _write(arrivals, self.root, "stream.arrivals")

    def _objectives(self, spark: SparkSession, days: Sequence[date]) -> DataFrame:
        """Write the objectives of these days and of the next ones, whose windows reach back; tell alerts."""
        one = timedelta(days=1)
        changed = sorted({*days, *(day + one for day in days)})
        needed = sorted({*changed, *(day - one for day in days)})
        found = objectives(read(spark, self.root, "stream.sketches", needed), self.slo)
        found = found.where(F.col("day").isin(*changed))
        _write(found, self.root, "stream.objectives")
        # An alert is news in its first minute.
        before = Window.partitionBy("pair", "service").orderBy("minute")
        written = read(spark, self.root, "stream.objectives", changed)
        begun = written.select("*", F.lag("alert").over(before).alias("earlier")).where(
            F.col("alert").isNotNull() & ~F.col("alert").eqNullSafe(F.col("earlier"))
        )
        text = F.format_string(
            "burns its error budget %.1f times too fast (5 min), %.1f (1 h), %.1f (6 h): alert %s",
            "burn_5m",
            "burn_1h",
            "burn_6h",
            "alert",
        )
        key = "concat_ws(' ', pair, service, alert, minute)"
        return _news(begun, "'alert'", key, text, at_us="unix_micros(minute)", service="service")

    def _both_active(self, spark: SparkSession, days: Sequence[date]) -> DataFrame:
        """Two nodes of a pair that served at once, in these days and the ones before."""
        needed = sorted({*days, *(day - timedelta(days=1) for day in days)})
        events = read(spark, self.root, "stream.records", needed)
        known = facts(events)
        told = [
            {
                "kind": "both-active",
                "key": f"{pair} {both.boot} {both.epoch} {both.successor} {both.successor_epoch}",
                "text": f"both served for at least {(both.until_at_us - both.since_at_us) / 1e6:.3f} s",
                "day": datetime.fromtimestamp(both.since_at_us // 1_000_000, UTC).date(),
                "pair": pair,
                "at_us": both.since_at_us,
                "node": " and ".join(sorted((both.node, both.successor))),
                "service": "",
            }
            for pair, history in histories(known, runs(known), self.clock_error_us).items()
            for both in history.overlaps
        ]
        return frame_of(spark, told, table_schema("stream.news")).drop("batch")


def _news(rows: DataFrame, kind: str, key: str, text: Column, **columns: str) -> DataFrame:
    """News of ``rows``: the SQL of kind, key and further ``columns``, and what is told."""
    named = {"day": "day", "pair": "pair", "at_us": "at_us", "node": "''", "service": "''"} | columns
    found = (f"{sql} AS {name}" for name, sql in {"kind": kind, "key": key, **named}.items())
    return rows.select(*map(F.expr, found), text.alias("text"))


def _arrivals(rows: DataFrame) -> tuple[dict[str, int | None], list[date]]:
    """What came, and the days of what is counted and told."""
    topic = F.col("topic")
    is_record = topic != REJECTED
    (row,) = rows.agg(
        F.count_distinct("file").alias("files"),
        *(F.count_if(topic == name).alias(name) for name in _TOPICS),
        F.min(F.when(is_record, F.col("at"))).alias("first_at_us"),
        F.max(F.when(is_record, F.col("at"))).alias("last_at_us"),
        F.count_if(F.col("kind").isin(*_CHANGES)).alias("changes"),
        F.collect_set(F.when(topic.isin("requests", "events"), F.col("day"))).alias("days"),
    ).collect()
    came = row.asDict()
    return came, sorted(came.pop("days"))


def _changes(events: DataFrame) -> DataFrame:
    """Changes of state, processes that cannot go on, and what a journal had to leave out."""
    text = F.expr(
        "CASE kind WHEN 'state' THEN concat(old, ' -> ', new, ' on ', event, ': ', text) "
        "WHEN 'fatal' THEN concat('ends with exit code ', exit_code, ': ', text) "
        "ELSE concat('its journal left out ', count, ' records') END"
    )
    told = events.where("kind IN ('state', 'fatal', 'dropped')")
    return _news(told, "kind", "concat_ws(' ', boot, seq)", text, at_us="at", node="node")
