"""Commands: the changes of the store, as they stand in log entries.

``rules.apply`` carries them out. The same commands in the same order make the same state on both nodes, so a
command has everything that its effect depends on, the time included (the entry's).
"""

import msgspec


class Defaults(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a 0 in a ``Submit`` means: the settings of the node that leads, which wrote the entry. So tables
    are equal even while the configurations of the nodes are not. ``expires_ms`` 0: it never expires.
    """

    attempts_max: int = 5
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
    expires_ms: int = 0


class Submitted(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Store these requests: ``rows`` are the frames of ``bstar.wire.durable.Submit`` as they came, which the
    node that leads has decoded once to see that they are valid.

    ``owner`` is the name of the principal that submitted them, "" without keys.
    """

    owner: str
    rows: list[msgspec.Raw]
    defaults: Defaults = Defaults()


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A worker has answered the request."""

    id: bytes
    frames: list[bytes]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """An attempt has failed. ``cause`` is a ``wire.durable.Cause``.

    ``retry_ms``: the handler asks for the next attempt after this time; -1: the request's backoff decides.
    ``is_final``: there is no next attempt.
    """

    id: bytes
    cause: int
    text: str
    retry_ms: int = -1
    is_final: bool = False


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Forget these requests, whatever their state; with an ``owner``, only those of this owner."""

    ids: list[bytes]
    owner: str | None = None


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """End this request if it is pending; with an ``owner``, only if it is this owner's."""

    id: bytes
    owner: str | None = None


class Retried(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """Make a dead or cancelled request pending again, due now, without failed attempts and without an
    expiry; with an ``owner``, only if it is this owner's.
    """

    id: bytes
    owner: str | None = None


class Swept(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Time passes: let pending requests expire, and forget those that ended before ``ended_before_ms`` or, of
    the dead, before ``died_before_ms``; ``limit`` of each kind at most, the earliest first.
    """

    ended_before_ms: int
    died_before_ms: int
    limit: int


class Began(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A node begins to lead the store: the first entry of its epoch. ``role`` is primary or backup."""

    role: str


class Scheduled(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """Store a schedule: ``row`` is the frame of ``bstar.wire.durable.Schedule``, valid, its first time is
    ``next_ms``.
    """

    owner: str
    row: msgspec.Raw
    next_ms: int
    defaults: Defaults = Defaults()


class Fired(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """The time ``due_ms`` of a schedule has come: make a request for each of ``runs_ms``; ``next_ms`` is its
    next time, or 0. It does nothing to a schedule that does not wait for ``due_ms``.
    """

    id: bytes
    due_ms: int
    runs_ms: list[int]
    next_ms: int


Command = Submitted | Answered | Failed | Closed | Cancelled | Retried | Swept | Began | Scheduled | Fired

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Command]).decode
