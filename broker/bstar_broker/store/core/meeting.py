"""Two nodes meet: do their disks belong together, and which copy is the better one?"""

import enum

from bstar_broker.store.core.history import History
from bstar_broker.store.core.peer import Hello

# What a copy vouches for.
NOTHING, IN_SYNC, ALONE = range(3)


class Source(enum.Enum):
    """Whose copy both go on from."""

    OWN = enum.auto()
    PEER = enum.auto()
    NEITHER = enum.auto()  # no copy is known to be whole


def mismatch(own: Hello, peer: Hello) -> str:
    """Why the peer's store is none for this one, and what to do; "" if it is."""
    if peer.pair != own.pair:
        return (
            f"its store is of the pair {peer.pair}, this one of {own.pair}: correct store.link of one of them"
        )
    if peer.role == own.role:
        return f"it is a {peer.role}, too: correct node.role of one of them"
    if peer.store and own.store and peer.store != own.store:
        return (
            f"the disks hold two stores, {own.store.hex()} here and {peer.store.hex()} there: keep one, move "
            "the other node's store.directory away and start it again"
        )
    return ""


def source(own: Hello, peer: Hello) -> Source:
    """Compare the copies of two nodes of which none leads."""
    if not own.store and not peer.store and own.must is peer.must is None:
        # A new pair.
        return _wanted(own, peer)
    own_rank, peer_rank = (_rank_beside(own, peer), own.last), (_rank_beside(peer, own), peer.last)
    if own_rank[0] == peer_rank[0] == NOTHING:
        return Source.NEITHER
    if own_rank == peer_rank:
        return _wanted(own, peer)
    if not has_all_of(own, peer) or not has_all_of(peer, own):
        return Source.NEITHER
    return Source.OWN if own_rank > peer_rank else Source.PEER


def _rank_beside(hello: Hello, other: Hello) -> int:
    """What a copy vouches for, or the other for it: a leader that gave its own up, because this had all."""
    is_heir = other.gave_up is not None and hello.store != b"" and hello.must is None
    if is_heir and other.gave_up is not None and History(hello.epochs, hello.last).has(other.gave_up):
        return max(rank(hello), IN_SYNC)
    return rank(hello)


def rank(hello: Hello) -> int:
    """What this copy vouches for: NOTHING, IN_SYNC or ALONE. A damaged one vouches for nothing."""
    if not hello.store or hello.must is not None:
        return NOTHING
    return ALONE if hello.is_alone else IN_SYNC if hello.is_in_sync else NOTHING


def has_all_of(damaged: Hello, other: Hello) -> bool:
    """True if ``damaged`` is whole, or ``other`` has all that was acknowledged there.

    If that copy was not alone, the other one in sync has. If it was, its last entry shows whether the other
    got what it had.
    """
    if damaged.must is None or not damaged.is_alone or other.is_alone:
        return True
    return History(other.epochs, other.last).has(damaged.must)


def _wanted(own: Hello, peer: Hello) -> Source:
    """The copies are equal: that of the node that is to lead."""
    is_own = own.role == "primary" if own.wants == peer.wants else own.wants
    return Source.OWN if is_own else Source.PEER
