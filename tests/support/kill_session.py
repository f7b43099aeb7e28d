"""A session of either engine, for a process that a test kills."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(engine: str) -> Iterator["SparkSession"]:
    """ "local", or "spark" with the settings of the tests."""
    from bstar_pipeline.engine import local_session
    from bstar_pipeline.session import open_session
    from support.spark_fixtures import SETTINGS

    if engine == "local":
        with local_session("kill") as spark:
            yield spark
        return
    spark = open_session("kill", master="local[2]", settings=SETTINGS)
    try:
        yield spark
    finally:
        spark.stop()
