"""The alert rules that come with the project are valid, fire when they must, and have their runbook sections.

What promtool tells needs promtool (Debian: the package prometheus): where it is missing those tests skip, and
fail with CI=true.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry

from bstar_broker.core.snapshot import FrontState, JournalState, QuorumState, SecurityState
from bstar_broker.operate.metrics import NodeCollector
from chaos.alert_scenes import SCENARIOS
from chaos.prometheus import need_program
from support.node_states import node_state, service_state, store_state

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "configs" / "alerts.yml"
UNIT_TESTS = sorted((ROOT / "tests").glob("alerts*_test.yml"))
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
LIMIT_S = 500.0


@functools.cache
def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return found


def every_rule() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"]]


def rules() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in every_rule() if "alert" in rule}


def series_read(alerts: Iterable[str]) -> set[str]:
    """What the alerts ask for: a node's metrics, recorded series, and what those are recorded from."""
    recorded = {rule["record"]: rule["expr"] for rule in every_rule() if "record" in rule}
    read: set[str] = set()
    upcoming = [rules()[name]["expr"] for name in alerts]
    while upcoming:
        words = set(re.findall(r"[\w:]*\bbstar_[\w:]+", upcoming.pop())) - read
        upcoming += [recorded[word] for word in words & recorded.keys()]
        read |= words
    return read


NAMES = sorted(rules())


@functools.cache
def unit_tests(path: Path) -> dict[str, Any]:
    cases: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return cases


def checks_of(name: str, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case for group in groups for case in group["alert_rule_test"] if case["alertname"] == name]


def test_each_alert_has_a_scenario_that_makes_it_fire() -> None:
    assert {alert for scenario in SCENARIOS for alert in scenario.alerts} == set(rules())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [need_program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.loopback
def test_prometheus_takes_the_scrape_configuration_and_the_rules_it_names() -> None:
    done = promtool("check", "config", ROOT / "configs" / "prometheus.yml")
    assert done.returncode == 0, done.stderr
    assert f"{len(every_rule())} rules found" in done.stdout


def run_unit_tests(path: Path, folder: Path, *, are_blunt: bool = False) -> subprocess.CompletedProcess[str]:
    """Each group of cases with the alerts that it names: at each step promtool evaluates every rule it has.

    A blunt alert has lost its condition.
    """
    shown = unit_tests(path)
    files = []
    for number, cases in enumerate(shown["tests"]):
        names = {case["alertname"] for case in cases["alert_rule_test"]}
        kept = names if are_blunt else names | series_read(names)
        parts = []
        for group in groups():
            chosen = [rule for rule in group["rules"] if {rule.get("alert"), rule.get("record")} & kept]
            if are_blunt:
                chosen = [rule | {"expr": "vector(0) > 1"} for rule in chosen]
            parts.append(group | {"rules": chosen})
        (folder / f"rules{number}.yml").write_text(yaml.safe_dump({"groups": parts}), encoding="utf-8")
        files.append(folder / f"tests{number}.yml")
        files[-1].write_text(
            yaml.safe_dump(shown | {"rule_files": [f"rules{number}.yml"], "tests": [cases]}), encoding="utf-8"
        )
    return promtool("test", "rules", *files)


@pytest.mark.loopback
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_each_alert_fires_when_it_must_and_stays_quiet_when_it_must_not(path: Path, tmp_path: Path) -> None:
    done = run_unit_tests(path, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.loopback
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_alerts_that_do_not_fire_fail_their_unit_tests(path: Path, tmp_path: Path) -> None:
    """So the test above can fail: no rule survives the loss of its condition."""
    done = run_unit_tests(path, tmp_path, are_blunt=True)
    failed = set(re.findall(r"alertname: ?(\w+)", done.stdout + done.stderr))
    cases = unit_tests(path)["tests"]
    fire = {name for name in NAMES if any(case.get("exp_alerts") for case in checks_of(name, cases))}
    assert failed == fire


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_case_in_which_it_fires_and_others_in_which_it_does_not(name: str) -> None:
    cases = [case for path in UNIT_TESTS for case in checks_of(name, unit_tests(path)["tests"])]
    assert any(case.get("exp_alerts") for case in cases)
    assert any(not case.get("exp_alerts") for case in cases)


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_its_section_in_the_runbook_with_its_severity(name: str) -> None:
    rule = rules()[name]
    assert rule["annotations"]["runbook_url"] == (
        f"{{{{ $externalLabels.docs_url }}}}docs/operations.md#{name.lower()}"
    )
    section = re.search(rf"\n### {name}\n(.*?)(?=\n##)", OPERATIONS, re.DOTALL)
    assert section is not None
    for part in (rule["labels"]["severity"].capitalize(), "Look", "Do"):
        assert f"\n*{part}:* " in section[1]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("BstarPeerLinkDown", "*Look:* does the peer's process run"),
        ("BstarNoWorkers", "`unknown-key`"),
        ("BstarStoreNotLeading", "`bstar promote`"),
    ],
)
def test_the_runbook_names_the_simplest_cause(name: str, cause: str) -> None:
    assert cause in OPERATIONS.partition(f"\n### {name}\n")[2].partition("\n##")[0]


def test_the_runbook_knows_no_alert_that_is_not_there() -> None:
    assert sorted(re.findall(r"^### (Bstar\w+)$", OPERATIONS, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_asks_for_metrics_that_a_node_has(name: str) -> None:
    registry = CollectorRegistry()
    quorum = QuorumState("tcp://arbiter:5010", True, True, True, True)
    state = node_state(service_state("echo", answered=1), store=store_state())
    journal = JournalState(
        "/journal", records=1, octets=1, segments=1, dropped=0, dropped_requests=0, errors=0
    )
    pair = msgspec.structs.replace(state.pair, quorum=quorum)
    security = SecurityState(is_on=True)
    fronts = [FrontState("http", {})]
    state = msgspec.structs.replace(state, pair=pair, journal=journal, security=security, fronts=fronts)
    registry.register(NodeCollector(lambda: state))
    known = {sample.name for family in registry.collect() for sample in family.samples}
    asked = series_read([name]) - {rule.get("record") for rule in every_rule()}
    assert asked <= known
    assert asked or "up{" in rules()[name]["expr"]
