"""What workers say of their services: how handlers make it, what a node keeps of it, and what it shows."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar import wire
from bstar.errors import ConfigurationError
from bstar.wire import limits, native
from bstar.wire.description import (
    NO_DESCRIPTION,
    Description,
    Offer,
    ServiceSummary,
    encode_description,
    read_description,
)
from bstar.wire.dialect import Dialect
from bstar.wire.messages import Ready
from bstar_broker.core import descriptions
from bstar_broker.core.descriptions import Descriptions
from bstar_broker.core.management import Management, Pictures, listed_worker
from bstar_broker.core.snapshot import NodeState
from bstar_client import App, AsyncWorker, HAClient, Request, Worker
from bstar_client.workers.describe import first_line, frame_of
from bstar_client.workers.typed import bind
from bstar_testing import Pair, fake
from bstar_testing.processes import wait_until
from support.desk import Desk

requirement = pytest.mark.requirement
# It warns that the one broker of a test is no pair.
_ENDPOINTS = "bstar_client.endpoints"


class Ask(msgspec.Struct):
    """What is asked for."""

    sku: int
    currency: str = "EUR"


class Price(msgspec.Struct):
    cents: int


@dataclass
class Part:
    number: int


def price(ask: Ask) -> Price:
    """Price of an item.

    In cents.
    """
    return Price(ask.sku)


def told(handler: Any, version: str = "", description: str = "") -> Description:
    """What a worker with this handler would say."""
    frame = frame_of(b"price", version, description, bind(handler))
    return msgspec.json.decode(frame, type=Description) if frame else NO_DESCRIPTION


def properties(schema: dict[str, Any] | None, name: str) -> dict[str, Any]:
    assert schema is not None
    found: dict[str, Any] = schema["$defs"][name]["properties"]
    return found


# --- on the wire --------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@requirement("BSN-W-21")
@given(st.text(max_size=300), st.text(max_size=300), st.dictionaries(st.text(), st.integers()))
def test_a_description_is_read_as_it_was_told_and_fits_a_terminal(
    version: str, text: str, schema: dict[str, Any]
) -> None:
    try:
        frame = encode_description(Description(version, text, request=schema))
    except UnicodeEncodeError:
        return  # no text that any worker could send
    said = read_description(frame)
    assert said.request == schema
    assert (said.version + said.description).isprintable()
    assert len(said.version) <= 12 * limits.SERVICE_VERSION_CHARS_MAX
    if text.isprintable() and len(text) <= limits.DESCRIPTION_CHARS_MAX:
        assert said.description == text


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"1.4",
    b"\xff\xfe",
    b'{"version":5}',
    b'{"request":true}',
    b'{"request":{"a":"\xff"}}',
    b'{"request":{"a":"\\ud800"}}',
    b'{"request":{"a":1e999}}',
    b'{"request":{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}}",
    b'{"description":"' + b"x" * limits.DESCRIPTION_BYTES_MAX + b'"}',
]


@requirement("BSN-W-21")
@pytest.mark.parametrize("frame", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_description_says_nothing_and_costs_no_registration(frame: bytes) -> None:
    assert read_description(frame) == NO_DESCRIPTION
    desk = Desk()
    [[_, head, *_]] = desk.send(b"w", *native.encode_ready(b"echo"), frame)
    assert head[2] == native.WELCOME
    service = desk.ledger.services[b"echo"]
    assert (service.workers, descriptions.versions(service), descriptions.text(service)) == (1, {}, "")


@requirement("BSN-W-21")
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_frame_behind_a_ready_costs_a_registration(frame: bytes) -> None:
    desk = Desk()
    [[_, head, *_]] = desk.send(b"w", *native.encode_ready(b"echo"), frame)
    assert head[2] == native.WELCOME
    assert ask(desk, b"mmi.descriptions")[0] == b"200"


@requirement("BSN-W-21")
@given(JSON)
def test_whatever_is_in_a_schema_is_shown_or_nothing_is(value: object) -> None:
    desk = Desk()
    frame = json.dumps({"request": {"of": value}}).encode()
    desk.send(b"w", *native.encode_ready(b"echo", description=frame))
    [entry] = json.loads(ask(desk, b"mmi.descriptions")[1])
    if "request" in entry and value == value:  # noqa: PLR0124 - not a number
        assert entry["request"] == {"of": value}


def test_a_broker_of_the_release_before_ignores_the_frame() -> None:
    """It read a READY of any number of frames, and of these the first one alone (BSN-G-11)."""
    frames = native.encode_ready(b"echo", credit=3, description=b'{"version":"2"}')
    assert len(frames) == 2
    read = wire.decode([b"w", frames[0]])
    assert read == Ready(b"w", Dialect.NATIVE, (), b"echo", 3)


def test_a_worker_of_the_release_before_is_shown_without_a_description() -> None:
    desk = Desk(b"old")
    desk.send(b"new", *native.encode_ready(b"echo", description=b'{"version":"2"}'))
    assert json.loads(ask(desk, b"mmi.descriptions")[1]) == [{"workers": 1, "version": "2"}, {"workers": 1}]


# --- made of a handler --------------------------------------------------------------------------------------


def test_the_schemas_follow_from_the_annotations() -> None:
    said = told(price, "1.4", first_line(price))
    assert (said.version, said.description) == ("1.4", "Price of an item.")
    assert properties(said.request, "Ask") == {
        "sku": {"type": "integer"},
        "currency": {"type": "string", "default": "EUR"},
    }
    assert said.request is not None
    assert said.request["$defs"]["Ask"]["required"] == ["sku"]
    assert properties(said.reply, "Price") == {"cents": {"type": "integer"}}
    assert said.part is None


def test_parts_of_a_stream_have_a_schema_of_their_own() -> None:
    async def parts(ask: Ask) -> AsyncIterator[Part]:
        yield Part(ask.sku)

    def again(ask: Ask) -> Iterator[Part]:
        yield Part(ask.sku)

    for handler in (parts, again):
        said = told(handler)
        assert properties(said.part, "Part") == {"number": {"type": "integer"}}
        assert said.reply is None


def test_bytes_have_no_schema() -> None:
    def one(request: Request) -> bytes:
        return request.body

    def two(request):  # type: ignore[no-untyped-def]
        return request.body

    def three(body: bytes) -> bytes:
        return body

    for handler in (one, two, three):
        assert told(handler) == NO_DESCRIPTION


def test_models_of_pydantic_have_their_own_schemas_with_references_that_hold() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner: Any = pydantic.create_model("Inner", text=(str, ...))
    model: Any = pydantic.create_model("Model", sku=(int, ...), inner=(list[inner], ...))

    def handle(body):  # type: ignore[no-untyped-def]
        return body

    handle.__annotations__ = {"body": list[model], "return": model}
    said = told(handle)
    assert said.request is not None
    assert said.reply is not None
    item = said.request["items"]["properties"]["inner"]["items"]
    assert item == {"$ref": "#/$defs/Model.Inner"}
    for schema in (said.request, said.reply):
        assert schema["$defs"]["Model.Inner"]["properties"]["text"]["type"] == "string"


def test_a_decimal_may_be_a_number_as_its_decoder_takes_one() -> None:
    def of(amount: Decimal) -> bytes:
        return b""

    assert told(of).request == {"type": ["string", "number"], "format": "decimal"}


class OddModel:
    """A model by its methods, whose schema cannot be made."""

    @classmethod
    def model_validate(cls, value: object) -> OddModel:
        return cls()

    def model_dump(self, mode: str) -> object:
        return None

    @classmethod
    def model_json_schema(cls, **options: object) -> dict[str, Any]:
        raise RuntimeError("a field without a schema")


def test_a_type_without_a_schema_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def of(body: OddModel) -> Price:
        return Price(1)

    said = told(of)
    assert said.request is None
    assert said.reply is not None
    assert caplog.messages == ['service "price": OddModel has no JSON schema: a field without a schema']


def test_schemas_beyond_the_bound_are_left_out_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    wide = msgspec.defstruct("Wide", [(f"a_field_with_a_long_name_{number}", int) for number in range(2_000)])

    def of(body):  # type: ignore[no-untyped-def]
        return b""

    of.__annotations__ = {"body": wide, "return": bytes}
    assert told(of, "1.4", "Wide.") == Description("1.4", "Wide.")
    [text] = caplog.messages
    assert text.startswith('service "price": its schemas are not shown, because they have ')
    assert text.endswith(" bytes, and 65536 are the most")


class Quote:
    """Quotes an item."""

    def __call__(self, ask: Ask) -> Price:
        return Price(1)


def test_the_description_is_the_first_line_of_the_docstring() -> None:
    assert first_line(price) == "Price of an item."
    assert first_line(partial(price)) == "Price of an item."
    assert first_line(Quote()) == "Quotes an item."
    assert first_line(lambda request: b"") == ""


# --- said by workers ----------------------------------------------------------------------------------------


def ready_of(worker: Worker | AsyncWorker) -> Description:
    """What the worker's READY says."""
    return read_description(worker._dialect.description)  # type: ignore[union-attr]  # a native one


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger=_ENDPOINTS)


