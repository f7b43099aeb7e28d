"""Peers that write every byte themselves: the broker is judged by the specification, not by its own codecs.

A conformance test that builds its frames with the code under test proves only that the code agrees with
itself. So nothing here knows bstar: the frames are spelled out from the published frame tables (7/MDP,
18/MDP, 8/MMI, ZMTP 3.0) over plain sockets. `Peers` holds the peers of one test: one context, one endpoint,
and the heartbeats of the workers that are meant to live, which go out whenever any peer of the test waits.
There are no threads, so a test reads in the order in which it runs.
"""

from __future__ import annotations

import contextlib
import socket as plain
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import zmq
from typing_extensions import override

# How long something that must come may take. Generous: it bounds a hang, it measures nothing.
WAIT_S = 30.0
# How long a peer waits before it looks after the heartbeats of the test's workers again.
SLICE_S = 0.01

EMPTY = b""
CLIENT_01 = b"MDPC01"
WORKER_01 = b"MDPW01"
CLIENT_02 = b"MDPC02"
WORKER_02 = b"MDPW02"


class NothingArrivedError(AssertionError):
    """A message that had to come did not come in time."""


@dataclass(frozen=True)
class Job:
    """One REQUEST as a worker saw it: the frames on the wire, and what they mean."""

    frames: tuple[bytes, ...]
    client: bytes
    body: tuple[bytes, ...]


PeerT = TypeVar("PeerT", bound="Peer")


