"""Walks the table of ``rules`` with ``transitions``: it knows the state, is told an event and the facts of
the moment, goes to the next state and says which rule led there. What a rule entails is for ``StarMachine``.
"""

from functools import partial

from transitions import Machine

from bstar.star.rules import RULES, Event, Facts, Guard, Rule, State, holds

__all__ = ["Table"]

_HAS_RULES = frozenset((rule.state, rule.event) for rule in RULES)


class Table:
    """Where in the table a node is: ``state``. It is the model that ``transitions`` moves."""

    def __init__(self, start: State) -> None:
        self.state = start
        self._facts = Facts()
        self._rule: Rule | None = None
        self._machine = Machine(
            model=self,
            states=State,
            initial=start,
            transitions=[
                {
                    "trigger": rule.event.name,
                    "source": rule.state,
                    "dest": rule.next_state,
                    "conditions": [
                        partial(self._allows, guard) for guard in dict.fromkeys((rule.guard, rule.also))
                    ],
                    "before": partial(self._follow, rule),
                }
                for rule in RULES
            ],
            auto_transitions=False,
            ignore_invalid_triggers=True,
            queued=False,
        )

    def obey(self, event: Event, facts: Facts) -> Rule | None:
        """Find the rule for ``event`` and go where it leads. None if there is none: nothing changes."""
        if (self.state, event) not in _HAS_RULES:
            return None
        self._facts = facts
        self._rule = None
        self._machine.events[event.name].trigger(self)
        return self._rule

    def _allows(self, guard: Guard) -> bool:
        return holds(guard, self._facts)

    def _follow(self, rule: Rule) -> None:
        self._rule = rule
