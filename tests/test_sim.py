"""The simulator: some seeds of every kind, named scenarios, and broken builds that it must catch.

``make sim`` runs hundreds of seeds; here are as many as fit into some seconds. docs/simulation.md says what
is checked, under the letters used here.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from bstar.star import StarMachine
from bstar.star.cut_off import LONE_PATIENCE, PATIENCE, SETTLING
from bstar.star.peer import PeerView
from bstar.wire import native_broker
from bstar_broker.core.endings import Endings
from bstar_broker.core.records import Accepted, WorkerRecord
from bstar_client.core.native.reply_reader import ReplyReader
from bstar_client.core.plain.rota import Rota
from bstar_client.core.worker.jobs import Jobs
from bstar_client.core.worker.session import WorkerCore
from sim.__main__ import main
from sim.checks import Violation
from sim.client import Load
from sim.faults import Fault, Kind, Mood
from sim.run import Outcome, Simulation, play, shrink
from sim.seeds import played
from sim.setup import Setup, calm_setup_of, setup_of
from sim.worker import SimWorker
from sim.world import Process, World

pytestmark = pytest.mark.storm

TIMEOUT_S = 0.3  # of the lan profile
HEARTBEAT_S = 0.1

NATIVE = Setup(
    seed=1,
    mood=Mood.STORM,
    profile="lan",
    is_durable=True,
    is_probing=True,
    on_dual_active="yield",
    pipe_max=math.inf,
    delay_s=0.0005,
    jitter_s=0.001,
    workers=(("worker1", "native", 1, 0.01), ("worker2", "native", 2, 0.01)),
    clients=(("client1", "native"), ("client2", "native")),
    calls_per_s=5.0,
    storm_s=0.0,
    faults=(),
)


def pair(seed: int = 1, **changes: Any) -> Simulation:
    """A pair that has found its roles: the primary serves."""
    simulation = Simulation(msgspec.structs.replace(NATIVE, seed=seed, **changes), keep_trace=True)
    simulation.start()
    simulation.run_for(4.0)
    assert simulation.checks.serving() == [simulation.primary]
    return simulation


def befall(simulation: Simulation, kind: Kind, target: str, duration_s: float, amount: float = 0.5) -> None:
    """A fault, now."""
    simulation.inject(Fault(simulation.world.now, kind, target, duration_s, amount))


def both_ways(*pairs: tuple[str, str]) -> set[tuple[str, str]]:
    """Ends to cut, in both directions."""
    return {ends for one, other in pairs for ends in ((one, other), (other, one))}


def native_workers(simulation: Simulation) -> list[SimWorker]:
    """Those that know of epochs."""
    return [worker for worker in simulation.workers.values() if isinstance(worker, SimWorker)]


# --- seeds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mood", Mood)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_invariant_breaks_whatever_happens(seed: int, mood: Mood) -> None:
    outcome = played(seed, mood)
    assert outcome.counts["faults"] > 10, "a run without faults proves nothing"
    assert outcome.counts["call answered"] > 100, "a run without traffic proves nothing"


@pytest.mark.parametrize("mood", Mood)
def test_no_invariant_breaks_under_a_limit(mood: Mood) -> None:
    outcome = played(4, mood, keys=False, pirates=False, emq=False, limit=True)
    assert outcome.counts["given out at the limit"] > 10, "a run that does not reach its limit proves nothing"


def test_a_quarter_of_the_runs_with_one_pair_have_a_limit_and_the_others_are_what_they_would_be() -> None:
    setups = [setup_of(seed, fleet=False) for seed in range(300)]
    assert 0.2 < sum(setup.running_max is not None for setup in setups) / len(setups) < 0.3
    for seed in range(20):
        without, limited = setup_of(seed, fleet=False, limit=False), setup_of(seed, fleet=False, limit=True)
        assert limited.running_max is not None
        changes = {"running_max": None, "workers": without.workers, "calls_per_s": without.calls_per_s}
        assert msgspec.structs.replace(limited, **changes) == without
    assert setup_of(1, fleet=True, limit=True).running_max is None
    assert calm_setup_of(5).running_max is None


def test_one_seed_is_one_run_to_the_last_digit() -> None:
    setup = setup_of(7, mood=Mood.STORM, profile="lan")

    first, second = play(setup), play(setup)

    assert first.digest == second.digest
    assert first.counts == second.counts
    assert play(setup_of(8, mood=Mood.STORM, profile="lan")).digest != first.digest


def test_a_run_without_faults_has_no_unknown_outcome_and_one_activation() -> None:
    outcome = play(msgspec.structs.replace(NATIVE, mood=Mood.QUIET, storm_s=30.0))

    assert outcome.violation is None
    assert outcome.counts["activations"] == 1
    ends = ("call answered", "call HandlerError", "call left")
    assert sum(outcome.counts[end] for end in ends) == outcome.counts["calls"]


@pytest.mark.loopback
def test_the_command_runs_seeds_and_says_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "2", "--processes", "1", "--mood", "quiet", "--profile", "lan"]) == 0

    said = capsys.readouterr().out
    assert "2 runs" in said
    assert "simulated hours per second" in said
    assert "0 violations" in said


# --- a calm pace --------------------------------------------------------------------------------------------


def calm(seed: int, hours: float = 2.5) -> Setup:
    """The first hours of a calm life that is longer."""
    setup = calm_setup_of(seed)
    faults = tuple(fault for fault in setup.faults if fault.at < 3_600 * hours)
    return msgspec.structs.replace(setup, storm_s=3_600 * hours, faults=faults)


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_no_invariant_breaks_in_hours_with_a_fault_now_and_then(seed: int) -> None:
    setup = calm(seed)
    outcome = play(setup)

    assert outcome.violation is None, f"{outcome.violation}\nrepeat: make sim PACE=calm SEED={seed}"
    assert 0 < outcome.counts["faults"] < 100, "that is no calm life"
    assert outcome.counts["call answered"] > 20, "a run without traffic proves nothing"
    assert outcome.events < 120_000 * outcome.simulated_s / 3_600


def test_a_worker_that_ends_because_its_handlers_are_stuck_is_started_again() -> None:
    """It never was, and calls half an hour later found no worker."""
    setup = calm_setup_of(2_000_000_179)
    [fault] = [fault for fault in setup.faults if fault.kind is Kind.WORKER_SLOW and fault.amount == 200.0]
    fault = msgspec.structs.replace(fault, at=60.0)
    setup = msgspec.structs.replace(setup, storm_s=1_800.0, faults=(fault,))
    outcome = play(setup, keep_trace=True)
    assert outcome.violation is None
    lives = [line.split() for line in outcome.trace]
    times = {life: float(at) for at, name, life, *_ in lives if name == "worker1"}
    assert times["ends"] < times["starts"] < times["ends"] + 60.0


def without_a_worker_at_the_primary() -> Setup:
    """For nine minutes; then the plain client is about to ask the backup, which is passive."""
    setup = calm_setup_of(2_000_000_315)
    fault = Fault(4_750.0, Kind.NET_CUT, "worker1|primary", 544.0)
    return msgspec.structs.replace(setup, storm_s=6_150.0, faults=(fault,))


def test_a_plain_client_that_lost_a_call_to_a_fault_may_lose_the_next_one_long_after_it() -> None:
    """Its session asks the other node next, and a passive node cannot tell a plain client who serves."""
    outcome = play(without_a_worker_at_the_primary(), keep_trace=True)
    assert outcome.violation is None
    lost = [float(line.split()[0]) for line in outcome.trace if line.endswith("Error")]
    assert len(lost) == 2
    assert lost[0] < 5_294.0
    assert lost[1] > 6_000.0
    assert outcome.counts["activations"] == 1, "the role stays with the primary"


def test_a_plain_client_that_never_leaves_the_passive_node_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rota, "go_on", lambda self: setattr(self, "at", 1))
    outcome = play(without_a_worker_at_the_primary(), keep_trace=True)
    assert outcome.rule == "d", outcome.violation
    lost = [line for line in outcome.trace if line.endswith(("CallTimeoutError", "OutcomeUnknownError"))]
    assert len(lost) == 3, "the fault's, the one that is excused, and no other"


def quiet_life() -> Simulation:
    """A pair without a fault, a while after its beginning."""
    setup = msgspec.structs.replace(
        NATIVE, profile="guide", slowness=3.0, calls_per_s=1 / 30, storm_s=7_200.0
    )
    simulation = Simulation(setup)
    simulation.start()
    simulation.run_for(600.0)
    assert simulation.checks.serving() == [simulation.primary]
    return simulation


def test_a_build_that_remembers_something_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: list[bytes] = []
    hear = PeerView.hear

    def hear_and_keep(self: PeerView, now: float) -> None:
        remembered.append(b"%f" % now)
        vars(self)["remembered"] = remembered
        hear(self, now)

    monkeypatch.setattr(PeerView, "hear", hear_and_keep)
    setup = msgspec.structs.replace(calm(3), faults=(), storm_s=4 * 3_600.0)
    outcome = play(setup)
    assert outcome.rule == "m", outcome.violation
    assert "objects" in str(outcome.violation)


def test_a_timer_that_drifts_is_caught() -> None:
    simulation = quiet_life()
    assert simulation.life is not None
    simulation.life.look()
    simulation.primary.node.machine.publisher.published_at -= 60.0
    with pytest.raises(Violation, match=r"\(m\).*has not said how it stands"):
        simulation.life.look()


def test_a_role_that_moves_long_after_the_last_fault_is_caught() -> None:
    simulation = quiet_life()
    with pytest.raises(Violation, match=r"\(g\).*although nothing had failed"):
        simulation.primary.handover()


def test_a_call_that_fails_long_after_the_last_fault_is_caught() -> None:
    simulation = quiet_life()
    for worker in simulation.workers.values():
        worker.die()
    with pytest.raises(Violation, match=r"\(f\).*although nothing had failed for long"):
        simulation.run_for(1_200.0)


# --- an operator promotes a lone backup ---------------------------------------------------------------------


def test_a_promoted_backup_serves_and_a_primary_that_comes_back_stands_by() -> None:
    simulation = pair()
    for node in simulation.nodes:
        node.die()
    simulation.backup.start()
    simulation.run_for(10 * TIMEOUT_S)
    assert simulation.checks.serving() == [], "alone it never serves"
    simulation.backup.promote()
    assert simulation.checks.serving() == [simulation.backup]
    answered = simulation.checks.counts["call answered"]
    simulation.run_for(5.0)
    assert simulation.checks.counts["call answered"] > answered
    simulation.primary.start()
    simulation.run_for(10 * TIMEOUT_S)
    assert simulation.checks.serving() == [simulation.backup]
    simulation.checks.trouble(0.0, simulation.world.now)
    simulation.finish()


# --- broken builds: a test of the tests ---------------------------------------------------------------------


def first_violation(mood: Mood, first: int, *, storm_s: float = math.inf) -> Outcome:
    """Of the first seed from ``first`` on that breaks a rule. ``storm_s`` cuts storms that are longer.

    Tests begin where one is found today: each of the seeds before takes a second. Those after it are for a
    product that has changed.
    """
    seeds = range(first, first + 40)
    for seed in seeds:
        setup = setup_of(seed, mood=mood, profile="lan", keys=False, pirates=False, emq=False, limit=False)
        faults = tuple(fault for fault in setup.faults if fault.at < storm_s)
        outcome = play(msgspec.structs.replace(setup, storm_s=min(setup.storm_s, storm_s), faults=faults))
        if outcome.violation is not None:
            return outcome
    pytest.fail(f"seeds {seeds} found nothing wrong with a broken build")


def break_the_stall_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StarMachine, "_notice_absence", lambda self, now: [])
    monkeypatch.setattr(StarMachine, "_on_stall", lambda self, gap_s, now: [])


def break_the_matching_of_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ReplyReader.receive_final

    def to_the_oldest(self: ReplyReader, node: Any, message: Any, outputs: Any, now: float) -> None:
        if self._calls.by_identity:
            message = msgspec.structs.replace(message, identity=next(iter(self._calls.by_identity)))
        sound(self, node, message, outputs, now)

    monkeypatch.setattr(ReplyReader, "receive_final", to_the_oldest)


def break_the_check_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = WorkerCore._take

    def obeys_anybody(self: WorkerCore, session: Any, heard: Any, outputs: Any, now: float) -> None:
        kept, self._fence.epoch = self._fence.epoch, 0
        sound(self, session, heard, outputs, now)
        self._fence.epoch = max(kept, self._fence.epoch)

    monkeypatch.setattr(WorkerCore, "_take", obeys_anybody)


def test_a_build_without_the_stall_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    break_the_stall_rule(monkeypatch)
    # (f): with on_dual_active exit both end for it.
    assert first_violation(Mood.PROCESSES, 10).rule in ("a", "f")


def test_a_build_that_does_not_match_replies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    break_the_matching_of_replies(monkeypatch)
    assert first_violation(Mood.PROCESSES, 1).rule == "c"


def test_a_build_that_redelivers_what_must_not_be_executed_twice_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = Endings.redeliver

    def forgets_the_rule(self: Endings, request: Accepted, *arguments: Any) -> None:
        request.is_once = False
        sound(self, request, *arguments)

    monkeypatch.setattr(Endings, "redeliver", forgets_the_rule)
    assert first_violation(Mood.PROCESSES, 11).rule == "i"


def test_a_build_that_does_not_mark_what_it_redelivers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = native_broker.CODEC.request

    def marks_nothing(codec: object, *arguments: Any) -> list[bytes]:
        unmarked = [*arguments[:-1], False]
        return sound(*unmarked)

    monkeypatch.setattr(type(native_broker.CODEC), "request", marks_nothing)
    assert first_violation(Mood.PROCESSES, 1).rule == "i"


def test_a_build_whose_workers_obey_any_epoch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    break_the_check_of_epochs(monkeypatch)
    assert first_violation(Mood.LINKS, 62).rule == "b"


def test_a_build_whose_workers_never_follow_a_pair_below_what_a_liar_made_of_it_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bstar_client.core.worker.fence.EPOCH_STEP_MAX", 2**64)
    assert play(setup_of(16, pirates=False, emq=False, limit=False)).rule == "f"


def test_the_shrinker_leaves_only_faults_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    break_the_check_of_epochs(monkeypatch)
    # Shrinking plays a run again and again: a short one.
    found = first_violation(Mood.LINKS, 62, storm_s=15.0)

    small, outcome = shrink(found.setup)

    assert outcome.rule == found.rule
    assert 1 <= len(small.faults) < len(found.setup.faults)
    assert play(small).digest == outcome.digest
    for fault in small.faults:
        rest = tuple(other for other in small.faults if other is not fault)
        assert play(msgspec.structs.replace(small, faults=rest)).rule != found.rule


# --- named scenarios ----------------------------------------------------------------------------------------


def test_two_serve_while_the_peer_link_is_cut_but_shared_workers_obey_one() -> None:
    """The bare pair cannot hold (a) here; (b) holds, and the workers tell the lower one of the higher."""
    # Each side's client asks its node back into service again and again; with this seed the backup is last.
    simulation = pair(seed=3)
    befall(simulation, Kind.PEER_CUT, "primary", 10.0)
    simulation.cut(both_ways(("client1", "backup"), ("client2", "primary")))
    simulation.run_for(9.0)
    assert simulation.checks.counts["overlaps"] >= 1
    # A worker that refuses a request of a lower epoch ends the overlap, long before the link heals.
    assert simulation.checks.serving() == [simulation.backup]
    assert simulation.checks.dual_s_max < 3.0
    simulation.run_for(1.5)
    simulation.calm_down()
    simulation.finish()


def test_two_serve_until_the_link_heals_where_the_network_falls_into_halves() -> None:
    """The limit of a pair without a third party: each half has a node, clients and workers of its own."""
    simulation = pair()
    befall(simulation, Kind.PEER_CUT, "primary", 10.0)
    simulation.cut(
        both_ways(
            ("client1", "backup"), ("worker1", "backup"), ("client2", "primary"), ("worker2", "primary")
        )
    )
    simulation.run_for(9.0)
    assert len(simulation.checks.serving()) == 2
    simulation.run_for(1.5)
    simulation.calm_down()
    simulation.run_for(simulation.checks.travel_s_max + simulation.settle_s)
    assert len(simulation.checks.serving()) == 1, "the lower epoch yields to the higher"
    simulation.finish()


def test_where_both_end_when_both_were_active_their_supervisors_bring_the_pair_back() -> None:
    simulation = pair(on_dual_active="exit")
    befall(simulation, Kind.PEER_CUT, "primary", 4.0)
    heal = simulation.cut(
        both_ways(
            ("client1", "backup"), ("worker1", "backup"), ("client2", "primary"), ("worker2", "primary")
        )
    )
    simulation.run_for(3.9)
    assert len(simulation.checks.serving()) == 2
    simulation.run_for(1.0)
    assert simulation.checks.serving() == []
    assert simulation.checks.counts["ended with status 70"] == 2
    assert [node.is_alive for node in simulation.nodes] == [True, True], "they stay to be heard"
    simulation.run_for(4.0)
    heal()
    assert [node.runs for node in simulation.nodes] == [2, 2]
    assert len(simulation.checks.serving()) == 1
    simulation.finish()


def test_a_primary_that_returns_over_a_link_too_slow_to_connect_in_time_may_serve_beside_its_peer() -> None:
    """What a lone start waits is one failover timeout; the peer's first word must come within it."""
    both = 0
    for seed in range(1, 11):
        simulation = pair(seed, calls_per_s=20.0)
        befall(simulation, Kind.CRASH, "primary", 1.0)
        simulation.run_for(0.9)
        assert simulation.checks.serving() == [simulation.backup]
        befall(simulation, Kind.PEER_JITTER, "primary", 5.0, amount=TIMEOUT_S / 2)
        heal = simulation.cut(both_ways(("client1", "backup")))
        simulation.run_for(1.5)
        heal()
        both += simulation.checks.counts["overlaps"]
        simulation.run_for(4.0)
        assert len(simulation.checks.serving()) == 1, "one yields as soon as they hear each other"
        assert simulation.checks.dual_s_max < 3 * TIMEOUT_S
        simulation.call_as_in_storms()
        simulation.finish()
    assert both > 0, "the limit that docs/simulation.md describes is not there any more"


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_role_follows_clients_that_are_cut_off_from_the_active_node_and_stays_there(seed: int) -> None:
    simulation = pair(seed)
    answered = simulation.checks.counts["call answered"]
    befall(simulation, Kind.CLIENTS_CUT, "primary", 30.0)
    # Until the clients ask the other node, until they are believed, and until its state message has told so.
    simulation.run_for(2 * TIMEOUT_S + PATIENCE * TIMEOUT_S + 5 * HEARTBEAT_S)
    assert simulation.checks.serving() == [simulation.backup]
    assert simulation.primary.node.machine.cut_off.handovers == 1
    assert simulation.checks.dual_s_max < HEARTBEAT_S
    simulation.run_for(3.0)
    assert simulation.checks.counts["call answered"] > answered
    # Neither the rest of the cut nor its end moves it again.
    simulation.run_for(60.0)
    assert simulation.checks.counts["activations"] == 2
    simulation.finish()


