"""Typed bodies: annotations decide how a body is decoded and a reply encoded, in memory and over a broker."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import random
import threading
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import DeclinedError, HandlerError, LocalProtocolError
from bstar.wire.extensions import headers_extensions
from bstar.wire.messages import Failure, Final
from bstar_client import Ask as Asked
from bstar_client import (
    AsyncHAClient,
    AsyncWorker,
    CallFailed,
    Declined,
    FreelanceServer,
    HAClient,
    LazyPirateClient,
    Request,
    Task,
    Worker,
)
from bstar_client.arguments.bodies import to_reply
from bstar_client.arguments.codecs import codec_of, read_frames, to_typed
from bstar_client.calls.durable import submit_frame
from bstar_client.core.worker.dialects import Job
from bstar_client.workers.typed import bind
from bstar_testing import LoopbackHost, Pair, pair
from support.fake_store import FakeStore
from support.scripted import WAIT_S, ScriptedBroker
from test_handler_ends import Desk, served

JSON, PACK = {"content-type": "application/json"}, {"content-type": "application/msgpack"}


class Ask(msgspec.Struct):
    sku: int
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class Price(msgspec.Struct):
    cents: int


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    name: str
    points: list[Point]


class Stranger:
    """Neither msgspec nor a hook knows it."""


def price(ask: Ask) -> Price:
    return Price(ask.sku * ask.count)


def asked(*frames: bytes, headers: dict[str, str] | None = None) -> Request:
    return Request(b"price", frames, b"i" * 24, False, 1, None, b"", headers=headers or {})


def result_of(handler: Callable[..., Any], body: bytes, headers: dict[str, str] | None = None) -> Any:
    answer = bind(handler)(asked(body, headers=headers))
    if inspect.isawaitable(answer):

        async def awaited() -> Any:
            return await answer

        return asyncio.run(awaited())
    return answer


# --- what a handler is given and returns --------------------------------------------------------------------


def test_a_body_is_decoded_and_the_reply_encoded_in_its_codec() -> None:
    assert result_of(price, b'{"sku":7,"count":3}') == b'{"cents":21}'
    assert result_of(price, b'{"sku":7,"count":3}', JSON) == b'{"cents":21}'
    packed = msgspec.msgpack.encode({"sku": 7})
    assert msgspec.msgpack.decode(result_of(price, packed, PACK)) == {"cents": 7}


@pytest.mark.parametrize(
    ("told", "codec"),
    [
        ("application/json", "json"),
        ("Application/JSON; charset=utf-8", "json"),
        ("application/x-msgpack", "msgpack"),
        ("text/plain", None),
        ("", None),
    ],
)
def test_the_content_type_names_the_codec(told: str, codec: str | None) -> None:
    assert codec_of({"content-type": told}) == codec
    assert codec_of({}) == "json"


def annotated(body: Any, reply: Any) -> Callable[[Any], Any]:
    """A handler that returns its body, with annotations that are no text."""

    def handle(given: Any) -> Any:
        return given

    handle.__annotations__ = {"given": body, "return": reply}
    return handle


def yielding(reply: Any) -> Callable[[Any], Any]:
    def handle(given: Any) -> Any:
        yield given

    handle.__annotations__ = {"given": bytes, "return": reply}
    return handle


def test_a_typeddict_is_a_body() -> None:
    """It was refused: it does not answer whether a class is one of it."""
    body = b'{"name":"a","points":[{"x":1,"y":2}]}'
    assert result_of(annotated(Row, Row), body) == body


def test_an_annotation_may_name_in_it_what_is_defined_later() -> None:
    assert result_of(annotated(list["Price"], list["Price"]), b'[{"cents":1}]') == b'[{"cents":1}]'
    assert result_of(annotated(Optional["Price"], Optional["Price"]), b"null") == b"null"
    with pytest.raises(TypeError, match="define it in the module of annotated"):
        bind(annotated(list["Nowhere"], bytes))  # type: ignore[name-defined]  # noqa: F821 - on purpose


@pytest.mark.parametrize("kind", [Annotated[bytes, "a note"], NewType("Octets", bytes), bytes | None])
def test_bytes_of_another_name_are_the_frame_as_it_came(kind: Any) -> None:
    """They were read as base64 in JSON, and written as they are."""
    assert result_of(annotated(kind, kind), b"\0 no JSON") == b"\0 no JSON"


@pytest.mark.parametrize("reply", [Iterator, Generator, Iterable, typing.Iterator, typing.Generator])
def test_an_iterator_of_which_nothing_is_said_yields_frames(reply: Any) -> None:
    assert list(bind(yielding(reply))(asked(b"part"))) == [b"part"]


async def later(ask: Ask) -> Price:
    return Price(ask.sku)


def row(point: Point) -> Row:
    return {"name": "a", "points": [point]}


def maybe(ask: Ask | Point) -> Price | None:
    return None


def numbers(body: list[int]) -> dict[str, int]:
    return {"sum": sum(body)}


def with_request(ask: Ask, request: Request) -> Price:
    return Price(len(request.service))


def from_octets(body: bytes) -> Price:
    return Price(len(body))


def to_octets(ask: Ask) -> bytes:
    return b"%d" % ask.sku


def from_request(request: Request) -> Price:
    return Price(len(request.body))


def quiet(ask: Ask) -> None:
    """It returns nothing."""


class Called:
    def __call__(self, ask: Ask) -> Price:
        return price(ask)

    def method(self, ask: Ask) -> Price:
        return price(ask)


def doubled(factor: int, ask: Ask) -> Price:
    return Price(ask.sku * factor)


@pytest.mark.parametrize(
    ("handler", "body", "reply"),
    [
        (later, b'{"sku":7}', b'{"cents":7}'),
        (row, b'{"x":1,"y":2}', b'{"name":"a","points":[{"x":1,"y":2}]}'),
        (numbers, b"[1,2]", b'{"sum":3}'),
        (with_request, b'{"sku":7}', b'{"cents":5}'),
        (from_octets, b"\xff\x00", b'{"cents":2}'),
        (to_octets, b'{"sku":7}', b"7"),
        (from_request, b"abc", b'{"cents":3}'),
        (quiet, b'{"sku":7}', None),
        (Called(), b'{"sku":7}', b'{"cents":7}'),
        (Called().method, b'{"sku":7}', b'{"cents":7}'),
        (functools.partial(doubled, 2), b'{"sku":7}', b'{"cents":14}'),
        (functools.partial(price), b'{"sku":7}', b'{"cents":7}'),
    ],
)
def test_annotations_say_it(handler: Callable[..., Any], body: bytes, reply: bytes | None) -> None:
    assert result_of(handler, body) == reply


def parts(ask: Ask) -> Generator[Price, None, Point]:
    for cents in range(ask.sku):
        yield Price(cents)
    return Point(ask.sku)


def bare_parts(ask: Ask) -> Iterator[Price]:
    yield Price(ask.sku)


async def async_parts(ask: Ask) -> AsyncIterator[Price]:
    for cents in range(ask.sku):
        yield Price(cents)


def test_what_a_generator_yields_and_returns_is_encoded() -> None:
    stream = bind(parts)(asked(b'{"sku":2}'))
    assert [next(stream), next(stream)] == [b'{"cents":0}', b'{"cents":1}']
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value == b'{"x":2,"y":0}'
    assert list(bind(bare_parts)(asked(b'{"sku":2}'))) == [b'{"cents":2}']

    async def collect() -> list[bytes]:
        return [part async for part in bind(async_parts)(asked(b'{"sku":2}'))]

    assert asyncio.run(collect()) == [b'{"cents":0}', b'{"cents":1}']


def test_a_generator_that_is_left_is_closed() -> None:
    is_closed = []

    def endless(ask: Ask) -> Iterator[Price]:
        try:
            while True:
                yield Price(1)
        finally:
            is_closed.append(True)

    stream = bind(endless)(asked(b'{"sku":2}'))
    next(stream)
    stream.close()
    assert is_closed == [True]


# --- what stays as it is ------------------------------------------------------------------------------------

Octets = NewType("Octets", bytes)


def untyped(request: Request) -> bytes:
    return request.body


def said_in_text(request: Request) -> bytes | Sequence[bytes]:
    return request.body


def unknown_reply(request: Request) -> NobodyKnowsThis:  # type: ignore[name-defined]  # noqa: F821 - that is it
    return request.body


def all_octets(request: Any) -> Octets | list[bytes] | tuple[bytes, ...] | memoryview | None:
    return None


def octet_parts(request: object) -> Generator[bytes, None, list[bytes]]:
    yield b""
    return []


async def octets_later(request: Request | None) -> Sequence[bytes]:
    return []


def promised(request: Request) -> Awaitable[bytes]:
    return later(Ask(1))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "handler",
    [
        untyped,
        said_in_text,
        unknown_reply,
        all_octets,
        octet_parts,
        octets_later,
        promised,
        lambda request: request.body,
        functools.partial(untyped),
        len,
        print,
    ],
)
def test_a_handler_of_octets_is_the_very_same_function(handler: Callable[..., Any]) -> None:
    assert bind(handler) is handler


def test_the_workers_call_it_without_anything_between() -> None:
    worker = Worker(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "price", untyped)
    assert worker._handler is worker._loop.handler is untyped


def test_a_typed_one_keeps_its_name_for_logs() -> None:
    assert bind(price).__qualname__ == "price"
    assert bind(Called()).__qualname__ == "Called"
    worker = Worker(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "price")
    assert worker.handler(price) is price


# --- what cannot be -----------------------------------------------------------------------------------------


def of_stranger(body: Stranger) -> bytes:
    return b""


def to_stranger(request: Request) -> list[Stranger]:
    return []


def of_nested_stranger(body: dict[str, list[Stranger]]) -> bytes:
    return b""


def both(request: Request) -> bytes | Price:
    return b""


def of_unknown(body: NobodyKnowsThis) -> bytes:  # type: ignore[name-defined]  # noqa: F821 - that is it
    return b""


def two(ask: Ask, other: Ask) -> Price:
    return Price(1)


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (of_stranger, "Stranger"),
        (to_stranger, "Stranger"),
        (of_nested_stranger, "Stranger"),
        (both, "both"),
        (of_unknown, "define it in the module"),
        (two, "gets one argument"),
        (lambda: b"", "gets one argument"),
    ],
)
def test_annotations_that_cannot_be_kept_are_an_error_before_anything_is_served(
    handler: Callable[..., Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        Worker(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "price", handler)


# --- bodies that do not fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        (b"{", JSON, "it is no Ask: Input data was truncated"),
        (b'{"sku":"7"}', JSON, "it is no Ask: Expected `int`, got `str` - at `$.sku`"),
        (b'{"sku":7,"count":0}', {}, "it is no Ask: Expected `int` >= 1 - at `$.count`"),
        (b"{}", {}, "it is no Ask: Object missing required field `sku`"),
        (b"\xff", PACK, "it is no Ask: Expected `object`, got `int`"),
        (
            b'{"sku":7}',
            {"content-type": "text/plain"},
            "content-type: text/plain is neither JSON nor MessagePack",
        ),
        (b'"\xed\xa0\x80"', JSON, "it is no Ask: "),
        (b'{"sku":7,"x":' + b"[" * 100_000, JSON, "it is no Ask: "),
    ],
)
def test_where_and_why_a_body_does_not_fit_is_said(body: bytes, headers: dict[str, str], text: str) -> None:
    with pytest.raises(Declined) as caught:
        result_of(price, body, headers)
    assert caught.value.code == "bad-body"
    assert caught.value.text.startswith(text)


@pytest.mark.parametrize("handler", [price, from_octets])
def test_a_typed_body_is_one_frame(handler: Callable[..., Any]) -> None:
    with pytest.raises(Declined, match="it has 2 frames"):
        bind(handler)(asked(b"{}", b"{}"))


def guarded(calls: list[object], ask: Ask | list[int]) -> Price:
    calls.append(ask)
    assert isinstance(ask, Ask | list)
    return Price(1)


async def guarded_later(calls: list[object], ask: Ask | list[int]) -> Price:
    return guarded(calls, ask)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        return b"\x00"


BODIES = st.one_of(
    st.binary(max_size=64),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ).map(_encoded),
)


@pytest.mark.parametrize("handler", [guarded, guarded_later])
@given(body=BODIES, headers=st.sampled_from([JSON, PACK, {}, {"content-type": "image/png"}]))
@settings(max_examples=500, deadline=None)
def test_any_body_is_declined_or_fits(
    handler: Callable[..., Any], body: bytes, headers: dict[str, str]
) -> None:
    calls: list[object] = []
    try:
        reply = result_of(functools.partial(handler, calls), body, headers)
    except Declined:
        assert calls == [], "the handler did not run"
    else:
        assert len(calls) == 1
        assert codec_of(headers) is not None
        assert reply in (b'{"cents":1}', msgspec.msgpack.encode(Price(1)))


SEEDS = (
    b'{"sku":7,"count":2}',
    b"[1,2]",
    b"null",
    b'"\\u0000"',
    b"1e999",
    msgspec.msgpack.encode({"sku": 7}),
)


def mangled(random_: random.Random) -> bytes:
    """A body of the fuzz: one of the seeds, changed, so that it is none any more."""
    octets = bytearray(random_.choice(SEEDS))
    for _ in range(random_.randint(1, 6)):
        kind, place = random_.randrange(4), random_.randrange(len(octets) + 1)
        if kind == 0 and octets:
            octets[place % len(octets)] = random_.randrange(256)
        elif kind == 1:
            octets[place:place] = random_.randbytes(random_.randrange(4))
        elif kind == 2:
            del octets[place : place + random_.randint(1, 4)]
        else:
            octets[place:place] = random_.choice((b"[", b"{", b'"', b"\\", b"\xff", b"\xc1", b"9" * 40))
    return bytes(octets)


def test_ten_thousand_mangled_bodies_run_no_handler_and_end_no_worker() -> None:
    """In the way of the worker's own threads, without a socket."""
    random_ = random.Random(33)
    ran: list[Ask] = []

    def handle(ask: Ask) -> Price:
        ran.append(ask)
        return Price(ask.sku)

    loop = Worker(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "price", handle)._loop
    fitting = 0
    for number in range(10_000):
        body = mangled(random_)
        headers = random_.choice((JSON, PACK, {}))
        loop._executor.execute(Job(0, 1, number.to_bytes(24, "big"), [body], headers=headers))
        [result] = loop._outbox.results
        loop._outbox.results.clear()
        is_fit = _fits(body, headers)
        fitting += is_fit
        assert len(ran) == fitting
        assert result[2] == ("final" if is_fit else "declined"), body
    assert 50 < fitting < 2_000, "some of the changes leave an Ask"


