"""Epochs as claims: whose word raises a node's epoch, how far, and how everybody comes together again."""

from __future__ import annotations

from typing import Any

import pytest

from bstar.star import EpochHeard, PeerMessage, PersistEpoch, Role, StarMachine, StarSettings, State
from bstar.star.epochs import Allowance, next_epoch
from bstar.wire import native
from bstar.wire.epochs import EPOCH_FAR, EPOCH_MAX, EPOCH_REFILL_S, EPOCH_STEP_MAX
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Node, Notice

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State
FAR = EPOCH_FAR + 100
YEAR_S = 365 * 24 * 3600


class Peer:
    """The other node as a script."""

    def __init__(self, role: Role = Role.PRIMARY) -> None:
        self.role = role
        self.seq = 0

    def says(self, state: State, epoch: int, **changes: Any) -> PeerState:
        self.seq += 1
        return PeerState(
            **{
                "state": int(state),
                "pair": "test",
                "role": self.role.value,
                "node": "they",
                "seq": self.seq,
                "epoch": epoch,
                "heartbeat_ms": 1000,
                "timeout_ms": 2000,
                **changes,
            }
        )


def machine_of(role: Role = Role.PRIMARY, epoch: int = 0) -> StarMachine:
    return StarMachine(StarSettings(pair="test", role=role), node="we", epoch=epoch, now=0.0)


def active(epoch: int = 0) -> tuple[StarMachine, Peer]:
    """A primary that has just become active; its peer stands by."""
    machine, peer = machine_of(epoch=epoch), Peer(Role.BACKUP)
    machine.step(PeerMessage(peer.says(BACKUP, 0)), 0.0)
    machine.step(PeerMessage(peer.says(PASSIVE, 0)), 0.0)
    assert machine.is_active
    return machine, peer


def passive(epoch: int, of_peer: int) -> tuple[StarMachine, Peer]:
    """A backup that remembers ``epoch`` and has just heard that its peer serves in ``of_peer``."""
    machine, peer = machine_of(Role.BACKUP, epoch), Peer()
    machine.step(PeerMessage(peer.says(ACTIVE, of_peer)), 0.0)
    assert machine.state is PASSIVE
    return machine, peer


def persisted(outputs: list[Any]) -> list[int]:
    return [output.epoch for output in outputs if isinstance(output, PersistEpoch)]


# --- how far a claim is followed ----------------------------------------------------------------------------


def test_an_allowance_is_used_up_and_comes_back_with_time() -> None:
    allowance = Allowance(1000)
    assert allowance.take(400, 0.0)
    assert allowance.take(600, 0.0)
    assert not allowance.take(1, 0.0)
    assert not allowance.take(501, EPOCH_REFILL_S / 2)
    assert allowance.take(500, EPOCH_REFILL_S / 2)
    assert allowance.take(1000, 10 * EPOCH_REFILL_S)
    assert not allowance.take(1001, 100 * EPOCH_REFILL_S)


@pytest.mark.parametrize("step", [EPOCH_STEP_MAX, EPOCH_FAR])
def test_no_liar_uses_the_numbers_up_within_a_century(step: int) -> None:
    """As many claims as he likes, each as high as is believed."""
    per_s = step / EPOCH_REFILL_S
    assert EPOCH_MAX / per_s / YEAR_S > 100


