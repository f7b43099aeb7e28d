"""Decides whether a node can play its part in its pair, and why not. ``/readyz`` and ``bstar status`` show
it.
"""

from bstar_broker.core.snapshot import PairState, Readiness, Standing


def readiness(pair: PairState, *, is_draining: bool) -> Readiness:
    """A node is ready if it serves, or if it would take over when it must.

    A passive node whose peer is silent is ready: the next request makes it active, so it must not leave the
    rotation at that moment. For the same reason a primary is ready whose peer never came.
    """
    if pair.is_leaving or is_draining:
        return Readiness(False, Standing.DRAINING, "this node is stopping")
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
        return Readiness(True, Standing.STANDS_BY, "stands by")
    text = "waits for the backup, or for its silence to last the failover timeout"
    return Readiness(False, Standing.STARTING, text)
