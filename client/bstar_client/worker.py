"""The worker: a handler for one service, offered to every node of the pair.

The thread that runs the worker owns the sockets, sends the heartbeats and drives the core
(``bstar_client.core.worker_session``), which decides everything. Handlers run in threads of their own, so
a long handler starves no heartbeat. Code that holds the interpreter lock for seconds does starve it: give
such work a process of its own.
"""

import logging
import math
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from types import FrameType, GeneratorType, TracebackType
from typing import Literal, Self

import msgspec
import zmq

from bstar.errors import BstarError, ClosedError, ConfigurationError, ForkedError, LocalProtocolError
from bstar.fleet import Endpoints
from bstar.io_threads import new_context
from bstar.wire.limits import CREDIT_MAX
from bstar_client.bodies import Body, to_frames
from bstar_client.core.outputs import Send
from bstar_client.core.worker_dialects import Job
from bstar_client.core.worker_session import (
    Abandon,
    Begin,
    Close,
    Ended,
    Fenced,
    Lost,
    Open,
    Registered,
    WorkerCounters,
    WorkerOutput,
    WorkerSettings,
)
from bstar_client.dedupe import ReplyStore
from bstar_client.journal import JournalPlace, WorkJournal, named_after, open_journal
from bstar_client.link import Links, LinkSettings
from bstar_client.offering import Offer
from bstar_client.wakeup import WakeUp

__all__ = ["Handler", "Request", "Worker", "WorkerHooks"]

_log = logging.getLogger("bstar_client")

# Handlers that run at once have threads of their own.
_THREADS_MAX = 1_000
# A handler that goes on and on does not keep finished replies back for longer: its thread lets go of the
# interpreter until they are on their way.
_UNSENT_S_MAX = 0.001
# If the network takes nothing, handlers go on after so long all the same.
_SENDING_S_MAX = 0.05

# How long a DISCONNECT or a last reply may take to leave the process; with no linger it vanishes (T-09).
LINGER_MS = 300
# Parts of replies that wait to be sent; a handler that yields faster than the network takes them waits here.
_RESULTS_MAX = 1_000
# How long close() waits beyond the drain timeout.
_GRACE_S = 2.0


