"""External schedulers: the published emq-scheduler, or another program that sends ``INFORM scheduler``.

Each gets ACK and HEARTBEATs. Where schedules are theirs (``fronts.emq.scheduler: external``), SCHEDULE goes
to the one that connected last and UNSCHEDULE to all, as published. Their REQUESTs are like all others.
"""

import msgspec

from bstar.wire import emq
from bstar_broker.core.outputs import Output
from bstar_broker.fronts.emq.desk import CLIENTS, Desk, label

SCHEDULERS_MAX = 1_000


class Scheduler(msgspec.Struct):
    """One of them."""

    user_id: str
    heard_at: float
    sent_at: float


class Schedulers:
    """By routing id, in the order in which they connected."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.by_id: dict[bytes, Scheduler] = {}

    def register(self, routing_id: bytes, inform: emq.Inform, user_id: str, now: float) -> list[Output]:
        """INFORM."""
        if inform.kind is not emq.Kind.SCHEDULER:
            return self._desk.note("kind", "a job manager at the clients' door")
        self.by_id.pop(routing_id, None)
        if len(self.by_id) >= SCHEDULERS_MAX:
            return self._desk.note("schedulers-full", f"there are {SCHEDULERS_MAX} schedulers")
        self.by_id[routing_id] = Scheduler(user_id, now, now)
        ack = emq.Ack(self._desk.new_id(), inform.msgid)
        return [self._desk.send(CLIENTS, routing_id, ack), self._desk.heartbeat(CLIENTS, routing_id)]

    def hear(self, routing_id: bytes, user_id: str, now: float) -> None:
        """Any message is a sign of life."""
        scheduler = self.by_id.get(routing_id)
        if scheduler is not None and scheduler.user_id == user_id:
            scheduler.heard_at = now

    def forget(self, routing_id: bytes) -> None:
        """It left, or cannot be reached."""
        self.by_id.pop(routing_id, None)

    def schedule(self, message: emq.Schedule) -> list[Output]:
        """Hand it to the latest one."""
        if not self.by_id:
            return self._desk.note("no-scheduler", "a SCHEDULE, and no scheduler is connected")
        return [self._desk.send(CLIENTS, next(reversed(self.by_id)), message)]

    def unschedule(self, message: emq.Unschedule) -> list[Output]:
        """Hand it to all."""
        return [self._desk.send(CLIENTS, routing_id, message) for routing_id in self.by_id]

    def beat(self, now: float) -> list[Output]:
        """Forget silent ones, and send HEARTBEATs that are due."""
        outputs: list[Output] = []
        settings = self._desk.settings
        for routing_id, scheduler in list(self.by_id.items()):
            if now >= scheduler.heard_at + settings.expires_s:
                del self.by_id[routing_id]
                outputs += self._desk.note("scheduler-expired", "a scheduler is silent")
            elif now >= scheduler.sent_at + settings.heartbeat_s:
                scheduler.sent_at = now
                outputs.append(self._desk.heartbeat(CLIENTS, routing_id))
        return outputs

    def away(self, gap_s: float) -> None:
        """The process was away, and messages are unread."""
        for scheduler in self.by_id.values():
            scheduler.heard_at += gap_s

    def close(self) -> list[Output]:
        """Say KBYE to all."""
        farewells: list[Output] = [self._desk.goodbye(CLIENTS, routing_id) for routing_id in self.by_id]
        self.by_id.clear()
        return farewells

    def show(self) -> dict[str, object]:
        """ROUTER_SHOW_SCHEDULERS."""
        shown = {label(routing_id): {"hb": each.heard_at} for routing_id, each in self.by_id.items()}
        return {"connected_schedulers": shown}
