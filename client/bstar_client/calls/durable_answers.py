"""What an application asks a store about its durable requests, and reads in the answers.

No sockets, no threads, no event loop: both clients use it. ``bstar.wire.durable`` has the frames.
"""

import enum
import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from bstar.base.printable import brief, compact, printable
from bstar.errors import (
    DeadLetterError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestCancelledError,
    UnknownRequestError,
)
from bstar.wire import durable
from bstar.wire.declined import read_declined
from bstar.wire.durable import Cause, Fetch, Filter, Listing, Receipt, Standing, State
from bstar.wire.progress import Progress
from bstar_client.arguments.bodies import to_name
from bstar_client.arguments.checks import check_flag, to_milliseconds
from bstar_client.core.call_errors import attempts
from bstar_client.core.calls import Reply, only_frame

_ID = re.compile(r"[0-9a-fA-F]{32}")
# One question for a result waits this long at a node. A client that waits longer asks again.
_POLL_S_MAX = 20.0
# The pause before the next question if a node does not wait, doubled each time.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
_PAGE = 500
# A page with bodies is one message.
_PAGE_WITH_BODIES = 16

STATES = tuple(state.name.lower() for state in State if state is not State.UNKNOWN)


class Result(msgspec.Struct, frozen=True, gc=False):
    """The answer to a durable request. ``frames`` is its body, one frame or more.

    ``attempts`` counts the executions, with the one that answered. Times are Unix seconds.
    """

    id: str
    frames: tuple[bytes, ...]
    attempts: int
    submitted_at: float
    ended_at: float

    def __repr__(self) -> str:
        """With the beginning of the body."""
        return compact(self, frames=brief(self.frames))

    @property
    def body(self) -> bytes:
        """The one frame of the answer. ValueError if there are several: read ``frames``."""
        return only_frame(self.frames, "the answer", "answers of one")


class RequestStatus(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a request.

    ``state``: ``"pending"``, ``"answered"``, ``"dead"``, ``"cancelled"``, ``"scheduled"``, or ``"unknown"``
    if the store does not have it. ``attempts`` counts those that have ended. ``cause`` of a dead letter:
    ``"failed"``, ``"declined"`` (for ``code``), ``"poison"``, ``"expired"`` or ``"rejected"``; ``text`` is
    what the last attempt said. Times are Unix seconds, or None; ``due_at`` is the time of
    the next attempt, or the next one of a schedule, ``last_at`` the last for which a schedule made a request.
    ``frames`` and ``body``: what was submitted, if asked for with ``bodies=True``. ``progress``: what
    the handler that runs has reported last; None if it has not, or not since the node that answers serves.
    ``group``: its serial group, or "".
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
    code: str = ""
    progress: Progress | None = None
    group: str = ""

    @property
    def body(self) -> bytes:
        """The one frame of its body. ValueError without it, and if there are several: read ``frames``."""
        if not self.frames:
            raise ValueError("the body was not asked for: list the requests with bodies=True")
        return only_frame(self.frames, "the body", "one")

    def __repr__(self) -> str:
        """With the beginning of the body, if it was asked for, and of the text."""
        return compact(
            self,
            frames=brief(self.frames) if self.frames else "",
            text=repr(printable(self.text, 100)) if self.text else "",
        )


def to_id(request_id: object) -> bytes:
    """The bytes of an id. TypeError or LocalProtocolError if it is invalid."""
    if not isinstance(request_id, str):
        raise TypeError(f"an id is the text that submit returned, not {type(request_id).__name__}")
    if _ID.fullmatch(request_id) is None:
        raise LocalProtocolError(
            f'an id has 32 hexadecimal digits, as submit returned it, not "{printable(request_id)}"'
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
            0 if older is None else to_milliseconds(older, "older", durable.FOREVER_MS),
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
        self._until = None if wait is None else now + to_milliseconds(wait, "wait", durable.FOREVER_MS) / 1000
        self._pause_s = _PAUSE_S_MIN
        self._began_at = now
        self.poll_s = 0.0

    def frame(self, now: float) -> bytes:
        """The next question; it waits for ``poll_s`` at the node."""
        left_s = _POLL_S_MAX if self._until is None else max(0.0, min(self._until - now, _POLL_S_MAX))
        poll_ms = to_milliseconds(left_s, "wait", durable.FOREVER_MS)
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
            cause, code, said = _cause_of(standing)
            words = ": ".join(printable(each) for each in (cause, code, said) if each)
            raise DeadLetterError(
                f"{what} is a dead letter after {attempts(standing.attempts)}: {words}",
                request_id=request_id,
                cause=cause,
                said=said,
                attempts=standing.attempts,
                code=code or None,
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


def _cause_of(standing: Standing) -> tuple[str, str, str]:
    """Cause, code and text of a request. Only a declined one has a code."""
    if standing.cause == Cause.NONE:
        return "", "", standing.text
    declined = read_declined(standing.text.encode()) if standing.cause == Cause.FAILED else None
    if declined is not None:
        return "declined", *declined
    return _name_of(Cause, standing.cause), "", standing.text


def _status(standing: Standing, frames: tuple[bytes, ...] = ()) -> RequestStatus:
    cause, code, text = _cause_of(standing)
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
        cause,
        text,
        standing.body_bytes,
        standing.answer_bytes,
        frames,
        _to_seconds(standing.last_ms),
        code,
        standing.progress,
        standing.group,
    )


_Enum = TypeVar("_Enum", bound=enum.IntEnum)


def _name_of(kind: type[_Enum], number: int) -> str:
    """A newer node may have more of them."""
    return kind(number).name.lower() if number in kind.__members__.values() else str(number)


def _to_seconds(time_ms: int) -> float | None:
    return time_ms / 1000 if time_ms else None
