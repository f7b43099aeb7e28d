"""The side that takes log and table over from the peer, and knows whether it may rely on its copy.

A follower is *sure* that nothing acknowledged is missing here from the moment when the leader says so, until
something speaks against it. Its lease tells for how long the leader cannot commit alone: a leader waits for
``peer_timeout_s`` from the last Ack that it read, and what it writes afterwards names this Ack. So for this
time from the *sending* of that Ack, less 10 % for the clocks, it does not commit alone. If the leader is
heard to live after the end of the lease, by whatever way, it may commit alone by then: the follower is not
sure until a younger message says that it is in sync. If it is not heard, it has died before it could commit
alone, or nothing comes through at all, which nobody can tell from its death (docs/adr/0023-replicated-
store.md).
"""

from collections import deque

from bstar_broker.store.core.events import Import, Mark, Write
from bstar_broker.store.core.log import Log
from bstar_broker.store.core.peer import Entries, Part

# The part of the leader's patience on which the follower relies; the rest is for clocks that differ
# (docs/adr/0005-arbiter.md).
LEASE_FACTOR = 0.9
# Acks that wait for their echo; the oldest beyond count as lost.
_ACKS_MAX = 1_000
_NOBODY = -1
# A follower applies what is committed once it has so much of it, or with the next heartbeat: many small
# entries are one transaction.
_APPLY_OCTETS = 64 << 10


class Following:
    """``epoch``: that of the leader that is followed, 0 of a source that does not lead. ``matched``: this log
    is the peer's up to there. ``is_sure``: nothing that was acknowledged is missing here.
    """

    def __init__(self, log: Log, peer_timeout_s: float) -> None:
        self._log = log
        self._lease_s = LEASE_FACTOR * peer_timeout_s
        self.is_sure = False
        self.epoch = _NOBODY
        self.matched = 0
        self.peer_last = 0
        self._committed = 0
        # Octets of the entries taken since it last applied.
        self._octets = 0
        self.is_importing = False
        self._parts = 0
        # The orders of the parts that are not on the disk.
        self._part_orders: deque[int] = deque()
        self._count = 0
        self._acks: deque[tuple[int, float]] = deque(maxlen=_ACKS_MAX)
        self._lease_end = 0.0

    def follow(self, epoch: int) -> None:
        """Follow the peer in this epoch of its."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.matched = self.peer_last = self._committed = 0
            self.is_importing = False
            self._parts = 0

    def leave(self) -> None:
        """Follow nobody, and be sure of nothing."""
        self.follow(_NOBODY)
        self.is_sure = False

    @property
    def is_on(self) -> bool:
        """True if the peer is followed."""
        return self.epoch != _NOBODY

    @property
    def has_all(self) -> bool:
        """True if all that the peer has is on this disk."""
        is_matched = self.epoch != _NOBODY and not self.is_importing and self.matched >= self.peer_last > 0
        return is_matched and self._log.synced >= self.peer_last

    # --- being sure -----------------------------------------------------------------------------------------

    def count_ack(self, now: float) -> int:
        """The number of an Ack that is sent now."""
        self._count += 1
        self._acks.append((self._count, now))
        return self._count

    def note_life(self, now: float) -> None:
        """The peer leads at this moment."""
        self.is_sure = self.is_sure and self.is_leased(now)

    def is_leased(self, now: float) -> bool:
        """True if the leader of before cannot have committed alone by now."""
        return now <= self._lease_end

    def note_standing(self, heard: int, now: float) -> None:
        """The leader wrote, after it had read our Ack ``heard``, that this copy is in sync."""
        while self._acks and self._acks[0][0] <= heard:
            self._lease_end = max(self._lease_end, self._acks.popleft()[1] + self._lease_s)
        self.is_sure = self.is_leased(now)

    # --- log and table --------------------------------------------------------------------------------------

    def fits(self, message: Entries) -> bool:
        """True if this log has the entry before these, and they replace nothing that was applied."""
        return self._log.history.has(message.prev) and self.kept(message) >= self._log.apply_to

    def kept(self, message: Entries) -> int:
        """Up to where this log stays as it is."""
        history = self._log.history
        for entry in message.entries:
            if not history.has(entry.position):
                return entry.number - 1
        end = message.prev.number + len(message.entries)
        return end if end == message.last else history.last.number

    def take(self, message: Entries, mark: Mark | None) -> list[Write]:
        """The orders for what is new in a message that fits, with the mark in one transaction."""
        log = self._log
        kept = self.kept(message)
        new = message.entries[max(0, kept - message.prev.number) :] if message.entries else []
        self.matched = max(self.matched, message.prev.number + len(message.entries))
        self.peer_last, self._committed = message.last, max(self._committed, message.committed)
        keep_to = kept if kept < log.last.number else None
        if new or keep_to is not None or mark is not None:
            # What is committed is applied after that: the leader waits for the sync.
            self._octets += sum(len(entry.commands) for entry in new)
            return [log.write(new, keep_to=keep_to, mark=mark)]
        return self.apply()

    def apply_much(self) -> list[Write]:
        """``apply``, if it is worth a transaction."""
        return self.apply() if self._octets >= _APPLY_OCTETS else []

    def apply(self) -> list[Write]:
        """The order to apply what is committed and on this disk."""
        self._octets = 0
        apply_to = min(self._committed, self.matched, self._log.synced)
        return [self._log.write(apply_to=apply_to)] if apply_to > self._log.apply_to else []

    def take_part(self, message: Part) -> Import | None:
        """The order for a part of the peer's table; None if it is not the next."""
        if message.index == 0:
            self._parts = self.matched = self._committed = 0
            self._part_orders.clear()
        elif not self.is_importing or message.index != self._parts:
            return None
        self._parts += 1
        self.is_importing = message.applied is None
        order = self._log.import_part(message)
        self._part_orders.append(order.order)
        if message.applied is not None:
            self.matched = self._committed = message.applied.number
        return order

    @property
    def parts(self) -> int:
        """How many parts of the table are on this disk."""
        while self._part_orders and self._log.is_written(self._part_orders[0]):
            self._part_orders.popleft()
        return self._parts - len(self._part_orders)
