"""The simulator's pairs with an arbiter: scenarios by name, and broken builds that it must catch.

docs/simulation.md says what is checked. With an arbiter (a) has no exceptions: two nodes never have the right
to serve at the same moment, whatever the links are like.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from bstar.star import LinkLost, PeerRefused, Vote, quorum
from bstar.star.arbiter import ArbiterMachine
from bstar.star.cut_off import PATIENCE
from bstar.star.quorum import DRIFT_MAX, Quorum
from sim.checks import Violation
from sim.faults import Kind, Mood
from sim.run import Outcome, Simulation, play
from sim.seeds import played
from sim.setup import setup_of
from test_sim import HEARTBEAT_S, NATIVE, TIMEOUT_S, befall, both_ways
from test_sim import pair as pair_of

# Each run simulates minutes of a pair.
pytestmark = pytest.mark.storm

WITH_ARBITER = msgspec.structs.replace(NATIVE, has_arbiter=True)
pair = partial(pair_of, has_arbiter=True)


def ask_both(simulation: Simulation) -> None:
    """One client reaches the primary only, the other one the backup only: both nodes are asked."""
    # What was under way there is lost.
    simulation.checks.troubles.append((simulation.world.now, simulation.world.now + 100.0))
    simulation.cut(both_ways(("client1", "backup"), ("client2", "primary")))


# --- seeds --------------------------------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize("mood", Mood)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_invariant_breaks_whatever_happens(seed: int, mood: Mood) -> None:
    outcome = played(seed, mood, arbiter=True)
    assert outcome.counts.get("overlaps", 0) == 0
    assert outcome.counts["faults"] > 10, "a run without faults proves nothing"
    assert outcome.counts["call answered"] > 100, "a run without traffic proves nothing"


def test_a_third_of_all_runs_have_an_arbiter() -> None:
    share = sum(setup_of(seed).has_arbiter for seed in range(300)) / 300
    assert 0.25 < share < 0.42


# --- named scenarios ----------------------------------------------------------------------------------------


def test_the_role_follows_clients_that_are_cut_off_and_the_majority_with_it() -> None:
    simulation = pair()
    befall(simulation, Kind.CLIENTS_CUT, "primary", 20.0)
    simulation.run_for(2 * TIMEOUT_S + PATIENCE * TIMEOUT_S + 5 * HEARTBEAT_S)
    assert simulation.checks.serving() == [simulation.backup]
    simulation.run_for(30.0)
    assert simulation.checks.counts["activations"] == 2
    assert simulation.checks.counts["overlaps"] == 0
    simulation.finish()


def test_one_serves_while_the_peer_link_is_cut_and_clients_reach_both() -> None:
    simulation = pair()
    befall(simulation, Kind.PEER_CUT, "primary", 10.0)
    ask_both(simulation)
    for _ in range(90):
        simulation.run_for(0.1)
        assert simulation.checks.serving() == [simulation.primary]
    simulation.run_for(1.5)
    simulation.calm_down()
    simulation.finish()


def test_one_serves_where_the_network_falls_into_halves_and_it_is_the_one_with_the_arbiter() -> None:
    simulation = pair()
    befall(simulation, Kind.PEER_CUT, "primary", 10.0)
    befall(simulation, Kind.ARBITER_CUT, "primary", 10.0)
    simulation.cut(
        both_ways(
            ("client1", "backup"), ("worker1", "backup"), ("client2", "primary"), ("worker2", "primary")
        )
    )
    simulation.run_for(2.0)
    assert simulation.checks.serving() == [simulation.backup]
    simulation.run_for(8.5)
    simulation.calm_down()
    simulation.finish()


@pytest.mark.parametrize("kind", [Kind.ARBITER_CRASH, Kind.ARBITER_STALL])
def test_nothing_happens_when_the_arbiter_is_away(kind: Kind) -> None:
    simulation = pair()
    befall(simulation, kind, "arbiter", 10.0)
    simulation.run_for(12.0)
    assert simulation.checks.counts["activations"] == 1
    assert simulation.primary.node.machine.counters.majorities_lost == 0
    simulation.finish()


def test_without_arbiter_and_without_peer_nobody_serves_until_one_of_them_is_back() -> None:
    """What it costs: two of three must be there."""
    for back in ("arbiter", "primary"):
        simulation = pair()
        arbiter = simulation.arbiter
        assert arbiter is not None
        simulation.checks.troubles.append((simulation.world.now, simulation.world.now + 20.0))
        arbiter.die()
        simulation.run_for(1.0)
        simulation.primary.die()
        simulation.run_for(5.0)
        assert simulation.checks.serving() == []
        (arbiter if back == "arbiter" else simulation.primary).start()
        simulation.run_for(3.0)
        assert len(simulation.checks.serving()) == 1
        simulation.calm_down()
        simulation.finish()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_an_isolated_node_steps_down_before_the_other_serves(share: float) -> None:
    simulation = pair(calls_per_s=20.0)
    ask_both(simulation)
    simulation.run_for(1.0 + share * 0.1)
    befall(simulation, Kind.ISOLATED, "primary", 10.0)
    changes: list[str] = []
    for _ in range(2_000):
        simulation.run_for(0.001)
        now = ",".join(node.name for node in simulation.checks.serving())
        if not changes or changes[-1] != now:
            changes.append(now)
    assert changes == ["primary", "", "backup"]
    simulation.run_for(9.0)
    simulation.calm_down()
    simulation.finish()


def slow_and_fast(simulation: Simulation, drift: float) -> None:
    """From now on the primary's clock is slower than those of both other voters, by ``drift``."""
    for process, rate in ((simulation.primary, 1.0), (simulation.backup, 1.0 + drift)):
        set_rate(process, rate)
    assert simulation.arbiter is not None
    set_rate(simulation.arbiter, 1.0 + drift)


