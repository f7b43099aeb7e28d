"""The rules as a state chart of ``transitions``, which runs them: it finds the rule and moves the node.

One chart serves all machines of a process, because a chart has no state of its own: the library reads and
moves the ``state`` of the model that it is given. Building it fails for a rule between states that do not
exist. docs/adr/0029 says what this costs.
"""

from functools import partial
from typing import Protocol

from transitions import Machine

from bstar.star.rules import RULES, Event, Facts, Rule, State, holds


class Model(Protocol):
    """What the chart moves."""

    state: State


def _applies(rule: Rule, facts: Facts, found: list[Rule]) -> bool:
    """The library asks the rules of a state and an event in their order: the first that applies moves."""
    if not (holds(rule.guard, facts) and holds(rule.also, facts)):
        return False
    found.append(rule)
    return True


_CHART = Machine(
    model=None,
    states=State,
    initial=None,
    transitions=[
        {
            "trigger": rule.event.name,
            "source": rule.state,
            # An internal transition (UML): the node neither leaves its state nor enters it.
            "dest": None if rule.next_state is rule.state else rule.next_state,
            "conditions": partial(_applies, rule),
        }
        for rule in RULES
    ],
    auto_transitions=False,
)


def obey(model: Model, event: Event, facts: Facts) -> Rule | None:
    """Move ``model`` by the first rule for its state and ``event`` that applies. None if nothing changes."""
    trigger = _CHART.events[event.name]
    if model.state.name not in trigger.transitions:
        return None  # the library would raise an error
    found: list[Rule] = []
    trigger.trigger(model, facts, found)
    return found[0] if found else None
