"""The job managers of EventMQ: what they say, what the broker says to them, and how they end.

``Lanes`` has their slots. Every READY, dispatch and REPLY changes what a manager may take. Of its queues
those with higher weights get a slot first. One input can make the broker fill several lanes at once; what is
beyond the slots waits here for the next READY.

A job ends without its manager's REPLY some time after its timeout. A published manager forgets a job whose
process died, and only the manager's own loss would free its client.

A manager that is silent for too long, says KBYE or cannot be reached is forgotten, and the broker redelivers
its jobs. The published router loses them. A job that waited here for a slot is not charged.

A node that is passive while its peer serves takes an INFORM, says KBYE and is silent then: a manager of ours
goes to the other node at once, a published one after 15 s. While no node serves, managers are kept, because
this node is the one that serves next.
"""

from collections.abc import Sequence

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import emq, front
from bstar.wire.dialect import Dialect
from bstar.wire.emq_jobs import encode_result
from bstar.wire.front import Order, Verb, peer_id
from bstar.wire.messages import Disconnect, ErrorCode, Failure, Final, FromPeer, Heartbeat, Ready
from bstar_broker.core.outputs import Dispatch, FrontSend, Output
from bstar_broker.fronts.emq.desk import NAME, WORKERS, Desk, label
from bstar_broker.fronts.emq.jobs import TIMEOUT, failure_of, from_body
from bstar_broker.fronts.emq.lanes import Job, Lanes, Manager

# A READY without end must not become credit without end.
SLOTS_MAX = 10_000
# The default queue's weight where a manager names no queues.
_DEFAULT_WEIGHT = 10
# A manager without a connection has this time for unread messages and a new connection.
_GONE_S = 0.5
# A manager ends a job at its timeout. Its REPLY has so long to come.
_OVERDUE_S = 30.0
# The front expires managers itself: the broker's lease of a lane is renewed by its own heartbeats.
_LEASE_BEAT_MS = 3_600_000
_LEASE_MS = 24 * _LEASE_BEAT_MS


class QueueTally(msgspec.Struct):
    """How long jobs of a queue took at managers, seconds."""

    last_s: float = 0.0
    longest_s: float = 0.0


