"""The native dialect: MDP's roles with request numbers, deadlines, errors and epochs.

The specification is docs/protocol/native.md. A message is ``[header] [body…]``. Every header has the same
fixed part, so that one unpack reads it:

    octet 0      magic B5            octet 2      command            octets 28-35  epoch
    octet 1      version 01          octet 3      flags              octets 36-39  value, per command
                                     octets 4-27  identity           octet 40      length of the service name
    then the service name, then extensions (type, 2-octet length, value) up to the end of the frame.

An identity is a client id (16 octets, random, one per client object) and a message number (8 octets). It
comes back on every reply and it goes to the worker, on every node and in every repetition of the same
request. A request with a key of its caller has one that is derived from service and key instead, so that
whoever repeats the key repeats the request (BSN-G-14). Numbers are big-endian.
"""

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire.batches import KEYED_NUMBER_MIN, final_rows, pack_finals, pack_requests, request_rows
from bstar.wire.dialect import Dialect, Envelope, Frames
from bstar.wire.limits import CREDIT_MAX, SERVICE_BYTES_MAX, TEXT_BYTES_MAX
from bstar.wire.mdp02 import check_body, check_service
from bstar.wire.messages import (
    Disconnect,
    Failure,
    Final,
    Finals,
    FromPeer,
    Heartbeat,
    NodeStatus,
    Partial,
    Ping,
    Ready,
    Reason,
    Request,
    Requests,
    StaleEpoch,
)

__all__ = [
    "BUSY",
    "CODEC",
    "DISCONNECT",
    "ERROR",
    "FINAL",
    "FINALS",
    "FLAG_BATCHES",
    "FLAG_DISPATCHED",
    "FLAG_ONCE",
    "FLAG_REDELIVERED",
    "FLAG_UNBEGUN",
    "FLAG_URGENT",
    "FLAG_WHOLE",
    "HEADER_BYTES",
    "HEARTBEAT",
    "IDENTITY_BYTES",
    "KEYED_NUMBER_MIN",
    "MAGIC",
    "NOT_ACTIVE",
    "NO_IDENTITY",
    "PARTIAL",
    "PING",
    "PONG",
    "READY",
    "REQUEST",
    "REQUESTS",
    "STALE_EPOCH",
    "WELCOME",
    "Message",
    "Welcome",
    "decode",
    "decode_peer",
    "decode_status",
    "decode_welcome",
    "encode_disconnect",
    "encode_error",
    "encode_extension",
    "encode_final",
    "encode_finals",
    "encode_heartbeat",
    "encode_partial",
    "encode_ping",
    "encode_ready",
    "encode_request",
    "encode_requests",
    "encode_stale_epoch",
    "identity",
    "is_keyed",
    "iter_extensions",
    "keyed_identity",
    "request_identity",
]

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

FLAG_REDELIVERED = 0x01  # on REQUEST: an earlier attempt or delivery of it may have been executed
FLAG_DISPATCHED = 0x02  # on NOT_ACTIVE: a worker had been given the request, so it may have been executed
FLAG_BATCHES = 0x04  # on READY: this worker may be sent REQUESTS
FLAG_URGENT = 0x08  # on REQUEST of a client: before those without it
FLAG_ONCE = 0x10  # on REQUEST of a client: dispatched at most once
FLAG_WHOLE = 0x20  # on REQUEST of a client: its caller gets no PARTIAL before the FINAL
FLAG_UNBEGUN = 0x40  # on DISCONNECT of a worker: it has begun nothing of what it still holds

IDENTITY_BYTES = 24
NO_IDENTITY = bytes(IDENTITY_BYTES)

_HEADER = struct.Struct(">BBBB24sQIB")
HEADER_BYTES = _HEADER.size
# Octets of extensions in one header: room for a trace context and its state many times over.
_EXTENSIONS_BYTES_MAX = 8_192
_HEADER_BYTES_MAX = HEADER_BYTES + SERVICE_BYTES_MAX + _EXTENSIONS_BYTES_MAX
# The same without magic, version and flags, which say nothing to a broker that has come so far.
_PEER_HEADER = struct.Struct(">2xBx24sQIB")
_STATUS = struct.Struct(">BBIIII")
# The octet behind it, which nodes of earlier releases do not send.
_FEATURE_BATCHES = 0x01
_FEATURE_ONCE = 0x02
_NO_NUMBER = bytes(8)
_NO_CLIENT = bytes(16)
_EXTENSION = struct.Struct(">BH")
_U32_MAX = 0xFFFF_FFFF
_STATES = range(1, 6)

