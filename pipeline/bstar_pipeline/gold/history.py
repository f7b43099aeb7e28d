"""The history of one pair, in plain Python: each node's states, and what happened to the pair.

A pair's events are few, whatever its traffic, so no engine is needed to put them in order: the driver makes a
``History`` of the runs of a pair's processes and their events. ``gold.outages`` looks at requests.

When an incident began:

* stop, handover: the node's own record of it (``stopping``, LEAVE, HANDOVER): exact.
* pause: the node's ``stall`` record less its gap. The loop looks at the clock at least every half heartbeat
  interval, so the pause began at most that much later.
* crash: between the last sign of life and the first of death. Of life: the run's last record, and when the
  peer last heard it (``peer-lost`` less ``silent_us``). Of death: the ``peer-lost`` itself; where that is
  silence and no refused connection, one heartbeat interval after the last message, because a node that
  lives speaks once in it; the first broken connection that a client or worker recorded in between. A refused
  and a broken connection come at once, so the first of them counts; otherwise the middle. ``began_error_us``
  is half of the distance. Without a peer that listened: the next start of the node, or one and a half
  intervals of the node's own pulses after its last record.
* partition: in the same way, between the later one of the last messages that the nodes heard of each other
  and a heartbeat interval after the earlier one.
* both-active: when the second node began to serve.

A node that fell silent is explained once: by its end, by a pause, and only if it did neither by a partition.
A node without any journal explains nothing: its peer's records alone are no incident. The crash of the second
node while the first one is gone is part of the first one's: ``both-crash``.

The state of a node. Between two changes, from the start of its run to its last sign of life, the state is the
one that it recorded last. A run that begins before the input does is in the state that its first record about
one names. A node that was away (SIGSTOP, a sleeping machine, a blocked loop) served nothing meanwhile: that
time is cut out of the interval in which it lies. A run without a last word was killed if its node began
another run, if its peer lost it afterwards and never saw it again, or if the pair's other journals go on for
longer than this one ever was silent; otherwise its journal ends.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

CLOCK_ERROR_US = 10_000
"""What the wall clocks of two machines may differ by, unless the caller says otherwise."""

SAME_CLOCK_ERROR_US = 1_000
"""On one machine: the time between a change and the moment that is recorded for it."""

KINDS = (
    "started", "state", "active", "inactive", "peer-seen", "peer-lost", "stall", "stopping", "stopped",
    "fatal", "disconnected", "active-lost", "unregistered",
)  # fmt: skip
"""The kinds of record that a history is made of. Of pulses, which are many, a run has the sums."""

NOT_STARTED = "did not start"
"""The reason of a node's ``stopped`` that ended before it served: a port was taken, or a file is invalid."""

# Two nodes that crash within this time went down together.
_BOTH_US = 10_000_000
# A connection that breaks later is no sign of an incident.
_SIGN_MAX_US = 30_000_000
# Nodes write a record every few seconds: so long a silence is no chance.
_SILENT_MIN_US = 15_000_000
# By these a client or worker tells that it lost a node.
_CUT_OFF = ("disconnected", "active-lost", "unregistered")
_AWAY = "STALL"
_HANDOVERS = {
    "HANDOVER": "An operator had {node} hand the role over.",
    "CLIENTS_CUT_OFF": "{node} handed the role over: clients reached its peer only.",
}
_FOREVER = 1 << 62
_AT, _LOST = attrgetter("at_us"), attrgetter("lost_at_us")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a process, of ``silver.runs``. Of its pulses: the state and epoch of the first, their mean
    interval, and the longest time between two of them or of its records of these kinds.
    """

    pair: str
    node: str
    boot: str
    source: str
    day: dt.date
    started_at_us: int
    last_at_us: int
    is_clean: bool
    began_before: bool
    machine: str | None
    heartbeat_us: int | None
    failover_timeout_us: int | None
    clock_unsure_us: int
    first_state: str | None
    first_epoch: int | None
    pulse_us: float | None
    longest_us: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """One record of an event, at a time of the common timeline."""

    node: str
    boot: str
    seq: int
    at_us: int
    day: dt.date
    kind: str
    old: str | None = None
    new: str | None = None
    event: str | None = None
    epoch: int | None = None
    reason: str | None = None
    text: str | None = None
    exit_code: int | None = None
    peer_boot: str | None = None
    silent_us: int | None = None
    gap_us: int | None = None
    votes: int | None = None


FIELDS = tuple(each.name for each in fields(Event) if each.default is None)
"""What an event has beside its place and kind."""


@dataclass(frozen=True, slots=True)
class State:
    """An interval of a node's state: a row of ``silver.states``."""

    pair: str
    day: dt.date
    node: str
    boot: str
    state: str
    is_serving: bool
    epoch: int
    since_at_us: int
    until_at_us: int
    event: str
    text: str
    ended_by: str
    votes: int


