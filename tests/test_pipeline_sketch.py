"""Log-bucket histograms: the promised error holds, and Spark, DuckDB and Python agree on every bucket."""

import math
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar_pipeline import sketch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = st.integers(-(10**10), 10**10)
LEAST_GAP = 1e-14  # 50 times what a logarithm in double precision may be wrong by


@given(VALUES)
def test_a_bucket_is_at_most_one_percent_from_its_values(value: int) -> None:
    assert abs(sketch.value_of(sketch.bucket_of(value)) - value) <= sketch.ERROR * abs(value) * (1 + 1e-9)


@given(VALUES, VALUES)
def test_buckets_are_in_the_order_of_their_values(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert sketch.bucket_of(low) <= sketch.bucket_of(high)


@given(st.lists(VALUES, min_size=1, max_size=50), st.sampled_from([0.01, 0.5, 0.95, 0.99]))
def test_a_percentile_is_at_most_one_percent_from_the_exact_one(values: list[int], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    weights: dict[int, int] = {}
    for value in values:
        weights[sketch.bucket_of(value)] = weights.get(sketch.bucket_of(value), 0) + 1
    running = 0
    for bucket in sorted(weights):
        running += weights[bucket]
        if running >= share * len(values):
            assert abs(sketch.value_of(bucket) - exact) <= sketch.ERROR * abs(exact) * (1 + 1e-9)
            return
    pytest.fail("no bucket reached the share")


def test_no_number_is_so_near_a_border_that_logarithms_could_disagree() -> None:
    """Checked at every border below 10^10, with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        gamma = Decimal(101) / Decimal(99)
        border, bucket = gamma, 1
        while border < 10**10:
            for whole in (int(border), int(border) + 1):
                if whole > 1:
                    exact = Decimal(whole).ln() / gamma.ln()
                    assert abs(exact - bucket) / bucket > LEAST_GAP
                    assert sketch.bucket_of(whole) == math.ceil(exact)
            border *= gamma
            bucket += 1


@pytest.mark.spark
def test_spark_and_duckdb_come_to_what_python_comes_to(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    borders = [round(sketch.GAMMA**bucket) + near for bucket in range(1100) for near in (-1, 0, 1)]
    values = sorted({0, *borders, *(-value for value in borders)})
    frame = spark.createDataFrame([(value,) for value in values], "value BIGINT")
    by_spark = frame.select(F.expr(sketch.bucket_sql("value")).alias("bucket")).select(
        "bucket", F.expr(sketch.value_sql("bucket")).alias("middle")
    )
    found = [(row["bucket"], row["middle"]) for row in by_spark.collect()]
    database = duckdb.connect()
    database.execute("CREATE TABLE numbers AS SELECT unnest(?) AS value", [values])
    buckets = f"SELECT {sketch.bucket_sql('value')} AS bucket FROM numbers"
    by_duckdb = database.execute(f"SELECT bucket, {sketch.value_sql('bucket')} FROM ({buckets})").fetchall()
    for value, (bucket, middle), (duck_bucket, duck_middle) in zip(values, found, by_duckdb, strict=True):
        assert bucket == duck_bucket == sketch.bucket_of(value)
        assert middle == pytest.approx(sketch.value_of(bucket), rel=1e-12)
        assert duck_middle == pytest.approx(middle, rel=1e-12)
