"""Ballots and leases: what a voter promises, what a holder may rely on, and that the one ends before the
other."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.star.arbiter import ArbiterMachine, ArbiterOutput, BallotGiven, BallotReturned, Reply, TableFull
from bstar.star.quorum import DRIFT_MAX, Quorum
from bstar.wire.arbiter import Answer, Question, Verb
from bstar.wire.peer import PeerState

TTL_S = 2.0
SPAN_S = TTL_S * (1 - DRIFT_MAX)


def settled(now: float = 0.0) -> Quorum:
    """A node's part, long after its start."""
    return Quorum(TTL_S, TTL_S, now=now - TTL_S)


# --- the node's own ballot ----------------------------------------------------------------------------------


def test_a_node_that_has_just_started_takes_its_ballot_for_its_peers_for_one_ttl() -> None:
    quorum = Quorum(TTL_S, TTL_S, now=10.0)
    assert not quorum.claim(10.0 + TTL_S - 0.001)
    assert quorum.claim(10.0 + TTL_S)


def test_a_ballot_that_is_the_peers_is_not_ours_before_it_runs_out() -> None:
    quorum = settled()
    assert quorum.hear_claim("they", 7, TTL_S, 5.0)
    assert (quorum.granted, quorum.granted_to) == (7, "they")
    assert not quorum.claim(5.0 + TTL_S - 0.001)
    assert quorum.claim(5.0 + TTL_S)


def test_a_ballot_that_is_ours_is_given_to_nobody() -> None:
    quorum = settled()
    assert quorum.claim(0.0)
    assert not quorum.hear_claim("they", 7, TTL_S, 5.0)
    assert (quorum.granted, quorum.granted_to) == (0, "")
    quorum.release()
    assert quorum.hear_claim("they", 8, TTL_S, 5.1)


def test_a_peer_that_claims_nothing_gives_our_ballot_back_at_once() -> None:
    quorum = settled()
    quorum.hear_claim("they", 7, TTL_S, 5.0)
    quorum.hear_no_claim()
    assert quorum.claim(5.0)


def test_the_word_of_another_run_does_not_end_a_promise() -> None:
    """Somebody may speak in the peer's name; the run that has our ballot serves on it."""
    quorum = settled()
    quorum.hear_claim("they", 7, TTL_S, 5.0)
    for word, is_free in (("another", False), ("they", True)):
        said = PeerState(3, "test", "backup", word, 8, 1, heartbeat_ms=1000, timeout_ms=2000, claims=False)
        assert not quorum.hear_ballot(said, "we", 5.1)
        assert quorum.claim(5.1) is is_free


def test_time_in_which_we_were_away_is_added_to_a_promise_but_not_to_one_long_over() -> None:
    quorum = settled()
    quorum.hear_claim("they", 7, TTL_S, 5.0)
    quorum.was_away(0.5, 7.1)
    assert not quorum.claim(5.0 + TTL_S + 0.5 - 0.001)
    assert quorum.claim(5.0 + TTL_S + 0.5)
    quorum = settled()
    quorum.hear_claim("they", 7, TTL_S, 5.0)
    quorum.was_away(0.5, 100.0)
    assert quorum.claim(100.0)


def test_a_promise_ends_although_the_node_pauses_again_and_again() -> None:
    """A backup on a busy machine, whose primary had just been killed, did not take over for a minute."""
    quorum = settled()
    quorum.hear_claim("they", 7, TTL_S, 5.0)
    now = 5.0
    while not quorum.claim(now):
        now += 1.0
        quorum.was_away(0.5, now)
        assert now < 5.0 + 3 * TTL_S


# --- leases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("voter", ["peer", "arbiter"])
def test_a_lease_counts_from_the_asking_and_not_from_the_answer(voter: str) -> None:
    quorum = settled()
    quorum.claim(0.0)
    quorum.sent(1, 1.0)
    quorum.hear_grant(getattr(quorum, voter), 1, TTL_S)
    assert quorum.until == pytest.approx(1.0 + SPAN_S)


def test_the_longer_of_both_leases_counts_and_an_old_grant_shortens_nothing() -> None:
    quorum = settled()
    quorum.claim(0.0)
    for number in (1, 2, 3):
        quorum.sent(number, float(number))
    quorum.hear_grant(quorum.peer, 3, TTL_S)
    quorum.hear_grant(quorum.peer, 1, TTL_S)
    quorum.hear_grant(quorum.arbiter, 2, TTL_S)
    assert quorum.until == pytest.approx(3.0 + SPAN_S)


def test_a_grant_of_an_early_question_counts_from_then() -> None:
    quorum = settled()
    quorum.claim(0.0)
    quorum.sent(1, 1.0)
    quorum.sent(2, 1.5)
    quorum.hear_grant(quorum.arbiter, 1, TTL_S)
    assert quorum.until == pytest.approx(1.0 + SPAN_S)


