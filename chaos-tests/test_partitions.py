"""Networks that fall apart, in one direction or both, and networks that lose, repeat and shuffle packets.

Every process is on a host of its own (``chaos.network``): two nodes, two workers, clients. Cuts are silent
unless said otherwise, so nobody's connection breaks: that the other end is gone shows in time only. All runs
are judged by the rules of ``chaos.validate``; what each test asserts beyond them is what
docs/guarantees.md says of that case. Where a failover must not happen, a run in which the machine itself
stood still shows nothing and is repeated.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from bstar_testing.processes import Process
from chaos.channel import Quality
from chaos.cluster import Profile
from chaos.history import Failed, Registered, Writer
from chaos.model import Call, Run
from chaos.needs import CHAOS, until_valid
from chaos.network import By, Network, require_namespaces
from chaos.stage import Cast, Stage, stage
from chaos.traffic import ClientLoad
from chaos.validate import InvalidRunError, is_machine_noise

pytestmark = CHAOS

NAMES = ("primary", "backup", "worker1", "worker2", "client1", "client2", "client3", "arbiter")
EVERYONE = frozenset(NAMES)
PRIMARY, BACKUP = ("primary",), ("backup",)
# Where nothing may fail over, a busy machine must not look like a dead peer.
PATIENT = Profile(settings={"timing.failover_timeout_s": 1.0, "timing.worker_heartbeat_interval_s": 0.3})
# Longer than any of these timeouts, and than a worker's expiry (1.2 s).
CUT_S = 1.8


@pytest.fixture
def network() -> Iterator[Network]:
    require_namespaces()
    with Network(NAMES, seed=1) as network:
        yield network


def cast_on(network: Network, cast: Cast | None = None) -> Cast:
    cast = cast or Cast()
    carriers = (("wire", network.wire.pid), *cast.carriers)
    return replace(cast, hosts=network.hosts, is_proxied=False, carriers=carriers)


def outcome(run: Stage, network: Network, *, activations: int) -> Run:
    """What happened, in which there must have been so many activations."""
    assert run.run is not None
    terms = run.run.terms
    if len(terms) != activations:
        limit_s = run.manifest.failover_timeout_s - run.manifest.heartbeat_s
        pauses_s = [span.end - span.begin for span in run.run.unplanned]
        late_s = max([*pauses_s, network.wire.look().late_s_max])
        if late_s > limit_s / 2 or any(is_machine_noise(run.run, term) for term in terms[1:]):
            raise InvalidRunError(f"the machine itself was late by {late_s:.3f} s, which explains {terms}")
    assert len(terms) == activations, [(term.node, term.epoch, term.why) for term in terms]
    return run.run


def failed(run: Run, *clients: str) -> list[Call]:
    """Calls that ended with an error, of these clients or of all."""
    return [
        call
        for call in run.calls
        if any(isinstance(end, Failed) for end in call.ends) and call.client in (clients or EVERYONE)
    ]


# --- one host is cut off ------------------------------------------------------------------------------------


@until_valid
def test_the_other_node_serves_while_the_active_one_is_cut_off(network: Network) -> None:
    """Silently, then so that every connection is reset. It yields when it is back, and stays passive."""
    ways: tuple[By, ...] = ("wire", "reset")
    with stage("active-isolated", cast=cast_on(network)) as run:
        for by in ways:
            active = run.cluster.active()
            other = run.cluster.peer_of(active)
            with run.fault(by, active.name, hits_peer_link=True), network.isolate(active.name, by=by):
                run.wait_for_answers(20)
                run.last(CUT_S)
                other.wait_for_state("ACTIVE")
            active.wait_for_state("PASSIVE")
            run.calm()
    terms = outcome(run, network, activations=3).terms
    assert [term.node for term in terms] == ["primary", "backup", "primary"]


@until_valid
def test_nobody_notices_that_the_passive_node_is_cut_off(network: Network) -> None:
    with stage("passive-isolated", cast=cast_on(network, Cast(profile=PATIENT))) as run:
        with run.fault("isolated", "backup", hits_peer_link=True), network.isolate("backup"):
            run.cluster.primary.wait_for("without its peer", lambda state: not state.pair.is_peer_fresh)
            run.last(CUT_S)
            run.wait_for_answers(20)
        run.cluster.primary.wait_for("with its peer", lambda state: state.pair.is_peer_fresh)
        run.calm()
    assert failed(outcome(run, network, activations=1)) == []


@until_valid
def test_a_client_that_alone_cannot_reach_the_active_node_moves_nothing(network: Network) -> None:
    """Its calls end by their deadlines; those of others are served. It goes on when the way is free again."""
    load = ClientLoad(deadline_s=1.0)
    with stage("client-cut", cast=cast_on(network, Cast(profile=PATIENT, client_load=load))) as run:
        cut, other = run.cluster.clients
        with run.fault("cut", "client1-primary"), network.partition({"client1"}, {"primary"}):
            cut.wait_for("errors", lambda line: isinstance(line, Failed), 2 * load.threads)
            other.wait_for_answers(40)
        run.calm()
    happened = outcome(run, network, activations=1)
    assert failed(happened, "client1") != []
    assert failed(happened, "client2") == []


@until_valid
def test_the_role_follows_clients_that_reach_the_passive_node_only(network: Network) -> None:
    """The nodes hear each other and their workers all the time; nobody but the clients can know of it."""
    with stage("clients-cut", cast=cast_on(network)) as run:
        clients = {client.name for client in run.cluster.clients}
        with run.fault("cut", "clients-primary"), network.partition(clients, {"primary"}):
            run.cluster.backup.wait_for_state("ACTIVE")
            run.wait_for_answers(40)
            run.cluster.primary.wait_for_state("PASSIVE")
        run.calm()
        assert "hands the role over" in run.cluster.primary.log_path.read_text()
    assert [term.node for term in outcome(run, network, activations=2).terms] == ["primary", "backup"]


@until_valid
def test_what_an_unreachable_worker_held_goes_to_another_one(network: Network) -> None:
    with stage("worker-cut", cast=cast_on(network, Cast(profile=PATIENT))) as run:
        worker = run.cluster.workers[0]
        with run.fault("cut", "worker1-primary"), network.partition({"worker1"}, {"primary"}):
            run.cluster.primary.wait_for("without the worker", lambda state: state.broker.workers == 1)
            run.wait_for_answers(40)
        worker.wait_for("its return", lambda line: isinstance(line, Registered))
        run.calm()
    happened = outcome(run, network, activations=1)
    # What must not be repeated is not, and says so; all else is answered.
    assert [call for call in failed(happened) if call.is_idempotent] == []


# --- the link between the nodes -----------------------------------------------------------------------------


@until_valid
def test_clients_that_keep_to_the_active_node_do_not_notice_that_the_peer_link_is_cut(
    network: Network,
) -> None:
    """In both directions; then so that the active node is not heard; then so that it does not hear."""
    ways = (
        ({"primary"}, {"backup"}, False),
        ({"primary"}, {"backup"}, True),
        ({"backup"}, {"primary"}, True),
    )
    with stage("peer-link-cut", cast=cast_on(network, Cast(profile=PATIENT))) as run:
        for source, to, one_way in ways:
            with (
                run.fault("one-way" if one_way else "cut", f"{source} {to}", hits_peer_link=True),
                network.partition(source, to, one_way=one_way),
            ):
                run.cluster.backup.wait_for("without its peer", lambda state: not state.pair.is_peer_fresh)
                run.wait_for_answers(20)
            run.cluster.backup.wait_for("with its peer", lambda state: state.pair.is_peer_fresh)
            run.calm()
    assert failed(outcome(run, network, activations=1)) == []


@until_valid
def test_shared_workers_obey_one_node_while_clients_on_both_sides_of_a_cut_link_are_served(
    network: Network,
) -> None:
    """A pair cannot prevent that both serve; the epochs then pass the role back and forth."""
    with stage("clients-on-both-sides", cast=cast_on(network, Cast(clients=(PRIMARY,)))) as run:
        own = run.cluster.clients[0]
        with run.fault("cut+clients", "peer link", hits_peer_link=True):
            with network.partition({"primary"}, {"backup"}):
                other = run.add_client(nodes=BACKUP)
                for _ in range(3):
                    other.wait_for_answers(10)
                    own.wait_for_answers(10)
            own.finish()
            other.finish()
            run.add_client()
        run.calm()
    assert run.run is not None
    assert {term.node for term in run.run.terms} == {"primary", "backup"}


@until_valid
def test_two_halves_serve_until_the_network_heals_and_the_lower_epoch_yields(network: Network) -> None:
    """Each half has a node, a worker and a client that knows both nodes.

    The lower epoch yields first. If by then the other node is not heard yet, because TCP waits with sending
    again what was lost, and that for longer than the failover timeout, the role may come back under a higher
    epoch: the network is not healed before that.
    """
    with stage("halves", cast=cast_on(network)) as run:
        with (
            run.fault("halves", "network", hits_peer_link=True),
            network.partition(
                {"primary", "worker1", "client1"}, set(EVERYONE - {"primary", "worker1", "client1"})
            ),
        ):
            run.wait_for_answers(40)
            states = [run.cluster.primary.look(), run.cluster.backup.look()]
            assert [state and state.pair.is_active for state in states] == [True, True]
        run.calm()
    assert run.run is not None
    first, second, *later = run.run.terms
    assert (first.node, second.node) == ("primary", "backup")
    assert second.since < first.until <= second.until
    assert first.epoch < second.epoch
    assert all(one.epoch < next_one.epoch for one, next_one in pairwise((second, *later)))


@pytest.mark.parametrize("kind", ["mute", "deaf"])
@until_valid
def test_the_other_node_serves_while_the_active_one_hears_or_is_heard_only(
    network: Network, kind: str
) -> None:
    """A cut of one direction, between the active node and everybody. TCP needs both.

    A mute node may hear of its peer's new epoch from a worker before the peer itself says so; the role must
    not come back to it for that when the network heals.
    """
    others = set(EVERYONE - {"primary"})
    sides = ({"primary"}, others) if kind == "mute" else (others, {"primary"})
    with stage(f"active-{kind}", cast=cast_on(network)) as run:
        with run.fault(kind, "primary", hits_peer_link=True), network.partition(*sides, one_way=True):
            run.wait_for_answers(30)
            run.cluster.backup.wait_for_state("ACTIVE")
        run.calm()
        run.cluster.passive().wait_for_state("PASSIVE")
    assert run.run is not None
    assert [term.node for term in run.run.terms] == ["primary", "backup"]


# --- a third voter ------------------------------------------------------------------------------------------


@pytest.fixture
def arbiter(network: Network, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """An arbiter on a host of its own; its endpoint and process id."""
    endpoint = f"tcp://{network['arbiter'].address}:5010"
    argv = (
        sys.executable,
        "-m",
        "bstar_cli",
        "arbiter",
        "--bind",
        endpoint,
        "--insecure",
        "--log-format=json",
    )
    with Writer(tmp_path / "arbiter.jsonl") as journal:
        process = Process("arbiter", argv, folder=tmp_path, host=network["arbiter"], note=journal.note)
        with process:
            process.wait_for_log('"event": "ready"')
            yield endpoint, process.pid


def in_turn(run: Run) -> bool:
    """Whether no node was active while the other one was. A log is written a moment after what it tells."""
    return all(
        one.until < other.since + 0.05 or other.until < one.since + 0.05
        for one, other in combinations(run.terms, 2)
        if one.node != other.node
    )


@until_valid
def test_with_an_arbiter_one_node_serves_whatever_the_network_does(
    network: Network, arbiter: tuple[str, int]
) -> None:
    """The link between the nodes is cut, with a client on each side; then the arbiter; then the active node.

    In all of it the node that serves is one that its peer or the arbiter confirms, and what was cut off from
    both has stepped down before the other one begins, not when the network heals.
    """
    endpoint, pid = arbiter
    profile = Profile(settings={**PATIENT.settings, "endpoints.arbiter": endpoint})
    # The arbiter runs before there is a pair that could give it a key. test_attacks.py has one with a key.
    cast = Cast(profile=profile, carriers=(("arbiter", pid),), has_keys=False)
    with stage("arbiter", cast=cast_on(network, cast)) as run:
        primary, backup = run.cluster.nodes
        with run.fault("cut+clients", "peer link", hits_peer_link=True):
            with network.partition({"primary"}, {"backup"}):
                backup.wait_for("without its peer", lambda state: not state.pair.is_peer_fresh)
                other = run.add_client(nodes=BACKUP)
                other.wait_for("refusals", lambda line: isinstance(line, Failed))
                for client in run.cluster.clients[:2]:
                    client.wait_for_answers(20)
            other.finish()
        run.calm()
        with run.fault("isolated", "arbiter"), network.isolate("arbiter"):
            run.last(CUT_S)
            run.wait_for_answers(20)
        run.calm()
        with run.fault("isolated", "primary", hits_peer_link=True), network.isolate("primary"):
            run.wait_for_answers(20)
            backup.wait_for_state("ACTIVE")
            primary.wait_for_state("PASSIVE")
        run.calm()
    happened = outcome(run, network, activations=2)
    is_noise = any(is_machine_noise(happened, term) for term in happened.terms[1:])
    if not in_turn(happened) and (happened.unplanned or is_noise):
        raise InvalidRunError(f"the machine itself kept nodes waiting: {happened.delays}")
    assert in_turn(happened), happened.terms
    assert [term.node for term in happened.terms] == ["primary", "backup"]
    assert happened.terms[1].since > happened.faults[2].begin, "it served before the primary was cut off"


# --- bad links ----------------------------------------------------------------------------------------------


@until_valid
def test_nothing_fails_over_because_packets_are_late_shuffled_or_come_twice(network: Network) -> None:
    """As long as none is lost and none later than a failover timeout allows."""
    quality = Quality(
        duplicate_percent=20, reorder_percent=10, hold_ms=10, delay_ms=20, jitter_ms=10, rate_kbit_s=20_000
    )
    with stage("late-and-shuffled", cast=cast_on(network, Cast(profile=PATIENT))) as run:
        with run.fault("late", "all links", hits_peer_link=True), network.wire.quality(None, None, quality):
            run.wait_for_answers(40)
        run.calm()
    assert failed(outcome(run, network, activations=1)) == []


@pytest.mark.parametrize("percent", [5.0, 20.0])
@until_valid
def test_calls_are_served_although_packets_are_lost_and_shuffled_on_every_link(
    network: Network, percent: float
) -> None:
    """TCP sends again after 200 ms at the earliest, so that with a timeout of 300 ms the role may move.

    What is asserted is what holds even so: the rules, that calls are answered meanwhile, and recovery.
    """
    quality = Quality(loss_percent=percent, reorder_percent=percent, hold_ms=5)
    with stage("lossy", cast=cast_on(network), plan=f"{percent:g} % lost") as run:
        with run.fault("lossy", "all links", hits_peer_link=True), network.wire.quality(None, None, quality):
            run.wait_for_answers(20)
        run.calm()
    assert run.run is not None
    print(f"{percent:g} % of the packets lost: {len(run.run.terms) - 1} failovers, ", end="")
    print(f"{len(failed(run.run))} of {len(run.run.calls)} calls failed")


@until_valid
def test_a_partition_that_comes_and_goes_does_no_lasting_harm(network: Network) -> None:
    chance = random.Random(3)
    with stage("flapping", cast=cast_on(network)) as run:
        for _ in range(6):
            name = chance.choice(["primary", "backup"])
            with run.fault("flapping", name, hits_peer_link=True), ExitStack() as cuts:
                cuts.enter_context(network.isolate(name, by=chance.choice(["wire", "drop"])))
                run.last(chance.uniform(0.1, 0.7))
            run.last(chance.uniform(0.1, 0.5))
        run.calm()
