"""What the store counts and reports to an observer: ends of requests, and for how long a copy lags."""

from typing import Protocol

from bstar.wire.durable import State
from bstar_broker.core.outputs import Notice
from bstar_broker.store.core.events import Applied
from bstar_broker.store.core.records import Record, Totals

_ENDS = {State.ANSWERED: "answered", State.DEAD: "dead", State.CANCELLED: "cancelled"}


class StoreObserver(Protocol):
    """Gets what the store reports, when it happens. It is quick, does not raise and changes nothing.

    ``epoch`` is the node's: of its entries if it leads, else of the leader that it follows.
    """

    def applied(self, applied: Applied, epoch: int, now: float) -> None:
        """An entry has been applied, so it is on all disks that count; it may be acknowledged from now on.

        The follower reports it as well as the leader, so each journal has it when the other node dies.
        """

    def fetched(self, record: Record, epoch: int) -> None:
        """A client gets the answer of this request."""


class Tally:
    """Counts since it was made. ``acknowledged_alone``: submits that were on one disk only. ``totals`` are
    those of the table.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.observer: StoreObserver | None = None
        # A declined request is dead as well, but an answer: nobody needs to look at it.
        self.ended = dict.fromkeys((*_ENDS.values(), "declined"), 0)
        self.acknowledged_alone = 0
        # Those of the last notice; 0 while it does not lead.
        self.copies = 0
        # The leader's last entry at some moment, that moment, whether the other copy was behind then, and how
        # long it took for the mark before.
        self._mark, self._marked_at, self._was_behind = 0, 0.0, False
        self._took_s = 0.0

    def applied(self, applied: Applied, epoch: int, now: float) -> None:
        """An entry has been applied."""
        self.totals = applied.totals
        for change in applied.changes:
            new = change.new
            if new is not None and new is not change.old and new.state in _ENDS:
                self.ended["declined" if new.is_declined else _ENDS[State(new.state)]] += 1
        if self.observer is not None:
            self.observer.applied(applied, epoch, now)

    def lag_s(self, last: int, lag: int, now: float) -> float:
        """For how long the other copy has been behind: ``lag`` entries of a log up to entry ``last``.

        It is as exact as the questions are frequent: it is the time that the copy takes for what was the last
        entry at a question.
        """
        if last - lag >= self._mark:
            self._took_s = now - self._marked_at if self._was_behind else 0.0
            self._mark, self._marked_at, self._was_behind = last, now, lag > 0
        return max(self._took_s, now - self._marked_at) if lag else 0.0

    def tell_copies(self, copies: int, *, is_peer_heard: bool, is_refusing: bool) -> list[Notice]:
        """A line for the log when a copy is lost, and when it is back."""
        before = self.copies
        # A leader that has just begun, and hears its peer, has two copies in a moment.
        if copies == before or (copies < 2 and not before and is_peer_heard):
            return []
        self.copies = copies
        if copies > 1:
            return [Notice("the store has two copies again")] if before else []
        what = (
            "new durable requests are refused" if is_refusing else "new durable requests are on one disk only"
        )
        return [Notice(f"the store has one copy: the peer's disk cannot be reached or lags; {what}")]
