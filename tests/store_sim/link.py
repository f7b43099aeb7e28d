"""The link between two stores: in order, with a delay; it loses messages, and it is cut and mended."""

from __future__ import annotations

import random
from collections.abc import Callable

from sim.world import World


class SimLink:
    """One direction. ``deliver(frames)`` is called at the far end."""

    def __init__(
        self, world: World, rng: random.Random, deliver: Callable[[list[bytes], float], None]
    ) -> None:
        self._world = world
        self._rng = rng
        self._deliver = deliver
        self.is_cut = False
        self.loss = 0.0
        self.delay_s = 0.0005
        self._connection = 0
        self._free_at = 0.0

    def send(self, frames: list[bytes]) -> None:
        """Send; nobody hears of a loss."""
        if self.is_cut or self._rng.random() < self.loss:
            return
        world, connection, sent_at = self._world, self._connection, self._world.now
        self._free_at = max(self._free_at, world.now + self._rng.expovariate(1 / self.delay_s))
        world.at(
            self._free_at, lambda: self._deliver(frames, sent_at) if connection == self._connection else None
        )

    def cut(self) -> None:
        """What is under way is lost."""
        self.is_cut = True
        self._connection += 1

    def mend(self) -> None:
        """Connect anew."""
        self.is_cut = False
        self._connection += 1
        self._free_at = self._world.now
