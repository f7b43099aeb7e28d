"""A worker's sessions, one with each node: connections, registrations, heartbeats, pauses after failures.

A worker registers (READY) on every new connection. A session ends when its connection breaks, when its broker
is silent for the expiry it announced, or when the broker sends DISCONNECT. Then a new session begins. After
silence or DISCONNECT it begins on a new socket after a growing pause (MDP1-R-02, MDP1-W-06, MDP2-W-06).
"""

import math
from collections.abc import Callable, Iterator, Sequence

from bstar.wire.native import NAME_BYTES, NO_IDENTITY
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Heard, Job, WorkerDialect
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import (
    Close,
    KeepAlive,
    Late,
    Lost,
    Registered,
    Unregistered,
    WorkerOutput,
)

# A worker warns after this time without a registration at a node, and then each minute: a restart of a node
# takes less.
UNREGISTERED_S = 5.0
REMINDER_S = 60.0
# PINGs within the time to live of a keepalive.
_PINGS = 4
# libzmq counts that time in tenths of a second.
_TTL_STEP_MS = 100


class WorkerCounters:
    """Counts of events, as plain integers."""

    def __init__(self) -> None:
        self.requests = 0
        self.finished = 0
        self.replayed = 0
        self.declined = 0
        self.failed = 0
        self.timed_out = 0
        self.cancelled = 0
        self.expired = 0
        self.stale = 0
        self.registrations = 0
        self.sessions_lost = 0
        self.replies_dropped = 0
        self.requests_dropped = 0
        self.results_late = 0
        self.messages_invalid = 0
        self.messages_ignored = 0


class NodeSession:
    """A worker's session with one node. ``held``: unanswered requests from its connection. ``elsewhere``: how
    many requests of other connections the node was last told of (BSN-W-24).
    """

    def __init__(self, index: int, endpoint: str) -> None:
        self.index = index
        self.endpoint = endpoint
        self.connection = 0  # 0: not connected
        self.is_registered = False
        self.registered_at = 0.0
        # When to warn that it is not registered; None: it is, or the worker has not begun.
        self.warn_at: float | None = None
        self.has_left = False
        self.takes_batches = False
        self.takes_progress = False
        self.heartbeat_s = 0.0
        self.expiry_s = 0.0
        self.heartbeat_at = 0.0
        self.expires_at = 0.0
        self.reopen_at: float | None = None
        self.failures = 0
        self.held = 0
        self.elsewhere = 0

    @property
    def is_open(self) -> bool:
        """True while the worker may talk to the node."""
        return self.connection > 0 and not self.has_left

    def owns(self, job: Job) -> bool:
        """True if the request came by the present connection."""
        return self.connection == job.connection


