"""Records the events of a node: outcomes of requests, changes of workers, decisions of the pair.

The core reports requests and workers (``Observer``), the pair its outputs, the reactor its stalls. Each
becomes a record of ``bstar.records``. Nothing here decides or waits, and the broker goes on when the journal
cannot be written.
"""

from collections.abc import Callable
from typing import Any

from bstar import records, star
from bstar.journal import Journal
from bstar.star import StarMachine
from bstar_broker.core import Node
from bstar_broker.core.observer import LostBecause, Order
from bstar_broker.core.records import ServiceRecord, WorkerRecord
from bstar_broker.core.snapshot import JournalState
from bstar_broker.journal.durable_lines import DurableLines
from bstar_broker.journal.loads import Loads
from bstar_broker.journal.request_lines import RequestLines

_US = 1e6

_Record = tuple[type[records.Base], dict[str, Any]]

PAIR_RECORDS: dict[type, Callable[[Any, StarMachine], _Record]] = {
    star.StateChanged: lambda it, machine: (
        records.StateChanged,
        {
            "old": it.old.name,
            "new": it.new.name,
            "event": it.event.name,
            "text": it.reason,
            "epoch": machine.epoch,
            "votes": machine.counters.votes,
            "peer": "" if machine.peer.state is None else machine.peer.state.name,
        },
    ),
    star.Activated: lambda it, _: (records.Activated, {"epoch": it.epoch, "text": it.reason}),
    star.Deactivated: lambda it, machine: (records.Deactivated, {"epoch": machine.epoch, "text": it.reason}),
    star.PeerSeen: lambda it, _: (records.PeerSeen, {"peer": it.state.name, "peer_boot": it.node or ""}),
    star.PeerLost: lambda it, _: (
        records.PeerLost,
        {
            "reason": "left" if it.has_left else "gone" if it.is_gone else "silent",
            "silent_us": round(it.silent_s * _US),
        },
    ),
    star.PeerAsked: lambda it, _: (records.PeerAsked, {"text": it.reason}),
    star.PeerRejected: lambda it, _: (records.PeerRejected, {"reason": it.reason, "text": it.why}),
    star.HandoverRefused: lambda it, _: (records.HandoverRefused, {"text": it.why}),
    star.TakeoversPaused: lambda it, _: (
        records.TakeoversPaused,
        {"for_us": round(it.for_s * _US), "text": it.why},
    ),
    star.TakeoversResumed: lambda it, _: (records.TakeoversResumed, {"text": it.why}),
    star.TimeoutAdapted: lambda it, _: (
        records.TimeoutAdapted,
        {"timeout_us": round(it.new_s * _US), "text": it.text},
    ),
    star.Drained: lambda it, _: (records.Drained, {"text": it.why}),
    star.Rejoined: lambda it, _: (records.Rejoined, {"text": it.why}),
    star.Claimed: lambda it, _: (records.Claimed, {"text": it.reason}),
    star.ClientsCutOff: lambda it, _: (
        records.ClientsCutOff,
        {"clients": it.clients, "unserved": it.unserved, "for_us": round(it.for_s * _US), "text": it.verdict},
    ),
    star.ArbiterSeen: lambda it, _: (records.ArbiterSeen, {}),
    star.ArbiterLost: lambda it, _: (records.ArbiterLost, {"silent_us": round(it.silent_s * _US)}),
    star.Fatal: lambda it, _: (records.Fatal, {"exit_code": it.error.exit_code, "text": str(it.error)}),
}
"""Of each output of the Binary Star that says what happened: its record, and the record's fields."""


