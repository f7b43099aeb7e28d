"""Durable requests as an application sees them: what it submits, what it hears of it, and their messages.

No sockets, no threads, no event loop: both clients use it. ``bstar.wire.durable`` has the frames,
docs/durable.md what a store promises.
"""

import enum
import os
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from bstar.errors import (
    ConfigurationError,
    DeadLetterError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestCancelledError,
    UnknownRequestError,
)
from bstar.printable import printable
from bstar.wire import durable, mmi
from bstar.wire.durable import (
    Cause,
    Fetch,
    Filter,
    Listing,
    Missed,
    Receipt,
    Repeat,
    Schedule,
    Standing,
    State,
    Submit,
)
from bstar.wire.extensions import headers_extensions
from bstar_client.bodies import to_frames, to_name
from bstar_client.checks import check_flag, to_count, to_milliseconds
from bstar_client.core.calls import Body, Reply
from bstar_client.requests import to_key

# As on the wire: a hundred years and more.
_MS_MAX = 2**42
_ATTEMPTS_MAX = 1_000_000
_ID = re.compile(r"[0-9a-fA-F]{32}")
# One question for a result waits this long at a node. A client that waits longer asks again.
_POLL_S_MAX = 20.0
# The pause before the next question if a node does not wait, doubled each time.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
_PAGE = 500
# A page with bodies is one message.
_PAGE_WITH_BODIES = 16

MISSED = tuple(each.name.lower() for each in Missed)
STATES = tuple(state.name.lower() for state in State if state is not State.UNKNOWN)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How a durable request is tried. None takes the store's default.

    ``max``: attempts at most, the first included. ``backoff``: seconds after the first failed attempt, twice
    as long after each further one, ``backoff_max`` at most.
    """

    max: int | None = None
    backoff: float | None = None
    backoff_max: float | None = None


class Task(msgspec.Struct, frozen=True, gc=False):
    """One body for ``submit_many`` with its own options, which are those of ``submit``."""

    body: Body
    key: bytes | str | None = None
    delay: float | None = None
    at: datetime | float | None = None
    expires: float | None = None
    retries: RetryPolicy | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None


class Result(msgspec.Struct, frozen=True, gc=False):
    """The answer to a durable request. ``frames`` is its body, one frame or more.

    ``attempts`` counts the executions, with the one that answered. Times are Unix seconds.
    """

    id: str
    frames: tuple[bytes, ...]
    attempts: int
    submitted_at: float
    ended_at: float

    @property
    def body(self) -> bytes:
        """The one frame of the answer. ValueError if there are several: read ``frames``."""
        if len(self.frames) != 1:
            raise ValueError(
                f"the answer has {len(self.frames)} frames: read .frames, .body is for answers of one"
            )
        return self.frames[0]


class RequestStatus(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a request.

    ``state``: ``"pending"``, ``"answered"``, ``"dead"``, ``"cancelled"``, ``"scheduled"``, or ``"unknown"``
    if the store does not have it. ``attempts`` counts those that have ended. ``cause`` of a dead letter:
    ``"failed"``, ``"poison"``, ``"expired"`` or ``"rejected"``; ``text`` is what the last attempt said. Times
    are Unix seconds, None where there is none; ``due_at`` is the time of the next attempt, or the next one of
    a schedule, ``last_at`` the last for which a schedule made a request. ``frames``: its body, if asked for.
    """

    id: str
    state: str
    service: str = ""
    attempts: int = 0
    submitted_at: float | None = None
    due_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    priority: int = 0
    cause: str = ""
    text: str = ""
    body_bytes: int = 0
    answer_bytes: int = 0
    frames: tuple[bytes, ...] = ()
    last_at: float | None = None


# --- what a client says -------------------------------------------------------------------------------------


def submit_frame(service: str | bytes, task: Task) -> bytes:
    """The frame of Submit, with a new id or that of the key. Sent again, it asks for the same request.
    TypeError or LocalProtocolError if it cannot be.
    """
    return durable.encode(_to_submit(service, task))


