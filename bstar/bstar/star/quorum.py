"""The majority with an arbiter: three voters, one ballot each, and leases on them.

The voters are the primary, the backup and the arbiter. A node may serve only while it holds the majority: its
own ballot, and a lease on its peer's or the arbiter's. No ballot belongs to two nodes at once, so two nodes
never both hold a majority.

**A ballot** stays with its voter. It has one holder until a time on the voter's monotonic clock; until then
no other node gets it. A voter that has just started does not know its earlier promises, so a node assumes
that its peer holds its ballot, for one ttl.

**A lease** is the holder's knowledge of another voter's ballot. It counts from the moment when the holder
SENT the message that the grant answers, and is shorter than the promise by ``DRIFT_MAX``. So it ends before
the promise, without synchronised clocks and for every network delay. A grant counts only for a message of the
present claim; a node that gives a claim up forgets the messages of it. Every claim says how long it is for:
the failover timeout when it was sent, which may be another one than the voter's.

No clock, no socket: time comes in, and ``StarMachine`` says what goes out.
"""

import math

from bstar.star.outputs import ArbiterLost, ArbiterSeen
from bstar.star.rules import State
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState

# How much faster than the holder's clock a voter's may run. Quartz differs by 100 parts in a million and NTP
# slews by 500. But chrony slews by up to 8.3 % by default while it corrects a second or more.
DRIFT_MAX = 0.1

# An answer comes in this time or never; refused clients may ask again soon.
_VERDICT_TIMEOUT_S = 0.25
_VERDICT_RETRY_S = 0.02

# Claims whose grants may still come. As many are sent within a ttl only if somebody makes us publish.
_CLAIMS_MAX = 256


