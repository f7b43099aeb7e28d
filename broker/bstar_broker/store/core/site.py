"""What the parts of a replica share: who this node is, its log, its peer, and whose copy is proved whole.

The marks on the disks and the arbiter's set prove that a copy has all that was acknowledged. A disk in the
in-sync set that has its mark has everything. Marks alone prove it only if both disks are there: a disk that
was lost may have been the only one. So with an arbiter a copy in sync does not lead, and is not taken over,
beside a disk that vouches for nothing, before the arbiter has said who is in the set; without one not beside
a new disk, unless its node was sure of it (``peer.source``).

A follower takes its mark back as soon as its leader may have gone on alone. If the leader was not granted
that, the set still has the follower: a doubtful copy in the set is whole.
"""

from math import inf
from typing import Literal

import msgspec

from bstar_broker.store.core.events import AskArbiter, Mark, Opened, ToPeer
from bstar_broker.store.core.in_sync import InSync
from bstar_broker.store.core.log import Log
from bstar_broker.store.core.peer import (
    ALONE,
    EPOCHS_MAX,
    IN_SYNC,
    NOTHING,
    Hello,
    Message,
    Source,
    encode,
    groups_of,
    rank,
    source,
)

Role = Literal["primary", "backup"]


class ReplicaSettings(msgspec.Struct, frozen=True):
    """Times in seconds. The leader goes on alone after ``peer_timeout_s`` without an Ack of its follower.

    ``catch_up_bytes_s`` bounds the rate at which a copy that does not count is brought up. While the peer is
    away, the log keeps ``log_entries`` and ``log_bytes`` for it at most; then it takes the table.
    ``has_arbiter``: an arbiter keeps the in-sync set (``in_sync``).
    """

    heartbeat_s: float = 0.25
    peer_timeout_s: float = 2.0
    catch_up_bytes_s: float = 50e6
    log_entries: int = 1_000_000
    log_bytes: int = 1 << 30
    has_arbiter: bool = False


class Peer:
    """What this node knows of the other. ``is_fresh``: its Hello was sent after this node last needed one."""

    def __init__(self, now: float) -> None:
        self.hello: Hello | None = None
        self.is_fresh = False
        self.is_heard = False
        self.heard_at = now
        self.error = ""
        self.mismatch = ""
        self._asked_at = -inf

    def note(self, now: float) -> None:
        """It has spoken."""
        self.is_heard = True
        self.heard_at = now

    def lose(self) -> None:
        """It is not heard any more."""
        self.is_heard = self.is_fresh = False

    def may_ask(self, now: float, interval_s: float) -> bool:
        """True if a Hello may be asked for: once in an interval."""
        if now < self._asked_at + interval_s:
            return False
        self._asked_at = now
        return True


