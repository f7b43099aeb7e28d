"""``AsyncHAClient`` called as ``HAClient`` is: one test says of both what is the same for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Self

from bstar_client import AsyncHAClient
from support.scripted import WAIT_S

_END: Any = object()


class Blocking:
    """A client in an event loop of its own. Its methods block, and its iterators are iterators.

    Other attributes are the client's.
    """

    def __init__(self, endpoints: Any, **options: Any) -> None:
        self._client = AsyncHAClient(endpoints, **options)
        self._event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._event_loop.run_forever)
        self._thread.start()

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
            self._event_loop.call_soon_threadsafe(self._event_loop.stop)
            self._thread.join(WAIT_S)
            self._event_loop.close()

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._event_loop.is_closed():
            return asyncio.run(work)  # what a closed client says
        return asyncio.run_coroutine_threadsafe(work, self._event_loop).result(2 * WAIT_S)

    def _iterate(self, generator: Any) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(generator, _END)

        try:
            while (each := self._run(step())) is not _END:
                yield each
        finally:
            self._run(generator.aclose())