@pytest.mark.usefixtures("quiet")
def test_workers_of_both_kinds_say_what_they_are_told_to_say() -> None:
    async def later(ask: Ask) -> Price:
        """Price of an item, later."""
        return Price(1)

    endpoint = "tcp://127.0.0.1:5001"
    assert ready_of(Worker(endpoint, "price", price)).description == "Price of an item."
    assert ready_of(AsyncWorker(endpoint, "price", later, version="2")).version == "2"
    said = ready_of(Worker(endpoint, "price", price, version="1.4", description="One\n line."))
    assert (said.version, said.description) == ("1.4", "One line.")
    assert ready_of(Worker(endpoint, "price", price, description="")).description == ""
    worker = Worker(endpoint, "price", version="1.5")
    worker.handler(price)
    assert (ready_of(worker).version, ready_of(worker).request is None) == ("1.5", False)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": 2}, "version is a text"),
        ({"version": "x" * 65}, "at most 64 printable characters"),
        ({"version": "1\n2"}, "at most 64 printable characters"),
        ({"description": 5}, "description is a text or None"),
        ({"version": "2", "dialect": "mdp02"}, "need the native dialect"),
    ],
)
def test_a_wrong_version_or_description_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ConfigurationError), match=text):
        Worker("tcp://127.0.0.1:5001", "price", price, **options)


