"""The client for asyncio: ``HAClient``'s words, awaited.

    async with AsyncHAClient(["tcp://node1:5555", "tcp://node2:5555"]) as client:
        reply = await client.request("echo", b"hello")

It drives the same session (``bstar_client.core``) as the client with a thread does, from the event loop's own
thread: the sockets' descriptors wake the loop, a timer of the loop serves the session's deadlines, and what
callers ask goes to the session at once (``bstar_client.aio.loop``). Nothing here waits but in ``await``.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Literal, Self, cast, overload

import zmq

from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    ForkedError,
    LocalProtocolError,
)
from bstar.fleet import Endpoints
from bstar.io_threads import new_context
from bstar.wire.mmi import OK, Service
from bstar_client.aio.feeds import Answer, Feed, Outcome, Source
from bstar_client.aio.loop import Turning
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
from bstar_client.unclosed import Guard, Holdings
from bstar_client.wakeup import WakeUp

__all__ = ["AsyncHAClient"]


class AsyncHAClient:
    """A client of a pair of brokers for asyncio; the arguments are ``HAClient``'s and mean the same.

    It belongs to the event loop in which it is first used, and to no other thread: use it in
    ``async with``, or call ``close`` at the end. Any number of tasks may share it. A task that is cancelled,
    by itself or by ``asyncio.timeout``, gives its request up; what it started is not recalled, there is no
    word for it.

    ``outstanding_max`` bounds the requests without a reply: ``request`` waits its turn beyond it (the other
    client raises BusyError, because it cannot know whether its caller may wait).
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
        self._performer.reset = self._reset
        self._perform = self._performer.perform
        self._given_context = context
        self._journal_place = journal
        self._is_plain = dialect == "mdp02"
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._guard: Guard | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turning: Turning | None = None
        # What the next turn sends.
        self._begun: list[Call] = []
        # One place for each request that may be outstanding.
        self._room = asyncio.Semaphore(outstanding_max)
        self._is_closed = False
        self._pid = os.getpid()

    # --- calls --------------------------------------------------------------------------------------------

    async def request(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        key: bytes | str | None = None,
        urgent: bool = False,
    ) -> Reply:
        """Send a request and wait for its reply. Arguments and errors are those of ``HAClient.request``."""
        loop = self._open()
        answer = Answer(loop)
        call = self._asker.call(service, body, timeout, idempotent, answer, key=to_key(key), is_urgent=urgent)
        await self._wait_for_room(call)
        try:
            self._submit(call)
            return _reply_of(await answer.future)
        finally:
            self._room.release()
            if not call.is_done:
                self._abandon(call)

    async def stream(
        self,
        service: str | bytes,
        body: Body,
        *,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        urgent: bool = False,
    ) -> AsyncGenerator[Reply, None]:
        """Send a request and yield its PARTIALs as they come, then the FINAL (``is_final``).

        A stream that breaks after its first PARTIAL is never repeated: it ends with StreamInterruptedError.
        Leaving the loop early frees what the client keeps once the iterator is closed; the worker is not
        told.
        """
        feed = Feed(self._open())
        call = self._asker.call(service, body, timeout, idempotent, feed, is_stream=True, is_urgent=urgent)
        await self._wait_for_room(call)
        try:
            self._submit(call)
            while True:
                await feed.wait()
                reply = _reply_of(feed.outcomes.popleft())
                yield reply
                if reply.is_final:
                    return
        finally:
            self._room.release()
            if not call.is_done:
                self._abandon(call)

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        idempotent: bool = ...,
        errors: Literal["raise"] = ...,
    ) -> AsyncGenerator[Reply, None]: ...

    @overload
    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int = ...,
        ordered: bool = ...,
        timeout: Timeout = ...,
        idempotent: bool = ...,
        errors: Literal["return"],
    ) -> AsyncGenerator[Reply | CallFailed, None]: ...

    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        *,
        window: int = 512,
        ordered: bool = True,
        timeout: Timeout = DEFAULT,
        idempotent: bool = True,
        errors: Literal["raise", "return"] = "raise",
    ) -> AsyncGenerator[Reply, None] | AsyncGenerator[Reply | CallFailed, None]:
        """Send a request for each body, ``window`` of them at a time, and yield the replies.

        As ``HAClient.map``. ``bodies`` may be an async iterable, too; it is asked for the next body while
        replies are awaited. Use the result in ``async for``; to leave it early, ``aclose`` it
        (``contextlib.aclosing``), or what is in flight is given up only when it is collected.
        """
        window = check_map(bodies, window, ordered, errors)
        outcomes = self._map(service, bodies, window, ordered, timeout, idempotent, errors == "return")
        return outcomes if errors == "return" else cast("AsyncGenerator[Reply, None]", outcomes)

    async def _map(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        window: int,
        ordered: bool,
        timeout: Timeout,
        idempotent: bool,
        is_returning: bool,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        feed = Feed(self._open())
        source = Source(bodies, feed.wake)
        flying: dict[int, Call] = {}
        waiting: dict[int, Reply | CallFailed] = {}
        begun = ended = 0
        pace = Pace(window, self._core.counters)
        call_for = self._asker.caller(service, timeout, idempotent, feed)
        try:
            while True:
                limit = int(pace.limit)
                if begun - ended <= limit - limit // 4:
                    while begun - ended < limit and source.has_next():
                        if self._room.locked() and flying:
                            break
                        body = source.take()
                        try:
                            call = call_for(body, begun)
                        except (LocalProtocolError, CallTimeoutError) as error:
                            if not is_returning:
                                raise
                            waiting[begun] = CallFailed(error, begun)
                        else:
                            await self._wait_for_room(call)
                            flying[begun] = call
                            self._submit(call)
                        begun += 1
                if begun == ended and source.is_exhausted:
                    return
                if flying or not waiting:
                    await feed.wait()
                pace.take(len(feed.outcomes))
                while feed.outcomes:
                    call, outcome = feed.outcomes.popleft()
                    del flying[call.index]
                    self._room.release()
                    if type(outcome) is Reply:
                        waiting[call.index] = outcome
                        continue
                    assert isinstance(outcome, BstarError)
                    if not is_returning:
                        outcome.add_note(f"body {call.index} of map()")
                        raise outcome
                    failed = CallFailed(outcome, call.index, call.attempts, call.elapsed_s)
                    waiting[call.index] = failed
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
            await source.close()
            for call in flying.values():
                self._room.release()
                if not call.is_done:
                    self._abandon(call)

    async def discover(self, service: str | bytes, *, timeout: Timeout = DEFAULT) -> bool:
        """Does a worker offer the service? A hint: the worker can be dead for up to its expiry (MMI-C-01)."""
        return (await self.request(Service.SERVICE.value, to_name(service), timeout=timeout)).body == OK

    async def services(self, *, timeout: Timeout = DEFAULT) -> list[dict[str, object]]:
        """What the active broker offers: a dict with ``service``, ``workers`` and ``queued`` for each.

        Of several pairs what all of them offer, with the ``pair`` of each; the first that fails is raised.
        """
        loop = self._open()
        calls = self._asker.services_calls(timeout, lambda: Answer(loop))
        answers: list[Answer] = [call.sink for call in calls]
        begun: list[Call] = []
        try:
            for call in calls:
                await self._wait_for_room(call)
                begun.append(call)
                self._submit(call)
            replies = [_reply_of(await answer.future) for answer in answers]
        finally:
            for call in begun:
                self._room.release()
                if not call.is_done:
                    self._abandon(call)
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
        """Call ``observer`` with each event from now on, in the event loop. It must not block."""
        check_function(observer, "an observer")
        self._performer.observers.append(observer)

    # --- beginning and end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """End outstanding calls with what is known of them; release everything. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pid != os.getpid():
            return
        self._perform(self._core.close(time.monotonic()))
        self._submit_all(time.monotonic())  # they are told that the client is closed
        self._release()
        if self._performer.journal is not None:
            await asyncio.to_thread(self._performer.journal.close)

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> asyncio.AbstractEventLoop:
        """The loop; the first time, connect. Raises what is wrong with being used here and now."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and not self._is_closed and self._pid == os.getpid():
            return loop
        if self._pid != os.getpid():
            raise ForkedError("this client was made before fork(): make a new AsyncHAClient in the child")
        if self._is_closed:
            raise ClosedError("the client is closed")
        if self._loop is not None:
            raise LocalProtocolError("the client belongs to another event loop: make one for each loop")
        self._loop = loop
        context = self._given_context or new_context(len(self.endpoints))
        links = Links(context, self.endpoints, self._asker.link_settings, WakeUp())
        if self._given_context is None:
            self._context = context
        holdings = Holdings(loop, self._context, links)
        name = f"AsyncHAClient({', '.join(self.endpoints)})"
        remedy = "use it in 'async with', or await close() before its event loop ends"
        self._guard = Guard(self, name, remedy, holdings.end)
        self._performer.links = links
        self._turning = Turning(loop, links, self._core, self._perform, self._submit_all)
        try:
            if not self._asker.is_fleet:
                for node in range(len(self.endpoints)):
                    self._turning.open(node)
            if self._journal_place is not None:
                self._performer.journal = holdings.journal = open_call_journal(
                    self._journal_place, self.fleet, is_plain=self._is_plain
                )
        except (zmq.ZMQError, ConfigurationError) as error:
            self._is_closed = True
            self._release()
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"cannot connect to {list(self.endpoints)}: {error}") from error
        return loop

    def _release(self) -> None:
        if self._turning is not None:
            self._turning.end()
        if self._context is not None:
            self._context.term()
        if self._guard is not None:
            self._guard.close()

    # --- driving the session ------------------------------------------------------------------------------

    async def _wait_for_room(self, call: Call) -> None:
        """Take one of the places; BusyError if none comes free before the call's deadline."""
        if not self._room.locked():
            await self._room.acquire()
            return
        remaining_s = None if call.deadline is None else call.deadline - time.monotonic()
        limit = asyncio.timeout(remaining_s)
        try:
            async with limit:
                await self._room.acquire()
        except TimeoutError:
            if not limit.expired():
                raise
            text = "the deadline came while as many requests as allowed (outstanding_max) were outstanding"
            raise BusyError(text) from None
        if self._is_closed:
            self._room.release()
            raise ClosedError("the client is closed; the request was not sent")

    def _submit(self, call: Call) -> None:
        # With the others of this turn, which may travel together.
        self._begun.append(call)
        assert self._turning is not None
        self._turning.soon()

    def _submit_all(self, now: float) -> None:
        begun = self._begun
        if begun:
            self._begun = []
            self._perform(self._core.submit_all(begun, now))

    def _abandon(self, call: Call) -> None:
        if not self._is_closed:
            self._performer.abandon(call, time.monotonic())

    def _reset(self, node: int) -> None:
        assert self._turning is not None
        self._turning.close(node)
        self._turning.open(node)


def _reply_of(outcome: Outcome) -> Reply:
    reply = outcome[1]
    if type(reply) is Reply:
        return reply
    assert isinstance(reply, BstarError)
    raise reply
