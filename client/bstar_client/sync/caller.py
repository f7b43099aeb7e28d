"""What every client for threads does with its calls: begin them, wait for their outcomes, give them up."""

import os
import queue
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Self

from bstar.errors import BstarError, ClosedError, ForkedError, NoActiveNodeError
from bstar_client.calls.client_base import ClientBase
from bstar_client.core.calls import Asked, Call, CallFailed, Reply
from bstar_client.core.window import Window
from bstar_client.sync.client_loop import ClientLoop, Sink
from bstar_client.sync.futures import CallFuture


class Caller(ClientBase):
    """Base of the clients for threads."""

    def _init_shell(self) -> None:
        self._loop = self._new_loop()

    def _new_loop(self) -> ClientLoop:
        return ClientLoop(self, self._settings, self._core, self._delivery)

    def _sink(self) -> Sink:
        """For the outcome of one call. Raises an error if the client cannot be used here."""
        self._check()
        return queue.SimpleQueue()

    def _reply_to(self, call: Call, sink: Sink) -> Reply:
        """Send the call and wait for its reply; raises the error if its outcome is one."""
        try:
            self._loop.begin([call])
            return self._take(call, sink)
        finally:
            if not call.is_done:
                self._abandon(call)

    def _start(
        self, make_call: Callable[[CallFuture[Any]], Call], read: Callable[[Reply], Any]
    ) -> CallFuture[Any]:
        """Make the call for a sink, send it now, and return the future of what ``read`` makes of it."""
        self._check()
        future = self._new_future()
        future.read = read
        future.call = call = make_call(future)
        self._loop.unawaited.add(future)
        self._loop.begin([call])
        self._loop.nudge()
        return future

    def _new_future(self) -> CallFuture[Any]:
        return CallFuture(self._loop, self._abandon, self._explain)

    def _replies_of(self, make_call: Callable[[Sink], Call]) -> Generator[Reply, None, None]:
        """Make the call of a stream for a sink, send it now, and yield its replies."""
        sink = self._sink()
        call = make_call(sink)
        try:
            self._loop.begin([call])
            self._loop.nudge()
        except BaseException:
            self._abandon(call)
            raise
        replies = self._stream(call, sink)
        # Python ends a generator that has not begun without its ``finally``.
        next(replies)
        return replies

    def _stream(self, call: Call, sink: Sink) -> Generator[Any, None, None]:  # Any: first it only begins
        try:
            yield None
            while True:
                reply = self._take(call, sink)
                yield reply
                if reply.is_final:
                    return
        finally:
            self._abandon(call)

    def _replies_to(
        self, make_calls: Callable[[Callable[[], Sink]], list[Call]]
    ) -> tuple[list[Call], list[Reply]]:
        """Calls that go out together, made with a function that makes sinks; and their replies."""
        self._check()
        calls = make_calls(queue.SimpleQueue)
        sinks = [(call, call.sink) for call in calls]
        try:
            self._loop.begin(calls)
            return calls, [self._take(call, sink) for call, sink in sinks]
        finally:
            self._abandon(*calls)

    def _outcomes_of(
        self, window: Window, bodies: Iterable[Asked], maker: Callable[[Sink], Callable[[Asked, int], Call]]
    ) -> Generator[Reply | CallFailed, None, None]:
        """Send a call for each body as the window allows, and yield what became of them. ``maker`` makes
        the function that makes calls for a sink.
        """
        return self._outcomes(window, iter(bodies), maker)

    def _outcomes(
        self, window: Window, bodies: Iterator[Asked], maker: Callable[[Sink], Callable[[Asked, int], Call]]
    ) -> Generator[Reply | CallFailed, None, None]:
        sink: Sink = queue.SimpleQueue()
        make_call = maker(sink)
        in_flight = window.in_flight
        try:
            while True:
                if room := window.room:
                    self._check()
                    batch = list(islice(bodies, room))
                    window.is_exhausted = len(batch) < room
                    self._loop.begin(window.begin(batch, make_call))
                    self._loop.nudge()
                if window.is_over:
                    return
                # At once if a body could not be sent.
                if not (ready := window.ready()):
                    while in_flight:
                        window.take(self._loop.wait(next(iter(in_flight.values())), sink))
                        if sink.empty():
                            break
                    ready = window.ready()
                yield from ready
        except NoActiveNodeError as error:
            self._explain(error)
            raise
        finally:
            self._abandon(*in_flight.values())

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every outstanding call with an error that says what is known of it, and release everything.
        Idempotent.
        """
        if self._pid == os.getpid():
            self._loop.close()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- in the caller's thread ---------------------------------------------------------------------------

    def _check(self) -> None:
        if self._pid != os.getpid():
            kind = type(self).__name__
            raise ForkedError(f"this client was made before fork(): make a new {kind} in the child process")
        if self._loop.is_closing:
            raise ClosedError("the client is closed")

    def _pause(self, seconds: float) -> None:
        """Let so much time pass."""
        time.sleep(seconds)

    def _abandon(self, *calls: Call) -> None:
        """Give up the calls that have no outcome yet."""
        pending = [call for call in calls if not call.is_done]
        if pending and self._pid == os.getpid():
            self._loop.abandon(pending)

    def _take(self, call: Call, sink: Sink) -> Reply:
        """The next reply in the sink; raises the error if the outcome is one."""
        [(_, outcome)] = self._loop.wait(call, sink)
        if type(outcome) is Reply:
            return outcome
        assert isinstance(outcome, BstarError)
        if isinstance(outcome, NoActiveNodeError):
            self._explain(outcome)
        raise outcome

    def _explain(self, error: NoActiveNodeError) -> None:
        """Say in the error what is at the endpoints that the client did not reach."""
        from bstar_client.links.endpoint_probe import explain  # noqa: PLC0415 - most programs never need it

        explain(error, has_keys=self._settings.link.security is not None)
