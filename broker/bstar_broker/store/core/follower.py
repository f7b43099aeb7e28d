"""The side that takes log and table over from the peer, and knows whether it may rely on its copy.

A follower is *sure* that nothing acknowledged is missing here from the moment when the leader says so, until
something speaks against it. Its lease tells for how long the leader cannot commit alone: a leader waits for
``peer_timeout_s`` from the last Ack that it read, and what it writes afterwards names this Ack. So for this
time from the *sending* of that Ack, less 10 % for the clocks, it does not commit alone. If the leader is
heard to live after the end of the lease, by whatever way, it may commit alone by then: the follower is not
sure until a younger message says that it is in sync. If it is not heard, it has died before it could commit
alone, or nothing comes through at all, which looks the same as its death (docs/adr/0023-replicated-
store.md).

A node that is alone gives its own entries up only to a log that has them, or to a node that is alone, too.
"""

from collections import deque

from bstar_broker.core.outputs import Notice, Output
from bstar_broker.store.core.entries import History
from bstar_broker.store.core.events import Mark, ToPeer, Write
from bstar_broker.store.core.peer import Ack, Entries, Part, Standing
from bstar_broker.store.core.site import Site

# The part of the leader's patience on which the follower relies; the rest is for clocks that differ
# (docs/adr/0005-arbiter.md).
LEASE_FACTOR = 0.9
# Acks that wait for their echo; the oldest beyond count as lost.
_ACKS_MAX = 1_000
_NO_LEADER = -1
# A follower applies what is committed once it has so much of it, or with the next heartbeat: many small
# entries are one transaction.
_APPLY_BYTES = 64 << 10

# Of an Ack: epoch, number, is_in_sync, parts, error.
_Stored = tuple[int, int, bool, int, str]


