"""Two nodes meet: do their disks belong together, and which copy is the better one?"""

import enum

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
    if not own.store and not peer.store:
        # A new pair.
        return _wanted(own, peer)
    own_rank, peer_rank = (rank(own), own.last), (rank(peer), peer.last)
    if own_rank[0] == peer_rank[0] == NOTHING:
        return Source.NEITHER
    if own_rank == peer_rank:
        return _wanted(own, peer)
    return Source.OWN if own_rank > peer_rank else Source.PEER


def rank(hello: Hello) -> int:
    """What this copy vouches for: NOTHING, IN_SYNC or ALONE."""
    if not hello.store:
        return NOTHING
    return ALONE if hello.is_alone else IN_SYNC if hello.is_in_sync else NOTHING


def _wanted(own: Hello, peer: Hello) -> Source:
    """The copies are equal: that of the node that is to lead."""
    is_own = own.role == "primary" if own.wants == peer.wants else own.wants
    return Source.OWN if is_own else Source.PEER
