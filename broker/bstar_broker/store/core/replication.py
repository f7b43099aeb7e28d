"""Replication as the store of a node uses it (``replica.Replica``)."""

from typing import Protocol

from bstar_broker.core.outputs import Output
from bstar_broker.store.core.entries import Position
from bstar_broker.store.core.events import Applied, ArbiterSaid, Damaged, Exported, LogRead, Opened, Written


class Replication(Protocol):
    """Brings entries to both disks, and says when they may be applied."""

    @property
    def is_leading(self) -> bool:
        """Commands may be proposed."""

    @property
    def trouble(self) -> str:
        """Why not, although the node serves: a sentence."""

    @property
    def copies(self) -> int:
        """On how many disks an entry is that is committed now."""

    def copies_of(self, number: int) -> int:
        """On how many disks this entry of the leader's log is for certain."""

    @property
    def last(self) -> Position:
        """The last entry of its log."""

    @property
    def committed(self) -> int:
        """The number of the last committed entry."""

    @property
    def applied_to(self) -> int:
        """The number of the last applied entry."""

    @property
    def lag(self) -> int:
        """How many entries the other copy lacks."""

    @property
    def catch_up(self) -> float:
        """The part of a lagging copy's way that is done; 1.0 if none lags."""

    @property
    def is_peer_heard(self) -> bool:
        """The peer's store was heard a moment ago."""

    def lead(self, epoch: int, now: float) -> list[Output]:
        """The node serves, in this epoch."""

    def follow(self, now: float) -> list[Output]:
        """The node serves no more."""

    def peer_serves(self, now: float) -> list[Output]:
        """The peer's node says that it serves."""

    def force(self, now: float) -> list[Output]:
        """An operator says that the store goes on from this copy, whatever the other one has."""

    def propose(self, commands: bytes, at_ms: int, now: float) -> list[Output]:
        """Append an entry; ``last`` is its position then. Only while ``is_leading``."""

    def opened(self, opened: Opened, now: float) -> list[Output]:
        """The disk was read."""

    def written(self, written: Written, now: float) -> list[Output]:
        """The disk has synced, or cannot."""

    def damaged(self, damaged: Damaged, now: float) -> list[Output]:
        """The disk has found damage."""

    def applied(self, applied: Applied, now: float) -> list[Output]:
        """The disk has applied an entry."""

    def log_read(self, read: LogRead, now: float) -> list[Output]:
        """The disk has read the log."""

    def exported(self, exported: Exported, now: float) -> list[Output]:
        """The disk has read a part of the table."""

    def receive(self, frames: list[bytes], now: float) -> list[Output]:
        """A message of the peer's store."""

    def peer_lost(self, now: float) -> list[Output]:
        """The connection to the peer's store broke."""

    def arbiter_said(self, given: ArbiterSaid, now: float) -> list[Output]:
        """The arbiter has answered."""

    def handle_timer(self, now: float) -> list[Output]:
        """A deadline may have passed."""

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
