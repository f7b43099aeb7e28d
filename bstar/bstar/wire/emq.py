"""EventMQ (eMQP/1.0): the messages of all its sides, to frames and back. Pure.

Each message has the frames ``[] [eMQP/1.0] [COMMAND] [msgid] [argument…]`` (EMQ-G-01). ``decode`` reads them
to one frozen struct, ``encode`` writes them; routing ids stay with the caller. ``encode(decode(frames))``
gives equal frames, except for the order of headers, spaces in JSON, and unused arguments.

    struct          COMMAND                 direction                arguments
    Inform          INFORM                  manager, scheduler → R   [JSON queues or empty] [worker|scheduler]
    Ack             ACK                     R → sender of INFORM     [msgid of the INFORM]
    Ready           READY                   manager → R              none; one message for each free process
    Request         REQUEST                 client → R → manager     [queue] [headers] [JSON job]
    Reply           REPLY                   R → client               [msgid of the REQUEST]: it is at a worker
    Reply           REPLY                   manager → R (→ client)   [JSON result] [msgid of the REQUEST]
    Reply           REPLY                   R → admin                [JSON object]: in ``about``
    Heartbeat       HEARTBEAT               all                      [Unix time, seconds as decimal text]
    Schedule        SCHEDULE                client → R → scheduler   [queue] [headers] [seconds or -1]
                                                                     [JSON job] [cron or empty]
    Unschedule      UNSCHEDULE              client → R → schedulers  the same five; the job alone is read
    Publish         PUBLISH                 publisher → pub/sub      [topic] [JSON message], perhaps [headers]
    Disconnect      DISCONNECT              all → R, R → all         none
    Goodbye         KBYE, also KBAI         all                      none
    Status          STATUS                  admin → R                none
    ShowWorkers     ROUTER_SHOW_WORKERS     admin → R                none
    ShowSchedulers  ROUTER_SHOW_SCHEDULERS  admin → R                none
    Hello           HELLO                   admin → R                none

    A publication has the frames ``[topic] [message]`` and no header. The headers of PUBLISH are those of the
    specification's wire; on the published wire they are an extension, and its program ignores the frame.

``msgid`` is opaque bytes, UTF-8 like every frame (EMQ-R-02): the published router decodes each of them.
``Wire`` says whose side to take where specification and published program disagree:

    PUBLISHED (default)                          SPECIFICATION
    INFORM: queues as a JSON array               queues as arrays one after the other: ``[20, "a"],[10, "b"]``
    REPLY with a result: result, msgid           result only; its own msgid is that of the REQUEST
    SCHEDULE, UNSCHEDULE: five arguments         queue, headers, message
    PUBLISH: topic, message                      topic, headers, message
    KBYE                                         KBAI

Facts: PROTOCOLS.md 12.1 and 12.2. What the frames carry: ``bstar.wire.emq_jobs``.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError
from bstar.wire.emq_jobs import parse_headers, parse_number
from bstar.wire.emq_messages import (
    NO_INTERVAL,
    Ack,
    Disconnect,
    Goodbye,
    Heartbeat,
    Hello,
    Inform,
    Kind,
    Message,
    Publish,
    Queue,
    Ready,
    Reply,
    Request,
    Schedule,
    ShowSchedulers,
    ShowWorkers,
    Status,
    Unschedule,
    Wire,
)
from bstar.wire.limits import MESSAGE_BYTES_MAX, SERVICE_BYTES_MAX

__all__ = [
    "FRAMES_MAX",
    "MSGID_BYTES_MAX",
    "NO_INTERVAL",
    "QUEUES_MAX",
    "VERSION",
    "Ack",
    "Disconnect",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "Inform",
    "Kind",
    "Message",
    "Publish",
    "Queue",
    "Ready",
    "Reply",
    "Request",
    "Schedule",
    "ShowSchedulers",
    "ShowWorkers",
    "Status",
    "Unschedule",
    "Wire",
    "decode",
    "encode",
    "publication",
    "queue_trouble",
]

Frames = list[bytes]

VERSION = b"eMQP/1.0"
# A uuid has 36 bytes. It is a key of tables, so it stays short.
MSGID_BYTES_MAX = 255
# The longest message has nine frames with an empty one, a command and five arguments.
FRAMES_MAX = 16
# A job manager names few queues, and the router keeps a table of them.
QUEUES_MAX = 1_000
# A subscriber that does not read holds a thousand of them in the memory of its node.
PUBLICATION_BYTES_MAX = 64 << 10
_CRON_BYTES_MAX = 256


# Commands without arguments. What stands behind their msgid is not read.
Bare = Ready | Disconnect | Goodbye | Status | ShowWorkers | ShowSchedulers | Hello

_BARE: dict[bytes, type[Bare]] = {
    b"READY": Ready,
    b"DISCONNECT": Disconnect,
    b"KBYE": Goodbye,
    b"KBAI": Goodbye,
    b"STATUS": Status,
    b"ROUTER_SHOW_WORKERS": ShowWorkers,
    b"ROUTER_SHOW_SCHEDULERS": ShowSchedulers,
    b"HELLO": Hello,
}


def decode(
    frames: Sequence[bytes],
    at: int = 0,
    *,
    wire: Wire = Wire.PUBLISHED,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> Message:
    """Read the message whose empty frame is ``frames[at]``: 0 on a DEALER, 1 on a ROUTER.

    Raises RemoteProtocolError and nothing else. Its ``reason`` is one of: frames, size, delimiter, version,
    command, msgid, arguments, text, headers, number, queues, kind, schedule.
    """
    count = len(frames) - at
    if not 4 <= count <= FRAMES_MAX:
        raise RemoteProtocolError(
            "frames", f"a message has 4 to {FRAMES_MAX} frames, this one {max(count, 0)}"
        )
    if sum(map(len, frames)) > message_bytes_max:
        raise RemoteProtocolError("size", f"the message has more than {message_bytes_max} bytes")
    if frames[at]:
        raise RemoteProtocolError("delimiter", f"the first frame is not empty: {frames[at][:16]!r}")
    if frames[at + 1] != VERSION:
        raise RemoteProtocolError("version", f"the second frame is not {VERSION!r}: {frames[at + 1][:16]!r}")
    command, msgid, arguments = frames[at + 2], frames[at + 3], frames[at + 4 :]
    if not 1 <= len(msgid) <= MSGID_BYTES_MAX:
        raise RemoteProtocolError("msgid", f"a msgid has 1 to {MSGID_BYTES_MAX} bytes, this one {len(msgid)}")
    for frame in frames[at + 3 :]:
        _text(frame)
    if (bare := _BARE.get(command)) is not None:
        return bare(msgid)
    if (reader := _READERS.get(command)) is not None:
        return reader(msgid, arguments, wire)
    raise RemoteProtocolError("command", f"unknown command {command[:32]!r}")


def encode(message: Message, *, wire: Wire = Wire.PUBLISHED) -> Frames:
    """Frames ``[] [eMQP/1.0] [COMMAND] [msgid] [argument…]``."""
    is_published = wire is Wire.PUBLISHED
    command = _COMMANDS[type(message)]
    if command == b"KBYE" and not is_published:
        command = b"KBAI"
    msgid = message.msgid
    if isinstance(message, Reply) and message.value is not None and not is_published:
        # The specification's REPLY has no argument for it, and says nothing of a REPLY's own msgid.
        msgid = message.about
    return [b"", VERSION, command, msgid, *_arguments(message, is_published=is_published)]


def publication(body: Sequence[bytes]) -> Frames:
    """``[topic] [message]``, as a subscriber gets it; RemoteProtocolError if ``body`` has other frames."""
    if len(body) != 2:
        raise RemoteProtocolError(
            "frames", f"a publication has two frames, topic and message, this one {len(body)}"
        )
    size = sum(map(len, body))
    if size > PUBLICATION_BYTES_MAX:
        raise RemoteProtocolError(
            "size",
            f"a publication has at most {PUBLICATION_BYTES_MAX:,} bytes, this one {size:,}: publish where "
            "the rest is to be found",
        )
    for frame in body:
        _text(frame)
    return list(body)


def queue_trouble(name: str) -> str | None:
    """What is wrong with a queue's name; None if it is right. ``decode`` leaves that to the receiver."""
    size = len(name.encode())
    if 1 <= size <= SERVICE_BYTES_MAX:
        return None
    text = "it is empty" if not size else f'"{name[:16]}…" has {size}'
    return f"a queue's name has 1 to {SERVICE_BYTES_MAX} bytes: {text}"


