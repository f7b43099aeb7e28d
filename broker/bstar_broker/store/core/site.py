"""What the parts of a replica share: who this node is, its log, its peer, and what it says of itself."""

from math import inf
from typing import Literal

import msgspec

from bstar_broker.store.core import peer as wire
from bstar_broker.store.core.events import Mark, Opened, ToPeer
from bstar_broker.store.core.in_sync import InSync
from bstar_broker.store.core.log import Log
from bstar_broker.store.core.peer import EPOCHS_MAX, Hello, Message

Role = Literal["primary", "backup"]


class ReplicaSettings(msgspec.Struct, frozen=True):
    """Times in seconds. The leader goes on alone after ``peer_timeout_s`` without an Ack of its follower.

    ``catch_up_octets_s`` bounds the rate at which a copy that does not count is brought up. While the peer is
    away, the log keeps ``log_entries`` and ``log_octets`` for it at most; then it takes the table.
    ``has_arbiter``: an arbiter keeps the in-sync set (``in_sync``).
    """

    heartbeat_s: float = 0.25
    peer_timeout_s: float = 2.0
    catch_up_octets_s: float = 50e6
    log_entries: int = 1_000_000
    log_octets: int = 1 << 30
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
    ``committed`` is the number of the last entry that may be applied.
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
        return ToPeer(wire.encode(message))
