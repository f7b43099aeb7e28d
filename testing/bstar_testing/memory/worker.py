"""The workers of a pair in memory: ``Worker`` and ``AsyncWorker`` with their handlers, without sockets.

A sync handler runs in the thread that waits for a reply, or in the event loop's. One that yields runs in a
thread of its own, part by part, because its caller may want to see the first part before the last.
"""

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Self, cast

from msgspec.structs import asdict

from bstar.errors import BstarError
from bstar_client import AsyncWorker, Request, Worker
from bstar_client.aio.worker_loop import WorkerLoop as AsyncWorkerLoop
from bstar_client.arguments.checks import is_any
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.outputs import Begin
from bstar_client.core.worker.session import WorkerCore
from bstar_client.sync.executor import Executor
from bstar_client.sync.mailboxes import Outbox
from bstar_client.sync.policy import Policy
from bstar_client.sync.worker_loop import WorkerLoop
from bstar_client.workers.dispatch import Dispatcher, Result
from bstar_client.workers.failures import is_interrupt
from bstar_client.workers.worker import WorkerSettings
from bstar_testing.memory.client import MemoryNet
from bstar_testing.memory.world import World

# What a part of a stream takes. Without it a handler that yields for ever would let no other time pass.
_PART_S = 0.0001
# So long after its deadline a stream ends: its caller has waited a little longer than the nodes.
_LATE_S = 0.2


class MemoryRequest(Request, frozen=True, eq=False, gc=False):
    """A request whose deadline is on the pair's clock."""

    clock: Callable[[], float] = time.monotonic

    def remaining(self) -> float | None:
        """Seconds until the client stops waiting."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock())


class MemoryDispatcher(Dispatcher):
    """What both kinds of workers do in another way than on sockets."""

    def request_of(self, job: Job) -> Request:
        """The handler's view of a job."""
        cast("MemoryNet", self.settings.net).world.note_handler()
        return MemoryRequest(**asdict(super().request_of(job)), clock=self.settings.net.clock)

    def failed(self, job: Job, request: Request, error: BaseException) -> Result:
        """Report the handler's exception, and keep it for its caller."""
        cast("MemoryNet", self.settings.net).world.raised[job.identity] = error
        return super().failed(job, request, error)

    def _warn_unregistered(self, endpoints: tuple[str, ...]) -> None:
        """There is nothing to find at endpoints in memory."""


class MemoryWorker(Worker):
    """A worker for sync handlers."""

    def __init__(self, net: MemoryNet, service: str | bytes, handler: Any, **options: Any) -> None:
        self._net: MemoryNet = net
        super().__init__(net.endpoints, service, handler, **options)

    def _new_loop(self) -> WorkerLoop:
        self._memory_loop = MemoryWorkerLoop(self, self._settings, self._core)
        return cast("WorkerLoop", self._memory_loop)

    def start(self) -> Self:
        """Serve until ``close``."""
        self._begin()
        self._memory_loop.start()
        return self

    def close(self) -> None:
        """Leave the nodes at once."""
        self._memory_loop.end()


