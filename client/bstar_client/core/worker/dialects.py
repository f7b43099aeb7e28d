"""The dialects of a worker behind one interface.

The worker's core decides; a dialect encodes its decisions and decodes messages into ``Heard``. Plain
Majordomo and the Pirates have no epochs, no deadlines and no errors. There a handler's failure is a reply of
two frames, ``500`` and a text, because every request must end with exactly one reply (MDP2-W-07, PPP-W-03).

``beats_at_work``, ``hears_at_work``: whether worker and broker send heartbeats while a request is with the
worker. ``surplus_max``: how many requests may come beyond the worker's credit.
"""

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import batches, native, pirate
from bstar.wire.dialect import Envelope
from bstar.wire.extensions import NO_HEADERS, age_of, elsewhere_extension, headers_of, process_extension
from bstar.wire.limits import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX
from bstar.wire.mdp import MDP01, MDP02, Mdp, WorkerVerb
from bstar.wire.messages import NO_PROCESS, READS_BATCHES, READS_PROGRESS, ErrorCode, Process, Reason
from bstar.wire.progress import Progress
from bstar_client.core.candidacy import ACTIVE
from bstar_client.core.worker.progress import Latest


class Hearing(enum.Enum):
    """The commands of a broker to a worker."""

    REQUEST = enum.auto()
    REQUESTS = enum.auto()
    WELCOME = enum.auto()
    HEARTBEAT = enum.auto()
    DISCONNECT = enum.auto()
    CANCEL = enum.auto()


class Rows(msgspec.Struct, frozen=True, gc=False):
    """The requests of REQUESTS, as columns. The node has had them for ``age_s``.

    ``extensions``: those of each, None if no row has any.
    """

    identities: list[bytes]
    bodies: list[bytes]
    ttls_ms: list[int]
    extensions: list[bytes] | None
    age_s: float


class Heard(msgspec.Struct, frozen=True, gc=False):
    """One message of a broker; after ``epoch`` the fields of REQUEST, of REQUESTS, of WELCOME, of DISCONNECT.
    ``is_active``: the node serves, so it has taken this epoch.

    ``rows`` are those of REQUESTS.
    """

    kind: Hearing
    epoch: int = 0
    identity: bytes = b""
    body: list[bytes] = []
    ttl_ms: int = 0
    is_redelivered: bool = False
    extensions: bytes = b""
    rows: Rows | None = None
    takes_batches: bool = False
    takes_progress: bool = False
    heartbeat_s: float = 0.0
    expiry_s: float = 0.0
    reason: str = ""
    is_active: bool = False


class Job(msgspec.Struct, eq=False, gc=False):
    """One request at a worker, from its arrival until its reply or error is sent.

    ``identity`` is the native identity (24 bytes), or a plain protocol's client address. ``deadline`` is when
    the client stops waiting. ``connection`` is the connection it came by: its reply goes there or nowhere.
    """

    node: int
    connection: int
    identity: bytes
    body: list[bytes]
    epoch: int = 0
    deadline: float | None = None
    is_redelivered: bool = False
    extensions: bytes = b""
    # None: they are malformed, so the request is not executed.
    headers: Mapping[str, str] | None = NO_HEADERS
    # When the node accepted it, if it has extensions and the node has said so.
    accepted_at: float | None = None
    partials: int = 0
    # The frames of PARTIALs that wait for the one reply, and their bytes (``PlainWorker``).
    held: list[bytes] | None = None
    held_bytes: int = 0
    handler_ends_at: float | None = None
    # It came in a batch, so its reply may travel in one.
    is_batched: bool = False
    # Its reply or error has been sent or dropped; later results of its handler are too late.
    is_ended: bool = False
    # Its handler exceeded its time. When it returns, its thread must end.
    is_abandoned: bool = False
    # When its client or an operator gave it up, and what the handler wants to be called then. The core sets
    # the time before it reads the list; the handler's thread adds to the list before it reads the time.
    cancelled_at: float | None = None
    on_cancel: list[Callable[[], object]] | None = None
    # What its handler has reported of its progress, if who asks wants to know.
    latest: Latest | None = None
    # For the shell's journal: when its handler was called (0: not yet) and returned, and the bytes of its
    # PARTIALs.
    began_at: float = 0.0
    ended_at: float = 0.0
    bytes_out: int = 0


_HEARTBEAT = Heard(Hearing.HEARTBEAT)
# What a frame costs beside its bytes.
_FRAME_BYTES = 64


