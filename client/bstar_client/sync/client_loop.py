"""Runs a client's core on the threads that wait for replies (Leader/Followers, ``leader``).

A *turn* hands the core new calls, waits, and hands it what has arrived. A thread that waits for a reply leads
if nobody does, until it has its outcome. Then it hands the lead off to another waiting thread. So a single
request changes no thread, and one thread serves many callers.

While no thread waits, the standby answers the nodes and keeps the deadlines. It waits for the sockets'
descriptors and the next deadline *without* the lead, so a new caller can lead at once. While callers come and
go it only checks now and then.

A worker's leader is never interrupted: handlers run in threads of the worker's own. A client's leader may be
the main thread, where Ctrl-C or a signal handler may raise anywhere. So a turn sets ``_is_torn`` while it
works, except while it waits. A leader that finds it set trusts neither core nor sockets. It makes new
sockets, and the core starts over with the calls that have no outcome, as after broken connections.
"""

import contextlib
import logging
import math
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq

from bstar.errors import CallTimeoutError, ConfigurationError
from bstar_client.arguments.settings import ClientSettings
from bstar_client.calls.delivery import Delivery
from bstar_client.core.call_errors import already_closed, waits_for_itself
from bstar_client.core.calls import Call, Outcome
from bstar_client.core.outputs import ClientCore, Reset
from bstar_client.links.links import Links, timeout_ms
from bstar_client.links.unclosed import guard
from bstar_client.links.wakeup import WakeUp
from bstar_client.sync.futures import CallFuture
from bstar_client.sync.leader import Leadership

# A caller waits here for its outcomes, one or more at a time. None promotes it.
Sink = queue.SimpleQueue[tuple[Outcome, ...] | None]

_log = logging.getLogger("bstar_client")

# After this many calls a turn serves sockets and timers.
_SUBMIT_MAX = 512
# The core ends calls at their deadline. A caller waits this much longer before it reports a starved leader.
_GRACE_S = 5.0
_CLOSE_TIMEOUT_S = 5.0
# The standby checks this often whether callers still lead.
_LOOK_S = 0.02


