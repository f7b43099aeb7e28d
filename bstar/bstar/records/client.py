"""Calls of a client, and the nodes that it reached."""

from typing import Literal

from bstar.records.base import Base


class Call(Base, frozen=True, tag="call"):
    """A client's request has ended for its caller; ``at`` and ``mono`` are that moment.

    Questions to the broker itself (``mmi.``) have no records. ``outcome``: "answered"; "declined" or "failed"
    (the handler raised Declined, or anything else); certainly not executed: "busy", "rejected",
    "no-active"; not known: "timeout", "unknown", "interrupted" (a stream), "closed", "abandoned" (the caller
    went away). ``attempts`` counts how often it was sent (0: it was not, or it shared the request of another
    call with its key), ``busy`` how often a broker said BUSY. ``endpoint`` is where the reply came from, or
    the last attempt went to. ``bytes_out`` counts the reply with its PARTIALs.
    """

    client: str
    number: int
    service: str
    outcome: Literal[
        "answered",
        "declined",
        "failed",
        "busy",
        "rejected",
        "no-active",
        "timeout",
        "unknown",
        "interrupted",
        "closed",
        "abandoned",
    ]
    total_us: int
    attempts: int = 1
    busy: int = 0
    endpoint: str = ""
    epoch: int = 0
    is_idempotent: bool = True
    bytes_in: int = 0
    bytes_out: int = 0
    reply_crc: int | None = None
    weight: float = 1.0


class Connected(Base, frozen=True, tag="connected"):
    """The client's connection to a node is up."""

    endpoint: str


class Disconnected(Base, frozen=True, tag="disconnected"):
    """It broke, or could not be made."""

    endpoint: str
    reason: str


class ActiveFound(Base, frozen=True, tag="active-found"):
    """The client follows this node."""

    endpoint: str
    epoch: int


class ActiveLost(Base, frozen=True, tag="active-lost"):
    """The client stops following it; ``outstanding`` requests waited for replies."""

    endpoint: str
    reason: str
    outstanding: int


class FailedOver(Base, frozen=True, tag="failed-over"):
    """The client follows another node than before; for ``gap_us`` it knew of none."""

    endpoint: str
    from_endpoint: str
    reason: str
    epoch: int
    outstanding: int
    gap_us: int


ClientRecord = Call | Connected | Disconnected | ActiveFound | ActiveLost | FailedOver
