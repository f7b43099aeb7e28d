"""What the log says of the pair: for each output of the Binary Star a level and a sentence.

INFO is the ordinary course: a start, a stop, an operator's handover, a peer that comes. WARNING is what
somebody may have to act upon, or will look for after an incident: the role moved by itself, a node is lost or
was away, nobody confirms it, clients are cut off. A state that lasts and needs somebody is told again every
REMIND_S.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

from bstar.star import (
    Activated,
    ArbiterLost,
    ArbiterSeen,
    Claimed,
    ClientsCutOff,
    Deactivated,
    Event,
    HandoverRefused,
    PeerAsked,
    PeerLost,
    PeerRejected,
    PeerSeen,
    State,
    StateChanged,
)

__all__ = ["FIRST_S", "REMIND_S", "PairLog", "line"]

_log = logging.getLogger("bstar.pair")

# Two nodes that are started together, by hand or by a supervisor, have met by then.
FIRST_S = 5.0
# Often enough to be in the part of a log that somebody reads, seldom enough not to fill it.
REMIND_S = 60.0

# What moves the role with nobody having asked for it: away from this node, or to it.
_GIVEN_UP = frozenset(
    {Event.PEER_ACTIVE, Event.STALL, Event.MAJORITY_LOST, Event.EPOCH_LEARNED, Event.CLIENTS_CUT_OFF}
)
_TAKEN_OVER = frozenset(
    {Event.CLIENT_REQUEST, Event.PEER_PRIMARY, Event.PEER_BACKUP, Event.MAJORITY_WON, Event.PROMOTE}
)


def line(output: object) -> tuple[int, str] | None:
    """The level and the sentence for an output; None if the log says nothing of it."""
    make = _LINES.get(type(output))
    return None if make is None else make(output)


class PairLog:
    """Logs what happens to one node, and what goes on for too long (``remind``, to be called each second)."""

    def __init__(self, failover_timeout_s: float, now: float) -> None:
        self._failover_timeout_s = failover_timeout_s
        self._has_claimed = False
        self._trouble = ""
        self._trouble_since = now
        self._remind_at = math.inf

    def report(self, output: object) -> None:
        """Log an output. Claims that lead to nothing are told once: each request makes another."""
        told = line(output)
        if told is None:
            return
        level, text = told
        if type(output) is Claimed:
            level = logging.DEBUG if self._has_claimed else level
            self._has_claimed = True
        elif type(output) in (StateChanged, PeerSeen, ArbiterSeen):
            self._has_claimed = False
        _log.log(level, "%s", text)

    def stalled(self, gap_s: float, *, is_heeded: bool) -> None:
        """The process was away; ``is_heeded``: it changed something."""
        limit_s = self._failover_timeout_s
        level = logging.WARNING if is_heeded or gap_s >= limit_s else logging.DEBUG
        _log.log(level, "the process was away for %.3f s; the failover timeout is %g s", gap_s, limit_s)

    def remind(self, trouble: str, now: float) -> None:
        """Log at WARNING what keeps this node from its part, and what to do; again while it lasts."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._trouble_since = now
            self._remind_at = now + FIRST_S
        if trouble and now >= self._remind_at:
            self._remind_at = now + REMIND_S
            _log.warning("for %.0f s: %s", now - self._trouble_since, trouble)


def _level_of_change(change: StateChanged) -> int:
    is_given_up = change.old is State.ACTIVE and change.event in _GIVEN_UP
    is_taken_over = change.old is State.PASSIVE and change.new is State.ACTIVE and change.event in _TAKEN_OVER
    is_trouble = is_given_up or is_taken_over or change.new is State.ERROR
    return logging.WARNING if is_trouble else logging.INFO


def _peer_lost(lost: PeerLost) -> tuple[int, str]:
    if lost.has_left:
        return logging.INFO, "peer has left"
    if lost.is_gone:
        text = f"peer is gone: its endpoint refuses connections, {lost.silent_s:.3f} s after its last word"
        return logging.WARNING, text
    return logging.WARNING, f"peer silent for {lost.silent_s:.3f} s"


def _cut_off(told: ClientsCutOff) -> str:
    others = f"; {told.unserved} more ask for services without a worker there" if told.unserved else ""
    return (
        f"{told.clients} clients have reached only the passive node for {told.for_s:.1f} s{others}: "
        f"this node {told.verdict}"
    )


_LINES: dict[type, Callable[[Any], tuple[int, str]]] = {
    Activated: lambda it: (logging.INFO, f"active in epoch {it.epoch}: {it.reason}"),
    Deactivated: lambda it: (logging.INFO, f"no longer active: {it.reason}"),
    StateChanged: lambda it: (
        _level_of_change(it),
        f"{it.old.name} -> {it.new.name} on {it.event.name}: {it.reason}",
    ),
    PeerSeen: lambda it: (logging.INFO, f"peer is there: {it.state.name}, run {it.node or 'unknown'}"),
    PeerLost: _peer_lost,
    PeerAsked: lambda it: (logging.INFO, f"asked the peer whether it serves: {it.reason}"),
    PeerRejected: lambda it: (logging.ERROR, f"peer rejected: {it.text}"),
    HandoverRefused: lambda it: (logging.WARNING, f"the role stays: {it.text}"),
    ClientsCutOff: lambda it: (logging.WARNING, _cut_off(it)),
    Claimed: lambda it: (logging.INFO, f"claims the majority: {it.reason}"),
    ArbiterSeen: lambda it: (logging.INFO, "arbiter is there"),
    ArbiterLost: lambda it: (
        logging.WARNING,
        f"arbiter has not answered for {it.silent_s:.3f} s: if the peer is lost as well, nobody serves",
    ),
}
