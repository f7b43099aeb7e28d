"""The WebSocket of the HTTP front before a pair in memory: many calls at once, bounds, tokens."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from bstar.security.principals import Patterns, Principal, Principals, digest_of
from bstar_client import Request
from bstar_client.asgi import FrontSettings, HttpFront
from bstar_client.asgi.access import FindPrincipal
from bstar_testing import fake

SHOP = Principal("shop", (), calls=Patterns(["echo"]), tokens=(digest_of("t0"),))


class Socket:
    """One WebSocket of the application, message by message."""

    def __init__(
        self, app: HttpFront, headers: Sequence[tuple[str, str]] = (), subprotocols: Sequence[str] = ()
    ) -> None:
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        listed = [(name.encode(), text.encode()) for name, text in headers]
        if subprotocols:
            listed.append((b"sec-websocket-protocol", ", ".join(subprotocols).encode()))
        scope = {
            "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "path": "/socket", "raw_path": b"/socket", "query_string": b"", "root_path": "",
            "headers": listed, "server": ("front", 80), "client": ("caller", 1), "scheme": "ws",
            "subprotocols": list(subprotocols), "extensions": {"websocket.http.response": {}},
        }  # fmt: skip
        self._in.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(scope, self._in.get, self._out.put))

    def say(self, message: object) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self._in.put_nowait({"type": "websocket.receive", "text": text})

    async def raw(self) -> MutableMapping[str, Any]:
        return await self._out.get()

    async def hear(self) -> Any:
        return json.loads((await self._out.get())["text"])

    async def end(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task


@asynccontextmanager
async def fronting(settings: FrontSettings | None, find: FindPrincipal | None) -> AsyncIterator[HttpFront]:
    async def slow(request: Request) -> bytes:
        await asyncio.sleep(float(request.body))
        return request.body

    async def count(request: Request) -> AsyncIterator[bytes]:
        for number in range(int(request.body)):
            yield b"%d" % number

    def echo(request: Request) -> bytes:
        return request.body

    async with fake({"slow": slow, "count": count, "echo": echo}) as client:
        yield HttpFront(client, settings, find_principal=find)


@pytest.fixture
def app(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[HttpFront]:
    return fronting(*getattr(request, "param", (None, None)))


def front(settings: FrontSettings | None = None, find: FindPrincipal | None = None) -> pytest.MarkDecorator:
    """What the front of one test is given."""
    return pytest.mark.parametrize("app", [(settings, find)], indirect=True)


async def opened(app: HttpFront, **options: Any) -> Socket:
    socket = Socket(app, **options)
    assert (await socket.raw())["type"] == "websocket.accept"
    return socket


async def test_many_calls_share_a_socket_and_a_quick_one_overtakes(app: HttpFront) -> None:
    socket = await opened(app)
    socket.say({"id": 1, "call": "slow", "body": "2"})
    socket.say({"id": "b", "call": "echo", "body": {"base64": "/w=="}, "timeout": 3})
    assert await socket.hear() == {"id": "b", "frames": [{"base64": "/w=="}], "final": True}
    assert await socket.hear() == {"id": 1, "frames": ["2"], "final": True}
    await socket.end()


async def test_a_stream_sends_its_partials_with_its_id(app: HttpFront) -> None:
    socket = await opened(app)
    socket.say({"id": 7, "call": "count", "body": "2", "stream": True})
    heard = [await socket.hear() for _ in range(3)]
    assert heard == [
        {"id": 7, "frames": ["0"], "final": False},
        {"id": 7, "frames": ["1"], "final": False},
        {"id": 7, "frames": [""], "final": True},
    ]
    await socket.end()


async def test_a_call_is_given_up_by_its_caller_or_with_its_socket(app: HttpFront) -> None:
    socket = await opened(app)
    socket.say({"id": 1, "call": "slow", "body": "60"})
    socket.say({"id": 2, "call": "slow", "body": "60"})
    socket.say({"id": 3, "call": "echo"})
    assert (await socket.hear())["id"] == 3
    assert app._client._core.outstanding == 2
    socket.say({"id": 1, "cancel": True})
    socket.say({"id": 1, "call": "echo"})
    while app._client._core.outstanding != 1:  # noqa: ASYNC110 - it takes no time
        await asyncio.sleep(0.001)
    await socket.end()
    assert app._client._core.outstanding == 0


@pytest.mark.parametrize(
    ("message", "order_id", "code", "status"),
    [
        ("nonsense", None, "bad-request", 400),
        ('{"id": 4, "what": 1}', 4, "bad-request", 400),
        (r'{"id": "\ud800", "call": "echo"}', None, "bad-request", 400),
        ({"id": 4}, 4, "bad-request", 400),
        ({"id": 4, "call": "\ufffd"}, 4, "bad-request", 400),
        ({"id": 4, "call": "x" * 256}, 4, "bad-request", 400),
        ({"id": 4, "call": "echo", "timeout": 0}, 4, "bad-request", 400),
        ({"id": 4, "call": "echo", "timeout": 1e9}, 4, "bad-request", 400),
        ({"id": 4, "call": "echo", "body": {"base64": "*"}}, 4, "bad-request", 400),
        ({"id": 4, "call": "count", "stream": True, "key": "k"}, 4, "bad-request", 400),
        ({"id": 4, "call": "echo", "body": "x" * 101}, 4, "too-large", 413),
        ({"id": 4, "call": "mmi.state"}, 4, "not-allowed", 403),
        ({"id": 4, "call": "none", "timeout": 0.5}, 4, "timeout", 504),
    ],
)
@front(FrontSettings(body_bytes_max=100))
async def test_what_cannot_be_done_is_an_error_with_the_id(
    app: HttpFront, message: object, order_id: int | None, code: str, status: int
) -> None:
    socket = await opened(app)
    socket.say(message)
    answer = await socket.hear()
    error = answer["error"]
    assert (answer["id"], error["code"], error["status"]) == (order_id, code, status)
    assert error["text"]
    socket.say({"id": 5, "call": "echo", "body": "x"})
    assert (await socket.hear())["frames"] == ["x"]
    await socket.end()


@front(FrontSettings(socket_calls_max=2))
async def test_a_socket_has_a_bound_of_calls_and_ids_are_its_own(app: HttpFront) -> None:
    socket = await opened(app)
    socket.say({"id": 1, "call": "slow", "body": "2"})
    socket.say({"id": 1, "call": "echo"})
    assert (await socket.hear())["error"]["code"] == "bad-request"
    socket.say({"id": 2, "call": "slow", "body": "2"})
    socket.say({"id": 3, "call": "echo"})
    answer = await socket.hear()
    assert (answer["id"], answer["error"]["code"]) == (3, "busy")
    assert {(await socket.hear())["id"] for _ in range(2)} == {1, 2}
    await socket.end()


@front(find=Principals([SHOP]).of_token)
async def test_a_token_comes_in_a_header_or_as_a_protocol(app: HttpFront) -> None:
    refused = Socket(app)
    assert (await refused.raw())["status"] == 401
    await refused.task
    await (await opened(app, headers=[("authorization", "Bearer t0")])).end()
    socket = Socket(app, subprotocols=["bstar.v1", "bearer.t0"])
    assert (await socket.raw())["subprotocol"] == "bstar.v1"
    socket.say({"id": 1, "call": "slow", "body": "1"})
    assert (await socket.hear())["error"]["status"] == 403
    await socket.end()


async def test_a_token_that_is_withdrawn_has_no_more_calls() -> None:
    listed = [SHOP]
    async with fronting(None, lambda token: Principals(listed).of_token(token)) as app:
        socket = await opened(app, headers=[("authorization", "Bearer t0")])
        socket.say({"id": 1, "call": "echo", "body": "x"})
        assert (await socket.hear())["frames"] == ["x"]
        listed.clear()
        socket.say({"id": 2, "call": "echo", "body": "x"})
        error = (await socket.hear())["error"]
        assert (error["code"], error["status"]) == ("unauthorized", 401)
        await socket.end()


async def test_a_page_that_is_not_named_gets_no_socket(app: HttpFront) -> None:
    refused = Socket(app, headers=[("origin", "https://evil.example")])
    assert (await refused.raw())["status"] == 403
    await refused.task
