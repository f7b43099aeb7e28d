"""Calls the handler for one request, in a task of the event loop, and posts what comes of it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Protocol

from bstar_client.bodies import Body, to_reply
from bstar_client.core.worker_dialects import Job
from bstar_client.dispatch import Dispatcher, Result
from bstar_client.failures import drop, is_interrupt
from bstar_client.handlers import Request
from bstar_client.registration import WorkerSettings
from bstar_client.replies import ReplyStore

__all__ = ["Executor", "Outbox"]


class Outbox(Protocol):
    """Where results go."""

    def post(self, result: Result) -> None:
        """Send a result."""
        ...

    async def wait_for_room(self) -> None:
        """Wait while the network takes nothing."""
        ...

    @property
    def is_ending(self) -> bool:
        """True if the worker, or its event loop, is about to end."""
        ...


class Executor:
    """Executes the requests of one worker. ``takes_signals``: Ctrl-C goes to ``run``, not to what runs."""

    def __init__(
        self, dispatcher: Dispatcher, outbox: Outbox, settings: WorkerSettings, *, takes_signals: bool
    ) -> None:
        self._dispatcher = dispatcher
        self._outbox = outbox
        self._hooks = settings.hooks
        self._dedupe = settings.dedupe
        self._reply_bytes_max = settings.link.message_bytes_max
        self._takes_signals = takes_signals

    async def execute(self, job: Job) -> None:
        """Execute a request."""
        dispatcher, post = self._dispatcher, self._outbox.post
        request = dispatcher.request_of(job)
        try:
            if self._dedupe is not None and await self._is_replayed(self._dedupe, job, request):
                return
            body = await self._call(job, request)
        except BaseException as error:  # noqa: BLE001 - whatever the handler raises is its answer
            self._raise_at_end(error)
            job.ended_at = job.ended_at or time.monotonic()
            post(dispatcher.failed(job, request, error))
            self._raise_interrupt(error)
        else:
            dispatcher.call_hook(self._hooks.request_finished, request)
            post((job, body, "final"))

    async def _is_replayed(self, store: ReplyStore, job: Job, request: Request) -> bool:
        """Answer from the store, if the request was executed before."""
        dispatcher, post = self._dispatcher, self._outbox.post
        # In a thread: it may wait for another execution, or for a disk.
        beginning = asyncio.ensure_future(
            asyncio.to_thread(store.begin, job.identity, request.frames, job.deadline)
        )
        try:
            kept = await asyncio.shield(beginning)
        except BaseException as error:  # noqa: BLE001 - whatever the store raises is the answer
            beginning.add_done_callback(lambda done: self._forget(store, job, done))
            self._raise_at_end(error)
            post(dispatcher.refused(job, error))
            self._raise_interrupt(error)
            return True
        if kept is None:
            return False
        dispatcher.call_hook(self._hooks.request_replayed, request)
        post((job, kept, "replay"))
        return True

    def _forget(self, store: ReplyStore, job: Job, beginning: "asyncio.Future[list[bytes] | None]") -> None:
        """Nobody executes the request any more: undo the store's "execute it"."""
        if not beginning.cancelled() and beginning.exception() is None and beginning.result() is None:
            beginning.get_loop().run_in_executor(None, drop, store, self._dispatcher.service, job)

    async def _call(self, job: Job, request: Request) -> list[bytes]:
        """Call the handler; keep its reply before anybody gets it."""
        handler, store, service = self._dispatcher.handler, self._dedupe, self._dispatcher.service
        assert handler is not None, "checked before the start"
        self._dispatcher.call_hook(self._hooks.request_started, request)
        job.began_at = time.monotonic()
        try:
            answer = handler(request)
            if is_stream := isinstance(answer, AsyncIterator):
                await self._stream(job, answer)
                body = [b""]
            elif isinstance(answer, Awaitable):
                body = to_reply(await answer, self._reply_bytes_max)
            else:
                raise TypeError(  # noqa: TRY301 - a wrong handler fails as the handler
                    f"the handler returned {type(answer).__name__}: make it async, or use Worker"
                )
        except BaseException:
            job.ended_at = time.monotonic()
            if store is not None:
                await asyncio.shield(asyncio.to_thread(drop, store, service, job))
            raise
        job.ended_at = time.monotonic()
        if store is not None:
            if is_stream:
                await asyncio.shield(asyncio.to_thread(drop, store, service, job))
            else:
                await asyncio.shield(asyncio.to_thread(store.keep, job.identity, body))
        return body

    async def _stream(self, job: Job, parts: AsyncIterator[Body]) -> None:
        """Post each part that the handler yields."""
        try:
            async for part in parts:
                body = to_reply(part, self._reply_bytes_max)
                if job.is_ended:
                    return  # nobody waits for the rest
                self._outbox.post((job, body, "partial"))
                await self._outbox.wait_for_room()
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()

    def _raise_at_end(self, error: BaseException) -> None:
        """The worker's own end cancels a handler without an answer: its node gives the request to another."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit) and self._outbox.is_ending:
            raise error

    def _raise_interrupt(self, error: BaseException) -> None:
        """Without ``run`` Ctrl-C is the program's, whichever task it happens to hit."""
        if is_interrupt(error) and not self._takes_signals:
            raise error
