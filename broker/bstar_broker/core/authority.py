"""What the owner of a connection may do here: one rule for each kind of message.

A connection bears the user id that ZAP gave it. Its routing id proves nothing, because a connection may claim
any (ZMTP, Identity). So the first user id that a message from a routing id bears owns that routing id; a
message of another user id shows that libzmq gave the routing id to another connection (ROUTER_HANDOVER). The
broker then forgets what it held for the first owner.
"""

import math
from collections.abc import Callable, Mapping

import msgspec

from bstar.printable import printable
from bstar.security.principals import Principal
from bstar.wire import mmi
from bstar.wire.messages import FromPeer, Heartbeat, Ping, Ready, Request, Requests
from bstar_broker.core.records import WorkerRecord

# Routing ids whose owners are remembered: twice as many as were heard between two tidyings.
_OWNERS_MAX = 200_000


class Denial(msgspec.Struct, frozen=True):
    """Why a message is not acted upon. ``reason`` is for counters, ``text`` for the sender and the log.

    A request may be sent again after ``retry_after_ms``; 0: it will never be acted upon.
    """

    reason: str
    text: str
    retry_after_ms: int = 0


class _Bucket:
    """A token bucket: ``rate_s`` tokens come in a second, and as many fit in."""

    def __init__(self, rate_s: float, now: float) -> None:
        self._rate_s = rate_s
        self._tokens = rate_s
        self._filled_at = now

    def take(self, count: int, now: float) -> int:
        """Take so many. 0, or the milliseconds until there are any; a batch may leave the bucket in debt."""
        self._tokens = min(self._rate_s, self._tokens + (now - self._filled_at) * self._rate_s)
        self._filled_at = now
        if self._tokens <= 0:
            return max(1, math.ceil(-self._tokens / self._rate_s * 1000))
        self._tokens -= count
        return 0


class Authority:
    """Asks the principals. ``find`` returns the principal of a user id, None if its key is not listed now."""

    def __init__(
        self, find: Callable[[str], Principal | None], workers: Mapping[bytes, WorkerRecord]
    ) -> None:
        self._find = find
        self._workers = workers
        # Two generations: an owner that is not heard for one of them is forgotten with the next.
        self._owners: dict[bytes, str] = {}
        # By name and rate, of those whose entry has a rate.
        self._buckets: dict[tuple[str, float], _Bucket] = {}
        self._older_owners: dict[bytes, str] = {}

    def is_new_owner(self, routing_id: bytes, user_id: str) -> bool:
        """True if the routing id was another's until now; from now on it belongs to ``user_id``."""
        owner = self._owners.get(routing_id)
        if owner == user_id:
            return False
        if owner is None:
            owner = self._older_owners.pop(routing_id, None)
        if len(self._owners) >= _OWNERS_MAX:
            self.tidy()
        self._owners[routing_id] = user_id
        return owner is not None and owner != user_id

    def tidy(self) -> None:
        """Begin a new generation."""
        self._older_owners, self._owners = self._owners, {}

    def may_offer(self, worker: WorkerRecord) -> bool:
        """True if the owner of its connection may offer its service now."""
        routing_id = worker.routing_id
        owner = self._owners.get(routing_id) or self._older_owners.get(routing_id)
        if owner is None:
            return True  # forgotten in a flood of routing ids; its next heartbeat tells
        principal = self._find(owner)
        return principal is not None and principal.offers.match(worker.service.name)

    def judge(self, message: FromPeer, user_id: str, now: float) -> Denial | None:
        """Why this message may not be acted upon; None if it may."""
        principal = self._find(user_id)
        if principal is None:
            text = f"the key of {user_id.partition(' ')[0]} is not in the list of principals any more"
            return Denial("key-not-listed", text)
        kind = type(message)
        if kind is Request or kind is Requests:
            denial = self._judge_call(message.service, principal)  # type: ignore[union-attr]
            if denial is None and principal.requests_per_s is not None:
                count = len(message.numbers) if isinstance(message, Requests) else 1
                return self._judge_rate(principal.name, principal.requests_per_s, count, now)
            return denial
        if kind is Ready:
            return self._judge_offer(message.service, principal)  # type: ignore[union-attr]
        if kind is Heartbeat and (worker := self._workers.get(message.sender)) is not None:
            return self._judge_offer(worker.service.name, principal)
        if kind is not Ping and not principal.offers:
            return Denial("no-worker", f"{principal.name} is no worker: its entry has no offers")
        return None

    def _judge_rate(self, name: str, rate_s: float, count: int, now: float) -> Denial | None:
        bucket = self._buckets.get((name, rate_s))
        if bucket is None:
            bucket = self._buckets[name, rate_s] = _Bucket(rate_s, now)
        wait_ms = bucket.take(count, now)
        text = f"{name} sends more than {rate_s:g} requests a second"
        return Denial("rate-limited", text, wait_ms) if wait_ms else None

    @staticmethod
    def _judge_call(service: bytes, principal: Principal) -> Denial | None:
        if service.startswith(mmi.PREFIX):
            if principal.is_operator or (principal.calls and service != mmi.Service.STATE.value):
                return None
            text = f'{principal.name} may not ask for "{printable(service)}"'
            needs = "operator: true" if service == mmi.Service.STATE.value else "calls, or operator: true"
            return Denial("call-not-allowed", f"{text}: its entry needs {needs}")
        if principal.calls.match(service):
            return None
        text = (
            f'{principal.name} may not call service "{printable(service)}": no pattern of its calls matches'
        )
        return Denial("call-not-allowed", text)

    @staticmethod
    def _judge_offer(service: bytes, principal: Principal) -> Denial | None:
        if principal.offers.match(service):
            return None
        text = (
            f'{principal.name} may not offer service "{printable(service)}": no pattern of its offers matches'
        )
        return Denial("offer-not-allowed", text)
