"""Records the growth of each service's counters, once per interval."""

from collections import Counter, defaultdict

import msgspec

from bstar.journal import Journal
from bstar.records import Load, Refused
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.records import Held, ServiceRecord

# The counters of a service that a record of its load has, under the same names.
_COUNTERS = (
    "accepted", "answered", "failed", "refused", "expired", "poisoned", "lost", "cancelled", "returned",
    "redelivered", "duplicates", "declined",
)  # fmt: skip
_US = 1e6


class _Reported(msgspec.Struct):
    """The last record of a service."""

    counters: tuple[int, ...] = (0,) * len(_COUNTERS)
    gauges: tuple[int, int, int, int] = (0, 0, 0, 0)
    busy_s: float = 0.0
    refusals: Counter[str] = msgspec.field(default_factory=Counter)


class Loads:
    """Remembers what was last recorded, and records the difference."""

    def __init__(self, journal: Journal, now: float) -> None:
        self._journal = journal
        self._reported: defaultdict[ServiceRecord, _Reported] = defaultdict(_Reported)
        self._reported_drops: Counter[str] = Counter()
        # Refusals of services that were forgotten for good since the last time.
        self._reported_early: Counter[str] = Counter()
        self._reported_at = now

    def forgotten(self, service: ServiceRecord, now: float) -> None:
        """A service is forgotten: keep its last counts."""
        self._load(service, Held(), now)
        self._reported_early += self._refusals(service, now)
        del self._reported[service]

    def tick(self, ledger: Ledger, now: float) -> None:
        """Record the growth of the counters since the last time."""
        held = ledger.held(now)
        of_services, self._reported_early = self._reported_early, Counter()
        for service in (*ledger.services.values(), *ledger.services.past.values()):
            self._load(service, held[service], now)
            of_services += self._refusals(service, now)
        drops = ledger.drops.copy()
        for reason, count in (drops - self._reported_drops - of_services).items():
            self._journal.write(Refused, now, reason=reason, count=count)
        self._reported_drops = drops
        self._reported_at = now

    def _load(self, service: ServiceRecord, held: Held, now: float) -> None:
        reported = self._reported[service]
        counters = tuple(getattr(service.tally, name) for name in _COUNTERS)
        gauges = (service.workers, held.credit, service.queued, held.count)
        busy_s = service.tally.busy_s + held.sum_s
        # An idle service needs one record that it is idle, and no more.
        if counters == reported.counters and gauges == reported.gauges and not gauges[2] and not gauges[3]:
            reported.busy_s = busy_s
            return
        moved = {
            name: count - before
            for name, count, before in zip(_COUNTERS, counters, reported.counters, strict=True)
            if count != before
        }
        self._journal.write(
            Load,
            now,
            service=service.label,
            interval_us=round((now - self._reported_at) * _US),
            workers=gauges[0],
            credit=gauges[1],
            queued=gauges[2],
            in_flight=gauges[3],
            busy_us=max(0, round((busy_s - reported.busy_s) * _US)),
            **moved,
        )
        reported.counters, reported.gauges, reported.busy_s = counters, gauges, busy_s

    def _refusals(self, service: ServiceRecord, now: float) -> Counter[str]:
        """Record the refusals of this service since the last time; by reason, how many."""
        reported = self._reported[service]
        refusals = service.tally.refusals.copy()
        moved = refusals - reported.refusals
        reported.refusals = refusals
        for reason, count in moved.items():
            self._journal.write(Refused, now, reason=reason, count=count, service=service.label)
        return moved