# --- kept by a node -----------------------------------------------------------------------------------------


def ask(desk: Desk, what: bytes, about: bytes = b"echo") -> list[bytes]:
    def state(now: float) -> NodeState:
        raise AssertionError("nobody asked for it")

    return Management(desk.ledger, state).answer(what, [about], Pictures(), desk.now)


def register(desk: Desk, worker: bytes, version: str, text: str = "", **schemas: dict[str, Any]) -> None:
    frame = encode_description(Description(version, text, **schemas))
    desk.send(worker, *native.encode_ready(b"echo", description=frame))


def test_workers_that_say_the_same_share_one_copy_which_leaves_with_the_last_of_them() -> None:
    desk = Desk()
    for number in range(4):
        register(desk, b"w%d" % number, "1.4", "Echoes.", request={"type": "object"})
    [(description, count)] = desk.ledger.services[b"echo"].descriptions.items()
    assert count == description.workers == 4
    assert {id(worker.description) for worker in desk.ledger.workers.values()} == {id(description)}
    registry = desk.broker._registry
    for number in range(4):
        assert registry._descriptions.kept_bytes == len(description.frame)
        desk.send(b"w%d" % number, *native.encode_disconnect())
    assert registry._descriptions.kept_bytes == 0
    assert desk.ledger.services[b"echo"].descriptions == {}


def test_two_versions_of_a_service_are_counted_beside_workers_that_name_none() -> None:
    desk = Desk()
    register(desk, b"a", "1.4", "Echoes.")
    register(desk, b"b", "1.5", "Echoes well.")
    register(desk, b"c", "1.5", "Echoes well.")
    desk.ready02(b"plain")
    [entry] = json.loads(ask(desk, b"mmi.descriptions", b"")[1])
    assert entry == {
        "service": "echo",
        "workers": 4,
        "versions": {"1.5": 2, "1.4": 1, "": 1},
        "description": "Echoes well.",
    }
    assert msgspec.json.decode(ask(desk, b"mmi.descriptions")[1], type=list[Offer]) == [
        Offer("1.5", "Echoes well.", workers=2),
        Offer("1.4", "Echoes.", workers=1),
        Offer(workers=1),
    ]
    told = {listed_worker(each, 0.0).service_version for each in desk.ledger.workers.values()}
    assert told == {"1.4", "1.5", ""}


