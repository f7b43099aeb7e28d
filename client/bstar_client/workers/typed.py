"""Typed handlers: a handler's annotations say how its body is decoded and its reply encoded.

    async def price(ask: Ask) -> Price: ...

``bind`` makes a function of a Request of it. It reads the annotations once; a handler that takes a Request
(or says nothing) and returns bytes is left as it is, and costs nothing. A body that does not fit is declined
before the handler is called, with the code ``bad-body``.
"""

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar_client.arguments.checks import check_arguments, is_any, name_of_handler
from bstar_client.arguments.codecs import (
    CONTENT_TYPE,
    Codec,
    check_kind,
    codec_of,
    encode,
    name_of,
    new_decoder,
    to_model,
)
from bstar_client.arguments.declined import Declined
from bstar_client.workers.describe import KINDS
from bstar_client.workers.handlers import Request

BAD_BODY = "bad-body"

_STREAMS = (Iterator, Iterable, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)
_AWAITED = (Awaitable, Coroutine)
_BYTES_TYPES = (bytes, bytearray, memoryview)
_UNIONS = (typing.Union, types.UnionType)
_NONE = type(None)
# Replies of which nothing is said that could be encoded.
_UNSAID = (
    inspect.Parameter.empty, None, _NONE, Any, object, list, tuple, Sequence, typing.Never, typing.NoReturn,
    *_STREAMS, *_AWAITED,
)  # fmt: skip
_NOTHING = inspect.Parameter.empty
# Names that a program may import for its type checker alone.
_USUAL = {**vars(collections.abc), **vars(typing), "Request": Request}

_OF_A_REQUEST = inspect.Signature([inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)])

Read = Callable[[Request], Any]
Write = Callable[[Any, Request], Any]


def bind(handler: Callable[..., Any]) -> Callable[[Request], Any]:
    """The handler as a function of a Request. TypeError if its annotations say what cannot be done."""
    parameters = _parameters_of(handler)
    has_request = (
        len(parameters) > 1 and resolved(parameters[1].annotation, handler, may_fail=True) is Request
    )
    check_arguments(handler, *(None, None)[: 1 + has_request])
    if not parameters:
        return handler
    body = resolved(parameters[0].annotation, handler)
    read = _reader(body, handler)
    answer = resolved(inspect.signature(handler).return_annotation, handler, may_fail=read is None)
    part, reply = _replies(answer, handler)
    write = _writer(part, reply, handler)
    if read is None and write is None and not has_request:
        return handler
    read = read or (lambda request: request)

    @functools.wraps(handler)
    def call(request: Request) -> Any:
        body = read(request)
        answer = handler(body, request) if has_request else handler(body)
        return answer if write is None else write(answer, request)

    call.__qualname__ = name_of_handler(handler)
    # Its own, so that no caller binds it again.
    call.__signature__ = _OF_A_REQUEST  # type: ignore[attr-defined]  # inspect reads it
    kinds = {"request": bytes if _is_request(body) else body, "reply": reply, "part": part}
    setattr(call, KINDS, {what: kind for what, kind in kinds.items() if not _is_raw(kind)})
    return call


# --- annotations --------------------------------------------------------------------------------------------


def _parameters_of(handler: Callable[..., object]) -> list[inspect.Parameter]:
    """Those that have a place; none if nothing is known of them."""
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return []
    placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each for each in signature.parameters.values() if each.kind in placed]


def resolved(annotation: Any, handler: Callable[..., object], *, may_fail: bool = False) -> Any:
    """The annotation, also if it is a text or has one in it. TypeError if it cannot be read.

    ``may_fail``: nothing, if a name in it is not known.
    """
    # As "Request" of a module that is imported for the type checker alone.
    if isinstance(annotation, str) and annotation.rpartition(".")[2] == Request.__name__:
        return Request
    if isinstance(annotation, type):
        return annotation
    function = inspect.unwrap(_function_of(handler))
    names = {**_USUAL, **getattr(function, "__globals__", {}), **_closure_of(function)}
    try:
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception as error:  # an annotation is code of the author's
        if may_fail and isinstance(error, (NameError, AttributeError)):
            return _NOTHING
        name = name_of_handler(handler)
        raise TypeError(
            f"the annotation {annotation!r} of {name} cannot be read: {error}; define it in the module of "
            f"{name}"
        ) from error


def _function_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler) and not isinstance(handler, type):
        handler = type(handler).__call__
    return getattr(handler, "__func__", handler)


def _closure_of(function: Any) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _stripped(kind: Any) -> Any:
    """The type without Annotated and NewType."""
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        else:
            return kind


def _is_bytes(kind: Any) -> bool:
    """True for a body that is bytes as they came, whatever else they are called."""
    kind = _stripped(kind)
    if typing.get_origin(kind) in _UNIONS:
        return all(each is _NONE or _is_bytes(each) for each in typing.get_args(kind))
    return kind is bytes