class MemoryWorkerLoop(MemoryDispatcher):
    """What a worker uses of its ``WorkerLoop``: a core, and handlers as jobs of the ``World``."""

    announcing_in = 0

    def __init__(self, worker: object, settings: WorkerSettings, core: WorkerCore) -> None:
        super().__init__(worker, settings, core)
        self._world: World = cast("MemoryNet", settings.net).world
        self.links = cast("Any", settings.net.new_links(poll=self))
        outbox = cast("Outbox", _Outbox(self))
        policy = Policy(settings.threads, settings.limits.handler_timeout_s)
        self._executor = Executor(self, outbox, policy, lambda: None)
        self._threads = settings.threads
        self._running = 0
        self._waiting: deque[Job] = deque()
        self.strands: dict[int, _Strand] = {}
        self.has_ended = True  # until it starts

    def start(self) -> None:
        """Register at the nodes."""
        self.has_ended = False
        self.links.open_all()
        self._core.begin(self._world.now)
        self._world.timed.append(self)

    def end(self) -> None:
        """Leave the nodes. Idempotent."""
        if not self.has_ended:
            self.perform(self._core.end(self._world.now))
            self.has_ended = True
            self._world.timed.remove(self)
            self.links.end()
            for strand in list(self.strands.values()):
                strand.resume()
            if self.journal is not None:
                self.journal.close(self._core.unfinished, "stopped")

    # --- the world ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has arrived."""
        if not self.has_ended:
            self.links.step(self._core, self.perform)

    def next_deadline(self) -> float | None:
        """When the core is due."""
        return self._core.next_deadline()

    def on_time(self) -> None:
        """It is due."""
        self.perform(self._core.handle_timer(self._world.now))

    # --- handlers -------------------------------------------------------------------------------------------

    def _begin(self, output: Begin) -> None:
        self._waiting.extend(output.jobs)
        for _ in output.jobs:
            self._world.offer(self._run_next)

    def _run_next(self) -> None:
        with self._world.lock:
            if not self._waiting or self._running >= self._threads:
                return
            job = self._waiting.popleft()
            if self.has_ended or not self._core.claim(job):
                return
            self._running += 1
        if is_any(self.handler, inspect.isgeneratorfunction):
            _Strand(self._world, self, partial(self._execute, job)).resume()
        else:
            self._execute(job)

    def _execute(self, job: Job) -> None:
        try:
            self._executor.execute(job)
        finally:
            with self._world.lock:
                self._running -= 1
                if self._waiting:
                    self._world.offer(self._run_next)

    def report(self, result: Result) -> None:
        """A handler has a result: send it. In any thread."""
        with self._world.lock:
            if not self.has_ended:
                self.answer_all(deque([result]), self._world.now)

    def failed(self, job: Job, request: Request, error: BaseException) -> Result:
        """Report the handler's exception; Ctrl-C is the program's."""
        if is_interrupt(error):
            raise error
        return super().failed(job, request, error)

    def pause(self, job: Job) -> bool:
        """Let the others go on before the next part of a stream. False: no caller waits for the rest."""
        strand, world = self.strands.get(threading.get_ident()), self._world
        if strand is not None:
            world.at(world.now + _PART_S, lambda: world.offer(strand.resume))
            strand.pause()
        is_late = job.deadline is not None and world.now >= job.deadline + _LATE_S
        return not (is_late or job.is_ended or self.has_ended or job.cancelled_at is not None)

    def _abandon(self, job: Job) -> None:
        """The handler is stuck: others may run beside it."""
        self._threads += 1

    def _tell_progress(self, job: Job) -> None:
        self.report((job, [], "progress"))

    def _end(self, error: BstarError | None) -> None:
        """The world does not wait for the worker: its callers see that it is gone."""


class _Outbox:
    """What an executor uses of its ``Outbox``."""

    def __init__(self, loop: MemoryWorkerLoop) -> None:
        self.post = loop.report
        self.wait_for_room = loop.pause


class _Strand:
    """A handler in a thread of its own, which runs only while ``resume`` waits for it."""

    def __init__(self, world: World, loop: MemoryWorkerLoop, execute: Callable[[], object]) -> None:
        self._world = world
        self._loop = loop
        self._execute = execute
        self._go, self._is_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_over = False
        run = partial(copy_context().run, self._run)
        threading.Thread(target=run, name="bstar-handler", daemon=True).start()

    def resume(self) -> None:
        """Let it go on until it pauses or ends. Raises what ended it."""
        if not self._is_over:
            self._go.release()
            self._is_paused.acquire()
            if self._error is not None:
                raise self._error

    def pause(self) -> None:
        """In its thread: wait for ``resume``."""
        self._is_paused.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        here = threading.get_ident()
        self._loop.strands[here] = self
        try:
            with self._world.as_job():
                self._execute()
        except BaseException as error:  # noqa: BLE001 - ``resume`` raises it
            self._error = error
        finally:
            del self._loop.strands[here]
            self._is_over = True
            self._is_paused.release()


class AsyncMemoryLoop(MemoryDispatcher, AsyncWorkerLoop):
    """A worker's loop for async handlers."""


class AsyncMemoryWorker(AsyncWorker):
    """A worker for async handlers."""

    _loop_type = AsyncMemoryLoop

    def __init__(self, net: MemoryNet, service: str | bytes, handler: Any, **options: Any) -> None:
        self._net: MemoryNet = net
        super().__init__(net.endpoints, service, handler, **options)
