"""The queue of the Pirates, sans-I/O: workers of both patterns and REQ clients of one service.

To the broker a Pirate worker is a worker with credit 1, so it decides who is free: a heartbeat never makes a
busy worker eligible (PPP-B-04). The front only reads and writes frames; it has no table of workers of its
own.

A Simple Pirate worker has no heartbeats. It counts as gone when its connection ends, when a REQUEST cannot be
sent, or when it holds a request for longer than ``timing.busy_timeout_s``. Each message that it sends says
that it is ready. So a reply from a worker that counts as gone registers it: its REQ socket could not send
READY again.

A Paranoid Pirate worker that the node does not know, after a restart or a long silence, gets no message. It
takes the queue for dead, connects anew and begins with READY (PPP-W-01, PPP-W-02). To register it by its
heartbeat would be faster, but it may be busy with a request of the time before.

A client hears a reply or nothing: neither pattern has errors. So a passive node is silent, too, and the
client's timeout leads it to the other node.
"""

from collections import Counter

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import pirate
from bstar.wire.dialect import Dialect, Envelope
from bstar.wire.front import Order, Verb, peer_id, split_peer_id
from bstar.wire.messages import NEVER_MS, Disconnect, Final, Heartbeat, Ready, Request
from bstar.wire.pirate import Beat, Reply
from bstar_broker.core.front import Inlet
from bstar_broker.core.outputs import FrontSend, Output
from bstar_broker.core.snapshot import FrontState

NAME = "ppp"
CLIENTS, WORKERS = "clients", "workers"

# What the front counts. ``unanswered`` are requests that ended with an error, which their clients do not
# hear; ``late`` are replies to a request that their worker does not hold any more; ``strays`` are messages of
# workers that the node does not know.
EVENTS = ("requests", "replies", "unanswered", "ready", "heartbeats", "late", "strays", "unread")


class PirateSettings(msgspec.Struct, frozen=True):
    """``service`` is the one of all Pirates. A Paranoid worker may miss ``liveness`` heartbeats."""

    service: bytes
    heartbeat_ms: int
    liveness: int
    message_bytes_max: int
    message_frames_max: int


