"""The worker's core: a session with every node at once, and the requests that they send.

A worker registers (READY) on every new connection, with every node, so that a passive node knows it
already when it takes over. A session ends when its connection breaks, when its broker is silent for the
expiry that the broker itself told, or when the broker says DISCONNECT; then a new one begins, in the last
two cases on a new socket after a pause that grows (MDP1-R-02, MDP1-W-06, MDP2-W-06).

Effects are fenced here: the core does not begin a request below the epoch that it obeys (``fence``), but
answers STALE_EPOCH. A request whose client no longer waits is not begun either.

Requests run outside: ``Begin`` asks the shell to run some, which ``claim``s each at the moment when its
handler is called; until then the core may take it back. ``partial``, ``finished`` and ``failed`` tell how it
went. What has finished at the same moment is told together (``finished_all``), so that the replies to one
client travel together. A handler that does not come back within its time is given up, its request answered,
and the next one begun; when too many of them are stuck the worker ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bstar.errors import BstarError, RemoteProtocolError, WorkerError
from bstar.printable import printable
from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX, BATCHED_BODY_BYTES_MAX
from bstar.wire.messages import ErrorCode
from bstar.wire.native import NO_IDENTITY
from bstar_client.core.fence import Fence, Moved
from bstar_client.core.lanes import Lanes
from bstar_client.core.outputs import Send
from bstar_client.core.worker_dialects import Heard, Hearing, Job, WorkerDialect

__all__ = [
    "Abandon",
    "Begin",
    "Close",
    "Ended",
    "Fenced",
    "KeepAlive",
    "Late",
    "Lost",
    "Open",
    "Registered",
    "WorkerCore",
    "WorkerCounters",
    "WorkerLimits",
    "WorkerOutput",
]


class Open(msgspec.Struct, frozen=True, gc=False):
    """Make a new socket to this node and connect it."""

    node: int


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the socket to this node."""

    node: int


class KeepAlive(msgspec.Struct, frozen=True, gc=False):
    """Connect the keepalive to this node, as ``routing_id``, in the place of an earlier one.

    It is a second connection over which libzmq alone talks: a PING each ``interval_ms``, which tells the
    broker to close it when none follows within ``ttl_ms``. It needs no interpreter, so a handler that holds
    the GIL does not look like a dead process (BSN-W-13).
    """

    node: int
    routing_id: bytes
    interval_ms: int
    ttl_ms: int


class Late(msgspec.Struct, frozen=True, gc=False):
    """The process did not come to send a heartbeat for so long after it was due.

    ``is_busy``: a handler ran meanwhile.
    """

    late_s: float
    is_busy: bool


class Begin(msgspec.Struct, frozen=True, gc=False):
    """Run the handler on each of these requests, in order, after it was claimed (``WorkerCore.claim``).

    ``are_one_clients``: one client sent all of them.
    """

    jobs: list[Job]
    are_one_clients: bool = False


class Abandon(msgspec.Struct, frozen=True, gc=False):
    """This request's handler is stuck: leave it alone and make room for another."""

    job: Job


class Fenced(msgspec.Struct, frozen=True, gc=False):
    """A request of a superseded node was refused; ``epoch_seen`` is the epoch that superseded it."""

    job: Job
    epoch_seen: int


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A node has the worker on its list (plain MDP: it was told, and does not confirm)."""

    endpoint: str


class Lost(msgspec.Struct, frozen=True, gc=False):
    """The session with a node ended. ``reason``: disconnected, silent, or what its DISCONNECT said."""

    endpoint: str
    reason: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The worker is done: drained, or with an error."""

    error: BstarError | None = None


# PINGs within the time to live of a keepalive.
_PINGS = 4
# libzmq counts that time in tenths of a second.
_TTL_STEP_MS = 100
# What ``pop`` tells of a request that is not there; one that is has None.
_TAKEN_BACK = object()
# The first octet of a number that was derived from a key, or larger.
_KEYED = 0x40