_pack = _HEADER.pack
_unpack_from = _HEADER.unpack_from
_unpack_peer_from = _PEER_HEADER.unpack_from


def identity(client_id: bytes, number: int) -> bytes:
    """The 24 octets that name one request for ever: 16 octets of client id, then its message number."""
    assert len(client_id) == IDENTITY_BYTES - 8
    return client_id + number.to_bytes(8, "big")


def keyed_identity(service: bytes, key: bytes) -> bytes:
    """The identity of every request to ``service`` with this key, whoever sends it (BSN-G-14).

    The first 24 octets of BLAKE2b over the service's length, its name and the key. The number's two highest
    bits are 01: it cannot be a counted number, and fits into 63 bits.
    """
    digest = blake2b(len(service).to_bytes(1, "big") + service + key, digest_size=IDENTITY_BYTES).digest()
    return digest[:16] + (
        int.from_bytes(digest[16:], "big") & (KEYED_NUMBER_MIN - 1) | KEYED_NUMBER_MIN
    ).to_bytes(8, "big")


def is_keyed(identity: bytes) -> bool:
    """Was it derived from a key, so that others may ask for the same request?"""
    return identity[16] & 0xC0 == 0x40


def header(
    command: int,
    *,
    flags: int = 0,
    identity: bytes = NO_IDENTITY,
    epoch: int = 0,
    value: int = 0,
    service: bytes = b"",
    extensions: bytes = b"",
) -> bytes:
    """One header frame."""
    return _pack(0xB5, 0x01, command, flags, identity, epoch, value, len(service)) + service + extensions


# --- extensions ---------------------------------------------------------------------------------------------


def encode_extension(kind: int, value: bytes) -> bytes:
    """``[type] [2-octet length] [value]``"""
    if not 0 <= kind <= 0xFF or len(value) > 0xFFFF:
        raise LocalProtocolError("an extension has a type of one octet and at most 65535 octets of value")
    return _EXTENSION.pack(kind, len(value)) + value


def iter_extensions(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """The (type, value) pairs in a header's extension part; the reader skips the types it does not know."""
    at = 0
    while at < len(octets):
        if at + _EXTENSION.size > len(octets):
            raise RemoteProtocolError("extension", "an extension is cut off")
        kind, size = _EXTENSION.unpack_from(octets, at)
        at += _EXTENSION.size
        if at + size > len(octets):
            raise RemoteProtocolError("extension", "an extension is longer than its header")
        yield kind, octets[at : at + size]
        at += size


# --- the broker hears ---------------------------------------------------------------------------------------


def decode_peer(frames: Frames) -> FromPeer:
    """Read ``[routing id] [header] [body…]`` from a client or worker."""
    head = frames[1]
    size = len(head)
    if size < HEADER_BYTES or size > _HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            "native-header", f"a header has {HEADER_BYTES} to {_HEADER_BYTES_MAX} octets"
        )
    _, _, command, flags, ident, epoch, value, service_size = _unpack_from(head)
    end = HEADER_BYTES + service_size
    if end > size:
        raise RemoteProtocolError("native-header", "the service name is longer than its header")
    if command == REQUEST:
        if not service_size:
            raise RemoteProtocolError("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} octets")
        if len(frames) < 3:
            raise RemoteProtocolError("client-frames", "a REQUEST is [header] [body…]")
        if ident == NO_IDENTITY:
            raise RemoteProtocolError("identity", "a REQUEST names itself; 24 zero octets name nothing")
        return Request(
            frames[0],
            3,
            (),
            head[HEADER_BYTES:end],
            frames[2:],
            ident,
            value,
            epoch,
            head[end:] if size > end else b"",
            flags & FLAG_REDELIVERED != 0,
            flags & FLAG_URGENT != 0,
            flags & FLAG_ONCE != 0,
            flags & FLAG_WHOLE != 0,
        )
    if command == FINAL:
        if len(frames) < 3:
            raise RemoteProtocolError("worker-frames", "a FINAL is [header] [body…]", from_worker=True)
        return Final(frames[0], 3, (), ident, frames[2:], head)
    if command == REQUESTS:
        if not service_size:
            raise RemoteProtocolError("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} octets")
        if ident[:16] == _NO_CLIENT:
            raise RemoteProtocolError("identity", "a batch names its client; 16 zero octets name nobody")
        numbers, ttls_ms, lengths = request_rows(frames, 2)
        return Requests(
            frames[0],
            ident[:16],
            head[HEADER_BYTES:end],
            numbers,
            ttls_ms,
            lengths,
            frames[2],
            frames[3],
            epoch,
            flags & FLAG_REDELIVERED != 0,
            flags & FLAG_ONCE != 0,
            flags & FLAG_WHOLE != 0,
        )
    if command == FINALS:
        try:
            numbers, lengths = final_rows(frames, 2)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(error.reason, error.text, from_worker=True) from None
        return Finals(frames[0], ident[:16], numbers, lengths, frames[2], frames[3], head)
    if command == PARTIAL:
        if len(frames) < 3:
            raise RemoteProtocolError("worker-frames", "a PARTIAL is [header] [body…]", from_worker=True)
        return Partial(frames[0], 3, (), ident, frames[2:], head)
    if command == PING:
        return Ping(frames[0], ident, epoch)
    if command == HEARTBEAT:
        return Heartbeat(frames[0], 3, (), epoch)
    if command == ERROR:
        text = bytes(frames[2][:TEXT_BYTES_MAX]) if len(frames) > 2 else b""
        return Failure(frames[0], ident, value, text, head)
    if command == READY:
        if not service_size:
            raise RemoteProtocolError("service-name", "a READY names its service", from_worker=True)
        if not 0 < value <= CREDIT_MAX:
            raise RemoteProtocolError("credit", f"a worker's credit is 1 to {CREDIT_MAX}", from_worker=True)
        keepalive = ident if ident != NO_IDENTITY else b""
        batches = flags & FLAG_BATCHES != 0
        return Ready(frames[0], 3, (), head[HEADER_BYTES:end], value, epoch, batches, keepalive)
    if command == DISCONNECT:
        return Disconnect(frames[0], 3, flags & FLAG_UNBEGUN != 0)
    if command == STALE_EPOCH:
        return StaleEpoch(frames[0], ident, epoch)
    raise RemoteProtocolError("native-command", f"no command of a client or worker: {command:#04x}")