def test_a_client_alone_is_followed_as_well_unless_another_one_is_served() -> None:
    simulation = pair()
    befall(simulation, Kind.NET_CUT, "client1|primary", 2 * LONE_PATIENCE * TIMEOUT_S)
    simulation.run_for(2 * LONE_PATIENCE * TIMEOUT_S)
    assert simulation.checks.serving() == [simulation.primary]
    assert simulation.backup.node.machine.evidence(simulation.backup.clock()).clients == 1
    simulation.run_for((LONE_PATIENCE + 5) * TIMEOUT_S)
    assert simulation.backup.node.machine.evidence(simulation.backup.clock()).clients == 0
    simulation.clients["client2"].load = Load(1e-9, 1.0, 1.0)
    simulation.run_for(simulation.load.deadline_max_s)
    befall(simulation, Kind.NET_CUT, "client1|primary", 60.0)
    simulation.run_for((LONE_PATIENCE + 5) * TIMEOUT_S)
    assert simulation.checks.serving() == [simulation.backup]


def test_a_cut_between_clients_and_either_node_in_turns_moves_the_role_once_per_settling_time() -> None:
    simulation = pair()
    settling_s = SETTLING * TIMEOUT_S
    for turn in range(20):
        befall(simulation, Kind.CLIENTS_CUT, ("primary", "backup")[turn % 2], 10.0)
        simulation.run_for(11.0)
    moves = simulation.checks.counts["activations"] - 1
    assert 1 <= moves <= 220.0 / settling_s + 1
    simulation.calm_down()
    simulation.run_for(settling_s)
    simulation.finish()


