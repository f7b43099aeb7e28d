"""Frames to messages and back, for every dialect that a broker serves on its one ROUTER socket.

Pure: no socket, no clock. ``decode`` reads what a broker receives. It chooses the dialect by the first frames
and returns a neutral message. It raises RemoteProtocolError and nothing else, whatever the bytes are.

    [id] [MDPC02 | MDPW02] …               MDP/0.2
    [id] [] [MDPC01 | MDPW01] …            MDP/0.1
    [id] [] [MDPC02 | MDPW02] …            MDP/0.2 from a peer that puts an empty frame first; answered alike
    [id] [frames…] [] [MDPC01 | MDPC02] …  the same from a client with an envelope of its own (REQ_CORRELATE)
    [id] [B5 01 …] …                       the native dialect, whose header has 41 bytes at least

The frames of each message decide, as PROTOCOLS advises for interoperable brokers: a socket that was a client
may be a worker next.
"""

from bstar.errors import RemoteProtocolError
from bstar.wire import front, native, native_broker
from bstar.wire.dialect import BrokerCodec, Dialect, Envelope, Frames
from bstar.wire.limits import ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, FRAMES_MAX, MESSAGE_BYTES_MAX
from bstar.wire.mdp import MDP01, MDP02
from bstar.wire.messages import Finals, FromPeer

__all__ = ["CODECS", "BrokerCodec", "Dialect", "Envelope", "Frames", "decode"]

# Indexed by Dialect's number; 0 is unused. STORE, the last one, has its mailbox at the broker.
CODECS: tuple[BrokerCodec, ...] = (MDP01, MDP01, MDP02, native_broker.CODEC, front.CODEC)

_NO_ENVELOPE: Envelope = ()

# Every message passes here, so the names it needs are bound once.
_NATIVE_MAGIC = native.MAGIC
_NATIVE_BYTES = native.HEADER_BYTES
_BATCHES = (native.MAGIC + bytes([native.REQUESTS]), native.MAGIC + bytes([native.FINALS]))
_MDP02_CLIENT, _MDP02_WORKER = MDP02.client, MDP02.worker
_decode_native = native_broker.decode_peer
_decode_mdp02_client, _decode_mdp02_worker = MDP02.decode_client, MDP02.decode_worker
# By the header behind an empty frame.
_ENVELOPED = (
    (MDP01.client, MDP01.decode_client),
    (MDP01.worker, MDP01.decode_worker),
    (MDP02.client, MDP02.decode_client),
    (MDP02.worker, MDP02.decode_worker),
)


def decode(
    frames: Frames, message_bytes_max: int = MESSAGE_BYTES_MAX, frames_max: int = FRAMES_MAX
) -> FromPeer:
    """Read one message as a ROUTER received it, the routing id first."""
    count = len(frames)
    if not 1 < count <= frames_max:
        raise _wrong_count(count, frames_max)
    if sum(map(len, frames)) > message_bytes_max:
        return _decode_large(frames, message_bytes_max)
    first = frames[1]
    if first == _MDP02_CLIENT:
        return _decode_mdp02_client(frames, 1, _NO_ENVELOPE)
    if first == _MDP02_WORKER:
        return _decode_mdp02_worker(frames, 1, _NO_ENVELOPE)
    # A first frame that is shorter than a native header is one of MDP or belongs to an envelope, even if it
    # begins B5 01: REQ_CORRELATE's request ids count through every value of 4 bytes.
    if len(first) >= _NATIVE_BYTES and first[:2] == _NATIVE_MAGIC:
        return _decode_native(frames)
    return _decode_enveloped(frames)


def _wrong_count(count: int, frames_max: int) -> RemoteProtocolError:
    if count < 2:
        return RemoteProtocolError("frames", "nothing follows the routing id")
    text = f"{count} frames are more than {frames_max} (limits.message_frames_max)"
    return RemoteProtocolError("frames", text)


def _decode_large(frames: Frames, message_bytes_max: int) -> FromPeer:
    """Read a batch, which has bounds of its own; refuse a single message beyond the limit."""
    if frames[1][:3] in _BATCHES and len(frames[1]) >= _NATIVE_BYTES:
        message = _decode_native(frames)
        # A request that is too large is answered; a reply that is ends its worker, as a single one does.
        if type(message) is not Finals or max(message.lengths) <= message_bytes_max:
            return message
    raise RemoteProtocolError("size", f"the message has more than {message_bytes_max} bytes")


def _decode_enveloped(frames: Frames) -> FromPeer:
    """Read a message whose header stands behind an empty frame."""
    try:
        at = frames.index(b"", 1, ENVELOPE_FRAMES_MAX + 2) + 1
        head = frames[at]
    except (ValueError, IndexError):
        raise RemoteProtocolError("header", f"no header of any dialect: {frames[1][:16]!r}") from None
    if at > 2 and sum(map(len, frames[1:at])) > ENVELOPE_BYTES_MAX:
        raise RemoteProtocolError("header", f"an envelope has at most {ENVELOPE_BYTES_MAX} bytes")
    for header, read in _ENVELOPED:
        if head == header:
            return read(frames, at, tuple(frames[1:at]))
    raise RemoteProtocolError("header", f"no header of any dialect behind the empty frame: {head[:16]!r}")
