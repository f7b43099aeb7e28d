"""Clients that reach the passive node and not the active one: two whole nodes, their state link carried by
hand, and time a variable.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bstar.star import (
    Activated,
    ClientsCutOff,
    Event,
    Handover,
    Leave,
    PeerMessage,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    StateChanged,
    Tick,
)
from bstar.star.cut_off import CLIENTS_MAX, LONE_PATIENCE, PATIENCE, SETTLING, CutOff
from bstar.wire import native
from bstar.wire.peer import PeerState, decode, encode
from bstar_broker.core import BrokerSettings, Node, Send

HEARTBEAT_S, TIMEOUT_S = 0.1, 0.3
PATIENCE_S, LONE_S, SETTLING_S = (each * TIMEOUT_S for each in (PATIENCE, LONE_PATIENCE, SETTLING))
STEP_S = HEARTBEAT_S / 2
BROKER = BrokerSettings(worker_heartbeat_interval_s=1.0, worker_liveness=3)
ECHO = b"echo"


class Two:
    """A primary that serves and a backup that stands by; ``run`` lets time pass and carries what they say."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.log: list[tuple[float, str, object]] = []
        self.nodes = {role: self._node(role, settings) for role in Role}
        self._numbers = 0
        self.run(3 * TIMEOUT_S)
        assert self.primary.machine.state is State.ACTIVE
        assert self.backup.machine.state is State.PASSIVE

    def _node(self, role: Role, settings: dict[str, Any]) -> Node:
        star = StarSettings(
            pair="p", role=role, heartbeat_interval_s=HEARTBEAT_S, failover_timeout_s=TIMEOUT_S, **settings
        )
        machine = StarMachine(star, node=role.value, epoch=0, now=0.0)
        return Node(
            machine, BROKER, node_id=role.value.encode().ljust(16), drain_timeout_s=1.0, version="1", now=0.0
        )

    @property
    def primary(self) -> Node:
        return self.nodes[Role.PRIMARY]

    @property
    def backup(self) -> Node:
        return self.nodes[Role.BACKUP]

    def active(self) -> Role:
        [role] = [role for role, node in self.nodes.items() if node.is_active]
        return role

    def carry_out(self, role: Role, outputs: list[Any]) -> None:
        for output in outputs:
            self.log.append((self.now, role.value, output))
            if type(output) is Publish:
                heard = self.nodes[role.peer].step(PeerMessage(decode(encode(output.message))), self.now)
                self.carry_out(role.peer, list(heard))

    def run(self, seconds: float, *, each_step: Any = None) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            if each_step is not None:
                each_step()
            for role, node in self.nodes.items():
                deadline = node.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self.carry_out(role, list(node.step(Tick(), self.now)))

    def send(self, role: Role, sender: bytes, frames: list[bytes]) -> None:
        self.carry_out(role, list(self.nodes[role].receive_frames([sender, *frames], self.now)))

    def register(self, *roles: Role, service: bytes = ECHO) -> None:
        """A worker that lives for ever: the others' heartbeats are no matter here."""
        for role in roles:
            worker = b"worker of " + service
            self.send(role, worker, native.encode_ready(service, credit=100, epoch=0))
            self.nodes[role].broker.ledger.workers[worker].expires_at = 1e9

    def ask(self, role: Role, *clients: bytes, service: bytes = ECHO) -> None:
        for client in clients:
            self._numbers += 1
            identity = native.identity(client.ljust(16), self._numbers)
            self.send(role, client, native.encode_request(identity, service, [b"?"], ttl_ms=100))

    def of(self, kind: type) -> list[Any]:
        return [output for _, _, output in self.log if type(output) is kind]

    def moves(self) -> list[float]:
        return [at for at, _, output in self.log if type(output) is Activated][1:]


def asking(two: Two, *clients: bytes, service: bytes = ECHO) -> Any:
    """All of them ask whichever node is passive, at each step."""

    def step() -> None:
        two.ask(two.active().peer, *clients, service=service)

    return step


