"""Turns bodies and names of callers and handlers into frames and bytes."""

from collections.abc import Coroutine, Sequence

from bstar.errors import LocalProtocolError
from bstar.wire.limits import FRAMES_MAX, MESSAGE_BYTES_MAX, SERVICE_BYTES_MAX

# The routing id, the header and an envelope stand before the body.
_BODY_FRAMES_MAX = FRAMES_MAX - 8
# A reply's message has at most this many bytes beside its body.
REPLY_HEAD_BYTES = 1_024
_BODY_BYTES_MAX = MESSAGE_BYTES_MAX - 65_536


def to_bytes(value: object, name: str) -> bytes:
    """Bytes; text becomes UTF-8. TypeError for other types, LocalProtocolError for text that UTF-8 cannot
    encode.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"{name} cannot be written as UTF-8: {error}") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{name} is text or bytes, not {type(value).__name__}")


def to_name(service: object) -> bytes:
    """A service's name as bytes; text is UTF-8."""
    name = to_bytes(service, "a service's name")
    if not 0 < len(name) <= SERVICE_BYTES_MAX:
        raise LocalProtocolError(f"a service name has 1 to {SERVICE_BYTES_MAX} bytes, not {len(name)}")
    return name


def to_frames(body: object) -> list[bytes]:
    """A ``Body`` as frames: bytes are one frame, a sequence of bytes several. TypeError for anything else."""
    if isinstance(body, bytes | bytearray | memoryview):
        return _bounded([bytes(body)])
    if isinstance(body, str):
        raise TypeError("a body is bytes or a sequence of bytes: encode the text first, or name a codec")
    if not isinstance(body, Sequence):
        raise TypeError(
            "a body is bytes, a sequence of bytes, or an object to encode (struct, dataclass, model, dict), "
            f"not {type(body).__name__}; another value needs codec='json' or 'msgpack'"
        )
    if not 0 < len(body) <= _BODY_FRAMES_MAX:
        raise LocalProtocolError(f"a body has 1 to {_BODY_FRAMES_MAX} frames, not {len(body)}")
    frames = list(body)
    for frame in frames:
        if not isinstance(frame, bytes):
            raise TypeError(
                f"every frame of a body is bytes, not {type(frame).__name__}: a list of values needs a codec"
            )
    return _bounded(frames)


def to_reply(answer: object, bytes_max: int) -> list[bytes]:
    """A handler's result as frames; None is one empty frame. ``bytes_max`` bounds the message."""
    if isinstance(answer, Coroutine):
        answer.close()  # otherwise Python warns that it was never awaited
        raise TypeError("the handler returned a coroutine: await it; an async handler needs AsyncWorker")
    try:
        frames = [b""] if answer is None else to_frames(answer)
    except TypeError as error:
        raise TypeError(
            f"a reply is bytes, a sequence of bytes or None, not {type(answer).__name__}: annotate the "
            "handler with the type that it returns, and it is encoded"
        ) from error
    if sum(map(len, frames)) > bytes_max - REPLY_HEAD_BYTES:
        raise LocalProtocolError(f"a reply has more than {bytes_max} bytes: yield it in parts")
    return frames


def _bounded(frames: list[bytes]) -> list[bytes]:
    """A message beyond the bound would end its connection, and go to the other node next."""
    size = sum(map(len, frames))
    if size > _BODY_BYTES_MAX:
        raise LocalProtocolError(f"a body has at most {_BODY_BYTES_MAX} bytes, not {size}: split it")
    return frames
