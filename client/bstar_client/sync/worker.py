"""The worker for threads: a handler for one service, offered to every node of its pair.

The core (``bstar_client.core.worker.session``) decides everything; ``worker_loop`` has the threads.
Heartbeats wait for no handler, but they need the interpreter's lock: code that holds it for seconds needs a
process of its own.
"""

import logging
import os
import threading
from types import FrameType
from typing import Self, TypeVar

from bstar.base.printable import printable
from bstar.errors import BstarError
from bstar.net.stop_signals import on_stop_signals
from bstar_client.arguments.checks import check_handler
from bstar_client.links.unclosed import guard
from bstar_client.sync.worker_loop import WorkerLoop
from bstar_client.workers.handlers import Handler
from bstar_client.workers.worker import THREADS_MAX, BaseWorker

_HandlerT = TypeVar("_HandlerT", bound=Handler)

_log = logging.getLogger("bstar_client")

# How long close() waits beyond the drain timeout.
_GRACE_S = 2.0
# How long the process's exit waits for a worker that was not closed to leave its nodes.
_EXIT_S = 1.0


class Worker(BaseWorker[Handler]):
    """Offers ``service`` to every node in ``endpoints`` and calls ``handler(request)`` for each request.

    ``endpoints`` and ``pins`` are those of ``HAClient`` and must say the same, or clients look elsewhere. Of
    several pairs the worker registers at the one that the service belongs to (docs/fleet.md).

    The handler returns the reply: bytes, a sequence of bytes for several frames, or None for one empty
    frame. A generator's yields are sent as PARTIALs, and what it returns is the FINAL. An exception becomes
    the client's HandlerError, with its type and text; in plain MDP, which knows no errors, a FINAL of two
    frames, ``500`` and the text. The worker lives on. ``raise Declined(…)`` is an answer, and no failure.

    A handler may take a value and return one, as its annotations say: ``def price(ask: Ask) -> Price``
    (docs/clients.md, "Typed handlers"). A second parameter of type Request gets the request.

    ``run()`` blocks until SIGTERM, SIGINT or ``stop()``, then finishes what runs (``drain_timeout_s``),
    leaves the nodes in good order and returns. ``start()`` does the same in a thread; ``with Worker(…)``
    starts and closes. ``handler_timeout_s``: the client of a handler that takes longer gets an error. Its
    thread cannot be killed, so with ``stuck_handlers_max`` of them ``run()`` raises WorkerError.

    A caller that gives up (its deadline, ``break`` out of a stream, a cancelled task) cancels its request:
    one that waits does not begin, and a handler sees ``request.is_cancelled`` or asks to be called
    (``request.on_cancel``). The metrics show a handler that still runs ``cancel_grace_s`` later.

    ``credit``: how many requests may be with the worker at once (as many as ``threads``, else 1).
    ``threads``: how many handlers run at once (as many as ``credit``). With fewer threads than credit the
    rest waits here: a thread finds its next request at hand, and requests and replies travel together
    (``credit=256, threads=1`` for a quick handler). When the worker stops or is lost, its nodes give what
    waits here to others.

    Handlers run in threads of the worker's own, never in the one that calls ``run``. A thread lives as long
    as the worker, so what belongs to it (an ``sqlite3`` connection, ``threading.local``) serves all handlers
    that run in it. A handler past its time keeps its thread, and a new one takes its place.

    ``dedupe``: a store of replies by ``request.identity``; it answers a repeated request, which is not
    executed again. ``ReplyMemory()`` is for this process, ``ReplyFile(path)`` for all workers
    of a machine and across restarts (docs/guarantees.md, "One answer per key").

    ``version``: of the service, as "1.4". ``description``: what it does, in one line; None for the first line
    of the handler's docstring. The nodes show both to everyone who may look, with the schemas of typed bodies
    (docs/clients.md, "What a service says of itself").

    ``dialect``: ``"mdp01"`` and ``"mdp02"`` speak plain Majordomo to any broker. ``"ppp"`` and ``"spp"`` are
    workers of the Paranoid and of the Simple Pirate at any queue: ``endpoints`` are where it takes workers,
    and ``service`` is a name for logs and metrics. All four take one request at a time. MDP/0.1 and the
    Pirates have one reply for a request, so PARTIALs wait, and stand before the FINAL. ``heartbeat_s`` (None:
    the published 2.5, for ``"ppp"`` 1) and ``liveness`` must be the broker's. In the native dialect the
    broker tells both; ``"spp"`` has no heartbeats.

    ``backoff_min_s`` to ``backoff_max_s``: the pause before it connects to a node again, doubled with each
    failure in a row. ``hooks``: an observer of sessions and requests. ``link``: socket options.
    ``security``: its key, and the keys of the nodes (``bstar.security``). ``context``: a ZeroMQ context to
    share; the worker does not end it.

    ``journal``: a directory in which the worker records its executions and its sessions, or JournalSettings;
    see docs/journal.md. It never makes a handler wait.

    ``http``: ``ADDRESS:PORT`` on loopback, or HttpPlace, where ``/healthz``, ``/readyz`` and ``/metrics`` are
    served while it runs (docs/operations.md, "Probes and metrics of workers, clients and arbiters").
    """

    _credit_default = 1
    # Without ``threads`` each request in the worker has a thread of its own.
    _credit_max = THREADS_MAX

    def _init_shell(self) -> None:
        self._loop = self._new_loop()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def _new_loop(self) -> WorkerLoop:
        return WorkerLoop(self, self._settings, self._core)

    def handler(self, function: _HandlerT) -> _HandlerT:
        """Decorator: ``@worker.handler`` makes the function the worker's handler."""
        check_handler(function)
        self._handler = self._loop.handler = self._bind(function)
        return function

    # --- life ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it; a second signal stops it at
        once.

        Raises WorkerError if too many handlers are stuck, ClosedError if the worker has run before.
        """
        self._begin()
        try:
            with on_stop_signals(self._on_signal):
                self._loop.serve()
        finally:
            self._close_probes()

    def start(self) -> Self:
        """Serve in a thread of its own, until ``stop`` or ``close``."""
        self._begin()
        self._thread = threading.Thread(target=self._serve_in_thread, name="bstar-worker", daemon=True)
        name = f'Worker({", ".join(self.endpoints)}) for "{printable(self.service)}"'
        # The thread refers to the worker, so only the process's exit can come before close().
        self._guard = guard(self, name, "use it in 'with', or call close()", self._leave)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the worker to drain and end; returns at once. Any thread and any signal handler may call it."""
        self._loop.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for a started worker to end; False if it has not. Raises the error that ended it.

        RuntimeError in a hook: the worker waits for its hooks.
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
        if self._pid == os.getpid() and self._has_begun:
            self.stop()
            # A hook would wait for itself.
            if not self._is_in_hook:
                self.join(self._settings.limits.drain_timeout_s + _GRACE_S)
        self._has_begun = True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self, timeout_s: float) -> bool:
        return self._loop.answers(timeout_s)

    @property
    def _is_in_hook(self) -> bool:
        return self._loop.announcing_in == threading.get_ident()

    def _begin(self) -> None:
        self._check_begin()
        self._open_probes()
        try:
            self._loop.journal = self._settings.open_journal()
        except BaseException:
            self._close_probes()
            raise
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
            self._guard.detach()
            self._close_probes()