def test_the_role_does_not_follow_clients_to_a_node_without_workers() -> None:
    simulation = pair()
    befall(simulation, Kind.CLIENTS_CUT, "primary", 20.0)
    heal = simulation.cut(both_ways(("worker1", "backup"), ("worker2", "backup")))
    simulation.run_for(19.0)
    assert simulation.checks.counts["activations"] == 1
    heal()
    simulation.run_for(5.0)
    simulation.finish()


def while_workers_die() -> int:
    """How many calls run out of time although one worker is always there."""
    simulation = pair()
    for client in simulation.clients.values():
        client.load = Load(5.0, 6.0, 10.0)
    simulation.run_for(2.0)
    for number in range(12):
        befall(
            simulation, (Kind.WORKER_CRASH, Kind.WORKER_DARK)[number // 2 % 2], f"worker{1 + number % 2}", 0.7
        )
        simulation.run_for(2.5)
    simulation.run_for(10.0)
    assert simulation.checks.counts["call answered"] > 100
    return simulation.checks.counts["call CallTimeoutError"]


def test_what_dying_workers_held_is_done_by_others_in_time() -> None:
    assert while_workers_die() == 0


def test_a_build_that_forgets_what_dying_workers_held_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endings, "redeliver", lambda self, request, *arguments: self._ledger.forget(request))
    assert while_workers_die() > 0


