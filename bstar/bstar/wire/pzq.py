"""PZQ: the frames of a store-and-forward queue for producers and consumers.

    producer to broker   [message id] [header…] [""] [body…]                                  ROUTER binds
    broker to producer   [message id] ["1"] [""]            or [message id] ["0"] [""] [text]
    broker to consumer   [key] [sent time] [ack timeout] [""] [body…]                         DEALER binds
    consumer to broker   [key] [status]                     status "1": done; anything else: send it again
    monitor to broker    ["MONITOR"]                        answer: lines of ``name: value``  ROUTER binds

A key is ``<microseconds since the epoch, when it was stored>|<uuid>``, decimal digits and 36 characters. Sent
time (of this transmission) and ack timeout are decimal microseconds. Frames here come without routing ids.
Names of requirements (PZQ-…): tests/support/requirements.py.
"""

from collections.abc import Mapping, Sequence

from bstar.base.printable import printable
from bstar.errors import RemoteProtocolError
from bstar.wire.dialect import Frames

STORED = b"1"
FAILED = b"0"
DONE = b"1"
MONITOR = b"MONITOR"
REQUEST_BYTES = 16
# A uuid has 36. It is kept beside the message until that is stored, and no bound of the store counts it.
MESSAGE_ID_BYTES_MAX = 255

_UUID_CHARS = 36
_FIGURE_CHARS_MAX = 20


def read_message(frames: Sequence[bytes]) -> tuple[bytes, Frames]:
    """A producer's message: its id and its body frames. RemoteProtocolError if it has no body, or a long id.

    Headers before the empty frame are skipped (PZQ-B-02); an empty body frame is a body.
    """
    message_id, *rest = frames
    if b"" not in rest:
        raise RemoteProtocolError("pzq", "no empty frame before the body, or parts are missing: not saved")
    body = rest[rest.index(b"") + 1 :]
    if not body:
        raise RemoteProtocolError("pzq", "an empty message is not saved")
    if len(message_id) > MESSAGE_ID_BYTES_MAX:
        raise RemoteProtocolError("pzq", f"a message id has at most {MESSAGE_ID_BYTES_MAX} bytes: not saved")
    return message_id, body


def stored(message_id: bytes) -> Frames:
    """The answer to a producer: the message is stored."""
    return [message_id, STORED, b""]


def not_stored(message_id: bytes, text: str) -> Frames:
    """The answer to a producer: the message is not stored; ``text`` says why."""
    return [message_id, FAILED, b"", text.encode()]


def key_of(request: bytes) -> bytes:
    """The key of a request: ``request`` has 16 bytes, and the first six are Unix milliseconds."""
    digits = request.hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{1000 * int.from_bytes(request[:6], 'big')}|{uuid}".encode()


def request_of(key: bytes) -> bytes:
    """The 16 bytes that a key names. RemoteProtocolError if it is no key of ``key_of``."""
    digits = key.rpartition(b"|")[2]
    try:
        request = bytes.fromhex(digits.replace(b"-", b"").decode("ascii"))
    except ValueError:
        request = b""
    if len(digits) != _UUID_CHARS or len(request) != REQUEST_BYTES or key_of(request) != key:
        raise RemoteProtocolError("pzq", f'no key of this broker: "{printable(key)}"')
    return request


def delivery(key: bytes, sent_us: int, ack_timeout_us: int, body: Sequence[bytes]) -> Frames:
    """A message for a consumer."""
    return [key, b"%d" % sent_us, b"%d" % ack_timeout_us, b"", *body]


def read_ack(frames: Sequence[bytes]) -> tuple[bytes, bool]:
    """A consumer's acknowledgement: the key, and True if the message is done.

    An empty frame before the key is skipped (PZQ-R-03). RemoteProtocolError if there is no status.
    """
    parts = list(frames[1:] if frames and not frames[0] else frames)
    if len(parts) < 2:
        raise RemoteProtocolError("pzq", "an acknowledgement has a key and a status")
    return parts[0], parts[1] == DONE


def read_answer(frames: Sequence[bytes]) -> tuple[bytes, bool]:
    """What a producer hears: an id, and True if it is stored. RemoteProtocolError if it is neither."""
    if len(frames) < 2:
        raise RemoteProtocolError("pzq", "an answer has an id and a status")
    return frames[0], frames[1] == STORED


def read_delivery(frames: Sequence[bytes]) -> tuple[bytes, int, int, Frames]:
    """What a consumer hears: key, sent time, ack timeout and body. Headers are skipped.

    RemoteProtocolError for anything else.
    """
    if len(frames) < 5 or b"" not in frames[3:-1]:
        raise RemoteProtocolError("pzq", "a delivery is [key] [sent time] [ack timeout] [] [body…]")
    key, sent, timeout = frames[:3]
    if not (sent.isdigit() and timeout.isdigit() and max(len(sent), len(timeout)) <= _FIGURE_CHARS_MAX):
        raise RemoteProtocolError("pzq", "sent time and ack timeout are microseconds in decimal digits")
    return key, int(sent), int(timeout), list(frames[frames.index(b"", 3) + 1 :])


def read_command(frames: Sequence[bytes]) -> tuple[Frames, bytes]:
    """A monitor's message: what stands before the command, as a REQ expects it back, and the command."""
    *envelope, command = frames
    return envelope if b"" in envelope else [*envelope, b""], command


def figures(values: Mapping[str, int]) -> bytes:
    """The answer to MONITOR: a line for each figure (PZQ-B-06)."""
    return "".join(f"{name}: {value}\n" for name, value in values.items()).encode()


def read_figures(frame: bytes) -> dict[str, int]:
    """The figures in an answer to MONITOR. RemoteProtocolError if a line is invalid."""
    found: dict[str, int] = {}
    for line in frame.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(": ")
        if not value.isdecimal() or len(value) > _FIGURE_CHARS_MAX:
            raise RemoteProtocolError("pzq", f'no figure: "{printable(line)}"')
        found[name] = int(value)
    return found
