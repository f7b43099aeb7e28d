"""The services that a broker knows, and those that it has forgotten but still counts.

A service without workers and requests leaves the table after a while (``service_ttl_s``), so that invented
names do not fill it. Its record waits in ``past``: when the name comes again the same record returns, so its
counters never go down. ``past`` keeps the ``PAST_MAX`` services that were forgotten last.

Every ``STEP_S`` each record notes its counters. So ``recent`` has the outcomes of the last five minutes.
"""

from collections import OrderedDict

from bstar.base.printable import printable
from bstar_broker.core.records import OUTCOMES, STEP_S, ServiceRecord

# A record is some 3 KB.
PAST_MAX = 1_000


class ServiceTable(dict[bytes, ServiceRecord]):
    """The known services by name; ``past`` are the forgotten ones, the latest last."""

    __slots__ = ("_step_at", "_ttl_s", "past")

    def __init__(self, ttl_s: float, now: float) -> None:
        super().__init__()
        self._ttl_s = ttl_s
        self._step_at = now + STEP_S
        self.past: OrderedDict[bytes, ServiceRecord] = OrderedDict()

    def add(self, name: bytes, now: float) -> ServiceRecord:
        """Add an unknown service: its earlier record, or a new one."""
        record = self.past.pop(name, None) or ServiceRecord(name, now)
        record.used_at = now
        self[name] = record
        return record

    def labelled(self, label: str) -> ServiceRecord | None:
        """The service that people call so."""
        return next((each for each in self.values() if each.label == label), None)

    def has_room_to_offer(self, services_max: int) -> bool:
        """True if a worker may bring a new service. Names that only clients have mentioned do not count."""
        return len(self) < services_max or sum(record.workers > 0 for record in self.values()) < services_max

    def tidy(self, now: float) -> list[ServiceRecord]:
        """Forget services that have had neither workers nor requests for a while.

        Returns the records that left ``past`` for ever.
        """
        for record in list(self.values()):
            if record.workers or record.queue.length or record.pause_why:
                record.used_at = now
            elif now - record.used_at >= self._ttl_s:
                del self[record.name]
                self.past[record.name] = record
        if now >= self._step_at:
            self._step_at = now + STEP_S
            for records in (self, self.past):
                for record in records.values():
                    record.steps.append(record.tally.outcomes())
        return [self.past.popitem(last=False)[1] for _ in range(len(self.past) - PAST_MAX)]


def recent(record: ServiceRecord) -> dict[str, int]:
    """The outcomes of the last four to five minutes, with their counts."""
    now = record.tally.outcomes()
    before = record.steps[0] if len(record.steps) == record.steps.maxlen else (0,) * len(now)
    return {name: count - was for name, count, was in zip(OUTCOMES, now, before, strict=True) if count > was}


def unknown_service(label: str) -> str:
    """What an operator reads who asks for a service that is not there."""
    return f'this node knows no service "{printable(label.encode())}": bstar status lists them'
