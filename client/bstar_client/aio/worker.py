"""The worker for asyncio: ``Worker``'s words, with a coroutine for a handler.

    async def shout(request: Request) -> bytes:
        return request.body.upper()

    asyncio.run(AsyncWorker(["tcp://node1:5555", "tcp://node2:5555"], "shout", shout).run())

It drives the same core (``bstar_client.core.worker_session``) from the event loop's own thread, and each
request is a task of the loop. Heartbeats need the loop, too: while a handler blocks it the worker is *stuck*
and gets no requests, so compute in ``asyncio.to_thread`` or in another process.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Literal, Self, TypeVar

import zmq

from bstar.errors import ClosedError, ConfigurationError, ForkedError
from bstar.fleet import Endpoints
from bstar.printable import printable
from bstar_client.aio.loop import Holdings, LinkLoop
from bstar_client.bodies import Body, to_reply
from bstar_client.checks import check_async_handler
from bstar_client.core.outputs import Send
from bstar_client.core.worker_dialects import Job
from bstar_client.core.worker_session import (
    Abandon,
    Begin,
    Close,
    Ended,
    Fenced,
    KeepAlive,
    Late,
    Lost,
    Open,
    Registered,
    WorkerCounters,
    WorkerOutput,
    WorkerSettings,
)
from bstar_client.failures import call_hook, drop, is_interrupt, report, report_given_up, warn_late
from bstar_client.handlers import Request, WorkerHooks
from bstar_client.journal import JournalPlace, WorkJournal, named_after, open_journal
from bstar_client.link import Links, Transport
from bstar_client.registration import Offer
from bstar_client.replies import ReplyStore
from bstar_client.settings import LinkSettings
from bstar_client.sync.worker_loop import LINGER_MS
from bstar_client.unclosed import Guard

__all__ = ["AsyncHandler", "AsyncWorker"]

_log = logging.getLogger("bstar_client")

# A task costs a few kilobytes; the broker keeps its own bound on what it gives to one worker.
_CREDIT_MAX = 65_535

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
        offer = Offer(
            endpoints,
            service,
            pins=pins,
            dialect=dialect,
            heartbeat_s=heartbeat_s,
            liveness=liveness,
            settings=WorkerSettings(
                credit, handler_timeout_s, stuck_handlers_max, drain_timeout_s, backoff_min_s, backoff_max_s
            ),
            credit_max=_CREDIT_MAX,
            dedupe=dedupe,
            hooks=hooks,
            link=link,
            context=context,
            journal=journal,
        )
        self.endpoints, self.service, self._core = offer.endpoints, offer.service, offer.core
        self._is_plain = offer.is_plain
        self._handler = handler
        self._handler_timeout_s = handler_timeout_s
        self._dedupe = dedupe
        self._hooks = hooks or WorkerHooks()
        self._link_settings = link or LinkSettings()
        self._given_context = context
        self._journal_place = named_after(journal, offer.pair)
        self._journal: WorkJournal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turning: LinkLoop | None = None
        self._links: Links | None = None
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._finished: list[tuple[Job, list[bytes]]] = []
        self._serving: asyncio.Task[None] | None = None
        self._end: asyncio.Future[None] | None = None
        # Ctrl-C comes to run(), not to what runs in the main thread.
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
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        self.start()
        assert self._serving is not None
        if is_main:
            for number in numbers:
                loop.add_signal_handler(number, self._on_signal)
        self._takes_signals = is_main
        try:
            await self._serving
        finally:
            if is_main:
                for number in numbers:
                    loop.remove_signal_handler(number)

    def start(self) -> Self:
        """Serve in a task of the running loop, until ``stop`` or ``close``."""
        if self._pid != os.getpid():
            raise ForkedError("this worker was made before fork(): make a new AsyncWorker in the child")
        if self._loop is not None:
            raise ClosedError("a worker runs once: make a new one")
        if self._handler is None:
            raise ConfigurationError("the worker has no handler: pass one or use @worker.handler")
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        self._serving = self._loop.create_task(self._serve(self._end), name="bstar-worker")
        return self

    def stop(self) -> None:
        """Ask it to drain and end; returns at once. From the loop's thread or by a signal handler of it."""
        if self._turning is not None:
            self._perform(self._core.stop(time.monotonic()))
            self._turning.soon()
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

    def _on_signal(self) -> None:
        assert self._serving is not None
        if self._core.is_stopping:
            self._serving.cancel()
        else:
            self.stop()

    async def _serve(self, end: "asyncio.Future[None]") -> None:
        assert self._loop is not None
        transport = Transport(self.endpoints, self._link_settings, self._given_context)
        holdings = Holdings(self._loop, transport)
        name = f'AsyncWorker({", ".join(self.endpoints)}) for "{printable(self.service)}"'
        remedy = "use it in 'async with', or await close() before its event loop ends"
        guard = Guard(self, name, remedy, holdings.end)
        self._links = holdings.links
        self._turning = LinkLoop(self._loop, holdings.links, self._core, self._perform, self._tell_finished)
        try:
            if self._journal_place is not None:
                journal = open_journal(self._journal_place, "worker", self.endpoints, self.service)
                holdings.journal = journal
                self._journal = WorkJournal(journal, self.endpoints, self.service, is_plain=self._is_plain)
            try:
                self._turning.open_all()
            except zmq.ZMQError as error:
                raise ConfigurationError(f"cannot connect to {list(self.endpoints)}: {error}") from error
            await end
        except GeneratorExit:
            raise  # the loop has ended without the worker, and nothing can be awaited: the guard says so
        except BaseException as error:
            await self._finish(transport, f"{type(error).__name__}: {error}")
            guard.close()
            raise
        await self._finish(transport, "stopped")
        guard.close()

    async def _finish(self, transport: Transport, reason: str) -> None:
        """Leave the nodes, cancel what runs, release everything."""
        assert self._turning is not None
        self._tell_finished(time.monotonic())
        self._perform(self._core.end(time.monotonic()))
        self._turning.end(LINGER_MS)
        for task in list(self._tasks.values()):
            task.cancel()
        # It takes as long as the last words need to leave, at most the linger.
        await asyncio.shield(asyncio.to_thread(transport.close))
        if self._journal is not None:
            await asyncio.shield(asyncio.to_thread(self._journal.close, self._core.unfinished, reason))

    # --- the core's outputs -------------------------------------------------------------------------------

    def _perform(self, outputs: list[WorkerOutput]) -> None:
        links, turning = self._links, self._turning
        assert links is not None
        assert turning is not None
        for output in outputs:
            if isinstance(output, Send):
                links[output.node].send(output.frames)
            elif isinstance(output, Begin):
                for job in output.jobs:
                    self._core.claim(job)
                    self._begin(job)
            elif isinstance(output, Abandon):
                self._give_up(output.job)
            elif isinstance(output, Registered):
                if self._journal is not None:
                    self._journal.registered(output.endpoint)
                self._call_hook(self._hooks.registered, output.endpoint)
            elif isinstance(output, Lost):
                _log.info("the session with %s ended: %s", output.endpoint, output.reason)
                if self._journal is not None:
                    self._journal.unregistered(output.endpoint, output.reason)
                self._call_hook(self._hooks.lost, output.endpoint, output.reason)
            elif isinstance(output, Fenced):
                if self._journal is not None:
                    self._journal.fenced(output.job, output.epoch_seen)
            elif isinstance(output, KeepAlive):
                links[output.node].keep_alive(output.routing_id, output.interval_ms, output.ttl_ms)
            elif isinstance(output, Late):
                warn_late(output, self.service, self._handler)
            elif isinstance(output, Close):
                turning.close(output.node)
            elif isinstance(output, Open):
                turning.open(output.node)
            else:
                self._note_end(output)

    def _tell_finished(self, now: float) -> None:
        """Send the replies that are ready."""
        finished = self._finished
        if finished:
            self._finished = []
            self._perform(self._core.finished_all(finished, now))

    def _note_end(self, output: Ended) -> None:
        assert self._end is not None
        if self._end.done():
            return
        if output.error is not None:
            self._end.set_exception(output.error)
        else:
            self._end.set_result(None)

    def _begin(self, job: Job) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._handle(job))
        self._tasks[job] = task
        task.add_done_callback(lambda _: self._tasks.pop(job))

    def _give_up(self, job: Job) -> None:
        if self._journal is not None:
            self._journal.given_up(job)
        report_given_up(self.service, job, self._handler_timeout_s)
        self._tasks[job].cancel()
        self._call_hook(self._hooks.handler_stuck, job.identity)

    def _call_hook(self, hook: Callable[..., None], *arguments: object) -> None:
        call_hook(hook, self, *arguments)

    # --- requests -----------------------------------------------------------------------------------------

    async def _handle(self, job: Job) -> None:
        request = Request(
            self.service,
            tuple(job.body),
            job.identity,
            job.is_redelivered,
            job.epoch,
            job.deadline,
            job.extensions,
        )
        try:
            if self._dedupe is not None and await self._is_replayed(self._dedupe, job, request):
                return
            body = await self._execute(job, request)
        except BaseException as error:
            if self._is_over and isinstance(error, asyncio.CancelledError | GeneratorExit):
                raise  # the worker ends, and its node gives the request to another
            job.ended_at = job.ended_at or time.monotonic()
            told = report(self.service, job, error)
            self._call_hook(self._hooks.request_failed, request, error)
            self._tell(job, told, "failure")
            if is_interrupt(error) and not self._takes_signals:
                raise
        else:
            self._call_hook(self._hooks.request_finished, request)
            self._tell(job, body, "final")

    @property
    def _is_over(self) -> bool:
        """Has the worker ended, or is it, or the loop, being ended right now?"""
        assert self._serving is not None
        assert self._end is not None
        assert self._loop is not None
        is_ending = self._end.done() or self._serving.done() or self._serving.cancelling() > 0
        return is_ending or not self._loop.is_running()

    async def _is_replayed(self, store: ReplyStore, job: Job, request: Request) -> bool:
        """Answer the request without executing it, if it was executed before."""
        # In a thread: it may wait for another execution, or for a disk.
        beginning = asyncio.ensure_future(
            asyncio.to_thread(store.begin, job.identity, request.frames, job.deadline)
        )
        try:
            kept = await asyncio.shield(beginning)
        except BaseException as error:
            beginning.add_done_callback(lambda done: self._forget(store, job, done))
            if self._is_over and isinstance(error, asyncio.CancelledError | GeneratorExit):
                raise
            self._tell(job, report(self.service, job, error, "was not executed"), "refusal")
            if is_interrupt(error) and not self._takes_signals:
                raise
            return True
        if kept is None:
            return False
        self._call_hook(self._hooks.request_replayed, request)
        self._tell(job, kept, "replay")
        return True

    def _forget(self, store: ReplyStore, job: Job, beginning: "asyncio.Future[list[bytes] | None]") -> None:
        """The store was asked, and nobody waits for what it says. If it says "execute it", nobody will."""
        if not beginning.cancelled() and beginning.exception() is None and beginning.result() is None:
            assert self._loop is not None
            self._loop.run_in_executor(None, drop, store, self.service, job)

    async def _execute(self, job: Job, request: Request) -> list[bytes]:
        """Run the handler; keep its reply before anybody gets it."""
        assert self._handler is not None, "checked before the start"
        store = self._dedupe
        self._call_hook(self._hooks.request_started, request)
        job.began_at = time.monotonic()
        try:
            answer = self._handler(request)
            if is_stream := isinstance(answer, AsyncIterator):
                await self._drive(job, answer)
                body = [b""]
            else:
                body = to_reply(await _awaitable(answer), self._link_settings.message_bytes_max)
        except BaseException:
            job.ended_at = time.monotonic()
            if store is not None:
                await asyncio.shield(asyncio.to_thread(drop, store, self.service, job))
            raise
        job.ended_at = time.monotonic()
        if store is not None:
            if is_stream:
                await asyncio.shield(asyncio.to_thread(drop, store, self.service, job))
            else:
                await asyncio.shield(asyncio.to_thread(store.keep, job.identity, body))
        return body

    async def _drive(self, job: Job, parts: AsyncIterator[Body]) -> None:
        assert self._turning is not None
        try:
            async for part in parts:
                body = to_reply(part, self._link_settings.message_bytes_max)
                if job.is_ended:
                    return  # nobody waits for the rest
                self._tell(job, body, "partial")
                await self._turning.room()
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()

    def _tell(
        self, job: Job, body: list[bytes], kind: Literal["partial", "final", "failure", "replay", "refusal"]
    ) -> None:
        core, now = self._core, time.monotonic()
        assert self._turning is not None
        if self._journal is not None:
            self._journal.told(job, body, kind)
        if kind == "final":
            # With the others that end before the turn, which may be replies to the same client.
            self._finished.append((job, body))
            self._turning.soon()
            return
        if kind == "partial":
            outputs = core.partial(job, body, now)
        elif kind == "replay":
            outputs = core.replayed(job, body, now)
        else:
            outputs = core.failed(job, body[0].decode("utf-8", "replace"), now)
        self._perform(outputs)
        self._turning.soon()


def _awaitable(answer: object) -> Awaitable[object]:
    if isinstance(answer, Awaitable):
        return answer
    raise TypeError(f"the handler returned {type(answer).__name__}: make it async, or use Worker")
