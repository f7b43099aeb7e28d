"""The work of the durable store: what becomes of durable requests, and what the store holds."""

from typing import Literal

from bstar.records.base import Base


class Durable(Base, frozen=True, tag="durable"):
    """A step of a durable request, on all disks that count. Both nodes record it, with the same ``entry``. A
    schedule has no steps; each of its requests has its own.

    ``client`` (32 hex digits) is its id. Attempts at it are requests of this ``client`` with the number 2^62.
    ``submission`` is its place in the order of submission: an id that was closed may be submitted again.
    ``entry`` is the number of the log entry that did it, 0 for "fetched".

    ``step``: "submitted" (it may be acknowledged), "attempt" (one failed, another follows), "answered",
    "dead" (for a ``cause``: failed, declined, poison, expired or rejected), "cancelled", "retried" (a dead
    letter is pending again), "fetched" (a client gets the answer), "closed" (a client wants it no more),
    "forgotten" (its time in the store is over). ``attempts`` counts those that failed. ``total_us`` counts
    from its submission to its end.
    """

    client: str
    submission: int
    service: str
    step: Literal[
        "submitted", "attempt", "answered", "dead", "cancelled", "retried", "fetched", "closed", "forgotten"
    ]
    entry: int
    epoch: int
    attempts: int = 0
    cause: str = ""
    total_us: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    reply_crc: int | None = None
    weight: float = 1.0


class StorePulse(Base, frozen=True, tag="store"):
    """What the durable store holds after the entry ``entry``, with each pulse.

    The counts are exact whatever the sampling. ``text`` says why the store does not lead though it should.
    """

    is_leading: bool
    copies: int
    epoch: int
    entry: int
    pending: int
    answered: int
    dead: int
    cancelled: int
    text: str = ""


StoreRecord = Durable | StorePulse
