"""The adaptive failure detector: the timeout follows how late messages come, and both nodes know it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bstar.errors import ConfigurationError
from bstar.star import (
    ArbiterAnswer,
    AskArbiter,
    LinkLost,
    PeerMessage,
    PeerRefused,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Subscription,
    Tick,
    TimeoutAdapted,
    Vote,
)
from bstar.star.arbiter import ArbiterMachine, Reply
from bstar.star.failure_detector import (
    CAUTION_S,
    MARGIN_S_MAX,
    SLOT_S,
    SLOTS_MAX,
    START_S,
    UNACKNOWLEDGED_MAX,
    Detector,
    Lateness,
)
from bstar.star.quorum import DRIFT_MAX
from bstar.wire.arbiter import Answer, Question
from bstar.wire.peer import PeerState
from support.starwire import Node, Wire

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
HEARTBEAT_S, MIN_S, MAX_S = 0.1, 0.3, 2.0


def settings_of(role: Role, **more: Any) -> StarSettings:
    fields: dict[str, Any] = {
        "pair": "test",
        "heartbeat_interval_s": HEARTBEAT_S,
        "failover_timeout_s": MIN_S,
        "failover_timeout_max_s": MAX_S,
    }
    return StarSettings(role=role, **(fields | more))


def adaptive_wire(**settings: Any) -> Wire:
    return Wire(settings_of(Role.PRIMARY, **settings), settings_of(Role.BACKUP, **settings))


def machine_of(node: Node) -> StarMachine:
    assert node.machine is not None
    return node.machine


def timeouts_of(wire: Wire) -> list[float]:
    return [machine_of(node).failover_timeout_s for node in wire.nodes]


def settled() -> Wire:
    """A pair that has heard each other for long, without a late message."""
    wire = adaptive_wire()
    wire.start(*wire.nodes)
    wire.run_for(CAUTION_S + 1.0)
    assert (wire.primary.state, wire.backup.state) == (ACTIVE, PASSIVE)
    return wire


def pause(wire: Wire, node: Node, for_s: float) -> None:
    wire.freeze(node)
    wire.run_for(for_s)
    wire.thaw(node)
    wire.run_for(0.01)


# --- how long ---------------------------------------------------------------------------------------------


def lateness(*silences_s: float) -> Lateness:
    """What is known of a peer, long after its start."""
    late = Lateness(HEARTBEAT_S, -CAUTION_S)
    for silence_s in silences_s:
        late.observe(silence_s, 0.0)
    return late


def test_messages_in_time_need_no_more_than_the_interval() -> None:
    assert lateness(0.1, 0.05, 0.1).needed_s(0.0) == pytest.approx(HEARTBEAT_S)


def test_the_latest_message_decides_and_twice_its_lateness_is_the_margin() -> None:
    assert lateness(0.1, 0.15, 0.12).needed_s(0.0) == pytest.approx(0.1 + 0.05 + 2 * 0.05)


def test_the_margin_is_bounded() -> None:
    assert lateness(1.1).needed_s(0.0) == pytest.approx(0.1 + 1.0 + MARGIN_S_MAX)


def test_a_late_message_is_forgotten_after_five_minutes() -> None:
    late = lateness(0.4)
    until = SLOT_S * SLOTS_MAX
    for second in range(int(until)):
        late.observe(HEARTBEAT_S, second + 0.5)
        assert late.worst_s == pytest.approx(0.3)
    late.observe(HEARTBEAT_S, until)
    assert late.worst_s == 0.0


def test_the_window_is_bounded() -> None:
    late = Lateness(HEARTBEAT_S, 0.0)
    for second in range(100_000):
        late.observe(HEARTBEAT_S, float(second))
    assert len(late._slots) <= SLOTS_MAX


def test_little_is_known_of_a_new_run() -> None:
    late = Lateness(HEARTBEAT_S, 0.0)
    late.observe(HEARTBEAT_S, 0.0)
    assert late.needed_s(CAUTION_S - 0.1) == START_S
    assert late.needed_s(CAUTION_S) == pytest.approx(HEARTBEAT_S)
    late.begin(20.0)
    assert late.needed_s(20.0 + CAUTION_S - 0.1) == START_S


# --- both know ----------------------------------------------------------------------------------------------


def test_a_quiet_pair_has_the_minimum_on_both_nodes() -> None:
    assert timeouts_of(settled()) == [MIN_S, MIN_S]


def test_a_node_that_has_not_been_heard_waits_for_the_maximum_and_steps_down_after_the_minimum() -> None:
    """The peer may be an earlier run's, with an earlier timeout of any length; or its own may be fixed."""
    machine = StarMachine(settings_of(Role.PRIMARY), node="we", epoch=0, now=0.0)
    for tick in range(20):
        machine.step(Tick(), tick * HEARTBEAT_S)
    machine.step(Vote(), MAX_S - 0.001)
    assert machine.state is PRIMARY
    machine.step(Vote(), MAX_S)
    assert machine.state is ACTIVE
    assert machine.absence_s == MIN_S