def test_of_a_service_of_plain_workers_nothing_is_known() -> None:
    desk = Desk()
    desk.ready02(b"plain")
    assert json.loads(ask(desk, b"mmi.descriptions", b"")[1]) == [{"service": "echo", "workers": 1}]
    assert json.loads(ask(desk, b"mmi.descriptions")[1]) == [{"workers": 1}]
    assert ask(desk, b"mmi.descriptions", b"nothing") == [b"404"]


def test_a_listing_of_many_versions_is_bounded() -> None:
    desk = Desk()
    for number in range(3 * descriptions.LISTED_MAX):
        register(desk, b"w%d" % number, f"{number:03}")
    counts = descriptions.versions(desk.ledger.services[b"echo"])
    assert len(counts) == descriptions.LISTED_MAX + 1
    assert counts["others"] == 2 * descriptions.LISTED_MAX
    assert len(json.loads(ask(desk, b"mmi.descriptions")[1])) == descriptions.LISTED_MAX


def test_a_worker_beyond_the_room_is_registered_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "BYTES_MAX", 40)
    desk = Desk()
    for worker in (b"a", b"b", b"c"):
        register(desk, worker, f"a version of its own {worker!r}")
    assert desk.ledger.services[b"echo"].workers == 3
    assert descriptions.versions(desk.ledger.services[b"echo"]) == {"a version of its own b'a'": 1, "": 2}
    assert desk.ledger.drops["descriptions-full"] == 2
    [notice] = desk.notices
    assert 'what a worker of service "echo" says of it' in notice


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([b"{}", b'{"version":"1"}', b"?"])), max_size=30))
def test_the_bytes_are_those_of_what_is_kept(steps: list[tuple[bool, bytes]]) -> None:
    kept, held = Descriptions(), []
    for is_add, frame in steps:
        if is_add:
            description = kept.add(frame)
            assert description is not None
            held.append(description)
        elif held:
            kept.remove(held.pop())
        assert kept.kept_bytes == sum(len(each) for each in {each.frame for each in held})


# --- asked for by clients -----------------------------------------------------------------------------------


def summary_of(client: HAClient) -> ServiceSummary:
    listed = msgspec.json.decode(client.request("mmi.descriptions", b"").frames[1], type=list[ServiceSummary])
    return next((each for each in listed if each.service == "price"), ServiceSummary("price", 0))


def test_a_pair_in_memory_describes_the_services_of_an_app() -> None:
    app = App("tcp://127.0.0.1:5001,tcp://127.0.0.1:5002")

    @app.around
    def around(request: Request, call: Any) -> Any:
        return call(request)

    app.service("price", version="1.4")(price)
    app.service("other", description="Another one.")(price)
    with fake(app) as client:
        assert summary_of(client) == ServiceSummary("price", 1, {"1.4": 1}, "Price of an item.")
        [offer] = msgspec.json.decode(
            client.request("mmi.descriptions", b"other").frames[1], type=list[Offer]
        )
        assert offer.description == "Another one."
        assert properties(offer.request, "Ask")["sku"] == {"type": "integer"}


@pytest.mark.loopback
def test_both_nodes_know_a_rolling_upgrade_also_after_a_failover(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    old = Worker(pair.endpoints, "price", price, version="1.4")
    new = Worker(pair.endpoints, "price", price, version="1.5")
    with pair, old, new, HAClient(pair.endpoints, timeout=60) as client:
        pair.start()
        wait_until(lambda: summary_of(client).versions == {"1.4": 1, "1.5": 1}, "both versions")
        pair.primary.kill()
        assert client.request("price", Ask(7), reply=Price) == Price(7)
        wait_until(lambda: summary_of(client).versions == {"1.4": 1, "1.5": 1}, "both at the backup")
        old.close()
        wait_until(lambda: summary_of(client).versions == {"1.5": 1}, "the new one alone")
