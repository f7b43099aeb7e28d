"""``python -m mutants``: run the catalogue of mutants and tell which ones no test noticed. See --help."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

from mutants.catalogue import CATALOGUE, faults_of
from mutants.run import judge_all

# So many mutants may survive, each with the reason beside it in the catalogue.
SURVIVORS_MAX = 3


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a mutant survived without a reason, or an entry is wrong."""
    parser = argparse.ArgumentParser(
        prog="make mutants", description="Break the product on purpose, once per mutant; a test must notice."
    )
    parser.add_argument("--only", help="the mutants whose name or file contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args(arguments)
    wanted = options.only or ""
    mutants = [mutant for mutant in CATALOGUE if wanted in mutant.name or wanted in mutant.file]
    if not mutants:
        print(f"make mutants: no mutant has {wanted!r} in its name or file", file=sys.stderr)
        return 2
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}: {mutant.name}")
        return 0
    faults = [f"{mutant.name}: {fault}" for mutant in mutants for fault in faults_of(mutant)]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    print(f"{len(mutants)} mutants; first their tests on the product as it is", flush=True)
    states: Counter[str] = Counter()
    is_wrong = False
    for number, verdict in enumerate(judge_all(mutants, options.processes), 1):
        mutant = verdict.mutant
        states[verdict.state] += 1
        is_wrong |= verdict.is_fault
        print(f"{number:4} {verdict.state:9} {mutant.file}: {mutant.name}", flush=True)
        if mutant.equivalent:
            print(f"     known as equivalent: {mutant.equivalent}", flush=True)
        if verdict.is_fault:
            print(f"     {mutant.old!r} -> {mutant.new!r}\n{verdict.output}", flush=True)
    survived = states["survived"]
    print(f"{states['caught']} caught, {survived} survived, {states['broken']} broken")
    if survived > SURVIVORS_MAX:
        print(f"more than {SURVIVORS_MAX} survived", file=sys.stderr)
        return 1
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
