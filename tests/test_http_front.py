"""The HTTP front before a pair in memory: what each path answers, and each error's one status."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    DeadLetterError,
    DeclinedError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    RemoteProtocolError,
    RequestCancelledError,
    StreamInterruptedError,
    UnknownRequestError,
)
from bstar.security.principals import Patterns, Principal, Principals, digest_of
from bstar.wire import mmi
from bstar.wire.messages import ErrorCode
from bstar_broker.core.management import Management
from bstar_client import AsyncHAClient, Declined, Request
from bstar_client.asgi import FrontSettings, HttpFront
from bstar_client.asgi.failures import STATUSES, body_of, response_of
from bstar_testing import FakePair, fake

PAGE = Path(__file__).parent.parent / "docs" / "http.md"
TOKEN = "a token"
SHOP = Principal("shop", (), calls=Patterns(["echo", "slow", "store.*"]), tokens=(digest_of(TOKEN),))
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Item(msgspec.Struct):
    sku: str


class Price(msgspec.Struct):
    cents: int


class Moved(msgspec.Struct):
    """Its error is not that of the front, and its item not the shop's."""

    error: msgspec.defstruct("Error", [("why", str)])  # type: ignore[valid-type]
    item: msgspec.defstruct("Item", [("weight", int)])  # type: ignore[valid-type]


class Box(msgspec.Struct):
    items: list[Item]


class Stand:
    """A pair in memory, a front before it, and an HTTP client of that."""

    def __init__(
        self, office: FakePair, client: AsyncHAClient, app: HttpFront, http: httpx.AsyncClient
    ) -> None:
        self.office = office
        self.client = client
        self.app = app
        self.http = http
        self.held: list[Request] = []
        self.cancelled = asyncio.Event()

    async def call(self, service: str, body: bytes = b"x", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return await self.http.post(f"/call/{service}", content=body, headers=named)


@asynccontextmanager
async def standing(settings: FrontSettings | None, principals: Principals | None) -> AsyncIterator[Stand]:
    began: list[Request] = []
    cancelled = asyncio.Event()

    async def slow(request: Request) -> bytes:
        began.append(request)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b"late"

    def echo(request: Request) -> bytes:
        return request.body

    def show(request: Request) -> bytes:
        return json.dumps(dict(request.headers)).encode()

    def fail(request: Request) -> bytes:
        raise RuntimeError("no paper")

    def decline(request: Request) -> bytes:
        raise Declined("sold-out", "none left", data={"left": 0})

    async def count(request: Request) -> AsyncIterator[bytes]:
        for number in range(int(request.body)):
            yield b"%d" % number

    async def drip(request: Request) -> AsyncIterator[bytes]:
        yield b"first"
        yield await slow(request)

    def frames(request: Request) -> list[bytes]:
        return [b"one", b"\xff\x00", b""]

    async def price(item: Item) -> Price:
        """What it costs."""
        return Price(cents=3)

    async def move(item: Moved) -> Moved:
        return item

    async def box(item: Box) -> Price:
        return Price(cents=1)

    handlers = (price, echo, show, fail, decline, frames, slow, count, drip, move, box)
    office = fake({each.__name__: each for each in handlers} | {"50% {off}?": echo})
    async with office as client:
        find = None if principals is None else principals.of_token
        app = HttpFront(client, settings, find_principal=find)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as http:
            made = Stand(office, client, app, http)
            made.held, made.cancelled = began, cancelled
            yield made


@pytest.fixture
def stand(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Stand]:
    return standing(*getattr(request, "param", (None, None)))


def front(
    settings: FrontSettings | None = None, principals: Principals | None = None
) -> pytest.MarkDecorator:
    """What the front of one test is given."""
    return pytest.mark.parametrize("stand", [(settings, principals)], indirect=True)


def failure(answer: httpx.Response) -> tuple[int, str, bool]:
    body = answer.json()
    assert body["text"]
    return answer.status_code, body["code"], body["may_have_executed"]


# --- calls --------------------------------------------------------------------------------------------------


async def test_a_body_goes_in_and_the_reply_comes_out(stand: Stand) -> None:
    for body in (b"", b"hello", bytes(range(256))):
        answer = await stand.call("echo", body)
        assert (answer.status_code, answer.content) == (200, body)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_caller_that_sends_json_gets_json(stand: Stand) -> None:
    answer = await stand.http.post("/call/echo", json={"a": 1})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"a": 1}


