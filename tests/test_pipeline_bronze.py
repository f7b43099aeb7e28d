"""Lines of journals as typed records: every kind of bad input is counted, and the rest is right."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bstar.errors import ConfigurationError
from bstar.records import Refused
from support.journals import Run, closed, write

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from bstar_pipeline.bronze import Bronze

pytestmark = pytest.mark.spark

_HEAD = b'"pair":"orders","node":"x","boot":"b","seq":1,"mono":1'
BAD = {
    b'{"v":1,"pair":"orders","no': "unreadable",
    b"": "unreadable",
    b"nonsense": "unreadable",
    b"[1]": "unreadable",
    b"null": "unreadable",
    b'\xff\xfe{"v":1}': "unreadable",
    b'{"kind":"stopped","v":1,%b,"at":9000000000000000000}' % _HEAD: "unreadable",
    b'{"kind":"stopped","v":0,%b,"at":1}' % _HEAD: "unreadable",
    b"{}": "incomplete",
    b'{"kind":"request","v":1,%b,"at":1}' % _HEAD: "incomplete",
    b'{"kind":"stopped","v":1,%b,"at":"noon"}' % _HEAD: "incomplete",
    b'{"kind":"stopped","v":2,%b,"at":1}' % _HEAD: "newer-version",
    b'{"kind":"request","v":2,"at":"tomorrow"}': "newer-version",
    b'{"kind":"stopped","v":123456789012345,%b,"at":1}' % _HEAD: "newer-version",
}
NOVEL = b'{"kind":"novel","v":1,"colour":"red",%b,"at":1793577600000000}' % _HEAD


def _history() -> Run:
    run = Run("primary")
    run.start()
    for number in range(20):
        run.request(1_000 * (number + 1), "c1", number)
    run.add(Refused, 40_000, reason="no-service", count=2)
    closed(run, 50_000)
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory with everything that can be wrong with a directory of journals."""
    root = tmp_path_factory.mktemp("journals")
    whole = _history()
    write(root / whole.name(), whole.lines())
    write(root / "copied here" / whole.name(suffix=".ndjson.gz"), whole.lines())
    # The same file, copied while it was written.
    write(
        root / "earlier" / whole.name(suffix=".ndjson.open"), whole.lines()[:12], torn=whole.lines()[12][:30]
    )
    # Two files of one run that share records 5 to 8.
    parts = Run("backup", boot="b0" * 16)
    parts.start()
    for number in range(11):
        parts.request(1_000 * (number + 1), "c2", number)
    write(root / parts.name(1, suffix=".ndjson.open"), parts.lines()[:8])
    write(root / parts.name(2, suffix=".ndjson.open"), parts.lines()[4:])
    cut = Run("worker-1", boot="c0" * 16, pair="stock")
    cut.start(source="worker")
    for number in range(2_000):
        cut.request(1_000 * (number + 1), f"{number * 7919:032x}", number)
    path = root / cut.name(suffix=".ndjson.gz")
    packed = gzip.compress(b"".join(line + b"\n" for line in cut.lines()))
    path.write_bytes(packed[: len(packed) // 2])
    (root / cut.name(2, suffix=".ndjson.gz")).write_bytes(b"this was never packed")
    (root / cut.name(3, suffix=".ndjson")).write_bytes(b"")
    (root / cut.name(4, suffix=".ndjson.gz.part")).write_bytes(packed)
    write(root / "shop.east.primary.20261104T000000Z.0a0b0c0d.0001.ndjson", [*BAD, NOVEL], torn=b'{"v":1,"ki')
    return root


@pytest.fixture(scope="module")
def bronze(spark: SparkSession, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bronze:
    """What ``bronze.read`` does, but parsed once, as the batch job has it."""
    from bstar_pipeline import bronze as module
    from bstar_pipeline import copies, journal_files

    paths = [str(folder), str(folder / "*.open")]
    parsed = str(tmp_path_factory.mktemp("parsed"))
    module.typed(journal_files.lines(spark, paths)).write.mode("overwrite").parquet(parsed)
    typed = spark.read.parquet(parsed)
    found = copies.ranges(typed)
    unique = copies.once(typed, found)
    return module.Bronze(
        module.records(unique),
        module.rejected(unique),
        copies.files(found, journal_files.listing(spark, paths)),
    )


@pytest.fixture(scope="module")
def records(bronze: Bronze) -> list[Row]:
    """Computed once: each claim below is of a few of them."""
    return bronze.records.collect()


@pytest.fixture(scope="module")
def files(bronze: Bronze, folder: Path) -> dict[str, Row]:
    from urllib.parse import unquote

    rows = bronze.files.collect()
    return {unquote(row.file).split(f"{folder.name}/")[1]: row for row in rows}


def test_every_line_that_is_no_record_is_set_aside_with_its_reason(bronze: Bronze) -> None:
    rows = [row for row in bronze.rejected.collect() if "shop.east" in row.file]
    found = {row.line: row.reason for row in rows}
    assert found == {
        **{line.decode(errors="replace"): reason for line, reason in BAD.items()},
        '{"v":1,"ki': "unreadable",
    }
    assert {(str(row.day), row.pair) for row in rows} == {("2026-11-04", "shop.east")}
    assert [row.version for row in rows if row.line.startswith('{"kind":"request","v":2')] == [2]


def test_a_new_kind_of_the_same_version_is_an_event(records: list[Row]) -> None:
    (row,) = [row for row in records if row.kind == "novel"]
    assert (row.topic, row.seq) == ("events", 1)
    assert "shop.east" in row.file


def test_a_record_keeps_a_reason_of_its_own(records: list[Row]) -> None:
    assert [row.reason for row in records if row.kind == "refused"] == ["no-service"]


def test_each_record_comes_once_whatever_files_it_is_in(records: list[Row]) -> None:
    by_node = Counter(row.node for row in records)
    assert (by_node["primary"], by_node["backup"]) == (23, 12)
    assert len({(row.boot, row.seq) for row in records}) == len(records)


def test_files_say_what_became_of_them(files: dict[str, Row]) -> None:
    whole = _history()
    assert {name: row.state for name, row in files.items()} == {
        "copied here/" + whole.name(suffix=".ndjson.gz"): "whole",
        whole.name(): "duplicate",
        "earlier/" + whole.name(suffix=".ndjson.open"): "duplicate",
        "orders.backup.20261102T000000Z.b0b0b0b0.0001.ndjson.open": "open",
        "orders.backup.20261102T000000Z.b0b0b0b0.0002.ndjson.open": "open",
        "stock.worker-1.20261102T000000Z.c0c0c0c0.0001.ndjson.gz": "truncated",
        "stock.worker-1.20261102T000000Z.c0c0c0c0.0002.ndjson.gz": "truncated",
        "stock.worker-1.20261102T000000Z.c0c0c0c0.0003.ndjson": "open",
        "shop.east.primary.20261104T000000Z.0a0b0c0d.0001.ndjson": "open",
    }
    assert files[whole.name()].duplicates == 23
    assert files["orders.backup.20261102T000000Z.b0b0b0b0.0002.ndjson.open"].duplicates == 4
    bad = files["shop.east.primary.20261104T000000Z.0a0b0c0d.0001.ndjson"]
    assert (bad.lines, bad.rejected) == (len(BAD) + 2, len(BAD) + 1)


def test_a_packed_file_without_its_end_gives_every_line_before_the_cut(
    bronze: Bronze, files: dict[str, Row]
) -> None:
    row = files["stock.worker-1.20261102T000000Z.c0c0c0c0.0001.ndjson.gz"]
    assert row.lines > 500
    assert (row.first_seq, row.last_seq) == (1, row.lines)
    assert (row.pair, str(row.day)) == ("stock", "2026-11-02")
    not_packed = files["stock.worker-1.20261102T000000Z.c0c0c0c0.0002.ndjson.gz"]
    assert (not_packed.lines, not_packed.pair, not_packed.last_seq) == (0, "stock", None)


def test_a_field_that_was_left_out_has_its_default_where_its_kind_has_one(records: list[Row]) -> None:
    start, request = sorted(
        (row for row in records if row.node == "primary" and row.seq <= 2), key=lambda row: int(row.seq)
    )
    assert (request.kind, request.topic, request.weight, request.deliveries) == (
        "request",
        "requests",
        1.0,
        1,
    )
    assert (request.is_repeated, request.accepted, request.reply_crc) == (False, None, None)
    assert (start.kind, start.topic, start.sample, start.epoch, start.weight) == (
        "started",
        "events",
        1.0,
        0,
        None,
    )
    assert str(request.time) == "2026-11-02 00:00:00.001000"


def test_a_line_is_parsed_once_and_by_no_python(spark: SparkSession, folder: Path) -> None:
    from bstar_pipeline import bronze as module
    from bstar_pipeline import journal_files
    from support.plans import plan_of

    typed = module.typed(journal_files.lines(spark, [str(folder)]))
    plan = plan_of(module.records(typed).where("kind = 'request'").select("seq"))
    # Once as one of the common kinds, or once as any other: the conditions exclude one another.
    assert plan.count("from_json(") == 2
    assert "Python" not in plan_of(module.read(spark, [str(folder)]).records)


def test_a_stream_reads_what_a_batch_reads_except_files_that_are_still_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    from bstar_pipeline import bronze as module
    from bstar_pipeline import journal_files

    run = _history()
    write(tmp_path / run.name(), [*run.lines(), b"torn"])
    write(tmp_path / run.name(2, suffix=".ndjson.open"), run.lines())
    typed = module.typed(journal_files.lines(spark, [str(tmp_path)], is_stream=True))
    counts = typed.groupBy("topic", "rejection").count()
    query = (
        counts.writeStream.outputMode("complete")
        .format("memory")
        .queryName("of_bronze")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.table("of_bronze").collect()
    assert {(row.topic, row.rejection): row["count"] for row in rows} == {
        ("events", None): 3,
        ("requests", None): 20,
        ("rejected", "unreadable"): 1,
    }


def test_a_path_without_journals_is_an_error_that_says_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    from bstar_pipeline import bronze as module

    write(tmp_path / "full" / _history().name(), _history().lines())
    (tmp_path / "empty").mkdir()
    for path, what in (("empty", "holds no file"), ("nowhere", "does not exist"), ("*.gz", "does not exist")):
        with pytest.raises(ConfigurationError, match=what) as caught:
            module.read(spark, [str(tmp_path / "full"), str(tmp_path / path)])
        assert str(tmp_path / path) in str(caught.value)
        assert "journal.directory" in str(caught.value)
    with pytest.raises(ConfigurationError, match="at least one"):
        module.read(spark, [])
