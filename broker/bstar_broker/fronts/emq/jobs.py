"""An EventMQ request as the body of a broker's request, and the results of jobs. Pure.

    [job message] [headers] [queue as the client wrote it] [msgid]

The first frame is what a worker of another dialect needs: the JSON of the call. The others may be missing,
so a client of another dialect sends the job message alone. The body has all that a job manager gets, so it
survives redelivery, the durable store and a failover.
"""

from collections.abc import Sequence

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import emq
from bstar.wire.emq_jobs import (
    HEADERS_BYTES_MAX,
    NO_HEADERS,
    Headers,
    check_call,
    decode_result,
    encode_result,
    parse_headers,
)
from bstar.wire.limits import SERVICE_BYTES_MAX
from bstar.wire.messages import ErrorCode

# What the published job manager has as the value of a job that ran past its time.
TIMEOUT = "TimeoutError"
# What a full job manager of ours has as the value begins with it.
_REFUSED = "refused: "


def to_body(request: emq.Request) -> list[bytes]:
    """The broker's body of a client's request."""
    return [request.message, request.headers.text().encode(), request.queue.encode(), request.msgid]


def from_body(body: Sequence[bytes], queue: str, msgid: bytes) -> emq.Request:
    """The REQUEST for a job manager. ``queue`` and ``msgid`` stand in for missing or unfit frames.

    It always asks for a reply: the end of a job has no other sign. RemoteProtocolError if the job message is
    not UTF-8 (EMQ-R-02) or no JSON array of two: the published program raises, and loses all its jobs.
    """
    frames = [*map(bytes, body[:4]), *[b""] * (4 - len(body))]
    try:
        frames[0].decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("text", "the job message is not UTF-8") from None
    check_call(frames[0])
    headers = _headers(frames[1])
    if _is_name(frames[2], SERVICE_BYTES_MAX):
        queue = frames[2].decode()
    if _is_name(frames[3], emq.MSGID_BYTES_MAX):
        msgid = frames[3]
    return emq.Request(msgid, queue, frames[0], msgspec.structs.replace(headers, reply_requested=True))


def _headers(frame: bytes) -> Headers:
    if len(frame) > HEADERS_BYTES_MAX:
        return NO_HEADERS
    try:
        return parse_headers(frame.decode())
    except (UnicodeDecodeError, RemoteProtocolError):
        # The body is another dialect's: its second frame is no header frame.
        return NO_HEADERS


def _is_name(frame: bytes, bytes_max: int) -> bool:
    try:
        frame.decode()
    except UnicodeDecodeError:
        return False
    return 0 < len(frame) <= bytes_max


def failure_of(result: bytes) -> tuple[ErrorCode, str] | None:
    """Why this result of a job manager is a failure; None if it is a result.

    An exception's text is a value like any other. A value ``TimeoutError`` and one that begins with
    ``refused: `` are failures.
    """
    if TIMEOUT.encode() not in result and _REFUSED.encode() not in result:
        return None
    try:
        value = decode_result(result)
    except RemoteProtocolError:
        return None
    if value == TIMEOUT:
        return ErrorCode.HANDLER_TIMEOUT, TIMEOUT
    if isinstance(value, str) and value.startswith(_REFUSED):
        return ErrorCode.RETRY, value
    return None


def to_result(body: Sequence[bytes]) -> bytes:
    """The JSON of a REPLY from any worker's answer. What is no ``{"value": …}`` becomes the value."""
    frames = list(map(bytes, body))
    if len(frames) == 1:
        try:
            decode_result(frames[0])
        except RemoteProtocolError:
            return encode_result(frames[0].decode("utf-8", "replace"))
        return frames[0]
    return encode_result([frame.decode("utf-8", "replace") for frame in frames])
