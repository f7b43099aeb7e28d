"""The Spark session that the pipeline's commands and tests use: found Java, sane settings, any master.

With ``remote`` it is a Spark Connect session, otherwise a classic one with a driver in this process. The
pipeline itself uses the DataFrame API only and never asks which of the two it was given.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from bstar.errors import ConfigurationError

__all__ = ["JAVA_MIN", "find_java", "open_session"]

JAVA_MIN = 17
"""Spark 4 runs on Java 17 and newer."""

_HOW = (
    f"Spark needs Java {JAVA_MIN} or newer. Debian and Ubuntu: apt-get install openjdk-17-jre-headless "
    "(make setup does it). Elsewhere install any JDK and let JAVA_HOME name its folder."
)
# What holds whatever the job is. Times are UTC: a day is the same everywhere.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_TIMEOUT_S = 30


def find_java() -> str:
    """The Java that Spark will use, of JAVA_HOME or the PATH.

    Raises ConfigurationError, which says what to do, if there is none or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise ConfigurationError(f"no java on the PATH, and JAVA_HOME is not set. {_HOW}")
    try:
        told = subprocess.run(  # noqa: S603 - the java that Spark itself would start
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{java} does not run: {error}. {_HOW}") from error
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < JAVA_MIN:
        raise ConfigurationError(
            f"{java} is too old: {told.splitlines()[0] if told else 'no version'}. {_HOW}"
        )
    return java


def open_session(
    app: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session, the one there is already if there is one.

    ``master`` as spark-submit takes it ("local[4]", "spark://host:7077", "yarn"); None: what spark-submit or
    the configuration says, else all cores of this machine. ``remote``: a Spark Connect address ("sc://host",
    or "local[2]", which starts a server of its own). ``settings`` override everything.
    """
    builder = SparkSession.builder.appName(app)
    if remote is not None:
        if master is not None:
            raise ConfigurationError("a session is either of a master or of a remote server, not of both")
        builder = builder.remote(remote)
    else:
        find_java()
        # Executors on this machine run the interpreter that runs now, not the first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master is not None:
            builder = builder.master(master)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session
