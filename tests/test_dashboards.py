"""The dashboards ask for what a pair has: each query is put to a real Prometheus that scrapes a real pair.

The pair has everything switched on (arbiter, durable store, journal, a front) and goes through a failover.
Without the program prometheus the test skips; with CI=true it fails.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from bstar_testing import LoopbackHost, Pair
from chaos.prometheus import need_program, prometheus
from pages import dashboards
from pages.dashboards import DASHBOARDS, Dashboard
from support.waiting import LIMIT_S

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


def filled(query: str) -> str:
    """The query as Grafana asks it, for all pairs and nodes."""
    query = query.replace("$__rate_interval", WINDOW)
    return query.replace("$pair", ".*").replace("$instance", ".*")


@pytest.mark.loopback
def test_each_panel_finds_data_of_a_pair_that_failed_over(tmp_path: Path) -> None:
    need_program("prometheus")
    with (
        LoopbackHost() as host,
        Pair(
            tmp_path / "pair",
            has_arbiter=True,
            has_store=True,
            journals=tmp_path / "journals",
            doors=("fronts.ppp.clients", "fronts.ppp.workers"),
        ) as pair,
        prometheus(tmp_path, [pair], host.ports(1)[0]) as server,
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
