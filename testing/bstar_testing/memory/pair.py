"""A pair in memory for the tests of an application: ``fake``."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from bstar.errors import ConfigurationError
from bstar_client import AsyncHAClient, HAClient, ReplyMemory
from bstar_client.app import App, Life, ThreadLoop
from bstar_client.arguments.checks import is_any, to_seconds
from bstar_testing.memory.client import AsyncMemoryClient, MemoryClient, MemoryNet
from bstar_testing.memory.clock import PrivateLoop, VirtualTime
from bstar_testing.memory.node import Faults, MemoryNode
from bstar_testing.memory.worker import AsyncMemoryWorker, MemoryWorker
from bstar_testing.memory.world import World

Handlers = Mapping[str, Callable[..., Any] | Sequence[Callable[..., Any]]]

# How many requests a service of sync handlers holds, so that a handler may call its own service.
_THREADS = 8
# A node that was killed starts again after this time, as a supervisor would do it.
_RESTART_S = 1.0
_LOOK_S = 0.001


def fake(
    handlers: Handlers | App, *, resources: Mapping[type, Any] | None = None, **options: Any
) -> "FakePair":
    """A pair with its workers in this process: the production cores, no socket, and virtual time.

        with fake({"price": quote}) as client:
            assert client.request("price", b"apple").body == b"3"

    ``handlers``: an App, or what ``Worker`` or ``AsyncWorker`` would call for each service, sync or async. A
    service with a list of handlers has a worker for each of them. ``resources``: what an App's services get
    instead of its own resources, by their types, as in ``{Database: Database(":memory:")}``. ``options`` are
    those of ``HAClient``. ``with`` gives an HAClient, ``async with`` an AsyncHAClient.
    """
    return FakePair(handlers, resources=resources, **options)


class FakePair:
    """What ``fake`` makes: a pair for one block, and its faults.

    Nothing happens while no call waits, and waiting takes no time: the pair's time jumps to the next
    deadline. It stands still while a handler runs.
    """

    def __init__(
        self, handlers: Handlers | App, *, resources: Mapping[type, Any] | None = None, **options: Any
    ) -> None:
        if resources is not None and not isinstance(handlers, App):
            raise ConfigurationError("resources stand in for those of an App: give fake() the App")
        self._options = options
        self._world = World()
        self._faults = Faults()
        self._nodes = [MemoryNode(self._world, role, self._faults) for role in ("primary", "backup")]
        self._nodes[0].peer, self._nodes[1].peer = self._nodes[1], self._nodes[0]
        self._net = MemoryNet(self._world, self._nodes, is_client=True)
        self._worker_net = MemoryNet(self._world, self._nodes, is_client=False)
        self._life = Life(handlers, resources) if isinstance(handlers, App) else None
        self._resources = ExitStack()
        self._handlers = handlers
        self._workers: list[MemoryWorker] = []
        self._async_workers: list[AsyncMemoryWorker] = []
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
        seconds = to_seconds(seconds, "the time that passes", may_be_zero=True)
        self._world.check_open()
        self._world.pass_time(seconds)

    # --- clients --------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> HAClient:
        """One more client for threads."""
        client = MemoryClient(self._net, **{**self._options, **options})
        self._clients.append(client)
        return client

    def async_client(self, **options: Any) -> AsyncHAClient:
        """One more client for asyncio, of a pair that its event loop has entered with ``async with``."""
        client = AsyncMemoryClient(self._net, **{**self._options, **options})
        self._async_clients.append(client)
        return client

    # --- with -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._world.has_begun:
            raise ConfigurationError("a pair in memory serves one block: make a new one")
        self._world.has_begun = True
        for node in self._nodes:
            node.start()

    def _make_workers(self) -> None:
        """Make them, and start those of sync handlers. The resources of an App are there."""
        if isinstance(self._handlers, App):
            assert self._life is not None
            for service in self._handlers.services.values():
                handler = self._life.handler(service)
                self._make_worker(service.name, handler, is_async=service.is_async, **service.options)
        else:
            for name, handlers in self._handlers.items():
                for each in handlers if isinstance(handlers, Sequence) else (handlers,):
                    self._make_worker(name, each, is_async=_is_async(each))
        for worker in self._workers:
            worker.start()

    def _make_worker(
        self, service: str, handler: Callable[..., Any], *, is_async: bool, **options: Any
    ) -> None:
        store = options.get("dedupe")
        if isinstance(store, ReplyMemory) and store.clock is time.monotonic:
            store.clock = self._world.clock.now
            self._resources.callback(setattr, store, "clock", time.monotonic)
        if is_async:
            self._async_workers.append(AsyncMemoryWorker(self._worker_net, service, handler, **options))
            return
        if options.get("threads") is None and options.get("credit") is None:
            options["threads"] = _THREADS
        self._workers.append(MemoryWorker(self._worker_net, service, handler, **options))

    def _is_ready(self) -> bool:
        workers: list[MemoryWorker | AsyncMemoryWorker] = [*self._workers, *self._async_workers]
        return self._nodes[0].is_active and all(
            all(worker.figures().registered.values()) for worker in workers
        )

    def __enter__(self) -> HAClient:
        self._start()
        try:
            if self._life is not None:
                self._life.open(self, self._resources)
            self._make_workers()
            for worker in self._async_workers:
                self._private_loop().call_soon(worker.start)
            self._world.drive(self._is_ready)
            return self.client()
        except BaseException:
            self._end()
            raise

    def _private_loop(self) -> asyncio.AbstractEventLoop:
        world = self._world
        if world.private_loop is None:
            world.private_loop = PrivateLoop(world.clock)
        return world.private_loop.loop

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Let the pair go on until this is done in its event loop: what is async of an App."""
        task = self._private_loop().create_task(work)
        self._world.drive(task.done)
        return task.result()

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for client in self._clients:
            client.close()
        for worker in self._workers:
            worker.close()
        for each in self._async_workers:
            self.run(each.close())
        try:
            self._resources.close()
        finally:
            if self._world.private_loop is not None:
                self._world.private_loop.close()
            self._close_nodes()

    async def __aenter__(self) -> AsyncHAClient:
        self._loop = asyncio.get_running_loop()
        self._time = VirtualTime(self._loop, self._world.clock, self._jump)
        self._world.on_work = self._soon
        self._world.event_loop = self._loop
        try:
            self._start()
            if self._life is not None:
                await self._in_order(
                    partial(self._life.open, _TimedLoop(self._loop, self._time), self._resources)
                )
            self._make_workers()
            for worker in self._async_workers:
                worker.start()
            while not self._is_ready():  # noqa: ASYNC110 - it takes no time
                await asyncio.sleep(_LOOK_S)
            return self.async_client()
        except BaseException:
            await self._end_in_loop()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._end_in_loop()

    async def _end_in_loop(self) -> None:
        for client in self._async_clients:
            await client.close()
        for worker in self._workers:
            worker.close()
        for each in self._async_workers:
            await each.close()
        try:
            await self._in_order(self._resources.close)
        finally:
            self._world.on_work = self._world.event_loop = None
            for handle in (self._timer, self._next):
                if handle is not None:
                    handle.cancel()
            assert self._time is not None
            self._time.end()
            self._close_nodes()

    async def _in_order(self, act: Callable[[], object]) -> None:
        """Open or close the resources of an App. Those that are async wait for the event loop in a thread."""
        if self._life is not None and self._life.is_async:
            await asyncio.to_thread(act)
        else:
            act()

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


class _TimedLoop(ThreadLoop):
    """The event loop for the thread that opens and closes resources. Time goes on while it waits here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, time: VirtualTime) -> None:
        super().__init__(loop)
        self._time = time

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it there and wait for its result."""
        return super().run(self._time.awaited(work))


def _is_async(handler: object) -> bool:
    return any(is_any(handler, kind) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction))
