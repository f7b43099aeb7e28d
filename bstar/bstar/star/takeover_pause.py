"""A pause of takeovers, for an operator who works on the pair or its network.

While it lasts, a passive node does not serve because its peer is silent, and the role does not follow clients
that are cut off. The pause holds back guesses, not words: a peer that stops, hands over, or starts again says
itself that it does not serve, and the other node serves as always. A node that served last, as far as it
knows, serves again after it was away.

Both nodes know of it, because it is in every state message. Each order, to pause or to resume, has a number
above all that the node has seen (a Lamport clock); the primary's are odd, the backup's even. The order with
the highest number holds, so a late message and a node that was away undo nothing. Each node counts the rest
of the pause on its own clock, and it ends by itself.
"""

import math

from bstar.star.epochs import next_epoch
from bstar.star.outputs import PersistPause, TakeoversPaused, TakeoversResumed
from bstar.star.rules import Role
from bstar.wire.epochs import EPOCH_MAX
from bstar.wire.peer import PAUSE_WHY_CHARS_MAX, PeerState

# A pause that is forgotten must not keep a pair without failover over a second night.
PAUSE_S_MAX = 24 * 3600.0

PauseOutput = PersistPause | TakeoversPaused | TakeoversResumed


class TakeoverPause:
    """``number`` of the last order, ``until`` when it holds takeovers back, ``why`` it does. ``peer_number``
    is that of the last order that the peer knows.
    """

    def __init__(self, role: Role) -> None:
        self.number = 0
        self.until = -math.inf
        self.why = ""
        self.peer_number = 0
        self._role = role
        self._is_reported = False

    def is_on(self, now: float) -> bool:
        """True while takeovers are paused."""
        return now < self.until

    def rest_s(self, now: float) -> float:
        """For how long the pause goes on, or 0."""
        return max(0.0, self.until - now)

    def order(self, for_s: float, why: str, now: float) -> list[PauseOutput]:
        """An operator pauses takeovers for ``for_s`` seconds, or resumes them with 0."""
        return self._obey(next_epoch(self._role, self.number), for_s, why, now)

    def hear(self, message: PeerState, now: float) -> list[PauseOutput]:
        """The peer tells the last order that it knows."""
        self.peer_number = message.pause
        return self.learn(message.pause, message.paused_ms / 1000, message.pause_why, now)

    def learn(self, number: int, for_s: float, why: str, now: float) -> list[PauseOutput]:
        """An order of the peer, or one that this node kept over a restart. An older one changes nothing."""
        return self._obey(number, for_s, why, now) if self.number < number <= EPOCH_MAX else []

    def expire(self, now: float) -> list[PauseOutput]:
        """Report the end of a pause whose time is over."""
        return self._report("its time is over", now) if self._is_reported and not self.is_on(now) else []

    def _obey(self, number: int, for_s: float, why: str, now: float) -> list[PauseOutput]:
        for_s = min(for_s, PAUSE_S_MAX)
        self.number = number
        self.until = now + for_s if for_s > 0 else -math.inf
        self.why = why[:PAUSE_WHY_CHARS_MAX]
        return [PersistPause(number, for_s, self.why), *self._report(self.why, now)]

    def _report(self, why: str, now: float) -> list[PauseOutput]:
        was_on, self._is_reported = self._is_reported, self.is_on(now)
        if self._is_reported:
            return [TakeoversPaused(self.rest_s(now), why)]
        return [TakeoversResumed(why)] if was_on else []
