"""PZQ's peers: a producer that lists what is not acknowledged, a consumer that drops what has expired.

    producer   DEALER → ROUTER   [message id] [] [body…]                       answer [message id] [status] []
    consumer   ROUTER ← DEALER   [key] [sent time] [ack timeout] [] [body…]    answer [key] [status]

Each is one socket at all endpoints, those of both nodes of a pair or those of published queues. The passive
node answers a producer ``0``; the next attempt goes to the other one. One thread at a time may use a peer.
"""

import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import zmq

from bstar.base.closing import Closing
from bstar.base.deadlines import Deadlines
from bstar.base.endpoints import parse_endpoint
from bstar.errors import BusyError, CallTimeoutError, ConfigurationError, RemoteProtocolError
from bstar.net.sockets import receive, send
from bstar.security import Security
from bstar.wire import pzq
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.arguments.bodies import to_frames
from bstar_client.arguments.checks import to_count, to_seconds
from bstar_client.core.calls import Body

__all__ = ["PzqConsumer", "PzqMessage", "PzqProducer"]

# What a refused message waits for: at once would be a storm while no node serves.
_REFUSED_PAUSE_S = 0.02
# Acknowledged keys that a consumer remembers.
_KEYS_MAX = 10_000
_LINGER_MS = 1_000


class _Peer(Closing):
    def __init__(self, kind: int, endpoints: Sequence[str], security: Security | None) -> None:
        if isinstance(endpoints, str) or not endpoints:
            raise ConfigurationError("endpoints is a list, one endpoint at least")
        if security is not None and len(security.servers) not in (1, len(endpoints)):
            raise ConfigurationError("security has one server's key, or one for each endpoint in their order")
        self.counts: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.linger = _LINGER_MS
        self._socket.ipv6 = True
        self._socket.maxmsgsize = MESSAGE_BYTES_MAX
        # A message is for a connection that exists: the other node takes what this one cannot.
        self._socket.immediate = True
        if security is not None:
            self._socket.curve_publickey = security.key.public
            self._socket.curve_secretkey = security.key.secret
        for number, endpoint in enumerate(endpoints):
            try:
                parse_endpoint(endpoint, bind=False)
            except ValueError as error:
                self.close()
                raise ConfigurationError(f"endpoints: {error}") from error
            if security is not None:
                self._socket.curve_serverkey = security.servers[number % len(security.servers)]
            self._socket.connect(endpoint)

    def close(self) -> None:
        """Free the socket; what was just sent has a second to leave. Idempotent."""
        self._socket.close()
        self._context.term()


class PzqProducer(_Peer):
    """Sends messages and lists those that are not acknowledged (PZQ-P-01).

        with PzqProducer(["tcp://node1:11131", "tcp://node2:11131"]) as producer:
            producer.send(b"3 apples")
            producer.flush()

    Any status but ``1``, and ``retry_s`` of silence, is a failure: the message is sent again, and one whose
    ``1`` was lost is then stored twice. ``security`` has the key of one server for all endpoints, or of each
    in their order. ``counts``: ``stored``, ``failed`` (answers other than ``1``), ``invalid`` messages.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        retry_s: float = 1.0,
        outstanding_max: int = 10_000,
        security: Security | None = None,
    ) -> None:
        self._retry_s = to_seconds(retry_s, "retry_s")
        self._outstanding_max = to_count(outstanding_max, "outstanding_max", 1)
        self._numbers = itertools.count(1)
        # By id: the frames, and when to send them (again).
        self._sent: dict[bytes, tuple[list[bytes], float]] = {}
        self._due: Deadlines[bytes] = Deadlines(lambda each, at: self._sent.get(each, (b"", None))[1] == at)
        super().__init__(zmq.DEALER, endpoints, security)

    @property
    def unacknowledged(self) -> list[list[bytes]]:
        """The bodies of the messages that are not known to be stored, in their order."""
        return [frames for _, (frames, _) in sorted(self._sent.items(), key=lambda item: int(item[0]))]

    def send(self, body: Body) -> None:
        """Send a message, and read what has come. BusyError if ``outstanding_max`` are not acknowledged."""
        frames = to_frames(body)
        self._turn(0.0)
        if len(self._sent) >= self._outstanding_max:
            raise BusyError(f"{len(self._sent)} messages are not acknowledged: call flush()")
        self._put(b"%d" % next(self._numbers), frames, 0.0)
        self._turn(0.0)

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until all are stored. CallTimeoutError: ``unacknowledged`` are not known to be."""
        until = time.monotonic() + to_seconds(timeout, "timeout")
        while self._sent:
            if time.monotonic() >= until:
                text = f"{len(self._sent)} messages were not acknowledged in time; some may be stored"
                raise CallTimeoutError(text, may_have_executed=True)
            self._turn(min(_REFUSED_PAUSE_S, self._retry_s))

    def _turn(self, wait_s: float) -> None:
        """Read the answers that are there, and send what is due."""
        self._socket.poll(round(wait_s * 1000))
        now = time.monotonic()
        while True:
            try:
                message_id, is_stored = pzq.read_answer(receive(self._socket))
            except zmq.Again:
                break
            except RemoteProtocolError:
                self.counts["invalid"] += 1
                continue
            if message_id in self._sent:
                self.counts["stored" if is_stored else "failed"] += 1
                frames, _ = self._sent.pop(message_id)
                if not is_stored:
                    self._put(message_id, frames, now + _REFUSED_PAUSE_S)
        due = self._due.pop_due(now)
        # Without a connection, or with full ones, all stay as they are, in their order.
        while self._socket.poll(0, zmq.POLLOUT) and (each := next(due, None)) is not None:
            frames, _ = self._sent[each]
            with suppress(zmq.Again):  # the connection has just ended: as if the message were lost on its way
                send(self._socket, [each, b"", *frames])
            self._put(each, frames, now + self._retry_s)

    def _put(self, message_id: bytes, frames: list[bytes], due: float) -> None:
        """Send it when it is due."""
        self._sent[message_id] = frames, due
        self._due.add(message_id, due)


