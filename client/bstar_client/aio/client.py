"""The client for asyncio."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from bstar.wire.mmi import OK, Service
from bstar_client.aio.caller import AsyncCaller
from bstar_client.aio.durable import DurableCalls
from bstar_client.aio.futures import CallFuture
from bstar_client.arguments.bodies import to_name
from bstar_client.arguments.checks import check_flag
from bstar_client.arguments.codecs import NO_REPLY, Codec, T, read_frames, read_outcome, reply_of
from bstar_client.calls.requests import (
    DEFAULT,
    AskAllOptions,
    MapOptions,
    RequestOptions,
    StreamOptions,
    Timeout,
    read_names,
)
from bstar_client.core.calls import Ask, Asked, Body, Call, CallFailed, OnProgress, Reply, Value
from bstar_client.core.window import Window

if TYPE_CHECKING:  # most programs draw none
    from bstar_client.calls.bar import MapBar


class AsyncHAClient(AsyncCaller, DurableCalls):
    """A client of a pair of brokers, of one broker, or of several pairs.

        async with AsyncHAClient(["tcp://node1:5555", "tcp://node2:5555"]) as client:
            reply = await client.request("echo", b"hello")

    ``endpoints``: those of a pair, the primary first. Without them the client takes what the variables
    BSTAR_ENDPOINTS (or BSTAR_CLIENT_CONFIG), BSTAR_KEY and BSTAR_SERVER_KEYS say, otherwise the pair of this
    machine, as the ``bstar`` command does. For several pairs: a list of such lists, a mapping from
    the pairs' names to such lists, or a Fleet. Each service then belongs to one pair, by a hash
    (``bstar.fleet``) or by ``pins={"billing": "PAIR"}``. A pair that is down affects its own services only
    (docs/fleet.md).

    ``timeout``: the default deadline of a call in seconds. It covers connecting, failing over and waiting;
    None waits for ever. ``dialect``: ``"native"``, or ``"mdp01"`` or ``"mdp02"`` for any Majordomo broker,
    one request at a time.

    ``on_event`` gets each event of ``bstar_client.core.events``: in the event loop, or with threads in
    the client's own one or in one that waits for a reply. It must not wait for the client. The client logs
    what it raises.

    Any number of threads, or of tasks of one event loop, may share one client. A client does not survive
    ``fork``: in the child every call raises ForkedError. Make a new client there.

    asyncio: it belongs to the event loop and thread in which it is first used. Use it in ``async with``, or
    call ``close`` at the end. A cancelled task, also one that ``asyncio.timeout`` cancels, gives its request
    up; the worker still executes it. At the bound ``outstanding_max`` ``request`` waits until a request ends,
    where HAClient raises BusyError.

    ``outstanding_max`` bounds the requests without a reply at each pair. ``partials_max`` bounds the PARTIALs
    that wait in one stream or that belong to one reply: there is no flow control between worker and client.
    If the reader of a stream is slower than its worker and the bound is reached, the stream ends with
    StreamInterruptedError.

    ``ping_interval_s``: how often the client pings the node that it follows while that node sends nothing.
    ``silence_limit_s``: the silence after which the node counts as lost. None: the nodes tell their timing.
    ``attempt_timeout_s``, for plain MDP: the silence after which the client sends a request again.
    ``settle_delay_s``, for plain MDP: the pause before it asks the other node, at least the pair's failover
    timeout. ``link``: socket options. ``security``: its key, and the keys of the nodes (``bstar.security``).
    ``context``: a ZeroMQ context to share; the client does not terminate it.

    ``journal``: a directory, or JournalSettings. The client records there how each call ended and which node
    it followed (docs/journal.md). A journal never makes a call wait or fail.
    """

    # --- calls --------------------------------------------------------------------------------------------

    @overload
    async def request(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: None = None,
        **options: Unpack[RequestOptions],
    ) -> Reply: ...

    @overload
    async def request(
        self, service: str | bytes, body: Body | Value, *, reply: type[T], **options: Unpack[RequestOptions]
    ) -> T: ...

    async def request(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: type[Any] | None = None,
        codec: Codec | None = None,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        key: bytes | str | None = None,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:  # Any: the overloads tell it
        """Send a request and wait for its reply.

        ``body``: bytes, or a sequence of bytes for several frames; or a value that is encoded: a msgspec
        struct, a dataclass, a dict or a pydantic model. ``reply``: the type that the reply is decoded as;
        without it the Reply is returned. ``codec``: ``"json"`` or ``"msgpack"``, of body and reply; JSON for
        values. ``timeout``: in seconds, None for no limit. ``idempotent=False``: execute it at most once. If
        a worker may have begun it and its reply is lost, the client does not send it again and raises
        OutcomeUnknownError.

        ``key``: the caller's own name for this request (text is UTF-8). Requests to a service with the same
        key are one request: while it is in flight, all callers get its one reply. A worker that keeps its
        replies (``Worker(dedupe=…)``) also gives it to later callers. A key belongs to one body and one value
        of ``idempotent``. A broker or worker that sees two of them rejects the second.

        ``urgent``: it overtakes requests in the broker's queue that are not urgent, but not those that
        workers hold. After 15 urgent requests in a row, one that is not urgent goes first.

        ``headers``: names and texts beside the body; the handler reads ``request.headers``, however often the
        request is sent or redelivered. 64 at most, 8,000 bytes in all; names are visible ASCII. A worker of
        another dialect gets the body alone. Calls that share a request by ``key`` send the headers of one.

        ``on_progress`` is called with each Progress that the handler reports, ten a second at most. Where and
        how: as ``on_event``. After a failover the next execution reports again from its beginning. Of calls
        that share a request by ``key`` the one that is sent decides whether progress comes.

        Raises BusyError, RejectedError (not executed), NoActiveNodeError (deadline, not executed),
        CallTimeoutError (deadline), DeclinedError (the handler declined it), HandlerError (the handler
        failed, or its reply is no ``reply``), OutcomeUnknownError, ClosedError, ForkedError.
        """
        ask = Ask(body, key, timeout, service, urgent, headers, codec)
        answer = await self._ask(ask, idempotent=idempotent, on_progress=on_progress)
        return answer if reply is None else read_frames(answer.frames, reply, codec, reply_of(service))

    @overload
    def begin(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: None = None,
        **options: Unpack[RequestOptions],
    ) -> CallFuture[Reply]: ...

    @overload
    def begin(
        self, service: str | bytes, body: Body | Value, *, reply: type[T], **options: Unpack[RequestOptions]
    ) -> CallFuture[T]: ...

    def begin(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: type[Any] | None = None,
        codec: Codec | None = None,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        key: bytes | str | None = None,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallFuture[Any]:
        """Send a request and return at once: a ``concurrent.futures.Future`` of its reply.

        asyncio: It is an ``asyncio.Task``, which the caller keeps.

        ``result()`` is what ``request`` returns, or raises what it raises. ``cancel()`` gives the call up and
        cancels the request, also at its worker. The arguments are those of ``request``.
        """
        ask = Ask(body, key, timeout, service, urgent, headers, codec)

        def read(answer: Reply) -> Any:
            return answer if reply is None else read_frames(answer.frames, reply, codec, reply_of(service))

        return self._start(
            lambda sink: self._requests.call(ask, sink, idempotent=idempotent, on_progress=on_progress), read
        )

    async def _ask(
        self,
        ask: Ask,
        *,
        idempotent: bool = True,
        pair: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply:
        sink = self._sink()
        call = self._requests.call(ask, sink, idempotent=idempotent, pair=pair, on_progress=on_progress)
        return await self._reply_to(call, sink)

    @overload
    def stream(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncGenerator[Reply, None]: ...

    @overload
    def stream(
        self, service: str | bytes, body: Body | Value, *, reply: type[T], **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[T, None]: ...

    def stream(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: type[Any] | None = None,
        codec: Codec | None = None,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[Any, None]:  # Any: the overloads tell it
        """Send a request and yield its PARTIALs as they come, then the FINAL (``is_final``).

        It is sent at the call; with asyncio, at the first iteration.

        A stream that breaks after its first PARTIAL is not sent again: it ends with StreamInterruptedError.
        If the caller leaves the loop early, the request is cancelled, also at its worker. ``body``,
        ``codec``, ``timeout``, ``idempotent``, ``urgent``, ``headers`` and ``on_progress`` are those of
        ``request``. ``reply``: the type that each part is decoded as, and the FINAL unless it is empty.

        asyncio: to leave it early, close the iterator (``contextlib.aclosing``).
        """
        ask = Ask(body, None, timeout, service, urgent, headers, codec)
        replies = self._replies_of(
            lambda sink: self._requests.call(
                ask, sink, idempotent=idempotent, is_stream=True, on_progress=on_progress
            )
        )
        return replies if reply is None else self._parts_of(replies, reply, codec, reply_of(service))

    async def _parts_of(
        self, replies: AsyncGenerator[Reply, None], kind: type[T], codec: Codec | None, what: str
    ) -> AsyncGenerator[T, None]:
        async with aclosing(replies):
            async for reply in replies:
                if not reply.is_final or reply.frames != NO_REPLY:
                    yield read_frames(reply.frames, kind, codec, what)

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        *,
        reply: None = None,
        errors: Literal["raise"] = ...,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Reply, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        *,
        reply: None = None,
        errors: Literal["return"],
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Reply | CallFailed, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        *,
        reply: type[T],
        errors: Literal["raise"] = ...,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[T, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        *,
        reply: type[T],
        errors: Literal["return"],
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[T | CallFailed, None]: ...

    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        *,
        reply: type[Any] | None = None,
        codec: Codec | None = None,
        window: int = 512,
        ordered: bool = True,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        errors: Literal["raise", "return"] = "raise",
        progress: bool = False,
    ) -> AsyncGenerator[Any, None]:  # Any: the overloads tell it
        """Send a request for each body, ``window`` of them at a time, and yield the replies.

        While the broker says BUSY, fewer are in flight. ``Reply.index`` is the body's position. With
        ``ordered`` the replies come in the order of the bodies, and a reply that waits for an earlier one
        counts against the window. ``timeout`` is each request's own deadline, from the moment it is sent;
        ``idempotent``, ``reply`` and ``codec`` are as in ``request``. ``map`` reads ``bodies`` as the window
        moves. An ``Ask`` is a body with a key, urgency, headers, a timeout, a service or a codec of its own.

        ``errors="raise"``: ``map`` raises the first failure, with the body's position in a note, and gives up
        all requests in flight. ``errors="return"``: ``map`` yields a CallFailed for a failed call and goes
        on. It raises only what concerns no single call (ClosedError, a body of a wrong type).

        ``progress``: draw a bar on standard error that counts the outcomes, if that is a terminal; with Rich
        if it is installed, otherwise as a line. The total is the length of ``bodies``, if it has one.

        asyncio: ``bodies`` may also be an async iterable, read while replies are awaited. To leave the
        iterator early, close it (``contextlib.aclosing``), or what is in flight is given up only when it is
        collected.
        """
        self._check()
        check_flag(progress, "progress")
        sliding = self._new_window(bodies, window, ordered, errors)
        outcomes = self._map(sliding, service, bodies, timeout, idempotent, codec=codec)
        if progress:
            from bstar_client.calls.bar import MapBar  # noqa: PLC0415 - most programs draw none

            outcomes = self._counted(outcomes, MapBar(service, bodies))
        if reply is None:
            return outcomes
        return self._values_of(outcomes, reply, codec, reply_of(service), errors)

    async def _counted(
        self, outcomes: AsyncGenerator[Reply | CallFailed, None], bar: "MapBar"
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        bar.begin()
        try:
            async with aclosing(outcomes):
                async for outcome in outcomes:
                    bar.count(outcome)
                    yield outcome
        finally:
            bar.end()

    async def _values_of(
        self,
        outcomes: AsyncGenerator[Reply | CallFailed, None],
        kind: type[T],
        codec: Codec | None,
        what: str,
        errors: str,
    ) -> AsyncGenerator[T | CallFailed, None]:
        async with aclosing(outcomes):
            async for outcome in outcomes:
                yield read_outcome(outcome, kind, codec, what, errors)

    def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        timeout: Timeout,
        idempotent: bool,
        pair: int | None = None,
        codec: Codec | None = None,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        def maker(sink: Any) -> Callable[[Asked, int], Call]:  # Any: the caller's
            return self._requests.call_maker(service, timeout, idempotent, sink, pair, codec)

        return self._outcomes_of(window, bodies, maker)

    @overload
    async def ask_all(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: None = None,
        **options: Unpack[AskAllOptions],
    ) -> dict[str, Reply | CallFailed]: ...

    @overload
    async def ask_all(
        self, service: str | bytes, body: Body | Value, *, reply: type[T], **options: Unpack[AskAllOptions]
    ) -> dict[str, T | CallFailed]: ...

    async def ask_all(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        reply: type[Any] | None = None,
        codec: Codec | None = None,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:  # Any: the overloads tell it
        """Ask each worker that is registered for the service, and return one outcome for each.

        The keys are the workers' names, as ``bstar workers ls`` shows them, in the order of registration. A
        value is the Reply, or what ``reply`` makes of it; a CallFailed if that worker is dead, stuck, or
        failed. Without a worker it is empty. ``timeout`` is one deadline for all; what each worker is asked
        is a request like any other, but no other worker ever gets it. At a failover the same worker is asked
        by the other node. The arguments are those of ``request``.

        Raises what the question for the workers' names ends with (NoActiveNodeError, BusyError, …), when no
        worker was asked yet.
        """
        ask = self._requests.ask_of_all(Ask(body, None, timeout, service, headers=headers, codec=codec))
        deadline = self._requests.deadline_of(timeout)
        who = Ask(to_name(service), timeout=timeout, service=Service.NAMES.value)
        names = read_names(await self._ask(who))

        def maker(sink: Any) -> Callable[[Asked, int], Call]:  # Any: the caller's
            return self._requests.directed_maker(ask, deadline, sink, idempotent=idempotent)

        window = self._new_window(names, max(1, len(names)), True, "return", name="ask_all")
        outcomes: AsyncGenerator[Any, None] = self._outcomes_of(window, names, maker)
        if reply is not None:
            outcomes = self._values_of(outcomes, reply, codec, reply_of(service), "return")
        answers: dict[str, Any] = {}
        async with aclosing(outcomes):
            async for outcome in outcomes:
                answers[names[len(answers)].decode()] = outcome
        return answers

    async def discover(self, service: str | bytes, *, timeout: Timeout = DEFAULT) -> bool:
        """True if a worker offers the service. A hint: a dead worker counts until it expires (MMI-C-01)."""
        return (await self.request(Service.SERVICE.value, to_name(service), timeout=timeout)).body == OK

    async def services(self, *, timeout: Timeout = DEFAULT) -> list[dict[str, object]]:
        """The services of the active broker: a dict with ``service``, ``workers`` and ``queued`` for each.

        With several pairs, the services of all, each with its ``pair``. The first failure is raised.
        """
        calls, replies = await self._replies_to(partial(self._requests.services_calls, timeout))
        return self._requests.read_services(calls, replies)
