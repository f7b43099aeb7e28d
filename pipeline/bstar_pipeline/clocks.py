"""Which machines' wall clocks are wrong, and by how much: what both ends recorded tells it.

A node takes a request after its client sent it, and ends it before its client has the outcome; a worker has
it in between. So each request that both ends recorded bounds what one clock is ahead of the other; of many
the narrowest bounds are a fraction of a millisecond apart. From them the clocks of all machines are compared.
Those that agree with the middle one are right; the others are put right by what they are off. Bounds that
exclude each other are of clocks that drifted apart meanwhile: by so much what was found is unsure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """The clock of a node's machine is ahead of that of a client or worker by ``low_us`` to ``high_us``."""

    node: str
    other: str
    low_us: int
    high_us: int


class Off(NamedTuple):
    """A clock is ahead of the right time by ``ahead_us``, give or take ``unsure_us``."""

    ahead_us: int
    unsure_us: int


class _Bounds(NamedTuple):
    low: int
    high: int
    unsure: int

    @property
    def centre(self) -> int:
        return (self.low + self.high) // 2

    def moved(self, low: int, high: int) -> "_Bounds":
        """These and further ones in a row."""
        drift = max(low - high, 0)
        return _Bounds(self.low + min(low, high), self.high + max(low, high), self.unsure + drift)

    def narrowed(self, other: "_Bounds") -> "_Bounds":
        """These and others of the same clock."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        drift = max(low - high, 0)
        return _Bounds(min(low, high), max(low, high), max(self.unsure, other.unsure) + drift)


def wrong(links: Iterable[Link]) -> dict[str, Off]:
    """What clocks are ahead of the middle one of those that links connect; of those that surely are, or that
    are unsure.
    """
    left = list(links)
    off: dict[str, Off] = {}
    while left:
        middle = _middle(_ahead_of(left[0].node, left), {link.node for link in left})
        found = _ahead_of(middle, left)
        unsure = {name: bounds.unsure for name, bounds in found.items()}
        for link in left:
            if link.node in found:
                for name in (link.node, link.other):
                    unsure[name] = max(unsure[name], _contradiction(link, found))
        for name, bounds in found.items():
            if unsure[name] or not bounds.low <= 0 <= bounds.high:
                off[name] = Off(bounds.centre, unsure[name])
        left = [link for link in left if link.node not in found]
    return off


def _contradiction(link: Link, found: Mapping[str, _Bounds]) -> int:
    """How far what a link says is from what others say of its clocks."""
    node, other = found[link.node], found[link.other]
    low, high = node.low - other.high, node.high - other.low
    return max(low - max(link.low_us, link.high_us), min(link.low_us, link.high_us) - high, 0)


def _ahead_of(clock: str, links: Sequence[Link]) -> dict[str, _Bounds]:
    """What each clock that links connect to this one is ahead of it."""
    found = {clock: _Bounds(0, 0, 0)}
    while True:
        # What is new by what is known, over one link more at each turn.
        reached: dict[str, _Bounds] = {}
        for node, other, low, high in links:
            if other in found and node not in found:
                _reach(reached, node, found[other].moved(low, high))
            if node in found and other not in found:
                _reach(reached, other, found[node].moved(-high, -low))
        if not reached:
            return found
        found |= reached


def _reach(reached: dict[str, _Bounds], name: str, bounds: _Bounds) -> None:
    known = reached.get(name)
    reached[name] = bounds if known is None else known.narrowed(bounds)


def _middle(found: Mapping[str, _Bounds], nodes: set[str]) -> str:
    """The clock in the middle; of two that of a node, if one is."""
    in_order = sorted(found, key=lambda name: (found[name].centre, name not in nodes, name))
    middles = in_order[(len(in_order) - 1) // 2 : len(in_order) // 2 + 1]
    return next((name for name in middles if name in nodes), middles[0])
