"""Simple and Paranoid Pirate, all sides: what clients, workers and the queue say and hear. Pure.

                     Simple Pirate (the guide)          Paranoid Pirate (6/PPP)
    client asks      [envelope…] [] [body…]             the same
    client hears     [envelope…] [] [body…]             the same
    READY            [] [01]                            [01]
    HEARTBEAT                                           [02], both ways
    as words         [] [READY]                         [READY] and [HEARTBEAT]
    REQUEST          [] [address] [] [body…]            [address] [] [body…]
    REPLY            [] [address] [] [body…]            [address] [] [body…]

The guide's programs in C, Python, Go, Java, Haskell and Haxe send the bytes, those in C++, PHP, Lua, Tcl and
C# the words. A worker gets heartbeats in the form of its READY.

The routing id stands before each. A REQ socket adds and strips the first empty frame. A client's envelope is
what stands before that frame: REQ_CORRELATE's request id, or the addresses of proxies.

The worker returns the address unchanged. It is the request's identity, so no reply can reach a client that
did not ask for it. Neither protocol has a type frame: whole shapes are compared, and never a first byte (an
address may begin with 01).
"""

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire.dialect import Envelope, Frames
from bstar.wire.limits import ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX

READY = b"\x01"
HEARTBEAT = b"\x02"
READY_WORD = b"READY"
HEARTBEAT_WORD = b"HEARTBEAT"
ADDRESS_BYTES = 24
"""Bytes of a request's identity."""

SIMPLE: Envelope = (b"",)
"""What stands before each frame of a Simple Pirate worker's messages."""
PARANOID: Envelope = ()
"""A Paranoid Pirate worker has nothing there."""
WORDED: Envelope = (HEARTBEAT_WORD,)
"""Stands for a Paranoid Pirate worker that sends words. It has nothing there, too."""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A client's request. The reply carries the same ``envelope``, which ends with the empty frame."""

    envelope: Envelope
    body: list[bytes]


class Ready(msgspec.Struct, frozen=True, gc=False):
    """A worker takes requests. ``envelope`` is SIMPLE, PARANOID or WORDED."""

    envelope: Envelope


class Beat(msgspec.Struct, frozen=True, gc=False):
    """A Paranoid Pirate worker is alive."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A worker's reply to the request with this address."""

    envelope: Envelope
    address: bytes
    body: list[bytes]


def check_bounds(frames: Frames, message_bytes_max: int, frames_max: int) -> None:
    """RemoteProtocolError if the message breaks a bound of the configuration."""
    if len(frames) > frames_max:
        text = f"{len(frames)} frames are more than {frames_max} (limits.message_frames_max)"
        raise RemoteProtocolError("frames", text)
    if sum(map(len, frames)) > message_bytes_max:
        text = f"the message has more than {message_bytes_max} bytes (limits.message_bytes_max)"
        raise RemoteProtocolError("size", text)


def decode_client(frames: Frames) -> Ask:
    """Read a client's message as a ROUTER received it, the routing id first."""
    try:
        at = frames.index(b"", 1, ENVELOPE_FRAMES_MAX + 2) + 1
    except ValueError:
        text = "no empty frame stands before the body: a DEALER has to send it"
        raise RemoteProtocolError("delimiter", text) from None
    if sum(map(len, frames[1:at])) > ENVELOPE_BYTES_MAX:
        raise RemoteProtocolError("envelope", f"an envelope has at most {ENVELOPE_BYTES_MAX} bytes")
    if at == len(frames):
        raise RemoteProtocolError("body", "a request is [envelope…] [] [body…]; the body is missing")
    return Ask(tuple(frames[1:at]), frames[at:])


def decode_worker(frames: Frames) -> Ready | Beat | Reply:
    """Read a worker's message as a ROUTER received it, the routing id first."""
    shape = frames[1:]
    if shape == [READY]:
        return Ready(PARANOID)
    if shape == [READY_WORD]:
        return Ready(WORDED)
    if shape in ([HEARTBEAT], [HEARTBEAT_WORD]):
        return Beat()
    if shape in ([b"", READY], [b"", READY_WORD]):
        return Ready(SIMPLE)
    envelope, rest = (SIMPLE, shape[1:]) if shape[:1] == [b""] else (PARANOID, shape)
    if len(rest) >= 3 and len(rest[0]) == ADDRESS_BYTES and rest[1] == b"":
        return Reply(envelope, rest[0], rest[2:])
    if len(shape) == 1:
        raise RemoteProtocolError("command", f"no command of a worker: {bytes(shape[0][:8])!r}")
    raise RemoteProtocolError("shape", "neither READY, HEARTBEAT nor [address] [] [body…]")


def encode_request(to: bytes, envelope: Envelope, address: bytes, body: Frames) -> Frames:
    """REQUEST to a worker. It has one body frame at least, which published workers insist on."""
    before = SIMPLE if envelope == SIMPLE else PARANOID
    return [to, *before, address, b"", *(body or [b""])]


def address_of(frames: Frames) -> bytes:
    """The address in this REQUEST to a worker, the routing id first."""
    return frames[1] or frames[2]


def encode_heartbeat(to: bytes, envelope: Envelope) -> Frames:
    """HEARTBEAT to a Paranoid Pirate worker, in the form of its READY."""
    return [to, HEARTBEAT_WORD if envelope == WORDED else HEARTBEAT]


def is_heartbeat(frames: Frames) -> bool:
    """True if this message to a worker, the routing id first, is a HEARTBEAT."""
    return frames[1:] in ([HEARTBEAT], [HEARTBEAT_WORD])


def encode_ready(envelope: Envelope) -> Frames:
    """READY of a worker to a queue, in bytes."""
    return [*envelope, READY]


def encode_reply(envelope: Envelope, address: bytes, body: Frames) -> Frames:
    """A worker's reply."""
    return [*envelope, address, b"", *body]


def decode_for_worker(frames: Frames, envelope: Envelope) -> tuple[bytes, Frames] | None:
    """Read what a queue sends to a worker: a request's address and body, or None for a HEARTBEAT.

    An address has any length and is one frame, as every published queue has it. RemoteProtocolError for
    anything else.
    """
    if frames in ([HEARTBEAT], [HEARTBEAT_WORD]):
        return None
    at = len(envelope)
    if len(frames) < at + 3 or tuple(frames[:at]) != envelope or not frames[at] or frames[at + 1]:
        raise RemoteProtocolError("queue-frames", "a queue sends HEARTBEAT or [address] [] [body…]")
    return frames[at], frames[at + 2 :]


def encode_answer(to: bytes, envelope: Envelope, body: Frames) -> Frames:
    """The reply to a client. A REQ socket takes no message without a body."""
    return [to, *envelope, *(body or [b""])]
