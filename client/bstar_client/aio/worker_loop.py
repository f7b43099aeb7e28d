"""A worker in an event loop: one turn at a time attends to the sockets, and each request is a task."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import zmq

from bstar.errors import BstarError, ConfigurationError
from bstar.printable import printable
from bstar_client.aio.executor import Executor
from bstar_client.aio.loop import Holdings, LinkLoop
from bstar_client.core.worker_dialects import Job
from bstar_client.core.worker_session import WorkerCore
from bstar_client.dispatch import Dispatcher, Result
from bstar_client.handlers import Request
from bstar_client.link import Transport
from bstar_client.registration import LINGER_MS, WorkerSettings
from bstar_client.unclosed import Guard

__all__ = ["WorkerLoop"]


class WorkerLoop:
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
        self._settings = settings
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._transport = Transport(settings.endpoints, settings.link, settings.context)
        self._holdings = Holdings(self._loop, self._transport)
        self._dispatcher = dispatcher = Dispatcher(worker, core, self, settings)
        dispatcher.links = self._holdings.links
        dispatcher.handler = handler
        self._link_loop = LinkLoop(self._loop, dispatcher.links, core, dispatcher.perform, self._answer_all)
        self._executor = Executor(dispatcher, self, settings, takes_signals=takes_signals)
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        # Final replies that leave together with the next turn: they may go to one client.
        self._results: deque[Result] = deque()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._serving = asyncio.current_task()
        name = f'AsyncWorker({", ".join(settings.endpoints)}) for "{printable(settings.service)}"'
        remedy = "use it in 'async with', or await close() before its event loop ends"
        self._guard = Guard(worker, name, remedy, self._holdings.end)

    async def serve(self) -> None:
        """Serve until the worker has ended; raises what ended it."""
        settings = self._settings
        try:
            self._dispatcher.journal = settings.open_journal()
            self._holdings.journal = self._dispatcher.journal
            try:
                self._link_loop.open_all()
            except zmq.ZMQError as error:
                raise ConfigurationError(f"cannot connect to {list(settings.endpoints)}: {error}") from error
            await self._ended
        except GeneratorExit:
            raise  # the loop has ended without the worker, and nothing can be awaited: the guard says so
        except BaseException as error:
            await self._finish(f"{type(error).__name__}: {error}")
            raise
        await self._finish("stopped")

    def stop(self) -> None:
        """Begin to drain."""
        self._dispatcher.perform(self._core.stop(time.monotonic()))
        self._link_loop.soon()

    async def _finish(self, reason: str) -> None:
        """Leave the nodes, cancel what runs, release everything."""
        self._answer_all(time.monotonic())
        self._dispatcher.perform(self._core.end(time.monotonic()))
        self._link_loop.end(LINGER_MS)
        for task in list(self._tasks.values()):
            task.cancel()
        # It takes as long as the last words need to leave, at most the linger.
        await asyncio.shield(asyncio.to_thread(self._transport.close))
        journal = self._dispatcher.journal
        if journal is not None:
            await asyncio.shield(asyncio.to_thread(journal.close, self._core.unfinished, reason))
        self._guard.close()

    def _answer_all(self, now: float) -> None:
        self._dispatcher.answer_all(self._results, now)

    # --- the executor's outbox ----------------------------------------------------------------------------

    def post(self, result: Result) -> None:
        """Send a result: a final reply with the next turn, anything else at once."""
        if result[2] == "final":
            self._results.append(result)
        else:
            self._dispatcher.answer(result, time.monotonic())
        self._link_loop.soon()

    async def wait_for_room(self) -> None:
        """Wait while the network takes nothing."""
        await self._link_loop.room()

    @property
    def is_ending(self) -> bool:
        """True if the worker, or its event loop, is about to end."""
        serving = self._serving
        assert serving is not None, "it is made in a task"
        is_ending = self._ended.done() or serving.done() or serving.cancelling() > 0
        return is_ending or not self._loop.is_running()

    # --- the dispatcher's shell ---------------------------------------------------------------------------

    def begin(self, jobs: list[Job], *, are_one_clients: bool) -> None:
        """Make a task for each request."""
        for job in jobs:
            self._core.claim(job)
            task = self._tasks[job] = self._loop.create_task(self._executor.execute(job))
            task.add_done_callback(lambda _, job=job: self._tasks.pop(job))  # type: ignore[misc]

    def abandon(self, job: Job) -> None:
        """Cancel a stuck handler."""
        self._tasks[job].cancel()

    def open_link(self, node: int) -> None:
        """Connect to this node."""
        self._link_loop.open(node)

    def close_link(self, node: int) -> None:
        """Close the socket to this node."""
        self._link_loop.close(node)

    def end(self, error: BstarError | None) -> None:
        """The worker has ended."""
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
