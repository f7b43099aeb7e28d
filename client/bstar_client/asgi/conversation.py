"""A WebSocket that carries many calls at once: one JSON object in each message, matched by ``id``.

    {"id": 1, "call": "price", "body": "apple", "timeout": 5}   the caller begins a call
    {"id": 1, "cancel": true}                         … or gives it up
    {"id": 1, "frames": ["3"], "final": true}         the reply; with "stream": true PARTIALs before
    {"id": 1, "error": {"code": "busy", "status": 503, …}}   what docs/http.md has for the code

Replies come in any order. When the socket ends, all of its calls are given up.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from bstar.errors import BstarError
from bstar_client.aio.client import AsyncHAClient
from bstar_client.arguments.json_frames import frame_of, json_frame
from bstar_client.asgi.asked import handed_on
from bstar_client.asgi.failures import STATUSES, FrontError, body_of
from bstar_client.asgi.settings import FrontSettings
from bstar_client.core.calls import Reply

PROTOCOL: Final = "bstar.v1"
Id = int | str


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller sends."""

    id: Id
    call: str | None = None
    body: str | dict[str, str] = ""
    timeout: float | None = None
    idempotent: bool = True
    key: str | None = None
    headers: dict[str, str] = {}
    stream: bool = False
    cancel: bool = False


_decode = msgspec.json.Decoder(_Order).decode


class Conversation:
    """One WebSocket. ``check`` raises FrontError if its caller may not call a service now.

    ``counts`` are those of the front.
    """

    def __init__(
        self,
        socket: WebSocket,
        client: AsyncHAClient,
        settings: FrontSettings,
        check: Callable[[str], None],
        counts: Counter[str],
    ) -> None:
        self._socket = socket
        self._client = client
        self._settings = settings
        self._check = check
        self._counts = counts
        self._calls: dict[Id, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve it until it ends."""
        offered = self._socket.scope.get("subprotocols", [])
        await self._socket.accept(PROTOCOL if PROTOCOL in offered else None)
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await self._take(message.get("text") or message.get("bytes") or b"")
        finally:
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _take(self, text: str | bytes) -> None:
        try:
            order = _decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            await self._fail(_id_in(text), FrontError("bad-request", f"the message is no order: {error}"))
            return
        if order.cancel:
            if (call := self._calls.get(order.id)) is not None:
                call.cancel()
            return
        try:
            frame, timeout_s = self._judge(order)
        except (FrontError, BstarError) as error:
            await self._fail(order.id, error)
            return
        task = asyncio.create_task(self._carry_out(order, frame, timeout_s))
        self._calls[order.id] = task
        task.add_done_callback(lambda _: self._calls.pop(order.id, None))

    def _judge(self, order: _Order) -> tuple[bytes, float]:
        """The body and the deadline of a call that may begin."""
        if not order.call:
            raise FrontError("bad-request", "the message names no service: call is missing")
        if order.id in self._calls:
            raise FrontError("bad-request", "a call with this id is under way")
        most = self._settings.socket_calls_max
        if len(self._calls) >= most:
            raise FrontError("busy", f"{most} calls of this socket are under way: wait for replies first")
        if order.stream and order.key is not None:
            raise FrontError("bad-request", "a stream has no key")
        timeout_s = self._settings.timeout_s if order.timeout is None else order.timeout
        if not 0 < timeout_s <= self._settings.timeout_max_s:
            bound = f"above 0, {self._settings.timeout_max_s:g} at most"
            raise FrontError("bad-request", f"timeout is a number of seconds, {bound}, not {timeout_s:g}")
        self._check(order.call)
        frame = frame_of(order.body)
        if len(frame) > self._settings.body_bytes_max:
            text = f"a body has at most {self._settings.body_bytes_max} bytes here"
            raise FrontError("too-large", text)
        return frame, timeout_s

    async def _carry_out(self, order: _Order, frame: bytes, timeout_s: float) -> None:
        try:
            async with aclosing(self._replies(order, frame, timeout_s)) as replies:
                async for reply in replies:
                    frames = [json_frame(each) for each in reply.frames]
                    await self._send({"id": order.id, "frames": frames, "final": reply.is_final})
            self._counts["ok"] += 1
        except asyncio.CancelledError:
            self._counts["gone"] += 1
            raise
        except BstarError as error:
            await self._fail(order.id, error)

    async def _replies(self, order: _Order, frame: bytes, timeout_s: float) -> AsyncGenerator[Reply, None]:
        assert order.call is not None
        headers = handed_on({name.lower(): text for name, text in order.headers.items()})
        if order.stream:
            stream = self._client.stream(
                order.call, frame, timeout=timeout_s, idempotent=order.idempotent, headers=headers
            )
            async with aclosing(stream):
                async for reply in stream:
                    yield reply
        else:
            yield await self._client.request(
                order.call,
                frame,
                timeout=timeout_s,
                idempotent=order.idempotent,
                key=order.key,
                headers=headers,
            )

    async def _fail(self, order_id: Id | None, error: BstarError | FrontError) -> None:
        body = body_of(error)
        self._counts[body["code"]] += 1
        await self._send({"id": order_id, "error": {**body, "status": STATUSES[body["code"]]}})

    async def _send(self, message: object) -> None:
        try:
            await self._socket.send_text(msgspec.json.encode(message).decode())
        except WebSocketDisconnect:
            return  # the next message that ``run`` receives says so


def _id_in(text: str | bytes) -> Id | None:
    """The id of a message that is no order, if it has one."""
    try:
        found = json.loads(text)
        order_id = found.get("id") if isinstance(found, dict) else None
        msgspec.json.encode(order_id)  # half of a surrogate pair cannot be sent back
    except (ValueError, RecursionError):
        return None
    return order_id if isinstance(order_id, int | str) else None