class Peers:
    """The peers of one test. Closing it closes every socket and ends the context."""

    def __init__(
        self,
        endpoint: str,
        *,
        heartbeat_interval_s: float,
        on_trouble: Callable[[], str] = lambda: "",
        context: Any = None,
        clock: Any = time,
    ) -> None:
        self.endpoint = endpoint
        self.heartbeat_interval_s = heartbeat_interval_s
        self.on_trouble = on_trouble
        self.clock = clock
        self.context = context or zmq.Context()
        self._peers: list[Peer] = []
        self._raw: list[ZmtpPeer] = []
        self._next_beat_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close everything. Twice is fine."""
        for peer in self._peers:
            peer.close()
        for raw in self._raw:
            raw.close()
        self.context.term()

    def dismiss_workers(self) -> None:
        """Let every living worker leave in good order, and wait until the broker has read it."""
        for peer in self._peers:
            if isinstance(peer, Worker) and peer.alive:
                peer.disconnect()
                peer.send(EMPTY, CLIENT_01, b"mmi.left", b"?")
                while peer.recv()[1:3] != [CLIENT_01, b"mmi.left"]:
                    pass

    # Who can be made ----------------------------------------------------------------------------------------

    def req_client01(
        self, *, identity: bytes | None = None, correlate: bool = False, endpoint: str | None = None
    ) -> ReqClient01:
        """Connect an MDP/0.1 client on REQ: the socket itself supplies the empty frame 0."""
        return self._add(
            ReqClient01(self, zmq.REQ, identity=identity, correlate=correlate, endpoint=endpoint)
        )

    def client01(self, *, identity: bytes | None = None, endpoint: str | None = None) -> Client01:
        """Connect an MDP/0.1 client on DEALER: it supplies frame 0 and may ask many things at once."""
        return self._add(Client01(self, zmq.DEALER, identity=identity, endpoint=endpoint))

    def client02(
        self, *, identity: bytes | None = None, delimited: bool = False, endpoint: str | None = None
    ) -> Client02:
        """Connect an MDP/0.2 client; `delimited`: with the empty frame of the field variant."""
        client = self._add(Client02(self, zmq.DEALER, identity=identity, endpoint=endpoint))
        client.delimiter = (EMPTY,) if delimited else ()
        return client

    def req_client02(self, *, identity: bytes | None = None, correlate: bool = False) -> ReqClient02:
        """Connect an MDP/0.2 client on REQ, as the field does against the specification."""
        return self._add(ReqClient02(self, zmq.REQ, identity=identity, correlate=correlate))

    def worker01(
        self, service: bytes | None = None, *, identity: bytes | None = None, endpoint: str | None = None
    ) -> Worker01:
        """Connect an MDP/0.1 worker; with a service it registers at once, and from then on it lives."""
        worker = self._add(Worker01(self, zmq.DEALER, identity=identity, endpoint=endpoint))
        if service is not None:
            worker.ready(service)
        return worker

    def worker02(
        self,
        service: bytes | None = None,
        *,
        identity: bytes | None = None,
        delimited: bool = False,
        endpoint: str | None = None,
    ) -> Worker02:
        """Connect an MDP/0.2 worker; with a service it registers at once, and from then on it lives."""
        worker = self._add(Worker02(self, zmq.DEALER, identity=identity, endpoint=endpoint))
        worker.delimiter = (EMPTY,) if delimited else ()
        if service is not None:
            worker.ready(service)
        return worker

    def dealer(self, *, identity: bytes | None = None) -> Peer:
        """Connect a DEALER of no protocol: it sends what it is given."""
        return self._add(Peer(self, zmq.DEALER, identity=identity))

    def zmtp(self, *, identity: bytes = b"", handshake: bool = True) -> ZmtpPeer:
        """Connect a DEALER over plain TCP; without `handshake` it has said nothing yet."""
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        peer = ZmtpPeer(host, int(port), identity=identity)
        self._raw.append(peer)
        if handshake:
            peer.handshake()
        return peer

    def _add(self, peer: PeerT) -> PeerT:
        self._peers.append(peer)
        return peer

    # Time ---------------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Do what the workers do by themselves: heartbeats, and answers where one has been fixed."""
        now = self.clock.monotonic()
        is_due = now >= self._next_beat_at
        if is_due:
            # Twice as often as agreed: what a test measures is the broker's patience, not ours.
            self._next_beat_at = now + self.heartbeat_interval_s / 2
        for peer in self._peers:
            if isinstance(peer, Worker) and peer.alive:
                if is_due:
                    peer.heartbeat()
                if peer.answer is not None:
                    peer.give_answers()

    def pass_time(self, seconds: float) -> None:
        """Let time pass while the living workers go on living."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.attend()
            self.clock.sleep(min(SLICE_S, left))

    def wait_until(self, happened: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait for something that is observed by asking, while the living workers go on living."""
        until = self.clock.monotonic() + timeout_s
        while not happened():
            if self.clock.monotonic() > until:
                raise NothingArrivedError(f"not within {timeout_s} s: {what}\n{self.on_trouble()}")
            self.pass_time(SLICE_S)


