"""A client's session that asks one server at a time: one request, one attempt, one deadline.

It serves every protocol without request numbers: plain MDP/0.2, Lazy Pirate, the first model of Freelance and
a client of plain ``BinaryStar`` servers. Each has its ``Codec``, and ``SessionSettings`` has its policy.

A reply without a number says nothing about the request it answers. So when a reply could come that no call
waits for (an attempt timed out, a caller gave up), the session opens a new socket to the node. The late reply
then goes to an address that does not exist (MDP2-R-03, LPP-C-02). ``is_fresh``: it opens a new socket
after each reply, too, so that a server's second reply to a request reaches no call (LPP-C-04).

After a timeout or a broken connection the session goes to the next endpoint, waits for the settle delay and
sends the request again. A node that is not active is silent, and each request to it is a vote. So the settle
delay must be at least the failover timeout of a pair (BST-C-01..04). An unreachable node is skipped without
delay, once per round.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import ClassVar, Protocol

from bstar.base.deadlines import Deadlines
from bstar.errors import BstarError, RemoteProtocolError
from bstar.wire.brokerless import PLAIN
from bstar.wire.mdp import MDP01, MDP02, ClientReply
from bstar_client.core.call_errors import (
    INTERRUPTED,
    already_closed,
    broken,
    closed,
    not_begun,
    overdue,
    too_late,
    too_many_outstanding,
    too_many_partials,
)
from bstar_client.core.calls import Call, Reply, is_pending
from bstar_client.core.counters import Counters
from bstar_client.core.events import ActiveFound, Connected, FailedOver
from bstar_client.core.native.reply_reader import collect_partial, stream_partial
from bstar_client.core.nodes import Endpoint, unreached
from bstar_client.core.outputs import Announce, Deliver, Fail, Output, Reset, Send
from bstar_client.core.plain.rota import Rota
from bstar_client.core.session_settings import SessionSettings

# The pause after a round in which no node was reachable, without a settle delay: as long as the links pause.
_ROUND_PAUSE_S = 0.02


class Codec(Protocol):
    """The frames of a protocol in which one request at a time is under way."""

    def encode_request(self, service: bytes, body: list[bytes]) -> list[bytes]:
        """A request."""
        ...

    def decode_for_client(self, frames: list[bytes]) -> ClientReply:
        """Read a server's message. RemoteProtocolError if it is no reply."""
        ...


