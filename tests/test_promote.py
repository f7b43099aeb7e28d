"""A backup that is alone since it started serves when the operator vouches that its primary is dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bstar.star import (
    Activated,
    ArbiterAnswer,
    Claimed,
    HandoverRefused,
    Leave,
    PeerMessage,
    Promotion,
    Role,
    StarMachine,
    StarSettings,
    State,
    StateChanged,
    Vote,
)
from bstar.star.rules import Event
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState
from support.pairs import Pair, standing_pair

TIMEOUT_S = 2.0


def machine_of(role: Role = Role.BACKUP, arbiter: str = "") -> StarMachine:
    return StarMachine(StarSettings(pair="test", role=role, arbiter=arbiter), node="we", epoch=0, now=0.0)


def kept(machine: StarMachine, until: float) -> StarMachine:
    """It has been publishing until then."""
    machine.publisher.published_at = until
    return machine


def word(state: State, role: str = "primary", epoch: int = 0) -> PeerState:
    return PeerState(int(state), "test", role, "they", 1, epoch, 1000, 2000)


def refusals(outputs: list[Any]) -> list[str]:
    return [output.why for output in outputs if isinstance(output, HandoverRefused)]


# --- the rule ---------------------------------------------------------------------------------------------


def test_a_lone_backup_serves_when_it_is_promoted() -> None:
    machine = kept(machine_of(), TIMEOUT_S)
    machine.step(Vote(), TIMEOUT_S)
    assert machine.state is State.BACKUP, "votes alone do not"
    assert machine.step(Promotion(is_trial=True), TIMEOUT_S) == []
    assert machine.state is State.BACKUP, "a question does not"
    outputs = machine.step(Promotion(), TIMEOUT_S)
    assert machine.is_active
    [change] = [output for output in outputs if isinstance(output, StateChanged)]
    assert (change.old, change.new, change.event) == (State.BACKUP, State.ACTIVE, Event.PROMOTE)
    assert [output.epoch for output in outputs if isinstance(output, Activated)] == [2]
    assert machine.step(Promotion(), TIMEOUT_S) == [], "it serves already"


def test_a_backup_that_has_just_started_is_not_promoted_yet() -> None:
    machine = kept(machine_of(), 0.5)
    assert refusals(machine.step(Promotion(), 0.5)) == [
        "its primary may be about to speak: ask again in 1.5 s"
    ]
    assert machine.state is State.BACKUP


def test_a_backup_that_hears_its_primary_is_not_promoted() -> None:
    machine = kept(machine_of(), 1.0)
    machine.step(PeerMessage(word(State.PRIMARY)), 1.0)
    assert refusals(machine.step(Promotion(), 1.5)) == ["it hears its primary, which is PRIMARY"]
    assert machine.state is State.BACKUP


def test_a_node_that_a_vote_makes_active_needs_no_promotion() -> None:
    primary = kept(machine_of(Role.PRIMARY), 5.0)
    [text] = refusals(primary.step(Promotion(), 5.0))
    assert text.startswith("this node is PRIMARY and needs no promotion: once its peer is silent, it serves")
    passive = machine_of()
    passive.step(PeerMessage(word(State.ACTIVE, epoch=1)), 0.0)
    assert "PASSIVE" in refusals(passive.step(Promotion(), 1.0))[0]


def test_a_node_that_is_leaving_is_not_promoted() -> None:
    machine = kept(machine_of(), 5.0)
    machine.step(Leave(), 5.0)
    assert refusals(machine.step(Promotion(), 5.0)) == ["this node is leaving"]


def test_with_an_arbiter_a_promoted_backup_claims_the_majority_first() -> None:
    machine = kept(machine_of(arbiter="tcp://c:5010"), 5.0)
    outputs = machine.step(Promotion(), 5.0)
    assert [type(output) for output in outputs if isinstance(output, Claimed | HandoverRefused)] == [Claimed]
    answer = Answer("we", machine.publisher.seq, is_granted=True)
    outputs = machine.step(ArbiterAnswer(answer), 5.1)
    assert machine.is_active
    assert [output.event for output in outputs if isinstance(output, StateChanged)] == [Event.MAJORITY_WON]


# --- the command ------------------------------------------------------------------------------------------


def promote(pair: Pair, *options: str) -> tuple[int, str]:
    """Its exit status, and what it says."""
    command = [
        sys.executable,
        "-m",
        "bstar_cli",
        "promote",
        "--config",
        str(pair.backup.config_path),
        *options,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def lone_backup() -> Iterator[Pair]:
    """A pair whose primary was killed and whose backup has been restarted since."""
    with standing_pair() as pair:
        pair.primary.kill()
        pair.backup.kill()
        pair.backup.start()
        pair.backup.wait_for("without its peer", lambda state: state.pair.peer_age_s is None)
        yield pair


@pytest.mark.loopback
def test_a_lone_backup_serves_after_the_command_and_the_primary_stands_by_when_it_returns(
    lone_backup: Pair,
) -> None:
    pair = lone_backup
    with pair.load() as load:
        while (answer := promote(pair))[0] and "about to speak" in answer[1]:
            pass
        assert answer == (0, "the backup of the pair tests serves\n")
        load.wait_for_replies()
        assert promote(pair) == answer, "twice is fine"
        pair.primary.start()
        pair.primary.wait_for_state("PASSIVE")
        load.wait_for_replies()
        assert promote(pair) == answer, "and so it is beside a primary that lives"
        assert load.failed == []
    log = pair.backup.log()
    assert log.count("BACKUP -> ACTIVE on PROMOTE") == 1
    assert log.count("bstar promote: the primary's state endpoint refuses connections") == 1
    assert "--force" not in log


@pytest.mark.loopback
def test_nobody_is_promoted_while_something_listens_at_the_primarys_endpoint(lone_backup: Pair) -> None:
    pair = lone_backup
    host, _, port = pair.backup.peer_state_endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        status, text = promote(pair)
        while "about to speak" in text:
            status, text = promote(pair)
        assert (status, "refused: a process listens at" in text) == (1, True), text
        assert pair.backup.state().pair.state == "BACKUP"
        # The operator knows better: it is no node. The backup itself must still hear nobody.
        while (answer := promote(pair, "--force"))[0] and "about to speak" in answer[1]:
            pass
        assert answer[0] == 0, answer
    pair.backup.wait_for_state("ACTIVE")
    assert "bstar promote --force: the operator alone says" in pair.backup.log()
    assert "state endpoint refuses connections" not in pair.backup.log()