async def test_headers_reach_the_handler_and_secrets_do_not(stand: Stand) -> None:
    answer = await stand.call(
        "show", X_Trace="7", Cookie="secret", Authorization="Basic secret", Bstar_Timeout="5"
    )
    shown = answer.json()
    assert shown["x-trace"] == "7"
    assert "secret" not in str(shown)
    assert not any(name.startswith("bstar-") for name in shown)


async def test_several_frames_come_one_behind_the_other_with_their_lengths(stand: Stand) -> None:
    answer = await stand.call("frames")
    assert (answer.content, answer.headers["bstar-frames"]) == (b"one\xff\x00", "3,2,0")


async def test_a_call_survives_a_failover(stand: Stand) -> None:
    assert (await stand.call("echo", b"1")).content == b"1"
    stand.office.fail_over()
    assert (await stand.call("echo", b"2")).content == b"2"


async def test_one_key_is_one_request(stand: Stand) -> None:
    answers = await asyncio.gather(*(stand.call("slow", Idempotency_Key="k") for _ in range(3)))
    assert {answer.content for answer in answers} == {b"late"}
    assert len(stand.held) == 1


async def test_a_call_that_may_not_be_repeated_ends_as_unknown(stand: Stand) -> None:
    stand.office.lose_reply()
    answer = await stand.call("echo", Bstar_Idempotent="false")
    assert failure(answer) == (502, "outcome-unknown", True)


async def test_a_handler_that_fails_or_declines_says_so(stand: Stand) -> None:
    assert failure(await stand.call("fail")) == (500, "handler-failed", True)
    answer = await stand.call("decline")
    assert failure(answer) == (422, "declined", True)
    assert answer.json()["declined"] == {"code": "sold-out", "text": "none left", "data": {"left": 0}}


async def test_a_deadline_ends_a_call(stand: Stand) -> None:
    assert failure(await stand.call("slow", Bstar_Timeout="0.5")) == (504, "timeout", True)


async def test_a_busy_pair_asks_callers_to_come_back(stand: Stand) -> None:
    with stand.office.busy():
        answer = await stand.call("echo", Bstar_Timeout="0.5")
    assert failure(answer) == (503, "busy", False)
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"Bstar-Timeout": "soon"}, "bstar-timeout"),
        ({"Bstar-Timeout": "0"}, "bstar-timeout"),
        ({"Bstar-Timeout": "nan"}, "bstar-timeout"),
        ({"Bstar-Timeout": "301"}, "300 at most"),
        ({"Bstar-Idempotent": "maybe"}, "true or false"),
        ({"X-Long": "x" * 9_000}, "header"),
        ({"Accept": "text/event-stream", "Idempotency-Key": "k"}, "stream has no key"),
    ],
)
async def test_wrong_options_are_a_bad_request(stand: Stand, headers: Mapping[str, str], word: str) -> None:
    answer = await stand.http.post("/call/echo", headers=headers)
    assert failure(answer) == (400, "bad-request", False)
    assert word in answer.json()["text"]


async def test_unknown_paths_and_methods_have_the_same_form(stand: Stand) -> None:
    assert failure(await stand.http.get("/calls/echo")) == (404, "not-found", False)
    answer = await stand.http.get("/call/echo")
    assert failure(answer) == (405, "method-not-allowed", False)
    assert answer.headers["allow"] == "POST"
    assert failure(await stand.http.post(f"/call/{'x' * 300}")) == (400, "bad-request", False)


async def test_the_group_of_a_submit_is_the_one_of_its_header(stand: Stand) -> None:
    answer = await stand.http.post("/submit/echo", headers={"Bstar-Group": "x" * 129})
    assert failure(answer) == (400, "bad-request", False)
    assert "a group's name has 1 to 128 characters" in answer.json()["text"]


@pytest.mark.parametrize("service", ["mmi.state", "store.submit", "titanic.request"])
async def test_the_brokers_own_services_cannot_be_called(stand: Stand, service: str) -> None:
    assert failure(await stand.call(service)) == (403, "not-allowed", False)


@pytest.mark.parametrize("name", ["%ff", "caf%e9", "%ed%a0%80", ""])
@pytest.mark.parametrize("path", ["call", "submit"])
async def test_what_is_no_name_of_a_service_is_refused_at_once(stand: Stand, path: str, name: str) -> None:
    answer = await stand.http.post(f"/{path}/{name}", headers={"Bstar-Timeout": "60"})
    assert failure(answer) == (400, "bad-request", False)
    assert "name" in answer.json()["text"]


