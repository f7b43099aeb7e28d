"""``python -m sim``: many seeds on every core, or one seed again, with what happened in it. See --help."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

import msgspec

from bstar.settings.timing import PROFILES
from sim.checks import Violation
from sim.faults import Mood
from sim.growth import Growth
from sim.run import Outcome, play, shrink
from sim.setup import Setup, setup_of

RUNS = 200
PROGRESS_S = 5.0
PAIRS_MAX = 1_000
# Seeds handed to a process at once: enough to keep it busy while another is told of.
_BATCH = 4


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if an invariant was broken."""
    options = _parse(arguments)
    if options.pairs is not None:
        return _grow(options.pairs, 1 if options.seed is None else options.seed)
    if options.seed is not None and options.runs is None and options.hours is None:
        return _one(options)
    return _many(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make sim", description="Simulate a pair under faults. docs/simulation.md explains the output."
    )
    parser.add_argument("--seed", type=int, help="the first seed; alone: run just this one and show it")
    parser.add_argument("--runs", type=int, help=f"how many seeds (default {RUNS})")
    parser.add_argument("--hours", type=float, help="simulated hours instead of a number of seeds")
    parser.add_argument("--faults", help="with one seed: only these of its faults, as numbers 0,3,4; or none")
    parser.add_argument("--mood", choices=[mood.value for mood in Mood], help="this kind of faults only")
    parser.add_argument("--profile", choices=list(PROFILES), help="this timing only")
    parser.add_argument(
        "--arbiter", choices=["yes", "no"], help="with or without only (default: a third with)"
    )
    parser.add_argument(
        "--fleet", choices=["yes", "no"], help="with several pairs or one only (default: an eighth with)"
    )
    parser.add_argument(
        "--pirates", choices=["yes", "no"], help="with Pirates or without (default: a third of the rest with)"
    )
    parser.add_argument(
        "--emq",
        choices=["yes", "no"],
        help="with peers of EventMQ or without (default: a third of the rest with)",
    )
    parser.add_argument(
        "--keys",
        choices=["on", "off", "some"],
        default="some",
        help="all runs with keys and outsiders, none, or half of them (default: some)",
    )
    parser.add_argument(
        "--pairs", type=int, help="instead of faults: a fleet of so many pairs, and one that is added"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="with one seed: print all that happened")
    return parser.parse_args(arguments)


def _setup(seed: int, options: argparse.Namespace) -> Setup:
    def of(answer: str | None) -> bool | None:
        return {"yes": True, "on": True, "no": False, "off": False}.get(answer or "")

    return setup_of(
        seed,
        mood=None if options.mood is None else Mood(options.mood),
        profile=options.profile,
        arbiter=of(options.arbiter),
        fleet=of(options.fleet),
        keys=of(options.keys),
        pirates=of(options.pirates),
        emq=of(options.emq),
    )


def _play(seed: int, options: argparse.Namespace) -> Outcome:
    outcome = play(_setup(seed, options))
    outcome.trace = []
    return outcome


def command(setup: Setup, faults: tuple[int, ...] | None, options: argparse.Namespace) -> str:
    """What repeats this run."""
    words = [f"make sim SEED={setup.seed}"]
    names = ("mood", "profile", "arbiter", "fleet", "keys", "pirates", "emq")
    chosen = {name: getattr(options, name) for name in names}
    words += [f"{name.upper()}={value}" for name, value in chosen.items() if value not in {None, "some"}]
    if faults is not None:
        words.append(f"FAULTS={','.join(map(str, faults)) or 'none'}")
    return " ".join(words)


def _grow(pairs: int, seed: int) -> int:
    """A fleet that grows by one pair: how things are spread, and what moves."""
    if not 1 <= pairs <= PAIRS_MAX:
        print(f"make sim: PAIRS from 1 to {PAIRS_MAX}", file=sys.stderr)
        return 2
    growth = Growth(pairs, seed=seed)
    try:
        before, after = growth.run()
    except Violation as violation:
        print(f"VIOLATION {violation}")
        return 1
    counts = growth.counts
    print(f"before: {before}")
    print(f"after:  {after}")
    print(
        f"moved:  {len(growth.moved)} of {len(growth.services)} services, "
        f"{len(growth.services) / (pairs + 1):.1f} were to be expected; all of them to {growth.added}, which "
        f"then got {after.requests[growth.added]} of {sum(after.requests.values())} messages with requests"
    )
    answered = counts["call answered"] + counts["call HandlerError"]
    print(
        f"calls:  {counts['calls']}, of them answered {answered}, executed again "
        f"{counts['repeated executions']}; {counts['activations']} activations, "
        f"{growth.world.now:.0f} simulated seconds, {growth.world.events} events"
    )
    return 0 if answered == counts["calls"] else 1


