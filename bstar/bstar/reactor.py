"""One thread that turns: wait for something to read or a deadline, read a bounded burst, fire what is due.

Everything of a node happens in the thread that calls ``run``, one thing after the other, so nothing in it
needs a lock. Time is the monotonic clock. The reactor knows how late it is (``lag``). When the process was
away for longer than it meant to sleep, it tells those who asked (``on_stall``) before it hands out anything
that queued up meanwhile. It does not know what it carries: sockets, timers and sans-I/O machines are given to
it (``agenda``, ``thread_calls``).

It waits in one of two ways. Normally it asks every socket whether it has messages, which takes two system
calls for each of them, awake or not. After a turn in which all readers said that they used nothing but their
own socket, the other sockets are as they were. Then one system call waits for all descriptors at once. A
broker that passes on requests turns like that.

A stop, by ``stop()`` or by SIGTERM or SIGINT, is a request: those who registered with ``on_stop`` get the
loop for as long as they need to end in good order, at most ``stop_timeout_s``. A second signal ends it at
once.
"""

import select
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import zmq

from bstar.agenda import Agenda, Lag, TimeHandler, Timer
from bstar.closing import Closing
from bstar.sockets import is_readable, receive, receive_routed
from bstar.stop_signals import StopSignals
from bstar.thread_calls import ThreadCalls

T = TypeVar("T")

Clock = Callable[[], float]
MessageHandler = Callable[[list[bytes], float], object]
StallHandler = Callable[[float, float], None]

# Monotonic (BST-R-03), and where there is such a clock one that goes on while the machine is suspended: a
# node that slept must notice it when it wakes.
_clock: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

# Messages read from one socket before others and the timers have a turn: long enough to spread the cost of
# a poll, short enough (some milliseconds) that no heartbeat waits for it.
DRAIN_MAX = 200

# And for so long: messages of a mebibyte take a millisecond each, and 200 of them would leave the peer's
# state messages unread for longer than a failover timeout.
DRAIN_S_MAX = 0.01

# Messages of a burst before which the socket is asked for more; a longer burst pays for one zmq.Again.
_ASKS_MAX = 5

# A loop that waits for nothing still looks up now and then, so that a machine whose deadline moved without an
# event is found. Where stalls matter it sleeps no longer than the shortest that does: only what lies beyond
# the end of a sleep can be told from sleeping.
_SLEEP_MAX_S = 10.0


class _Sources:
    """What a loop reads from. ``is_stirred``: a socket may have messages although its descriptor does not
    show it, for libzmq's descriptor tells what came after the socket was last used, whatever for.
    """

    def __init__(self) -> None:
        self.is_stirred = True
        self.handlers: dict[zmq.Socket[bytes] | int, TimeHandler] = {}
        self.poller = zmq.Poller()
        # The same by their descriptors; None where the system has no such thing.
        self.watch = select.epoll() if hasattr(select, "epoll") else None
        # By descriptors, too: what may be called although the socket has no message.
        self.drains: dict[int, TimeHandler] = {}
        self._descriptors: dict[zmq.Socket[bytes] | int, int] = {}

    def add(self, source: "zmq.Socket[bytes] | int", handler: TimeHandler) -> int:
        """Call ``handler(now)`` when it is readable; its descriptor."""
        self.is_stirred = True
        self.handlers[source] = handler
        self.poller.register(source, zmq.POLLIN)
        descriptor = source if isinstance(source, int) else _descriptor(source)
        self._descriptors[source] = descriptor
        if self.watch is not None:
            self.watch.register(descriptor, select.EPOLLIN)
        return descriptor

    def remove(self, source: "zmq.Socket[bytes] | int") -> None:
        """Serve it no longer."""
        del self.handlers[source]
        self.poller.unregister(source)
        descriptor = self._descriptors.pop(source)
        self.drains.pop(descriptor, None)
        if self.watch is not None:
            self.watch.unregister(descriptor)


