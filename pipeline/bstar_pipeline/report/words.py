"""The words of a report: durations, counts and times as people read them, and the verdict of an audit.

The command ``bstar pipeline audit`` and the page use the same sentences, so that they never disagree.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from bstar_pipeline.report.content import Content, Hit, Incident, Objective, Promise, Verdicts
from bstar_pipeline.tables import utc

RULES = {
    "lost": (
        "{request was|requests were} lost",
        "Lost: a node accepted it, and no journal knows an outcome.",
    ),
    "executed-twice": (
        "{request was|requests were} executed twice",
        "Executed twice: a later execution was not marked as a repetition, or the call was not idempotent.",
    ),
    "answered-twice": (
        "{request was|requests were} answered twice",
        "Answered twice: its client was given more than one reply.",
    ),
    "crossed": (
        "{reply was|replies were} crossed",
        "Crossed: a client got what no worker had answered to its request.",
    ),
    "durable-lost": (
        "durable {request is|requests are} missing from the store",
        "Durable and lost: the store counts fewer than the journals know.",
    ),
    "begun-after-end": (
        "durable {request was begun after its end|requests were begun after their ends}",
        "Begun after its end: a node gave it to a worker after its cancel or close.",
    ),
    "answer-changed": (
        "{answer to a durable request|answers to durable requests} changed",
        "Answer changed: two answers to one durable request differ, or it ended twice.",
    ),
    "epoch-reused": (
        "{epoch was|epochs were} taken by both nodes",
        "Epoch reused: both nodes took the same one, so workers cannot tell which of them was superseded.",
    ),
    "stale-epoch": (
        "{worker|workers} executed in an older epoch",
        "Older epoch: a worker began a request of a node that it knew to be superseded.",
    ),
    "both-active": (
        "{interval|intervals} in which both nodes served",
        "Both nodes served: at once, and for longer than the stated clock error.",
    ),
}
"""What a finding of each rule of the audit is called, {one|several}, and what it means."""


class Kind(NamedTuple):
    """What a node did in an incident, its mark in the timeline, and what a person on call does about it."""

    did: str
    mark: str
    to_do: str


KINDS = {
    "crash": Kind(
        "crashed", "✖", "Find out why {node} ended: its log, the kernel's log (out of memory), the machine's."
    ),
    "both-crash": Kind(
        "and its peer crashed",
        "✱",
        "Find out what ended both nodes: one host, one power supply, one release?",
    ),
    "stop": Kind("was stopped", "■", "Nothing, if somebody meant to stop {node}."),
    "start": Kind("started", "▲", "Nothing: the pair began."),
    "handover": Kind("handed over", "◆", "Nothing, if somebody meant to move the role."),
    "pause": Kind("was away", "●", "Find out what held {node}: CPU taken by others, swap, a paused machine."),
    "partition": Kind(
        "was cut off from its peer",
        "◇",
        "Mend the link between the nodes. An arbiter rules out that both serve.",
    ),
    "both-active": Kind(
        "served beside its peer", "★", "Mend the link between the nodes and set up an arbiter."
    ),
    "outage": Kind(
        "served, and no request was answered",
        "▼",
        "Look at the workers of the services named here: bstar status, then their logs.",
    ),
}
"""Every kind of incident, in the order of the timeline's legend."""

Level = Literal["violated", "unproven", "passed", "empty"]


class Verdict(NamedTuple):
    """``level``: "violated" (a promise was broken), "unproven" (none was seen to be broken, but the journals
    cannot tell about everything), "passed", or "empty" (there was no request to judge).
    """

    level: Level
    headline: str
    sentences: tuple[str, ...]


def judge(verdicts: Sequence[Verdicts] | None, requests: float) -> Verdict:
    """What the findings of an audit of so many requests come to; None: there was no audit."""
    if verdicts is None:
        return Verdict("empty", "Not audited: there is no table gold.audit here.", ())
    violated = [each for each in verdicts if each.violated]
    sentences = [
        f"Allowed by the guarantees ({each.rule}): {plural(each.excused, 'case')}, such as marked "
        "repetitions and outcomes that the client knows to be unknown."
        for each in verdicts
        if each.excused
    ]
    unproven = [
        f"Not proven either way ({each.rule}): {plural(each.unproven, 'case')} about which these journals do "
        "not tell enough."
        for each in verdicts
        if each.unproven
    ]
    first: list[str] = []
    level: Level
    if violated:
        found = "; ".join(_found(each.rule, each.violated) for each in violated)
        level, headline = "violated", f"Violated: {found}."
        first = [RULES[each.rule][1] for each in violated if each.rule in RULES]
    elif not requests:
        level, headline = "empty", "Nothing to judge: there is no request in this period."
        first = ["Were the brokers' journals on, and is this the right period?"]
    elif unproven:
        level = "unproven"
        headline = f"No violation was found in {plural(requests, 'request')}, but not all is proven."
    else:
        one = "the" if round(requests) == 1 else "each of"
        level, headline = "passed", f"Passed: {one} {plural(requests, 'request')} had exactly one outcome."
        first = [
            (
                "No request was lost, none executed twice without need, no reply was crossed, and at no time "
                "two nodes served."
            )
        ]
    return Verdict(level, headline, (*first, *sentences, *unproven))


def _found(rule: str, number: int) -> str:
    phrase, _ = RULES.get(rule, (f"{{finding|findings}} of {rule}", ""))
    chosen = r"\1" if number == 1 else r"\2"
    return f"{count(number)} {re.sub(r'{(.*)[|](.*)}', chosen, phrase)}"