class NodeSessions:
    """All sessions of one worker. ``name`` names its connections; if it is empty, there are no keepalives."""

    def __init__(
        self,
        endpoints: Sequence[str],
        dialect: WorkerDialect,
        limits: WorkerLimits,
        jitter: Callable[[], float],
        name: bytes,
    ) -> None:
        assert not name or (len(name) == NAME_BYTES and name[0])
        self.counters = WorkerCounters()
        self._sessions = [NodeSession(index, endpoint) for index, endpoint in enumerate(endpoints)]
        self._dialect = dialect
        self._limits = limits
        self._jitter = jitter
        self._name = name
        self._connections = 0
        self._has_begun = False

    def __getitem__(self, node: int) -> NodeSession:
        return self._sessions[node]

    def __iter__(self) -> Iterator[NodeSession]:
        return iter(self._sessions)

    def begin(self, now: float) -> None:
        """The worker begins to connect: warn from now on of nodes that do not register it."""
        self._has_begun = True
        for session in self._sessions:
            session.warn_at = now + UNREGISTERED_S

    def warn(self, outputs: list[WorkerOutput], now: float) -> None:
        """Warn, if it is time, of nodes that have not registered the worker."""
        due = [each for each in self._sessions if each.warn_at is not None and now >= each.warn_at]
        if due:
            outputs.append(Unregistered(tuple(each.endpoint for each in due)))
        for session in due:
            session.warn_at = now + REMINDER_S

    def connect(self, session: NodeSession, now: float) -> bytes:
        """A connection is ready. Returns the name of its keepalive for READY."""
        self._connections += 1
        session.connection = self._connections
        session.takes_batches = session.takes_progress = False
        session.heartbeat_s = self._dialect.heartbeat_s
        session.expiry_s = self._dialect.expiry_s
        session.expires_at = now + session.expiry_s
        session.heartbeat_at = now
        return self._keepalive_of(session)

    def register(self, session: NodeSession, outputs: list[WorkerOutput], now: float) -> None:
        """The node has registered the worker."""
        if not session.is_registered:
            session.is_registered = True
            session.registered_at = now
            session.warn_at = None
            self.counters.registrations += 1
            outputs.append(Registered(session.endpoint))

    def welcome(self, session: NodeSession, heard: Heard, outputs: list[WorkerOutput], now: float) -> None:
        """The node confirms the registration and tells its timing."""
        session.takes_batches = heard.takes_batches
        session.takes_progress = heard.takes_progress
        session.heartbeat_s = heard.heartbeat_s
        session.expiry_s = heard.expiry_s
        session.expires_at = now + heard.expiry_s
        session.heartbeat_at = min(session.heartbeat_at, now + heard.heartbeat_s)
        if self._name:
            # It ends before the worker's expiry, so the broker's first probe finds a dead process.
            ttl_ms = int((heard.expiry_s - heard.heartbeat_s) * 1000) // _TTL_STEP_MS * _TTL_STEP_MS
            ttl_ms = max(ttl_ms, _TTL_STEP_MS)
            keepalive = self._keepalive_of(session)
            outputs.append(KeepAlive(session.index, keepalive, max(ttl_ms // _PINGS, 1), ttl_ms))
        self.register(session, outputs, now)

    def lose(self, session: NodeSession, reason: str, outputs: list[WorkerOutput], now: float) -> None:
        """The session is over."""
        session.connection = 0
        session.held = 0
        if session.is_registered:
            # Plain brokers do not confirm a registration, so one that was not heard since does not count.
            was_heard = session.expires_at > session.registered_at + session.expiry_s
            if was_heard and now - session.registered_at >= session.expiry_s:
                session.failures = 0
            session.is_registered = False
            self.counters.sessions_lost += 1
            if self._has_begun:
                session.warn_at = now + UNREGISTERED_S
        outputs.append(Lost(session.endpoint, reason))

    def close(self, session: NodeSession, outputs: list[WorkerOutput], now: float) -> None:
        """Take a new socket after a pause: exponential, bounded, with jitter so that workers spread."""
        outputs.append(Close(session.index))
        limits = self._limits
        pause_s = min(limits.backoff_min_s * 2.0 ** min(session.failures, 16), limits.backoff_max_s)
        session.failures += 1
        session.reopen_at = now + pause_s * (1.0 + self._jitter()) / 2 + limits.backoff_min_s / 2

    def send(
        self,
        session: NodeSession,
        frames: list[bytes],
        outputs: list[WorkerOutput],
        now: float,
        *,
        is_busy: bool,
    ) -> None:
        """Send a message. ``is_busy``: a handler runs, or has just run."""
        late_s = now - session.heartbeat_at
        if late_s > session.expiry_s / 2:
            outputs.append(Late(late_s, is_busy))
            # The other nodes got no heartbeat either: it is the same pause.
            for other in self._sessions:
                other.heartbeat_at = max(other.heartbeat_at, now)
        # Every message is a sign of life, so the next heartbeat is due an interval from now (MDP2-W-09).
        session.heartbeat_at = now + session.heartbeat_s
        outputs.append(Send(session.index, frames))

    def rest(self, session: NodeSession, now: float) -> None:
        """Expect and owe no heartbeat while a request is with the worker, where the dialect has it so."""
        if session.held and not self._dialect.hears_at_work:
            session.expires_at = now + session.expiry_s
        if session.held and not self._dialect.beats_at_work:
            session.heartbeat_at = now + session.heartbeat_s

    def next_deadline(self, *, is_draining: bool) -> float | None:
        """When a heartbeat is due, a node counts as silent, or a socket is to be opened."""
        due: list[float] = []
        for session in self._sessions:
            if session.warn_at is not None and not is_draining:
                due.append(session.warn_at)
            if session.connection:
                if not session.has_left:
                    due.append(min(session.heartbeat_at, session.expires_at))
            elif session.reopen_at is not None and not is_draining:
                due.append(session.reopen_at)
        ends_at = min(due, default=math.inf)
        return None if ends_at == math.inf else ends_at

    def _keepalive_of(self, session: NodeSession) -> bytes:
        if not self._name:
            return NO_IDENTITY
        return self._name + session.connection.to_bytes(4, "big")
