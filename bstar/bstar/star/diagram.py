"""Writes the table of rules into the documentation: a diagram, the rules, and what their words mean.

    python -m bstar.star.diagram                              print it
    python -m bstar.star.diagram --write docs/binary-star.md  put it between the two markers of that file
    python -m bstar.star.diagram --check docs/binary-star.md  fail if that would change the file

Nothing in the documentation about which state follows on which event is written by hand.
"""

import sys

from bstar import generated
from bstar.star.chart import Chart
from bstar.star.rules import RULES, Effect, Event, Guard, Role, Rule, State

_MODULE = "bstar.star.diagram"
BEGIN, END = generated.begin_of(_MODULE), generated.END


def generate() -> str:
    """The Markdown between the markers."""
    return "\n".join([*_diagram(), "", *_rules(), "", *_words()])


def replace(document: str) -> str:
    """``document`` with a fresh part between the markers; ValueError if it lacks them."""
    return generated.replace(document, _MODULE, generate())


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 1 if ``--check`` finds a difference."""
    return generated.run(arguments, _MODULE, __doc__ or "", generate)


def _diagram() -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {role.name}: starts as {role.value}" for role in Role]
    labels: dict[tuple[State, State], list[str]] = {}
    for rule in RULES:
        if rule.next_state is not rule.state or rule.next_state is State.ACTIVE:
            labels.setdefault((rule.state, rule.next_state), []).append(_label(rule))
    # Which arrows there are is the library's word; what stands at them is ours.
    lines += [
        f"    {old.name} --> {new.name}: {'<br/>'.join(labels[old, new])}"
        for old, new in Chart(State.PRIMARY).arrows()
        if (old, new) in labels
    ]
    return [*lines, "```"]


def _label(rule: Rule) -> str:
    return rule.event.name if rule.guard is Guard.ALWAYS else f"{rule.event.name} [{rule.guard.name}]"


def _rules() -> list[str]:
    lines = ["| in | on | if | then | and | because |", "|---|---|---|---|---|---|"]
    for rule in RULES:
        guards = [guard for guard in (rule.guard, rule.also) if guard is not Guard.ALWAYS]
        guard = " and ".join(f"`{guard.name}`" for guard in guards)
        effect = "" if rule.effect is Effect.NONE else rule.effect.value
        next_state = "stays" if rule.next_state is rule.state else rule.next_state.name
        if rule.state is State.ACTIVE and rule.next_state is State.ACTIVE:
            effect = "takes a new epoch"
        lines.append(
            f"| {rule.state.name} | `{rule.event.name}` | {guard} | {next_state} | {effect} | {rule.reason} |"
        )
    return lines


def _words() -> list[str]:
    guards = [guard for guard in Guard if guard is not Guard.ALWAYS]
    return [
        "| event | what happened |",
        "|---|---|",
        *(f"| `{event.name}` | {event.value} |" for event in Event),
        "",
        "| condition | what holds |",
        "|---|---|",
        *(f"| `{guard.name}` | {guard.value} |" for guard in guards),
    ]


if __name__ == "__main__":
    sys.exit(main())
