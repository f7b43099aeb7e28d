"""Limits of single services, from the configuration's ``services``: which entry counts, what it holds back.

A pattern is a service's name, or the beginning of names with * at its end. The longest pattern that matches
counts, and a name counts before every pattern. The entry counts as a whole: nothing is inherited.

``running_max`` bounds the requests that all workers of the service together hold. After a failover it also
counts those that the other node gave out: a native worker reports how many it executes (BSN-W-24). Until it
has reported in the epoch of this node, all its credit counts. A worker of another dialect reports nothing, so
only what this node gave it counts.

``requests_per_s`` is a token bucket. It holds one second's tokens, and each dispatch takes one.
"""

import math
from collections.abc import Mapping

from bstar.base.patterns import closest
from bstar.base.token_bucket import TokenBucket
from bstar.wire.description import ServiceLimits
from bstar_broker.core.settings import NO_LIMITS

# More than any queue or credit has.
NO_LIMIT = 1 << 62
# Rounding must not make a token come late: the next look would be at the same time.
_ALMOST = 1e-6
_WAIT_S_MIN = 0.001


def limits_of(service: bytes, entries: Mapping[str, ServiceLimits]) -> ServiceLimits:
    """The entry that counts for this service; ``NO_LIMITS`` without one."""
    pattern = closest(service, entries)
    return NO_LIMITS if pattern is None else entries[pattern]


class Throttle:
    """Holds the requests of one service back. ``running`` counts those with workers. ``owes_turn``: the last
    one given out was for one worker alone, so the next one is of the service's queue.

    ``settled_at``: a node that has just started knows of no request that its workers execute, until they have
    registered. So it gives none out before that time.
    """

    __slots__ = ("_bucket", "_settled_at", "limits", "owes_turn", "running")

    def __init__(self, limits: ServiceLimits, settled_at: float, now: float) -> None:
        rate_s = limits.requests_per_s
        self.limits = limits
        self.running = 0
        self.owes_turn = False
        self._settled_at = settled_at if limits.running_max is not None else -math.inf
        self._bucket = None if rate_s is None else TokenBucket(rate_s, now, capacity=max(1.0, rate_s))

    def room(self, now: float) -> int:
        """How many requests may be given out now."""
        if now < self._settled_at:
            return 0
        running_max = self.limits.running_max
        room = NO_LIMIT if running_max is None else running_max - self.running
        if self._bucket is not None:
            room = min(room, int(self._bucket.level(now) + _ALMOST))
        return max(0, room)

    def opens_at(self, now: float) -> float:
        """When there is room again by the time alone; inf if that depends on workers."""
        if now < self._settled_at:
            return self._settled_at
        rate_s = self.limits.requests_per_s
        if self._bucket is None or rate_s is None or (level := self._bucket.level(now)) + _ALMOST >= 1:
            return math.inf
        return now + max((1 - level) / rate_s, _WAIT_S_MIN)

    def spend(self, count: int, now: float) -> None:
        """``count`` requests have been given out."""
        if self._bucket is not None:
            self._bucket.spend(count, now)

    def why(self, queued: int, now: float) -> str:
        """What holds ``queued`` requests back now; "" if nothing does."""
        if not queued or self.room(now):
            return ""
        if now < self._settled_at:
            wait_s = self._settled_at - now
            return (
                f"running_max: its workers have {wait_s:.1f} s more to tell what they execute, {queued} wait"
            )
        limits = self.limits
        if limits.running_max is not None and self.running >= limits.running_max:
            return f"running_max {limits.running_max}: {self.running} running, {queued} wait"
        return f"requests_per_s {limits.requests_per_s:g}: {queued} wait"
