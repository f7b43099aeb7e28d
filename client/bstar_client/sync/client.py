"""The client for threads: requests to a service, whichever node of the pair is active.

The session (``bstar_client.core``) decides everything. ``ClientLoop`` drives it in the threads that wait for
replies. ``bstar_client.aio.client`` has the same methods for asyncio.
"""

import os
import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Literal, Self, cast, overload

import zmq

from bstar.errors import BstarError, ClosedError, ConfigurationError, ForkedError
from bstar.wire.mmi import OK, Service
from bstar_client.bodies import Body, to_name
from bstar_client.checks import check_map
from bstar_client.client import Client
from bstar_client.core.calls import Ask, Call, CallFailed, Reply
from bstar_client.core.window import Window
from bstar_client.link import Links, Transport
from bstar_client.requests import DEFAULT, Timeout
from bstar_client.sync.client_loop import ClientLoop, Sink
from bstar_client.unclosed import Guard
from bstar_client.wakeup import WakeUp

__all__ = ["HAClient"]


class HAClient(Client):
    """A client of a pair of brokers, of one broker, or of several pairs.

    ``endpoints`` in order of preference, the primary first. For several pairs a list of such lists, or a
    mapping from the pairs' names to such lists, or a Fleet; each service then belongs to one of the pairs,
    which is computed (``bstar.fleet``) or, for the services in ``pins``, told: ``{"billing": "PAIR"}``. A
    pair that is down concerns its own services alone (docs/fleet.md).

    ``timeout`` is the default deadline of a call in seconds and covers everything: connecting, failing over,
    waiting; None waits for ever. ``dialect`` is ``"native"`` or ``"mdp02"`` (plain MDP/0.2 to any broker, one
    request at a time). ``on_event`` is called with each event of ``bstar_client.core.events``, in
    whichever thread is at work for the client: one that waits for a reply, or the client's own. It must not
    wait for the client; what it raises is logged.

    One object serves any number of threads. It does not survive ``fork``: in the child every call raises
    ForkedError; make a new client there.

    ``outstanding_max`` bounds the requests without a reply, at each pair, ``partials_max`` the PARTIALs that
    wait in one stream or are kept for one reply. The protocol has no flow control between worker and client,
    so a stream whose reader is slower than its worker for so long that the bound is reached ends with
    StreamInterruptedError.

    ``ping_interval_s`` and ``silence_limit_s``: how often the node that is followed is asked for a sign of
    life while nothing comes from it, and after how much silence it counts as lost; None: as the nodes tell of
    their own timing. ``attempt_timeout_s`` and ``settle_delay_s`` are of plain MDP: silence after which a
    request is sent again, and the pause before the other node is asked, at least the pair's failover timeout.
    ``link``: socket options. ``context``: a ZeroMQ context to share, which is not ended with the client.

    ``journal``: a directory in which the client notes how each call ended and which node it followed, or
    JournalSettings; see docs/journal.md. It never makes a call wait or fail.
    """

    def _start(self) -> None:
        settings = self._settings
        transport = Transport(self.endpoints, settings.link, settings.context)
        self._close_lock = threading.Lock()

        def connect(wakeup: WakeUp) -> Links:
            links = transport.new_links(wakeup)
            if not is_fleet:
                links.open()
            return links

        is_fleet = len(self.fleet.pairs) > 1
        try:
            loop = self._loop = ClientLoop(self._core, self._delivery, connect, transport.close)
        except zmq.ZMQError as error:
            transport.close()
            raise ConfigurationError(f"cannot connect to {list(self.endpoints)}: {error}") from error
        try:
            self._open_journal()
        except ConfigurationError:
            loop.discard()
            raise
        loop.start()
        name = f"HAClient({', '.join(self.endpoints)})"
        remedy = "use it in 'with', or call close()"
        self._guard = Guard(self, name, remedy, lambda is_exit: loop.close() if is_exit else loop.stop())

    # --- calls --------------------------------------------------------------------------------------------

    def request(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        key: bytes | str | None = None,
        urgent: bool = False,
    ) -> Reply:
        """Send a request and wait for its reply.

        ``body``: bytes, or a sequence of bytes for several frames. ``timeout`` in seconds, None for no
        limit. ``idempotent=False``: execute it at most once. Where a worker may have begun it and its reply
        is lost, neither this client nor a broker repeats it; OutcomeUnknownError is raised.

        ``key``: the caller's own name for this request (text is UTF-8). Whoever asks the service with the
        same key asks for the same request: while it is under way all of them get its one answer, and a worker
        that keeps its replies (``Worker(dedupe=…)``) answers later ones with it, too. A key belongs to one
        body and one value of ``idempotent``; with another it is rejected as far as that is noticed.

        ``urgent``: in the broker's queue it goes before requests that are not, but after what workers have
        already; of many urgent ones in a row one in 16 gives way.

        Raises BusyError, RejectedError (not executed), NoActiveNodeError (deadline, not executed),
        CallTimeoutError (deadline), HandlerError (the service's handler failed), OutcomeUnknownError,
        ClosedError, ForkedError.
        """
        sink: Sink = queue.SimpleQueue()
        self._check()
        ask = Ask(body, key, timeout, service, urgent)
        call = self._requests.call(ask, sink, idempotent=idempotent)
        try:
            self._loop.begin([call])
            return self._take(call, sink)
        except BaseException:
            if not call.is_done:
                self._abandon([call])
            raise

    def stream(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        urgent: bool = False,
    ) -> Generator[Reply, None, None]:
        """Send a request and yield its PARTIALs as they come, then the FINAL (``is_final``).

        A stream that breaks after its first PARTIAL is never repeated: it ends with StreamInterruptedError.
        Leaving the loop early frees what the client keeps; the worker is not told. ``body``, ``timeout``,
        ``idempotent`` and ``urgent`` are those of ``request``.
        """
        sink: Sink = queue.SimpleQueue()
        self._check()
        ask = Ask(body, None, timeout, service, urgent)
        call = self._requests.call(ask, sink, idempotent=idempotent, is_stream=True)
        try:
            self._loop.begin([call])
            self._loop.nudge()
        except BaseException:
            self._abandon([call])
            raise
        return self._replies_of(call, sink)

    def _replies_of(self, call: Call, sink: Sink) -> Generator[Reply, None, None]:
        try:
            while True:
                reply = self._take(call, sink)
                yield reply
                if reply.is_final:
                    return
        finally:
            if not call.is_done:
                self._abandon([call])

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask],
        *,
        window: int = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        idempotent: bool = ...,
        errors: Literal["raise"] = ...,
    ) -> Generator[Reply, None, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask],
        *,
        window: int = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        idempotent: bool = ...,
        errors: Literal["return"],
    ) -> Generator[Reply | CallFailed, None, None]: ...

    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask],
        *,
        window: int = 512,
        ordered: bool = True,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        errors: Literal["raise", "return"] = "raise",
    ) -> Generator[Reply, None, None] | Generator[Reply | CallFailed, None, None]:
        """Send a request for each body, ``window`` of them at a time, and yield the replies.

        While the broker says BUSY fewer are under way, so that a short queue is not run against.
        ``Reply.index`` is the body's position. With ``ordered`` the replies come in the order of the
        bodies, and replies that wait for their turn count against the window. ``timeout`` is each
        request's own deadline, from the moment it is sent; ``idempotent`` is as in ``request``. ``bodies`` is
        read as the window moves; an ``Ask`` in place of a body brings a key, urgency, a timeout or a service
        of its own.

        ``errors="raise"``: the first failure is raised (with the body's position in a note), and what is in
        flight then is given up. ``errors="return"``: a CallFailed takes the place of the reply, and the
        others go on; what is raised then is no single call's failure (ClosedError, a body of a wrong type).
        """
        size = check_map(bodies, window, ordered, errors)
        is_returning = errors == "return"
        self._check()
        sliding = Window(size, self.counters, is_ordered=ordered, is_returning=is_returning)
        outcomes = self._map(sliding, service, iter(bodies), timeout, idempotent)
        return outcomes if is_returning else cast("Generator[Reply, None, None]", outcomes)

    def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterator[Body | Ask],
        timeout: Timeout,
        idempotent: bool,
    ) -> Generator[Reply | CallFailed, None, None]:
        sink: Sink = queue.SimpleQueue()
        make_call = self._requests.call_maker(service, timeout, idempotent, sink)
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
                while in_flight:
                    window.take(self._loop.wait(next(iter(in_flight.values())), sink))
                    if sink.empty():
                        break
                yield from window.ready()
        finally:
            self._abandon([call for call in in_flight.values() if not call.is_done])

    def discover(self, service: str | bytes, *, timeout: Timeout = DEFAULT) -> bool:
        """Does a worker offer the service? A hint: the worker can be dead for up to its expiry (MMI-C-01)."""
        return self.request(Service.SERVICE.value, to_name(service), timeout=timeout).body == OK

    def services(self, *, timeout: Timeout = DEFAULT) -> list[dict[str, object]]:
        """What the active broker offers: a dict with ``service``, ``workers`` and ``queued`` for each.

        Of several pairs what all of them offer, with the ``pair`` of each; the first that fails is raised.
        """
        self._check()
        calls = self._requests.services_calls(timeout, queue.SimpleQueue)
        sinks: list[Sink] = [call.sink for call in calls]
        try:
            for call in calls:
                self._loop.begin([call])
            replies = [self._take(call, sink) for call, sink in zip(calls, sinks, strict=True)]
        finally:
            self._abandon([call for call in calls if not call.is_done])
        return self._requests.read_services(calls, replies)

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End outstanding calls with what is known of them; release everything. Idempotent."""
        if self._pid != os.getpid():
            return
        with self._close_lock:
            self._guard.close()
            self._loop.close()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- in the caller's thread ---------------------------------------------------------------------------

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this client was made before fork(): make a new HAClient in the child process")
        if self._loop.is_closing:
            raise ClosedError("the client is closed")

    def _abandon(self, calls: list[Call]) -> None:
        if calls and self._pid == os.getpid():
            self._loop.abandon(calls)

    def _take(self, call: Call, sink: Sink) -> Reply:
        """The next reply in the sink; raises the error if that is what came."""
        [(_, outcome)] = self._loop.wait(call, sink)
        if type(outcome) is Reply:
            return outcome
        assert isinstance(outcome, BstarError)
        raise outcome
