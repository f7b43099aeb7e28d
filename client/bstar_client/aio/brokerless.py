"""The clients of servers without a broker, for asyncio: the same methods, awaited."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any, Literal, overload

from bstar_client.aio.caller import AsyncCaller
from bstar_client.aio.feeds import Answer
from bstar_client.calls.brokerless import Brokerless, FreelanceBase, LazyPirateBase, StarBase
from bstar_client.calls.requests import DEFAULT, Timeout
from bstar_client.core.calls import Ask, Body, CallFailed, Reply


class AsyncBrokerlessCalls(AsyncCaller, Brokerless):
    """The calls of every client without a broker."""

    async def request(self, body: Body, *, timeout: Timeout = DEFAULT) -> Reply:
        """As ``LazyPirateClient.request``."""
        loop = self._open()
        answer = Answer(loop.event_loop)
        return await self._reply_to(loop, self._call(body, timeout, answer), answer)

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
        """As ``LazyPirateClient.map``. ``bodies`` may also be an async iterable."""
        sliding = self._new_window(bodies, self._window if window is None else window, ordered, errors)
        return self._outcomes_of(sliding, bodies, self._maker(timeout))


class AsyncLazyPirateClient(AsyncBrokerlessCalls, LazyPirateBase):
    """``LazyPirateClient`` for asyncio. It belongs to the event loop in which it is first used."""


class AsyncStarClient(AsyncBrokerlessCalls, StarBase):
    """``StarClient`` for asyncio. It belongs to the event loop in which it is first used."""


class AsyncFreelance(AsyncBrokerlessCalls, FreelanceBase):
    """``Freelance`` for asyncio. It belongs to the event loop in which it is first used."""
