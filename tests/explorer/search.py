"""Visit every reachable situation once, breadth first, and remember how each was reached.

The first path to a situation is a shortest one, so what is found first is found with as few steps as it
takes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bstar.star import StarMachine
from explorer.calm import CALM, Calm
from explorer.canonical import Forms
from explorer.memory import Vessels
from explorer.model import Action, Configuration, Finding, Model, Situation

# Situations between two looks at the clock.
_TELL_EVERY = 2_000
STATES_MAX = 3_000_000


@dataclass(frozen=True)
class Found:
    """The shortest way to a finding."""

    finding: Finding
    text: str
    path: tuple[Action, ...]


@dataclass
class Outcome:
    """What came of one configuration."""

    configuration: Configuration
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    steps: int = 0
    calm_ticks: int = 0
    is_exhausted: bool = False
    found: dict[Finding, Found] = field(default_factory=dict)

    @property
    def violations(self) -> list[Found]:
        """What was found and should not be."""
        return [found for kind, found in self.found.items() if kind not in self.configuration.expected]

    @property
    def missing(self) -> frozenset[Finding]:
        """What should have been found and was not."""
        return self.configuration.expected - self.found.keys() if self.is_exhausted else frozenset()


class _Search:
    def __init__(self, configuration: Configuration, machine_class: type[StarMachine]) -> None:
        self.outcome = Outcome(configuration)
        self.configuration = configuration
        self.vessels = Vessels(
            float(configuration.timeout), machine_class, timeout_max_s=float(configuration.timeout_max)
        )
        self.model = Model(configuration, self.vessels)
        self.forms = Forms(configuration)
        self.calm = Calm(Model(configuration, self.vessels), self.forms)
        self.numbers: dict[Situation, int] = {}
        self.futures: set[Situation] = set()
        self.parents: list[int] = []
        self.actions: list[Action | None] = []

    def path_to(self, number: int, *last: Action) -> tuple[Action, ...]:
        path = list(last)
        while (action := self.actions[number]) is not None:
            path.insert(0, action)
            number = self.parents[number]
        return self.configuration.prefix + tuple(path)

    def note(self, finding: Finding, text: str, number: int, *last: Action) -> None:
        if finding not in self.outcome.found:
            self.outcome.found[finding] = Found(finding, text, self.path_to(number, *last))

    def check_calm(self, situation: Situation, number: int) -> None:
        """(f) from here, without faults, one node serves soon and for good."""
        # What could still have befallen it, and whether the link was sound, is of no account now.
        future = situation._replace(budget=CALM, shaky=0)
        if future in self.futures:
            return
        self.futures.add(future)
        limit = self.configuration.calm_ticks_max
        mended = self.calm.mend(future)
        for are_clients_first in (False, True):
            ticks = self.calm.settles_in(mended, are_clients_first=are_clients_first)
            if ticks is None:
                self.note(Finding.STUCK, "never", number)
            elif ticks > limit:
                self.note(Finding.STUCK, f"only after {ticks} ticks", number)
            else:
                self.outcome.calm_ticks = max(self.outcome.calm_ticks, ticks)


def explore(
    configuration: Configuration,
    *,
    machine_class: type[StarMachine] = StarMachine,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    states_max: int = STATES_MAX,
) -> Outcome:
    """Visit everything that this configuration allows, until the first violation or the end."""
    search = _Search(configuration, machine_class)
    outcome, model = search.outcome, search.model
    # Nothing here is ever garbage, and looking for it again and again takes a third of the time.
    gc.disable()
    try:
        _visit(search, outcome, model, tell, states_max)
    finally:
        gc.enable()
    return outcome


def _visit(
    search: _Search, outcome: Outcome, model: Model, tell: Callable[[Outcome], None], states_max: int
) -> None:
    configuration = outcome.configuration
    began = time.perf_counter()
    first = model.beginning()
    for action in configuration.prefix:
        first = model.next(first, action)
    first, numbers = search.forms[first], search.numbers
    numbers[first] = 0
    search.parents.append(0)
    search.actions.append(None)
    frontier = [first]
    while frontier and not outcome.violations and outcome.states < states_max:
        following: list[Situation] = []
        for situation in frontier:
            number = numbers[situation]
            outcome.states += 1
            search.check_calm(situation, number)
            for action in model.actions(situation):
                outcome.transitions += 1
                after = search.forms[model.next(situation, action)]
                for finding, text in model.findings:
                    search.note(finding, text, number, action)
                if any(finding is Finding.ENDED for finding, _ in model.findings):
                    continue
                if numbers.setdefault(after, len(search.parents)) == len(search.parents):
                    search.parents.append(number)
                    search.actions.append(action)
                    following.append(after)
            if outcome.states % _TELL_EVERY == 0:
                outcome.seconds = time.perf_counter() - began
                tell(outcome)
            if outcome.violations or outcome.states >= states_max:
                break
        else:
            outcome.is_exhausted = not following
        outcome.depth += bool(following)
        frontier = following
    outcome.seconds = time.perf_counter() - began
    outcome.steps = search.vessels.steps
