"""The waiting requests of all queues: how many, of which clients, and whether there is room for more.

The bounds are fair. The last tenth of a queue's length, and of the bytes in all queues, is for clients that
hold less than that. So the broker refuses a flooding client before the others. Replies that a client has
not read count as bytes that it holds. The bound of bytes is ``limits.queue_bytes_max``, or what half of the
node's memory holds if that is less (``bytes_max``).

Requests of a client that is gone must leave the queue. So the broker sends a PONG at intervals to each client
with waiting requests. If its connection is gone, the shell tells the broker. Plain Majordomo has no PONG, so
only native clients get one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bstar.base.deadlines import Deadlines
from bstar.wire import native_broker, refusals
from bstar.wire.refusals import Refusal
from bstar_broker.core.records import Accepted, Bundle
from bstar_broker.core.settings import BrokerSettings

# One part in ten of each bound is for clients that hold less than that part.
_RESERVE_PART = 10
# After so many new deadlines, those of ended requests may be forgotten. To ask each time costs 2 % of a
# request.
_TIDY_EVERY = 64


@dataclass(slots=True)
class _Share:
    """The waiting requests of one client; ``asked_at`` is when it last got a PONG."""

    count: int
    size_bytes: int
    is_native: bool
    asked_at: float


class Waiting:
    """Counts of waiting requests. A part that queues or removes a request calls ``enter`` or ``leave``."""

    __slots__ = (
        "_settings",
        "_shares",
        "_until_tidy",
        "bytes_max",
        "count",
        "deadlines",
        "size_bytes",
        "unread",
        "unread_bytes",
    )

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._shares: dict[bytes, _Share] = {}
        self.count = 0
        self.size_bytes = 0
        # What the queues and unread replies may hold. The shell lowers it where there is little memory.
        self.bytes_max = settings.queue_bytes_max
        # Bytes of replies that clients have not read, of each and of all. The shell counts them.
        self.unread: dict[bytes, int] = {}
        self.unread_bytes = 0
        self.deadlines: Deadlines[Accepted | Bundle] = Deadlines(_is_due)
        self._until_tidy = _TIDY_EVERY

    def why_not(
        self, client: bytes, held: int, length: int, size_bytes: int, length_max: int | None
    ) -> Refusal | None:
        """Why a request may not wait: with it its client holds ``held`` at this node, and its queue has
        ``length``. ``length_max``: the service's own bound; None without one.
        """
        limit = self._settings.queue_length_max if length_max is None else length_max
        reserve = limit // _RESERVE_PART
        if length > (limit - reserve if held > reserve else limit):
            return refusals.QUEUE_FULL
        return refusals.BYTES_FULL if self.is_heavy(client, size_bytes) else None

    def fit(self, left_bytes: int) -> None:
        """The node may use so much memory more: bound queues and unread replies by half of it.

        Each byte may be in memory twice for a moment: as it was received, and as it is sent.
        """
        room_bytes = (max(left_bytes, 0) + self.size_bytes + self.unread_bytes) // 2
        self.bytes_max = min(self._settings.queue_bytes_max, room_bytes)

    @property
    def is_crowded(self) -> bool:
        """True if the queues hold a tenth of the bytes that they may."""
        return self.size_bytes > self.bytes_max // _RESERVE_PART

    def is_heavy(self, client: bytes, size_bytes: int) -> bool:
        """True if the queues may not hold ``size_bytes`` more of this client. A tenth is for the others."""
        limit = self.bytes_max
        total = self.size_bytes + self.unread_bytes + size_bytes
        reserve = limit // _RESERVE_PART
        if total <= limit - reserve:
            return False
        share = self._shares.get(client)
        held = self.unread.get(client, 0) + (0 if share is None else share.size_bytes)
        return total > limit or held > reserve

    def enter(self, item: Accepted | Bundle, client: bytes, count: int, size_bytes: int, now: float) -> None:
        """One request of this client, or several that came together, wait from now on."""
        self.count += count
        self.size_bytes += size_bytes
        share = self._shares.get(client)
        if share is None:
            is_native = isinstance(item, Bundle) or item.codec is native_broker.CODEC
            self._shares[client] = _Share(count, size_bytes, is_native, now)
        else:
            share.count += count
            share.size_bytes += size_bytes
        self.add_deadline(item)

    def add_deadline(self, item: Accepted | Bundle) -> None:
        """The request leaves the queue at ``expires_at``."""
        self.deadlines.add(item, item.expires_at)
        self._until_tidy -= 1
        if not self._until_tidy:
            self._until_tidy = _TIDY_EVERY
            self.deadlines.tidy(self.count)

    def leave(self, client: bytes, count: int, size_bytes: int) -> None:
        """``count`` requests of this client, ``size_bytes`` in all, have left their queue."""
        self.count -= count
        self.size_bytes -= size_bytes
        share = self._shares[client]
        share.count -= count
        if share.count:
            share.size_bytes -= size_bytes
        else:
            del self._shares[client]

    def holds(self, client: bytes) -> bool:
        """True if a request of this client waits."""
        return client in self._shares

    def is_native(self, client: bytes) -> bool:
        """True if a request of this client waits and the client speaks the native dialect."""
        share = self._shares.get(client)
        return share is not None and share.is_native

    def clients_to_ask(self, now: float) -> Iterator[bytes]:
        """Clients whose requests wait and that were last asked ``client_check_interval_s`` ago."""
        interval_s = self._settings.client_check_interval_s
        if not interval_s:
            return
        for client, share in self._shares.items():
            if share.is_native and now - share.asked_at >= interval_s:
                share.asked_at = now
                yield client


def _is_due(item: Accepted | Bundle, expires_at: float) -> bool:
    # A request that was queued again with more time has a second entry.
    return item.is_queued and item.expires_at == expires_at
