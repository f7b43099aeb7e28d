"""Where the suite of call semantics runs: a pair in memory, with threads or with asyncio, and a real pair.

A *stage* has a client with the words of ``HAClient``, the test's own handlers, and faults. A fault that comes
while a handler runs is a call in that handler.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from bstar_client import HAClient, Request, Worker
from bstar_testing import FakePair, Pair, fake, wait_until

# A real pair that many tests share has room for so many requests in each queue.
QUEUE_LENGTH_MAX = 4

Handler = Callable[..., Any]
# How often, and how many times, a stage looks at what it waits for.
_LOOK_S, _LOOKS_MAX = 0.1, 1_200

# The handler of a service, or one for each of its workers.
Handlers = Mapping[str, Handler | list[Handler]]


class Stage(ABC):
    """``enter`` makes the client and the workers for the length of a block."""

    client: Any

    @abstractmethod
    def enter(self, handlers: Handlers) -> Any:
        """A block with a client and these services."""

    @abstractmethod
    def lose_reply(self) -> None:
        """In a handler: what it returns now does not reach its client."""

    @abstractmethod
    def fail_over(self) -> None:
        """The node that serves dies."""

    @abstractmethod
    def busy(self) -> Any:
        """A block in which no request to the service "full" is taken."""

    @abstractmethod
    def slow(self, seconds: float) -> Handler:
        """A handler that takes so long."""

    @abstractmethod
    def left(self, leave: Callable[[Any, Request], Any], seen: list[bool]) -> Handler:
        """A handler that calls ``leave`` with client and request, and waits until that is cancelled.

        ``seen`` gets True then, and False if it never is.
        """

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Wait, in the test."""

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait, in the test, until the condition holds."""
        for _ in range(_LOOKS_MAX):
            if condition():
                return
            self.pass_time(_LOOK_S)
        raise AssertionError("it never came")


class Fake(Stage):
    """In memory, with threads."""

    pair: FakePair

    @contextmanager
    def enter(self, handlers: Handlers) -> Iterator[None]:
        self.pair = fake(handlers)
        with self.pair as self.client:
            yield

    def lose_reply(self) -> None:
        self.pair.lose_reply()

    def fail_over(self) -> None:
        self.pair.fail_over()

    def busy(self) -> Any:
        return self.pair.busy()

    def slow(self, seconds: float) -> Handler:
        return lambda request: self.pair.pass_time(seconds)

    def left(self, leave: Callable[[Any, Request], Any], seen: list[bool]) -> Handler:
        def handler(request: Request) -> None:
            leave(self.client, request)
            self.pair.pass_time(60)
            seen.append(request.is_cancelled)

        return handler

    def pass_time(self, seconds: float) -> None:
        self.pair.pass_time(seconds)


class AsyncFake(Fake):
    """In memory, with asyncio."""

    @contextmanager
    def enter(self, handlers: Handlers) -> Iterator[None]:
        self.pair = fake(handlers)
        with asyncio.Runner() as self._runner:
            self.client = Stepwise(self._runner.run(self.pair.__aenter__()), self._runner)
            try:
                yield
            finally:
                self._runner.run(self.pair.__aexit__(None, None, None))

    def slow(self, seconds: float) -> Handler:
        async def handler(request: object) -> None:
            await asyncio.sleep(seconds)

        return handler

    def left(self, leave: Callable[[Any, Request], Any], seen: list[bool]) -> Handler:
        async def handler(request: Request) -> None:
            try:
                if inspect.isawaitable(leaving := leave(self.client.client, request)):
                    await leaving
                await asyncio.sleep(60)
            finally:
                seen.append(request.is_cancelled)

        return handler

    def pass_time(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))


class Real(Stage):
    """Two nodes as processes, and workers in threads of the test."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._is_over = threading.Event()
        # Held while a handler kills a node: its callers hear of it before the node is quite gone.
        self._killing = threading.Lock()

    @contextmanager
    def enter(self, handlers: Handlers) -> Iterator[None]:
        with ExitStack() as stack:
            self.client = stack.enter_context(HAClient(self.pair.endpoints, timeout=120))
            workers = [
                stack.enter_context(Worker(self.pair.endpoints, service, each, threads=8))
                for service, of_service in handlers.items()
                for each in (of_service if isinstance(of_service, list) else [of_service])
            ]
            for worker in workers:
                wait_until(lambda worker=worker: all(worker.figures().registered.values()), "registered")  # type: ignore[misc]
            stack.callback(self._is_over.set)
            stack.callback(self._mend)
            yield

    def _mend(self) -> None:
        with self._killing:
            for node in self.pair.nodes:
                if not node.is_running:
                    node.start()
        self.pair.settled()

    def fail_over(self) -> None:
        with self._killing:
            self.pair.kill_active()

    def lose_reply(self) -> None:
        # It goes to the node that is dead.
        self.fail_over()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Nobody offers the service, and other requests fill its queue."""
        with ExitStack() as stack:
            for _ in range(QUEUE_LENGTH_MAX):
                stack.enter_context(closing(self.client.stream("full", b"", timeout=600)))
            self.pair.active().wait_for("they wait", lambda state: state.broker.queued == QUEUE_LENGTH_MAX)
            yield

    def slow(self, seconds: float) -> Handler:
        def handler(request: object) -> None:
            self._is_over.wait(seconds)

        return handler

    def left(self, leave: Callable[[Any, Request], Any], seen: list[bool]) -> Handler:
        def handler(request: Request) -> None:
            is_left = threading.Event()
            request.on_cancel(is_left.set)
            leave(self.client, request)
            seen.append(is_left.wait(60) and request.is_cancelled)

        return handler

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)


class StepwiseCall:
    """What ``Stepwise.begin`` returns: a task whose ``result`` blocks."""

    def __init__(self, task: asyncio.Task[Any], runner: asyncio.Runner) -> None:
        self.cancel, self.cancelled = task.cancel, task.cancelled
        self._task = task
        self._runner = runner

    def result(self) -> Any:
        async def wait() -> Any:
            return await self._task

        return self._runner.run(wait())


class Stepwise:
    """An ``AsyncHAClient`` whose methods block. Its event loop runs while one of them does."""

    def __init__(self, client: Any, runner: asyncio.Runner) -> None:
        self.client = client
        self._runner = runner

    def begin(self, *arguments: Any, **options: Any) -> StepwiseCall:
        async def begin() -> asyncio.Task[Any]:
            task: asyncio.Task[Any] = self.client.begin(*arguments, **options)
            return task

        return StepwiseCall(self._runner.run(begin()), self._runner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if not inspect.ismethod(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            result: Any = found(*arguments, **options)
            return self._iterate(result) if inspect.isasyncgen(result) else self._runner.run(result)

        return call

    def _iterate(self, generator: Any) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(generator, self)

        try:
            while (each := self._runner.run(step())) is not self:
                yield each
        finally:
            self._runner.run(generator.aclose())
