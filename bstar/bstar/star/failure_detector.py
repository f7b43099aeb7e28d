"""An adaptive failure detector: how long a silence means death, and that both nodes know how long.

**How long.** ``Lateness`` measures how late the peer's state messages come. From the latest one of the last
minutes follows the failover timeout that this node *needs* for its peer.

**Both know.** An active node that was away steps down if its peer may have taken over meanwhile. So no node
may count its peer as dead earlier than that peer believes. ``Detector`` makes sure of it:

* Every state message carries the sender's need, and the number of the last message that it heard.
* A node knows which of its needs the peer may have heard last: the one in the last message that the peer
  acknowledges, and all later ones. ``lowest`` and ``highest`` are the least and the greatest of them.
* A node counts its peer as dead after ``silence_ms``, the maximum of ``highest`` and of the peer's need. It
  believes that the peer waits for ``absence_ms``, the maximum of ``lowest`` and of the peer's need.

The need that a node heard from its peer is at most the peer's ``highest``. The need that the peer heard from
the node is at least the node's ``lowest``. So one node's ``absence_ms`` is never above the other's
``silence_ms``, and both are the same as soon as the acknowledgements are there. A greater need counts at
once, a smaller one when the peer has acknowledged it. Until a run of this node is acknowledged, ``highest``
is the maximum of the configuration, because the peer may remember an earlier run. ``lowest`` is the minimum
until the peer acknowledges a message, and again when somebody subscribes: it may be a new run of the peer.

The last message of a run of the peer that died may be read after the first one of its successor. So a run
that speaks for the first time must acknowledge a message that is sent from then on. Until then the greater
need of both runs counts for the silence, and ``absence_ms`` is the minimum.

Source: Hayashibara et al., The phi accrual failure detector (2004); Bertier et al., Implementation and
performance evaluation of an adaptable failure detector (2002). docs/adr says what is different here.
"""

from collections import deque
from math import ceil, floor

from bstar.star.settings import StarSettings
from bstar.wire.peer import PeerState

# A message may be later than the worst one of five minutes: by its lateness times this, at most by that.
MARGIN_FACTOR = 2.0
MARGIN_S_MAX = 0.5
# The maximum is kept for each slot, so one late message counts for five minutes.
SLOT_S = 10.0
SLOTS_MAX = 30
# What is needed while too little is known of a run of the peer.
START_S = 1.0
CAUTION_S = 10.0
# Fewer changes, each of which goes to the log and to the peer.
STEP_MS = 100
# Needs that the peer has not acknowledged; a peer that is deaf for long must not grow the list.
UNACKNOWLEDGED_MAX = 64


class Lateness:
    """How late the peer's state messages were in the last minutes: the greatest value of each slot of time.

    A message is late by the silence before it, less one heartbeat interval.
    """

    def __init__(self, heartbeat_s: float, now: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._slots: deque[tuple[int, float]] = deque()
        self._cautious_until = now + CAUTION_S

    def begin(self, now: float) -> None:
        """A new run of the peer speaks, perhaps on another machine: little is known of it."""
        self._cautious_until = now + CAUTION_S

    def observe(self, silence_s: float, now: float) -> None:
        """The peer was silent for ``silence_s`` before its message."""
        late_s = max(0.0, silence_s - self._heartbeat_s)
        slot = floor(now / SLOT_S)
        slots = self._slots
        if slots and slots[-1][0] == slot:
            slots[-1] = (slot, max(slots[-1][1], late_s))
        else:
            slots.append((slot, late_s))
        while slots[0][0] <= slot - SLOTS_MAX:
            slots.popleft()

    @property
    def worst_s(self) -> float:
        """The greatest lateness that is remembered."""
        return max((late_s for _, late_s in self._slots), default=0.0)

    def needed_s(self, now: float) -> float:
        """The silence after which the next message is later than expected."""
        worst_s = self.worst_s
        needed_s = self._heartbeat_s + worst_s + min(MARGIN_FACTOR * worst_s, MARGIN_S_MAX)
        return max(needed_s, START_S) if now < self._cautious_until else needed_s


class Detector:
    """The failover timeout of one node, in whole milliseconds, as it travels. ``need_ms`` is its own need.

    ``trusts_from``: an acknowledgement of a message before this number says nothing of the run that may have
    subscribed. ``known_from``: one before this number says nothing of the run that was heard last.
    """

    def __init__(self, settings: StarSettings, now: float) -> None:
        self._min_ms = settings.failover_timeout_ms
        self._max_ms = settings.failover_timeout_max_ms
        self._lateness = Lateness(settings.heartbeat_interval_s, now)
        self.need_ms = self._clamp(START_S * 1000)
        self.peers_need_ms = 0
        self._published: deque[tuple[int, int]] = deque()  # the first message with a need, and the need
        self._last_number = 0
        self._acknowledged = 0
        self._trusts_from = 1
        self._known_from = 1

    def _clamp(self, milliseconds: float) -> int:
        return min(max(ceil(milliseconds / STEP_MS) * STEP_MS, self._min_ms), self._max_ms)

    # --- the timeout ----------------------------------------------------------------------------------------

    @property
    def silence_ms(self) -> int:
        """The silence after which the peer counts as dead."""
        return max(self._highest_ms, self.peers_need_ms)

    @property
    def absence_ms(self) -> int:
        """The silence of this node after which the peer may have taken over."""
        return max(self._lowest_ms, self.peers_need_ms) if self._is_run_known else self._min_ms

    @property
    def _highest_ms(self) -> int:
        if not self._acknowledged:
            return self._max_ms
        return max(self.need_ms, *(need_ms for _, need_ms in self._published))

    @property
    def _lowest_ms(self) -> int:
        if self._acknowledged < self._trusts_from:
            return self._min_ms
        return min(need_ms for _, need_ms in self._published)

    @property
    def _is_run_known(self) -> bool:
        return self._acknowledged >= self._known_from

    # --- what it learns -------------------------------------------------------------------------------------

    def observe(self, silence_s: float, now: float) -> None:
        """A message of the peer came after ``silence_s``. A silence above the maximum is an outage, and no
        timeout would have covered it.
        """
        if silence_s <= self._max_ms / 1000:
            self._lateness.observe(silence_s, now)
        self.need_ms = self._clamp(self._lateness.needed_s(now) * 1000)

    def hear(self, message: PeerState, node: str, now: float, *, is_new_run: bool) -> None:
        """The peer says what it needs, and what it has heard of ``node``."""
        if is_new_run:
            self._lateness.begin(now)
            self._known_from = self._last_number + 1
        # A number that was never sent is no acknowledgement: somebody forges our messages.
        if message.hears == node and message.hears_seq <= self._last_number:
            self._acknowledge(message.hears_seq)
        needs_ms = min(max(message.needs_ms, self._min_ms), self._max_ms)
        self.peers_need_ms = needs_ms if self._is_run_known else max(needs_ms, self.peers_need_ms)

    def _acknowledge(self, number: int) -> None:
        if number < self._known_from or number <= self._acknowledged:
            return
        self._acknowledged = number
        while len(self._published) > 1 and self._published[1][0] <= number:
            self._published.popleft()

    def doubt(self) -> None:
        """Somebody subscribes to this node's state: it may be a new run of the peer that heard nothing."""
        self._trusts_from = self._last_number + 1

    def publish(self, number: int) -> int:
        """Message ``number`` goes out. Returns the need that it carries."""
        self._last_number = number
        published = self._published
        if not published or (published[-1][1] != self.need_ms and len(published) < UNACKNOWLEDGED_MAX):
            published.append((number, self.need_ms))
        return published[-1][1]
