"""The paths of the HTTP front, and what each does with the client.

    POST   /call/SERVICE       a call; with Accept: text/event-stream its PARTIALs as events
    POST   /submit/SERVICE     a durable request; its id
    GET    /result/ID?wait=S   the answer of a durable request
    DELETE /result/ID          the store forgets it, whatever its state
    GET    /socket             a WebSocket that carries many calls at once
    GET    /openapi.json       the services, with their schemas where they have one
    GET    /healthz, /readyz   this process lives; it would serve a call

A caller that goes away gives its call up. The front of a passive node refuses with its peer's address: its
caller then asks there. It does so only while it knows that the peer serves. Otherwise it takes the call,
which makes its node active if the peer is gone.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from bstar.errors import BstarError
from bstar_client.aio.client import AsyncHAClient
from bstar_client.arguments.json_frames import json_frame
from bstar_client.asgi.access import Access, FindPrincipal
from bstar_client.asgi.asked import Headers, Options, fields_of, options_of, seconds_of, to_seconds
from bstar_client.asgi.caller import Caller
from bstar_client.asgi.conversation import Conversation
from bstar_client.asgi.failures import STATUSES, FrontError, body_of, json_response, response_of
from bstar_client.asgi.openapi import document_of
from bstar_client.asgi.settings import FrontSettings
from bstar_client.calls.durable_answers import Result
from bstar_client.core.calls import Reply

T = TypeVar("T")

_EVENTS: Final = "text/event-stream"
_JSON: Final = "application/json"
_JSON_TYPE: Final = (b"content-type", b"application/json")
_BYTES_TYPE: Final = (b"content-type", b"application/octet-stream")
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
_CALL: Final = "/call/"
# Nobody reads it: the caller has gone.
_CLIENT_CLOSED_REQUEST: Final = 499
# What a browser may read of a response.
_EXPOSED: Final = (
    "Bstar-Attempts",
    "Bstar-Frames",
    "Bstar-Partials",
    "Bstar-Peer",
    "Retry-After",
    "Location",
)


class HttpFront:
    """The ASGI application. ``find_principal`` maps a token to its principal; None: everybody may call.

    ``counts``: how requests ended, for metrics: ``ok``, ``gone`` if the caller went away, or their code.
    """

    def __init__(
        self,
        client: AsyncHAClient,
        settings: FrontSettings | None = None,
        *,
        find_principal: FindPrincipal | None = None,
    ) -> None:
        self._client = client
        self._settings = settings or FrontSettings()
        self._access = Access(find_principal, self._settings.origins)
        # All of them from the beginning: Prometheus sees no increase in a series that begins.
        self.counts = Counter(dict.fromkeys(("ok", "gone", *STATUSES), 0))
        self._open = {"streams": 0, "sockets": 0}
        self._app = Starlette(
            routes=[
                Route("/call/{service:path}", self._call, methods=["POST"]),
                Route("/submit/{service:path}", self._submit, methods=["POST"]),
                Route("/result/{id}", self._result, methods=["GET"]),
                Route("/result/{id}", self._close_result, methods=["DELETE"]),
                Route("/openapi.json", self._openapi, methods=["GET"]),
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
                WebSocketRoute("/socket", self._socket),
            ],
            middleware=self._middleware(),
            exception_handlers={
                FrontError: self._refused,
                BstarError: self._refused,
                HTTPException: self._unknown_path,
            },
        )

    def _middleware(self) -> list[Middleware]:
        origins = self._settings.origins
        if not origins:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=_EXPOSED,
            )
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one WebSocket."""
        if self._is_call(scope):
            # Most requests are calls. The framework's layers cost a call a tenth of its CPU time.
            request = Request(scope, receive)
            try:
                response = await self._call(request)
            except (FrontError, BstarError) as error:
                response = await self._refused(request, error)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def levels(self) -> dict[str, int]:
        """What it has now: calls in flight, open streams and WebSockets."""
        return {"calls": self._client.figures().in_flight, **self._open}

    def _is_call(self, scope: Scope) -> bool:
        """True for a call that needs no answer to a browser's questions of origins."""
        if scope["type"] != "http" or scope["method"] != "POST" or self._settings.origins:
            return False
        path: str = scope["path"]
        if not path.startswith(_CALL):
            return False
        scope["path_params"] = {"service": path.removeprefix(_CALL)}
        return True

    # --- calls ----------------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Response:
        headers = fields_of(request.scope)
        service = self._admit(request, headers)
        with self._caller(request) as caller:
            options, body = await self._read(caller, headers)
            if _EVENTS in headers.get("accept", ""):
                return await self._stream(caller, service, body, options)
            call = self._client.request(
                service,
                body,
                timeout=options.timeout,
                idempotent=options.idempotent,
                key=options.key,
                headers=options.headers,
            )
            reply = await caller.outcome(call)
        return _GONE if reply is None else _Frames(reply, headers)

    async def _stream(self, caller: Caller, service: str, body: bytes, options: Options) -> Response:
        if options.key is not None:
            text = "a stream has no key: leave Idempotency-Key out, or do not accept text/event-stream"
            raise FrontError("bad-request", text)
        replies = self._client.stream(
            service, body, timeout=options.timeout, idempotent=options.idempotent, headers=options.headers
        )
        try:
            # What fails before the first reply has a status of its own.
            first = await caller.outcome(anext(replies))
        except BaseException:
            await replies.aclose()
            raise
        if first is None:
            await replies.aclose()
            return _GONE
        events = self._events(first, replies)
        return _Events(events, media_type=_EVENTS, headers={"Cache-Control": "no-store"})

    async def _events(
        self, first: Reply, replies: AsyncGenerator[Reply, None]
    ) -> AsyncGenerator[bytes, None]:
        """The replies of a stream as server-sent events. What breaks it is the last of them."""
        self._open["streams"] += 1
        try:
            async with aclosing(replies):
                yield _event_of(first)
                try:
                    async for reply in replies:
                        yield _event_of(reply)
                except BstarError as error:
                    yield _event("error", self._counted(error))
        finally:
            self._open["streams"] -= 1

    async def _socket(self, socket: WebSocket) -> None:
        headers = fields_of(socket.scope)

        def check(service: str) -> None:
            # Anew for each call: a token that was withdrawn has no more of them.
            self._access.check_call(self._access.principal(headers), service)
            self._check_serves()

        try:
            self._access.principal(headers)
        except FrontError as error:
            self._counted(error)
            await socket.send_denial_response(response_of(error))
            return
        self._open["sockets"] += 1
        try:
            await Conversation(socket, self._client, self._settings, check, self.counts).run()
        finally:
            self._open["sockets"] -= 1

    # --- durable requests -----------------------------------------------------------------------------------

    async def _submit(self, request: Request) -> Response:
        headers = fields_of(request.scope)
        service = self._admit(request, headers)
        with self._caller(request) as caller:
            options, body = await self._read(caller, headers)
            call = self._client.submit(
                service,
                body,
                key=options.key,
                delay=seconds_of(headers, "bstar-delay"),
                expires=seconds_of(headers, "bstar-expires"),
                priority=_priority(headers.get("bstar-priority", "0")),
                headers=options.headers,
                group=headers.get("bstar-group"),
                timeout=options.timeout,
            )
            request_id = await caller.outcome(call)
        if request_id is None:
            return _GONE
        return json_response({"id": request_id}, HTTPStatus.ACCEPTED, {"Location": f"/result/{request_id}"})

    async def _result(self, request: Request) -> Response:
        request_id, most = request.path_params["id"], self._settings.timeout_max_s
        headers = fields_of(request.scope)
        wait_s = to_seconds(request.query_params.get("wait", "0"), "wait", most, may_be_zero=True)
        timeout_s = await self._admit_result(headers, request_id)
        call = self._client.result(request_id, wait=wait_s, timeout=timeout_s)
        # One None for a caller that has gone, and one for a request that is pending.
        with self._caller(request) as caller:
            found = await caller.outcome(_boxed(call))
        if found is None:
            return _GONE
        if (result := found[0]) is None:
            return json_response({"id": request_id, "state": "pending"}, HTTPStatus.ACCEPTED)
        return _Frames(result, headers)

    async def _close_result(self, request: Request) -> Response:
        request_id = request.path_params["id"]
        timeout_s = await self._admit_result(fields_of(request.scope), request_id)
        with self._caller(request) as caller:
            status = await caller.outcome(self._client.close_result(request_id, timeout=timeout_s))
        return _GONE if status is None else json_response({"id": request_id, "state": status.state})

    async def _admit_result(self, headers: Headers, request_id: str) -> float:
        """The time for each question. A caller sees the requests of services that it may call."""
        principal = self._access.principal(headers)
        self._check_serves()
        timeout_s = options_of(headers, self._settings.timeout_s, self._settings.timeout_max_s).timeout
        if principal is not None:
            status = await self._client.status_of(request_id, timeout=timeout_s)
            if status.service:
                self._access.check_call(principal, status.service)
        return timeout_s

    # --- what is known --------------------------------------------------------------------------------------

    async def _openapi(self, request: Request) -> Response:
        principal = self._access.principal(fields_of(request.scope))
        self._check_serves()
        made = document_of(self._client, principal, self._settings, has_tokens=not self._access.is_open)
        with self._caller(request) as caller:
            document = await caller.outcome(made)
        return _GONE if document is None else json_response(document)

    async def _healthz(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        # A refusal is not raised: it is a probe's, and not counted.
        try:
            self._check_serves()
        except FrontError as error:
            return response_of(error)
        if all(active is None for active in self._client.actives.values()):
            return response_of(FrontError("no-active-node", "no node is known to serve"))
        return json_response({"status": "ok"})

    # --- all of them ----------------------------------------------------------------------------------------

    def _admit(self, request: Request, headers: Headers) -> str:
        """The service that the caller asks for. FrontError if it may not, or if the peer serves."""
        service: str = request.path_params["service"]
        self._access.check_call(self._access.principal(headers), service)
        self._check_serves()
        return service

    def _check_serves(self) -> None:
        settings = self._settings
        if settings.local is None:
            return
        active = self._client.active
        if active is not None and active != settings.local:
            where = f"ask its peer, {settings.peer}" if settings.peer else "ask its peer"
            headers = {"Bstar-Peer": settings.peer} if settings.peer else {}
            text = f"this node is passive: {where}"
            raise FrontError("passive", text, headers=headers, peer=settings.peer)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, BstarError | FrontError)
        self._counted(error)
        return response_of(error)

    def _counted(self, error: BstarError | FrontError) -> dict[str, Any]:
        """The body of an error, which is counted."""
        body = body_of(error)
        self.counts[body["code"]] += 1
        return body

    async def _unknown_path(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        is_method = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
        code = "method-not-allowed" if is_method else "not-found"
        text = f"{request.method} {request.url.path}: {error.detail}; docs/http.md lists the paths"
        headers: Mapping[str, str] = error.headers or {}
        return await self._refused(request, FrontError(code, text, headers=headers))

    def _caller(self, request: Request) -> Caller:
        return Caller(request.receive, self._settings.slow_s, self.counts)

    async def _read(self, caller: Caller, headers: Headers) -> tuple[Options, bytes]:
        settings = self._settings
        options = options_of(headers, settings.timeout_s, settings.timeout_max_s)
        return options, await caller.body(headers, settings.body_bytes_max)


# --- replies ------------------------------------------------------------------------------------------------


class _Events(StreamingResponse):
    """A stream of events. Its call is given up when its reader goes away."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]  # it is ``_events``
            await super().__call__(scope, receive, send)


def _event_of(reply: Reply) -> bytes:
    name = "final" if reply.is_final else "partial"
    return _event(name, {"frames": [json_frame(frame) for frame in reply.frames], "index": reply.index})


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


class _Frames(Response):
    """The frames of a reply, one behind the other. The type is never one that a browser runs.

    Most responses are this one: its head is made at once.
    """

    def __init__(self, reply: Reply | Result, asked: Headers) -> None:
        frames, kind = reply.frames, asked.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind == _JSON or _JSON in asked.get("accept", "")
        self.status_code, self.background = HTTPStatus.OK, None
        self.body = frames[0] if len(frames) == 1 else b"".join(frames)
        self.raw_headers = [
            (b"bstar-attempts", b"%d" % reply.attempts),
            (b"content-length", b"%d" % len(self.body)),
            _JSON_TYPE if is_json else _BYTES_TYPE,
            _NOSNIFF,
        ]
        if len(frames) > 1:
            self.raw_headers.append((b"bstar-frames", b",".join(b"%d" % len(frame) for frame in frames)))
        if isinstance(reply, Reply) and reply.partials:
            self.raw_headers.append((b"bstar-partials", b"%d" % len(reply.partials)))


def _priority(text: str) -> int:
    if len(text) == 1 and text in "0123456789":
        return int(text)
    raise FrontError("bad-request", f"bstar-priority is 0 to 9, not {text!r:.40}")


# --- callers that go away -----------------------------------------------------------------------------------

_GONE: Final = Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _boxed(call: Awaitable[T]) -> tuple[T]:
    return (await call,)
