"""What must hold in every run; docs/simulation.md says it in prose under the same letters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from bstar.errors import (
    BstarError,
    BusyError,
    CallError,
    CallTimeoutError,
    ClosedError,
    DualActiveError,
    HandlerError,
    OutcomeUnknownError,
    PairError,
)
from bstar.wire.native import NAME_BYTES
from bstar.wire.refusals import REFUSALS
from bstar_broker.core import BrokerSettings, Send
from bstar_broker.core.records import Accepted
from bstar_client.core.calls import Reply
from bstar_client.core.worker.dialects import Job
from bstar_testing import rules
from bstar_testing.rules import CallHistory
from sim.client import Issued, SimClient
from sim.dialects import ONE_REPLY, plain_call, read_body, service_asked
from sim.emq import Publications, SimEmqClient, SimManager, plain_of
from sim.faults import Mood
from sim.guard import Guard, is_outsider
from sim.network import Connection, Frames
from sim.node import SimNode
from sim.store import StoredJobs
from sim.tables import bounds_of, left_of
from sim.worker import SimWorker
from sim.world import World

# A call ends at its deadline, not much later.
LATE_MAX_S = 0.25
# For so many failover timeouts a node that has stepped down keeps what plain clients ask.
WAIT_TIMEOUTS = 3


class Violation(AssertionError):  # noqa: N818 - it is what was found, not what went wrong with the simulator
    """An invariant does not hold. ``rule`` is its letter."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"({rule}) {text}")
        self.rule = rule