def _fits(body: bytes, headers: dict[str, str]) -> bool:
    decode: Any = msgspec.msgpack.decode if headers is PACK else msgspec.json.decode
    try:
        decode(body, type=Ask)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


# --- replies that do not fit --------------------------------------------------------------------------------


def wrong(ask: Ask) -> Price:
    return {"cents": "many"}  # type: ignore[return-value]  # that is the case


async def wrong_later(ask: Ask) -> Price:
    return 5  # type: ignore[return-value]


def wrong_row(ask: Ask) -> Row:
    return {"name": 5, "points": []}  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (wrong, "the handler returned dict, which is no Price: Expected `int`, got `str` - at `\\$.cents`"),
        (wrong_later, "the handler returned int, which is no Price: Expected `object`, got `int`"),
        (wrong_row, "the handler returned dict, which is no Row: Expected `str`, got `int` - at `\\$.name`"),
    ],
)
def test_a_reply_of_another_type_is_an_error_that_says_so(handler: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        result_of(handler, b'{"sku":7}')


def test_what_fits_the_type_is_taken_whatever_class_it_has() -> None:
    def loose(ask: Ask) -> Price:
        return {"cents": 5}  # type: ignore[return-value]

    def listed(ask: Ask) -> list[Price]:
        return [Price(1)]

    assert result_of(loose, b'{"sku":7}') == b'{"cents":5}'
    assert result_of(listed, b'{"sku":7}') == b'[{"cents":1}]'


@pytest.mark.parametrize("answer", [Price(7), {"cents": 7}, "seven", [Price(7)]])
def test_a_value_of_an_unannotated_handler_is_an_error_that_says_what_to_write(answer: object) -> None:
    """It said that a body is "an object to encode (struct, dataclass, model, dict), not dict"."""
    with pytest.raises(TypeError, match=f"not {type(answer).__name__}: annotate the handler"):
        to_reply(answer, 1 << 20)


def test_a_coroutine_as_a_reply_is_to_be_awaited() -> None:
    """An async handler that forgot the await was told to use AsyncWorker, which it had."""
    with pytest.raises(TypeError, match="await it"):
        to_reply(later(Ask(7)), 1 << 20)


def test_a_caller_reads_a_reply_as_what_it_asks_for() -> None:
    assert read_frames([b'{"cents":5}'], Price, None, "it") == Price(5)
    assert read_frames([b"[]"], list[Price], "json", "it") == []
    assert read_frames([b"\xff"], bytes, None, "it") == b"\xff"
    with pytest.raises(HandlerError, match=r"the reply is no Price: .* at `\$.cents`"):
        read_frames([b'{"cents":"5"}'], Price, None, "the reply")
    with pytest.raises(HandlerError, match="has 2 frames"):
        read_frames([b"{}", b"{}"], Price, None, "the reply")
    with pytest.raises(TypeError):
        read_frames([b"{}"], Callable, None, "the reply")  # type: ignore[arg-type]


# --- bodies of callers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "frame"),
    [(Ask(7), b'{"sku":7,"count":1}'), (Point(1), b'{"x":1,"y":0}'), ({"sku": 7}, b'{"sku":7}')],
)
def test_a_value_is_encoded_and_its_content_type_is_a_header(body: Any, frame: bytes) -> None:
    assert to_typed(body, None, None) == ([frame], JSON)
    assert to_typed(body, None, {"a": "b"}) == ([frame], {"a": "b", **JSON})
    frames, headers = to_typed(body, "msgpack", None)
    assert msgspec.msgpack.decode(frames[0]) == msgspec.json.decode(frame)
    assert headers == PACK