@front(FrontSettings(body_bytes_max=100))
async def test_a_body_beyond_the_bound_is_refused_also_without_a_length(stand: Stand) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 30

    assert (await stand.call("echo", b"x" * 100)).status_code == 200
    assert failure(await stand.call("echo", b"x" * 101)) == (413, "too-large", False)
    answer = await stand.http.post("/call/echo", content=parts())
    assert failure(answer) == (413, "too-large", False)


@front(FrontSettings(slow_s=0.2))
async def test_a_body_that_does_not_come_ends_the_request(stand: Stand) -> None:
    exchange = Exchange(stand.app, "POST", "/call/echo")
    exchange.give({"type": "http.request", "body": b"x", "more_body": True})
    await exchange.task
    assert (exchange.status, exchange.body["code"]) == (408, "slow-body")


async def test_a_caller_with_a_slow_body_is_watched_once_it_has_come(stand: Stand) -> None:
    exchange = Exchange(stand.app, "POST", "/call/slow")
    exchange.give({"type": "http.request", "body": b"x", "more_body": True})
    await asyncio.sleep(0.2)  # longer than most requests take: the bound of the body is what is watched
    exchange.give({"type": "http.request", "body": b"y"})
    while not stand.held:  # noqa: ASYNC110 - it takes no time
        await asyncio.sleep(0.001)
    exchange.leave()
    await exchange.task
    assert stand.app.counts["gone"] == 1


# --- callers that go away, events ---------------------------------------------------------------------------


class Exchange:
    """One request to the application, message by message."""

    def __init__(
        self, app: HttpFront, method: str, path: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[Any] = []
        self.has_sent = asyncio.Event()
        listed = [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": listed, "server": ("front", 80), "client": ("caller", 1), "scheme": "http",
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._in.get, self._send))

    def give(self, message: dict[str, Any]) -> None:
        self._in.put_nowait(message)

    def leave(self) -> None:
        self.give({"type": "http.disconnect"})

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self.has_sent.set()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content)
        return found


def in_flight(stand: Stand) -> int:
    return stand.client._core.outstanding


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
async def test_a_caller_that_goes_away_gives_its_call_up(stand: Stand, accept: str) -> None:
    exchange = Exchange(stand.app, "POST", "/call/slow", {"Accept": accept})
    exchange.give({"type": "http.request", "body": b"x"})
    while not stand.held:  # noqa: ASYNC110 - it takes no time
        await asyncio.sleep(0.001)
    assert in_flight(stand) == 1
    exchange.leave()
    await exchange.task
    assert in_flight(stand) == 0
    await asyncio.wait_for(stand.cancelled.wait(), 60)


async def test_a_call_that_the_server_cancels_ends_as_cancelled(stand: Stand) -> None:
    exchange = Exchange(stand.app, "POST", "/call/slow")
    exchange.give({"type": "http.request", "body": b"x"})
    while not stand.held:  # noqa: ASYNC110 - it takes no time
        await asyncio.sleep(0.001)
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert in_flight(stand) == 0


async def test_what_becomes_of_requests_is_counted(stand: Stand) -> None:
    await stand.call("echo")
    await stand.call("fail")
    await stand.http.get("/nowhere")
    await stand.http.get("/healthz")
    exchange = Exchange(stand.app, "POST", "/call/slow")
    exchange.give({"type": "http.request", "body": b"x"})
    exchange.leave()
    await exchange.task
    counted = {event: count for event, count in stand.app.counts.items() if count}
    assert counted == {"ok": 1, "handler-failed": 1, "not-found": 1, "gone": 1}
    assert stand.app.levels() == {"calls": 0, "streams": 0, "sockets": 0}


async def test_a_reader_that_goes_away_amid_a_stream_gives_it_up(stand: Stand) -> None:
    exchange = Exchange(stand.app, "POST", "/call/drip", {"Accept": "text/event-stream"})
    exchange.give({"type": "http.request", "body": b"x"})
    while len(exchange.sent) < 2:
        exchange.has_sent.clear()
        await exchange.has_sent.wait()
    assert stand.app.levels() == {"calls": 1, "streams": 1, "sockets": 0}
    exchange.leave()
    await exchange.task
    assert stand.app.levels() == {"calls": 0, "streams": 0, "sockets": 0}
    await asyncio.wait_for(stand.cancelled.wait(), 60)


async def test_partials_are_events_and_the_final_is_the_last(stand: Stand) -> None:
    answer = await stand.call("count", b"3", Accept="text/event-stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert list(events_of(answer.text)) == [
        ("partial", {"frames": ["0"], "index": 0}),
        ("partial", {"frames": ["1"], "index": 1}),
        ("partial", {"frames": ["2"], "index": 2}),
        ("final", {"frames": [""], "index": 3}),
    ]
    plain = await stand.call("count", b"3")
    assert (plain.content, plain.headers["bstar-partials"]) == (b"", "3")


