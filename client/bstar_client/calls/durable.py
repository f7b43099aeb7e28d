"""Durable requests as an application submits them: their options and their frames.

No sockets, no threads, no event loop: both clients use it. ``bstar.wire.durable`` has the frames,
docs/durable.md what a store promises, ``durable_answers`` what the application hears.
"""

import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypedDict

import msgspec

from bstar.base.printable import brief, compact, printable
from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.wire import durable, mmi
from bstar.wire.durable import Missed, Repeat, Schedule, Serial, Submit
from bstar.wire.limits import GROUP_CHARS_MAX
from bstar_client.arguments.bodies import to_bytes, to_name
from bstar_client.arguments.checks import to_count, to_milliseconds
from bstar_client.arguments.codecs import Codec, to_typed
from bstar_client.calls.requests import Timeout, extensions_of, to_key
from bstar_client.core.calls import Body, Value

_ATTEMPTS_MAX = 1_000_000

MISSED = tuple(each.name.lower() for each in Missed)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How a durable request is tried. None takes the store's default.

    ``max``: attempts at most, the first included. ``backoff``: seconds after the first failed attempt, twice
    as long after each further one, ``backoff_max`` at most.
    """

    max: int | None = None
    backoff: float | None = None
    backoff_max: float | None = None


_DEFAULT = RetryPolicy()


class Task(msgspec.Struct, frozen=True, gc=False):
    """One body for ``submit_many`` with its own options, which are those of ``submit``."""

    body: Body | Value
    key: bytes | str | None = None
    delay: float | None = None
    at: datetime | float | None = None
    expires: float | None = None
    retries: RetryPolicy | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    codec: Codec | None = None
    group: str | None = None

    def __repr__(self) -> str:
        """With the beginning of the body, and the names of the headers."""
        return compact(self, body=brief(self.body), headers=str(sorted(self.headers)) if self.headers else "")


class ResultOptions(TypedDict, total=False):
    """The options of ``result``, but for ``reply`` and ``wait``, on which the type of the answer depends."""

    codec: Codec | None
    service: str | bytes | None
    timeout: Timeout


# The extensions of a request's headers: ``Requests.carried`` adds the caller's trace.
Carry = Callable[[Mapping[str, str] | None], bytes]


def submit_frame(service: str | bytes, task: Task, carry: Carry = extensions_of) -> bytes:
    """The frame of Submit, with a new id or that of the key. Sent again, it asks for the same request.
    TypeError or LocalProtocolError if it cannot be.
    """
    return durable.encode(_to_submit(service, task, carry))


def schedule_frame(
    service: str | bytes,
    task: Task,
    carry: Carry = extensions_of,
    *,
    every: float | None,
    cron: str | None,
    zone: str,
    missed: str,
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
        to_bytes(value or "", name)
    repeat = Repeat(
        _to_span_ms(every, "every", least=1_000),
        cron or "",
        zone,
        Missed[missed.upper()],
        _to_span_ms(task.expires, "expires", least=1),
    )
    submit = _to_submit(service, msgspec.structs.replace(task, expires=None), carry)
    return durable.encode(Schedule(submit, repeat))


def _to_submit(service: str | bytes, task: Task, carry: Carry) -> Submit:
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
    policy = _DEFAULT if task.retries is None else task.retries
    if not isinstance(policy, RetryPolicy):
        raise TypeError(f"retries is a RetryPolicy or None, not {type(policy).__name__}")
    at_ms, delay_ms = _to_time_ms(task.at), _to_span_ms(task.delay, "delay")
    expires_ms = _to_span_ms(task.expires, "expires", least=1)
    if 0 < expires_ms <= max(delay_ms, at_ms - time.time_ns() // 1_000_000):
        raise LocalProtocolError("it expires before it begins: expires counts from the submit, too")
    frames, headers = to_typed(task.body, task.codec, task.headers)
    priority = _to_number(task.priority, "priority", 0, 9)
    return Submit(
        request_id,
        name,
        frames,
        at_ms=at_ms,
        delay_ms=delay_ms,
        expires_ms=expires_ms,
        attempts_max=0 if policy.max is None else _to_number(policy.max, "max", 1, _ATTEMPTS_MAX),
        # On the wire 0 is the default.
        backoff_ms=0 if policy.backoff is None else max(1, _to_span_ms(policy.backoff, "backoff")),
        backoff_max_ms=_to_span_ms(policy.backoff_max, "backoff_max", least=1),
        priority=priority if task.group is None else Serial(priority, _to_group(task.group)),
        headers=carry(headers),
    )


def submit_frames(
    service: str | bytes, bodies: Iterable[Body | Value | Task], carry: Carry, codec: Codec | None = None
) -> Iterator[bytes]:
    """The frames of Submit of many bodies. An error has the body's position in a note. ``codec``: of those
    without one.
    """
    for index, body in enumerate(bodies):
        yield _frame_of_many(service, body, index, carry, codec)


async def submit_frames_async(
    service: str | bytes, bodies: AsyncIterable[Body | Value | Task], carry: Carry, codec: Codec | None
) -> AsyncIterator[bytes]:
    """The same of an async iterable."""
    index = 0
    async for body in bodies:
        yield _frame_of_many(service, body, index, carry, codec)
        index += 1


def submit_frames_any(
    service: str | bytes,
    bodies: Iterable[Body | Value | Task] | AsyncIterable[Body | Value | Task],
    carry: Carry,
    codec: Codec | None,
) -> Iterable[bytes] | AsyncIterable[bytes]:
    """The same of either."""
    if isinstance(bodies, AsyncIterable):
        return submit_frames_async(service, bodies, carry, codec)
    return submit_frames(service, bodies, carry, codec)


def _frame_of_many(
    service: str | bytes, body: Body | Value | Task, index: int, carry: Carry, codec: Codec | None
) -> bytes:
    task = body if isinstance(body, Task) else Task(body)
    if task.codec is None and codec is not None:
        task = msgspec.structs.replace(task, codec=codec)
    try:
        return submit_frame(service, task, carry)
    except (LocalProtocolError, TypeError) as error:
        error.add_note(f"body {index} of submit_many()")
        raise


def _to_time_ms(at: object) -> int:
    if at is None:
        return 0
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise LocalProtocolError(f"at has no time zone: {at}; write datetime(…, tzinfo=UTC)")
        at = at.timestamp()
    return to_milliseconds(at, "at", durable.FOREVER_MS)


def _to_span_ms(seconds: object, name: str, *, least: int = 0) -> int:
    if seconds is None:
        return 0
    span_ms = to_milliseconds(seconds, name, durable.FOREVER_MS)
    if span_ms < least:
        raise LocalProtocolError(f"{name} is at least {least / 1000:g} s, not {seconds}")
    return span_ms


def _to_group(group: object) -> str:
    if not isinstance(group, str):
        raise TypeError(f"group is a text or None, not {type(group).__name__}")
    if not 0 < len(group) <= GROUP_CHARS_MAX:
        raise LocalProtocolError(f"a group's name has 1 to {GROUP_CHARS_MAX} characters, not {len(group)}")
    if not group.isprintable():
        raise LocalProtocolError(f'a group\'s name has printable characters, not "{printable(group)}"')
    return group


def _to_number(value: object, name: str, low: int, high: int) -> int:
    try:
        return to_count(value, name, low, high)
    except ConfigurationError as error:
        raise LocalProtocolError(str(error)) from None
