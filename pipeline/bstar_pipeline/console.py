"""A Spark session for a command: opened without the chatter of its start, closed at the end, errors in words.

The JVM writes to the same stderr as the command. What it says while it starts (modules, log profiles, host
names) is known and says nothing, so it is filtered out; everything else comes through. Its log is at level
ERROR unless ``spark.log.level`` says otherwise. What goes wrong in Spark becomes a PipelineError with Spark's
own first lines, without the stack of a JVM.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import duckdb
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bstar.errors import PipelineError
from bstar_pipeline.class_archive import archived
from bstar_pipeline.session import java_path, open_session, starts_driver

_SETTINGS = {
    "spark.log.level": "ERROR",
    # A page on a port of this machine must be asked for; --conf spark.ui.enabled=true does.
    "spark.ui.enabled": "false",
}
# A driver that has all its executors in itself must not be reached from elsewhere.
_LOCAL_SETTINGS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_NOISE = re.compile(
    rb"^WARNING: Using incubator modules"
    rb"|^Using Spark's default log4j profile"
    rb"|^Setting (default log level|Spark log level) to"
    rb"|^To adjust logging level use"
    rb"| WARN (Utils|NativeCodeLoader): "
)
# A start that fails says why in its first line.
_FRAME = b"\tat "
_LINES_MAX = 6


@contextmanager
def session(
    app: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    is_small: bool = False,
    jvm: str | None = None,
) -> Iterator[SparkSession]:
    """As ``open_session`` for the time of the block; a session that there was already is used, and stays.

    Raises ConfigurationError if there is no Java or the choice makes no sense, PipelineError for whatever
    Spark cannot do.
    """
    # It tells of broken connections to the JVM by tracebacks; the exception that comes with it is enough.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    opened = partial(open_session, app, master=master, remote=remote, is_small=is_small, jvm=jvm)
    try:
        active = SparkSession.getActiveSession()
        if active is not None:
            yield active
            return
        every = {**_settings(master, remote), **(settings or {})}
        # A Connect server is a process of its own.
        with archived(java_path(), every) if remote is None else nullcontext("") as java_options:
            with _without_noise():
                spark = opened(settings=every, java_options=java_options)
            try:
                yield spark
            finally:
                spark.stop()
    except (PySparkException, Py4JError, duckdb.Error) as error:
        raise PipelineError(_sentence(error)) from error


def _settings(master: str | None, remote: str | None) -> dict[str, str]:
    """What holds unless somebody says otherwise; nothing for a Connect server that is not started here."""
    if not starts_driver(remote):
        return {}
    is_local = remote is not None or (master or "").startswith("local")
    # A server logs every error that it answers with, too.
    log = {} if remote is None else {"spark.log.level": "FATAL"}
    return {**_SETTINGS, **(_LOCAL_SETTINGS if is_local else {}), **log}


def _sentence(error: Exception) -> str:
    lines = str(error).partition("\nJVM stacktrace")[0].splitlines()
    told = [each.rstrip() for each in lines if each.strip() and not each.lstrip().startswith(("at ", "... "))]
    return "\n".join(told[:_LINES_MAX]) or type(error).__name__


@contextmanager
def _without_noise() -> Iterator[None]:
    """Processes started within have a stderr that leaves the known lines out, for as long as they live."""
    sys.stderr.flush()
    real = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    is_up = threading.Event()
    threading.Thread(target=_copy, args=(source, real, is_up), name="stderr of Spark", daemon=True).start()
    try:
        yield
        is_up.set()
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)


def _copy(source: int, real: int, is_up: threading.Event) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(real, "wb", buffering=0) as out:
        for line in lines:
            if not _NOISE.search(line) and (is_up.is_set() or not line.startswith(_FRAME)):
                out.write(line)