def test_octets_stay_octets_and_say_their_type_only_if_a_codec_is_named() -> None:
    assert to_typed(b"{}", None, None) == ([b"{}"], None)
    assert to_typed([b"a", b"b"], None, {"a": "b"}) == ([b"a", b"b"], {"a": "b"})
    assert to_typed(b"{}", "json", None) == ([b"{}"], JSON)


@pytest.mark.parametrize("value", [5, 1.5, True, None, "text", [], [1, 2], ["a"], [{"a": 1}], "\u00e9"])
def test_with_a_codec_every_other_value_is_encoded(value: Any) -> None:
    for codec, decode in (("json", msgspec.json.decode), ("msgpack", msgspec.msgpack.decode)):
        (frame,), _ = to_typed(value, codec, None)  # type: ignore[arg-type]  # a codec
        assert decode(frame) == value


_ENDLESS: list[object] = []
_ENDLESS.append(_ENDLESS)


def test_plain_mdp_has_json_without_a_header() -> None:
    assert to_typed(Ask(7), None, None, is_native=False) == ([b'{"sku":7,"count":1}'], None)


@pytest.mark.parametrize(
    ("body", "codec", "headers", "error"),
    [
        (5, None, None, TypeError),
        ("text", None, None, TypeError),
        (["text"], None, None, TypeError),
        (Stranger(), None, None, TypeError),
        (Stranger(), "json", None, TypeError),
        (Asked(b"x", urgent=True), None, None, TypeError),
        (Task(b"x"), "json", None, TypeError),
        ({"a": Stranger()}, None, None, TypeError),
        ({"a": "\ud800"}, None, None, TypeError),
        ({"a": 2**64}, "msgpack", None, TypeError),
        ({"a": _ENDLESS}, None, None, TypeError),
        (Ask(7), "yaml", None, LocalProtocolError),
        (Ask(7), None, {"content-type": "text/plain"}, LocalProtocolError),
    ],
)
def test_what_cannot_be_encoded_is_an_error_before_anything_is_sent(
    body: Any, codec: Any, headers: dict[str, str] | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        to_typed(body, codec, headers)


def test_a_stored_request_carries_its_content_type() -> None:
    from bstar.wire import durable

    submit = durable.decode(submit_frame("price", Task(Ask(7), codec="msgpack")), durable.Submit)
    assert submit.headers == headers_extensions(PACK)
    assert msgspec.msgpack.decode(submit.body[0]) == {"sku": 7, "count": 1}


# --- pydantic -----------------------------------------------------------------------------------------------


def test_models_of_pydantic_are_bodies_and_replies() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", sku=(int, ...), kind=(Literal["a", "b"], "a"))

    def handle(body):  # type: ignore[no-untyped-def]
        return [body]

    handle.__annotations__ = {"body": model, "return": list[model]}
    assert result_of(handle, b'{"sku":7}') == b'[{"sku":7,"kind":"a"}]'
    with pytest.raises(Declined) as caught:
        result_of(handle, b'{"sku":"seven","kind":"c"}')
    text = caught.value.text
    assert text.startswith("it is no Model: Input should be a valid integer")
    assert "at sku" in text
    assert "at kind" in text
    assert "seven" not in text
    assert "http" not in text
    assert "\n" not in text
    assert to_typed(model(sku=7), None, None) == ([b'{"sku":7,"kind":"a"}'], JSON)
    assert read_frames([b'{"sku":7}'], model, None, "it") == model(sku=7)
    packed = msgspec.msgpack.encode({"sku": 7})
    assert msgspec.msgpack.decode(result_of(handle, packed, PACK)) == [{"sku": 7, "kind": "a"}]


def test_a_model_with_aliases_is_sent_by_them_as_its_schema_says() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", sku=(int, pydantic.Field(alias="skuNumber")))

    def handle(body):  # type: ignore[no-untyped-def]
        return [body]

    handle.__annotations__ = {"body": model, "return": list[model]}
    (frame,), headers = to_typed(model(skuNumber=7), None, None)
    assert result_of(handle, frame, dict(headers or {})) == b'[{"skuNumber":7}]'
    assert read_frames([frame], model, None, "it") == model(skuNumber=7)


def test_a_strict_model_takes_what_json_has_as_text() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model(
        "Model", __config__={"strict": True}, when=(datetime, ...), id=(UUID, ...), sizes=(set[int], ...)
    )
    holder = msgspec.defstruct("Holder", [("held", model)])

    def handle(body):  # type: ignore[no-untyped-def]
        return body

    handle.__annotations__ = {"body": holder, "return": holder}
    value = model(when=datetime(2026, 1, 2, tzinfo=UTC), id=UUID(int=7), sizes={3})
    for codec in ("json", "msgpack"):
        (frame,), headers = to_typed(holder(value), codec, None)
        answer = result_of(handle, frame, dict(headers or {}))
        assert read_frames([answer], holder, codec, "it") == holder(value)
    with pytest.raises(Declined, match=r"Input should be a valid integer at sizes\.0") as caught:
        result_of(handle, b'{"held":{"when":"2026-01-02T00:00:00Z","id":"%s","sizes":["3"]}}' % (b"0" * 32))
    assert "when" not in caught.value.text


def test_bytes_of_a_model_that_are_no_text_are_an_error_of_the_value() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", data=(bytes, ...))
    with pytest.raises(TypeError, match=r"^Model cannot be encoded: .*utf-8"):
        to_typed(model(data=b"\xff"), None, None)
    config = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}
    mended: Any = pydantic.create_model("Model", __config__=config, data=(bytes, ...))
    (frame,), _ = to_typed(mended(data=b"\xff"), None, None)
    assert read_frames([frame], mended, None, "it") == mended(data=b"\xff")


