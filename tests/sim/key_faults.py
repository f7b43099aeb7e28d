"""What befalls a run because it has keys: outsiders attack, and keys leave the list and come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sim.attacker import Attacker
from sim.faults import Fault
from sim.keys import KeyList
from sim.pair import SimPair
from sim.world import World


class KeyFaults:
    """``attackers`` are those of each pair, by its name; one attacks every ``interval_s``."""

    def __init__(
        self,
        world: World,
        keys: KeyList,
        pairs: Mapping[str, SimPair],
        attackers: Mapping[str, Sequence[Attacker]],
        interval_s: float,
    ) -> None:
        self._world = world
        self._keys = keys
        self._pairs = pairs
        self._attackers = attackers
        self._interval_s = interval_s

    def attack(self, fault: Fault, pair: SimPair) -> None:
        """Let one outsider of the pair attack a node until the fault is over."""
        attackers = self._attackers[pair.name]
        attacker = attackers[int(fault.amount * len(attackers))]
        index = next(link.index for link in attacker.links if link.node.name == fault.target)
        until = self._world.now + fault.duration_s

        def act() -> None:
            attacker.act(index)
            if self._world.now + self._interval_s <= until:
                self._world.after(self._interval_s, act)

        act()

    def withdraw(self, name: str) -> Callable[[], None]:
        """Take a key off the list; call what comes back to list it again."""
        self._keys.withdraw(name)
        self._tell()

        def restore() -> None:
            self._keys.restore(name)
            self._tell()

        return restore

    def end(self) -> None:
        """The faults are over: every key is listed."""
        self._keys.restore_all()
        self._tell()

    def _tell(self) -> None:
        for pair in self._pairs.values():
            for node in pair.nodes:
                node.list_changed()