class Overlap(NamedTuple):
    """Two nodes served at once: the ``old`` one had served before, the ``new`` one came to it."""

    since_at_us: int
    until_at_us: int
    old: State
    new: State


@dataclass(frozen=True, slots=True)
class Incident:
    """What happened to a pair. ``ended_at_us``: the node is there again, or the link. ``lost_at_us``: the
    peer missed the node. ``is_certain`` is False for a pause that neither the peer nor the failover timeout
    noticed: it is an incident if requests waited for it.
    """

    kind: str
    node: str
    boot: str
    began_at_us: int
    text: str
    began_error_us: int = 0
    ended_at_us: int | None = None
    lost_at_us: int | None = None
    is_certain: bool = True
    was_serving: bool = False
    taken_over_at_us: int | None = None
    successor: str | None = None
    epoch: int = 0
    detected_at_us: int | None = None
    recovered_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class PairHistory:
    """What happened to a pair. ``overlaps``: the times in which both nodes served."""

    states: list[State]
    incidents: list[Incident]
    overlaps: list[Overlap]


class _Loss(NamedTuple):
    """A node missed its peer, and when it heard it again; of several at once the order is that of fields."""

    lost_at_us: int
    heard_at_us: int
    how: str
    witness: str
    witness_boot: str
    seen_at_us: int
    seen_boot: str | None


@dataclass(slots=True)
class _Node:
    """One run of a broker, with what it recorded of itself."""

    run: Run
    events: list[Event] = field(default_factory=list)
    next_us: int = _FOREVER
    """When another run of this node began."""
    loss: _Loss | None = None
    """What tells of its end."""
    is_over: bool = False

    def first(self, kind: str) -> Event | None:
        return next((each for each in self.events if each.kind == kind), None)

    @property
    def gone_at_us(self) -> int:
        """Since when its peer may miss it: it was asked to end, or gave the role up because of it."""
        left = [each.at_us for each in self.events if each.kind == "stopping" or each.event == "LEAVE"]
        return min(self.run.last_at_us, *left) if self.run.is_clean and left else self.run.last_at_us


