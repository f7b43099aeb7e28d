"""The fence: which epoch a worker obeys.

It is the highest epoch in which a node said that it serves. Requests of lower ones are refused, so of two
nodes that both believe to be active, only the newer can have work done. What a passive node says of its own
past is no epoch in which anybody serves, so it is not obeyed.

A node that is told of a higher epoch activates above it, if it can believe it (``bstar.wire.epochs``). Beyond
that distance the worker follows the node instead, as soon as nobody has served in the higher epoch for an
expiry: a pair whose epochs began again must not be refused for ever.
"""

import enum
import math

from bstar.wire.epochs import EPOCH_STEP_MAX


class Moved(enum.Enum):
    """What a node's word did to the fence."""

    NOT = enum.auto()
    UP = enum.auto()
    DOWN = enum.auto()


class Fence:
    """``epoch`` is the one to obey, 0 before any node served."""

    def __init__(self) -> None:
        self.epoch = 0
        self._is_held_until = -math.inf

    def hear(self, epoch: int, expiry_s: float, now: float) -> Moved:
        """A node says that it serves in ``epoch``; it counts as gone if it is silent for ``expiry_s``."""
        if epoch < self.epoch:
            if self.epoch - epoch <= EPOCH_STEP_MAX or now < self._is_held_until:
                return Moved.NOT
            moved = Moved.DOWN
        else:
            moved = Moved.UP if epoch > self.epoch else Moved.NOT
        self._is_held_until = now + expiry_s
        self.epoch = epoch
        return moved