def while_workers_die_over_parts_for_mdp01() -> Simulation:
    """A client of MDP/0.1 gets all parts in one reply; those of a worker that died must not be among them."""
    simulation = pair(
        clients=(("client1", "mdp01"),), workers=(("worker1", "native", 1, 0.2), NATIVE.workers[1])
    )
    for _ in range(20):
        befall(simulation, Kind.WORKER_CRASH, "worker1", 0.1)
        simulation.run_for(1.4)
    simulation.finish()
    return simulation


def test_parts_for_a_client_of_mdp01_are_of_one_worker() -> None:
    simulation = while_workers_die_over_parts_for_mdp01()
    assert simulation.checks.counts["repeated executions"] > 5
    assert simulation.checks.counts["call answered"] > 30


def test_a_build_that_mixes_the_parts_of_two_workers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Endings.redeliver

    def keeps_the_parts(self: Endings, request: Accepted, *arguments: Any) -> None:
        held = request.held
        sound(self, request, *arguments)
        request.held = held

    monkeypatch.setattr(Endings, "redeliver", keeps_the_parts)
    with pytest.raises(Violation, match=r"^\(c\)"):
        while_workers_die_over_parts_for_mdp01()


def while_parts_find_full_pipes(seed: int = 1) -> Simulation:
    """A frozen client reads nothing, so that what it is owed does not fit into the pipe of its connection."""
    workers = (("worker1", "native", 4, 0.1), ("worker2", "native", 4, 0.1))
    simulation = pair(seed, pipe_max=1.0, calls_per_s=15.0, workers=workers)
    for _ in range(20):
        befall(simulation, Kind.CLIENT_STALL, "client1", 0.5)
        simulation.run_for(1.5)
    return simulation


