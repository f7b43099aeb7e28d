"""What EventMQ's frames carry: the headers of a request, the call of a job, its result. Pure.

    headers  ``reply-requested,timeout:30``                                    text, may be empty
    job      ``["run", {"path": "pkg.mod:Class", "callable": "name", "args": [], "kwargs": {}, …}]``    JSON
    result   ``{"value": …}``                                                                           JSON

A reader raises RemoteProtocolError and nothing else. Facts: PROTOCOLS.md 12.3, 12.4 and 12.7.
"""

import hashlib
import json
import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError

# Room for every known header and some dozens of unknown ones.
HEADERS_BYTES_MAX = 4_096
# A count or a time beyond it is a mistake: 68 years of seconds.
_NUMBER_MAX = 2**31 - 1
# ``run_count`` of a schedule that runs for ever.
UNLIMITED = -1


class Headers(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header frame of REQUEST and SCHEDULE. ``others`` has the unknown headers, word by word.

    ``retry_count`` and ``timeout_s`` (seconds) are None when absent; a timeout of 0 is none. ``run_count``:
    the executions that a schedule has left, UNLIMITED when absent. ``nohaste``: a new schedule waits for its
    first time.
    """

    reply_requested: bool = False
    retry_count: int | None = None
    timeout_s: int | None = None
    guarantee: bool = False
    nohaste: bool = False
    run_count: int = UNLIMITED
    others: tuple[str, ...] = ()

    def limit_s(self, default_s: float) -> float:
        """How long the job may take: ``default_s`` if it does not say, for ever with ``timeout:0`` (12.4)."""
        if self.timeout_s is None:
            return default_s
        return float(self.timeout_s) or math.inf

    def text(self) -> str:
        """The frame's text: known headers first, comma-separated (EMQ-G-03)."""
        words = ["reply-requested"] if self.reply_requested else []
        if self.retry_count is not None:
            words.append(f"retry-count:{self.retry_count}")
        if self.timeout_s is not None:
            words.append(f"timeout:{self.timeout_s}")
        words += [
            name for name, is_set in (("guarantee", self.guarantee), ("nohaste", self.nohaste)) if is_set
        ]
        if self.run_count != UNLIMITED:
            words.append(f"run_count:{self.run_count}")
        return ",".join([*words, *self.others])


NO_HEADERS = Headers()

_FLAGS = {"reply-requested": "reply_requested", "guarantee": "guarantee", "nohaste": "nohaste"}
# The least value of each.
_NUMBERS = {
    "retry-count": ("retry_count", 0),
    "timeout": ("timeout_s", 0),
    "run_count": ("run_count", UNLIMITED),
}


def parse_headers(text: str) -> Headers:
    """Read a header frame. Of a header that stands twice the last counts."""
    if not text:
        return NO_HEADERS
    if len(text) > HEADERS_BYTES_MAX:
        raise RemoteProtocolError("headers", f"the headers have more than {HEADERS_BYTES_MAX} characters")
    fields: dict[str, Any] = {}
    others = []
    for word in (each.strip() for each in text.split(",")):
        name, _, number = word.partition(":")
        if word in _FLAGS:
            fields[_FLAGS[word]] = True
        elif name in _NUMBERS:
            field, least = _NUMBERS[name]
            fields[field] = parse_number(number, least, name)
        elif word:
            others.append(word)
    return Headers(others=tuple(others), **fields)


def parse_number(text: str, least: int, name: str) -> int:
    """Read a whole number of a frame; ``name`` is for the error's text."""
    # The longest number within the bounds has 10 digits and a sign.
    if len(text) <= 12 and text.isascii():
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if least <= number <= _NUMBER_MAX:
            return number
    raise RemoteProtocolError("number", f"{name} is no whole number of {least} or more: {text[:20]!r}")


class Job(msgspec.Struct, frozen=True, omit_defaults=False):
    """A call: ``callable`` of module ``path``, or of an object of the class in ``path`` (``module:Class``).

    ``class_args`` and ``class_kwargs`` make that object. Keys that a message leaves out are empty.
    """

    path: Annotated[str, Meta(min_length=1, max_length=1_024)]
    callable: Annotated[str, Meta(min_length=1, max_length=1_024)]
    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    class_args: list[Any] = msgspec.field(default_factory=list)
    class_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


# They look at the whole message and keep nothing of it.
_skip_json = msgspec.json.Decoder(msgspec.Raw).decode
_skip_call = msgspec.json.Decoder(tuple[msgspec.Raw, msgspec.Raw]).decode

# The word in front is not checked, as the published program does not.
_decode_job = msgspec.json.Decoder(tuple[Any, Job]).decode
_decode_json = msgspec.json.Decoder().decode


class _Result(msgspec.Struct):
    value: Any


_decode_result = msgspec.json.Decoder(_Result).decode


def encode_job(job: Job) -> bytes:
    """The JSON of the message frame, ASCII. Arguments that are not JSON raise TypeError or ValueError."""
    # Not msgspec's encoder: it would turn a date into text, and the published program refuses it.
    return json.dumps(["run", msgspec.structs.asdict(job)], allow_nan=False).encode("ascii")


def check_json(message: bytes) -> None:
    """Raise RemoteProtocolError if the message frame is not JSON."""
    try:
        _skip_json(message)
    except UNDECODABLE as error:
        raise RemoteProtocolError("json", f"the message is not JSON: {error}") from error


def check_call(message: bytes) -> None:
    """Raise RemoteProtocolError if a published job manager cannot read this message, which ends its loop."""
    try:
        _skip_call(message)
    except UNDECODABLE as error:
        text = f'the message is no JSON array of two, such as ["run", {{…}}]: {error}'
        raise RemoteProtocolError("job", text) from error


def decode_job(message: bytes) -> Job:
    """Read the message frame of a REQUEST or SCHEDULE."""
    try:
        return _decode_job(message)[1]
    except UNDECODABLE as error:
        raise RemoteProtocolError("job", f"the message is no job: {error}") from error


def schedule_id(job: Job) -> str:
    """The identity of a schedule: SHA-1 hex of the call's JSON, keys sorted (PROTOCOLS.md 12.7).

    Queue, headers and interval are not part of it. RemoteProtocolError if its arguments are nested too deep.
    """
    try:
        text = json.dumps(msgspec.structs.asdict(job), sort_keys=True)
    except RecursionError as error:
        raise RemoteProtocolError("job", f"the message is no job: {error}") from error
    return hashlib.sha1(text.encode("ascii"), usedforsecurity=False).hexdigest()


def encode_result(value: object) -> bytes:
    """``{"value": …}``. Of a value that is not JSON the text of the error is the value, as published."""
    try:
        return json.dumps({"value": value}, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps({"value": str(error)}).encode("ascii")


def decode_result(result: bytes) -> Any:
    """Read a result; anything but an object with the key ``value`` is refused."""
    try:
        return _decode_result(result).value
    except UNDECODABLE as error:
        raise RemoteProtocolError("result", f"no result: {error}") from error


def decode_report(report: bytes) -> dict[str, Any]:
    """Read the JSON object with which a router answers STATUS and its like."""
    try:
        value = _decode_json(report)
    except UNDECODABLE as error:
        raise RemoteProtocolError("report", f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise RemoteProtocolError("report", "the report is no JSON object")
    return value
