"""Runs a Prometheus with the repository's configuration and rules, at a pace for tests, and asks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from bstar_testing import Pair
from bstar_testing.processes import wait_until

CONFIGS = Path(__file__).parents[2] / "configs"
_LIMIT_S = 60.0


class NoPrometheusError(Exception):
    """The program is not installed."""


def program(name: str) -> str:
    """The path of prometheus or promtool. NoPrometheusError without it."""
    path = shutil.which(name)
    if path is None:
        raise NoPrometheusError(f"{name} is missing; on Debian: apt-get install prometheus")
    return path


def need_program(name: str) -> str:
    """The same for a test: without it the test skips; in CI it fails."""
    try:
        return program(name)
    except NoPrometheusError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


class Prometheus:
    """A server that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str) -> list[dict[str, Any]]:
        """What the query finds now."""
        found: list[dict[str, Any]] = self._get("query?" + urllib.parse.urlencode({"query": query}))["result"]
        return found

    def wait_for(self, query: str) -> None:
        """Wait until the query finds something."""
        wait_until(lambda: self.ask(query), f"Prometheus has {query}")

    def firing(self, pair: str) -> set[str]:
        """The names of the alerts of this pair that fire now."""
        return {
            alert["labels"]["alertname"]
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing" and alert["labels"].get("pair") == pair
        }

    def is_there(self) -> bool:
        """True once it answers."""
        with suppress(OSError):
            self._get("alerts")
            return True
        return False

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=_LIMIT_S) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
            return data


@contextmanager
def prometheus(
    folder: Path,
    pairs: Sequence[Pair],
    port: int,
    *,
    interval_s: float = 1.0,
    change_rules: Callable[[dict[str, Any]], dict[str, Any]] = lambda rules: rules,
) -> Iterator[Prometheus]:
    """Run it for these pairs. It scrapes and evaluates every ``interval_s``; ``folder`` has its log."""
    config = yaml.safe_load((CONFIGS / "prometheus.yml").read_text(encoding="utf-8"))
    rules = change_rules(yaml.safe_load((CONFIGS / "alerts.yml").read_text(encoding="utf-8")))
    interval = f"{round(interval_s * 1000)}ms"
    config["global"] |= {f"{what}_interval": interval for what in ("scrape", "evaluation")}
    config["global"]["scrape_timeout"] = interval
    for group in rules["groups"]:
        group["interval"] = interval
    config["scrape_configs"][0]["static_configs"] = [
        {"targets": [node.http_address for node in pair.nodes], "labels": {"pair": pair.name}}
        for pair in pairs
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    address = f"127.0.0.1:{port}"
    command = [
        program("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            server = Prometheus(f"http://{address}")
            wait_until(server.is_there, "Prometheus answers")
            yield server
        finally:
            process.terminate()
            process.wait(_LIMIT_S)
