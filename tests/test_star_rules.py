"""The table of rules against a twin written by hand."""

import itertools
from types import SimpleNamespace

import pytest

from bstar.star import RULES, Effect, Event, Facts, Guard, Role, State, holds
from bstar.star.chart import obey

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State

# (state, event) -> what is tried in turn: (the facts that must hold, the next state, what else happens).
Choices = tuple[tuple[str, State, str], ...]
WITHOUT_MAJORITY = "majority_missing"
TWIN: dict[tuple[str, str], Choices] = {
    ("PRIMARY", "PEER_BACKUP"): ((WITHOUT_MAJORITY, PRIMARY, "CLAIM"), ("", ACTIVE, "")),
    ("PRIMARY", "PEER_ACTIVE"): (("", PASSIVE, ""),),
    ("PRIMARY", "PEER_PASSIVE"): (
        ("peer_leaving majority_missing", PRIMARY, "CLAIM"),
        ("peer_leaving", ACTIVE, ""),
    ),
    ("PRIMARY", "CLIENT_REQUEST"): (
        ("peer_silent majority_missing", PRIMARY, "CLAIM"),
        ("peer_silent", ACTIVE, ""),
    ),
    ("PRIMARY", "PEER_MISMATCH"): (("", ERROR, "MISMATCH"),),
    ("PRIMARY", "PEER_TAKEN"): (("", ERROR, "MISMATCH"),),
    ("PRIMARY", "MAJORITY_WON"): (("", ACTIVE, ""),),
    ("BACKUP", "PEER_ACTIVE"): (("", PASSIVE, ""),),
    ("BACKUP", "PEER_PASSIVE"): (
        ("peer_leaving majority_missing", BACKUP, "CLAIM"),
        ("peer_leaving", ACTIVE, ""),
    ),
    ("BACKUP", "PEER_MISMATCH"): (("", ERROR, "MISMATCH"),),
    ("BACKUP", "PEER_TAKEN"): (("", ERROR, "MISMATCH"),),
    ("BACKUP", "PROMOTE"): (("peer_silent majority_missing", BACKUP, "CLAIM"), ("peer_silent", ACTIVE, "")),
    ("BACKUP", "MAJORITY_WON"): (("", ACTIVE, ""),),
    ("ACTIVE", "PEER_ACTIVE"): (
        ("policy_exit", ERROR, "DUAL_ACTIVE"),
        ("peer_wins", PASSIVE, ""),
        ("peer_deaf", PASSIVE, "ASK"),
    ),
    ("ACTIVE", "STALL"): (("", PASSIVE, "ASK"),),
    ("ACTIVE", "MAJORITY_LOST"): (("", PASSIVE, "ASK"),),
    ("ACTIVE", "HANDOVER"): (("peer_ready", PASSIVE, "RELEASE"),),
    ("ACTIVE", "CLIENTS_CUT_OFF"): (("peer_ready no_client_served", PASSIVE, "RELEASE"),),
    ("ACTIVE", "LEAVE"): (("", PASSIVE, "RELEASE"),),
    ("ACTIVE", "EPOCH_LEARNED"): (("peer_may_be_active", PASSIVE, "ASK"), ("", ACTIVE, "")),
    ("ACTIVE", "PEER_MISMATCH"): (("peer_outranks", ERROR, "MISMATCH"),),
    ("ACTIVE", "PEER_TAKEN"): (("", ERROR, "MISMATCH"),),
    ("PASSIVE", "PEER_PRIMARY"): ((WITHOUT_MAJORITY, PASSIVE, "CLAIM"), ("", ACTIVE, "")),
    ("PASSIVE", "PEER_BACKUP"): ((WITHOUT_MAJORITY, PASSIVE, "CLAIM"), ("", ACTIVE, "")),
    ("PASSIVE", "PEER_ACTIVE"): (("", PASSIVE, "SETTLE"),),
    ("PASSIVE", "PEER_PASSIVE"): (
        ("peer_released majority_missing", PASSIVE, "CLAIM"),
        ("peer_released", ACTIVE, ""),
        ("released", PASSIVE, ""),
        ("answered majority_missing", PASSIVE, "CLAIM"),
        ("answered", ACTIVE, ""),
        ("asking", PASSIVE, ""),
        ("peer_asking", PASSIVE, ""),
        ("peer_native", PASSIVE, "ASK"),
        ("", ERROR, "DUAL_PASSIVE"),
    ),
    ("PASSIVE", "STALL"): (("", PASSIVE, "ASK"),),
    ("PASSIVE", "CLIENT_REQUEST"): (
        ("peer_silent held", PASSIVE, ""),
        ("peer_silent majority_missing", PASSIVE, "CLAIM"),
        ("peer_silent", ACTIVE, ""),
    ),
    ("PASSIVE", "PEER_TAKEN"): (("", ERROR, "MISMATCH"),),
    ("PASSIVE", "MAJORITY_WON"): (("", ACTIVE, ""),),
}