def schedule_frame(
    service: str | bytes, task: Task, *, every: float | None, cron: str | None, zone: str, missed: str
) -> bytes:
    """The frame of Schedule; see ``submit_frame``."""
    if (every is None) == (cron is None):
        raise LocalProtocolError("a schedule has either an interval, every, or a cron expression, cron")
    if every is not None and zone != "UTC":
        raise LocalProtocolError("zone is for cron: the times of an interval have none")
    if missed not in MISSED:
        raise LocalProtocolError(f"missed is one of {', '.join(MISSED)}, not {missed!r}")
    for value, name in ((cron, "cron"), (zone, "zone")):
        if not isinstance(value, str | None):
            raise TypeError(f"{name} is a text, not {type(value).__name__}")
    repeat = Repeat(
        _to_span_ms(every, "every", least=1_000),
        cron or "",
        zone,
        Missed[missed.upper()],
        _to_span_ms(task.expires, "expires", least=1),
    )
    submit = _to_submit(service, msgspec.structs.replace(task, expires=None))
    return durable.encode(Schedule(submit, repeat))


def _to_submit(service: str | bytes, task: Task) -> Submit:
    name = to_name(service)
    if name.startswith((durable.PREFIX, mmi.PREFIX)):
        raise LocalProtocolError(f"services named mmi. and store. belong to the broker: {printable(name)}")
    key = to_key(task.key)
    if key is None:
        request_id = durable.new_id(time.time_ns() // 1_000_000, os.urandom(10))
    else:
        request_id = durable.keyed_id(name, key)
    if task.delay is not None and task.at is not None:
        raise LocalProtocolError("delay and at both say when it begins: give one of them")
    policy = RetryPolicy() if task.retries is None else task.retries
    if not isinstance(policy, RetryPolicy):
        raise TypeError(f"retries is a RetryPolicy or None, not {type(policy).__name__}")
    at_ms, delay_ms = _to_time_ms(task.at), _to_span_ms(task.delay, "delay")
    expires_ms = _to_span_ms(task.expires, "expires", least=1)
    if 0 < expires_ms <= max(delay_ms, at_ms - time.time_ns() // 1_000_000):
        raise LocalProtocolError("it expires before it begins: expires counts from the submit, too")
    return Submit(
        request_id,
        name,
        to_frames(task.body),
        at_ms=at_ms,
        delay_ms=delay_ms,
        expires_ms=expires_ms,
        attempts_max=0 if policy.max is None else _to_number(policy.max, "max", 1, _ATTEMPTS_MAX),
        # On the wire 0 is the default.
        backoff_ms=0 if policy.backoff is None else max(1, _to_span_ms(policy.backoff, "backoff")),
        backoff_max_ms=_to_span_ms(policy.backoff_max, "backoff_max", least=1),
        priority=_to_number(task.priority, "priority", 0, 9),
        headers=headers_extensions(task.headers) if task.headers else b"",
    )


# ``Requests.carried``.
Carry = Callable[[Mapping[str, str] | None], Mapping[str, str] | None]


def submit_frames(service: str | bytes, bodies: Iterable[Body | Task], carry: Carry) -> Iterator[bytes]:
    """The frames of Submit of many bodies. An error has the body's position in a note."""
    for index, body in enumerate(bodies):
        yield _frame_of_many(service, body, index, carry)


async def submit_frames_async(
    service: str | bytes, bodies: AsyncIterable[Body | Task], carry: Carry
) -> AsyncIterator[bytes]:
    """The same of an async iterable."""
    index = 0
    async for body in bodies:
        yield _frame_of_many(service, body, index, carry)
        index += 1


def _frame_of_many(service: str | bytes, body: Body | Task, index: int, carry: Carry) -> bytes:
    task = body if isinstance(body, Task) else Task(body)
    try:
        return submit_frame(service, msgspec.structs.replace(task, headers=carry(task.headers)))
    except (LocalProtocolError, TypeError) as error:
        error.add_note(f"body {index} of submit_many()")
        raise


def to_id(request_id: object) -> bytes:
    """The octets of an id. TypeError or LocalProtocolError if it is none."""
    if not isinstance(request_id, str):
        raise TypeError(f"an id is the text that submit returned, not {type(request_id).__name__}")
    if _ID.fullmatch(request_id) is None:
        raise LocalProtocolError(
            f'an id has 32 hexadecimal digits, as submit returned it; this is none: "{printable(request_id)}"'
        )
    return bytes.fromhex(request_id)


def fetch_frame(request_id: object) -> bytes:
    """The frame that asks for a request's state."""
    return durable.encode(Fetch(to_id(request_id)))


class Pages:
    """The pages of a list: ``frame`` asks for the next one, ``read`` takes it, until ``is_over``."""

    def __init__(
        self, service: str | bytes | None, state: str | None, older: float | None, bodies: bool
    ) -> None:
        if state is not None and state not in STATES:
            raise LocalProtocolError(f"state is one of {', '.join(STATES)}, not {state!r}")
        check_flag(bodies, "bodies")
        self._filter = Filter(
            b"" if service is None else to_name(service),
            0 if state is None else State[state.upper()],
            _to_span_ms(older, "older"),
            limit=_PAGE_WITH_BODIES if bodies else _PAGE,
            with_bodies=bodies,
        )
        self._next = 0
        self.is_over = False

    def restart(self) -> None:
        """Begin with the first page, at another pair."""
        self._next = 0
        self.is_over = False

    def frame(self) -> bytes:
        """The question for the next page."""
        return durable.encode(msgspec.structs.replace(self._filter, after=self._next))

    def read(self, reply: Reply) -> Iterator[RequestStatus]:
        """The requests on the page that came."""
        listing = durable.decode(reply.frames[0], Listing)
        # A page that leads to itself would never end.
        if listing.next and listing.next <= self._next:
            raise RemoteProtocolError("durable", f"page {self._next} is followed by {listing.next}")
        self._next = listing.next
        self.is_over = not listing.next
        bodies = listing.bodies or [[]] * len(listing.standings)
        if len(bodies) != len(listing.standings):
            raise RemoteProtocolError("durable", "a page has not one body for each request")
        return (
            _status(standing, tuple(body)) for standing, body in zip(listing.standings, bodies, strict=True)
        )


class Polls:
    """The questions of one ``result``: each waits at the node for a while, until the caller's ``wait`` is
    over. ``wait`` None: until it has ended.
    """

    def __init__(self, request_id: object, wait: float | None, now: float) -> None:
        self._id = to_id(request_id)
        self._until = None if wait is None else now + to_milliseconds(wait, "wait", _MS_MAX) / 1000
        self._pause_s = _PAUSE_S_MIN
        self._began_at = now
        self.poll_s = 0.0

    def frame(self, now: float) -> bytes:
        """The next question; it waits for ``poll_s`` at the node."""
        left_s = _POLL_S_MAX if self._until is None else max(0.0, min(self._until - now, _POLL_S_MAX))
        poll_ms = to_milliseconds(left_s, "wait", _MS_MAX)
        self.poll_s = poll_ms / 1000
        self._began_at = now
        return durable.encode(Fetch(self._id, poll_ms))

    def is_over(self, now: float) -> bool:
        """True if the caller has waited as long as it wanted."""
        return self._until is not None and now >= self._until

    def pause_s(self, now: float) -> float:
        """How long to pause before the next question: a node that did not wait shall not be asked at once."""
        if now - self._began_at >= self.poll_s:
            self._pause_s = _PAUSE_S_MIN
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_S_MAX)
        return pause_s if self._until is None else max(0.0, min(pause_s, self._until - now))

    def read(self, reply: Reply) -> Result | None:
        """The answer; None if the request is pending. DeadLetterError, RequestCancelledError or
        UnknownRequestError if there will be none, LocalProtocolError if it is a schedule.
        """
        standing = _standing(reply, self._id)
        if standing.state == State.PENDING:
            return None
        request_id = self._id.hex()
        if standing.state == State.ANSWERED:
            frames = reply.frames[1:]
            if not frames:
                raise RemoteProtocolError("durable", f"the answer to {request_id} has no frame")
            times = standing.submitted_ms / 1000, standing.ended_ms / 1000
            # The store counts the failed ones.
            return Result(request_id, frames, standing.attempts + 1, *times)
        what = f'durable request {request_id} of service "{printable(standing.service)}"'
        if standing.state == State.DEAD:
            cause = _name_of(Cause, standing.cause)
            raise DeadLetterError(
                f"{what} is a dead letter after {standing.attempts} attempt{'s'[: standing.attempts != 1]}: "
                + (f"{cause}: {printable(standing.text)}" if standing.text else cause),
                request_id=request_id,
                cause=cause,
                said=standing.text,
                attempts=standing.attempts,
            )
        if standing.state == State.CANCELLED:
            raise RequestCancelledError(f"{what} was cancelled", request_id=request_id)
        if standing.state == State.UNKNOWN:
            raise UnknownRequestError(
                f"the store has no durable request {request_id}: it was never submitted, or was closed, or "
                "was forgotten after its time",
                request_id=request_id,
            )
        if standing.state == State.SCHEDULED:
            raise LocalProtocolError(f"{request_id} is a schedule: its requests have answers, it has none")
        raise RemoteProtocolError("durable", f"the node names an unknown state, {standing.state}")


# --- what a client hears ------------------------------------------------------------------------------------


def read_receipt(reply: Reply) -> str:
    """The id of the request that is stored."""
    return durable.decode(reply.frames[0], Receipt).id.hex()


def read_schedule_receipt(reply: Reply) -> str:
    """The id of the schedule. RequestCancelledError if the store knows it and it has ended."""
    receipt = durable.decode(reply.frames[0], Receipt)
    if receipt.state == State.CANCELLED:
        text = "was cancelled, or its times are over: close it, then schedule it again"
        raise RequestCancelledError(f"schedule {receipt.id.hex()} {text}", request_id=receipt.id.hex())
    return receipt.id.hex()


def read_status(reply: Reply, request_id: str) -> RequestStatus:
    """What the store knows of this request."""
    return _status(_standing(reply, to_id(request_id)))


def _standing(reply: Reply, request_id: bytes) -> Standing:
    standing = durable.decode(reply.frames[0], Standing)
    if standing.id != request_id:
        raise RemoteProtocolError("durable", f"the node answers for another request, {standing.id.hex()}")
    return standing


def _status(standing: Standing, frames: tuple[bytes, ...] = ()) -> RequestStatus:
    return RequestStatus(
        standing.id.hex(),
        _name_of(State, standing.state),
        standing.service.decode("utf-8", "backslashreplace"),
        # The store counts the failed ones.
        standing.attempts + (standing.state == State.ANSWERED),
        _to_seconds(standing.submitted_ms),
        _to_seconds(standing.due_ms),
        _to_seconds(standing.ended_ms),
        _to_seconds(standing.expires_ms),
        standing.priority,
        "" if standing.cause == Cause.NONE else _name_of(Cause, standing.cause),
        standing.text,
        standing.body_bytes,
        standing.answer_bytes,
        frames,
        _to_seconds(standing.last_ms),
    )


_Enum = TypeVar("_Enum", bound=enum.IntEnum)


def _name_of(kind: type[_Enum], number: int) -> str:
    """A newer node may have more of them."""
    return kind(number).name.lower() if number in kind.__members__.values() else str(number)


def _to_seconds(time_ms: int) -> float | None:
    return time_ms / 1000 if time_ms else None


def _to_time_ms(at: object) -> int:
    if at is None:
        return 0
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise LocalProtocolError(f"at has no time zone: {at}; write datetime(…, tzinfo=UTC)")
        at = at.timestamp()
    return to_milliseconds(at, "at", _MS_MAX)


def _to_span_ms(seconds: object, name: str, *, least: int = 0) -> int:
    if seconds is None:
        return 0
    span_ms = to_milliseconds(seconds, name, _MS_MAX)
    if span_ms < least:
        raise LocalProtocolError(f"{name} is at least {least / 1000:g} s, not {seconds}")
    return span_ms


def _to_number(value: object, name: str, low: int, high: int) -> int:
    try:
        return to_count(value, name, low, high)
    except ConfigurationError as error:
        raise LocalProtocolError(str(error)) from None