@pytest.mark.parametrize("is_active", [True, False])
def test_pauses_that_grow_move_no_role(is_active: bool) -> None:
    """Each is shorter than the timeout that those before have taught. A fixed timeout would move the role."""
    wire = settled()
    node = wire.primary if is_active else wire.backup
    for for_s in (0.15, 0.25, 0.5, 0.9):
        for _ in range(5):
            wire.freeze(node)
            wire.run_for(for_s)
            wire.request(wire.backup)
            wire.thaw(node)
            wire.run_for(0.33)
    assert (wire.primary.state, wire.backup.state) == (ACTIVE, PASSIVE)
    assert machine_of(wire.primary).epoch == 1
    assert min(timeouts_of(wire)) > 0.9


def test_both_nodes_have_one_timeout_whichever_of_them_is_late() -> None:
    wire = settled()
    pause(wire, wire.backup, 0.2)
    wire.run_for(2 * HEARTBEAT_S)
    first, second = timeouts_of(wire)
    assert first == second > MIN_S


def test_a_longer_timeout_is_forgotten_in_minutes() -> None:
    wire = settled()
    pause(wire, wire.primary, 0.2)
    assert machine_of(wire.backup).failover_timeout_s > MIN_S
    wire.run_for(SLOT_S * SLOTS_MAX + SLOT_S)
    assert timeouts_of(wire) == [MIN_S, MIN_S]
    adapted = [output for output in wire.backup.outputs if isinstance(output, TimeoutAdapted)]
    assert adapted[-1].new_s == MIN_S < adapted[-1].old_s


def test_an_outage_longer_than_the_maximum_teaches_nothing() -> None:
    """No timeout would have covered it. The next one must be noticed as fast as the first."""
    wire = settled()
    for _ in range(3):
        pause(wire, wire.primary, MAX_S + 0.5)
        wire.run_for(1.0)
    assert timeouts_of(wire) == [MIN_S, MIN_S]


def test_a_pause_of_this_node_is_not_the_peers_lateness() -> None:
    """What it did not hear meanwhile was on the way."""
    machine = StarMachine(settings_of(Role.PRIMARY), node="we", epoch=0, now=0.0)
    now = 0.0
    for number in range(1, 130):
        now = number * HEARTBEAT_S
        machine.step(PeerMessage(message_of(number, needs_ms=300)), now)
    before_s = machine.peer.detector
    assert before_s is not None
    need_ms = before_s.need_ms
    machine.step(Stall(0.25), now + 0.25)
    machine.step(PeerMessage(message_of(130, needs_ms=300)), now + 0.25)
    assert machine.peer.detector is not None
    assert machine.peer.detector.need_ms == need_ms == 300


def message_of(number: int, state: State = PASSIVE, **fields: Any) -> PeerState:
    """A word of a backup."""
    known: dict[str, Any] = {"pair": "test", "role": "backup", "node": "they", "seq": number, "epoch": 0}
    timing = {"heartbeat_ms": 100, "timeout_ms": 300, "timeout_max_ms": 2000}
    return PeerState(int(state), **(known | timing | fields))


def test_a_peer_with_another_maximum_is_no_peer() -> None:
    machine = StarMachine(settings_of(Role.PRIMARY), node="we", epoch=0, now=0.0)
    machine.step(PeerMessage(message_of(1, BACKUP, timeout_max_ms=3000)), 0.1)
    assert machine.state is ERROR


def test_with_a_peer_whose_timeout_is_fixed_ours_is_as_well() -> None:
    machine = StarMachine(settings_of(Role.PRIMARY), node="we", epoch=0, now=0.0)
    machine.step(PeerMessage(message_of(1, BACKUP, timeout_max_ms=0)), 0.1)
    assert (machine.state, machine.failover_timeout_s, machine.absence_s) == (ACTIVE, MIN_S, MIN_S)
    machine.step(PeerMessage(message_of(2, PASSIVE, timeout_max_ms=0)), 5.0)
    assert (machine.failover_timeout_s, machine.absence_s) == (MIN_S, MIN_S)


