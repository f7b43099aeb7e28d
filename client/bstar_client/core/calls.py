"""A call as the client's core keeps it, and the reply that its caller gets.

One ``Call`` lives from ``submit`` until its reply or error is handed out. It remembers where the request
was sent and what became of each attempt, because that decides what may be told to the caller: an attempt
that was refused was certainly not executed, one whose connection broke may have been.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from bstar.errors import BstarError

# Of a request or a reply: one frame, or several.
Body: TypeAlias = bytes | Sequence[bytes]


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One body for ``map`` with what is its own: a key, whether it is ``urgent`` (see ``HAClient.request``),
    a deadline, a service.

    ``timeout`` in seconds; not set: the one that ``map`` was given. ``service`` None: likewise.
    """

    body: Body
    key: bytes | str | None = None
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    service: str | bytes | None = None
    urgent: bool = False


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What a service answered.

    ``frames`` is the body, one frame or more. ``partials`` holds the bodies of the PARTIALs that came
    before it (empty for a stream, which hands each of them out as a Reply of its own with ``is_final``
    False). ``index`` is the position of the request among the bodies given to ``map``, or of a PARTIAL
    within its stream. ``attempts`` counts how often the request was sent, ``epoch`` is the epoch it was
    executed under (0 in plain MDP), and ``endpoint`` the node it came from. ``elapsed_s`` is the time since
    the caller asked (0 for PARTIALs of a stream).
    """

    frames: tuple[bytes, ...]
    partials: tuple[tuple[bytes, ...], ...] = ()
    index: int = 0
    attempts: int = 1
    epoch: int = 0
    endpoint: str = ""
    is_final: bool = True
    elapsed_s: float = 0.0

    @property
    def body(self) -> bytes:
        """The only frame of the reply; ValueError if there are several (then see ``frames``)."""
        if len(self.frames) != 1:
            raise ValueError(
                f"the reply has {len(self.frames)} frames: read .frames, .body is for replies of one"
            )
        return self.frames[0]


class CallFailed(msgspec.Struct, frozen=True):
    """What ``map(errors="return")`` yields in place of the reply to a body that got none.

    ``error`` is what would have been raised, ``index`` the body's position, ``attempts`` counts how often the
    request was sent, ``elapsed_s`` is the time since it was begun.
    """

    error: BstarError
    index: int = 0
    attempts: int = 0
    elapsed_s: float = 0.0


class Call(msgspec.Struct, eq=False, gc=False):
    """One request and everything that is known of its attempts.

    The caller sets the first fields; the rest belongs to the core. ``deadline`` is on the clock that the
    core is given, None waits for ever. ``sink`` is where the shell hands the result out; no core looks at
    it. ``key`` makes the request the same as every other with this service and key. ``begun_at`` is when the
    caller asked, ``elapsed_s`` how long it took (set by the shell when the call has failed). ``pair`` is the
    place in the client's fleet of the pair it belongs to.

    The garbage collector does not look at calls: their number would make it slow. So each end of a call lets
    go of what may lead back to it (``sink``, ``leader``).
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
    # The shell's, for its journal: the octets of the request, and of the PARTIALs that have been handed out.
    bytes_in: int = 0
    bytes_out: int = 0
    pair: int = 0

    # A session has taken it.
    is_begun: bool = False
    identity: bytes = b""
    # The identity's, if the call has no key.
    number: int = 0
    attempts: int = 0
    # The node of the last attempt.
    node: int = 0
    # The connection that the last attempt went to and that has not refused it yet; 0: none.
    sent_to: int = 0
    # Connections that were lost, fell silent or were left behind with an attempt whose fate is unknown.
    lost_on: set[int] | None = None
    # A node said that a worker had been given the request.
    was_dispatched: bool = False
    busy_count: int = 0
    busy_text: str = ""
    partials: list[tuple[bytes, ...]] | tuple[()] = ()
    partials_count: int = 0
    # The connection that the PARTIALs so far came from.
    partials_from: int = 0
    is_done: bool = False
    # Calls with the same key that wait for this one's end; and the one that this waits for.
    followers: "list[Call] | None" = None
    leader: "Call | None" = None

    @property
    def may_have_executed(self) -> bool:
        """True if an attempt may have reached a worker."""
        return bool(self.sent_to or self.lost_on or self.was_dispatched)

    @property
    def is_bound(self) -> bool:
        """True if it must not be sent again once an attempt may have been executed."""
        return not self.is_idempotent or (self.is_stream and self.partials_count > 0)

    def lose_attempt(self) -> None:
        """The attempt under way, if there is one, is lost: its fate is unknown."""
        if self.sent_to:
            if self.lost_on is None:
                self.lost_on = set()
            self.lost_on.add(self.sent_to)
            self.sent_to = 0

    def end_attempt(self, connection: int, *, was_dispatched: bool) -> bool:
        """The node on this connection ended an attempt. True if that was the one under way."""
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
        """True if an attempt over this connection has not been ended by its node."""
        return self.sent_to == connection or (self.lost_on is not None and connection in self.lost_on)


# What the shell hands to the caller of a call.
Outcome: TypeAlias = tuple[Call, Reply | BstarError]


def is_pending(call: Call, deadline: float) -> bool:
    """True while the call's deadline can pass, for ``Deadlines``."""
    return not call.is_done
