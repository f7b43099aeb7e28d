"""One thread that turns: wait for something to read or a deadline, read a bounded burst, fire what is due.

Everything of a node happens in the thread that calls ``run``, one thing after the other, so nothing in it
needs a lock. Time is the monotonic clock. The reactor knows how late it is (``lag``), and when the
process was away for longer than it meant to sleep it tells those who asked (``on_stall``) before it hands
out anything that queued up meanwhile. It does not know what it carries: sockets, timers and sans-I/O
machines are given to it.

A stop, by ``stop()`` or by SIGTERM or SIGINT, is a request: those who registered with ``on_stop`` get the
loop for as long as they need to end in good order, at most ``stop_timeout_s``. A second signal ends it at
once.
"""

import heapq
import signal
import socket as stdlib_socket
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import zmq

from bstar.errors import ClosedError
from bstar.sockets import is_readable, receive

__all__ = ["LAG_BOUNDS_S", "Lag", "Reactor", "Timer"]

T = TypeVar("T")

Clock = Callable[[], float]
MessageHandler = Callable[[list[bytes], float], None]
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

# Messages of a burst before which the socket is asked for more; a longer burst pays for one zmq.Again.
_ASKS_MAX = 5

# A loop that waits for nothing still looks up now and then, so that a machine whose deadline moved without an
# event is found. Where stalls matter it sleeps no longer than the shortest that does: only what lies beyond
# the end of a sleep can be told from sleeping.
_SLEEP_MAX_S = 10.0

# Upper bounds of the lag histogram.
LAG_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


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


class Lag:
    """How late deadlines were served, in seconds."""

    __slots__ = ("_peak_s", "counts", "last_s", "max_s", "sum_s")

    def __init__(self) -> None:
        self.last_s = 0.0
        self.max_s = 0.0
        self.sum_s = 0.0
        self._peak_s = 0.0
        # One bucket per bound of LAG_BOUNDS_S and one for what lies above.
        self.counts = [0] * (len(LAG_BOUNDS_S) + 1)

    def observe(self, lag_s: float) -> None:
        """A deadline was served ``lag_s`` late."""
        self.last_s = lag_s
        self.max_s = max(self.max_s, lag_s)
        self._peak_s = max(self._peak_s, lag_s)
        self.sum_s += lag_s
        self.counts[bisect_left(LAG_BOUNDS_S, lag_s)] += 1

    def take_peak_s(self) -> float:
        """The latest since this was last asked."""
        peak_s, self._peak_s = self._peak_s, 0.0
        return peak_s


class Reactor:
    """Register what is to be served, then ``run``. Register in the loop's own thread, or before it runs.

    ``drain_max`` bounds the messages read from one socket per turn; ``stop_timeout_s`` bounds how long a
    stop may take.
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
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_made = 0
        self._machines: list[tuple[Callable[[], float | None], TimeHandler]] = []
        self._stall_handlers: list[tuple[float, StallHandler]] = []
        self._stall_limit_s = float("inf")
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

    def add_reader(self, socket: "zmq.Socket[bytes]", handler: MessageHandler) -> None:
        """Call ``handler(frames, now)`` for every message. Sockets take turns in order of registration."""

        def drain(now: float) -> None:
            for count in range(self._drain_max):
                # Most turns bring a few messages; asking first is then cheaper than running into zmq.Again.
                if 0 < count < _ASKS_MAX and not is_readable(socket):
                    return
                try:
                    frames = receive(socket)
                except zmq.Again:
                    return
                handler(frames, now if count == 0 else self._look())
                if socket not in self._sources:
                    return

        self.add_source(socket, drain)

    def add_source(self, source: "zmq.Socket[bytes] | int", handler: TimeHandler) -> None:
        """Call ``handler(now)`` whenever it is readable; the handler reads, and bounds what it reads."""
        self._sources[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def remove(self, source: "zmq.Socket[bytes] | int") -> None:
        """Serve this socket or descriptor no longer."""
        del self._sources[source]
        self._poller.unregister(source)

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
        with _Signals(self, self._waker.fileno()):
            while not self._is_ended:
                self.turn()

    def stop(self) -> None:
        """Ask for an orderly stop; from any thread, from a handler, any number of times."""
        self._is_stop_wanted = True
        self._wake()

    def end(self) -> None:
        """End after the current turn, without ceremony. From the loop's thread."""
        self._is_ended = True

    def turn(self) -> None:
        """Wait for the next event or deadline and serve what there is."""
        self.turns += 1
        now = self._look()
        self._alarm_at = alarm_at = self._due_at(now)
        if alarm_at > now:
            self._seen_at = alarm_at
            # Rounded up: waking a moment early would only mean to go to sleep again.
            events = self._poll(int((alarm_at - now) * 1000) + 1)
        else:
            events = self._poll(0)
        now = self._look()
        for source, _ in events:
            handler = self._sources.get(source)
            if handler is not None:
                handler(now)
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
        gap_s = now - self._seen_at
        for limit_s, handler in self._stall_handlers:
            if gap_s > limit_s:
                handler(gap_s, now)

    def _due_at(self, now: float) -> float:
        due_at = now + min(_SLEEP_MAX_S, self._stall_limit_s)
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


class _Signals:
    """While entered, in the main thread, SIGTERM and SIGINT stop the reactor; then all is as before."""

    def __init__(self, reactor: Reactor, waker_fd: int) -> None:
        self._reactor = reactor
        self._waker_fd = waker_fd
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}  # Any: what signal.signal returns
        self._wakeup_before = -1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            self._reactor.end()
        self._reactor.stop()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # The wake-up descriptor ends a poll which the signal came too early to interrupt.
            self._wakeup_before = signal.set_wakeup_fd(self._waker_fd, warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup_before)
