"""The worker: a handler for one service, offered to every node of the pair.

The core (``bstar_client.core.worker_session``) decides everything; ``worker_loop`` has the threads.
Heartbeats wait for no handler, but they need the interpreter's lock: code that holds it for seconds needs a
process of its own.
"""

import logging
import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Literal, Self, TypeVar

import zmq

from bstar.errors import BstarError, ClosedError, ConfigurationError, ForkedError
from bstar.fleet import Endpoints
from bstar.printable import printable
from bstar.wire.limits import CREDIT_MAX
from bstar_client.checks import check_handler, to_count
from bstar_client.core.node_sessions import WorkerCounters
from bstar_client.core.worker_jobs import WorkerLimits
from bstar_client.handlers import Handler, WorkerHooks
from bstar_client.journal import JournalPlace
from bstar_client.registration import WorkerSettings
from bstar_client.replies import ReplyStore
from bstar_client.settings import LinkSettings
from bstar_client.sync.worker_loop import WorkerLoop
from bstar_client.unclosed import Guard

_HandlerT = TypeVar("_HandlerT", bound=Handler)

_log = logging.getLogger("bstar_client")

# Handlers that run at once have threads of their own.
_THREADS_MAX = 1_000
# How long close() waits beyond the drain timeout.
_GRACE_S = 2.0
# How long the process's exit waits for a worker that nobody closed to leave its nodes.
_EXIT_S = 1.0


