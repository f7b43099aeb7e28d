"""Every kind of fault against a whole pair of real processes, one after another and at once."""

from __future__ import annotations

import pytest

from chaos.explore import draw, play
from chaos.faults import LINK_KINDS, PROCESS_KINDS, Kind, Step, apply
from chaos.needs import CHAOS, until_valid
from chaos.scenarios import plain_traffic
from chaos.stage import stage

pytestmark = CHAOS

# Three failover timeouts of the lan profile.
FAULT_S = 0.9


@until_valid
def test_nothing_fails_over_without_a_fault() -> None:
    plain_traffic("control")


@pytest.mark.parametrize("target", ["active", "passive", "worker1", "client1"])
@until_valid
def test_processes_are_killed_stopped_and_frozen(target: str) -> None:
    with stage(f"processes-{target}") as run:
        for kind in PROCESS_KINDS:
            with apply(run, Step(kind, target)):
                run.last(FAULT_S)
            run.calm()


@pytest.mark.parametrize(
    ("target", "stream"),
    [
        ("peer", "both"),
        ("hears-active", "down"),
        ("hears-passive", "down"),
        ("peer", "up"),
        ("clients-active", "both"),
        ("client1", "down"),
        ("workers-active", "both"),
        ("worker1", "up"),
    ],
)
@until_valid
def test_links_suffer_from_every_toxic(target: str, stream: str) -> None:
    with stage(f"links-{target}-{stream}") as run:
        for kind in LINK_KINDS:
            with apply(run, Step(kind, target, stream=stream)):
                run.last(FAULT_S)
            run.calm()


COMBINATIONS = {
    "both-nodes-die": (Step(Kind.KILL, "active"), Step(Kind.KILL, "passive")),
    "both-nodes-freeze": (Step(Kind.STOP, "active"), Step(Kind.STOP, "passive")),
    "successor-without-workers": (Step(Kind.KILL, "active"), Step(Kind.DOWN, "workers-passive")),
    "successor-behind-a-slow-link": (Step(Kind.STOP, "active"), Step(Kind.LATENCY, "clients-passive", 300)),
    "worker-dies-with-the-active-node": (Step(Kind.KILL, "active"), Step(Kind.KILL, "worker1")),
    "clients-reach-only-the-passive-node": (Step(Kind.TIMEOUT, "peer"), Step(Kind.DOWN, "clients-active")),
    "one-client-on-each-side": (
        Step(Kind.TIMEOUT, "peer"),
        Step(Kind.DOWN, "client1-active"),
        Step(Kind.STALL, "worker1-active"),
    ),
    "frozen-behind-a-held-link": (Step(Kind.STOP, "active"), Step(Kind.STALL, "peer")),
}


@pytest.mark.parametrize("half", [0, 1])
@until_valid
def test_faults_come_together(half: int) -> None:
    chosen = list(COMBINATIONS.items())[half::2]
    with stage(f"combinations-{half}") as run:
        for name, steps in chosen:
            run.note("combination", text=name)
            with apply(run, *steps):
                run.last(FAULT_S)
            run.calm()


@pytest.mark.parametrize("seed", [1, 2, 3])
@until_valid
def test_a_plan_drawn_from_a_seed(seed: int) -> None:
    play(draw(seed))
