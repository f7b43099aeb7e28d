"""The side that takes what the peer sends, and the conditions on which a node gives itself up."""

from bstar_broker.core.outputs import Notice, Output
from bstar_broker.store.core.events import Mark, ToPeer
from bstar_broker.store.core.following import Following
from bstar_broker.store.core.history import History
from bstar_broker.store.core.peer import Ack, Entries, Part, Standing
from bstar_broker.store.core.site import Site

# Of an Ack: epoch, number, is_in_sync, parts, error.
_Stored = tuple[int, int, bool, int, str]


class Follower:
    """The follower's part of ``site``."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.following = Following(site.log, site.settings.peer_timeout_s)
        # What the last Ack said.
        self._acked: _Stored | None = None

    # --- what the peer sends --------------------------------------------------------------------------------

    def entries(self, message: Entries, now: float) -> list[Output]:
        """Entries of the peer, which leads, or from which this node takes over what it lacks."""
        site, following = self._site, self.following
        is_older = 0 < message.epoch < site.log.last.epoch
        if is_older or not self._may_give_up(message):
            # It leads and does not know what this node has.
            return list(site.ask(now))
        following.follow(message.epoch)
        if following.is_importing:
            return [self.ack(now)]
        if not following.fits(message):
            return list(site.ask(now))
        notices = self._report(message, following.kept(message))
        orders = following.take(message, self._mark(message, now))
        site.committed = max(site.committed, site.log.apply_to)
        has_to_sync = any(order.entries or order.mark or order.keep_to is not None for order in orders)
        return [*notices, *([] if has_to_sync else [self.ack(now)]), *orders]

    def part(self, message: Part, now: float) -> list[Output]:
        """A part of the peer's table, which replaces this one's."""
        site, log = self._site, self._site.log
        if not self._may_give_up(message):
            return list(site.ask(now))
        self.following.follow(message.epoch)
        outputs: list[Output] = []
        if message.index == 0:
            common = 0 if site.peer.hello is None else self._peer_history().common(log.history).number
            outputs += self._report(message, common)
            # From now on the old copy lacks something. The disk keeps it until the peer's table is whole.
            self.following.is_sure = False
            mark = site.mark(is_in_sync=False, is_alone=False, is_replaced=True)
            outputs.append(log.write(mark=mark))
        order = self.following.take_part(message)
        if order is None:
            return list(site.ask(now))
        site.committed = log.apply_to
        return [*outputs, order]

    def written(self, now: float) -> list[Output]:
        """More of what was taken is synced, or the disk fails."""
        if self._site.log.error:
            self.following.is_sure = False
        orders = self.following.apply_much()
        self._site.committed = max(self._site.committed, self._site.log.apply_to)
        is_news = self.following.is_on and self._stored() != self._acked
        return [self.ack(now), *orders] if is_news else list(orders)

    def ack(self, now: float) -> ToPeer:
        """Tell the peer what is on this disk."""
        self._acked = epoch, number, is_in_sync, parts, error = self._stored()
        count = self.following.count_ack(now)
        return self._site.send(Ack(self._site.run, epoch, number, count, is_in_sync, parts, error))

    def _stored(self) -> _Stored:
        log, following = self._site.log, self.following
        number = 0 if following.is_importing else min(following.matched, log.synced)
        is_in_sync = log.mark is not None and log.mark.is_in_sync and log.is_marked
        return following.epoch, number, is_in_sync, following.parts, log.error[:1_000]

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

    # --- marks ----------------------------------------------------------------------------------------------

    def _mark(self, message: Entries, now: float) -> Mark | None:
        """The mark after this message; None if it is as before."""
        site, following, old = self._site, self.following, self._site.log.mark
        was_sure, is_in_sync = following.is_sure, old is not None and old.is_in_sync
        if message.standing == Standing.IN_SYNC:
            following.note_standing(message.heard, now)
            is_in_sync = following.is_sure or (is_in_sync and not was_sure)
        elif message.standing == Standing.JOINING:
            following.note_life(now)
            is_in_sync = is_in_sync and following.is_sure >= was_sure
        elif message.epoch or site.is_alone:
            following.is_sure = is_in_sync = False
        new = site.mark(is_in_sync=is_in_sync, is_alone=False)
        return None if new == old else new

    def note_life(self, now: float) -> list[Output]:
        """The peer leads at this moment, by other words than its entries."""
        site, old, was_sure = self._site, self._site.log.mark, self.following.is_sure
        if old is None:
            return []
        self.following.note_life(now)
        is_in_sync = old.is_in_sync and self.following.is_sure >= was_sure
        new = site.mark(is_in_sync=is_in_sync, is_alone=old.is_alone)
        # Of a node that is alone the mark says from now on that the other led after it.
        return [site.log.write(mark=new)] if new != old else []
