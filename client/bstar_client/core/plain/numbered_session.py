"""What the sessions of Freelance models 2 and 3 share: requests with numbers of their own, many at a time.

A reply names its request, so any number of requests may be under way, at any servers. The first reply to a
request ends its call. A later one finds no call with its number, and is counted and dropped (FL2-C-02,
FLP-R-03).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from bstar.base.deadlines import Deadlines
from bstar.errors import BstarError
from bstar_client.core.call_errors import already_closed, closed, overdue, too_late, too_many_outstanding
from bstar_client.core.calls import Call, Reply, is_pending
from bstar_client.core.counters import Counters
from bstar_client.core.nodes import Endpoint, unreached
from bstar_client.core.outputs import Deliver, Fail, Output


class NumberedSession(ABC):
    """Calls by their numbers, in decimal ASCII. See ``ClientCore``. A subclass chooses the servers.

    Numbers begin with 1. A new session has new connections, so the replies to an old one reach no call.
    """

    def __init__(self, endpoints: Sequence[str], *, outstanding_max: int) -> None:
        self._nodes = [Endpoint(endpoint) for endpoint in endpoints]
        self._outstanding_max = outstanding_max
        self._calls: dict[bytes, Call] = {}
        self._number = 0
        self._deadlines = Deadlines(is_pending)
        self._is_closed = False
        self.counters = Counters()

    # --- what a subclass decides --------------------------------------------------------------------------

    @abstractmethod
    def _ask(self, number: bytes, call: Call, outputs: list[Output], now: float) -> None:
        """A call has begun: send it, if it can be sent."""

    @abstractmethod
    def _forget_connections(self) -> None:
        """All sockets are new."""

    @abstractmethod
    def _note_overdue(self, number: bytes, call: Call, outputs: list[Output], now: float) -> None:
        """A call's deadline has passed."""

    # --- the caller's side --------------------------------------------------------------------------------

    def submit(self, call: Call, now: float) -> list[Output]:
        """Begin a call."""
        if call.is_done or call.is_begun:
            return []  # abandoned before its turn came, or taken before an interrupt
        if self._is_closed:
            return [Fail(call, already_closed())]
        if len(self._calls) >= self._outstanding_max:
            return [Fail(call, too_many_outstanding(len(self._calls)))]
        if call.deadline is not None and call.deadline <= now:
            return [Fail(call, too_late(call, now))]
        call.is_begun = True
        self.counters.requests += 1
        outputs: list[Output] = []
        self._begin(call, outputs, now)
        return outputs

    def _begin(self, call: Call, outputs: list[Output], now: float) -> None:
        self._number += 1
        call.number = self._number
        number = b"%d" % self._number
        self._calls[number] = call
        if call.deadline is not None:
            self._deadlines.add(call, call.deadline)
        self._ask(number, call, outputs, now)

    def submit_all(self, calls: Sequence[Call], now: float) -> list[Output]:
        """Begin several calls, one by one."""
        return [output for call in calls for output in self.submit(call, now)]

    def abandon(self, call: Call, now: float) -> list[Output]:
        """No caller waits for this call any more."""
        if call.is_begun and not call.is_done:
            self.counters.abandoned += 1
        call.is_done = True
        if call.is_begun:
            self._calls.pop(b"%d" % call.number, None)
        return []

    def restart(self, calls: Iterable[Call], now: float) -> list[Output]:
        """Start over with these calls, on new sockets."""
        if self._is_closed:
            return []
        outputs: list[Output] = []
        for node in self._nodes:
            node.restart()
        self._calls.clear()
        self._deadlines = Deadlines(is_pending)
        self._forget_connections()
        for call in sorted(calls, key=lambda call: call.begun_at):
            call.is_done = False  # if it was, its outcome was lost
            call.lose_attempt()
            self._begin(call, outputs, now)
        return outputs

    def close(self, now: float) -> list[Output]:
        """End every outstanding call with an error that says what is known of it."""
        self._is_closed = True
        outputs: list[Output] = []
        for number, call in list(self._calls.items()):
            self._fail(number, call, closed(call), outputs)
        return outputs

    # --- the servers' side --------------------------------------------------------------------------------

    def _answer(self, node: int, number: bytes, body: list[bytes], outputs: list[Output], now: float) -> None:
        """A server's reply to the request with this number."""
        call = self._calls.get(number)
        # A number that was not sent over this connection is a guess, or the answer to somebody else.
        if call is None or not call.was_sent_over(node + 1):
            self.counters.replies_unmatched += 1
            return
        del self._calls[number]
        self.counters.replies += 1
        call.is_done = True
        endpoint, elapsed_s = self._nodes[node].endpoint, now - call.begun_at
        reply = Reply(
            tuple(body), (), call.index, call.attempts, endpoint=endpoint, is_final=True, elapsed_s=elapsed_s
        )
        outputs.append(Deliver(call, reply))

    # --- time ---------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; earlier calls do no harm."""
        due = self._deadlines.next_deadline()
        return None if due == math.inf else due

    def handle_timer(self, now: float) -> list[Output]:
        """End the calls whose deadlines have passed."""
        outputs: list[Output] = []
        for call in self._deadlines.pop_due(now):
            number = b"%d" % call.number
            nodes = "; ".join(self._describe(node) for node in range(len(self._nodes)))
            self._fail(number, call, overdue(call, call, nodes, now, unreached(self._nodes)), outputs)
            self._note_overdue(number, call, outputs, now)
        self._deadlines.tidy(len(self._calls))
        return outputs

    def _describe(self, node: int) -> str:
        return self._nodes[node].describe()

    def _note_sent(self, call: Call, node: int) -> None:
        """A copy of the request goes to this server. ``Call.lost_on`` has the servers of the others."""
        if call.attempts:
            self.counters.resends += 1
        call.attempts += 1
        call.lose_attempt()
        call.node = node
        call.sent_to = node + 1

    def _fail(self, number: bytes, call: Call, error: BstarError, outputs: list[Output]) -> None:
        self._calls.pop(number, None)
        self.counters.failures += 1
        call.is_done = True
        outputs.append(Fail(call, error))
