"""Which copies count: the leader's rules for committing with its peer, and without it.

    BEHIND   --> JOINING    all entries were sent: from now on none is committed without the peer
    JOINING  --> IN_SYNC    the peer's disk has all that was committed before: it is told so
    JOINING  --> BEHIND     it does not come that far in time
    IN_SYNC  --> BEHIND     no Ack for ``peer_timeout_s``, its disk fails, or it has restarted with less

The leader commits alone only in BEHIND, and only while the mark ``is_alone`` is stored. Until then an entry
waits, so the disks prove at every time which of them has everything.
"""

from bstar_broker.store.core.log import Log
from bstar_broker.store.core.peer import Ack, Standing

# After it failed to join, the peer gets so many of its timeouts to catch up before its next attempt, since
# nothing is committed while it joins.
_PAUSE_TIMEOUTS = 5


class Copies:
    """The peer's copy, for one leadership. ``is_heard``: the peer speaks, and its disk works."""

    def __init__(self, log: Log, peer_timeout_s: float) -> None:
        self._log = log
        self._peer_timeout_s = peer_timeout_s
        self.standing = Standing.BEHIND
        # The last Ack that it sent, and whether its stored mark says that it is in sync.
        self.heard = 0
        self.is_marked = False
        # It may believe until then that it is in sync; kept beyond the end of a leadership.
        self._lease_end = 0.0
        self._join_by = 0.0
        self._join_after = 0.0
        self._target = 0

    def lead(self, target: int, now: float, *, is_heard: bool) -> None:
        """A leadership begins. ``target``: up to where the peer must have the log to be in sync."""
        self._target = target
        self.heard = 0
        self.is_marked = False
        self._join_after = 0.0
        mark = self._log.mark
        assert mark is not None
        self.standing = Standing.BEHIND if mark.is_alone else Standing.JOINING
        self._join_by = max(self._lease_end, now + self._peer_timeout_s if is_heard else now)

    def leave(self) -> None:
        """The leadership ends, or the peer has restarted with less than is committed: it is not sure."""
        self.standing = Standing.BEHIND

    @property
    def may_commit_alone(self) -> bool:
        """True if an entry on this disk is committed."""
        mark = self._log.mark
        is_alone = mark is not None and mark.is_alone and self._log.is_marked
        return self.standing == Standing.BEHIND and is_alone

    def note_ack(self, ack: Ack, now: float) -> None:
        """The peer has read and stored what it was sent."""
        self.heard = ack.count
        self.is_marked = ack.is_in_sync
        if ack.error:
            # It relies on its copy no longer, and says so with this.
            self.standing = Standing.BEHIND
        elif self.standing == Standing.IN_SYNC:
            self._lease_end = now + self._peer_timeout_s

    def check(self, committed: int, acked: int, now: float, *, is_heard: bool, is_sent: bool) -> bool:
        """Move on. ``acked``: the peer's disk has the log up to there; ``is_sent``: all entries were sent to
        it. True if the peer must hear of a change.
        """
        before = self.standing
        if before == Standing.IN_SYNC and now >= self._lease_end:
            self.standing = Standing.BEHIND
        elif before == Standing.JOINING and acked >= max(self._target, committed) and is_heard:
            self.standing = Standing.IN_SYNC
            self._lease_end = now + self._peer_timeout_s
        elif before == Standing.JOINING and now >= self._join_by:
            self.standing = Standing.BEHIND
            self._join_after = now + (_PAUSE_TIMEOUTS * self._peer_timeout_s if is_heard else 0.0)
        elif before == Standing.BEHIND and is_sent and is_heard and now >= self._join_after:
            self.standing = Standing.JOINING
            self._join_by = now + self._peer_timeout_s
        return self.standing != before