def test_a_grant_of_an_earlier_claim_or_of_a_number_never_sent_is_worth_nothing() -> None:
    quorum = settled()
    quorum.claim(0.0)
    quorum.sent(1, 1.0)
    quorum.release()
    quorum.claim(1.1)
    for number in (0, 1, 2):
        quorum.hear_grant(quorum.arbiter, number, TTL_S)
    assert quorum.until == -math.inf


def test_a_message_that_was_no_claim_cannot_be_granted() -> None:
    quorum = settled()
    quorum.sent(1, 1.0)
    quorum.claim(1.0)
    quorum.hear_grant(quorum.peer, 1, TTL_S)
    assert quorum.until == -math.inf


def test_whoever_releases_has_nothing_left() -> None:
    quorum = settled()
    quorum.claim(0.0)
    quorum.sent(1, 1.0)
    quorum.hear_grant(quorum.peer, 1, TTL_S)
    quorum.release()
    assert quorum.until == -math.inf
    assert quorum.is_release_due
    # Nor does a grant that comes late bring a lease back, in which monitors would see one.
    quorum.hear_grant(quorum.arbiter, 1, TTL_S)
    assert quorum.peer.until == quorum.arbiter.until == -math.inf


def test_questions_without_end_are_not_all_remembered() -> None:
    quorum = settled()
    quorum.claim(0.0)
    for number in range(10_000):
        quorum.sent(number, 1.0)
    assert len(quorum._sent) <= 256
    quorum.sent(10_000, 1.0 + 2 * TTL_S)
    assert list(quorum._sent) == [10_000]


@pytest.mark.parametrize("free_in_s", [0.0, 0.3])
def test_a_refused_claim_is_asked_again_when_the_ballot_may_be_free(free_in_s: float) -> None:
    quorum = settled()
    quorum.want(0.0)
    quorum.claim(0.0)
    quorum.hear_refusal(free_in_s, 0.1)
    assert 0.1 + free_in_s <= quorum.next_deadline() <= 0.11 + free_in_s
    assert quorum.retry_after_s(0.1, 1.0) >= free_in_s


def test_clients_are_told_to_ask_soon_only_while_an_answer_may_come_soon() -> None:
    quorum = settled()
    quorum.want(0.0)
    quorum.claim(0.0)
    assert quorum.retry_after_s(0.1, 1.0) < 0.1
    assert quorum.retry_after_s(0.5, 1.0) == 1.0


@given(
    rate=st.floats(1 / (1 + DRIFT_MAX * 0.99), 1 + DRIFT_MAX * 0.99),
    asked_at=st.floats(0, 1e6),
    delay_s=st.floats(0, 100),
    offset=st.floats(-1e6, 1e6),
)
def test_a_lease_ends_before_the_promise_behind_it_whatever_clocks_and_delays_are(
    rate: float, asked_at: float, delay_s: float, offset: float
) -> None:
    """``rate``: how fast the voter's clock runs beside the holder's."""
    holder = settled(asked_at)
    holder.claim(asked_at)
    holder.sent(1, asked_at)
    voter = Quorum(TTL_S, TTL_S, now=-1e9)
    voter.hear_claim("we", 1, TTL_S, offset + (asked_at + delay_s) * rate)
    holder.hear_grant(holder.peer, 1, TTL_S)
    promise_ends = (voter.peers_until - offset) / rate
    assert holder.until <= promise_ends + 1e-6


# --- the arbiter --------------------------------------------------------------------------------------------


class Node:
    """Asks with rising numbers."""

    def __init__(self, arbiter: ArbiterMachine, role: str, node: str = "", pair: str = "p") -> None:
        self.arbiter = arbiter
        self.role = role
        self.node = node or role
        self.pair = pair
        self.number = 0
        self.events: list[ArbiterOutput] = []

    def question(self, verb: Verb) -> Question:
        self.number += 1
        return Question(verb, self.pair, self.role, self.node, self.number, round(TTL_S * 1000))  # type: ignore[arg-type]

    def asks(self, verb: Verb, now: float) -> Answer:
        outputs = self.arbiter.receive(self.question(verb), now)
        self.events = outputs[:-1]
        assert isinstance(outputs[-1], Reply)
        assert outputs[-1].answer.number == self.number
        return outputs[-1].answer


def arbiter(now: float = 0.0) -> tuple[ArbiterMachine, Node, Node]:
    """One that started long ago, and the nodes of a pair."""
    machine = ArbiterMachine(now=now - TTL_S)
    return machine, Node(machine, "primary"), Node(machine, "backup")


def test_a_new_arbiter_grants_nothing_for_one_ttl() -> None:
    machine = ArbiterMachine(now=100.0)
    node = Node(machine, "primary")
    answer = node.asks("claim", 101.5)
    assert not answer.is_granted
    assert answer.free_in_ms == 500
    assert node.asks("claim", 102.0).is_granted


