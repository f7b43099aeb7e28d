"""The side that appends, sends, counts copies and commits. It also serves a peer without leading.

``Copies`` has the rules for committing with the peer, and without it:

    BEHIND   --> JOINING    all entries were sent: from now on none is committed without the peer
    JOINING  --> IN_SYNC    the peer's disk has all that was committed before: the leader says so
    JOINING  --> BEHIND     it does not come that far in time
    IN_SYNC  --> BEHIND     no Ack for ``peer_timeout_s``, its disk fails, or it has restarted with less

The leader commits alone only in BEHIND, and only while the mark ``is_alone`` is stored. Until then an entry
waits, so the disks prove at every time which of them has everything.
"""

from typing import Final, cast

from bstar_broker.core.outputs import Notice, Output
from bstar_broker.store.core import commands
from bstar_broker.store.core.commands import Began
from bstar_broker.store.core.entries import START, Entry, History, Position
from bstar_broker.store.core.events import AskArbiter, Exported, LogRead, ToPeer, Trim, Write
from bstar_broker.store.core.feeder import Feeder
from bstar_broker.store.core.in_sync import BOTH
from bstar_broker.store.core.log import Log
from bstar_broker.store.core.peer import EPOCHS_MAX, NOTHING, Ack, Entries, Hello, Part, Standing, rank
from bstar_broker.store.core.records import Record
from bstar_broker.store.core.site import Site

# Of the first epoch of a pair, or after the loss of both disks.
NEW_STORE: Final = Notice("a new store begins, and it is empty")
# Applied entries that stay in the log although every copy has them, and how many go at once.
_KEPT: Final = 1_000
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


