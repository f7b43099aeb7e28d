"""``python -m explorer``: visit every state of some configurations, on every core. See --help."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from explorer.configurations import CONFIGURATIONS, configuration_of
from explorer.model import Configuration
from explorer.scripts import FOLDER, write
from explorer.search import STATES_MAX, Found, Outcome, explore

_EPILOG = """examples:
  make sim EXPLORE=all              every configuration
  make sim EXPLORE=list             which there are
  make sim EXPLORE=cut,one-way      these two
  make sim EXPLORE=cut WRITE=1      and write what it finds into tests/explorer/scripts"""


def main(arguments: list[str] | None = None) -> int:
    """Explore; 1 if something was found that should not be, or an expected finding was not."""
    parser = argparse.ArgumentParser(
        prog="make sim EXPLORE=…",
        description="Visit every reachable state of the Binary Star once: docs/simulation.md explains it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", help="configurations, with commas between them; or all; or list")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--states", type=int, default=STATES_MAX, help="give up after so many states")
    parser.add_argument("--write", action="store_true", help="write scripts of expected findings, too")
    options = parser.parse_args(arguments)
    if options.names == "list":
        for configuration in CONFIGURATIONS:
            print(f"{configuration.name:12} {configuration.about}")
        return 0
    names = options.names.split(",")
    try:
        chosen = [*CONFIGURATIONS] if names == ["all"] else [configuration_of(name) for name in names]
    except KeyError as error:
        parser.error(f"no configuration is called {error}: see `make sim EXPLORE=list`")
    return _explore(chosen, options)


def _tell(outcome: Outcome) -> None:
    name = outcome.configuration.name
    print(
        f"  {name}: {outcome.states} states, depth {outcome.depth}, {outcome.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _explore(chosen: list[Configuration], options: argparse.Namespace) -> int:
    print(f"{'configuration':14}{'states':>9}{'transitions':>13}{'depth':>7}{'seconds':>9}{'calm':>6}  found")
    is_good = True
    with ProcessPoolExecutor(min(options.processes, len(chosen)), initializer=_end_on_interrupt) as pool:
        run = partial(explore, tell=_tell, states_max=options.states)
        futures = [pool.submit(run, configuration) for configuration in chosen]
        try:
            for future in as_completed(futures):
                is_good &= _report(future.result(), is_written=options.write)
        except KeyboardInterrupt:
            print("interrupted: what has no line above was not exhausted", file=sys.stderr)
            return 130
    return 0 if is_good else 1


def _end_on_interrupt() -> None:
    """Ctrl-C goes to every process of the terminal; those that explore end without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _report(outcome: Outcome, *, is_written: bool) -> bool:
    name = outcome.configuration.name
    expected = [found for found in outcome.found.values() if found not in outcome.violations]
    findings = ", ".join(f"{found.finding.name} ({len(found.path)} steps)" for found in expected) or "nothing"
    print(
        f"{name:14}{outcome.states:9}{outcome.transitions:13}{outcome.depth:7}{outcome.seconds:9.1f}"
        f"{outcome.calm_ticks:6}  {findings}"
        f"{'' if outcome.is_exhausted or outcome.violations else '; NOT EXHAUSTED'}",
        flush=True,
    )
    for found in expected if is_written else []:
        _write(outcome, found)
    for found in outcome.violations:
        print(f"VIOLATION in {name}: {found.finding.value}: {found.text}")
        print(write(outcome.configuration, found), end="")
        print(f"written to {_write(outcome, found)}", flush=True)
    for finding in outcome.missing:
        print(f"MISSING in {name}: it no longer comes to this: {finding.value}", flush=True)
    return outcome.is_exhausted and not outcome.violations and not outcome.missing


def _write(outcome: Outcome, found: Found) -> Path:
    path = FOLDER / f"{outcome.configuration.name}_{found.finding.name.lower()}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(write(outcome.configuration, found), encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