def kind_of(incident: Incident) -> Kind:
    """Its row of KINDS."""
    return KINDS.get(incident.kind, Kind(incident.kind, "✚", ""))


def did(incident: Incident) -> str:
    """Which node, and what it did."""
    return f"{incident.node} {kind_of(incident).did}"


def happened(incident: Incident) -> str:
    """What an incident was, in a few words."""
    took = f", {incident.successor} took over" if incident.successor and incident.taken_over_at_us else ""
    return f"{did(incident)}{took}"


def cost(hit: Hit, promise: Promise) -> str:
    """What an outage took of its service's objective."""
    missed = ((hit.not_answered, promise.availability), (hit.slow, promise.latency_share))
    used = max(number / max(1e-9, (1 - part) * promise.period_requests) for number, part in missed)
    return (
        f"{_of_budget(used)} ({count(hit.not_answered)} not answered, {count(hit.slow)} slow). "
        f"So far {_of_budget(_used(promise))} is used: {'kept' if promise.is_kept else 'missed'}."
    )


def lead(incidents: Sequence[Incident]) -> Incident | None:
    """What a report is about: the longest outage, otherwise the last failure that clients did not notice."""
    failures = [each for each in incidents if each.kind not in ("start", "stop", "handover")]
    return worst_outage(incidents) or (failures[-1] if failures else None)


def worst_outage(incidents: Sequence[Incident]) -> Incident | None:
    """The incident in which clients went longest without an answer."""
    known = [each for each in incidents if each.outage_us is not None]
    return max(known, key=lambda each: each.outage_us or 0) if known else None


def duration(value_us: float | None) -> str:
    """Two or three digits and a unit: 40 µs, 3.1 ms, 312 ms, 1.25 s, 2 min 5 s, 3 h 12 min, 4 d 2 h."""
    if value_us is None:
        return "–"
    if value_us < 0:
        return f"−{duration(-value_us)}"
    if value_us < 999.5:
        return f"{value_us:.0f} µs"
    if value_us < 999_500:
        return f"{_digits(value_us / 1e3)} ms"
    if value_us < 59_950_000:
        return f"{_digits(value_us / 1e6)} s"
    _, big, small, unit_us, per_big = next(row for row in _LONG if value_us < row[0])
    whole, rest = divmod(round(value_us / unit_us), per_big)
    return f"{whole} {big} {rest} {small}" if rest else f"{whole} {big}"


# Below so many microseconds: two units, how long the smaller one is, and how many are one of the bigger.
_LONG = (
    (3_599_500_000, "min", "s", 1e6, 60),
    (86_370_000_000, "h", "min", 60e6, 60),
    (math.inf, "d", "h", 3600e6, 24),
)


def _digits(value: float) -> str:
    """Three significant digits, without trailing zeros."""
    decimals = max(0, 2 - math.floor(math.log10(value))) if value else 0
    text = f"{value:.{min(decimals, 2)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """A whole number with commas."""
    return f"{round(value):,}"


def plural(value: float, word: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{count(value)} {word}" if round(value) == 1 else f"{count(value)} {word}s"


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """``41 whole, 1 open``."""
    return ", ".join(f"{count(number)} {word}" for word, number in counts)


def share(value: float | None) -> str:
    """A share from 0 to 1 in per cent; what is not zero never looks like zero."""
    if value is None:
        return "–"
    if not value:
        return "0 %"
    if 0 < value < 0.0001:
        return "< 0.01 %"
    return f"{value * 100:.2f} %" if value < 0.1 else f"{value * 100:.1f} %"


def promised(promise: Promise | None) -> str:
    """The objective of a service."""
    if promise is None:
        return ""
    answered, within = (f"{part * 100:.6g} %" for part in (promise.availability, promise.latency_share))
    return f"{answered} answered, {within} within {duration(promise.latency_us)}"


def budget_used(promise: Promise | None) -> str:
    """How much of the budget that is used more is gone."""
    if promise is None:
        return "–"
    used = percent(_used(promise))
    return used if promise.is_kept else f"{used}: missed"


def _used(promise: Promise) -> float:
    return max(promise.budget_used, promise.slow_budget_used)


def _of_budget(value: float) -> str:
    """``12 % of its budget``, ``2.2 times its budget``."""
    if value <= 1:
        return f"{percent(value)} of its budget"
    return f"{value:,.0f} times its budget" if value >= 10 else f"{value:.2g} times its budget"


def percent(value: float) -> str:
    """A used share of a budget, 0 to any number."""
    return f"{value * 100:,.0f} %" if value >= 0.01 or not value else "< 1 %"


def alerts(objective: Objective) -> str:
    """In how many minutes an alert was due, by its speed."""
    parts = (("fast", objective.fast_alerts), ("slow", objective.slow_alerts))
    return ", ".join(f"{number} min {speed}" for speed, number in parts if number)


def moment(content: Content, at_us: int) -> str:
    """A time to the millisecond, with its date unless all of the report is of that one."""
    days = {utc(each).date() for each in (content.from_us, content.until_us - 1, at_us)}
    text = date_and_time(at_us, to="ms")
    return text if len(days) > 1 else text[11:]


def date_and_time(at_us: int | None, *, to: Literal["minutes", "seconds", "ms"] = "seconds") -> str:
    """Date and time of day, UTC."""
    return "–" if at_us is None else f"{utc(at_us):%F %T.%f}"[: {"minutes": 16, "seconds": 19, "ms": 23}[to]]