class Leader:
    """The leader's part of ``site``."""

    def __init__(self, site: Site) -> None:
        self._site = site
        settings = site.settings
        self.copies = Copies(site.log, settings.peer_timeout_s)
        self.feeder = Feeder(site.log, settings.catch_up_bytes_s, self._entries, self._part)
        # The first entry of this epoch until it is synced, then 0. Nothing is sent in the epoch before: after
        # a crash this disk would not know of the epoch, and the next run would use it again.
        self._began = 0
        # With an arbiter: the peer's disk vouches for nothing, and was not in sync since.
        self._is_peer_new = False

    # --- the leadership -------------------------------------------------------------------------------------

    def begin(self, now: float, *, is_alone: bool = False) -> list[Output]:
        """Lead in a new epoch. ``is_alone``: without the peer's copy, whatever it has."""
        site, log = self._site, self._site.log
        site.epoch = site.epoch_max = site.next_epoch()
        at = Position(site.epoch, log.last.number + 1)
        entry = Entry.of(at, log.at_ms, commands.encode([Began(site.role)]))
        site.is_forced = is_alone
        is_new = log.mark is None
        log.mend()
        mark = site.mark(is_in_sync=True, is_alone=is_alone or self.was_alone)
        write = log.write([entry], mark=mark)
        self._began = at.number
        self.feeder.stop()
        site.in_sync.lead(site.epoch, is_forced=is_alone)
        self.copies.lead(at.number, now, is_heard=site.peer.is_heard)
        hello = site.peer.hello
        is_met = site.peer.is_fresh and hello is not None
        notices = [NEW_STORE] if is_new else []
        return [*notices, write, site.say_hello(asks=not is_met), *self.advance(now)]

    @property
    def is_peer_whole(self) -> bool:
        """True if both disks and the arbiter say that the peer's copy has all."""
        is_marked = not self._site.is_alone and self._site.log.is_marked and not self.was_alone
        is_in_sync = self.copies.standing == Standing.IN_SYNC and self.copies.is_marked
        return is_in_sync and is_marked and self._site.in_sync.are_both_granted

    def leave(self) -> None:
        """Lead no more; what is not committed may be dropped."""
        self._site.epoch = 0
        self._site.is_forced = False
        self._began = 0
        self.copies.leave()
        self.feeder.stop()

    def propose(self, encoded: bytes, at_ms: int, now: float) -> list[Output]:
        """Append an entry, here and at the peer."""
        site, log = self._site, self._site.log
        assert site.epoch, "only the leader appends"
        at = Position(site.epoch, log.last.number + 1)
        write = log.write([Entry.of(at, max(at_ms, log.at_ms), encoded)])
        return [write, *self.pump(now)]

    # --- the peer's copy ------------------------------------------------------------------------------------

    def feed(self, hello: Hello, now: float) -> list[Output]:
        """Send the peer what it lacks, by what its Hello says that it has."""
        if hello.must is not None:
            # Its copy is damaged, and is set aside before it takes anything.
            self.copies.leave()
            self.feeder.stop()
            return self.advance(now)
        if self._began:
            return self.advance(now)
        site, log = self._site, self._site.log
        common = log.history.common(History(hello.epochs, hello.last)).number
        needs_table = hello.applied > common
        synced = min(common, hello.synced)
        self._is_peer_new = site.in_sync.is_on and rank(hello) == NOTHING and not hello.is_doubtful
        if needs_table or synced < site.committed or not self._may_join:
            self.copies.leave()
        outputs: list[Output] = [*self.feeder.begin(common, synced, needs_table=needs_table)]
        return [*outputs, *self.pump(now), *self.advance(now), *self.heartbeat()]

    def acknowledge(self, ack: Ack, now: float) -> list[Output]:
        """The peer's disk has more, or fails."""
        site = self._site
        site.peer.error = ack.error
        self.copies.note_ack(ack, now)
        if ack.error:
            return self.advance(now)
        if ack.number < self.feeder.acked:
            # Its disk does not have what it had: hear what it has.
            self.copies.leave()
            return [*self.advance(now), *site.ask(now)]
        self.feeder.acknowledge(ack.number)
        self.feeder.stored(ack.parts, ack.number, now)
        return [*self.pump(now), *self.advance(now)]

    def written(self, now: float) -> list[Output]:
        """More is synced here."""
        site = self._site
        if not self._began or site.log.synced < self._began:
            return self.advance(now)
        self._began = 0
        hello = site.peer.hello
        return self.feed(hello, now) if hello is not None and site.peer.is_fresh else self.advance(now)

    def pump(self, now: float) -> list[Output]:
        """Send what may be sent now."""
        if self._site.peer.error:
            return []
        return self.feeder.pump(now, is_paced=self.copies.standing == Standing.BEHIND)

    def log_read(self, given: LogRead, now: float) -> list[Output]:
        """Entries for the peer that were not in memory."""
        return [*self.feeder.log_read(given, now), *self.pump(now)]

    def exported(self, given: Exported, now: float) -> list[Output]:
        """A part of the table for the peer."""
        return [*self.feeder.exported(given, now), *self.pump(now)]

    def deadline(self) -> float | None:
        """When ``pump`` may send more."""
        is_paced = self.copies.standing == Standing.BEHIND and not self._site.peer.error
        return self.feeder.deadline() if is_paced else None

    def advance(self, now: float) -> list[Output]:
        """What follows from time, Acks and syncs: the peer's standing, the marks, and what is committed."""
        site, log, copies = self._site, self._site.log, self.copies
        if not site.epoch:
            return []
        outputs: list[Output] = []
        is_sent = self.feeder.is_on and self.feeder.table is None and self.feeder.next > log.last.number
        is_sent = is_sent and self._may_join
        is_heard = site.peer.is_heard and not site.peer.error
        acked = self.feeder.acked if self._may_join else 0
        while copies.check(site.committed, acked, now, is_heard=is_heard, is_sent=is_sent):
            outputs += self.heartbeat()
        if copies.standing == Standing.IN_SYNC:
            self._is_peer_new = False
        outputs += self._claim(now)
        mark = self._new_mark()
        if mark is not None:
            outputs.append(mark)
        may_be_alone = copies.may_commit_alone and site.in_sync.may_be_alone
        committed = log.synced if may_be_alone else min(log.synced, acked)
        if committed > site.committed:
            site.committed = committed
            outputs.append(log.write(apply_to=committed))
        return outputs

    @property
    def _may_join(self) -> bool:
        """True if the peer's copy may count. A new disk proves nothing of the one before it, which may have
        gone on alone: it joins a leader that was granted to be alone, or that begins a new store.
        """
        return not self._is_peer_new or self.was_alone or self._site.committed == 0

    @property
    def was_alone(self) -> bool:
        """What the last mark says that was ordered."""
        return self._site.log.mark is not None and self._site.log.mark.is_alone

    def _claim(self, now: float) -> list[AskArbiter]:
        """What the arbiter must know of the copies that count."""
        site, mark = self._site, self._site.log.mark
        assert mark is not None
        if self.copies.standing == Standing.BEHIND:
            return site.in_sync.claim(mark.store, (site.role,), now)
        if self.copies.standing == Standing.IN_SYNC and not mark.is_alone and site.log.is_marked:
            return site.in_sync.claim(mark.store, BOTH, now)
        return []

    def _new_mark(self) -> Write | None:
        site, standing = self._site, self.copies.standing
        if site.is_forced and site.log.is_marked:
            site.is_forced = False
        if standing == Standing.BEHIND and not self.was_alone and site.in_sync.may_be_alone:
            return site.log.write(mark=site.mark(is_in_sync=True, is_alone=True))
        if standing == Standing.IN_SYNC and self.was_alone and self.copies.is_marked:
            return site.log.write(mark=site.mark(is_in_sync=True, is_alone=False))
        return None

    # --- messages -------------------------------------------------------------------------------------------

    def heartbeat(self) -> list[ToPeer]:
        """Tell the peer how things are, if its log is known."""
        if not self.feeder.is_on:
            return []
        return [self._entries(START if self.feeder.table is not None else self.feeder.prev, [])]

    def _entries(self, prev: Position, entries: list[Entry]) -> ToPeer:
        site, standing = self._site, self.copies.standing
        heard = self.copies.heard if standing == Standing.IN_SYNC else 0
        last = site.log.last.number
        message = Entries(
            site.run, site.epoch, prev, entries, site.committed, last, standing, heard, site.is_alone
        )  # fmt: skip
        return site.send(message)

    def _part(self, given: Exported, index: int) -> ToPeer:
        site = self._site
        applied, epochs = None, list[Position]()
        if given.is_last:
            applied = given.applied
            epochs = [first for first in site.log.history.epochs if first.number <= applied.number]
        message = Part(
            site.run,
            site.epoch,
            index,
            site.is_alone,
            # Encoded already, as Part has them.
            cast("list[Record]", given.records),
            applied,
            given.at_ms,
            epochs[-EPOCHS_MAX:],
        )
        return site.send(message)

    # --- the log's length -----------------------------------------------------------------------------------

    def trim(self) -> list[Trim]:
        """Drop what every copy has, and what is too much to keep for a peer that is away."""
        site, log, feeder = self._site, self._site.log, self.feeder
        keep = log.applied - _KEPT
        if feeder.is_on:
            keep = min(keep, feeder.acked if feeder.base is None else feeder.base)
        elif site.epoch:
            settings = site.settings
            keep = min(keep, max(log.last.number - settings.log_entries, log.beyond(settings.log_bytes)))
        if keep - log.first < _KEPT:
            return []
        log.first = keep
        return [Trim(keep)]
