"""The client for asyncio: ``HAClient``'s methods, awaited. Nothing here waits but in ``await``."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any, Literal, Self, Unpack, overload

from bstar.errors import ClosedError, ForkedError, LocalProtocolError
from bstar.wire.mmi import OK, Service
from bstar_client.aio.client_loop import ClientLoop
from bstar_client.aio.feeds import Answer, Feed, Source, reply_of
from bstar_client.bodies import to_name
from bstar_client.client import Client
from bstar_client.core.calls import Ask, Body, Call, CallFailed, Reply
from bstar_client.core.window import Window
from bstar_client.requests import DEFAULT, MapOptions, Timeout


class AsyncHAClient(Client):
    """The client for asyncio; the arguments are ``HAClient``'s and mean the same.

        async with AsyncHAClient(["tcp://node1:5555", "tcp://node2:5555"]) as client:
            reply = await client.request("echo", b"hello")

    It belongs to the event loop and thread in which it is first used. Use it in ``async with``, or call
    ``close`` at the end. Any number of tasks may share it. A cancelled task, also one that
    ``asyncio.timeout`` cancels, gives its request up; the worker still executes it.

    ``outstanding_max`` bounds the requests without a reply. At the bound ``request`` waits until one ends,
    where HAClient raises BusyError.
    """

    def _init_shell(self) -> None:
        self._loop: ClientLoop | None = None
        self._is_closed = False

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
    ) -> Reply:
        """As ``HAClient.request``."""
        loop = self._open()
        answer = Answer(loop.event_loop)
        call = self._requests.call(Ask(body, key, timeout, service, urgent), answer, idempotent=idempotent)
        await loop.begin(call)
        try:
            return reply_of(await answer.future)
        finally:
            loop.end(call)

    async def stream(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        urgent: bool = False,
    ) -> AsyncGenerator[Reply, None]:
        """As ``HAClient.stream``. To leave it early, close the iterator (``contextlib.aclosing``)."""
        loop = self._open()
        feed = Feed(loop.event_loop)
        ask = Ask(body, None, timeout, service, urgent)
        call = self._requests.call(ask, feed, idempotent=idempotent, is_stream=True)
        await loop.begin(call)
        try:
            while True:
                reply = await feed.reply()
                yield reply
                if reply.is_final:
                    return
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

    async def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        timeout: Timeout,
        idempotent: bool,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        loop = self._open()
        feed = Feed(loop.event_loop)
        source = Source(bodies, feed.wake)
        make_call = self._requests.call_maker(service, timeout, idempotent, feed)
        in_flight = window.in_flight
        try:
            while True:
                for _ in range(window.room):
                    if (loop.is_full and in_flight) or not (batch := source.pull()):
                        break
                    for call in window.begin(batch, make_call):
                        try:
                            await loop.begin(call)
                        except BaseException:
                            del in_flight[call.index]
                            raise
                window.is_exhausted = source.is_exhausted
                if window.is_over:
                    return
                if in_flight or not window.has_outcomes:
                    await feed.wait()
                count = len(in_flight)
                try:
                    window.take(feed.take())
                finally:
                    loop.free(count - len(in_flight))
                for outcome in window.ready():
                    yield outcome
        finally:
            await source.close()
            for call in in_flight.values():
                loop.end(call)

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
        finally:
            for call in begun:
                loop.end(call)
        return self._requests.read_services(calls, replies)

    # --- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """As ``HAClient.close``."""
        self._is_closed = True
        if self._loop is not None and self._pid == os.getpid():
            await self._loop.close()

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- in the event loop --------------------------------------------------------------------------------

    def _open(self) -> ClientLoop:
        """The loop; the first call makes it. Raises an error if the client cannot be used here."""
        if self._pid != os.getpid():
            raise ForkedError("this client was made before fork(): make a new AsyncHAClient in the child")
        if self._is_closed:
            raise ClosedError("the client is closed")
        event_loop = asyncio.get_running_loop()
        if self._loop is None:
            self._is_closed = True  # until all of it is open
            self._loop = ClientLoop(self, self._settings, self._core, self._delivery)
            self._is_closed = False
        elif self._loop.event_loop is not event_loop:
            raise LocalProtocolError("the client belongs to another event loop: make one for each loop")
        return self._loop