class PirateFront:
    """See ``Front``. The doors are CLIENTS and WORKERS."""

    name = NAME

    def __init__(self, inlet: Inlet, settings: PirateSettings) -> None:
        self._inlet = inlet
        self._settings = settings
        self._clients = 0
        self._counts = Counter(dict.fromkeys(EVENTS, 0))

    # --- what Pirates say -----------------------------------------------------------------------------------

    def receive(self, door: str, frames: list[bytes], user_id: str, now: float) -> list[Output]:
        """A message of a client or a worker, the routing id first."""
        peer, settings = peer_id(NAME, door, frames[0]), self._settings
        try:
            pirate.check_bounds(frames, settings.message_bytes_max, settings.message_frames_max)
            if door == CLIENTS:
                ask = pirate.decode_client(frames)
                self._counts["requests"] += 1
                request = Request(peer, Dialect.FRONT, ask.envelope, settings.service, ask.body)
                return self._inlet.receive_message(request, now, user_id)
            message = pirate.decode_worker(frames)
        except RemoteProtocolError as error:
            return self._receive_unread(door, peer, error, user_id, now)
        match message:
            case Reply():
                return self._receive_reply(peer, message, user_id, now)
            case Beat():
                self._counts["heartbeats"] += 1
                return self._renew(peer, user_id, now)
        self._counts["ready"] += 1
        return self._register(peer, message.envelope, user_id, now)

    def _register(self, peer: bytes, envelope: Envelope, user_id: str, now: float) -> list[Output]:
        """It is ready. If it was registered, a new conversation begins, and what it held goes to others."""
        outputs = self._lose(peer, user_id, now)
        beat_ms = self._settings.heartbeat_ms
        expiry_ms = beat_ms * self._settings.liveness
        if envelope == pirate.SIMPLE:
            beat_ms = expiry_ms = NEVER_MS
        ready = Ready(
            peer, Dialect.FRONT, envelope, self._settings.service, heartbeat_ms=beat_ms, expiry_ms=expiry_ms
        )
        return outputs + self._inlet.receive_message(ready, now, user_id)

    def _lose(self, peer: bytes, user_id: str, now: float) -> list[Output]:
        if peer not in self._inlet.workers:
            return []
        return self._inlet.receive_message(Disconnect(peer, Dialect.FRONT), now, user_id)

    def _renew(self, peer: bytes, user_id: str, now: float) -> list[Output]:
        """A sign of life (PPP-G-01). The node is silent to a worker that it does not know."""
        if peer not in self._inlet.workers:
            return self._note_stray()
        return self._inlet.receive_message(Heartbeat(peer, Dialect.FRONT, ()), now, user_id)

    def _receive_reply(self, peer: bytes, reply: Reply, user_id: str, now: float) -> list[Output]:
        worker = self._inlet.workers.get(peer)
        if worker is not None and reply.address in worker.in_flight:
            final = Final(peer, Dialect.FRONT, (), reply.address, reply.body)
            return self._inlet.receive_message(final, now, user_id)
        outputs: list[Output] = []
        if worker is None:
            outputs += self._note_stray()
        else:
            self._counts["late"] += 1
            outputs += self._inlet.note("ppp-late-reply", "a worker answers a request that it does not hold")
        if reply.envelope == pirate.SIMPLE and (worker is None or worker.held):
            # A REQ socket that has sent a message waits for the next request.
            return outputs + self._register(peer, reply.envelope, user_id, now)
        return outputs if worker is None else outputs + self._renew(peer, user_id, now)

    def _note_stray(self) -> list[Output]:
        self._counts["strays"] += 1
        text = "a Pirate worker that this node does not know; it has to send READY on a new connection"
        return self._inlet.note("ppp-unknown-worker", text)

    def _receive_unread(
        self, door: str, peer: bytes, error: RemoteProtocolError, user_id: str, now: float
    ) -> list[Output]:
        """Count it. It registers no worker. If the sender holds a request, this was to be the reply."""
        self._counts["unread"] += 1
        outputs = self._inlet.note(f"ppp-{error.reason}", error.text)
        worker = self._inlet.workers.get(peer) if door == WORKERS else None
        if worker is None or not worker.held:
            return outputs
        if worker.envelope == pirate.SIMPLE:
            return outputs + self._register(peer, worker.envelope, user_id, now)
        return outputs + self._lose(peer, user_id, now)

    # --- what Pirates hear ----------------------------------------------------------------------------------

    def deliver(self, order: Order, now: float) -> list[Output]:
        """An order of the broker to a client or a worker."""
        _, door, to = split_peer_id(order.peer)
        frames: list[bytes] | None = None
        match order.verb:
            case Verb.REQUEST:
                frames = pirate.encode_request(to, order.envelope, order.identity, order.body)
            case Verb.HEARTBEAT if order.envelope != pirate.SIMPLE:
                frames = pirate.encode_heartbeat(to, order.envelope)
            case Verb.FINAL:
                self._counts["replies"] += 1
                frames = pirate.encode_answer(to, order.envelope, order.body)
            case Verb.FAILURE | Verb.BUSY | Verb.NOT_ACTIVE:
                self._counts["unanswered"] += 1
        return [] if frames is None else [FrontSend(NAME, door, frames)]

    def unsent(self, output: FrontSend, is_gone: bool, now: float) -> list[Output]:
        """A peer has no connection, or a full one."""
        peer = peer_id(NAME, output.door, output.frames[0])
        if output.door == WORKERS and not pirate.is_heartbeat(output.frames):
            return self._inlet.worker_unreached(peer, pirate.address_of(output.frames), now)
        return self._inlet.peer_unreached(peer, now, is_gone=is_gone)

    def peer_gone(self, door: str, routing_id: bytes, now: float) -> list[Output]:
        """A connection has ended: a worker's requests go to others, a client's leave the queue."""
        peer = peer_id(NAME, door, routing_id)
        if door == CLIENTS:
            return self._inlet.client_gone(peer, now)
        if peer in self._inlet.workers:
            return self._inlet.peer_unreached(peer, now, is_gone=True)
        return []

    # --- the rest of a front --------------------------------------------------------------------------------

    def connected(self, door: str, count: int, now: float) -> list[Output]:
        """Clients have no other sign of presence than their connections."""
        if door == CLIENTS:
            self._clients = count
        return []

    def activate(self, epoch: int, now: float) -> list[Output]:
        """Nothing to say: neither pattern has roles."""
        return []

    def deactivate(self, now: float) -> list[Output]:
        """Nothing to say."""
        return []

    def handle_timer(self, now: float) -> list[Output]:
        """The broker has all deadlines."""
        return []

    def next_deadline(self) -> float | None:
        """None."""
        return None

    def state(self, now: float) -> FrontState:
        """Connections of clients, and registered workers of each pattern."""
        ours = [worker.envelope for worker in self._inlet.workers.values() if worker.dialect == NAME]
        simple = ours.count(pirate.SIMPLE)
        peers = {"clients": self._clients, "simple_workers": simple, "paranoid_workers": len(ours) - simple}
        return FrontState(NAME, peers, dict(self._counts))
