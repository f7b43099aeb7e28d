"""The work of a broker: its workers, its requests, its load."""

from typing import Literal

from bstar.records.base import Base

FINISHED = ("answered", "declined", "failed")
"""Outcomes of requests, and of calls, that a handler ended."""


class WorkerRegistered(Base, frozen=True, tag="worker-registered"):
    """``worker`` is its routing id; ``credit`` how many requests it takes at once.

    ``dialect``: how it speaks, or the name of the front that it is behind.
    """

    worker: str
    service: str
    dialect: str
    credit: int = 1


class WorkerLost(Base, frozen=True, tag="worker-lost"):
    """A worker is off the list, and ``held`` requests went back to the queue.

    ``reason``: "drained" (it said goodbye and held nothing), "left" (with work in hand), "expired" (silent),
    "stuck" (silent for too long while it worked), "unreachable" (its connection was gone), "invalid" or
    "unexpected" (sent away).
    """

    worker: str
    service: str
    reason: Literal["drained", "left", "expired", "stuck", "unreachable", "invalid", "unexpected"]
    held: int = 0


class ServiceOrdered(Base, frozen=True, tag="service-ordered"):
    """An operator gave an order about a service, a worker or a request, or a pause is over; ``text`` says who
    and why.

    ``requests`` waited for the service, were purged, or were held by the worker. A pause ends after
    ``for_us``, or not by itself (0). ``about``: the worker's routing id, or the request's identity.
    """

    service: str
    order: Literal["pause", "resume", "purge", "drain-worker", "resume-worker", "cancel-request"]
    text: str
    requests: int = 0
    for_us: int = 0
    about: str = ""


class OrderGiven(Base, frozen=True, tag="order"):
    """``principal`` gave ``order`` ``id`` over the network, from ``address``, for ``epoch`` of the pair.

    ``reason``: empty if it was carried out (a switchover and a drain then have only begun); "refused" if it
    could not be; otherwise why this order is not taken (docs/operations.md, Refusals). ``text`` is what the
    command prints, ``arguments`` a JSON object.
    """

    principal: str
    order: str
    id: str
    address: str = ""
    epoch: int = 0
    arguments: str = ""
    reason: str = ""
    text: str = ""


class Request(Base, frozen=True, tag="request"):
    """An accepted request has ended at this node; ``at`` and ``mono`` are that moment.

    Its identity is ``client`` (32 hex digits) and ``number``, the same at both nodes, in every repetition
    and in the records of client and worker. A plain Majordomo client has no numbers: then ``client`` is
    "mdp-" with its routing id, and ``number`` this process's own. Behind a front it is "mdp-", the front's
    name, "-" and the routing id. A ``number`` of 2^62 or more comes from a key of the caller (BSN-G-14). The
    routing ids ``sender`` and ``worker``: where it came from, who had it last.

    ``outcome``: "answered"; "declined" or "failed" (the handler raised Declined, or anything else);
    "expired", "poison". "lost": the worker died after
    PARTIALs, at the request's end, or with a request that must not be executed twice. "returned": the node
    gave up its role, or the request left the queue for its client to send it again; ``worker`` is empty if
    no worker had it. "cancelled": its client gave it up, an operator cancelled it at a worker, or a durable
    request was cancelled. "late": a worker answered after "returned" or "cancelled", and no client got the
    reply.

    ``total_us`` counts from acceptance to the end, ``queued_us`` until the last dispatch, ``busy_us`` after
    it. ``deliveries`` counts those to workers. ``is_repeated``: an earlier attempt may have been executed.
    """

    client: str
    number: int
    service: str
    sender: str
    outcome: Literal[
        "answered", "declined", "failed", "expired", "poison", "lost", "cancelled", "returned", "late"
    ]
    epoch: int
    total_us: int
    queued_us: int = 0
    busy_us: int = 0
    worker: str = ""
    deliveries: int = 1
    is_repeated: bool = False
    partials: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    weight: float = 1.0


class Refused(Base, frozen=True, tag="refused"):
    """``count`` messages led to nothing for ``reason`` since the last such record; ``service`` if known."""

    reason: str
    count: int
    service: str = ""


class Load(Base, frozen=True, tag="load"):
    """One service in the ``interval_us`` that ends now; exact whatever the sampling.

    ``queued``, ``in_flight``, ``workers`` and ``credit`` (the requests that all workers take at once) are of
    this moment, ``busy_us`` is the time that workers held requests, summed over workers.
    """

    service: str
    interval_us: int
    workers: int
    credit: int
    queued: int
    in_flight: int
    busy_us: int
    accepted: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    expired: int = 0
    poisoned: int = 0
    lost: int = 0
    cancelled: int = 0
    returned: int = 0
    redelivered: int = 0
    duplicates: int = 0
    declined: int = 0


BrokerRecord = WorkerRegistered | WorkerLost | ServiceOrdered | OrderGiven | Request | Refused | Load
