"""Extensions of a native header: the headers of a request, and the attempt of a durable one.

An extension is ``type (1 byte), length (2 bytes), value`` (docs/protocol/native.md, section 4). The broker
passes them on unread. A *header* is a name and a text beside the body of a request (BSN-G-19). Names of W3C
Trace Context have types of their own; every other header has its name in the value:

    01 length traceparent         03 length [length of the name (1 byte)] [name] [text]
    02 length tracestate          04 0004 milliseconds: how long the node has had the request
    06 0000                       who asks wants to know the progress

READY has one that tells of the worker's process (BSN-W-18), and one that tells of its work (BSN-W-24):

    05 length [pid (4 bytes)] [length of the host's name (1 byte)] [host] [version]
    07 0004 requests that it executes and that came by other connections
"""

import re
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from bstar.base.printable import printable
from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire.limits import (
    EXTENSIONS_BYTES_MAX,
    HEADER_NAME_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    HOST_BYTES_MAX,
    VERSION_BYTES_MAX,
)
from bstar.wire.messages import NO_PROCESS, Process

_TRACEPARENT = 0x01
_TRACESTATE = 0x02
_HEADER = 0x03
_AGE = 0x04
_PROCESS = 0x05
_PROGRESS = 0x06
_ELSEWHERE = 0x07
_PID_MAX = 0xFFFF_FFFF
_ATTEMPT = 0x41
_AGE_BYTES = 7

# Of a REQUEST whose sender wants PROGRESS.
PROGRESS_EXTENSION = struct.pack(">BH", _PROGRESS, 0)

_NAMES = {_TRACEPARENT: "traceparent", _TRACESTATE: "tracestate"}
_TYPES = {name: kind for kind, name in _NAMES.items()}
# Visible ASCII: a name is copied into logs and traces.
_NAME = re.compile(rf"[!-~]{{1,{HEADER_NAME_BYTES_MAX}}}")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def headers_extensions(headers: Mapping[str, str]) -> bytes:
    """The extensions of these headers. TypeError or LocalProtocolError if they cannot be sent."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of names to texts, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise LocalProtocolError(f"a request has at most {HEADERS_MAX} headers, not {len(headers)}")
    data = b"".join(_packed(name, text) for name, text in headers.items())
    if len(data) > HEADERS_BYTES_MAX:
        raise LocalProtocolError(
            f"the headers of a request have at most {HEADERS_BYTES_MAX} bytes, not {len(data)}: put large "
            "values into the body"
        )
    return data


def headers_of(extensions: bytes) -> Mapping[str, str]:
    """The headers in these extensions. RemoteProtocolError if they are not within BSN-G-19."""
    headers: dict[str, str] = {}
    size = 0
    for kind, value in _walk(extensions):
        name, text = _NAMES.get(kind), value
        if kind == _HEADER:
            end = 1 + value[0] if value else 1
            if end > len(value):
                raise RemoteProtocolError("header", "the name of a header is longer than its extension")
            name, text = value[1:end].decode("latin-1"), value[end:]
        elif name is None:
            continue
        if _NAME.fullmatch(name) is None:
            raise RemoteProtocolError(
                "header", f"the name of a header is 1 to {HEADER_NAME_BYTES_MAX} bytes of visible ASCII"
            )
        if name in headers:
            raise RemoteProtocolError("header", f"header {name} stands twice")
        size += 3 + len(value)
        if len(headers) == HEADERS_MAX or size > HEADERS_BYTES_MAX:
            raise RemoteProtocolError(
                "header", f"there are more than {HEADERS_MAX} headers or {HEADERS_BYTES_MAX} bytes of them"
            )
        try:
            headers[name] = text.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("header", f"the text of header {name} is not UTF-8") from None
    return MappingProxyType(headers) if headers else NO_HEADERS


def attempt_extension(attempt: int) -> bytes:
    """The extension of a durable request's REQUEST; attempts count from 1."""
    return struct.pack(">BHH", _ATTEMPT, 2, min(attempt, 0xFFFF))


