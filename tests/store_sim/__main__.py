"""``PYTHONPATH=tests python -m store_sim``: many seeds, or one again with what happened in it. See --help."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from sim.campaign import Campaign, Result
from store_sim.run import ARBITER_FAULTS, FAULTS, Arbitration, play

RUNS = 1_000
_COMMAND = "make store-sim"


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m store_sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; alone: this one, with what happened in it")
    parser.add_argument("--runs", type=int, help=f"how many seeds (default {RUNS})")
    parser.add_argument("--hours", type=float, help="simulated hours, not seeds; goes on where it was ended")
    parser.add_argument("--faults", help=f"only these, with commas: {', '.join(FAULTS)}")
    parser.add_argument("--arbiter", choices=("none", "kept", "forgetful"), default="none")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    known = FAULTS if options.arbiter == "none" else FAULTS + ARBITER_FAULTS
    kinds = known if options.faults is None else tuple(options.faults.split(","))
    unknown = set(kinds) - set(known)
    if unknown:
        parser.error(f"no faults: {', '.join(sorted(unknown))}")
    if options.seed is not None and options.runs is None and options.hours is None:
        return _one(options.seed, kinds, options.arbiter)
    return _many(options, kinds)


def _one(seed: int, kinds: tuple[str, ...], arbiter: Arbitration) -> int:
    outcome = play(seed, kinds, arbiter, keep_trace=True)
    print("\n".join(outcome.trace))
    print(dict(outcome.counts))
    print(f"VIOLATION {outcome.violation}" if outcome.violation else "every promise was kept")
    return 1 if outcome.violation else 0


def _play(seed: int, kinds: tuple[str, ...], arbiter: Arbitration) -> Result:
    outcome = play(seed, kinds, arbiter)
    counts = {**outcome.counts, "faults": sum(outcome.counts[kind] for kind in kinds)}
    return Result(seed, outcome.violation, outcome.simulated_s, counts)


def _many(options: argparse.Namespace, kinds: tuple[str, ...]) -> int:
    runs = options.runs
    if runs is None and options.hours is None:
        runs = RUNS
    chosen = f" FAULTS='{options.faults}'" if options.faults else ""
    campaign = Campaign(
        partial(_play, kinds=kinds, arbiter=options.arbiter),
        first=1 if options.seed is None else options.seed,
        runs=runs,
        hours=options.hours if runs is None else None,
        key="" if runs is not None else f"store {options.arbiter} {kinds}",
        processes=options.processes,
        repeat=lambda seed: f"{_COMMAND} SEED={seed} ARBITER={options.arbiter}{chosen}",
    )
    is_complete = campaign.run()
    print(", ".join(f"{name} {count}" for name, count in sorted(campaign.state.counts.items())))
    if not is_complete:
        return 130
    return 1 if campaign.state.violations else 0


if __name__ == "__main__":
    sys.exit(main())