class History:
    """What happened to one pair, of its runs and their events."""

    def __init__(
        self, runs: Iterable[Run], events: Iterable[Event], clock_error_us: int = CLOCK_ERROR_US
    ) -> None:
        self.clock_error_us = clock_error_us
        order = attrgetter("started_at_us", "boot")
        in_order = sorted(runs, key=order)
        self.runs = [run for run in in_order if run.source == "broker"]
        self._lasts_us = max((run.last_at_us for run in in_order), default=0)
        self._nodes = {run.boot: _Node(run) for run in self.runs}
        self._brokers: list[Event] = []
        self._cut_off: list[Event] = []
        for event in sorted(events, key=attrgetter("boot", "seq")):
            if event.boot in self._nodes:
                self._nodes[event.boot].events.append(event)
                self._brokers.append(event)
            elif event.kind in _CUT_OFF:
                self._cut_off.append(event)
        self._brokers.sort(key=attrgetter("at_us", "seq"))
        self._cut_off.sort(key=_AT)
        for node in self._nodes.values():
            of_node = (run for run in self.runs if run.node == node.run.node)
            later = (run.started_at_us for run in of_node if order(run) > order(node.run))
            node.next_us = min(later, default=_FOREVER)
        self._losses = self._find_losses()
        roles = [each for each in self._brokers if each.kind in ("active", "inactive")]
        # What a node was when its journal here begins, a record of before tells, or its first pulse.
        begun = (_active_from(node) for node in self._nodes.values())
        roles += [each for each in begun if each is not None]
        self._roles = sorted(roles, key=attrgetter("at_us", "seq"))
        self._actives = [role for role in self._roles if role.kind == "active"]
        for node in self._nodes.values():
            self._find_end(node)
        self._pauses = [pause for node in self._nodes.values() for pause in self._pauses_of(node)]

    # --- states ---------------------------------------------------------------------------------------------

    def states(self) -> list[State]:
        """The intervals of all nodes' states, by node and time."""
        return [state for run in self.runs for state in self._states_of(self._nodes[run.boot])]

    def _states_of(self, node: _Node) -> Iterable[State]:
        run = node.run
        points = sorted(_points(node), key=lambda point: point[:3])
        held: dict[str, Any] = {}
        lasting: list[tuple[int, str, dict[str, Any]]] = []
        for index, (at_us, _, _, mark, given) in enumerate(points):
            held |= given
            # What took no time was only a step to what followed at once.
            if index + 1 == len(points) or points[index + 1][0] > at_us:
                lasting.append((at_us, mark, {**held}))
        lasting.append((max(lasting[-1][0], run.last_at_us), self._ended_by(node), {}))
        for (at_us, _, known), (until_us, ended_by, _) in pairwise(lasting):
            is_serving = known["state"] == "ACTIVE" and not known["is_away"]
            if known.pop("is_away"):
                known |= {"event": _AWAY, "text": "The process was away."}
            known |= {"since_at_us": at_us, "until_at_us": until_us, "ended_by": ended_by}
            yield State(pair=run.pair, node=run.node, boot=run.boot, is_serving=is_serving, **known)

    def _ended_by(self, node: _Node) -> str:
        """How a run ended: stop, kill, or end (of its journal)."""
        if node.run.is_clean:
            return "stop"
        of_peer = (each for each in reversed(self._brokers) if each.node != node.run.node)
        last = next((each for each in of_peer if each.kind in ("peer-seen", "peer-lost")), None)
        is_lost = last is not None and last.kind == "peer-lost" and last.at_us > node.run.last_at_us
        is_silent = self._lasts_us - node.run.last_at_us > max(_SILENT_MIN_US, 2 * (node.run.longest_us or 0))
        return "kill" if node.next_us < _FOREVER or is_lost or is_silent else "end"

    # --- incidents ------------------------------------------------------------------------------------------

    def incidents(self, states: Sequence[State]) -> list[Incident]:
        """All of the pair but outages that nothing else explains, by their beginnings."""
        found = [
            *_of_both(self._end_of(node) for node in self._nodes.values() if node.is_over),
            *self._pauses,
            *self._partitions(),
            *self._handovers(),
            *self._both_active(states),
            *self._starts(),
        ]
        in_order = sorted(map(self._taken_over, found), key=attrgetter("began_at_us", "node", "kind"))
        begins = sorted(each.began_at_us - each.began_error_us for each in in_order)
        return [self._recovered(self._detected(each, begins)) for each in in_order]

    def _find_losses(self) -> list[_Loss]:
        losses = []
        later: dict[str, Event] = {}
        for event in reversed(self._brokers):
            if event.kind == "peer-seen":
                later[event.node] = event
            elif event.kind == "peer-lost":
                again = later.get(event.node)
                seen = (_FOREVER, None) if again is None else (again.at_us, again.peer_boot)
                heard_at_us, how = event.at_us - (event.silent_us or 0), event.reason or ""
                losses.append(_Loss(event.at_us, heard_at_us, how, event.node, event.boot, *seen))
        return losses[::-1]

    def _find_end(self, node: _Node) -> None:
        """Set the loss that tells of the run's end, and whether it ended."""
        run, error = node.run, self.clock_error_us
        found = []
        since_us, until_us = max(run.started_at_us, node.gone_at_us - error), node.next_us + error
        for loss in _between(self._losses, since_us, until_us, _LOST):
            # A partition ends no records: the node goes on writing after its peer stopped hearing it.
            silent_us = loss.lost_at_us if loss.how == "gone" else (loss.heard_at_us + loss.lost_at_us) // 2
            if loss.witness != run.node and (run.is_clean or run.last_at_us <= silent_us + error):
                found.append(loss)
        node.loss = min(found, default=None)
        is_lost = node.loss is not None and node.loss.seen_boot != run.boot
        node.is_over = run.is_clean or node.first("fatal") is not None or node.next_us < _FOREVER or is_lost

    def _end_of(self, node: _Node) -> Incident:
        """A crash or a stop."""
        run, loss = node.run, node.loss
        fatal, stopped = node.first("fatal"), node.first("stopped")
        alive_us = run.last_at_us if loss is None else max(run.last_at_us, loss.heard_at_us)
        exact_us = None
        if fatal is not None:
            exact_us = fatal.at_us
        elif run.is_clean:
            exact_us = node.gone_at_us if stopped is None else min(node.gone_at_us, stopped.at_us)
        began_us, error_us = self._death_of(node, alive_us) if exact_us is None else (exact_us, 0)
        kind = "stop" if run.is_clean and fatal is None else "crash"
        text = _text_of_end(node, fatal, stopped, exact_us, alive_us)
        lost_us = None if loss is None else loss.lost_at_us
        return Incident(kind, run.node, run.boot, began_us, text, error_us, _known(node.next_us), lost_us)

    def _death_of(self, node: _Node, alive_us: int) -> tuple[int, int]:
        """When a node ended without a word after its last sign of life, and by how much that may be off."""
        run, loss = node.run, node.loss
        # A machine refuses connections to a process from the moment that it is dead. A message that did not
        # come in time says less: on a busy machine it may be late.
        is_refused = loss is not None and loss.how == "gone"
        signs = [node.next_us]
        if loss is not None:
            signs.append(loss.lost_at_us)
            if not is_refused and run.heartbeat_us is not None:
                signs.append(loss.heard_at_us + run.heartbeat_us)
        elif run.pulse_us is not None:
            signs.append(run.last_at_us + int(run.pulse_us * 1.5))
        dead_us = max(alive_us, min(signs))
        # The first connection that broke in between is the nearest sign of death.
        broken = _between(self._cut_off, alive_us, dead_us, _AT)
        until_us = broken[0].at_us if broken else dead_us
        began_us = until_us if is_refused or broken else (alive_us + until_us) // 2
        return began_us, (until_us - alive_us + 1) // 2

    def _pauses_of(self, node: _Node) -> Iterator[Incident]:
        """A node that was away."""
        run = node.run
        heartbeat_us, timeout_us = run.heartbeat_us or 0, run.failover_timeout_us or 0
        margin_us = heartbeat_us + self.clock_error_us
        for stall in node.events:
            if stall.kind != "stall" or stall.gap_us is None:
                continue
            began_us = stall.at_us - stall.gap_us
            noticed = [
                loss.lost_at_us
                for loss in _between(self._losses, began_us, stall.at_us + margin_us, _LOST)
                if loss.witness != run.node
                and loss.how != "left"
                and began_us - margin_us <= loss.heard_at_us <= stall.at_us
            ]
            why = "stopped, starved of CPU, or its machine was suspended"
            text = f"{run.node} stood still for {_seconds(stall.gap_us)}: {why}."
            lost_us = min(noticed, default=None)
            is_certain = bool(noticed) or 0 < timeout_us <= stall.gap_us
            error_us = heartbeat_us // 2
            yield Incident(
                "pause", run.node, run.boot, began_us, text, error_us, stall.at_us, lost_us, is_certain
            )

    def _partitions(self) -> list[Incident]:
        """Losses that neither an end nor a pause of the peer explains."""
        turns: list[list[_Loss]] = []
        until_us = -1
        for loss in sorted(self._unexplained(), key=attrgetter("heard_at_us", "witness")):
            if loss.heard_at_us > until_us:
                turns.append([])
            turns[-1].append(loss)
            until_us = max(until_us, loss.seen_at_us)
        return [self._partition(turn) for turn in turns]

    def _partition(self, turn: Sequence[_Loss]) -> Incident:
        # The first loss of each node; later ones of a link that comes and goes are part of it.
        first: dict[str, _Loss] = {}
        for loss in sorted(turn, key=attrgetter("heard_at_us", "lost_at_us")):
            first.setdefault(loss.witness, loss)
        alive_us = max(loss.heard_at_us for loss in first.values())
        cuts = (loss.heard_at_us + self._heartbeat_us(loss.witness_boot) for loss in first.values())
        cut_us = max(alive_us, min(cuts))
        ended_us = _known(max(loss.seen_at_us for loss in turn))
        began_us = (alive_us + cut_us) // 2
        who = "The nodes did not hear each other" if len(first) > 1 else f"{min(first)} did not hear its peer"
        lasted = (
            "to the end of these journals" if ended_us is None else f"for {_seconds(ended_us - began_us)}"
        )
        text = f"{who} {lasted}, and both lived: the link between them was cut or lost messages."
        error_us, lost_us = (cut_us - alive_us + 1) // 2, min(loss.lost_at_us for loss in first.values())
        active = next(_back_from(self._actives, began_us + 1), None)
        node, boot = (active.node, active.boot) if active else ("", "")
        return Incident("partition", node, boot, began_us, text, error_us, ended_us, lost_us)

    def _unexplained(self) -> Iterable[_Loss]:
        """Losses of a peer that lived and was awake."""
        error = self.clock_error_us
        for loss in self._losses:
            peers = [node for node in self._nodes.values() if node.run.node != loss.witness]
            is_death = any(
                node.is_over and node.gone_at_us - error <= loss.lost_at_us <= node.next_us + error
                for node in peers
            )
            is_pause = any(
                pause.is_certain and pause.node != loss.witness and self._explains(pause, loss)
                for pause in self._pauses
            )
            both_there = any(
                node.run.started_at_us - error <= loss.heard_at_us <= node.run.last_at_us + error
                for node in peers
            )
            if both_there and not is_death and not is_pause and loss.how != "left":
                yield loss

    def _explains(self, pause: Incident, loss: _Loss) -> bool:
        """Whether the node was away when it was missed, or had been a moment before."""
        until_us = (pause.ended_at_us or 0) + self._heartbeat_us(pause.boot) + self.clock_error_us
        return pause.began_at_us <= loss.lost_at_us <= until_us

    def _heartbeat_us(self, boot: str) -> int:
        return self._nodes[boot].run.heartbeat_us or 0

    def _handovers(self) -> Iterable[Incident]:
        """The operator moved the role, or it followed the clients."""
        for each in self._brokers:
            if each.kind == "state" and each.old == "ACTIVE" and each.event in _HANDOVERS:
                why = _HANDOVERS[each.event].format(node=each.node)
                yield Incident("handover", each.node, each.boot, each.at_us, why)

    def _starts(self) -> Iterable[Incident]:
        """The first node of a pair of which none was there. After a crash it is the end of that incident."""
        last: Run | None = None
        for run in self.runs:
            is_alone = last is None or (last.last_at_us < run.started_at_us and last.is_clean)
            if is_alone and not run.began_before:
                why = f"The pair began: {run.node} was started, and no node was there."
                yield Incident("start", run.node, run.boot, run.started_at_us, why)
            if last is None or (run.last_at_us, run.is_clean) > (last.last_at_us, last.is_clean):
                last = run

    def _both_active(self, states: Sequence[State]) -> Iterable[Incident]:
        """Both nodes served at once."""
        for each in overlaps(states, self.runs, self.clock_error_us):
            since_us, until_us, old, new = each.since_at_us, each.until_at_us, each.old, each.new
            lasted = _seconds(until_us - since_us)
            why = f"Both nodes served for {lasted}: {new.node} was made active while {old.node} served."
            yield Incident("both-active", old.node, old.boot, since_us, why, ended_at_us=until_us)

    # --- what came of an incident ---------------------------------------------------------------------------

    def _taken_over(self, each: Incident) -> Incident:
        """Add was_serving, taken_over_at_us, successor and epoch."""
        error, began_us = self.clock_error_us, each.began_at_us
        mine = next((role for role in _back_from(self._roles, began_us) if role.boot == each.boot), None)
        was_serving = mine is not None and mine.kind == "active"
        before = next(_back_from(self._actives, began_us), None)
        later = _from(self._actives, began_us - error)
        other = next((role for role in later if role.node != each.node), None)
        own = next((role for role in _from(self._actives, began_us + 1) if role.node == each.node), None)
        until_us = each.ended_at_us if each.kind in ("partition", "both-active", "pause") else None
        taken = None
        if each.kind == "start":
            known = (role for role in (own, other) if role is not None)
            taken = min(known, key=attrgetter("at_us", "node"), default=None)
        elif was_serving and other is not None and (own is None or other.at_us < own.at_us):
            taken = other if until_us is None or other.at_us <= until_us + error else None
        return replace(
            each,
            was_serving=was_serving,
            taken_over_at_us=None if taken is None else max(taken.at_us, each.began_at_us),
            successor=None if taken is None or each.kind == "start" else taken.node,
            epoch=(taken.epoch if taken is not None else before.epoch if before is not None else 0) or 0,
        )

    def _detected(self, each: Incident, begins: Sequence[int]) -> Incident:
        """Add detected_at_us: the first sign at another process. ``begins``: when incidents began, in order.

        A broken connection is a sign of the last incident that had begun, until that ends.
        """
        if each.kind == "start":
            return replace(each, detected_at_us=each.taken_over_at_us)
        if each.kind == "both-active":
            return replace(each, detected_at_us=each.ended_at_us)
        since_us = each.began_at_us - each.began_error_us
        later = bisect_right(begins, each.began_at_us)
        limits = [each.began_at_us + _SIGN_MAX_US, *(begin - 1 for begin in begins[later : later + 1])]
        until_us = min(limits if each.ended_at_us is None else [*limits, each.ended_at_us])
        signs = [sign.at_us for sign in _between(self._cut_off, since_us, until_us, _AT)[:1]]
        signs += [at_us for at_us in (each.lost_at_us, each.taken_over_at_us) if at_us is not None]
        return replace(each, detected_at_us=max(each.began_at_us, min(signs)) if signs else None)

    def _recovered(self, each: Incident) -> Incident:
        """Add recovered_at_us: both nodes are there again and know it."""
        if each.kind == "handover":
            return replace(each, recovered_at_us=each.taken_over_at_us)
        if each.kind in ("partition", "both-active") or (each.kind == "pause" and each.lost_at_us is None):
            return replace(each, recovered_at_us=each.ended_at_us)
        if each.kind == "pause":
            since_us = (each.ended_at_us or 0) - self.clock_error_us
        else:
            signs = (each.lost_at_us, each.ended_at_us, each.began_at_us)
            since_us = next(at_us for at_us in signs if at_us is not None)
        later = (one for one in _from(self._brokers, since_us + 1) if one.kind == "peer-seen")
        seen = next((one.at_us for one in later if each.kind == "start" or one.node != each.node), None)
        return replace(each, recovered_at_us=seen)


