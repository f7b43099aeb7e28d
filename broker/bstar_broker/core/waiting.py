"""What waits in all queues together: how much, of which client, and whether there is room for more.

The bounds are fair: the last tenth of a queue's length, and of the octets in all queues, is for clients that
have less than that here. Who floods is refused before the others are.

A client that is gone must not keep its place. Its routing id says nothing about that, so a client whose
requests wait is sent a PONG now and then, which finds no connection if there is none. Only clients of the
native dialect are asked: a plain Majordomo client would not know what to make of it.
"""

from collections.abc import Iterator

import msgspec

from bstar.deadlines import Deadlines
from bstar.wire import native
from bstar_broker.core.records import Accepted, Bundle
from bstar_broker.core.settings import BrokerSettings

__all__ = ["Waiting"]

# This part of each bound, one in so many, is for clients that have less than that part.
_RESERVE_PART = 10


class _Share(msgspec.Struct, gc=False):
    """What waits of one client; ``asked_at``: when it was last asked whether it is there."""

    count: int
    octets: int
    is_native: bool
    asked_at: float


class Waiting:
    """Counts of what waits. Whoever puts a request into a queue or takes one out says so here."""

    __slots__ = ("_settings", "_shares", "count", "deadlines", "octets")

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._shares: dict[bytes, _Share] = {}
        self.count = 0
        self.octets = 0
        self.deadlines: Deadlines[Accepted | Bundle] = Deadlines(_is_due)

    def is_long(self, length: int, held: int) -> bool:
        """Is a queue of this length too long, with so many requests, here and elsewhere, of one client?"""
        limit = self._settings.queue_length_max
        reserve = limit // _RESERVE_PART
        return length > (limit - reserve if held > reserve else limit)

    def is_heavy(self, client: bytes, octets: int) -> bool:
        """Are so many octets more too many, if they are this client's? A first request may be of any size."""
        limit = self._settings.queue_bytes_max
        total = self.octets + octets
        reserve = limit // _RESERVE_PART
        if total <= limit - reserve:
            return False
        share = self._shares.get(client)
        return total > limit or (share is not None and share.octets > reserve)

    def enter(self, item: Accepted | Bundle, count: int, octets: int, now: float) -> None:
        """One request, or several that came together, wait from now on."""
        self.count += count
        self.octets += octets
        if type(item) is Bundle:
            client, is_native = item.sender, True
        else:
            assert type(item) is Accepted
            client, is_native = item.lane, item.codec is native.CODEC
        share = self._shares.get(client)
        if share is None:
            self._shares[client] = _Share(count, octets, is_native, now)
        else:
            share.count += count
            share.octets += octets
        self.add_deadline(item)

    def add_deadline(self, item: Accepted | Bundle) -> None:
        """Its time in the queue ends at ``expires_at``."""
        self.deadlines.add(item, item.expires_at)
        self.deadlines.tidy(self.count)

    def leave(self, client: bytes, count: int, octets: int) -> None:
        """So many requests of this client, of so many octets, wait no more."""
        self.count -= count
        self.octets -= octets
        share = self._shares[client]
        share.count -= count
        if share.count:
            share.octets -= octets
        else:
            del self._shares[client]

    def is_native(self, client: bytes) -> bool:
        """Does anything wait here of this client, and does it speak the native dialect?"""
        share = self._shares.get(client)
        return share is not None and share.is_native

    def clients_to_ask(self, now: float) -> Iterator[bytes]:
        """Those that have waited for ``client_check_interval_s`` since they were last asked."""
        interval_s = self._settings.client_check_interval_s
        if not interval_s:
            return
        for client, share in self._shares.items():
            if share.is_native and now - share.asked_at >= interval_s:
                share.asked_at = now
                yield client


def _is_due(item: Accepted | Bundle, expires_at: float) -> bool:
    # A request that was queued again with more time has a second entry for that.
    return item.is_queued and item.expires_at == expires_at