class Checks:
    """Told of everything that matters to a pair, it raises Violation at once when an invariant is broken."""

    def __init__(self, world: World, mood: Mood, limits: BrokerSettings) -> None:
        self.world = world
        self.mood = mood
        self.limits = limits
        self.nodes: Sequence[SimNode] = ()
        self.clients: Sequence[SimClient | SimEmqClient] = ()
        self.workers: Sequence[SimWorker] = ()
        self.running_max: int | None = None
        self.has_arbiter = False
        self.is_calm = False
        self.is_fenced = True  # do all workers speak the native dialect?
        self.counts: Counter[str] = Counter()
        self.dual_s_max = 0.0  # of all overlaps, with the peer link sound or not
        self.recovery_s = 0.0
        # Where there are several pairs: the services of this one, and whether faults strike it at all.
        self.services: set[bytes] | None = None
        self.is_struck = True
        # Until then processes start, and clients may find nobody yet.
        self.begins_until = 0.0
        # Intervals in which a fault explains that outcomes are unknown: everybody's, or one client's.
        self.troubles: list[tuple[float, float]] = []
        self._troubles_of: dict[str, list[tuple[float, float]]] = {}
        # Until when the peer link is not to be relied on.
        self.peer_unsound_until = 0.0
        self.settle_s = 0.0  # what a subscriber needs to hear its peer again, and one more timeout
        self.travel_s_max = 0.0
        # After the faults: from when on calls must be answered, and the role must stay where it is.
        self.answers_due_from: float | None = None
        self.settled: SimNode | None = None
        self._serving_since: dict[str, float] = {}
        self._dual_since: float | None = None
        self._dual_number = 0
        self._calls: dict[str, Issued] = {}
        # The node that became active last, and its run; since when it has not served, by its clock; and the
        # plain calls that have reached it since then.
        self._last: tuple[SimNode, int] | None = None
        self._stopped_at: float | None = None
        self._kept: set[str] = set()
        self._history = CallHistory()
        self.publications = Publications(self._fail)
        # None without a durable store.
        self.stored: StoredJobs | None = None
        # None without keys.
        self.guard: Guard | None = None
        # When a client's pipe last had no room for what may have been the end of a call.
        self._deprived_at: dict[str, float] = {}
        # Calls for one worker alone, and that worker.
        self._targets: dict[str, str] = {}
        # The calls whose callers have left.
        self._left: dict[str, Issued] = {}
        # When each client's first call ended since it began, the role moved, or a fault failed a call of it.
        self._first_ended_at: dict[str, float] = {}

    @property
    def outstanding(self) -> dict[str, Issued]:
        """Calls that have not ended."""
        return self._calls

    def add_store(self) -> StoredJobs:
        """The pair has a durable store."""
        self.stored = StoredJobs(self.world, self._fail)
        return self.stored

    def _judge(self, violations: Iterable[rules.Violation]) -> None:
        for violation in violations:
            self._fail(violation.rule, violation.text)

    def fail(self, rule: str, text: str) -> None:
        """Raise Violation."""
        self._fail(rule, text)

    def _fail(self, rule: str, text: str) -> None:
        self.world.note(f"VIOLATION ({rule}) {text}")
        raise Violation(rule, f"at {self.world.now:.3f} s: {text}")

    # --- (a) and (g): who serves ----------------------------------------------------------------------------

    def serving(self) -> list[SimNode]:
        """The nodes that serve now."""
        return [node for node in self.nodes if node.is_serving]

    def node_activated(self, node: SimNode, epoch: int) -> None:
        self.counts["activations"] += 1
        if self.counts["activations"] > 1:
            if self.mood is Mood.QUIET:
                self._fail("g", f"{node.name} became active in epoch {epoch} although nothing had failed")
            if not self.is_struck:
                self._fail("h", f"{node.name} became active in epoch {epoch} although its pair was spared")
        if self.settled is not None:
            self._fail("f", f"{node.name} became active in epoch {epoch} long after the faults were over")
        if self.is_calm and any(other is not node for other in self.serving()) and self._is_quiet():
            self._fail("g", f"{node.name} took the role in epoch {epoch} although nothing had failed")
        self._check_alone(node, "became active")
        if self._last == (node, node.runs):
            self._check_kept(node)
        self._last, self._stopped_at = (node, node.runs), None
        self._kept.clear()
        self._first_ended_at.clear()

    def _is_quiet(self) -> bool:
        """Whether the pair has recovered from the last fault."""
        now = self.world.now
        return now > self.begins_until and not any(
            since <= now <= until + self.recovery_s for since, until in self.troubles
        )

    # --- (l): a stall without a takeover --------------------------------------------------------------------

    def _check_kept(self, node: SimNode) -> None:
        """It serves again, and no other node has meanwhile. With keys the list may have forbidden a call."""
        if self._stopped_at is None or self.guard is not None:
            return
        stopped_s = node.clock() - self._stopped_at
        if stopped_s >= WAIT_TIMEOUTS * node.node.machine.settings.failover_timeout_s:
            return
        if self.world.now - stopped_s < self.peer_unsound_until:
            return  # a forged message may have said that the peer serves
        ledger = node.node.broker.ledger
        if any(ledger.drops[each.reason] for each in REFUSALS if not each.reason.startswith("store-")):
            return
        there = [request for service in ledger.services.values() for request in service.queue]
        there += [request for worker in ledger.workers.values() for request in worker.in_flight.values()]
        tokens = {read_body(each.body[0])[0] for each in there if isinstance(each, Accepted)}
        for token in sorted(self._kept & self._calls.keys() - tokens):
            if not self._history.begins_of(token):
                self._fail("l", f"{node.name} lost {token}, which came while it did not serve")
        self.counts["kept while a node was away"] += len(self._kept)

    def node_changed(self, node: SimNode) -> None:
        has_stopped = node.is_alive and not node.node.is_active
        if has_stopped and self._stopped_at is None and self._last == (node, node.runs):
            self._stopped_at = node.clock()
        if has_stopped and self.is_calm and node.name in self._serving_since and self._is_quiet():
            self._fail("g", f"{node.name} gave the role up although nothing had failed")
        for each in self.nodes:
            if each.is_serving:
                self._serving_since.setdefault(each.name, self.world.now)
            else:
                self._serving_since.pop(each.name, None)
        if len(self.serving()) < 2:
            if self._dual_since is not None:
                self.dual_s_max = max(self.dual_s_max, self.world.now - self._dual_since)
            self._dual_since = None
        elif self._dual_since is None:
            self._dual_since = self.world.now
            self._dual_number += 1
            self.counts["overlaps"] += 1
            self._look_again(self._dual_number)

    def node_dispatched(self, node: SimNode, worker: bytes) -> None:
        """It gives out work: nobody else may have served for longer than a message travels. With an arbiter
        nobody else may have the right to serve at all, whatever the links are like.
        """
        self._check_alone(node, "gave out work")
        if self.stored is not None:
            self.stored.check_given(node)
        if self.running_max is not None:
            self._check_running(node, worker, self.running_max)
        if self.has_arbiter and not node.has_role:
            self._fail("a", f"{node.name} gave out work without the majority")
        if len(self._serving_since) < 2 and node.name in self._serving_since:
            return
        for name, since in self._serving_since.items():
            sound_since = self._sound_since(since)
            if name != node.name and self.world.now - sound_since > self.travel_s_max:
                self._fail(
                    "a",
                    f"{node.name} gave out work after {name} had served for {self.world.now - since:.3f} s "
                    "with a sound peer link",
                )

    def _check_running(self, node: SimNode, routing_id: bytes, running_max: int) -> None:
        """(p) it has given out a request: so many may be with the workers that are registered at it."""
        records = node.node.broker.ledger.workers
        given = records.get(routing_id)
        if given is None or given.service.throttle is None or self._last != (node, node.runs):
            return  # two serve, and workers may obey the other one
        held = 0
        connections: defaultdict[str, set[int]] = defaultdict(set)
        for record in records.values():
            if record.service is given.service:
                held += record.held
                connections[record.label].add(int.from_bytes(record.keepalive[NAME_BYTES:]))
        beside = sum(
            worker.running_beside(connections[worker.label])
            for worker in self.workers
            if worker.label in connections and not worker.has_lied
        )
        self.counts["given out at the limit"] += held + beside == running_max
        self.counts["given out beside what the other node gave out"] += beside > 0
        if held + beside > running_max:
            self._fail(
                "p",
                f"{node.name} gave out a request: workers have {held} of it and run {beside} others, of "
                f"{running_max} at most",
            )

    def node_published(self, node: SimNode, token: bytes) -> None:
        self.publications.left(node, token.decode())

    def node_leased(self, node: SimNode) -> None:
        """Its majority lasts longer than before."""
        self._check_alone(node, "won the majority")

    def _check_alone(self, node: SimNode, what: str) -> None:
        if not self.has_arbiter or not node.has_role:
            return
        for other in self.nodes:
            if other is not node and other.has_role:
                left_s = other.node.machine.serve_until - other.clock()
                self._fail(
                    "a", f"{node.name} {what} while {other.name} had the majority for {left_s:.4f} s more"
                )

    def peer_unsound(self, until: float) -> None:
        """The peer link may fail until then."""
        self.peer_unsound_until = max(self.peer_unsound_until, until)

    def _sound_since(self, since: float) -> float:
        """From when on, after ``since``, the peer link was to be relied on."""
        # A node that begins over a slow link may serve before it can have heard its peer.
        late_until = max(node.subscriber.late_until for node in self.nodes)
        return max(since, self.peer_unsound_until, late_until + self.settle_s if late_until else 0.0)

    def _look_again(self, number: int) -> None:
        """Two serve; with a sound link that must be over when the messages under way have arrived."""
        if number != self._dual_number or self._dual_since is None or len(self.serving()) < 2:
            return
        sound_since = self._sound_since(self._dual_since)
        over_at = sound_since + self.travel_s_max
        if self.world.now >= over_at:
            self._fail(
                "a",
                f"both nodes have served for {self.world.now - self._dual_since:.3f} s, the last "
                f"{self.world.now - sound_since:.3f} s of it with a sound peer link",
            )
        # It may become sound later than now foreseen; look in between, too.
        again_at = min(over_at, self.world.now + self.settle_s) + 0.001
        self.world.at(again_at, lambda: self._look_again(number))

    def node_refused_by_pipe(self, peer: str) -> None:
        self.counts["full pipes"] += 1
        self._deprived_at[peer] = self.world.now

    def node_failed(self, node: SimNode, error: PairError) -> None:
        """Both were active, and on_dual_active is exit. Nothing else may end a node."""
        self.counts[f"ended with status {error.exit_code}"] += 1
        if self.mood is Mood.QUIET:
            self._fail("g", f"{node.name} ended although nothing had failed: {error}")
        if not isinstance(error, DualActiveError) or node.on_dual_active != "exit":
            self._fail("f", f"{node.name} ended: {error}")
        if not self._dual_number and not self.peer_unsound_until:
            self._fail("f", f"{node.name} ended, but two never served at once: {error}")
        if self.settled is not None:
            self._fail("f", f"{node.name} ended long after the faults were over: {error}")

    def trouble(self, since: float, until: float, *, client: str | None = None) -> None:
        """A fault lasts from then until then; ``client``: it is that one's alone where the pair is spared."""
        if client is not None and not self.is_struck:
            self._troubles_of.setdefault(client, []).append((since, until))
        else:
            self.troubles.append((since, until))

    # --- (h): several pairs ---------------------------------------------------------------------------------

    def node_heard(self, node: SimNode, frames: Frames) -> None:
        if self._stopped_at is not None and self._last == (node, node.runs):
            token = plain_call(frames)
            if token is not None:
                self._kept.add(token)
        if self.services is not None:
            service = service_asked(frames)
            if service is not None and service not in self.services:
                self._fail("h", f"{node.name} was asked for {service!r}, which belongs to another pair")

    # --- (j): keys ------------------------------------------------------------------------------------------

    def node_handles(self, node: SimNode, message: Frames, user_id: str) -> None:
        assert self.guard is not None
        self.guard.handles(node, message, user_id)

    def node_handled(self, node: SimNode, user_id: str) -> None:
        assert self.guard is not None
        self.counts["messages of outsiders"] += is_outsider(user_id)
        self._judge(self.guard.handled(node, user_id))

    def node_sent(self, node: SimNode, connection: Connection, message: Send) -> None:
        assert self.guard is not None
        self._judge(self.guard.sent(node, connection, message))

    def _check_maker(self, issued: Issued, *frames: bytes) -> None:
        if self.guard is not None:
            self._judge(self.guard.answered(issued.token, frames))

    # --- (b): workers ---------------------------------------------------------------------------------------

    def work_begun(self, worker: SimWorker | SimManager, token: str, job: Job) -> None:
        self.counts["executions"] += 1
        if token.startswith("["):
            assert self.stored is not None
            self.stored.work_begun(token)
            return
        if self.services is not None and not token.startswith(f"{worker.service}/"):
            self._fail("h", f"{worker.name}, a worker of {worker.service}, began {token}")
        if self.guard is not None:
            self._judge(self.guard.begun(token, worker.name))
        self._judge(
            self._history.begun(
                token,
                self.world.now,
                worker=worker.name,
                epoch=job.epoch,
                # Plain MDP has words neither for epochs nor for redelivery.
                epoch_seen=worker.epoch_seen if worker.is_native else job.epoch,
                is_redelivered=job.is_redelivered or not worker.is_native,
            )
        )
        self._check_left(worker, token)
        self._check_target(worker, token)
        if self._history.begins_of(token) > 1:
            self.counts["repeated executions"] += 1
            # With its client gone, nobody is left who could be troubled.
            if not self.is_struck and token in self._calls and not self._is_explained(self._calls[token]):
                self._fail("h", f"{token} was begun again although its pair was spared")

    # --- (c) and (d): calls ---------------------------------------------------------------------------------

    def call_made(self, issued: Issued) -> None:
        self.counts["calls"] += 1
        self._calls[issued.token] = issued
        if issued.worker:
            self.counts["calls for one worker"] += 1
            self._targets[issued.token] = issued.worker
        is_native = issued.dialect == "native"
        self._history.called(issued.token, is_once=is_native and issued.is_once, is_marked=is_native)

    def call_partial(self, issued: Issued, reply: Reply) -> None:
        if issued.outcome:
            self._fail("c", f"{issued.token} was handed a part after its end: {issued.outcome}")
        self._check_maker(issued, *reply.frames)
        expected = (issued.token.encode(), b"%d" % issued.parts)
        if reply.frames != expected or reply.index != issued.parts:
            self._fail("c", f"{issued.token} was handed the part {reply.frames!r} instead of {expected!r}")
        issued.parts += 1

    def call_answered(self, issued: Issued, reply: Reply) -> None:
        self._check_maker(issued, *reply.frames, *(frame for part in reply.partials for frame in part))
        self._judge(self._history.ended(issued.token, "a reply", may_have_executed=True))
        if all(reply.endpoint != node.name for node in self.nodes):
            self._fail("h", f"{issued.token} was answered by {reply.endpoint}, which is of another pair")
        self._check_reply(issued, reply)
        if reply.attempts > 1:
            self._check_spared(issued, f"was sent {reply.attempts} times")
        self._end(issued, "answered")

    def _check_reply(self, issued: Issued, reply: Reply) -> None:
        frames, token = plain_of(reply.frames), issued.token.encode()
        if issued.kind == "mmi":
            if frames[0] not in (b"200", b"404"):
                self._fail("c", f"mmi call {issued.token} was handed {frames!r}")
            return
        if issued.dialect in ONE_REPLY:
            self._check_joined(issued, frames)
            return
        if len(frames) == 1:  # of a request that came in a batch
            frames = tuple(frames[0].split(b" "))
        if frames[0] == b"500" and not self.is_fenced:
            # A plain worker has no other word for a failure.
            if issued.kind == "fail" and frames[1] != token and b"did not return within" not in frames[1]:
                self._fail("c", f"{issued.token} was handed the failure of {frames[1]!r}")
            return
        if frames[0] != token:
            self._fail("c", f"{issued.token} was handed the reply to {frames[0]!r}")
        parts = int(frames[1])
        got = issued.parts if issued.kind == "stream" else len(reply.partials)
        if (
            got != parts
            or reply.partials != tuple((token, b"%d" % i) for i in range(got))[: len(reply.partials)]
        ):
            self._fail("c", f"{issued.token} has {got} parts of {parts}: {reply.partials!r}")

    def _check_joined(self, issued: Issued, frames: tuple[bytes, ...]) -> None:
        """A client of MDP/0.1 gets the frames of all parts in one reply."""
        token = issued.token.encode()
        pairs = [frames[at : at + 2] for at in range(0, len(frames), 2)]
        if pairs[-1][0] == b"500" and not self.is_fenced:
            del pairs[-1]
        if pairs != [(token, b"%d" % number) for number in range(len(pairs))]:
            self._fail("c", f"{issued.token} was handed {frames!r}")

    def call_failed(self, issued: Issued, error: BstarError) -> None:
        name = type(error).__name__
        if isinstance(error, CallError):
            may_have_executed = error.may_have_executed
        else:
            # ClosedError says that it was not sent; a full client refuses at once.
            may_have_executed = not isinstance(error, ClosedError | BusyError)
        self._judge(self._history.ended(issued.token, str(error), may_have_executed=may_have_executed))
        self._end(issued, name)
        if isinstance(error, HandlerError):
            self._check_maker(issued, error.text.encode())
            if issued.kind != "fail" and "did not return within" not in error.text:
                self._fail("c", f"{issued.token} was handed another call's failure: {error.text}")
            if issued.kind == "fail" and error.text != issued.token and "did not" not in error.text:
                self._fail("c", f"{issued.token} was handed another call's failure: {error.text}")
            return
        self._check_spared(issued, f"failed: {error}")
        is_unknown = isinstance(error, OutcomeUnknownError | CallTimeoutError) and may_have_executed
        if is_unknown and not self._is_explained(issued):
            self._fail("d", f"{issued.token} ended unknown although nothing had failed: {error}")
        self._check_liveness(issued, error)
        if self._is_in_trouble(issued):
            # A plain client asks the other node next, and that one may be passive.
            self._first_ended_at.pop(issued.client, None)

    def call_left(self, issued: Issued) -> None:
        """Its caller leaves. From then on nothing of it begins, but what is on its way."""
        self._judge(self._history.ended(issued.token, "left", may_have_executed=True))
        self._end(issued, "left")
        self._left[issued.token] = issued

    def _check_left(self, worker: SimWorker | SimManager, token: str) -> None:
        """(n) nothing begins for a caller who has left, unless a fault kept the node from hearing it."""
        issued = self._left.get(token)
        if issued is None or self.world.now <= issued.ended_at + LATE_MAX_S + 2 * self.travel_s_max:
            return
        since, now = issued.submitted_at - self.recovery_s, self.world.now
        troubles = [*self.troubles, *self._troubles_of.get(issued.client, ())]
        if not any(began <= now and ended >= since for began, ended in troubles):
            self._fail("n", f"{worker.name} began {token} although its caller had left")

    def _check_target(self, worker: SimWorker | SimManager, token: str) -> None:
        """(o) no worker but the one that it is for begins a call for one worker."""
        target = self._targets.get(token)
        if target is not None and worker.label not in (target, ""):
            self._fail("o", f"{worker.name} ({worker.label}) began {token}, which is for {target} alone")

    def _end(self, issued: Issued, outcome: str) -> None:
        issued.outcome = outcome
        issued.ended_at = self.world.now
        self._first_ended_at.setdefault(issued.client, issued.ended_at)
        issued.call = None
        self._calls.pop(issued.token, None)
        self.counts[f"call {outcome}"] += 1
        self.world.note(f"{issued.token} {issued.kind} {outcome}")

    def _is_explained(self, issued: Issued) -> bool:
        end = issued.ended_at or self.world.now
        if issued.dialect != "native" and issued.submitted_at < self.recovery_s:
            # What a plain client sends to a node that has just begun is dropped without a word.
            return True
        if issued.dialect != "native" and issued.submitted_at <= self._first_ended_at.get(issued.client, end):
            # A passive node cannot tell a plain client who serves: its first call finds that out.
            return True
        return self._is_in_trouble(issued)

    def _is_in_trouble(self, issued: Issued) -> bool:
        """Whether a fault that concerns its client has lasted until its time, or is not long over."""
        begin, end = issued.submitted_at - self.recovery_s, issued.ended_at or self.world.now
        troubles = [*self.troubles, *self._troubles_of.get(issued.client, ())]
        return any(since <= end and until >= begin for since, until in troubles)

    def _check_spared(self, issued: Issued, what: str) -> None:
        """(h) what befalls other pairs is no concern of this one, if nothing befalls it or the client."""
        is_beginning = issued.submitted_at < self.begins_until
        if not self.is_struck and not is_beginning and not self._is_explained(issued):
            self._fail("h", f"{issued.token} {what}, although its pair was spared")

    def _check_liveness(self, issued: Issued, error: BstarError) -> None:
        due_from = self.answers_due_from
        if isinstance(error, ClosedError):
            return
        if due_from is None:
            # A pipe that was full may have cost a client of a calm pair what it waits for.
            is_deprived = issued.submitted_at <= self._deprived_at.get(issued.client, -1.0)
            is_beginning = issued.submitted_at < self.begins_until
            if self.is_calm and not (is_deprived or is_beginning or self._is_explained(issued)):
                self._fail("f", f"{issued.token} failed although nothing had failed for long: {error}")
            return
        if issued.submitted_at <= self._deprived_at.get(issued.client, -1.0):
            return
        if issued.worker and issued.submitted_at <= due_from:
            return  # that worker may have been lost in the storm
        has_time_left = issued.deadline_at > due_from and issued.ended_at > due_from
        if issued.submitted_at > due_from or (has_time_left and not issued.is_bound):
            self._fail("f", f"{issued.token} failed after the faults, with time left: {error}")

    def client_gone(self, client: SimClient | SimEmqClient) -> None:
        """Nobody waits for its calls any more."""
        self._first_ended_at.pop(client.name, None)
        for token in [token for token, issued in self._calls.items() if issued.client == client.name]:
            del self._calls[token]
            self.counts["call lost with its client"] += 1

    # --- every so often -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """(d) nobody waits past a deadline; (e) no table is over its bound."""
        frozen = {client.name for client in self.clients if client.is_frozen}
        now = self.world.now
        for issued in self._calls.values():
            if now > issued.deadline_at + LATE_MAX_S and issued.client not in frozen:
                self._fail(
                    "d", f"{issued.token} has not ended {now - issued.deadline_at:.3f} s past its deadline"
                )
        for node in self.nodes:
            if node.is_alive:
                self._check_bounds(node)

    def _check_bounds(self, node: SimNode) -> None:
        for name, count, bound in bounds_of(node, self.limits):
            if count > bound:
                self._fail("e", f"{node.name}: {name}: {count} of at most {bound}")
        for client in self.clients:
            if client.is_alive and client.outstanding > client.outstanding_max:
                self._fail("e", f"{client.name}: {client.outstanding} calls outstanding")

    def check_settled(self) -> None:
        """(f) the faults are over for so long that exactly one node must be active."""
        serving = self.serving()
        if len(serving) != 1:
            states = ", ".join(f"{node.name} {node.node.machine.state.name}" for node in self.nodes)
            self._fail("f", f"{len(serving)} nodes are active after the faults: {states}")
        self.settled = serving[0]

    def check_empty(self) -> None:
        """At the end, when every call is over: nobody remembers any."""
        for token, issued in self._calls.items():
            self._fail("d", f"{token} of {issued.client} never ended")
        for message in sorted(self.stored.owed if self.stored is not None else ()):
            self._fail("k", f"{message} was accepted, and neither begun nor dead")
        for node in self.nodes:
            left = left_of(node)
            if any(left.values()):
                self._fail("e", f"{node.name} still remembers calls that are over: {left}")

    @property
    def is_empty(self) -> bool:
        """Is every call over, and forgotten?"""
        is_owed = self.stored is not None and bool(self.stored.owed)
        return not self._calls and not is_owed and not any(any(left_of(node).values()) for node in self.nodes)