class Worker:
    """Offers ``service`` to every node in ``endpoints`` and calls ``handler(request)`` for each request.

    With several pairs in ``endpoints``, to every node of the pair that the service belongs to. ``endpoints``
    and ``pins`` are as ``HAClient`` takes them and must say the same, or clients look elsewhere
    (docs/fleet.md).

    The handler returns the reply: bytes, a sequence of bytes for several frames, or None for one empty
    frame. A generator's yields are sent as PARTIALs, and what it returns is the FINAL (None: one empty
    frame). An exception becomes the error that the client sees as HandlerError, with its type and text;
    in plain MDP, which knows no errors, a FINAL of two frames, ``500`` and the text. The worker lives on.

    ``run()`` blocks until SIGTERM, SIGINT or ``stop()``, then finishes what runs (``drain_timeout_s``),
    leaves the nodes in good order and returns. ``start()`` does the same in a thread; ``with Worker(…)``
    starts and closes. ``handler_timeout_s``: a handler that takes longer is answered for and given up;
    its thread cannot be killed, so after ``stuck_handlers_max`` of them ``run()`` raises WorkerError.
    ``credit`` requests may be with the worker at once, and so many handlers run at once (as many as there are
    ``threads``, else 1); or ``threads``, if that is fewer: then the rest waits here, so that a handler
    that is done has the next request at hand, and requests and replies travel together
    (``credit=256, threads=1`` for a quick handler). What waits here when the worker stops or is lost is
    given to others.

    Handlers run in the worker's own threads, never in the one that calls ``run``, and these stay the same as
    long as the worker runs: with one thread every handler sees the same one, so what belongs to a thread
    (an ``sqlite3`` connection, ``threading.local``) can be made in the first and used in all. Only a handler
    that is given up takes its thread with it, and another takes its place.

    ``dedupe``: where replies are kept by ``request.identity``, so that a repetition of a request is answered
    without executing it again: ``ReplyMemory()`` for this process, or for all workers of a machine and across
    restarts ``bstar_client.reply_file.ReplyFile(path)`` (docs/guarantees.md, "One answer per key").

    ``dialect="mdp02"`` speaks plain MDP/0.2 to any broker, with ``heartbeat_s`` and ``liveness`` as
    agreed with it; in the native dialect the broker tells both.

    ``backoff_min_s`` to ``backoff_max_s``: the pause before it connects to a node again, doubled with each
    failure in a row. ``hooks``: what is told of sessions and requests. ``link``: socket options. ``context``:
    a ZeroMQ context to share, which is not ended with the worker.

    ``journal``: a directory in which the worker notes its executions and its sessions, or JournalSettings;
    see docs/journal.md. It never makes a handler wait.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        service: str | bytes,
        handler: Handler | None = None,
        *,
        pins: Mapping[str, str] | None = None,
        dialect: Literal["native", "mdp02"] = "native",
        credit: int | None = None,
        threads: int | None = None,
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
        if threads is not None:
            threads = to_count(threads, "threads", 1, _THREADS_MAX)
        if handler is not None:
            check_handler(handler)
        if credit is None:
            credit = threads if threads is not None and dialect == "native" else 1
        # Without ``threads`` each request that is here has a thread of its own.
        credit_max = _THREADS_MAX if threads is None else CREDIT_MAX
        limits = WorkerLimits(
            credit,
            handler_timeout_s,
            stuck_handlers_max,
            drain_timeout_s,
            backoff_min_s,
            backoff_max_s,
            threads,
        )
        self._settings = settings = WorkerSettings.of(
            endpoints,
            service,
            pins=pins,
            dialect=dialect,
            limits=limits,
            credit_max=credit_max,
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
        self._loop = WorkerLoop(self, settings, self._core)
        self._loop.handler = handler
        self._has_begun = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._guard: Guard | None = None
        self._pid = os.getpid()

    def handler(self, function: _HandlerT) -> _HandlerT:
        """Decorator: ``@worker.handler`` makes the function the worker's handler."""
        check_handler(function)
        self._loop.handler = function
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

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it, a second one at once.

        Raises WorkerError when too many handlers are stuck, ClosedError when it has run before.
        """
        self._begin()
        previous: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                previous[number] = signal.signal(number, self._on_signal)
        try:
            self._loop.serve()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def start(self) -> Self:
        """Serve in a thread of its own, until ``stop`` or ``close``."""
        self._begin()
        self._thread = threading.Thread(target=self._serve_in_thread, name="bstar-worker", daemon=True)
        name = f'Worker({", ".join(self.endpoints)}) for "{printable(self.service)}"'
        # Its thread keeps it: only the process's exit can come before close().
        self._guard = Guard(self, name, "use it in 'with', or call close()", self._leave)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask it to drain and end; returns at once. Any thread and any signal handler may call it."""
        self._loop.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for a started worker to end; False if it has not. Raises the error that ended it.

        RuntimeError in a hook, for whose return the worker waits itself.
        """
        thread = self._thread
        if thread is not None:
            if self._is_in_hook:
                raise RuntimeError("a hook cannot wait for the end of the worker that calls it")
            thread.join(timeout)
            if thread.is_alive():
                return False
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True

    def close(self) -> None:
        """Stop and wait for the end, within the drain timeout. Idempotent."""
        if self._pid != os.getpid():
            return
        if not self._has_begun:
            self._has_begun = self._loop.is_ended = True
            return
        if not self._loop.is_ended:
            self.stop()
        # A hook would wait for itself.
        if not self._is_in_hook:
            self.join(self._settings.limits.drain_timeout_s + _GRACE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _is_in_hook(self) -> bool:
        return self._loop.announcing_in == threading.get_ident()

    def _begin(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this worker was made before fork(): make a new Worker in the child process")
        if self._has_begun:
            raise ClosedError("a worker runs once: make a new one")
        if self._loop.handler is None:
            raise ConfigurationError("the worker has no handler: pass one or use @worker.handler")
        self._loop.journal = self._settings.open_journal()
        self._has_begun = True

    def _leave(self, is_exit: bool) -> None:
        assert self._thread is not None
        self.stop()
        self._thread.join(_EXIT_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._loop.is_stopping:
            raise KeyboardInterrupt
        self.stop()

    def _serve_in_thread(self) -> None:
        try:
            self._loop.serve()
        except BstarError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - join() raises it
            _log.exception("the worker's thread failed; this is a defect of bstar")
            self._error = error
        finally:
            assert self._guard is not None
            self._guard.close()
