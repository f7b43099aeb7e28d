"""Epochs: every activation takes one above every epoch the node has seen, and of its own parity (the primary
odd, the backup even), so that no two activations ever share one.

A node that says ACTIVE claims its epoch; what its claim is worth beside ours is decided here. Nothing is
kept here: ``StarMachine`` remembers the epoch of its last activation and the highest that it knows of.
"""

from bstar.star.rules import Role, State
from bstar.wire.peer import PeerState

__all__ = [
    "EPOCH_MAX",
    "EPOCH_STEP_MAX",
    "does_peer_outrank",
    "does_peer_win",
    "is_better_claim",
    "is_highest_claim",
    "is_of",
    "next_epoch",
]

# Epochs are 64 bits wide. Whoever may name epochs to us (peer, worker, client) must not be able to use them
# up: none above EPOCH_MAX is believed, and a worker or client may raise ours by EPOCH_STEP_MAX at once.
EPOCH_MAX = 2**62
EPOCH_STEP_MAX = 2**32


def is_of(role: Role, epoch: int) -> bool:
    """The primary's epochs are odd, the backup's even."""
    return (epoch % 2 == 1) == (role is Role.PRIMARY)


def next_epoch(role: Role, seen: int) -> int:
    """The epoch of the next activation of ``role`` when ``seen`` is the highest known."""
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
    """Whether a stranger serves above us. Its role may be ours, so the names of the runs break a tie."""
    return message.state == State.ACTIVE and (message.epoch or 0, message.node or "") > (epoch, node)


def is_better_claim(message: PeerState, epoch: int) -> bool:
    """Whether the peer serves, and surely not in an epoch that ours came after."""
    return message.state == State.ACTIVE and (message.epoch is None or message.epoch > epoch)


def is_highest_claim(message: PeerState, epoch: int, epoch_seen: int) -> bool:
    """Whether the peer serves in the highest epoch there is. A late word of a run that we had never met
    may have displaced the run that says so, but no earlier run can say it of an epoch taken since.
    """
    return (
        message.state == State.ACTIVE
        and message.epoch is not None
        and message.epoch > epoch
        and message.epoch >= epoch_seen
    )
