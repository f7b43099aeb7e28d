"""What proves that a copy has all that was acknowledged: the marks on the disks, and the arbiter's set.

A disk in the in-sync set that has its mark has everything. Marks alone prove it only if both disks are there:
a disk that was lost may have been the only one. So with an arbiter a copy in sync does not lead, and is not
taken over, beside a disk that vouches for nothing, before the arbiter has said who is in the set.

A follower takes its mark back as soon as its leader may have gone on alone. If the leader was not granted
that, the set still has the follower: a doubtful copy in the set is whole.
"""

from bstar_broker.store.core.events import AskArbiter
from bstar_broker.store.core.meeting import ALONE, IN_SYNC, NOTHING, Source, rank, source
from bstar_broker.store.core.peer import Hello
from bstar_broker.store.core.site import Role, Site


def store_of(site: Site) -> bytes:
    """The store that this node has or would have; empty if there is none yet."""
    mark, hello = site.log.mark, site.peer.hello
    if mark is not None and mark.store:
        return mark.store
    return b"" if hello is None else hello.store


def ask(site: Site, now: float) -> list[AskArbiter]:
    """A node that is to lead, and may not yet, asks who is in the set."""
    if site.wanted is None or site.epoch:
        return []
    return site.in_sync.look(store_of(site), now)


def is_outside(site: Site) -> bool:
    """True if the arbiter says that this copy may lack something."""
    return site.in_sync.is_member(site.role, store_of(site)) is False


def may_lead_unheard(site: Site) -> bool:
    """True if this copy has everything although the peer does not say what it has."""
    mark = site.log.mark
    if mark is None or is_outside(site) or site.log.damage:
        return False
    is_member = site.in_sync.is_member(site.role, mark.store) is True
    return site.led_alone or (is_member and (mark.is_in_sync or mark.is_alone or mark.is_doubtful))


def better(site: Site) -> Source:
    """Whose copy a node that is to lead goes on from, by the peer's Hello; NEITHER if none is proved whole.

    The set decides as soon as one of the copies vouches for nothing.
    """
    hello = site.peer.hello
    assert hello is not None
    own = site.hello(asks=False)
    by_marks, ranks, store = source(own, hello), (rank(own), rank(hello)), store_of(site)
    if not site.in_sync.is_on or ALONE in ranks or NOTHING not in ranks or not store:
        return by_marks
    if not site.in_sync.is_answered(store):
        return Source.NEITHER
    is_own, is_peers = _is_whole(site, site.role, own, store), _is_whole(site, site.other, hello, store)
    if is_own and is_peers:
        if by_marks != Source.NEITHER:
            return by_marks
        return Source.OWN if own.last >= hello.last else Source.PEER
    return Source.OWN if is_own else Source.PEER if is_peers else Source.NEITHER


def _is_whole(site: Site, role: Role, said: Hello, store: bytes) -> bool:
    is_member = site.in_sync.is_member(role, store)
    # A store of which the arbiter knows nothing has its marks alone.
    return is_member is not False and (rank(said) == IN_SYNC or (is_member is True and said.is_doubtful))


def why_not(site: Site) -> str:
    """Why this node does not lead, or leads and cannot go on alone; "" if it is not for the arbiter."""
    in_sync = site.in_sync
    if not in_sync.is_on:
        return ""
    hello, store = site.peer.hello, store_of(site)
    whose = Source.NEITHER if hello is None or not site.peer.is_heard else better(site)
    if is_outside(site) and not site.epoch and whose != Source.PEER:
        return (
            f"the arbiter counts the {site.other}'s copy alone: it may have what this one lacks; start the "
            f"{site.other} with its disk, or force this copy"
        )
    if not site.epoch and not in_sync.is_answered(store):
        return in_sync.problem and f"nothing proves that this copy is whole, and {in_sync.problem}"
    if site.epoch and not in_sync.may_be_alone:
        return in_sync.problem and f"this node cannot go on alone: {in_sync.problem}"
    is_peers_better = hello is not None and source(site.hello(asks=False), hello) == Source.PEER
    if not site.epoch and is_peers_better and better(site) == Source.NEITHER:
        return (
            "the disk of this node is new, and the arbiter counts the one before it alone: put that back, or "
            f"make the {site.other} active and force its copy"
        )
    return ""
