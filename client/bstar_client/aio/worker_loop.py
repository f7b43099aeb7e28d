"""A worker in an event loop: turns serve the sockets, and each request is a task."""

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from bstar.base.printable import printable
from bstar_client.aio.loop import LinkLoop
from bstar_client.arguments.bodies import to_reply
from bstar_client.core.calls import Body
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.outputs import Begin
from bstar_client.core.worker.session import WorkerCore
from bstar_client.workers.dispatch import Dispatcher, Result
from bstar_client.workers.failures import is_interrupt, settle
from bstar_client.workers.handlers import Request
from bstar_client.workers.replies import ReplyStore
from bstar_client.workers.worker import LINGER_MS, WorkerSettings

# Requests that are looked up in the store of replies at once, those included that wait for another execution.
_STORE_THREADS_MAX = 32


class WorkerLoop(Dispatcher):
    """One worker at work. Made and used in the event loop's thread; ``serve`` is called once."""

    def __init__(
        self,
        worker: object,
        settings: WorkerSettings,
        core: WorkerCore,
        handler: Callable[[Request], object],
        *,
        takes_signals: bool,
    ) -> None:
        super().__init__(worker, settings, core)
        self.handler = handler
        self._loop = asyncio.get_running_loop()
        self._takes_signals = takes_signals
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        # Final replies that leave with the next turn, as a batch if one client gets several.
        self._results: deque[Result] = deque()
        answer = partial(self.answer_all, self._results)
        net = settings.net
        self._clock = net.clock
        new_links = partial(net.new_links, settings.endpoints, settings.link, settings.context)
        self._link_loop = LinkLoop(core, new_links, net.clock, self.perform, answer, self._end)
        self.links = self._link_loop.links
        # Not the event loop's own threads: the executions that repetitions wait for need those to end.
        self._store_threads = ThreadPoolExecutor(_STORE_THREADS_MAX, "bstar-replies")
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._serving = asyncio.current_task()
        # A turn may run in a handler's context: each task gets a copy of the worker's own.
        self._context = contextvars.copy_context()
        name = f'AsyncWorker({", ".join(settings.endpoints)}) for "{printable(settings.service)}"'
        self._link_loop.guard(worker, name)

    async def serve(self) -> None:
        """Serve until the worker has ended. Raises the error that ended it."""
        settings = self.settings
        try:
            self.journal = self._link_loop.holdings.journal = settings.open_journal()
            self._link_loop.start()
            self._core.begin(self._clock())
            await self._ended
        except GeneratorExit:
            raise  # the event loop has ended before the worker, so nothing can be awaited: the guard warns
        except BaseException as error:
            await self._finish(f"{type(error).__name__}: {error}")
            raise
        await self._finish("stopped")

    def stop(self) -> None:
        """Begin to drain."""
        self.perform(self._core.stop(self._clock()))
        self._link_loop.soon()

    async def _finish(self, reason: str) -> None:
        """Leave the nodes, cancel running handlers, release everything."""
        self.answer_all(self._results, self._clock())
        self.perform(self._core.end(self._clock()))
        self._link_loop.end(LINGER_MS)
        for task in list(self._tasks.values()):
            task.cancel()
        self._store_threads.shutdown(wait=False)
        # All of it, also if a second signal cancels this.
        await asyncio.shield(asyncio.to_thread(self._release, reason))

    def _release(self, reason: str) -> None:
        """It takes until the last messages have left, at most the linger."""
        self.links.end()
        if self.journal is not None:
            self.journal.close(self._core.unfinished, reason)

    def _post(self, result: Result) -> None:
        """Send a result: a final reply with the next turn, anything else at once."""
        if result[2] == "final":
            self._results.append(result)
        else:
            self.answer(result, self._clock())
        self._link_loop.soon()

    # --- the dispatcher's ---------------------------------------------------------------------------------

    def _begin(self, output: Begin) -> None:
        """Make a task for each request."""
        for job in output.jobs:
            self._core.claim(job)
            task = self._tasks[job] = self._loop.create_task(self._execute(job), context=self._context.copy())
            task.add_done_callback(lambda _, job=job: self._tasks.pop(job))  # type: ignore[misc]

    def _abandon(self, job: Job) -> None:
        """Cancel a stuck handler."""
        self._tasks[job].cancel()

    def _cancel(self, job: Job) -> None:
        """The handler gets CancelledError at its next await."""
        super()._cancel(job)
        # Not at once: a task that has not begun would end without an answer.
        if (task := self._tasks.get(job)) is not None:
            self._loop.call_soon(task.cancel)

    def _tell_progress(self, job: Job) -> None:
        # A thread that outlives the loop has nobody to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._post, (job, [], "progress"))

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    # --- requests -----------------------------------------------------------------------------------------

    async def _execute(self, job: Job) -> None:
        request, store = self.request_of(job), self.settings.dedupe
        try:
            if store is not None and await self._is_replayed(store, job, request):
                return
            body = await self._call(job, request)
        except BaseException as error:  # noqa: BLE001 - whatever the handler raises is its answer
            self._raise_at_end(error)
            job.ended_at = job.ended_at or self._clock()
            self._post(self.failed(job, request, error))
            self._raise_interrupt(error)
        else:
            self.call_hook(self.settings.hooks.request_finished, request)
            self._post((job, body, "final"))

    async def _is_replayed(self, store: ReplyStore, job: Job, request: Request) -> bool:
        """Answer from the store, if the request was executed before."""
        # In a thread: it may wait for another execution, or for a disk.
        beginning = self._loop.run_in_executor(
            self._store_threads, store.begin, job.identity, request.frames, job.deadline
        )
        try:
            kept = await asyncio.shield(beginning)
        except BaseException as error:  # noqa: BLE001 - whatever the store raises is the answer
            beginning.add_done_callback(lambda done: self._forget(store, job, done))
            self._raise_at_end(error)
            self._post(self.refused(job, error))
            self._raise_interrupt(error)
            return True
        if kept is None:
            return False
        self.call_hook(self.settings.hooks.request_replayed, request)
        self._post((job, kept, "replay"))
        return True

    def _forget(self, store: ReplyStore, job: Job, beginning: "asyncio.Future[list[bytes] | None]") -> None:
        """The request will not be executed: undo the store's "execute it"."""
        if not beginning.cancelled() and beginning.exception() is None and beginning.result() is None:
            beginning.get_loop().run_in_executor(None, settle, store, self.settings.service, job, None)

    async def _call(self, job: Job, request: Request) -> list[bytes]:
        """Call the handler, and keep its reply before it is sent."""
        handler, store, service = self.handler, self.settings.dedupe, self.settings.service
        assert handler is not None, "checked before the start"
        self.call_hook(self.settings.hooks.request_started, request)
        job.began_at = self._clock()
        kept: list[bytes] | None = None
        try:
            answer = handler(request)
            if isinstance(answer, AsyncIterator):
                await self._stream(job, answer)
                return [b""]
            if isinstance(answer, Awaitable):
                kept = to_reply(await answer, self.settings.link.message_bytes_max)
                return kept
            raise TypeError(f"the handler returned {type(answer).__name__}: make it async, or use Worker")
        finally:
            self.end_child(job)
            job.ended_at = self._clock()
            job.on_cancel = None
            if store is not None:
                await asyncio.shield(asyncio.to_thread(settle, store, service, job, kept))

    async def _stream(self, job: Job, parts: AsyncIterator[Body]) -> None:
        """Post each part that the handler yields."""
        try:
            async for part in parts:
                self.end_child(job)
                body = to_reply(part, self.settings.link.message_bytes_max)
                if job.is_ended:
                    return  # no caller waits for the rest
                self._post((job, body, "partial"))
                await self._link_loop.room()
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()

    def _raise_at_end(self, error: BaseException) -> None:
        """The worker's own end cancels a handler without an answer: its node gives the request to another."""
        serving = self._serving
        assert serving is not None, "it is made in a task"
        is_ended = self._ended.done() or serving.done() or not self._loop.is_running()
        is_ending = is_ended or serving.cancelling() > 0
        if is_ending and isinstance(error, asyncio.CancelledError | GeneratorExit):
            raise error

    def _raise_interrupt(self, error: BaseException) -> None:
        """Without ``run``, Ctrl-C belongs to the program, in any task that it hits."""
        if is_interrupt(error) and not self._takes_signals:
            raise error
