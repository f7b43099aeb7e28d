"""Holds each principal to the bounds of its entry, over all its connections to this node.

Beyond ``requests_per_s``, ``bytes_per_s`` and ``outstanding`` a request is refused, and a native client sends
it again in time. Beyond ``connections`` and ``messages_per_s`` the connection itself is ended, because a
refusal would cost as much as the message. ZAP refuses its next one until there is room (``why_not``).

A connection counts from its first message on: nothing else shows that it lives. A request counts by its
client's routing id, so the ledger releases it wherever it ends.
"""

from collections.abc import MutableMapping
from typing import Protocol

import msgspec

from bstar.base.token_bucket import TokenBucket
from bstar.security.principals import Principal, Quota
from bstar.wire.messages import Request, Requests
from bstar.wire.refusals import OUTSTANDING, RATE_LIMITED

# The hint for a request that is refused until others end, or until its connection is replaced.
_RETRY_MS = 50
# The longest wait of an entry after one large message or batch.
_DEBT_S_MAX = 60.0
# One account for all keys that left the list: each of their messages is refused. More than these a second
# end the connection.
WITHDRAWN = Principal("", (), quota=Quota(messages_per_s=100))


class Denial(msgspec.Struct, frozen=True):
    """Why a message is not acted upon. ``reason`` is for counters, ``text`` for the sender and the log.

    A request may be sent again after ``retry_after_ms``; 0: it will never be acted upon. The connection with
    the number ``ends`` is ended, if there is one. ``splits``: requests of the batch are judged one by one.
    ``who``: the principal, or "".
    """

    reason: str
    text: str
    retry_after_ms: int = 0
    ends: int = 0
    splits: bool = False
    who: str = ""


class Origin(Protocol):
    """The connection that brought the message in hand."""

    def connection(self) -> int:
        """Its number, which no other connection ever gets; 0 if it has ended."""

    def address(self) -> str:
        """Where it comes from, for the log."""


class Nowhere:
    """The origin of messages that no connection brought."""

    def connection(self) -> int:
        """As of a connection that has ended."""
        return 0

    def address(self) -> str:
        """As of an unknown connection."""
        return "an unknown address"


class Account:
    """What one principal uses of its quota. ``held``: its outstanding requests."""

    def __init__(self, quota: Quota, now: float) -> None:
        self.held = 0
        # Numbers of its connections that have brought a message, and of those that are being ended.
        self.connections: set[int] = set()
        self.ending: set[int] = set()
        # It sent too many messages; until half of the bucket is full again it may not connect.
        self.is_resting = False
        self.follow(quota, now)

    def follow(self, quota: Quota, now: float) -> None:
        """The list has another quota for it."""
        self.quota = quota
        self.messages, self.requests, self.body_bytes = (
            None if rate_s is None else TokenBucket(rate_s, now, debt_max=rate_s * _DEBT_S_MAX)
            for rate_s in (quota.messages_per_s, quota.requests_per_s, quota.bytes_per_s)
        )

    def rests(self, now: float) -> bool:
        """True while it may not connect."""
        if self.is_resting:
            rate_s = self.quota.messages_per_s
            self.is_resting = (
                rate_s is not None and self.messages is not None and self.messages.level(now) < rate_s / 2
            )
        return self.is_resting


