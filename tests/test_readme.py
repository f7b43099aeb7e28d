"""The README is true: its programs run as they stand there, and its commands do what it says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bstar_testing import LoopbackHost

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BSTAR = [sys.executable, "-m", "bstar_cli"]
# What the shipped configurations and the README's programs name.
SHIPPED_PORTS = ("5001", "5002", "5003", "5004", "9401", "9402")

pytestmark = pytest.mark.loopback


class Place:
    """A folder with the shipped configurations and the README's programs, on free ports."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.folder = folder
        self._numbers = dict(zip(SHIPPED_PORTS, map(str, ports), strict=True))
        for role in ("primary", "backup"):
            self.write(f"{role}.yaml", (ROOT / "configs" / f"{role}.yaml").read_text())
        for block in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, re.DOTALL):
            self.write(*block)
        endpoints = "tcp://127.0.0.1:5001,tcp://127.0.0.1:5002"
        self.environment = {**os.environ, "BSTAR_ENDPOINTS": self._moved(endpoints)}

    def _moved(self, text: str) -> str:
        return re.sub(r"\b(5001|5002|5003|5004|9401|9402)\b", lambda found: self._numbers[found[0]], text)

    def write(self, name: str, text: str) -> None:
        """A file of the README or the project, with its ports moved."""
        (self.folder / name).write_text(self._moved(text))

    @contextmanager
    def running(self, *command: str, until: str | None = None) -> Iterator[subprocess.Popen[str]]:
        """A process, ended by its pid at the end of the block; ``until``: wait for this word of its log."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            while until is not None:
                line = process.stderr.readline()
                assert line, f"{command} ended before it said {until!r}"
                if until in line:
                    break
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with LoopbackHost() as host:
        yield Place(tmp_path, host.ports(len(SHIPPED_PORTS)))


def test_failover_in_three_commands(place: Place) -> None:
    for said in (
        "bstar serve --config configs/primary.yaml",
        "bstar serve --config configs/backup.yaml",
        "bstar worker --service echo echo",
        'bstar call echo "hello"',
        "bstar status",
    ):
        assert said in README
    with ExitStack() as stack:
        primary = stack.enter_context(
            place.running(*BSTAR, "serve", "--config", "primary.yaml", until="ready")
        )
        stack.enter_context(place.running(*BSTAR, "serve", "--config", "backup.yaml", until="ready"))
        stack.enter_context(place.running(*BSTAR, "worker", "--service", "echo", "echo"))

        assert place.run(*BSTAR, "call", "echo", "hello").stdout == "hello"
        status = place.run(*BSTAR, "status")
        assert (status.returncode, "ACTIVE" in status.stdout, "PASSIVE" in status.stdout) == (0, True, True)

        primary.kill()
        primary.wait()
        assert place.run(*BSTAR, "call", "echo", "again").stdout == "again"


def test_the_worker_and_the_client_run_as_they_stand_there(place: Place) -> None:
    assert {path.name for path in place.folder.glob("*.py")} == {"worker.py", "client.py"}
    with ExitStack() as stack:
        for role in ("primary", "backup"):
            stack.enter_context(place.running(*BSTAR, "serve", "--config", f"{role}.yaml", until="ready"))
        stack.enter_context(place.running(sys.executable, "worker.py"))
        done = place.run(sys.executable, "client.py")
    assert done.stdout.splitlines() == ["b'HELLO'", "0 b'A'", "1 b'B'", "2 b'C'"], done.stderr
