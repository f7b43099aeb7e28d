"""The conversation of an EventMQ job manager with its router. Pure: time is an input.

    connect → INFORM → wait for ACK → wait for a HEARTBEAT → READY for each free process
    REQUEST → run → REPLY [result] [msgid], READY

The manager sends a HEARTBEAT when it has sent nothing for an interval. If the router is silent, says KBYE or
its connection breaks, the manager connects to the next router with a fresh identity: the published router
ignores a second connection with an identity that it knows (PROTOCOLS.md 12.6, EMQ-W-01).

A request belongs to the connection that brought it. Its REPLY goes there or nowhere: another router does not
know the msgid.
"""

import enum
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import emq
from bstar.wire.emq_jobs import encode_result

# Requests beyond those that the processes are ready for. A router that counts right sends none.
WAITING_MAX = 1_000
# By the specification the reply is True for a job without a result (PROTOCOLS.md 12.4); published: null.
_NOTHING, _DONE = encode_result(None), encode_result(value=True)


class ManagerSettings(msgspec.Struct, frozen=True):
    """``routers`` take turns. No ``queues``: the router's default.

    ``heartbeat_s``: the pause in which the manager sends nothing. ``silence_s``: a registered manager gives
    the router up after it. ``answer_s``: so long it waits for ACK. ``pause_s``: before the next connection.
    """

    routers: tuple[str, ...]
    queues: tuple[emq.Queue, ...] = ()
    heartbeat_s: float = 3.0
    silence_s: float = 15.0
    answer_s: float = 5.0
    pause_s: float = 1.0
    wire: emq.Wire = emq.Wire.PUBLISHED


class Open(msgspec.Struct, frozen=True):
    """Connect a new socket to ``router``. ``identity`` is ASCII (EMQ-R-01)."""

    router: str
    identity: bytes


class Close(msgspec.Struct, frozen=True):
    """Close the socket; ``reason`` is for the log."""

    reason: str


class Send(msgspec.Struct, frozen=True):
    """Send these frames."""

    frames: list[bytes]


class Run(msgspec.Struct, frozen=True):
    """Give ``request`` to a free process; call ``ended`` with this object when it has ended."""

    connection: int
    request: emq.Request


class Registered(msgspec.Struct, frozen=True):
    """The router takes the manager's READYs from now on."""

    router: str


Output = Open | Close | Send | Run | Registered


class _Phase(enum.IntEnum):
    """How far a connection is; each phase includes those before it."""

    CLOSED = 0
    INFORMED = 1
    ACKED = 2
    REGISTERED = 3