def overlaps(
    states: Sequence[State], runs: Sequence[Run], clock_error_us: int = CLOCK_ERROR_US
) -> list[Overlap]:
    """The times in which two nodes served at once for longer than their clocks may differ by.

    Nodes on one machine read the same monotonic clock, so next to nothing is allowed for; on two machines it
    is the clock error that the caller states, and by how much their clocks drifted apart meanwhile.
    """
    of_boot = {run.boot: run for run in runs}
    serving = sorted(_served(states), key=attrgetter("since_at_us", "node"))
    found = []
    for place, old in enumerate(serving):
        for new in islice(serving, place + 1, None):
            if new.since_at_us >= old.until_at_us:
                break
            if old.node == new.node:
                continue
            ours, theirs = of_boot[old.boot], of_boot[new.boot]
            if ours.machine and ours.machine == theirs.machine:
                allowed_us = min(SAME_CLOCK_ERROR_US, clock_error_us)
            else:
                allowed_us = clock_error_us + max(ours.clock_unsure_us, theirs.clock_unsure_us)
            until_us = min(old.until_at_us, new.until_at_us)
            if until_us - new.since_at_us > allowed_us:
                found.append(Overlap(new.since_at_us, until_us, old, new))
    return found


def _served(states: Iterable[State]) -> list[State]:
    """The times in which nodes served. A new epoch cuts an interval in two; for serving it is one."""
    served: list[State] = []
    for each in sorted(states, key=attrgetter("node", "since_at_us", "until_at_us")):
        if not each.is_serving or each.until_at_us <= each.since_at_us:
            continue
        last = served[-1] if served else None
        if last is not None and last.node == each.node and each.since_at_us <= last.until_at_us:
            epoch, until_us = max(last.epoch, each.epoch), max(last.until_at_us, each.until_at_us)
            served[-1] = replace(last, epoch=epoch, until_at_us=until_us)
        else:
            served.append(each)
    return served