def test_the_role_follows_clients_that_reach_the_passive_node_only() -> None:
    two = Two()
    two.register(*Role)
    two.run(10.0)
    cut_at = two.now
    two.run(PATIENCE_S + 3 * HEARTBEAT_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2"))
    assert two.active() is Role.BACKUP
    assert two.moves()[0] - cut_at >= PATIENCE_S
    [change] = [each for each in two.of(StateChanged) if each.event is Event.CLIENTS_CUT_OFF]
    assert (change.old, change.new) == (State.ACTIVE, State.PASSIVE)
    reports = two.of(ClientsCutOff)
    assert [report.verdict for report in reports] == [
        "asks the active node to hand over",
        "hands the role over",
    ]
    assert all(report.clients == 2 and report.for_s >= PATIENCE_S for report in reports)
    # The clients are served now, and the old node counts what it did. No operator ordered it.
    assert [node.machine.counters.ordered_moves for node in two.nodes.values()] == [0, 0]
    assert two.primary.state(two.now).pair.cut_off_handovers == 1
    assert two.backup.broker.ledger.services[ECHO].tally.accepted > 0


def test_a_single_client_is_a_witness_as_well_but_for_longer() -> None:
    two = Two()
    two.register(*Role)
    two.run(10.0)
    two.run(LONE_S - HEARTBEAT_S, each_step=lambda: two.ask(Role.BACKUP, b"c1"))
    assert two.active() is Role.PRIMARY
    two.run(4 * HEARTBEAT_S, each_step=lambda: two.ask(Role.BACKUP, b"c1"))
    assert two.active() is Role.BACKUP


def test_whoever_is_served_keeps_the_role_where_it_is() -> None:
    two = Two()
    two.register(*Role)

    def step() -> None:
        two.ask(Role.BACKUP, b"c1", b"c2", b"c3")
        if int(two.now / STEP_S) % 40 == 0:  # one request in two seconds
            two.ask(Role.PRIMARY, b"served")

    two.run(20 * PATIENCE_S, each_step=step)
    assert two.active() is Role.PRIMARY
    verdicts = [report.verdict for report in two.of(ClientsCutOff)]
    assert verdicts == ["asks the active node to hand over", "stays: other clients are served here"]


def test_a_client_whose_long_request_is_held_keeps_the_role_by_its_pings() -> None:
    two = Two()
    two.register(*Role)
    identity = native.identity(b"long".ljust(16), 1)
    two.send(Role.PRIMARY, b"long", native.encode_request(identity, ECHO, [b"?"], ttl_ms=0))
    assert two.primary.broker.ledger.requests_of == {b"long": 1}

    def step() -> None:
        two.ask(Role.BACKUP, b"c1", b"c2")
        two.send(Role.PRIMARY, b"long", native.encode_ping(epoch=0))

    two.run(5 * PATIENCE_S, each_step=step)
    assert two.active() is Role.PRIMARY

    # Of a client that waits for nothing they say only that it could ask.
    other = Two()
    other.register(*Role)

    def idle() -> None:
        other.ask(Role.BACKUP, b"c1", b"c2")
        other.send(Role.PRIMARY, b"idle", native.encode_ping(epoch=0))

    other.run(5 * PATIENCE_S, each_step=idle)
    assert other.active() is Role.BACKUP


def test_the_role_never_goes_where_no_worker_is_for_what_is_asked() -> None:
    two = Two()
    two.register(Role.PRIMARY)
    two.register(Role.BACKUP, service=b"another")
    two.run(2 * LONE_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2"))
    assert two.active() is Role.PRIMARY
    [report] = two.of(ClientsCutOff)
    assert (report.clients, report.unserved) == (0, 2)
    assert report.verdict == "no worker is registered here for what they ask, so the role stays"
    pair = two.backup.state(two.now).pair
    assert (pair.clients_cut_off, pair.clients_cut_off_unserved) == (0, 2)
    assert pair.clients_cut_off_s > LONE_S
    # When a worker comes, it follows.
    two.register(Role.BACKUP)
    two.run(PATIENCE_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2"))
    assert two.active() is Role.BACKUP


def test_liars_at_the_passive_node_move_the_role_of_an_idle_pair_once_per_settling_time() -> None:
    """And a cut between clients and either node in turns is no other thing."""
    two = Two()
    two.register(*Role)
    two.run(3 * SETTLING_S, each_step=asking(two, b"l1", b"l2"))
    moves = two.moves()
    assert 2 <= len(moves) <= 4
    assert all(later - earlier >= SETTLING_S for earlier, later in itertools.pairwise(moves))
    verdict = f"stays: the role was handed over less than {SETTLING_S:g} s ago"
    assert verdict in [report.verdict for report in two.of(ClientsCutOff)]


def test_an_operators_handover_stands_for_the_settling_time_too() -> None:
    two = Two()
    two.register(*Role)
    two.carry_out(Role.PRIMARY, list(two.primary.step(Handover(), two.now)))
    assert two.active() is Role.BACKUP
    assert [node.machine.counters.ordered_moves for node in two.nodes.values()] == [1, 1]
    two.run(SETTLING_S - 1.0, each_step=asking(two, b"c1", b"c2"))
    assert two.active() is Role.BACKUP
    two.run(2.0, each_step=asking(two, b"c1", b"c2"))
    assert two.active() is Role.PRIMARY


def test_the_policy_stay_leaves_it_to_an_operator_and_says_so() -> None:
    two = Two(on_clients_cut_off="stay")
    two.register(*Role)
    two.run(2 * LONE_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2"))
    assert two.active() is Role.PRIMARY
    assert two.of(ClientsCutOff)[-1].verdict == "stays: on_clients_cut_off is stay"


def test_a_node_that_drains_gives_nothing_up_by_this_rule() -> None:
    two = Two()
    two.register(*Role)
    identity = native.identity(b"long".ljust(16), 1)
    two.send(Role.PRIMARY, b"long", native.encode_request(identity, ECHO, [b"?"], ttl_ms=0))
    two.primary.parting._drain_timeout_s = 1e9
    two.carry_out(Role.PRIMARY, list(two.primary.step(Leave(), two.now)))
    two.run(2 * LONE_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2"))
    assert two.active() is Role.PRIMARY
    assert two.of(ClientsCutOff)[-1].verdict == "stays: this node is stopping"


def test_a_peer_that_is_not_ready_gets_no_role() -> None:
    machine = StarMachine(
        StarSettings(
            pair="p", role=Role.PRIMARY, heartbeat_interval_s=HEARTBEAT_S, failover_timeout_s=TIMEOUT_S
        ),
        node="a",
        epoch=0,
        now=0.0,
    )
    hello = PeerState(2, "p", "backup", "b", 1, 0, 100, 300)
    machine.step(PeerMessage(hello), 0.1)
    assert machine.is_active
    starting = PeerState(2, "p", "backup", "b", 2, 0, 100, 300, cut_off=5, cut_off_ms=5_000)
    outputs = machine.step(PeerMessage(starting), 0.2)
    assert machine.is_active
    now = 0.2
    for seq in range(3, 80):
        now += HEARTBEAT_S
        outputs = machine.step(Tick(), now)
        outputs += machine.step(
            PeerMessage(PeerState(2, "p", "backup", "b", seq, 0, 100, 300, cut_off=5, cut_off_ms=5_000)), now
        )
        told = [output for output in outputs if type(output) is ClientsCutOff]
        if told:
            assert told[0].verdict.startswith("stays:")
    assert machine.is_active
    passive = PeerState(4, "p", "backup", "b", 99, 0, 100, 300, cut_off=5, cut_off_ms=5_000)
    machine.step(PeerMessage(passive), now + HEARTBEAT_S / 2)
    assert machine.state is State.PASSIVE


@pytest.mark.parametrize("event", ["stall", "silence", "restart"])
def test_what_was_counted_is_forgotten_when_it_says_nothing_any_more(event: str) -> None:
    two = Two()
    two.register(*Role)
    two.run(PATIENCE_S - 4 * HEARTBEAT_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2"))
    cut_off = two.backup.machine.cut_off
    assert len(cut_off._clients) == 2
    if event == "stall":
        two.backup.step(Stall(2 * TIMEOUT_S), two.now + 2 * TIMEOUT_S)
    elif event == "silence":
        two.backup.step(Tick(), two.now + 0.25)
        two.backup.step(Tick(), two.now + 0.45)
    else:
        two.backup.step(PeerMessage(PeerState(1, "p", "primary", "new", 1, 0, 100, 300)), two.now)
    assert not cut_off._clients


def test_a_client_that_found_the_active_node_is_no_witness_for_long() -> None:
    cut_off = CutOff(TIMEOUT_S, 0.0, is_off=False)
    cut_off.refuse(b"a", 0.0, has_worker=True)
    cut_off.refuse(b"b", 0.0, has_worker=True)
    cut_off.refuse(b"b", PATIENCE_S, has_worker=True)
    assert cut_off.evidence(PATIENCE_S).clients == 2
    # The one of them asks no more, and the other has to go on for as long as one alone.
    later = LONE_S + 1.0
    cut_off.refuse(b"b", later, has_worker=True)
    evidence = cut_off.evidence(later)
    assert (evidence.clients, evidence.for_s) == (1, later)
    assert cut_off.evidence(later + LONE_S + 0.1).clients == 0
    assert not cut_off._clients


def test_two_that_asked_once_each_are_no_evidence() -> None:
    cut_off = CutOff(TIMEOUT_S, 0.0, is_off=False)
    cut_off.refuse(b"a", 0.0, has_worker=True)
    cut_off.refuse(b"b", 1.0, has_worker=True)
    assert cut_off.evidence(LONE_S - 0.1).clients == 0


def test_the_table_of_clients_is_bounded() -> None:
    cut_off = CutOff(TIMEOUT_S, 0.0, is_off=False)
    for number in range(3 * CLIENTS_MAX):
        cut_off.refuse(b"%d" % number, 0.001 * number, has_worker=True)
    assert len(cut_off._clients) == CLIENTS_MAX
    # Those that fell silent make room.
    cut_off.refuse(b"new", 2 * LONE_S, has_worker=True)
    assert list(cut_off._clients) == [b"new"]


def test_requests_in_plain_mdp_are_no_witnesses() -> None:
    two = Two()
    two.register(*Role)

    def step() -> None:
        for client in (b"c1", b"c2"):
            two.send(Role.BACKUP, client, [b"", b"MDPC01", ECHO, b"?"])
            two.send(Role.BACKUP, client, [b"MDPC02", b"\x01", ECHO, b"?"])

    two.run(2 * LONE_S, each_step=step)
    assert two.active() is Role.PRIMARY
    assert two.backup.machine.counters.requests_refused > 100
    assert not two.of(ClientsCutOff)


def test_looking_is_no_witness_either() -> None:
    two = Two()
    two.register(*Role)
    two.run(2 * LONE_S, each_step=lambda: two.ask(Role.BACKUP, b"c1", b"c2", service=b"mmi.state"))
    assert two.active() is Role.PRIMARY
    assert any(type(output) is Send for _, _, output in two.log)