# Readers: msgid and arguments to a struct ---------------------------------------------------------------


def _text(frame: bytes) -> str:
    try:
        return str(frame, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("text", f"a frame is not UTF-8: {error.reason}") from None


def _short(frame: bytes, name: str, bytes_max: int) -> str:
    if len(frame) > bytes_max:
        raise RemoteProtocolError("arguments", f"the {name} has more than {bytes_max} bytes")
    return _text(frame)


def _expect(arguments: Sequence[bytes], command: str, *counts: int) -> None:
    if len(arguments) not in counts:
        expected = " or ".join(map(str, counts))
        text = f"{command} has {expected} arguments, this one {len(arguments)}"
        raise RemoteProtocolError("arguments", text)


_decode_queues = msgspec.json.Decoder(tuple[Queue, ...]).decode
_encode_json = msgspec.json.Encoder().encode


def _read_inform(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Inform:
    _expect(arguments, "INFORM", 2)
    listed, kind = arguments
    if kind not in _KINDS:
        raise RemoteProtocolError("kind", f"neither worker nor scheduler: {kind[:16]!r}")
    if not listed:
        return Inform(msgid, _KINDS[kind])
    if wire is Wire.SPECIFICATION and not listed.lstrip().startswith((b"[[", b"[]")):
        listed = b"[" + listed + b"]"
    try:
        queues = _decode_queues(listed)
    except UNDECODABLE as error:
        raise RemoteProtocolError("queues", f"no array of [weight, name]: {error}") from error
    if len(queues) > QUEUES_MAX:
        raise RemoteProtocolError("queues", f"{len(queues)} queues are more than {QUEUES_MAX}")
    if any(len(queue.name.encode()) > SERVICE_BYTES_MAX for queue in queues):
        raise RemoteProtocolError("queues", f"a queue's name has more than {SERVICE_BYTES_MAX} bytes")
    return Inform(msgid, _KINDS[kind], queues)


_KINDS = {kind.value.encode(): kind for kind in Kind}


def _read_ack(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Ack:
    _expect(arguments, "ACK", 1)
    return Ack(msgid, arguments[0])


def _read_request(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Request:
    _expect(arguments, "REQUEST", 3)
    return Request(msgid, _text(arguments[0]), arguments[2], parse_headers(_text(arguments[1])))


def _read_reply(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Reply:
    if wire is Wire.SPECIFICATION:
        _expect(arguments, "REPLY", 1)
        return Reply(msgid, msgid, arguments[0])
    _expect(arguments, "REPLY", 1, 2)
    return Reply(msgid, arguments[-1], arguments[0] if len(arguments) == 2 else None)


def _read_heartbeat(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Heartbeat:
    _expect(arguments, "HEARTBEAT", 1)
    try:
        time_s = float(_short(arguments[0], "time", 64))
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise RemoteProtocolError("number", f"no time in seconds: {arguments[0][:20]!r}")
    return Heartbeat(msgid, time_s)


def _read_schedule(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Schedule:
    if wire is Wire.SPECIFICATION and len(arguments) == 3:
        queue, headers, message = arguments
        return Schedule(msgid, _text(queue), message, parse_headers(_text(headers)))
    _expect(arguments, "SCHEDULE", 5)
    queue, headers, interval, message, cron = arguments
    schedule = Schedule(
        msgid,
        _text(queue),
        message,
        parse_headers(_text(headers)),
        parse_number(_text(interval), NO_INTERVAL, "the interval"),
        _short(cron, "cron expression", _CRON_BYTES_MAX),
    )
    if (schedule.interval_s == NO_INTERVAL) == (not schedule.cron):
        raise RemoteProtocolError("schedule", "a schedule has an interval or a cron expression, not both")
    return schedule


def _read_unschedule(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Unschedule:
    if wire is Wire.SPECIFICATION and len(arguments) == 3:
        message = arguments[2]
    else:
        _expect(arguments, "UNSCHEDULE", 5)
        message = arguments[3]
    return Unschedule(msgid, _text(arguments[0]), message, parse_headers(_text(arguments[1])))


def _read_publish(msgid: bytes, arguments: Sequence[bytes], wire: Wire) -> Publish:
    _expect(arguments, "PUBLISH", 2, 3)
    topic, *rest = arguments
    if wire is Wire.SPECIFICATION:
        rest.reverse()
    message, headers = (*rest, b"")[:2]
    return Publish(msgid, topic, message, parse_headers(_text(headers)))


_READERS: dict[bytes, Callable[[bytes, Sequence[bytes], Wire], Message]] = {
    b"INFORM": _read_inform,
    b"ACK": _read_ack,
    b"REQUEST": _read_request,
    b"REPLY": _read_reply,
    b"HEARTBEAT": _read_heartbeat,
    b"SCHEDULE": _read_schedule,
    b"UNSCHEDULE": _read_unschedule,
    b"PUBLISH": _read_publish,
}


# Writers: a struct to command and arguments -------------------------------------------------------------

_COMMANDS: dict[type[Message], bytes] = {
    Ready: b"READY",
    Disconnect: b"DISCONNECT",
    Goodbye: b"KBYE",
    Status: b"STATUS",
    ShowWorkers: b"ROUTER_SHOW_WORKERS",
    ShowSchedulers: b"ROUTER_SHOW_SCHEDULERS",
    Hello: b"HELLO",
    Inform: b"INFORM",
    Ack: b"ACK",
    Request: b"REQUEST",
    Reply: b"REPLY",
    Heartbeat: b"HEARTBEAT",
    Schedule: b"SCHEDULE",
    Unschedule: b"UNSCHEDULE",
    Publish: b"PUBLISH",
}


def _arguments(message: Message, *, is_published: bool) -> Frames:
    match message:
        case Inform(_, kind, queues):
            listed = _encode_json(queues) if queues else b""
            arguments = [listed if is_published else listed[1:-1], kind.value.encode()]
        case Ack(_, about):
            arguments = [about]
        case Request(_, queue, job, headers):
            arguments = [queue.encode(), headers.text().encode(), job]
        case Reply(_, about, value):
            values = [] if value is None else [value]
            arguments = [*values, about] if is_published or value is None else values
        case Heartbeat(_, time_s):
            arguments = [repr(time_s).encode()]
        case Schedule(_, queue, job, headers, interval_s, cron):
            times = [str(interval_s).encode(), job, cron.encode()] if is_published else [job]
            arguments = [queue.encode(), headers.text().encode(), *times]
        case Unschedule(_, queue, job, headers):
            times = [str(NO_INTERVAL).encode(), job, b""] if is_published else [job]
            arguments = [queue.encode(), headers.text().encode(), *times]
        case Publish(_, topic, body, headers):
            words = headers.text().encode()
            arguments = [topic, body, *([words] if words else [])] if is_published else [topic, words, body]
        case _:
            arguments = []
    return arguments
