"""A pair in memory for the tests of an application: ``fake``."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from bstar.errors import ConfigurationError
from bstar_client import AsyncHAClient, HAClient
from bstar_client.arguments.checks import is_any
from bstar_testing.memory.client import AsyncMemoryClient, MemoryClient, MemoryNet
from bstar_testing.memory.clock import PrivateLoop, VirtualTime
from bstar_testing.memory.node import Faults, MemoryNode
from bstar_testing.memory.worker import AsyncMemoryWorker, MemoryWorker
from bstar_testing.memory.world import World

Handlers = Mapping[str, Callable[..., Any]]

# How many requests a service of sync handlers holds, so that a handler may call its own service.
_THREADS = 8
# A node that was killed starts again after this time, as a supervisor would do it.
_RESTART_S = 1.0
_LOOK_S = 0.001


def fake(handlers: Handlers, **options: Any) -> "FakePair":
    """A pair with its workers in this process: the production cores, no socket, and virtual time.

        with fake({"price": quote}) as client:
            assert client.request("price", b"apple").body == b"3"

    ``handlers``: what ``Worker`` or ``AsyncWorker`` would call for each service, sync or async. ``options``
    are those of ``HAClient``. ``with`` gives an HAClient, ``async with`` an AsyncHAClient.
    """
    return FakePair(handlers, **options)


class FakePair:
    """What ``fake`` makes: a pair for one block, and its faults.

    Nothing happens while no call waits, and waiting takes no time: the pair's time jumps to the next
    deadline. It stands still while a handler runs.
    """

    def __init__(self, handlers: Handlers, **options: Any) -> None:
        self._options = options
        self._is_begun = False
        self._world = World()
        self._faults = Faults()
        self._nodes = [MemoryNode(self._world, role, self._faults) for role in ("primary", "backup")]
        self._nodes[0].peer, self._nodes[1].peer = self._nodes[1], self._nodes[0]
        self._net = MemoryNet(self._world, self._nodes, is_client=True)
        worker_net = MemoryNet(self._world, self._nodes, is_client=False)
        self._workers: list[MemoryWorker] = []
        self._async_workers: list[AsyncMemoryWorker] = []
        for service, handler in handlers.items():
            if _is_async(handler):
                self._async_workers.append(AsyncMemoryWorker(worker_net, service, handler))
            else:
                self._workers.append(MemoryWorker(worker_net, service, handler, threads=_THREADS))
        self._clients: list[HAClient] = []
        self._async_clients: list[AsyncHAClient] = []
        self._time: VirtualTime | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next: asyncio.Handle | None = None

    # --- what may go wrong ----------------------------------------------------------------------------------

    def lose_reply(self) -> None:
        """The next reply to a client is lost with its connection; the node and its workers live."""
        self._faults.replies += 1

    @contextmanager
    def busy(self) -> Iterator[None]:
        """For the length of the block the nodes have no room for new requests: they say BUSY."""
        self._be_busy(True)
        try:
            yield
        finally:
            self._be_busy(False)

    def _be_busy(self, is_busy: bool) -> None:
        self._faults.is_busy = is_busy
        for node in self._nodes:
            node.fit_memory()

    def fail_over(self) -> None:
        """Kill the node that serves. The next request makes its peer active, and the killed one comes back a
        second later.
        """
        for node in self._nodes:
            if node.is_active:
                node.kill()
                self._world.at(self._world.now + _RESTART_S, node.start)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, and what happens in it. With asyncio: ``await asyncio.sleep(seconds)``."""
        if self._time is not None:
            raise ConfigurationError(
                "the pair's time is that of the event loop: await asyncio.sleep(seconds)"
            )
        self._world.pass_time(seconds)

    # --- clients --------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> HAClient:
        """One more client for threads."""
        client = MemoryClient(self._net, **{**self._options, **options})
        self._clients.append(client)
        return client

    def async_client(self, **options: Any) -> AsyncHAClient:
        """One more client for asyncio."""
        client = AsyncMemoryClient(self._net, **{**self._options, **options})
        self._async_clients.append(client)
        return client

    # --- with -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._is_begun:
            raise ConfigurationError("a pair in memory serves one block: make a new one")
        self._is_begun = True
        for node in self._nodes:
            node.start()
        for worker in self._workers:
            worker.start()

    def _is_ready(self) -> bool:
        workers: list[MemoryWorker | AsyncMemoryWorker] = [*self._workers, *self._async_workers]
        return self._nodes[0].is_active and all(
            all(worker.figures().registered.values()) for worker in workers
        )

    def __enter__(self) -> HAClient:
        self._start()
        world = self._world
        if self._async_workers:
            world.private_loop = PrivateLoop(world.clock)
            for worker in self._async_workers:
                world.private_loop.loop.call_soon(worker.start)
        world.drive(self._is_ready)
        return self.client()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        for worker in self._workers:
            worker.close()
        loop = self._world.private_loop
        if loop is not None:
            for each in self._async_workers:
                self._finish(each.close())
            loop.close()
        self._close_nodes()

    def _finish(self, closing: Awaitable[None]) -> None:
        loop = self._world.private_loop
        assert loop is not None
        task = asyncio.ensure_future(closing, loop=loop.loop)
        self._world.drive(task.done)
        task.result()

    async def __aenter__(self) -> AsyncHAClient:
        self._loop = asyncio.get_running_loop()
        self._time = VirtualTime(self._loop, self._world.clock, self._jump)
        self._world.on_work = self._soon
        self._start()
        for worker in self._async_workers:
            worker.start()
        while not self._is_ready():  # noqa: ASYNC110 - it takes no time
            await asyncio.sleep(_LOOK_S)
        return self.async_client()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._async_clients:
            await client.close()
        for worker in self._workers:
            worker.close()
        for each in self._async_workers:
            await each.close()
        self._world.on_work = None
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()
        assert self._time is not None
        self._time.end()
        self._close_nodes()

    def _close_nodes(self) -> None:
        self._world.end(node.close for node in self._nodes)

    # --- in an event loop -----------------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._next is None:
            self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Let happen what is due; the next deadline, or the next event, wakes the loop."""
        self._next = None
        if self._world.turn():
            self._soon()
            return
        due = self._world.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
        if due is not None:
            self._timer = self._loop.call_at(due, self._turn)

    def _jump(self, delay_s: float | None) -> None:
        if delay_s is not None:
            self._world.jump_in_loop(delay_s)


def _is_async(handler: object) -> bool:
    return any(is_any(handler, kind) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction))