class AttemptSession:
    """One client that asks one node at a time. See ``ClientCore``. A subclass has the codec, and says whether
    each request needs a socket of its own.
    """

    codec: ClassVar[Codec]
    is_fresh: ClassVar[bool]

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        now: float,
        settings: SessionSettings | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._nodes = [Endpoint(endpoint) for endpoint in endpoints]
        self._settings = settings or SessionSettings()
        self._rota = Rota(len(endpoints), self._settings.attempts_max, self._settings.is_each_once)
        self._waiting: deque[Call] = deque()
        self._call: Call | None = None
        self._deadlines = Deadlines(is_pending)
        # An attempt: sent, or waiting for its connection, until attempt_ends_at. Or a pause, until send_at.
        self._is_sent = False
        self._attempt_ends_at = math.inf
        self._send_at = math.inf
        # When the first request of the present silence was sent; calls may be shorter than an attempt.
        self._unanswered_since: float | None = None
        self._followed: int | None = None
        # When and why a node was left last.
        self._left = (now, "")
        self._is_closed = False
        self.counters = counters or Counters()

    @property
    def outstanding(self) -> int:
        """How many calls wait for their replies."""
        return len(self._waiting) + (self._call is not None)

    @property
    def active(self) -> str | None:
        """The endpoint that answered last, if the session still asks it."""
        return self._nodes[self._rota.at].endpoint if self._followed == self._rota.at else None

    # --- the caller's side --------------------------------------------------------------------------------

    def submit(self, call: Call, now: float) -> list[Output]:
        """Queue a call behind those before it."""
        if call.is_done or call.is_begun:
            return []  # abandoned before its turn came, or taken before an interrupt
        if self._is_closed:
            return [Fail(call, already_closed())]
        if self.outstanding >= self._settings.outstanding_max:
            return [Fail(call, too_many_outstanding(self.outstanding))]
        if call.deadline is not None and call.deadline <= now:
            return [Fail(call, too_late(call, now))]
        call.is_begun = True
        self.counters.requests += 1
        outputs: list[Output] = []
        self._queue(call)
        self._begin_next(outputs, now)
        return outputs

    def _queue(self, call: Call) -> None:
        self._waiting.append(call)
        if call.deadline is not None:
            self._deadlines.add(call, call.deadline)

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls, one by one."""
        return [output for call in calls for output in self.submit(call, now)]

    def abandon(self, call: Call, now: float) -> list[Output]:
        """No caller waits for this call any more."""
        outputs: list[Output] = []
        if call.is_done:
            return outputs
        call.is_done = True
        if call.is_begun:
            self.counters.abandoned += 1
        if call is self._call:
            self._drop_current(outputs)
            self._begin_next(outputs, now)
        else:
            with suppress(ValueError):  # it has not been submitted yet
                self._waiting.remove(call)
        return outputs

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Start over with these calls, in the order in which they began."""
        if self._is_closed:
            return []
        outputs: list[Output] = []
        for node in self._nodes:
            node.restart()
        self._call = None
        self._waiting.clear()
        self._deadlines = Deadlines(is_pending)
        self._is_sent = False
        self._attempt_ends_at = self._send_at = math.inf
        self._unanswered_since = None
        self._rota.begin()
        for call in sorted(calls, key=lambda call: call.begun_at):
            if call.may_have_executed and call.is_bound:
                self._fail(call, broken(call, INTERRUPTED), outputs)
                continue
            call.is_done = False  # if it was, its outcome was lost
            self._queue(call)
        self._begin_next(outputs, now)
        return outputs

    def close(self, now: float) -> list[Output]:
        """End every outstanding call with an error that says what is known of it."""
        self._is_closed = True
        outputs: list[Output] = []
        calls = ([self._call] if self._call is not None else []) + list(self._waiting)
        self._call = None
        self._waiting.clear()
        for call in calls:
            self._fail(call, closed(call), outputs)
        return outputs

    # --- the connection's side ----------------------------------------------------------------------------

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        outputs: list[Output] = [Announce(Connected(self._nodes[node].endpoint))]
        self._nodes[node].connect()
        self._rota.turn_to(node)
        if node == self._rota.at:
            self._send_if_ready(outputs, now)
        return outputs

    def disconnected(self, node: int, now: float, *, is_untrusted: bool = False) -> list[Output]:
        """The connection to a node broke, or an attempt to connect failed."""
        outputs = self._nodes[node].disconnect(is_untrusted=is_untrusted)
        if node == self._rota.at and self._call is not None:
            if self._is_sent:
                self._next_node("disconnected", outputs, now)
            elif self._send_at == math.inf and not self._rota.is_held:
                self._pass_over(outputs, now)
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node. If it answers no request, it is counted and ignored."""
        try:
            reply = self.codec.decode_for_client(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return []
        call = self._call
        if call is None or not self._is_sent or node != self._rota.at or reply.service != call.service:
            self.counters.replies_unmatched += 1
            return []
        outputs: list[Output] = []
        self._unanswered_since = None
        self._follow(outputs, now)
        endpoint = self._nodes[node].endpoint
        body = tuple(reply.body)
        if reply.is_final:
            self.counters.replies += 1
            call.is_done = True
            self._end_attempt()
            self._rota.begin()
            index = call.partials_count if call.is_stream else call.index
            elapsed_s = now - call.begun_at
            final = Reply(body, tuple(call.partials), index, call.attempts, 0, endpoint, True, elapsed_s)
            outputs.append(Deliver(call, final))
            if self.is_fresh:
                self._reset(node, outputs)
            self._begin_next(outputs, now)
            return outputs
        self._attempt_ends_at = now + self._attempt_s(call)
        if call.is_stream:
            outputs.append(stream_partial(call, body, 0, endpoint))
        elif not collect_partial(call, body, self._settings.partials_max):
            self._fail(call, too_many_partials(self._settings.partials_max), outputs)
            self._drop_current(outputs)
            self._begin_next(outputs, now)
        return outputs

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        due = min(self._attempt_ends_at, self._send_at, self._deadlines.next_deadline())
        return None if due == math.inf else due

    def handle_timer(self, now: float) -> list[Output]:
        """Handle deadlines, overdue attempts and the end of a settle delay."""
        outputs: list[Output] = []
        self._end_overdue(outputs, now)
        if now >= self._send_at:
            self._send_at = math.inf
            self._begin_attempt(outputs, now)
        if now >= self._attempt_ends_at:
            if self._is_sent or self._rota.attempts_max is not None:
                self._next_node("silent", outputs, now)
            else:
                self._pass_over(outputs, now)
        return outputs

    def _end_overdue(self, outputs: list[Output], now: float) -> None:
        for call in self._deadlines.pop_due(now):
            nodes = self._describe()
            if call is not self._call:
                self._waiting.remove(call)
                self._fail(call, not_begun(call, nodes, now), outputs)
                continue
            self._fail(call, overdue(call, call, nodes, now, unreached(self._nodes)), outputs)
            since = self._unanswered_since
            if self._is_sent and since is not None and now - since >= self._settings.attempt_timeout_s:
                self._call = None
                self._leave("silent", outputs, now)
            else:
                self._drop_current(outputs)
        self._deadlines.tidy(self.outstanding)
        self._begin_next(outputs, now)

    # --- one request at a time ----------------------------------------------------------------------------

    def _begin_next(self, outputs: list[Output], now: float) -> None:
        if self._call is not None or not self._waiting:
            return
        self._call = self._waiting.popleft()
        self._rota.begin()
        if self._send_at == math.inf:
            self._begin_attempt(outputs, now)

    def _attempt_s(self, call: Call) -> float:
        """How long an attempt may last. A call with a number of attempts divides its time among them."""
        if self._rota.attempts_max is None or call.deadline is None:
            return self._settings.attempt_timeout_s
        return (call.deadline - call.begun_at) / self._rota.attempts_max

    def _begin_attempt(self, outputs: list[Output], now: float) -> None:
        if self._call is None:
            return
        self._attempt_ends_at = now + self._attempt_s(self._call)
        self._is_sent = False
        node = self._nodes[self._rota.at]
        if node.is_connected:
            self._send_if_ready(outputs, now)
        elif node.trouble:
            self._pass_over(outputs, now)

    def _send_if_ready(self, outputs: list[Output], now: float) -> None:
        call = self._call
        if call is None or self._is_sent or self._send_at != math.inf:
            return
        if call.attempts:
            self.counters.resends += 1
        call.attempts += 1
        call.node = self._rota.at
        call.sent_to = self._rota.at + 1  # for ever: it may have been executed
        call.partials = []
        call.partials_count = 0
        self._is_sent = True
        if self._unanswered_since is None:
            self._unanswered_since = now
        self._attempt_ends_at = now + self._attempt_s(call)
        outputs.append(Send(self._rota.at, self.codec.encode_request(call.service, call.body)))

    def _pass_over(self, outputs: list[Output], now: float) -> None:
        """This node is unreachable: try the next one at once. After a round, pause; or wait for any node."""
        if self._rota.pass_over():
            self._begin_attempt(outputs, now)
        elif not self._rota.is_held:
            self._attempt_ends_at = math.inf
            self._send_at = now + max(self._settings.settle_delay_s, _ROUND_PAUSE_S)
        else:
            self._ask_connected(outputs, now)

    def _ask_connected(self, outputs: list[Output], now: float) -> None:
        """Any node will do: ask one that connected meanwhile, if one has."""
        for index, node in enumerate(self._nodes):
            if node.is_connected:
                self._rota.turn_to(index)
                if index == self._rota.at:
                    self._send_if_ready(outputs, now)
                    return

    def _next_node(self, reason: str, outputs: list[Output], now: float) -> None:
        """An attempt failed: reset its socket, and ask the next node after the settle delay."""
        call = self._call
        assert call is not None
        is_spent = self._rota.spend()
        if call.is_bound:
            text = f"{self._nodes[self._rota.at].endpoint} was lost ({reason}) with the request"
            self._fail(call, broken(call, text), outputs)
            self._call = None
        elif is_spent:
            error = overdue(call, call, self._describe(), now, unreached(self._nodes))
            self._fail(call, error, outputs)
            self._call = None
        self._leave(reason, outputs, now)
        self._begin_next(outputs, now)

    def _leave(self, reason: str, outputs: list[Output], now: float) -> None:
        self._left = (now, reason)
        self._reset(self._rota.at, outputs)
        self._unanswered_since = None
        self._rota.go_on()
        self._send_at = now + self._settings.settle_delay_s

    def _describe(self) -> str:
        return "; ".join(node.describe() for node in self._nodes)

    def _drop_current(self, outputs: list[Output]) -> None:
        """The current call has ended without its final reply: that reply must not reach another call."""
        if self._is_sent:
            self._reset(self._rota.at, outputs)
        self._end_attempt()

    def _end_attempt(self) -> None:
        self._call = None
        self._is_sent = False
        self._attempt_ends_at = math.inf

    def _reset(self, node: int, outputs: list[Output]) -> None:
        self._is_sent = False
        self._attempt_ends_at = math.inf
        self._nodes[node].restart()
        outputs.append(Reset(node))

    def _follow(self, outputs: list[Output], now: float) -> None:
        if self._followed == self._rota.at:
            return
        endpoint = self._nodes[self._rota.at].endpoint
        if self._followed is None:
            outputs.append(Announce(ActiveFound(endpoint, 0)))
        else:
            self.counters.failovers += 1
            from_endpoint = self._nodes[self._followed].endpoint
            left_at, reason = self._left
            event = FailedOver(from_endpoint, endpoint, reason, 0, self.outstanding, now - left_at)
            outputs.append(Announce(event))
        self._followed = self._rota.at

    def _fail(self, call: Call, error: BstarError, outputs: list[Output]) -> None:
        self.counters.failures += 1
        call.is_done = True
        outputs.append(Fail(call, error))


class PlainSession(AttemptSession):
    """One client of servers that answer REQ: nothing in a reply says which request it answers."""

    codec = PLAIN
    is_fresh = True


class Mdp02Session(AttemptSession):
    """One client of plain MDP/0.2 (18/MDP), in the order of the guide's Binary Star client: BST-C-01..04,
    MDP2-C-01..04. A reply names its service, and a broker sends one FINAL, so its socket serves on.
    """

    codec = MDP02
    is_fresh = False


class Mdp01Session(Mdp02Session):
    """The same of plain MDP/0.1 (7/MDP): MDP1-C-01..03."""

    codec = MDP01


MAJORDOMO = {"mdp01": Mdp01Session, "mdp02": Mdp02Session}
