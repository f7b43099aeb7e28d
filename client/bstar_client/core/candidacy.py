"""When a node gets a vote: a request that may turn it active (zguide, chapter 4, Binary Star).

A node reports how long it takes until a vote could make it active. One that refuses votes gets them less
often. One that no vote can make active gets none.
"""

import math

from bstar.wire.messages import NEVER_MS, NodeStatus

ACTIVE = 3

# If a node says "now" and still refuses, the client sends it votes ever less often.
_VOTE_PAUSE_MIN_S = 0.01
_VOTE_PAUSE_MAX_S = 0.25
# Longer than a PONG takes, shorter than callers wait.
_LOOK_FIRST_S = 0.25


class Candidacy:
    """When to send one node a vote."""

    def __init__(self) -> None:
        # When a request could turn it active.
        self._turns_at = 0.0
        self._refusals = 0
        # After a refusal the client sends it no vote before then.
        self._rests_until = 0.0
        # It gets a vote at this time at the latest, even if it hears its peer: the peer may be out of
        # this client's reach.
        self._vote_by = math.inf

    def restart(self) -> None:
        """Forget what the node said. A search goes on."""
        self._turns_at = 0.0
        self._refusals = 0
        self._rests_until = 0.0

    def start_search(self, now: float, patience_s: float) -> None:
        """The client follows no node and starts to search. ``patience_s`` is the failover timeout, after
        which a successor serves.
        """
        looks_until = now + min(patience_s, _LOOK_FIRST_S)
        self._vote_by = max(min(self._vote_by, now + patience_s), looks_until)

    def end_search(self) -> None:
        """The client follows a node."""
        self._vote_by = math.inf

    def hear(self, status: NodeStatus, now: float) -> None:
        """The node sent its status."""
        if status.state == ACTIVE:
            self._refusals = 0
            self._rests_until = 0.0
            self._turns_at = now
        elif status.retry_after_ms == NEVER_MS:
            self._turns_at = math.inf
        else:
            # A late PONG does not repeat a vote that was just refused. PONGs come more often than votes, and
            # do not delay the next one.
            self._turns_at = max(now + status.retry_after_ms / 1000, self._rests_until)

    def refuse(self, now: float, retry_after_max_s: float) -> None:
        """The node refused a request. A burst of refusals is one."""
        if now >= self._rests_until:
            self._refusals += 1
            pause_s = min(_VOTE_PAUSE_MIN_S * 2.0 ** min(self._refusals - 1, 8), _VOTE_PAUSE_MAX_S)
            self._rests_until = now + min(pause_s, retry_after_max_s)
        self._vote_by = now + retry_after_max_s

    @property
    def vote_at(self) -> float:
        """When to send the vote, if the client follows no node then; inf if none could make it active."""
        if self._turns_at == math.inf:
            return math.inf
        return max(min(self._turns_at, self._vote_by), self._rests_until)
