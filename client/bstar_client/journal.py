"""The journals of clients and workers: reports of the shells, as records of ``bstar.records``.

The shells report the end of a call, the end of a handler and the changes of a session, in their own threads.
Each report becomes a record, and a thread of ``bstar.journal`` writes it. So no call waits for a disk. A
journal that cannot be written loses records and counts them.

A request is sampled by its identity alone, so client, nodes and worker record the same ones. Plain MDP has no
identities: the ``client`` of such a record begins with "mdp-", and nothing can be joined to it. A call that
is refused before the core has it is not recorded, because it has no request. Nor is a question to the broker
itself (mmi.*): no node records it, and no worker executes it.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal
from zlib import crc32

import msgspec

from bstar import records
from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    DeclinedError,
    HandlerError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    StreamInterruptedError,
)
from bstar.fleet import Fleet, Pair
from bstar.journal import Journal, JournalOptions
from bstar.wire.mmi import PREFIX
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import ActiveFound, ActiveLost, Connected, Disconnected, Event, FailedOver
from bstar_client.core.worker.dialects import Job

# Of an identity's 24 bytes the first name the client; the rest is the request's number.
_CLIENT_BYTES = 16
_PLAIN = "mdp-"
_NAME_MAX = 64
_PAIR_DEFAULT = "bstar"
_PAIR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # as the nodes' setting has it
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
# The first match counts; the tree of errors is in bstar.errors.
_OUTCOMES: tuple[tuple[type[BstarError], str], ...] = (
    (DeclinedError, "declined"),
    (HandlerError, "failed"),
    (BusyError, "busy"),
    (RejectedError, "rejected"),
    (NoActiveNodeError, "no-active"),
    (CallTimeoutError, "timeout"),
    (StreamInterruptedError, "interrupted"),
    (OutcomeUnknownError, "unknown"),
    (ClosedError, "closed"),
)
# Events and records have the same field names, except FailedOver.
_EVENT_RECORDS: dict[type[Event], type[records.Record]] = {
    Connected: records.Connected,
    Disconnected: records.Disconnected,
    ActiveFound: records.ActiveFound,
    ActiveLost: records.ActiveLost,
    FailedOver: records.FailedOver,
}


class JournalSettings(JournalOptions, frozen=True, kw_only=True):
    """Settings of a client's or worker's journal; the other fields are those of JournalOptions.

    ``pair``: the pair's name in its nodes' settings; it joins these records to theirs. ``name``: the name of
    this client or worker in its records: letters, digits, ``_`` and ``-``. Several may share one name, in one
    process or in many. Empty: "client" or "worker" and the machine's name.
    """

    pair: str = _PAIR_DEFAULT
    name: str = ""
    # Shorter than the time that a client's close() waits for its thread.
    close_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if _PAIR.fullmatch(self.pair) is None:
            raise ConfigurationError(
                f"journal: a pair's name is 1 to 64 letters, digits, '.', '_' and '-', not {self.pair!r}"
            )


JournalPlace = str | os.PathLike[str] | JournalSettings
"""What ``journal=`` takes: a directory, or settings."""

OpenJournal = Callable[[JournalPlace, Literal["client", "worker"], Sequence[str], str], Journal]
"""Opens a journal with a clock of its own, for the simulator: place, source, endpoints, service."""


class CallJournal:
    """A client's journals, one for each pair of its fleet. The client's thread calls it.

    A call is recorded in the journal of its pair, a change of a node in that of the node's. The pairs' names
    join the records to those of the nodes, so the pairs of a fleet need names. ``is_plain``: requests have no
    identities (MDP). ConfigurationError if a journal cannot be written, or for bad names.
    """

    def __init__(
        self, place: JournalPlace, fleet: Fleet, *, is_plain: bool, open_journal: OpenJournal | None = None
    ) -> None:
        opened = open_journal or _open_journal
        if len(fleet.pairs) > 1 and any(pair.name is None for pair in fleet.pairs):
            raise ConfigurationError(
                "a journal needs the names of its pairs: pass the endpoints as {name: [primary, backup], …}"
            )
        self._endpoints = [pair.endpoints for pair in fleet.pairs]
        self._journals: list[Journal] = []
        try:
            for pair in fleet.pairs:
                self._journals.append(opened(named_after(place, pair), "client", pair.endpoints, ""))
        except ConfigurationError:
            self.close()
            raise
        # All have the same settings, except the pair's name.
        self._limit = self._journals[0].limit
        self._clock = self._journals[0].clock
        self._weight = _weight_of(self._journals[0])
        self._prefix = _PLAIN if is_plain else ""
        self._offers = [journal.offer for journal in self._journals]
        self._identities = _identities() if is_plain else None

    def replied(self, call: Call, reply: Reply) -> None:
        """A PARTIAL of a stream, or the end of a call that was answered."""
        frames = reply.frames
        if not reply.is_final:
            call.bytes_out += sum(map(len, frames))
            return
        # Nearly all replies are one frame: 0.7 us less for each of them.
        size, crc = (len(frames[0]), crc32(frames[0])) if len(frames) == 1 else _measured(frames)
        for partial in reply.partials:
            size += sum(map(len, partial))
        self._ended(call, "answered", reply.endpoint, reply.epoch, size, crc)

    def failed(self, call: Call, error: BstarError) -> None:
        """The end of a call with an error."""
        self._ended(call, outcome_of(error), self._last_endpoint(call), 0, 0, None)

    def abandoned(self, call: Call) -> None:
        """The caller of this call has gone."""
        self._ended(call, "abandoned", self._last_endpoint(call), 0, 0, None)

    def _last_endpoint(self, call: Call) -> str:
        return self._endpoints[call.pair][call.node] if call.attempts else ""

    def _ended(self, call: Call, outcome: str, endpoint: str, epoch: int, size: int, crc: int | None) -> None:
        if call.service.startswith(PREFIX):
            return
        identity = call.identity if self._identities is None else next(self._identities)
        if identity and crc32(identity) < self._limit:
            now = self._clock()
            offer, make = self._offers[call.pair], self._make_call
            offer(now, make, identity, call, now, outcome, endpoint, epoch, size, crc)

    def _make_call(
        self, stamp: dict[str, Any], identity: bytes, call: Call, now: float, *ended: Any
    ) -> records.Call:
        """Make the record, in the journal's thread. ``call`` has ended, so it does not change any more."""
        outcome, endpoint, epoch, size, crc = ended
        return records.Call(
            **stamp,
            **_named(self._prefix, identity),
            service=call.service.decode("utf-8", "replace"),
            outcome=outcome,
            total_us=int((now - call.begun_at) * 1e6),
            attempts=call.attempts,
            busy=call.busy_count,
            endpoint=endpoint,
            epoch=epoch,
            is_idempotent=call.is_idempotent,
            bytes_in=call.bytes_in,
            bytes_out=call.bytes_out + size,
            reply_crc=crc,
            **self._weight,
        )

    def announced(self, event: Event) -> None:
        """The client's view of a pair has changed."""
        fields = msgspec.structs.asdict(event)
        if isinstance(event, FailedOver):
            fields["endpoint"] = fields.pop("to_endpoint")
            fields["gap_us"] = round(fields.pop("gap_s") * 1e6)
        for endpoints, journal in zip(self._endpoints, self._journals, strict=True):
            if fields["endpoint"] in endpoints:
                journal.write(_EVENT_RECORDS[type(event)], self._clock(), **fields)

    def close(self) -> None:
        """Write the last records and the end. Idempotent."""
        for journal in self._journals:
            journal.close("closed")


