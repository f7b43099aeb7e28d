"""EventMQ's messages as frozen structs, one for each command. ``bstar.wire.emq`` has their frames."""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from bstar.wire.emq_jobs import NO_HEADERS, Headers
from bstar.wire.limits import SERVICE_BYTES_MAX

# ``interval_s`` of a schedule that has cron times.
NO_INTERVAL = -1


class Wire(enum.Enum):
    """Whose side to take where the specification and the published program disagree."""

    PUBLISHED = "published"
    SPECIFICATION = "specification"


class Kind(enum.Enum):
    """What sends an INFORM."""

    WORKER = "worker"
    SCHEDULER = "scheduler"


class Queue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A queue that a job manager serves: of the workers of one name the highest ``weight`` goes first."""

    weight: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    name: Annotated[str, Meta(min_length=1, max_length=SERVICE_BYTES_MAX)]


class Inform(msgspec.Struct, frozen=True, gc=False):
    """Registers a job manager or a scheduler. No ``queues``: the router's default (EMQ-R-10)."""

    msgid: bytes
    kind: Kind
    queues: tuple[Queue, ...] = ()


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The router has registered the sender of the INFORM ``about``."""

    msgid: bytes
    about: bytes


class Ready(msgspec.Struct, frozen=True, gc=False):
    """One process of a job manager is free."""

    msgid: bytes


class Request(msgspec.Struct, frozen=True, gc=False):
    """A job for ``queue``; ``message`` is its JSON, as bytes. The router forwards it as it is."""

    msgid: bytes
    queue: str
    message: bytes
    headers: Headers = NO_HEADERS


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Without ``value``: the request ``about`` is at a worker. With it: its result, JSON (EMQ-R-07).

    From an admin socket ``about`` is a JSON object. As the specification has it there is one argument: it is
    read as ``value``, and ``about`` is the REPLY's own msgid.
    """

    msgid: bytes
    about: bytes
    value: bytes | None = None


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """The sender is alive; ``time_s`` is its clock, Unix seconds."""

    msgid: bytes
    time_s: float


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """Runs the job every ``interval_s`` seconds, or at the times of ``cron`` (then it is NO_INTERVAL)."""

    msgid: bytes
    queue: str
    message: bytes
    headers: Headers = NO_HEADERS
    interval_s: int = NO_INTERVAL
    cron: str = ""


class Unschedule(msgspec.Struct, frozen=True, gc=False):
    """Ends the schedule with the identity of the job in ``message``."""

    msgid: bytes
    queue: str
    message: bytes
    headers: Headers = NO_HEADERS


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Publishes ``message`` to those who subscribed to ``topic`` or to the beginning of it."""

    msgid: bytes
    topic: bytes
    message: bytes
    headers: Headers = NO_HEADERS


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Asks the receiver to end (EMQ-G-06); at a router if its operator allows that (EMQ-R-11)."""

    msgid: bytes


class Goodbye(msgspec.Struct, frozen=True, gc=False):
    """The sender leaves: KBYE, or the specification's KBAI; both are read (EMQ-R-05).

    A node of bstar gives it the msgid of the message that it does not take.
    """

    msgid: bytes


class Status(msgspec.Struct, frozen=True, gc=False):
    """An admin asks for the figures of the queues."""

    msgid: bytes


class ShowWorkers(msgspec.Struct, frozen=True, gc=False):
    """An admin asks for the connected job managers."""

    msgid: bytes


class ShowSchedulers(msgspec.Struct, frozen=True, gc=False):
    """An admin asks for the connected schedulers."""

    msgid: bytes


class Hello(msgspec.Struct, frozen=True, gc=False):
    """An admin has connected. It gets no answer."""

    msgid: bytes


Message = (
    Inform | Ack | Ready | Request | Reply | Heartbeat | Schedule | Unschedule | Publish | Disconnect
    | Goodbye | Status | ShowWorkers | ShowSchedulers | Hello
)  # fmt: skip
