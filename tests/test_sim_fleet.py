"""The simulator's runs with several pairs: what befalls one concerns its own services alone.

docs/simulation.md says what is checked, as (h). Broken builds show that the simulator would notice.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from bstar_client.core.calls import Call, Reply
from bstar_client.core.fleet_session import FleetSession
from bstar_client.core.outputs import Output
from sim.__main__ import main
from sim.checks import Checks, Violation
from sim.client import Issued, SimClient
from sim.dialects import body_of
from sim.faults import Fault, Kind, Mood
from sim.growth import Growth
from sim.network import Frames
from sim.node import SimNode
from sim.run import Simulation, play
from sim.seeds import played
from sim.setup import FleetSetup, setup_of
from test_sim import NATIVE, befall

# Each run simulates minutes of a pair.
pytestmark = pytest.mark.storm

FLEET = FleetSetup(
    pairs=("a", "b", "c"), pins=(("p.*", "b"),), services=("s1", "s2", "s2", "s7", "s7", "p.1"), struck=("b",)
)
THREE = msgspec.structs.replace(
    NATIVE,
    workers=tuple((f"worker{number}", "native", 1 + number % 2, 0.01) for number in range(1, 7)),
    clients=(("client1", "native"),),
    calls_per_s=30.0,
    fleet=FLEET,
)


class Noting(Checks):
    """Notes how long each call of the pair took, and which requests came to its nodes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.took_s: list[float] = []
        self.heard = 0

    def call_answered(self, issued: Issued, reply: Reply) -> None:
        super().call_answered(issued, reply)
        self.took_s.append(issued.ended_at - issued.submitted_at)

    def node_heard(self, node: SimNode, frames: Frames) -> None:
        super().node_heard(node, frames)
        self.heard += 1


def pairs(seed: int = 1, **changes: Any) -> Simulation:
    """Three pairs that have found their roles: their primaries serve."""
    setup = msgspec.structs.replace(THREE, seed=seed, **changes)
    simulation = Simulation(setup, keep_trace=True, checks=Noting)
    simulation.start()
    simulation.run_for(6.0)
    for pair in simulation.pairs.values():
        assert pair.checks.serving() == [pair.primary]
    return simulation


def noted(simulation: Simulation, name: str) -> Noting:
    """What was noted of this pair."""
    checks = simulation.pairs[name].checks
    assert isinstance(checks, Noting)
    return checks


# --- seeds --------------------------------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize("mood", Mood)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_invariant_breaks_whatever_happens(seed: int, mood: Mood) -> None:
    outcome = played(seed, mood, fleet=True)
    assert outcome.counts["faults"] > 3, "a run without faults proves nothing"
    assert outcome.counts["call answered"] > 50, "a run without traffic proves nothing"


def test_an_eighth_of_all_runs_have_several_pairs_of_which_faults_spare_at_least_one() -> None:
    setups = [setup_of(seed) for seed in range(400)]
    fleets = [setup.fleet for setup in setups if setup.fleet is not None]

    assert 0.08 < len(fleets) / len(setups) < 0.17
    assert {len(fleet.pairs) for fleet in fleets} == {2, 3, 4}
    assert {len(fleet.struck) for fleet in fleets} == {1, 2}
    for fleet in fleets:
        assert set(fleet.struck) < set(fleet.pairs)
        owners = {fleet.fleet.pair_of(service).name for service in fleet.services}
        assert owners == set(fleet.pairs), "a pair without services proves nothing"
    for setup in setups:
        if setup.fleet is not None:
            names = setup.fleet.pairs
            # Nothing may follow from an attack, so no pair is spared it.
            faults = [fault for fault in setup.faults if fault.kind is not Kind.ATTACK]
            befallen = {name for fault in faults for name in names if f"{name}." in fault.target}
            assert befallen <= set(setup.fleet.struck)


def test_one_seed_is_one_run_to_the_last_digit() -> None:
    setup = setup_of(7, mood=Mood.STORM, profile="lan", fleet=True)

    first, second = play(setup), play(setup)

    assert first.digest == second.digest
    assert first.counts == second.counts


# --- named scenarios ----------------------------------------------------------------------------------------


def test_every_service_has_the_pair_of_its_hash_or_its_pin() -> None:
    simulation = pairs()
    services = {name: pair.checks.services for name, pair in simulation.pairs.items()}

    assert services["b"] is not None
    assert b"p.1" in services["b"], "it is pinned there"
    assert all(services.values())
    assert sum(len(of_pair) for of_pair in services.values() if of_pair) == 4
    for name, pair in simulation.pairs.items():
        for node in pair.nodes:
            assert set(node.node.broker.ledger.services) <= (services[name] or set())
    simulation.finish()


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.DARK, Kind.STALL])
def test_calls_to_other_pairs_go_on_as_if_nothing_happened_while_a_pair_is_down(kind: Kind) -> None:
    calm, struck = pairs(), pairs()
    for node in ("b.primary", "b.backup"):
        befall(struck, kind, node, 30.0)
    for simulation in (calm, struck):
        simulation.run_for(29.0)

    assert (
        noted(struck, "b").counts["call NoActiveNodeError"]
        + noted(struck, "b").counts["call CallTimeoutError"]
        + noted(struck, "b").counts["call OutcomeUnknownError"]
        > 0
    )
    assert struck.pairs["b"].checks.serving() == []
    for name in ("a", "c"):
        before, after = noted(calm, name), noted(struck, name)
        failures = {outcome for outcome in after.counts if outcome.startswith("call ")} - {
            "call answered",
            "call HandlerError",
            "call left",
        }
        assert not failures
        assert after.counts["activations"] == 1
        assert after.counts["repeated executions"] == 0
        assert len(after.took_s) > 200
        assert len(after.took_s) > 0.8 * len(before.took_s), "those who wait for b are not in the way"
        assert max(after.took_s) < 2 * max(before.took_s)
    struck.run_for(2.0)
    struck.calm_down()
    struck.finish()


