"""Every kind of fault against a whole pair of real processes."""

from __future__ import annotations

import pytest

from chaos.faults import Kind, Step, apply
from chaos.stage import stage


def test_nothing_fails_over_without_a_fault() -> None:
    with stage("control", is_control=True) as run:
        run.wait_for_answers(200)


@pytest.mark.parametrize("target", ["active", "passive", "worker1"])
def test_processes(target: str) -> None:
    with stage(f"processes-{target}") as run:
        for kind in (Kind.KILL, Kind.TERM, Kind.STOP):
            with apply(run, Step(kind, target)):
                run.last(1.0)
            run.calm()


@pytest.mark.parametrize("target", ["peer", "hears-active", "hears-passive"])
def test_the_peer_link(target: str) -> None:
    with stage(f"links-{target}") as run:
        for kind in (
            Kind.LATENCY,
            Kind.JITTER,
            Kind.STALL,
            Kind.TIMEOUT,
            Kind.RESET,
            Kind.SLICER,
            Kind.LIMIT,
            Kind.DOWN,
        ):
            with apply(run, Step(kind, target)):
                run.last(0.9)
            run.calm()
