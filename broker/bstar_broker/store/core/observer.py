"""What the store reports to an observer, at the moment when it happens.

An observer is quick, does not raise and changes nothing. A store without one pays nothing for it.
"""

from typing import Protocol

from bstar_broker.store.core.events import Applied
from bstar_broker.store.core.records import Record


class StoreObserver(Protocol):
    """``epoch`` is the node's: of its entries if it leads, else of the leader that it follows."""

    def applied(self, applied: Applied, epoch: int, now: float) -> None:
        """An entry has been applied, so it is on all disks that count; it may be acknowledged from now on.

        The follower reports it as well as the leader, so each journal has it when the other node dies.
        """

    def fetched(self, record: Record, epoch: int) -> None:
        """A client gets the answer of this request."""