class Quotas:
    """The accounts of the principals that have a quota.

    ``accounts`` and ``requests_of`` are the ledger's: by routing id, the account of its outstanding requests
    and how many there are.
    """

    def __init__(
        self, origin: Origin, accounts: MutableMapping[bytes, Account], requests_of: dict[bytes, int]
    ) -> None:
        self._origin = origin
        self._accounts = accounts
        self._requests_of = requests_of
        self._by_name: dict[str, Account] = {}
        self._by_connection: dict[int, Account] = {}

    def of(self, principal: Principal, now: float) -> Account:
        """The account of a principal with a quota."""
        quota = principal.quota
        assert quota is not None
        account = self._by_name.get(principal.name)
        if account is None:
            account = self._by_name[principal.name] = Account(quota, now)
        elif account.quota is not quota and account.quota != quota:
            account.follow(quota, now)
        return account

    # --- connections and messages ---------------------------------------------------------------------------

    def why_not(self, principal: Principal, now: float) -> str:
        """Why this principal may not open one more connection now; "" if it may."""
        if principal.quota is None:
            return ""
        account = self.of(principal, now)
        limit = account.quota.connections
        if limit is not None and len(account.connections) >= limit:
            return "too-many-connections"
        return "too-many-messages" if account.rests(now) else ""

    def judge_message(self, principal: Principal, now: float) -> Denial | None:
        """Count a message of any kind, of a principal with a quota."""
        account = self.of(principal, now)
        quota = account.quota
        if quota.connections is None and account.messages is None:
            return None
        number = self._origin.connection()
        if number in account.ending:
            return Denial("connection-ending", "sent before its connection ended", _RETRY_MS)
        if not self._has_room(number, account):
            text = f"{principal.name} has {quota.connections} connections, as many as it may"
            return self._end(
                number, account, Denial("too-many-connections", text, _RETRY_MS, number, who=principal.name)
            )
        wait_ms = 0 if account.messages is None else account.messages.take(1, now)
        if not wait_ms:
            return None
        account.is_resting = True
        who = principal.name or "whose key is not listed"
        text = f"{who} sends more than {quota.messages_per_s:g} messages a second"
        return self._end(
            number, account, Denial("too-many-messages", text, wait_ms, number, who=principal.name)
        )

    def _has_room(self, number: int, account: Account) -> bool:
        if not number or number in account.connections:
            return True
        limit = account.quota.connections
        if limit is not None and len(account.connections) >= limit:
            return False
        self.ended(number)  # of another account, if its key has left the list
        self._by_connection[number] = account
        account.connections.add(number)
        return True

    def _end(self, number: int, account: Account, denial: Denial) -> Denial:
        if number:
            self.ended(number)
            self._by_connection[number] = account
            account.ending.add(number)
        return denial

    def ended(self, number: int) -> None:
        """The connection with this number has ended."""
        account = self._by_connection.pop(number, None)
        if account is not None:
            account.connections.discard(number)
            account.ending.discard(number)

    # --- requests -------------------------------------------------------------------------------------------

    def judge_requests(self, message: Request | Requests, principal: Principal, now: float) -> Denial | None:
        """Count requests that their principal, which has a quota, may send.

        Of a batch that is too large for what it may have outstanding, some may be acted upon (``splits``).
        """
        account = self.of(principal, now)
        quota = account.quota
        count, size_bytes = _measure(message)
        if quota.outstanding is not None:
            self._assign(message.sender, account)
            if account.held + count > quota.outstanding:
                text = f"{principal.name} has {quota.outstanding} requests outstanding, as many as it may"
                splits = count > 1 and account.held < quota.outstanding
                return Denial(OUTSTANDING.reason, text, _RETRY_MS, splits=splits, who=principal.name)
        for bucket, rate_s, unit in (
            (account.requests, quota.requests_per_s, "requests"),
            (account.body_bytes, quota.bytes_per_s, "bytes of requests"),
        ):
            if bucket is not None and (wait_ms := bucket.wait_ms(now)):
                text = f"{principal.name} sends more than {rate_s:g} {unit} a second"
                return Denial(RATE_LIMITED.reason, text, wait_ms, who=principal.name)
        if account.requests is not None:
            account.requests.spend(count, now)
        if account.body_bytes is not None:
            account.body_bytes.spend(size_bytes, now)
        return None

    def _assign(self, lane: bytes, account: Account) -> None:
        if self._accounts.get(lane) is not account:
            self.leave(lane)
            self._accounts[lane] = account
            account.held += self._requests_of.get(lane, 0)

    def leave(self, lane: bytes) -> None:
        """The routing id has another owner: its requests count for no principal."""
        former = self._accounts.pop(lane, None)
        if former is not None:
            former.held -= self._requests_of.get(lane, 0)


def _measure(message: Request | Requests) -> tuple[int, int]:
    """How many requests it has, and the bytes of their bodies."""
    if isinstance(message, Requests):
        return len(message.numbers), len(message.blob)
    return 1, sum(map(len, message.body))
