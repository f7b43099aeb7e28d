"""Epochs: every activation takes one above every epoch the node has seen, and of its own parity (the primary
odd, the backup even), so that no two activations ever share one.

A node that says ACTIVE claims its epoch; what its claim is worth beside ours is decided here. ``Epochs`` is
what a node remembers: its own epoch and the highest that it believes in. ``Allowance`` bounds how fast claims
may raise that one; a claim beyond it changes nothing (``bstar.wire.epochs``).
"""

import math

from bstar.star.outputs import PersistEpoch
from bstar.star.rules import Role, State
from bstar.wire.epochs import EPOCH_FAR, EPOCH_MAX, EPOCH_REFILL_S, EPOCH_STEP_MAX
from bstar.wire.peer import PeerState


class Allowance:
    """How far claims may raise an epoch: by ``step`` at once, and by ``step`` in EPOCH_REFILL_S in the long
    run (a token bucket).
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.is_full_at = -math.inf

    def take(self, rise: int, now: float) -> bool:
        """Use ``rise`` of it; False, and nothing used, if there is less."""
        missing_s = max(0.0, self.is_full_at - now)
        if rise > self.step * (1.0 - missing_s / EPOCH_REFILL_S):
            return False
        self.is_full_at = now + missing_s + rise / self.step * EPOCH_REFILL_S
        return True


class Epochs:
    """``own``: of the node's last activation. ``seen``: the highest that it believes in. ``ignored`` counts
    claims that were not believed. While the node is active, both are the same.
    """

    def __init__(self, role: Role, kept: int) -> None:
        self.own = self.seen = kept
        self.ignored = 0
        self._role = role
        self._workers_claims = Allowance(EPOCH_STEP_MAX)
        self._peers_claims = Allowance(EPOCH_FAR)

    def hear_worker(self, epoch: int, now: float) -> None:
        """A worker remembers ``epoch``. If that is too far above, the worker follows this node instead."""
        self._believe(epoch, self._workers_claims, now)

    def hear_peer(self, epoch: int, now: float) -> None:
        """The peer was active in ``epoch``."""
        self._believe(epoch, self._peers_claims, now)

    def _believe(self, epoch: int, claims: Allowance, now: float) -> None:
        if epoch <= self.seen:
            return
        if epoch <= EPOCH_MAX and claims.take(epoch - self.seen, now):
            self.seen = epoch
        else:
            self.ignored += 1

    def take(self) -> PersistEpoch:
        """The node activates: take the next epoch of its role."""
        self.own = self.seen = next_epoch(self._role, self.seen)
        return PersistEpoch(self.own)

    def come_down(self, epoch: int | None) -> list[PersistEpoch]:
        """The peer serves in ``epoch``. If that is far below ``seen``, our memory cannot be of this pair."""
        if epoch is None or self.seen - epoch <= EPOCH_FAR:
            return []
        self.seen = epoch
        if self.own <= epoch:
            return []
        self.own = epoch - 1
        return [PersistEpoch(self.own)]


def is_of(role: Role, epoch: int) -> bool:
    """The primary's epochs are odd, the backup's even."""
    return (epoch % 2 == 1) == (role is Role.PRIMARY)


def next_epoch(role: Role, seen: int) -> int:
    """The epoch of the next activation of ``role`` when ``seen`` is the highest known.

    Above EPOCH_MAX the numbers begin again: only a damaged file leads there, and everybody follows back down.
    """
    if seen >= EPOCH_MAX - 1:
        seen = 0
    epoch = seen + 1
    return epoch if is_of(role, epoch) else epoch + 1


def does_peer_win(message: PeerState, role: Role, epoch: int) -> bool:
    """Whose claim is better if both are active: the higher epoch's, and the primary's of two equal ones.
    The published message names no epoch and counts as equal.
    """
    if message.epoch is None or message.epoch == epoch:
        return role is Role.BACKUP
    return message.epoch > epoch


def does_peer_outrank(message: PeerState, epoch: int, node: str) -> bool:
    """True if a stranger serves above us. Its role may be ours, so the names of the runs break a tie."""
    return message.state == State.ACTIVE and (message.epoch or 0, message.node or "") > (epoch, node)


def is_better_claim(message: PeerState, epoch: int) -> bool:
    """True if the peer serves, and not in an epoch that is surely before ours."""
    return message.state == State.ACTIVE and (message.epoch is None or message.epoch > epoch)


def is_highest_claim(message: PeerState, epoch: int, epoch_seen: int) -> bool:
    """True if the peer serves in the highest epoch there is. A late word of a run that we had never met
    may have displaced the run that says so, but no earlier run can say it of an epoch taken since.
    """
    return (
        message.state == State.ACTIVE
        and message.epoch is not None
        and message.epoch > epoch
        and message.epoch >= epoch_seen
    )
