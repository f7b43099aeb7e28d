"""EventMQ's job managers and clients: the production cores, and what their shells do (bstar_client/emq).

Each is connected to one node at a time, through a door of the EventMQ front, with an identity of its own
choice. What is sent before the connection is up waits for it, as in a DEALER.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bstar.errors import BusyError, CallTimeoutError, OutcomeUnknownError
from bstar.wire import emq
from bstar.wire.emq_jobs import NO_HEADERS, Headers, decode_result, encode_result
from bstar_client.core.calls import Reply
from bstar_client.core.emq.calls import CallOutput, CallSettings, EmqCalls, Failed, Pending, Result
from bstar_client.core.emq.manager import Close, ManagerSession, ManagerSettings, Open, Output, Run, Send
from bstar_client.core.worker.dialects import Job
from sim.client import OUTSTANDING_MAX, CallWatcher, Issued, Load
from sim.dialects import body_of, read_body
from sim.network import Frames, Link, LinkOwner
from sim.worker import WorkWatcher
from sim.world import World

if TYPE_CHECKING:
    from sim.node import SimNode
    from sim.store import StoredJobs

# Shorter than the defaults, as the rest of the pair is in most runs.
HEARTBEAT_S: Final = 1.0
EXPIRY_S: Final = 3.0
_SILENCE_S = 5.0
_ANSWER_S = 2.0
_PAUSE_S = 0.5
# After a fault: a silent router is given up, the next one does not answer, or says KBYE.
RECOVERY_S: Final = 2 * (_SILENCE_S + _ANSWER_S + _PAUSE_S) + EXPIRY_S
_RETRIED_SHARE = 0.3
# Of all that a client asks where there is a store: guaranteed jobs and schedules, and of these the schedules.
_STORED_SHARE = 0.3
_SCHEDULES_SHARE = 0.3
# A client publishes beside so many of its requests.
_PUBLISH_EACH = 4
# So long a client waits for a router; so long after UNSCHEDULE the last run may begin in calm.
_PATIENCE_S = 30.0
END_S = 8.0


def message_of(name: str) -> str:
    """A job without blanks: it is its own token at workers."""
    return json.dumps(["run", {"path": name, "callable": "go"}], separators=(",", ":"))


def plain_of(frames: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The frames of a job's result; other replies as they are."""
    if len(frames) == 1 and frames[0].startswith(b"{"):
        return tuple(str(part).encode() for part in decode_result(frames[0]))
    return frames


