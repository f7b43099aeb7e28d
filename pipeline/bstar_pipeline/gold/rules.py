"""What the journals prove about single requests: a table of rules over facts, both in SQL.

A finding is *violated* if the journals prove that a promise of docs/guarantees.md was broken. It is *excused*
if the guarantees allow a repetition or an unknown outcome and a party got a report of it. It is *unproven* if
these journals cannot tell. Of the rules of one name the first whose condition holds makes the finding.

Requests of plain Majordomo clients have no identity that lasts (``client`` begins with "mdp-"): no rule
judges them.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bstar.records.broker import FINISHED
from bstar_pipeline.partitions import text

# ruff: noqa: S608 - all that is put into the query are constants

LATE_US = 1_000_000
"""A reply that a node sent so long before the client gave up should have reached it."""

DURABLE_NUMBER = 1 << 62
"""The number in the identity of each attempt at a durable request."""


class Rule(NamedTuple):
    """``when`` is a condition over facts and columns; ``text`` shows those in braces."""

    verdict: str
    when: str
    text: str


def _overlaps(gaps: str, until: str = "ended_at_us") -> str:
    """Whether a journal lacks something between the request's acceptance and ``until``."""
    touches = f"lambda gap: gap.since <= {until} AND gap.until >= accepted_at_us"
    return f"coalesce(len(list_filter({gaps}, {touches})) > 0, false)"


_COUNTS = ("executions", "answers", "deliveries", "calls")
# Each may use those before it. The bits of ``evidence`` say who recorded the request.
FACTS = {
    "has_node": "evidence & 1 != 0",
    "has_call": "evidence & 2 != 0",
    "has_worker": "evidence & 4 != 0",
    # BSN-G-14: these numbers belong to requests that are named by a key.
    "is_keyed": f"number >= {DURABLE_NUMBER}",
    "has_no_outcome": "NOT has_call AND keeps AND NOT is_keyed",
    "is_durable": f"number = {DURABLE_NUMBER}",
    "is_forbidden": "NOT coalesce(is_idempotent, true)",
    "was_sent_once": "coalesce(attempts, 1) <= 1",
    "is_executed_again": "executions > 1",
    # A killed worker records nothing, so the nodes' deliveries count as well.
    "is_delivered_again": "deliveries > 1 AND executions <= 1 AND NOT is_keyed",
    "crcs": "list_filter(execution_crcs, lambda crc: crc IS NOT NULL)",
    "is_crossed": "reply_crc IS NOT NULL AND len(crcs) > 0 AND NOT list_contains(crcs, reply_crc)",
    "client_may_lack": _overlaps("client_gaps"),
    "worker_may_lack": _overlaps("worker_gaps"),
    "node_may_lack": f"{_overlaps('node_ends')} OR {_overlaps('node_gaps')}",
    "node_lived_on": f"NOT {_overlaps('node_ends', 'accepted_at_us + call_total_us')}",
    "at_node": "if(has_node, printf('%s recorded it as %s', node, coalesce(outcome, '?')), "
    "'no node recorded it')",
    "by_worker": "printf('%d executions by workers are recorded', executions)",
    # Of what was sent late the answer is late as well.
    "gave_up_after_us": "ended_at_us - accepted_at_us - total_us",
    "after": "printf('%.1f ms', total_us / 1000)",
    "call_after": "printf('%.1f ms', call_total_us / 1000)",
    "reply": "hex(reply_crc)",
    "replies": "array_to_string(list_transform(crcs, lambda crc: hex(crc)), ', ')",
}