class NativeWorker:
    """The native dialect: epochs, deadlines, errors.

    ``heartbeat_s`` and ``expiry_s`` hold until a broker tells others in WELCOME. ``process``: what it sends
    about the worker's process. ``description``: the frame that describes the service.
    """

    is_confirming = True  # the broker confirms a registration
    beats_at_work = hears_at_work = True
    surplus_max = 0

    def __init__(
        self, heartbeat_s: float = 1.0, expiry_s: float = 3.0, process: Process = NO_PROCESS
    ) -> None:
        self.heartbeat_s = heartbeat_s
        self.expiry_s = expiry_s
        self.description = b""
        self._extensions = b"" if process == NO_PROCESS else process_extension(process)

    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int) -> list[bytes]:
        """Register: ``[header 09]``, and ``[description]`` if there is one.

        A worker that takes one request at a time has no use for batches.
        """
        return native.encode_ready(
            service,
            credit=credit,
            epoch=epoch,
            takes_batches=credit > 1,
            takes_extended=credit > 1,
            keepalive=keepalive,
            extensions=self._extensions + elsewhere_extension(elsewhere),
            description=self.description,
        )

    def heartbeat(self, epoch: int, elsewhere: int) -> list[bytes]:
        """``[header 0B]``"""
        return native.encode_heartbeat(epoch, elsewhere)

    def disconnect(self, epoch: int, is_unbegun: bool) -> list[bytes]:
        """Leave: ``[header 0C]``. ``is_unbegun``: nothing that the broker waits for was begun."""
        return native.encode_disconnect(Reason.GOODBYE, epoch, is_unbegun=is_unbegun)

    def partial(self, job: Job, body: list[bytes]) -> list[bytes]:
        """``[header 02] [body…]``"""
        return native.encode_partial(job.identity, job.epoch, job.partials, body)

    def progress(self, job: Job, progress: Progress) -> list[bytes]:
        """``[header 11] [numbers] [text]``"""
        return native.encode_progress(job.identity, job.epoch, progress)

    def final(self, job: Job, body: list[bytes]) -> list[bytes]:
        """``[header 03] [body…]``"""
        return native.encode_final(job.identity, job.epoch, job.partials, body)

    def finals(self, jobs: Sequence[Job], bodies: Sequence[bytes]) -> list[bytes]:
        """End several requests of one client, with one frame each: ``[header 0F] [table] [blob]``"""
        client_id, epoch = jobs[0].identity[:16], jobs[0].epoch
        return native.encode_finals(client_id, epoch, [number_of(job) for job in jobs], bodies)

    def failure(self, job: Job, code: int, text: bytes, *behind: bytes) -> list[bytes]:
        """End a request without a reply: ``[header 04] [text]`` and what is behind it
        (``native.encode_error``).
        """
        return native.encode_error(job.identity, job.epoch, code, text, *behind)

    def stale(self, job: Job, epoch: int) -> list[bytes]:
        """Refuse a request of an earlier epoch: ``[header 0D]``"""
        return native.encode_stale_epoch(job.identity, epoch)

    def read(self, frames: list[bytes]) -> Heard:
        """Read REQUEST, WELCOME, HEARTBEAT, DISCONNECT or CANCEL; RemoteProtocolError for anything else."""
        message = native.decode(frames)
        command = message.command
        if command == native.REQUEST:
            return Heard(
                Hearing.REQUEST,
                message.epoch,
                message.identity,
                message.body,
                message.value,
                bool(message.flags & native.FLAG_REDELIVERED),
                message.extensions,
                is_active=True,
            )
        if command == native.REQUESTS:
            return _requests(message)
        if command == native.HEARTBEAT:
            return Heard(Hearing.HEARTBEAT, message.epoch, is_active=message.value == ACTIVE)
        if command == native.WELCOME:
            welcome = native.decode_welcome(message)
            return Heard(
                Hearing.WELCOME,
                message.epoch,
                takes_batches=bool(welcome.status.features & READS_BATCHES),
                takes_progress=bool(welcome.status.features & READS_PROGRESS),
                heartbeat_s=welcome.heartbeat_ms / 1000,
                expiry_s=welcome.expiry_ms / 1000,
                is_active=welcome.status.state == ACTIVE,
            )
        if command == native.CANCEL:
            return Heard(Hearing.CANCEL, message.epoch, message.identity)
        if command == native.DISCONNECT:
            try:
                reason = Reason(message.value).name.lower()
            except ValueError:
                reason = f"reason {message.value}"
            return Heard(Hearing.DISCONNECT, message.epoch, reason=reason)
        raise RemoteProtocolError("native-command", f"a broker does not say {command:#04x} to a worker")


