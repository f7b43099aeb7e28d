"""What ``pip install .`` brings: enough for an application, and a command that says what it lacks."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bstar_cli import exits
from support.brokers import lone_broker

pytestmark = pytest.mark.loopback

ROOT = Path(__file__).parent.parent
ROOMS = [str(ROOT / room) for room in ("bstar", "broker", "client", "pipeline", "cli")]

APPLICATION = """
import threading
from bstar_client import AsyncHAClient, HAClient, Worker

worker = Worker([endpoint], "upper", lambda request: request.body.upper())
thread = threading.Thread(target=worker.run)
thread.start()
try:
    with HAClient([endpoint], timeout=30) as client:
        print(client.request("upper", b"hello").body.decode())
finally:
    worker.stop()
    thread.join()
"""
COMMAND = "import sys, bstar_cli.entry; sys.exit(bstar_cli.entry.main())"


def _with_its_requirements(name: str) -> set[str]:
    """A distribution and all that it requires here without extras."""
    required = map(Requirement, metadata.requires(name) or [])
    wanted = [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {name}.union(*map(_with_its_requirements, wanted))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds the base dependencies and nothing else."""
    folder = tmp_path_factory.mktemp("base")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [Requirement(line).name for line in project["dependencies"]]
    for name in set().union(*map(_with_its_requirements, listed)):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def test_the_readme_counts_the_packages_of_the_base() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [Requirement(line).name for line in project["dependencies"]]
    packages = set().union(*map(_with_its_requirements, listed))
    word = {3: "three", 4: "four", 5: "five"}[len(packages)]
    assert f"brings {word} small packages" in (ROOT / "README.md").read_text()


def run(base: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds our packages and those in ``base``, and no others."""
    paths = f"import sys; sys.path[:0] = {[*ROOMS, str(base)]!r}\n"
    command = [sys.executable, "-I", "-S", "-c", paths + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_an_application_needs_the_base_dependencies_alone(base: Path, tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker:
        done = run(base, f"endpoint = {broker.endpoint!r}\n{APPLICATION}")
    assert (done.stdout, done.returncode) == ("HELLO\n", 0)
    # One node instead of a pair deserves a warning each from the worker and the client, and nothing else.
    assert len(done.stderr.splitlines()) == done.stderr.count(" has one endpoint, ") == 2


def test_a_server_of_ones_own_needs_the_base_dependencies_alone(base: Path) -> None:
    done = run(base, "from bstar import BinaryStar, Reactor, Role, State; print(BinaryStar.__name__)")
    assert (done.stdout, done.stderr) == ("BinaryStar\n", "")


def test_the_command_says_in_one_line_what_to_install(base: Path) -> None:
    done = run(base, COMMAND)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert re.fullmatch(
        r"bstar: \w+ is not installed: pip install '\.\[server\]' in a clone of bstar\n", done.stderr
    )


def test_reading_a_configuration_says_what_to_install(base: Path) -> None:
    done = run(base, "from bstar.settings import load_fleet")
    assert done.stderr.endswith(
        "needs PyYAML, which is not installed: pip install '.[server]' in a clone of bstar\n"
    )
