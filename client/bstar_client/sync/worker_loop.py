"""A worker's threads and what they do: attend to the sockets, call handlers, send what comes of them.

``Serving`` is what ``Worker`` is made of. ``leading`` says which thread attends to the sockets, ``handling``
what becomes of a request, ``bstar_client.core.worker_session`` decides everything else. Whoever leads
receives and sends; requests go to the leader's own list while it calls the handlers, otherwise to the queue
of the handlers' threads. Results always go through the outbox.
"""

import enum
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final

import zmq

from bstar.errors import ConfigurationError
from bstar.io_threads import new_context
from bstar.printable import printable
from bstar_client.core.lanes import Lanes
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
    WorkerCore,
    WorkerOutput,
)
from bstar_client.failures import report_given_up, warn_late
from bstar_client.handlers import WorkerHooks
from bstar_client.journal import WorkJournal
from bstar_client.link import Links
from bstar_client.replies import ReplyStore
from bstar_client.settings import LinkSettings
from bstar_client.sync.handling import SHORT_MIN, Handling
from bstar_client.sync.leader import Lead
from bstar_client.sync.outbox import UNSENT_S_MAX, Kind, Outbox
from bstar_client.sync.waiting import Waiting
from bstar_client.wakeup import WakeUp

if TYPE_CHECKING:
    from bstar_client.sync.worker import Worker

__all__ = ["LINGER_MS", "Serving"]

_log = logging.getLogger("bstar_client")

_clock = time.monotonic

# How long a DISCONNECT or a last reply may take to leave the process; with no linger it vanishes (T-09).
LINGER_MS = 300
# Handlers that take less, on the average, are called by the thread that leads. The only one: as long as the
# keeper need not step in. One of several: as long as handing a request to another thread takes longer.
_QUICK_S = 0.002
_QUICK_AMONG_S = 0.0002
# Of several threads: requests that came together go to all of them, if handlers take longer than this or one
# of the last few hundred took a millisecond. Handing over one of many costs less, and a handler that takes
# long may only be waiting.
_QUICK_TOGETHER_S = 0.00001
# They come together no more when so many in a row came alone.
_ALONE_MIN = 16
# The limit to a handler's time is counted from when its request is given out: with several threads and a
# limit below this, requests are given to threads that do nothing else.
_TIMEOUT_S_MIN = 1.0

_GONE: Final = object()


class _Word(enum.Enum):
    """What a handlers' thread is told instead of a request."""

    LEAD = enum.auto()
    END = enum.auto()


