"""The worker for asyncio: ``Worker``'s words, with a coroutine for a handler.

    async def shout(request: Request) -> bytes:
        return request.body.upper()

    asyncio.run(AsyncWorker(["tcp://node1:5555", "tcp://node2:5555"], "shout", shout).run())

It drives the same core (``bstar_client.core.worker.session``) in the event loop's thread. Each request is a
task of the loop. Heartbeats need the loop, too: while a handler blocks it, the worker is *stuck* and gets no
requests. Compute in ``asyncio.to_thread`` or in another process.
"""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

import zmq

from bstar.security import Security
from bstar.wire.limits import CREDIT_MAX
from bstar_client.aio.worker_loop import WorkerLoop
from bstar_client.arguments.checks import check_async_handler
from bstar_client.arguments.environment import Given
from bstar_client.arguments.settings import LinkSettings, WorkerProtocol
from bstar_client.core.calls import Result
from bstar_client.journal import JournalPlace
from bstar_client.workers.handlers import WorkerHooks
from bstar_client.workers.replies import ReplyStore
from bstar_client.workers.worker import BaseWorker

if TYPE_CHECKING:  # most workers serve none
    from bstar.net.http_endpoint import HttpPlace

AsyncHandler = Callable[..., Awaitable[Result | None] | AsyncIterator[Result]]
_AsyncHandlerT = TypeVar("_AsyncHandlerT", bound=AsyncHandler)


class AsyncWorker(BaseWorker[AsyncHandler]):
    """Offers ``service`` to every node in ``endpoints``; the arguments are ``Worker``'s and mean the same.

    ``handler`` is an async function whose result is the reply, or an async generator: its yields are sent as
    PARTIALs, and the FINAL is one empty frame. ``credit`` requests are handled at once. A handler that runs
    past ``handler_timeout_s`` is cancelled; ``stuck_handlers_max`` counts those that do not end then. A
    handler whose caller gave up gets CancelledError.

    Everything that a handler raises becomes a HandlerError at its caller, also SystemExit and a
    CancelledError of its own. Only the end of the worker cancels a handler without an answer.

    ``await run()`` serves until SIGTERM, SIGINT or ``stop()``, then finishes what runs (``drain_timeout_s``)
    and leaves the nodes in good order; cancelling it does so at once. ``async with AsyncWorker(…)`` serves
    while the block runs, and leaves signals alone. The hooks are called in the event loop.
    """

    _credit_default = 100
    # A task costs a few kilobytes; the broker keeps its own bound on what it gives to one worker.
    _credit_max = CREDIT_MAX
    _loop_type: type[WorkerLoop] = WorkerLoop

    def __init__(
        self,
        endpoints: Given,
        service: str | bytes,
        handler: AsyncHandler | None = None,
        *,
        version: str = "",
        description: str | None = None,
        pins: Mapping[str, str] | None = None,
        dialect: WorkerProtocol = "native",
        credit: int | None = None,
        handler_timeout_s: float | None = None,
        stuck_handlers_max: int = 3,
        drain_timeout_s: float = 10.0,
        cancel_grace_s: float = 1.0,
        backoff_min_s: float = 0.1,
        backoff_max_s: float = 5.0,
        heartbeat_s: float | None = None,
        liveness: int = 3,
        dedupe: ReplyStore | None = None,
        hooks: WorkerHooks | None = None,
        link: LinkSettings | None = None,
        security: Security | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        journal: JournalPlace | None = None,
        http: "HttpPlace | str | None" = None,
    ) -> None:
        super().__init__(
            endpoints,
            service,
            handler,
            version=version,
            description=description,
            pins=pins,
            dialect=dialect,
            credit=credit,
            handler_timeout_s=handler_timeout_s,
            stuck_handlers_max=stuck_handlers_max,
            drain_timeout_s=drain_timeout_s,
            cancel_grace_s=cancel_grace_s,
            backoff_min_s=backoff_min_s,
            backoff_max_s=backoff_max_s,
            heartbeat_s=heartbeat_s,
            liveness=liveness,
            dedupe=dedupe,
            hooks=hooks,
            link=link,
            security=security,
            context=context,
            journal=journal,
            http=http,
        )

    def _init_shell(self) -> None:
        self._loop: WorkerLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        # Ctrl-C ends run(), not the code that happens to run in the main thread.
        self._takes_signals = False

    def handler(self, function: _AsyncHandlerT) -> _AsyncHandlerT:
        """Decorator: ``@worker.handler`` makes the function the worker's handler."""
        check_async_handler(function)
        self._handler = self._bind(function)
        return function

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it; a second signal stops it at
        once.

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
        self.stop()
        await asyncio.wait([self._serving])
        if not self._serving.cancelled():
            self._serving.result()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _answers(self, timeout_s: float) -> bool:
        serving, has_turned = self._serving, threading.Event()
        if serving is None or serving.done():
            return False
        with suppress(RuntimeError):  # the loop is closed
            serving.get_loop().call_soon_threadsafe(has_turned.set)
            return has_turned.wait(timeout_s)
        return False

    def _begin(self) -> "asyncio.Task[None]":
        self._check_begin()
        self._open_probes()
        self._serving = asyncio.get_running_loop().create_task(self._serve(), name="bstar-worker")
        # Also if it is stopped before it has begun.
        self._serving.add_done_callback(lambda _: self._close_probes())
        self._has_begun = True
        return self._serving

    async def _serve(self) -> None:
        assert self._handler is not None, "checked before the start"
        settings, core, takes_signals = self._settings, self._core, self._takes_signals
        self._loop = self._loop_type(self, settings, core, self._handler, takes_signals=takes_signals)
        await self._loop.serve()

    def _on_signal(self) -> None:
        assert self._serving is not None
        if self._core.is_stopping:
            self._serving.cancel()
        else:
            self.stop()
