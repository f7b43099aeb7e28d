"""The pair's log: reports of the Binary Star, pauses of the process, and lasting troubles.

A report of the machine has its own level and sentence (``bstar.star.outputs``). Of unsuccessful claims, only
the first is logged. A trouble that needs an operator is logged again every REMIND_S.
"""

import logging
import math

from bstar.star import ArbiterSeen, Claimed, PeerSeen, Report, StateChanged

_log = logging.getLogger("bstar.pair")

# Two nodes that start together, by hand or by a supervisor, have met by then.
FIRST_S = 5.0
# Often enough to be in the part of a log that people read, seldom enough not to fill it.
REMIND_S = 60.0


class PairLog:
    """Logs a node's events and its lasting troubles. Call ``remind`` each second."""

    def __init__(self, now: float) -> None:
        self._has_claimed = False
        self._trouble = ""
        self._trouble_since = now
        self._remind_at = math.inf

    def report(self, output: Report) -> None:
        """Log a report. While no claim succeeds, each request makes another: only the first is logged."""
        level = output.level
        if type(output) is Claimed:
            level = logging.DEBUG if self._has_claimed else level
            self._has_claimed = True
        elif type(output) in (StateChanged, PeerSeen, ArbiterSeen):
            self._has_claimed = False
        _log.log(level, "%s", output.text)

    def stalled(self, gap_s: float, age_s: float, limit_s: float, *, is_heeded: bool) -> None:
        """The process was away for ``gap_s``, and its last state message is ``age_s`` old, by which the peer
        judges it: after ``limit_s`` the peer may take over. ``is_heeded``: that changed something.
        """
        level = logging.WARNING if is_heeded or age_s >= limit_s else logging.DEBUG
        text = (
            "the process was away for %.3f s; its last state message is %.3f s old, the failover timeout %g s"
        )
        _log.log(level, text, gap_s, age_s, limit_s)

    def remind(self, trouble: str, now: float) -> None:
        """Log at WARNING why this node cannot play its part, and what to do; repeat it while it lasts."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._trouble_since = now
            self._remind_at = now + FIRST_S
        if trouble and now >= self._remind_at:
            self._remind_at = now + REMIND_S
            _log.warning("for %.0f s: %s", now - self._trouble_since, trouble)