class Lease:
    """Another voter's ballot, on which its holder may rely until ``until`` on its own clock."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = -math.inf

    def extend(self, sent_at: float, ttl_s: float) -> None:
        """The voter has granted for ``ttl_s`` what was asked at ``sent_at``."""
        self.until = max(self.until, sent_at + ttl_s * (1.0 - DRIFT_MAX))


class Quorum:
    """One node's part: its own ballot, its claim, and its leases.

    ``ttl_s`` is the failover timeout as it is, between ``ttl_min_s`` and ``ttl_max_s``.
    ``is_maximum_known``: the arbiter heeds the maximum.
    """

    def __init__(self, ttl_min_s: float, ttl_max_s: float, *, now: float) -> None:
        self.ttl_s = ttl_max_s
        self.is_maximum_known = False
        self.is_claiming = False  # our own ballot is ours
        self.wanted_until = -math.inf  # a reason to serve stands until then
        # Until when the peer holds our own ballot. An earlier run may have promised it.
        self.peers_until = now + ttl_max_s
        self.granted = 0
        self.granted_to = ""
        self.peer = Lease()
        self.arbiter = Lease()
        self.is_release_due = False
        self.ask_again_at = math.inf
        # None until it is known whether the arbiter answers.
        self.is_arbiter_there: bool | None = None
        self.arbiter_heard_at = now
        self._refused_until = -math.inf
        self._claimed_at = now
        self._ttl_min_s = ttl_min_s
        self._ttl_max_s = ttl_max_s
        # When a claim was sent, and for how long it is.
        self._sent: dict[int, tuple[float, float]] = {}

    # --- our own ballot -------------------------------------------------------------------------------------

    def hear_claim(self, node: str, number: int, ttl_s: float, now: float) -> bool:
        """The peer's message ``number`` says that it claims for ``ttl_s``: extend the ballot that is its own
        or free. False if the ballot is ours.
        """
        if self.is_claiming:
            return False
        self.peers_until = max(self.peers_until, now + min(ttl_s, self._ttl_max_s))
        self.granted, self.granted_to = number, node
        return True

    def hear_ballot(self, message: PeerState, node: str, now: float) -> bool:
        """What the peer's message says of its ballot and asks of ``node``'s. True if a grant is due."""
        is_granted = False
        if message.claims:
            assert message.node is not None, "a published peer is a mismatch"
            assert message.seq is not None
            # A peer whose timeout is fixed has the configured one.
            ttl_s = message.lease_ms / 1000 if message.timeout_max_ms else self._ttl_min_s
            is_granted = self.hear_claim(message.node, message.seq, ttl_s, now)
        elif self.granted_to in ("", message.node):
            # What another run says does not end the promise to this one.
            self.hear_no_claim()
        # A peer that serves holds its own ballot: a word that says both is forged.
        if message.granted_to == node and message.state != State.ACTIVE:
            ttl_max_s = self._ttl_max_s if message.timeout_max_ms else self._ttl_min_s
            self.hear_grant(self.peer, message.granted, ttl_max_s)
        return is_granted

    def hear_no_claim(self) -> None:
        """The peer claims nothing, and a grant on its way was for an earlier claim: our ballot is free."""
        self.peers_until = -math.inf
        self.granted, self.granted_to = 0, ""

    def was_away(self, gap_s: float, now: float) -> None:
        """The process was away for ``gap_s``: add that to a promise that ran when it began.

        Its clock may have leapt. Added is no more than the gap, so that a node with a pause each second still
        sees its promise end.
        """
        if self.peers_until > now - gap_s:
            self.peers_until = max(self.peers_until, min(self.peers_until + gap_s, now + self._ttl_max_s))

    # --- our claim ------------------------------------------------------------------------------------------

    def want(self, now: float) -> None:
        """There is a reason to serve; it holds for one ttl."""
        self.wanted_until = now + self.ttl_s

    def claim(self, now: float) -> bool:
        """Take our own ballot; False while it is the peer's."""
        if now < self.peers_until:
            return False
        if not self.is_claiming:
            self.is_claiming = True
            self.is_release_due = False
            self.granted, self.granted_to = 0, ""
            self._claimed_at = now
            self._forget()
        return True

    def release(self) -> None:
        """Give up the claim, our own ballot and every lease."""
        self.is_release_due = self.is_release_due or self.is_claiming
        self.is_claiming = False
        self.wanted_until = -math.inf
        self._forget()

    def _forget(self) -> None:
        self.peer.until = self.arbiter.until = self._refused_until = -math.inf
        self.ask_again_at = math.inf
        self._sent.clear()

    def sent(self, number: int, now: float) -> None:
        """Message ``number`` goes out, to the peer and as a question to the arbiter."""
        if not self.is_claiming:
            return
        sent = self._sent
        while sent and (len(sent) >= _CLAIMS_MAX or now - next(iter(sent.values()))[0] > self._ttl_max_s):
            del sent[next(iter(sent))]
        sent[number] = now, self.ttl_s

    def hear_grant(self, lease: Lease, number: int, ttl_max_s: float) -> None:
        """A voter has granted our claim ``number``, and grants none for longer than ``ttl_max_s``. A number
        that is not of this claim changes nothing.
        """
        if number in self._sent:
            sent_at, ttl_s = self._sent[number]
            lease.extend(sent_at, min(ttl_s, ttl_max_s))

    def hear_refusal(self, free_in_s: float, now: float) -> None:
        """Another node holds the arbiter's ballot for that long. Ask again when it may be free."""
        if self.is_claiming:
            self._refused_until = self.ask_again_at = now + max(free_in_s, _VERDICT_RETRY_S / 4)

    # --- the arbiter ----------------------------------------------------------------------------------------

    def hear_arbiter(self, answer: Answer, now: float) -> list[ArbiterSeen]:
        """The arbiter answers a question of this node."""
        is_news = not self.is_arbiter_there
        self.is_arbiter_there = True
        self.arbiter_heard_at = now
        self.is_maximum_known = answer.ttl_max_ms == round(self._ttl_max_s * 1000)
        if answer.is_granted:
            self.hear_grant(self.arbiter, answer.number, self._ttl_max_s)
        else:
            self.hear_refusal(answer.free_in_ms / 1000, now)
        return [ArbiterSeen()] if is_news else []

    def miss_arbiter(self, now: float) -> list[ArbiterLost]:
        """Report once that the arbiter has not answered for a whole ttl."""
        silent_s = now - self.arbiter_heard_at
        if self.is_arbiter_there is False or silent_s < self.ttl_s:
            return []
        self.is_arbiter_there = False
        return [ArbiterLost(silent_s)]

    # --- the majority ---------------------------------------------------------------------------------------

    @property
    def until(self) -> float:
        """Until when the majority is ours; in the past if it is not."""
        return max(self.peer.until, self.arbiter.until) if self.is_claiming else -math.inf

    def retry_after_s(self, now: float, heartbeat_interval_s: float) -> float:
        """How long until a request at a node whose peer is silent has a chance."""
        if not self.is_claiming:
            return max(0.0, self.peers_until - now)
        if now < self._refused_until:
            return self._refused_until - now + _VERDICT_RETRY_S
        if now < self._claimed_at + _VERDICT_TIMEOUT_S:
            return _VERDICT_RETRY_S
        return heartbeat_interval_s

    def next_deadline(self) -> float:
        """When a node that wants to serve has something to do."""
        if self.wanted_until == -math.inf:
            return math.inf
        if not self.is_claiming and self.peers_until < self.wanted_until:
            return self.peers_until
        return min(self.wanted_until, self.ask_again_at)
