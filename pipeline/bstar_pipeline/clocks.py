"""Which machines' wall clocks are wrong, and by how much: what both ends recorded tells it.

A node takes a request after its client sent it, and ends it before its client has the outcome; a worker has
it in between. So each request that both ends recorded bounds what one clock is ahead of the other; of many
the narrowest bounds are a fraction of a millisecond apart. From them the clocks of all machines are compared.
Those that agree with the middle one are right; the others are put right by what they are off. Bounds that
exclude each other are of clocks that drifted apart meanwhile: by so much what was found is unsure.

Of two clocks, neither is in the middle. A node's is right beside one without nodes; of two with nodes the one
with more clients and workers is. Where these are as many, neither is put right and both are unsure.

Nodes tell of each other, too: a node sees its peer after that began, and finds it active after it became so.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """The clock of a node's machine is ahead of that of a client or worker by ``low_us`` to ``high_us``."""

    node: str
    other: str
    low_us: int
    high_us: int


class Word(NamedTuple):
    """A record of a node about itself or its peer, by its own clock; in the order of its run."""

    clock: str
    boot: str
    at_us: int
    kind: str
    event: str | None
    peer_boot: str | None


class Off(NamedTuple):
    """A clock is ahead of the right time by ``ahead_us``, give or take ``unsure_us``."""

    ahead_us: int
    unsure_us: int


# Farther than clocks are apart: what bounds one side alone.
_FAR_US = 1 << 52


class _Bounds(NamedTuple):
    low: int
    high: int
    unsure: int

    @property
    def is_closed(self) -> bool:
        """Whether there are bounds on both sides."""
        return self.high - self.low < _FAR_US // 2

    @property
    def centre(self) -> int:
        """The best guess: of what is bounded on one side alone, the least that is possible."""
        return (self.low + self.high) // 2 if self.is_closed else min(max(0, self.low), self.high)

    def moved(self, low: int, high: int) -> "_Bounds":
        """These and further ones in a row."""
        drift = max(low - high, 0)
        return _Bounds(self.low + min(low, high), self.high + max(low, high), self.unsure + drift)

    def narrowed(self, other: "_Bounds") -> "_Bounds":
        """These and others of the same clock."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        drift = max(low - high, 0)
        return _Bounds(min(low, high), max(low, high), max(self.unsure, other.unsure) + drift)


def of_peers(words: Iterable[Word]) -> list[Link]:
    """What the nodes of a pair tell of each other's clocks.

    ``words``: records of kinds started, peer-seen, active and state.
    """
    in_order = list(words)
    first: dict[tuple[str, str], Word] = {}
    for word in in_order:
        first.setdefault((word.boot, word.kind), word)
    # By how much a clock is ahead of another at most.
    most: dict[tuple[str, str], int] = {}
    peers: dict[str, str] = {}
    for word in in_order:
        cause = None
        if word.kind == "peer-seen" and word.peer_boot:
            peers[word.boot] = word.peer_boot
            cause = first.get((word.peer_boot, "started"))
        elif word.kind == "state" and word.event == "PEER_ACTIVE":
            peer = peers.get(word.boot, "")
            cause = first.get((peer, "active")) if (peer, "started") in first else None
        if cause is not None and cause.clock != word.clock:
            key = word.clock, cause.clock
            most[key] = min(word.at_us - cause.at_us, most.get(key, _FAR_US))
    return [
        Link(node, other, -most.get((other, node), _FAR_US), most.get((node, other), _FAR_US))
        for node, other in sorted({min(key, key[::-1]) for key in most})
    ]


def wrong(
    links: Iterable[Link], nodes: Iterable[str] = (), processes: Mapping[str, int] | None = None
) -> dict[str, Off]:
    """What clocks are ahead of the middle one of those that links connect; of those that surely are, or that
    are unsure. ``nodes``: clocks by which a node goes, beside the first of each link. ``processes``: how many
    clients and workers go by each clock.
    """
    counts, of_nodes = processes or {}, set(nodes)
    left = list(links)
    off: dict[str, Off] = {}
    while left:
        found = _ahead_of(left[0].node, left)
        middle = _middle(found, of_nodes | {link.node for link in left}, counts)
        if middle is None:
            low, high = sorted(bounds.centre for bounds in found.values())
            off |= dict.fromkeys(found, Off(0, high - low))
        else:
            off |= _off_of(_ahead_of(middle, left), [link for link in left if link.node in found])
        left = [link for link in left if link.node not in found]
    return off


def _off_of(found: Mapping[str, _Bounds], links: Iterable[Link]) -> dict[str, Off]:
    """The clocks that are wrong, or unsure, of those that links connect."""
    unsure = {name: bounds.unsure for name, bounds in found.items()}
    for link in links:
        for name in (link.node, link.other):
            unsure[name] = max(unsure[name], _contradiction(link, found))
    return {
        name: Off(bounds.centre, unsure[name] if bounds.is_closed else abs(bounds.centre))
        for name, bounds in found.items()
        if unsure[name] or not bounds.low <= 0 <= bounds.high
    }


def _contradiction(link: Link, found: Mapping[str, _Bounds]) -> int:
    """How far what a link says is from what others say of its clocks."""
    node, other = found[link.node], found[link.other]
    low, high = node.low - other.high, node.high - other.low
    return max(low - max(link.low_us, link.high_us), min(link.low_us, link.high_us) - high, 0)


def _ahead_of(clock: str, links: Sequence[Link]) -> dict[str, _Bounds]:
    """What each clock that links connect to this one is ahead of it."""
    found = {clock: _Bounds(0, 0, 0)}
    ways = [(other, node, low, high) for node, other, low, high in links]
    ways += [(node, other, -high, -low) for node, other, low, high in links]
    while True:
        # What is new by what is known, over one link more at each turn.
        reached: dict[str, _Bounds] = {}
        for known, new, low, high in ways:
            if known in found and new not in found:
                bounds = found[known].moved(low, high)
                reached[new] = reached[new].narrowed(bounds) if new in reached else bounds
        if not reached:
            return found
        found |= reached


def _middle(found: Mapping[str, _Bounds], nodes: set[str], processes: Mapping[str, int]) -> str | None:
    """The clock in the middle; None if it is one of two that nothing tells apart."""
    in_order = sorted(found, key=lambda name: (found[name].centre, name not in nodes, name))
    middles = in_order[(len(in_order) - 1) // 2 : len(in_order) // 2 + 1]
    of_nodes = [name for name in middles if name in nodes] or middles
    most = max(processes.get(name, 0) for name in of_nodes)
    chosen = [name for name in of_nodes if processes.get(name, 0) == most]
    # In a larger group it is no matter: both stand near the middle.
    may_agree = all(found[name].low <= 0 <= found[name].high for name in found)
    return chosen[0] if len(chosen) == 1 or len(found) > 2 or may_agree else None