@pytest.mark.requirement("BSN-B-03")
def test_workers_raise_the_epoch_by_one_step_and_then_no_faster_than_it_refills() -> None:
    machine, _ = active()
    for _ in range(10):
        machine.publisher.published_at = 1.0
        machine.step(EpochHeard(machine.epochs.seen + EPOCH_STEP_MAX), 1.0)
    assert machine.epochs.seen <= 1 + EPOCH_STEP_MAX + 2
    assert machine.epochs.ignored == 9
    machine.publisher.published_at = 2.0
    machine.step(EpochHeard(machine.epochs.seen + EPOCH_STEP_MAX // 128), 2.0)
    assert machine.epochs.ignored == 9, "a second has refilled a 64th"


def test_a_forged_state_message_raises_the_epoch_by_a_bounded_step() -> None:
    machine, peer = passive(0, 1)
    for _ in range(10):
        machine.step(PeerMessage(peer.says(PASSIVE, machine.epochs.seen + EPOCH_FAR // 4)), 0.0)
    believed = machine.epochs.seen
    assert believed == 1 + 3 * (EPOCH_FAR // 4)
    machine.step(PeerMessage(peer.says(PASSIVE, EPOCH_MAX)), 1000.0)
    assert machine.epochs.seen == believed


# --- coming together again ----------------------------------------------------------------------------------


def test_what_only_a_liar_said_is_forgotten_as_well() -> None:
    machine, peer = passive(4, 5)
    machine.epochs.seen = 5 + FAR
    assert persisted(machine.step(PeerMessage(peer.says(ACTIVE, 5)), 0.1)) == []
    assert (machine.epoch, machine.epochs.seen) == (4, 5)


@pytest.mark.parametrize(("role", "first"), [(Role.PRIMARY, 1), (Role.BACKUP, 2)])
def test_above_the_highest_epoch_the_numbers_begin_again(role: Role, first: int) -> None:
    assert next_epoch(role, EPOCH_MAX - 2) <= EPOCH_MAX
    assert next_epoch(role, EPOCH_MAX) == first


# --- who may claim ------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> Node:
    """An active node in epoch 1."""
    machine, peer = machine_of(), Peer(Role.BACKUP)
    made = Node(machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0)
    made.step(PeerMessage(peer.says(BACKUP, 0)), 0.0)
    made.step(PeerMessage(peer.says(PASSIVE, 0)), 0.0)
    return made


IDENTITY = native.identity(b"c" * 16, 1)


@pytest.mark.parametrize(
    "frames",
    [
        native.encode_ping(epoch=9),
        native.encode_request(IDENTITY, b"echo", [b"x"], ttl_ms=0, epoch=9),
        native.encode_requests(b"c" * 16, b"echo", [1, 2], [0, 0], [b"x", b"y"], epoch=9),
        native.encode_heartbeat(9),
        native.encode_stale_epoch(IDENTITY, 9),
        native.encode_disconnect(epoch=9),
    ],
    ids=["ping", "request", "requests", "heartbeat", "stale", "disconnect"],
)
def test_nothing_that_a_client_says_raises_an_epoch(node: Node, frames: list[bytes]) -> None:
    """Nor what a worker says that is not registered."""
    node.receive_frames([b"client", *frames], 0.1)
    assert node.machine.epochs.seen == 1


@pytest.mark.requirement("BSN-B-02")
@pytest.mark.parametrize(
    "frames", [native.encode_heartbeat(9), native.encode_stale_epoch(IDENTITY, 9)], ids=["heartbeat", "stale"]
)
def test_what_a_registered_worker_remembers_is_climbed_above(node: Node, frames: list[bytes]) -> None:
    """A pair restarted without its state must not be locked out."""
    node.receive_frames([b"worker", *native.encode_ready(b"echo", credit=1, epoch=0)], 0.1)
    node.receive_frames([b"worker", *frames], 0.1)
    assert node.machine.epoch == 11


def test_who_names_a_far_epoch_is_told_once_a_minute(node: Node) -> None:
    def told(epoch: int, now: float) -> list[str]:
        outputs = node.receive_frames([b"worker", *native.encode_heartbeat(epoch)], now)
        return [output.text for output in outputs if isinstance(output, Notice)]

    node.receive_frames([b"worker", *native.encode_ready(b"echo", credit=1, epoch=0)], 0.1)
    assert told(9, 0.2) == [], "what an honest pair may need"
    (text,) = told(2**30, 0.3)
    assert f'a worker of service "echo" names epoch {2**30}; the highest known here was 11' in text
    assert "believed it" in text
    assert told(2**31, 59.0) == []
    (text,) = told(2**60, 61.0)
    assert "ignored it" in text


def test_a_worker_tells_what_it_remembers_when_it_registers(node: Node) -> None:
    node.receive_frames([b"worker", *native.encode_ready(b"echo", credit=1, epoch=9)], 0.1)
    assert node.machine.epoch == 11
