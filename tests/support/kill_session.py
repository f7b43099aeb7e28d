"""What either engine needs, for a process that a test kills."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(engine: str) -> Iterator["SparkSession | None"]:
    """Of "local", or of "spark" with the settings of the tests."""
    from bstar_pipeline.session import open_session
    from support.spark_fixtures import SETTINGS

    if engine == "local":
        yield None
        return
    spark = open_session("kill", master="local[2]", settings=SETTINGS)
    try:
        yield spark
    finally:
        spark.stop()
