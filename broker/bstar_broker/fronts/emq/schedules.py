"""EventMQ's scheduler inside the router: SCHEDULE and UNSCHEDULE, kept in one of three places.

    the durable store       replicated: the node that serves runs them
    the node's memory       without a store: of the active node, gone with it
    an external scheduler   the emq-scheduler that connected last

A schedule's identity is the SHA-1 of its call (PROTOCOLS.md 12.7); queue, headers and times are not part of
it. Its id in the store is the first 16 bytes. SCHEDULE replaces what differs and leaves alone what is equal,
so a client may repeat it. Times keep to their grid. The first run is at once, unless ``nohaste``; after
``run_count:n`` runs it is over. The request of a time carries no header of the schedule but
``reply-requested``, as published.
"""

from collections.abc import Callable
from hashlib import blake2b
from math import inf
from typing import Protocol

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import durable, emq
from bstar.wire.dialect import Dialect
from bstar.wire.durable import Receipt, Repeat, Service, State, Submit
from bstar.wire.emq_jobs import decode_job, schedule_id
from bstar.wire.front import Order, Verb, peer_id
from bstar.wire.messages import ErrorCode, Request
from bstar_broker.core.outputs import Output
from bstar_broker.fronts.emq.desk import CLIENTS, NAME, Asker, Desk
from bstar_broker.fronts.emq.managers import Managers
from bstar_broker.fronts.emq.requests import Requests, why, why_no_queue
from bstar_broker.store.core import times

# What the schedules in memory are to the broker.
DOOR = "schedules"
SCHEDULES_MAX = 10_000

SCHEDULE = b"schedule"
REPLACE = b"replace"
AGAIN = b"again"
END = b"unschedule"
HASTE = b"haste"
KINDS = frozenset((SCHEDULE, REPLACE, AGAIN, END, HASTE))


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it was asked for. ``runs``: requests that it makes, 0 without bound."""

    id: bytes
    service: bytes
    body: list[bytes]
    every_ms: int
    cron: str
    runs: int
    is_hasty: bool

    def repeat(self, spent: int = 0) -> Repeat:
        """Its times, ``spent`` runs of them used up."""
        return Repeat(every_ms=self.every_ms, cron=self.cron, runs=self.runs and self.runs - spent)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Plan).decode


def plan_of(schedule: emq.Schedule, service: bytes) -> Plan:
    """Raises RemoteProtocolError if this cannot be a schedule."""
    job = decode_job(schedule.message)
    headers = schedule.headers
    if (trouble := why_no_queue(schedule.queue)) is not None:
        raise RemoteProtocolError("queue", trouble)
    plan = Plan(
        id_of(schedule.message),
        service,
        [schedule.message, b"", schedule.queue.encode()],
        max(0, schedule.interval_s) * 1000,
        schedule.cron,
        max(0, headers.run_count),
        not headers.nohaste,
    )
    assert job.path
    times.check(plan.repeat())
    return plan


def id_of(message: bytes) -> bytes:
    """The first 16 bytes of the SHA-1; RemoteProtocolError if the message is no job."""
    return bytes.fromhex(schedule_id(decode_job(message)))[: durable.ID_BYTES]


class Keeper(Protocol):
    """A place that keeps schedules."""

    def schedule(self, asker: Asker, plan: Plan, now: float) -> list[Output]:
        """Keep this schedule."""

    def unschedule(self, asker: Asker, schedule: bytes, now: float) -> list[Output]:
        """End the schedule with this id."""

    def deliver(self, order: Order, now: float) -> list[Output]:
        """An answer with one of ``KINDS``."""

    def handle_timer(self, now: float) -> list[Output]:
        """Run what is due."""

    def next_deadline(self) -> float | None:
        """When something is due."""

    def stop(self) -> None:
        """This node serves no more."""

    def count(self) -> int:
        """Schedules that it knows here."""


class StoredSchedules:
    """In the durable store. Everything that an answer needs travels in the envelope."""

    def __init__(self, desk: Desk, requests: Requests) -> None:
        self._desk = desk
        self._requests = requests

    def schedule(self, asker: Asker, plan: Plan, now: float) -> list[Output]:
        """See ``Keeper``."""
        return self._schedule(asker, SCHEDULE, plan, now)

    def _schedule(self, asker: Asker, kind: bytes, plan: Plan, now: float) -> list[Output]:
        spent = 1 if plan.cron and plan.is_hasty else 0
        if plan.runs and plan.runs == spent:
            return self._haste(asker, plan, now)
        is_now = plan.is_hasty and not plan.cron
        submit = Submit(plan.id, plan.service, plan.body, delay_ms=1 if is_now else 0)
        asked = durable.encode(durable.Schedule(submit, plan.repeat(spent)))
        return self._requests.operate(asker, _envelope(asker, kind, plan), Service.SCHEDULE, asked, now)

    def _haste(self, asker: Asker, plan: Plan, now: float) -> list[Output]:
        """The first run of a cron schedule: a stored request of its own."""
        number = blake2b(plan.id + self._desk.new_id(), digest_size=durable.ID_BYTES).digest()
        submit = durable.encode(Submit(number, plan.service, plan.body))
        return self._requests.operate(asker, _envelope(asker, HASTE, plan), Service.SUBMIT, submit, now)

    def unschedule(self, asker: Asker, schedule: bytes, now: float) -> list[Output]:
        """See ``Keeper``."""
        return self._requests.operate(asker, (END, asker.msgid), Service.CLOSE, schedule, now)

    def deliver(self, order: Order, now: float) -> list[Output]:
        """See ``Keeper``. A schedule that stands in another form, or is over, is closed and made anew."""
        kind = order.envelope[0]
        is_done = order.verb is Verb.FINAL
        if order.verb is Verb.NOT_ACTIVE:
            return [self._desk.not_active(order)]
        if kind == END:
            return [] if is_done else self._refuse(Asker.of(order, b""), why(order))
        asker, plan = Asker.of(order, order.envelope[3]), _decode(order.envelope[2])
        if kind == REPLACE and is_done:
            return self._schedule(asker, AGAIN, plan, now)
        if kind in (SCHEDULE, AGAIN) and is_done:
            receipt = durable.decode(order.body[0], Receipt)
            if receipt.is_new and plan.cron and plan.is_hasty:
                return self._haste(asker, plan, now)
            if receipt.is_new or receipt.state == State.SCHEDULED:
                return []
        elif kind == HASTE and is_done:
            return []
        if kind == SCHEDULE and (is_done or order.code == ErrorCode.INVALID):
            envelope = _envelope(asker, REPLACE, plan)
            return self._requests.operate(asker, envelope, Service.CLOSE, plan.id, now)
        return self._refuse(asker, "it belongs to another owner" if is_done else why(order))

    def _refuse(self, asker: Asker, text: str) -> list[Output]:
        return self._desk.refuse(asker, "schedule-refused", text.removeprefix("refused: "))

    def handle_timer(self, now: float) -> list[Output]:
        """See ``Keeper``: the store does it."""
        return []

    def next_deadline(self) -> float | None:
        """See ``Keeper``."""
        return None

    def stop(self) -> None:
        """See ``Keeper``."""

    def count(self) -> int:
        """See ``Keeper``: they are the store's."""
        return 0


