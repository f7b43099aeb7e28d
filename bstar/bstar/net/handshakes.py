"""Bounds the handshakes that strangers make a node pay for.

A handshake costs a node up to a millisecond of CPU time before anything is known of the other side, and its
I/O thread carries the messages of all peers. So each network (with CURVE, where ZAP tells who was
authenticated) may have so many handshakes under way, and so many that fail: a token bucket. The same holds
for all networks together. Who is beyond one of them is held off: the kernel drops requests for connections,
until there are tokens for a second and half of the handshakes under way have ended. Clients pay nothing,
however many come.

No socket is touched here; time is an argument.
"""

from bstar.base.token_bucket import TokenBucket
from bstar.net.connections import NETWORKS_MAX

# Thousands of clients of one address come back in the same moment after a failover.
NETWORK_UNDER_WAY = 4_000
# A host that is too busy to shake hands in time makes some of its clients fail. Strangers
# have this many once.
NETWORK_BURST = 500
# A host with a handful of clients whose key is not listed stays below. It costs some 2 % of one core.
NETWORK_RATE_S = 50
# For strangers at many addresses: some 20 % of one core.
ALL_UNDER_WAY = 8_000
ALL_BURST = 1_000
ALL_RATE_S = 500
# No network is held off for longer after the last failure.
HELD_S_MAX = 5.0
# A connection that is older has shaken hands: libzmq ends a handshake earlier (``set_up_listener``), and the
# loop may be late.
HANDSHAKE_S_MAX = 10.0
# Networks without an account of their own, because so many others have one, count among all only.
_NETWORKS_KNOWN_MAX = 4_096


class _Account:
    """Handshakes of one network, or of all."""

    __slots__ = ("_bucket", "_rate_s", "_under_way", "_under_way_max", "_used_at")

    def __init__(self, under_way_max: int, burst: int, rate_s: int, now: float) -> None:
        self._under_way_max = under_way_max
        self._rate_s = rate_s
        self._bucket = TokenBucket(rate_s, now, capacity=burst, debt_max=rate_s * (HELD_S_MAX - 1))
        self._under_way = 0
        self._used_at = now

    def begin(self, now: float) -> None:
        self._under_way += 1
        self._used_at = now

    def succeed(self) -> None:
        if self._under_way:
            self._under_way -= 1
        else:
            self._bucket.give(1)  # the end of another connection was taken for a failure of this one

    def end(self, now: float) -> None:
        if self._under_way:
            self._under_way -= 1
            self._bucket.spend(1, now)

    def is_beyond(self, now: float) -> bool:
        return self._under_way >= self._under_way_max or self._bucket.level(now) <= 0

    def is_settled(self, now: float) -> bool:
        self._expire(now)
        return self._under_way <= self._under_way_max // 2 and self._bucket.level(now) >= self._rate_s

    def _expire(self, now: float) -> None:
        if now - self._used_at > HANDSHAKE_S_MAX:
            self._under_way = 0

    def is_idle(self, now: float) -> bool:
        self._expire(now)
        return not self._under_way and self._bucket.is_full(now)


class HandshakeBudget:
    """Each connection is ``accepted`` and ``ended``; ``authenticated`` comes between, if it does.

    ``held`` are the networks to hold off; ``is_all_held``: hold all off.
    """

    def __init__(self, now: float) -> None:
        self._all = _Account(ALL_UNDER_WAY, ALL_BURST, ALL_RATE_S, now)
        self._accounts: dict[bytes, _Account] = {}
        self.held: frozenset[bytes] = frozenset()
        self.is_all_held = False

    def accepted(self, network: bytes | None, now: float) -> None:
        """There is a new connection. None: nothing tells networks apart."""
        self._all.begin(now)
        if network is not None and (account := self._account(network, now)) is not None:
            account.begin(now)
        self._judge(network, now)

    def authenticated(self, network: bytes | None) -> None:
        """One of its connections is authenticated."""
        self._all.succeed()
        if network in self._accounts:
            self._accounts[network].succeed()

    def ended(self, network: bytes | None, accepted_at: float, now: float) -> None:
        """One of its connections has ended. It failed if it is young, and one of them is under way."""
        if now - accepted_at > HANDSHAKE_S_MAX:
            return
        self._all.end(now)
        if network in self._accounts:
            self._accounts[network].end(now)
        self._judge(network, now)

    def _judge(self, network: bytes | None, now: float) -> None:
        self.is_all_held = self.is_all_held or self._all.is_beyond(now)
        account = None if network is None else self._accounts.get(network)
        if network is None or account is None or network in self.held or not account.is_beyond(now):
            return
        if len(self.held) < NETWORKS_MAX:
            self.held |= {network}
        else:
            self.is_all_held = True

    def _account(self, network: bytes, now: float) -> _Account | None:
        account = self._accounts.get(network)
        if account is None:
            if len(self._accounts) >= _NETWORKS_KNOWN_MAX:
                # ``look`` makes room: a flood from many networks must not cost a walk through all for each.
                return None
            account = self._accounts[network] = _Account(
                NETWORK_UNDER_WAY, NETWORK_BURST, NETWORK_RATE_S, now
            )
        return account

    def look(self, now: float) -> None:
        """Let in again whose handshakes have settled, and forget who has none: idle is settled."""
        self.held = frozenset(each for each in self.held if not self._accounts[each].is_settled(now))
        if self._all.is_settled(now):
            self.is_all_held = False
        for network in [each for each, account in self._accounts.items() if account.is_idle(now)]:
            del self._accounts[network]