class WorkJournal:
    """A worker's journal. The worker's thread calls it. As CallJournal otherwise."""

    def __init__(
        self,
        place: JournalPlace,
        endpoints: Sequence[str],
        service: bytes,
        *,
        is_plain: bool,
        open_journal: OpenJournal | None = None,
    ) -> None:
        self._service = service.decode("utf-8", "replace")
        self._journal = (open_journal or _open_journal)(place, "worker", endpoints, self._service)
        self._clock = self._journal.clock
        self._endpoints = endpoints
        self._prefix = _PLAIN if is_plain else ""
        self._identities = _identities() if is_plain else None

    def handled(self, job: Job, body: Sequence[bytes], kind: str) -> None:
        """A handler has yielded a PARTIAL or has ended. An answer without an execution is not recorded."""
        if kind == "partial":
            job.bytes_out += sum(map(len, body))
        elif job.is_abandoned:
            return  # it was recorded when it was given up
        elif kind == "final":
            self._ended(job, "answered", job.ended_at, *_measured(body))
        elif kind in ("declined", "cancelled"):
            self._ended(job, kind, job.ended_at)
        elif kind in ("failure", "retry"):
            self._ended(job, "failed", job.ended_at)

    def given_up(self, job: Job) -> None:
        """A handler exceeded its time and was given up."""
        if job.began_at:
            self._ended(job, "stuck", self._clock())

    def _ended(
        self, job: Job, outcome: str, ended_at: float, bytes_out: int = 0, crc: int | None = None
    ) -> None:
        identity = job.identity if self._identities is None else next(self._identities)
        if self._journal.is_sampled(identity):
            fields = {
                "outcome": outcome,
                "epoch": job.epoch,
                "busy_us": int((ended_at - job.began_at) * 1e6),
                "endpoint": self._endpoints[job.node],
                "is_repeated": job.is_redelivered,
                "bytes_in": sum(map(len, job.body)),
                "bytes_out": job.bytes_out + bytes_out,
                "reply_crc": crc,
            }
            self._journal.offer(ended_at, self._make_execution, identity, fields)

    def _make_execution(
        self, stamp: dict[str, Any], identity: bytes, fields: dict[str, Any]
    ) -> records.Execution:
        """Make the record, in the journal's thread."""
        named = _named(self._prefix, identity)
        weight = _weight_of(self._journal)
        return records.Execution(**stamp, **named, **fields, service=self._service, **weight)

    def fenced(self, job: Job, epoch_seen: int) -> None:
        """A request of a superseded node was refused."""
        self._journal.write(
            records.Fenced,
            self._clock(),
            **_named(self._prefix, job.identity),
            service=self._service,
            epoch=job.epoch,
            epoch_seen=epoch_seen,
            endpoint=self._endpoints[job.node],
        )

    def registered(self, endpoint: str) -> None:
        """A node has registered the worker."""
        self._journal.write(records.Registered, self._clock(), endpoint=endpoint)

    def unregistered(self, endpoint: str, reason: str) -> None:
        """The session with a node ended."""
        self._journal.write(records.Unregistered, self._clock(), endpoint=endpoint, reason=reason)

    def close(self, unfinished: Sequence[Job] = (), reason: str = "closed") -> None:
        """Record the handlers that still run as given up, write the rest, and the end."""
        for job in unfinished:
            self.given_up(job)
        self._journal.close(reason)


