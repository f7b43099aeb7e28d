"""The simulator's runs with keys: outsiders attack, keys come and go, and broken builds are caught.

Rule (j) of docs/simulation.md: nobody gets more than the list of principals gives. An outsider has a listed
key of another service and knows everything about the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from bstar.wire.messages import Ready
from bstar_broker.core import Node, endings
from bstar_broker.core.authority import Authority
from bstar_broker.core.endings import Endings
from bstar_broker.core.quotas import Denial
from bstar_broker.core.registry import WorkerRegistry
from sim.checks import Violation
from sim.faults import Kind, Mood
from sim.keys import READ_S
from sim.run import Simulation
from sim.seeds import played
from sim.setup import setup_of
from test_sim import befall
from test_sim import pair as pair_of

# Each run simulates minutes of a pair.
pytestmark = pytest.mark.storm

CLIENT, WORKER = 0.0, 0.9  # which of the two outsiders
SLOW = (("worker1", "native", 4, 0.1), ("worker2", "native", 4, 0.1))


pair = partial(pair_of, has_keys=True)


def attack(simulation: Simulation, seconds: float, whom: Sequence[float] = (CLIENT, WORKER)) -> None:
    """Let outsiders attack both nodes."""
    for node in simulation.nodes:
        for who in whom:
            befall(simulation, Kind.ATTACK, node.name, seconds, amount=who)


# --- seeds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mood", Mood)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_invariant_breaks_whatever_outsiders_do(seed: int, mood: Mood) -> None:
    outcome = played(seed, mood, keys=True)
    assert outcome.counts["messages of outsiders"] > 50, "a run without attacks proves nothing"
    assert outcome.counts["call answered"] > 100, "a run without traffic proves nothing"


def test_half_of_all_runs_have_keys_and_the_others_are_what_they_would_be_without_them() -> None:
    setups = [setup_of(seed) for seed in range(300)]
    assert 0.4 < sum(setup.has_keys for setup in setups) / len(setups) < 0.6
    for seed in range(20):
        plain, secure = setup_of(seed, keys=False, pirates=False, emq=False), setup_of(seed, keys=True)
        added = {Kind.ATTACK, Kind.KEY_WITHDRAWN}
        assert tuple(fault for fault in secure.faults if fault.kind not in added) == plain.faults
        assert plain == msgspec.structs.replace(secure, faults=plain.faults, has_keys=False)


# --- named scenarios ----------------------------------------------------------------------------------------


def while_outsiders_attack(mood: Mood = Mood.QUIET) -> Simulation:
    """Nothing is broken, so nothing may come of it."""
    simulation = pair(mood=mood)
    attack(simulation, 30.0)
    simulation.run_for(31.0)
    return simulation


def test_a_pair_serves_as_if_nobody_attacked_it() -> None:
    simulation = while_outsiders_attack()
    simulation.finish()
    counts = simulation.checks.counts
    assert counts["messages of outsiders"] > 500
    assert counts["activations"] == 1
    ends = ("call answered", "call HandlerError", "call left")
    assert sum(counts[end] for end in ends) == counts["calls"]


def while_workers_routing_ids_change_hands(seed: int) -> Simulation:
    """Workers die at work, and an outsider that is a worker, too, claims their routing ids."""
    simulation = pair(seed, workers=SLOW, calls_per_s=6.0)
    attack(simulation, 30.0, [WORKER])
    for number in range(15):
        befall(simulation, Kind.WORKER_CRASH, f"worker{1 + number % 2}", 0.7)
        simulation.run_for(2.0)
    return simulation


def while_clients_routing_ids_change_hands(seed: int) -> Simulation:
    """The connections of clients break while they wait, and outsiders claim their routing ids."""
    simulation = pair(seed, workers=SLOW, calls_per_s=6.0)
    attack(simulation, 30.0)
    for number in range(15):
        befall(simulation, Kind.CLIENT_CRASH, f"client{1 + number % 2}", 0.7)
        simulation.run_for(2.0)
    return simulation


def while_waiting_clients_routing_ids_change_hands(seed: int) -> Simulation:
    """One slow worker, so that requests wait; most of them are of plain clients, and have no identity."""
    simulation = pair(
        seed,
        workers=(("worker1", "native", 1, 0.4),),
        clients=(("client1", "mdp02"), ("client2", "native"), ("client3", "mdp02")),
        calls_per_s=3.0,
    )
    attack(simulation, 40.0)
    for number in range(20):
        befall(simulation, Kind.CLIENT_CRASH, f"client{1 + number % 3}", 0.5)
        simulation.run_for(2.0)
    return simulation


CHANGES = [while_workers_routing_ids_change_hands, while_clients_routing_ids_change_hands]


@pytest.mark.parametrize("change", CHANGES)
def test_who_claims_the_routing_id_of_a_broken_connection_gets_nothing_of_it(
    change: Callable[[int], Simulation],
) -> None:
    simulation = change(1)
    simulation.finish()
    taken = [node.node.broker.ledger.drops["routing-id-taken"] for node in simulation.nodes]
    assert sum(taken) > 5, "too few routing ids changed hands"


def test_who_claims_a_routing_id_and_is_silent_gets_what_was_for_its_former_owner() -> None:
    """The limit that docs/security.md describes: a node learns of a new owner from its first message."""
    guards = [change(seed).checks.guard for seed in range(6, 11) for change in CHANGES]
    assert sum(guard.silent_successors for guard in guards if guard is not None) > 0


def answered(simulation: Simulation, client: str) -> int:
    """How many calls of this client have been answered so far."""
    lines = simulation.world.trace or []
    return sum(f" {client}." in line and line.endswith(" answered") for line in lines)


def test_a_client_whose_key_is_withdrawn_is_refused_until_it_is_listed_again() -> None:
    simulation = pair(calls_per_s=10.0)
    befall(simulation, Kind.KEY_WITHDRAWN, "client1", 10.0)
    simulation.run_for(READ_S + 0.5)
    before, others = answered(simulation, "client1"), answered(simulation, "client2")
    simulation.run_for(7.0)
    assert answered(simulation, "client1") == before
    assert answered(simulation, "client2") > others + 20
    assert simulation.checks.counts["call RejectedError"] > 0
    simulation.run_for(READ_S + 5.0)
    assert answered(simulation, "client1") > before + 20
    simulation.finish()


def while_a_worker_is_not_listed() -> Simulation:
    """Its connection is open all the time."""
    simulation = pair(calls_per_s=10.0)
    befall(simulation, Kind.KEY_WITHDRAWN, "worker1", 10.0)
    simulation.run_for(9.0)
    assert simulation.primary.node.broker.ledger.services[b"work"].workers == 1
    simulation.run_for(10.0)
    assert simulation.primary.node.broker.ledger.services[b"work"].workers == 2
    simulation.finish()
    return simulation


def test_a_worker_whose_key_is_withdrawn_gets_no_requests_until_it_is_listed_again() -> None:
    assert while_a_worker_is_not_listed().checks.counts["call answered"] > 100


# --- broken builds: a test of the tests ---------------------------------------------------------------------


def judge_nothing(self: Authority, message: Any, user_id: str, now: float) -> Denial | None:
    """Everybody may do everything."""
    return None


def of_some_seed(run: Callable[[int], Simulation]) -> None:
    for seed in range(1, 11):
        run(seed)


def test_a_build_that_judges_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authority, "judge", judge_nothing)
    with pytest.raises(Violation, match=r"^\(j\)"):
        while_outsiders_attack()


def test_a_build_that_believes_an_epoch_before_it_judges_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Authority.judge

    def judge(self: Authority, message: Any, user_id: str, now: float) -> Denial | None:
        return None if isinstance(message, Ready) else sound(self, message, user_id, now)

    monkeypatch.setattr(Authority, "judge", judge)
    monkeypatch.setattr(WorkerRegistry, "register", lambda self, message, now: [])
    with pytest.raises(Violation, match=r"^\(j\) .*took note of epoch"):
        while_outsiders_attack(Mood.STORM)


def test_a_build_that_lets_a_routing_id_change_its_owner_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authority, "is_new_owner", lambda self, routing_id, user_id, now: False)
    with pytest.raises(Violation, match=r"^\((i|j)\)"):
        of_some_seed(while_workers_routing_ids_change_hands)


@pytest.mark.parametrize("seed", [1, 2])
def test_who_claims_the_routing_id_of_a_client_that_waited_gets_no_reply(seed: int) -> None:
    while_waiting_clients_routing_ids_change_hands(seed)


def test_a_build_that_answers_where_another_is_now_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endings, "orphan", lambda self, client: None)
    with pytest.raises(Violation, match=r"^\(j\) .*a reply"):
        of_some_seed(while_clients_routing_ids_change_hands)


def test_a_build_that_keeps_a_worker_whose_key_is_gone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "principals_changed", lambda self, now: [])
    monkeypatch.setattr(Authority, "judge", judge_nothing)
    with pytest.raises(Violation, match=r"^\(j\) .*a request"):
        while_a_worker_is_not_listed()


def test_a_build_that_serves_a_client_whose_key_is_gone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Authority.judge

    def judge(self: Authority, message: Any, user_id: str, now: float) -> Denial | None:
        denial = sound(self, message, user_id, now)
        return None if denial is not None and denial.reason == "key-not-listed" else denial

    monkeypatch.setattr(Authority, "judge", judge)
    simulation = pair(calls_per_s=10.0)
    befall(simulation, Kind.KEY_WITHDRAWN, "client1", 10.0)
    with pytest.raises(Violation, match=r"^\(j\) .*no client that may call the service asked for"):
        simulation.run_for(9.0)


def while_clients_and_plain_workers_end_together() -> Simulation:
    """A request at a worker loses its client's routing id, and then its worker."""
    workers = (("worker1", "mdp02", 1, 0.2), ("worker2", "mdp02", 1, 0.2))
    clients = (("client1", "mdp02"), ("client2", "native"))
    simulation = pair(3, workers=workers, clients=clients, calls_per_s=1.0)
    attack(simulation, 30.0, [CLIENT])
    for number in range(10):
        befall(simulation, Kind.CLIENT_CRASH, f"client{1 + number % 2}", 0.5)
        simulation.run_for(0.1)
        befall(simulation, Kind.WORKER_CRASH, f"worker{1 + number % 2}", 0.5)
        simulation.run_for(2.5)
    simulation.finish()
    return simulation


def test_a_request_whose_client_lost_its_routing_id_is_redelivered_to_a_plain_worker_and_ends() -> None:
    simulation = while_clients_and_plain_workers_end_together()
    assert sum(node.node.broker.ledger.drops["routing-id-taken"] for node in simulation.nodes) > 5


def test_a_build_that_gives_such_a_request_no_address_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain worker ignores a request without a client address, and holds it for ever."""
    monkeypatch.setattr(endings, "NO_CLIENT", b"")
    with pytest.raises(Violation, match=r"^\(e\) .*still remembers calls that are over"):
        while_clients_and_plain_workers_end_together()
