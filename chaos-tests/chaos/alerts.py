"""Makes the alerts of configs/alerts.yml fire for real and clear, at a Prometheus that scrapes real pairs.

    make chaos SCENARIO=alerts
    PYTHONPATH=chaos-tests .venv/bin/python -m chaos.alerts [--divide 30] [NAME…]

Each scenario has a pair of its own. It makes a cause, waits until its alerts fire, takes the cause away, and
waits until they are silent. All times in the rules (``for``, ranges, thresholds in seconds) are divided, or a
run would take hours: ``--divide 1`` takes the rules as they are. The table says, in seconds, when each alert
fired after its cause began and fell silent after its end.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bstar_testing import LoopbackHost, Pair
from bstar_testing.processes import HarnessError, wait_until
from chaos.alert_scenes import SCENARIOS, Scenario, Scene, make_pair
from chaos.prometheus import NoPrometheusError, Prometheus, program, prometheus

SCRAPE_S = 0.25
# What ends a wait for an alert; the longest rule, divided by 30, needs two minutes.
LIMIT_S = 200.0
TOGETHER = 7
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def divided(rules: dict[str, Any], by: float) -> dict[str, Any]:
    """The rules with all their times divided."""

    def shorter(match: re.Match[str]) -> str:
        return f"{max(1, round(int(match[2]) * _UNITS_S[match[3]] * 1000 / by))}ms"

    def threshold(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) / by:g}"

    for group in rules["groups"]:
        for rule in group["rules"]:
            expr = re.sub(r"(\[)(\d+)([smhd])(?=\])", lambda match: "[" + shorter(match), rule["expr"])
            rule["expr"] = re.sub(r"(bstar_\w+_seconds > )(\d+)", threshold, expr)
            if "for" in rule:
                rule["for"] = re.sub(r"()(\d+)([smhd])", shorter, rule["for"])
    return rules


def play(scenario: Scenario, pair: Pair, watch: Prometheus) -> list[tuple[str, str, str, str]]:
    """Play one scenario; a row for each alert: its name, the cause, when it fired, when it was silent."""
    cause = scenario.name.replace("_", " ")
    scene = Scene(pair, watch)
    times: dict[str, list[str]] = {alert: [] for alert in scenario.alerts}

    def await_alerts(began: float, are_firing: bool) -> None:
        left = set(scenario.alerts)

        def look() -> bool:
            firing = watch.firing(pair.name)
            for alert in [alert for alert in left if (alert in firing) == are_firing]:
                left.remove(alert)
                times[alert].append(f"{time.monotonic() - began:.1f}")
            return not left

        try:
            wait_until(look, cause, limit_s=LIMIT_S, look_s=SCRAPE_S / 2)
        except HarnessError as error:
            error.add_note(f"not {'firing' if are_firing else 'silent'}: {', '.join(sorted(left))}")
            raise

    with pair, scene.resources:
        acts = scenario.play(scene)
        next(acts)
        # What fired before, while the pair did not run, must be over.
        wait_until(
            lambda: not watch.firing(pair.name) & set(scenario.alerts),
            f"silence before {cause}",
            limit_s=LIMIT_S,
        )
        for are_firing in (True, False):
            began = time.monotonic()
            next(acts, None)
            await_alerts(began, are_firing)
    return [(alert, cause, *(times[alert])) for alert in scenario.alerts]  # type: ignore[misc]  # two times each


def main() -> int:
    """Print the table; 0 if each alert fired and fell silent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--divide", type=float, default=30.0, help="by how much the times of the rules are divided"
    )
    parser.add_argument("names", nargs="*", help="alerts; otherwise all")
    options = parser.parse_args()
    chosen = [each for each in SCENARIOS if not options.names or set(options.names) & set(each.alerts)]
    try:
        program("prometheus")
    except NoPrometheusError as missing:
        parser.error(str(missing))
    status = 0
    with tempfile.TemporaryDirectory() as name, LoopbackHost() as host:
        folder = Path(name)
        pairs = [make_pair(folder, each) for each in chosen]
        with (
            prometheus(
                folder,
                pairs,
                host.ports(1)[0],
                interval_s=SCRAPE_S,
                change_rules=functools.partial(divided, by=options.divide),
            ) as watch,
            ThreadPoolExecutor(TOGETHER) as pool,
        ):
            runs = [pool.submit(play, *each, watch) for each in zip(chosen, pairs, strict=True)]
            print("| alert | cause | fires after | silent after |\n|---|---|---|---|")
            for scenario, run in zip(chosen, runs, strict=True):
                error = run.exception()
                if error is not None:
                    status = 1
                    notes = "; ".join(getattr(error, "__notes__", []))
                    print(f"{scenario.name}: {error!r} {notes[:2_000]}", file=sys.stderr, flush=True)
                    continue
                for row in run.result():
                    print("| " + " | ".join(row) + " |", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
