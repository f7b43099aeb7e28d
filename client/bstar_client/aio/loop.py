"""Drives a core from an asyncio event loop: the links' descriptors and the core's deadlines wake a *turn*.

A ZeroMQ socket's descriptor shows a change once, and sending may reset it (see ``links.Links``). So after a
turn that sent messages or left some unread, the loop takes another turn.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bstar_client.links import Core, Links, Transport
from bstar_client.wakeup import WakeUp

if TYPE_CHECKING:  # most programs keep none
    from bstar_client.journal import CallJournal, WorkJournal


class LinkLoop:
    """Runs a core in the event loop's thread. ``perform`` carries the core's outputs out.

    Every turn begins with ``begin(now)``, which may send a batch of what was collected since the last turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        links: Links,
        core: Core,
        perform: Callable[[list[Any]], None],  # Any: the core's own outputs
        begin: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._links = links
        self._core = core
        self._perform = perform
        self._begin = begin
        self._watched: dict[int, tuple[int, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._next: asyncio.Handle | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    def open(self, node: int) -> None:
        """Connect the link. ZMQError if its endpoint is none."""
        link = self._links[node]
        link.open()
        self._watched[node] = descriptors = link.descriptors() or ()
        for descriptor in descriptors:
            self._loop.add_reader(descriptor, self._on_readable)
        self.soon()

    def open_all(self) -> None:
        """Connect every link."""
        for node in range(len(self._links)):
            self.open(node)

    def reset(self, node: int) -> None:
        """Close the link, with everything in it, and open it again."""
        self.close(node)
        self.open(node)

    def close(self, node: int, linger_ms: int = 0) -> None:
        """Close the link, after its descriptors are forgotten: the next socket may get the same numbers."""
        for descriptor in self._watched.pop(node, ()):
            self._loop.remove_reader(descriptor)
        self._links[node].close(linger_ms)

    def end(self, linger_ms: int = 0) -> None:
        """Close every link and take no more turns. Idempotent."""
        self._is_closed = True
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()
        for node in list(self._watched):
            self.close(node, linger_ms)
        self._end_waiting()

    def soon(self) -> None:
        """Take a turn in the next round of the event loop."""
        if self._next is None and not self._is_closed:
            self._next = self._loop.call_soon(self._turn)

    def read(self) -> None:
        """Hand the core what has arrived, and how the connections are."""
        self._links.prepare()
        self._links.wait(0)
        self._links.step(self._core, self._perform)

    async def room(self) -> None:
        """Wait until no link has a backlog."""
        while self._links.is_congested and not self._is_closed:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def _on_readable(self) -> None:
        # At once: another round of the event loop costs as much as the turn.
        if self._next is None and not self._is_closed:
            self._turn()

    def _turn(self) -> None:
        """Give the core what the sockets and the clock have. The next event wakes the loop."""
        self._next = None
        self._begin(time.monotonic())
        if self._is_closed:
            return
        links, due, asked_at = self._links, self._core.next_deadline(), time.monotonic()
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
        due = self._links.next_deadline(self._core)
        if due is None or self._is_closed:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return  # the timer fires early enough, and is set again then
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()


class Holdings:
    """What a client or a worker of an event loop has open, for ``unclosed.guard``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Transport) -> None:
        self.links = transport.new_links(WakeUp())
        self.journal: CallJournal | WorkJournal | None = None
        # The event loop refers to the client.
        self._loop = weakref.ref(loop)
        self._transport = transport

    def end(self, is_exit: bool) -> None:
        """Close all of it. At the process's exit, do nothing if the event loop runs in another thread."""
        loop = self._loop()
        if is_exit and loop is not None and loop.is_running():
            return
        self.links.close()
        self._transport.close()
        if self.journal is not None:
            self.journal.close()
