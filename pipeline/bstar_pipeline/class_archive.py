"""Spark's classes as Java has them in memory: a JVM that starts with this file maps them, and parses none.

The first session that starts a driver has Java leave the file beside Spark's jars as it ends ("dynamic
archive", JEP 350); later ones start with it. Java ignores a file that does not fit it or its class path. It
crashes on one that is not whole: so one process at a time makes the file elsewhere, syncs and renames it.

On two busy cores a job of 45,827 records takes 73 CPU seconds with it and 80 without, side by side.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from bstar.host.whole_file import lock_file

OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable by which Spark's scripts get options for Java."""

# Directories and jars before Spark's: Java archives no classes then, or for this class path alone.
_CLASS_PATHS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_OF_DRIVER = ("spark.driver.extraJavaOptions", "spark.driver.extraClassPath")
# What does not fit is no news; Java would say so on stdout.
_QUIET = "-Xlog:cds*=off"
_EXIT_MAX_S = 300


@contextmanager
def archived(java: str | None, settings: Mapping[str, str]) -> Iterator[str]:
    """The options by which Java starts with the archive, or leaves one: it is there after the block.

    Empty if none can be used or written, or somebody else chooses Java's options or starts it.
    """
    home = Path(_find_spark_home())
    real, jars = Path(java or "").resolve(), home / "jars"
    is_chosen = any(name in os.environ for name in (OPTIONS, "PYSPARK_GATEWAY_PORT", *_CLASS_PATHS))
    is_ours = not is_chosen and settings.keys().isdisjoint(_OF_DRIVER) and not (home / "conf").exists()
    if not (is_ours and real.is_file() and jars.is_dir()):
        yield ""
        return
    archive = home / f"bstar-{sha256(bytes(real)).hexdigest()[:16]}.jsa"
    newest_ns = max(real.stat().st_ctime_ns, jars.stat().st_ctime_ns)
    try:
        if archive.exists() and archive.stat().st_mtime_ns > newest_ns:
            yield f'"-XX:SharedArchiveFile={archive}" {_QUIET}'
            return
        with _making(home) as made:
            if made is None:
                yield ""
                return
            try:
                yield f'"-XX:ArchiveClassesAtExit={made}" {_QUIET}'
                sys.stderr.write(f"once, for quicker starts: Spark's classes go to {archive}\n")
                is_whole = _end_java(_EXIT_MAX_S)
            except BaseException:
                _end_java(0)
                raise
            if is_whole and made.exists():
                with made.open("rb") as whole:
                    os.fsync(whole.fileno())
                made.replace(archive)
    finally:
        os.environ.pop(OPTIONS, None)


@contextmanager
def _making(home: Path) -> Iterator[Path | None]:
    """Where the only process that makes an archive here puts it; None if another one does, or none may."""
    try:
        lock = lock_file(home / ".bstar.lock")
    except OSError:
        lock = None
    if lock is None:
        yield None
        return
    try:
        # Of processes that were killed.
        for left in home.glob(".bstar-*"):
            rmtree(left)
        with TemporaryDirectory(dir=home, prefix=".bstar-") as folder:
            yield Path(folder, "made.jsa")
    finally:
        os.close(lock)


def _end_java(timeout_s: float) -> bool:
    """End this process's JVM, if it has one. Returns whether that ended in good order in time."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - PySpark has no other way to its JVM
    if gateway is None:
        return False
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(timeout_s)
    except TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    return bool(gateway.proc.returncode == 0)
