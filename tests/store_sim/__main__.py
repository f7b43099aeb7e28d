"""``PYTHONPATH=tests python -m store_sim``: many seeds, or one again with what happened in it. See --help."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from store_sim.run import ARBITER_FAULTS, FAULTS, Arbitration, Outcome, play

RUNS = 1_000


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m store_sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; alone: this one, with what happened in it")
    parser.add_argument("--runs", type=int, help=f"how many seeds (default {RUNS})")
    parser.add_argument("--faults", help=f"only these, with commas: {', '.join(FAULTS)}")
    parser.add_argument("--arbiter", choices=("none", "kept", "forgetful"), default="none")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    known = FAULTS if options.arbiter == "none" else FAULTS + ARBITER_FAULTS
    kinds = known if options.faults is None else tuple(options.faults.split(","))
    unknown = set(kinds) - set(known)
    if unknown:
        parser.error(f"no faults: {', '.join(sorted(unknown))}")
    if options.seed is not None and options.runs is None:
        return _one(options.seed, kinds, options.arbiter)
    return _many(options.seed or 1, options.runs or RUNS, kinds, options.arbiter, options.processes)


def _one(seed: int, kinds: tuple[str, ...], arbiter: Arbitration) -> int:
    outcome = play(seed, kinds, arbiter, keep_trace=True)
    print("\n".join(outcome.trace))
    print(dict(outcome.counts))
    print(f"VIOLATION {outcome.violation}" if outcome.violation else "every promise was kept")
    return 1 if outcome.violation else 0


def _many(first: int, runs: int, kinds: tuple[str, ...], arbiter: Arbitration, processes: int) -> int:
    began, counts, broken = time.perf_counter(), Counter[str](), list[Outcome]()
    with ProcessPoolExecutor(processes) as pool:
        for outcome in pool.map(
            play, range(first, first + runs), [kinds] * runs, [arbiter] * runs, chunksize=10
        ):
            counts += outcome.counts
            if outcome.violation:
                broken.append(outcome)
                print(f"seed {outcome.seed}: VIOLATION {outcome.violation}", flush=True)
                print(
                    f"repeat: PYTHONPATH=tests python -m store_sim --seed {outcome.seed} --arbiter {arbiter}",
                    flush=True,
                )
    print(f"{runs} runs in {time.perf_counter() - began:.0f} s, {len(broken)} violations")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
