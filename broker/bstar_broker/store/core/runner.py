"""Has pending requests done: it gives them to the broker, like a client, and makes commands of their ends.

The table is on the disk. Here are the requests that the broker has (``running``), and for each service
whether there are more and when the next becomes due. A request stays in ``running`` until the command that
its end became has been applied, so no look at the table finds it a second time.

Of each serial group the table offers its first pending request. Here its group is busy until that has left
``running`` and no worker of this node's broker holds it: then the next one may begin.
"""

from collections.abc import Iterable
from itertools import islice
from math import inf

import msgspec

from bstar.base.printable import printable
from bstar.wire.dialect import Dialect
from bstar.wire.durable import Cause
from bstar.wire.extensions import PROGRESS_EXTENSION
from bstar.wire.messages import ErrorCode, Request
from bstar_broker.core.broker import Broker
from bstar_broker.core.mailbox import STORE
from bstar_broker.core.outputs import Output
from bstar_broker.core.snapshot import RequestProgress
from bstar_broker.store.core.commands import Answered, Command, Failed
from bstar_broker.store.core.events import Due, DueFound
from bstar_broker.store.core.records import Record

# Requests of one service that the broker has at once, and of all services. Enough that workers never wait for
# the disk; few enough that other clients' requests do not wait behind them.
_SERVICE_MAX = 512
_RUNNING_MAX = 8_192
_BYTES_MAX = 64 << 20
_LOOK_BYTES = 8 << 20
# A page for people shows the progress of so many requests.
_PROGRESS_MAX = 20
# After a refusal of the broker.
_PAUSE_S = 0.1
# Identities of durable requests: the id, and a number that no client counts to, with the mark of a key. So
# workers that keep replies know a repetition.
_NUMBER = (1 << 62).to_bytes(8, "big")
# The extension that carries the number of the attempt (docs/protocol/native.md, section 4).
_ATTEMPT = b"\x41\x00\x02"
# Workers of other releases may send codes that this one does not know.
_CAUSES: dict[int, Cause] = {
    ErrorCode.POISON: Cause.POISON,
    ErrorCode.INVALID: Cause.REJECTED,
    ErrorCode.NOT_ALLOWED: Cause.REJECTED,
}


def identity_of(request: bytes) -> bytes:
    """The identity of a durable request at the broker and at workers."""
    return request + _NUMBER


def request_of(identity: bytes) -> bytes | None:
    """The id of the durable request with this identity; None if it is another request's."""
    return identity[:16] if identity[16:] == _NUMBER else None


class Lane(msgspec.Struct):
    """One service: how many of its requests run, whether the disk has more that are due, and when the next
    one becomes due (Unix milliseconds; 0: none that is known).
    """

    running: int = 0
    has_more: bool = True
    is_asking: bool = False
    next_ms: int = 0
    pause_until: float = 0.0


