"""The Binary Star machine where there is an arbiter: it serves with the majority of three, or not at all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bstar.errors import PeerMismatchError
from bstar.star import (
    Activated,
    ArbiterAnswer,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    Deactivated,
    Fatal,
    Handover,
    Leave,
    LinkLost,
    Output,
    PeerMessage,
    PeerRefused,
    PeerRejected,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Tick,
    Vote,
)
from bstar.star.quorum import DRIFT_MAX
from bstar.wire.arbiter import Answer, Question
from bstar.wire.peer import PeerState, decode

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
TIMEOUT_S = 2.0
SPAN_S = TIMEOUT_S * (1 - DRIFT_MAX)
PLACE = "tcp://arbiter:5010"


def machine_of(role: Role = Role.PRIMARY, **changes: Any) -> StarMachine:
    fields: dict[str, Any] = {"pair": "test", "role": role, "arbiter": PLACE} | changes
    return StarMachine(StarSettings(**fields), node="we", epoch=0, now=0.0)


class Peer:
    """The other node as a script: every message has the next number."""

    def __init__(self, role: Role = Role.BACKUP, node: str = "they") -> None:
        self.role = role
        self.node = node
        self.seq = 0

    def says(self, state: State, **changes: Any) -> PeerState:
        self.seq += 1
        fields: dict[str, Any] = {
            "state": int(state),
            "pair": "test",
            "role": self.role.value,
            "node": self.node,
            "seq": self.seq,
            "epoch": 0,
            "heartbeat_ms": 1000,
            "timeout_ms": 2000,
            "arbiter": PLACE,
            "claims": state is ACTIVE,
        }
        return PeerState(**(fields | changes))


def published(outputs: list[Output]) -> list[PeerState]:
    return [output.message for output in outputs if isinstance(output, Publish)]


def asked(outputs: list[Output]) -> list[Question]:
    return [output.question for output in outputs if isinstance(output, AskArbiter)]


def kinds(outputs: list[Output]) -> list[type]:
    return [type(output) for output in outputs]


def granted(question: Question) -> Answer:
    return Answer("we", question.number, is_granted=True, holder=question.role, free_in_ms=2000)


def refused(question: Question, free_in_ms: int = 500) -> Answer:
    return Answer("we", question.number, holder="backup", free_in_ms=free_in_ms)


def beat(machine: StarMachine, until: float) -> list[Output]:
    """Let the machine live, unanswered."""
    outputs: list[Output] = []
    while (deadline := machine.next_deadline()) is not None and deadline <= until:
        outputs += machine.step(Tick(), deadline)
    return outputs


def standing_by(role: Role = Role.BACKUP) -> tuple[StarMachine, Peer]:
    """Passive; the peer serves and was heard last at 10.0."""
    machine, peer = machine_of(role), Peer(role.peer)
    beat(machine, 9.9)
    machine.step(PeerMessage(peer.says(ACTIVE, epoch=1 + (role is Role.PRIMARY))), 10.0)
    assert machine.state is PASSIVE
    return machine, peer


def serving() -> tuple[StarMachine, Peer]:
    """The primary serves since 10.0 with a lease of its peer, asked for at 10.0."""
    machine, peer = machine_of(), Peer()
    beat(machine, 9.9)
    machine.publisher.due_at = 10.5
    [claim] = published(machine.step(PeerMessage(peer.says(BACKUP)), 10.0))
    machine.step(PeerMessage(peer.says(BACKUP, granted=claim.seq, granted_to="we")), 10.0)
    assert machine.is_active
    return machine, peer


# --- to begin -----------------------------------------------------------------------------------------------


def test_a_reason_to_serve_is_a_claim_until_a_voter_grants_it() -> None:
    machine, peer = machine_of(), Peer()
    machine.step(Tick(), 0.0)
    outputs = machine.step(PeerMessage(peer.says(BACKUP)), 0.1)
    assert not machine.is_active
    assert machine.serve_until == -math.inf
    assert kinds(outputs)[-3:] == [Claimed, Publish, AskArbiter]
    [message], [question] = published(outputs), asked(outputs)
    assert message.claims
    assert question == Question("claim", "test", "primary", "we", message.seq or 0, 2000)


@pytest.mark.parametrize("voter", ["peer", "arbiter"])
def test_either_voter_is_enough(voter: str) -> None:
    machine, peer = machine_of(), Peer()
    [message] = published(machine.step(PeerMessage(peer.says(BACKUP)), 0.1))
    if voter == "peer":
        outputs = machine.step(PeerMessage(peer.says(BACKUP, granted=message.seq, granted_to="we")), 0.2)
    else:
        outputs = machine.step(ArbiterAnswer(Answer("we", message.seq or 0, is_granted=True)), 0.2)
    assert machine.is_active
    assert Activated in kinds(outputs)
    assert machine.serve_until == pytest.approx(0.1 + SPAN_S), "from when it asked"


@pytest.mark.parametrize("grant", [{"granted_to": "another run"}, {"granted": 99}])
def test_a_grant_to_somebody_else_or_for_nothing_we_said_is_none(grant: dict[str, Any]) -> None:
    machine, peer = machine_of(), Peer()
    [message] = published(machine.step(PeerMessage(peer.says(BACKUP)), 0.1))
    machine.step(
        PeerMessage(peer.says(BACKUP, **({"granted": message.seq, "granted_to": "we"} | grant))), 0.2
    )
    assert not machine.is_active


def test_a_grant_of_a_peer_that_says_it_serves_is_none() -> None:
    """It would serve beside us, and its ballot is its own: the word is forged."""
    machine, peer = machine_of(), Peer()
    [message] = published(machine.step(PeerMessage(peer.says(BACKUP)), 0.1))
    forged = peer.says(ACTIVE, epoch=2, claims=False, granted=message.seq, granted_to="we")
    outputs = machine.step(PeerMessage(forged), 0.2)
    assert Activated not in kinds(outputs)
    assert not machine.is_active


def test_an_answer_to_another_run_is_none() -> None:
    machine, peer = machine_of(), Peer()
    [message] = published(machine.step(PeerMessage(peer.says(BACKUP)), 0.1))
    assert machine.step(ArbiterAnswer(Answer("another run", message.seq or 0, is_granted=True)), 0.2) == []
    assert not machine.is_active


def test_a_primary_alone_waits_until_its_ballot_is_its_own_and_asks_the_arbiter() -> None:
    machine = machine_of()
    beat(machine, 1.9)
    assert machine.step(Vote(), 1.99) == []
    outputs = machine.step(Vote(), 2.0)
    assert Claimed in kinds(outputs)
    machine.step(ArbiterAnswer(granted(asked(outputs)[0])), 2.01)
    assert machine.is_active


def test_a_vote_while_our_ballot_is_the_peers_counts_when_it_is_free() -> None:
    """The peer's process was found gone; its lease on our ballot is not."""
    machine, _ = standing_by()
    machine.step(LinkLost(), 10.1)
    machine.step(PeerRefused(), 10.2)
    assert machine.step(Vote(), 10.3) == []
    assert machine.retry_after_s(10.3) == pytest.approx(1.7)
    assert asked(beat(machine, 11.9))[-1].verb == "look"
    assert machine.next_deadline() == 12.0
    outputs = machine.step(Tick(), 12.0)
    assert Claimed in kinds(outputs)
    machine.step(ArbiterAnswer(granted(asked(outputs)[-1])), 12.01)
    assert machine.is_active


