"""A Spark cluster of two executors that are processes of their own, on the loopback, for one spark-submit.

``local-cluster[2,1,1024]`` starts a real master and two real workers in the driver's JVM; each worker starts
an executor as a process. Nothing of it outlives the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from bstar_pipeline.amounts import SMALL_JVM
from pipeline.events import SETTINGS, Application, read
from support.spark_fixtures import SETTINGS as QUICK
from support.spark_fixtures import spark_home

EXECUTORS = 2
# Starting three JVMs takes a loaded machine its time.
LIMIT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a spark-submit ended."""

    status: int
    out: str
    err: str
    application: Application


class Cluster:
    """What spark-submit finds below ``folder``: a Spark home that may be written to, logs, work folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder / "home"
        self._home.mkdir(parents=True)
        # Executors work in a folder of the Spark home; the installed one is not for that.
        for entry in spark_home().iterdir():
            if entry.name != "work":
                (self._home / entry.name).symlink_to(entry)

    def submit(
        self,
        name: str,
        program: Path,
        arguments: Sequence[str] = (),
        *,
        options: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        executor_python: str,
        lose_when: Callable[[], bool] | None = None,
    ) -> Done:
        """Run the program to its end. Its driver is a Python of this environment.

        ``settings`` are Spark's. As soon as ``lose_when`` is true, the second executor is killed.
        """
        logs = self._folder / f"{name}-events"
        logs.mkdir()
        every = {
            **QUICK,
            **SETTINGS,
            "spark.eventLog.dir": f"file:{logs}",
            "spark.log.level": "WARN",
            "spark.executor.extraJavaOptions": SMALL_JVM,
            # Even a small input is for both.
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.files.minPartitionNum": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            **(settings or {}),
        }
        conf = [part for key, value in every.items() for part in ("--conf", f"{key}={value}")]
        command = [
            str(self._home / "bin" / "spark-submit"),
            *("--master", f"local-cluster[{EXECUTORS},1,1024]"),
            *conf,
            *options,
            str(program),
            *arguments,
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment |= {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "PYSPARK_PYTHON": executor_python,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with ThreadPoolExecutor(1) as beside:
            ended = beside.submit(process.communicate)
            try:
                while lose_when is not None and not ended.done():
                    if lose_when():
                        self._lose_executor(1)
                        break
                    wait([ended], timeout=0.2)
                out, err = ended.result(LIMIT_S)
            finally:
                # Its session is its own: whatever it started and left behind goes with it.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return Done(process.returncode, out, err, read(logs))

    def _lose_executor(self, number: int) -> None:
        (pid,) = (
            pid
            for pid, line in self._working()
            if "CoarseGrainedExecutorBackend" in line and f"--executor-id {number} " in line
        )
        os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[str]:
        """The command lines of processes that still work for it."""
        return [line for _, line in self._working()]

    def _working(self) -> list[tuple[int, str]]:
        wanted = f"SPARK_HOME={self._home}".encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in file.read_bytes().split(b"\0"):
                    line = (file.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append((int(file.parent.name), line))
            except OSError:
                continue
        return found