def test_a_maximum_below_the_timeout_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"failover_timeout_max_s is 0\.2"):
        settings_of(Role.PRIMARY, failover_timeout_max_s=0.2)


# --- what the peer may believe ------------------------------------------------------------------------------


def detector(need_ms: int = 1000) -> Detector:
    made = Detector(settings_of(Role.PRIMARY), 0.0)
    made.need_ms = need_ms
    return made


def hear(of: Detector, seq: int, *, needs_ms: int = 300, hears: str = "we", is_new_run: bool = False) -> None:
    of.hear(message_of(1, hears=hears, hears_seq=seq, needs_ms=needs_ms), "we", 0.0, is_new_run=is_new_run)


def test_growth_counts_at_once_for_the_peers_silence_and_when_acknowledged_for_our_absence() -> None:
    ours = detector(300)
    ours.publish(1)
    hear(ours, 1)
    assert (ours.silence_ms, ours.absence_ms) == (300, 300)
    ours.need_ms = 700
    assert (ours.silence_ms, ours.absence_ms) == (700, 300)
    assert ours.publish(2) == 700
    assert (ours.silence_ms, ours.absence_ms) == (700, 300)
    hear(ours, 1)
    assert ours.absence_ms == 300
    hear(ours, 2)
    assert (ours.silence_ms, ours.absence_ms) == (700, 700)


def test_shrinking_counts_at_once_for_our_absence_and_when_acknowledged_for_the_peers_silence() -> None:
    ours = detector(700)
    ours.publish(1)
    hear(ours, 1)
    ours.need_ms = 300
    assert ours.silence_ms == 700
    ours.publish(2)
    assert (ours.silence_ms, ours.absence_ms) == (700, 300)
    hear(ours, 2)
    assert (ours.silence_ms, ours.absence_ms) == (300, 300)


def test_an_acknowledgement_of_an_earlier_run_of_ours_or_of_no_message_is_none() -> None:
    ours = detector(700)
    ours.publish(1)
    hear(ours, 1, hears="an earlier run")
    hear(ours, 2)
    assert (ours.silence_ms, ours.absence_ms) == (2000, 300)


def test_a_subscriber_may_be_a_new_run_of_the_peer_that_has_heard_nothing() -> None:
    ours = detector(700)
    ours.publish(1)
    hear(ours, 1)
    assert ours.absence_ms == 700
    ours.doubt()
    assert ours.absence_ms == 300
    hear(ours, 1)
    assert ours.absence_ms == 300
    ours.publish(2)
    hear(ours, 2)
    assert ours.absence_ms == 700


def test_a_run_that_was_not_heard_before_may_be_dead_until_it_acknowledges_a_later_message() -> None:
    """The last word of a run that crashed may be read after the first one of its successor."""
    ours = detector(300)
    ours.publish(1)
    hear(ours, 1)
    ours.publish(2)
    hear(ours, 2, needs_ms=700, is_new_run=True)
    assert (ours.silence_ms, ours.absence_ms) == (700, 300)
    ours.publish(3)
    hear(ours, 2, needs_ms=500)
    assert (ours.silence_ms, ours.absence_ms) == (700, 300)
    hear(ours, 3, needs_ms=500)
    assert (ours.silence_ms, ours.absence_ms) == (500, 500)


def test_the_last_word_of_a_dead_run_ends_no_need_that_its_successor_has_not_acknowledged() -> None:
    ours = detector(1000)
    ours.publish(1)
    hear(ours, 1)
    ours.need_ms = 300
    ours.publish(2)
    hear(ours, 0, is_new_run=True)
    hear(ours, 2)
    assert ours.silence_ms == 1000
    ours.publish(3)
    hear(ours, 3)
    assert ours.silence_ms == 300


def test_a_need_out_of_bounds_is_bounded() -> None:
    ours = detector(300)
    ours.publish(1)
    hear(ours, 1, needs_ms=2**32 - 1)
    assert (ours.silence_ms, ours.absence_ms) == (2000, 2000)
    hear(ours, 1, needs_ms=0)
    assert (ours.silence_ms, ours.absence_ms) == (300, 300)