class Runner:
    """Runs between ``begin`` and ``stop``. ``commands`` are what the ends of requests became."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ledger = broker.ledger
        self.commands: list[Command] = []
        self.running: dict[bytes, Record] = {}
        # Those of them whose end became a command.
        self._storing: set[bytes] = set()
        # Services that have, or had, pending requests.
        self.services: set[bytes] = set()
        self._size_bytes = 0
        self._lanes: dict[bytes, Lane] = {}
        self._is_on = False
        # Requests that were submitted before this node began may have been begun by its predecessor.
        self._begun_seq = 0
        self._registrations = 0
        # Services that may have more to do since the last look.
        self._stirred: set[bytes] = set()
        # Busy groups, by service and group. A request that was retried by an operator may be the first of its
        # group while a later one runs: it waits, and its id stands here for the disk to skip; otherwise b"".
        self._groups: dict[tuple[bytes, str], bytes] = {}
        # Those whose requests have ended, while attempts go on in workers.
        self._leaving: dict[bytes, Record] = {}
        self.attempts = {"answered": 0, "declined": 0, "failed": 0, "retried": 0, "returned": 0}

    def begin(self, begun_seq: int) -> None:
        """Run from now on. Requests with a lower seq than ``begun_seq`` may have begun at another node."""
        self._is_on = True
        self._begun_seq = begun_seq
        self._lanes = {service: Lane() for service in self.services}

    def stop(self, now: float) -> None:
        """The node serves no more: what the broker has of it ends there."""
        self._is_on = False
        for request in self.running:
            self._broker.leave(identity_of(request), now)
        self.running.clear()
        self._storing.clear()
        self.commands.clear()
        self._lanes.clear()
        self._stirred.clear()
        self._groups.clear()
        self._leaving.clear()
        self._size_bytes = 0

    # --- what the table says --------------------------------------------------------------------------------

    def pending(self, record: Record, now_ms: int, now: float) -> list[Output]:
        """A request is pending since this moment: new, or after a failed attempt."""
        self.services.add(record.service)
        if not self._is_on:
            return []
        lane = self._lanes.setdefault(record.service, Lane(has_more=False))
        if record.due_ms > now_ms:
            lane.next_ms = min(lane.next_ms or record.due_ms, record.due_ms)
        elif record.group:
            self.note_due(record.service)  # the table knows whether it is the first of its group
        elif lane.has_more or lane.is_asking or not self._has_room(record.service, lane, now):
            lane.has_more = True
        else:
            return self._give(record, lane, now_ms, now)
        return []

    def ended(self, request: bytes, now: float) -> list[Output]:
        """A command has changed or ended this request: the broker may forget it."""
        record = self.running.pop(request, None)
        if record is None:
            return []
        self._storing.discard(request)
        self._size_bytes -= _size(record)
        lane = self._lanes[record.service]
        lane.running -= 1
        if lane.has_more:
            self._stirred.add(record.service)
        outputs = self._broker.withdraw(identity_of(request), now)
        self._leave_group(record)
        return outputs

    def note_due(self, service: bytes) -> None:
        """A request of a group may have become the first of it: look soon."""
        if self._is_on:
            self._lanes.setdefault(service, Lane()).has_more = True
            self._stirred.add(service)

    def _leave_group(self, record: Record) -> None:
        """The broker has this request no more, or only for a worker that goes on with it."""
        if not record.group:
            return
        if identity_of(record.id) in self._ledger.by_identity:
            self._leaving[record.id] = record
        else:
            self._leaving.pop(record.id, None)
            del self._groups[record.service, record.group]
            self.note_due(record.service)

    def found(self, found: DueFound, now_ms: int, now: float) -> list[Output]:
        """The disk has looked for requests that are due."""
        lane = self._lanes.get(found.service)
        if lane is None or not self._is_on:
            return []
        lane.is_asking = False
        if lane.has_more:
            self._stirred.add(found.service)  # something became due since it asked
        lane.has_more = lane.has_more or found.has_more
        if found.next_ms:
            lane.next_ms = min(lane.next_ms or found.next_ms, found.next_ms)
        outputs: list[Output] = []
        for record in found.records:
            if record.id in self.running:
                continue
            if record.group and (record.service, record.group) in self._groups:
                self._groups[record.service, record.group] = record.id
                continue
            outputs += self._give(record, lane, now_ms, now)
        return outputs

    # --- the broker -----------------------------------------------------------------------------------------

    def look(self, now_ms: int, now: float) -> list[Output]:
        """Ask the disk for more where workers could take more."""
        return self._look(self._ledger.services, now_ms, now)

    @property
    def is_stirred(self) -> bool:
        """True if ``look_again`` may find something."""
        return bool(self._stirred) or self._registrations != self._ledger.registrations

    def look_again(self, now_ms: int, now: float) -> list[Output]:
        """As ``look``, at services that have changed since: those whose requests have ended or become due,
        or all after workers have registered, which may offer what no worker offered before.
        """
        stirred, self._stirred = self._stirred, set()
        has_all = self._registrations == self._ledger.registrations
        self._registrations = self._ledger.registrations
        return self._look(stirred if has_all else self._ledger.services, now_ms, now)

    def _look(self, services: Iterable[bytes], now_ms: int, now: float) -> list[Output]:
        if not self._is_on:
            return []
        for record in list(self._leaving.values()):
            self._leave_group(record)
        outputs: list[Output] = []
        for service in services:
            lane = self._lanes.get(service)
            if lane is None:
                continue
            if lane.next_ms and now_ms >= lane.next_ms:
                lane.next_ms = 0
                lane.has_more = True
            if (
                lane.has_more
                and not lane.is_asking
                and lane.running <= self._max_of(service) // 2
                and self._has_room(service, lane, now)
            ):
                lane.has_more = False
                lane.is_asking = True
                skip = {request for request, record in self.running.items() if record.service == service}
                skip.update(first for (of_service, _), first in self._groups.items() if of_service == service)
                limit = self._max_of(service) - lane.running
                outputs.append(Due(service, now_ms, limit, _LOOK_BYTES, frozenset(skip)))
        return outputs

    def _has_room(self, service: bytes, lane: Lane, now: float) -> bool:
        record = self._ledger.services.get(service)
        return (
            record is not None
            and record.workers > 0
            and lane.running < self._max_of(service)
            and len(self.running) < _RUNNING_MAX
            and self._size_bytes < _BYTES_MAX
            and now >= lane.pause_until
            and not self._ledger.is_draining
        )

    def _max_of(self, service: bytes) -> int:
        """How many requests of this service the broker may have: half of a queue with a bound of its own."""
        record = self._ledger.services.get(service)
        length_max = None if record is None else record.limits.queue_length_max
        return _SERVICE_MAX if length_max is None else max(1, min(_SERVICE_MAX, length_max // 2))

    def _give(self, record: Record, lane: Lane, now_ms: int, now: float) -> list[Output]:
        if record.expires_ms and now_ms >= record.expires_ms:
            return []  # the next sweep ends it
        self.running[record.id] = record
        if record.group:
            self._groups[record.service, record.group] = b""
        self._size_bytes += _size(record)
        lane.running += 1
        attempt = min(record.attempts + 1, 0xFFFF)
        request = Request(
            STORE,
            Dialect.STORE,
            (),
            record.service,
            record.body,
            identity_of(record.id),
            extensions=_ATTEMPT + attempt.to_bytes(2, "big") + record.headers + PROGRESS_EXTENSION,
            is_repeated=attempt > 1 or record.seq < self._begun_seq,
        )
        return self._broker.receive(request, now)

    def collect(self, now: float) -> bool:
        """Read what has become of requests at the broker; False if nothing has."""
        if not self._ledger.mailbox.endings:
            return False
        for ending in self._ledger.mailbox.take():
            request = ending.identity[:16]
            record = self.running.get(request)
            if record is None:
                continue
            if ending.body is not None:
                self.attempts["answered"] += 1
                self._storing.add(request)
                self.commands.append(Answered(request, list(map(bytes, ending.body))))
            elif ending.code:
                end = "retried" if ending.code == ErrorCode.RETRY else "failed"
                self.attempts["declined" if ending.is_declined else end] += 1
                cause = _CAUSES.get(ending.code, Cause.FAILED)
                is_final = ending.is_declined or cause is not Cause.FAILED
                self._storing.add(request)
                self.commands.append(Failed(request, cause, ending.text, ending.retry_ms, is_final))
            else:
                # It was not executed, or the next leader has it executed.
                self.attempts["returned"] += 1
                del self.running[request]
                self._size_bytes -= _size(record)
                lane = self._lanes[record.service]
                lane.running -= 1
                lane.has_more = True
                lane.pause_until = now + _PAUSE_S
                self._leave_group(record)
        return True

    @property
    def is_storing(self) -> bool:
        """True while ends of requests wait to be read, or the commands that they became to be applied."""
        return bool(self._storing or self._ledger.mailbox.endings)

    def progress(self) -> list[RequestProgress]:
        """What the handlers of the first requests have reported, of those that report."""
        by_identity = self._ledger.by_identity
        held = ((record, by_identity.get(identity_of(request))) for request, record in self.running.items())
        reported = (
            RequestProgress(record.id.hex(), printable(record.service), accepted.progress)
            for record, accepted in held
            if accepted is not None and accepted.progress is not None
        )
        return list(islice(reported, _PROGRESS_MAX))

    # --- time -----------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int:
        """When the next request becomes due that workers offer, Unix milliseconds; 0 if none is known."""
        of_services = ((lane, self._ledger.services.get(service)) for service, lane in self._lanes.items())
        return min(
            (lane.next_ms for lane, record in of_services if lane.next_ms and record and record.workers),
            default=0,
        )

    def next_deadline(self) -> float:
        """When ``look`` may find room after a pause."""
        return min(
            (lane.pause_until for lane in self._lanes.values() if lane.has_more and lane.pause_until),
            default=inf,
        )


def _size(record: Record) -> int:
    return sum(map(len, record.body)) + 1_000