def test_parts_that_found_no_room_are_missed_by_their_client() -> None:
    simulation = while_parts_find_full_pipes()
    assert simulation.checks.counts["full pipes"] > 10
    simulation.finish()


def test_a_build_whose_clients_miss_no_parts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ReplyReader.receive_partial

    def takes_any(self: ReplyReader, node: Any, message: Any, outputs: Any) -> None:
        call = self._calls.by_identity.get(message.identity)
        if call is not None:
            call.partials_count = message.value
            call.partials_from = node.connection
            call.partials = [*call.partials]
        sound(self, node, message, outputs)

    monkeypatch.setattr(ReplyReader, "receive_partial", takes_any)

    def runs() -> None:
        # Parts get lost where a pipe is full at the right moment, which is not in every run.
        for seed in range(1, 11):
            while_parts_find_full_pipes(seed)

    with pytest.raises(Violation, match=r"\(c\)"):
        runs()


def while_the_role_moves_under_a_limit() -> Simulation:
    """A node dies while handlers run that its peer has not heard of. They outlive it."""
    workers = tuple((f"worker{number}", "native", 2, 0.2) for number in range(1, 5))
    simulation = pair(workers=workers, running_max=3, calls_per_s=1.0)
    for _ in range(4):
        [active] = simulation.checks.serving()
        [passive] = [node for node in simulation.nodes if node is not active]
        there, here = (node.node.broker.ledger.workers for node in (active, passive))
        while sum(each.held for each in there.values()) < 3 or any(each.elsewhere for each in here.values()):
            simulation.run_for(0.01)
        befall(simulation, Kind.CRASH, active.name, 1.0)
        simulation.run_for(6.0)
    return simulation


