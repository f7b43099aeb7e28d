"""The native dialect: MDP's roles with request numbers, deadlines, errors and epochs.

The specification is docs/protocol/native.md. A message is ``[header] [body…]``. Every header has the same
fixed part, so that one unpack reads it:

    byte 0      magic B5            byte 2      command            bytes 28-35  epoch
    byte 1      version 01          byte 3      flags              bytes 36-39  value, per command
    bytes 4-27  identity            byte 40     length of the service name
    then the service name, then extensions (type, 2-byte length, value) up to the end of the frame.

Numbers are big-endian. An identity is a client id (16 bytes, random, one per client object) and a message
number (8 bytes). It comes back on every reply, and the same request has the same identity at every node and
in every attempt. The identity of a request with a key is derived from service and key (BSN-G-14).

Here are the frames, and what clients and workers read and write. The broker's side is ``native_broker``.
"""

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire.batches import KEYED_NUMBER_MIN, pack_finals, pack_requests
from bstar.wire.dialect import Frames
from bstar.wire.limits import CREDIT_MAX, EXTENSIONS_BYTES_MAX, SERVICE_BYTES_MAX, TEXT_BYTES_MAX, TTL_MS_MAX
from bstar.wire.mdp import check_body, check_service
from bstar.wire.messages import ALL_FEATURES, NEVER_MS, OWN_BACKOFF, NodeStatus, Reason
from bstar.wire.progress import Progress, pack_progress

MAGIC = b"\xb5\x01"

REQUEST = 0x01
PARTIAL = 0x02
FINAL = 0x03
ERROR = 0x04
BUSY = 0x05
NOT_ACTIVE = 0x06
PING = 0x07
PONG = 0x08
READY = 0x09
WELCOME = 0x0A
HEARTBEAT = 0x0B
DISCONNECT = 0x0C
STALE_EPOCH = 0x0D
REQUESTS = 0x0E
FINALS = 0x0F
CANCEL = 0x10
PROGRESS = 0x11
DIRECTED = 0x12

FLAG_REDELIVERED = 0x01  # on REQUEST: an earlier attempt or delivery of it may have been executed
FLAG_DISPATCHED = 0x02  # on NOT_ACTIVE: a worker had been given the request, so it may have been executed
FLAG_BATCHES = 0x04  # on READY: this worker reads REQUESTS
FLAG_URGENT = 0x08  # on REQUEST of a client: before those without it
FLAG_ONCE = 0x10  # on REQUEST of a client: dispatched at most once
FLAG_WHOLE = 0x20  # on REQUEST of a client: its caller gets no PARTIAL before the FINAL
FLAG_UNBEGUN = 0x40  # on DISCONNECT of a worker: it has begun nothing of what it still holds
FLAG_EXTENDED = 0x80  # on READY: this worker reads rows with extensions in REQUESTS

IDENTITY_BYTES = 24
# The bytes of a keepalive's routing id that name its worker, in each of its connections (BSN-W-23).
NAME_BYTES = 20
NO_IDENTITY = bytes(IDENTITY_BYTES)

_HEADER = struct.Struct(">BBBB24sQIB")
HEADER_BYTES = _HEADER.size
HEADER_BYTES_MAX = HEADER_BYTES + SERVICE_BYTES_MAX + EXTENSIONS_BYTES_MAX
# Magic, version, command, flags, identity, epoch, value, length of the service name.
Fields = tuple[int, int, int, int, bytes, int, int, int]
pack_header = _HEADER.pack
unpack_header: Callable[[bytes], Fields] = _HEADER.unpack_from
_STATUS = struct.Struct(">BBIIII")
NO_NUMBER = bytes(8)
_STATES = range(1, 6)


def identity(client_id: bytes, number: int) -> bytes:
    """The 24 bytes that name one request: 16 bytes of client id, then its message number."""
    assert len(client_id) == IDENTITY_BYTES - 8
    return client_id + number.to_bytes(8, "big")