class ClientLoop:
    """One client at work.

    Nothing here refers to ``client``, so Python can collect a forgotten client, and its thread ends.
    ConfigurationError if an endpoint is invalid or the journal cannot be written.
    """

    def __init__(
        self, client: object, settings: ClientSettings, core: ClientCore, delivery: Delivery
    ) -> None:
        self._core = core
        self._delivery = delivery
        # Futures without an outcome. No thread leads for them, so the standby does.
        self.unawaited: set[CallFuture[Any]] = set()
        self._inbox: deque[Call] = deque()
        self._abandoned: deque[Call] = deque()
        self._lead = Leadership(self._promote)
        # True if core or sockets may be half-way between two states.
        self._is_torn = False
        # Wakes the leader while it waits in a turn.
        self._wakeup = WakeUp()
        self._is_asleep = False
        # The deadline for which the standby sleeps; 0: it does not.
        self._standby_until = 0.0
        self.is_closing = False
        self._has_ended = False
        self._is_fleet = len(settings.fleet.pairs) > 1
        endpoints = settings.fleet.endpoints
        delivery.links = Links(
            endpoints, settings.link, settings.context, self._wakeup, is_router=settings.is_router
        )
        self._thread = threading.Thread(target=self._run, name="bstar-client", daemon=True)
        try:
            self._connect()
            delivery.open_journal(settings)
            self._thread.start()
        except (ConfigurationError, RuntimeError):  # RuntimeError: the system has no more threads
            self._release()
            raise
        name = f"{type(client).__name__}({', '.join(endpoints)})"
        remedy = "use it in 'with', or call close()"
        self._guard = guard(client, name, remedy, lambda is_exit: self.close() if is_exit else self.stop())

    def _connect(self) -> None:
        """Open the links. The core of a fleet opens its links itself."""
        if not self._is_fleet:
            self._delivery.links.open_all()

    def _release(self) -> None:
        self._delivery.links.end()
        if self._delivery.journal is not None:
            self._delivery.journal.close()

    # --- in the callers' threads --------------------------------------------------------------------------

    def begin(self, calls: Sequence[Call]) -> None:
        """Take calls, in their order. The next turn sends them: call ``wait`` or ``nudge`` for it."""
        self._delivery.open.update(dict.fromkeys(calls))
        self._inbox.extend(calls)
        if self._has_ended:
            self._fail_inbox()

    def nudge(self) -> None:
        """Send the calls that began, before anybody waits for them. Does not block."""
        if self._is_within_turn():
            self._lead.bell.set()
        elif not self._lead_while(self._inbox.__len__, is_patient=False):
            self._wake()

    def _is_within_turn(self) -> bool:
        """True in what a turn of this thread calls (observers, callbacks of futures), and in what interrupts
        one (signal handlers, finalizers): the turn goes on when that returns.
        """
        return self._is_torn and self._lead.is_here()

    def check_may_wait(self) -> None:
        """LocalProtocolError if this thread would wait for itself."""
        if self._is_within_turn():
            raise waits_for_itself()

    def wait(self, call: Call, sink: Sink) -> tuple[Outcome, ...]:
        """The next outcomes in the caller's own sink. ``call`` bounds the wait.

        CallTimeoutError if the leader is blocked until long after the call's deadline. LocalProtocolError
        where it would wait for itself.
        """
        followers = self._delivery.waiting
        while True:
            try:
                if sink.empty() and not self._fill(sink):
                    followers[sink] = None
                    # The last leader may have handed off before it saw this follower.
                    if not self._fill(sink) and self._inbox:
                        self._wake()
                outcomes = self._get(call, sink) if sink.empty() else sink.get()
            except BaseException:
                if followers.pop(sink, sink) is sink:
                    self._lead.bell.set()  # it may have been promoted
                raise
            followers.pop(sink, None)
            if outcomes is not None:
                return outcomes

    def _fill(self, sink: Sink) -> bool:
        """Lead, if no thread does, until the sink has an outcome. False: it has none."""
        self.check_may_wait()
        self._lead_while(sink.empty)
        return not sink.empty()

    def _lead_while(self, goes_on: Callable[[], object], *, is_patient: bool = True) -> bool:
        """Lead, if no thread does, and take turns while the condition holds. False: another thread leads, or
        a turn failed.
        """
        lead = self._lead
        try:
            if lead.acquire():
                if self._inbox:
                    self._look()
                while goes_on() and not self.is_closing:
                    self._turn(is_patient=is_patient)
                if self._standby_until:
                    self._update_standby()
                return True
        except (zmq.ZMQError, ConfigurationError) as error:
            # This error concerns no call. The turn is half-done; if the standby cannot mend it, the client
            # ends.
            _log.warning("the client's sockets failed: %s", error)
        finally:
            try:
                lead.release()
            except RuntimeError:
                pass  # it did not lead
            else:
                lead.hand_off()
                # A call that came in the last moment has found a leader.
                if self._is_torn or self.is_closing or self._inbox:
                    lead.bell.set()
        return False

    def _promote(self) -> None:
        """Let a waiting thread lead, or the standby if futures are outstanding and no thread waits."""
        followers = self._delivery.waiting
        if followers:
            with contextlib.suppress(KeyError):  # the last of them has just got its outcome
                followers.popitem()[0].put(None)
        elif self.unawaited:
            self._lead.bell.set()

    def _update_standby(self) -> None:
        """Wake the standby if this turn has changed what it waits for."""
        links = self._delivery.links
        due = links.next_deadline(self._core)
        if (due is not None and due < self._standby_until) or not links.is_quiet:
            self._lead.bell.set()

    def _wake(self) -> None:
        """Wake the leader: there is work for it."""
        if self._is_asleep:
            self._is_asleep = False
            self._wakeup.set()

    @staticmethod
    def _get(call: Call, sink: Sink) -> tuple[Outcome, ...] | None:
        if call.deadline is None:
            return sink.get()
        try:
            return sink.get(timeout=max(call.deadline - time.monotonic(), 0.0) + _GRACE_S)
        except queue.Empty:
            text = "the client did not come to it; is an observer blocking it?"
            raise CallTimeoutError(text, may_have_executed=True) from None

    def abandon(self, calls: Iterable[Call]) -> None:
        """No caller waits for these calls. Only notes it, because a finaliser may call this anywhere."""
        self._abandoned.extend(calls)
        self._wake()
        self._lead.bell.set()

    def close(self) -> None:
        """End the client and wait for its end. Any thread may call it. One that leads does not wait: it is an
        observer, or a signal handler that has interrupted a call, and the end waits for it.
        """
        self._guard.detach()
        self.stop()
        if self._lead.is_here() or threading.get_ident() == self._thread.ident:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning("the client did not end in %s s; is an observer blocking it?", _CLOSE_TIMEOUT_S)

    def stop(self) -> None:
        """End the client without waiting."""
        self.is_closing = True
        self._wakeup.set()
        self._lead.bell.set()

    # --- a turn -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what has arrived first: nothing must go over a connection that has broken."""
        if self._is_torn:
            self._mend()
        self._is_torn = True
        links = self._delivery.links
        links.prepare()
        links.wait(0)
        links.step(self._core, self._delivery.perform)
        self._is_torn = False

    def _turn(self, *, is_patient: bool = True) -> None:
        """One turn: hand the core new calls, wait, hand it what has arrived. The calling thread leads.

        ``is_patient``: wait for a message, a deadline or ``_wake``.
        """
        if self._is_torn:
            self._mend()
        self._is_torn = True
        core, inbox, links = self._core, self._inbox, self._delivery.links
        perform = self._delivery.perform
        now = time.monotonic()
        count = min(len(inbox), _SUBMIT_MAX)
        if count == 1:
            perform(core.submit(inbox[0], now))
            inbox.popleft()
        elif count:
            # By index: callers append meanwhile, which ends an iteration.
            perform(core.submit_all([inbox[index] for index in range(count)], now))
            for _ in range(count):
                inbox.popleft()
        while self._abandoned:
            self._delivery.abandon(self._abandoned[0], now)
            self._abandoned.popleft()
        links.prepare()
        due = core.next_deadline()
        self._is_asleep = True
        is_busy = not is_patient or inbox or self._abandoned or self.is_closing
        wait_ms = 0 if is_busy else timeout_ms(due)
        self._is_torn = False
        asked_at = time.monotonic()
        links.wait(wait_ms)
        self._is_torn = True
        self._is_asleep = False
        links.step(core, perform, due, asked_at)
        self._is_torn = False

    def _mend(self) -> None:
        """The last turn was interrupted: start over with the calls that have no outcome."""
        _log.warning("a signal interrupted the client at work: it connects again")
        delivery = self._delivery
        delivery.links.start_over()
        self._connect()
        delivery.perform(self._core.restart(self._begun(), time.monotonic()))
        self._lead.bell.set()

    def _begun(self) -> list[Call]:
        """The calls that the core has and that have no outcome."""
        return [call for call in list(self._delivery.open) if call.is_begun]

    # --- the standby --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._stand_by()
        except Exception:  # noqa: BLE001 - callers get it below, whatever it was
            _log.exception("the client's thread failed; this is a defect of bstar")
        finally:
            self.is_closing = True
            self._wakeup.set()
            self._lead.take_back()
            self._end()

    def _end(self) -> None:
        delivery = self._delivery
        try:
            now = time.monotonic()
            if self._is_torn:
                outputs = self._core.restart(self._begun(), now)
                # No socket is opened at the end: perhaps none can be.
                delivery.perform([output for output in outputs if not isinstance(output, Reset)])
            delivery.perform(self._core.close(now))
        finally:
            self._has_ended = True
            self._fail_inbox()
            self._release()
            self._lead.release()

    def _fail_inbox(self) -> None:
        while self._inbox:
            try:
                call = self._inbox.popleft()
            except IndexError:
                return
            if call.sink is not None:  # else it has its outcome, or no caller waits for it
                self._delivery.untrace(call)
                call.sink.put(((call, already_closed()),))

    def _stand_by(self) -> None:
        """Lead while no other thread does."""
        seen = self._lead.changes
        while not self.is_closing:
            is_idle = (
                self._lead.changes == seen or self._delivery.waiting or self.unawaited
            ) and self._tend()
            seen = self._lead.changes
            if not is_idle:
                self._lead.pause(_LOOK_S)
                continue
            poller = select.poll()
            for descriptor in (self._lead.bell.fd, self._delivery.links.fd):
                poller.register(descriptor, select.POLLIN)
            poller.poll(timeout_ms(self._standby_until if self._standby_until < math.inf else None))
            self._standby_until = 0.0
            self._lead.bell.clear()

    def _tend(self) -> bool:
        """Lead, if no thread does, until no work is left. False: another thread leads."""
        lead = self._lead
        if not lead.acquire():
            return False
        try:
            while not self.is_closing:
                self._turn(is_patient=bool(self._delivery.waiting))
                is_idle = self._delivery.links.is_quiet and not self._inbox and not self._abandoned
                if is_idle and not self._delivery.waiting:
                    break
            due = self._delivery.links.next_deadline(self._core)
            self._standby_until = math.inf if due is None else due
            return True
        finally:
            lead.release()
            lead.hand_off()