def request_identity(frames: Frames) -> bytes | None:
    """The identity of a REQUEST that ``decode_peer`` refused, if that much of it can be read."""
    if len(frames) < 2 or frames[1][:3] != MAGIC + b"\x01" or len(frames[1]) < HEADER_BYTES:
        return None
    found = bytes(frames[1][4 : 4 + IDENTITY_BYTES])
    return found if found != NO_IDENTITY else None


# --- the broker says ----------------------------------------------------------------------------------------


def _encode_status(status: NodeStatus) -> bytes:
    features = _FEATURE_BATCHES * status.takes_batches | _FEATURE_ONCE * status.obeys_once
    return _STATUS.pack(
        status.state,
        status.peer_state,
        min(status.peer_age_ms, _U32_MAX),
        min(status.retry_after_ms, _U32_MAX),
        min(status.heartbeat_ms, _U32_MAX),
        min(status.failover_timeout_ms, _U32_MAX),
    ) + features.to_bytes(1, "big")


class NativeCodec:
    """The broker's side; see ``BrokerCodec`` and the specification."""

    dialect = Dialect.NATIVE
    label = "native"
    is_streaming = True

    def request(
        self,
        to: bytes,
        envelope: Envelope,
        address: bytes,
        identity: bytes,
        body: Frames,
        ttl_ms: int,
        epoch: int,
        is_redelivered: bool,
        extensions: bytes,
    ) -> Frames:
        return [
            to,
            _pack(0xB5, 0x01, REQUEST, is_redelivered, identity, epoch, ttl_ms, 0) + extensions,
            *body,
        ]

    def requests(
        self,
        to: bytes,
        client_id: bytes,
        table: bytes,
        blob: bytes,
        age_ms: int,
        epoch: int,
        is_redelivered: bool,
    ) -> Frames:
        """Give a worker these rows; ``age_ms`` is how much of their times to live has passed meanwhile."""
        head = _pack(0xB5, 0x01, REQUESTS, is_redelivered, client_id + _NO_NUMBER, epoch, age_ms, 0)
        return [to, head, table, blob]

    def welcome(
        self, to: bytes, envelope: Envelope, status: NodeStatus, heartbeat_ms: int, expiry_ms: int
    ) -> Frames:
        head = header(WELCOME, epoch=status.epoch, value=heartbeat_ms)
        return [to, head, _encode_status(status), expiry_ms.to_bytes(4, "big")]

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames:
        return [to, header(HEARTBEAT, epoch=epoch, value=state)]

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames:
        return [to, header(DISCONNECT, epoch=epoch, value=reason)]

    def partial(
        self,
        to: bytes,
        envelope: Envelope,
        service: bytes,
        identity: bytes,
        epoch: int,
        index: int,
        body: Frames,
        header: bytes,
    ) -> Frames:
        return [to, header or _pack(0xB5, 0x01, PARTIAL, 0, identity, epoch, index, 0), *body]

    def final(
        self,
        to: bytes,
        envelope: Envelope,
        service: bytes,
        identity: bytes,
        epoch: int,
        partials: int,
        body: Frames,
        header: bytes,
    ) -> Frames:
        return [to, header or _pack(0xB5, 0x01, FINAL, 0, identity, epoch, partials, 0), *body]

    def failure(
        self, to: bytes, envelope: Envelope, identity: bytes, epoch: int, code: int, text: bytes
    ) -> Frames:
        return [to, header(ERROR, identity=identity, epoch=epoch, value=code), text]

    def busy(
        self, to: bytes, envelope: Envelope, identity: bytes, epoch: int, retry_after_ms: int, text: bytes
    ) -> Frames:
        return [to, header(BUSY, identity=identity, epoch=epoch, value=retry_after_ms), text]

    def not_active(
        self, to: bytes, envelope: Envelope, identity: bytes, status: NodeStatus, was_dispatched: bool
    ) -> Frames:
        flags = FLAG_DISPATCHED if was_dispatched else 0
        head = header(
            NOT_ACTIVE,
            flags=flags,
            identity=identity,
            epoch=status.epoch,
            value=min(status.retry_after_ms, _U32_MAX),
        )
        return [to, head, _encode_status(status)]

    def pong(self, to: bytes, identity: bytes, status: NodeStatus) -> Frames:
        """``[header] [status]``: the answer to PING in every state."""
        head = header(PONG, identity=identity, epoch=status.epoch, value=min(status.retry_after_ms, _U32_MAX))
        return [to, head, _encode_status(status)]