async def test_bytes_of_an_event_are_base64(stand: Stand) -> None:
    answer = await stand.call("frames", Accept="text/event-stream")
    assert list(events_of(answer.text)) == [
        ("final", {"frames": ["one", {"base64": "/wA="}, ""], "index": 0})
    ]


async def test_a_stream_that_fails_at_once_has_a_status_and_one_that_breaks_an_event(stand: Stand) -> None:
    answer = await stand.call("fail", Accept="text/event-stream")
    assert failure(answer) == (500, "handler-failed", True)
    answer = await stand.call("broken", Accept="text/event-stream", Bstar_Timeout="0.2")
    assert answer.status_code == 504


def events_of(text: str) -> Iterator[tuple[str, Any]]:
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


# --- who may ask --------------------------------------------------------------------------------------------


@front(principals=Principals([SHOP]))
async def test_a_token_stands_for_its_principal(stand: Stand) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        answer = await stand.http.post("/call/echo", headers=headers)
        assert failure(answer) == (401, "unauthorized", False)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert (await stand.http.post("/call/echo", headers=BEARER)).status_code == 200
    answer = await stand.http.post("/call/fail", headers=BEARER)
    assert failure(answer) == (403, "not-allowed", False)
    assert failure(await stand.http.post("/submit/fail", headers=BEARER))[0] == 403
    assert failure(await stand.http.get("/openapi.json"))[0] == 401
    listed = (await stand.http.get("/openapi.json", headers=BEARER)).json()
    assert set(listed["paths"]) == {"/call/echo", "/call/slow"}
    assert listed["security"] == [{"bearer": []}]
    assert (await stand.http.get("/healthz")).status_code == 200


@front(principals=Principals([SHOP]))
async def test_a_pattern_gives_no_right_to_the_brokers_own_services(stand: Stand) -> None:
    answer = await stand.http.post("/call/store.submit", headers=BEARER)
    assert failure(answer) == (403, "not-allowed", False)


async def test_a_page_that_is_not_named_may_not_call(stand: Stand) -> None:
    assert failure(await stand.call("echo", Origin="http://front"))[:2] == (403, "not-allowed")