def test_a_limit_holds_when_the_role_moves() -> None:
    counts = while_the_role_moves_under_a_limit().checks.counts
    assert counts["activations"] == 5
    assert counts["given out at the limit"] > 10
    assert counts["given out beside what the other node gave out"] > 0


def test_a_build_whose_workers_do_not_say_what_they_still_execute_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Jobs, "elsewhere", lambda self, connection: 0)
    with pytest.raises(Violation, match=r"^\(p\)"):
        while_the_role_moves_under_a_limit()


def test_a_build_that_does_not_wait_for_what_workers_say_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerRecord, "weight", lambda self, epoch: self.held + (self.elsewhere or 0))
    with pytest.raises(Violation, match=r"^\(p\)"):
        while_the_role_moves_under_a_limit()


PLAIN = (("client1", "mdp02"), ("client2", "mdp01"), ("client3", "mdp02"), ("client4", "mdp01"))


def while_the_active_node_stalls() -> Simulation:
    """Again and again, for twice the failover timeout. Plain clients ask it, and nobody asks its peer."""
    workers = (("worker1", "mdp01", 1, 0.01), ("worker2", "mdp02", 1, 0.01))
    simulation = pair(mood=Mood.PROCESSES, workers=workers, clients=PLAIN, calls_per_s=20.0)
    for _ in range(10):
        befall(simulation, Kind.STALL, "primary", 2 * TIMEOUT_S)
        simulation.run_for(2.0)
    assert simulation.primary.node.machine.counters.stalls == 10
    assert simulation.checks.serving() == [simulation.primary]
    return simulation


def test_a_stall_without_a_takeover_loses_no_plain_request() -> None:
    simulation = while_the_active_node_stalls()
    assert simulation.checks.counts["kept while a node was away"] >= 10
    ledger = simulation.primary.node.broker.ledger
    assert ledger.drops["not-active"] == 0
    assert all(service.tally.returned == 0 for service in ledger.services.values())
    simulation.finish()


def test_a_build_that_drops_plain_requests_while_it_asks_its_peer_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bstar_broker.core.broker.Broker.may_wait", lambda self, request: False)
    with pytest.raises(Violation, match=r"\(l\)"):
        while_the_active_node_stalls()


