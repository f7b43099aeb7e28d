"""The native client's session: which node it follows, and the calls that have no reply.

It is sticky: while a node says that it is active, everything goes there. The session looks for another node
when that node's connection breaks, when it falls silent, or when it says that it is not active. It follows a
node only after it said ACTIVE (PONG) or answered a request. If no node says so, the session sends the oldest
request alone, as a vote (zguide, chapter 4: a passive node takes over when a client asks it while its peer is
silent). The vote goes to the first node in the list that it could make active. The other requests follow when
that node serves.

All attempts of a request carry one identity, so a reply from any node matches. A second reply to a request is
dropped.

The parts: ``Nodes`` has the state of the nodes, ``Outstanding`` the calls, ``Sender`` makes messages of
calls, ``ReplyReader`` reads the answers. ``Session`` decides which node to follow. No part opens sockets,
reads clocks or waits. BST-C-01..04.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import native
from bstar.wire.messages import READS_CANCELS, NodeStatus
from bstar_client.core.call_errors import broken, overdue
from bstar_client.core.calls import Call
from bstar_client.core.counters import Counters
from bstar_client.core.events import ActiveFound, ActiveLost, Connected, FailedOver
from bstar_client.core.native.outstanding import Outstanding
from bstar_client.core.native.reply_reader import REFUSED_PAUSE_S, ReplyReader
from bstar_client.core.native.sender import Sender
from bstar_client.core.nodes import Node, Nodes, unreached
from bstar_client.core.outputs import Announce, Output, Send
from bstar_client.core.session_settings import SessionSettings

# The answers to a vote that prove that the node serves.
_PROOFS = frozenset({native.FINAL, native.PARTIAL, native.PROGRESS, native.ERROR, native.BUSY})


class _Left(msgspec.Struct, frozen=True, gc=False):
    """The active node that the session left last: why, when, and how many calls were outstanding."""

    endpoint: str
    reason: str
    at: float
    outstanding: int


class Session:
    """One native client's knowledge of its nodes and its outstanding calls. See ``ClientCore``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        client_id: bytes,
        now: float,
        settings: SessionSettings | None = None,
        counters: Counters | None = None,
    ) -> None:
        assert len(client_id) == 16, "a client id has 16 bytes"
        settings = settings or SessionSettings()
        self.counters = counters or Counters()
        self._nodes = Nodes(
            endpoints,
            now=now,
            ping_interval_s=settings.ping_interval_s,
            silence_limit_s=settings.silence_limit_s,
        )
        self._calls = Outstanding(client_id, settings.outstanding_max, self.counters)
        self._sender = Sender(client_id, self._calls)
        self._replies = ReplyReader(self._calls, settings.partials_max)
        # The node that the session follows.
        self._target: Node | None = None
        # The node with an unanswered vote, and the vote's identity.
        self._candidate: Node | None = None
        self._vote_identity = b""
        # When to look again for a candidate; events look at once.
        self._vote_at = math.inf
        self._left: _Left | None = None

    @property
    def outstanding(self) -> int:
        """How many calls wait for their replies."""
        return len(self._calls)

    @property
    def active(self) -> str | None:
        """The endpoint that the session follows."""
        return self._target.endpoint if self._target is not None else None

    @property
    def epoch(self) -> int:
        """The highest epoch that a node has sent."""
        return self._sender.epoch

    # --- the caller's side --------------------------------------------------------------------------------

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call; the caller's fields are set."""
        outputs = self._calls.enter(call, now)
        if outputs is not None:
            return outputs
        outputs = []
        target = self._target
        if target is None:
            self._search(len(self._calls.by_identity) == 1, outputs, now)
            return outputs
        if len(self._calls.by_identity) == 1:
            self._nodes.ping_soon(now)
        self._sender.send(call, target, outputs, now)
        return outputs

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls."""
        outputs: list[Output] = []
        entered = []
        was_idle = not self._calls.by_identity
        for call in calls:
            instead = self._calls.enter(call, now)
            if instead is None:
                entered.append(call)
            else:
                outputs += instead
        if not entered:
            return outputs
        if self._target is None:
            self._search(was_idle, outputs, now)
            return outputs
        if was_idle:
            self._nodes.ping_soon(now)
        self._sender.send_all(entered, self._target, outputs, now)
        return outputs

    def _search(self, was_idle: bool, outputs: list[Output], now: float) -> None:
        """A call came while the session follows no node."""
        if was_idle:
            self._nodes.start_search(now)
        self._vote(outputs, now)

    def abandon(self, call: Call, now: float) -> list[Output]:
        """No caller waits for this call any more."""
        outputs: list[Output] = []
        self._cancel(call, outputs)
        self._calls.abandon(call)
        return outputs

    def _cancel(self, call: Call, outputs: list[Output]) -> None:
        """CANCEL the request at the node that has it (BSN-C-15). One with a key stays: others may want it."""
        node = self._nodes[call.node]
        if call.key is None and call.sent_to and call.sent_to == node.connection and node.can(READS_CANCELS):
            outputs.append(Send(node.index, native.encode_cancel(call.identity, self._sender.epoch)))

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Start over with these calls. A call that may have been executed counts as sent and lost."""
        if self._calls.is_closed:
            return []
        outputs: list[Output] = []
        self._lose_target("interrupted", outputs, now)
        self._candidate = None
        self._vote_at = math.inf
        self._nodes.restart(now)
        outputs += self._calls.restart(calls)
        if self._calls.by_identity:
            self._nodes.start_search(now)
        return outputs

    def close(self, now: float) -> list[Output]:
        """Give up every outstanding call, with an error that says what is known of it."""
        outputs: list[Output] = []
        for call in self._calls.by_identity.values():
            self._cancel(call, outputs)
        return outputs + self._calls.close()

    # --- the connection's side ----------------------------------------------------------------------------

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        if self._calls.is_closed:
            return []
        record = self._nodes[node]
        outputs: list[Output] = []
        if record.is_connected:
            self._leave(record, "disconnected", outputs, now)
        self._nodes.connect(record)
        outputs += [Announce(Connected(record.endpoint)), self._nodes.ping(record, now)]
        return outputs

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[Output]:
        """The connection to a node broke, or an attempt to connect failed.

        ``is_untrusted``: at the handshake, as if one side does not accept the other's key.
        """
        record = self._nodes[node]
        was_connected = record.is_connected
        outputs = record.disconnect(is_untrusted=is_untrusted)
        if was_connected:
            self._leave(record, "disconnected", outputs, now)
        record.forget()
        self._follow_active(outputs, now)
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node. Garbage is counted and ignored."""
        try:
            message = native.decode(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return []
        record = self._nodes[node]
        record.heard_at = now
        record.pinged_at = None
        if message.epoch > self._sender.epoch:
            self._sender.epoch = message.epoch
            self._nodes.take_epoch(message.epoch)
        outputs: list[Output] = []
        command = message.command
        if self._candidate is record and message.identity == self._vote_identity and command in _PROOFS:
            record.is_active = True
            record.epoch = message.epoch
            self._follow(record, outputs, now)
        if command == native.FINALS:
            self._replies.receive_finals(record, message, outputs, now)
        elif command == native.FINAL:
            self._replies.receive_final(record, message, outputs, now)
        elif command in (native.PARTIAL, native.PROGRESS):
            self._replies.receive_partial(record, message, outputs)
        elif command == native.PONG:
            self._receive_pong(record, message, outputs, now)
        elif command == native.NOT_ACTIVE:
            self._receive_not_active(record, message, outputs, now)
        elif command == native.BUSY:
            self._replies.receive_busy(record, message, now)
        elif command == native.ERROR:
            self._replies.receive_error(record, message, outputs, now)
        else:
            self.counters.messages_invalid += 1
        if record.is_silent:
            record.is_silent = False
            self._follow_active(outputs, now)
        return outputs

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        calls = self._calls
        if calls.is_closed:
            return None
        due_call, due_node = calls.next_deadline(), self._nodes.next_deadline()
        due = min(due_call, due_node)
        if self._target is None and self._vote_at < due and calls.by_identity:
            due = self._vote_at
        return due

    def handle_timer(self, now: float) -> list[Output]:
        """Handle deadlines, silence, PINGs, and requests whose pause after BUSY is over."""
        calls, nodes = self._calls, self._nodes
        if calls.is_closed:
            return []
        outputs: list[Output] = []
        for call in calls.pop_overdue(now):
            sent, is_followed = call.leader or call, self._target is not None
            error = overdue(call, sent, nodes.describe(now), now, unreached(nodes), is_followed=is_followed)
            self._cancel(call, outputs)
            calls.fail(call, error, outputs)
        for node in nodes.take_silent(now):
            self._leave(node, "silent", outputs, now)
        outputs += nodes.ping_due(now, is_idle=not calls.by_identity, is_found=self._target is not None)
        again = calls.pop_retries(now)
        if self._target is None:
            self._follow_active(outputs, now)
        elif again:
            self._sender.send_all(again, self._target, outputs, now)
        return outputs

    # --- states of the nodes ------------------------------------------------------------------------------

    def _receive_pong(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        status = self._read_status(message)
        if status is None or not node.is_connected:
            return
        node.hear(status, now)
        self._nodes.take_timing(status)
        target = self._target
        if node is target and not node.is_active:
            self._leave(node, "not active", outputs, now)
            self._follow_active(outputs, now)
        elif node.is_active or target is None:
            self._follow_active(outputs, now)
        elif (
            # Two witnesses: the peer of the followed node misses it, too, and our own PING has no answer.
            (status.peer_state, status.retry_after_ms, len(self._nodes)) == (0, 0, 2)
            and target.pinged_at is not None
            and now - target.pinged_at >= self._nodes.ping_interval_s
        ):
            target.fall_silent()
            self._leave(target, "silent", outputs, now)
            self._follow_active(outputs, now)

    def _receive_not_active(
        self, node: Node, message: native.Message, outputs: list[Output], now: float
    ) -> None:
        self.counters.refusals += 1
        status = self._read_status(message)
        if status is not None and node.is_connected:
            node.candidacy.refuse(now, self._nodes.failover_timeout_s)
            node.hear(status, now)
            self._nodes.take_timing(status)
        if self._candidate is node and message.identity == self._vote_identity:
            self._candidate = None
        call = self._calls.by_identity.get(message.identity)
        if call is not None:
            was_dispatched = bool(message.flags & native.FLAG_DISPATCHED)
            if not call.was_sent_over(node.connection):
                self.counters.refusals_stale += 1
            is_lost = call.end_attempt(node.connection, was_dispatched=was_dispatched) and was_dispatched
            if is_lost and call.is_bound:
                error = broken(call, f"{node.endpoint} stepped down while a worker had it")
                self._calls.fail(call, error, outputs)
        if node is self._target and not node.is_active:
            self._leave(node, "not active", outputs, now)
        if self._target is None:
            self._follow_active(outputs, now)
        elif call is not None and not call.is_done and not call.sent_to:
            if node is self._target:
                # It says ACTIVE and refuses: do not ask it again at once.
                self._calls.retry_later(call, REFUSED_PAUSE_S, now)
            else:
                self._sender.send(call, self._target, outputs, now)

    def _read_status(self, message: native.Message) -> NodeStatus | None:
        try:
            return native.decode_status(message)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return None

    # --- which node ---------------------------------------------------------------------------------------

    def _follow_active(self, outputs: list[Output], now: float) -> None:
        """Follow the active node with the highest epoch; without one, vote."""
        best = self._nodes.find_active()
        if best is None:
            self._vote(outputs, now)
        elif best is not self._target:
            self._follow(best, outputs, now)

    def _follow(self, node: Node, outputs: list[Output], now: float) -> None:
        """Follow this node, and send it every outstanding request that it does not have."""
        previous = self._target
        self._candidate = None
        if previous is node:
            return
        left = self._left
        if previous is not None:
            left = _Left(previous.endpoint, "stale", now, len(self._calls.by_identity))
        self._left = None
        self._target = node
        self._nodes.end_search()
        if left is not None and left.endpoint != node.endpoint:
            self.counters.failovers += 1
            gap_s = now - left.at
            event = FailedOver(left.endpoint, node.endpoint, left.reason, node.epoch, left.outstanding, gap_s)
            outputs.append(Announce(event))
        else:
            outputs.append(Announce(ActiveFound(node.endpoint, node.epoch)))
        self._sender.send_all(self._calls.take_unsent(node.connection), node, outputs, now)

    def _leave(self, node: Node, reason: str, outputs: list[Output], now: float) -> None:
        """The followed node stopped serving, or is out of reach."""
        if self._candidate is node:
            self._candidate = None
        if self._target is node:
            self._lose_target(reason, outputs, now)
            self._nodes.start_search(now)
        if reason != "not active":  # a node that is alive answers or refuses what it has
            self._calls.lose_attempts(node.connection, f"{node.endpoint} was lost ({reason})", outputs)

    def _lose_target(self, reason: str, outputs: list[Output], now: float) -> None:
        if self._target is not None:
            endpoint, outstanding = self._target.endpoint, len(self._calls.by_identity)
            self._target = None
            self._left = _Left(endpoint, reason, now, outstanding)
            outputs.append(Announce(ActiveLost(endpoint, reason, outstanding)))

    def _vote(self, outputs: list[Output], now: float) -> None:
        """No node is active: send the oldest request, as a vote, to the first node that may become active."""
        self._vote_at = math.inf
        if self._target is not None or self._candidate is not None or not self._calls.by_identity:
            return
        candidate, self._vote_at = self._nodes.find_candidate(now)
        if candidate is not None:
            self._vote_at = math.inf
            self._send_vote(candidate, outputs, now)

    def _send_vote(self, node: Node, outputs: list[Output], now: float) -> None:
        """Send the node a vote."""
        calls = self._calls
        while (call := calls.oldest_unsent()) is not None and self._sender.refuses(call, node, outputs):
            pass
        if call is None:
            # A node that is alive but not active holds all of them. It should have answered or refused them.
            left_at = self._left.at if self._left is not None else now
            if now < left_at + self._nodes.failover_timeout_s:
                self._vote_at = left_at + self._nodes.failover_timeout_s
                return
            call = next((call for call in calls.by_identity.values() if not call.is_bound), None)
            if call is None:
                return
            call.lose_attempt()
        self.counters.votes += 1
        self._candidate = node
        self._vote_identity = call.identity
        self._sender.send(call, node, outputs, now)
        outputs.append(self._nodes.ping(node, now))
