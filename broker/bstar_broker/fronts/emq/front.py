"""The EventMQ front: reads what comes through its doors, and gives it to the part that knows.

    clients      clients, publishers and external schedulers: ``requests``, ``schedules``, ``schedulers``
    workers      job managers: ``managers``
    admin        the admin's commands STATUS, ROUTER_SHOW_WORKERS and ROUTER_SHOW_SCHEDULERS
    subscribers  a PUB socket: ``publications``

For a command of the admin, and for DISCONNECT at any door, the front asks the node for ``mmi.state``, which
is for operators alone where keys are used. The figures by queue are those of the broker's services, so they
count workers of every dialect. The node does the rest. Input that cannot be read is counted by reason, and
nothing else happens.
"""

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import emq, mmi
from bstar.wire.dialect import Dialect
from bstar.wire.front import Order, Verb, peer_id, split_peer_id
from bstar.wire.messages import Request
from bstar_broker.core.outputs import FrontSend, Output
from bstar_broker.core.snapshot import FrontState, NodeState
from bstar_broker.fronts.emq.desk import ADMIN, CLIENTS, NAME, SUBSCRIBERS, WORKERS, Asker, Desk, label
from bstar_broker.fronts.emq.managers import Managers
from bstar_broker.fronts.emq.publications import Publications
from bstar_broker.fronts.emq.requests import Requests
from bstar_broker.fronts.emq.schedulers import Schedulers
from bstar_broker.fronts.emq.schedules import (
    DOOR,
    KINDS,
    Keeper,
    MemorySchedules,
    StoredSchedules,
    id_of,
    plan_of,
)

# A manager's silence is noticed this often in a heartbeat's interval.
_LOOKS_PER_HEARTBEAT = 4

_read_state = msgspec.json.Decoder(NodeState).decode
_encode = msgspec.json.Encoder().encode


