"""What two nodes say to each other, as scripts whose transcripts people have read and agreed with.

Each transcript is a file in tests/golden/star. After a change that is meant to alter them, run this
module with BSTAR_WRITE_GOLDEN=1, read the difference line by line, and commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bstar.star import EpochHeard, Handover, Leave, Role, StarSettings, State
from support.starwire import Wire, settings_of

GOLDEN = Path(__file__).parent / "golden" / "star"
Script = Callable[[Wire], None]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def settled(wire: Wire) -> None:
    """Both start; the primary serves, the backup stands by."""
    wire.start(wire.primary, wire.backup)
    wire.run_for(3.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE
    wire.trace.clear()


def failed_over(wire: Wire) -> None:
    """The primary is dead, the backup serves."""
    settled(wire)
    wire.kill(wire.primary)
    wire.run_for(2.5)
    assert wire.request(wire.backup)
    wire.run_for(1.0)
    wire.trace.clear()


# --- the published scenarios ------------------------------------------------------------------------------


@script
def primary_first(wire: Wire) -> None:
    wire.start(wire.primary)
    wire.run_for(0.5)
    wire.start(wire.backup)
    wire.run_for(2.5)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


@script
def backup_first(wire: Wire) -> None:
    wire.start(wire.backup)
    wire.run_for(0.5)
    wire.start(wire.primary)
    wire.run_for(2.5)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


@script
def primary_alone(wire: Wire) -> None:
    wire.start(wire.primary)
    wire.run_for(1.0)
    assert not wire.request(wire.primary)
    wire.run_for(0.999)
    assert not wire.request(wire.primary)
    wire.run_for(0.001)
    assert wire.request(wire.primary)


@script
def backup_alone(wire: Wire) -> None:
    wire.start(wire.backup)
    for _ in range(3):
        wire.run_for(10.0)
        assert not wire.request(wire.backup)


@script
def primary_dies_and_comes_back(wire: Wire) -> None:
    settled(wire)
    wire.kill(wire.primary)
    wire.run_for(0.9)
    assert not wire.request(wire.backup)
    wire.run_for(1.1)
    assert wire.request(wire.backup)
    wire.run_for(5.0)
    wire.start(wire.primary)
    wire.run_for(1.0)
    assert not wire.request(wire.primary)
    assert wire.backup.is_active
    # The manual failback of the published pattern: end the backup, vote on the primary.
    wire.kill(wire.backup)
    wire.run_for(2.5)
    assert wire.request(wire.primary)


@script
def quick_restart_of_the_primary(wire: Wire) -> None:
    settled(wire)
    wire.kill(wire.primary)
    wire.run_for(0.2)
    wire.start(wire.primary)
    wire.run_for(2.0)
    assert wire.backup.is_active
    assert wire.primary.state is State.PASSIVE


@script
def restart_of_the_passive_backup(wire: Wire) -> None:
    settled(wire)
    wire.kill(wire.backup)
    wire.run_for(0.2)
    wire.start(wire.backup)
    wire.run_for(2.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


@script
def partition_without_clients(wire: Wire) -> None:
    settled(wire)
    with wire.cut():
        wire.run_for(10.0)
        assert wire.request(wire.primary)
    wire.run_for(2.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


@script
def partition_with_clients_on_both_sides_and_one_yields(wire: Wire) -> None:
    settled(wire)
    with wire.cut():
        wire.run_for(3.0)
        assert wire.request(wire.primary)
        assert wire.request(wire.backup)
    wire.run_for(2.0)
    assert wire.backup.is_active
    assert wire.primary.state is State.PASSIVE


def _two_with_policy_exit() -> Wire:
    return Wire(
        StarSettings(pair="test", role=Role.PRIMARY, on_dual_active="exit"),
        StarSettings(pair="test", role=Role.BACKUP, on_dual_active="exit"),
    )


@script
def partition_with_clients_on_both_sides_and_both_exit(wire: Wire) -> None:
    settled(wire)
    with wire.cut():
        wire.run_for(3.0)
        assert wire.request(wire.primary)
        assert wire.request(wire.backup)
    wire.run_for(2.0)
    assert [type(node.error).__name__ for node in wire.nodes] == ["DualActiveError", "DualActiveError"]


# --- stalls -----------------------------------------------------------------------------------------------


@script
def stall_and_the_peer_stood_by(wire: Wire) -> None:
    settled(wire)
    wire.freeze(wire.primary)
    wire.run_for(5.0)
    wire.thaw(wire.primary, first=lambda: _refused(wire))
    wire.run_for(1.0)
    assert wire.primary.is_active


def _refused(wire: Wire) -> None:
    """What queued up during the stall must not be served before the peer has answered."""
    assert not wire.request(wire.primary)


@script
def stall_and_the_peer_took_over(wire: Wire) -> None:
    settled(wire)
    wire.freeze(wire.primary)
    wire.run_for(3.0)
    assert wire.request(wire.backup)
    wire.run_for(2.0)
    wire.thaw(wire.primary, first=lambda: _refused(wire))
    wire.run_for(1.0)
    assert wire.backup.is_active
    assert wire.primary.state is State.PASSIVE


@script
def stall_and_the_peer_is_dead(wire: Wire) -> None:
    settled(wire)
    wire.freeze(wire.primary)
    wire.run_for(1.0)
    wire.kill(wire.backup)
    wire.run_for(4.0)
    wire.thaw(wire.primary, first=lambda: _refused(wire))
    wire.run_for(1.9)
    assert not wire.request(wire.primary)
    wire.run_for(0.1)
    assert wire.request(wire.primary)


@script
def stall_and_the_peer_restarted_meanwhile(wire: Wire) -> None:
    settled(wire)
    wire.freeze(wire.primary)
    wire.run_for(3.0)
    wire.kill(wire.backup)
    wire.start(wire.backup)
    wire.run_for(2.0)
    wire.thaw(wire.primary)
    wire.run_for(1.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


@script
def stall_of_both(wire: Wire) -> None:
    """Two nodes on a machine that slept: who served before serves again, here the backup."""
    failed_over(wire)
    wire.start(wire.primary)
    wire.run_for(1.0)
    wire.freeze(wire.primary)
    wire.freeze(wire.backup)
    wire.run_for(60.0)
    wire.thaw(wire.primary)
    wire.thaw(wire.backup)
    wire.run_for(3.0)
    assert wire.backup.is_active
    assert wire.primary.state is State.PASSIVE


@script
def pause_shorter_than_the_timeout(wire: Wire) -> None:
    settled(wire)
    wire.freeze(wire.primary)
    wire.run_for(0.9)
    wire.thaw(wire.primary)
    assert wire.request(wire.primary)
    wire.freeze(wire.backup)
    wire.run_for(1.9)
    # Its peer was not silent: it was itself away.
    wire.thaw(wire.backup, first=lambda: _refused_by_backup(wire))
    wire.run_for(1.0)
    assert wire.primary.is_active


def _refused_by_backup(wire: Wire) -> None:
    assert not wire.request(wire.backup)


# --- the role is handed over ------------------------------------------------------------------------------


@script
def handover_to_a_passive_peer(wire: Wire) -> None:
    settled(wire)
    wire.call(wire.primary, lambda machine: machine.step(Handover(), wire.now))
    wire.run_for(1.5)
    assert wire.backup.is_active
    assert wire.primary.state is State.PASSIVE
    wire.call(wire.backup, lambda machine: machine.step(Handover(), wire.now))
    wire.run_for(1.5)
    assert wire.primary.is_active


@script
def handover_and_the_peer_dies_before_it_takes_over(wire: Wire) -> None:
    settled(wire)
    wire.kill(wire.backup)
    wire.call(wire.primary, lambda machine: machine.step(Handover(), wire.now))
    wire.run_for(1.0)
    assert not wire.request(wire.primary)
    wire.run_for(1.5)
    assert wire.request(wire.primary)


@script
def handover_to_nobody(wire: Wire) -> None:
    wire.start(wire.primary)
    wire.run_for(2.0)
    wire.request(wire.primary)
    wire.call(wire.primary, lambda machine: machine.step(Handover(), wire.now))
    assert wire.primary.is_active


@script
def stop_of_the_active_node(wire: Wire) -> None:
    settled(wire)
    wire.call(wire.primary, lambda machine: machine.step(Leave(), wire.now))
    wire.run_for(0.01)
    assert wire.backup.is_active
    machine = wire.primary.machine
    assert machine is not None
    assert machine.has_left(wire.now)
    wire.kill(wire.primary)
    wire.run_for(3.0)
    assert wire.request(wire.backup)


@script
def stop_of_the_passive_node(wire: Wire) -> None:
    settled(wire)
    wire.call(wire.backup, lambda machine: machine.step(Leave(), wire.now))
    wire.run_for(3.0)
    assert wire.primary.is_active


@script
def stop_of_the_active_node_while_its_peer_starts(wire: Wire) -> None:
    settled(wire)
    wire.kill(wire.backup)
    wire.call(wire.primary, lambda machine: machine.step(Leave(), wire.now))
    wire.start(wire.backup)
    wire.run_for(0.1)
    assert wire.backup.is_active


# --- epochs -----------------------------------------------------------------------------------------------


@script
def pair_restarted_without_memory_and_workers_remember(wire: Wire) -> None:
    settled(wire)
    wire.call(wire.primary, lambda machine: machine.step(EpochHeard(6), wire.now))
    wire.run_for(0.3)
    assert wire.primary.is_active
    assert wire.primary.machine is not None
    assert wire.primary.machine.epoch == 7


@script
def restart_of_both_with_memory(wire: Wire) -> None:
    """The backup served last; the primary hears its epoch with its first word and goes above it."""
    for node, epoch in zip(wire.nodes, (1, 6), strict=True):
        node.is_durable = True
        node.disk = epoch
    wire.start(wire.primary, wire.backup)
    wire.run_for(2.0)
    assert wire.primary.is_active
    assert [node.disk for node in wire.nodes] == [7, 6]


@script
def epoch_learned_while_the_peer_is_cut_off_and_serves(wire: Wire) -> None:
    settled(wire)
    wire.set_cut(is_cut=True)
    wire.run_for(3.0)
    assert wire.request(wire.backup)
    # A worker tells the primary that it has seen the backup's epoch.
    wire.call(wire.primary, lambda machine: machine.step(EpochHeard(2), wire.now))
    assert wire.primary.state is State.PASSIVE
    wire.set_cut(is_cut=False)
    wire.run_for(2.0)
    assert wire.backup.is_active
    assert wire.primary.state is State.PASSIVE


# --- links that work in one direction ---------------------------------------------------------------------


@script
def backup_cannot_hear_the_primary(wire: Wire) -> None:
    settled(wire)
    with wire.cut(wire.primary):
        wire.run_for(3.0)
        assert wire.request(wire.backup)
        wire.run_for(1.0)
        assert wire.primary.state is State.PASSIVE
    wire.run_for(2.0)
    assert wire.backup.is_active


@script
def primary_cannot_hear_the_backup(wire: Wire) -> None:
    settled(wire)
    with wire.cut(wire.backup):
        wire.run_for(5.0)
        assert not wire.request(wire.backup)
        assert wire.request(wire.primary)
    wire.run_for(2.0)
    assert wire.primary.is_active


@script
def two_serve_and_the_lower_cannot_hear(wire: Wire) -> None:
    """The primary lost its memory while it could not hear; the backup hears it serve below its own epoch."""
    failed_over(wire)
    with wire.cut(wire.backup):
        wire.start(wire.primary)
        wire.run_for(3.0)
        assert wire.request(wire.primary)
        wire.run_for(5.0)
        assert wire.primary.is_active
        assert wire.backup.state is State.PASSIVE
        assert not wire.request(wire.backup)
    wire.run_for(3.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


# --- misfits and old news ---------------------------------------------------------------------------------


@script
def two_primaries(wire: Wire) -> None:
    wire.start(wire.primary, wire.backup)
    wire.run_for(1.0)
    assert [type(node.error).__name__ for node in wire.nodes] == ["PeerMismatchError", "PeerMismatchError"]


@script
def another_pair(wire: Wire) -> None:
    wire.start(wire.primary, wire.backup)
    wire.run_for(1.0)
    assert [type(node.error).__name__ for node in wire.nodes] == ["PeerMismatchError", "PeerMismatchError"]


@script
def other_timing_meets_a_healthy_node(wire: Wire) -> None:
    """The newcomer ends; the node that serves does not."""
    wire.start(wire.primary)
    wire.run_for(2.0)
    assert wire.request(wire.primary)
    wire.start(wire.backup)
    wire.run_for(3.0)
    assert wire.primary.is_active
    assert type(wire.backup.error).__name__ == "PeerMismatchError"


@script
def burst_of_old_news(wire: Wire) -> None:
    """For a moment the backup believes that the primary just starts; the rest of the burst corrects it."""
    for node in wire.nodes:
        node.is_durable = True
    settled(wire)
    wire.set_choked(wire.primary, is_choked=True)
    wire.set_cut(wire.backup, is_cut=True)
    wire.kill(wire.primary)
    wire.start(wire.primary)
    wire.run_for(2.5)
    assert wire.request(wire.primary)
    wire.run_for(1.0)
    wire.set_cut(wire.backup, is_cut=False)
    wire.set_choked(wire.primary, is_choked=False)
    wire.run_for(1.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE
    assert wire.dual_s_max <= 0.001


@script
def burst_that_an_active_node_has_outlived(wire: Wire) -> None:
    """The link held everything back while the backup died and started again."""
    settled(wire)
    wire.set_choked(wire.backup, is_choked=True)
    wire.run_for(2.5)
    wire.kill(wire.backup)
    wire.start(wire.backup)
    wire.run_for(2.5)
    wire.set_choked(wire.backup, is_choked=False)
    wire.run_for(1.0)
    assert wire.primary.is_active
    assert wire.backup.state is State.PASSIVE


WIRES: dict[str, Callable[[], Wire]] = {
    "partition_with_clients_on_both_sides_and_both_exit": _two_with_policy_exit,
    "two_primaries": lambda: Wire(backup=settings_of(Role.PRIMARY)),
    "another_pair": lambda: Wire(backup=StarSettings(pair="others", role=Role.BACKUP)),
    "other_timing_meets_a_healthy_node": lambda: Wire(
        backup=StarSettings(pair="test", role=Role.BACKUP, failover_timeout_s=3.0)
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_conversation_goes_as_written_down(name: str) -> None:
    wire = WIRES.get(name, Wire)()
    SCRIPTS[name](wire)
    transcript = "\n".join(wire.trace) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("BSTAR_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(transcript, encoding="utf-8")
    assert transcript == path.read_text(encoding="utf-8")


def test_every_transcript_has_its_script() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCRIPTS)
