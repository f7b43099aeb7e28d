"""The alert rules that come with the project are valid, fire when they must, and have their runbook sections.

What promtool tells needs promtool (Debian: the package prometheus): where it is missing those tests skip, and
fail with CI=true.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry

from bstar_broker.core.snapshot import JournalState, QuorumState
from bstar_broker.metrics import NodeCollector
from support.node_states import node_state, service_state

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "configs" / "alerts.yml"
UNIT_TESTS = ROOT / "tests" / "alerts_test.yml"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
LIMIT_S = 60.0


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


NAMES = sorted(rules())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing; on Debian: apt-get install prometheus")
        pytest.skip("promtool is missing; on Debian: apt-get install prometheus")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_prometheus_takes_the_scrape_configuration_and_the_rules_it_names() -> None:
    done = promtool("check", "config", ROOT / "configs" / "prometheus.yml")
    assert done.returncode == 0, done.stderr
    assert f"{len(NAMES)} rules found" in done.stdout


def test_each_alert_fires_when_it_must_and_stays_quiet_when_it_must_not() -> None:
    done = promtool("test", "rules", UNIT_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_that_does_not_fire_fails_its_unit_tests(tmp_path: Path) -> None:
    """So the test above can fail: no rule survives the loss of its condition."""
    for name in NAMES:
        blunt = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
        for group in blunt["groups"]:
            for rule in group["rules"]:
                if rule["alert"] == name:
                    rule["expr"] = "vector(0) > 1"
        cases = yaml.safe_load(UNIT_TESTS.read_text(encoding="utf-8"))
        cases["rule_files"] = ["alerts.yml"]
        (tmp_path / "alerts.yml").write_text(yaml.safe_dump(blunt), encoding="utf-8")
        (tmp_path / "tests.yml").write_text(yaml.safe_dump(cases), encoding="utf-8")
        done = promtool("test", "rules", tmp_path / "tests.yml")
        assert done.returncode != 0, name
        assert name in done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_case_in_which_it_fires_and_others_in_which_it_does_not(name: str) -> None:
    groups = yaml.safe_load(UNIT_TESTS.read_text(encoding="utf-8"))["tests"]
    cases = [case for group in groups for case in group["alert_rule_test"] if case["alertname"] == name]
    assert any(case.get("exp_alerts") for case in cases)
    assert any(not case.get("exp_alerts") for case in cases)


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_its_section_in_the_runbook_and_its_line_in_the_table(name: str) -> None:
    rule = rules()[name]
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    section = re.search(rf"\n### {name}\n(.*?)(?=\n##)", OPERATIONS, re.DOTALL)
    assert section is not None
    for part in ("*Meaning:*", "*Look:*", "*Do:*"):
        assert part in section[1]
    line = re.search(rf"\| \[{name}\]\(#{name.lower()}\) \| .* \| (\w+) \|", OPERATIONS)
    assert line is not None
    assert line[1] == rule["labels"]["severity"]


def test_the_runbook_knows_no_alert_that_is_not_there() -> None:
    assert sorted(re.findall(r"^### (Bstar\w+)$", OPERATIONS, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_asks_for_metrics_that_a_node_has(name: str) -> None:
    registry = CollectorRegistry()
    quorum = QuorumState("tcp://arbiter:5010", True, True, True, True)
    state = node_state(service_state("echo", answered=1))
    journal = JournalState(
        "/journal", records=1, octets=1, segments=1, dropped=0, dropped_requests=0, errors=0
    )
    pair = msgspec.structs.replace(state.pair, quorum=quorum)
    state = msgspec.structs.replace(state, pair=pair, journal=journal)
    registry.register(NodeCollector(lambda: state))
    known = {sample.name for family in registry.collect() for sample in family.samples}
    asked = set(re.findall(r"\bbstar_\w+", rules()[name]["expr"]))
    assert asked <= known
    assert asked or "up{" in rules()[name]["expr"]