# --- over a broker ------------------------------------------------------------------------------------------


@pytest.mark.loopback
@pytest.mark.parametrize(("kind", "handler"), [(Worker, price), (AsyncWorker, later)])
def test_either_worker_serves_typed_handlers(kind: type, handler: Callable[..., Any]) -> None:
    with ScriptedBroker() as broker:
        desk = Desk(broker)
        with served(kind, broker.endpoint, handler):
            desk.ask(b'{"sku":7}')
            desk.ask(b'{"sku":"7"}')
            desk.ask(msgspec.msgpack.encode({"sku": 7}), extensions=headers_extensions(PACK))
        first, second, third = desk.ends()
        assert isinstance(first, Final)
        assert first.body == [b'{"cents":7}']
        assert isinstance(second, Failure)
        assert second.is_declined
        assert second.text == b"Declined bad-body: it is no Ask: Expected `int`, got `str` - at `$.sku`"
        assert isinstance(third, Final)
        assert third.body == [msgspec.msgpack.encode(Price(7))]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Pair]:
    with pair() as nodes:
        yield nodes


def count(ask: Ask) -> Generator[Price, None, Price | None]:
    for cents in range(ask.sku):
        yield Price(cents)
    return Price(-1) if ask.count > 1 else None


def strict(ask: Ask) -> Price:
    if ask.sku == 0:
        raise Declined("no-such-sku", "we do not sell 0")
    return Price(ask.sku) if ask.sku < 100 else "much"  # type: ignore[return-value]


