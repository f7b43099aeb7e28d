"""What the broker reports to an observer, at the moment when it happens.

An observer is quick, does not raise and changes nothing. A broker without one pays nothing for it. Counters
are not reported: an observer reads them when it wants them.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from bstar.wire.messages import Finals
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord, WorkerRecord

Outcome = Literal[
    "answered", "declined", "failed", "expired", "poison", "lost", "cancelled", "returned", "late"
]
Order = Literal["pause", "resume", "purge", "drain-worker", "resume-worker", "cancel-request"]
LostBecause = Literal["drained", "left", "expired", "stuck", "unreachable", "invalid", "unexpected"]


class Observer(Protocol):
    """The words are those of ``bstar.records``."""

    def ended(
        self, request: Accepted, outcome: Outcome, epoch: int, reply: Sequence[bytes], now: float
    ) -> None:
        """An accepted request has ended at this node, in ``epoch``; ``reply`` is the message to its client.

        The request has an identity. After "returned" a worker may still have it, and it may end again:
        "late", or otherwise if its client came back for it.
        """

    def answered(self, bundles: Sequence[Bundle], replies: Finals, epoch: int, now: float) -> None:
        """As ``ended``, "answered", for requests that came and were answered in batches.

        ``replies.numbers`` names them; ``bundles`` has the bundle of each.
        """

    def registered(self, worker: WorkerRecord, now: float) -> None:
        """A worker registered."""

    def lost(self, worker: WorkerRecord, reason: LostBecause, now: float) -> None:
        """A worker is gone. Its ``in_flight`` are the requests that it still held."""

    def ordered(
        self,
        service: ServiceRecord,
        order: Order,
        why: str,
        now: float,
        *,
        requests: int = 0,
        for_s: float = 0.0,
        about: bytes = b"",
    ) -> None:
        """An operator gave an order about a service, or a pause is over. ``requests``: how many it met.

        ``about``: the routing id of the worker, or the identity of the request, that was meant.
        """

    def order_given(self, now: float, **fields: str | int) -> None:
        """An order came from elsewhere; ``fields`` are those of ``bstar.records.OrderGiven``."""

    def forgotten(self, service: ServiceRecord, now: float) -> None:
        """The record of a service that was forgotten long ago is dropped with its counters."""