violated, excused, unproven = (partial(Rule, verdict) for verdict in ("violated", "excused", "unproven"))
RULES = {
    "lost": (
        # Guarantee 1: each accepted request has one outcome. A caller that went away lost nothing.
        violated(
            "has_no_outcome AND NOT client_may_lack",
            "{at_node}; {by_worker}; its client's journal is whole and knows no outcome",
        ),
        unproven("has_no_outcome", "no outcome in the client's journal, which may lack something there"),
        violated(
            "call_outcome = 'timeout' AND answers > 0 AND was_sent_once AND NOT is_keyed AND node_lived_on "
            f"AND call_total_us - total_us > {LATE_US} AND gave_up_after_us > {LATE_US}",
            "a node answered it after {after} and lived on; its client, which had sent it once, "
            "got a timeout after {call_after}",
        ),
        # A worker did it, and the node that had dispatched it never had an end of it.
        violated(
            "call_outcome = 'timeout' AND executions > 0 AND NOT has_node AND was_sent_once AND NOT is_keyed "
            "AND NOT node_may_lack",
            "{by_worker}; no node recorded its end, and its client got a timeout",
        ),
        violated(
            "call_outcome IN ('busy', 'rejected', 'no-active') AND executions + answers > 0 AND NOT is_keyed",
            "its client got {call_outcome}, so not executed, but {by_worker} and {answers} answers by nodes",
        ),
        excused(
            "call_outcome IN ('timeout', 'unknown', 'interrupted', 'closed') AND (has_node OR has_worker)",
            "the client got the answer that the outcome is not known: {call_outcome}",
        ),
        unproven(
            "NOT has_call AND returned > 0 AND outcome IN ('returned', 'late') AND NOT is_durable",
            "given back by a node, never seen at the other: only the client's journal could tell",
        ),
    ),
    "executed-twice": (
        # A request is executed again only as a marked repetition, and never if its caller forbade that.
        excused("is_executed_again AND is_durable", "a further attempt at a durable request"),
        excused("is_executed_again AND is_keyed", "asked again by its key"),
        violated(
            "is_executed_again AND is_forbidden",
            "executed {executions} times, although its caller forbade to repeat it",
        ),
        violated(
            "unmarked > 0",
            "executed {executions} times; {unmarked} runs after the first were not marked as repetitions",
        ),
        excused("is_executed_again AND has_call", "a marked repetition of an idempotent call"),
        unproven(
            "is_executed_again",
            "a marked repetition: only the client's journal could tell whether it was allowed",
        ),
        violated(
            "is_delivered_again AND is_forbidden",
            "given to workers {deliveries} times, although its caller forbade to repeat it; {by_worker}",
        ),
        excused("is_delivered_again AND has_call", "an idempotent call, given to another worker"),
        unproven(
            "is_delivered_again",
            "given to another worker: only the client's journal could tell whether it was allowed",
        ),
    ),
    "answered-twice": (
        # Guarantee 2: a reply is delivered once. Of two marked answers the client delivers one.
        violated("calls > 1 AND NOT is_keyed", "its client's journal has {calls} outcomes of it"),
        excused("answers > 1 AND is_durable", "attempts at a durable request that ended"),
        excused("answers > 1 AND is_keyed", "asked again by its key"),
        excused("answers > 1 AND is_repeated", "a marked repetition: the first answer had been lost"),
        violated(
            "answers > 1", "nodes recorded {answers} answers to it, none of them marked as a repetition"
        ),
    ),
    "crossed": (
        # Guarantee 2: replies are never crossed. The CRC-32 of a delivered reply is one that a worker gave.
        unproven(
            "is_crossed AND deliveries > executions",
            "no recorded reply, but a worker that a node gave it to recorded nothing of it",
        ),
        violated(
            "is_crossed AND NOT worker_may_lack",
            "its client got a reply with CRC-32 {reply}; what workers answered to it has {replies}",
        ),
        unproven("is_crossed", "no recorded reply, but a worker's journal is incomplete there"),
    ),
}


def judged(rules: Mapping[str, Sequence[Rule]], rows: str) -> str:
    """A query of these rows: one for each request and name of rules that has a finding."""
    names = (_first(name, of_name) for name, of_name in rules.items())
    return f"""
SELECT day, pair, client, number, service, node, coalesce(ended_at_us, accepted_at_us) AS at_us,
    unnest(list_filter([{", ".join(names)}], lambda one: one IS NOT NULL)) AS found
FROM {rows}
"""


def _first(name: str, rules: Sequence[Rule]) -> str:
    """What the first rule says whose condition holds, or null."""
    cases = " ".join(f"WHEN {rule.when} THEN {_finding(name, rule)}" for rule in rules)
    return f"CASE {cases} END"


def _finding(name: str, rule: Rule) -> str:
    """A struct of name, verdict and text."""
    parts = [part for part in re.split(r"(\{\w+\})", rule.text) if part]
    shown = [part[1:-1] if part.startswith("{") else text(part) for part in parts]
    return f"{{rule: '{name}', verdict: '{rule.verdict}', text: {' || '.join(shown)}}}"


# Of most requests no rule has anything to say.
_SUSPICIONS = (
    "keeps AND evidence & 2 = 0",
    "executions > 1",
    "deliveries > 1",
    "answers > 1",
    "calls > 1",
    "unmarked > 0",
    f"call_outcome NOT IN {FINISHED}",
    "outcome IN ('returned', 'late')",
    "reply_crc IS NOT NULL AND len(execution_crcs) > 0 AND NOT list_contains(execution_crcs, reply_crc)",
)
FINDINGS = f"""
WITH asked AS (
    SELECT rows.* REPLACE ({", ".join(f"coalesce({name}, 0) AS {name}" for name in _COUNTS)}),
        lacks.* EXCLUDE (pair), keeps
    FROM rows LEFT JOIN lacks ON lacks.pair = rows.pair
        LEFT JOIN keepers ON keepers.pair = rows.pair AND keepers.client = rows.client
    WHERE NOT starts_with(rows.client, 'mdp-')
        AND ({" OR ".join(f"coalesce({each}, false)" for each in _SUSPICIONS)})
),
facts AS (
    SELECT *, {", ".join(f"{fact} AS {name}" for name, fact in FACTS.items())} FROM asked
)
{judged(RULES, "facts")}"""
"""``lacks``: what journals lack, by pair; ``keepers``: clients with a journal."""
