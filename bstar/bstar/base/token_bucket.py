"""A token bucket: bounds a rate, and allows bursts."""

import math


class TokenBucket:
    """``rate_s`` tokens come in a second, and at most ``capacity`` fit in (without it: one second's tokens).

    It begins full. A taker of several may leave it in debt, at most ``debt_max``.
    """

    __slots__ = ("_capacity", "_debt_max", "_filled_at", "_rate_s", "_tokens")

    def __init__(
        self, rate_s: float, now: float, *, capacity: float | None = None, debt_max: float = math.inf
    ) -> None:
        self._rate_s = rate_s
        self._capacity = self._tokens = rate_s if capacity is None else capacity
        self._debt_max = debt_max
        self._filled_at = now

    def take(self, count: int, now: float) -> int:
        """Take so many. 0, or the milliseconds until there are any: then it takes none."""
        wait_ms = self.wait_ms(now)
        if not wait_ms:
            self._tokens = max(-self._debt_max, self._tokens - count)
        return wait_ms

    def wait_ms(self, now: float) -> int:
        """The milliseconds until there are tokens; 0 if there are."""
        level = self.level(now)
        return 0 if level > 0 else max(1, math.ceil(-level / self._rate_s * 1000))

    def spend(self, count: int, now: float) -> None:
        """Take so many, whether there are any or not."""
        self._tokens = max(-self._debt_max, self.level(now) - count)

    def give(self, count: int) -> None:
        """Put back what was taken in vain."""
        self._tokens = min(self._capacity, self._tokens + count)

    def level(self, now: float) -> float:
        """How many tokens there are; below 0: its debt."""
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self._rate_s)
        self._filled_at = now
        return self._tokens

    def is_full(self, now: float) -> bool:
        """True if it is as at its begin."""
        return self.level(now) >= self._capacity
