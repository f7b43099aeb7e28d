"""Delivers the outputs of a client's core: outcomes to callers, messages to links, events to observers.

Threads and asyncio share it. Outcomes go to the call's ``sink``: ``put`` takes a tuple of them, and ``qsize``
is the number of unread tuples.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bstar.errors import BstarError, StreamInterruptedError
from bstar_client.arguments.settings import ClientSettings
from bstar_client.core.calls import Call, CallTracer, Outcome, Reply
from bstar_client.core.events import Event
from bstar_client.core.outputs import ClientCore, Deliver, DeliverAll, Fail, Output, Report, Reset, Send
from bstar_client.links.links import Links

if TYPE_CHECKING:  # most programs keep none
    from bstar_client.journal import CallJournal

_log = logging.getLogger("bstar_client")

_NOTHING: list[bytes] = []

T = TypeVar("T")


class Delivery:
    """Carries outputs out. Only the thread that drives the core calls ``perform``; it sets ``links``."""

    def __init__(
        self,
        core: ClientCore,
        on_event: Callable[[Event], object] | None,
        partials_max: int,
        clock: Callable[[], float],
    ) -> None:
        self.links: Links
        self.journal: CallJournal | None = None
        self.tracer: CallTracer | None = None
        self.observers = [] if on_event is None else [on_event]
        # For shells with threads: the calls without an outcome, and the sinks with a waiting caller.
        self.open: dict[Call, None] = {}
        self.waiting: dict[Any, None] = {}
        self._core = core
        self._partials_max = partials_max
        self._clock = clock

    def open_journal(self, settings: ClientSettings) -> None:
        """Open the journal, if the settings name one."""
        if settings.journal is not None:
            from bstar_client.journal import CallJournal  # noqa: PLC0415 - most programs keep none: 1.5 MiB

            self.journal = CallJournal(settings.journal, settings.fleet, is_plain=not settings.is_native)

    def perform(self, outputs: list[Output]) -> None:
        """Carry the outputs out, in their order."""
        for output in outputs:
            if isinstance(output, Send):  # a class pattern costs 0.1 µs, and a request has two outputs
                self.links[output.node].send(output.frames)
            elif isinstance(output, DeliverAll):
                self._deliver_all(output.outcomes)
            elif isinstance(output, Deliver):
                self._deliver(output.call, output.reply)
            elif isinstance(output, Fail):
                output.call.elapsed_s = self._clock() - output.call.begun_at
                self._fail(output.call, output.error)
            elif isinstance(output, Report):
                if output.call.on_progress is not None:  # the one before may have closed the client
                    self._tell((output.call.on_progress,), output.progress)
            elif isinstance(output, Reset):
                self.links.reset(output.node)
            else:
                if self.journal is not None:
                    self.journal.announced(output.event)
                self._tell(self.observers, output.event)

    def abandon(self, call: Call, now: float) -> None:
        """The caller of this call has gone."""
        if self.journal is not None and not call.is_done:
            self.journal.abandoned(call)
        self.untrace(call)
        self.perform(self._core.abandon(call, now))
        self._drop(call)

    def untrace(self, call: Call) -> None:
        """End the trace of a call that gets no outcome, if it has one. The core need not have the call."""
        if call.trace is not None and self.tracer is not None:
            self.tracer.abandoned(call)

    def _deliver(self, call: Call, reply: Reply) -> None:
        if not reply.is_final and call.sink.qsize() >= self._partials_max:
            text = f"{self._partials_max} PARTIALs (partials_max) wait to be read: the reader is too slow"
            self.perform(self._core.abandon(call, self._clock()))
            self._fail(call, StreamInterruptedError(text))
            return
        if self.journal is not None:
            self.journal.replied(call, reply)
        if call.trace is not None and reply.is_final and self.tracer is not None:
            self.tracer.replied(call, reply)
        self._put(call.sink, (call, reply))
        if reply.is_final:
            self._drop(call)

    def _deliver_all(self, outcomes: list[tuple[Call, Reply]]) -> None:
        if self.journal is not None:
            for call, reply in outcomes:
                self.journal.replied(call, reply)
        if self.tracer is not None:
            for call, reply in outcomes:
                if call.trace is not None:
                    self.tracer.replied(call, reply)
        # Outcomes in a row with one sink go there in one tuple.
        sink = outcomes[0][0].sink
        start = 0
        for place, (call, _) in enumerate(outcomes):
            if call.sink is not sink:
                self._put(sink, *outcomes[start:place])
                sink, start = call.sink, place
        self._put(sink, *(outcomes[start:] if start else outcomes))
        forget = self.open.pop
        for call, _ in outcomes:
            forget(call, None)
            call.body = _NOTHING
            call.sink = call.on_progress = None

    def _fail(self, call: Call, error: BstarError) -> None:
        call.is_done = True  # also if the core refused it, so that its caller does not abandon it
        if self.journal is not None:
            self.journal.failed(call, error)
        if call.trace is not None and self.tracer is not None:
            self.tracer.failed(call, error)
        self._put(call.sink, (call, error))
        self._drop(call)

    def _put(self, sink: Any, *outcomes: Outcome) -> None:
        if self.waiting:
            self.waiting.pop(sink, None)
        sink.put(outcomes)

    def _drop(self, call: Call) -> None:
        self.open.pop(call, None)
        # The core's heaps keep ended calls for a while, so drop their bytes. The sink holds the call, so the
        # call must not hold the sink.
        call.body = _NOTHING
        call.partials = ()
        call.sink = call.on_progress = None

    def _tell(self, observers: Sequence[Callable[[T], object]], news: T) -> None:
        """Call the program's own functions. They must not wait for the client."""
        for observer in observers:
            try:
                observer(news)
            except Exception:  # noqa: BLE001 - whatever it is, it is the observer's
                _log.exception("an observer failed on %r", news)