class Request(msgspec.Struct, frozen=True, eq=False):
    """What a handler is given.

    ``frames`` is the body, one frame or more. ``identity`` names the request for ever (24 octets; in
    plain MDP the client's address) and is the same in every repetition, so it serves as an idempotency
    key. ``is_redelivered``: an earlier delivery of it may have begun. ``epoch``: the activation of the
    pair that dispatched it (0 in plain MDP). ``deadline``: when the client stops waiting, on
    ``time.monotonic()``'s clock; None if it did not say. ``extensions``: the native header's extension
    octets.
    """

    service: bytes
    frames: tuple[bytes, ...]
    identity: bytes
    is_redelivered: bool
    epoch: int
    deadline: float | None
    extensions: bytes

    @property
    def body(self) -> bytes:
        """The only frame of the request; ValueError if there are several (then see ``frames``)."""
        if len(self.frames) != 1:
            raise ValueError(f"the request has {len(self.frames)} frames: read .frames, .body is for one")
        return self.frames[0]

    def remaining(self) -> float | None:
        """Seconds until the client stops waiting, None if it did not say, never below 0."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


Handler = Callable[[Request], Body | Generator[Body, None, Body | None] | None]


class WorkerHooks:
    """Override what you want to observe. What a hook raises is logged and goes no further.

    ``registered``, ``lost`` and ``handler_stuck`` are called in the worker's thread and must not block;
    the others in the handler's.
    """

    def registered(self, worker: "Worker", endpoint: str) -> None:
        """A node has the worker on its list."""

    def lost(self, worker: "Worker", endpoint: str, reason: str) -> None:
        """The session with a node ended; a new one is begun."""

    def request_started(self, worker: "Worker", request: Request) -> None:
        """The handler is about to be called."""

    def request_finished(self, worker: "Worker", request: Request) -> None:
        """The handler returned."""

    def request_failed(self, worker: "Worker", request: Request, error: Exception) -> None:
        """The handler raised."""

    def request_replayed(self, worker: "Worker", request: Request) -> None:
        """A repetition was answered with the reply that was kept (``dedupe``), and not executed."""

    def handler_stuck(self, worker: "Worker", identity: bytes) -> None:
        """A handler ran past its time and was given up."""


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

    ``dedupe``: where replies are kept by ``request.identity``, so that a repetition of a request is answered
    without executing it again: ``ReplyMemory()`` for this process, or for all workers of a machine and across
    restarts ``bstar_client.reply_file.ReplyFile(path)`` (docs/guarantees.md, "One answer per key").

    ``dialect="mdp02"`` speaks plain MDP/0.2 to any broker, with ``heartbeat_s`` and ``liveness`` as
    agreed with it; in the native dialect the broker tells both.

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
        if credit is None:
            credit = threads if threads is not None and dialect == "native" else 1
        settings = WorkerSettings(
            credit,
            handler_timeout_s,
            stuck_handlers_max,
            drain_timeout_s,
            backoff_min_s,
            backoff_max_s,
            threads,
        )
        self._drain_timeout_s = drain_timeout_s
        if threads is not None and not 1 <= threads <= _THREADS_MAX:
            raise ConfigurationError(f"threads is 1 to {_THREADS_MAX}, not {threads}")
        self._threads = min(credit, threads or _THREADS_MAX)
        self._handler = handler
        self._dedupe = dedupe
        self._hooks = hooks or WorkerHooks()
        offer = Offer(
            endpoints,
            service,
            pins=pins,
            dialect=dialect,
            heartbeat_s=heartbeat_s,
            liveness=liveness,
            settings=settings,
            credit_max=_THREADS_MAX if threads is None else CREDIT_MAX,
            keeps_replies=dedupe is not None,
        )
        self.endpoints, self.service, self._core = offer.endpoints, offer.service, offer.core
        self._link_settings = link or LinkSettings()
        self._given_context = context
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: deque[_Result] = deque()
        # When the oldest result became ready, and whether the worker's thread has taken what there was.
        self._unsent_since = 0.0
        self._are_taken = threading.Event()
        self._is_observed = type(self._hooks) is not WorkerHooks
        self._has_room = threading.Event()
        self._is_asleep = False
        self._is_stopping = False
        self._is_ended = False
        self._has_begun = False
        self._journal_place = named_after(journal, offer.pair)
        self._is_plain = offer.is_plain
        self._journal: WorkJournal | None = None
        self._error: BaseException | None = None
        self._wakeup = WakeUp()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def handler(self, function: Handler) -> Handler:
        """Decorator: ``@worker.handler`` makes the function the worker's handler."""
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

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it, a second one at once.

        Raises WorkerError when too many handlers are stuck, ClosedError when it has run before.
        """
        self._check()
        self._open_journal()
        self._has_begun = True
        previous: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                previous[number] = signal.signal(number, self._on_signal)
        try:
            self._serve()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def start(self) -> Self:
        """Serve in a thread of its own, until ``stop`` or ``close``."""
        self._check()
        self._open_journal()
        self._has_begun = True
        self._thread = threading.Thread(target=self._serve_in_thread, name="bstar-worker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask it to drain and end; returns at once. Any thread and any signal handler may call it."""
        self._is_stopping = True
        self._wakeup.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for a started worker to end; False if it has not. Raises the error that ended it."""
        thread = self._thread
        if thread is not None:
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
            self._has_begun = self._is_ended = True
            return
        if not self._is_ended:
            self.stop()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self.join(self._drain_timeout_s + _GRACE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this worker was made before fork(): make a new Worker in the child process")
        if self._has_begun:
            raise ClosedError("a worker runs once: make a new one")
        if self._handler is None:
            raise ConfigurationError("the worker has no handler: pass one or use @worker.handler")

    def _open_journal(self) -> None:
        if self._journal_place is not None:
            journal = open_journal(self._journal_place, "worker", self.endpoints, self.service)
            self._journal = WorkJournal(journal, self.endpoints, self.service, is_plain=self._is_plain)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_stopping:
            raise KeyboardInterrupt
        self.stop()

    # --- the worker's thread ------------------------------------------------------------------------------

    def _serve_in_thread(self) -> None:
        try:
            self._serve()
        except BstarError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - join() raises it
            _log.exception("the worker's thread failed; this is a defect of bstar")
            self._error = error

    def _serve(self) -> None:
        context = self._given_context or new_context(len(self.endpoints))
        links = Links(context, self.endpoints, self._link_settings, self._wakeup)
        for _ in range(self._threads):
            self._add_handler_thread()
        reason = "stopped"
        try:
            try:
                links.open()
            except zmq.ZMQError as error:
                raise ConfigurationError(f"cannot connect to {list(self.endpoints)}: {error}") from error
            self._loop(links)
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._is_ended = True
            for _ in range(self._threads):
                self._jobs.put(None)
            self._has_room.set()
            self._are_taken.set()
            links.close(LINGER_MS)
            if self._given_context is None:
                context.term()
            if self._journal is not None:
                self._journal.close(self._core.unfinished, reason)

    def _loop(self, links: Links) -> None:
        core, results = self._core, self._results
        clock = time.monotonic
        is_told_to_stop = False
        while True:
            now = clock()
            if results and not links.is_congested:
                self._tell_all(links, now)
            if len(results) < _RESULTS_MAX:
                self._has_room.set()
            if self._is_stopping and not is_told_to_stop:
                is_told_to_stop = True
                self._perform(core.stop(now), links)
                continue
            if self._is_ended:
                return
            due = core.next_deadline()
            self._is_asleep = True
            if (results and not links.is_congested) or (self._is_stopping and not is_told_to_stop):
                timeout_ms = 0
            elif due is None:
                timeout_ms = -1
            else:
                timeout_ms = max(0, math.ceil((due - clock()) * 1000))
            messages = links.poll(timeout_ms)
            self._is_asleep = False
            now = clock()
            for node, frames in messages:
                self._perform(core.receive(node, frames, now), links)
            for node, is_up in links.changes():
                self._perform(core.connected(node, now) if is_up else core.disconnected(node, now), links)
            if due is not None and now >= due:
                self._perform(core.handle_timer(now), links)

    def _tell_all(self, links: Links, now: float) -> None:
        """Send what handlers have so far: replies that are ready together go together."""
        results = self._results
        finished: list[tuple[Job, list[bytes]]] = []
        for _ in range(len(results)):
            job, body, kind = results.popleft()
            if kind == "final":
                if self._journal is not None:
                    self._journal.told(job, body, kind)
                finished.append((job, body))
                continue
            self._perform(self._tell(job, body, kind, now), links)
            if links.is_congested:
                break
        self._are_taken.set()
        if len(finished) == 1:
            self._perform(self._core.finished(*finished[0], now), links)
        elif finished:
            self._perform(self._core.finished_all(finished, now), links)

    def _tell(self, job: Job, body: list[bytes], kind: "_Kind", now: float) -> list[WorkerOutput]:
        if self._journal is not None:
            self._journal.told(job, body, kind)
        if kind == "partial":
            return self._core.partial(job, body, now)
        if kind == "replay":
            return self._core.replayed(job, body, now)
        if kind == "expired":
            return self._core.expired(job, now)
        return self._core.failed(job, body[0].decode("utf-8", "replace"), now)

    def _perform(self, outputs: list[WorkerOutput], links: Links) -> None:
        for output in outputs:
            if isinstance(output, Send):
                links[output.node].send(output.frames)
            elif isinstance(output, Begin):
                for job in output.jobs:
                    self._jobs.put(job)
            elif isinstance(output, Abandon):
                if self._journal is not None:
                    self._journal.given_up(output.job)
                _log.error(
                    "a handler of %r ran past its time and was given up (request %s)",
                    self.service,
                    output.job.identity.hex(),
                )
                self._add_handler_thread()
                self._call_hook(self._hooks.handler_stuck, output.job.identity)
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
            elif isinstance(output, Close):
                links[output.node].close()
            elif isinstance(output, Open):
                links[output.node].open()
            else:
                self._end(output)

    def _end(self, output: Ended) -> None:
        self._is_ended = True
        if output.error is not None:
            raise output.error

    def _call_hook(self, hook: Callable[..., None], *arguments: object) -> None:
        try:
            hook(self, *arguments)
        except Exception:  # noqa: BLE001 - whatever it is, it is the observer's
            _log.exception("a hook failed: %s", hook)

    # --- the handlers' threads ----------------------------------------------------------------------------

    def _add_handler_thread(self) -> None:
        threading.Thread(target=self._handle_all, name="bstar-handler", daemon=True).start()

    def _handle_all(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if not self._core.claim(job):
                continue  # it was given back
            self._handle(job)
            if job.is_abandoned:
                return  # another thread has its place
            if self._results and job.ended_at - self._unsent_since > _UNSENT_S_MAX:
                self._are_taken.wait(_SENDING_S_MAX)

    def _handle(self, job: Job) -> None:
        began_at = time.monotonic()
        if job.deadline is not None and began_at >= job.deadline:
            self._post(job, [], "expired")
            return
        request = Request(
            self.service,
            tuple(job.body),
            job.identity,
            job.is_redelivered,
            job.epoch,
            job.deadline,
            job.extensions,
        )
        if self._dedupe is not None and self._is_replayed(self._dedupe, job, request):
            return
        if self._is_observed:
            self._call_hook(self._hooks.request_started, request)
            began_at = time.monotonic()
        assert self._handler is not None, "checked before the start"
        job.began_at = began_at
        try:
            body = self._execute(job, request, self._handler)
        except Exception as error:  # noqa: BLE001 - whatever the handler raises is its answer
            job.ended_at = time.monotonic()
            _log.warning("a handler of %r failed", self.service, exc_info=error)
            self._call_hook(self._hooks.request_failed, request, error)
            self._post(job, as_text(error), "failure")
        else:
            job.ended_at = time.monotonic()
            if self._is_observed:
                self._call_hook(self._hooks.request_finished, request)
            self._post(job, body, "final")

    def _execute(self, job: Job, request: Request, handler: Handler) -> list[bytes]:
        """Run the handler; keep its reply before anybody gets it."""
        store = self._dedupe
        try:
            answer = handler(request)
            if is_generator := isinstance(answer, GeneratorType):
                answer = self._drive(job, answer)
            body = [b""] if answer is None else to_frames(answer)  # type: ignore[arg-type]  # generators went above
            self._check_size(body)
        except BaseException:
            if store is not None:
                store.drop(job.identity)
            raise
        if store is not None:
            if is_generator:
                store.drop(job.identity)
            else:
                store.keep(job.identity, body)
        return body

    def _is_replayed(self, store: ReplyStore, job: Job, request: Request) -> bool:
        """Answer the request without executing it, if it was executed before."""
        try:
            kept = store.begin(job.identity, request.frames, job.deadline)
        except Exception as error:  # noqa: BLE001 - whatever the store raises is the answer
            _log.warning("a request of %r was not executed", self.service, exc_info=error)
            self._post(job, as_text(error), "refusal")
            return True
        if kept is None:
            return False
        self._call_hook(self._hooks.request_replayed, request)
        self._post(job, kept, "replay")
        return True

    def _drive(self, job: Job, generator: "GeneratorType[Body, None, Body | None]") -> Body | None:
        while True:
            try:
                part = next(generator)
            except StopIteration as end:
                result: Body | None = end.value
                return result
            body = to_frames(part)
            self._check_size(body)
            while len(self._results) >= _RESULTS_MAX and not job.is_ended and not self._is_ended:
                self._has_room.clear()
                if len(self._results) >= _RESULTS_MAX:
                    self._has_room.wait(1.0)
            if job.is_ended or self._is_ended:
                generator.close()  # nobody waits for the rest
                return None
            self._post(job, body, "partial")

    def _check_size(self, body: list[bytes]) -> None:
        if sum(map(len, body)) > self._link_settings.message_bytes_max - 1_024:
            raise LocalProtocolError(f"a reply has more than {self._link_settings.message_bytes_max} octets")

    def _post(self, job: Job, body: list[bytes], kind: "_Kind") -> None:
        if not self._results:
            self._unsent_since = job.ended_at
            self._are_taken.clear()
        self._results.append((job, body, kind))
        if self._is_asleep:
            self._is_asleep = False
            self._wakeup.set()


def as_text(error: BaseException) -> list[bytes]:
    """What a failed handler's client is told."""
    return [f"{type(error).__name__}: {error}".encode("utf-8", "replace")]


# "replay", "refusal" and "expired" are answers of requests that were not executed.
_Kind = Literal["partial", "final", "failure", "replay", "refusal", "expired"]
_Result = tuple[Job, list[bytes], _Kind]
