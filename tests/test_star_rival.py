"""Two nodes in one role that name the same peer: the one that the peer does not hear ends with status 72."""

from __future__ import annotations

import pytest

from bstar.errors import PeerMismatchError
from bstar.star import (
    Fatal,
    Leave,
    Output,
    PeerMessage,
    Publish,
    Role,
    StarMachine,
    StarSettings,
    State,
    Subscription,
    Tick,
)
from bstar.wire.peer import PeerState
from support.starwire import Wire

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
HEARTBEAT_S, TIMEOUT_S = 1.0, 2.0
# How a peer brings a node there.
WAYS = {
    (Role.PRIMARY, PRIMARY): [PASSIVE],
    (Role.PRIMARY, ACTIVE): [BACKUP],
    (Role.PRIMARY, PASSIVE): [ACTIVE],
    (Role.BACKUP, BACKUP): [PASSIVE],
    (Role.BACKUP, PASSIVE): [ACTIVE],
}


class Node:
    """One node and the words of its peer, which tells whom it hears."""

    def __init__(self, role: Role = Role.PRIMARY) -> None:
        self.role = role
        settings = StarSettings(
            pair="test", role=role, heartbeat_interval_s=HEARTBEAT_S, failover_timeout_s=TIMEOUT_S
        )
        self.machine = StarMachine(settings, node="we", epoch=0, now=0.0)
        self.now = 0.0
        self.seq = 0

    def hears(self, state: State, hears: str, run: str = "they") -> list[Output]:
        self.seq += 1
        word = PeerState(int(state), "test", self.role.peer.value, run, self.seq, 0, 1000, 2000, hears=hears)
        return self.machine.step(PeerMessage(word), self.now) + self.machine.step(Tick(), self.now)

    def hears_for(self, seconds: float, state: State, hears: str) -> list[Output]:
        """A word every half second, for so long."""
        outputs: list[Output] = []
        until = self.now + seconds
        while self.now < until and self.machine.state is not ERROR:
            outputs += self.hears(state, hears)
            self.now += 0.5
        return outputs


@pytest.mark.parametrize(("role", "state"), WAYS)
def test_a_node_whose_peer_goes_on_hearing_another_one_ends(role: Role, state: State) -> None:
    node = Node(role)
    for word in WAYS[role, state]:
        node.hears(word, "")
    assert node.machine.state is state
    word = ACTIVE if state is PASSIVE else PASSIVE
    outputs = node.hears_for(3 * TIMEOUT_S, word, "another")
    assert node.machine.state is state, "that may have been an earlier run of this very node"
    outputs = node.hears_for(1.0, word, "another")
    [fatal] = [output for output in outputs if isinstance(output, Fatal)]
    assert isinstance(fatal.error, PeerMismatchError)
    assert fatal.error.exit_code == 72
    text = str(fatal.error)
    assert f"two nodes with role {role.value}" in text
    assert "endpoints.peer_state" in text
    assert "run another" in text
    assert not node.machine.is_active


@pytest.mark.parametrize("hears", ["we", ""])
def test_a_node_that_its_peer_hears_or_whose_peer_hears_nobody_goes_on(hears: str) -> None:
    node = Node()
    node.hears_for(10 * TIMEOUT_S, BACKUP, hears)
    assert node.machine.state is ACTIVE


def test_a_restarted_node_is_not_its_own_rival() -> None:
    """Until its peer has heard it, the peer tells of the run before; for a failover timeout and a bit."""
    node = Node()
    node.hears_for(2 * TIMEOUT_S, ACTIVE, "run before")
    node.hears_for(10 * TIMEOUT_S, ACTIVE, "we")
    assert node.machine.state is PASSIVE


def test_runs_that_replace_each_other_are_no_rival() -> None:
    node = Node()
    for run in range(20):
        node.hears_for(TIMEOUT_S, ACTIVE, f"run {run}")
    assert node.machine.state is PASSIVE


def test_messages_forged_in_many_runs_prove_no_rival() -> None:
    """The peer is frozen. Forged messages repeat whom it heard last, an earlier run of this node, each in the
    name of a new run.
    """
    node = Node()
    for number in range(40):
        node.hears(ACTIVE, "run before", run=f"forged {number}")
        node.now += 0.5
    assert node.machine.state is PASSIVE


def test_what_was_held_up_on_its_way_proves_nothing() -> None:
    """The words of before and after a cut are far apart, and both may be as old."""
    node = Node()
    node.hears_for(1.0, ACTIVE, "run before")
    node.now += 10 * TIMEOUT_S
    node.hears_for(2 * TIMEOUT_S, ACTIVE, "run before")
    assert node.machine.state is PASSIVE


def test_a_node_that_leaves_is_not_ended_otherwise() -> None:
    node = Node()
    node.hears(BACKUP, "we")
    node.machine.step(Leave(), node.now)
    node.hears_for(10 * TIMEOUT_S, PASSIVE, "another")
    assert node.machine.state is PASSIVE


def test_a_node_tells_whom_it_hears_and_for_how_long() -> None:
    node = Node()
    said = [output.message.hears for output in node.machine.step(Tick(), 0.0) if isinstance(output, Publish)]
    assert said == [""]
    [word] = [output.message for output in node.hears(BACKUP, "") if isinstance(output, Publish)]
    assert word.hears == "they"
    for now, hears in ((1.0, "they"), (1.9, "they"), (2.0, ""), (30.0, "")):
        [word] = [
            output.message for output in node.machine.step(Subscription(), now) if isinstance(output, Publish)
        ]
        assert word.hears == hears, now


def test_a_pair_that_loses_and_replaces_its_nodes_again_and_again_has_no_rivals() -> None:
    wire = Wire()
    wire.start(wire.primary, wire.backup)
    wire.run_for(5.0)
    for turn in range(12):
        node = wire.nodes[turn % 2]
        wire.kill(node)
        wire.run_for(0.5 * (turn % 7))
        wire.start(node)
        wire.run_for(0.7 * (turn % 5))
    wire.run_for(30.0)
    assert wire.primary.error is None
    assert wire.backup.error is None
    assert {wire.primary.state, wire.backup.state} == {ACTIVE, PASSIVE}
