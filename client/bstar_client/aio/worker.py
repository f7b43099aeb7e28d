"""The worker for asyncio: ``Worker``'s words, with a coroutine for a handler.

    async def shout(request: Request) -> bytes:
        return request.body.upper()

    asyncio.run(AsyncWorker(["tcp://node1:5555", "tcp://node2:5555"], "shout", shout).run())

It drives the same core (``bstar_client.core.worker_session``) from the event loop's own thread, and each
request is a task of the loop. Heartbeats need the loop, too: while a handler blocks it the worker is *stuck*
and gets no requests, so compute in ``asyncio.to_thread`` or in another process.
"""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Literal, Self, TypeVar

import zmq

from bstar.errors import ClosedError, ConfigurationError, ForkedError
from bstar.fleet import Endpoints
from bstar.wire.limits import CREDIT_MAX
from bstar_client.aio.worker_loop import WorkerLoop
from bstar_client.checks import check_async_handler
from bstar_client.core.calls import Body
from bstar_client.core.node_sessions import WorkerCounters
from bstar_client.core.worker_jobs import WorkerLimits
from bstar_client.handlers import Request, WorkerHooks
from bstar_client.journal import JournalPlace
from bstar_client.registration import WorkerSettings
from bstar_client.replies import ReplyStore
from bstar_client.settings import LinkSettings

AsyncHandler = Callable[[Request], Awaitable[Body | None] | AsyncIterator[Body]]
_AsyncHandlerT = TypeVar("_AsyncHandlerT", bound=AsyncHandler)


class AsyncWorker:
    """Offers ``service`` to every node in ``endpoints``; the arguments are ``Worker``'s and mean the same.

    ``handler`` is an async function whose result is the reply, or an async generator: its yields are sent as
    PARTIALs, and the FINAL is one empty frame. ``credit`` requests are handled at once. A handler that runs
    past ``handler_timeout_s`` is answered for and cancelled; ``stuck_handlers_max`` counts those that do not
    end when they are.

    Whatever a handler raises is its caller's HandlerError, SystemExit and a CancelledError from within too;
    only the worker's own end cancels a handler without an answer.

    ``await run()`` serves until SIGTERM, SIGINT or ``stop()``, then finishes what runs (``drain_timeout_s``)
    and leaves the nodes in good order; cancelling it does so at once. ``async with AsyncWorker(…)`` serves
    beside whatever the block does, and leaves signals alone. The hooks are called in the event loop.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        service: str | bytes,
        handler: AsyncHandler | None = None,
        *,
        pins: Mapping[str, str] | None = None,
        dialect: Literal["native", "mdp02"] = "native",
        credit: int | None = None,
        handler_timeout_s: float | None = None,
        stuck_handlers_max: int = 3,
        drain_timeout_s: float = 10.0,
        backoff_min_s: float = 0.1,
        backoff_max_s: float = 5.0,
        heartbeat_s: float = 2.5,
        liveness: int = 3,
        dedupe: ReplyStore | None = None,
        hooks: WorkerHooks | None = None,
        link: LinkSettings | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        journal: JournalPlace | None = None,
    ) -> None:
        if handler is not None:
            check_async_handler(handler)
        if credit is None:
            credit = 100 if dialect == "native" else 1
        limits = WorkerLimits(
            credit, handler_timeout_s, stuck_handlers_max, drain_timeout_s, backoff_min_s, backoff_max_s
        )
        self._settings = settings = WorkerSettings.of(
            endpoints,
            service,
            pins=pins,
            dialect=dialect,
            limits=limits,
            # A task costs a few kilobytes; the broker keeps its own bound on what it gives to one worker.
            credit_max=CREDIT_MAX,
            heartbeat_s=heartbeat_s,
            liveness=liveness,
            dedupe=dedupe,
            hooks=hooks,
            link=link,
            context=context,
            journal=journal,
        )
        self.endpoints, self.service = settings.endpoints, settings.service
        self._core = settings.new_core()
        self._handler = handler
        self._serving: asyncio.Task[None] | None = None
        self._loop: WorkerLoop | None = None
        # Ctrl-C goes to run(), not to what runs in the main thread.
        self._takes_signals = False
        self._pid = os.getpid()

    def handler(self, function: _AsyncHandlerT) -> _AsyncHandlerT:
        """Decorator: ``@worker.handler`` makes the function the worker's handler."""
        check_async_handler(function)
        self._handler = function
        return function

    @property
    def counters(self) -> WorkerCounters:
        """What happened so far, as plain integers."""
        return self._core.counters

    @property
    def epoch(self) -> int:
        """The highest epoch heard of; requests of lower ones are refused."""
        return self._core.epoch

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it, a second one at once.

        Raises WorkerError when too many handlers are stuck, ClosedError when it has run before.
        """
        serving = self._begin()
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._takes_signals = threading.current_thread() is threading.main_thread()
        if self._takes_signals:
            for number in numbers:
                loop.add_signal_handler(number, self._on_signal)
        try:
            await serving
        finally:
            if self._takes_signals:
                for number in numbers:
                    loop.remove_signal_handler(number)

    def start(self) -> Self:
        """Serve in a task of the running loop, until ``stop`` or ``close``."""
        self._begin()
        return self

    def stop(self) -> None:
        """Ask it to drain and end; returns at once. From the loop's thread or by a signal handler of it."""
        if self._loop is not None:
            self._loop.stop()
        elif self._serving is not None:
            self._serving.cancel()

    async def join(self) -> None:
        """Wait for a started worker to end. Raises the error that ended it."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def close(self) -> None:
        """Stop and wait for the end, within the drain timeout. Idempotent."""
        if self._serving is None or self._pid != os.getpid():
            return
        if not self._serving.done():
            self.stop()
        await asyncio.wait([self._serving])
        if not self._serving.cancelled():
            self._serving.result()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self) -> "asyncio.Task[None]":
        if self._pid != os.getpid():
            raise ForkedError("this worker was made before fork(): make a new AsyncWorker in the child")
        if self._serving is not None:
            raise ClosedError("a worker runs once: make a new one")
        if self._handler is None:
            raise ConfigurationError("the worker has no handler: pass one or use @worker.handler")
        self._serving = asyncio.get_running_loop().create_task(
            self._serve(self._handler), name="bstar-worker"
        )
        return self._serving

    async def _serve(self, handler: AsyncHandler) -> None:
        self._loop = WorkerLoop(self, self._settings, self._core, handler, takes_signals=self._takes_signals)
        await self._loop.serve()

    def _on_signal(self) -> None:
        assert self._serving is not None
        if self._core.is_stopping:
            self._serving.cancel()
        else:
            self.stop()
