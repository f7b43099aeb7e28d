"""The rules that histories must obey, under the letters of docs/simulation.md.

(a) With a sound peer link, or with an arbiter, at most one node serves, and a node that stood still for
longer than the failover timeout gives out nothing in the epoch that it had before. (b) No worker begins a
request of a lower epoch than the highest that has reached it. (c) A reply belongs to the call it is given
to, was made by an execution of that call's request, and comes once. (d) A call ends once, by its deadline;
it fails only while a fault explains it; and one that was said not to have been executed has no execution.
(f) After faults one node is active within a bound and stays so, and every call is answered. (g) The role
moves only when a node or the link between the nodes was hit, or clients were cut off from the node. (i) A
call that forbids a second execution has one at most, and of all executions of one call at most one is not
marked as redelivered.

A run that cannot show anything (too little traffic before the first fault, a machine that stood still by
itself) is *invalid*, which is neither good nor bad: ``InvalidRunError``.

``python -m chaos.validate FOLDER`` judges a kept run again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from operator import itemgetter
from pathlib import Path

from bstar.star import RULES, Event
from bstar.star.cut_off import LONE_PATIENCE
from bstar_testing.rules import CallHistory, Violation
from chaos.history import Failed, Ok
from chaos.model import Call, Execution, Fault, Run, Span, Term, Watch, load

# What scheduling on a busy machine may add to any of these times.
SLACK_S = 1.0
# After a resume: until a node has looked at its clock and written what it decided.
WAKING_S = 0.5
# Two serve for as long as a message travels and a log line is written.
TRAVEL_S = 0.25
# A state link that was broken is connected again within this: handshake, reconnect interval, connecting.
RECONNECT_S = 2.5
# Why a node says that it serves no more when the role follows clients.
_CUT_OFF = next(rule.reason for rule in RULES if rule.event is Event.CLIENTS_CUT_OFF)
# For so long a fault explains what happens after its end: outstanding requests find out.
AFTERMATH_S = 3.0
# A process that is stopped between reading a message and sending its answer sends that answer when it goes
# on, and its socket's thread may hold one more that was sent before.
WAKING_BEGINS_MAX = 2
# The wall clock, by which logs are timed, must not have been set meanwhile.
CLOCK_STEPS_S_MAX = 0.02


class InvalidRunError(Exception):
    """The run shows nothing, whatever its histories say."""


def check(run: Run) -> list[Violation]:
    """All violations, in the order of the rules. InvalidRunError if the run cannot show anything."""
    _check_validity(run)
    violations = [
        *_one_serves(run),
        *_woken_nodes(run),
        *_replies_belong(run),
        *_calls_end(run),
        *_executions_are_allowed(run),
        *_pair_recovers(run),
        *_nothing_without_a_fault(run),
    ]
    if violations and run.manifest.is_control and _machine_paused(run):
        pauses = ", ".join(f"{span.end - span.begin:.3f} s" for span in run.delays)
        raise InvalidRunError(
            f"the machine itself kept nodes waiting ({pauses}), which explains "
            + "; ".join(map(str, violations[:3]))
        )
    return violations


def _check_validity(run: Run) -> None:
    first = min((fault.begin for fault in run.faults), default=run.ended_at)
    answered = sum(1 for call in run.calls if _answered_at(call) < first)
    wanted = run.manifest.calls_before_faults_min
    if answered < wanted:
        raise InvalidRunError(f"{answered} calls were answered before the first fault; {wanted} are wanted")
    if run.clock_steps_s > CLOCK_STEPS_S_MAX:
        raise InvalidRunError(f"the wall clock was set by {run.clock_steps_s:.3f} s during the run")
    if not run.manifest.is_control and not run.faults:
        raise InvalidRunError("nothing was broken, so nothing was shown")


def _answered_at(call: Call) -> float:
    return min((end.at for end in call.ends if isinstance(end, Ok)), default=float("inf"))


def _machine_paused(run: Run) -> bool:
    limit_s = run.manifest.failover_timeout_s - run.manifest.heartbeat_s
    return any(span.end - span.begin > limit_s * 0.7 for span in run.unplanned) or any(
        is_machine_noise(run, term) for term in run.terms[1:]
    )


# --- (a) who serves -----------------------------------------------------------------------------------------


def _serving(run: Run, term: Term) -> list[Span]:
    """When a node really served in a term: not while it stood still, nor while it woke up from that."""
    paused = run.processes.get(term.node, Watch()).paused
    return _without(Span(term.since, min(term.until, run.ended_at)), paused, WAKING_S)


def _without(span: Span, holes: Iterable[Span], after_s: float) -> list[Span]:
    """What is left of a span without others, and without the time after each of them."""
    left = [span]
    for hole in holes:
        begin, end = hole.begin, hole.end + after_s
        pieces = (
            (Span(each.begin, min(each.end, begin)), Span(max(each.begin, end), each.end)) for each in left
        )
        left = [piece for pair in pieces for piece in pair if piece.end > piece.begin]
    return left


def _unsound(run: Run) -> list[Span]:
    """When the peer link could not be relied on: a fault on it, or an end of it that was dead."""
    after_s = RECONNECT_S + run.manifest.failover_timeout_s
    spans = [Span(fault.begin, fault.end + after_s) for fault in run.faults if fault.hits_peer_link]
    for node in ("primary", "backup"):
        watch = run.processes.get(node, Watch())
        spans += [Span(dead.begin, dead.end + after_s) for dead in watch.dead]
    return spans + _machine_delays(run)


def _machine_delays(run: Run) -> list[Span]:
    """A machine that stands still delays messages as a bad link does."""
    return [Span(span.begin, span.end + TRAVEL_S) for span in run.unplanned]


def _one_serves(run: Run) -> Iterator[Violation]:
    # With a third voter the link between the nodes does not matter; what the machine itself does, does.
    unsound = _machine_delays(run) if run.manifest.has_arbiter else _unsound(run)
    for one, other in combinations(run.terms, 2):
        if one.node == other.node:
            continue
        for mine in _serving(run, one):
            for theirs in _serving(run, other):
                both = Span(max(mine.begin, theirs.begin), min(mine.end, theirs.end))
                for sound in _without(both, unsound, 0.0):
                    if sound.end - sound.begin > TRAVEL_S:
                        yield Violation(
                            "a",
                            f"{one.node} (epoch {one.epoch}) and {other.node} (epoch {other.epoch}) both "
                            f"served for {sound.end - sound.begin:.3f} s with a sound peer link, from "
                            f"{sound.begin:.3f} on",
                        )


def _woken_nodes(run: Run) -> Iterator[Violation]:
    """After a stall beyond the failover timeout nothing is given out in the epoch of before."""
    for node, watch in run.processes.items():
        for pause in watch.paused:
            if pause.end - pause.begin <= run.manifest.failover_timeout_s + SLACK_S / 10:
                continue
            before = [
                term for term in run.terms if term.node == node and term.since < pause.begin <= term.until
            ]
            for term in before:
                late = [
                    each
                    for each in run.executions
                    if each.epoch == term.epoch and pause.end < each.at and each.at > pause.begin
                ]
                if len(late) > WAKING_BEGINS_MAX:
                    yield Violation(
                        "a",
                        f"{node} was away for {pause.end - pause.begin:.3f} s and went on to serve in epoch "
                        f"{term.epoch}: {len(late)} requests were begun, the first {late[0].body} "
                        f"{late[0].at - pause.end:.3f} s after it woke up",
                    )


# --- (c) replies --------------------------------------------------------------------------------------------


def _replies_belong(run: Run) -> Iterator[Violation]:
    executions: dict[tuple[str, int], list[Execution]] = {}
    for each in run.executions:
        executions.setdefault((each.worker, each.number), []).append(each)
    for call in run.calls:
        for end in call.ends:
            if not isinstance(end, Ok):
                continue
            body, _, rest = end.reply.partition("|")
            worker, _, number = rest.partition("|")
            if body != call.body:
                yield Violation("c", f"{call.name} was handed the reply to {body}")
                continue
            made = executions.get((worker, int(number)), []) if number.isdigit() else []
            if not any(each.body == call.body and each.at <= end.at for each in made):
                yield Violation("c", f"{call.name} was handed {end.reply!r}, which no worker made of it")
        answers = sum(isinstance(end, Ok) for end in call.ends)
        if answers > 1:
            yield Violation("c", f"{call.name} was answered {answers} times")
    bodies = Counter(call.body for call in run.calls)
    assert max(bodies.values(), default=1) == 1, "bodies must be unique for these rules to mean anything"


# --- (d) ends -----------------------------------------------------------------------------------------------


def _calls_end(run: Run) -> Iterator[Violation]:
    for call in run.calls:
        if not call.ends:
            if not call.is_orphan:
                yield Violation("d", f"{call.name} never ended")
            continue
        end = call.ends[0]
        late_s = end.at - call.deadline_at
        if late_s > SLACK_S and not _is_paused(run, call.client, call.at, end.at):
            yield Violation("d", f"{call.name} ended {late_s:.3f} s after its deadline")
        if isinstance(end, Failed) and not _is_explained(run, call.at, end.at):
            yield Violation(
                "d", f"{call.name} ended with {end.error} although nothing had failed: {end.text}"
            )


# --- (b), (d) and (i): what workers may begin --------------------------------------------------------------


def _executions_are_allowed(run: Run) -> Iterator[Violation]:
    """The rules of ``bstar_testing.rules``, told of everything in the order of time."""
    history = CallHistory()
    events: list[tuple[float, Call | Execution, Ok | Failed | None]] = []
    for call in run.calls:
        history.called(call.body, is_once=not call.is_idempotent)
        events += [(end.at, call, end) for end in call.ends]
    events += [(each.at, each, None) for each in run.executions]
    for at, each, end in sorted(events, key=itemgetter(0)):
        if isinstance(each, Execution):
            yield from history.begun(
                each.body,
                at,
                worker=each.worker,
                epoch=each.epoch,
                epoch_seen=each.epoch_seen,
                is_redelivered=each.is_redelivered,
            )
        elif isinstance(end, Failed):
            yield from history.ended(each.body, end.error, may_have_executed=end.may_have_executed)
        else:
            yield from history.ended(each.body, "a reply", may_have_executed=True)


def _is_paused(run: Run, process: str, begin: float, end: float) -> bool:
    return any(span.overlaps(begin, end) for span in run.processes.get(process, Watch()).paused)


def _is_explained(run: Run, begin: float, end: float) -> bool:
    """By a fault, or by the machine: a node that got no CPU for so long was silent for its clients."""
    if _machine_held_up(run, begin, end):
        return True

    def explains(fault: Fault) -> bool:
        return Span(fault.begin, fault.end + AFTERMATH_S + run.manifest.half_open_s).overlaps(begin, end)

    return any(map(explains, run.faults))


# --- (f) recovery -------------------------------------------------------------------------------------------


def _pair_recovers(run: Run) -> Iterator[Violation]:
    bound_s = 10 * run.manifest.failover_timeout_s + 3.0
    for exit_text in run.odd_exits:
        yield Violation("f", exit_text)
    for quiet in run.rounds:
        if quiet.settled_at is None:
            yield Violation("f", "the pair did not come to have exactly one active node after the faults")
            continue
        took_s = quiet.settled_at - quiet.calm_at
        if took_s > bound_s:
            yield Violation(
                "f",
                f"it took {took_s:.3f} s after the faults until one node was active; {bound_s:.1f} s at most",
            )
        changes = [term for term in run.terms if quiet.settled_at < term.since < quiet.until]
        for term in changes:
            if is_machine_noise(run, term):
                continue
            yield Violation(
                "f",
                f"{term.node} became active in epoch {term.epoch} {term.since - quiet.calm_at:.3f} s after "
                f"the faults were over: {term.why}",
            )
        due = quiet.settled_at + run.manifest.half_open_s
        for call in run.calls:
            end = call.ends[0] if call.ends else None
            if call.at < due or not isinstance(end, Failed) or end.at > quiet.until:
                continue
            if not _machine_held_up(run, call.at, end.at):
                yield Violation("f", f"{call.name} failed long after the faults: {end.error}: {end.text}")


def is_machine_noise(run: Run, term: Term) -> bool:
    """Did the machine keep a node, or what carries its messages, from running just before this term?

    For long at once, or for as long together: a question and its answer pass several of them.
    """
    limit_s = _patience_s(run)
    if _machine_held_up(run, term.since - limit_s, term.since):
        return True
    begin, end = term.since - 2 * run.manifest.failover_timeout_s, term.since
    return sum(max(0.0, min(span.end, end) - max(span.begin, begin)) for span in run.delays) > limit_s * 0.7


def _patience_s(run: Run) -> float:
    """How long a node may be kept waiting before its peer and its clients may take it for silent."""
    return run.manifest.failover_timeout_s - run.manifest.heartbeat_s


def _machine_held_up(run: Run, begin: float, end: float) -> bool:
    """Was a node, or what carries its messages, kept from running for long in that time?"""
    limit_s = _patience_s(run) * 0.7
    long = (span for span in run.delays if span.end - span.begin > limit_s)
    return any(span.overlaps(begin - SLACK_S, end) for span in long)


# --- (g) control --------------------------------------------------------------------------------------------


def _nothing_without_a_fault(run: Run) -> Iterator[Violation]:
    """What moves the role is the peer link or a node. The links of clients are a reason only where the node
    that served gave it up because no client reached it.
    """
    after_s = RECONNECT_S + run.manifest.failover_timeout_s
    reasons = [
        Span(fault.begin, fault.end + after_s)
        for fault in run.faults
        if fault.hits_peer_link or fault.target in ("primary", "backup")
    ]
    patience_s = LONE_PATIENCE * run.manifest.failover_timeout_s + RECONNECT_S
    for before, term in pairwise(run.terms):
        if any(reason.overlaps(term.since, term.since) for reason in reasons):
            continue
        if before.end_why == _CUT_OFF and any(
            Span(fault.begin, fault.end).overlaps(term.since - patience_s, term.since) for fault in run.faults
        ):
            continue
        if not run.manifest.is_control and is_machine_noise(run, term):
            continue
        yield Violation(
            "g",
            f"{term.node} became active in epoch {term.epoch} although neither node nor the link between "
            f"them had failed: {term.why}",
        )


def main(arguments: list[str]) -> int:
    """Judge kept runs again."""
    status = 0
    for folder in arguments:
        try:
            violations = check(load(Path(folder)))
        except InvalidRunError as error:
            print(f"{folder}: invalid: {error}")
            status = 2
            continue
        print(f"{folder}: {len(violations)} violations", *violations, sep="\n  ")
        status = status or int(bool(violations))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
