"""The words of a report: durations, counts and times as people read them, and the verdict of an audit.

The command ``bstar pipeline audit`` and the page use the same sentences, so that they never disagree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bstar_pipeline.report.content import Content, Incident, Objective, Promise, Verdicts
from bstar_pipeline.tables import utc

RULES = {
    "lost": (
        "request was lost",
        "requests were lost",
        "Lost: a node accepted it, and no journal knows an outcome.",
    ),
    "executed-twice": (
        "request was executed twice",
        "requests were executed twice",
        "Executed twice: a later execution was not marked as a repetition, or the call was not idempotent.",
    ),
    "answered-twice": (
        "request was answered twice",
        "requests were answered twice",
        "Answered twice: its client was given more than one reply.",
    ),
    "crossed": (
        "reply was crossed",
        "replies were crossed",
        "Crossed: a client got what no worker had answered to its request.",
    ),
    "durable-lost": (
        "durable request is missing from the store",
        "durable requests are missing from the store",
        "Durable and lost: the store counts fewer than the journals know.",
    ),
    "begun-after-end": (
        "durable request was begun after its end",
        "durable requests were begun after their ends",
        "Begun after its end: a node gave it to a worker after its cancel or close.",
    ),
    "answer-changed": (
        "answer to a durable request changed",
        "answers to durable requests changed",
        "Answer changed: two answers to one durable request differ, or it ended twice.",
    ),
    "epoch-reused": (
        "epoch was taken by both nodes",
        "epochs were taken by both nodes",
        "Epoch reused: both nodes took the same one, so workers cannot tell which of them was superseded.",
    ),
    "stale-epoch": (
        "worker executed in an older epoch",
        "workers executed in an older epoch",
        "Older epoch: a worker began a request of a node that it knew to be superseded.",
    ),
    "both-active": (
        "interval in which both nodes served",
        "intervals in which both nodes served",
        "Both nodes served: at once, and for longer than the stated clock error.",
    ),
}
"""What a finding of each rule of the audit means: one, several, explanation."""

KINDS = {
    "crash": "crashed",
    "both-crash": "and its peer crashed",
    "stop": "was stopped",
    "handover": "handed over",
    "pause": "was away",
    "partition": "was cut off from its peer",
    "both-active": "served beside its peer",
    "start": "started",
    "outage": "served, and no request was answered",
}
"""What a node did in an incident of each kind."""

_TO_DO = {
    "crash": "Find out why {node} ended: its log, the kernel's log (out of memory), the machine's.",
    "both-crash": "Find out what ended both nodes: one host, one power supply, one release?",
    "stop": "Nothing, if somebody meant to stop {node}.",
    "handover": "Nothing, if somebody meant to move the role.",
    "pause": "Find out what held {node}: CPU taken by others, swap, a paused machine.",
    "partition": "Mend the link between the nodes. An arbiter rules out that both serve.",
    "both-active": "Mend the link between the nodes and set up an arbiter.",
    "start": "Nothing: the pair began.",
    "outage": "Look at the workers of the services named here: bstar status, then their logs.",
}

Level = Literal["violated", "unproven", "passed", "empty"]


@dataclass(frozen=True, slots=True)
class Verdict:
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
    unproven = [each for each in verdicts if each.unproven]
    excused = [each for each in verdicts if each.excused]
    sentences = [
        f"Allowed by the guarantees ({each.rule}): {plural(each.excused, 'case')}, such as marked "
        "repetitions and outcomes that the client knows to be unknown."
        for each in excused
    ]
    sentences += [
        f"Not proven either way ({each.rule}): {plural(each.unproven, 'case')} about which these journals do "
        "not tell enough."
        for each in unproven
    ]
    if violated:
        found = "; ".join(_found(each.rule, each.violated) for each in violated)
        explained = [RULES[each.rule][2] for each in violated if each.rule in RULES]
        return Verdict("violated", f"Violated: {found}.", (*explained, *sentences))
    if not requests:
        return Verdict(
            "empty",
            "Nothing to judge: there is no request in this period.",
            ("Were the brokers' journals on, and is this the right period?", *sentences),
        )
    if unproven:
        return Verdict(
            "unproven",
            f"No violation was found in {plural(requests, 'request')}, but not all is proven.",
            tuple(sentences),
        )
    one = round(requests) == 1
    return Verdict(
        "passed",
        f"Passed: {'the' if one else 'each of'} {plural(requests, 'request')} had exactly one outcome.",
        (
            (
                "No request was lost, none executed twice without need, no reply was crossed, and at no time "
                "two nodes served."
            ),
            *sentences,
        ),
    )


def _found(rule: str, number: int) -> str:
    one, several, _ = RULES.get(rule, (f"finding of {rule}", f"findings of {rule}", ""))
    return f"{count(number)} {one if number == 1 else several}"


def happened(incident: Incident) -> str:
    """What an incident was, in a few words."""
    took = f", {incident.successor} took over" if incident.successor and incident.taken_over_at_us else ""
    return f"{incident.node} {KINDS.get(incident.kind, incident.kind)}{took}"


def to_do(incident: Incident) -> str:
    """What a person on call does about an incident."""
    advice = _TO_DO.get(incident.kind, "").format(node=incident.node)
    if incident.kind in ("crash", "both-crash", "stop") and incident.recovered_at_us is None:
        return f"If bstar status does not show both nodes, start what is missing. {advice}"
    return advice


def whole_again(incident: Incident) -> str:
    """When it was over; "" if the journals do not say."""
    if incident.recovered_at_us is None:
        return ""
    what = "requests were answered" if incident.kind == "outage" else "the pair was whole"
    return f"{what} again after {duration(incident.recovered_at_us - incident.began_at_us)}"


def who_was_hit(content: Content, incident: Incident) -> str:
    """Which requests an incident touched."""
    if not incident.affected:
        return "No request waited or failed."
    parts = [f"{plural(incident.affected, 'request')} waited or failed"]
    if incident is worst_outage(content.incidents) and content.hits:
        of = ", ".join(f"{hit.service} ({plural(hit.clients, 'client')})" for hit in content.hits)
        parts[0] += f", of {of}"
    counts = (
        (incident.retried, "sent again"),
        (incident.refused, "refused"),
        (incident.unknown, "with an unknown outcome"),
    )
    parts += [f"{count(number)} {word}" for number, word in counts if number]
    return "; ".join(parts) + "."


def cost(content: Content) -> list[str]:
    """What the longest outage took of each service's objective."""
    parts = []
    objectives = {each.service: each for each in content.objectives}
    for hit in content.hits:
        promise = objectives[hit.service].promise if hit.service in objectives else None
        if promise is None:
            parts.append(f"{hit.service}: no objective is known.")
            continue
        missed = ((hit.not_answered, promise.availability), (hit.slow, promise.latency_share))
        used = max(number / max(1e-9, (1 - part) * promise.period_requests) for number, part in missed)
        kept = "kept" if promise.is_kept else "missed"
        parts.append(
            f"{hit.service}: {_of_budget(used)} ({count(hit.not_answered)} not answered, "
            f"{count(hit.slow)} slow). So far {_of_budget(_used(promise))} is used: {kept}."
        )
    return parts


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
    for big, small, unit_us in (("min", "s", 1e6), ("h", "min", 60e6), ("d", "h", 3600e6)):
        per_big = 24 if big == "d" else 60
        whole, rest = divmod(round(value_us / unit_us), per_big)
        if whole < (24 if big == "h" else 60) or big == "d":
            return f"{whole} {big} {rest} {small}" if rest else f"{whole} {big}"
    raise AssertionError("days are never too many")


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
    return (
        f"{promise.availability * 100:.6g} % answered, {promise.latency_share * 100:.6g} % within "
        f"{duration(promise.latency_us)}"
    )