class ManagerSession:
    """One manager. ``new_id`` makes ids: ASCII, no two alike. ``unix_time_s`` is the clock for HEARTBEATs.

    Each input returns the outputs to carry out, in order. ``drops`` counts by reason what was not read.
    """

    def __init__(
        self, settings: ManagerSettings, new_id: Callable[[], bytes], unix_time_s: Callable[[], float]
    ) -> None:
        self.drops: Counter[str] = Counter()
        self._settings = settings
        self._new_id = new_id
        self._unix_time_s = unix_time_s
        self._connection = 0
        self._phase = _Phase.CLOSED
        self._inform = b""
        self._heartbeat_at = 0.0
        # When to give the router up, or, without a connection, when to connect.
        self._next_at: float | None = None
        self._is_draining = False
        # Processes that run nothing, READYs without their request, and jobs that wait for a process.
        self._free = 0
        self._announced = 0
        self._waiting: deque[Run] = deque()
        self._running = 0

    @property
    def is_idle(self) -> bool:
        """True if no job runs or waits."""
        return not self._running and not self._waiting

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` is due."""
        if self._phase >= _Phase.ACKED and self._next_at is not None:
            return min(self._next_at, self._heartbeat_at)
        return self._next_at

    def start(self, now: float) -> list[Output]:
        """Connect to the next router and send INFORM."""
        routers = self._settings.routers
        router = routers[self._connection % len(routers)]
        self._connection += 1
        self._phase = _Phase.INFORMED
        self._inform = self._new_id()
        self._next_at = now + self._settings.answer_s
        inform = emq.Inform(self._inform, emq.Kind.WORKER, self._settings.queues)
        return [Open(router, self._new_id()), self._send(inform, now)]

    def handle_timer(self, now: float) -> list[Output]:
        """Send a HEARTBEAT, give a silent router up, or connect again."""
        if self._next_at is not None and now >= self._next_at:
            if self._phase is _Phase.CLOSED:
                return self.start(now)
            waited_s = self._settings.silence_s if self._phase >= _Phase.ACKED else self._settings.answer_s
            return self.lost(f"the router is silent for {waited_s:g} s", now)
        if self._phase >= _Phase.ACKED and now >= self._heartbeat_at:
            return [self._send(emq.Heartbeat(self._new_id(), self._unix_time_s()), now)]
        return []

    def connected(self, now: float) -> list[Output]:
        """The connection is there. INFORM waits for it in the socket."""
        return []

    def lost(self, reason: str, now: float) -> list[Output]:
        """The connection is of no use any more: close it, and connect after a pause."""
        if self._phase is _Phase.CLOSED:
            return []
        self._phase = _Phase.CLOSED
        # A request that has not begun is the next router's business.
        self._waiting.clear()
        self._next_at = None if self._is_draining else now + self._settings.pause_s
        return [Close(reason)]

    def receive(self, frames: Sequence[bytes], now: float) -> list[Output]:
        """A message of the router. What cannot be read is counted, and nothing else happens."""
        try:
            message = emq.decode(frames, wire=self._settings.wire)
        except RemoteProtocolError as error:
            self.drops[error.reason] += 1
            return []
        if self._phase is _Phase.CLOSED:
            return []
        if self._phase >= _Phase.ACKED:
            self._next_at = now + self._settings.silence_s
        match message:
            case emq.Ack(about=about) if about == self._inform and self._phase is _Phase.INFORMED:
                self._phase = _Phase.ACKED
                self._next_at = now + self._settings.silence_s
            case emq.Heartbeat():
                return self._register(now)
            case emq.Request() if self._phase >= _Phase.ACKED:
                return self._take(Run(self._connection, message), now)
            case emq.Goodbye():
                return self.lost("the router said KBYE", now)
            case emq.Disconnect():
                farewell = self._send(emq.Goodbye(self._new_id()), now)
                return [farewell, *self.lost("the router sent DISCONNECT", now)]
            case emq.Ack() | emq.Reply():
                pass
            case _:
                self.drops["unexpected"] += 1
        return []

    def freed(self, now: float) -> list[Output]:
        """A process is there, and runs nothing."""
        if self._waiting:
            self._running += 1
            return [self._waiting.popleft()]
        self._free += 1
        return self._announce(now)

    def died(self) -> None:
        """A process that ran nothing is gone. Its READY stands: a request for it waits for another one."""
        self._free -= 1

    def ended(self, job: Run, result: bytes, now: float) -> list[Output]:
        """A job has ended with ``result``, JSON. ``freed`` tells when its process takes another one."""
        self._running -= 1
        outputs = self._reply(job, result, now)
        return outputs + self.leave() if self._is_draining and self.is_idle else outputs

    def drain(self, now: float) -> list[Output]:
        """Send no READY any more, connect nowhere, and say KBYE when the last job has ended.

        KBYE comes after the results: a router that redelivers the jobs of a manager that left, as a node of
        bstar does, would have them run twice.
        """
        self._is_draining = True
        if self._phase is _Phase.CLOSED:
            self._next_at = None
        return self.leave() if self.is_idle else []

    def leave(self) -> list[Output]:
        """Say KBYE, whatever still runs; nothing is sent or read after it."""
        if self._phase is _Phase.CLOSED:
            return []
        self._phase = _Phase.CLOSED
        self._next_at = None
        return [Send(self._frames(emq.Goodbye(self._new_id())))]

    # --- what the inputs share ----------------------------------------------------------------------------

    def _send(self, message: emq.Message, now: float) -> Send:
        # Any message is a sign of life (EMQ-G-04).
        self._heartbeat_at = now + self._settings.heartbeat_s
        return Send(self._frames(message))

    def _frames(self, message: emq.Message) -> list[bytes]:
        return emq.encode(message, wire=self._settings.wire)

    def _announce(self, now: float) -> list[Output]:
        """A READY for each free process that the router does not know of."""
        if self._phase is not _Phase.REGISTERED or self._is_draining:
            return []
        readies: list[Output] = []
        while self._announced < self._free:
            self._announced += 1
            readies.append(self._send(emq.Ready(self._new_id()), now))
        return readies

    def _register(self, now: float) -> list[Output]:
        if self._phase is not _Phase.ACKED or self._is_draining:
            return []
        self._phase = _Phase.REGISTERED
        routers = self._settings.routers
        router = routers[(self._connection - 1) % len(routers)]
        self._announced = 0
        return [Registered(router), *self._announce(now)]

    def _take(self, job: Run, now: float) -> list[Output]:
        self._announced = max(0, self._announced - 1)
        if self._free:
            self._free -= 1
            self._running += 1
            return [job]
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(job)
            return []
        self.drops["overload"] += 1
        text = f"refused: the job manager has {WAITING_MAX} jobs waiting"
        return self._reply(job, encode_result(text), now)

    def _reply(self, job: Run, result: bytes, now: float) -> list[Output]:
        if self._phase is _Phase.CLOSED or job.connection != self._connection:
            self.drops["late-reply"] += 1
            return []
        if result == _NOTHING and self._settings.wire is emq.Wire.SPECIFICATION:
            result = _DONE
        return [self._send(emq.Reply(self._new_id(), job.request.msgid, result), now)]