class Follower:
    """The follower's part of ``site``.

    ``epoch``: that of the leader that is followed, 0 of a source that does not lead. ``matched``: this log
    is the peer's up to there.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lease_s = LEASE_FACTOR * site.settings.peer_timeout_s
        self.epoch = _NO_LEADER
        self.matched = 0
        self.peer_last = 0
        self._committed = 0
        # Bytes of the entries taken since it last applied.
        self._size_bytes = 0
        self.is_importing = False
        self._parts = 0
        # The orders of the parts that are not on the disk.
        self._part_orders: deque[int] = deque()
        # The number of the last Ack, what it said, and when those without an echo were sent.
        self._count = 0
        self._acked: _Stored | None = None
        self._acks: deque[tuple[int, float]] = deque(maxlen=_ACKS_MAX)
        self._lease_end = 0.0

    def _follow(self, epoch: int) -> None:
        """Follow the peer in this epoch of its."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.matched = self.peer_last = self._committed = 0
            self.is_importing = False
            self._parts = 0

    def leave(self) -> None:
        """Follow no leader, and be sure of nothing."""
        self._follow(_NO_LEADER)
        self._site.is_sure = False

    @property
    def is_on(self) -> bool:
        """True if the peer is followed."""
        return self.epoch != _NO_LEADER

    @property
    def has_all(self) -> bool:
        """True if all that the peer has is on this disk."""
        is_matched = self.epoch != _NO_LEADER and not self.is_importing and self.matched >= self.peer_last > 0
        return is_matched and self._site.log.synced >= self.peer_last

    # --- what the peer sends --------------------------------------------------------------------------------

    def entries(self, message: Entries, now: float) -> list[Output]:
        """Entries of the peer, which leads, or from which this node takes over what it lacks."""
        site, log = self._site, self._site.log
        is_older = 0 < message.epoch < log.last.epoch
        if is_older or not self._may_give_up(message):
            # It leads and does not know what this node has.
            return list(site.ask(now))
        self._follow(message.epoch)
        if self.is_importing:
            return [self._ack(now)]
        kept = self._kept(message)
        if not log.history.has(message.prev) or kept < log.apply_to:
            # This log lacks the entry before these, or they replace what was applied.
            return list(site.ask(now))
        notices = self._report(message, kept)
        orders = self._take(message, kept, self._mark(message, now))
        site.committed = max(site.committed, log.apply_to)
        has_to_sync = any(order.entries or order.mark or order.keep_to is not None for order in orders)
        return [*notices, *([] if has_to_sync else [self._ack(now)]), *orders]

    def _kept(self, message: Entries) -> int:
        """Up to where this log stays as it is."""
        history = self._site.log.history
        for entry in message.entries:
            if not history.has(entry.position):
                return entry.number - 1
        end = message.prev.number + len(message.entries)
        return end if end == message.last else history.last.number

    def _take(self, message: Entries, kept: int, mark: Mark | None) -> list[Write]:
        """The orders for what is new in a message that fits, with the mark in one transaction."""
        log = self._site.log
        new = message.entries[max(0, kept - message.prev.number) :] if message.entries else []
        self.matched = max(self.matched, message.prev.number + len(message.entries))
        self.peer_last, self._committed = message.last, max(self._committed, message.committed)
        keep_to = kept if kept < log.last.number else None
        if new or keep_to is not None or mark is not None:
            # What is committed is applied after that: the leader waits for the sync.
            self._size_bytes += sum(len(entry.commands) for entry in new)
            return [log.write(new, keep_to=keep_to, mark=mark)]
        return self._apply()

    def _apply(self) -> list[Write]:
        """The order to apply what is committed and on this disk."""
        log = self._site.log
        self._size_bytes = 0
        apply_to = min(self._committed, self.matched, log.synced)
        return [log.write(apply_to=apply_to)] if apply_to > log.apply_to else []

    def part(self, message: Part, now: float) -> list[Output]:
        """A part of the peer's table, which replaces this one's."""
        site, log = self._site, self._site.log
        if not self._may_give_up(message):
            return list(site.ask(now))
        self._follow(message.epoch)
        outputs: list[Output] = []
        if message.index == 0:
            common = 0 if site.peer.hello is None else self._peer_history().common(log.history).number
            outputs += self._report(message, common)
            # From now on the old copy lacks something. The disk keeps it until the peer's table is whole.
            self._site.is_sure = False
            mark = site.mark(is_in_sync=False, is_alone=False, is_replaced=True)
            outputs.append(log.write(mark=mark))
            self._parts = self.matched = self._committed = 0
            self._part_orders.clear()
        elif not self.is_importing or message.index != self._parts:
            return list(site.ask(now))
        self._parts += 1
        self.is_importing = message.applied is None
        order = log.import_part(message)
        self._part_orders.append(order.order)
        if message.applied is not None:
            self.matched = self._committed = message.applied.number
        site.committed = log.apply_to
        return [*outputs, order]

    def written(self, now: float) -> list[Output]:
        """More of what was taken is synced, or the disk fails."""
        log = self._site.log
        if log.error:
            self._site.is_sure = False
        orders = self._apply() if self._size_bytes >= _APPLY_BYTES else []
        self._site.committed = max(self._site.committed, log.apply_to)
        is_news = self.is_on and self._stored() != self._acked
        return [self._ack(now), *orders] if is_news else list(orders)

    def _ack(self, now: float) -> ToPeer:
        """Tell the peer what is on this disk."""
        self._acked = epoch, number, is_in_sync, parts, error = self._stored()
        self._count += 1
        self._acks.append((self._count, now))
        return self._site.send(Ack(self._site.run, epoch, number, self._count, is_in_sync, parts, error))

    def _stored(self) -> _Stored:
        log, orders = self._site.log, self._part_orders
        while orders and log.is_written(orders[0]):
            orders.popleft()
        number = 0 if self.is_importing else min(self.matched, log.synced)
        is_in_sync = log.mark is not None and log.mark.is_in_sync and log.is_marked
        return self.epoch, number, is_in_sync, self._parts - len(orders), log.error[:1_000]

    # --- giving up ------------------------------------------------------------------------------------------

    def _peer_history(self) -> History:
        hello = self._site.peer.hello
        assert hello is not None
        return History(hello.epochs, hello.last)

    def _may_give_up(self, message: Entries | Part) -> bool:
        """A node that is alone follows a log that has all of its own, or a node that is alone, too."""
        site, hello = self._site, self._site.peer.hello
        if not site.is_alone or message.is_alone:
            return True
        return hello is not None and hello.leads == message.epoch and self._peer_history().has(site.log.must)

    def _report(self, message: Entries | Part, kept: int) -> list[Notice]:
        log = self._site.log
        if not (self._site.is_alone and kept < log.last.number) and kept >= log.apply_to:
            return []
        lost, applied = log.last.number - kept, max(0, log.apply_to - kept)
        text = (
            f"the peer's store goes on in epoch {message.epoch} from entry {kept}: {lost} later entries of "
            f"this disk are dropped; {applied} of them were carried out here and may have been acknowledged"
        )
        return [Notice(text)]

    # --- being sure -----------------------------------------------------------------------------------------

    def is_leased(self, now: float) -> bool:
        """True if the leader of before cannot have committed alone by now."""
        return now <= self._lease_end

    def _mark(self, message: Entries, now: float) -> Mark | None:
        """The mark after this message; None if it is as before."""
        site, old = self._site, self._site.log.mark
        was_sure, is_in_sync = site.is_sure, old is not None and old.is_in_sync
        if message.standing == Standing.IN_SYNC:
            # The leader wrote, after it had read our Ack ``heard``, that this copy is in sync.
            while self._acks and self._acks[0][0] <= message.heard:
                self._lease_end = max(self._lease_end, self._acks.popleft()[1] + self._lease_s)
            site.is_sure = self.is_leased(now)
            is_in_sync = site.is_sure or (is_in_sync and not was_sure)
        elif message.standing == Standing.JOINING:
            site.is_sure = site.is_sure and self.is_leased(now)
            is_in_sync = is_in_sync and site.is_sure >= was_sure
        elif message.epoch or site.is_alone:
            site.is_sure = is_in_sync = False
        new = site.mark(is_in_sync=is_in_sync, is_alone=False)
        return None if new == old else new

    def note_life(self, now: float) -> list[Output]:
        """The peer leads at this moment, by other words than its entries."""
        site, old, was_sure = self._site, self._site.log.mark, self._site.is_sure
        if old is None:
            return []
        site.is_sure = was_sure and self.is_leased(now)
        is_in_sync = old.is_in_sync and site.is_sure >= was_sure
        new = site.mark(is_in_sync=is_in_sync, is_alone=old.is_alone)
        # Of a node that is alone the mark says from now on that the other led after it.
        return [site.log.write(mark=new)] if new != old else []
