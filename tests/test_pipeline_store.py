"""Tables on disk: a write replaces what its rows belong to, empties what is about nothing, no more."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bstar.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NAME = "bronze.rejected"
MONDAY, TUESDAY = dt.date(2026, 11, 2), dt.date(2026, 11, 3)


def _frame(spark: SparkSession, *rows: tuple[str, dt.date, str]) -> DataFrame:
    return spark.createDataFrame(
        [("file", "unreadable", 1, line, day, pair) for line, day, pair in rows],
        "file STRING, reason STRING, version INT, line STRING, day DATE, pair STRING",
    )


def _held(spark: SparkSession, root: str) -> set[tuple[str, dt.date, str]]:
    from bstar_pipeline import store

    rows = store.read(spark, root, NAME).collect()
    return {(row.line, row.day, row.pair) for row in rows}


def test_a_write_replaces_its_partitions_and_leaves_others(spark: SparkSession, tmp_path: Path) -> None:
    from bstar_pipeline import store

    root = str(tmp_path / "tables of ours")
    # A table without rows is a table.
    store.replace(_frame(spark).limit(0), root, NAME, [(MONDAY, "p")])
    assert spark.read.parquet(f"{root}/bronze/rejected").count() == 0
    first = (("a", MONDAY, "p"), ("b", MONDAY, "123"), ("c", TUESDAY, "p"))
    assert set(store.write(_frame(spark, *first), root, NAME).new.values()) == {
        (day, pair) for _, day, pair in first
    }
    assert _held(spark, root) == set(first)
    # A job about two partitions that has rows for one of them.
    scope = [(MONDAY, "p"), (TUESDAY, "p")]
    store.replace(_frame(spark, ("e", TUESDAY, "p")), root, NAME, scope)
    assert _held(spark, root) == {("b", MONDAY, "123"), ("e", TUESDAY, "p")}
    assert [row.line for row in store.read(spark, root, NAME, [(TUESDAY, "p")]).collect()] == ["e"]


def test_what_a_part_of_a_partition_held_before_goes_too(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from bstar_pipeline import store
    from bstar_pipeline.schema import RECORDS

    rows = [{"seq": 1, "topic": "calls"}, {"seq": 2, "topic": "events"}]
    frame = spark.createDataFrame([{**row, "day": MONDAY, "pair": "p"} for row in rows], RECORDS)
    store.write(frame, str(tmp_path), "bronze.records")
    store.replace(frame.where(F.col("topic") == "events"), str(tmp_path), "bronze.records", [(MONDAY, "p")])
    assert [row.seq for row in store.read(spark, str(tmp_path), "bronze.records").collect()] == [2]


def test_a_table_that_was_never_written_is_an_error_that_says_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    from bstar_pipeline import store

    with pytest.raises(ConfigurationError, match=r"no table gold\.audit: .*bstar pipeline run"):
        store.read(spark, str(tmp_path), "gold.audit")


def test_columns_that_are_not_the_tables_are_our_fault(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from bstar_pipeline import store

    frame = _frame(spark).withColumn("version", F.lit("one")).drop("line")
    with pytest.raises(AssertionError, match=r"version: StringType.*the table has IntegerType"):
        store.write(frame, str(tmp_path), NAME)
    assert not list(tmp_path.iterdir())