def _envelope(asker: Asker, kind: bytes, plan: Plan) -> tuple[bytes, ...]:
    return kind, asker.msgid, _encode(plan), asker.user_id.encode()


class Memo(msgspec.Struct):
    """A schedule in memory. ``due_at``: the node's clock; ``due_ms``: the wall clock's, of a cron time."""

    plan: Plan
    user_id: str
    due_at: float
    left: int
    due_ms: int = 0


class MemorySchedules:
    """In the memory of the active node. Both nodes' clients must SCHEDULE again after a failover."""

    def __init__(self, desk: Desk, managers: Managers, wall_ms: Callable[[], int]) -> None:
        self._desk = desk
        self._managers = managers
        self._wall_ms = wall_ms
        self._memos: dict[bytes, Memo] = {}
        # Nothing is due before: the loop asks after each message, and there may be thousands of schedules.
        self._due_at = inf

    def schedule(self, asker: Asker, plan: Plan, now: float) -> list[Output]:
        """See ``Keeper``."""
        if not self._desk.inlet.is_active:
            return [self._desk.goodbye(CLIENTS, asker.routing_id, asker.msgid)]
        known = self._memos.get(plan.id)
        if known is not None and known.user_id != asker.user_id:
            return self._desk.refuse(asker, "schedule-refused", "it belongs to another owner")
        if known is not None and known.plan == plan:
            return []
        if known is None and len(self._memos) >= SCHEDULES_MAX:
            return self._desk.refuse(asker, "schedules-full", f"there are {SCHEDULES_MAX} schedules")
        memo = Memo(plan, asker.user_id, now, plan.runs)
        self._memos[plan.id] = memo
        if not plan.is_hasty:
            memo.due_at = self._next(memo, now)
        self._due_at = min(self._due_at, memo.due_at)
        return []

    def _next(self, memo: Memo, now: float) -> float:
        """The time after ``due_at``, or infinity."""
        plan = memo.plan
        if plan.every_ms:
            every_s = plan.every_ms / 1000
            # Times that passed while the process was away are skipped; the grid stays.
            return memo.due_at + every_s * max(1, (now - memo.due_at) // every_s + 1)
        now_ms = self._wall_ms()
        memo.due_ms = times.first(plan.repeat(), now_ms, is_delayed=False)
        return now + (memo.due_ms - now_ms) / 1000 if memo.due_ms else inf

    def unschedule(self, asker: Asker, schedule: bytes, now: float) -> list[Output]:
        """See ``Keeper``."""
        if not self._desk.inlet.is_active:
            return [self._desk.goodbye(CLIENTS, asker.routing_id, asker.msgid)]
        memo = self._memos.get(schedule)
        if memo is not None and memo.user_id == asker.user_id:
            del self._memos[schedule]
        return []

    def deliver(self, order: Order, now: float) -> list[Output]:
        """See ``Keeper``."""
        return []

    def handle_timer(self, now: float) -> list[Output]:
        """See ``Keeper``."""
        outputs: list[Output] = []
        if now < self._due_at:
            return outputs
        for memo in [each for each in self._memos.values() if now >= each.due_at]:
            plan = memo.plan
            if self._wall_ms() < memo.due_ms:
                # The wall clock was set back, or was read a moment after ``now``: its time has not come.
                memo.due_at = self._next(memo, now)
                continue
            if memo.left == 1 or (due_at := self._next(memo, now)) == inf:
                del self._memos[plan.id]
            else:
                memo.left = max(0, memo.left - 1)
                memo.due_at = due_at
            peer = peer_id(NAME, DOOR, plan.id)
            asked = Request(peer, Dialect.FRONT, (HASTE, b""), plan.service, plan.body)
            outputs += self._managers.receive(asked, now, memo.user_id)
        self._due_at = min((memo.due_at for memo in self._memos.values()), default=inf)
        return outputs

    def next_deadline(self) -> float | None:
        """See ``Keeper``."""
        return None if self._due_at == inf else self._due_at

    def stop(self) -> None:
        """See ``Keeper``: the other node's clients schedule again there."""
        self._memos.clear()
        self._due_at = inf

    def count(self) -> int:
        """See ``Keeper``."""
        return len(self._memos)
