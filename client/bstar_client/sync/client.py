"""The client: requests to a service, whichever node of the pair is active.

The session (``bstar_client.core``) decides everything, ``driving`` lets it do so in the threads that wait for
replies. This is what the callers see. ``aio`` is the same for asyncio.
"""

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self, cast, overload

import zmq

from bstar.errors import (
    BstarError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    ForkedError,
    LocalProtocolError,
)
from bstar.fleet import Endpoints
from bstar.io_threads import new_context
from bstar.wire.mmi import OK, Service
from bstar_client.bodies import Body, to_name
from bstar_client.checks import check_function, check_map
from bstar_client.core.calls import Ask, Call, CallFailed, Reply
from bstar_client.core.events import Event
from bstar_client.core.fleet_session import FleetSession
from bstar_client.core.session import Counters
from bstar_client.core.window import Pace
from bstar_client.delivery import Performer
from bstar_client.fleet_journal import open_call_journal
from bstar_client.journal import JournalPlace
from bstar_client.link import Links, LinkSettings
from bstar_client.requests import DEFAULT, Asker, Timeout, to_key
from bstar_client.sync.client_loop import Driver, Sink
from bstar_client.unclosed import Guard
from bstar_client.wakeup import WakeUp

__all__ = ["HAClient"]


class HAClient:
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

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        pins: Mapping[str, str] | None = None,
        dialect: Literal["native", "mdp02"] = "native",
        timeout: float | None = 30.0,
        on_event: Callable[[Event], object] | None = None,
        outstanding_max: int = 100_000,
        partials_max: int = 10_000,
        ping_interval_s: float | None = None,
        silence_limit_s: float | None = None,
        attempt_timeout_s: float = 2.5,
        settle_delay_s: float = 2.0,
        link: LinkSettings | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        journal: JournalPlace | None = None,
    ) -> None:
        self._asker = Asker(
            endpoints,
            pins=pins,
            dialect=dialect,
            timeout=timeout,
            outstanding_max=outstanding_max,
            partials_max=partials_max,
            ping_interval_s=ping_interval_s,
            silence_limit_s=silence_limit_s,
            attempt_timeout_s=attempt_timeout_s,
            settle_delay_s=settle_delay_s,
            link=link,
            context=context,
            journal=journal,
            on_event=on_event,
        )
        self.fleet = self._asker.fleet
        self.endpoints = self._asker.endpoints
        self._core = self._asker.core
        self._performer = Performer(self._core, on_event, partials_max)
        self._close_lock = threading.Lock()
        self._pid = os.getpid()
        sockets = _Sockets(self._asker, context)
        try:
            self._driver = Driver(self._core, self._performer, sockets.connect, sockets.release)
        except zmq.ZMQError as error:
            sockets.release()
            raise ConfigurationError(f"cannot connect to {list(self.endpoints)}: {error}") from error
        if journal is not None:
            try:
                self._performer.journal = open_call_journal(journal, self.fleet, is_plain=dialect == "mdp02")
            except ConfigurationError:
                self._driver.discard()
                raise
        driver = self._driver
        driver.start()
        name = f"HAClient({', '.join(self.endpoints)})"
        remedy = "use it in 'with', or call close()"
        self._guard = Guard(self, name, remedy, lambda is_exit: driver.close() if is_exit else driver.stop())

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
        call = self._asker.call(service, body, timeout, idempotent, sink, key=to_key(key), is_urgent=urgent)
        try:
            self._driver.begin(call)
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
        call = self._asker.call(service, body, timeout, idempotent, sink, is_stream=True, is_urgent=urgent)
        try:
            self._driver.begin(call)
            self._driver.nudge()
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
        window = check_map(bodies, window, ordered, errors)
        self._check()
        outcomes = self._map(service, iter(bodies), window, ordered, timeout, idempotent, errors == "return")
        return outcomes if errors == "return" else cast("Generator[Reply, None, None]", outcomes)

    def _map(
        self,
        service: str | bytes,
        bodies: Iterator[Body | Ask],
        window: int,
        ordered: bool,
        timeout: Timeout,
        idempotent: bool,
        is_returning: bool,
    ) -> Generator[Reply | CallFailed, None, None]:
        sink: Sink = queue.SimpleQueue()
        flying: dict[int, Call] = {}
        waiting: dict[int, Reply | CallFailed] = {}
        begun = ended = 0
        is_exhausted = False
        pace = Pace(window, self._core.counters)
        call_for = self._asker.caller(service, timeout, idempotent, sink)
        try:
            while True:
                limit = int(pace.limit)
                # Refilling in bursts lets many requests travel together.
                if not is_exhausted and begun - ended <= limit - limit // 4:
                    self._check()
                    calls = []
                    while begun - ended < limit:
                        try:
                            body = next(bodies)
                        except StopIteration:
                            is_exhausted = True
                            break
                        try:
                            call = call_for(body, begun)
                        except (LocalProtocolError, CallTimeoutError) as error:
                            if not is_returning:
                                raise
                            waiting[begun] = CallFailed(error, begun)
                        else:
                            flying[begun] = call
                            calls.append(call)
                        begun += 1
                    self._driver.begin_all(calls)
                    self._driver.nudge()
                if begun == ended:
                    return
                flown = len(flying)
                while flying:
                    for call, outcome in self._driver.wait(next(iter(flying.values())), sink):
                        index = call.index
                        # After an interruption an outcome may be told twice.
                        if flying.pop(index, None) is None:
                            continue
                        if type(outcome) is Reply:
                            waiting[index] = outcome
                        else:
                            assert isinstance(outcome, BstarError)
                            if not is_returning:
                                outcome.add_note(f"body {index} of map()")
                                raise outcome
                            waiting[index] = CallFailed(outcome, index, call.attempts, call.elapsed_s)
                    if sink.empty():
                        break
                pace.take(flown - len(flying))
                if ordered:
                    while ended in waiting:
                        ended += 1
                        yield waiting.pop(ended - 1)
                else:
                    ready, waiting = waiting, {}
                    for result in ready.values():
                        ended += 1
                        yield result
        finally:
            self._abandon([call for call in flying.values() if not call.is_done])

    def discover(self, service: str | bytes, *, timeout: Timeout = DEFAULT) -> bool:
        """Does a worker offer the service? A hint: the worker can be dead for up to its expiry (MMI-C-01)."""
        return self.request(Service.SERVICE.value, to_name(service), timeout=timeout).body == OK

    def services(self, *, timeout: Timeout = DEFAULT) -> list[dict[str, object]]:
        """What the active broker offers: a dict with ``service``, ``workers`` and ``queued`` for each.

        Of several pairs what all of them offer, with the ``pair`` of each; the first that fails is raised.
        """
        self._check()
        calls = self._asker.services_calls(timeout, queue.SimpleQueue)
        sinks: list[Sink] = [call.sink for call in calls]
        try:
            for call in calls:
                self._driver.begin(call)
            replies = [self._take(call, sink) for call, sink in zip(calls, sinks, strict=True)]
        finally:
            self._abandon([call for call in calls if not call.is_done])
        read = self._asker.read_services
        return [entry for call, reply in zip(calls, replies, strict=True) for entry in read(call, reply)]

    # --- observing ----------------------------------------------------------------------------------------

    @property
    def active(self) -> str | None:
        """The endpoint of the node that is followed now, None while none is known to be active.

        Of one pair. Several have several: LocalProtocolError, see ``actives``.
        """
        if isinstance(self._core, FleetSession):
            raise LocalProtocolError("each of several pairs has an active node: read actives")
        return self._core.active

    @property
    def actives(self) -> dict[str, str | None]:
        """The same for each pair, by its name, or by its endpoints, sorted and joined by commas.

        A client connects to one of several pairs with the first call that belongs there.
        """
        return self._asker.actives()

    @property
    def counters(self) -> Counters:
        """What happened so far, as plain integers."""
        return self._core.counters

    def observe(self, observer: Callable[[Event], object]) -> None:
        """Call ``observer`` with each event from now on, as ``on_event``. It must not block."""
        check_function(observer, "an observer")
        self._performer.observers.append(observer)

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End outstanding calls with what is known of them; release everything. Idempotent."""
        if self._pid != os.getpid():
            return
        with self._close_lock:
            self._guard.close()
            self._driver.close()

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
        if self._driver.is_closing:
            raise ClosedError("the client is closed")

    def _abandon(self, calls: list[Call]) -> None:
        if calls and self._pid == os.getpid():
            self._driver.abandon(calls)

    def _take(self, call: Call, sink: Sink) -> Reply:
        """The next reply in the sink; raises the error if that is what came."""
        [(_, outcome)] = self._driver.wait(call, sink)
        if type(outcome) is Reply:
            return outcome
        assert isinstance(outcome, BstarError)
        raise outcome


class _Sockets:
    """Makes a client's sockets. It does not lead back to the client."""

    def __init__(self, asker: Asker, context: "zmq.Context[zmq.Socket[bytes]] | None") -> None:
        self._asker = asker
        self._owns_context = context is None
        self._context = context or new_context(len(asker.endpoints))

    def connect(self, wakeup: WakeUp) -> Links:
        links = Links(self._context, self._asker.endpoints, self._asker.link_settings, wakeup)
        if not self._asker.is_fleet:
            try:
                links.open()
            except zmq.ZMQError:
                links.close()
                raise
        return links

    def release(self) -> None:
        if self._owns_context:
            self._context.term()