def test_a_refused_connection_shortens_no_promise() -> None:
    machine, _ = standing_by()
    machine.step(LinkLost(), 10.1)
    machine.step(PeerRefused(), 10.2)
    machine.step(Vote(), 10.2)
    beat(machine, 11.99)
    assert machine.quorum is not None
    assert not machine.quorum.is_claiming


def test_a_claim_that_nobody_grants_ends_with_its_vote() -> None:
    machine, _ = standing_by()
    beat(machine, 12.0)
    machine.step(Vote(), 12.0)
    machine.step(Vote(), 12.5)
    outputs = beat(machine, 14.49)
    assert {question.verb for question in asked(outputs)} == {"claim"}
    outputs = beat(machine, 14.5)
    assert asked(outputs)[-1].verb == "release"
    assert not published(outputs)[-1].claims
    assert asked(beat(machine, 16.0))[-1].verb == "look"


def test_a_refused_claim_is_repeated_when_the_arbiter_said_that_it_may_be_free() -> None:
    machine, _ = standing_by()
    beat(machine, 12.0)
    [question] = asked(machine.step(Vote(), 12.0))
    machine.step(ArbiterAnswer(refused(question, 300)), 12.1)
    assert machine.retry_after_s(12.1) == pytest.approx(0.32)
    assert machine.next_deadline() == pytest.approx(12.4)
    [again] = asked(machine.step(Tick(), 12.4))
    assert again.verb == "claim"
    assert again.number > question.number


