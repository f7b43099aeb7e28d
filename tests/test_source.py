"""The data source format("bstar"): journals as rows, filters that leave files closed, rows as requests."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar import records
from bstar.errors import ConfigurationError
from bstar.wire import native
from support.bulk_pair import SERVICE, BulkPair, bulk_pair
from support.journals import Run, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_US = 86_400_000_000


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """Two pairs, two nodes, three days of segments of one run; a file with a torn line, one cut off."""
    folder = tmp_path / "journal"
    for pair in ("orders", "stock"):
        run = Run("primary", pair=pair)
        for day in range(3):
            begun = len(run.records)
            t_us = day * DAY_US
            if day == 0:
                run.start(t_us)
            run.state(t_us + 1, "BACKUP", "ACTIVE", "CLIENT_REQUEST", epoch=1)
            for number in range(3):
                run.request(t_us + 10 + number, "ab" * 16, day * 10 + number)
            run.add(records.SegmentClosed, t_us + 100, lines=len(run.records) - begun)
            name = run.name(day + 1, ".ndjson.gz", f"202611{2 + day:02d}T000000Z")
            write(folder / name, run.lines()[begun:])
    run = Run("backup")
    run.start()
    write(folder / run.name(1, ".ndjson.open"), run.lines(), torn=b'{"kind":"stopp')
    cut = Run("backup", boot="cd" * 16)
    cut.start()
    for number in range(2_000):
        cut.request(number, f"{number:032x}", number)
    whole = write(folder / cut.name(1, ".ndjson.gz"), cut.lines())
    whole.write_bytes(whole.read_bytes()[:-200])
    (folder / "stray.ndjson").write_text("not read: its name says nothing\n")
    return folder


def rows_of(path: Path | list[str], *filters: Any, **options: Any) -> list[dict[str, Any]]:
    """What the reader gives, without Spark; ``options`` of the constructor."""
    from bstar_pipeline.journal_source import ROWS, PushingReader

    reader = PushingReader(
        path if isinstance(path, list) else [str(path)], ROWS, **({"slack_s": 86_400.0} | options)
    )
    list(reader.pushFilters(list(filters)))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.mark.spark
def test_journals_are_the_rows_that_bronze_has_of_them_and_filters_are_taken(
    spark: SparkSession, journals: Path
) -> None:
    from bstar_pipeline import BstarDataSource, bronze, journal_files
    from bstar_pipeline.schema import LINE

    spark.dataSource.register(BstarDataSource)
    columns = [field.name for field in LINE.fields] + ["time", "topic", "day", "rejection"]
    for cut in journals.glob("*cdcdcdcd*"):
        cut.unlink()  # of a file that is cut off the two read differently far
    (journals / "stray.ndjson").unlink()
    expected = bronze.typed(journal_files.lines(spark, [str(journals)])).select(*columns).collect()
    frame = spark.read.format("bstar").load([f"{journals}/orders.*", f"file:{journals}/{{stock,none}}.*"])
    got = frame.select(*columns).collect()
    assert Counter(map(tuple, got)) == Counter(map(tuple, expected))
    assert Counter(row.topic for row in got) == {"requests": 18, "events": 15, "rejected": 1}
    # Files that the filters rule out cannot be read any more: whoever opened one would have a row to tell so.
    for file in [*journals.glob("stock.*"), *journals.glob("orders.primary.20261102*")]:
        file.write_bytes(gzip.compress(b"\xff\n"))
    late = frame.where(
        "pair = 'orders' AND node = 'primary' AND day = DATE'2026-11-04' AND topic = 'requests'"
    )
    assert sorted(row.number for row in late.collect()) == [20, 21, 22]
    plan = late._jdf.queryExecution().executedPlan().toString()
    filtered = plan.partition("Filter")[2].partition("\n")[0]
    assert "day#" in filtered
    assert "topic#" not in filtered, "Spark filters what was taken already"


def test_filters_leave_files_closed_and_lines_unread(journals: Path) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

    for file in [*journals.glob("stock.*"), *journals.glob("orders.primary.20261102*")]:
        file.write_bytes(gzip.compress(b"\xff\n"))
    primary = (In(("pair",), ("orders", "none")), EqualTo(("node",), "primary"))
    noon = datetime(2026, 11, 3, 12, tzinfo=UTC)
    rows = rows_of(
        journals, *primary, GreaterThanOrEqual(("time",), noon), EqualTo(("kind",), "state"), slack_s=0
    )
    assert [(row["kind"], row["day"].day) for row in rows] == [("state", 3), ("state", 4)]
    rows = rows_of(
        journals, *primary, EqualTo(("topic",), "requests"), LessThan(("day",), noon.date()), slack_s=0
    )
    assert [row["day"].day for row in rows] == [3, 3, 3], "within a file Spark does the rest"
    assert rows_of(journals, EqualTo(("pair",), "nobody")) == []
    assert rows_of(journals, EqualTo(("pair",), "orders"), EqualTo(("pair",), "stock")) == []
    (stray,) = rows_of(journals, EqualTo(("topic",), "rejected"), EqualTo(("pair",), "unknown"))
    assert stray["file"].endswith("stray.ndjson")


def test_several_paths_and_patterns_are_read_and_each_file_once(journals: Path) -> None:
    every = Counter(repr(row) for row in rows_of(journals))
    assert Counter(repr(row) for row in rows_of([journals.as_uri(), str(journals)])) == every
    orders, others = f"{journals}/orders.primary.*", f"{journals}/{{stock.*,stray.*,*.backup.*}}"
    assert Counter(repr(row) for row in rows_of([orders, others, orders])) == every
    assert {row["pair"] for row in rows_of([orders])} == {"orders"}
    with pytest.raises(ConfigurationError, match="does not exist"):
        rows_of([f"{journals}/nobody.*"])


def test_a_packed_file_without_its_end_gives_its_rows_and_tells_so(journals: Path) -> None:
    [cut] = journals.glob("*cdcdcdcd*")
    rows = rows_of(cut)
    reasons = Counter(row["rejection"] for row in rows)
    assert reasons["truncated"] == 1
    assert reasons[None] > 100
    assert [row["number"] for row in rows if row["kind"] == "request"] == list(range(reasons[None] - 1))
    cut.write_bytes(b"")
    assert [row["rejection"] for row in rows_of(cut)] == ["truncated"]


def test_lines_that_are_no_records_say_why_and_kinds_of_later_versions_are_kept(tmp_path: Path) -> None:
    run = Run("primary")
    run.start()
    line = run.lines()[0]
    newer = line.replace(b'"v":1', b'"v":2')
    later = line.replace(b'"kind":"started"', b'"kind":"of-tomorrow"')
    torn, lacking = line[:40], line.replace(b'"host":"host-1",', b"")
    path = write(tmp_path / run.name(), [line, newer, later, torn, lacking, b"\xff"])
    rows = rows_of(path)
    assert sorted(row["rejection"] or "" for row in rows) == [
        "", "", "incomplete", "newer-version", "unreadable", "unreadable"
    ]  # fmt: skip
    (kept,) = (row for row in rows if row["kind"] == "of-tomorrow")
    # What it calls as other kinds do is in their columns.
    assert (kept["seq"], kept["host"], kept["topic"]) == (1, "host-1", "events")
    assert torn.decode() in {row["line"] for row in rows}
    assert {(row["pair"], row["day"].isoformat()) for row in rows} == {("orders", "2026-11-02")}


def test_a_segment_that_is_sealed_while_it_is_read_is_found_under_its_new_name(tmp_path: Path) -> None:
    from bstar_pipeline.journal_source import ROWS, JournalReader

    run = Run("primary")
    run.start()
    path = write(tmp_path / run.name(1, ".ndjson.open"), run.lines())
    reader = JournalReader([str(tmp_path)], ROWS, slack_s=0.0)
    [partition] = reader.partitions()
    path.rename(path.with_suffix(""))
    [batch] = reader.read(partition)
    assert batch.num_rows == 1


def test_which_files_a_filter_leaves() -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan

    from bstar_pipeline.journal_source import ROWS, PushingReader, _Name
    from bstar_pipeline.places import Place

    def at(day: int) -> datetime:
        return datetime(2026, 11, day, tzinfo=UTC)

    name = _Name(Place.of("/x"), "orders", "primary", at(10), "ab" * 4, 1, closed_at=at(12))
    last = _Name(Place.of("/x"), "orders", "primary", at(10), "ab" * 4, 1)
    cases = [
        (EqualTo(("pair",), "orders"), True, True),
        (In(("pair",), ("stock", "other")), False, False),
        (EqualTo(("boot",), "ab" * 16), True, True),
        (EqualTo(("boot",), "cd" * 16), False, False),
        (LessThan(("time",), at(8)), False, False),
        (LessThan(("time",), at(11)), True, True),
        (GreaterThan(("time",), at(12)), True, True),
        (GreaterThan(("time",), at(14)), False, True),
        (EqualTo(("day",), at(14).date()), False, True),
        (EqualTo(("day",), at(13).date()), True, True),
        (GreaterThan(("at",), int(at(14).timestamp() * 1e6)), False, True),
        (GreaterThan(("at",), 2**62), True, True),
        (EqualTo(("time",), None), True, True),
    ]
    for given, of_closed, of_last in cases:
        reader = PushingReader(["/nowhere"], ROWS, slack_s=86_400.0)
        left = list(reader.pushFilters([given]))
        is_word = "time" not in repr(given) and "day" not in repr(given) and "'at'" not in repr(given)
        assert left == ([] if is_word else [given])
        assert (reader._may_have_rows(name), reader._may_have_rows(last)) == (of_closed, of_last), given


def test_options_and_paths_that_cannot_be_are_told(tmp_path: Path) -> None:
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    from bstar_pipeline import BstarDataSource

    schema = StructType([StructField("body", StringType()), StructField("price", DoubleType())])

    def why(**options: str) -> str:
        with pytest.raises(ConfigurationError) as caught:
            BstarDataSource(options).writer(schema, False)
        return str(caught.value)

    good = {"endpoints": "tcp://a:1, tcp://b:1", "service": "s"}
    assert "no option windw" in why(**good, windw="1")
    assert "window is a number" in why(**good, window="many")
    assert "idempotent is true or false" in why(**good, idempotent="maybe")
    assert "'text' is none of body, price" in why(**good, body="text")
    assert "the key is of BINARY" in why(**good, key="price")
    assert "name a directory for replies" in why(**good, errorThreshold="0.5")
    assert "there is none" in why(service="s")
    for write_by in (BstarDataSource(good).writer, BstarDataSource(good).streamWriter):
        with pytest.raises(ConfigurationError, match="append"):
            write_by(schema, True)
    with pytest.raises(ConfigurationError, match="no journals to read: load"):
        BstarDataSource({}).reader(schema)
    with pytest.raises(ConfigurationError, match="has no body, price"):
        BstarDataSource({"path": str(tmp_path)}).reader(schema)
    with pytest.raises(ConfigurationError, match="does not exist"):
        rows_of(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="holds no file named"):
        rows_of(tmp_path)


# --- writing ------------------------------------------------------------------------------------------------


@pytest.fixture
def bulk(spark: SparkSession) -> Iterator[BulkPair]:
    from bstar_pipeline import BstarDataSource

    spark.dataSource.register(BstarDataSource)
    with bulk_pair(workers=1, store="memory") as bulk:
        yield bulk


@pytest.mark.timeout(600)  # nine Spark jobs, on a machine that may do other things as well
@pytest.mark.spark
@pytest.mark.loopback
def test_rows_are_requests_in_a_batch_and_in_a_stream(
    spark: SparkSession, bulk: BulkPair, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    def keys(numbers: range) -> set[bytes]:
        return {native.keyed_identity(SERVICE.encode(), b"%d" % number) for number in numbers}

    options = {"endpoints": ",".join(bulk.endpoints), "service": SERVICE, "key": "id"}
    replies = (tmp_path / "the replies").as_uri().replace("%20", " ")
    orders = spark.range(300, numPartitions=2).withColumn("body", F.concat(F.lit("body "), "id"))
    # A job that is run again asks with the same keys, however its rows lie: its replies replace those before.
    for rows in (orders, orders.repartition(3)):
        rows.write.format("bstar").mode("append").options(**options, replies=replies).save()
    told = spark.read.parquet(replies).collect()
    assert Counter((row.status, bytes(row.reply) == row.body.encode()[::-1]) for row in told) == {
        ("answered", True): 300
    }
    assert bulk.executions() == Counter(keys(range(300)))

    # One row fails: the job does, and of its replies nothing is seen.
    failing = spark.sql("SELECT id + 5000 AS id, if(id = 7, 'fail', 'well') AS body FROM range(50)")
    with pytest.raises(Exception, match="gave up calling 'bulk'"):
        failing.write.format("bstar").mode("append").options(**options, replies=replies).save()
    assert spark.read.parquet(replies).count() == 300
    kept = str(tmp_path / "kept")
    patient = {**options, "replies": kept, "errorThreshold": "0.9"}
    failing.write.format("bstar").mode("append").options(**patient).save()
    assert Counter(row.status for row in spark.read.parquet(kept).collect()) == {"answered": 49, "failed": 1}
    assert list((Path(kept) / "_temporary").iterdir()) == []

    # A stream of two micro-batches, killed between the second one's commit and its checkpoint.
    incoming, streamed, checkpoint = tmp_path / "in", tmp_path / "streamed", tmp_path / "checkpoint"
    moved = orders.where("id < 200").withColumn("id", F.col("id") + 10_000)
    moved.repartitionByRange(2, "id").write.parquet(str(incoming))

    def run() -> None:
        source = spark.readStream.schema("id LONG, body STRING").option("maxFilesPerTrigger", 1)
        stream = source.parquet(str(incoming)).writeStream.format("bstar")
        stream = stream.options(**options, replies=str(streamed), checkpointLocation=str(checkpoint))
        query = stream.trigger(availableNow=True).start()
        assert query.awaitTermination(300)

    run()
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    assert len(list(streamed.glob("batch-*.parquet"))) == 2
    found = spark.read.parquet(str(streamed)).collect()
    assert Counter(row.id for row in found) == Counter(range(10_000, 10_200))
    assert {row.status for row in found} == {"answered"}
    executed = bulk.executions()
    assert all(executed[key] == 1 for key in keys(range(10_000, 10_200)))