def test_a_ballot_is_one_nodes_until_it_falls_silent_for_a_ttl() -> None:
    _, primary, backup = arbiter()
    assert primary.asks("claim", 0.0).is_granted
    assert primary.events == [BallotGiven("p", "primary", "primary")]
    assert primary.asks("claim", 1.0).is_granted
    assert primary.events == []
    refused = backup.asks("claim", 2.999)
    assert (refused.is_granted, refused.holder, refused.free_in_ms) == (False, "primary", 1)
    assert backup.asks("claim", 3.0).is_granted
    assert backup.events == [
        BallotReturned("p", "primary", "primary", has_expired=True),
        BallotGiven("p", "backup", "backup"),
    ]
    assert not primary.asks("claim", 3.1).is_granted


def test_a_released_ballot_is_free_at_once() -> None:
    _, primary, backup = arbiter()
    primary.asks("claim", 0.0)
    primary.asks("release", 0.1)
    assert primary.events == [BallotReturned("p", "primary", "primary", has_expired=False)]
    assert backup.asks("claim", 0.1).is_granted


def test_only_the_holder_releases() -> None:
    _, primary, backup = arbiter()
    primary.asks("claim", 0.0)
    backup.asks("release", 0.1)
    assert not backup.asks("claim", 0.2).is_granted


def test_a_look_changes_nothing() -> None:
    machine, primary, backup = arbiter()
    assert backup.asks("look", 0.0) == Answer("backup", 1)
    assert machine.pairs == 0
    primary.asks("claim", 0.0)
    answer = backup.asks("look", 1.0)
    assert (answer.holder, answer.free_in_ms) == ("primary", 1000)


def test_another_run_of_the_same_role_has_to_wait_like_anybody() -> None:
    machine, primary, _ = arbiter()
    primary.asks("claim", 0.0)
    again = Node(machine, "primary", "primary-2")
    assert not again.asks("claim", 1.0).is_granted
    assert again.asks("claim", 2.0).is_granted


def test_a_release_that_was_overtaken_by_a_claim_frees_nothing() -> None:
    machine, primary, backup = arbiter()
    primary.asks("claim", 0.0)
    late = primary.question("release")
    assert primary.asks("claim", 0.1).is_granted
    assert machine.receive(late, 0.2) == []
    assert not backup.asks("claim", 0.3).is_granted


def test_a_claim_that_was_overtaken_by_its_release_takes_nothing() -> None:
    machine, primary, backup = arbiter()
    primary.asks("claim", 0.0)
    late = primary.question("claim")
    primary.asks("release", 0.1)
    assert machine.receive(late, 0.2) == []
    assert backup.asks("claim", 0.3).is_granted


def test_pairs_do_not_disturb_each_other() -> None:
    machine, primary, _ = arbiter()
    other = Node(machine, "backup", pair="q")
    assert primary.asks("claim", 0.0).is_granted
    assert other.asks("claim", 0.0).is_granted


def test_the_table_has_room_again_when_ballots_have_run_out() -> None:
    machine = ArbiterMachine(now=-TTL_S, pairs_max=2)
    nodes = [Node(machine, "primary", pair=f"p{number}") for number in range(3)]
    assert [node.asks("claim", 0.0).is_granted for node in nodes] == [True, True, False]
    assert nodes[2].events == [TableFull("p2")]
    assert not nodes[2].asks("claim", 0.1).is_granted
    assert nodes[2].events == [], "said once"
    deadline = machine.next_deadline()
    while deadline is not None:
        machine.handle_timer(deadline)
        deadline = machine.next_deadline()
    assert machine.pairs == 0
    assert nodes[2].asks("claim", 10.0).is_granted


def test_no_question_shortens_what_was_promised() -> None:
    machine, primary, backup = arbiter()
    primary.asks("claim", 0.0)
    machine.receive(msgspec.structs.replace(primary.question("claim"), ttl_ms=100), 0.1)
    assert not backup.asks("claim", TTL_S - 0.1).is_granted


def test_a_claim_that_comes_after_its_ballot_ran_out_is_known_to_be_old() -> None:
    machine, primary, _ = arbiter()
    late = primary.question("claim")
    primary.asks("claim", 0.0)
    machine.handle_timer(TTL_S + 0.5)
    assert machine.receive(late, TTL_S + 0.6) == []


def test_a_pause_of_the_arbiter_is_added_to_what_it_promised() -> None:
    machine, primary, backup = arbiter()
    primary.asks("claim", 0.0)
    machine.stalled(1.5, 1.9)
    assert not backup.asks("claim", 3.4).is_granted
    assert backup.asks("claim", 3.5).is_granted


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1]), st.sampled_from(["claim", "release", "look"]), st.floats(0, 1)),
        max_size=60,
    )
)
def test_two_never_hold_the_ballot_whatever_they_ask(steps: list[tuple[int, Verb, float]]) -> None:
    machine, *nodes = arbiter()
    now, until = 0.0, [-1.0, -1.0]
    for index, verb, pause_s in steps:
        now += pause_s
        answer = nodes[index].asks(verb, now)
        if verb == "release":
            until[index] = -1.0
        if answer.is_granted:
            assert until[1 - index] <= now
            until[index] = now + TTL_S
    assert machine.pairs <= 1
