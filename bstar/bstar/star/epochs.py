"""Epochs: every activation takes one above every epoch that the node has seen. The primary takes odd ones,
the backup even ones, so no two activations share one.

A node that says ACTIVE claims its epoch; this module compares the claim with ours. ``Epochs`` has the node's
own epoch and the highest that it believes. ``Allowance`` bounds how fast claims may raise the latter; a claim
beyond it changes nothing (``bstar.wire.epochs``).
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
        """Take ``rise`` tokens. False, and none taken, if there are fewer."""
        missing_s = max(0.0, self.is_full_at - now)
        if rise > self.step * (1.0 - missing_s / EPOCH_REFILL_S):
            return False
        self.is_full_at = now + missing_s + rise / self.step * EPOCH_REFILL_S
        return True


class Epochs:
    """``own``: of the node's last activation. ``seen``: the highest that it believes. ``ignored`` counts
    claims that it did not believe. While the node is active, both epochs are the same.
    """

    def __init__(self, role: Role, kept: int) -> None:
        self.own = self.seen = kept
        self.ignored = 0
        self._role = role
        self._workers_claims = Allowance(EPOCH_STEP_MAX)
        self._peers_claims = Allowance(EPOCH_FAR)

    def hear_worker(self, epoch: int, now: float) -> None:
        """A worker remembers ``epoch``. If that is too far above ours, the worker comes down to this node."""
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
        """The peer serves in ``epoch``. If that is far below ``seen``, our memory is wrong."""
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

    Above EPOCH_MAX the numbers begin again. Only a damaged file leads there, and all parties come down.
    """
    if seen >= EPOCH_MAX - 1:
        seen = 0
    epoch = seen + 1
    return epoch if is_of(role, epoch) else epoch + 1


def does_peer_win(message: PeerState, role: Role, epoch: int) -> bool:
    """True if the peer's claim is better: its epoch is higher, or equal and it is the primary. The published
    message names no epoch and counts as equal.
    """
    if message.epoch is None or message.epoch == epoch:
        return role is Role.BACKUP
    return message.epoch > epoch


def does_peer_outrank(message: PeerState, epoch: int, node: str) -> bool:
    """True if a stranger serves above us. It may have our role, so the names of the runs break a tie."""
    return message.state == State.ACTIVE and (message.epoch or 0, message.node or "") > (epoch, node)


def is_better_claim(message: PeerState, epoch: int) -> bool:
    """True if the peer serves, and its epoch is not certainly before ours."""
    return message.state == State.ACTIVE and (message.epoch is None or message.epoch > epoch)


def is_highest_claim(message: PeerState, epoch: int, epoch_seen: int) -> bool:
    """True if the peer serves in the highest epoch. A late message of an unknown run may have displaced this
    run. But no earlier run can name an epoch that was taken since.
    """
    return (
        message.state == State.ACTIVE
        and message.epoch is not None
        and message.epoch > epoch
        and message.epoch >= epoch_seen
    )
