"""The messages that consumers have, or are to get next: PZQ's marks "in flight".

They are in memory only. After a failover or a restart each message without an acknowledgement is pending.

    held --take--> sent --end--> gone
     ^              |
     +----hold------+    the socket had no room

A message that is in neither state may be acknowledged: late, while it is pending again. It is on its way here
until its end has been applied, so its key is remembered.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

# Late acknowledgements that are remembered.
_LATE_MAX = 10_000


class Delivery(msgspec.Struct, gc=False):
    """One message; ``identity`` is its request's. Its acknowledgement is late from ``until`` on."""

    number: int
    key: bytes
    identity: bytes
    body: list[bytes]
    until: float = 0.0
    is_sent: bool = False

    @property
    def size_bytes(self) -> int:
        """The bytes of the body."""
        return sum(map(len, self.body))


class Deliveries:
    """All of them by key. ``held`` counts those that wait for room in the socket."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Delivery] = {}
        # Numbers of held ones, the smallest first; some may have ended.
        self._waiting: list[tuple[int, bytes]] = []
        # Those that were sent, in order.
        self._sent: dict[bytes, Delivery] = {}
        self._late: dict[bytes, None] = {}
        self._numbers = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def held(self) -> int:
        """How many wait for room."""
        return len(self._by_key) - len(self._sent)

    def add(self, key: bytes, identity: bytes, body: list[bytes]) -> bool:
        """A message is to be sent; False if there is one with this key."""
        if key in self._by_key:
            return False
        self._numbers += 1
        delivery = Delivery(self._numbers, key, identity, body)
        self._by_key[key] = delivery
        self.size_bytes += delivery.size_bytes
        heappush(self._waiting, (delivery.number, key))
        return True

    def take(self, until: float) -> Delivery | None:
        """The held one that came first, or None; it counts as sent."""
        while self._waiting:
            number, key = heappop(self._waiting)
            delivery = self._by_key.get(key)
            if delivery is not None and delivery.number == number and not delivery.is_sent:
                delivery.is_sent, delivery.until = True, until
                self._sent[key] = delivery
                return delivery
        return None

    def hold(self, key: bytes) -> None:
        """It could not be sent."""
        delivery = self._sent.pop(key, None)
        if delivery is not None:
            delivery.is_sent = False
            heappush(self._waiting, (delivery.number, key))

    def end(self, key: bytes) -> Delivery | None:
        """It is acknowledged, or goes back to the queue; None if it is not here."""
        delivery = self._by_key.pop(key, None)
        if delivery is not None:
            self._sent.pop(key, None)
            self.size_bytes -= delivery.size_bytes
        return delivery

    def end_held(self) -> Iterator[Delivery]:
        """End those that wait for room."""
        for key in [key for key, delivery in self._by_key.items() if not delivery.is_sent]:
            delivery = self.end(key)
            assert delivery is not None
            yield delivery

    def end_late(self, now: float) -> Iterator[Delivery]:
        """End those whose acknowledgement is late."""
        while (until := self.late_at()) is not None and now >= until:
            delivery = self.end(next(iter(self._sent)))
            assert delivery is not None
            yield delivery

    def late_at(self) -> float | None:
        """When the acknowledgement of the first one is late."""
        return next(iter(self._sent.values())).until if self._sent else None

    def remember(self, key: bytes) -> None:
        """It was acknowledged while it was not here."""
        self._late[key] = None
        if len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]

    def recall(self, key: bytes) -> bool:
        """True if it was acknowledged while it was not here; that is forgotten now."""
        if key not in self._late:
            return False
        del self._late[key]
        return True

    def clear(self) -> None:
        """Forget all."""
        self._by_key.clear()
        self._waiting.clear()
        self._sent.clear()
        self._late.clear()
        self.size_bytes = 0
