"""The Spark session that the pipeline's commands and tests use: found Java, sane settings, any master.

With ``remote`` it is a Spark Connect session, otherwise a classic one with a driver in this process.
"""

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from bstar.errors import ConfigurationError
from bstar_pipeline.amounts import JVM, SMALL, SMALL_JVM, memory_bytes
from bstar_pipeline.class_archive import OPTIONS

JAVA_MIN = 17
"""Spark 4 runs on Java 17 and newer."""

_HOW = (
    f"Spark needs Java {JAVA_MIN} or newer. Debian and Ubuntu: apt-get install openjdk-17-jre-headless "
    "(make setup does it). Elsewhere install any JDK and let JAVA_HOME name its folder."
)
# Settings for every job. Times are UTC: a day is the same everywhere.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # Packed rows of a partition become five times as many bytes in DuckDB, which spills beyond its memory.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # A row of a shuffle is a share of rows, of megabytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
    # A task that writes has one file open for each partition that its rows go to, up to so many; beyond that
    # Spark sorts all rows by partition first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Packed journals become fifteen times as long, and no file of them can be cut: of Spark's 128 MB there
    # would be too few shares for all cores to be busy to the end.
    "spark.sql.files.maxPartitionBytes": "32m",
    # Many of those files are small. Each task writes a file of each topic, and every later query opens it.
    "spark.sql.files.openCostInBytes": "1m",
    # A table is a list of files. Beyond 32 of them Spark starts a job to look at them, with a task for each.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
    # With a column for each field of each kind, deducing what filters imply takes the optimizer longer than
    # it takes to read a small journal.
    "spark.sql.constraintPropagation.enabled": "false",
}
# What a driver that is started here needs besides; a Connect server elsewhere has its own.
_DRIVER_SETTINGS = {
    # Shares of rows are packed already.
    "spark.shuffle.compress": "false",
    "spark.ui.showConsoleProgress": "false",
    # Else each operation on a column asks the JVM five times more, to note which line of Python it stands in.
    # No session can change it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_PARTITIONS = "spark.sql.shuffle.partitions"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Spark has 200, for clusters: with a few cores most of the time would go into starting tasks. A larger share
# is spilled.
_LOCAL_PARTITIONS = 32
_JAVA_TIMEOUT_S = 30


def java_path() -> str | None:
    """The Java that Spark's scripts start, of JAVA_HOME or the PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def find_java() -> str:
    """The same; raises ConfigurationError, which says what to do, if it is missing or too old."""
    java = java_path()
    if java is None:
        raise ConfigurationError(f"no java on the PATH, and JAVA_HOME is not set. {_HOW}")
    try:
        output = subprocess.run(  # noqa: S603 - the java that Spark itself would start
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{java} does not run: {error}. {_HOW}") from error
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < JAVA_MIN:
        raise ConfigurationError(
            f"{java} is too old: {output.splitlines()[0] if output else 'no version'}. {_HOW}"
        )
    return java


def starts_driver(remote: str | None) -> bool:
    """Whether a session of this Spark Connect address, or of none, starts a JVM on this machine."""
    return remote is None or re.match(r"local(\[|-cluster|$)", remote) is not None


def open_session(
    app: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    is_small: bool = False,
    jvm: str | None = None,
    java_options: str = "",
) -> SparkSession:
    """A session, the one there is already if there is one.

    ``master`` as spark-submit takes it ("local[4]", "spark://host:7077", "yarn"); None: what spark-submit or
    the configuration says, else all cores of this machine. ``remote``: a Spark Connect address ("sc://host",
    or "local[2]", which starts a server of its own). ``settings`` override everything. ``is_small``: there is
    little to read. ``jvm``: how Java runs a driver that is started here, with ``java_options`` besides;
    SPARK_SUBMIT_OPTS or ``spark.driver.extraJavaOptions`` say otherwise.
    """
    builder = SparkSession.builder.appName(app)
    if remote is not None:
        if master is not None:
            raise ConfigurationError("a session is either of a master or of a remote server, not of both")
        builder = builder.remote(remote)
    if starts_driver(remote):
        find_java()
        # Executors on this machine run the interpreter that runs now, not the first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # spark.driver.memory and spark-submit's --driver-memory say otherwise.
        os.environ.setdefault("SPARK_DRIVER_MEMORY", f"{_driver_memory() >> 20}m")
        # With two collectors chosen Java does not start.
        if _JAVA_OPTIONS not in (settings or {}):
            os.environ.setdefault(OPTIONS, f"{jvm or (SMALL_JVM if is_small else JVM)} {java_options}")
    if master is not None:
        builder = builder.master(master)
    builder = builder.config(map={**_defaults(master, remote, is_small), **(settings or {})})
    with warnings.catch_warnings():
        if remote is not None and starts_driver(remote):
            # What the server started with is set once more on the session, and refused: it has it already.
            warnings.filterwarnings("ignore", r"Failed to set .*CANNOT_MODIFY_(STATIC_)?CONFIG")
        session: SparkSession = builder.getOrCreate()
    if remote is None:
        conf = session.sparkContext.getConf()
        is_local = re.fullmatch(r"local(\[.*\])?", conf.get("spark.master") or "") is not None
        if is_local and not conf.contains(_PARTITIONS):
            session.conf.set(_PARTITIONS, str(_LOCAL_PARTITIONS))
    return session


def _defaults(master: str | None, remote: str | None, is_small: bool) -> dict[str, str]:
    """What holds unless the settings of a session say otherwise."""
    if not starts_driver(remote):
        return _SETTINGS
    if is_small and (remote or master or "local").startswith("local"):
        return _SETTINGS | _DRIVER_SETTINGS | SMALL
    partitions = {} if remote is None else {_PARTITIONS: str(_LOCAL_PARTITIONS)}
    return _SETTINGS | _DRIVER_SETTINGS | partitions


def _driver_memory() -> int:
    """Bytes for the JVM of the driver, which is the whole job in local mode; Spark's default is the least."""
    return min(max(1 << 30, memory_bytes() // 2), 4 << 30)
