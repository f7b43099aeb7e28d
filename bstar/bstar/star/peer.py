"""Sorts the messages on the state link: the peer's present run, its earlier runs, and strangers.

A run numbers its messages, and the numbers increase. A message is late if its number does not increase or a
later run has replaced its run. It must not undo younger messages. If late messages go on for a failover
timeout, they are right and the number is wrong (``Streak``). A stranger is a node that cannot be our peer
(``texts.mismatch`` says why); each is reported once. A rival is a node with our role and our peer, which
hears it. ``StarMachine`` decides whether the peer lives and what its messages mean.
"""

import enum
from typing import NamedTuple

from bstar.wire.peer import PeerState

# A peer names a dead run of ours for one failover timeout, plus the time that its messages travel.
RIVAL_TIMEOUTS = 3

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


class Streak(NamedTuple):
    """Late messages of one run with increasing numbers, while no other message was believed.

    A number that the run never reached (forged, or damaged) makes all its true messages late. Late messages
    of an honest link come in a burst or stop soon. Those that go on for the failover timeout are the run's
    own. By then every earlier ballot has run out, so even an old message cannot free a ballot on which the
    peer relies.
    """

    node: str
    seq: int
    since: float
    rose_at: float


class PeerRuns:
    """The run of the peer that spoke last, its last number, and the runs before it with theirs."""

    def __init__(self) -> None:
        self.node: str | None = None
        self.seq = 0
        self.is_native = False  # speaks more than the published one-frame message
        self.past: dict[str, int] = {}
        self.streak: Streak | None = None

    def is_late(self, message: PeerState, now: float, silence_s: float, *, may_return: bool) -> bool:
        """True if younger messages were heard. Takes note of a late one, for it may belong to a streak. An
        earlier run is over, unless the later one turned out to be a passing guest: then it ``may_return``.
        """
        if message.node is None or message.seq is None:
            return False
        if message.node == self.node:
            last_seq = self.seq
        elif message.node not in self.past:
            return False
        elif may_return:
            last_seq = self.past[message.node]
        else:
            return True
        return message.seq <= last_seq and not self._goes_on(message.node, message.seq, now, silence_s)

    def _goes_on(self, node: str, seq: int, now: float, silence_s: float) -> bool:
        """True if late messages have increased for ``silence_s``, without a pause as long as that.

        A number that does not increase counts for nothing, so repetitions neither lengthen nor end a streak.
        """
        streak = self.streak
        if streak is None or now - streak.rose_at >= silence_s:
            self.streak = Streak(node, seq, since=now, rose_at=now)
            return False
        if node != streak.node or seq <= streak.seq:
            return False
        self.streak = streak._replace(seq=seq, rose_at=now)
        return now - streak.since >= silence_s

    def recognise(self, message: PeerState) -> bool:
        """Note the run and its number. True if the run is a new one."""
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
        self.streak = None
        self.is_native = message.node is not None
        return is_other


class Strangers:
    """The strangers that were reported, with the reasons."""

    def __init__(self) -> None:
        self.reported: dict[tuple[str | None, str], None] = {}

    def is_news(self, node: str | None, reason: str) -> bool:
        """True once for each ``node`` and ``reason``."""
        key = (node, reason)
        if key in self.reported:
            return False
        while len(self.reported) >= PEER_RUNS_MAX:
            del self.reported[next(iter(self.reported))]
        self.reported[key] = None
        return True


class Rival:
    """The run that the peer hears and that is not ours, and since when it names it.

    After a restart that is our own earlier run, until the peer has heard us or has found that run silent. A
    run that it goes on hearing for ``RIVAL_TIMEOUTS`` failover timeouts is another process. While the peer is
    silent nothing is counted: its first messages after that may be old.
    """

    def __init__(self) -> None:
        self._node = ""
        self._since = 0.0
        self._heard_at = 0.0

    def is_there(self, hears: str, node: str, now: float, silence_s: float) -> bool:
        """Note which run the peer hears. True if it is certainly another node than ours."""
        if hears != self._node or now - self._heard_at >= silence_s:
            self._node = hears
            self._since = now
        self._heard_at = now
        return hears not in ("", node) and now - self._since >= RIVAL_TIMEOUTS * silence_s