FACT_NAMES = Facts.__struct_fields__


def expected(state: State, event: Event, facts: dict[str, bool]) -> tuple[State, str] | None:
    for needed, next_state, effect in TWIN.get((state.name, event.name), ()):
        if all(facts[fact] for fact in needed.split()):
            return next_state, effect
    return None


def combinations(state: State, event: Event) -> list[dict[str, bool]]:
    """Every combination of the facts this pair looks at, with all the others once false and once true."""
    choices = TWIN.get((state.name, event.name), ())
    relevant = list(dict.fromkeys(fact for needed, _, _ in choices for fact in needed.split()))
    return [
        dict.fromkeys(FACT_NAMES, rest) | dict(zip(relevant, values, strict=True))
        for rest in (False, True)
        for values in itertools.product((False, True), repeat=len(relevant))
    ]


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_the_chart_obeys_the_twin_for_every_combination_of_facts(state: State, event: Event) -> None:
    for facts in combinations(state, event):
        node = SimpleNamespace(state=state)
        rule = obey(node, event, Facts(**facts))
        found = None if rule is None else (rule.next_state, rule.effect)
        twin = expected(state, event, facts)
        assert found == (None if twin is None else (twin[0], Effect[twin[1] or "NONE"])), facts
        assert node.state is (state if twin is None else twin[0])


@pytest.mark.parametrize("fact", FACT_NAMES)
def test_every_guard_asks_for_the_fact_of_its_name(fact: str) -> None:
    guard = Guard[fact.upper()]
    assert holds(guard, Facts(**{fact: True}))
    assert not holds(guard, Facts())
    assert holds(Guard.ALWAYS, Facts())


def test_there_is_a_guard_for_every_fact_and_a_fact_for_every_guard() -> None:
    assert {guard.name.lower() for guard in Guard if guard is not Guard.ALWAYS} == set(FACT_NAMES)


def test_every_rule_can_apply() -> None:
    """A rule behind an unconditional one of the same state and event would be dead."""
    closed = set()
    for rule in RULES:
        pair = (rule.state, rule.event)
        assert pair not in closed, rule
        if rule.guard is rule.also is Guard.ALWAYS:
            closed.add(pair)


def test_no_rule_begins_to_serve_without_the_majority_where_there_is_an_arbiter() -> None:
    for index, rule in enumerate(RULES):
        if rule.next_state is ACTIVE and rule.state is not ACTIVE and rule.event is not Event.MAJORITY_WON:
            before = RULES[index - 1]
            assert (before.state, before.event, before.guard) == (rule.state, rule.event, rule.guard)
            assert (before.also, before.next_state) == (Guard.MAJORITY_MISSING, rule.state)


def test_every_rule_gives_a_sentence_for_its_reason() -> None:
    for rule in RULES:
        assert rule.reason[0].isupper(), rule
        assert rule.reason.endswith("."), rule


def test_error_is_final() -> None:
    assert not [rule for rule in RULES if rule.state is ERROR]


def test_votes_have_no_other_guard_than_silence() -> None:
    """BST-S-04. Before it walks the table for a vote the machine asks the time; both must mean the same."""
    assert {rule.guard for rule in RULES if rule.event is Event.CLIENT_REQUEST} == {Guard.PEER_SILENT}


def test_a_backup_is_never_started_by_a_vote() -> None:
    assert not [rule for rule in RULES if rule.state is BACKUP and rule.event is Event.CLIENT_REQUEST]


def test_the_wire_codes_are_the_published_ones() -> None:
    """BST-S-01."""
    assert [int(state) for state in (PRIMARY, BACKUP, ACTIVE, PASSIVE)] == [1, 2, 3, 4]


@pytest.mark.parametrize("role", Role)
def test_each_role_is_the_others_peer(role: Role) -> None:
    assert role.peer is not role
    assert role.peer.peer is role
