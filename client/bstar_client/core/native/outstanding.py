"""A session's calls without a reply: their deadlines, their retries, and which calls share a request.

Calls with the same service and key share one request (BSN-C-10). The first is the *leader*: it is in the
table and is sent. Its *followers* wait for its end. If only the leader's own deadline passes, its first
follower takes the request over.
"""

import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from bstar.base.deadlines import Deadlines
from bstar.errors import BstarError, BusyError, CallTimeoutError, DeclinedError, RejectedError
from bstar.wire.messages import ErrorCode
from bstar.wire.mmi import PREFIX
from bstar.wire.native import keyed_identity
from bstar_client.core.call_errors import (
    INTERRUPTED,
    already_closed,
    broken,
    closed,
    too_late,
    too_many_outstanding,
)
from bstar_client.core.calls import Call, is_pending
from bstar_client.core.counters import Counters
from bstar_client.core.outputs import Fail, Output


class Outstanding:
    """The calls without a reply. ``by_identity`` has the leaders in the order in which they began."""

    def __init__(self, client_id: bytes, outstanding_max: int, counters: Counters) -> None:
        self.by_identity: dict[bytes, Call] = {}
        self.deadlines = Deadlines(is_pending)
        self.counters = counters
        self.is_closed = False
        self._client_id = client_id
        self._outstanding_max = outstanding_max
        self._number = 0
        self._followers = 0
        self._retries: list[tuple[float, int, Call]] = []
        self._retry_number = 0  # makes entries comparable, first in first out

    def __len__(self) -> int:
        return len(self.by_identity) + self._followers

    # --- begin --------------------------------------------------------------------------------------------

    def enter(self, call: Call, now: float) -> list[Output] | None:
        """Take the call. None: send it. Otherwise it is not sent, and these are the outputs."""
        if call.is_done or call.is_begun:
            return []  # abandoned before its turn came, or taken before an interrupt
        if self.is_closed:
            return [Fail(call, already_closed())]
        # Refused calls have an identity, too: it tells them apart in a journal.
        self._number = number = self._number + 1
        if call.key is None:
            call.identity = identity = self._client_id + number.to_bytes(8, "big")
            call.number = number
        else:
            call.identity = identity = keyed_identity(call.service, call.key)
        calls = self.by_identity
        if len(calls) + self._followers >= self._outstanding_max:
            return [Fail(call, too_many_outstanding(len(self)))]
        deadline = call.deadline
        if deadline is not None and deadline <= now:
            return [Fail(call, too_late(call, now))]
        self.counters.requests += 1
        # From here on the session has the call, even if a signal interrupts the shell.
        call.is_begun = True
        leader = None if call.key is None else calls.get(identity)
        if leader is not None:
            return self._follow(call, leader)
        calls[identity] = call
        if deadline is not None:
            self.deadlines.add(call, deadline)
        return None

    def restart(self, calls: Iterable[Call]) -> list[Output]:
        """Start over with these calls. A call that may have been executed counts as sent and lost."""
        outputs: list[Output] = []
        self.by_identity = {}
        self.deadlines = Deadlines(is_pending)
        self._retries = []
        self._followers = 0
        for call in calls:
            call.lose_attempt()
            call.leader = call.followers = None
            if call.is_bound and (call.may_have_executed or call.is_done):
                self.fail(call, broken(call, INTERRUPTED), outputs)
                continue
            call.is_done = False  # if it was, its outcome was lost
            leader = self.by_identity.get(call.identity)
            if leader is not None:
                outputs += self._follow(call, leader)
                continue
            if not call.is_stream:
                call.partials = []
                call.partials_count = 0
            self.by_identity[call.identity] = call
            if call.deadline is not None:
                self.deadlines.add(call, call.deadline)
        return outputs

    # --- calls that share a request -----------------------------------------------------------------------

    def _follow(self, call: Call, leader: Call) -> list[Output]:
        """The call shares the leader's request."""
        if call.body != leader.body or call.is_idempotent != leader.is_idempotent:
            what = "another body" if call.body != leader.body else "another value of idempotent"
            text = f"the key belongs to a request with {what}, which is outstanding; it was not sent"
            self.counters.failures += 1
            call.is_done = True
            return [Fail(call, RejectedError(text, code=ErrorCode.INVALID))]
        self.counters.joined += 1
        self._followers += 1
        call.leader = leader
        if leader.followers is None:
            leader.followers = []
        leader.followers.append(call)
        if call.deadline is not None:
            self.deadlines.add(call, call.deadline)
        return []

    def _pass_on(self, call: Call) -> None:
        """The leader ends early: its first follower leads and takes over the state of the request."""
        assert call.followers is not None
        heir, *others = call.followers
        call.followers = None
        self._followers -= 1
        if not call.is_bound:
            call.lose_attempt()
        heir.leader = None
        heir.followers = others
        for other in others:
            other.leader = heir
        heir.attempts, heir.node, heir.sent_to = call.attempts, call.node, call.sent_to
        heir.lost_on, heir.was_dispatched = call.lost_on, call.was_dispatched
        heir.partials, heir.partials_count = call.partials, call.partials_count
        heir.partials_from = call.partials_from
        call.partials = []
        self.by_identity[heir.identity] = heir
        if not heir.sent_to:  # a request that must not be repeated waits for the attempt that was made
            self.retry_later(heir, 0.0, -math.inf)

    # --- send again ---------------------------------------------------------------------------------------

    def retry_later(self, call: Call, pause_s: float, now: float) -> None:
        """Send the call again after a pause, if it is not sent before."""
        self._retry_number += 1
        heappush(self._retries, (now + pause_s, self._retry_number, call))

    def pop_retries(self, now: float) -> list[Call]:
        """Remove and return the calls whose pause is over, without those that were sent meanwhile."""
        due: dict[Call, None] = {}
        while self._retries and self._retries[0][0] <= now:
            call = heappop(self._retries)[2]
            if not call.is_done and not call.sent_to:
                due[call] = None
        return [*due]

    def take_unsent(self, connection: int) -> list[Call]:
        """The calls to send over this connection, without waiting for their pauses."""
        self._retries.clear()
        unsent = []
        for call in self.by_identity.values():
            if call.sent_to == connection:
                continue
            if call.lost_on is not None and connection in call.lost_on:
                # It is on its way there: the connection has not broken since.
                call.lost_on.discard(connection)
                call.lose_attempt()
                call.sent_to = connection
                continue
            if call.sent_to:
                if call.is_bound:
                    continue  # the node it was sent to is alive and will answer or refuse it
                call.lose_attempt()
            unsent.append(call)
        return unsent

    def oldest_unsent(self) -> Call | None:
        """The oldest request that no live node holds; one that votes rather than one for mmi."""
        oldest: Call | None = None
        for call in self.by_identity.values():
            if call.sent_to:
                continue
            if not call.service.startswith(PREFIX):
                return call
            oldest = oldest or call
        return oldest

    # --- end ----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When the next call is overdue or due for a retry, or inf."""
        due = self.deadlines.next_deadline()
        retries = self._retries
        return retries[0][0] if retries and retries[0][0] < due else due

    def pop_overdue(self, now: float) -> Iterator[Call]:
        """Remove and return the calls whose deadline has passed."""
        yield from self.deadlines.pop_due(now)
        self.deadlines.tidy(len(self))

    def lose_attempts(self, connection: int, why: str, outputs: list[Output]) -> None:
        """The connection is lost, with its requests. Those that must not be sent again fail."""
        for call in [call for call in self.by_identity.values() if call.sent_to == connection]:
            call.lose_attempt()
            if call.is_bound:
                self.fail(call, broken(call, f"{why} with the request"), outputs)

    def fail(self, call: Call, error: BstarError, outputs: list[Output]) -> None:
        """End the call with an error. Its followers end too, unless the error concerns this caller only."""
        followers = call.followers
        if followers and isinstance(error, CallTimeoutError | BusyError):
            self._pass_on(call)  # only this caller's time is over
            followers = None
        for each in (call,) if followers is None else (call, *followers):
            if isinstance(error, DeclinedError):
                self.counters.declined += 1
            else:
                self.counters.failures += 1
            each.attempts = call.attempts
            self.forget(each)
            outputs.append(Fail(each, error))

    def abandon(self, call: Call) -> None:
        """The call ends without an outcome; its followers keep the request."""
        if call.is_begun and not call.is_done:
            self.counters.abandoned += 1
        if call.followers:
            self._pass_on(call)
        self.forget(call)

    def forget(self, call: Call) -> None:
        """The call has ended."""
        call.is_done = True
        leader = call.leader
        if leader is not None:
            self._followers -= 1
            call.leader = None
            if leader.followers is not None and not leader.is_done:
                leader.followers.remove(call)
        elif self.by_identity.get(call.identity) is call:
            del self.by_identity[call.identity]

    def close(self) -> list[Output]:
        """End every call and refuse new ones."""
        self.is_closed = True
        outputs: list[Output] = []
        for call in list(self.by_identity.values()):
            self.fail(call, closed(call), outputs)
        return outputs
