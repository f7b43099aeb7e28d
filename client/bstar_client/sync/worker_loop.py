"""A worker's threads: the leader uses the sockets, the followers call handlers (``leader``).

The standby is the thread that called ``run``, or that ``start`` made. While handlers are quick (``policy``),
a handler thread leads and calls the handlers itself, between request and reply. While they are slow, the
standby leads and the handler threads take requests from the inbox. Handlers never run in the standby, so an
object of a thread (an ``sqlite3`` connection) serves all handlers of that thread.
"""

import logging
import threading
import time

from bstar.base.printable import printable
from bstar.errors import BstarError
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.lanes import Lanes
from bstar_client.core.worker.outputs import Begin
from bstar_client.core.worker.session import WorkerCore
from bstar_client.links.links import Links, timeout_ms
from bstar_client.links.wakeup import WakeUp
from bstar_client.sync.executor import Executor
from bstar_client.sync.leader import Leadership
from bstar_client.sync.mailboxes import UNSENT_S_MAX, Inbox, Outbox, Word
from bstar_client.sync.policy import Policy
from bstar_client.workers.dispatch import Dispatcher
from bstar_client.workers.worker import LINGER_MS, WorkerSettings

_log = logging.getLogger("bstar_client")

_clock = time.monotonic

# The standby checks this often for a slow handler. A ready reply waits twice as long at most.
_LOOK_S = 0.005
# How long the standby waits for the lead at the end; a hook may never return.
_TAKE_BACK_S = 2.0


class _Replaced(Exception):  # noqa: N818 - it ends a thread, not a request
    """The handler ran past its time, so a new thread has the slot of the calling one."""