def test_a_deaf_peer_does_not_grow_the_list() -> None:
    ours = detector()
    for number in range(1, 1_000):
        ours.need_ms = 300 if number % 2 else 2000
        ours.publish(number)
    assert len(ours._published) == UNACKNOWLEDGED_MAX


@pytest.mark.parametrize("seed", range(8))
def test_no_node_counts_its_peer_as_dead_before_the_peer_steps_down(seed: int) -> None:
    """Pauses, kills and cuts of chance: at every moment each node believes that its peer waits no longer than
    the peer does.
    """
    rng = random.Random(seed)
    wire = adaptive_wire()
    wire.start(*wire.nodes)

    def check() -> None:
        for node in wire.nodes:
            other = wire.other(node)
            if node.machine is not None and other.machine is not None:
                assert node.machine.absence_s <= other.machine.peer.pace.silence_s, wire.trace[-20:]

    def befall(node: Node) -> None:
        what = rng.choice(("pause", "pause", "pause", "kill", "cut", "choke"))
        if what == "pause":
            pause(wire, node, rng.choice((0.15, 0.25, 0.5, 1.0, 2.5)))
        elif what == "kill":
            wire.kill(node)
            wire.run_for(rng.choice((0.0, 0.2, 3.0)))
            check()
            wire.start(node)
        elif what == "cut":
            with wire.cut(*rng.choice(([node], list(wire.nodes)))):
                wire.run_for(rng.choice((0.15, 1.0, 5.0)))
                check()
        else:
            wire.set_choked(node, is_choked=True)
            wire.run_for(rng.choice((0.2, 0.5)))
            check()
            wire.set_choked(node, is_choked=False)

    for _ in range(40):
        befall(rng.choice(wire.nodes))
        for _ in range(rng.randrange(30)):
            wire.run_for(rng.random() * 0.05)
            wire.request(rng.choice(wire.nodes))
            check()
        if rng.random() < 0.05:
            for _ in range(32):
                wire.run_for(SLOT_S)
                check()


def replay(wire: Wire, away_s: float) -> bool:
    """The active node freezes, a client asks the other one, the node goes on: did it serve before it read?"""
    wire.freeze(wire.primary)
    wire.run_for(away_s)
    wire.request(wire.backup)
    served: list[bool] = []
    wire.thaw(wire.primary, first=lambda: served.append(wire.primary.is_active))
    return served == [True] and wire.backup.is_active