class _Replies:
    """Replies that go out in one message."""

    __slots__ = ("bodies", "jobs", "octets")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bodies: list[bytes] = []
        self.octets = 0

    def add(self, job: Job, body: bytes) -> bool:
        """One more; False if the batch would not stay within its bounds."""
        octets = self.octets + len(body)
        if octets > BATCH_BYTES_MAX or len(self.jobs) >= BATCH_ROWS_MAX:
            return False
        self.octets = octets
        self.jobs.append(job)
        self.bodies.append(body)
        return True


WorkerOutput = Send | Open | Close | KeepAlive | Late | Begin | Abandon | Fenced | Registered | Lost | Ended


class WorkerLimits(msgspec.Struct, frozen=True):
    """Bounds and timing of a worker.

    ``credit``: requests that each node may give it at once. ``running_max``: how many handlers the shell runs
    at once, None for as many; what is more waits there for its turn.
    ``handler_timeout_s``: None for no limit. ``stuck_handlers_max``: that many handlers past their time
    and still running end the worker. ``drain_timeout_s``: how long ``stop`` waits for what runs.
    ``backoff_min_s``/``backoff_max_s``: the pause before a new socket, doubled with each failure in a
    row.
    """

    credit: int = 1
    handler_timeout_s: float | None = None
    stuck_handlers_max: int = 3
    drain_timeout_s: float = 10.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0
    running_max: int | None = None


class WorkerCounters:
    """What happened, as plain integers."""

    def __init__(self) -> None:
        self.requests = 0
        self.finished = 0
        self.replayed = 0
        self.failed = 0
        self.timed_out = 0
        self.expired = 0
        self.stale = 0
        self.registrations = 0
        self.sessions_lost = 0
        self.replies_dropped = 0
        self.requests_dropped = 0
        self.results_late = 0
        self.messages_invalid = 0
        self.messages_ignored = 0


class _Session:
    def __init__(self, index: int, endpoint: str) -> None:
        self.index = index
        self.endpoint = endpoint
        self.connection = 0  # 0: not connected
        self.is_registered = False
        self.registered_at = 0.0
        self.has_left = False
        self.takes_batches = False
        self.heartbeat_s = 0.0
        self.expiry_s = 0.0
        self.heartbeat_at = 0.0
        self.expires_at = 0.0
        self.reopen_at: float | None = None
        self.failures = 0
        self.held = 0  # requests given to us by this connection and not answered


