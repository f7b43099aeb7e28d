"""An event loop in one thread: wait for messages or a deadline, read a bounded burst, fire due timers.

All work of a node happens in the thread that calls ``run``, in sequence, so it needs no lock. Time is the
monotonic clock. The reactor knows how late it is (``lag``). If the process was away for longer than it meant
to sleep, it calls the stall handlers (``on_stall``) before it hands out queued messages. It does not know its
load: sockets, timers and sans-I/O machines register with it (``agenda``). Other threads hand it calls.

It waits in one of two ways. Normally it asks every socket whether it has messages, which takes two system
calls for each of them, awake or not. If all readers of a turn used only their own sockets, the other sockets
have not changed. Then one system call waits for all descriptors at once. A broker that passes requests on
usually turns like that.

A stop, by ``stop()``, SIGTERM or SIGINT, is a request: the participants of ``on_stop`` keep the loop until
they have drained, for ``stop_timeout_s`` at most. A second signal ends it at once.
"""

import select
import signal
import socket as stdlib_socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import zmq

from bstar.base.closing import Closing
from bstar.errors import ClosedError
from bstar.net.agenda import Agenda, Lag, TimeHandler, Timer
from bstar.net.sockets import is_readable, receive, receive_routed
from bstar.net.stop_signals import on_stop_signals

T = TypeVar("T")

Clock = Callable[[], float]
MessageHandler = Callable[[list[bytes], float], object]
StallHandler = Callable[[float, float], None]

# Monotonic (BST-R-03). If the system has one, a clock that runs while the machine is suspended: a node must
# notice that it slept.
_clock: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

# How many messages of one socket a turn reads: enough to spread the cost of a poll, few enough (some
# milliseconds) that no heartbeat waits.
DRAIN_MAX = 200

# And for how long: messages of a mebibyte take a millisecond each. 200 of them would leave the peer's state
# messages unread for longer than a failover timeout.
DRAIN_S_MAX = 0.01

# A burst is taken to be like the one before: long with so many messages. To ask a socket whether it has more
# costs 1.4 µs, and zmq.Again 3.3 µs. So a short burst asks after each message, and a long one pays for one
# zmq.Again.
_SHORT_BURST = 3

# An idle loop still wakes now and then, to find a machine whose deadline moved without an event. If stalls
# matter, it sleeps no longer than the shortest one that matters: a stall shows only beyond the end of a
# sleep.
_SLEEP_MAX_S = 10.0


class _Sources:
    """The sockets and descriptors of a loop. ``is_stirred``: a socket may have messages that its descriptor
    does not show, because libzmq's descriptor shows only changes since the socket's last use.
    """

    def __init__(self) -> None:
        self.is_stirred = True
        self.handlers: dict[zmq.Socket[bytes] | int, TimeHandler] = {}
        self.poller = zmq.Poller()
        # The same by their descriptors; None if the system has no such poll.
        self.watch = select.epoll() if hasattr(select, "epoll") else None
        # By descriptor: handlers that may run although the socket has no message.
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
        """Stop serving it."""
        del self.handlers[source]
        self.poller.unregister(source)
        descriptor = self._descriptors.pop(source)
        self.drains.pop(descriptor, None)
        if self.watch is not None:
            self.watch.unregister(descriptor)


class _ThreadCalls:
    """Calls into the loop from other threads and from signal handlers. ``descriptor`` is readable when
    ``run`` has something to do.
    """

    def __init__(self) -> None:
        # Any: each call has its own type.
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_closed = False
        # Reentrant: a signal may arrive while this thread holds it, and its handler wakes the loop, too.
        self.lock = threading.RLock()
        self._woken, self._waker = stdlib_socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    @property
    def descriptor(self) -> int:
        """The descriptor that the loop polls."""
        return self._woken.fileno()

    @property
    def waker(self) -> int:
        """The descriptor that signals write to."""
        return self._waker.fileno()

    def add(self, function: Callable[[], T]) -> "Future[T]":
        """Let the loop run ``function``; ClosedError after ``close``."""
        future: Future[T] = Future()
        with self.lock:
            if self._is_closed:
                raise ClosedError("the reactor is closed")
            self._calls.append((future, function))
            self.wake()
        return future

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self.lock:
            if not self._is_closed:
                # A full pipe wakes the loop, too.
                with suppress(BlockingIOError):
                    self._waker.send(b"\0")

    def run(self, now: float) -> None:
        """Run the waiting calls, in the loop's thread."""
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

    def begin_to_close(self) -> bool:
        """Take no more calls. False if it is closed already."""
        with self.lock:
            was_open = not self._is_closed
            self._is_closed = True
        return was_open

    def close(self) -> None:
        """End the calls that wait with ClosedError, and free the descriptors. Once."""
        self._woken.close()
        self._waker.close()
        while self._calls:
            future, _ = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClosedError("the reactor was closed before it came to this call"))


@contextmanager
def _stop_signals(stop: Callable[[], None], end: Callable[[], None], waker_fd: int) -> Iterator[None]:
    """In the main thread, SIGTERM and SIGINT call ``stop``, the second one ``end`` first. ``waker_fd`` gets a
    byte for each signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            end()
        stop()

    # The wake-up descriptor ends a poll that began just after the signal.
    before = signal.set_wakeup_fd(waker_fd, warn_on_full_buffer=False)
    try:
        with on_stop_signals(on_signal):
            yield
    finally:
        signal.set_wakeup_fd(before)


class _Stop:
    """A stop in progress: its participants and its deadline."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_over = False
        self.by: float | None = None
        self.parts: list[tuple[TimeHandler, Callable[[float], bool]]] = []

    def go_on(self, now: float, timeout_s: float) -> None:
        """Begin it if it has not begun; end it when all are done or its deadline has passed."""
        if self.by is None:
            self.by = now + timeout_s
            for begin, _ in self.parts:
                begin(now)
        if now >= self.by or all(is_done(now) for _, is_done in self.parts):
            self.is_over = True


