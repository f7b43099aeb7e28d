"""The client for asyncio: ``HAClient``'s methods, awaited.

    async with AsyncHAClient(["tcp://node1:5555", "tcp://node2:5555"]) as client:
        reply = await client.request("echo", b"hello")

It drives the same session (``bstar_client.core``) as ``HAClient``, from the event loop's own thread
(``bstar_client.aio.loop``). Nothing here waits but in ``await``.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from types import TracebackType
from typing import Literal, Self, cast, overload

import zmq

from bstar.errors import BusyError, ClosedError, ConfigurationError, ForkedError, LocalProtocolError
from bstar.wire.mmi import OK, Service
from bstar_client.aio.feeds import Answer, Feed, Source
from bstar_client.aio.loop import Holdings, LinkLoop
from bstar_client.bodies import Body, to_name
from bstar_client.checks import check_map
from bstar_client.client import Client
from bstar_client.core.calls import Ask, Call, CallFailed, Reply
from bstar_client.core.window import Window
from bstar_client.link import Transport
from bstar_client.requests import DEFAULT, Timeout
from bstar_client.unclosed import Guard

__all__ = ["AsyncHAClient"]


class AsyncHAClient(Client):
    """A client of a pair of brokers for asyncio; the arguments are ``HAClient``'s and mean the same.

    It belongs to the event loop in which it is first used, and to no other thread: use it in
    ``async with``, or call ``close`` at the end. Any number of tasks may share it. A task that is cancelled,
    by itself or by ``asyncio.timeout``, gives its request up; what it started is not recalled, there is no
    word for it.

    ``outstanding_max`` bounds the requests without a reply: ``request`` waits its turn beyond it (the other
    client raises BusyError, because it cannot know whether its caller may wait).
    """

    def _start(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # What the next turn sends.
        self._begun: list[Call] = []
        # One place for each request that may be outstanding.
        self._room = asyncio.Semaphore(self._settings.outstanding_max)
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
        """Send a request and wait for its reply. Arguments and errors are those of ``HAClient.request``."""
        answer = Answer(self._open())
        ask = Ask(body, key, timeout, service, urgent)
        call = self._requests.call(ask, answer, idempotent=idempotent)
        await self._begin(call)
        try:
            return await answer.reply()
        finally:
            self._end(call)

    async def stream(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        urgent: bool = False,
    ) -> AsyncGenerator[Reply, None]:
        """Send a request and yield its PARTIALs as they come, then the FINAL (``is_final``).

        A stream that breaks after its first PARTIAL is never repeated: it ends with StreamInterruptedError.
        Leaving the loop early frees what the client keeps once the iterator is closed; the worker is not
        told.
        """
        feed = Feed(self._open())
        ask = Ask(body, None, timeout, service, urgent)
        call = self._requests.call(ask, feed, idempotent=idempotent, is_stream=True)
        await self._begin(call)
        try:
            while True:
                reply = await feed.reply()
                yield reply
                if reply.is_final:
                    return
        finally:
            self._end(call)

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        idempotent: bool = ...,
        errors: Literal["raise"] = ...,
    ) -> AsyncGenerator[Reply, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        idempotent: bool = ...,
        errors: Literal["return"],
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
    ) -> AsyncGenerator[Reply, None] | AsyncGenerator[Reply | CallFailed, None]:
        """Send a request for each body, ``window`` of them at a time, and yield the replies.

        As ``HAClient.map``. ``bodies`` may be an async iterable, too; it is asked for the next body while
        replies are awaited. Use the result in ``async for``; to leave it early, ``aclose`` it
        (``contextlib.aclosing``), or what is in flight is given up only when it is collected.
        """
        size = check_map(bodies, window, ordered, errors)
        is_returning = errors == "return"
        sliding = Window(size, self.counters, is_ordered=ordered, is_returning=is_returning)
        outcomes = self._map(sliding, service, bodies, timeout, idempotent)
        return outcomes if is_returning else cast("AsyncGenerator[Reply, None]", outcomes)

    async def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        timeout: Timeout,
        idempotent: bool,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        feed = Feed(self._open())
        source = Source(bodies, feed.wake)
        make_call = self._requests.call_maker(service, timeout, idempotent, feed)
        in_flight = window.in_flight
        try:
            while True:
                for _ in range(window.room):
                    if not source.has_next() or (self._room.locked() and in_flight):
                        break
                    for call in window.begin([source.take()], make_call):
                        try:
                            await self._begin(call)
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
                    for _ in range(count - len(in_flight)):
                        self._room.release()
                for outcome in window.ready():
                    yield outcome
        finally:
            await source.close()
            for call in in_flight.values():
                self._end(call)

    async def discover(self, service: str | bytes, *, timeout: Timeout = DEFAULT) -> bool:
        """Does a worker offer the service? A hint: the worker can be dead for up to its expiry (MMI-C-01)."""
        return (await self.request(Service.SERVICE.value, to_name(service), timeout=timeout)).body == OK

    async def services(self, *, timeout: Timeout = DEFAULT) -> list[dict[str, object]]:
        """What the active broker offers: a dict with ``service``, ``workers`` and ``queued`` for each.

        Of several pairs what all of them offer, with the ``pair`` of each; the first that fails is raised.
        """
        loop = self._open()
        calls = self._requests.services_calls(timeout, lambda: Answer(loop))
        answers: list[Answer] = [call.sink for call in calls]
        begun: list[Call] = []
        try:
            for call in calls:
                await self._begin(call)
                begun.append(call)
            replies = [await answer.reply() for answer in answers]
        finally:
            for call in begun:
                self._end(call)
        return self._requests.read_services(calls, replies)

    # --- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End outstanding calls with what is known of them; release everything. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is None or self._pid != os.getpid():
            return
        now = time.monotonic()
        self._delivery.perform(self._core.close(now))
        self._send_begun(now)  # these calls end, for the client is closed
        self._release()
        if self._delivery.journal is not None:
            await asyncio.to_thread(self._delivery.journal.close)

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- in the event loop --------------------------------------------------------------------------------

    def _open(self) -> asyncio.AbstractEventLoop:
        """The event loop; connects the first time. Raises what is wrong with a call here and now."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and not self._is_closed and self._pid == os.getpid():
            return loop
        if self._pid != os.getpid():
            raise ForkedError("this client was made before fork(): make a new AsyncHAClient in the child")
        if self._is_closed:
            raise ClosedError("the client is closed")
        if self._loop is not None:
            raise LocalProtocolError("the client belongs to another event loop: make one for each loop")
        self._loop = loop
        settings, delivery = self._settings, self._delivery
        self._transport = Transport(self.endpoints, settings.link, settings.context)
        holdings = Holdings(loop, self._transport)
        name = f"AsyncHAClient({', '.join(self.endpoints)})"
        remedy = "use it in 'async with', or await close() before its event loop ends"
        self._guard = Guard(self, name, remedy, holdings.end)
        delivery.links = holdings.links
        self._links = LinkLoop(loop, holdings.links, self._core, delivery.perform, self._send_begun)
        delivery.reset = self._links.reset
        try:
            if len(self.fleet.pairs) == 1:
                self._links.open_all()
            holdings.journal = self._open_journal()
        except (zmq.ZMQError, ConfigurationError) as error:
            self._is_closed = True
            self._release()
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"cannot connect to {list(self.endpoints)}: {error}") from error
        return loop

    def _release(self) -> None:
        self._links.end()
        self._transport.close()
        self._guard.close()

    async def _begin(self, call: Call) -> None:
        """Take one of the places and let the next turn send the call, together with others.

        BusyError if no place comes free before the call's deadline.
        """
        if not self._room.locked():
            await self._room.acquire()
        else:
            limit = asyncio.timeout(None if call.deadline is None else call.deadline - time.monotonic())
            try:
                async with limit:
                    await self._room.acquire()
            except TimeoutError:
                if not limit.expired():
                    raise
                raise BusyError(
                    "the deadline came while as many requests as allowed (outstanding_max) were outstanding"
                ) from None
            if self._is_closed:
                self._room.release()
                raise ClosedError("the client is closed; the request was not sent")
        self._begun.append(call)
        self._links.soon()

    def _send_begun(self, now: float) -> None:
        begun = self._begun
        if begun:
            self._begun = []
            self._delivery.perform(self._core.submit_all(begun, now))

    def _end(self, call: Call) -> None:
        """Free the call's place; if it has no outcome, give it up."""
        self._room.release()
        if not call.is_done and not self._is_closed:
            self._delivery.abandon(call, time.monotonic())