class WorkerCore:
    """A worker for one service. ``jitter`` returns numbers in 0 ≤ x < 1.

    ``name``: 20 octets that no other worker has, the first of them not zero; connections are named after it.
    Empty: without keepalives.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        service: bytes,
        dialect: WorkerDialect,
        *,
        jitter: Callable[[], float],
        limits: WorkerLimits | None = None,
        name: bytes = b"",
    ) -> None:
        assert not name or (len(name) == 20 and name[0])
        self._name = name
        self._sessions = [_Session(index, endpoint) for index, endpoint in enumerate(endpoints)]
        self._service = service
        self._dialect = dialect
        self._jitter = jitter
        self._limits = limits or WorkerLimits()
        self._connections = 0
        self._queue = Lanes()
        # What the shell has, in order; and what of it no handler has been called for.
        self._running: dict[Job, None] = {}
        self._unclaimed: dict[Job, None] = {}
        # A handler's time is counted from Begin: with a limit to it nothing waits in the shell.
        self._begin_max = self._limits.credit
        if self._limits.handler_timeout_s is not None and self._limits.running_max is not None:
            self._begin_max = self._limits.running_max
        self._stuck = 0
        self._drain_ends_at: float | None = None
        self._has_ended = False
        self._fence = Fence()
        self.counters = WorkerCounters()

    @property
    def epoch(self) -> int:
        """The epoch that it obeys, 0 before any node served."""
        return self._fence.epoch

    @property
    def is_stopping(self) -> bool:
        """Was it told to stop?"""
        return self._drain_ends_at is not None

    @property
    def running(self) -> int:
        """How many requests are with handlers now, without those that are stuck."""
        return len(self._running)

    @property
    def unfinished(self) -> list[Job]:
        """What handlers run now, without those that are stuck: at the end, what was not waited for."""
        return list(self._running)

    # --- the connections' side ----------------------------------------------------------------------------

    def connected(self, node: int, now: float) -> list[WorkerOutput]:
        """A new connection is ready: register."""
        session = self._sessions[node]
        if self._drain_ends_at is not None or self._has_ended:
            return []
        outputs: list[WorkerOutput] = []
        if session.connection:
            self._lose(session, "disconnected", outputs, now)
        self._connections += 1
        session.connection = self._connections
        session.takes_batches = False
        session.heartbeat_s = self._dialect.heartbeat_s
        session.expiry_s = self._dialect.expiry_s
        session.expires_at = now + session.expiry_s
        session.heartbeat_at = now
        ready = self._dialect.ready(
            self._service, self._limits.credit, self.epoch, self._keepalive_of(session)
        )
        self._send(session, ready, outputs, now)
        if not self._dialect.is_confirming:
            self._register(session, outputs, now)
        return outputs

    def disconnected(self, node: int, now: float) -> list[WorkerOutput]:
        """The connection broke; the socket connects again by itself."""
        session = self._sessions[node]
        outputs: list[WorkerOutput] = []
        if session.connection:
            self._lose(session, "disconnected", outputs, now)
            self._end_if_drained(outputs, now)
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[WorkerOutput]:
        """A message came from a node. Octets that are no message are counted and ignored."""
        session = self._sessions[node]
        if not session.connection or session.has_left:
            self.counters.messages_ignored += 1
            return []
        try:
            heard = self._dialect.read(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return []
        session.expires_at = now + session.expiry_s
        outputs: list[WorkerOutput] = []
        if heard.is_active:
            moved = self._fence.hear(heard.epoch, heard.expiry_s or session.expiry_s, now)
            if moved is Moved.UP:
                self._obey(session, outputs, now)
            elif moved is Moved.DOWN:
                # Until it is told, the node gives us nothing.
                self._send(session, self._dialect.heartbeat(heard.epoch), outputs, now)
        if heard.kind is Hearing.REQUEST:
            self._take(session, heard, outputs, now)
        elif heard.kind is Hearing.REQUESTS:
            self._take_all(session, heard, outputs, now)
        elif heard.kind is Hearing.WELCOME:
            session.takes_batches = heard.takes_batches
            session.heartbeat_s = heard.heartbeat_s
            session.expiry_s = heard.expiry_s
            session.expires_at = now + heard.expiry_s
            session.heartbeat_at = min(session.heartbeat_at, now + heard.heartbeat_s)
            if self._name:
                # It ends before the worker's expiry, so that the first probe of a dead process finds that.
                ttl_ms = int((heard.expiry_s - heard.heartbeat_s) * 1000) // _TTL_STEP_MS * _TTL_STEP_MS
                ttl_ms = max(ttl_ms, _TTL_STEP_MS)
                outputs.append(
                    KeepAlive(session.index, self._keepalive_of(session), max(ttl_ms // _PINGS, 1), ttl_ms)
                )
            self._register(session, outputs, now)
        elif heard.kind is Hearing.DISCONNECT:
            self._start_over(session, heard.reason, outputs, now)
        return outputs

    # --- the handlers' side -------------------------------------------------------------------------------

    def claim(self, job: Job) -> bool:
        """The handler is about to be called for this request. False: not any more, it was taken back.

        The only method that may be called from any thread.
        """
        return self._unclaimed.pop(job, _TAKEN_BACK) is None

    def _take_back(self, of: Callable[[Job], bool]) -> list[Job]:
        """Those that no handler has been called for; now none will be."""
        taken = [
            job
            for job in [job for job in list(self._unclaimed) if of(job)]
            if self._unclaimed.pop(job, _TAKEN_BACK) is None
        ]
        for job in taken:
            del self._running[job]
        return taken

    def partial(self, job: Job, body: list[bytes], now: float) -> list[WorkerOutput]:
        """The handler has a part of the reply."""
        outputs: list[WorkerOutput] = []
        if job.is_ended:
            self.counters.results_late += 1
            return outputs
        self._answer(job, self._dialect.partial(job, body), outputs, now)
        job.partials += 1
        return outputs

    def finished(self, job: Job, body: list[bytes], now: float) -> list[WorkerOutput]:
        """The handler is done."""
        outputs: list[WorkerOutput] = []
        if self._is_late(job):
            return outputs
        self.counters.finished += 1
        self._answer(job, self._dialect.final(job, body), outputs, now)
        self._end(job, outputs, now)
        return outputs

    def finished_all(self, results: Sequence[tuple[Job, list[bytes]]], now: float) -> list[WorkerOutput]:
        """Several handlers are done."""
        outputs: list[WorkerOutput] = []
        together: dict[tuple[int, bytes, int], _Replies] = {}
        sessions, running = self._sessions, self._running
        for job, body in results:
            session = sessions[job.node]
            identity, first = job.identity, body[0]
            if (
                len(body) != 1
                or job.is_ended
                or job.partials
                or not session.takes_batches
                or session.connection != job.connection
                or session.has_left
                or len(first) > BATCHED_BODY_BYTES_MAX
                or identity[16] >= _KEYED
            ):
                outputs += self.finished(job, body, now)
                continue
            self.counters.finished += 1
            del running[job]
            job.is_ended = True
            session.held -= 1
            group = (job.node, identity[:16], job.epoch)
            replies = together.get(group)
            if replies is None or not replies.add(job, first):
                if replies is not None:
                    self._reply_together(replies, outputs, now)
                replies = together[group] = _Replies()
                replies.add(job, first)
        for replies in together.values():
            self._reply_together(replies, outputs, now)
        self._go_on(outputs, now)
        return outputs

    def _reply_together(self, replies: "_Replies", outputs: list[WorkerOutput], now: float) -> None:
        job = replies.jobs[0]
        if len(replies.jobs) == 1 and not job.is_batched:
            frames = self._dialect.final(job, replies.bodies)
        else:
            frames = self._dialect.finals(replies.jobs, replies.bodies)
        self._send(self._sessions[job.node], frames, outputs, now, is_reply=True)

    def _go_on(self, outputs: list[WorkerOutput], now: float) -> None:
        """Requests have ended: begin others, or leave."""
        if self._drain_ends_at is None:
            self._begin(outputs, now)
            return
        for session in self._sessions:
            self._leave_if_idle(session, outputs)
        self._end_if_drained(outputs, now)

    def expired(self, job: Job, now: float) -> list[WorkerOutput]:
        """Its time was over when its handler was to be called, and it was not."""
        outputs: list[WorkerOutput] = []
        if self._is_late(job):
            return outputs
        self._answer_expired(job, outputs, now)
        self._end(job, outputs, now)
        return outputs

    def replayed(self, job: Job, body: list[bytes], now: float) -> list[WorkerOutput]:
        """The reply of an earlier execution answers this request; it was not executed again."""
        self.counters.replayed += 1
        return self.finished(job, body, now)

    def failed(self, job: Job, text: str, now: float) -> list[WorkerOutput]:
        """The handler raised."""
        outputs: list[WorkerOutput] = []
        if self._is_late(job):
            return outputs
        self.counters.failed += 1
        self._answer(job, self._dialect.failure(job, ErrorCode.HANDLER_FAILED, text), outputs, now)
        self._end(job, outputs, now)
        return outputs

    def _is_late(self, job: Job) -> bool:
        if job.is_ended:
            self.counters.results_late += 1
            self._stuck -= job.is_abandoned
        return job.is_ended

    # --- the end ------------------------------------------------------------------------------------------

    def stop(self, now: float) -> list[WorkerOutput]:
        """Take nothing more, finish what runs (within the drain timeout), leave every node, end."""
        outputs: list[WorkerOutput] = []
        if self._drain_ends_at is not None or self._has_ended:
            return outputs
        self._drain_ends_at = now + self._limits.drain_timeout_s
        # What has not begun goes back to its queue with the DISCONNECT.
        dropped = [*self._queue, *self._take_back(lambda job: True)]
        self.counters.requests_dropped += len(dropped)
        for job in dropped:
            job.is_ended = True
        self._queue.clear()
        for session in self._sessions:
            self._leave_if_idle(session, outputs)
        self._end_if_drained(outputs, now)
        return outputs

    def end(self, now: float) -> list[WorkerOutput]:
        """Leave every node at once. What runs is not waited for: its node gives it to another worker."""
        outputs = self.stop(now)
        if not self._has_ended:
            self._finish(None, outputs)
        return outputs

    def _leave_if_idle(self, session: _Session, outputs: list[WorkerOutput]) -> None:
        if not self._is_at_work_for(session):
            self._leave(session, outputs)

    def _is_at_work_for(self, session: _Session) -> bool:
        return any(job.connection == session.connection for job in self._running)

    def _leave(self, session: _Session, outputs: list[WorkerOutput]) -> None:
        if session.connection and not session.has_left:
            session.has_left = True
            is_unbegun = not self._is_at_work_for(session)
            outputs.append(Send(session.index, self._dialect.disconnect(self.epoch, is_unbegun)))

    def _end_if_drained(self, outputs: list[WorkerOutput], now: float) -> None:
        ends_at = self._drain_ends_at
        if ends_at is None or self._has_ended:
            return
        if self._running and now < ends_at:
            return
        self._finish(None, outputs)

    def _finish(self, error: BstarError | None, outputs: list[WorkerOutput]) -> None:
        for session in self._sessions:
            self._leave(session, outputs)
        self._has_ended = True
        outputs.append(Ended(error))

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        if self._has_ended:
            return None
        due: list[float] = []
        for session in self._sessions:
            if session.connection:
                if not session.has_left:
                    due.append(min(session.heartbeat_at, session.expires_at))
            elif session.reopen_at is not None and self._drain_ends_at is None:
                due.append(session.reopen_at)
        if self._limits.handler_timeout_s is not None and self._running:
            # All have the same time, so the first that began is the first that is over.
            ends_at = next(iter(self._running)).handler_ends_at
            assert ends_at is not None
            due.append(ends_at)
        if self._drain_ends_at is not None:
            due.append(self._drain_ends_at)
        return min(due, default=None)

    def handle_timer(self, now: float) -> list[WorkerOutput]:
        """Heartbeats, silence, new sockets, handlers past their time, the end of draining."""
        outputs: list[WorkerOutput] = []
        if self._has_ended:
            return outputs
        for session in self._sessions:
            if session.connection:
                if session.has_left:
                    continue
                if now >= session.expires_at:
                    self._start_over(session, "silent", outputs, now)
                elif now >= session.heartbeat_at:
                    self._send(session, self._dialect.heartbeat(self.epoch), outputs, now)
            elif session.reopen_at is not None and now >= session.reopen_at and self._drain_ends_at is None:
                session.reopen_at = None
                outputs.append(Open(session.index))
        while (job := self._overdue(now)) is not None:
            self._give_up(job, outputs, now)
        self._end_if_drained(outputs, now)
        return outputs

    def _overdue(self, now: float) -> Job | None:
        first = next(iter(self._running), None)
        if first is None or first.handler_ends_at is None or now < first.handler_ends_at or self._has_ended:
            return None
        return first

    def _give_up(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        self.counters.timed_out += 1
        self._stuck += 1
        self._unclaimed.pop(job, None)
        job.is_abandoned = True
        text = f"the handler did not return within {self._limits.handler_timeout_s} s"
        self._answer(job, self._dialect.failure(job, ErrorCode.HANDLER_TIMEOUT, text), outputs, now)
        outputs.append(Abandon(job))
        if self._stuck >= self._limits.stuck_handlers_max:
            job.is_ended = True
            del self._running[job]
            handlers = f'{self._stuck} handlers of service "{printable(self._service)}"'
            error = WorkerError(f"{handlers} are stuck; {text}: restart the worker")
            self._finish(error, outputs)
        else:
            self._end(job, outputs, now)

    # --- sessions -----------------------------------------------------------------------------------------

    def _register(self, session: _Session, outputs: list[WorkerOutput], now: float) -> None:
        if not session.is_registered:
            session.is_registered = True
            session.registered_at = now
            self.counters.registrations += 1
            outputs.append(Registered(session.endpoint))

    def _lose(self, session: _Session, reason: str, outputs: list[WorkerOutput], now: float) -> None:
        """The session is over. What it gave us and has not begun is its broker's to give again."""
        connection = session.connection
        session.connection = 0
        if session.is_registered:
            if now - session.registered_at >= session.expiry_s:
                session.failures = 0
            session.is_registered = False
            self.counters.sessions_lost += 1
        outputs.append(Lost(session.endpoint, reason))
        waited = list(self._queue)
        self._queue.clear()
        for job in waited:
            if job.connection == connection:
                job.is_ended = True
                self.counters.requests_dropped += 1
            else:
                self._queue.push((job,))
        for job in self._take_back(lambda job: job.connection == connection):
            job.is_ended = True
            self.counters.requests_dropped += 1
        session.held = 0

    def _start_over(self, session: _Session, reason: str, outputs: list[WorkerOutput], now: float) -> None:
        """A new socket after a pause: exponential, bounded, with jitter so that workers spread."""
        self._lose(session, reason, outputs, now)
        outputs.append(Close(session.index))
        limits = self._limits
        pause_s = min(limits.backoff_min_s * 2.0 ** min(session.failures, 16), limits.backoff_max_s)
        session.failures += 1
        session.reopen_at = now + pause_s * (1.0 + self._jitter()) / 2 + limits.backoff_min_s / 2
        self._end_if_drained(outputs, now)

    def _keepalive_of(self, session: _Session) -> bytes:
        if not self._name:
            return NO_IDENTITY
        return self._name + session.connection.to_bytes(4, "big")

    def _send(
        self,
        session: _Session,
        frames: list[bytes],
        outputs: list[WorkerOutput],
        now: float,
        *,
        is_reply: bool = False,
    ) -> None:
        late_s = now - session.heartbeat_at
        if late_s > session.expiry_s / 2:
            outputs.append(Late(late_s, is_reply or bool(self._running)))
            # The other nodes were not told either; that is the same pause.
            for other in self._sessions:
                other.heartbeat_at = max(other.heartbeat_at, now)
        # Whatever is sent tells that we live, so the next heartbeat is counted from here (MDP2-W-09).
        session.heartbeat_at = now + session.heartbeat_s
        outputs.append(Send(session.index, frames))

    def _obey(self, source: _Session, outputs: list[WorkerOutput], now: float) -> None:
        """A higher epoch: requests of lower ones are not begun any more, and the other nodes are told."""
        epoch = self.epoch
        for session in self._sessions:
            if session is not source and session.connection and not session.has_left:
                self._send(session, self._dialect.heartbeat(epoch), outputs, now)
        waited = list(self._queue)
        self._queue.clear()
        for job in waited:
            if job.epoch < epoch:
                self._refuse(job, outputs, now)
            else:
                self._queue.push((job,))
        for job in self._take_back(lambda job: job.epoch < epoch):
            self._refuse(job, outputs, now)

    # --- requests -----------------------------------------------------------------------------------------

    def _take(self, session: _Session, heard: Heard, outputs: list[WorkerOutput], now: float) -> None:
        if self._drain_ends_at is not None:
            self.counters.requests_dropped += 1  # our DISCONNECT will give it back
            return
        if session.held >= self._limits.credit:
            self.counters.messages_invalid += 1  # more than we asked for; its broker is broken
            return
        self.counters.requests += 1
        deadline = now + heard.ttl_ms / 1000 if heard.ttl_ms else None
        job = Job(
            session.index,
            session.connection,
            heard.identity,
            heard.body,
            heard.epoch,
            deadline,
            heard.is_redelivered,
            heard.extensions,
        )
        session.held += 1
        if heard.epoch < self.epoch:
            self._refuse(job, outputs, now)
            return
        self._begin(outputs, now, (job,))

    def _take_all(self, session: _Session, heard: Heard, outputs: list[WorkerOutput], now: float) -> None:
        count = len(heard.identities)
        if self._drain_ends_at is not None:
            self.counters.requests_dropped += count
            return
        if session.held + count > self._limits.credit:
            self.counters.messages_invalid += 1
            return
        self.counters.requests += count
        session.held += count
        is_stale = heard.epoch < self.epoch
        arrived = []
        for identity, body, ttl_ms in zip(heard.identities, heard.bodies, heard.ttls_ms, strict=True):
            job = Job(
                session.index,
                session.connection,
                identity,
                [body],
                heard.epoch,
                now + ttl_ms / 1000 if ttl_ms else None,
                heard.is_redelivered,
                is_batched=True,
            )
            if is_stale:
                self._refuse(job, outputs, now)
            else:
                arrived.append(job)
        self._begin(outputs, now, arrived)

    def _begin(self, outputs: list[WorkerOutput], now: float, arrived: Sequence[Job] = ()) -> None:
        """Give the shell of what waits, and of what has arrived from one client, as much as it takes."""
        if self._has_ended:
            return
        begun: list[Job] = []
        running, timeout_s = self._running, self._limits.handler_timeout_s
        jobs: Iterable[Job] = arrived
        if self._queue or len(running) + len(arrived) > self._begin_max:
            if arrived:
                self._queue.push(arrived, are_one_clients=True)
            jobs = self._next_jobs()
        for job in jobs:
            if job.deadline is not None and now >= job.deadline:
                self._answer_expired(job, outputs, now)
                self._release(job)
                continue
            if timeout_s is not None:
                job.handler_ends_at = now + timeout_s
            running[job] = None
            begun.append(job)
        if begun:
            self._unclaimed.update(dict.fromkeys(begun))
            outputs.append(Begin(begun, are_one_clients=jobs is arrived))

    def _next_jobs(self) -> Iterator[Job]:
        queue, running = self._queue, self._running
        while queue and len(running) < self._begin_max:
            yield queue.pop()

    def _answer_expired(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        self.counters.expired += 1
        # Of a repeated request it cannot be said that nobody began it (BSN-W-09).
        code = ErrorCode.WORKER_LOST if job.is_redelivered else ErrorCode.EXPIRED
        text = "its time to live ended before this worker could begin"
        self._answer(job, self._dialect.failure(job, code, text), outputs, now)

    def _refuse(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        self.counters.stale += 1
        self._answer(job, self._dialect.stale(job, self.epoch), outputs, now)
        outputs.append(Fenced(job, self.epoch))
        self._release(job)

    def _answer(self, job: Job, frames: list[bytes], outputs: list[WorkerOutput], now: float) -> None:
        session = self._sessions[job.node]
        if session.connection != job.connection or session.has_left:
            self.counters.replies_dropped += 1  # its session is gone; the client asks again
            return
        self._send(session, frames, outputs, now, is_reply=True)

    def _release(self, job: Job) -> None:
        job.is_ended = True
        session = self._sessions[job.node]
        if session.connection == job.connection:
            session.held -= 1

    def _end(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        del self._running[job]
        self._release(job)
        if self._drain_ends_at is not None:
            self._leave_if_idle(self._sessions[job.node], outputs)
            self._end_if_drained(outputs, now)
        else:
            self._begin(outputs, now)