def _is_raw(kind: Any) -> bool:
    """True for a reply that is bytes, or of which nothing is said."""
    kind = _stripped(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS or origin in (*_STREAMS, *_AWAITED):
        return all(map(_is_raw, arguments))
    if origin in (list, tuple, Sequence):
        return all(each is Ellipsis or each in _BYTES_TYPES for each in arguments)
    if kind in _UNSAID or isinstance(kind, typing.TypeVar):
        return True
    return isinstance(kind, type) and issubclass(kind, _BYTES_TYPES)


def _is_request(kind: Any) -> bool:
    """True for a parameter that gets the Request."""
    if typing.get_origin(kind) in _UNIONS:
        return any(map(_is_request, typing.get_args(kind)))
    if kind in (_NOTHING, Any) or isinstance(kind, typing.TypeVar):
        return True
    return isinstance(kind, type) and not _is_typeddict(kind) and issubclass(Request, kind)


def _is_typeddict(kind: Any) -> bool:
    """True for one of ``typing`` or ``typing_extensions``: it answers no question of instances."""
    return hasattr(kind, "__required_keys__")


def _check_kind(kind: Any, what: str, handler: Callable[..., object]) -> None:
    """TypeError if values of this type cannot be read or written."""
    try:
        check_kind(kind)
    except TypeError as error:
        raise TypeError(f"the {what} of the handler {name_of_handler(handler)}: {error}") from error


# --- bodies -------------------------------------------------------------------------------------------------


def _reader(kind: Any, handler: Callable[..., object]) -> Read | None:
    """Reads the handler's body; None if it gets the Request."""
    if _is_request(kind):
        return None
    if _is_bytes(kind):
        return _frame_of
    _check_kind(kind, "body", handler)
    decoders: dict[Codec | None, Callable[[bytes], Any]] = {
        "json": new_decoder(kind, "json"),
        "msgpack": new_decoder(kind, "msgpack"),
    }
    name = name_of(kind)

    def read(request: Request) -> Any:
        headers = request.headers
        decode = decoders.get(codec_of(headers) if headers else "json")
        if decode is None:
            raise Declined(
                BAD_BODY, f"{CONTENT_TYPE}: {headers[CONTENT_TYPE]} is neither JSON nor MessagePack"
            )
        frame = _frame_of(request)
        try:
            return decode(frame)
        except UNDECODABLE as error:
            raise Declined(BAD_BODY, f"it is no {name}: {error}") from error

    return read


def _frame_of(request: Request) -> bytes:
    frames = request.frames
    if len(frames) != 1:
        raise Declined(BAD_BODY, f"it has {len(frames)} frames, and a typed body has one")
    return frames[0]


# --- replies ------------------------------------------------------------------------------------------------


def _replies(kind: Any, handler: Callable[..., object]) -> tuple[Any, Any]:
    """The types of the parts and of the FINAL of what the handler returns; the first None if it has no parts.

    Octets are no type that is encoded.
    """
    if typing.get_origin(kind) in _AWAITED:
        kind = (typing.get_args(kind) or (Any,))[-1]
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind) or (Any, Any, Any)
    is_generator = is_any(handler, inspect.isgeneratorfunction) or is_any(handler, inspect.isasyncgenfunction)
    if origin in _STREAMS and (is_generator or origin not in (Iterable, AsyncIterable)):
        return arguments[0], arguments[2] if len(arguments) > 2 else _NONE
    return None, kind


def _writer(part: Any, kind: Any, handler: Callable[..., object]) -> Write | None:
    """Makes frames of what the handler returns, of these types; None if they are frames."""
    if _is_raw(part) and _is_raw(kind):
        return None
    if part is not None:
        encode_part, final = _encoder(part, handler), _encoder(kind, handler)
        return lambda answer, request: _write_stream(answer, _codec_to(request), encode_part, final)
    whole = _encoder(kind, handler)

    def write(answer: Any, request: Request) -> Any:
        if isinstance(answer, Awaitable):
            return _write_later(answer, _codec_to(request), whole)
        return whole(answer, _codec_to(request))

    return write


def _codec_to(request: Request) -> Codec:
    """The codec of the reply: that of the request."""
    return (codec_of(request.headers) if request.headers else None) or "json"


Encode = Callable[[Any, Codec], Any]


def _encoder(kind: Any, handler: Callable[..., object]) -> Encode:
    """Encodes a value of this type. TypeError if it is of another."""
    if _is_raw(kind):
        return lambda value, codec: value
    arguments = typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else ()
    if any(_is_raw(each) for each in arguments if each is not _NONE):
        name = name_of_handler(handler)
        raise TypeError(f"the reply of the handler {name} is bytes or a value, and not both")
    _check_kind(kind, "reply", handler)
    name = name_of(kind)
    is_class = isinstance(kind, type) and typing.get_origin(kind) is None and not _is_typeddict(kind)

    def encode_one(value: Any, codec: Codec) -> bytes:
        if is_class and isinstance(value, kind):
            return encode(value, codec)
        try:
            return encode(msgspec.convert(value, kind, dec_hook=to_model), codec)
        except UNDECODABLE as error:
            returned = type(value).__name__
            raise TypeError(f"the handler returned {returned}, which is no {name}: {error}") from error

    return encode_one


async def _write_later(answer: Awaitable[Any], codec: Codec, whole: Encode) -> Any:
    return whole(await answer, codec)


def _write_stream(answer: Any, codec: Codec, part: Encode, final: Encode) -> Any:
    if isinstance(answer, AsyncIterator):
        return _write_parts_later(answer, codec, part)
    if isinstance(answer, Iterator):
        return _write_parts(answer, codec, part, final)
    raise TypeError(f"the handler returned {type(answer).__name__}, and its annotation says an iterator")


def _write_parts(
    parts: Iterator[Any], codec: Codec, part: Encode, final: Encode
) -> Generator[Any, None, Any]:
    try:
        while True:
            try:
                value = next(parts)
            except StopIteration as end:
                # Nothing is nothing here: the caller's stream ends with the last part.
                return None if end.value is None else final(end.value, codec)
            yield part(value, codec)
    finally:
        if isinstance(parts, Generator):
            parts.close()


async def _write_parts_later(
    parts: AsyncIterator[Any], codec: Codec, part: Encode
) -> AsyncGenerator[Any, None]:
    try:
        async for value in parts:
            yield part(value, codec)
    finally:
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()
