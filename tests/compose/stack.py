"""One run of the compose file under a name of its own, on free ports, and the eyes of the test on it."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bstar_testing import LoopbackHost
from compose.commands import ROOT, ComposeTestError, run, say, wait_until
from compose.engine import Engine

_HTTP_S = 5.0
_OVERRIDE = Path(__file__).with_name("override.yml")
_BUSY = Path(__file__).with_name("busy.yml")
_PORTS = (
    "PRIMARY_PORT",
    "BACKUP_PORT",
    "PRIMARY_HTTP_PORT",
    "BACKUP_HTTP_PORT",
    "PROMETHEUS_PORT",
    "TOXIPROXY_PORT",
)
NODES = ("primary", "backup")


def other(node: str) -> str:
    """The other node of the pair."""
    return NODES[1 - NODES.index(node)]


class Stack:
    """``docker compose up`` until ``close``, which removes all that it made. Images stay as a cache."""

    def __init__(
        self,
        engine: Engine,
        project: str,
        images: Mapping[str, str],
        *,
        chaos: bool = False,
        busy: bool = False,
    ) -> None:
        self.engine = engine
        self.project = project
        # The holders never listen, so nobody else is given the ports, and docker may bind them.
        self._host = LoopbackHost()
        self.ports = dict(zip(_PORTS, self._host.ports(len(_PORTS)), strict=True))
        self._env = {
            **engine.env,
            **images,
            **{name: str(number) for name, number in self.ports.items()},
            "PAIR_IMAGE": "bstar-compose-test:latest",
            "COMPOSE_PROJECT_NAME": project,
        }
        files = [
            ROOT / "docker-compose.yml",
            *([ROOT / "docker-compose.chaos.yml"] if chaos else []),
            _OVERRIDE,
            *([_BUSY] if busy else []),
        ]
        self._command = [*engine.compose, *(word for file in files for word in ("-f", str(file)))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            say(f"FAILED: {error}")
            self._tell_logs()
        self.close()

    def compose(self, *arguments: str) -> str:
        """Run a compose command on this project; what it printed."""
        return run([*self._command, *arguments], env=self._env, cwd=ROOT).stdout

    def docker(self, *arguments: str) -> str:
        """Run a docker command; what it printed."""
        return self.engine.run(*arguments).strip()

    def try_pause(self, service: str) -> bool:
        """Pause a service; False if the kernel's freezer could not, as happens to a busy process."""
        done = run([*self._command, "pause", service], env=self._env, cwd=ROOT, check=False)
        if done.returncode != 0 and "unable to freeze" not in done.stdout + done.stderr:
            raise ComposeTestError(f"compose pause {service}: {done.stderr}")
        return done.returncode == 0

    def container(self, service: str) -> str:
        """The id of a service's container."""
        found = self.docker(
            *("ps", "--all", "--quiet", "--no-trunc"),
            *("--filter", f"label=com.docker.compose.project={self.project}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
        )
        if len(found.split()) != 1:
            raise ComposeTestError(f"{service} has no container, or several: {found!r}")
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """What docker knows of a service's container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", self.container(service)))
        return found[0]

    def network(self, name: str) -> str:
        """The full name of one of the file's networks."""
        return f"{self.project}_{name}"

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, to its end, whatever its status."""
        words = [self.engine.docker, "exec", self.container(service), *command]
        return run(words, env=self.engine.env, check=False)

    def remains(self) -> list[str]:
        """Containers, networks and volumes of this project that exist."""
        label = f"label=com.docker.compose.project={self.project}"
        found = self.docker("ps", "--all", "--filter", label, "--format", "container {{.Names}}")
        found += "\n" + self.docker("network", "ls", "--filter", label, "--format", "network {{.Name}}")
        found += "\n" + self.docker("volume", "ls", "--filter", label, "--format", "volume {{.Name}}")
        return [line for line in found.splitlines() if line]

    def close(self) -> None:
        """Remove containers, networks and volumes, and see that nothing remains. Idempotent."""
        try:
            self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")
        finally:
            self._host.close()
            left = self.remains()
            # What compose left is removed by its own name, and told all the same.
            for thing in left:
                kind, name = thing.split(" ", 1)
                self.engine.run(kind, "rm", *(["--force"] if kind != "network" else []), name, check=False)
        if left:
            raise ComposeTestError(f"compose down left {left}")

    def roll(self, *arguments: str) -> str:
        """configs/compose-roll.sh on this project; what it printed."""
        env = {**self._env, "COMPOSE": " ".join(self._command)}
        return run([ROOT / "configs" / "compose-roll.sh", *arguments], env=env, cwd=ROOT).stdout

    def _tell_logs(self) -> None:
        with suppress(ComposeTestError):
            for service in (*NODES, "worker-1", "load", "prometheus"):
                done = run(
                    [self.engine.docker, "logs", "--tail", "25", self.container(service)],
                    env=self.engine.env,
                    check=False,
                )
                say(f"--- {service}\n{done.stdout}{done.stderr}")

    # --- the nodes ----------------------------------------------------------------------------------------

    def is_healthy(self, service: str) -> bool:
        """Does the container's health check say so?"""
        health: dict[str, str] = self.inspect(service)["State"].get("Health", {})
        return health.get("Status") == "healthy"

    def wait_healthy(self, services: Iterable[str] = NODES) -> None:
        """Wait until the health checks succeed."""
        for service in services:
            wait_until(f"{service} is healthy", lambda service=service: self.is_healthy(service))  # type: ignore[misc]

    def status(self, node: str) -> dict[str, Any] | None:
        """The node's /status at its published port; None if it does not answer."""
        port = self.ports[f"{node.upper()}_HTTP_PORT"]
        return _get_json(f"http://127.0.0.1:{port}/status")

    def state(self, node: str) -> str | None:
        """ACTIVE, PASSIVE, …; None if the node does not answer."""
        status = self.status(node)
        return status["pair"]["state"] if status is not None else None

    def wait_pair(self, active: str) -> None:
        """Wait until one node serves, the other stands by, both hear each other and know both workers."""

        def is_pair() -> bool:
            for node, state in ((active, "ACTIVE"), (other(active), "PASSIVE")):
                status = self.status(node)
                if status is None or status["pair"]["state"] != state or not status["pair"]["is_peer_fresh"]:
                    return False
                if status["broker"]["workers"] != 2:
                    return False
            return True

        wait_until(f"the {active} serves and the {other(active)} stands by, with both workers", is_pair)

    def active(self) -> str:
        """The node that serves."""
        found = [node for node in NODES if self.state(node) == "ACTIVE"]
        if len(found) != 1:
            raise ComposeTestError(f"one node should serve: {found}")
        return found[0]

    # --- Prometheus ---------------------------------------------------------------------------------------

    def prometheus(self, path: str, **parameters: str) -> Any:
        """``data`` of an answer of Prometheus's API; None if it does not answer."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        answer = _get_json(f"http://127.0.0.1:{self.ports['PROMETHEUS_PORT']}/api/v1/{path}{query}")
        return answer["data"] if answer is not None else None

    def up(self) -> dict[str, str]:
        """Prometheus's targets and whether they could be scraped."""
        data = self.prometheus("targets", state="active") or {"activeTargets": []}
        return {target["labels"]["instance"]: target["health"] for target in data["activeTargets"]}

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        data = self.prometheus("alerts") or {"alerts": []}
        return {alert["labels"]["alertname"] for alert in data["alerts"] if alert["state"] == "firing"}

    def wait_alerts(self, *names: str) -> None:
        """Wait until all of these fire."""
        wait_until(f"{', '.join(names)} fire", lambda: set(names) <= self.firing())

    def wait_quiet(self) -> None:
        """Wait until no alert fires, apart from the one about role changes: the test makes many of them."""
        wait_until("no alert fires", lambda: self.up() and not self.firing() - {"BstarFlapping"})

    # --- toxiproxy ----------------------------------------------------------------------------------------

    def toxiproxy(self, path: str, document: Mapping[str, object]) -> None:
        """POST to toxiproxy's API; a status other than 2xx is an error."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['TOXIPROXY_PORT']}{path}",
            data=json.dumps(document).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_HTTP_S):
            pass


class Load:
    """What the load client prints, read as it comes."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._changed = threading.Condition()
        self._lines: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [stack.engine.docker, "logs", "--follow", stack.container("load")],
            env=stack.engine.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(json.loads(line))
                self._changed.notify_all()

    def close(self) -> None:
        """Read no more."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def of_type(self, name: str) -> list[dict[str, Any]]:
        """The lines of one type so far."""
        with self._changed:
            return [line for line in self._lines if line["type"] == name]

    @property
    def last(self) -> dict[str, Any]:
        """The last second; an error if there is none yet."""
        return self.of_type("second")[-1]

    def wait_calls(self, count: int = 100) -> dict[str, Any]:
        """Wait until so many more calls were sent and answered than now; the last second."""
        before = self.of_type("second")
        wanted = (before[-1]["sent"] if before else 0) + count
        return self.wait_second(f"{count} more calls are answered", lambda line: line["answered"] >= wanted)

    def wait_second(self, what: str, is_wanted: Any, *, limit_s: float = 90.0) -> dict[str, Any]:
        """Wait for a second, from now on, of a kind."""
        with self._changed:
            seen = len(self._lines)
            ends_at = time.monotonic() + limit_s
            while True:
                for line in self._lines[seen:]:
                    if line["type"] == "second" and is_wanted(line):
                        return line
                seen = len(self._lines)
                if not self._changed.wait(max(0.0, ends_at - time.monotonic())):
                    raise ComposeTestError(
                        f"waited {limit_s:g} s in vain until {what}; last: {self._lines[-3:]}"
                    )

    def wait_sum(self) -> dict[str, Any]:
        """The sum at the end, after the client was stopped."""
        self._thread.join(60)
        sums = self.of_type("sum")
        if not sums:
            raise ComposeTestError("the client ended without its sum")
        return sums[0]


def _get_json(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(url, timeout=_HTTP_S) as answer:
            document: dict[str, Any] = json.load(answer)
            return document
    except (OSError, urllib.error.URLError, json.JSONDecodeError):
        return None
