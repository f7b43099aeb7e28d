"""Plans drawn from seeds: ``make chaos RUNS=20`` explores, ``make chaos SEED=17`` plays one plan again.

A plan is a cast and a list of acts; an act is one to three faults at once for some failover timeouts, and
after most acts the pair is given time to recover. The same seed draws the same plan; what real processes make
of it differs from run to run, so a failure keeps its histories.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from dataclasses import dataclass

from chaos.cluster import Profile
from chaos.faults import LINK_KINDS, PROCESS_KINDS, Kind, Step, apply
from chaos.report import RunFailedError
from chaos.stage import Cast, Stage, is_with_keys, stage
from chaos.toxiproxy import ToxiproxyMissingError, get_binary, say
from chaos.traffic import BOTH, WorkerLoad
from chaos.validate import InvalidRunError

_PROCESSES = ("active", "passive", "active", "passive", "worker1", "worker2", "client1")
# At most one of each row at a time, so that no link is given the same toxic twice.
_LINKS = (
    ("peer", "hears-active", "hears-passive"),
    ("clients-active", "clients-passive", "client1", "client1-active", "client2-passive"),
    ("workers-active", "workers-passive", "worker1", "worker1-active", "worker2-passive"),
)
_ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Act:
    """Faults at once. ``is_calm_after``: the pair is given time to recover."""

    steps: tuple[Step, ...]
    seconds: float
    is_calm_after: bool

    def __str__(self) -> str:
        calm = "; calm" if self.is_calm_after else ""
        return f"{' + '.join(map(str, self.steps))} for {self.seconds:g} s{calm}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does."""

    seed: int
    has_state_dir: bool
    has_arbiter: bool
    has_keys: bool
    work_ms: float
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        kept = "with" if self.has_state_dir else "without"
        arbiter = "an" if self.has_arbiter else "no"
        keys = "with" if self.has_keys else "without"
        acts = "; ".join(map(str, self.acts))
        return f"seed {self.seed}, {kept} state directories, {arbiter} arbiter, {keys} keys: {acts}"


def draw(seed: int) -> Plan:
    """The plan of a seed. Half of them have keys, unless CHAOS_KEYS says otherwise."""
    chance = random.Random(seed)
    has_arbiter = chance.random() < 0.3
    acts = tuple(_act(chance, has_arbiter=has_arbiter) for _ in range(chance.randint(3, 5)))
    has_state_dir, work_ms = chance.random() < 0.5, chance.choice((2.0, 5.0, 15.0))
    has_keys = is_with_keys(random.Random(f"{seed}/keys").random() < 0.5)
    return Plan(seed, has_state_dir, has_arbiter, has_keys, work_ms, acts)


def _act(chance: random.Random, *, has_arbiter: bool) -> Act:
    steps: list[Step] = []
    if has_arbiter and chance.random() < 0.3:
        steps.append(Step(chance.choice((Kind.KILL, Kind.STOP)), "arbiter"))
    rooms: list[tuple[str, ...]] = [_PROCESSES, *_LINKS]
    for row in chance.sample(rooms, chance.choice((1, 1, 2, 2, 3))):
        kinds: tuple[Kind, ...] = PROCESS_KINDS if row is _PROCESSES else LINK_KINDS
        stream = chance.choice(("both", "both", "up", "down"))
        kind = chance.choice(kinds)
        is_link = kind in LINK_KINDS and kind is not Kind.DOWN
        steps.append(Step(kind, chance.choice(row), stream=stream if is_link else "both"))
    return Act(tuple(steps), round(chance.uniform(0.3, 1.5), 2), chance.random() < 0.7)


def play(plan: Plan, *, name: str = "") -> None:
    """Run it. Raises RunFailedError or InvalidRunError."""
    cast = Cast(
        profile=Profile(has_state_dir=plan.has_state_dir),
        workers=(BOTH, BOTH),
        clients=(BOTH, BOTH),
        worker_load=WorkerLoad(work_ms=plan.work_ms),
        has_arbiter=plan.has_arbiter,
        has_keys=plan.has_keys,
    )
    repeat = f"make chaos SEED={plan.seed} KEYS={'on' if plan.has_keys else 'off'}"
    with stage(name or f"seed-{plan.seed}", cast=cast, repeat=repeat, plan=str(plan)) as run:
        perform(run, plan.acts)


def perform(run: Stage, acts: tuple[Act, ...]) -> None:
    """Act after act."""
    for act in acts:
        with apply(run, *act.steps):
            run.last(act.seconds)
        if act.is_calm_after:
            run.calm()


def main(arguments: list[str] | None = None) -> int:
    """Explore: 0 if every rule held in every run, 1 if not, 2 if a run could not be made to show anything."""
    parser = argparse.ArgumentParser(prog="chaos.explore", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, help="of the first run; the next ones follow")
    options = parser.parse_args(arguments)
    first = options.seed if options.seed is not None else int.from_bytes(os.urandom(3), "big")
    try:
        get_binary()
    except ToxiproxyMissingError as error:
        say(str(error))
        return 2
    began, with_keys, failed, invalid = time.monotonic(), 0, 0, 0
    for seed in range(first, first + options.runs):
        plan = draw(seed)
        with_keys += plan.has_keys
        print(plan, flush=True)
        try:
            _play_validly(plan)
        except RunFailedError as error:
            failed += 1
            print(error, flush=True)
        except InvalidRunError as error:
            invalid += 1
            print(f"  invalid: {error}", flush=True)
    print(
        f"{options.runs} runs from seed {first} on, {with_keys} of them with keys, in "
        f"{time.monotonic() - began:.0f} s: {failed} failed, {invalid} showed nothing; "
        f"repeat: make chaos RUNS={options.runs} SEED={first}"
    )
    return 1 if failed else 2 if invalid else 0


def _play_validly(plan: Plan) -> None:
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        try:
            play(plan)
        except InvalidRunError:
            if attempt == _ATTEMPTS_MAX:
                raise
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