class EmqFront:
    """A ``Front``; see there. ``run``: 16 random bytes of this run."""

    name = NAME

    def __init__(self, desk: Desk, run: bytes) -> None:
        self._desk = desk
        self._settings = desk.settings
        self.managers = Managers(desk)
        self._requests = Requests(desk, self.managers, run)
        self._publications = Publications(desk, self.managers)
        self._schedulers = Schedulers(desk)
        self._schedules: Keeper
        if desk.settings.has_store:
            self._schedules = StoredSchedules(desk, self._requests)
        else:
            self._schedules = MemorySchedules(desk, self.managers, lambda: round(desk.unix_time_s() * 1000))
        self._unread = 0
        self._looked_at: float | None = None
        self._is_closed = False

    # --- the doors ------------------------------------------------------------------------------------------

    def receive(self, door: str, frames: list[bytes], user_id: str, now: float) -> list[Output]:
        """See ``Front``."""
        try:
            frames = list(map(bytes, frames))
            message = emq.decode(frames, 1, wire=self._settings.wire)
            if isinstance(message, emq.Disconnect):
                return self._receive_disconnect(door, frames[0], message, user_id, now)
            if door == WORKERS:
                return self.managers.receive_manager(frames[0], message, user_id, now)
            if door == ADMIN:
                return self._receive_admin(frames[0], message, user_id, now)
            return self._receive_client(Asker(frames[0], message.msgid, user_id), message, now)
        except RemoteProtocolError as error:
            self._unread += 1
            return self._desk.note(error.reason, error.text)

    def _receive_client(self, asker: Asker, message: emq.Message, now: float) -> list[Output]:
        self._schedulers.hear(asker.routing_id, asker.user_id, now)
        self._requests.hear(asker.peer)
        if self._is_closed:
            outputs = self._desk.note("closed", "a DISCONNECT has ended EventMQ at this node")
            return [*outputs, self._desk.goodbye(CLIENTS, asker.routing_id, asker.msgid)]
        match message:
            case emq.Request():
                return self._requests.receive(asker, message, now)
            case emq.Publish():
                return self._requests.publish(asker, message, now)
            case emq.Schedule() | emq.Unschedule():
                return self._receive_schedule(asker, message, now)
            case emq.Inform():
                return self._schedulers.register(asker.routing_id, message, asker.user_id, now)
            case emq.Goodbye():
                self._schedulers.forget(asker.routing_id)
                return []
            case emq.Heartbeat():
                return []
        return self._desk.note("unexpected", f"a client sent {type(message).__name__}")

    def _receive_schedule(
        self, asker: Asker, message: emq.Schedule | emq.Unschedule, now: float
    ) -> list[Output]:
        if self._settings.has_external_scheduler:
            if isinstance(message, emq.Schedule):
                return self._schedulers.schedule(message)
            return self._schedulers.unschedule(message)
        try:
            if isinstance(message, emq.Schedule) and message.headers.run_count:
                plan = plan_of(message, self._requests.service_of(message.queue))
                return self._schedules.schedule(asker, plan, now)
            return self._schedules.unschedule(asker, id_of(message.message), now)
        except RemoteProtocolError as error:
            return self._desk.refuse(asker, f"schedule-{error.reason}", error.text)

    def _receive_admin(
        self, routing_id: bytes, message: emq.Message, user_id: str, now: float
    ) -> list[Output]:
        command = type(message)
        if command is emq.Hello:
            return []
        if command not in _ADMIN:
            return self._desk.note("unexpected", f"an admin sent {command.__name__}")
        return self._ask(ADMIN, routing_id, message, user_id, now)

    def _receive_disconnect(
        self, door: str, routing_id: bytes, message: emq.Disconnect, user_id: str, now: float
    ) -> list[Output]:
        if not self._settings.may_disconnect:
            return self._desk.note("disconnect", "fronts.emq.allow_disconnect is false")
        return self._ask(door, routing_id, message, user_id, now)

    def _ask(
        self, door: str, routing_id: bytes, message: emq.Message, user_id: str, now: float
    ) -> list[Output]:
        """Do what an admin asks if the node says how it is: with keys it does so to operators alone."""
        envelope = (type(message).__name__.encode(), message.msgid, door.encode())
        peer = peer_id(NAME, ADMIN, routing_id)
        asked = Request(peer, Dialect.FRONT, envelope, mmi.Service.STATE.value, [b""])
        return self.managers.receive(asked, now, user_id)

    # --- what the broker says -------------------------------------------------------------------------------

    def deliver(self, order: Order, now: float) -> list[Output]:
        """See ``Front``."""
        _, door, routing_id = split_peer_id(order.peer)
        if door == WORKERS:
            return self.managers.deliver(order, now)
        if door == SUBSCRIBERS:
            return self._publications.deliver(order, now)
        if door == ADMIN:
            return self._answer_admin(routing_id, order, now)
        if door == DOOR:
            return []
        if order.envelope[0] in KINDS:
            return self._schedules.deliver(order, now)
        return self._requests.deliver(order, now)

    def _answer_admin(self, routing_id: bytes, order: Order, now: float) -> list[Output]:
        command, msgid, door = order.envelope
        if order.verb is not Verb.FINAL:
            return []  # the node has counted why
        if command == emq.Disconnect.__name__.encode():
            return self._close(door.decode(), routing_id, msgid, now)
        if command == emq.Status.__name__.encode():
            report = _status(order.body[-1], self.managers)
        elif command == emq.ShowWorkers.__name__.encode():
            report = _encode(self.managers.show(now))
        else:
            report = _encode(self._schedulers.show())
        return [self._desk.reply(ADMIN, routing_id, report)]

    def _close(self, door: str, routing_id: bytes, msgid: bytes, now: float) -> list[Output]:
        """EMQ-G-06: say KBYE to all, take nothing new, let what is under way end. The admin gets an ACK."""
        self._is_closed = True
        outputs: list[Output] = []
        if door == ADMIN:
            outputs.append(self._desk.send(ADMIN, routing_id, emq.Ack(self._desk.new_id(), msgid)))
        elif routing_id not in self._schedulers.by_id and routing_id not in self.managers.by_id:
            outputs.append(self._desk.goodbye(door, routing_id, msgid))
        self._schedules.stop()
        outputs += self._publications.close(now)
        return [*outputs, *self._schedulers.close(), *self.managers.close(now)]

    def unsent(self, output: FrontSend, is_gone: bool, now: float) -> list[Output]:
        """See ``Front``."""
        if output.door == WORKERS:
            return self.managers.unsent(output, is_gone, now)
        if output.door == SUBSCRIBERS:
            return self._publications.missed()
        routing_id = output.frames[0]
        if output.door == CLIENTS and is_gone:
            self._schedulers.forget(routing_id)
            self._requests.forget(peer_id(NAME, CLIENTS, routing_id))
        return self._desk.inlet.peer_unreached(peer_id(NAME, output.door, routing_id), now, is_gone=is_gone)

    def connected(self, door: str, count: int, now: float) -> list[Output]:
        """See ``Front``: subscribers have no other sign."""
        if door == SUBSCRIBERS:
            self._publications.subscribers = count
        return []

    def peer_gone(self, door: str, routing_id: bytes, now: float) -> list[Output]:
        """See ``Front``. Nothing is lost at once: the next looks find it silent, or unreachable."""
        if door == WORKERS:
            self.managers.gone(routing_id, now)
        elif door == CLIENTS:
            self._requests.disconnected(peer_id(NAME, CLIENTS, routing_id))
        return []

    # --- roles and time -------------------------------------------------------------------------------------

    def activate(self, epoch: int, now: float) -> list[Output]:
        """See ``Front``."""
        return self.managers.resume(now)

    def deactivate(self, now: float) -> list[Output]:
        """See ``Front``. Managers are dismissed when the peer serves (``Managers.beat``)."""
        self._schedules.stop()
        return self._requests.stop()

    def handle_timer(self, now: float) -> list[Output]:
        """See ``Front``."""
        outputs: list[Output] = []
        interval_s = self._settings.heartbeat_s / _LOOKS_PER_HEARTBEAT
        if self._looked_at is None or now >= self._looked_at + interval_s:
            gap_s = 0.0 if self._looked_at is None else now - self._looked_at - interval_s
            if gap_s > self._settings.heartbeat_s:
                self.managers.away(gap_s)
                self._schedulers.away(gap_s)
            self._looked_at = now
            outputs += self.managers.beat(now)
            outputs += self._schedulers.beat(now)
            outputs += self._publications.offer(now)
        if self._desk.inlet.is_active and not self._is_closed:
            outputs += self._requests.handle_timer(now)
            outputs += self._schedules.handle_timer(now)
        return outputs

    def next_deadline(self) -> float | None:
        """See ``Front``."""
        looks_at = 0.0
        if self._looked_at is not None:
            looks_at = self._looked_at + self._settings.heartbeat_s / _LOOKS_PER_HEARTBEAT
        more = (self._requests.next_deadline(), self._schedules.next_deadline())
        due = (
            [at for at in more if at is not None]
            if self._desk.inlet.is_active and not self._is_closed
            else []
        )
        return min([looks_at, *due])

    def state(self, now: float) -> FrontState:
        """See ``Front``."""
        peers = {
            "managers": len(self.managers.by_id),
            "schedulers": len(self._schedulers.by_id),
            "subscribers": self._publications.subscribers,
        }
        counts = {"unread": self._unread, "published": self._publications.published}
        slots = sum(manager.free for manager in self.managers.by_id.values())
        levels = {
            "free_slots": slots,
            "jobs": sum(len(manager.jobs) for manager in self.managers.by_id.values()),
            "retries": self._requests.count(),
            "schedules": self._schedules.count(),
        }
        error = "a DISCONNECT has ended EventMQ at this node" if self._is_closed else ""
        return FrontState(NAME, peers, counts, error, levels)


_ADMIN = frozenset((emq.Status, emq.ShowWorkers, emq.ShowSchedulers))


def _status(state: bytes, managers: Managers) -> bytes:
    """STATUS as JSON; ``state`` is the answer to ``mmi.state``. Latencies are those at job managers, in
    milliseconds.
    """
    services = _read_state(state).broker.services
    latency = {queue: tally.last_s * 1000 for queue, tally in managers.tallies.items()}
    longest = {queue: tally.longest_s * 1000 for queue, tally in managers.tallies.items()}
    return _encode(
        {
            "inflight_messages_by_queue": {each.service: each.in_flight for each in services},
            "latency_messages_by_queue": latency,
            "max_latency_messages_by_queue": longest,
            "waiting_messages_by_queue": {each.service: each.queued for each in services},
            "processed_messages_by_queue": {each.service: each.answered + each.failed for each in services},
            "processed_messages_by_worker": {
                label(each.routing_id): each.processed for each in managers.by_id.values()
            },
        }
    )
