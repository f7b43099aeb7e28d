"""What proves that a copy has all that was acknowledged: the marks on the disks, and the arbiter's set.

A disk in the in-sync set that has its mark has everything. Marks alone prove it only if both disks are there:
a disk that was lost may have been the only one. So with an arbiter a copy in sync does not lead, and is not
taken over, beside a disk that vouches for nothing, before the arbiter has said who is in the set.
"""

from bstar_broker.store.core.events import AskArbiter
from bstar_broker.store.core.meeting import ALONE, IN_SYNC, NOTHING, Source, rank, source
from bstar_broker.store.core.site import Site


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
    if mark is None or is_outside(site):
        return False
    is_member = site.in_sync.is_member(site.role, mark.store) is True
    return site.led_alone or (is_member and (mark.is_in_sync or mark.is_alone))


def may_lead_heard(site: Site) -> bool:
    """True if this copy is the better one, by what the peer's Hello says."""
    hello = site.peer.hello
    assert hello is not None
    own = site.hello(asks=False)
    if source(own, hello) != Source.OWN:
        return False
    is_proved = not (rank(own) == IN_SYNC and rank(hello) == NOTHING)
    return is_proved or _is_confirmed(site, own.store, is_own=True)


def may_take_over(site: Site) -> bool:
    """True if this node, which is to lead, may go on from the peer's copy."""
    hello = site.peer.hello
    assert hello is not None
    is_proved = rank(hello) == ALONE or rank(site.hello(asks=False)) != NOTHING or not hello.store
    return is_proved or _is_confirmed(site, hello.store, is_own=False)


def _is_confirmed(site: Site, store: bytes, *, is_own: bool) -> bool:
    in_sync = site.in_sync
    if not in_sync.is_on:
        return True
    is_member = in_sync.is_member(site.role if is_own else site.other, store)
    # A store of which the arbiter knows nothing has its marks alone.
    return in_sync.is_answered(store) and is_member is not False


def why_not(site: Site) -> str:
    """Why this node does not lead, or leads and cannot go on alone; "" if it is not for the arbiter."""
    in_sync = site.in_sync
    if not in_sync.is_on:
        return ""
    if is_outside(site) and not site.epoch:
        return (
            f"the arbiter counts the {site.other}'s copy alone: it may have what this one lacks; start the "
            f"{site.other} with its disk, or force this copy"
        )
    store = store_of(site)
    if not site.epoch and not in_sync.is_answered(store):
        return in_sync.problem and f"nothing proves that this copy is whole, and {in_sync.problem}"
    if site.epoch and not in_sync.may_be_alone:
        return in_sync.problem and f"this node cannot go on alone: {in_sync.problem}"
    hello = site.peer.hello
    if not site.epoch and hello is not None and not may_take_over(site):
        return (
            "the disk of this node is new, and the arbiter counts the one before it alone: put that back, or "
            f"make the {site.other} active and force its copy"
        )
    return ""
