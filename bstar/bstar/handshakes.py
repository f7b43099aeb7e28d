"""Bounds the handshakes that strangers make a node pay for.

A handshake costs a node up to a millisecond of CPU time before anything is known of the other side, and its
I/O thread carries everybody's messages. So each new connection takes a token, and one that turns out to be
authenticated puts it back: clients pay nothing, however many come at once. There is one bucket for each
network (with CURVE, where ZAP tells who was authenticated) and one for everybody. Whose bucket is empty is
held off: the kernel drops requests for connections, until there is a second's worth of tokens again.

No socket is touched here; time is an argument.
"""

from collections.abc import Iterator

from bstar.connections import NETWORKS_MAX
from bstar.token_bucket import TokenBucket

# Handshakes of one address that are under way at once. libzmq accepts one connection between two rounds of
# all that are under way, so a thousand clients that come in the same moment have far fewer. Strangers have
# this many once, which takes a node some 0.2 s.
NETWORK_BURST = 300
# A host with a handful of clients whose key is not listed stays below. It costs some 2 % of one core.
NETWORK_RATE_S = 50
# For strangers at many addresses: some 20 % of one core.
ALL_BURST = 2_000
ALL_RATE_S = 500
# Nobody is held off for longer after the last stranger.
HELD_S_MAX = 5.0
# Buckets. A network without one, because others have them, counts among all only.
_NETWORKS_KNOWN_MAX = 4_096


class HandshakeBudget:
    """``accepted`` takes a token, ``authenticated`` puts it back. ``held`` are the networks to hold off."""

    def __init__(self, now: float) -> None:
        self._all = TokenBucket(ALL_RATE_S, now, capacity=ALL_BURST, debt_max=ALL_RATE_S * (HELD_S_MAX - 1))
        self._buckets: dict[bytes, TokenBucket] = {}
        self.held: frozenset[bytes] = frozenset()
        self.is_all_held = False

    def accepted(self, network: bytes | None, now: float) -> None:
        """There is a new connection. None: nothing tells networks apart."""
        self._all.spend(1, now)
        if self._all.level(now) <= 0:
            self.is_all_held = True
        if network is None:
            return
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= _NETWORKS_KNOWN_MAX:
                self._forget(now)
            if len(self._buckets) >= _NETWORKS_KNOWN_MAX:
                return
            bucket = self._buckets[network] = TokenBucket(
                NETWORK_RATE_S, now, capacity=NETWORK_BURST, debt_max=NETWORK_RATE_S * (HELD_S_MAX - 1)
            )
        bucket.spend(1, now)
        if bucket.level(now) <= 0 and network not in self.held:
            if len(self.held) < NETWORKS_MAX:
                self.held |= {network}
            else:
                self.is_all_held = True

    def authenticated(self, network: bytes | None) -> None:
        """One of its connections is authenticated."""
        self._all.give(1)
        bucket = None if network is None else self._buckets.get(network)
        if bucket is not None:
            bucket.give(1)

    def look(self, now: float) -> None:
        """Let in again whose bucket has tokens for a second, and forget full buckets."""
        self.held = frozenset(self._still_held(now))
        if self.is_all_held and self._all.level(now) >= ALL_RATE_S:
            self.is_all_held = False
        self._forget(now)

    def _still_held(self, now: float) -> Iterator[bytes]:
        for network in self.held:
            if self._buckets[network].level(now) < NETWORK_RATE_S:
                yield network

    def _forget(self, now: float) -> None:
        for network in [each for each, bucket in self._buckets.items() if bucket.is_full(now)]:
            del self._buckets[network]
