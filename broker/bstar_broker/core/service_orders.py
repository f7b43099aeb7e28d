"""Orders of an operator about one service: pause, resume, purge.

A paused service takes requests on up to its usual bounds and dispatches none. What workers hold goes on. Each
request keeps its own time to live, so a long pause ends the requests that wait. The pause belongs to this
node: it holds through changes of the role, and ends with its time, ``resume`` or the process.
"""

import math

from bstar_broker.core.dispatch import Dispatcher
from bstar_broker.core.endings import Endings
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.observer import Order
from bstar_broker.core.outputs import Notice, Output
from bstar_broker.core.records import ServiceRecord


class ServiceOrders:
    """Carries the orders out. The caller has checked that the service exists."""

    def __init__(self, ledger: Ledger, endings: Endings, dispatcher: Dispatcher) -> None:
        self._ledger = ledger
        self._endings = endings
        self._dispatcher = dispatcher

    def pause(self, service: ServiceRecord, for_s: float, why: str, now: float) -> list[Output]:
        """Hold its requests back for ``for_s``, 0 for no end. A second pause replaces the first."""
        assert why
        service.pause_why = why
        service.paused_until = now + for_s if for_s else math.inf
        service.set_gate()
        time = f" for {for_s:g} s" if for_s else ""
        return self._report(service, "pause", f"is paused{time}", service.queued, for_s, why, now)

    def resume(self, service: ServiceRecord, why: str, now: float) -> list[Output]:
        """End the pause: dispatch what waits."""
        service.pause_why = ""
        service.paused_until = math.inf
        service.set_gate()
        outputs = self._report(service, "resume", "is resumed", service.queued, 0.0, why, now)
        self._dispatcher.dispatch_queued(service, now, outputs)
        return outputs

    def purge(self, service: ServiceRecord, why: str, now: float) -> tuple[int, list[Output]]:
        """End what waits for it with an error for each caller; how many requests. Those of the store stay."""
        ended: list[Output] = []
        count = self._endings.purge(service, why, now, ended)
        return count, ended + self._report(service, "purge", f"loses {count} requests", count, 0.0, why, now)

    def end_due(self, now: float) -> list[Output]:
        """End the pauses whose time is over."""
        return [
            output
            for service in self._ledger.services.values()
            if service.pause_why and now >= service.paused_until
            for output in self.resume(service, "its time is over", now)
        ]

    def follow_limits(self, now: float) -> list[Output]:
        """The configuration has other limits for services. What waits keeps its time to expire."""
        ledger = self._ledger
        changed = {service for service in ledger.services.values() if ledger.limit(service, now)}
        for worker in ledger.workers.values():
            if worker.service in changed:
                worker.counted = 0
                worker.service.count(worker, worker.weight(ledger.epoch))
        return self.dispatch_all(now)

    def dispatch_all(self, now: float) -> list[Output]:
        """Dispatch what waits for every service."""
        outputs: list[Output] = []
        for service in self._ledger.services.values():
            if service.queued:
                self._dispatcher.dispatch_queued(service, now, outputs)
        return outputs

    def _report(
        self, service: ServiceRecord, order: Order, does: str, requests: int, for_s: float, why: str,
        now: float,
    ) -> list[Output]:  # fmt: skip
        if self._ledger.observer is not None:
            self._ledger.observer.ordered(service, order, why, now, requests=requests, for_s=for_s)
        return [Notice(f"{service.title} {does}: {why}")]
