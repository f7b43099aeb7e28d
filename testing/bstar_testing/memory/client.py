"""The clients of a pair in memory: ``HAClient`` and ``AsyncHAClient``, whose messages stay in the process."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from bstar.errors import ConfigurationError, NoActiveNodeError
from bstar_client import AsyncHAClient, HAClient
from bstar_client.core.call_errors import already_closed, waits_for_itself
from bstar_client.core.calls import Call, Outcome
from bstar_client.core.outputs import ClientCore, Output
from bstar_client.sync.futures import CallFuture
from bstar_testing.memory.links import MemoryLinks
from bstar_testing.memory.node import MemoryNode
from bstar_testing.memory.world import World
from bstar_testing.processes import HarnessError

if TYPE_CHECKING:
    from bstar_client.aio.client_loop import ClientLoop as AsyncClientLoop
    from bstar_client.calls.delivery import Delivery
    from bstar_client.sync.client_loop import ClientLoop, Sink


class MemoryNet:
    """The ``Net`` of clients and workers in memory. ``is_client``: of clients."""

    def __init__(self, world: World, nodes: Sequence[MemoryNode], *, is_client: bool) -> None:
        self.world = world
        self.endpoints = [node.endpoint for node in nodes]
        self.clock: Callable[[], float] = world.clock.now
        self.new_links: Callable[..., MemoryLinks] = self._new_links
        self._nodes = nodes
        self._is_client = is_client

    def _new_links(self, *_: object, poll: Any, **__: object) -> MemoryLinks:
        """``poll`` is woken when something has arrived."""
        return MemoryLinks(self.world, self._nodes, poll.wake, is_client=self._is_client)


class MemoryClient(HAClient):
    """A client for threads. A call lets the pair go on until the call has its outcome."""

    def __init__(self, net: MemoryNet, **options: Any) -> None:
        self._net: MemoryNet = net
        super().__init__(net.endpoints, **options)

    def _new_loop(self) -> "ClientLoop":
        return cast("ClientLoop", MemoryLoop(self._net, self._core, self._delivery))

    def _new_future(self) -> CallFuture[Any]:
        return MemoryFuture(self._net.world, self._loop, self._abandon, self._explain)

    def _pause(self, seconds: float) -> None:
        world = self._net.world
        world.drive(lambda: False, world.now + seconds)

    def _explain(self, error: NoActiveNodeError) -> None:
        """There is nothing to find at endpoints in memory."""


class AsyncMemoryClient(AsyncHAClient):
    """A client for asyncio."""

    def __init__(self, net: MemoryNet, **options: Any) -> None:
        self._net: MemoryNet = net
        super().__init__(net.endpoints, **options)

    def _open(self) -> "AsyncClientLoop":
        """The loop. Elsewhere than in the pair's event loop nothing would ever happen."""
        if not self._is_closed and self._net.world.event_loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "an async client needs a pair that lives in its event loop: "
                "enter the pair there, async with fake(…) as client"
            )
        return super()._open()

    async def _explain(self, error: NoActiveNodeError) -> None:
        """There is nothing to find at endpoints in memory."""


class MemoryFuture(CallFuture[Any]):
    """The future of a call. Who asks for its result lets the pair go on; for ``concurrent.futures.wait`` and
    callbacks, which do not ask, a thread does.
    """

    def __init__(self, world: World, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._world = world
        self._is_driven = False
        self._waiters = _Waiters(self)

    def drive(self) -> None:
        """Let the pair go on in a thread until the call has ended."""
        if not self._is_driven:
            self._is_driven = True
            threading.Thread(target=self._drive_on, name="bstar-client", daemon=True).start()

    def _drive_on(self) -> None:
        try:
            self._world.drive(self.done)
        except HarnessError as error:  # it would wait for ever
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        """The reply, within ``timeout`` seconds of the pair's time or TimeoutError."""
        self._drive_here(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None, within ``timeout`` seconds of the pair's time or TimeoutError."""
        self._drive_here(timeout)
        return super().exception(0)

    def _drive_here(self, timeout: float | None) -> None:
        self._check_may_wait()
        self._world.drive(self.done, None if timeout is None else self._world.now + timeout)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call it when the call has ended."""
        super().add_done_callback(fn)
        self.drive()


class _Waiters(list[Any]):
    """Those who wait for a future without asking it."""

    def __init__(self, future: MemoryFuture) -> None:
        super().__init__()
        self._future = future

    def append(self, waiter: Any) -> None:
        """One more waits."""
        super().append(waiter)
        self._future.drive()


class MemoryLoop:
    """What a client for threads uses of its ``ClientLoop``."""

    def __init__(self, net: MemoryNet, core: ClientCore, delivery: "Delivery") -> None:
        self.is_closing = False
        self.unawaited: set[CallFuture[Any]] = set()
        self._world = net.world
        self._core = core
        self._delivery = delivery
        # Calls that have begun; nothing is sent while code runs.
        self._begun: deque[Call] = deque()
        self._abandoned: deque[Call] = deque()
        # The thread that carries outputs out, else 0.
        self._performing_in = 0
        self._links = delivery.links = cast("Any", net.new_links(poll=self))
        self._perform(core.restart((), self._world.now))
        self._links.open_all()
        self._world.timed.append(self)

    def begin(self, calls: Sequence[Call]) -> None:
        """Send calls."""
        if self.is_closing:
            for call in calls:
                call.sink.put(((call, already_closed()),))
            return
        self._world.check_open()
        self._begun.extend(calls)
        self._world.post(self._send_begun)

    def _send_begun(self) -> None:
        # Other threads begin calls meanwhile.
        if begun := [self._begun.popleft() for _ in range(len(self._begun))]:
            self._perform(self._core.submit_all(begun, self._world.now))

    def _perform(self, outputs: list[Output]) -> None:
        self._performing_in = threading.get_ident()
        try:
            self._delivery.perform(outputs)
        finally:
            self._performing_in = 0

    def check_may_wait(self) -> None:
        """LocalProtocolError in an observer or a future's callback, as on sockets."""
        if self._performing_in == threading.get_ident():
            raise waits_for_itself()

    def nudge(self) -> None:
        """What was sent arrives as soon as somebody waits."""

    def wait(self, call: Call, sink: "Sink") -> tuple[Outcome, ...]:
        """The next outcomes in the caller's own sink."""
        self.check_may_wait()
        while True:
            self._world.drive(lambda: not sink.empty())
            try:
                outcomes = sink.get_nowait()
            except queue.Empty:  # another thread reads the same sink
                continue
            assert outcomes is not None, "no thread is promoted here"
            return outcomes

    def abandon(self, calls: Iterable[Call]) -> None:
        """No caller waits for these calls. Only notes it, because a finaliser may call this anywhere."""
        self._abandoned.extend(calls)
        self._world.post(self._abandon)

    def _abandon(self) -> None:
        while self._abandoned:
            self._delivery.abandon(self._abandoned.popleft(), self._world.now)

    def close(self) -> None:
        """End every call. Idempotent."""
        if not self.is_closing:
            self.is_closing = True
            self._world.timed.remove(self)
            self._send_begun()
            self._perform(self._core.close(self._world.now))
            self._links.end()
            if self._delivery.journal is not None:
                self._delivery.journal.close()

    # --- the world ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has arrived."""
        if not self.is_closing:
            self._links.step(self._core, self._perform)

    def next_deadline(self) -> float | None:
        """When the core is due."""
        return self._core.next_deadline()

    def on_time(self) -> None:
        """It is due."""
        self._perform(self._core.handle_timer(self._world.now))
