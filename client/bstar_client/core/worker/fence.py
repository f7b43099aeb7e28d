"""The fence: which epoch a worker obeys.

It is the highest epoch in which a node said that it serves. The worker refuses requests of lower epochs. So
if both nodes believe that they are active, only the newer one gets work done. The epoch of a passive node
does not count, because no node serves in it.

A node that hears a higher epoch activates above it, if it believes it (``bstar.wire.epochs``). If the
distance is too large, the worker comes down: it follows the node once no node has served in the higher epoch
for an expiry. Otherwise it would refuse a pair whose epochs began again for ever.
"""

import enum
import math

from bstar.wire.epochs import EPOCH_STEP_MAX


class Moved(enum.Enum):
    """How a node's message changed the fence."""

    NOT = enum.auto()
    UP = enum.auto()
    DOWN = enum.auto()


class Fence:
    """``epoch`` is the epoch that the worker obeys; 0 before any node served."""

    def __init__(self) -> None:
        self.epoch = 0
        self._is_held_until = -math.inf

    def hear(self, epoch: int, expiry_s: float, now: float) -> Moved:
        """A node says that it serves in ``epoch``. It counts as gone after ``expiry_s`` of silence."""
        if epoch < self.epoch:
            if self.epoch - epoch <= EPOCH_STEP_MAX or now < self._is_held_until:
                return Moved.NOT
            moved = Moved.DOWN
        else:
            moved = Moved.UP if epoch > self.epoch else Moved.NOT
        self._is_held_until = now + expiry_s
        self.epoch = epoch
        return moved
