"""One thread that turns: wait for something to read or a deadline, read a bounded burst, fire what is due.

Everything of a node happens in the thread that calls ``run``, one thing after the other, so nothing in it
needs a lock. Time is the monotonic clock. The reactor knows how late it is (``lag``), and when the
process was away for longer than it meant to sleep it tells those who asked (``on_stall``) before it hands
out anything that queued up meanwhile. It does not know what it carries: sockets, timers and sans-I/O
machines are given to it.

Waiting is done in one of two ways. Normally every socket is asked whether it has messages, which takes two
system calls for each of them, awake or not. After a turn in which only readers were called that said they
had used nothing but their own socket, the other sockets are as they were when they were asked: then it is
enough to wait for their descriptors, with one system call for all. So turns a broker that passes on requests.

A stop, by ``stop()`` or by SIGTERM or SIGINT, is a request: those who registered with ``on_stop`` get the
loop for as long as they need to end in good order, at most ``stop_timeout_s``. A second signal ends it at
once.
"""

import heapq
import select
import socket as stdlib_socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import zmq

from bstar.errors import ClosedError
from bstar.lag import Lag
from bstar.sockets import is_readable, receive, receive_routed
from bstar.stop_signals import StopSignals

__all__ = ["Reactor", "Timer"]

T = TypeVar("T")

Clock = Callable[[], float]
MessageHandler = Callable[[list[bytes], float], object]
TimeHandler = Callable[[float], None]
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


class Timer:
    """A repeating or single call; ``cancel`` it when it is no longer wanted."""

    __slots__ = ("_handler", "interval_s", "is_cancelled", "when")

    def __init__(self, when: float, interval_s: float | None, handler: TimeHandler) -> None:
        self.when = when
        self.interval_s = interval_s
        self.is_cancelled = False
        self._handler = handler

    def cancel(self) -> None:
        """Never call again. Idempotent."""
        self.is_cancelled = True

    def fire(self, now: float) -> None:
        """Call the handler."""
        self._handler(now)


