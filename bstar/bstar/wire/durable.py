"""Durable requests: the bodies of the services whose names begin with ``store.``.

A durable operation is a request to the broker itself, so it has the identity, the deadline and the failover
of every request. Each body is one frame, a MessagePack array; ``Service`` names them:

    store.submit  Submit      answer: [Receipt]           the request is on both disks
    store.schedule Schedule   answer: [Receipt]           the request is stored, to begin again and again
    store.result  Fetch       answer: [Standing] [reply…] at once if it has ended, or when ``wait_ms`` is over
    store.status  Fetch       answer: [Standing]
    store.close   id          answer: [Standing]          forget it: its standing before that
    store.cancel  id          answer: [Standing]          never begin it again
    store.retry   id          answer: [Standing]          let a dead letter run again, with no failed attempts
    store.list    Filter      answer: [Listing]           the requests of a filter, a page at a time

An id has 16 bytes: 6 of Unix milliseconds and 10 random ones, or a hash of service and key. The client makes
it, so a submit whose answer was lost is sent again as the same one. Docs: docs/durable.md.
"""

import enum
from hashlib import blake2b
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError
from bstar.wire.limits import GROUP_CHARS_MAX, HEADERS_BYTES_MAX, SERVICE_BYTES_MAX
from bstar.wire.progress import Progress

PREFIX = b"store."
ID_BYTES = 16
# The greatest ``expires_ms`` and ``attempts_max`` are no bound: age or failures never end such a request.
FOREVER_MS = 2**42
ENDLESS = 1_000_000

_Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
# Unix milliseconds, and spans of them: a hundred years.
_Milliseconds = Annotated[int, Meta(ge=0, le=FOREVER_MS)]
_Count = Annotated[int, Meta(ge=0, le=ENDLESS)]
_Priority = Annotated[int, Meta(ge=0, le=9)]


class Service(enum.Enum):
    """The services of the store."""

    SUBMIT = b"store.submit"
    SCHEDULE = b"store.schedule"
    RESULT = b"store.result"
    STATUS = b"store.status"
    CLOSE = b"store.close"
    CANCEL = b"store.cancel"
    RETRY = b"store.retry"
    LIST = b"store.list"


class State(enum.IntEnum):
    """Where a durable request is. The numbers are on the wire and on disks, and never change."""

    UNKNOWN = 0  # never submitted, closed, or forgotten after its time
    PENDING = 1  # waits for its time, for a worker, or for the end of an attempt
    ANSWERED = 2
    DEAD = 3  # all attempts failed, or its time ended: a dead letter
    CANCELLED = 4
    SCHEDULED = 5  # a schedule: each of its times makes a pending request


class Cause(enum.IntEnum):
    """Why a request is dead. The numbers are on the wire and on disks, and never change."""

    NONE = 0
    FAILED = 1  # its handler failed in each attempt, or declined it: the text tells (``wire.declined``)
    POISON = 2  # every worker that got it was lost
    EXPIRED = 3  # its time ended before an attempt succeeded
    REJECTED = 4  # the broker or the worker cannot take it at all


class Serial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Submit's ``priority`` if it is of a group. A release without groups refuses a Submit that has this.
    So no node of a pair ever executes it out of order.
    """

    priority: _Priority
    group: Annotated[str, Meta(min_length=1, max_length=GROUP_CHARS_MAX)]


class Submit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Store a request to ``service``. 0 takes the store's default.

    It begins at ``at_ms`` (Unix time), or ``delay_ms`` after it was stored, and dies ``expires_ms`` after it
    was stored. It is tried ``attempts_max`` times, ``backoff_ms`` after the first failure and twice as long
    after each further one, ``backoff_max_ms`` at most. Of one service the highest ``priority`` goes first.
    Of one service and group one is executed at a time, in the order in which they were stored.
    FOREVER_MS and ENDLESS: it never dies of its age or its failures. ``headers`` are extensions (BSN-G-19),
    which a node of a release without them leaves out.
    """

    id: _Id
    service: Annotated[bytes, Meta(min_length=1, max_length=SERVICE_BYTES_MAX)]
    body: Annotated[list[bytes], Meta(min_length=1)]
    at_ms: _Milliseconds = 0
    delay_ms: _Milliseconds = 0
    expires_ms: _Milliseconds = 0
    attempts_max: _Count = 0
    backoff_ms: _Milliseconds = 0
    backoff_max_ms: _Milliseconds = 0
    priority: _Priority | Serial = 0
    headers: Annotated[bytes, Meta(max_length=HEADERS_BYTES_MAX)] = b""

    @property
    def group(self) -> str:
        """Its serial group, or ""."""
        return self.priority.group if isinstance(self.priority, Serial) else ""