def keyed_identity(service: bytes, key: bytes) -> bytes:
    """The identity of every request to ``service`` with this key, of any client (BSN-G-14).

    The first 24 bytes of BLAKE2b over the service's length, its name and the key. The number's two highest
    bits are 01: it cannot be a counted number, and fits into 63 bits.
    """
    digest = blake2b(len(service).to_bytes(1, "big") + service + key, digest_size=IDENTITY_BYTES).digest()
    return digest[:16] + (
        int.from_bytes(digest[16:], "big") & (KEYED_NUMBER_MIN - 1) | KEYED_NUMBER_MIN
    ).to_bytes(8, "big")


def is_keyed(identity: bytes) -> bool:
    """True if it was derived from a key: others may ask for the same request."""
    return identity[16] & 0xC0 == 0x40


def header(
    command: int,
    *,
    flags: int = 0,
    identity: bytes = NO_IDENTITY,
    epoch: int = 0,
    value: int = 0,
    service: bytes = b"",
) -> bytes:
    """One header frame."""
    return pack_header(0xB5, 0x01, command, flags, identity, epoch, value, len(service)) + service


# --- clients and workers hear -------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, gc=False):
    """A native message as clients and workers read it: the header's fields and the body's frames."""

    command: int
    flags: int
    identity: bytes
    epoch: int
    value: int
    service: bytes
    extensions: bytes
    body: list[bytes]


class Welcome(msgspec.Struct, frozen=True, gc=False):
    """A worker's registration is confirmed: how often to heartbeat, and when silence means loss."""

    status: NodeStatus
    heartbeat_ms: int
    expiry_ms: int


_BODY_FRAMES_MIN = {
    REQUEST: 1,
    PARTIAL: 1,
    FINAL: 1,
    ERROR: 0,
    BUSY: 0,
    NOT_ACTIVE: 1,
    PONG: 1,
    WELCOME: 2,
    HEARTBEAT: 0,
    DISCONNECT: 0,
    REQUESTS: 2,
    FINALS: 2,
    CANCEL: 0,
    PROGRESS: 1,
}


def decode(frames: Frames) -> Message:
    """Read ``[header] [body…]`` from a broker."""
    if not frames or frames[0][:2] != MAGIC:
        raise RemoteProtocolError("native-header", "a broker's message begins with B5 01")
    head = frames[0]
    if not HEADER_BYTES <= len(head) <= HEADER_BYTES_MAX:
        raise RemoteProtocolError("native-header", f"a header has {HEADER_BYTES} to {HEADER_BYTES_MAX} bytes")
    _, _, command, flags, ident, epoch, value, service_size = unpack_header(head)
    end = HEADER_BYTES + service_size
    if end > len(head):
        raise RemoteProtocolError("service-name", "the service name is longer than its header")
    frames_min = _BODY_FRAMES_MIN.get(command)
    if frames_min is None:
        raise RemoteProtocolError("native-command", f"no command of a broker: {command:#04x}")
    if len(frames) <= frames_min:
        raise RemoteProtocolError(
            "broker-frames", f"command {command:#04x} has {frames_min} frames of body or more"
        )
    return Message(command, flags, ident, epoch, value, head[HEADER_BYTES:end], head[end:], frames[1:])


def encode_status(status: NodeStatus) -> bytes:
    """The status frame, with the byte of features behind it."""
    return _STATUS.pack(
        status.state,
        status.peer_state,
        min(status.peer_age_ms, NEVER_MS),
        min(status.retry_after_ms, NEVER_MS),
        min(status.heartbeat_ms, NEVER_MS),
        min(status.failover_timeout_ms, NEVER_MS),
    ) + status.features.to_bytes(1, "big")


def decode_status(message: Message) -> NodeStatus:
    """The status frame of a PONG, NOT_ACTIVE or WELCOME. A newer node may send more bytes."""
    frame = message.body[0]
    if len(frame) < _STATUS.size:
        raise RemoteProtocolError("status", f"a status frame has {_STATUS.size} bytes or more")
    state, peer_state, peer_age_ms, retry_after_ms, heartbeat_ms, timeout_ms = _STATUS.unpack_from(frame)
    if state not in _STATES or peer_state > 5 or not heartbeat_ms or not timeout_ms:
        raise RemoteProtocolError("status", "a state is 1 to 5, a peer's 0 to 5, and timings are not zero")
    features = frame[_STATUS.size] if len(frame) > _STATUS.size else 0
    return NodeStatus(
        state,
        message.epoch,
        peer_state,
        peer_age_ms,
        retry_after_ms,
        heartbeat_ms,
        timeout_ms,
        features & ALL_FEATURES,
    )


