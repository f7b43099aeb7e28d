"""Who speaks on the peer's line: which run of the peer, earlier runs whose messages come late, and strangers.

A run numbers its messages, and the numbers increase. A message whose number does not, or of a run that a
later one has replaced, is late and must not undo what younger ones said. A stranger is whoever cannot be our
peer (``texts.mismatch`` says why); each is reported once. Whether the peer lives, and what its word means,
is the matter of ``StarMachine``.
"""

import enum

from bstar.wire.peer import PeerState

__all__ = ["Ignored", "PeerRuns", "Strangers"]

# Earlier runs of the peer whose late messages are recognised, and strangers that are reported once each. A
# peer that restarts in a loop must not grow the tables.
PEER_RUNS_MAX = 16


class Ignored(enum.StrEnum):
    """Why a peer message was not taken for a sign of life. Also the label of a metric."""

    STALE = "stale"  # its number does not increase, or it is of an earlier run of the peer
    BACKLOG = "backlog"  # older than our question
    MISMATCH = "mismatch"  # of a node that cannot be our peer
    EPOCH = "epoch"  # names an epoch that cannot be
    INVALID = "invalid"  # no state message at all


class PeerRuns:
    """The run of the peer that spoke last, its last number, and the runs before it with theirs."""

    def __init__(self) -> None:
        self.node: str | None = None
        self.seq = 0
        self.is_native = False  # speaks more than the published one-frame message
        self.past: dict[str, int] = {}

    def is_late(self, message: PeerState, *, may_return: bool) -> bool:
        """Whether younger messages were heard. An earlier run is over, unless the later one turned out to be
        a passing guest: then it ``may_return``.
        """
        if message.node is None or message.seq is None:
            return False
        if message.node == self.node:
            return message.seq <= self.seq
        last_seq = self.past.get(message.node)
        return last_seq is not None and not (may_return and message.seq > last_seq)

    def recognise(self, message: PeerState) -> bool:
        """Take note of which run speaks, and of its number. True if it is another one than before."""
        is_other = message.node != self.node
        if is_other:
            if self.node is not None:
                while len(self.past) >= PEER_RUNS_MAX:
                    del self.past[next(iter(self.past))]
                self.past[self.node] = self.seq
            if message.node is not None:
                self.past.pop(message.node, None)
            self.node = message.node
        self.seq = message.seq or 0
        self.is_native = message.node is not None
        return is_other


class Strangers:
    """Who was reported, and why."""

    def __init__(self) -> None:
        self.reported: dict[tuple[str | None, str], None] = {}

    def is_news(self, node: str | None, reason: str) -> bool:
        """Whether ``node`` was not reported for ``reason`` yet; from now on it was."""
        key = (node, reason)
        if key in self.reported:
            return False
        while len(self.reported) >= PEER_RUNS_MAX:
            del self.reported[next(iter(self.reported))]
        self.reported[key] = None
        return True