class _Stop:
    """A stop under way: who takes part, and until when it may last."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_over = False
        self.by: float | None = None
        self.parts: list[tuple[TimeHandler, Callable[[float], bool]]] = []

    def go_on(self, now: float, timeout_s: float) -> None:
        """Begin it if it has not begun, and end it when all are done or its time is up."""
        if self.by is None:
            self.by = now + timeout_s
            for begin, _ in self.parts:
                begin(now)
        if now >= self.by or all(is_done(now) for _, is_done in self.parts):
            self.is_over = True


class Reactor(Closing):
    """Register what is to be served, then ``run``. Register in the loop's own thread, or before it runs.

    ``drain_max`` bounds the messages read from one socket per turn, and DRAIN_S_MAX the time;
    ``stop_timeout_s`` bounds how long a stop may take.
    """

    def __init__(
        self, *, drain_max: int = DRAIN_MAX, stop_timeout_s: float = 5.0, clock: Clock = _clock
    ) -> None:
        self.lag = Lag()
        self.turns = 0
        self.stop_timeout_s = stop_timeout_s
        self._drain_max = drain_max
        self._clock = clock
        self._sources = _Sources()
        self._poll = self._sources.poller.poll
        self._agenda = Agenda(self.lag)
        self._calls = ThreadCalls()
        self._stall_handlers: list[tuple[float, StallHandler]] = []
        self._stall_limit_s = float("inf")
        self._sleep_max_s = _SLEEP_MAX_S
        self._stop = _Stop()
        # When the loop last looked at the clock, or meant to look at it after a sleep.
        self._seen_at = clock()
        # When to look at the deadlines again: nothing that was read is handed out past them.
        self._alarm_at = self._seen_at
        self.add_source(self._calls.descriptor, self._calls.run)

    # --- what is served -----------------------------------------------------------------------------------

    def now(self) -> float:
        """The reactor's clock, in seconds."""
        return self._clock()

    def add_reader(
        self,
        socket: "zmq.Socket[bytes]",
        handler: MessageHandler,
        *,
        keeps_to_itself: bool = False,
        read: "Callable[[zmq.Socket[bytes]], list[bytes]] | None" = None,
    ) -> None:
        """Call ``handler(frames, now)`` for every message. Sockets take turns in order of registration.

        ``read`` takes one message off the socket, or raises ``zmq.Again``; by default as ``bstar.sockets``
        does for the type of the socket.

        With ``keeps_to_itself`` its result counts: True says that of all sockets which are served here it has
        used this one alone, and spares the loop asking the others.
        """

        if read is None:
            read = receive_routed if socket.type == zmq.ROUTER else receive
        sources = self._sources

        def drain(now: float) -> None:
            began_at = now
            for count in range(self._drain_max):
                # Most turns bring a few messages; asking first is then cheaper than running into zmq.Again.
                if 0 < count < _ASKS_MAX and not is_readable(socket):
                    return
                try:
                    frames = read(socket)
                except zmq.Again:
                    return
                if count:
                    now = self._look()
                if not (handler(frames, now) and keeps_to_itself):
                    sources.is_stirred = True
                if socket not in sources.handlers:
                    return
                if now - began_at > DRAIN_S_MAX:
                    break
            # There may be more.
            sources.is_stirred = True

        sources.drains[sources.add(socket, drain)] = drain

    def add_source(self, source: "zmq.Socket[bytes] | int", handler: TimeHandler) -> None:
        """Call ``handler(now)`` whenever it is readable; the handler reads, and bounds what it reads."""

        def serve(now: float) -> None:
            self._sources.is_stirred = True
            handler(now)

        self._sources.add(source, serve)

    def remove(self, source: "zmq.Socket[bytes] | int") -> None:
        """Serve this socket or descriptor no longer. Before it is closed."""
        self._sources.remove(source)

    def call_at(self, when: float, handler: TimeHandler) -> Timer:
        """Call ``handler(now)`` once, at ``when`` on this reactor's clock."""
        return self._agenda.add(Timer(when, None, handler))

    def add_timer(self, interval_s: float, handler: TimeHandler) -> Timer:
        """Call ``handler(now)`` every ``interval_s`` seconds, the first time after one interval."""
        if interval_s <= 0:
            raise ValueError(f"a timer's interval must be above zero, not {interval_s!r}")
        return self._agenda.add(Timer(self._clock() + interval_s, interval_s, handler))

    def add_machine(self, next_deadline: Callable[[], float | None], fire: TimeHandler) -> None:
        """Serve a sans-I/O machine's deadlines: ``fire(now)`` when ``next_deadline()`` has come."""
        self._agenda.add_machine(next_deadline, fire)

    def on_stall(self, limit_s: float, handler: StallHandler) -> None:
        """Call ``handler(gap_s, now)`` when the loop was away ``limit_s`` longer than it meant to be.

        The call comes before any message or timer that became due meanwhile.
        """
        self._stall_handlers.append((limit_s, handler))
        self._stall_limit_s = min(self._stall_limit_s, limit_s)
        self._sleep_max_s = min(self._sleep_max_s, limit_s)

    def on_stop(self, begin: TimeHandler, is_done: Callable[[float], bool]) -> None:
        """Take part in a stop: ``begin(now)`` once, then the loop turns until ``is_done(now)``."""
        self._stop.parts.append((begin, is_done))

    def call_threadsafe(self, function: Callable[[], T]) -> "Future[T]":
        """Run ``function`` in the loop's thread, from any thread; the future tells its result.

        ClosedError if the reactor is closed, from the future if it is closed before it comes to this call.
        """
        return self._calls.add(function)

    # --- the loop -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stopped. In the main thread SIGTERM and SIGINT are requests to stop while it runs."""
        self._seen_at = self._clock()
        self._sources.is_stirred = True
        with StopSignals(self.stop, self.end, self._calls.waker):
            while not self._stop.is_over:
                self._turn()

    def stop(self) -> None:
        """Ask for an orderly stop; from any thread, from a handler, any number of times."""
        self._stop.is_wanted = True
        self._calls.wake()

    def end(self) -> None:
        """End after the current turn, without ceremony. From the loop's thread."""
        self._stop.is_over = True

    def turn(self) -> None:
        """Wait for the next event or deadline and serve what there is."""
        # Nobody knows what was done since the last one.
        self._sources.is_stirred = True
        self._turn()

    def _turn(self) -> None:
        self.turns += 1
        now = self._look()
        self._alarm_at = alarm_at = self._due_at(now)
        timeout_ms = 0
        if alarm_at > now:
            self._seen_at = alarm_at
            # Rounded up: waking a moment early would only mean to go to sleep again.
            timeout_ms = int((alarm_at - now) * 1000) + 1
        sources = self._sources
        watch = sources.watch
        if sources.is_stirred or watch is None:
            sources.is_stirred = False
            events = self._poll(timeout_ms)
            now = self._look()
        else:
            seen = watch.poll(timeout_ms / 1000)
            now = self._look()
            drain = sources.drains.get(seen[0][0]) if len(seen) == 1 else None
            if drain is not None:
                drain(now)
                seen = []
            # Several have their turns in order; and a descriptor may show what is no message.
            events = self._poll(0) if seen else []
        for source, _ in events:
            serve = sources.handlers.get(source)
            if serve is not None:
                serve(now)
                now = self._look()
        # A deadline that a handler has just moved before the alarm is served in the next turn, which is now.
        if self._stop.is_wanted:
            sources.is_stirred = True
            self._stop.go_on(self._clock(), self.stop_timeout_s)

    def _look(self) -> float:
        """Read the clock, tell the stall handlers if it has jumped, and serve what is due.

        It comes between any two messages: a slow handler may make a deadline late, a burst of them may not.
        """
        now = self._clock()
        if now - self._seen_at > self._stall_limit_s:
            self._tell_of_stall(now)
        self._seen_at = now
        if now >= self._alarm_at:
            self._sources.is_stirred = True
            self._agenda.fire_due(now)
            self._alarm_at = self._due_at(now)
            # Handlers take their time; what they took counts.
            now = self._clock()
            if now - self._seen_at > self._stall_limit_s:
                self._tell_of_stall(now)
            self._seen_at = now
        return now

    def _tell_of_stall(self, now: float) -> None:
        self._sources.is_stirred = True
        gap_s = now - self._seen_at
        for limit_s, handler in self._stall_handlers:
            if gap_s > limit_s:
                handler(gap_s, now)

    def _due_at(self, now: float) -> float:
        due_at = self._agenda.due_at(now + self._sleep_max_s)
        stop_by = self._stop.by
        return due_at if stop_by is None or due_at < stop_by else stop_by

    def close(self) -> None:
        """Free what the reactor itself holds; the sockets are their owners'. Idempotent."""
        if self._calls.begin_to_close():
            self.remove(self._calls.descriptor)
            self._calls.close()
            if self._sources.watch is not None:
                self._sources.watch.close()


def _descriptor(socket: "zmq.Socket[bytes]") -> int:
    descriptor = socket.get(zmq.FD)
    assert isinstance(descriptor, int)
    return descriptor