def test_many_votes_are_one_claim() -> None:
    machine, _ = standing_by()
    beat(machine, 12.0)
    machine.step(Vote(), 12.0)
    assert [machine.step(Vote(), 12.0 + number / 1000) for number in range(100)] == [[]] * 100


# --- to go on -----------------------------------------------------------------------------------------------


def test_heartbeats_that_are_granted_extend_the_majority() -> None:
    machine, peer = serving()
    [message] = published(beat(machine, 11.0))
    machine.step(PeerMessage(peer.says(PASSIVE, granted=message.seq, granted_to="we")), 11.2)
    assert machine.serve_until == pytest.approx((machine.publisher.published_at) + SPAN_S)


def test_without_peer_and_arbiter_the_majority_runs_out_and_the_node_stops_and_asks() -> None:
    machine, _ = serving()
    assert machine.serve_until == pytest.approx(10.0 + SPAN_S)
    outputs = beat(machine, 10.0 + SPAN_S)
    assert machine.state is PASSIVE
    assert machine.counters.majorities_lost == 1
    at = kinds(outputs).index(Deactivated)
    last = published(outputs[at:])[-1]
    assert (last.state, last.claims, bool(last.asks)) == (PASSIVE, False, True)
    assert asked(outputs[at:])[-1].verb == "release"


@pytest.mark.parametrize("first", [Vote, Tick, PeerMessage])
def test_whatever_comes_first_finds_that_the_majority_has_run_out(
    first: type[Vote | Tick | PeerMessage],
) -> None:
    machine, peer = serving()
    now = 10.0 + SPAN_S
    machine.publisher.published_at = now - 0.1  # it was not away
    machine.step(PeerMessage(peer.says(PASSIVE)) if first is PeerMessage else first(), now)  # type: ignore[call-arg]
    assert not machine.is_active
    assert machine.serve_until == -math.inf


def test_a_majority_once_lost_is_not_brought_back_by_a_late_grant() -> None:
    machine, peer = serving()
    [message] = published(beat(machine, 11.0))
    beat(machine, 10.0 + SPAN_S)
    machine.step(PeerMessage(peer.says(PASSIVE, granted=message.seq, granted_to="we")), 12.0)
    machine.step(ArbiterAnswer(Answer("we", message.seq or 0, is_granted=True)), 12.0)
    assert not machine.is_active


def test_a_node_that_was_away_gives_its_claim_up() -> None:
    machine, _ = serving()
    outputs = machine.step(Stall(5.0), 15.0)
    assert machine.state is PASSIVE
    assert machine.counters.stalls == 1
    assert asked(outputs)[-1].verb == "release"


# --- to grant -----------------------------------------------------------------------------------------------


def test_a_claim_of_the_peer_is_answered_at_once() -> None:
    machine, peer = standing_by()
    claim = peer.says(ACTIVE, epoch=1)
    [answer] = published(machine.step(PeerMessage(claim), 10.5))
    assert (answer.granted, answer.granted_to) == (claim.seq, "they")


def test_no_grant_is_told_when_the_promise_is_over() -> None:
    machine, _ = standing_by()
    assert published(beat(machine, 11.9))[-1].granted
    assert not published(beat(machine, 13.5))[-1].granted


def test_an_active_node_grants_nothing() -> None:
    machine, peer = serving()
    machine.step(PeerMessage(peer.says(PASSIVE, claims=True)), 10.1)
    assert not published(beat(machine, 11.0))[-1].granted
    assert machine.is_active


def test_of_two_that_claim_the_backup_leaves_its_ballot_to_the_primary() -> None:
    for role in Role:
        machine, peer = standing_by(role)
        beat(machine, 12.0)
        machine.step(Vote(), 12.0)
        claim = peer.says(PASSIVE, epoch=2, claims=True)
        outputs = published(machine.step(PeerMessage(claim), 12.1))
        assert machine.quorum is not None
        assert machine.quorum.is_claiming is (role is Role.PRIMARY)
        if role is Role.BACKUP:
            assert outputs[-1].granted == claim.seq