class Reactor(Closing):
    """An event loop: register handlers, then ``run``. Register in the loop's own thread, or before it runs.

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
        self._calls = _ThreadCalls()
        self._stall_handlers: list[tuple[float, StallHandler]] = []
        self._stall_limit_s = float("inf")
        self._sleep_max_s = _SLEEP_MAX_S
        self._stop = _Stop()
        # When the loop last read the clock, or meant to read it after a sleep.
        self._seen_at = clock()
        # When to check the deadlines next: no message is handled after a due deadline.
        self._alarm_at = self._seen_at
        # When its last sleep ended, or was to end.
        self._idle_until = self._seen_at
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
        flush: Callable[[], bool] | None = None,
    ) -> None:
        """Call ``handler(frames, now)`` for every message. Sockets take turns in order of registration.

        ``read`` takes one message off the socket, or raises ``zmq.Again``; by default as
        ``bstar.net.sockets`` does for the type of the socket.

        With ``keeps_to_itself`` the handler's result counts: True means that it used only this socket, so the
        loop need not ask the others.

        ``flush`` sends what the handler kept back; its result counts like the handler's. It comes at the end
        of a burst, and also after the first message if the burst before was short: so a single message is
        answered at once.
        """

        if read is None:
            read = receive_routed if socket.type == zmq.ROUTER else receive
        sources = self._sources

        last_burst = 0

        def drain_burst(now: float) -> None:
            nonlocal last_burst
            began_at = now
            is_long = last_burst >= _SHORT_BURST
            asks_until = 0 if is_long else _SHORT_BURST
            for count in range(self._drain_max):
                last_burst = count
                if 0 < count < asks_until and not is_readable(socket):
                    return
                try:
                    frames = read(socket)
                except zmq.Again:
                    return
                if count:
                    now = self._look()
                is_calm = handler(frames, now)
                if flush is not None and not (count or is_long):
                    is_calm = flush() and is_calm
                if not (is_calm and keeps_to_itself):
                    sources.is_stirred = True
                if socket not in sources.handlers:
                    return
                if now - began_at > DRAIN_S_MAX:
                    break
            # There may be more.
            sources.is_stirred = True

        def drain_and_flush(now: float) -> None:
            assert flush is not None
            try:
                drain_burst(now)
            finally:
                if not flush():
                    sources.is_stirred = True

        drain = drain_burst if flush is None else drain_and_flush
        sources.drains[sources.add(socket, drain)] = drain

    def add_source(self, source: "zmq.Socket[bytes] | int", handler: TimeHandler) -> None:
        """Call ``handler(now)`` whenever it is readable; the handler reads, and bounds what it reads."""

        def serve(now: float) -> None:
            self._sources.is_stirred = True
            handler(now)

        self._sources.add(source, serve)

    def remove(self, source: "zmq.Socket[bytes] | int") -> None:
        """Stop serving this socket or descriptor. Call it before it closes."""
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
        with _stop_signals(self.stop, self.end, self._calls.waker):
            while not self._stop.is_over:
                self._turn()

    def stop(self) -> None:
        """Ask for a drain and a stop. Any thread and any handler may call it, several times."""
        self._stop.is_wanted = True
        self._calls.wake()

    def end(self) -> None:
        """End after the current turn, without a drain. For the loop's thread."""
        self._stop.is_over = True

    def turn(self) -> None:
        """Wait for the next event or deadline and serve what there is."""
        # The sockets may have been used since the last turn.
        self._sources.is_stirred = True
        self._turn()

    def _turn(self) -> None:
        self.turns += 1
        now = self._look()
        self._alarm_at = alarm_at = self._due_at(now)
        timeout_ms = 0
        if alarm_at > now:
            self._seen_at = self._idle_until = alarm_at
            # Rounded up: a loop that wakes too early only sleeps again.
            timeout_ms = int((alarm_at - now) * 1000) + 1
        sources = self._sources
        watch = sources.watch
        if sources.is_stirred or watch is None:
            sources.is_stirred = False
            events = self._poll(timeout_ms)
            now = self._look()
            self._idle_until = min(self._idle_until, now)
        else:
            seen = watch.poll(timeout_ms / 1000)
            now = self._look()
            self._idle_until = min(self._idle_until, now)
            drain = sources.drains.get(seen[0][0]) if len(seen) == 1 else None
            if drain is not None:
                drain(now)
                seen = []
            # Several sockets have their turns in order; and a descriptor may show other things than messages.
            events = self._poll(0) if seen else []
        for source, _ in events:
            serve = sources.handlers.get(source)
            if serve is not None:
                serve(now)
                now = self._look()
        # If a handler has moved a deadline before the alarm, the next turn serves it, at once.
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
            self._agenda.fire_due(now, self._idle_until)
            self._alarm_at = self._due_at(now)
            # Handlers take time, and it counts.
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
        """Free the reactor's own resources; owners close their sockets. Idempotent."""
        if self._calls.begin_to_close():
            self.remove(self._calls.descriptor)
            self._calls.close()
            if self._sources.watch is not None:
                self._sources.watch.close()


def _descriptor(socket: "zmq.Socket[bytes]") -> int:
    descriptor = socket.get(zmq.FD)
    assert isinstance(descriptor, int)
    return descriptor
