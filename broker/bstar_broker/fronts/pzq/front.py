"""PZQ, sans-I/O: producers, consumers and monitors in the frames of ``bstar.wire.pzq``.

A producer's message becomes a durable request to one service, with no expiry and no end of its attempts. It
is acknowledged when it is on the disks that count. To the broker the consumers' door is one worker of that
service with ``in_flight_max`` as its credit, while it has a connection. An acknowledgement is its reply, and
closes the request in the same entry of the store's log. Anything else, or silence, is a failed attempt, and
the store makes the message pending again at once.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from bstar.base.printable import printable
from bstar.errors import RemoteProtocolError
from bstar.wire import durable, mmi, pzq
from bstar.wire.dialect import Dialect, Frames
from bstar.wire.durable import Service, Submit
from bstar.wire.front import Order, Verb, peer_id, split_peer_id
from bstar.wire.messages import Disconnect, ErrorCode, Failure, Final, Heartbeat, Ready, Request
from bstar_broker.core.authority import OWN
from bstar_broker.core.front import Inlet
from bstar_broker.core.outputs import FrontSend, Output
from bstar_broker.core.snapshot import FrontState
from bstar_broker.fronts.pzq.deliveries import Deliveries, Delivery
from bstar_broker.store.core.runner import request_of

NAME = "pzq"
PRODUCERS, CONSUMERS, MONITOR = "producers", "consumers", "monitor"

# The worker lives in the broker's process, so only a bug could make it silent.
_HEARTBEAT_MS = 60_000
_EXPIRY_MS = 3_600_000
# After the broker has sent the worker away.
_REGISTER_PAUSE_S = 1.0
# A full socket is tried again after this time, and twice as long while it stays full.
_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_SAME_KEY_PAUSE_MS = 1_000
# What the front counts. ``unread`` are messages that could not be read.
EVENTS = ("stored", "refused", "done", "requeued", "expired", "unread")
_NOT_ACTIVE = "this node does not serve (failover): send it to the other node"


class PzqSettings(msgspec.Struct, frozen=True):
    """``in_flight_max``: messages that consumers have at once. Bounds of a producer's message: its bytes and
    frames.
    """

    service: bytes = b"pzq"
    ack_timeout_s: float = 5.0
    in_flight_max: int = 256
    message_bytes_max: int = 64 << 20
    message_frames_max: int = 1_000


class PzqFront:
    """A ``Front``. ``wall_us`` returns Unix microseconds, ``random`` so many unguessable bytes."""

    name = NAME

    def __init__(
        self,
        inlet: Inlet,
        settings: PzqSettings,
        *,
        wall_us: Callable[[], int],
        random: Callable[[int], bytes],
    ) -> None:
        self._inlet = inlet
        self._settings = settings
        self._wall_us = wall_us
        self._random = random
        # All consumers are this worker to the broker.
        self._worker = Ready(
            peer_id(NAME, CONSUMERS, b""),
            Dialect.FRONT,
            (),
            settings.service,
            credit=settings.in_flight_max,
            heartbeat_ms=_HEARTBEAT_MS,
            expiry_ms=_EXPIRY_MS,
            beats_while_busy=True,
        )
        self._deliveries = Deliveries()
        self._connections: Counter[str] = Counter()
        self._counts = Counter(dict.fromkeys(EVENTS, 0))
        self._is_serving = False
        self._is_registered = False
        self._register_at: float | None = None
        # The moment of the last burst of sends, how many it had, and how many of them found no room.
        self._burst: tuple[float, int] = (0.0, 0)
        self._failed = 0
        self._pause_s = _PAUSE_MIN_S
        self._retry_at: float | None = None

    # --- what comes in --------------------------------------------------------------------------------------

    def receive(self, door: str, frames: list[bytes], user_id: str, now: float) -> list[Output]:
        """A message of a producer, a consumer or a monitor."""
        if door == CONSUMERS:
            refused = self._inlet.vet(self._worker, user_id, now)
            try:
                return self._hear_consumer(frames, now) if refused is None else refused
            except RemoteProtocolError as error:
                return self._unread("pzq-consumers", error.text)
        # libzmq drops a message that is a routing id alone.
        routing_id, *rest = frames
        if door == MONITOR:
            refused = self._inlet.vet(_look(routing_id), user_id, now)
            return self._hear_monitor(routing_id, rest, now) if refused is None else refused
        return self._hear_producer(routing_id, rest, user_id, now)

    def _hear_producer(self, routing_id: bytes, frames: Frames, user_id: str, now: float) -> list[Output]:
        settings = self._settings
        try:
            message_id, body = self._read_message(frames)
        except RemoteProtocolError as error:
            self._counts["refused"] += 1
            refusal = FrontSend(NAME, PRODUCERS, [routing_id, *pzq.not_stored(frames[0], error.text)])
            return [*self._unread("pzq-producers", error.text), refusal]
        submit = Submit(
            durable.new_id(self._wall_us() // 1000, self._random(10)),
            settings.service,
            body,
            expires_ms=durable.FOREVER_MS,
            attempts_max=durable.ENDLESS,
        )
        asker = peer_id(NAME, PRODUCERS, routing_id)
        request = Request(asker, Dialect.FRONT, (message_id,), Service.SUBMIT.value, [durable.encode(submit)])
        return self._inlet.receive_message(request, now, user_id)

    def _read_message(self, frames: Frames) -> tuple[bytes, Frames]:
        message_id, body = pzq.read_message(frames)
        bytes_max, frames_max = self._settings.message_bytes_max, self._settings.message_frames_max
        if sum(map(len, body)) > bytes_max or len(body) > frames_max:
            text = f"a message has at most {bytes_max} bytes and {frames_max} frames (limits): not saved"
            raise RemoteProtocolError("pzq", text)
        return message_id, body

    def _hear_consumer(self, frames: Frames, now: float) -> list[Output]:
        key, is_done = pzq.read_ack(frames)
        if not self._is_serving:
            return self._inlet.note("pzq-consumers", "an acknowledgement after the node ceased to serve")
        outputs: list[Output] = []
        delivery = self._deliveries.end(key)
        if is_done and not self._forget(key, delivery):
            outputs += self._inlet.note("pzq-store", "the store cannot take an acknowledgement now")
            is_done = False
        if delivery is None and is_done:
            self._deliveries.remember(key)
        if delivery is not None and is_done:
            outputs += self._inlet.receive_message(self._done(delivery.identity), now, OWN)
        elif delivery is not None:
            outputs += self._give_back(delivery, "a consumer did not take it", now)
        self._counts["done" if is_done else "requeued"] += is_done or delivery is not None
        self._pause_s = _PAUSE_MIN_S
        return outputs + self._send_held(now)

    def _unread(self, reason: str, text: str) -> list[Output]:
        self._counts["unread"] += 1
        return self._inlet.note(reason, text)

    def _forget(self, key: bytes, delivery: Delivery | None) -> bool:
        """Close the request with this key, in flight or not (PZQ-R-01). False if the store cannot do so."""
        request = pzq.request_of(key) if delivery is None else request_of(delivery.identity)
        return request is None or self._inlet.forget_stored(request)

    def _hear_monitor(self, routing_id: bytes, frames: Frames, now: float) -> list[Output]:
        envelope, command = pzq.read_command(frames)
        outputs: list[Output] = []
        if command == pzq.MONITOR:
            text = pzq.figures(self._figures(now))
        else:
            why = f'no command "{printable(command, 60)}": the only one is MONITOR'
            outputs += self._unread("pzq-monitor", why)
            text = f"error: {why}\n".encode()
        return [*outputs, FrontSend(NAME, MONITOR, [routing_id, *envelope, text])]

    def _figures(self, now: float) -> dict[str, int]:
        """The names of the published program, and those of its description (PZQ-R-02)."""
        store, deliveries = self._inlet.store_state(now), self._deliveries
        disk = None if store is None else store.disk
        return {
            "messages": 0 if store is None else store.pending,
            "messages_inflight": len(deliveries),
            "messages_in_flight": len(deliveries),
            "db_size": 0 if disk is None else disk.file_bytes,
            "inflight_db_size": deliveries.size_bytes,
            "in_flightdb_size": deliveries.size_bytes,
            "syncs": 0 if disk is None else sum(disk.sync_counts),
            "expired_messages": self._counts["expired"],
        }

    # --- what the broker says -------------------------------------------------------------------------------

    def deliver(self, order: Order, now: float) -> list[Output]:
        """An answer for a producer, or something for the worker that stands for all consumers."""
        _, door, routing_id = split_peer_id(order.peer)
        if door == CONSUMERS:
            return self._hear_broker(order, now)
        [message_id] = order.envelope
        if order.verb is Verb.FINAL:
            self._counts["stored"] += 1
            answer = pzq.stored(message_id)
        else:
            # One that treats all but 1 as a failure sends it again at once, to the other node in its turn.
            self._counts["refused"] += 1
            is_passive = order.verb is Verb.NOT_ACTIVE
            answer = pzq.not_stored(message_id, _NOT_ACTIVE if is_passive else order.text)
        return [FrontSend(NAME, door, [routing_id, *answer])]

    def _hear_broker(self, order: Order, now: float) -> list[Output]:
        match order.verb:
            case Verb.REQUEST:
                stored = request_of(order.identity)
                # Others may ask for the service without the store.
                request = blake2b(order.identity, digest_size=16).digest() if stored is None else stored
                key = pzq.key_of(request)
                if self._deliveries.recall(key):
                    # Its end has not been applied yet.
                    return self._inlet.receive_message(self._done(order.identity), now, OWN)
                if not self._deliveries.add(key, order.identity, list(map(bytes, order.body))):
                    # Clients choose ids, and may choose one that another request's identity hashes to.
                    text = b"another message in flight has its key"
                    return self._fail(order.identity, text, now, _SAME_KEY_PAUSE_MS)
                return self._send_held(now)
            case Verb.HEARTBEAT:
                beat = Heartbeat(self._worker.sender, Dialect.FRONT, ())
                return self._inlet.receive_message(beat, now, OWN)
            case Verb.DISCONNECT:
                # What it had goes to others.
                self._is_registered = False
                self._deliveries.clear()
                self._register_at = now + _REGISTER_PAUSE_S
        return []

    def unsent(self, output: FrontSend, is_gone: bool, now: float) -> list[Output]:
        """A message for a consumer waits for room; an answer is lost with its asker."""
        if output.door != CONSUMERS:
            peer = peer_id(NAME, output.door, output.frames[0])
            return self._inlet.peer_unreached(peer, now, is_gone=is_gone)
        self._deliveries.hold(output.frames[0])
        self._failed += 1
        if self._retry_at is None:
            self._retry_at = now + self._pause_s
        return []

    # --- consumers ------------------------------------------------------------------------------------------

    def _send_held(self, now: float) -> list[Output]:
        """Send what waits: one message for each consumer at a moment, since its socket has room for one."""
        consumers = self._connections[CONSUMERS]
        if not consumers:
            return self._retire(now)
        at, count = self._burst
        if at != now:
            count = self._failed = 0
        outputs: list[Output] = []
        timeout_s = self._settings.ack_timeout_s
        while count < consumers and (delivery := self._deliveries.take(now + timeout_s)) is not None:
            count += 1
            frames = pzq.delivery(delivery.key, self._wall_us(), round(timeout_s * 1_000_000), delivery.body)
            outputs.append(FrontSend(NAME, CONSUMERS, frames))
        self._burst = now, count
        if self._deliveries.held and self._retry_at is None:
            self._retry_at = now + self._pause_s
        return outputs

    def _give_back(self, delivery: Delivery, text: str, now: float) -> list[Output]:
        """The message is pending again, at once."""
        return self._fail(delivery.identity, text.encode(), now, 0)

    def _done(self, identity: bytes) -> Final:
        # A body has one frame or more: a native client drops a reply without any.
        return Final(self._worker.sender, Dialect.FRONT, (), identity, [b""])

    def _fail(self, identity: bytes, text: bytes, now: float, retry_ms: int) -> list[Output]:
        failure = Failure(self._worker.sender, identity, ErrorCode.RETRY, text, b"", retry_ms=retry_ms)
        return self._inlet.receive_message(failure, now, OWN)

    def connected(self, door: str, count: int, now: float) -> list[Output]:
        """Consumers have come or gone."""
        before, self._connections[door] = self._connections[door], count
        if door != CONSUMERS or not self._is_serving:
            return []
        self._pause_s = _PAUSE_MIN_S
        if count:
            return self._offer(now) + self._send_held(now)
        return self._inlet.set_credit(self._worker.sender, 0, now) + self._retire(now) if before else []

    def _retire(self, now: float) -> list[Output]:
        """No consumer is there: nothing waits for room, and the worker leaves when nothing is in flight."""
        outputs: list[Output] = []
        for delivery in self._deliveries.end_held():
            outputs += self._give_back(delivery, "no consumer is connected", now)
        return outputs if len(self._deliveries) else outputs + self._leave(now)

    def _leave(self, now: float) -> list[Output]:
        if not self._is_registered:
            return []
        self._is_registered = False
        return self._inlet.receive_message(Disconnect(self._worker.sender, Dialect.FRONT), now, OWN)

    def peer_gone(self, door: str, routing_id: bytes, now: float) -> list[Output]:
        """Producers and monitors have nothing here that must end with them."""
        return []

    def _offer(self, now: float) -> list[Output]:
        """Take messages from now on."""
        if self._is_registered:
            return self._inlet.set_credit(self._worker.sender, self._worker.credit, now)
        self._is_registered, self._register_at = True, None
        return self._inlet.receive_message(self._worker, now, OWN)

    # --- role and time --------------------------------------------------------------------------------------

    def activate(self, epoch: int, now: float) -> list[Output]:
        """The node serves."""
        self._is_serving = True
        return self._offer(now) if self._connections[CONSUMERS] else []

    def deactivate(self, now: float) -> list[Output]:
        """The node serves no more: the other one delivers what was not acknowledged."""
        self._is_serving = False
        self._deliveries.clear()
        self._retry_at = self._register_at = None
        return self._leave(now)

    def handle_timer(self, now: float) -> list[Output]:
        """Acknowledgements that are late, room in the socket, and a worker that was sent away."""
        outputs: list[Output] = []
        for delivery in self._deliveries.end_late(now):
            self._counts["expired"] += 1
            outputs += self._give_back(delivery, "no acknowledgement came in time", now)
        if not self._connections[CONSUMERS]:
            outputs += self._retire(now)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            is_stuck = self._failed >= self._burst[1]
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S) if is_stuck else _PAUSE_MIN_S
            outputs += self._send_held(now)
        if self._register_at is not None and now >= self._register_at:
            self._register_at = None
            if self._is_serving and self._connections[CONSUMERS]:
                outputs += self._offer(now)
        return outputs

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        due = [at for at in (self._deliveries.late_at(), self._retry_at, self._register_at) if at is not None]
        return min(due, default=None)

    def state(self, now: float) -> FrontState:
        """A snapshot."""
        held = self._deliveries.held
        levels = {"in_flight": len(self._deliveries) - held, "held": held}
        peers = {door: self._connections[door] for door in (PRODUCERS, CONSUMERS)}
        return FrontState(NAME, peers, dict(self._counts), levels=levels)


def _look(routing_id: bytes) -> Request:
    """What a monitor's question stands for: both tell a node's figures."""
    return Request(peer_id(NAME, MONITOR, routing_id), Dialect.FRONT, (), mmi.Service.STATE.value, [])