def test_a_claim_ends_when_the_peer_turns_out_to_serve() -> None:
    machine, peer = standing_by(Role.PRIMARY)
    beat(machine, 12.0)
    machine.step(Vote(), 12.0)
    claim = peer.says(ACTIVE, epoch=2)
    [answer] = published(machine.step(PeerMessage(claim), 12.1))
    assert answer.granted == claim.seq
    assert machine.quorum is not None
    assert not machine.quorum.is_claiming


def test_the_role_that_is_handed_over_brings_the_ballot_with_it() -> None:
    machine, peer = serving()
    machine.step(PeerMessage(peer.says(PASSIVE)), 10.1)
    outputs = machine.step(Handover(), 10.2)
    [message] = published(outputs)
    assert (message.released, message.claims) == (True, False)
    assert asked(outputs)[-1].verb == "release"
    other = machine_of(Role.BACKUP)
    # And whoever takes it over claims at once, although the ballot was promised to us a moment ago.
    beat(other, 9.9)
    us = Peer(Role.PRIMARY)
    other.step(PeerMessage(us.says(ACTIVE, epoch=1)), 10.1)
    outputs = other.step(PeerMessage(us.says(PASSIVE, epoch=1, released=True)), 10.2)
    assert Claimed in kinds(outputs)


def test_a_leaving_node_still_grants_what_it_gave_away() -> None:
    machine, peer = serving()
    machine.step(PeerMessage(peer.says(PASSIVE)), 10.1)
    machine.step(Leave(), 10.2)
    claim = peer.says(PASSIVE, claims=True)
    assert published(machine.step(PeerMessage(claim), 10.3))[-1].granted == claim.seq
    assert not machine.has_left(10.3)


# --- two that fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(PLACE, ""), ("", PLACE), (PLACE, "tcp://another:5010")])
def test_nodes_with_different_arbiters_are_no_pair(ours: str, theirs: str) -> None:
    machine = machine_of(arbiter=ours)
    outputs = machine.step(PeerMessage(Peer().says(BACKUP, arbiter=theirs)), 0.1)
    assert machine.state is ERROR
    [fatal] = [output for output in outputs if isinstance(output, Fatal)]
    assert isinstance(fatal.error, PeerMismatchError)
    assert "endpoints.arbiter" in str(fatal.error)


def test_a_published_peer_knows_no_leases_and_is_refused() -> None:
    machine = machine_of()
    outputs = machine.step(PeerMessage(decode([b"2"])), 0.1)
    assert machine.state is ERROR
    [rejected] = [output for output in outputs if isinstance(output, PeerRejected)]
    assert "leases" in rejected.text


def test_a_published_stranger_does_not_disturb_a_node_that_serves() -> None:
    machine, _ = serving()
    machine.step(PeerMessage(decode([b"3"])), 10.1)
    assert machine.is_active


# --- the arbiter's health -----------------------------------------------------------------------------------


def test_an_arbiter_that_never_answers_is_reported_once_and_nothing_else_happens() -> None:
    machine, _ = standing_by()
    outputs = beat(machine, 11.0)
    assert ArbiterLost not in kinds(outputs), "it was reported long before"
    fresh = machine_of()
    assert kinds(beat(fresh, 9.0)).count(ArbiterLost) == 1


def test_an_arbiter_that_answers_again_is_reported() -> None:
    machine = machine_of()
    beat(machine, 5.0)
    assert ArbiterSeen in kinds(machine.step(ArbiterAnswer(Answer("we", 1)), 5.1))
    assert ArbiterSeen not in kinds(machine.step(ArbiterAnswer(Answer("we", 2)), 5.2))


def test_a_machine_without_an_arbiter_asks_nobody_and_serves_without_end() -> None:
    machine = machine_of(arbiter="")
    outputs = machine.step(PeerMessage(Peer().says(BACKUP, arbiter="", claims=False)), 0.1)
    assert machine.is_active
    assert machine.serve_until == math.inf
    assert not asked(outputs)
    assert machine.step(ArbiterAnswer(Answer("we", 1, is_granted=True)), 0.2) == []