@pytest.mark.loopback
def test_calls_of_threads_are_typed(nodes: Pair) -> None:
    with (
        Worker(nodes.endpoints, "price", strict, credit=16),
        Worker(nodes.endpoints, "count", count),
        HAClient(nodes.endpoints, timeout=WAIT_S) as client,
    ):
        assert client.request("price", Ask(7), reply=Price) == Price(7)
        assert client.request("price", Ask(7), reply=Price, codec="msgpack") == Price(7)
        assert client.request("price", b'{"sku":7}').body == b'{"cents":7}'
        with pytest.raises(DeclinedError) as declined:
            client.request("price", {"sku": "x"}, reply=Price)
        assert declined.value.code == "bad-body"
        with pytest.raises(HandlerError, match="which is no Price"):
            client.request("price", Ask(100), reply=Price)
        with pytest.raises(HandlerError, match='the reply of service "price" is no Point'):
            client.request("price", Ask(7), reply=Point)
        asks = [Ask(1), Asked(Ask(2), codec="msgpack"), Ask(0), Ask(3)]
        outcomes = list(client.map("price", asks[:1] + asks[2:], reply=Price, errors="return"))
        assert [type(each) for each in outcomes] == [Price, CallFailed, Price]
        assert list(client.map("price", [Ask(n) for n in range(1, 50)], reply=Price, window=8)) == [
            Price(n) for n in range(1, 50)
        ]
        with pytest.raises(HandlerError) as misfit:
            list(client.map("price", [Ask(1)], reply=Point))
        assert misfit.value.__notes__ == ["body 0 of map()"]
        assert list(client.stream("count", Ask(2), reply=Price)) == [Price(0), Price(1)]
        assert list(client.stream("count", Ask(1, 2), reply=Price)) == [Price(0), Price(-1)]


