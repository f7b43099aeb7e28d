"""The clients of servers without a broker, for asyncio."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any, Literal, overload

from bstar_client.aio.caller import AsyncCaller
from bstar_client.calls.brokerless import Brokerless, FreelanceBase, LazyPirateBase, StarBase
from bstar_client.calls.requests import DEFAULT, Timeout
from bstar_client.core.calls import Ask, Body, CallFailed, Reply


class AsyncBrokerlessCalls(AsyncCaller, Brokerless):
    """The calls of every client without a broker: those of ``HAClient``, without a service."""

    async def request(self, body: Body, *, timeout: Timeout = DEFAULT) -> Reply:
        """Send a request and wait for its reply.

        ``body``: bytes, or a sequence of bytes for several frames. ``timeout``: the client's, in seconds,
        unless given; the client's class says what it bounds.

        Raises CallTimeoutError (no reply; ``may_have_executed`` says what is known), NoActiveNodeError (no
        server could be asked, so it was not executed), OutcomeUnknownError or ClosedError (the client was
        closed), BusyError (``outstanding_max``), ForkedError.
        """
        sink = self._sink()
        return await self._reply_to(self._call(body, timeout, sink), sink)

    @overload
    def map(
        self,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int | None = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        errors: Literal["raise"] = ...,
    ) -> AsyncGenerator[Reply, None]: ...

    @overload
    def map(
        self,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int | None = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        errors: Literal["return"],
    ) -> AsyncGenerator[Reply | CallFailed, None]: ...

    def map(
        self,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int | None = None,
        ordered: bool = True,
        timeout: Timeout = DEFAULT,
        errors: Literal["raise", "return"] = "raise",
    ) -> AsyncGenerator[Any, None]:  # Any: the overloads tell it
        """Send a request for each body and yield the replies, as ``HAClient.map`` does.

        ``window``: how many requests are under way; 1 where a reply has no number, else 64. Of an ``Ask``
        only ``body`` and ``timeout`` may be set.

        asyncio: ``bodies`` may also be an async iterable.
        """
        self._check()
        sliding = self._new_window(bodies, self._window if window is None else window, ordered, errors)
        return self._outcomes_of(sliding, bodies, self._maker(timeout))


class AsyncLazyPirateClient(AsyncBrokerlessCalls, LazyPirateBase):
    """A client of plain REP or ROUTER servers: it asks, waits, and asks again (zguide chapter 4).

        async with AsyncLazyPirateClient(["tcp://node1:5555"]) as client:
            reply = await client.request(b"hello")

    Frames: request ``[""] [body…]``, reply ``[""] [body…]``. ``timeout``: seconds for one attempt.
    ``attempts``: how often a request is sent at most; each request has them all (LPP-C-06). So a call ends
    after ``timeout * attempts`` seconds at the latest. Of several endpoints each attempt asks the next one,
    and a call begins with the one that answered last. A server that refuses connections is passed over at
    once; a broken connection ends its attempt at once.

    Each attempt has a connection of its own, so a late or second reply reaches no call (LPP-C-02, LPP-C-04).
    The next connection is made as soon as a reply has come. One request is under way at a time; others wait
    their turn. A server may get a request several times, so it must be idempotent (LPP-S-01); ``attempts=1``
    sends it once.

    ``on_event``, ``outstanding_max``, ``link``, ``security`` and ``context`` are those of ``HAClient``.

    asyncio: it belongs to the event loop in which it is first used.
    """


class AsyncStarClient(AsyncBrokerlessCalls, StarBase):
    """A client of your own servers on ``bstar.BinaryStar`` (zguide chapter 4, Binary Star; BST-C-01..04).

        async with AsyncStarClient(["tcp://node1:5001", "tcp://node2:5002"]) as client:
            reply = await client.request(b"hello")

    ``endpoints``: the primary, then the backup. Frames: request ``[""] [body…]``, reply ``[""] [body…]``.
    A call asks the server that answered last, at first the primary. If no reply comes within
    ``attempt_timeout_s``, or the connection breaks, it waits for ``settle_delay_s`` and asks the other one,
    until ``timeout`` has passed; None: without end. Each request to a passive server is a vote. So
    ``settle_delay_s`` must be at least the failover timeout of the servers.

    Each attempt has a connection of its own, so a late or second reply reaches no call. One request is under
    way at a time; others wait their turn. Both servers may execute a request, so it must be idempotent.

    ``on_event``, ``outstanding_max``, ``link``, ``security`` and ``context`` are those of ``HAClient``.

    asyncio: it belongs to the event loop in which it is first used.
    """


class AsyncFreelance(AsyncBrokerlessCalls, FreelanceBase):
    """A client of several servers that know nothing of each other (zguide chapter 4, Freelance; 10/FLP).

        async with AsyncFreelance(["tcp://node1:5555", "tcp://node2:5555"], model=2) as client:
            reply = await client.request(b"hello")

    ``model``: how servers are asked, and in which frames.

    1: one after the other, each at most once; a single server three times. ``timeout`` (1 s) is for one
    attempt. Request and reply ``[""] [body…]``, for any REP. FL1-C-01, FL1-C-02.

    2: all at once, and the first reply wins. ``timeout`` (2.5 s) is for the request. Request and reply
    ``[""] [sequence] [body…]``. Every server executes every request. FL2-C-01..03.

    3: the server that has answered PING for longest; if it is lost, the next one. ``timeout`` (3 s) is for
    the request. Request and reply ``[control] [body…]``. A server's identity must be the endpoint that is
    given here, byte for byte. The client pings a server that it has not heard for ``ping_interval_s``. A
    server is lost if its connection breaks, or after ``server_expiry_s`` without a message. FLP-C-01..03.

    Servers must be idempotent. Models 2 and 3 have any number of requests under way, model 1 one.

    ``on_event``, ``outstanding_max``, ``link``, ``security`` and ``context`` are those of ``HAClient``.

    asyncio: it belongs to the event loop in which it is first used.
    """