def decode_welcome(message: Message) -> Welcome:
    """WELCOME's status, heartbeat interval and expiry."""
    if len(message.body[1]) < 4:
        raise RemoteProtocolError("welcome", "the expiry frame has 4 bytes or more")
    expiry_ms = int.from_bytes(message.body[1][:4], "big")
    if not 0 < message.value <= expiry_ms:
        raise RemoteProtocolError(
            "welcome", "the expiry is at least one heartbeat interval, and neither is zero"
        )
    return Welcome(decode_status(message), message.value, expiry_ms)


# --- a client says ------------------------------------------------------------------------------------------


def encode_request(
    identity: bytes,
    service: bytes,
    body: Frames,
    *,
    ttl_ms: int = 0,
    epoch: int = 0,
    is_repeated: bool = False,
    is_urgent: bool = False,
    is_once: bool = False,
    is_whole: bool = False,
    extensions: bytes = b"",
    is_directed: bool = False,
) -> Frames:
    """``[header 01] [body…]``; ``ttl_ms`` is how long the caller still waits, 0 for no limit.

    ``is_repeated`` (flag REDELIVERED): an earlier attempt may have been executed; the worker hears of it.
    ``is_urgent`` (flag URGENT): queued before requests that are not (BSN-B-18). ``is_once`` (flag ONCE):
    dispatched at most once (BSN-B-22). ``is_whole`` (flag WHOLE): its client collects its PARTIALs until the
    FINAL, so a redelivery may begin them again (BSN-B-23). ``is_directed``
    (``[header 12] [worker] [body…]``): the first frame of the body names the one worker that may have it.
    """
    assert len(identity) == IDENTITY_BYTES
    check_service(service)
    check_body(body)
    if not 0 <= ttl_ms <= TTL_MS_MAX:
        raise LocalProtocolError(f"a time to live is 0 to {TTL_MS_MAX} ms, not {ttl_ms}")
    flags = (
        FLAG_REDELIVERED * is_repeated | FLAG_URGENT * is_urgent | FLAG_ONCE * is_once | FLAG_WHOLE * is_whole
    )
    command = DIRECTED if is_directed else REQUEST
    head = pack_header(0xB5, 0x01, command, flags, identity, epoch, ttl_ms, len(service)) + service
    return [head + extensions if extensions else head, *body]


def encode_requests(
    client_id: bytes,
    service: bytes,
    numbers: Sequence[int],
    ttls_ms: Sequence[int],
    bodies: Sequence[bytes],
    *,
    epoch: int = 0,
    is_repeated: bool = False,
    is_once: bool = False,
    is_whole: bool = False,
    extensions: Sequence[bytes] | None = None,
) -> Frames:
    """``[header 0E] [table] [blob]``; see ``encode_request`` for what each request has."""
    check_service(service)
    flags = FLAG_REDELIVERED * is_repeated | FLAG_ONCE * is_once | FLAG_WHOLE * is_whole
    head = header(REQUESTS, flags=flags, identity=client_id + NO_NUMBER, epoch=epoch, service=service)
    return [head, *pack_requests(numbers, ttls_ms, bodies, extensions)]


def encode_cancel(identity: bytes, epoch: int) -> Frames:
    """``[header 10]``: the client has given the request up, from a client to its node and from there to the
    worker that holds it (BSN-B-28).
    """
    return [pack_header(0xB5, 0x01, CANCEL, 0, identity, epoch, 0, 0)]


def encode_ping(identity: bytes = NO_IDENTITY, epoch: int = 0) -> Frames:
    """``[header 07]``"""
    return [header(PING, identity=identity, epoch=epoch)]


# --- a worker says ------------------------------------------------------------------------------------------


