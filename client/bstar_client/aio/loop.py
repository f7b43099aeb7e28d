"""Drives a core from an asyncio event loop: the links' descriptors and the core's deadlines wake a *turn*.

A ZeroMQ socket's descriptor shows a change once, and sending may reset it (see ``links.Links``). So after a
turn that sent messages or left some unread, the loop takes another turn.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bstar_client.links.links import Core, Links
from bstar_client.links.unclosed import guard

if TYPE_CHECKING:  # most programs keep none
    from bstar_client.journal import CallJournal, WorkJournal


_log = logging.getLogger("bstar_client")


class LinkLoop:
    """Runs a core in the event loop's thread. ``new_links`` makes its links, with ``poll=``; ``perform``
    carries the core's outputs out.

    Every turn begins with ``begin(now)``, which may send a batch of what was collected since the last turn.
    A turn that fails, because no socket can be opened, is the last one: ``fail`` ends the owner.
    """

    def __init__(
        self,
        core: Core,
        new_links: Callable[..., Links],
        clock: Callable[[], float],
        perform: Callable[[list[Any]], None],  # Any: the core's own outputs
        begin: Callable[[float], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._clock = clock
        self.holdings = Holdings(loop, self._on_readable)
        self.links = self.holdings.links = new_links(poll=self.holdings)
        self._core = core
        self._perform = perform
        self._begin = begin
        self._fail = fail
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._next: asyncio.Handle | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    def guard(self, owner: object, name: str) -> None:
        """Close everything when ``owner`` is collected, unless it was closed before."""
        remedy = "use it in 'async with', or await close() before its event loop ends"
        self._guard = guard(owner, name, remedy, self.holdings.end)

    def start(self) -> None:
        """Open every link. ConfigurationError if an endpoint is invalid."""
        self.links.open_all()
        self.soon()

    def end(self, linger_ms: int = 0) -> None:
        """Close every link and take no more turns. Idempotent."""
        self._guard.detach()
        self._is_closed = True
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()
        self.links.close_all(linger_ms)
        self._end_waiting()

    def soon(self) -> None:
        """Take a turn in the next round of the event loop."""
        if self._next is None and not self._is_closed:
            self._next = self._loop.call_soon(self._turn)

    def read(self) -> None:
        """Hand the core what has arrived, and how the connections are."""
        self.links.suspect()
        self.links.prepare()
        self.links.wait(0)
        self.links.step(self._core, self._perform)

    async def room(self) -> None:
        """Wait until no link has a backlog."""
        while self.links.is_congested and not self._is_closed:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def _on_readable(self, descriptor: int) -> None:
        self.holdings.ready.append((descriptor, 0))
        # At once: another round of the event loop costs as much as the turn.
        if self._next is None and not self._is_closed:
            self._turn()

    def _turn(self) -> None:
        """Take a turn. What depends on the next one must not wait for it in vain."""
        try:
            self._take_turn()
        except Exception as error:  # noqa: BLE001 - callers get the end of it, whatever it was
            _log.exception("a turn failed: no socket, or a defect of bstar")
            self._fail(error)

    def _take_turn(self) -> None:
        """Give the core what the sockets and the clock have. The next event wakes the loop."""
        self._next = None
        self._begin(self._clock())
        if self._is_closed:
            return
        links, due, asked_at = self.links, self._core.next_deadline(), self._clock()
        links.prepare()
        links.wait(0)
        links.step(self._core, self._perform, due, asked_at)
        if not links.is_quiet:
            self.soon()
        if self._room is not None and not links.is_congested:
            self._end_waiting()
        self._set_timer()

    def _end_waiting(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _set_timer(self) -> None:
        due = self.links.next_deadline(self._core)
        if due is None or self._is_closed:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return  # the timer fires early enough, and is set again then
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()


class Holdings:
    """What a client or a worker of an event loop has open, and what ``Links`` uses of ``select.epoll``.

    ``unclosed.guard`` holds this. So it holds neither the client nor the event loop, which holds the client.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[int], None]) -> None:
        self.links: Links
        self.journal: CallJournal | WorkJournal | None = None
        self.ready: list[tuple[int, int]] = []
        self._loop = weakref.ref(loop)
        self._on_readable = weakref.WeakMethod(on_readable)

    def register(self, descriptor: int, _: int) -> None:
        """Let the event loop watch this descriptor."""
        loop, on_readable = self._loop(), self._on_readable()
        assert loop is not None
        assert on_readable is not None
        loop.add_reader(descriptor, on_readable, descriptor)

    def unregister(self, descriptor: int) -> None:
        """Let the event loop forget this descriptor."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(descriptor)

    def wake(self) -> None:
        """Take a turn: links that have no descriptors call it."""
        on_readable = self._on_readable()
        if on_readable is not None:
            on_readable(-1)

    def poll(self, _: float) -> list[tuple[int, int]]:
        """What the event loop has found readable since the last call."""
        ready, self.ready = self.ready, []
        return ready

    def end(self, is_exit: bool) -> None:
        """Close all of it. At the process's exit, do nothing if the event loop runs in another thread."""
        loop = self._loop()
        if is_exit and loop is not None and loop.is_running():
            return
        self.links.end()
        if self.journal is not None:
            self.journal.close()