def set_rate(process: Any, rate: float) -> None:
    now = process.clock()
    process._rate = rate
    process._offset = now - process.world.now * rate
    process.arrange()


def isolated_with_clients(seed: int, drift: float) -> None:
    simulation = pair(seed, calls_per_s=60.0, delay_s=0.0001, jitter_s=0.0001)
    slow_and_fast(simulation, drift)
    ask_both(simulation)
    simulation.run_for(1.0 + seed * 0.017)
    befall(simulation, Kind.ISOLATED, "primary", 3.0)
    simulation.run_for(2.0)
    assert simulation.checks.serving() == [simulation.backup]


def test_clocks_that_differ_by_nearly_the_margin_do_no_harm() -> None:
    for seed in range(1, 11):
        isolated_with_clients(seed, DRIFT_MAX * 0.95)


# --- broken builds: a test of the tests ---------------------------------------------------------------------


def first_violation(mood: Mood, seeds: range) -> Outcome:
    for seed in seeds:
        outcome = play(setup_of(seed, mood=mood, profile="lan", arbiter=True, limit=False))
        if outcome.violation is not None:
            return outcome
    pytest.fail(f"seeds {seeds} found nothing wrong with a broken build")


def test_a_build_without_the_margin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "DRIFT_MAX", 0.0)

    def try_seeds() -> None:
        for seed in range(1, 11):
            isolated_with_clients(seed, DRIFT_MAX * 0.95)

    with pytest.raises(Violation, match=r"\(a\)"):
        try_seeds()


def a_middlebox_refuses_in_the_name_of_a_peer_that_serves(seed: int) -> None:
    """The active node has only the backup's ballot, when the backup is told that its peer is dead."""
    simulation = pair(seed, calls_per_s=60.0)
    befall(simulation, Kind.ARBITER_CUT, "primary", 3.0)
    ask_both(simulation)
    simulation.run_for(1.0 + seed * 0.013)
    befall(simulation, Kind.PEER_CUT, "primary", 2.0)
    simulation.run_for(0.005)
    backup = simulation.backup
    backup._turn(lambda: backup.node.step(LinkLost(), backup.clock()))
    backup._turn(lambda: backup.node.step(PeerRefused(), backup.clock()))
    assert backup.node.machine.peer.is_gone
    backup._turn(lambda: backup.node.step(Vote(), backup.clock()))
    simulation.run_for(1.0)
    assert simulation.checks.serving() == [backup]


def test_a_middlebox_that_refuses_in_a_peers_name_does_no_harm() -> None:
    for seed in range(1, 6):
        a_middlebox_refuses_in_the_name_of_a_peer_that_serves(seed)


def test_a_build_that_breaks_the_promise_of_its_own_ballot_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Quorum.claim

    def takes_it_anyway(self: Quorum, now: float) -> bool:
        self.peers_until = -1.0
        return sound(self, now)

    monkeypatch.setattr(Quorum, "claim", takes_it_anyway)
    with pytest.raises(Violation, match=r"\(a\)"):
        a_middlebox_refuses_in_the_name_of_a_peer_that_serves(1)


def the_arbiter_restarts_when_only_its_word_counts(seed: int) -> None:
    simulation = pair(seed, calls_per_s=60.0)
    befall(simulation, Kind.PEER_CUT, "primary", 3.0)
    ask_both(simulation)
    simulation.run_for(1.0 + seed * 0.013)
    befall(simulation, Kind.ARBITER_CUT, "primary", 1.5)
    befall(simulation, Kind.ARBITER_CRASH, "arbiter", 0.01)
    simulation.run_for(1.0)
    assert simulation.checks.serving() == [simulation.backup]


def test_an_arbiter_that_restarts_breaks_no_promise_of_its_past() -> None:
    for seed in range(1, 6):
        the_arbiter_restarts_when_only_its_word_counts(seed)


def test_a_build_whose_arbiter_grants_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ArbiterMachine.__init__

    def never_waits(self: ArbiterMachine, **arguments: Any) -> None:
        sound(self, **arguments)
        self._started_at = -1e9

    monkeypatch.setattr(ArbiterMachine, "__init__", never_waits)
    with pytest.raises(Violation, match=r"\(a\)"):
        the_arbiter_restarts_when_only_its_word_counts(1)


@pytest.mark.storm
def test_a_build_whose_arbiter_gives_its_ballot_to_anybody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArbiterMachine, "_claim", lambda self, question, ballot, now, outputs: True)
    assert first_violation(Mood.LINKS, range(5, 35)).rule == "a"
