"""A call as the client's core keeps it, and the reply that its caller gets.

One ``Call`` lives from ``submit`` until its reply or error is handed out. It remembers where the request was
sent and how each attempt ended. A refused attempt was certainly not executed; an attempt whose connection
broke may have been. The caller's error depends on it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import msgspec

from bstar.base.printable import brief, compact
from bstar.errors import BstarError
from bstar.wire.mmi import PREFIX
from bstar.wire.progress import Progress

# The body of a request or a reply: one frame, or several.
Body: TypeAlias = bytes | Sequence[bytes]


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    """A model of pydantic, or what looks like one."""

    def model_dump_json(self) -> str: ...


# A typed body: a struct, a dataclass, a TypedDict or another dict, a model of pydantic.
Value: TypeAlias = msgspec.Struct | _Dataclass | _Model | Mapping[str, object]
# What a handler may return, or yield.
Result: TypeAlias = Body | Value | str | float | Sequence[object] | Mapping[Any, object]


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One body for ``map`` with its own options.

    ``key``, ``timeout``, ``urgent``, ``headers`` and ``codec`` are those of ``HAClient.request``. If
    ``timeout`` is unset, or ``service`` or ``codec`` is None, that of ``map`` applies.
    """

    body: Body | Value
    key: bytes | str | None = None
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    service: str | bytes | None = None
    urgent: bool = False
    headers: Mapping[str, str] | None = None
    codec: Literal["json", "msgpack"] | None = None

    def __repr__(self) -> str:
        """With the beginning of the body, and the names of the headers."""
        return compact(self, body=brief(self.body), headers=str(sorted(self.headers)) if self.headers else "")


# What a caller wants called with each progress of its request.
OnProgress: TypeAlias = Callable[[Progress], object]
# What ``map`` takes.
Asked: TypeAlias = Body | Value | Ask


