"""Journals as rows without Spark, and rows as requests: the sink format("bstar")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar.errors import ConfigurationError
from bstar.wire import native
from support.bulk_pair import SERVICE, BulkPair, bulk_pair
from support.journals import Run, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What the local engine reads of a file, without an engine."""
    from bstar_pipeline.local_journals import files_at, read

    return [row for file in files_at([str(path)]) for batch in read(file) for row in batch.to_pylist()]


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A packed file without its end."""
    run = Run("backup")
    run.start()
    for number in range(2_000):
        run.request(number, f"{number:032x}", number)
    path = write(tmp_path / "journal" / run.name(1, ".ndjson.gz"), run.lines())
    path.write_bytes(path.read_bytes()[:-200])
    return path


def test_several_paths_and_patterns_are_read_and_each_file_once(tmp_path: Path) -> None:
    from bstar_pipeline.local_journals import files_at

    for pair in ("orders", "stock"):
        write(tmp_path / Run("primary", pair=pair).name(), [])
    (tmp_path / "stray.ndjson").write_text("its name says nothing\n")
    every = files_at([str(tmp_path)])
    assert sorted(file.pair for file in every) == ["orders", "stock", "unknown"]
    assert files_at([tmp_path.as_uri(), str(tmp_path)]) == every
    orders, others = f"{tmp_path}/orders.primary.*", f"{tmp_path}/{{stock.*,stray.*}}"
    assert sorted(files_at([orders, others, orders]), key=str) == sorted(every, key=str)
    with pytest.raises(ConfigurationError, match="does not exist"):
        files_at([f"{tmp_path}/other.*"])


def test_a_packed_file_without_its_end_gives_its_rows_and_tells_so(cut: Path) -> None:
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
    from bstar_pipeline.local_journals import files_at, read

    run = Run("primary")
    run.start()
    path = write(tmp_path / run.name(1, ".ndjson.open"), run.lines())
    [file] = files_at([str(tmp_path)])
    path.rename(path.with_suffix(""))
    [batch] = read(file)
    assert batch.num_rows == 1


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