def _one(options: argparse.Namespace) -> int:
    setup = whole = _setup(options.seed, options)
    numbers: tuple[int, ...] | None = None
    if options.faults:
        numbers = tuple(int(word) for word in options.faults.split(",")) if options.faults != "none" else ()
        setup = msgspec.structs.replace(setup, faults=tuple(whole.faults[number] for number in numbers))
    print(setup)
    for number, fault in enumerate(whole.faults):
        if numbers is None or number in numbers:
            print(f"{number:4d} {fault}")
    outcome = play(setup, keep_trace=True)
    if options.trace or outcome.violation is not None:
        print("\n".join(outcome.trace if options.trace else outcome.trace[-60:]))
    for name, number in outcome.counts.items():
        print(f"{number:8d} {name}")
    print(f"digest {outcome.digest}")
    print(f"{outcome.simulated_s:.0f} simulated seconds in {outcome.real_s:.2f} s, {outcome.events} events")
    if outcome.violation is None:
        return 0
    print(f"VIOLATION {outcome.violation}")
    if numbers is None:
        _explain(outcome, options)
    return 1


def _explain(outcome: Outcome, options: argparse.Namespace) -> None:
    """Say which faults it takes."""
    whole = outcome.setup
    small, result = shrink(whole)
    numbers = tuple(whole.faults.index(fault) for fault in small.faults)
    print(f"It takes {len(small.faults)} of the {len(whole.faults)} faults:")
    for number, fault in zip(numbers, small.faults, strict=True):
        print(f"{number:4d} {fault}")
    print(f"VIOLATION {result.violation}")
    print(f"repeat:     {command(whole, numbers, options)}")


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    first = options.seed if options.seed is not None else 1
    if options.hours is not None and options.runs is None:
        return count(first)
    return iter(range(first, first + (options.runs if options.runs is not None else RUNS)))


def _many(options: argparse.Namespace) -> int:
    seeds = _seeds(options)
    began = told = time.perf_counter()
    counts: Counter[str] = Counter()
    runs, runs_with_keys, simulated_s, dual_s_max = 0, 0, 0.0, 0.0
    wanted_s = float("inf") if options.hours is None else options.hours * 3600
    broken: list[Outcome] = []
    futures: set[Future[Outcome]] = set()

    def tell(end: str = "\n") -> None:
        real_s = time.perf_counter() - began
        print(
            f"{runs} runs, {runs_with_keys} of them with keys, "
            f"{simulated_s / 3600:.1f} simulated hours in {real_s:.0f} s "
            f"({simulated_s / 3600 / real_s:.2f} simulated hours per second), "
            f"{counts['faults']} faults, {counts['calls']} calls, {len(broken)} violations",
            end=end,
            flush=True,
        )

    is_interrupted = False
    # Ctrl-C goes to every process of the terminal; only this one acts on it, and says what came of it so far.
    with ProcessPoolExecutor(options.processes, initializer=_ignore_interrupts) as pool:
        try:
            is_exhausted = False
            while True:
                while (
                    not is_exhausted and len(futures) < _BATCH * options.processes and simulated_s < wanted_s
                ):
                    seed = next(seeds, None)
                    if seed is None:
                        is_exhausted = True
                    else:
                        futures.add(pool.submit(_play, seed, options))
                if not futures:
                    break
                done, futures = wait(futures, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    runs += 1
                    runs_with_keys += outcome.setup.has_keys
                    simulated_s += outcome.simulated_s
                    dual_s_max = max(dual_s_max, outcome.dual_s_max)
                    counts.update(outcome.counts)
                    if outcome.violation is not None:
                        broken.append(outcome)
                        print(f"\nseed {outcome.setup.seed}: VIOLATION {outcome.violation}", flush=True)
                        print(f"repeat:     {command(outcome.setup, None, options)}", flush=True)
                if time.perf_counter() - told > PROGRESS_S:
                    told = time.perf_counter()
                    tell()
        except KeyboardInterrupt:
            is_interrupted = True
            pool.shutdown(cancel_futures=True)
            print("\ninterrupted; what was complete by then:", flush=True)
    tell()
    _summarise(counts, dual_s_max)
    if broken:
        print("The first violation, with as few faults as it takes:")
        _explain(broken[0], options)
    if is_interrupted:
        return 130
    return 1 if broken else 0


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _summarise(counts: Counter[str], dual_s_max: float) -> None:
    faults = sorted(
        (name.removeprefix("fault "), n) for name, n in counts.items() if name.startswith("fault ")
    )
    print("faults:   " + ", ".join(f"{name} {number}" for name, number in faults))
    calls = sorted((name.removeprefix("call "), n) for name, n in counts.items() if name.startswith("call "))
    print("calls:    " + ", ".join(f"{name} {number}" for name, number in calls))
    print(
        f"sends that found a full pipe: {counts['full pipes']}; nodes that ended with status 70: "
        f"{counts['ended with status 70']}"
    )
    print(
        f"keys:     {counts['messages of outsiders']} messages of outsiders, {counts['fault KEY_WITHDRAWN']} "
        f"keys withdrawn and listed again, {counts['sent to silent successors']} messages to who claimed a "
        "routing id and was silent"
    )
    print(
        f"executed: {counts['executions']}, of them repeated {counts['repeated executions']}; "
        f"activations: {counts['activations']}; two nodes served at once {counts['overlaps']} times, "
        f"{dual_s_max:.3f} s at most (see (a) in docs/simulation.md)"
    )


if __name__ == "__main__":
    sys.exit(main())