def test_a_plain_client_that_begins_beside_a_backup_that_serves_may_lose_its_first_call() -> None:
    """It asks the primary first, which is passive and cannot tell a plain client who serves."""
    simulation = pair(seed=3, clients=(("client1", "mdp02"),), calls_per_s=0.02)
    befall(simulation, Kind.CRASH, "primary", 1.0)
    simulation.run_for(100.0)
    assert simulation.checks.serving() == [simulation.backup]
    befall(simulation, Kind.CLIENT_CRASH, "client1", 1.0)
    simulation.run_for(400.0)
    assert simulation.checks.counts["call OutcomeUnknownError"] >= 1
    assert simulation.checks.counts["call answered"] >= 1
    simulation.finish()


def with_callers_that_leave() -> Simulation:
    """The only worker has little time left, so that many calls wait."""
    simulation = pair(workers=(("worker1", "native", 1, 0.05),), calls_per_s=4.0)
    simulation.run_for(60.0)
    return simulation


def test_nothing_begins_for_a_caller_who_has_left() -> None:
    assert with_callers_that_leave().checks.counts["call left"] >= 3


def test_a_build_that_ignores_a_cancel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bstar_broker.core.endings.Endings.give_up", lambda *_: [])
    with pytest.raises(Violation, match=r"\(n\)"):
        with_callers_that_leave()


def test_a_goodbye_in_the_backlog_of_a_stall_does_not_let_a_node_serve_beside_its_returned_peer() -> None:
    """The primary stops while the backup is frozen, comes back alone and serves; then the backup goes on."""
    simulation = pair(calls_per_s=20.0)
    befall(simulation, Kind.STALL, "backup", 3.0)
    befall(simulation, Kind.STOP, "primary", 0.1)
    simulation.run_for(2.9)
    assert simulation.primary.runs == 2
    assert simulation.checks.serving() == [simulation.primary]
    simulation.run_for(1.0)
    assert simulation.checks.serving() == [simulation.primary]
    assert simulation.checks.counts["activations"] == 2, "both are of the primary"
    simulation.finish()


@pytest.mark.parametrize("is_probing", [True, False])
def test_a_killed_node_is_replaced_at_once_where_a_refused_connection_proves_its_death(
    is_probing: bool,
) -> None:
    simulation = pair(is_probing=is_probing, calls_per_s=20.0)
    befall(simulation, Kind.CRASH, "primary", 3.0)
    simulation.run_for(0.15)
    assert simulation.checks.serving() == ([simulation.backup] if is_probing else [])
    simulation.run_for(0.5)
    assert simulation.checks.serving() == [simulation.backup]
    assert simulation.backup.node.machine.counters.peers_gone == is_probing
    simulation.finish()


@pytest.mark.parametrize("kind", [Kind.DARK, Kind.STALL, Kind.PEER_CUT, Kind.PEER_MUTE, Kind.PEER_RESET])
def test_only_a_dead_process_on_a_host_that_lives_refuses(kind: Kind) -> None:
    simulation = pair(calls_per_s=20.0)
    befall(simulation, kind, "primary", 5.0)
    simulation.run_for(6.0)
    assert simulation.backup.node.machine.counters.peers_gone == 0
    simulation.calm_down()
    simulation.finish()


def while_a_refusal_waits_for_a_frozen_node() -> int:
    """How often somebody became active: the primary dies, the backup asks its endpoint and freezes before it
    reads the refusal; the primary comes back and serves alone; then the backup goes on.
    """
    simulation = pair(delay_s=0.002, jitter_s=0.0)
    befall(simulation, Kind.CRASH, "primary", 0.05)
    simulation.run_for(0.003)  # the end of the connection has come, the refusal has not
    befall(simulation, Kind.STALL, "backup", 1.0)
    simulation.run_for(0.9)
    assert simulation.checks.serving() == [simulation.primary]
    simulation.run_for(0.1001)
    simulation.backup.vote()
    return simulation.checks.counts["activations"]


def test_a_refusal_from_before_a_stall_proves_nothing() -> None:
    assert while_a_refusal_waits_for_a_frozen_node() == 2


def test_a_build_that_believes_a_refusal_from_before_a_stall_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = StarMachine._on_stall

    def keeps_waiting_for_the_verdict(self: StarMachine, gap_s: float, now: float) -> Any:
        kept = self.peer.link_lost_at
        outputs = sound(self, gap_s, now)
        self.peer.link_lost_at = kept
        return outputs

    monkeypatch.setattr(StarMachine, "_on_stall", keeps_waiting_for_the_verdict)
    assert while_a_refusal_waits_for_a_frozen_node() == 3


def test_a_handover_to_a_peer_that_has_just_come_back_is_not_taken_back_before_its_answer_can_come() -> None:
    """The backup's host was off for a moment, so the primary's subscription is half-open and deaf."""
    for seed in range(1, 11):
        simulation = pair(seed, calls_per_s=20.0)
        befall(simulation, Kind.DARK, "backup", 0.2)
        simulation.run_for(0.26)
        befall(simulation, Kind.HANDOVER, "primary", 0.0)
        simulation.run_for(0.2)
        assert simulation.checks.counts["activations"] <= 2, "a handover is one activation"
        simulation.call_as_in_storms()
        simulation.finish()