def attempt_of(extensions: bytes) -> int:
    """The attempt that a REQUEST's extensions name; 1 if they name none (BSN-W-16)."""
    for kind, value in _walk(extensions):
        if kind == _ATTEMPT and len(value) == 2:
            return max(1, int.from_bytes(value, "big"))
    return 1


def wants_progress(extensions: bytes) -> bool:
    """True if who asks wants to know how far the handler is (BSN-W-22)."""
    return any(kind == _PROGRESS for kind, _ in _walk(extensions))


def age_extension(extensions: bytes, age_ms: int) -> bytes:
    """What tells a worker how long the node has had its request, behind these extensions (BSN-B-27).

    Nothing if there is no room.
    """
    if len(extensions) + _AGE_BYTES > EXTENSIONS_BYTES_MAX:
        return b""
    return struct.pack(">BHI", _AGE, 4, min(age_ms, 0xFFFF_FFFF))


def age_of(extensions: bytes) -> int | None:
    """The age in milliseconds that the node has added; None if it has not."""
    age_ms = None
    for kind, value in _walk(extensions):
        if kind == _AGE and len(value) == 4:
            age_ms = int.from_bytes(value, "big")
    return age_ms


def process_extension(process: Process) -> bytes:
    """The extension of a READY that tells of the worker's process. Long names are cut."""
    host = process.host.encode("utf-8", "replace")[:HOST_BYTES_MAX]
    version = process.version.encode("utf-8", "replace")[:VERSION_BYTES_MAX]
    value = struct.pack(">IB", min(process.pid, _PID_MAX), len(host)) + host + version
    return struct.pack(">BH", _PROCESS, len(value)) + value


def process_of(extensions: bytes) -> Process:
    """What a READY tells of its worker's process; nothing if it does not, or if that is malformed."""
    for kind, value in _walk(extensions):
        if kind == _PROCESS and len(value) >= 5 and len(value) >= 5 + value[4]:
            end = 5 + value[4]
            host, version = value[5:end][:HOST_BYTES_MAX], value[end:][:VERSION_BYTES_MAX]
            return Process(printable(host), int.from_bytes(value[:4], "big"), printable(version))
    return NO_PROCESS


def elsewhere_extension(count: int) -> bytes:
    """The extension of a READY that tells how many requests of other connections the worker executes."""
    return struct.pack(">BHI", _ELSEWHERE, 4, count)


def elsewhere_of(extensions: bytes) -> int | None:
    """What a READY tells of them; None if it tells nothing."""
    for kind, value in _walk(extensions):
        if kind == _ELSEWHERE and len(value) == 4:
            return int.from_bytes(value, "big")
    return None


def _walk(extensions: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each extension, up to the first torn one (BSN-G-12)."""
    at = 0
    while at + 3 <= len(extensions):
        end = at + 3 + int.from_bytes(extensions[at + 1 : at + 3], "big")
        if end > len(extensions):
            return
        yield extensions[at], extensions[at + 3 : end]
        at = end


def _packed(name: object, text: object) -> bytes:
    if not isinstance(name, str) or not isinstance(text, str):
        kinds = f"{type(name).__name__} to {type(text).__name__}"
        raise TypeError(f"headers are a mapping of names to texts, not of {kinds}")
    if _NAME.fullmatch(name) is None:
        raise LocalProtocolError(
            f"the name of a header is 1 to {HEADER_NAME_BYTES_MAX} characters of visible ASCII, not {name!r}"
        )
    try:
        value = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"header {name} cannot be written as UTF-8: {error}") from error
    kind = _TYPES.get(name)
    if kind is None:
        kind, value = _HEADER, bytes([len(name)]) + name.encode() + value
    if len(value) > HEADERS_BYTES_MAX:
        raise LocalProtocolError(
            f"header {name} has more than {HEADERS_BYTES_MAX} bytes: put it into the body"
        )
    return struct.pack(">BH", kind, len(value)) + value
