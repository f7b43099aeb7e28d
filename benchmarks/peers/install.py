"""What of the peers is on this machine, after what is missing and can be installed has been.

Servers are Debian's packages; their clients go into a venv of their own, so that bstar's stays as users
have it. Nothing is installed twice, and nothing outside the venv without being root on a machine with apt.
The packages would start their servers on every address of the machine, at once and whenever it boots; that
is not what was asked for, so neither happens. What cannot be installed is said and left out.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
# The clients' libraries, and what is imported of them.
_CLIENTS = {"nats-py": "nats", "pika": "pika", "uvloop": "uvloop"}
# Not the wrapper on the PATH, which changes to the package's user and its folders.
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
# What invoke-rc.d asks before it starts the service of a package; 101 forbids it.
POLICY = Path("/usr/sbin/policy-rc.d")
# Long enough for a slow mirror, not for one that is not there.
_APT = (
    *("apt-get", "-qq", "-o", "Acquire::http::Timeout=20"),
    *("-o", "Acquire::Retries=1", "-o", "DPkg::Lock::Timeout=60"),
)
_APT_S_MAX = 600.0


@dataclass(frozen=True)
class Peers:
    """Programs and interpreters, None where there is none; ``lacks`` says why, ``told`` the versions."""

    nats_server: str | None
    rabbitmq_server: str | None
    epmd: str | None
    nats_python: str | None
    pika_python: str | None
    has_uvloop: bool
    lacks: list[str]
    told: str


def find_or_install(venv: Path) -> Peers:
    """Find what there is, install what is missing if possible."""
    lacks: list[str] = []
    packages = []
    if _nats_server() is None:
        packages.append("nats-server")
    if _rabbitmq() is None:
        packages.append("rabbitmq-server")
    if packages:
        lacks += _install_packages(packages)
    error = _make_venv(venv)
    if error is not None:
        lacks.append(f"nats-py, pika and uvloop (no venv in {venv}: {error})")
    clients: dict[str, str | None] = dict.fromkeys(_CLIENTS)
    for name, module in _CLIENTS.items() if error is None else ():
        clients[name] = _client(venv, name, module)
        if clients[name] is None:
            lacks.append(f"{name} (it could not be installed into {venv}; what pip said is above)")
    nats_server, rabbitmq = _nats_server(), _rabbitmq()
    python = str(venv / "bin/python")
    versions = [f"{name} {version}" for name, version in clients.items() if version]
    if nats_server:
        versions.append(_first_line([nats_server, "--version"]))
    if rabbitmq:
        versions.append(f"rabbitmq-server {_package_version('rabbitmq-server')}")
    return Peers(
        nats_server,
        rabbitmq,
        shutil.which("epmd"),
        python if clients["nats-py"] else None,
        python if clients["pika"] else None,
        clients["uvloop"] is not None,
        lacks,
        ", ".join([f"Python {sys.version.split()[0]}", f"{os.cpu_count()} cores", *versions]),
    )


def _nats_server() -> str | None:
    return shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")


def _rabbitmq() -> str | None:
    return str(RABBITMQ) if RABBITMQ.exists() and shutil.which("epmd") else None


def _install_packages(packages: list[str]) -> list[str]:
    """Install them; what could not be."""
    what = " ".join(packages)
    if shutil.which("apt-get") is None:
        return [f"{what} (this machine has no apt; install them by hand)"]
    if os.geteuid() != 0:
        return [f"{what} (sudo apt-get install {what})"]
    lacks = []
    error = _apt("update")
    if error is not None:
        print(f"apt-get update: {error}; going on with the lists that are there", flush=True)
    for package in packages:
        print(f"installing {package}", flush=True)
        with _starting_nothing():
            error = _apt("install", "-y", "--no-install-recommends", package)
        if error is not None:
            lacks.append(f"{package} (apt-get install {package}: {error})")
        elif shutil.which("systemctl") is not None:
            # The package has enabled it; where systemd does not run there is nothing to disable.
            subprocess.run(["systemctl", "disable", "--quiet", package], check=False, capture_output=True)
    return lacks


def _apt(*arguments: str) -> str | None:
    """Run apt-get; what it said was wrong, if anything."""
    try:
        done = subprocess.run(
            [*_APT, *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_APT_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_APT_S_MAX:g} s"
    if done.returncode == 0:
        return None
    return _told_wrong(done.stderr.splitlines()) or f"it ended with {done.returncode} and said nothing"


def _told_wrong(lines: Sequence[str]) -> str:
    """Of what apt-get printed, what it calls errors; otherwise its last line."""
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ")]
    return "; ".join(errors or lines[-1:])


@contextmanager
def _starting_nothing() -> Iterator[None]:
    """While it lasts, packages that are installed do not start their services (invoke-rc.d(8))."""
    if POLICY.exists():  # the machine has a policy of its own
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()


def _make_venv(venv: Path) -> str | None:
    """Make it if it is not there; what went wrong, if anything."""
    if (venv / "bin/python").exists():
        return None
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[-1] if said else f"python -m venv ended with {done.returncode}"


def _client(venv: Path, name: str, module: str) -> str | None:
    """The version of a client library in the venv, installed if it is missing; None if that fails."""
    python = venv / "bin/python"
    question = f"import {module}, importlib.metadata as m; print(m.version({name!r}))"
    for attempt in range(2):
        found = subprocess.run([python, "-c", question], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
        if attempt == 0:
            print(f"installing {name} into {venv}", flush=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-input", "--constraint", str(CONSTRAINTS), name], check=False)
    return None


def _first_line(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return (said.stdout + said.stderr).strip().splitlines()[0]


def _package_version(package: str) -> str:
    return _first_line(["dpkg-query", "--show", "--showformat=${Version}", package])
