"""The worker's core: a session with every node at once, and the requests that they send.

A worker registers with every node, so that a passive node knows it when it takes over (``node_sessions``).
Handlers run in the shell (``worker_jobs``): ``Begin`` asks it to run some, and it claims each when it calls
its handler. ``partial``, ``finished`` and ``failed`` report results. ``finished_all`` reports replies that
are ready together, so that those to one client travel as a batch. A handler that exceeds its time is given
up: its client gets an error, and the next request begins. If too many handlers are stuck, the worker ends.

The core fences: it answers a request below the epoch that it obeys with STALE_EPOCH and does not begin it
(``fence``). It does not begin a request whose client has stopped waiting.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from bstar.base.printable import printable
from bstar.errors import BstarError, RemoteProtocolError, WorkerError
from bstar.wire.limits import BATCHED_BODY_BYTES_MAX
from bstar.wire.messages import ErrorCode
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Heard, Hearing, Job, WorkerDialect, jobs_of
from bstar_client.core.worker.fence import Fence, Moved
from bstar_client.core.worker.handler_times import HandlerTimes
from bstar_client.core.worker.jobs import Jobs, ReplyBatch, WorkerLimits, why_unbegun
from bstar_client.core.worker.node_sessions import NodeSession, NodeSessions
from bstar_client.core.worker.outputs import Abandon, Cancel, Ended, Fenced, Open, WorkerOutput
from bstar_client.core.worker.progress import Pace

# A number that was derived from a key has at least this first byte.
_KEYED = 0x40


class WorkerCore:
    """A worker for one service. ``jitter`` returns numbers in 0 ≤ x < 1.

    ``name``: 20 bytes, unique, the first of them not zero; it begins the names of its connections. Empty: no
    keepalives.
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
        self._service = service
        self._dialect = dialect
        self._limits = limits or WorkerLimits()
        self._held_max = self._limits.credit + dialect.surplus_max
        self.sessions = NodeSessions(endpoints, dialect, self._limits, jitter, name)
        self._jobs = Jobs(self._limits)
        # The only method for any thread: the shell is about to call this handler. False: the core took it
        # back.
        self.claim: Callable[[Job], bool] = self._jobs.claim
        self._fence = Fence()
        self._pace: Pace[Job] = Pace()
        # The node whose epoch the worker obeys; None before any node served.
        self._leader: NodeSession | None = None
        self.stuck = 0
        self.times: HandlerTimes | None = None
        self._drain_ends_at: float | None = None
        self._has_ended = False
        self.counters = self.sessions.counters

    @property
    def epoch(self) -> int:
        """The epoch that the worker obeys; 0 before any node served."""
        return self._fence.epoch

    @property
    def is_stopping(self) -> bool:
        """True after ``stop``."""
        return self._drain_ends_at is not None

    @property
    def running(self) -> int:
        """How many handlers run now, without those that are stuck."""
        return len(self._jobs.running)

    def overdue_cancels(self, now: float) -> int:
        """How many handlers run that were cancelled ``cancel_grace_s`` ago, or before that."""
        until = now - self._limits.cancel_grace_s
        return sum(
            job.cancelled_at is not None and job.cancelled_at <= until for job in list(self._jobs.running)
        )

    @property
    def unfinished(self) -> list[Job]:
        """The requests whose handlers run now, without stuck ones. At the end: those that were given up."""
        return list(self._jobs.running)

    # --- the connections' side ----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The shell begins to connect: warn from now on of nodes that do not register the worker."""
        self.sessions.begin(now)

    def connected(self, node: int, now: float) -> list[WorkerOutput]:
        """A new connection is ready: register."""
        session = self.sessions[node]
        if self._drain_ends_at is not None or self._has_ended:
            return []
        outputs: list[WorkerOutput] = []
        if session.connection:
            self._lose(session, "disconnected", outputs, now)
        keepalive = self.sessions.connect(session, now)
        session.elsewhere = elsewhere = self._jobs.elsewhere(session.connection)
        ready = self._dialect.ready(self._service, self._limits.credit, self.epoch, keepalive, elsewhere)
        self._send(session, ready, outputs, now)
        if not self._dialect.is_confirming:
            self.sessions.register(session, outputs, now)
        return outputs

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[WorkerOutput]:
        """The connection broke, or an attempt to connect failed; the socket connects again by itself."""
        session = self.sessions[node]
        outputs: list[WorkerOutput] = []
        if session.connection:
            self._lose(session, "disconnected", outputs, now)
            self._end_if_drained(outputs, now)
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[WorkerOutput]:
        """A message came from a node. Garbage is counted and ignored."""
        session = self.sessions[node]
        if not session.is_open:
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
                # The node sends us no request until it hears this.
                self._leader = session
                self._beat(session, outputs, now)
        if heard.kind is Hearing.REQUEST or heard.kind is Hearing.REQUESTS:
            self._take(session, heard, outputs, now)
        elif heard.kind is Hearing.WELCOME:
            self.sessions.welcome(session, heard, outputs, now)
        elif heard.kind is Hearing.CANCEL:
            self._cancel(session, heard.identity, outputs, now)
        elif heard.kind is Hearing.DISCONNECT:
            self._start_over(session, heard.reason, outputs, now)
        return outputs

    # --- the handlers' side -------------------------------------------------------------------------------

    def partial(self, job: Job, body: list[bytes], now: float) -> list[WorkerOutput]:
        """The handler yielded a part of the reply."""
        outputs: list[WorkerOutput] = []
        if job.is_ended:
            self.counters.results_late += 1
            return outputs
        if frames := self._dialect.partial(job, body):
            self._answer(job, frames, outputs, now)
        job.partials += 1
        return outputs

    def progress(self, job: Job, now: float) -> list[WorkerOutput]:
        """The handler has reported how far it is (``Latest``)."""
        outputs: list[WorkerOutput] = []
        if not job.is_ended and job not in self._pace:
            self._send_progress(job, outputs, now)
        return outputs

    def _send_progress(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        """Send what the handler has reported last, if there is something new."""
        assert job.latest is not None, "it has reported"
        progress, session = job.latest.take(), self.sessions[job.node]
        if progress is None:
            return
        self._pace.hold(job, now)
        is_wanted = session.takes_progress and job.cancelled_at is None
        if is_wanted and session.owns(job) and not session.has_left:
            self._send(session, self._dialect.progress(job, progress), outputs, now, is_reply=True)

    def finished(self, job: Job, body: list[bytes], now: float) -> list[WorkerOutput]:
        """The handler returned."""
        outputs: list[WorkerOutput] = []
        if self._is_late(job):
            return outputs
        if job.cancelled_at is None:
            self.counters.finished += 1
        else:
            self.counters.cancelled += 1
        self._answer_last(job, self._dialect.final(job, body), outputs, now)
        self._end(job, outputs, now)
        return outputs

    def finished_all(self, results: Sequence[tuple[Job, list[bytes]]], now: float) -> list[WorkerOutput]:
        """Several handlers returned."""
        outputs: list[WorkerOutput] = []
        together: dict[tuple[int, bytes, int], ReplyBatch] = {}
        apart: list[tuple[Job, list[bytes]]] = []
        sessions, running = self.sessions, self._jobs.running
        for job, body in results:
            session = sessions[job.node]
            identity, first = job.identity, body[0]
            if (
                len(body) != 1
                or job.is_ended
                or job.partials
                or job.cancelled_at is not None
                or job.latest is not None
                or not session.takes_batches
                or session.connection != job.connection
                or session.has_left
                or len(first) > BATCHED_BODY_BYTES_MAX
                or identity[16] >= _KEYED
            ):
                apart.append((job, body))
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
                replies = together[group] = ReplyBatch()
                replies.add(job, first)
        for replies in together.values():
            self._reply_together(replies, outputs, now)
        # Behind the batches: the last one of a worker that drains ends it.
        for job, body in apart:
            outputs += self.finished(job, body, now)
        self._go_on(outputs, now)
        return outputs

    def _reply_together(self, replies: ReplyBatch, outputs: list[WorkerOutput], now: float) -> None:
        job = replies.jobs[0]
        if len(replies.jobs) == 1 and not job.is_batched:
            frames = self._dialect.final(job, replies.bodies)
        else:
            frames = self._dialect.finals(replies.jobs, replies.bodies)
        self._send(self.sessions[job.node], frames, outputs, now, is_reply=True)

    def _go_on(self, outputs: list[WorkerOutput], now: float) -> None:
        """Requests have ended: begin others, or leave."""
        leader = self._leader
        if (
            leader is not None
            and leader.elsewhere
            and leader.is_open
            and self._jobs.elsewhere(leader.connection) != leader.elsewhere
        ):
            # It may wait for the end of one of these (``running_max`` of the service).
            self._beat(leader, outputs, now)
        if self._drain_ends_at is None:
            self._begin(outputs, now)
        else:
            self._leave_idle(outputs, now)

    def expired(self, job: Job, now: float) -> list[WorkerOutput]:
        """The request expired before its handler was called."""
        outputs: list[WorkerOutput] = []
        if self._is_late(job):
            return outputs
        self._answer_unbegun(job, outputs, now)
        self._end(job, outputs, now)
        return outputs

    def replayed(self, job: Job, body: list[bytes], now: float) -> list[WorkerOutput]:
        """The kept reply of an earlier execution answers this request; it was not executed."""
        self.counters.replayed += 1
        return self.finished(job, body, now)

    def failed(
        self,
        job: Job,
        frames: list[bytes],
        now: float,
        code: ErrorCode = ErrorCode.HANDLER_FAILED,
        outcome: Literal["declined", "failed", "cancelled"] = "failed",
    ) -> list[WorkerOutput]:
        """The handler ended without a reply. ``frames``: the text for the client; behind it the data of a
        request that it declined (BSN-W-20), or when it wants another attempt (RETRY, BSN-W-15).
        """
        outputs: list[WorkerOutput] = []
        if self._is_late(job):
            return outputs
        setattr(self.counters, outcome, getattr(self.counters, outcome) + 1)
        self._answer_last(job, self._dialect.failure(job, code, *frames), outputs, now)
        self._end(job, outputs, now)
        return outputs

    def _is_late(self, job: Job) -> bool:
        if job.is_ended:
            self.counters.results_late += 1
            self.stuck -= job.is_abandoned
        return job.is_ended

    # --- the end ------------------------------------------------------------------------------------------

    def stop(self, now: float) -> list[WorkerOutput]:
        """Drain: take no more requests, finish running handlers (within the drain timeout), leave every node,
        end.
        """
        outputs: list[WorkerOutput] = []
        if self._drain_ends_at is not None or self._has_ended:
            return outputs
        self._drain_ends_at = now + self._limits.drain_timeout_s
        # With the DISCONNECT, requests that have not begun go back to their queue.
        self._drop(lambda job: True)
        self._leave_idle(outputs, now)
        return outputs

    def end(self, now: float) -> list[WorkerOutput]:
        """Leave every node at once, without waiting for handlers. The node gives their requests to other
        workers.
        """
        outputs = self.stop(now)
        if not self._has_ended:
            self._finish(None, outputs)
        return outputs

    def _leave_idle(self, outputs: list[WorkerOutput], now: float) -> None:
        """Leave the nodes that wait for nothing; end when no node is left."""
        for session in self.sessions:
            if not self._jobs.is_any_of(session.connection):
                self._leave(session, outputs)
        self._end_if_drained(outputs, now)

    def _leave(self, session: NodeSession, outputs: list[WorkerOutput]) -> None:
        if session.is_open:
            session.has_left = True
            is_unbegun = not self._jobs.is_any_of(session.connection)
            if frames := self._dialect.disconnect(self.epoch, is_unbegun):
                outputs.append(Send(session.index, frames))

    def _end_if_drained(self, outputs: list[WorkerOutput], now: float) -> None:
        ends_at = self._drain_ends_at
        if ends_at is None or self._has_ended:
            return
        if self._jobs.running and now < ends_at:
            return
        self._finish(None, outputs)

    def _finish(self, error: BstarError | None, outputs: list[WorkerOutput]) -> None:
        for session in self.sessions:
            self._leave(session, outputs)
        self._has_ended = True
        outputs.append(Ended(error))

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        if self._has_ended:
            return None
        times = (
            self.sessions.next_deadline(is_draining=self._drain_ends_at is not None),
            self._jobs.next_deadline(),
            self._drain_ends_at,
            self._pace.next_deadline(),
        )
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> list[WorkerOutput]:
        """Handle heartbeats, silence, new sockets, progress, overdue handlers and the end of the drain."""
        outputs: list[WorkerOutput] = []
        if self._has_ended:
            return outputs
        for session in self.sessions:
            if session.connection:
                if session.has_left:
                    continue
                self.sessions.rest(session, now)
                if now >= session.expires_at:
                    self._start_over(session, "silent", outputs, now)
                elif now >= session.heartbeat_at:
                    self._beat(session, outputs, now)
            elif session.reopen_at is not None and now >= session.reopen_at and self._drain_ends_at is None:
                session.reopen_at = None
                outputs.append(Open(session.index))
        if self._drain_ends_at is None:
            self.sessions.warn(outputs, now)
        for held in self._pace.pop_due(now):
            assert held.latest is not None, "it has reported"
            held.latest.is_told = False
            if not held.is_ended:
                self._send_progress(held, outputs, now)
        while (job := self._overdue(now)) is not None:
            self._give_up(job, outputs, now)
        self._end_if_drained(outputs, now)
        return outputs

    def _overdue(self, now: float) -> Job | None:
        return None if self._has_ended else self._jobs.overdue(now)

    def _give_up(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        self.counters.timed_out += 1
        self.stuck += 1
        self._jobs.give_up(job)
        text = f"the handler did not return within {self._limits.handler_timeout_s} s"
        frames = self._dialect.failure(job, ErrorCode.HANDLER_TIMEOUT, text.encode())
        self._answer_last(job, frames, outputs, now)
        outputs.append(Abandon(job))
        if self.stuck >= self._limits.stuck_handlers_max:
            job.is_ended = True
            del self._jobs.running[job]
            handlers = f'{self.stuck} handlers of service "{printable(self._service)}"'
            error = WorkerError(f"{handlers} are stuck; {text}: restart the worker")
            self._finish(error, outputs)
        else:
            self._end(job, outputs, now)

    # --- sessions -----------------------------------------------------------------------------------------

    def _lose(self, session: NodeSession, reason: str, outputs: list[WorkerOutput], now: float) -> None:
        """The session is over. Its broker gives the requests that have not begun to others."""
        connection = session.connection
        self.sessions.lose(session, reason, outputs, now)
        self._drop(lambda job: job.connection == connection)

    def _start_over(self, session: NodeSession, reason: str, outputs: list[WorkerOutput], now: float) -> None:
        self._lose(session, reason, outputs, now)
        self.sessions.close(session, outputs, now)
        self._end_if_drained(outputs, now)

    def _drop(self, of: Callable[[Job], bool]) -> None:
        """Forget the requests that have not begun; their broker gives them to others."""
        for job in self._jobs.take_back(of):
            job.is_ended = True
            self.counters.requests_dropped += 1

    def _send(
        self,
        session: NodeSession,
        frames: list[bytes],
        outputs: list[WorkerOutput],
        now: float,
        *,
        is_reply: bool = False,
    ) -> None:
        is_busy = is_reply or bool(self._jobs.running)
        self.sessions.send(session, frames, outputs, now, is_busy=is_busy)

    def _obey(self, source: NodeSession, outputs: list[WorkerOutput], now: float) -> None:
        """Obey a higher epoch: begin no request of a lower one, and tell the nodes, which also learn what the
        worker has begun before.
        """
        epoch = self.epoch
        self._leader = source
        refused = self._jobs.take_back(lambda job: job.epoch < epoch)
        for session in self.sessions:
            if session.is_open:
                self._beat(session, outputs, now)
        for job in refused:
            self._refuse(job, outputs, now)

    def _beat(self, session: NodeSession, outputs: list[WorkerOutput], now: float) -> None:
        """HEARTBEAT."""
        session.elsewhere = elsewhere = self._jobs.elsewhere(session.connection)
        self._send(session, self._dialect.heartbeat(self.epoch, elsewhere), outputs, now)

    # --- requests -----------------------------------------------------------------------------------------

    def _take(self, session: NodeSession, heard: Heard, outputs: list[WorkerOutput], now: float) -> None:
        count = 1 if heard.rows is None else len(heard.rows.identities)
        if self._drain_ends_at is not None:
            self.counters.requests_dropped += count  # our DISCONNECT returns it
            return
        if session.held + count > self._held_max:
            self.counters.messages_invalid += 1  # more than we asked for; its broker is broken
            return
        self.counters.requests += count
        session.held += count
        arrived = jobs_of(heard, session.index, session.connection, now)
        if heard.epoch < self.epoch:
            for job in arrived:
                self._refuse(job, outputs, now)
            return
        self._begin(outputs, now, arrived)

    def _begin(self, outputs: list[WorkerOutput], now: float, arrived: Sequence[Job] = ()) -> None:
        """Give the shell as many requests as it takes, from those that wait and those that have arrived."""
        if self._has_ended:
            return
        begin, unbegun = self._jobs.begin(arrived, now)
        for job in unbegun:
            self._answer_unbegun(job, outputs, now)
            self._release(job)
        if begin is not None:
            outputs.append(begin)

    def _cancel(self, session: NodeSession, identity: bytes, outputs: list[WorkerOutput], now: float) -> None:
        """The node says that no client waits for this request any more (BSN-W-19)."""
        job = self._jobs.find(identity, session.connection)
        if job is None or job.cancelled_at is not None:
            return
        if self._jobs.take_back(lambda other: other is job):
            self.counters.cancelled += 1
            text = b"cancelled before its handler began"
            self._answer(job, self._dialect.failure(job, ErrorCode.CANCELLED, text), outputs, now)
            self._release(job)
            self._go_on(outputs, now)
            return
        job.cancelled_at = now
        outputs.append(Cancel(job))

    def _answer_unbegun(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        code, text = why_unbegun(job)
        self.counters.messages_invalid += code == ErrorCode.INVALID
        self.counters.expired += code != ErrorCode.INVALID
        self._answer(job, self._dialect.failure(job, code, text), outputs, now)

    def _refuse(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        self.counters.stale += 1
        self._answer(job, self._dialect.stale(job, self.epoch), outputs, now)
        outputs.append(Fenced(job, self.epoch))
        self._release(job)

    def _answer(self, job: Job, frames: list[bytes], outputs: list[WorkerOutput], now: float) -> None:
        session = self.sessions[job.node]
        if not session.owns(job) or session.has_left:
            self.counters.replies_dropped += 1  # its session is gone; the client sends it again
            return
        self.sessions.rest(session, now)
        self._send(session, frames, outputs, now, is_reply=True)

    def _answer_last(self, job: Job, frames: list[bytes], outputs: list[WorkerOutput], now: float) -> None:
        """Answer, after the last progress that was reported."""
        if job.latest is not None:
            self._send_progress(job, outputs, now)
        self._answer(job, frames, outputs, now)

    def _release(self, job: Job) -> None:
        job.is_ended = True
        session = self.sessions[job.node]
        if session.owns(job):
            session.held -= 1

    def _end(self, job: Job, outputs: list[WorkerOutput], now: float) -> None:
        del self._jobs.running[job]
        self._release(job)
        self._go_on(outputs, now)
