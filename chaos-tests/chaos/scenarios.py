"""Scenarios that need more than one fault after another. Broken builds can play them: each takes a cast."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from bstar_testing.pairs import STATE_LINKS
from chaos.cluster import Profile
from chaos.stage import Cast, Stage, stage
from chaos.toxics import DOWN
from chaos.traffic import ClientLoad, WorkerLoad

PRIMARY, BACKUP = ("primary",), ("backup",)


def stalled_node_wakes_up(name: str, cast: Cast | None = None, *, is_judged: bool = True) -> Stage:
    """The active node stands still, its peer takes over, and nobody can tell it so when it goes on.

    It has a worker and a client of its own, and what its peer says is held back. Only its own clock tells it
    that it was away.
    """
    cast = replace(cast or Cast(), workers=(PRIMARY, BACKUP), clients=(PRIMARY,))
    with stage(name, cast=cast, is_judged=is_judged) as run:
        primary, own = run.cluster.primary, run.cluster.clients[0]
        with run.fault("stop+stall", "primary", hits_peer_link=True):
            with run.links["primary-backup"].stall(stream=DOWN):
                primary.pause()
                other = run.add_client(nodes=BACKUP)
                # At 80 a second: well beyond the failover timeout, so that nobody takes the pause for less.
                other.wait_for_answers(60)
                primary.resume()
                own.wait_for_answers(20)
            own.finish()
            other.finish()
            run.add_client()
        run.calm()
    return run


def clients_on_both_sides(
    name: str, cast: Cast | None = None, *, workers: tuple[Sequence[str], ...] = (), is_judged: bool = True
) -> Stage:
    """The peer link is cut and each node has a client of its own, so both serve; they may share workers."""
    cast = replace(cast or Cast(), clients=(PRIMARY,))
    if workers:
        cast = replace(cast, workers=workers)
    with stage(name, cast=cast, is_judged=is_judged) as run:
        own = run.cluster.clients[0]
        with run.fault("timeout+clients", ",".join(STATE_LINKS), hits_peer_link=True):
            with ExitStack() as cuts:
                for link in STATE_LINKS:
                    cuts.enter_context(run.links[link].timeout())
                other = run.add_client(nodes=BACKUP)
                for _ in range(3):
                    other.wait_for_answers(10)
                    own.wait_for_answers(10)
            own.finish()
            other.finish()
            run.add_client()
        run.calm()
    return run


def refused_for_a_living_peer(name: str) -> Stage:
    """A proxy between the nodes refuses connections while both live, and ``expire_on_refused`` is on.

    The failover timeout is long: it is the refusal that moves the role.
    """
    timing = {
        "timing.expire_on_refused": True,
        "timing.failover_timeout_s": 5.0,
        "timing.worker_heartbeat_interval_s": 1.5,
    }
    cast = Cast(profile=Profile(settings=timing), clients=(PRIMARY,))
    with stage(name, cast=cast) as run:
        own = run.cluster.clients[0]
        with run.fault("down", ",".join(STATE_LINKS), hits_peer_link=True):
            with ExitStack() as cuts:
                for link in STATE_LINKS:
                    cuts.enter_context(run.links[link].down())
                backup = run.cluster.backup
                backup.wait_for_log("peer is gone")
                other = run.add_client(nodes=BACKUP)
                other.wait_for_answers(10)
            own.finish()
            other.finish()
            run.add_client()
        run.calm()
    return run


def arbiter_decides(name: str) -> Stage:
    """The network has fallen into halves, each with a client and a worker; the arbiter hears both.

    Only the primary serves. When it dies, and only then, the backup gets the majority.
    """
    cast = Cast(
        has_arbiter=True,
        workers=(PRIMARY, BACKUP),
        clients=(PRIMARY,),
        client_load=ClientLoad(deadline_s=1.5),
    )
    with stage(name, cast=cast) as run:
        primary, own = run.cluster.primary, run.cluster.clients[0]
        with run.fault("timeout+kill", "primary", hits_peer_link=True):
            with ExitStack() as cuts:
                for link in STATE_LINKS:
                    cuts.enter_context(run.links[link].timeout())
                other = run.add_client(nodes=BACKUP)
                other.wait_for_ends(16)
                own.wait_for_answers(20)
                own.finish()
                primary.kill()
                other.wait_for_answers(20)
                primary.start()
            other.finish()
            run.add_client()
        run.calm()
    return run


def arbiter_dies(name: str) -> Stage:
    """Without the arbiter nothing changes; with the peer link cut as well nobody serves until one is back."""
    with stage(name, cast=Cast(has_arbiter=True, client_load=ClientLoad(deadline_s=1.5))) as run:
        arbiter = run.cluster.arbiter
        assert arbiter is not None
        with run.fault("kill", "arbiter"):
            arbiter.kill()
            run.wait_for_answers(20)
            arbiter.start()
        run.calm()
        with run.fault("kill+timeout", "arbiter", hits_peer_link=True):
            with ExitStack() as cuts:
                for link in STATE_LINKS:
                    cuts.enter_context(run.links[link].timeout())
                arbiter.kill()
                for node in run.cluster.nodes:
                    node.wait_for("not active", lambda state: not state.pair.is_active)
                for client in run.cluster.clients:
                    client.wait_for_ends(8)
            arbiter.start()
        run.calm()
    return run


def worker_dies_at_work(name: str, cast: Cast | None = None, *, is_judged: bool = True) -> Stage:
    """A worker is killed with requests that it has begun, none of which may be executed twice."""
    cast = replace(
        cast or Cast(), worker_load=WorkerLoad(credit=4, work_ms=100.0), client_load=ClientLoad(bound_every=1)
    )
    with stage(name, cast=cast, is_judged=is_judged) as run:
        worker = run.cluster.process("worker1")
        run.wait_for_answers(40)
        with run.fault("kill", "worker1"):
            worker.kill()
            run.wait_for_answers(40)
            worker.start()
        run.calm()
    return run


def plain_traffic(name: str, cast: Cast | None = None, *, is_judged: bool = True) -> Stage:
    """Nothing is broken. More calls are outstanding than workers at work, so replies overtake each other."""
    cast = replace(cast or Cast(), worker_load=WorkerLoad(work_ms=20.0))
    with stage(name, cast=cast, is_control=True, is_judged=is_judged) as run:
        run.wait_for_answers(150)
    return run