class Missed(enum.IntEnum):
    """What becomes of a schedule's times that passed while no node served. The numbers never change."""

    SKIP = 0
    ONCE = 1  # one request for all of them
    EACH = 2  # a request for each, the last thousand


class Repeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The times of a schedule: every ``every_ms``, or those of a cron expression of five fields in ``zone``
    (an IANA name). A request for a time has ``expires_ms`` from then on, 0: no end. After ``runs`` requests
    the schedule is over, 0: no bound.
    """

    every_ms: _Milliseconds = 0
    cron: Annotated[str, Meta(max_length=256)] = ""
    zone: Annotated[str, Meta(max_length=64)] = "UTC"
    missed: Missed = Missed.SKIP
    expires_ms: _Milliseconds = 0
    runs: _Count = 0


class Schedule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Make a request like ``submit`` at each of the times of ``repeat``. The id of ``submit`` is that of the
    schedule; its ``at_ms`` or ``delay_ms`` is the earliest time of the first.
    """

    submit: Submit
    repeat: Repeat


class Receipt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The request is stored. ``is_new``: it was not before."""

    id: _Id
    is_new: bool
    state: int


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ask for a request's end; wait for it ``wait_ms`` at most."""

    id: _Id
    wait_ms: _Milliseconds = 0


class Standing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of a request. Times are Unix milliseconds, or 0. ``last_ms`` is the last time for which a
    schedule made a request. ``progress``: what a handler that runs has reported last at the node that
    answers; no disk has it.
    """

    id: _Id
    state: int
    service: bytes = b""
    attempts: int = 0
    submitted_ms: int = 0
    due_ms: int = 0
    ended_ms: int = 0
    expires_ms: int = 0
    priority: int = 0
    cause: int = 0
    text: str = ""
    body_bytes: int = 0
    answer_bytes: int = 0
    last_ms: int = 0
    progress: Progress | None = None
    group: str = ""


class Filter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which requests to list, in order of submission. ``after`` is the ``next`` of the page before.

    ``service`` b"" is every one, ``state`` 0 as well. ``older_ms``: submitted that long ago or longer.
    """

    service: bytes = b""
    state: int = 0
    older_ms: _Milliseconds = 0
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    with_bodies: bool = False


class Listing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One page. ``next`` is 0 after the last one. With bodies: those of ``standings``, in their order."""

    standings: list[Standing]
    next: int
    bodies: list[list[bytes]] = []


T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_DECODERS = {
    kind: msgspec.msgpack.Decoder(kind).decode
    for kind in (Submit, Schedule, Receipt, Fetch, Standing, Filter, Listing)
}


def encode(message: Submit | Schedule | Receipt | Fetch | Standing | Filter | Listing) -> bytes:
    """The frame of a message."""
    return _encode(message)


def decode(frame: bytes, kind: type[T]) -> T:
    """Read one frame as a message of this kind. RemoteProtocolError if it is invalid."""
    try:
        message = _DECODERS[kind](frame)  # type: ignore[index]
    except UNDECODABLE as error:
        raise RemoteProtocolError("durable", f"no {kind.__name__}: {error}") from error
    assert isinstance(message, kind)
    return message


def new_id(now_ms: int, random: bytes) -> bytes:
    """An id: ids made later are greater, so stores append; ``random`` (10 bytes) makes it unguessable."""
    return now_ms.to_bytes(6, "big") + random


def run_id(schedule: bytes, at_ms: int) -> bytes:
    """The id of the request that a schedule makes for this time: the same, however often it is tried."""
    return blake2b(schedule + at_ms.to_bytes(8, "big"), digest_size=ID_BYTES).digest()


def keyed_id(service: bytes, key: bytes) -> bytes:
    """The id of the request to ``service`` with this key, whoever submits it.

    BLAKE2b of 16 bytes over the service's length (1 byte), its name and the key.
    """
    return blake2b(len(service).to_bytes(1, "big") + service + key, digest_size=ID_BYTES).digest()