def test_a_node_that_wakes_up_beside_its_returned_peer_hears_it_before_a_vote_counts() -> None:
    """While it was frozen its peer came back and served; its subscriber must connect within the timeout."""
    for seed in range(1, 11):
        simulation = pair(seed, calls_per_s=20.0)
        befall(simulation, Kind.CRASH, "primary", 3.0)
        simulation.run_for(2.5 + seed / 100)
        assert simulation.checks.serving() == [simulation.backup]
        befall(simulation, Kind.STALL, "backup", 2.0)
        simulation.run_for(2.0)
        assert simulation.checks.serving() == [simulation.primary]
        for _ in range(20):
            simulation.run_for(TIMEOUT_S / 10)
            simulation.backup.vote()
        assert simulation.checks.serving() == [simulation.primary]
        assert simulation.checks.counts["activations"] == 3


def test_a_node_that_stalls_again_amid_what_queued_up_gives_out_nothing_when_it_goes_on() -> None:
    """A pause that moves nothing, then one of 1.5 s after half of the requests that waited were read."""
    simulation = pair(calls_per_s=50.0)
    befall(simulation, Kind.STALL, "primary", 0.15, amount=1.0)
    simulation.run_for(0.2)
    assert simulation.primary.is_frozen
    simulation.run_for(1.3)
    assert simulation.checks.serving() == [simulation.backup]
    simulation.run_for(0.5)
    assert simulation.checks.serving() == [simulation.backup]
    assert simulation.primary.node.machine.counters.stalls == 1


def test_a_pause_that_its_clock_does_not_see_may_let_a_node_give_out_work_which_workers_refuse() -> None:
    """The limit of the stall rule: a virtual machine whose clock stands still while it is paused."""
    rules: list[str] = []
    for seed in range(1, 21):
        simulation = pair(seed, calls_per_s=20.0)
        simulation.checks.troubles.append((simulation.world.now, simulation.world.now + 2.0))
        simulation.primary.freeze()
        simulation.run_for(2.0)
        assert simulation.checks.serving() == [simulation.backup]
        simulation.primary.stop_clock(2.0)
        try:
            simulation.primary.thaw()
        except Violation as violation:
            rules.append(violation.rule)
        else:
            simulation.run_for(0.1)
            assert simulation.checks.serving() == [simulation.backup], "the peer's next message ends it"
    # It gives out work, and no worker executes it: that would be (b).
    assert set(rules) == {"a"}, "the limit that docs/simulation.md describes is not there any more"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_pause_and_a_heartbeat_within_the_timeout_never_move_the_role(share: float) -> None:
    simulation = pair(mood=Mood.QUIET)
    for number in range(30):
        pause_s = share * (TIMEOUT_S - HEARTBEAT_S - 0.01)
        befall(simulation, Kind.STALL, ("primary", "backup")[number % 2], pause_s)
        simulation.run_for(0.7)
    assert simulation.checks.counts["activations"] == 1


def test_a_pause_of_nearly_the_timeout_may_move_the_role() -> None:
    """What the passive node hears of is silence: the pause and what was left of the heartbeat before it."""
    moved = 0
    for seed in range(1, 31):
        simulation = pair(seed, calls_per_s=20.0)
        befall(simulation, Kind.STALL, "primary", TIMEOUT_S - 0.001)
        simulation.run_for(2.0)
        moved += simulation.checks.counts["activations"] - 1
        assert len(simulation.checks.serving()) == 1
    assert moved > 0, "the limit that docs/simulation.md describes is not there any more"


def test_a_worker_takes_note_of_epochs_from_the_octets_that_reach_it() -> None:
    simulation = pair()
    workers = native_workers(simulation)
    assert [worker.epoch_seen for worker in workers] == [worker.core.epoch for worker in workers] == [1, 1]


def test_what_waits_for_a_frozen_process_waits_again_if_it_freezes_at_once() -> None:
    """It was a turn of a node in the middle of a pause, which hid the pause from the node."""

    class Asleep(Process):
        def catch_up(self) -> None:
            self.freeze()

    world = World(1)
    process, done = Asleep(world, "one"), list[float]()
    process.boot()
    process.freeze()
    process.when_it_goes_on(lambda: done.append(world.now))
    process.thaw()
    world.run_until(1.0)
    assert process.is_frozen
    assert not done
    process.catch_up = lambda: None  # type: ignore[method-assign]
    process.deadline = lambda: None  # type: ignore[method-assign]
    process.thaw()
    world.run_until(2.0)
    assert done == [1.0]
