"""What of the peers is on this machine, after what is missing and can be installed has been.

Servers are Debian's packages; their clients go into a venv of their own, so that bstar's stays as users
have it. Nothing is installed twice, and nothing outside the venv without being root on a machine with apt.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Peers", "find_or_install"]

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
# Not the wrapper on the PATH, which changes to the package's user and its folders.
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


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
    clients = {}
    for name, module in (("nats-py", "nats"), ("pika", "pika"), ("uvloop", "uvloop")):
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
    subprocess.run(["apt-get", "update", "-qq"], check=False)
    for package in packages:
        print(f"installing {package}", flush=True)
        done = subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode != 0:
            lacks.append(f"{package} (apt-get could not install it; what it said is above)")
    return lacks


def _client(venv: Path, name: str, module: str) -> str | None:
    """The version of a client library in the venv, installed if it is missing; None if that fails."""
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
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
