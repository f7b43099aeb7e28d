"""Durable requests of ``AsyncHAClient``: the methods of ``bstar_client.sync.durable``, awaited."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Literal, overload

from bstar.errors import BusyError, CallTimeoutError
from bstar.wire.durable import Service
from bstar_client.calls.client import Client
from bstar_client.calls.durable import (
    RetryPolicy,
    Task,
    schedule_frame,
    submit_frame,
    submit_frames,
    submit_frames_async,
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
from bstar_client.core.calls import Ask, Body, CallFailed, Reply
from bstar_client.core.window import Window


class DurableCalls(Client, ABC):
    """As ``HAClient``'s."""

    @abstractmethod
    async def _ask(self, ask: Ask, *, idempotent: bool = True, pair: int | None = None) -> Reply:
        """Send a request, to the pair of its service or to this one, and wait for its reply."""

    @abstractmethod
    def _map(
        self,
        window: Window,
        service: str | bytes,
        bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask],
        timeout: Timeout,
        idempotent: bool,
        pair: int | None = None,
    ) -> AsyncGenerator[Reply | CallFailed, None]:
        """Send many requests, and yield what came of them."""

    async def submit(
        self,
        service: str | bytes,
        body: Body,
        *,
        key: bytes | str | None = None,
        delay: float | None = None,
        at: datetime | float | None = None,
        expires: float | None = None,
        retries: RetryPolicy | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        timeout: Timeout = DEFAULT,
    ) -> str:
        """As ``HAClient.submit``."""
        pair = self._requests.store_pair(service)
        task = Task(body, key, delay, at, expires, retries, priority, headers)
        frame = submit_frame(service, task, self._requests.carried)
        return read_receipt(await self._ask(Ask(frame, None, timeout, Service.SUBMIT.value), pair=pair))

    async def schedule(
        self,
        service: str | bytes,
        body: Body,
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
        timeout: Timeout = DEFAULT,
    ) -> str:
        """As ``HAClient.schedule``."""
        pair = self._requests.store_pair(service)
        task = Task(body, key, delay, at, expires, retries, priority, headers)
        frame = schedule_frame(
            service, task, self._requests.carried, every=every, cron=cron, zone=zone, missed=missed
        )
        return read_schedule_receipt(
            await self._ask(Ask(frame, None, timeout, Service.SCHEDULE.value), pair=pair)
        )

    def submit_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body | Task] | AsyncIterable[Body | Task],
        *,
        window: int = 512,
        timeout: Timeout = DEFAULT,
    ) -> AsyncGenerator[str, None]:
        """As ``HAClient.submit_many``. ``bodies`` may also be an async iterable.

        To leave it early, close the iterator (``contextlib.aclosing``).
        """
        pair = self._requests.store_pair(service)
        sliding = self._new_window(bodies, window, ordered=True, errors="raise", name="submit_many")
        frames = (
            submit_frames_async(service, bodies, self._requests.carried)
            if isinstance(bodies, AsyncIterable)
            else submit_frames(service, bodies, self._requests.carried)
        )
        return self._submit_many(sliding, frames, timeout, pair)

    async def _submit_many(
        self, window: Window, frames: Iterable[bytes] | AsyncIterator[bytes], timeout: Timeout, pair: int
    ) -> AsyncGenerator[str, None]:
        replies = self._map(window, Service.SUBMIT.value, frames, timeout, idempotent=True, pair=pair)
        async with aclosing(replies):
            async for reply in replies:
                assert isinstance(reply, Reply), "errors are raised"
                yield read_receipt(reply)

    @overload
    async def result(
        self,
        request_id: str,
        *,
        wait: None = None,
        service: str | bytes | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Result: ...

    @overload
    async def result(
        self, request_id: str, *, wait: float, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> Result | None: ...

    async def result(
        self,
        request_id: str,
        *,
        wait: float | None = None,
        service: str | bytes | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Result | None:
        """As ``HAClient.result``."""
        pair = self._requests.store_pair(service)
        patience_s = self._requests.seconds(timeout)
        polls = Polls(request_id, wait, time.monotonic())
        while True:
            frame = polls.frame(time.monotonic())
            limit_s = None if patience_s is None else patience_s + polls.poll_s
            try:
                reply = await self._ask(Ask(frame, None, limit_s, Service.RESULT.value), pair=pair)
                found = polls.read(reply)
            except (BusyError, CallTimeoutError):
                if polls.is_over(time.monotonic()):
                    raise
            else:
                if found is not None or polls.is_over(time.monotonic()):
                    return found
            await asyncio.sleep(polls.pause_s(time.monotonic()))

    async def status_of(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """As ``HAClient.status_of``."""
        return await self._tell(Service.STATUS, fetch_frame(request_id), request_id, service, timeout)

    async def close_result(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """As ``HAClient.close_result``."""
        return await self._tell(Service.CLOSE, to_id(request_id), request_id, service, timeout)

    async def cancel(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """As ``HAClient.cancel``."""
        return await self._tell(Service.CANCEL, to_id(request_id), request_id, service, timeout)

    async def retry(
        self, request_id: str, *, service: str | bytes | None = None, timeout: Timeout = DEFAULT
    ) -> RequestStatus:
        """As ``HAClient.retry``."""
        return await self._tell(Service.RETRY, to_id(request_id), request_id, service, timeout)

    async def _tell(
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
        """As ``HAClient.requests``."""
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
        """As ``HAClient.dead_letters``."""
        return self.requests(service=service, state="dead", older=older, bodies=bodies, timeout=timeout)