class Serving:
    """One worker at work. ``serve`` is called once, in the thread that becomes the keeper."""

    def __init__(
        self,
        worker: "Worker",
        core: WorkerCore,
        *,
        threads: int,
        handler_timeout_s: float | None,
        hooks: WorkerHooks,
        dedupe: ReplyStore | None,
        link_settings: LinkSettings,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
    ) -> None:
        self.journal: WorkJournal | None = None
        self.is_stopping = False
        self.is_ended = False
        self._core = core
        self._service = worker.service
        self._endpoints = worker.endpoints
        self._hooks = hooks
        self._threads = threads
        self._handler_timeout_s = handler_timeout_s
        self._given_context = context
        self._wakeup = WakeUp()
        self._link_settings = link_settings
        self._links: Links
        self._lead = Lead()
        self._outbox = Outbox(self._wakeup)
        quick_s = _QUICK_S if threads == 1 else _QUICK_AMONG_S
        if threads > 1 and handler_timeout_s is not None and handler_timeout_s < _TIMEOUT_S_MIN:
            quick_s = 0.0
        self.handling = Handling(
            worker,
            hooks=hooks,
            dedupe=dedupe,
            reply_bytes_max=link_settings.message_bytes_max,
            outbox=self._outbox,
            quick_s=quick_s,
            on_generator=self._lead.urge,
        )
        self._queue: Waiting[_Word] = Waiting()
        # Requests of a leader that calls the handlers itself, and whether it is one.
        self._own = Lanes()
        self._is_calling = False
        # Requests in a row, so many at most, during which there was no other.
        self._alone = _ALONE_MIN
        # With a limit to their time: the handlers that have a thread. Who takes one out settles whether its
        # thread still has its place.
        self._places: dict[Job, None] | None = None if handler_timeout_s is None else {}
        self._is_told_to_stop = False
        self._failure: BaseException | None = None

    @property
    def is_attended_here(self) -> bool:
        """Is the calling thread the one that attends to the sockets, and not in a handler?"""
        return self._lead.is_mine

    def stop(self) -> None:
        """Begin to drain. Any thread and any signal handler may call it."""
        self.is_stopping = True
        self._wakeup.set()
        self._lead.urge()

    def serve(self) -> None:
        """Serve until the worker has ended; raises what ended it."""
        context = self._given_context or new_context(len(self._endpoints))
        self._links = links = Links(context, self._endpoints, self._link_settings, self._wakeup)
        self._lead.begin()
        for _ in range(self._threads):
            self._add_thread()
        reason = "stopped"
        try:
            try:
                links.open()
            except zmq.ZMQError as error:
                raise ConfigurationError(f"cannot connect to {list(self._endpoints)}: {error}") from error
            self._keep()
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.is_ended = True
            self._wakeup.set()
            is_ours = self._lead.take_back()
            for _ in range(self._threads):
                self._queue.say(_Word.END)
            self._outbox.end()
            if is_ours:
                links.close(LINGER_MS)
                if self._given_context is None:
                    context.term()
            else:
                _log.error(
                    'a hook does not return: the sockets of the worker for "%s" stay open',
                    printable(self._service),
                )
            if self.journal is not None:
                self.journal.close(self._core.unfinished, reason)

    # --- the keeper's thread ------------------------------------------------------------------------------

    def _keep(self) -> None:
        counters = self._core.counters
        while True:
            self._attend(is_keeper=True)
            if self.is_ended:
                break
            self._lead.offer()
            self._queue.say(_Word.LEAD)
            if not self._lead.wait(lambda: counters.requests):
                break
            self.handling.lasts()
            while self._own:
                self._queue.put((self._own.pop(),))
        if self._failure is not None:
            raise self._failure

    # --- handlers' threads --------------------------------------------------------------------------------

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="bstar-handler", daemon=True).start()

    def _work(self) -> None:
        outbox, lead = self._outbox, self._lead
        while (job := self._queue.get()) is not _Word.END:
            if isinstance(job, Job):
                if not self._take_place(job):
                    continue  # it was given back
                ended_at = self.handling.handle(job)
                if not self._leave_place(job):
                    return
                outbox.let_go(ended_at)
            if lead.is_offered and lead.accept() and not self._work_and_lead():
                return

    def _work_and_lead(self) -> bool:
        """Lead, as long as no handler lasts. False: this thread's place was given to another."""
        try:
            self._own.push(self._queue.take())
            return self._attend(is_keeper=False)
        except BaseException as error:  # noqa: BLE001 - the keeper raises it
            self._failure = error
            self.is_ended = True
            self._wakeup.set()
            self._lead.end()
            return True

    def _call_own(self, now: float) -> Job | None:
        """Call handlers for a millisecond or so; the job in whose time another thread began to lead."""
        own, lead, handle, claim = self._own, self._lead, self.handling.handle, self._core.claim
        turns = own.turns
        has_places = self._places is not None
        since, until = now, now + UNSENT_S_MAX
        while turns:
            job = own.pop()
            if not (self._take_place(job) if has_places else claim(job)):
                continue
            lead.leave(job, since)
            try:
                since = handle(job)
            except BaseException:
                lead.resume(job)
                raise
            if not lead.resume(job):
                return job
            if has_places:
                self._leave_place(job)
            if since > until:
                break
        return None

    def _take_place(self, job: Job) -> bool:
        """Is its handler to be called? Not if the request was given back."""
        places = self._places
        if places is not None:
            places[job] = None
        if self._core.claim(job):
            return True
        if places is not None:
            places.pop(job, None)
        return False

    def _leave_place(self, job: Job) -> bool:
        """The handler has returned. False: its thread's place was given to another."""
        return self._places is None or self._places.pop(job, _GONE) is not _GONE

    # --- whoever leads ------------------------------------------------------------------------------------

    def _attend(self, *, is_keeper: bool) -> bool:
        """Attend to the sockets until another thread is to lead or the worker has ended.

        False: the calling thread's place was given to another.
        """
        core, links, outbox, handling, own = self._core, self._links, self._outbox, self.handling, self._own
        results = outbox.results
        self._is_calling = not is_keeper
        while True:
            now = _clock()
            if results and not links.is_congested:
                self._tell_all(now)
            if self.is_stopping and not self._is_told_to_stop:
                self._is_told_to_stop = True
                self._perform(core.stop(now))
                continue
            if self.is_ended:
                if not is_keeper:
                    self._lead.end()
                return True
            if is_keeper:
                if handling.is_quick and not self._is_told_to_stop and self._may_call(core.running):
                    return True
            elif not handling.is_quick or (own and not self._may_call(core.running)):
                self._lead.give_back()
                return True
            due = core.next_deadline()
            outbox.is_asleep = True
            if (
                own
                or (results and not links.is_congested)
                or (self.is_stopping and not self._is_told_to_stop)
            ):
                timeout_ms = 0
            elif due is None:
                timeout_ms = -1
            else:
                timeout_ms = max(0, math.ceil((due - _clock()) * 1000))
            # A handler may hold the GIL before and after the sockets are looked at. What has come until this
            # moment is read before anything is found overdue.
            asked_at = _clock()
            messages = links.poll(timeout_ms)
            outbox.is_asleep = False
            now = _clock()
            for node, frames in messages:
                self._perform(core.receive(node, frames, now))
            for node, is_up in links.changes():
                self._perform(core.connected(node, now) if is_up else core.disconnected(node, now))
            if due is not None and asked_at >= due:
                self._perform(core.handle_timer(asked_at))
            if own and self._may_call(core.running) and (lasting := self._call_own(now)) is not None:
                return self._leave_place(lasting)

    def _may_call(self, count: int) -> bool:
        """May one thread call the handlers for all of so many requests, while handlers are quick?"""
        if self._threads == 1:
            return True
        self._alone = 0 if count > 1 else min(self._alone + 1, _ALONE_MIN)
        if self._alone == _ALONE_MIN:
            return True
        handling = self.handling
        return handling.short_in_a_row >= SHORT_MIN and handling.mean_s < _QUICK_TOGETHER_S

    def _tell_all(self, now: float) -> None:
        """Send what handlers have so far: replies that are ready together go together."""
        core, results, journal = self._core, self._outbox.results, self.journal
        finished: list[tuple[Job, list[bytes]]] = []
        for _ in range(len(results)):
            job, body, kind = results.popleft()
            if journal is not None:
                journal.told(job, body, kind)
            if kind == "final":
                finished.append((job, body))
                continue
            self._perform(self._tell(job, body, kind, now))
            if self._links.is_congested:
                break
        self._outbox.taken()
        if len(finished) == 1:
            self._perform(core.finished(*finished[0], now))
        elif finished:
            self._perform(core.finished_all(finished, now))

    def _tell(self, job: Job, body: list[bytes], kind: Kind, now: float) -> list[WorkerOutput]:
        if kind == "partial":
            return self._core.partial(job, body, now)
        if kind == "replay":
            return self._core.replayed(job, body, now)
        if kind == "expired":
            return self._core.expired(job, now)
        return self._core.failed(job, body[0].decode("utf-8", "replace"), now)

    def _perform(self, outputs: list[WorkerOutput]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                self._links[output.node].send(output.frames)
            elif isinstance(output, Begin):
                if self._is_calling:
                    self._own.push(output.jobs, are_one_clients=output.are_one_clients)
                else:
                    self._queue.put(output.jobs, are_one_clients=output.are_one_clients)
            elif isinstance(output, Abandon):
                self._abandon(output.job)
            elif isinstance(output, Registered):
                if self.journal is not None:
                    self.journal.registered(output.endpoint)
                self.handling.call_hook(self._hooks.registered, output.endpoint)
            elif isinstance(output, Lost):
                _log.info("the session with %s ended: %s", output.endpoint, output.reason)
                if self.journal is not None:
                    self.journal.unregistered(output.endpoint, output.reason)
                self.handling.call_hook(self._hooks.lost, output.endpoint, output.reason)
            elif isinstance(output, Fenced):
                if self.journal is not None:
                    self.journal.fenced(output.job, output.epoch_seen)
            elif isinstance(output, KeepAlive):
                self._links[output.node].keep_alive(output.routing_id, output.interval_ms, output.ttl_ms)
            elif isinstance(output, Late):
                warn_late(output, self._service, self.handling.handler)
            elif isinstance(output, Close):
                self._links[output.node].close()
            elif isinstance(output, Open):
                self._links[output.node].open()
            else:
                self._end(output)

    def _abandon(self, job: Job) -> None:
        if self.journal is not None:
            self.journal.given_up(job)
        report_given_up(self._service, job, self._handler_timeout_s)
        assert self._places is not None, "without a limit nothing runs past its time"
        if self._places.pop(job, _GONE) is not _GONE:
            self._add_thread()
        self.handling.call_hook(self._hooks.handler_stuck, job.identity)

    def _end(self, output: Ended) -> None:
        self.is_ended = True
        if output.error is not None:
            raise output.error
