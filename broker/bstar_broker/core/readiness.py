"""Decides whether a node can play its part in its pair, and why not. ``/readyz`` and ``bstar status`` show
it. Decides as well whether the node may give its part away.
"""

from bstar_broker.core.snapshot import NodeState, PairState, Readiness, Standing

# Findings for which a switchover waits that is to happen only if all is well.
_UNHEALTHY = frozenset(
    ("peer-silent", "arbiter-silent", "epoch-unsaved", "descriptors-short", "security-files-broken")
)


def readiness(pair: PairState, *, is_draining: bool) -> Readiness:
    """A node is ready if it serves, or if it would take over when it must.

    A passive node whose peer is silent is ready: the next request makes it active, so it must not leave the
    rotation at that moment. For the same reason a primary is ready whose peer never came.
    """
    if pair.is_leaving or is_draining:
        does = "is stopping" if pair.is_leaving else "finishes its work and gives its role up"
        if pair.is_drained:
            does = f"is drained by an operator: {pair.drained_why}"
        return Readiness(
            False, Standing.DRAINED if pair.is_drained else Standing.DRAINING, f"this node {does}"
        )
    if pair.is_active:
        return Readiness(True, Standing.SERVES, f"serves, epoch {pair.epoch}")
    if pair.state == "ERROR":
        return Readiness(False, Standing.ERROR, "the pair cannot go on: see this node's log")
    if pair.quorum is not None and not (pair.is_peer_fresh or pair.quorum.is_arbiter_heard):
        text = "neither the peer nor the arbiter answers, and alone this node never serves"
        return Readiness(False, Standing.NO_MAJORITY, text)
    if pair.state == "BACKUP":
        text = "has not met the primary yet, and a backup never starts alone"
        return Readiness(False, Standing.NEVER_MET_PRIMARY, text)
    if pair.retry_after_s == 0:
        text = "the peer is silent: the next request makes this node active"
        return Readiness(True, Standing.PEER_SILENT, text)
    if pair.state == "PASSIVE":
        text = f"the peer is silent, and takeovers are paused: {pair.pause_why}"
        is_idle = pair.is_held and not pair.is_peer_fresh
        held, ready = Readiness(False, Standing.HELD, text), Readiness(True, Standing.STANDS_BY, "stands by")
        return held if is_idle else ready
    text = "waits for the backup, or for its silence to last the failover timeout"
    return Readiness(False, Standing.STARTING, text)


def why_role_stays(state: NodeState, *, is_if_healthy: bool) -> str:
    """Why an operator's switchover is refused; empty if it is not. ``is_if_healthy``: also for what this
    node has found wrong with the pair.
    """
    pair, store = state.pair, state.store
    if pair.is_paused:
        return "takeovers are paused: bstar resume first"
    # A store that does not lead here cannot stop leading by the move: the peer's may lead instead.
    if store is not None and store.copies < 2 and (store.is_leading or is_if_healthy):
        return "the durable store of the peer is not in sync: wait until bstar status shows two copies"
    found = state.findings if is_if_healthy else None
    return next((str(each) for each in found or () if each.name in _UNHEALTHY), "")
