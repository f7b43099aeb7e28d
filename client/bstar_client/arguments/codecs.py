"""Typed bodies: how values become frames, and frames values.

A typed body is one frame. Its header ``content-type`` names the codec, JSON or MessagePack; a body without
the header is JSON. The reply has the codec of its request. msgspec does the work for its structs,
dataclasses, TypedDicts and what stands in them. A pydantic model is any class that has ``model_validate`` and
``model_dump``; pydantic itself is not imported.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from bstar.base.printable import printable
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import HandlerError, LocalProtocolError
from bstar.wire.extensions import headers_extensions
from bstar_client.arguments.bodies import to_frames
from bstar_client.core.calls import CallFailed, Reply

Codec: TypeAlias = Literal["json", "msgpack"]
T = TypeVar("T")

# A value of a class of this package (Ask, Task, Reply) is no body: it would be sent as JSON.
_OURS = "bstar_client."

CONTENT_TYPE = "content-type"
_HEADERS: dict[str, Mapping[str, str]] = {
    "json": {CONTENT_TYPE: "application/json"},
    "msgpack": {CONTENT_TYPE: "application/msgpack"},
}
# The extensions of these headers, by their identity: they are constants, so no other headers have it.
CONTENT_TYPES = {id(headers): headers_extensions(headers) for headers in _HEADERS.values()}
_CODECS: dict[str, Codec] = {
    "application/json": "json",
    "application/msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
    "application/x-msgpack": "msgpack",
}


# --- models of pydantic -------------------------------------------------------------------------------------


def is_model(kind: object) -> bool:
    """True for a class that msgspec leaves to the hooks below."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def to_model(kind: type, value: object) -> object:
    """A decoder's hook: the model of a value."""
    model: Any = kind  # ``is_model``
    try:
        return model.model_validate(value)
    except ValueError as error:
        why = error
    try:
        # A strict model takes a date or a UUID from a text of JSON only.
        return model.model_validate_json(json.dumps(value))
    except TypeError:
        raise ValueError(_why(why)) from why  # a handler's own value, or octets: no JSON has them
    except ValueError as error:
        raise ValueError(_why(error)) from error


def of_model(model: Any) -> object:
    """An encoder's hook: the value of a model."""
    if not is_model(type(model)):
        raise TypeError(
            f"{type(model).__name__} cannot be encoded: it is no struct, dataclass, dict or model"
        )
    try:
        # By the aliases, which validation reads and the schemas have.
        return model.model_dump(mode="json", by_alias=True)
    except ValueError as error:
        raise TypeError(f"{type(model).__name__} cannot be encoded: {error}") from error


