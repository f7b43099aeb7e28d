"""A Docker engine and a compose program: those that are there, else an engine of our own until we are done.

An engine is started only where none answers and ``dockerd`` is installed, as root, with a folder of its own,
so that nothing of an engine that somebody starts later is touched. Only that one is stopped again, by its
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from compose.commands import ComposeTestError, need, run, say, wait_until
from compose.leftovers import Network

_STOP_S = 60.0


class Engine:
    """``env`` is the environment in which docker and compose reach it."""

    def __init__(self, cache: Path, compose: str | None) -> None:
        self.cache = cache
        # Debian's docker-compose is a Python package of the name of this one: it must find itself.
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process: subprocess.Popen[bytes] | None = None
        self._network: Network | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.docker = need("docker", "docker.io")
        # BuildKit is a plugin of its own; the engine's own builder does all that the Dockerfile asks for.
        self._wanted = compose
        self.compose: list[str] = []

    def __enter__(self) -> Self:
        try:
            if not self._answers():
                self._start()
            self.compose = self._find_compose()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """Run a docker command; what it printed."""
        return run([self.docker, *arguments], env=self.env, check=check, stdin=stdin).stdout

    def _answers(self) -> bool:
        done = run([self.docker, "version", "--format", "{{json .Server}}"], env=self.env, check=False)
        if done.returncode != 0:
            self._why_not = done.stderr.strip()
            return False
        say(f"the Docker engine {json.loads(done.stdout)['Version']} answers")
        return True

    def _start(self) -> None:
        if os.environ.get("DOCKER_HOST"):
            raise ComposeTestError(f"DOCKER_HOST is set, and no engine answers there: {self._why_not}")
        if os.geteuid() != 0:
            raise ComposeTestError(
                f"no Docker engine answers ({self._why_not}); start it (systemctl start docker), or run "
                "this as root, and an engine is started for as long as it is needed"
            )
        program = need("dockerd", "docker.io")
        need("containerd", "containerd")
        need("iptables", "iptables")
        self._network = Network(lambda command: run(command, check=False).stdout)
        # A socket's path must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="bstar-engine-", dir="/run")
        folder = Path(self._folder.name)
        data = self.cache / "engine"
        data.mkdir(parents=True, exist_ok=True)
        log = data / "dockerd.log"
        say(f"no engine answers: starting one of our own (log: {log})")
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--host=unix://{folder}/docker.sock",
                    f"--data-root={data}",
                    f"--exec-root={folder}/exec",
                    f"--pidfile={folder}/docker.pid",
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.env["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        process = self._process

        def is_up() -> bool:
            if process.poll() is not None:
                raise ComposeTestError(
                    f"dockerd ended with status {process.returncode}:\n{log.read_text()[-3000:]}"
                )
            return self._answers()

        wait_until("the engine answers", is_up)

    def _stop(self) -> None:
        if self._process is not None:
            say("stopping the engine that was started for this")
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                say(f"it has not ended within {_STOP_S:g} s: killing it")
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._network is not None:
            self._network.restore()
            self._network = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _find_compose(self) -> list[str]:
        choices = [[self.docker, "compose"], ["docker-compose"]]
        if self._wanted is not None:
            choices = [self._wanted.split()]
        for choice in choices:
            try:
                done = run([*choice, "version"], env=self.env, check=False)
            except ComposeTestError:
                continue
            if done.returncode == 0:
                say(f"compose: {' '.join(choice)}, {done.stdout.splitlines()[0]}")
                return choice
        wanted = self._wanted or "docker compose (or docker-compose)"
        raise ComposeTestError(
            f"{wanted} does not work; on Debian: apt-get install docker-compose (or docker-compose-v2)"
        )
