"""The native client's session: which node is active, what was sent where, and what each caller may be told.

It is sticky: while a node says that it is active, everything goes there. When that node's connection
breaks, it falls silent or says that it is not active, the session looks for the next one. It never
guesses: a node is followed once it has said ACTIVE (PONG) or has answered a request. When no node says
so, the oldest outstanding request is sent alone, as a vote (zguide chapter 4: a passive node takes over
when a client asks it while its peer is silent), to the first node in the order of the list that could
become active by it; the others follow when it serves. A node that was told about in the list before (the
primary) is waited for a while before a later one is asked, so that looking at a backup does not promote
it.

Every attempt carries the same identity, so a reply is matched by what it answers, not by where it came
from: a late FINAL of the node that was left is as good as one of its successor's, and the second of the
two is dropped.

What it does not do: open sockets, read clocks, wait. BST-C-01..04.
"""

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import msgspec

from bstar.deadlines import Deadlines
from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    HandlerError,
    OutcomeUnknownError,
    RejectedError,
    RemoteProtocolError,
    StreamInterruptedError,
)
from bstar.wire import native
from bstar.wire.batches import FINAL_ROW_BYTES, final_rows
from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX, BATCHED_BODY_BYTES_MAX
from bstar.wire.messages import NEVER_MS, ErrorCode, NodeStatus
from bstar.wire.mmi import PREFIX
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import ActiveFound, ActiveLost, Connected, Disconnected, FailedOver
from bstar_client.core.nodes import Node
from bstar_client.core.outputs import Announce, Deliver, DeliverAll, Fail, Output, Send
from bstar_client.core.overdue import expired, overdue, too_late

__all__ = [
    "IDLE_PING_INTERVAL_S",
    "INTERRUPTED",
    "PINGS_PER_SILENCE",
    "Counters",
    "Session",
    "SessionSettings",
]

INTERRUPTED = "the client was interrupted at work (by Ctrl-C, a signal) while the request was outstanding"

# Before a node has told the pair's timing. After that: a PING four times in a failover timeout at least.
_PING_INTERVAL_S = 0.25
_SILENCE_LIMIT_S = 1.0
PINGS_PER_SILENCE = 4
# When the active node was lost its successor may be found in milliseconds, or when a drain has ended: ask at
# once, then at growing distances, so that looking costs at most half of what has passed already, and at most
# ten PINGs a second. What a node told before the loss is no longer true.
_SEARCH_PAUSE_MIN_S = 0.005
_SEARCH_PAUSE_MAX_S = 0.1
_SEARCH_GROWTH = 1.5
# While nothing is outstanding, PING only so that observers learn of changes.
IDLE_PING_INTERVAL_S = 5.0
# A BUSY broker's hint grows by this factor with each BUSY for the same request, up to the limit.
_BUSY_GROWTH = 1.5
_BUSY_PAUSE_MIN_S = 0.005
_BUSY_PAUSE_MAX_S = 5.0
_REFUSED_PAUSE_S = 0.05
_TTL_MS_MAX = NEVER_MS - 1
# A request's time ends at the broker a moment before its caller stops waiting, so that the caller can
# still be told that it was not executed.
_TTL_MARGIN = 0.02
_TTL_MARGIN_MAX_S = 0.05


class SessionSettings(msgspec.Struct, frozen=True):
    """Bounds and timing of a native session.

    ``ping_interval_s`` and ``silence_limit_s`` None: taken from what the nodes tell about their own timing.
    ``outstanding_max``: requests without a reply, each costs a record of a few hundred octets and its body.
    ``partials_max``: PARTIALs kept for one reply of ``request``.
    """

    outstanding_max: int = 100_000
    partials_max: int = 10_000
    ping_interval_s: float | None = None
    silence_limit_s: float | None = None


class Counters:
    """What happened, as plain integers; read them whenever you like."""

    def __init__(self) -> None:
        self.requests = 0
        self.replies = 0
        self.failures = 0
        self.resends = 0
        self.votes = 0
        self.failovers = 0
        self.busy = 0
        self.refusals = 0
        self.refusals_stale = 0
        self.joined = 0
        self.replies_unmatched = 0
        self.partials_unmatched = 0
        self.messages_invalid = 0