def _why(error: ValueError) -> str:
    """What pydantic says, in one line and without the bytes that came."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = [(".".join(map(str, each["loc"])), each["msg"]) for each in errors()]
    return "; ".join(f"{text} at {place}" if place else str(text) for place, text in found)


# --- values and frames --------------------------------------------------------------------------------------

_ENCODE: dict[str, Callable[[object], bytes]] = {
    "json": msgspec.json.Encoder(enc_hook=of_model).encode,
    "msgpack": msgspec.msgpack.Encoder(enc_hook=of_model).encode,
}


def encode(value: object, codec: Codec) -> bytes:
    """The frame of a value. TypeError if it cannot be encoded."""
    try:
        return _ENCODE[codec](value)
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise TypeError(f"{type(value).__name__} cannot be encoded: {error}") from error


def new_decoder(kind: Any, codec: Codec) -> Callable[[bytes], Any]:
    """Reads frames as values of this type; raises one of ``UNDECODABLE``. TypeError if msgspec cannot."""
    if codec == "json":
        return msgspec.json.Decoder(kind, dec_hook=to_model).decode
    return msgspec.msgpack.Decoder(kind, dec_hook=to_model).decode


def check_kind(kind: Any) -> None:
    """TypeError if values of this type cannot be decoded, because neither msgspec nor a hook knows a part."""
    from msgspec import inspect  # noqa: PLC0415 - programs of bytes do not need it

    try:
        strange = _strangers(inspect.type_info(kind), set(), inspect.CustomType)
    except TypeError as error:
        raise TypeError(f"{name_of(kind)} is no type for a body: {error}") from error
    if strange:
        names = ", ".join(sorted(each.__name__ for each in strange))
        raise TypeError(f"{name_of(kind)} has what is no struct, dataclass, TypedDict or model: {names}")


def _strangers(info: Any, seen: set[int], custom: Any) -> set[type]:
    """The classes in a type that are left to the hooks, and that are no models."""
    if id(info) in seen:
        return set()
    seen.add(id(info))
    if isinstance(info, custom):
        return set() if is_model(info.cls) else {info.cls}
    found: set[type] = set()
    for field in info.__struct_fields__:
        value = getattr(info, field)
        for each in value if isinstance(value, tuple) else (value,):
            if type(each).__module__ == custom.__module__ and isinstance(each, msgspec.Struct):
                found |= _strangers(each, seen, custom)
    return found


def codec_of(headers: Mapping[str, str]) -> Codec | None:
    """The codec of a body with these headers; None for another content type."""
    content_type = headers.get(CONTENT_TYPE)
    return "json" if content_type is None else _CODECS.get(content_type.partition(";")[0].strip().lower())


def name_of(kind: object) -> str:
    """A type in a message."""
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)


def to_typed(
    body: object, codec: Codec | None, headers: Mapping[str, str] | None, *, is_native: bool = True
) -> tuple[list[bytes], Mapping[str, str] | None]:
    """The frames and the headers of a caller's body. ``codec`` None: JSON for a value, nothing for bytes.

    Plain MDP has no headers, and there JSON needs none. TypeError or LocalProtocolError if it cannot be sent.
    """
    if codec is not None and codec not in _ENCODE:
        raise LocalProtocolError(f"codec is 'json' or 'msgpack', not {codec!r}")
    if _is_octets(body) or (codec is None and not is_value(body)):
        frames = to_frames(body)
        if codec is None:
            return frames, headers
    else:
        kind = type(body)
        if kind.__module__.startswith(_OURS):
            raise TypeError(
                f"a body is not {kind.__name__} of bstar_client: map takes an Ask and submit_many a Task; "
                "elsewhere give the body itself, and what else it holds as arguments"
            )
        frames = to_frames(encode(body, codec or "json"))
    codec = codec or "json"
    if not is_native and codec == "json":
        return frames, headers
    if headers is None:
        return frames, _HEADERS[codec]
    if headers.get(CONTENT_TYPE, _HEADERS[codec][CONTENT_TYPE]) != _HEADERS[codec][CONTENT_TYPE]:
        raise LocalProtocolError(
            f"the header {CONTENT_TYPE} says {headers[CONTENT_TYPE]!r}, and the body is {codec}"
        )
    return frames, {**headers, **_HEADERS[codec]}


def _is_octets(body: object) -> bool:
    """True for bytes, and for a sequence of bytes: a body that goes as it stands."""
    if isinstance(body, bytes | bytearray | memoryview):
        return True
    return isinstance(body, Sequence) and bool(body) and all(isinstance(each, bytes) for each in body)


def is_value(body: object) -> bool:
    """True for a struct, a dataclass, a dict or a model: a body that is encoded."""
    kind = type(body)
    return (
        isinstance(body, msgspec.Struct | Mapping) or hasattr(kind, "__dataclass_fields__") or is_model(kind)
    )


# --- replies ------------------------------------------------------------------------------------------------


# The FINAL of a handler that only yields.
NO_REPLY = (b"",)


def reply_of(service: str | bytes) -> str:
    """What the reply of a service is called in an error."""
    name = service if isinstance(service, str) else service.decode("utf-8", "backslashreplace")
    return f'the reply of service "{printable(name)}"'


@lru_cache(maxsize=256)
def _decoder_of(kind: Any, codec: Codec) -> Callable[[bytes], Any]:
    check_kind(kind)
    return new_decoder(kind, codec)


def read_frames(frames: Sequence[bytes], kind: type[T], codec: Codec | None, what: str) -> T:
    """The value in a reply. HandlerError if it does not fit; ``what`` is the reply's name there.

    TypeError if ``kind`` is a type that cannot be decoded.
    """
    if len(frames) != 1:
        raise HandlerError(f"{what} has {len(frames)} frames, and a {name_of(kind)} is one")
    if kind is bytes:
        return frames[0]  # type: ignore[return-value]  # it is what T is
    try:
        hint: Any = kind  # a hashable one
        value: T = _decoder_of(hint, codec or "json")(frames[0])
    except UNDECODABLE as error:
        raise HandlerError(f"{what} is no {name_of(kind)}: {error}") from error
    return value


def read_outcome(
    outcome: Reply | CallFailed, kind: type[T], codec: Codec | None, what: str, errors: str
) -> T | CallFailed:
    """The same of an outcome of ``map``."""
    if isinstance(outcome, CallFailed):
        return outcome
    try:
        return read_frames(outcome.frames, kind, codec, what)
    except HandlerError as error:
        if errors == "return":
            return CallFailed(error, outcome.index, outcome.attempts, outcome.elapsed_s)
        error.add_note(f"body {outcome.index} of map()")
        raise
