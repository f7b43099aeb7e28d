"""The rules as a state chart of ``transitions``: the diagram is drawn from it, and it checks the table.

``StarMachine`` asks ``rules.rule_for``, a loop over the table. The chart is built from the same table by a
library that knows nothing of that loop. Building it fails for a rule between states that do not exist, and
the tests compare the two in every state, for every event and combination of facts (docs/adr/0018).
"""

from functools import partial

from transitions import Machine

from bstar.star.rules import RULES, Event, Facts, Guard, Rule, State, holds


class Chart:
    """One node's place in the chart: ``state``. It is the model that ``transitions`` moves."""

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
        """Follow the rule for ``event``. None if there is none: nothing changes."""
        self._facts = facts
        self._rule = None
        if event.name in self._machine.events:
            self._machine.events[event.name].trigger(self)
        return self._rule

    def arrows(self) -> list[tuple[State, State]]:
        """The chart's transitions as pairs of states, each once, in the order of the rules."""
        pairs = [
            (State[str(transition.source)], State[str(transition.dest)])
            for event in self._machine.events.values()
            for transition in self._machine.get_transitions(event.name)
        ]
        return sorted(dict.fromkeys(pairs))

    def _allows(self, guard: Guard) -> bool:
        return holds(guard, self._facts)

    def _follow(self, rule: Rule) -> None:
        self._rule = rule