class PzqMessage(msgspec.Struct, frozen=True):
    """A message at a consumer. ``key`` names it in every delivery; ``sent_at`` is Unix seconds."""

    frames: tuple[bytes, ...]
    key: bytes
    sent_at: float
    peer: bytes


class PzqConsumer(_Peer):
    """Receives messages, and acknowledges them (PZQ-C-01).

        with PzqConsumer(["tcp://node1:11132", "tcp://node2:11132"]) as consumer:
            while (message := consumer.receive(timeout=60)) is not None:
                work(message.frames)
                consumer.done(message)

    A message older than its ack timeout is dropped: the queue delivers it again (PZQ-C-02). That compares the
    queue's clock with this one, so say ``drops_expired=False`` where they may differ by as much. A message
    that ``done`` was called for is acknowledged again and comes no more (PZQ-C-03), while it is among the
    last 10,000. ``counts``: ``expired``, ``repeated``, ``invalid`` messages.
    """

    def __init__(
        self, endpoints: Sequence[str], *, drops_expired: bool = True, security: Security | None = None
    ) -> None:
        self._drops_expired = drops_expired
        self._done: OrderedDict[bytes, None] = OrderedDict()
        super().__init__(zmq.ROUTER, endpoints, security)

    def receive(self, timeout: float = 30.0) -> PzqMessage | None:
        """The next message, None if none comes in time."""
        until = time.monotonic() + to_seconds(timeout, "timeout", may_be_zero=True)
        while self._socket.poll(max(0, round((until - time.monotonic()) * 1000))):
            peer, *frames = receive(self._socket)
            try:
                key, sent_us, ack_timeout_us, body = pzq.read_delivery(frames)
            except RemoteProtocolError:
                self.counts["invalid"] += 1
                continue
            message = PzqMessage(tuple(body), key, sent_us / 1e6, peer)
            if key in self._done:
                self.counts["repeated"] += 1
                self.done(message)
            elif self._drops_expired and time.time_ns() // 1000 > sent_us + ack_timeout_us:
                self.counts["expired"] += 1
            else:
                return message
        return None

    def done(self, message: PzqMessage) -> None:
        """Acknowledge: the queue deletes it."""
        self._done[message.key] = None
        self._done.move_to_end(message.key)
        while len(self._done) > _KEYS_MAX:
            self._done.popitem(last=False)
        send(self._socket, [message.peer, message.key, pzq.DONE])

    def again(self, message: PzqMessage) -> None:
        """Give it back: the queue delivers it at once."""
        send(self._socket, [message.peer, message.key, pzq.FAILED])