class Peer:
    """A ZeroMQ socket connected to the broker. Frames go out and come in as they are."""

    def __init__(
        self,
        peers: Peers,
        socket_type: int,
        *,
        identity: bytes | None = None,
        correlate: bool = False,
        endpoint: str | None = None,
    ) -> None:
        self.peers = peers
        self.socket: zmq.Socket[bytes] = peers.context.socket(socket_type)
        self.socket.linger = 0
        self.socket.sndtimeo = int(WAIT_S * 1000)
        # The broker may not be there yet, or be gone for a moment.
        self.socket.reconnect_ivl = 10
        if identity is not None:
            self.socket.routing_id = identity
        if correlate:
            self.socket.req_correlate = 1
        self.socket.connect(endpoint or peers.endpoint)

    def close(self) -> None:
        """Vanish without a word. What was not yet sent is lost."""
        self.socket.close(linger=0)

    def send(self, *frames: bytes) -> None:
        """Send one message."""
        self.socket.send_multipart(frames)

    def recv(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """Receive the next message, whatever it is."""
        frames = self.try_recv(timeout_s)
        if frames is None:
            raise NothingArrivedError(f"no message within {timeout_s} s\n{self.peers.on_trouble()}")
        return frames

    def try_recv(self, timeout_s: float = 0.0) -> list[bytes] | None:
        """Receive the next message, or None when none comes in time."""
        until = self.peers.clock.monotonic() + timeout_s
        while True:
            self.peers.attend()
            left = until - self.peers.clock.monotonic()
            if self.socket.poll(int(max(0.0, min(SLICE_S, left)) * 1000)):
                # A REQ socket throws a reply that does not fit away only now, and has then nothing to give.
                with contextlib.suppress(zmq.Again):
                    return self.socket.recv_multipart(zmq.NOBLOCK)
            if left <= 0:
                return None

    def collect(self, seconds: float | None = None) -> list[list[bytes]]:
        """Everything that arrives in so much time; two heartbeat intervals if nothing else is said."""
        until = self.peers.clock.monotonic() + (
            2 * self.peers.heartbeat_interval_s if seconds is None else seconds
        )
        messages = []
        while (left := until - self.peers.clock.monotonic()) > 0:
            frames = self.try_recv(left)
            if frames is not None:
                messages.append(frames)
        return messages

    def mmi(self, name: bytes, *body: bytes) -> list[bytes]:
        """Ask the broker's management interface in MDP/0.1 and return the answer's body.

        Messages of one connection stay in order: what this peer sent before has been read once the answer is
        here.
        """
        self.send(EMPTY, CLIENT_01, name, *body)
        frames = self.recv()
        while WORKER_01 in frames[:2] or WORKER_02 in frames[:2]:  # the broker's heartbeat to this peer
            frames = self.recv()
        assert frames[:3] == [EMPTY, CLIENT_01, name], frames
        return frames[3:]


class ReqClient01(Peer):
    """MDP/0.1 over REQ. The application sees everything but frame 0."""

    def request(self, service: bytes, *body: bytes) -> None:
        """Send a REQUEST."""
        self.send(CLIENT_01, service, *body)


class ReqClient02(Peer):
    """MDP/0.2 over REQ: not allowed, yet seen in the field. An empty frame stands before the header."""

    def request(self, service: bytes, *body: bytes) -> None:
        """Send a REQUEST."""
        self.send(CLIENT_02, b"\x01", service, *body)


class Client01(Peer):
    """MDP/0.1 over DEALER."""

    def request(self, service: bytes, *body: bytes) -> None:
        """Send a REQUEST."""
        self.send(EMPTY, CLIENT_01, service, *body)


class Client02(Peer):
    """MDP/0.2 over DEALER."""

    REQUEST = b"\x01"
    PARTIAL = b"\x02"
    FINAL = b"\x03"

    delimiter: tuple[bytes, ...] = ()

    def request(self, service: bytes, *body: bytes) -> None:
        """Send a REQUEST."""
        self.send(*self.delimiter, CLIENT_02, self.REQUEST, service, *body)


class Worker(Peer):
    """What the workers of both versions have in common."""

    HEADER: ClassVar[bytes]
    READY: ClassVar[bytes] = b"\x01"
    REQUEST: ClassVar[bytes] = b"\x02"
    HEARTBEAT: ClassVar[bytes]
    DISCONNECT: ClassVar[bytes]

    delimiter: tuple[bytes, ...] = ()
    # A living worker has its heartbeats sent by `Peers.attend`.
    alive = False
    # With an answer, `Peers.attend` also finishes each of its requests with this frame and the body that
    # came.
    answer: bytes | None = None

    def command(self, *frames: bytes) -> list[bytes]:
        """Return the frames of a command of this dialect."""
        return [*self.delimiter, self.HEADER, *frames]

    def ready(self, service: bytes) -> None:
        """Send READY; from now on the worker lives."""
        self.send(*self.command(self.READY, service))
        self.alive = True

    def heartbeat(self) -> None:
        """Send one HEARTBEAT."""
        self.send(*self.command(self.HEARTBEAT))

    def disconnect(self) -> None:
        """Send DISCONNECT; the worker's heartbeats end."""
        self.alive = False
        self.send(*self.command(self.DISCONNECT))

    @override
    def try_recv(self, timeout_s: float = 0.0) -> list[bytes] | None:
        """Receive the next message; after a DISCONNECT the worker sends nothing more by itself."""
        frames = super().try_recv(timeout_s)
        if frames == self.command(self.DISCONNECT):
            self.alive = False
        return frames

    def fall_silent(self) -> None:
        """Stay connected, say nothing more: what a hung process does."""
        self.alive = False

    def vanish(self) -> None:
        """Be gone without a word: what a killed process does."""
        self.close()

    @override
    def close(self) -> None:
        """Vanish without a word; the heartbeats end."""
        self.alive = False
        super().close()

    def next_command(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """Receive the next message that is no heartbeat."""
        until = self.peers.clock.monotonic() + timeout_s
        while True:
            frames = self.recv(max(0.0, until - self.peers.clock.monotonic()))
            if frames != self.command(self.HEARTBEAT):
                return frames

    def commands(self, seconds: float | None = None) -> list[list[bytes]]:
        """Everything but heartbeats that arrives in so much time."""
        return [frames for frames in self.collect(seconds) if frames != self.command(self.HEARTBEAT)]

    def await_heartbeat(self) -> None:
        """Wait for a heartbeat of the broker: it knows this worker. Anything else is a fault."""
        frames = self.recv()
        assert frames == self.command(self.HEARTBEAT), frames

    def await_disconnect(self) -> None:
        """Wait for DISCONNECT. Anything but heartbeats before it is a fault.

        The worker's own heartbeats end here: one that crossed the DISCONNECT would be answered by a second
        one.
        """
        self.alive = False
        frames = self.next_command()
        assert frames == self.command(self.DISCONNECT), frames

    def take(self, timeout_s: float = WAIT_S) -> Job:
        """Receive a REQUEST and check its form: one address, one empty frame, at least one body frame."""
        return self.as_job(self.next_command(timeout_s))

    def as_job(self, frames: Sequence[bytes]) -> Job:
        """Read frames as a REQUEST of this dialect."""
        head = len(self.delimiter) + 1
        assert list(frames[: head + 1]) == self.command(self.REQUEST), frames
        assert len(frames) >= head + 4, frames
        assert frames[head + 1] != EMPTY, frames
        assert frames[head + 2] == EMPTY, frames
        return Job(frames=tuple(frames), client=frames[head + 1], body=tuple(frames[head + 3 :]))

    def give_answers(self) -> None:
        """Finish every request that is here, as the fixed answer says."""
        assert self.answer is not None
        while self.alive and self.socket.poll(0):
            frames = self.socket.recv_multipart()
            if frames == self.command(self.DISCONNECT):
                self.alive = False
            elif frames != self.command(self.HEARTBEAT):
                job = self.as_job(frames)
                self.finish(job, self.answer, *job.body)

    def finish(self, job: Job, *body: bytes) -> None:
        """Send the last (or only) answer to a request."""
        raise NotImplementedError


class Worker01(Worker):
    """MDP/0.1 worker."""

    HEADER = WORKER_01
    REPLY: ClassVar[bytes] = b"\x03"
    HEARTBEAT = b"\x04"
    DISCONNECT = b"\x05"

    delimiter = (EMPTY,)

    def reply(self, client: bytes, *body: bytes) -> None:
        """Send REPLY to a client's address."""
        self.send(*self.command(self.REPLY, client, EMPTY, *body))

    @override
    def finish(self, job: Job, *body: bytes) -> None:
        """Answer a request."""
        self.reply(job.client, *body)


class Worker02(Worker):
    """MDP/0.2 worker."""

    HEADER = WORKER_02
    PARTIAL: ClassVar[bytes] = b"\x03"
    FINAL: ClassVar[bytes] = b"\x04"
    HEARTBEAT = b"\x05"
    DISCONNECT = b"\x06"

    def partial(self, client: bytes, *body: bytes) -> None:
        """Send PARTIAL to a client's address."""
        self.send(*self.command(self.PARTIAL, client, EMPTY, *body))

    def final(self, client: bytes, *body: bytes) -> None:
        """Send FINAL to a client's address."""
        self.send(*self.command(self.FINAL, client, EMPTY, *body))

    @override
    def finish(self, job: Job, *body: bytes) -> None:
        """Answer a request for the last time."""
        self.final(job.client, *body)


class PublishedBinaryStarClient:
    """The client of the published Binary Star sample, with its two delays as parameters.

    REQ, one request at a time. When no reply comes in `timeout_s` it closes the socket, turns to the other
    server, waits `settle_s`, connects and sends the same request again.
    """

    def __init__(self, peers: Peers, endpoints: Iterable[str], *, timeout_s: float, settle_s: float) -> None:
        self._peers = peers
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._settle_s = settle_s
        self._turn = 0
        self.failovers = 0
        self._connect()

    @property
    def endpoint(self) -> str:
        """The server the client is connected to."""
        return self._endpoints[self._turn]

    def request(self, *frames: bytes, attempts: int = 20) -> list[bytes]:
        """Send a request until it is answered, going back and forth between the servers."""
        for _ in range(attempts):
            self._peer.send(*frames)
            reply = self._peer.try_recv(self._timeout_s)
            if reply is not None:
                return reply
            self._peer.close()
            self.failovers += 1
            self._turn = (self._turn + 1) % len(self._endpoints)
            self._peers.pass_time(self._settle_s)
            self._connect()
        raise NothingArrivedError(f"no reply in {attempts} attempts\n{self._peers.on_trouble()}")

    def _connect(self) -> None:
        self._peer = self._peers.req_client01(endpoint=self.endpoint)


class Zmtp:
    """One end of a ZMTP 3.0 connection (NULL mechanism) over plain TCP; it can break rules below frames."""

    MORE = 0x01
    LONG = 0x02
    COMMAND = 0x04

    def __init__(self, tcp: plain.socket, *, socket_type: bytes, identity: bytes = b"") -> None:
        self.tcp = tcp
        self.tcp.settimeout(WAIT_S)
        self.tcp.setsockopt(plain.IPPROTO_TCP, plain.TCP_NODELAY, 1)
        self.socket_type = socket_type
        self.identity = identity
        # What the other end said of itself in its READY.
        self.properties: dict[bytes, bytes] = {}
        self._unread = b""

    @staticmethod
    def greeting(*, mechanism: bytes = b"NULL", major: int = 3, minor: int = 0) -> bytes:
        """Return the 64 bytes with which a connection opens."""
        return b"\xff" + bytes(8) + b"\x7f" + bytes((major, minor)) + mechanism.ljust(20, b"\0") + bytes(32)

    @classmethod
    def frame(cls, body: bytes, *, flags: int = 0) -> bytes:
        """Encode one frame."""
        if len(body) > 255:
            return struct.pack("!BQ", flags | cls.LONG, len(body)) + body
        return struct.pack("!BB", flags, len(body)) + body

    @classmethod
    def message(cls, *frames: bytes) -> bytes:
        """Encode one message of several frames."""
        encoded = [cls.frame(body, flags=cls.MORE) for body in frames[:-1]]
        return b"".join([*encoded, cls.frame(frames[-1])])

    @classmethod
    def ready_command(cls, *, socket_type: bytes = b"DEALER", identity: bytes = b"") -> bytes:
        """Encode the READY command of the NULL mechanism."""
        properties = b"".join(
            bytes((len(name),)) + name + struct.pack("!I", len(value)) + value
            for name, value in ((b"Socket-Type", socket_type), (b"Identity", identity))
        )
        return cls.frame(b"\x05READY" + properties, flags=cls.COMMAND)

    def handshake(self) -> None:
        """Exchange greetings and READY commands."""
        self.send_octets(self.greeting())
        greeting = self._read(64)
        assert greeting[:1] == b"\xff", greeting
        assert greeting[10] >= 3, greeting
        assert greeting[12:32].rstrip(b"\0") == b"NULL", greeting
        self.send_octets(self.ready_command(socket_type=self.socket_type, identity=self.identity))
        flags, body = self._read_frame()
        assert flags & self.COMMAND, (flags, body)
        assert body.startswith(b"\x05READY"), body
        rest = body[6:]
        while rest:
            name, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
            (size,) = struct.unpack("!I", rest[:4])
            self.properties[name], rest = rest[4 : 4 + size], rest[4 + size :]

    def send(self, *frames: bytes) -> None:
        """Send one message."""
        self.send_octets(self.message(*frames))

    def send_octets(self, octets: bytes) -> None:
        """Send anything at all."""
        self.tcp.sendall(octets)

    def recv(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """Receive one message. A PING is answered, other commands are skipped.

        ConnectionError when the other end has closed, TimeoutError when nothing comes in time.
        """
        until = time.monotonic() + timeout_s
        frames: list[bytes] = []
        while True:
            flags, body = self._read_frame(until)
            if flags & self.COMMAND:
                if body.startswith(b"\x04PING"):
                    self.send_octets(self.frame(b"\x04PONG" + body[7:], flags=self.COMMAND))
                continue
            frames.append(body)
            if not flags & self.MORE:
                return frames

    def collect(self, seconds: float) -> list[list[bytes]]:
        """Everything that arrives in so much time, or until the other end closes."""
        until = time.monotonic() + seconds
        messages = []
        try:
            while True:
                messages.append(self.recv(until - time.monotonic()))
        except (TimeoutError, ConnectionError):
            return messages

    def close(self) -> None:
        """Close the connection in the ordinary way."""
        self.tcp.close()

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.tcp.setsockopt(plain.SOL_SOCKET, plain.SO_LINGER, struct.pack("ii", 1, 0))
        self.tcp.close()

    def _read_frame(self, until: float | None = None) -> tuple[int, bytes]:
        """Read one frame; nothing is lost when time runs out halfway."""
        self._fill(2, until)
        flags = self._unread[0]
        head = 9 if flags & self.LONG else 2
        self._fill(head, until)
        size = struct.unpack("!Q", self._unread[1:9])[0] if flags & self.LONG else self._unread[1]
        self._fill(head + size, until)
        return flags, self._read(head + size)[head:]

    def _read(self, size: int) -> bytes:
        self._fill(size)
        wanted, self._unread = self._unread[:size], self._unread[size:]
        return wanted

    def _fill(self, size: int, until: float | None = None) -> None:
        while len(self._unread) < size:
            left = WAIT_S if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError("nothing came in time")
            self.tcp.settimeout(left)
            octets = self.tcp.recv(65536)
            if not octets:
                raise ConnectionResetError("the other side closed the connection")
            self._unread += octets


class ZmtpPeer(Zmtp):
    """A DEALER that connects."""

    def __init__(self, host: str, port: int, *, identity: bytes = b"") -> None:
        super().__init__(
            plain.create_connection((host, port), WAIT_S), socket_type=b"DEALER", identity=identity
        )


class ZmtpListener:
    """A ROUTER's end: what connects is seen connection by connection, as no ZeroMQ socket would show it."""

    def __init__(self) -> None:
        self._listener = plain.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[Zmtp] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def accept(self, timeout_s: float = WAIT_S) -> Zmtp:
        """Wait for the next connection and shake hands; TimeoutError when none comes."""
        self._listener.settimeout(timeout_s)
        tcp, _ = self._listener.accept()
        connection = Zmtp(tcp, socket_type=b"ROUTER")
        self._connections.append(connection)
        connection.handshake()
        return connection

    def is_called(self, within_s: float) -> bool:
        """Whether one more connection comes in so much time; it is accepted and closed."""
        try:
            self.accept(within_s).close()
        except TimeoutError:
            return False
        return True
