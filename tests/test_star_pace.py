"""A peer that tells nothing of its timing speaks once a second and counts a node as dead after two."""

from __future__ import annotations

import pytest

from bstar.star import (
    Output,
    PeerLost,
    PeerMessage,
    PeerSeen,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Subscription,
    Tick,
    Vote,
)
from bstar.wire.peer import PeerState

PRIMARY, BACKUP, ACTIVE, PASSIVE, ERROR = State

# As the profiles lan, guide and wan have them, and one that is slower than a published peer expects.
TIMINGS = [(0.1, 0.3), (1.0, 2.0), (1.0, 5.0), (5.0, 15.0)]


def machine_of(role: Role, timing: tuple[float, float]) -> StarMachine:
    heartbeat_s, timeout_s = timing
    settings = StarSettings(
        pair="test", role=role, heartbeat_interval_s=heartbeat_s, failover_timeout_s=timeout_s
    )
    return StarMachine(settings, node="we", epoch=0, now=0.0)


def run(machine: StarMachine, since: float, until: float) -> list[tuple[float, Output]]:
    """Serve the machine's deadlines for so long; what it put out, and when."""
    outputs: list[tuple[float, Output]] = []
    while (due := machine.next_deadline()) is not None and max(due, since) < until:
        now = max(due, since)
        outputs += [(now, output) for output in machine.step(Tick(), now)]
    return outputs


@pytest.mark.parametrize("timing", TIMINGS)
def test_a_published_peer_that_speaks_once_a_second_is_not_silent(timing: tuple[float, float]) -> None:
    machine = machine_of(Role.BACKUP, timing)
    outputs: list[Output] = []
    for second in range(60):
        outputs += machine.step(PeerMessage(PeerState(int(ACTIVE))), float(second))
        outputs += [output for _, output in run(machine, second, second + 0.99)]
        outputs += machine.step(Vote(), second + 0.99)
    assert machine.state is PASSIVE
    assert [type(output) for output in outputs if isinstance(output, PeerSeen | PeerLost)] == [PeerSeen]


@pytest.mark.parametrize("timing", TIMINGS)
def test_a_published_peer_that_dies_is_replaced(timing: tuple[float, float]) -> None:
    machine = machine_of(Role.BACKUP, timing)
    machine.step(PeerMessage(PeerState(int(ACTIVE))), 0.0)
    silence_s = max(2.0, timing[1])
    run(machine, 0.0, silence_s - 0.01)
    machine.step(Vote(), silence_s - 0.01)
    assert machine.state is PASSIVE
    machine.step(Vote(), silence_s)
    assert machine.state is ACTIVE


@pytest.mark.parametrize("timing", TIMINGS)
def test_a_published_peer_hears_us_once_a_second_at_least(timing: tuple[float, float]) -> None:
    """It counts us as dead after two."""
    machine = machine_of(Role.PRIMARY, timing)
    machine.step(PeerMessage(PeerState(int(BACKUP))), 0.0)
    said_at = [now for now, output in run(machine, 0.0, 20.0) if isinstance(output, Publish)]
    assert max(late - early for early, late in zip([0.0, *said_at], said_at, strict=False)) <= 1.0


@pytest.mark.parametrize(("away_s", "state"), [(1.9, ACTIVE), (2.0, PASSIVE)])
@pytest.mark.parametrize("timing", TIMINGS)
def test_a_published_peer_takes_over_after_two_seconds_and_not_before(
    timing: tuple[float, float], away_s: float, state: State
) -> None:
    """So a node that was away for less may go on serving, and one that was away for longer may not."""
    machine = machine_of(Role.PRIMARY, timing)
    machine.step(PeerMessage(PeerState(int(BACKUP))), 0.0)
    assert machine.state is ACTIVE
    machine.step(Stall(away_s), away_s)
    assert machine.state is state


def test_a_native_peer_in_its_place_has_our_timing() -> None:
    machine = machine_of(Role.BACKUP, (0.1, 0.3))
    machine.step(PeerMessage(PeerState(int(PRIMARY))), 0.0)
    machine.step(PeerMessage(PeerState(int(ACTIVE), "test", "primary", "they", 1, 1, 100, 300)), 0.1)
    run(machine, 0.1, 0.41)
    machine.step(Vote(), 0.41)
    assert machine.state is ACTIVE


def test_a_lone_primary_waits_for_a_published_peer_that_has_connected() -> None:
    """It may be active, and says so once a second."""
    machine = machine_of(Role.PRIMARY, (0.1, 0.3))
    machine.step(Subscription(is_published=True), 0.2)
    run(machine, 0.2, 1.1)
    machine.step(Vote(), 1.1)
    assert machine.state is PRIMARY
    machine.step(PeerMessage(PeerState(int(ACTIVE))), 1.2)
    assert machine.state is PASSIVE


def test_who_only_subscribes_holds_up_a_lone_primary_once() -> None:
    machine = machine_of(Role.PRIMARY, (0.1, 0.3))
    for tenth in range(1, 22):
        machine.step(Subscription(is_published=True), tenth / 10)
    machine.step(Vote(), 2.1)
    assert machine.state is ACTIVE
    # Nor does it change what we know of a native peer, which may hear us and not be heard.
    machine.step(Stall(0.35), 2.45)
    assert machine.state is PASSIVE
