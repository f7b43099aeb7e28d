"""``AsyncHAClient`` and ``AsyncWorker`` used as ``HAClient`` and ``Worker`` are: one test for both kinds."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Self

from bstar_client import AsyncHAClient, AsyncWorker, Request
from support.scripted import WAIT_S

_END: Any = object()


class _LoopThread:
    """An event loop in a thread of its own, beside callers that block."""

    def __init__(self) -> None:
        self._event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._event_loop.run_forever)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, Any], limit_s: float = 2 * WAIT_S) -> Any:
        if self._event_loop.is_closed():
            return asyncio.run(work)  # what a closed client says
        return asyncio.run_coroutine_threadsafe(work, self._event_loop).result(limit_s)

    def _end(self) -> None:
        self._event_loop.call_soon_threadsafe(self._event_loop.stop)
        self._thread.join(WAIT_S)
        self._event_loop.close()


class Blocking(_LoopThread):
    """A client in an event loop of its own. Its methods block, and its iterators are iterators.

    Other attributes are the client's.
    """

    def __init__(self, endpoints: Any, **options: Any) -> None:
        self._client = AsyncHAClient(endpoints, **options)
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name.startswith("_") or not inspect.ismethod(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            result: Any = found(*arguments, **options)
            if inspect.isasyncgen(result):
                return self._iterate(result)
            return self._run(result) if inspect.iscoroutine(result) else result

        return call

    def close(self) -> None:
        if self._thread.is_alive():
            self._run(self._client.close())
            self._end()

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _iterate(self, generator: Any) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(generator, _END)

        try:
            while (each := self._run(step())) is not _END:
                yield each
        finally:
            self._run(generator.aclose())


class BlockingWorker(_LoopThread):
    """A worker in an event loop of its own. Its handlers are those of ``Worker``, each call in a thread.

    ``coroutine`` is a handler as ``AsyncWorker`` takes it.
    """

    def __init__(
        self, endpoints: Any, service: str, handler: Any = None, *, coroutine: Any = None, **options: Any
    ) -> None:
        handler = coroutine or (handler and _as_async(handler))
        self._worker = AsyncWorker(endpoints, service, handler, **options)

    def handler(self, function: Any) -> None:
        self._worker.handler(_as_async(function))

    @property
    def counters(self) -> Any:
        return self._worker.counters

    def start(self) -> Self:
        super().__init__()
        self._event_loop.call_soon_threadsafe(self._worker.start)
        return self

    def stop(self) -> None:
        self._event_loop.call_soon_threadsafe(self._worker.stop)

    def join(self, limit_s: float) -> bool:
        try:
            self._run(self._worker.join(), limit_s)
        finally:
            self._end()
        return True

    def run(self) -> None:
        asyncio.run(self._worker.run())

    def close(self) -> None:
        asyncio.run(self._worker.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        serving = self._worker._serving
        has_ended = serving is None or serving.done()
        try:
            self._run(self._worker.close())
        finally:
            self._end()
        assert kind is not None or not has_ended, "it ended by itself"


def _as_async(handler: Callable[[Request], Any]) -> Any:
    async def handle(request: Request) -> Any:
        return await asyncio.to_thread(handler, request)

    async def pour(request: Request) -> AsyncIterator[Any]:
        for part in handler(request):
            yield part

    return pour if inspect.isgeneratorfunction(handler) else handle