class Session:
    """One native client's knowledge of its nodes and its outstanding calls. See ``ClientCore``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        client_id: bytes,
        now: float,
        settings: SessionSettings | None = None,
    ) -> None:
        assert len(client_id) == 16, "a client id has 16 octets"
        self._client_id = client_id
        self._settings = settings or SessionSettings()
        self._nodes = [Node(index, endpoint, now) for index, endpoint in enumerate(endpoints)]
        self._calls: dict[bytes, Call] = {}
        self._deadlines = Deadlines(_is_pending)
        self._retries: list[tuple[float, int, Call]] = []
        self._number = 0
        # Calls that wait for another one with their key, and the order of what is to be sent again.
        self._following = 0
        self._retry_number = 0
        self._connections = 0
        self._target: Node | None = None
        # The node that was sent a vote and has not answered it, and the vote's identity.
        self._asked: Node | None = None
        self._asked_identity = b""
        # When to look again for a node to ask; events look at once.
        self._elect_at = math.inf
        self._left: tuple[str, str, float, int] | None = None  # endpoint, reason, when, outstanding
        self._ping_interval_s = self._settings.ping_interval_s or _PING_INTERVAL_S
        self._silence_limit_s = self._settings.silence_limit_s or _SILENCE_LIMIT_S
        self._failover_timeout_s = self._silence_limit_s
        self._ping_at = now + IDLE_PING_INTERVAL_S
        self._search_pause_s = _SEARCH_PAUSE_MAX_S
        self._is_closed = False
        self.epoch = 0
        self._ping = native.encode_ping(epoch=0)
        self.counters = Counters()

    @property
    def outstanding(self) -> int:
        """How many calls wait for their replies."""
        return len(self._calls) + self._following

    @property
    def active(self) -> str | None:
        """The endpoint that is followed now."""
        return self._target.endpoint if self._target is not None else None

    # --- the caller's side --------------------------------------------------------------------------------

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call; its ``service``, ``body`` and the rest of the caller's fields are set."""
        refusal = self._enter(call, now)
        if refusal is not None:
            return refusal
        outputs: list[Output] = []
        if self._target is not None:
            self._send(call, self._target, outputs, now)
        else:
            self._elect(outputs, now)
        return outputs

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls."""
        outputs: list[Output] = []
        entered = []
        for call in calls:
            refusal = self._enter(call, now)
            if refusal is None:
                entered.append(call)
            else:
                outputs += refusal
        if self._target is not None:
            self._send_all(entered, self._target, outputs, now)
        elif entered:
            self._elect(outputs, now)
        return outputs

    def _enter(self, call: Call, now: float) -> list[Output] | None:
        """Take the call over. None: it is to be sent; otherwise what becomes of it instead."""
        if call.is_done:
            return []  # abandoned before its turn came
        if self._is_closed:
            return [Fail(call, ClosedError("the client is closed; the request was not sent"))]
        # Also those that are refused below have an identity, by which a journal tells them apart.
        self._number = number = self._number + 1
        if call.key is None:
            call.identity = identity = self._client_id + number.to_bytes(8, "big")
            call.number = number
        else:
            call.identity = identity = native.keyed_identity(call.service, call.key)
        calls = self._calls
        if len(calls) + self._following >= self._settings.outstanding_max:
            text = f"{self.outstanding} requests are outstanding (outstanding_max); wait for replies first"
            return [Fail(call, BusyError(text))]
        deadline = call.deadline
        if deadline is not None and deadline <= now:
            return [Fail(call, too_late(call, now))]
        self.counters.requests += 1
        # From here on it is the session's to keep, even if a turn is interrupted.
        call.is_begun = True
        leader = None if call.key is None else calls.get(identity)
        if leader is not None:
            return self._follow(call, leader)
        if not calls and self._target is None:
            self._search(now)
        elif not calls:
            self._ping_at = min(self._ping_at, now + self._ping_interval_s)
        calls[identity] = call
        if deadline is not None:
            self._deadlines.add(call, deadline)
        return None

    def abandon(self, call: Call, now: float) -> list[Output]:
        """Nobody waits for this call any more. What it started is not recalled: there is no word for it."""
        if call.followers:
            self._replace(call)
        self._forget(call)
        return []

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Begin anew with these calls; those that may have been executed count as sent and lost."""
        if self._is_closed:
            return []
        outputs: list[Output] = []
        target = self._target
        if target is not None:
            self._left = (target.endpoint, "interrupted", now, len(self._calls))
            outputs.append(Announce(ActiveLost(target.endpoint, "interrupted", len(self._calls))))
        self._target = self._asked = None
        self._elect_at = math.inf
        self._calls = {}
        self._deadlines = Deadlines(_is_pending)
        self._retries = []
        self._following = 0
        for node in self._nodes:
            node.begin_anew(now)
        self._search(now)
        for call in calls:
            self._give_up_attempt(call)
            call.leader = call.followers = None
            if call.is_bound and (call.may_have_executed or call.is_done):
                self._fail(call, self._broken(call, INTERRUPTED), outputs)
                continue
            call.is_done = False  # if it was, its outcome was lost
            leader = self._calls.get(call.identity)
            if leader is not None:
                outputs += self._follow(call, leader)
                continue
            if not call.is_stream:
                call.partials = []
                call.partials_count = 0
            self._calls[call.identity] = call
            if call.deadline is not None:
                self._deadlines.add(call, call.deadline)
        return outputs

    def close(self, now: float) -> list[Output]:
        """End every outstanding call, saying what is known of it."""
        self._is_closed = True
        outputs: list[Output] = []
        for call in list(self._calls.values()):
            error: BstarError
            if call.may_have_executed:
                error = OutcomeUnknownError("the client was closed while the request was outstanding")
            else:
                error = ClosedError(
                    "the client was closed; no node had accepted the request: it was not executed"
                )
            self._fail(call, error, outputs)
        return outputs

    # --- calls with the same key --------------------------------------------------------------------------

    def _follow(self, call: Call, leader: Call) -> list[Output]:
        """The same key is outstanding: one request answers both (BSN-C-10)."""
        if call.body != leader.body or call.is_idempotent != leader.is_idempotent:
            what = "another body" if call.body != leader.body else "another value of idempotent"
            text = f"the key belongs to a request with {what}, which is outstanding; it was not sent"
            self.counters.failures += 1
            call.is_done = True
            return [Fail(call, RejectedError(text, code=ErrorCode.INVALID))]
        self.counters.joined += 1
        self._following += 1
        call.leader = leader
        if leader.followers is None:
            leader.followers = []
        leader.followers.append(call)
        if call.deadline is not None:
            self._deadlines.add(call, call.deadline)
        return []

    def _replace(self, call: Call) -> None:
        """This call ends early, but others wait for its request: the first of them takes its place."""
        assert call.followers is not None
        heir, *others = call.followers
        call.followers = None
        self._following -= 1
        if not call.is_bound:
            self._give_up_attempt(call)
        heir.leader = None
        heir.followers = others
        for other in others:
            other.leader = heir
        heir.attempts = call.attempts
        heir.node = call.node
        heir.sent_to = call.sent_to
        heir.lost_on = call.lost_on
        heir.was_dispatched = call.was_dispatched
        heir.partials, heir.partials_count, heir.partials_from = (
            call.partials,
            call.partials_count,
            call.partials_from,
        )
        call.partials = []
        self._calls[heir.identity] = heir
        if not heir.sent_to:  # what must not be repeated waits for the attempt that was made
            self._retry_later(heir, 0.0, -math.inf)

    # --- the connection's side ----------------------------------------------------------------------------

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        if self._is_closed:
            return []
        record = self._nodes[node]
        outputs: list[Output] = []
        if record.is_connected:
            self._leave(record, "disconnected", outputs, now)
        self._connections += 1
        record.connect(self._connections)
        outputs.append(Announce(Connected(record.endpoint)))
        self._send_ping(record, outputs, now)
        return outputs

    def disconnected(self, node: int, now: float) -> list[Output]:
        """The connection to a node broke, or an attempt to connect was refused or timed out."""
        record = self._nodes[node]
        was_connected, was_refused = record.is_connected, record.was_refused
        outputs: list[Output] = []
        if was_connected or not was_refused:
            outputs.append(Announce(Disconnected(record.endpoint, "broken" if was_connected else "refused")))
        if was_connected:
            self._leave(record, "disconnected", outputs, now)
        record.disconnect()
        self._choose(outputs, now)
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node. Octets that are no message are counted and ignored."""
        try:
            message = native.decode(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return []
        record = self._nodes[node]
        record.heard_at = now
        record.pinged_at = None
        if message.epoch > self.epoch:
            self.epoch = message.epoch
            self._ping = native.encode_ping(epoch=message.epoch)
        outputs: list[Output] = []
        command = message.command
        if self._asked is record and message.identity == self._asked_identity and command in _PROOFS:
            record.is_active = True
            record.epoch = message.epoch
            self._adopt(record, outputs, now)
        if command == native.FINALS:
            self._receive_finals(record, message, outputs, now)
        elif command == native.FINAL:
            self._receive_final(record, message, outputs, now)
        elif command == native.PARTIAL:
            self._receive_partial(record, message, outputs)
        elif command == native.PONG:
            self._receive_pong(record, message, outputs, now)
        elif command == native.NOT_ACTIVE:
            self._receive_not_active(record, message, outputs, now)
        elif command == native.BUSY:
            self._receive_busy(record, message, now)
        elif command == native.ERROR:
            self._receive_error(record, message, outputs, now)
        else:
            self.counters.messages_invalid += 1
        if record.is_silent:
            record.is_silent = False
            self._choose(outputs, now)
        return outputs

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        if self._is_closed:
            return None
        due = min(self._ping_at, self._deadlines.next_deadline())
        if self._retries and self._retries[0][0] < due:
            due = self._retries[0][0]
        for node in self._nodes:
            if node.pinged_at is not None and not node.is_silent:
                due = min(due, node.pinged_at + self._silence_limit_s)
        if self._calls and self._target is None:
            due = min(due, self._elect_at)
        return due

    def handle_timer(self, now: float) -> list[Output]:
        """Deadlines, silence, PINGs, and requests whose pause after BUSY is over."""
        if self._is_closed:
            return []
        outputs: list[Output] = []
        self._end_overdue(outputs, now)
        limit_s = self._silence_limit_s
        for node in self._nodes:
            if node.pinged_at is not None and not node.is_silent and now >= node.pinged_at + limit_s:
                node.is_silent = True
                node.is_active = False
                self._leave(node, "silent", outputs, now)
        if now >= self._ping_at:
            for node in self._nodes:
                if node.is_connected:
                    self._send_ping(node, outputs, now)
            self._ping_at = now + self._ping_pause_s()
        target = self._target
        again: dict[Call, None] = {}
        while self._retries and self._retries[0][0] <= now:
            call = heappop(self._retries)[2]
            if target is not None and not call.is_done and not call.sent_to:
                again[call] = None
        if target is not None and again:
            self._send_all([*again], target, outputs, now)
        if target is None:
            self._choose(outputs, now)
        return outputs

    def _search(self, now: float) -> None:
        """Nobody is followed: what the nodes are now is to be known soon."""
        self._ping_at = now
        self._search_pause_s = _SEARCH_PAUSE_MIN_S
        for node in self._nodes:
            node.seek(now, self._failover_timeout_s)

    def _ping_pause_s(self) -> float:
        if not self._calls:
            return IDLE_PING_INTERVAL_S
        if self._target is not None:
            return self._ping_interval_s
        pause_s = min(self._search_pause_s, self._ping_interval_s)
        self._search_pause_s = min(self._search_pause_s * _SEARCH_GROWTH, _SEARCH_PAUSE_MAX_S)
        return pause_s

    def _end_overdue(self, outputs: list[Output], now: float) -> None:
        for call in self._deadlines.pop_due(now):
            nodes = "; ".join(node.describe(now) for node in self._nodes)
            self._fail(call, overdue(call, call.leader or call, nodes, now), outputs)
        self._deadlines.tidy(self.outstanding)

    # --- replies ------------------------------------------------------------------------------------------

    def _receive_final(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        call = self._calls.get(message.identity)
        if call is None:
            self.counters.replies_unmatched += 1
            return
        count = message.value
        if count or call.partials_count:
            if not self._are_partials_whole(call, node, count):
                self._receive_incomplete(call, node, outputs)
                return
            partials = tuple(call.partials)
        else:
            partials = ()
        followers = call.followers
        calls = (call,) if followers is None else (call, *followers)
        frames = tuple(message.body)
        for each in calls:
            self.counters.replies += 1
            each.attempts = call.attempts
            self._forget(each)
            index = count if each.is_stream else each.index
            elapsed_s = now - each.begun_at
            reply = Reply(
                frames, partials, index, call.attempts, message.epoch, node.endpoint, True, elapsed_s
            )
            outputs.append(Deliver(each, reply))

    def _receive_finals(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        table, blob = message.body[:2]
        try:
            _, lengths = final_rows(message.body, 0)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return
        client_id, epoch, endpoint = message.identity[:16], message.epoch, node.endpoint
        calls = self._calls
        outcomes: list[tuple[Call, Reply]] = []
        end = 0
        for at, length in zip(range(0, len(table), FINAL_ROW_BYTES), lengths, strict=True):
            begin, end = end, end + length
            identity = client_id + table[at : at + 8]
            call = calls.get(identity)
            if call is None:
                self.counters.replies_unmatched += 1
                continue
            body = blob[begin:end]
            if call.partials_count or call.followers is not None or call.is_stream:
                single = native.Message(native.FINAL, 0, identity, epoch, 0, b"", b"", [body])
                self._receive_final(node, single, outputs, now)
                continue
            del calls[identity]
            call.is_done = True
            reply = Reply((body,), (), call.index, call.attempts, epoch, endpoint, True, now - call.begun_at)
            outcomes.append((call, reply))
        self.counters.replies += len(outcomes)
        if outcomes:
            outputs.append(DeliverAll(outcomes))

    @staticmethod
    def _are_partials_whole(call: Call, node: Node, count: int) -> bool:
        if count == 0:
            # PARTIALs of another execution were collected, this one had none.
            if call.is_stream and call.partials_count:
                return False
            call.partials = []
            return True
        return call.partials_from == node.connection and call.partials_count == count

    def _receive_incomplete(self, call: Call, node: Node, outputs: list[Output]) -> None:
        if call.sent_to and call.sent_to != node.connection:
            # An execution that was left behind; the one that counts is still under way.
            self.counters.replies_unmatched += 1
            return
        text = f"{node.endpoint} executed the request, but some of its PARTIALs were lost on the way"
        self._fail(call, self._broken(call, text), outputs)

    def _receive_partial(self, node: Node, message: native.Message, outputs: list[Output]) -> None:
        call = self._calls.get(message.identity)
        if call is None:
            self.counters.partials_unmatched += 1
            return
        index = message.value
        connection = node.connection
        count = call.partials_count
        if index == 0 and (count == 0 or (connection == call.sent_to and not call.is_stream)):
            # The first of an execution. A request collects anew; a stream that has begun cannot.
            call.partials_from = connection
            call.partials_count = 0
            call.partials = []
        if call.partials_from != connection:
            self.counters.partials_unmatched += 1
            return
        if index != call.partials_count:
            self._receive_incomplete(call, node, outputs)
            return
        call.partials_count += 1
        body = tuple(message.body)
        if call.is_stream:
            outputs.append(
                Deliver(call, Reply(body, (), index, call.attempts, message.epoch, node.endpoint, False))
            )
        elif index < self._settings.partials_max:
            assert isinstance(call.partials, list), "made with the first of them"
            call.partials.append(body)
        else:
            text = (
                f"the reply has more than {self._settings.partials_max} PARTIALs (partials_max): use stream()"
            )
            self._fail(call, OutcomeUnknownError(text), outputs)

    def _receive_error(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        call = self._calls.get(message.identity)
        if call is None:
            self.counters.replies_unmatched += 1
            return
        code = message.value
        text = message.body[0].decode("utf-8", "replace") if message.body else ""
        if code in (ErrorCode.HANDLER_FAILED, ErrorCode.HANDLER_TIMEOUT):
            self._fail(call, HandlerError(text or "the handler failed and said nothing"), outputs)
            return
        never_executed = code in (ErrorCode.EXPIRED, ErrorCode.INVALID)
        if not self._end_attempt(call, node, keep=not never_executed):
            # It ends an attempt that was given up before; another one is under way.
            return
        error: BstarError
        if code == ErrorCode.EXPIRED:
            if call.key is not None and (
                call.deadline is None or now + 2 * _TTL_MARGIN_MAX_S < call.deadline
            ):
                # The time was that of another one who asked with the same key.
                self._retry_later(call, _REFUSED_PAUSE_S, now)
                return
            error = expired(call, node.endpoint, text, now)
        elif code == ErrorCode.INVALID:
            text = f"{node.endpoint} rejects the request: {text}"
            if call.may_have_executed:
                error = self._broken(call, f"{text}; an earlier attempt may have been executed")
            else:
                error = RejectedError(text, code=code)
        elif code == ErrorCode.POISON:
            error = self._broken(call, f"every worker that was given the request was lost (poison): {text}")
        elif code == ErrorCode.WORKER_LOST:
            error = self._broken(call, f"the worker was lost: {text}")
        else:
            error = self._broken(call, f"{node.endpoint} answered with the unknown error code {code}: {text}")
        self._fail(call, error, outputs)

    def _receive_busy(self, node: Node, message: native.Message, now: float) -> None:
        self.counters.busy += 1
        call = self._calls.get(message.identity)
        if call is None or not self._end_attempt(call, node, keep=False):
            return
        call.busy_count += 1
        call.busy_text = message.body[0].decode("utf-8", "replace") if message.body else "no reason told"
        growth = _BUSY_GROWTH ** min(call.busy_count - 1, 16)
        pause_s = min(max(message.value / 1000, _BUSY_PAUSE_MIN_S) * growth, _BUSY_PAUSE_MAX_S)
        self._retry_later(call, pause_s, now)

    def _retry_later(self, call: Call, pause_s: float, now: float) -> None:
        self._retry_number += 1
        heappush(self._retries, (now + pause_s, self._retry_number, call))

    @staticmethod
    def _end_attempt(call: Call, node: Node, *, keep: bool) -> bool:
        """An attempt on this node's connection is over. Was it the last one made? ``keep``: it began."""
        if call.sent_to == node.connection:
            call.sent_to = 0
            if keep:
                call.was_dispatched = True
            return True
        if call.lost_on is not None and node.connection in call.lost_on:
            if keep:
                call.was_dispatched = True
            call.lost_on.discard(node.connection)
        return False

    # --- states of the nodes ------------------------------------------------------------------------------

    def _receive_pong(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        status = self._read_status(message)
        if status is None or not node.is_connected:
            return
        node.tell(status, now)
        self._take_timing(status)
        if node.is_active:
            self._choose(outputs, now)
        elif node is self._target:
            self._leave(node, "not active", outputs, now)
            self._choose(outputs, now)
        elif self._target is None:
            self._choose(outputs, now)
        elif status.peer_state == 0 and status.retry_after_ms == 0 and len(self._nodes) == 2:
            # The other node misses its peer as well, and our own PING to it is unanswered: two witnesses.
            target = self._target
            if target.pinged_at is not None and now - target.pinged_at >= self._ping_interval_s:
                target.is_silent = True
                target.is_active = False
                self._leave(target, "silent", outputs, now)
                self._choose(outputs, now)

    def _receive_not_active(
        self, node: Node, message: native.Message, outputs: list[Output], now: float
    ) -> None:
        self.counters.refusals += 1
        status = self._read_status(message)
        if status is not None and node.is_connected:
            node.refuse(status, now, self._failover_timeout_s)
            self._take_timing(status)
        if self._asked is node and message.identity == self._asked_identity:
            self._asked = None
        call = self._calls.get(message.identity)
        if call is not None:
            was_dispatched = bool(message.flags & native.FLAG_DISPATCHED)
            is_known = call.sent_to == node.connection or (
                call.lost_on is not None and node.connection in call.lost_on
            )
            if not is_known:
                self.counters.refusals_stale += 1
            elif self._end_attempt(call, node, keep=was_dispatched) and was_dispatched and call.is_bound:
                self._fail(
                    call, self._broken(call, f"{node.endpoint} stepped down while a worker had it"), outputs
                )
        if node is self._target and not node.is_active:
            self._leave(node, "not active", outputs, now)
        if self._target is None:
            self._choose(outputs, now)
        elif call is not None and not call.is_done and not call.sent_to:
            if node is self._target:
                # It says ACTIVE and refuses all the same: not again at once.
                self._retry_later(call, _REFUSED_PAUSE_S, now)
            else:
                self._send(call, self._target, outputs, now)

    def _read_status(self, message: native.Message) -> NodeStatus | None:
        try:
            return native.decode_status(message)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return None

    def _take_timing(self, status: NodeStatus) -> None:
        timeout_s = status.failover_timeout_ms / 1000
        self._failover_timeout_s = timeout_s
        if self._settings.silence_limit_s is None:
            self._silence_limit_s = timeout_s
        if self._settings.ping_interval_s is None:
            self._ping_interval_s = min(status.heartbeat_ms / 1000, timeout_s / PINGS_PER_SILENCE)

    def _send_ping(self, node: Node, outputs: list[Output], now: float) -> None:
        if node.pinged_at is None:
            node.pinged_at = now
        outputs.append(Send(node.index, self._ping))

    # --- which node ---------------------------------------------------------------------------------------

    def _choose(self, outputs: list[Output], now: float) -> None:
        """Follow the active node with the highest epoch; without one, ask."""
        best: Node | None = None
        for node in self._nodes:
            if node.is_active and node.is_connected and (best is None or node.epoch > best.epoch):
                best = node
        if best is None:
            self._elect(outputs, now)
        elif best is not self._target:
            self._adopt(best, outputs, now)

    def _adopt(self, node: Node, outputs: list[Output], now: float) -> None:
        """Follow this node, and send it every outstanding request that it does not have."""
        previous = self._target
        self._asked = None
        if previous is node:
            return
        if previous is not None:
            self._left = (previous.endpoint, "stale", now, len(self._calls))
        self._target = node
        for each in self._nodes:
            each.rest()
        left = self._left
        if left is not None and left[0] != node.endpoint:
            self.counters.failovers += 1
            event = FailedOver(left[0], node.endpoint, left[1], node.epoch, left[3], now - left[2])
            outputs.append(Announce(event))
        else:
            outputs.append(Announce(ActiveFound(node.endpoint, node.epoch)))
        self._left = None
        self._retries.clear()
        connection = node.connection
        unsent = []
        for call in self._calls.values():
            if call.sent_to == connection:
                continue
            if call.lost_on is not None and connection in call.lost_on:
                # It is still on its way there: the connection has not broken since.
                call.lost_on.discard(connection)
                self._give_up_attempt(call)
                call.sent_to = connection
                continue
            if call.sent_to:
                if call.is_bound:
                    continue  # the node it was sent to is alive and will answer or refuse it
                self._give_up_attempt(call)
            unsent.append(call)
        self._send_all(unsent, node, outputs, now)

    @staticmethod
    def _give_up_attempt(call: Call) -> None:
        if call.sent_to:
            if call.lost_on is None:
                call.lost_on = set()
            call.lost_on.add(call.sent_to)
            call.sent_to = 0

    def _leave(self, node: Node, reason: str, outputs: list[Output], now: float) -> None:
        """This node no longer serves, or can no longer be heard."""
        if self._asked is node:
            self._asked = None
        if self._target is node:
            self._target = None
            self._left = (node.endpoint, reason, now, len(self._calls))
            outputs.append(Announce(ActiveLost(node.endpoint, reason, len(self._calls))))
            self._search(now)
        if reason == "not active":
            return  # it is alive: what it has, it will answer or refuse
        connection = node.connection
        for call in [call for call in self._calls.values() if call.sent_to == connection]:
            self._give_up_attempt(call)
            if call.is_bound:
                self._fail(
                    call, self._broken(call, f"{node.endpoint} was lost ({reason}) with the request"), outputs
                )

    def _elect(self, outputs: list[Output], now: float) -> None:
        """No node is known to be active: send the oldest request to the first that could become so by it."""
        self._elect_at = math.inf
        if self._target is not None or self._asked is not None or not self._calls:
            return
        ask_at = math.inf
        for node in self._nodes:
            if not node.is_connected:
                if not node.is_settled(now, self._silence_limit_s):
                    ask_at = min(ask_at, node.settles_at(self._silence_limit_s))
                    break
            elif node.is_silent:
                continue
            elif node.status is None:
                break  # its PONG is on the way, or its silence will be noticed
            elif now >= node.ask_at:
                self._ask(node, outputs, now)
                return
            else:
                ask_at = min(ask_at, node.ask_at)
        self._elect_at = ask_at

    def _ask(self, node: Node, outputs: list[Output], now: float) -> None:
        while (call := self._oldest_unsent()) is not None and not (call.is_idempotent or node.obeys_once):
            self._refuse_once(call, node, outputs)
        if call is None:
            # All are with a node that is alive but no longer active. It should have answered or refused them.
            left_at = self._left[2] if self._left is not None else now
            if now < left_at + self._failover_timeout_s:
                self._elect_at = left_at + self._failover_timeout_s
                return
            call = next((call for call in self._calls.values() if not call.is_bound), None)
            if call is None:
                return
            self._give_up_attempt(call)
        self.counters.votes += 1
        self._asked = node
        self._asked_identity = call.identity
        self._send(call, node, outputs, now)
        self._send_ping(node, outputs, now)

    def _oldest_unsent(self) -> Call | None:
        """The oldest request that no live node holds; rather one that votes than one for mmi."""
        oldest: Call | None = None
        for call in self._calls.values():
            if call.sent_to:
                continue
            if not call.service.startswith(PREFIX):
                return call
            oldest = oldest or call
        return oldest

    # --- ends ---------------------------------------------------------------------------------------------

    def _send_all(self, calls: Sequence[Call], node: Node, outputs: list[Output], now: float) -> None:
        """Send several requests: together what may be, in messages of their own what may not.

        Those for one service leave in their order.
        """
        if len(calls) < 2 or not node.takes_batches:
            for call in calls:
                self._send(call, node, outputs, now)
            return
        together: dict[bytes, list[Call]] = {}
        # What all of a batch have in common: whether they are repeated, and whether they may be.
        marks: dict[bytes, int] = {}
        for call in calls:
            body, service = call.body, call.service
            group = together.get(service)
            if (
                call.key is not None
                or call.is_urgent
                or call.is_stream
                or len(body) != 1
                or len(body[0]) > BATCHED_BODY_BYTES_MAX
                or (group is None and service.startswith(PREFIX))
            ):
                self._send_batches(together.pop(service, ()), node, outputs, now)
                self._send(call, node, outputs, now)
                continue
            mark = 2 * call.is_idempotent + (call.attempts > 0 and call.may_have_executed)
            if group is not None and marks[service] == mark:
                group.append(call)
                continue
            if group is not None:
                self._send_batches(group, node, outputs, now)
            together[service] = [call]
            marks[service] = mark
        for group in together.values():
            self._send_batches(group, node, outputs, now)

    def _send_batches(
        self,
        calls: Sequence[Call],
        node: Node,
        outputs: list[Output],
        now: float,
    ) -> None:
        """Requests for one service, with the same flags."""
        if calls and not (calls[0].is_idempotent or node.obeys_once):
            for call in calls:
                self._refuse_once(call, node, outputs)
            return
        rows: list[Call] = []
        octets = 0
        for call in calls:
            size = len(call.body[0])
            if len(rows) == BATCH_ROWS_MAX or octets + size > BATCH_BYTES_MAX:
                outputs.append(self._send_batch(rows, node, now))
                rows = []
                octets = 0
            rows.append(call)
            octets += size
        if len(rows) == 1:
            self._send(rows[0], node, outputs, now)
        elif rows:
            outputs.append(self._send_batch(rows, node, now))

    def _send_batch(self, calls: Sequence[Call], node: Node, now: float) -> Send:
        service, is_repeated = calls[0].service, calls[0].may_have_executed
        is_once = not calls[0].is_idempotent
        connection, index = node.connection, node.index
        ttls_ms = []
        for call in calls:
            if call.attempts:
                self.counters.resends += 1
            call.attempts += 1
            call.sent_to = connection
            call.node = index
            ttls_ms.append(0 if call.deadline is None else _ttl_ms(call.deadline - now))
        return Send(
            index,
            native.encode_requests(
                self._client_id,
                service,
                [call.number for call in calls],
                ttls_ms,
                [call.body[0] for call in calls],
                epoch=self.epoch,
                is_repeated=is_repeated,
                is_once=is_once,
                is_whole=True,
            ),
        )

    def _begin_attempt(self, call: Call, node: Node, now: float) -> int:
        """It is about to be sent to this node; the time that it has left, in milliseconds."""
        if call.attempts:
            self.counters.resends += 1
        call.attempts += 1
        call.sent_to = node.connection
        call.node = node.index
        return 0 if call.deadline is None else _ttl_ms(call.deadline - now)

    def _send(self, call: Call, node: Node, outputs: list[Output], now: float) -> None:
        is_idempotent = call.is_idempotent
        if not (is_idempotent or node.obeys_once):
            self._refuse_once(call, node, outputs)
            return
        is_repeated = call.may_have_executed
        ttl_ms = self._begin_attempt(call, node, now)
        request = native.encode_request(
            call.identity,
            call.service,
            call.body,
            ttl_ms=ttl_ms,
            epoch=self.epoch,
            is_repeated=is_repeated,
            is_urgent=call.is_urgent,
            is_once=not is_idempotent,
            is_whole=not call.is_stream,
        )
        outputs.append(Send(node.index, request))

    def _refuse_once(self, call: Call, node: Node, outputs: list[Output]) -> None:
        """A node of an earlier release would give it to a second worker (BSN-C-11)."""
        text = (
            f"{node.endpoint} does not know requests that must not be executed twice (idempotent=False); "
            "it was not sent: upgrade the node"
        )
        self._fail(call, RejectedError(text, code=ErrorCode.INVALID), outputs)

    @staticmethod
    def _broken(call: Call, text: str) -> BstarError:
        if call.is_stream and call.partials_count:
            return StreamInterruptedError(f"{text}; {call.partials_count} PARTIAL(s) had been delivered")
        return OutcomeUnknownError(text)

    def _fail(self, call: Call, error: BstarError, outputs: list[Output]) -> None:
        followers = call.followers
        if followers and not self._is_closed and isinstance(error, CallTimeoutError | BusyError):
            self._replace(call)  # only this caller's time is over
            followers = None
        for each in (call,) if followers is None else (call, *followers):
            self.counters.failures += 1
            each.attempts = call.attempts
            self._forget(each)
            outputs.append(Fail(each, error))

    def _forget(self, call: Call) -> None:
        call.is_done = True
        leader = call.leader
        if leader is not None:
            self._following -= 1
            call.leader = None
            if leader.followers is not None and not leader.is_done:
                leader.followers.remove(call)
        elif self._calls.get(call.identity) is call:
            del self._calls[call.identity]


def _is_pending(call: Call, deadline: float) -> bool:
    return not call.is_done


def _ttl_ms(remaining_s: float) -> int:
    """What a request may live at the broker, whose caller waits for so much longer."""
    margin_s = remaining_s * _TTL_MARGIN
    margin_s = min(margin_s, _TTL_MARGIN_MAX_S)
    ttl_ms = math.ceil((remaining_s - margin_s) * 1000)
    return 1 if ttl_ms < 1 else min(ttl_ms, _TTL_MS_MAX)


# What a node that serves sends in answer to a vote.
_PROOFS: Iterable[int] = frozenset({native.FINAL, native.PARTIAL, native.ERROR, native.BUSY})
