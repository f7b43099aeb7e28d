"""Virtual time: it stands still while code runs, and jumps to the next deadline when nothing else can happen.

An event loop joins it for a while (``VirtualTime``): its clock is the virtual one, and where it would sleep,
``idle`` decides. It does sleep while a thread of an executor or a descriptor may wake it.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from bstar.errors import ConfigurationError

# How long a connection that the program has open may take to say something before time jumps. An answer of a
# database on the same machine takes a tenth of it.
_PATIENCE_S = 0.05
# An event loop has one descriptor of its own, which wakes it.
_OWN_DESCRIPTORS = 1


class VirtualClock:
    """Seconds like those of ``time.monotonic`` at its start; ``wall_ms`` are Unix milliseconds."""

    def __init__(self) -> None:
        self._now = self._began_at = time.monotonic()
        self._wall_s = time.time()

    def now(self) -> float:
        """The time."""
        return self._now

    def wall_ms(self) -> int:
        """The time of day."""
        return round((self._wall_s + self._now - self._began_at) * 1000)

    def jump(self, to: float) -> None:
        """Go on at this time, if it is not past."""
        self._now = max(self._now, to)


class VirtualTime:
    """Lets ``loop`` live in virtual time until ``end``.

    ``idle(delay_s)``: the loop has nothing to do for so long, or for ever (None). What it does, it does at
    once. ConfigurationError if the loop is not one of asyncio's own.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: VirtualClock, idle: Callable[[float | None], object]
    ) -> None:
        selector = getattr(loop, "_selector", None)
        if not isinstance(selector, selectors.BaseSelector):
            raise ConfigurationError(
                f"{type(loop).__name__} has no time that a test can move: run the test in asyncio's own loop"
            )
        self._loop = cast("Any", loop)  # Any: its methods are replaced
        self._selector = selector
        self._idle = idle
        # How often it had something to do.
        self.turns = 0
        # Jobs of executors that will wake the loop.
        self._jobs = 0
        self._run_in_executor = loop.run_in_executor
        self._loop.time = clock.now
        self._loop.run_in_executor = self._count_job
        self._loop._selector = _Selector(selector, self._select)  # noqa: SLF001 - there is no public way

    def end(self) -> None:
        """Give the loop its own time back."""
        del self._loop.time, self._loop.run_in_executor
        self._loop._selector = self._selector  # noqa: SLF001

    async def awaited(self, work: Awaitable[Any]) -> Any:
        """Await it for a job of an executor, which holds the time no longer than it works itself."""
        self._jobs -= 1
        try:
            return await work
        finally:
            self._jobs += 1

    def _count_job(self, executor: Any, function: Any, *arguments: Any) -> "asyncio.Future[Any]":
        future = self._run_in_executor(executor, function, *arguments)
        self._jobs += 1
        future.add_done_callback(self._end_job)
        return future

    def _end_job(self, _: object) -> None:
        self._jobs -= 1

    def _select(self, timeout: float | None) -> list[Any]:
        events = self._selector.select(0)
        if not events and (timeout is None or timeout > 0):
            if self._jobs:
                events = self._selector.select(timeout)
            elif len(self._selector.get_map()) > _OWN_DESCRIPTORS:
                events = self._selector.select(_PATIENCE_S)
            if not events:
                self._idle(timeout)
                return []
        self.turns += 1
        return events


class _Selector:
    """A selector with another ``select``."""

    def __init__(self, selector: selectors.BaseSelector, select: Callable[[float | None], list[Any]]) -> None:
        self._selector = selector
        self.select = select

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


class PrivateLoop:
    """An event loop of the pair's own, for async handlers beside a client for threads. It runs when asked.

    ``due`` is when its next timer fires.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.loop = asyncio.new_event_loop()
        self.due: float | None = None
        self._clock = clock
        self._time = VirtualTime(self.loop, clock, self._stop)
        self._turning = threading.Lock()

    def _stop(self, delay_s: float | None) -> None:
        self.due = None if delay_s is None else self._clock.now() + delay_s
        self.loop.stop()

    @property
    def is_ready(self) -> bool:
        """True if a task can go on, and no thread runs the loop."""
        return not self._turning.locked() and bool(cast("Any", self.loop)._ready)  # noqa: SLF001 - see above

    def turn(self) -> bool:
        """Let its tasks go on until all of them wait. False if all do already, or if it runs already."""
        if not self._turning.acquire(blocking=False):
            return False
        try:
            turns = self._time.turns
            self.loop.run_forever()
            return self._time.turns != turns
        finally:
            self._turning.release()

    def close(self) -> None:
        """Cancel what is left in it and close it, once no thread runs it; none will again."""
        self._turning.acquire()
        self._time.end()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
