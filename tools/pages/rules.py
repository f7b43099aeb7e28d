"""The rules of the pair, for docs/binary-star.md: a diagram and the table."""

from bstar.star.rules import RULES, Effect, Event, Guard, Role, Rule, State
from pages.markdown import wrapped


def generate() -> str:
    """The Markdown between the markers."""
    return "\n".join([*_diagram(), "", *_rules()])


def _diagram() -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {role.name}: starts as {role.value}" for role in Role]
    labels: dict[tuple[State, State], list[str]] = {}
    for rule in RULES:
        if rule.next_state is not rule.state or rule.next_state is State.ACTIVE:
            labels.setdefault((rule.state, rule.next_state), []).append(_label(rule))
    lines += [
        f"    {old.name} --> {new.name}: {'<br/>'.join(labels[old, new])}" for old, new in sorted(labels)
    ]
    return [*lines, "```"]


def _label(rule: Rule) -> str:
    return rule.event.name if rule.guard is Guard.ALWAYS else f"{rule.event.name} [{rule.guard.name}]"


def _rules() -> list[str]:
    claims = (
        f"With an arbiter, while the majority is not this node's (`{Guard.MAJORITY_MISSING.name}`), "
        f"a rule that begins to serve keeps the state and {Effect.CLAIM.value}; "
        f"`{Event.MAJORITY_WON.name}` is exempt."
    )
    lines = [wrapped(claims), "", "| in | on | if | then | because |", "|---|---|---|---|---|"]
    states: dict[str, list[str]] = {}  # what is the same in several states stands once
    for rule in RULES:
        if rule.effect is not Effect.CLAIM:  # the sentence above says these
            states.setdefault(_cells(rule), []).append(rule.state.name)
    return [*lines, *(f"| {', '.join(names)} {cells}" for cells, names in states.items())]


def _cells(rule: Rule) -> str:
    """What stands beside the state."""
    guards = [guard for guard in (rule.guard, rule.also) if guard is not Guard.ALWAYS]
    guard = " and ".join(f"`{guard.name}`" for guard in guards)
    effect = "" if rule.effect is Effect.NONE else f", {rule.effect.value}"
    next_state = "stays" if rule.next_state is rule.state else rule.next_state.name
    if rule.state is State.ACTIVE and rule.next_state is State.ACTIVE:
        effect = ", takes a new epoch"
    return f"| `{rule.event.name}` | {guard} | {next_state}{effect} | {rule.reason} |"