# --- the points of a run's states ---------------------------------------------------------------------------

_Point = tuple[int, int, int, str, dict[str, Any]]
"""A moment at which something changes: at_us, what comes first of one moment, seq, mark, and what changes."""


def _state_at_first(node: _Node) -> str:
    """The state that its journal here begins with."""
    of_state = next((each.old for each in node.events if each.kind == "state"), None)
    return of_state or node.run.first_state or node.run.node.upper()


def _active_from(node: _Node) -> Event | None:
    """That a node served when its journal here begins."""
    run = node.run
    if not run.began_before or _state_at_first(node) != "ACTIVE":
        return None
    return Event(run.node, run.boot, 0, run.started_at_us, run.day, "active", epoch=run.first_epoch)


def _points(node: _Node) -> Iterable[_Point]:
    run = node.run
    epoch = next((each.epoch for each in node.events if each.kind == "started"), run.first_epoch)
    beginning = {"day": run.day, "state": _state_at_first(node), "epoch": epoch or 0, "is_away": False}
    beginning |= {"event": "START", "text": "The process began.", "votes": 0}
    yield run.started_at_us, 0, 0, "start", beginning
    changes: list[Event] = [each for each in node.events if each.kind in ("stall", "state", "active")]
    for before, each, after in zip([None, *changes], changes, [*changes[1:], None], strict=False):
        change = {"day": each.day, "text": each.text or "", "votes": each.votes or 0}
        epoch = each.epoch
        if each.kind == "stall":
            # A node that steps down because of it does so before it serves anything: the moment between its
            # two records is part of its absence.
            ended_us = after.at_us if after is not None and after.event == _AWAY else each.at_us
            yield each.at_us - (each.gap_us or 0), 3, each.seq, "stall", {"day": each.day, "is_away": True}
            yield ended_us, 1, each.seq, "stall", {"day": each.day, "is_away": False}
            continue
        if each.kind == "state":
            change |= {"state": each.new, "event": each.event}
            # A node that becomes active says so twice: what it is now, and in which epoch it serves.
            if each.new == "ACTIVE" and after is not None and after.kind == "active":
                epoch = after.epoch
        elif before is None or before.new != "ACTIVE":
            change |= {"state": "ACTIVE", "event": "EPOCH"}
        else:
            continue
        yield each.at_us, 2, each.seq, "state", change if epoch is None else {**change, "epoch": epoch}


