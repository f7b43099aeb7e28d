"""What drives a client's core from threads: whoever waits for a reply takes the turns.

A *turn* hands the core what was begun, waits, and hands it what came. One thread at a time takes turns: it
*leads*. A thread that waits for a reply leads if nobody does, until it has its outcome; then it passes the
lead on to another one that waits. So one request at a time costs no change of threads, and of many threads
one serves all of them.

While nobody waits somebody still has to answer the nodes and keep the deadlines: the *watcher*, a thread of
the client's own. It waits for the sockets' descriptors and the next deadline without leading, and takes turns
when there is something. While callers come and go by themselves it only looks now and then whether they still
do.

A turn in the main thread can be interrupted anywhere: by Ctrl-C, by a signal handler that raises. So a turn
notes whether it is half-done (``_is_torn``), except while it waits. Whoever leads next and finds it so trusts
nothing of what the core and the sockets know: new sockets, and a core that begins anew with the calls that
have no outcome. That is safe because it is what happens when connections break.

The lead is an RLock, because that knows its owner: a ``finally`` begins with releasing it, whether it was
taken or not, and so no interruption can come between taking it and remembering that it was taken.
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
from itertools import islice

import zmq

from bstar.errors import BstarError, CallTimeoutError, ClosedError, LocalProtocolError
from bstar_client.core.calls import Call, Reply
from bstar_client.core.outputs import ClientCore
from bstar_client.delivery import Delivery
from bstar_client.link import Links
from bstar_client.wakeup import WakeUp

__all__ = ["Driver", "Outcome", "Sink"]

Outcome = tuple[Call, Reply | BstarError]
# Where the outcomes of a caller go, one or more at a time; None: the lead was passed on to who waits here.
Sink = queue.SimpleQueue[tuple[Outcome, ...] | None]

_log = logging.getLogger("bstar_client")

# Calls begun before the sockets and the timers have their turn.
_SUBMIT_MAX = 512
# The session ends calls at their deadline; a caller waits this much longer before it concludes that whoever
# leads is starved.
_GRACE_S = 5.0
_CLOSE_TIMEOUT_S = 5.0
# While callers lead, the watcher looks so often whether they still do; after so many looks at the same long
# turn it waits until that is over.
_LOOK_S = 0.02
_LOOKS_MAX = 50


class Driver:
    """Drives ``core``; ``connect(wakeup)`` makes its links and opens what is to be open from the start.

    ``release()`` is called once, in the watcher's thread, when all is over. Nothing here leads back to the
    client, so that one which nobody has any more can be collected, and the thread with it.
    """

    def __init__(
        self,
        core: ClientCore,
        performer: Delivery,
        connect: Callable[[WakeUp], Links],
        release: Callable[[], None],
    ) -> None:
        self._core = core
        self._performer = performer
        self._connect = connect
        self._release = release
        self._inbox: deque[Call] = deque()
        self._abandoned: deque[Call] = deque()
        self._lead = threading.RLock()
        # Is the core, or what the sockets held, half-way between two states?
        self._is_torn = False
        # Wakes who leads out of its wait, if it is in one.
        self._wakeup = WakeUp()
        self._is_asleep = False
        # Wakes the watcher. When it looks next by itself; 0: soon. inf and parked: not before it is woken.
        self._attention = WakeUp()
        self._watch_until = 0.0
        self._is_parked = False
        # How often callers have led.
        self._turns = 0
        self.is_closing = False
        self._has_ended = False
        self._links = connect(self._wakeup)
        performer.links = self._links
        self._thread = threading.Thread(target=self._run, name="bstar-client", daemon=True)

    def start(self) -> None:
        """Watch from now on."""
        try:
            self._thread.start()
        except RuntimeError:
            self.discard()  # the system has no more threads
            raise

    def discard(self) -> None:
        """Instead of ``start``: close what was opened."""
        self._links.close()
        self._release()

    # --- in the callers' threads --------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Take a call; it is sent with the next turn, which ``wait`` or ``nudge`` brings."""
        self.begin_all((call,))

    def begin_all(self, calls: Sequence[Call]) -> None:
        """Take calls, in their order."""
        self._performer.open.update(dict.fromkeys(calls))
        self._inbox.extend(calls)
        if self._has_ended:
            self._fail_inbox()

    def nudge(self) -> None:
        """See to it that what was begun is sent, though nobody waits for it yet. Does not block."""
        if self._performer.announcing_in == threading.get_ident():
            self._attention.set()
            return
        if not self._try_to_lead(self._inbox.__len__, is_patient=False):
            self._wake()

    def wait(self, call: Call, sink: Sink) -> tuple[Outcome, ...]:
        """The next outcomes in the sink, which is the caller's alone. ``call`` bounds the wait.

        CallTimeoutError if whoever leads is blocked until long after the call's deadline; LocalProtocolError
        from within an observer, which would wait for itself.
        """
        waiting = self._performer.waiting
        while True:
            if not sink.empty() or self._take_lead(sink):
                outcomes = sink.get()
            else:
                waiting[sink] = None
                try:
                    # Who led may have passed on before it could see that somebody waits.
                    if self._take_lead(sink):
                        outcomes = sink.get()
                    else:
                        if self._inbox:
                            self._wake()
                        outcomes = self._get(call, sink)
                except BaseException:
                    if waiting.pop(sink, sink) is sink:
                        self._attention.set()  # it may have been given the lead
                    raise
                waiting.pop(sink, None)
            if outcomes is not None:
                return outcomes

    def _take_lead(self, sink: Sink) -> bool:
        """Lead, if nobody does, until there is something in the sink. Is there?"""
        if self._performer.announcing_in == threading.get_ident():
            raise LocalProtocolError("an observer cannot wait for a reply: the client waits for the observer")
        self._try_to_lead(sink.empty, is_patient=True)
        return not sink.empty()

    def _try_to_lead(self, goes_on: Callable[[], object], *, is_patient: bool) -> bool:
        """Lead, if nobody does, and take turns while that is true; False: somebody does, or it failed."""
        try:
            if self._lead.acquire(blocking=False):
                self._turns += 1
                if self._inbox:
                    self._look()
                while goes_on() and not self.is_closing:
                    self._turn(is_patient=is_patient)
                if self._watch_until:
                    self._tell_watcher()
                return True
        except zmq.ZMQError as error:
            # It is no caller's. The turn is half-done; if the watcher cannot mend it, it ends the client.
            _log.warning("the client's sockets failed: %s", error)
        finally:
            try:
                self._lead.release()
            except RuntimeError:
                pass  # it was not taken
            else:
                self._pass_on()
        return False

    def _pass_on(self) -> None:
        """Nobody leads any more: let somebody do so who waits, else the watcher may have to."""
        waiting = self._performer.waiting
        if waiting:
            try:
                sink, _ = waiting.popitem()
            except KeyError:
                pass  # the last of them has just found out by itself
            else:
                sink.put(None)
        if self._is_parked or self._is_torn or self.is_closing:
            self._attention.set()

    def _tell_watcher(self) -> None:
        """It may be waiting for what was true before this turn."""
        due = self._core.next_deadline()
        if (due is not None and due < self._watch_until) or not self._links.is_quiet:
            self._attention.set()

    def _wake(self) -> None:
        """There is something new for whoever leads."""
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
        """Nobody waits for these any more. Does nothing but note it: a finaliser may call this anywhere."""
        self._abandoned.extend(calls)
        self._wake()
        self._attention.set()

    def close(self) -> None:
        """End everything and wait until it has ended. Any thread may call it, also within an observer."""
        self.stop()
        here = threading.get_ident()
        if here in (self._thread.ident, self._performer.announcing_in):
            return
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning(
                "the client did not end in %s s; is an observer blocking it?",
                _CLOSE_TIMEOUT_S,
            )

    def stop(self) -> None:
        """End everything, and do not wait for it."""
        self.is_closing = True
        self._wakeup.set()
        self._attention.set()

    # --- a turn -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take in what is there: nothing is to be sent over a connection that is known to be broken."""
        if self._is_torn:
            self._mend()
        self._is_torn = True
        self._links.prepare()
        self._links.wait(0)
        self._take_in()
        self._is_torn = False

    def _turn(self, *, is_patient: bool = True) -> None:
        """Hand the core what was begun, wait for something, hand it what came. The caller leads.

        ``is_patient``: wait until something comes, or somebody calls ``_wake``.
        """
        if self._is_torn:
            self._mend()
        self._is_torn = True
        core, inbox, links = self._core, self._inbox, self._links
        perform = self._performer.perform
        now = time.monotonic()
        count = min(len(inbox), _SUBMIT_MAX)
        if count == 1:
            perform(core.submit(inbox[0], now))
            inbox.popleft()
        elif count:
            perform(core.submit_all(list(islice(inbox, count)), now))
            for _ in range(count):
                inbox.popleft()
        while self._abandoned:
            self._performer.abandon(self._abandoned[0], now)
            self._abandoned.popleft()
        links.prepare()
        due = core.next_deadline()
        self._is_asleep = True
        if not is_patient or inbox or self._abandoned or self.is_closing:
            timeout_ms = 0
        elif due is None:
            timeout_ms = -1
        else:
            timeout_ms = max(0, math.ceil((due - time.monotonic()) * 1000))
        self._is_torn = False
        # Another thread may hold the GIL before and after the sockets are looked at. What has come until this
        # moment is read before anything is found overdue.
        asked_at = time.monotonic()
        links.wait(timeout_ms)
        self._is_torn = True
        self._is_asleep = False
        self._take_in()
        if due is not None and asked_at >= due:
            perform(core.handle_timer(asked_at))
        self._is_torn = False

    def _take_in(self) -> None:
        """Hand the core what has come."""
        core, links = self._core, self._links
        perform = self._performer.perform
        now = time.monotonic()
        for node, frames in links.messages():
            perform(core.receive(node, frames, now))
        for node, is_up in links.changes():
            perform(core.connected(node, now) if is_up else core.disconnected(node, now))

    def _mend(self) -> None:
        """The last turn was interrupted. Keep the calls that have no outcome, and begin anew."""
        _log.warning("the client was interrupted at work: it connects anew")
        performer, inbox = self._performer, self._inbox
        performer.announcing_in = 0
        self._links.close()
        self._links = performer.links = self._connect(self._wakeup)
        while inbox and inbox[0].is_begun:
            inbox.popleft()
        performer.perform(self._core.restart(self._begun(), time.monotonic()))
        self._attention.set()

    def _begun(self) -> list[Call]:
        """The calls that the core has taken and whose outcome nobody has been told."""
        return [call for call in list(self._performer.open) if call.is_begun]

    # --- the watcher --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:  # noqa: BLE001 - callers are told below, whatever it was
            _log.exception("the client's thread failed; this is a defect of bstar")
        finally:
            self.is_closing = True
            self._wakeup.set()
            with self._lead:
                self._end()

    def _end(self) -> None:
        performer = self._performer
        try:
            now = time.monotonic()
            if self._is_torn:
                performer.perform(self._core.restart(self._begun(), now))
            performer.perform(self._core.close(now))
        finally:
            self._has_ended = True
            self._fail_inbox()
            self._links.close()
            self._release()
            if performer.journal is not None:
                performer.journal.close()

    def _fail_inbox(self) -> None:
        while self._inbox:
            try:
                call = self._inbox.popleft()
            except IndexError:
                return
            if call.sink is not None:  # else it was told already, or nobody waits for it
                call.sink.put(((call, ClosedError("the client is closed; the request was not sent")),))

    def _watch(self) -> None:
        poller = select.poll()
        watched: list[int] | None = None
        seen = looks = 0
        while not self.is_closing:
            turns = self._turns
            descriptors = None
            if turns == seen or self._performer.waiting:
                descriptors = self._tend()
            if descriptors is None:
                # Somebody leads, or did a moment ago.
                looks = looks + 1 if turns == seen else 0
                if looks < _LOOKS_MAX:
                    self._attention.wait(_LOOK_S)
                else:
                    self._park()
            else:
                looks = 0
                if descriptors != watched:
                    poller = select.poll()
                    watched = descriptors
                    for descriptor in (self._attention.fd, *watched):
                        poller.register(descriptor, select.POLLIN)
                until = self._watch_until
                wait_s = until - time.monotonic()
                poller.poll(None if until == math.inf else max(0, math.ceil(wait_s * 1000)))
                self._watch_until = 0.0
                self._attention.clear()
            seen = turns

    def _tend(self) -> list[int] | None:
        """Lead, if nobody does, until nothing more is to do. What to wait for then; None: somebody leads."""
        try:
            if not self._lead.acquire(blocking=False):
                return None
            while not self.is_closing:
                self._turn(is_patient=False)
                while self._performer.waiting and not self.is_closing:
                    self._turn()
                if self._links.is_quiet and not self._inbox and not self._abandoned:
                    break
            due = self._core.next_deadline()
            self._watch_until = math.inf if due is None else due
            return self._links.descriptors()
        finally:
            with contextlib.suppress(RuntimeError):
                self._lead.release()

    def _park(self) -> None:
        """A caller waits long and looks after everything: be woken when it has done."""
        self._is_parked = True
        is_free = False
        try:
            is_free = self._lead.acquire(blocking=False)
        finally:
            with contextlib.suppress(RuntimeError):
                self._lead.release()
        if not is_free:
            self._attention.wait(None)
        self._is_parked = False