class PlainWorker(ABC):
    """A published protocol: one request at a time; no epochs, deadlines, progress, batches or errors."""

    is_confirming = False
    beats_at_work = True
    hears_at_work = True
    surplus_max = 0

    def __init__(self, heartbeat_s: float, expiry_s: float) -> None:
        self.heartbeat_s = heartbeat_s
        self.expiry_s = expiry_s

    @abstractmethod
    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int) -> list[bytes]:
        """Register; no plain protocol knows a credit but 1."""

    @abstractmethod
    def heartbeat(self, epoch: int, elsewhere: int) -> list[bytes]:
        """HEARTBEAT."""

    def disconnect(self, epoch: int, is_unbegun: bool) -> list[bytes]:
        """Nothing: the end of the connection is the worker's end."""
        return []

    @abstractmethod
    def reply(self, job: Job, body: list[bytes]) -> list[bytes]:
        """The message that ends a request."""

    def partial(self, job: Job, body: list[bytes]) -> list[bytes]:
        """Nothing yet: a request has one reply, so parts wait for its end."""
        job.held_bytes += sum(len(frame) + _FRAME_BYTES for frame in body)
        if job.held_bytes <= MESSAGE_BYTES_MAX:
            job.held = [*body] if job.held is None else job.held + body
        return []

    def final(self, job: Job, body: list[bytes]) -> list[bytes]:
        """The reply: the frames of all parts, then these."""
        if job.held_bytes > MESSAGE_BYTES_MAX:
            text = b"the parts of the reply have more than %d bytes" % MESSAGE_BYTES_MAX
            return self.failure(job, ErrorCode.HANDLER_FAILED, text)
        return self.reply(job, [*(job.held or ()), *body])

    def failure(self, job: Job, code: int, text: bytes, *behind: bytes) -> list[bytes]:
        """A reply of two frames: ``500`` and the text."""
        return self.reply(job, [b"500", text[:TEXT_BYTES_MAX]])

    def progress(self, job: Job, progress: Progress) -> list[bytes]:
        """There is no progress, and no way to ask for it."""
        raise AssertionError("plain protocols have no progress")

    def finals(self, jobs: Sequence[Job], bodies: Sequence[bytes]) -> list[bytes]:
        """There are no batches."""
        raise AssertionError("plain protocols have no batches")

    def stale(self, job: Job, epoch: int) -> list[bytes]:
        """There are no epochs, so no request is ever stale."""
        raise AssertionError("plain protocols have no epochs")

    @abstractmethod
    def read(self, frames: list[bytes]) -> Heard:
        """Read what a broker sends; RemoteProtocolError for anything else."""


class Mdp01Worker(PlainWorker):
    """Plain MDP/0.1 (7/MDP), heartbeat 2.5 s and three of them missed, as the published workers do.

    It leaves without DISCONNECT, as they do: the guide's broker in Python ends when a worker sends one. The
    guide's brokers send a worker no heartbeat while it works.
    """

    codec: ClassVar[Mdp] = MDP01
    hears_at_work = False

    def __init__(self, heartbeat_s: float = 2.5, expiry_s: float = 7.5) -> None:
        super().__init__(heartbeat_s, expiry_s)

    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int) -> list[bytes]:
        """READY for the service."""
        return self.codec.encode_ready(service)

    def heartbeat(self, epoch: int, elsewhere: int) -> list[bytes]:
        """HEARTBEAT."""
        return self.codec.encode_heartbeat()

    def reply(self, job: Job, body: list[bytes]) -> list[bytes]:
        """REPLY, in MDP/0.2 FINAL."""
        return self.codec.encode_final(job.identity, body)

    def read(self, frames: list[bytes]) -> Heard:
        """Read REQUEST, HEARTBEAT or DISCONNECT."""
        command = self.codec.decode_for_worker(frames)
        if command.verb is WorkerVerb.REQUEST:
            return Heard(Hearing.REQUEST, 0, command.client, command.body)
        if command.verb is WorkerVerb.HEARTBEAT:
            return _HEARTBEAT
        return Heard(Hearing.DISCONNECT, reason="the broker says so")


