"""``python -m sim``: many seeds on every core, or one seed again, with what happened in it. See --help."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from functools import partial

import msgspec

from bstar.settings.timing import PROFILES
from sim.campaign import Campaign, Result
from sim.checks import Violation
from sim.faults import Mood
from sim.growth import Growth
from sim.run import play, shrink
from sim.setup import Setup, calm_setup_of, setup_of

RUNS = 200
PAIRS_MAX = 1_000


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
    parser.add_argument("--hours", type=float, help="simulated hours, not seeds; goes on where it was ended")
    parser.add_argument("--faults", help="with one seed: only these of its faults, as numbers 0,3,4; or none")
    parser.add_argument(
        "--pace",
        choices=["dense", "calm"],
        default="dense",
        help="calm: hours of a pair's life with a fault now and then (default: dense)",
    )
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
        "--limit", choices=["yes", "no"], help="with running_max or without (default: a quarter with)"
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

    mood = None if options.mood is None else Mood(options.mood)
    if options.pace == "calm":
        return calm_setup_of(seed, mood=mood, arbiter=of(options.arbiter), keys=of(options.keys))
    return setup_of(
        seed,
        mood=mood,
        profile=options.profile,
        arbiter=of(options.arbiter),
        fleet=of(options.fleet),
        keys=of(options.keys),
        pirates=of(options.pirates),
        emq=of(options.emq),
        limit=of(options.limit),
    )


def _play(seed: int, options: argparse.Namespace) -> Result:
    outcome = play(_setup(seed, options))
    counts = {
        **outcome.counts,
        "runs with keys": int(outcome.setup.has_keys),
        "runs with a limit": int(outcome.setup.running_max is not None),
    }
    return Result(seed, outcome.violation or "", outcome.simulated_s, counts, outcome.dual_s_max)


def command(setup: Setup, faults: tuple[int, ...] | None, options: argparse.Namespace) -> str:
    """What repeats this run."""
    words = [f"make sim SEED={setup.seed}"]
    names = ("pace", "mood", "profile", "arbiter", "fleet", "keys", "pirates", "emq", "limit")
    chosen = {name: getattr(options, name) for name in names}
    defaults = {None, "some", "dense"}
    words += [f"{name.upper()}={value}" for name, value in chosen.items() if value not in defaults]
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
        f"calls:  {counts['calls']}, of them answered {answered}, left {counts['call left']}, executed again "
        f"{counts['repeated executions']}; {counts['activations']} activations, "
        f"{growth.world.now:.0f} simulated seconds, {growth.world.events} events"
    )
    return 0 if answered + counts["call left"] == counts["calls"] else 1


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
        _explain(whole, options)
    return 1


def _explain(whole: Setup, options: argparse.Namespace) -> None:
    """Say which faults it takes."""
    small, result = shrink(whole)
    numbers = tuple(whole.faults.index(fault) for fault in small.faults)
    print(f"It takes {len(small.faults)} of the {len(whole.faults)} faults:")
    for number, fault in zip(numbers, small.faults, strict=True):
        print(f"{number:4d} {fault}")
    print(f"VIOLATION {result.violation}")
    print(f"repeat:     {command(whole, numbers, options)}")


def _many(options: argparse.Namespace) -> int:
    runs = options.runs
    if runs is None and options.hours is None:
        runs = RUNS
    campaign = Campaign(
        partial(_play, options=options),
        first=1 if options.seed is None else options.seed,
        runs=runs,
        hours=options.hours if runs is None else None,
        # ``processes`` changes nothing, and a later call may want more hours.
        key="" if runs is not None else repr({**vars(options), "processes": 0, "hours": 0}),
        processes=options.processes,
        repeat=lambda seed: command(_setup(seed, options), None, options),
    )
    is_complete = campaign.run()
    state = campaign.state
    _summarise(Counter(state.counts), state.dual_s_max)
    if state.violations:
        print("The first violation, with as few faults as it takes:")
        _explain(_setup(state.violations[0][0], options), options)
    if not is_complete:
        return 130
    return 1 if state.violations else 0


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
        f"keys:     {counts['runs with keys']} runs, {counts['messages of outsiders']} messages of "
        f"outsiders, {counts['fault KEY_WITHDRAWN']} keys withdrawn and listed again, "
        f"{counts['sent to silent successors']} messages to who claimed a "
        "routing id and was silent"
    )
    print(
        f"limits:   {counts['runs with a limit']} runs, {counts['given out at the limit']} requests given "
        f"out at it, {counts['given out beside what the other node gave out']} beside those of the other node"
    )
    print(
        f"executed: {counts['executions']}, of them repeated {counts['repeated executions']}; "
        f"activations: {counts['activations']}; two nodes served at once {counts['overlaps']} times, "
        f"{dual_s_max:.3f} s at most (see (a) in docs/simulation.md)"
    )


if __name__ == "__main__":
    sys.exit(main())
