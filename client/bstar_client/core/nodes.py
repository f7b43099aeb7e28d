"""What a native client knows of one node: its connection, its last status, and whether it is silent.

A node's status ages. What it said about the time until a request could turn it active is kept as a moment
on the client's clock (``_turns_at``), so that it stays right without asking again.
"""

import math

from bstar.wire.messages import NEVER_MS, NodeStatus

__all__ = ["ACTIVE", "Node"]

ACTIVE = 3
_STATE_NAMES = {1: "PRIMARY, starting", 2: "BACKUP, starting", 3: "ACTIVE", 4: "PASSIVE", 5: "ERROR"}

# A node that says "now" and refuses again and again is asked less and less often.
_ASK_PAUSE_MIN_S = 0.01
_ASK_PAUSE_MAX_S = 0.25
# Longer than a PONG takes, shorter than callers wait.
_LOOK_FIRST_S = 0.25


class Node:
    """One endpoint. ``connection`` is a number that no other connection of this client had or will have."""

    def __init__(self, index: int, endpoint: str, now: float) -> None:
        self.index = index
        self.endpoint = endpoint
        self.connection = 0
        self.is_connected = False
        # Did its last attempt to connect fail, or its last connection break?
        self.was_refused = False
        self.is_silent = False
        self.takes_batches = False
        self.obeys_once = False
        self.status: NodeStatus | None = None
        self.is_active = False
        self.epoch = 0
        # When the first PING was sent that nothing has answered; None: all is answered.
        self.pinged_at: float | None = None
        self.heard_at: float | None = None
        # When a request could turn it active.
        self._turns_at = 0.0
        self._refusals = 0
        # After a refusal it is left in peace until then, whatever it says meanwhile.
        self._rests_until = 0.0
        # At the latest then it is asked, however often it says that its peer lives: that peer may live and be
        # out of this client's reach.
        self._ask_by = math.inf
        self._created_at = now

    def connect(self, connection: int) -> None:
        """A new connection is up; what the last one said is forgotten."""
        self.connection = connection
        self.is_connected = True
        self.was_refused = False
        self._forget()

    def disconnect(self) -> None:
        """The connection broke, or an attempt to connect failed."""
        self.is_connected = False
        self.was_refused = True
        self._forget()

    def begin_anew(self, now: float) -> None:
        """There is a new socket, as at the beginning."""
        self.is_connected = False
        self.was_refused = False
        self._created_at = now
        self._forget()

    def _forget(self) -> None:
        self.is_silent = False
        self.takes_batches = False
        self.obeys_once = False
        self.is_active = False
        self.status = None
        self.pinged_at = None
        self.heard_at = None
        self._turns_at = 0.0
        self._refusals = 0
        self._rests_until = 0.0

    def seek(self, now: float, patience_s: float) -> None:
        """The client follows no node, and looks for one from now on. ``patience_s`` is the failover timeout,
        after which a successor would be there. Where it has looked before, a PONG may come first.
        """
        looks_until = now + min(patience_s, _LOOK_FIRST_S)
        self._ask_by = max(min(self._ask_by, now + patience_s), looks_until)

    def rest(self) -> None:
        """The client follows a node."""
        self._ask_by = math.inf

    def tell(self, status: NodeStatus, now: float) -> None:
        """Take the status that it told in a PONG."""
        self.status = status
        self.takes_batches = status.takes_batches
        self.obeys_once = status.obeys_once
        self.is_active = status.state == ACTIVE
        if self.is_active:
            self.epoch = status.epoch
            self._refusals = 0
            self._rests_until = 0.0
            self._turns_at = now
        elif status.retry_after_ms == NEVER_MS:
            self._turns_at = math.inf
        else:
            # A vote that was refused a moment ago is not repeated because of a PONG that was on its way; nor
            # do PONGs, which come more often than votes, put the next one off.
            self._turns_at = max(now + status.retry_after_ms / 1000, self._rests_until)

    @property
    def ask_at(self) -> float:
        """When it is to be asked, if no node is followed then; never, if no request could turn it active."""
        if self._turns_at == math.inf:
            return math.inf
        return max(min(self._turns_at, self._ask_by), self._rests_until)

    def refuse(self, status: NodeStatus, now: float, retry_after_max_s: float) -> None:
        """Take the status that it told in a NOT_ACTIVE. A burst of them is one refusal."""
        if now >= self._rests_until:
            self._refusals += 1
            self._rests_until = now + min(self._ask_pause_s(), retry_after_max_s)
        self._ask_by = now + retry_after_max_s
        self.tell(status, now)

    def _ask_pause_s(self) -> float:
        return min(_ASK_PAUSE_MIN_S * 2.0 ** min(self._refusals - 1, 8), _ASK_PAUSE_MAX_S)

    def is_settled(self, now: float, patience_s: float) -> bool:
        """Not connected: is it known, or long enough unknown, that it will not answer soon?"""
        return self.was_refused or now >= self.settles_at(patience_s)

    def settles_at(self, patience_s: float) -> float:
        """When a node of which nothing was heard since the client began is no longer waited for."""
        return self._created_at + patience_s

    def describe(self, now: float) -> str:
        """What is known of it, for the text of an error."""
        if not self.is_connected:
            return f"{self.endpoint}: {'refused' if self.was_refused else 'not connected yet'}"
        if self.is_silent or self.status is None:
            since = self.heard_at if self.heard_at is not None else self.pinged_at
            return (
                f"{self.endpoint}: silent for {now - since:.1f} s"
                if since is not None
                else f"{self.endpoint}: silent"
            )
        if self.is_active:
            return f"{self.endpoint}: active"
        peer = _STATE_NAMES.get(self.status.peer_state, "silent")
        state = _STATE_NAMES.get(self.status.state, "unknown")
        return f"{self.endpoint}: not active ({state}), its peer {peer}"
