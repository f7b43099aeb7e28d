"""What every client for asyncio does with its calls: begin them, await their outcomes, give them up."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import Any, Self

from bstar.errors import ClosedError, ForkedError, LocalProtocolError, NoActiveNodeError
from bstar_client.aio.client_loop import ClientLoop
from bstar_client.aio.feeds import Answer, Feed, Source, reply_of
from bstar_client.aio.futures import CallFuture
from bstar_client.calls.client_base import ClientBase
from bstar_client.core.calls import Asked, Call, CallFailed, Reply
from bstar_client.core.window import Window


class AsyncCaller(ClientBase):
    """Base of the clients for asyncio. Each belongs to the event loop in which it is first used."""

    def _init_shell(self) -> None:
        self._loop: ClientLoop | None = None
        self._is_closed = False

    def _sink(self) -> Answer:
        """For the outcome of one call. Raises an error if the client cannot be used here."""
        return Answer(self._open().event_loop)

    async def _reply_to(self, call: Call, answer: Answer) -> Reply:
        """Send the call and await its reply; raises the error if its outcome is one."""
        loop = self._loop
        assert loop is not None, "_sink() has opened it"
        await loop.begin(call)
        try:
            return reply_of(await answer.future)
        except NoActiveNodeError as error:
            await self._explain(error)
            raise
        finally:
            loop.end(call)

    def _start(self, make_call: Callable[[Answer], Call], read: Callable[[Reply], Any]) -> CallFuture[Any]:
        """Make the call for a sink, send it now, and return the task of what ``read`` makes of its reply."""
        answer = self._sink()
        call = make_call(answer)

        async def result() -> Any:  # Any: the caller's
            return read(await self._reply_to(call, answer))

        task = asyncio.get_running_loop().create_task(result())
        if call.trace is not None:  # it may be cancelled before it has begun
            task.add_done_callback(lambda _: self._delivery.untrace(call))
        return task

    async def _replies_of(self, make_call: Callable[[Feed], Call]) -> AsyncGenerator[Reply, None]:
        """Make the call of a stream for a sink, send it and yield its replies."""
        loop = self._open()
        feed = Feed(loop.event_loop)
        call = make_call(feed)
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

    async def _replies_to(
        self, make_calls: Callable[[Callable[[], Answer]], list[Call]]
    ) -> tuple[list[Call], list[Reply]]:
        """Calls that go out together, made with a function that makes sinks; and their replies."""
        loop = self._open()
        calls = make_calls(lambda: Answer(loop.event_loop))
        answers: list[Answer] = [call.sink for call in calls]
        begun: list[Call] = []
        try:
            for call in calls:
                await loop.begin(call)
                begun.append(call)
            return calls, [reply_of(await answer.future) for answer in answers]
        except NoActiveNodeError as error:
            await self._explain(error)
            raise
        finally:
            for call in begun:
                loop.end(call)
            for call in calls:
                self._delivery.untrace(call)

    async def _explain(self, error: NoActiveNodeError) -> None:
        """Say in the error what is at the endpoints that the client did not reach."""
        from bstar_client.links.endpoint_probe import explain_async  # noqa: PLC0415 - most programs never need it

        await explain_async(error, has_keys=self._settings.link.security is not None)

    async def _outcomes_of(
        self,
        window: Window,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        maker: Callable[[Feed], Callable[[Asked, int], Call]],
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        """Send a call for each body as the window allows, and yield what became of them. ``maker`` makes
        the function that makes calls for a sink.
        """
        loop = self._open()
        feed = Feed(loop.event_loop)
        make_call = maker(feed)
        source = Source(bodies, feed.wake)
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
                # At once if a body could not be sent.
                if not (ready := window.ready()):
                    await feed.wait()
                    count = len(in_flight)
                    try:
                        window.take(feed.take())
                    finally:
                        loop.free(count - len(in_flight))
                    ready = window.ready()
                for outcome in ready:
                    yield outcome
        except NoActiveNodeError as error:
            await self._explain(error)
            raise
        finally:
            # First the calls: a task that is cancelled again does not come back from the source.
            for call in in_flight.values():
                loop.end(call)
            await source.close()

    # --- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End every outstanding call with an error that says what is known of it, and release everything.
        Idempotent.
        """
        self._is_closed = True
        if self._loop is not None and self._pid == os.getpid():
            await self._loop.close()

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _pause(self, seconds: float) -> None:
        """Let so much time pass."""
        await asyncio.sleep(seconds)

    def _check(self) -> None:
        """The first step of a call does it (``_open``)."""

    # --- in the event loop --------------------------------------------------------------------------------

    def _open(self) -> ClientLoop:
        """The loop; the first call makes it. Raises an error if the client cannot be used here."""
        if self._pid != os.getpid():
            raise ForkedError(
                f"this client was made before fork(): make a new {type(self).__name__} in the child"
            )
        if self._is_closed or (self._loop is not None and self._loop.is_closed):
            raise ClosedError("the client is closed")
        event_loop = asyncio.get_running_loop()
        if self._loop is None:
            self._is_closed = True  # until all of it is open
            self._loop = ClientLoop(self, self._settings, self._core, self._delivery)
            self._is_closed = False
        elif self._loop.event_loop is not event_loop:
            raise LocalProtocolError("the client belongs to another event loop: make one for each loop")
        return self._loop
