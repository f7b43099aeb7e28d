"""Durable requests of the client for asyncio."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Literal, Unpack, overload

from bstar.errors import BusyError, CallTimeoutError
from bstar.wire.durable import Service
from bstar_client.arguments.codecs import Codec, T, read_frames
from bstar_client.calls.client import Client
from bstar_client.calls.durable import (
    ResultOptions,
    RetryPolicy,
    Task,
    schedule_frame,
    submit_frame,
    submit_frames_any,
)
from bstar_client.calls.durable_answers import (
    Pages,
    Polls,
    RequestStatus,
    Result,
    fetch_frame,
    read_receipt,
    read_schedule_receipt,
    read_status,
    to_id,
)
from bstar_client.calls.requests import DEFAULT, Timeout
from bstar_client.core.calls import Ask, Asked, Body, CallFailed, Reply, Value
from bstar_client.core.window import Window


class DurableCalls(Client, ABC):
    """Requests that a store keeps on the disks of both nodes (docs/durable.md). Native dialect only.

    ``timeout`` is the time for one question to the store, failover included; the client's, unless given. A
    timeout never changes what is stored. A client of several pairs finds a request by its ``service``.
    ``codec`` is that of a typed body, ``"json"`` or ``"msgpack"``.
    """

    @abstractmethod
    async def _ask(self, ask: Ask, *, idempotent: bool = True, pair: int | None = None) -> Reply:
        """Send a request, to the pair of its service or to this one, and wait for its reply."""

    @abstractmethod
    def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterable[Asked] | AsyncIterable[Asked],
        timeout: Timeout,
        idempotent: bool,
        pair: int | None = None,
        codec: Codec | None = None,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        """Send many requests, and yield what came of them."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Let so much time pass."""

    @abstractmethod
    def _check(self) -> None:
        """Raise an error if the client cannot be used here.

        asyncio: the first step of the call does that.
        """

    async def submit(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        key: bytes | str | None = None,
        delay: float | None = None,
        at: datetime | float | None = None,
        expires: float | None = None,
        retries: RetryPolicy | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        codec: Codec | None = None,
        group: str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> str:
        """Store a request; return its id, 32 hexadecimal digits, when it is durable.

        ``body`` and ``codec`` are those of ``request``: bytes, or a value that is encoded.
        ``key``: the caller's own name for it. All submits to the service with this key are the same request
        and get the same id, as long as the store knows it. ``delay``: seconds until it begins; ``at``: the
        time at which it begins, a datetime with a time zone or Unix seconds. ``expires``: seconds from the
        submit, more than ``delay``, after which it is a dead letter without an answer. ``retries``: how often
        it is tried. ``priority``: 0 to 9, the highest of a service first. ``headers``: names and texts beside
        the body, which the handler finds in ``request.headers``, as those of ``request``. ``group``: of one
        service and group one request is executed at a time, in the order in which they were stored.

        Raises BusyError (refused until the deadline, not stored), RejectedError (not stored),
        NoActiveNodeError (not stored), CallTimeoutError (it may be stored if ``may_have_executed``: submit it
        again with the same ``key``), ClosedError, ForkedError.
        """
        pair = self._requests.store_pair(service)
        task = Task(body, key, delay, at, expires, retries, priority, headers, codec, group)
        frame = submit_frame(service, task, self._requests.carried)
        return read_receipt(await self._ask(Ask(frame, None, timeout, Service.SUBMIT.value), pair=pair))

    async def schedule(
        self,
        service: str | bytes,
        body: Body | Value,
        *,
        every: float | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        missed: Literal["skip", "once", "each"] = "skip",
        key: bytes | str | None = None,
        delay: float | None = None,
        at: datetime | float | None = None,
        expires: float | None = None,
        retries: RetryPolicy | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        codec: Codec | None = None,
        group: str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> str:
        """Store a schedule: at each of its times a request is submitted. Return the schedule's id.

        ``every``: seconds between two times, one at least; the first is one interval from now, or at ``at``
        or after ``delay``. ``cron``: a cron expression of five fields, in ``zone``, a name such as
        ``Europe/Berlin``; summer time is observed. ``missed``: what becomes of times that passed more than a
        minute before a node served: ``"skip"``, ``"once"`` (one request for all of them) or ``"each"`` (a
        request for each, the last thousand). ``expires`` counts from each time on. ``cancel`` ends the
        schedule; ``requests(state="scheduled")`` lists them. ``key``: each caller with the same key gets the
        same schedule, or RequestCancelledError once it has ended. ``retries``, ``priority``, ``headers``,
        ``group`` and the other errors are those of ``submit``; with a group its requests never overlap.
        """
        pair = self._requests.store_pair(service)
        task = Task(body, key, delay, at, expires, retries, priority, headers, codec, group)
        frame = schedule_frame(
            service, task, self._requests.carried, every=every, cron=cron, zone=zone, missed=missed
        )
        return read_schedule_receipt(
            await self._ask(Ask(frame, None, timeout, Service.SCHEDULE.value), pair=pair)
        )

    def submit_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Value | Task] | AsyncIterable[Body | Value | Task],
        *,
        codec: Codec | None = None,
        window: int = 512,
        timeout: Timeout = DEFAULT,
    ) -> AsyncGenerator[str, None]:
        """Store a request for each body, ``window`` of them at a time; yield their ids in order.

        Requests that leave together travel, and are written to the disks, together. A Task is a body with
        options of its own. The first failure is raised, with the body's position in a note. Bodies behind it
        may be stored or not: with keys, submit all of them again.

        asyncio: ``bodies`` may also be an async iterable. To leave the iterator early, close it
        (``contextlib.aclosing``).
        """
        self._check()
        pair = self._requests.store_pair(service)
        sliding = self._new_window(bodies, window, ordered=True, errors="raise", name="submit_many")
        frames = submit_frames_any(service, bodies, self._requests.carried, codec)
        return self._submit_many(sliding, frames, timeout, pair)

    async def _submit_many(
        self, window: Window, frames: Iterable[bytes] | AsyncIterable[bytes], timeout: Timeout, pair: int
    ) -> AsyncGenerator[str, None]:
        replies = self._map(window, Service.SUBMIT.value, frames, timeout, idempotent=True, pair=pair)
        async with aclosing(replies):
            async for reply in replies:
                assert isinstance(reply, Reply), "errors are raised"
                yield read_receipt(reply)

    @overload
    async def result(
        self, request_id: str, *, reply: None = None, wait: None = None, **options: Unpack[ResultOptions]
    ) -> Result: ...

    @overload
    async def result(
        self, request_id: str, *, reply: None = None, wait: float, **options: Unpack[ResultOptions]
    ) -> Result | None: ...

    @overload
    async def result(
        self, request_id: str, *, reply: type[T], wait: None = None, **options: Unpack[ResultOptions]
    ) -> T: ...

    @overload
    async def result(
        self, request_id: str, *, reply: type[T], wait: float, **options: Unpack[ResultOptions]
    ) -> T | None: ...

    async def result(
        self,
        request_id: str,
        *,
        reply: type[Any] | None = None,
        wait: float | None = None,
        codec: Codec | None = None,
        service: str | bytes | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Any:  # Any: the overloads tell it
        """The answer to a stored request. It stays in the store until ``close_result`` or its time is over.

        ``wait``: how many seconds to wait for it; None waits until the request has ended, over failovers and
        times without any node. Returns None if the request has not ended then. ``reply``: the type that the
        answer is decoded as, by ``codec``, that of the request; without it a Result is returned.

        Raises DeadLetterError, RequestCancelledError or UnknownRequestError if there will be no answer;
        HandlerError if it is no ``reply``;
        NoActiveNodeError, CallTimeoutError or BusyError if no node could be asked when ``wait`` was over.
        """
        pair = self._requests.store_pair(service)
        patience_s = self._requests.seconds(timeout)
        clock = self._net.clock
        polls = Polls(request_id, wait, clock())
        while True:
            frame = polls.frame(clock())
            limit_s = None if patience_s is None else patience_s + polls.poll_s
            try:
                received = await self._ask(Ask(frame, None, limit_s, Service.RESULT.value), pair=pair)
                found = polls.read(received)
            except (BusyError, CallTimeoutError):
                if polls.is_over(clock()):
                    raise
            else:
                if found is not None and reply is not None:
                    return read_frames(found.frames, reply, codec, f"the answer to request {request_id}")
                if found is not None or polls.is_over(clock()):
                    return found
            await self._pause(polls.pause_s(clock()))

    async def status_of(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """What the store knows of a request; its ``state`` is ``"unknown"`` if the store does not have it."""
        return await self._status_after(Service.STATUS, fetch_frame(request_id), request_id, service, timeout)

    async def close_result(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """Let the store forget a request, whatever its state. Returns what it knew.

        A pending one is not begun after this has returned. To close one again does no harm.
        """
        return await self._status_after(Service.CLOSE, to_id(request_id), request_id, service, timeout)

    async def cancel(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """End a pending request: it is not begun after this has returned. Returns its state.

        An attempt under way goes on in its worker, and its answer is dropped. A request that has ended stays
        as it is: read ``state``.
        """
        return await self._status_after(Service.CANCEL, to_id(request_id), request_id, service, timeout)

    async def retry(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """Make a dead or cancelled request pending again, with all its attempts. Returns its state.

        It begins at once, and does not expire. A request with an answer stays as it is: read ``state``.
        """
        return await self._status_after(Service.RETRY, to_id(request_id), request_id, service, timeout)

    async def _status_after(
        self, operation: Service, frame: bytes, request_id: str, service: str | bytes | None, timeout: Timeout
    ) -> RequestStatus:
        pair = self._requests.store_pair(service)
        reply = await self._ask(Ask(frame, None, timeout, operation.value), pair=pair)
        return read_status(reply, request_id)

    def requests(
        self,
        service: str | bytes | None = None,
        *,
        state: str | None = None,
        older: float | None = None,
        bodies: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> AsyncGenerator[RequestStatus, None]:
        """The stored requests, in order of submission; those of several pairs one pair after the other.

        ``service``, ``state``: only those. ``older``: submitted that many seconds ago or longer. ``bodies``:
        with their bodies, in ``frames``. It asks page by page, so it may miss what changes meanwhile.
        """
        self._check()
        pages = Pages(service, state, older, bodies)
        return self._requests_of(self._requests.store_pairs(service), pages, timeout)

    async def _requests_of(
        self, pairs: Iterable[int], pages: Pages, timeout: Timeout
    ) -> AsyncGenerator[RequestStatus, None]:
        for pair in pairs:
            pages.restart()
            while not pages.is_over:
                ask = Ask(pages.frame(), None, timeout, Service.LIST.value)
                for status in pages.read(await self._ask(ask, pair=pair)):
                    yield status

    def dead_letters(
        self,
        service: str | bytes | None = None,
        *,
        older: float | None = None,
        bodies: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> AsyncGenerator[RequestStatus, None]:
        """The requests whose attempts failed or whose time ended; as ``requests`` otherwise."""
        return self.requests(service=service, state="dead", older=older, bodies=bodies, timeout=timeout)
