"""The client's session in plain MDP/0.2 (18/MDP), to any broker: one request at a time, in order.

MDP has no request numbers, so a reply says nothing about the request it answers. Hence the rule of this
session: whenever a reply could still come that is no longer wanted (an attempt timed out, a caller gave
up), the node's socket is closed and a new one opened, and the late reply goes to an address that no
longer exists (MDP2-R-03). A node that is not active says nothing in this protocol; it shows as a timeout,
and each request sent to it is a vote.

The order is the guide's Binary Star client's: on a timeout or a broken connection go to the next endpoint
and wait for the settle delay, which must not be shorter than the pair's failover timeout, before the
request is sent again. A node that cannot be reached at all is passed over without delay, once per round.
BST-C-01..04, MDP2-C-01..04.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RemoteProtocolError,
    StreamInterruptedError,
)
from bstar.wire import mdp02
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import ActiveFound, Connected, Disconnected, FailedOver
from bstar_client.core.outputs import Announce, Deliver, Fail, Output, Reset, Send
from bstar_client.core.overdue import seconds, title
from bstar_client.core.session import INTERRUPTED, Counters

__all__ = ["Mdp02Session", "Mdp02Settings"]


class Mdp02Settings(msgspec.Struct, frozen=True):
    """Bounds and timing of a plain MDP/0.2 session.

    ``attempt_timeout_s``: silence after which an attempt is given up; each PARTIAL restarts it (MDP2-R-01).
    ``settle_delay_s``: pause before a request goes to the next node; at least the pair's failover timeout.
    """

    outstanding_max: int = 100_000
    partials_max: int = 10_000
    attempt_timeout_s: float = 2.5
    settle_delay_s: float = 2.0


class Mdp02Session:
    """One MDP/0.2 client. See ``ClientCore``."""

    def __init__(
        self, endpoints: Sequence[str], *, now: float, settings: Mdp02Settings | None = None
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._settings = settings or Mdp02Settings()
        self._is_connected = [False] * len(self._endpoints)
        self._is_refused = [False] * len(self._endpoints)
        self._at = 0
        self._waiting: deque[Call] = deque()
        self._call: Call | None = None
        # An attempt: sent, or waiting for its connection, until attempt_ends_at. Or a pause, until send_at.
        self._is_sent = False
        self._attempt_ends_at: float | None = None
        self._send_at: float | None = None
        self._passed_over = 0
        # When the first request was sent that nothing was heard after; calls may be shorter than an attempt.
        self._unanswered_since: float | None = None
        self._followed: int | None = None
        self._left_at = now
        self._left_reason = ""
        self._deadline_next: float | None = None
        self._is_closed = False
        self.counters = Counters()

    @property
    def outstanding(self) -> int:
        """How many calls wait for their replies."""
        return len(self._waiting) + (self._call is not None)

    @property
    def active(self) -> str | None:
        """The endpoint that answered last, if it is still the one that is asked."""
        return self._endpoints[self._at] if self._followed == self._at else None

    # --- the caller's side --------------------------------------------------------------------------------

    def submit(self, call: Call, now: float) -> list[Output]:
        """Queue a call behind those before it."""
        if call.is_done:
            return []  # abandoned before its turn came
        if self._is_closed:
            return [Fail(call, ClosedError("the client is closed; the request was not sent"))]
        if self.outstanding >= self._settings.outstanding_max:
            text = f"{self.outstanding} requests are outstanding (outstanding_max); wait for replies first"
            return [Fail(call, BusyError(text))]
        call.is_begun = True
        self.counters.requests += 1
        self._waiting.append(call)
        if call.deadline is not None and (self._deadline_next is None or call.deadline < self._deadline_next):
            self._deadline_next = call.deadline
        outputs: list[Output] = []
        self._begin_next(outputs, now)
        return outputs

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls, one by one."""
        return [output for call in calls for output in self.submit(call, now)]

    def abandon(self, call: Call, now: float) -> list[Output]:
        """Nobody waits for this call any more."""
        outputs: list[Output] = []
        if call.is_done:
            return outputs
        call.is_done = True
        if call is self._call:
            self._drop_current(outputs)
            self._begin_next(outputs, now)
        else:
            with suppress(ValueError):  # it has not been submitted yet
                self._waiting.remove(call)
        return outputs

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Begin anew with these calls, in the order in which they were asked for."""
        if self._is_closed:
            return []
        outputs: list[Output] = []
        self._is_connected = [False] * len(self._endpoints)
        self._is_refused = [False] * len(self._endpoints)
        self._call = None
        self._waiting.clear()
        self._is_sent = False
        self._attempt_ends_at = self._send_at = self._unanswered_since = self._deadline_next = None
        self._passed_over = 0
        for call in sorted(calls, key=lambda call: call.begun_at):
            if call.attempts and call.is_bound:
                is_broken = call.is_stream and call.partials_count > 0
                kind = StreamInterruptedError if is_broken else OutcomeUnknownError
                self._fail(call, kind(INTERRUPTED), outputs)
                continue
            call.is_done = False  # if it was, its outcome was lost
            self._waiting.append(call)
            if call.deadline is not None:
                self._deadline_next = min(call.deadline, self._deadline_next or math.inf)
        self._begin_next(outputs, now)
        return outputs

    def close(self, now: float) -> list[Output]:
        """End every outstanding call, saying what is known of it."""
        self._is_closed = True
        outputs: list[Output] = []
        calls = ([self._call] if self._call is not None else []) + list(self._waiting)
        self._call = None
        self._waiting.clear()
        for call in calls:
            error: BstarError
            if call.attempts:
                error = OutcomeUnknownError("the client was closed while the request was outstanding")
            else:
                error = ClosedError(
                    "the client was closed; the request had not been sent: it was not executed"
                )
            self._fail(call, error, outputs)
        return outputs

    # --- the connection's side ----------------------------------------------------------------------------

    def connected(self, node: int, now: float) -> list[Output]:
        """The connection to a node is ready for messages."""
        outputs: list[Output] = [Announce(Connected(self._endpoints[node]))]
        self._is_connected[node] = True
        self._is_refused[node] = False
        if node == self._at:
            self._send_if_ready(outputs, now)
        return outputs

    def disconnected(self, node: int, now: float) -> list[Output]:
        """The connection to a node broke, or an attempt to connect failed."""
        outputs: list[Output] = []
        was_connected, was_refused = self._is_connected[node], self._is_refused[node]
        self._is_connected[node] = False
        self._is_refused[node] = True
        if was_connected or not was_refused:
            reason = "broken" if was_connected else "refused"
            outputs.append(Announce(Disconnected(self._endpoints[node], reason)))
        if node == self._at and self._call is not None:
            if self._is_sent:
                self._next_node("disconnected", outputs, now)
            elif self._send_at is None:
                self._pass_over(outputs, now)
        return outputs

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]:
        """A message came from a node. What answers nothing is counted and ignored."""
        try:
            reply = mdp02.decode_for_client(frames)
        except RemoteProtocolError:
            self.counters.messages_invalid += 1
            return []
        call = self._call
        if call is None or not self._is_sent or node != self._at or reply.service != call.service:
            self.counters.replies_unmatched += 1
            return []
        outputs: list[Output] = []
        self._unanswered_since = None
        self._follow(outputs, now)
        endpoint = self._endpoints[node]
        body = tuple(reply.body)
        if reply.is_final:
            self.counters.replies += 1
            call.is_done = True
            self._call = None
            self._is_sent = False
            self._attempt_ends_at = None
            index = call.partials_count if call.is_stream else call.index
            outputs.append(
                Deliver(
                    call,
                    Reply(
                        body,
                        tuple(call.partials),
                        index,
                        call.attempts,
                        0,
                        endpoint,
                        True,
                        now - call.begun_at,
                    ),
                )
            )
            self._begin_next(outputs, now)
            return outputs
        self._attempt_ends_at = now + self._settings.attempt_timeout_s
        index = call.partials_count
        call.partials_count += 1
        if call.is_stream:
            outputs.append(Deliver(call, Reply(body, (), index, call.attempts, 0, endpoint, False)))
        elif index < self._settings.partials_max:
            assert isinstance(call.partials, list), "made when it was sent"
            call.partials.append(body)
        else:
            text = (
                f"the reply has more than {self._settings.partials_max} PARTIALs (partials_max): use stream()"
            )
            self._fail(call, OutcomeUnknownError(text), outputs)
            self._drop_current(outputs)
            self._begin_next(outputs, now)
        return outputs

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        due = [at for at in (self._attempt_ends_at, self._send_at, self._deadline_next) if at is not None]
        return min(due, default=None)

    def handle_timer(self, now: float) -> list[Output]:
        """Deadlines, attempts that took too long, and the end of a settle delay."""
        outputs: list[Output] = []
        if self._deadline_next is not None and now >= self._deadline_next:
            self._end_overdue(outputs, now)
        if self._send_at is not None and now >= self._send_at:
            self._send_at = None
            self._begin_attempt(outputs, now)
        if self._attempt_ends_at is not None and now >= self._attempt_ends_at:
            if self._is_sent:
                self._next_node("silent", outputs, now)
            else:
                self._pass_over(outputs, now)
        return outputs

    def _end_overdue(self, outputs: list[Output], now: float) -> None:
        deadlines = []
        current = self._call
        for call in [current, *self._waiting] if current is not None else list(self._waiting):
            if call.deadline is None:
                continue
            if now < call.deadline:
                deadlines.append(call.deadline)
                continue
            if call is current:
                self._fail(call, self._overdue(call, now), outputs)
                since = self._unanswered_since
                if self._is_sent and since is not None and now - since >= self._settings.attempt_timeout_s:
                    self._call = None
                    self._leave("silent", outputs, now)
                else:
                    self._drop_current(outputs)
            else:
                self._waiting.remove(call)
                error = NoActiveNodeError(self._text(call, "its turn had not come; it was not sent", now))
                self._fail(call, error, outputs)
        self._deadline_next = min(deadlines, default=None)
        self._begin_next(outputs, now)

    def _overdue(self, call: Call, now: float) -> BstarError:
        if not call.attempts:
            return NoActiveNodeError(self._text(call, "it was not sent", now))
        known = f"it has not answered; {call.attempts} attempt(s), it may have been executed"
        return CallTimeoutError(self._text(call, known, now), may_have_executed=True)

    def _text(self, call: Call, what: str, now: float) -> str:
        nodes = "; ".join(
            f"{endpoint}: {'connected' if is_connected else 'refused' if is_refused else 'not connected yet'}"
            for endpoint, is_connected, is_refused in zip(
                self._endpoints, self._is_connected, self._is_refused, strict=True
            )
        )
        return f"timed out after {seconds(call, now)}: {title(call)}: {what}. Nodes: {nodes}"

    # --- one request at a time ----------------------------------------------------------------------------

    def _begin_next(self, outputs: list[Output], now: float) -> None:
        if self._call is not None or not self._waiting:
            return
        self._call = self._waiting.popleft()
        self._passed_over = 0
        if self._send_at is None:
            self._begin_attempt(outputs, now)

    def _begin_attempt(self, outputs: list[Output], now: float) -> None:
        if self._call is None:
            return
        self._attempt_ends_at = now + self._settings.attempt_timeout_s
        self._is_sent = False
        if self._is_connected[self._at]:
            self._send_if_ready(outputs, now)
        elif self._is_refused[self._at]:
            self._pass_over(outputs, now)

    def _send_if_ready(self, outputs: list[Output], now: float) -> None:
        call = self._call
        if call is None or self._is_sent or self._send_at is not None:
            return
        if call.attempts:
            self.counters.resends += 1
        call.attempts += 1
        call.node = self._at
        call.partials = []
        call.partials_count = 0
        self._is_sent = True
        if self._unanswered_since is None:
            self._unanswered_since = now
        self._attempt_ends_at = now + self._settings.attempt_timeout_s
        outputs.append(Send(self._at, mdp02.encode_request(call.service, call.body)))

    def _pass_over(self, outputs: list[Output], now: float) -> None:
        """This node cannot be reached: the next one at once, and a pause after a round."""
        self._passed_over += 1
        self._at = (self._at + 1) % len(self._endpoints)
        if self._passed_over >= len(self._endpoints):
            self._passed_over = 0
            self._attempt_ends_at = None
            self._send_at = now + self._settings.settle_delay_s
        else:
            self._begin_attempt(outputs, now)

    def _next_node(self, reason: str, outputs: list[Output], now: float) -> None:
        """An attempt failed: its socket goes, and after the settle delay the next node is asked."""
        call = self._call
        assert call is not None
        if call.is_bound:
            text = f"{self._endpoints[self._at]} was lost ({reason}) with the request"
            error: BstarError = OutcomeUnknownError(text)
            if call.is_stream and call.partials_count:
                error = StreamInterruptedError(f"{text}; {call.partials_count} PARTIAL(s) had been delivered")
            self._fail(call, error, outputs)
            self._call = None
        self._leave(reason, outputs, now)
        self._begin_next(outputs, now)

    def _leave(self, reason: str, outputs: list[Output], now: float) -> None:
        self._left_reason = reason
        self._left_at = now
        self._reset(self._at, outputs)
        self._unanswered_since = None
        self._passed_over = 0
        self._at = (self._at + 1) % len(self._endpoints)
        self._send_at = now + self._settings.settle_delay_s

    def _drop_current(self, outputs: list[Output]) -> None:
        """The current call has ended without its final reply: nobody may take that reply for another's."""
        if self._is_sent:
            self._reset(self._at, outputs)
        self._call = None
        self._is_sent = False
        self._attempt_ends_at = None

    def _reset(self, node: int, outputs: list[Output]) -> None:
        self._is_sent = False
        self._attempt_ends_at = None
        self._is_connected[node] = False
        self._is_refused[node] = False
        outputs.append(Reset(node))

    def _follow(self, outputs: list[Output], now: float) -> None:
        if self._followed == self._at:
            return
        endpoint = self._endpoints[self._at]
        if self._followed is None:
            outputs.append(Announce(ActiveFound(endpoint, 0)))
        else:
            self.counters.failovers += 1
            left = self._endpoints[self._followed]
            gap_s = now - self._left_at
            outputs.append(
                Announce(FailedOver(left, endpoint, self._left_reason, 0, self.outstanding, gap_s))
            )
        self._followed = self._at

    def _fail(self, call: Call, error: BstarError, outputs: list[Output]) -> None:
        self.counters.failures += 1
        call.is_done = True
        outputs.append(Fail(call, error))
