"""Where the asyncio client's outcomes go and where ``map``'s bodies come from, within one event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator

from bstar.errors import BstarError
from bstar_client.core.calls import Ask, Body, Outcome, Reply

__all__ = ["Answer", "Feed", "Source"]


class Answer:
    """The sink of a call with one outcome: a future."""

    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[Outcome] = loop.create_future()

    def put(self, outcomes: tuple[Outcome, ...]) -> None:
        """The outcome; a second one, or one that nobody waits for any more, is dropped."""
        if not self._future.done():
            self._future.set_result(outcomes[0])

    def qsize(self) -> int:
        """How many outcomes have not been read: such a call has no PARTIALs to count."""
        return 0

    async def reply(self) -> Reply:
        """Wait for the reply; raises the error if that is the outcome."""
        return _reply_of(await self._future)


class Feed:
    """The sink of several calls, or of a stream: a queue with one reader."""

    __slots__ = ("_loop", "_outcomes", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._outcomes: deque[Outcome] = deque()
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None

    def put(self, outcomes: tuple[Outcome, ...]) -> None:
        """Some more."""
        self._outcomes.extend(outcomes)
        self.wake()

    def qsize(self) -> int:
        """How many outcomes have not been read."""
        return len(self._outcomes)

    def take(self) -> deque[Outcome]:
        """All outcomes that are there."""
        outcomes, self._outcomes = self._outcomes, deque()
        return outcomes

    async def reply(self) -> Reply:
        """Wait for the next reply; raises the error if that is the outcome."""
        await self.wait()
        return _reply_of(self._outcomes.popleft())

    def wake(self) -> None:
        """Let ``wait`` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until there is an outcome, or ``wake`` is called."""
        if not self._outcomes:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


def _reply_of(outcome: Outcome) -> Reply:
    reply = outcome[1]
    if isinstance(reply, BstarError):
        raise reply
    return reply


class Source:
    """The bodies of ``map``, one after the other, from an iterable of either kind.

    An async one is asked for the next body ahead, in a task of its own; ``wake`` is called when it came.
    """

    def __init__(
        self, bodies: Iterable[Body | Ask] | AsyncIterable[Body | Ask], wake: Callable[[], None]
    ) -> None:
        self.is_exhausted = False
        self._wake = wake
        self._plain: Iterator[Body | Ask] | None = None
        self._async: AsyncIterator[Body | Ask] | None = None
        self._task: asyncio.Task[Body | Ask] | None = None
        self._next: list[Body | Ask] = []
        if isinstance(bodies, AsyncIterable):
            self._async = aiter(bodies)
        else:
            self._plain = iter(bodies)

    def has_next(self) -> bool:
        """Is there a body now? Raises what the iterable raised."""
        if self._next:
            return True
        if self.is_exhausted:
            return False
        try:
            if self._plain is not None:
                self._next.append(next(self._plain))
                return True
            return self._ask()
        except (StopIteration, StopAsyncIteration):
            self.is_exhausted = True
            return False

    def take(self) -> Body | Ask:
        """The body that ``has_next`` told of."""
        return self._next.pop()

    def _ask(self) -> bool:
        assert self._async is not None
        task = self._task
        if task is None:
            self._task = task = asyncio.ensure_future(_next_of(self._async))
            task.add_done_callback(lambda _: self._wake())
        if not task.done():
            return False
        self._task = None
        self._next.append(task.result())
        return True

    async def close(self) -> None:
        """Ask for no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


async def _next_of(bodies: AsyncIterator[Body | Ask]) -> Body | Ask:
    return await anext(bodies)