def only_frame(frames: tuple[bytes, ...], of: str, which: str) -> bytes:
    """The frame of a body that has one. ValueError if there are several."""
    if len(frames) != 1:
        raise ValueError(f"{of} has {len(frames)} frames: read .frames, .body is for {which}")
    return frames[0]


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A service's answer to a request.

    ``frames`` is the body, one frame or more. ``partials`` holds the bodies of the PARTIALs before it. A
    stream yields each PARTIAL as a Reply with ``is_final`` False, so its ``partials`` is empty. ``index`` is
    the position of the body given to ``map``, or of a PARTIAL in its stream. ``attempts`` counts how often
    the request was sent. ``epoch`` is the epoch of its execution (0 in plain MDP), ``endpoint`` the node that
    sent it. ``elapsed_s`` is the time since the caller asked (0 for PARTIALs of a stream).
    """

    frames: tuple[bytes, ...]
    partials: tuple[tuple[bytes, ...], ...] = ()
    index: int = 0
    attempts: int = 1
    epoch: int = 0
    endpoint: str = ""
    is_final: bool = True
    elapsed_s: float = 0.0

    def __repr__(self) -> str:
        """With the beginning of the body."""
        return compact(
            self, frames=brief(self.frames), partials=f"{len(self.partials)} of them" if self.partials else ""
        )

    @property
    def body(self) -> bytes:
        """The one frame of the reply. ValueError if there are several: read ``frames``."""
        return only_frame(self.frames, "the reply", "replies of one")


class CallFailed(msgspec.Struct, frozen=True):
    """``map(errors="return")`` yields this for a call that failed.

    ``error`` is the error that ``request`` would raise. ``index`` is the body's position, ``attempts`` counts
    how often the request was sent, ``elapsed_s`` is the time since the call began.
    """

    error: BstarError
    index: int = 0
    attempts: int = 0
    elapsed_s: float = 0.0


class Call(msgspec.Struct, eq=False, gc=False):
    """One request, and the state of its attempts.

    The caller sets the first fields; the rest belongs to the core. ``deadline`` is on the core's clock; None
    waits for ever. The shell puts outcomes into ``sink``; no core reads it. Calls with one service and one
    ``key`` share one request. ``begun_at`` is the time of the call. ``elapsed_s`` is its duration; the shell
    sets it when the call has failed. ``pair`` is the index of its pair in the client's fleet.

    The garbage collector does not scan calls, because there are too many. So the end of a call clears the
    fields that may refer back to it (``sink``, ``leader``, ``on_progress``).
    """

    service: bytes
    body: list[bytes]
    deadline: float | None = None
    is_idempotent: bool = True
    is_stream: bool = False
    index: int = 0
    sink: Any = None  # the shell's: a queue, a future
    key: bytes | None = None
    is_urgent: bool = False
    begun_at: float = 0.0
    elapsed_s: float = 0.0
    # The shell's, for its journal: the bytes of the request, and of the PARTIALs that have been handed out.
    bytes_in: int = 0
    bytes_out: int = 0
    pair: int = 0
    # Its headers, as extensions of each of its REQUESTs.
    extensions: bytes = b""
    # For the one worker that the first frame of ``body`` names.
    is_directed: bool = False
    # The tracer's.
    trace: Any = None
    on_progress: OnProgress | None = None

    # A session has taken it.
    is_begun: bool = False
    identity: bytes = b""
    # The number in the identity, if the call has no key.
    number: int = 0
    attempts: int = 0
    # The node of the last attempt.
    node: int = 0
    # The connection of the last attempt, until the node refuses it; 0: none.
    sent_to: int = 0
    # Connections that were lost, fell silent or were left while the attempt's outcome was unknown.
    lost_on: set[int] | None = None
    # A node said that a worker got the request.
    was_dispatched: bool = False
    busy_count: int = 0
    busy_text: str = ""
    busy_pause_s: float = 0.0
    partials: list[tuple[bytes, ...]] | tuple[()] = ()
    partials_count: int = 0
    # The connection of the PARTIALs so far.
    partials_from: int = 0
    is_done: bool = False
    # With one key: the calls that wait for this one, and the call that this one waits for.
    followers: "list[Call] | None" = None
    leader: "Call | None" = None

    @property
    def may_have_executed(self) -> bool:
        """True if an attempt may have reached a worker. The node itself answers management requests, and
        nothing happens by them.
        """
        is_open = bool(self.sent_to or self.lost_on or self.was_dispatched)
        return is_open and not self.service.startswith(PREFIX)

    @property
    def is_bound(self) -> bool:
        """True if it must not be sent again once an attempt may have been executed."""
        return not self.is_idempotent or (self.is_stream and self.partials_count > 0)

    def lose_attempt(self) -> None:
        """The current attempt, if there is one, is lost: its outcome is unknown."""
        if self.sent_to:
            if self.lost_on is None:
                self.lost_on = set()
            self.lost_on.add(self.sent_to)
            self.sent_to = 0

    def end_attempt(self, connection: int, *, was_dispatched: bool) -> bool:
        """The node on this connection ended an attempt. True if it was the current one."""
        is_current = self.sent_to == connection
        if is_current:
            self.sent_to = 0
        elif self.lost_on is not None and connection in self.lost_on:
            self.lost_on.discard(connection)
        else:
            return False
        if was_dispatched:
            self.was_dispatched = True
        return is_current

    def was_sent_over(self, connection: int) -> bool:
        """True if the node on this connection has not ended an attempt."""
        return self.sent_to == connection or (self.lost_on is not None and connection in self.lost_on)


class CallTracer(Protocol):
    """What a client reports each call to, in any of its threads. Its span is in ``call.trace``."""

    def begin(self, call: Call, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The call begins; returns the headers that its request carries."""

    def carried(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers with the caller's own trace context, for a request that no call of its own answers."""

    def replied(self, call: Call, reply: Reply) -> None:
        """The call was answered."""

    def failed(self, call: Call, error: BstarError) -> None:
        """The call ended with an error."""

    def abandoned(self, call: Call) -> None:
        """The caller has gone."""


# How a call ends.
Outcome: TypeAlias = tuple[Call, Reply | BstarError]


def is_pending(call: Call, deadline: float) -> bool:
    """True while the call's deadline can pass, for ``Deadlines``."""
    return not call.is_done