def budget_used(promise: Promise | None) -> str:
    """How much of the budget that is used more is gone."""
    if promise is None:
        return "–"
    used = _percent(_used(promise))
    return used if promise.is_kept else f"{used}: missed"


def budget_note(promise: Promise | None) -> str:
    """How much of each budget is gone."""
    if promise is None:
        return ""
    return f"errors {_percent(promise.budget_used)}, slow {_percent(promise.slow_budget_used)}"


def _used(promise: Promise) -> float:
    return max(promise.budget_used, promise.slow_budget_used)


def _of_budget(value: float) -> str:
    """``12 % of its budget``, ``2.2 times its budget``."""
    if value <= 1:
        return f"{_percent(value)} of its budget"
    return f"{value:,.0f} times its budget" if value >= 10 else f"{value:.2g} times its budget"


def _percent(value: float) -> str:
    return f"{value * 100:,.0f} %" if value >= 0.01 or not value else "< 1 %"


def missed(objectives: Sequence[Objective]) -> list[str]:
    """The services that did not keep their objective."""
    return [each.service for each in objectives if each.promise is not None and not each.promise.is_kept]


def alerts(objective: Objective) -> str:
    """In how many minutes an alert was due, by its speed."""
    parts = (("fast", objective.fast_alerts), ("slow", objective.slow_alerts))
    return ", ".join(f"{number} min {speed}" for speed, number in parts if number)


def clock(at_us: int | None) -> str:
    """Time of day to the millisecond, UTC."""
    return "–" if at_us is None else f"{utc(at_us):%T.%f}"[:-3]


def moment(content: Content, at_us: int | None) -> str:
    """A time to the millisecond, with its date unless all of the report is of that one."""
    days = {utc(each).date() for each in (content.from_us, content.until_us - 1, at_us) if each is not None}
    return clock(at_us) if len(days) == 1 else date_and_time(at_us, to="ms")


def date_and_time(at_us: int | None, *, to: Literal["minutes", "seconds", "ms"] = "seconds") -> str:
    """Date and time of day, UTC."""
    if at_us is None:
        return "–"
    if to == "ms":
        return f"{utc(at_us):%Y-%m-%d} {clock(at_us)}"
    return f"{utc(at_us):%Y-%m-%d %H:%M}" if to == "minutes" else f"{utc(at_us):%Y-%m-%d %H:%M:%S}"
