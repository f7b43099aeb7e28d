"""The client for asyncio: ``HAClient``'s methods, awaited. Nothing here waits but in ``await``."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from typing import Any, Literal, Unpack, overload

from bstar.errors import NoActiveNodeError
from bstar.wire.mmi import OK, Service
from bstar_client.aio.caller import AsyncCaller
from bstar_client.aio.durable import DurableCalls
from bstar_client.aio.feeds import Answer, Feed, reply_of
from bstar_client.arguments.bodies import to_name
from bstar_client.calls.requests import DEFAULT, MapOptions, Timeout
from bstar_client.core.calls import Ask, Body, Call, CallFailed, Reply
from bstar_client.core.window import Window


class AsyncHAClient(AsyncCaller, DurableCalls):
    """The client for asyncio; the arguments are ``HAClient``'s and mean the same.

        async with AsyncHAClient(["tcp://node1:5555", "tcp://node2:5555"]) as client:
            reply = await client.request("echo", b"hello")

    It belongs to the event loop and thread in which it is first used. Use it in ``async with``, or call
    ``close`` at the end. Any number of tasks may share it. A cancelled task, also one that
    ``asyncio.timeout`` cancels, gives its request up; the worker still executes it.

    ``outstanding_max`` bounds the requests without a reply. At the bound ``request`` waits until one ends,
    where HAClient raises BusyError.
    """

    # --- calls --------------------------------------------------------------------------------------------

    async def request(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        key: bytes | str | None = None,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """As ``HAClient.request``."""
        return await self._ask(Ask(body, key, timeout, service, urgent, headers), idempotent=idempotent)

    async def _ask(self, ask: Ask, *, idempotent: bool = True, pair: int | None = None) -> Reply:
        loop = self._open()
        answer = Answer(loop.event_loop)
        return await self._reply_to(
            loop, self._requests.call(ask, answer, idempotent=idempotent, pair=pair), answer
        )

    async def stream(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        urgent: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Reply, None]:
        """As ``HAClient.stream``. To leave it early, close the iterator (``contextlib.aclosing``)."""
        loop = self._open()
        feed = Feed(loop.event_loop)
        ask = Ask(body, None, timeout, service, urgent, headers)
        call = self._requests.call(ask, feed, idempotent=idempotent, is_stream=True)
        await loop.begin(call)
        try:
            while True:
                reply = await feed.reply()
                yield reply
                if reply.is_final:
                    return
        except NoActiveNodeError as error:
            await self._explain(error)
            raise
        finally:
            loop.end(call)

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        errors: Literal["raise"] = ...,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Reply, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        errors: Literal["return"],
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Reply | CallFailed, None]: ...

    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int = 512,
        ordered: bool = True,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        errors: Literal["raise", "return"] = "raise",
    ) -> AsyncGenerator[Any, None]:  # Any: the overloads tell it
        """As ``HAClient.map``. ``bodies`` may also be an async iterable, read while replies are awaited.

        To leave it early, close the iterator (``contextlib.aclosing``), or what is in flight is given up only
        when the iterator is collected.
        """
        sliding = self._new_window(bodies, window, ordered, errors)
        return self._map(sliding, service, bodies, timeout, idempotent)

    def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        timeout: Timeout,
        idempotent: bool,
        pair: int | None = None,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        def maker(feed: Feed) -> Callable[[Body | Ask, int], Call]:
            return self._requests.call_maker(service, timeout, idempotent, feed, pair)

        return self._outcomes_of(window, bodies, maker)

    async def discover(self, service: str | bytes, *, timeout: Timeout = DEFAULT) -> bool:
        """As ``HAClient.discover``."""
        return (await self.request(Service.SERVICE.value, to_name(service), timeout=timeout)).body == OK

    async def services(self, *, timeout: Timeout = DEFAULT) -> list[dict[str, object]]:
        """As ``HAClient.services``."""
        loop = self._open()
        calls = self._requests.services_calls(timeout, lambda: Answer(loop.event_loop))
        answers: list[Answer] = [call.sink for call in calls]
        begun: list[Call] = []
        try:
            for call in calls:
                await loop.begin(call)
                begun.append(call)
            replies = [reply_of(await answer.future) for answer in answers]
        except NoActiveNodeError as error:
            await self._explain(error)
            raise
        finally:
            for call in begun:
                loop.end(call)
        return self._requests.read_services(calls, replies)