class Reactor:
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
        self._poller = zmq.Poller()
        self._poll = self._poller.poll
        self._sources: dict[zmq.Socket[bytes] | int, TimeHandler] = {}
        # The same by their descriptors; None where the system has no such thing.
        self._watch = select.epoll() if hasattr(select, "epoll") else None
        self._descriptors: dict[zmq.Socket[bytes] | int, int] = {}
        # By descriptors, too: what may be called although the socket has no message.
        self._drains: dict[int, TimeHandler] = {}
        # May a socket have messages although its descriptor does not show it? libzmq's descriptor tells what
        # came after the socket was last used, whatever for.
        self._is_stirred = True
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_made = 0
        self._machines: list[tuple[Callable[[], float | None], TimeHandler]] = []
        self._stall_handlers: list[tuple[float, StallHandler]] = []
        self._stall_limit_s = float("inf")
        self._sleep_max_s = _SLEEP_MAX_S
        self._stoppers: list[tuple[TimeHandler, Callable[[float], bool]]] = []
        self._is_stop_wanted = False
        self._stop_by: float | None = None
        self._is_ended = False
        # When the loop last looked at the clock, or meant to look at it after a sleep.
        self._seen_at = clock()
        # When to look at the deadlines again: nothing that was read is handed out past them.
        self._alarm_at = self._seen_at
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()  # Any: each call has its own type
        self._is_closed = False
        # Reentrant: a signal may come while this very thread holds it, and its handler wakes the loop, too.
        self._wake_lock = threading.RLock()
        self._woken, self._waker = stdlib_socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self.add_source(self._woken.fileno(), self._on_woken)

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
                    self._is_stirred = True
                if socket not in self._sources:
                    return
                if now - began_at > DRAIN_S_MAX:
                    break
            # There may be more.
            self._is_stirred = True

        self._drains[self._add_source(socket, drain)] = drain

    def add_source(self, source: "zmq.Socket[bytes] | int", handler: TimeHandler) -> None:
        """Call ``handler(now)`` whenever it is readable; the handler reads, and bounds what it reads."""

        def serve(now: float) -> None:
            self._is_stirred = True
            handler(now)

        self._add_source(source, serve)

    def _add_source(self, source: "zmq.Socket[bytes] | int", serve: TimeHandler) -> int:
        self._is_stirred = True
        self._sources[source] = serve
        self._poller.register(source, zmq.POLLIN)
        descriptor = source if isinstance(source, int) else _descriptor(source)
        self._descriptors[source] = descriptor
        if self._watch is not None:
            self._watch.register(descriptor, select.EPOLLIN)
        return descriptor

    def remove(self, source: "zmq.Socket[bytes] | int") -> None:
        """Serve this socket or descriptor no longer. Before it is closed."""
        del self._sources[source]
        self._poller.unregister(source)
        descriptor = self._descriptors.pop(source)
        self._drains.pop(descriptor, None)
        if self._watch is not None:
            self._watch.unregister(descriptor)

    def call_at(self, when: float, handler: TimeHandler) -> Timer:
        """Call ``handler(now)`` once, at ``when`` on this reactor's clock."""
        return self._add_timer(Timer(when, None, handler))

    def add_timer(self, interval_s: float, handler: TimeHandler) -> Timer:
        """Call ``handler(now)`` every ``interval_s`` seconds, the first time after one interval."""
        if interval_s <= 0:
            raise ValueError(f"a timer's interval must be above zero, not {interval_s!r}")
        return self._add_timer(Timer(self._clock() + interval_s, interval_s, handler))

    def _add_timer(self, timer: Timer) -> Timer:
        self._timers_made += 1
        heapq.heappush(self._timers, (timer.when, self._timers_made, timer))
        return timer

    def add_machine(self, next_deadline: Callable[[], float | None], fire: TimeHandler) -> None:
        """Serve a sans-I/O machine's deadlines: ``fire(now)`` when ``next_deadline()`` has come."""
        self._machines.append((next_deadline, fire))

    def on_stall(self, limit_s: float, handler: StallHandler) -> None:
        """Call ``handler(gap_s, now)`` when the loop was away ``limit_s`` longer than it meant to be.

        The call comes before any message or timer that became due meanwhile.
        """
        self._stall_handlers.append((limit_s, handler))
        self._stall_limit_s = min(self._stall_limit_s, limit_s)
        self._sleep_max_s = min(self._sleep_max_s, limit_s)

    def on_stop(self, begin: TimeHandler, is_done: Callable[[float], bool]) -> None:
        """Take part in a stop: ``begin(now)`` once, then the loop turns until ``is_done(now)``."""
        self._stoppers.append((begin, is_done))

    def call_threadsafe(self, function: Callable[[], T]) -> "Future[T]":
        """Run ``function`` in the loop's thread, from any thread; the future tells its result.

        ClosedError if the reactor is closed, from the future if it is closed before it comes to this call.
        """
        future: Future[T] = Future()
        with self._wake_lock:
            if self._is_closed:
                raise ClosedError("the reactor is closed")
            self._calls.append((future, function))
            self._wake()
        return future

    # --- the loop -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stopped. In the main thread SIGTERM and SIGINT are requests to stop while it runs."""
        self._seen_at = self._clock()
        self._is_stirred = True
        with StopSignals(self.stop, self.end, self._waker.fileno()):
            while not self._is_ended:
                self._turn()

    def stop(self) -> None:
        """Ask for an orderly stop; from any thread, from a handler, any number of times."""
        self._is_stop_wanted = True
        self._wake()

    def end(self) -> None:
        """End after the current turn, without ceremony. From the loop's thread."""
        self._is_ended = True

    def turn(self) -> None:
        """Wait for the next event or deadline and serve what there is."""
        # Nobody knows what was done since the last one.
        self._is_stirred = True
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
        if self._is_stirred or self._watch is None:
            self._is_stirred = False
            events = self._poll(timeout_ms)
            now = self._look()
        else:
            seen = self._watch.poll(timeout_ms / 1000)
            now = self._look()
            drain = self._drains.get(seen[0][0]) if len(seen) == 1 else None
            if drain is not None:
                drain(now)
                seen = []
            # Several have their turns in order; and a descriptor may show what is no message.
            events = self._poll(0) if seen else []
        for source, _ in events:
            serve = self._sources.get(source)
            if serve is not None:
                serve(now)
                now = self._look()
        # A deadline that a handler has just moved before the alarm is served in the next turn, which is now.
        if self._is_stop_wanted:
            self._go_on_stopping()

    def _look(self) -> float:
        """Read the clock; tell whoever wants to know if it has jumped, and serve what is due.

        It comes between any two messages: a slow handler may make a deadline late, a burst of them may not.
        """
        now = self._clock()
        if now - self._seen_at > self._stall_limit_s:
            self._tell_of_stall(now)
        self._seen_at = now
        if now >= self._alarm_at:
            self._fire_due(now)
            self._alarm_at = self._due_at(now)
            # Handlers take their time; what they took counts.
            now = self._clock()
            if now - self._seen_at > self._stall_limit_s:
                self._tell_of_stall(now)
            self._seen_at = now
        return now

    def _tell_of_stall(self, now: float) -> None:
        self._is_stirred = True
        gap_s = now - self._seen_at
        for limit_s, handler in self._stall_handlers:
            if gap_s > limit_s:
                handler(gap_s, now)

    def _due_at(self, now: float) -> float:
        due_at = now + self._sleep_max_s
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if timers and timers[0][0] < due_at:
            due_at = timers[0][0]
        for next_deadline, _ in self._machines:
            deadline = next_deadline()
            if deadline is not None and deadline < due_at:
                due_at = deadline
        if self._stop_by is not None and self._stop_by < due_at:
            due_at = self._stop_by
        return due_at

    def _fire_due(self, now: float) -> None:
        self._is_stirred = True
        while self._timers and self._timers[0][0] <= now:
            when, _, timer = heapq.heappop(self._timers)
            if timer.is_cancelled:
                continue
            self.lag.observe(now - when)
            timer.fire(now)
            if timer.interval_s is not None and not timer.is_cancelled:
                # From the time it was due, so that it does not drift; but no bursts to make up for a stall.
                timer.when = when + timer.interval_s
                if timer.when <= now:
                    timer.when = now + timer.interval_s
                self._add_timer(timer)
        for next_deadline, fire in self._machines:
            deadline = next_deadline()
            if deadline is not None and deadline <= now:
                self.lag.observe(now - deadline)
                fire(now)

    def _go_on_stopping(self) -> None:
        self._is_stirred = True
        now = self._clock()
        if self._stop_by is None:
            self._stop_by = now + self.stop_timeout_s
            for begin, _ in self._stoppers:
                begin(now)
        if now >= self._stop_by or all(is_done(now) for _, is_done in self._stoppers):
            self._is_ended = True

    # --- waking -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                # A full pipe wakes as well as one more octet would.
                with suppress(BlockingIOError):
                    self._waker.send(b"\0")

    def _on_woken(self, now: float) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        for _ in range(len(self._calls)):
            future, function = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  # it belongs to the caller, who gets it from the future
                future.set_exception(error)

    def close(self) -> None:
        """Free what the reactor itself holds; the sockets are their owners'. Idempotent."""
        with self._wake_lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.remove(self._woken.fileno())
        self._woken.close()
        self._waker.close()
        if self._watch is not None:
            self._watch.close()
        while self._calls:
            future, _ = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClosedError("the reactor was closed before it came to this call"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _descriptor(socket: "zmq.Socket[bytes]") -> int:
    descriptor = socket.get(zmq.FD)
    assert isinstance(descriptor, int)
    return descriptor