# --- ends ---------------------------------------------------------------------------------------------------


def _text_of_end(
    node: _Node, fatal: Event | None, stopped: Event | None, exact_us: int | None, alive_us: int
) -> str:
    """How a node ended, who missed it, and when it came back."""
    run, loss, name = node.run, node.loss, node.run.node
    if fatal is not None:
        text = f"{name} gave up with exit status {fatal.exit_code}: {fatal.text}."
    elif run.is_clean and stopped is not None and stopped.reason == NOT_STARTED:
        text = (
            f"{name} did not start: its log says why, for example that another process has one of its ports."
        )
    elif run.is_clean:
        reason = f" ({stopped.reason})" if stopped is not None and stopped.reason else ""
        text = f"{name} was stopped in good order{reason}."
    else:
        text = f"{name} ended without a word: killed, crashed, or its machine went down."
    if loss is not None and loss.how == "gone":
        text += f" {loss.witness} was refused a connection to it at once."
    elif loss is not None and loss.how != "left":
        text += f" {loss.witness} missed it after {_seconds(loss.lost_at_us - loss.heard_at_us)} of silence."
    if node.next_us == _FOREVER:
        return f"{text} It was not started again in these journals."
    # Of a death without a word, the last sign of life is what is certain.
    since_us = alive_us if exact_us is None else exact_us
    certain = ", counted from its last sign of life." if exact_us is None else "."
    return f"{text} It was started again after {_seconds(node.next_us - since_us)}{certain}"