class Mdp02Worker(Mdp01Worker):
    """Plain MDP/0.2 (18/MDP): it has PARTIALs, and says DISCONNECT."""

    codec = MDP02
    hears_at_work = True

    def disconnect(self, epoch: int, is_unbegun: bool) -> list[bytes]:
        """``[MDPW02] [06]``"""
        return MDP02.encode_disconnect()

    def partial(self, job: Job, body: list[bytes]) -> list[bytes]:
        """``[MDPW02] [03] [client] [] [body…]``"""
        return MDP02.encode_partial(job.identity, body)


class ParanoidWorker(PlainWorker):
    """Paranoid Pirate (6/PPP), heartbeat 1 s and three of them missed, as the published workers do.

    It sends no heartbeat while it works, as they do: the guide's queue would give it a second request. Such
    a request may come all the same, and waits (PPP-W-06).
    """

    envelope: ClassVar[Envelope] = pirate.PARANOID
    beats_at_work = hears_at_work = False
    # As many as a published worker's socket holds.
    surplus_max = 1_000

    def __init__(self, heartbeat_s: float = 1.0, expiry_s: float = 3.0) -> None:
        super().__init__(heartbeat_s, expiry_s)

    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int) -> list[bytes]:
        """``[01]``; Pirates have no names for services."""
        return pirate.encode_ready(self.envelope)

    def heartbeat(self, epoch: int, elsewhere: int) -> list[bytes]:
        """``[02]``"""
        return [pirate.HEARTBEAT]

    def reply(self, job: Job, body: list[bytes]) -> list[bytes]:
        """``[address] [] [body…]``"""
        return pirate.encode_reply(self.envelope, job.identity, body)

    def read(self, frames: list[bytes]) -> Heard:
        """Read REQUEST or HEARTBEAT."""
        request = pirate.decode_for_worker(frames, self.envelope)
        return _HEARTBEAT if request is None else Heard(Hearing.REQUEST, 0, *request)


class SimpleWorker(ParanoidWorker):
    """Simple Pirate: all behind an empty frame, and no heartbeats, so only a broken connection is noticed."""

    envelope = pirate.SIMPLE

    def __init__(self, heartbeat_s: float = math.inf, expiry_s: float = math.inf) -> None:
        super().__init__(math.inf, math.inf)


WorkerDialect = NativeWorker | PlainWorker


def jobs_of(heard: Heard, node: int, connection: int, now: float) -> list[Job]:
    """The requests of a REQUEST or REQUESTS that came by this connection."""
    epoch, is_redelivered, rows = heard.epoch, heard.is_redelivered, heard.rows
    if rows is None:
        deadline = now + heard.ttl_ms / 1000 if heard.ttl_ms else None
        job = Job(node, connection, heard.identity, heard.body, epoch, deadline, is_redelivered)
        if heard.extensions:
            age_ms = age_of(heard.extensions)
            _extend(job, heard.extensions, None if age_ms is None else now - age_ms / 1000)
        return [job]
    jobs = [
        Job(
            node,
            connection,
            identity,
            [body],
            epoch,
            now + ttl_ms / 1000 if ttl_ms else None,
            is_redelivered,
            is_batched=True,
        )
        for identity, body, ttl_ms in zip(rows.identities, rows.bodies, rows.ttls_ms, strict=True)
    ]
    if rows.extensions is not None:
        for job, extensions in zip(jobs, rows.extensions, strict=True):
            if extensions:
                _extend(job, extensions, now - rows.age_s)
    return jobs


def _extend(job: Job, extensions: bytes, accepted_at: float | None) -> None:
    job.extensions = extensions
    job.accepted_at = accepted_at
    try:
        job.headers = headers_of(extensions)
    except RemoteProtocolError:
        job.headers = None


def number_of(job: Job) -> int:
    """The number in a native identity."""
    return int.from_bytes(job.identity[16:], "big")


def _requests(message: native.Message) -> Heard:
    table, blob = message.body[:2]
    _, ttls_ms, lengths, is_extended = batches.request_rows(message.body, 0)
    client_id, age_ms = message.identity[:16], message.value
    bodies = batches.bodies_of(blob, lengths)
    return Heard(
        Hearing.REQUESTS,
        message.epoch,
        rows=Rows(
            [client_id + table[at : at + 8] for at in range(0, len(table), batches.REQUEST_ROW_BYTES)],
            bodies,
            # Zero means no limit, so an expired request keeps one moment.
            [ttl_ms and max(1, ttl_ms - age_ms) for ttl_ms in ttls_ms],
            batches.take_extensions(bodies, table, 0, is_extended=True) if is_extended else None,
            age_ms / 1000,
        ),
        is_redelivered=bool(message.flags & native.FLAG_REDELIVERED),
        is_active=True,
    )