def encode_ready(
    service: bytes,
    *,
    credit: int = 1,
    epoch: int = 0,
    takes_batches: bool = False,
    takes_extended: bool = False,
    keepalive: bytes = NO_IDENTITY,
    extensions: bytes = b"",
    description: bytes = b"",
) -> Frames:
    """``[header 09]`` with the service's name, and ``[description]`` if there is one; ``credit`` is how many
    requests it takes at once.

    ``keepalive`` is the routing id of the worker's keepalive, 24 bytes, the first of them not zero.
    ``extensions``: what it tells of its process. ``description``: how it describes the service.
    """
    check_service(service)
    assert len(keepalive) == IDENTITY_BYTES
    if not 0 < credit <= CREDIT_MAX:
        raise LocalProtocolError(f"a worker's credit is 1 to {CREDIT_MAX}, not {credit}")
    flags = FLAG_BATCHES * takes_batches | FLAG_EXTENDED * takes_extended
    head = header(READY, flags=flags, identity=keepalive, epoch=epoch, value=credit, service=service)
    return [head + extensions, description] if description else [head + extensions]


def encode_partial(identity: bytes, epoch: int, index: int, body: Frames) -> Frames:
    """``[header 02] [body…]``; ``index`` counts the request's PARTIALs from 0."""
    check_body(body)
    return [pack_header(0xB5, 0x01, PARTIAL, 0, identity, epoch, index, 0), *body]


def encode_progress(identity: bytes, epoch: int, progress: Progress) -> Frames:
    """``[header 11] [numbers] [text]``: how far the handler is."""
    return [header(PROGRESS, identity=identity, epoch=epoch), *pack_progress(progress)]


def encode_final(identity: bytes, epoch: int, partials: int, body: Frames) -> Frames:
    """``[header 03] [body…]``; ``partials`` is how many PARTIALs came before it."""
    check_body(body)
    return [pack_header(0xB5, 0x01, FINAL, 0, identity, epoch, partials, 0), *body]


def encode_finals(client_id: bytes, epoch: int, numbers: Sequence[int], bodies: Sequence[bytes]) -> Frames:
    """``[header 0F] [table] [blob]``: the replies to these requests of one client, one frame each."""
    return [header(FINALS, identity=client_id + NO_NUMBER, epoch=epoch), *pack_finals(numbers, bodies)]


def encode_error(identity: bytes, epoch: int, code: int, text: bytes, *behind: bytes) -> Frames:
    """``[header 04] [text]``, for RETRY also ``[milliseconds]``, for a declined request ``[data]`` if it has
    any; the text is cut at ``TEXT_BYTES_MAX``.
    """
    return [header(ERROR, identity=identity, epoch=epoch, value=code), text[:TEXT_BYTES_MAX], *behind]


def pack_retry(retry_ms: int) -> bytes:
    """The milliseconds behind the text of an ERROR RETRY, or OWN_BACKOFF."""
    return (NEVER_MS if retry_ms == OWN_BACKOFF else retry_ms).to_bytes(4, "big")


def read_retry(frames: Frames) -> int:
    """The milliseconds behind the text of an ERROR RETRY; OWN_BACKOFF if it names none (BSN-W-15)."""
    if not frames or len(frames[0]) < 4:
        return OWN_BACKOFF
    retry_ms = int.from_bytes(frames[0][:4], "big")
    return OWN_BACKOFF if retry_ms == NEVER_MS else retry_ms


def encode_heartbeat(epoch: int, elsewhere: int = 0) -> Frames:
    """``[header 0B]`` with the highest epoch the worker has seen, and how many requests of other connections
    it executes.
    """
    return [header(HEARTBEAT, epoch=epoch, value=elsewhere)]


def encode_disconnect(reason: Reason = Reason.GOODBYE, epoch: int = 0, *, is_unbegun: bool = False) -> Frames:
    """``[header 0C]``; ``is_unbegun`` (flag UNBEGUN): the worker has begun none of its requests."""
    flags = FLAG_UNBEGUN if is_unbegun else 0
    return [header(DISCONNECT, flags=flags, epoch=epoch, value=reason)]


def encode_stale_epoch(identity: bytes, epoch: int) -> Frames:
    """``[header 0D]``: the request was not executed, because ``epoch`` is higher than its own."""
    return [header(STALE_EPOCH, identity=identity, epoch=epoch)]
