"""The caller of an HTTP request: it may be slow with the body, and it may go away before its answer.

One timer watches for both. Most requests have their body and their answer before it fires, and then it is
all that the watch costs.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Final, Self, TypeVar

from starlette.types import Receive

from bstar_client.asgi.asked import Headers
from bstar_client.asgi.failures import FrontError

T = TypeVar("T")

# A watcher of a caller is a task of its own, which costs a tenth of a call. So it begins only then, when most
# calls have ended, also those at a front with much to do.
_WATCH_AFTER_S: Final = 0.1


class Caller:
    """A context manager around one request. ``slow_s`` bounds the time in which its body has to come.

    ``counts`` counts the requests that had their outcome (``ok``) and those whose caller went away before
    (``gone``).
    """

    def __init__(self, receive: Receive, slow_s: float, counts: Counter[str]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._receive, self._slow_s, self._counts = task, receive, slow_s, counts
        self._loop = task.get_loop()
        self._is_reading = self._is_slow = self._is_gone = False
        self._watcher: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(_WATCH_AFTER_S, self._watch)
        self._slow_at = self._timer.when() - _WATCH_AFTER_S + slow_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    async def body(self, headers: Headers, bytes_max: int) -> bytes:
        """The whole body. FrontError if it is too large, takes too long, or has two ends."""
        length = headers.get("content-length", "0")
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy before this server may see the end of the request elsewhere (RFC 9112, 6.1).
            text = "a request has Content-Length or Transfer-Encoding, not both"
            raise FrontError("bad-request", text, headers=_LAST)
        if length.isascii() and length.isdigit() and int(length) > bytes_max:
            # Who waits for a 100 sends no body now, so the connection must end.
            raise _too_large(bytes_max, _LAST if "expect" in headers else None)
        self._is_reading = True
        try:
            return await self._read(bytes_max)
        except asyncio.CancelledError:
            if not self._is_slow or self._task.uncancel() > 0:
                raise  # by the server, which ends
            text = f"the body did not come within {self._slow_s:g} s"
            raise FrontError("slow-body", text, headers=_LAST) from None
        finally:
            self._is_reading = False
            if self._timer.when() == self._slow_at:  # what it watches for now is a caller that goes away
                self._timer.cancel()
                self._timer = self._loop.call_later(_WATCH_AFTER_S, self._watch)

    async def _read(self, bytes_max: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise FrontError("bad-request", "the connection ended before the end of the body")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def outcome(self, call: Awaitable[T]) -> T | None:
        """What becomes of the call; None if its caller goes away before, and then the call is cancelled."""
        try:
            outcome = await call
        except asyncio.CancelledError:
            if not self._is_gone or self._task.uncancel() > 0:
                raise  # by the server, which ends
            self._counts["gone"] += 1
            return None
        self._counts["ok"] += 1
        return outcome

    def _watch(self) -> None:
        """The request takes its time: look what for."""
        if not self._is_reading:
            self._watcher = self._loop.create_task(self._end_when_gone())
        elif self._loop.time() < self._slow_at:
            self._timer = self._loop.call_at(self._slow_at, self._watch)
        else:
            self._is_slow = True
            self._task.cancel()

    async def _end_when_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()


# What is left of the body is not read.
_LAST: Final = {"Connection": "close"}


def _too_large(bytes_max: int, headers: dict[str, str] | None = None) -> FrontError:
    """The server reads on and forgets, within ``slow_s``: a reset would take the answer with it."""
    return FrontError("too-large", f"a body has at most {bytes_max} bytes here", headers=headers)