class EmqPeer(LinkOwner):
    """What managers and clients have in common: the one link that is open, and what waits for it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._link: Link | None = None
        self._sockets = 0
        self._unsent: list[Frames] = []

    def _new_id(self) -> bytes:
        return self.rng.randbytes(8).hex().encode()

    def _begin(self) -> None:
        self.boot()
        self._unsent.clear()
        self._link = None

    def _shut(self, *, is_silent: bool = False) -> None:
        if self._link is not None:
            self._link.close(is_silent=is_silent)
            self._link = None
        self._unsent.clear()

    def _carry_out(self, output: Open | Close | Send) -> None:
        match output:
            case Open(router, identity):
                self._shut()
                self._sockets += 1
                self._link = next(link for link in self.links if link.node.name == router)
                self._link.claims = identity
                self._link.open()
            case Close():
                self._shut()
            case Send(frames) if self._link is not None and self._link.connection is not None:
                self._link.send(frames)
            case Send(frames):
                self._unsent.append(frames)

    def _change(self, node: int, is_up: bool, now: float) -> None:
        if is_up:
            unsent, self._unsent = self._unsent, []
            for frames in unsent:
                self._carry_out(Send(frames))
            self._connected(now)
        else:
            self._lost(now)

    def catch_up(self) -> None:
        """One turn of the loop: messages, changes of the connection, what was due before."""
        self.is_held = False
        now = self.clock()
        due = self.deadline()
        messages, self._messages = self._messages, deque()
        changes, self._changes = self._changes, deque()
        socket = self._sockets
        self._catch_up_with_work()
        # What came through a socket that is closed meanwhile is gone with it.
        for node, frames in messages:
            if self._link is not None and socket == self._sockets:
                self._receive(node, frames, now)
        for node, is_up in changes:
            if self._link is not None and socket == self._sockets:
                self._change(node, is_up, now)
        if due is not None and now >= due and self.is_alive:
            self.on_time()

    def _catch_up_with_work(self) -> None:
        """What ended while it was frozen."""

    def _receive(self, node: int, frames: Frames, now: float) -> None:
        self._do(self.core.receive(frames, now))

    def _connected(self, now: float) -> None:
        raise NotImplementedError

    def _lost(self, now: float) -> None:
        raise NotImplementedError


class SimManager(EmqPeer):
    """A job manager with as many processes as it has ``credit``."""

    is_native = False
    label = ""
    epoch_seen = 0  # its protocol has no word for it

    def __init__(
        self,
        world: World,
        name: str,
        watcher: WorkWatcher,
        *,
        credit: int,
        handler_s: float,
        service: str,
        pair: str,
    ) -> None:
        super().__init__(world, name)
        self.core: ManagerSession
        self.service = service
        self.pair = pair
        self.slowness = 1.0
        self.lie = 0  # there is nothing that it could lie about
        self._watcher = watcher
        self._credit = credit
        self._handler_s = handler_s
        self._results: deque[Run] = deque()

    def start(self) -> None:
        """A new run: a new manager, which takes turns from either node on."""
        self._begin()
        self._results.clear()
        routers = [link.node.name for link in self.links]
        self.rng.shuffle(routers)
        settings = ManagerSettings(
            tuple(routers),
            (emq.Queue(10, self.service),),
            heartbeat_s=HEARTBEAT_S,
            silence_s=_SILENCE_S,
            answer_s=_ANSWER_S,
            pause_s=_PAUSE_S,
        )
        self.core = ManagerSession(settings, self._new_id, lambda: self.world.now)
        now = self.clock()
        self._do(self.core.start(now))
        for _ in range(self._credit):
            self._do(self.core.freed(now))
        self.arrange()

    def stop(self) -> None:
        """SIGTERM: drain and leave."""
        if self.is_awake:
            self.world.note(f"{self.name} is asked to leave")
            self.is_stopping = True
            self._do(self.core.drain(self.clock()))
            self._end_if_drained()
            self.arrange()

    def _end_if_drained(self) -> None:
        if self.is_stopping and self.core.is_idle:
            self.die()

    def _connected(self, now: float) -> None:
        """Its INFORM has gone out."""

    def _lost(self, now: float) -> None:
        self._do(self.core.lost("the connection broke or was refused", now))
        self._end_if_drained()

    def _do(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Run):
                self._run(output)
            elif isinstance(output, Open | Close | Send):
                self._carry_out(output)

    def _run(self, run: Run) -> None:
        token = read_body(run.request.message)[0]
        self._watcher.work_begun(self, token, Job(0, run.connection, b"", [run.request.message]))
        duration_s = self.rng.expovariate(1.0 / (self._handler_s * self.slowness))
        self.world.after(duration_s, partial(self._step, self.runs, run))

    def _step(self, run: int, job: Run) -> None:
        if run != self.runs or not self.is_alive:
            return
        if self.is_frozen:
            self._results.append(job)
        else:
            self._tell(job)
            self.arrange()

    def _catch_up_with_work(self) -> None:
        results, self._results = self._results, deque()
        for job in results:
            if self.is_alive:
                self._tell(job)

    def _tell(self, job: Run) -> None:
        now = self.clock()
        token, kind = read_body(job.request.message)
        value = ["500", token] if kind == "fail" else [token, "0"]
        self._do(self.core.ended(job, encode_result(value), now))
        self._do(self.core.freed(now))
        self._end_if_drained()


class Publications:
    """(r) A publication leaves the pair once at most, from a node that serves, and before it is confirmed."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self.counts: Counter[str] = Counter()
        self._published: set[str] = set()

    def left(self, node: SimNode, token: str) -> None:
        """A node hands it to its subscribers."""
        self.counts["publications"] += 1
        if token in self._published or not node.has_role:
            self._fail("r", f"{node.name} publishes {token} a second time, or without the role")
        self._published.add(token)

    def was_confirmed(self, token: str) -> None:
        """Its publisher gets the answer that it asked for."""
        self.counts["confirmed publications"] += 1
        if token not in self._published:
            self._fail("r", f"{token} is confirmed and was not published")