class Managers:
    """``receive`` is how all parts of the front speak to the broker: it sees dispatches to managers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._inlet = desk.inlet
        self.by_id: dict[bytes, Manager] = {}
        self._lanes = Lanes(desk.inlet)
        self._registrations = 0
        self.tallies: dict[str, QueueTally] = {}

    def receive(self, message: FromPeer, now: float, user_id: str) -> list[Output]:
        """Give the broker a message of a peer."""
        return self._lanes.claimed(self._inlet.receive_message(message, now, user_id))

    # --- what managers say ----------------------------------------------------------------------------------

    def receive_manager(
        self, routing_id: bytes, message: emq.Message, user_id: str, now: float
    ) -> list[Output]:
        """A message of a manager has come."""
        if isinstance(message, emq.Inform):
            return self._register(routing_id, message, user_id, now)
        manager = self.by_id.get(routing_id)
        if manager is None or manager.user_id != user_id:
            return self._desk.note("unknown-manager", f"{type(message).__name__} before INFORM")
        manager.heard_at = now
        match message:
            case emq.Ready():
                return self._ready(manager, now)
            case emq.Reply():
                return self._end_job(manager, message, now)
            case emq.Goodbye():
                return self.forget(manager, now)
            case emq.Heartbeat():
                return []
        return self._desk.note("unexpected", f"a job manager sent {type(message).__name__}")

    def _register(self, routing_id: bytes, inform: emq.Inform, user_id: str, now: float) -> list[Output]:
        if inform.kind is not emq.Kind.WORKER:
            return self._desk.note("kind", "a scheduler at the job managers' door")
        outputs: list[Output] = []
        if (known := self.by_id.get(routing_id)) is not None:
            outputs += self.forget(known, now)
        queues = inform.queues or (emq.Queue(_DEFAULT_WEIGHT, self._desk.settings.default_queue),)
        manager = Manager(routing_id, user_id, queues, now, now)
        self.by_id[routing_id] = manager
        self._registrations += 1
        heaviest = {queue.name: queue for queue in sorted(queues, key=lambda queue: queue.weight)}
        for number, queue in enumerate(sorted(heaviest.values(), key=lambda queue: -queue.weight)):
            # No routing id: orders for an earlier registration of the same one must not meet this one.
            suffix = b"%d.%d" % (self._registrations, number)
            self._lanes.add(peer_id(NAME, WORKERS, suffix), manager, queue)
        for lane in list(manager.lanes):
            ready = Ready(
                lane.peer,
                Dialect.FRONT,
                (),
                lane.queue.encode(),
                credit=0,
                heartbeat_ms=_LEASE_BEAT_MS,
                expiry_ms=_LEASE_MS,
                beats_while_busy=True,
                group=b"%d" % self._registrations,
            )
            outputs += self.receive(ready, now, user_id)
        outputs.append(self._send(manager, emq.Ack(self._desk.new_id(), inform.msgid), now))
        # A published manager starts its processes when it hears the first one (EMQ-R-06).
        outputs += self._greet(manager, now)
        return outputs

    def _greet(self, manager: Manager, now: float) -> list[Output]:
        if self._keeps(now):
            manager.is_dismissed = False
            manager.sent_at = now
            return [self._desk.heartbeat(WORKERS, manager.routing_id)]
        return self._dismiss(manager)

    def _keeps(self, now: float) -> bool:
        """True if managers are to stay with this node."""
        return not self._lanes.is_closed and (self._inlet.is_active or not self._inlet.is_peer_serving(now))

    def _dismiss(self, manager: Manager) -> list[Output]:
        """Say KBYE once. Its jobs end before: a manager of ours drops the results of a router it left."""
        if manager.is_dismissed or manager.jobs:
            return []
        manager.is_dismissed = True
        return [self._desk.goodbye(WORKERS, manager.routing_id)]

    def _ready(self, manager: Manager, now: float) -> list[Output]:
        if manager.held:
            return self._dispatch(manager, manager.held.popleft(), now)
        if manager.free >= SLOTS_MAX:
            return self._desk.note("slots", f"a job manager has more than {SLOTS_MAX} free slots")
        return self._free(manager, now)

    def _free(self, manager: Manager, now: float) -> list[Output]:
        self._lanes.free_slot(manager)
        return self._share(manager, now)

    def _share(self, manager: Manager, now: float) -> list[Output]:
        return self._lanes.share(manager.lanes, now)

    def _end_job(self, manager: Manager, reply: emq.Reply, now: float) -> list[Output]:
        msgid = reply.about
        is_nameless = self._desk.settings.wire is emq.Wire.SPECIFICATION and msgid not in manager.jobs
        if is_nameless and not manager.has_overdue:
            # A manager that gives its REPLY a msgid of its own names no request: the oldest one has ended.
            msgid = next(iter(manager.jobs), b"")
        job = manager.jobs.pop(msgid, None)
        if job is None or reply.value is None:
            if job is not None:
                manager.jobs[msgid] = job
            return self._desk.note("late-reply", "a REPLY to no request that this job manager has")
        manager.processed += 1
        self._count(job, now)
        outputs = self._conclude(job, reply.value, now)
        if not self._keeps(now):
            outputs += self._dismiss(manager)
        return outputs

    def _conclude(self, job: Job, result: bytes, now: float) -> list[Output]:
        """Give the broker the end of a job. The slot stays taken until READY."""
        lane = job.lane
        if not self._lanes.has(lane):
            return self._desk.note("late-reply", "the broker has let this queue of the job manager go")
        lane.held -= 1
        outputs = self._share(lane.manager, now)
        failure = failure_of(result)
        ended: Failure | Final
        if failure is None:
            ended = Final(lane.peer, Dialect.FRONT, (), job.identity, [result])
        else:
            ended = Failure(lane.peer, job.identity, failure[0].value, failure[1].encode(), b"")
        outputs += self.receive(ended, now, lane.manager.user_id)
        return outputs + self._share(lane.manager, now)

    def _count(self, job: Job, now: float) -> None:
        queue = job.lane.queue
        tally = self.tallies.get(queue)
        if tally is None:
            if len(self.tallies) >= emq.QUEUES_MAX:
                return
            tally = self.tallies[queue] = QueueTally()
        tally.last_s = now - job.began_at
        tally.longest_s = max(tally.longest_s, tally.last_s)

    def forget(self, manager: Manager, now: float) -> list[Output]:
        """It is gone: the broker redelivers its jobs."""
        if self.by_id.get(manager.routing_id) is not manager:
            return []
        del self.by_id[manager.routing_id]
        lanes = list(manager.lanes)
        # None of its lanes may get what another one of them held.
        others = [other for lane in lanes for other in self._lanes.remove(lane)]
        outputs: list[Output] = []
        for lane in lanes:
            outputs += self._inlet.set_credit(lane.peer, 0, now)
        for order in reversed(manager.held):
            outputs += self._inlet.take_back(order.peer, order.identity, now)
        for lane in lanes:
            outputs += self.receive(Disconnect(lane.peer, Dialect.FRONT), now, manager.user_id)
        return outputs + self._lanes.share(others, now)

    # --- what the broker says -------------------------------------------------------------------------------

    def deliver(self, order: Order, now: float) -> list[Output]:
        """The broker has something for a lane."""
        lane = self._lanes.get(order.peer)
        if lane is None:
            return []
        manager = lane.manager
        match order.verb:
            case Verb.REQUEST:
                lane.held += 1
                if lane.claims:
                    lane.claims -= 1
                elif manager.free:
                    self._lanes.free_slot(manager, -1)
                else:
                    manager.held.append(order)
                    return self._share(manager, now)
                return [*self._dispatch(manager, order, now), *self._share(manager, now)]
            case Verb.HEARTBEAT:
                beat = Heartbeat(lane.peer, Dialect.FRONT, (), order.epoch)
                return self.receive(beat, now, manager.user_id)
            case Verb.DISCONNECT:
                outputs = self._lanes.share(self._lanes.remove(lane), now)
                text = "the broker does not take a queue of a job manager"
                return outputs + self._desk.note("queue-refused", text)
        return []

    def _dispatch(self, manager: Manager, order: Order, now: float) -> list[Output]:
        lane = self._lanes.get(order.peer)
        if lane is None:
            # The broker has let the queue go meanwhile; its slot is free.
            return self._free(manager, now)
        try:
            request = from_body(order.body, lane.queue, order.identity.hex().encode())
        except RemoteProtocolError as error:
            lane.held -= 1
            self._lanes.free_slot(manager)
            failed = Failure(lane.peer, order.identity, ErrorCode.INVALID.value, error.text.encode(), b"")
            outputs = self._desk.note(f"job-{error.reason}", error.text)
            outputs += self.receive(failed, now, manager.user_id)
            return outputs + self._share(manager, now)
        if request.msgid in manager.jobs:
            # Two clients may use the same words.
            request = msgspec.structs.replace(request, msgid=order.identity.hex().encode())
        timeout_s = request.headers.limit_s(self._desk.settings.job_timeout_s)
        manager.jobs[request.msgid] = Job(lane, order.identity, now, now + timeout_s + _OVERDUE_S)
        return [self._send(manager, request, now)]

    def _send(self, manager: Manager, message: emq.Message, now: float) -> FrontSend:
        manager.sent_at = now
        return self._desk.send(WORKERS, manager.routing_id, message)

    def unsent(self, output: FrontSend, is_gone: bool, now: float) -> list[Output]:
        """A message found no connection, or a full one. A request that was not sent ends the manager."""
        manager = self.by_id.get(output.frames[0])
        if manager is None:
            return []
        outputs: list[Output] = []
        if output.is_request:
            job = manager.jobs.pop(output.frames[4], None)
            if job is not None:
                outputs += self._inlet.take_back(job.lane.peer, job.identity, now)
        elif not is_gone:
            return []
        outputs += self._desk.note("manager-unreachable", "a job manager's connection is gone")
        return outputs + self.forget(manager, now)

    # --- time and roles -------------------------------------------------------------------------------------

    def beat(self, now: float) -> list[Output]:
        """Forget silent managers, and send HEARTBEATs that are due."""
        outputs: list[Output] = []
        settings = self._desk.settings
        keeps = self._keeps(now)
        for manager in list(self.by_id.values()):
            outputs += self._end_overdue(manager, now)
            if now >= manager.heard_at + settings.expires_s:
                outputs += self._desk.note("manager-expired", "a job manager is silent")
                outputs += self.forget(manager, now)
            elif not keeps and not manager.jobs:
                outputs += self._dismiss(manager)
            elif now >= manager.sent_at + settings.heartbeat_s or (keeps and manager.is_dismissed):
                outputs += self._greet(manager, now) if keeps else [self._beat(manager, now)]
        return outputs

    def _end_overdue(self, manager: Manager, now: float) -> list[Output]:
        """Its slot stays taken: a manager says READY when it has a new process."""
        outputs: list[Output] = []
        for msgid in [msgid for msgid, job in manager.jobs.items() if now >= job.ends_at]:
            manager.has_overdue = True
            outputs += self._desk.note("job-overdue", "a job manager does not end a job at its timeout")
            outputs += self._conclude(manager.jobs.pop(msgid), encode_result(TIMEOUT), now)
        return outputs

    def _beat(self, manager: Manager, now: float) -> FrontSend:
        manager.sent_at = now
        return self._desk.heartbeat(WORKERS, manager.routing_id)

    def resume(self, now: float) -> list[Output]:
        """This node serves from now on: all managers may stay."""
        return [output for manager in self.by_id.values() for output in self._greet(manager, now)]

    def away(self, gap_s: float) -> None:
        """The process was away, and managers' messages are unread."""
        for manager in self.by_id.values():
            manager.heard_at += gap_s
            for job in manager.jobs.values():
                job.ends_at += gap_s

    def gone(self, routing_id: bytes, now: float) -> None:
        """Its connection has ended. Its last messages may be unread, and it may come back at once."""
        manager = self.by_id.get(routing_id)
        if manager is not None:
            expires_s = self._desk.settings.expires_s
            manager.heard_at = min(manager.heard_at, now + _GONE_S - expires_s)

    def close(self, now: float) -> list[Output]:
        """Take no more jobs; those under way end. KBYE goes to each manager after its last one."""
        self._lanes.is_closed = True
        outputs: list[Output] = []
        for manager in list(self.by_id.values()):
            outputs += self._share(manager, now)
            outputs += self._dismiss(manager)
        return outputs

    def show(self, now: float) -> dict[str, object]:
        """ROUTER_SHOW_WORKERS."""
        workers = {
            label(each.routing_id): {
                "queues": [[queue.weight, queue.name] for queue in each.queues],
                "hb": each.heard_at,
                "available_slots": each.free,
            }
            for each in self.by_id.values()
        }
        queues: dict[str, list[list[object]]] = {}
        for each in self.by_id.values():
            for queue in each.queues:
                queues.setdefault(queue.name, []).append([queue.weight, label(each.routing_id)])
        return {"connected_workers": workers, "connected_queues": queues}


def requests_in(outputs: Sequence[Output]) -> bool:
    """True if the last of these outputs dispatches a request to a worker of any dialect."""
    return bool(outputs) and type(outputs[-1]) is Dispatch


def is_lane(peer: bytes) -> bool:
    """True if the broker's peer stands behind the managers' door."""
    return front.split_peer_id(peer)[1] == WORKERS