def outcome_of(error: BstarError) -> str:
    """A call's outcome, as records.Call names it."""
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            return outcome
    raise AssertionError(f"no call ends with {type(error).__name__}")


def _measured(frames: Sequence[bytes]) -> tuple[int, int]:
    """The bytes of frames, and the CRC-32 of them joined."""
    size = crc = 0
    for frame in frames:
        size += len(frame)
        crc = crc32(frame, crc)
    return size, crc


def named_after(place: JournalPlace, pair: Pair) -> JournalPlace:
    """The journal's settings with the pair's name, if the pair has one."""
    if pair.name is None:
        return place
    settings = _settings_of(place)
    if settings.pair not in (_PAIR_DEFAULT, pair.name):
        raise ConfigurationError(
            f"journal: pair is {settings.pair!r} in JournalSettings, but {pair.name!r} in the endpoints"
        )
    return msgspec.structs.replace(settings, pair=pair.name)


def _settings_of(place: JournalPlace) -> JournalSettings:
    return place if isinstance(place, JournalSettings) else JournalSettings(os.fspath(place))


def _open_journal(
    place: JournalPlace, source: Literal["client", "worker"], endpoints: Sequence[str], service: str
) -> Journal:
    """Begin a journal. ConfigurationError for a directory that cannot be written to, and bad names."""
    settings = _settings_of(place)
    host = _NOT_IN_NAMES.sub("-", socket.gethostname().partition(".")[0]).strip("-")
    return Journal(
        settings,
        pair=settings.pair,
        node=settings.name or f"{source}-{host}"[:_NAME_MAX],
        source=source,
        clock=time.monotonic,
        started={"service": service, "endpoints": ",".join(endpoints)},
    )


def _weight_of(journal: Journal) -> dict[str, Any]:
    """The field ``weight`` of its records of requests. It is left out if each stands for itself alone."""
    return {} if journal.weight == 1 else {"weight": journal.weight}


def _named(prefix: str, identity: bytes) -> dict[str, Any]:
    """A request's identity, as records have it."""
    number = int.from_bytes(identity[_CLIENT_BYTES:], "big")
    return {"client": prefix + identity[:_CLIENT_BYTES].hex(), "number": number}


def _identities() -> Iterator[bytes]:
    """Unique identities for requests that have none."""
    own = os.urandom(_CLIENT_BYTES)
    return (own + number.to_bytes(8, "big") for number in itertools.count(1))