@pytest.mark.loopback
async def test_calls_of_asyncio_are_typed(nodes: Pair) -> None:
    async def later_price(ask: Ask, request: Request) -> Price:
        assert request.headers == {"tenant": "blue", **PACK}
        return Price(ask.sku)

    async with (
        AsyncWorker(nodes.endpoints, "later", later_price),
        AsyncWorker(nodes.endpoints, "parts", async_parts),
        AsyncHAClient(nodes.endpoints, timeout=WAIT_S) as client,
    ):
        found = await client.request(
            "later", Ask(7), reply=Price, codec="msgpack", headers={"tenant": "blue"}
        )
        assert found == Price(7)
        told = [part async for part in client.stream("parts", Ask(2), reply=Price)]
        assert told == [Price(0), Price(1)]
        with pytest.raises(DeclinedError):
            await client.request("parts", b"{")


@pytest.mark.loopback
def test_the_answer_to_a_stored_request_is_typed() -> None:
    store = FakeStore()
    with ScriptedBroker(on_request=store) as broker, HAClient(broker.endpoint) as client:
        request_id = client.submit("price", Ask(7))
        assert store.submits[bytes.fromhex(request_id)].body == [b'{"sku":7,"count":1}']
        assert client.result(request_id, reply=Price, wait=0) is None
        store.end(request_id, b'{"cents":7}')
        assert client.result(request_id, reply=Price) == Price(7)
        with pytest.raises(HandlerError, match=f"the answer to request {request_id} is no Point"):
            client.result(request_id, reply=Point)
        ids = list(client.submit_many("price", [Ask(1), Task(Ask(2))], codec="msgpack"))
        bodies = [store.submits[bytes.fromhex(each)].body[0] for each in ids]
        assert bodies == [msgspec.msgpack.encode(Ask(1)), msgspec.msgpack.encode(Ask(2))]


@pytest.mark.loopback
def test_a_server_without_a_broker_has_typed_handlers_too() -> None:
    with LoopbackHost() as host:
        place = f"tcp://127.0.0.1:{host.ports(1)[0]}"
        with FreelanceServer(price, place), LazyPirateClient([place], timeout=WAIT_S) as client:
            assert client.request(b'{"sku":7}').body == b'{"cents":7}'
            assert client.request(b"{").frames[0] == b"500"


def test_decoders_may_be_used_by_many_threads_at_once() -> None:
    call, start = bind(price), threading.Barrier(8)

    def work(number: int) -> bool:
        start.wait(WAIT_S)
        return all(call(asked(b'{"sku":%d}' % n)) == b'{"cents":%d}' % n for n in range(number, 500))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