@pytest.mark.parametrize("away_s", [0.25, 0.31, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("taught_s", [0.0, 0.2, 0.5])
def test_an_active_node_that_was_away_does_not_serve_beside_its_successor(
    taught_s: float, away_s: float
) -> None:
    wire = settled()
    if taught_s:
        pause(wire, wire.primary, taught_s)
    # Its last word has arrived when it freezes, so both count from the same one.
    wire.run_for(3 * HEARTBEAT_S)
    wire.call(wire.primary, lambda machine: machine.step(Subscription(), wire.now))
    wire.run_for(0.002)
    assert not replay(wire, away_s)


def lone(wire: Wire, *, killed: Node | None = None) -> StarMachine:
    """The node that is left serves; the endpoint of the other one refuses connections."""
    killed = killed or wire.backup
    left = wire.other(killed)
    wire.kill(killed)
    wire.call(left, lambda machine: machine.step(LinkLost(), wire.now))
    wire.call(left, lambda machine: machine.step(PeerRefused(), wire.now))
    wire.request(left)
    wire.run_for(3 * HEARTBEAT_S)
    assert left.is_active
    return machine_of(left)


@pytest.mark.parametrize(("away_s", "serves_on"), [(0.4, True), (0.9, True), (1.1, False)])
def test_a_node_whose_peer_is_gone_steps_down_only_if_a_new_run_may_have_taken_over(
    away_s: float, serves_on: bool
) -> None:
    wire = settled()
    machine = lone(wire)
    pause(wire, wire.primary, away_s)
    assert machine.is_active is serves_on


def test_a_node_whose_peer_comes_back_steps_down_after_the_minimum() -> None:
    wire = settled()
    machine = lone(wire)
    wire.call(wire.primary, lambda machine: machine.step(Subscription(), wire.now))
    pause(wire, wire.primary, 0.4)
    assert not machine.is_active


def test_a_fixed_timeout_holds_for_a_node_whose_peer_is_gone() -> None:
    wire = adaptive_wire(failover_timeout_max_s=0.0)
    wire.start(*wire.nodes)
    wire.run_for(1.0)
    machine = lone(wire)
    pause(wire, wire.primary, 0.4)
    assert not machine.is_active


@pytest.mark.parametrize("away_s", [0.4, 0.9, 1.1, 1.9, 2.5, 4.0])
@pytest.mark.parametrize("starts_at_s", [0.0, 0.3, 0.8])
def test_a_lone_node_that_was_away_does_not_serve_beside_a_new_primary(
    starts_at_s: float, away_s: float
) -> None:
    wire = settled()
    lone(wire, killed=wire.primary)
    wire.freeze(wire.backup)
    wire.run_for(starts_at_s)
    wire.start(wire.primary)
    wire.run_for(away_s)
    wire.request(wire.primary)
    both: list[bool] = []
    wire.thaw(wire.backup, first=lambda: both.append(wire.primary.is_active and wire.backup.is_active))
    assert both == [False]


# --- with an arbiter ----------------------------------------------------------------------------------------


def test_a_new_arbiter_waits_for_the_longest_promise_of_the_one_before() -> None:
    """The ttl of a question may be shorter than that of another node's earlier one."""
    arbiter = ArbiterMachine(now=0.0)
    question = Question("claim", "p", "backup", "they", 1, 300, ttl_max_ms=2000)
    [refused] = arbiter.receive(question, 1.5)
    assert isinstance(refused, Reply)
    assert (refused.answer.is_granted, refused.answer.ttl_max_ms, refused.answer.free_in_ms) == (
        False,
        2000,
        500,
    )
    granted = arbiter.receive(Question("claim", "p", "backup", "they", 2, 300, ttl_max_ms=2000), 2.0)
    assert [output.answer.is_granted for output in granted if isinstance(output, Reply)] == [True]


def asked_by(machine: StarMachine, now: float) -> Question:
    [asked] = [output for output in machine.step(Subscription(), now) if isinstance(output, AskArbiter)]
    return asked.question


def test_an_arbiter_that_knows_no_maximum_is_asked_for_it() -> None:
    """It would grant the ballot anew one ttl after its start: all must be the same."""
    machine = StarMachine(settings_of(Role.PRIMARY, arbiter="third"), node="we", epoch=0, now=0.0)
    assert machine.quorum is not None
    machine.quorum.ttl_s = 0.7
    first = asked_by(machine, 0.01)
    assert (first.ttl_ms, first.ttl_max_ms) == (2000, 2000)
    machine.step(ArbiterAnswer(Answer("we", first.number)), 0.02)
    second = asked_by(machine, 0.03)
    assert second.ttl_ms == 2000
    machine.step(ArbiterAnswer(Answer("we", second.number, ttl_max_ms=2000)), 0.04)
    assert asked_by(machine, 0.05).ttl_ms == 700


def test_a_lease_is_as_long_as_its_claim_says_whatever_the_voter_needs() -> None:
    backup = StarMachine(settings_of(Role.BACKUP, arbiter="third"), node="they", epoch=0, now=0.0)
    assert backup.quorum is not None
    claim = PeerState(
        int(ACTIVE), "test", "primary", "we", 1, 1, 100, 300,
        arbiter="third", claims=True, timeout_max_ms=2000, needs_ms=300, lease_ms=700,
    )  # fmt: skip
    backup.quorum.peers_until = -1.0
    backup.step(PeerMessage(claim), 5.0)
    assert backup.quorum.peers_until == pytest.approx(5.7)


def test_a_voter_whose_timeout_is_fixed_grants_no_longer_lease_than_that() -> None:
    machine = StarMachine(settings_of(Role.PRIMARY, arbiter="third"), node="we", epoch=0, now=0.0)
    quorum = machine.quorum
    assert quorum is not None
    quorum.peers_until = -1.0
    assert quorum.claim(0.0)
    quorum.sent(7, 0.0)
    grant: dict[str, Any] = {"arbiter": "third", "granted": 7, "granted_to": "we"}
    quorum.hear_ballot(message_of(1, **grant, timeout_max_ms=0), "we", 0.1)
    assert quorum.peer.until == pytest.approx(MIN_S * (1 - DRIFT_MAX))
    quorum.hear_ballot(message_of(2, **grant), "we", 0.1)
    assert quorum.peer.until == pytest.approx(MAX_S * (1 - DRIFT_MAX))