CODEC = NativeCodec()


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
}


def decode(frames: Frames) -> Message:
    """Read ``[header] [body…]`` from a broker."""
    if not frames or frames[0][:2] != MAGIC:
        raise RemoteProtocolError("native-header", "a broker's message begins with B5 01")
    head = frames[0]
    if not HEADER_BYTES <= len(head) <= _HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            "native-header", f"a header has {HEADER_BYTES} to {_HEADER_BYTES_MAX} octets"
        )
    _, _, command, flags, ident, epoch, value, service_size = _unpack_from(head)
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


def decode_status(message: Message) -> NodeStatus:
    """The status frame of a PONG, NOT_ACTIVE or WELCOME. Octets after the known ones are a newer node's."""
    octets = message.body[0]
    if len(octets) < _STATUS.size:
        raise RemoteProtocolError("status", f"a status frame has {_STATUS.size} octets or more")
    state, peer_state, peer_age_ms, retry_after_ms, heartbeat_ms, timeout_ms = _STATUS.unpack_from(octets)
    if state not in _STATES or peer_state > 5 or not heartbeat_ms or not timeout_ms:
        raise RemoteProtocolError("status", "a state is 1 to 5, a peer's 0 to 5, and timings are not zero")
    features = octets[_STATUS.size] if len(octets) > _STATUS.size else 0
    return NodeStatus(
        state,
        message.epoch,
        peer_state,
        peer_age_ms,
        retry_after_ms,
        heartbeat_ms,
        timeout_ms,
        features & _FEATURE_BATCHES != 0,
        features & _FEATURE_ONCE != 0,
    )


