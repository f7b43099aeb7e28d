"""The local engine: Sail runs what is written for Spark in this process, and needs no JVM.

Sail (pysail) is a server of the Spark Connect protocol, written in Rust. It knows the DataFrame API and the
SQL of Spark, so the tables are defined once, and a small job takes seconds instead of a minute. Where it
differs from Spark in what matters here, a function asks ``is_local``. It knows folders of this machine only.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from typing import cast
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.connect import session as connect

from bstar.errors import ConfigurationError

_MODE = "SPARK_CONNECT_MODE_ENABLED"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Else each operation on a column looks for IPython, in vain, to note which line of Python it stands in.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_sessions: WeakSet[SparkSession] = WeakSet()


def is_there() -> bool:
    """Whether the local engine is installed; what travels to a cluster brings none."""
    return find_spec("pysail") is not None


def is_local(spark: SparkSession) -> bool:
    """Whether this session is of the local engine."""
    return spark in _sessions


def version_of(spark: SparkSession) -> str:
    """What does the work, as people call it: "Spark 4.2.1", "Sail 0.7.2"."""
    return f"Sail {metadata.version('pysail')}" if is_local(spark) else f"Spark {spark.version}"


@contextmanager
def local_session(app: str) -> Iterator[SparkSession]:
    """A session of the local engine for the block. Raises ConfigurationError if it is not installed."""
    if not is_there():
        raise ConfigurationError("the local engine needs pysail: pip install '.[spark]' in a clone of bstar")
    # It logs to stderr what it raises as an error, too.
    os.environ.setdefault("RUST_LOG", "off")
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    try:
        host, port = server.listening_address
        builder = connect.SparkSession.builder.remote(f"sc://{host}:{port}").appName(app)
        with _connect_mode():
            for key, value in _SETTINGS.items():
                builder = builder.config(key, value)
            spark = cast("SparkSession", builder.create())
            _sessions.add(spark)
            try:
                yield spark
            finally:
                spark.stop()
    finally:
        server.stop()


@contextmanager
def _connect_mode() -> Iterator[None]:
    """PySpark's functions make columns for Spark Connect; before and after that they are what they were."""
    before = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_MODE]
