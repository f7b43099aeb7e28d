"""Carries out what a client's core says: replies to their callers, messages to links, events to observers.

The same for threads and for asyncio. Where outcomes go is the call's ``sink``: it is ``put`` a tuple of them,
each (call, Reply or error), and ``qsize`` tells how many tuples have not been read.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from bstar.errors import BstarError, StreamInterruptedError
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import Event
from bstar_client.core.outputs import ClientCore, Deliver, DeliverAll, Fail, Output, Reset, Send
from bstar_client.fleet_journal import FleetJournal
from bstar_client.journal import CallJournal
from bstar_client.link import Links

__all__ = ["Performer"]

_log = logging.getLogger("bstar_client")

_NOTHING: list[bytes] = []


class Performer:
    """``perform`` is called by one thread at a time, the one that drives the core.

    ``links`` and ``journal`` are set by the owner, and ``reset``, which closes a node's link and opens it, by
    one that has more to do then.
    """

    def __init__(
        self, core: ClientCore, on_event: Callable[[Event], object] | None, partials_max: int
    ) -> None:
        self.links: Links | None = None
        self.journal: CallJournal | FleetJournal | None = None
        self.observers: list[Callable[[Event], object]] = [on_event] if on_event is not None else []
        # The thread in which observers are being called, else 0.
        self.announcing_in = 0
        # For owners that keep such lists: calls that were begun and whose outcome nobody has been told, and
        # sinks somebody waits at.
        self.open: dict[Call, None] = {}
        self.waiting: dict[Any, None] = {}
        self._core = core
        self.reset: Callable[[int], None] = self._reset
        self._partials_max = partials_max

    def perform(self, outputs: list[Output]) -> None:
        """Carry them out, in their order."""
        for output in outputs:
            if isinstance(output, Send):
                assert self.links is not None
                self.links[output.node].send(output.frames)
            elif isinstance(output, DeliverAll):
                self._deliver_all(output.outcomes)
            elif isinstance(output, Deliver):
                self._deliver(output.call, output.reply)
            elif isinstance(output, Fail):
                call = output.call
                call.elapsed_s = time.monotonic() - call.begun_at
                self._fail(call, output.error)
            elif isinstance(output, Reset):
                self.reset(output.node)
            else:
                self._announce(output.event)

    def abandon(self, call: Call, now: float) -> None:
        """Its caller has gone."""
        if self.journal is not None and not call.is_done:
            self.journal.abandoned(call)
        self.perform(self._core.abandon(call, now))
        self._drop(call)

    def _reset(self, node: int) -> None:
        assert self.links is not None
        self.links[node].close()
        self.links[node].open()

    def _deliver(self, call: Call, reply: Reply) -> None:
        if not reply.is_final and call.sink.qsize() >= self._partials_max:
            text = f"{self._partials_max} PARTIALs (partials_max) wait to be read: the reader is too slow"
            self.perform(self._core.abandon(call, time.monotonic()))
            self._fail(call, StreamInterruptedError(text))
            return
        if self.journal is not None:
            self.journal.replied(call, reply)
        self._tell(call.sink, (call, reply))
        if reply.is_final:
            self._drop(call)

    def _deliver_all(self, outcomes: list[tuple[Call, Reply]]) -> None:
        if self.journal is not None:
            for call, reply in outcomes:
                self.journal.replied(call, reply)
        # Those that go to one sink go there together.
        sink = outcomes[0][0].sink
        told = 0
        for place, (call, _) in enumerate(outcomes):
            if call.sink is not sink:
                self._tell(sink, *outcomes[told:place])
                sink, told = call.sink, place
        self._tell(sink, *(outcomes[told:] if told else outcomes))
        forget = self.open.pop
        for call, _ in outcomes:
            forget(call, None)
            call.body = _NOTHING
            call.sink = None

    def _fail(self, call: Call, error: BstarError) -> None:
        if self.journal is not None:
            self.journal.failed(call, error)
        self._tell(call.sink, (call, error))
        self._drop(call)

    def _tell(self, sink: Any, *outcomes: tuple[Call, Reply | BstarError]) -> None:
        if self.waiting:
            self.waiting.pop(sink, None)
        sink.put(outcomes)

    def _drop(self, call: Call) -> None:
        self.open.pop(call, None)
        # The core's heaps keep ended calls for a while; not what was in them. And what was told is in the
        # sink, which is not to be in it.
        call.body = _NOTHING
        call.partials = ()
        call.sink = None

    def _announce(self, event: Event) -> None:
        if self.journal is not None:
            self.journal.announced(event)
        self.announcing_in = threading.get_ident()
        try:
            for observer in self.observers:
                try:
                    observer(event)
                except Exception:  # noqa: BLE001 - whatever it is, it is the observer's
                    _log.exception("an observer failed on %r", event)
        finally:
            self.announcing_in = 0
