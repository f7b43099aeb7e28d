"""The Spark session for tests of the pipeline.

What tables hold is tested on the local engine, in a tenth of the time; test_pipeline_incidents.py compares
them with Spark's. There is one session for all tests that ask for it: starting a JVM takes seconds. A machine
without Java skips these tests and says so; with ``CI=true`` they fail.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bstar.errors import ConfigurationError
from bstar_pipeline.amounts import SMALL, SMALL_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    **SMALL,
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.driver.memory": "1g",
}
"""For small data on a small machine that nobody else should reach."""

COMPILED = {
    **SETTINGS,
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
"""The same with plans that Spark adapts and compiles, as for large data."""


def spark_home() -> Path:
    """Where Spark is installed."""
    import pyspark

    return Path(pyspark.__file__).parent


def need_java() -> None:
    """Skip the test if there is no Java that Spark can use; in CI, fail."""
    from bstar_pipeline.session import find_java

    try:
        find_java()
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A local session with two cores."""
    need_java()
    from bstar_pipeline.session import open_session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = open_session(
        "bstar tests", master="local[2]", settings={**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}
    )
    yield session
    session.stop()