def test_a_client_has_connections_to_the_pairs_alone_whose_services_it_has_called() -> None:
    setup = msgspec.structs.replace(THREE, calls_per_s=1e-9)
    simulation = Simulation(setup)
    simulation.start()
    simulation.run_for(6.0)
    client = simulation.clients["client1"]
    assert isinstance(client, SimClient)
    assert client.links_open == []

    now = client.clock()
    issued = Issued("s1/hand.1", "client1", "echo", simulation.world.now, 1e9, False, "native", "s1", False)
    place = FLEET.fleet.place(b"s1")
    call = Call(b"s1", [body_of("s1/hand.1", "echo")], now + 5.0, sink=issued, pair=place)
    client._open[place] += 1
    client._do(client.core.submit(call, now))
    simulation.run_for(1.0)

    assert issued.outcome == "answered"
    name = FLEET.pairs[place]
    assert {link.node for link in client.links_open} == set(simulation.pairs[name].nodes)


# --- broken builds: a test of the tests ---------------------------------------------------------------------


def first_rule() -> str:
    """The rule that breaks first where pair b loses a node again and again, and then both."""
    for seed in (1, 2):
        try:
            simulation = pairs(seed)
            for _ in range(5):
                befall(simulation, Kind.CRASH, "b.primary", 2.0)
                simulation.run_for(4.0)
            befall(simulation, Kind.DARK, "b.primary", 30.0)
            befall(simulation, Kind.DARK, "b.backup", 30.0)
            simulation.run_for(31.0)
            simulation.calm_down()
            simulation.finish()
        except Violation as violation:
            return violation.rule
    pytest.fail("nothing wrong was found with a broken build")


def test_the_build_as_it_is_passes_what_broken_ones_do_not() -> None:
    with pytest.raises(pytest.fail.Exception):
        first_rule()


def test_a_build_whose_requests_go_to_another_pair_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = FleetSession.submit_all

    def at_the_next_pair(self: FleetSession, calls: list[Call], now: float) -> list[Output]:
        for call in calls:
            call.pair = (call.pair + 1) % len(self._sessions)
        return sound(self, calls, now)

    monkeypatch.setattr(FleetSession, "submit_all", at_the_next_pair)
    assert first_rule() == "h"


def test_a_build_that_tells_every_session_of_a_broken_connection_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = FleetSession.disconnected

    def tells_all(self: FleetSession, node: int, now: float) -> list[Output]:
        outputs = sound(self, node, now)
        for first, session in zip(self._first, self._sessions, strict=True):
            if session is not None and first != node:
                outputs += sound(self, first, now)
        return outputs

    monkeypatch.setattr(FleetSession, "disconnected", tells_all)
    assert first_rule() == "h"


def test_a_build_that_forgets_the_deadlines_of_all_pairs_but_the_first_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = FleetSession._renumbered

    def minds_the_first(self: FleetSession, pair: int, outputs: list[Output]) -> list[Output]:
        outputs = sound(self, pair, outputs)
        if pair:
            self._due[pair] = math.inf
        return outputs

    monkeypatch.setattr(FleetSession, "_renumbered", minds_the_first)
    assert first_rule() in ("d", "h")


def test_a_fault_outside_the_struck_pairs_is_caught() -> None:
    """Whoever spares a pair must mean it: here faults strike one that is said to be spared."""
    simulation = pairs(mood=Mood.PROCESSES)
    simulation.pairs["a"].checks.is_struck = False
    simulation.inject(Fault(simulation.world.now, Kind.CRASH, "a.primary", 3.0))
    with pytest.raises(Violation, match=r"^\(h\)"):
        simulation.run_for(3.0)


# --- a pair more --------------------------------------------------------------------------------------------


def test_a_pair_that_is_added_takes_its_services_and_nothing_else_moves_or_is_lost() -> None:
    growth = Growth(12)
    before, after = growth.run()

    assert growth.moved
    assert after.services[growth.added] == len(growth.moved)
    for name, count in before.services.items():
        left = {service for service in growth.moved if growth.old.pair_of(service).name == name}
        assert after.services[name] == count - len(left)
    assert after.requests[growth.added] > 0
    for spread in (before, after):
        asked = [name for name, count in spread.services.items() if count]
        assert all(spread.requests[name] for name in asked), "each pair is asked for what it has"
        assert sum(spread.requests[name] for name in asked) == sum(spread.requests.values())
    counts = growth.counts
    ends = ("call answered", "call HandlerError", "call left")
    assert sum(counts[end] for end in ends) == counts["calls"] > 1_000
    assert counts["repeated executions"] == 0
    assert counts["activations"] == 13, "one for each pair"


def test_the_command_tells_what_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pairs", "3"]) == 0
    said = capsys.readouterr().out
    assert "before: 3 pairs" in said
    assert "after:  4 pairs" in said
    assert "all of them to pair4" in said
