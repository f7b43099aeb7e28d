"""The Binary Star at one moment, for the node's snapshot."""

from bstar.star import StarMachine
from bstar_broker.core.snapshot import PairState, QuorumState, ShellState


def pair_state(machine: StarMachine, shell: ShellState, now: float) -> PairState:
    """A snapshot of the Binary Star, with what its shell knows."""
    evidence = machine.evidence(now)
    return PairState(
        pair=machine.settings.pair,
        role=machine.settings.role.value,
        node=machine.node,
        state=machine.state.name,
        is_active=machine.is_active,
        epoch=machine.epoch,
        epoch_seen=machine.epochs.seen,
        peer_state=None if machine.peer.state is None else machine.peer.state.name,
        peer_age_s=None if machine.peer.heard_at is None else round(now - machine.peer.heard_at, 3),
        votes=machine.counters.votes,
        transitions={
            f"{old.name}->{new.name}": count for (old, new), count in machine.counters.transitions.items()
        },
        is_peer_fresh=machine.peer.is_heard(now),
        is_peer_gone=machine.peer.is_gone,
        quorum=_quorum_state(machine, now),
        peers_gone=machine.counters.peers_gone,
        retry_after_s=machine.retry_after_s(now),
        failover_timeout_s=machine.failover_timeout_s,
        stalls=machine.counters.stalls,
        requests_refused=machine.counters.requests_refused,
        peer_messages=machine.counters.peer_messages,
        peer_ignored={reason.value: count for reason, count in machine.counters.peer_ignored.items()},
        epochs_ignored=machine.epochs.ignored,
        epoch_error=shell.epoch_error,
        peer_fault=shell.peer_fault,
        fronts_apart=machine.peer.fronts_apart,
        is_leaving=machine.is_leaving,
        clients_cut_off=evidence.clients,
        clients_cut_off_unserved=evidence.unserved,
        clients_cut_off_s=round(evidence.for_s, 3),
        cut_off_handovers=machine.cut_off.handovers,
        paused_for_s=round(machine.pause.rest_s(now), 3),
        pause_why=machine.pause.why if machine.pause.is_on(now) else "",
        is_pause_shared=machine.pause.peer_number == machine.pause.number,
        drained_why=machine.drained_why,
        ordered_moves=machine.counters.ordered_moves,
        is_held=not machine.is_active and machine.is_held(now),
    )


def _quorum_state(machine: StarMachine, now: float) -> QuorumState | None:
    quorum = machine.quorum
    if quorum is None:
        return None
    return QuorumState(
        arbiter=machine.settings.arbiter,
        has_majority=now < quorum.until,
        is_arbiter_heard=quorum.is_arbiter_there is True,
        is_arbiter_granting=now < quorum.arbiter.until,
        is_peer_granting=now < quorum.peer.until,
        majorities_lost=machine.counters.majorities_lost,
    )