def _of_both(found: Iterable[Incident]) -> Iterable[Incident]:
    """Ends, where the crash of the second node while the first was gone is part of the first one's."""
    ends: list[Incident] = []
    for each in sorted(found, key=attrgetter("began_at_us", "node")):
        if ends and _is_second(ends[-1], each):
            first = ends.pop()
            text = f"{first.text} {each.text} So no node was there."
            ended = [at_us for at_us in (first.ended_at_us, each.ended_at_us) if at_us is not None]
            ends.append(replace(first, kind="both-crash", text=text, ended_at_us=min(ended, default=None)))
        else:
            ends.append(each)
    return ends


def _is_second(first: Incident, second: Incident) -> bool:
    """Whether ``second`` is of the peer of the node that crashed just before.

    The later start of the first would show its death, so what no node recorded was while none was there.
    """
    at_first_us = second.began_at_us - second.began_error_us
    return (
        first.kind == second.kind == "crash"
        and first.node != second.node
        and at_first_us <= first.began_at_us + first.began_error_us + _BOTH_US
        and at_first_us <= (_FOREVER if first.ended_at_us is None else first.ended_at_us)
    )


# --- small things -------------------------------------------------------------------------------------------


def _known(at_us: int) -> int | None:
    return None if at_us == _FOREVER else at_us


def _seconds(us: int) -> str:
    return f"{us / 1e6:.3f} s"


def _between(rows: Sequence[Any], since_us: int, until_us: int, at_us: Callable[[Any], int]) -> list[Any]:
    """Of rows in the order of ``at_us`` those of this time, both ends included."""
    return list(rows[bisect_left(rows, since_us, key=at_us) : bisect_right(rows, until_us, key=at_us)])


def _from(events: Sequence[Event], since_us: int) -> Iterator[Event]:
    """Of events in order those of this time and later."""
    return map(events.__getitem__, range(bisect_left(events, since_us, key=_AT), len(events)))


def _back_from(events: Sequence[Event], until_us: int) -> Iterator[Event]:
    """Of events in order those before this time, the latest first."""
    place = bisect_left(events, until_us, key=_AT)
    return map(events.__getitem__, range(place - 1, -1, -1))