@front(FrontSettings(origins=("https://shop.example",)))
async def test_a_page_that_is_named_may_call_and_read(stand: Stand) -> None:
    answer = await stand.call("fail", Origin="https://shop.example")
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert failure(answer) == (500, "handler-failed", True)
    asked = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,bstar-timeout"
    answer = await stand.http.options("/call/echo", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (
        200,
        "https://shop.example",
    )
    assert (await stand.call("echo", Origin="https://other.example")).status_code == 403


# --- roles --------------------------------------------------------------------------------------------------


async def test_a_passive_node_names_its_peer_and_a_failover_makes_it_serve(stand: Stand) -> None:
    active, passive = stand.client.endpoints
    transports = {
        local: httpx.ASGITransport(HttpFront(stand.client, FrontSettings(local=local, peer=f"http://{peer}")))
        for local, peer in ((active, "b"), (passive, "a"))
    }
    one = httpx.AsyncClient(transport=transports[active], base_url="http://a")
    other = httpx.AsyncClient(transport=transports[passive], base_url="http://b")
    async with one, other:
        assert (await one.post("/call/echo", content=b"1")).content == b"1"
        for answer in (await other.post("/call/echo"), await other.get("/readyz")):
            assert failure(answer) == (503, "passive", False)
            assert answer.json()["peer"] == answer.headers["bstar-peer"] == "http://a"
        assert (await one.get("/readyz")).status_code == 200
        stand.office.fail_over()
        await asyncio.sleep(0.1)  # the client sees its connection break
        assert (await other.post("/call/echo", content=b"2")).content == b"2"
        assert failure(await one.post("/call/echo")) == (503, "passive", False)


# --- what is known of services ------------------------------------------------------------------------------


async def test_every_service_is_in_the_document(stand: Stand) -> None:
    document = (await stand.http.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert {"/call/echo", "/call/decline", "/call/slow"} <= set(document["paths"])
    assert "security" not in document
    typed = document["paths"]["/call/price"]["post"]
    reply = typed["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply == {"$ref": "#/components/schemas/Price"}
    assert typed["summary"] == "What it costs."
    codes = document["components"]["schemas"]["Error"]["properties"]["code"]["enum"]
    assert codes == list(STATUSES)


async def test_each_reference_of_the_document_leads_to_what_its_service_means(stand: Stand) -> None:
    """Those of typed services began at their own schema: no generator of clients found what they name."""
    document = (await stand.http.get("/openapi.json")).json()

    def of(service: str, *path: str) -> Any:
        content = document["paths"][f"/call/{service}"]["post"]["requestBody"]["content"]
        node = content["application/json"]["schema"]
        for word in ("", *path):
            node = node["properties"][word] if word else node
            node = node.get("items", node)
            while "$ref" in node:
                start, *names = node["$ref"].split("/")
                assert start == "#"
                node = document
                for name in names:
                    node = node[name]
        return node

    assert set(of("price")["properties"]) == set(of("box", "items")["properties"]) == {"sku"}
    assert set(of("move", "item")["properties"]) == {"weight"}
    assert set(of("move", "error")["properties"]) == {"why"}
    schemas = document["components"]["schemas"]
    assert {"Box", "Error", "Moved", "Price", "box.request.Item", "move.reply.Item"} <= set(schemas)
    assert "code" in schemas["Error"]["properties"]
    assert "$defs" not in json.dumps(document)
    assert list(document["paths"]) == sorted(document["paths"])


async def test_a_path_of_the_document_is_an_address_whatever_the_name_is(stand: Stand) -> None:
    document = (await stand.http.get("/openapi.json")).json()
    [path] = [each for each in document["paths"] if "off" in each]
    assert (await stand.http.post(path, content=b"x")).content == b"x"
    # In a path of OpenAPI braces are a parameter.
    assert "{" not in path


async def test_a_request_that_is_no_call_counts_by_its_end_too(stand: Stand) -> None:
    assert (await stand.http.get("/openapi.json")).status_code == 200
    assert stand.app.counts["ok"] == 1


@pytest.mark.parametrize(
    ("asked", "frame"),
    [
        (b"mmi.services", b"\xff"),
        (b"mmi.services", b'[{"name": "echo"}]'),
        (b"mmi.services", b'[{"service": 1}]'),
        (b"mmi.descriptions", b"[" * 100_000),
        (b"mmi.descriptions", b'{"workers": 1}'),
        (b"mmi.descriptions", b'[{"workers": 1, "version": "\xff"}]'),
    ],
)
async def test_an_answer_that_cannot_be_read_is_one_error_of_the_document(
    stand: Stand, asked: bytes, frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Management._picture

    def picture(self: Management, service: mmi.Service, *rest: Any) -> bytes:
        return frame if service.value == asked else real(self, service, *rest)

    monkeypatch.setattr(Management, "_picture", picture)

    answer = await stand.http.get("/openapi.json")
    assert failure(answer)[:2] == (502, "outcome-unknown")
    assert f"the answer to {asked.decode()}" in answer.json()["text"]


# --- errors -------------------------------------------------------------------------------------------------

ERRORS: list[tuple[BstarError, str]] = [
    (BusyError("x"), "busy"),
    (RejectedError("x", code=ErrorCode.INVALID), "bad-request"),
    (RejectedError("x", code=ErrorCode.NOT_ALLOWED), "not-allowed"),
    (NoActiveNodeError("x"), "no-active-node"),
    (CallTimeoutError("x", may_have_executed=True), "timeout"),
    (OutcomeUnknownError("x"), "outcome-unknown"),
    (StreamInterruptedError("x"), "stream-interrupted"),
    (HandlerError("x"), "handler-failed"),
    (DeclinedError("c", "x"), "declined"),
    (DeadLetterError("x", request_id="1", cause="failed", said="no", attempts=3), "dead-letter"),
    (RequestCancelledError("x", request_id="1"), "cancelled"),
    (UnknownRequestError("x", request_id="1"), "unknown-request"),
    (LocalProtocolError("x"), "bad-request"),
    (ClosedError("x"), "stopping"),
    (RemoteProtocolError("durable", "x"), "outcome-unknown"),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_each_error_has_one_code_and_one_status(error: BstarError, code: str) -> None:
    body, response = body_of(error), response_of(error)
    assert (body["code"], response.status_code) == (code, STATUSES[code])
    assert json.loads(bytes(response.body)) == body
    said = getattr(error, "may_have_executed", code == "outcome-unknown")
    assert body["may_have_executed"] is said
    assert ("retry-after" in response.headers) == (response.status_code == 503)


def test_the_page_has_the_table_of_codes() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d{3}) \|", PAGE.read_text(), re.MULTILINE)
    assert {code: int(status) for code, status in rows} == {
        code: int(status) for code, status in STATUSES.items()
    }