class SimEmqClient(EmqPeer):
    """A client of EventMQ whose every request and publication asks for its result."""

    outstanding_max = OUTSTANDING_MAX

    def __init__(
        self,
        world: World,
        name: str,
        load: Load,
        watcher: CallWatcher,
        *,
        service: str,
        publications: Publications,
        stored: StoredJobs | None = None,
    ) -> None:
        super().__init__(world, name)
        self._stored = stored
        self._publications = publications
        # Guaranteed jobs without REPLY, by msgid, and the schedule that is on.
        self._sure: dict[bytes, str] = {}
        self._schedule = ""
        self.core: EmqCalls
        self.load = load
        self._watcher = watcher
        self._service = service
        self._numbers = 0
        # By msgid: the call, and whether the front may run it again.
        self._open: dict[bytes, tuple[Issued, bool]] = {}

    @property
    def outstanding(self) -> int:
        """Calls that have not ended."""
        return len(self._open)

    def start(self) -> None:
        """A new run: a new client, which takes turns from either node on."""
        self._begin()
        self._open.clear()
        self._sure.clear()
        routers = [link.node.name for link in self.links]
        self.rng.shuffle(routers)
        self.core = EmqCalls(CallSettings(tuple(routers)), self._new_id)
        self._do(self.core.start(self.clock()))
        self._ask_later()
        self.arrange()

    def close(self) -> None:
        """The program closes its client: whoever waits is told that the outcome is unknown."""
        if self.is_awake:
            for issued, _ in self._open.values():
                self._watcher.call_failed(issued, OutcomeUnknownError("the client was closed"))
            self._open.clear()
            self.die()

    # --- calls --------------------------------------------------------------------------------------------

    def _ask_later(self) -> None:
        self.world.after(self.rng.expovariate(self.load.calls_per_s), partial(self._ask, self.runs))

    def _ask(self, run: int) -> None:
        if run != self.runs or not self.is_alive:
            return
        self._ask_later()
        if self.is_frozen or len(self._open) >= OUTSTANDING_MAX // 2:
            return
        self._numbers += 1
        now = self.clock()
        if self._numbers % _PUBLISH_EACH == 0:
            self._publish(now)
        timeout_s = self.rng.uniform(self.load.deadline_min_s, self.load.deadline_max_s)
        if self._stored is not None and self.rng.random() < _STORED_SHARE:
            self._send_stored(self._stored)
            return
        is_retried = self.rng.random() < _RETRIED_SHARE
        issued = Issued(
            f"{self.name}.{self._numbers}",
            self.name,
            "echo",
            self.world.now,
            self.true_time(now + timeout_s),
            True,
            "emq",
            self._service,
            False,
        )
        msgid = self._new_id()
        headers = Headers(reply_requested=True, retry_count=2 if is_retried else None)
        asked = emq.Request(msgid, self._service, body_of(issued.token, "echo"), headers)
        self._open[msgid] = issued, is_retried
        self._watcher.call_made(issued)
        pending = Pending(msgid, emq.encode(asked), now + timeout_s, wants_result=True)
        self._do(self.core.submit(pending, now))
        self.arrange()

    def _publish(self, now: float) -> None:
        token = f"{self.name}.{self._numbers}".encode()
        frames = emq.encode(emq.Publish(token, b"news", token, Headers(reply_requested=True)))
        self._do(self.core.submit(Pending(token, frames, now + _PATIENCE_S, wants_result=True), now))

    def _send_stored(self, stored: StoredJobs) -> None:
        """A guaranteed job; sometimes a schedule begins, is asked for once more, or ends."""
        draw = self.rng.random()
        if draw < _SCHEDULES_SHARE:
            self._schedule = self._schedule or message_of(f"{self.name}.s{self._numbers}")
            stored.scheduled(self._schedule)
            self._submit(emq.Schedule(self._new_id(), self._service, self._schedule.encode(), NO_HEADERS, 1))
        elif draw < 1.1 * _SCHEDULES_SHARE and self._schedule:
            self._unschedule()
        else:
            message = message_of(f"{self.name}.{self._numbers}")
            msgid = self._new_id()
            self._sure[msgid] = message
            self._submit(emq.Request(msgid, self._service, message.encode(), Headers(guarantee=True)))

    def _unschedule(self) -> None:
        ended = emq.Unschedule(self._new_id(), self._service, self._schedule.encode())
        self._submit(ended)
        self._schedule = ""

    def end_schedule(self) -> None:
        """The faults are over: the schedule ends for certain."""
        if self._stored is not None and self._schedule:
            self._stored.must_end(self._schedule, self.world.now + END_S)
            self._unschedule()

    def _submit(self, message: emq.Message) -> None:
        now = self.clock()
        pending = Pending(message.msgid, emq.encode(message), now + _PATIENCE_S, is_repeatable=True)
        self._do(self.core.submit(pending, now))
        self.arrange()

    # --- the loop -----------------------------------------------------------------------------------------

    def _receive(self, node: int, frames: Frames, now: float) -> None:
        if self._stored is not None:
            heard = emq.decode(frames)
            if isinstance(heard, emq.Reply) and heard.value is None and heard.about in self._sure:
                self._stored.was_accepted(self._sure.pop(heard.about))
        super()._receive(node, frames, now)

    def _connected(self, now: float) -> None:
        self._do(self.core.connected(now))

    def _lost(self, now: float) -> None:
        self._do(self.core.lost("the connection broke or was refused", now))

    def _do(self, outputs: Sequence[CallOutput]) -> None:
        for output in outputs:
            if isinstance(output, Open | Close | Send):
                self._carry_out(output)
            elif isinstance(output, Result):
                self._end(output)
            elif isinstance(output, Failed) and output.msgid in self._open:
                issued, _ = self._open.pop(output.msgid)
                text = "no result in time" if output.is_late else "the connection ended"
                self._watcher.call_failed(issued, CallTimeoutError(text, may_have_executed=output.was_sent))

    def _end(self, result: Result) -> None:
        if result.msgid not in self._open:
            # A guaranteed job or a schedule is refused, or a publication ends.
            if result.value == encode_result(True):
                self._publications.was_confirmed(result.msgid.decode())
            return
        issued, is_retried = self._open.pop(result.msgid)
        value = decode_result(result.value)
        if isinstance(value, list):
            assert self._link is not None
            reply = Reply(plain_of((result.value,)), endpoint=self._link.node.name)
            self._watcher.call_answered(issued, reply)
        elif str(value).startswith("refused: ") and not is_retried:
            self._watcher.call_failed(issued, BusyError(str(value)))
        else:
            self._watcher.call_failed(issued, OutcomeUnknownError(str(value)))