class NodeJournal:
    """One node's journal; an ``Observer`` of its broker. ``durable`` is one of its store.

    ``node_id`` names this run of the node, ``clock`` is the reactor's. ``attach`` it to the node before
    anything runs.
    """

    def __init__(self, journal: Journal, *, node_id: bytes, clock: Callable[[], float]) -> None:
        self.journal = journal
        self._clock = clock
        self._node: Node | None = None
        self._loads = Loads(journal, clock())
        self._take_lag_s: Callable[[], float] = float
        self.lines = RequestLines(journal, node_id)
        self.durable = DurableLines(journal, clock)
        self.ended = self.lines.ended
        self.answered = self.lines.answered
        self.forgotten = self._loads.forgotten

    def attach(self, node: Node, take_lag_s: Callable[[], float]) -> None:
        """Record this node from now on. ``take_lag_s`` returns the loop's worst lag since its last call."""
        self._node = node
        self._take_lag_s = take_lag_s
        self._pulse(self._clock())

    # --- an observer of the broker ------------------------------------------------------------------------

    def registered(self, worker: WorkerRecord, now: float) -> None:
        """A worker registered."""
        self.journal.write(
            records.WorkerRegistered,
            now,
            worker=worker.routing_id.hex(),
            service=worker.service.label,
            dialect=worker.dialect,
            credit=worker.credit,
        )

    def lost(self, worker: WorkerRecord, reason: LostBecause, now: float) -> None:
        """A worker is gone."""
        self.journal.write(
            records.WorkerLost,
            now,
            worker=worker.routing_id.hex(),
            service=worker.service.label,
            reason=reason,
            held=worker.held,
        )

    def ordered(
        self,
        service: ServiceRecord,
        order: Order,
        why: str,
        now: float,
        *,
        requests: int = 0,
        for_s: float = 0.0,
        about: bytes = b"",
    ) -> None:
        """An order about a service, a worker or a request was carried out."""
        self.journal.write(
            records.ServiceOrdered,
            now,
            service=service.label,
            order=order,
            requests=requests,
            for_us=round(for_s * _US),
            about=about.hex(),
            text=why,
        )

    def order_given(self, now: float, **fields: str | int) -> None:
        """An order came from elsewhere."""
        self.journal.write(records.OrderGiven, now, **fields)

    # --- an observer of the pair ----------------------------------------------------------------------------

    def observe(self, output: object) -> None:
        """An output of the Binary Star. Those that are not in ``PAIR_RECORDS`` have no record."""
        record_of = PAIR_RECORDS.get(type(output))
        if record_of is not None:
            assert self._node is not None
            kind, fields = record_of(output, self._node.machine)
            self.journal.write(kind, self._clock(), **fields)

    def stalled(self, gap_s: float, now: float) -> None:
        """The process was away."""
        self.journal.write(records.Stalled, now, gap_us=round(gap_s * _US))

    # --- once per interval ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Record the growth of the counters since the last time."""
        assert self._node is not None
        self._loads.tick(self._node.broker.ledger, now)
        self._pulse(now)

    def _pulse(self, now: float) -> None:
        assert self._node is not None
        machine, ledger = self._node.machine, self._node.broker.ledger
        self.journal.write(
            records.Pulse,
            now,
            state=machine.state.name,
            epoch=machine.epoch,
            workers=len(ledger.workers),
            queued=ledger.waiting.count,
            in_flight=sum(worker.held for worker in ledger.workers.values()),
            lag_us=round(self._take_lag_s() * _US),
        )
        if self._node.store is not None:
            store = self._node.store.state(now)
            self.journal.write(
                records.StorePulse,
                now,
                is_leading=store.is_leading,
                copies=store.copies,
                epoch=store.epoch,
                entry=store.applied,
                pending=store.pending,
                answered=store.answered,
                dead=store.dead,
                cancelled=store.cancelled,
                text=store.trouble,
            )

    # --- its end --------------------------------------------------------------------------------------------

    def stopping(self, now: float) -> None:
        """A stop of the node was asked for."""
        self.journal.write(records.Stopping, now)

    def close(self, reason: str | None) -> None:
        """Record the last interval, and end. ``reason`` None: the node failed. Idempotent."""
        if self._node is not None and reason is not None:
            self.tick(self._clock())
            self._node = None
        self.journal.close(reason)

    def state(self) -> JournalState:
        """For status and metrics."""
        counters = self.journal.counters
        return JournalState(
            directory=self.journal.options.directory,
            records=counters.records,
            octets=counters.size_bytes,
            segments=counters.segments,
            dropped=counters.dropped,
            dropped_requests=counters.dropped_requests,
            errors=counters.errors,
        )