class Site:
    """One node, once its disk was read. ``wanted``: the epoch in which the node serves, None if it does not.
    ``epoch``: that in which it leads the store, 0 if it does not; ``epoch_max``: the highest in which it did.
    ``committed`` is the number of the last entry that may be applied. ``groups``: those of the table.
    """

    def __init__(
        self, pair: str, role: Role, settings: ReplicaSettings, run: bytes, opened: Opened, now: float
    ) -> None:
        self.pair = pair
        self.role = role
        self.other: Role = "backup" if role == "primary" else "primary"
        self.settings = settings
        self.run = run
        self.log = Log(opened)
        self.peer = Peer(now)
        self.in_sync = InSync(
            is_on=settings.has_arbiter, heartbeat_s=settings.heartbeat_s, timeout_s=settings.peer_timeout_s
        )
        self.wanted: int | None = None
        self.epoch = 0
        self.epoch_max = 0
        self.committed = opened.applied
        self.groups = groups_of(opened.totals)
        # This node follows, and nothing that was acknowledged is missing here (``Follower``).
        self.is_sure = False
        # An operator has said that the store goes on from this copy; until that is stored.
        self.is_forced = False

    @property
    def is_alone(self) -> bool:
        """True if this node may have committed alone: if its mark says so, and is stored; or if it must."""
        mark, stored = self.log.mark, self.log.stored
        is_marked = mark is not None and mark.is_alone and stored is not None and stored.is_alone
        return is_marked or self.is_forced

    @property
    def led_alone(self) -> bool:
        """True if the mark says that this node is alone, and nothing says that the other led after it."""
        mark = self.log.mark
        return mark is not None and mark.is_alone and mark.leader == self.role

    def mark(self, *, is_in_sync: bool, is_alone: bool, is_replaced: bool = False) -> Mark:
        """A mark for this node as it is. ``is_replaced``: the peer's table takes the place of its content."""
        old = self.log.mark
        store = b"" if old is None else old.store
        was_whole = old is not None and (old.is_in_sync or old.is_alone or old.is_doubtful)
        hello = self.peer.hello
        if not store and hello is not None and not hello.store:
            # A new pair. Its nodes name one store, even if both begin at once.
            store = self.run if self.role == "primary" else hello.run
        elif not store:
            store = self.run if self.epoch or hello is None else hello.store
        leader = self.role if self.epoch else self.other
        is_doubtful = was_whole and not is_in_sync and not is_replaced
        return Mark(self.pair, self.role, store, is_in_sync, is_alone, leader, is_doubtful)

    def next_epoch(self) -> int:
        """The least epoch of this role that is not below ``wanted``, and above all that are known."""
        hello = self.peer.hello
        known = max(self.epoch_max, self.log.last.epoch)
        if hello is not None:
            known = max(known, hello.leads, hello.last.epoch)
        epoch = max(self.wanted or 0, known + 1)
        # The primary's are odd (docs/adr/0002-epochs-by-role.md).
        return epoch + ((epoch % 2 == 0) == (self.role == "primary"))

    def hello(self, *, asks: bool) -> Hello:
        """What this node says of itself."""
        log, mark = self.log, self.log.mark
        return Hello(
            self.pair,
            self.role,
            self.run,
            b"" if mark is None else mark.store,
            mark is not None and mark.is_in_sync and not log.damage,
            self.is_alone,
            self.epoch,
            self.wanted is not None,
            asks,
            log.last,
            log.synced,
            log.apply_to,
            log.history.epochs[-EPOCHS_MAX:],
            mark is not None and mark.is_doubtful and not log.damage,
            log.must if log.damage else None,
            None if mark is None else mark.gave_up,
            self.groups,
            self.is_sure,
        )

    def say_hello(self, *, asks: bool) -> ToPeer:
        """The order to send it."""
        return self.send(self.hello(asks=asks))

    def ask(self, now: float) -> list[ToPeer]:
        """Ask the peer how things are, once in a heartbeat."""
        if not self.peer.may_ask(now, self.settings.heartbeat_s):
            return []
        return [self.say_hello(asks=True)]

    @staticmethod
    def send(message: Message) -> ToPeer:
        """The order to send this message."""
        return ToPeer(encode(message))

    # --- whose copy is whole --------------------------------------------------------------------------------

    @property
    def _store(self) -> bytes:
        """The store that this node has or would have; or empty."""
        mark, hello = self.log.mark, self.peer.hello
        if mark is not None and mark.store:
            return mark.store
        return b"" if hello is None else hello.store

    def ask_arbiter(self, now: float) -> list[AskArbiter]:
        """A node that is to lead, and may not yet, asks who is in the set."""
        if self.wanted is None or self.epoch:
            return []
        return self.in_sync.look(self._store, now)

    @property
    def is_outside(self) -> bool:
        """True if the arbiter says that this copy may lack something."""
        return self.in_sync.is_member(self.role, self._store) is False

    @property
    def may_lead_unheard(self) -> bool:
        """True if this copy has everything although the peer does not say what it has."""
        mark = self.log.mark
        if mark is None or self.is_outside or self.log.damage:
            return False
        is_member = self.in_sync.is_member(self.role, mark.store) is True
        return self.led_alone or (is_member and (mark.is_in_sync or mark.is_alone or mark.is_doubtful))

    def better(self) -> Source:
        """Whose copy a node that is to lead goes on from, by the peer's Hello; NEITHER if none is proved
        whole. The set decides as soon as one of the copies vouches for nothing.
        """
        hello = self.peer.hello
        assert hello is not None
        own = self.hello(asks=False)
        by_marks, ranks, store = source(own, hello), (rank(own), rank(hello)), self._store
        if not self.in_sync.is_on or ALONE in ranks or NOTHING not in ranks or not store:
            return by_marks
        if not self.in_sync.is_answered(store):
            return Source.NEITHER
        is_own, is_peers = self._is_whole(self.role, own, store), self._is_whole(self.other, hello, store)
        if is_own and is_peers:
            if by_marks != Source.NEITHER:
                return by_marks
            return Source.OWN if own.last >= hello.last else Source.PEER
        return Source.OWN if is_own else Source.PEER if is_peers else Source.NEITHER

    def _is_whole(self, role: Role, said: Hello, store: bytes) -> bool:
        is_member = self.in_sync.is_member(role, store)
        # A store of which the arbiter knows nothing has its marks alone.
        return is_member is not False and (rank(said) == IN_SYNC or (is_member is True and said.is_doubtful))

    @property
    def missing_proof(self) -> str:
        """Why this node does not lead, or leads and cannot go on alone; "" if it is not for the arbiter."""
        in_sync = self.in_sync
        if not in_sync.is_on:
            return ""
        hello, store = self.peer.hello, self._store
        whose = Source.NEITHER if hello is None or not self.peer.is_heard else self.better()
        if self.is_outside and not self.epoch and whose != Source.PEER:
            return (
                f"the arbiter counts the {self.other}'s copy alone: it may have what this one lacks; start "
                f"the {self.other} with its disk, or run bstar store force --give-up-the-other"
            )
        if not self.epoch and not in_sync.is_answered(store):
            return in_sync.problem and f"nothing proves that this copy is whole, and {in_sync.problem}"
        if self.epoch and not in_sync.may_be_alone:
            return in_sync.problem and f"this node cannot go on alone: {in_sync.problem}"
        if not self.epoch and self.is_new and self.better() == Source.NEITHER:
            return self.new_disk("the arbiter counts the one before it alone")
        return ""

    @property
    def is_new(self) -> bool:
        """True if this disk has no store, and the peer's has one."""
        hello = self.peer.hello
        return self.log.mark is None and hello is not None and hello.store != b""

    def new_disk(self, why: str) -> str:
        """What to do if this disk is new, and nothing proves the peer's copy whole."""
        return (
            f"the disk of this node is new, and {why}: put that back, or make the {self.other} active and "
            "run bstar store force --give-up-the-other there"
        )

    def why_neither(self, hello: Hello) -> str:
        """What to do if no copy is known to be whole."""
        if self.is_new:
            return self.new_disk("nothing proves that the peer's copy has all that the one before had")
        if not hello.store:
            return (
                "the peer's disk is new, and the one before it may have had what this copy lacks: put that "
                "back, or run bstar store force --give-up-the-other"
            )
        return (
            "neither this copy nor the peer's is known to have all that was acknowledged: put the missing "
            "disk back, or run bstar store force --give-up-the-other"
        )