class WorkerLoop(Dispatcher):
    """One worker at work. ``serve`` is called once, in the thread that becomes the standby."""

    def __init__(self, worker: object, settings: WorkerSettings, core: WorkerCore) -> None:
        super().__init__(worker, settings, core)
        self.is_stopping = False
        self._is_ended = False
        self._wakeup = WakeUp()
        self._inbox = Inbox()
        self._outbox = Outbox(self._wakeup)
        self._lead = Leadership(lambda: self._inbox.tell(Word.LEAD))
        self._policy = Policy(settings.threads, settings.limits.handler_timeout_s)
        self._executor = Executor(self, self._outbox, self._policy, self._lead.urge)
        self._standby = 0
        # Requests whose handlers the leader calls.
        self._own = Lanes()
        # With a limit to handlers' time: the requests whose handlers have a slot, which is one thread's. The
        # thread that pops one decides whether the slot stays with the handler's thread or goes to a new one.
        self._slots: dict[Job, bool] | None = None if settings.limits.handler_timeout_s is None else {}
        self._failure: BaseException | None = None
        # Turns of whoever leads.
        self._turns = 0

    def stop(self) -> None:
        """Begin to drain. Any thread and any signal handler may call it."""
        self.is_stopping = True
        self._wakeup.set()
        self._lead.urge()

    def answers(self, timeout_s: float) -> bool:
        """True if the leader makes a turn within that time. For other threads than the worker's."""
        turns, until = self._turns, _clock() + timeout_s
        while self._turns == turns and not self._is_ended:
            self._wakeup.set()
            if _clock() >= until:
                return False
            time.sleep(_LOOK_S)
        return not self._is_ended

    def serve(self) -> None:
        """Serve until the worker has ended. Raises the error that ended it."""
        settings = self.settings
        links = self.links = Links(settings.endpoints, settings.link, settings.context, self._wakeup)
        self._standby = threading.get_ident()
        self._lead.acquire()
        reason = "stopped"
        try:
            links.open_all()
            for _ in range(settings.threads):
                self._add_thread()
            self._core.begin(_clock())
            self._stand_by()
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._is_ended = True
            self._wakeup.set()
            is_ours = self._lead.take_back(_TAKE_BACK_S)
            for _ in range(settings.threads):
                self._inbox.tell(Word.END)
            self._outbox.end()
            if is_ours:
                links.end(LINGER_MS)
            else:
                _log.error(
                    'a hook does not return: the sockets of the worker for "%s" stay open',
                    printable(settings.service),
                )
            if self.journal is not None:
                self.journal.close(self._core.unfinished, reason)

    def _stand_by(self) -> None:
        while True:
            self._attend(is_standby=True)
            if self._is_ended:
                break
            self._lead.offer()
            if not self._lead.take(_LOOK_S):
                break
            self._policy.note_lasting()
            while self._own:
                self._inbox.put((self._own.pop(),))
        if self._failure is not None:
            raise self._failure

    # --- handlers' threads --------------------------------------------------------------------------------

    def _add_thread(self) -> None:
        threading.Thread(target=self._follow, name="bstar-handler", daemon=True).start()

    def _follow(self) -> None:
        """Take requests from the inbox, and accept the lead."""
        lead = self._lead
        try:
            while (job := self._inbox.get()) is not Word.END:
                if isinstance(job, Job):
                    if not self._claim(job):
                        continue
                    ended_at = self._executor.execute(job)
                    self._keep_slot(job)
                    self._outbox.yield_to_leader(ended_at)
                if lead.is_offered and lead.accept():
                    self._lead_on()
        except _Replaced:
            pass

    def _lead_on(self) -> None:
        """Lead, as long as no handler lasts."""
        try:
            self._own.push(self._inbox.take_all())
            self._attend(is_standby=False)
        except _Replaced:
            raise
        except BaseException as error:  # noqa: BLE001 - the standby raises it
            self._failure = error
            self._is_ended = True
            self._wakeup.set()
            self._lead.end()

    def _call_own(self, now: float) -> bool:
        """Call handlers for a millisecond or so. True: another thread leads now."""
        # Local names save a tenth of what a worker does for a small request.
        waiting, pop, execute = self._own.turns, self._own.pop, self._executor.execute
        leave, resume = self._lead.leave, self._lead.resume
        has_limit = self._slots is not None
        claim = self._claim if has_limit else self._core.claim
        since, until = now, now + UNSENT_S_MAX
        while waiting and since <= until:
            job = pop()
            if claim(job):
                leave(since)
                since = execute(job)
                if has_limit:
                    self._keep_slot(job)
                if not resume():
                    return True
        return False

    def _claim(self, job: Job) -> bool:
        """True: call the handler. False: the core took the request back."""
        slots = self._slots
        if slots is None:
            return self._core.claim(job)
        slots[job] = True
        if self._core.claim(job):
            return True
        slots.pop(job, None)
        return False

    def _keep_slot(self, job: Job) -> None:
        """The handler has returned. Raises _Replaced if its slot went to a new thread meanwhile."""
        if self._slots is not None and not self._slots.pop(job, False):
            raise _Replaced

    # --- whoever leads ------------------------------------------------------------------------------------

    def _attend(self, *, is_standby: bool) -> None:
        """Serve the sockets until another thread shall lead or the worker has ended."""
        core, outbox, policy, own = self._core, self._outbox, self._policy, self._own
        results, links = outbox.results, self.links
        while True:
            self._turns += 1
            now = _clock()
            if results and not links.is_congested:
                self.answer_all(results, now)
                outbox.note_taken()
            if self.is_stopping and not core.is_stopping:
                self.perform(core.stop(now))
            if self._is_ended:
                if not is_standby:
                    self._lead.end()
                return
            if not is_standby:
                if not policy.is_quick:
                    self._lead.give_back()
                    return
            elif policy.is_quick and not self.is_stopping and policy.may_call(core.running):
                return
            due = core.next_deadline()
            outbox.is_asleep = True
            is_busy = (
                own or (results and not links.is_congested) or (self.is_stopping and not core.is_stopping)
            )
            asked_at = _clock()
            links.prepare()
            links.wait(0 if is_busy else timeout_ms(due))
            outbox.is_asleep = False
            links.step(core, self.perform, due, asked_at)
            if own:
                if not policy.may_call(core.running):
                    self._lead.give_back()
                    return
                if self._call_own(_clock()):
                    return

    # --- the dispatcher's ---------------------------------------------------------------------------------

    def _begin(self, output: Begin) -> None:
        """Keep the requests if the leader calls handlers, else put them into the inbox."""
        if threading.get_ident() == self._standby:
            self._inbox.put(output.jobs, are_one_clients=output.are_one_clients)
        else:
            self._own.push(output.jobs, are_one_clients=output.are_one_clients)

    def _abandon(self, job: Job) -> None:
        """Give a stuck handler's slot to a new thread."""
        assert self._slots is not None, "without a limit nothing runs past its time"
        if self._slots.pop(job, False):
            self._add_thread()

    def _tell_progress(self, job: Job) -> None:
        self._outbox.post((job, [], "progress"))

    def _end(self, error: BstarError | None) -> None:
        self._is_ended = True
        if error is not None:
            raise error