def decode_welcome(message: Message) -> Welcome:
    """WELCOME's status, heartbeat interval and expiry."""
    if len(message.body[1]) < 4:
        raise RemoteProtocolError("welcome", "the expiry frame has 4 octets or more")
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
) -> Frames:
    """``[header 01] [body…]``; ``ttl_ms`` is the time the caller goes on waiting, 0 for no limit.

    ``is_repeated`` (flag REDELIVERED): an earlier attempt may have been executed; the worker is told.
    ``is_urgent`` (flag URGENT): to be queued before requests that are not (BSN-B-18). ``is_once`` (flag
    ONCE): dispatched at most once (BSN-B-22). ``is_whole`` (flag WHOLE): its PARTIALs are collected until the
    FINAL, so a redelivery may begin them again (BSN-B-23).
    """
    assert len(identity) == IDENTITY_BYTES
    check_service(service)
    check_body(body)
    if len(extensions) > _EXTENSIONS_BYTES_MAX:
        raise LocalProtocolError(f"a header has room for {_EXTENSIONS_BYTES_MAX} octets of extensions")
    if not 0 <= ttl_ms <= _U32_MAX:
        raise LocalProtocolError(f"a time to live is 0 to {_U32_MAX} ms, not {ttl_ms}")
    flags = (
        FLAG_REDELIVERED * is_repeated | FLAG_URGENT * is_urgent | FLAG_ONCE * is_once | FLAG_WHOLE * is_whole
    )
    return [
        _pack(0xB5, 0x01, REQUEST, flags, identity, epoch, ttl_ms, len(service)) + service + extensions,
        *body,
    ]


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
) -> Frames:
    """``[header 0E] [table] [blob]``; see ``encode_request`` for what each request has."""
    check_service(service)
    flags = FLAG_REDELIVERED * is_repeated | FLAG_ONCE * is_once | FLAG_WHOLE * is_whole
    head = header(REQUESTS, flags=flags, identity=client_id + _NO_NUMBER, epoch=epoch, service=service)
    return [head, *pack_requests(numbers, ttls_ms, bodies)]


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
    keepalive: bytes = NO_IDENTITY,
) -> Frames:
    """``[header 09]`` with the service's name; ``credit`` is how many requests it takes at once.

    ``keepalive`` is the routing id of the worker's keepalive, 24 octets, the first of them not zero.
    """
    check_service(service)
    assert len(keepalive) == IDENTITY_BYTES
    if not 0 < credit <= CREDIT_MAX:
        raise LocalProtocolError(f"a worker's credit is 1 to {CREDIT_MAX}, not {credit}")
    flags = FLAG_BATCHES if takes_batches else 0
    return [header(READY, flags=flags, identity=keepalive, epoch=epoch, value=credit, service=service)]


def encode_partial(identity: bytes, epoch: int, index: int, body: Frames) -> Frames:
    """``[header 02] [body…]``; ``index`` counts the request's PARTIALs from 0."""
    check_body(body)
    return [_pack(0xB5, 0x01, PARTIAL, 0, identity, epoch, index, 0), *body]


def encode_final(identity: bytes, epoch: int, partials: int, body: Frames) -> Frames:
    """``[header 03] [body…]``; ``partials`` is how many PARTIALs came before it."""
    check_body(body)
    return [_pack(0xB5, 0x01, FINAL, 0, identity, epoch, partials, 0), *body]


def encode_finals(client_id: bytes, epoch: int, numbers: Sequence[int], bodies: Sequence[bytes]) -> Frames:
    """``[header 0F] [table] [blob]``: the replies to these requests of one client, one frame each."""
    return [header(FINALS, identity=client_id + _NO_NUMBER, epoch=epoch), *pack_finals(numbers, bodies)]


def encode_error(identity: bytes, epoch: int, code: int, text: bytes) -> Frames:
    """``[header 04] [text]``; of a text that is longer than people read, the beginning."""
    return [header(ERROR, identity=identity, epoch=epoch, value=code), text[:TEXT_BYTES_MAX]]


def encode_heartbeat(epoch: int) -> Frames:
    """``[header 0B]`` with the highest epoch the worker has seen."""
    return [header(HEARTBEAT, epoch=epoch)]


def encode_disconnect(reason: Reason = Reason.GOODBYE, epoch: int = 0, *, is_unbegun: bool = False) -> Frames:
    """``[header 0C]``; ``is_unbegun`` (flag UNBEGUN): nothing was begun of what the worker still holds."""
    flags = FLAG_UNBEGUN if is_unbegun else 0
    return [header(DISCONNECT, flags=flags, epoch=epoch, value=reason)]


def encode_stale_epoch(identity: bytes, epoch: int) -> Frames:
    """``[header 0D]``: the request was not executed, because ``epoch`` is higher than its own."""
    return [header(STALE_EPOCH, identity=identity, epoch=epoch)]
