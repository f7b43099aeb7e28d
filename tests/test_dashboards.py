"""The dashboards ask for what a pair has: each query is put to a real Prometheus that scrapes a real pair.

The pair has everything switched on (arbiter, durable store, journal, a front) and goes through a failover.
Without the programs prometheus and promtool the test skips; with CI=true it fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bstar_testing import LoopbackHost, Pair
from pages import dashboards
from pages.dashboards import DASHBOARDS, Dashboard
from support.waiting import LIMIT_S

ROOT = Path(__file__).parents[1]
# Long enough to have two samples a second apart on a busy machine; short enough to forget nothing.
WINDOW = "5m"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_dashboard_is_json_whose_panels_do_not_overlap(dashboard: Dashboard) -> None:
    model = json.loads(dashboards.generate(dashboard))
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in model["panels"])
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in model["panels"]}) == len(dashboard.panels)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_dashboard_uses_no_variable_that_it_does_not_have(dashboard: Dashboard) -> None:
    model = json.loads(dashboards.generate(dashboard))
    has = {f"${variable['name']}" for variable in model["templating"]["list"]} | {"$__rate_interval"}
    asked = {
        word
        for panel in model["panels"]
        for target in panel["targets"]
        for word in re.findall(r"\$\w+", target["expr"])
    }
    assert asked <= has


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        text = f"{name} is missing; on Debian: apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    return path


class Prometheus:
    """A server that scrapes a pair once a second."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=LIMIT_S) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found

    def wait_for(self, query: str) -> None:
        until = time.monotonic() + LIMIT_S
        while not self.ask_patiently(query):
            assert time.monotonic() < until, f"Prometheus has nothing for {query}"
            time.sleep(0.2)

    def ask_patiently(self, query: str) -> list[dict[str, Any]]:
        try:
            return self.ask(query)
        except OSError:  # it does not listen yet
            return []


@contextmanager
def prometheus(folder: Path, pair: Pair, port: int) -> Iterator[Prometheus]:
    config = yaml.safe_load((ROOT / "configs" / "prometheus.yml").read_text(encoding="utf-8"))
    rules = yaml.safe_load((ROOT / "configs" / "alerts.yml").read_text(encoding="utf-8"))
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    for group in rules["groups"]:
        group["interval"] = "1s"
    targets = [node.http_address for node in (pair.primary, pair.backup)]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        program("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def filled(query: str) -> str:
    """The query as Grafana asks it, for all pairs and nodes."""
    query = query.replace("$__rate_interval", WINDOW)
    return query.replace("$pair", ".*").replace("$instance", ".*")


@pytest.mark.loopback
def test_each_panel_finds_data_of_a_pair_that_failed_over(tmp_path: Path) -> None:
    program("prometheus")
    with (
        LoopbackHost() as host,
        Pair(
            tmp_path / "pair",
            has_arbiter=True,
            has_store=True,
            journals=tmp_path / "journals",
            doors=("fronts.ppp.clients", "fronts.ppp.workers"),
        ) as pair,
        prometheus(tmp_path, pair, host.ports(1)[0]) as server,
    ):
        pair.start()
        pair.start_workers()
        client = pair.client(timeout=LIMIT_S)
        for number in range(50):
            client.request("echo", b"%d" % number)
        assert client.result(client.submit("echo", b"durable"), timeout=LIMIT_S).body == b"durable"
        server.wait_for("count(bstar_store_leading) == 2")
        pair.kill_active()
        client.request("echo", b"after the failover")
        server.wait_for(filled(dashboards.FAILOVERS))
        until = time.monotonic() + LIMIT_S
        missing = list(dashboards.queries())
        while missing and time.monotonic() < until:
            missing = [(place, query) for place, query in missing if not server.ask(filled(query))]
    assert missing == []
